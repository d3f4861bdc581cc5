//! What a verdict says to whoever asked.

use std::sync::Arc;

use expect_test::{Expect, expect};
use ringfence_kernel::Decision::{Allow, Ask, Deny};
use ringfence_kernel::{BitSet, Layer, Policy as _, Preset, Question, Rule, Rules, Touch, Verb, Verdict};
use serde_json::{Value, json};

use super::{decide, decide_with, rule, session, touch, touch_through, user};

#[track_caller]
fn says(rules: &Rules, touch: Touch, expected: Expect) {
    let Verdict { decision, rule, layer, reason, assurance, grant } = decide_with(rules, &[touch], &[]);
    let answer = if decision == Ask { format!(" ({})", assurance.name()) } else { String::new() };
    let grant = grant.map(|grant| format!("\n{grant}")).unwrap_or_default();
    expected.assert_eq(&format!("{}{answer} by {} `{rule}`: {reason}{grant}", decision.name(), layer.name()));
}

#[test]
fn a_denial_says_which_rule_what_is_allowed_and_what_would_grant_it() {
    let docs = || json!({"decision": "deny", "name": "docs", "effect": "change", "path": "docs/**", "because": "they are generated"});
    let in_layer = |layer: Layer| Rules::of(Preset::Ask).with(layer, vec![rule(docs())]);
    says(
        &in_layer(Layer::User),
        touch(Verb::Overwrite, "docs/a[1].md"),
        expect![[r#"
        deny by user `docs`: this would overwrite `docs/a[1].md`, and the rule `docs` of your config denies it (they are generated); it is about `effect = "change", path = "docs/**"`, and nothing else; `path = ["docs/**", "!docs/a\\[1\\].md"]` in that rule would lift this
        path = ["docs/**", "!docs/a\\[1\\].md"]"#]],
    );
    says(
        &in_layer(Layer::Managed),
        touch(Verb::Overwrite, "docs/a.md"),
        expect![[
            r#"deny by managed `docs`: this would overwrite `docs/a.md`, and the rule `docs` set by this machine's owner denies it (they are generated); it is about `effect = "change", path = "docs/**"`, and nothing else"#
        ]],
    );
    says(
        &in_layer(Layer::Workspace),
        touch(Verb::Create, "docs/a.md"),
        expect![[
            r#"deny by workspace `docs`: this would create `docs/a.md`, and the rule `docs` of the workspace's ringfence.toml denies it (they are generated); it is about `effect = "change", path = "docs/**"`, and nothing else"#
        ]],
    );
    says(
        &user([json!({"decision": "deny"})]),
        touch(Verb::Read, "a"),
        expect![
            "deny by user `rule`: this would read `a`, and the rule `rule` of your config denies it; it is about everything"
        ],
    );
    says(
        &user([json!({"decision": "deny", "effect": "read"})]),
        touch_through(Verb::Read, "a", Some("b/c")),
        expect![[r#"
            deny by user `rule`: this would read `a`, and the rule `rule` of your config denies it; it is about `effect = "read"`, and nothing else; `path = ["!./a", "!b/c"]` in that rule would lift this
            path = ["!./a", "!b/c"]"#]],
    );
    says(
        &user([json!({"decision": "deny", "host": "*.rs"})]),
        touch(Verb::Fetch, "docs.rs:443"),
        expect![[r#"
        deny by user `rule`: this would fetch `docs.rs:443`, and the rule `rule` of your config denies it; it is about `host = "*.rs"`, and nothing else; `host = ["*.rs", "!docs.rs:443"]` in that rule would lift this
        host = ["*.rs", "!docs.rs:443"]"#]],
    );
    let read_only = Rules::of(Preset::ReadOnly);
    says(
        &read_only,
        touch(Verb::Create, "a"),
        expect![[r#"
        deny by preset `preset read-only`: this would create `a`, and the preset `read-only` allows no change; listing and reading is allowed; `preset = "ask"` instead would lift this
        preset = "ask""#]],
    );
    says(
        &read_only,
        touch(Verb::Delete, "a"),
        expect![[r#"
        deny by preset `preset read-only`: this would delete `a`, and the preset `read-only` allows no change; listing and reading is allowed; `preset = "edits"` instead would lift this
        preset = "edits""#]],
    );
    says(
        &Rules::of(Preset::Edits).with_managed_preset(Preset::ReadOnly),
        touch(Verb::Create, "a"),
        expect![
            "deny by managed `preset read-only`: this would create `a`, and the preset `read-only` allows no change; listing and reading is allowed; the preset is one set by this machine's owner"
        ],
    );
    says(
        &Rules::of(Preset::Edits).with_workspace_preset(Preset::ReadOnly),
        touch(Verb::Create, "a"),
        expect![
            "deny by workspace `preset read-only`: this would create `a`, and the preset `read-only` allows no change; listing and reading is allowed; the preset is one of the workspace's ringfence.toml"
        ],
    );
}

#[test]
fn a_question_says_why_and_what_would_save_it() {
    let ask = Rules::of(Preset::Ask);
    says(
        &ask,
        touch(Verb::Overwrite, "notes/a.md"),
        expect![[r#"
        ask (relayed) by preset `preset ask`: this would overwrite `notes/a.md`
        { decision = "allow", tool = "write_file", mount = "workspace", path = "notes/a.md" }"#]],
    );
    says(
        &ask,
        touch_through(Verb::Overwrite, "a", Some("b*/c")),
        expect![[r#"
        ask (relayed) by preset `preset ask`: this would overwrite `a`
        { decision = "allow", tool = "write_file", mount = "workspace", path = ["./a", "b\\*/c"] }"#]],
    );
    says(
        &ask,
        touch(Verb::Read, ".env"),
        expect!["ask (person) by preset `secret`: this would read `.env`, which may hold secrets"],
    );
    says(
        &ask,
        touch(Verb::Create, ".git/hooks/pre-commit"),
        expect![
            "ask (person) by preset `protected path`: this would create `.git/hooks/pre-commit`, a setting that other programs act on (git)"
        ],
    );
    says(
        &ask,
        touch(Verb::Fetch, "docs.rs:443"),
        expect![[r#"
        ask (person) by preset `other host`: this would fetch `docs.rs:443`, a host that no rule allows
        { decision = "allow", tool = "write_file", host = "docs.rs:443" }"#]],
    );
    says(
        &user([json!({"decision": "ask", "path": "docs/**", "because": "of the style"})]),
        touch(Verb::Create, "docs/a"),
        expect![[r#"
            ask (relayed) by user `rule`: this would create `docs/a`, and the rule `rule` of your config wants it asked (of the style)
            path = ["docs/**", "!docs/a"]"#]],
    );
    says(
        &Rules::of(Preset::Edits).with_managed_preset(Preset::Ask),
        touch(Verb::Overwrite, "a"),
        expect![
            "ask (relayed) by managed `preset ask`: this would overwrite `a`; the preset is one set by this machine's owner"
        ],
    );
    says(&ask, touch(Verb::Read, "a"), expect!["allow by preset `preset`: "]);
}

/// A rule in one line of config, as a `grant` has it, to JSON.
fn from_line(line: &str) -> Value {
    let inner = line.strip_prefix("{ ").and_then(|line| line.strip_suffix(" }")).unwrap();
    let mut text = json!({});
    let mut rest = inner;
    while let Some((key, after)) = rest.split_once(" = ") {
        let mut values = serde_json::Deserializer::from_str(after).into_iter::<Value>();
        text[key.trim_start_matches([',', ' '])] = values.next().unwrap().unwrap();
        rest = &after[values.byte_offset()..];
    }
    text
}

#[test]
fn the_line_that_would_grant_does() {
    for touch in [
        touch(Verb::Overwrite, "a.md"),
        touch(Verb::Overwrite, "!a*[x].md"),
        touch(Verb::Delete, "@types/x"),
        touch_through(Verb::Overwrite, "a", Some("b/{c}")),
        touch(Verb::Fetch, "docs.rs:8443"),
        touch(Verb::Fetch, "docs.rs:8443/a/b"),
    ] {
        let before = decide_with(&Rules::of(Preset::Ask), std::slice::from_ref(&touch), &[]);
        let granted = rule(from_line(&before.grant.unwrap()));
        let rules = Rules::of(Preset::Ask).with(Layer::User, vec![granted]);
        assert_eq!(decide_with(&rules, std::slice::from_ref(&touch), &[]).decision, Allow, "{touch:?}");
        for other in ["b.md", "x/a.md", "a.md2", "docs.rs:443"] {
            assert_eq!(decide(&rules, touch.verb, other), Ask, "{other}");
        }
    }
    // A denial is lifted by an exception in the rule itself.
    let docs = |path: Value| user([json!({"decision": "deny", "path": path})]);
    let touches = [touch_through(Verb::Overwrite, "docs/a", Some("docs/b c"))];
    let denied = decide_with(&docs(json!("docs/**")), &touches, &[]);
    let exception = denied.grant.unwrap();
    let path = serde_json::from_str(exception.strip_prefix("path = ").unwrap()).unwrap();
    let lifted = docs(path);
    assert_eq!(decide_with(&lifted, &touches, &[]).decision, Allow);
    assert_eq!(decide(&lifted, Verb::Overwrite, "docs/c"), Deny);
}

/// What would lift a denial by a rule about these hosts, if there is such a line.
#[track_caller]
fn lifts(hosts: Value, asked: &str, expected: Option<&str>) {
    let denying = |hosts: Value| user([json!({"decision": "deny", "host": hosts}), json!({"decision": "allow"})]);
    let denied = decide_with(&denying(hosts.clone()), &[touch(Verb::Fetch, asked)], &[]);
    assert_eq!((denied.decision, denied.grant.as_deref()), (Deny, expected), "{hosts} {asked}");
    assert_eq!(denied.reason.contains("would lift this"), expected.is_some(), "{}", denied.reason);
    let Some(line) = expected else { return };
    let lifted = denying(serde_json::from_str(line.strip_prefix("host = ").unwrap()).unwrap());
    assert_eq!(decide(&lifted, Verb::Fetch, asked), Allow, "{line}");
    for other in ["docs.rs:443/private", "docs.rs:443/private/b", "docs.rs:80/private/a", "docs.rs:443"] {
        let before = decide(&denying(hosts.clone()), Verb::Fetch, other);
        assert_eq!(decide(&lifted, Verb::Fetch, other), before, "{line}: {other}");
    }
}

#[test]
fn what_would_lift_a_denial_of_a_host_leaves_the_rest_of_the_rule() {
    let asked = "docs.rs:443/private/a";
    lifts(json!("docs.rs/private"), asked, Some(r#"host = ["docs.rs/private", "!docs.rs:443/private/a"]"#));
    lifts(json!("docs.rs:443/private"), asked, Some(r#"host = ["docs.rs:443/private", "!docs.rs:443/private/a"]"#));
    lifts(json!("docs.rs"), asked, Some(r#"host = ["docs.rs", "!docs.rs:443/private/a"]"#));
    lifts(json!(["*.rs", "!x.rs"]), asked, Some(r#"host = ["*.rs", "!x.rs", "!docs.rs:443/private/a"]"#));
    lifts(json!("*"), "b.rs:443", Some(r#"host = ["*", "!b.rs:443"]"#));
    lifts(json!("*"), "b.rs:443/", Some(r#"host = ["*", "!b.rs:443/"]"#));
    // Nothing would be left of what the rule says about the host.
    for (hosts, asked) in [
        ("docs.rs:443/private", "docs.rs:443/private"),
        ("docs.rs/private", "docs.rs:443/private/"),
        ("docs.rs/private", "docs.rs:443"),
        ("docs.rs", "docs.rs:443/"),
        ("docs.rs", "docs.rs:443"),
    ] {
        lifts(json!(hosts), asked, None);
        lifts(json!(["*.org", hosts]), asked, None);
    }
    // What no pattern can say.
    for path in ["a%20b", "a/../b", "a//b", "a;b", "@a", "a*"] {
        lifts(json!("docs.rs"), &format!("docs.rs:443/{path}"), None);
    }
    lifts(json!("*"), "*.rs:443/a", None);
}

#[test]
fn a_host_is_offered_with_the_path_that_was_asked_for() {
    let offered = |asked: &str| decide_with(&Rules::of(Preset::Ask), &[touch(Verb::Fetch, asked)], &[]).grant;
    for place in ["docs.rs:443", "docs.rs:443/", "docs.rs:443/std", "docs.rs:8443/std/vec/", "[::1]:80/a"] {
        let line = format!(r#"{{ decision = "allow", tool = "write_file", host = "{place}" }}"#);
        assert_eq!(offered(place), Some(line));
    }
    for place in ["docs.rs:443/a%20b", "docs.rs:443/a;b", "docs.rs:443/@a", "*.rs:443/a", "!docs.rs:443/a", "docs.rs"] {
        assert_eq!(offered(place), None, "{place}");
    }
}

#[test]
fn the_layers_are_shown_in_the_order_in_which_they_decide() {
    let one = |name: &str| vec![rule(json!({"decision": "ask", "name": name}))];
    let rules = Rules::of(Preset::Ask)
        .with(Layer::Workspace, one("w"))
        .with(Layer::User, one("u"))
        .with(Layer::Grants, Vec::new())
        .with(Layer::Managed, one("m"))
        .with_managed_preset(Preset::Ask);
    let shown: Vec<String> = rules
        .layers()
        .map(|(layer, rules)| {
            let names: Vec<&str> = rules.iter().map(|rule| rule.name()).collect();
            format!("{}: {}", layer.name(), names.join(", "))
        })
        .collect();
    assert_eq!(
        shown,
        [
            "workspace: w",
            "managed: m",
            "managed: secret, protected path, preset ask, other host, cannot be undone, external",
            "user: u",
            "preset: third bit, third bit, secret, protected path, preset ask, other host, search, cannot be undone, external, preset",
        ]
    );
}

#[test]
fn what_may_be_granted_is_this_one_call_and_nothing_that_deserves_a_second_look() {
    let rules = Rules::of(Preset::Ask);
    let offered = |rules: &Rules, touches: &[Touch]| {
        let granted = rules.grant_for(&Question::new(&session(), "write_file", touches, BitSet::default()))?;
        let rule = Rule::new(granted, "granted").unwrap();
        // With it the call happens; another tool, path or effect is asked about as before.
        let with = rules.clone().with(Layer::Grants, vec![rule.clone()]);
        assert_eq!(decide_with(&with, touches, &[]).decision, Allow);
        assert_eq!(decide(&with, Verb::Overwrite, "elsewhere"), Ask);
        assert_eq!(decide(&with, Verb::Delete, "elsewhere"), Ask);
        Some(rule.to_string())
    };
    let some = |count: usize| (0..count).map(|n| touch(Verb::Overwrite, &format!("f{n}"))).collect::<Vec<_>>();
    let line = offered(&rules, &[touch(Verb::Read, "b"), touch(Verb::Overwrite, "a")]).unwrap();
    for part in [r#"tool = "write_file""#, r#"effect = "overwrite""#, r#"path = "./a""#, r#"agent = "writer""#] {
        assert!(line.contains(part), "{part} is not in {line}");
    }
    assert!(offered(&rules, &some(8)).is_some());
    assert_eq!(offered(&rules, &some(9)), None);
    assert_eq!(offered(&rules, &[touch(Verb::Overwrite, "a"), touch(Verb::Delete, "b")]), None);
    let mut elsewhere = touch(Verb::Overwrite, "b");
    elsewhere.place.mount = Arc::from("pkg");
    assert_eq!(offered(&rules, &[touch(Verb::Overwrite, "a"), elsewhere]), None);
    for touch in [touch(Verb::Read, ".env"), touch(Verb::Overwrite, ".git/config"), touch(Verb::Fetch, "docs.rs:443")] {
        assert_eq!(offered(&rules, std::slice::from_ref(&touch)), None, "{touch:?}");
    }
    assert_eq!(offered(&rules, &[touch(Verb::Read, "a")]), None);
    assert_eq!(offered(&rules, &[]), None);
    // What a person wrote down to be asked about is asked about.
    let wants = Rules::of(Preset::Ask).with(Layer::User, vec![rule(json!({"decision": "ask", "path": "a"}))]);
    assert_eq!(offered(&wants, &[touch(Verb::Overwrite, "a")]), None);
    assert_eq!(offered(&Rules::of(Preset::ReadOnly), &[touch(Verb::Overwrite, "a")]), None);
}
