//! Worker threads: a call that may block runs there, and its caller waits as long as the call may take.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::audit::AuditEvent;
use crate::call_state::CallState;
use crate::invocation::Invocation;
use crate::{AbandonReason, CallCommitState, ErrorKind, HostError, IoMode, ToolError, ToolReply};

/// Time that a committed change gets after its deadline, before the reply says that its end is unknown.
const COMMIT_GRACE_TIME: Duration = Duration::from_millis(250);

/// Time that a call gets that stops by itself.
const GRACEFUL_STOP_TIME: Duration = Duration::from_secs(5);

impl Invocation {
    /// Advances a call on a worker thread, and waits for it as long as the call may take. The thread ends by itself: at
    /// its next check of the commit state, or when its work returns.
    pub(crate) async fn run_on_worker(
        self: &Arc<Self>,
        state: CallState,
        cancel: &CancellationToken,
    ) -> Result<CallState, HostError> {
        let commit_state = CallCommitState::new();
        let mut waiting =
            WorkerWaitGuard { invocation: Arc::clone(self), commit_state: commit_state.clone(), finished: false };
        let limits = &self.host.workers;
        let workers = match (self.waits_for_job, self.stops_gracefully) {
            (true, _) => &limits.job_waits,
            (false, true) => &limits.programs,
            (false, false) => &limits.calls,
        };
        let invocation = Arc::clone(self);
        let job = async move {
            let slot = workers.acquire(&self.session.principal.name).await;
            let job = move || {
                let _slot = slot;
                invocation.advance_on_this_thread(state, IoMode::Blocking, &commit_state)
            };
            // Where the system gives no more threads, this panics instead of failing.
            let job = catch_unwind(AssertUnwindSafe(|| spawn_blocking(job))).ok()?;
            job.await.ok()
        };
        tokio::pin!(job);
        let mut deadline = self.host.timers.start(self.time_limit);
        let why = tokio::select! {
            biased;
            done = &mut job => {
                waiting.finished = true;
                return self.state_after(done);
            }
            () = cancel.cancelled() => AbandonReason::Cancel,
            () = &mut deadline => AbandonReason::Deadline,
        };
        if self.stops_gracefully {
            waiting.commit_state.request_stop(why);
            if let Ok(done) = timeout(GRACEFUL_STOP_TIME, &mut job).await {
                waiting.finished = true;
                return self.state_after(done);
            }
        }
        if let Some(reply) = waiting.abandon(why)? {
            return Ok(CallState::Done(reply));
        }
        let done = timeout(COMMIT_GRACE_TIME, &mut job).await;
        waiting.finished = true;
        match done {
            Ok(done) => self.state_after(done),
            Err(_) => self.record_overdue(why, waiting.commit_state.subject()).map(CallState::Done),
        }
    }

    /// The state that a worker left, for the caller that waited for it.
    fn state_after(&self, done: Option<Result<CallState, HostError>>) -> Result<CallState, HostError> {
        match done {
            Some(Err(fatal)) => Err(fatal),
            Some(Ok(CallState::Abandoned)) | None => {
                let error = ToolError::new(ErrorKind::Internal, "the call was lost before it finished");
                self.record_end(&[], Err(error)).map(CallState::Done)
            }
            Some(Ok(state)) => Ok(state),
        }
    }
}

/// A caller that waits for a worker. Dropped while the work goes on, it cancels the call.
struct WorkerWaitGuard {
    invocation: Arc<Invocation>,
    commit_state: CallCommitState,
    /// Nothing is waited for any more.
    finished: bool,
}

impl WorkerWaitGuard {
    /// Stops waiting. `None` if the worker committed first.
    fn abandon(&mut self, why: AbandonReason) -> Result<Option<ToolReply>, HostError> {
        if !self.commit_state.abandon(why) {
            return Ok(None);
        }
        self.finished = true;
        let error = why.error().detail("committed", false);
        let reply = self.invocation.error_reply(&error);
        let event =
            AuditEvent::End { outcome: Err(&error), reply: &reply.text, duration: self.invocation.started.elapsed() };
        self.invocation.record_with_subject(self.commit_state.subject(), &[], event)?;
        Ok(Some(reply))
    }
}

impl Drop for WorkerWaitGuard {
    fn drop(&mut self) {
        if !self.finished {
            // No caller is left to report a failed record to.
            let _ = self.abandon(AbandonReason::Cancel);
        }
    }
}
