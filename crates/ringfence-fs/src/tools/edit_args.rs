//! Arguments of `edit_file` in each dialect.
//!
//! Everything that callers may write ends as one `Args`. Other names of an argument are accepted where models are known
//! to use them, and are in no schema; `miniclaw` has none.
//!
//! Not here: how a text is matched (`text_edit.rs`).

use ringfence_kernel::{ErrorKind, ToolError, lenient};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::fence::PathArg;
use crate::read::digest::Digest;
use crate::tools::text_edit::{MatchMode, TextEdit};

/// Replace text in a file. Send all of `path`, `oldText` and `newText`. `oldText` must occur in the file exactly once,
/// including white space, unless `replaceAll` is true. Put further replacements in the same file into `edits`;
/// they are applied after the first, in order, all or none.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct StandardEditArgs {
    /// Relative to the workspace.
    #[serde(alias = "file_path", alias = "filePath")]
    path: String,
    /// Old text.
    #[schemars(required)]
    #[serde(alias = "old_text", alias = "old_string", alias = "oldString", alias = "old_str")]
    old_text: Option<String>,
    /// Empty removes the text.
    #[schemars(required)]
    #[serde(alias = "new_text", alias = "new_string", alias = "newString", alias = "new_str")]
    new_text: Option<String>,
    /// Replace every match.
    #[serde(default, alias = "replace_all", deserialize_with = "lenient::optional_scalar")]
    replace_all: Option<bool>,
    /// Insert `newText` after this line instead; 0 is the top.
    #[serde(default, alias = "insert_line", deserialize_with = "lenient::optional_scalar")]
    insert_line: Option<usize>,
    /// Further replacements.
    edits: Option<Vec<StandardEdit>>,
    /// Only if the file has this SHA-256 now.
    if_match_sha256: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct StandardEdit {
    /// Old text.
    #[serde(alias = "old_text", alias = "old_string", alias = "oldString", alias = "old_str")]
    old_text: String,
    /// New text.
    #[serde(alias = "new_text", alias = "new_string", alias = "newString", alias = "new_str")]
    new_text: String,
    /// Every match.
    #[serde(default, alias = "replace_all", deserialize_with = "lenient::scalar")]
    replace_all: bool,
}

/// Replace exact text in a file in the workspace. Without `replace_all` the text must match exactly once.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct MiniclawEditArgs {
    /// Path of the file, relative to the workspace.
    path: String,
    /// The text to replace.
    old_text: String,
    /// The replacement.
    new_text: String,
    /// Replace every match.
    #[serde(default)]
    replace_all: bool,
}

/// Replace old_string, which must be in the file once, by new_string.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ClaudeEditArgs {
    #[serde(alias = "path", alias = "filePath")]
    file_path: String,
    /// Text in the file, without line numbers.
    // Without `default`, which would take it out of the required ones: models leave out what they may, and the text to
    // replace first.
    #[schemars(required)]
    #[serde(alias = "old_str", alias = "oldText", alias = "old_text", alias = "oldString")]
    old_string: Option<String>,
    #[serde(alias = "new_str", alias = "newText", alias = "new_text", alias = "newString", alias = "insert_text")]
    new_string: String,
    /// Replace every match.
    #[serde(default, alias = "replaceAll", alias = "allow_multiple", deserialize_with = "lenient::scalar")]
    replace_all: bool,
    /// To insert new_string instead, with an empty old_string: the line that it goes below; 0 is the top.
    #[serde(default, alias = "insertLine", deserialize_with = "lenient::optional_scalar")]
    insert_line: Option<usize>,
}

/// Replace old_string, which must be in the file once, by new_string. An empty old_string creates the file.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct GeminiReplaceArgs {
    #[serde(alias = "path", alias = "filePath")]
    file_path: String,
    // Models of this family are trained to say why they edit.
    #[schemars(skip)]
    #[expect(dead_code, reason = "it is accepted, and says nothing to us")]
    instruction: Option<String>,
    #[schemars(required)]
    #[serde(alias = "old_str", alias = "oldText", alias = "old_text", alias = "oldString")]
    old_string: Option<String>,
    #[serde(alias = "new_str", alias = "newText", alias = "new_text", alias = "newString", alias = "insert_text")]
    new_string: String,
    /// Replace every match.
    #[serde(default, alias = "replace_all", alias = "replaceAll", deserialize_with = "lenient::scalar")]
    allow_multiple: bool,
    // The same as in the dialect `claude`, for models that know it.
    #[schemars(skip)]
    #[serde(default, alias = "insertLine", deserialize_with = "lenient::optional_scalar")]
    insert_line: Option<usize>,
}

pub(super) struct Args {
    pub(super) path: PathArg,
    pub(super) work: EditWork,
    pub(super) if_match: Option<Digest>,
}

/// What an edit does to its file.
pub(super) enum EditWork {
    Change(Vec<TextEdit>),
    /// Contents for a file that does not exist, or is empty.
    Create(String),
}

impl TryFrom<StandardEditArgs> for Args {
    type Error = ToolError;

    fn try_from(args: StandardEditArgs) -> Result<Self, ToolError> {
        let if_match = args.if_match_sha256.map(|hex| Digest::from_hex("ifMatchSha256", &hex)).transpose()?;
        if args.edits.as_ref().is_some_and(Vec::is_empty) {
            return Err(ToolError::invalid("edits", "must not be empty"));
        }
        let path = PathArg::Standard(args.path);
        if let Some(after) = args.insert_line {
            let (None, false, None) = (args.edits, args.replace_all == Some(true), has_text(args.old_text)) else {
                return Err(ToolError::invalid("insertLine", "cannot be combined with a replacement"));
            };
            let text = args.new_text.ok_or_else(|| ToolError::invalid("newText", "is missing: it is inserted"))?;
            let edit = TextEdit::insertion(after, text, "insertLine");
            return Ok(Self { path, work: EditWork::Change(vec![edit]), if_match });
        }
        let edits = match (args.old_text, args.new_text, args.edits) {
            (Some(old_text), Some(new_text), more) => {
                let first = StandardEdit { old_text, new_text, replace_all: args.replace_all.unwrap_or(false) };
                std::iter::once(first).chain(more.unwrap_or_default()).collect()
            }
            (None, None, Some(edits)) if args.replace_all.is_none() => edits,
            (Some(_), None, _) => {
                return Err(ToolError::invalid(
                    "newText",
                    "is missing: call this again with path, oldText and newText (empty to remove the text)",
                ));
            }
            (None, Some(_), _) => {
                return Err(ToolError::invalid(
                    "oldText",
                    "is missing: call this again with path, newText, and the text to replace as oldText",
                ));
            }
            (None, None, None) => {
                let message = "nothing to edit was sent: call this again with path, oldText and newText";
                return Err(ToolError::new(ErrorKind::InvalidArgs, message));
            }
            (None, None, Some(_)) => {
                return Err(ToolError::invalid("replaceAll", "must be set in each of edits instead"));
            }
        };
        let edit = |edit: StandardEdit| edit.into_edit(MatchMode::Relaxed, "oldText");
        let edits = edits.into_iter().map(edit).collect::<Result<_, _>>()?;
        Ok(Self { path, work: EditWork::Change(edits), if_match })
    }
}

impl StandardEdit {
    fn into_edit(self, mode: MatchMode, field: &'static str) -> Result<TextEdit, ToolError> {
        let Self { old_text, new_text, replace_all } = self;
        if old_text.is_empty() {
            return Err(ToolError::invalid(field, "must not be empty"));
        }
        Ok(TextEdit::replacement(old_text, new_text, replace_all, mode, field))
    }
}

impl TryFrom<MiniclawEditArgs> for Args {
    type Error = ToolError;

    fn try_from(args: MiniclawEditArgs) -> Result<Self, ToolError> {
        let MiniclawEditArgs { path, old_text, new_text, replace_all } = args;
        let edit = StandardEdit { old_text, new_text, replace_all };
        let edits = vec![edit.into_edit(MatchMode::ExactDisjoint, "old_text")?];
        let path = PathArg::workspace_unless_blank(path);
        Ok(Self { path, work: EditWork::Change(edits), if_match: None })
    }
}

impl TryFrom<ClaudeEditArgs> for Args {
    type Error = ToolError;

    fn try_from(args: ClaudeEditArgs) -> Result<Self, ToolError> {
        let ClaudeEditArgs { file_path, old_string, new_string, replace_all, insert_line } = args;
        let path = PathArg::Standard(file_path);
        let edit = match (insert_line, old_string) {
            (Some(after), old) if has_text(old.clone()).is_none() && !replace_all => {
                TextEdit::insertion(after, new_string, "insert_line")
            }
            (Some(_), _) => return Err(ToolError::invalid("insert_line", "cannot be combined with old_string")),
            (None, None) => {
                let problem =
                    "is missing: call this again with file_path, new_string, and the text to replace as old_string";
                return Err(ToolError::invalid("old_string", problem));
            }
            (None, Some(old)) if old.is_empty() => {
                return Ok(Self { path, work: EditWork::Create(new_string), if_match: None });
            }
            (None, Some(old)) => {
                TextEdit::replacement(old, new_string, replace_all, MatchMode::RelaxedWithFileEndings, "old_string")
            }
        };
        Ok(Self { path, work: EditWork::Change(vec![edit]), if_match: None })
    }
}

impl TryFrom<GeminiReplaceArgs> for Args {
    type Error = ToolError;

    fn try_from(args: GeminiReplaceArgs) -> Result<Self, ToolError> {
        let GeminiReplaceArgs { file_path, old_string, new_string, allow_multiple, insert_line, .. } = args;
        ClaudeEditArgs { file_path, old_string, new_string, replace_all: allow_multiple, insert_line }.try_into()
    }
}

fn has_text(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::{Args, StandardEditArgs};

    #[track_caller]
    fn check(arguments: &str, message: &str) {
        let arguments: StandardEditArgs = serde_json::from_str(arguments).unwrap();
        assert_eq!(Args::try_from(arguments).err().map(|error| error.message).as_deref(), Some(message));
    }

    #[test]
    fn an_incomplete_edit_gets_an_error_that_names_the_missing_field() {
        check(
            r#"{"path": "a", "oldText": "x"}"#,
            "newText is missing: call this again with path, oldText and newText (empty to remove the text)",
        );
        check(
            r#"{"path": "a", "newText": "x"}"#,
            "oldText is missing: call this again with path, newText, and the text to replace as oldText",
        );
        check(r#"{"path": "a"}"#, "nothing to edit was sent: call this again with path, oldText and newText");
        let edits = r#""edits": [{"oldText": "x", "newText": "y"}]"#;
        check(
            &format!(r#"{{"path": "a", "replaceAll": true, {edits}}}"#),
            "replaceAll must be set in each of edits instead",
        );
        check(
            &format!(r#"{{"path": "a", "oldText": "x", {edits}}}"#),
            "newText is missing: call this again with path, oldText and newText (empty to remove the text)",
        );
    }
}
