//! MCP progress and log notifications of running calls.
//!
//! Nothing here holds the call up. A piece that cannot be sent in time is left out, since the reply has the whole, and no
//! piece comes after the reply.

#![expect(deprecated, reason = "older clients have no other log")]

use std::pin::pin;
use std::time::Duration;

use ringfence_kernel::{ProgressListener, ProgressUpdate};
use rmcp::RoleServer;
use rmcp::model::{LoggingLevel, LoggingMessageNotificationParam, ProgressNotificationParam, ProgressToken};
use rmcp::service::Peer;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::{Instant, interval_at, timeout};

/// A call that says nothing by itself is heard of so often.
const HEARTBEAT: Duration = Duration::from_secs(2);

/// Time to send queued notifications when the call is over.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Pieces that wait to be sent.
const QUEUE_LENGTH: usize = 64;

/// Bytes of a piece that are sent.
const MAX_ITEM_BYTES: usize = 1000;

/// Sender of a call's progress notifications.
#[derive(Clone, Debug)]
pub(super) struct ProgressSender(mpsc::Sender<ProgressItem>);

#[derive(Debug)]
enum ProgressItem {
    /// From the call itself.
    Output(String),
    /// From us, about the call.
    Notice(String),
}

impl ProgressSender {
    /// Says what the user should know while they wait.
    pub(super) fn notice(&self, text: String) {
        // There is room, or no listener.
        let _ = self.0.try_send(ProgressItem::Notice(text));
    }
}

impl ProgressListener for ProgressSender {
    fn on_progress(&self, progress: &ProgressUpdate<'_>) {
        let end = progress.text.floor_char_boundary(MAX_ITEM_BYTES);
        let _ = self.0.try_send(ProgressItem::Output(format!("{}: {}", progress.stream, &progress.text[..end])));
    }
}

/// Sends the news of one call.
#[derive(Debug)]
pub(super) struct ProgressNotifier {
    peer: Peer<RoleServer>,
    /// The token of a client that requested progress.
    token: Option<ProgressToken>,
    /// The least that it wants in its log, if anything.
    level: Option<LoggingLevel>,
    items: mpsc::Receiver<ProgressItem>,
    /// Progress must go up.
    sent: u32,
}

impl ProgressNotifier {
    pub(super) fn new(
        peer: Peer<RoleServer>,
        token: Option<ProgressToken>,
        level: Option<LoggingLevel>,
    ) -> (ProgressSender, Self) {
        let (news, pieces) = mpsc::channel(QUEUE_LENGTH);
        (ProgressSender(news), Self { peer, token, level, items: pieces, sent: 0 })
    }

    /// Waits for a piece of work, and tells meanwhile.
    pub(super) async fn run_with_progress<T>(&mut self, work: impl Future<Output = T>) -> T {
        let started = Instant::now();
        let mut work = pin!(work);
        let mut beat = interval_at(started + HEARTBEAT, HEARTBEAT);
        loop {
            let piece = tokio::select! {
                biased;
                done = &mut work => return done,
                Some(piece) = self.items.recv() => piece,
                // A new timer wakes the runtime, so it is set only for a client that gets progress.
                _ = beat.tick(), if self.token.is_some() => ProgressItem::Output(format!("running for {} s", started.elapsed().as_secs())),
            };
            beat.reset();
            let sending = self.send_item(piece);
            let mut sending = pin!(sending);
            tokio::select! {
                biased;
                done = &mut work => {
                    // A notification that was begun is sent before the reply, or not at all.
                    let _ = timeout(DRAIN_TIMEOUT, sending).await;
                    return done;
                }
                () = &mut sending => {}
            }
        }
    }

    /// Puts a line into the client's log.
    pub(super) async fn log(&self, level: LoggingLevel, text: &str) {
        if self.level.is_some_and(|least| level as u8 >= least as u8) {
            let message = LoggingMessageNotificationParam::new(level, json!(text)).with_logger("ringfence");
            // A client that is gone hears nothing, and its call ends by itself.
            let _ = self.peer.notify_logging_message(message).await;
        }
    }

    async fn send_item(&mut self, piece: ProgressItem) {
        let (text, notice) = match piece {
            ProgressItem::Output(text) => (text, false),
            ProgressItem::Notice(text) => (text, true),
        };
        if notice {
            self.log(LoggingLevel::Warning, &text).await;
        }
        let Some(token) = self.token.clone() else { return };
        self.sent += 1;
        let progress = ProgressNotificationParam::new(token, f64::from(self.sent)).with_message(text);
        let _ = self.peer.notify_progress(progress).await;
    }
}
