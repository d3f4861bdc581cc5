//! Repeat detection: three answers in a row with the same calls, or two alternating twice.
//!
//! Answers are counted and not calls: the model sees the results of an answer before its next one.
//!
//! Not here: what is done about it (`tool_calls.rs`).

use std::collections::VecDeque;

use crate::message::RequestedCall;

/// Number of answers that are compared.
const WINDOW: usize = 4;

/// Most identical answers in a row.
const SAME: usize = 3;

/// The calls of the last answers of a run. Identical calls of one answer count once.
#[derive(Debug, Default)]
pub(crate) struct RepeatDetector(VecDeque<Vec<RecentCall>>);

#[derive(Debug, PartialEq, Eq)]
struct RecentCall {
    name: String,
    arguments: String,
}

impl RepeatDetector {
    /// Adds the calls of one more answer. Returns the repetition, if there is one.
    pub(crate) fn observe(&mut self, calls: &[RequestedCall]) -> Option<String> {
        let mut answer: Vec<RecentCall> = Vec::new();
        for call in calls {
            let arguments = call.arguments.split_whitespace().collect::<Vec<_>>().join(" ");
            let call = RecentCall { name: call.name.clone(), arguments };
            if !answer.contains(&call) {
                answer.push(call);
            }
        }
        self.0.push_back(answer);
        if self.0.len() > WINDOW {
            self.0.pop_front();
        }
        let last: Vec<&Vec<RecentCall>> = self.0.iter().rev().collect();
        match last[..] {
            [a, b, c, ..] if a == b && b == c => {
                Some(format!("{} was called {SAME} times in a row with the same arguments", names(a)))
            }
            [a, b, c, d] if a == c && b == d => {
                let (first, second) = (names(b), names(a));
                Some(format!("{first} and {second} were called alternately, twice, with the same arguments"))
            }
            _ => None,
        }
    }

    /// Resets the detector, because the user lets the run go on.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

fn names(answer: &[RecentCall]) -> String {
    answer.iter().map(|call| format!("`{}`", call.name)).collect::<Vec<_>>().join(" with ")
}

#[cfg(test)]
mod tests {
    use super::RepeatDetector;
    use crate::message::RequestedCall;

    /// Answers with a space between two of them, and a letter for each call.
    #[track_caller]
    fn check_answers(answers: &str, goes_round: bool) {
        let mut repeats = RepeatDetector::default();
        let call = |c: char| RequestedCall { id: String::new(), name: c.to_string(), arguments: "{}".to_owned() };
        let mut observe = |answer: &str| repeats.observe(&answer.chars().map(call).collect::<Vec<_>>());
        let last = answers.split(' ').map(&mut observe).last().flatten();
        assert_eq!(last.is_some(), goes_round, "{answers}");
    }

    #[track_caller]
    fn check(calls: &str, goes_round: bool) {
        let answers: Vec<String> = calls.chars().map(String::from).collect();
        check_answers(&answers.join(" "), goes_round);
    }

    #[test]
    fn identical_calls_of_one_answer_count_once() {
        check_answers("aaa", false);
        check_answers("abab", false);
        check_answers("aaa aa", false);
        check_answers("aaa aa a", true);
        check_answers("ab ab ab", true);
        check_answers("ab c ab c", true);
        check_answers("ab a ab b", false);
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
