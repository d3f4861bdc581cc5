//! Event feed: publish live events to subscribers.
//!
//! The feed gets every audit record and passes it to the subscribers who may see it. It keeps the newest events, so
//! that a client that lost the connection catches up; after a longer gap it gets a notice that events are missing.
//! Nothing here delays a call, and the feed is not the trace: that is the audit log.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use ringfence_kernel::sync::Mutex;
use ringfence_kernel::{
    Assurance, AuditEvent, AuditSink, AuditSinkError, AuthScope, CallRecord, ErrorKind, ProgressListener,
    ProgressUpdate, ReplyValue, Session,
};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::app::session::owners::SessionOwners;
use crate::store::tokens::TokenIdentity;

/// Events that are kept.
const MAX_EVENTS: usize = 4096;

/// Bytes of events that are kept.
const MAX_BYTES: usize = 4 << 20;

/// Bytes of a reply, or of what a program printed, that an event has.
const TEXT_BYTES: usize = 4096;

/// Accesses that an event lists.
const MAX_ACCESSES: usize = 20;

/// One thing that happened.
#[derive(Debug)]
pub(super) struct FeedEvent {
    pub(super) id: u64,
    pub(super) kind: &'static str,
    session: Option<Box<str>>,
    /// The id of the token whose session it is in. Nothing for what is the business of those in charge alone.
    owner: Option<Box<str>>,
    /// As JSON.
    summary_json: Box<str>,
    /// With contents, which are for whose they are, and for a person.
    full_json: Option<Box<str>>,
}

impl FeedEvent {
    /// Whether a viewer of this session, or of all, may see it.
    fn is_visible_to(&self, who: &TokenIdentity, session: Option<&str>) -> bool {
        let may = who.has_scope(AuthScope::Approve) || who.has_scope(AuthScope::Admin) || self.is_owned_by(who);
        may && session.is_none_or(|session| self.session.as_deref() == Some(session))
    }

    fn is_owned_by(&self, who: &TokenIdentity) -> bool {
        self.owner.as_deref() == Some(&*who.id)
    }

    /// As they hear it.
    pub(super) fn json_for(&self, who: &TokenIdentity) -> &str {
        let sees_contents = who.assurance == Assurance::Person || self.is_owned_by(who);
        self.full_json.as_deref().filter(|_| sees_contents).unwrap_or(&self.summary_json)
    }

    fn size(&self) -> usize {
        let names = [&self.session, &self.owner, &self.full_json];
        size_of::<Self>() + self.summary_json.len() + names.into_iter().flatten().map(|text| text.len()).sum::<usize>()
    }
}

/// An event, with its source.
#[derive(Debug)]
pub(super) struct FeedItem<'a> {
    pub(super) kind: &'static str,
    pub(super) session: Option<&'a str>,
    pub(super) owner: Option<&'a str>,
    pub(super) data: Value,
    /// Contents for those who may see them: an object, or null.
    pub(super) contents: Value,
}

/// The newest events.
#[derive(Clone, Debug)]
pub(super) struct EventFeed {
    buffer: Arc<Mutex<FeedBuffer>>,
    last: watch::Sender<u64>,
    counts: Arc<CallCounts>,
    owners: SessionOwners,
}

/// Number of calls.
#[derive(Debug, Default)]
pub(super) struct CallCounts {
    pub(super) begun: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) refused: AtomicU64,
}

#[derive(Debug)]
struct FeedBuffer {
    events: VecDeque<Arc<FeedEvent>>,
    bytes: usize,
    next: u64,
}

/// A batch of events for a subscriber.
#[derive(Debug)]
pub(super) struct FeedBatch {
    pub(super) events: Vec<Arc<FeedEvent>>,
    /// Some that came after the last one that they know are no longer kept.
    pub(super) has_gap: bool,
    /// Position of the next batch.
    pub(super) last: u64,
}

impl EventFeed {
    pub(super) fn new() -> Self {
        // Numbers go on after a restart: a client's earlier position is then older than any kept event.
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self::starting_at(u64::try_from(since.as_micros()).unwrap_or(1).max(1))
    }

    /// A feed whose first event has this number, which is not 0.
    pub(super) fn starting_at(next: u64) -> Self {
        let kept = FeedBuffer { events: VecDeque::new(), bytes: 0, next };
        let (counts, owners) = Default::default();
        Self { buffer: Arc::new(Mutex::new(kept)), last: watch::Sender::new(next - 1), counts, owners }
    }

    pub(super) fn publish(&self, news: FeedItem<'_>) {
        let FeedItem { kind, session, owner, mut data, contents } = news;
        let mut kept = self.buffer.lock();
        let id = kept.next;
        kept.next += 1;
        let at = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
        if let Value::Object(data) = &mut data {
            data.insert("id".to_owned(), json!(id));
            data.insert("at".to_owned(), json!(at));
            data.entry("session").or_insert_with(|| json!(session));
        }
        let bare = data.to_string().into();
        let whole = match (&mut data, contents) {
            (Value::Object(data), Value::Object(contents)) => {
                data.extend(contents);
                Some(json!(data).to_string().into())
            }
            _ => None,
        };
        let (session, owner) = (session.map(Into::into), owner.map(Into::into));
        let event = FeedEvent { id, kind, session, owner, summary_json: bare, full_json: whole };
        kept.bytes += event.size();
        kept.events.push_back(Arc::new(event));
        while kept.events.len() > MAX_EVENTS || kept.bytes > MAX_BYTES {
            let Some(oldest) = kept.events.pop_front() else { break };
            kept.bytes -= oldest.size();
        }
        drop(kept);
        self.last.send_replace(id);
    }

    /// The owners of the sessions whose records are published here.
    pub(super) fn owners(&self) -> &SessionOwners {
        &self.owners
    }

    pub(super) fn counts(&self) -> &CallCounts {
        &self.counts
    }

    /// The number of the newest event.
    pub(super) fn last(&self) -> u64 {
        *self.last.borrow()
    }

    /// For waiting until there is more.
    pub(super) fn watch(&self) -> watch::Receiver<u64> {
        self.last.subscribe()
    }

    /// Visible events after a position.
    pub(super) fn events_after(&self, last: u64, who: &TokenIdentity, session: Option<&str>) -> FeedBatch {
        let kept = self.buffer.lock();
        let oldest = kept.events.front().map_or(kept.next, |event| event.id);
        let newer = kept.events.partition_point(|event| event.id <= last);
        let events: Vec<_> =
            kept.events.iter().skip(newer).filter(|event| event.is_visible_to(who, session)).cloned().collect();
        FeedBatch { events, has_gap: last.saturating_add(1) < oldest || last >= kept.next, last: kept.next - 1 }
    }

    /// A listener that tells what a call says before it ends.
    pub(super) fn listener(&self, session: &Session, call: &str) -> Arc<dyn ProgressListener> {
        let (session, owner) = (session.id.clone(), self.owners.owner_of(session));
        Arc::new(FeedProgressPublisher { feed: self.clone(), session, owner, call: call.to_owned() })
    }
}

/// The feed as a sink for records. It takes every record.
impl AuditSink for EventFeed {
    fn record(&self, record: &CallRecord<'_>) -> Result<(), AuditSinkError> {
        let CallRecord { session, call_id, tool, accesses, event, .. } = record;
        let listed: Vec<Value> = accesses
            .iter()
            .take(MAX_ACCESSES)
            .map(|access| match access.resource.resolved_display_path() {
                None => json!({"action": access.action.as_str(), "path": access.resource.display_path}),
                Some(real) => {
                    json!({"action": access.action.as_str(), "path": access.resource.display_path, "real": real})
                }
            })
            .collect();
        let mut data = json!({
            "callId": call_id, "tool": tool, "principal": session.principal.name, "accesses": listed,
        });
        let mut contents = Value::Null;
        let count = match event {
            AuditEvent::Begin { .. } => Some(&self.counts.begun),
            AuditEvent::End { outcome: Err(_), .. } => Some(&self.counts.failed),
            AuditEvent::Refused { .. } => Some(&self.counts.refused),
            AuditEvent::End { .. } | AuditEvent::Overdue { .. } => None,
            AuditEvent::Connection { .. }
            | AuditEvent::ChangesDiscarded { .. }
            | AuditEvent::LayerConflict { .. }
            | AuditEvent::TerminalWriter { .. }
            | AuditEvent::UnlistedConnections { .. } => None,
        };
        count.map(|count| count.fetch_add(1, Ordering::Relaxed));
        let kind = match event {
            AuditEvent::Begin { rule, layer, approved, change } => {
                data["rule"] = json!(rule);
                data["layer"] = json!(layer.name());
                data["approved"] =
                    json!(approved.map(|approval| approval.by.as_ref().map_or("unknown", |by| by.name.as_str())));
                data["change"] = json!(change);
                "begin"
            }
            AuditEvent::Connection { refused, approved } => {
                data["error"] = json!(refused.map(|error| error.kind.code()));
                if let Some(approval) = approved {
                    data["approved"] = json!(approval.by.as_ref().map_or("unknown", |by| by.name.as_str()));
                }
                "access"
            }
            AuditEvent::ChangesDiscarded { error } => {
                data["error"] = json!(error.kind.code());
                "discarded"
            }
            AuditEvent::LayerConflict { error } => {
                data["error"] = json!(error.kind.code());
                "layer-conflict"
            }
            AuditEvent::TerminalWriter { by } => {
                data["writer"] = json!(by.name);
                "terminal-writer"
            }
            AuditEvent::UnlistedConnections { made, refused } => {
                data["made"] = json!(made);
                data["refused"] = json!(refused);
                "access-unlisted"
            }
            AuditEvent::End { outcome, reply, duration } => {
                data["error"] = json!(outcome.err().map(|error| error.kind.code()));
                data["durationMs"] = json!(duration.as_secs_f64() * 1e3);
                contents = json!({"reply": truncate(reply)});
                if let Some(card) = outcome.ok().and_then(ReplyValue::card) {
                    contents["card"] = json!(card);
                }
                "end"
            }
            AuditEvent::Refused { error, reply, duration } | AuditEvent::Overdue { error, reply, duration } => {
                data["error"] = json!(error.kind.code());
                data["durationMs"] = json!(duration.as_secs_f64() * 1e3);
                // The request that waits, where it is the call's own.
                if let Some(request) = error.details.get("request").filter(|_| error.kind == ErrorKind::ApprovalPending)
                {
                    data["request"] = request.clone();
                }
                contents = json!({"reply": truncate(reply)});
                if matches!(event, AuditEvent::Refused { .. }) { "refused" } else { "overdue" }
            }
        };
        let owner = self.owners.owner_of(session);
        let (session, owner) = (Some(session.id.as_str()), owner.as_deref());
        self.publish(FeedItem { kind, session, owner, data, contents });
        Ok(())
    }
}

#[derive(Debug)]
struct FeedProgressPublisher {
    feed: EventFeed,
    session: String,
    owner: Option<Arc<str>>,
    call: String,
}

impl ProgressListener for FeedProgressPublisher {
    fn on_progress(&self, progress: &ProgressUpdate<'_>) {
        self.feed.publish(FeedItem {
            kind: "progress",
            session: Some(&self.session),
            owner: self.owner.as_deref(),
            data: json!({"callId": self.call, "stream": progress.stream}),
            contents: json!({"text": truncate(progress.text)}),
        });
    }
}

fn truncate(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_BYTES)]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::SystemTime;

    use ringfence_kernel::{
        Assurance, AuditEvent, AuditSink as _, AuthScope, CallLimits, CallRecord, Dialect, ErrorKind, PolicyAction,
        PolicyResource, Principal, ReplyForm, ResourceAccess, Session, SessionMemory, SessionTaint, ToolCatalog,
        ToolError,
    };
    use serde_json::{Value, json};

    use super::{EventFeed, FeedItem, MAX_EVENTS};
    use crate::store::tokens::TokenIdentity;

    fn test_identity(name: &str, scope: AuthScope, assurance: Assurance) -> TokenIdentity {
        TokenIdentity { id: name.into(), name: name.into(), scopes: BTreeSet::from([scope]), assurance }
    }

    fn tell(feed: &EventFeed, session: &str, owner: &str) {
        let contents = json!({"reply": "contents"});
        feed.publish(FeedItem { kind: "end", session: Some(session), owner: Some(owner), data: json!({}), contents });
    }

    #[test]
    fn an_agent_hears_of_its_own_sessions_and_of_no_others() {
        let feed = EventFeed::new();
        let start = feed.last();
        tell(&feed, "s1", "one");
        tell(&feed, "s2", "two");
        feed.publish(FeedItem {
            kind: "request",
            session: Some("s1"),
            owner: None,
            data: json!({}),
            contents: Value::Null,
        });
        let heard = |who: &TokenIdentity, session| feed.events_after(start, who, session).events.len();
        let one = test_identity("one", AuthScope::Call, Assurance::Relayed);
        assert_eq!((heard(&one, None), heard(&one, Some("s1")), heard(&one, Some("s2"))), (1, 1, 0));
        let person = test_identity("page", AuthScope::Approve, Assurance::Person);
        assert_eq!((heard(&person, None), heard(&person, Some("s2"))), (3, 1));
        assert_eq!(heard(&test_identity("undoer", AuthScope::Undo, Assurance::Relayed), None), 0);
    }

    #[test]
    fn contents_are_for_their_owner_and_for_a_person() {
        let feed = EventFeed::new();
        let start = feed.last();
        tell(&feed, "s1", "one");
        let is_visible =
            |who: &TokenIdentity| feed.events_after(start, who, None).events[0].json_for(who).contains("contents");
        assert!(is_visible(&test_identity("one", AuthScope::Call, Assurance::Relayed)));
        assert!(is_visible(&test_identity("page", AuthScope::Approve, Assurance::Person)));
        assert!(!is_visible(&test_identity("script", AuthScope::Approve, Assurance::Relayed)));
    }

    #[test]
    fn a_reader_that_missed_events_is_told_so() {
        let feed = EventFeed::new();
        let person = test_identity("page", AuthScope::Approve, Assurance::Person);
        let start = feed.last();
        assert!(!feed.events_after(start, &person, None).has_gap);
        assert!(feed.events_after(start - 1, &person, None).has_gap);
        // A number that was never given is one of another server.
        assert!(feed.events_after(start + 1, &person, None).has_gap);
        for _ in 0..=MAX_EVENTS {
            tell(&feed, "s", "one");
        }
        let found = feed.events_after(start, &person, None);
        assert!(found.has_gap && found.events.len() == MAX_EVENTS);
        assert!(!feed.events_after(start + 1, &person, None).has_gap);
        assert!(feed.events_after(found.last, &person, None).events.is_empty());
    }

    #[test]
    fn events_of_a_running_call_have_the_vocabulary_of_the_audit_log() {
        let session = Session {
            id: "s1".to_owned(),
            principal: Principal::agent("one"),
            dialect: Dialect::Standard,
            agent: None,
            limits: CallLimits::for_dialect(Dialect::Standard),
            catalog: ToolCatalog::default(),
            taint: SessionTaint::default(),
            memory: SessionMemory::default(),
            replies: ReplyForm::default(),
        };
        let resource = PolicyResource { display_path: "docs.rs:443".to_owned(), ..PolicyResource::default() };
        let error = ToolError::new(ErrorKind::Network, "no");
        let person = test_identity("page", AuthScope::Approve, Assurance::Person);
        for (event, kind) in [
            (AuditEvent::Connection { refused: None, approved: None }, "access"),
            (AuditEvent::UnlistedConnections { made: 1, refused: 2 }, "access-unlisted"),
            (AuditEvent::ChangesDiscarded { error: &error }, "discarded"),
            (AuditEvent::LayerConflict { error: &error }, "layer-conflict"),
            (AuditEvent::TerminalWriter { by: &Principal::person("ana") }, "terminal-writer"),
        ] {
            let feed = EventFeed::new();
            let start = feed.last();
            let record = CallRecord {
                time: SystemTime::now(),
                session: &session,
                call_id: "call-1",
                tool: "run_code",
                arguments: "{}",
                subject: None,
                accesses: &[ResourceAccess { action: PolicyAction::Fetch, resource: resource.clone() }],
                event,
            };
            feed.record(&record).unwrap();
            let published = &feed.events_after(start, &person, None).events[0];
            assert_eq!(published.kind, kind);
            let data: Value = serde_json::from_str(published.json_for(&person)).unwrap();
            assert_eq!(data["accesses"], json!([{"action": "fetch", "path": "docs.rs:443"}]));
        }
    }
}
