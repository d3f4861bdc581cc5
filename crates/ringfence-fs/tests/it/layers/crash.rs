//! Crash tests of a partial keep: it is made or it is not, whenever the process dies, and the rest is still in the layer.
//!
//! This program starts itself again under `strace`, which kills it as it enters a call of the kernel. Every point is tried:
//! the first call of a kind, the second, and so on until the program gets through. With `RINGFENCE_FULL=1` calls that only
//! look are killed at too.

use std::fs;
use std::path::Path;

use ringfence_testkit::world::WorldDir;
use serde_json::{Value, json};

use super::{LayerFixture, lines, setup};
use crate::fixture::FsFixture;
use crate::overlay::ModeTree;
use crate::overlay::crash::{KILLED_AT, LOOKING, MANY, can_trace, run_under_strace};

/// Says to a second process what it is to do.
const CHILD: &str = "RINGFENCE_KEEP_CHILD";

/// One of three files, one of two hunks, a directory without one of its files, a rename, a deletion and a link: the rest
/// stays.
fn layer_with_everything() -> LayerFixture {
    let text = lines(0..60);
    let files = [("a", "old"), ("b", "old"), ("d/c", "old"), ("from", "contents"), ("gone", "gone"), ("text", &text)];
    let world = FsFixture::in_memory(setup());
    files.iter().chain(&[("tree/x", "x"), ("tree/y/z", "z")]).for_each(|(path, content)| world.write(path, content));
    std::os::unix::fs::symlink("a", world.root.join("link")).unwrap();
    let layer = LayerFixture::start(world);
    layer.write("a", "new").write("b", "new").write("d/c", "new").whiteout("gone");
    layer.write("text", text.replace("line 5\n", "five\n").replace("line 50\n", "fifty\n"));
    layer.write("n/a", "a").write("n/b", "b").write("n/s/c", "c").opaque("n");
    layer.whiteout("from").write("to", "contents").whiteout("tree").link("link", "b");
    layer.ended()
}

fn selected() -> Value {
    let hunk = json!({"path": "text", "hunks": [1]});
    json!([{"path": "b"}, hunk, {"path": "n/a"}, {"path": "n/s"}, {"path": "to"}, {"path": "tree"}, {"path": "link"}])
}

/// What a keep that is not disturbed does.
struct UndisturbedKeep {
    before: ModeTree,
    listed_before: Vec<String>,
    after: ModeTree,
    listed_after: Vec<String>,
    /// Once the rest is kept too.
    whole: ModeTree,
}

impl UndisturbedKeep {
    fn record() -> Self {
        let layer = layer_with_everything();
        let (before, listed_before) = (layer.tree(), layer.listed());
        layer.keep(&selected());
        let (after, listed_after) = (layer.tree(), layer.listed());
        assert_eq!(layer.keep(&Value::Null)["removed"], json!(true));
        Self { before, listed_before, after, listed_after, whole: layer.tree() }
    }

    /// Opens the workspace once more. The keep is made or not, what it did not take is in the layer, and it can be undone or
    /// made. Whether it was made.
    #[track_caller]
    fn check(&self, layer: LayerFixture, point: &str) -> bool {
        let LayerFixture { world, upper, id, .. } = layer;
        let layer = LayerFixture { world: world.reopened(setup()), upper, id, running: None };
        let now = layer.tree();
        let is_made = now == self.after;
        assert!(is_made || now == self.before, "{point}: neither before nor after: {now:#?}");
        let listed = if is_made { &self.listed_after } else { &self.listed_before };
        assert_eq!(&layer.listed(), listed, "{point}");
        let changes = layer.world.value("list_changes", &json!({}));
        let changes = changes["changes"].as_array().unwrap();
        assert_eq!(changes.len(), usize::from(is_made), "{point}: {changes:?}");
        if is_made {
            layer.world.value("undo", &json!({"change": changes[0]["change"]}));
            assert_eq!(layer.tree(), self.before, "{point}: undone");
            layer.world.value("redo", &json!({}));
        } else {
            layer.keep(&selected());
        }
        assert_eq!(layer.tree(), self.after, "{point}: made again");
        assert_eq!(layer.listed(), self.listed_after, "{point}: made again");
        assert_eq!(layer.keep(&Value::Null)["removed"], json!(true), "{point}");
        assert_eq!(layer.tree(), self.whole, "{point}: the rest");
        is_made
    }
}

/// The second process: one keep.
#[test]
fn the_second_process() {
    let Ok(child) = std::env::var(CHILD) else { return };
    let asked: Value = serde_json::from_str(&child).unwrap();
    let home = Path::new(asked["home"].as_str().unwrap()).to_owned();
    let world = FsFixture::at(WorldDir::Existing(home), setup());
    println!("SAID {}", world.call("keep_layer", &asked["arguments"]).text);
}

fn kill_everywhere(calls: &[&str]) {
    let undisturbed = UndisturbedKeep::record();
    let (mut points, mut made) = (0, 0);
    for call in calls {
        for nth in 1..MANY {
            let layer = layer_with_everything();
            let arguments = json!({"layer": layer.id, "items": selected()});
            let asked = json!({"home": layer.world.host_path(), "arguments": arguments}).to_string();
            let test = format!("{}::the_second_process", module_path!().split_once("::").unwrap().1);
            let log = layer.world.host_path().join("strace.log");
            let (said, met) = run_under_strace((&test, CHILD, &asked), &log, call, nth, "signal=SIGKILL");
            fs::remove_file(log).unwrap();
            if !met {
                assert!(said.is_some_and(|said| said["ok"] == true), "{call} {nth}");
                break;
            }
            points += 1;
            made += usize::from(undisturbed.check(layer, &format!("killed at {call} {nth}")));
        }
    }
    println!("killed at {points} points, and the keep was made at {made} of them");
    assert!(0 < made && made < points, "{made} of {points}");
}

#[test]
fn a_partial_keep_that_is_killed_anywhere_is_made_or_not_and_the_rest_stays() {
    if can_trace() {
        kill_everywhere(KILLED_AT);
    }
}

#[test]
fn a_partial_keep_that_is_killed_while_it_looks_is_made_or_not() {
    if can_trace() && std::env::var_os("RINGFENCE_FULL").is_some() {
        kill_everywhere(LOOKING);
    }
}
