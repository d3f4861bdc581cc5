//! Background jobs: a program that goes on after the call that started it.
//!
//! A job has a thread that follows its run, and keeps the newest part of the output that was not looked at. It works on an
//! overlay of its own; the changes are judged and committed by the call that finds it ended. When its session is over, it
//! is stopped and its changes are dropped. With the host it ends in any case, because every jail does.
//!
//! Not here: which jobs a session has (`command_session.rs`), how many there may be (`job_slots.rs`), and the calls
//! (`job_tool.rs`).

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use ringfence_kernel::sync::Mutex;
use ringfence_kernel::{CallContext, ErrorKind, ToolError, WorkspaceView};
use rustix::io::Errno;

use crate::job::{ExitReason, JailError, OutputStream, ProgramObserver, RunResult};
use crate::job_slots::JobPermit;
use crate::limits::JailLimits;
use crate::output::{escape_invalid, trailing_partial_char};
use crate::run_request::{RunCodeMode, ScriptLanguage};

/// Jobs of one session that run, or have ended and not been looked at since.
pub(crate) const MAX_JOBS: usize = 8;

/// Output of a job that is kept until it is looked at.
const MAX_UNREAD_BYTES: usize = 256 << 10;

/// Poll interval of a call that waits for a job, for its own end.
const WAIT_INTERVAL: Duration = Duration::from_millis(20);

/// A program that runs in the background.
#[derive(Debug)]
pub(crate) struct BackgroundJob {
    pub(crate) id: u64,
    pub(crate) command: String,
    /// Name of the tool that started it, whose rules hold for its changes.
    pub(crate) tool: String,
    /// Name of the principal that it counts for.
    pub(crate) principal: String,
    pub(crate) language: ScriptLanguage,
    mode: RunCodeMode,
    pub(crate) limits: JailLimits,
    pub(crate) view: WorkspaceView,
    pub(crate) started: SystemTime,
    pub(crate) started_at: Instant,
    progress: Mutex<JobProgress>,
    /// Notified when it printed something, and when it ended.
    changed: Condvar,
    /// Its standard input, if that is open.
    input: Mutex<Option<OwnedFd>>,
    /// Held while it runs, and while its end was not reported: it has memory until then.
    _permit: JobPermit,
}

#[derive(Debug, Default)]
struct JobProgress {
    unread: VecDeque<u8>,
    /// Bytes that were dropped unread.
    lost: u64,
    end: JobEnd,
    /// That it is to stop, and what becomes of its changes then.
    stop: Option<StopChoice>,
    /// Calls that wait for its end.
    waiting: usize,
}

#[derive(Debug, Default)]
enum JobEnd {
    #[default]
    Running,
    Ended(Result<RunResult, JailError>, Instant),
    /// A call reports it.
    Taken,
}

/// What becomes of the changes of a job that is stopped. It holds for whichever call reports the end, also if the job ended
/// by itself meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopChoice {
    KeepChanges,
    DiscardChanges,
}

/// A look at a job.
#[derive(Debug)]
pub(crate) struct JobLook {
    /// Output since the last look.
    pub(crate) output: String,
    /// Bytes before it that were dropped.
    pub(crate) lost: u64,
    /// Its end, for the first that sees it.
    pub(crate) end: Option<ReportedEnd>,
}

/// The end of a job.
#[derive(Debug)]
pub(crate) struct ReportedEnd {
    pub(crate) result: Result<RunResult, JailError>,
    /// What becomes of its changes.
    pub(crate) mode: RunCodeMode,
}

/// What is needed to make a job.
pub(crate) struct NewJob {
    pub(crate) command: String,
    pub(crate) tool: String,
    /// Name of the principal that it counts for.
    pub(crate) principal: String,
    pub(crate) language: ScriptLanguage,
    pub(crate) mode: RunCodeMode,
    pub(crate) limits: JailLimits,
    pub(crate) view: WorkspaceView,
    /// Our end of its standard input, if it has one. Writes to it do not block.
    pub(crate) input: Option<OwnedFd>,
}

impl BackgroundJob {
    pub(crate) fn new(id: u64, new: NewJob, permit: JobPermit) -> Self {
        let NewJob { command, tool, principal, language, mode, limits, view, input } = new;
        Self {
            id,
            command,
            tool,
            principal,
            language,
            mode,
            limits,
            view,
            started: SystemTime::now(),
            started_at: Instant::now(),
            progress: Mutex::default(),
            changed: Condvar::new(),
            input: Mutex::new(input),
            _permit: permit,
        }
    }

    /// Has it stopped. Its thread sees to that. Changes that one call discards are discarded, whatever others choose.
    pub(crate) fn stop(&self, choice: StopChoice) {
        let mut progress = self.progress.lock();
        if progress.stop != Some(StopChoice::DiscardChanges) {
            progress.stop = Some(choice);
        }
    }

    pub(crate) fn has_ended(&self) -> bool {
        !matches!(self.progress.lock().end, JobEnd::Running)
    }

    /// Whether it ended this long ago, and its end was not reported.
    pub(crate) fn is_unread_for(&self, time: Duration) -> bool {
        matches!(self.progress.lock().end, JobEnd::Ended(_, at) if at.elapsed() >= time)
    }

    /// Bytes that were not looked at, and the exit status once it ended.
    pub(crate) fn status(&self) -> (usize, Option<i32>) {
        let progress = self.progress.lock();
        let exit_code = match &progress.end {
            JobEnd::Ended(Ok(ended), _) => Some(ended.exit_code),
            JobEnd::Ended(Err(_), _) => Some(-1),
            JobEnd::Running | JobEnd::Taken => None,
        };
        (progress.unread.len(), exit_code)
    }

    /// For its thread: it is over. Changes that are discarded are dropped here, unless a call waits that will name them.
    fn finish(&self, mut result: Result<RunResult, JailError>) {
        *self.input.lock() = None;
        let mut progress = self.progress.lock();
        let is_discarded = self.end_mode(progress.stop, &result) == RunCodeMode::Discard;
        if let Ok(ended) = &mut result
            && is_discarded
            && progress.waiting == 0
        {
            ended.upper = None;
        }
        progress.end = JobEnd::Ended(result, Instant::now());
        self.changed.notify_all();
    }

    fn end_mode(&self, stop: Option<StopChoice>, result: &Result<RunResult, JailError>) -> RunCodeMode {
        let was_killed = result.as_ref().is_ok_and(|ended| ended.exit_reason == ExitReason::Cancelled);
        match stop {
            Some(StopChoice::DiscardChanges) => RunCodeMode::Discard,
            None if was_killed => RunCodeMode::Discard,
            Some(StopChoice::KeepChanges) | None => self.mode,
        }
    }

    /// As `wait_for_end`, unless another call waits already: a job has one call that waits, so that those of a client that
    /// waits for all of its jobs are few.
    pub(crate) fn wait_alone_for_end(&self, most: Duration, cx: &CallContext<'_>) {
        let progress = self.progress.lock();
        if progress.waiting == 0 {
            self.wait_with(progress, most, cx);
        }
    }

    /// Waits until it has ended, but not beyond this time or the end of the call.
    pub(crate) fn wait_for_end(&self, most: Duration, cx: &CallContext<'_>) {
        self.wait_with(self.progress.lock(), most, cx);
    }

    fn wait_with(&self, mut progress: MutexGuard<'_, JobProgress>, most: Duration, cx: &CallContext<'_>) {
        let began = Instant::now();
        progress.waiting += 1;
        while matches!(progress.end, JobEnd::Running) && began.elapsed() < most && cx.check().is_ok() {
            let left = most.saturating_sub(began.elapsed()).min(WAIT_INTERVAL);
            progress = wait(&self.changed, progress, left);
        }
        progress.waiting -= 1;
    }

    /// Takes what was printed since the last look and, once, the end. An error where another call has that.
    pub(crate) fn look(&self) -> Result<JobLook, ToolError> {
        let mut progress = self.progress.lock();
        if matches!(progress.end, JobEnd::Taken) {
            let message = format!("job {} has ended, and another call reports its end", self.id);
            return Err(ToolError::new(ErrorKind::NotFound, message));
        }
        let bytes = Vec::from(std::mem::take(&mut progress.unread));
        let lost = std::mem::take(&mut progress.lost);
        let end = match std::mem::replace(&mut progress.end, JobEnd::Taken) {
            JobEnd::Running => {
                progress.end = JobEnd::Running;
                None
            }
            JobEnd::Ended(result, _) => Some(ReportedEnd { mode: self.end_mode(progress.stop, &result), result }),
            JobEnd::Taken => None,
        };
        if end.is_none() {
            // The rest of a character that is cut comes with the next look.
            let cut = trailing_partial_char(&bytes);
            progress.unread.extend(&bytes[bytes.len() - cut..]);
            return Ok(JobLook { output: escape_invalid(&bytes[..bytes.len() - cut]), lost, end });
        }
        Ok(JobLook { output: escape_invalid(&bytes), lost, end })
    }

    /// The error of a write that cannot succeed.
    pub(crate) fn input_error(&self) -> Option<ToolError> {
        self.input.lock().is_none().then(|| self.no_input_error())
    }

    fn no_input_error(&self) -> ToolError {
        let message = match self.has_ended() {
            true => format!("job {} has ended and reads no input", self.id),
            false => format!("job {} has no standard input; start it again with its input open", self.id),
        };
        ToolError::new(ErrorKind::Execution, message)
    }

    /// Writes to its standard input.
    pub(crate) fn write(&self, text: &str) -> Result<(), ToolError> {
        if text.is_empty() {
            return Ok(());
        }
        let mut input = self.input.lock();
        let refused = |message: String| ToolError::new(ErrorKind::Execution, message);
        let Some(pipe) = input.as_ref() else { return Err(self.no_input_error()) };
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            match rustix::io::write(pipe, rest) {
                Ok(written) => rest = rest.get(written..).unwrap_or_default(),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let message = format!(
                        "job {} does not read its input: the last {} bytes were not written",
                        self.id,
                        rest.len()
                    );
                    return Err(refused(message));
                }
                Err(_) => {
                    *input = None;
                    return Err(refused(format!("job {} has closed its standard input", self.id)));
                }
            }
        }
        Ok(())
    }
}

impl ProgramObserver for BackgroundJob {
    fn on_output(&self, _: OutputStream, bytes: &[u8]) {
        let mut progress = self.progress.lock();
        progress.unread.extend(bytes);
        let over = progress.unread.len().saturating_sub(MAX_UNREAD_BYTES);
        progress.unread.drain(..over);
        progress.lost += over as u64;
        drop(progress);
        self.changed.notify_all();
    }

    fn should_stop(&self) -> bool {
        self.progress.lock().stop.is_some()
    }
}

/// Ends a job when its thread is over, also by a panic.
#[derive(Debug)]
pub(crate) struct JobEndGuard {
    pub(crate) job: Arc<BackgroundJob>,
    /// The result, once there is one.
    pub(crate) result: Option<Result<RunResult, JailError>>,
}

impl Drop for JobEndGuard {
    fn drop(&mut self) {
        self.job.finish(self.result.take().unwrap_or(Err(JailError::UnexpectedExit("the thread of the job"))));
    }
}

fn wait<'a, T>(changed: &Condvar, guard: MutexGuard<'a, T>, most: Duration) -> MutexGuard<'a, T> {
    changed.wait_timeout(guard, most).unwrap_or_else(PoisonError::into_inner).0
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs::File;
    use std::thread;

    use ringfence_kernel::{CallCommitState, CallLimits, Dialect, ExposedDir, IoMode};

    use super::*;
    use crate::job_slots::JobSlots;
    use crate::output::CapturedOutput;

    pub(crate) fn job(id: u64, mode: RunCodeMode) -> Arc<BackgroundJob> {
        let workspace = ExposedDir {
            alias: "workspace".to_owned(),
            directory: File::open("/").unwrap().into(),
            path: "/".into(),
            masked: Vec::new(),
            hidden: Vec::new(),
        };
        let view = WorkspaceView { workspace, read_only_mounts: Vec::new(), started: SystemTime::now() };
        let new = NewJob {
            command: "make".to_owned(),
            tool: "Bash".to_owned(),
            principal: "agent".to_owned(),
            language: ScriptLanguage::Bash,
            mode,
            limits: JailLimits::default(),
            view,
            input: None,
        };
        Arc::new(BackgroundJob::new(id, new, JobSlots::default().acquire("agent").unwrap()))
    }

    pub(crate) fn end(job: &Arc<BackgroundJob>, exit_reason: ExitReason) {
        let stream = || CapturedOutput::default();
        let result = RunResult {
            exit_code: 0,
            signal: None,
            exit_reason,
            process_limit_hit: false,
            stdout: stream(),
            stderr: stream(),
            duration: Duration::ZERO,
            upper: Some(File::open("/").unwrap().into()),
            isolation: Vec::new(),
        };
        drop(JobEndGuard { job: Arc::clone(job), result: Some(Ok(result)) });
    }

    fn reported(job: &BackgroundJob) -> ReportedEnd {
        job.look().unwrap().end.unwrap()
    }

    #[test]
    fn an_end_is_reported_by_one_call_and_the_next_is_told_so() {
        let job = job(1, RunCodeMode::Auto);
        assert!(job.look().unwrap().end.is_none());
        end(&job, ExitReason::Exit);
        assert_eq!(reported(&job).mode, RunCodeMode::Auto);
        assert_eq!(job.look().unwrap_err().message, "job 1 has ended, and another call reports its end");
    }

    #[test]
    fn the_choice_of_a_stop_holds_for_whichever_call_reports_the_end() {
        let check = |stops: &[StopChoice], reason: ExitReason, expected: RunCodeMode| {
            for is_late in [false, true] {
                let job = job(1, RunCodeMode::Auto);
                let stop = || stops.iter().for_each(|choice| job.stop(*choice));
                if !is_late {
                    stop();
                }
                end(&job, reason);
                if is_late {
                    stop();
                }
                assert_eq!(reported(&job).mode, expected, "{stops:?} {reason:?} {is_late}");
            }
        };
        use StopChoice::{DiscardChanges, KeepChanges};
        check(&[KeepChanges], ExitReason::Cancelled, RunCodeMode::Auto);
        check(&[DiscardChanges], ExitReason::Cancelled, RunCodeMode::Discard);
        check(&[], ExitReason::Cancelled, RunCodeMode::Discard);
        // It ended by itself just before it was stopped.
        check(&[DiscardChanges], ExitReason::Exit, RunCodeMode::Discard);
        check(&[KeepChanges], ExitReason::Exit, RunCodeMode::Auto);
        check(&[KeepChanges, DiscardChanges], ExitReason::Exit, RunCodeMode::Discard);
        check(&[DiscardChanges, KeepChanges], ExitReason::Exit, RunCodeMode::Discard);
    }

    #[test]
    fn discarded_changes_are_dropped_at_the_end_unless_a_call_waits_to_name_them() {
        let stopped = job(1, RunCodeMode::Auto);
        stopped.stop(StopChoice::DiscardChanges);
        end(&stopped, ExitReason::Cancelled);
        assert!(reported(&stopped).result.unwrap().upper.is_none());
        let job = job(2, RunCodeMode::Discard);
        let limits = CallLimits::for_dialect(Dialect::Claude);
        thread::scope(|scope| {
            scope.spawn(|| {
                let state = CallCommitState::new();
                job.wait_for_end(Duration::MAX, &CallContext::new(&limits, IoMode::Blocking, &state));
            });
            while job.progress.lock().waiting == 0 {
                thread::yield_now();
            }
            // A second call does not wait, however long it may.
            let state = CallCommitState::new();
            job.wait_alone_for_end(Duration::MAX, &CallContext::new(&limits, IoMode::Blocking, &state));
            assert!(!job.has_ended());
            end(&job, ExitReason::Exit);
        });
        assert!(reported(&job).result.unwrap().upper.is_some());
    }

    #[test]
    fn a_job_whose_thread_panics_has_ended() {
        let job = job(1, RunCodeMode::Auto);
        let guard = JobEndGuard { job: Arc::clone(&job), result: None };
        thread::spawn(move || {
            let _guard = guard;
            std::panic::resume_unwind(Box::new("in a test"));
        })
        .join()
        .unwrap_err();
        assert_eq!(job.status().1, Some(-1));
        assert!(matches!(reported(&job).result, Err(JailError::UnexpectedExit("the thread of the job"))));
    }
}
