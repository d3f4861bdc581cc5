//! Roll-up of connection records: the first connection to a host is recorded at once, the further ones are counted by
//! host and minute.
//!
//! For runs of hours with thousands of connections. Whether a connection was made or refused is counted apart, so a first
//! refusal has a record of its own too.
//!
//! Not here: the clock, and records of runs with granted hosts (`connection_log.rs`).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::connection_log::{ConnectionOutcome, UnlistedConnections};
use crate::resource::ResourceAccess;
use crate::sync::Mutex;

/// Time for which connections are counted together.
const ROLLUP_TIME: Duration = Duration::from_mins(1);

/// Hosts with counts of their own.
const MAX_HOSTS: usize = 4096;

/// Connections of a run so far.
#[derive(Debug, Default)]
pub(crate) struct ConnectionRollup(Mutex<BTreeMap<RollupKey, HostConnections>>);

/// An action, and the host that it is on.
type RollupKey = (&'static str, String);

fn rollup_key(access: &ResourceAccess) -> RollupKey {
    (access.action.as_str(), access.resource.display_path.clone())
}

#[derive(Debug)]
struct HostConnections {
    access: ResourceAccess,
    is_made_recorded: bool,
    is_refused_recorded: bool,
    counted: UnlistedConnections,
    /// When the first of the counted ones was made.
    since: Instant,
}

/// Treatment of the record of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RollupDecision {
    Record,
    Counted,
    /// There are too many hosts.
    Full,
}

impl ConnectionRollup {
    pub(crate) fn add(&self, access: &ResourceAccess, outcome: ConnectionOutcome, now: Instant) -> RollupDecision {
        let mut hosts = self.0.lock();
        let host = rollup_key(access);
        if !hosts.contains_key(&host) && hosts.len() >= MAX_HOSTS {
            return RollupDecision::Full;
        }
        let counts = hosts.entry(host).or_insert_with(|| HostConnections {
            access: access.clone(),
            is_made_recorded: false,
            is_refused_recorded: false,
            counted: UnlistedConnections::default(),
            since: now,
        });
        let (is_recorded, count) = match outcome {
            ConnectionOutcome::Made => (counts.is_made_recorded, &mut counts.counted.made),
            ConnectionOutcome::Refused => (counts.is_refused_recorded, &mut counts.counted.refused),
        };
        if !is_recorded {
            return RollupDecision::Record;
        }
        *count += 1;
        if counts.counted.made + counts.counted.refused == 1 {
            counts.since = now;
        }
        RollupDecision::Counted
    }

    /// The record of this one is written.
    pub(crate) fn mark_recorded(&self, access: &ResourceAccess, outcome: ConnectionOutcome) {
        if let Some(counts) = self.0.lock().get_mut(&rollup_key(access)) {
            match outcome {
                ConnectionOutcome::Made => counts.is_made_recorded = true,
                ConnectionOutcome::Refused => counts.is_refused_recorded = true,
            }
        }
    }

    /// Counts whose minute is over at this time; all of them at the end of the run, which has no time.
    pub(crate) fn take_due(&self, now: Option<Instant>) -> Vec<(ResourceAccess, UnlistedConnections)> {
        let is_due = |counts: &HostConnections| {
            counts.counted != UnlistedConnections::default()
                && now.is_none_or(|now| now.duration_since(counts.since) >= ROLLUP_TIME)
        };
        let mut hosts = self.0.lock();
        let due = hosts.values_mut().filter(|counts| is_due(counts));
        due.map(|counts| (counts.access.clone(), std::mem::take(&mut counts.counted))).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{ConnectionRollup, MAX_HOSTS, RollupDecision};
    use crate::connection_log::{ConnectionOutcome, UnlistedConnections};
    use crate::{PolicyAction, PolicyResource, ResourceAccess};

    fn access(host: &str) -> ResourceAccess {
        let resource = PolicyResource { display_path: host.to_owned(), ..PolicyResource::default() };
        ResourceAccess { action: PolicyAction::Fetch, resource }
    }

    #[test]
    fn the_first_connection_to_a_host_is_recorded_and_the_others_are_counted_by_the_minute() {
        let (rollup, start, host) = (ConnectionRollup::default(), Instant::now(), access("a.org:443"));
        let add = |outcome, seconds| rollup.add(&host, outcome, start + Duration::from_secs(seconds));
        let taken = |seconds| rollup.take_due(Some(start + Duration::from_secs(seconds)));
        assert_eq!(add(ConnectionOutcome::Refused, 0), RollupDecision::Record);
        assert_eq!(add(ConnectionOutcome::Refused, 0), RollupDecision::Record, "the record was lost");
        rollup.mark_recorded(&host, ConnectionOutcome::Refused);
        assert_eq!(add(ConnectionOutcome::Made, 1), RollupDecision::Record, "a refusal does not stand for it");
        rollup.mark_recorded(&host, ConnectionOutcome::Made);
        for second in 10..15 {
            assert_eq!(add(ConnectionOutcome::Made, second), RollupDecision::Counted);
        }
        assert_eq!(add(ConnectionOutcome::Refused, 20), RollupDecision::Counted);
        assert_eq!(taken(69), []);
        assert_eq!(taken(70), [(host.clone(), UnlistedConnections { made: 5, refused: 1 })]);
        assert_eq!(taken(700), []);
        assert_eq!(add(ConnectionOutcome::Made, 800), RollupDecision::Counted);
        assert_eq!(rollup.take_due(None), [(host.clone(), UnlistedConnections { made: 1, refused: 0 })]);
    }

    #[test]
    fn the_number_of_hosts_is_limited() {
        let (rollup, now) = (ConnectionRollup::default(), Instant::now());
        for number in 0..MAX_HOSTS {
            assert_eq!(rollup.add(&access(&number.to_string()), ConnectionOutcome::Made, now), RollupDecision::Record);
        }
        assert_eq!(rollup.add(&access("more"), ConnectionOutcome::Made, now), RollupDecision::Full);
        assert_eq!(rollup.add(&access("7"), ConnectionOutcome::Made, now), RollupDecision::Record);
    }
}
