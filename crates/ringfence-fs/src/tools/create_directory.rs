//! `create_directory`: a directory, with those above it.

use ringfence_kernel::{
    Context, ErrorKind, Face, NameTaken, Plan, Preview, Registry, Ticket, Tool, ToolError, Touch, Verb,
};
use rustix::fs::{Mode, mkdirat};
use rustix::io::Errno;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Fence;
use crate::again::fsync;
use crate::fault::{fault, unsynced};
use crate::mount::Durability;
use crate::slot::{Meant, Parents, Slot, check_directory_writable};
use crate::stamp::{Kind, Stamp};

pub(super) fn register(registry: &mut Registry, fence: &Fence) -> Result<(), NameTaken> {
    registry.register(CreateDirectory { fence: fence.clone() }, [Face::standard::<Args, Outcome>("create_directory")])
}

struct CreateDirectory {
    fence: Fence,
}

/// Create a directory of the workspace, with the directories above it. One that exists already is left as it is.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Args {
    /// Path inside the workspace, such as `docs/images`.
    path: String,
}

struct Work {
    slot: Slot,
    seen: Option<Stamp>,
}

/// What making a directory returns.
#[derive(Debug, Serialize, JsonSchema)]
struct Outcome {
    path: String,
    /// False when it existed already.
    created: bool,
    /// The id of this change.
    change: String,
}

impl Tool for CreateDirectory {
    type Args = Args;
    type Work = Work;
    type Outcome = Outcome;

    fn plan(&self, args: Args, cx: &Context<'_>) -> Result<Plan<Work>, ToolError> {
        let spot = self.fence.locate(&args.path, cx)?.slashed_if(Kind::Directory);
        let slot = Slot::find(&spot, Meant::Anything, Parents::MayBeMade)?;
        let seen = slot.look()?;
        if let Some(found) = &seen
            && found.kind != Kind::Directory
        {
            let message = format!("`{}` exists already and is {}", slot.shown, found.kind.described());
            return Err(ToolError::new(ErrorKind::AlreadyExists, message));
        }
        let verb = if seen.is_some() { Verb::List } else { Verb::Create };
        Ok(Plan { touches: vec![Touch { verb, place: slot.place() }], work: Work { slot, seen } })
    }

    fn preview(&self, work: &Work) -> Preview {
        let text = format!("create the directory `{}`", work.slot.shown);
        Preview { fingerprint: format!("{:?}", work.seen.map(|seen| seen.id)), text }
    }

    fn run(&self, work: Work, ticket: &Ticket<'_>) -> Result<Outcome, ToolError> {
        let Work { slot, seen } = work;
        let mut created = false;
        if seen.is_none() {
            let made = slot.make_parents(ticket.context())?;
            check_directory_writable(std::os::fd::AsFd::as_fd(&made.parent), &slot.shown)?;
            ticket.commit()?;
            match mkdirat(&made.parent, slot.name.as_slice(), Mode::from_raw_mode(0o755)) {
                Ok(()) => created = true,
                // Somebody else made it, which is as good, or something that is no directory.
                Err(Errno::EXIST)
                    if slot
                        .look_in(std::os::fd::AsFd::as_fd(&made.parent))?
                        .is_some_and(|found| found.kind == Kind::Directory) => {}
                Err(errno) => return Err(fault(errno, &slot.shown)),
            }
            if slot.mount.durability == Durability::Full {
                fsync(&made.parent).map_err(|errno| unsynced(errno, &slot.shown))?;
            }
            made.keep(slot.mount.durability, &slot.shown)?;
        }
        Ok(Outcome { path: slot.shown, created, change: ticket.change().to_owned() })
    }
}
