//! Rule parsing, from the text of the config.
//!
//! A rule that could never match, or whose own examples say otherwise, is refused here: a rule that silently does
//! nothing is worse than none.
//!
//! Not here: where the text comes from (config), and what a rule matches (`rule.rs`).

use crate::pattern::{HostPatterns, PathPatterns};
use crate::registry::name_matches;
use crate::resource::{NET_MOUNT, PolicyAction, REGISTRY_MOUNT, SEARCH_MOUNT};
use crate::rule::{ACTION_GROUPS, PolicyRule, RuleExample, RuleMatchInput, action_from_name};
use crate::rule_text::RuleText;
use crate::suggest::nearest_name;
use crate::taint::{Taint, TaintSet};
use crate::verdict::{Assurance, Decision};

/// An invalid rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{key}`: {problem}")]
pub struct RuleError {
    /// The key that is wrong.
    pub key: &'static str,
    /// The problem with it.
    pub problem: String,
}

impl PolicyRule {
    /// Checks a rule. `unnamed` is its name where it has none of its own.
    pub fn new(text: RuleText, unnamed: &str) -> Result<Self, RuleError> {
        for (key, list) in text.list_fields() {
            if list.is_some_and(Vec::is_empty) {
                return Err(rule_error(
                    key,
                    "the list is empty, so the rule never matches; omit the key to match any value",
                ));
            }
        }
        let decision = parse_word("decision", &text.decision, &Decision::ALL.map(|one| (one.name(), one)))?;
        let rule = Self {
            decision,
            tools: text.tool.unwrap_or_default(),
            actions: parse_actions(&text.effect.unwrap_or_default())?,
            paths: text
                .path
                .map(|path| PathPatterns::parse(&path))
                .transpose()
                .map_err(|problem| rule_error("path", problem))?,
            mounts: text.mount.iter().flatten().map(|mount| mount.trim_start_matches('@').to_owned()).collect(),
            hosts: text
                .host
                .map(|host| HostPatterns::parse(&host))
                .transpose()
                .map_err(|problem| rule_error("host", problem))?,
            agents: text.agent.unwrap_or_default(),
            principals: text.principal.unwrap_or_default(),
            required_taint: parse_taints(&text.when.unwrap_or_default())?,
            secret: text.secret,
            protected: text.protected,
            assurance: text.assurance.as_deref().map(|text| parse_word("assurance", text, &ASSURANCES)).transpose()?,
            because: text.because.filter(|because| !because.trim().is_empty()),
            is_built_in: false,
            ..Self::built_in(text.name.as_deref().filter(|name| !name.trim().is_empty()).unwrap_or(unnamed), None)
        };
        rule.check()?;
        let expected = [("match", text.matches, true), ("not_match", text.not_matches, false)];
        let examples = expected.into_iter().flat_map(|(key, texts, matches)| {
            texts.into_iter().flatten().map(move |text| RuleExample { key, text, matches })
        });
        let examples = examples.collect::<Vec<_>>();
        for example in &examples {
            example.check(&rule)?;
        }
        Ok(Self { examples, ..rule })
    }

    /// Rejects rules that can be known to match nothing without an example.
    fn check(&self) -> Result<(), RuleError> {
        let about_paths = [
            ("path", self.paths.is_some()),
            ("secret", self.secret.is_some()),
            ("protected", self.protected.is_some()),
            (
                "mount",
                self.mounts.iter().any(|mount| ![NET_MOUNT, SEARCH_MOUNT, REGISTRY_MOUNT].contains(&mount.as_str())),
            ),
        ];
        let about_paths = about_paths.into_iter().find_map(|(key, is)| is.then_some(key));
        let (fetches, has_files) = match self.actions.as_slice() {
            [] => (true, true),
            effects => (
                effects.iter().any(|effect| effect.is_host_action()),
                effects.iter().any(|effect| effect.is_file_action()),
            ),
        };
        let has_path = has_files || self.actions.contains(&PolicyAction::External);
        if self.hosts.is_some()
            && let Some(key) = about_paths
        {
            return Err(rule_error(key, "a rule with `host` never matches files; write two rules"));
        }
        if self.hosts.is_some() && !fetches {
            return Err(rule_error(
                "host",
                "`host` applies only to the effects `fetch`, `send` and `listen`, which this rule does not include",
            ));
        }
        let files_only = |key: &&str| matches!(*key, "secret" | "protected");
        if let Some(key) = about_paths.filter(|key| !has_path || (files_only(key) && !has_files)) {
            return Err(rule_error(
                key,
                "the effects `fetch`, `send`, `listen` and `run` have no file; use `host` or `tool`",
            ));
        }
        if self.assurance.is_some() && self.decision != Decision::Ask {
            return Err(rule_error("assurance", "`assurance` applies only to rules with `decision = \"ask\"`"));
        }
        Ok(())
    }
}

impl RuleExample {
    fn check(&self, rule: &PolicyRule) -> Result<(), RuleError> {
        let Self { key, text, matches } = self;
        let shape = "write an effect or a tool, and a path or host, such as `overwrite src/main.rs`";
        let Some((word, target)) = self.parts() else {
            return Err(rule_error(key, format!("`{text}` has no path or host; {shape}")));
        };
        if ACTION_GROUPS.iter().any(|(group, _)| *group == word) {
            return Err(rule_error(key, format!("`{word}` stands for several effects; an example names one")));
        }
        let action = action_from_name(word);
        let is_host = action.map_or(rule.hosts.is_some(), PolicyAction::is_host_action);
        let (mount, target) = match target.strip_prefix('@') {
            Some(rest) => rest.split_once('/').map_or((Some(rest), "."), |(mount, path)| (Some(mount), path)),
            None => (None, target),
        };
        if !is_host && (target.starts_with('/') || target.split('/').any(|part| part == "..")) {
            return Err(rule_error(
                key,
                format!("invalid path in `{text}`: paths are relative to their mount, without `..`"),
            ));
        }
        let target = if is_host && !has_port(target) { format!("{target}:443") } else { target.to_owned() };
        let seen = RuleMatchInput::from_example(action, mount, &target);
        let tool_fits =
            action.is_some() || rule.tools.is_empty() || rule.tools.iter().any(|tool| name_matches(tool, word));
        match (tool_fits && rule.matches_access(&seen), *matches) {
            (true, false) => Err(rule_error(key, format!("the rule matches `{text}`, but should not"))),
            (false, true) => Err(rule_error(key, format!("the rule does not match `{text}`, but should"))),
            _ => Ok(()),
        }
    }
}

fn has_port(host: &str) -> bool {
    host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok())
}

const ASSURANCES: [(&str, Assurance); 2] =
    [(Assurance::Relayed.name(), Assurance::Relayed), (Assurance::Person.name(), Assurance::Person)];

fn parse_actions(words: &[String]) -> Result<Vec<PolicyAction>, RuleError> {
    let single = PolicyAction::ALL.map(|action| (action.as_str(), vec![action]));
    let known: Vec<_> =
        single.into_iter().chain(ACTION_GROUPS.map(|(word, actions)| (word, actions.to_vec()))).collect();
    let actions = words.iter().map(|text| parse_word("effect", text, &known)).collect::<Result<Vec<_>, _>>()?.concat();
    Ok(PolicyAction::ALL.into_iter().filter(|action| actions.contains(action)).collect())
}

fn parse_taints(words: &[String]) -> Result<TaintSet, RuleError> {
    words.iter().map(|text| parse_word("when", text, &Taint::ALL.map(|taint| (taint.name(), taint)))).collect()
}

fn parse_word<T: Clone>(key: &'static str, text: &str, known: &[(&str, T)]) -> Result<T, RuleError> {
    let found = known.iter().find(|(word, _)| *word == text);
    found.map(|(_, value)| value.clone()).ok_or_else(|| {
        let words: Vec<&str> = known.iter().map(|(word, _)| *word).collect();
        let guess = nearest_name(text, words.iter().copied());
        let guess = guess.map(|guess| format!("; did you mean `{guess}`?")).unwrap_or_default();
        rule_error(key, format!("unknown value `{text}`: use one of {}{guess}", words.join(", ")))
    })
}

fn rule_error(key: &'static str, problem: impl Into<String>) -> RuleError {
    RuleError { key, problem: problem.into() }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use serde_json::{Value, json};

    use crate::{PolicyRule, RuleText};

    fn read(text: Value) -> Result<PolicyRule, String> {
        let text: RuleText = serde_json::from_value(text).map_err(|error| error.to_string())?;
        PolicyRule::new(text, "rule 1").map_err(|error| error.to_string())
    }

    #[track_caller]
    fn assert_shown(text: Value, expected: Expect) {
        expected.assert_eq(&read(text).unwrap().to_string());
    }

    #[track_caller]
    fn assert_refused(text: Value, expected: Expect) {
        expected.assert_eq(&read(text).unwrap_err());
    }

    #[test]
    fn a_rule_is_shown_as_it_would_be_written() {
        assert_shown(json!({"decision": "allow"}), expect![[r#"{ name = "rule 1", decision = "allow" }"#]]);
        assert_shown(
            json!({"decision": "deny", "name": "no keys", "effect": ["delete", "read", "list", "fetch"], "tool": "a"}),
            expect![[r#"{ name = "no keys", decision = "deny", tool = "a", effect = ["look", "delete", "fetch"] }"#]],
        );
        assert_shown(
            json!({
                "decision": "ask", "path": ["a\"/**", "!b"], "mount": ["@pkg", "state"], "agent": "x", "principal": "y",
                "when": ["has-egress", "read-secret"], "secret": false, "protected": true, "assurance": "person",
                "because": "of it", "effect": "change",
            }),
            expect![[
                r#"{ name = "rule 1", decision = "ask", effect = "change", path = ["a\"/**", "!b"], mount = ["pkg", "state"], agent = "x", principal = "y", when = ["read-secret", "has-egress"], secret = false, protected = true, assurance = "person", because = "of it" }"#
            ]],
        );
        assert_shown(
            json!({"decision": "allow", "host": ["*.docs.rs", "!a.docs.rs:80"]}),
            expect![[r#"{ name = "rule 1", decision = "allow", host = ["*.docs.rs", "!a.docs.rs:80"] }"#]],
        );
    }

    #[test]
    fn an_unknown_word_names_the_nearest() {
        assert_refused(
            json!({"decision": "alow"}),
            expect!["`decision`: unknown value `alow`: use one of allow, ask, deny; did you mean `allow`?"],
        );
        assert_refused(
            json!({"decision": "deny", "effect": ["read", "overwirte"]}),
            expect![
                "`effect`: unknown value `overwirte`: use one of list, read, create, overwrite, move, delete, fetch, lose, run, external, send, listen, look, change; did you mean `overwrite`?"
            ],
        );
        assert_refused(
            json!({"decision": "deny", "when": "read_secret"}),
            expect![
                "`when`: unknown value `read_secret`: use one of read-secret, saw-untrusted, has-egress; did you mean `read-secret`?"
            ],
        );
        assert_refused(
            json!({"decision": "ask", "assurance": "none"}),
            expect!["`assurance`: unknown value `none`: use one of relayed, person"],
        );
        assert_refused(
            json!({"decision": "deny", "efect": "read"}),
            expect![
                "unknown field `efect`, expected one of `decision`, `name`, `tool`, `effect`, `path`, `mount`, `host`, `agent`, `principal`, `when`, `secret`, `protected`, `assurance`, `because`, `match`, `not_match`"
            ],
        );
        assert_refused(json!({"effect": "read"}), expect!["missing field `decision`"]);
        assert_refused(json!({"decision": "deny", "path": 5}), expect!["expected a string or a list of strings"]);
    }

    #[test]
    fn a_rule_that_can_match_nothing_is_refused() {
        let empty = "the list is empty, so the rule never matches; omit the key to match any value";
        for key in ["tool", "effect", "path", "mount", "host", "agent", "principal", "when", "match", "not_match"] {
            assert_eq!(read(json!({"decision": "deny", key: []})).unwrap_err(), format!("`{key}`: {empty}"));
        }
        assert_refused(
            json!({"decision": "deny", "host": "docs.rs", "path": "a"}),
            expect!["`path`: a rule with `host` never matches files; write two rules"],
        );
        assert_refused(
            json!({"decision": "deny", "host": "docs.rs", "mount": "pkg"}),
            expect!["`mount`: a rule with `host` never matches files; write two rules"],
        );
        assert_refused(
            json!({"decision": "deny", "host": "docs.rs", "effect": "read"}),
            expect![
                "`host`: `host` applies only to the effects `fetch`, `send` and `listen`, which this rule does not include"
            ],
        );
        assert_refused(
            json!({"decision": "deny", "secret": true, "effect": "fetch"}),
            expect!["`secret`: the effects `fetch`, `send`, `listen` and `run` have no file; use `host` or `tool`"],
        );
        assert_refused(
            json!({"decision": "deny", "path": "/etc"}),
            expect!["`path`: `/etc` never matches: paths are relative to their mount, such as `src/**`"],
        );
        assert_refused(
            json!({"decision": "allow", "assurance": "person"}),
            expect!["`assurance`: `assurance` applies only to rules with `decision = \"ask\"`"],
        );
        for fine in [
            json!({"decision": "deny", "host": "docs.rs", "mount": "net"}),
            json!({"decision": "deny", "host": "docs.rs", "effect": ["fetch", "read"]}),
            json!({"decision": "deny", "path": "a", "effect": ["fetch", "read"]}),
            json!({"decision": "deny", "mount": "net", "effect": "fetch"}),
        ] {
            read(fine).unwrap();
        }
    }

    #[test]
    fn examples_hold_or_the_rule_is_refused() {
        let rule = |key: &str, example: &str| {
            let mut text = json!({"decision": "deny", "tool": "write_file", "effect": "change", "path": ["src/**", "!src/gen/**"]});
            text[key] = json!(example);
            read(text).map(|_| ())
        };
        for about in [
            "overwrite src/main.rs",
            "write_file src/main.rs",
            "  create   src/with space.rs ",
            "delete @pkg/src/a",
            "move SRC/a",
        ] {
            rule("match", about).unwrap();
            assert_eq!(
                rule("not_match", about).unwrap_err(),
                format!("`not_match`: the rule matches `{about}`, but should not")
            );
        }
        for other in
            ["read src/main.rs", "edit_file src/main.rs", "create src/gen/a", "fetch docs.rs:443", "create docs/a"]
        {
            rule("not_match", other).unwrap();
            assert_eq!(
                rule("match", other).unwrap_err(),
                format!("`match`: the rule does not match `{other}`, but should")
            );
        }
        for (no_example, problem) in [
            ("overwrite", "has no path or host"),
            ("", "has no path or host"),
            ("change src/a", "stands for several effects"),
            ("read /etc/passwd", "invalid path in"),
            ("read src/../a", "invalid path in"),
        ] {
            for key in ["match", "not_match"] {
                let error = rule(key, no_example).unwrap_err();
                assert!(error.contains(problem), "{no_example}: {error}");
            }
        }
    }

    #[test]
    fn examples_of_mounts_and_hosts() {
        let mounted = json!({"decision": "deny", "mount": "pkg", "match": ["read @pkg/a", "read a", "list @pkg"], "not_match": "read @state/a"});
        read(mounted).unwrap();
        let host = json!({"decision": "allow", "host": "docs.rs", "match": ["fetch docs.rs", "fetch docs.rs:80", "web_fetch docs.rs"], "not_match": ["fetch docs.rs:22", "fetch evil.org", "web_fetch evil.org", "read docs.rs"]});
        read(host).unwrap();
        let secret = json!({"decision": "allow", "secret": false, "match": "read a.txt", "not_match": "read .env"});
        read(secret).unwrap();
    }

    #[test]
    fn every_named_tool_is_listed() {
        let text = json!({"decision": "deny", "tool": ["a", "b"], "match": ["a x", "read x"], "not_match": "c x"});
        assert_eq!(read(text).unwrap().tool_names().collect::<Vec<_>>(), ["a", "b", "a", "c"]);
    }
}
