//! Invocation of one tool call: its decisions, its ticket, and its records.
//!
//! Not here: its states and the order of the steps (`call_state.rs`), waiting for a thread (`worker.rs`), asking
//! (`ask_approval.rs`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use crate::approval::with_rule_details;
use crate::audit::AuditEvent;
use crate::call_context::CallServices;
use crate::connection_log::{ConnectionLog, ConnectionOutcome, UnlistedConnections};
use crate::connection_rollup::{ConnectionRollup, RollupDecision};
use crate::grant::access_subject;
use crate::pending_approval::{ApprovalPrompt, PendingApproval};
use crate::pending_connection::PendingConnection;
use crate::reply::{RenderedReply, ReplyForm, ReplyNotes};
use crate::tool_binding::ErasedPlan;
use crate::verdict::strictest;
use crate::{
    AbandonReason, Approval, AuditSinkError, AuthScope, CallContext, CallOrigin, CallRecord, Decision, ErrorKind,
    Grant, Host, HostConfig, HostError, IoMode, MODEL_TEXT_BYTES, OUTPUT_PREFIX, PolicyAction, PolicyRequest,
    PolicyRevision, Preview, Principal, ProgressListener, ProgressUpdate, ResourceAccess, Session, SessionMemory,
    StoreError, Taint, TaintSet, Ticket, ToolCall, ToolError, ToolReply, Verdict, id,
};

/// One call on its way.
#[derive(Debug)]
pub(crate) struct Invocation {
    pub(crate) host: Host,
    pub(crate) session: Arc<Session>,
    pub(crate) call: ToolCall,
    pub(crate) started: Instant,
    /// Time limit of each stay on a worker.
    pub(crate) time_limit: Duration,
    pub(crate) stops_gracefully: bool,
    /// It waits for a background job, and not on a worker for programs.
    pub(crate) waits_for_job: bool,
    pub(crate) origin: CallOrigin,
    /// The approval that came with changed arguments.
    pub(crate) prior_approval: Option<PriorApproval>,
    pub(crate) notes: ReplyNotes,
    pub(crate) listener: Option<Arc<dyn ProgressListener>>,
    pub(crate) connection_log: ConnectionLog,
    /// For connections that are decided one by one.
    pub(crate) connection_rollup: ConnectionRollup,
}

/// The plan of an earlier approval.
#[derive(Debug)]
pub(crate) struct PriorApproval {
    pub(crate) accesses: Vec<ResourceAccess>,
    pub(crate) taint: TaintSet,
    pub(crate) fingerprint: String,
    pub(crate) approval: Approval,
}

impl PriorApproval {
    pub(crate) fn new(pending: PendingApproval, approval: Approval) -> Self {
        let PendingApproval { accesses, taint, prompt, .. } = pending;
        Self { accesses, taint, fingerprint: prompt.preview.fingerprint().to_owned(), approval }
    }

    /// Fails where the same target is no longer what a person saw when they approved it.
    pub(crate) fn check_unchanged(
        &self,
        accesses: &[ResourceAccess],
        planned: &mut dyn ErasedPlan,
        cx: &CallContext<'_>,
    ) -> Result<(), ToolError> {
        if self.accesses == accesses && planned.preview(cx)?.bound_to(accesses).fingerprint() != self.fingerprint {
            return Err(plan_changed_error());
        }
        Ok(())
    }
}

impl Invocation {
    /// A call of a session, before anything is known about it.
    pub(crate) fn new(host: &Host, session: &Arc<Session>, call: ToolCall) -> Self {
        // Descriptions of MCP tools are untrusted content that the caller has read.
        if session.catalog.has_mcp_tools() {
            session.taint.add(Taint::SawUntrusted);
        }
        Self {
            host: host.clone(),
            session: Arc::clone(session),
            origin: CallOrigin {
                session: session.id.clone(),
                call: call.id.clone(),
                tool: call.name.clone(),
                principal: session.principal.name.clone(),
                may_undo: session.principal.has_scope(AuthScope::Undo),
            },
            call,
            started: Instant::now(),
            time_limit: session.limits.call_time,
            stops_gracefully: false,
            waits_for_job: false,
            prior_approval: None,
            notes: ReplyNotes { form: session.replies, ..ReplyNotes::default() },
            listener: None,
            connection_log: ConnectionLog::default(),
            connection_rollup: ConnectionRollup::default(),
        }
    }

    /// The same call with the arguments that a person put in.
    pub(crate) fn with_arguments(&self, arguments: String, covered: PriorApproval) -> Self {
        Self {
            host: self.host.clone(),
            session: Arc::clone(&self.session),
            call: ToolCall { arguments, ..self.call.clone() },
            started: self.started,
            time_limit: self.time_limit,
            stops_gracefully: self.stops_gracefully,
            waits_for_job: self.waits_for_job,
            origin: self.origin.clone(),
            prior_approval: Some(covered),
            notes: ReplyNotes { modified: true, ..self.notes },
            listener: self.listener.clone(),
            connection_log: ConnectionLog::default(),
            connection_rollup: ConnectionRollup::default(),
        }
    }

    /// The same call for a task of its own, which asks for it.
    pub(crate) fn detached(&self) -> Self {
        Self {
            host: self.host.clone(),
            session: Arc::clone(&self.session),
            call: self.call.clone(),
            started: self.started,
            time_limit: self.time_limit,
            stops_gracefully: self.stops_gracefully,
            waits_for_job: self.waits_for_job,
            origin: self.origin.clone(),
            prior_approval: None,
            notes: self.notes,
            listener: None,
            connection_log: ConnectionLog::default(),
            connection_rollup: ConnectionRollup::default(),
        }
    }

    /// Whether everything that a plan accesses may be read without approval, and without taint for the session.
    pub(crate) fn may_read_without_approval(&self, accesses: &[ResourceAccess]) -> bool {
        let may_read = |access: &ResourceAccess| {
            let read = ResourceAccess { action: PolicyAction::Read, resource: access.resource.clone() };
            Taint::from_access(&read).is_none() && self.evaluate(&read).decision == Decision::Allow
        };
        accesses.iter().all(may_read)
    }

    /// The error where there is no plan, or a plan is denied. For a resource that the caller may not even list, both
    /// cases have the same text, so that it does not reveal whether the resource exists.
    pub(crate) fn mask_denied(&self, error: ToolError, cx: &CallContext<'_>) -> ToolError {
        let list = |resource| self.evaluate(&ResourceAccess { action: PolicyAction::List, resource });
        let denied = cx.lookup_resources().into_iter().map(list).find(|verdict| verdict.decision == Decision::Deny);
        match denied {
            Some(verdict) => denial_error(&verdict),
            None => error.suggest_name(|resource| list(resource.clone()).decision != Decision::Deny),
        }
    }

    /// The visible part of a plan that needs approval.
    pub(crate) fn approval_prompt(
        &self,
        accesses: &[ResourceAccess],
        verdict: Verdict,
        preview: Preview,
    ) -> ApprovalPrompt {
        // What cannot be undone is asked about each time.
        let is_grantable = |access: &ResourceAccess| {
            access.action != PolicyAction::Lose && self.host.mount_identities.contains_key(&access_subject(access))
        };
        let grant = match accesses.iter().all(is_grantable) {
            true => self.host.config.policy.narrowest_grant(&self.policy_request(accesses)),
            false => None,
        };
        ApprovalPrompt { verdict, preview: preview.bound_to(accesses), grant }
    }

    /// Decides, and where the call may run then, adds its taint. Both are one atomic step: if another call added taint
    /// in between, it is decided again.
    pub(crate) fn authorize(
        &self,
        accesses: &[ResourceAccess],
        planned: &dyn ErasedPlan,
        cx: &CallContext<'_>,
        may_run: impl Fn(&Verdict) -> bool,
    ) -> Result<(Verdict, TaintSet), HostError> {
        loop {
            let request = self.policy_request(accesses);
            let decide = |request: &PolicyRequest<'_>| self.host.config.policy.decide(request);
            let verdict = match planned.acts_as() {
                Some(tool) => {
                    let as_other = self.policy_request_as(Some(tool), accesses);
                    strictest([decide(&request), decide(&as_other)].into_iter()).unwrap_or_else(Verdict::unknown_effect)
                }
                None => decide(&request),
            };
            let verdict = match planned.required_review() {
                Some(review) => verdict.requiring_review(review),
                None => verdict,
            };
            let grants_matter =
                verdict.decision == Decision::Ask || accesses.iter().any(|access| access.action.changes_files());
            if grants_matter && cx.io_mode == IoMode::Blocking && self.refresh_grants()? {
                continue;
            }
            // A non-blocking attempt that adds taint is repeated by a worker, and must not meet its own taint there.
            let runs = may_run(&verdict) && cx.io_mode == IoMode::Blocking;
            if !runs || self.session.taint.compare_and_add(request.taint, request.added_taint()) {
                return Ok((verdict, request.taint));
            }
        }
    }

    /// Reloads grants that another process added or revoked. True when there are any.
    pub(crate) fn refresh_grants(&self) -> Result<bool, StoreError> {
        if self.host.mount_identities.is_empty() {
            return Ok(false);
        }
        load_grants(&self.host.config, &self.host.mount_identities)
    }

    pub(crate) fn policy_request<'a>(&'a self, accesses: &'a [ResourceAccess]) -> PolicyRequest<'a> {
        self.policy_request_as(None, accesses)
    }

    /// The same for changes to which the rules of another tool apply.
    pub(crate) fn policy_request_as<'a>(
        &'a self,
        tool: Option<&'a str>,
        accesses: &'a [ResourceAccess],
    ) -> PolicyRequest<'a> {
        let tool = tool.unwrap_or(&self.call.name);
        PolicyRequest::new(&self.session, tool, accesses, self.session.taint.snapshot())
    }

    /// Records that something is about to be done, and gives the right to do it.
    pub(crate) fn issue_ticket<'t>(
        &self,
        accesses: &'t [ResourceAccess],
        Verdict { rule, layer, .. }: &Verdict,
        approved: Option<&'t Approval>,
        cx: &'t CallContext<'t>,
    ) -> Result<Ticket<'t>, HostError> {
        let changes = accesses.iter().any(|access| access.action.changes_files());
        let change = if changes { id::new_id("c")? } else { String::new() };
        self.record(accesses, AuditEvent::Begin { rule, layer: *layer, approved, change: &change })?;
        Ok(Ticket::new(cx, change, approved, accesses))
    }

    /// An earlier approval of these targets or wider ones, if the session has no more taint since. A plan without
    /// targets cannot have one.
    pub(crate) fn find_prior_approval(&self, accesses: &[ResourceAccess]) -> Option<&PriorApproval> {
        let covered = self.prior_approval.as_ref().filter(|_| !accesses.is_empty())?;
        if covered.taint != self.session.taint.snapshot() {
            return None;
        }
        let is_covered =
            |access: &ResourceAccess| covered.accesses.iter().any(|covered| is_covered_by(access, covered));
        accesses.iter().all(is_covered).then_some(covered)
    }

    pub(crate) fn refuse(&self, accesses: &[ResourceAccess], error: &ToolError) -> Result<ToolReply, HostError> {
        let reply = self.error_reply(error);
        self.record(accesses, AuditEvent::Refused { error, reply: &reply.text, duration: self.started.elapsed() })?;
        Ok(reply)
    }

    pub(crate) fn record_end(
        &self,
        accesses: &[ResourceAccess],
        result: Result<RenderedReply, ToolError>,
    ) -> Result<ToolReply, HostError> {
        let reply = match result {
            Ok(RenderedReply { value, text }) => {
                let is_for_model = value.is_text() && self.shows_model_text();
                let text = if is_for_model { self.bounded_text(text) } else { text };
                ToolReply { call_id: self.call.id.clone(), outcome: Ok(value), text, suspended: None }
            }
            Err(error) => self.error_reply(&error),
        };
        let duration = self.started.elapsed();
        self.record(accesses, AuditEvent::End { outcome: reply.outcome.as_ref(), reply: &reply.text, duration })
            .map_err(HostError::EndUnrecorded)?;
        Ok(reply)
    }

    /// Whether replies are texts for a model. Programs get those of the other sessions whole.
    fn shows_model_text(&self) -> bool {
        self.session.dialect.is_model_family() || self.session.replies == ReplyForm::ModelText
    }

    /// Refuses new files at the paths of kept outputs: a model that puts such a path before a name means another file, and
    /// what it would create could not be told from an output.
    pub(crate) fn check_output_paths(&self, accesses: &[ResourceAccess]) -> Result<(), ToolError> {
        let is_new = |access: &&ResourceAccess| {
            access.action == PolicyAction::Create && access.resource.names().any(|name| name.starts_with(OUTPUT_PREFIX))
        };
        match accesses.iter().find(is_new) {
            Some(access) if self.shows_model_text() => {
                let path = &access.resource.display_path;
                let message = format!("`{path}` is the path of a long output, which can only be read");
                Err(ToolError::new(ErrorKind::InvalidPath, message).hint("name the file without `@output/`"))
            }
            _ => Ok(()),
        }
    }

    /// A text for a model, which gets no more than it can take; the rest is kept.
    fn bounded_text(&self, text: String) -> String {
        self.session.memory.outputs.bounded_start(text, MODEL_TEXT_BYTES)
    }

    pub(crate) fn record_overdue(&self, why: AbandonReason, subject: Option<&str>) -> Result<ToolReply, HostError> {
        let error = why.error().hint("it had already started and may still be running").detail("committed", "unknown");
        let reply = self.error_reply(&error);
        let event = AuditEvent::Overdue { error: &error, reply: &reply.text, duration: self.started.elapsed() };
        self.record_with_subject(subject, &[], event)?;
        Ok(reply)
    }

    pub(crate) fn error_reply(&self, error: &ToolError) -> ToolReply {
        let reply = ToolReply::from_error(&self.call.id, error.clone(), self.session.dialect);
        match self.shows_model_text() {
            true => ToolReply { text: self.bounded_text(error.to_model_text().to_owned()), ..reply },
            false => reply,
        }
    }

    pub(crate) fn record(&self, accesses: &[ResourceAccess], event: AuditEvent<'_>) -> Result<(), AuditSinkError> {
        self.record_with_subject(None, accesses, event)
    }

    pub(crate) fn record_with_subject(
        &self,
        subject: Option<&str>,
        accesses: &[ResourceAccess],
        event: AuditEvent<'_>,
    ) -> Result<(), AuditSinkError> {
        if matches!(event, AuditEvent::End { .. }) {
            self.record_connection_counts(None)?;
            let UnlistedConnections { made, refused } = self.connection_log.take_unlisted();
            if made > 0 || refused > 0 {
                self.record(&[], AuditEvent::UnlistedConnections { made, refused })?;
            }
        }
        self.host.config.audit.record(&CallRecord {
            time: SystemTime::now(),
            session: &self.session,
            call_id: &self.call.id,
            tool: &self.call.name,
            arguments: &self.call.arguments,
            subject,
            accesses,
            event,
        })
    }
}

impl Invocation {
    /// Records the counts of connections by host, of which the minute is over at this time.
    fn record_connection_counts(&self, now: Option<std::time::Instant>) -> Result<(), AuditSinkError> {
        for (access, UnlistedConnections { made, refused }) in self.connection_rollup.take_due(now) {
            self.record(&[access], AuditEvent::UnlistedConnections { made, refused })?;
        }
        Ok(())
    }
}

impl CallServices for Invocation {
    fn evaluate(&self, access: &ResourceAccess) -> Verdict {
        self.host.config.policy.evaluate(access, &self.policy_request(std::slice::from_ref(access)))
    }

    fn policy_revision(&self) -> Option<PolicyRevision> {
        self.host.config.policy.revision(&self.policy_request(&[]))
    }

    fn add_taint(&self, taint: Taint) {
        self.session.taint.add(taint);
    }

    fn memory(&self) -> &SessionMemory {
        &self.session.memory
    }

    fn report_progress(&self, progress: &ProgressUpdate<'_>) {
        if let Some(listener) = &self.listener {
            listener.on_progress(progress);
        }
    }

    fn record_connection(&self, access: &ResourceAccess, refused: Option<&ToolError>) -> Result<(), ToolError> {
        let outcome = if refused.is_some() { ConnectionOutcome::Refused } else { ConnectionOutcome::Made };
        if self.connection_log.should_record(access, outcome) {
            let lost = |_| ToolError::new(ErrorKind::Internal, "cannot write to the audit log");
            self.record(std::slice::from_ref(access), AuditEvent::Connection { refused, approved: None })
                .map_err(lost)?;
            if outcome == ConnectionOutcome::Made {
                self.connection_log.mark_recorded(access);
            }
        }
        Ok(())
    }

    fn record_judged_connection(
        &self,
        access: &ResourceAccess,
        decision: Result<Option<&Approval>, &ToolError>,
    ) -> Result<(), ToolError> {
        let (approved, refused) = (decision.ok().flatten(), decision.err());
        let outcome = if refused.is_some() { ConnectionOutcome::Refused } else { ConnectionOutcome::Made };
        match self.connection_rollup.add(access, outcome, std::time::Instant::now()) {
            RollupDecision::Counted => {}
            RollupDecision::Full => return self.record_connection(access, refused),
            RollupDecision::Record => {
                let lost = |_| ToolError::new(ErrorKind::Internal, "cannot write to the audit log");
                let event = AuditEvent::Connection { refused, approved };
                self.record(std::slice::from_ref(access), event).map_err(lost)?;
                self.connection_rollup.mark_recorded(access, outcome);
            }
        }
        Ok(())
    }

    fn record_layer_conflict(&self, access: &ResourceAccess, error: &ToolError) -> Result<(), ToolError> {
        let lost = |_| ToolError::new(ErrorKind::Internal, "cannot write to the audit log");
        self.record(std::slice::from_ref(access), AuditEvent::LayerConflict { error }).map_err(lost)
    }

    fn record_terminal_writer(&self, by: &Principal) -> Result<(), ToolError> {
        let lost = |_| ToolError::new(ErrorKind::Internal, "cannot write to the audit log");
        self.record(&[], AuditEvent::TerminalWriter { by }).map_err(lost)
    }

    /// What cannot be written now is lost: the connections were made, and each host is in a record.
    fn flush_connection_counts(&self) {
        let _ = self.record_connection_counts(Some(std::time::Instant::now()));
    }

    fn authorize_connection(&self, access: &ResourceAccess, may_connect: &dyn Fn(&Verdict) -> bool) -> Verdict {
        loop {
            let request = self.policy_request(std::slice::from_ref(access));
            let verdict = self.host.config.policy.decide(&request);
            if !may_connect(&verdict) || self.session.taint.compare_and_add(request.taint, request.added_taint()) {
                return verdict;
            }
        }
    }

    fn ask_connection(
        &self,
        access: &ResourceAccess,
        preview: Option<&Preview>,
        verdict: &Verdict,
    ) -> PendingConnection {
        self.open_connection_question(access, preview, verdict)
    }
}

/// The error for a call that the policy denies.
pub(crate) fn denial_error(verdict: &Verdict) -> ToolError {
    with_rule_details(ToolError::new(ErrorKind::PermissionDenied, verdict.reason.clone()), verdict)
}

/// The error for changed arguments of a call that has begun: it can only be approved as it is.
pub(crate) fn arguments_fixed_error() -> ToolError {
    let message = "the call has started, so its arguments cannot be changed; approve or deny what it does next";
    ToolError::new(ErrorKind::ApprovalDenied, message)
}

/// The error for a plan that is not the approved one any more.
pub(crate) fn plan_changed_error() -> ToolError {
    ToolError::new(ErrorKind::Conflict, "the approved plan has changed in the meantime; nothing was done")
}

/// Lets the policy know which grants hold now. True when they are others than before.
pub(crate) fn load_grants(config: &HostConfig, directories: &BTreeMap<String, String>) -> Result<bool, StoreError> {
    let grants = config.store.grants(SystemTime::now())?;
    let ours: Vec<Grant> = grants.into_iter().filter(|grant| grant.applies_to(directories)).collect();
    Ok(config.policy.set_grants(&ours))
}

/// The reply to a call that waits for an answer.
pub(crate) fn pending_error(request: &str) -> ToolError {
    let message = "approval pending; nothing was done yet";
    ToolError::new(ErrorKind::ApprovalPending, message).detail("pending", true).detail("request", request)
}

fn is_covered_by(access: &ResourceAccess, covered: &ResourceAccess) -> bool {
    let real = |access: &ResourceAccess| {
        access.resource.resolved_path.clone().unwrap_or_else(|| access.resource.requested_path.clone())
    };
    let (inner, outer) = (real(access), real(covered));
    let beneath = inner.strip_prefix(&outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let no_worse = access.action == covered.action
        || access.action == PolicyAction::List
        || (access.action, covered.action) == (PolicyAction::Create, PolicyAction::Overwrite);
    access.resource.mount == covered.resource.mount && beneath && no_worse
}
