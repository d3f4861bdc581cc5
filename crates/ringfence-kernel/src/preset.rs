//! Presets: one word for a whole policy, and the rules behind it.
//!
//! Not here: how its rules and those of other layers decide together (`layered_rules.rs`).

use crate::resource::{NET_MOUNT, PolicyAction, REGISTRY_MOUNT, SEARCH_MOUNT};
use crate::rule::PolicyRule;
use crate::verdict::Decision;

/// The policy that one word describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Preset {
    /// Changes inside the workspace go ahead; secrets, protected paths and hosts are asked about.
    Edits,
    /// As `edits`, and whatever would be lost is asked about: overwriting and deleting.
    Ask,
    /// Nothing changes.
    ReadOnly,
}

impl Preset {
    /// The rule by which only this preset asks: a looser one would not.
    pub(crate) const ASK_RULE: &str = "preset ask";

    /// Every preset, from the loosest to the strictest.
    pub const ALL: [Self; 3] = [Self::Edits, Self::Ask, Self::ReadOnly];

    /// Name of the preset in config and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Edits => "edits",
            Self::Ask => "ask",
            Self::ReadOnly => "read-only",
        }
    }

    /// The preset of a name; `None` for an unknown one.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|preset| preset.name() == name)
    }

    /// Everything that the preset says, as rules.
    pub(crate) fn rules(self) -> Vec<PolicyRule> {
        let ordinary = [
            PolicyAction::List,
            PolicyAction::Read,
            PolicyAction::Create,
            PolicyAction::Overwrite,
            PolicyAction::Move,
            PolicyAction::Delete,
            PolicyAction::Run,
        ];
        let anything_else = PolicyRule {
            decision: Decision::Allow,
            actions: ordinary.to_vec(),
            ..PolicyRule::built_in("preset", None)
        };
        [
            sensitive_name_rules(),
            self.additional_rules(),
            vec![
                unlisted_host_rule(),
                search_engine_rule(),
                registry_rule(),
                irreversible_rule(),
                external_tool_rule(),
                published_port_rule(),
            ],
            vec![sent_contents_rule(), anything_else],
        ]
        .concat()
    }

    /// The preset's rules that a looser one does not have.
    pub(crate) fn additional_rules(self) -> Vec<PolicyRule> {
        match self {
            Self::Edits => Vec::new(),
            Self::Ask => {
                vec![PolicyRule {
                    actions: vec![PolicyAction::Overwrite, PolicyAction::Delete],
                    ..PolicyRule::built_in(Self::ASK_RULE, None)
                }]
            }
            Self::ReadOnly => vec![PolicyRule {
                decision: Decision::Deny,
                // An MCP tool cannot be known to change nothing.
                actions: PolicyAction::ALL
                    .into_iter()
                    .filter(|action| {
                        action.changes_files() || matches!(action, PolicyAction::External | PolicyAction::Send)
                    })
                    .collect(),
                ..PolicyRule::built_in(
                    "preset read-only",
                    Some("and the preset `read-only` allows no changes, only listing and reading"),
                )
            }],
        }
    }

    /// The word to write instead of `read-only`, so that this is no longer denied.
    pub(crate) fn looser_preset_for(action: PolicyAction) -> Self {
        if matches!(action, PolicyAction::Overwrite | PolicyAction::Delete) { Self::Edits } else { Self::Ask }
    }
}

/// Permanent losses need approval: the journal cannot undo them.
fn irreversible_rule() -> PolicyRule {
    PolicyRule {
        actions: vec![PolicyAction::Lose],
        ..PolicyRule::built_in("cannot be undone", Some("and the current contents are not kept"))
    }
}

/// Effects of an MCP tool are not in the journal, whatever its annotations.
fn external_tool_rule() -> PolicyRule {
    PolicyRule {
        actions: vec![PolicyAction::External],
        ..PolicyRule::built_in("external", Some("which cannot be undone"))
    }
}

/// Contents that were sent stay where they are.
fn sent_contents_rule() -> PolicyRule {
    PolicyRule {
        actions: vec![PolicyAction::Send],
        ..PolicyRule::built_in("sent contents", Some("and what is sent cannot be recalled"))
    }
}

/// Names that deserve a second look, whatever the preset.
fn sensitive_name_rules() -> Vec<PolicyRule> {
    let changes = PolicyAction::ALL.into_iter().filter(|action| action.changes_files()).collect();
    vec![
        PolicyRule {
            actions: vec![PolicyAction::Read, PolicyAction::Overwrite, PolicyAction::Move, PolicyAction::Delete],
            secret: Some(true),
            ..PolicyRule::built_in("secret", Some("which may hold secrets"))
        },
        PolicyRule {
            actions: changes,
            protected: Some(true),
            ..PolicyRule::built_in("protected path", Some("a setting that other programs act on"))
        },
    ]
}

/// A host is reached without asking only where a rule allows it.
fn unlisted_host_rule() -> PolicyRule {
    PolicyRule {
        actions: vec![PolicyAction::Fetch],
        mounts: vec![NET_MOUNT.to_owned()],
        ..PolicyRule::built_in("other host", Some("a host that no rule allows"))
    }
}

/// A port of this machine is opened without asking only where a rule allows it.
fn published_port_rule() -> PolicyRule {
    PolicyRule {
        actions: vec![PolicyAction::Listen],
        ..PolicyRule::built_in("other port", Some("a port that no rule allows"))
    }
}

/// A configured search engine is meant to be used.
fn search_engine_rule() -> PolicyRule {
    PolicyRule {
        decision: Decision::Allow,
        actions: vec![PolicyAction::Fetch],
        mounts: vec![SEARCH_MOUNT.to_owned()],
        ..PolicyRule::built_in("search", None)
    }
}

/// A registry learns the names of packages. What it answers is kept only after a person has seen it.
fn registry_rule() -> PolicyRule {
    PolicyRule {
        decision: Decision::Allow,
        actions: vec![PolicyAction::Fetch],
        mounts: vec![REGISTRY_MOUNT.to_owned()],
        ..PolicyRule::built_in("registry", None)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{Decision, Preset};
    use crate::{
        CallLimits, Dialect, Policy, PolicyAction, PolicyRequest, PolicyResource, Principal, ReplyForm, ResourceAccess,
        Sensitivity, Session, SessionMemory, SessionTaint, TaintSet, ToolCatalog,
    };

    fn access(action: PolicyAction, given: &str, resolved: Option<&str>) -> ResourceAccess {
        let resource = PolicyResource {
            mount: Arc::from("workspace"),
            requested_path: given.to_owned(),
            resolved_path: resolved.map(str::to_owned),
            display_path: given.to_owned(),
            ..PolicyResource::default()
        };
        ResourceAccess { action, resource }
    }

    fn session() -> Session {
        Session {
            id: "s".to_owned(),
            principal: Principal::agent("test"),
            dialect: Dialect::Standard,
            agent: None,
            limits: CallLimits::for_dialect(Dialect::Standard),
            catalog: ToolCatalog::default(),
            taint: SessionTaint::default(),
            memory: SessionMemory::default(),
            replies: ReplyForm::default(),
        }
    }

    fn decide(preset: Preset, accesses: &[ResourceAccess]) -> Decision {
        preset.decide(&PolicyRequest::new(&session(), "t", accesses, TaintSet::default())).decision
    }

    #[track_caller]
    fn check(action: PolicyAction, path: &str, [edits, ask, read_only]: [Decision; 3]) {
        let accesses = [access(action, path, None)];
        let expected = [(Preset::Edits, edits), (Preset::Ask, ask), (Preset::ReadOnly, read_only)];
        for (preset, expected) in expected {
            assert_eq!(decide(preset, &accesses), expected, "{} {path} under {}", action.as_str(), preset.name());
        }
    }

    #[test]
    fn each_preset_decides_each_action() {
        use Decision::{Allow, Ask, Deny};
        check(PolicyAction::List, "a", [Allow, Allow, Allow]);
        check(PolicyAction::Read, "a", [Allow, Allow, Allow]);
        check(PolicyAction::Create, "a", [Allow, Allow, Deny]);
        check(PolicyAction::Overwrite, "a", [Allow, Ask, Deny]);
        check(PolicyAction::Move, "a", [Allow, Allow, Deny]);
        check(PolicyAction::Delete, "a", [Allow, Ask, Deny]);
        check(PolicyAction::Lose, "a", [Ask, Ask, Deny]);
        check(PolicyAction::Read, ".env", [Ask, Ask, Ask]);
        check(PolicyAction::List, ".env", [Allow, Allow, Allow]);
        check(PolicyAction::Create, ".env", [Ask, Ask, Deny]);
        check(PolicyAction::Create, "id_ed25519", [Allow, Allow, Deny]);
        check(PolicyAction::Move, ".env", [Ask, Ask, Deny]);
        check(PolicyAction::Read, ".git/config", [Allow, Allow, Allow]);
        check(PolicyAction::Create, ".git/hooks/pre-commit", [Ask, Ask, Deny]);
        check(PolicyAction::Fetch, "docs.rs:443", [Ask, Ask, Ask]);
        check(PolicyAction::Send, "docs.rs:443", [Ask, Ask, Deny]);
        check(PolicyAction::Listen, "127.0.0.1:8000", [Ask, Ask, Ask]);
        check(PolicyAction::Run, "python", [Allow, Allow, Allow]);
        check(PolicyAction::Run, ".env", [Allow, Allow, Allow]);
        check(PolicyAction::Fetch, "server.pem:443", [Ask, Ask, Ask]);
        check(PolicyAction::External, "github/create_issue", [Ask, Ask, Deny]);
    }

    #[test]
    fn the_strictest_access_decides_and_the_resolved_name_counts() {
        let innocent = access(PolicyAction::Read, "notes.txt", Some("config/.env"));
        assert_eq!(decide(Preset::Edits, &[innocent]), Decision::Ask);
        let mixed = [
            access(PolicyAction::Read, "a", None),
            access(PolicyAction::Delete, "b", None),
            access(PolicyAction::Create, "c", None),
        ];
        assert_eq!(decide(Preset::Ask, &mixed), Decision::Ask);
        assert_eq!(decide(Preset::ReadOnly, &mixed), Decision::Deny);
    }

    #[test]
    fn a_preset_has_one_name() {
        for preset in Preset::ALL {
            assert_eq!(Preset::from_name(preset.name()), Some(preset));
        }
        assert_eq!(Preset::from_name("yolo"), None);
    }

    #[test]
    fn a_file_s_own_sensitivity_counts_whatever_its_name() {
        let mut linked = access(PolicyAction::Read, "notes.txt", None);
        linked.resource.sensitivity = Sensitivity { secret: true, protected: false };
        assert_eq!(decide(Preset::Edits, &[linked]), Decision::Ask);
        let mut moved = access(PolicyAction::Overwrite, "notes.txt", None);
        moved.resource.sensitivity = Sensitivity { secret: false, protected: true };
        assert_eq!(decide(Preset::Edits, &[moved]), Decision::Ask);
    }

    #[test]
    fn a_preset_by_itself_grants_nothing() {
        let (session, accesses) = (session(), [access(PolicyAction::Overwrite, "a", None)]);
        let request = PolicyRequest::new(&session, "t", &accesses, TaintSet::default());
        assert!(Preset::Ask.narrowest_grant(&request).is_none());
        assert!(!Preset::Ask.set_grants(&[]));
    }

    #[test]
    fn a_plan_without_accesses_is_asked_about() {
        for preset in Preset::ALL {
            assert_eq!(decide(preset, &[]), Decision::Ask);
        }
    }
}
