//! Policy rules: the presets, rules in layers, and which of them wins.

mod matching;
mod reasons;
mod taint;

use std::sync::Arc;

use Decision::{Allow, Ask, Deny};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use ringfence_kernel::{
    Assurance, Decision, Dialect, LayeredRules, NET_MOUNT, Policy, PolicyAction, PolicyLayer, PolicyRequest,
    PolicyResource, PolicyRule, Preset, REGISTRY_MOUNT, ResourceAccess, SEARCH_MOUNT, Session, Taint, TaintSet,
    Verdict,
};
use ringfence_testkit::host::session_without_tools;
use serde_json::{Value, json};

fn rule(text: Value) -> PolicyRule {
    PolicyRule::new(serde_json::from_value(text).unwrap(), "rule").unwrap()
}

fn access(action: PolicyAction, given: &str) -> ResourceAccess {
    access_through_link(action, given, None)
}

pub(crate) fn session() -> Session {
    Session { agent: Some("writer".to_owned()), ..session_without_tools(Dialect::Standard) }
}

fn decide_with(policy: &dyn Policy, accesses: &[ResourceAccess], taints: &[Taint]) -> Verdict {
    let taints = taints.iter().copied().collect::<TaintSet>();
    policy.decide(&PolicyRequest::new(&session(), "write_file", accesses, taints))
}

fn decide(policy: &dyn Policy, action: PolicyAction, path: &str) -> Decision {
    decide_with(policy, &[access(action, path)], &[]).decision
}

/// The preset `edits` with rules of the user.
fn user_rules(rules: impl IntoIterator<Item = Value>) -> LayeredRules {
    LayeredRules::from_preset(Preset::Edits).with_layer(PolicyLayer::User, rules.into_iter().map(rule).collect())
}

#[test]
fn the_table_of_the_contract_holds_both_ways() {
    // What each preset says: edits, ask, read-only.
    let table: &[(&[ResourceAccess], [Decision; 3], &str)] = &[
        (&[access(PolicyAction::List, ".")], [Allow, Allow, Allow], "list"),
        (&[access(PolicyAction::Read, "a.txt")], [Allow, Allow, Allow], "read"),
        (&[access(PolicyAction::Create, "new.txt")], [Allow, Allow, Deny], "a new file"),
        (
            &[access(PolicyAction::Move, "a"), access(PolicyAction::Create, "b")],
            [Allow, Allow, Deny],
            "a move onto nothing",
        ),
        (&[access(PolicyAction::Overwrite, "a.txt")], [Allow, Ask, Deny], "overwriting"),
        (
            &[access(PolicyAction::Read, "a.txt"), access(PolicyAction::Overwrite, "a.txt")],
            [Allow, Ask, Deny],
            "editing",
        ),
        (&[access(PolicyAction::Delete, "a.txt")], [Allow, Ask, Deny], "a delete"),
        (
            &[access(PolicyAction::Move, "a"), access(PolicyAction::Overwrite, "b")],
            [Allow, Ask, Deny],
            "a move that overwrites",
        ),
        (&[access(PolicyAction::Fetch, "example.org:443")], [Ask, Ask, Ask], "any other host"),
        (&[access(PolicyAction::Read, ".env")], [Ask, Ask, Ask], "reading a secret"),
        (&[access(PolicyAction::Read, "keys/server.pem")], [Ask, Ask, Ask], "reading a key"),
        (&[access(PolicyAction::List, ".env")], [Allow, Allow, Allow], "seeing that a secret is there"),
        (&[access(PolicyAction::Create, ".git/hooks/pre-commit")], [Ask, Ask, Deny], "a new protected file"),
        (&[access(PolicyAction::Overwrite, ".vscode/tasks.json")], [Ask, Ask, Deny], "a protected file"),
        (&[access(PolicyAction::Read, ".git/config")], [Allow, Allow, Allow], "reading a protected file"),
        (&[], [Ask, Ask, Ask], "what is not known"),
    ];
    for (accesses, decisions, what) in table {
        for (preset, expected) in Preset::ALL.into_iter().zip(decisions) {
            let by_rules = decide_with(&LayeredRules::from_preset(preset), accesses, &[]);
            assert_eq!(by_rules.decision, *expected, "{what} under {}", preset.name());
            assert_eq!(decide_with(&preset, accesses, &[]), by_rules, "{what} under {}", preset.name());
        }
    }
    let listed = user_rules([json!({"decision": "allow", "host": "docs.rs"})]);
    assert_eq!(decide(&listed, PolicyAction::Fetch, "docs.rs:443"), Allow);
    assert_eq!(decide(&listed, PolicyAction::Fetch, "example.org:443"), Ask);
}

#[test]
fn irreversible_actions_require_the_assurance_of_a_person() {
    let check = |policy: &dyn Policy, action: PolicyAction, path: &str, expected: Assurance| {
        assert_eq!(decide_with(policy, &[access(action, path)], &[]).assurance, expected, "{action:?} {path}");
    };
    let ask = LayeredRules::from_preset(Preset::Ask);
    check(&ask, PolicyAction::Read, "a", Assurance::None);
    check(&ask, PolicyAction::Overwrite, "a", Assurance::Relayed);
    check(&ask, PolicyAction::Overwrite, ".env", Assurance::Person);
    check(&ask, PolicyAction::Delete, ".git/config", Assurance::Person);
    check(&ask, PolicyAction::Fetch, "docs.rs:443", Assurance::Person);
    assert_eq!(decide_with(&ask, &[], &[]).assurance, Assurance::Person);
    let two = [access(PolicyAction::Overwrite, "a"), access(PolicyAction::Read, ".env")];
    assert_eq!(decide_with(&ask, &two, &[]).assurance, Assurance::Person);
    // A rule that says nothing about it wants no less than the preset.
    let all = user_rules([json!({"decision": "ask"})]);
    check(&all, PolicyAction::Read, "a", Assurance::Relayed);
    check(&all, PolicyAction::List, ".env", Assurance::Relayed);
    check(&all, PolicyAction::Read, ".git/config", Assurance::Relayed);
    check(&all, PolicyAction::Read, ".env", Assurance::Person);
    check(&all, PolicyAction::Create, ".env", Assurance::Person);
    check(&all, PolicyAction::Create, ".git/hooks/a", Assurance::Person);
    check(&all, PolicyAction::Fetch, "docs.rs:443", Assurance::Person);
    let relayed = user_rules([json!({"decision": "ask", "assurance": "relayed"})]);
    check(&relayed, PolicyAction::Read, ".env", Assurance::Relayed);
    let person = user_rules([json!({"decision": "ask", "assurance": "person"}), json!({"decision": "ask"})]);
    check(&person, PolicyAction::Read, "a", Assurance::Person);
}

#[test]
fn the_first_layer_that_has_something_to_say_decides() {
    let says = |decision: Decision| vec![rule(json!({"decision": decision.name(), "path": "a"}))];
    for managed in [None, Some(Allow), Some(Ask)] {
        for user in [None, Some(Allow), Some(Ask)] {
            for grants in [None, Some(Allow), Some(Ask)] {
                let mut rules = LayeredRules::from_preset(Preset::Ask);
                // In any order: layers have a fixed precedence.
                for (layer, decision) in
                    [(PolicyLayer::Grants, grants), (PolicyLayer::Managed, managed), (PolicyLayer::User, user)]
                {
                    if let Some(decision) = decision {
                        rules = rules.with_layer(layer, says(decision));
                    }
                }
                let expected = managed.or(user).or(grants).unwrap_or(Ask);
                let verdict = decide_with(&rules, &[access(PolicyAction::Overwrite, "a")], &[]);
                assert_eq!(verdict.decision, expected, "{managed:?} {user:?} {grants:?}");
                let layers =
                    [(managed, PolicyLayer::Managed), (user, PolicyLayer::User), (grants, PolicyLayer::Grants)];
                let layer =
                    layers.iter().find(|(decision, _)| decision.is_some()).map_or(PolicyLayer::Preset, |(_, one)| *one);
                assert_eq!(verdict.layer, layer);
                assert_eq!(decide(&rules, PolicyAction::Overwrite, "b"), Ask);
            }
        }
    }
}

#[test]
fn a_deny_anywhere_is_final() {
    let deny = || vec![rule(json!({"decision": "deny", "path": "a"}))];
    let allow = || vec![rule(json!({"decision": "allow"}))];
    for layer in [PolicyLayer::Managed, PolicyLayer::User, PolicyLayer::Grants, PolicyLayer::Workspace] {
        let rules = LayeredRules::from_preset(Preset::Edits)
            .with_layer(PolicyLayer::Managed, allow())
            .with_layer(PolicyLayer::User, allow())
            .with_layer(PolicyLayer::Grants, allow())
            .with_layer(layer, deny());
        let verdict = decide_with(&rules, &[access(PolicyAction::Read, "b"), access(PolicyAction::Read, "a")], &[]);
        assert_eq!((verdict.decision, verdict.layer), (Deny, layer));
        assert_eq!(decide(&rules, PolicyAction::Read, "b"), Allow);
    }
    let preset = LayeredRules::from_preset(Preset::ReadOnly).with_layer(PolicyLayer::Managed, allow());
    assert_eq!(decide(&preset, PolicyAction::Create, "a"), Deny);
}

#[test]
fn within_a_layer_the_strictest_rule_decides_and_among_equals_the_first() {
    let rules = |names: [&str; 3]| {
        user_rules(names.map(|name| json!({"decision": name.split(' ').next().unwrap(), "name": name, "path": "a"})))
    };
    for (names, expected) in [
        (["allow 1", "ask 2", "ask 3"], "ask 2"),
        (["ask 1", "allow 2", "allow 3"], "ask 1"),
        (["allow 1", "ask 2", "deny 3"], "deny 3"),
        (["allow 1", "allow 2", "allow 3"], "allow 1"),
    ] {
        assert_eq!(&*decide_with(&rules(names), &[access(PolicyAction::Read, "a")], &[]).rule, expected);
    }
}

#[test]
fn a_workspace_can_only_tighten() {
    let workspace = |text: Value| {
        user_rules([json!({"decision": "allow", "path": ["a", ".env"]})])
            .with_layer(PolicyLayer::Workspace, vec![rule(text)])
    };
    let asks = workspace(json!({"decision": "ask", "path": "a"}));
    assert_eq!(decide(&asks, PolicyAction::Overwrite, "a"), Ask);
    let denies = workspace(json!({"decision": "deny", "path": "a"}));
    assert_eq!(decide(&denies, PolicyAction::Overwrite, "a"), Deny);
    let allows = workspace(json!({"decision": "allow"}));
    assert_eq!(decide(&allows, PolicyAction::Read, "secrets.yaml"), Ask);
    assert_eq!(allows.layers().filter(|(layer, _)| *layer == PolicyLayer::Workspace).count(), 0);
    // What it asks for as relayed does not become less sure than it was.
    let relayed = LayeredRules::from_preset(Preset::Ask)
        .with_layer(PolicyLayer::Workspace, vec![rule(json!({"decision": "ask", "assurance": "relayed"}))]);
    assert_eq!(decide_with(&relayed, &[access(PolicyAction::Read, ".env")], &[]).assurance, Assurance::Person);
    // Its preset holds against the user's rules as far as it is stricter, and no further.
    let preset = user_rules([json!({"decision": "allow", "path": ["a", ".env"]})]).with_workspace_preset(Preset::Ask);
    assert_eq!(decide(&preset, PolicyAction::Overwrite, "a"), Ask);
    assert_eq!(decide(&preset, PolicyAction::Read, ".env"), Allow);
}

#[test]
fn a_workspace_that_is_trusted_loosens_what_the_preset_asks_and_no_more() {
    let trusting =
        |text: Value| LayeredRules::from_preset(Preset::Ask).with_layer(PolicyLayer::Trusted, vec![rule(text)]);
    let all = || json!({"decision": "allow"});
    let check = |rules: &LayeredRules, table: &[(PolicyAction, &str, Decision)]| {
        for (action, path, expected) in table {
            assert_eq!(decide(rules, *action, path), *expected, "{action:?} {path}");
        }
    };
    // What it names, but neither secrets nor protected paths that are there by chance.
    let rules = trusting(all());
    assert_eq!(decide_with(&rules, &[access(PolicyAction::Overwrite, "a")], &[]).layer, PolicyLayer::Trusted);
    check(
        &rules,
        &[
            (PolicyAction::Overwrite, "a", Allow),
            (PolicyAction::Delete, "a", Allow),
            (PolicyAction::Fetch, "docs.rs:443", Allow),
            (PolicyAction::Read, ".env", Ask),
            (PolicyAction::Overwrite, ".env", Ask),
            (PolicyAction::Overwrite, ".git/config", Ask),
            (PolicyAction::Overwrite, ".envrc", Ask),
        ],
    );
    check(
        &trusting(json!({"decision": "allow", "secret": true})),
        &[
            (PolicyAction::Read, ".env", Allow),
            (PolicyAction::Overwrite, ".git/config", Ask),
            (PolicyAction::Overwrite, "a", Ask),
        ],
    );
    check(
        &trusting(json!({"decision": "allow", "protected": true})),
        &[(PolicyAction::Overwrite, ".git/config", Allow), (PolicyAction::Read, ".env", Ask)],
    );
    check(&trusting(json!({"decision": "allow", "secret": false})), &[(PolicyAction::Read, ".env", Ask)]);
    // Every layer above overrides it, and so do tightening rules.
    for layer in [PolicyLayer::Managed, PolicyLayer::User, PolicyLayer::Workspace] {
        check(
            &trusting(all()).with_layer(layer, vec![rule(json!({"decision": "ask"}))]),
            &[(PolicyAction::Overwrite, "a", Ask)],
        );
    }
    check(&trusting(all()).with_managed_preset(Preset::Ask), &[(PolicyAction::Overwrite, "a", Ask)]);
    check(
        &LayeredRules::from_preset(Preset::ReadOnly).with_layer(PolicyLayer::Trusted, vec![rule(all())]),
        &[(PolicyAction::Overwrite, "a", Deny)],
    );
    // It cannot know what the session has been through.
    let knowing = trusting(json!({"decision": "allow", "when": ["read-secret", "saw-untrusted"]}));
    let sends = [access(PolicyAction::Fetch, "docs.rs:443")];
    let taints = [Taint::ReadSecret, Taint::SawUntrusted];
    for rules in [&rules, &knowing] {
        assert_eq!(decide_with(rules, &sends, &taints).decision, Ask);
    }
}

#[test]
fn a_preset_allows_what_is_done_to_files_and_in_jails_and_nothing_that_comes_later() {
    for preset in Preset::ALL {
        let rules = LayeredRules::from_preset(preset);
        let allowing = |rule: &&PolicyRule| rule.decision() == Allow;
        let allowed: Vec<String> =
            rules.layers().flat_map(|(_, rules)| rules).filter(allowing).map(ToString::to_string).collect();
        assert_eq!(
            allowed,
            [
                r#"{ name = "search", decision = "allow", effect = "fetch", mount = "search" }"#,
                r#"{ name = "registry", decision = "allow", effect = "fetch", mount = "registry" }"#,
                r#"{ name = "preset", decision = "allow", effect = ["look", "change", "run"] }"#
            ]
        );
    }
}

#[test]
fn the_search_engine_and_the_registries_are_used_without_asking_until_a_secret_could_leave_by_them() {
    for mount in [SEARCH_MOUNT, REGISTRY_MOUNT] {
        let resource = PolicyResource {
            mount: Arc::from(mount),
            requested_path: "search.example.org:443".to_owned(),
            ..PolicyResource::default()
        };
        check_chosen_host(&[ResourceAccess { action: PolicyAction::Fetch, resource }]);
    }
}

#[track_caller]
fn check_chosen_host(sends: &[ResourceAccess]) {
    for preset in Preset::ALL {
        assert_eq!(decide_with(&LayeredRules::from_preset(preset), sends, &[]).decision, Allow);
        assert_eq!(
            decide_with(&LayeredRules::from_preset(preset), sends, &[Taint::ReadSecret, Taint::SawUntrusted]).decision,
            Ask
        );
    }
    let denied = LayeredRules::from_preset(Preset::Ask)
        .with_layer(PolicyLayer::User, vec![rule(json!({"decision": "deny", "host": "*"}))]);
    assert_eq!(decide_with(&denied, sends, &[]).decision, Deny);
}

#[test]
fn a_preset_of_the_machine_s_owner_holds_against_rules_of_others() {
    let allow = || vec![rule(json!({"decision": "allow"}))];
    let rules = LayeredRules::from_preset(Preset::Ask)
        .with_layer(PolicyLayer::User, allow())
        .with_layer(PolicyLayer::Grants, allow());
    assert_eq!(decide(&rules, PolicyAction::Overwrite, "a"), Allow);
    let rules = rules.with_layer(PolicyLayer::Managed, vec![rule(json!({"decision": "allow", "path": "b"}))]);
    let rules = rules.with_managed_preset(Preset::Ask);
    assert_eq!(decide(&rules, PolicyAction::Overwrite, "a"), Ask);
    assert_eq!(decide(&rules, PolicyAction::Read, ".env"), Ask);
    assert_eq!(decide(&rules, PolicyAction::Read, "a"), Allow);
    assert_eq!(decide(&rules, PolicyAction::Overwrite, "b"), Allow);
    assert_eq!(decide_with(&rules, &[access(PolicyAction::Overwrite, "a")], &[]).layer, PolicyLayer::Managed);
}

const PATHS: [&str; 8] = ["a", "src/a", "SRC/a", ".env", "src/.env", ".git/config", "docs/x/y", "docs.rs:443"];

/// A rule with one of these decisions, and perhaps with some of these taints.
fn any_rule(decisions: &[&'static str], taints: &[&'static str]) -> impl Strategy<Value = Value> + use<> {
    let patterns = vec!["a", "src/**", "!src/a", "**", "docs/x", ".*", "!.env"];
    let effects = vec!["list", "read", "create", "overwrite", "move", "delete", "look", "change"];
    (
        select(decisions.to_vec()),
        proptest::option::of(subsequence(patterns, 1..=3)),
        proptest::option::of(subsequence(effects, 1..=3)),
        subsequence(taints.to_vec(), 0..=taints.len()),
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
        .prop_filter("it is a rule", |text| PolicyRule::new(serde_json::from_value(text.clone()).unwrap(), "r").is_ok())
}

fn any_accesses() -> impl Strategy<Value = Vec<ResourceAccess>> {
    let resource =
        (select(PolicyAction::ALL.to_vec()), select(PATHS.to_vec()), proptest::option::of(select(PATHS.to_vec())));
    proptest::collection::vec(
        resource.prop_map(|(action, given, resolved)| access_through_link(action, given, resolved)),
        0..4,
    )
}

const LAYERS: [PolicyLayer; 4] = [PolicyLayer::Managed, PolicyLayer::User, PolicyLayer::Grants, PolicyLayer::Workspace];

fn build_rules(preset: Preset, rules: &[(PolicyLayer, Value)]) -> LayeredRules {
    LAYERS.into_iter().fold(LayeredRules::from_preset(preset), |all, layer| {
        let of_layer = rules.iter().filter(|(of, _)| *of == layer).map(|(_, text)| rule(text.clone()));
        all.with_layer(layer, of_layer.collect())
    })
}

/// A preset, rules, a plan, and the session's taint.
type PolicyCase = (Preset, Vec<(PolicyLayer, Value)>, Vec<ResourceAccess>, Vec<Taint>);

const TAINT_NAMES: [&str; 3] = ["read-secret", "saw-untrusted", "has-egress"];

fn any_policy_case(taints: &[&'static str]) -> impl Strategy<Value = PolicyCase> + use<> {
    let rule = any_rule(&["allow", "ask", "deny"], taints);
    let rules = proptest::collection::vec((select(LAYERS.to_vec()), rule), 0..6);
    (select(Preset::ALL.to_vec()), rules, any_accesses(), subsequence(Taint::ALL.to_vec(), 0..=3))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn one_more_rule_that_asks_or_denies_never_loosens(
        (preset, rules, accesses, taints) in any_policy_case(&TAINT_NAMES),
        layer in select(LAYERS.to_vec()),
        stricter in any_rule(&["ask", "deny"], &TAINT_NAMES),
    ) {
        let before = decide_with(&build_rules(preset, &rules), &accesses, &taints);
        let mut more = rules;
        more.push((layer, stricter));
        let after = decide_with(&build_rules(preset, &more), &accesses, &taints);
        prop_assert!(after.decision >= before.decision, "{:?} became {:?}", before, after);
        if after.decision == Ask {
            prop_assert!(after.assurance >= before.assurance, "{:?} became {:?}", before, after);
        }
    }

    #[test]
    fn one_rule_that_allows_less_never_loosens((preset, rules, accesses, taints) in any_policy_case(&TAINT_NAMES), at in any::<prop::sample::Index>()) {
        let allows: Vec<usize> = (0..rules.len()).filter(|at| rules[*at].1["decision"] == "allow").collect();
        prop_assume!(!allows.is_empty());
        let before = decide_with(&build_rules(preset, &rules), &accesses, &taints).decision;
        let mut fewer = rules;
        fewer.remove(*at.get(&allows));
        prop_assert!(decide_with(&build_rules(preset, &fewer), &accesses, &taints).decision >= before);
    }

    #[test]
    fn one_more_access_never_loosens((preset, rules, accesses, taints) in any_policy_case(&[]), more in any_accesses()) {
        prop_assume!(!accesses.is_empty());
        let rules = build_rules(preset, &rules);
        let before = decide_with(&rules, &accesses, &taints).decision;
        prop_assert!(decide_with(&rules, &[accesses, more].concat(), &taints).decision >= before);
    }

    #[test]
    fn a_stricter_preset_never_loosens((_, rules, accesses, taints) in any_policy_case(&TAINT_NAMES)) {
        let decisions = Preset::ALL.map(|preset| decide_with(&build_rules(preset, &rules), &accesses, &taints).decision);
        prop_assert!(decisions.is_sorted(), "{:?}", decisions);
    }
}

/// An access to a path that is a link.
fn access_through_link(action: PolicyAction, given: &str, resolved: Option<&str>) -> ResourceAccess {
    let mount = if action == PolicyAction::Fetch { NET_MOUNT } else { "workspace" };
    let resource = PolicyResource {
        mount: Arc::from(mount),
        requested_path: given.to_owned(),
        resolved_path: resolved.map(str::to_owned),
        display_path: given.to_owned(),
        ..PolicyResource::default()
    };
    ResourceAccess { action, resource }
}
