//! WebSocket relay: passes the frames of both directions on, and ends the connection before a secret or a placeholder is complete.
//!
//! The text of a message is looked at across its fragments; one that is split over several messages is not found.
//! Extensions are not negotiated, so that a frame with a reserved bit, such as a compressed one, ends the connection.
//!
//! Not here: the request that opens a WebSocket (`request_guard.rs`).

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::leak_scanner::{LeakFound, LeakPatterns, LeakScanner};

/// Bytes that are held back while it is open whether they contain one of the texts. Frames without a payload, and control
/// frames between the fragments of a message, leave that open as long as their sender likes.
const MAX_HELD_BYTES: u64 = 1 << 20;

/// A buffer of each direction.
const BUFFER_BYTES: usize = 16 << 10;

/// Who sends the frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameSender {
    /// Its frames are masked.
    Program,
    /// Its frames are not.
    Server,
}

/// Reason for which a WebSocket is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WebSocketCut {
    /// One of the texts was found.
    Found,
    /// A frame that cannot be read, or too much that would have to be held back.
    Unreadable,
}

impl From<LeakFound> for WebSocketCut {
    fn from(_: LeakFound) -> Self {
        Self::Found
    }
}

/// Reads the frames of one direction.
#[derive(Debug)]
pub(crate) struct FrameScanner {
    sender: FrameSender,
    message: LeakScanner,
    control: LeakScanner,
    /// Offsets from which on bytes may be the beginning of a find, if they may.
    message_open: Option<u64>,
    control_open: Option<u64>,
    header: Vec<u8>,
    payload: Option<FramePayload>,
    offset: u64,
}

/// The payload of a frame, as far as it is still to come.
#[derive(Clone, Copy, Debug)]
struct FramePayload {
    left: u64,
    mask: [u8; 4],
    /// Bytes that were read, modulo four.
    phase: usize,
    is_control: bool,
    is_last: bool,
}

impl FrameScanner {
    pub(crate) fn new(sender: FrameSender, patterns: &LeakPatterns) -> Self {
        Self {
            sender,
            message: LeakScanner::new(patterns),
            control: LeakScanner::new(patterns),
            message_open: None,
            control_open: None,
            header: Vec::new(),
            payload: None,
            offset: 0,
        }
    }

    /// Reads the next bytes. Returns the offset from which on they are to be held back.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<u64, WebSocketCut> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let taken = match self.payload.take() {
                Some(payload) => self.read_payload(payload, rest)?,
                None => {
                    self.header.extend(rest.first());
                    if let Some(payload) = parse_header(&self.header, self.sender)? {
                        self.header.clear();
                        self.payload = Some(payload).filter(|payload| payload.left > 0);
                        if payload.left == 0 {
                            self.end_frame(payload);
                        }
                    }
                    1
                }
            };
            self.offset += taken as u64;
            rest = rest.get(taken..).unwrap_or_default();
        }
        let open_from = [self.message_open, self.control_open].into_iter().flatten().fold(self.offset, u64::min);
        match self.offset - open_from > MAX_HELD_BYTES {
            true => Err(WebSocketCut::Unreadable),
            false => Ok(open_from),
        }
    }

    fn read_payload(&mut self, mut payload: FramePayload, bytes: &[u8]) -> Result<usize, WebSocketCut> {
        let taken = usize::try_from(payload.left).unwrap_or(usize::MAX).min(bytes.len());
        let mask = payload.mask.iter().cycle().skip(payload.phase);
        let text: Vec<u8> = bytes.iter().take(taken).zip(mask).map(|(byte, mask)| byte ^ mask).collect();
        let scanner = if payload.is_control { &mut self.control } else { &mut self.message };
        let open_from = scanner.push(&text, self.offset)?;
        let open = Some(open_from).filter(|from| *from < self.offset + taken as u64);
        match payload.is_control {
            true => self.control_open = open,
            false => self.message_open = open,
        }
        payload.left -= taken as u64;
        payload.phase = (payload.phase + taken) % 4;
        match payload.left {
            0 => self.end_frame(payload),
            _ => self.payload = Some(payload),
        }
        Ok(taken)
    }

    fn end_frame(&mut self, payload: FramePayload) {
        if payload.is_control {
            self.control.start_again();
            self.control_open = None;
        } else if payload.is_last {
            self.message.start_again();
            self.message_open = None;
        }
    }
}

/// The payload that a header announces, once the header is complete.
fn parse_header(header: &[u8], sender: FrameSender) -> Result<Option<FramePayload>, WebSocketCut> {
    let [first, second, rest @ ..] = header else { return Ok(None) };
    let (opcode, is_masked) = (first & 0x0f, second & 0x80 != 0);
    let is_control = opcode >= 8;
    if first & 0x70 != 0 || !matches!(opcode, 0..=2 | 8..=10) || is_masked != (sender == FrameSender::Program) {
        return Err(WebSocketCut::Unreadable);
    }
    let (length_bytes, short) = match second & 0x7f {
        126 => (2, 0),
        127 => (8, 0),
        short => (0, u64::from(short)),
    };
    let Some((length, rest)) = rest.split_at_checked(length_bytes) else { return Ok(None) };
    let left = length.iter().fold(short, |sum, byte| sum << 8 | u64::from(*byte));
    let is_last = first & 0x80 != 0;
    if left > u64::MAX >> 1 || (is_control && (left > 125 || !is_last)) {
        return Err(WebSocketCut::Unreadable);
    }
    let mask = match (is_masked, rest) {
        (false, _) => [0; 4],
        (true, [a, b, c, d, ..]) => [*a, *b, *c, *d],
        (true, _) => return Ok(None),
    };
    Ok(Some(FramePayload { left, mask, phase: 0, is_control, is_last }))
}

/// Passes on what one end sends, to its end. `Ok` has the reason for which it was cut.
pub(crate) async fn pump<R, W>(mut from: R, mut to: W, mut scanner: FrameScanner) -> io::Result<Option<WebSocketCut>>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let (mut buffer, mut held, mut passed) = (vec![0; BUFFER_BYTES], Vec::new(), 0_u64);
    loop {
        let count = from.read(&mut buffer).await?;
        let Some(bytes) = buffer.get(..count).filter(|bytes| !bytes.is_empty()) else {
            // What is held back is the beginning of a message that never ends.
            to.shutdown().await?;
            return Ok(None);
        };
        let open_from = match scanner.push(bytes) {
            Ok(open_from) => open_from,
            Err(cut) => return Ok(Some(cut)),
        };
        held.extend_from_slice(bytes);
        let room = usize::try_from(open_from.saturating_sub(passed)).unwrap_or(usize::MAX).min(held.len());
        to.write_all(held.get(..room).unwrap_or_default()).await?;
        to.flush().await?;
        held.drain(..room);
        passed += room as u64;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{FrameScanner, FrameSender, WebSocketCut};
    use crate::leak_scanner::LeakPatterns;

    const SECRET: &str = "sk-live-0123456789abcdef";

    fn frame(opcode: u8, is_last: bool, mask: Option<[u8; 4]>, text: &[u8]) -> Vec<u8> {
        let mut frame = vec![opcode | u8::from(is_last) << 7];
        let flag = u8::from(mask.is_some()) << 7;
        match text.len() {
            short @ ..126 => frame.push(flag | u8::try_from(short).unwrap()),
            long => {
                frame.push(flag | 126);
                frame.extend_from_slice(&u16::try_from(long).unwrap().to_be_bytes());
            }
        }
        frame.extend(mask.into_iter().flatten());
        let mask = mask.unwrap_or_default();
        frame.extend(text.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        frame
    }

    /// Bytes that pass, of a stream in pieces of this size.
    fn scan(sender: FrameSender, bytes: &[u8], size: usize) -> (Vec<u8>, Result<(), WebSocketCut>) {
        let mut scanner = FrameScanner::new(sender, &LeakPatterns::new([SECRET]).unwrap());
        let mut passed = 0;
        for piece in bytes.chunks(size) {
            match scanner.push(piece) {
                Ok(open_from) => passed = usize::try_from(open_from).unwrap(),
                Err(cut) => return (bytes[..passed].to_vec(), Err(cut)),
            }
        }
        (bytes[..passed].to_vec(), Ok(()))
    }

    #[test]
    fn a_secret_is_found_across_fragments_and_never_passes() {
        let server = |parts: &[&[u8]]| -> Vec<u8> {
            let last = parts.len() - 1;
            let part = |(index, text): (usize, &&[u8])| {
                let fragment = frame(if index == 0 { 1 } else { 0 }, index == last, None, text);
                // A ping may stand between fragments.
                [fragment, frame(9, true, None, b"ping")].concat()
            };
            parts.iter().enumerate().flat_map(part).collect()
        };
        for cut in 1..SECRET.len() {
            let (head, tail) = SECRET.as_bytes().split_at(cut);
            let bytes = server(&[b"{\"a\": \"", head, tail, b"\"}"]);
            for size in [1, 3, 1000] {
                let (passed, result) = scan(FrameSender::Server, &bytes, size);
                assert_eq!(result, Err(WebSocketCut::Found), "{cut} {size}");
                let text = String::from_utf8_lossy(&passed).into_owned();
                assert!(!text.contains(&SECRET[..4]) && !text.contains("\"}"), "{text}");
            }
        }
        let ping = frame(9, true, None, SECRET.as_bytes());
        assert_eq!(scan(FrameSender::Server, &ping, 5).1, Err(WebSocketCut::Found));
    }

    #[test]
    fn masked_frames_are_read_too() {
        let text = format!("{}{SECRET}", "x".repeat(200));
        let bytes = frame(2, true, Some([1, 200, 3, 4]), text.as_bytes());
        for size in [1, 2, 7, 1000] {
            assert_eq!(scan(FrameSender::Program, &bytes, size).1, Err(WebSocketCut::Found), "{size}");
        }
    }

    #[test]
    fn a_whole_message_is_not_held_back() {
        let bytes = frame(1, true, None, b"the end of it is s");
        assert_eq!(scan(FrameSender::Server, &bytes, 1000), (bytes.clone(), Ok(())));
        let open = frame(1, false, None, b"the end of it is s");
        assert_eq!(scan(FrameSender::Server, &open, 1000).0, open[..open.len() - 1]);
        let empty = [frame(1, false, None, b""), frame(0, true, None, b"")].concat();
        assert_eq!(scan(FrameSender::Server, &empty, 1), (empty.clone(), Ok(())));
    }

    #[test]
    fn what_is_held_back_is_bounded() {
        for (sender, mask) in [(FrameSender::Server, None), (FrameSender::Program, Some([9, 8, 7, 6]))] {
            let open = frame(1, false, mask, &SECRET.as_bytes()[..3]);
            for filler in [frame(9, true, mask, &[b'x'; 125]), frame(0, false, mask, b"")] {
                let mut scanner = FrameScanner::new(sender, &LeakPatterns::new([SECRET]).unwrap());
                let (mut sent, mut held) = (open.len(), 0);
                assert!(scanner.push(&open).is_ok());
                let cut = loop {
                    match scanner.push(&filler) {
                        Ok(open_from) => held = sent + filler.len() - usize::try_from(open_from).unwrap(),
                        Err(cut) => break cut,
                    }
                    sent += filler.len();
                    assert!(sent < 8 << 20, "{held} bytes are held back");
                };
                assert_eq!(cut, WebSocketCut::Unreadable);
                assert!(held <= 1 << 20, "{held}");
            }
        }
    }

    #[test]
    fn a_frame_that_cannot_be_read_ends_it() {
        for bytes in [
            &[0xc1, 1, b'x'][..],
            &[0x83, 0],
            &[0x81, 0x81, 0, 0, 0, 0, 0],
            &[0x89, 126, 0, 200],
            &[0x09, 0],
            &[0x82, 127, 255, 0, 0, 0, 0, 0, 0, 0],
        ] {
            assert_eq!(scan(FrameSender::Server, bytes, 1).1, Err(WebSocketCut::Unreadable), "{bytes:?}");
        }
        assert_eq!(scan(FrameSender::Program, &[0x81, 1, b'x'], 1).1, Err(WebSocketCut::Unreadable));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn frames_pass_unchanged_and_no_bytes_make_it_panic(
            texts in proptest::collection::vec("[a-z\\\\%\"]{0,150}", 0..5),
            bytes: Vec<u8>,
            size in 1_usize..50,
        ) {
            let frames: Vec<u8> = texts.iter().flat_map(|text| frame(1, true, None, text.as_bytes())).collect();
            prop_assert_eq!(scan(FrameSender::Server, &frames, size), (frames.clone(), Ok(())));
            for sender in [FrameSender::Server, FrameSender::Program] {
                prop_assert!(scan(sender, &bytes, size).0.len() <= bytes.len());
            }
        }
    }
}
