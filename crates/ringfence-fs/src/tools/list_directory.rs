//! `list_directory` and `list_dir`: list a directory.

use std::fmt::Write as _;
use std::os::fd::{AsFd, OwnedFd};

use ringfence_kernel::{
    CallContext, Dialect, DirectoryEntries, DuplicateToolError, ModelText, PolicyAction, PolicyResource, Preview,
    ResourceAccess, Ticket, Tool, ToolBinding, ToolError, ToolPlan, ToolRegistry, lenient,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Fence;
use crate::fence::PathArg;
use crate::mount::LocatedPath;
use crate::path::name::{escape, escape_into, is_non_utf8};
use crate::root::walk::{TempVisibility, TreeWalk, WalkStep, read_directory};
use crate::root::{OpenFile, stat};
use crate::sys::errno::errno_error;
use crate::sys::stat::{FileKind, FileStat, timestamp};

pub(super) fn register(registry: &mut ToolRegistry, fence: &Fence) -> Result<(), DuplicateToolError> {
    let standard = ToolBinding::standard_with_text::<StandardListArgs, StandardListResult>("list_directory");
    let miniclaw = ToolBinding::miniclaw::<MiniclawListArgs, StandardListResult>("list_dir", Outcome::to_text);
    let crewagent = ToolBinding::crewagent::<CrewagentListArgs, CrewagentListResult>("fs.list");
    let gemini = ToolBinding::model::<GeminiListArgs, StandardListResult>(Dialect::Gemini, "list_directory");
    registry.register(ListDirectory { fence: fence.clone() }, [standard, miniclaw, crewagent, gemini])
}

struct ListDirectory {
    fence: Fence,
}

/// List a directory, sorted by name. Links are listed but never followed.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct StandardListArgs {
    /// Directory to list; default: the workspace.
    #[serde(default, alias = "dir_path", alias = "directory")]
    path: Option<String>,
    /// Include subdirectories.
    #[serde(default, deserialize_with = "lenient::scalar")]
    recursive: bool,
    /// Include names that start with a dot.
    #[serde(default, deserialize_with = "lenient::scalar")]
    include_hidden: bool,
}

/// List a directory: names, and sizes of files.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct GeminiListArgs {
    #[serde(default, alias = "path", alias = "directory")]
    dir_path: Option<String>,
}

/// List the entries of a directory in the workspace.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct MiniclawListArgs {
    /// Path of the directory, relative to the workspace; default: the workspace itself.
    #[serde(default)]
    path: Option<String>,
}

/// List the entries of a directory. Directories end in `/`; hidden entries and links are omitted.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CrewagentListArgs {
    /// Path of the directory, starting with a mount alias.
    path: String,
}

struct Args {
    path: PathArg,
    depth: ListDepth,
    hidden: HiddenEntryListing,
    links: SymlinkListing,
    details: DetailListing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListDepth {
    One,
    All,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HiddenEntryListing {
    Included,
    Excluded,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SymlinkListing {
    Included,
    Excluded,
}

/// Whether sizes and times are listed, for which every entry is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DetailListing {
    Included,
    Excluded,
}

impl From<StandardListArgs> for Args {
    fn from(args: StandardListArgs) -> Self {
        Self {
            path: PathArg::directory(args.path),
            depth: if args.recursive { ListDepth::All } else { ListDepth::One },
            hidden: if args.include_hidden { HiddenEntryListing::Included } else { HiddenEntryListing::Excluded },
            links: SymlinkListing::Included,
            details: DetailListing::Included,
        }
    }
}

impl From<GeminiListArgs> for Args {
    fn from(args: GeminiListArgs) -> Self {
        Self {
            path: PathArg::directory(args.dir_path),
            depth: ListDepth::One,
            hidden: HiddenEntryListing::Included,
            links: SymlinkListing::Included,
            details: DetailListing::Included,
        }
    }
}

impl From<MiniclawListArgs> for Args {
    fn from(args: MiniclawListArgs) -> Self {
        let path = args.path.filter(|path| !path.trim().is_empty()).unwrap_or_else(|| ".".to_owned());
        Self {
            path: PathArg::workspace_unless_blank(path),
            depth: ListDepth::One,
            hidden: HiddenEntryListing::Included,
            links: SymlinkListing::Included,
            details: DetailListing::Included,
        }
    }
}

impl From<CrewagentListArgs> for Args {
    fn from(args: CrewagentListArgs) -> Self {
        Self {
            path: PathArg::Mounted(args.path),
            depth: ListDepth::One,
            hidden: HiddenEntryListing::Excluded,
            links: SymlinkListing::Excluded,
            details: DetailListing::Excluded,
        }
    }
}

pub(super) struct ListDirectoryPlan {
    located: LocatedPath,
    resource: PolicyResource,
    directory: OwnedFd,
    /// Its resolved path below the root of the mount.
    real_path: String,
    depth: ListDepth,
    hidden: HiddenEntryListing,
    links: SymlinkListing,
    details: DetailListing,
}

struct Outcome {
    shown: String,
    entries: Vec<NamedEntry>,
    total: u64,
    unreadable: u64,
    /// Names in the listed directory that a mount has too.
    shadowed: Vec<String>,
}

/// An entry of a listing.
struct NamedEntry {
    name: String,
    kind: FileKind,
    /// Nothing where its size and time are not listed.
    stat: Option<FileStat>,
}

/// Result in the standard dialect.
#[derive(Debug, Serialize, JsonSchema)]
struct StandardListResult {
    entries: Vec<ListedEntry>,
    /// True when there are more entries than were listed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
    /// Total number of entries, when not all were listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    total: Option<u64>,
    /// Directories that could not be read.
    #[serde(skip_serializing_if = "crate::tools::is_zero")]
    unreadable: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ListedEntry {
    name: String,
    /// `file`, `directory` or `symlink`; rarely `fifo`, `socket` or `device`.
    r#type: &'static str,
    /// In bytes; 0 for a directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    modified: Option<String>,
    /// The name is not UTF-8; its bytes are written as `\xHH`, which paths accept.
    #[serde(rename = "nonUtf8", skip_serializing_if = "std::ops::Not::not")]
    non_utf8: bool,
    /// A mount has this name; put `./` in front to reach the entry.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    shadowed: bool,
}

/// Result in the crewagent dialect.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct CrewagentListResult {
    path: String,
    /// Names; a directory ends in `/`.
    #[serde(skip_serializing_if = "Option::is_none")]
    entries: Option<Vec<String>>,
    /// The first names, where there are too many.
    #[serde(skip_serializing_if = "Option::is_none")]
    entries_preview: Option<Vec<String>>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

impl From<Outcome> for CrewagentListResult {
    fn from(outcome: Outcome) -> Self {
        let Outcome { shown: path, entries, total, .. } = outcome;
        let truncated = total > entries.len() as u64;
        let name = |NamedEntry { name, kind, .. }| if kind == FileKind::Directory { name + "/" } else { name };
        let names: Vec<String> = entries.into_iter().map(name).collect();
        if !truncated {
            return Self { path, entries: Some(names), entries_preview: None, truncated, hint: None };
        }
        let hint = format!("{} of {total} entries are listed; list a subdirectory, or use fs.search", names.len());
        Self { path, entries: None, entries_preview: Some(names), truncated, hint: Some(hint) }
    }
}

impl Tool for ListDirectory {
    type Args = Args;
    type Prepared = ListDirectoryPlan;
    type Outcome = Outcome;
    const ACTIONS: &'static [PolicyAction] = &[PolicyAction::List];
    const IDEMPOTENT: bool = true;

    fn plan(&self, args: Args, cx: &CallContext<'_>) -> Result<ToolPlan<ListDirectoryPlan>, ToolError> {
        let Args { path, depth, hidden, links, details } = args;
        let located = self.fence.locate_arg(&path, cx)?;
        let opened = located.open_directory(cx)?;
        let (access, work) = ListDirectoryPlan::new(located, opened);
        Ok(ToolPlan { accesses: vec![access], prepared: ListDirectoryPlan { depth, hidden, links, details, ..work } })
    }

    fn preview(&self, work: &mut ListDirectoryPlan, _: &CallContext<'_>) -> Result<Preview, ToolError> {
        Ok(ListDirectoryPlan::preview(work))
    }

    fn run(&self, work: ListDirectoryPlan, ticket: &Ticket<'_>) -> Result<Outcome, ToolError> {
        let shadowed = self.fence.shadowing_aliases(&work.located);
        let outcome = match work.depth {
            ListDepth::One => list(work, ticket.context()),
            ListDepth::All => list_all(work, ticket.context()),
        };
        outcome.map(|outcome| Outcome { shadowed, ..outcome })
    }
}

impl ListDirectoryPlan {
    /// A list of everything in one directory.
    fn new(located: LocatedPath, opened: OpenFile) -> (ResourceAccess, Self) {
        let real_path = opened.resolved.clone().unwrap_or_else(|| located.path.display());
        let resource = located.resource(opened.resolved);
        let access = ResourceAccess { action: PolicyAction::List, resource: resource.clone() };
        let plan = Self {
            located,
            resource,
            directory: opened.fd,
            real_path,
            depth: ListDepth::One,
            hidden: HiddenEntryListing::Included,
            links: SymlinkListing::Included,
            details: DetailListing::Included,
        };
        (access, plan)
    }

    /// The list of a directory that a model reads as if it were a file.
    pub(super) fn for_model(located: LocatedPath, cx: &CallContext<'_>) -> Result<(ResourceAccess, Self), ToolError> {
        let opened = located.open_directory(cx)?;
        Ok(Self::new(located, opened))
    }

    pub(super) fn preview(&self) -> Preview {
        Preview::new(&format!("list `{}`", self.located.shown), "")
    }

    /// The directory as replies spell it, and its list.
    pub(super) fn run_for_model(self, cx: &CallContext<'_>) -> Result<(String, String), ToolError> {
        let outcome = list(self, cx)?;
        let shown = outcome.shown.clone();
        Ok((shown, StandardListResult::from(outcome).model_text(Dialect::Claude)))
    }
}

impl ModelText for StandardListResult {
    fn model_text(&self, _: Dialect) -> String {
        let mut text = String::new();
        for ListedEntry { name, r#type, size, .. } in &self.entries {
            text.push_str(name);
            match (*r#type, size) {
                ("directory", _) => text.push('/'),
                ("symlink", _) => text.push('@'),
                (_, Some(size)) => drop(write!(text, "\t{size}")),
                (_, None) => {}
            }
            text.push('\n');
        }
        if self.entries.is_empty() {
            text.push_str("[the directory is empty]\n");
        }
        if let Some(total) = self.total {
            let _ = writeln!(text, "[{} of {total} entries; list a subdirectory for the rest]", self.entries.len());
        }
        if self.unreadable > 0 {
            let _ = writeln!(text, "[{} directories could not be read]", self.unreadable);
        }
        text.truncate(text.trim_end().len());
        text
    }
}

/// One directory: every name is read; only those that are listed are looked at, and those only for size and time.
fn list(work: ListDirectoryPlan, cx: &CallContext<'_>) -> Result<Outcome, ToolError> {
    let ListDirectoryPlan { located, directory, real_path, hidden, links, details, .. } = work;
    let mut names =
        read_directory(directory.as_fd(), TempVisibility::Hidden, cx.limits.walk_entries, &located.shown, cx)?;
    let (known, mut text) = (DirectoryEntries::new(&real_path), String::new());
    for entry in &names {
        // Also what is not listed: another name of it may be read.
        text.clear();
        escape_into(&mut text, &entry.name);
        located.mount.observe_named(known.entry_sensitivity(&text), directory.as_fd(), &entry.name);
    }
    names.retain(|entry| hidden == HiddenEntryListing::Included || !entry.name.starts_with(b"."));
    if links == SymlinkListing::Excluded {
        // Where the directory does not say what an entry is, a look does.
        let looked = |name: &[u8]| stat(directory.as_fd(), name).ok().flatten().map(|found| found.kind);
        names.retain(|entry| entry.kind.or_else(|| looked(&entry.name)) != Some(FileKind::Link));
    }
    let mut total = names.len() as u64;
    let most = usize::try_from(cx.limits.list_entries).unwrap_or(usize::MAX);
    if names.len() > most {
        names.select_nth_unstable_by(most, |a, b| a.name.cmp(&b.name));
        names.truncate(most);
    }
    names.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    let mut entries = Vec::with_capacity(names.len());
    let has_details = details == DetailListing::Included && names.len() as u64 <= cx.limits.list_stats;
    let mut stats_left = if has_details { u64::MAX } else { 0 };
    for entry in names {
        let look = || stat(directory.as_fd(), &entry.name).map_err(|errno| errno_error(errno, &located.shown));
        match NamedEntry::new(&entry.name, entry.kind, &mut stats_left, look)? {
            Some(entry) => entries.push(entry),
            // It went away since its name was read.
            None => total -= 1,
        }
    }
    Ok(Outcome { shown: located.shown, entries, total, unreadable: 0, shadowed: Vec::new() })
}

impl NamedEntry {
    /// An entry by its dirent alone, or with a look at it where details are still listed or the dirent has no kind. `None`
    /// if the look finds nothing.
    fn new(
        name: &[u8],
        kind: Option<FileKind>,
        stats_left: &mut u64,
        look: impl FnOnce() -> Result<Option<FileStat>, ToolError>,
    ) -> Result<Option<Self>, ToolError> {
        if let Some(kind) = kind.filter(|_| *stats_left == 0) {
            return Ok(Some(Self { name: escape(name), kind, stat: None }));
        }
        let Some(stat) = look()? else { return Ok(None) };
        let listed = (*stats_left > 0).then_some(stat);
        *stats_left = stats_left.saturating_sub(1);
        Ok(Some(Self { name: escape(name), kind: stat.kind, stat: listed }))
    }

    /// Size of a file; 0 for a directory, whose own size depends on the file system.
    fn size(&self) -> Option<u64> {
        self.stat.map(|stat| if stat.kind == FileKind::Directory { 0 } else { stat.size })
    }
}

/// A whole tree: past the limit, entries are only counted.
fn list_all(work: ListDirectoryPlan, cx: &CallContext<'_>) -> Result<Outcome, ToolError> {
    let ListDirectoryPlan { located, directory, resource: place, real_path: real, hidden, details, .. } = work;
    let mut outcome =
        Outcome { shown: located.shown.clone(), entries: Vec::new(), total: 0, unreadable: 0, shadowed: Vec::new() };
    let mut left = cx.limits.list_bytes;
    let mut stats_left = if details == DetailListing::Included { cx.limits.list_stats } else { 0 };
    let of_whole = cx.evaluate(&ResourceAccess { action: PolicyAction::List, resource: place.clone() }).strictness();
    let mut walk = TreeWalk::new(&located.mount, directory, &located.shown, cx)?;
    while let Some(step) = walk.next()? {
        let WalkStep::Entry(entry) = step else { continue };
        let path = format!("{real}/{}", escape(&walk.path_of(&entry.name)));
        located.mount.observe(&path, walk.directory()?, &entry.name);
        if hidden == HiddenEntryListing::Excluded && entry.name.starts_with(b".") {
            continue;
        }
        outcome.total += 1;
        if (outcome.entries.len() as u64) < cx.limits.list_entries && left > 0 {
            let name = walk.path_of(&entry.name);
            match NamedEntry::new(&name, entry.kind, &mut stats_left, || walk.stat(&entry))? {
                Some(entry) => {
                    left = left.saturating_sub(entry.name.len() as u64);
                    outcome.entries.push(entry);
                }
                None => outcome.total -= 1,
            }
        }
        if walk.is_directory(&entry)? {
            let inside = ResourceAccess {
                action: PolicyAction::List,
                resource: place.join(&escape(&walk.path_of(&entry.name))),
            };
            let kept_out = cx.evaluate(&inside).strictness() > of_whole;
            if kept_out || walk.descend(&entry)?.is_err() {
                outcome.unreadable += 1;
            }
        }
    }
    Ok(outcome)
}

impl Outcome {
    fn to_text(&self) -> String {
        let count = self.entries.len();
        let mut text = format!("ok: listed {count} entries in {}", self.shown);
        if self.total > count as u64 {
            text.push_str(&format!(" (truncated from {})", self.total));
        }
        for entry in &self.entries {
            let kind = if entry.kind == FileKind::Directory { "dir" } else { "file" };
            let _ = write!(text, "\n- {}\t{kind}\t{}", entry.name, entry.size().unwrap_or_default());
        }
        text
    }
}

impl From<Outcome> for StandardListResult {
    fn from(outcome: Outcome) -> Self {
        let Outcome { entries, total, unreadable, shadowed, .. } = outcome;
        let truncated = total > entries.len() as u64;
        let entries = entries.into_iter().map(|entry| ListedEntry {
            r#type: entry.kind.name(),
            size: entry.size(),
            modified: entry.stat.map(|stat| timestamp(stat.modified)),
            shadowed: shadowed.contains(&entry.name),
            non_utf8: is_non_utf8(&entry.name),
            name: entry.name,
        });
        Self { entries: entries.collect(), truncated, total: truncated.then_some(total), unreadable }
    }
}
