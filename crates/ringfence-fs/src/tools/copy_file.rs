//! `copy_file`: the same contents under another name.

use std::os::fd::AsFd as _;

use ringfence_kernel::{
    Context, ErrorKind, Face, NameTaken, Plan, Preview, Registry, Sensitivity, Ticket, Tool, ToolError, Touch, Verb,
};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Changed, check_size};
use crate::Fence;
use crate::digest::Digest;
use crate::mount::Opened;
use crate::preview::{Contents, Diffs, changed, check_shown, check_still_there, fingerprint};
use crate::replace::{Body, replace};
use crate::slot::{Meant, Parents, Slot};
use crate::stamp::Stamp;

pub(super) fn register(registry: &mut Registry, fence: &Fence) -> Result<(), NameTaken> {
    registry.register(CopyFile { fence: fence.clone() }, [Face::standard::<Args, Changed>("copy_file")])
}

struct CopyFile {
    fence: Fence,
}

/// Copy a file. `to` is the path of the copy itself, not a directory to copy into.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Args {
    /// File to copy.
    from: String,
    /// Path of the copy.
    to: String,
    /// Replace a file at `to`.
    #[serde(default)]
    overwrite: bool,
}

struct Work {
    from: Opened,
    from_shown: String,
    from_secret: bool,
    to: Slot,
    target: Option<Stamp>,
    /// What a person was shown of the file that is copied, and of the one that goes.
    shown: (Option<Digest>, Option<Digest>),
}

impl Tool for CopyFile {
    type Args = Args;
    type Work = Work;
    type Outcome = Changed;
    const VERBS: &'static [Verb] = &[Verb::Read, Verb::Create, Verb::Overwrite, Verb::Lose];
    const SAME_AGAIN: bool = true;

    fn plan(&self, args: Args, cx: &Context<'_>) -> Result<Plan<Work>, ToolError> {
        let (source, goal) = (self.fence.locate(&args.from, cx)?, self.fence.locate(&args.to, cx)?);
        let mut from = source.open_content(cx)?;
        check_size(&format!("`{}`", source.shown), "max_copy_bytes", from.stamp.size, cx.limits.copy_bytes)?;
        let to = Slot::find(&goal, Meant::File, Parents::MustExist)?;
        let target = to.look()?;
        match target {
            Some(target) if target.id == from.stamp.id => {
                return Err(ToolError::invalid("to", "is the same file as from"));
            }
            Some(_) if !args.overwrite => {
                let error = ToolError::new(ErrorKind::AlreadyExists, format!("`{}` exists already", to.shown));
                return Err(error.hint("set overwrite to replace it"));
            }
            _ => {}
        }
        let read = source.place_of(&mut from, cx)?;
        let from_secret = read.sensitive().secret;
        let mut touches = vec![
            Touch { verb: Verb::Read, place: read },
            Touch { verb: if target.is_some() { Verb::Overwrite } else { Verb::Create }, place: to.place() },
        ];
        touches.extend(target.map(|target| to.loss(&target, cx)).transpose()?.flatten());
        Ok(Plan {
            touches,
            work: Work { from, from_shown: source.shown, from_secret, to, target, shown: (None, None) },
        })
    }

    fn preview(&self, work: &mut Work, cx: &Context<'_>) -> Result<Preview, ToolError> {
        let Work { from, from_shown, from_secret, to, target, shown } = work;
        let mut text = format!("copy `{from_shown}` ({} bytes) to `{}`", from.stamp.size, to.shown);
        let new = Contents::of(from.fd.as_fd(), &from.stamp, from_shown, cx)?;
        let old = target.map(|target| Contents::at(to, &target, cx)).transpose()?;
        let mut diffs = Diffs::new();
        if let (Some(old), Some(target)) = (&old, &target) {
            text.push_str(&format!(", replacing the file of {} bytes there", target.size));
            diffs.add(&to.shown, Some(old), Some(&new));
        }
        *shown = (new.digest, old.and_then(|old| old.digest));
        let bound = fingerprint((from.stamp, *target, *shown));
        let secret = *from_secret || to.place().sensitive().secret;
        Ok(Preview::new(&text, bound).with(diffs.into_body()).secret_if(secret))
    }

    fn run(&self, work: Work, ticket: &Ticket<'_>) -> Result<Changed, ToolError> {
        let Work { from, from_shown, from_secret, to, target, shown } = work;
        check_still_there(&to, target.as_ref(), ticket)?;
        let written = replace(&to, target, ticket, |old| {
            let cx = ticket.context();
            check_shown(&to, shown.1, old, cx)?;
            if shown.0.is_some() && shown.0 != Contents::of(from.fd.as_fd(), &from.stamp, &from_shown, cx)?.digest {
                return Err(changed(&from_shown));
            }
            Ok(Body::File { from: from.fd, stamp: from.stamp })
        })?;
        to.keep_known(Sensitivity { secret: from_secret, protected: false });
        Ok(Changed::new(to.shown, &written, ticket))
    }
}
