//! Environment of a wrapped program: variables, files of its home directory, and read-only files in `/etc`.
//!
//! What is not named here or in the profile does not enter: variables of the person may be keys.
//!
//! Not here: keys (`credentials.rs`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ringfence_fs::has_credential;
use ringfence_git::GitIdentity;
use ringfence_kernel::HomeFile;
use ringfence_sandbox::{PlacedFile, WrappedUser};
use rustix::process::{getegid, geteuid};

use crate::cli::wrapped_run::credentials::RunCredentials;
use crate::cli::wrapped_run::profile::AgentProfile;
use crate::config::{Environment, MAX_FILE_BYTES};

/// Variables of the person that every wrapped program gets.
const PASSED_VARIABLES: [&str; 10] = [
    "TERM",
    "COLORTERM",
    "TERM_PROGRAM",
    "TERM_PROGRAM_VERSION",
    "LANG",
    "LANGUAGE",
    "TZ",
    "NO_COLOR",
    "FORCE_COLOR",
    "CI",
];

/// Limits of what is copied into a home directory.
const MAX_COPIED_FILES: usize = 2_000;
const MAX_COPIED_BYTES: u64 = 64 << 20;
const MAX_COPY_DEPTH: usize = 16;

/// The surroundings of a wrapped program, with notes for the person.
#[derive(Debug, Default)]
pub(crate) struct RunEnvironment {
    pub(crate) variables: BTreeMap<String, String>,
    pub(crate) home_files: Vec<HomeFile>,
    pub(crate) files: Vec<PlacedFile>,
    pub(crate) notes: Vec<String>,
}

impl RunEnvironment {
    pub(crate) fn new(
        profile: &AgentProfile,
        credentials: &RunCredentials,
        environment: &Environment,
        git_config: String,
        workspace: &Path,
    ) -> Self {
        let mut run = Self::default();
        run.set_variables(profile, credentials, environment);
        run.copy_home(profile, environment);
        for (path, text) in &profile.home.files {
            if let Some(text) = expand(text, credentials, workspace) {
                run.home_files.push(HomeFile { path: path.into(), contents: text.into_bytes(), is_renewed: false });
            }
        }
        if !git_config.is_empty() {
            let contents = git_config.into_bytes();
            run.home_files.push(HomeFile { path: ".gitconfig".into(), contents, is_renewed: false });
        }
        run.files = profile.files.iter().map(|(path, text)| placed(path, text.as_bytes())).collect();
        if let Ok(zone) = std::fs::read("/etc/localtime") {
            run.files.push(placed("/etc/localtime", &zone));
        }
        run
    }

    fn set_variables(&mut self, profile: &AgentProfile, credentials: &RunCredentials, environment: &Environment) {
        let is_locale = |name: &str| name.starts_with("LC_");
        for (name, value) in &environment.variables.0 {
            let is_passed = PASSED_VARIABLES.contains(&name.as_str())
                || is_locale(name)
                || profile.environment.pass.iter().any(|pattern| matches_name(pattern, name));
            if is_passed {
                self.variables.insert(name.clone(), value.clone());
            }
        }
        self.variables.extend(profile.environment.set.clone());
        self.variables.extend(credentials.variables.clone());
    }

    /// Adds the files of logins, in place of copies.
    pub(crate) fn add_logins(&mut self, files: Vec<HomeFile>) {
        self.home_files.retain(|file| !files.iter().any(|login| login.path == file.path));
        self.home_files.extend(files);
    }

    /// Copies what the profile names. A file that may hold a key is left out.
    fn copy_home(&mut self, profile: &AgentProfile, environment: &Environment) {
        let Some(home) = &environment.home else { return };
        let mut budget = CopyBudget { files: MAX_COPIED_FILES, bytes: MAX_COPIED_BYTES };
        for name in &profile.home.copy {
            self.copy(home, Path::new(name), MAX_COPY_DEPTH, &mut budget);
        }
        if budget.files == 0 || budget.bytes == 0 {
            self.notes.push(format!("not all files of the profile `{}` were copied: there are too many", profile.name));
        }
    }

    fn copy(&mut self, home: &Path, name: &Path, depth: usize, budget: &mut CopyBudget) {
        let path = home.join(name);
        // A link may lead to a key.
        let Ok(found) = std::fs::symlink_metadata(&path) else { return };
        if found.is_dir() && depth > 0 {
            let mut names: Vec<PathBuf> = std::fs::read_dir(&path)
                .into_iter()
                .flatten()
                .flatten()
                .map(|entry| name.join(entry.file_name()))
                .collect();
            names.sort();
            names.iter().for_each(|below| self.copy(home, below, depth - 1, budget));
        } else if found.is_file() && budget.take(found.len()) {
            let Ok(contents) = std::fs::read(&path) else { return };
            if has_credential(&String::from_utf8_lossy(&contents)) {
                self.notes.push(format!("`~/{}` may contain a key and is not copied", name.display()));
            } else {
                self.home_files.push(HomeFile { path: name.to_owned(), contents, is_renewed: false });
            }
        }
    }
}

struct CopyBudget {
    files: usize,
    bytes: u64,
}

impl CopyBudget {
    fn take(&mut self, bytes: u64) -> bool {
        if self.files == 0 || bytes > self.bytes || bytes > MAX_FILE_BYTES {
            return false;
        }
        self.files -= 1;
        self.bytes -= bytes;
        true
    }
}

/// The person's own settings of git, as far as the program gets them.
pub(crate) fn git_config(identity: &GitIdentity, user: &WrappedUser) -> String {
    let mut config = if *identity == GitIdentity::default() { String::new() } else { identity.to_config() };
    if [user.uid, user.gid] != [geteuid().as_raw(), getegid().as_raw()] {
        // The index has other owners than git sees. It would read every file, and rewrite the index.
        config.push_str("[core]\n\tcheckStat = minimal\n");
    }
    config
}

fn placed(path: &str, contents: &[u8]) -> PlacedFile {
    PlacedFile { path: path.into(), contents: contents.to_vec() }
}

/// Patterns of the files that go back into the home directory.
pub(crate) fn kept_home_files(profile: &AgentProfile, workspace: &Path) -> Vec<String> {
    profile.home.keep.iter().map(|file| with_dashes(file, workspace)).collect()
}

/// Files, and values of files, whose changes a person reviews.
pub(crate) fn reviewed_home_files(profile: &AgentProfile, workspace: &Path) -> Vec<String> {
    // As a token of a JSON pointer.
    let token = workspace.to_string_lossy().replace('~', "~0").replace('/', "~1");
    profile.home.review.iter().map(|file| with_dashes(file, workspace).replace("${workspace}", &token)).collect()
}

fn with_dashes(file: &str, workspace: &Path) -> String {
    let dashed = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let dashes: String = workspace.to_string_lossy().chars().map(dashed).collect();
    file.replace("${workspace:dashes}", &dashes)
}

/// Whether a name is the pattern, or begins with it up to its star.
pub(crate) fn matches_name(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => pattern == name,
    }
}

/// The text with its `${…}` replaced. `None` if it needs the placeholder of a credential without a key.
fn expand(text: &str, credentials: &RunCredentials, workspace: &Path) -> Option<String> {
    let mut expanded = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let (name, behind) = after.split_once('}')?;
        expanded.push_str(before);
        expanded.push_str(&value_of(name, credentials, workspace)?);
        rest = behind;
    }
    Some(expanded + rest)
}

fn value_of(name: &str, credentials: &RunCredentials, workspace: &Path) -> Option<String> {
    let mut parts = name.split(':');
    match (parts.next(), parts.next(), parts.next()) {
        // In JSON and TOML strings.
        (Some("workspace"), None, None) => {
            let quoted = serde_json::to_string(workspace.to_str()?).ok()?;
            Some(quoted.strip_prefix('"')?.strip_suffix('"')?.to_owned())
        }
        (Some("placeholder"), Some(name), length) => {
            // With a question mark: nothing where there is no key.
            let (length, is_optional) = match length.and_then(|length| length.strip_suffix('?')) {
                Some(length) => (Some(length), true),
                None => (length, false),
            };
            let placeholder = credentials.placeholder(name).or(is_optional.then_some(""))?;
            let length = length.map_or(Some(placeholder.len()), |length| length.parse().ok())?;
            Some(placeholder.get(placeholder.len().saturating_sub(length)..)?.to_owned())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::EnvironmentVariables;

    fn profile(text: &str) -> AgentProfile {
        toml::from_str(text).unwrap()
    }

    fn run(profile: &AgentProfile, environment: &Environment) -> RunEnvironment {
        let credentials = RunCredentials::default();
        RunEnvironment::new(profile, &credentials, environment, String::new(), Path::new("/home/ada/a \"b\""))
    }

    #[test]
    fn only_named_variables_enter() {
        let directory = tempfile::tempdir().unwrap();
        let variables =
            [("TERM", "xterm"), ("LC_ALL", "C"), ("AWS_SECRET", "x"), ("AGENT_MODEL", "m"), ("AGENTS", "y")];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let environment = Environment {
            variables: EnvironmentVariables(variables.into()),
            ..Environment::isolated(directory.path(), "/proc/self/exe")
        };
        let run = run(&profile("[environment]\npass = [\"AGENT_*\"]\nset = { UPDATE = \"0\" }"), &environment);
        let expected = [("AGENT_MODEL", "m"), ("LC_ALL", "C"), ("TERM", "xterm"), ("UPDATE", "0")];
        assert_eq!(run.variables, expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
    }

    #[test]
    fn files_of_the_home_directory_are_copied_without_keys_and_links() {
        let directory = tempfile::tempdir().unwrap();
        let environment = Environment::isolated(directory.path(), "/proc/self/exe");
        let home = directory.path().join("home");
        std::fs::create_dir_all(home.join(".agent/commands")).unwrap();
        std::fs::write(home.join(".agent/commands/a.md"), "text").unwrap();
        std::fs::write(home.join(".agent/key.json"), "{\"apiKey\": \"sk-ant-api03-0123456789abcdef0123456789\"}")
            .unwrap();
        std::os::unix::fs::symlink("/etc/passwd", home.join(".agent/link")).unwrap();
        std::fs::write(home.join("other"), "text").unwrap();
        let run =
            run(&profile("[home]\ncopy = [\".agent\", \"absent\"]\nfiles = { x = \"in ${workspace}\" }"), &environment);
        let files: Vec<(&str, &[u8])> =
            run.home_files.iter().map(|file| (file.path.to_str().unwrap(), file.contents.as_slice())).collect();
        assert_eq!(files, [(".agent/commands/a.md", "text".as_bytes()), ("x", b"in /home/ada/a \\\"b\\\"")]);
        assert_eq!(run.notes, ["`~/.agent/key.json` may contain a key and is not copied"]);
    }

    #[test]
    fn git_compares_no_owners_where_they_have_other_numbers() {
        let identity = GitIdentity { name: Some("Ada".to_owned()), email: None };
        let user = |uid, gid| WrappedUser { name: "ada".into(), home: "/".into(), shell: "/bin/sh".into(), uid, gid };
        let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
        assert_eq!(git_config(&identity, &user(uid, gid)), "[user]\n\tname = \"Ada\"\n");
        assert_eq!(git_config(&GitIdentity::default(), &user(uid, gid)), "");
        let renumbered = "[core]\n\tcheckStat = minimal\n";
        assert_eq!(git_config(&GitIdentity::default(), &user(uid + 1, gid)), renumbered);
        assert_eq!(git_config(&GitIdentity::default(), &user(uid, gid + 1)), renumbered);
    }

    #[test]
    fn transcripts_are_those_of_the_workspace() {
        let profile = profile("[home]\nkeep = [\".agent/${workspace:dashes}/*.jsonl\", \".b/c\"]");
        let files = kept_home_files(&profile, Path::new("/home/ada/my_project*.x"));
        assert_eq!(files, [".agent/-home-ada-my-project--x/*.jsonl", ".b/c"]);
    }

    #[test]
    fn a_file_that_needs_an_absent_placeholder_is_left_out() {
        let credentials = RunCredentials::default();
        let expanded = |text: &str| expand(text, &credentials, Path::new("/w"));
        assert_eq!(expanded("a ${workspace} b"), Some("a /w b".to_owned()));
        assert_eq!(expanded("${placeholder:absent:20}"), None);
        assert_eq!(expanded("[${placeholder:absent:20?}]"), Some("[]".to_owned()));
        assert_eq!(expanded("${unknown}"), None);
    }
}
