//! Line editor with history for the chat.
//!
//! The editor runs on a thread of its own, so that waiting for a line can be cancelled. Whatever happens, the terminal
//! is restored.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{Config, Editor};
use tokio::sync::oneshot;

/// Lines that are remembered from one time to the next.
const HISTORY_LINES: usize = 1000;

/// The result of one input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LineInput {
    Text(String),
    /// `Ctrl-C`.
    Interrupted,
    /// `Ctrl-D`, or the terminal is gone.
    End,
}

/// Whether a line is worth coming back to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineHistoryMode {
    Save,
    Skip,
}

struct LineRequest {
    prompt: String,
    history: LineHistoryMode,
    reply: oneshot::Sender<LineInput>,
}

/// Handle of the editor's thread.
#[derive(Clone, Debug)]
pub(crate) struct LineEditor(Sender<LineRequest>);

impl LineEditor {
    /// Starts the thread. It ends when the handle is dropped.
    pub(crate) fn start(remembered: PathBuf) -> io::Result<Self> {
        let (ask, asked) = channel();
        std::thread::Builder::new().name("lines".to_owned()).spawn(move || run_editor(&asked, &remembered))?;
        Ok(Self(ask))
    }

    pub(crate) async fn read(&self, prompt: &str, worth: LineHistoryMode) -> LineInput {
        let (sender, receiver) = oneshot::channel();
        match self.0.send(LineRequest { prompt: prompt.to_owned(), history: worth, reply: sender }) {
            Ok(()) => receiver.await.unwrap_or(LineInput::End),
            Err(_) => LineInput::End,
        }
    }
}

fn run_editor(asked: &Receiver<LineRequest>, remembered: &Path) {
    let Ok(mut editor) = new_editor() else { return };
    // The first time there is none.
    let _ = editor.load_history(remembered);
    while let Ok(LineRequest { prompt, history: worth, reply: sender }) = asked.recv() {
        let line = match editor.readline(&prompt) {
            Ok(text) => LineInput::Text(text),
            Err(ReadlineError::Interrupted) => LineInput::Interrupted,
            Err(_) => LineInput::End,
        };
        if let (LineInput::Text(text), LineHistoryMode::Save) = (&line, worth)
            && editor.add_history_entry(text.as_str()).is_ok()
        {
            // A failure to store the history is ignored.
            let _ = editor.save_history(remembered);
        }
        // The receiver may be gone.
        let _ = sender.send(line);
    }
}

fn new_editor() -> rustyline::Result<Editor<(), FileHistory>> {
    let config = Config::builder().max_history_size(HISTORY_LINES)?.history_ignore_space(true).build();
    Editor::with_config(config)
}

/// The original terminal settings, restored on drop.
#[derive(Debug)]
pub(crate) struct TermiosGuard(Option<(File, Termios)>);

impl TermiosGuard {
    pub(crate) fn save() -> Self {
        let terminal = File::options().read(true).write(true).open("/dev/tty").ok();
        Self(terminal.and_then(|terminal| tcgetattr(&terminal).ok().map(|modes| (terminal, modes))))
    }
}

impl Drop for TermiosGuard {
    fn drop(&mut self) {
        if let Some((terminal, modes)) = &self.0 {
            // A terminal that is gone needs nothing put back.
            let _ = tcsetattr(terminal, OptionalActions::Drain, modes);
        }
    }
}
