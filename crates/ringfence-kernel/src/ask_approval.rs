//! Approval requests: stored, sent to an approver, settled by the first answer.
//!
//! A waiting call takes the first answer of its own approver or, through the store, of any other front. A timeout is a
//! denial. An approver may also defer the answer: then the caller gets a resume token, and the call ends until it is
//! resumed (`resume.rs`).
//!
//! Not here: what an answer means (`approval.rs`), and who may give one (`inbox.rs`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use serde_json::{Map, Value};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::approval::{ApprovalContext, ApprovalOutcome};
use crate::approval_queue::AnswerKind;
use crate::grants::{format_rule_line, grant_subject};
use crate::invocation::{Invocation, load_grants};
use crate::pending_approval::ApprovalPrompt;
use crate::resume_token::ResumeToken;
use crate::{
    AbandonReason, AnswerStatus, Approval, ApprovalDecision, ApprovalRequest, ApprovalStore, ApproverReply, ErrorKind,
    GRANT_LIFETIME, Grant, Host, HostConfig, HostError, RuleText, Session, StoreError, SuspendLifetime, ToolError, id,
};

/// Poll interval for answers in the store.
const STORE_POLL_INTERVAL: Duration = Duration::from_millis(150);

/// A call that waits for its answer, for fronts that can bring it back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SuspendedCall {
    /// To be given to `Host::resume`, once.
    pub token: String,
    /// The id of the request that has to be answered first.
    pub request_id: String,
}

/// The outcome of an approval request.
pub(crate) enum AskOutcome {
    Answered(ApprovalOutcome),
    Suspended(SuspendedCall),
}

impl Host {
    /// Requests approval and waits. Where the call cannot be deferred, it waits for another front instead.
    pub(crate) async fn ask_approver(
        &self,
        invocation: &Invocation,
        shown: &ApprovalPrompt,
        may_be_put_off: bool,
        cancel: &CancellationToken,
    ) -> Result<AskOutcome, HostError> {
        if let Some(error) = self.approval_blocked(&invocation.session).await? {
            return Ok(AskOutcome::Answered(ApprovalOutcome::Denied(error)));
        }
        let request = build_request(invocation, shown)?;
        let pending = ApprovalRequestGuard::open(&self.config, &request).await?;
        let reply = tokio::select! {
            biased;
            () = cancel.cancelled() => None,
            reply = timeout(invocation.session.limits.approval_time, self.first_reply(invocation, &request, may_be_put_off)) => Some(reply),
        };
        let answered = match reply {
            None => {
                pending.close().await?;
                return Ok(AskOutcome::Answered(ApprovalOutcome::Denied(AbandonReason::Cancel.error())));
            }
            Some(Ok(reply)) => match reply? {
                ApproverReply::Decided(answered) => answered,
                ApproverReply::Deferred => {
                    pending.detach(SuspendLifetime::Persistent).await?;
                    return self.suspend(invocation, &request).await;
                }
                ApproverReply::DeferredInProcess => {
                    pending.detach(SuspendLifetime::Process).await?;
                    return self.suspend(invocation, &request).await;
                }
            },
            Some(Err(_)) => ApprovalDecision::automatic_denial("the approval request timed out".to_owned()),
        };
        let answered = self.record_first_answer(&request.id, answered).await?;
        pending.close().await?;
        let may_grant = request.grant.is_some();
        let asker = ApprovalContext { verdict: &shown.verdict, principal: &invocation.session.principal, may_grant };
        self.evaluate_answer(&invocation.session, answered, &asker).await.map(AskOutcome::Answered)
    }

    /// Checks an answer, and counts it for the session.
    pub(crate) async fn evaluate_answer(
        &self,
        session: &Session,
        answered: ApprovalDecision,
        asker: &ApprovalContext<'_>,
    ) -> Result<ApprovalOutcome, HostError> {
        let (approved, assurance) = (answered.response.approved, answered.approval.assurance);
        let answer = ApprovalOutcome::from_decision(answered, asker);
        match &answer {
            ApprovalOutcome::Denied(_) if !approved => {
                self.record_answer(session, AnswerKind::Denied(assurance)).await?
            }
            // A yes that does not count is neither.
            ApprovalOutcome::Denied(_) => {}
            _ => self.record_answer(session, AnswerKind::Approved).await?,
        }
        Ok(answer)
    }

    /// The answer of our own approver, or of another front that was first.
    async fn first_reply(
        &self,
        invocation: &Invocation,
        request: &ApprovalRequest,
        may_be_put_off: bool,
    ) -> Result<ApproverReply, HostError> {
        let reply = tokio::select! {
            biased;
            reply = self.config.approver.ask(request) => Ok(reply),
            answered = self.poll_store_for_answer(invocation, &request.id, may_be_put_off) => answered.map(ApproverReply::Decided),
        };
        match reply {
            Ok(ApproverReply::Deferred | ApproverReply::DeferredInProcess) if !may_be_put_off => {
                self.poll_store_for_answer(invocation, &request.id, may_be_put_off).await.map(ApproverReply::Decided)
            }
            reply => reply,
        }
    }

    /// Waits for the answer of another front. Meanwhile drafts of other arguments are planned for it.
    async fn poll_store_for_answer(
        &self,
        invocation: &Invocation,
        id: &str,
        may_change: bool,
    ) -> Result<ApprovalDecision, HostError> {
        loop {
            sleep(STORE_POLL_INTERVAL).await;
            let request = id.to_owned();
            let (answered, draft) =
                self.with_store(move |store| Ok((store.answer_of(&request)?, store.draft_of(&request)?))).await?;
            if let Some(answered) = answered {
                return Ok(answered);
            }
            if let Some(draft) = draft.filter(|draft| draft.outcome.is_none() && may_change) {
                self.answer_draft(invocation, id, draft).await?;
            }
        }
    }

    /// Puts an answer, and gives the one that counts.
    pub(crate) async fn record_first_answer(
        &self,
        id: &str,
        answered: ApprovalDecision,
    ) -> Result<ApprovalDecision, HostError> {
        let id = id.to_owned();
        let work = move |store: &dyn ApprovalStore| match store.answer(&id, &answered, SystemTime::now())? {
            AnswerStatus::Accepted => Ok(answered),
            AnswerStatus::AlreadyAnswered => Ok(store.answer_of(&id)?.unwrap_or_else(withdrawn_request)),
            // A late approval is refused, a late denial holds.
            AnswerStatus::Expired if answered.response.approved => {
                Ok(ApprovalDecision::automatic_denial("the approval request timed out".to_owned()))
            }
            AnswerStatus::Expired => Ok(answered),
            AnswerStatus::UnknownRequest => Ok(withdrawn_request()),
        };
        self.with_store(work).await
    }

    async fn suspend(&self, invocation: &Invocation, request: &ApprovalRequest) -> Result<AskOutcome, HostError> {
        let sealed = ResumeToken {
            request: request.id.clone(),
            call: invocation.call.id.clone(),
            tool: invocation.call.name.clone(),
            arguments: invocation.call.arguments.clone(),
            fingerprint: request.fingerprint.clone(),
            principal: invocation.session.principal.name.clone(),
            session: invocation.session.id.clone(),
            expires: request.expires,
            nonce: id::new_id("n")?,
        };
        let token = self.with_store(move |store| Ok(sealed.seal(&store.sealing_key()?))).await?;
        let token = token.ok_or_else(|| StoreError(std::io::Error::other("the resume token cannot be created")))?;
        Ok(AskOutcome::Suspended(SuspendedCall { token, request_id: request.id.clone() }))
    }

    /// Withdraws the requests of suspended calls of a session that is over: no call waits for an answer any more.
    pub fn withdraw_requests(&self, session: &str) -> Result<(), StoreError> {
        let store = self.config.store.as_ref();
        let pending = store.pending(SystemTime::now())?.into_iter();
        pending
            .filter(|request| request.suspended && request.session == session)
            .try_for_each(|request| store.close_request(&request.id))
    }

    /// Stores a grant that an approval came with.
    pub(crate) async fn store_grant(&self, rule: RuleText, approval: &Approval) -> Result<(), HostError> {
        let Some(directory) = grant_subject(&rule).and_then(|subject| self.mount_identities.get(&subject).cloned())
        else {
            return Ok(());
        };
        let since = SystemTime::now();
        let by = approval.by.as_ref().map(|by| by.name.clone()).unwrap_or_default();
        let grant = Grant { id: id::new_id("g")?, rule, directory, by, since, until: since + GRANT_LIFETIME };
        let (parts, directories) = (Arc::clone(&self.config), Arc::clone(&self.mount_identities));
        self.with_store(move |store| {
            store.add_grant(&grant)?;
            load_grants(&parts, &directories).map(drop)
        })
        .await
    }

    /// The store may wait for a disk or for other processes.
    pub(crate) async fn with_store<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn ApprovalStore) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, HostError> {
        in_store(&self.config, work).await
    }
}

async fn in_store<T: Send + 'static>(
    parts: &Arc<HostConfig>,
    work: impl FnOnce(&dyn ApprovalStore) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, HostError> {
    let parts = Arc::clone(parts);
    let done = spawn_blocking(move || work(parts.store.as_ref())).await;
    let lost = |_| Err(StoreError(std::io::Error::other("the approval store failed unexpectedly")));
    Ok(done.unwrap_or_else(lost)?)
}

fn withdrawn_request() -> ApprovalDecision {
    ApprovalDecision::automatic_denial("the approval request was withdrawn".to_owned())
}

fn build_request(invocation: &Invocation, shown: &ApprovalPrompt) -> Result<ApprovalRequest, HostError> {
    let ApprovalPrompt { verdict, preview, grant } = shown;
    let opened = SystemTime::now();
    Ok(ApprovalRequest {
        id: id::new_id("a")?,
        step_id: invocation.call.id.clone(),
        session: invocation.session.id.clone(),
        principal: invocation.session.principal.name.clone(),
        agent: invocation.session.agent.clone(),
        tool: invocation.call.name.clone(),
        // It decoded before, so it parses; an empty text stands for no arguments.
        args: serde_json::from_str(&invocation.call.arguments).unwrap_or_else(|_| Value::Object(Map::new())),
        reason: verdict.reason.clone(),
        rule: verdict.rule.to_string(),
        layer: verdict.layer,
        assurance: verdict.assurance,
        preview: preview.text(),
        summary: preview.summary().to_owned(),
        secret: preview.is_secret(),
        fingerprint: preview.fingerprint().to_owned(),
        grant: grant.as_ref().and_then(format_rule_line),
        suspended: false,
        opened,
        expires: opened + invocation.session.limits.approval_time,
    })
}

/// The error for a call that waits for approval.
pub(crate) fn pending_error(request: &str) -> ToolError {
    let message = "approval pending; nothing was done yet";
    ToolError::new(ErrorKind::ApprovalPending, message).detail("pending", true).detail("request", request)
}

/// A request in the store. It is removed also when the waiting call is dropped, since no call waits for an answer then.
struct ApprovalRequestGuard {
    config: Arc<HostConfig>,
    id: Option<String>,
    dropped: Arc<AtomicBool>,
}

impl ApprovalRequestGuard {
    async fn open(parts: &Arc<HostConfig>, request: &ApprovalRequest) -> Result<Self, HostError> {
        let dropped = Arc::new(AtomicBool::new(false));
        let pending = Self { config: Arc::clone(parts), id: Some(request.id.clone()), dropped: Arc::clone(&dropped) };
        let request = request.clone();
        let work = move |store: &dyn ApprovalStore| {
            store.open_request(&request)?;
            // The caller may have gone while this waited for a thread, and closed what was not there yet.
            if dropped.load(Ordering::SeqCst) { store.close_request(&request.id) } else { Ok(()) }
        };
        in_store(parts, work).await?;
        Ok(pending)
    }

    async fn close(mut self) -> Result<(), HostError> {
        match self.id.take() {
            Some(id) => in_store(&self.config, move |store| store.close_request(&id)).await,
            None => Ok(()),
        }
    }

    /// Lets it wait for an answer by itself.
    async fn detach(mut self, lifetime: SuspendLifetime) -> Result<(), HostError> {
        if let Some(id) = self.id.clone() {
            in_store(&self.config, move |store| store.detach(&id, lifetime)).await?;
        }
        self.id = None;
        Ok(())
    }
}

impl Drop for ApprovalRequestGuard {
    fn drop(&mut self) {
        if let Some(id) = &self.id {
            self.dropped.store(true, Ordering::SeqCst);
            // The failure cannot be reported any more.
            let _ = self.config.store.close_request(id);
        }
    }
}
