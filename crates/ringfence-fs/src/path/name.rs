//! File name escaping: names as bytes, and as text that a model reads and writes back.
//!
//! Every name has exactly one text, and the text gives the name back: bytes that are not UTF-8, control characters, and
//! a backslash that could be mistaken for an escape are written as `\xHH`.
//!
//! Also here: which names may be created. Existing ones can always be reached.

use std::fmt::Write as _;

use ringfence_kernel::{ErrorKind, ToolError};
use unicode_normalization::UnicodeNormalization as _;

/// Rule for the names of new files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NameRule {
    /// Every name that Linux allows, without invisible and ambiguous characters.
    #[default]
    Native,
    /// Every name that all common systems allow: for workspaces that are shared with Windows or macOS.
    Portable,
}

/// Temporary files of ours begin with this. Tools neither see nor name them.
pub(crate) const TEMP_PREFIX: &str = ".ringfence-tmp-";

/// The image store's directory at the root of a mount. Hidden and refused at any depth: a mount may lie in another one.
pub(crate) const IMAGE_DIR: &str = ".ringfence";

pub(crate) fn is_reserved(name: &[u8]) -> bool {
    name.starts_with(TEMP_PREFIX.as_bytes()) || name == IMAGE_DIR.as_bytes()
}

/// The text of a name, or of a path of names.
pub(crate) fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    escape_into(&mut text, bytes);
    text
}

/// Appends the text of a name.
pub(crate) fn escape_into(text: &mut String, bytes: &[u8]) {
    // Most names are their own text.
    if let Some(plain) = plain_text(bytes) {
        return text.push_str(plain);
    }
    for chunk in bytes.utf8_chunks() {
        let valid = chunk.valid();
        for (at, c) in valid.char_indices() {
            if c.is_ascii_control() || (c == '\\' && unescape_byte(&valid.as_bytes()[at..]).is_some()) {
                let _ = write!(text, "\\x{:02x}", u32::from(c));
            } else {
                text.push(c);
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
}

/// A name in which nothing can need an escape.
fn plain_text(bytes: &[u8]) -> Option<&str> {
    let is_plain = bytes.iter().all(|byte| matches!(byte, b' '..=b'~') && *byte != b'\\');
    std::str::from_utf8(bytes).ok().filter(|_| is_plain)
}

/// Whether the name of a text is not UTF-8.
pub(crate) fn is_non_utf8(text: &str) -> bool {
    // Most names have no backslash, and very many are listed.
    text.as_bytes().contains(&b'\\') && std::str::from_utf8(&unescape(text)).is_err()
}

/// The bytes of a name or path, from its text.
pub(crate) fn unescape(text: &str) -> Vec<u8> {
    if !text.contains("\\x") {
        return text.as_bytes().to_vec();
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        if let Some(byte) = unescape_byte(rest) {
            bytes.push(byte);
            rest = &rest[4..];
        } else {
            bytes.push(first);
            rest = tail;
        }
    }
    bytes
}

/// The byte that an escape at the start of `text` stands for. Only bytes that need an escape have one, so
/// that no two texts mean the same name by accident.
fn unescape_byte(text: &[u8]) -> Option<u8> {
    let [b'\\', b'x', high, low, ..] = text else { return None };
    let digit = |c: u8| match c {
        b'0'..=b'9' => Some(c - b'0'),
        b'a'..=b'f' => Some(c - b'a' + 10),
        _ => None,
    };
    let byte = digit(*high)? << 4 | digit(*low)?;
    (byte.is_ascii_control() || byte == b'\\' || byte >= 0x80).then_some(byte)
}

/// A name as case-insensitive and normalising file systems compare it.
pub(crate) fn fold_name(name: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(name).ok()?;
    Some(text.nfc().collect::<String>().to_uppercase().to_lowercase().nfc().collect())
}

/// Fails where a file or directory of this name may not be created.
pub(crate) fn may_create(name: &[u8], rule: NameRule) -> Result<(), ToolError> {
    let shown = escape(name);
    let refuse = |why: &str| Err(ToolError::new(ErrorKind::InvalidPath, format!("the name `{shown}` {why}")));
    let Ok(text) = std::str::from_utf8(name) else {
        return refuse("is not valid UTF-8; such names cannot be created");
    };
    if text.chars().any(char::is_control) {
        return refuse("contains a control character; such names cannot be created");
    }
    if text
        .chars()
        .any(|c| matches!(c, '\u{061C}' | '\u{200E}' | '\u{200F}' | '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}'))
    {
        return refuse("contains a bidirectional control character; such names cannot be created");
    }
    if rule == NameRule::Portable {
        if text.ends_with(['.', ' ']) {
            return refuse("ends in a dot or a space, which other systems remove");
        }
        if text.contains(['<', '>', ':', '"', '|', '?', '*', '\\']) {
            return refuse("contains a character that other systems forbid");
        }
        if is_device(text) {
            return refuse("is a device name on other systems");
        }
        if text
            .chars()
            .any(|c| matches!(c, '\u{2024}' | '\u{2025}' | '\u{FF0E}' | '\u{2215}' | '\u{2044}' | '\u{FF0F}'))
        {
            return refuse("contains a character that looks like a dot or a slash");
        }
    }
    Ok(())
}

/// `CON`, `nul.txt`, `COM1`, `LPT²`: Windows opens a device for these, in any directory and with any extension.
fn is_device(name: &str) -> bool {
    let stem = name.split('.').next().unwrap_or(name).trim_end().to_ascii_uppercase();
    if matches!(stem.as_str(), "CON" | "PRN" | "AUX" | "NUL" | "CONIN$" | "CONOUT$") {
        return true;
    }
    let port = stem.strip_prefix("COM").or_else(|| stem.strip_prefix("LPT"));
    port.is_some_and(|port| {
        let mut chars = port.chars();
        matches!((chars.next(), chars.next()), (Some('0'..='9' | '¹' | '²' | '³'), None))
    })
}

#[cfg(test)]
mod tests {
    use super::{NameRule, escape, may_create, unescape};

    #[track_caller]
    fn check(name: &[u8], text: &str) {
        assert_eq!(escape(name), text);
        assert_eq!(unescape(text), name, "{text}");
    }

    #[test]
    fn a_name_and_its_text_are_one() {
        check(b"plain.txt", "plain.txt");
        check("é ü 🦀".as_bytes(), "é ü 🦀");
        check(b"caf\xe9", "caf\\xe9");
        check(b"\xff\xfe", "\\xff\\xfe");
        check(b"new\nline", "new\\x0aline");
        check(b"back\\slash", "back\\slash");
        check(b"looks\\xff", "looks\\x5cxff");
        check(b"looks\\x41", "looks\\x41");
        check(b"\\x5c", "\\x5cx5c");
    }

    #[test]
    fn any_two_bytes_come_back() {
        for first in 1..=255u8 {
            for second in 1..=255u8 {
                let name = [first, second, b'\\', first, b'x'];
                assert_eq!(unescape(&escape(&name)), name);
            }
        }
    }

    #[track_caller]
    fn check_rule(name: &str, native: bool, portable: bool) {
        assert_eq!(may_create(name.as_bytes(), NameRule::Native).is_ok(), native, "{name:?} native");
        assert_eq!(may_create(name.as_bytes(), NameRule::Portable).is_ok(), portable, "{name:?} portable");
    }

    #[test]
    fn names_that_hide_what_they_are_are_not_made() {
        check_rule("f\nname", false, false);
        check_rule("f\u{1b}[2J", false, false);
        check_rule("f\u{85}", false, false);
        check_rule("a\u{202E}txt.exe", false, false);
        check_rule("résumé.md", true, true);
        assert!(may_create(b"\xff", NameRule::Native).is_err());
    }

    #[test]
    fn portable_names_are_those_that_every_system_takes() {
        for name in [
            "CON",
            "nul.txt",
            "COM1",
            "COM¹",
            "LPT²",
            "aux ",
            "f.",
            "f ",
            "file.txt::$DATA",
            "a:b",
            "...",
            "．．",
            "a∕b",
        ] {
            check_rule(name, true, false);
        }
        for name in ["console", "com", "com10", "lpt", "nulls.txt"] {
            check_rule(name, true, true);
        }
    }
}
