//! Policy rules: one matcher and one decision.
//!
//! A rule that allows matches narrowly and must match every name of a resource; one that asks or denies matches
//! broadly, and one name is enough.
//!
//! Not here: how a rule is written (`rule_text.rs`, `rule_parser.rs`), and which one wins where several match (`layered_rules.rs`).

use std::fmt;
use std::sync::Arc;

use crate::pattern::{CandidatePath, HostPatterns, MatchBreadth, PathPatterns, path_pattern};
use crate::policy::PolicyRequest;
use crate::resource::{MCP_MOUNT, PolicyAction, PolicyResource, ResourceAccess, is_same_mount};
use crate::sensitive::{Sensitivity, sensitivity};
use crate::taint::{Taint, TaintSet};
use crate::verdict::{Assurance, Decision};

/// A rule that was checked.
///
/// ```
/// use ringfence_kernel::{Decision, PolicyRule, RuleText};
///
/// let text = RuleText {
///     decision: "deny".to_owned(),
///     effect: Some(vec!["delete".to_owned()]),
///     path: Some(vec!["docs/**".to_owned()]),
///     ..RuleText::default()
/// };
/// let rule = PolicyRule::new(text, "keep the docs")?;
/// assert_eq!(rule.decision(), Decision::Deny);
/// assert_eq!(
///     rule.to_string(),
///     r#"{ name = "keep the docs", decision = "deny", effect = "delete", path = "docs/**" }"#
/// );
/// let unknown = RuleText { decision: "alow".to_owned(), ..RuleText::default() };
/// assert!(PolicyRule::new(unknown, "rule 1").unwrap_err().to_string().ends_with("did you mean `allow`?"));
/// # Ok::<(), ringfence_kernel::RuleError>(())
/// ```
#[derive(Clone, Debug)]
pub struct PolicyRule {
    pub(crate) name: Arc<str>,
    pub(crate) decision: Decision,
    pub(crate) tools: Vec<String>,
    pub(crate) actions: Vec<PolicyAction>,
    pub(crate) paths: Option<PathPatterns>,
    pub(crate) mounts: Vec<String>,
    pub(crate) hosts: Option<HostPatterns>,
    pub(crate) agents: Vec<String>,
    pub(crate) principals: Vec<String>,
    pub(crate) required_taint: TaintSet,
    pub(crate) secret: Option<bool>,
    pub(crate) protected: Option<bool>,
    pub(crate) assurance: Option<Assurance>,
    pub(crate) because: Option<String>,
    /// A built-in rule, not a configured one.
    pub(crate) is_built_in: bool,
    /// Location of the rule in config, for the person in charge and for no reply.
    pub(crate) source: Option<String>,
    pub(crate) examples: Vec<RuleExample>,
}

impl PolicyRule {
    /// A rule of our own that asks about everything, to be narrowed down. `because` follows what would happen.
    pub(crate) fn built_in(name: &str, because: Option<&str>) -> Self {
        Self {
            name: Arc::from(name),
            decision: Decision::Ask,
            tools: Vec::new(),
            actions: Vec::new(),
            paths: None,
            mounts: Vec::new(),
            hosts: None,
            agents: Vec::new(),
            principals: Vec::new(),
            required_taint: TaintSet::default(),
            secret: None,
            protected: None,
            assurance: None,
            because: because.map(str::to_owned),
            is_built_in: true,
            source: None,
            examples: Vec::new(),
        }
    }

    /// The rule's name, for messages and records.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The decision of the rule.
    pub fn decision(&self) -> Decision {
        self.decision
    }

    /// Sets the file and line that it was written in.
    #[must_use]
    pub fn with_source(self, source: String) -> Self {
        Self { source: Some(source), ..self }
    }

    /// The file and line that it was written in.
    pub fn source(&self) -> Option<&str> {
        self.source.as_deref()
    }

    /// Every tool that the rule or one of its examples names.
    pub fn tool_names(&self) -> impl Iterator<Item = &str> {
        self.tools.iter().map(String::as_str).chain(self.examples.iter().filter_map(RuleExample::tool))
    }

    /// Every mount that the rule names.
    pub fn mount_names(&self) -> impl Iterator<Item = &str> {
        self.mounts.iter().map(String::as_str)
    }

    pub(crate) fn matches(&self, seen: &RuleMatchInput<'_>, request: &PolicyRequest<'_>, taint: TaintSet) -> bool {
        self.matches_call(request, taint) && self.matches_access(seen)
    }

    /// Whether the rule matches the call, whatever its accesses.
    pub(crate) fn matches_any_access(&self, request: &PolicyRequest<'_>) -> bool {
        let open = self.actions.is_empty() && self.mounts.is_empty() && self.paths.is_none() && self.hosts.is_none();
        open && self.secret.is_none() && self.protected.is_none() && self.matches_call(request, request.taint)
    }

    /// Whether the rule applies to the caller, in a session with this taint.
    pub(crate) fn matches_call(&self, request: &PolicyRequest<'_>, taint: TaintSet) -> bool {
        let PolicyRequest { session, tool, .. } = request;
        let one_of = |names: &[String], name: Option<&str>| {
            names.is_empty() || name.is_some_and(|name| names.iter().any(|one| one == name))
        };
        (self.tools.is_empty() || self.tools.iter().any(|name| session.catalog.has_alias(tool, name)))
            && one_of(&self.agents, session.agent.as_deref())
            && one_of(&self.principals, Some(&session.principal.name))
            && taint.contains_all(self.required_taint)
    }

    pub(crate) fn matches_access(&self, seen: &RuleMatchInput<'_>) -> bool {
        let breadth = self.match_breadth();
        // An allow must match every name of the resource; an ask or deny, one.
        let holds = |test: &dyn Fn(&RuleMatchName) -> bool| match breadth {
            MatchBreadth::Wide => seen.names.iter().any(test),
            MatchBreadth::Narrow => seen.names.iter().all(test),
        };
        let of_file =
            |test: &dyn Fn(&RuleMatchName) -> bool| seen.may_match(PolicyAction::is_file_action) && holds(test);
        // A pattern that is meant for files says nothing about tools.
        let has_path = |action: PolicyAction| {
            action.is_file_action() || (action == PolicyAction::External && self.targets_external_tools())
        };
        let of_path = |test: &dyn Fn(&RuleMatchName) -> bool| seen.may_match(has_path) && holds(test);
        // A moved file can be read under its new name.
        let reads = |action: PolicyAction| {
            breadth == MatchBreadth::Wide && action == PolicyAction::Move && self.actions.contains(&PolicyAction::Read)
        };
        seen.may_match(|action| self.actions.is_empty() || self.actions.contains(&action) || reads(action))
            && (self.mounts.is_empty()
                || seen.mount.is_none_or(|of| self.mounts.iter().any(|mount| is_same_mount(mount, of))))
            && self.paths.as_ref().is_none_or(|paths| of_path(&|name| paths.matches(&name.path, breadth)))
            && self.secret.is_none_or(|secret| {
                of_file(&|name| name.sensitivity.secret == secret) || (secret && seen.runs_with_secret())
            })
            && self.protected.is_none_or(|protected| of_file(&|name| name.sensitivity.protected == protected))
            && self.hosts.as_ref().is_none_or(|hosts| {
                seen.may_match(|action| self.has_host(action))
                    && holds(&|name| hosts.matches(name.path.text(), breadth))
            })
    }

    /// Whether its hosts are those of an action. A host that may be reached is not a port that may be opened.
    fn has_host(&self, action: PolicyAction) -> bool {
        let is_named = self.match_breadth() == MatchBreadth::Wide || self.actions.contains(&PolicyAction::Listen);
        action.is_host_action() && (action != PolicyAction::Listen || is_named)
    }

    /// Whether its paths are those of other programs' tools.
    fn targets_external_tools(&self) -> bool {
        self.actions.contains(&PolicyAction::External) || self.mounts.iter().any(|mount| mount == MCP_MOUNT)
    }

    fn match_breadth(&self) -> MatchBreadth {
        match self.decision {
            Decision::Allow => MatchBreadth::Narrow,
            Decision::Ask | Decision::Deny => MatchBreadth::Wide,
        }
    }

    /// The line that excludes this access from the rule, where there is one that keeps the rest: of a file exactly the
    /// file, of a host everything below the path.
    pub(crate) fn exception_line(&self, access: &ResourceAccess) -> Option<String> {
        if matches!(access.action, PolicyAction::Run | PolicyAction::Send) {
            return None;
        }
        let is_host = access.action.is_host_action();
        let (key, written) = match is_host {
            true => ("host", self.hosts.as_ref().map(|hosts| &hosts.sources)),
            false => ("path", self.paths.as_ref().map(|paths| &paths.sources)),
        };
        // With a path, a rule about every effect would no longer be about hosts, and the other way round.
        let alike = |effect: &PolicyAction| match access.action {
            PolicyAction::External => *effect == PolicyAction::External,
            _ if is_host => *effect == access.action,
            _ => effect.is_file_action(),
        };
        if written.is_none() && (self.actions.is_empty() || !self.actions.iter().all(alike)) {
            return None;
        }
        let mut patterns: Vec<String> = written.into_iter().flatten().cloned().collect();
        for name in access.resource.names() {
            match is_host {
                true => patterns = HostPatterns::sources_without(&patterns, name)?,
                false => patterns.push(format!("!{}", path_pattern(name))),
            }
        }
        Some(format!("{key} = {}", quote_words(&patterns)))
    }

    /// The scope of the rule, as it would be written. Empty where it is everything.
    pub(crate) fn scope_text(&self) -> String {
        fn key<'a>(key: &str, words: impl IntoIterator<Item = &'a str>) -> Option<String> {
            let words: Vec<&str> = words.into_iter().collect();
            (!words.is_empty()).then(|| format!("{key} = {}", quote_words(&words)))
        }
        let keys = [
            key("tool", self.tools.iter().map(String::as_str)),
            key("effect", action_words(&self.actions)),
            key("path", self.paths.iter().flat_map(|paths| &paths.sources).map(String::as_str)),
            key("mount", self.mounts.iter().map(String::as_str)),
            key("host", self.hosts.iter().flat_map(|hosts| &hosts.sources).map(String::as_str)),
            key("agent", self.agents.iter().map(String::as_str)),
            key("principal", self.principals.iter().map(String::as_str)),
            key("when", self.required_taint.iter().map(Taint::name)),
            self.secret.map(|secret| format!("secret = {secret}")),
            self.protected.map(|protected| format!("protected = {protected}")),
        ];
        keys.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

/// The rule as one line of a config file.
impl fmt::Display for PolicyRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let because = self.because.as_deref().map(|because| format!("because = {}", quote_words(&[because])));
        let keys = [
            Some(format!("name = {}", quote_words(&[&self.name]))),
            Some(format!("decision = {}", quote_words(&[self.decision.name()]))),
            Some(self.scope_text()).filter(|scope| !scope.is_empty()),
            self.assurance.map(|assurance| format!("assurance = {}", quote_words(&[assurance.name()]))),
            because,
        ];
        write!(f, "{{ {} }}", keys.into_iter().flatten().collect::<Vec<_>>().join(", "))
    }
}

/// An access, prepared once for all rules.
#[derive(Debug)]
pub(crate) struct RuleMatchInput<'a> {
    /// Not known in an example that names a tool.
    action: Option<PolicyAction>,
    /// Not known in an example that names none.
    mount: Option<&'a str>,
    names: Vec<RuleMatchName>,
}

#[derive(Debug)]
struct RuleMatchName {
    path: CandidatePath,
    sensitivity: Sensitivity,
}

impl<'a> RuleMatchInput<'a> {
    pub(crate) fn from_access(access: &'a ResourceAccess) -> Self {
        let PolicyResource { mount, .. } = &access.resource;
        // Sensitivity by identity holds under each of a file's names.
        let known = |name: RuleMatchName| RuleMatchName {
            sensitivity: name.sensitivity.union(access.resource.sensitivity),
            ..name
        };
        let names = match &access.resource {
            // The sensitivity by its only name is cached.
            PolicyResource { requested_path: given, resolved_path: None, .. } if access.action.is_file_action() => {
                vec![RuleMatchName {
                    path: CandidatePath::new(given),
                    sensitivity: access.resource.effective_sensitivity(),
                }]
            }
            target => target.names().map(|name| known(RuleMatchName::new(name, Some(access.action)))).collect(),
        };
        Self { action: Some(access.action), mount: Some(mount), names }
    }

    /// The subject of an example; fields that it leaves open are unknown.
    pub(crate) fn from_example(action: Option<PolicyAction>, mount: Option<&'a str>, target: &str) -> Self {
        Self { action, mount, names: vec![RuleMatchName::new(target, action)] }
    }

    pub(crate) fn is_secret(&self) -> bool {
        self.names.iter().any(|name| name.sensitivity.secret)
    }

    /// Whether it is a program that can read a secret from the objects of a repository.
    fn runs_with_secret(&self) -> bool {
        self.action == Some(PolicyAction::Run) && self.is_secret()
    }

    pub(crate) fn is_protected(&self) -> bool {
        self.names.iter().any(|name| name.sensitivity.protected)
    }

    fn may_match(&self, test: impl Fn(PolicyAction) -> bool) -> bool {
        self.action.map_or_else(|| PolicyAction::ALL.into_iter().any(&test), &test)
    }
}

impl RuleMatchName {
    fn new(text: &str, action: Option<PolicyAction>) -> Self {
        let is_file = action.is_none_or(PolicyAction::is_file_action);
        let sensitivity = if is_file { sensitivity(text) } else { Sensitivity::default() };
        Self { path: CandidatePath::new(text), sensitivity }
    }
}

/// An access that a rule must match, or must not: an action or a tool, and a resource.
#[derive(Clone, Debug)]
pub(crate) struct RuleExample {
    pub(crate) key: &'static str,
    pub(crate) text: String,
    pub(crate) matches: bool,
}

impl RuleExample {
    /// The tool that it names, if it is not an effect.
    pub(crate) fn tool(&self) -> Option<&str> {
        self.parts().map(|(word, _)| word).filter(|word| action_from_name(word).is_none())
    }

    pub(crate) fn parts(&self) -> Option<(&str, &str)> {
        let (word, target) = self.text.trim().split_once(char::is_whitespace)?;
        Some((word, target.trim_start()))
    }
}

pub(crate) fn action_from_name(name: &str) -> Option<PolicyAction> {
    PolicyAction::ALL.into_iter().find(|action| action.as_str() == name)
}

/// Words that stand for several effects.
pub(crate) const ACTION_GROUPS: [(&str, &[PolicyAction]); 2] = [
    ("look", &[PolicyAction::List, PolicyAction::Read]),
    ("change", &[PolicyAction::Create, PolicyAction::Overwrite, PolicyAction::Move, PolicyAction::Delete]),
];

/// Effects in the fewest words.
fn action_words(effects: &[PolicyAction]) -> Vec<&'static str> {
    let whole = ACTION_GROUPS.iter().filter(|(_, actions)| actions.iter().all(|action| effects.contains(action)));
    let whole: Vec<_> = whole.collect();
    let rest = effects.iter().filter(|effect| !whole.iter().any(|(_, actions)| actions.contains(effect)));
    whole.iter().map(|(word, _)| *word).chain(rest.map(|action| action.as_str())).collect()
}

/// Words as a config file has them: one by itself, several in a list.
pub(crate) fn quote_words(words: &[impl AsRef<str>]) -> String {
    let quote = |word: &str| serde_json::Value::from(word).to_string();
    match words {
        [one] => quote(one.as_ref()),
        several => {
            let several: Vec<String> = several.iter().map(|word| quote(word.as_ref())).collect();
            format!("[{}]", several.join(", "))
        }
    }
}
