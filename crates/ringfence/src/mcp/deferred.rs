//! Deferred calls: approval takes longer than the client waits.
//!
//! Such a call ended with words that say how a person answers, and to call again then. The same call of the same session
//! finds its token here and goes on where it was. A token is good once, and only until its request expires.

use std::collections::HashMap;
use std::sync::MutexGuard;
use std::time::SystemTime;

use ringfence_kernel::ToolCall;
use ringfence_kernel::sync::Mutex;

/// Calls that are kept. The one that expires first goes when there are more.
const MAX_CALLS: usize = 64;

/// State for resuming a call.
#[derive(Clone, Debug)]
pub(super) struct DeferredCall {
    pub(super) token: String,
    /// The request that has to be answered.
    pub(super) request: String,
    pub(super) expires: SystemTime,
}

/// The deferred calls of one session.
#[derive(Debug, Default)]
pub(super) struct DeferredCalls(Mutex<HashMap<(String, String), DeferredCall>>);

impl DeferredCalls {
    pub(super) fn insert(&self, call: &ToolCall, waiting: DeferredCall) {
        let mut kept = self.lock();
        kept.insert(key(call), waiting);
        if kept.len() > MAX_CALLS
            && let Some(first) = kept.iter().min_by_key(|(_, waiting)| waiting.expires).map(|(key, _)| key.clone())
        {
            kept.remove(&first);
        }
    }

    /// Takes the state of this call, if it was deferred and is not expired.
    pub(super) fn take(&self, call: &ToolCall, now: SystemTime) -> Option<DeferredCall> {
        let mut kept = self.lock();
        kept.retain(|_, waiting| waiting.expires > now);
        kept.remove(&key(call))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(String, String), DeferredCall>> {
        self.0.lock()
    }
}

/// The arguments have their keys in order (`handler.rs`).
fn key(call: &ToolCall) -> (String, String) {
    (call.name.clone(), call.arguments.clone())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use ringfence_kernel::ToolCall;

    use super::{DeferredCall, DeferredCalls, MAX_CALLS};

    fn call(arguments: &str) -> ToolCall {
        ToolCall { id: String::new(), name: "write_file".to_owned(), arguments: arguments.to_owned() }
    }

    fn waiting(seconds: u64) -> DeferredCall {
        let expires = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        DeferredCall { token: seconds.to_string(), request: String::new(), expires }
    }

    #[test]
    fn the_same_call_goes_on_once_and_only_in_time() {
        let put_off = DeferredCalls::default();
        let (early, late) = (SystemTime::UNIX_EPOCH, SystemTime::UNIX_EPOCH + Duration::from_secs(9));
        put_off.insert(&call("{}"), waiting(5));
        assert!(put_off.take(&call(r#"{"path":"a"}"#), early).is_none());
        assert_eq!(put_off.take(&call("{}"), early).unwrap().token, "5");
        assert!(put_off.take(&call("{}"), early).is_none());
        put_off.insert(&call("{}"), waiting(5));
        assert!(put_off.take(&call("{}"), late).is_none());
    }

    #[test]
    fn the_call_that_expires_first_goes_when_there_are_too_many() {
        let put_off = DeferredCalls::default();
        (0..=MAX_CALLS as u64).for_each(|number| put_off.insert(&call(&number.to_string()), waiting(number + 1)));
        assert!(put_off.take(&call("0"), SystemTime::UNIX_EPOCH).is_none());
        assert!(put_off.take(&call("1"), SystemTime::UNIX_EPOCH).is_some());
    }
}
