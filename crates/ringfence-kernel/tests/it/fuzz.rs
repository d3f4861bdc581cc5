//! Rule fuzzing: an accepted rule never widens what the owner's rules allow, and none is expensive to evaluate.

use std::sync::Arc;

use ringfence_fuzz::FuzzTarget;
use ringfence_kernel::{
    Decision, LayeredRules, NET_MOUNT, Policy as _, PolicyAction, PolicyLayer, PolicyRequest, PolicyResource,
    PolicyRule, Preset, ResourceAccess, RuleText, TaintSet,
};

use crate::rules::session;

fn access(action: PolicyAction, given: &str) -> ResourceAccess {
    let mount = if action == PolicyAction::Fetch { NET_MOUNT } else { "workspace" };
    let resource = PolicyResource {
        mount: Arc::from(mount),
        requested_path: given.to_owned(),
        display_path: given.to_owned(),
        ..PolicyResource::default()
    };
    ResourceAccess { action, resource }
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
    FuzzTarget::new("rules", env!("CARGO_MANIFEST_DIR")).tokens(tokens).check(|bytes| {
        // The rule, and a path or a host that it is asked about.
        let text = String::from_utf8_lossy(bytes);
        let (rule, path) = text.split_once('\n').unwrap_or((&text, "src/main.rs"));
        let read: RuleText = serde_json::from_str(rule).map_err(|error| error.classify() as u8 as usize)?;
        let rule = PolicyRule::new(read, "rule").map_err(|bad| bad.to_string().len())?;
        let decided = [
            PolicyAction::Read,
            PolicyAction::Overwrite,
            PolicyAction::Create,
            PolicyAction::Delete,
            PolicyAction::List,
            PolicyAction::Fetch,
        ]
        .map(|action| {
            let accesses = [access(action, path)];
            let ask = |rules: &LayeredRules| {
                rules.decide(&PolicyRequest::new(&session, "write_file", &accesses, TaintSet::default()))
            };
            let without = ask(&LayeredRules::from_preset(Preset::Ask)).decision;
            let with =
                ask(&LayeredRules::from_preset(Preset::Ask).with_layer(PolicyLayer::Workspace, vec![rule.clone()]))
                    .decision;
            assert!(rank(with) >= rank(without), "{action:?} {path}: {without:?} became {with:?}");
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
