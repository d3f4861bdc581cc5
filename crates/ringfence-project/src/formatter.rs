//! Formatters: the one that a project names for a file, and the command for it.
//!
//! A command changes the named files and no others. Rust is formatted from standard input, because rustfmt goes on to the
//! modules of a file; caches in the project are switched off.
//!
//! Not here: running it, and keeping what it changed (`format_code.rs`).

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;

use crate::detect::{EntryKind, ProjectFiles, ancestors, join, python};
use crate::test_runner::quoted;

/// A program that formats files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CodeFormatter {
    Rustfmt,
    Ruff,
    Black,
    Prettier,
    Biome,
    Gofmt,
    ClangFormat,
    Shfmt,
    Taplo,
}

impl CodeFormatter {
    pub(crate) const ALL: [Self; 9] = [
        Self::Rustfmt,
        Self::Ruff,
        Self::Black,
        Self::Prettier,
        Self::Biome,
        Self::Gofmt,
        Self::ClangFormat,
        Self::Shfmt,
        Self::Taplo,
    ];

    /// Name of the program, in the config and in replies.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Rustfmt => "rustfmt",
            Self::Ruff => "ruff",
            Self::Black => "black",
            Self::Prettier => "prettier",
            Self::Biome => "biome",
            Self::Gofmt => "gofmt",
            Self::ClangFormat => "clang-format",
            Self::Shfmt => "shfmt",
            Self::Taplo => "taplo",
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|formatter| formatter.name() == name)
    }

    const fn extensions(self) -> &'static [&'static str] {
        match self {
            Self::Rustfmt => &["rs"],
            Self::Ruff | Self::Black => &["py", "pyi"],
            Self::Prettier => &[
                "cjs", "css", "cts", "graphql", "html", "js", "json", "jsonc", "jsx", "less", "md", "mjs", "mts",
                "scss", "ts", "tsx", "vue", "yaml", "yml",
            ],
            Self::Biome => &["cjs", "css", "cts", "graphql", "js", "json", "jsonc", "jsx", "mjs", "mts", "ts", "tsx"],
            Self::Gofmt => &["go"],
            Self::ClangFormat => &["c", "cc", "cpp", "cxx", "h", "hh", "hpp", "hxx", "m", "mm", "proto"],
            Self::Shfmt => &["sh", "bash"],
            Self::Taplo => &["toml"],
        }
    }
}

/// The files of one command.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FormatCommand {
    pub(crate) formatter: CodeFormatter,
    /// The formatter that is taken where the first is not installed and the project names neither.
    pub(crate) otherwise: Option<CodeFormatter>,
    /// The edition of Rust.
    pub(crate) edition: String,
    /// The interpreter of Python.
    pub(crate) python: String,
}

/// A file that cannot be formatted.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FormatError {
    #[error("`{0}` does not exist")]
    NoFile(String),
    #[error("`{0}` is a directory; name the files to format")]
    Directory(String),
    #[error("no formatter is known for `{0}`; set `format` under `[project]` in the config, or run it as a command")]
    NoFormatter(String),
}

/// The commands for some files. `setting` is `format` of the config.
pub(crate) fn commands(
    files: &dyn ProjectFiles,
    paths: &[String],
    setting: Option<CodeFormatter>,
) -> Result<BTreeMap<FormatCommand, Vec<String>>, FormatError> {
    let mut commands: BTreeMap<FormatCommand, Vec<String>> = BTreeMap::new();
    for path in paths {
        match files.kind(path) {
            None => return Err(FormatError::NoFile(path.clone())),
            Some(EntryKind::Directory) => return Err(FormatError::Directory(path.clone())),
            Some(EntryKind::File) => {}
        }
        let command = command_for(files, path, setting).ok_or_else(|| FormatError::NoFormatter(path.clone()))?;
        let of_command = commands.entry(command).or_default();
        if !of_command.contains(path) {
            of_command.push(path.clone());
        }
    }
    Ok(commands)
}

fn command_for(files: &dyn ProjectFiles, path: &str, setting: Option<CodeFormatter>) -> Option<FormatCommand> {
    let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
    let (_, extension) = name.rsplit_once('.')?;
    let takes = |formatter: &CodeFormatter| formatter.extensions().contains(&extension);
    let command =
        |formatter| FormatCommand { formatter, otherwise: None, edition: String::new(), python: String::new() };
    let candidates: Vec<CodeFormatter> = CodeFormatter::ALL.into_iter().filter(takes).collect();
    let named = setting.filter(takes).or_else(|| {
        ancestors(directory).find_map(|directory| {
            candidates.iter().copied().find(|formatter| is_named_in(files, directory, *formatter))
        })
    });
    let formatter = named.or(candidates.first().copied())?;
    Some(match formatter {
        CodeFormatter::Rustfmt => FormatCommand { edition: edition(files, directory), ..command(formatter) },
        CodeFormatter::Ruff | CodeFormatter::Black => FormatCommand {
            otherwise: (named.is_none() && formatter == CodeFormatter::Ruff).then_some(CodeFormatter::Black),
            python: python(files, directory),
            ..command(formatter)
        },
        formatter => command(formatter),
    })
}

/// Whether the settings of a directory name a formatter.
fn is_named_in(files: &dyn ProjectFiles, directory: &str, formatter: CodeFormatter) -> bool {
    let has = |names: &[&str]| names.iter().any(|name| files.kind(&join(directory, name)) == Some(EntryKind::File));
    let python_tool = |tool: &str| {
        let text = files.read(&join(directory, "pyproject.toml"));
        let table = text.and_then(|text| text.parse::<toml::Table>().ok());
        table.is_some_and(|table| table.get("tool").and_then(|tools| tools.get(tool)).is_some())
    };
    let package = || {
        let text = files.read(&join(directory, "package.json"))?;
        serde_json::from_str::<Value>(&text).ok()
    };
    let depends = |name: &str| {
        let tables = ["devDependencies", "dependencies"];
        package().is_some_and(|package| {
            tables.iter().any(|table| package.get(table).and_then(|table| table.get(name)).is_some())
        })
    };
    match formatter {
        CodeFormatter::Ruff => has(&["ruff.toml", ".ruff.toml"]) || python_tool("ruff"),
        CodeFormatter::Black => python_tool("black"),
        CodeFormatter::Biome => has(&["biome.json", "biome.jsonc"]) || depends("@biomejs/biome"),
        CodeFormatter::Prettier => {
            const FILES: [&str; 11] = [
                ".prettierrc",
                ".prettierrc.json",
                ".prettierrc.yaml",
                ".prettierrc.yml",
                ".prettierrc.toml",
                ".prettierrc.js",
                ".prettierrc.cjs",
                ".prettierrc.mjs",
                "prettier.config.js",
                "prettier.config.cjs",
                "prettier.config.mjs",
            ];
            has(&FILES) || package().is_some_and(|package| package.get("prettier").is_some()) || depends("prettier")
        }
        // Nothing else formats these.
        CodeFormatter::Rustfmt
        | CodeFormatter::Gofmt
        | CodeFormatter::ClangFormat
        | CodeFormatter::Shfmt
        | CodeFormatter::Taplo => true,
    }
}

/// The edition of the package that a file is in, which may be that of its workspace.
fn edition(files: &dyn ProjectFiles, directory: &str) -> String {
    let manifests = ancestors(directory)
        .filter_map(|directory| files.read(&join(directory, "Cargo.toml"))?.parse::<toml::Table>().ok());
    let mut is_inherited = false;
    for manifest in manifests {
        let of_workspace = manifest.get("workspace").and_then(|workspace| workspace.get("package")?.get("edition"));
        match manifest.get("package") {
            Some(package) if !is_inherited => match package.get("edition") {
                Some(toml::Value::String(edition)) => return known_edition(edition),
                Some(_) => is_inherited = true,
                None => return known_edition(""),
            },
            _ => {}
        }
        if let Some(toml::Value::String(edition)) = of_workspace.filter(|_| is_inherited) {
            return known_edition(edition);
        }
    }
    known_edition("2024")
}

/// Cargo's own default is the first.
fn known_edition(edition: &str) -> String {
    let known = ["2015", "2018", "2021", "2024"];
    known.into_iter().find(|known| *known == edition).unwrap_or("2015").to_owned()
}

/// Directories of programs of the project, relative to the workspace.
pub(crate) fn program_directories(files: &dyn ProjectFiles, paths: &[String]) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for path in paths {
        let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory);
        for directory in ancestors(directory) {
            for own in ["node_modules/.bin", ".venv/bin", "venv/bin"].map(|name| join(directory, name)) {
                let is_new = !own.contains(':') && !found.contains(&own);
                if is_new && files.kind(&own) == Some(EntryKind::Directory) {
                    found.push(own);
                }
            }
        }
    }
    found
}

/// The script that formats the files. It exits with 127 after a line `missing: PROGRAM` where one is not installed.
pub(crate) fn script(commands: &BTreeMap<FormatCommand, Vec<String>>, program_directories: &[String]) -> String {
    let mut script = String::from("cd /workspace || exit 126\n");
    if !program_directories.is_empty() {
        let own: Vec<String> = program_directories.iter().map(|own| quoted(&format!("/workspace/{own}"))).collect();
        let _ = writeln!(script, "PATH={}:$PATH", own.join(":"));
    }
    script.push_str("export PATH NO_COLOR=1\n");
    for (command, paths) in commands {
        let words: Vec<String> = paths.iter().map(|path| quoted(path)).collect();
        let formatters: Vec<CodeFormatter> = [command.formatter].into_iter().chain(command.otherwise).collect();
        let mut word = "if";
        for attempt in formatters.iter().flat_map(|formatter| attempts(*formatter, command, &words.join(" "))) {
            let _ = writeln!(script, "{word} {}; then\n{}", attempt.condition, attempt.run);
            word = "elif";
        }
        let names: Vec<&str> = formatters.iter().map(|formatter| formatter.name()).collect();
        let _ = writeln!(script, "else echo 'missing: {}'; exit 127; fi", names.join(" or "));
    }
    script
}

/// A way to run a formatter, and what has to be there for it.
struct FormatAttempt {
    condition: String,
    run: String,
}

fn attempts(formatter: CodeFormatter, command: &FormatCommand, words: &str) -> Vec<FormatAttempt> {
    let run = run_line(formatter, &command.edition, words);
    let plain = FormatAttempt { condition: format!("command -v {} > /dev/null", formatter.name()), run };
    match formatter {
        // The scripts of an environment begin with the host's path of its interpreter.
        CodeFormatter::Black => {
            let python = quoted(&command.python);
            let condition = format!("{python} -c 'import black' 2> /dev/null");
            let run = format!("{python} -m {}", run_line(formatter, "", words));
            vec![FormatAttempt { condition, run }, plain]
        }
        _ => vec![plain],
    }
}

fn run_line(formatter: CodeFormatter, edition: &str, words: &str) -> String {
    match formatter {
        // Its settings are looked for from the current directory.
        CodeFormatter::Rustfmt => format!(
            "for file in {words}; do\n  (cd \"./$(dirname \"$file\")\" && rustfmt --edition {edition}) < \"$file\" > \
             /tmp/formatted || exit\n  cmp -s /tmp/formatted \"$file\" || cat /tmp/formatted > \"$file\" || exit\ndone"
        ),
        CodeFormatter::Ruff => format!("ruff format --no-cache --quiet -- {words} || exit"),
        CodeFormatter::Black => format!("black --quiet -- {words} || exit"),
        CodeFormatter::Prettier => format!("prettier --write --log-level warn -- {words} || exit"),
        CodeFormatter::Biome => format!("biome format --write {words} || exit"),
        CodeFormatter::Gofmt => format!("gofmt -w {words} || exit"),
        CodeFormatter::ClangFormat => format!("clang-format -i -- {words} || exit"),
        CodeFormatter::Shfmt => format!("shfmt -w -- {words} || exit"),
        CodeFormatter::Taplo => format!("taplo format {words} || exit"),
    }
}

#[cfg(test)]
mod tests {
    use super::{CodeFormatter, commands, program_directories, script};
    use crate::detect::TestFiles;

    type Files = &'static [(&'static str, &'static str)];

    #[track_caller]
    fn check_with(files: Files, paths: &[&str], setting: Option<CodeFormatter>, expected: &str) {
        let paths: Vec<String> = paths.iter().map(|path| (*path).to_owned()).collect();
        let found = match commands(&TestFiles(files), &paths, setting) {
            Ok(commands) => {
                let text = commands.iter().map(|(command, paths)| {
                    let other = command.otherwise.map_or_else(String::new, |other| format!(" or {}", other.name()));
                    let edition =
                        if command.edition.is_empty() { String::new() } else { format!(" {}", command.edition) };
                    format!("{}{other}{edition}: {}", command.formatter.name(), paths.join(" "))
                });
                text.collect::<Vec<_>>().join("; ")
            }
            Err(error) => error.to_string(),
        };
        assert_eq!(found, expected);
    }

    #[track_caller]
    fn check(files: Files, paths: &[&str], expected: &str) {
        check_with(files, paths, None, expected);
    }

    #[test]
    fn the_project_names_its_formatter() {
        check(&[("a.py", "")], &["a.py"], "ruff or black: a.py");
        check(&[("a.py", ""), ("pyproject.toml", "[tool.black]")], &["a.py"], "black: a.py");
        check(&[("s/a.py", ""), ("ruff.toml", "")], &["s/a.py"], "ruff: s/a.py");
        check(&[("a.ts", ""), ("biome.json", "")], &["a.ts"], "biome: a.ts");
        check(&[("w/a.ts", ""), ("w/.prettierrc", ""), ("biome.json", "")], &["w/a.ts"], "prettier: w/a.ts");
        check(&[("a.md", ""), ("biome.json", "")], &["a.md"], "prettier: a.md");
        check(
            &[("a.js", ""), ("package.json", r#"{"devDependencies":{"@biomejs/biome":"2"}}"#)],
            &["a.js"],
            "biome: a.js",
        );
        check(
            &[("a.go", ""), ("b.c", ""), ("c.sh", ""), ("d.toml", ""), ("e.h", "")],
            &["a.go", "b.c", "c.sh", "d.toml", "e.h", "b.c"],
            "gofmt: a.go; clang-format: b.c e.h; shfmt: c.sh; taplo: d.toml",
        );
        check_with(
            &[("a.py", ""), ("pyproject.toml", "[tool.ruff]")],
            &["a.py"],
            Some(CodeFormatter::Black),
            "black: a.py",
        );
        check_with(&[("a.go", "")], &["a.go"], Some(CodeFormatter::Black), "gofmt: a.go");
    }

    #[test]
    fn rust_has_the_edition_of_its_package() {
        check(&[("a.rs", "")], &["a.rs"], "rustfmt 2024: a.rs");
        check(
            &[("src/a.rs", ""), ("Cargo.toml", "[package]\nedition = \"2018\"")],
            &["src/a.rs"],
            "rustfmt 2018: src/a.rs",
        );
        check(&[("a.rs", ""), ("Cargo.toml", "[package]\nname = \"a\"")], &["a.rs"], "rustfmt 2015: a.rs");
        check(&[("a.rs", ""), ("Cargo.toml", "[package]\nedition = \"$(x)\"")], &["a.rs"], "rustfmt 2015: a.rs");
        const INHERITED: Files = &[
            ("b/a.rs", ""),
            ("b/Cargo.toml", "[package]\nedition.workspace = true"),
            ("Cargo.toml", "[package]\nedition = \"2015\"\n[workspace.package]\nedition = \"2021\""),
        ];
        check(INHERITED, &["b/a.rs"], "rustfmt 2021: b/a.rs");
    }

    #[test]
    fn what_cannot_be_formatted_is_said() {
        const FILES: Files = &[("a.xyz", ""), ("src/a.rs", ""), ("LICENSE", "")];
        check(FILES, &["b.rs"], "`b.rs` does not exist");
        check(FILES, &["src"], "`src` is a directory; name the files to format");
        for name in ["a.xyz", "LICENSE"] {
            let advice = "set `format` under `[project]` in the config, or run it as a command";
            check(FILES, &[name], &format!("no formatter is known for `{name}`; {advice}"));
        }
    }

    #[test]
    fn names_are_quoted_and_missing_programs_are_named() {
        const FILES: Files = &[("it's $(x).py", ""), ("a b.go", ""), (".venv/bin/ruff", ""), (".venv/pyvenv.cfg", "")];
        let paths = ["it's $(x).py".to_owned(), "a b.go".to_owned()];
        let commands = commands(&TestFiles(FILES), &paths, None).unwrap();
        let text = script(&commands, &program_directories(&TestFiles(FILES), &paths));
        let expected = "cd /workspace || exit 126\nPATH=/workspace/.venv/bin:$PATH\nexport PATH NO_COLOR=1\n\
                        if command -v ruff > /dev/null; then\nruff format --no-cache --quiet -- 'it'\\''s $(x).py' || exit\n\
                        elif /workspace/.venv/bin/python -c 'import black' 2> /dev/null; then\n\
                        /workspace/.venv/bin/python -m black --quiet -- 'it'\\''s $(x).py' || exit\n\
                        elif command -v black > /dev/null; then\nblack --quiet -- 'it'\\''s $(x).py' || exit\n\
                        else echo 'missing: ruff or black'; exit 127; fi\n\
                        if command -v gofmt > /dev/null; then\ngofmt -w 'a b.go' || exit\n\
                        else echo 'missing: gofmt'; exit 127; fi\n";
        assert_eq!(text, expected);
        for formatter in CodeFormatter::ALL {
            assert_eq!(CodeFormatter::from_name(formatter.name()), Some(formatter));
        }
    }
}
