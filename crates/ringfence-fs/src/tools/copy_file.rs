//! `copy_file`: the same contents under another name.

use ringfence_kernel::{
    Context, ErrorKind, Face, NameTaken, Plan, Preview, Registry, Ticket, Tool, ToolError, Touch, Verb,
};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Changed, check_size};
use crate::Fence;
use crate::mount::Opened;
use crate::replace::{Body, replace};
use crate::slot::{Meant, Parents, Slot};
use crate::stamp::Stamp;

pub(super) fn register(registry: &mut Registry, fence: &Fence) -> Result<(), NameTaken> {
    registry.register(CopyFile { fence: fence.clone() }, [Face::standard::<Args, Changed>("copy_file")])
}

struct CopyFile {
    fence: Fence,
}

/// Copy a file of the workspace. `to` is the path of the copy itself, not a directory to copy into.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Args {
    /// The file to copy.
    from: String,
    /// The path of the copy.
    to: String,
    /// Replace a file that is at `to`.
    #[serde(default)]
    overwrite: bool,
}

struct Work {
    from: Opened,
    from_shown: String,
    to: Slot,
    target: Option<Stamp>,
}

impl Tool for CopyFile {
    type Args = Args;
    type Work = Work;
    type Outcome = Changed;

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
        let mut touches = vec![
            Touch { verb: Verb::Read, place: source.place(from.resolved.take()) },
            Touch { verb: if target.is_some() { Verb::Overwrite } else { Verb::Create }, place: to.place() },
        ];
        touches.extend(target.and_then(|target| to.loss(&target, cx)));
        Ok(Plan { touches, work: Work { from, from_shown: source.shown, to, target } })
    }

    fn preview(&self, work: &Work) -> Preview {
        let text = format!("copy `{}` ({} bytes) to `{}`", work.from_shown, work.from.stamp.size, work.to.shown);
        Preview { fingerprint: format!("{:?} {:?}", work.from.stamp, work.target), text }
    }

    fn run(&self, work: Work, ticket: &Ticket<'_>) -> Result<Changed, ToolError> {
        let Work { from, to, target, .. } = work;
        let written = replace(&to, target, ticket, |_| Ok(Body::File { from: from.fd, stamp: from.stamp }))?;
        Ok(Changed::new(to.shown, &written, ticket))
    }
}
