//! What a person changed in the workspace meanwhile, and what no one may keep.

use std::fs;

use ringfence_kernel::{ErrorKind, PolicyRule};
use serde_json::{Value, json};

use super::{LayerFixture, lines, setup, strings};
use crate::fixture::FsFixtureConfig;

#[test]
fn what_a_person_changed_meanwhile_is_a_conflict_and_the_rest_is_kept() {
    let layer = LayerFixture::new(&[("a", "old"), ("b", "old"), ("gone", "x")]);
    layer.write("a", "new").write("b", "new").whiteout("gone");
    layer.world.write("a", "mine");
    layer.world.write("gone", "mine");
    let layer = layer.ended();
    assert_eq!(layer.listed(), ["conflicts modified a", "conflicts deleted gone", "changes modified b"]);
    let (kind, text) = layer.try_keep(&json!([{"path": "a"}])).unwrap_err();
    assert_eq!(kind, ErrorKind::Conflict, "{text}");
    let kept = layer.keep(&Value::Null);
    assert_eq!(strings(&kept["kept"], "path"), ["b"]);
    assert_eq!(strings(&kept["refused"], "path"), ["a", "gone"]);
    assert_eq!(strings(&kept["refused"], "code"), ["CONFLICT", "CONFLICT"]);
    assert_eq!(["a", "b", "gone"].map(|path| layer.world.read(path)), ["mine", "new", "mine"]);
    assert_eq!(kept["left"], json!(2));
    assert_eq!(layer.try_keep(&Value::Null).unwrap_err().0, ErrorKind::Conflict);
}

#[test]
fn a_person_s_edit_after_a_part_was_kept_is_a_conflict() {
    let old = lines(0..60);
    let layer = LayerFixture::new(&[("text", &old)]);
    layer.write("text", old.replace("line 5\n", "five\n").replace("line 50\n", "fifty\n"));
    let layer = layer.ended();
    layer.keep(&json!([{"path": "text", "hunks": [0]}]));
    layer.world.write("text", layer.world.read("text").replace("line 30\n", "mine\n"));
    let (kind, text) = layer.try_keep(&json!([{"path": "text"}])).unwrap_err();
    assert_eq!(kind, ErrorKind::Conflict, "{text}");
    assert!(layer.world.read("text").contains("mine"));
}

#[test]
fn a_kept_neighbour_is_no_conflict() {
    // `mv` in the program: what was copied up has no name in the workspace, and its directory was changed by a keep.
    let layer = LayerFixture::new(&[("d/from", "contents"), ("d/other", "o"), ("m/x", "x")]);
    layer.whiteout("d/from").write("d/to", "contents").write("d/other", "p").write("m/x", "y").mode("m", 0o700);
    super::set_xattr(&layer.upper.join("d/to"), "origin", "x");
    let layer = layer.ended();
    let kept = layer.keep_paths(&["d/other"]);
    layer.keep(&json!([{"path": "m", "alone": true}]));
    assert_eq!(layer.listed(), ["changes renamed d/to", "changes modified m/x"]);
    layer.world.value("undo", &json!({"change": kept["change"]}));
    assert_eq!(layer.listed(), ["changes renamed d/to", "changes modified m/x"]);
    fs::write(layer.world.root.join("d/mine"), "mine").unwrap();
    layer.keep_paths(&["m/x"]);
}

#[test]
fn a_masked_secret_is_never_kept() {
    let layer = LayerFixture::new(&[(".env", "KEY=1"), ("d/.env", "KEY=2"), ("d/x", "x"), ("a", "a")]);
    layer.write(".env", "").whiteout("d").write("a", "b");
    let layer = layer.ended();
    for path in [".env", "d"] {
        let (kind, text) = layer.try_keep(&json!([{"path": path}])).unwrap_err();
        assert_eq!(kind, ErrorKind::PermissionDenied, "{text}");
        assert!(text.contains("is masked in programs"), "{text}");
    }
    let kept = layer.keep(&Value::Null);
    assert_eq!(strings(&kept["kept"], "path"), ["a"]);
    assert_eq!([".env", "d/.env"].map(|path| layer.world.read(path)), ["KEY=1", "KEY=2"]);
}

fn rule(rule: &Value) -> PolicyRule {
    PolicyRule::new(serde_json::from_value(rule.clone()).unwrap(), "a rule").unwrap()
}

#[test]
fn what_the_policy_denies_is_not_kept() {
    let deny = rule(&json!({"decision": "deny", "effect": ["create", "overwrite"], "path": ["locked/**"]}));
    let setup = FsFixtureConfig { rules: vec![deny], ..setup() };
    let layer = LayerFixture::with(setup, &[("a", "a"), ("locked/b", "b")]);
    layer.write("a", "c").write("locked/b", "c");
    let layer = layer.ended();
    let review = layer.review();
    let decisions: Vec<&str> = review["sections"][3]["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["policy"]["decision"].as_str().unwrap())
        .collect();
    assert_eq!(decisions, ["allow", "deny"]);
    assert_eq!(layer.try_keep(&json!([{"path": "locked/b"}])).unwrap_err().0, ErrorKind::PermissionDenied);
    let kept = layer.keep(&Value::Null);
    assert_eq!(
        (strings(&kept["kept"], "path"), strings(&kept["refused"], "path")),
        (vec!["a".to_owned()], vec!["locked/b".to_owned()])
    );
    assert_eq!(layer.world.read("locked/b"), "b");
}

#[test]
fn an_agent_is_neither_offered_the_tools_nor_heard() {
    let world = crate::fixture::FsFixture::with(FsFixtureConfig::default());
    for tool in ["list_layers", "review_layer", "keep_layer", "drop_layer"] {
        assert!(world.session.catalog.get(tool).is_none());
        assert_eq!(world.error(tool, &json!({})), ErrorKind::UnknownTool);
    }
}
