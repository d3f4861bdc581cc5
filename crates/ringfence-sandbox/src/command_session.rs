//! Command state of sessions: the directory that commands carry on in, and the background jobs.
//!
//! A session sees its own jobs only. When it is over, its jobs are stopped and their changes dropped.
//!
//! Not here: a job itself (`background_job.rs`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use ringfence_kernel::sync::Mutex;
use ringfence_kernel::{ErrorKind, ToolError};

use crate::background_job::{BackgroundJob, MAX_JOBS, NewJob};
use crate::run_mounts::WORKSPACE;

/// Sessions whose directory is remembered. A session that is never ended is forgotten when there are more.
const MAX_SESSIONS: usize = 4096;

/// The command state of every session of a host.
#[derive(Debug, Default)]
pub struct CommandSessions {
    sessions: Mutex<BTreeMap<String, Arc<CommandSession>>>,
    last_network: AtomicU64,
}

/// The state of a background job, for people.
#[derive(Clone, Debug)]
pub struct JobStatus {
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
        let status = |job: &Arc<BackgroundJob>| {
            let (unread_bytes, exit_code) = job.status();
            JobStatus { id: job.id, command: job.command.clone(), started: job.started, exit_code, unread_bytes }
        };
        found.map(|session| session.jobs.lock().all.iter().map(status).collect()).unwrap_or_default()
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
        if let Some(session) = sessions.get(id) {
            return Arc::clone(session);
        }
        if sessions.len() >= MAX_SESSIONS {
            sessions.retain(|_, session| !session.jobs.lock().all.is_empty());
        }
        let session = Arc::new(CommandSession::new());
        sessions.insert(id.to_owned(), Arc::clone(&session));
        session
    }

    /// A name for a network that jobs share.
    pub(crate) fn next_network(&self) -> u64 {
        self.last_network.fetch_add(1, Ordering::Relaxed) + 1
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
    /// The network of the jobs that run, and of commands while one does.
    network: Option<u64>,
    running: usize,
    is_over: bool,
}

/// A job that was just entered.
#[derive(Debug)]
pub(crate) struct EnteredJob {
    pub(crate) job: Arc<BackgroundJob>,
    pub(crate) network: u64,
    pub(crate) is_first: bool,
}

impl CommandSession {
    fn new() -> Self {
        Self { directory: Mutex::new(WORKSPACE.to_owned()), jobs: Mutex::default() }
    }

    pub(crate) fn directory(&self) -> String {
        self.directory.lock().clone()
    }

    pub(crate) fn set_directory(&self, path: String) {
        *self.directory.lock() = path;
    }

    /// The network of commands without egress: that of the jobs, while one runs.
    pub(crate) fn network(&self) -> Option<u64> {
        self.jobs.lock().network
    }

    /// Enters a job that is about to run, unless there are too many.
    pub(crate) fn enter(&self, new: NewJob, sessions: &CommandSessions) -> Result<EnteredJob, ToolError> {
        let mut jobs = self.jobs.lock();
        if jobs.is_over {
            return Err(ToolError::new(ErrorKind::Cancelled, "the session is over"));
        }
        if jobs.all.len() >= MAX_JOBS {
            let message = format!("there are {MAX_JOBS} background jobs already; stop one first: {}", jobs.describe());
            return Err(ToolError::new(ErrorKind::Execution, message));
        }
        jobs.last_id += 1;
        let job = Arc::new(BackgroundJob::new(jobs.last_id, new));
        jobs.all.push(Arc::clone(&job));
        jobs.running += 1;
        let network = *jobs.network.get_or_insert_with(|| sessions.next_network());
        Ok(EnteredJob { job, network, is_first: jobs.last_id == 1 })
    }

    /// For the thread of a job that is over. Returns the network that no job is in any more.
    pub(crate) fn leave(&self) -> Option<u64> {
        let mut jobs = self.jobs.lock();
        jobs.running = jobs.running.saturating_sub(1);
        if jobs.running == 0 { jobs.network.take() } else { None }
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

    fn stop_all(&self) {
        let mut jobs = self.jobs.lock();
        jobs.is_over = true;
        jobs.all.drain(..).for_each(|job| job.stop());
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
