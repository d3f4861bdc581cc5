//! Licences of packages: is what a package says of itself a permissive licence?
//!
//! An expression is permissive if one side of each `OR` is. What is not understood is not permissive.
//!
//! Not here: which packages are asked about (`packages.rs`).

/// Identifiers of SPDX, in lower case.
const PERMISSIVE: [&str; 23] = [
    "0bsd",
    "apache-2.0",
    "apache-2.0 with llvm-exception",
    "blueoak-1.0.0",
    "bsd-2-clause",
    "bsd-3-clause",
    "bsl-1.0",
    "cc0-1.0",
    "cnri-python",
    "hpnd",
    "isc",
    "mit",
    "mit-0",
    "mit-cmu",
    "ncsa",
    "psf-2.0",
    "python-2.0",
    "unicode-3.0",
    "unicode-dfs-2016",
    "unlicense",
    "wtfpl",
    "zlib",
    "zpl-2.1",
];

/// Spellings that Python packages use in the field `License`, in lower case.
const SPELLINGS: [(&str, &str); 33] = [
    ("apache", "Apache-2.0"),
    ("apache 2", "Apache-2.0"),
    ("apache 2.0", "Apache-2.0"),
    ("apache license", "Apache-2.0"),
    ("apache license 2.0", "Apache-2.0"),
    ("apache license, version 2.0", "Apache-2.0"),
    ("apache license version 2.0", "Apache-2.0"),
    ("apache software license", "Apache-2.0"),
    ("apache software license 2.0", "Apache-2.0"),
    ("apache-2", "Apache-2.0"),
    ("apache2", "Apache-2.0"),
    ("apache2.0", "Apache-2.0"),
    ("asl 2", "Apache-2.0"),
    ("bsd", "BSD-3-Clause"),
    ("bsd 3-clause", "BSD-3-Clause"),
    ("bsd 3-clause license", "BSD-3-Clause"),
    ("bsd license", "BSD-3-Clause"),
    ("bsd-2", "BSD-2-Clause"),
    ("bsd-3", "BSD-3-Clause"),
    ("bsd-3-clause license", "BSD-3-Clause"),
    ("3-clause bsd", "BSD-3-Clause"),
    ("3-clause bsd license", "BSD-3-Clause"),
    ("new bsd", "BSD-3-Clause"),
    ("new bsd license", "BSD-3-Clause"),
    ("modified bsd", "BSD-3-Clause"),
    ("isc license", "ISC"),
    ("mit license", "MIT"),
    ("the mit license", "MIT"),
    ("mit licence", "MIT"),
    ("psf", "PSF-2.0"),
    ("public domain", "Unlicense"),
    ("zpl 2.1", "ZPL-2.1"),
    ("the unlicense", "Unlicense"),
];

/// Ends of the classifiers `License :: …` of Python packages.
const CLASSIFIERS: [&str; 15] = [
    "Apache Software License",
    "BSD License",
    "Boost Software License 1.0 (BSL-1.0)",
    "Historical Permission Notice and Disclaimer (HPND)",
    "ISC License (ISCL)",
    "MIT License",
    "MIT No Attribution License (MIT-0)",
    "OSI Approved",
    "Public Domain",
    "Python Software Foundation License",
    "The Unlicense (Unlicense)",
    "University of Illinois/NCSA Open Source License",
    "Zope Public License",
    "zlib/libpng License",
    "CC0 1.0 Universal (CC0 1.0) Public Domain Dedication",
];

/// Whether an SPDX expression allows use under a permissive licence. The old `MIT/Apache-2.0` means `OR`.
pub(super) fn is_permissive(expression: &str) -> bool {
    let text = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut parser = ExpressionParser { words: &words };
    parser.any() == Some(true) && parser.words.is_empty()
}

/// Whether the header of a Python package's metadata names a permissive licence: by its expression, else by its
/// classifiers, all of which have to be permissive, else by its field `License`.
pub(super) fn is_permissive_python(metadata: &str) -> bool {
    let header = metadata.split("\n\n").next().unwrap_or_default();
    let field = |key: &'static str| header.lines().filter_map(move |line| line.strip_prefix(key)).map(str::trim);
    if let Some(expression) = field("License-Expression:").next() {
        return is_permissive(expression);
    }
    let mut classifiers =
        field("Classifier:").filter_map(|text| text.strip_prefix("License :: ")?.split(" :: ").last()).peekable();
    if classifiers.peek().is_some_and(|first| *first != "OSI Approved") {
        return classifiers.all(|name| CLASSIFIERS.contains(&name));
    }
    field("License:").next().is_some_and(|text| {
        let lower = text.to_lowercase();
        let spelled = SPELLINGS.iter().find(|(spelling, _)| *spelling == lower);
        is_permissive(spelled.map_or(text, |(_, expression)| expression))
    })
}

/// Recursive descent over the words of an expression.
struct ExpressionParser<'a> {
    words: &'a [&'a str],
}

impl ExpressionParser<'_> {
    fn any(&mut self) -> Option<bool> {
        let mut found = self.all()?;
        while self.take("or") {
            found |= self.all()?;
        }
        Some(found)
    }

    fn all(&mut self) -> Option<bool> {
        let mut found = self.one()?;
        while self.take("and") {
            found &= self.one()?;
        }
        Some(found)
    }

    fn one(&mut self) -> Option<bool> {
        if self.take("(") {
            let inner = self.any()?;
            return self.take(")").then_some(inner);
        }
        let (first, rest) = self.words.split_first()?;
        self.words = rest;
        let mut name = first.to_lowercase();
        if self.take("with") {
            let (exception, rest) = self.words.split_first()?;
            self.words = rest;
            name = format!("{name} with {}", exception.to_lowercase());
        }
        Some(PERMISSIVE.contains(&name.as_str()))
    }

    fn take(&mut self, wanted: &str) -> bool {
        let Some((first, rest)) = self.words.split_first() else { return false };
        let is_wanted = first.eq_ignore_ascii_case(wanted);
        if is_wanted {
            self.words = rest;
        }
        is_wanted
    }
}

#[cfg(test)]
mod tests {
    use super::{is_permissive, is_permissive_python};

    #[test]
    fn an_expression_is_permissive_if_one_choice_is() {
        for (expression, wanted) in [
            ("MIT", true),
            ("MIT OR Apache-2.0", true),
            ("MIT/Apache-2.0", true),
            ("GPL-3.0-only", false),
            ("LGPL-2.1 OR MIT", true),
            ("MIT AND MPL-2.0", false),
            ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
            ("(MIT OR Apache-2.0) AND GPL-2.0", false),
            ("Apache-2.0 WITH LLVM-exception OR MIT", true),
            ("Apache-2.0 WITH Some-exception", false),
            ("(MIT", false),
            ("MIT Apache-2.0", false),
            ("", false),
        ] {
            assert_eq!(is_permissive(expression), wanted, "{expression}");
        }
    }

    #[test]
    fn a_python_package_is_judged_by_its_most_exact_field() {
        for (metadata, wanted) in [
            ("Name: a\nLicense-Expression: BSD-3-Clause\nLicense: GPL\n\nbody", true),
            ("Name: a\nLicense-Expression: GPL-3.0\nClassifier: License :: OSI Approved :: MIT License\n", false),
            ("Name: a\nClassifier: License :: OSI Approved :: MIT License\n", true),
            (
                "Classifier: License :: OSI Approved :: MIT License\nClassifier: License :: OSI Approved :: GNU (GPL)\n",
                false,
            ),
            ("Classifier: License :: OSI Approved\nLicense: Apache License, Version 2.0\n", true),
            ("License: proprietary\n", false),
            ("Name: a\n\nLicense: MIT\n", false),
        ] {
            assert_eq!(is_permissive_python(metadata), wanted, "{metadata}");
        }
    }
}
