//! A workspace, a home and a state directory for one trial, and the programs that are run in them.
//!
//! Nothing of the user's is read or written. The directories are removed when the trial is over.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{fs, io};

/// Seconds after which a program that should have ended hangs.
pub(super) const HANG_SECONDS: u64 = 60;

/// Exit code of `timeout` when it ended the program.
const TIMEOUT_EXIT_CODE: i32 = 124;

const FIXED_UPDATED_AT: &str = "updatedAt: \"2026-01-01T00:00:00Z\"";

/// Every path of a workspace but the image store, with the contents of files.
pub(super) type SiteTree = Vec<(String, Option<Vec<u8>>)>;

#[derive(Debug)]
pub(super) struct FaultSite {
    root: PathBuf,
    program: PathBuf,
    /// The run whose state is there too.
    run: Option<&'static str>,
}

/// The result of a command.
#[derive(Debug)]
pub(super) enum SiteCommandResult {
    Succeeded(String),
    Failed(String),
    Hung,
}

impl FaultSite {
    /// A new one below a directory.
    pub(super) fn new(dir: &Path, program: &Path) -> io::Result<Self> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let root = dir.join(format!("site-{}", NEXT.fetch_add(1, Ordering::Relaxed)));
        let site = Self { root, program: program.to_owned(), run: None };
        for name in ["ws", "home", "state"] {
            fs::create_dir_all(site.root.join(name))?;
        }
        Ok(site)
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn workspace(&self) -> PathBuf {
        self.root.join("ws")
    }

    pub(super) fn write(&self, path: &str, content: &str) -> io::Result<()> {
        let path = self.workspace().join(path);
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(path, content)
    }

    /// Makes a run, and gives its `workflow.md` a time that is the same in every trial.
    pub(super) fn begin_run(&mut self, run: &'static str) -> io::Result<()> {
        self.run = Some(run);
        if let SiteCommandResult::Failed(why) = self.run(&["workflow", "new"])? {
            return Err(io::Error::other(why));
        }
        let path = self.run_state()?.ok_or_else(|| io::Error::other("no run"))?.join("workflow.md");
        let text = fs::read_to_string(&path)?;
        let lines = text.lines().map(|line| if line.starts_with("updatedAt:") { FIXED_UPDATED_AT } else { line });
        fs::write(path, lines.map(|line| format!("{line}\n")).collect::<String>())
    }

    /// Directory of the state of the run.
    fn run_state(&self) -> io::Result<Option<PathBuf>> {
        let Some(run) = self.run else { return Ok(None) };
        let mut projects = fs::read_dir(self.root.join("state/projects"))?;
        Ok(projects.next().transpose()?.map(|project| project.path().join("runs").join(run).join("state")))
    }

    /// Any program, in the environment of this site and away from the terminal.
    pub(super) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
            .env("HOME", self.root.join("home"))
            .env("RINGFENCE_STATE_DIR", self.root.join("state"))
            .current_dir(self.root.join("home"))
            .stdin(Stdio::null())
            .process_group(0);
        command
    }

    /// Our program on the workspace.
    pub(super) fn ringfence(&self, arguments: &[&str]) -> Command {
        self.on_workspace(self.command(&self.program), arguments)
    }

    /// Runs our program to its end.
    pub(super) fn run(&self, arguments: &[&str]) -> io::Result<SiteCommandResult> {
        let mut command = self.command("timeout");
        command.args(["--kill-after=5", &HANG_SECONDS.to_string()]).arg(&self.program);
        let Output { status, stdout, stderr } = self.on_workspace(command, arguments).output()?;
        let printed_text = String::from_utf8_lossy(&stdout).into_owned();
        Ok(match status.code() {
            Some(0) => SiteCommandResult::Succeeded(printed_text),
            Some(TIMEOUT_EXIT_CODE) => SiteCommandResult::Hung,
            _ => SiteCommandResult::Failed(format!("{status}: {printed_text}{}", String::from_utf8_lossy(&stderr))),
        })
    }

    fn on_workspace(&self, mut command: Command, arguments: &[&str]) -> Command {
        if let Some(run) = self.run {
            command.args(["--run", run]);
        }
        command.args(["--preset", "edits"]).args(arguments).arg("--workspace").arg(self.workspace());
        command
    }

    /// The tree of the workspace, and of the state of the run as `@state`.
    pub(super) fn tree(&self) -> io::Result<SiteTree> {
        let mut found = read_tree(&self.workspace(), "")?;
        if let Some(state) = self.run_state()? {
            found.extend(read_tree(&state, "@state/")?);
        }
        found.sort();
        Ok(found)
    }
}

fn read_tree(root: &Path, prefix: &str) -> io::Result<SiteTree> {
    let mut found = SiteTree::new();
    let mut left = vec![root.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(&directory)? {
            let path = entry?.path();
            let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
            // The image store, and the log of a run, which has times in it.
            if name == ".ringfence" || (name == "logs" && !prefix.is_empty()) {
                continue;
            }
            let name = format!("{prefix}{name}");
            if path.is_dir() {
                found.push((name, None));
                left.push(path);
            } else {
                found.push((name, Some(fs::read(&path)?)));
            }
        }
    }
    Ok(found)
}

impl Drop for FaultSite {
    fn drop(&mut self) {
        // A directory that cannot be removed does no harm.
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// Runs a command of the system, which must succeed.
pub(super) fn run_checked(program: &str, arguments: &[&OsStr]) -> io::Result<String> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output()?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        false => Err(io::Error::other(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim()))),
    }
}
