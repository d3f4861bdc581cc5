//! Model-based test of selections: any of the changes, and then the rest, are what keeping all of them is.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestRunner};
use ringfence_kernel::ErrorKind;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::{Value, json};

use super::{LayerFixture, setup};
use crate::fixture::FsFixture;
use crate::overlay::set_xattr;

/// An entry of a workspace or a layer.
#[derive(Clone, Debug)]
enum LayerModelNode {
    /// Each letter is a line, and the lines between are the same in all files.
    File(Vec<char>, u32),
    Link(&'static str),
    Directory(bool, LayerModelEntries),
    Whiteout,
}

type LayerModelEntries = BTreeMap<&'static str, LayerModelNode>;

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

fn leaf() -> impl Strategy<Value = LayerModelNode> {
    let file = (vec(select(vec!['x', 'y']), 0..4), select(vec![0o644, 0o755]));
    prop_oneof![
        5 => file.prop_map(|(text, mode)| LayerModelNode::File(text, mode)),
        1 => select(vec!["a", "nowhere"]).prop_map(LayerModelNode::Link),
    ]
}

fn tree_of(
    leaf: impl Strategy<Value = LayerModelNode> + 'static,
    may_hide: bool,
) -> impl Strategy<Value = LayerModelEntries> {
    let node = leaf.prop_recursive(2, 16, 4, move |inner| {
        (any::<bool>(), btree_map(select(NAMES.to_vec()), inner, 0..4))
            .prop_map(move |(hides, entries)| LayerModelNode::Directory(hides && may_hide, entries))
    });
    btree_map(select(NAMES.to_vec()), node, 1..5)
}

fn build(at: &Path, entries: &LayerModelEntries) {
    for (name, node) in entries {
        let path = at.join(name);
        match node {
            LayerModelNode::File(letters, mode) => {
                let padding = "same\n".repeat(10);
                let text: String = letters.iter().map(|letter| format!("{letter}\n{padding}")).collect();
                fs::write(&path, text).unwrap();
                fs::set_permissions(&path, fs::Permissions::from_mode(*mode)).unwrap();
            }
            LayerModelNode::Link(target) => std::os::unix::fs::symlink(target, &path).unwrap(),
            LayerModelNode::Whiteout => mknodat(CWD, &path, FileType::CharacterDevice, Mode::empty(), 0).unwrap(),
            LayerModelNode::Directory(hides, entries) => {
                fs::create_dir(&path).unwrap();
                build(&path, entries);
                if *hides {
                    set_xattr(&path, "opaque", "y");
                }
            }
        }
    }
}

fn layer_of(lower: &LayerModelEntries, upper: &LayerModelEntries) -> LayerFixture {
    let world = FsFixture::in_memory(setup());
    build(&world.root, lower);
    let mut layer = LayerFixture::start(world);
    build(&layer.upper, upper);
    layer.finish(0);
    layer
}

/// Some of the listed changes, some of them by hunks.
fn selection(layer: &LayerFixture, choice: u64) -> Vec<Value> {
    let review = layer.review();
    let sections = review["sections"].as_array().unwrap();
    let items = sections.iter().flat_map(|section| section["items"].as_array().unwrap());
    let chosen = items.enumerate().filter(|(at, _)| choice >> (at % 32) & 1 == 1);
    chosen
        .map(|(at, item)| {
            let hunks = item["hunks"].as_array().map_or(0, Vec::len);
            let by_hunks = choice >> (32 + at % 32) & 1 == 1 && item["kind"] == "modified" && hunks > 1;
            let mut choice = json!({"path": item["path"], "alone": item["entry"] != "directory"});
            if by_hunks {
                choice["hunks"] = json!([at % hunks]);
                choice["base"] = item["base"].clone();
            }
            choice
        })
        .collect()
}

fn check(lower: &LayerModelEntries, upper: &LayerModelEntries, choices: &[u64]) -> Result<(), TestCaseError> {
    let whole = layer_of(lower, upper);
    if !whole.has_layer() {
        return Ok(());
    }
    let before = whole.tree();
    let all = whole.keep(&Value::Null);
    prop_assert_eq!(&all["refused"], &json!([]));
    prop_assert!(!whole.has_layer());
    let parts = layer_of(lower, upper);
    let mut made = Vec::new();
    for choice in choices {
        if !parts.has_layer() {
            break;
        }
        let before = parts.tree();
        let items = selection(&parts, *choice);
        match parts.try_keep(&Value::Array(items.clone())) {
            Ok(kept) => made.push((kept["change"].clone(), before)),
            // An empty selection, or hunks of a file that others belong to.
            Err((ErrorKind::InvalidArgs, _)) => prop_assert_eq!(parts.tree(), before),
            Err((_, text)) => prop_assert!(false, "{items:?}: {text}"),
        }
    }
    if parts.has_layer() {
        let rest = parts.keep(&Value::Null);
        prop_assert_eq!(&rest["refused"], &json!([]));
        made.push((rest["change"].clone(), parts.tree()));
    }
    prop_assert_eq!(parts.tree(), whole.tree());
    prop_assert!(!parts.has_layer(), "{:?}", parts.listed());
    for (change, _) in made.iter().rev() {
        parts.world.value("undo", &json!({"change": change}));
    }
    prop_assert_eq!(parts.tree(), before);
    Ok(())
}

#[test]
fn any_selection_and_then_the_rest_is_what_keeping_everything_is() {
    let full = std::env::var_os("RINGFENCE_FULL").is_some();
    let config = Config { cases: if full { 3000 } else { 150 }, failure_persistence: None, ..Config::default() };
    let upper = tree_of(prop_oneof![4 => leaf(), 2 => Just(LayerModelNode::Whiteout)], true);
    let outcome = TestRunner::new(config)
        .run(&(tree_of(leaf(), false), upper, vec(any::<u64>(), 1..4)), |(lower, upper, choices)| {
            check(&lower, &upper, &choices)
        });
    outcome.unwrap();
}
