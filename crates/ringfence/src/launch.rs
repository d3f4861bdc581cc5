//! Programs of the operator: the one place that starts any.
//!
//! What is started was named by the user's own environment, and gets the user's own terminal. No agent has a say in it.

use std::fs::File;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Who waits for a program, and may stop waiting.
pub(crate) trait Patience {
    /// Waits so long at most. True when nobody waits for the program any more.
    fn is_over(&self, at_most: Duration) -> bool;
}

/// Lets the user edit a file at the terminal, and waits until they are done. An error if they gave up.
pub(crate) fn edit(editor: &str, file: &Path, terminal: &File, patience: &impl Patience) -> io::Result<()> {
    const PAUSE: Duration = Duration::from_millis(50);
    let mut words = editor.split_whitespace();
    let program = words.next().ok_or_else(|| io::Error::other("no editor is named"))?;
    let stdio = || terminal.try_clone().map(Stdio::from);
    #[expect(clippy::disallowed_methods, reason = "this is the one place")]
    let mut command = Command::new(program);
    let mut child = command.args(words).arg(file).stdin(stdio()?).stdout(stdio()?).stderr(stdio()?).spawn()?;
    loop {
        if let Some(status) = child.try_wait()? {
            return if status.success() { Ok(()) } else { Err(io::Error::other("the editor failed")) };
        }
        if patience.is_over(PAUSE) {
            child.kill()?;
            child.wait()?;
            return Err(io::Error::other("nobody waits any more"));
        }
    }
}
