//! Tests of kept layers: a person keeps some of what a wrapped program did, and the rest stays in the layer.

mod conflicts;
mod crash;
mod keep;
mod live;
mod lower_sync;
mod review;
mod selection_model;
mod store;

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use ringfence_kernel::{
    CallCommitState, CallContext, CallLimits, Dialect, ErrorKind, IoMode, LayerDescription, LayerSummary, ToolError,
    WorkspaceLayer,
};
use ringfence_testkit::approver::ScriptedApprover;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::{Value, json};

use crate::fixture::{FsFixture, FsFixtureConfig};
use crate::overlay::{ModeTree, set_xattr, tree};

/// A person who approves what they are asked about.
pub(crate) fn setup() -> FsFixtureConfig {
    FsFixtureConfig { by_person: true, person: Some(ScriptedApprover::approving()), ..FsFixtureConfig::default() }
}

/// A workspace, and the layer of a program that runs.
struct LayerFixture {
    world: FsFixture,
    /// The upper directory.
    upper: PathBuf,
    id: String,
    running: Option<Box<dyn WorkspaceLayer>>,
}

impl LayerFixture {
    /// A workspace with these files, and a program that starts now.
    fn new(files: &[(&str, &str)]) -> Self {
        Self::with(setup(), files)
    }

    fn with(setup: FsFixtureConfig, files: &[(&str, &str)]) -> Self {
        let world = FsFixture::in_memory(setup);
        files.iter().for_each(|(path, content)| world.write(path, content));
        Self::start(world)
    }

    fn start(world: FsFixture) -> Self {
        let layer = create_layer(&world, &description()).unwrap();
        let id = layer.id().to_owned();
        let upper = layers_of(&world).join(&id).join("upper");
        Self { world, upper, id, running: Some(layer) }
    }

    fn write(&self, path: &str, content: impl AsRef<[u8]>) -> &Self {
        let path = self.upper.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
        self
    }

    fn mode(&self, path: &str, mode: u32) -> &Self {
        fs::set_permissions(self.upper.join(path), fs::Permissions::from_mode(mode)).unwrap();
        self
    }

    fn link(&self, path: &str, target: &str) -> &Self {
        std::os::unix::fs::symlink(target, self.upper.join(path)).unwrap();
        self
    }

    fn whiteout(&self, path: &str) -> &Self {
        let path = self.upper.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        mknodat(CWD, &path, FileType::CharacterDevice, Mode::empty(), 0).unwrap();
        self
    }

    fn opaque(&self, path: &str) -> &Self {
        fs::create_dir_all(self.upper.join(path)).unwrap();
        set_xattr(&self.upper.join(path), "opaque", "y");
        self
    }

    /// The program ends.
    fn finish(&mut self, exit_code: i32) -> LayerSummary {
        let layer = self.running.take().unwrap();
        with_context(|cx| layer.finish(exit_code, cx)).unwrap()
    }

    fn ended(mut self) -> Self {
        self.finish(0);
        self
    }

    #[track_caller]
    fn review(&self) -> Value {
        self.world.value("review_layer", &json!({"layer": self.id}))
    }

    /// Path, kind and section of each listed change; a derived tree has its count.
    #[track_caller]
    fn listed(&self) -> Vec<String> {
        let review = self.review();
        let mut lines = Vec::new();
        for section in review["sections"].as_array().unwrap() {
            for item in section["items"].as_array().unwrap() {
                let text = |key: &str| item[key].as_str().unwrap();
                lines.push(format!("{} {} {}", section["section"].as_str().unwrap(), text("kind"), text("path")));
            }
        }
        for tree in review["derived"].as_array().unwrap() {
            lines.push(format!("derived {} {}", tree["count"], tree["path"].as_str().unwrap()));
        }
        lines
    }

    fn try_keep(&self, items: &Value) -> Result<Value, (ErrorKind, String)> {
        let arguments = match items {
            Value::Null => json!({"layer": self.id}),
            items => json!({"layer": self.id, "items": items}),
        };
        let reply = self.world.call("keep_layer", &arguments);
        match reply.error {
            Some(kind) => Err((kind, reply.text)),
            None => Ok(serde_json::from_str::<Value>(&reply.text).unwrap()["value"].clone()),
        }
    }

    #[track_caller]
    fn keep(&self, items: &Value) -> Value {
        self.try_keep(items).unwrap()
    }

    fn keep_paths(&self, paths: &[&str]) -> Value {
        self.keep(&paths.iter().map(|path| json!({"path": path})).collect())
    }

    fn tree(&self) -> ModeTree {
        tree(&self.world.root)
    }

    fn has_layer(&self) -> bool {
        layers_of(&self.world).join(&self.id).exists()
    }
}

fn description() -> LayerDescription {
    LayerDescription { program: "agent".to_owned(), profile: "agent".to_owned(), ..LayerDescription::default() }
}

fn layers_of(world: &FsFixture) -> PathBuf {
    world.host_path().join("state/layers")
}

fn with_context<T>(work: impl FnOnce(&CallContext<'_>) -> T) -> T {
    let (limits, signal) = (CallLimits::for_dialect(Dialect::Standard), CallCommitState::new());
    work(&CallContext::new(&limits, IoMode::Blocking, &signal))
}

fn create_layer(world: &FsFixture, about: &LayerDescription) -> Result<Box<dyn WorkspaceLayer>, ToolError> {
    let workspace = world.fence.workspace("workspace").unwrap();
    with_context(|cx| workspace.create_layer(&workspace.view(cx)?, about, cx))
}

fn strings(values: &Value, key: &str) -> Vec<String> {
    values.as_array().unwrap().iter().map(|value| value[key].as_str().unwrap().to_owned()).collect()
}

/// Lines from one number to another.
fn lines(range: std::ops::Range<u32>) -> String {
    range.map(|line| format!("line {line}\n")).collect()
}

fn inode(path: &Path) -> u64 {
    fs::symlink_metadata(path).unwrap().ino()
}
