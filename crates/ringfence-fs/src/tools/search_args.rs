//! Arguments of the search tool in each dialect.

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use ignore::types::TypesBuilder;
use ringfence_kernel::{ToolError, lenient, nearest_name};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::fence::PathArg;
use crate::read::search::{HiddenFileHandling, MatchCollection, SearchScope};
use crate::tools::glob;

const LONGEST_PATTERN: usize = 4096;
const MOST_CONTEXT: u64 = 20;

/// Matches of one search that are skipped at most.
const MOST_SKIPPED: u64 = 10_000;

/// Lines, and files, of one search in the dialects of model families, where the call does not say how many.
const MODEL_MATCHES: u64 = 100;

/// Search the contents of files. Hidden and ignored files are skipped unless `includeIgnored` is true; binary files and
/// secrets always are.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct StandardSearchArgs {
    /// File or directory to search; default: the workspace.
    #[serde(default, alias = "file_path", alias = "filePath", alias = "dir_path", alias = "directory")]
    path: Option<String>,
    /// Searched text.
    pattern: String,
    /// `pattern` is a regular expression.
    #[serde(default, deserialize_with = "lenient::scalar")]
    regex: bool,
    /// Ignore case.
    #[serde(default, deserialize_with = "lenient::scalar")]
    ignore_case: bool,
    /// Only files whose path matches this glob.
    glob: Option<String>,
    /// Lines before each match; default 1.
    #[serde(default, deserialize_with = "lenient::optional_scalar")]
    #[schemars(range(max = 20))]
    before: Option<u64>,
    /// Lines after each match; default 1.
    #[serde(default, deserialize_with = "lenient::optional_scalar")]
    #[schemars(range(max = 20))]
    after: Option<u64>,
    /// Maximum number of matches; default 50.
    #[serde(default, deserialize_with = "lenient::optional_scalar")]
    #[schemars(range(min = 1))]
    max_matches: Option<u64>,
    /// Include them.
    #[serde(default, deserialize_with = "lenient::scalar")]
    include_ignored: bool,
}

/// Search a file, or all files in a directory tree, for matching lines. Matches are sorted by path and line.
/// `.git`, `node_modules`, hidden directories, binary files and those that may hold secrets are skipped. A very long line
/// is shown around its match.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct CrewagentSearchArgs {
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

/// Search file contents by a regular expression, line by line. Ignored, binary and secret files are skipped.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ClaudeGrepArgs {
    pattern: String,
    /// File or directory; default: the workspace.
    #[serde(default, alias = "file_path", alias = "dir_path", alias = "directory")]
    path: Option<String>,
    /// Only files that match.
    #[serde(default, alias = "include", alias = "include_pattern")]
    glob: Option<String>,
    #[serde(default)]
    output_mode: GrepOutputMode,
    /// Ignore case.
    #[serde(rename = "-i", default, deserialize_with = "lenient::scalar")]
    ignore_case: bool,
    /// Lines around each match.
    #[serde(rename = "-C", alias = "context", default, deserialize_with = "lenient::optional_scalar")]
    context: Option<u64>,
    #[serde(default, deserialize_with = "lenient::optional_scalar")]
    head_limit: Option<u64>,
    #[serde(rename = "-A", default, deserialize_with = "lenient::optional_scalar")]
    #[schemars(skip)]
    after: Option<u64>,
    #[serde(rename = "-B", default, deserialize_with = "lenient::optional_scalar")]
    #[schemars(skip)]
    before: Option<u64>,
    /// Lines always have their numbers.
    #[serde(rename = "-n", default, deserialize_with = "lenient::optional_scalar")]
    #[schemars(skip)]
    #[expect(dead_code, reason = "accepted, and without effect")]
    numbers: Option<bool>,
    #[serde(default, deserialize_with = "lenient::optional_scalar")]
    #[schemars(skip)]
    offset: Option<u64>,
    #[serde(rename = "type", default)]
    #[schemars(skip)]
    file_type: Option<String>,
    #[serde(default, deserialize_with = "lenient::scalar")]
    #[schemars(skip)]
    multiline: bool,
}

/// Form of the answer to a search.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(super) enum GrepOutputMode {
    Content,
    #[default]
    FilesWithMatches,
    Count,
}

/// Search file contents by a regular expression, line by line. Ignored, binary and secret files are skipped.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct GeminiGrepArgs {
    pattern: String,
    /// File or directory.
    #[serde(default, alias = "path", alias = "directory", alias = "file_path")]
    dir_path: Option<String>,
    /// Glob.
    #[serde(default, alias = "include", alias = "glob")]
    include_pattern: Option<String>,
    #[serde(default, deserialize_with = "lenient::scalar")]
    case_sensitive: bool,
    #[serde(default, deserialize_with = "lenient::scalar")]
    names_only: bool,
    /// Lines around each match.
    #[serde(default, deserialize_with = "lenient::optional_scalar")]
    context: Option<u64>,
    #[serde(default, deserialize_with = "lenient::scalar")]
    #[schemars(skip)]
    fixed_strings: bool,
    #[serde(default, deserialize_with = "lenient::scalar")]
    #[schemars(skip)]
    no_ignore: bool,
    #[serde(default, deserialize_with = "lenient::optional_scalar")]
    #[schemars(skip)]
    before: Option<u64>,
    #[serde(default, deserialize_with = "lenient::optional_scalar")]
    #[schemars(skip)]
    after: Option<u64>,
    #[serde(default, deserialize_with = "lenient::optional_scalar")]
    #[schemars(skip)]
    total_max_matches: Option<u64>,
}

/// The kernel's arguments.
#[derive(Debug)]
pub(super) struct Args {
    pub(super) path: PathArg,
    pub(super) pattern: String,
    pub(super) matcher: RegexMatcher,
    pub(super) before: u64,
    pub(super) after: u64,
    pub(super) most: u64,
    /// Matches that are left out at the start.
    pub(super) skipped: u64,
    pub(super) collect: MatchCollection,
    /// Whether the caller asked for lines around a match.
    pub(super) has_context: bool,
    pub(super) scope: SearchScope,
}

impl TryFrom<StandardSearchArgs> for Args {
    type Error = ToolError;

    fn try_from(args: StandardSearchArgs) -> Result<Self, ToolError> {
        let scope = SearchScope {
            hidden: if args.include_ignored { HiddenFileHandling::Searched } else { HiddenFileHandling::Excluded },
            ignore_files: !args.include_ignored,
            excluded_directories: &[".git"],
            glob: args.glob.as_deref().map(glob).transpose()?,
            types: None,
        };
        let matcher = matcher(&args.pattern, args.regex, args.ignore_case)?;
        let lines = SearchContext { before: args.before, after: args.after, most: args.max_matches };
        Self::new(PathArg::directory(args.path), args.pattern, matcher, lines, scope)
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
            types: None,
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

impl TryFrom<ClaudeGrepArgs> for Args {
    type Error = ToolError;

    fn try_from(args: ClaudeGrepArgs) -> Result<Self, ToolError> {
        if args.multiline {
            let problem = "is not supported: lines are matched one by one; search for the text of one line";
            return Err(ToolError::invalid("multiline", problem));
        }
        let scope = SearchScope {
            types: args.file_type.as_deref().map(type_globs).transpose()?,
            ..model_scope(args.glob.as_deref(), true)?
        };
        let collect = match args.output_mode {
            GrepOutputMode::Content => MatchCollection::Lines,
            GrepOutputMode::FilesWithMatches => MatchCollection::First,
            GrepOutputMode::Count => MatchCollection::Count,
        };
        Ok(Self {
            path: PathArg::directory(args.path),
            matcher: matcher(&args.pattern, true, args.ignore_case)?,
            pattern: args.pattern,
            before: args.before.or(args.context).unwrap_or(0).min(MOST_CONTEXT),
            after: args.after.or(args.context).unwrap_or(0).min(MOST_CONTEXT),
            // 0 stands for no limit.
            most: args.head_limit.map_or(MODEL_MATCHES, |limit| if limit == 0 { u64::MAX } else { limit }),
            skipped: args.offset.unwrap_or(0).min(MOST_SKIPPED),
            collect,
            has_context: true,
            scope,
        }
        .without_needless_context())
    }
}

impl TryFrom<GeminiGrepArgs> for Args {
    type Error = ToolError;

    fn try_from(args: GeminiGrepArgs) -> Result<Self, ToolError> {
        Ok(Self {
            path: PathArg::directory(args.dir_path),
            matcher: matcher(&args.pattern, !args.fixed_strings, !args.case_sensitive)?,
            pattern: args.pattern,
            before: args.before.or(args.context).unwrap_or(0).min(MOST_CONTEXT),
            after: args.after.or(args.context).unwrap_or(0).min(MOST_CONTEXT),
            most: args.total_max_matches.unwrap_or(MODEL_MATCHES).max(1),
            skipped: 0,
            collect: if args.names_only { MatchCollection::First } else { MatchCollection::Lines },
            has_context: true,
            scope: model_scope(args.include_pattern.as_deref(), !args.no_ignore)?,
        }
        .without_needless_context())
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
        let has_context = lines.before.is_some() || lines.after.is_some();
        let most = lines.most.unwrap_or(50);
        if most == 0 {
            return Err(ToolError::invalid("maxMatches", "must be at least 1"));
        }
        let collect = MatchCollection::Lines;
        Ok(Self { path, pattern, matcher, before, after, most, skipped: 0, collect, has_context, scope })
    }

    /// Files are named without the lines around their matches.
    fn without_needless_context(self) -> Self {
        match self.collect {
            MatchCollection::Lines => self,
            MatchCollection::First | MatchCollection::Count => Self { before: 0, after: 0, ..self },
        }
    }
}

/// Files that a model searches: hidden ones too, without those that are ignored.
fn model_scope(only: Option<&str>, ignore_files: bool) -> Result<SearchScope, ToolError> {
    let glob = only.filter(|pattern| !pattern.is_empty()).map(glob).transpose()?;
    let hidden = HiddenFileHandling::Searched;
    Ok(SearchScope { hidden, ignore_files, excluded_directories: &[".git"], glob, types: None })
}

/// The names of files of a type, as ripgrep knows them.
fn type_globs(name: &str) -> Result<GlobSet, ToolError> {
    let mut types = TypesBuilder::new();
    types.add_defaults();
    let known = types.definitions();
    let Some(found) = known.iter().find(|known| known.name() == name) else {
        let error = ToolError::invalid("type", &format!("`{}` is not known", &name[..name.floor_char_boundary(64)]));
        return Err(match nearest_name(name, known.iter().map(|known| known.name())) {
            Some(guess) => error.hint(&format!("did you mean `{guess}`?")),
            None => error.hint("use glob"),
        });
    };
    let mut set = GlobSetBuilder::new();
    for pattern in found.globs() {
        if let Ok(glob) = GlobBuilder::new(&format!("**/{pattern}")).literal_separator(true).build() {
            set.add(glob);
        }
    }
    set.build().map_err(|error| ToolError::invalid("type", &format!("cannot be used: {}", error.kind())))
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
