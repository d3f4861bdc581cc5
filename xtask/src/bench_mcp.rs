//! `cargo xtask bench mcp`: our server and two others with the same client, in one interleaved run.
//!
//! The others are fetched into `target/tmp/bench-mcp` on the first run: the Node one by `npm`, the Rust one by `cargo
//! install`. A failed download is reported, and the run goes on without it. One call is in flight at a time; a line
//! shows the calls per second of the best and of the median round, the median and the 99th percentile of all calls, and the
//! CPU time per call of the median round, which other programs on the machine move least.
//!
//! Read operations run on the disk, where workspaces are. Writes and edits are made in memory, where syncing costs
//! nothing, so that like is compared with like, and then on the disk, where ours has contents, names and journal on it
//! before it replies; the others sync nothing, and what they left is synced between rounds. Last come the tables of
//! `docs/benchmarks.md`, with our rate and our CPU time as multiples of the others', and the targets.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::process_cost::{CpuTimes, median};
use crate::{build_release, print_status, root};

const ROUNDS: usize = 9;
const ROUND_TIME: Duration = Duration::from_millis(300);
const STARTS: usize = 11;
const FILES: usize = 20_000;

const READ: &str = "read 4 KiB";
const LIST: &str = "list 500";
const LIST_DETAILS: &str = "list 500 with sizes";

/// The operations that alternate between two texts: a write of what is there already may cost less.
const WRITE: &str = "write 4 KiB";
const EDIT: &str = "edit 64 KiB";

/// Which form of results has sizes.
const DETAILED: &str = "; ours structured";

/// Where changes are made that the others do not sync.
const DURABLE: &str = ", on the disk; ours durable";

/// Most CPU time per call, as a multiple of another server's.
const CPU_TARGETS: [(&str, &str, &str, f64); 5] = [
    (READ, "", RUST, 0.4),
    (LIST, "", NODE, 0.9),
    (LIST_DETAILS, DETAILED, NODE, 0.9),
    (WRITE, DURABLE, RUST, 2.0),
    (EDIT, DURABLE, RUST, 1.0),
];

/// Most time from the start to the first list of tools, as a multiple of the other Rust server's.
const MAX_START_RATIO: f64 = 1.2;

/// Most idle memory, in megabytes.
const MAX_IDLE_MEGABYTES: f64 = 10.0;

/// Directory in memory, if there is one.
const TMPFS_DIR: &str = "/dev/shm";

const NODE_PEER: &str = "@modelcontextprotocol/server-filesystem@2026.8.31";
const RUST_PEER_VERSION: &str = "0.4.5";

/// Raises how many files a server may have open, as far as it can be, before it is started: one of them needs a descriptor
/// for each file that it searches.
const RAISE_NOFILE_SCRIPT: &str = r#"ulimit -n 65536 2>/dev/null || ulimit -n "$(ulimit -H -n)"; exec "$0" "$@""#;

/// One server under test.
pub(crate) struct PeerServer {
    pub(crate) title: &'static str,
    command: Vec<PathBuf>,
    environment: Vec<(&'static str, PathBuf)>,
    calls: fn(&Path) -> Vec<(&'static str, String)>,
}

impl PeerServer {
    /// The same with an option before the directory.
    fn with_option(mut self, option: &str) -> Self {
        self.command.insert(2, PathBuf::from(option));
        self
    }
}

/// A directory that goes when the run is over.
pub(crate) struct BenchTree(pub(crate) PathBuf);

impl Drop for BenchTree {
    fn drop(&mut self) {
        // A directory that cannot be removed does no harm.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// False if the bench could not be run.
pub(crate) fn run() -> bool {
    let Some(ringfence) = build_release() else { return false };
    let dir = root().join("target/tmp/bench-mcp");
    let memory = Some(Path::new(TMPFS_DIR)).filter(|memory| memory.is_dir()).unwrap_or(&dir);
    let memory = BenchTree(memory.join(format!("ringfence-bench-{}", std::process::id())));
    let disk = BenchTree(dir.join("tree"));
    let made = make_tree(&memory.0.join("files"), 0).and_then(|()| make_tree(&disk.0.join("files"), FILES));
    let (Ok(()), Some(programs)) = (made, programs(&dir, ringfence)) else {
        print_status("the trees for the bench cannot be made");
        return false;
    };
    let peers =
        |tree: &BenchTree| programs.iter().map(|(title, program)| peer(title, program, tree)).collect::<Vec<_>>();
    let mut table = BenchTable { start: start_times(&peers(&disk)), ..BenchTable::default() };
    let changes = [WRITE, EDIT];
    let looked = compare(&peers(&disk), &[READ, LIST, "search 20,000 files"], "", &mut table);
    // Sizes and times are for programs: ours has them in structured results only.
    let structured = |peer: PeerServer| if peer.title == OURS { peer.with_option("--structured") } else { peer };
    let detailed: Vec<PeerServer> = peers(&disk).into_iter().map(structured).collect();
    let detailed = compare(&detailed, &[LIST_DETAILS], DETAILED, &mut table);
    print_status("\nin memory, without disk latency");
    let changed = compare(&peers(&memory), &changes, ", in memory", &mut table);
    print_status("\non the disk: ours syncs contents, names and journal before it replies, the others sync nothing");
    let durable = compare(&peers(&disk), &changes, DURABLE, &mut table);
    let titles: Vec<&str> = programs.iter().map(|(title, _)| *title).collect();
    table.lines(&titles).iter().for_each(|line| print_status(line));
    looked && detailed && changed && durable && programs.len() == 3
}

/// Rounds of each operation, the servers in turn, and what they took. False if a server could not be started.
fn compare(peers: &[PeerServer], operations: &[&str], dir: &str, table: &mut BenchTable) -> bool {
    let mut servers: Vec<PeerProcess> = peers.iter().filter_map(PeerProcess::start_with_raised_nofile).collect();
    let idle: Vec<u64> = servers.iter().map(|server| server.memory("VmRSS:")).collect();
    for operation in operations {
        print_status(&format!("\n{operation}"));
        for _ in 0..ROUNDS {
            servers.iter_mut().for_each(|server| server.round(operation));
        }
        let took = servers.iter_mut().map(PeerProcess::report).collect();
        table.rows.push((format!("{operation}{dir}"), took));
    }
    print_status("\nmemory, idle and peak");
    let memory: Vec<[f64; 2]> = servers
        .iter()
        .zip(idle)
        .map(|(server, idle)| [idle, server.memory("VmHWM:")].map(|kilobytes| kilobytes as f64 / 1e3))
        .collect();
    for (server, [idle, peak]) in servers.iter().zip(&memory) {
        print_status(&format!("  {:<24} {idle:>7.1} MB {peak:>7.1} MB", server.title));
    }
    // Servers that looked and did not change are those that a user has running all day.
    if dir.is_empty() {
        table.memory = memory;
    }
    servers.len() == peers.len()
}

/// The measurements, for the documentation: servers and rows are in the same order everywhere.
#[derive(Default)]
struct BenchTable {
    /// `None` for a server that cannot be started.
    start: Vec<Option<StartTiming>>,
    /// Idle and peak memory in megabytes.
    memory: Vec<[f64; 2]>,
    /// Operations, with the timing of each server.
    rows: Vec<(String, Vec<OperationTiming>)>,
}

/// The cost of starting a server, to its first list of tools.
#[derive(Clone, Copy)]
struct StartTiming {
    best: Duration,
    median: Duration,
    /// The median.
    cpu: Duration,
}

/// The timing of an operation's rounds.
enum OperationTiming {
    Time {
        best: f64,
        median: f64,
        p50: Duration,
        p99: Duration,
        /// Per call, of the median round.
        cpu: Duration,
    },
    /// The reason for which there is no time.
    Unavailable(&'static str),
}

impl BenchTable {
    /// The tables of `docs/benchmarks.md`: one number with its unit in a cell.
    fn lines(&self, titles: &[&str]) -> Vec<String> {
        let row = |cells: &[String]| -> String {
            let cells = cells.iter().map(|cell| if cell.is_empty() { " |".to_owned() } else { format!(" {cell} |") });
            std::iter::once("|".to_owned()).chain(cells).collect()
        };
        let mut lines = vec![
            String::new(),
            "| server | start to the first list of tools, best | median | CPU, median | memory, idle | memory, peak |"
                .to_owned(),
            "|---|---:|---:|---:|---:|---:|".to_owned(),
        ];
        for (index, title) in titles.iter().enumerate() {
            let start = match self.start.get(index).copied().flatten() {
                Some(StartTiming { best, median, cpu }) => [best, median, cpu].map(duration_cell),
                None => ["cannot be started".to_owned(), String::new(), String::new()],
            };
            let memory = self
                .memory
                .get(index)
                .map_or([String::new(), String::new()], |memory| memory.map(|megabytes| format!("{megabytes:.1} MB")));
            lines.push(row(&[&[(*title).to_owned()][..], &start, &memory].concat()));
        }
        lines.extend([
            String::new(),
            "| operation | server | best round | median round | median call | 99th percentile | CPU per call |"
                .to_owned(),
            "|---|---|---:|---:|---:|---:|---:|".to_owned(),
        ]);
        for (operation, timings) in &self.rows {
            let named = titles.iter().zip(timings);
            lines.extend(named.map(|(title, timing)| {
                row(&[&[operation.clone(), (*title).to_owned()][..], &timing.cells()].concat())
            }));
        }
        lines.extend([
            String::new(),
            format!("| {OURS} compared with | operation | best, × | median, × | CPU per call, × |"),
            "|---|---|---:|---:|---:|".to_owned(),
        ]);
        for (index, title) in titles.iter().enumerate().skip(1) {
            for (operation, timings) in &self.rows {
                let Some((ours, theirs)) = timings.first().zip(timings.get(index)) else { continue };
                lines.push(row(&[&[(*title).to_owned(), operation.clone()][..], &ours.ratios(theirs)].concat()));
            }
        }
        lines.extend([
            String::new(),
            "| target | compared with | measured | at most | |".to_owned(),
            "|---|---|---:|---:|---|".to_owned(),
        ]);
        lines.extend(self.targets(titles).into_iter().map(|(target, other, measured, most)| {
            let met = if measured <= most { "met" } else { "missed" };
            row(&[target, other.to_owned(), format!("{measured:.2}"), format!("{most:.1}"), met.to_owned()])
        }));
        lines
    }

    /// The targets that could be measured: with what they are compared, what was measured, and the most that it may be.
    fn targets(&self, titles: &[&str]) -> Vec<(String, &'static str, f64, f64)> {
        let index = |title: &str| titles.iter().position(|known| *known == title);
        let cpu_ratio = |operation: &str, other: &str| {
            let (_, timings) = self.rows.iter().find(|(name, _)| name == operation)?;
            timings.first()?.cpu_ratio(timings.get(index(other)?)?)
        };
        let by_cpu = CPU_TARGETS.into_iter().filter_map(|(operation, place, other, most)| {
            let operation = format!("{operation}{place}");
            Some((format!("{operation}, CPU, ×"), other, cpu_ratio(&operation, other)?, most))
        });
        let start = |title: &str| self.start.get(index(title)?).copied().flatten();
        let starts = start(OURS).zip(start(RUST)).map(|(ours, theirs)| {
            let ratio = ours.median.as_secs_f64() / theirs.median.as_secs_f64();
            ("start, median, ×".to_owned(), RUST, ratio, MAX_START_RATIO)
        });
        let memory =
            self.memory.first().map(|[idle, _]| ("memory, idle, MB".to_owned(), "", *idle, MAX_IDLE_MEGABYTES));
        by_cpu.chain(starts).chain(memory).collect()
    }
}

impl OperationTiming {
    /// Calls per second of the best and of the median round, the median and the 99th percentile of all calls, CPU per call.
    fn cells(&self) -> [String; 5] {
        match self {
            Self::Unavailable(why) => [why, "", "", "", ""].map(str::to_owned),
            Self::Time { best, median, p50, p99, cpu } => {
                let digits = usize::from(*best < 100.0);
                let rate = |rate: &f64| format!("{rate:.digits$}/s");
                [rate(best), rate(median), duration_cell(*p50), duration_cell(*p99), duration_cell(*cpu)]
            }
        }
    }

    /// Ours as a multiple of theirs: the rate of the best and of the median round, and the CPU time per call.
    fn ratios(&self, theirs: &Self) -> [String; 3] {
        match (self, theirs) {
            (Self::Time { best, median, .. }, Self::Time { best: their_best, median: their_median, .. }) => {
                let cpu = self.cpu_ratio(theirs).unwrap_or(f64::NAN);
                [best / their_best, median / their_median, cpu].map(|ratio| format!("{ratio:.2}"))
            }
            (_, Self::Unavailable(why)) | (Self::Unavailable(why), _) => [why, "", ""].map(str::to_owned),
        }
    }

    fn cpu_ratio(&self, theirs: &Self) -> Option<f64> {
        match (self, theirs) {
            (Self::Time { cpu, .. }, Self::Time { cpu: their_cpu, .. }) => {
                Some(cpu.as_secs_f64() / their_cpu.as_secs_f64())
            }
            _ => None,
        }
    }
}

/// A time with one decimal and its unit, such as `8.4 ms`.
fn duration_cell(duration: Duration) -> String {
    let text = format!("{duration:.1?}");
    let unit = text.find(|c: char| c.is_alphabetic()).unwrap_or(text.len());
    format!("{} {}", &text[..unit], &text[unit..])
}

const OURS: &str = "ringfence";
const NODE: &str = "server-filesystem (Node)";
pub(crate) const RUST: &str = "rust-mcp-filesystem";

/// The programs that could be had.
fn programs(dir: &Path, ringfence: PathBuf) -> Option<Vec<(&'static str, PathBuf)>> {
    fs::create_dir_all(dir).ok()?;
    let mut programs = vec![(OURS, ringfence)];
    for (title, program) in fetch_peers(dir) {
        match program {
            Some(program) => programs.push((title, program)),
            None => print_status(&format!("without {title}: it cannot be fetched")),
        }
    }
    Some(programs)
}

/// The servers of others, fetched if they are not there yet; nothing for one that cannot be had.
pub(crate) fn fetch_peers(dir: &Path) -> [(&'static str, Option<PathBuf>); 2] {
    let node = dir.join("node_modules/.bin/mcp-server-filesystem");
    if !node.exists() {
        // Whether it is there is what counts.
        let _ = Command::new("npm").args(["install", "--silent", "--prefix"]).arg(dir).arg(NODE_PEER).status();
    }
    let rust = dir.join("bin").join(RUST);
    if !rust.exists() {
        let version = ["--version", RUST_PEER_VERSION, "--locked", "--quiet", "--root"];
        let dir = dir.display().to_string();
        crate::run_cargo(&[&["install", RUST][..], &version, &[dir.as_str()]].concat(), &[]);
    }
    [(NODE, node), (RUST, rust)].map(|(title, program)| (title, program.exists().then_some(program)))
}

fn peer(title: &'static str, program: &Path, tree: &BenchTree) -> PeerServer {
    if title == OURS {
        return ringfence_peer(title, program, tree);
    }
    let (options, calls): (_, fn(&Path) -> _) = match title {
        RUST => (vec![PathBuf::from("--allow-write")], rust_calls),
        _ => (Vec::new(), node_calls),
    };
    let command = [vec![program.to_owned()], options, vec![tree.0.join("files")]].concat();
    PeerServer { title, command, environment: Vec::new(), calls }
}

/// A version of our server, with a state directory of its own beside the files.
pub(crate) fn ringfence_peer(title: &'static str, program: &Path, tree: &BenchTree) -> PeerServer {
    let environment = vec![("RINGFENCE_STATE_DIR", tree.0.join("state")), ("HOME", tree.0.clone())];
    let options = ["mcp", "--preset", "edits", "--workspace"].map(PathBuf::from).to_vec();
    let command = [vec![program.to_owned()], options, vec![tree.0.join("files")]].concat();
    PeerServer { title, command, environment, calls: our_calls }
}

fn our_calls(_: &Path) -> Vec<(&'static str, String)> {
    let text = format!("MARK-A{}", "x".repeat(4090));
    vec![
        (READ, tool_call("read_file", r#"{"path":"small"}"#)),
        (WRITE, tool_call("write_file", &format!(r#"{{"path":"written","content":"{text}"}}"#))),
        (LIST, tool_call("list_directory", r#"{"path":"many"}"#)),
        (LIST_DETAILS, tool_call("list_directory", r#"{"path":"many"}"#)),
        (EDIT, tool_call("edit_file", r#"{"path":"edited","oldText":"MARK-A","newText":"MARK-B"}"#)),
        ("search 20,000 files", tool_call("search_files", r#"{"path":"files","pattern":"needle in it"}"#)),
    ]
}

fn node_calls(tree: &Path) -> Vec<(&'static str, String)> {
    let (tree, text) = (tree.display(), format!("MARK-A{}", "x".repeat(4090)));
    let edits = r#"[{"oldText":"MARK-A","newText":"MARK-B"}]"#;
    vec![
        (READ, tool_call("read_text_file", &format!(r#"{{"path":"{tree}/small"}}"#))),
        (WRITE, tool_call("write_file", &format!(r#"{{"path":"{tree}/written","content":"{text}"}}"#))),
        (LIST, tool_call("list_directory", &format!(r#"{{"path":"{tree}/many"}}"#))),
        (LIST_DETAILS, tool_call("list_directory_with_sizes", &format!(r#"{{"path":"{tree}/many"}}"#))),
        (EDIT, tool_call("edit_file", &format!(r#"{{"path":"{tree}/edited","edits":{edits}}}"#))),
    ]
}

fn rust_calls(tree: &Path) -> Vec<(&'static str, String)> {
    let mut calls = node_calls(tree);
    let tree = tree.display();
    let search = format!(r#"{{"path":"{tree}/files","pattern":"**/*","query":"needle in it"}}"#);
    calls.push(("search 20,000 files", tool_call("search_files_content", &search)));
    calls
}

pub(crate) fn tool_call(tool: &str, arguments: &str) -> String {
    format!(r#""method":"tools/call","params":{{"name":"{tool}","arguments":{arguments}}}"#)
}

/// A server that shook hands.
pub(crate) struct PeerProcess {
    title: &'static str,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    calls: Vec<(&'static str, String)>,
    last_id: u64,
    /// The file that is edited, and whether its mark is the second one.
    edited_file: PathBuf,
    is_second: bool,
    latencies: Vec<Duration>,
    /// Calls per second of each round.
    rates: Vec<f64>,
    /// CPU nanoseconds per call of each round.
    cpu_per_call: Vec<f64>,
    has_failed: bool,
}

impl PeerProcess {
    pub(crate) fn start(peer: &PeerServer) -> Option<Self> {
        let (program, arguments) = peer.command.split_first()?;
        let mut command = Command::new(program);
        command.args(arguments);
        Self::initialize(peer, command)
    }

    fn start_with_raised_nofile(peer: &PeerServer) -> Option<Self> {
        let mut command = Command::new("sh");
        command.args(["-c", RAISE_NOFILE_SCRIPT]).args(&peer.command);
        let started = Self::initialize(peer, command);
        if started.is_none() {
            print_status(&format!("{} cannot be started", peer.title));
        }
        started
    }

    fn initialize(peer: &PeerServer, mut command: Command) -> Option<Self> {
        command.envs(peer.environment.iter().cloned());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
        let (input, output) = (child.stdin.take()?, BufReader::new(child.stdout.take()?));
        let tree = peer.command.last()?;
        let mut server = Self {
            title: peer.title,
            child,
            input,
            output,
            calls: (peer.calls)(tree),
            last_id: 0,
            edited_file: tree.join("edited"),
            is_second: false,
            latencies: Vec::new(),
            rates: Vec::new(),
            cpu_per_call: Vec::new(),
            has_failed: false,
        };
        let hello = r#""method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}"#;
        server.request(hello)?;
        writeln!(server.input, r#"{{"jsonrpc":"2.0","method":"notifications/initialized"}}"#).ok()?;
        server.request(r#""method":"tools/list","params":{}"#)?;
        Some(server)
    }

    /// Sends a request. Its id.
    pub(crate) fn send(&mut self, request: &str) -> Option<u64> {
        self.last_id += 1;
        let line = format!("{{\"jsonrpc\":\"2.0\",\"id\":{},{request}}}\n", self.last_id);
        self.input.write_all(line.as_bytes()).ok()?;
        Some(self.last_id)
    }

    /// Waits for the answer to any request. Its id, or nothing if that is an error.
    pub(crate) fn receive(&mut self) -> Option<u64> {
        let message = self.receive_message()?;
        let succeeded =
            message.pointer("/result").is_some() && message.pointer("/result/isError") != Some(&Value::Bool(true));
        succeeded.then(|| message.get("id")?.as_u64()).flatten()
    }

    /// Waits for the answer to any request.
    pub(crate) fn receive_message(&mut self) -> Option<Value> {
        loop {
            let mut line = String::new();
            if self.output.read_line(&mut line).ok()? == 0 {
                return None;
            }
            let message: Value = serde_json::from_str(&line).ok()?;
            if message.get("result").is_some() || message.get("error").is_some() {
                return Some(message);
            }
        }
    }

    /// Sends a request and waits for its answer. Nothing if that is an error.
    fn request(&mut self, request: &str) -> Option<()> {
        let id = format!("\"id\":{}", self.send(request)?);
        loop {
            let mut line = String::new();
            if self.output.read_line(&mut line).ok()? == 0 {
                return None;
            }
            let is_ours = line.contains(&format!("{id},")) || line.contains(&format!("{id}}}"));
            // A tool may have an argument called `method`, so only answers tell answers from requests.
            if is_ours && (line.contains("\"result\":") || line.contains("\"error\":")) {
                let failed = line.contains("\"isError\":true") || line.contains("\"error\":{\"code\":-");
                return (!failed).then_some(());
            }
        }
    }

    fn round(&mut self, operation: &str) {
        let has_tool = self.calls.iter().any(|(name, _)| *name == operation);
        if !has_tool || self.has_failed {
            return;
        }
        self.reset_edited(operation);
        // A server that syncs would otherwise write out what the others left in the file system's journal.
        let _ = Command::new("sync").status();
        let cpu = CpuTimes::of(self.id());
        let (started, mut count) = (Instant::now(), 0_u32);
        while started.elapsed() < ROUND_TIME {
            let asked = Instant::now();
            if self.call(operation).is_none() {
                self.has_failed = true;
                return;
            }
            self.latencies.push(asked.elapsed());
            count += 1;
        }
        self.rates.push(f64::from(count) / started.elapsed().as_secs_f64());
        self.cpu_per_call.push(CpuTimes::of(self.id()).since(&cpu) as f64 / f64::from(count));
    }

    /// Restores the file that is edited.
    pub(crate) fn reset_edited(&mut self, operation: &str) {
        if operation == EDIT && write_edited(&self.edited_file).is_ok() {
            self.is_second = false;
        }
    }

    /// One call of an operation. Nothing if the server has no such tool, or the call failed.
    pub(crate) fn call(&mut self, operation: &str) -> Option<()> {
        let request = self.calls.iter().find(|(name, _)| *name == operation).map(|(_, call)| call.clone())?;
        let request = match matches!(operation, EDIT | WRITE) && self.is_second {
            true => request.replace("MARK-A", "MARK-C").replace("MARK-B", "MARK-A").replace("MARK-C", "MARK-B"),
            false => request,
        };
        self.request(&request)?;
        self.is_second = !self.is_second;
        Some(())
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    fn report(&mut self) -> OperationTiming {
        self.latencies.sort();
        self.rates.sort_by(f64::total_cmp);
        let at =
            |part: f64| self.latencies.get((self.latencies.len() as f64 * part) as usize).copied().unwrap_or_default();
        let took = match (self.rates.last(), self.rates.get(self.rates.len() / 2)) {
            (Some(best), Some(middle)) => OperationTiming::Time {
                best: *best,
                median: *middle,
                p50: at(0.5),
                p99: at(0.99),
                cpu: Duration::from_nanos(median(std::mem::take(&mut self.cpu_per_call)) as u64),
            },
            _ if self.has_failed => OperationTiming::Unavailable("fails"),
            _ => OperationTiming::Unavailable("has no such tool"),
        };
        print_status(&format!("  {:<24} {}", self.title, took.cells().join("  ").trim_end()));
        (self.latencies, self.rates, self.cpu_per_call, self.has_failed) = (Vec::new(), Vec::new(), Vec::new(), false);
        took
    }

    /// A line of the process's state, in kilobytes.
    fn memory(&self, line: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let found = status.lines().find_map(|text| text.strip_prefix(line));
        found.and_then(|rest| rest.split_whitespace().next()).and_then(|number| number.parse().ok()).unwrap_or(0)
    }
}

impl Drop for PeerProcess {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Time and CPU time from the start to the first list of tools.
fn start_times(peers: &[PeerServer]) -> Vec<Option<StartTiming>> {
    print_status("start to the first list of tools, best and median; CPU, median");
    let mut taken: Vec<Vec<[Duration; 2]>> = peers.iter().map(|_| Vec::new()).collect();
    for _ in 0..STARTS {
        for (peer, taken) in peers.iter().zip(&mut taken) {
            let started = Instant::now();
            // Ending it is not timed.
            taken.extend(PeerProcess::start(peer).map(|server| {
                let elapsed = started.elapsed();
                [elapsed, Duration::from_nanos(CpuTimes::of(server.id()).since(&CpuTimes::default()))]
            }));
        }
    }
    let times = peers.iter().zip(taken).map(|(peer, taken)| {
        let sorted = |which: usize| {
            let mut times: Vec<Duration> = taken.iter().map(|both| both[which]).collect();
            times.sort();
            times
        };
        let (times, cpu) = (sorted(0), sorted(1));
        let middle = |times: &[Duration]| times.get(times.len() / 2).copied();
        let timing = times.first().zip(middle(&times)).zip(middle(&cpu));
        let timing = timing.map(|((best, median), cpu)| StartTiming { best: *best, median, cpu });
        let text = timing.map_or("cannot be started".to_owned(), |StartTiming { best, median, cpu }| {
            [best, median, cpu].map(duration_cell).join("  ")
        });
        print_status(&format!("  {:<24} {text}", peer.title));
        timing
    });
    times.collect()
}

pub(crate) fn make_tree(tree: &Path, files: usize) -> std::io::Result<()> {
    fs::create_dir_all(tree.join("many"))?;
    fs::write(tree.join("small"), "y".repeat(4096))?;
    fs::write(tree.join("written"), "")?;
    write_edited(&tree.join("edited"))?;
    (0..500).try_for_each(|number| fs::write(tree.join(format!("many/file-{number}")), "z"))?;
    let text = "lorem ipsum dolor sit amet\n".repeat(40);
    for number in 0..files {
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{BenchTable, OperationTiming, RUST, StartTiming};

    #[test]
    fn a_cell_has_one_number_with_its_unit() {
        let time = |best: f64, micros: u64| OperationTiming::Time {
            best,
            median: best / 2.0,
            p50: Duration::from_micros(micros),
            p99: Duration::from_micros(10 * micros),
            cpu: Duration::from_micros(micros / 2),
        };
        let start = StartTiming {
            best: Duration::from_micros(6012),
            median: Duration::from_micros(8400),
            cpu: Duration::from_micros(5100),
        };
        let table = BenchTable {
            start: vec![Some(start), None],
            memory: vec![[17.84, 24.1], [0.0, 0.0]],
            rows: vec![
                ("read 4 KiB".to_owned(), vec![time(2896.0, 376), time(1252.0, 908)]),
                ("search".to_owned(), vec![time(6.44, 180_700), OperationTiming::Unavailable("has no such tool")]),
            ],
        };
        let wanted = "
| server | start to the first list of tools, best | median | CPU, median | memory, idle | memory, peak |
|---|---:|---:|---:|---:|---:|
| ringfence | 6.0 ms | 8.4 ms | 5.1 ms | 17.8 MB | 24.1 MB |
| rust-mcp-filesystem | cannot be started | | | 0.0 MB | 0.0 MB |

| operation | server | best round | median round | median call | 99th percentile | CPU per call |
|---|---|---:|---:|---:|---:|---:|
| read 4 KiB | ringfence | 2896/s | 1448/s | 376.0 µs | 3.8 ms | 188.0 µs |
| read 4 KiB | rust-mcp-filesystem | 1252/s | 626/s | 908.0 µs | 9.1 ms | 454.0 µs |
| search | ringfence | 6.4/s | 3.2/s | 180.7 ms | 1.8 s | 90.4 ms |
| search | rust-mcp-filesystem | has no such tool | | | | |

| ringfence compared with | operation | best, × | median, × | CPU per call, × |
|---|---|---:|---:|---:|
| rust-mcp-filesystem | read 4 KiB | 2.31 | 2.31 | 0.41 |
| rust-mcp-filesystem | search | has no such tool | | |

| target | compared with | measured | at most | |
|---|---|---:|---:|---|
| read 4 KiB, CPU, × | rust-mcp-filesystem | 0.41 | 0.4 | missed |
| memory, idle, MB | | 17.84 | 10.0 | missed |";
        assert_eq!(table.lines(&["ringfence", RUST]).join("\n"), wanted);
    }
}
