//! Framed protocol between a running wrapped program and those who attach to it.
//!
//! A frame is a byte for its kind, the length of its payload as four bytes (big endian), and the payload: JSON, or the bytes
//! that are typed or shown. A frame that is longer than the reader takes ends the connection.
//!
//! Not here: sockets (`attach_directory.rs`), and who may type (`cli/wrapped_run`).

use ringfence_sandbox::TerminalSize;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Version of the protocol. A run is served by the program that started it, which may be another version than the caller's.
pub(crate) const PROTOCOL_VERSION: u32 = 1;

/// Most bytes of a payload that a run takes.
pub(crate) const MAX_REQUEST_BYTES: usize = 64 << 10;

/// Most bytes of a payload that those who attach take.
pub(crate) const MAX_REPLY_BYTES: usize = 16 << 20;

/// Most bytes of the screen in a frame.
pub(crate) const MAX_OUTPUT_BYTES: usize = 32 << 10;

const HEADER_BYTES: usize = 5;

/// Role of a connection to a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AttachRole {
    /// Sees the screen, and types.
    Writer,
    /// Sees the screen.
    Viewer,
    /// Makes requests.
    Control,
}

/// The first frame of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AttachHello {
    pub(crate) version: u32,
    pub(crate) role: AttachRole,
    /// Name of the person, for records.
    pub(crate) person: String,
    /// Size of their terminal, if they have one.
    pub(crate) size: Option<TerminalSize>,
}

/// What the reader of this is from now on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RoleNotice {
    pub(crate) role: AttachRole,
    /// Who types.
    pub(crate) writer: Option<String>,
}

/// A request of who controls a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RunRequest {
    /// Only the reply is wanted.
    Status,
    /// Ask the program to end; a second time soon after it, end it.
    Stop,
    /// Make a checkpoint.
    Checkpoint,
}

/// A running wrapped program, as a reply.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RunStatus {
    pub(crate) layer: String,
    /// The session of the run in the audit log.
    pub(crate) session: String,
    pub(crate) program: String,
    pub(crate) profile: String,
    /// Whether it goes on without a person's terminal.
    pub(crate) is_detached: bool,
    pub(crate) makes_checkpoints: bool,
    /// Who types from elsewhere.
    pub(crate) writer: Option<String>,
    pub(crate) viewers: usize,
    pub(crate) size: TerminalSize,
    /// The lines on its screen, without trailing spaces.
    pub(crate) screen: Vec<String>,
}

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AttachFrame {
    Hello(AttachHello),
    /// Keys for the program.
    Input(Vec<u8>),
    /// The size of the person's terminal. The screen is sent again.
    Size(TerminalSize),
    Request(RunRequest),
    /// The writer types no more, and only views.
    Leave,
    Role(RoleNotice),
    /// Bytes for the person's terminal.
    Output(Vec<u8>),
    Reply(RunStatus),
    /// The reason for which the connection ends.
    Refused(String),
    /// The run ended, with this exit code if there is one.
    End(Option<u8>),
}

/// A frame that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AttachFrameError {
    #[error("the frame is too long")]
    TooLong,
    #[error("the frame is malformed")]
    Malformed,
}

impl AttachFrame {
    /// The bytes of the frame.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (kind, payload) = match self {
            Self::Hello(hello) => (b'h', json(hello)),
            Self::Input(bytes) => (b'i', bytes.clone()),
            Self::Size(size) => (b's', json(size)),
            Self::Request(request) => (b'q', json(request)),
            Self::Leave => (b'l', Vec::new()),
            Self::Role(notice) => (b'r', json(notice)),
            Self::Output(bytes) => (b'o', bytes.clone()),
            Self::Reply(status) => (b'a', json(status)),
            Self::Refused(reason) => (b'x', json(reason)),
            Self::End(exit_code) => (b'e', json(exit_code)),
        };
        let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        let mut bytes = Vec::with_capacity(HEADER_BYTES + payload.len());
        bytes.push(kind);
        bytes.extend(length.to_be_bytes());
        bytes.extend(payload);
        bytes
    }

    fn decode(kind: u8, payload: &[u8]) -> Result<Self, AttachFrameError> {
        Ok(match kind {
            b'h' => Self::Hello(parse(payload)?),
            b'i' => Self::Input(payload.to_vec()),
            b's' => Self::Size(parse(payload)?),
            b'q' => Self::Request(parse(payload)?),
            b'l' => Self::Leave,
            b'r' => Self::Role(parse(payload)?),
            b'o' => Self::Output(payload.to_vec()),
            b'a' => Self::Reply(parse(payload)?),
            b'x' => Self::Refused(parse(payload)?),
            b'e' => Self::End(parse(payload)?),
            _ => return Err(AttachFrameError::Malformed),
        })
    }
}

fn json<T: Serialize>(value: &T) -> Vec<u8> {
    // These types have text keys only, and so a form in JSON.
    serde_json::to_vec(value).unwrap_or_default()
}

fn parse<T: DeserializeOwned>(payload: &[u8]) -> Result<T, AttachFrameError> {
    serde_json::from_slice(payload).map_err(|_| AttachFrameError::Malformed)
}

/// Finds the frames in a stream of bytes.
#[derive(Debug)]
pub(crate) struct AttachFrameDecoder {
    buffer: Vec<u8>,
    most: usize,
}

impl AttachFrameDecoder {
    /// For payloads of at most this many bytes.
    pub(crate) fn new(most: usize) -> Self {
        Self { buffer: Vec::new(), most }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next frame, if all of it is there.
    pub(crate) fn next_frame(&mut self) -> Result<Option<AttachFrame>, AttachFrameError> {
        let Some((&[kind, a, b, c, d], rest)) = self.buffer.split_first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
        if length > self.most {
            return Err(AttachFrameError::TooLong);
        }
        let Some(payload) = rest.get(..length) else { return Ok(None) };
        let frame = AttachFrame::decode(kind, payload)?;
        self.buffer.drain(..HEADER_BYTES + length);
        Ok(Some(frame))
    }
}

#[cfg(test)]
mod fuzz {
    use ringfence_fuzz::FuzzTarget;

    use super::AttachFrameDecoder;

    #[test]
    fn frames_are_the_same_however_the_stream_is_cut() {
        FuzzTarget::new("attach-frames", env!("CARGO_MANIFEST_DIR")).check(|bytes| {
            let decode = |cut: usize| {
                let mut decoder = AttachFrameDecoder::new(1 << 10);
                let mut found = Vec::new();
                for chunk in bytes.chunks(cut) {
                    decoder.push(chunk);
                    loop {
                        match decoder.next_frame() {
                            Ok(Some(frame)) => {
                                // What was read is what would be written.
                                let mut again = AttachFrameDecoder::new(usize::MAX);
                                again.push(&frame.encode());
                                assert_eq!(again.next_frame(), Ok(Some(frame.clone())));
                                found.push(format!("{frame:?}"));
                            }
                            Ok(None) => break,
                            Err(error) => {
                                found.push(error.to_string());
                                return found;
                            }
                        }
                    }
                }
                found
            };
            let whole = decode(bytes.len().max(1));
            assert_eq!(decode(1), whole);
            whole.iter().map(|frame| frame.get(..4).unwrap_or_default().to_owned()).collect::<Vec<_>>()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames() -> Vec<AttachFrame> {
        let size = TerminalSize { rows: 24, columns: 80 };
        vec![
            AttachFrame::Hello(AttachHello {
                version: PROTOCOL_VERSION,
                role: AttachRole::Writer,
                person: "ana".to_owned(),
                size: Some(size),
            }),
            AttachFrame::Input(b"\x1b[A\0\xff".to_vec()),
            AttachFrame::Size(size),
            AttachFrame::Request(RunRequest::Stop),
            AttachFrame::Leave,
            AttachFrame::Role(RoleNotice { role: AttachRole::Viewer, writer: None }),
            AttachFrame::Output(Vec::new()),
            AttachFrame::Reply(RunStatus { screen: vec!["ä".to_owned()], ..RunStatus::default() }),
            AttachFrame::Refused("no".to_owned()),
            AttachFrame::End(Some(7)),
            AttachFrame::End(None),
        ]
    }

    #[test]
    fn frames_are_found_however_the_stream_is_cut() {
        let bytes: Vec<u8> = frames().iter().flat_map(AttachFrame::encode).collect();
        for cut in [1, 2, 5, 7, bytes.len()] {
            let mut decoder = AttachFrameDecoder::new(MAX_REQUEST_BYTES);
            let mut found = Vec::new();
            for chunk in bytes.chunks(cut) {
                decoder.push(chunk);
                while let Some(frame) = decoder.next_frame().unwrap() {
                    found.push(frame);
                }
            }
            assert_eq!(found, frames(), "{cut}");
        }
    }

    #[test]
    fn a_frame_that_is_too_long_or_malformed_is_an_error() {
        let check = |bytes: &[u8], expected: AttachFrameError| {
            let mut decoder = AttachFrameDecoder::new(16);
            decoder.push(bytes);
            assert_eq!(decoder.next_frame(), Err(expected), "{bytes:?}");
        };
        check(b"i\0\0\0\x11", AttachFrameError::TooLong);
        check(b"i\xff\xff\xff\xff", AttachFrameError::TooLong);
        check(b"?\0\0\0\0", AttachFrameError::Malformed);
        check(b"s\0\0\0\x02{}", AttachFrameError::Malformed);
        check(b"q\0\0\0\x06\"what\"", AttachFrameError::Malformed);
    }
}
