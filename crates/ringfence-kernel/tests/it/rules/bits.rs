//! The bits of a session: two of them make the third ask.

use ringfence_kernel::Decision::{Allow, Ask, Deny};
use ringfence_kernel::{Assurance, Bit, Layer, Preset, Rules, Verb};
use serde_json::json;

use super::{decide, decide_with, rule, touch, user};

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
