//! In-place updates of front matter text.
//!
//! Only the bytes that have to change do: comments, order, quoting, blank lines and the body stay. The result is parsed
//! again and must equal the old value with the update applied; otherwise there is no result.
//!
//! Comments inside of a value that is replaced go with it. Those before and behind it stay.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use granit_parser::ScalarStyle;
use granit_parser::StructureStyle::{Block, Flow};
use serde_json::{Map, Value};

use crate::tree::{YamlMapping, YamlNodeKind, YamlPair, skip_blank, trimmed};
use crate::{FrontMatter, FrontMatterError, render, scalar};

/// A requested update.
#[derive(Clone, Debug, Default)]
pub struct FrontMatterUpdate {
    /// Added to `stepsCompleted`, without those that are there.
    pub steps_completed_append: Vec<String>,
    /// Added to `artifacts`, without those that are there.
    pub artifacts_append: Vec<String>,
    /// Set in `variables`, each key whole.
    pub variables_set: Map<String, Value>,
    pub decision_log_append: Vec<Map<String, Value>>,
    pub current_node_id: Option<String>,
    pub updated_at: Option<String>,
}

/// The same file with the update in its front matter. If it changes nothing, the text is what it was.
pub fn apply(text: &str, update: &FrontMatterUpdate) -> Result<String, FrontMatterError> {
    let front = FrontMatter::read(text)?;
    let mut json = front.to_json();
    let changes = update.changes(&json);
    if changes.is_empty() {
        return Ok(text.to_owned());
    }
    let mut surgeon = FrontMatterEditor { front: &front, edits: Vec::new() };
    let mut fresh = Vec::new();
    for (key, change) in &changes {
        match front.tree.root.pair(key) {
            Some(pair) => surgeon.change(pair, change)?,
            None => fresh.push((*key, change)),
        }
        change.merge_into(json.entry(*key).or_insert(Value::Null));
    }
    surgeon.add_keys(&fresh);
    let updated = surgeon.finish()?;
    check(&updated, &json, front.body())?;
    Ok(updated)
}

fn check(updated: &str, json: &Map<String, Value>, body: &str) -> Result<(), FrontMatterError> {
    let front = FrontMatter::read(updated).map_err(|error| FrontMatterError::ResultInvalid(Box::new(error)))?;
    if front.to_json() == *json && front.body() == body { Ok(()) } else { Err(FrontMatterError::EditMismatch) }
}

/// An edit of one key.
#[derive(Clone, Debug)]
enum FrontMatterEdit {
    Append(Vec<Value>),
    Merge(Map<String, Value>),
    Set(Value),
}

impl FrontMatterUpdate {
    /// Edits that are still to be made.
    fn changes(&self, json: &Map<String, Value>) -> Vec<(&'static str, FrontMatterEdit)> {
        let append_missing = |key, list: &[String]| (key, FrontMatterEdit::Append(missing_items(json.get(key), list)));
        let set = |key, text: &Option<String>| {
            text.as_ref().map(|text| (key, FrontMatterEdit::Set(Value::from(text.as_str()))))
        };
        let decisions = self.decision_log_append.iter().cloned().map(Value::Object).collect();
        let lists = [
            append_missing("stepsCompleted", &self.steps_completed_append),
            append_missing("artifacts", &self.artifacts_append),
            ("variables", FrontMatterEdit::Merge(differing_entries(json.get("variables"), &self.variables_set))),
            ("decisionLog", FrontMatterEdit::Append(decisions)),
        ];
        let texts = [set("currentNodeId", &self.current_node_id), set("updatedAt", &self.updated_at)];
        let wanted = lists.into_iter().chain(texts.into_iter().flatten());
        wanted.filter(|(key, change)| change.is_needed(json.get(*key))).collect()
    }
}

/// Items of `wanted` that a list lacks.
fn missing_items(list: Option<&Value>, wanted: &[String]) -> Vec<Value> {
    let there = list.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    let mut seen: HashSet<&str> = there.collect();
    wanted.iter().filter(|item| seen.insert(item)).map(|item| Value::from(item.as_str())).collect()
}

fn differing_entries(there: Option<&Value>, wanted: &Map<String, Value>) -> Map<String, Value> {
    let same = |key: &str, value| there.and_then(|there| there.get(key)) == Some(value);
    wanted.iter().filter(|(key, value)| !same(key, value)).map(|(key, value)| (key.clone(), value.clone())).collect()
}

impl FrontMatterEdit {
    fn is_needed(&self, old: Option<&Value>) -> bool {
        match self {
            Self::Append(items) => !items.is_empty(),
            Self::Merge(pairs) => !pairs.is_empty(),
            Self::Set(value) => old != Some(value),
        }
    }

    /// The same change on the value in memory.
    fn merge_into(&self, slot: &mut Value) {
        match (self, slot) {
            (Self::Append(items), Value::Array(list)) => list.extend_from_slice(items),
            (Self::Merge(pairs), Value::Object(object)) => object.extend(pairs.clone()),
            (_, slot) => *slot = self.initial_value(),
        }
    }

    /// The value where there was none before.
    fn initial_value(&self) -> Value {
        match self {
            Self::Append(items) => Value::Array(items.clone()),
            Self::Merge(pairs) => Value::Object(pairs.clone()),
            Self::Set(value) => value.clone(),
        }
    }

    /// The lines below a key, for a change that fills a block.
    fn lines(&self) -> Vec<String> {
        match self {
            Self::Append(items) => items.iter().map(item_line).collect(),
            Self::Merge(pairs) => pairs.iter().map(|(key, value)| pair_text(key, value)).collect(),
            Self::Set(_) => Vec::new(),
        }
    }
}

fn item_line(item: &Value) -> String {
    format!("- {}", render::render_flow(item))
}

fn pair_text(key: &str, value: &Value) -> String {
    format!("{}: {}", render::render_key(key), render::render_flow(value))
}

/// Collects edits to one front matter. Offsets are bytes of its block.
struct FrontMatterEditor<'f, 't> {
    front: &'f FrontMatter<'t>,
    edits: Vec<(Range<usize>, String)>,
}

impl<'t> FrontMatterEditor<'_, 't> {
    fn change(&mut self, pair: &YamlPair<'t>, change: &FrontMatterEdit) -> Result<(), FrontMatterError> {
        match (change, &pair.value.kind) {
            (FrontMatterEdit::Set(value), _) => self.replace(pair, value),
            (_, YamlNodeKind::Alias(_)) => Err(target_error(pair, ALIAS_REASON)),
            (_, YamlNodeKind::Empty) if self.front.tree.root.style == Block => self.fill(pair, change),
            (_, YamlNodeKind::Empty) => self.replace(pair, &change.initial_value()),
            (_, YamlNodeKind::Scalar(text, ScalarStyle::Plain)) if scalar::resolve(text).is_null() => {
                self.replace(pair, &change.initial_value())
            }
            (FrontMatterEdit::Append(items), YamlNodeKind::Sequence(style, there)) => {
                let last = there.last().map(|last| last.range.end);
                self.check_not_shared(pair, pair.value.range.start)?;
                match style {
                    Flow => self.insert_flow(pair.value.range.start, last, &render::joined(items)),
                    Block => self.insert_below(pair, change.lines())?,
                }
                Ok(())
            }
            (FrontMatterEdit::Merge(pairs), YamlNodeKind::Mapping(mapping)) => self.merge(pair, mapping, pairs),
            (FrontMatterEdit::Append(_), _) => Err(target_error(pair, "is not a list, so it cannot be appended to")),
            (FrontMatterEdit::Merge(_), _) => Err(target_error(pair, "is not a mapping, so its keys cannot be set")),
        }
    }

    /// Keys that the front matter does not have yet, at its end.
    fn add_keys(&mut self, fresh: &[(&str, &FrontMatterEdit)]) {
        let root = &self.front.tree.root;
        if root.style == Flow && !fresh.is_empty() {
            let pairs: Vec<String> =
                fresh.iter().map(|(key, change)| pair_text(key, &change.initial_value())).collect();
            self.insert_flow(root.start, root.end_of_last(), &pairs.join(", "));
            return;
        }
        let indent = self.indent(root.start).unwrap_or_default();
        for (key, change) in fresh {
            match change {
                FrontMatterEdit::Set(value) => {
                    self.insert_lines(self.block().len(), indent, vec![pair_text(key, value)])
                }
                FrontMatterEdit::Append(_) | FrontMatterEdit::Merge(_) => {
                    self.insert_lines(self.block().len(), indent, vec![format!("{}:", render::render_key(key))]);
                    self.insert_lines(self.block().len(), &format!("{indent}  "), change.lines());
                }
            }
        }
    }

    /// A list or mapping, in lines of its own, where only a key was.
    fn fill(&mut self, pair: &YamlPair<'t>, change: &FrontMatterEdit) -> Result<(), FrontMatterError> {
        self.check_not_shared(pair, pair.value.range.end)?;
        let indent = format!("{}  ", self.indent(self.front.tree.root.start).unwrap_or_default());
        self.insert_lines(self.next_line(opening(pair)?), &indent, change.lines());
        Ok(())
    }

    fn merge(
        &mut self,
        pair: &YamlPair<'t>,
        mapping: &YamlMapping<'t>,
        pairs: &Map<String, Value>,
    ) -> Result<(), FrontMatterError> {
        self.check_not_shared(pair, mapping.start)?;
        let there: HashMap<&str, &YamlPair<'t>> = mapping.pairs.iter().map(|pair| (pair.name.as_str(), pair)).collect();
        let mut fresh = Vec::new();
        for (key, value) in pairs {
            match there.get(key.as_str()) {
                Some(there) => self.replace(there, value)?,
                None => fresh.push(pair_text(key, value)),
            }
        }
        match mapping.style {
            _ if fresh.is_empty() => {}
            Flow => self.insert_flow(mapping.start, mapping.end_of_last(), &fresh.join(", ")),
            Block => self.insert_below(pair, fresh)?,
        }
        Ok(())
    }

    /// Replaces a value.
    fn replace(&mut self, pair: &YamlPair<'t>, value: &Value) -> Result<(), FrontMatterError> {
        let range = pair.value.range.clone();
        let text = render::render_flow(value);
        self.check_not_shared(pair, range.end)?;
        match &pair.value.kind {
            YamlNodeKind::Alias(_) => return Err(target_error(pair, ALIAS_REASON)),
            YamlNodeKind::Empty => self.edit(opening(pair)?..opening(pair)?, format!(" {text}")),
            YamlNodeKind::Scalar(_, ScalarStyle::Literal | ScalarStyle::Folded) => {
                self.replace_block_scalar(opening(pair)?, range.end, text);
            }
            YamlNodeKind::Sequence(Block, _) | YamlNodeKind::Mapping(YamlMapping { style: Block, .. }) => {
                self.replace_block(opening(pair)?, range.end, &text);
            }
            YamlNodeKind::Scalar(..) | YamlNodeKind::Sequence(..) | YamlNodeKind::Mapping(_) => self.edit(range, text),
        }
        Ok(())
    }

    /// Puts the new value at the `|` or `>`, and removes the lines below.
    fn replace_block_scalar(&mut self, opening: usize, end: usize, text: String) {
        let header = skip_blank(self.block(), opening);
        let length = self.after(header).find(char::is_whitespace).unwrap_or_default();
        let line_end = self.line_end(header);
        self.edit(header..header + length, text);
        self.edit(line_end..trimmed(self.block(), end).max(line_end), String::new());
    }

    /// The new value goes behind the colon, and the lines of the old one go.
    fn replace_block(&mut self, opening: usize, end: usize, text: &str) {
        let first_line = self.line_start(skip_blank(self.block(), opening));
        let end = trimmed(self.block(), end);
        let comment_follows = self.after(end).trim_start_matches([' ', '\t']).starts_with('#');
        self.edit(opening..opening, format!(" {text}"));
        if first_line < opening || comment_follows {
            self.edit(first_line.max(opening)..end, String::new());
        } else {
            self.edit(first_line..self.next_line(end), String::new());
        }
    }

    /// Lines at the end of a block list or mapping, as far in as its others.
    fn insert_below(&mut self, pair: &YamlPair<'t>, lines: Vec<String>) -> Result<(), FrontMatterError> {
        let first = skip_blank(self.block(), opening(pair)?);
        let indent = self.indent(first).ok_or_else(|| target_error(pair, UNSUPPORTED_STYLE))?;
        self.insert_lines(self.next_line(pair.value.range.end), indent, lines);
        Ok(())
    }

    fn insert_lines(&mut self, at: usize, indent: &str, lines: Vec<String>) {
        let end = self.front.line_end();
        let text = lines.into_iter().map(|line| format!("{indent}{line}{end}")).collect();
        self.edit(at..at, text);
    }

    /// More of what is between brackets: behind the last that is there, or behind the bracket at `start`.
    fn insert_flow(&mut self, start: usize, last: Option<usize>, text: &str) {
        match last {
            Some(end) => self.edit(end..end, format!(", {text}")),
            None => self.edit(start + 1..start + 1, text.to_owned()),
        }
    }

    /// Refuses to edit a value that an alias shares.
    fn check_not_shared(&self, pair: &YamlPair<'t>, end: usize) -> Result<(), FrontMatterError> {
        if self.front.tree.is_referred_to(&(pair.key_end..end)) {
            return Err(target_error(pair, "has an anchor that an alias refers to; write the alias out first"));
        }
        Ok(())
    }

    fn edit(&mut self, range: Range<usize>, text: String) {
        self.edits.push((range, text));
    }

    /// The whole file with all edits made.
    fn finish(mut self) -> Result<String, FrontMatterError> {
        // Stable: edits at one offset stay in the order of the request.
        self.edits.sort_by_key(|(range, _)| range.start);
        let block = self.block();
        let FrontMatter { opening, closing, body, .. } = *self.front;
        let mut out = opening.to_owned();
        let mut done = 0;
        for (range, text) in &self.edits {
            out.push_str(block.get(done..range.start).ok_or(FrontMatterError::EditMismatch)?);
            out.push_str(text);
            done = range.end;
        }
        out.push_str(block.get(done..).ok_or(FrontMatterError::EditMismatch)?);
        Ok(out + closing + body)
    }

    fn block(&self) -> &'t str {
        self.front.block
    }

    fn after(&self, at: usize) -> &'t str {
        self.block().get(at..).unwrap_or_default()
    }

    fn line_start(&self, at: usize) -> usize {
        self.block().get(..at).unwrap_or_default().rfind('\n').map_or(0, |newline| newline + 1)
    }

    fn line_end(&self, at: usize) -> usize {
        at + self.after(at).find(['\r', '\n']).unwrap_or(self.after(at).len())
    }

    /// Offset of the line after a value. Behind a block scalar the parser has gone on to the next token.
    fn next_line(&self, end: usize) -> usize {
        match self.indent(end) {
            Some(indent) => end - indent.len(),
            None => end + self.after(end).find('\n').map_or(self.after(end).len(), |newline| newline + 1),
        }
    }

    /// Indentation of the line.
    fn indent(&self, at: usize) -> Option<&'t str> {
        let indent = self.block().get(self.line_start(at)..at)?;
        indent.bytes().all(|byte| byte == b' ').then_some(indent)
    }
}

const ALIAS_REASON: &str = "is an alias; write the value out first";
const UNSUPPORTED_STYLE: &str = "cannot be updated in place; write it as `key: value`";

fn target_error(pair: &YamlPair<'_>, reason: &'static str) -> FrontMatterError {
    FrontMatterError::Target { key: pair.name.clone(), line: pair.line, reason }
}

fn opening(pair: &YamlPair<'_>) -> Result<usize, FrontMatterError> {
    pair.opening().ok_or_else(|| target_error(pair, UNSUPPORTED_STYLE))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{FrontMatterError, check};

    #[test]
    fn an_edit_that_went_wrong_has_no_result() {
        let json = |value: serde_json::Value| value.as_object().cloned().unwrap();
        let text = "---\na: 1\n---\nbody";
        assert_eq!(check(text, &json(json!({"a": 1})), "body"), Ok(()));
        assert_eq!(check(text, &json(json!({"a": 2})), "body"), Err(FrontMatterError::EditMismatch));
        assert_eq!(check(text, &json(json!({"a": 1, "b": 1})), "body"), Err(FrontMatterError::EditMismatch));
        assert_eq!(check(text, &json(json!({"a": 1})), ""), Err(FrontMatterError::EditMismatch));
        assert!(matches!(check("---\na: [\n---\n", &json(json!({})), ""), Err(FrontMatterError::ResultInvalid(_))));
    }
}
