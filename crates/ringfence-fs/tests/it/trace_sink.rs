//! Audit sink that keeps records as short lines.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};

use ringfence_kernel::{AuditEvent, AuditSink, AuditSinkError, CallRecord};
use tokio_util::sync::CancellationToken;

use crate::stalling_fs::PATIENCE;

/// A sink that keeps what it gets.
#[derive(Clone, Debug, Default)]
pub(crate) struct TraceSink {
    lines: Arc<(Mutex<Vec<String>>, Condvar)>,
    places: Arc<Mutex<Vec<String>>>,
    /// Cancelled when a call begins to run; the call goes on when the other end of the channel is gone.
    at_begin: Option<(CancellationToken, Arc<Mutex<Receiver<()>>>)>,
}

impl TraceSink {
    /// Cancels a call when it begins to run, and lets it go on when what comes second is dropped.
    pub(crate) fn cancelling_at_begin(cancel: &CancellationToken) -> (Self, Sender<()>) {
        let (go, gone) = channel();
        (Self { at_begin: Some((cancel.clone(), Arc::new(Mutex::new(gone)))), ..Self::default() }, go)
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.lines.0.lock().unwrap().clone()
    }

    /// Every path that a record names, as it was given and as it was resolved.
    pub(crate) fn places(&self) -> Vec<String> {
        self.places.lock().unwrap().clone()
    }

    /// Waits until there are `count`.
    pub(crate) fn wait_for(&self, count: usize) -> Vec<String> {
        let (lines, news) = &*self.lines;
        let short = |lines: &mut Vec<String>| lines.len() < count;
        let (lines, late) = news.wait_timeout_while(lines.lock().unwrap(), PATIENCE, short).unwrap();
        assert!(!late.timed_out(), "{lines:?}");
        lines.clone()
    }
}

impl AuditSink for TraceSink {
    fn record(&self, record: &CallRecord<'_>) -> Result<(), AuditSinkError> {
        let line = match &record.event {
            AuditEvent::Begin { .. } => "begin".to_owned(),
            AuditEvent::Connection { refused: None } => "reached".to_owned(),
            AuditEvent::Connection { refused: Some(error) } => format!("kept from {:?}", error.kind),
            AuditEvent::ChangesDiscarded { error } => format!("not kept {:?}", error.kind),
            AuditEvent::UnlistedConnections { made, refused } => {
                format!("reached {made} more, kept from {refused} more")
            }
            AuditEvent::End { error: None, .. } => "end ok".to_owned(),
            AuditEvent::End { error: Some(error), .. } => format!("end {:?}", error.kind),
            AuditEvent::Refused { error, .. } => format!("refused {:?}", error.kind),
            AuditEvent::Overdue { error, .. } => format!("overdue {:?}", error.kind),
        };
        let places = record.accesses.iter().map(|touch| &touch.resource);
        let named = places.flat_map(|place| {
            [Some(place.requested_path.clone()), place.resolved_path.clone(), Some(place.display_path.clone())]
        });
        self.places.lock().unwrap().extend(named.flatten());
        self.lines.0.lock().unwrap().push(line);
        self.lines.1.notify_all();
        if let (AuditEvent::Begin { .. }, Some((cancel, gone))) = (&record.event, &self.at_begin) {
            cancel.cancel();
            let _ = gone.lock().unwrap().recv();
        }
        Ok(())
    }
}
