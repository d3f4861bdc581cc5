//! Live checkpoints of a wrapped run (`--live`): when they are made, and what came of them.
//!
//! Each is a call of `checkpoint_layer` in the session of the run, so the rules, the preset and the taint of the program
//! hold for it. It is made when the program is idle after changes, when the person wants one, and at the latest after some
//! minutes; where nothing changed since the last one, none is made.
//!
//! Not here: what a checkpoint keeps (`ringfence-fs`), and the review of the rest (`cli/layers.rs`).

use std::time::{Duration, Instant};

use ringfence_fs::{CHECKPOINT_LAYER, LayerActivity, LayerStore, LayerWatch};
use ringfence_kernel::ToolCall;
use serde_json::{Value, json};
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use crate::cli::wrapped_run::WrappedRun;

/// Time without changes that makes a program idle.
const IDLE: Duration = Duration::from_secs(2);

/// Shortest time between two looks at a layer.
const LEAST_INTERVAL: Duration = Duration::from_millis(500);

/// Looks take one part in this of the time.
const LOOK_SHARE: u32 = 20;

/// When a checkpoint is due, by looks at a layer.
#[derive(Debug)]
struct CheckpointSchedule<A> {
    longest: Duration,
    /// The layer as of the last checkpoint.
    kept: A,
    kept_at: Instant,
    /// The layer as of a checkpoint that failed.
    failed: Option<A>,
    seen: A,
    changed_at: Instant,
}

impl<A: Copy + PartialEq> CheckpointSchedule<A> {
    /// For a layer that is empty.
    fn new(longest: Duration, empty: A, now: Instant) -> Self {
        Self { longest, kept: empty, kept_at: now, failed: None, seen: empty, changed_at: now }
    }

    /// Takes a look at the layer. Whether a checkpoint is to be made now.
    fn is_due(&mut self, activity: A, is_wanted: bool, now: Instant) -> bool {
        if self.seen != activity {
            (self.seen, self.changed_at) = (activity, now);
        }
        let since = |then: Instant| now.saturating_duration_since(then);
        let is_idle = since(self.changed_at) >= IDLE && self.failed != Some(activity);
        self.kept != activity && (is_wanted || is_idle || since(self.kept_at) >= self.longest)
    }

    /// A checkpoint was made of what this look saw.
    fn mark_made(&mut self, activity: A, now: Instant) {
        (self.kept, self.kept_at, self.failed) = (activity, now, None);
    }

    /// A checkpoint failed. It is made again when something changed, or after the longest time.
    fn mark_failed(&mut self, activity: A, now: Instant) {
        (self.kept_at, self.failed) = (now, Some(activity));
    }
}

/// What came of the checkpoints of a run.
#[derive(Debug, Default)]
pub(crate) struct CheckpointResult {
    /// Number of changes that were made.
    landed: u64,
    /// The last of them.
    last: Option<String>,
    /// Why the last checkpoint was not made, if it was not.
    error: Option<String>,
    /// What waits after the last one.
    pub(crate) left: u64,
}

impl CheckpointResult {
    /// For the person, at the end.
    pub(crate) fn summary(&self) -> String {
        let mut text = match &self.last {
            None => "no checkpoint landed".to_owned(),
            Some(last) => {
                let plural = if self.landed == 1 { "" } else { "s" };
                format!("{} checkpoint{plural} landed; `ringfence undo {last}` reverts the last one", self.landed)
            }
        };
        if let Some(error) = &self.error {
            text.push_str(&format!("\nthe last checkpoint failed: {error}"));
        }
        if self.left > 0 {
            text.push_str(&format!("\n{} changes wait", self.left));
        }
        text
    }
}

/// Makes the checkpoints of a run.
#[derive(Debug)]
pub(crate) struct LiveCheckpoints<'a> {
    run: &'a WrappedRun,
    store: LayerStore,
    schedule: CheckpointSchedule<LayerActivity>,
    calls: u64,
    pub(crate) result: CheckpointResult,
}

impl<'a> LiveCheckpoints<'a> {
    /// None where the person wants none.
    pub(crate) fn new(run: &'a WrappedRun) -> Option<Self> {
        let schedule = CheckpointSchedule::new(run.checkpoints?, LayerActivity::default(), Instant::now());
        let store = LayerStore::new(&run.app.settings.state);
        Some(Self { run, store, schedule, calls: 0, result: CheckpointResult::default() })
    }

    /// Makes checkpoints until the program ended.
    pub(crate) async fn follow(&mut self, ended: &CancellationToken) {
        let (mut watch, mut interval): (Option<LayerWatch>, Duration) = (None, LEAST_INTERVAL);
        loop {
            tokio::select! {
                () = ended.cancelled() => return,
                () = tokio::time::sleep(interval) => {}
            }
            let (store, session) = (self.store.clone(), self.run.app.session.id.clone());
            let began = Instant::now();
            let look = move || {
                let watch = watch.or_else(|| store.watch(&session))?;
                let activity = watch.look();
                Some((watch, activity))
            };
            let Some((found, activity)) = spawn_blocking(look).await.ok().flatten() else {
                watch = None;
                continue;
            };
            interval = LEAST_INTERVAL.max(began.elapsed() * LOOK_SHARE);
            let is_wanted = self.run.signals.take_checkpoint_request();
            if self.schedule.is_due(activity, is_wanted, Instant::now()) {
                self.checkpoint(found.id()).await;
                match self.result.error {
                    None => self.schedule.mark_made(activity, Instant::now()),
                    Some(_) => self.schedule.mark_failed(activity, Instant::now()),
                }
            }
            watch = Some(found);
        }
    }

    /// One checkpoint.
    pub(crate) async fn checkpoint(&mut self, layer: &str) {
        self.calls += 1;
        let arguments = json!({"layer": layer}).to_string();
        let call = ToolCall { id: format!("checkpoint-{}", self.calls), name: CHECKPOINT_LAYER.to_owned(), arguments };
        let app = &self.run.app;
        let reply = app.host.call(&app.session, call, &CancellationToken::new()).await;
        self.result.error = match reply.map(|reply| reply.outcome) {
            Ok(Ok(value)) => {
                self.take(&value.to_value());
                None
            }
            Ok(Err(error)) => Some(error.message),
            Err(error) => Some(error.to_string()),
        };
    }

    fn take(&mut self, value: &Value) {
        self.result.left = value["left"].as_u64().unwrap_or_default();
        if let Some(change) = value["change"].as_str() {
            self.result.landed += 1;
            self.result.last = Some(change.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{CheckpointResult, CheckpointSchedule};

    /// Looks at a layer by the second: what it has then, whether the key was pressed, and whether a checkpoint is due. It is
    /// made, or fails where what it has is negative.
    #[track_caller]
    fn check(looks: &[(u64, i32, bool, bool)]) {
        let start = Instant::now();
        let mut schedule = CheckpointSchedule::new(Duration::from_secs(10), 0, start);
        for (second, activity, is_wanted, expected) in looks {
            let now = start + Duration::from_secs(*second);
            assert_eq!(schedule.is_due(*activity, *is_wanted, now), *expected, "{second}");
            match (expected, *activity < 0) {
                (false, _) => {}
                (true, false) => schedule.mark_made(*activity, now),
                (true, true) => schedule.mark_failed(*activity, now),
            }
        }
    }

    #[test]
    fn a_checkpoint_is_due_when_the_program_is_idle_after_changes() {
        check(&[
            (5, 0, false, false),
            (6, 1, false, false),
            (7, 1, false, false),
            (8, 1, false, true),
            (9, 1, false, false),
        ]);
        check(&[
            (1, 1, false, false),
            (2, 2, false, false),
            (3, 3, false, false),
            (5, 3, false, true),
            (20, 3, true, false),
        ]);
    }

    #[test]
    fn a_checkpoint_of_a_busy_program_is_due_by_the_key_and_after_the_longest_time() {
        check(&[(1, 1, false, false), (2, 2, true, true), (3, 3, false, false)]);
        check(&[
            (8, 1, false, false),
            (9, 2, false, false),
            (10, 3, false, true),
            (11, 4, false, false),
            (20, 5, false, true),
        ]);
    }

    #[test]
    fn a_checkpoint_that_failed_is_not_made_again_at_once() {
        check(&[
            (1, -1, false, false),
            (3, -1, false, true),
            (4, -1, false, false),
            (9, -1, false, false),
            (13, -1, false, true),
        ]);
        check(&[(1, -1, false, false), (3, -1, false, true), (4, 5, false, false), (6, 5, false, true)]);
    }

    #[test]
    fn the_summary_says_what_landed_and_what_waits() {
        let result = CheckpointResult { landed: 2, last: Some("c-1".to_owned()), error: None, left: 3 };
        assert_eq!(result.summary(), "2 checkpoints landed; `ringfence undo c-1` reverts the last one\n3 changes wait");
        let result = CheckpointResult { error: Some("no space".to_owned()), ..CheckpointResult::default() };
        assert_eq!(result.summary(), "no checkpoint landed\nthe last checkpoint failed: no space");
    }
}
