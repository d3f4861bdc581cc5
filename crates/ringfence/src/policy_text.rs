//! What `ringfence policy` says, as text.
//!
//! Not here: deciding (the kernel), and printing (`cli.rs`).

use std::fmt::Write as _;

use ringfence_kernel::{
    Assurance, Decision, Explained, ExplainedChange, Explanation, Layer, Rule, Rules, Verdict, visible_line,
    visible_whole,
};

/// Every layer with its rules, in the order in which they decide.
pub(crate) fn show(rules: &Rules) -> String {
    let mut text = String::new();
    for (layer, rules) in rules.layers() {
        let _ = writeln!(text, "{}{}", layer.name(), remark(layer));
        for rule in rules {
            let said = rule.source().map(|said| format!("  # {said}")).unwrap_or_default();
            let _ = writeln!(text, "  {}", visible_whole(&format!("{rule}{said}")));
        }
    }
    text
}

pub(crate) fn remark(layer: Layer) -> &'static str {
    match layer {
        Layer::Workspace => ": tightens what the others decide",
        Layer::Managed => ": set by this machine's owner",
        Layer::User => ": your config",
        Layer::Grants => ": granted for good",
        Layer::Trusted => ": what the workspace allows, because you trust its ringfence.toml",
        Layer::Preset => ": where nobody said otherwise",
    }
}

/// What a workspace's own file would allow.
pub(crate) fn offered(sha256: &str, rules: &[Rule]) -> String {
    let mut text =
        format!("the workspace's ringfence.toml (SHA-256 {sha256}) allows, where nobody above says otherwise:\n");
    for rule in rules {
        let source = rule.source().map(|source| format!("  # {source}")).unwrap_or_default();
        // Whole: what is cut off would be allowed too.
        let _ = writeln!(text, "  {}", visible_whole(&format!("{rule}{source}")));
    }
    text
}

/// What was decided, by which rule, why, and about what.
pub(crate) fn explain(explanation: &Explanation) -> String {
    let Explanation { verdict, touches, afterwards } = explanation;
    let mut text = format!("{}\n", decided(verdict));
    let answer = match verdict.assurance {
        Assurance::Person => Some("from a person at ringfence's own terminal or page"),
        Assurance::Relayed => Some("from a person, or relayed by the agent's client"),
        Assurance::None => None,
    };
    let lines = [
        ("reason", Some(verdict.reason.as_str()).filter(|reason| !reason.is_empty())),
        ("answer", answer.filter(|_| verdict.decision == Decision::Ask)),
        ("grant", verdict.grant.as_deref()),
    ];
    for (name, said) in lines {
        if let Some(said) = said {
            let _ = writeln!(text, "{name}: {}", visible_line(said));
        }
    }
    for Explained { touch, verdict } in touches {
        let place = visible_line(&touch.place.shown);
        let _ = writeln!(text, "- {} `{place}`: {}", touch.verb.as_str(), decided(verdict));
    }
    if !afterwards.is_empty() && verdict.decision != Decision::Deny {
        text.push_str("each change that the program leaves is then judged like a change by any other tool:\n");
        for ExplainedChange { change, verdict } in afterwards {
            let kept = match verdict.decision {
                Decision::Allow => "kept",
                Decision::Ask => "asked about, and not kept without a yes",
                Decision::Deny => "not kept",
            };
            let _ = writeln!(text, "- {change}: {kept} ({})", decided(verdict));
        }
    }
    text
}

fn decided(verdict: &Verdict) -> String {
    let rule = visible_line(&verdict.rule);
    format!("{} by the rule `{rule}` in the layer {}", verdict.decision.name(), verdict.layer.name())
}
