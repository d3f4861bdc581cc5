//! `find_files`: find paths by a glob pattern.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;

use globset::GlobSet;
use ringfence_kernel::{
    CallContext, Dialect, DuplicateToolError, ModelText, PolicyAction, PolicyResource, Preview, ResourceAccess, Ticket,
    Tool, ToolBinding, ToolError, ToolPlan, ToolRegistry, lenient,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Fence;
use crate::fence::PathArg;
use crate::mount::LocatedPath;
use crate::path::name::escape;
use crate::path::workspace::WORKSPACE_OF_PROGRAMS;
use crate::read::ignore::IgnoreRules;
use crate::root::walk::{TreeWalk, WalkStep};

pub(super) fn register(registry: &mut ToolRegistry, fence: &Fence) -> Result<(), DuplicateToolError> {
    let standard = ToolBinding::standard_with_text::<StandardFindArgs, Outcome>("find_files");
    let claude = ToolBinding::model::<ClaudeGlobArgs, Outcome>(Dialect::Claude, "Glob");
    let gemini = ToolBinding::model::<GeminiGlobArgs, Outcome>(Dialect::Gemini, "glob");
    registry.register(FindFiles { fence: fence.clone() }, [standard, claude, gemini])
}

struct FindFiles {
    fence: Fence,
}

/// Find files and directories by a glob pattern. `*` matches within a name, `**` across directories; a pattern without `/`
/// matches names at any depth. `.git` is left out.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct StandardFindArgs {
    /// Directory to search; default: the workspace.
    #[serde(default, alias = "dir_path", alias = "directory")]
    path: Option<String>,
    /// The pattern, relative to `path`; `{a,b}` matches either.
    #[serde(alias = "pattern")]
    glob: String,
    /// Maximum number of results.
    #[serde(default, deserialize_with = "lenient::optional_scalar")]
    #[schemars(range(min = 1))]
    max_results: Option<u64>,
}

/// Find files by a glob pattern such as `**/*.rs`, newest first. Ignored files are left out.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ClaudeGlobArgs {
    #[serde(alias = "glob")]
    pattern: String,
    /// Directory; default: the workspace.
    #[serde(default, alias = "dir_path", alias = "directory")]
    path: Option<String>,
}

/// Find files by a glob pattern such as `**/*.rs`, newest first. Ignored files are left out.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct GeminiGlobArgs {
    #[serde(alias = "glob")]
    pattern: String,
    #[serde(default, alias = "path", alias = "directory")]
    dir_path: Option<String>,
}

struct Args {
    path: PathArg,
    pattern: String,
    matcher: GlobSet,
    most: Option<u64>,
    order: FindOrder,
}

/// The entries that are found, and their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FindOrder {
    /// Files and directories in the order of their paths.
    Path,
    /// Files that no ignore file leaves out, the newest first.
    Newest,
}

impl TryFrom<StandardFindArgs> for Args {
    type Error = ToolError;

    fn try_from(args: StandardFindArgs) -> Result<Self, ToolError> {
        let StandardFindArgs { path, glob, max_results: most } = args;
        let matcher = crate::tools::glob(&glob)?;
        if most == Some(0) {
            return Err(ToolError::invalid("maxResults", "must be at least 1"));
        }
        Ok(Self { path: PathArg::directory(path), pattern: glob, matcher, most, order: FindOrder::Path })
    }
}

impl TryFrom<ClaudeGlobArgs> for Args {
    type Error = ToolError;

    fn try_from(args: ClaudeGlobArgs) -> Result<Self, ToolError> {
        Self::newest_first(args.pattern, args.path)
    }
}

impl TryFrom<GeminiGlobArgs> for Args {
    type Error = ToolError;

    fn try_from(args: GeminiGlobArgs) -> Result<Self, ToolError> {
        Self::newest_first(args.pattern, args.dir_path)
    }
}

impl Args {
    fn newest_first(pattern: String, path: Option<String>) -> Result<Self, ToolError> {
        const MOST: u64 = 100;
        // The path that programs see, in front of a pattern for the whole workspace.
        let below = pattern.strip_prefix(WORKSPACE_OF_PROGRAMS).and_then(|rest| rest.strip_prefix('/'));
        let relative = below.filter(|_| path.is_none()).unwrap_or(&pattern);
        let matcher = crate::tools::glob(relative)?;
        Ok(Self { path: PathArg::directory(path), pattern, matcher, most: Some(MOST), order: FindOrder::Newest })
    }
}

struct FindFilesPlan {
    located: LocatedPath,
    resource: PolicyResource,
    directory: OwnedFd,
    /// Its resolved path below the root of the mount.
    real_path: String,
    args: Args,
}

/// Result.
#[derive(Debug, Serialize, JsonSchema)]
struct Outcome {
    /// Paths relative to the searched directory, sorted; a directory ends in `/`.
    paths: Vec<String>,
    /// True when there are more.
    truncated: bool,
    /// Number of entries visited.
    scanned: u64,
    /// Directories that could not be read.
    #[serde(skip_serializing_if = "crate::tools::is_zero")]
    unreadable: u64,
    /// The searched directory; `.` is the workspace.
    #[serde(skip)]
    directory: String,
    /// Number of files that match, where all were counted.
    #[serde(skip)]
    total: Option<u64>,
}

impl Tool for FindFiles {
    type Args = Args;
    type Prepared = FindFilesPlan;
    type Outcome = Outcome;
    const ACTIONS: &'static [PolicyAction] = &[PolicyAction::List];
    const IDEMPOTENT: bool = true;

    fn plan(&self, args: Args, cx: &CallContext<'_>) -> Result<ToolPlan<FindFilesPlan>, ToolError> {
        let located = self.fence.locate_arg(&args.path, cx)?;
        let opened = located.open_directory(cx)?;
        let real = opened.resolved.clone().unwrap_or_else(|| located.path.display());
        let place = located.resource(opened.resolved);
        let accesses = vec![ResourceAccess { action: PolicyAction::List, resource: place.clone() }];
        Ok(ToolPlan {
            accesses,
            prepared: FindFilesPlan { located, resource: place, directory: opened.fd, real_path: real, args },
        })
    }

    fn preview(&self, work: &mut FindFilesPlan, _: &CallContext<'_>) -> Result<Preview, ToolError> {
        let text = format!("find `{}` in `{}`", work.args.pattern, work.located.shown);
        Ok(Preview::new(&text, ""))
    }

    fn run(&self, work: FindFilesPlan, ticket: &Ticket<'_>) -> Result<Outcome, ToolError> {
        let FindFilesPlan { located, resource: place, directory, real_path: real, args } = work;
        let cx = ticket.context();
        let most = args.most.unwrap_or(u64::MAX).min(cx.limits.find_results);
        let mut found = FoundPaths::new(args.order, most, cx.limits.list_bytes);
        let mut outcome = Outcome {
            paths: Vec::new(),
            truncated: false,
            scanned: 0,
            unreadable: 0,
            directory: located.shown.clone(),
            total: None,
        };
        let of_whole =
            cx.evaluate(&ResourceAccess { action: PolicyAction::List, resource: place.clone() }).strictness();
        let mut rules = match args.order {
            FindOrder::Path => IgnoreRules::default(),
            FindOrder::Newest => located.ignore_rules_above(&place, cx),
        };
        let mut walk = TreeWalk::new(&located.mount, directory, &located.shown, cx)?;
        if args.order == FindOrder::Newest {
            rules.enter(&walk, b"", cx)?;
        }
        while let Some(step) = walk.next()? {
            let entry = match step {
                WalkStep::Entry(entry) => entry,
                WalkStep::Leave(_) => {
                    rules.leave_depth(walk.depth());
                    continue;
                }
            };
            outcome.scanned += 1;
            let path = walk.path_of(&entry.name);
            let is_directory = walk.is_directory(&entry)?;
            if !is_directory {
                located.mount.observe(&format!("{real}/{}", escape(&path)), walk.directory()?, &entry.name);
            }
            if rules.ignores(&path, is_directory) {
                continue;
            }
            let is_wanted = args.order == FindOrder::Path || !is_directory;
            if is_wanted && args.matcher.is_match(std::ffi::OsStr::from_bytes(&path)) {
                let shown = format!("{}{}", escape(&path), if is_directory { "/" } else { "" });
                let modified = match args.order {
                    FindOrder::Path => 0,
                    FindOrder::Newest => walk.stat(&entry)?.map_or(0, |stat| stat.modified),
                };
                if !found.add(modified, shown) {
                    break;
                }
            }
            if is_directory && entry.name != b".git" {
                let inside = ResourceAccess { action: PolicyAction::List, resource: place.join(&escape(&path)) };
                let kept_out = cx.evaluate(&inside).strictness() > of_whole;
                if kept_out || walk.descend(&entry)?.is_err() {
                    outcome.unreadable += 1;
                } else if args.order == FindOrder::Newest {
                    rules.enter(&walk, &path, cx)?;
                }
            }
        }
        Ok(found.into_outcome(outcome))
    }
}

/// The paths that were found so far, as many as are wanted.
struct FoundPaths {
    order: FindOrder,
    most: u64,
    /// Bytes that are left for names.
    bytes_left: u64,
    in_order: Vec<String>,
    /// The oldest on top.
    newest: BinaryHeap<Reverse<(i128, Reverse<String>)>>,
    count: u64,
    truncated: bool,
}

impl FoundPaths {
    fn new(order: FindOrder, most: u64, bytes_left: u64) -> Self {
        let (in_order, newest) = (Vec::new(), BinaryHeap::new());
        Self { order, most, bytes_left, in_order, newest, count: 0, truncated: false }
    }

    /// Adds a path. False where no other can be added.
    fn add(&mut self, modified: i128, path: String) -> bool {
        self.count += 1;
        match self.order {
            FindOrder::Path => {
                if self.in_order.len() as u64 == self.most || path.len() as u64 > self.bytes_left {
                    self.truncated = true;
                    return false;
                }
                self.bytes_left -= path.len() as u64;
                self.in_order.push(path);
            }
            FindOrder::Newest => {
                self.newest.push(Reverse((modified, Reverse(path))));
                if self.newest.len() as u64 > self.most {
                    self.newest.pop();
                    self.truncated = true;
                }
            }
        }
        true
    }

    fn into_outcome(self, outcome: Outcome) -> Outcome {
        let Self { order, in_order, newest, count, truncated, .. } = self;
        match order {
            FindOrder::Path => Outcome { paths: in_order, truncated, ..outcome },
            FindOrder::Newest => {
                // The smallest of the reversed order is the newest, and of two equally new the first by name.
                let paths = newest.into_sorted_vec().into_iter().map(|Reverse((_, Reverse(path)))| path).collect();
                Outcome { paths, truncated, total: Some(count), ..outcome }
            }
        }
    }
}

impl ModelText for Outcome {
    fn model_text(&self, dialect: Dialect) -> String {
        // In the dialects of model families a path is one that the other tools take.
        let prefix = match self.directory.as_str() {
            "." => String::new(),
            _ if dialect == Dialect::Standard => String::new(),
            directory => format!("{directory}/"),
        };
        let mut text: String = self.paths.iter().map(|path| format!("{prefix}{path}\n")).collect();
        if self.paths.is_empty() {
            let search = match dialect {
                Dialect::Claude => "Grep",
                Dialect::Gemini => "grep_search",
                _ => "search_files",
            };
            let _ = writeln!(text, "[no path matches; {search} looks in contents]");
        }
        let shown = self.paths.len();
        match self.total {
            Some(total) if total > shown as u64 => {
                let _ = writeln!(text, "[the newest {shown} of {total} files; narrow the pattern or the directory]");
            }
            None if self.truncated => {
                let _ =
                    writeln!(text, "[the first {shown} paths; there are more: narrow the pattern or the directory]");
            }
            _ => {}
        }
        if self.unreadable > 0 {
            let _ = writeln!(text, "[{} directories could not be read]", self.unreadable);
        }
        text.truncate(text.trim_end().len());
        text
    }
}
