//! File tools, one file each, and the list of them.

mod append_file;
mod apply_patch;
mod changes;
mod copy_file;
mod create_directory;
mod delete_file;
mod edit_args;
mod edit_file;
mod find_files;
mod get_file_info;
mod home;
mod layers;
mod list_directory;
mod move_file;
mod numbered_text;
mod patch_args;
mod read_args;
mod read_file;
mod search_args;
mod search_files;
mod text_edit;
mod undo;
mod write_file;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use ringfence_kernel::{
    CallContext, Dialect, DuplicateToolError, ErrorKind, ModelText, Ticket, ToolError, ToolRegistry, short_change_id,
};
use rustix::io::Errno;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::home::register_home;
pub use self::layers::CHECKPOINT_LAYER;
use crate::Fence;
use crate::mount::write_target::WriteTarget;
use crate::read::content::{decode_text, read_up_to};
use crate::root::FileToReplace;
use crate::sys::errno::errno_error;
use crate::txn::write::WriteResult;

/// Gives every file tool to a registry. The order is the order in which dialects list them.
pub fn register(registry: &mut ToolRegistry, fence: &Fence) -> Result<(), DuplicateToolError> {
    read_file::register(registry, fence)?;
    write_file::register(registry, fence)?;
    append_file::register(registry, fence)?;
    list_directory::register(registry, fence)?;
    edit_file::register(registry, fence)?;
    apply_patch::register(registry, fence)?;
    delete_file::register(registry, fence)?;
    move_file::register(registry, fence)?;
    copy_file::register(registry, fence)?;
    create_directory::register(registry, fence)?;
    get_file_info::register(registry, fence)?;
    find_files::register(registry, fence)?;
    search_files::register(registry, fence)?;
    undo::register(registry, fence)?;
    changes::register(registry, fence)?;
    layers::register(registry, fence)
}

/// Encoding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
enum ContentEncoding {
    #[default]
    #[serde(rename = "utf-8")]
    Utf8,
    #[serde(rename = "base64")]
    Base64,
}

impl ContentEncoding {
    fn decode(self, content: String) -> Result<Vec<u8>, ToolError> {
        match self {
            Self::Utf8 => Ok(content.into_bytes()),
            Self::Base64 => STANDARD.decode(content).map_err(|_| ToolError::invalid("content", "is not valid base64")),
        }
    }
}

/// Result in the standard dialect of every tool that writes a file.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct ChangedFile {
    /// The file, relative to the workspace.
    path: String,
    /// Its size in bytes now.
    size: u64,
    /// SHA-256 of its contents now; null when it is too large to hash, or a secret that was appended to.
    sha256: Option<String>,
    /// The id of this change; null if the file already had these contents.
    change: Option<String>,
    /// True when the file did not exist before.
    created: bool,
    /// Other hard links to the old file, which keep the old contents.
    #[serde(skip_serializing_if = "is_zero")]
    links_broken: u64,
    /// A sibling of this new file whose name differs only in letter case or in the encoding of accents: on other systems
    /// the two would be the same file.
    #[serde(skip_serializing_if = "Option::is_none")]
    collides_with: Option<String>,
    /// The verb of its text for an existing file.
    #[serde(skip)]
    verb: &'static str,
}

impl ChangedFile {
    fn new(shown: String, written: &WriteResult, ticket: &Ticket<'_>) -> Self {
        Self {
            path: shown,
            size: written.size,
            sha256: written.digest.map(|digest| digest.to_hex()),
            change: (!written.unchanged).then(|| ticket.change_id().to_owned()),
            created: written.created,
            links_broken: written.links_broken,
            collides_with: written.collides_with.clone(),
            verb: "replaced",
        }
    }

    /// The same with another verb for an existing file.
    fn with_verb(self, verb: &'static str) -> Self {
        Self { verb, ..self }
    }
}

impl ModelText for ChangedFile {
    fn model_text(&self, _: Dialect) -> String {
        let Self { path, size, change, created, links_broken, collides_with, verb, .. } = self;
        let mut text = match change {
            None => format!("{path} has these contents already"),
            Some(change) => {
                let verb = if *created { "created" } else { verb };
                format!("{verb} {path}, {size} bytes{}", change_note(change))
            }
        };
        if *links_broken > 0 {
            text.push_str(&format!("\n[{links_broken} other hard links keep the old contents]"));
        }
        if let Some(other) = collides_with {
            text.push_str(&format!("\n[on other systems {other} would be the same file]"));
        }
        text
    }
}

/// Notes that the session has seen the contents that a call left: it sent all of them, or had seen those before.
fn remember_contents(written: &WriteResult, cx: &CallContext<'_>) {
    if let (Some(digest), Some(memory)) = (written.digest, cx.memory()) {
        memory.seen.add(digest.bytes());
    }
}

/// The ID of a change behind what it did, in texts for models.
fn change_note(change: &str) -> String {
    format!(" ({})", short_change_id(change))
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Refuses content that is too large, before anything is changed.
fn check_size(what: &str, setting: &str, size: u64, limit: u64) -> Result<(), ToolError> {
    if size <= limit {
        return Ok(());
    }
    let message = format!("{what} has {size} bytes and exceeds {setting} ({limit})");
    Err(ToolError::new(ErrorKind::WriteLimit, message).detail("limit", limit))
}

/// The text of a file that is about to be changed.
fn read_text(target: &WriteTarget, old: &FileToReplace, cx: &CallContext<'_>) -> Result<String, ToolError> {
    decode_text(read_bytes(target, old, cx)?, false, &target.shown)
}

/// The contents of a file that is about to be changed.
fn read_bytes(target: &WriteTarget, old: &FileToReplace, cx: &CallContext<'_>) -> Result<Vec<u8>, ToolError> {
    let what = format!("`{}`", target.shown);
    check_size(&what, "max_appended_file_bytes", old.stat.size, cx.limits.appended_file_bytes)?;
    if old.stat.denies_read() {
        return Err(errno_error(Errno::ACCESS, &target.shown));
    }
    read_up_to(&old.fd, cx.limits.appended_file_bytes, cx).map_err(|errno| errno_error(errno, &target.shown))
}

/// A pattern for paths below a directory. Without a slash it is for names, at any depth.
fn glob(pattern: &str) -> Result<GlobSet, ToolError> {
    const LONGEST: usize = 1024;
    let refuse = |problem: &str| Err(ToolError::invalid("glob", problem));
    if pattern.is_empty() {
        return refuse("must not be empty");
    }
    if pattern.len() > LONGEST {
        return refuse("must have at most 1024 bytes");
    }
    if pattern.matches('{').count() > 10 {
        return refuse("must have at most 10 `{`");
    }
    if pattern.starts_with('/') || pattern.split('/').any(|part| part == "..") {
        return refuse("must be relative to path, without `..`");
    }
    let pattern = if pattern.contains('/') { pattern.to_owned() } else { format!("**/{pattern}") };
    let built = GlobBuilder::new(&pattern).literal_separator(true).backslash_escape(true).build();
    // A set is built by a step that can say no; a single matcher is not.
    let set = built.and_then(|glob| GlobSetBuilder::new().add(glob).build());
    set.or_else(|error| refuse(&format!("is not a valid pattern: {}", error.kind())))
}
