//! Change queue: the order of a session's calls that may change something.
//!
//! A call waits for every earlier one that may change the same file or a directory above or below it. Writes of different
//! files run at the same time, so that they share the flushes of the log. Calls about background jobs have no order. Paths are compared as they are written, without
//! letter case: two names of one file by way of a link have an order only if the caller waits for the first reply.
//!
//! Not here: locks on files (`ringfence-fs`), which hold across sessions and processes.

use std::collections::BTreeMap;

use ringfence_kernel::sync::Mutex;
use ringfence_kernel::{Dialect, Session};
use serde::Deserialize;
use tokio::sync::Notify;

/// Tools of the `standard` dialect that change no more than the file that their `path` names. The other dialects promise
/// that all calls are sequential.
const ONE_FILE_TOOLS: [&str; 3] = ["append_file", "edit_file", "write_file"];

/// The calls of a session that may change something: those that run, and those that wait for them.
#[derive(Debug, Default)]
pub(crate) struct ChangeQueue {
    changes: Mutex<QueuedChanges>,
    /// Notified whenever a call is over.
    finished: Notify,
}

#[derive(Debug, Default)]
struct QueuedChanges {
    last_number: u64,
    /// By number: the order in which they came.
    scopes: BTreeMap<u64, ChangeScope>,
}

/// What a call may change.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ChangeScope {
    Everything,
    /// A file below the workspace, its names in lower case.
    File(Vec<String>),
}

/// A place in the queue, until it is dropped.
#[derive(Debug)]
pub(crate) struct ChangePermit<'a> {
    queue: &'a ChangeQueue,
    number: u64,
}

impl ChangeQueue {
    /// Waits until no earlier call may still change what this one may. At once where it only reads, or waits for a
    /// background job: the call that stops the job comes later.
    pub(crate) async fn acquire(&self, session: &Session, tool: &str, arguments: &str) -> Option<ChangePermit<'_>> {
        let definition = session.catalog.get(tool)?;
        if definition.capabilities.is_read_only() || definition.capabilities.waits_for_job {
            return None;
        }
        let has_one_file = definition.dialect == Dialect::Standard && ONE_FILE_TOOLS.contains(&&*definition.name);
        let scope = if has_one_file { ChangeScope::of_arguments(arguments) } else { ChangeScope::Everything };
        Some(self.wait_turn(scope).await)
    }

    async fn wait_turn(&self, scope: ChangeScope) -> ChangePermit<'_> {
        let permit = self.enqueue(scope);
        loop {
            let finished = self.finished.notified();
            if permit.is_next() {
                return permit;
            }
            finished.await;
        }
    }

    fn enqueue(&self, scope: ChangeScope) -> ChangePermit<'_> {
        let mut changes = self.changes.lock();
        changes.last_number += 1;
        let number = changes.last_number;
        changes.scopes.insert(number, scope);
        ChangePermit { queue: self, number }
    }
}

impl ChangePermit<'_> {
    fn is_next(&self) -> bool {
        let changes = self.queue.changes.lock();
        let Some(scope) = changes.scopes.get(&self.number) else { return true };
        !changes.scopes.range(..self.number).any(|(_, earlier)| earlier.conflicts_with(scope))
    }
}

impl Drop for ChangePermit<'_> {
    fn drop(&mut self) {
        self.queue.changes.lock().scopes.remove(&self.number);
        self.queue.finished.notify_waiters();
    }
}

impl ChangeScope {
    /// By the `path` of the arguments. A path that is not plainly below the workspace may be anything.
    fn of_arguments(arguments: &str) -> Self {
        #[derive(Deserialize)]
        struct PathArgument {
            path: String,
        }
        let Ok(PathArgument { path }) = serde_json::from_str(arguments) else { return Self::Everything };
        let is_special = |name: &str| name == ".." || name.contains('\\');
        if path.starts_with(['/', '~', '@']) || path.split('/').any(is_special) {
            return Self::Everything;
        }
        let names = path.split('/').filter(|name| !matches!(*name, "" | "."));
        Self::File(names.map(str::to_lowercase).collect())
    }

    /// Whether both may change one file, or one of them a directory of the other's file.
    fn conflicts_with(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::File(names), Self::File(others)) => names.iter().zip(others).all(|(name, other)| name == other),
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use super::{ChangePermit, ChangeQueue, ChangeScope};

    type Waiting<'a> = Pin<Box<dyn Future<Output = ChangePermit<'a>> + 'a>>;

    fn start<'a>(queue: &'a ChangeQueue, path: &str) -> Waiting<'a> {
        let arguments = serde_json::json!({"path": path, "content": "x"}).to_string();
        Box::pin(queue.wait_turn(ChangeScope::of_arguments(&arguments)))
    }

    fn poll<'a>(waiting: &mut Waiting<'a>) -> Option<ChangePermit<'a>> {
        match waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(permit) => Some(permit),
            Poll::Pending => None,
        }
    }

    #[track_caller]
    fn check(first: &str, second: &str, at_once: bool) {
        let queue = ChangeQueue::default();
        let (mut first, mut second) = (start(&queue, first), start(&queue, second));
        let held = poll(&mut first).expect("nothing is before it");
        let early = poll(&mut second);
        assert_eq!(early.is_some(), at_once);
        drop(held);
        assert!(early.is_some() || poll(&mut second).is_some(), "it waits for a call that is over");
    }

    #[test]
    fn different_files_are_changed_at_the_same_time() {
        check("a", "b", true);
        check("d/a", "d/b", true);
        check("d/a", "da", true);
    }

    #[test]
    fn one_file_is_changed_by_one_call_after_the_other() {
        check("a", "a", false);
        check("d/a", "./D//a/", false);
        check("d", "d/a", false);
        check("d/a", "d", false);
    }

    #[test]
    fn a_path_that_may_lead_anywhere_waits_for_all() {
        for path in ["../a", "d/../b", "/b", "~/b", "@other/b", r"\x62", "."] {
            check("a", path, false);
            check(path, "a", false);
        }
    }

    #[test]
    fn arguments_without_a_path_wait_for_all() {
        for arguments in ["", "{}", r#"{"path": 1}"#, r#"{"path": "a", "path": "b"}"#] {
            assert_eq!(ChangeScope::of_arguments(arguments), ChangeScope::Everything, "{arguments}");
        }
    }

    #[test]
    fn a_call_that_stopped_waiting_holds_nothing_up() {
        let queue = ChangeQueue::default();
        let (mut first, mut second, mut third) = (start(&queue, "a"), start(&queue, "."), start(&queue, "b"));
        let held = poll(&mut first);
        assert!(held.is_some() && poll(&mut second).is_none() && poll(&mut third).is_none());
        drop(second);
        assert!(poll(&mut third).is_some());
    }
}
