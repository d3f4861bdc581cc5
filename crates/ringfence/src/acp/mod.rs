//! `ringfence acp`: Agent Client Protocol server for editors, on standard input and output.
//!
//! Standard output has messages of the protocol and nothing else. The server ends when its input closes or a signal
//! comes: then every prompt is cancelled, with a short grace time.
//!
//! Not here: the agent itself. A session is made as `ringfence agent` makes one, with the editor as its front and its
//! approver.

mod connection;
mod diff;
#[cfg(test)]
mod fuzz;
mod permission;
mod server;
mod types;
mod updates;

use std::fmt;
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use ringfence_sandbox::limit_malloc_arenas;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use self::connection::{AcpClientConnection, spawn_line_reader};
use self::server::AcpServer;
use crate::agent::{AgentError, ModelOptions};
use crate::config::{AppSettings, Environment};
use crate::process::signals::ShutdownSignals;

/// Grace time of cancelled prompts.
const CANCEL_GRACE: Duration = Duration::from_secs(6);

#[derive(Debug, Args)]
pub(crate) struct AcpOptions {
    #[command(flatten)]
    model: ModelOptions,
}

/// The two ends of a connection.
pub(crate) struct AcpStreams {
    pub(crate) input: Box<dyn Read + Send>,
    pub(crate) output: Box<dyn Write + Send>,
}

impl fmt::Debug for AcpStreams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AcpStreams")
    }
}

/// Serves one editor until it closes its side.
pub(crate) fn serve_acp(
    mut settings: AppSettings,
    environment: &Environment,
    options: AcpOptions,
    pipes: AcpStreams,
) -> Result<(), AgentError> {
    limit_malloc_arenas();
    options.model.apply_to(&mut settings);
    let AcpStreams { input, output } = pipes;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(AgentError::Runtime)?;
    let served = runtime.block_on(async {
        let stop = CancellationToken::new();
        if let Ok(signals) = ShutdownSignals::install() {
            tokio::spawn(signals.cancel_on_signal(stop.clone()));
        }
        let client = AcpClientConnection::new(output, stop.clone());
        let server = Arc::new(AcpServer::new(settings, environment.clone(), client.clone()));
        let mut lines = spawn_line_reader(input).map_err(AgentError::Runtime)?;
        let mut tasks = JoinSet::new();
        loop {
            tokio::select! {
                line = lines.recv() => match line {
                    Some(line) => {
                        if let Some(message) = client.read(&line) {
                            server.handle(message, &mut tasks);
                        }
                    }
                    None => break,
                },
                Some(_) = tasks.join_next() => {}
                () = stop.cancelled() => break,
            }
        }
        server.cancel_all();
        let all_over = async { while tasks.join_next().await.is_some() {} };
        let _ = timeout(CANCEL_GRACE, all_over).await;
        Ok(())
    });
    // A worker that a file system holds must not hold the program too.
    runtime.shutdown_background();
    served
}
