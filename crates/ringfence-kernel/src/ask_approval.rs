//! Approval requests: stored, sent to an approver, settled by the first answer.
//!
//! A waiting call takes the first answer of its own approver or, through the store, of any other frontend. A timeout is a
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

use crate::approval::{ApprovalContext, ApprovalDenial, ApprovalOutcome};
use crate::approval_turn::ApprovalAnswerKind;
use crate::grant::grant_subject;
use crate::granted_rules::format_rule_line;
use crate::invocation::{Invocation, load_grants};
use crate::pending_approval::{ApprovalPrompt, ApprovalRequestOutcome, ResumedCall, SuspendedCall};
use crate::resume_token::ResumeToken;
use crate::{
    AbandonReason, Approval, ApprovalAnswerStatus, ApprovalDecision, ApprovalRequest, ApprovalStore, ApproverReply,
    GRANT_LIFETIME, Grant, HostConfig, HostError, RuleText, StoreError, SuspendLifetime, id,
};

/// Poll interval for answers in the store.
const STORE_POLL_INTERVAL: Duration = Duration::from_millis(150);

impl Invocation {
    /// Opens a request for approval and waits for the answer. Where the call cannot be suspended, it waits as long as
    /// the approver does: what a program left exists in this call only.
    pub(crate) async fn ask_approver(
        &self,
        prompt: &ApprovalPrompt,
        may_suspend: bool,
        cancel: &CancellationToken,
    ) -> Result<ApprovalRequestOutcome, HostError> {
        let denied =
            |error| Ok(ApprovalRequestOutcome::Answered(ApprovalOutcome::Denied(ApprovalDenial::Error(error))));
        if let Some(error) = self.approval_blocked().await? {
            return denied(error);
        }
        let request = build_request(self, prompt)?;
        let opened = ApprovalRequestGuard::new(&self.host.config, &request);
        opened.open(&request).await?;
        let reply = tokio::select! {
            biased;
            () = cancel.cancelled() => None,
            reply = timeout(self.session.limits.approval_time, self.first_reply(&request, may_suspend)) => Some(reply),
        };
        let decision = match reply {
            None => {
                opened.close().await?;
                return denied(AbandonReason::Cancel.error());
            }
            Some(Ok(reply)) => match reply? {
                ApproverReply::Decided(decision) => decision,
                ApproverReply::Deferred => {
                    opened.detach(SuspendLifetime::Persistent).await?;
                    return self.suspend(&request).await;
                }
                ApproverReply::DeferredInProcess => {
                    opened.detach(SuspendLifetime::Process).await?;
                    return self.suspend(&request).await;
                }
            },
            Some(Err(_)) => ApprovalDecision::automatic_denial("the approval request timed out".to_owned()),
        };
        let decision = record_first_answer(&self.host.config, &request.id, decision).await?;
        opened.close().await?;
        let may_grant = request.grant.is_some();
        let context = ApprovalContext { verdict: &prompt.verdict, principal: &self.session.principal, may_grant };
        self.evaluate_answer(decision, &context).await.map(ApprovalRequestOutcome::Answered)
    }

    /// What the answer of a resumed call comes to.
    pub(crate) async fn evaluate_resumed(
        &self,
        resumed: ResumedCall,
        prompt: &ApprovalPrompt,
    ) -> Result<ApprovalOutcome, HostError> {
        let granted = &resumed.request.grant;
        let may_grant = granted.is_some() && prompt.grant.as_ref().and_then(format_rule_line) == *granted;
        let context = ApprovalContext { verdict: &prompt.verdict, principal: &self.session.principal, may_grant };
        self.evaluate_answer(resumed.decision, &context).await
    }

    /// What an answer comes to, which counts for the session too.
    pub(crate) async fn evaluate_answer(
        &self,
        answered: ApprovalDecision,
        asker: &ApprovalContext<'_>,
    ) -> Result<ApprovalOutcome, HostError> {
        let (approved, assurance) = (answered.response.approved, answered.approval.assurance);
        let answer = ApprovalOutcome::from_decision(answered, asker);
        match &answer {
            ApprovalOutcome::Denied(_) if !approved => {
                self.record_answer(ApprovalAnswerKind::Denied(assurance)).await?
            }
            // A yes that does not count is neither.
            ApprovalOutcome::Denied(_) => {}
            _ => self.record_answer(ApprovalAnswerKind::Approved).await?,
        }
        Ok(answer)
    }

    /// The answer of our own approver, or of another frontend that was first.
    async fn first_reply(&self, request: &ApprovalRequest, may_suspend: bool) -> Result<ApproverReply, HostError> {
        let approver = &self.host.config.approver;
        let asked = if may_suspend { approver.ask(request) } else { approver.ask_in_call(request) };
        let reply = tokio::select! {
            biased;
            reply = asked => reply,
            answered = self.poll_store_for_answer(&request.id, may_suspend) => ApproverReply::Decided(answered?),
        };
        Ok(match reply {
            ApproverReply::Deferred | ApproverReply::DeferredInProcess if !may_suspend => {
                let reason = "no answer while the call waited".to_owned();
                ApproverReply::Decided(ApprovalDecision::automatic_denial(reason))
            }
            reply => reply,
        })
    }

    /// The answer of another frontend. Meanwhile previews of changed arguments are made for it, on request.
    pub(crate) async fn poll_store_for_answer(
        &self,
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
                self.answer_draft(id, draft).await?;
            }
        }
    }

    async fn suspend(&self, request: &ApprovalRequest) -> Result<ApprovalRequestOutcome, HostError> {
        let token = ResumeToken {
            request: request.id.clone(),
            call: self.call.id.clone(),
            tool: self.call.name.clone(),
            arguments: self.call.arguments.clone(),
            fingerprint: request.preview.fingerprint().to_owned(),
            principal: self.session.principal.name.clone(),
            session: self.session.id.clone(),
            expires: request.expires,
            nonce: id::new_id("n")?,
        };
        let token = self.with_store(move |store| Ok(token.seal(&store.sealing_key()?))).await?;
        let token = token.ok_or_else(|| StoreError(std::io::Error::other("the resume token cannot be created")))?;
        Ok(ApprovalRequestOutcome::Suspended(SuspendedCall { token, request_id: request.id.clone() }))
    }

    /// Stores a persistent grant.
    pub(crate) async fn store_grant(&self, rule: RuleText, approval: &Approval) -> Result<(), HostError> {
        let Some(directory) =
            grant_subject(&rule).and_then(|subject| self.host.mount_identities.get(&subject).cloned())
        else {
            return Ok(());
        };
        let since = SystemTime::now();
        let by = approval.by.as_ref().map(|by| by.name.clone()).unwrap_or_default();
        let grant = Grant { id: id::new_id("g")?, rule, directory, by, since, until: since + GRANT_LIFETIME };
        let (config, directories) = (Arc::clone(&self.host.config), Arc::clone(&self.host.mount_identities));
        self.with_store(move |store| {
            store.add_grant(&grant)?;
            load_grants(&config, &directories).map(drop)
        })
        .await
    }

    /// Works with the store, which may wait for a disk or for other processes.
    pub(crate) async fn with_store<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn ApprovalStore) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, HostError> {
        in_store(&self.host.config, work).await
    }
}

/// Stores an answer, and returns the one that counts.
pub(crate) async fn record_first_answer(
    config: &Arc<HostConfig>,
    id: &str,
    answered: ApprovalDecision,
) -> Result<ApprovalDecision, HostError> {
    let id = id.to_owned();
    let work = move |store: &dyn ApprovalStore| match store.answer(&id, &answered, SystemTime::now())? {
        ApprovalAnswerStatus::Accepted => Ok(answered),
        ApprovalAnswerStatus::AlreadyAnswered => Ok(store.answer_of(&id)?.unwrap_or_else(withdrawn_request)),
        // A late approval is told so, and a denial is never late.
        ApprovalAnswerStatus::Expired if answered.response.approved => {
            Ok(ApprovalDecision::automatic_denial("the approval request timed out".to_owned()))
        }
        ApprovalAnswerStatus::Expired => Ok(answered),
        ApprovalAnswerStatus::UnknownRequest => Ok(withdrawn_request()),
    };
    in_store(config, work).await
}

pub(crate) async fn in_store<T: Send + 'static>(
    config: &Arc<HostConfig>,
    work: impl FnOnce(&dyn ApprovalStore) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, HostError> {
    let config = Arc::clone(config);
    let done = spawn_blocking(move || work(config.store.as_ref())).await;
    let lost = |_| Err(StoreError(std::io::Error::other("the state store failed unexpectedly")));
    Ok(done.unwrap_or_else(lost)?)
}

fn withdrawn_request() -> ApprovalDecision {
    ApprovalDecision::automatic_denial("the approval request was withdrawn".to_owned())
}

pub(crate) fn build_request(call: &Invocation, prompt: &ApprovalPrompt) -> Result<ApprovalRequest, HostError> {
    let ApprovalPrompt { verdict, preview, grant } = prompt;
    let opened = SystemTime::now();
    Ok(ApprovalRequest {
        id: id::new_id("a")?,
        step_id: call.call.id.clone(),
        session: call.session.id.clone(),
        principal: call.session.principal.name.clone(),
        agent: call.session.agent.clone(),
        tool: call.call.name.clone(),
        // It decoded before, so it parses; an empty text stands for no arguments.
        args: serde_json::from_str(&call.call.arguments).unwrap_or_else(|_| Value::Object(Map::new())),
        reason: verdict.reason.clone(),
        rule: verdict.rule.to_string(),
        layer: verdict.layer,
        assurance: verdict.assurance,
        preview: preview.clone(),
        grant: grant.as_ref().and_then(format_rule_line),
        suspended: false,
        opened,
        expires: opened + call.session.limits.approval_time,
    })
}

/// A request in the store. It leaves the store also when the call that waits for it is dropped: an answer would
/// not be used.
pub(crate) struct ApprovalRequestGuard {
    config: Arc<HostConfig>,
    id: Option<String>,
    dropped: Arc<AtomicBool>,
}

impl ApprovalRequestGuard {
    pub(crate) fn new(config: &Arc<HostConfig>, request: &ApprovalRequest) -> Self {
        Self { config: Arc::clone(config), id: Some(request.id.clone()), dropped: Arc::default() }
    }

    /// Set when an answer would not be used any more.
    pub(crate) fn dropped(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.dropped)
    }

    pub(crate) async fn open(&self, request: &ApprovalRequest) -> Result<(), HostError> {
        let (request, dropped) = (request.clone(), self.dropped());
        let work = move |store: &dyn ApprovalStore| {
            store.open_request(&request)?;
            // The caller may have gone while this waited for a thread, and closed what was not there yet.
            if dropped.load(Ordering::SeqCst) { store.close_request(&request.id) } else { Ok(()) }
        };
        in_store(&self.config, work).await
    }

    pub(crate) async fn close(mut self) -> Result<(), HostError> {
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
