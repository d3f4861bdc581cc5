//! Bringing a call back that was put off until its answer.
//!
//! The token says which call and what was shown; the store says what was answered. The call is planned again, and runs
//! only if the plan is the one that was approved. A token is good for one run, for who got it, until it expires.

use std::sync::Arc;
use std::time::SystemTime;

use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use crate::ask::not_yet;
use crate::gate::{Asker, denial_message};
use crate::grants::rule_line;
use crate::seal::Sealed;
use crate::trip::{Asked, Leg, moved};
use crate::turn::Said;
use crate::{
    Answered, Approval, ApprovalRequest, Decision, Desk, DeskError, ErrorKind, Fatal, Host, Listener, Reply, Session,
    Store, Suspended, ToolCall, ToolError,
};

impl Host {
    /// Goes on with a call that was suspended. While nobody answered, the reply says so and the token stays good.
    pub async fn resume(
        &self,
        session: &Arc<Session>,
        token: &str,
        cancel: &CancellationToken,
    ) -> Result<Reply, Fatal> {
        self.resume_heard(session, token, cancel, None).await
    }

    async fn resume_heard(
        &self,
        session: &Arc<Session>,
        token: &str,
        cancel: &CancellationToken,
        listener: Option<Arc<dyn Listener>>,
    ) -> Result<Reply, Fatal> {
        let key = self.in_store(|store| store.key()).await?;
        let is_theirs = |sealed: &Sealed| sealed.principal == session.principal.name && sealed.session == session.id;
        let opened = Sealed::open(token, &key).filter(is_theirs);
        let Some(sealed) = opened else {
            let nothing = String::new;
            let call = ToolCall { id: nothing(), name: "resume".to_owned(), arguments: nothing() };
            return self.trip(session, call).refuse(&[], &refused("the token is not one that was given to you"));
        };
        let call = ToolCall { id: sealed.call.clone(), name: sealed.tool.clone(), arguments: sealed.arguments.clone() };
        let (request, answered) = match self.answer_to(&sealed).await? {
            Found::Answered(found) => *found,
            Found::Nothing(why) => return self.trip(session, call).refuse(&[], &refused(why)),
            Found::NotYet => {
                let reply = self.trip(session, call).refuse(&[], &not_yet(&sealed.request))?;
                let suspended = Suspended { token: token.to_owned(), request: sealed.request };
                return Ok(Reply { suspended: Some(suspended), ..reply });
            }
        };
        self.go_on(session, call, Comeback { sealed, request, answered, listener }, cancel).await
    }

    /// The same for a front whose client brings the whole call back, perhaps with the answer of its user. The call must be
    /// the one that the token is for. An answer that is not sure enough is none, and leaves the request to others.
    pub async fn resume_call(
        &self,
        session: &Arc<Session>,
        back: Returned,
        cancel: &CancellationToken,
    ) -> Result<Reply, Fatal> {
        let Returned { token, call, answered, listener } = back;
        let key = self.in_store(|store| store.key()).await?;
        let is_theirs = |sealed: &Sealed| sealed.principal == session.principal.name && sealed.session == session.id;
        if let Some(sealed) = Sealed::open(&token, &key).filter(is_theirs) {
            if !sealed.is_for(&call, session) {
                return self.trip(session, call).refuse(&[], &refused("the token is for another call"));
            }
            match answered {
                Some(Answered { response, approval: Approval { assurance, by: Some(by) } }) => {
                    let put = move |store: &dyn Store| {
                        let desk = Desk { store, by: &by };
                        match desk.answer(&sealed.request, response, assurance, SystemTime::now()) {
                            Err(DeskError::Store(lost)) => Err(lost),
                            // Whoever was first counts, and what nobody may answer waits on.
                            _ => Ok(()),
                        }
                    };
                    self.in_store(put).await?;
                }
                // A no that nobody said is the client's own: it gives its call up.
                Some(answered) if !answered.response.approved => {
                    self.first_of(&sealed.request, answered).await?;
                }
                Some(_) | None => {}
            }
        }
        self.resume_heard(session, &token, cancel, listener).await
    }

    /// What was answered, if this token may still be used. Then it is used up.
    async fn answer_to(&self, sealed: &Sealed) -> Result<Found, Fatal> {
        let Sealed { request: id, nonce, expires, .. } = sealed.clone();
        self.in_store(move |store| {
            let now = SystemTime::now();
            if expires <= now {
                return Ok(Found::Nothing("the token has expired"));
            }
            let found = store.request(&id)?;
            let answered = store.answer_of(&id)?;
            match (found, answered) {
                (Some(_), None) => Ok(Found::NotYet),
                (Some(request), Some(answered)) if store.use_once(&nonce, expires, now)? => {
                    store.close(&id)?;
                    Ok(Found::Answered(Box::new((request, answered))))
                }
                _ => Ok(Found::Nothing("the token was used already")),
            }
        })
        .await
    }

    async fn go_on(
        &self,
        session: &Arc<Session>,
        call: ToolCall,
        mut comeback: Comeback,
        cancel: &CancellationToken,
    ) -> Result<Reply, Fatal> {
        let (trip, offer) = match self.depart(session, call, comeback.listener.take())? {
            Ok(departed) => departed,
            Err(reply) => return Ok(reply),
        };
        // A no needs no second look.
        let Answered { response, approval } = &comeback.answered;
        if !response.approved {
            let message = denial_message(&comeback.request.reason, response, approval);
            self.count_answer(session, Said::No(approval.assurance)).await?;
            return trip.refuse(&[], &ToolError::new(ErrorKind::ApprovalDenied, message));
        }
        let again = Arc::clone(&offer);
        let leg = self.on_worker(&trip, cancel, move |trip, signal| trip.look_again(again.as_ref(), signal)).await?;
        let asked = match leg {
            Leg::Done(reply) => return Ok(reply),
            Leg::Asked(asked) => asked,
        };
        if !comeback.is_about(&asked) {
            return trip.refuse(&asked.touches, &moved());
        }
        let may_grant = asked.shown.grant.as_ref().and_then(rule_line) == comeback.request.grant
            && comeback.request.grant.is_some();
        let asker = Asker { verdict: &asked.shown.verdict, principal: &session.principal, may_grant };
        let answer = self.weigh(session, comeback.answered, &asker).await?;
        self.heed(trip, offer, asked, answer, cancel).await
    }
}

/// A suspended call that its caller's client brings back.
#[derive(Clone, Debug)]
pub struct Returned {
    pub token: String,
    pub call: ToolCall,
    /// What the client's user said, if they were asked.
    pub answered: Option<Answered>,
    /// Who hears how the call is getting on.
    pub listener: Option<Arc<dyn Listener>>,
}

impl Sealed {
    /// Whether a call is this one, however its tool and its arguments are spelled.
    fn is_for(&self, call: &ToolCall, session: &Session) -> bool {
        let parsed = |arguments: &str| match arguments.trim().is_empty() {
            true => Some(Value::Object(Map::new())),
            false => serde_json::from_str(arguments).ok(),
        };
        session.catalog.get(&call.name).is_some_and(|tool| tool.name == self.tool)
            && parsed(&call.arguments).is_some_and(|arguments: Value| parsed(&self.arguments) == Some(arguments))
    }
}

/// What the store knows about the request of a token.
enum Found {
    Answered(Box<(ApprovalRequest, Answered)>),
    NotYet,
    Nothing(&'static str),
}

/// A call on its way back.
struct Comeback {
    sealed: Sealed,
    request: ApprovalRequest,
    answered: Answered,
    listener: Option<Arc<dyn Listener>>,
}

impl Comeback {
    /// Whether a plan is the one that was shown, and is asked about for the same reason, if at all.
    fn is_about(&self, asked: &Asked) -> bool {
        let (verdict, request) = (&asked.shown.verdict, &self.request);
        let same_question =
            verdict.rule.as_ref() == request.rule && verdict.layer == request.layer && verdict.reason == request.reason;
        asked.shown.preview.fingerprint() == self.sealed.fingerprint
            && (verdict.decision == Decision::Allow || same_question)
    }
}

fn refused(why: &str) -> ToolError {
    ToolError::new(ErrorKind::ApprovalDenied, format!("{why}; nothing was done"))
}
