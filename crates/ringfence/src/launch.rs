//! Programs of the operator: the one place that starts any.
//!
//! What is started was named by the user's own environment or config: an editor, which gets the user's own terminal, and
//! servers of the Model Context Protocol that the user does not want in the jail. No agent has a say in it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

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

/// A program that serves us, with all that it started in its own group.
#[derive(Debug)]
pub(crate) struct Launched(Mutex<Option<Child>>);

/// Starts a program that is talked to over its standard input and output. It gets these variables and no others.
pub(crate) fn serve(
    program: &str,
    args: &[String],
    env: &BTreeMap<&String, &String>,
) -> io::Result<(Launched, ChildStdin, ChildStdout)> {
    #[expect(clippy::disallowed_methods, reason = "this is the one place")]
    let mut command = Command::new(program);
    command.args(args).env_clear().envs(env).process_group(0);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let pipes = child.stdin.take().zip(child.stdout.take());
    let launched = Launched(Mutex::new(Some(child)));
    let (input, output) = pipes.ok_or_else(|| io::Error::other("it has no pipes"))?;
    Ok((launched, input, output))
}

impl Launched {
    /// Ends it. It may take so long to end by itself, once its input is closed.
    pub(crate) fn end(&self, patience: Duration) {
        const PAUSE: Duration = Duration::from_millis(10);
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mut child) = held.take() else { return };
        let until = Instant::now() + patience;
        if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
            // It is looked at and not reaped, so that its number stays its own.
            let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            while Instant::now() < until && matches!(waitid(WaitId::Pid(group), look), Ok(None)) {
                std::thread::sleep(PAUSE);
            }
            // What it started may be there without it.
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = child.wait();
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        self.end(Duration::ZERO);
    }
}
