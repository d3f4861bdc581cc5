//! `--approve`: how approval requests are answered.

/// What happens where the policy wants somebody asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ApprovalMode {
    /// A person at the terminal is; without one it is denied.
    #[default]
    Ask,
    /// It is denied, whoever is there.
    Never,
    /// Only what a rule or a grant allows is done.
    Policy,
    /// It is done, as far as nobody in person is needed.
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
