//! Connection of a viewer, the writer or a controller of a run: its role, and what waits to be sent.
//!
//! What waits has a bound. Who is slower than the program gets the whole screen again when they have read what was sent, and
//! not the output between; who reads nothing while the program writes on is dropped.
//!
//! Not here: who may type, and the sockets' thread (`attach_server.rs`).

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use ringfence_sandbox::TerminalSize;

use crate::process::attach::protocol::{
    AttachFrame, AttachFrameDecoder, AttachFrameError, MAX_OUTPUT_BYTES, MAX_REQUEST_BYTES,
};

/// Most bytes of a screen that wait for one connection.
const MAX_QUEUED: usize = 1 << 20;

/// Most bytes of output that a viewer may miss before they are dropped.
const MAX_SKIPPED: usize = 64 << 20;

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerState {
    /// They said nothing yet.
    Greeting,
    Control,
    Viewer,
    /// They want to type, which is not recorded yet.
    WaitingWriter,
    Writer,
}

/// A connection to a run.
#[derive(Debug)]
pub(crate) struct AttachPeer {
    pub(crate) stream: Arc<UnixStream>,
    pub(crate) state: PeerState,
    pub(crate) person: String,
    pub(crate) size: Option<TerminalSize>,
    decoder: AttachFrameDecoder,
    queue: VecDeque<Vec<u8>>,
    /// Bytes of the first frame that are sent.
    sent: usize,
    queued: usize,
    /// The screen is sent when nothing else waits.
    wants_screen: bool,
    /// Bytes of output that they missed since they read something.
    skipped: usize,
    /// The connection ends when everything is sent.
    is_closing: bool,
    is_gone: bool,
}

impl AttachPeer {
    pub(crate) fn new(stream: UnixStream) -> Self {
        Self {
            stream: Arc::new(stream),
            state: PeerState::Greeting,
            person: String::new(),
            size: None,
            decoder: AttachFrameDecoder::new(MAX_REQUEST_BYTES),
            queue: VecDeque::new(),
            sent: 0,
            queued: 0,
            wants_screen: false,
            skipped: 0,
            is_closing: false,
            is_gone: false,
        }
    }

    /// Whether they see the screen.
    pub(crate) fn sees_screen(&self) -> bool {
        matches!(self.state, PeerState::Viewer | PeerState::Writer)
    }

    /// Whether what they send is read.
    pub(crate) fn is_open(&self) -> bool {
        !self.is_closing && !self.is_gone
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// Whether there is something to be sent.
    pub(crate) fn has_output(&self) -> bool {
        !self.queue.is_empty() || self.wants_screen
    }

    /// Sends a frame after those that wait.
    pub(crate) fn send(&mut self, frame: &AttachFrame) {
        let bytes = frame.encode();
        self.queued += bytes.len();
        self.queue.push_back(bytes);
    }

    /// Sends the whole screen, in place of output that waits.
    pub(crate) fn send_screen(&mut self) {
        self.wants_screen = true;
    }

    /// Sends output of the program.
    pub(crate) fn send_output(&mut self, bytes: &[u8]) {
        if self.wants_screen {
            return self.skip(bytes.len());
        }
        bytes.chunks(MAX_OUTPUT_BYTES).for_each(|chunk| self.send(&AttachFrame::Output(chunk.to_vec())));
        if self.queued > MAX_QUEUED {
            // The rest of a frame that is partly sent belongs to it.
            self.queue.truncate(usize::from(self.sent > 0));
            let left = self.queue.iter().map(Vec::len).sum::<usize>().saturating_sub(self.sent);
            self.skip(self.queued.saturating_sub(left));
            self.queued = left;
            self.send_screen();
        }
    }

    fn skip(&mut self, bytes: usize) {
        self.skipped = self.skipped.saturating_add(bytes);
        self.is_gone |= self.skipped > MAX_SKIPPED;
    }

    /// Sends the reason, and ends the connection.
    pub(crate) fn refuse(&mut self, reason: &str) {
        self.send(&AttachFrame::Refused(reason.to_owned()));
        self.is_closing = true;
    }

    /// Sends that the run ended, and ends the connection.
    pub(crate) fn end(&mut self, exit_code: Option<u8>) {
        if self.sees_screen() {
            self.send(&AttachFrame::End(exit_code));
        }
        self.is_closing = true;
    }

    /// Writes what the connection takes. `screen` draws the screen, if this is a moment for it.
    pub(crate) fn write(&mut self, screen: impl Fn() -> Option<Vec<u8>>) {
        loop {
            if self.queue.is_empty() && self.wants_screen {
                let Some(screen) = screen() else { return };
                self.wants_screen = false;
                screen.chunks(MAX_OUTPUT_BYTES).for_each(|chunk| self.send(&AttachFrame::Output(chunk.to_vec())));
            }
            let Some(first) = self.queue.front() else { break };
            match (&*self.stream).write(first.get(self.sent..).unwrap_or_default()) {
                Ok(count) => {
                    self.skipped = 0;
                    self.sent += count;
                    self.queued = self.queued.saturating_sub(count);
                    if self.sent >= first.len() {
                        self.queue.pop_front();
                        self.sent = 0;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    self.is_gone = true;
                    return;
                }
            }
        }
        self.is_gone |= self.is_closing;
    }

    /// Reads once what was sent to us.
    pub(crate) fn read(&mut self) {
        let mut bytes = [0; 16 << 10];
        match (&*self.stream).read(&mut bytes) {
            Ok(0) => self.is_gone = true,
            Ok(count) => self.decoder.push(bytes.get(..count).unwrap_or_default()),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(_) => self.is_gone = true,
        }
    }

    /// The next frame that was read. One that cannot be understood ends the connection.
    pub(crate) fn next_frame(&mut self) -> Option<AttachFrame> {
        if !self.is_open() {
            return None;
        }
        match self.decoder.next_frame() {
            Ok(frame) => frame,
            Err(error @ (AttachFrameError::TooLong | AttachFrameError::Malformed)) => {
                self.refuse(&error.to_string());
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The other end of a connection.
    struct TestReader {
        stream: UnixStream,
        decoder: AttachFrameDecoder,
    }

    impl TestReader {
        /// Everything that came.
        fn received(&mut self) -> Vec<AttachFrame> {
            let mut bytes = [0; 1 << 16];
            while let Ok(count @ 1..) = self.stream.read(&mut bytes) {
                self.decoder.push(&bytes[..count]);
            }
            std::iter::from_fn(|| self.decoder.next_frame().unwrap()).collect()
        }
    }

    fn pair() -> (AttachPeer, TestReader) {
        let (ours, stream) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        stream.set_nonblocking(true).unwrap();
        let decoder = AttachFrameDecoder::new(usize::MAX);
        (AttachPeer { state: PeerState::Viewer, ..AttachPeer::new(ours) }, TestReader { stream, decoder })
    }

    #[test]
    fn a_slow_reader_gets_the_screen_in_place_of_what_it_missed() {
        let (mut peer, mut theirs) = pair();
        let screen = || Some(b"THE SCREEN".to_vec());
        let line = [b'x'; 1000];
        for _ in 0..10_000 {
            peer.send_output(&line);
            peer.write(screen);
            assert!(peer.queued <= MAX_QUEUED + MAX_OUTPUT_BYTES);
        }
        assert!(!peer.is_gone());
        // What is half sent is whole, and then there is the screen.
        let mut seen = theirs.received();
        while peer.has_output() {
            peer.write(screen);
            seen.extend(theirs.received());
        }
        let [screen_frame, line_frame] = [&b"THE SCREEN"[..], &line].map(|bytes| AttachFrame::Output(bytes.to_vec()));
        assert!(seen.iter().all(|frame| *frame == screen_frame || *frame == line_frame));
        assert_eq!(seen.iter().filter(|frame| **frame == screen_frame).count(), 1);
        assert!(seen.len() < 10_000, "{}", seen.len());
        peer.send_output(b"after");
        peer.write(screen);
        assert_eq!(theirs.received(), [AttachFrame::Output(b"after".to_vec())]);
    }

    #[test]
    fn a_reader_that_reads_nothing_is_dropped() {
        let (mut peer, _theirs) = pair();
        let chunk = vec![b'x'; 1 << 20];
        let mut written = 0;
        while !peer.is_gone() {
            peer.send_output(&chunk);
            peer.write(|| Some(chunk.clone()));
            written += chunk.len();
            assert!(written <= MAX_SKIPPED + 8 * MAX_QUEUED);
        }
        // Headers of frames count too.
        assert!(written > MAX_SKIPPED / 2);
    }

    #[test]
    fn what_cannot_be_understood_is_refused() {
        let (mut peer, mut theirs) = pair();
        theirs.stream.write_all(b"i\xff\xff\xff\xff").unwrap();
        peer.read();
        assert_eq!(peer.next_frame(), None);
        peer.write(|| None);
        assert!(peer.is_gone());
        assert_eq!(theirs.received(), [AttachFrame::Refused("the frame is too long".to_owned())]);
    }
}
