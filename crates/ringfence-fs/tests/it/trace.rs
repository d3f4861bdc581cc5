//! Records as short lines, for tests that look at them.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};

use ringfence_kernel::{AuditLost, AuditSink, Moment, Record};
use tokio_util::sync::CancellationToken;

use crate::slow::PATIENCE;

/// A sink that keeps what it gets.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trace {
    kept: Arc<(Mutex<Vec<String>>, Condvar)>,
    places: Arc<Mutex<Vec<String>>>,
    /// Cancelled when a call begins to run; the call goes on when the other end of the channel is gone.
    at_begin: Option<(CancellationToken, Arc<Mutex<Receiver<()>>>)>,
}

impl Trace {
    /// Cancels a call when it begins to run, and lets it go on when what comes second is dropped.
    pub(crate) fn cancelling_at_begin(cancel: &CancellationToken) -> (Self, Sender<()>) {
        let (go, gone) = channel();
        (Self { at_begin: Some((cancel.clone(), Arc::new(Mutex::new(gone)))), ..Self::default() }, go)
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.kept.0.lock().unwrap().clone()
    }

    /// Every path that a record names, as it was given and as it was resolved.
    pub(crate) fn places(&self) -> Vec<String> {
        self.places.lock().unwrap().clone()
    }

    /// Waits until there are so many.
    pub(crate) fn reaches(&self, count: usize) -> Vec<String> {
        let (lines, news) = &*self.kept;
        let short = |lines: &mut Vec<String>| lines.len() < count;
        let (lines, late) = news.wait_timeout_while(lines.lock().unwrap(), PATIENCE, short).unwrap();
        assert!(!late.timed_out(), "{lines:?}");
        lines.clone()
    }
}

impl AuditSink for Trace {
    fn record(&self, record: &Record<'_>) -> Result<(), AuditLost> {
        let line = match &record.moment {
            Moment::Begin { .. } => "begin".to_owned(),
            Moment::Reached { refused: None } => "reached".to_owned(),
            Moment::Reached { refused: Some(error) } => format!("kept from {:?}", error.kind),
            Moment::NotKept { error } => format!("not kept {:?}", error.kind),
            Moment::ReachedUnlisted { made, refused } => format!("reached {made} more, kept from {refused} more"),
            Moment::End { error: None, .. } => "end ok".to_owned(),
            Moment::End { error: Some(error), .. } => format!("end {:?}", error.kind),
            Moment::Refused { error, .. } => format!("refused {:?}", error.kind),
            Moment::Overdue { error, .. } => format!("overdue {:?}", error.kind),
        };
        let places = record.touches.iter().map(|touch| &touch.place);
        let named =
            places.flat_map(|place| [Some(place.given.clone()), place.resolved.clone(), Some(place.shown.clone())]);
        self.places.lock().unwrap().extend(named.flatten());
        self.kept.0.lock().unwrap().push(line);
        self.kept.1.notify_all();
        if let (Moment::Begin { .. }, Some((cancel, gone))) = (&record.moment, &self.at_begin) {
            cancel.cancel();
            let _ = gone.lock().unwrap().recv();
        }
        Ok(())
    }
}
