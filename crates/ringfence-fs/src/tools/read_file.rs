//! `read_file`: the contents of a file, or of some of its lines.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ringfence_kernel::{
    Context, ErrorKind, Face, NameTaken, Pace, Plan, Preview, Registry, Ticket, Tool, ToolError, Touch, Verb,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Encoding;
use crate::Fence;
use crate::content::{Hashing, Part, QUICK_BYTES, Window, read_start, read_window, text_of};
use crate::digest::Digest;
use crate::fence::Given;
use crate::mount::{Opened, Spot};
use crate::preview::fingerprint;
use crate::stamp::{Stamp, timestamp};

const BOM: char = '\u{feff}';

pub(super) fn register(registry: &mut Registry, fence: &Fence) -> Result<(), NameTaken> {
    let standard = Face::standard::<StandardArgs, Value>("read_file");
    let miniclaw = Face::miniclaw::<MiniclawArgs>("read_file", |outcome: &Outcome| {
        format!("ok: read {} bytes from {}\n{}", outcome.payload.len(), outcome.shown, outcome.payload)
    });
    let crewagent = Face::crewagent::<CrewagentArgs, Fields>("fs.read");
    registry.register(ReadFile { fence: fence.clone() }, [standard, miniclaw, crewagent])
}

struct ReadFile {
    fence: Fence,
}

/// Read a file. Without `startLine` and `endLine` the whole file is returned, or its first part if it is too large; then
/// read the rest by lines. Use `encoding: "base64"` for files that are not text.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct StandardArgs {
    /// The file, by its path relative to the workspace.
    path: String,
    #[serde(default)]
    encoding: Encoding,
    /// First line, counted from 1.
    #[schemars(range(min = 1))]
    start_line: Option<u64>,
    /// Last line, included.
    #[schemars(range(min = 1))]
    end_line: Option<u64>,
}

/// Read a UTF-8 text file from the workspace.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct MiniclawArgs {
    /// The file, by its path relative to the workspace.
    path: String,
}

/// Read a text file, or some of its lines. A file that is too large is shown in part; search it, then read the lines
/// that matter. Keep `sha256` to prove later that you change what you read.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CrewagentArgs {
    /// The file, by its path from the `@` of a mount.
    path: String,
    /// First line to read, counted from 1.
    #[schemars(range(min = 1))]
    start_line: Option<u64>,
    /// Last line to read, included.
    #[schemars(range(min = 1))]
    end_line: Option<u64>,
}

struct Args {
    path: Given,
    encoding: Encoding,
    window: Option<Window>,
    oversize: Oversize,
    hashing: Hashing,
}

/// What becomes of a file that is larger than may be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Oversize {
    Cut,
    /// Cut to so many bytes, or to the limit if that is less.
    CutTo(usize),
    Refuse,
}

impl TryFrom<StandardArgs> for Args {
    type Error = ToolError;

    fn try_from(args: StandardArgs) -> Result<Self, ToolError> {
        let StandardArgs { path, encoding, start_line, end_line } = args;
        let window = window(start_line, end_line)?;
        if window.is_some() && encoding == Encoding::Base64 {
            return Err(ToolError::invalid("encoding", "must be utf-8 when lines are asked for"));
        }
        let path = Given::Standard(path);
        Ok(Self { path, encoding, window, oversize: Oversize::Cut, hashing: Hashing::Wanted })
    }
}

impl TryFrom<CrewagentArgs> for Args {
    type Error = ToolError;

    fn try_from(args: CrewagentArgs) -> Result<Self, ToolError> {
        Ok(Self {
            path: Given::Mounted(args.path),
            encoding: Encoding::Utf8,
            window: window(args.start_line, args.end_line)?,
            oversize: Oversize::CutTo(50_000),
            hashing: Hashing::Required,
        })
    }
}

impl From<MiniclawArgs> for Args {
    fn from(args: MiniclawArgs) -> Self {
        Self {
            path: Given::unless_blank(args.path),
            encoding: Encoding::Utf8,
            window: None,
            oversize: Oversize::Refuse,
            hashing: Hashing::Unwanted,
        }
    }
}

struct Work {
    spot: Spot,
    file: Opened,
    args: Args,
}

struct Outcome {
    shown: String,
    /// Text as it is in the file, or base64.
    payload: String,
    encoding: Encoding,
    window: Option<Window>,
    stamp: Stamp,
    truncated: bool,
    digest: Option<Digest>,
    lines: Option<u64>,
    unsteady: bool,
}

/// What a read returns in the standard dialect.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Value {
    content: String,
    /// Size of the whole file in bytes.
    size: u64,
    /// When the file was last changed.
    modified: String,
    /// SHA-256 of the whole file; null when it is too large to hash.
    sha256: Option<String>,
    /// True when `content` is only the first part of the file.
    truncated: bool,
    /// Lines in the whole file, where lines were asked for and the end was reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    total_lines: Option<u64>,
    /// The file begins with a byte order mark, which `content` leaves out.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    bom: bool,
    /// The file has other names; present when there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    links: Option<u64>,
    /// The file was written to while it was read.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    changed_during_read: bool,
}

impl Tool for ReadFile {
    type Args = Args;
    type Work = Work;
    type Outcome = Outcome;
    const VERBS: &'static [Verb] = &[Verb::Read];
    const SAME_AGAIN: bool = true;
    const QUICK: bool = true;

    fn plan(&self, args: Args, cx: &Context<'_>) -> Result<Plan<Work>, ToolError> {
        let spot = self.fence.locate_given(&args.path, cx)?;
        let mut file = spot.open_content(cx)?;
        // What takes long is better begun once, by somebody who may take long.
        if cx.pace == Pace::Quick && (args.window.is_some() || file.stamp.size > QUICK_BYTES) {
            return Err(cx.stall());
        }
        if args.oversize == Oversize::Refuse && file.stamp.size > cx.limits.read_bytes {
            return Err(too_large(cx));
        }
        let place = spot.place_of(&mut file, cx)?;
        Ok(Plan { touches: vec![Touch { verb: Verb::Read, place }], work: Work { spot, file, args } })
    }

    fn preview(&self, work: &mut Work, _: &Context<'_>) -> Result<Preview, ToolError> {
        let text = format!("read `{}` ({} bytes)", work.spot.shown, work.file.stamp.size);
        Ok(Preview::new(&text, fingerprint(work.file.stamp)))
    }

    fn run(&self, work: Work, ticket: &Ticket<'_>) -> Result<Outcome, ToolError> {
        let Work { spot, file, args } = work;
        let cx = ticket.context();
        let Part { mut bytes, truncated, digest, lines, unsteady } = match args.window {
            None => read_start(&spot.mount, &file, args.hashing, &spot.shown, cx)?,
            Some(window) => read_window(&spot.mount, &file, window, args.hashing, &spot.shown, cx)?,
        };
        if truncated && args.oversize == Oversize::Refuse {
            return Err(too_large(cx));
        }
        if let (true, Oversize::CutTo(most)) = (truncated, args.oversize) {
            bytes.truncate(most);
        }
        let payload = match args.encoding {
            Encoding::Utf8 => text_of(bytes, truncated, &spot.shown)?,
            Encoding::Base64 => STANDARD.encode(bytes),
        };
        let Args { encoding, window, .. } = args;
        Ok(Outcome {
            shown: spot.shown,
            payload,
            encoding,
            window,
            stamp: file.stamp,
            truncated,
            digest,
            lines,
            unsteady,
        })
    }
}

impl From<Outcome> for Value {
    fn from(outcome: Outcome) -> Self {
        let Outcome { mut payload, stamp, .. } = outcome;
        let from_start = outcome.encoding == Encoding::Utf8 && outcome.window.is_none_or(|window| window.first == 1);
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
            changed_during_read: outcome.unsteady,
        }
    }
}

/// What a read returns in the crewagent dialect.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Fields {
    path: String,
    /// Size of the whole file.
    bytes: u64,
    /// SHA-256 of the whole file.
    sha256: Option<String>,
    truncated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
    /// The first part, where the file is too large.
    #[serde(skip_serializing_if = "Option::is_none")]
    content_preview: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

impl From<Outcome> for Fields {
    fn from(outcome: Outcome) -> Self {
        let Outcome { shown: path, payload, stamp, truncated, digest, .. } = outcome;
        let (content, content_preview, hint) = if truncated {
            let hint = "the file is too large to be read whole; use fs.search, then fs.read with startLine and endLine";
            (None, Some(payload), Some(hint.to_owned()))
        } else {
            (Some(payload), None, None)
        };
        Self { path, bytes: stamp.size, sha256: digest.map(Digest::to_hex), truncated, content, content_preview, hint }
    }
}

fn window(first: Option<u64>, last: Option<u64>) -> Result<Option<Window>, ToolError> {
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
    Ok(Some(Window { first, last }))
}

fn too_large(cx: &Context<'_>) -> ToolError {
    ToolError::new(ErrorKind::ReadLimit, format!("file exceeds max_read_bytes ({})", cx.limits.read_bytes))
}
