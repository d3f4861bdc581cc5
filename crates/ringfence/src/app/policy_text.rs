//! Text output of `ringfence policy`.
//!
//! Not here: deciding (the kernel), and printing (`cli/mod.rs`).

use std::fmt::Write as _;

use ringfence_kernel::{
    AccessExplanation, Assurance, Decision, FollowUpMode, LayeredRules, PolicyExplanation, PolicyLayer, PolicyRule,
    ProgramChangeVerdict, Verdict, sanitize_line, sanitize_untruncated,
};

/// Every layer with its rules, in the order in which they decide.
pub(crate) fn format_rules(rules: &LayeredRules) -> String {
    let mut text = String::new();
    for (layer, rules) in rules.layers() {
        let _ = writeln!(text, "{}{}", layer.name(), layer_description(layer));
        for rule in rules {
            let value = rule.source().map(|value| format!("  # {value}")).unwrap_or_default();
            let _ = writeln!(text, "  {}", sanitize_untruncated(&format!("{rule}{value}")));
        }
    }
    text
}

pub(crate) fn layer_description(layer: PolicyLayer) -> &'static str {
    match layer {
        PolicyLayer::Workspace => ": can only tighten the other layers",
        PolicyLayer::Managed => ": this machine's managed config",
        PolicyLayer::User => ": your config",
        PolicyLayer::Grants => ": persistent grants",
        PolicyLayer::Trusted => ": allow rules of the workspace's ringfence.toml, which you trust",
        PolicyLayer::Preset => ": default when no other rule matches",
    }
}

/// The allow rules of a workspace's own file.
pub(crate) fn format_workspace_rules(sha256: &str, rules: &[PolicyRule]) -> String {
    let mut text =
        format!("the workspace's ringfence.toml (SHA-256 {sha256}) allows, unless a layer above decides otherwise:\n");
    for rule in rules {
        let source = rule.source().map(|source| format!("  # {source}")).unwrap_or_default();
        // Whole: what is cut off would be allowed too.
        let _ = writeln!(text, "  {}", sanitize_untruncated(&format!("{rule}{source}")));
    }
    text
}

/// A decision with its rule, its reason and its accesses.
pub(crate) fn format_explanation(explanation: &PolicyExplanation) -> String {
    let PolicyExplanation { verdict, accesses, follow_up_changes: afterwards, follow_up } = explanation;
    let mut text = format!("{}\n", format_verdict(verdict));
    let answer = match verdict.assurance {
        Assurance::Person => Some("from a person at ringfence's terminal or web UI"),
        Assurance::Relayed => Some("from a person, or relayed by the agent's client"),
        Assurance::None => None,
    };
    let lines = [
        ("reason", Some(verdict.reason.as_str()).filter(|reason| !reason.is_empty())),
        ("answer", answer.filter(|_| verdict.decision == Decision::Ask)),
        ("grant", verdict.grant.as_deref()),
    ];
    for (name, value) in lines {
        if let Some(value) = value {
            let _ = writeln!(text, "{name}: {}", sanitize_line(value));
        }
    }
    for AccessExplanation { access, verdict } in accesses {
        let resource = sanitize_line(&access.resource.display_path);
        let _ = writeln!(text, "- {} `{resource}`: {}", access.action.as_str(), format_verdict(verdict));
    }
    if verdict.decision == Decision::Deny {
        return text;
    }
    match follow_up {
        FollowUpMode::Discard => text.push_str("changes that the program makes are discarded, because `mode` is `discard`\n"),
        FollowUpMode::Review => text.push_str(
            "changes that the program makes then require approval, because `mode` is `review`; all of them are kept, or none:\n",
        ),
        FollowUpMode::Policy if afterwards.is_empty() => {}
        FollowUpMode::Policy => {
            text.push_str("each change that the program makes is then decided like a change by any other tool:\n");
        }
    }
    for ProgramChangeVerdict { change, verdict } in afterwards {
        let kept = match verdict.decision {
            Decision::Allow => "kept",
            Decision::Ask => "requires approval to be kept",
            Decision::Deny => "not kept",
        };
        let _ = writeln!(text, "- {change}: {kept} ({})", format_verdict(verdict));
    }
    text
}

fn format_verdict(verdict: &Verdict) -> String {
    let rule = sanitize_line(&verdict.rule);
    format!("{} by the rule `{rule}` in the layer {}", verdict.decision.name(), verdict.layer.name())
}
