//! Request body behind a tripwire: it ends with an error when it contains a placeholder, so that no server gets it whole.
//!
//! Not here: heads of requests (`request_guard.rs`). Compressed request bodies are not decoded.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};

use crate::leak_scanner::{LeakPatterns, LeakScanner};
use crate::request_guard::placeholder_header;

/// Whether a placeholder was found in a body.
#[derive(Clone, Debug, Default)]
pub(crate) struct BodyTripwire(Arc<AtomicBool>);

impl BodyTripwire {
    pub(crate) fn is_tripped(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// Called once when a placeholder is found, with the part of the request.
pub(crate) type OnTripwire = Box<dyn Fn(&str) + Send>;

/// The body of a request of a program.
pub(crate) struct GuardedBody {
    /// What was read of it before.
    begun: VecDeque<Bytes>,
    inner: Incoming,
    scanner: LeakScanner,
    patterns: LeakPatterns,
    offset: u64,
    tripwire: BodyTripwire,
    on_tripwire: OnTripwire,
}

impl fmt::Debug for GuardedBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuardedBody").field("tripwire", &self.tripwire).finish_non_exhaustive()
    }
}

impl GuardedBody {
    pub(crate) fn new(inner: Incoming, placeholders: &LeakPatterns, on_tripwire: OnTripwire) -> Self {
        let (scanner, patterns) = (LeakScanner::new(placeholders), placeholders.clone());
        let begun = VecDeque::new();
        Self { begun, inner, scanner, patterns, offset: 0, tripwire: BodyTripwire::default(), on_tripwire }
    }

    /// The same, behind pieces that were read already.
    pub(crate) fn behind(self, begun: Vec<Bytes>) -> Self {
        Self { begun: begun.into(), ..self }
    }

    pub(crate) fn tripwire(&self) -> BodyTripwire {
        self.tripwire.clone()
    }

    fn has_placeholder(&mut self, frame: &Frame<Bytes>) -> bool {
        if let Some(trailers) = frame.trailers_ref() {
            return placeholder_header(trailers, &self.patterns).is_some();
        }
        let Some(piece) = frame.data_ref() else { return false };
        let found = self.scanner.push(piece, self.offset).is_err();
        self.offset += piece.len() as u64;
        found
    }
}

impl Body for GuardedBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let refused =
            || Poll::Ready(Some(Err(io::Error::other("the request body has the placeholder of a credential"))));
        if self.tripwire.is_tripped() {
            return refused();
        }
        let frame = match self.begun.pop_front() {
            Some(piece) => Frame::data(piece),
            None => match ready!(Pin::new(&mut self.inner).poll_frame(cx)) {
                Some(frame) => frame.map_err(io::Error::other)?,
                None => return Poll::Ready(None),
            },
        };
        if self.has_placeholder(&frame) {
            self.tripwire.0.store(true, Ordering::SeqCst);
            (self.on_tripwire)("body");
            return refused();
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.begun.is_empty() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let begun: u64 = self.begun.iter().map(|piece| piece.len() as u64).sum();
        let rest = self.inner.size_hint();
        let mut whole = SizeHint::new();
        whole.set_lower(begun + rest.lower());
        if let Some(upper) = rest.upper() {
            whole.set_upper(begun + upper);
        }
        whole
    }
}
