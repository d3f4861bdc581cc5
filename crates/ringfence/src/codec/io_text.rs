//! Texts of I/O errors for people, without the number of the operating system.

use std::fmt;
use std::io;

/// An I/O error as a phrase, such as `no such file or directory`.
pub(crate) struct IoText<'a>(pub(crate) &'a io::Error);

impl fmt::Display for IoText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string();
        let phrase = match self.0.raw_os_error() {
            Some(number) => text.trim_end_matches(&format!(" (os error {number})")),
            None => return f.write_str(&text),
        };
        let mut letters = phrase.chars();
        letters.next().into_iter().try_for_each(|first| write!(f, "{}", first.to_lowercase()))?;
        f.write_str(letters.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_system_is_a_phrase_without_its_number() {
        let text = |error: &io::Error| IoText(error).to_string();
        assert_eq!(text(&io::Error::from_raw_os_error(2)), "no such file or directory");
        assert_eq!(text(&io::Error::from_raw_os_error(13)), "permission denied");
        assert_eq!(text(&io::Error::other("Own text (os error 2)")), "Own text (os error 2)");
    }
}
