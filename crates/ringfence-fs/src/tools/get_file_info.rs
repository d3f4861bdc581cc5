//! `get_file_info`: file metadata.

use std::os::fd::{AsFd, OwnedFd};

use ringfence_kernel::{
    CallContext, Dialect, DuplicateToolError, IoMode, ModelText, PolicyAction, Preview, ResourceAccess, Ticket, Tool,
    ToolBinding, ToolError, ToolPlan, ToolRegistry,
};
use rustix::io::Errno;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Fence;
use crate::mount::{LocatedPath, suggest};
use crate::path::name::escape;
use crate::preview::fingerprint;
use crate::read::content::hash;
use crate::read::digest::Digest;
use crate::root::resolver::PATH_ONLY;
use crate::root::stat;
use crate::sys::errno::errno_error;
use crate::sys::file_ref::FileRef;
use crate::sys::stat::{FileKind, FileStat, timestamp};
use crate::sys::syscall::readlinkat;

pub(super) fn register(registry: &mut ToolRegistry, fence: &Fence) -> Result<(), DuplicateToolError> {
    registry.register(
        GetFileInfo { fence: fence.clone() },
        [ToolBinding::standard_with_text::<Args, Outcome>("get_file_info")],
    )
}

struct GetFileInfo {
    fence: Fence,
}

/// Type, size, permissions, times and SHA-256 of a file, directory or link. Links are not followed.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Args {
    /// Path, relative to the workspace.
    #[serde(alias = "file_path", alias = "filePath")]
    path: String,
}

struct GetFileInfoPlan {
    located: LocatedPath,
    /// The directory that has the name; nothing for the root.
    parent: Option<OwnedFd>,
    stat: FileStat,
    secret: bool,
}

/// Result.
#[derive(Debug, Serialize, JsonSchema)]
struct Outcome {
    path: String,
    /// `file`, `directory`, `symlink`, `fifo`, `socket` or `device`.
    r#type: &'static str,
    /// In bytes; 0 for a directory.
    size: u64,
    /// Permissions in octal, such as `0644`.
    mode: String,
    modified: String,
    /// When contents or permissions were last changed.
    changed: String,
    /// Number of hard links.
    links: u64,
    /// Target of a link, if it is a relative path.
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    /// SHA-256 of a file's contents; omitted if it may not be read or is too large.
    #[serde(skip_serializing_if = "Option::is_none")]
    sha256: Option<String>,
}

impl ModelText for Outcome {
    fn model_text(&self, _: Dialect) -> String {
        let Self { path, r#type, size, mode, modified, links, target, .. } = self;
        let mut text = format!("{path}: {type}, {size} bytes, mode {mode}, modified {modified}", type = r#type);
        if *links > 1 && *r#type == "file" {
            text.push_str(&format!(", {links} hard links"));
        }
        if let Some(target) = target {
            text.push_str(&format!(", leads to {target}"));
        }
        if let Some(digest) = &self.sha256 {
            text.push_str(&format!(", sha256 {digest}"));
        }
        text
    }
}

impl Tool for GetFileInfo {
    type Args = Args;
    type Prepared = GetFileInfoPlan;
    type Outcome = Outcome;
    const ACTIONS: &'static [PolicyAction] = &[PolicyAction::List];
    const IDEMPOTENT: bool = true;

    fn plan(&self, args: Args, cx: &CallContext<'_>) -> Result<ToolPlan<GetFileInfoPlan>, ToolError> {
        let located = self.fence.locate(&args.path, cx)?;
        let lookup = |path: &_| located.mount.lookup(path, PATH_ONLY, IoMode::Blocking);
        let (parent, stamp, resolved) = match located.path.split() {
            None => {
                let found = lookup(&located.path).map_err(|errno| suggest::path_error(&located, errno))?;
                (None, found.stat, found.resolved)
            }
            Some((directory, name)) => {
                let above = lookup(&directory).map_err(|errno| suggest::path_error(&located, errno))?;
                let found = stat(above.fd.as_fd(), name).map_err(|errno| errno_error(errno, &located.shown))?;
                let stamp = found.ok_or_else(|| suggest::path_error(&located, Errno::NOENT))?;
                let resolved = above.resolved.map(|directory| format!("{directory}/{}", escape(name)));
                (Some(above.fd), stamp, resolved)
            }
        };
        if located.path.must_be_directory() && stamp.kind != FileKind::Directory {
            return Err(errno_error(Errno::NOTDIR, &located.shown));
        }
        let mut place = located.resource(resolved);
        if let (Some(parent), Some((_, name))) = (&parent, located.path.split()) {
            place.sensitivity =
                located.mount.classify(place.effective_sensitivity(), FileRef { fd: parent.as_fd(), name }, &stamp);
        }
        let secret = place.effective_sensitivity().secret;
        Ok(ToolPlan {
            accesses: vec![ResourceAccess { action: PolicyAction::List, resource: place }],
            prepared: GetFileInfoPlan { located, parent, stat: stamp, secret },
        })
    }

    fn preview(&self, work: &mut GetFileInfoPlan, _: &CallContext<'_>) -> Result<Preview, ToolError> {
        Ok(Preview::new(&format!("describe `{}`", work.located.shown), fingerprint(work.stat)))
    }

    fn run(&self, work: GetFileInfoPlan, ticket: &Ticket<'_>) -> Result<Outcome, ToolError> {
        let GetFileInfoPlan { located, parent, stat: stamp, secret } = work;
        let target = match (&parent, located.path.split()) {
            (Some(parent), Some((_, name))) if stamp.kind == FileKind::Link => readlinkat(parent, name)
                .ok()
                .map(|target| escape(target.as_bytes()))
                .filter(|target| !target.starts_with('/')),
            _ => None,
        };
        Ok(Outcome {
            r#type: stamp.kind.name(),
            size: if stamp.kind == FileKind::Directory { 0 } else { stamp.size },
            mode: format!("{:04o}", stamp.mode),
            modified: timestamp(stamp.modified),
            changed: timestamp(stamp.changed),
            links: stamp.links,
            target,
            sha256: if secret { None } else { digest(&located, &stamp, ticket.context())?.map(Digest::to_hex) },
            path: located.shown,
        })
    }
}

/// The digest of the very file that was described, if it can be had.
fn digest(located: &LocatedPath, stamp: &FileStat, cx: &CallContext<'_>) -> Result<Option<Digest>, ToolError> {
    if stamp.kind != FileKind::File {
        return Ok(None);
    }
    match located.open_content(cx) {
        Ok(file) if file.stat.id == stamp.id => hash(&located.mount.digests, &file, &located.shown, cx),
        _ => Ok(None),
    }
}
