//! What a program left in a layer becomes a change of the workspace like any other, or nothing at all.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use ringfence_fs::{Fence, MountSpec, Options, Rights};
use ringfence_kernel::{
    ChangeKind, ChangedPath, Changes, Context, Dialect, ErrorKind, Face, Limits, Pace, Plan, Preset, Preview, Registry,
    Signal, Ticket, Tool, ToolError, View, Workspace,
};
use rustix::fs::{CWD, FileType, Mode, RenameFlags, XattrFlags, mknodat, renameat_with, setxattr};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::attacks::faults;
use crate::person::Person;
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
        Ok(Plan { touches: work.touches(), work })
    }

    fn preview(&self, work: &mut Self::Work, cx: &Context<'_>) -> Result<Preview, ToolError> {
        work.preview(cx)
    }

    fn run(&self, work: Self::Work, ticket: &Ticket<'_>) -> Result<Outcome, ToolError> {
        let changes = work.list().iter().map(said).collect();
        work.commit(ticket)?;
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

    fn commit(&self) -> Answer {
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
    fn refused(&self, kind: ErrorKind, words: &str) {
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

fn view(world: &World, limits: &Limits) -> Result<View, ToolError> {
    let signal = Signal::new();
    world.fence.workspace("workspace").unwrap().view(&Context::new(limits, Pace::Patient, &signal))
}

fn masked(world: &World) -> Vec<String> {
    let view = view(world, &Limits::of(Dialect::Standard)).unwrap();
    view.workspace.masked.iter().map(|path| path.to_str().unwrap().to_owned()).collect()
}

/// A program that finds a directory covered is wrong about it: it could not even remove it.
#[test]
fn a_directory_that_the_host_cannot_open_now_keeps_a_program_from_starting() {
    let short = std::thread::spawn(|| {
        let layered = Layered::new(&[("d/f", "x")]);
        faults::fail_with(&[faults::Fault::openat2(faults::EMFILE)]);
        view(&layered.world, &Limits::of(Dialect::Standard))
            .map(|view| view.workspace.masked)
            .map_err(|error| error.kind)
    });
    assert_eq!(short.join().unwrap(), Err(ErrorKind::Io));
}

#[test]
fn files_come_change_and_go() {
    let layered = Layered::new(&[("a.txt", "old\n"), ("gone.txt", "gone\n"), ("d/same.txt", "same\n"), ("d/e/x", "x")]);
    layered.write("a.txt", "new\n").write("b/c/new.txt", "new\n").whiteout("gone.txt").write("d/same.txt", "same\n");
    layered.whiteout("d/e").whiteout("d/never-was");
    layered.check(&[
        "a.txt modified 4",
        "b created",
        "b/c created",
        "b/c/new.txt created 4",
        "d/e deleted",
        "gone.txt deleted",
    ]);
    assert_eq!(layered.world.read("a.txt"), "new\n");
    assert_eq!(layered.world.read("b/c/new.txt"), "new\n");
}

#[test]
fn a_layer_without_changes_changes_nothing() {
    let layered = Layered::new(&[("a.txt", "same\n"), ("d/b.txt", "same\n")]);
    layered.write("a.txt", "same\n").directory("d").whiteout("x/y");
    fs::remove_dir_all(layered.upper.join("x")).unwrap();
    let before = snapshot(&layered.world.root);
    let work = fence_changes(&layered).unwrap();
    assert!(work.list().is_empty() && work.touches().is_empty());
    assert_eq!(snapshot(&layered.world.root), before);
}

fn fence_changes(layered: &Layered) -> Result<Box<dyn Changes>, ToolError> {
    let (limits, signal) = (Limits::of(Dialect::Standard), Signal::new());
    let cx = Context::new(&limits, Pace::Patient, &signal);
    let workspace = layered.world.fence.workspace("workspace").unwrap();
    let started = UNIX_EPOCH + Duration::from_nanos(layered.started);
    let view = View { started, ..workspace.view(&cx)? };
    workspace.changes(&view, fs::File::open(&layered.upper).unwrap().into(), &cx)
}

#[test]
fn a_directory_that_was_removed_and_made_again_hides_nothing() {
    let layered = Layered::new(&[("d/a", "a"), ("d/b", "b"), ("d/sub/x", "x"), ("d/sub/y", "y"), ("other", "o")]);
    layered.opaque("d").write("d/b", "B").write("d/sub/x", "x").write("d/new", "n");
    layered.check(&["d/a deleted", "d/b modified 1", "d/new created 1", "d/sub/y deleted"]);
}

#[test]
fn opaque_directories_lie_in_each_other() {
    let layered = Layered::new(&[("d/a", "a"), ("d/e/b", "b"), ("d/e/f/c", "c"), ("d/e/f/g/h", "h")]);
    layered.directory("d").opaque("d/e").opaque("d/e/f").opaque("d/e/f/g").write("d/e/f/g/i", "i").opaque("x/y");
    layered.check(&[
        "d/e/b deleted",
        "d/e/f/c deleted",
        "d/e/f/g/h deleted",
        "d/e/f/g/i created 1",
        "x created",
        "x/y created",
    ]);
}

#[test]
fn one_kind_of_thing_takes_the_place_of_another() {
    let layered = Layered::new(&[("file", "f"), ("dir/a", "a"), ("dir/b/c", "c"), ("to-link", "l"), ("e/x", "x")]);
    symlink("file", layered.world.root.join("link")).unwrap();
    let layered = Layered::above(layered.world);
    layered.write("file/inner/x", "x").write("dir", "now a file").write("link", "now a file");
    symlink("dir", layered.upper.join("to-link")).unwrap();
    symlink("to-link", layered.upper.join("e")).unwrap();
    layered.check(&[
        "dir modified 10",
        "e link",
        "file modified",
        "file/inner created",
        "file/inner/x created 1",
        "link modified 10",
        "to-link link",
    ]);
}

#[test]
fn modes_change_and_special_bits_do_not_come_along() {
    let layered = Layered::new(&[("run.sh", "#!/bin/sh\n"), ("suid", "s"), ("d/x", "x"), ("shared/x", "x")]);
    let mode =
        |root: &Path, path: &str, mode| fs::set_permissions(root.join(path), fs::Permissions::from_mode(mode)).unwrap();
    mode(&layered.world.root, "shared", 0o2775);
    let layered = Layered::above(layered.world);
    layered.write("run.sh", "#!/bin/sh\n").write("suid", "S").directory("d").write("new", "n").directory("shared");
    layered.write("closed/x", "x");
    for (path, bits) in
        [("run.sh", 0o755), ("suid", 0o4755), ("d", 0o700), ("new", 0o6711), ("shared", 0o750), ("closed", 0o555)]
    {
        mode(&layered.upper, path, bits);
    }
    layered.check(&[
        "closed created",
        "closed/x created 1",
        "d mode",
        "new created 1",
        "run.sh mode 10",
        "shared mode",
        "suid modified 1",
    ]);
    let bits = |path: &str| fs::metadata(layered.world.root.join(path)).unwrap().mode() & 0o7777;
    assert_eq!([bits("run.sh"), bits("suid"), bits("d")], [0o755, 0o755, 0o700]);
    assert_eq!([bits("new"), bits("shared"), bits("closed")], [0o711, 0o2750, 0o555]);
}

#[test]
fn a_file_that_nobody_may_write_can_be_replaced_as_a_program_can_replace_it() {
    let layered = Layered::new(&[("pack.idx", "old"), ("shut", "old")]);
    let mode = |root: &Path, path: &str, mode| {
        fs::set_permissions(root.join(path), fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(&layered.world.root, "pack.idx", 0o444);
    mode(&layered.world.root, "shut", 0o000);
    let layered = Layered::above(layered.world);
    layered.write("pack.idx", "new").write("shut", "open");
    mode(&layered.upper, "pack.idx", 0o444);
    let (said, change) = layered.committed();
    assert_eq!(said, ["pack.idx modified 3", "shut modified 4"]);
    layered.world.value("undo", &json!({"change": change}));
    assert_eq!(layered.world.read("pack.idx"), "old");
    assert_eq!(fs::metadata(layered.world.root.join("shut")).unwrap().mode() & 0o777, 0o000);
}

#[test]
fn a_committed_file_has_the_time_that_the_program_gave_it() {
    let layered = Layered::new(&[("a", "a")]);
    layered.write("a", "b").write("d/x", "x");
    let time = UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    for path in ["a", "d/x"] {
        fs::File::options().write(true).open(layered.upper.join(path)).unwrap().set_modified(time).unwrap();
    }
    layered.check(&["a modified 1", "d created", "d/x created 1"]);
    for path in ["a", "d/x"] {
        assert_eq!(fs::metadata(layered.world.root.join(path)).unwrap().modified().unwrap(), time);
    }
}

#[test]
fn a_file_that_has_another_name_now_is_listed_once() {
    let layered = Layered::new(&[("old.txt", "contents"), ("d/two", "two!")]);
    layered.whiteout("old.txt").write("new.txt", "contents").attribute("new.txt", "origin", "");
    layered.whiteout("d/two").write("d/copy", "two?");
    layered.check(&["d/copy created 4", "d/two deleted", "new.txt from old.txt 8"]);
}

#[test]
fn whiteouts_by_attribute_count_where_the_directory_says_so() {
    let layered = Layered::new(&[("d/a", "a"), ("e/a", "a")]);
    layered.write("d/a", "").attribute("d/a", "whiteout", "").attribute("d", "opaque", "x");
    layered.write("e/a", "").attribute("e/a", "whiteout", "");
    layered.check(&["d/a deleted", "e/a modified 0"]);
}

#[test]
fn hard_links_become_files_of_their_own() {
    let layered = Layered::new(&[("a", "a"), ("other", "a")]);
    let root = &layered.world.root;
    fs::hard_link(root.join("a"), root.join("second")).unwrap();
    let layered = Layered::above(layered.world);
    let root = &layered.world.root;
    layered.write("x", "xx").write("a", "new");
    fs::hard_link(layered.upper.join("x"), layered.upper.join("y")).unwrap();
    layered.check(&["a modified 3", "x created 2", "y created 2"]);
    assert_eq!(fs::metadata(root.join("x")).unwrap().nlink(), 1);
    assert_eq!((layered.world.read("a"), layered.world.read("second")), ("new".to_owned(), "a".to_owned()));
}

#[test]
fn what_its_owner_may_not_read_is_read() {
    let layered = Layered::new(&[("d/x", "x")]);
    layered.write("shut/in/f", "secretive").write("d/g", "g").write("d/x", "y");
    for (path, mode) in [("shut/in/f", 0o000), ("shut/in", 0o000), ("shut", 0o300), ("d/g", 0o200), ("d/x", 0o644)] {
        fs::set_permissions(layered.upper.join(path), fs::Permissions::from_mode(mode)).unwrap();
    }
    let (said, _) = layered.committed();
    let expected = ["d/g created 1", "d/x modified 1", "shut created", "shut/in created", "shut/in/f created 9"];
    assert_eq!(said, expected);
    let mode = |path: &str| fs::symlink_metadata(layered.world.root.join(path)).unwrap().mode() & 0o777;
    assert_eq!([mode("shut"), mode("shut/in"), mode("d/g"), mode("shut/in/f")], [0o700, 0o500, 0o200, 0o000]);
}

#[test]
fn pipes_sockets_and_devices_are_refused() {
    let shapes: [(&str, Somebody); 3] = [
        ("a pipe", |path| mknodat(CWD, path, FileType::Fifo, Mode::RWXU, 0).unwrap()),
        ("a socket", |path| drop(std::os::unix::net::UnixListener::bind(path).unwrap())),
        ("a device", |path| {
            let null = rustix::fs::makedev(1, 3);
            if mknodat(CWD, path, FileType::CharacterDevice, Mode::RWXU, null).is_err() {
                eprintln!("no devices can be made here, so a pipe is");
                mknodat(CWD, path, FileType::Fifo, Mode::RWXU, 0).unwrap();
            }
        }),
    ];
    for (what, make) in shapes {
        let layered = Layered::new(&[("a", "a")]);
        layered.write("a", "changed").directory("d");
        make(&layered.upper.join("d/thing"));
        layered.refused(ErrorKind::WrongType, "`d/thing` is ");
        eprintln!("{what} is refused");
    }
}

#[test]
fn links_that_lead_outside_are_refused() {
    let outside = [
        ("/etc/passwd", "x"),
        ("/usr", "x"),
        ("/usr/../etc/passwd", "x"),
        ("/usrx/y", "x"),
        ("/workspace/a", "x"),
        ("..", "x"),
        ("../outside", "x"),
        ("../../x", "d/x"),
        ("inner/../../../x", "d/x"),
        ("here/..", "x"),
        ("none/../a", "x"),
        ("up/secret", "x"),
        ("d/up/secret", "x"),
    ];
    for (target, at) in outside {
        let layered = Layered::new(&[("a", "a"), ("d/inner/b", "b")]);
        // Somebody left links there before.
        symlink(".", layered.world.root.join("here")).unwrap();
        symlink("../outside", layered.world.root.join("up")).unwrap();
        symlink("../up", layered.world.root.join("d/up")).unwrap();
        let layered = Layered::above(layered.world);
        layered.directory("d");
        symlink(target, layered.upper.join(at)).unwrap();
        layered.refused(ErrorKind::WrongType, "is a link that leads outside the workspace");
    }
    let inside = [("a", "x"), ("../a", "d/x"), ("nowhere", "x"), ("inner/b", "d/x"), ("x", "x"), (".", "d/x")];
    // A virtual environment has links to the system's interpreter.
    for (target, at) in inside.into_iter().chain([("/usr/bin/python3", "d/x"), ("/bin/sh", "x")]) {
        let layered = Layered::new(&[("a", "a"), ("d/inner/b", "b")]);
        layered.directory("d");
        symlink(target, layered.upper.join(at)).unwrap();
        layered.check(&[&format!("{at} link")]);
    }
}

#[test]
fn what_the_layer_says_to_be_elsewhere_is_refused() {
    for attribute in ["redirect", "metacopy"] {
        let layered = Layered::new(&[("d/a", "a")]);
        layered.write("d/a", "b").attribute("d/a", attribute, "/etc/passwd");
        layered.refused(ErrorKind::WrongType, "reference to another file");
        let layered = Layered::new(&[("d/a", "a")]);
        layered.directory("d").attribute("d", attribute, "x");
        layered.refused(ErrorKind::WrongType, "reference to another file");
    }
}

#[test]
fn a_file_that_claims_to_be_huge_is_refused() {
    let layered = Layered::new(&[("a", "a")]);
    let file = fs::File::create(layered.upper.join("huge")).unwrap();
    file.set_len((1 << 62) + 5).unwrap();
    layered.refused(ErrorKind::WriteLimit, "`huge`");
}

#[test]
fn directories_that_are_too_deep_are_refused_and_deep_ones_are_not() {
    let layered = Layered::new(&[("a", "a")]);
    deepen(&layered.upper, 4096);
    layered.refused(ErrorKind::InvalidPath, "deeper than a path may be");
    cut(&layered.upper);
    let layered = Layered::new(&[("a", "a")]);
    deepen(&layered.upper, 900);
    let (said, change) = layered.committed();
    assert_eq!(said.len(), 900);
    layered.world.value("undo", &json!({"change": change}));
    assert_eq!(layered.tree().len(), 1);
    // What is kept can no longer be reached by the path of a host, and would stay behind.
    cut(&layered.upper);
}

/// Directories in each other, made without ever naming the whole path.
fn deepen(root: &Path, depth: usize) {
    let mut at = rustix::fs::open(root, rustix::fs::OFlags::DIRECTORY, Mode::empty()).unwrap();
    for _ in 0..depth {
        rustix::fs::mkdirat(&at, "d", Mode::RWXU).unwrap();
        at = rustix::fs::openat(&at, "d", rustix::fs::OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
}

fn cut(root: &Path) {
    let status = std::process::Command::new("rm").arg("-rf").arg(root.join("d")).status().unwrap();
    assert!(status.success());
}

#[test]
fn names_that_hide_what_they_are_are_refused() {
    for name in [&b"a\nb"[..], b"\xff\xfe", "a\u{202e}b".as_bytes()] {
        let layered = Layered::new(&[("a", "a")]);
        fs::write(layered.upper.join(std::ffi::OsStr::from_bytes(name)), "x").unwrap();
        layered.refused(ErrorKind::InvalidPath, "names are ");
    }
    for name in [".ringfence", ".ringfence-tmp-1", "d/.ringfence"] {
        let layered = Layered::new(&[("a", "a")]);
        layered.write(name, "x");
        layered.refused(ErrorKind::WrongType, "is the host's own");
    }
}

#[test]
fn the_keep_never_goes() {
    let layered = Layered::new(&[("a", "a"), ("b", "b")]);
    layered.world.value("write_file", &json!({"path": "a", "content": "2"}));
    let layered = Layered::above(layered.world);
    mark(&layered.upper, "opaque", "y");
    layered.whiteout(".ringfence").write("b", "b");
    let (said, _) = layered.committed();
    assert_eq!(said, ["a deleted"]);
    assert!(kept(&layered.world.root).len() > 1);
}

#[test]
fn what_somebody_else_changed_meanwhile_is_a_conflict() {
    let cases: [(&str, Program, Somebody); 10] = [
        ("modified", |l| _ = l.write("a", "new"), |root| fs::write(root.join("a"), "mine").unwrap()),
        (
            "mode",
            |l| _ = l.write("a", "new"),
            |root| {
                fs::set_permissions(root.join("a"), fs::Permissions::from_mode(0o600)).unwrap();
            },
        ),
        (
            "deleted",
            |l| _ = l.write("a", "new").attribute("a", "origin", ""),
            |root| {
                fs::remove_file(root.join("a")).unwrap();
            },
        ),
        ("newly there", |l| _ = l.write("fresh", "new"), |root| fs::write(root.join("fresh"), "mine").unwrap()),
        (
            "removed here, changed there",
            |l| _ = l.whiteout("a"),
            |root| {
                fs::write(root.join("a"), "mine").unwrap();
            },
        ),
        ("in a directory that goes", |l| _ = l.whiteout("d"), |root| fs::write(root.join("d/e/x"), "y").unwrap()),
        (
            "added to a directory that goes",
            |l| _ = l.whiteout("d"),
            |root| {
                fs::write(root.join("d/e/more"), "y").unwrap();
            },
        ),
        (
            "added to a directory that is hidden",
            |l| _ = l.opaque("d"),
            |root| {
                fs::write(root.join("d/more"), "y").unwrap();
            },
        ),
        (
            "the directory is another",
            |l| _ = l.write("d/e/x", "new"),
            |root| {
                fs::rename(root.join("d/e"), root.join("d/was")).unwrap();
                fs::rename(root.join("other"), root.join("d/e")).unwrap();
            },
        ),
        (
            "the directory is gone",
            |l| _ = l.directory("d/e").attribute("d/e", "origin", "").write("d/e/new", "n"),
            |root| {
                fs::remove_dir_all(root.join("d/e")).unwrap();
            },
        ),
    ];
    for (what, program, somebody) in cases {
        let layered = Layered::new(&[("a", "a"), ("d/e/x", "x"), ("other/x", "x")]);
        program(&layered);
        somebody(&layered.world.root);
        eprintln!("{what}");
        layered.refused(ErrorKind::Conflict, "changed in the workspace since the program started");
    }
}

#[test]
fn what_was_changed_right_before_the_start_is_no_conflict() {
    for world in [World::in_memory(setup()), World::with(setup())] {
        world.write("d/x", "x");
        let mut layered = Layered::above(world);
        for round in 1..20 {
            layered.world.write("a", round.to_string());
            layered.world.write("d/x", round.to_string());
            layered = Layered::above(layered.world);
            layered.write("a", format!("{round}!")).whiteout("d");
            layered.committed();
            layered.world.write("d/x", "x");
        }
    }
}

#[test]
fn what_is_changed_right_after_the_start_is_always_one() {
    for world in [World::in_memory(setup()), World::with(setup())] {
        world.write("a", "0");
        let mut layered = Layered::above(world);
        for round in 0..40 {
            layered = Layered::above(layered.world);
            layered.world.write("a", "1");
            layered.write("a", format!("{round}!"));
            layered.refused(ErrorKind::Conflict, "since the program started");
        }
    }
}

#[test]
fn a_directory_that_becomes_a_link_while_it_is_committed_to_leads_nowhere() {
    let world = World::in_memory(setup());
    let twin = world.outside.join("twin");
    fs::create_dir(&twin).unwrap();
    fs::write(twin.join("f"), "outside").unwrap();
    world.write("d/f", "inside");
    symlink("../outside/twin", world.root.join("l")).unwrap();
    let seconds = std::env::var("RINGFENCE_RACE_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let until = std::time::Instant::now() + Duration::from_secs(seconds);
    let (root, outside) = (world.root.clone(), snapshot(&world.outside));
    let stop = std::sync::atomic::AtomicBool::new(false);
    let outside_path = world.outside.clone();
    let (mut made, mut refused) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let _ = renameat_with(CWD, root.join("d"), CWD, root.join("l"), RenameFlags::EXCHANGE);
            }
        });
        let mut world = Some(world);
        for round in 0.. {
            let Some(here) = world.take().filter(|_| std::time::Instant::now() < until) else { break };
            let layered = Layered::above(here);
            layered.write("d/f", round.to_string()).write("d/n/new", "new").whiteout("d/old");
            // Nothing counts as changed: only the steps themselves stand between the two.
            let arguments = json!({"upper": layered.upper, "started": u64::MAX / 4});
            match layered.world.call("commit_layer", &arguments).error {
                None => made += 1,
                Some(_) => refused += 1,
            }
            assert_eq!(snapshot(&outside_path), outside);
            world = Some(layered.world);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    println!("{made} commits were made, {refused} refused");
}

#[test]
fn other_changes_beside_it_are_none() {
    let layered = Layered::new(&[("a", "a"), ("d/x", "x"), ("d/y", "y")]);
    layered.write("d/x", "new").write("d/fresh", "f");
    layered.world.write("d/y", "mine");
    layered.world.write("d/z", "mine");
    layered.world.write("b", "mine");
    let (said, _) = layered.committed();
    assert_eq!(said, ["d/fresh created 1", "d/x modified 3"]);
    assert_eq!(layered.world.read("d/y"), "mine");
}

#[test]
fn protected_paths_are_asked_about_and_others_are_not() {
    let asked = [
        ".git/hooks/pre-commit",
        ".git/config",
        ".git",
        "sub/.git",
        ".gitattributes",
        ".envrc",
        ".mcp.json",
        ".vscode/tasks.json",
        ".claude/settings.json",
        ".github/workflows/ci.yml",
        ".GIT/hooks/x",
        "sitecustomize.py",
        "usercustomize.py",
        "nested/HEAD",
    ];
    for path in asked {
        let layered = Layered::with(Setup { preset: Preset::Edits, ..setup() }, &[("a", "a")]);
        layered.write(path, "x").write("a", "b");
        if path == "nested/HEAD" {
            layered
                .write("nested/config", "[core]\nfsmonitor = evil\n")
                .directory("nested/objects")
                .directory("nested/refs");
        }
        layered.refused(ErrorKind::ApprovalDenied, "a setting that other programs act on");
    }
    for path in ["Makefile", "package.json", "conftest.py", "model.pth", "src/.gitignore", "d/HEAD", "config"] {
        let layered = Layered::new(&[("a", "a")]);
        layered.write(path, "x");
        layered.committed();
    }
}

#[test]
fn a_secret_that_goes_with_its_directory_is_asked_about() {
    let layered = Layered::new(&[("d/e/.env", "KEY=1"), ("d/x", "x")]);
    layered.whiteout("d");
    layered.refused(ErrorKind::ApprovalDenied, "which may hold secrets");
}

#[test]
fn a_name_that_was_linked_to_a_protected_file_is_asked_about() {
    let layered = Layered::new(&[(".git/config", "[core]\n")]);
    fs::hard_link(layered.world.root.join(".git/config"), layered.world.root.join("notes")).unwrap();
    let layered = Layered::above(layered.world);
    layered.write("notes", "[core]\nfsmonitor = evil\n");
    layered.refused(ErrorKind::ApprovalDenied, "`notes`");
}

#[test]
fn what_cannot_be_kept_is_asked_about() {
    let limits = Limits { undo_session_bytes: 100, ..Limits::of(Dialect::Standard) };
    let layered = Layered::with(Setup { limits: limits.clone(), ..setup() }, &[("a", &"a".repeat(200))]);
    layered.write("a", "b");
    layered.refused(ErrorKind::ApprovalDenied, "what is there now is not kept");
    let person = Person::saying_yes();
    let asked = Setup { limits, person: Some(person), ..setup() };
    let layered = Layered::with(asked, &[("a", &"a".repeat(200)), ("d/x", "x")]);
    layered.write("a", "b").whiteout("d").write("n", "n");
    let (_, change) = layered.committed();
    assert_eq!(layered.world.read("a"), "b");
    assert_eq!(kept(&layered.world.root), [".gitignore", &format!("{change}-2")][..1]);
    assert_eq!(layered.world.error("undo", &json!({"change": change})), ErrorKind::Conflict);
}

#[test]
fn a_read_only_preset_and_a_read_only_mount_change_nothing() {
    let layered = Layered::with(Setup { preset: Preset::ReadOnly, ..setup() }, &[("a", "a")]);
    layered.write("a", "b");
    layered.refused(ErrorKind::PermissionDenied, "read-only");
    let mounts = vec![("docs", Rights::ReadOnly), ("state", Rights::ReadWrite)];
    let world = World::with(Setup { mounts, ..setup() });
    assert!(world.fence.workspace("state").is_none() && world.fence.workspace("nothing").is_none());
    let (limits, signal) = (Limits::of(Dialect::Standard), Signal::new());
    let cx = Context::new(&limits, Pace::Patient, &signal);
    let docs = world.fence.workspace("docs").unwrap();
    let view = docs.view(&cx).unwrap();
    assert_eq!(view.beside.iter().map(|shown| shown.alias.as_str()).collect::<Vec<_>>(), ["workspace"]);
    let upper = tempfile::tempdir().unwrap();
    fs::write(upper.path().join("x"), "x").unwrap();
    let error = docs.changes(&view, fs::File::open(upper.path()).unwrap().into(), &cx).unwrap_err();
    assert_eq!(error.kind, ErrorKind::ReadOnly);
}

#[test]
fn a_person_sees_what_is_protected_however_much_else_there_is() {
    let person = Person::saying_yes();
    let layered = Layered::with(Setup { person: Some(person.clone()), ..setup() }, &[("z/.git/hooks/a", "a")]);
    for number in 0..1200 {
        layered.write(&format!("a/{number}"), "x");
    }
    layered.write("z/.vscode/tasks.json", "planted\n").whiteout("z/.git");
    layered.committed();
    let shown = person.last().preview;
    for words in ["+planted\n", "delete the directory `z/.git` with", "more changes"] {
        assert!(shown.contains(words), "{words}\n{}", &shown[..2000]);
    }
}

#[test]
fn a_person_sees_what_would_change_and_gets_what_they_saw() {
    let person = Person::saying_yes();
    let layered = Layered::with(
        Setup { preset: Preset::Ask, person: Some(person.clone()), ..setup() },
        &[("a.txt", "one\ntwo\n"), ("gone", "g"), ("d/x", "x"), ("run", "r")],
    );
    layered.write("a.txt", "one\n2\n").write("new.bin", b"\0\0").whiteout("gone").whiteout("d").write("run", "r");
    fs::set_permissions(layered.upper.join("run"), fs::Permissions::from_mode(0o755)).unwrap();
    layered.committed();
    let shown = person.last().preview;
    for words in [
        "commit what a program changed: 1 new, 2 changed, 2 deleted",
        "-two\n+2\n",
        "`new.bin` is not shown as text: nothing become 2 bytes",
        "delete `gone` (1 bytes)",
        "delete the directory `d` with 1 entries (1 bytes)",
        "change the mode of `run` from 644 to 755",
    ] {
        assert!(shown.contains(words), "{words}\n{shown}");
    }
}

#[test]
fn a_change_while_a_person_reads_is_a_conflict() {
    for path in ["a", "d/x"] {
        let person = Person::saying_yes();
        let layered = Layered::with(
            Setup { preset: Preset::Ask, person: Some(person.clone()), ..setup() },
            &[("a", "a"), ("d/x", "x")],
        );
        layered.write("a", "b").whiteout("d");
        let changed = layered.world.root.join(path);
        person.meanwhile(move || fs::write(&changed, "mine").unwrap());
        let answer = layered.commit();
        assert_eq!(answer.error, Some(ErrorKind::Conflict), "{}", answer.text);
        assert_eq!(fs::read_to_string(layered.world.root.join(path)).unwrap(), "mine");
    }
}

#[test]
fn a_layer_that_changes_while_a_person_reads_is_a_conflict() {
    let person = Person::saying_yes();
    let layered = Layered::with(Setup { preset: Preset::Ask, person: Some(person.clone()), ..setup() }, &[("a", "a")]);
    layered.write("a", "b").write("evil", "harmless");
    let upper = layered.upper.join("evil");
    person.meanwhile(move || {
        let before = fs::metadata(&upper).unwrap().modified().unwrap();
        fs::write(&upper, "harmful!").unwrap();
        fs::File::options().write(true).open(&upper).unwrap().set_modified(before).unwrap();
    });
    layered.refused(ErrorKind::Conflict, "`evil`");
}

#[test]
fn secrets_are_masked_by_name_and_by_what_they_are() {
    let world = World::with(setup());
    let files = [
        ".env",
        "node_modules/p/.env.local",
        "keys/server.pem",
        ".ssh/config",
        "src/main.rs",
        ".env.example",
        "z/plain",
    ];
    files.iter().for_each(|path| world.write(path, "x"));
    fs::hard_link(world.root.join(".env"), world.root.join("a-link")).unwrap();
    fs::hard_link(world.root.join(".env"), world.root.join("z/link")).unwrap();
    symlink("z/plain", world.root.join("deploy.env")).unwrap();
    symlink(world.outside.join("secret"), world.root.join("out.env")).unwrap();
    let expected = [".env", ".ssh", "a-link", "keys/server.pem", "node_modules/p/.env.local", "z/link", "z/plain"];
    assert_eq!(masked(&world), expected);
    // It is known by what it is, also when nothing has its name any more.
    fs::remove_file(world.root.join(".env")).unwrap();
    fs::rename(world.root.join("a-link"), world.root.join("b-link")).unwrap();
    let found = masked(&world);
    assert!(found.contains(&"b-link".to_owned()) && found.contains(&"z/link".to_owned()), "{found:?}");
}

#[test]
fn what_is_ours_is_hidden_and_the_directory_is_held() {
    let world = World::with(setup());
    world.write("a", "a");
    world.value("write_file", &json!({"path": "a", "content": "b"}));
    world.write("sub/.ringfence/x", "x");
    let view = view(&world, &Limits::of(Dialect::Standard)).unwrap();
    assert_eq!(view.workspace.hidden, [Path::new(".ringfence"), Path::new("sub/.ringfence")]);
    assert_eq!(view.workspace.path, fs::canonicalize(&world.root).unwrap());
    let (held, named) = (rustix::fs::fstat(&view.workspace.directory).unwrap(), fs::metadata(&world.root).unwrap());
    assert_eq!((held.st_dev, held.st_ino), (named.dev(), named.ino()));
}

#[test]
fn a_workspace_that_cannot_be_searched_for_secrets_is_not_shown() {
    let world = World::with(setup());
    (0..30).for_each(|n| world.write(&format!("d{}/{n}", n % 3), "x"));
    let limits = Limits { walk_entries: 20, ..Limits::of(Dialect::Standard) };
    let error = view(&world, &limits).unwrap_err();
    assert_eq!(error.kind, ErrorKind::ReadLimit);
    assert!(error.message.contains("searched for secrets"), "{}", error.message);
}

#[test]
fn a_directory_that_cannot_be_looked_into_is_masked() {
    let world = World::with(setup());
    world.write("shut/.env", "x");
    fs::set_permissions(world.root.join("shut"), fs::Permissions::from_mode(0o000)).unwrap();
    assert_eq!(masked(&world), ["shut"]);
    fs::set_permissions(world.root.join("shut"), fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn new_things_belong_to_whom_the_workspace_belongs() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("only root can give files to others");
        return;
    }
    let layered = Layered::new(&[("a", "a"), ("team/b", "b")]);
    std::os::unix::fs::chown(layered.world.root.join("team"), Some(1234), Some(99)).unwrap();
    fs::set_permissions(layered.world.root.join("team"), fs::Permissions::from_mode(0o2775)).unwrap();
    std::os::unix::fs::chown(&layered.world.root, Some(1234), Some(2345)).unwrap();
    std::os::unix::fs::chown(layered.world.root.join("a"), Some(77), Some(88)).unwrap();
    let layered = Layered::above(layered.world);
    layered.write("a", "b").write("d/x", "x").write("team/d/x", "x");
    fs::set_permissions(layered.upper.join("team"), fs::Permissions::from_mode(0o775)).unwrap();
    symlink("x", layered.upper.join("d/l")).unwrap();
    layered.committed();
    let owner =
        |path: &str| fs::symlink_metadata(layered.world.root.join(path)).map(|meta| (meta.uid(), meta.gid())).unwrap();
    assert_eq!(
        [owner("a"), owner("d"), owner("d/x"), owner("d/l")],
        [(77, 88), (1234, 2345), (1234, 2345), (1234, 2345)]
    );
    // A directory that gives its group to what is made in it does so here too.
    assert_eq!([owner("team/d"), owner("team/d/x")], [(1234, 99), (1234, 99)]);
    assert_eq!(fs::metadata(layered.world.root.join("team/d")).unwrap().mode() & 0o7000, 0o2000);
}

#[test]
fn a_real_overlay_leaves_what_it_showed() {
    let scripts = [
        "echo new > a; rm gone; mkdir -p x/y; echo z > x/y/z; mv d/one d/two; ln -s a l; chmod 755 run",
        "rm -rf d; mkdir d; echo 1 > d/fresh",
        "rm -rf d; echo file > d; rm a; mkdir a; echo in > a/in",
        "mv d e || { cp -a d e && rm -rf d; }",
        "ln a hard; echo more >> hard",
        "chmod 700 d; touch a; touch -d '2001-01-01' gone",
        "rm -rf d gone a; mkdir -p d/s/t; echo q > d/s/t/q; rm -rf d/s; mkdir d/s",
    ];
    for script in scripts {
        let files = [("a", "a\n"), ("gone", "gone\n"), ("d/one", "1\n"), ("d/s/deep", "deep\n"), ("run", "r\n")];
        let layered = Layered::with(setup(), &files);
        let shown = layered.world.host_path().join("shown");
        let Some(()) = run_in_overlay(&layered, script, &shown) else {
            eprintln!("no overlay can be mounted here");
            return;
        };
        let before = layered.tree();
        let (_, change) = layered.committed();
        assert_eq!(layered.tree(), tree(&shown), "{script}");
        layered.world.value("undo", &json!({"change": change}));
        assert_eq!(layered.tree(), before, "{script}");
    }
}

/// Runs a script above the workspace, and copies what it saw in the end.
fn run_in_overlay(layered: &Layered, script: &str, shown: &Path) -> Option<()> {
    let at = |name: &str| layered.world.host_path().join(name);
    for name in ["work", "merged"] {
        fs::create_dir_all(at(name)).unwrap();
    }
    let whole = format!(
        "set -e; mount -t overlay overlay -o userxattr,lowerdir={},upperdir={},workdir={} {}; cd {}; {script}; cp -a . {}",
        layered.world.root.display(),
        layered.upper.display(),
        at("work").display(),
        at("merged").display(),
        at("merged").display(),
        shown.display(),
    );
    let output = std::process::Command::new("unshare").args(["-Urm", "sh", "-c", &whole]).output().ok()?;
    if !output.status.success() {
        eprintln!("{}", String::from_utf8_lossy(&output.stderr));
    }
    output.status.success().then_some(())
}

#[test]
fn many_files_are_committed_in_one_go() {
    let count = 2000;
    let layered = Layered::new(&[("a", "a")]);
    for n in 0..count {
        layered.write(&format!("d{}/f{n}", n % 50), format!("{n}\n"));
    }
    let (said, change) = layered.committed();
    assert_eq!(said.len(), count + 50);
    layered.world.value("undo", &json!({"change": change}));
    assert_eq!(layered.tree().len(), 1);
}

#[test]
fn a_file_that_grew_beyond_what_may_be_committed_at_once_is_refused() {
    let limits = Limits { copy_bytes: 10, ..Limits::of(Dialect::Standard) };
    let layered = Layered::with(Setup { limits, ..setup() }, &[("a", "a")]);
    layered.write("x", "123456").write("y", "123456");
    layered.refused(ErrorKind::WriteLimit, "more than the 10 bytes");
    let limits = Limits { walk_entries: 5, ..Limits::of(Dialect::Standard) };
    let layered = Layered::with(Setup { limits, ..setup() }, &[]);
    (0..9).for_each(|n| _ = layered.write(&n.to_string(), "x"));
    layered.refused(ErrorKind::ReadLimit, "entries");
}

#[test]
fn nothing_is_opened_that_is_not_a_file() {
    // A pipe with no writer would keep whoever opens it for reading.
    let layered = Layered::new(&[("a", "a")]);
    let pipe = layered.upper.join("a");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).unwrap();
    let writer = fs::OpenOptions::new().write(true).custom_flags(0o4000).open(&pipe);
    assert!(writer.is_err());
    layered.refused(ErrorKind::WrongType, "`a` is a pipe");
}

#[test]
fn a_guarded_file_is_judged_whoever_changes_it() {
    #[derive(Debug)]
    struct NoBad;
    impl ringfence_fs::ChangeRule for NoBad {
        fn judge(&self, change: &ringfence_fs::Change<'_>) -> Result<(), ToolError> {
            match change.after {
                Some(after) if after.starts_with(b"good") => Ok(()),
                _ => Err(ToolError::new(ErrorKind::Schema, format!("`{}` must be good", change.shown))),
            }
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let (root, upper) = (directory.path().join("ws"), directory.path().join("upper"));
    let spec = || MountSpec { alias: "workspace".to_owned(), path: root.clone(), rights: Rights::ReadWrite };
    let cases: [(&str, Option<ErrorKind>, Somebody); 7] = [
        ("good", None, |upper| fs::write(upper.join("d/guarded"), "good too").unwrap()),
        ("bad", Some(ErrorKind::Schema), |upper| fs::write(upper.join("d/guarded"), "bad").unwrap()),
        ("gone", Some(ErrorKind::Schema), |upper| {
            mknodat(CWD, upper.join("d/guarded"), FileType::CharacterDevice, Mode::empty(), 0).unwrap();
        }),
        ("a directory", Some(ErrorKind::PermissionDenied), |upper| fs::create_dir(upper.join("d/guarded")).unwrap()),
        ("a link", Some(ErrorKind::PermissionDenied), |upper| symlink("x", upper.join("d/guarded")).unwrap()),
        ("alike", Some(ErrorKind::PermissionDenied), |upper| fs::write(upper.join("d/GUARDED"), "good").unwrap()),
        ("the directory of it", Some(ErrorKind::PermissionDenied), |upper| {
            fs::remove_dir(upper.join("d")).unwrap();
            mknodat(CWD, upper.join("d"), FileType::CharacterDevice, Mode::empty(), 0).unwrap();
        }),
    ];
    for (what, expected, program) in cases {
        for made in [&root, &upper] {
            let _ = fs::remove_dir_all(made);
            fs::create_dir_all(made.join("d")).unwrap();
        }
        fs::write(root.join("d/guarded"), "good").unwrap();
        let state = directory.path().join(format!("state-{what}"));
        let mut fence = Fence::new(spec(), Vec::new(), &state, Options::default()).unwrap();
        fence.guard("workspace", "d/guarded", Arc::new(NoBad)).unwrap();
        let world = World::around(fence, setup());
        let layered = Layered::again(world, upper.clone());
        program(&upper);
        let answer = layered.commit();
        assert_eq!(answer.error, expected, "{what}: {}", answer.text);
    }
}
