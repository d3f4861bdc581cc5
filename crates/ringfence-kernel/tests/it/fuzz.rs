//! Rules of any bytes: none that is taken makes more of a call than the owner's rules do, and none costs much to ask.

use std::sync::Arc;

use ringfence_fuzz::Target;
use ringfence_kernel::{
    BitSet, Decision, Layer, NET, Place, Policy as _, Preset, Question, Rule, RuleText, Rules, Touch, Verb,
};

use crate::rules::session;

fn touch(verb: Verb, given: &str) -> Touch {
    let mount = if verb == Verb::Fetch { NET } else { "workspace" };
    let place = Place { mount: Arc::from(mount), given: given.to_owned(), shown: given.to_owned(), ..Place::default() };
    Touch { verb, place }
}

#[test]
fn no_rule_of_a_workspace_loosens_what_is_above_it() {
    let session = session();
    let tokens = &[
        "{\"decision\":\"deny\"",
        "\"decision\":\"allow\"",
        ",\"path\":[\"",
        "\",\"!",
        "**/",
        "*",
        "?",
        "[a-z]",
        "{a,b}",
        "\\\\",
        ",\"host\":[\"*.docs.rs:443/x\"]",
        ",\"effect\":[\"read\",\"fetch\"]",
        ",\"tool\":[\"write_file\"]",
        ",\"match\":[\"read a/b\"]",
        ",\"not_match\":[\"fetch docs.rs:443\"]",
        ",\"when\":[\"untrusted\"]",
        ",\"secret\":true",
        ",\"protected\":false",
        ",\"assurance\":\"person\"",
        "\"]",
        "}",
    ];
    Target::new("rules", env!("CARGO_MANIFEST_DIR")).tokens(tokens).check(|bytes| {
        // The rule, and a path or a host that it is asked about.
        let text = String::from_utf8_lossy(bytes);
        let (rule, place) = text.split_once('\n').unwrap_or((&text, "src/main.rs"));
        let read: RuleText = serde_json::from_str(rule).map_err(|error| error.classify() as u8 as usize)?;
        let rule = Rule::new(read, "rule").map_err(|bad| bad.to_string().len())?;
        let decided = [Verb::Read, Verb::Overwrite, Verb::Create, Verb::Delete, Verb::List, Verb::Fetch].map(|verb| {
            let touches = [touch(verb, place)];
            let ask = |rules: &Rules| rules.decide(&Question::new(&session, "write_file", &touches, BitSet::default()));
            let without = ask(&Rules::of(Preset::Ask)).decision;
            let with = ask(&Rules::of(Preset::Ask).with(Layer::Workspace, vec![rule.clone()])).decision;
            assert!(rank(with) >= rank(without), "{verb:?} {place}: {without:?} became {with:?}");
            rank(with)
        });
        Ok::<_, usize>((decided, rank(rule.decision())))
    });
}

fn rank(decision: Decision) -> u8 {
    match decision {
        Decision::Allow => 0,
        Decision::Ask => 1,
        Decision::Deny => 2,
    }
}
