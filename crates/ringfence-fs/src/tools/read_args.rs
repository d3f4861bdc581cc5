//! Arguments of the read tool in each dialect.

use ringfence_kernel::{ToolError, lenient};
use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use serde_json::Value;

use crate::fence::PathArg;
use crate::read::content::{DigestMode, LineRange};
use crate::tools::ContentEncoding;

/// Lines of one read in the dialects of model families, where the call does not say how many.
const MODEL_LINES: u64 = 2000;

/// Read a file, or lines of it. A long file is returned in parts: go on by lines. Use `encoding: "base64"` for files that
/// are not text.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct StandardReadArgs {
    /// Relative to the workspace.
    #[serde(alias = "file_path", alias = "filePath")]
    path: String,
    #[serde(default)]
    encoding: ContentEncoding,
    /// First line, from 1.
    #[serde(default, alias = "start_line", deserialize_with = "lenient::optional_scalar")]
    #[schemars(range(min = 1))]
    start_line: Option<u64>,
    /// Last line, inclusive.
    #[serde(default, alias = "end_line", deserialize_with = "lenient::optional_scalar")]
    #[schemars(range(min = 1))]
    end_line: Option<u64>,
    #[serde(default, deserialize_with = "lenient::optional_scalar")]
    #[schemars(skip)]
    offset: Option<u64>,
    #[serde(default, deserialize_with = "lenient::optional_scalar")]
    #[schemars(skip)]
    limit: Option<u64>,
}

/// Read a UTF-8 text file from the workspace.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct MiniclawReadArgs {
    /// Path of the file, relative to the workspace.
    path: String,
}

/// Read a text file, or some of its lines. A file that is too large is truncated; search it, then read the lines
/// that matter. Keep `sha256` for `ifMatchSha256` in later writes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct CrewagentReadArgs {
    /// Path of the file, starting with a mount alias.
    path: String,
    /// First line to read, from 1.
    #[schemars(range(min = 1))]
    start_line: Option<u64>,
    /// Last line to read, inclusive.
    #[schemars(range(min = 1))]
    end_line: Option<u64>,
}

/// The file and the lines that a model asks for. Each family is shown its own names of lines, and may use the others.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ModelReadArgs {
    #[serde(alias = "path", alias = "filePath", alias = "absolute_path")]
    file_path: String,
    /// First line.
    #[serde(default, deserialize_with = "lenient::optional_scalar")]
    offset: Option<u64>,
    /// Number of lines.
    #[serde(default, deserialize_with = "lenient::optional_scalar")]
    limit: Option<u64>,
    #[serde(default, alias = "startLine", deserialize_with = "lenient::optional_scalar")]
    start_line: Option<u64>,
    #[serde(default, alias = "endLine", deserialize_with = "lenient::optional_scalar")]
    end_line: Option<u64>,
}

/// Read a file, an image or a directory. Lines are numbered.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(transform = |schema: &mut Schema| hide(schema, ["start_line", "end_line"]))]
pub(super) struct ClaudeReadArgs(ModelReadArgs);

/// Read a file or an image. Lines are numbered.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(transform = |schema: &mut Schema| hide(schema, ["offset", "limit"]))]
pub(super) struct GeminiReadArgs(ModelReadArgs);

/// Takes arguments that a family has no name for out of its schema.
fn hide(schema: &mut Schema, names: [&str; 2]) {
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        properties.retain(|name, _| !names.contains(&name.as_str()));
    }
}

/// Read a file, or lines of it.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CodexReadArgs {
    #[serde(alias = "file_path", alias = "filePath")]
    path: String,
    /// First line.
    #[serde(default, alias = "start_line", deserialize_with = "lenient::optional_scalar")]
    offset: Option<u64>,
    #[serde(default, deserialize_with = "lenient::optional_scalar")]
    limit: Option<u64>,
}

/// View an image file.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CodexViewImageArgs {
    #[serde(alias = "file_path", alias = "filePath")]
    path: String,
    /// Codex sends how finely it wants to see it; the image is shown as it is.
    #[serde(default)]
    #[schemars(skip)]
    #[expect(dead_code, reason = "accepted, and without effect")]
    detail: Option<String>,
}

/// The kernel's arguments.
#[derive(Debug)]
pub(super) struct Args {
    pub(super) path: PathArg,
    pub(super) encoding: ContentEncoding,
    pub(super) window: Option<LineRange>,
    pub(super) oversize: OversizePolicy,
    pub(super) hashing: DigestMode,
    pub(super) reader: ReaderKind,
}

/// Handling of a file that is larger than the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OversizePolicy {
    Truncate,
    /// Truncated to this number of bytes, or to the limit if that is less.
    TruncateTo(usize),
    Refuse,
}

/// The reader that a result is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReaderKind {
    /// A program, or a model that is given what a program is.
    Program,
    /// A model: pages of lines, images as images, directories as lists.
    Model,
    /// A model that wants an image and nothing else.
    ImageViewer,
}

impl TryFrom<StandardReadArgs> for Args {
    type Error = ToolError;

    fn try_from(args: StandardReadArgs) -> Result<Self, ToolError> {
        let StandardReadArgs { path, encoding, start_line, end_line, offset, limit } = args;
        let window = match (offset, limit) {
            (None, None) => line_range(start_line, end_line)?,
            _ => {
                // Models count from 0 at times, and mean the first line.
                let first = start_line.or(offset.map(|offset| offset.max(1))).unwrap_or(1);
                line_range(Some(first), end_line.or(page_end(Some(first), limit)))?
            }
        };
        if window.is_some() && encoding == ContentEncoding::Base64 {
            return Err(ToolError::invalid("encoding", "must be utf-8 when lines are requested"));
        }
        Ok(Self {
            path: PathArg::Standard(path),
            encoding,
            window,
            oversize: OversizePolicy::Truncate,
            hashing: DigestMode::BestEffort,
            reader: ReaderKind::Program,
        })
    }
}

impl TryFrom<CrewagentReadArgs> for Args {
    type Error = ToolError;

    fn try_from(args: CrewagentReadArgs) -> Result<Self, ToolError> {
        Ok(Self {
            path: PathArg::Mounted(args.path),
            encoding: ContentEncoding::Utf8,
            window: line_range(args.start_line, args.end_line)?,
            oversize: OversizePolicy::TruncateTo(50_000),
            hashing: DigestMode::Required,
            reader: ReaderKind::Program,
        })
    }
}

impl From<MiniclawReadArgs> for Args {
    fn from(args: MiniclawReadArgs) -> Self {
        Self {
            path: PathArg::workspace_unless_blank(args.path),
            encoding: ContentEncoding::Utf8,
            window: None,
            oversize: OversizePolicy::Refuse,
            hashing: DigestMode::Skip,
            reader: ReaderKind::Program,
        }
    }
}

impl TryFrom<ClaudeReadArgs> for Args {
    type Error = ToolError;

    fn try_from(args: ClaudeReadArgs) -> Result<Self, ToolError> {
        let ClaudeReadArgs(ModelReadArgs { file_path, offset, limit, start_line, end_line }) = args;
        Self::for_model(file_path, PageArgs { first: offset.or(start_line), limit, last: end_line })
    }
}

impl TryFrom<GeminiReadArgs> for Args {
    type Error = ToolError;

    fn try_from(args: GeminiReadArgs) -> Result<Self, ToolError> {
        let GeminiReadArgs(ModelReadArgs { file_path, start_line, end_line, offset, limit }) = args;
        Self::for_model(file_path, PageArgs { first: start_line.or(offset), limit, last: end_line })
    }
}

impl TryFrom<CodexReadArgs> for Args {
    type Error = ToolError;

    fn try_from(args: CodexReadArgs) -> Result<Self, ToolError> {
        let CodexReadArgs { path, offset, limit } = args;
        Self::for_model(path, PageArgs { first: offset, limit, last: None })
    }
}

impl TryFrom<CodexViewImageArgs> for Args {
    type Error = ToolError;

    fn try_from(args: CodexViewImageArgs) -> Result<Self, ToolError> {
        let whole = PageArgs { first: None, limit: None, last: None };
        Ok(Self { reader: ReaderKind::ImageViewer, ..Self::for_model(args.path, whole)? })
    }
}

/// The lines that a model asks for.
struct PageArgs {
    first: Option<u64>,
    limit: Option<u64>,
    last: Option<u64>,
}

impl Args {
    fn for_model(path: String, page: PageArgs) -> Result<Self, ToolError> {
        // Models count from 0 at times, and mean the first line.
        let first = page.first.unwrap_or(1).max(1);
        let last = page.last.or(page_end(Some(first), page.limit)).or(page_end(Some(first), Some(MODEL_LINES)));
        if page.limit == Some(0) {
            return Err(ToolError::invalid("limit", "must be at least 1"));
        }
        if last.is_some_and(|last| last < first) {
            return Err(ToolError::invalid("end_line", "must not be less than start_line"));
        }
        Ok(Self {
            path: PathArg::Standard(path),
            encoding: ContentEncoding::Utf8,
            window: line_range(Some(first), last)?,
            oversize: OversizePolicy::Truncate,
            hashing: DigestMode::BestEffort,
            reader: ReaderKind::Model,
        })
    }
}

/// The last line of a page.
fn page_end(first: Option<u64>, limit: Option<u64>) -> Option<u64> {
    limit.map(|limit| first.unwrap_or(1).saturating_add(limit).saturating_sub(1))
}

fn line_range(first: Option<u64>, last: Option<u64>) -> Result<Option<LineRange>, ToolError> {
    if first.is_none() && last.is_none() {
        return Ok(None);
    }
    let (first, last) = (first.unwrap_or(1), last.unwrap_or(u64::MAX));
    if first == 0 {
        return Err(ToolError::invalid("startLine", "must be at least 1"));
    }
    if last < first {
        return Err(ToolError::invalid("endLine", "must not be less than startLine"));
    }
    Ok(Some(LineRange { first, last }))
}
