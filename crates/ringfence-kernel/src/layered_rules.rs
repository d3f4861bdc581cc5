//! Layered policy rules: the decision of config, grants and presets together.
//!
//! A deny anywhere is final. Else the first layer that has a matching rule decides, and within it the strictest rule:
//! managed rules, the user's rules, grants, the rules of a trusted workspace, the preset. The rules of any other
//! workspace are added on top and can only tighten. Every access is judged by itself, and the strictest decision holds
//! for the call.
//!
//! Not here: what a rule matches (`rule.rs`), and how rules are read (`rule_parser.rs`, config).

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::pattern::{host_pattern, path_pattern};
use crate::policy::{Policy, PolicyRequest};
use crate::preset::Preset;
use crate::resource::{PolicyAction, ResourceAccess};
use crate::rule::{PolicyRule, RuleMatchInput, quote_words};
use crate::rule_text::RuleText;
use crate::sensitive::acting_program;
use crate::taint::{Taint, TaintSet};
use crate::verdict::{Assurance, Decision, PolicyLayer, PolicyRevision, Verdict, strictest};

/// The rule that asks before a session gets all three taints.
const TAINT_RULE: &str = "taint combination";

/// Its name in requests that an earlier version stored.
const OLD_TAINT_RULE: &str = "third bit";

/// Most resources of a grant: a person reviews no more at one look.
const MAX_GRANT_ACCESSES: usize = 8;

/// Every rule that holds.
///
/// ```
/// use std::sync::Arc;
///
/// use ringfence_kernel::{
///     CallLimits, Decision, Dialect, LayeredRules, Policy, PolicyAction, PolicyLayer, PolicyRequest, PolicyResource,
///     PolicyRule, Preset, Principal, ReplyForm, ResourceAccess, RuleText, Session, SessionMemory, SessionTaint, TaintSet,
///     ToolCatalog,
/// };
///
/// let allow = RuleText {
///     decision: "allow".to_owned(),
///     path: Some(vec!["target/**".to_owned()]),
///     ..RuleText::default()
/// };
/// let rules = LayeredRules::from_preset(Preset::Ask)
///     .with_layer(PolicyLayer::User, vec![PolicyRule::new(allow, "build output")?]);
/// let session = Session {
///     id: "session-1".to_owned(),
///     principal: Principal::agent("example"),
///     dialect: Dialect::Standard,
///     agent: None,
///     limits: CallLimits::for_dialect(Dialect::Standard),
///     catalog: ToolCatalog::default(),
///     taint: SessionTaint::default(),
///     memory: SessionMemory::default(),
///     replies: ReplyForm::default(),
/// };
/// let decide = |path: &str| {
///     let resource = PolicyResource {
///         mount: Arc::from("workspace"),
///         requested_path: path.to_owned(),
///         display_path: path.to_owned(),
///         ..PolicyResource::default()
///     };
///     let accesses = [ResourceAccess { action: PolicyAction::Delete, resource }];
///     rules.decide(&PolicyRequest::new(&session, "delete_file", &accesses, TaintSet::default())).decision
/// };
/// assert_eq!(decide("target/debug/app"), Decision::Allow);
/// assert_eq!(decide("src/main.rs"), Decision::Ask);
/// # Ok::<(), ringfence_kernel::RuleError>(())
/// ```
#[derive(Clone, Debug)]
pub struct LayeredRules {
    /// In the order in which they are asked; the preset is the last.
    layers: Vec<(PolicyLayer, Vec<PolicyRule>)>,
    /// On top of what the others decide.
    workspace: Vec<PolicyRule>,
    /// Rules that require approval even where a layer allows, unless the allowing rule names the taint.
    exfiltration_guard: Vec<PolicyRule>,
    /// Number of this set of rules in this process. A copy has the same rules and the same number.
    number: u64,
}

impl LayeredRules {
    /// The preset by itself.
    pub fn from_preset(preset: Preset) -> Self {
        Self {
            layers: vec![(PolicyLayer::Preset, preset.rules())],
            workspace: Vec::new(),
            exfiltration_guard: exfiltration_rules(),
            number: next_number(),
        }
    }

    /// Adds rules to a layer. Rules of a later call follow those of an earlier one.
    #[must_use]
    pub fn with_layer(mut self, layer: PolicyLayer, rules: Vec<PolicyRule>) -> Self {
        self.number = next_number();
        match layer {
            PolicyLayer::Workspace => {
                self.workspace.extend(rules.into_iter().filter(|rule| rule.decision != Decision::Allow))
            }
            _ => {
                let after = self.layers.partition_point(|(other, _)| *other <= layer);
                self.layers.insert(after, (layer, rules));
            }
        }
        self
    }

    /// Sets the preset of the machine's owner: no lower layer can allow what it requires approval for.
    #[must_use]
    pub fn with_managed_preset(self, preset: Preset) -> Self {
        let strict = preset.rules().into_iter().filter(|rule| rule.decision != Decision::Allow);
        self.with_layer(PolicyLayer::Managed, strict.collect())
    }

    /// Sets the preset of a workspace: it is added on top, as far as it is stricter than the others.
    #[must_use]
    pub fn with_workspace_preset(self, preset: Preset) -> Self {
        self.with_layer(PolicyLayer::Workspace, preset.additional_rules())
    }

    /// The layers that have rules, in the order in which they decide.
    pub fn layers(&self) -> impl Iterator<Item = (PolicyLayer, Vec<&PolicyRule>)> {
        let workspace = std::iter::once((PolicyLayer::Workspace, self.workspace.iter().collect()));
        let guard =
            |layer: PolicyLayer| if layer == PolicyLayer::Preset { self.exfiltration_guard.as_slice() } else { &[] };
        let decide =
            self.layers.iter().map(move |(layer, rules)| (*layer, guard(*layer).iter().chain(rules).collect()));
        workspace.chain(decide).filter(|(_, rules): &(PolicyLayer, Vec<&PolicyRule>)| !rules.is_empty())
    }

    /// Every rule that denies, wherever it is.
    fn denials(&self) -> impl Iterator<Item = (PolicyLayer, &PolicyRule)> {
        let layered = self.layers.iter().flat_map(|(layer, rules)| rules.iter().map(move |rule| (*layer, rule)));
        let workspace = self.workspace.iter().map(|rule| (PolicyLayer::Workspace, rule));
        layered.chain(workspace).filter(|(_, rule)| rule.decision == Decision::Deny)
    }
}

impl Policy for LayeredRules {
    fn evaluate(&self, access: &ResourceAccess, request: &PolicyRequest<'_>) -> Verdict {
        let (seen, taint) = (RuleMatchInput::from_access(access), request.taint_without(access));
        let judge = |layer: PolicyLayer, rule: &PolicyRule| build_verdict(layer, rule, access, &seen, request.tool);
        let about = |rule: &&PolicyRule| rule.matches(&seen, request, taint);
        if let Some((layer, rule)) = self.denials().find(|(_, rule)| about(rule)) {
            return judge(layer, rule);
        }
        let guard = self.exfiltration_guard.iter().find(about);
        // A workspace that is trusted with its files is not yet trusted with what is among them by chance.
        let names = |rule: &PolicyRule| {
            let is_protected = seen.is_protected() && access.action.changes_files();
            (!seen.is_secret() || rule.secret == Some(true)) && (!is_protected || rule.protected == Some(true))
        };
        // Where the third taint would be added, only a rule that names the taint can allow, and a grant cannot.
        let counts = |layer: PolicyLayer, rule: &PolicyRule| {
            let knows = |guard: &PolicyRule| {
                layer <= PolicyLayer::User && rule.required_taint.contains_all(guard.required_taint)
            };
            rule.decision != Decision::Allow
                || (guard.is_none_or(knows) && (layer != PolicyLayer::Trusted || names(rule)))
        };
        let decided = self.layers.iter().find_map(|(layer, rules)| {
            let matching = rules.iter().filter(|rule| counts(*layer, rule)).filter(about);
            strictest(matching.map(|rule| judge(*layer, rule)))
        });
        let allowed = decided.as_ref().is_some_and(|verdict| verdict.decision == Decision::Allow);
        let guard = guard.filter(|_| !allowed).map(|rule| judge(PolicyLayer::Preset, rule));
        let tightened = self.workspace.iter().filter(about).map(|rule| judge(PolicyLayer::Workspace, rule));
        // Where both require approval, the first one's reason is shown.
        strictest(guard.into_iter().chain(decided).chain(tightened)).unwrap_or_else(Verdict::unknown_effect)
    }

    fn decide(&self, request: &PolicyRequest<'_>) -> Verdict {
        let judged = request.accesses.iter().map(|access| self.evaluate(access, request));
        if let Some(verdict) = strictest(judged) {
            return verdict;
        }
        let denial = self.denials().find(|(_, rule)| rule.matches_any_access(request));
        denial.map_or_else(Verdict::unknown_effect, |(layer, rule)| Verdict {
            decision: Decision::Deny,
            rule: rule.name.clone(),
            layer,
            reason: reason_text(layer, rule, rule.because.as_deref(), "the effects of this call are unknown"),
            assurance: Assurance::None,
            grant: None,
        })
    }

    fn narrowest_grant(&self, request: &PolicyRequest<'_>) -> Option<RuleText> {
        narrowest_grant(self, request)
    }

    /// The rules, and which of them apply to the caller: the rest of a rule depends on the access alone.
    fn revision(&self, request: &PolicyRequest<'_>) -> Option<PolicyRevision> {
        let layered = self.layers.iter().flat_map(|(_, rules)| rules);
        let rules = layered.chain(&self.workspace).chain(&self.exfiltration_guard);
        let applies = |rule: &PolicyRule| if rule.matches_call(request, request.taint) { '1' } else { '0' };
        Some(PolicyRevision::new(format!("{}:{}", self.number, rules.map(applies).collect::<String>())))
    }
}

impl Policy for Preset {
    fn evaluate(&self, access: &ResourceAccess, request: &PolicyRequest<'_>) -> Verdict {
        preset_rules(*self).evaluate(access, request)
    }

    fn revision(&self, request: &PolicyRequest<'_>) -> Option<PolicyRevision> {
        preset_rules(*self).revision(request)
    }
}

fn preset_rules(preset: Preset) -> &'static LayeredRules {
    static RULES: LazyLock<[LayeredRules; 3]> = LazyLock::new(|| Preset::ALL.map(LayeredRules::from_preset));
    let [edits, ask, read_only] = &*RULES;
    match preset {
        Preset::Edits => edits,
        Preset::Ask => ask,
        Preset::ReadOnly => read_only,
    }
}

fn next_number() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed)
}

/// Data leaks where a secret, untrusted content and egress come together. Two of them make the third require approval.
fn exfiltration_rules() -> Vec<PolicyRule> {
    let rule = |taints: [Taint; 2], because: &str| PolicyRule {
        required_taint: TaintSet::from_iter(taints),
        ..PolicyRule::built_in(TAINT_RULE, Some(because))
    };
    vec![
        PolicyRule {
            actions: vec![PolicyAction::Fetch, PolicyAction::External, PolicyAction::Send, PolicyAction::Listen],
            ..rule(
                [Taint::ReadSecret, Taint::SawUntrusted],
                "and this session has read a secret and seen untrusted content",
            )
        },
        PolicyRule {
            actions: vec![PolicyAction::Read, PolicyAction::Move],
            secret: Some(true),
            ..rule(
                [Taint::SawUntrusted, Taint::HasEgress],
                "which may hold secrets, and this session has seen untrusted content and can send data out",
            )
        },
        PolicyRule {
            actions: vec![PolicyAction::Run],
            secret: Some(true),
            ..rule(
                [Taint::SawUntrusted, Taint::HasEgress],
                "which can read a committed secret, and this session has seen untrusted content and can send data out",
            )
        },
    ]
}

/// Whether a stored name is that of a rule, by the current name or an older one.
pub(crate) fn is_rule_name(rule: &str, stored: &str) -> bool {
    rule == stored || (rule == TAINT_RULE && stored == OLD_TAINT_RULE)
}

fn build_verdict(
    layer: PolicyLayer,
    rule: &PolicyRule,
    access: &ResourceAccess,
    seen: &RuleMatchInput<'_>,
    tool: &str,
) -> Verdict {
    let would = || match access.action {
        PolicyAction::External => format!("this would call the external tool `{}`", access.resource.display_path),
        PolicyAction::Send => format!("this would send contents to `{}`", access.resource.display_path),
        PolicyAction::Listen => format!("this would accept connections at `{}`", access.resource.display_path),
        action => format!("this would {} `{}`", action.as_str(), access.resource.display_path),
    };
    let grant = grant_line(layer, rule, access, tool);
    let because = reason_with_program(rule, access).or_else(|| rule.because.clone());
    let (reason, assurance) = match rule.decision {
        Decision::Allow => (because.unwrap_or_default(), Assurance::None),
        Decision::Ask => (
            reason_text(layer, rule, because.as_deref(), &would()),
            rule.assurance.unwrap_or_else(|| required_assurance(access, seen)),
        ),
        Decision::Deny => {
            let position = if layer == PolicyLayer::Preset { "instead" } else { "in that rule" };
            let lifted = grant.as_ref().map(|grant| format!("; `{grant}` {position} would lift this"));
            (reason_text(layer, rule, because.as_deref(), &would()) + &lifted.unwrap_or_default(), Assurance::None)
        }
    };
    Verdict { decision: rule.decision, rule: rule.name.clone(), layer, reason, assurance, grant }
}

/// Required assurance of an access: an answer that a client may have given by itself is enough for changes that can be
/// undone, and for no more.
fn required_assurance(access: &ResourceAccess, seen: &RuleMatchInput<'_>) -> Assurance {
    let gives_away = matches!(access.action, PolicyAction::Lose | PolicyAction::Run | PolicyAction::External)
        || access.action.is_host_action()
        || (seen.is_secret() && access.action != PolicyAction::List);
    if gives_away || (seen.is_protected() && access.action.changes_files()) {
        Assurance::Person
    } else {
        Assurance::Relayed
    }
}

/// The reason of our rule about protected paths, where the name tells which program acts on it.
fn reason_with_program(rule: &PolicyRule, access: &ResourceAccess) -> Option<String> {
    let because = rule.because.as_deref().filter(|_| rule.is_built_in && rule.protected == Some(true))?;
    let program = access.resource.names().find_map(acting_program)?;
    Some(format!("{because} ({program})"))
}

/// Why, for a person and a model.
fn reason_text(layer: PolicyLayer, rule: &PolicyRule, because: Option<&str>, would: &str) -> String {
    let owner = layer.owner_text();
    if rule.is_built_in {
        let because = because.map(|because| format!(", {because}")).unwrap_or_default();
        let owner = if layer == PolicyLayer::Preset { String::new() } else { format!("; the preset is one {owner}") };
        return format!("{would}{because}{owner}");
    }
    let does = if rule.decision == Decision::Deny { "denies it" } else { "requires approval" };
    let because = because.map(|because| format!(" ({because})")).unwrap_or_default();
    let mut text = format!("{would}, and the rule `{}` {owner} {does}{because}", rule.name);
    if rule.decision == Decision::Deny {
        let scope = rule.scope_text();
        let about = if scope.is_empty() { "everything".to_owned() } else { format!("only `{scope}`") };
        text.push_str(&format!("; the rule covers {about}"));
    }
    text
}

/// The line of config that would allow this access without approval, where a user may write one.
fn grant_line(layer: PolicyLayer, rule: &PolicyRule, access: &ResourceAccess, tool: &str) -> Option<String> {
    match layer {
        _ if rule.decision == Decision::Allow => None,
        PolicyLayer::User => rule.exception_line(access),
        PolicyLayer::Preset if rule.decision == Decision::Deny => {
            Some(format!("preset = {}", quote_words(&[Preset::looser_preset_for(access.action).name()])))
        }
        // No line of config is offered for requirements by sensitivity or taint.
        PolicyLayer::Preset if rule.secret.is_some() || rule.protected.is_some() || !rule.required_taint.is_empty() => {
            None
        }
        PolicyLayer::Preset => allow_rule_line(access, tool),
        PolicyLayer::Managed | PolicyLayer::Grants | PolicyLayer::Trusted | PolicyLayer::Workspace => None,
    }
}

/// The rule that allows a tool exactly this resource, where one can be written.
fn allow_rule_line(access: &ResourceAccess, tool: &str) -> Option<String> {
    let names: Vec<String> = match access.action {
        PolicyAction::Fetch | PolicyAction::Listen => {
            access.resource.names().map(host_pattern).collect::<Option<_>>()?
        }
        _ => access.resource.names().map(path_pattern).collect(),
    };
    let scope = match access.action {
        // No rule lifts it: the tool asks all the same.
        PolicyAction::Send => return None,
        PolicyAction::Run => return Some(format!("{{ decision = \"allow\", tool = {} }}", quote_words(&[tool]))),
        PolicyAction::Fetch => format!("host = {}", quote_words(&names)),
        PolicyAction::Listen => format!("effect = \"listen\", host = {}", quote_words(&names)),
        PolicyAction::External => format!("effect = \"external\", path = {}", quote_words(&names)),
        _ => format!("mount = {}, path = {}", quote_words(&[&access.resource.mount]), quote_words(&names)),
    };
    Some(format!("{{ decision = \"allow\", tool = {}, {scope} }}", quote_words(&[tool])))
}

/// The narrowest rule that would let the call happen, if it may be granted and is enough.
pub(crate) fn narrowest_grant(rules: &LayeredRules, request: &PolicyRequest<'_>) -> Option<RuleText> {
    let mut asking = Vec::new();
    for access in request.accesses {
        let verdict = rules.evaluate(access, request);
        match verdict.decision {
            Decision::Allow => {}
            Decision::Ask if is_grantable(access, &verdict) => asking.push(access),
            _ => return None,
        }
    }
    let (first, rest) = asking.split_first()?;
    let alike =
        |access: &&ResourceAccess| access.action == first.action && access.resource.mount == first.resource.mount;
    if !rest.iter().all(alike) || asking.len() > MAX_GRANT_ACCESSES {
        return None;
    }
    let mut path: Vec<String> = asking.iter().flat_map(|access| access.resource.names()).map(path_pattern).collect();
    path.dedup();
    let text = RuleText {
        decision: Decision::Allow.name().to_owned(),
        tool: Some(vec![request.tool.to_owned()]),
        effect: Some(vec![first.action.as_str().to_owned()]),
        mount: Some(vec![first.resource.mount.to_string()]),
        path: Some(path),
        agent: request.session.agent.clone().map(|agent| vec![agent]),
        ..RuleText::default()
    };
    let rule = PolicyRule::new(text.clone(), "granted").ok()?;
    let granted = rules.clone().with_layer(PolicyLayer::Grants, vec![rule]).decide(request);
    (granted.decision == Decision::Allow).then_some(text)
}

fn is_grantable(access: &ResourceAccess, verdict: &Verdict) -> bool {
    let seen = RuleMatchInput::from_access(access);
    let ordinary = !seen.is_secret()
        && !seen.is_protected()
        && (access.action.is_file_action() || access.action == PolicyAction::External);
    ordinary && verdict.layer == PolicyLayer::Preset && verdict.grant.is_some()
}
