//! Messages to the person while a wrapped program runs, such as conflicts.
//!
//! Without a terminal they are lines on standard error. A program on a terminal may draw on all of it: there they are desktop
//! notifications (OSC 9), which leave the screen alone, and are printed after the program has ended.
//!
//! Not here: questions (`terminal_relay.rs`), and what there is to say (`ringfence-sandbox`).

use std::sync::Arc;

use ringfence_kernel::sync::Mutex;
use ringfence_sandbox::RunNews;

use crate::cli::wrapped_run::terminal_relay::RelaySession;
use crate::process::messages::print_error;

/// The messages of one run.
#[derive(Debug)]
pub(crate) struct RunMessages {
    relay: Option<Arc<RelaySession>>,
    /// To be printed at the end.
    held: Mutex<Vec<String>>,
}

impl RunMessages {
    pub(crate) fn new(relay: Option<Arc<RelaySession>>) -> Self {
        Self { relay, held: Mutex::default() }
    }

    /// Prints what was held while the program had the terminal.
    pub(crate) fn print_held(&self) {
        std::mem::take(&mut *self.held.lock()).iter().for_each(|line| print_error(line));
    }
}

impl RunNews for RunMessages {
    fn tell(&self, line: &str) {
        match &self.relay {
            None => print_error(line),
            Some(relay) => {
                relay.notify(line);
                self.held.lock().push(line.to_owned());
            }
        }
    }
}
