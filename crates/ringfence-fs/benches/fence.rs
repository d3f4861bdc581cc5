//! Benchmark of the file tools, against the same operations without a fence.
//!
//! Every comparison is one interleaved run: the ways take turns, so that a noisy machine is noisy for all of them.
//! `cargo bench -p ringfence-fs -- read` runs one part: read, replace, list or large. Printed are the best and the median time of a way, and their ratios to the first.

#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    clippy::type_complexity,
    reason = "a bench says what it finds, or stops"
)]
#![allow(clippy::disallowed_methods, reason = "a bench compares with the plain way")]

use std::fs;
use std::hint::black_box;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use ringfence_audit::AuditLog;
use ringfence_fs::{Fence, FenceOptions, JournalMode, MountAccess, MountSpec};
use ringfence_kernel::{
    AuditSink, CallLimits, DenyApprover, Dialect, Host, HostConfig, InMemoryApprovalStore, NullAuditSink, Preset,
    Principal, ReplyForm, Session, SessionMemory, SessionTaint, ToolCall, ToolFilter, ToolRegistry,
};
use sha2::{Digest as _, Sha256};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

fn main() {
    // `cargo test --benches` only asks whether this builds and starts.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let wanted: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let bench = FenceBench::new();
    let parts: [(&str, fn(&FenceBench)); 4] = [
        ("read", FenceBench::small_read),
        ("replace", FenceBench::durable_write),
        ("list", FenceBench::long_listing),
        ("large", FenceBench::large_file),
    ];
    for (name, part) in parts {
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
            part(&bench);
        }
    }
}

struct FenceBench {
    /// Gone when this is.
    _directory: tempfile::TempDir,
    root: PathBuf,
    fence: Fence,
    host: Host,
    /// The same with an audit log.
    audited_host: Host,
    session: Arc<Session>,
    /// The same without a journal: displaced files are deleted permanently.
    unjournaled_session: Arc<Session>,
    /// A file to append to, as a journal does.
    line: fs::File,
    runtime: Runtime,
}

impl FenceBench {
    fn new() -> Self {
        // Beside the build and not in memory: a sync has to mean something.
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory for the bench");
        let root = directory.path().join("ws");
        fs::create_dir(&root).expect("a workspace");
        let state = directory.path().join("state");
        let fence = |journal| {
            let workspace =
                MountSpec { alias: "workspace".to_owned(), path: root.clone(), rights: MountAccess::ReadWrite };
            Fence::new(workspace, Vec::new(), &state, FenceOptions { journal, ..FenceOptions::default() })
                .expect("a fence")
        };
        let session = |fence: &Fence| {
            let mut registry = ToolRegistry::new();
            ringfence_fs::register(&mut registry, fence).expect("tools");
            Arc::new(Session {
                id: "bench".to_owned(),
                principal: Principal::agent("bench"),
                dialect: Dialect::Standard,
                agent: None,
                limits: CallLimits::for_dialect(Dialect::Standard),
                catalog: registry.catalog(Dialect::Standard, &ToolFilter::default()).expect("a catalog"),
                taint: SessionTaint::default(),
                memory: SessionMemory::default(),
                replies: ReplyForm::default(),
            })
        };
        let (unjournaled_session, fence) = (session(&fence(JournalMode::Off)), fence(JournalMode::On));
        let session = session(&fence);
        let line = fs::File::options().append(true).create(true).open(directory.path().join("line")).expect("a file");
        let host = |audit: Box<dyn AuditSink>| {
            Host::new(HostConfig {
                policy: Box::new(Preset::Edits),
                approver: Box::new(DenyApprover { advice: String::new() }),
                audit,
                store: Box::new(InMemoryApprovalStore::default()),
                workers: 8,
            })
        };
        let audited_host = host(Box::new(AuditLog::open(&directory.path().join("state")).expect("an audit log")));
        let host = host(Box::new(NullAuditSink));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        println!("paths are resolved by {}\n", fence.backend());
        Self { _directory: directory, root, fence, host, audited_host, session, unjournaled_session, line, runtime }
    }

    fn call(&self, tool: &str, arguments: &str) -> String {
        self.call_on(&self.host, &self.session, tool, arguments)
    }

    fn call_on(&self, host: &Host, session: &Arc<Session>, tool: &str, arguments: &str) -> String {
        let call = ToolCall { id: "1".to_owned(), name: tool.to_owned(), arguments: arguments.to_owned() };
        let cancel = CancellationToken::new();
        let reply = self.runtime.block_on(host.call(session, call, &cancel)).expect("a reply");
        assert!(reply.error_kind().is_none(), "{}", reply.text);
        reply.text
    }

    /// 4 KiB of text, six directories deep.
    fn small_read(&self) {
        let path = "a/b/c/d/e/f/file.txt";
        let plain = self.root.join(path);
        fs::create_dir_all(plain.parent().expect("it has one")).expect("directories");
        fs::write(&plain, "sixteen letters\n".repeat(256)).expect("a file");
        let arguments = format!(r#"{{"path":"{path}"}}"#);
        let times = compare(
            "read 4 KiB, six directories deep",
            BenchRounds { rounds: 300, batch: 200 },
            &mut [
                ("std::fs::read", &mut || drop(black_box(fs::read(&plain)))),
                ("std::fs::read and SHA-256", &mut || {
                    drop(black_box(fs::read(&plain).map(|bytes| Sha256::digest(&bytes))))
                }),
                ("Fence::read", &mut || drop(black_box(self.fence.read(path, 1 << 20)))),
                ("Host::call read_file", &mut || drop(black_box(self.call("read_file", &arguments)))),
                ("Host::call read_file, with the audit log", &mut || {
                    drop(black_box(self.call_on(&self.audited_host, &self.session, "read_file", &arguments)));
                }),
            ],
        );
        let hashing = times[1].best - times[0].best;
        let budget = 3.0 * times[0].best + hashing;
        println!("  Host::call takes {:.2} of three plain reads and the hash", times[3].best / budget);
        println!("  the audit log is {:.0} % of a recorded call\n", 100.0 * (1.0 - times[3].best / times[4].best));
    }

    /// 4 KiB over a file that exists.
    fn durable_write(&self) {
        let content = "sixteen letters\n".repeat(256);
        let names = ["plain.txt", "fenced.txt", "journaled.txt"];
        for name in names {
            fs::write(self.root.join(name), &content).expect("a file");
        }
        let [plain, ..] = names.map(|name| self.root.join(name));
        let [_, fenced, journaled] =
            names.map(|path| serde_json::json!({"path": path, "content": content}).to_string());
        let intent = "x".repeat(600) + "\n";
        let times = compare(
            "replace 4 KiB, durably",
            BenchRounds { rounds: 150, batch: 1 },
            &mut [
                ("temporary file, fsync, rename, directory fsync", &mut || replace_plainly(&plain, &content)),
                ("one line appended, fdatasync", &mut || {
                    (&self.line).write_all(intent.as_bytes()).expect("a line");
                    self.line.sync_data().expect("a sync");
                }),
                ("Host::call write_file, without the journal", &mut || {
                    drop(black_box(self.call_on(&self.host, &self.unjournaled_session, "write_file", &fenced)));
                }),
                ("Host::call write_file", &mut || drop(black_box(self.call("write_file", &journaled)))),
                ("Host::call write_file, with the audit log", &mut || {
                    drop(black_box(self.call_on(&self.audited_host, &self.session, "write_file", &journaled)));
                }),
            ],
        );
        for (what, of) in
            [("best", (|times: &BenchTimes| times.best) as fn(&BenchTimes) -> f64), ("median", |times| times.median)]
        {
            let [sync, without, with] = [1, 2, 3].map(|way| of(&times[way]));
            println!(
                "  {what}: the journal adds {:.0} % to a durable write, {:.0} % beyond the sync of its intent",
                100.0 * (with / without - 1.0),
                100.0 * (with - sync - without) / without
            );
        }
        println!();
    }

    /// The first 1,000 of 100,000 entries, sorted, with size and time.
    fn long_listing(&self) {
        let directory = self.root.join("many");
        fs::create_dir(&directory).expect("a directory");
        for number in 0..100_000 {
            fs::write(directory.join(format!("entry-{number:06}")), "").expect("an entry");
        }
        compare(
            "list 100,000 entries",
            BenchRounds { rounds: 12, batch: 1 },
            &mut [
                ("std::fs::read_dir, sort, stat of 1,000", &mut || drop(black_box(list_plainly(&directory)))),
                ("Host::call list_directory", &mut || {
                    drop(black_box(self.call("list_directory", r#"{"path":"many"}"#)))
                }),
            ],
        );
        println!();
    }

    /// Ten lines from the start, the middle and the end of 1 GiB.
    fn large_file(&self) {
        const LINES: u64 = (1 << 30) / 64;
        let mut file = std::io::BufWriter::new(fs::File::create(self.root.join("large.txt")).expect("a file"));
        for line in 0..LINES {
            writeln!(file, "{line:063}").expect("a line");
        }
        file.flush().expect("a whole file");
        drop(file);
        let before = peak_memory();
        println!("read ten lines of 1 GiB");
        for (place, first) in [("start", 1), ("middle", LINES / 2), ("end", LINES - 10)] {
            let arguments = format!(r#"{{"path":"large.txt","startLine":{first},"endLine":{}}}"#, first + 9);
            let started = Instant::now();
            let reply = self.call("read_file", &arguments);
            assert!(reply.contains(&format!("{:063}", first - 1)), "the lines that were asked for");
            println!("  {:<48} {:>10.1} ms", place, started.elapsed().as_secs_f64() * 1e3);
        }
        println!("  peak memory grew by {} KiB", peak_memory().saturating_sub(before));
    }
}

struct BenchRounds {
    rounds: usize,
    /// Calls that are timed together, for what is too short to be timed alone.
    batch: u32,
}

struct BenchTimes {
    best: f64,
    median: f64,
}

fn compare(title: &str, how: BenchRounds, ways: &mut [(&str, &mut dyn FnMut())]) -> Vec<BenchTimes> {
    println!("{title}");
    let mut taken = vec![Vec::with_capacity(how.rounds); ways.len()];
    for round in 0..how.rounds + 2 {
        for ((_, way), taken) in ways.iter_mut().zip(&mut taken) {
            let started = Instant::now();
            for _ in 0..how.batch {
                way();
            }
            // The first rounds only warm up.
            if round >= 2 {
                taken.push(started.elapsed().as_secs_f64() * 1e6 / f64::from(how.batch));
            }
        }
    }
    let times: Vec<BenchTimes> = taken
        .into_iter()
        .map(|mut taken| {
            taken.sort_by(f64::total_cmp);
            BenchTimes { best: taken[0], median: taken[taken.len() / 2] }
        })
        .collect();
    for ((name, _), BenchTimes { best, median }) in ways.iter().zip(&times) {
        let (of_best, of_median) = (best / times[0].best, median / times[0].median);
        println!("  {name:<48} best {best:>10.2} µs ({of_best:.2})  median {median:>10.2} µs ({of_median:.2})");
    }
    times
}

fn replace_plainly(path: &Path, content: &str) {
    let temporary = path.with_extension("tmp");
    let mut file = fs::File::create(&temporary).expect("a temporary file");
    file.write_all(content.as_bytes()).expect("content");
    file.sync_all().expect("a sync");
    fs::rename(&temporary, path).expect("a rename");
    let parent = path.parent().expect("it has one");
    fs::File::open(parent).and_then(|directory| directory.sync_all()).expect("a sync of the directory");
}

fn list_plainly(directory: &Path) -> Vec<(std::ffi::OsString, u64)> {
    let mut names: Vec<_> =
        fs::read_dir(directory).expect("a listing").flatten().map(|entry| entry.file_name()).collect();
    names.sort_unstable();
    names.truncate(1000);
    names
        .into_iter()
        .map(|name| (name.clone(), fs::symlink_metadata(directory.join(&name)).map_or(0, |found| found.len())))
        .collect()
}

/// In KiB.
fn peak_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse().ok()).unwrap_or(0)
}
