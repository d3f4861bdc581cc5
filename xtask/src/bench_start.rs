//! `cargo xtask bench start`: cost of a start with a long history of changes, beside a fresh workspace.
//!
//! The history is one real change of the release build, written to its journal as often as asked for, with other IDs. The
//! first start after that compacts the journal and is not counted. Then both workspaces are started in turn, each to its
//! first list of tools; the figure is the median of the CPU time of the process and its children.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;

use crate::bench_mcp::{BenchTree, PeerProcess, ringfence_peer, tool_call};
use crate::process_cost::{CpuTimes, median};
use crate::{build_release, print_status, root};

const CHANGES: usize = 100_000;
const ROUNDS: usize = 41;

/// Most that a start with history may cost, as a multiple of a fresh one.
const MAX_RATIO: f64 = 1.25;

/// False if the bench could not be run. A missed target is a figure, not a failure.
pub(crate) fn run() -> bool {
    let Some(program) = build_release() else { return false };
    let dir = root().join("target/tmp/bench-start");
    let [fresh, old] = ["fresh", "old"].map(|name| BenchTree(dir.join(name)));
    for tree in [&fresh, &old] {
        if let Err(error) = fs::create_dir_all(tree.0.join("files")) {
            print_status(&format!("the directories for the bench cannot be made: {error}"));
            return false;
        }
    }
    let servers = [("fresh", &fresh), ("after 100,000 changes", &old)]
        .map(|(title, tree)| (title, ringfence_peer(title, &program, tree)));
    for (_, peer) in &servers {
        let Some(mut server) = PeerProcess::start(peer) else { return false };
        for content in ["one", "two"] {
            let call = tool_call("write_file", &format!(r#"{{"path":"f","content":"{content}"}}"#));
            if server.send(&call).and_then(|_| server.receive()).is_none() {
                return false;
            }
        }
    }
    if let Err(error) = repeat_last_change(&old.0.join("state/journal"), CHANGES) {
        print_status(&format!("the journal cannot be extended: {error}"));
        return false;
    }
    if PeerProcess::start(&servers[1].1).is_none() {
        return false;
    }
    let mut costs = [const { Vec::new() }; 2];
    for _ in 0..ROUNDS {
        for ((_, peer), costs) in servers.iter().zip(&mut costs) {
            let Some(server) = PeerProcess::start(peer) else { return false };
            let nanoseconds = CpuTimes::of(server.id()).since(&CpuTimes::default());
            costs.push(f64::from(u32::try_from(nanoseconds / 1000).unwrap_or(u32::MAX)) / 1000.0);
        }
    }
    let [fresh, old] = costs.map(median);
    print_status(&format!("start to the first list of tools, CPU, median of {ROUNDS} interleaved starts"));
    for ((title, _), cost) in servers.iter().zip([fresh, old]) {
        print_status(&format!("  {title:<24} {cost:.2} ms"));
    }
    let (ratio, met) = (old / fresh, if old / fresh <= MAX_RATIO { "met" } else { "missed" });
    print_status(&format!("  ratio {ratio:.2}, target {MAX_RATIO}: {met}"));
    true
}

/// Appends the last change of the only journal again, as changes of their own.
fn repeat_last_change(journals: &Path, count: usize) -> io::Result<()> {
    let missing = || io::Error::from(io::ErrorKind::NotFound);
    let journal = fs::read_dir(journals)?.next().ok_or_else(missing)??.path().join("log");
    let text = fs::read_to_string(&journal)?;
    let last = text.lines().rfind(|line| line.contains(r#""record":"intent""#)).ok_or_else(missing)?;
    let id = last.split('"').find(|word| word.starts_with("c-") && word.len() == 22).ok_or_else(missing)?;
    let mut lines = io::BufWriter::new(OpenOptions::new().append(true).open(&journal)?);
    for number in 0..count {
        let other = format!("c-{number:020x}");
        writeln!(lines, "{}", last.replace(id, &other))?;
        writeln!(lines, r#"{{"record":"done","change":"{other}"}}"#)?;
    }
    lines.flush()
}
