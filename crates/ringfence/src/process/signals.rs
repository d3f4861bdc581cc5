//! Shutdown signals: cancel running work, so that the program ends in order.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Taken before the first call sets out.
#[derive(Debug)]
pub(crate) struct ShutdownSignals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
    /// A write past the limit for file sizes is an error reply, because its signal has a taker.
    _too_large: Signal,
}

/// Meaning of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShutdownSignalKind {
    /// To stop what is going on.
    Interrupt,
    /// To leave.
    Terminate,
}

impl ShutdownSignals {
    pub(crate) fn install() -> std::io::Result<Self> {
        const SIGXFSZ: i32 = 25;
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
            _too_large: signal(SignalKind::from_raw(SIGXFSZ))?,
        })
    }

    /// Waits for the next one.
    pub(crate) async fn next(&mut self) -> ShutdownSignalKind {
        tokio::select! {
            _ = self.interrupt.recv() => ShutdownSignalKind::Interrupt,
            _ = self.terminate.recv() => ShutdownSignalKind::Terminate,
            _ = self.hang_up.recv() => ShutdownSignalKind::Terminate,
        }
    }

    /// Ends with the runtime.
    pub(crate) async fn cancel_on_signal(mut self, cancel: CancellationToken) {
        self.next().await;
        cancel.cancel();
    }
}
