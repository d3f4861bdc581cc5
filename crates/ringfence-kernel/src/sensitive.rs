//! Names that deserve a second look: secrets to read, settings that make other programs act.
//!
//! Names are compared as the worst file system would: letter case folded, invisible characters removed.
//! The tables are data, with the reason beside each row.
//!
//! Not here: what follows from it. The policy decides (`policy.rs`).

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::LazyLock;

use unicode_normalization::UnicodeNormalization as _;

/// Why a name deserves a second look. It can be both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Sensitivity {
    /// Reading it gives away a key or a password.
    pub secret: bool,
    /// Changing it makes another program run or obey something.
    pub protected: bool,
}

impl Sensitivity {
    pub fn is_any(self) -> bool {
        self.secret || self.protected
    }

    /// The reasons of both.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self { secret: self.secret || other.secret, protected: self.protected || other.protected }
    }
}

/// What the name of a path, or of a directory above it, says about it.
pub fn sensitivity(path: &str) -> Sensitivity {
    static RULES: LazyLock<Rules> = LazyLock::new(|| {
        Rules::new([(SECRETS, SECRET), (NO_SECRETS, NO_SECRET), (PROTECTED, GUARDED), (CI, RUN_BY_CI)])
    });
    let mut found = Sensitivity::default();
    let mut above = Cow::Borrowed("");
    let mut guarded = GUARDED | RUN_BY_CI;
    for part in path.split('/').filter(|part| !part.is_empty() && *part != ".") {
        let part = fold(part);
        let said = RULES.match_component(&above, &part);
        found.secret |= said & (SECRET | NO_SECRET) == SECRET;
        found.protected |= said & guarded != 0;
        if INSTALLED.contains(&&*part) {
            guarded = GUARDED;
        }
        above = part;
    }
    found
}

/// Which tables have a row for a name.
type Tables = u8;
const SECRET: Tables = 1;
const NO_SECRET: Tables = 2;
const GUARDED: Tables = 4;
const RUN_BY_CI: Tables = 8;

/// A row is a name, or a directory and a name in it, anywhere in the path; it matches a file or a whole directory.
/// One `*` in a name stands for anything.
const SECRETS: &[&str] = &[
    // Environment files of nearly every framework.
    ".env",
    ".env.*",
    ".env-*",
    ".env_*",
    ".env~",
    "*.env",
    ".envrc",
    // Private keys and their stores.
    "*.pem",
    "*.key",
    "*.p12",
    "*.pfx",
    "*.jks",
    "*.keystore",
    "*.kdbx",
    "id_rsa*",
    "id_dsa*",
    "id_ecdsa*",
    "id_ed25519*",
    ".ssh",
    ".gnupg",
    ".age",
    "*.ppk",
    // Passwords and tokens that programs keep.
    ".netrc",
    "_netrc",
    ".pgpass",
    ".my.cnf",
    ".npmrc",
    ".pypirc",
    ".git-credentials",
    ".htpasswd",
    ".aws/credentials",
    ".docker/config.json",
    ".kube/config",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".config/gcloud",
    ".azure",
    ".terraformrc",
    "*.tfstate",
    "*.tfvars",
    ".config/gh",
    ".m2/settings.xml",
    ".vault-token",
    "credentials.json",
    "service-account*.json",
    "secrets.yaml",
    "secrets.yml",
    "secrets.toml",
    "secrets.json",
];

/// Rows of `SECRETS` that these names are no example of: they are made to be read.
const NO_SECRETS: &[&str] = &[
    ".env.example",
    ".env.sample",
    ".env.template",
    ".env.dist",
    ".env-example",
    ".env-sample",
    "example.env",
    "sample.env",
    // The public half of a key.
    "id_rsa*.pub",
    "id_dsa*.pub",
    "id_ecdsa*.pub",
    "id_ed25519*.pub",
];

const PROTECTED: &[&str] = &[
    // Keys, tokens and hosts that other programs use: a new one is as bad as a changed one.
    ".ssh",
    ".npmrc",
    ".yarnrc",
    ".yarnrc.yml",
    ".pypirc",
    ".docker/config.json",
    ".kube/config",
    ".aws/credentials",
    ".aws/config",
    ".netrc",
    // Other version control, and git's own settings.
    ".hg",
    ".svn",
    ".gitconfig",
    // Git runs hooks, and its config can name programs to run.
    ".git",
    ".gitmodules",
    // It says which files git gives to the programs that its config names.
    ".gitattributes",
    ".husky",
    ".pre-commit-config.yaml",
    ".lefthook.yml",
    "lefthook.yaml",
    "lefthook.yml",
    // Editors run tasks from their settings.
    ".vscode",
    ".idea",
    ".zed",
    ".nvim.lua",
    ".exrc",
    ".gdbinit",
    ".lldbinit",
    ".vimrc",
    ".dir-locals.el",
    ".devcontainer",
    // Agents take commands, servers and permissions from theirs.
    ".claude",
    ".codex",
    ".cursor",
    ".cursorrules",
    "claude.md",
    "agents.md",
    "gemini.md",
    ".gemini",
    ".goose",
    ".opencode",
    "opencode.json",
    ".crush.json",
    "crush.json",
    ".aider*",
    ".continue",
    ".windsurf",
    ".mcp.json",
    "mcp.json",
    // Shells and tools that run what these say when somebody enters the directory.
    ".envrc",
    ".bashrc",
    ".bash_profile",
    ".profile",
    ".zshrc",
    ".zshenv",
    ".zprofile",
    ".zlogin",
    ".bash_login",
    ".bash_logout",
    ".config/fish",
    "mise.toml",
    ".mise.toml",
    ".tool-versions",
    ".pnpmfile.cjs",
    ".cargo/config.toml",
    ".cargo/config",
    // Python runs these whenever it starts. Not here: `*.pth`, which model weights and every virtual environment have, and
    // files that a project has anyway and runs when it is told to, such as `conftest.py`, `Makefile` and `package.json`.
    "sitecustomize.py",
    "usercustomize.py",
    // Ours.
    ".ringfence",
    "ringfence.toml",
];

/// CI runs with more rights than the agent has. It reads these at the root of a repository, and which directory is one no
/// name tells; only that none is among installed packages, which often bring theirs along.
const CI: &[&str] = &[
    ".github/workflows",
    ".github/actions",
    ".gitlab-ci.yml",
    ".gitlab-ci.yaml",
    "bitbucket-pipelines.yml",
    ".circleci",
    "jenkinsfile",
    ".travis.yml",
    "azure-pipelines.yml",
    ".buildkite",
    ".drone.yml",
    ".woodpecker",
    ".woodpecker.yml",
    ".forgejo",
    ".gitea",
];

/// Directories that a package manager fills.
const INSTALLED: [&str; 2] = ["node_modules", "site-packages"];

/// The tables, made ready to be asked often: one look tells what all of them say to a name.
struct Rules {
    by_name: HashMap<&'static str, Row>,
    /// What stands before and after the `*`.
    open: Vec<(&'static str, &'static str, Tables)>,
}

#[derive(Default)]
struct Row {
    anywhere: Tables,
    /// In a directory of this name.
    nested: Vec<(&'static str, Tables)>,
}

impl Rules {
    fn new(tables: [(&[&'static str], Tables); 4]) -> Self {
        let mut rules = Self { by_name: HashMap::new(), open: Vec::new() };
        for (row, table) in tables.into_iter().flat_map(|(rows, table)| rows.iter().map(move |row| (*row, table))) {
            if let Some((above, name)) = row.split_once('/') {
                rules.by_name.entry(name).or_default().nested.push((above, table));
            } else if let Some((start, end)) = row.split_once('*') {
                rules.open.push((start, end, table));
            } else {
                rules.by_name.entry(row).or_default().anywhere |= table;
            }
        }
        rules
    }

    fn match_component(&self, above: &str, part: &str) -> Tables {
        let fits = |(start, end, _): &&(&str, &str, Tables)| {
            part.len() >= start.len() + end.len() && part.starts_with(start) && part.ends_with(end)
        };
        let open = self.open.iter().filter(fits).fold(0, |said, (_, _, table)| said | table);
        let Some(Row { anywhere, nested }) = self.by_name.get(part) else { return open };
        let nested = nested.iter().filter(|(directory, _)| *directory == above);
        nested.fold(open | anywhere, |said, (_, table)| said | table)
    }
}

/// A name as the worst file system compares it: what Windows drops at its end is dropped too.
pub(crate) fn fold(part: &str) -> Cow<'_, str> {
    // Most names are what they would become.
    if part.bytes().all(|byte| byte.is_ascii() && !byte.is_ascii_uppercase()) {
        return Cow::Borrowed(part.trim_end_matches(['.', ' ']));
    }
    let mut folded = fold_case(part);
    folded.truncate(folded.trim_end_matches(['.', ' ']).len());
    Cow::Owned(folded)
}

/// Folds case the long way round (`ß` and `ss`, the Kelvin sign and `k` become equal), takes accents off their letters,
/// where some file systems put them together and others do not, and drops what nobody sees.
pub(crate) fn fold_case(text: &str) -> String {
    if text.is_ascii() {
        return text.to_ascii_lowercase();
    }
    let seen: String = text.nfd().filter(|c| !is_ignorable(*c)).collect();
    seen.to_uppercase().to_lowercase()
}

/// Unicode's `Default_Ignorable_Code_Point`.
pub(crate) fn is_ignorable(c: char) -> bool {
    matches!(c,
        '\u{00AD}' | '\u{034F}' | '\u{061C}' | '\u{115F}'..='\u{1160}' | '\u{17B4}'..='\u{17B5}'
        | '\u{180B}'..='\u{180F}' | '\u{200B}'..='\u{200F}' | '\u{202A}'..='\u{202E}' | '\u{2060}'..='\u{206F}'
        | '\u{3164}' | '\u{FE00}'..='\u{FE0F}' | '\u{FEFF}' | '\u{FFA0}' | '\u{FFF0}'..='\u{FFF8}'
        | '\u{1BCA0}'..='\u{1BCA3}' | '\u{1D173}'..='\u{1D17A}' | '\u{E0000}'..='\u{E0FFF}')
}

#[cfg(test)]
mod tests {
    use super::{Sensitivity, sensitivity};

    const NONE: Sensitivity = Sensitivity { secret: false, protected: false };
    const SECRET: Sensitivity = Sensitivity { secret: true, protected: false };
    const PROTECTED: Sensitivity = Sensitivity { secret: false, protected: true };
    const BOTH: Sensitivity = Sensitivity { secret: true, protected: true };

    #[track_caller]
    fn check(path: &str, expected: Sensitivity) {
        assert_eq!(sensitivity(path), expected, "{path:?}");
    }

    #[test]
    fn secrets_are_known_by_name() {
        for path in [".env", "a/.env.local", "deploy/prod.env", "keys/server.pem", "secrets.yaml", "a/id_rsa"] {
            check(path, SECRET);
        }
        for path in
            [".env~", ".env-prod", ".ENV_old", "id_rsa.bak", "id_ed25519_work", "prod.tfvars", ".config/gh/hosts.yml"]
        {
            check(path, SECRET);
        }
        check(".envrc", BOTH);
        for path in [".env.example", "environment.md", "src/key.rs", "aws/credentials", "monkey", "id_ed25519_work.pub"]
        {
            check(path, NONE);
        }
    }

    #[test]
    fn settings_that_make_others_act_are_protected() {
        for path in [
            ".git/hooks/pre-commit",
            "sub/.git/config",
            ".github/workflows/ci.yml",
            ".vscode/tasks.json",
            "sub/.gitattributes",
            "lib/sitecustomize.py",
            "ringfence.toml",
        ] {
            check(path, PROTECTED);
        }
        for path in [
            ".github/ISSUE_TEMPLATE.md",
            "git/hooks",
            ".gitignore",
            "README.md",
            "Makefile",
            "conftest.py",
            "model.pth",
        ] {
            check(path, NONE);
        }
    }

    #[test]
    fn what_ci_runs_is_protected_but_among_installed_packages() {
        for path in
            [".travis.yml", "sub/.gitlab-ci.yml", "a/b/.github/workflows/ci.yml", "vendor/x/.circleci/config.yml"]
        {
            check(path, PROTECTED);
        }
        for path in [
            "node_modules/left-pad/.travis.yml",
            "web/Node_Modules/@scope/x/.github/workflows/ci.yml",
            ".venv/lib/python3.12/site-packages/x/azure-pipelines.yml",
        ] {
            check(path, NONE);
        }
        // Everything else that deserves a look deserves it there too.
        for path in
            ["node_modules/x/.git/hooks/pre-commit", "node_modules/x/.vscode/tasks.json", "node_modules/x/.husky/a"]
        {
            check(path, PROTECTED);
        }
        check("node_modules/x/.env", SECRET);
    }

    #[test]
    fn spelling_does_not_hide_a_name() {
        for path in
            [".GIT/config", ".g\u{200c}it/config", "\u{200b}.git/config", ".git./hooks", "./.git//hooks", ".vſcode/x"]
        {
            check(path, PROTECTED);
        }
        for path in [".ENV", ".e\u{feff}nv", "\u{212a}eys/ID_RSA"] {
            check(path, SECRET);
        }
    }

    #[test]
    fn one_reason_does_not_hide_the_other() {
        for path in
            [".ssh/config", ".npmrc", "x.env/.git/hooks/pre-commit", ".git/x.key", ".vscode/a.env", ".aws/credentials"]
        {
            check(path, BOTH);
        }
    }
}
