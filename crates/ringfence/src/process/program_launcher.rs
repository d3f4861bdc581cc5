//! Program launcher: starts the operator's programs, and is the only module that does.
//!
//! The programs are named by the user's own environment or config: an editor, which gets the user's own terminal, and
//! MCP servers. Agents cannot influence them: a program starts in an empty directory of its own, and nothing that an
//! agent can write is on the paths that it loads code from. An interpreter would otherwise run a file of the workspace
//! by its name alone.
//!
//! Not here: programs in the jail (`ringfence-sandbox`).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{DirBuilder, File};
use std::io::{self, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringfence_fs::real_path;
use ringfence_kernel::sync::Mutex;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use crate::config::host::AgentDirectories;
use crate::config::{AppSettings, Environment, EnvironmentVariables};
use crate::process::loader_variables::strip_directories;
use crate::process::process_lock::ProcessLock;

/// Below the state directory: where programs start, each in a directory of its own.
const SCRATCH_DIRECTORY: &str = "programs";

/// Variables of our environment that a program outside of the jail gets, besides those that the user names.
const BASE_VARIABLES: [&str; 9] = ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TERM", "TMPDIR"];

/// Directories of the system's own programs, where no `PATH` is set.
const SYSTEM_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// A wait for a program that can be cancelled.
pub(crate) trait Cancellable {
    /// Waits up to `at_most`. True when the wait is cancelled.
    fn is_cancelled(&self, at_most: Duration) -> bool;
}

/// Starts this program again with these arguments, as a process that outlives this one. Gives what it writes to its standard
/// output; its errors are where ours are.
pub(crate) fn spawn_again(arguments: &[OsString]) -> io::Result<(Child, ChildStdout)> {
    #[expect(clippy::disallowed_methods, reason = "this is the one place")]
    let mut command = Command::new("/proc/self/exe");
    command.arg0("ringfence").args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn()?;
    let output = child.stdout.take().ok_or_else(|| io::Error::other("it has no pipe"))?;
    Ok((child, output))
}

/// Starts programs of the operator, out of the reach of agents.
#[derive(Clone, Debug)]
pub(crate) struct ProgramLauncher {
    /// Directories that agents may write to, or that have untrusted contents: workspaces and mounts.
    agent_directories: Arc<AgentDirectories>,
    scratch: PathBuf,
    variables: EnvironmentVariables,
}

impl ProgramLauncher {
    pub(crate) fn new(settings: &AppSettings, environment: &Environment) -> Self {
        Self {
            agent_directories: Arc::new(AgentDirectories::new(settings, environment)),
            scratch: settings.state.join(SCRATCH_DIRECTORY),
            variables: environment.variables.clone(),
        }
    }

    /// These variables, without what would load code from where agents write.
    pub(crate) fn safe_variables<'a>(
        &self,
        env: impl IntoIterator<Item = (&'a String, &'a String)>,
    ) -> BTreeMap<String, String> {
        let kept = |(name, value): (&'a String, &'a String)| {
            Some((name.clone(), strip_directories(name, value, &self.agent_directories)?.into_owned()))
        };
        env.into_iter().filter_map(kept).collect()
    }

    /// Starts a program that is talked to over its standard input and output. It gets these variables, and the few that
    /// every program needs.
    pub(crate) fn spawn_server(
        &self,
        program: &str,
        args: &[String],
        env: &EnvironmentVariables,
    ) -> io::Result<(LaunchedProgram, ChildStdin, ChildStdout)> {
        let basics = BASE_VARIABLES.iter().filter_map(|name| self.variables.0.get_key_value(*name));
        let env = self.safe_variables(basics.chain(&env.0));
        let program = self.find_program(program, env.get("PATH").map(String::as_str))?;
        let directory = ScratchDirectory::new(&self.scratch)?;
        #[expect(clippy::disallowed_methods, reason = "this is the one place")]
        let mut command = Command::new(program);
        command.args(args).env_clear().envs(&env).current_dir(&directory.path).process_group(0);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let launched = LaunchedProgram(Mutex::new(Some(LaunchedChild { child, _directory: directory })));
        let (input, output) = pipes.ok_or_else(|| io::Error::other("it has no pipes"))?;
        Ok((launched, input, output))
    }

    /// Lets the user edit a file at the terminal, and waits until they are done. An error if they gave up.
    pub(crate) fn run_editor(
        &self,
        editor: &str,
        file: &Path,
        terminal: &File,
        cancel: &impl Cancellable,
    ) -> io::Result<()> {
        const PAUSE: Duration = Duration::from_millis(50);
        let mut words = editor.split_whitespace();
        let program = words.next().ok_or_else(|| io::Error::other("no editor is set"))?;
        let path =
            self.variables.0.get("PATH").and_then(|path| strip_directories("PATH", path, &self.agent_directories));
        let program = self.find_program(program, path.as_deref())?;
        let directory = ScratchDirectory::new(&self.scratch)?;
        let stdio = || terminal.try_clone().map(Stdio::from);
        #[expect(clippy::disallowed_methods, reason = "this is the one place")]
        let mut command = Command::new(program);
        // An editor looks for settings in the directory that it is started in.
        command.args(words).arg(file).current_dir(&directory.path);
        for (name, value) in &self.variables.0 {
            match strip_directories(name, value, &self.agent_directories) {
                Some(kept) if kept == value.as_str() => &mut command,
                Some(kept) => command.env(name, kept.as_ref()),
                None => command.env_remove(name),
            };
        }
        let mut child = command.stdin(stdio()?).stdout(stdio()?).stderr(stdio()?).spawn()?;
        loop {
            if let Some(status) = child.try_wait()? {
                return if status.success() { Ok(()) } else { Err(io::Error::other("the editor failed")) };
            }
            if cancel.is_cancelled(PAUSE) {
                child.kill()?;
                child.wait()?;
                return Err(io::Error::other("the caller is gone"));
            }
        }
    }

    /// The first line that a program prints. It is in charge of the terminal's prompts itself.
    pub(crate) fn read_line(&self, words: &[String]) -> io::Result<String> {
        const LONGEST: u64 = 64 << 10;
        let (program, args) = words.split_first().ok_or_else(|| io::Error::other("no program is named"))?;
        let env = self.safe_variables(&self.variables.0);
        let program = self.find_program(program, env.get("PATH").map(String::as_str))?;
        let directory = ScratchDirectory::new(&self.scratch)?;
        #[expect(clippy::disallowed_methods, reason = "this is the one place")]
        let mut command = Command::new(program);
        command.args(args).env_clear().envs(&env).current_dir(&directory.path).stdin(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let mut text = String::new();
        if let Some(output) = child.stdout.take() {
            output.take(LONGEST).read_to_string(&mut text)?;
        }
        match child.wait()?.success() {
            true => Ok(text.lines().next().unwrap_or_default().to_owned()),
            false => Err(io::Error::other("it exited with an error")),
        }
    }

    /// The file of a program: an absolute path, or a name that is looked up where no agent can put one.
    fn find_program(&self, program: &str, path: Option<&str>) -> io::Result<PathBuf> {
        let is_program = |file: &PathBuf| {
            std::fs::metadata(file).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
        };
        let found = match program.contains('/') {
            true => Some(PathBuf::from(program)).filter(|file| file.is_absolute()),
            false => {
                std::env::split_paths(path.unwrap_or(SYSTEM_PATH)).map(|entry| entry.join(program)).find(is_program)
            }
        };
        let found = found.ok_or_else(|| {
            let message = "program not found: use a program on PATH outside every workspace, or an absolute path";
            io::Error::new(io::ErrorKind::NotFound, message)
        })?;
        let real = real_path(&found);
        match self.agent_directories.contain(&real) {
            true => Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "the program is inside a workspace or mount, where an agent could change it; install it outside",
            )),
            // By the name that it was asked for: programs such as busybox go by it.
            false => Ok(found),
        }
    }
}

/// An empty directory that one program is started in. It goes with the program.
#[derive(Debug)]
struct ScratchDirectory {
    path: PathBuf,
    /// As long as it is held, the directory is in use. It goes after the directory.
    _owner: ProcessLock,
}

impl ScratchDirectory {
    fn new(scratch: &Path) -> io::Result<Self> {
        let private = || {
            let mut private = DirBuilder::new();
            private.mode(0o700);
            private
        };
        private().recursive(true).create(scratch)?;
        for left in std::fs::read_dir(scratch)?.flatten().filter(|left| left.path().is_dir()) {
            if ProcessLock::is_stale(scratch, &left.file_name().to_string_lossy())? {
                // A process that was killed left it. It is found again the next time, if it stays.
                let _ = std::fs::remove_dir_all(left.path());
            }
        }
        // The lock first: a directory without one counts as abandoned.
        let owner = ProcessLock::new(scratch)?;
        let path = scratch.join(owner.id());
        private().create(&path)?;
        Ok(Self { path, _owner: owner })
    }
}

impl Drop for ScratchDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// A program that serves us, with all that it started in its own group.
#[derive(Debug)]
pub(crate) struct LaunchedProgram(Mutex<Option<LaunchedChild>>);

#[derive(Debug)]
struct LaunchedChild {
    child: Child,
    /// It is there as long as the program is.
    _directory: ScratchDirectory,
}

impl LaunchedProgram {
    /// Ends it. It may take so long to end by itself, once its input is closed.
    pub(crate) fn stop(&self, timeout: Duration) {
        const PAUSE: Duration = Duration::from_millis(10);
        let mut held = self.0.lock();
        let Some(LaunchedChild { mut child, _directory }) = held.take() else { return };
        let until = Instant::now() + timeout;
        if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
            // It is looked at and not reaped, so that its number stays its own.
            let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            while Instant::now() < until && matches!(waitid(WaitId::Pid(group), look), Ok(None)) {
                std::thread::sleep(PAUSE);
            }
            // Its children may outlive it.
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = child.wait();
    }
}

impl Drop for LaunchedProgram {
    fn drop(&mut self) {
        self.stop(Duration::ZERO);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt};
    use std::path::{Path, PathBuf};
    use std::sync::Arc;
    use std::time::{Duration, UNIX_EPOCH};

    use super::{Cancellable, ProgramLauncher, ScratchDirectory};
    use crate::config::EnvironmentVariables;
    use crate::config::host::AgentDirectories;

    struct NeverCancelled;

    impl Cancellable for NeverCancelled {
        fn is_cancelled(&self, at_most: Duration) -> bool {
            std::thread::sleep(at_most);
            false
        }
    }

    fn program(path: &Path, code: &str) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        ringfence_testkit::executable::write_script(path, &format!("#!/bin/sh\n{code}\n"));
    }

    fn launcher(root: &Path, variables: &[(&str, String)]) -> ProgramLauncher {
        ProgramLauncher {
            agent_directories: Arc::new(AgentDirectories::from_parts(vec![root.join("ws")], &root.join("state"))),
            scratch: root.join("state/programs"),
            variables: EnvironmentVariables(
                variables.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect(),
            ),
        }
    }

    /// Output of an editor that is looked up in these directories: its own directory, the number of its entries, and a
    /// variable.
    fn edited(root: &Path, path: &str, editor: &str) -> Result<String, String> {
        let path = path.replace("ROOT", root.to_str().unwrap());
        let options = format!("--require {}/ws/x.js", root.display());
        let launcher = launcher(root, &[("PATH", path), ("NODE_OPTIONS", options)]);
        let terminal = File::open("/dev/null").unwrap();
        let file = root.join("draft");
        launcher.run_editor(editor, &file, &terminal, &NeverCancelled).map_err(|error| error.to_string())?;
        Ok(std::fs::read_to_string(file).unwrap())
    }

    /// A workspace that no config names any more: the journal of its changes tells.
    #[test]
    fn a_program_in_a_workspace_of_an_earlier_session_is_not_started() {
        let directory = tempfile::tempdir().unwrap();
        let root = std::fs::canonicalize(directory.path()).unwrap();
        program(&root.join("earlier/bin/own-ed"), "echo planted > \"$1\"");
        program(&root.join("own/own-ed"), "echo own > \"$1\"");
        let path = "ROOT/earlier/bin:ROOT/own:/usr/bin:/bin";
        assert_eq!(edited(&root, path, "own-ed").unwrap(), "planted\n");
        let found = std::fs::metadata(root.join("earlier")).unwrap();
        let id = format!("{:x}-{:x}", found.dev(), found.ino());
        // An inode that was another directory's is not that directory.
        std::fs::create_dir_all(root.join("state/journal").join(format!("{id}-1"))).unwrap();
        assert_eq!(edited(&root, path, "own-ed").unwrap(), "planted\n");
        let born = found.created().map(|born| born.duration_since(UNIX_EPOCH).unwrap().as_nanos());
        let journal = born.map_or_else(|_| id.clone(), |born| format!("{id}-{born}"));
        std::fs::create_dir_all(root.join("state/journal").join(journal)).unwrap();
        assert_eq!(edited(&root, path, "own-ed").unwrap(), "own\n");
        let named = root.join("earlier/bin/own-ed").display().to_string();
        assert!(edited(&root, path, &named).unwrap_err().contains("inside a workspace"));
    }

    #[test]
    fn an_editor_starts_where_no_agent_left_settings_for_it() {
        let directory = tempfile::tempdir().unwrap();
        let root = std::fs::canonicalize(directory.path()).unwrap();
        program(&root.join("ws/bin/own-ed"), "echo planted > \"$1\"");
        program(&root.join("own/own-ed"), "echo \"$PWD $(ls -A | wc -l) ${NODE_OPTIONS-none} $1\" > \"$2\"");
        let output = edited(&root, "ROOT/ws/bin:ws/bin::ROOT/own:/usr/bin:/bin", "own-ed -w").unwrap();
        let (entry, rest) = output.split_once(' ').unwrap();
        assert!(Path::new(entry).starts_with(root.join("state/programs")), "{output}");
        assert_eq!(rest, "0 none -w\n");
        assert_eq!(std::fs::read_dir(root.join("state/programs")).unwrap().count(), 0);
        for (path, editor, why) in [
            ("ROOT/ws/bin", "own-ed", "program not found"),
            ("/usr/bin:/bin", "ws/bin/own-ed", "an absolute path"),
            ("/usr/bin:/bin", &*root.join("ws/bin/own-ed").display().to_string(), "inside a workspace"),
        ] {
            let error = edited(&root, path, editor).unwrap_err();
            assert!(error.contains(why), "{editor}: {error}");
        }
    }

    #[test]
    fn stale_scratch_directories_are_removed_and_used_ones_stay() {
        let directory = tempfile::tempdir().unwrap();
        let dead: PathBuf = directory.path().join("dead");
        std::fs::create_dir(&dead).unwrap();
        std::fs::write(dead.join("json.py"), "").unwrap();
        let first = ScratchDirectory::new(directory.path()).unwrap();
        let second = ScratchDirectory::new(directory.path()).unwrap();
        assert!(!dead.exists() && first.path.exists() && second.path.exists());
        assert_eq!(std::fs::metadata(&first.path).unwrap().permissions().mode() & 0o777, 0o700);
        drop((first, second));
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
