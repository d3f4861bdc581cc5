//! `search_files`: search contents, with lines of context.

use std::os::fd::{AsFd, OwnedFd};

use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use ringfence_kernel::{
    CallContext, DuplicateToolError, ErrorKind, IoMode, PolicyAction, PolicyResource, Preview, ResourceAccess, Ticket,
    Tool, ToolBinding, ToolError, ToolPlan, ToolRegistry,
};
use rustix::fs::OFlags;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Fence;
use crate::fence::PathArg;
use crate::mount::LocatedPath;
use crate::path::guest::GuestPath;
use crate::path::name::unescape;
use crate::read::ignore::IgnoreRules;
use crate::read::search::{
    HiddenFileHandling, LineMatch, SearchQuery, SearchRoot, SearchScope, TextSearchResult, search_file, search_tree,
};
use crate::sys::own_files::SAFE_OPEN;
use crate::tools::glob;

const LONGEST_PATTERN: usize = 4096;
const MOST_CONTEXT: u64 = 20;

pub(super) fn register(registry: &mut ToolRegistry, fence: &Fence) -> Result<(), DuplicateToolError> {
    let standard = ToolBinding::standard::<StandardSearchArgs, Outcome>("search_files");
    let crewagent = ToolBinding::crewagent::<CrewagentSearchArgs, CrewagentSearchResult>("fs.search");
    registry.register(SearchFiles { fence: fence.clone() }, [standard, crewagent])
}

struct SearchFiles {
    fence: Fence,
}

/// Search the contents of a file, or of all files in a directory tree. Hidden and ignored files are skipped unless
/// `includeIgnored` is true; binary files and files that may hold secrets always are.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct StandardSearchArgs {
    /// Path of a file or a directory, relative to the workspace; `.` is its root.
    path: String,
    /// Text to find.
    pattern: String,
    /// `pattern` is a regular expression.
    #[serde(default)]
    regex: bool,
    /// Ignore case.
    #[serde(default)]
    ignore_case: bool,
    /// Only files whose path matches this glob.
    glob: Option<String>,
    /// Lines before each match; default 1.
    #[schemars(range(max = 20))]
    before: Option<u64>,
    /// Lines after each match; default 1.
    #[schemars(range(max = 20))]
    after: Option<u64>,
    /// Maximum number of matches; default 50.
    #[schemars(range(min = 1))]
    max_matches: Option<u64>,
    /// Search hidden and ignored files too.
    #[serde(default)]
    include_ignored: bool,
}

/// Search a file, or all files in a directory tree, for matching lines. Matches are sorted by path and line.
/// `.git`, `node_modules`, hidden directories, binary files and those that may hold secrets are skipped. A very long line
/// is shown around its match.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CrewagentSearchArgs {
    /// Path of a file or a directory, starting with a mount alias.
    path: String,
    /// Plain text, or a regular expression between slashes: `/fn \w+/`, or `/todo/i` to ignore case.
    pattern: String,
    /// Lines to show before each match; default 1.
    #[schemars(range(max = 20))]
    before: Option<u64>,
    /// Lines to show after each match; default 1.
    #[schemars(range(max = 20))]
    after: Option<u64>,
    /// Maximum number of matching lines; default 50.
    #[schemars(range(min = 1))]
    max_matches: Option<u64>,
}

struct Args {
    path: PathArg,
    pattern: String,
    matcher: RegexMatcher,
    before: u64,
    after: u64,
    most: u64,
    scope: SearchScope,
}

impl TryFrom<StandardSearchArgs> for Args {
    type Error = ToolError;

    fn try_from(args: StandardSearchArgs) -> Result<Self, ToolError> {
        let scope = SearchScope {
            hidden: if args.include_ignored { HiddenFileHandling::Searched } else { HiddenFileHandling::Excluded },
            ignore_files: !args.include_ignored,
            excluded_directories: &[".git"],
            glob: args.glob.as_deref().map(glob).transpose()?,
        };
        let matcher = matcher(&args.pattern, args.regex, args.ignore_case)?;
        let lines = SearchContext { before: args.before, after: args.after, most: args.max_matches };
        Self::new(PathArg::Standard(args.path), args.pattern, matcher, lines, scope)
    }
}

impl TryFrom<CrewagentSearchArgs> for Args {
    type Error = ToolError;

    fn try_from(args: CrewagentSearchArgs) -> Result<Self, ToolError> {
        let scope = SearchScope {
            hidden: HiddenFileHandling::FilesOnly,
            ignore_files: false,
            excluded_directories: &[".git", "node_modules"],
            glob: None,
        };
        let between = args.pattern.strip_prefix('/');
        let matcher = match between.and_then(|rest| rest.rsplit_once('/')) {
            Some((regex, "")) if !regex.is_empty() => matcher(regex, true, false)?,
            Some((regex, "i")) if !regex.is_empty() => matcher(regex, true, true)?,
            _ => matcher(&args.pattern, false, false)?,
        };
        let lines = SearchContext { before: args.before, after: args.after, most: args.max_matches };
        Self::new(PathArg::Mounted(args.path), args.pattern, matcher, lines, scope)
    }
}

/// Context lines around a match.
struct SearchContext {
    before: Option<u64>,
    after: Option<u64>,
    most: Option<u64>,
}

impl Args {
    fn new(
        path: PathArg,
        pattern: String,
        matcher: RegexMatcher,
        lines: SearchContext,
        scope: SearchScope,
    ) -> Result<Self, ToolError> {
        let within = |field, lines: Option<u64>| match lines.unwrap_or(1) {
            lines @ ..=MOST_CONTEXT => Ok(lines),
            _ => Err(ToolError::invalid(field, "must be at most 20")),
        };
        let (before, after) = (within("before", lines.before)?, within("after", lines.after)?);
        let most = lines.most.unwrap_or(50);
        if most == 0 {
            return Err(ToolError::invalid("maxMatches", "must be at least 1"));
        }
        Ok(Self { path, pattern, matcher, before, after, most, scope })
    }
}

struct SearchFilesPlan {
    located: LocatedPath,
    target: SearchTarget,
    args: Args,
}

enum SearchTarget {
    File(OwnedFd),
    Tree { start: OwnedFd, place: PolicyResource },
}

/// Result.
#[derive(Debug, Serialize, JsonSchema)]
struct Outcome {
    matches: Vec<SearchMatch>,
    /// True when there are more matches than were returned.
    truncated: bool,
    stats: SearchStats,
}

#[derive(Debug, Serialize, JsonSchema)]
struct SearchMatch {
    path: String,
    line: u64,
    /// Column of the match, in characters, from 1.
    column: u64,
    /// The line; a very long line is cut around the match.
    text: String,
    before: Vec<String>,
    after: Vec<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct SearchStats {
    files_scanned: u64,
    matches_found: u64,
    /// Files that are not text.
    #[serde(skip_serializing_if = "crate::tools::is_zero")]
    skipped_binary: u64,
    /// Files and directories that may not be read.
    #[serde(skip_serializing_if = "crate::tools::is_zero")]
    skipped_unreadable: u64,
    /// Files that may hold secrets: they are searched only when named directly.
    #[serde(skip_serializing_if = "crate::tools::is_zero")]
    skipped_secret: u64,
    /// Files that a policy rule excludes.
    #[serde(skip_serializing_if = "crate::tools::is_zero")]
    skipped_denied: u64,
}

/// Result in the crewagent dialect.
#[derive(Debug, Serialize, JsonSchema)]
struct CrewagentSearchResult {
    matches: Vec<SearchMatch>,
    truncated: bool,
    stats: CrewagentSearchStats,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct CrewagentSearchStats {
    files_scanned: u64,
    matches_found: u64,
}

impl From<Outcome> for CrewagentSearchResult {
    fn from(outcome: Outcome) -> Self {
        let Outcome { matches, truncated, stats: SearchStats { files_scanned, matches_found, .. } } = outcome;
        Self { matches, truncated, stats: CrewagentSearchStats { files_scanned, matches_found } }
    }
}

impl Tool for SearchFiles {
    type Args = Args;
    type Prepared = SearchFilesPlan;
    type Outcome = Outcome;
    const ACTIONS: &'static [PolicyAction] = &[PolicyAction::Read];
    const IDEMPOTENT: bool = true;

    fn plan(&self, args: Args, cx: &CallContext<'_>) -> Result<ToolPlan<SearchFilesPlan>, ToolError> {
        let located = self.fence.locate_arg(&args.path, cx)?;
        let (target, place) = match located.open_directory(cx) {
            Ok(opened) => {
                let place = located.resource(opened.resolved);
                (SearchTarget::Tree { start: opened.fd, place: place.clone() }, place)
            }
            Err(error) if error.kind == ErrorKind::WrongType => {
                let mut opened = located.open_content(cx)?;
                let place = located.resource_of(&mut opened, cx)?;
                (SearchTarget::File(opened.fd), place)
            }
            Err(error) => return Err(error),
        };
        Ok(ToolPlan {
            accesses: vec![ResourceAccess { action: PolicyAction::Read, resource: place }],
            prepared: SearchFilesPlan { located, target, args },
        })
    }

    fn preview(&self, work: &mut SearchFilesPlan, _: &CallContext<'_>) -> Result<Preview, ToolError> {
        let text = format!("search `{}` in `{}`", work.args.pattern, work.located.shown);
        Ok(Preview::new(&text, ""))
    }

    fn run(&self, work: SearchFilesPlan, ticket: &Ticket<'_>) -> Result<Outcome, ToolError> {
        let SearchFilesPlan { located, target, args } = work;
        let cx = ticket.context();
        let count = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let query = SearchQuery {
            matcher: args.matcher,
            before: count(args.before),
            after: count(args.after),
            most: count(args.most.min(cx.limits.search_matches)),
            scope: args.scope,
        };
        let found = match target {
            SearchTarget::File(file) => search_file(&query, file, cx)?,
            SearchTarget::Tree { start, place } => {
                let rules =
                    ignore_rules_above(&located, place.resolved_path.as_deref().unwrap_or(&place.requested_path), cx);
                let at = SearchRoot {
                    mount: &located.mount,
                    sensitive_files: &located.mount.sensitive_files,
                    shown: &located.shown,
                    resource: &place,
                };
                search_tree(&query, start, rules, at, cx)?
            }
        };
        Ok(Outcome::new(found, &located, cx.limits.search_bytes))
    }
}

impl Outcome {
    /// As many matches as fit.
    fn new(found: TextSearchResult, located: &LocatedPath, most_bytes: u64) -> Self {
        let TextSearchResult { hits, mut truncated, scanned, skipped } = found;
        let matches_found = hits.len() as u64;
        let mut left = most_bytes;
        let mut matches = Vec::with_capacity(hits.len());
        for LineMatch { path, line, column, text, before, after } in hits {
            let path = match (path.is_empty(), located.shown.as_str()) {
                (true, shown) => shown.to_owned(),
                (false, ".") => path,
                (false, shown) => format!("{shown}/{path}"),
            };
            let found = SearchMatch { path, line, column, text, before, after };
            // Counted as it will be written: what has to be escaped takes more.
            let size = serde_json::to_string(&found).map_or(u64::MAX, |text| text.len() as u64);
            let Some(rest) = left.checked_sub(size) else {
                truncated = true;
                break;
            };
            left = rest;
            matches.push(found);
        }
        let stats = SearchStats {
            files_scanned: scanned,
            matches_found,
            skipped_binary: skipped.binary,
            skipped_unreadable: skipped.unreadable,
            skipped_secret: skipped.secret,
            skipped_denied: skipped.denied,
        };
        Self { matches, truncated, stats }
    }
}

/// The ignore rules of the directories above the one that is searched.
fn ignore_rules_above(located: &LocatedPath, real: &str, cx: &CallContext<'_>) -> IgnoreRules {
    let mut rules = IgnoreRules::default();
    let bytes = unescape(real);
    if bytes == b"." {
        return rules;
    }
    let ends = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
    for end in std::iter::once(0).chain(ends) {
        let (above, below) = (&bytes[..end], bytes[end..].strip_prefix(b"/").unwrap_or(&bytes[end..]));
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | SAFE_OPEN;
        if let Ok(directory) = located.mount.lookup(&GuestPath::from_kernel(above), flags, IoMode::Blocking) {
            rules.enter_above(&located.mount, directory.fd.as_fd(), below, cx);
        }
    }
    rules
}

/// A matcher that takes time in proportion to the text, whatever the pattern.
fn matcher(pattern: &str, regex: bool, ignore_case: bool) -> Result<RegexMatcher, ToolError> {
    if pattern.is_empty() {
        return Err(ToolError::invalid("pattern", "must not be empty"));
    }
    if pattern.len() > LONGEST_PATTERN {
        return Err(ToolError::invalid("pattern", "must have at most 4096 bytes"));
    }
    if pattern.contains('\n') {
        return Err(ToolError::invalid("pattern", "must not contain a newline: lines are matched one by one"));
    }
    let mut builder = RegexMatcherBuilder::new();
    builder
        .case_insensitive(ignore_case)
        .multi_line(true)
        .crlf(true)
        .fixed_strings(!regex)
        .size_limit(1 << 20)
        .dfa_size_limit(8 << 20);
    builder.build(pattern).map_err(|error| {
        let said = error.to_string();
        let reason = said.lines().last().unwrap_or_default().trim_start_matches("error: ");
        if regex {
            ToolError::invalid("pattern", &format!("is not a valid regular expression: {reason}"))
        } else {
            ToolError::invalid("pattern", &format!("cannot be used: {reason}"))
        }
    })
}
