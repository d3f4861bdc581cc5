//! Messages on standard error.

use std::io::Write as _;

use ringfence_kernel::sanitize_text;

use crate::codec::io_text::IoText;

/// Prints to standard error; a closed one is ignored. The text is sanitised: it may quote untrusted input, such as a
/// line of a workspace's own file.
pub(crate) fn print_error(text: &str) {
    let _ = writeln!(std::io::stderr(), "ringfence: {}", sanitize_text(text));
}

/// An error with its causes, for the person in charge.
pub(crate) fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let cause_text = match error.downcast_ref() {
            Some(error) => IoText(error).to_string(),
            None => error.to_string(),
        };
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        cause = error.source();
    }
    text
}
