//! Repeat detection: the same call three times in a row, or two alternating twice.
//!
//! Not here: what is done about it (`tool_calls.rs`).

use std::collections::VecDeque;

use crate::message::RequestedCall;

/// Number of calls that are compared.
const WINDOW: usize = 4;

/// Most identical calls in a row.
const SAME: usize = 3;

/// The last calls of a run.
#[derive(Debug, Default)]
pub(crate) struct RepeatDetector(VecDeque<RecentCall>);

#[derive(Debug, PartialEq, Eq)]
struct RecentCall {
    name: String,
    arguments: String,
}

impl RepeatDetector {
    /// Adds one more call. Returns the repetition, if there is one.
    pub(crate) fn observe(&mut self, call: &RequestedCall) -> Option<String> {
        let arguments = call.arguments.split_whitespace().collect::<Vec<_>>().join(" ");
        self.0.push_back(RecentCall { name: call.name.clone(), arguments });
        if self.0.len() > WINDOW {
            self.0.pop_front();
        }
        let last: Vec<&RecentCall> = self.0.iter().rev().collect();
        match last[..] {
            [a, b, c, ..] if a == b && b == c => {
                Some(format!("`{}` was called {SAME} times in a row with the same arguments", a.name))
            }
            [a, b, c, d] if a == c && b == d => {
                Some(format!("`{}` and `{}` were called alternately, twice, with the same arguments", b.name, a.name))
            }
            _ => None,
        }
    }

    /// Resets the detector, because the user lets the run go on.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::RepeatDetector;
    use crate::message::RequestedCall;

    #[track_caller]
    fn check(calls: &str, goes_round: bool) {
        let mut repeats = RepeatDetector::default();
        let call = |c: char| RequestedCall { id: String::new(), name: c.to_string(), arguments: "{}".to_owned() };
        let last = calls.chars().map(|c| repeats.observe(&call(c))).last().flatten();
        assert_eq!(last.is_some(), goes_round, "{calls}");
    }

    #[test]
    fn three_in_a_row_and_two_in_turn_go_round() {
        check("aa", false);
        check("aaa", true);
        check("aab", false);
        check("abab", true);
        check("abba", false);
        check("aba", false);
        check("abcabc", false);
        check("xyabab", true);
    }
}
