//! Cancelling ends a run, whatever it waits for: the real tools and the real jail, a file system that does not answer, a
//! server that does not either.
//!
//! In each state a run is cancelled several times, once it is known to be there and not before. What was waited for is
//! looked at afterwards: it still does not answer, or is gone. So nothing but the cancel can have ended the run; how long
//! that takes is for `cargo xtask bench agent`.

use std::future::Future;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::pin::Pin;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use ringfence::app::{AgentSessionOptions, build_agent_app};
use ringfence::config::{CliFlags, load};
use ringfence_agent::provider::{ModelProvider, ProviderProtocol, ProviderTimeouts, open};
use ringfence_agent::{
    Agent, AgentEvent, AgentLimits, AgentObserver, CallRepair, LedgerSink, MessageHistory, NoTranscript, ToolLoading,
    TranscriptMessage,
};
use ringfence_kernel::{ApprovalRequest, Approver, ApproverReply, AuditEvent, AuditSink, AuditSinkError, CallRecord};
use ringfence_testkit::patience::PATIENCE;
use ringfence_testkit::stalling_fs::{FuseOp, StallingFs};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::agent::call;
use crate::site::TestSite;

/// How often a run is cancelled in each state.
const ROUNDS: usize = 5;

/// Sends events to a waiting receiver.
#[derive(Clone, Debug)]
struct TestNotifier(Arc<Mutex<Sender<String>>>);

impl TestNotifier {
    fn new() -> (Self, Receiver<String>) {
        let (news, heard) = channel();
        (Self(Arc::new(Mutex::new(news))), heard)
    }

    fn notify(&self, what: &str) {
        // The receiver may be gone.
        let _ = self.0.lock().unwrap().send(what.to_owned());
    }
}

fn wait_for(heard: &Receiver<String>, what: &str) {
    let until = Instant::now() + PATIENCE;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let news = heard.recv_timeout(left).unwrap_or_else(|_| panic!("never heard of {what}"));
        if news == what {
            return;
        }
    }
}

impl AgentObserver for TestNotifier {
    fn on_event(&self, event: &AgentEvent<'_>) {
        match event {
            AgentEvent::Text { .. } => self.notify("text"),
            AgentEvent::Output { .. } => self.notify("output"),
            _ => {}
        }
    }
}

/// An approver that never answers.
impl Approver for TestNotifier {
    fn ask<'a>(&'a self, _: &'a ApprovalRequest) -> Pin<Box<dyn Future<Output = ApproverReply> + Send + 'a>> {
        self.notify("asked");
        Box::pin(std::future::pending())
    }
}

/// Hears of every record.
#[derive(Debug)]
struct NotifyingSink(LedgerSink, TestNotifier);

impl AuditSink for NotifyingSink {
    fn record(&self, record: &CallRecord<'_>) -> Result<(), AuditSinkError> {
        if matches!(record.event, AuditEvent::Begin { .. }) {
            self.1.notify("begun");
        }
        self.0.record(record)
    }
}

/// An agent on a workspace, at work on one prompt that it does not come to the end of.
struct CancelFixture {
    agent: Agent,
    events: Receiver<String>,
    history: MessageHistory,
}

impl CancelFixture {
    fn new(
        site: &TestSite,
        kind: ProviderProtocol,
        base_url: String,
        (news, events): (TestNotifier, Receiver<String>),
    ) -> Self {
        let environment = site.environment();
        let workspace = Some(site.workspace.display().to_string());
        let settings = load(&CliFlags { workspace, ..CliFlags::default() }, &environment).unwrap();
        let tap = LedgerSink::default();
        let terminal = AgentSessionOptions {
            tap: Some(Box::new(NotifyingSink(tap.clone(), news.clone()))),
            ..AgentSessionOptions::default()
        };
        let app = build_agent_app(settings, &environment, Box::new(news.clone()), terminal).unwrap();
        let (key, headers, timeouts, model) = (None, Vec::new(), ProviderTimeouts::default(), "model".to_owned());
        let model = open(ModelProvider { kind, base_url, model, key, headers, timeouts, stream: true }).unwrap();
        let agent = Agent {
            model: Arc::from(model),
            host: app.host,
            session: app.session,
            system: "You are a test.".to_owned(),
            temperature: None,
            max_tokens: None,
            repair: CallRepair::Never,
            tool_loading: ToolLoading::All,
            limits: AgentLimits::default(),
            tap,
            observer: Arc::new(news),
        };
        Self { agent, events, history: MessageHistory::new(Box::new(NoTranscript)) }
    }

    fn with_script(site: &TestSite, answer: &Value) -> Self {
        Self::new(site, ProviderProtocol::Scripted(format!("{answer}\n")), String::new(), TestNotifier::new())
    }

    /// Runs until `ready` comes back, and cancels.
    fn cancel_when(&mut self, ready: impl FnOnce(&Receiver<String>) + Send) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let cancel = CancellationToken::new();
        let Self { agent, events: heard, history } = self;
        let heard = Mutex::new(heard);
        let outcome = std::thread::scope(|scope| {
            let cancelled = scope.spawn(|| {
                // Also where it never comes to that.
                let _guard = cancel.clone().drop_guard();
                ready(&heard.lock().unwrap());
            });
            let outcome = runtime.block_on(agent.run("do it", history, &cancel));
            cancelled.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            outcome
        });
        runtime.shutdown_background();
        assert_eq!(outcome.stop_reason.name(), "cancelled", "{outcome:?}");
    }

    /// The result of the only call.
    fn result(&self) -> &str {
        let results = self.history.messages().iter().rev().find_map(|message| match message {
            TranscriptMessage::Tool { text, .. } => Some(text.as_str()),
            _ => None,
        });
        results.unwrap_or_default()
    }
}

/// A server that says this to one question and then nothing, and tells when it was asked and left.
fn stalling_server(said: &'static str, news: TestNotifier) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    // It ends when its only visitor leaves.
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut buffer = [0; 64 << 10];
        let _ = stream.read(&mut buffer);
        let _ = stream.write_all(said.as_bytes());
        news.notify("questioned");
        while stream.read(&mut buffer).is_ok_and(|length| length > 0) {}
        news.notify("left");
    });
    url
}

const PARTIAL_STREAM: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n\
                     data: {\"choices\":[{\"delta\":{\"content\":\"I thi\"}}]}\n\n";

#[test]
fn while_the_server_of_the_model_says_nothing() {
    let site = TestSite::new();
    for (said, when) in [("", "questioned"), (PARTIAL_STREAM, "text")] {
        for _ in 0..ROUNDS {
            let (news, heard) = TestNotifier::new();
            let mut rig =
                CancelFixture::new(&site, ProviderProtocol::OpenAi, stalling_server(said, news.clone()), (news, heard));
            rig.cancel_when(|heard| wait_for(heard, when));
            // The connection is given up: nothing else tells the server.
            wait_for(&rig.events, "left");
        }
    }
}

#[test]
fn while_a_file_system_does_not_answer_a_read() {
    let site = TestSite::new();
    let Some(slow) = StallingFs::mount(&site.workspace) else { return };
    site.write("f.txt", "old\n");
    for op in [FuseOp::Lookup, FuseOp::Open, FuseOp::Read] {
        for _ in 0..ROUNDS {
            let mut rig = CancelFixture::with_script(&site, &call("read_file", json!({"path": "f.txt"})));
            slow.gate.hold(op);
            rig.cancel_when(|_| slow.gate.wait_until_held(1));
            // The run is over, and the file system has still not answered.
            slow.gate.wait_until_held(1);
            assert!(rig.result().contains("the call was cancelled"), "{op:?}: {}", rig.result());
            slow.gate.release();
        }
    }
}

#[test]
fn while_a_large_tree_is_searched() {
    let site = TestSite::in_memory();
    let line = "x aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa y\n".repeat(600);
    for directory in 0..40 {
        std::fs::create_dir(site.workspace.join(format!("d{directory}"))).unwrap();
        for file in 0..100 {
            site.write(&format!("d{directory}/f{file}"), &line);
        }
    }
    let search = call("search_files", json!({"path": ".", "pattern": "(a|aa)+b|x.*y.*z", "regex": true}));
    for _ in 0..ROUNDS {
        let mut rig = CancelFixture::with_script(&site, &search);
        rig.cancel_when(|heard| wait_for(heard, "begun"));
        assert!(
            rig.result().contains("the call was cancelled"),
            "it was done before it was cancelled: {}",
            rig.result()
        );
    }
}

#[test]
fn while_a_program_runs_and_nothing_of_it_is_left() {
    let site = TestSite::new();
    for round in 0..ROUNDS {
        // A number that no other process has.
        let seconds = format!("{}{round}", 700_000 + std::process::id());
        let code = format!("trap '' TERM INT; touch made; (setsid sleep {seconds} &); echo started; sleep {seconds}");
        let mut rig = CancelFixture::with_script(&site, &call("run_code", json!({"language": "bash", "code": code})));
        rig.cancel_when(|heard| wait_for(heard, "output"));
        assert!(rig.result().contains("the program was terminated"), "{}", rig.result());
        assert!(!process_exists(&seconds), "a process of the program is still there");
        assert!(!site.workspace.join("made").exists(), "what it made was kept");
    }
}

/// Whether there is a process with this argument.
fn process_exists(argument: &str) -> bool {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let mut lines = processes.filter_map(|process| std::fs::read(process.path().join("cmdline")).ok());
    lines.any(|line| line.split(|byte| *byte == 0).any(|part| part == argument.as_bytes()))
}

#[test]
fn while_an_approval_is_pending() {
    let site = TestSite::new();
    site.write("notes", "old");
    for _ in 0..ROUNDS {
        let mut rig =
            CancelFixture::with_script(&site, &call("write_file", json!({"path": "notes", "content": "new"})));
        rig.cancel_when(|heard| wait_for(heard, "asked"));
        assert!(rig.result().contains("the call was cancelled"), "{}", rig.result());
        assert_eq!(site.read("notes"), "old");
    }
}
