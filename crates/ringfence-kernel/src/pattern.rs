//! Path and host patterns of policy rules.
//!
//! Patterns are read once, when rules are loaded. The same pattern reaches wide where a match makes things stricter and
//! narrow where it makes them looser, so that no other spelling of a name slips by a rule that forbids, or in by one that
//! allows.
//!
//! Not here: what follows from a match (`rule.rs`).

use std::cell::OnceCell;

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

use crate::sensitive::{fold, fold_case};

/// Breadth of a match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MatchBreadth {
    /// Every spelling of a name, the directory that `dir/**` names, and all that is in a directory that matches.
    Wide,
    /// Literal comparison.
    Narrow,
}

impl MatchBreadth {
    fn inverse(self) -> Self {
        match self {
            Self::Wide => Self::Narrow,
            Self::Narrow => Self::Wide,
        }
    }
}

/// A path to be compared with patterns.
#[derive(Debug)]
pub(crate) struct CandidatePath {
    exact: String,
    /// As the worst file systems spell it; made when the first pattern asks.
    folded: OnceCell<FoldedPath>,
}

#[derive(Debug)]
struct FoldedPath {
    case: String,
    /// The name folded beyond letter case, where that differs.
    fully_folded: Option<String>,
}

impl CandidatePath {
    pub(crate) fn new(path: &str) -> Self {
        // Resources spell the root `.`, and its entries sometimes `./name`.
        let exact = path.strip_prefix("./").unwrap_or(path).to_owned();
        Self { exact, folded: OnceCell::new() }
    }

    pub(crate) fn text(&self) -> &str {
        &self.exact
    }

    fn folded_forms(&self) -> impl Iterator<Item = &str> {
        let FoldedPath { case, fully_folded: more } = self.folded.get_or_init(|| {
            let case = fold_case(&self.exact);
            let more = self.exact.split('/').map(fold).collect::<Vec<_>>().join("/");
            FoldedPath { fully_folded: Some(more).filter(|more| *more != case), case }
        });
        std::iter::once(case.as_str()).chain(more.as_deref())
    }
}

/// Patterns for paths; those with a `!` in front say what the others do not mean.
#[derive(Clone, Debug)]
pub(crate) struct PathPatterns {
    pub(crate) sources: Vec<String>,
    include: PathGlobs,
    exclude: PathGlobs,
}

impl PathPatterns {
    pub(crate) fn parse(patterns: &[String]) -> Result<Self, String> {
        let (exclude, include) = split_exclusions(patterns);
        check_not_all_excluded(&include, &exclude, &["**", "*"])?;
        Ok(Self {
            sources: patterns.to_vec(),
            include: PathGlobs::parse(&include)?,
            // Nothing but exclusions means everything else.
            exclude: PathGlobs::parse(&exclude)?,
        })
    }

    pub(crate) fn matches(&self, name: &CandidatePath, breadth: MatchBreadth) -> bool {
        (self.include.is_empty() || self.include.matches(name, breadth))
            && !self.exclude.matches(name, breadth.inverse())
    }
}

#[derive(Clone, Debug)]
struct PathGlobs {
    /// Literal patterns.
    exact: GlobSet,
    /// The same for folded names, what is below it, and the directory in `directory/**`.
    folded: GlobSet,
}

impl PathGlobs {
    fn parse(patterns: &[&str]) -> Result<Self, String> {
        let (mut exact, mut folded) = (GlobSetBuilder::new(), GlobSetBuilder::new());
        for pattern in patterns {
            let bad = |error: globset::Error| format!("invalid pattern `{pattern}`: {}", error.kind());
            let build =
                |glob: &str| GlobBuilder::new(glob).literal_separator(true).backslash_escape(true).build().map_err(bad);
            let glob = anchored_glob(pattern)?;
            exact.add(build(&glob)?);
            let glob = fold_case(&glob);
            folded.add(build(&glob)?);
            folded.add(build(&format!("{glob}/**"))?);
            if let Some(directory) = glob.strip_suffix("/**") {
                folded.add(build(directory)?);
            }
        }
        let bad = |error: globset::Error| format!("invalid patterns: {}", error.kind());
        Ok(Self { exact: exact.build().map_err(bad)?, folded: folded.build().map_err(bad)? })
    }

    fn is_empty(&self) -> bool {
        self.exact.is_empty()
    }

    fn matches(&self, name: &CandidatePath, breadth: MatchBreadth) -> bool {
        match breadth {
            _ if self.is_empty() => false,
            MatchBreadth::Narrow => self.exact.is_match(&name.exact),
            MatchBreadth::Wide => name.folded_forms().any(|path| self.folded.is_match(path)),
        }
    }
}

/// The glob that a pattern stands for: without a slash it is a name at any depth, with `./` in front only at the top.
fn anchored_glob(pattern: &str) -> Result<String, String> {
    const MAX_PATTERN_BYTES: usize = 1024;
    const MAX_BRACES: usize = 10;
    if pattern.len() > MAX_PATTERN_BYTES || pattern.matches('{').count() > MAX_BRACES {
        return Err(format!("a pattern may have at most {MAX_PATTERN_BYTES} bytes and {MAX_BRACES} `{{`"));
    }
    let nothing = |advice: &str| Err(format!("`{pattern}` never matches: {advice}"));
    if let Some((mount, rest)) = pattern.strip_prefix('@').and_then(|rest| rest.split_once('/')) {
        return nothing(&format!("write `mount = \"{mount}\"` and `path = \"{rest}\"`"));
    }
    if pattern.starts_with('/') || pattern.starts_with("~/") {
        return nothing("paths are relative to their mount, such as `src/**`");
    }
    let inside = pattern.strip_prefix("./").unwrap_or(pattern);
    if let Some(directory) = inside.strip_suffix('/') {
        return nothing(&format!("to match a directory and its contents, write `{directory}/**`"));
    }
    if inside.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return nothing("remove empty names, `.` and `..` from the path");
    }
    Ok(if pattern.contains('/') { inside.to_owned() } else { format!("**/{pattern}") })
}

/// The pattern that means exactly this path.
pub(crate) fn path_pattern(path: &str) -> String {
    let path = path.strip_prefix("./").unwrap_or(path);
    let mut pattern = if path.contains('/') && !path.starts_with('@') { String::new() } else { "./".to_owned() };
    for (at, c) in path.char_indices() {
        if matches!(c, '?' | '*' | '[' | ']' | '{' | '}' | '\\') || (at == 0 && matches!(c, '!' | '~')) {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern
}

/// Patterns for hosts; those with a `!` in front say what the others do not mean.
#[derive(Clone, Debug)]
pub(crate) struct HostPatterns {
    pub(crate) sources: Vec<String>,
    include: Vec<HostPattern>,
    exclude: Vec<HostPattern>,
}

impl HostPatterns {
    pub(crate) fn parse(patterns: &[String]) -> Result<Self, String> {
        let (exclude, include) = split_exclusions(patterns);
        check_not_all_excluded(&include, &exclude, &["*"])?;
        let parse = |patterns: Vec<&str>| patterns.into_iter().map(HostPattern::parse).collect::<Result<Vec<_>, _>>();
        Ok(Self { sources: patterns.to_vec(), include: parse(include)?, exclude: parse(exclude)? })
    }

    /// The patterns with this endpoint taken out, where that can be written and leaves a part of each that is about the
    /// host.
    pub(crate) fn sources_without(patterns: &[String], endpoint: &str) -> Option<Vec<String>> {
        let pattern = host_pattern(endpoint)?;
        let out = HostPattern::parse(&pattern).ok()?;
        let patterns: Vec<String> = patterns.iter().cloned().chain([format!("!{pattern}")]).collect();
        let left = Self::parse(&patterns).ok()?;
        (!left.include.iter().any(|host| host.is_within(&out)) && !left.matches(endpoint, MatchBreadth::Wide))
            .then_some(patterns)
    }

    /// `target` is `host:port`, with `/path` behind it where that is known.
    pub(crate) fn matches(&self, target: &str, breadth: MatchBreadth) -> bool {
        let (host, path) = split_path(target);
        let (name, port) = split_port(host);
        let any = |hosts: &[HostPattern], breadth| {
            hosts.iter().any(|host| host.matches_name(&name, port, breadth) && host.path.matches(path, breadth))
        };
        (self.include.is_empty() || any(&self.include, breadth)) && !any(&self.exclude, breadth.inverse())
    }
}

#[derive(Clone, Debug)]
struct HostPattern {
    name: HostNamePattern,
    port: Option<u16>,
    path: UrlPathPrefix,
}

/// Prefix of the URL paths of a host; empty for all.
#[derive(Clone, Debug)]
struct UrlPathPrefix(String);

impl UrlPathPrefix {
    /// A path that is not known, such as that of an encrypted connection, is never allowed by its beginning, and always
    /// forbidden by it. The same holds where servers differ about what the path is.
    fn matches(&self, path: Option<&str>, breadth: MatchBreadth) -> bool {
        let prefix = self.0.trim_end_matches('/');
        let Some(path) = path.filter(|_| !self.0.is_empty()) else {
            return self.0.is_empty() || breadth == MatchBreadth::Wide;
        };
        let begins = |path: &str, prefix: &str| {
            path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        match breadth {
            _ if is_ambiguous_path(path) => breadth == MatchBreadth::Wide,
            MatchBreadth::Narrow => begins(path, prefix),
            MatchBreadth::Wide => begins(&path.to_lowercase(), &prefix.to_lowercase()),
        }
    }
}

/// Whether a server could take the path for another one: escaped letters, steps up, empty names.
fn is_ambiguous_path(path: &str) -> bool {
    path.contains(['%', '\\', ';']) || path.contains("//") || path.split('/').any(|name| matches!(name, "." | ".."))
}

#[derive(Clone, Debug)]
enum HostNamePattern {
    Any,
    Exact(String),
    /// Every host below a domain, with the dot.
    Subdomains(String),
}

impl HostPattern {
    fn parse(pattern: &str) -> Result<Self, String> {
        let refuse = |problem: &str| {
            Err(format!("`{pattern}` {problem}; write a host such as `docs.rs` or `*.docs.rs:443/std/`"))
        };
        if pattern.contains("://") || pattern.contains(['@', '?', '#']) {
            return refuse("has more than a host and a path");
        }
        if !pattern.is_ascii() {
            return refuse("has characters that are not ASCII: write it with `xn--`");
        }
        let (host, path) = split_path(pattern);
        if path.is_some_and(|path| is_ambiguous_path(path) || path.contains('*')) {
            return refuse("has an ambiguous path, or a `*` in its path");
        }
        let (name, port) = split_port(host);
        if name.contains(':') && !name.starts_with('[') {
            return refuse("has an invalid port, or is an IPv6 address without `[` and `]`");
        }
        if port == Some(0) {
            return refuse("has an invalid port");
        }
        let name = match name.strip_prefix("*.") {
            _ if name == "*" && !host.starts_with("*.") => HostNamePattern::Any,
            Some(domain) if is_host(domain) => HostNamePattern::Subdomains(format!(".{domain}")),
            None if is_host(&name) => HostNamePattern::Exact(name),
            _ => return refuse("is not a valid host"),
        };
        Ok(Self { name, port, path: UrlPathPrefix(path.unwrap_or_default().to_owned()) })
    }

    /// Whether another one has all of this, but perhaps for ports.
    fn is_within(&self, other: &Self) -> bool {
        let path = if self.path.0.is_empty() { "/" } else { &self.path.0 };
        let same = matches!((&self.name, &other.name), (HostNamePattern::Exact(one), HostNamePattern::Exact(other)) if one == other);
        same && (other.path.0.is_empty() || other.path.matches(Some(path), MatchBreadth::Narrow))
    }

    fn matches_name(&self, name: &str, port: Option<u16>, breadth: MatchBreadth) -> bool {
        let named = match &self.name {
            HostNamePattern::Any => true,
            HostNamePattern::Exact(exact) => name == exact,
            HostNamePattern::Subdomains(domain) => name.len() > domain.len() && name.ends_with(domain.as_str()),
        };
        let at_port = match (self.port, breadth) {
            (Some(wanted), MatchBreadth::Wide) => port.is_none_or(|port| port == wanted),
            (Some(wanted), MatchBreadth::Narrow) => port == Some(wanted),
            (None, MatchBreadth::Wide) => true,
            // A rule that allows a host means its web pages, not other services on it.
            (None, MatchBreadth::Narrow) => matches!(port, Some(80 | 443)),
        };
        named && at_port
    }
}

fn is_host(name: &str) -> bool {
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':');
    !bare.is_empty() && bare.chars().all(known) && !bare.split('.').any(str::is_empty)
}

/// The host and its port, and the path with its slash.
fn split_path(text: &str) -> (&str, Option<&str>) {
    text.find('/').map_or((text, None), |at| (&text[..at], Some(&text[at..])))
}

/// The pattern for this endpoint and everything below its path, where one can be written.
pub(crate) fn host_pattern(endpoint: &str) -> Option<String> {
    let host = HostPattern::parse(endpoint).ok()?;
    (matches!(host.name, HostNamePattern::Exact(_)) && host.port.is_some()).then(|| endpoint.to_owned())
}

/// `host:port` as DNS compares it: without letter case, and without the dot that may stand at the end.
fn split_port(text: &str) -> (String, Option<u16>) {
    let (name, port) = match text.rsplit_once(':').map(|(name, port)| (name, port.parse().ok())) {
        Some((name, Some(port))) if !name.contains(':') || name.ends_with(']') => (name, Some(port)),
        _ => (text, None),
    };
    (name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase(), port)
}

/// The patterns with a `!` in front, without it, and the others.
fn split_exclusions(patterns: &[String]) -> (Vec<&str>, Vec<&str>) {
    let (exclude, include): (Vec<&str>, Vec<&str>) =
        patterns.iter().map(String::as_str).partition(|pattern| pattern.starts_with('!'));
    (exclude.into_iter().map(|pattern| &pattern[1..]).collect(), include)
}

fn check_not_all_excluded(include: &[&str], exclude: &[&str], everything: &[&str]) -> Result<(), String> {
    let excluded = |pattern: &&str| exclude.contains(pattern);
    if everything.iter().any(excluded) || (!include.is_empty() && include.iter().all(excluded)) {
        return Err("it never matches: everything that it includes is also excluded".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use proptest::prelude::*;

    use super::{CandidatePath, HostPatterns, MatchBreadth, PathPatterns, path_pattern};

    fn owned(patterns: &[&str]) -> Vec<String> {
        patterns.iter().map(|pattern| (*pattern).to_owned()).collect()
    }

    /// Whether a path is meant by patterns: in a rule that asks or denies, and in one that allows.
    #[track_caller]
    fn check(patterns: &[&str], path: &str, [wide, narrow]: [bool; 2]) {
        let paths = PathPatterns::parse(&owned(patterns)).unwrap();
        let name = CandidatePath::new(path);
        assert_eq!(paths.matches(&name, MatchBreadth::Wide), wide, "{patterns:?} wide: {path}");
        assert_eq!(paths.matches(&name, MatchBreadth::Narrow), narrow, "{patterns:?} narrow: {path}");
    }

    const BOTH: [bool; 2] = [true, true];
    const WIDE: [bool; 2] = [true, false];
    const NEITHER: [bool; 2] = [false, false];

    #[test]
    fn a_pattern_without_a_slash_is_a_name_at_any_depth() {
        for path in ["a.rs", "src/a.rs", "src/b/a.rs", "./a.rs"] {
            check(&["*.rs"], path, BOTH);
            check(&["a.rs"], path, BOTH);
        }
        check(&["*.rs"], "a.rst", NEITHER);
        check(&["./a.rs"], "a.rs", BOTH);
        check(&["./a.rs"], "src/a.rs", NEITHER);
    }

    #[test]
    fn a_star_stays_within_a_name_and_two_do_not() {
        check(&["src/*"], "src/a", BOTH);
        check(&["src/*/c"], "src/a/b/c", NEITHER);
        check(&["src/**"], "src/a/b/c", BOTH);
        check(&["src/**/c"], "src/c", BOTH);
        check(&["**"], ".", BOTH);
        check(&["{src,docs}/**"], "docs/a", BOTH);
        check(&["src/**"], "source/a", NEITHER);
    }

    #[test]
    fn a_forbidding_pattern_covers_directories_and_their_contents() {
        check(&["private/**"], "private", WIDE);
        check(&["private"], "private/a/b", WIDE);
        check(&["private"], "a/private/b", WIDE);
        check(&["a/*"], "a/b/c", WIDE);
        check(&["private/*"], "private", NEITHER);
        check(&["private/**"], "privateer", NEITHER);
    }

    #[test]
    fn a_forbidding_pattern_matches_every_spelling_and_an_allowing_one_only_its_own() {
        for other in [".ENV", ".Env", ".e\u{200b}nv", ".env.", ".env "] {
            check(&[".env"], other, WIDE);
        }
        check(&["SRC/**"], "src/a", WIDE);
        check(&["stra\u{df}e"], "STRASSE", WIDE);
        check(&["\u{212a}ey"], "key", WIDE);
        check(&["caf\u{e9}/**"], "CAFE\u{301}/a", WIDE);
        check(&["cafe\u{301}/**"], "caf\u{e9}/a", WIDE);
        check(&["a."], "a.", BOTH);
    }

    #[test]
    fn an_exclusion_reaches_the_other_way() {
        let patterns = ["src/**", "!src/keys/**"];
        check(&patterns, "src/a", BOTH);
        check(&patterns, "src/keys/a", NEITHER);
        // A rule that denies all but `keys` denies `KEYS`; one that allows all but `keys` does not allow `KEYS`.
        check(&patterns, "src/KEYS/a", WIDE);
        check(&patterns, "src/keys", WIDE);
        check(&["!docs/**"], "src/a", BOTH);
        check(&["!docs/**"], "docs/a", NEITHER);
    }

    #[track_caller]
    fn refused(patterns: &[&str], expected: Expect) {
        expected.assert_eq(&PathPatterns::parse(&owned(patterns)).unwrap_err());
    }

    #[test]
    fn a_pattern_that_can_match_nothing_is_refused() {
        refused(
            &["/etc/passwd"],
            expect!["`/etc/passwd` never matches: paths are relative to their mount, such as `src/**`"],
        );
        refused(&["~/x"], expect!["`~/x` never matches: paths are relative to their mount, such as `src/**`"]);
        refused(&["@pkg/a/**"], expect![[r#"`@pkg/a/**` never matches: write `mount = "pkg"` and `path = "a/**"`"#]]);
        refused(&["src/"], expect!["`src/` never matches: to match a directory and its contents, write `src/**`"]);
        refused(&["../a"], expect!["`../a` never matches: remove empty names, `.` and `..` from the path"]);
        refused(&["a//b"], expect!["`a//b` never matches: remove empty names, `.` and `..` from the path"]);
        refused(&[""], expect!["`` never matches: remove empty names, `.` and `..` from the path"]);
        refused(&["a", "b", "!b", "!a"], expect!["it never matches: everything that it includes is also excluded"]);
        refused(&["a", "!**"], expect!["it never matches: everything that it includes is also excluded"]);
        refused(&["[a"], expect!["invalid pattern `[a`: unclosed character class; missing ']'"]);
        refused(
            &["a/{b"],
            expect![[
                r#"invalid pattern `a/{b`: unclosed alternate group; missing '}' (maybe escape '{' with '[{]'?)"#
            ]],
        );
        refused(&[&"x".repeat(1025)], expect!["a pattern may have at most 1024 bytes and 10 `{`"]);
        refused(&[&"{a,b}".repeat(11)], expect!["a pattern may have at most 1024 bytes and 10 `{`"]);
    }

    #[test]
    fn a_pattern_may_be_as_long_as_it_may_be() {
        for pattern in ["x".repeat(1024), "{a,b}".repeat(10)] {
            PathPatterns::parse(&[pattern]).unwrap();
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_pattern_of_a_path_means_that_path_and_no_other(path in "[a-c!@~*?{}\\[\\]\\\\]{1,6}(/[a-c*!]{1,3}){0,2}", other in "[a-c/]{1,8}") {
            let paths = PathPatterns::parse(&[path_pattern(&path)]).unwrap();
            prop_assert!(paths.matches(&CandidatePath::new(&path), MatchBreadth::Narrow), "{}", path_pattern(&path));
            prop_assert_eq!(paths.matches(&CandidatePath::new(&other), MatchBreadth::Narrow), other == path);
        }
    }

    #[track_caller]
    fn check_host(patterns: &[&str], target: &str, [wide, narrow]: [bool; 2]) {
        let hosts = HostPatterns::parse(&owned(patterns)).unwrap();
        assert_eq!(hosts.matches(target, MatchBreadth::Wide), wide, "{patterns:?} wide: {target}");
        assert_eq!(hosts.matches(target, MatchBreadth::Narrow), narrow, "{patterns:?} narrow: {target}");
    }

    #[test]
    fn a_host_is_exact_or_below_a_domain() {
        for target in ["docs.rs:443", "docs.rs:80", "DOCS.rs:443", "docs.rs.:443"] {
            check_host(&["docs.rs"], target, BOTH);
            check_host(&["Docs.RS."], target, BOTH);
            check_host(&["*"], target, BOTH);
            check_host(&["*.docs.rs"], target, NEITHER);
        }
        check_host(&["*.docs.rs"], "a.b.docs.rs:443", BOTH);
        for other in ["evildocs.rs:443", "docs.rs.evil.org:443", ".docs.rs:443", "docs:443"] {
            check_host(&["docs.rs", "*.docs.rs"], other, NEITHER);
        }
        check_host(&["[::1]"], "[::1]:443", BOTH);
        check_host(&["[::1]:8080"], "[::1]:8080", BOTH);
    }

    #[test]
    fn without_a_port_a_host_is_all_of_them_to_forbid_and_the_web_to_allow() {
        check_host(&["docs.rs"], "docs.rs:22", WIDE);
        check_host(&["docs.rs:22"], "docs.rs:22", BOTH);
        check_host(&["docs.rs:22"], "docs.rs:443", NEITHER);
        check_host(&["docs.rs:22"], "docs.rs", WIDE);
        // The end of an IPv6 address without brackets is not a port.
        check_host(&["*:22"], "::22", WIDE);
        check_host(&["*", "!docs.rs"], "docs.rs:443", NEITHER);
        check_host(&["*", "!docs.rs"], "docs.rs:22", WIDE);
    }

    #[test]
    fn a_path_is_meant_from_its_beginning_name_by_name() {
        for pattern in ["docs.rs/std", "docs.rs/std/", "docs.rs:443/std"] {
            for target in ["docs.rs:443/std", "docs.rs:443/std/", "docs.rs:443/std/vec/index.html"] {
                check_host(&[pattern], target, BOTH);
            }
            check_host(&[pattern], "docs.rs:443/STD/vec", WIDE);
            for other in ["docs.rs:443/", "docs.rs:443/stdx", "docs.rs:443/a/std", "evil.org:443/std"] {
                check_host(&[pattern], other, NEITHER);
            }
        }
        check_host(&["docs.rs/"], "docs.rs:443/std", BOTH);
        check_host(&["docs.rs"], "docs.rs:443/std", BOTH);
        check_host(&["*.docs.rs/a"], "b.docs.rs:80/a/c", BOTH);
        check_host(&["[::1]:80/a"], "[::1]:80/a", BOTH);
        check_host(&["docs.rs", "!docs.rs/private"], "docs.rs:443/private/a", NEITHER);
        check_host(&["docs.rs", "!docs.rs/private"], "docs.rs:443/public", BOTH);
    }

    #[test]
    fn a_path_that_is_not_known_or_not_clear_is_never_allowed_by_its_beginning() {
        check_host(&["docs.rs/std"], "docs.rs:443", WIDE);
        for path in ["std/%2e%2e/x", "std/..%2fx", "std/../x", "std//x", "std\\x", "std/;x", "%73td"] {
            check_host(&["docs.rs/std"], &format!("docs.rs:443/{path}"), WIDE);
        }
        check_host(&["docs.rs"], "docs.rs:443/%2e%2e/x", BOTH);
    }

    #[test]
    fn an_invalid_host_is_refused() {
        for bad in [
            "",
            "https://docs.rs/",
            "docs.rs/a?b",
            "docs.rs/a/*",
            "docs.rs/a/../b",
            "docs.rs/%61",
            "/a",
            "a@b",
            "*.",
            "*docs.rs",
            "*.*.b",
            "*.a..b",
            "*.a*",
            "a.*.b",
            "a:b",
            "a:99999",
            "a:0",
            "::1",
            "a..b",
            "é.fr",
        ] {
            assert!(HostPatterns::parse(&owned(&[bad])).is_err(), "{bad}");
        }
        assert!(HostPatterns::parse(&owned(&["*", "!*"])).is_err());
    }
}
