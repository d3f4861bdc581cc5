//! Connection records of one call, and the limit on their number.
//!
//! A program can request connections without end, and the log is kept. The first ones are recorded one by one, and so
//! is the first one to each host, always: every connected host is in a record. The others are counted, in one record
//! before the end of the call. A host is what was requested; how it is shown may have more, such as a path.

use std::collections::HashSet;

use crate::ResourceAccess;
use crate::sync::Mutex;

/// Connections of a call that have a record of their own.
const MAX_RECORDED: usize = 1000;

/// Connections of a call so far.
#[derive(Debug, Default)]
pub(crate) struct ConnectionLog(Mutex<ConnectionCounts>);

/// Connections without a record of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UnlistedConnections {
    pub(crate) made: u64,
    pub(crate) refused: u64,
}

#[derive(Debug, Default)]
struct ConnectionCounts {
    recorded: usize,
    /// Hosts that are in a record. As many as the call was granted, at most.
    recorded_hosts: HashSet<String>,
    unlisted: UnlistedConnections,
}

/// Outcome of a connection request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionOutcome {
    Made,
    Refused,
}

impl ConnectionLog {
    /// Whether this one has to be recorded. Otherwise it is counted.
    pub(crate) fn should_record(&self, access: &ResourceAccess, outcome: ConnectionOutcome) -> bool {
        let mut counts = self.0.lock();
        let is_new =
            outcome == ConnectionOutcome::Made && !counts.recorded_hosts.contains(&access.resource.requested_path);
        if is_new || counts.recorded < MAX_RECORDED {
            counts.recorded += 1;
            return true;
        }
        match outcome {
            ConnectionOutcome::Made => counts.unlisted.made += 1,
            ConnectionOutcome::Refused => counts.unlisted.refused += 1,
        }
        false
    }

    /// One that is made is in a record.
    pub(crate) fn mark_recorded(&self, access: &ResourceAccess) {
        let mut counts = self.0.lock();
        counts.recorded_hosts.insert(access.resource.requested_path.clone());
    }

    /// Those that were counted since this was last asked.
    pub(crate) fn take_unlisted(&self) -> UnlistedConnections {
        std::mem::take(&mut self.0.lock().unlisted)
    }
}

#[cfg(test)]
mod tests {
    use super::{ConnectionLog, ConnectionOutcome, MAX_RECORDED, UnlistedConnections};
    use crate::{PolicyAction, PolicyResource, ResourceAccess};

    fn access(host: &str) -> ResourceAccess {
        ResourceAccess {
            action: PolicyAction::Fetch,
            resource: PolicyResource { requested_path: host.to_owned(), ..PolicyResource::default() },
        }
    }

    #[test]
    fn the_first_ones_are_listed_and_the_others_counted() {
        let log = ConnectionLog::default();
        let listed = (0..MAX_RECORDED + 30)
            .filter(|number| log.should_record(&access(&number.to_string()), ConnectionOutcome::Refused))
            .count();
        assert_eq!(listed, MAX_RECORDED);
        assert_eq!(log.take_unlisted(), UnlistedConnections { made: 0, refused: 30 });
        assert_eq!(log.take_unlisted(), UnlistedConnections::default());
    }

    #[test]
    fn the_first_one_to_a_host_is_listed_however_many_came_before() {
        let log = ConnectionLog::default();
        for number in 0..2 * MAX_RECORDED {
            log.should_record(&access(&number.to_string()), ConnectionOutcome::Refused);
        }
        for host in ["a", "b"] {
            assert!(log.should_record(&access(host), ConnectionOutcome::Made), "{host}");
            assert!(log.should_record(&access(host), ConnectionOutcome::Made), "{host}: the record was lost");
            log.mark_recorded(&access(host));
            assert!(!log.should_record(&access(host), ConnectionOutcome::Made), "{host}");
        }
        assert!(!log.should_record(&access("c"), ConnectionOutcome::Refused));
        assert!(
            log.should_record(&access("c"), ConnectionOutcome::Made),
            "a refused one does not stand for one that is made"
        );
        assert_eq!(log.take_unlisted(), UnlistedConnections { made: 2, refused: MAX_RECORDED as u64 + 1 });
    }
}
