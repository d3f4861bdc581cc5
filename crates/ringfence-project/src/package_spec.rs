//! Package specifiers: a name of the registry, with an optional version requirement.
//!
//! What a package manager would take for an option, a URL, a path, a git repository or an alias is refused, so that a
//! specifier never means anything else than a package of the registry.
//!
//! Not here: the package managers (`package_manager.rs`).

use ringfence_kernel::ToolError;

/// Longest specifier, in bytes.
const MAX_SPEC_BYTES: usize = 300;

/// The rules for names and versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PackageEcosystem {
    Cargo,
    Npm,
    Python,
}

/// A package that a call names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PackageSpec {
    pub(crate) name: String,
    /// Extras of a Python package, as in `name[extra]`.
    extras: Option<String>,
    requirement: Option<String>,
}

impl PackageSpec {
    pub(crate) fn parse(text: &str, ecosystem: PackageEcosystem) -> Result<Self, ToolError> {
        let refuse = |problem: &str| Err(ToolError::invalid("packages", problem));
        let text = text.trim();
        if text.is_empty() || text.len() > MAX_SPEC_BYTES {
            return refuse("must be names of 1 to 300 bytes");
        }
        if text.starts_with('-') {
            return refuse("must not begin with `-`; packages are named, options are not taken");
        }
        let (name, requirement) = split(text, ecosystem);
        let (name, extras) = match name.split_once('[') {
            Some((name, extras)) if ecosystem == PackageEcosystem::Python => match extras.strip_suffix(']') {
                Some(extras) if extras.split(',').all(|extra| is_python_name(extra.trim())) => (name, Some(extras)),
                _ => return refuse("has extras that are not plain names, such as `name[extra]`"),
            },
            _ => (name, None),
        };
        let is_name = match ecosystem {
            PackageEcosystem::Cargo => is_crate_name(name),
            PackageEcosystem::Npm => is_npm_name(name),
            PackageEcosystem::Python => is_python_name(name),
        };
        if !is_name {
            return refuse(
                "must be names of packages of the registry, such as `name` or `name@1.2`; URLs, paths, git repositories and \
                 aliases are not installed",
            );
        }
        if requirement.is_some_and(|requirement| !is_requirement(requirement, ecosystem)) {
            return refuse(
                "has a version that is not one of the registry, such as `1.2.3` or `>=1.2`; URLs, paths, git repositories and \
                 aliases are not installed",
            );
        }
        let owned = |text: &str| text.trim().to_owned();
        Ok(Self { name: name.to_owned(), extras: extras.map(owned), requirement: requirement.map(owned) })
    }

    /// As the package manager takes it.
    pub(crate) fn to_argument(&self, ecosystem: PackageEcosystem) -> String {
        let Self { name, extras, requirement } = self;
        let extras = extras.as_deref().map(|extras| format!("[{extras}]")).unwrap_or_default();
        match (requirement, ecosystem) {
            (None, _) => format!("{name}{extras}"),
            (Some(requirement), PackageEcosystem::Cargo | PackageEcosystem::Npm) => format!("{name}@{requirement}"),
            (Some(requirement), PackageEcosystem::Python) => {
                let operator = if requirement.starts_with(['=', '<', '>', '!', '~']) { "" } else { "==" };
                format!("{name}{extras}{operator}{requirement}")
            }
        }
    }
}

/// A line of `requirements.in` that names a package of the registry, with its name. Anything else is `None`: options, URLs,
/// paths.
pub(crate) fn requirement_name(line: &str) -> Option<&str> {
    let (requirement, _marker) = line.split_once(';').unwrap_or((line, ""));
    let requirement = requirement.trim();
    if requirement.contains('@') {
        return None;
    }
    let compact: String = requirement.split_whitespace().collect();
    PackageSpec::parse(&compact, PackageEcosystem::Python).ok()?;
    let end = requirement.find(['[', '=', '<', '>', '!', '~', ' ']).unwrap_or(requirement.len());
    requirement.get(..end)
}

/// The name of a Python package in the one form in which two are compared.
pub(crate) fn python_key(name: &str) -> String {
    let parts = name.split(['-', '_', '.']).filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join("-").to_ascii_lowercase()
}

/// The name and the requirement. Of an npm name, the first character may be `@`.
fn split(text: &str, ecosystem: PackageEcosystem) -> (&str, Option<&str>) {
    let at = text.char_indices().skip(1).find(|(_, c)| *c == '@').map(|(at, _)| at);
    let operator = match ecosystem {
        PackageEcosystem::Python => text.find(['=', '<', '>', '!', '~']),
        PackageEcosystem::Cargo | PackageEcosystem::Npm => None,
    };
    match (operator, at) {
        (Some(operator), at) if at.is_none_or(|at| operator < at) => {
            let (name, requirement) = text.split_at(operator);
            (name.trim_end(), Some(requirement))
        }
        (_, Some(at)) => {
            let (name, requirement) = text.split_at(at);
            (name.trim_end(), Some(requirement.trim_start_matches('@').trim()))
        }
        _ => (text, None),
    }
}

fn is_crate_name(name: &str) -> bool {
    name.len() <= 64
        && name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'))
}

/// With or without a scope. Older names have capital letters.
fn is_npm_name(name: &str) -> bool {
    let part = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphanumeric())
            && part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '~'))
    };
    let is_file = [".tgz", ".tar", ".tar.gz"].iter().any(|end| name.to_ascii_lowercase().ends_with(end));
    let is_plain = match name.strip_prefix('@').map(|scoped| scoped.split_once('/')) {
        Some(Some((scope, name))) => part(scope) && part(name),
        Some(None) => false,
        None => part(name),
    };
    is_plain && !is_file && name.len() <= 214
}

fn is_python_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.ends_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

/// Comparisons of versions. For npm also a tag, such as `latest`.
fn is_requirement(requirement: &str, ecosystem: PackageEcosystem) -> bool {
    let lower = requirement.to_ascii_lowercase();
    if [".tgz", ".tar", ".tar.gz"].iter().any(|end| lower.ends_with(end)) || requirement.is_empty() {
        return false;
    }
    let is_tag = requirement.starts_with(|c: char| c.is_ascii_lowercase())
        && requirement.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    let (operators, separators): (&[char], &[char]) = match ecosystem {
        PackageEcosystem::Npm if is_tag => return true,
        PackageEcosystem::Npm => (&['^', '~', '<', '>', '='], &[' ', '|']),
        PackageEcosystem::Cargo => (&['^', '~', '<', '>', '='], &[' ', ',']),
        PackageEcosystem::Python => (&['=', '<', '>', '!', '~'], &[',']),
    };
    let is_comparison = |part: &str| {
        let version = part.trim_start_matches(operators);
        let is_version = version.starts_with(|c: char| c.is_ascii_digit() || c == '*')
            && version.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '*' | '+' | '-' | '!'))
            && !version.contains("..");
        // Between two versions of npm, or behind an operator and a blank.
        is_version || (part.len() > version.len() && version.is_empty()) || part == "-"
    };
    let mut parts = requirement.split(separators).map(str::trim).filter(|part| !part.is_empty()).peekable();
    parts.peek().is_some_and(|first| *first != "-") && parts.all(is_comparison)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::PackageEcosystem::{Cargo, Npm, Python};
    use super::{PackageEcosystem, PackageSpec, python_key, requirement_name};

    #[track_caller]
    fn check(ecosystem: PackageEcosystem, text: &str, expected: Option<&str>) {
        let parsed = PackageSpec::parse(text, ecosystem).map(|spec| spec.to_argument(ecosystem));
        assert_eq!(parsed.ok().as_deref(), expected, "{ecosystem:?} {text}");
    }

    #[test]
    fn names_of_the_registry_are_taken_with_their_versions() {
        check(Cargo, "serde", Some("serde"));
        check(Cargo, "serde@1", Some("serde@1"));
        check(Cargo, "serde_json@^1.0, <1.5", Some("serde_json@^1.0, <1.5"));
        check(Npm, "left-pad", Some("left-pad"));
        check(Npm, "@types/node@22", Some("@types/node@22"));
        check(Npm, "react@>=18 <20 || 16.x", Some("react@>=18 <20 || 16.x"));
        check(Npm, "react@1.0.0 - 2.0.0", Some("react@1.0.0 - 2.0.0"));
        check(Npm, "react@next", Some("react@next"));
        check(Npm, "react@1.0.0-rc.1", Some("react@1.0.0-rc.1"));
        check(Python, "requests", Some("requests"));
        check(Python, "requests@2.31", Some("requests==2.31"));
        check(Python, "requests>=2,<3", Some("requests>=2,<3"));
        check(Python, "requests[socks, security]~=2.0", Some("requests[socks, security]~=2.0"));
        check(Python, "zope.interface==6.*", Some("zope.interface==6.*"));
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "",
            " ",
            "-r",
            "--registry=x",
            "-",
            ".",
            "..",
            "./x",
            "../x",
            "/etc",
            "~/x",
            "a/b",
            "a b",
            "a\nb",
            "a;b",
            "$(x)",
            "`x`",
            "https://a.b/c",
            "git+https://a.b/c",
            "git@a.b:c",
            "github:a/b",
            "file:x",
            "file:../x",
            "link:x",
            "npm:x",
            "a@npm:b",
            "a@npm:b@1",
            "a@file:x",
            "a@file:../x",
            "a@git+ssh://a.b/c",
            "a@https://a.b/c.tgz",
            "a@b/c",
            "a@./b",
            "a@../b",
            "a@..",
            "a@.",
            "a@~/b",
            "a@-1",
            "a@--x",
            "a@1.0.0.tgz",
            "a@1 --x",
            "a@",
            "a@workspace:*",
            "x.tgz",
            "a @ https://a.b/c",
            "a@1\n2",
            "ä",
        ] {
            for ecosystem in [Cargo, Npm, Python] {
                let is_file_name = text == "x.tgz" && ecosystem == Python;
                let parsed = PackageSpec::parse(text, ecosystem);
                assert!(parsed.is_err() || is_file_name, "{ecosystem:?} {text:?}: {parsed:?}");
            }
        }
        check(Python, "a@^1", None);
        check(Python, "a[b", None);
        check(Python, "a[-b]", None);
        check(Cargo, "a@latest", None);
        check(Cargo, &"a".repeat(65), None);
    }

    #[test]
    fn lines_of_requirements_name_packages_of_the_registry() {
        for (line, name) in [
            ("requests", Some("requests")),
            ("requests >= 2, < 3", Some("requests")),
            ("requests[socks]==2.31 ; python_version > '3.8'", Some("requests")),
            ("-r other.txt", None),
            ("-e .", None),
            ("--extra-index-url https://a.b/", None),
            ("a @ https://a.b/c.whl", None),
            ("./a.whl", None),
            ("git+https://a.b/c", None),
            ("a --hash=sha256:0", None),
        ] {
            assert_eq!(requirement_name(line), name, "{line}");
        }
        assert_eq!(python_key("Zope._Interface"), "zope-interface");
    }

    proptest! {
        #[test]
        fn no_specifier_becomes_an_option_a_url_or_a_path(text in "(@|/|-|--|\\.|\\.\\.|:|=|==|>=|~|~/|\\^|<|>|!|\\||,| |\\[|\\]|\\*|npm:|file:|git|https://|[a-c]|[0-9]|\n|\\.tgz|\\\\)*") {
            for ecosystem in [Cargo, Npm, Python] {
                let Ok(spec) = PackageSpec::parse(&text, ecosystem) else { continue };
                let argument = spec.to_argument(ecosystem);
                let slashes = usize::from(ecosystem == Npm && argument.starts_with('@'));
                prop_assert!(!argument.starts_with(['-', '.', '/', '~']), "{argument:?}");
                prop_assert!(!argument.contains([':', '\n', '\\']) && !argument.contains("@.") && !argument.contains("@~/"), "{argument:?}");
                prop_assert_eq!(argument.matches('/').count(), slashes, "{:?}", argument);
                prop_assert!(!argument.ends_with(".tgz"), "{argument:?}");
            }
        }
    }
}
