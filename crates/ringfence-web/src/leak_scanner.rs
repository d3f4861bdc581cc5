//! Leak scanner: finds texts in a stream of bytes, plain and re-encoded, however the stream is cut.
//!
//! Found are each text itself, its base64 in the three alignments, its hexadecimal digits, and those with percent-escapes
//! or JSON escapes at any place. After each piece the scanner tells up to which byte the stream cannot be the
//! beginning of a find, so that a caller holds back no more than that. Texts can be added while streams are scanned, such as
//! tokens that are new: each scan looks for them from its next piece on.
//!
//! Not found: a text that is encoded twice, in parts with other bytes between them, or by any other means (HTML
//! entities, UTF-16, base64 with line breaks, compression, encryption).

use std::fmt;
use std::sync::Arc;

use aho_corasick::{AhoCorasick, BuildError};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use ringfence_kernel::sync::RwLock;
use zeroize::Zeroizing;

/// The texts to find. Clones share them.
#[derive(Clone)]
pub(crate) struct LeakPatterns(Arc<RwLock<Arc<PatternForms>>>);

/// The texts at one moment, in each form.
struct PatternForms {
    forms: Vec<Arc<Zeroizing<Vec<u8>>>>,
    finder: AhoCorasick,
    longest: usize,
    /// Bytes that a form begins with.
    first_bytes: [bool; 256],
}

impl fmt::Debug for LeakPatterns {
    /// Without the texts.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeakPatterns").field("forms", &self.current().forms.len()).finish_non_exhaustive()
    }
}

/// One of the texts was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeakFound;

impl LeakPatterns {
    pub(crate) fn new<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Self, BuildError> {
        Ok(Self(Arc::new(RwLock::new(Arc::new(PatternForms::new(Vec::new(), texts)?)))))
    }

    /// Looks for these texts too, here and in every scan.
    pub(crate) fn add<'a>(&self, texts: impl IntoIterator<Item = &'a str>) -> Result<(), BuildError> {
        let mut shared = self.0.write();
        *shared = Arc::new(PatternForms::new(shared.forms.clone(), texts)?);
        Ok(())
    }

    /// Whether there is nothing to find.
    pub(crate) fn is_empty(&self) -> bool {
        self.current().forms.is_empty()
    }

    /// Whether the bytes contain one of the texts.
    pub(crate) fn are_in(&self, bytes: &[u8]) -> bool {
        LeakScanner::new(self).push(bytes, 0).is_err()
    }

    fn current(&self) -> Arc<PatternForms> {
        Arc::clone(&self.0.read())
    }
}

impl PatternForms {
    fn new<'a>(
        mut forms: Vec<Arc<Zeroizing<Vec<u8>>>>,
        texts: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, BuildError> {
        for text in texts {
            for form in forms_of(text.as_bytes()) {
                if !forms.iter().any(|known| **known == form) {
                    forms.push(Arc::new(form));
                }
            }
        }
        let finder = AhoCorasick::new(forms.iter().map(|form| form.as_slice()))?;
        let longest = forms.iter().map(|form| form.len()).max().unwrap_or(0);
        let mut first_bytes = [false; 256];
        for first in forms.iter().filter_map(|form| form.first()) {
            first_bytes[usize::from(*first)] = true;
        }
        Ok(Self { forms, finder, longest, first_bytes })
    }

    /// Length of the longest suffix that is the beginning of a form, and not all of it.
    fn open_suffix(&self, bytes: &[u8]) -> usize {
        let window = self.longest.saturating_sub(1).min(bytes.len());
        let tail = &bytes[bytes.len() - window..];
        let is_open = |start: &usize| {
            self.first_bytes[usize::from(tail[*start])]
                && self.forms.iter().any(|form| form.len() > tail.len() - start && form.starts_with(&tail[*start..]))
        };
        (0..tail.len()).find(is_open).map_or(0, |start| tail.len() - start)
    }
}

/// The text, and how it looks inside of longer base64, and in hexadecimal.
fn forms_of(text: &[u8]) -> Vec<Zeroizing<Vec<u8>>> {
    let hex = |digits: &[u8; 16]| {
        let pair = |byte: &u8| [digits[usize::from(byte >> 4)], digits[usize::from(byte & 15)]];
        Zeroizing::new(text.iter().flat_map(pair).collect::<Vec<u8>>())
    };
    let mut forms = vec![Zeroizing::new(text.to_vec()), hex(b"0123456789abcdef"), hex(b"0123456789ABCDEF")];
    for before in 0..3 {
        let shifted = Zeroizing::new([&[0; 2][..before], text].concat());
        // Characters that depend on what stands before or after the text are left out.
        let (start, end) = ((8 * before).div_ceil(6), 8 * shifted.len() / 6);
        for engine in [&STANDARD_NO_PAD, &URL_SAFE_NO_PAD] {
            let encoded = Zeroizing::new(engine.encode(shifted.as_slice()));
            if let Some(form) = encoded.as_bytes().get(start..end) {
                forms.push(Zeroizing::new(form.to_vec()));
            }
        }
    }
    forms
}

/// How the bytes of a stream are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    Plain,
    Percent,
    Json,
}

impl Reading {
    const ALL: [Self; 3] = [Self::Plain, Self::Percent, Self::Json];

    const fn escape(self) -> Option<u8> {
        match self {
            Self::Plain => None,
            Self::Percent => Some(b'%'),
            Self::Json => Some(b'\\'),
        }
    }
}

/// The scan of one stream.
pub(crate) struct LeakScanner {
    patterns: LeakPatterns,
    readers: [StreamReader; 3],
}

impl fmt::Debug for LeakScanner {
    /// Without what was read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeakScanner").field("patterns", &self.patterns).finish_non_exhaustive()
    }
}

impl LeakScanner {
    pub(crate) fn new(patterns: &LeakPatterns) -> Self {
        Self { patterns: patterns.clone(), readers: Reading::ALL.map(StreamReader::new) }
    }

    /// Reads the next piece, whose first byte is at `offset` of the stream. Returns the offset from which on bytes may
    /// be the beginning of a find.
    pub(crate) fn push(&mut self, piece: &[u8], offset: u64) -> Result<u64, LeakFound> {
        let (mut open_from, patterns) = (offset + piece.len() as u64, self.patterns.current());
        for reader in &mut self.readers {
            open_from = open_from.min(reader.push(piece, offset, &patterns)?);
        }
        Ok(open_from)
    }

    /// Forgets the beginning of a find: what comes next has nothing to do with what came before.
    pub(crate) fn start_again(&mut self) {
        self.readers = Reading::ALL.map(StreamReader::new);
    }
}

/// A stream in one reading: what was decoded and may be the beginning of a find, and an escape that is not complete.
struct StreamReader {
    reading: Reading,
    tail: Vec<u8>,
    /// The offset in the stream at which each byte of the tail begins.
    tail_offsets: Vec<u64>,
    escape: Vec<u8>,
    escape_offset: u64,
}

impl StreamReader {
    fn new(reading: Reading) -> Self {
        Self { reading, tail: Vec::new(), tail_offsets: Vec::new(), escape: Vec::new(), escape_offset: 0 }
    }

    fn push(&mut self, piece: &[u8], offset: u64, patterns: &PatternForms) -> Result<u64, LeakFound> {
        let end = offset + piece.len() as u64;
        let has_escapes =
            self.reading.escape().is_some_and(|escape| !self.escape.is_empty() || piece.contains(&escape));
        match has_escapes {
            false => self.read_plain(piece, offset, patterns)?,
            true => {
                let (mut bytes, mut offsets) = (std::mem::take(&mut self.tail), std::mem::take(&mut self.tail_offsets));
                for (byte, at) in piece.iter().zip(offset..) {
                    self.decode(*byte, at, &mut bytes, &mut offsets);
                }
                if patterns.finder.is_match(&bytes) {
                    return Err(LeakFound);
                }
                let keep = bytes.len() - patterns.open_suffix(&bytes);
                (self.tail, self.tail_offsets) = (bytes.split_off(keep), offsets.split_off(keep));
            }
        }
        let open_escape = if self.escape.is_empty() { end } else { self.escape_offset };
        Ok(self.tail_offsets.first().copied().unwrap_or(end).min(open_escape))
    }

    /// A piece without escapes. Finds that lie wholly in it are left to the plain reading.
    fn read_plain(&mut self, piece: &[u8], offset: u64, patterns: &PatternForms) -> Result<(), LeakFound> {
        if self.reading == Reading::Plain && patterns.finder.is_match(piece) {
            return Err(LeakFound);
        }
        let seam = piece.len().min(patterns.longest);
        let tail_len = self.tail.len();
        self.tail.extend_from_slice(&piece[..seam]);
        if tail_len > 0 && patterns.finder.is_match(&self.tail) {
            return Err(LeakFound);
        }
        if seam < piece.len() {
            let start = piece.len() - seam;
            self.tail.clear();
            self.tail.extend_from_slice(&piece[start..]);
            self.tail_offsets.clear();
            self.tail_offsets.extend(offset + start as u64..offset + piece.len() as u64);
        } else {
            self.tail_offsets.extend(offset..offset + seam as u64);
        }
        let keep = self.tail.len() - patterns.open_suffix(&self.tail);
        self.tail.drain(..keep);
        self.tail_offsets.drain(..keep);
        Ok(())
    }

    /// Adds the byte, or that of the escape which it completes.
    fn decode(&mut self, byte: u8, at: u64, bytes: &mut Vec<u8>, offsets: &mut Vec<u64>) {
        if self.escape.is_empty() && self.reading.escape() != Some(byte) {
            bytes.push(byte);
            offsets.push(at);
            return;
        }
        if self.escape.is_empty() {
            self.escape_offset = at;
        }
        self.escape.push(byte);
        match complete_escape(self.reading, &self.escape) {
            EscapeState::Open => {}
            EscapeState::Byte(decoded) => {
                bytes.push(decoded);
                offsets.push(self.escape_offset);
                self.escape.clear();
            }
            EscapeState::Invalid => {
                // All but the last byte are what they are. The last may begin an escape of its own.
                self.escape.pop();
                for (plain, at) in self.escape.drain(..).zip(self.escape_offset..) {
                    bytes.push(plain);
                    offsets.push(at);
                }
                self.decode(byte, at, bytes, offsets);
            }
        }
    }
}

enum EscapeState {
    Open,
    Byte(u8),
    Invalid,
}

/// The byte that an escape stands for. No text has a character outside of ASCII there.
fn complete_escape(reading: Reading, escape: &[u8]) -> EscapeState {
    let digits = match (reading, escape) {
        (_, [_]) => return EscapeState::Open,
        (Reading::Json, [_, b'u', digits @ ..]) if digits.len() <= 4 => (digits, 4),
        (Reading::Json, [_, plain]) => {
            return match plain {
                b'"' | b'\\' | b'/' => EscapeState::Byte(*plain),
                b'n' => EscapeState::Byte(b'\n'),
                b'r' => EscapeState::Byte(b'\r'),
                b't' => EscapeState::Byte(b'\t'),
                _ => EscapeState::Invalid,
            };
        }
        (Reading::Percent, [_, digits @ ..]) if digits.len() <= 2 => (digits, 2),
        _ => return EscapeState::Invalid,
    };
    let (digits, wanted) = digits;
    let value = digits.iter().try_fold(0, |sum, digit| Some(sum << 4 | char::from(*digit).to_digit(16)?));
    match value {
        None => EscapeState::Invalid,
        Some(_) if digits.len() < wanted => EscapeState::Open,
        Some(value) => EscapeState::Byte(u8::try_from(value).unwrap_or(0)),
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
    use proptest::prelude::*;

    use super::{LeakFound, LeakPatterns, LeakScanner};

    const SECRET: &str = "sk-ant-?~secret/\"\\0123";

    fn patterns() -> LeakPatterns {
        LeakPatterns::new([SECRET]).unwrap()
    }

    fn scan<'a>(patterns: &LeakPatterns, pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<u64, LeakFound> {
        let (mut scanner, mut offset, mut open_from) = (LeakScanner::new(patterns), 0, 0);
        for piece in pieces {
            let next = scanner.push(piece, offset)?;
            offset += piece.len() as u64;
            assert!(open_from <= next && next <= offset, "{open_from} {next} {offset}");
            open_from = next;
        }
        Ok(open_from)
    }

    /// The secret in each form that is found.
    fn forms() -> Vec<String> {
        let percent: String = SECRET.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let json: String = SECRET.bytes().map(|byte| format!("\\u{byte:04x}")).collect();
        let mut forms = vec![
            SECRET.to_owned(),
            percent,
            json,
            serde_json::to_string(SECRET).unwrap(),
            SECRET.replace('/', "%2f").replace('?', "%3F").replace('"', "%22"),
            format!("\\\\{}", serde_json::to_string(SECRET).unwrap()),
            format!("%%{}", SECRET.replace('s', "%73")),
            format!("%2{}", SECRET.replace('s', "%73")),
            SECRET.bytes().map(|byte| format!("{byte:02x}")).collect(),
            SECRET.bytes().map(|byte| format!("{byte:02X}")).collect(),
        ];
        for user in ["", "a", "ab", "abc", "user:"] {
            let text = format!("{user}{SECRET}");
            forms.push(STANDARD.encode(&text));
            forms.push(STANDARD.encode(format!("{text}xyz")));
            forms.push(URL_SAFE_NO_PAD.encode(text));
        }
        forms
    }

    #[test]
    fn each_form_is_found_at_each_cut_and_never_released_before() {
        let patterns = patterns();
        for form in forms() {
            let text = format!("{{\"a\": \"{form}\", \"b\": 1}}");
            let bytes = text.as_bytes();
            assert_eq!(scan(&patterns, [bytes]), Err(LeakFound), "{text}");
            assert_eq!(scan(&patterns, bytes.chunks(1)), Err(LeakFound), "{text}");
            for cut in 0..bytes.len() {
                let (head, tail) = bytes.split_at(cut);
                assert_eq!(scan(&patterns, [head, tail]), Err(LeakFound), "{text} at {cut}");
            }
        }
    }

    #[test]
    fn only_the_beginning_of_a_find_is_held_back() {
        let patterns = patterns();
        let open = |text: &str| text.len() - usize::try_from(scan(&patterns, [text.as_bytes()]).unwrap()).unwrap();
        assert_eq!(open("data: {\"text\": \"hello\"}\n\n"), 0);
        assert_eq!(open("data sk-an"), 5);
        assert_eq!(open("data sk-anx"), 0);
        assert_eq!(open("data s%6"), 3);
        assert_eq!(open("data \\u00"), 4);
        assert_eq!(open(&SECRET[..SECRET.len() - 1]), SECRET.len() - 1);
    }

    #[test]
    fn a_text_that_is_added_is_found_by_a_scan_that_has_begun() {
        let patterns = patterns();
        let mut scanner = LeakScanner::new(&patterns);
        assert_eq!(scanner.push(b"data new-tok", 0), Ok(12));
        patterns.add(["new-token-0123456789"]).unwrap();
        assert_eq!(scanner.push(b" new-tok", 12), Ok(13), "the beginning of it is held back");
        assert_eq!(scanner.push(b"en-0123456789", 20), Err(LeakFound));
        assert!(patterns.clone().are_in(b"new-token-0123456789") && patterns.are_in(SECRET.as_bytes()));
    }

    #[test]
    fn other_texts_pass() {
        let patterns = patterns();
        for text in ["", "sk-ant-other", "c2stYW50", "%73%6b", "\\u0073\\u006b", "\\", "%", &SECRET[1..]] {
            assert!(scan(&patterns, [text.as_bytes()]).is_ok(), "{text}");
            assert!(!patterns.are_in(text.as_bytes()), "{text}");
        }
        let doubled = SECRET.bytes().map(|byte| format!("%25{byte:02x}")).collect::<String>();
        assert!(!patterns.are_in(doubled.as_bytes()), "a text that is encoded twice is not found, as the docs say");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_find_does_not_depend_on_the_cuts(
            before in "[sk\\-%\\\\0-9u]{0,40}",
            form in 0_usize..25,
            after in "[sk\\-%\\\\0-9u]{0,40}",
            cuts in proptest::collection::vec(1_usize..9, 0..60),
        ) {
            // An escape that is open before the form would take a part of it.
            let before = before.trim_end_matches(|c: char| c.is_ascii_hexdigit() || "u%\\".contains(c));
            let form = forms().swap_remove(form);
            let text = format!("{before} {form}{after}");
            let (mut rest, mut pieces) = (text.as_bytes(), Vec::new());
            for cut in cuts {
                let (piece, after) = rest.split_at(cut.min(rest.len()));
                pieces.push(piece);
                rest = after;
            }
            pieces.push(rest);
            prop_assert_eq!(scan(&patterns(), pieces), Err(LeakFound));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>, size in 1_usize..9) {
            let whole = scan(&patterns(), [&bytes[..]]);
            prop_assert_eq!(scan(&patterns(), bytes.chunks(size)), whole);
        }
    }
}
