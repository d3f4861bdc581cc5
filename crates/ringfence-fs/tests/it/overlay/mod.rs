//! Overlay tests: what a program left becomes a change like any other, or nothing at all.

mod approval;
mod concurrent_writers;
pub(crate) mod crash;
mod entry_kinds;
mod model;
mod refusals;
mod view;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use ringfence_fs::Fence;
use ringfence_kernel::{
    CallCommitState, CallContext, CallLimits, ChangeGroupDecision, ChangeKind, ChangedPath, Dialect, ErrorKind, IoMode,
    Preview, Ticket, Tool, ToolBinding, ToolError, ToolPlan, ToolRegistry, Workspace, WorkspaceChanges, WorkspaceView,
};
use ringfence_testkit::world::unlock;
use rustix::fs::{CWD, FileType, Mode, XattrFlags, mknodat, setxattr};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::fixture::{FixtureReply, FsFixture, FsFixtureConfig};
use crate::snapshot::{SnapshotEntryKind, snapshot};

/// A tool that commits an overlay, as a tool that ran a program in it would.
struct CommitOverlayTool(Arc<dyn Workspace>);

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

impl Tool for CommitOverlayTool {
    type Args = Args;
    type Prepared = Box<dyn WorkspaceChanges>;
    type Outcome = Outcome;

    fn plan(&self, args: Args, cx: &CallContext<'_>) -> Result<ToolPlan<Self::Prepared>, ToolError> {
        let view = WorkspaceView { started: UNIX_EPOCH + Duration::from_nanos(args.started), ..self.0.view(cx)? };
        let upper = fs::File::open(args.upper).unwrap();
        let work = self.0.changes(&view, upper.into(), cx)?;
        let groups = work.groups();
        // All or nothing, as `mode: "review"` has it.
        match groups.iter().find_map(|group| group.refusal.clone()) {
            Some(refused) => Err(refused),
            None => {
                Ok(ToolPlan { accesses: groups.into_iter().flat_map(|group| group.accesses).collect(), prepared: work })
            }
        }
    }

    fn preview(&self, work: &mut Self::Prepared, cx: &CallContext<'_>) -> Result<Preview, ToolError> {
        work.preview(cx)
    }

    fn run(&self, mut work: Self::Prepared, ticket: &Ticket<'_>) -> Result<Outcome, ToolError> {
        work.merge();
        let changes = work.changed_paths().iter().map(change_line).collect();
        let all = vec![ChangeGroupDecision::Keep; work.groups().len()];
        if let Some(ChangeGroupDecision::Refuse(error)) =
            work.reconcile(all).into_iter().max_by_key(ChangeGroupDecision::strictness)
        {
            return Err(error);
        }
        work.commit(ticket)?;
        if let Some((_, withheld)) = ticket.withheld().into_iter().next() {
            return Err(withheld);
        }
        Ok(Outcome { changes, change: ticket.change_id().to_owned() })
    }
}

fn change_line(change: &ChangedPath) -> String {
    let size = change.size.map(|size| format!(" {size}")).unwrap_or_default();
    match &change.kind {
        ChangeKind::Renamed { from } => format!("{} from {from}{size}", change.path),
        what => format!("{} {}{size}", change.path, format!("{what:?}").to_lowercase()),
    }
}

pub(crate) fn register(registry: &mut ToolRegistry, fence: &Fence) {
    let tool = CommitOverlayTool(fence.workspace("workspace").unwrap());
    registry.register(tool, [ToolBinding::standard::<Args, Outcome>("commit_layer")]).unwrap();
}

pub(crate) fn setup() -> FsFixtureConfig {
    FsFixtureConfig { extra: Some(register), ..FsFixtureConfig::default() }
}

/// A workspace, and an overlay above it.
pub(crate) struct OverlayFixture {
    pub(crate) world: FsFixture,
    pub(crate) upper: PathBuf,
    started: u64,
}

impl OverlayFixture {
    /// A workspace with these files.
    pub(crate) fn new(files: &[(&str, &str)]) -> Self {
        Self::with(setup(), files)
    }

    pub(crate) fn with(setup: FsFixtureConfig, files: &[(&str, &str)]) -> Self {
        let world = FsFixture::in_memory(setup);
        files.iter().for_each(|(path, content)| world.write(path, content));
        Self::start_over(world)
    }

    /// The program starts now.
    pub(crate) fn start_over(world: FsFixture) -> Self {
        let upper = world.host_path().join("upper");
        unlock(&upper);
        let _ = fs::remove_dir_all(&upper);
        fs::create_dir(&upper).unwrap();
        Self::restart_over(world, upper)
    }

    /// Runs the program again, with the same changes.
    pub(crate) fn restart_over(world: FsFixture, upper: PathBuf) -> Self {
        let started = view(&world, &CallLimits::for_dialect(Dialect::Standard)).unwrap().started;
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
        set_xattr(&self.upper.join(path), name, value);
        self
    }

    pub(crate) fn opaque(&self, path: &str) -> &Self {
        self.directory(path).attribute(path, "opaque", "y")
    }

    pub(crate) fn arguments(&self) -> Value {
        json!({"upper": self.upper, "started": self.started})
    }

    pub(crate) fn commit(&self) -> FixtureReply {
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
    pub(crate) fn check_refused(&self, kind: ErrorKind, words: &str) {
        let before = self.tree();
        let answer = self.commit();
        assert_eq!(answer.error, Some(kind), "{}", answer.text);
        assert!(answer.text.contains(words), "{}", answer.text);
        assert_eq!(self.tree(), before);
        self.check_no_images();
    }

    /// The image store has no image of a change that was not made.
    fn check_no_images(&self) {
        let kept = image_names(&self.world.root);
        assert_eq!(kept, [".gitignore"; 1][..usize::from(!kept.is_empty())]);
    }

    pub(crate) fn tree(&self) -> ModeTree {
        tree(&self.world.root)
    }

    /// The commit makes these changes, and undo and redo revert and repeat them.
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

/// A program's changes, and those of another writer meanwhile.
type OverlayProgram = fn(&OverlayFixture);
type ConcurrentWriter = fn(&Path);

/// The tree of a workspace: every path, with its kind and its mode.
pub(crate) type ModeTree = Vec<(PathBuf, SnapshotEntryKind, u32)>;

pub(crate) fn tree(root: &Path) -> ModeTree {
    let seen = snapshot(root).into_iter().filter(|(path, _)| !path.as_os_str().is_empty());
    seen.map(|(path, seen)| (path, seen.kind, seen.mode)).collect()
}

pub(crate) fn image_names(root: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(root.join(".ringfence")) else { return Vec::new() };
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

pub(crate) fn set_xattr(path: &Path, name: &str, value: &str) {
    setxattr(path, format!("user.overlay.{name}"), value.as_bytes(), XattrFlags::empty()).unwrap();
}

fn fence_changes(layered: &OverlayFixture) -> Result<Box<dyn WorkspaceChanges>, ToolError> {
    let (limits, signal) = (CallLimits::for_dialect(Dialect::Standard), CallCommitState::new());
    let cx = CallContext::new(&limits, IoMode::Blocking, &signal);
    let workspace = layered.world.fence.workspace("workspace").unwrap();
    let started = UNIX_EPOCH + Duration::from_nanos(layered.started);
    let view = WorkspaceView { started, ..workspace.view(&cx)? };
    workspace.changes(&view, fs::File::open(&layered.upper).unwrap().into(), &cx)
}

fn view(world: &FsFixture, limits: &CallLimits) -> Result<WorkspaceView, ToolError> {
    let signal = CallCommitState::new();
    world.fence.workspace("workspace").unwrap().view(&CallContext::new(limits, IoMode::Blocking, &signal))
}
