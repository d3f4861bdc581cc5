//! Policy dry run: the decision about a call, without making it.
//!
//! The call is decoded, planned and judged like a real one, by the same deadline, and ends there: nothing runs, no
//! approval is requested, no taint is added. It leaves no audit record, because it has no effect and the person in
//! charge requests it.

use std::sync::Arc;

use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::call_context::CallServices;
use crate::pending_connection::PendingConnection;
use crate::tool_binding::{ErasedPlan, ErasedTool};
use crate::{
    AbandonReason, Approval, AuthScope, CallCommitState, CallContext, Decision, ErrorKind, FollowUpMode, Host, IoMode,
    Policy, PolicyAction, PolicyRequest, PolicyResource, PolicyRevision, Preview, Principal, ProgressUpdate,
    ResourceAccess, ReviewRequirement, Sensitivity, Session, SessionMemory, Taint, ToolCall, ToolError, Verdict,
    WORKSPACE_MOUNTS,
};

/// The decision about a call, and about each of its accesses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyExplanation {
    /// The decision about the whole call.
    pub verdict: Verdict,
    /// Each access with its own decision, in the order of the plan.
    pub accesses: Vec<AccessExplanation>,
    /// For a program: what would be decided about what it leaves.
    pub follow_up_changes: Vec<ProgramChangeVerdict>,
    /// For a program: what the call itself says about what it leaves.
    pub follow_up: FollowUpMode,
}

/// The decision about one kind of change that a program makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramChangeVerdict {
    /// In words, such as "overwrite a file".
    pub change: &'static str,
    /// The decision about such changes.
    pub verdict: Verdict,
}

/// The kinds of change that a program can leave. Rules about paths say more to single ones.
const EXPLAINED_CHANGES: [(&str, PolicyAction, Sensitivity); 6] = {
    const PLAIN: Sensitivity = Sensitivity { secret: false, protected: false };
    const PROTECTED: Sensitivity = Sensitivity { secret: false, protected: true };
    [
        ("create a file", PolicyAction::Create, PLAIN),
        ("overwrite a file", PolicyAction::Overwrite, PLAIN),
        ("delete a file or directory", PolicyAction::Delete, PLAIN),
        ("create a protected path", PolicyAction::Create, PROTECTED),
        ("overwrite or delete a protected path", PolicyAction::Overwrite, PROTECTED),
        ("overwrite or delete content that is too large to keep for undo", PolicyAction::Lose, PLAIN),
    ]
};

/// The decision about one access.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessExplanation {
    /// The access.
    pub access: ResourceAccess,
    /// The decision about it.
    pub verdict: Verdict,
}

/// See `Host::explain`.
pub(crate) async fn explain_call(
    host: &Host,
    session: &Arc<Session>,
    call: ToolCall,
) -> Result<PolicyExplanation, ToolError> {
    if !session.principal.has_scope(AuthScope::Call) {
        let message = format!("`{}` may not call tools", session.principal.name);
        return Err(ToolError::new(ErrorKind::PermissionDenied, message));
    }
    let call = call.forwarded(session);
    let Some(tool) = session.catalog.find_tool(&call.name).cloned() else {
        let offered = session.catalog.list().map(|definition| definition.name.as_ref());
        return Err(session.dialect.unknown_tool_error(&call.name, offered));
    };
    let actions = tool.definition().capabilities.actions;
    let explain = move |dry_run: &DryRun<'_>, accesses, plan: Box<dyn ErasedPlan>, _: &CallContext<'_>| {
        Ok(dry_run.explain(accesses, actions, plan.follow_up()))
    };
    dry_run(host, session, tool, call.arguments, explain).await
}

/// Plans a call on a worker, within the time of a call, and works with the plan. Nothing runs.
pub(crate) async fn dry_run<T: Send + 'static>(
    host: &Host,
    session: &Arc<Session>,
    tool: Arc<dyn ErasedTool>,
    arguments: String,
    work: impl FnOnce(&DryRun<'_>, Vec<ResourceAccess>, Box<dyn ErasedPlan>, &CallContext<'_>) -> Result<T, ToolError>
    + Send
    + 'static,
) -> Result<T, ToolError> {
    let commit_state = CallCommitState::new();
    let (host, session, worker) = (host.clone(), Arc::clone(session), commit_state.clone());
    let limit = session.limits.call_time;
    let job = async move {
        let slot = host.workers.calls.acquire(&session.principal.name).await;
        let plan = move || {
            let _slot = slot;
            let name = tool.definition().name.as_ref();
            let dry_run = DryRun { policy: host.config.policy.as_ref(), session: &session, tool: name };
            let cx = CallContext::new(&session.limits, IoMode::Blocking, &worker).with_services(&dry_run);
            let (accesses, plan) = tool.plan(&arguments, &cx)?;
            work(&dry_run, accesses, plan, &cx)
        };
        let failed = |_| Err(ToolError::new(ErrorKind::Internal, "internal error in the tool"));
        spawn_blocking(plan).await.unwrap_or_else(failed)
    };
    timeout(limit, job).await.unwrap_or_else(|_| {
        commit_state.abandon(AbandonReason::Deadline);
        Err(AbandonReason::Deadline.error())
    })
}

/// A call that is only looked at.
#[derive(Debug)]
pub(crate) struct DryRun<'a> {
    pub(crate) policy: &'a dyn Policy,
    pub(crate) session: &'a Session,
    pub(crate) tool: &'a str,
}

impl DryRun<'_> {
    fn explain(
        &self,
        accesses: Vec<ResourceAccess>,
        actions: &[PolicyAction],
        follow_up: FollowUpMode,
    ) -> PolicyExplanation {
        let request = self.policy_request(&accesses);
        let verdict = self.policy.decide(&request);
        let judged: Vec<Verdict> = accesses.iter().map(|access| self.policy.evaluate(access, &request)).collect();
        let runs = accesses.iter().any(|access| access.action == PolicyAction::Run);
        let accesses =
            accesses.into_iter().zip(judged).map(|(access, verdict)| AccessExplanation { access, verdict }).collect();
        let decides = runs && follow_up != FollowUpMode::Discard;
        let afterwards = EXPLAINED_CHANGES.into_iter().filter(|(_, action, _)| decides && actions.contains(action));
        let review = |explained: ProgramChangeVerdict| match explained.verdict.decision {
            Decision::Allow if follow_up == FollowUpMode::Review => {
                let verdict = explained.verdict.requiring_review(ReviewRequirement::REQUESTED_BY_CALLER);
                ProgramChangeVerdict { verdict, ..explained }
            }
            _ => explained,
        };
        let afterwards = afterwards.map(|change| review(self.explain_change(change))).collect();
        PolicyExplanation { verdict, accesses, follow_up_changes: afterwards, follow_up }
    }

    fn explain_change(
        &self,
        (change, action, sensitivity): (&'static str, PolicyAction, Sensitivity),
    ) -> ProgramChangeVerdict {
        let resource = PolicyResource {
            mount: Arc::from(WORKSPACE_MOUNTS[0]),
            requested_path: "any path".to_owned(),
            display_path: "any path".to_owned(),
            sensitivity,
            ..PolicyResource::default()
        };
        ProgramChangeVerdict { change, verdict: self.evaluate(&ResourceAccess { action, resource }) }
    }

    pub(crate) fn policy_request<'q>(&'q self, accesses: &'q [ResourceAccess]) -> PolicyRequest<'q> {
        PolicyRequest::new(self.session, self.tool, accesses, self.session.taint.snapshot())
    }
}

impl CallServices for DryRun<'_> {
    fn evaluate(&self, access: &ResourceAccess) -> Verdict {
        self.policy.evaluate(access, &self.policy_request(std::slice::from_ref(access)))
    }

    fn policy_revision(&self) -> Option<PolicyRevision> {
        self.policy.revision(&self.policy_request(&[]))
    }

    fn memory(&self) -> &SessionMemory {
        &self.session.memory
    }

    /// Nothing happens.
    fn add_taint(&self, _: Taint) {}

    fn report_progress(&self, _: &ProgressUpdate<'_>) {}

    fn record_connection(&self, _: &ResourceAccess, _: Option<&ToolError>) -> Result<(), ToolError> {
        Ok(())
    }

    fn record_judged_connection(
        &self,
        _: &ResourceAccess,
        _: Result<Option<&Approval>, &ToolError>,
    ) -> Result<(), ToolError> {
        Ok(())
    }

    fn record_layer_conflict(&self, _: &ResourceAccess, _: &ToolError) -> Result<(), ToolError> {
        Ok(())
    }

    fn record_terminal_writer(&self, _: &Principal) -> Result<(), ToolError> {
        Ok(())
    }

    fn flush_connection_counts(&self) {}

    fn authorize_connection(&self, access: &ResourceAccess, _: &dyn Fn(&Verdict) -> bool) -> Verdict {
        self.evaluate(access)
    }

    fn ask_connection(&self, _: &ResourceAccess, _: Option<&Preview>, _: &Verdict) -> PendingConnection {
        PendingConnection::refused(ToolError::new(ErrorKind::ApprovalDenied, "a dry run requests no approval"))
    }
}
