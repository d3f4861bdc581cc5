//! How many connections of one call have a record each.
//!
//! A program can ask for connections without end, and the log is kept. The first ones are recorded one by one, and so is the
//! first one to each host that is reached, always: no host is reached that is in no record. Of the others it is told how
//! many there were, before the end of the call.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use crate::Touch;

/// Connections of a call that have a record of their own.
const MOST: usize = 1000;

/// What a call reached so far.
#[derive(Debug, Default)]
pub(crate) struct Tally(Mutex<Counts>);

/// Connections without a record of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unlisted {
    pub(crate) made: u64,
    pub(crate) refused: u64,
}

#[derive(Debug, Default)]
struct Counts {
    recorded: usize,
    /// Hosts that are in a record. As many as the call was granted, at most.
    reached: HashSet<String>,
    unlisted: Unlisted,
}

/// Whether a connection comes about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Made,
    Refused,
}

impl Tally {
    /// Whether this one has to be recorded. Otherwise it is counted.
    pub(crate) fn lists(&self, touch: &Touch, outcome: Outcome) -> bool {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = outcome == Outcome::Made && !counts.reached.contains(&touch.place.shown);
        if is_new || counts.recorded < MOST {
            counts.recorded += 1;
            return true;
        }
        match outcome {
            Outcome::Made => counts.unlisted.made += 1,
            Outcome::Refused => counts.unlisted.refused += 1,
        }
        false
    }

    /// One that is made is in a record.
    pub(crate) fn recorded(&self, touch: &Touch) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.reached.insert(touch.place.shown.clone());
    }

    /// Those that were counted since this was last asked.
    pub(crate) fn unlisted(&self) -> Unlisted {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner).unlisted)
    }
}

#[cfg(test)]
mod tests {
    use super::{MOST, Outcome, Tally, Unlisted};
    use crate::{Place, Touch, Verb};

    fn touch(host: &str) -> Touch {
        Touch { verb: Verb::Fetch, place: Place { shown: host.to_owned(), ..Place::default() } }
    }

    #[test]
    fn the_first_ones_are_listed_and_the_others_counted() {
        let tally = Tally::default();
        let listed = (0..MOST + 30).filter(|number| tally.lists(&touch(&number.to_string()), Outcome::Refused)).count();
        assert_eq!(listed, MOST);
        assert_eq!(tally.unlisted(), Unlisted { made: 0, refused: 30 });
        assert_eq!(tally.unlisted(), Unlisted::default());
    }

    #[test]
    fn the_first_one_to_a_host_is_listed_however_many_came_before() {
        let tally = Tally::default();
        for number in 0..2 * MOST {
            tally.lists(&touch(&number.to_string()), Outcome::Refused);
        }
        for host in ["a", "b"] {
            assert!(tally.lists(&touch(host), Outcome::Made), "{host}");
            assert!(tally.lists(&touch(host), Outcome::Made), "{host}: the record was lost");
            tally.recorded(&touch(host));
            assert!(!tally.lists(&touch(host), Outcome::Made), "{host}");
        }
        assert!(!tally.lists(&touch("c"), Outcome::Refused));
        assert!(tally.lists(&touch("c"), Outcome::Made), "a refused one does not stand for one that is made");
        assert_eq!(tally.unlisted(), Unlisted { made: 2, refused: MOST as u64 + 1 });
    }
}
