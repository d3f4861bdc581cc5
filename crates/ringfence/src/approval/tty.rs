//! Terminal approver: shows approval dialogs on the controlling terminal.
//!
//! The dialog is on `/dev/tty` only, so replies can be piped during an approval. Keys that were typed before the dialog
//! was shown are dropped, and so are those that continue them. Whatever happens, the terminal is restored: an answer of
//! another front, a timeout, a signal, a panic.
//!
//! Not here: rendering and key bindings (`dialog.rs`), drawing and restoring (`dialog_screen.rs`). A front that does not own the terminal, such as a server on
//! standard input and output, does not use this.

use std::fs::{File, OpenOptions};
use std::future::Future;
use std::io::{self, BufRead as _, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use ringfence_fs::PLAIN_FILE_FLAGS;
use ringfence_kernel::{
    Approval, ApprovalDecision, ApprovalInbox, ApprovalRequest, ApprovalResponse, Approver, ApproverReply,
    ArgumentDraft, Assurance, DraftOutcome, Preview, Principal, sanitize_line, sanitize_untruncated,
};
use rustix::event::{PollFd, PollFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::geteuid;
use rustix::termios::{QueueSelector, tcflush};
use serde_json::Value;
use tokio::sync::oneshot;

use crate::approval::deny_all;
use crate::approval::dialog::{ApprovalDialog, DialogStep};
use crate::approval::dialog_screen::{ColorMode, DialogEvent, DialogScreen, TICK, poll_for};
use crate::config::{AppSettings, Environment};
use crate::process::program_launcher::{Cancellable, ProgramLauncher};
use crate::process::progress::ProgressPause;
use crate::store::SqliteStore;

/// Time to wait for a preview of changed arguments.
const PREVIEW_TIMEOUT: Duration = Duration::from_secs(10);

/// No arguments are longer than this.
const MAX_ARGUMENT_BYTES: u64 = 32 << 20;

/// No yes or no is longer than this.
const MAX_CONFIRM_BYTES: u64 = 64;

/// The person at the terminal.
#[derive(Clone, Debug)]
pub struct TtyApprover {
    principal: Principal,
    editor: String,
    /// They want no colours.
    no_color: bool,
    state: PathBuf,
    launcher: ProgramLauncher,
    /// There is one terminal: of several calls, one asks at a time.
    dialog_lock: Arc<tokio::sync::Mutex<()>>,
}

impl TtyApprover {
    pub fn new(settings: &AppSettings, environment: &Environment) -> Self {
        Self {
            principal: tty_principal(environment),
            editor: environment.editor.clone().unwrap_or_else(|| "vi".to_owned()),
            no_color: environment.no_color,
            state: settings.state.clone(),
            launcher: ProgramLauncher::new(settings, environment),
            dialog_lock: Arc::default(),
        }
    }

    /// Whether an approver can be reached here.
    pub fn is_available(&self) -> bool {
        open_terminal().is_ok()
    }

    /// Shows a text and asks whether to go on. Only the whole word `yes`, typed after the text was shown, is one.
    pub fn confirm(&self, text: &str, question: &str) -> io::Result<bool> {
        let _asking = ProgressPause::new();
        let mut terminal = open_terminal()?;
        write!(terminal, "{}", sanitize_untruncated(text))?;
        tcflush(&terminal, QueueSelector::IFlush)?;
        write!(terminal, "{question} [yes/no] ")?;
        let mut answer_text = String::new();
        io::BufReader::new(terminal.take(MAX_CONFIRM_BYTES)).read_line(&mut answer_text)?;
        Ok(answer_text.trim() == "yes")
    }

    /// Asks, and waits for the answer. Nothing if the dialog was closed without one.
    async fn answer(&self, terminal: File, request: &ApprovalRequest) -> Option<ApprovalResponse> {
        let (wake, woken) = pipe_with(PipeFlags::CLOEXEC).map(|(read, write)| (write, read)).ok()?;
        let (sender, receiver) = oneshot::channel();
        let (inbox, request) = (self.clone(), request.clone());
        let conversation = move || {
            // If the receiver is gone, the dialog was closed from outside.
            let _ = sender.send(inbox.run_dialog(&terminal, &request, &WakePipe(woken)));
        };
        let thread = std::thread::Builder::new().name("dialog".to_owned()).spawn(conversation).ok()?;
        let _open = DialogThread { wake: Some(wake), thread: Some(thread) };
        receiver.await.ok()?.ok()?
    }

    fn run_dialog(
        &self,
        terminal: &File,
        request: &ApprovalRequest,
        woken: &WakePipe,
    ) -> io::Result<Option<ApprovalResponse>> {
        let _asking = ProgressPause::new();
        let mut dialog = ApprovalDialog::new(request);
        let colours = if self.no_color { ColorMode::None } else { ColorMode::All };
        let mut screen = DialogScreen::enter(terminal, colours)?;
        let left = || request.expires.duration_since(SystemTime::now()).unwrap_or_default();
        dialog.require_quiet(Instant::now());
        let answer = loop {
            let left = left();
            if left.is_zero() {
                break None;
            }
            dialog.tick(Instant::now());
            screen.draw(&dialog.screen(screen.size(), left))?;
            match screen.wait(Some(woken.0.as_fd()))? {
                DialogEvent::Closed => break None,
                DialogEvent::Nothing => {}
                DialogEvent::Keys(keys) => match dialog.handle_keys(&keys, Instant::now()) {
                    DialogStep::Continue => {}
                    DialogStep::Done(response) => break Some(response),
                    DialogStep::Edit(args) => {
                        drop(screen);
                        let left = self.edit(terminal, &args, woken);
                        let shown = left.as_ref().map(|args| self.preview(request, args, woken)).unwrap_or_default();
                        dialog.set_edited(left, shown);
                        dialog.require_quiet(Instant::now());
                        screen = DialogScreen::enter(terminal, colours)?;
                    }
                },
            }
        };
        drop(screen);
        let answer_text = match &answer {
            Some(answer) if answer.approved && request.suspended => "approved; it runs when the agent calls again",
            Some(answer) if answer.approved => "approved",
            Some(_) => "denied",
            None if SystemTime::now() >= request.expires => "the request timed out",
            None => "request closed: answered by another client, or cancelled",
        };
        let mut terminal = terminal;
        writeln!(terminal, "ringfence: {}: {answer_text}", sanitize_line(&request.tool))?;
        Ok(answer)
    }

    /// Previews the call with other arguments, by the process that waits with it.
    fn preview(&self, request: &ApprovalRequest, args: &Value, woken: &WakePipe) -> Preview {
        let without = |why: &str| Preview::new(why, "");
        let store = SqliteStore::new(&self.state);
        let inbox = ApprovalInbox { store: &store, principal: &self.principal };
        let draft = match inbox.open_draft(&request.id, args.clone(), SystemTime::now()) {
            Ok(draft) => draft,
            Err(error) => return without(&error.to_string()),
        };
        let until = Instant::now() + PREVIEW_TIMEOUT;
        while Instant::now() < until && !woken.is_cancelled(TICK) {
            match inbox.draft_of(&request.id, &draft) {
                Ok(Some(ArgumentDraft { outcome: Some(DraftOutcome::Planned(preview)), .. })) => return preview,
                Ok(Some(ArgumentDraft { outcome: Some(DraftOutcome::Refused(why)), .. })) => {
                    return without(&format!("this would fail: {why}"));
                }
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => break,
            }
        }
        without("no preview: the caller does not respond")
    }

    /// Gives the arguments to the person's editor, and takes what it left behind.
    fn edit(&self, terminal: &File, args: &Value, woken: &WakePipe) -> Result<Value, String> {
        let failed = |error: io::Error| format!("cannot edit the arguments: {error}");
        let draft = ArgumentsFile::new(&self.state, args).map_err(failed)?;
        self.launcher.run_editor(&self.editor, &draft.0, terminal, woken).map_err(failed)?;
        let text = draft.read().map_err(failed)?;
        let args: Value = serde_json::from_str(&text).map_err(|error| format!("invalid JSON: {error}"))?;
        if args.is_object() { Ok(args) } else { Err("the arguments must be a JSON object".to_owned()) }
    }
}

impl Approver for TtyApprover {
    fn ask<'a>(&'a self, request: &'a ApprovalRequest) -> Pin<Box<dyn Future<Output = ApproverReply> + Send + 'a>> {
        Box::pin(async move {
            let _turn = self.dialog_lock.lock().await;
            let Ok(terminal) = open_terminal() else { return deny_all().ask(request).await };
            let Some(response) = self.answer(terminal, request).await else {
                return ApproverReply::Decided(ApprovalDecision::automatic_denial(
                    "no answer at the terminal".to_owned(),
                ));
            };
            let approval = Approval { assurance: Assurance::Person, by: Some(self.principal.clone()) };
            ApproverReply::Decided(ApprovalDecision { response, approval })
        })
    }
}

/// The user of this terminal, as records name them.
pub fn tty_principal(environment: &Environment) -> Principal {
    let user = environment.user.clone().unwrap_or_else(|| format!("uid {}", geteuid().as_raw()));
    Principal::person(format!("{user} at the terminal"))
}

/// The terminal that we were started from, if it is ours to use: in the background we would be stopped.
pub(crate) fn open_terminal() -> io::Result<File> {
    let flags = i32::try_from(rustix::fs::OFlags::NOCTTY.bits()).unwrap_or_default();
    let terminal = OpenOptions::new().read(true).write(true).custom_flags(flags).open("/dev/tty")?;
    match is_in_foreground(&std::fs::read_to_string("/proc/self/stat")?) {
        true => Ok(terminal),
        false => Err(io::Error::other("the terminal is in use by another program")),
    }
}

/// Whether our process group is the foreground one of our terminal. Both are 0 where they are outside of our PID namespace,
/// as for a program that was started by `unshare --pid` or is the first of a container: it has no job control there, so
/// the terminal is its own.
fn is_in_foreground(stat: &str) -> bool {
    // The second field may have anything in it, and ends with the last parenthesis.
    let fields: Vec<&str> = stat.rsplit_once(") ").map(|(_, fields)| fields.split(' ').collect()).unwrap_or_default();
    matches!(fields.as_slice(), [_state, _parent, group, _session, _terminal, foreground, ..] if group == foreground)
}

/// A dialog on a thread of its own. Dropping it waits until the terminal is restored.
struct DialogThread {
    wake: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for DialogThread {
    fn drop(&mut self) {
        drop(self.wake.take());
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported already.
            let _ = thread.join();
        }
    }
}

/// The end of a pipe whose other end is dropped when the wait is over.
struct WakePipe(OwnedFd);

impl Cancellable for WakePipe {
    fn is_cancelled(&self, at_most: Duration) -> bool {
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        poll_for(&mut fds, at_most).is_ok() && !fds[0].revents().is_empty()
    }
}

/// A file that only we may read, with arguments to be edited. It goes when it is dropped.
struct ArgumentsFile(PathBuf);

impl ArgumentsFile {
    fn new(state: &Path, args: &Value) -> io::Result<Self> {
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(|_| io::Error::other("the system's random number generator failed"))?;
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(state)?;
        let path = state.join(format!("arguments-{:016x}.json", u64::from_le_bytes(random)));
        let mut file =
            OpenOptions::new().write(true).create_new(true).mode(0o600).custom_flags(PLAIN_FILE_FLAGS).open(&path)?;
        let draft = Self(path);
        writeln!(file, "{}", serde_json::to_string_pretty(args)?)?;
        Ok(draft)
    }

    fn read(&self) -> io::Result<String> {
        let mut text = String::new();
        // By name: an editor may have replaced the file.
        let file = OpenOptions::new().read(true).custom_flags(PLAIN_FILE_FLAGS).open(&self.0)?;
        file.take(MAX_ARGUMENT_BYTES + 1).read_to_string(&mut text)?;
        match text.len() as u64 > MAX_ARGUMENT_BYTES {
            true => Err(io::Error::other("too long")),
            false => Ok(text),
        }
    }
}

impl Drop for ArgumentsFile {
    fn drop(&mut self) {
        // One that stays behind is in our own private directory.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Whether what the program says of itself goes to a terminal, and not to a file that others read too.
pub(crate) fn stderr_is_terminal() -> bool {
    rustix::termios::isatty(rustix::stdio::stderr())
}

#[cfg(test)]
mod tests {
    use super::is_in_foreground;

    #[test]
    fn a_terminal_is_ours_where_our_group_is_its_foreground_one() {
        let check = |stat: &str, expected: bool| assert_eq!(is_in_foreground(stat), expected, "{stat}");
        check("12 (ringfence) R 1 12 12 34816 12 4194560 1\n", true);
        check("12 (ringfence) R 1 12 12 34816 13 4194560 1\n", false);
        // A name may have anything in it.
        check("12 (a) R 1 5 5 0 5 (b) S 1 12 12 34816 13 4194560 1\n", false);
        // The session is outside of our PID namespace.
        check("1 (ringfence) R 0 0 0 34816 0 4194560 1\n", true);
        // No terminal.
        check("12 (ringfence) R 1 12 12 0 -1 4194560 1\n", false);
        check("12 (ringfence) R 1 12", false);
        check("", false);
    }
}
