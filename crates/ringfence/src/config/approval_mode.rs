//! `--approve`: how approval requests are answered.

/// Handling of calls for which the policy requires approval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ApprovalMode {
    /// A person at the terminal is; without one it is denied.
    #[default]
    Ask,
    /// They are denied, even with an approver available.
    Never,
    /// Only what a rule or a grant allows is done.
    Policy,
    /// They are approved, unless they require a person.
    Always,
}

impl ApprovalMode {
    pub const ALL: [Self; 4] = [Self::Ask, Self::Never, Self::Policy, Self::Always];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Ask => "ask",
            Self::Never => "never",
            Self::Policy => "policy",
            Self::Always => "always",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|approve| approve.name() == name)
    }
}
