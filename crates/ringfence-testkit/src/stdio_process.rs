//! A process that speaks in lines on its standard input and output.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// The process, and our end of its pipes. It is killed with this value.
#[derive(Debug)]
pub struct StdioProcess {
    /// The process. Its standard error is as the command has it.
    pub child: Child,
    /// To a thread that writes: a process that does not read would hold up its client.
    outgoing: Option<Sender<Vec<u8>>>,
    incoming: Receiver<String>,
}

impl StdioProcess {
    /// Starts it.
    ///
    /// # Errors
    /// If it cannot be started.
    ///
    /// # Panics
    /// Never: the pipes are made with the process.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (mut input, output) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        let (outgoing, to_write) = channel::<Vec<u8>>();
        let (read, incoming) = channel();
        // Both end with the process, and the first also when there is nothing more to write.
        std::thread::spawn(move || to_write.iter().all(|bytes| input.write_all(&bytes).is_ok()));
        std::thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            lines.map(|line| read.send(line)).take_while(Result::is_ok).for_each(drop);
        });
        Ok(Self { child, outgoing: Some(outgoing), incoming })
    }

    /// Writes to its standard input. A process that is gone is noticed when nothing more comes from it.
    pub fn send(&self, bytes: impl Into<Vec<u8>>) {
        if let Some(outgoing) = &self.outgoing {
            let _ = outgoing.send(bytes.into());
        }
    }

    /// The next line of its standard output.
    ///
    /// # Errors
    /// If none comes in that time, or the process has closed it.
    pub fn receive(&self, within: Duration) -> Result<String, RecvTimeoutError> {
        self.incoming.recv_timeout(within)
    }

    /// The lines that have come since.
    pub fn received(&self) -> impl Iterator<Item = String> {
        self.incoming.try_iter()
    }

    /// The lines until it closes its standard output.
    pub fn rest(&self) -> impl Iterator<Item = String> {
        self.incoming.iter()
    }

    /// Closes its standard input, once everything is written.
    pub fn close_input(&mut self) {
        self.outgoing = None;
    }
}

impl Drop for StdioProcess {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
