//! Model-based tests of overlays: a commit is what an overlay would show, and undo restores what was there.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use proptest::collection::btree_map;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestRunner};
use ringfence_fs::ResolverBackend;
use ringfence_kernel::ErrorKind;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::json;

use crate::fixture::FsFixture;
use crate::overlay::{OverlayFixture, set_xattr, setup, tree};

/// An entry of a workspace or an upper directory.
#[derive(Clone, Debug)]
enum OverlayModelNode {
    File(String, u32),
    Link(&'static str),
    Directory(OverlayModelDir),
    Whiteout,
}

#[derive(Clone, Debug)]
struct OverlayModelDir {
    mode: u32,
    opaque: bool,
    entries: OverlayModelEntries,
}

type OverlayModelEntries = BTreeMap<&'static str, OverlayModelNode>;

const NAMES: [&str; 4] = ["a", "b", "b-c", "c"];

fn leaf() -> impl Strategy<Value = OverlayModelNode> {
    prop_oneof![
        6 => ("[xy]{0,3}", select(vec![0o644, 0o755, 0o600])).prop_map(|(text, mode)| OverlayModelNode::File(text, mode)),
        1 => select(vec!["a", "b/c", "nowhere"]).prop_map(OverlayModelNode::Link),
    ]
}

/// A tree without whiteouts, as a workspace is.
fn lower() -> impl Strategy<Value = OverlayModelEntries> {
    let node = leaf().prop_recursive(3, 24, 4, |inner| {
        (select(vec![0o755, 0o755, 0o700, 0o555]), btree_map(select(NAMES.to_vec()), inner, 0..4))
            .prop_map(|(mode, entries)| OverlayModelNode::Directory(OverlayModelDir { mode, opaque: false, entries }))
    });
    btree_map(select(NAMES.to_vec()), node, 0..5)
}

fn upper() -> impl Strategy<Value = OverlayModelEntries> {
    let leaf = prop_oneof![3 => leaf(), 2 => Just(OverlayModelNode::Whiteout)];
    let node = leaf.prop_recursive(3, 24, 4, |inner| {
        (select(vec![0o755, 0o755, 0o700, 0o555]), any::<bool>(), btree_map(select(NAMES.to_vec()), inner, 0..4))
            .prop_map(|(mode, opaque, entries)| OverlayModelNode::Directory(OverlayModelDir { mode, opaque, entries }))
    });
    btree_map(select(NAMES.to_vec()), node, 0..4)
}

/// The merged view of an overlay.
fn merged(lower: &OverlayModelEntries, upper: &OverlayModelEntries) -> OverlayModelEntries {
    let mut shown = lower.clone();
    for (name, node) in upper {
        match (node, lower.get(name)) {
            (OverlayModelNode::Whiteout, _) => {
                shown.remove(name);
            }
            (OverlayModelNode::Directory(above), below) => {
                let nothing = OverlayModelEntries::new();
                let below = match below {
                    Some(OverlayModelNode::Directory(below)) if !above.opaque => &below.entries,
                    _ => &nothing,
                };
                let entries = merged(below, &above.entries);
                shown.insert(
                    name,
                    OverlayModelNode::Directory(OverlayModelDir { mode: above.mode, opaque: false, entries }),
                );
            }
            (other, _) => {
                shown.insert(name, other.clone());
            }
        }
    }
    shown
}

fn build(at: &Path, entries: &OverlayModelEntries) {
    for (name, node) in entries {
        let path = at.join(name);
        match node {
            OverlayModelNode::File(text, mode) => {
                fs::write(&path, text).unwrap();
                fs::set_permissions(&path, fs::Permissions::from_mode(*mode)).unwrap();
            }
            OverlayModelNode::Link(target) => symlink(target, &path).unwrap(),
            OverlayModelNode::Whiteout => mknodat(CWD, &path, FileType::CharacterDevice, Mode::empty(), 0).unwrap(),
            OverlayModelNode::Directory(OverlayModelDir { mode, opaque, entries }) => {
                fs::create_dir(&path).unwrap();
                build(&path, entries);
                if *opaque {
                    set_xattr(&path, "opaque", "y");
                }
                fs::set_permissions(&path, fs::Permissions::from_mode(*mode)).unwrap();
            }
        }
    }
}

fn has_closed(entries: &OverlayModelEntries) -> bool {
    entries.values().any(|node| match node {
        OverlayModelNode::Directory(directory) => directory.mode & 0o222 == 0 || has_closed(&directory.entries),
        _ => false,
    })
}

fn check(
    lower: &OverlayModelEntries,
    uppers: &[OverlayModelEntries],
    backend: ResolverBackend,
) -> Result<(), TestCaseError> {
    let world = FsFixture::in_memory(setup().on(backend));
    build(&world.root, lower);
    let mut layered = OverlayFixture::start_over(world);
    let mut shown = lower.clone();
    let mut made = Vec::new();
    for (round, upper) in uppers.iter().enumerate() {
        layered = OverlayFixture::start_over(layered.world);
        build(&layered.upper, upper);
        let before = layered.tree();
        let after = merged(&shown, upper);
        let answer = layered.world.call("commit_layer", &layered.arguments());
        if answer.error == Some(ErrorKind::PermissionDenied) && has_closed(&shown) {
            // A directory without write permission is left alone, also by root.
            prop_assert_eq!(layered.tree(), before);
            continue;
        }
        if answer.error == Some(ErrorKind::ApprovalDenied) {
            // Nothing changed, and a call without accesses needs approval.
            prop_assert_eq!(layered.tree(), before);
            continue;
        }
        prop_assert_eq!(answer.error, None, "{}", answer.text);
        let reply: serde_json::Value = serde_json::from_str(&answer.text).unwrap();
        made.push((reply["value"]["change"].as_str().unwrap().to_owned(), before));
        shown = after;
        let expected = layered.world.host_path().join(format!("expected-{round}"));
        fs::create_dir(&expected).unwrap();
        build(&expected, &shown);
        prop_assert_eq!(layered.tree(), tree(&expected));
    }
    let last = layered.tree();
    for (change, before) in made.iter().rev() {
        layered.world.value("undo", &json!({"change": change}));
        prop_assert_eq!(&layered.tree(), before);
    }
    for _ in &made {
        layered.world.value("redo", &json!({}));
    }
    prop_assert_eq!(layered.tree(), last);
    Ok(())
}

#[test]
fn a_layer_is_committed_as_an_overlay_would_show_it_and_undone() {
    let full = std::env::var_os("RINGFENCE_FULL").is_some();
    let config = Config { cases: if full { 3000 } else { 150 }, failure_persistence: None, ..Config::default() };
    let uppers = proptest::collection::vec(upper(), 1..4);
    let backend = select(vec![ResolverBackend::Best, ResolverBackend::CapStd]);
    let outcome = TestRunner::new(config)
        .run(&(lower(), uppers, backend), |(lower, uppers, backend)| check(&lower, &uppers, backend));
    outcome.unwrap();
}
