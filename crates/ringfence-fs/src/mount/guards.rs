//! Guarded paths: what may not stand beside, inside or around a guarded file.

use ringfence_kernel::{ErrorKind, ToolError};

use crate::guard::{GuardedChange, GuardedFile};
use crate::mount::Mount;
use crate::mount::write_target::WriteTarget;
use crate::path::name::{escape, fold_name};

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
    pub(crate) fn guard(&self) -> Option<&GuardedFile> {
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
}

fn is_at_or_below(path: &[u8], directory: &[u8]) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}
