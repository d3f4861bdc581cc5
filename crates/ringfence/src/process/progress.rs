//! Progress indicator on the terminal for operations that take longer than a second.
//!
//! It is one line on standard error: the operation, and its duration. It disappears when the operation ends, and while
//! an approval dialog is shown. Where standard error is not a terminal, nothing is printed.

use std::io::{self, IsTerminal as _, Stderr, Write};
use std::sync::LazyLock;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ringfence_kernel::sync::Mutex;

const SECOND: Duration = Duration::from_secs(1);

/// So much of a name leaves the line shorter than any terminal is wide.
const MAX_NAME_CHARS: usize = 32;

/// The one progress line of the process's terminal.
static PROGRESS_LINE: LazyLock<Mutex<ProgressLine<Stderr>>> =
    LazyLock::new(|| Mutex::new(ProgressLine::new(io::stderr())));

/// Something is at work for as long as this is there.
#[derive(Debug)]
pub(crate) struct ProgressIndicator {
    /// Dropped when the work is over.
    work: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ProgressIndicator {
    pub(crate) fn start(what: &str) -> Self {
        if !io::stderr().is_terminal() {
            return Self { work: None, thread: None };
        }
        let (work, over) = channel();
        let (what, started) = (what.chars().take(MAX_NAME_CHARS).collect::<String>(), Instant::now());
        let tell = move || {
            while over.recv_timeout(SECOND) == Err(RecvTimeoutError::Timeout) {
                // A terminal that fails to print the line is ignored.
                let _ = PROGRESS_LINE.lock().show(&what, started.elapsed());
            }
            let _ = PROGRESS_LINE.lock().clear();
        };
        // Without a thread, nothing is printed.
        let thread = std::thread::Builder::new().name("waiting".to_owned()).spawn(tell).ok();
        Self { work: Some(work), thread }
    }
}

impl Drop for ProgressIndicator {
    fn drop(&mut self) {
        self.work.take();
        if let Some(thread) = self.thread.take() {
            // It has no value, and a panic of it is not propagated.
            let _ = thread.join();
        }
    }
}

/// Hides the progress line while it exists, for a prompt.
#[derive(Debug)]
pub(crate) struct ProgressPause(());

impl ProgressPause {
    pub(crate) fn new() -> Self {
        let _ = PROGRESS_LINE.lock().pause();
        Self(())
    }
}

impl Drop for ProgressPause {
    fn drop(&mut self) {
        PROGRESS_LINE.lock().paused -= 1;
    }
}

#[derive(Debug)]
struct ProgressLine<W> {
    out: W,
    /// Width of the shown text.
    shown: usize,
    paused: usize,
}

impl<W: Write> ProgressLine<W> {
    fn new(out: W) -> Self {
        Self { out, shown: 0, paused: 0 }
    }

    fn show(&mut self, what: &str, time: Duration) -> io::Result<()> {
        if self.paused > 0 {
            return Ok(());
        }
        let text = format!("{what}: {} s, Ctrl-C to cancel", time.as_secs());
        write!(self.out, "\r{text:<width$}", width = self.shown)?;
        self.shown = text.chars().count();
        self.out.flush()
    }

    fn clear(&mut self) -> io::Result<()> {
        let shown = std::mem::take(&mut self.shown);
        if shown > 0 {
            write!(self.out, "\r{:shown$}\r", "")?;
        }
        self.out.flush()
    }

    fn pause(&mut self) -> io::Result<()> {
        self.paused += 1;
        self.clear()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::ProgressLine;

    /// The screen after this was printed on one line.
    fn screen(printed: &[u8]) -> String {
        let (mut line, mut at) = (Vec::new(), 0);
        for &byte in printed {
            if byte == b'\r' {
                at = 0;
                continue;
            }
            line.resize(line.len().max(at + 1), b' ');
            line[at] = byte;
            at += 1;
        }
        String::from_utf8(line).unwrap().trim_end().to_owned()
    }

    #[test]
    fn a_line_says_what_is_at_work_and_goes() {
        let mut line = ProgressLine::new(Vec::new());
        line.show("search_files", Duration::from_millis(9_900)).unwrap();
        assert_eq!(screen(&line.out), "search_files: 9 s, Ctrl-C to cancel");
        line.show("undo", Duration::from_secs(10)).unwrap();
        assert_eq!(screen(&line.out), "undo: 10 s, Ctrl-C to cancel");
        line.clear().unwrap();
        assert_eq!(screen(&line.out), "");
        let printed = line.out.len();
        line.clear().unwrap();
        assert_eq!(line.out.len(), printed, "what is not there is not cleared");
    }

    #[test]
    fn the_progress_line_is_hidden_during_a_prompt() {
        let mut line = ProgressLine::new(Vec::new());
        line.show("write_file", Duration::from_secs(1)).unwrap();
        line.pause().unwrap();
        line.show("write_file", Duration::from_secs(2)).unwrap();
        assert_eq!(screen(&line.out), "");
        line.paused -= 1;
        line.show("write_file", Duration::from_secs(3)).unwrap();
        assert_eq!(screen(&line.out), "write_file: 3 s, Ctrl-C to cancel");
    }
}
