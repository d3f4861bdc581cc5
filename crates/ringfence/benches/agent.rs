//! What the agent's loop costs beside the tools and the model, and what a long session weighs.
//!
//! `cargo xtask bench agent` runs it. The model answers at once with a call of `read_file`, a thousand times; the same
//! calls are made without the loop in between, interleaved. The difference is the loop's: history, events, the ledger and
//! the session that is kept. Then the memory of the process, before and after.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a bench says what it finds, or stops")]
#![allow(clippy::disallowed_methods, reason = "it sets up what is measured, and reads what the kernel says of it")]

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ringfence::approve::nobody;
use ringfence::config::{Environment, Flags, Variables, load};
use ringfence::sessions::Sessions;
use ringfence::take_part;
use ringfence::wire::{Seat, Wired, wire_own};
use ringfence_agent::{
    Agent, Answer, Answering, Ask, Bounds, Finish, Forgetful, History, Memory, Model, Parts, Quiet, Repair,
    RequestedCall, Tap, Usage,
};
use ringfence_kernel::ToolCall;
use tokio_util::sync::CancellationToken;

const STEPS: usize = 1000;
const ROUNDS: usize = 5;

/// Files that are read in turn, so that no two calls in a row are the same.
const FILES: usize = 3;

/// Of each.
const FILE_BYTES: usize = 4096;

fn main() -> ExitCode {
    if let Some(code) = take_part() {
        return code;
    }
    // `cargo test --benches` only asks whether this builds and starts.
    if std::env::args().any(|argument| argument == "--test") {
        return ExitCode::SUCCESS;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    println!(
        "{STEPS} steps of one `read_file` each ({FILE_BYTES} bytes), {ROUNDS} rounds, interleaved; best time of a step\n"
    );
    let mut best = [Duration::MAX; 3];
    for _ in 0..ROUNDS {
        let times = [
            runtime.block_on(calls_alone()),
            runtime.block_on(in_the_loop(Kept::Nowhere)),
            runtime.block_on(in_the_loop(Kept::InTheStore)),
        ];
        best.iter_mut().zip(times).for_each(|(best, time)| *best = time.min(*best));
    }
    let [alone, forgetful, kept] = best.map(|time| time.as_secs_f64() * 1e6 / STEPS as f64);
    println!("the call alone                {alone:8.1} µs");
    println!("in the loop                   {forgetful:8.1} µs  the loop's own: {:.1} µs", forgetful - alone);
    println!("in the loop, and kept         {kept:8.1} µs  the loop's own: {:.1} µs", kept - alone);
    let before = resident();
    let (history, _directory) = runtime.block_on(long_session());
    let bytes = resident().saturating_sub(before);
    println!(
        "\nmemory of {STEPS} steps            {:8.1} MiB for {} messages",
        bytes as f64 / 1048576.0,
        history.messages().len()
    );
    ExitCode::SUCCESS
}

/// A model that takes no time.
#[derive(Debug, Default)]
struct AtOnce(AtomicUsize);

impl Model for AtOnce {
    fn name(&self) -> &str {
        "at once"
    }

    fn answer<'a>(&'a self, _: Ask<'a>, _: &'a mut Parts<'_>) -> Answering<'a, Answer> {
        let step = self.0.fetch_add(1, Ordering::Relaxed);
        let usage = Some(Usage { input: 1000, output: 20, total: 1020, ..Usage::default() });
        let answer = match step {
            step if step < STEPS => {
                let ToolCall { id, name, arguments } = call(step);
                let calls = vec![RequestedCall { id, name, arguments }];
                Answer { calls, finish: Finish::Calls, usage, ..Answer::default() }
            }
            _ => Answer { text: "done".to_owned(), usage, ..Answer::default() },
        };
        Box::pin(std::future::ready(Ok(answer)))
    }

    fn health(&self) -> Answering<'_, ()> {
        Box::pin(std::future::ready(Ok(())))
    }
}

fn call(step: usize) -> ToolCall {
    let arguments = format!(r#"{{"path":"file-{}.txt"}}"#, step % FILES);
    ToolCall { id: format!("call-{step}"), name: "read_file".to_owned(), arguments }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    Nowhere,
    InTheStore,
}

/// A workspace of its own, and a host on it.
fn world() -> (tempfile::TempDir, Wired, Tap) {
    let directory = tempfile::tempdir().unwrap();
    let root = std::fs::canonicalize(directory.path()).unwrap();
    let environment = Environment {
        home: Some(root.join("home")),
        current: root.clone(),
        managed: root.join("managed"),
        config: None,
        state: Some(root.join("state")),
        config_file: None,
        user: None,
        editor: None,
        no_color: true,
        variables: Variables::default(),
        program: std::env::current_exe().unwrap(),
    };
    let workspace = root.join("ws");
    std::fs::create_dir(&workspace).unwrap();
    for file in 0..FILES {
        std::fs::write(workspace.join(format!("file-{file}.txt")), "x".repeat(FILE_BYTES)).unwrap();
    }
    let flags = Flags { workspace: Some(workspace.to_str().unwrap().to_owned()), ..Flags::default() };
    let settings = load(&flags, &environment).unwrap();
    let tap = Tap::default();
    let seat = Seat { ear: Some(Box::new(tap.clone())), ..Seat::default() };
    (directory, wire_own(settings, &environment, Box::new(nobody()), seat).unwrap(), tap)
}

async fn calls_alone() -> Duration {
    let (_directory, wired, _) = world();
    let cancel = CancellationToken::new();
    let started = Instant::now();
    for step in 0..STEPS {
        let reply = wired.host.call(&wired.session, call(step), &cancel).await.unwrap();
        assert!(reply.error.is_none(), "{}", reply.text);
    }
    started.elapsed()
}

async fn in_the_loop(kept: Kept) -> Duration {
    let (_directory, wired, tap) = world();
    let memory: Box<dyn Memory> = match kept {
        Kept::Nowhere => Box::new(Forgetful),
        Kept::InTheStore => {
            let head = ringfence::sessions::Head::new(&wired, "at once");
            Box::new(Sessions::new(&wired.settings.state).open(&head, wired.session.bits.clone()).unwrap())
        }
    };
    let mut history = History::new(memory);
    let agent = agent(wired, tap);
    let started = Instant::now();
    let outcome = agent.run("read", &mut history, &CancellationToken::new()).await;
    assert_eq!(outcome.end.name(), "answered", "{outcome:?}");
    started.elapsed()
}

async fn long_session() -> (History, tempfile::TempDir) {
    let (directory, wired, tap) = world();
    let mut history = History::new(Box::new(Forgetful));
    agent(wired, tap).run("read", &mut history, &CancellationToken::new()).await;
    (history, directory)
}

fn agent(wired: Wired, tap: Tap) -> Agent {
    Agent {
        model: Arc::new(AtOnce::default()),
        host: wired.host,
        session: wired.session,
        system: "You are measured.".to_owned(),
        temperature: None,
        max_tokens: None,
        repair: Repair::Never,
        bounds: Bounds { steps: u32::MAX, ..Bounds::default() },
        tap,
        front: Arc::new(Quiet),
    }
}

/// Bytes of this process that are in memory.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|kib| kib.parse::<usize>().ok()).unwrap_or_default() * 1024
}
