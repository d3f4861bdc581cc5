//! Calls that are traced: the program with counters, in a workspace and a home of its own.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, io};

use ringfence_testkit::stdio_process::StdioProcess;
use serde_json::{Value, json};

use super::profraw::{ProfileCounts, read_counts};
use super::symbol::parse_symbol;

/// Time that the program gets to be ready, or to reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(120);

/// Pause between two looks at the counters.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// The user's config: requests are answered with yes, by a setting.
const UNATTENDED_CONFIG: &str = "[approval]\nunattended = true\n";

/// The counters when the program waits for its arguments, and when it has replied.
#[derive(Debug)]
pub(super) struct CallTrace {
    pub(super) before: ProfileCounts,
    pub(super) after: ProfileCounts,
}

/// A workspace, a home and a state directory, which are removed with this value.
#[derive(Debug)]
pub(super) struct RoadSite {
    root: PathBuf,
    program: PathBuf,
}

impl RoadSite {
    pub(super) fn new(program: &Path, root: PathBuf) -> io::Result<Self> {
        let _ = fs::remove_dir_all(&root);
        for name in ["ws", "home/.config/ringfence", "state", "profiles"] {
            fs::create_dir_all(root.join(name))?;
        }
        fs::write(root.join("home/.config/ringfence/config.toml"), UNATTENDED_CONFIG)?;
        fs::write(root.join("ws/note.txt"), "milk\n")?;
        Ok(Self { root, program: program.to_owned() })
    }

    /// A call on the command line. The arguments come when the program waits for them.
    pub(super) fn trace_call(&self, options: &[&str], tool: &str, arguments: &Value) -> Result<CallTrace, String> {
        let mut command = self.command(options, &["call", tool, "-"]);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(|error| error.to_string())?;
        let before = self.counts_when_quiet(child.id(), |function| function == "read_stdin");
        let sent = before.and_then(|before| send_arguments(&mut child, arguments).map(|()| before));
        let pid = child.id();
        let done = child.wait_with_output().map_err(|error| error.to_string())?;
        let (before, said) = (sent?, String::from_utf8_lossy(&done.stdout).into_owned());
        if !done.status.success() {
            return Err(format!("{tool}: {said}"));
        }
        Ok(CallTrace { before, after: self.counts(pid)? })
    }

    /// A call over MCP, in a session that has listed its tools.
    pub(super) fn trace_mcp_call(&self, tool: &str, arguments: &Value) -> Result<CallTrace, String> {
        let process = StdioProcess::start(&mut self.command(&[], &["mcp"])).map_err(|error| error.to_string())?;
        let client = json!({"name": "road", "version": "1"});
        let hello = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client});
        request(&process, 1, "initialize", &hello)?;
        process.send("{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n");
        request(&process, 2, "tools/list", &json!({}))?;
        let pid = process.child.id();
        let before = self.counts_when_quiet(pid, |_| true)?;
        request(&process, 3, "tools/call", &json!({"name": tool, "arguments": arguments}))?;
        let after = self.counts_when_quiet(pid, |_| true)?;
        Ok(CallTrace { before, after })
    }

    fn command(&self, options: &[&str], words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["--workspace"]).arg(self.root.join("ws")).args(options).args(words);
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("HOME", self.root.join("home")).env("RINGFENCE_STATE_DIR", self.root.join("state"));
        // The file is the memory of the counters, one for each process.
        command.env("LLVM_PROFILE_FILE", self.root.join("profiles/%p%c.profraw"));
        command.stderr(Stdio::null()).current_dir(self.root.join("ws"));
        command
    }

    fn counts(&self, pid: u32) -> Result<ProfileCounts, String> {
        let file = self.root.join(format!("profiles/{pid}.profraw"));
        read_counts(&fs::read(&file).map_err(|error| format!("{}: {error}", file.display()))?)
    }

    /// The counters once a function was entered and none of them moves any more.
    fn counts_when_quiet(&self, pid: u32, is_waited_for: impl Fn(&str) -> bool) -> Result<ProfileCounts, String> {
        let until = Instant::now() + REPLY_TIMEOUT;
        let mut last = ProfileCounts::new();
        while Instant::now() < until {
            std::thread::sleep(LOOK_INTERVAL);
            let Ok(counts) = self.counts(pid) else { continue };
            let is_there = |(name, count): (&String, &u64)| {
                *count > 0 && parse_symbol(name).is_some_and(|path| is_waited_for(&path.function))
            };
            if counts == last && counts.iter().any(is_there) {
                return Ok(counts);
            }
            last = counts;
        }
        Err("the program does not become ready".to_owned())
    }
}

impl Drop for RoadSite {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

fn send_arguments(child: &mut Child, arguments: &Value) -> Result<(), String> {
    let mut input = child.stdin.take().ok_or("no standard input")?;
    input.write_all(arguments.to_string().as_bytes()).map_err(|error| error.to_string())
}

fn request(process: &StdioProcess, id: u64, method: &str, parameters: &Value) -> Result<(), String> {
    let message = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": parameters});
    process.send(format!("{message}\n"));
    let until = Instant::now() + REPLY_TIMEOUT;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let line = process.receive(left).map_err(|error| format!("{method}: {error}"))?;
        let reply: Value = serde_json::from_str(&line).map_err(|error| error.to_string())?;
        if reply["id"] == id {
            let failed = reply["result"].is_null() || reply["result"]["isError"] == true;
            return if failed { Err(format!("{method}: {line}")) } else { Ok(()) };
        }
    }
}
