//! `cargo xtask bench mcp`: our server and two others with the same client, in one interleaved run.
//!
//! The others are fetched into `target/tmp/bench-mcp` on the first run: the Node one by `npm`, the Rust one by `cargo
//! install`. Which of them could not be had is said, and the run goes on without it. One call is in flight at a time; a line
//! shows the best round and the median and the 99th percentile of all calls. Ours is shown twice: with contents and names on
//! disk before each reply, which is how it comes, and with contents alone. The others sync nothing.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use crate::{root, say};

const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_millis(400);
const STARTS: usize = 9;
const FILES: usize = 20_000;

const NODE_PEER: &str = "@modelcontextprotocol/server-filesystem@2026.8.31";
const RUST_PEER: &str = "rust-mcp-filesystem";
const RUST_PEER_VERSION: &str = "0.4.5";

/// One server under test.
struct Peer {
    title: &'static str,
    command: Vec<PathBuf>,
    environment: Vec<(&'static str, PathBuf)>,
    calls: fn(&Path) -> Vec<(&'static str, String)>,
}

/// False if the bench could not be run.
pub(crate) fn run() -> bool {
    if !crate::run(&["build", "--release", "--quiet", "--package", "ringfence"], &[]) {
        return false;
    }
    let place = root().join("target/tmp/bench-mcp");
    let tree = place.join("tree");
    let Ok(()) = make_tree(&tree) else {
        say("the tree for the bench cannot be made");
        return false;
    };
    let peers = peers(&place, &tree);
    start_times(&peers, &tree);
    let mut servers: Vec<Server> = peers.iter().filter_map(|peer| Server::start(peer, &tree)).collect();
    let idle: Vec<u64> = servers.iter().map(|server| server.memory("VmRSS:")).collect();
    for operation in ["read 4 KiB", "write 4 KiB", "list 500", "edit 64 KiB", "search 20,000 files"] {
        say(&format!("\n{operation}"));
        for _ in 0..ROUNDS {
            servers.iter_mut().for_each(|server| server.round(operation));
        }
        for server in &mut servers {
            server.report();
        }
    }
    say("\nmemory, idle and at most");
    for (server, idle) in servers.iter().zip(idle) {
        let most = server.memory("VmHWM:");
        say(&format!("  {:<24} {:>7.1} MB {:>7.1} MB", server.title, idle as f64 / 1e3, most as f64 / 1e3));
    }
    servers.len() == peers.len()
}

fn peers(place: &Path, tree: &Path) -> Vec<Peer> {
    let ours = |title, durability: &str| {
        let config = place.join(format!("{durability}.toml"));
        let text = format!("durability = \"{durability}\"\n");
        let written = fs::write(&config, text);
        if written.is_err() {
            say("the config for our server cannot be written");
        }
        let program = root().join("target/release/ringfence");
        let words = ["mcp", "--preset", "edits", "--workspace"].map(PathBuf::from);
        let mut command = vec![program];
        command.extend(words);
        command.extend([tree.to_owned(), "--config".into(), config]);
        let environment =
            vec![("RINGFENCE_STATE_DIR", place.join(format!("state-{durability}"))), ("HOME", place.to_owned())];
        Peer { title, command, environment, calls: our_calls }
    };
    let mut peers = vec![ours("ringfence, durable", "full"), ours("ringfence, ordered", "ordered")];
    let npm = Command::new("npm").args(["install", "--silent", "--prefix"]).arg(place).arg(NODE_PEER).status();
    match npm.is_ok_and(|status| status.success()) {
        true => peers.push(Peer {
            title: "server-filesystem (Node)",
            command: vec![place.join("node_modules/.bin/mcp-server-filesystem"), tree.to_owned()],
            environment: Vec::new(),
            calls: node_calls,
        }),
        false => say(&format!("without {NODE_PEER}: npm cannot fetch it")),
    }
    let program = place.join("bin").join(RUST_PEER);
    let version = ["--version", RUST_PEER_VERSION, "--locked", "--quiet", "--root"];
    if !program.exists() {
        let place = place.display().to_string();
        crate::run(&[&["install", RUST_PEER][..], &version, &[place.as_str()]].concat(), &[]);
    }
    match program.exists() {
        true => peers.push(Peer {
            title: "rust-mcp-filesystem",
            command: vec![program, "--allow-write".into(), tree.to_owned()],
            environment: Vec::new(),
            calls: rust_calls,
        }),
        false => say(&format!("without {RUST_PEER}: cargo cannot install it")),
    }
    peers
}

fn our_calls(_: &Path) -> Vec<(&'static str, String)> {
    let text = "x".repeat(4096);
    vec![
        ("read 4 KiB", call("read_file", r#"{"path":"small"}"#)),
        ("write 4 KiB", call("write_file", &format!(r#"{{"path":"written","content":"{text}"}}"#))),
        ("list 500", call("list_directory", r#"{"path":"many"}"#)),
        ("edit 64 KiB", call("edit_file", r#"{"path":"edited","oldText":"MARK-A","newText":"MARK-B"}"#)),
        ("search 20,000 files", call("search_files", r#"{"path":"files","pattern":"needle in it"}"#)),
    ]
}

fn node_calls(tree: &Path) -> Vec<(&'static str, String)> {
    let (tree, text) = (tree.display(), "x".repeat(4096));
    let edits = r#"[{"oldText":"MARK-A","newText":"MARK-B"}]"#;
    vec![
        ("read 4 KiB", call("read_text_file", &format!(r#"{{"path":"{tree}/small"}}"#))),
        ("write 4 KiB", call("write_file", &format!(r#"{{"path":"{tree}/written","content":"{text}"}}"#))),
        ("list 500", call("list_directory", &format!(r#"{{"path":"{tree}/many"}}"#))),
        ("edit 64 KiB", call("edit_file", &format!(r#"{{"path":"{tree}/edited","edits":{edits}}}"#))),
    ]
}

fn rust_calls(tree: &Path) -> Vec<(&'static str, String)> {
    let mut calls = node_calls(tree);
    let tree = tree.display();
    let search = format!(r#"{{"path":"{tree}/files","pattern":"**/*","query":"needle in it"}}"#);
    calls.push(("search 20,000 files", call("search_files_content", &search)));
    calls
}

fn call(tool: &str, arguments: &str) -> String {
    format!(r#""method":"tools/call","params":{{"name":"{tool}","arguments":{arguments}}}"#)
}

/// A server that shook hands.
struct Server {
    title: &'static str,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    calls: Vec<(&'static str, String)>,
    last_id: u64,
    /// The file that is edited, and whether its mark is the second one.
    edited: PathBuf,
    is_second: bool,
    taken: Vec<Duration>,
    best: f64,
}

impl Server {
    fn start(peer: &Peer, tree: &Path) -> Option<Self> {
        let (program, arguments) = peer.command.split_first()?;
        let mut command = Command::new(program);
        command.args(arguments).envs(peer.environment.iter().cloned());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
        let (input, output) = (child.stdin.take()?, BufReader::new(child.stdout.take()?));
        let calls = (peer.calls)(tree);
        let mut server = Self {
            title: peer.title,
            child,
            input,
            output,
            calls,
            last_id: 0,
            edited: tree.join("edited"),
            is_second: false,
            taken: Vec::new(),
            best: 0.0,
        };
        let hello = r#""method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}"#;
        server.ask(hello)?;
        writeln!(server.input, r#"{{"jsonrpc":"2.0","method":"notifications/initialized"}}"#).ok()?;
        server.ask(r#""method":"tools/list","params":{}"#)?;
        Some(server)
    }

    /// Sends a request and waits for its answer. Nothing if that is an error.
    fn ask(&mut self, request: &str) -> Option<()> {
        self.last_id += 1;
        let line = format!("{{\"jsonrpc\":\"2.0\",\"id\":{},{request}}}\n", self.last_id);
        self.input.write_all(line.as_bytes()).ok()?;
        let id = format!("\"id\":{}", self.last_id);
        loop {
            let mut line = String::new();
            if self.output.read_line(&mut line).ok()? == 0 {
                return None;
            }
            let is_ours = line.contains(&format!("{id},")) || line.contains(&format!("{id}}}"));
            if is_ours && !line.contains("\"method\":") {
                let failed = line.contains("\"isError\":true") || line.contains("\"error\":{\"code\":-");
                return (!failed).then_some(());
            }
        }
    }

    fn round(&mut self, operation: &str) {
        let Some(request) = self.calls.iter().find(|(name, _)| *name == operation).map(|(_, call)| call.clone()) else {
            return;
        };
        if operation == "edit 64 KiB" && write_edited(&self.edited).is_ok() {
            self.is_second = false;
        }
        let (started, mut count) = (Instant::now(), 0_u32);
        while started.elapsed() < ROUND {
            let asked = Instant::now();
            let request = match operation == "edit 64 KiB" && self.is_second {
                true => request.replace("MARK-A", "MARK-C").replace("MARK-B", "MARK-A").replace("MARK-C", "MARK-B"),
                false => request.clone(),
            };
            if self.ask(&request).is_none() {
                say(&format!("  {} fails: {operation}", self.title));
                return;
            }
            self.is_second = !self.is_second;
            self.taken.push(asked.elapsed());
            count += 1;
        }
        self.best = self.best.max(f64::from(count) / started.elapsed().as_secs_f64());
    }

    fn report(&mut self) {
        self.taken.sort();
        let at = |part: f64| self.taken.get((self.taken.len() as f64 * part) as usize).copied().unwrap_or_default();
        match self.taken.is_empty() {
            true => say(&format!("  {:<24} has no such tool", self.title)),
            false => say(&format!(
                "  {:<24} {:>9.1} calls/s   p50 {:>8.1?}   p99 {:>8.1?}",
                self.title,
                self.best,
                at(0.5),
                at(0.99)
            )),
        }
        (self.taken, self.best) = (Vec::new(), 0.0);
    }

    /// A line of the process's state, in kilobytes.
    fn memory(&self, line: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let found = status.lines().find_map(|text| text.strip_prefix(line));
        found.and_then(|rest| rest.split_whitespace().next()).and_then(|number| number.parse().ok()).unwrap_or(0)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn start_times(peers: &[Peer], tree: &Path) {
    say("start to the first list of tools");
    let mut taken: Vec<Vec<Duration>> = peers.iter().map(|_| Vec::new()).collect();
    for _ in 0..STARTS {
        for (peer, taken) in peers.iter().zip(&mut taken) {
            let started = Instant::now();
            if Server::start(peer, tree).is_some() {
                taken.push(started.elapsed());
            }
        }
    }
    for (peer, mut taken) in peers.iter().zip(taken) {
        taken.sort();
        let (best, median) = (taken.first().copied(), taken.get(taken.len() / 2).copied());
        say(&format!("  {:<24} best {best:>8.1?}   median {median:>8.1?}", peer.title)
            .replace("Some(", "")
            .replace(')', ""));
    }
}

fn make_tree(tree: &Path) -> std::io::Result<()> {
    fs::create_dir_all(tree.join("many"))?;
    fs::write(tree.join("small"), "y".repeat(4096))?;
    fs::write(tree.join("written"), "")?;
    write_edited(&tree.join("edited"))?;
    (0..500).try_for_each(|number| fs::write(tree.join(format!("many/file-{number}")), "z"))?;
    if tree.join("files").exists() {
        return Ok(());
    }
    let text = "lorem ipsum dolor sit amet\n".repeat(40);
    for number in 0..FILES {
        let directory = tree.join(format!("files/d{}", number / 100));
        fs::create_dir_all(&directory)?;
        let needle = if number % 1000 == 0 { "needle in it\n" } else { "" };
        fs::write(directory.join(format!("f{number}")), format!("{text}{needle}"))?;
    }
    Ok(())
}

fn write_edited(file: &Path) -> std::io::Result<()> {
    fs::write(file, format!("{}MARK-A\n{}", "some text\n".repeat(3000), "more text\n".repeat(3500)))
}
