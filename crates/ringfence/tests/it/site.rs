//! A home, a state directory and a workspace in a temporary directory, and the program to run in them.
//!
//! The real home, config and state of the user who runs the tests are never read or written.

use std::ffi::OsStr;
use std::io::Write as _;
use std::ops::{Deref, DerefMut};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use ringfence::config::Environment;
use ringfence_testkit::mcp_client::McpServerCommand;
use ringfence_testkit::world::TestWorld;
use serde_json::Value;

/// The program under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_ringfence");

/// A machine of its own, as far as the program can see.
#[derive(Debug)]
pub(crate) struct TestSite {
    /// The workspace, the directory outside, and the state as `$RINGFENCE_STATE_DIR`.
    world: TestWorld,
    pub(crate) home: PathBuf,
    /// `$XDG_CONFIG_HOME`.
    pub(crate) config: PathBuf,
    /// Where the program is started.
    pub(crate) current: PathBuf,
}

/// The output of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CliOutput {
    /// `None` when a signal ended it.
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl TestSite {
    pub(crate) fn new() -> Self {
        Self::in_world(TestWorld::new())
    }

    /// The same on a file system in memory, where there is one: for hundreds of sites that need no disk.
    pub(crate) fn in_memory() -> Self {
        Self::in_world(TestWorld::in_memory())
    }

    fn in_world(world: TestWorld) -> Self {
        let root = std::fs::canonicalize(world.path()).unwrap();
        let [home, config, current] = ["home", "xdg-config", "current"].map(|name| root.join(name));
        for made in [&home, &config, &current] {
            std::fs::create_dir_all(made).unwrap();
        }
        Self { world, home, config, current }
    }

    /// The host path that no reply may have in it.
    pub(crate) fn root(&self) -> &Path {
        self.world.path()
    }

    /// The same machine for the library, with no config on it.
    pub(crate) fn environment(&self) -> Environment {
        Environment {
            home: Some(self.home.clone()),
            current: self.current.clone(),
            state: Some(self.state.clone()),
            no_color: false,
            ..Environment::isolated(self.root(), PROGRAM)
        }
    }

    /// Any program, in the environment of this site and without the controlling terminal of the tests.
    pub(crate) fn program(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.program_at_terminal(program);
        // A program in the background has no business at the terminal.
        command.process_group(0);
        command
    }

    /// Any program, in the environment of this site.
    pub(crate) fn program_at_terminal(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
            .env("HOME", &self.home)
            .env("XDG_CONFIG_HOME", &self.config)
            .env("XDG_STATE_HOME", self.root().join("xdg-state"))
            .env("RINGFENCE_STATE_DIR", &self.state)
            .current_dir(&self.current)
            .stdin(Stdio::null());
        command
    }

    /// The program without any argument.
    pub(crate) fn program_without_arguments(&self) -> Command {
        self.program(PROGRAM)
    }

    /// The program on the workspace.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.program_without_arguments();
        command.args(arguments).arg("--workspace").arg(&self.workspace);
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> CliOutput {
        cli_output(self.command(arguments).output().unwrap())
    }

    /// A call in the standard dialect that may change what is in the workspace.
    pub(crate) fn call(&self, tool: &str, arguments: &Value) -> CliOutput {
        self.call_with(&[], tool, arguments)
    }

    /// The same with further options.
    pub(crate) fn call_with(&self, options: &[&str], tool: &str, arguments: &Value) -> CliOutput {
        let mut command = self.command(&["--preset", "edits"]);
        command.args(options).args(["call", tool, "-"]);
        run_with_input(command, arguments.to_string().as_bytes())
    }

    /// Every file and directory of the workspace, with the files' contents, in order; without what the journal keeps.
    pub(crate) fn tree(&self) -> Vec<(String, Option<Vec<u8>>)> {
        let mut found = Vec::new();
        let mut left = vec![self.workspace.clone()];
        while let Some(directory) = left.pop() {
            for entry in std::fs::read_dir(&directory).unwrap().map(Result::unwrap) {
                let path = entry.path();
                if path.ends_with(".ringfence") {
                    continue;
                }
                let name = path.strip_prefix(&self.workspace).unwrap().to_str().unwrap().to_owned();
                if entry.file_type().unwrap().is_dir() {
                    found.push((name, None));
                    left.push(path);
                } else {
                    found.push((name, Some(std::fs::read(&path).unwrap_or_default())));
                }
            }
        }
        found.sort();
        found
    }

    /// Temporary files of ours that are still in the workspace.
    pub(crate) fn temp_files(&self) -> Vec<String> {
        let names = self.tree().into_iter().map(|(name, _)| name);
        names.filter(|name| name.contains(".ringfence-tmp-")).collect()
    }
}

impl TestSite {
    /// Files that wait in the image store, with the pre-images that are there.
    pub(crate) fn stored_files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.workspace.join(".ringfence")).into_iter().flatten();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name != ".gitignore").collect()
    }
}

impl Deref for TestSite {
    type Target = TestWorld;

    fn deref(&self) -> &TestWorld {
        &self.world
    }
}

impl DerefMut for TestSite {
    fn deref_mut(&mut self) -> &mut TestWorld {
        &mut self.world
    }
}

impl McpServerCommand for TestSite {
    fn mcp_command(&self, arguments: &[&str]) -> Command {
        self.command(&[&["mcp"], arguments].concat())
    }
}

impl CliOutput {
    /// The reply as JSON, in the standard dialect.
    #[track_caller]
    pub(crate) fn reply(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("no JSON reply ({error}): {self:?}"))
    }

    /// The value of a success reply.
    #[track_caller]
    pub(crate) fn value(&self) -> Value {
        assert_eq!(self.code, Some(0), "{self:?}");
        let reply = self.reply();
        assert_eq!(reply["ok"], true, "{self:?}");
        reply["value"].clone()
    }

    /// The code of an error reply.
    #[track_caller]
    pub(crate) fn error(&self) -> String {
        assert_eq!(self.code, Some(1), "{self:?}");
        let reply = self.reply();
        assert_eq!(reply["ok"], false, "{self:?}");
        reply["error"]["code"].as_str().unwrap().to_owned()
    }
}

/// Runs a command with these bytes as its standard input.
pub(crate) fn run_with_input(mut command: Command, input: &[u8]) -> CliOutput {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Who does not read all of it has its reasons, and tells them in its reply.
    let _ = child.stdin.take().unwrap().write_all(input);
    cli_output(child.wait_with_output().unwrap())
}

pub(crate) fn cli_output(output: Output) -> CliOutput {
    CliOutput {
        code: output.status.code(),
        signal: output.status.signal(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}
