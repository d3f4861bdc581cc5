//! Rules config: validation of `[[rules]]`, with line numbers in errors.
//!
//! Not here: what a rule means (the kernel's `rule_text.rs`), and which file is whose (`mod.rs`).

use std::collections::BTreeMap;

use ringfence_kernel::{PolicyRule, RuleError, RuleText};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use toml::Spanned;

use crate::config::ConfigError;

/// The file that rules were read from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RuleFile<'a> {
    /// As errors name it.
    pub(crate) name: &'a str,
    pub(crate) text: &'a str,
    pub(crate) format: RuleFileFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RuleFileFormat {
    Toml,
    Json,
}

impl RuleFile<'_> {
    /// Checks every rule of the file.
    pub(crate) fn check(&self, texts: Vec<RuleText>) -> Result<Vec<PolicyRule>, ConfigError> {
        let positions = if texts.is_empty() { Vec::new() } else { self.rule_positions() };
        let check = |(index, text): (usize, RuleText)| {
            let position = positions.get(index);
            let unnamed = format!("rule {}", index + 1);
            let name = text.name.clone().unwrap_or_else(|| unnamed.clone());
            let rule = PolicyRule::new(text, &unnamed);
            let line = position.map(|position| position.line);
            let source = line.map_or_else(|| self.name.to_owned(), |line| format!("{} line {line}", self.name));
            rule.map(|rule| rule.with_source(source)).map_err(|bad| self.rule_error(&name, &bad, position))
        };
        texts.into_iter().enumerate().map(check).collect()
    }

    fn rule_error(&self, rule: &str, bad: &RuleError, position: Option<&RulePosition>) -> ConfigError {
        let line = position.map(|position| position.keys.get(bad.key).copied().unwrap_or(position.line));
        let shown = line.and_then(|line| Some((line, self.text.lines().nth(line.checked_sub(1)?)?)));
        let problem = match shown {
            Some((line, text)) => format!("line {line}, in the rule `{rule}`: {bad}\n{line} | {text}"),
            None => format!("in the rule `{rule}`: {bad}"),
        };
        ConfigError::Wrong { file: self.name.to_owned(), problem }
    }

    /// Position of each rule in its file.
    fn rule_positions(&self) -> Vec<RulePosition> {
        match self.format {
            RuleFileFormat::Toml => self.toml_positions(),
            RuleFileFormat::Json => self.json_positions(),
        }
    }

    fn toml_positions(&self) -> Vec<RulePosition> {
        type TomlRuleKeys = BTreeMap<String, Spanned<IgnoredAny>>;
        #[derive(Deserialize)]
        struct TomlRuleSpans {
            #[serde(default)]
            rules: Vec<Spanned<TomlRuleKeys>>,
        }
        let lines = LineStarts::of(self.text);
        let position = |rule: Spanned<TomlRuleKeys>| RulePosition {
            line: lines.at(rule.span().start),
            keys: rule.into_inner().into_iter().map(|(key, value)| (key, lines.at(value.span().start))).collect(),
        };
        let spans = toml::from_str::<TomlRuleSpans>(self.text).map(|spans| spans.rules).unwrap_or_default();
        spans.into_iter().map(position).collect()
    }

    fn json_positions(&self) -> Vec<RulePosition> {
        #[derive(Deserialize)]
        struct JsonRuleSpans<'a> {
            #[serde(borrow, default)]
            rules: Vec<&'a RawValue>,
        }
        let lines = LineStarts::of(self.text);
        // A borrowed value is a slice of the text, so its address gives its offset.
        let at = |value: &RawValue| lines.at(value.get().as_ptr().addr().saturating_sub(self.text.as_ptr().addr()));
        let position = |rule: &RawValue| RulePosition {
            line: at(rule),
            keys: serde_json::from_str::<BTreeMap<String, &RawValue>>(rule.get())
                .map(|keys| keys.into_iter().map(|(key, value)| (key, at(value))).collect())
                .unwrap_or_default(),
        };
        let spans = serde_json::from_str::<JsonRuleSpans<'_>>(self.text).map(|spans| spans.rules).unwrap_or_default();
        spans.into_iter().map(position).collect()
    }
}

/// Offsets of the lines of a text, but for the first. An untrusted file may have as many rules as fit into it: the text
/// is scanned once, and not once for each.
struct LineStarts(Vec<usize>);

impl LineStarts {
    fn of(text: &str) -> Self {
        Self(text.match_indices('\n').map(|(at, _)| at + 1).collect())
    }

    /// The line of the byte at `offset`.
    fn at(&self, offset: usize) -> usize {
        1 + self.0.partition_point(|start| *start <= offset)
    }
}

/// On which line a rule begins, and each of its keys.
struct RulePosition {
    line: usize,
    keys: BTreeMap<String, usize>,
}

#[cfg(test)]
mod tests {
    use super::LineStarts;

    #[test]
    fn a_byte_is_on_the_line_that_it_stands_in() {
        let text = "a\n\nbc\r\nd";
        let lines = LineStarts::of(text);
        for offset in 0..=text.len() {
            let counted = 1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count();
            assert_eq!(lines.at(offset), counted, "{offset}");
        }
    }
}
