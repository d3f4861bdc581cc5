//! What a program left in a layer becomes a change of the workspace like any other, or nothing at all.

mod asked;
mod crash;
mod kinds;
mod meanwhile;
mod model;
mod refused;
mod shown;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use ringfence_fs::Fence;
use ringfence_kernel::{
    ChangeKind, ChangedPath, Changes, Context, Dialect, ErrorKind, Face, KeepDecision, Limits, Pace, Plan, Preview,
    Registry, Signal, Ticket, Tool, ToolError, View, Workspace,
};
use rustix::fs::{CWD, FileType, Mode, XattrFlags, mknodat, setxattr};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::snapshot::{What, snapshot};
use crate::world::{Answer, Setup, World, unlock};

/// A tool that commits a layer, as a tool that ran a program in it would.
struct CommitLayer(Arc<dyn Workspace>);

/// Commit a layer.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Args {
    upper: PathBuf,
    /// Nanoseconds since 1970.
    started: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Outcome {
    changes: Vec<String>,
    change: String,
}

impl Tool for CommitLayer {
    type Args = Args;
    type Work = Box<dyn Changes>;
    type Outcome = Outcome;

    fn plan(&self, args: Args, cx: &Context<'_>) -> Result<Plan<Self::Work>, ToolError> {
        let view = View { started: UNIX_EPOCH + Duration::from_nanos(args.started), ..self.0.view(cx)? };
        let upper = fs::File::open(args.upper).unwrap();
        let work = self.0.changes(&view, upper.into(), cx)?;
        let groups = work.groups();
        // All or nothing, as `mode: "review"` has it.
        match groups.iter().find_map(|group| group.refused.clone()) {
            Some(refused) => Err(refused),
            None => Ok(Plan { touches: groups.into_iter().flat_map(|group| group.touches).collect(), work }),
        }
    }

    fn preview(&self, work: &mut Self::Work, cx: &Context<'_>) -> Result<Preview, ToolError> {
        work.preview(cx)
    }

    fn run(&self, mut work: Self::Work, ticket: &Ticket<'_>) -> Result<Outcome, ToolError> {
        work.merge();
        let changes = work.list().iter().map(said).collect();
        let all = vec![KeepDecision::Keep; work.groups().len()];
        if let Some(KeepDecision::Refuse(error)) = work.settle(all).into_iter().max_by_key(KeepDecision::strictness) {
            return Err(error);
        }
        work.commit(ticket)?;
        if let Some((_, withheld)) = ticket.withheld().into_iter().next() {
            return Err(withheld);
        }
        Ok(Outcome { changes, change: ticket.change().to_owned() })
    }
}

fn said(change: &ChangedPath) -> String {
    let size = change.size.map(|size| format!(" {size}")).unwrap_or_default();
    match &change.what {
        ChangeKind::Renamed { from } => format!("{} from {from}{size}", change.path),
        what => format!("{} {}{size}", change.path, format!("{what:?}").to_lowercase()),
    }
}

pub(crate) fn register(registry: &mut Registry, fence: &Fence) {
    let tool = CommitLayer(fence.workspace("workspace").unwrap());
    registry.register(tool, [Face::standard::<Args, Outcome>("commit_layer")]).unwrap();
}

pub(crate) fn setup() -> Setup {
    Setup { extra: Some(register), ..Setup::default() }
}

/// A workspace, and a layer above it.
pub(crate) struct Layered {
    pub(crate) world: World,
    pub(crate) upper: PathBuf,
    started: u64,
}

impl Layered {
    /// A workspace with these files.
    pub(crate) fn new(files: &[(&str, &str)]) -> Self {
        Self::with(setup(), files)
    }

    pub(crate) fn with(setup: Setup, files: &[(&str, &str)]) -> Self {
        let world = World::in_memory(setup);
        files.iter().for_each(|(path, content)| world.write(path, content));
        Self::above(world)
    }

    /// The program starts now.
    pub(crate) fn above(world: World) -> Self {
        let upper = world.host_path().join("upper");
        unlock(&upper);
        let _ = fs::remove_dir_all(&upper);
        fs::create_dir(&upper).unwrap();
        Self::again(world, upper)
    }

    /// The program starts anew, and leaves what it left before.
    pub(crate) fn again(world: World, upper: PathBuf) -> Self {
        let started = view(&world, &Limits::of(Dialect::Standard)).unwrap().started;
        let started = u64::try_from(started.duration_since(UNIX_EPOCH).unwrap().as_nanos()).unwrap();
        Self { world, upper, started }
    }

    pub(crate) fn write(&self, path: &str, content: impl AsRef<[u8]>) -> &Self {
        let path = self.upper.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
        self
    }

    fn directory(&self, path: &str) -> &Self {
        fs::create_dir_all(self.upper.join(path)).unwrap();
        self
    }

    pub(crate) fn whiteout(&self, path: &str) -> &Self {
        let path = self.upper.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        mknodat(CWD, &path, FileType::CharacterDevice, Mode::empty(), 0).unwrap();
        self
    }

    fn attribute(&self, path: &str, name: &str, value: &str) -> &Self {
        mark(&self.upper.join(path), name, value);
        self
    }

    pub(crate) fn opaque(&self, path: &str) -> &Self {
        self.directory(path).attribute(path, "opaque", "y")
    }

    pub(crate) fn arguments(&self) -> Value {
        json!({"upper": self.upper, "started": self.started})
    }

    pub(crate) fn commit(&self) -> Answer {
        self.world.call("commit_layer", &self.arguments())
    }

    #[track_caller]
    pub(crate) fn committed(&self) -> (Vec<String>, String) {
        let value = self.world.value("commit_layer", &self.arguments());
        let changes = value["changes"].as_array().unwrap().iter().map(|one| one.as_str().unwrap().to_owned());
        (changes.collect(), value["change"].as_str().unwrap().to_owned())
    }

    /// The commit is refused with this, and nothing changed.
    #[track_caller]
    pub(crate) fn refused(&self, kind: ErrorKind, words: &str) {
        let before = self.tree();
        let answer = self.commit();
        assert_eq!(answer.error, Some(kind), "{}", answer.text);
        assert!(answer.text.contains(words), "{}", answer.text);
        assert_eq!(self.tree(), before);
        self.nothing_left_over();
    }

    /// The keep has nothing of a change that was not made.
    fn nothing_left_over(&self) {
        let kept = kept(&self.world.root);
        assert_eq!(kept, [".gitignore"; 1][..usize::from(!kept.is_empty())]);
    }

    pub(crate) fn tree(&self) -> Tree {
        tree(&self.world.root)
    }

    /// The commit does this, and undo and redo take it back and bring it back.
    #[track_caller]
    fn check(&self, changes: &[&str]) {
        let before = self.tree();
        let (said, change) = self.committed();
        assert_eq!(said, changes);
        let after = self.tree();
        self.world.value("undo", &json!({"change": change}));
        assert_eq!(self.tree(), before, "undo");
        self.world.value("redo", &json!({}));
        assert_eq!(self.tree(), after, "redo");
    }
}

/// What a program leaves, and what somebody else does meanwhile.
type Program = fn(&Layered);
type Somebody = fn(&Path);

/// What is in a workspace: every path, with what it is and its mode.
pub(crate) type Tree = Vec<(PathBuf, What, u32)>;

pub(crate) fn tree(root: &Path) -> Tree {
    let seen = snapshot(root).into_iter().filter(|(path, _)| !path.as_os_str().is_empty());
    seen.map(|(path, seen)| (path, seen.what, seen.mode)).collect()
}

pub(crate) fn kept(root: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(root.join(".ringfence")) else { return Vec::new() };
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

pub(crate) fn mark(path: &Path, name: &str, value: &str) {
    setxattr(path, format!("user.overlay.{name}"), value.as_bytes(), XattrFlags::empty()).unwrap();
}

fn fence_changes(layered: &Layered) -> Result<Box<dyn Changes>, ToolError> {
    let (limits, signal) = (Limits::of(Dialect::Standard), Signal::new());
    let cx = Context::new(&limits, Pace::Patient, &signal);
    let workspace = layered.world.fence.workspace("workspace").unwrap();
    let started = UNIX_EPOCH + Duration::from_nanos(layered.started);
    let view = View { started, ..workspace.view(&cx)? };
    workspace.changes(&view, fs::File::open(&layered.upper).unwrap().into(), &cx)
}

fn view(world: &World, limits: &Limits) -> Result<View, ToolError> {
    let signal = Signal::new();
    world.fence.workspace("workspace").unwrap().view(&Context::new(limits, Pace::Patient, &signal))
}
