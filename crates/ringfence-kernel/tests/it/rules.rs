//! What is allowed, asked about and denied: the presets, rules in layers, and which of them wins.

use std::sync::Arc;

use expect_test::{Expect, expect};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use ringfence_kernel::{
    Assurance, Bit, BitSet, Bits, Catalog, Decision, Dialect, Layer, Limits, MCP, NET, Place, Policy, Preset,
    Principal, Question, Rule, Rules, SEARCH, Session, Touch, Verb, Verdict,
};
use serde_json::{Value, json};

use Decision::{Allow, Ask, Deny};

fn rule(text: Value) -> Rule {
    Rule::new(serde_json::from_value(text).unwrap(), "rule").unwrap()
}

fn touch(verb: Verb, given: &str) -> Touch {
    touch_through(verb, given, None)
}

/// A place that a link leads to.
fn touch_through(verb: Verb, given: &str, resolved: Option<&str>) -> Touch {
    let mount = if verb == Verb::Fetch { NET } else { "workspace" };
    let place = Place {
        mount: Arc::from(mount),
        given: given.to_owned(),
        resolved: resolved.map(str::to_owned),
        shown: given.to_owned(),
        ..Place::default()
    };
    Touch { verb, place }
}

fn session() -> Session {
    Session {
        id: "s".to_owned(),
        principal: Principal::agent("test"),
        dialect: Dialect::Standard,
        agent: Some("writer".to_owned()),
        limits: Limits::of(Dialect::Standard),
        catalog: Catalog::default(),
        bits: Bits::default(),
    }
}

fn decide_with(policy: &dyn Policy, touches: &[Touch], bits: &[Bit]) -> Verdict {
    let bits = bits.iter().copied().collect::<BitSet>();
    policy.decide(&Question::new(&session(), "write_file", touches, bits))
}

fn decide(policy: &dyn Policy, verb: Verb, path: &str) -> Decision {
    decide_with(policy, &[touch(verb, path)], &[]).decision
}

/// The preset `edits` with rules of the user.
fn user(rules: impl IntoIterator<Item = Value>) -> Rules {
    Rules::of(Preset::Edits).with(Layer::User, rules.into_iter().map(rule).collect())
}

#[test]
fn the_table_of_the_contract_holds_both_ways() {
    // What each preset says: edits, ask, read-only.
    let table: &[(&[Touch], [Decision; 3], &str)] = &[
        (&[touch(Verb::List, ".")], [Allow, Allow, Allow], "list"),
        (&[touch(Verb::Read, "a.txt")], [Allow, Allow, Allow], "read"),
        (&[touch(Verb::Create, "new.txt")], [Allow, Allow, Deny], "a new file"),
        (&[touch(Verb::MoveAway, "a"), touch(Verb::Create, "b")], [Allow, Allow, Deny], "a move onto nothing"),
        (&[touch(Verb::Overwrite, "a.txt")], [Allow, Ask, Deny], "overwriting"),
        (&[touch(Verb::Read, "a.txt"), touch(Verb::Overwrite, "a.txt")], [Allow, Ask, Deny], "editing"),
        (&[touch(Verb::Delete, "a.txt")], [Allow, Ask, Deny], "a delete"),
        (&[touch(Verb::MoveAway, "a"), touch(Verb::Overwrite, "b")], [Allow, Ask, Deny], "a move that overwrites"),
        (&[touch(Verb::Fetch, "example.org:443")], [Ask, Ask, Ask], "any other host"),
        (&[touch(Verb::Read, ".env")], [Ask, Ask, Ask], "reading a secret"),
        (&[touch(Verb::Read, "keys/server.pem")], [Ask, Ask, Ask], "reading a key"),
        (&[touch(Verb::List, ".env")], [Allow, Allow, Allow], "seeing that a secret is there"),
        (&[touch(Verb::Create, ".git/hooks/pre-commit")], [Ask, Ask, Deny], "a new protected file"),
        (&[touch(Verb::Overwrite, ".vscode/tasks.json")], [Ask, Ask, Deny], "a protected file"),
        (&[touch(Verb::Read, ".git/config")], [Allow, Allow, Allow], "reading a protected file"),
        (&[], [Ask, Ask, Ask], "what is not known"),
    ];
    for (touches, decisions, what) in table {
        for (preset, expected) in Preset::ALL.into_iter().zip(decisions) {
            let by_rules = decide_with(&Rules::of(preset), touches, &[]);
            assert_eq!(by_rules.decision, *expected, "{what} under {}", preset.name());
            assert_eq!(decide_with(&preset, touches, &[]), by_rules, "{what} under {}", preset.name());
        }
    }
    let listed = user([json!({"decision": "allow", "host": "docs.rs"})]);
    assert_eq!(decide(&listed, Verb::Fetch, "docs.rs:443"), Allow);
    assert_eq!(decide(&listed, Verb::Fetch, "example.org:443"), Ask);
}

#[test]
fn the_least_assurance_is_a_person_s_for_what_cannot_be_taken_back() {
    let check = |policy: &dyn Policy, verb: Verb, path: &str, expected: Assurance| {
        assert_eq!(decide_with(policy, &[touch(verb, path)], &[]).assurance, expected, "{verb:?} {path}");
    };
    let ask = Rules::of(Preset::Ask);
    check(&ask, Verb::Read, "a", Assurance::None);
    check(&ask, Verb::Overwrite, "a", Assurance::Relayed);
    check(&ask, Verb::Overwrite, ".env", Assurance::Person);
    check(&ask, Verb::Delete, ".git/config", Assurance::Person);
    check(&ask, Verb::Fetch, "docs.rs:443", Assurance::Person);
    assert_eq!(decide_with(&ask, &[], &[]).assurance, Assurance::Person);
    let two = [touch(Verb::Overwrite, "a"), touch(Verb::Read, ".env")];
    assert_eq!(decide_with(&ask, &two, &[]).assurance, Assurance::Person);
    // A rule that says nothing about it wants no less than the preset.
    let all = user([json!({"decision": "ask"})]);
    check(&all, Verb::Read, "a", Assurance::Relayed);
    check(&all, Verb::List, ".env", Assurance::Relayed);
    check(&all, Verb::Read, ".git/config", Assurance::Relayed);
    check(&all, Verb::Read, ".env", Assurance::Person);
    check(&all, Verb::Create, ".env", Assurance::Person);
    check(&all, Verb::Create, ".git/hooks/a", Assurance::Person);
    check(&all, Verb::Fetch, "docs.rs:443", Assurance::Person);
    let said = user([json!({"decision": "ask", "assurance": "relayed"})]);
    check(&said, Verb::Read, ".env", Assurance::Relayed);
    let person = user([json!({"decision": "ask", "assurance": "person"}), json!({"decision": "ask"})]);
    check(&person, Verb::Read, "a", Assurance::Person);
}

#[test]
fn the_first_layer_that_has_something_to_say_decides() {
    let says = |decision: Decision| vec![rule(json!({"decision": decision.name(), "path": "a"}))];
    for managed in [None, Some(Allow), Some(Ask)] {
        for user in [None, Some(Allow), Some(Ask)] {
            for grants in [None, Some(Allow), Some(Ask)] {
                let mut rules = Rules::of(Preset::Ask);
                // In any order: a layer knows its place.
                for (layer, decision) in [(Layer::Grants, grants), (Layer::Managed, managed), (Layer::User, user)] {
                    if let Some(decision) = decision {
                        rules = rules.with(layer, says(decision));
                    }
                }
                let expected = managed.or(user).or(grants).unwrap_or(Ask);
                let verdict = decide_with(&rules, &[touch(Verb::Overwrite, "a")], &[]);
                assert_eq!(verdict.decision, expected, "{managed:?} {user:?} {grants:?}");
                let layers = [(managed, Layer::Managed), (user, Layer::User), (grants, Layer::Grants)];
                let layer =
                    layers.iter().find(|(decision, _)| decision.is_some()).map_or(Layer::Preset, |(_, one)| *one);
                assert_eq!(verdict.layer, layer);
                assert_eq!(decide(&rules, Verb::Overwrite, "b"), Ask);
            }
        }
    }
}

#[test]
fn a_deny_anywhere_is_final() {
    let deny = || vec![rule(json!({"decision": "deny", "path": "a"}))];
    let allow = || vec![rule(json!({"decision": "allow"}))];
    for layer in [Layer::Managed, Layer::User, Layer::Grants, Layer::Workspace] {
        let rules = Rules::of(Preset::Edits)
            .with(Layer::Managed, allow())
            .with(Layer::User, allow())
            .with(Layer::Grants, allow())
            .with(layer, deny());
        let verdict = decide_with(&rules, &[touch(Verb::Read, "b"), touch(Verb::Read, "a")], &[]);
        assert_eq!((verdict.decision, verdict.layer), (Deny, layer));
        assert_eq!(decide(&rules, Verb::Read, "b"), Allow);
    }
    let preset = Rules::of(Preset::ReadOnly).with(Layer::Managed, allow());
    assert_eq!(decide(&preset, Verb::Create, "a"), Deny);
}

#[test]
fn within_a_layer_the_strictest_rule_decides_and_among_equals_the_first() {
    let rules = |names: [&str; 3]| {
        user(names.map(|name| json!({"decision": name.split(' ').next().unwrap(), "name": name, "path": "a"})))
    };
    for (names, expected) in [
        (["allow 1", "ask 2", "ask 3"], "ask 2"),
        (["ask 1", "allow 2", "allow 3"], "ask 1"),
        (["allow 1", "ask 2", "deny 3"], "deny 3"),
        (["allow 1", "allow 2", "allow 3"], "allow 1"),
    ] {
        assert_eq!(&*decide_with(&rules(names), &[touch(Verb::Read, "a")], &[]).rule, expected);
    }
}

#[test]
fn a_workspace_can_only_tighten() {
    let workspace = |text: Value| {
        user([json!({"decision": "allow", "path": ["a", ".env"]})]).with(Layer::Workspace, vec![rule(text)])
    };
    let asks = workspace(json!({"decision": "ask", "path": "a"}));
    assert_eq!(decide(&asks, Verb::Overwrite, "a"), Ask);
    let denies = workspace(json!({"decision": "deny", "path": "a"}));
    assert_eq!(decide(&denies, Verb::Overwrite, "a"), Deny);
    let allows = workspace(json!({"decision": "allow"}));
    assert_eq!(decide(&allows, Verb::Read, "secrets.yaml"), Ask);
    assert_eq!(allows.layers().filter(|(layer, _)| *layer == Layer::Workspace).count(), 0);
    // What it asks for as relayed does not become less sure than it was.
    let relayed =
        Rules::of(Preset::Ask).with(Layer::Workspace, vec![rule(json!({"decision": "ask", "assurance": "relayed"}))]);
    assert_eq!(decide_with(&relayed, &[touch(Verb::Read, ".env")], &[]).assurance, Assurance::Person);
    // Its preset holds against the user's rules as far as it is stricter, and no further.
    let preset = user([json!({"decision": "allow", "path": ["a", ".env"]})]).with_workspace_preset(Preset::Ask);
    assert_eq!(decide(&preset, Verb::Overwrite, "a"), Ask);
    assert_eq!(decide(&preset, Verb::Read, ".env"), Allow);
}

#[test]
fn a_workspace_that_is_trusted_loosens_what_the_preset_asks_and_no_more() {
    let trusting = |text: Value| Rules::of(Preset::Ask).with(Layer::Trusted, vec![rule(text)]);
    let all = || json!({"decision": "allow"});
    let check = |rules: &Rules, table: &[(Verb, &str, Decision)]| {
        for (verb, path, expected) in table {
            assert_eq!(decide(rules, *verb, path), *expected, "{verb:?} {path}");
        }
    };
    // What it names, but neither secrets nor protected paths that are there by chance.
    let rules = trusting(all());
    assert_eq!(decide_with(&rules, &[touch(Verb::Overwrite, "a")], &[]).layer, Layer::Trusted);
    check(
        &rules,
        &[
            (Verb::Overwrite, "a", Allow),
            (Verb::Delete, "a", Allow),
            (Verb::Fetch, "docs.rs:443", Allow),
            (Verb::Read, ".env", Ask),
            (Verb::Overwrite, ".env", Ask),
            (Verb::Overwrite, ".git/config", Ask),
            (Verb::Overwrite, ".envrc", Ask),
        ],
    );
    check(
        &trusting(json!({"decision": "allow", "secret": true})),
        &[(Verb::Read, ".env", Allow), (Verb::Overwrite, ".git/config", Ask), (Verb::Overwrite, "a", Ask)],
    );
    check(
        &trusting(json!({"decision": "allow", "protected": true})),
        &[(Verb::Overwrite, ".git/config", Allow), (Verb::Read, ".env", Ask)],
    );
    check(&trusting(json!({"decision": "allow", "secret": false})), &[(Verb::Read, ".env", Ask)]);
    // Everybody above holds against it, and so does what is tightened on top.
    for layer in [Layer::Managed, Layer::User, Layer::Workspace] {
        check(&trusting(all()).with(layer, vec![rule(json!({"decision": "ask"}))]), &[(Verb::Overwrite, "a", Ask)]);
    }
    check(&trusting(all()).with_managed_preset(Preset::Ask), &[(Verb::Overwrite, "a", Ask)]);
    check(&Rules::of(Preset::ReadOnly).with(Layer::Trusted, vec![rule(all())]), &[(Verb::Overwrite, "a", Deny)]);
    // It cannot know what the session has been through.
    let knowing = trusting(json!({"decision": "allow", "when": ["read-secret", "saw-untrusted"]}));
    let sends = [touch(Verb::Fetch, "docs.rs:443")];
    let bits = [Bit::ReadSecret, Bit::SawUntrusted];
    for rules in [&rules, &knowing] {
        assert_eq!(decide_with(rules, &sends, &bits).decision, Ask);
    }
}

#[test]
fn a_preset_allows_what_is_done_to_files_and_in_jails_and_nothing_that_comes_later() {
    for preset in Preset::ALL {
        let rules = Rules::of(preset);
        let allowing = |rule: &&Rule| rule.decision() == Allow;
        let allowed: Vec<String> =
            rules.layers().flat_map(|(_, rules)| rules).filter(allowing).map(ToString::to_string).collect();
        assert_eq!(
            allowed,
            [
                r#"{ name = "search", decision = "allow", effect = "fetch", mount = "search" }"#,
                r#"{ name = "preset", decision = "allow", effect = ["look", "change", "run"] }"#
            ]
        );
    }
}

#[test]
fn the_search_engine_of_ones_choice_is_used_without_asking_until_a_secret_could_leave_by_it() {
    let place = Place { mount: Arc::from(SEARCH), given: "search.example.org:443".to_owned(), ..Place::default() };
    let sends = [Touch { verb: Verb::Fetch, place }];
    for preset in Preset::ALL {
        assert_eq!(decide_with(&Rules::of(preset), &sends, &[]).decision, Allow);
        assert_eq!(decide_with(&Rules::of(preset), &sends, &[Bit::ReadSecret, Bit::SawUntrusted]).decision, Ask);
    }
    let denied = Rules::of(Preset::Ask).with(Layer::User, vec![rule(json!({"decision": "deny", "host": "*"}))]);
    assert_eq!(decide_with(&denied, &sends, &[]).decision, Deny);
}

#[test]
fn a_rule_says_where_it_stands_and_which_mounts_it_is_about() {
    let plain = rule(json!({"decision": "deny"}));
    assert_eq!((plain.source(), plain.mount_names().count()), (None, 0));
    let written = rule(json!({"decision": "deny", "mount": ["pkg", "@data"]})).written_in("a line 3".to_owned());
    assert_eq!(written.source(), Some("a line 3"));
    assert_eq!(written.mount_names().collect::<Vec<_>>(), ["pkg", "data"]);
}

#[test]
fn a_preset_of_the_machine_s_owner_holds_against_rules_of_others() {
    let allow = || vec![rule(json!({"decision": "allow"}))];
    let rules = Rules::of(Preset::Ask).with(Layer::User, allow()).with(Layer::Grants, allow());
    assert_eq!(decide(&rules, Verb::Overwrite, "a"), Allow);
    let rules = rules.with(Layer::Managed, vec![rule(json!({"decision": "allow", "path": "b"}))]);
    let rules = rules.with_managed_preset(Preset::Ask);
    assert_eq!(decide(&rules, Verb::Overwrite, "a"), Ask);
    assert_eq!(decide(&rules, Verb::Read, ".env"), Ask);
    assert_eq!(decide(&rules, Verb::Read, "a"), Allow);
    assert_eq!(decide(&rules, Verb::Overwrite, "b"), Allow);
    assert_eq!(decide_with(&rules, &[touch(Verb::Overwrite, "a")], &[]).layer, Layer::Managed);
}

#[test]
fn a_rule_is_about_what_its_keys_say() {
    let about = |text: Value, touch: Touch| decide_with(&user([text]), &[touch], &[]).decision == Deny;
    let write = |path: &str| touch(Verb::Overwrite, path);
    assert!(about(json!({"decision": "deny"}), write("a")));
    assert!(about(json!({"decision": "deny", "tool": ["edit_file", "write_file"]}), write("a")));
    assert!(!about(json!({"decision": "deny", "tool": "edit_file"}), write("a")));
    assert!(about(json!({"decision": "deny", "agent": "writer"}), write("a")));
    assert!(!about(json!({"decision": "deny", "agent": "reader"}), write("a")));
    assert!(about(json!({"decision": "deny", "principal": "test"}), write("a")));
    assert!(!about(json!({"decision": "deny", "principal": "writer"}), write("a")));
    assert!(about(json!({"decision": "deny", "mount": "@workspace"}), write("a")));
    assert!(!about(json!({"decision": "deny", "mount": "pkg"}), write("a")));
    assert!(!about(json!({"decision": "deny", "path": "**"}), touch(Verb::Fetch, "docs.rs:443")));
    assert!(!about(json!({"decision": "deny", "secret": false}), touch(Verb::Fetch, "docs.rs:443")));
    assert!(about(json!({"decision": "deny", "mount": "net"}), touch(Verb::Fetch, "docs.rs:443")));
    assert!(!about(json!({"decision": "deny", "host": "*"}), write("docs.rs:443")));
    assert!(!about(json!({"decision": "deny", "path": "**"}), touch(Verb::Run, "python")));
    assert!(!about(json!({"decision": "deny", "host": "*"}), touch(Verb::Run, "python")));
    assert!(about(json!({"decision": "deny", "effect": "run"}), touch(Verb::Run, "python")));
    let call = |place: &str| {
        let place = Place { mount: MCP.into(), given: place.to_owned(), shown: place.to_owned(), ..Place::default() };
        Touch { verb: Verb::External, place }
    };
    // What is said about files is not said about other programs' tools, unless the rule says that it is.
    assert!(!about(json!({"decision": "deny", "path": "**"}), call("github/list")));
    assert!(!about(json!({"decision": "deny", "secret": true}), call("github/.env")));
    assert!(about(json!({"decision": "deny", "effect": "external"}), call("github/list")));
    assert!(about(json!({"decision": "deny", "effect": "external", "path": "github/*"}), call("github/list")));
    assert!(!about(json!({"decision": "deny", "effect": "external", "path": "github/*"}), call("other/list")));
    assert!(about(json!({"decision": "deny", "mount": "mcp", "path": "github/*"}), call("github/list")));
    assert!(!about(json!({"decision": "deny", "mount": "mcp"}), write("github/list")));
    let allows = |text: Value| decide_with(&user([text]), &[call("github/list")], &[]).decision == Allow;
    assert!(!allows(json!({"decision": "allow", "path": "**"})));
    assert!(allows(json!({"decision": "allow", "effect": "external", "path": "github/**"})));
    let asked = decide_with(&user([]), &[call("github/list")], &[]);
    assert_eq!((asked.decision, asked.assurance), (Ask, Assurance::Person));
    assert_eq!(asked.reason, "this would call the external tool `github/list`, which cannot be undone");
    assert_eq!(
        asked.grant.unwrap(),
        r#"{ decision = "allow", tool = "write_file", effect = "external", path = "github/list" }"#
    );
    assert!(about(json!({"decision": "deny", "secret": true}), write(".env")));
    assert!(!about(json!({"decision": "deny", "secret": true}), write("a")));
    assert!(about(json!({"decision": "deny", "protected": true, "secret": false}), write(".git/x")));
    let groups = [
        // What moves can be read under its new name.
        ("look", [true, true, false, false, true, false, false, false, false, false]),
        ("change", [false, false, true, true, true, true, false, false, false, false]),
    ];
    for (word, expected) in groups {
        let is = Verb::ALL.map(|verb| about(json!({"decision": "deny", "effect": word}), touch(verb, "a:1")));
        assert_eq!(is, expected, "{word}");
    }
    for verb in Verb::ALL {
        let is =
            Verb::ALL.map(|other| about(json!({"decision": "deny", "effect": verb.as_str()}), touch(other, "a:1")));
        let reads = |other: Verb| verb == Verb::Read && other == Verb::MoveAway;
        assert_eq!(is, Verb::ALL.map(|other| other == verb || reads(other)), "{verb:?}");
    }
    let allowed = user([json!({"decision": "ask"})])
        .with(Layer::Managed, vec![rule(json!({"decision": "allow", "effect": "look"}))]);
    let is = Verb::ALL.map(|verb| decide(&allowed, verb, "a:1") == Allow);
    assert_eq!(is, [true, true, false, false, false, false, false, false, false, false]);
}

#[test]
fn a_rule_about_an_agent_is_not_about_a_session_without_one() {
    let policy = user([json!({"decision": "deny", "agent": "writer"})]);
    let session = Session { agent: None, ..session() };
    let touches = [touch(Verb::Read, "a")];
    let question = Question::new(&session, "read_file", &touches, BitSet::default());
    assert_eq!(policy.decide(&question).decision, Allow);
}

#[test]
fn a_tool_with_a_dot_in_its_name_has_two_spellings() {
    let touches = [touch(Verb::Read, "a")];
    let session = session();
    for name in ["fs.read", "fs-read"] {
        let policy = user([json!({"decision": "deny", "tool": name})]);
        let question = Question::new(&session, "fs.read", &touches, BitSet::default());
        assert_eq!(policy.decide(&question).decision, Deny, "{name}");
    }
}

#[test]
fn an_allow_must_hold_for_the_given_and_the_resolved_path_and_the_others_for_one() {
    let both = |text: Value, given: &str, resolved: &str| {
        decide_with(&user([text]), &[touch_through(Verb::Read, given, Some(resolved))], &[]).decision
    };
    let allow = || json!({"decision": "allow", "path": ["docs/**", "keys/.env"]});
    assert_eq!(both(allow(), "docs/.env", "docs/sub/.env"), Allow);
    assert_eq!(both(allow(), "keys/.env", "docs/.env"), Allow);
    assert_eq!(both(allow(), "docs/.env", "other/.env"), Ask);
    assert_eq!(both(allow(), "other/.env", "docs/.env"), Ask);
    for decision in ["ask", "deny"] {
        let text = || json!({"decision": decision, "path": "private/**"});
        for (given, resolved) in [("private/a", "b"), ("b", "private/a"), ("private/a", "private/b")] {
            assert_eq!(both(text(), given, resolved).name(), decision);
        }
        assert_eq!(both(text(), "a", "b"), Allow);
        // Each key may be met by another one of the names.
        let mixed = json!({"decision": decision, "path": "docs/**", "secret": true});
        assert_eq!(both(mixed, "docs/a", "id_rsa").name(), decision);
    }
    assert_eq!(both(json!({"decision": "allow", "secret": true}), "a", ".env"), Ask);
    assert_eq!(both(json!({"decision": "allow", "secret": false, "path": "**"}), "a", ".env"), Ask);
}

#[test]
fn other_spellings_slip_by_no_rule_and_in_by_none() {
    for spelling in ["Private/a", "PRIVATE/A", "priv\u{200b}ate/a", "private./a"] {
        assert_eq!(decide(&user([json!({"decision": "deny", "path": "private/**"})]), Verb::Read, spelling), Deny);
        let allow =
            Rules::of(Preset::Ask).with(Layer::User, vec![rule(json!({"decision": "allow", "path": "private/**"}))]);
        assert_eq!(decide(&allow, Verb::Overwrite, spelling), Ask);
    }
    let but = json!({"decision": "deny", "path": ["src/**", "!src/free/**"]});
    assert_eq!(decide(&user([but.clone()]), Verb::Read, "src/free/a"), Allow);
    assert_eq!(decide(&user([but]), Verb::Read, "src/FREE/a"), Deny);
}

#[test]
fn a_plan_without_touches_is_asked_about_or_denied_and_never_allowed() {
    let decide = |text: Value, layer: Layer| {
        decide_with(&Rules::of(Preset::Edits).with(layer, vec![rule(text)]), &[], &[]).decision
    };
    for layer in [Layer::Managed, Layer::User, Layer::Grants, Layer::Workspace] {
        assert_eq!(decide(json!({"decision": "allow"}), layer), Ask);
        assert_eq!(decide(json!({"decision": "allow", "tool": "write_file"}), layer), Ask);
        assert_eq!(decide(json!({"decision": "deny"}), layer), Deny);
        assert_eq!(decide(json!({"decision": "deny", "tool": "write_file"}), layer), Deny);
        assert_eq!(decide(json!({"decision": "deny", "tool": "read_file"}), layer), Ask);
        for narrower in [
            json!({"path": "a"}),
            json!({"effect": "read"}),
            json!({"mount": "pkg"}),
            json!({"host": "a.b"}),
            json!({"secret": true}),
            json!({"protected": false}),
            json!({"when": "read-secret"}),
        ] {
            let mut text = narrower;
            text["decision"] = json!("deny");
            assert_eq!(decide(text.clone(), layer), Ask, "{text}");
        }
    }
}

const EGRESS: [Bit; 2] = [Bit::ReadSecret, Bit::SawUntrusted];
const SECRET: [Bit; 2] = [Bit::SawUntrusted, Bit::HasEgress];

#[test]
fn two_bits_make_the_third_ask_whatever_allows_it() {
    let allow = |layer: Layer| Rules::of(Preset::Edits).with(layer, vec![rule(json!({"decision": "allow"}))]);
    for layer in [Layer::Managed, Layer::User, Layer::Grants] {
        let rules = allow(layer);
        for (touch, bits) in [(touch(Verb::Fetch, "docs.rs:443"), EGRESS), (touch(Verb::Read, ".env"), SECRET)] {
            let decide = |bits: &[Bit]| decide_with(&rules, std::slice::from_ref(&touch), bits);
            assert_eq!(decide(&[]).decision, Allow);
            assert_eq!((decide(&bits[..1]).decision, decide(&bits[1..]).decision), (Allow, Allow));
            for bits in [&bits[..], &Bit::ALL] {
                let verdict = decide(bits);
                assert_eq!((verdict.decision, &*verdict.rule, verdict.layer), (Ask, "third bit", Layer::Preset));
                assert_eq!((verdict.assurance, verdict.grant), (Assurance::Person, None));
            }
        }
        // Nothing else is kept from going on.
        assert_eq!(decide_with(&rules, &[touch(Verb::Overwrite, "a")], &Bit::ALL).decision, Allow);
        assert_eq!(decide_with(&rules, &[touch(Verb::Read, "a")], &Bit::ALL).decision, Allow);
    }
}

#[test]
fn what_the_same_call_does_counts_too() {
    let rules = user([json!({"decision": "allow"})]);
    let both = [touch(Verb::Read, ".env"), touch(Verb::Fetch, "docs.rs:443")];
    assert_eq!(decide_with(&rules, &both, &[]).decision, Allow);
    assert_eq!(decide_with(&rules, &both, &[Bit::SawUntrusted]).decision, Ask);
    assert_eq!(
        decide_with(&rules, &[touch(Verb::MoveAway, ".env"), both[1].clone()], &[Bit::SawUntrusted]).decision,
        Ask
    );
    assert_eq!(
        decide_with(&rules, &[touch(Verb::Create, ".env"), both[1].clone()], &[Bit::SawUntrusted]).decision,
        Allow
    );
    // A touch is not its own past; the one beside it is.
    let once = user([json!({"decision": "deny", "effect": "fetch", "when": "has-egress"})]);
    assert_eq!(decide(&once, Verb::Fetch, "docs.rs:443"), Ask);
    assert_eq!(decide_with(&once, &[both[1].clone(), both[1].clone()], &[]).decision, Deny);
}

#[test]
fn only_a_rule_that_names_the_bits_lets_the_third_come_up() {
    let knowing = |layer: Layer, when: &[&str]| {
        let text = json!({"decision": "allow", "when": when});
        Rules::of(Preset::Edits).with(layer, vec![rule(text)])
    };
    let fetch = [touch(Verb::Fetch, "docs.rs:443")];
    let when = ["read-secret", "saw-untrusted"];
    assert_eq!(decide_with(&knowing(Layer::User, &when), &fetch, &EGRESS).decision, Allow);
    assert_eq!(decide_with(&knowing(Layer::Managed, &when), &fetch, &EGRESS).decision, Allow);
    assert_eq!(decide_with(&knowing(Layer::Grants, &when), &fetch, &EGRESS).decision, Ask);
    assert_eq!(decide_with(&knowing(Layer::User, &when[..1]), &fetch, &EGRESS).decision, Ask);
    assert_eq!(decide_with(&knowing(Layer::User, &when), &fetch, &EGRESS[..1]).decision, Ask);
    // A rule that asks for less than the default does not make it less.
    let relayed = user([json!({"decision": "ask", "effect": "fetch", "assurance": "relayed"})]);
    assert_eq!(decide_with(&relayed, &fetch, &EGRESS).assurance, Assurance::Person);
    assert_eq!(decide_with(&relayed, &fetch, &[]).assurance, Assurance::Relayed);
}

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
            "ask (person) by preset `protected path`: this would create `.git/hooks/pre-commit`, a setting that other programs act on"
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

const PATHS: [&str; 8] = ["a", "src/a", "SRC/a", ".env", "src/.env", ".git/config", "docs/x/y", "docs.rs:443"];

/// A rule that decides one of these, and may be about some of these bits.
fn any_rule(decisions: &[&'static str], bits: &[&'static str]) -> impl Strategy<Value = Value> + use<> {
    let patterns = vec!["a", "src/**", "!src/a", "**", "docs/x", ".*", "!.env"];
    let effects = vec!["list", "read", "create", "overwrite", "move", "delete", "look", "change"];
    (
        select(decisions.to_vec()),
        proptest::option::of(subsequence(patterns, 1..=3)),
        proptest::option::of(subsequence(effects, 1..=3)),
        subsequence(bits.to_vec(), 0..=bits.len()),
        proptest::option::of(any::<bool>()),
        proptest::option::of(select(vec!["write_file", "read_file"])),
    )
        .prop_map(|(decision, path, effect, when, secret, tool)| {
            let mut text = json!({"decision": decision});
            let keys = [
                ("path", json!(path)),
                ("effect", json!(effect)),
                ("when", json!(Some(when).filter(|when| !when.is_empty()))),
                ("secret", json!(secret)),
                ("tool", json!(tool)),
            ];
            for (key, value) in keys.into_iter().filter(|(_, value)| !value.is_null()) {
                text[key] = value;
            }
            text
        })
        .prop_filter("it is a rule", |text| Rule::new(serde_json::from_value(text.clone()).unwrap(), "r").is_ok())
}

fn any_touches() -> impl Strategy<Value = Vec<Touch>> {
    let place = (select(Verb::ALL.to_vec()), select(PATHS.to_vec()), proptest::option::of(select(PATHS.to_vec())));
    proptest::collection::vec(place.prop_map(|(verb, given, resolved)| touch_through(verb, given, resolved)), 0..4)
}

const LAYERS: [Layer; 4] = [Layer::Managed, Layer::User, Layer::Grants, Layer::Workspace];

fn assembled(preset: Preset, rules: &[(Layer, Value)]) -> Rules {
    LAYERS.into_iter().fold(Rules::of(preset), |all, layer| {
        let of_layer = rules.iter().filter(|(of, _)| *of == layer).map(|(_, text)| rule(text.clone()));
        all.with(layer, of_layer.collect())
    })
}

/// A preset, rules, a plan, and the bits that are up.
type Setting = (Preset, Vec<(Layer, Value)>, Vec<Touch>, Vec<Bit>);

const BITS: [&str; 3] = ["read-secret", "saw-untrusted", "has-egress"];

fn any_setting(bits: &[&'static str]) -> impl Strategy<Value = Setting> + use<> {
    let rule = any_rule(&["allow", "ask", "deny"], bits);
    let rules = proptest::collection::vec((select(LAYERS.to_vec()), rule), 0..6);
    (select(Preset::ALL.to_vec()), rules, any_touches(), subsequence(Bit::ALL.to_vec(), 0..=3))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn one_more_rule_that_asks_or_denies_never_loosens(
        (preset, rules, touches, bits) in any_setting(&BITS),
        layer in select(LAYERS.to_vec()),
        stricter in any_rule(&["ask", "deny"], &BITS),
    ) {
        let before = decide_with(&assembled(preset, &rules), &touches, &bits);
        let mut more = rules;
        more.push((layer, stricter));
        let after = decide_with(&assembled(preset, &more), &touches, &bits);
        prop_assert!(after.decision >= before.decision, "{:?} became {:?}", before, after);
        if after.decision == Ask {
            prop_assert!(after.assurance >= before.assurance, "{:?} became {:?}", before, after);
        }
    }

    #[test]
    fn one_rule_that_allows_less_never_loosens((preset, rules, touches, bits) in any_setting(&BITS), at in any::<prop::sample::Index>()) {
        let allows: Vec<usize> = (0..rules.len()).filter(|at| rules[*at].1["decision"] == "allow").collect();
        prop_assume!(!allows.is_empty());
        let before = decide_with(&assembled(preset, &rules), &touches, &bits).decision;
        let mut fewer = rules;
        fewer.remove(*at.get(&allows));
        prop_assert!(decide_with(&assembled(preset, &fewer), &touches, &bits).decision >= before);
    }

    #[test]
    fn one_more_touch_never_loosens((preset, rules, touches, bits) in any_setting(&[]), more in any_touches()) {
        prop_assume!(!touches.is_empty());
        let rules = assembled(preset, &rules);
        let before = decide_with(&rules, &touches, &bits).decision;
        prop_assert!(decide_with(&rules, &[touches, more].concat(), &bits).decision >= before);
    }

    #[test]
    fn a_stricter_preset_never_loosens((_, rules, touches, bits) in any_setting(&BITS)) {
        let decisions = Preset::ALL.map(|preset| decide_with(&assembled(preset, &rules), &touches, &bits).decision);
        prop_assert!(decisions.is_sorted(), "{:?}", decisions);
    }
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
