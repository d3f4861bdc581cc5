//! Reasons of a verdict, as the caller reads them.

use std::sync::Arc;

use expect_test::{Expect, expect};
use ringfence_kernel::Decision::{Allow, Ask, Deny};
use ringfence_kernel::{
    LayeredRules, Policy as _, PolicyAction, PolicyLayer, PolicyRequest, PolicyRule, Preset, ResourceAccess, TaintSet,
    Verdict,
};
use serde_json::{Value, json};

use super::{access, access_through_link, decide, decide_with, rule, session, user_rules};

#[track_caller]
fn assert_reason(rules: &LayeredRules, access: ResourceAccess, expected: Expect) {
    let Verdict { decision, rule, layer, reason, assurance, grant } = decide_with(rules, &[access], &[]);
    let answer = if decision == Ask { format!(" ({})", assurance.name()) } else { String::new() };
    let grant = grant.map(|grant| format!("\n{grant}")).unwrap_or_default();
    expected.assert_eq(&format!("{}{answer} by {} `{rule}`: {reason}{grant}", decision.name(), layer.name()));
}

#[test]
fn a_denial_says_which_rule_what_is_allowed_and_what_would_grant_it() {
    let docs = || json!({"decision": "deny", "name": "docs", "effect": "change", "path": "docs/**", "because": "they are generated"});
    let in_layer = |layer: PolicyLayer| LayeredRules::from_preset(Preset::Ask).with_layer(layer, vec![rule(docs())]);
    assert_reason(
        &in_layer(PolicyLayer::User),
        access(PolicyAction::Overwrite, "docs/a[1].md"),
        expect![[r#"
        deny by user `docs`: this would overwrite `docs/a[1].md`, and the rule `docs` of your config denies it (they are generated); the rule covers only `effect = "change", path = "docs/**"`; `path = ["docs/**", "!docs/a\\[1\\].md"]` in that rule would lift this
        path = ["docs/**", "!docs/a\\[1\\].md"]"#]],
    );
    assert_reason(
        &in_layer(PolicyLayer::Managed),
        access(PolicyAction::Overwrite, "docs/a.md"),
        expect![[
            r#"deny by managed `docs`: this would overwrite `docs/a.md`, and the rule `docs` set by the administrator of this machine denies it (they are generated); the rule covers only `effect = "change", path = "docs/**"`"#
        ]],
    );
    assert_reason(
        &in_layer(PolicyLayer::Workspace),
        access(PolicyAction::Create, "docs/a.md"),
        expect![[
            r#"deny by workspace `docs`: this would create `docs/a.md`, and the rule `docs` of the workspace's ringfence.toml denies it (they are generated); the rule covers only `effect = "change", path = "docs/**"`"#
        ]],
    );
    assert_reason(
        &user_rules([json!({"decision": "deny"})]),
        access(PolicyAction::Read, "a"),
        expect![
            "deny by user `rule`: this would read `a`, and the rule `rule` of your config denies it; the rule covers everything"
        ],
    );
    assert_reason(
        &user_rules([json!({"decision": "deny", "effect": "read"})]),
        access_through_link(PolicyAction::Read, "a", Some("b/c")),
        expect![[r#"
            deny by user `rule`: this would read `a`, and the rule `rule` of your config denies it; the rule covers only `effect = "read"`; `path = ["!./a", "!b/c"]` in that rule would lift this
            path = ["!./a", "!b/c"]"#]],
    );
    assert_reason(
        &user_rules([json!({"decision": "deny", "host": "*.rs"})]),
        access(PolicyAction::Fetch, "docs.rs:443"),
        expect![[r#"
        deny by user `rule`: this would fetch `docs.rs:443`, and the rule `rule` of your config denies it; the rule covers only `host = "*.rs"`; `host = ["*.rs", "!docs.rs:443"]` in that rule would lift this
        host = ["*.rs", "!docs.rs:443"]"#]],
    );
    let read_only = LayeredRules::from_preset(Preset::ReadOnly);
    assert_reason(
        &read_only,
        access(PolicyAction::Create, "a"),
        expect![[r#"
        deny by preset `preset read-only`: this would create `a`, and the preset `read-only` allows no changes, only listing and reading; `preset = "ask"` instead would lift this
        preset = "ask""#]],
    );
    assert_reason(
        &read_only,
        access(PolicyAction::Delete, "a"),
        expect![[r#"
        deny by preset `preset read-only`: this would delete `a`, and the preset `read-only` allows no changes, only listing and reading; `preset = "edits"` instead would lift this
        preset = "edits""#]],
    );
    assert_reason(
        &LayeredRules::from_preset(Preset::Edits).with_managed_preset(Preset::ReadOnly),
        access(PolicyAction::Create, "a"),
        expect![
            "deny by managed `preset read-only`: this would create `a`, and the preset `read-only` allows no changes, only listing and reading; the preset is one set by the administrator of this machine"
        ],
    );
    assert_reason(
        &LayeredRules::from_preset(Preset::Edits).with_workspace_preset(Preset::ReadOnly),
        access(PolicyAction::Create, "a"),
        expect![
            "deny by workspace `preset read-only`: this would create `a`, and the preset `read-only` allows no changes, only listing and reading; the preset is one of the workspace's ringfence.toml"
        ],
    );
}

#[test]
fn a_question_says_why_and_what_would_save_it() {
    let ask = LayeredRules::from_preset(Preset::Ask);
    assert_reason(
        &ask,
        access(PolicyAction::Overwrite, "notes/a.md"),
        expect![[r#"
        ask (relayed) by preset `preset ask`: this would overwrite `notes/a.md`
        { decision = "allow", tool = "write_file", mount = "workspace", path = "notes/a.md" }"#]],
    );
    assert_reason(
        &ask,
        access_through_link(PolicyAction::Overwrite, "a", Some("b*/c")),
        expect![[r#"
        ask (relayed) by preset `preset ask`: this would overwrite `a`
        { decision = "allow", tool = "write_file", mount = "workspace", path = ["./a", "b\\*/c"] }"#]],
    );
    assert_reason(
        &ask,
        access(PolicyAction::Read, ".env"),
        expect!["ask (person) by preset `secret`: this would read `.env`, which may hold secrets"],
    );
    assert_reason(
        &ask,
        access(PolicyAction::Create, ".git/hooks/pre-commit"),
        expect![
            "ask (person) by preset `protected path`: this would create `.git/hooks/pre-commit`, a setting that other programs act on (git)"
        ],
    );
    assert_reason(
        &ask,
        access(PolicyAction::Fetch, "docs.rs:443"),
        expect![[r#"
        ask (person) by preset `other host`: this would fetch `docs.rs:443`, a host that no rule allows
        { decision = "allow", tool = "write_file", host = "docs.rs:443" }"#]],
    );
    assert_reason(
        &user_rules([json!({"decision": "ask", "path": "docs/**", "because": "of the style"})]),
        access(PolicyAction::Create, "docs/a"),
        expect![[r#"
            ask (relayed) by user `rule`: this would create `docs/a`, and the rule `rule` of your config requires approval (of the style)
            path = ["docs/**", "!docs/a"]"#]],
    );
    assert_reason(
        &LayeredRules::from_preset(Preset::Edits).with_managed_preset(Preset::Ask),
        access(PolicyAction::Overwrite, "a"),
        expect![
            "ask (relayed) by managed `preset ask`: this would overwrite `a`; the preset is one set by the administrator of this machine"
        ],
    );
    assert_reason(&ask, access(PolicyAction::Read, "a"), expect!["allow by preset `preset`: "]);
}

/// A rule in one line of config, as a `grant` has it, to JSON.
fn parse_rule_line(line: &str) -> Value {
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
    for access in [
        access(PolicyAction::Overwrite, "a.md"),
        access(PolicyAction::Overwrite, "!a*[x].md"),
        access(PolicyAction::Delete, "@types/x"),
        access_through_link(PolicyAction::Overwrite, "a", Some("b/{c}")),
        access(PolicyAction::Fetch, "docs.rs:8443"),
        access(PolicyAction::Fetch, "docs.rs:8443/a/b"),
    ] {
        let before = decide_with(&LayeredRules::from_preset(Preset::Ask), std::slice::from_ref(&access), &[]);
        let granted = rule(parse_rule_line(&before.grant.unwrap()));
        let rules = LayeredRules::from_preset(Preset::Ask).with_layer(PolicyLayer::User, vec![granted]);
        assert_eq!(decide_with(&rules, std::slice::from_ref(&access), &[]).decision, Allow, "{access:?}");
        for other in ["b.md", "x/a.md", "a.md2", "docs.rs:443"] {
            assert_eq!(decide(&rules, access.action, other), Ask, "{other}");
        }
    }
    // A denial is lifted by an exception in the rule itself.
    let docs = |path: Value| user_rules([json!({"decision": "deny", "path": path})]);
    let accesses = [access_through_link(PolicyAction::Overwrite, "docs/a", Some("docs/b c"))];
    let denied = decide_with(&docs(json!("docs/**")), &accesses, &[]);
    let exception = denied.grant.unwrap();
    let path = serde_json::from_str(exception.strip_prefix("path = ").unwrap()).unwrap();
    let lifted = docs(path);
    assert_eq!(decide_with(&lifted, &accesses, &[]).decision, Allow);
    assert_eq!(decide(&lifted, PolicyAction::Overwrite, "docs/c"), Deny);
}

/// The line that would lift a denial by a rule about these hosts, if there is one.
#[track_caller]
fn assert_exception(hosts: Value, asked: &str, expected: Option<&str>) {
    let denying = |hosts: Value| user_rules([json!({"decision": "deny", "host": hosts}), json!({"decision": "allow"})]);
    let denied = decide_with(&denying(hosts.clone()), &[access(PolicyAction::Fetch, asked)], &[]);
    assert_eq!((denied.decision, denied.grant.as_deref()), (Deny, expected), "{hosts} {asked}");
    assert_eq!(denied.reason.contains("would lift this"), expected.is_some(), "{}", denied.reason);
    let Some(line) = expected else { return };
    let lifted = denying(serde_json::from_str(line.strip_prefix("host = ").unwrap()).unwrap());
    assert_eq!(decide(&lifted, PolicyAction::Fetch, asked), Allow, "{line}");
    for other in ["docs.rs:443/private", "docs.rs:443/private/b", "docs.rs:80/private/a", "docs.rs:443"] {
        let before = decide(&denying(hosts.clone()), PolicyAction::Fetch, other);
        assert_eq!(decide(&lifted, PolicyAction::Fetch, other), before, "{line}: {other}");
    }
}

#[test]
fn an_exception_for_a_host_leaves_the_rest_of_the_rule() {
    let asked = "docs.rs:443/private/a";
    assert_exception(json!("docs.rs/private"), asked, Some(r#"host = ["docs.rs/private", "!docs.rs:443/private/a"]"#));
    assert_exception(
        json!("docs.rs:443/private"),
        asked,
        Some(r#"host = ["docs.rs:443/private", "!docs.rs:443/private/a"]"#),
    );
    assert_exception(json!("docs.rs"), asked, Some(r#"host = ["docs.rs", "!docs.rs:443/private/a"]"#));
    assert_exception(json!(["*.rs", "!x.rs"]), asked, Some(r#"host = ["*.rs", "!x.rs", "!docs.rs:443/private/a"]"#));
    assert_exception(json!("*"), "b.rs:443", Some(r#"host = ["*", "!b.rs:443"]"#));
    assert_exception(json!("*"), "b.rs:443/", Some(r#"host = ["*", "!b.rs:443/"]"#));
    // Nothing would be left of what the rule says about the host.
    for (hosts, asked) in [
        ("docs.rs:443/private", "docs.rs:443/private"),
        ("docs.rs/private", "docs.rs:443/private/"),
        ("docs.rs/private", "docs.rs:443"),
        ("docs.rs", "docs.rs:443/"),
        ("docs.rs", "docs.rs:443"),
    ] {
        assert_exception(json!(hosts), asked, None);
        assert_exception(json!(["*.org", hosts]), asked, None);
    }
    // What no pattern can say.
    for path in ["a%20b", "a/../b", "a//b", "a;b", "@a", "a*"] {
        assert_exception(json!("docs.rs"), &format!("docs.rs:443/{path}"), None);
    }
    assert_exception(json!("*"), "*.rs:443/a", None);
}

#[test]
fn a_host_is_offered_with_the_path_that_was_asked_for() {
    let offered = |asked: &str| {
        decide_with(&LayeredRules::from_preset(Preset::Ask), &[access(PolicyAction::Fetch, asked)], &[]).grant
    };
    for host in ["docs.rs:443", "docs.rs:443/", "docs.rs:443/std", "docs.rs:8443/std/vec/", "[::1]:80/a"] {
        let line = format!(r#"{{ decision = "allow", tool = "write_file", host = "{host}" }}"#);
        assert_eq!(offered(host), Some(line));
    }
    for host in ["docs.rs:443/a%20b", "docs.rs:443/a;b", "docs.rs:443/@a", "*.rs:443/a", "!docs.rs:443/a", "docs.rs"] {
        assert_eq!(offered(host), None, "{host}");
    }
}

#[test]
fn the_layers_are_shown_in_the_order_in_which_they_decide() {
    let one = |name: &str| vec![rule(json!({"decision": "ask", "name": name}))];
    let rules = LayeredRules::from_preset(Preset::Ask)
        .with_layer(PolicyLayer::Workspace, one("w"))
        .with_layer(PolicyLayer::User, one("u"))
        .with_layer(PolicyLayer::Grants, Vec::new())
        .with_layer(PolicyLayer::Managed, one("m"))
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
            "managed: secret, protected path, preset ask, other host, cannot be undone, external, other port, sent contents",
            "user: u",
            "preset: taint combination, taint combination, taint combination, secret, protected path, preset ask, other host, search, registry, cannot be undone, external, other port, sent contents, preset",
        ]
    );
}

#[test]
fn only_this_very_call_is_grantable_and_nothing_sensitive() {
    let rules = LayeredRules::from_preset(Preset::Ask);
    let offered = |rules: &LayeredRules, accesses: &[ResourceAccess]| {
        let granted =
            rules.narrowest_grant(&PolicyRequest::new(&session(), "write_file", accesses, TaintSet::default()))?;
        let rule = PolicyRule::new(granted, "granted").unwrap();
        // With it the call happens; another tool, path or effect is asked about as before.
        let with = rules.clone().with_layer(PolicyLayer::Grants, vec![rule.clone()]);
        assert_eq!(decide_with(&with, accesses, &[]).decision, Allow);
        assert_eq!(decide(&with, PolicyAction::Overwrite, "elsewhere"), Ask);
        assert_eq!(decide(&with, PolicyAction::Delete, "elsewhere"), Ask);
        Some(rule.to_string())
    };
    let some = |count: usize| (0..count).map(|n| access(PolicyAction::Overwrite, &format!("f{n}"))).collect::<Vec<_>>();
    let line = offered(&rules, &[access(PolicyAction::Read, "b"), access(PolicyAction::Overwrite, "a")]).unwrap();
    for part in [r#"tool = "write_file""#, r#"effect = "overwrite""#, r#"path = "./a""#, r#"agent = "writer""#] {
        assert!(line.contains(part), "{part} is not in {line}");
    }
    assert!(offered(&rules, &some(8)).is_some());
    assert_eq!(offered(&rules, &some(9)), None);
    assert_eq!(offered(&rules, &[access(PolicyAction::Overwrite, "a"), access(PolicyAction::Delete, "b")]), None);
    let mut elsewhere = access(PolicyAction::Overwrite, "b");
    elsewhere.resource.mount = Arc::from("pkg");
    assert_eq!(offered(&rules, &[access(PolicyAction::Overwrite, "a"), elsewhere]), None);
    for access in [
        access(PolicyAction::Read, ".env"),
        access(PolicyAction::Overwrite, ".git/config"),
        access(PolicyAction::Fetch, "docs.rs:443"),
    ] {
        assert_eq!(offered(&rules, std::slice::from_ref(&access)), None, "{access:?}");
    }
    assert_eq!(offered(&rules, &[access(PolicyAction::Read, "a")]), None);
    assert_eq!(offered(&rules, &[]), None);
    // What a person wrote down to be asked about is asked about.
    let wants = LayeredRules::from_preset(Preset::Ask)
        .with_layer(PolicyLayer::User, vec![rule(json!({"decision": "ask", "path": "a"}))]);
    assert_eq!(offered(&wants, &[access(PolicyAction::Overwrite, "a")]), None);
    assert_eq!(offered(&LayeredRules::from_preset(Preset::ReadOnly), &[access(PolicyAction::Overwrite, "a")]), None);
}
