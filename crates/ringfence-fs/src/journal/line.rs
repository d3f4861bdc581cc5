//! Journal lines: the intent of a change and its outcome, as the log has them.
//!
//! Not here: the log itself (`log.rs`), and what is remembered of it (`index.rs`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::journal::effect::JournalEffect;
use crate::journal::record::TxnEntry;

/// One change, as far as the log tells.
#[derive(Clone, Debug)]
pub(crate) struct JournalEntry {
    pub(crate) change: JournalChange,
    pub(crate) status: ChangeStatus,
    /// Its pre-images were evicted.
    pub(crate) evicted: bool,
    /// The change that undid it.
    pub(crate) undone_by: Option<String>,
    /// Pre-images that are another's: of a redo, those of the changes that it brought back.
    pub(crate) shared: Box<[String]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChangeStatus {
    Pending,
    Done,
    Void,
}

/// The intent of a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct JournalChange {
    pub(crate) change: String,
    pub(crate) at: String,
    /// Sequence number among the changes of all mounts, where it differs from the time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) order: Option<u64>,
    pub(crate) session: String,
    pub(crate) call: String,
    pub(crate) tool: String,
    /// The changes that it undoes, the newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) undoes: Vec<String>,
    pub(crate) effects: Vec<JournalEffect>,
    /// The steps that make it, for recovery. Compaction drops those of settled changes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) steps: Vec<TxnEntry>,
}

impl JournalChange {
    /// Sequence number among the changes of all mounts: the milliseconds of its time, or a later value if the clock
    /// went back.
    pub(crate) fn sequence(&self) -> u64 {
        self.order.unwrap_or_else(|| humantime::parse_rfc3339(&self.at).map_or(0, millis))
    }
}

pub(super) fn millis(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "lowercase")]
pub(crate) enum JournalLine {
    Intent(JournalChange),
    Done { change: String },
    Void { change: String },
    Evicted { change: String },
}

impl JournalEntry {
    pub(crate) fn new(change: JournalChange) -> Self {
        Self { change, status: ChangeStatus::Pending, evicted: false, undone_by: None, shared: Box::default() }
    }

    /// Whether it is committed and could be undone.
    pub(crate) fn is_live(&self) -> bool {
        self.status == ChangeStatus::Done && self.undone_by.is_none()
    }

    /// Whether it took another one back.
    pub(crate) fn is_undo(&self) -> bool {
        !self.change.undoes.is_empty()
    }

    /// The names of its pre-images.
    pub(crate) fn images(&self) -> Vec<String> {
        self.own_images().map(|(image, _)| image.to_owned()).collect()
    }

    /// Those of others that it shares too.
    pub(crate) fn all_images(&self) -> impl Iterator<Item = &str> {
        self.change.effects.iter().filter_map(JournalEffect::image).map(|(image, _)| image)
    }

    fn own_images(&self) -> impl Iterator<Item = (&str, u64)> {
        let images = self.change.effects.iter().filter_map(JournalEffect::image);
        images.filter(|(image, _)| !self.shared.iter().any(|shared| shared == image))
    }

    /// Size of its own pre-images, as the quota counts it.
    pub(crate) fn cost(&self) -> u64 {
        self.own_images().map(|(_, cost)| cost).fold(0, u64::saturating_add)
    }
}

/// The change that an image is called after.
pub(crate) fn image_owner(image: &str) -> Option<&str> {
    image.rsplit_once('-').map(|(owner, _)| owner)
}

/// Sequence number of the newest change of all mounts, as far as this process knows.
#[derive(Debug, Default)]
pub(crate) struct ChangeSequenceCounter(AtomicU64);

impl ChangeSequenceCounter {
    pub(crate) fn observe(&self, sequence: u64) {
        self.0.fetch_max(sequence, Ordering::Relaxed);
    }

    pub(super) fn newest(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// The sequence number of one more change: its time, unless the clock went back.
    pub(super) fn next(&self, now: u64) -> u64 {
        let behind = |newest: u64| Some(if now <= newest { newest.saturating_add(1) } else { now });
        let before = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, behind).unwrap_or_else(|newest| newest);
        behind(before).unwrap_or(now)
    }
}

#[cfg(test)]
mod tests {
    use super::{ChangeSequenceCounter, JournalChange};

    #[test]
    fn a_change_stands_behind_those_before_it_whatever_the_clock_says() {
        let newest = ChangeSequenceCounter::default();
        newest.observe(1_000);
        let sequence: Vec<u64> = [2_000, 2_000, 5, 6, 2_001, 3_000].into_iter().map(|now| newest.next(now)).collect();
        assert_eq!(sequence, [2_000, 2_001, 2_002, 2_003, 2_004, 3_000]);
    }

    #[test]
    fn the_place_of_a_change_is_its_time_unless_it_says_otherwise() {
        let line = r#"{"change":"c-1","at":"1970-01-01T00:00:02.500Z","session":"","call":"","tool":"","effects":[]}"#;
        let change: JournalChange = serde_json::from_str(line).unwrap();
        assert_eq!(change.sequence(), 2_500);
        assert_eq!(JournalChange { order: Some(7), ..change.clone() }.sequence(), 7);
        assert_eq!(serde_json::to_string(&change).unwrap(), line);
    }
}
