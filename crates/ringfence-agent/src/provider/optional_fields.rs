//! Optional request fields: one that a server refuses is left out, and the request is sent again.
//!
//! No two servers take the same fields, and most name the one they do not know. A refused request had no effect, so
//! that it can be sent again. A refused field is not sent to that server again.

use std::collections::BTreeSet;

use ringfence_kernel::sync::Mutex;
use serde_json::Value;

use super::error::ProviderError;
use crate::model::ModelErrorKind;

/// Fields that one server refused so far.
#[derive(Debug, Default)]
pub(crate) struct RejectedRequestFields(Mutex<BTreeSet<&'static str>>);

impl RejectedRequestFields {
    /// Whether a field may be sent.
    pub(crate) fn accepts(&self, name: &str) -> bool {
        !self.0.lock().contains(name)
    }

    /// The field of `body` that a refusal is about, from now on left out. Nothing where it is about something else.
    pub(crate) fn drop_refused(
        &self,
        fault: &ProviderError,
        known: &[&'static str],
        body: &Value,
    ) -> Option<&'static str> {
        if fault.kind != ModelErrorKind::BadRequest {
            return None;
        }
        let sent = body.to_string();
        let named = known.iter().filter(|name| sent.contains(&format!("\"{name}\":")));
        // Of several names, the first is meant: later ones explain it.
        let (_, name) = named.filter_map(|name| Some((find_word(&fault.server_text, name)?, *name))).min()?;
        self.0.lock().insert(name).then_some(name)
    }
}

/// Position of a name as a whole word.
fn find_word(text: &str, name: &str) -> Option<usize> {
    let is_part = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
    text.match_indices(name).map(|(at, _)| at).find(|at| {
        let (before, after) = (text.get(..*at).unwrap_or_default(), text.get(at + name.len()..).unwrap_or_default());
        !is_part(before.chars().next_back()) && !is_part(after.chars().next())
    })
}
