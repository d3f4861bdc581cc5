//! `write_file`: create a file or replace its contents.

use ringfence_kernel::{
    CallContext, Dialect, DuplicateToolError, ErrorKind, PolicyAction, Preview, ResourceAccess, Ticket, Tool,
    ToolBinding, ToolError, ToolPlan, ToolRegistry, lenient,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Fence;
use crate::fence::PathArg;
use crate::mount::LocatedPath;
use crate::mount::write_target::{ParentDirPolicy, WriteTarget, WriteTargetKind};
use crate::preview::{DiffPreview, FileContents, check_previewed, check_still_planned, fingerprint};
use crate::read::content::{hash, hash_up_to};
use crate::read::digest::{Digest, check_match};
use crate::sys::stat::{FileKind, FileStat};
use crate::tools::{ChangedFile, ContentEncoding, check_size, remember_contents};
use crate::txn::stage::FileBody;
use crate::txn::write::replace;

pub(super) fn register(registry: &mut ToolRegistry, fence: &Fence) -> Result<(), DuplicateToolError> {
    let standard = ToolBinding::standard_with_text::<StandardWriteArgs, ChangedFile>("write_file");
    let miniclaw = ToolBinding::miniclaw::<MiniclawWriteArgs, ChangedFile>("write_file", |changed: &ChangedFile| {
        format!("ok: wrote {} bytes to {}", changed.size, changed.path)
    });
    let crewagent = ToolBinding::crewagent::<CrewagentWriteArgs, CrewagentWriteResult>("fs.write");
    let claude = ToolBinding::model::<ClaudeWriteArgs, ChangedFile>(Dialect::Claude, "Write");
    let gemini = ToolBinding::model::<GeminiWriteArgs, ChangedFile>(Dialect::Gemini, "write_file");
    registry.register(WriteFile { fence: fence.clone() }, [standard, miniclaw, crewagent, claude, gemini])
}

struct WriteFile {
    fence: Fence,
}

/// Create a file, or replace all of its contents. For a small change to an existing file, use `edit_file`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct StandardWriteArgs {
    /// Relative to the workspace.
    #[serde(alias = "file_path", alias = "filePath")]
    path: String,
    /// New contents.
    content: String,
    #[serde(default)]
    encoding: ContentEncoding,
    /// Create missing parent directories.
    #[serde(default, deserialize_with = "lenient::scalar")]
    create_dirs: bool,
    /// Only if the file has this SHA-256 now.
    if_match_sha256: Option<String>,
}

/// Write a text file in the workspace: create it, or replace its contents. Missing directories are created.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct MiniclawWriteArgs {
    /// Path of the file, relative to the workspace.
    path: String,
    /// The new contents of the file.
    content: String,
}

/// Write a text file: create it, or replace its contents. Missing directories are created.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CrewagentWriteArgs {
    /// Path of the file, starting with the alias of a writable mount.
    path: String,
    /// The new contents of the file.
    content: String,
    /// Write only if this is the file's current SHA-256, as returned by `fs.read`.
    if_match_sha256: Option<String>,
}

/// Create a file, or replace all of its contents. Read an existing file first; to change a part of it, use `Edit`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ClaudeWriteArgs {
    #[serde(alias = "path", alias = "filePath")]
    file_path: String,
    content: String,
}

/// Create a file, or replace all of its contents. Read an existing file first; to change a part of it, use `replace`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct GeminiWriteArgs {
    #[serde(alias = "path", alias = "filePath")]
    file_path: String,
    content: String,
}

/// Result in the crewagent dialect.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct CrewagentWriteResult {
    path: String,
    bytes_written: u64,
    sha256_after: Option<String>,
}

impl From<ChangedFile> for CrewagentWriteResult {
    fn from(changed: ChangedFile) -> Self {
        Self { path: changed.path, bytes_written: changed.size, sha256_after: changed.sha256 }
    }
}

struct Args {
    path: PathArg,
    content: Vec<u8>,
    parents: ParentDirPolicy,
    if_match: Option<Digest>,
    overwrite: OverwritePolicy,
}

/// Files that may be replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OverwritePolicy {
    Any,
    /// Those whose contents this session has read or written. Holds the names of the tools that read and edit one.
    Seen {
        read: &'static str,
        edit: &'static str,
    },
}

impl From<ClaudeWriteArgs> for Args {
    fn from(args: ClaudeWriteArgs) -> Self {
        Self::for_model(args.file_path, args.content, OverwritePolicy::Seen { read: "Read", edit: "Edit" })
    }
}

impl From<GeminiWriteArgs> for Args {
    fn from(args: GeminiWriteArgs) -> Self {
        Self::for_model(args.file_path, args.content, OverwritePolicy::Seen { read: "read_file", edit: "replace" })
    }
}

impl Args {
    fn for_model(path: String, content: String, overwrite: OverwritePolicy) -> Self {
        Self {
            path: PathArg::Standard(path),
            content: content.into_bytes(),
            parents: ParentDirPolicy::CreateMissing,
            if_match: None,
            overwrite,
        }
    }
}

impl TryFrom<StandardWriteArgs> for Args {
    type Error = ToolError;

    fn try_from(args: StandardWriteArgs) -> Result<Self, ToolError> {
        Ok(Self {
            path: PathArg::Standard(args.path),
            content: args.encoding.decode(args.content)?,
            parents: if args.create_dirs { ParentDirPolicy::CreateMissing } else { ParentDirPolicy::MustExist },
            if_match: args.if_match_sha256.map(|hex| Digest::from_hex("ifMatchSha256", &hex)).transpose()?,
            overwrite: OverwritePolicy::Any,
        })
    }
}

impl TryFrom<CrewagentWriteArgs> for Args {
    type Error = ToolError;

    fn try_from(args: CrewagentWriteArgs) -> Result<Self, ToolError> {
        Ok(Self {
            path: PathArg::Mounted(args.path),
            content: args.content.into_bytes(),
            parents: ParentDirPolicy::CreateMissing,
            if_match: args.if_match_sha256.map(|hex| Digest::from_hex("ifMatchSha256", &hex)).transpose()?,
            overwrite: OverwritePolicy::Any,
        })
    }
}

impl From<MiniclawWriteArgs> for Args {
    fn from(args: MiniclawWriteArgs) -> Self {
        Self {
            path: PathArg::workspace_unless_blank(args.path),
            content: args.content.into_bytes(),
            parents: ParentDirPolicy::CreateMissing,
            if_match: None,
            overwrite: OverwritePolicy::Any,
        }
    }
}

struct WriteFilePlan {
    target: WriteTarget,
    planned_stat: Option<FileStat>,
    content: Vec<u8>,
    if_match: Option<Digest>,
    /// Digest of the previewed old contents.
    previewed: Option<Digest>,
}

impl Tool for WriteFile {
    type Args = Args;
    type Prepared = WriteFilePlan;
    type Outcome = ChangedFile;
    const ACTIONS: &'static [PolicyAction] = &[PolicyAction::Create, PolicyAction::Overwrite, PolicyAction::Lose];
    const IDEMPOTENT: bool = true;

    fn plan(&self, args: Args, cx: &CallContext<'_>) -> Result<ToolPlan<WriteFilePlan>, ToolError> {
        let Args { path, content, parents, mut if_match, overwrite } = args;
        let located = self.fence.locate_arg(&path, cx)?;
        check_size("content", "max_write_bytes", content.len() as u64, cx.limits.write_bytes)?;
        let target = WriteTarget::find(&located, WriteTargetKind::File, parents)?;
        let seen = target.found;
        if let (Some(old), OverwritePolicy::Seen { read, edit }) = (&seen, overwrite) {
            if_match = check_seen(&located, &target, old, (read, edit), cx)?;
        }
        let action = if seen.is_some() { PolicyAction::Overwrite } else { PolicyAction::Create };
        let mut accesses = vec![ResourceAccess { action, resource: target.resource() }];
        accesses.extend(seen.map(|seen| target.loss(&seen, cx)).transpose()?.flatten());
        Ok(ToolPlan {
            accesses,
            prepared: WriteFilePlan { target, planned_stat: seen, content, if_match, previewed: None },
        })
    }

    fn preview(&self, work: &mut WriteFilePlan, cx: &CallContext<'_>) -> Result<Preview, ToolError> {
        let WriteFilePlan { target, planned_stat: seen, content, if_match, previewed: shown } = work;
        let text = match seen {
            Some(seen) => format!("replace `{}` ({} bytes) with {} bytes", target.shown, seen.size, content.len()),
            None => format!("create `{}` with {} bytes", target.shown, content.len()),
        };
        let old = seen.map(|seen| FileContents::read_target(target, &seen, cx)).transpose()?;
        let mut diffs = DiffPreview::new();
        diffs.add(&target.shown, old.as_ref(), Some(&FileContents::from_bytes(content)));
        *shown = old.as_ref().and_then(|old| old.digest);
        let bound = fingerprint((*seen, *shown));
        // Of a file that is too large to be read here it is not known.
        let is_known = old.is_none() || shown.is_some();
        let failure = check_match(&target.shown, if_match.filter(|_| is_known), *shown).err();
        let failure = failure.or_else(|| target.replacement_failure());
        Ok(Preview::new(&text, bound)
            .with_failure(failure)
            .with_body(diffs.into_body())
            .with_secret(target.resource().effective_sensitivity().secret))
    }

    fn run(&self, work: WriteFilePlan, ticket: &Ticket<'_>) -> Result<ChangedFile, ToolError> {
        let WriteFilePlan { target, planned_stat: seen, content, if_match, previewed: shown } = work;
        check_still_planned(&target, seen.as_ref(), ticket)?;
        let written = replace(&target, seen, ticket, |old| {
            check_previewed(&target, shown, old, ticket.context())?;
            if if_match.is_some() {
                let hash = |old: &crate::root::FileToReplace| {
                    hash_up_to(std::os::fd::AsFd::as_fd(&old.fd), old.stat.size, &target.shown, ticket.context())
                };
                check_match(&target.shown, if_match, old.map(hash).transpose()?)?;
            }
            Ok(FileBody::Bytes(content))
        })?;
        remember_contents(&written, ticket.context());
        Ok(ChangedFile::new(target.shown, &written, ticket))
    }
}

/// The digest of the contents that are replaced, if this session has seen them. A file without contents has none to see.
fn check_seen(
    located: &LocatedPath,
    target: &WriteTarget,
    old: &FileStat,
    (read_tool, edit_tool): (&str, &str),
    cx: &CallContext<'_>,
) -> Result<Option<Digest>, ToolError> {
    if old.size == 0 || old.kind != FileKind::File {
        return Ok(None);
    }
    let refuse = |advice: &str| {
        let message = format!(
            "`{}` exists with {} bytes that this session has not seen as they are now; nothing was written",
            target.shown, old.size
        );
        Err(ToolError::new(ErrorKind::Conflict, message).hint(advice))
    };
    let file = match located.open_content(cx) {
        Ok(file) if file.stat.id == old.id => file,
        // It cannot be read, so it was not.
        _ => return refuse("delete it first, or write another file"),
    };
    let digest = hash(&located.mount.digests, &file, &target.shown, cx)?;
    let is_seen = |digest: &Digest| cx.memory().is_some_and(|memory| memory.seen.contains(&digest.bytes()));
    match digest {
        Some(digest) if is_seen(&digest) => Ok(Some(digest)),
        // Without a digest, nothing tells whether it was.
        None => refuse(&format!("it is too large to be replaced whole; change it with {edit_tool}")),
        Some(_) => refuse(&format!("read it with {read_tool} first")),
    }
}
