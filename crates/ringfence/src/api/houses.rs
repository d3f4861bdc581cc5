//! The hosts behind the API: one for each workspace, dialect and agent that somebody asked for.
//!
//! A workspace is one that the user declared, or the one of the command line, and is known by its name alone: nobody who
//! comes in says where on this machine something is. Hosts of one workspace meet where those of several processes do: in
//! locks, the audit log and the store.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ringfence_kernel::{ApprovalRequest, Approver, Assurance, Dialect, Word};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::feed::Feed;
use super::problem::Problem;
use crate::approve::by_setting;
use crate::config::{Environment, Flags, Settings, load};
use crate::lock::lock;
use crate::wire::{WireError, Wired, wire_for_person, wire_heard};

/// What the workspace of the command line is called.
pub(super) const MAIN: &str = "main";

/// More hosts than this nobody needs at once.
const MOST: usize = 256;

/// Which host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Which {
    pub(super) workspace: String,
    pub(super) dialect: Option<Dialect>,
    pub(super) agent: Option<String>,
    /// The run of a workflow whose state is `@state`.
    pub(super) run: Option<String>,
}

impl Which {
    pub(super) fn of(workspace: Option<&str>) -> Self {
        Self { workspace: workspace.unwrap_or(MAIN).to_owned(), dialect: None, agent: None, run: None }
    }
}

/// Everything that hosts are made from, and those that were.
#[derive(Clone, Debug)]
pub(crate) struct Houses(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    flags: Flags,
    environment: Environment,
    declared: BTreeMap<String, String>,
    feed: Feed,
    waits: Waits,
    agents: Mutex<HashMap<Which, Arc<Wired>>>,
    persons: Mutex<HashMap<(String, Assurance), Arc<Wired>>>,
    /// Held by whoever puts a host together.
    making: Mutex<()>,
}

impl Houses {
    pub(super) fn new(flags: Flags, environment: Environment, feed: Feed, waits: Waits) -> Result<Self, WireError> {
        let declared = load(&flags, &environment)?.workspaces;
        let (agents, persons, making) = Default::default();
        Ok(Self(Arc::new(Inner { flags, environment, declared, feed, waits, agents, persons, making })))
    }

    pub(super) fn names(&self) -> Vec<String> {
        std::iter::once(MAIN.to_owned()).chain(self.0.declared.keys().filter(|name| *name != MAIN).cloned()).collect()
    }

    /// The host that agents use.
    pub(super) async fn agent(&self, which: Which) -> Result<Arc<Wired>, Problem> {
        if let Some(there) = lock(&self.0.agents).get(&which) {
            return Ok(Arc::clone(there));
        }
        let inner = Arc::clone(&self.0);
        off_thread(move || {
            let (settings, _) = Self(Arc::clone(&inner)).settings(&which)?;
            // One at a time, and nobody who only looks waits for it: a server of other tools may take its time.
            let _making = lock(&inner.making);
            {
                let mut all = lock(&inner.agents);
                if let Some(there) = all.get(&which) {
                    return Ok(Arc::clone(there));
                }
                if all.len() >= MOST {
                    all.retain(|_, wired| Arc::strong_count(wired) > 1);
                }
                if all.len() >= MOST {
                    return Err(Problem::too_many("too many kinds of sessions are open; end some"));
                }
            }
            let approver = by_setting(&settings, || Box::new(inner.waits.clone()));
            let feed = Box::new(inner.feed.clone());
            let wired = Arc::new(wire_heard(settings, &inner.environment, approver, feed)?);
            lock(&inner.agents).insert(which, Arc::clone(&wired));
            Ok(wired)
        })
        .await
    }

    /// The settings of one, and where they hold.
    pub(super) fn settings(&self, which: &Which) -> Result<(Settings, Environment), Problem> {
        let flags = self.0.flags_for(which)?;
        let mut settings = load(&flags, &self.0.environment).map_err(WireError::from)?;
        // Who calls chooses words, and not what is allowed without asking.
        let own = load(&self.0.flags, &self.0.environment).map_err(WireError::from)?;
        settings.preset = settings.preset.max(own.preset);
        self.0.check_ours(&flags, settings.workspace.as_deref())?;
        Ok((settings, self.0.environment.clone()))
    }

    /// The host by which a person looks at a workspace and takes changes back, or somebody whose word is less sure.
    pub(super) async fn person(&self, workspace: Option<&str>, word: Assurance) -> Result<Arc<Wired>, Problem> {
        let which = Which::of(workspace);
        let key = (which.workspace.clone(), word);
        if let Some(there) = lock(&self.0.persons).get(&key) {
            return Ok(Arc::clone(there));
        }
        let inner = Arc::clone(&self.0);
        off_thread(move || {
            let (settings, _) = Self(Arc::clone(&inner)).settings(&which)?;
            let wired =
                Arc::new(wire_for_person(settings, &inner.environment, word, Some(Box::new(inner.feed.clone())))?);
            lock(&inner.persons).insert(key, Arc::clone(&wired));
            Ok(wired)
        })
        .await
    }
}

impl Inner {
    /// What the command line would have said.
    fn flags_for(&self, which: &Which) -> Result<Flags, Problem> {
        let mut flags = self.flags.clone();
        if let Some(path) = self.declared.get(&which.workspace) {
            flags.workspace = Some(path.clone());
        } else if which.workspace != MAIN {
            let known = self.declared.keys().map(String::as_str).chain([MAIN]);
            let guess = ringfence_kernel::nearest(&which.workspace, known);
            let guess = guess.map(|guess| format!("; did you mean `{guess}`?")).unwrap_or_default();
            return Err(Problem::missing(format!("no workspace of that name is declared{guess}")));
        }
        if let (Some(own), Some(wanted)) = (&flags.agent, &which.agent)
            && own != wanted
        {
            return Err(Problem::forbidden("this server is for one agent, and not for that one"));
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

    /// The owner of the machine may have set one workspace for everybody.
    fn check_ours(&self, flags: &Flags, holds: Option<&str>) -> Result<(), Problem> {
        match flags.workspace.as_deref() {
            wanted if wanted.is_some() && wanted != holds => {
                Err(Problem::forbidden("this machine's owner has set another workspace"))
            }
            _ => Ok(()),
        }
    }
}

/// Work that may wait for a disk.
pub(super) async fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Problem> + Send + 'static,
) -> Result<T, Problem> {
    spawn_blocking(work)
        .await
        .unwrap_or_else(|_| Err(Problem::internal("the server failed in a way that it should not")))
}

/// How long calls wait for a person before their callers are told to come again.
#[derive(Clone, Debug)]
pub(super) struct Waits {
    usual: Duration,
    /// By session and call, where the caller said so.
    own: Arc<Mutex<HashMap<(String, String), Duration>>>,
}

/// Keeps what a caller said until its call is over.
#[derive(Debug)]
pub(super) struct Waiting {
    waits: Waits,
    key: (String, String),
}

impl Waits {
    pub(super) fn new(usual: Duration) -> Self {
        Self { usual, own: Arc::default() }
    }

    pub(super) fn set(&self, session: &str, call: &str, time: Option<Duration>) -> Option<Waiting> {
        let key = (session.to_owned(), call.to_owned());
        lock(&self.own).insert(key.clone(), time?);
        Some(Waiting { waits: self.clone(), key })
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        lock(&self.waits.own).remove(&self.key);
    }
}

/// Asks nobody by itself: whoever answers does so at the desk, from the page or a terminal.
impl Approver for Waits {
    fn ask<'a>(&'a self, request: &'a ApprovalRequest) -> Pin<Box<dyn Future<Output = Word> + Send + 'a>> {
        let key = (request.session.clone(), request.step_id.clone());
        let time = lock(&self.own).get(&key).copied().unwrap_or(self.usual);
        Box::pin(async move {
            sleep(time).await;
            Word::Later
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use ringfence_kernel::Dialect;

    use super::{Houses, Waits, Which};
    use crate::api::feed::Feed;
    use crate::config::{Environment, Flags};

    #[tokio::test]
    async fn a_host_that_several_ask_for_at_once_is_made_once() {
        let directory = tempfile::tempdir().unwrap();
        let root = std::fs::canonicalize(directory.path()).unwrap();
        let workspace = root.join("ws");
        std::fs::create_dir(&workspace).unwrap();
        let flags = Flags { workspace: Some(workspace.to_str().unwrap().to_owned()), ..Flags::default() };
        let environment = Environment::apart(&root, root.join("none"));
        let houses = Houses::new(flags, environment, Feed::new(), Waits::new(Duration::ZERO)).unwrap();
        let ask = |dialect| {
            let houses = houses.clone();
            tokio::spawn(async move { houses.agent(Which { dialect, ..Which::of(None) }).await.unwrap() })
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
