//! Taint rules: two flags of a session make the third ask.

use ringfence_kernel::Decision::{Allow, Ask, Deny};
use ringfence_kernel::{Assurance, LayeredRules, PolicyAction, PolicyLayer, Preset, Taint};
use serde_json::json;

use super::{access, decide, decide_with, rule, user_rules};

const EGRESS: [Taint; 2] = [Taint::ReadSecret, Taint::SawUntrusted];

const SECRET: [Taint; 2] = [Taint::SawUntrusted, Taint::HasEgress];

#[test]
fn two_taints_make_the_third_ask_whatever_allows_it() {
    let allow = |layer: PolicyLayer| {
        LayeredRules::from_preset(Preset::Edits).with_layer(layer, vec![rule(json!({"decision": "allow"}))])
    };
    for layer in [PolicyLayer::Managed, PolicyLayer::User, PolicyLayer::Grants] {
        let rules = allow(layer);
        for (access, taints) in
            [(access(PolicyAction::Fetch, "docs.rs:443"), EGRESS), (access(PolicyAction::Read, ".env"), SECRET)]
        {
            let decide = |taints: &[Taint]| decide_with(&rules, std::slice::from_ref(&access), taints);
            assert_eq!(decide(&[]).decision, Allow);
            assert_eq!((decide(&taints[..1]).decision, decide(&taints[1..]).decision), (Allow, Allow));
            for taints in [&taints[..], &Taint::ALL] {
                let verdict = decide(taints);
                assert_eq!(
                    (verdict.decision, &*verdict.rule, verdict.layer),
                    (Ask, "taint combination", PolicyLayer::Preset)
                );
                assert_eq!((verdict.assurance, verdict.grant), (Assurance::Person, None));
            }
        }
        // Nothing else is kept from going on.
        assert_eq!(decide_with(&rules, &[access(PolicyAction::Overwrite, "a")], &Taint::ALL).decision, Allow);
        assert_eq!(decide_with(&rules, &[access(PolicyAction::Read, "a")], &Taint::ALL).decision, Allow);
    }
}

#[test]
fn a_run_in_reach_of_a_committed_secret_counts_as_reading_one() {
    let mut run = access(PolicyAction::Run, "bash");
    let rules = LayeredRules::from_preset(Preset::Edits);
    assert_eq!(decide_with(&rules, std::slice::from_ref(&run), &SECRET).decision, Allow);
    let secret_rule = user_rules([json!({"decision": "deny", "secret": true})]);
    assert_eq!(decide_with(&secret_rule, std::slice::from_ref(&run), &[]).decision, Allow);

    run.resource.sensitivity.secret = true;
    let alone = [run.clone()];
    assert_eq!(Taint::from_access(&run), Some(Taint::ReadSecret));
    assert_eq!(decide_with(&rules, &alone, &[]).decision, Allow);
    assert_eq!(decide_with(&rules, &alone, &SECRET[..1]).decision, Allow);
    let verdict = decide_with(&rules, &alone, &SECRET);
    assert_eq!((verdict.decision, &*verdict.rule, verdict.assurance), (Ask, "taint combination", Assurance::Person));
    assert!(verdict.reason.contains("which can read a committed secret"), "{}", verdict.reason);
    // It may send what it read.
    let sends = [run, access(PolicyAction::Fetch, "docs.rs:443")];
    assert_eq!(decide_with(&user_rules([json!({"decision": "allow"})]), &sends, &SECRET[..1]).decision, Ask);
    let knowing = user_rules([json!({"decision": "allow", "effect": "run", "when": ["saw-untrusted", "has-egress"]})]);
    assert_eq!(decide_with(&knowing, &alone, &SECRET).decision, Allow);
    assert_eq!(decide_with(&secret_rule, &alone, &[]).decision, Deny);
}

#[test]
fn other_accesses_of_the_same_call_count_too() {
    let rules = user_rules([json!({"decision": "allow"})]);
    let both = [access(PolicyAction::Read, ".env"), access(PolicyAction::Fetch, "docs.rs:443")];
    assert_eq!(decide_with(&rules, &both, &[]).decision, Allow);
    assert_eq!(decide_with(&rules, &both, &[Taint::SawUntrusted]).decision, Ask);
    assert_eq!(
        decide_with(&rules, &[access(PolicyAction::Move, ".env"), both[1].clone()], &[Taint::SawUntrusted]).decision,
        Ask
    );
    assert_eq!(
        decide_with(&rules, &[access(PolicyAction::Create, ".env"), both[1].clone()], &[Taint::SawUntrusted]).decision,
        Allow
    );
    // The taint of an access itself does not count for it; that of the one beside it does.
    let once = user_rules([json!({"decision": "deny", "effect": "fetch", "when": "has-egress"})]);
    assert_eq!(decide(&once, PolicyAction::Fetch, "docs.rs:443"), Ask);
    assert_eq!(decide_with(&once, &[both[1].clone(), both[1].clone()], &[]).decision, Deny);
}

#[test]
fn only_a_rule_that_names_the_taints_allows_the_third() {
    let knowing = |layer: PolicyLayer, when: &[&str]| {
        let text = json!({"decision": "allow", "when": when});
        LayeredRules::from_preset(Preset::Edits).with_layer(layer, vec![rule(text)])
    };
    let fetch = [access(PolicyAction::Fetch, "docs.rs:443")];
    let when = ["read-secret", "saw-untrusted"];
    assert_eq!(decide_with(&knowing(PolicyLayer::User, &when), &fetch, &EGRESS).decision, Allow);
    assert_eq!(decide_with(&knowing(PolicyLayer::Managed, &when), &fetch, &EGRESS).decision, Allow);
    assert_eq!(decide_with(&knowing(PolicyLayer::Grants, &when), &fetch, &EGRESS).decision, Ask);
    assert_eq!(decide_with(&knowing(PolicyLayer::User, &when[..1]), &fetch, &EGRESS).decision, Ask);
    assert_eq!(decide_with(&knowing(PolicyLayer::User, &when), &fetch, &EGRESS[..1]).decision, Ask);
    // A rule that asks for less than the default does not make it less.
    let relayed = user_rules([json!({"decision": "ask", "effect": "fetch", "assurance": "relayed"})]);
    assert_eq!(decide_with(&relayed, &fetch, &EGRESS).assurance, Assurance::Person);
    assert_eq!(decide_with(&relayed, &fetch, &[]).assurance, Assurance::Relayed);
}
