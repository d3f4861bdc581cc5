//! The signals that would end the program: they cancel what it does instead, so that it ends in order.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Taken before the first call sets out.
#[derive(Debug)]
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
    /// A write past the limit for file sizes is an error reply, because its signal has a taker.
    _too_large: Signal,
}

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Came {
    /// To stop what is going on.
    Interrupt,
    /// To leave.
    End,
}

impl Signals {
    pub(crate) fn take() -> std::io::Result<Self> {
        const SIGXFSZ: i32 = 25;
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
            _too_large: signal(SignalKind::from_raw(SIGXFSZ))?,
        })
    }

    /// Waits for the next one.
    pub(crate) async fn next(&mut self) -> Came {
        tokio::select! {
            _ = self.interrupt.recv() => Came::Interrupt,
            _ = self.terminate.recv() => Came::End,
            _ = self.hang_up.recv() => Came::End,
        }
    }

    /// Ends with the runtime.
    pub(crate) async fn cancel(mut self, cancel: CancellationToken) {
        self.next().await;
        cancel.cancel();
    }
}
