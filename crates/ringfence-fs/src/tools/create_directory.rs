//! `create_directory`: a directory, with those above it.

use std::os::fd::AsFd;

use ringfence_kernel::{
    Context, ErrorKind, Face, NameTaken, Plan, Preview, Registry, Ticket, Tool, ToolError, Touch, Verb,
};
use rustix::fs::Mode;
use rustix::io::Errno;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Fence;
use crate::again::{fsync, mkdirat};
use crate::fault::{fault, unsynced};
use crate::journal::{Effect, Form, State};
use crate::locks::Tree;
use crate::mount::Durability;
use crate::name::show;
use crate::replace::open_as_said;
use crate::slot::{Meant, Parents, Slot, check_directory_writable};
use crate::stamp::Kind;

pub(super) fn register(registry: &mut Registry, fence: &Fence) -> Result<(), NameTaken> {
    registry.register(CreateDirectory { fence: fence.clone() }, [Face::standard::<Args, Outcome>("create_directory")])
}

struct CreateDirectory {
    fence: Fence,
}

/// Create a directory and its parents. One that exists already is left as it is.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Args {
    /// The directory, by its path relative to the workspace.
    path: String,
}

enum Work {
    /// It is there.
    Exists {
        shown: String,
    },
    Make {
        slot: Slot,
    },
}

/// What making a directory returns.
#[derive(Debug, Serialize, JsonSchema)]
struct Outcome {
    path: String,
    /// False when it existed already.
    created: bool,
    /// The id of this change, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    change: Option<String>,
}

impl Tool for CreateDirectory {
    type Args = Args;
    type Work = Work;
    type Outcome = Outcome;
    const VERBS: &'static [Verb] = &[Verb::List, Verb::Create];
    const SAME_AGAIN: bool = true;

    fn plan(&self, args: Args, cx: &Context<'_>) -> Result<Plan<Work>, ToolError> {
        let spot = self.fence.locate(&args.path, cx)?.slashed_if(Kind::Directory);
        let slot = Slot::find(&spot, Meant::Anything, Parents::MayBeMade)?;
        let place = slot.place();
        Ok(match slot.look()? {
            None => {
                slot.check_not_guarded()?;
                Plan { touches: vec![Touch { verb: Verb::Create, place }], work: Work::Make { slot } }
            }
            Some(found) if found.kind == Kind::Directory => {
                Plan { touches: vec![Touch { verb: Verb::List, place }], work: Work::Exists { shown: slot.shown } }
            }
            Some(found) => {
                let message = format!("`{}` exists already and is {}", slot.shown, found.kind.described());
                return Err(ToolError::new(ErrorKind::AlreadyExists, message));
            }
        })
    }

    fn preview(&self, work: &mut Work, _: &Context<'_>) -> Result<Preview, ToolError> {
        let (text, fingerprint) = match work {
            Work::Exists { shown } => (format!("the directory `{shown}` exists already"), "exists"),
            Work::Make { slot } => (format!("create the directory `{}`", slot.shown), "make"),
        };
        Ok(Preview::new(&text, fingerprint))
    }

    fn run(&self, work: Work, ticket: &Ticket<'_>) -> Result<Outcome, ToolError> {
        let (path, created) = match work {
            Work::Exists { shown } => (shown, false),
            Work::Make { slot } => {
                let created = make(&slot, ticket)?;
                (slot.shown, created)
            }
        };
        Ok(Outcome { path, created, change: created.then(|| ticket.change().to_owned()) })
    }
}

/// Makes a directory with those above it. False if somebody else was faster.
fn make(slot: &Slot, ticket: &Ticket<'_>) -> Result<bool, ToolError> {
    let _place = slot.hold_place(Tree::Shared, ticket.context())?;
    let made = slot.make_parents(ticket.context())?;
    let parent = made.parent.as_fd();
    check_directory_writable(parent, &slot.shown)?;
    let after = State::to_be(Form::Directory);
    let mut effects = made.effects();
    effects.push(Effect::Created { path: show(&slot.path()), after, image: None });
    let entered = slot.mount.enter(ticket, Vec::new(), effects)?;
    ticket.commit()?;
    let created = match mkdirat(parent, slot.name.as_slice(), Mode::from_raw_mode(0o755)) {
        Ok(()) => true,
        Err(Errno::EXIST) if slot.look_in(parent)?.is_some_and(|found| found.kind == Kind::Directory) => false,
        Err(errno) => return Err(fault(errno, &slot.shown)),
    };
    if created {
        entered.done();
        // It is there by now: with a mode that the umask made, rather than as an error about something that was done.
        if let Ok(child) = slot.mount.resolver.open_child(parent, &slot.name) {
            let _ = open_as_said(child.as_fd(), parent, 0o755);
        }
    }
    if slot.mount.durability == Durability::Full {
        fsync(parent).map_err(|errno| unsynced(errno, &slot.shown))?;
    }
    made.keep(slot.mount.durability, &slot.shown)?;
    Ok(created)
}
