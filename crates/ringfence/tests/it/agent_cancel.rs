//! Cancelling ends a run within 100 ms, whatever it waits for: the real tools and the real jail, a file system that does not
//! answer, a server that does not either.
//!
//! In each state a run is cancelled several times, once it is known to be there and not before; the times are printed,
//! and the median counts. What was waited for is looked at afterwards: it still does not answer, or is gone.

use std::future::Future;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::pin::Pin;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ringfence::config::{Flags, load};
use ringfence::wire::{Seat, wire_own};
use ringfence_agent::provider::{Kind, Provider, Timeouts, open};
use ringfence_agent::{Agent, Bounds, Event, Forgetful, Front, History, Message, Outcome, Repair, Tap};
use ringfence_kernel::{ApprovalRequest, Approver, AuditLost, AuditSink, Moment, Record, Word};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::agent::call;
use crate::site::Site;
use crate::slow::{Op, Slow};

/// The longest that a cancelled run may go on.
const AT_ONCE: Duration = Duration::from_millis(100);

/// How often a run is cancelled in each state.
const ROUNDS: usize = 7;

/// How long a run may take to come to where it is cancelled.
const PATIENCE: Duration = Duration::from_secs(60);

/// Tells what happens, to whoever waits for it.
#[derive(Clone, Debug)]
struct News(Arc<Mutex<Sender<String>>>);

impl News {
    fn new() -> (Self, Receiver<String>) {
        let (news, heard) = channel();
        (Self(Arc::new(Mutex::new(news))), heard)
    }

    fn tell(&self, what: &str) {
        // Nobody may listen any more.
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

impl Front for News {
    fn hear(&self, event: &Event<'_>) {
        match event {
            Event::Text { .. } => self.tell("text"),
            Event::Output { .. } => self.tell("output"),
            _ => {}
        }
    }
}

/// Somebody who never answers.
impl Approver for News {
    fn ask<'a>(&'a self, _: &'a ApprovalRequest) -> Pin<Box<dyn Future<Output = Word> + Send + 'a>> {
        self.tell("asked");
        Box::pin(std::future::pending())
    }
}

/// Hears of every record.
#[derive(Debug)]
struct Ear(Tap, News);

impl AuditSink for Ear {
    fn record(&self, record: &Record<'_>) -> Result<(), AuditLost> {
        if matches!(record.moment, Moment::Begin { .. }) {
            self.1.tell("begun");
        }
        self.0.record(record)
    }
}

/// An agent on a workspace, at work on one prompt that it does not come to the end of.
struct Rig {
    agent: Agent,
    heard: Receiver<String>,
    history: History,
}

impl Rig {
    fn new(site: &Site, kind: Kind, base_url: String, (news, heard): (News, Receiver<String>)) -> Self {
        let environment = site.environment();
        let workspace = Some(site.workspace.display().to_string());
        let settings = load(&Flags { workspace, ..Flags::default() }, &environment).unwrap();
        let tap = Tap::default();
        let seat = Seat { ear: Some(Box::new(Ear(tap.clone(), news.clone()))), ..Seat::default() };
        let wired = wire_own(settings, &environment, Box::new(news.clone()), seat).unwrap();
        let (key, headers, timeouts, model) = (None, Vec::new(), Timeouts::default(), "model".to_owned());
        let model = open(Provider { kind, base_url, model, key, headers, timeouts, stream: true }).unwrap();
        let agent = Agent {
            model: Arc::from(model),
            host: wired.host,
            session: wired.session,
            system: "You are a test.".to_owned(),
            temperature: None,
            max_tokens: None,
            repair: Repair::Never,
            bounds: Bounds::default(),
            tap,
            front: Arc::new(news),
        };
        Self { agent, heard, history: History::new(Box::new(Forgetful)) }
    }

    fn playing(site: &Site, answer: &Value) -> Self {
        Self::new(site, Kind::Scripted(format!("{answer}\n")), String::new(), News::new())
    }

    /// Runs until `ready` comes back, and cancels. How long it took from then on.
    fn cancel_when(&mut self, ready: impl FnOnce(&Receiver<String>) + Send) -> (Outcome, Duration) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let cancel = CancellationToken::new();
        let Self { agent, heard, history } = self;
        let heard = Mutex::new(heard);
        let done = std::thread::scope(|scope| {
            let cancelled = scope.spawn(|| {
                // Also where it never comes to that.
                let guard = cancel.clone().drop_guard();
                ready(&heard.lock().unwrap());
                let now = Instant::now();
                drop(guard);
                now
            });
            let outcome = runtime.block_on(agent.run("do it", history, &cancel));
            let ended = Instant::now();
            let cancelled = cancelled.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            (outcome, ended.saturating_duration_since(cancelled))
        });
        runtime.shutdown_background();
        assert_eq!(done.0.end.name(), "cancelled", "{:?}", done.0);
        done
    }

    /// The result of the only call.
    fn result(&self) -> &str {
        let results = self.history.messages().iter().rev().find_map(|message| match message {
            Message::Tool { text, .. } => Some(text.as_str()),
            _ => None,
        });
        results.unwrap_or_default()
    }
}

/// Prints how long each round took, and wants the median to be in time.
fn check(state: &str, round: impl FnMut(usize) -> Option<Duration>) {
    let Some(mut took) = (0..ROUNDS).map(round).collect::<Option<Vec<_>>>() else { return };
    took.sort();
    println!("cancelled {state}: {took:?}");
    assert!(took[ROUNDS / 2] <= AT_ONCE, "{state}: {took:?}");
}

/// A server that says this to one question and then nothing, and tells when it was asked and left.
fn silent_after(said: &'static str, news: News) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    // It ends when its only visitor leaves.
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut buffer = [0; 64 << 10];
        let _ = stream.read(&mut buffer);
        let _ = stream.write_all(said.as_bytes());
        news.tell("questioned");
        while stream.read(&mut buffer).is_ok_and(|length| length > 0) {}
        news.tell("left");
    });
    url
}

const BEGUN: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n\
                     data: {\"choices\":[{\"delta\":{\"content\":\"I thi\"}}]}\n\n";

#[test]
fn while_the_server_of_the_model_says_nothing() {
    let site = Site::new();
    for (state, said, when) in [("waiting for the model", "", "questioned"), ("streaming", BEGUN, "text")] {
        check(state, |_| {
            let (news, heard) = News::new();
            let mut rig = Rig::new(&site, Kind::OpenAi, silent_after(said, news.clone()), (news, heard));
            let (_, took) = rig.cancel_when(|heard| wait_for(heard, when));
            // The connection is given up: nothing else tells the server.
            wait_for(&rig.heard, "left");
            Some(took)
        });
    }
}

#[test]
fn while_a_file_system_does_not_answer_a_read() {
    let site = Site::new();
    let Some(slow) = Slow::mount(&site.workspace) else { return };
    site.write("f.txt", "old\n");
    for op in [Op::Lookup, Op::Open, Op::Read] {
        check(&format!("in a read, at {op:?}"), |_| {
            let mut rig = Rig::playing(&site, &call("read_file", json!({"path": "f.txt"})));
            slow.gate.hold(op);
            let (_, took) = rig.cancel_when(|_| slow.gate.waits_for(1));
            // The run is over, and the file system has still not answered.
            slow.gate.waits_for(1);
            assert!(rig.result().contains("CANCELLED"), "{}", rig.result());
            slow.gate.release();
            Some(took)
        });
    }
}

#[test]
fn while_a_large_tree_is_searched() {
    let site = Site::in_memory();
    let line = "x aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa y\n".repeat(600);
    for directory in 0..40 {
        std::fs::create_dir(site.workspace.join(format!("d{directory}"))).unwrap();
        for file in 0..100 {
            site.write(&format!("d{directory}/f{file}"), &line);
        }
    }
    let search = call("search_files", json!({"path": ".", "pattern": "(a|aa)+b|x.*y.*z", "regex": true}));
    check("in a search of 4,000 files", |_| {
        let mut rig = Rig::playing(&site, &search);
        let (_, took) = rig.cancel_when(|heard| wait_for(heard, "begun"));
        assert!(rig.result().contains("CANCELLED"), "it was done before it was cancelled: {}", rig.result());
        Some(took)
    });
}

#[test]
fn while_a_program_runs_and_nothing_of_it_is_left() {
    let site = Site::new();
    check("in a program", |round| {
        // A number that no other process has.
        let seconds = format!("{}{round}", 700_000 + std::process::id());
        let code = format!("trap '' TERM INT; touch made; (setsid sleep {seconds} &); echo started; sleep {seconds}");
        let mut rig = Rig::playing(&site, &call("run_code", json!({"language": "bash", "code": code})));
        let (_, took) = rig.cancel_when(|heard| wait_for(heard, "output"));
        assert!(rig.result().contains("CANCELLED"), "{}", rig.result());
        assert!(!runs(&seconds), "a process of the program is still there");
        assert!(!site.workspace.join("made").exists(), "what it made was kept");
        Some(took)
    });
}

/// Whether there is a process with this argument.
fn runs(argument: &str) -> bool {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let mut lines = processes.filter_map(|process| std::fs::read(process.path().join("cmdline")).ok());
    lines.any(|line| line.split(|byte| *byte == 0).any(|part| part == argument.as_bytes()))
}

#[test]
fn while_somebody_is_asked() {
    let site = Site::new();
    site.write("notes", "old");
    check("waiting for approval", |_| {
        let mut rig = Rig::playing(&site, &call("write_file", json!({"path": "notes", "content": "new"})));
        let (_, took) = rig.cancel_when(|heard| wait_for(heard, "asked"));
        assert!(rig.result().contains("CANCELLED"), "{}", rig.result());
        assert_eq!(site.read("notes"), "old");
        Some(took)
    });
}
