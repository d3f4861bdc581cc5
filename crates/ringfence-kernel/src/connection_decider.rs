//! Per-connection policy: each connection of a running program is decided when the program wants it.
//!
//! An allowed connection goes ahead, a denied one is refused. One that requires approval is held for some seconds while
//! its question is open; after that it is refused, and so is every retry at once. The question stays open: its answer counts
//! for the next retry and for the rest of the run. There is one question for each host, and other connections do not wait for it.
//! A request that sends contents is decided like a connection, and its question shows what it would send.
//! A port of this machine that is to be opened for the program is decided in the same way, but nothing waits for it: it is held
//! as long as its question is open.
//!
//! Not here: asking (`connection_approval.rs`), and making connections. The channel of the run does that.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use crate::approval::{Approval, with_rule_details};
use crate::call_context::CallContext;
use crate::error::{ErrorKind, ToolError};
use crate::pending_connection::PendingConnection;
use crate::resource::PolicyAction;
use crate::taint::Taint;
use crate::verdict::{Decision, Verdict};
use crate::workspace::{ConnectionAttempt, EgressChannel};

/// Time for which connections wait for the answer to a question, from when it was asked.
const HOLD_TIME: Duration = Duration::from_secs(12);

/// Questions of one run.
const MAX_QUESTIONS: usize = 32;

/// Interval of looks for counts to be recorded.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);

/// Decides about the connections of one run. It is polled on the thread of the run, and never waits.
///
/// When it is dropped, questions that are still open are withdrawn.
pub struct ConnectionDecider<'a> {
    cx: &'a CallContext<'a>,
    hold_time: Duration,
    /// By action, host and port.
    questions: RefCell<BTreeMap<String, AskedConnection>>,
    asked: Cell<usize>,
    held: RefCell<Vec<ConnectionAttempt>>,
    flushed_at: Cell<Instant>,
    refusal_listener: Option<RefusalListener<'a>>,
}

/// Gets each refusal when it is recorded.
type RefusalListener<'a> = Box<dyn Fn(&ToolError) + 'a>;

/// The question about a host, and what required it.
#[derive(Debug)]
struct AskedConnection {
    verdict: Verdict,
    question: PendingConnection,
    asked_at: Instant,
}

/// The decision about one attempt.
enum ConnectionDecision {
    Allow(Option<Approval>),
    Refuse(ToolError),
    /// Its question has no answer yet.
    Hold,
}

impl<'a> ConnectionDecider<'a> {
    /// For the run of a call.
    pub fn new(cx: &'a CallContext<'a>) -> Self {
        Self::with_hold_time(cx, HOLD_TIME)
    }

    /// The same with another time to wait for an answer.
    pub fn with_hold_time(cx: &'a CallContext<'a>, hold_time: Duration) -> Self {
        let (questions, asked, held) = (RefCell::default(), Cell::new(0), RefCell::default());
        let flushed_at = Cell::new(Instant::now());
        Self { cx, hold_time, questions, asked, held, flushed_at, refusal_listener: None }
    }

    /// The same, which also tells another of each refusal.
    #[must_use]
    pub fn with_refusal_listener(self, listener: impl Fn(&ToolError) + 'a) -> Self {
        Self { refusal_listener: Some(Box::new(listener)), ..self }
    }

    /// Decides about all attempts that came since, and about those held ones whose answer came or whose time is over.
    /// To be called at least every ten milliseconds or so while the program runs.
    pub fn poll(&self, channel: &dyn EgressChannel) {
        while let Some(attempt) = channel.next_attempt() {
            self.decide_attempt(attempt);
        }
        self.poll_held();
    }

    /// The same for a run without a channel.
    pub fn poll_held(&self) {
        for held in self.held.take() {
            match self.is_waiting(&held) {
                true => self.held.borrow_mut().push(held),
                false => self.decide_attempt(held),
            }
        }
        if self.flushed_at.get().elapsed() >= FLUSH_INTERVAL {
            self.flushed_at.set(Instant::now());
            self.cx.flush_connection_counts();
        }
    }

    /// Records what was decided before the program ended, and what was held until then. What else was not decided is not
    /// decided any more.
    pub fn finish(&self, channel: &dyn EgressChannel) {
        for held in self.held.take() {
            let error = self.unanswered_error(&held);
            self.refuse(held, error);
        }
        while let Some(attempt) = channel.next_attempt() {
            if attempt.refusal.is_some() || !attempt.is_undecided() {
                self.decide_attempt(attempt);
            }
        }
    }

    /// The number of connections that wait for an answer.
    pub fn held_count(&self) -> usize {
        self.held.borrow().len()
    }

    fn is_waiting(&self, held: &ConnectionAttempt) -> bool {
        let is_open = |asked: &AskedConnection| asked.question.answer().is_none();
        self.holds(held) && self.questions.borrow().get(&question_key(held)).is_some_and(is_open)
    }

    /// Whether this one still waits for the answer about its host.
    fn holds(&self, attempt: &ConnectionAttempt) -> bool {
        let questions = self.questions.borrow();
        let asked = questions.get(&question_key(attempt));
        let is_port = attempt.access.action == PolicyAction::Listen;
        asked.is_some_and(|asked| is_port || asked.asked_at.elapsed() < self.hold_time)
    }

    /// Decides about one attempt now. One that requires approval is held; later polls decide about it.
    pub fn decide_attempt(&self, attempt: ConnectionAttempt) {
        match self.decide(&attempt) {
            ConnectionDecision::Allow(approval) => {
                // Responses from the network are untrusted content.
                self.cx.add_taint(Taint::SawUntrusted);
                attempt.allow(approval.as_ref(), self.cx);
            }
            ConnectionDecision::Refuse(error) => self.refuse(attempt, error),
            ConnectionDecision::Hold if self.holds(&attempt) => self.held.borrow_mut().push(attempt),
            ConnectionDecision::Hold => {
                let error = self.unanswered_error(&attempt);
                self.refuse(attempt, error);
            }
        }
    }

    fn refuse(&self, attempt: ConnectionAttempt, error: ToolError) {
        if let Some(listener) = &self.refusal_listener {
            listener(&error);
        }
        attempt.refuse(error, self.cx);
    }

    fn unanswered_error(&self, attempt: &ConnectionAttempt) -> ToolError {
        let message = format!(
            "{} requires approval, which was requested and is pending; approve it with `ringfence approvals`, then try \
             again, or see `ringfence why`",
            subject(attempt)
        );
        let error = ToolError::new(ErrorKind::ApprovalPending, message);
        match self.questions.borrow().get(&question_key(attempt)) {
            Some(asked) => with_rule_details(error, &asked.verdict),
            None => error,
        }
    }

    fn decide(&self, attempt: &ConnectionAttempt) -> ConnectionDecision {
        if let Some(refusal) = &attempt.refusal {
            return ConnectionDecision::Refuse(refusal.clone());
        }
        if !attempt.is_undecided() {
            return ConnectionDecision::Allow(None);
        }
        let key = question_key(attempt);
        let mut questions = self.questions.borrow_mut();
        let answer = |verdict: &Verdict| {
            let asked = questions.get(&key).filter(|asked| asked.is_about(verdict))?;
            Some(asked.question.answer())
        };
        let approval = |verdict: &Verdict| match answer(verdict) {
            Some(Some(Ok(approval))) if approval.assurance >= verdict.assurance => Some(approval),
            _ => None,
        };
        let verdict = self.cx.authorize_connection(&attempt.access, &|verdict| match verdict.decision {
            Decision::Allow => true,
            Decision::Ask => approval(verdict).is_some(),
            Decision::Deny => false,
        });
        match (verdict.decision, answer(&verdict)) {
            (Decision::Allow, _) => ConnectionDecision::Allow(None),
            (Decision::Deny, _) => ConnectionDecision::Refuse(denied_error(attempt, &verdict)),
            (Decision::Ask, Some(Some(Ok(approval)))) => match approval.assurance >= verdict.assurance {
                true => ConnectionDecision::Allow(Some(approval)),
                false => ConnectionDecision::Refuse(denied_error(attempt, &verdict)),
            },
            (Decision::Ask, Some(Some(Err(error)))) => ConnectionDecision::Refuse(error),
            (Decision::Ask, Some(None)) => ConnectionDecision::Hold,
            (Decision::Ask, None) if self.asked.get() >= MAX_QUESTIONS => {
                ConnectionDecision::Refuse(exhausted_error(attempt, &verdict))
            }
            (Decision::Ask, None) => {
                self.asked.set(self.asked.get() + 1);
                let question = self.cx.ask_connection(&attempt.access, attempt.preview.as_ref(), &verdict);
                questions.insert(key, AskedConnection { verdict, question, asked_at: Instant::now() });
                ConnectionDecision::Hold
            }
        }
    }
}

impl AskedConnection {
    /// Whether this was asked for the same reason. Another rule may have become relevant since, because of taint.
    fn is_about(&self, verdict: &Verdict) -> bool {
        self.verdict.rule == verdict.rule && self.verdict.layer == verdict.layer
    }
}

/// Questions of a run, by what they are about.
fn question_key(attempt: &ConnectionAttempt) -> String {
    format!("{} {}", attempt.access.action.as_str(), attempt.host())
}

fn subject(attempt: &ConnectionAttempt) -> String {
    match attempt.access.action {
        PolicyAction::Listen => format!("port `{}`", attempt.host()),
        PolicyAction::Send => format!("request to `{}`", attempt.host()),
        _ => format!("connection to `{}`", attempt.host()),
    }
}

fn denied_error(attempt: &ConnectionAttempt, verdict: &Verdict) -> ToolError {
    let advice = match attempt.access.action {
        PolicyAction::Listen | PolicyAction::Send => "see `ringfence why`",
        _ => "use another host, or see `ringfence why`",
    };
    let message = format!("{} denied by rule `{}`; {advice}", subject(attempt), verdict.rule);
    with_rule_details(ToolError::new(ErrorKind::PermissionDenied, message), verdict)
}

fn exhausted_error(attempt: &ConnectionAttempt, verdict: &Verdict) -> ToolError {
    let message = format!(
        "{} requires approval, and this run has requested it for {MAX_QUESTIONS} hosts already; see `ringfence why`, \
         and allow the host by a rule or start a new run",
        subject(attempt)
    );
    with_rule_details(ToolError::new(ErrorKind::ApprovalDenied, message), verdict)
}

impl fmt::Debug for ConnectionDecider<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionDecider")
            .field("questions", &self.questions)
            .field("held", &self.held)
            .finish_non_exhaustive()
    }
}
