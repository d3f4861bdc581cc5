//! Detach key: `^\`, pressed twice, leaves a run that a terminal is attached to.
//!
//! The first one is held back: another key sends both on, and so does a moment without one. Everything else passes as it is.
//!
//! Not here: the terminal (`attached_terminal.rs`).

/// What was typed, as far as it is decided.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TypedInput {
    /// For the program. Empty where everything is held back.
    Keys(Vec<u8>),
    Detach,
}

/// The state of the detach key.
#[derive(Debug, Default)]
pub(crate) struct DetachKey {
    /// The first press, as it was typed.
    held: Vec<u8>,
}

impl DetachKey {
    /// Takes what was read from the terminal at once.
    pub(crate) fn take(&mut self, typed: &[u8]) -> TypedInput {
        match presses(typed) {
            Some(0) if !self.held.is_empty() => TypedInput::Keys(Vec::new()),
            Some(1) if self.held.is_empty() => {
                self.held = typed.to_vec();
                TypedInput::Keys(Vec::new())
            }
            Some(1..) => TypedInput::Detach,
            Some(0) | None => {
                let mut keys = self.release();
                keys.extend_from_slice(typed);
                TypedInput::Keys(keys)
            }
        }
    }

    /// Whether a press is held back.
    pub(crate) fn is_held(&self) -> bool {
        !self.held.is_empty()
    }

    /// The press that was held back, when nothing follows it.
    pub(crate) fn release(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }
}

/// How often the key is pressed here, if there is nothing else. Zero where it is only let go.
fn presses(typed: &[u8]) -> Option<usize> {
    let (mut rest, mut count) = (typed, 0);
    while let Some((first, after)) = rest.split_first() {
        rest = match first {
            0x1c => {
                count += 1;
                after
            }
            0x1b => {
                let (is_press, after) = key_report(after)?;
                count += usize::from(is_press);
                after
            }
            _ => return None,
        };
    }
    (!typed.is_empty()).then_some(count)
}

/// The key in one of the two protocols that name keys: whether it is pressed, and what follows it.
fn key_report(bytes: &[u8]) -> Option<(bool, &[u8])> {
    let end = bytes.iter().position(|byte| matches!(byte, b'u' | b'~'))?;
    let (report, after) = bytes.split_at_checked(end + 1)?;
    let report = std::str::from_utf8(report).ok()?;
    if report == "[27;5;92~" {
        return Some((true, after));
    }
    let (key, modifiers) = report.strip_prefix('[')?.strip_suffix('u')?.split_once(';')?;
    let (modifiers, event) = modifiers.split_once(':').unwrap_or((modifiers, "1"));
    // Caps lock and num lock change nothing.
    let is_control = modifiers.parse::<u8>().ok()?.checked_sub(1)? & !0b1100_0000 == 0b100;
    let is_key = key.split(':').next() == Some("92");
    (is_key && is_control).then_some((event != "3", after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(typed: &[&[u8]], expected: &[u8], detaches: bool) {
        let (mut key, mut keys) = (DetachKey::default(), Vec::new());
        for (at, bytes) in typed.iter().enumerate() {
            match key.take(bytes) {
                TypedInput::Keys(bytes) => keys.extend(bytes),
                TypedInput::Detach => {
                    assert!(detaches && at + 1 == typed.len());
                    assert_eq!(keys, expected);
                    return;
                }
            }
        }
        assert!(!detaches);
        keys.extend(key.release());
        assert_eq!(keys, expected);
    }

    #[test]
    fn two_presses_detach_and_everything_else_passes() {
        check(&[b"\x1c", b"\x1c"], b"", true);
        check(&[b"\x1c\x1c"], b"", true);
        check(&[b"a", b"\x1c", b"\x1c"], b"a", true);
        check(&[b"\x1b[92;5u", b"\x1b[92;5:3u", b"\x1b[92;5:1u"], b"", true);
        check(&[b"\x1b[92;133u", b"\x1b[92:124;5u"], b"", true);
        check(&[b"\x1b[27;5;92~", b"\x1b[27;5;92~"], b"", true);
        check(&[b"\x1c"], b"\x1c", false);
        check(&[b"\x1c", b"a", b"\x1c"], b"\x1ca\x1c", false);
        check(&[b"\x1c", b"pasted \x1c\x1c"], b"\x1cpasted \x1c\x1c", false);
        check(&[b"\x1b[92;6u", b"\x1b[92;5:3u"], b"\x1b[92;6u\x1b[92;5:3u", false);
        check(&[b"\x1b", b"\x1b[A", b"\x03", b"\xff"], b"\x1b\x1b[A\x03\xff", false);
    }
}
