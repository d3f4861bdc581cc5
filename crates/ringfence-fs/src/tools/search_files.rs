//! `search_files`: search contents, with lines of context.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::os::fd::OwnedFd;

use ringfence_kernel::{
    CallContext, Dialect, DuplicateToolError, ErrorKind, ModelText, PolicyAction, PolicyResource, Preview,
    ResourceAccess, Ticket, Tool, ToolBinding, ToolError, ToolPlan, ToolRegistry,
};
use schemars::JsonSchema;
use serde::Serialize;

use crate::Fence;
use crate::mount::LocatedPath;
use crate::read::search::{
    LineMatch, MatchCollection, SearchQuery, SearchRoot, TextSearchResult, search_file, search_tree,
};
use crate::tools::search_args::{Args, ClaudeGrepArgs, CrewagentSearchArgs, GeminiGrepArgs, StandardSearchArgs};

pub(super) fn register(registry: &mut ToolRegistry, fence: &Fence) -> Result<(), DuplicateToolError> {
    let standard = ToolBinding::standard_with_text::<StandardSearchArgs, Outcome>("search_files");
    let crewagent = ToolBinding::crewagent::<CrewagentSearchArgs, CrewagentSearchResult>("fs.search");
    let claude = ToolBinding::model::<ClaudeGrepArgs, Outcome>(Dialect::Claude, "Grep");
    let gemini = ToolBinding::model::<GeminiGrepArgs, Outcome>(Dialect::Gemini, "grep_search");
    registry.register(SearchFiles { fence: fence.clone() }, [standard, crewagent, claude, gemini])
}

struct SearchFiles {
    fence: Fence,
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
    #[serde(skip)]
    shape: SearchTextShape,
}

/// Form of the text of a result.
#[derive(Clone, Copy, Debug)]
struct SearchTextShape {
    collect: MatchCollection,
    /// Lines around a match are shown.
    has_context: bool,
    /// Number of the first match that was not left out, from 0.
    first: u64,
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
    #[serde(skip)]
    count: u64,
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
        let Outcome { matches, truncated, stats: SearchStats { files_scanned, matches_found, .. }, .. } = outcome;
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
            most: count(args.most.min(cx.limits.search_matches).saturating_add(args.skipped)),
            collect: args.collect,
            scope: args.scope,
        };
        let shape = SearchTextShape { collect: args.collect, has_context: args.has_context, first: args.skipped };
        let mut found = match target {
            SearchTarget::File(file) => search_file(&query, file, cx)?,
            SearchTarget::Tree { start, place } => {
                let rules = located.ignore_rules_above(&place, cx);
                let at = SearchRoot {
                    mount: &located.mount,
                    sensitive_files: &located.mount.sensitive_files,
                    shown: &located.shown,
                    resource: &place,
                };
                search_tree(&query, start, rules, at, cx)?
            }
        };
        found.hits.drain(..found.hits.len().min(count(args.skipped)));
        Ok(Outcome::new(found, &located, shape, cx.limits.search_bytes))
    }
}

impl Outcome {
    /// As many matches as fit.
    fn new(found: TextSearchResult, located: &LocatedPath, shape: SearchTextShape, most_bytes: u64) -> Self {
        let TextSearchResult { hits, mut truncated, scanned, skipped } = found;
        let matches_found = hits.len() as u64;
        let mut left = most_bytes;
        let mut matches = Vec::with_capacity(hits.len());
        for LineMatch { path, line, column, text, before, after, count } in hits {
            let path = match (path.is_empty(), located.shown.as_str()) {
                (true, shown) => shown.to_owned(),
                (false, ".") => path,
                (false, shown) => format!("{shown}/{path}"),
            };
            let found = SearchMatch { path, line, column, text, before, after, count };
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
        Self { matches, truncated, stats, shape }
    }

    /// Each file once, with its matches below it: number, tab and text, with a hyphen before the tab for a line around one.
    fn lines(&self) -> String {
        let mut text = String::new();
        // The file, and the last of its lines that is there.
        let (mut path, mut last) = ("", 0);
        for (at, found) in self.matches.iter().enumerate() {
            if found.path != path {
                (path, last) = (&found.path, 0);
                let _ = writeln!(text, "{path}");
            }
            if self.shape.has_context {
                let first = found.line.saturating_sub(found.before.len() as u64);
                for (number, around) in (first..found.line).zip(&found.before).filter(|(number, _)| *number > last) {
                    let _ = writeln!(text, "{number}-\t{around}");
                }
            }
            let _ = writeln!(text, "{}\t{}", found.line, found.text);
            last = found.line;
            if self.shape.has_context {
                let next = self.matches.get(at + 1).filter(|next| next.path == found.path).map(|next| next.line);
                for (number, around) in (found.line + 1..next.unwrap_or(u64::MAX)).zip(&found.after) {
                    let _ = writeln!(text, "{number}-\t{around}");
                    last = number;
                }
            }
        }
        text
    }

    /// The totals, and how to go on.
    fn summary(&self, dialect: Dialect) -> String {
        let files = self.matches.iter().map(|found| &found.path).collect::<BTreeSet<_>>().len();
        let plural = |count: usize, one: &str, more: &str| format!("{count} {}", if count == 1 { one } else { more });
        let mut text = match self.shape.collect {
            _ if self.matches.is_empty() => format!("no match in {} files", self.stats.files_scanned),
            MatchCollection::Lines => {
                format!("{} in {}", plural(self.matches.len(), "match", "matches"), plural(files, "file", "files"))
            }
            MatchCollection::First | MatchCollection::Count => plural(files, "file", "files"),
        };
        if self.truncated {
            let next = self.shape.first + self.matches.len() as u64;
            text.push_str("; there are more: ");
            match dialect {
                Dialect::Claude => text.push_str(&format!("go on with offset {next}, or narrow the search")),
                _ => text.push_str("narrow the pattern or the path"),
            }
        }
        let SearchStats { skipped_binary, skipped_unreadable, skipped_secret, skipped_denied, .. } = &self.stats;
        let skipped = [
            (skipped_binary, "binary"),
            (skipped_unreadable, "unreadable"),
            (skipped_secret, "secret"),
            (skipped_denied, "denied"),
        ];
        let skipped: Vec<String> = skipped
            .into_iter()
            .filter(|(count, _)| **count > 0)
            .map(|(count, kind)| format!("{count} {kind}"))
            .collect();
        if !skipped.is_empty() {
            text.push_str(&format!("; skipped {}", skipped.join(", ")));
        }
        text
    }
}

impl ModelText for Outcome {
    fn model_text(&self, dialect: Dialect) -> String {
        let mut text = match self.shape.collect {
            MatchCollection::Lines => self.lines(),
            MatchCollection::First => self.matches.iter().map(|found| format!("{}\n", found.path)).collect(),
            MatchCollection::Count => {
                self.matches.iter().map(|found| format!("{}: {}\n", found.path, found.count)).collect()
            }
        };
        let _ = write!(text, "[{}]", self.summary(dialect));
        text
    }
}
