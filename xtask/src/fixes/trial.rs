//! One fix, from the first test to the undo: every change is a call over the Model Context Protocol, and a person undoes them all.
//!
//! The workspace is compared with what it was before the first call: names, contents and modes of all files, those of `.git` too.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::external_tools::succeeds;
use crate::fixes::FixTrial;
use crate::fixes::difference::{ChangedFile, changed_files};
use crate::fixes::release::{PackageRegistry, fetch, install_needs};
use crate::surface::SurfaceServer;
use crate::{print_status, root};

/// What git does not track here.
const EXCLUDED: &str = ".venv/\nnode_modules/\ntarget/\npackage-lock.json\n__pycache__/\n";

/// What a trial showed.
pub(super) struct FixResult {
    before: String,
    after: String,
    formatted: &'static str,
    undone: usize,
}

impl FixResult {
    pub(super) fn row(&self, trial: &FixTrial) -> String {
        let Self { before, after, formatted, undone } = self;
        let [old, new] = trial.releases;
        format!(
            "| {} {old} → {new} | {} | {before} | {after} | {formatted} | yes | {undone} changes, to the byte |\n",
            trial.package, trial.dialect
        )
    }
}

/// Names, modes and contents below a directory.
#[derive(PartialEq, Eq)]
struct TreeSnapshot(BTreeMap<PathBuf, (u32, Vec<u8>)>);

/// The reply to a call.
struct FixReply {
    text: String,
    is_error: bool,
}

struct FixSession<'a> {
    trial: &'a FixTrial,
    server: SurfaceServer,
}

/// Makes a fix, and undoes it. The error says what went wrong.
pub(super) fn try_fix(trial: &FixTrial) -> Result<FixResult, String> {
    print_status(&format!("{}…", trial.package));
    let base = root().join("target/tmp/fixes").join(trial.package);
    let [old, new] = trial.releases.map(|release| fetch(trial, release, &base));
    let (old, new) = (old?, new?);
    let tests = changed_files(&old, &new, trial.tests)?;
    let sources = changed_files(&old, &new, trial.sources)?;
    if tests.is_empty() || sources.is_empty() {
        return Err("the releases do not differ in tests and sources".to_owned());
    }
    let files = make_workspace(trial, &old, &base)?;
    let before_all = TreeSnapshot::of(&files)?;
    let mut session = FixSession { trial, server: start_server(trial, &base, &files)? };
    session.apply(&tests)?;
    let before = session.run_tests()?;
    if before.is_pass() {
        return Err(format!("the new tests pass without the fix: {}", before.first_line()));
    }
    session.apply(&sources)?;
    let formatted = session.format(&sources)?;
    let after = session.run_tests()?;
    if !after.is_pass() {
        return Err(format!("the tests fail with the fix:\n{}", after.text));
    }
    session.commit(&files, tests.iter().chain(&sources))?;
    drop(session);
    let undone = undo_all(&base, &files)?;
    check_same(&before_all, &TreeSnapshot::of(&files)?)?;
    git(&files, &["fsck", "--strict"])?;
    Ok(FixResult { before: before.counts(), after: after.counts(), formatted, undone })
}

/// A fresh repository with the first release, and what its tests need.
fn make_workspace(trial: &FixTrial, release: &Path, base: &Path) -> Result<PathBuf, String> {
    let files = base.join("files");
    for old in [&files, &base.join("state")] {
        let _ = fs::remove_dir_all(old);
    }
    if !succeeds(Command::new("cp").arg("-R").arg(release).arg(&files)) {
        return Err("the release cannot be copied".to_owned());
    }
    if trial.registry == PackageRegistry::Cargo {
        // The package is below this repository, and is not of its workspace.
        let manifest = fs::read_to_string(files.join("Cargo.toml")).map_err(|error| error.to_string())?;
        fs::write(files.join("Cargo.toml"), manifest + "\n[workspace]\n").map_err(|error| error.to_string())?;
    }
    install_needs(trial, &files)?;
    // Installers write settings too.
    for (path, contents) in trial.settings {
        fs::write(files.join(path), contents).map_err(|error| format!("{path}: {error}"))?;
    }
    git(&files, &["init", "--quiet", "--initial-branch=main"])?;
    fs::write(files.join(".git/info/exclude"), EXCLUDED).map_err(|error| error.to_string())?;
    for setting in [["user.name", "Fixes"], ["user.email", "fixes@example.org"], ["core.autocrlf", "false"]] {
        git(&files, &["config", setting[0], setting[1]])?;
    }
    git(&files, &["add", "--all"])?;
    git(&files, &["commit", "--quiet", "--message", "release"])?;
    Ok(files)
}

fn start_server(trial: &FixTrial, base: &Path, files: &Path) -> Result<SurfaceServer, String> {
    let config = base.join("config.toml");
    fs::write(&config, "").map_err(|error| error.to_string())?;
    let mut command = Command::new(root().join("target/debug/ringfence"));
    command.args(["mcp", "--preset", "edits", "--dialect", trial.dialect, "--toolset", "project", "--toolset", "git"]);
    command.arg("--config").arg(config).arg("--workspace").arg(files).env("RINGFENCE_STATE_DIR", base.join("state"));
    SurfaceServer::start_by(command).ok_or_else(|| "the server does not start".to_owned())
}

impl FixSession<'_> {
    fn call(&mut self, tool: &str, arguments: &Value) -> Result<FixReply, String> {
        let reply = self.server.request("tools/call", &json!({"name": tool, "arguments": arguments}));
        let reply = reply.ok_or_else(|| format!("{tool}: no reply"))?;
        let blocks = reply["content"].as_array().into_iter().flatten();
        let text = blocks.filter_map(|block| block["text"].as_str()).collect::<Vec<_>>().join("\n");
        Ok(FixReply { text, is_error: reply["isError"] == true })
    }

    /// A call that must succeed.
    fn must(&mut self, tool: &str, arguments: &Value) -> Result<FixReply, String> {
        let reply = self.call(tool, arguments)?;
        if reply.is_error { Err(format!("{tool}: {}", reply.text)) } else { Ok(reply) }
    }

    fn apply(&mut self, changed: &[ChangedFile]) -> Result<(), String> {
        for (tool, arguments) in changed.iter().flat_map(|file| file.calls(self.trial.dialect)) {
            self.must(tool, &arguments)?;
        }
        Ok(())
    }

    /// An error reply is one too: a project that does not compile has no report.
    fn run_tests(&mut self) -> Result<FixReply, String> {
        let reply = self.call("run_tests", &json!({"path": self.trial.path, "timeout": 600}))?;
        let first = reply.first_line();
        let is_run =
            ["passed", "failed", "error"].iter().any(|word| first.contains(word)) || first.starts_with("exit ");
        if is_run { Ok(reply) } else { Err(format!("run_tests: {}", reply.text)) }
    }

    /// Formats the sources of a project that has a formatter.
    fn format(&mut self, sources: &[ChangedFile]) -> Result<&'static str, String> {
        if self.trial.registry != PackageRegistry::Cargo {
            return Ok("no formatter");
        }
        let paths: Vec<&str> = sources.iter().map(|file| file.path.as_str()).collect();
        self.must("format_code", &json!({"paths": paths})).map(|_| "yes")
    }

    fn commit<'f>(&mut self, files: &Path, changed: impl Iterator<Item = &'f ChangedFile>) -> Result<(), String> {
        let paths: Vec<&str> = changed.map(|file| file.path.as_str()).collect();
        let message = format!("Fix the bug that {} fixes", self.trial.releases[1]);
        self.must("git_commit", &json!({"message": message, "paths": paths}))?;
        let [subject, status] =
            [&["log", "-1", "--format=%s"][..], &["status", "--porcelain"]].map(|words| git(files, words));
        match (subject?.trim() == message, status?.trim()) {
            (true, "") => Ok(()),
            (_, status) => Err(format!("the commit is not what was asked for: {status}")),
        }
    }
}

/// Undoes every change, as a person: an agent is asked about changes of a repository. Returns their number.
fn undo_all(base: &Path, files: &Path) -> Result<usize, String> {
    let log = ringfence(base, files, &["log"])?;
    ringfence(base, files, &["undo", "--since", "2000-01-01T00:00:00Z"])?;
    Ok(log.lines().count())
}

fn ringfence(base: &Path, files: &Path, words: &[&str]) -> Result<String, String> {
    let mut command = Command::new(root().join("target/debug/ringfence"));
    command.args(words).arg("--config").arg(base.join("config.toml")).arg("--workspace").arg(files);
    let output = command.env("RINGFENCE_STATE_DIR", base.join("state")).output().map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("{}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr))),
    }
}

impl FixReply {
    fn first_line(&self) -> &str {
        self.text.lines().next().unwrap_or_default()
    }

    /// The first line counts the tests: without a failure, they passed.
    fn is_pass(&self) -> bool {
        let first = self.first_line();
        !self.is_error && first.contains(" passed") && !first.contains("failed") && !first.contains("error")
    }

    /// The counts of the first line, without the time.
    fn counts(&self) -> String {
        let first = self.first_line();
        first.rsplit_once(" in ").map_or(first, |(counts, _)| counts).to_owned()
    }
}

impl TreeSnapshot {
    fn of(root: &Path) -> Result<Self, String> {
        let (mut found, mut left) = (BTreeMap::new(), vec![root.to_owned()]);
        while let Some(path) = left.pop() {
            let stat = fs::symlink_metadata(&path).map_err(|error| error.to_string())?;
            let contents = if stat.is_dir() {
                let entries = fs::read_dir(&path).map_err(|error| error.to_string())?;
                left.extend(entries.flatten().map(|entry| entry.path()).filter(|path| !is_own(root, path)));
                Vec::new()
            } else if stat.is_symlink() {
                fs::read_link(&path).map_err(|error| error.to_string())?.display().to_string().into_bytes()
            } else {
                fs::read(&path).map_err(|error| error.to_string())?
            };
            let name = path.strip_prefix(root).unwrap_or(&path).to_owned();
            found.insert(name, (stat.mode(), contents));
        }
        Ok(Self(found))
    }
}

/// The trash of the workspace, which keeps what `redo` needs.
fn is_own(root: &Path, path: &Path) -> bool {
    path.parent() == Some(root) && path.file_name().is_some_and(|name| name == ".ringfence")
}

fn check_same(before: &TreeSnapshot, after: &TreeSnapshot) -> Result<(), String> {
    let names = before.0.keys().chain(after.0.keys().filter(|name| !before.0.contains_key(*name)));
    let other: Vec<String> =
        names.filter(|name| before.0.get(*name) != after.0.get(*name)).map(|name| name.display().to_string()).collect();
    if other.is_empty() { Ok(()) } else { Err(format!("after the undo these are not as before: {}", other.join(", "))) }
}

/// Git outside of the sandbox, which writes nothing when it reads.
fn git(files: &Path, words: &[&str]) -> Result<String, String> {
    let mut command = Command::new("git");
    command.current_dir(files).args(words).env("GIT_OPTIONAL_LOCKS", "0").env("GIT_CONFIG_NOSYSTEM", "1");
    let output = command.env("GIT_CONFIG_GLOBAL", "/dev/null").output().map_err(|error| format!("git: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("git {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr))),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_first_line_of_a_reply_is_its_verdict() {
        let check = |text: &str, is_error: bool, is_pass: bool, counts: &str| {
            let reply = FixReply { text: text.to_owned(), is_error };
            assert_eq!((reply.is_pass(), reply.counts().as_str()), (is_pass, counts), "{text}");
        };
        check("12 passed, 1 skipped in 0.1 s\n", false, true, "12 passed, 1 skipped");
        check("1 failed, 12 passed in 0.1 s\n\na.rs:1 x", false, false, "1 failed, 12 passed");
        check("1 error, 12 passed in 0.1 s", false, false, "1 error, 12 passed");
        check("12 passed in 0.1 s", true, false, "12 passed");
        check("", false, false, "");
    }

    #[test]
    fn a_tree_is_compared_by_names_modes_and_contents() {
        let directory = std::env::temp_dir().join(format!("ringfence-fixes-{}", std::process::id()));
        fs::create_dir_all(directory.join("a")).unwrap();
        fs::create_dir_all(directory.join(".ringfence")).unwrap();
        fs::write(directory.join("a/x"), "1").unwrap();
        let before = TreeSnapshot::of(&directory).unwrap();
        let check = |expected: Option<&str>| {
            let same = check_same(&before, &TreeSnapshot::of(&directory).unwrap());
            assert_eq!(same.err().map(|error| error.rsplit(": ").next().unwrap().to_owned()).as_deref(), expected);
        };
        fs::write(directory.join(".ringfence/kept"), "1").unwrap();
        check(None);
        fs::write(directory.join("a/x"), "2").unwrap();
        check(Some("a/x"));
        fs::write(directory.join("a/x"), "1").unwrap();
        fs::set_permissions(directory.join("a/x"), fs::Permissions::from_mode(0o700)).unwrap();
        fs::write(directory.join("b"), "").unwrap();
        check(Some("a/x, b"));
        fs::remove_dir_all(directory).unwrap();
    }
}
