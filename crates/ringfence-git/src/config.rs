//! Git config files: the keys that may be read from one, and nothing else.
//!
//! A config names programs in more ways than a list of bad keys could have. So a repository's config is not filtered: a new
//! one is written, from values that are numbers, switches and names of references. Includes are not followed.
//!
//! Not here: giving it to git (`repository.rs`).

use std::fmt::Write as _;

/// Largest config file that is read.
pub(crate) const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// Name and mail address for commits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GitIdentity {
    pub name: Option<String>,
    pub email: Option<String>,
}

impl GitIdentity {
    /// The identity in a person's config file. Nothing else of it is used.
    pub fn from_config(text: &str) -> Self {
        let value = |name: &str| {
            let entries = parse(text).into_iter().rev();
            let mut found = entries.filter(|entry| entry.section == "user" && entry.subsection.is_none());
            found.find(|entry| entry.name == name).map(|entry| entry.value).filter(|value| is_plain_line(value))
        };
        Self { name: value("name"), email: value("email") }
    }

    /// Where one says nothing, what the other says.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self { name: self.name.or(other.name), email: self.email.or(other.email) }
    }

    /// As a config file of its own.
    pub fn to_config(&self) -> String {
        let mut text = String::from("[user]\n");
        for (name, value) in [("name", &self.name), ("email", &self.email)] {
            if let Some(value) = value {
                let _ = writeln!(text, "\t{name} = \"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""));
            }
        }
        text
    }
}

fn is_plain_line(value: &str) -> bool {
    !value.is_empty() && value.len() <= 200 && !value.chars().any(char::is_control)
}

/// A value of a config file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ConfigEntry {
    /// In lower case.
    section: String,
    subsection: Option<String>,
    /// In lower case.
    name: String,
    value: String,
}

/// Kinds of values that are taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SafeValue {
    Switch,
    Number,
    /// One of these.
    Word(&'static [&'static str]),
    /// The name of a reference or a remote, or a refspec.
    Reference,
}

/// The keys that git needs to read a repository rightly. The second part says whether there is a subsection.
const SAFE_KEYS: [(&str, bool, &str, SafeValue); 14] = [
    ("core", false, "repositoryformatversion", SafeValue::Number),
    ("core", false, "filemode", SafeValue::Switch),
    ("core", false, "ignorecase", SafeValue::Switch),
    ("core", false, "precomposeunicode", SafeValue::Switch),
    ("core", false, "symlinks", SafeValue::Switch),
    ("core", false, "sparsecheckout", SafeValue::Switch),
    ("core", false, "sparsecheckoutcone", SafeValue::Switch),
    ("core", false, "autocrlf", SafeValue::Word(&["true", "false", "input"])),
    ("core", false, "eol", SafeValue::Word(&["lf", "crlf", "native"])),
    ("extensions", false, "objectformat", SafeValue::Word(&["sha1", "sha256"])),
    ("extensions", false, "refstorage", SafeValue::Word(&["files", "reftable"])),
    ("branch", true, "remote", SafeValue::Reference),
    ("branch", true, "merge", SafeValue::Reference),
    ("remote", true, "fetch", SafeValue::Reference),
];

/// Settings of every reading command, whatever the repository says. Files in the jail have other owners and inodes than the
/// index has noted, which says nothing about their contents. A commit graph may say other things about a commit than it does.
const READING_CONFIG: &str = "[core]
	bare = false
	fsmonitor = false
	untrackedCache = false
	hooksPath = /dev/null
	attributesFile = /dev/null
	excludesFile = /dev/null
	checkStat = minimal
	trustctime = false
	quotePath = false
	commitGraph = false
[log]
	showSignature = false
[submodule]
	recurse = false
";

/// The config for reading a repository whose own config is `text`.
pub(crate) fn reading_config(text: &str) -> String {
    let mut config = String::new();
    for entry in parse(text) {
        let key = SAFE_KEYS.iter().find(|(section, has_subsection, name, _)| {
            entry.section == *section && entry.subsection.is_some() == *has_subsection && entry.name == *name
        });
        let Some((section, _, name, _)) = key.filter(|(.., kind)| kind.permits(&entry.value)) else { continue };
        let _ = match &entry.subsection {
            None => writeln!(config, "[{section}]\n\t{name} = {}", entry.value),
            Some(subsection) if is_reference(subsection) => {
                writeln!(config, "[{section} \"{subsection}\"]\n\t{name} = {}", entry.value)
            }
            Some(_) => Ok(()),
        };
    }
    config + READING_CONFIG
}

/// The URL of a remote in a repository's config.
pub(crate) fn remote_url(text: &str, remote: &str) -> Option<String> {
    let is_url = |entry: &ConfigEntry| {
        entry.section == "remote" && entry.subsection.as_deref() == Some(remote) && entry.name == "url"
    };
    parse(text).into_iter().find(is_url).map(|entry| entry.value)
}

impl SafeValue {
    fn permits(self, value: &str) -> bool {
        match self {
            Self::Switch => ["true", "false", "yes", "no", "on", "off", "1", "0"].contains(&value),
            Self::Number => value.len() == 1 && value.bytes().all(|byte| byte.is_ascii_digit()),
            Self::Word(words) => words.contains(&value),
            Self::Reference => is_reference(value.trim_start_matches('+')),
        }
    }
}

fn is_reference(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '_' | '.' | '*' | ':' | '-' | '+' | '@' | '#');
    !text.is_empty() && text.len() <= 300 && !text.starts_with('-') && text.chars().all(plain)
        // These start a comment where they are not quoted.
        && !text.starts_with('#')
        && !text.contains(" #")
}

/// The values of a config file. What git would refuse, or could read in another way, is left out.
fn parse(text: &str) -> Vec<ConfigEntry> {
    let mut entries = Vec::new();
    let mut header: Option<(String, Option<String>)> = None;
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let mut rest = line.trim();
        if let Some(opened) = rest.strip_prefix('[') {
            let Some((inside, after)) = split_header(opened) else {
                header = None;
                continue;
            };
            header = parse_header(inside);
            rest = after.trim();
        }
        if rest.is_empty() || rest.starts_with(['#', ';']) {
            continue;
        }
        let (name, value) = rest.split_once('=').map_or((rest, None), |(name, value)| (name, Some(value)));
        let name = name.trim().to_ascii_lowercase();
        let value = match value {
            // A key alone means true.
            None => Some("true".to_owned()),
            Some(value) => parse_value(value, &mut lines),
        };
        if let (Some((section, subsection)), Some(value)) = (&header, value)
            && name.starts_with(|c: char| c.is_ascii_alphabetic())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
        {
            entries.push(ConfigEntry { section: section.clone(), subsection: subsection.clone(), name, value });
        }
    }
    entries
}

/// The inside of a section header, and what follows on its line.
fn split_header(opened: &str) -> Option<(&str, &str)> {
    let (mut quoted, mut escaped) = (false, false);
    for (index, c) in opened.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            ']' if !quoted => return Some((&opened[..index], &opened[index + 1..])),
            _ => {}
        }
    }
    None
}

fn parse_header(inside: &str) -> Option<(String, Option<String>)> {
    let is_name = |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    match inside.split_once('"') {
        None => is_name(inside).then(|| (inside.to_ascii_lowercase(), None)),
        Some((name, quoted)) => {
            let name = name.trim_end();
            let subsection = unescape(quoted.strip_suffix('"')?);
            is_name(name).then(|| (name.to_ascii_lowercase(), Some(subsection)))
        }
    }
}

fn unescape(text: &str) -> String {
    let mut plain = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        plain.extend(if c == '\\' { chars.next() } else { Some(c) });
    }
    plain
}

/// A value without its quotes and comments. `None` for one that git would refuse.
fn parse_value<'a>(first: &'a str, more: &mut impl Iterator<Item = &'a str>) -> Option<String> {
    let mut value = String::new();
    // Bytes that stay at the end: those that are quoted.
    let mut kept = 0;
    let mut quoted = false;
    let mut line = first.trim_start();
    'lines: loop {
        let mut chars = line.chars();
        while let Some(c) = chars.next() {
            match c {
                '"' => quoted = !quoted,
                '#' | ';' if !quoted => break 'lines,
                '\\' => match chars.next() {
                    None => {
                        line = more.next()?;
                        continue 'lines;
                    }
                    Some('n') => value.push('\n'),
                    Some('t') => value.push('\t'),
                    Some(c @ ('\\' | '"')) => value.push(c),
                    Some(_) => return None,
                },
                c => value.push(c),
            }
            if quoted || c == '\\' {
                kept = value.len();
            }
        }
        break;
    }
    if quoted {
        return None;
    }
    let end = value.trim_end().len().max(kept.min(value.len()));
    value.truncate(end);
    Some(value)
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(config: &str, expected: Expect) {
        let read = reading_config(config);
        expected.assert_eq(read.strip_suffix(READING_CONFIG).unwrap());
    }

    #[test]
    fn keys_that_say_how_to_read_a_repository_are_taken_over() {
        check(
            "[core]\n\trepositoryformatversion = 1\n\tfilemode = true ; as on disk\n\tIgnoreCase\n[extensions] objectFormat = sha256\n\
             [branch \"feature/a-b\"]\n\tremote = origin\n\tmerge = refs/heads/main\n\
             [remote \"origin\"]\n\turl = https://example.org/x.git\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n",
            expect![[r#"
                [core]
                	repositoryformatversion = 1
                [core]
                	filemode = true
                [core]
                	ignorecase = true
                [extensions]
                	objectformat = sha256
                [branch "feature/a-b"]
                	remote = origin
                [branch "feature/a-b"]
                	merge = refs/heads/main
                [remote "origin"]
                	fetch = +refs/heads/*:refs/remotes/origin/*
            "#]],
        );
    }

    #[test]
    fn nothing_else_is() {
        for config in [
            "[core]\n\tfsmonitor = /bin/evil\n\thooksPath = evil\n\tpager = evil\n\teditor = evil\n\tsshCommand = evil\n",
            "[include]\n\tpath = evil\n[includeIf \"gitdir:/\"]\n\tpath = evil\n",
            "[filter \"a\"]\n\tclean = evil\n\tsmudge = evil\n\tprocess = evil\n\trequired\n",
            "[diff \"a\"]\n\ttextconv = evil\n\tcommand = evil\n[diff]\n\texternal = evil\n[merge \"a\"]\n\tdriver = evil\n",
            "[extensions]\n\tworktreeConfig = true\n\tpartialClone = origin\n",
            "[core]\n\tautocrlf = true\\\n\tevil = x\n",
            "[core]\n\tfilemode = \"true\n\tfsmonitor = evil\"\n",
            "[core]\n\trepositoryformatversion = 1\\n[x]\n",
            "[branch \"a\\\"]\\n[core]\"]\n\tremote = origin\n",
            "[branch \"a\"]\n\tremote = ext::sh -c evil\n\tmerge = -x\n[branch \"-x\"]\n\tmerge = a\n",
            "[core]\n\trepositoryformatversion = 10\n\tfilemode = maybe\n",
            "[core\n\tfilemode = true\n",
            "[core.fsmonitor]\n\tfilemode = true\n",
            "filemode = true\n",
        ] {
            assert_eq!(reading_config(config), READING_CONFIG, "{config}");
        }
    }

    #[test]
    fn an_identity_is_a_name_and_an_address() {
        let check = |config: &str, name: Option<&str>, email: Option<&str>| {
            let identity = GitIdentity::from_config(config);
            assert_eq!((identity.name.as_deref(), identity.email.as_deref()), (name, email), "{config}");
        };
        check("[user]\n\tname = A Person\n\temail = a@example.org # mine\n", Some("A Person"), Some("a@example.org"));
        check("[user]\n\tname = \"A \\\"P\\\" \"\n[USER]\n\tEmail = a@b\n", Some("A \"P\" "), Some("a@b"));
        check("[user]\n\tname = one\n\tname = two\n", Some("two"), None);
        check("[user]\n\tname = a\\nb\n[user \"x\"]\n\temail = a@b\n[core]\n\teditor = evil\n", None, None);
        check("", None, None);
        let identity = GitIdentity { name: Some("A \"P\" \\".to_owned()), email: Some("a@b".to_owned()) };
        assert_eq!(GitIdentity::from_config(&identity.to_config()), identity);
    }

    proptest! {
        #[test]
        fn any_text_becomes_a_config_of_the_permitted_keys(text in "(\\[[a-z\" \\\\.]{0,9}\\]|[a-z\"=#; \\\\\t]{0,12}|\n){0,30}") {
            let config = reading_config(&text);
            let keys = config.strip_suffix(READING_CONFIG).unwrap().lines().filter(|line| line.starts_with('\t'));
            for line in keys {
                let name = line.trim_start().split(" = ").next().unwrap();
                prop_assert!(SAFE_KEYS.iter().any(|(_, _, key, _)| *key == name), "{line}");
            }
        }
    }
}
