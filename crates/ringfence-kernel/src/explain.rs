//! What the policy would say to a call, without making it.
//!
//! The call is decoded, planned and policed as on the road, by the same deadline, and goes no further: nothing runs,
//! nobody is asked, no bit goes up. It leaves no record, because nothing happens and it is the person in charge who asks.

use std::sync::Arc;

use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::tool::Road;
use crate::{
    Abandon, AuditLost, Bit, Context, ErrorKind, Host, Pace, Place, Policy, Progress, Question, Scope, Sensitivity,
    Session, Signal, ToolCall, ToolError, Touch, Verb, Verdict, WORKSPACE,
};

/// What would be decided about a call, and about everything that it would touch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    pub verdict: Verdict,
    pub touches: Vec<Explained>,
    /// For a program: what would be decided about what it leaves.
    pub afterwards: Vec<ExplainedChange>,
}

/// What would be decided about one kind of change that a program leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplainedChange {
    /// In words, such as "overwrite a file".
    pub change: &'static str,
    pub verdict: Verdict,
}

/// The kinds of change that a program can leave. Rules about paths say more to single ones.
const CHANGES: [(&str, Verb, Sensitivity); 6] = {
    const PLAIN: Sensitivity = Sensitivity { secret: false, protected: false };
    const PROTECTED: Sensitivity = Sensitivity { secret: false, protected: true };
    [
        ("create a file", Verb::Create, PLAIN),
        ("overwrite a file", Verb::Overwrite, PLAIN),
        ("delete a file or directory", Verb::Delete, PLAIN),
        ("create a protected path", Verb::Create, PROTECTED),
        ("overwrite or delete a protected path", Verb::Overwrite, PROTECTED),
        ("overwrite or delete what is too large to be kept for undo", Verb::Lose, PLAIN),
    ]
};

/// What would be decided about one touch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explained {
    pub touch: Touch,
    pub verdict: Verdict,
}

impl Host {
    /// Says what would be decided. An error is one that the call itself would get before it is decided about.
    pub async fn explain(&self, session: &Arc<Session>, call: ToolCall) -> Result<Explanation, ToolError> {
        if !session.principal.may(Scope::Call) {
            let message = format!("`{}` may not call tools", session.principal.name);
            return Err(ToolError::new(ErrorKind::PermissionDenied, message));
        }
        let Some(offer) = session.catalog.offer(&call.name).cloned() else {
            let offered = session.catalog.list().map(|definition| definition.name.as_ref());
            return Err(session.dialect.unknown_tool(&call.name, offered));
        };
        let signal = Signal::new();
        let (host, session, worker) = (self.clone(), Arc::clone(session), signal.clone());
        let limit = session.limits.call_time;
        let job = async move {
            // The semaphore is never closed, so this only ever waits.
            let permit = host.workers.clone().acquire_owned().await.ok();
            let look = move || {
                let _permit = permit;
                let definition = offer.definition();
                let tool = definition.name.as_ref();
                let looking = Looking { policy: host.parts.policy.as_ref(), session: &session, tool };
                let cx = Context::new(&session.limits, Pace::Patient, &worker).on_road(&looking);
                let (touches, _) = offer.plan(&call.arguments, &cx)?;
                Ok(looking.explain(touches, definition.effect.verbs))
            };
            spawn_blocking(look).await.unwrap_or_else(|_| {
                Err(ToolError::new(ErrorKind::Internal, "the tool failed in a way that it should not"))
            })
        };
        timeout(limit, job).await.unwrap_or_else(|_| {
            signal.abandon(Abandon::Deadline);
            Err(Abandon::Deadline.error())
        })
    }
}

/// A call that is only looked at.
#[derive(Debug)]
pub(crate) struct Looking<'a> {
    pub(crate) policy: &'a dyn Policy,
    pub(crate) session: &'a Session,
    pub(crate) tool: &'a str,
}

impl Looking<'_> {
    fn explain(&self, touches: Vec<Touch>, verbs: &[Verb]) -> Explanation {
        let question = self.question(&touches);
        let verdict = self.policy.decide(&question);
        let judged: Vec<Verdict> = touches.iter().map(|touch| self.policy.judge(touch, &question)).collect();
        let runs = touches.iter().any(|touch| touch.verb == Verb::Run);
        let touches = touches.into_iter().zip(judged).map(|(touch, verdict)| Explained { touch, verdict }).collect();
        let afterwards = CHANGES.into_iter().filter(|(_, verb, _)| runs && verbs.contains(verb));
        let afterwards = afterwards.map(|change| self.explain_change(change)).collect();
        Explanation { verdict, touches, afterwards }
    }

    fn explain_change(&self, (change, verb, sensitivity): (&'static str, Verb, Sensitivity)) -> ExplainedChange {
        let place = Place {
            mount: Arc::from(WORKSPACE[0]),
            given: "any path".to_owned(),
            shown: "any path".to_owned(),
            sensitivity,
            ..Place::default()
        };
        ExplainedChange { change, verdict: self.judge(&Touch { verb, place }) }
    }

    pub(crate) fn question<'q>(&'q self, touches: &'q [Touch]) -> Question<'q> {
        Question::new(self.session, self.tool, touches, self.session.bits.now())
    }
}

impl Road for Looking<'_> {
    fn judge(&self, touch: &Touch) -> Verdict {
        self.policy.judge(touch, &self.question(std::slice::from_ref(touch)))
    }

    /// Nothing happens.
    fn raise(&self, _: Bit) {}

    fn report(&self, _: &Progress<'_>) {}

    fn reached(&self, _: &Touch, _: Option<&ToolError>) -> Result<(), AuditLost> {
        Ok(())
    }
}
