//! Sensitive names: secrets to read, settings that make other programs act.
//!
//! Names are compared as the worst file system would: letter case folded, invisible characters removed. A copy that is
//! kept beside a secret (`server.key.bak`) is a secret too.
//!
//! Not here: the tables (`secrets.rs`, `settings.rs`), and what follows from them. The policy decides (`preset.rs`).

mod directory_entries;
mod secrets;
mod settings;

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::LazyLock;

use unicode_normalization::UnicodeNormalization as _;

pub use directory_entries::{DirectoryEntries, entry_sensitivity};
use secrets::{PUBLIC, SECRET_FILES, SECRETS, strip_backup_suffix};
use settings::{AGENTS, INERT, PACKAGES, PROGRAMS, ProgramSettingsFiles, SettingsLookupScope};

/// Sensitivity of a name. It can be both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Sensitivity {
    /// Reading it gives away a key or a password.
    pub secret: bool,
    /// Changing it makes another program run or obey something.
    pub protected: bool,
}

impl Sensitivity {
    /// Whether it is a secret or a protected setting.
    pub fn is_any(self) -> bool {
        self.secret || self.protected
    }

    /// The reasons of both.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self { secret: self.secret || other.secret, protected: self.protected || other.protected }
    }
}

/// Sensitivity of a path by its name, or that of a directory above it.
///
/// ```
/// use ringfence_kernel::sensitivity;
///
/// assert!(sensitivity("config/.env").secret);
/// assert!(sensitivity(".git/hooks/pre-commit").protected);
/// assert_eq!(sensitivity("src/main.rs"), Default::default());
/// ```
pub fn sensitivity(path: &str) -> Sensitivity {
    lookup_names(path, path).sensitivity
}

/// Whether a component of a path is a name.
fn is_name(part: &str) -> bool {
    !part.is_empty() && part != "."
}

/// The program that acts on a path, as people call it.
pub fn acting_program(path: &str) -> Option<&'static str> {
    lookup_names(path, path).program
}

/// The settings below a directory of this name, wherever a link of this name leads: the names in there are not looked
/// up under this one. Returns the rest of the row.
pub fn settings_through_link(path: &str) -> Option<&'static str> {
    let above = path.trim_end_matches('/').rsplit_once('/').map_or("", |(above, _)| above);
    let names: Vec<Cow<'_, str>> = path.split('/').filter(|part| !part.is_empty()).map(fold).collect();
    let is_here =
        |program: &&ProgramSettingsFiles| program.scope == SettingsLookupScope::Anywhere || !is_below_packages(above);
    let rest = |row: &'static str| {
        let is_end = |start: &str| {
            let mut last = names.iter().rev();
            start.rsplit('/').all(|part| last.next().is_some_and(|name| name == part))
        };
        row.match_indices('/').find(|(slash, _)| is_end(&row[..*slash])).map(|(slash, _)| &row[slash + 1..])
    };
    acting_programs().filter(is_here).flat_map(|program| program.names).find_map(|row| rest(row))
}

/// The names that a file could have had if it is a backup. `name` is folded.
pub fn original_names(name: &str) -> impl Iterator<Item = &str> {
    const MAX_BACKUP_SUFFIXES: usize = 4;
    let originals = std::iter::successors(strip_backup_suffix(name), |name| strip_backup_suffix(name));
    originals.take(MAX_BACKUP_SUFFIXES).flat_map(|original| {
        // The swap file of `id_rsa` is `.id_rsa.swp`.
        let undotted = original.strip_prefix('.').filter(|undotted| !undotted.is_empty());
        std::iter::once(original).chain(undotted)
    })
}

fn acting_programs() -> impl Iterator<Item = &'static ProgramSettingsFiles> {
    PROGRAMS.iter().chain(AGENTS)
}

/// The most components that a row has.
const MAX_ROW_COMPONENTS: usize = 3;

/// The rows for a path.
#[derive(Default)]
struct SensitiveNameFindings {
    sensitivity: Sensitivity,
    program: Option<&'static str>,
}

/// Looks up the names of `last`, which are the last ones of `path`.
fn lookup_names(path: &str, last: &str) -> SensitiveNameFindings {
    let mut found = SensitiveNameFindings::default();
    let mut above = [Cow::Borrowed(""), Cow::Borrowed("")];
    let mut start = path.len() - last.len();
    for part in last.split('/') {
        let before = &path[..start];
        start = (start + part.len() + 1).min(path.len());
        if !is_name(part) {
            continue;
        }
        let part = fold(part);
        let component = lookup_component(before, [&above[0], &above[1], &part], start >= path.len());
        found.sensitivity = found.sensitivity.union(component.sensitivity);
        found.program = found.program.or(component.program);
        above = [std::mem::take(&mut above[1]), part];
    }
    found
}

/// Looks up one folded name below two directories, which are the last ones of `before`.
fn lookup_component(before: &str, names: [&str; MAX_ROW_COMPONENTS], is_last: bool) -> SensitiveNameFindings {
    static TABLES: LazyLock<SensitiveNameTables> = LazyLock::new(SensitiveNameTables::new);
    let matched = TABLES.lookup(names);
    let is_secret = matched.kinds & SECRET != 0 || (matched.kinds & SECRET_FILE != 0 && is_last);
    let at_root = matched.kinds & PROJECT_ROOT != 0
        || (matched.kinds & PROJECT_ROOT_UNLESS_INERT != 0 && matched.kinds & IS_INERT == 0);
    let acts = matched.kinds & ANYWHERE != 0 || (at_root && !is_below_packages(before));
    let secret = is_secret && matched.kinds & IS_PUBLIC == 0;
    SensitiveNameFindings {
        sensitivity: Sensitivity { secret, protected: acts },
        program: matched.program.filter(|_| acts),
    }
}

/// Whether a directory lies below one that has only packages.
fn is_below_packages(directory: &str) -> bool {
    directory.split('/').any(|part| PACKAGES.contains(&&*fold(part)))
}

/// Tables that have a row for a name, as flags.
type SensitiveNameKinds = u8;
const SECRET: SensitiveNameKinds = 1;
const IS_PUBLIC: SensitiveNameKinds = 2;
const ANYWHERE: SensitiveNameKinds = 4;
const PROJECT_ROOT: SensitiveNameKinds = 8;
const SECRET_FILE: SensitiveNameKinds = 16;
const PROJECT_ROOT_UNLESS_INERT: SensitiveNameKinds = 32;
const IS_INERT: SensitiveNameKinds = 64;

/// The verdict of one or more rows.
#[derive(Clone, Copy, Default)]
struct SensitiveNameMatch {
    kinds: SensitiveNameKinds,
    program: Option<&'static str>,
}

impl SensitiveNameMatch {
    fn add(&mut self, other: Self) {
        self.kinds |= other.kinds;
        self.program = self.program.or(other.program);
    }
}

/// The tables, made ready to be asked often: one look tells what all of them say to a name.
struct SensitiveNameTables {
    by_name: HashMap<&'static str, SensitiveNameRows>,
    /// For each first letter, the lengths of the names above that begin with it, as a bit set.
    lengths: [u64; 256],
    /// `*.extension`.
    by_extension: HashMap<&'static str, SensitiveNameMatch>,
    /// Every other row with a `*`, by what stands before, between and after: those that begin with a letter by that, the
    /// others by the letter that they end in. A deep tree asks about very many names.
    wildcard_by_first: [Vec<SensitiveNameWildcard>; 256],
    wildcard_by_last: [Vec<SensitiveNameWildcard>; 256],
    /// Rows with a `*` in a directory of this name.
    wildcard_by_directory: HashMap<&'static str, Vec<SensitiveNameWildcard>>,
}

type SensitiveNameWildcard = (Vec<&'static str>, SensitiveNameMatch);

#[derive(Default)]
struct SensitiveNameRows {
    anywhere: SensitiveNameMatch,
    /// Below directories of these names, the nearest last.
    nested: Vec<(Vec<&'static str>, SensitiveNameMatch)>,
}

impl SensitiveNameTables {
    fn new() -> Self {
        let mut tables = Self {
            by_name: HashMap::new(),
            lengths: [0; 256],
            by_extension: HashMap::new(),
            wildcard_by_first: [const { Vec::new() }; 256],
            wildcard_by_last: [const { Vec::new() }; 256],
            wildcard_by_directory: HashMap::new(),
        };
        let rows = [(SECRETS, SECRET), (SECRET_FILES, SECRET_FILE), (PUBLIC, IS_PUBLIC | IS_INERT), (INERT, IS_INERT)];
        for (rows, kinds) in rows {
            rows.iter().for_each(|row| tables.add(row, SensitiveNameMatch { kinds, program: None }));
        }
        for program in acting_programs() {
            let kinds = match program.scope {
                SettingsLookupScope::Anywhere => ANYWHERE,
                SettingsLookupScope::ProjectRoot => PROJECT_ROOT,
                SettingsLookupScope::ProjectRootUnlessInert => PROJECT_ROOT_UNLESS_INERT,
            };
            program
                .names
                .iter()
                .for_each(|row| tables.add(row, SensitiveNameMatch { kinds, program: Some(program.name) }));
        }
        tables
    }

    fn add(&mut self, row: &'static str, matched: SensitiveNameMatch) {
        let name = row.rsplit_once('/').map_or(row, |(_, name)| name);
        self.lengths[usize::from(first_letter(name))] |= length_bit(name);
        let plain_extension = |row: &'static str| row.strip_prefix("*.").filter(|rest| !rest.contains(['.', '*']));
        if let Some((directory, name)) = row.rsplit_once('/').filter(|(_, name)| name.contains('*')) {
            let row = (name.split('*').collect(), matched);
            self.wildcard_by_directory.entry(directory).or_default().push(row);
        } else if let Some((above, name)) = row.rsplit_once('/') {
            self.by_name.entry(name).or_default().nested.push((above.split('/').collect(), matched));
        } else if let Some(extension) = plain_extension(row) {
            self.by_extension.entry(extension).or_default().add(matched);
        } else if row.contains('*') {
            // One that is open at both ends is among those that are asked about every name.
            let (start, end) = (first_letter(row), row.bytes().last().unwrap_or_default());
            let rows = if start == WILDCARD {
                &mut self.wildcard_by_last[usize::from(end)]
            } else {
                &mut self.wildcard_by_first[usize::from(start)]
            };
            rows.push((row.split('*').collect(), matched));
        } else {
            self.by_name.entry(row).or_default().anywhere.add(matched);
        }
    }

    /// Looks up a name below two directories. A backup is looked up by its original name, too.
    fn lookup(&self, [far, near, name]: [&str; MAX_ROW_COMPONENTS]) -> SensitiveNameMatch {
        let mut matched = self.lookup_name([far, near, name]);
        for original in original_names(name) {
            matched.kinds |= self.lookup_name([far, near, original]).kinds & (SECRET | SECRET_FILE | IS_PUBLIC);
        }
        matched
    }

    fn lookup_name(&self, [far, near, name]: [&str; MAX_ROW_COMPONENTS]) -> SensitiveNameMatch {
        let mut matched = SensitiveNameMatch::default();
        let may_be_known = self.lengths[usize::from(first_letter(name))] & length_bit(name) != 0;
        if let Some(SensitiveNameRows { anywhere, nested }) = may_be_known.then(|| self.by_name.get(name)).flatten() {
            matched.add(*anywhere);
            for (above, row) in nested {
                let fits = match above.as_slice() {
                    [directory] => *directory == near,
                    [outer, directory] => *directory == near && *outer == far,
                    _ => false,
                };
                if fits {
                    matched.add(*row);
                }
            }
        }
        if let Some(row) = name.rsplit_once('.').and_then(|(_, extension)| self.by_extension.get(extension)) {
            matched.add(*row);
        }
        // Every such directory begins with a dot.
        let inside = near.starts_with('.').then(|| self.wildcard_by_directory.get(near)).flatten();
        let end = name.bytes().last().unwrap_or_default();
        let start = &self.wildcard_by_first[usize::from(first_letter(name))];
        let open = start
            .iter()
            .chain(&self.wildcard_by_last[usize::from(end)])
            .chain(&self.wildcard_by_last[usize::from(WILDCARD)])
            .chain(inside.into_iter().flatten());
        open.filter(|(pieces, _)| matches_pieces(pieces, name)).for_each(|(_, row)| matched.add(*row));
        matched
    }
}

/// Wildcard of a row.
const WILDCARD: u8 = b'*';

fn first_letter(name: &str) -> u8 {
    name.bytes().next().unwrap_or_default()
}

/// The bit of a length. Names of 63 bytes and more share one.
fn length_bit(name: &str) -> u64 {
    1 << name.len().min(63)
}

/// Whether a name is these pieces with anything between them.
fn matches_pieces(pieces: &[&str], name: &str) -> bool {
    let [first, middle @ .., last] = pieces else { return false };
    let Some(rest) = name.strip_prefix(first) else { return false };
    let Some(mut rest) = rest.strip_suffix(last) else { return false };
    // Names are short and every name of a workspace comes here: to prepare a search costs more than to compare.
    let find = |rest: &str, piece: &str| rest.as_bytes().windows(piece.len()).position(|part| part == piece.as_bytes());
    middle.iter().filter(|piece| !piece.is_empty()).all(|piece| match find(rest, piece) {
        Some(at) => {
            rest = &rest[at + piece.len()..];
            true
        }
        None => false,
    })
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

/// Folds case fully (`ß` and `ss`, the Kelvin sign and `k` become equal), strips accents, which file systems normalise
/// differently, and drops invisible characters.
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
    use super::secrets::{SECRET_FILES, SECRETS};
    use super::settings::INERT;
    use super::{Sensitivity, acting_program, acting_programs, entry_sensitivity, sensitivity, settings_through_link};

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
        for path in ["deploy/prod.env", "keys/server.pem", "secrets.yaml", "a/id_rsa"] {
            check(path, SECRET);
        }
        // Creating one changes the environment of programs that load it.
        for path in [".env", "a/.env.local"] {
            check(path, BOTH);
        }
        for path in [".env~", ".env-prod", ".ENV_old", "id_rsa.bak", "id_ed25519_work", "prod.tfvars", "etc/shadow"] {
            check(path, SECRET);
        }
        for path in [
            "terraform.tfstate",
            "terraform.tfstate.backup",
            "terraform.tfstate.d/dev/terraform.tfstate.1700000000.backup",
            "prod.auto.tfvars.json",
            ".git-credentials",
            "home/.config/git/credentials",
            "kubeconfig",
            "kubeconfig.yaml",
            "client_secret_12.apps.json",
            "my-app-firebase-adminsdk-x1.json",
            "ops.ovpn",
            "wallet.dat",
            "deploy_rsa",
            ".bash_history",
            ".local/share/keyrings/login",
            "a/passwords.csv",
        ] {
            assert!(sensitivity(path).secret, "{path}");
        }
        check(".envrc", BOTH);
        for path in [".env.example", "environment.md", "src/key.rs", "aws/credentials", "monkey", "id_ed25519_work.pub"]
        {
            check(path, NONE);
        }
        for path in [
            ".env.local.example",
            "lib/python3.12/site-packages/certifi/cacert.pem",
            "secrets.rs",
            "credentials.py",
            "tokens.json",
            "history.md",
            "shadow",
            "pkg/kubeconfig/kubeconfig.go",
            "crypto_rsa/mod.rs",
        ] {
            check(path, NONE);
        }
    }

    #[test]
    fn a_backup_of_a_secret_is_one() {
        let secrets =
            ["server.pem", "release.jks", "credentials.json", ".npmrc", "prod.env", ".netrc", "id_rsa", "a.key"];
        let marks = [
            "~",
            ".bak",
            ".bak2",
            ".backup",
            ".old",
            ".orig",
            ".save",
            ".swp",
            ".swo",
            ".copy",
            ".tmp",
            ".1",
            ".2024-06-01",
            ".20240601",
            " (copy)",
            " copy",
            " (1)",
            "_bak",
            "-old",
            ".dpkg-old",
            ".rpmsave",
            ".gz",
            ".zip",
            ".b64",
            ".old~",
            ".bak.1",
        ];
        for (secret, mark) in secrets.iter().flat_map(|secret| marks.map(|mark| (*secret, mark))) {
            let path = format!("keys/{secret}{mark}");
            assert!(sensitivity(&path).secret, "{path}");
        }
        for path in [".id_rsa.swp", "#server.pem#", ".#server.pem", "TERRAFORM.TFSTATE.BAK", "Server.Key.OLD"] {
            assert!(sensitivity(path).secret, "{path}");
        }
        for path in
            [".env.example~", "id_rsa.pub.bak", "notes.old", "a.rs.orig", ".bashrc.bak", "~", ".bak", "x.1", "()"]
        {
            assert!(!sensitivity(path).secret, "{path}");
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
            ".github/ISSUE_TEMPLATE/bug.yml",
            ".github/PULL_REQUEST_TEMPLATE/a.md",
            ".github/FUNDING.yml",
            ".github/images/logo.png",
            ".github",
            ".env.example",
            "Cargo.toml",
            "amp/mod.rs",
            "docs/crush/a.md",
            "git/hooks",
            ".gitignore",
            "README.md",
            "Makefile",
            "conftest.py",
            "model.pth",
            "package.json",
            "src/agents/mod.rs",
            "docs/hooks/a.md",
            ".editorconfig",
        ] {
            check(path, NONE);
        }
    }

    #[test]
    fn a_link_brings_what_a_program_acts_on_below_its_name() {
        for (path, rest) in [
            (".cargo", Some("config")),
            ("sub/.CARGO", Some("config")),
            (".github", Some("*")),
            ("vendor/x/.github", None),
            ("vendor/x/.cargo", Some("config")),
            ("src", None),
            ("cargo", None),
            (".cargo/registry", None),
        ] {
            assert_eq!(settings_through_link(path), rest, "{path}");
            assert!(rest.is_none_or(|rest| sensitivity(&format!("{path}/{rest}")).protected), "{path}");
        }
    }

    #[test]
    fn settings_of_agents_editors_and_tools_are_protected() {
        for path in [
            "opencode.jsonc",
            ".opencode/agent/x.md",
            ".github/hooks/x.json",
            ".github/agents/x.agent.md",
            ".github/chatmodes/x.md",
            ".github/prompts/x.md",
            ".github/instructions/x.md",
            ".github/copilot-instructions.md",
            "project.code-workspace",
            ".devcontainer.json",
            ".githooks/pre-commit",
            ".qwen/settings.json",
            ".amp/settings.json",
            ".kiro/hooks/x",
            ".agents/skills/x/SKILL.md",
            "CLAUDE.local.md",
            "AGENTS.override.md",
            ".windsurfrules",
            ".clinerules",
            ".roo/mcp.json",
            ".roomodes",
            ".trae/rules/x.md",
            ".augment/rules/x.md",
            ".junie/guidelines.md",
            ".factory/settings.json",
            ".mvn/jvm.config",
            ".mvn/wrapper/maven-wrapper.properties",
            "gradle/wrapper/gradle-wrapper.properties",
            "gradlew",
            "mvnw",
            "pip.conf",
            "rust-toolchain",
            "rust-toolchain.toml",
            "sub/mise.local.toml",
            "lefthook-local.yml",
            ".cargo/config.toml",
            "home/Library/LaunchAgents/x.plist",
            "docker-compose.override.yml",
            ".huskyrc",
            ".huskyrc.json",
            "husky.config.js",
            ".config/husky/init.sh",
            ".bsp/sbt.json",
            "hie.yaml",
            ".config/tmux/tmux.conf",
            ".config/jj/config.toml",
            ".crushrc",
            "crushrc",
            "CRUSH.local.md",
            ".github/extensions/x/extension.mjs",
            ".github/lsp.json",
            ".github/whatever-comes-next.yml",
            ".github/CODEOWNERS",
            "lsp.json",
            "tui.json",
            "tui.jsonc",
            ".opencode.json",
            "prek.toml",
            ".lintstagedrc.mjs",
            "grumphp.yml",
            ".trunk/trunk.yaml",
            "pnpm-workspace.yaml",
            ".pnpmfile.cjs",
            "poetry.toml",
            "gptme.toml",
            ".continuerules",
            ".lite_project.lua",
            "rust-analyzer.toml",
            ".merlin",
            ".RData",
            ".Rprofile",
            ".config/Cursor/User/settings.json",
            ".config/VSCodium/User/settings.json",
            ".config/Windsurf/User/settings.json",
            "vendor/bin/phpunit",
            ".pixi/envs/default/bin/python",
            ".env",
            "web/.env.production.local",
        ] {
            assert!(sensitivity(path).protected, "{path}");
            assert!(acting_program(path).is_some(), "{path}");
        }
        assert_eq!(acting_program("sub/.vscode/tasks.json"), Some("VS Code"));
        assert_eq!(acting_program("src/main.rs"), None);
    }

    #[test]
    fn every_row_of_the_tables_matches_its_own_name() {
        for program in acting_programs() {
            for row in program.names {
                let path = format!("sub/{}", row.replace('*', "x"));
                assert!(sensitivity(&path).protected, "{path}");
                assert!(row.split('/').count() <= super::MAX_ROW_COMPONENTS, "{row}");
                assert_eq!(*super::fold(row), **row, "a row is compared with a folded name");
                let directory = row.rsplit_once('/').filter(|(_, name)| name.contains('*')).map(|(above, _)| above);
                assert!(directory.is_none_or(|one| one.starts_with('.') && !one.contains('/')), "{row}");
            }
        }
        for row in INERT {
            check(&format!("sub/{}", row.replace('*', "x")), NONE);
        }
        for row in SECRETS.iter().chain(SECRET_FILES) {
            let path = row.replace('*', "x");
            assert!(sensitivity(&path).secret && row.split('/').count() <= super::MAX_ROW_COMPONENTS, "{path}");
            assert_eq!(*super::fold(row), **row, "a row is compared with a folded name");
        }
    }

    #[test]
    fn project_root_settings_are_inert_among_packages() {
        for path in [".travis.yml", "sub/.gitlab-ci.yml", "a/b/.github/workflows/ci.yml", "x/.circleci/config.yml"] {
            check(path, PROTECTED);
        }
        for path in [
            "node_modules/left-pad/.travis.yml",
            "node_modules/left-pad/.gitattributes",
            "web/Node_Modules/@scope/x/.github/workflows/ci.yml",
            ".venv/lib/python3.12/site-packages/x/azure-pipelines.yml",
            "vendor/github.com/x/y/.github/workflows/ci.yml",
            "vendor/x/rust-toolchain.toml",
            "third_party/x/.gitattributes",
            "node_modules/react-native/android/gradlew",
        ] {
            check(path, NONE);
            assert_eq!(entry_sensitivity(path), NONE, "{path}");
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
    fn an_entry_of_a_walk_is_told_by_its_last_names() {
        let deep = "a/".repeat(100);
        for (path, expected) in [
            (".github/workflows/ci.yml", PROTECTED),
            ("x/.local/share/keyrings", SECRET),
            (".env", BOTH),
            ("src/main.rs", NONE),
        ] {
            assert_eq!(entry_sensitivity(path), expected, "{path}");
            assert_eq!(entry_sensitivity(&format!("{deep}{path}")), expected, "{path}");
        }
    }

    #[test]
    fn spelling_does_not_hide_a_name() {
        for path in
            [".GIT/config", ".g\u{200c}it/config", "\u{200b}.git/config", ".git./hooks", "./.git//hooks", ".vſcode/x"]
        {
            check(path, PROTECTED);
        }
        for path in [".ENV", ".e\u{feff}nv"] {
            check(path, BOTH);
        }
        check("\u{212a}eys/ID_RSA", SECRET);
    }

    #[test]
    fn one_reason_does_not_hide_the_other() {
        for path in [
            ".ssh/config",
            ".npmrc",
            "x.env/.git/hooks/pre-commit",
            ".git/x.key",
            ".vscode/a.env",
            ".config/gh/hosts.yml",
        ] {
            check(path, BOTH);
        }
    }
}
