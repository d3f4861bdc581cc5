//! `read_file`: read a file, or some of its lines.

use std::os::fd::AsFd as _;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ringfence_kernel::{
    CallContext, Dialect, DuplicateToolError, ErrorKind, IoMode, KeptOutput, MODEL_TEXT_BYTES, ModelText, OUTPUT_MOUNT,
    OUTPUT_PREFIX, OutputId, PolicyAction, PolicyResource, Preview, ReplyImage, ResourceAccess, Ticket, Tool,
    ToolBinding, ToolError, ToolPlan, ToolRegistry,
};
use rustix::io::Errno;
use schemars::JsonSchema;
use serde::Serialize;

use crate::Fence;
use crate::fence::PathArg;
use crate::mount::LocatedPath;
use crate::preview::fingerprint;
use crate::read::content::{
    FileExcerpt, LineRange, NONBLOCKING_BYTES, WindowOverflow, decode_text, read_chunk, read_start, read_up_to,
    read_window,
};
use crate::read::digest::Digest;
use crate::read::image::{ImageHeader, MAGIC_BYTES, image_header, image_type};
use crate::root::OpenFile;
use crate::sys::errno::errno_error;
use crate::sys::stat::timestamp;
use crate::tools::ContentEncoding;
use crate::tools::list_directory::ListDirectoryPlan;
use crate::tools::numbered_text::{NumberedText, count_lines};
use crate::tools::read_args::{
    Args, ClaudeReadArgs, CodexReadArgs, CodexViewImageArgs, CrewagentReadArgs, GeminiReadArgs, MiniclawReadArgs,
    OversizePolicy, ReaderKind, StandardReadArgs,
};

/// Images with more bytes, or more pixels in a row or a column, are not shown: models' APIs refuse them. As base64 these
/// are 5,000,000 bytes.
const MOST_IMAGE_BYTES: u64 = 3_750_000;
const MOST_PIXELS: u32 = 8000;

const BOM: char = '\u{feff}';

pub(super) fn register(registry: &mut ToolRegistry, fence: &Fence) -> Result<(), DuplicateToolError> {
    let standard = ToolBinding::standard_with_text::<StandardReadArgs, StandardReadResult>("read_file");
    let miniclaw = ToolBinding::miniclaw::<MiniclawReadArgs, StandardReadResult>("read_file", |outcome: &Outcome| {
        format!("ok: read {} bytes from {}\n{}", outcome.payload.len(), outcome.shown, outcome.payload)
    });
    let crewagent = ToolBinding::crewagent::<CrewagentReadArgs, CrewagentReadResult>("fs.read");
    let claude = ToolBinding::model::<ClaudeReadArgs, StandardReadResult>(Dialect::Claude, "Read");
    let gemini = ToolBinding::model::<GeminiReadArgs, StandardReadResult>(Dialect::Gemini, "read_file");
    let codex = ToolBinding::model::<CodexReadArgs, StandardReadResult>(Dialect::Codex, "read_file");
    let viewer = ToolBinding::model::<CodexViewImageArgs, StandardReadResult>(Dialect::Codex, "view_image");
    let bindings = [standard, miniclaw, crewagent, claude, gemini, codex, viewer];
    registry.register(ReadFile { fence: fence.clone() }, bindings)
}

struct ReadFile {
    fence: Fence,
}

enum ReadFilePlan {
    File {
        located: LocatedPath,
        file: OpenFile,
        args: Args,
    },
    Directory(ListDirectoryPlan),
    /// A kept output of the session.
    Output(KeptOutput, Args),
}

struct Outcome {
    shown: String,
    /// Text as it is in the file, or base64. For a model, the list of a directory, or a description of an image.
    payload: String,
    encoding: ContentEncoding,
    window: Option<LineRange>,
    size: u64,
    modified: String,
    links: u64,
    truncated: bool,
    digest: Option<Digest>,
    lines: Option<u64>,
    changed_during_read: bool,
    form: ReadForm,
}

/// The form of what was read.
#[derive(Clone, Debug, Default)]
enum ReadForm {
    #[default]
    File,
    Output,
    Directory,
    Image(ReplyImage),
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
    /// The number of the first line of `content`.
    #[serde(skip)]
    first_line: u64,
    #[serde(skip)]
    encoding: ContentEncoding,
    #[serde(skip)]
    form: ReadForm,
}

impl Tool for ReadFile {
    type Args = Args;
    type Prepared = ReadFilePlan;
    type Outcome = Outcome;
    const ACTIONS: &'static [PolicyAction] = &[PolicyAction::Read, PolicyAction::List];
    const IDEMPOTENT: bool = true;
    const SUPPORTS_NON_BLOCKING: bool = true;

    fn plan(&self, args: Args, cx: &CallContext<'_>) -> Result<ToolPlan<ReadFilePlan>, ToolError> {
        let PathArg::Standard(path) = &args.path else { return self.plan_file(args, cx) };
        if let Some(output) = cx.memory().and_then(|memory| memory.outputs.get(path)) {
            return Ok(plan_output(output, args));
        }
        let is_output_id = OutputId::from_path(path).is_some();
        let path = path.clone();
        self.plan_file(args, cx).map_err(|error| match error.kind {
            ErrorKind::NotFound | ErrorKind::InvalidPath if is_output_id => {
                let message = format!("`{path}` is not kept any more: only the last outputs of this session are");
                ToolError::new(ErrorKind::NotFound, message).hint("run the program again")
            }
            _ => error,
        })
    }

    fn preview(&self, work: &mut ReadFilePlan, _: &CallContext<'_>) -> Result<Preview, ToolError> {
        Ok(match work {
            ReadFilePlan::File { located, file, .. } => {
                let text = format!("read `{}` ({} bytes)", located.shown, file.stat.size);
                Preview::new(&text, fingerprint(file.stat))
            }
            ReadFilePlan::Directory(list) => list.preview(),
            ReadFilePlan::Output(output, _) => {
                Preview::new(&format!("read an output of {} bytes", output.text.len()), "")
            }
        })
    }

    fn run(&self, work: ReadFilePlan, ticket: &Ticket<'_>) -> Result<Outcome, ToolError> {
        let cx = ticket.context();
        match work {
            ReadFilePlan::Directory(list) => list_for_model(list, cx),
            ReadFilePlan::Output(output, args) => Ok(read_output(&output, &args)),
            ReadFilePlan::File { located, file, args } => {
                let outcome = match args.reader {
                    ReaderKind::Program => read_for_program(&located, &file, &args, cx),
                    ReaderKind::Model | ReaderKind::ImageViewer => read_for_model(&located, &file, &args, cx),
                }?;
                outcome.remember(args.reader, cx);
                Ok(outcome)
            }
        }
    }
}

impl ReadFile {
    fn plan_file(&self, args: Args, cx: &CallContext<'_>) -> Result<ToolPlan<ReadFilePlan>, ToolError> {
        let located = self.fence.locate_arg(&args.path, cx)?;
        let mut file = match located.open_content(cx) {
            Err(error) if error.kind == ErrorKind::WrongType && args.reader == ReaderKind::Model => {
                return plan_directory(located, error, cx);
            }
            opened => opened?,
        };
        // A long read is started once, on a thread that may block.
        let is_long = match args.reader {
            ReaderKind::Program => args.window.is_some() || file.stat.size > NONBLOCKING_BYTES,
            ReaderKind::Model | ReaderKind::ImageViewer => file.stat.size > NONBLOCKING_BYTES,
        };
        if cx.io_mode == IoMode::NonBlocking && is_long {
            return Err(cx.would_block());
        }
        if args.oversize == OversizePolicy::Refuse && file.stat.size > cx.limits.read_bytes {
            return Err(too_large_error(cx));
        }
        let place = located.resource_of(&mut file, cx)?;
        Ok(ToolPlan {
            accesses: vec![ResourceAccess { action: PolicyAction::Read, resource: place }],
            prepared: ReadFilePlan::File { located, file, args },
        })
    }
}

/// A model that reads a directory gets its list.
fn plan_directory(
    located: LocatedPath,
    error: ToolError,
    cx: &CallContext<'_>,
) -> Result<ToolPlan<ReadFilePlan>, ToolError> {
    if cx.io_mode == IoMode::NonBlocking {
        return Err(cx.would_block());
    }
    // Where it is neither, the first error is the one that helps.
    let (access, list) = ListDirectoryPlan::for_model(located, cx).map_err(|_| error)?;
    Ok(ToolPlan { accesses: vec![access], prepared: ReadFilePlan::Directory(list) })
}

fn plan_output(output: KeptOutput, args: Args) -> ToolPlan<ReadFilePlan> {
    let shown = match &args.path {
        PathArg::Standard(path) | PathArg::Workspace(path) | PathArg::Mounted(path) => path.clone(),
    };
    let resource = PolicyResource {
        mount: Arc::from(OUTPUT_MOUNT),
        requested_path: shown.trim_start_matches(OUTPUT_PREFIX).to_owned(),
        display_path: shown,
        ..PolicyResource::default()
    };
    let accesses = vec![ResourceAccess { action: PolicyAction::Read, resource }];
    ToolPlan { accesses, prepared: ReadFilePlan::Output(output, args) }
}

fn read_for_program(
    located: &LocatedPath,
    file: &OpenFile,
    args: &Args,
    cx: &CallContext<'_>,
) -> Result<Outcome, ToolError> {
    let digests = &located.mount.digests;
    let FileExcerpt { mut bytes, truncated, digest, lines, changed_during_read } = match args.window {
        None => read_start(digests, file, args.hashing, &located.shown, cx)?,
        Some(window) => read_window(digests, file, (window, WindowOverflow::Refuse), args.hashing, &located.shown, cx)?,
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
    let outcome = Outcome::of_file(located, file, args);
    Ok(Outcome { payload, truncated, digest, lines, changed_during_read, ..outcome })
}

/// The lines of a page, or an image.
fn read_for_model(
    located: &LocatedPath,
    file: &OpenFile,
    args: &Args,
    cx: &CallContext<'_>,
) -> Result<Outcome, ToolError> {
    let fail = |errno| match errno {
        Errno::AGAIN if cx.io_mode == IoMode::NonBlocking => cx.would_block(),
        other => errno_error(other, &located.shown),
    };
    let mut start = [0; MAGIC_BYTES];
    let length = read_chunk(file.fd.as_fd(), &mut start, 0, cx).map_err(fail)?;
    if image_type(&start[..length]).is_some() {
        return read_image(located, file, args, cx);
    }
    if args.reader == ReaderKind::ImageViewer {
        let message = format!("`{}` is not a PNG, JPEG, GIF or WebP image", located.shown);
        return Err(ToolError::new(ErrorKind::WrongType, message));
    }
    let (shown, digests) = (&located.shown, &located.mount.digests);
    let outcome = Outcome::of_file(located, file, args);
    let window = args.window.unwrap_or(LineRange { first: 1, last: u64::MAX });
    if file.stat.size <= NONBLOCKING_BYTES {
        let FileExcerpt { bytes, truncated, digest, changed_during_read, .. } =
            read_start(digests, file, args.hashing, shown, cx)?;
        let text = decode_text(bytes, truncated, shown).map_err(not_text_hint)?;
        let (payload, lines) = (lines_of(&text, window), (!truncated).then(|| count_lines(&text)));
        return Ok(Outcome { payload, truncated, digest, lines, changed_during_read, ..outcome });
    }
    let page = (window, WindowOverflow::Truncate(MODEL_TEXT_BYTES as u64));
    let FileExcerpt { bytes, truncated, digest, lines, changed_during_read } =
        read_window(digests, file, page, args.hashing, shown, cx)?;
    let payload = decode_text(bytes, truncated, shown).map_err(not_text_hint)?;
    Ok(Outcome { payload, truncated, digest, lines, changed_during_read, ..outcome })
}

fn read_image(located: &LocatedPath, file: &OpenFile, args: &Args, cx: &CallContext<'_>) -> Result<Outcome, ToolError> {
    let shown = &located.shown;
    if cx.io_mode == IoMode::NonBlocking {
        return Err(cx.would_block());
    }
    let refuse = |why: &str| {
        let error = ToolError::new(ErrorKind::ReadLimit, format!("`{shown}` is an image {why}"));
        Err(error.hint("make a smaller copy of it and read that"))
    };
    let bytes = read_up_to(&file.fd, MOST_IMAGE_BYTES + 1, cx).map_err(|errno| errno_error(errno, shown))?;
    if bytes.len() as u64 > MOST_IMAGE_BYTES {
        return refuse(&format!("of {} bytes; at most {MOST_IMAGE_BYTES} can be shown", file.stat.size));
    }
    let Some(ImageHeader { media_type, width, height }) = image_header(&bytes) else {
        return Err(ToolError::new(ErrorKind::NotText, format!("`{shown}` is an image with a damaged header")));
    };
    if width > MOST_PIXELS || height > MOST_PIXELS {
        return refuse(&format!("of {width}×{height} pixels; at most {MOST_PIXELS}×{MOST_PIXELS} can be shown"));
    }
    let payload = format!("[{shown}: {media_type}, {width}×{height} pixels, {} bytes]", bytes.len());
    let digest = Some(Digest::of(&bytes));
    let form = ReadForm::Image(ReplyImage { media_type, bytes: Arc::from(bytes) });
    Ok(Outcome { payload, digest, form, ..Outcome::of_file(located, file, args) })
}

fn list_for_model(list: ListDirectoryPlan, cx: &CallContext<'_>) -> Result<Outcome, ToolError> {
    let (shown, payload) = list.run_for_model(cx)?;
    Ok(Outcome {
        shown,
        size: 0,
        payload,
        encoding: ContentEncoding::Utf8,
        window: None,
        modified: String::new(),
        links: 1,
        truncated: false,
        digest: None,
        lines: None,
        changed_during_read: false,
        form: ReadForm::Directory,
    })
}

fn read_output(output: &KeptOutput, args: &Args) -> Outcome {
    let payload = match args.window {
        None => output.text.to_string(),
        Some(window) => lines_of(&output.text, window),
    };
    Outcome {
        shown: String::new(),
        payload,
        encoding: ContentEncoding::Utf8,
        window: args.window,
        size: output.text.len() as u64,
        modified: humantime::format_rfc3339_millis(output.time).to_string(),
        links: 1,
        truncated: false,
        digest: None,
        lines: Some(count_lines(&output.text)),
        changed_during_read: false,
        form: ReadForm::Output,
    }
}

impl Outcome {
    /// An outcome about a file, before anything of it is read.
    fn of_file(located: &LocatedPath, file: &OpenFile, args: &Args) -> Self {
        Self {
            shown: located.shown.clone(),
            payload: String::new(),
            encoding: args.encoding,
            window: args.window,
            size: file.stat.size,
            modified: timestamp(file.stat.modified),
            links: file.stat.links,
            truncated: false,
            digest: None,
            lines: None,
            changed_during_read: false,
            form: ReadForm::File,
        }
    }
}

impl Outcome {
    /// Notes what of the file's contents the session has seen: lines that are shown whole, or all of it.
    fn remember(&self, reader: ReaderKind, cx: &CallContext<'_>) {
        let (Some(digest), Some(memory), false) = (self.digest, cx.memory(), self.changed_during_read) else { return };
        match (&self.form, reader) {
            (ReadForm::Image(_), _) => memory.seen.add(digest.bytes()),
            (ReadForm::File, ReaderKind::Model) => {
                let lines = NumberedText {
                    content: &self.payload,
                    first: self.window.map_or(1, |window| window.first),
                    total: self.lines,
                    truncated: self.truncated,
                    noun: "file",
                };
                memory.seen.add_lines(digest.bytes(), lines.whole_lines(), self.lines);
            }
            (ReadForm::File, ReaderKind::Program) if self.window.is_none() && !self.truncated => {
                memory.seen.add(digest.bytes());
            }
            (ReadForm::File | ReadForm::Output | ReadForm::Directory, _) => {}
        }
    }
}

fn lines_of(text: &str, window: LineRange) -> String {
    let skipped = usize::try_from(window.first - 1).unwrap_or(usize::MAX);
    let wanted = usize::try_from(window.last - window.first).unwrap_or(usize::MAX).saturating_add(1);
    text.split_inclusive('\n').skip(skipped).take(wanted).collect()
}

fn not_text_hint(error: ToolError) -> ToolError {
    match error.kind {
        ErrorKind::NotText => error.hint("look at it with a program"),
        _ => error,
    }
}

impl From<Outcome> for StandardReadResult {
    fn from(outcome: Outcome) -> Self {
        let mut payload = outcome.payload;
        let from_start =
            outcome.encoding == ContentEncoding::Utf8 && outcome.window.is_none_or(|window| window.first == 1);
        let bom = from_start && payload.starts_with(BOM);
        if bom {
            payload.remove(0);
        }
        Self {
            content: payload,
            size: outcome.size,
            modified: outcome.modified,
            sha256: outcome.digest.map(Digest::to_hex),
            truncated: outcome.truncated,
            total_lines: outcome.lines,
            bom,
            links: Some(outcome.links).filter(|links| *links > 1),
            changed_during_read: outcome.changed_during_read,
            first_line: outcome.window.map_or(1, |window| window.first),
            encoding: outcome.encoding,
            form: outcome.form,
        }
    }
}

impl ModelText for StandardReadResult {
    fn model_text(&self, dialect: Dialect) -> String {
        let noun = match &self.form {
            ReadForm::Directory | ReadForm::Image(_) => return self.content.clone(),
            ReadForm::File if self.encoding == ContentEncoding::Base64 => return self.content.clone(),
            ReadForm::File => "file",
            ReadForm::Output => "output",
        };
        let whole = || (!self.truncated && self.first_line == 1).then(|| count_lines(&self.content));
        let lines = NumberedText {
            content: &self.content,
            first: self.first_line,
            total: self.total_lines.or_else(whole),
            truncated: self.truncated,
            noun,
        };
        let mut text = lines.to_text(dialect);
        if self.changed_during_read {
            text.push_str("\n[the file was modified while it was read]");
        }
        text
    }

    fn image(&self) -> Option<ReplyImage> {
        match &self.form {
            ReadForm::Image(image) => Some(image.clone()),
            ReadForm::File | ReadForm::Output | ReadForm::Directory => None,
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
        let Outcome { shown: path, payload, size, truncated, digest, .. } = outcome;
        let (content, content_preview, hint) = if truncated {
            let hint = "the file is too large to read whole; use fs.search, then fs.read with startLine and endLine";
            (None, Some(payload), Some(hint.to_owned()))
        } else {
            (Some(payload), None, None)
        };
        Self { path, bytes: size, sha256: digest.map(Digest::to_hex), truncated, content, content_preview, hint }
    }
}

fn too_large_error(cx: &CallContext<'_>) -> ToolError {
    ToolError::new(ErrorKind::ReadLimit, format!("file exceeds max_read_bytes ({})", cx.limits.read_bytes))
}
