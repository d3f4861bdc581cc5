//! Checkpoints of a running program: what lands, what waits, and that nothing moves under the program.
//!
//! Not here: a program that writes meanwhile (`live_run.rs` of `ringfence`).

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;

use ringfence_kernel::{ErrorKind, Preset};
use ringfence_testkit::patience::wait_until;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use super::{LayerFixture, setup, strings};
use crate::fixture::FsFixtureConfig;
use crate::overlay::{ModeTree, tree};

/// Waits until new changes of files have a later time than those so far.
fn tick() {
    let now = || {
        let now = clock_gettime(ClockId::RealtimeCoarse);
        (now.tv_sec, now.tv_nsec)
    };
    let file = tempfile::tempfile().unwrap();
    let written = file.metadata().unwrap();
    let written = now().max((written.ctime(), written.ctime_nsec()));
    wait_until("the next tick", || now() > written);
}

impl LayerFixture {
    /// The layer of a program that the session of this fixture runs.
    fn live(setup: FsFixtureConfig, files: &[(&str, &str)]) -> Self {
        let layer = Self::with(setup, files);
        let record = layer.upper.with_file_name("about.json");
        let mut value: Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
        value["session"] = json!(&*layer.world.session.id);
        fs::write(record, value.to_string()).unwrap();
        layer
    }

    #[track_caller]
    fn checkpoint(&self) -> Value {
        tick();
        let before = self.upper_tree();
        let value = self.world.value("checkpoint_layer", &json!({"layer": self.id}));
        assert_eq!(self.upper_tree(), before, "something moved under the program");
        value
    }

    fn upper_tree(&self) -> ModeTree {
        tree(&self.upper)
    }

    /// The program removes something that it wrote.
    fn unlink(&self, path: &str) -> &Self {
        fs::remove_file(self.upper.join(path)).unwrap();
        self
    }

    #[track_caller]
    fn undo(&self, change: &Value) {
        self.world.value("undo", &json!({"change": change}));
    }
}

fn kept(value: &Value) -> Vec<String> {
    strings(&value["kept"], "path")
}

fn refused(value: &Value) -> Vec<String> {
    strings(&value["refused"], "path")
}

#[test]
fn what_landed_stays_in_the_layer_and_is_no_difference_any_more() {
    let mut layer = LayerFixture::live(setup(), &[("a", "old"), ("gone", "x"), ("tree/x", "x"), ("m/x", "x")]);
    layer.write("a", "new").write("d/e/f", "f").opaque("d").whiteout("gone").whiteout("tree").link("l", "a");
    layer.write("m/x", "x").mode("m", 0o700).mode("m/x", 0o755);
    let landed = layer.checkpoint();
    assert_eq!(kept(&landed), ["a", "d", "d/e", "d/e/f", "gone", "l", "m", "m/x", "tree"]);
    assert_eq!((&landed["left"], &landed["removed"]), (&json!(0), &json!(false)));
    assert_eq!([layer.world.read("a"), layer.world.read("d/e/f"), layer.world.read("l")], ["new", "f", "new"]);
    assert!(!layer.world.root.join("gone").exists() && !layer.world.root.join("tree").exists());
    assert_eq!(layer.checkpoint()["change"], Value::Null);
    assert!(layer.finish(0).is_empty());
    assert!(!layer.has_layer());
}

/// A person looks at the changes of a program that goes on.
#[test]
fn a_layer_is_reviewed_while_its_program_runs_and_nothing_moves() {
    let mut layer = LayerFixture::live(setup(), &[("a", "old\n"), ("gone", "x"), ("closed/x", "x")]);
    layer.write("a", "new\n").write("new", "text\n").whiteout("gone").write("closed/x", "y").mode("closed", 0o000);
    tick();
    let before = layer.upper_tree();
    let review = layer.world.value("review_layer", &json!({"layer": layer.id}));
    assert_eq!(layer.upper_tree(), before, "something moved under the program");
    assert_eq!(review["layer"]["state"], "running", "{review}");
    let section = |name: &str| {
        let sections = review["sections"].as_array().unwrap();
        let found = sections.iter().find(|section| section["section"] == name).unwrap();
        strings(&found["items"], "path")
    };
    assert_eq!((section("deletions"), section("additions")), (strings_of(&["gone"]), strings_of(&["new"])));
    let changes = &review["sections"][3]["items"];
    let changed = changes.as_array().unwrap().iter().find(|item| item["path"] == "a").unwrap();
    assert_eq!(changed["hunks"][0]["lines"][0]["text"], "old", "{changed}");
    // It leaves nothing behind, and checkpoints go on.
    assert!(!layer.upper.with_file_name("captured").exists());
    assert!(kept(&layer.checkpoint()).contains(&"a".to_owned()));
    layer.finish(0);
}

fn strings_of(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Everything that a program may do to what landed before, undone one after the other.
#[test]
fn what_landed_is_changed_again_and_every_checkpoint_is_undone_in_reverse() {
    let mut layer = LayerFixture::live(setup(), &[("a", "1"), ("b", "b"), ("old/x", "x"), ("old/y", "y")]);
    let mut trees = vec![layer.tree()];
    let mut changes = Vec::new();
    let steps: [&dyn Fn(&LayerFixture); 7] = [
        &|layer| _ = layer.write("a", "2").write("new/f", "f").write("new/s/g", "g").whiteout("old/x"),
        &|layer| _ = layer.write("a", "3").write("new/f", "ff").write("new/h", "h").link("l", "a"),
        // A rename of what landed: the kernel leaves a whiteout, because the workspace has it by now.
        &|layer| _ = layer.unlink("new/h").write("new/i", "h").write("a", "2").unlink("l").link("l", "b"),
        &|layer| {
            layer.write("c", "c").whiteout("b").mode("new/f", 0o755);
            fs::create_dir(layer.upper.join("empty")).unwrap();
        },
        // The directory that came goes again, with what is in it.
        &|layer| {
            fs::remove_dir_all(layer.upper.join("new")).unwrap();
            fs::remove_dir(layer.upper.join("empty")).unwrap();
            layer.whiteout("new").whiteout("empty");
        },
        &|layer| {
            layer.unlink("new").unlink("l").whiteout("l");
            layer.write("new/other", "o").opaque("new").write("a", "1");
        },
        &|layer| {
            fs::remove_dir_all(layer.upper.join("old")).unwrap();
            layer.whiteout("old").unlink("c").whiteout("c");
        },
    ];
    for (number, step) in steps.iter().enumerate() {
        step(&layer);
        let landed = layer.checkpoint();
        assert_eq!((&landed["refused"], &landed["left"]), (&json!([]), &json!(0)), "step {number}: {landed}");
        trees.push(layer.tree());
        changes.push(landed["change"].clone());
    }
    assert_eq!(layer.world.read("new/other"), "o");
    assert_eq!(layer.checkpoint()["change"], Value::Null);
    trees.pop();
    while let (Some(change), Some(tree)) = (changes.pop(), trees.pop()) {
        layer.undo(&change);
        assert_eq!(layer.tree(), tree, "{change}");
    }
    // The program has all of it still, and a person decides.
    assert_eq!(layer.checkpoint()["change"], Value::Null);
    layer.finish(0);
    assert!(layer.has_layer());
    layer.keep(&Value::Null);
    assert_eq!(layer.world.read("new/other"), "o");
}

#[test]
fn a_checkpoint_that_was_undone_lands_again_only_when_the_program_changes_the_path() {
    let mut layer = LayerFixture::live(setup(), &[("a", "old"), ("b", "old"), ("c", "old"), ("d", "old")]);
    layer.write("a", "new").write("b", "new").whiteout("c").write("n/x", "x").opaque("n");
    let landed = layer.checkpoint();
    layer.undo(&landed["change"]);
    layer.write("d", "new");
    let next = layer.checkpoint();
    assert_eq!(
        (kept(&next), refused(&next)),
        (vec!["d".to_owned()], ["a", "b", "c", "n", "n/x"].map(String::from).to_vec())
    );
    layer.write("a", "newer");
    assert_eq!(kept(&layer.checkpoint()), ["a"]);
    layer.finish(0);
    assert_eq!(
        layer.listed(),
        ["deletions deleted c", "changes modified b", "additions created n", "additions created n/x"]
    );
    layer.keep(&Value::Null);
    assert_eq!((layer.world.read("b"), layer.world.read("n/x")), ("new".to_owned(), "x".to_owned()));
}

#[test]
fn what_the_policy_asks_about_and_what_acts_later_waits() {
    let mut layer = LayerFixture::live(setup(), &[("package.json", r#"{"scripts": {}}"#), ("a", "old")]);
    layer.write("package.json", r#"{"scripts": {"test": "x"}}"#).write(".claude/settings.json", "{}").write("b", "b");
    layer.link("out", "/etc/passwd").write(".git/hooks/pre-commit", "x").write("a", "new");
    mknodat(CWD, layer.upper.join("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    let landed = layer.checkpoint();
    assert_eq!(kept(&landed), ["a", "b"]);
    for waits in ["package.json", ".claude/settings.json", ".git/hooks/pre-commit", "out", "pipe"] {
        assert!(refused(&landed).iter().any(|path| path == waits), "{waits}: {landed}");
    }
    layer.finish(0);
    let listed = layer.listed();
    assert!(listed.iter().any(|line| line == "acts_later modified package.json"), "{listed:?}");
    assert!(!listed.iter().any(|line| line.ends_with(" a") || line.ends_with(" b")), "{listed:?}");
    // The person's preset holds too.
    let strict = FsFixtureConfig { preset: Preset::Ask, ..setup() };
    let layer = LayerFixture::live(strict, &[("a", "old")]);
    layer.write("a", "new").write("b", "b");
    assert_eq!(kept(&layer.checkpoint()), ["b"]);
    assert_eq!(layer.world.read("a"), "old");
}

#[test]
fn what_a_person_changes_meanwhile_is_a_conflict_and_stays() {
    let mut layer = LayerFixture::live(setup(), &[("a", "old"), ("d/x", "x")]);
    layer.write("a", "new").write("d/y", "y").opaque("n").write("n/x", "x");
    layer.checkpoint();
    layer.world.write("a", "mine");
    layer.world.write("n/mine", "mine");
    layer.write("a", "newer").write("d/y", "yy");
    fs::remove_dir_all(layer.upper.join("n")).unwrap();
    layer.whiteout("n");
    let landed = layer.checkpoint();
    assert_eq!((kept(&landed), refused(&landed)), (vec!["d/y".to_owned()], vec!["a".to_owned(), "n".to_owned()]));
    assert_eq!((layer.world.read("a"), layer.world.read("n/mine")), ("mine".to_owned(), "mine".to_owned()));
    layer.finish(0);
    assert_eq!(layer.listed(), ["conflicts modified a", "conflicts deleted n"]);
}

#[test]
fn directories_that_the_program_closed_are_closed_again() {
    let layer = LayerFixture::live(setup(), &[("a", "old")]);
    layer.write("shut/in/x", "x").opaque("shut").mode("shut/in", 0).mode("shut", 0);
    let landed = layer.checkpoint();
    assert_eq!(kept(&landed), ["shut", "shut/in", "shut/in/x"]);
    layer.mode("shut", 0o700).mode("shut/in", 0o700);
}

#[test]
fn only_the_session_that_runs_the_program_makes_checkpoints() {
    let mut layer = LayerFixture::live(setup(), &[]);
    layer.write("a", "a");
    let other = layer.world.session.for_principal("another", layer.world.session.principal.clone());
    layer.world.session = Arc::new(other);
    assert_eq!(layer.world.error("checkpoint_layer", &json!({"layer": layer.id})), ErrorKind::PermissionDenied);
    assert!(!layer.world.root.join("a").exists());
}

/// A checkpoint after the end is a keep of what the policy allows: what it takes leaves the layer.
#[test]
fn the_last_checkpoint_takes_what_it_keeps_out_of_the_layer() {
    let mut layer = LayerFixture::live(setup(), &[("a", "old")]);
    layer.write("a", "new").write(".mcp.json", "{}");
    layer.finish(0);
    let landed = layer.world.value("checkpoint_layer", &json!({"layer": layer.id}));
    assert_eq!((kept(&landed), &landed["left"]), (vec!["a".to_owned()], &json!(1)));
    assert!(!layer.upper.join("a").exists());
}
