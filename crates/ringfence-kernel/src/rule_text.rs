//! Rule text: a rule as the config and grants have it.
//!
//! Not here: its checks (`rule_parser.rs`), and what a rule matches (`rule.rs`).

use serde::{Deserialize, Deserializer, Serialize};

/// A rule as it is written. A key that is left out leaves open what it is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleText {
    /// `allow`, `ask` or `deny`.
    pub decision: String,
    /// Name of the rule in messages and records; derived from the rule where it is left out.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
    /// Names of tools.
    #[serde(skip_serializing_if = "Option::is_none", default, deserialize_with = "words")]
    pub tool: Option<Vec<String>>,
    /// `list`, `read`, `create`, `overwrite`, `move`, `delete`, `fetch`, `lose`, `run`, `external`; `look` and `change`
    /// stand for several.
    #[serde(skip_serializing_if = "Option::is_none", default, deserialize_with = "words")]
    pub effect: Option<Vec<String>>,
    /// Glob patterns of paths.
    #[serde(skip_serializing_if = "Option::is_none", default, deserialize_with = "words")]
    pub path: Option<Vec<String>>,
    /// Aliases of mounts.
    #[serde(skip_serializing_if = "Option::is_none", default, deserialize_with = "words")]
    pub mount: Option<Vec<String>>,
    /// Patterns of hosts, as `host`, `host:port` or with a path.
    #[serde(skip_serializing_if = "Option::is_none", default, deserialize_with = "words")]
    pub host: Option<Vec<String>>,
    /// Names of agents.
    #[serde(skip_serializing_if = "Option::is_none", default, deserialize_with = "words")]
    pub agent: Option<Vec<String>>,
    /// Names of principals.
    #[serde(skip_serializing_if = "Option::is_none", default, deserialize_with = "words")]
    pub principal: Option<Vec<String>>,
    /// Taints that the session must all have.
    #[serde(skip_serializing_if = "Option::is_none", default, deserialize_with = "words")]
    pub when: Option<Vec<String>>,
    /// Whether the name is that of a secret.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub secret: Option<bool>,
    /// Whether the name is that of a setting that other programs act on.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub protected: Option<bool>,
    /// Required assurance of an answer: `relayed` or `person`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub assurance: Option<String>,
    /// The reason that the caller and the approver see.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub because: Option<String>,
    /// Accesses that the rule must match, such as `overwrite src/main.rs`, `write_file src/main.rs` or `fetch
    /// docs.rs:443`.
    #[serde(skip_serializing_if = "Option::is_none", default, rename = "match", deserialize_with = "words")]
    pub matches: Option<Vec<String>>,
    /// Accesses that it must not match.
    #[serde(skip_serializing_if = "Option::is_none", default, rename = "not_match", deserialize_with = "words")]
    pub not_matches: Option<Vec<String>>,
}

impl RuleText {
    /// The keys that have a list.
    pub(crate) fn list_fields(&self) -> [(&'static str, Option<&Vec<String>>); 10] {
        [
            ("tool", self.tool.as_ref()),
            ("effect", self.effect.as_ref()),
            ("path", self.path.as_ref()),
            ("mount", self.mount.as_ref()),
            ("host", self.host.as_ref()),
            ("agent", self.agent.as_ref()),
            ("principal", self.principal.as_ref()),
            ("when", self.when.as_ref()),
            ("match", self.matches.as_ref()),
            ("not_match", self.not_matches.as_ref()),
        ]
    }
}

/// A text, or a list of texts.
fn words<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<String>>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected a string or a list of strings")]
    enum OneOrManyWords {
        One(String),
        Several(Vec<String>),
    }
    Ok(Some(match OneOrManyWords::deserialize(deserializer)? {
        OneOrManyWords::One(word) => vec![word],
        OneOrManyWords::Several(words) => words,
    }))
}
