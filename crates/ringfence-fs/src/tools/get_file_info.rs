//! `get_file_info`: what a file is, without its contents.

use std::os::fd::{AsFd, OwnedFd};

use ringfence_kernel::{Context, Face, NameTaken, Pace, Plan, Preview, Registry, Ticket, Tool, ToolError, Touch, Verb};
use rustix::io::Errno;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Fence;
use crate::again::readlinkat;
use crate::content::hash;
use crate::digest::Digest;
use crate::fault::fault;
use crate::known::At;
use crate::missing;
use crate::mount::{Spot, look};
use crate::name::show;
use crate::preview::fingerprint;
use crate::resolve::PLACE;
use crate::stamp::{Kind, Stamp, timestamp};

pub(super) fn register(registry: &mut Registry, fence: &Fence) -> Result<(), NameTaken> {
    registry.register(GetFileInfo { fence: fence.clone() }, [Face::standard::<Args, Outcome>("get_file_info")])
}

struct GetFileInfo {
    fence: Fence,
}

/// Type, size, permissions, times and SHA-256 of a file, directory or link. Links are not followed.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Args {
    /// The file, directory or link, by its path relative to the workspace.
    path: String,
}

struct Work {
    spot: Spot,
    /// The directory that has the name; nothing for the root.
    parent: Option<OwnedFd>,
    stamp: Stamp,
    secret: bool,
}

/// What is said about a file.
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
    /// How many names the file has.
    links: u64,
    /// Where a link leads, if it says so by a relative path.
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    /// SHA-256 of a file's contents; left out where it may not be read or is too large.
    #[serde(skip_serializing_if = "Option::is_none")]
    sha256: Option<String>,
}

impl Tool for GetFileInfo {
    type Args = Args;
    type Work = Work;
    type Outcome = Outcome;
    const VERBS: &'static [Verb] = &[Verb::List];
    const SAME_AGAIN: bool = true;

    fn plan(&self, args: Args, cx: &Context<'_>) -> Result<Plan<Work>, ToolError> {
        let spot = self.fence.locate(&args.path, cx)?;
        let lookup = |path: &_| spot.mount.lookup(path, PLACE, Pace::Patient);
        let (parent, stamp, resolved) = match spot.path.split() {
            None => {
                let found = lookup(&spot.path).map_err(|errno| missing::explain(&spot, errno))?;
                (None, found.stamp, found.resolved)
            }
            Some((directory, name)) => {
                let above = lookup(&directory).map_err(|errno| missing::explain(&spot, errno))?;
                let found = look(above.fd.as_fd(), name).map_err(|errno| fault(errno, &spot.shown))?;
                let stamp = found.ok_or_else(|| missing::explain(&spot, Errno::NOENT))?;
                let resolved = above.resolved.map(|directory| format!("{directory}/{}", show(name)));
                (Some(above.fd), stamp, resolved)
            }
        };
        if spot.path.must_be_directory() && stamp.kind != Kind::Directory {
            return Err(fault(Errno::NOTDIR, &spot.shown));
        }
        let mut place = spot.place(resolved);
        if let (Some(parent), Some((_, name))) = (&parent, spot.path.split()) {
            place.sensitivity = spot.mount.weigh(place.sensitive(), At { fd: parent.as_fd(), name }, &stamp);
        }
        let secret = place.sensitive().secret;
        Ok(Plan { touches: vec![Touch { verb: Verb::List, place }], work: Work { spot, parent, stamp, secret } })
    }

    fn preview(&self, work: &mut Work, _: &Context<'_>) -> Result<Preview, ToolError> {
        Ok(Preview::new(&format!("describe `{}`", work.spot.shown), fingerprint(work.stamp)))
    }

    fn run(&self, work: Work, ticket: &Ticket<'_>) -> Result<Outcome, ToolError> {
        let Work { spot, parent, stamp, secret } = work;
        let target = match (&parent, spot.path.split()) {
            (Some(parent), Some((_, name))) if stamp.kind == Kind::Link => readlinkat(parent, name)
                .ok()
                .map(|target| show(target.as_bytes()))
                .filter(|target| !target.starts_with('/')),
            _ => None,
        };
        Ok(Outcome {
            r#type: stamp.kind.name(),
            size: if stamp.kind == Kind::Directory { 0 } else { stamp.size },
            mode: format!("{:04o}", stamp.mode),
            modified: timestamp(stamp.modified),
            changed: timestamp(stamp.changed),
            links: stamp.links,
            target,
            sha256: if secret { None } else { digest(&spot, &stamp, ticket.context())?.map(Digest::to_hex) },
            path: spot.shown,
        })
    }
}

/// The digest of the very file that was described, if it can be had.
fn digest(spot: &Spot, stamp: &Stamp, cx: &Context<'_>) -> Result<Option<Digest>, ToolError> {
    if stamp.kind != Kind::File {
        return Ok(None);
    }
    match spot.open_content(cx) {
        Ok(file) if file.stamp.id == stamp.id => hash(&spot.mount, &file, &spot.shown, cx),
        _ => Ok(None),
    }
}
