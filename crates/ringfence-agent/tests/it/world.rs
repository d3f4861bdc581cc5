//! A workspace with the real file tools, a model that plays a script, and a front that writes down what it hears.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ringfence_agent::provider::{Kind, Provider, Timeouts, open};
use ringfence_agent::{
    Agent, Answer, Answering, Ask, Bounds, End, Event, Forgetful, Front, History, Message, Model, Outcome, Parts,
    Repair, Tap, whole,
};
use ringfence_fs::{Fence, MountSpec, Options, Rights};
use ringfence_kernel::{
    Approver, Bits, Choice, Dialect, Host, Limits, MemoryStore, Nobody, Parts as HostParts, Preset, Principal,
    Registry, Session,
};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Gives a registry more tools.
pub(crate) type Extra = Box<dyn FnOnce(&mut Registry)>;

/// How a world is made.
pub(crate) struct Setup {
    pub(crate) dialect: Dialect,
    pub(crate) preset: Preset,
    pub(crate) bounds: Bounds,
    pub(crate) approver: Box<dyn Approver>,
    /// Tools that only a test has.
    pub(crate) extra: Option<Extra>,
    /// What a person says who is asked whether to go on.
    pub(crate) go_on: Option<bool>,
    pub(crate) repair: Repair,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            dialect: Dialect::Standard,
            preset: Preset::Edits,
            bounds: Bounds { steps: 6, ..Bounds::default() },
            approver: Box::new(Nobody { advice: "this is a test".to_owned() }),
            extra: None,
            go_on: None,
            repair: Repair::Never,
        }
    }
}

/// A workspace, an agent on it, and what was heard of it.
#[derive(Debug)]
pub(crate) struct World {
    _directory: tempfile::TempDir,
    pub(crate) root: PathBuf,
    pub(crate) agent: Agent,
    pub(crate) model: Arc<Watched>,
    pub(crate) front: Arc<Heard>,
    pub(crate) history: History,
}

impl World {
    pub(crate) fn new(setup: Setup, script: &[Value]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let root = std::fs::canonicalize(directory.path()).unwrap().join("ws");
        std::fs::create_dir(&root).unwrap();
        let mount = MountSpec { alias: "workspace".to_owned(), path: root.clone(), rights: Rights::ReadWrite };
        let fence = Fence::new(mount, Vec::new(), &directory.path().join("state"), Options::default()).unwrap();
        let mut registry = Registry::new();
        ringfence_fs::register(&mut registry, &fence).unwrap();
        if let Some(register) = setup.extra {
            register(&mut registry);
        }
        let session = Session {
            id: "test".to_owned(),
            principal: Principal::agent("test"),
            dialect: setup.dialect,
            agent: None,
            limits: Limits { denials_in_a_row: u64::MAX, ..Limits::of(setup.dialect) },
            catalog: registry.catalog(setup.dialect, &Choice::default()).unwrap(),
            bits: Bits::default(),
        };
        let tap = Tap::default();
        let host = Host::new(HostParts {
            policy: Box::new(setup.preset),
            approver: setup.approver,
            audit: Box::new(tap.clone()),
            store: Box::new(MemoryStore::default()),
            workers: 4,
        });
        let text: String = script.iter().map(|line| format!("{line}\n")).collect();
        let model = Arc::new(Watched { script: scripted(text), asks: Mutex::default() });
        let front = Arc::new(Heard { go_on: setup.go_on, ..Heard::default() });
        let agent = Agent {
            model: Arc::clone(&model) as Arc<dyn Model>,
            host,
            session: Arc::new(session),
            system: "You are a test.".to_owned(),
            temperature: None,
            max_tokens: None,
            repair: setup.repair,
            bounds: setup.bounds,
            tap,
            front: Arc::clone(&front) as Arc<dyn Front>,
        };
        Self { _directory: directory, root, agent, model, front, history: History::new(Box::new(Forgetful)) }
    }

    pub(crate) async fn prompt(&mut self, prompt: &str) -> Outcome {
        self.prompt_until(prompt, &CancellationToken::new()).await
    }

    pub(crate) async fn prompt_until(&mut self, prompt: &str, cancel: &CancellationToken) -> Outcome {
        let outcome = self.agent.run(prompt, &mut self.history, cancel).await;
        let messages = self.history.messages();
        assert_eq!(whole(messages.to_vec(), self.agent.session.dialect), messages, "a call has its one result");
        assert!(
            matches!(messages.last(), Some(Message::Assistant { calls, .. }) if calls.is_empty()),
            "the model has the last word: {:?}",
            messages.last()
        );
        assert!(!outcome.text.trim().is_empty(), "there is always something to say");
        for pair in messages.windows(2) {
            assert!(!matches!(pair, [Message::User { .. }, Message::User { .. }]), "persons and models take turns");
        }
        outcome
    }

    /// The results that are in the history, in their order.
    pub(crate) fn results(&self) -> Vec<String> {
        let result = |message: &Message| match message {
            Message::Tool { text, .. } => Some(text.clone()),
            _ => None,
        };
        self.history.messages().iter().filter_map(result).collect()
    }

    pub(crate) fn file(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.root.join(path)).ok()
    }

    pub(crate) fn write(&self, path: &str, content: &str) {
        std::fs::write(self.root.join(path), content).unwrap();
    }
}

/// A model that plays a script.
fn scripted(text: String) -> Box<dyn Model> {
    let provider = Provider {
        kind: Kind::Scripted(text),
        base_url: String::new(),
        model: "script".to_owned(),
        key: None,
        headers: Vec::new(),
        timeouts: Timeouts::default(),
        stream: true,
    };
    open(provider).unwrap()
}

/// A script, and what it was asked.
#[derive(Debug)]
pub(crate) struct Watched {
    script: Box<dyn Model>,
    pub(crate) asks: Mutex<Vec<Asked>>,
}

/// One ask.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) messages: Vec<Message>,
    pub(crate) tools: usize,
}

impl Watched {
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asks.lock().unwrap().clone()
    }
}

impl Model for Watched {
    fn name(&self) -> &str {
        self.script.name()
    }

    fn answer<'a>(&'a self, ask: Ask<'a>, parts: &'a mut Parts<'_>) -> Answering<'a, Answer> {
        self.asks.lock().unwrap().push(Asked { messages: ask.messages.to_vec(), tools: ask.tools.len() });
        self.script.answer(ask, parts)
    }

    fn health(&self) -> Answering<'_, ()> {
        self.script.health()
    }
}

/// Writes down what it hears.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    events: Mutex<Vec<String>>,
    news: Notify,
    go_on: Option<bool>,
    /// To be cancelled after so many results.
    cancel: Mutex<Option<(usize, CancellationToken)>>,
}

impl Heard {
    /// What was heard, but for the pieces of answers.
    pub(crate) fn events(&self) -> Vec<String> {
        self.events.lock().unwrap().clone()
    }

    /// Waits until this was heard.
    pub(crate) async fn until(&self, what: &str) {
        let heard = async {
            while !self.has(what) {
                self.news.notified().await;
            }
        };
        timeout(Duration::from_secs(30), heard).await.unwrap_or_else(|_| panic!("no {what} in {:?}", self.events()));
    }

    pub(crate) fn cancel_after_results(&self, count: usize, cancel: &CancellationToken) {
        *self.cancel.lock().unwrap() = Some((count, cancel.clone()));
    }

    pub(crate) fn has(&self, what: &str) -> bool {
        self.events().iter().any(|event| event.contains(what))
    }
}

impl Front for Heard {
    fn hear(&self, event: &Event<'_>) {
        let heard = match event {
            Event::Step { step } => format!("step {step}"),
            Event::Text { text } => format!("text {text}"),
            Event::Reasoning { .. } => "reasoning".to_owned(),
            Event::CallComing { name } => format!("coming {name}"),
            Event::BeganAgain { wait, attempt, .. } => format!("again {attempt} after {}ms", wait.as_millis()),
            Event::Answered { .. } => "answered".to_owned(),
            Event::Note { text } => format!("note {text}"),
            Event::Call { call } => format!("call {}", call.name),
            Event::Output { text, .. } => format!("output {text}"),
            Event::Waiting { request } => format!("waiting {}", request.tool),
            Event::Result { call, error, .. } => format!("result {} {error:?}", call.name),
            Event::Compacted { results, messages } => format!("compacted {results} {messages}"),
            Event::Usage { .. } => return,
            Event::Finished { outcome } => format!("finished {}", outcome.end.name()),
        };
        if let (Event::Result { .. }, Some((left, cancel))) = (event, &mut *self.cancel.lock().unwrap()) {
            *left = left.saturating_sub(1);
            if *left == 0 {
                cancel.cancel();
            }
        }
        self.events.lock().unwrap().push(heard);
        self.news.notify_one();
    }

    fn go_on<'a>(&'a self, why: &'a str) -> Pin<Box<dyn Future<Output = Option<bool>> + Send + 'a>> {
        self.events.lock().unwrap().push(format!("asked {why}"));
        Box::pin(std::future::ready(self.go_on))
    }
}

/// An answer with one call.
pub(crate) fn call(name: &str, arguments: Value) -> Value {
    json!({"calls": [{"name": name, "arguments": arguments}]})
}

pub(crate) fn text(text: &str) -> Value {
    json!({"text": text})
}

pub(crate) fn write(path: &str, content: &str) -> Value {
    call("write_file", json!({"path": path, "content": content}))
}

pub(crate) fn read(path: &str) -> Value {
    call("read_file", json!({"path": path}))
}

#[track_caller]
pub(crate) fn assert_ended(outcome: &Outcome, name: &str) {
    assert_eq!(outcome.end.name(), name, "{outcome:?}");
}

pub(crate) fn is_answered(outcome: &Outcome) -> bool {
    matches!(outcome.end, End::Answered)
}
