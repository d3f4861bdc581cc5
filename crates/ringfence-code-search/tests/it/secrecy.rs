//! Secrecy: what a session may not read is in no reply, and secrets are in no index.

use std::fs;
use std::os::unix::fs::symlink;

use ringfence_kernel::{Dialect, PolicyRule, RuleText};
use serde_json::{Value, json};

use crate::fixture::{SearchHost, SearchWorld};

const MARKER: &str = "zyxwvmarker";

/// A source file with the marker in every field, long enough for an index to be stored.
fn secret_source() -> String {
    let line = "fn ordinary_filler() { let filler = 1; }\n";
    format!("/// {MARKER}\nfn {MARKER}(token: {MARKER}) {{ \"{MARKER}\" }}\n{}", line.repeat(50))
}

fn rule(rule: &Value) -> PolicyRule {
    let text = serde_json::from_value::<RuleText>(rule.clone()).unwrap();
    PolicyRule::new(text, "hidden").unwrap()
}

#[track_caller]
fn check_hidden(host: &SearchHost) {
    for query in [MARKER, "ordinary token zyxwvmarker"] {
        for hit in host.value(&json!({"query": query}))["hits"].as_array().unwrap() {
            assert!(!hit.to_string().contains(MARKER), "{hit}");
        }
    }
}

#[track_caller]
fn check_not_stored(world: &SearchWorld) {
    let index = fs::read(world.index()).unwrap();
    let has = |text: &str| index.windows(text.len()).any(|window| window == text.as_bytes());
    assert!(has("large.rs") && !has(MARKER));
}

#[test]
fn secrets_are_never_found_nor_stored() {
    let world = SearchWorld::with_model();
    let root = &world.world.workspace;
    world.write(".env", secret_source());
    world.write("deep/.env.js", secret_source());
    world.write("keys/id_rsa", secret_source());
    // Other names of the same.
    fs::hard_link(root.join(".env"), root.join("linked.rs")).unwrap();
    fs::hard_link(root.join("keys/id_rsa"), root.join("a_link_listed_before_its_secret.rs")).unwrap();
    symlink(".env", root.join("symbolic.rs")).unwrap();
    symlink("keys", root.join("source")).unwrap();
    // Outside, ignored and hidden.
    fs::write(world.world.outside.join("out.rs"), secret_source()).unwrap();
    symlink(world.world.outside.join("out.rs"), root.join("out.rs")).unwrap();
    symlink(&world.world.outside, root.join("outside")).unwrap();
    world.write(".gitignore", "build/\n*.gen.rs\n");
    world.write("build/made.rs", secret_source());
    world.write("src/made.gen.rs", secret_source());
    world.write(".hidden/file.rs", secret_source());
    world.write("node_modules/x/index.js", secret_source());
    world.write(".git/hooks.rs", secret_source());
    // Enough for the index to be stored.
    world.write_large();
    let host = world.host();
    check_hidden(&host);
    check_hidden(&host);
    check_not_stored(&world);
    // A file that gets to be a secret is one at once.
    world.write("later.rs", secret_source());
    assert_eq!(host.hits(MARKER).len(), 1);
    fs::hard_link(root.join("later.rs"), root.join("id_ed25519")).unwrap();
    check_hidden(&host);
    // A search that names a link to a secret needs approval, which the test does not give.
    let (succeeded, text) = host.call(&json!({"query": MARKER, "path": "symbolic.rs"}));
    assert!(!succeeded && !text.contains(MARKER), "{text}");
}

#[test]
fn what_a_rule_denies_is_found_only_by_others() {
    let world = SearchWorld::with_model();
    world.write("private/plan.rs", secret_source());
    world.write("open/plan.rs", "fn ordinary() {}\n");
    world.write_large();
    // The index that both use has it.
    assert_eq!(world.host().hits(MARKER)[0], format!("private/plan.rs:2 {MARKER}"));
    let rules = || vec![rule(&json!({"decision": "deny", "path": "private", "effect": "read"}))];
    check_hidden(&world.host_with(Dialect::Standard, rules()));
    let claude = world.host_with(Dialect::Claude, rules());
    assert!(!claude.call(&json!({"query": MARKER})).1.contains(MARKER));
    let (succeeded, text) = claude.call(&json!({"query": MARKER, "path": "private/plan.rs"}));
    assert!(!succeeded && !text.contains(MARKER), "{text}");
    // A rule that asks hides it too: a search does not ask for single files.
    let asks = vec![rule(&json!({"decision": "ask", "path": "private", "effect": "read"}))];
    check_hidden(&world.host_with(Dialect::Standard, asks));
}

#[test]
fn files_that_no_user_may_read_are_not_read() {
    let world = SearchWorld::with_model();
    world.write("closed.rs", secret_source());
    world.write_large();
    let closed = std::os::unix::fs::PermissionsExt::from_mode(0o000);
    fs::set_permissions(world.world.workspace.join("closed.rs"), closed).unwrap();
    check_hidden(&world.host());
    check_not_stored(&world);
}
