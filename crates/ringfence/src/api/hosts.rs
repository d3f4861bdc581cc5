//! Host pool of the API: one host per requested workspace, dialect and agent.
//!
//! A workspace is one that the user declared, or the one of the command line, and is addressed by its name alone:
//! clients cannot name paths of this machine. Hosts of one workspace are coordinated like those of several processes:
//! by locks, the audit log and the store.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use ringfence_kernel::sync::Mutex;
use ringfence_kernel::{ApprovalRequest, Approver, ApproverReply, Assurance, Dialect};
use ringfence_sandbox::JobStatus;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::api::error::ApiError;
use crate::api::feed::EventFeed;
use crate::app::{App, AppError, build_app_with_tap, build_person_app};
use crate::approval::approver_for;
use crate::config::{AppSettings, CliFlags, Environment, load};

/// Name of the workspace of the command line.
pub(super) const MAIN_WORKSPACE: &str = "main";

/// Most hosts at once.
const MAX_HOSTS: usize = 256;

/// Most hosts at once that the open sessions of one token use.
const HOSTS_PER_TOKEN: usize = 64;

/// Key of a host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct HostPoolKey {
    pub(super) workspace: String,
    pub(super) dialect: Option<Dialect>,
    pub(super) agent: Option<String>,
    /// The run of a workflow whose state is `@state`.
    pub(super) run: Option<String>,
}

impl HostPoolKey {
    pub(super) fn for_workspace(workspace: Option<&str>) -> Self {
        Self { workspace: workspace.unwrap_or(MAIN_WORKSPACE).to_owned(), dialect: None, agent: None, run: None }
    }
}

/// Everything that hosts are made from, and those that were.
#[derive(Clone, Debug)]
pub(crate) struct HostPool(Arc<HostPoolInner>);

#[derive(Debug)]
struct HostPoolInner {
    flags: CliFlags,
    environment: Environment,
    declared: BTreeMap<String, String>,
    feed: EventFeed,
    approver: DeferringApprover,
    agents: Mutex<HashMap<HostPoolKey, Arc<App>>>,
    persons: Mutex<HashMap<(String, Assurance), Arc<App>>>,
    /// The hosts that the sessions of a token use, and the number of sessions on each.
    leases: Mutex<HashMap<String, HashMap<HostPoolKey, usize>>>,
    /// Held while a host is built.
    build_lock: Mutex<()>,
}

impl HostPool {
    pub(super) fn new(
        flags: CliFlags,
        environment: Environment,
        feed: EventFeed,
        waits: DeferringApprover,
    ) -> Result<Self, AppError> {
        let declared = load(&flags, &environment)?.workspaces;
        let (agents, persons, leases, making) = Default::default();
        Ok(Self(Arc::new(HostPoolInner {
            flags,
            environment,
            declared,
            feed,
            approver: waits,
            agents,
            persons,
            leases,
            build_lock: making,
        })))
    }

    pub(super) fn names(&self) -> Vec<String> {
        std::iter::once(MAIN_WORKSPACE.to_owned())
            .chain(self.0.declared.keys().filter(|name| *name != MAIN_WORKSPACE).cloned())
            .collect()
    }

    /// Lets a session of a token use a host, as long as the lease is held. Fails where the token uses as many as it may.
    pub(super) fn lease(&self, token: &str, which: &HostPoolKey) -> Result<HostLease, ApiError> {
        let mut leases = self.0.leases.lock();
        let own = leases.entry(token.to_owned()).or_default();
        if own.len() >= HOSTS_PER_TOKEN && !own.contains_key(which) {
            return Err(ApiError::too_many_requests(format!(
                "this token has sessions with {HOSTS_PER_TOKEN} different combinations of workspace, dialect, agent and \
                 run; end some"
            )));
        }
        *own.entry(which.clone()).or_default() += 1;
        Ok(HostLease { hosts: self.clone(), token: token.to_owned(), which: which.clone() })
    }

    /// The host that agents use.
    pub(super) async fn agent_host(&self, which: HostPoolKey) -> Result<Arc<App>, ApiError> {
        if let Some(there) = self.0.agents.lock().get(&which) {
            return Ok(Arc::clone(there));
        }
        let inner = Arc::clone(&self.0);
        run_blocking(move || {
            let (settings, _) = Self(Arc::clone(&inner)).settings(&which)?;
            // One at a time, and without blocking readers: an MCP server may take its time to start.
            let _making = inner.build_lock.lock();
            {
                let mut all = inner.agents.lock();
                if let Some(there) = all.get(&which) {
                    return Ok(Arc::clone(there));
                }
                if all.len() >= MAX_HOSTS {
                    all.retain(|_, app| Arc::strong_count(app) > 1);
                }
                if all.len() >= MAX_HOSTS {
                    return Err(ApiError::too_many_requests(
                        "too many sessions with different settings are open; end some",
                    ));
                }
            }
            let approver = approver_for(&settings, || Box::new(inner.approver.clone()));
            let feed = Box::new(inner.feed.clone());
            let app = Arc::new(build_app_with_tap(settings, &inner.environment, approver, feed)?);
            inner.agents.lock().insert(which, Arc::clone(&app));
            Ok(app)
        })
        .await
    }

    /// The background jobs of the sessions on every host.
    pub(super) fn jobs(&self) -> Vec<JobStatus> {
        let apps: Vec<Arc<App>> = self.0.agents.lock().values().cloned().collect();
        apps.iter().flat_map(|app| app.commands.all_jobs()).collect()
    }

    /// The settings of one, and where they hold.
    pub(super) fn settings(&self, which: &HostPoolKey) -> Result<(AppSettings, Environment), ApiError> {
        let flags = self.0.flags_for(which)?;
        let mut settings = load(&flags, &self.0.environment).map_err(AppError::from)?;
        // A caller chooses the dialect, and not a looser preset.
        let own = load(&self.0.flags, &self.0.environment).map_err(AppError::from)?;
        settings.preset = settings.preset.max(own.preset);
        self.0.check_managed_workspace(&flags, settings.workspace.as_deref())?;
        Ok((settings, self.0.environment.clone()))
    }

    /// The host with which a person, or a client of lower assurance, views a workspace and undoes changes.
    pub(super) async fn person_host(
        &self,
        workspace: Option<&str>,
        assurance: Assurance,
    ) -> Result<Arc<App>, ApiError> {
        let which = HostPoolKey::for_workspace(workspace);
        let key = (which.workspace.clone(), assurance);
        if let Some(there) = self.0.persons.lock().get(&key) {
            return Ok(Arc::clone(there));
        }
        let inner = Arc::clone(&self.0);
        run_blocking(move || {
            let (settings, _) = Self(Arc::clone(&inner)).settings(&which)?;
            let app = Arc::new(build_person_app(
                settings,
                &inner.environment,
                assurance,
                Some(Box::new(inner.feed.clone())),
            )?);
            inner.persons.lock().insert(key, Arc::clone(&app));
            Ok(app)
        })
        .await
    }
}

/// The use of a host by a session, until it is dropped.
#[derive(Debug)]
pub(super) struct HostLease {
    hosts: HostPool,
    token: String,
    which: HostPoolKey,
}

impl Drop for HostLease {
    fn drop(&mut self) {
        let mut leases = self.hosts.0.leases.lock();
        let Some(own) = leases.get_mut(&self.token) else { return };
        match own.get_mut(&self.which) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                own.remove(&self.which);
            }
        }
        if own.is_empty() {
            leases.remove(&self.token);
        }
    }
}

impl HostPoolInner {
    /// The equivalent options of the command line.
    fn flags_for(&self, which: &HostPoolKey) -> Result<CliFlags, ApiError> {
        let mut flags = self.flags.clone();
        if let Some(path) = self.declared.get(&which.workspace) {
            flags.workspace = Some(path.clone());
        } else if which.workspace != MAIN_WORKSPACE {
            let known = self.declared.keys().map(String::as_str).chain([MAIN_WORKSPACE]);
            let guess = ringfence_kernel::nearest_name(&which.workspace, known);
            let guess = guess.map(|guess| format!("; did you mean `{guess}`?")).unwrap_or_default();
            return Err(ApiError::not_found(format!("no declared workspace has that name{guess}")));
        }
        if let (Some(own), Some(wanted)) = (&flags.agent, &which.agent)
            && own != wanted
        {
            return Err(ApiError::forbidden("this server is restricted to another agent"));
        }
        flags.dialect = which.dialect.or(flags.dialect);
        flags.agent = which.agent.clone().or(flags.agent);
        if let Some(run) = &which.run {
            // The graph of the command line is for the run of the command line.
            flags.graph = flags.graph.filter(|_| flags.run.as_ref() == Some(run));
            flags.run = Some(run.clone());
        }
        Ok(flags)
    }

    /// Fails where the machine's owner set one workspace for all users.
    fn check_managed_workspace(&self, flags: &CliFlags, holds: Option<&str>) -> Result<(), ApiError> {
        match flags.workspace.as_deref() {
            wanted if wanted.is_some() && wanted != holds => {
                Err(ApiError::forbidden("the machine's managed config sets another workspace"))
            }
            _ => Ok(()),
        }
    }
}

/// Work that may wait for a disk.
pub(super) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    spawn_blocking(work).await.unwrap_or_else(|_| Err(ApiError::internal("internal server error")))
}

/// Approver with a time limit, after which the caller gets a deferred reply.
#[derive(Clone, Debug)]
pub(super) struct DeferringApprover {
    default_wait: Duration,
    /// By session and call, where the caller set one.
    overrides: Arc<Mutex<HashMap<(String, String), Duration>>>,
}

/// Keeps a caller's time limit until its call is over.
#[derive(Debug)]
pub(super) struct ApprovalWaitOverride {
    approver: DeferringApprover,
    key: (String, String),
}

impl DeferringApprover {
    pub(super) fn new(default_wait: Duration) -> Self {
        Self { default_wait, overrides: Arc::default() }
    }

    pub(super) fn override_wait(
        &self,
        session: &str,
        call: &str,
        time: Option<Duration>,
    ) -> Option<ApprovalWaitOverride> {
        let key = (session.to_owned(), call.to_owned());
        self.overrides.lock().insert(key.clone(), time?);
        Some(ApprovalWaitOverride { approver: self.clone(), key })
    }
}

impl Drop for ApprovalWaitOverride {
    fn drop(&mut self) {
        self.approver.overrides.lock().remove(&self.key);
    }
}

/// Asks no approver by itself: answers come through the inbox, from the page or a terminal.
impl Approver for DeferringApprover {
    fn ask<'a>(&'a self, request: &'a ApprovalRequest) -> Pin<Box<dyn Future<Output = ApproverReply> + Send + 'a>> {
        let key = (request.session.clone(), request.step_id.clone());
        let time = self.overrides.lock().get(&key).copied().unwrap_or(self.default_wait);
        Box::pin(async move {
            sleep(time).await;
            ApproverReply::Deferred
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    use axum::http::StatusCode;
    use ringfence_kernel::Dialect;

    use super::{DeferringApprover, HOSTS_PER_TOKEN, HostPool, HostPoolKey};
    use crate::api::feed::EventFeed;
    use crate::config::{CliFlags, Environment};

    fn test_pool(root: &Path) -> HostPool {
        let root = std::fs::canonicalize(root).unwrap();
        let workspace = root.join("ws");
        std::fs::create_dir(&workspace).unwrap();
        let flags = CliFlags { workspace: Some(workspace.to_str().unwrap().to_owned()), ..CliFlags::default() };
        let environment = Environment::isolated(&root, root.join("none"));
        HostPool::new(flags, environment, EventFeed::new(), DeferringApprover::new(Duration::ZERO)).unwrap()
    }

    #[test]
    fn a_token_uses_few_hosts_and_leaves_the_rest_to_others() {
        let directory = tempfile::tempdir().unwrap();
        let hosts = test_pool(directory.path());
        let run = |number: usize| HostPoolKey { run: Some(format!("r{number}")), ..HostPoolKey::for_workspace(None) };
        let mut held: Vec<_> = (0..HOSTS_PER_TOKEN).map(|number| hosts.lease("a", &run(number)).unwrap()).collect();
        assert_eq!(hosts.lease("a", &run(999)).unwrap_err().status(), StatusCode::TOO_MANY_REQUESTS);
        held.push(hosts.lease("a", &run(0)).unwrap());
        assert!(hosts.lease("b", &run(999)).is_ok());
        held.pop();
        assert!(hosts.lease("a", &run(999)).is_err(), "the first session on it is still open");
        held.remove(0);
        assert!(hosts.lease("a", &run(999)).is_ok());
        held.clear();
        assert!(hosts.0.leases.lock().is_empty());
    }

    #[tokio::test]
    async fn a_host_that_several_ask_for_at_once_is_made_once() {
        let directory = tempfile::tempdir().unwrap();
        let hosts = test_pool(directory.path());
        let ask = |dialect| {
            let hosts = hosts.clone();
            tokio::spawn(async move {
                hosts.agent_host(HostPoolKey { dialect, ..HostPoolKey::for_workspace(None) }).await.unwrap()
            })
        };
        let asked: Vec<_> = (0..8).map(|_| ask(None)).collect();
        let other = ask(Some(Dialect::Miniclaw));
        let mut made = Vec::new();
        for asked in asked {
            made.push(asked.await.unwrap());
        }
        assert!(made.iter().all(|one| Arc::ptr_eq(one, &made[0])));
        assert!(!Arc::ptr_eq(&other.await.unwrap(), &made[0]));
    }
}
