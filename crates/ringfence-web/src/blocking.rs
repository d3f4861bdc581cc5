//! Blocking waits for the network, which end with their call.
//!
//! A call has a runtime of its own on its worker's thread. When the call is cancelled or its time is over, the work is
//! dropped, and its sockets are closed with it.

use std::time::Duration;

use ringfence_kernel::{CallContext, ToolError};
use tokio::runtime::Builder;
use tokio::time::sleep;

use crate::error::WebError;

/// Poll interval of the cancellation check.
const CANCEL_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Does the work, for at most this time.
pub(crate) fn block_on<T>(
    cx: &CallContext<'_>,
    within: Duration,
    work: impl Future<Output = Result<T, WebError>>,
) -> Result<T, WebError> {
    block_on_checked(|| cx.check(), within, work)
}

/// The same for work outside of a call. `check` fails once it is cancelled.
pub(crate) fn block_on_checked<T>(
    check: impl Fn() -> Result<(), ToolError>,
    within: Duration,
    work: impl Future<Output = Result<T, WebError>>,
) -> Result<T, WebError> {
    let runtime = Builder::new_current_thread().enable_io().enable_time().build().map_err(WebError::Runtime)?;
    let result = runtime.block_on(async {
        tokio::select! {
            biased;
            error = until_cancelled(check) => Err(error),
            result = work => result,
            () = sleep(within) => Err(WebError::Timeout("the request", within.as_secs_f64())),
        }
    });
    // A pending DNS lookup does not block the caller.
    runtime.shutdown_background();
    result
}

/// Resolves when the work is cancelled.
async fn until_cancelled(check: impl Fn() -> Result<(), ToolError>) -> WebError {
    loop {
        if let Err(stopped) = check() {
            return WebError::Tool(stopped);
        }
        sleep(CANCEL_POLL_INTERVAL).await;
    }
}
