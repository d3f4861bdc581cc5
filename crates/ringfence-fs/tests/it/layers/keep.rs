//! Keeping a part of a layer, undoing it, and keeping the rest.

use ringfence_kernel::ErrorKind;
use serde_json::{Value, json};

use super::{LayerFixture, inode, lines, strings};

#[test]
fn one_of_three_files_is_kept_and_the_others_stay() {
    let layer = LayerFixture::new(&[("a", "old"), ("b", "old"), ("d/c", "old")]);
    let layer = {
        layer.write("a", "new").write("b", "new").write("d/c", "new");
        layer.ended()
    };
    let before = layer.tree();
    let kept = layer.keep_paths(&["b"]);
    assert_eq!(strings(&kept["kept"], "path"), ["b"]);
    assert_eq!((&kept["left"], &kept["removed"]), (&json!(2), &json!(false)));
    assert_eq!(["a", "b", "d/c"].map(|path| layer.world.read(path)), ["old", "new", "old"]);
    assert_eq!(layer.listed(), ["changes modified a", "changes modified d/c"]);
    assert!(!layer.upper.join("b").exists());
    layer.world.value("undo", &json!({"change": kept["change"]}));
    assert_eq!(layer.tree(), before);
    // It does not come back.
    assert_eq!(layer.listed(), ["changes modified a", "changes modified d/c"]);
    layer.world.value("redo", &json!({}));
    assert_eq!(layer.world.read("b"), "new");
    let rest = layer.keep(&Value::Null);
    assert_eq!(rest["removed"], json!(true));
    assert_eq!(["a", "b", "d/c"].map(|path| layer.world.read(path)), ["new", "new", "new"]);
    assert!(!layer.has_layer());
}

#[test]
fn one_of_two_hunks_is_kept_and_then_the_other() {
    let old = lines(0..60);
    let new = old.replace("line 5\n", "five\n").replace("line 50\n", "fifty\n");
    let layer = LayerFixture::new(&[("text", &old)]);
    layer.write("text", &new).mode("text", 0o755);
    let layer = layer.ended();
    let review = layer.review();
    let item = &review["sections"][3]["items"][0];
    assert_eq!(item["hunks"].as_array().unwrap().len(), 2);
    assert_eq!(item["mode"], json!(["644", "755"]));
    let before = layer.tree();
    let kept = layer.keep(&json!([{"path": "text", "hunks": [1], "base": item["base"]}]));
    assert_eq!(kept["kept"], json!([{"path": "text", "kind": "modified", "hunks": [1]}]));
    assert_eq!(layer.world.read("text"), old.replace("line 50\n", "fifty\n"));
    // Our own change is no conflict, and the other hunk is left.
    let item = layer.review()["sections"][3]["items"][0].clone();
    assert_eq!(item["hunks"].as_array().unwrap().len(), 1);
    assert_eq!(item.get("refusal"), None);
    // After an undo both hunks are there again: that file was never kept whole.
    layer.world.value("undo", &json!({"change": kept["change"]}));
    assert_eq!(layer.tree(), before);
    let again = layer.review()["sections"][3]["items"][0].clone();
    assert_eq!(again["hunks"].as_array().unwrap().len(), 2);
    layer.world.value("redo", &json!({}));
    let (kind, text) = layer.try_keep(&json!([{"path": "text", "hunks": [0], "base": again["base"]}])).unwrap_err();
    assert_eq!(kind, ErrorKind::Conflict, "{text}");
    let rest = layer.keep(&json!([{"path": "text", "hunks": [0], "base": item["base"]}]));
    assert_eq!(rest["removed"], json!(true));
    assert_eq!(layer.world.read("text"), new);
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &std::fs::metadata(layer.world.root.join("text")).unwrap().permissions(),
    );
    assert_eq!(mode & 0o777, 0o755);
    layer.world.value("undo", &json!({"change": rest["change"]}));
    layer.world.value("undo", &json!({"change": kept["change"]}));
    assert_eq!(layer.tree(), before);
}

#[test]
fn a_directory_is_kept_without_one_of_its_files() {
    let layer = LayerFixture::new(&[("x", "x")]);
    // As overlayfs makes new directories.
    layer.write("n/a", "a").write("n/b", "b").write("n/s/c", "c").opaque("n");
    let layer = layer.ended();
    let before = layer.tree();
    let kept = layer.keep_paths(&["n/a", "n/s"]);
    assert_eq!(strings(&kept["kept"], "path"), ["n", "n/a", "n/s", "n/s/c"]);
    assert_eq!(strings(&kept["along"], "path"), ["n"]);
    assert_eq!(layer.listed(), ["additions created n/b"]);
    assert!(!layer.world.root.join("n/b").exists());
    let rest = layer.keep_paths(&["n/b"]);
    assert_eq!(rest["removed"], json!(true));
    for change in [&rest, &kept] {
        layer.world.value("undo", &json!({"change": change["change"]}));
    }
    assert_eq!(layer.tree(), before);
    let (kind, _) = {
        let layer = LayerFixture::new(&[]);
        layer.write("n/a", "a");
        layer.ended().try_keep(&json!([{"path": "n", "alone": true}])).unwrap_err()
    };
    assert_eq!(kind, ErrorKind::InvalidArgs);
}

#[test]
fn a_rename_is_kept_with_both_ends() {
    let layer = LayerFixture::new(&[("old", "contents"), ("b", "b")]);
    layer.whiteout("old").write("new", "contents").write("b", "c");
    let layer = layer.ended();
    assert_eq!(layer.listed(), ["changes modified b", "changes renamed new"]);
    let before = layer.tree();
    let kept = layer.keep_paths(&["new"]);
    assert_eq!(kept["along"], json!([{"path": "old", "why": "it belongs to the change of `new`"}]));
    assert!(!layer.world.root.join("old").exists());
    assert_eq!(layer.world.read("new"), "contents");
    assert_eq!(layer.listed(), ["changes modified b"]);
    layer.world.value("undo", &json!({"change": kept["change"]}));
    assert_eq!(layer.tree(), before);
}

#[test]
fn deletions_modes_and_links_are_kept_one_by_one() {
    let layer = LayerFixture::new(&[("gone", "g"), ("d/1", "1"), ("d/2", "2"), ("m", "m"), ("dir/x", "x")]);
    layer.whiteout("gone").whiteout("d").write("m", "m").mode("m", 0o600).link("l", "m");
    std::fs::create_dir(layer.upper.join("dir")).unwrap();
    layer.mode("dir", 0o700);
    let layer = layer.ended();
    let all = ["deletions deleted d", "deletions deleted gone", "changes mode dir", "changes mode m"];
    assert_eq!(layer.listed(), [&all[..], &["additions link l"]].concat());
    let before = layer.tree();
    let mut changes = Vec::new();
    for path in ["d", "m", "l", "dir", "gone"] {
        changes.push(layer.keep_paths(&[path])["change"].clone());
    }
    assert!(!layer.has_layer());
    assert!(!layer.world.root.join("d").exists() && !layer.world.root.join("gone").exists());
    for change in changes.iter().rev() {
        layer.world.value("undo", &json!({"change": change}));
    }
    assert_eq!(layer.tree(), before);
}

#[test]
fn a_replaced_directory_is_kept_in_parts() {
    let layer = LayerFixture::new(&[("o/1", "1"), ("o/2", "2"), ("f", "f"), ("k/x", "x")]);
    layer.opaque("o").write("o/new", "n").write("o/2", "two").write("f/in", "in").write("k", "file");
    let layer = layer.ended();
    let kept = layer.keep_paths(&["o/new", "f/in"]);
    assert_eq!(strings(&kept["kept"], "path"), ["f", "f/in", "o/new"]);
    assert_eq!(layer.listed(), ["deletions deleted o/1", "changes modified k", "changes modified o/2"]);
    assert_eq!(layer.world.read("o/1"), "1");
    layer.keep_paths(&["o/1"]);
    assert_eq!(layer.listed(), ["changes modified k", "changes modified o/2"]);
    let rest = layer.keep(&Value::Null);
    assert_eq!(rest["removed"], json!(true));
    assert_eq!(["o/new", "o/2", "f/in", "k"].map(|path| layer.world.read(path)), ["n", "two", "in", "file"]);
}

#[test]
fn a_repository_is_kept_as_one() {
    let layer = LayerFixture::new(&[("a", "a")]);
    layer.write("n/.git/HEAD", "ref: refs/heads/main\n").write("n/.git/config", "[core]\n").write("n/a", "a");
    let layer = layer.ended();
    let kept = layer.keep_paths(&["n/.git/config"]);
    assert_eq!(strings(&kept["kept"], "path"), ["n", "n/.git", "n/.git/HEAD", "n/.git/config"]);
    let along: Vec<String> = strings(&kept["along"], "why");
    assert_eq!(along[1], "the changes of `n/.git` are kept together");
    assert_eq!(layer.listed(), ["additions created n/a"]);
}

#[test]
fn a_selection_that_makes_no_sense_is_refused() {
    let layer = LayerFixture::new(&[("a", &lines(0..9)), ("bin", "\0"), ("c", "c")]);
    layer.write("a", lines(1..9)).write("bin", "\0\0").write("c", "c").mode("c", 0o600).link("l", "../outside");
    let layer = layer.ended();
    let before = layer.tree();
    for (items, kind, words) in [
        (json!([]), ErrorKind::InvalidArgs, "must name at least one path"),
        (json!([{"path": "b"}]), ErrorKind::NotFound, "has no change of `b`"),
        (json!([{"path": "a", "hunks": []}]), ErrorKind::InvalidArgs, "needs at least one hunk"),
        (json!([{"path": "a", "hunks": [1]}]), ErrorKind::InvalidArgs, "has 1 hunks, and none with the number 1"),
        (json!([{"path": "bin", "hunks": [0]}]), ErrorKind::InvalidArgs, "is not text"),
        (json!([{"path": "c", "hunks": [0]}]), ErrorKind::InvalidArgs, "has no hunks"),
        (json!([{"path": "a", "base": "00"}]), ErrorKind::Conflict, "changed since the review"),
        (json!([{"path": "l"}]), ErrorKind::WrongType, "leads outside the workspace"),
    ] {
        let (found, text) = layer.try_keep(&items).unwrap_err();
        assert_eq!(found, kind, "{text}");
        assert!(text.contains(words), "{text}");
    }
    assert_eq!(layer.tree(), before);
    // Everything but the link.
    let kept = layer.keep(&Value::Null);
    assert_eq!(strings(&kept["refused"], "path"), ["l"]);
    assert_eq!(
        layer.listed(),
        ["conflicts link l"; 0].to_vec().into_iter().chain(["additions link l"]).collect::<Vec<_>>()
    );
}

#[test]
fn an_undo_brings_back_the_very_files() {
    let layer = LayerFixture::new(&[(".gitignore", "/cache\n"), ("cache/x", "ignored"), ("a", "a")]);
    layer.write("cache/x", "other").write("a", "b").whiteout("cache/y");
    let layer = layer.ended();
    let (before, inodes) = (layer.tree(), ["cache/x", "a"].map(|path| inode(&layer.world.root.join(path))));
    assert_eq!(layer.listed(), ["changes modified a", "derived 1 cache"]);
    let kept = layer.keep_paths(&["cache", "a"]);
    assert_eq!(layer.world.read("cache/x"), "other");
    layer.world.value("undo", &json!({"change": kept["change"]}));
    assert_eq!(layer.tree(), before);
    assert_eq!(["cache/x", "a"].map(|path| inode(&layer.world.root.join(path))), inodes);
    layer.world.value("redo", &json!({}));
    assert_eq!(layer.world.read("a"), "b");
}
