//! Content guards: rules about the contents of single files.
//!
//! A guard belongs to a mount, so no tool and no dialect gets around it. Every change of a guarded file shows its rule
//! what is there and what shall be there instead, under the lock of that file and before anything is on disk.
//!
//! Not here: what a rule wants. `workflow/` has one.

use std::fmt;
use std::sync::Arc;

use ringfence_kernel::{Assurance, ErrorKind, Ticket, ToolError};
use rustix::fs::OFlags;

use crate::mount::Mount;
use crate::mount::write_target::WriteTarget;
use crate::path::name::{escape, fold_name};
use crate::read::content::read_up_to;
use crate::sys::errno::{errno_error, wrong_type};
use crate::sys::stat::{FileKind, FileStat};
use crate::sys::syscall::fstat;
use crate::txn::replace::{CurrentFile, FileBody};

/// Judges the contents of one file.
pub trait ChangeRule: Send + Sync + fmt::Debug {
    /// Fails where the change must not be.
    fn judge(&self, change: &GuardedChange<'_>) -> Result<(), ToolError>;
}

/// A pending change to a guarded file.
#[derive(Clone, Copy, Debug)]
pub struct GuardedChange<'a> {
    /// The file, as replies spell it.
    pub shown: &'a str,
    /// Current contents.
    pub before: Option<&'a [u8]>,
    /// Contents after the change; `None` if the file is to be deleted.
    pub after: Option<&'a [u8]>,
    /// A person saw this change and approved it.
    pub by_person: bool,
}

/// A file of a mount, and the rule about it.
#[derive(Clone, Debug)]
pub(crate) struct GuardedFile {
    /// Below the root.
    pub(crate) path: Vec<u8>,
    pub(crate) rule: Arc<dyn ChangeRule>,
}

impl Mount {
    /// Asks the rule about a change to a file, regardless of the tool that makes it.
    pub(crate) fn judge(
        &self,
        path: &[u8],
        before: Option<&[u8]>,
        after: Option<&[u8]>,
        by_person: bool,
    ) -> Result<(), ToolError> {
        let Some(guard) = self.guards.iter().find(|guard| guard.path == path) else { return Ok(()) };
        let path = escape(path);
        let shown = if self.shows_alias { format!("@{}/{path}", self.alias) } else { path };
        guard.rule.judge(&GuardedChange { shown: &shown, before, after, by_person })
    }
}

impl WriteTarget {
    fn guard(&self) -> Option<&GuardedFile> {
        let path = self.path();
        self.mount.guards.iter().find(|guard| guard.path == path)
    }

    pub(crate) fn is_guarded(&self) -> bool {
        self.guard().is_some()
    }

    /// Refuses names that some systems would not tell from a guarded one, and names below one: it is a file.
    pub(crate) fn check_beside_guards(&self) -> Result<(), ToolError> {
        let path = self.path();
        let alike_path = fold_name(&path).unwrap_or_default();
        self.refuse_guarded("is too similar to, or is inside,", |guard| {
            guard != path
                && fold_name(guard).is_some_and(|guard| is_at_or_below(alike_path.as_bytes(), guard.as_bytes()))
        })
    }

    /// Refuses something other than a file where a guarded file is or is to be.
    pub(crate) fn check_not_guarded(&self) -> Result<(), ToolError> {
        let path = self.path();
        self.refuse_guarded("is or contains", |guard| guard == path)
    }

    /// Refuses a directory that has a guarded file in it, or is to have one: it would take the file along.
    pub(crate) fn check_nothing_guarded_inside(&self) -> Result<(), ToolError> {
        let path = self.path();
        self.refuse_guarded("is or contains", |guard| is_at_or_below(guard, &path))
    }

    fn refuse_guarded(&self, how: &str, applies: impl Fn(&[u8]) -> bool) -> Result<(), ToolError> {
        let Some(guard) = self.mount.guards.iter().find(|guard| applies(&guard.path)) else { return Ok(()) };
        let message = format!("`{}` {how} `{}`, which is guarded", self.shown, escape(&guard.path));
        Err(ToolError::new(ErrorKind::PermissionDenied, message))
    }

    /// Asks the rule about new contents. The judged contents are those that are written: contents that come from a file
    /// are read here, once.
    pub(crate) fn judge_contents(
        &self,
        body: FileBody,
        old: Option<&CurrentFile>,
        ticket: &Ticket<'_>,
    ) -> Result<FileBody, ToolError> {
        let Some(guard) = self.guard() else { return Ok(body) };
        let bytes = match body {
            FileBody::Bytes(bytes) => bytes,
            FileBody::File { from, stamp } => self.read_contents(&CurrentFile { fd: from, stat: stamp }, ticket)?,
        };
        let before = old.map(|old| self.read_contents(old, ticket)).transpose()?;
        self.ask_rule(guard, before.as_deref(), Some(&bytes), ticket)?;
        Ok(FileBody::Bytes(bytes))
    }

    /// Asks the rule whether the file may go.
    pub(crate) fn judge_removal(&self, ticket: &Ticket<'_>) -> Result<(), ToolError> {
        let Some(guard) = self.guard() else { return Ok(()) };
        let before = self.current_contents(ticket)?;
        self.ask_rule(guard, before.as_deref(), None, ticket)
    }

    /// Asks the rule whether the file that stands at `source` may take this name.
    pub(crate) fn judge_arrival(&self, source: &Self, ticket: &Ticket<'_>) -> Result<(), ToolError> {
        let Some(guard) = self.guard() else { return Ok(()) };
        let Some(after) = source.current_contents(ticket)? else { return Ok(()) };
        let before = self.current_contents(ticket)?;
        self.ask_rule(guard, before.as_deref(), Some(&after), ticket)
    }

    fn ask_rule(
        &self,
        guard: &GuardedFile,
        before: Option<&[u8]>,
        after: Option<&[u8]>,
        ticket: &Ticket<'_>,
    ) -> Result<(), ToolError> {
        let by_person = ticket.approval().is_some_and(|approval| approval.assurance == Assurance::Person);
        guard.rule.judge(&GuardedChange { shown: &self.shown, before, after, by_person })
    }

    fn current_contents(&self, ticket: &Ticket<'_>) -> Result<Option<Vec<u8>>, ToolError> {
        let Some(found) = self.stat()? else { return Ok(None) };
        if found.kind != FileKind::File {
            return Err(wrong_type(&self.shown, found.kind.with_article()).hint("only a file can be guarded"));
        }
        let fail = |errno| errno_error(errno, &self.shown);
        let fd = self.mount.open_at(self.base(), &self.name, OFlags::RDONLY).map_err(fail)?;
        let stamp = FileStat::from_stat(&fstat(&fd).map_err(fail)?);
        self.read_contents(&CurrentFile { fd, stat: stamp }, ticket).map(Some)
    }

    fn read_contents(&self, file: &CurrentFile, ticket: &Ticket<'_>) -> Result<Vec<u8>, ToolError> {
        let most = ticket.context().limits.appended_file_bytes;
        if file.stat.kind != FileKind::File || file.stat.size > most {
            let message = format!("`{}` is guarded and exceeds the {most} bytes that can be checked", self.shown);
            return Err(ToolError::new(ErrorKind::WriteLimit, message));
        }
        read_up_to(&file.fd, most, ticket.context()).map_err(|errno| errno_error(errno, &self.shown))
    }
}

fn is_at_or_below(path: &[u8], directory: &[u8]) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}
