//! Answer filter: passes the body of an answer on, and cuts it before a secret is complete.
//!
//! The bytes that pass are those that came. A compressed body is decoded only to be looked at: a piece passes once
//! everything that it decodes to may pass. A body that cannot be decoded is cut, and so is one that decodes to far more than any page does.
//!
//! Not here: what is looked for (`leak_scanner.rs`), and the connection.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Write};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::HeaderMap;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use ringfence_net::ContentDecoder;

use crate::leak_scanner::{LeakFound, LeakPatterns, LeakScanner};

/// Bytes that a body may decode to whatever its size.
const DECODED_FLOOR: u64 = 64 << 20;

/// Above that, how many times its size a body may decode to. No more than this comes of gzip.
const MAX_RATIO: u64 = 1100;

/// Compressed bytes that are held back while it is open whether they contain a secret.
const MAX_HELD_BYTES: usize = 4 << 20;

/// Reason for which an answer was cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AnswerCut {
    /// It contains a secret.
    #[error("the answer contains a credential")]
    Leak,
    /// It cannot be read, so that a secret in it would not be seen.
    #[error("the answer cannot be checked for credentials: {0}")]
    Unreadable(&'static str),
}

impl From<LeakFound> for AnswerCut {
    fn from(_: LeakFound) -> Self {
        Self::Leak
    }
}

/// The filter of one body.
#[derive(Debug)]
pub(crate) enum AnswerFilter {
    Plain(Box<PlainFilter>),
    Encoded(Box<EncodedFilter>),
}

impl AnswerFilter {
    /// For a body with these values of `content-encoding`, joined by commas.
    pub(crate) fn new(patterns: &LeakPatterns, encoding: &str) -> Result<Self, AnswerCut> {
        let is_plain = encoding.split(',').all(|name| matches!(name.trim(), "" | "identity"));
        if is_plain || patterns.is_empty() {
            let scanner = LeakScanner::new(patterns);
            return Ok(Self::Plain(Box::new(PlainFilter { scanner, held: VecDeque::new(), passed: 0, received: 0 })));
        }
        let sink = ScanningSink { scanner: LeakScanner::new(patterns), decoded: 0, open_from: 0, limit: 0, cut: None };
        let decoder = ContentDecoder::new(encoding, sink);
        let decoder = decoder.map_err(|_| AnswerCut::Unreadable("its content encoding is not supported"))?;
        Ok(Self::Encoded(Box::new(EncodedFilter { decoder, held: VecDeque::new(), held_bytes: 0, received: 0 })))
    }

    /// Takes the next piece, and adds to `passed` what may be passed on.
    pub(crate) fn push(&mut self, piece: Bytes, passed: &mut VecDeque<Bytes>) -> Result<(), AnswerCut> {
        match self {
            Self::Plain(filter) => filter.push(piece, passed),
            Self::Encoded(filter) => filter.push(piece, passed),
        }
    }

    /// After the last piece: adds what was held back.
    pub(crate) fn finish(&mut self, passed: &mut VecDeque<Bytes>) -> Result<(), AnswerCut> {
        match self {
            Self::Plain(filter) => {
                passed.append(&mut filter.held);
                Ok(())
            }
            Self::Encoded(filter) => filter.finish(passed),
        }
    }
}

/// The filter of a body that is not compressed.
#[derive(Debug)]
pub(crate) struct PlainFilter {
    scanner: LeakScanner,
    held: VecDeque<Bytes>,
    /// Offsets of the next byte that passes, and of the next one that comes.
    passed: u64,
    received: u64,
}

impl PlainFilter {
    fn push(&mut self, piece: Bytes, passed: &mut VecDeque<Bytes>) -> Result<(), AnswerCut> {
        let open_from = self.scanner.push(&piece, self.received)?;
        self.received += piece.len() as u64;
        self.held.push_back(piece);
        while let Some(front) = self.held.front_mut() {
            let room = usize::try_from(open_from - self.passed).unwrap_or(usize::MAX);
            let next = match room {
                0 => break,
                room if room < front.len() => front.split_to(room),
                _ => self.held.pop_front().unwrap_or_default(),
            };
            self.passed += next.len() as u64;
            if !next.is_empty() {
                passed.push_back(next);
            }
        }
        Ok(())
    }
}

/// The filter of a compressed body.
#[derive(Debug)]
pub(crate) struct EncodedFilter {
    decoder: ContentDecoder<ScanningSink>,
    /// Pieces, each with the number of bytes that the body has decoded to with it.
    held: VecDeque<(Bytes, u64)>,
    held_bytes: usize,
    received: u64,
}

impl EncodedFilter {
    fn push(&mut self, piece: Bytes, passed: &mut VecDeque<Bytes>) -> Result<(), AnswerCut> {
        self.received += piece.len() as u64;
        self.decoder.sink_mut().limit = DECODED_FLOOR.max(self.received.saturating_mul(MAX_RATIO));
        let decoded = self.decoder.push(&piece).and_then(|()| self.decoder.flush());
        self.check(decoded)?;
        let sink = self.decoder.sink();
        let (open_from, total) = (sink.open_from, sink.decoded);
        self.held_bytes += piece.len();
        self.held.push_back((piece, total));
        while self.held.front().is_some_and(|(_, decoded)| *decoded <= open_from) {
            if let Some((piece, _)) = self.held.pop_front() {
                self.held_bytes -= piece.len();
                passed.push_back(piece);
            }
        }
        match self.held_bytes > MAX_HELD_BYTES {
            true => Err(AnswerCut::Unreadable("its compressed parts are too long")),
            false => Ok(()),
        }
    }

    fn finish(&mut self, passed: &mut VecDeque<Bytes>) -> Result<(), AnswerCut> {
        // The answer to a `HEAD` says how a body would be encoded, and has none.
        if self.received > 0 {
            let finished = self.decoder.finish();
            self.check(finished)?;
        }
        passed.extend(self.held.drain(..).map(|(piece, _)| piece));
        Ok(())
    }

    fn check(&self, result: io::Result<()>) -> Result<(), AnswerCut> {
        match (self.decoder.sink().cut, result) {
            (Some(cut), _) => Err(cut),
            (None, Err(_)) => Err(AnswerCut::Unreadable("it is not compressed as its header says")),
            (None, Ok(())) => Ok(()),
        }
    }
}

/// Scans what is decoded, and keeps nothing of it.
#[derive(Debug)]
struct ScanningSink {
    scanner: LeakScanner,
    decoded: u64,
    open_from: u64,
    limit: u64,
    cut: Option<AnswerCut>,
}

impl Write for ScanningSink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let scanned = self.scanner.push(bytes, self.decoded);
        self.decoded += bytes.len() as u64;
        match scanned {
            Ok(open_from) => self.open_from = open_from,
            Err(found) => self.cut = Some(found.into()),
        }
        if self.decoded > self.limit && self.cut.is_none() {
            self.cut = Some(AnswerCut::Unreadable("it decodes to too many bytes"));
        }
        match self.cut {
            Some(_) => Err(io::Error::other("the answer is cut")),
            None => Ok(bytes.len()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Told once when an answer is cut, with the part of the answer.
pub(crate) type OnCut = Box<dyn FnMut(&'static str) + Send>;

/// The body of an answer behind its filter.
pub(crate) struct FilteredBody {
    inner: Incoming,
    filter: AnswerFilter,
    patterns: LeakPatterns,
    passed: VecDeque<Bytes>,
    trailers: Option<HeaderMap>,
    state: BodyState,
    /// Whether a frame was taken.
    has_begun: bool,
    on_cut: OnCut,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyState {
    Open,
    Ended,
    Cut(AnswerCut),
}

impl fmt::Debug for FilteredBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FilteredBody").field("state", &self.state).finish_non_exhaustive()
    }
}

impl FilteredBody {
    pub(crate) fn new(inner: Incoming, filter: AnswerFilter, patterns: LeakPatterns, on_cut: OnCut) -> Self {
        Self {
            inner,
            filter,
            patterns,
            passed: VecDeque::new(),
            trailers: None,
            state: BodyState::Open,
            has_begun: false,
            on_cut,
        }
    }

    /// Takes a frame of the answer, or its end.
    fn take(&mut self, frame: Option<Frame<Bytes>>) {
        self.has_begun = true;
        let is_last = frame.as_ref().is_none_or(Frame::is_trailers);
        let filtered = match frame.map(Frame::into_data) {
            Some(Ok(piece)) => self.filter.push(piece, &mut self.passed).map_err(|cut| (cut, "body")),
            Some(Err(frame)) => {
                self.trailers = frame.into_trailers().ok();
                self.filter.finish(&mut self.passed).map_err(|cut| (cut, "body"))
            }
            None => self.filter.finish(&mut self.passed).map_err(|cut| (cut, "body")),
        };
        let has_leak = self.trailers.as_ref().is_some_and(|trailers| header_leak(trailers, &self.patterns));
        let filtered = filtered.and(if has_leak { Err((AnswerCut::Leak, "trailers")) } else { Ok(()) });
        match filtered {
            Err((cut, place)) => {
                self.state = BodyState::Cut(cut);
                (self.on_cut)(place);
            }
            Ok(()) if is_last => self.state = BodyState::Ended,
            Ok(()) => {}
        }
    }
}

/// Whether a header contains a secret.
pub(crate) fn header_leak(headers: &HeaderMap, patterns: &LeakPatterns) -> bool {
    headers.iter().any(|(name, value)| patterns.are_in(&[name.as_str().as_bytes(), b": ", value.as_bytes()].concat()))
}

impl Body for FilteredBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        loop {
            if let Some(piece) = self.passed.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
            match self.state {
                BodyState::Cut(cut) => return Poll::Ready(Some(Err(io::Error::other(cut)))),
                BodyState::Ended => {
                    return Poll::Ready(self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))));
                }
                BodyState::Open => {}
            }
            let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx)).transpose().map_err(io::Error::other)?;
            self.take(frame);
        }
    }

    fn is_end_stream(&self) -> bool {
        match self.state {
            BodyState::Open => !self.has_begun && self.inner.is_end_stream(),
            BodyState::Ended => self.passed.is_empty() && self.trailers.is_none(),
            BodyState::Cut(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::VecDeque;
    use std::io::Write as _;

    use hyper::body::Bytes;
    use proptest::prelude::*;

    use super::{AnswerCut, AnswerFilter};
    use crate::leak_scanner::LeakPatterns;

    pub(crate) const SECRET: &str = "sk-live-0123456789abcdef";

    /// What passes of the pieces.
    pub(crate) fn filter<'a>(
        encoding: &str,
        pieces: impl IntoIterator<Item = &'a [u8]>,
    ) -> (Vec<u8>, Result<(), AnswerCut>) {
        let patterns = LeakPatterns::new([SECRET]).unwrap();
        let mut passed = VecDeque::new();
        let result = AnswerFilter::new(&patterns, encoding).and_then(|mut filter| {
            pieces.into_iter().try_for_each(|piece| filter.push(Bytes::copy_from_slice(piece), &mut passed))?;
            filter.finish(&mut passed)
        });
        (Vec::from(passed).concat(), result)
    }

    fn compress(encoding: &str, text: &[u8]) -> Vec<u8> {
        let level = flate2::Compression::default();
        match encoding {
            "gzip" => {
                let mut encoder = flate2::write::GzEncoder::new(Vec::new(), level);
                encoder.write_all(text).unwrap();
                encoder.finish().unwrap()
            }
            "deflate" => {
                let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), level);
                encoder.write_all(text).unwrap();
                encoder.finish().unwrap()
            }
            "br" => {
                let mut out = Vec::new();
                brotli::BrotliCompress(&mut &text[..], &mut out, &brotli::enc::BrotliEncoderParams::default()).unwrap();
                out
            }
            "zstd" => zstd::encode_all(text, 3).unwrap(),
            _ => text.to_vec(),
        }
    }

    /// What a program can decode of the bytes that it got.
    fn decode(encoding: &str, bytes: &[u8]) -> Vec<u8> {
        let mut decoder = ringfence_net::ContentDecoder::new(encoding, Vec::new()).unwrap();
        for byte in bytes.chunks(1) {
            if decoder.push(byte).and_then(|()| decoder.flush()).is_err() {
                break;
            }
        }
        std::mem::take(decoder.sink_mut())
    }

    const ENCODINGS: [&str; 5] = ["", "gzip", "deflate", "br", "zstd"];

    #[test]
    fn an_answer_with_the_secret_is_cut_at_each_split_in_each_encoding() {
        let text = format!("{{\"error\": \"invalid key {SECRET} given\", \"rest\": \"{}\"}}", "x".repeat(40));
        for encoding in ENCODINGS {
            let body = compress(encoding, text.as_bytes());
            for cut in 0..=body.len() {
                let (head, tail) = body.split_at(cut);
                let (passed, result) = filter(encoding, [head, tail]);
                assert_eq!(result, Err(AnswerCut::Leak), "{encoding} at {cut}");
                let seen = decode(encoding, &passed);
                let seen = String::from_utf8_lossy(&seen);
                assert!(!seen.contains(&SECRET[..4]), "{encoding} at {cut}: {seen}");
            }
            let (passed, result) = filter(encoding, body.chunks(1));
            assert_eq!(result, Err(AnswerCut::Leak), "{encoding}");
            assert!(!String::from_utf8_lossy(&decode(encoding, &passed)).contains(&SECRET[..4]), "{encoding}");
        }
    }

    #[test]
    fn nothing_passes_behind_the_end_of_a_compressed_body() {
        for encoding in &ENCODINGS[1..] {
            let body = compress(encoding, b"a body without it");
            let secret = [b"\0".as_slice(), SECRET.as_bytes()].concat();
            let second = compress(encoding, SECRET.as_bytes());
            for behind in [&secret, &second] {
                for pieces in [vec![[&body[..], behind].concat()], vec![body.clone(), behind.clone()]] {
                    let (passed, result) = filter(encoding, pieces.iter().map(Vec::as_slice));
                    assert!(result.is_err(), "{encoding}");
                    let held = body.len() + 4;
                    assert!(passed.len() <= held, "{encoding}: {} of {} bytes passed", passed.len(), body.len());
                }
            }
        }
    }

    #[test]
    fn a_stream_of_events_passes_piece_by_piece() {
        let patterns = LeakPatterns::new([SECRET]).unwrap();
        let mut filter = AnswerFilter::new(&patterns, "").unwrap();
        for event in ["event: a\ndata: {\"text\":\"one\\n\"}\n\n", "data: two\n\n", ": ping\n\n"] {
            let mut passed = VecDeque::new();
            filter.push(Bytes::from_static(event.as_bytes()), &mut passed).unwrap();
            assert_eq!(Vec::from(passed).concat(), event.as_bytes());
        }
        let mut passed = VecDeque::new();
        filter.push(Bytes::from_static(b"data: sk-li"), &mut passed).unwrap();
        assert_eq!(Vec::from(std::mem::take(&mut passed)).concat(), b"data: ");
        filter.push(Bytes::from_static(b"fe"), &mut passed).unwrap();
        assert_eq!(Vec::from(passed).concat(), b"sk-life");
    }

    #[test]
    fn a_body_that_cannot_be_read_is_cut() {
        let gzip = compress("gzip", b"a body");
        for (encoding, body) in [
            ("compress", &b"x"[..]),
            ("gzip, br", &gzip),
            ("gzip", b"not gzip at all"),
            ("gzip", &gzip[..gzip.len() - 9]),
            ("br", b"\xff\xff\xff\xff"),
            ("zstd", b"not zstd"),
            ("deflate", b"not deflate"),
        ] {
            let (_, result) = filter(encoding, [body]);
            assert!(matches!(result, Err(AnswerCut::Unreadable(_))), "{encoding}: {result:?}");
        }
        assert_eq!(filter("gzip", []), (Vec::new(), Ok(())), "the answer to a HEAD");
    }

    #[test]
    fn a_body_that_decodes_to_far_too_much_is_cut() {
        let zeros = vec![0; 1 << 20];
        let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
        for _ in 0..80 {
            encoder.write_all(&zeros).unwrap();
        }
        let bomb = encoder.finish().unwrap();
        assert!(bomb.len() < 60_000, "{}", bomb.len());
        let (_, result) = filter("zstd", bomb.chunks(1000));
        assert_eq!(result, Err(AnswerCut::Unreadable("it decodes to too many bytes")));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_secret_never_passes_and_any_other_answer_passes_unchanged(
            parts in proptest::collection::vec(prop_oneof![
                Just(SECRET.to_owned()), Just(SECRET[..9].to_owned()), Just("%73k-live-".to_owned()), Just("\\u00".to_owned()), ".{0,20}",
            ], 0..8),
            encoding in 0_usize..5,
            cuts in proptest::collection::vec(1_usize..40, 0..40),
        ) {
            let (text, encoding) = (parts.concat(), ENCODINGS[encoding]);
            let body = compress(encoding, text.as_bytes());
            let (mut rest, mut pieces) = (&body[..], Vec::new());
            for cut in cuts {
                let (piece, after) = rest.split_at(cut.min(rest.len()));
                pieces.push(piece);
                rest = after;
            }
            pieces.push(rest);
            let (passed, result) = filter(encoding, pieces);
            if result.is_ok() {
                prop_assert_eq!(&passed, &body);
            }
            prop_assert_eq!(result.is_err(), LeakPatterns::new([SECRET]).unwrap().are_in(text.as_bytes()));
            let seen = decode(encoding, &passed);
            prop_assert!(!String::from_utf8_lossy(&seen).contains(SECRET));
        }
    }
}
