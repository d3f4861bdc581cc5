//! Audit sink that keeps records as short lines.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex};

use ringfence_kernel::{AuditEvent, AuditSink, AuditSinkError, CallRecord};
use tokio::sync::Notify;

use crate::patience::PATIENCE;

type RecordHook = Arc<dyn Fn(&CallRecord<'_>) + Send + Sync>;

/// A record that was kept.
#[derive(Clone, Debug)]
struct TraceEntry {
    /// Such as `begin` or `end ok`.
    event: String,
    /// What a begin record adds: that it was approved, and that it has a change.
    marks: &'static str,
    /// As they are displayed.
    paths: Vec<String>,
    subject: Option<String>,
}

#[derive(Debug, Default)]
struct TraceShared {
    entries: Mutex<Vec<TraceEntry>>,
    recorded: Condvar,
    recorded_notify: Notify,
}

/// A sink that keeps what it gets. Clones share everything.
#[derive(Clone)]
pub struct AuditTrace {
    shared: Arc<TraceShared>,
    /// Of each begin record, the layer and the rule, and who approved.
    pub permissions: Arc<Mutex<Vec<String>>>,
    named_paths: Arc<Mutex<Vec<String>>>,
    capacity: usize,
    after_record: Option<RecordHook>,
}

impl Default for AuditTrace {
    fn default() -> Self {
        Self::with_capacity(usize::MAX)
    }
}

impl AuditTrace {
    /// Number of records after which the sink is full and fails.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        Self {
            shared: Arc::default(),
            permissions: Arc::default(),
            named_paths: Arc::default(),
            capacity,
            after_record: None,
        }
    }

    /// Does this after each record.
    pub fn after_record(mut self, act: impl Fn(&CallRecord<'_>) + Send + Sync + 'static) -> Self {
        self.after_record = Some(Arc::new(act));
        self
    }

    /// The events alone.
    #[must_use]
    pub fn events(&self) -> Vec<String> {
        self.map_entries(|entry| entry.event.clone())
    }

    /// The events with the paths of their accesses.
    #[must_use]
    pub fn event_paths(&self) -> Vec<String> {
        self.map_entries(|entry| format!("{} {}", entry.event, entry.paths.join(" ")))
    }

    /// The events with everything that was kept: marks, and paths or the subject of the call.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        self.map_entries(|entry| {
            let subject = entry.subject.as_ref().filter(|_| entry.paths.is_empty());
            let words = entry.paths.iter().chain(subject).map(|word| format!(" {word}"));
            format!("{}{}{}", entry.event, entry.marks, words.collect::<String>())
        })
    }

    /// Every path that a record names, as it was given and as it was resolved.
    ///
    /// # Panics
    /// If a thread panicked in a record.
    #[must_use]
    pub fn named_paths(&self) -> Vec<String> {
        self.named_paths.lock().unwrap().clone()
    }

    /// Waits until there are `count` records, and returns their events.
    ///
    /// # Panics
    /// If they do not come.
    #[must_use]
    #[track_caller]
    pub fn wait_for_events(&self, count: usize) -> Vec<String> {
        let entries = self.shared.entries.lock().unwrap();
        let is_short = |entries: &mut Vec<TraceEntry>| entries.len() < count;
        let (entries, late) = self.shared.recorded.wait_timeout_while(entries, PATIENCE, is_short).unwrap();
        assert!(!late.timed_out(), "{entries:?}");
        drop(entries);
        self.events()
    }

    /// Waits until there are `count` records.
    pub async fn wait_for_lines(&self, count: usize) -> Vec<String> {
        while self.lines().len() < count {
            self.shared.recorded_notify.notified().await;
        }
        self.lines()
    }

    fn map_entries(&self, map: impl Fn(&TraceEntry) -> String) -> Vec<String> {
        self.shared.entries.lock().unwrap().iter().map(map).collect()
    }

    fn add(&self, entry: TraceEntry) -> Result<(), AuditSinkError> {
        let mut entries = self.shared.entries.lock().unwrap();
        if entries.len() == self.capacity {
            return Err(AuditSinkError(std::io::Error::other("the disk is full")));
        }
        entries.push(entry);
        drop(entries);
        self.shared.recorded.notify_all();
        self.shared.recorded_notify.notify_one();
        Ok(())
    }
}

impl AuditSink for AuditTrace {
    fn record(&self, record: &CallRecord<'_>) -> Result<(), AuditSinkError> {
        let mut marks = "";
        if let AuditEvent::Begin { rule, layer, approved, change, .. } = &record.event {
            marks = match (approved.is_some(), change.is_empty()) {
                (true, true) => " approved",
                (true, false) => " approved change",
                (false, true) => "",
                (false, false) => " change",
            };
            let by = approved.and_then(|approval| approval.by.as_ref()).map_or("no person", |by| by.name.as_str());
            self.permissions.lock().unwrap().push(format!("{} {rule} {by}", layer.name()));
        }
        let resources = || record.accesses.iter().map(|access| &access.resource);
        let named = resources().flat_map(|resource| {
            [Some(resource.requested_path.clone()), resource.resolved_path.clone(), Some(resource.display_path.clone())]
        });
        self.named_paths.lock().unwrap().extend(named.flatten());
        self.add(TraceEntry {
            event: event_name(&record.event),
            marks,
            paths: resources().map(|resource| resource.display_path.clone()).collect(),
            subject: record.subject.map(Into::into),
        })?;
        if let Some(act) = &self.after_record {
            act(record);
        }
        Ok(())
    }
}

fn event_name(event: &AuditEvent<'_>) -> String {
    match event {
        AuditEvent::Begin { .. } => "begin".to_owned(),
        AuditEvent::Connection { refused: None, approved: Some(_) } => "reached approved".to_owned(),
        AuditEvent::Connection { refused: None, approved: None } => "reached".to_owned(),
        AuditEvent::Connection { refused: Some(error), .. } => format!("kept from {:?}", error.kind),
        AuditEvent::ChangesDiscarded { error } => format!("not kept {:?}", error.kind),
        AuditEvent::LayerConflict { error } => format!("layer conflict {:?}", error.kind),
        AuditEvent::TerminalWriter { by } => format!("terminal writer {}", by.name),
        AuditEvent::UnlistedConnections { made, refused } => format!("reached {made} more, kept from {refused} more"),
        AuditEvent::End { outcome: Ok(_), .. } => "end ok".to_owned(),
        AuditEvent::End { outcome: Err(error), .. } => format!("end {:?}", error.kind),
        AuditEvent::Refused { error, .. } => format!("refused {:?}", error.kind),
        AuditEvent::Overdue { error, .. } => format!("overdue {:?}", error.kind),
    }
}

impl fmt::Debug for AuditTrace {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("AuditTrace").field("lines", &self.lines()).finish_non_exhaustive()
    }
}
