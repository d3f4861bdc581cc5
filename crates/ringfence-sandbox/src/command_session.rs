//! Command state of sessions: the directory that commands carry on in, and the background jobs.
//!
//! A session sees its own jobs only. When it is over, its jobs are stopped and their changes dropped.
//!
//! Not here: a job itself (`background_job.rs`).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use ringfence_kernel::sync::Mutex;
use ringfence_kernel::{ErrorKind, ToolError};

use crate::background_job::{BackgroundJob, MAX_JOBS, NewJob, StopChoice};
use crate::job_slots::JobSlots;
use crate::run_mounts::WORKSPACE;
use crate::sandbox::Sandbox;

/// Sessions whose directory is remembered. A session that is never ended is forgotten when there are more.
const MAX_SESSIONS: usize = 4096;

/// Time after which a job that has ended is dropped with its changes, if no call asked for its end.
const MAX_UNREAD_TIME: Duration = Duration::from_secs(2 * 60 * 60);

/// The command state of every session of a host.
#[derive(Debug, Default)]
pub struct CommandSessions {
    sessions: Mutex<BTreeMap<String, Arc<CommandSession>>>,
    last_network: AtomicU64,
    slots: JobSlots,
}

/// The state of a background job, for people.
#[derive(Clone, Debug)]
pub struct JobStatus {
    /// The session that started it.
    pub session: String,
    /// Name of the session's principal.
    pub principal: String,
    /// Its number in the session.
    pub id: u64,
    /// The command line.
    pub command: String,
    /// When it was started.
    pub started: SystemTime,
    /// Its exit status, once it has ended; -1 where it could not be run.
    pub exit_code: Option<i32>,
    /// Bytes of output that the session has not looked at.
    pub unread_bytes: usize,
}

impl CommandSessions {
    /// The background jobs of a session, in the order in which they were started.
    pub fn jobs(&self, session: &str) -> Vec<JobStatus> {
        let found = self.sessions.lock().get(session).cloned();
        found.map(|found| found.job_status(session)).unwrap_or_default()
    }

    /// The background jobs of every session.
    pub fn all_jobs(&self) -> Vec<JobStatus> {
        let sessions = self.sessions.lock().clone();
        sessions.iter().flat_map(|(id, session)| session.job_status(id)).collect()
    }

    /// Forgets a session that is over, and stops its jobs. Their changes are dropped.
    pub fn end_session(&self, session: &str) {
        let ended = self.sessions.lock().remove(session);
        if let Some(session) = ended {
            session.stop_all();
        }
    }

    /// The state of a session, which is made with its first command.
    pub(crate) fn session(&self, id: &str) -> Arc<CommandSession> {
        let mut sessions = self.sessions.lock();
        sessions.values().for_each(|session| session.drop_unread(MAX_UNREAD_TIME));
        if let Some(session) = sessions.get(id) {
            return Arc::clone(session);
        }
        if sessions.len() >= MAX_SESSIONS {
            // One that a call has may be about to get a job.
            sessions.retain(|_, session| Arc::strong_count(session) > 1 || !session.jobs.lock().all.is_empty());
        }
        let session = Arc::new(CommandSession::new());
        sessions.insert(id.to_owned(), Arc::clone(&session));
        session
    }

    fn new_network(&self, sandbox: &Arc<Sandbox>) -> Arc<SharedNetwork> {
        let id = self.last_network.fetch_add(1, Ordering::Relaxed) + 1;
        Arc::new(SharedNetwork { id, sandbox: Arc::clone(sandbox) })
    }
}

impl Drop for CommandSessions {
    fn drop(&mut self) {
        self.sessions.get_mut().values().for_each(|session| session.stop_all());
    }
}

/// The command state of one session.
#[derive(Debug)]
pub(crate) struct CommandSession {
    /// Where its next command starts, in the jail.
    directory: Mutex<String>,
    jobs: Mutex<SessionJobs>,
}

#[derive(Debug, Default)]
struct SessionJobs {
    last_id: u64,
    /// Those that run, and those that ended and were not looked at since.
    all: Vec<Arc<BackgroundJob>>,
    /// The network of the jobs that run, and of commands that were started while one did.
    network: Weak<SharedNetwork>,
    /// A reply has said how jobs behave.
    is_explained: bool,
    is_over: bool,
}

/// A network that programs of a session share. It is closed with the last of them.
#[derive(Debug)]
pub(crate) struct SharedNetwork {
    /// Its name for the spawner.
    pub(crate) id: u64,
    sandbox: Arc<Sandbox>,
}

impl Drop for SharedNetwork {
    fn drop(&mut self) {
        self.sandbox.close_network(self.id);
    }
}

/// A job that was just entered.
#[derive(Debug)]
pub(crate) struct EnteredJob {
    pub(crate) job: Arc<BackgroundJob>,
    pub(crate) network: Arc<SharedNetwork>,
}

impl CommandSession {
    fn new() -> Self {
        Self { directory: Mutex::new(WORKSPACE.to_owned()), jobs: Mutex::default() }
    }

    fn job_status(&self, session: &str) -> Vec<JobStatus> {
        let status = |job: &Arc<BackgroundJob>| {
            let (unread_bytes, exit_code) = job.status();
            JobStatus {
                session: session.to_owned(),
                principal: job.principal.clone(),
                id: job.id,
                command: job.command.clone(),
                started: job.started,
                exit_code,
                unread_bytes,
            }
        };
        self.jobs.lock().all.iter().map(status).collect()
    }

    pub(crate) fn directory(&self) -> String {
        self.directory.lock().clone()
    }

    pub(crate) fn set_directory(&self, path: String) {
        *self.directory.lock() = path;
    }

    /// The network of commands without egress: that of the jobs, while one runs.
    pub(crate) fn network(&self) -> Option<Arc<SharedNetwork>> {
        self.jobs.lock().network.upgrade()
    }

    /// Enters a job that is about to run, unless there are too many.
    pub(crate) fn enter(
        &self,
        new: NewJob,
        sessions: &CommandSessions,
        sandbox: &Arc<Sandbox>,
    ) -> Result<EnteredJob, ToolError> {
        let mut jobs = self.jobs.lock();
        if jobs.is_over {
            return Err(ToolError::new(ErrorKind::Cancelled, "the session is over"));
        }
        if jobs.all.len() >= MAX_JOBS {
            let message =
                format!("there are {MAX_JOBS} background jobs already; read or stop one first: {}", jobs.describe());
            return Err(ToolError::new(ErrorKind::Execution, message));
        }
        let permit = sessions.slots.acquire(&new.principal)?;
        jobs.last_id += 1;
        let job = Arc::new(BackgroundJob::new(jobs.last_id, new, permit));
        jobs.all.push(Arc::clone(&job));
        let network = jobs.network.upgrade().unwrap_or_else(|| sessions.new_network(sandbox));
        jobs.network = Arc::downgrade(&network);
        Ok(EnteredJob { job, network })
    }

    /// Whether a reply about a job that was started is to say how jobs behave: true once.
    pub(crate) fn should_explain_jobs(&self) -> bool {
        !std::mem::replace(&mut self.jobs.lock().is_explained, true)
    }

    pub(crate) fn find(&self, id: u64) -> Result<Arc<BackgroundJob>, ToolError> {
        let jobs = self.jobs.lock();
        let found = jobs.all.iter().find(|job| job.id == id).cloned();
        found.ok_or_else(|| {
            let message = match jobs.all.is_empty() {
                true if id <= jobs.last_id => format!("job {id} has ended, and its end was reported"),
                true => format!("there is no job {id}, and none is running"),
                false => format!("there is no job {id}; there are: {}", jobs.describe()),
            };
            ToolError::new(ErrorKind::NotFound, message)
        })
    }

    /// Forgets a job whose end was seen.
    pub(crate) fn remove(&self, id: u64) {
        self.jobs.lock().all.retain(|job| job.id != id);
    }

    /// Forgets jobs that ended this long ago, with their changes.
    fn drop_unread(&self, time: Duration) {
        self.jobs.lock().all.retain(|job| !job.is_unread_for(time));
    }

    fn stop_all(&self) {
        let mut jobs = self.jobs.lock();
        jobs.is_over = true;
        jobs.all.drain(..).for_each(|job| job.stop(StopChoice::DiscardChanges));
    }
}

impl SessionJobs {
    fn describe(&self) -> String {
        let shown = |job: &Arc<BackgroundJob>| {
            let line = job.command.lines().next().unwrap_or_default();
            let line = &line[..line.floor_char_boundary(40)];
            format!("{} (`{line}`{})", job.id, if job.has_ended() { ", ended" } else { "" })
        };
        self.all.iter().map(shown).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::background_job::tests::{end, job};
    use crate::job::ExitReason;
    use crate::run_request::RunCodeMode;

    #[test]
    fn an_ended_job_that_is_not_read_is_dropped_after_a_while() {
        let session = CommandSession::new();
        let (ended, running) = (job(1, RunCodeMode::Auto), job(2, RunCodeMode::Auto));
        end(&ended, ExitReason::Exit);
        session.jobs.lock().all.extend([Arc::clone(&ended), running]);
        session.drop_unread(MAX_UNREAD_TIME);
        assert_eq!(session.jobs.lock().all.len(), 2);
        session.drop_unread(Duration::ZERO);
        assert!(session.find(1).is_err() && session.find(2).is_ok());
        assert_eq!(Arc::strong_count(&ended), 1, "its changes go with it");
    }

    #[test]
    fn a_session_that_a_call_has_is_not_forgotten() {
        let sessions = CommandSessions::default();
        let in_use = sessions.session("in use");
        sessions.session("idle").set_directory("/tmp".to_owned());
        for number in 0..=MAX_SESSIONS {
            sessions.session(&number.to_string());
        }
        assert!(Arc::ptr_eq(&in_use, &sessions.session("in use")));
        assert_eq!(sessions.session("idle").directory(), WORKSPACE);
        let explained: Vec<bool> = (0..3).map(|_| in_use.should_explain_jobs()).collect();
        assert_eq!(explained, [true, false, false]);
    }
}
