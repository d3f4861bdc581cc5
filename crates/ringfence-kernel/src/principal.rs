//! Principals: who calls and who approves, with their scopes.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// A caller or an approver, with its scopes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Principal {
    /// Name in rules and records.
    pub name: String,
    /// The scopes that it has.
    pub scopes: BTreeSet<AuthScope>,
}

impl Principal {
    /// An agent: it may call, and can never answer its own request.
    pub fn agent(name: impl Into<String>) -> Self {
        Self { name: name.into(), scopes: BTreeSet::from([AuthScope::Call]) }
    }

    /// A person in charge of this machine: they answer for agents, and call only tools that undo agents' changes.
    pub fn person(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            scopes: BTreeSet::from([AuthScope::Call, AuthScope::Approve, AuthScope::Undo, AuthScope::Admin]),
        }
    }

    /// Whether the principal has a scope.
    pub fn has_scope(&self, scope: AuthScope) -> bool {
        self.scopes.contains(&scope)
    }
}

/// A permission of a principal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AuthScope {
    /// Call tools.
    Call,
    /// Answer approval requests.
    Approve,
    /// Reverse changes.
    Undo,
    /// Change policy, tokens and sessions.
    Admin,
    /// Pass on approval answers of the user of the very client that calls. No token has it unless it was named.
    Relay,
}

impl AuthScope {
    /// Every scope.
    pub const ALL: [Self; 5] = [Self::Call, Self::Approve, Self::Undo, Self::Admin, Self::Relay];

    /// Name of the scope in config and tokens.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Call => "call",
            Self::Approve => "approve",
            Self::Undo => "undo",
            Self::Admin => "admin",
            Self::Relay => "relay",
        }
    }

    /// The scope of a name; `None` for an unknown one.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.name() == name)
    }
}
