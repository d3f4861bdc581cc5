//! The tool `search_code` on a tree of 200 MB: time of answers, changes, and planted secrets, over a real MCP session.
//!
//! Not here: the quality of answers (`mod.rs`).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::bench_search::fetched_sources;
use crate::root;
use crate::surface::SurfaceServer;

/// Bytes of sources in the tree.
const TREE_BYTES: u64 = 200 << 20;

/// Servers that are started with an empty state directory.
const FRESH_STARTS: usize = 5;

/// Times that each question is asked later.
const ROUNDS: usize = 10;

/// The longest that the index may take.
const INDEXING_TIMEOUT: Duration = Duration::from_secs(600);

const QUESTIONS: [&str; 6] = [
    "where is the retry delay doubled after a failed request",
    "parse a date with a time zone offset",
    "remove trailing white space from every line",
    "wait until all worker threads have finished",
    "verify the signature of a token",
    "split a path into its components",
];

/// A word that occurs nowhere else.
const CHANGED: &str = "zyzzogeton";
const PLANTED: &str = "quagswaghorn";

/// The line of a reply that says that files are not indexed.
const PENDING: &str = "not indexed yet";

/// Figures of the tool.
#[derive(Debug)]
pub(super) struct LiveFigures {
    tree_bytes: u64,
    tree_files: usize,
    first: Vec<Duration>,
    later: Vec<Duration>,
    indexing: Duration,
    pending: String,
    changed_is_found: bool,
    planted_is_found: bool,
}

impl LiveFigures {
    /// Rows of a table of two columns.
    pub(super) fn rows(&self) -> Vec<String> {
        let times = |times: &[Duration]| {
            let mut times = times.to_vec();
            times.sort();
            let at = |share: usize| times.get(times.len() * share / 100).or(times.last()).copied().unwrap_or_default();
            format!("{:.1} ms | {:.1} ms | {:.1} ms |", millis(at(0)), millis(at(50)), millis(at(95)))
        };
        let yes = |is: bool| if is { "yes" } else { "no" };
        vec![
            format!("| {} files, {} MB | best | median | 95 % |", self.tree_files, self.tree_bytes >> 20),
            "|---|---:|---:|---:|".to_owned(),
            format!("| first answer, without an index | {}", times(&self.first)),
            format!("| later answers, with the index | {}", times(&self.later)),
            format!("| time to the whole index | | {:.1} s | |", self.indexing.as_secs_f64()),
            String::new(),
            format!("- files left out of the index: {}", if self.pending.is_empty() { "none" } else { &self.pending }),
            format!("- a function that was added right before the question is found: {}", yes(self.changed_is_found)),
            format!("- a planted secret, a link to it or its name is found: {}", yes(self.planted_is_found)),
        ]
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// Measures the tool.
pub(super) fn measure_live(program: &Path) -> Result<LiveFigures, String> {
    let base = root().join("target/tmp/code-search");
    let tree = base.join("tree");
    let failed = |error: std::io::Error| format!("cannot make the tree: {error}");
    let (tree_bytes, tree_files) = make_tree(&tree)?;
    let mut first = Vec::new();
    let mut server = None;
    for start in 0..FRESH_STARTS {
        let state = base.join("state");
        // The one before, and its server, are gone.
        drop(server.take());
        let _ = fs::remove_dir_all(&state);
        let mut started = SearchSession::start(program, &tree, &state).ok_or("the server does not start")?;
        let asked = Instant::now();
        started.ask(QUESTIONS[start % QUESTIONS.len()])?;
        first.push(asked.elapsed());
        server = Some(started);
    }
    let mut server = server.ok_or("the server does not start")?;
    let (indexing, pending) = server.wait_for_index()?;
    let mut later = Vec::new();
    for question in QUESTIONS.iter().cycle().take(ROUNDS * QUESTIONS.len()) {
        let asked = Instant::now();
        server.ask(question)?;
        later.push(asked.elapsed());
    }
    fs::write(tree.join("changed.rs"), format!("pub fn {CHANGED}_of(value: u32) -> u32 {{\n    value\n}}\n"))
        .map_err(failed)?;
    let changed_is_found = server.ask(&format!("the {CHANGED} of a value"))?.contains("changed.rs:1");
    plant(&tree).map_err(failed)?;
    let mut planted_is_found = false;
    for question in [PLANTED.to_owned(), format!("{PLANTED}_key"), format!("the {PLANTED} key of the service")] {
        let reply = server.ask(&question)?;
        planted_is_found |= reply.replace(&question, "").contains(PLANTED);
    }
    Ok(LiveFigures { tree_bytes, tree_files, first, later, indexing, pending, changed_is_found, planted_is_found })
}

/// Secrets by name, by a symbolic link and by a hard link.
fn plant(tree: &Path) -> std::io::Result<()> {
    let secret = format!("def {PLANTED}_key():\n    return \"{PLANTED}-0123456789\"\n");
    for name in [".env", ".ssh/id_rsa.py", ".aws/credentials"] {
        let file = tree.join(name);
        fs::create_dir_all(file.parent().unwrap_or(tree))?;
        fs::write(file, &secret)?;
    }
    for (name, is_hard) in [("settings_link.py", false), ("settings_copy.py", true)] {
        let link = tree.join(name);
        if is_hard {
            fs::hard_link(tree.join(".env"), link)?;
        } else {
            std::os::unix::fs::symlink(".env", link)?;
        }
    }
    Ok(())
}

/// A session that is asked for code.
struct SearchSession(SurfaceServer);

impl SearchSession {
    fn start(program: &Path, tree: &Path, state: &Path) -> Option<Self> {
        let mut command = Command::new(program);
        command.args(["mcp", "--preset", "edits", "--dialect", "claude", "--toolset", "code", "--workspace"]).arg(tree);
        SurfaceServer::start_by({
            command.env("RINGFENCE_STATE_DIR", state);
            command
        })
        .map(Self)
    }

    /// The text of the reply.
    fn ask(&mut self, question: &str) -> Result<String, String> {
        let call = json!({"name": "search_code", "arguments": {"query": question}});
        let reply = self.0.request("tools/call", &call).ok_or("the server did not answer")?;
        let blocks = reply["content"].as_array().cloned().unwrap_or_default();
        let text = blocks.iter().filter_map(|block| block["text"].as_str()).collect::<Vec<_>>().join("\n");
        if reply["isError"] == true { Err(format!("search_code: {text}")) } else { Ok(text) }
    }

    /// Waits until no more files are indexed, and returns the time and what is said of files that are left.
    fn wait_for_index(&mut self) -> Result<(Duration, String), String> {
        let started = Instant::now();
        let mut before = String::new();
        let mut since = started;
        while started.elapsed() < INDEXING_TIMEOUT {
            let reply = self.ask(QUESTIONS[0])?;
            let pending = reply.lines().find(|line| line.contains(PENDING)).unwrap_or_default().to_owned();
            if pending.is_empty() {
                return Ok((started.elapsed(), pending));
            }
            if pending != before {
                (before, since) = (pending, Instant::now());
            } else if since.elapsed() > Duration::from_secs(30) {
                return Ok((since - started, before));
            }
            thread::sleep(Duration::from_millis(500));
        }
        Err(format!("the index is not complete after {} s", INDEXING_TIMEOUT.as_secs()))
    }
}

/// Copies sources of fetched crates until there are enough. Their number and bytes.
fn make_tree(tree: &Path) -> Result<(u64, usize), String> {
    // It may not be there.
    let _ = fs::remove_dir_all(tree);
    let sources = fetched_sources().ok_or("cargo has fetched no crates: run `cargo xtask train-search` first")?;
    let mut packages: Vec<PathBuf> =
        directories_in(&sources).iter().flat_map(|registry| directories_in(registry)).collect();
    packages.sort();
    let (mut bytes, mut files) = (0, 0);
    for package in packages {
        let name = package.file_name().unwrap_or_default().to_owned();
        let mut left = vec![package.join("src")];
        while let Some(directory) = left.pop() {
            for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
                let path = entry.path();
                let Ok(kind) = entry.file_type() else { continue };
                if kind.is_dir() {
                    left.push(path);
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    let target = tree.join(&name).join(path.strip_prefix(&package).unwrap_or(&path));
                    let copied =
                        fs::create_dir_all(target.parent().unwrap_or(tree)).and_then(|()| fs::copy(&path, &target));
                    bytes += copied.map_err(|error| format!("cannot copy sources: {error}"))?;
                    files += 1;
                }
            }
        }
        if bytes >= TREE_BYTES {
            return Ok((bytes, files));
        }
    }
    Err(format!("the crates that cargo has fetched have {} MB of sources only", bytes >> 20))
}

fn directories_in(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}
