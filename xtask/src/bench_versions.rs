//! `cargo xtask bench versions BINARY`: this version and another one beside it, in CPU time and system calls per call.
//!
//! Both answer the same MCP calls in turn, in trees of their own on the same disk. The ratio is that of the medians of all
//! rounds. System calls are counted with `strace` in a server of its own.
//!
//! Not here: what is counted as CPU time and as a system call (`process_cost.rs`).

use std::path::{Path, PathBuf};

use crate::bench_mcp::{BenchTree, PeerProcess, PeerServer, make_tree, ringfence_peer};
use crate::faults::strace::{StraceTamper, Tracer};
use crate::process_cost::{CpuTimes, SyscallCount, median};
use crate::{build_release, print_status, root};

const ROUNDS: usize = 20;

/// Calls that are made before anything is counted.
const WARM_UP_CALLS: usize = 20;

/// Calls that are made while `strace` counts.
const TRACED_CALLS: usize = 100;

/// Operations, with calls per round: enough for some tens of milliseconds.
const OPERATIONS: &[(&str, usize)] = &[("read 4 KiB", 400), ("list 500", 50), ("write 4 KiB", 50), ("edit 64 KiB", 50)];

/// Cost of one operation in the other version and in this one.
struct VersionCosts {
    operation: &'static str,
    cpu_microseconds: [f64; 2],
    syscalls: [Option<f64>; 2],
}

/// False if the bench could not be run.
pub(crate) fn run(other: &str) -> bool {
    let Some(program) = build_release() else { return false };
    let binaries = [("other version", PathBuf::from(other)), ("this version", program)];
    let place = root().join("target/tmp/bench-versions");
    let mut trees = Vec::new();
    let mut peers = Vec::new();
    for (title, binary) in &binaries {
        let tree = BenchTree(place.join(title.replace(' ', "-")));
        if make_tree(&tree.0.join("files"), 0).is_err() {
            print_status("the trees for the bench cannot be made");
            return false;
        }
        peers.push(ringfence_peer(title, binary, &tree));
        trees.push(tree);
    }
    let Some(costs) = compare(&peers, &place) else { return false };
    print_table(&costs);
    true
}

fn compare(peers: &[PeerServer], place: &Path) -> Option<Vec<VersionCosts>> {
    let mut servers = Vec::new();
    for peer in peers {
        let Some(server) = PeerProcess::start(peer) else {
            print_status(&format!("{}: the server cannot be started", peer.title));
            return None;
        };
        servers.push(server);
    }
    let mut costs = Vec::new();
    for &(operation, calls) in OPERATIONS {
        print_status(&format!("{operation}: {ROUNDS} rounds of {calls} calls"));
        let [other, this] = servers.as_mut_slice() else { return None };
        let mut rounds = [Vec::new(), Vec::new()];
        make_calls(other, operation, WARM_UP_CALLS)?;
        make_calls(this, operation, WARM_UP_CALLS)?;
        for _ in 0..ROUNDS {
            rounds[0].push(cpu_per_call(other, operation, calls)?);
            rounds[1].push(cpu_per_call(this, operation, calls)?);
        }
        let counts = peers.iter().map(|peer| syscalls_per_call(peer, operation, place)).collect::<Vec<_>>();
        let [Some(other_count), Some(this_count)] = [counts.first().copied(), counts.get(1).copied()] else {
            return None;
        };
        costs.push(VersionCosts {
            operation,
            cpu_microseconds: rounds.map(median),
            syscalls: [other_count, this_count],
        });
    }
    Some(costs)
}

fn make_calls(server: &mut PeerProcess, operation: &str, calls: usize) -> Option<()> {
    server.reset_edited(operation);
    for _ in 0..calls {
        if server.call(operation).is_none() {
            print_status(&format!("{operation} failed"));
            return None;
        }
    }
    Some(())
}

/// CPU microseconds per call of one round.
fn cpu_per_call(server: &mut PeerProcess, operation: &str, calls: usize) -> Option<f64> {
    let before = CpuTimes::of(server.id());
    make_calls(server, operation, calls)?;
    Some(CpuTimes::of(server.id()).since(&before) as f64 / 1e3 / calls as f64)
}

/// System calls per call, by a server of its own. Nothing where `strace` cannot follow it.
fn syscalls_per_call(peer: &PeerServer, operation: &str, place: &Path) -> Option<f64> {
    let mut server = PeerProcess::start(peer)?;
    make_calls(&mut server, operation, WARM_UP_CALLS)?;
    let log = place.join("strace.log");
    let tracer = Tracer::attach(server.id(), &log, StraceTamper::Watch).ok()?;
    make_calls(&mut server, operation, TRACED_CALLS)?;
    drop(server);
    let log = tracer.log().ok()?;
    Some(SyscallCount::in_log(&log).syscalls as f64 / TRACED_CALLS as f64)
}

fn print_table(costs: &[VersionCosts]) {
    print_status(
        "\n| operation | CPU, other version | CPU, this version | ratio | system calls, other | system calls, this |",
    );
    print_status("|---|---|---|---|---|---|");
    for VersionCosts { operation, cpu_microseconds: [other, this], syscalls } in costs {
        let [other_calls, this_calls] =
            syscalls.map(|count| count.map_or("not counted".to_owned(), |count| format!("{count:.1}")));
        print_status(&format!(
            "| {operation} | {other:.1} µs | {this:.1} µs | {:.3} | {other_calls} | {this_calls} |",
            this / other
        ));
    }
}
