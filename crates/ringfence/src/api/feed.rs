//! What happens, as it happens: for those who watch.
//!
//! The feed hears every record of the road and tells those who may hear it. It keeps the newest events, so that whoever lost
//! the connection catches up; one who was away for longer is told that something is missing. Nothing here holds a call up,
//! and nothing here is the trace: that is the audit log.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use ringfence_kernel::{
    Assurance, AuditLost, AuditSink, ErrorKind, Listener, Moment, Progress, Record, Scope, Session,
};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::lock::lock;
use crate::session_owners::SessionOwners;
use crate::tokens::Owner;

/// Events that are kept.
const MOST: usize = 4096;

/// Bytes of events that are kept.
const MOST_BYTES: usize = 4 << 20;

/// Bytes of a reply, or of what a program printed, that an event has.
const TEXT_BYTES: usize = 4096;

/// Touches that an event names.
const TOUCHES: usize = 20;

/// One thing that happened.
#[derive(Debug)]
pub(super) struct Event {
    pub(super) id: u64,
    pub(super) kind: &'static str,
    session: Option<Box<str>>,
    /// The id of the token whose session it is in. Nothing for what is the business of those in charge alone.
    owner: Option<Box<str>>,
    /// As JSON.
    bare: Box<str>,
    /// With contents, which are for whose they are, and for a person.
    whole: Option<Box<str>>,
}

impl Event {
    /// Whether somebody who watches this session, or all of them, may hear of it.
    fn is_for(&self, who: &Owner, session: Option<&str>) -> bool {
        let may = who.may(Scope::Approve) || who.may(Scope::Admin) || self.is_of(who);
        may && session.is_none_or(|session| self.session.as_deref() == Some(session))
    }

    fn is_of(&self, who: &Owner) -> bool {
        self.owner.as_deref() == Some(&*who.id)
    }

    /// As they hear it.
    pub(super) fn told(&self, who: &Owner) -> &str {
        let sees_contents = who.assurance == Assurance::Person || self.is_of(who);
        self.whole.as_deref().filter(|_| sees_contents).unwrap_or(&self.bare)
    }

    fn size(&self) -> usize {
        let names = [&self.session, &self.owner, &self.whole];
        size_of::<Self>() + self.bare.len() + names.into_iter().flatten().map(|text| text.len()).sum::<usize>()
    }
}

/// Where an event comes from, and what it says.
#[derive(Debug)]
pub(super) struct News<'a> {
    pub(super) kind: &'static str,
    pub(super) session: Option<&'a str>,
    pub(super) owner: Option<&'a str>,
    pub(super) data: Value,
    /// What is added for those who may see contents: an object, or nothing.
    pub(super) contents: Value,
}

/// The newest events.
#[derive(Clone, Debug)]
pub(super) struct Feed {
    kept: Arc<Mutex<Kept>>,
    last: watch::Sender<u64>,
    counts: Arc<CallCounts>,
    owners: SessionOwners,
}

/// How many calls there were.
#[derive(Debug, Default)]
pub(super) struct CallCounts {
    pub(super) begun: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) refused: AtomicU64,
}

#[derive(Debug)]
struct Kept {
    events: VecDeque<Arc<Event>>,
    bytes: usize,
    next: u64,
}

/// What somebody finds who looks for events.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) events: Vec<Arc<Event>>,
    /// Some that came after the last one that they know are no longer kept.
    pub(super) is_cut: bool,
    /// Where to look from the next time.
    pub(super) last: u64,
}

impl Feed {
    pub(super) fn new() -> Self {
        // Numbers go on after a restart: what somebody knows from before is then older than anything that is kept.
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self::from(u64::try_from(since.as_micros()).unwrap_or(1).max(1))
    }

    /// A feed whose first event has this number, which is not 0.
    pub(super) fn from(next: u64) -> Self {
        let kept = Kept { events: VecDeque::new(), bytes: 0, next };
        let (counts, owners) = Default::default();
        Self { kept: Arc::new(Mutex::new(kept)), last: watch::Sender::new(next - 1), counts, owners }
    }

    pub(super) fn tell(&self, news: News<'_>) {
        let News { kind, session, owner, mut data, contents } = news;
        let mut kept = lock(&self.kept);
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
        let event = Event { id, kind, session, owner, bare, whole };
        kept.bytes += event.size();
        kept.events.push_back(Arc::new(event));
        while kept.events.len() > MOST || kept.bytes > MOST_BYTES {
            let Some(oldest) = kept.events.pop_front() else { break };
            kept.bytes -= oldest.size();
        }
        drop(kept);
        self.last.send_replace(id);
    }

    /// Whose the sessions are that tell their records here.
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

    /// What came after an event that somebody may hear of.
    pub(super) fn after(&self, last: u64, who: &Owner, session: Option<&str>) -> Found {
        let kept = lock(&self.kept);
        let oldest = kept.events.front().map_or(kept.next, |event| event.id);
        let newer = kept.events.partition_point(|event| event.id <= last);
        let events: Vec<_> =
            kept.events.iter().skip(newer).filter(|event| event.is_for(who, session)).cloned().collect();
        Found { events, is_cut: last.saturating_add(1) < oldest || last >= kept.next, last: kept.next - 1 }
    }

    /// A listener that tells what a call says before it ends.
    pub(super) fn listener(&self, session: &Session, call: &str) -> Arc<dyn Listener> {
        let (session, owner) = (session.id.clone(), self.owners.owner_of(session));
        Arc::new(Heard { feed: self.clone(), session, owner, call: call.to_owned() })
    }
}

/// The feed as a sink for records. It takes every record.
impl AuditSink for Feed {
    fn record(&self, record: &Record<'_>) -> Result<(), AuditLost> {
        let Record { session, call_id, tool, touches, moment, .. } = record;
        let touched: Vec<Value> = touches
            .iter()
            .take(TOUCHES)
            .map(|touch| match touch.place.real() {
                None => json!({"verb": touch.verb.as_str(), "path": touch.place.shown}),
                Some(real) => json!({"verb": touch.verb.as_str(), "path": touch.place.shown, "real": real}),
            })
            .collect();
        let mut data = json!({
            "callId": call_id, "tool": tool, "principal": session.principal.name, "touches": touched,
        });
        let mut contents = Value::Null;
        let count = match moment {
            Moment::Begin { .. } => Some(&self.counts.begun),
            Moment::End { error: Some(_), .. } => Some(&self.counts.failed),
            Moment::Refused { .. } => Some(&self.counts.refused),
            Moment::End { .. } | Moment::Overdue { .. } => None,
            Moment::Reached { .. } | Moment::NotKept { .. } | Moment::ReachedUnlisted { .. } => None,
        };
        count.map(|count| count.fetch_add(1, Ordering::Relaxed));
        let kind = match moment {
            Moment::Begin { rule, layer, approved, change } => {
                data["rule"] = json!(rule);
                data["layer"] = json!(layer.name());
                data["approved"] =
                    json!(approved.map(|approval| approval.by.as_ref().map_or("unknown", |by| by.name.as_str())));
                data["change"] = json!(change);
                "begin"
            }
            Moment::Reached { refused } => {
                data["error"] = json!(refused.map(|error| error.kind.name()));
                "reached"
            }
            Moment::NotKept { error } => {
                data["error"] = json!(error.kind.name());
                "not-kept"
            }
            Moment::ReachedUnlisted { made, refused } => {
                data["made"] = json!(made);
                data["refused"] = json!(refused);
                "reached-unlisted"
            }
            Moment::End { error, reply, duration } => {
                data["error"] = json!(error.map(|error| error.kind.name()));
                data["durationMs"] = json!(duration.as_secs_f64() * 1e3);
                contents = json!({"reply": clipped(reply)});
                "end"
            }
            Moment::Refused { error, reply, duration } | Moment::Overdue { error, reply, duration } => {
                data["error"] = json!(error.kind.name());
                data["durationMs"] = json!(duration.as_secs_f64() * 1e3);
                // The request that waits, where it is the call's own.
                if let Some(request) = error.details.get("request").filter(|_| error.kind == ErrorKind::ApprovalPending)
                {
                    data["request"] = request.clone();
                }
                contents = json!({"reply": clipped(reply)});
                if matches!(moment, Moment::Refused { .. }) { "refused" } else { "overdue" }
            }
        };
        let owner = self.owners.owner_of(session);
        let (session, owner) = (Some(session.id.as_str()), owner.as_deref());
        self.tell(News { kind, session, owner, data, contents });
        Ok(())
    }
}

#[derive(Debug)]
struct Heard {
    feed: Feed,
    session: String,
    owner: Option<Arc<str>>,
    call: String,
}

impl Listener for Heard {
    fn hear(&self, progress: &Progress<'_>) {
        self.feed.tell(News {
            kind: "progress",
            session: Some(&self.session),
            owner: self.owner.as_deref(),
            data: json!({"callId": self.call, "stream": progress.stream}),
            contents: json!({"text": clipped(progress.text)}),
        });
    }
}

fn clipped(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_BYTES)]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use ringfence_kernel::{Assurance, Scope};
    use serde_json::{Value, json};

    use super::{Feed, MOST, News};
    use crate::tokens::Owner;

    fn who(name: &str, scope: Scope, assurance: Assurance) -> Owner {
        Owner { id: name.into(), name: name.into(), scopes: BTreeSet::from([scope]), assurance }
    }

    fn tell(feed: &Feed, session: &str, owner: &str) {
        let contents = json!({"reply": "contents"});
        feed.tell(News { kind: "end", session: Some(session), owner: Some(owner), data: json!({}), contents });
    }

    #[test]
    fn an_agent_hears_of_its_own_sessions_and_of_no_others() {
        let feed = Feed::new();
        let start = feed.last();
        tell(&feed, "s1", "one");
        tell(&feed, "s2", "two");
        feed.tell(News { kind: "request", session: Some("s1"), owner: None, data: json!({}), contents: Value::Null });
        let heard = |who: &Owner, session| feed.after(start, who, session).events.len();
        let one = who("one", Scope::Call, Assurance::Relayed);
        assert_eq!((heard(&one, None), heard(&one, Some("s1")), heard(&one, Some("s2"))), (1, 1, 0));
        let person = who("page", Scope::Approve, Assurance::Person);
        assert_eq!((heard(&person, None), heard(&person, Some("s2"))), (3, 1));
        assert_eq!(heard(&who("undoer", Scope::Undo, Assurance::Relayed), None), 0);
    }

    #[test]
    fn contents_are_for_their_owner_and_for_a_person() {
        let feed = Feed::new();
        let start = feed.last();
        tell(&feed, "s1", "one");
        let told = |who: &Owner| feed.after(start, who, None).events[0].told(who).contains("contents");
        assert!(told(&who("one", Scope::Call, Assurance::Relayed)));
        assert!(told(&who("page", Scope::Approve, Assurance::Person)));
        assert!(!told(&who("script", Scope::Approve, Assurance::Relayed)));
    }

    #[test]
    fn who_was_away_too_long_is_told_so() {
        let feed = Feed::new();
        let person = who("page", Scope::Approve, Assurance::Person);
        let start = feed.last();
        assert!(!feed.after(start, &person, None).is_cut);
        assert!(feed.after(start - 1, &person, None).is_cut);
        // A number that was never given is one of another server.
        assert!(feed.after(start + 1, &person, None).is_cut);
        for _ in 0..=MOST {
            tell(&feed, "s", "one");
        }
        let found = feed.after(start, &person, None);
        assert!(found.is_cut && found.events.len() == MOST);
        assert!(!feed.after(start + 1, &person, None).is_cut);
        assert!(feed.after(found.last, &person, None).events.is_empty());
    }
}
