//! `ringfence acp`: the agent for editors, over the Agent Client Protocol on standard input and output.
//!
//! Standard output has messages of the protocol and nothing else. It ends when its input closes or a signal comes: then
//! every prompt is cancelled, and waited for a moment.
//!
//! Not here: the agent itself. A session is made as `ringfence agent` makes one, with the editor as its front and the
//! one who is asked.

mod approve;
mod diff;
#[cfg(test)]
mod fuzz;
mod peer;
mod screen;
mod server;
mod words;

use std::fmt;
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use ringfence_sandbox::bound_memory;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use self::peer::{Client, lines};
use self::server::Server;
use crate::agent::ModelOptions;
use crate::cli::Failure;
use crate::config::{Environment, Settings};
use crate::signals::Signals;

/// How long prompts that were given up are waited for.
const LAST: Duration = Duration::from_secs(6);

#[derive(Debug, Args)]
pub(crate) struct AcpOptions {
    #[command(flatten)]
    model: ModelOptions,
}

/// The two ends of a connection.
pub(crate) struct Pipes {
    pub(crate) input: Box<dyn Read + Send>,
    pub(crate) output: Box<dyn Write + Send>,
}

impl fmt::Debug for Pipes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pipes")
    }
}

/// Serves one editor until it closes its side.
pub(crate) fn acp(
    mut settings: Settings,
    environment: &Environment,
    options: AcpOptions,
    pipes: Pipes,
) -> Result<(), Failure> {
    bound_memory();
    options.model.choose(&mut settings);
    let Pipes { input, output } = pipes;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::Runtime)?;
    let served = runtime.block_on(async {
        let stop = CancellationToken::new();
        if let Ok(signals) = Signals::take() {
            tokio::spawn(signals.cancel(stop.clone()));
        }
        let client = Client::new(output, stop.clone());
        let server = Arc::new(Server::new(settings, environment.clone(), client.clone()));
        let mut lines = lines(input).map_err(Failure::Runtime)?;
        let mut tasks = JoinSet::new();
        loop {
            tokio::select! {
                line = lines.recv() => match line {
                    Some(line) => {
                        if let Some(message) = client.read(&line) {
                            server.take(message, &mut tasks);
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
        let _ = timeout(LAST, all_over).await;
        Ok(())
    });
    // A worker that a file system holds must not hold the program too.
    runtime.shutdown_background();
    served
}
