//! `read_file`: read a file, or some of its lines.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ringfence_kernel::{
    CallContext, DuplicateToolError, ErrorKind, IoMode, PolicyAction, Preview, ResourceAccess, Ticket, Tool,
    ToolBinding, ToolError, ToolPlan, ToolRegistry,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Fence;
use crate::fence::PathArg;
use crate::mount::LocatedPath;
use crate::preview::fingerprint;
use crate::read::content::{
    DigestMode, FileExcerpt, LineRange, NONBLOCKING_BYTES, decode_text, read_start, read_window,
};
use crate::read::digest::Digest;
use crate::root::OpenFile;
use crate::sys::stat::{FileStat, timestamp};
use crate::tools::ContentEncoding;

const BOM: char = '\u{feff}';

pub(super) fn register(registry: &mut ToolRegistry, fence: &Fence) -> Result<(), DuplicateToolError> {
    let standard = ToolBinding::standard::<StandardReadArgs, StandardReadResult>("read_file");
    let miniclaw = ToolBinding::miniclaw::<MiniclawReadArgs, StandardReadResult>("read_file", |outcome: &Outcome| {
        format!("ok: read {} bytes from {}\n{}", outcome.payload.len(), outcome.shown, outcome.payload)
    });
    let crewagent = ToolBinding::crewagent::<CrewagentReadArgs, CrewagentReadResult>("fs.read");
    registry.register(ReadFile { fence: fence.clone() }, [standard, miniclaw, crewagent])
}

struct ReadFile {
    fence: Fence,
}

/// Read a file. Without `startLine` and `endLine` the whole file is returned, or its first part if it is too large; read
/// the rest by lines. Use `encoding: "base64"` for files that are not text.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct StandardReadArgs {
    /// Path of the file, relative to the workspace.
    path: String,
    #[serde(default)]
    encoding: ContentEncoding,
    /// First line, from 1.
    #[schemars(range(min = 1))]
    start_line: Option<u64>,
    /// Last line, inclusive.
    #[schemars(range(min = 1))]
    end_line: Option<u64>,
}

/// Read a UTF-8 text file from the workspace.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct MiniclawReadArgs {
    /// Path of the file, relative to the workspace.
    path: String,
}

/// Read a text file, or some of its lines. A file that is too large is truncated; search it, then read the lines
/// that matter. Keep `sha256` for `ifMatchSha256` in later writes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CrewagentReadArgs {
    /// Path of the file, starting with a mount alias.
    path: String,
    /// First line to read, from 1.
    #[schemars(range(min = 1))]
    start_line: Option<u64>,
    /// Last line to read, inclusive.
    #[schemars(range(min = 1))]
    end_line: Option<u64>,
}

struct Args {
    path: PathArg,
    encoding: ContentEncoding,
    window: Option<LineRange>,
    oversize: OversizePolicy,
    hashing: DigestMode,
}

/// Handling of a file that is larger than the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OversizePolicy {
    Truncate,
    /// Truncated to this number of bytes, or to the limit if that is less.
    TruncateTo(usize),
    Refuse,
}

impl TryFrom<StandardReadArgs> for Args {
    type Error = ToolError;

    fn try_from(args: StandardReadArgs) -> Result<Self, ToolError> {
        let StandardReadArgs { path, encoding, start_line, end_line } = args;
        let window = line_range(start_line, end_line)?;
        if window.is_some() && encoding == ContentEncoding::Base64 {
            return Err(ToolError::invalid("encoding", "must be utf-8 when lines are requested"));
        }
        let path = PathArg::Standard(path);
        Ok(Self { path, encoding, window, oversize: OversizePolicy::Truncate, hashing: DigestMode::BestEffort })
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
        }
    }
}

struct ReadFilePlan {
    located: LocatedPath,
    file: OpenFile,
    args: Args,
}

struct Outcome {
    shown: String,
    /// Text as it is in the file, or base64.
    payload: String,
    encoding: ContentEncoding,
    window: Option<LineRange>,
    stat: FileStat,
    truncated: bool,
    digest: Option<Digest>,
    lines: Option<u64>,
    changed_during_read: bool,
}

/// Result in the standard dialect.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct StandardReadResult {
    content: String,
    /// Size of the whole file in bytes.
    size: u64,
    /// Time of the last modification.
    modified: String,
    /// SHA-256 of the whole file; null when it is too large to hash.
    sha256: Option<String>,
    /// True when `content` is only the first part of the file.
    truncated: bool,
    /// Number of lines in the whole file, if lines were requested and the end was reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    total_lines: Option<u64>,
    /// The file starts with a byte order mark, which `content` omits.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    bom: bool,
    /// Number of hard links, if more than one.
    #[serde(skip_serializing_if = "Option::is_none")]
    links: Option<u64>,
    /// The file was modified while it was read.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    changed_during_read: bool,
}

impl Tool for ReadFile {
    type Args = Args;
    type Prepared = ReadFilePlan;
    type Outcome = Outcome;
    const ACTIONS: &'static [PolicyAction] = &[PolicyAction::Read];
    const IDEMPOTENT: bool = true;
    const SUPPORTS_NON_BLOCKING: bool = true;

    fn plan(&self, args: Args, cx: &CallContext<'_>) -> Result<ToolPlan<ReadFilePlan>, ToolError> {
        let located = self.fence.locate_arg(&args.path, cx)?;
        let mut file = located.open_content(cx)?;
        // A long read is started once, on a thread that may block.
        if cx.io_mode == IoMode::NonBlocking && (args.window.is_some() || file.stat.size > NONBLOCKING_BYTES) {
            return Err(cx.would_block());
        }
        if args.oversize == OversizePolicy::Refuse && file.stat.size > cx.limits.read_bytes {
            return Err(too_large_error(cx));
        }
        let place = located.resource_of(&mut file, cx)?;
        Ok(ToolPlan {
            accesses: vec![ResourceAccess { action: PolicyAction::Read, resource: place }],
            prepared: ReadFilePlan { located, file, args },
        })
    }

    fn preview(&self, work: &mut ReadFilePlan, _: &CallContext<'_>) -> Result<Preview, ToolError> {
        let text = format!("read `{}` ({} bytes)", work.located.shown, work.file.stat.size);
        Ok(Preview::new(&text, fingerprint(work.file.stat)))
    }

    fn run(&self, work: ReadFilePlan, ticket: &Ticket<'_>) -> Result<Outcome, ToolError> {
        let ReadFilePlan { located, file, args } = work;
        let cx = ticket.context();
        let FileExcerpt { mut bytes, truncated, digest, lines, changed_during_read: unsteady } = match args.window {
            None => read_start(&located.mount.digests, &file, args.hashing, &located.shown, cx)?,
            Some(window) => read_window(&located.mount.digests, &file, window, args.hashing, &located.shown, cx)?,
        };
        if truncated && args.oversize == OversizePolicy::Refuse {
            return Err(too_large_error(cx));
        }
        if let (true, OversizePolicy::TruncateTo(most)) = (truncated, args.oversize) {
            bytes.truncate(most);
        }
        let payload = match args.encoding {
            ContentEncoding::Utf8 => decode_text(bytes, truncated, &located.shown)?,
            ContentEncoding::Base64 => STANDARD.encode(bytes),
        };
        let Args { encoding, window, .. } = args;
        Ok(Outcome {
            shown: located.shown,
            payload,
            encoding,
            window,
            stat: file.stat,
            truncated,
            digest,
            lines,
            changed_during_read: unsteady,
        })
    }
}

impl From<Outcome> for StandardReadResult {
    fn from(outcome: Outcome) -> Self {
        let Outcome { mut payload, stat: stamp, .. } = outcome;
        let from_start =
            outcome.encoding == ContentEncoding::Utf8 && outcome.window.is_none_or(|window| window.first == 1);
        let bom = from_start && payload.starts_with(BOM);
        if bom {
            payload.remove(0);
        }
        Self {
            content: payload,
            size: stamp.size,
            modified: timestamp(stamp.modified),
            sha256: outcome.digest.map(Digest::to_hex),
            truncated: outcome.truncated,
            total_lines: outcome.lines,
            bom,
            links: Some(stamp.links).filter(|links| *links > 1),
            changed_during_read: outcome.changed_during_read,
        }
    }
}

/// Result in the crewagent dialect.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct CrewagentReadResult {
    path: String,
    /// Size of the whole file.
    bytes: u64,
    /// SHA-256 of the whole file.
    sha256: Option<String>,
    truncated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
    /// The first part of a file that is too large.
    #[serde(skip_serializing_if = "Option::is_none")]
    content_preview: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

impl From<Outcome> for CrewagentReadResult {
    fn from(outcome: Outcome) -> Self {
        let Outcome { shown: path, payload, stat: stamp, truncated, digest, .. } = outcome;
        let (content, content_preview, hint) = if truncated {
            let hint = "the file is too large to read whole; use fs.search, then fs.read with startLine and endLine";
            (None, Some(payload), Some(hint.to_owned()))
        } else {
            (Some(payload), None, None)
        };
        Self { path, bytes: stamp.size, sha256: digest.map(Digest::to_hex), truncated, content, content_preview, hint }
    }
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

fn too_large_error(cx: &CallContext<'_>) -> ToolError {
    ToolError::new(ErrorKind::ReadLimit, format!("file exceeds max_read_bytes ({})", cx.limits.read_bytes))
}
