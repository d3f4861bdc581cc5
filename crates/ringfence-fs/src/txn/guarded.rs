//! Rules of guarded files, asked about a change before it is made.

use ringfence_kernel::{Assurance, ErrorKind, Ticket, ToolError};
use rustix::fs::OFlags;

use crate::guard::{GuardedChange, GuardedFile};
use crate::mount::write_target::WriteTarget;
use crate::read::content::read_up_to;
use crate::root::FileToReplace;
use crate::sys::errno::{errno_error, wrong_type};
use crate::sys::stat::{FileKind, FileStat};
use crate::sys::syscall::fstat;
use crate::txn::stage::FileBody;

impl WriteTarget {
    /// Asks the rule about new contents. The judged contents are those that are written: contents that come from a file
    /// are read here, once.
    pub(crate) fn judge_contents(
        &self,
        body: FileBody,
        old: Option<&FileToReplace>,
        ticket: &Ticket<'_>,
    ) -> Result<FileBody, ToolError> {
        let Some(guard) = self.guard() else { return Ok(body) };
        let body = match body {
            FileBody::Bytes(_) | FileBody::MovedBytes { .. } => body,
            FileBody::File { from, stamp } => {
                FileBody::Bytes(self.read_contents(&FileToReplace { fd: from, stat: stamp }, ticket)?)
            }
        };
        let before = old.map(|old| self.read_contents(old, ticket)).transpose()?;
        if let FileBody::Bytes(bytes) | FileBody::MovedBytes { bytes, .. } = &body {
            self.ask_rule(guard, before.as_deref(), Some(bytes), ticket)?;
        }
        Ok(body)
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
        self.read_contents(&FileToReplace { fd, stat: stamp }, ticket).map(Some)
    }

    fn read_contents(&self, file: &FileToReplace, ticket: &Ticket<'_>) -> Result<Vec<u8>, ToolError> {
        let most = ticket.context().limits.appended_file_bytes;
        if file.stat.kind != FileKind::File || file.stat.size > most {
            let message = format!("`{}` is guarded and exceeds the {most} bytes that can be checked", self.shown);
            return Err(ToolError::new(ErrorKind::WriteLimit, message));
        }
        read_up_to(&file.fd, most, ticket.context()).map_err(|errno| errno_error(errno, &self.shown))
    }
}
