//! What is allowed, asked about and denied: the presets, rules in layers, and which of them wins.

mod about;
mod bits;
mod said;

use std::sync::Arc;

use Decision::{Allow, Ask, Deny};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use ringfence_kernel::{
    Assurance, Bit, BitSet, Bits, Catalog, Decision, Dialect, Layer, Limits, NET, Place, Policy, Preset, Principal,
    Question, Rule, Rules, SEARCH, Session, Touch, Verb, Verdict,
};
use serde_json::{Value, json};

fn rule(text: Value) -> Rule {
    Rule::new(serde_json::from_value(text).unwrap(), "rule").unwrap()
}

fn touch(verb: Verb, given: &str) -> Touch {
    touch_through(verb, given, None)
}

pub(crate) fn session() -> Session {
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
