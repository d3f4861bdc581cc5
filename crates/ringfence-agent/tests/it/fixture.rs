//! Test fixture: a workspace with the real file tools, a scripted model, and a recording observer.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ringfence_agent::provider::{ModelProvider, ProviderProtocol, ProviderTimeouts, open};
use ringfence_agent::{
    Agent, AgentEvent, AgentLimits, AgentObserver, AgentOutcome, AgentStopReason, CallRepair, LanguageModel,
    LedgerSink, MessageHistory, ModelFuture, ModelRequest, ModelResponse, NoTranscript, ResponsePartSink, ToolLoading,
    TranscriptMessage, complete_calls,
};
use ringfence_fs::{Fence, FenceOptions, MountAccess, MountSpec};
use ringfence_kernel::{
    Approver, CallLimits, DenyApprover, Dialect, Host, HostConfig as HostParts, Preset, Session, ToolRegistry,
};
use ringfence_testkit::host::{test_host_config, test_session};
use ringfence_testkit::world::TestWorld;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Gives a registry more tools.
pub(crate) type ExtraTools = Box<dyn FnOnce(&mut ToolRegistry)>;

/// Setup of a fixture.
pub(crate) struct AgentSetup {
    pub(crate) dialect: Dialect,
    pub(crate) preset: Preset,
    pub(crate) bounds: AgentLimits,
    pub(crate) approver: Box<dyn Approver>,
    /// Tools that only a test has.
    pub(crate) extra: Option<ExtraTools>,
    /// A person's answer to whether to go on.
    pub(crate) confirm_continue: Option<bool>,
    pub(crate) repair: CallRepair,
    pub(crate) tool_loading: ToolLoading,
}

impl Default for AgentSetup {
    fn default() -> Self {
        Self {
            dialect: Dialect::Standard,
            preset: Preset::Edits,
            bounds: AgentLimits { steps: 6, ..AgentLimits::default() },
            approver: Box::new(DenyApprover { advice: "this is a test".to_owned() }),
            extra: None,
            confirm_continue: None,
            repair: CallRepair::Never,
            tool_loading: ToolLoading::All,
        }
    }
}

/// A workspace, an agent on it, and what was heard of it.
#[derive(Debug)]
pub(crate) struct AgentFixture {
    _world: TestWorld,
    pub(crate) root: PathBuf,
    pub(crate) agent: Agent,
    pub(crate) model: Arc<RecordingModel>,
    pub(crate) observer: Arc<RecordingObserver>,
    pub(crate) history: MessageHistory,
}

impl AgentFixture {
    pub(crate) fn new(setup: AgentSetup, script: &[Value]) -> Self {
        let world = TestWorld::new();
        let root = world.workspace.clone();
        let mount = MountSpec { alias: "workspace".to_owned(), path: root.clone(), rights: MountAccess::ReadWrite };
        let fence = Fence::new(mount, Vec::new(), &world.state, FenceOptions::default()).unwrap();
        let mut registry = ToolRegistry::new();
        ringfence_fs::register(&mut registry, &fence).unwrap();
        if let Some(register) = setup.extra {
            register(&mut registry);
        }
        let limits = CallLimits { denials_in_a_row: u64::MAX, ..CallLimits::for_dialect(setup.dialect) };
        let session = Session { limits, ..test_session(&registry, setup.dialect) };
        let tap = LedgerSink::default();
        let host = Host::new(HostParts {
            policy: Box::new(setup.preset),
            approver: setup.approver,
            audit: Box::new(tap.clone()),
            ..test_host_config()
        });
        let text: String = script.iter().map(|line| format!("{line}\n")).collect();
        let model = Arc::new(RecordingModel { script: scripted(text), requests: Mutex::default() });
        let observer =
            Arc::new(RecordingObserver { confirm_continue: setup.confirm_continue, ..RecordingObserver::default() });
        let agent = Agent {
            model: Arc::clone(&model) as Arc<dyn LanguageModel>,
            host,
            session: Arc::new(session),
            system: "You are a test.".to_owned(),
            temperature: None,
            max_tokens: None,
            repair: setup.repair,
            tool_loading: setup.tool_loading,
            limits: setup.bounds,
            tap,
            observer: Arc::clone(&observer) as Arc<dyn AgentObserver>,
        };
        Self { _world: world, root, agent, model, observer, history: MessageHistory::new(Box::new(NoTranscript)) }
    }

    pub(crate) async fn prompt(&mut self, prompt: &str) -> AgentOutcome {
        self.prompt_until(prompt, &CancellationToken::new()).await
    }

    pub(crate) async fn prompt_until(&mut self, prompt: &str, cancel: &CancellationToken) -> AgentOutcome {
        let outcome = self.agent.run(prompt, &mut self.history, cancel).await;
        let messages = self.history.messages();
        assert_eq!(
            complete_calls(messages.to_vec(), self.agent.session.dialect),
            messages,
            "a call has its one result"
        );
        assert!(
            matches!(messages.last(), Some(TranscriptMessage::Assistant { calls, .. }) if calls.is_empty()),
            "the model has the last word: {:?}",
            messages.last()
        );
        assert!(!outcome.text.trim().is_empty(), "there is always something to say");
        for pair in messages.windows(2) {
            assert!(
                !matches!(pair, [TranscriptMessage::User { .. }, TranscriptMessage::User { .. }]),
                "persons and models take turns"
            );
        }
        outcome
    }

    /// The results that are in the history, in their order.
    pub(crate) fn results(&self) -> Vec<String> {
        let result = |message: &TranscriptMessage| match message {
            TranscriptMessage::Tool { text, .. } => Some(text.clone()),
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
fn scripted(text: String) -> Box<dyn LanguageModel> {
    let provider = ModelProvider {
        kind: ProviderProtocol::Scripted(text),
        base_url: String::new(),
        model: "script".to_owned(),
        key: None,
        headers: Vec::new(),
        timeouts: ProviderTimeouts::default(),
        stream: true,
    };
    open(provider).unwrap()
}

/// A script, and what it was asked.
#[derive(Debug)]
pub(crate) struct RecordingModel {
    script: Box<dyn LanguageModel>,
    pub(crate) requests: Mutex<Vec<RecordedRequest>>,
}

/// One ask.
#[derive(Clone, Debug)]
pub(crate) struct RecordedRequest {
    pub(crate) messages: Vec<TranscriptMessage>,
    pub(crate) tools: Vec<String>,
}

impl RecordingModel {
    pub(crate) fn recorded(&self) -> Vec<RecordedRequest> {
        self.requests.lock().unwrap().clone()
    }
}

impl LanguageModel for RecordingModel {
    fn name(&self) -> &str {
        self.script.name()
    }

    fn respond<'a>(
        &'a self,
        ask: ModelRequest<'a>,
        parts: &'a mut ResponsePartSink<'_>,
    ) -> ModelFuture<'a, ModelResponse> {
        let tools = ask.tools.iter().map(|tool| tool.name.clone()).collect();
        self.requests.lock().unwrap().push(RecordedRequest { messages: ask.messages.to_vec(), tools });
        self.script.respond(ask, parts)
    }

    fn health(&self) -> ModelFuture<'_, ()> {
        self.script.health()
    }
}

/// Writes down what it hears.
#[derive(Debug, Default)]
pub(crate) struct RecordingObserver {
    events: Mutex<Vec<String>>,
    changed: Notify,
    confirm_continue: Option<bool>,
    /// Cancelled after this number of results.
    cancel: Mutex<Option<(usize, CancellationToken)>>,
}

impl RecordingObserver {
    /// The events, but for parts of responses.
    pub(crate) fn events(&self) -> Vec<String> {
        self.events.lock().unwrap().clone()
    }

    /// Waits until this was heard.
    pub(crate) async fn wait_for(&self, what: &str) {
        let heard = async {
            while !self.has_event(what) {
                self.changed.notified().await;
            }
        };
        timeout(Duration::from_secs(30), heard).await.unwrap_or_else(|_| panic!("no {what} in {:?}", self.events()));
    }

    pub(crate) fn cancel_after_results(&self, count: usize, cancel: &CancellationToken) {
        *self.cancel.lock().unwrap() = Some((count, cancel.clone()));
    }

    pub(crate) fn has_event(&self, what: &str) -> bool {
        self.events().iter().any(|event| event.contains(what))
    }
}

impl AgentObserver for RecordingObserver {
    fn on_event(&self, event: &AgentEvent<'_>) {
        let heard = match event {
            AgentEvent::Step { step } => format!("step {step}"),
            AgentEvent::Text { text } => format!("text {text}"),
            AgentEvent::Reasoning { .. } => "reasoning".to_owned(),
            AgentEvent::CallStarted { name } => format!("coming {name}"),
            AgentEvent::Retrying { wait, attempt, .. } => format!("again {attempt} after {}ms", wait.as_millis()),
            AgentEvent::ResponseComplete { .. } => "answered".to_owned(),
            AgentEvent::Note { text } => format!("note {text}"),
            AgentEvent::Call { call } => format!("call {}", call.name),
            AgentEvent::Output { text, .. } => format!("output {text}"),
            AgentEvent::AwaitingApproval { request } => format!("waiting {}", request.tool),
            AgentEvent::Result { call, reply, .. } => format!("result {} {:?}", call.name, reply.error_kind()),
            AgentEvent::Compacted { results, messages } => format!("compacted {results} {messages}"),
            AgentEvent::Usage { .. } => return,
            AgentEvent::Finished { outcome } => format!("finished {}", outcome.stop_reason.name()),
        };
        if let (AgentEvent::Result { .. }, Some((left, cancel))) = (event, &mut *self.cancel.lock().unwrap()) {
            *left = left.saturating_sub(1);
            if *left == 0 {
                cancel.cancel();
            }
        }
        self.events.lock().unwrap().push(heard);
        self.changed.notify_one();
    }

    fn confirm_continue<'a>(&'a self, why: &'a str) -> Pin<Box<dyn Future<Output = Option<bool>> + Send + 'a>> {
        self.events.lock().unwrap().push(format!("asked {why}"));
        Box::pin(std::future::ready(self.confirm_continue))
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
pub(crate) fn assert_ended(outcome: &AgentOutcome, name: &str) {
    assert_eq!(outcome.stop_reason.name(), name, "{outcome:?}");
}

pub(crate) fn is_answered(outcome: &AgentOutcome) -> bool {
    matches!(outcome.stop_reason, AgentStopReason::Answered)
}
