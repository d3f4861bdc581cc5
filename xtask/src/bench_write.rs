//! `cargo xtask bench write`: durable writes of 4 KiB through the whole call, beside a bare atomic replacement.
//!
//! The call goes over MCP to the release build with its default durability: policy, audit records, journal, undo image and
//! reply. Bare is a temporary file, fsync, rename and fsync of the directory. Both run on the same file system, in
//! interleaved rounds, each with one writer and with eight at once: eight requests in flight on one connection against
//! eight threads, each writer with a file of its own. Contents differ from one write to the next.
//!
//! Flushes and system calls are counted with `strace` in all threads of a server of its own, after a warm-up.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

use crate::bench_mcp::{BenchTree, PeerProcess, PeerServer, ringfence_peer, tool_call};
use crate::faults::strace::{StraceTamper, Tracer};
use crate::process_cost::{CpuTimes, SyscallCount, median};
use crate::{build_release, print_status, root};

const ROUNDS: usize = 15;

/// Writes of each writer in a round.
const ROUND_WRITES: usize = 20;

const CONCURRENT_WRITERS: usize = 8;

/// Writes while `strace` counts, divided by the writers.
const TRACED_WRITES: usize = 160;

const CONTENT_BYTES: usize = 4096;

/// Most that one writer's call may take, as a multiple of the bare replacement.
const MAX_TIME_RATIO: f64 = 1.5;

/// Most flushes per write.
const MAX_FLUSHES: f64 = 3.0;

/// The measurements for a number of writers.
struct WriteMeasurement {
    writers: usize,
    /// Acknowledged writes per second, of each round.
    bare_rates: Vec<f64>,
    call_rates: Vec<f64>,
    /// CPU microseconds of the server per write, of each round.
    cpu: Vec<f64>,
    /// Per write; nothing where `strace` cannot follow a program.
    traced: Option<[f64; 2]>,
}

/// False if the bench could not be run. A missed target is a figure, not a failure.
pub(crate) fn run() -> bool {
    let Some(program) = build_release() else { return false };
    let dir = root().join("target/tmp/bench-write");
    let (calls, bare) = (BenchTree(dir.join("calls")), BenchTree(dir.join("bare")));
    let made = [&calls.0.join("files"), &bare.0].into_iter().try_for_each(fs::create_dir_all);
    if let Err(error) = made {
        print_status(&format!("the directories for the bench cannot be made: {error}"));
        return false;
    }
    let file_system = file_system_of(&dir);
    if matches!(file_system.as_str(), "tmpfs" | "ramfs") {
        print_status(&format!("{} is in memory ({file_system}), where a flush costs nothing", dir.display()));
        return false;
    }
    let peer = ringfence_peer("ringfence", &program, &calls);
    let measured: Option<Vec<WriteMeasurement>> =
        [1, CONCURRENT_WRITERS].into_iter().map(|writers| measure(&peer, &bare.0, writers, &dir)).collect();
    let Some(measured) = measured else {
        print_status("a write failed");
        return false;
    };
    print_status(&format!("{CONTENT_BYTES} bytes a write, on {file_system}, {ROUNDS} interleaved rounds"));
    table(&measured).iter().for_each(|line| print_status(line));
    true
}

/// Nothing if a write failed.
fn measure(peer: &PeerServer, bare: &Path, writers: usize, dir: &Path) -> Option<WriteMeasurement> {
    print_status(&format!("{writers} at once: {ROUNDS} rounds of {ROUND_WRITES} writes each"));
    let mut client = WriteClient { server: PeerProcess::start(peer)?, written: 0 };
    client.write(writers, writers * ROUND_WRITES)?;
    write_bare(bare, writers).ok()?;
    let mut measured =
        WriteMeasurement { writers, bare_rates: Vec::new(), call_rates: Vec::new(), cpu: Vec::new(), traced: None };
    let writes = writers * ROUND_WRITES;
    for _ in 0..ROUNDS {
        let started = Instant::now();
        write_bare(bare, writers).ok()?;
        measured.bare_rates.push(writes as f64 / started.elapsed().as_secs_f64());
        let (started, cpu) = (Instant::now(), CpuTimes::of(client.server.id()));
        client.write(writers, writes)?;
        measured.call_rates.push(writes as f64 / started.elapsed().as_secs_f64());
        measured.cpu.push(CpuTimes::of(client.server.id()).since(&cpu) as f64 / 1e3 / writes as f64);
    }
    measured.traced = traced(client, writers, dir);
    Some(measured)
}

/// System calls and flushes per write.
fn traced(mut client: WriteClient, writers: usize, dir: &Path) -> Option<[f64; 2]> {
    let tracer = Tracer::attach(client.server.id(), &dir.join("strace.log"), StraceTamper::Watch).ok()?;
    client.write(writers, TRACED_WRITES)?;
    drop(client);
    let SyscallCount { syscalls, flushes } = SyscallCount::in_log(&tracer.log().ok()?);
    Some([syscalls, flushes].map(|count| count as f64 / TRACED_WRITES as f64))
}

/// A client that keeps as many writes in flight as there are writers.
struct WriteClient {
    server: PeerProcess,
    written: usize,
}

impl WriteClient {
    /// Returns when all writes are acknowledged. Nothing if one failed.
    fn write(&mut self, writers: usize, writes: usize) -> Option<()> {
        // Which file each request in flight writes: a file has one writer.
        let mut in_flight = HashMap::new();
        for file in 0..writers.min(writes) {
            in_flight.insert(self.send(file)?, file);
        }
        let mut sent = in_flight.len();
        while !in_flight.is_empty() {
            let file = in_flight.remove(&self.server.receive()?)?;
            if sent < writes {
                in_flight.insert(self.send(file)?, file);
                sent += 1;
            }
        }
        Some(())
    }

    fn send(&mut self, file: usize) -> Option<u64> {
        self.written += 1;
        let arguments = format!(r#"{{"path":"file-{file}","content":"{}"}}"#, content(self.written));
        self.server.send(&tool_call("write_file", &arguments))
    }
}

/// The same writes by threads, each with a file of its own.
fn write_bare(dir: &Path, writers: usize) -> io::Result<()> {
    let write = |file: usize| (0..ROUND_WRITES).try_for_each(|number| replace(dir, file, &content(number)));
    thread::scope(|scope| {
        let threads: Vec<_> = (0..writers).map(|file| scope.spawn(move || write(file))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| io::Error::other("a writer panicked"))?)
    })
}

/// The least that replaces a file atomically and durably.
fn replace(dir: &Path, file: usize, content: &str) -> io::Result<()> {
    let (temporary, target) = (dir.join(format!("temporary-{file}")), dir.join(format!("file-{file}")));
    let mut created = File::create(&temporary)?;
    created.write_all(content.as_bytes())?;
    created.sync_all()?;
    fs::rename(&temporary, target)?;
    File::open(dir)?.sync_all()
}

fn content(number: usize) -> String {
    format!("{number:0CONTENT_BYTES$}")
}

/// Type of the file system that a directory is on.
fn file_system_of(dir: &Path) -> String {
    let dir = dir.canonicalize().unwrap_or_default();
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let above = fields.filter(|fields| fields.get(1).is_some_and(|mount| dir.starts_with(PathBuf::from(mount))));
    // Of two mounts on one directory the later one is on top.
    let nearest = above.max_by_key(|fields| fields.get(1).map_or(0, |mount| mount.len()));
    nearest.and_then(|fields| fields.get(2).map(|&kind| kind.to_owned())).unwrap_or_else(|| "unknown".to_owned())
}

fn table(measured: &[WriteMeasurement]) -> Vec<String> {
    let mut lines = vec![
        "\n| writers | bare, median | call, median | call's time, × bare | target | CPU per write | system calls per write \
         | flushes per write | target |"
            .to_owned(),
        "|---:|---:|---:|---:|---|---:|---:|---:|---|".to_owned(),
    ];
    for WriteMeasurement { writers, bare_rates, call_rates, cpu, traced } in measured {
        // Rounds alternate, so that the ratio of neighbours is moved less by other programs than the medians are.
        let ratio = median(bare_rates.iter().zip(call_rates).map(|(bare, call)| bare / call).collect());
        let most = if *writers == 1 { MAX_TIME_RATIO } else { 1.0 };
        let target = format!("≤ {most}: {}", if ratio <= most { "met" } else { "missed" });
        let [bare, call, cpu] = [bare_rates, call_rates, cpu].map(|values| median(values.clone()));
        let (counts, flushes) = match traced {
            None => (["not counted".to_owned(), "not counted".to_owned()], String::new()),
            Some([syscalls, flushes]) => {
                let met = if *flushes <= MAX_FLUSHES { "met" } else { "missed" };
                ([syscalls, flushes].map(|count| format!("{count:.1}")), format!("≤ {MAX_FLUSHES}: {met}"))
            }
        };
        lines.push(format!(
            "| {writers} | {bare:.0}/s | {call:.0}/s | {ratio:.2} | {target} | {cpu:.0} µs | {} | {} | {flushes} |",
            counts[0], counts[1]
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_median_ratio_of_neighbouring_rounds_and_its_target() {
        let measured = |writers, call: f64, traced| WriteMeasurement {
            writers,
            bare_rates: vec![100.0, 200.0, 1000.0],
            call_rates: vec![call, call * 2.0, 10.0],
            cpu: vec![9.0, 5.0, 7.0],
            traced,
        };
        let lines = table(&[measured(1, 80.0, Some([40.0, 3.0])), measured(8, 80.0, None)]);
        assert_eq!(lines[2], "| 1 | 200/s | 80/s | 1.25 | ≤ 1.5: met | 7 µs | 40.0 | 3.0 | ≤ 3: met |");
        assert_eq!(lines[3], "| 8 | 200/s | 80/s | 1.25 | ≤ 1: missed | 7 µs | not counted | not counted |  |");
    }

    #[test]
    fn a_bare_replacement_leaves_the_new_content_and_no_temporary_file() {
        let dir = BenchTree(std::env::temp_dir().join(format!("ringfence-bench-write-{}", std::process::id())));
        fs::create_dir_all(&dir.0).unwrap();
        replace(&dir.0, 1, "one").unwrap();
        replace(&dir.0, 1, "two").unwrap();
        assert_eq!(fs::read_to_string(dir.0.join("file-1")).unwrap(), "two");
        assert_eq!(fs::read_dir(&dir.0).unwrap().count(), 1);
        assert_ne!(content(1), content(2));
        assert_eq!(content(1).len(), CONTENT_BYTES);
    }
}
