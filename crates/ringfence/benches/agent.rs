//! Benchmark of the agent loop: its cost beside the tools and the model, and the size of a long session.
//!
//! `cargo xtask bench agent` runs it. The model answers at once with a call of `read_file`, a thousand times; the same
//! calls are made without the loop in between, interleaved. The difference is the loop's: history, events, the ledger and
//! the session that is kept.
//!
//! Then what a session of as many steps weighs, with a server on loopback that is sent the whole history each time: in a
//! process of its own, because memory that an earlier round gave back is used again and would not be seen.
//!
//! And how long a cancelled run goes on: while the model stalls in its answer, and while a program runs in the jail.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a bench says what it finds, or stops")]
#![allow(clippy::disallowed_methods, reason = "it sets up what is measured, and reads what the kernel says of it")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use ringfence::app::{AgentSessionOptions, App, build_agent_app};
use ringfence::approval::deny_all;
use ringfence::config::{CliFlags, Environment, load};
use ringfence::run_helper_if_requested;
use ringfence::store::transcripts::SqliteTranscripts;
use ringfence::store::{STORE_FILE, SqliteStore};
use ringfence_agent::provider::{ModelProvider, ProviderProtocol, ProviderTimeouts, open};
use ringfence_agent::{
    Agent, AgentEvent, AgentLimits, AgentObserver, CallRepair, FinishReason, LanguageModel, LedgerSink, MessageHistory,
    ModelFuture, ModelRequest, ModelResponse, NoTranscript, RequestedCall, ResponsePartSink, SilentObserver,
    TokenUsage, ToolLoading, TranscriptMessage, TranscriptStore,
};
use ringfence_kernel::ToolCall;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

const STEPS: usize = 1000;
const ROUNDS: usize = 5;
const CANCELS: usize = 20;

/// Files that are read in turn, so that no two calls in a row are the same.
const FILES: usize = 3;

/// Of each.
const FILE_BYTES: usize = 4096;

/// Starts us as the process that is weighed: the address of the server, and where the session is kept.
const MEASURE_FLAG: &str = "--weighed";

fn main() -> ExitCode {
    if let Some(code) = run_helper_if_requested() {
        return code;
    }
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|argument| argument == MEASURE_FLAG) {
        println!("{}", run_measured_session(&arguments[at + 1], BenchTranscript::from_name(&arguments[at + 2])));
        return ExitCode::SUCCESS;
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
            runtime.block_on(time_bare_calls()),
            runtime.block_on(time_agent_loop(BenchTranscript::Discarded)),
            runtime.block_on(time_agent_loop(BenchTranscript::Stored)),
        ];
        best.iter_mut().zip(times).for_each(|(best, time)| *best = time.min(*best));
    }
    let [alone, forgetful, kept] = best.map(|time| time.as_secs_f64() * 1e6 / STEPS as f64);
    println!("the call alone                {alone:8.1} µs");
    println!("in the loop                   {forgetful:8.1} µs  the loop's own: {:.1} µs", forgetful - alone);
    println!("in the loop, and kept         {kept:8.1} µs  the loop's own: {:.1} µs", kept - alone);
    println!("\na session of {STEPS} steps in a process of its own, with a server on loopback; MiB\n");
    println!("kept          messages    of text  memory before    after     peak  sessions  audit log  a step");
    for kept in [BenchTranscript::Discarded, BenchTranscript::Stored] {
        measure_session(kept);
    }
    println!("\nfrom a cancel to the end of the run, {CANCELS} times; median and longest\n");
    let program = json!({"language": "bash", "code": "echo started; exec sleep 1000"});
    for (state, answer) in [
        ("while the model stalls", json!({"text": "I thi", "stall": true})),
        ("while a program runs", json!({"calls": [{"name": "run_code", "arguments": program}]})),
    ] {
        let mut times: Vec<Duration> = (0..CANCELS).map(|_| runtime.block_on(time_cancel(&answer))).collect();
        times.sort();
        let [median, longest] = [times[CANCELS / 2], times[CANCELS - 1]].map(|time| time.as_secs_f64() * 1e3);
        println!("{state:29} {median:8.1} ms {longest:8.1} ms");
    }
    ExitCode::SUCCESS
}

/// Cancels at the first sign of life, and knows when that was.
#[derive(Debug)]
struct CancelObserver {
    cancel: CancellationToken,
    cancelled: OnceLock<Instant>,
}

impl AgentObserver for CancelObserver {
    fn on_event(&self, event: &AgentEvent<'_>) {
        if matches!(event, AgentEvent::Text { .. } | AgentEvent::Output { .. }) {
            self.cancelled.get_or_init(Instant::now);
            self.cancel.cancel();
        }
    }
}

async fn time_cancel(answer: &Value) -> Duration {
    let (_directory, app, tap) = build_bench_app();
    let provider = ModelProvider {
        kind: ProviderProtocol::Scripted(format!("{answer}\n")),
        base_url: String::new(),
        model: "script".to_owned(),
        key: None,
        headers: Vec::new(),
        timeouts: ProviderTimeouts::default(),
        stream: true,
    };
    let observer = Arc::new(CancelObserver { cancel: CancellationToken::new(), cancelled: OnceLock::new() });
    let front = Arc::clone(&observer) as Arc<dyn AgentObserver>;
    let agent = Agent { model: Arc::from(open(provider).unwrap()), observer: front, ..agent(app, tap) };
    let outcome = agent.run("go", &mut MessageHistory::new(Box::new(NoTranscript)), &observer.cancel).await;
    let took = observer.cancelled.get().unwrap().elapsed();
    assert_eq!(outcome.stop_reason.name(), "cancelled", "{outcome:?}");
    took
}

/// Lets a process of its own go through a session, and prints what it weighed.
fn measure_session(kept: BenchTranscript) {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args([MEASURE_FLAG, &serve_instant_model().to_string(), kept.name()]);
    let output = child.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mib = |key: &str| said[key].as_f64().unwrap() / 1048576.0;
    println!(
        "{:12} {:9} {:10.1} {:14.1} {:8.1} {:8.1} {:9.1} {:10.1} {:5.1} ms",
        kept.name(),
        said["messages"],
        mib("text"),
        mib("before"),
        mib("after"),
        mib("peak"),
        mib("sessions"),
        mib("audit"),
        said["seconds"].as_f64().unwrap() * 1e3 / STEPS as f64,
    );
}

/// A session from its first step to its last, and what the kernel says of us then.
fn run_measured_session(server: &str, kept: BenchTranscript) -> Value {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (directory, app, tap) = build_bench_app();
    let state = app.settings.state.clone();
    let provider = ModelProvider {
        kind: ProviderProtocol::OpenAi,
        base_url: format!("http://{server}/v1"),
        model: "at once".to_owned(),
        key: None,
        headers: Vec::new(),
        timeouts: ProviderTimeouts::default(),
        stream: true,
    };
    let mut history = MessageHistory::new(memory(&app, kept));
    let agent = Agent { model: Arc::from(open(provider).unwrap()), ..agent(app, tap) };
    let before = proc_status_bytes("RssAnon:");
    let started = Instant::now();
    let outcome = runtime.block_on(agent.run("read", &mut history, &CancellationToken::new()));
    let seconds = started.elapsed().as_secs_f64();
    let after = proc_status_bytes("RssAnon:");
    assert_eq!(outcome.stop_reason.name(), "answered", "{outcome:?}");
    let text = |message: &TranscriptMessage| match message {
        TranscriptMessage::User { text } | TranscriptMessage::Tool { text, .. } => text.len(),
        TranscriptMessage::Assistant { text, calls, .. } => {
            text.len() + calls.iter().map(|call| call.arguments.len()).sum::<usize>()
        }
    };
    let weight = json!({
        "messages": history.messages().len(),
        "text": history.messages().iter().map(text).sum::<usize>(),
        "before": before,
        "after": after,
        "peak": proc_status_bytes("VmHWM:"),
        "sessions": state_bytes(&state, &|name| name.starts_with(STORE_FILE)),
        "audit": state_bytes(&state, &|name| name.starts_with("audit")),
        "seconds": seconds,
    });
    drop(directory);
    weight
}

/// Bytes of the files of our state whose first name is so.
fn state_bytes(directory: &Path, is_meant: &dyn Fn(&str) -> bool) -> u64 {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let meant = entries.filter(|entry| is_meant(&entry.file_name().to_string_lossy()));
    meant
        .map(|entry| match entry.metadata() {
            Ok(found) if found.is_dir() => state_bytes(&entry.path(), &|_| true),
            Ok(found) => found.len(),
            Err(_) => 0,
        })
        .sum()
}

/// A server of chat completions that answers at once. It ends with us.
fn serve_instant_model() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let steps = AtomicUsize::new(0);
        for stream in listener.incoming().flatten() {
            while write_instant_answer(&stream, &steps).is_some() {}
        }
    });
    at
}

fn write_instant_answer(mut stream: &TcpStream, steps: &AtomicUsize) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        length = line.strip_prefix("content-length: ").and_then(|length| length.parse().ok()).unwrap_or(length);
    }
    std::io::copy(&mut reader.by_ref().take(length), &mut std::io::sink()).ok()?;
    let step = steps.fetch_add(1, Ordering::Relaxed);
    let message = match step < STEPS {
        true => {
            let ToolCall { id, name, arguments } = call(step);
            let function = json!({"name": name, "arguments": arguments});
            json!({"content": null, "tool_calls": [{"id": id, "type": "function", "function": function}]})
        }
        false => json!({"content": "done"}),
    };
    let usage = json!({"prompt_tokens": 1000, "completion_tokens": 20, "total_tokens": 1020});
    let body = json!({"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}).to_string();
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all((head + &body).as_bytes()).ok()
}

/// A model that takes no time.
#[derive(Debug, Default)]
struct InstantModel(AtomicUsize);

impl LanguageModel for InstantModel {
    fn name(&self) -> &str {
        "at once"
    }

    fn respond<'a>(&'a self, _: ModelRequest<'a>, _: &'a mut ResponsePartSink<'_>) -> ModelFuture<'a, ModelResponse> {
        let step = self.0.fetch_add(1, Ordering::Relaxed);
        let usage = Some(TokenUsage { input: 1000, output: 20, total: 1020, ..TokenUsage::default() });
        let answer = match step {
            step if step < STEPS => {
                let ToolCall { id, name, arguments } = call(step);
                let calls = vec![RequestedCall { id, name, arguments }];
                ModelResponse { calls, finish: FinishReason::Calls, usage, ..ModelResponse::default() }
            }
            _ => ModelResponse { text: "done".to_owned(), usage, ..ModelResponse::default() },
        };
        Box::pin(std::future::ready(Ok(answer)))
    }

    fn health(&self) -> ModelFuture<'_, ()> {
        Box::pin(std::future::ready(Ok(())))
    }
}

fn call(step: usize) -> ToolCall {
    let arguments = format!(r#"{{"path":"file-{}.txt"}}"#, step % FILES);
    ToolCall { id: format!("call-{step}"), name: "read_file".to_owned(), arguments }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BenchTranscript {
    Discarded,
    Stored,
}

impl BenchTranscript {
    const fn name(self) -> &'static str {
        match self {
            Self::Discarded => "nowhere",
            Self::Stored => "in the store",
        }
    }

    fn from_name(name: &str) -> Self {
        if name == Self::Discarded.name() { Self::Discarded } else { Self::Stored }
    }
}

fn memory(app: &App, kept: BenchTranscript) -> Box<dyn TranscriptStore> {
    match kept {
        BenchTranscript::Discarded => Box::new(NoTranscript),
        BenchTranscript::Stored => {
            let head = ringfence::store::transcripts::TranscriptHeader::new(&app.session, &app.workspace_id, "at once");
            Box::new(
                SqliteTranscripts::new(Arc::new(SqliteStore::new(&app.settings.state)))
                    .open(&head, app.session.taint.clone())
                    .unwrap(),
            )
        }
    }
}

/// A workspace of its own, and a host on it.
fn build_bench_app() -> (tempfile::TempDir, App, LedgerSink) {
    let directory = tempfile::tempdir().unwrap();
    let root = std::fs::canonicalize(directory.path()).unwrap();
    let environment = Environment::isolated(&root, std::env::current_exe().unwrap());
    let workspace = root.join("ws");
    std::fs::create_dir(&workspace).unwrap();
    for file in 0..FILES {
        std::fs::write(workspace.join(format!("file-{file}.txt")), "x".repeat(FILE_BYTES)).unwrap();
    }
    let flags = CliFlags { workspace: Some(workspace.to_str().unwrap().to_owned()), ..CliFlags::default() };
    let settings = load(&flags, &environment).unwrap();
    let tap = LedgerSink::default();
    let seat = AgentSessionOptions { tap: Some(Box::new(tap.clone())), ..AgentSessionOptions::default() };
    (directory, build_agent_app(settings, &environment, Box::new(deny_all()), seat).unwrap(), tap)
}

async fn time_bare_calls() -> Duration {
    let (_directory, app, _) = build_bench_app();
    let cancel = CancellationToken::new();
    let started = Instant::now();
    for step in 0..STEPS {
        let reply = app.host.call(&app.session, call(step), &cancel).await.unwrap();
        assert!(reply.error_kind().is_none(), "{}", reply.text);
    }
    started.elapsed()
}

async fn time_agent_loop(kept: BenchTranscript) -> Duration {
    let (_directory, app, tap) = build_bench_app();
    let mut history = MessageHistory::new(memory(&app, kept));
    let agent = agent(app, tap);
    let started = Instant::now();
    let outcome = agent.run("read", &mut history, &CancellationToken::new()).await;
    assert_eq!(outcome.stop_reason.name(), "answered", "{outcome:?}");
    started.elapsed()
}

fn agent(app: App, tap: LedgerSink) -> Agent {
    Agent {
        model: Arc::new(InstantModel::default()),
        host: app.host,
        session: app.session,
        system: "You are measured.".to_owned(),
        temperature: None,
        max_tokens: None,
        repair: CallRepair::Never,
        tool_loading: ToolLoading::All,
        limits: AgentLimits { steps: u32::MAX, ..AgentLimits::default() },
        tap,
        observer: Arc::new(SilentObserver),
    }
}

/// Bytes that the kernel counts for this process.
fn proc_status_bytes(key: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
    line.split_whitespace().next().unwrap().parse::<usize>().unwrap() * 1024
}
