//! Background jobs: a program that goes on after the call that started it.
//!
//! A job has a thread that follows its run, and keeps the newest part of the output that was not looked at. It works on an
//! overlay of its own; the changes are judged and committed by the call that finds it ended. When its session is over, it
//! is stopped and its changes are dropped. With the host it ends in any case, because every jail does.
//!
//! Not here: which jobs a session has (`command_session.rs`), and the calls (`job_tool.rs`).

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use ringfence_kernel::sync::Mutex;
use ringfence_kernel::{CallContext, ErrorKind, ToolError, WorkspaceView};
use rustix::io::Errno;

use crate::job::{JailError, OutputStream, ProgramObserver, RunResult};
use crate::limits::JailLimits;
use crate::output::{escape_invalid, trailing_partial_char};
use crate::run_request::RunCodeMode;

/// Jobs of one session that run, or have ended and not been looked at since.
pub(crate) const MAX_JOBS: usize = 8;

/// Longest time of a job.
pub(crate) const MAX_JOB_TIME: Duration = Duration::from_secs(2 * 60 * 60);

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
    pub(crate) mode: RunCodeMode,
    pub(crate) limits: JailLimits,
    pub(crate) view: WorkspaceView,
    pub(crate) started: SystemTime,
    pub(crate) started_at: Instant,
    progress: Mutex<JobProgress>,
    /// Notified when it printed something, and when it ended.
    changed: Condvar,
    stop: AtomicBool,
    /// Its standard input, if that is open.
    input: Mutex<Option<OwnedFd>>,
}

#[derive(Debug, Default)]
struct JobProgress {
    unread: VecDeque<u8>,
    /// Bytes that were dropped unread.
    lost: u64,
    end: JobEnd,
}

#[derive(Debug, Default)]
enum JobEnd {
    #[default]
    Running,
    Ended(Result<RunResult, JailError>),
    /// A call has it.
    Taken,
}

/// A look at a job.
#[derive(Debug)]
pub(crate) struct JobLook {
    /// Output since the last look.
    pub(crate) output: String,
    /// Bytes before it that were dropped.
    pub(crate) lost: u64,
    /// Its end, for the first that sees it.
    pub(crate) end: Option<Result<RunResult, JailError>>,
}

/// What is needed to make a job.
pub(crate) struct NewJob {
    pub(crate) command: String,
    pub(crate) tool: String,
    pub(crate) mode: RunCodeMode,
    pub(crate) limits: JailLimits,
    pub(crate) view: WorkspaceView,
    /// Our end of its standard input, if it has one. Writes to it do not block.
    pub(crate) input: Option<OwnedFd>,
}

impl BackgroundJob {
    pub(crate) fn new(id: u64, new: NewJob) -> Self {
        let NewJob { command, tool, mode, limits, view, input } = new;
        Self {
            id,
            command,
            tool,
            mode,
            limits,
            view,
            started: SystemTime::now(),
            started_at: Instant::now(),
            progress: Mutex::default(),
            changed: Condvar::new(),
            stop: AtomicBool::new(false),
            input: Mutex::new(input),
        }
    }

    /// Has it stopped. Its thread sees to that.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_ended(&self) -> bool {
        !matches!(self.progress.lock().end, JobEnd::Running)
    }

    /// Bytes that were not looked at, and the exit status once it ended.
    pub(crate) fn status(&self) -> (usize, Option<i32>) {
        let progress = self.progress.lock();
        let exit_code = match &progress.end {
            JobEnd::Ended(Ok(ended)) => Some(ended.exit_code),
            JobEnd::Ended(Err(_)) => Some(-1),
            JobEnd::Running | JobEnd::Taken => None,
        };
        (progress.unread.len(), exit_code)
    }

    /// For its thread: it is over.
    pub(crate) fn finish(&self, result: Result<RunResult, JailError>) {
        *self.input.lock() = None;
        self.progress.lock().end = JobEnd::Ended(result);
        self.changed.notify_all();
    }

    /// Waits until it has ended, but not beyond this time or the end of the call.
    pub(crate) fn wait_for_end(&self, most: Duration, cx: &CallContext<'_>) {
        let began = Instant::now();
        let mut progress = self.progress.lock();
        while matches!(progress.end, JobEnd::Running) && began.elapsed() < most && cx.check().is_ok() {
            let left = most.saturating_sub(began.elapsed()).min(WAIT_INTERVAL);
            progress = wait(&self.changed, progress, left);
        }
    }

    /// Takes what was printed since the last look and, once, the end.
    pub(crate) fn look(&self) -> JobLook {
        let mut progress = self.progress.lock();
        let bytes = Vec::from(std::mem::take(&mut progress.unread));
        let lost = std::mem::take(&mut progress.lost);
        let end = match std::mem::replace(&mut progress.end, JobEnd::Taken) {
            JobEnd::Running => {
                progress.end = JobEnd::Running;
                None
            }
            JobEnd::Ended(result) => Some(result),
            JobEnd::Taken => None,
        };
        if end.is_none() {
            // The rest of a character that is cut comes with the next look.
            let cut = trailing_partial_char(&bytes);
            progress.unread.extend(&bytes[bytes.len() - cut..]);
            return JobLook { output: escape_invalid(&bytes[..bytes.len() - cut]), lost, end };
        }
        JobLook { output: escape_invalid(&bytes), lost, end }
    }

    /// Writes to its standard input.
    pub(crate) fn write(&self, text: &str) -> Result<(), ToolError> {
        if text.is_empty() {
            return Ok(());
        }
        let mut input = self.input.lock();
        let refused = |message: String| ToolError::new(ErrorKind::Execution, message);
        let Some(pipe) = input.as_ref() else {
            return Err(refused(match self.has_ended() {
                true => format!("job {} has ended and reads no input", self.id),
                false => format!("job {} has no standard input; start it again with its input open", self.id),
            }));
        };
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
        self.stop.load(Ordering::Relaxed)
    }
}

fn wait<'a, T>(changed: &Condvar, guard: MutexGuard<'a, T>, most: Duration) -> MutexGuard<'a, T> {
    changed.wait_timeout(guard, most).unwrap_or_else(PoisonError::into_inner).0
}
