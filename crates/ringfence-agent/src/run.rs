//! One prompt, from its first step to its outcome.
//!
//! A step is one whole answer of the model. Its calls are made and their results go back, until it answers without a
//! call or something ends the run; every way to end is in `End`. After the last step that may ask for tools the model is
//! asked once more, without any, so that there is an answer. Whatever the model does, the history stays whole: every call
//! in it has its one result, and the model had the last word.
//!
//! Not here: asking (`ask.rs`), and making calls (`calls.rs`).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ringfence_kernel::{Bit, Host, Session};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::ask::{Asking, Gauge};
use crate::bounds::Bounds;
use crate::calls::MOST_CALLS;
use crate::event::{Event, Front};
use crate::history::{History, MemoryLost};
use crate::ledger::Tap;
use crate::message::{Message, RequestedCall};
use crate::model::{Answer, Finish, Model, Offered, Usage};
use crate::outcome::{End, Outcome};
use crate::pseudo;
use crate::repair::{self, Repair};
use crate::repeat::Repeats;

const SUMMARISE: &str = "this prompt has no steps left, and no tools can be called any more; say in plain words what was \
                         done, what was found out and what is left to do";
const SAY_SOMETHING: &str = "your answer was empty; answer the prompt in plain words, or call a tool";
const NOT_A_CALL: &str = "you wrote a tool call as text, and text is never run; make the call through the interface for \
                          tools, or answer in plain words";
const STILL_TEXT: &str = "the model writes its calls as text, and so nothing is done; `ringfence agent --probe` says whether its \
                          server knows tools, and with `repair_tool_calls = true` such calls are made";
const CUT: &str = "your answer was cut at the limit of tokens, and no call in it was made; answer again in fewer words, and \
                   write long files in several calls";

/// What works on prompts.
#[derive(Debug)]
pub struct Agent {
    pub model: Arc<dyn Model>,
    pub host: Host,
    pub session: Arc<Session>,
    /// What the model is told before anything else.
    pub system: String,
    pub temperature: Option<f64>,
    pub max_tokens: Option<u64>,
    pub repair: Repair,
    pub bounds: Bounds,
    /// Hears the records of `host`.
    pub tap: Tap,
    pub front: Arc<dyn Front>,
}

impl Agent {
    /// Works on a prompt. Always comes back, with something to say.
    pub async fn run(&self, prompt: &str, history: &mut History, cancel: &CancellationToken) -> Outcome {
        let tools = self.tools();
        self.tap.begin();
        let started = Instant::now();
        let mut run = Run {
            agent: self,
            cancel,
            deadline: self.bounds.time.map(|time| started + time),
            gauge: Gauge::new(&self.system, &tools),
            history,
            steps: 0,
            usage: Usage::default(),
            estimated: false,
            denials: 0,
            bad_answers: 0,
            repeats: Repeats::default(),
            told_empty: false,
            told_text: false,
            told_cut: false,
        };
        let ended = match run.history.prompt(prompt) {
            Ok(()) => run.go(&tools).await,
            Err(lost) => Ended::with(End::Memory(lost)),
        };
        let outcome = run.conclude(ended, started.elapsed());
        self.front.hear(&Event::Finished { outcome: &outcome });
        outcome
    }

    fn tools(&self) -> Vec<Offered> {
        let offered = self.session.catalog.list().map(|tool| Offered {
            name: tool.name.to_string(),
            description: tool.description.clone(),
            parameters: tool.parameters.clone(),
        });
        offered.collect()
    }
}

/// A run on its way.
#[derive(Debug)]
pub(crate) struct Run<'a> {
    pub(crate) agent: &'a Agent,
    pub(crate) cancel: &'a CancellationToken,
    pub(crate) history: &'a mut History,
    pub(crate) gauge: Gauge,
    pub(crate) steps: u32,
    pub(crate) usage: Usage,
    pub(crate) estimated: bool,
    pub(crate) denials: u32,
    /// Answers in a row of which no call made sense.
    pub(crate) bad_answers: u32,
    pub(crate) repeats: Repeats,
    deadline: Option<Instant>,
    /// What the model was told already; it is told once.
    told_empty: bool,
    told_text: bool,
    told_cut: bool,
}

/// How a run ended, and the model's last words.
struct Ended {
    end: End,
    text: String,
}

impl Ended {
    fn with(end: End) -> Self {
        Self { end, text: String::new() }
    }
}

/// What comes after a step.
enum Next {
    Over(Ended),
    /// The next step, with something that the model is told for it.
    Step(Option<&'static str>),
}

impl Run<'_> {
    async fn go(&mut self, tools: &[Offered]) -> Ended {
        let mut aside = None;
        loop {
            if let Some(end) = self.over() {
                return Ended::with(end);
            }
            self.hear(&Event::Step { step: self.steps + 1 });
            let answer = match self.ask(Asking { tools, aside }).await {
                Ok(answer) => answer,
                Err(end) => return Ended::with(end),
            };
            self.steps += 1;
            self.hear(&Event::Answered { text: &answer.text });
            for oddity in &answer.oddities {
                self.hear(&Event::Note { text: oddity });
            }
            match self.take(answer, tools).await {
                Err(lost) => return Ended::with(End::Memory(lost)),
                Ok(Next::Over(ended)) => return ended,
                Ok(Next::Step(told)) => aside = told,
            }
            if self.over_budget() {
                return Ended::with(End::Tokens);
            }
            if self.is_last() {
                return self.finish(tools).await;
            }
        }
    }

    /// Does what an answer asks for.
    async fn take(&mut self, answer: Answer, tools: &[Offered]) -> Result<Next, MemoryLost> {
        let Answer { text, mut calls, calls_dropped, refusal, finish, reasoning_state: reasoning, .. } = answer;
        let said = refusal.clone().filter(|_| text.trim().is_empty()).unwrap_or_else(|| text.clone());
        match finish {
            _ if refusal.is_some() => return self.last_words(End::Refusal, said),
            Finish::Refusal => return self.last_words(End::Refusal, said),
            Finish::Filter => return self.last_words(End::Filter, said),
            Finish::Length => return self.cut(text),
            Finish::Stop | Finish::Calls | Finish::Other(_) => {}
        }
        // Who writes nothing, or that there is nothing, means no arguments.
        for call in calls.iter_mut().filter(|call| matches!(call.arguments.trim(), "" | "null")) {
            call.arguments = "{}".to_owned();
        }
        let (text, calls) = match self.agent.repair {
            Repair::Never => (text, calls),
            Repair::OneMeaning => self.repaired(text, calls, tools),
        };
        if !calls.is_empty() {
            let calls = self.told_apart(calls);
            self.history.push(Message::Assistant { text, calls: calls.clone(), reasoning })?;
            if let Some(end) = self.make_calls(&calls).await {
                // What it said beside its calls is no answer.
                return Ok(Next::Over(Ended::with(end)));
            }
            if calls_dropped > 0 {
                let told = format!(
                    "too_many_calls: {calls_dropped} further calls of that answer were not made; at most {MOST_CALLS} are"
                );
                self.hear(&Event::Note { text: &told });
                self.history.note(&told)?;
            }
            return Ok(Next::Step(None));
        }
        if text.trim().is_empty() {
            return Ok(match self.may_tell(self.told_empty) {
                true => {
                    self.told_empty = true;
                    self.hear(&Event::Note { text: SAY_SOMETHING });
                    Next::Step(Some(SAY_SOMETHING))
                }
                false => Next::Over(Ended::with(End::Empty)),
            });
        }
        let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
        if pseudo::has_call(&text, &names) {
            if self.may_tell(self.told_text) {
                self.told_text = true;
                self.push_text(text)?;
                return self.tell(NOT_A_CALL);
            }
            self.hear(&Event::Note { text: STILL_TEXT });
        }
        self.last_words(End::Answered, text)
    }

    /// The calls as they are meant, those among them that the model wrote as text. What was done to them is said.
    fn repaired(&self, text: String, mut calls: Vec<RequestedCall>, tools: &[Offered]) -> (String, Vec<RequestedCall>) {
        let mut said = text;
        if calls.is_empty()
            && !self.may_be_quoted(&said)
            && let Some(found) = repair::calls_in(&said, tools)
        {
            self.hear(&Event::Note { text: &format!("{} call(s) written as text are made", found.len()) });
            (said, calls) = (String::new(), found);
        }
        for call in &mut calls {
            let done = repair::repair(call, tools);
            if !done.is_empty() {
                let note = format!("a call of `{}` was repaired: {}", call.name, done.join("; "));
                self.hear(&Event::Note { text: &note });
            }
        }
        (said, calls)
    }

    /// Whether a text may be somebody else's: the session saw what nobody vouches for, or the text was there before.
    fn may_be_quoted(&self, text: &str) -> bool {
        let text = text.trim();
        let escaped = serde_json::to_string(text).unwrap_or_default();
        let escaped = escaped.trim_matches('"');
        let was_there = |message: &Message| match message {
            Message::User { text: said } | Message::Assistant { text: said, .. } | Message::Tool { text: said, .. } => {
                said.contains(text) || said.contains(escaped)
            }
        };
        self.agent.session.bits.has(Bit::SawUntrusted) || self.history.messages().iter().any(was_there)
    }

    /// The calls with an id each that no other one of the answer has.
    fn told_apart(&self, mut calls: Vec<RequestedCall>) -> Vec<RequestedCall> {
        let mut taken = BTreeSet::new();
        for (number, call) in calls.iter_mut().enumerate() {
            if call.id.is_empty() || !taken.insert(call.id.clone()) {
                let mut id = format!("call-{}-{}", self.steps, number + 1);
                while !taken.insert(id.clone()) {
                    id.push('+');
                }
                self.hear(&Event::Note {
                    text: &format!("a call of `{}` had no id of its own: it is `{id}` now", call.name),
                });
                call.id = id;
            }
        }
        calls
    }

    /// An answer that was cut by a limit: nothing in it counts but what it says.
    fn cut(&mut self, text: String) -> Result<Next, MemoryLost> {
        if !self.may_tell(self.told_cut) {
            return self.last_words(End::Length, text);
        }
        self.told_cut = true;
        self.push_text(if text.trim().is_empty() { "(cut)".to_owned() } else { text })?;
        self.tell(CUT)
    }

    /// Whether the model may be told to try again: once each, and while it has steps.
    fn may_tell(&self, told: bool) -> bool {
        !told && !self.is_last()
    }

    fn tell(&mut self, text: &'static str) -> Result<Next, MemoryLost> {
        self.hear(&Event::Note { text });
        self.history.note(text)?;
        Ok(Next::Step(None))
    }

    fn push_text(&mut self, text: String) -> Result<(), MemoryLost> {
        self.history.push(Message::answer(text))
    }

    fn last_words(&mut self, end: End, text: String) -> Result<Next, MemoryLost> {
        if !text.trim().is_empty() {
            self.push_text(text.clone())?;
        }
        Ok(Next::Over(Ended { end, text }))
    }

    /// The one more step without tools, so that there is an answer.
    async fn finish(&mut self, tools: &[Offered]) -> Ended {
        self.hear(&Event::Note { text: SUMMARISE });
        self.hear(&Event::Step { step: self.steps + 1 });
        let answer = match self.ask(Asking { tools: &[], aside: Some(SUMMARISE) }).await {
            Ok(answer) => answer,
            Err(End::Cancelled) => return Ended::with(End::Cancelled),
            // The host says it instead.
            Err(end) => {
                self.hear(&Event::Note { text: &end.why() });
                return Ended::with(End::Steps);
            }
        };
        self.steps += 1;
        for call in &answer.calls {
            let refused = format!("a call of `{}` was refused: no tools are offered in this step", call.name);
            self.hear(&Event::Note { text: &refused });
        }
        let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
        let text = pseudo::strip(&answer.text, &names);
        self.hear(&Event::Answered { text: &text });
        let pushed = if text.is_empty() { Ok(()) } else { self.push_text(text.clone()) };
        match pushed {
            Ok(()) => Ended { end: End::Steps, text },
            Err(lost) => Ended::with(End::Memory(lost)),
        }
    }

    /// Puts together what there is to say.
    fn conclude(self, ended: Ended, duration: Duration) -> Outcome {
        let Ended { end, text } = ended;
        let ledger = self.agent.tap.ledger();
        let by_host = text.trim().is_empty();
        let text = match by_host {
            false => text,
            true => {
                let done: String = ledger.lines().iter().map(|line| format!("- {line}\n")).collect();
                format!("{}.\nWhat was done:\n{done}", capital(&end.why()))
            }
        };
        // The model goes on from here with the next prompt. What cannot be kept now is told then.
        let _ = self.history.close(&format!("({})", end.why()));
        let Self { steps, usage, estimated, .. } = self;
        Outcome { end, text, by_host, steps, usage, estimated, ledger, duration }
    }

    fn is_last(&self) -> bool {
        self.steps >= self.agent.bounds.steps.max(1)
    }

    fn over_budget(&self) -> bool {
        self.agent.bounds.tokens.is_some_and(|most| self.usage.total >= most)
    }

    /// Why the run is over from outside, if it is.
    pub(crate) fn over(&self) -> Option<End> {
        if self.cancel.is_cancelled() {
            return Some(End::Cancelled);
        }
        self.deadline.is_some_and(|deadline| deadline <= Instant::now()).then_some(End::Time)
    }

    pub(crate) async fn time_is_over(&self) {
        match self.deadline {
            Some(deadline) => sleep_until(deadline).await,
            None => std::future::pending().await,
        }
    }

    /// Waits for something, unless the run is over first.
    pub(crate) async fn unless_over<T>(&self, work: impl Future<Output = T>) -> Result<T, End> {
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => Err(End::Cancelled),
            () = self.time_is_over() => Err(End::Time),
            done = work => Ok(done),
        }
    }

    pub(crate) fn hear(&self, event: &Event<'_>) {
        self.agent.front.hear(event);
    }
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map(|first| first.to_uppercase().chain(chars).collect()).unwrap_or_default()
}
