//! `cargo xtask diffs`: patches as models write them, applied by our server.
//!
//! Changes of this repository's own history, each in the forms that models give to diffs, are sent to `apply_patch` of a
//! real server. A patch is right if it makes the file of the next commit, refused if the file stays, and wrong otherwise.
//! The choice of changes depends on the history alone, oldest first, so it stays the same while that grows.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::surface::SurfaceServer;
use crate::{print_status, root};

const CHANGES: usize = 80;

/// Of the commits that change sources or texts, every so-many-th is looked at.
const COMMIT_STEP: usize = 4;

/// Most lines of a file, and most changed lines of a change.
const MOST_FILE_LINES: usize = 3000;
const MOST_CHANGED_LINES: usize = 60;

/// Least share of patches that must be right, in percent.
const MIN_RIGHT: usize = 80;

const PATH: &str = "src/file.rs";

/// A change of one file.
struct HistoryChange {
    old: String,
    new: String,
    /// Its hunks with as many lines of context: none, 1, 3 and 10.
    hunks: [Vec<DiffHunk>; 4],
}

const CONTEXTS: [usize; 4] = [0, 1, 3, 10];

#[derive(Clone)]
struct DiffHunk {
    old_start: usize,
    new_start: usize,
    /// The line that git names behind the numbers.
    section: String,
    /// A mark, and the line without its end.
    lines: Vec<(char, String)>,
}

/// A patch for a file, and the contents that it means.
struct DiffCase {
    old: String,
    patch: String,
    new: String,
}

type DiffForm = (&'static str, fn(&HistoryChange) -> DiffCase);

const FORMS: [DiffForm; 29] = [
    ("git diff", |change| change.unified(3, DiffHunk::header)),
    ("git diff, 1 line of context", |change| change.unified(1, DiffHunk::header)),
    ("git diff, no context", |change| change.unified(0, DiffHunk::header)),
    ("git diff, 10 lines of context", |change| change.unified(10, DiffHunk::header)),
    ("no `diff --git` line", |change| {
        change.case(change.body(3, &format!("--- a/{PATH}\n+++ b/{PATH}\n"), DiffHunk::header))
    }),
    ("no `a/` and `b/`", |change| change.case(change.body(3, &format!("--- {PATH}\n+++ {PATH}\n"), DiffHunk::header))),
    ("counts too large", |change| change.unified(3, |hunk| hunk.header_with(0, 2))),
    ("counts left out", |change| change.unified(3, |hunk| format!("@@ -{} +{} @@", hunk.old_start, hunk.new_start))),
    ("lines further down", |change| change.unified(3, |hunk| hunk.header_with(7, 0))),
    ("all hunks at line 1", |change| {
        change.unified(3, |hunk| DiffHunk { old_start: 1, new_start: 1, ..hunk.clone() }.header_with(0, 0))
    }),
    ("`@@` without numbers", |change| change.unified(3, |_| "@@".to_owned())),
    ("`@@ ... @@`", |change| change.unified(3, |_| "@@ ... @@".to_owned())),
    ("`@@ fn …`", |change| change.unified(3, |hunk| format!("@@ {}", hunk.section).trim_end().to_owned())),
    ("context without its space", |change| {
        change.unified_lines(|line| line.strip_prefix(' ').unwrap_or(line).to_owned())
    }),
    ("blank lines without their space", |change| {
        change.unified_lines(|line| if line == " " { String::new() } else { line.to_owned() })
    }),
    ("blanks at line ends lost", |change| change.unified_lines(|line| line.trim_end().to_owned())),
    ("blanks at line ends added", |change| {
        change.unified_lines(|line| if line.starts_with('+') { line.to_owned() } else { format!("{line}  ") })
    }),
    ("CRLF patch", |change| {
        let case = change.unified(3, DiffHunk::header);
        DiffCase { patch: case.patch.replace('\n', "\r\n"), ..case }
    }),
    ("CRLF file", |change| {
        let case = change.unified(3, DiffHunk::header);
        DiffCase { old: case.old.replace('\n', "\r\n"), new: case.new.replace('\n', "\r\n"), ..case }
    }),
    ("code fence", |change| {
        let case = change.unified(3, DiffHunk::header);
        DiffCase {
            patch: format!("Here is the patch:\n\n```diff\n{}```\n\nIt does what you asked.\n", case.patch),
            ..case
        }
    }),
    ("no newline at its end", |change| {
        let case = change.unified(3, DiffHunk::header);
        DiffCase { patch: case.patch.trim_end_matches('\n').to_owned(), ..case }
    }),
    ("ASCII quotes and dashes", |change| {
        let hunks = change.hunks(3).iter().map(|hunk| hunk.map_old(to_ascii)).collect::<Vec<_>>();
        change.case(unified_text(&hunks, &git_header(), |_| "@@".to_owned()))
    }),
    ("indentation lost, no numbers", |change| {
        let hunks: Vec<DiffHunk> = change.hunks(3).iter().map(DiffHunk::without_indentation).collect();
        change.case(unified_text(&hunks, &git_header(), |_| "@@".to_owned()))
    }),
    ("a hunk twice", |change| {
        let hunks: Vec<DiffHunk> = change.hunks(3).iter().flat_map(|hunk| [hunk.clone(), hunk.clone()]).collect();
        change.case(unified_text(&hunks, &git_header(), DiffHunk::header))
    }),
    ("V4A", |change| change.v4a(3, |_| "@@".to_owned())),
    ("V4A with anchors", |change| change.v4a(3, |hunk| format!("@@ {}", hunk.section).trim_end().to_owned())),
    ("V4A with anchors, 1 line of context", |change| {
        change.v4a(1, |hunk| format!("@@ {}", hunk.section).trim_end().to_owned())
    }),
    ("V4A in a shell command", |change| {
        let case = change.v4a(3, |_| "@@".to_owned());
        DiffCase { patch: format!("apply_patch <<'EOF'\n{}EOF\n", case.patch), ..case }
    }),
    ("V4A, indentation lost", |change| {
        let hunks: Vec<DiffHunk> = change.hunks(3).iter().map(DiffHunk::without_indentation).collect();
        change.case(v4a_text(&hunks, |_| "@@".to_owned()))
    }),
];

#[derive(Default)]
struct FormTally {
    right: usize,
    refused: usize,
    wrong: usize,
}

pub(crate) fn run() -> bool {
    if !crate::run_cargo(&["build", "--quiet", "--package", "ringfence"], &[]) {
        return false;
    }
    let Some(changes) = history_changes() else {
        print_status("git cannot read the history of this repository");
        return false;
    };
    let dir = root().join("target/tmp/diffs");
    let _ = fs::remove_dir_all(&dir);
    if fs::create_dir_all(dir.join("files/src")).is_err() {
        return false;
    }
    let Some(mut server) = SurfaceServer::start("standard", &dir) else {
        print_status("the server could not be run");
        return false;
    };
    let mut all = FormTally::default();
    print_status(&format!("{} changes in {} forms\n\n{:36} right refused WRONG", changes.len(), FORMS.len(), "form"));
    for (name, form) in FORMS {
        let mut tally = FormTally::default();
        for (number, change) in changes.iter().enumerate() {
            let case = form(change);
            match try_case(&mut server, &dir, &case) {
                Some(CaseResult::Right) => tally.right += 1,
                Some(CaseResult::Refused) => tally.refused += 1,
                Some(CaseResult::Wrong) => {
                    tally.wrong += 1;
                    let _ = fs::write(dir.join(format!("wrong-{number}-{}", tally.wrong)), &case.patch);
                    print_status(&format!("wrong: change {number} as {name}"));
                }
                None => {
                    print_status("the server ended");
                    return false;
                }
            }
        }
        let FormTally { right, refused, wrong } = tally;
        print_status(&format!("{name:36} {right:5} {refused:7} {wrong:5}"));
        all = FormTally { right: all.right + right, refused: all.refused + refused, wrong: all.wrong + wrong };
    }
    let total = (all.right + all.refused + all.wrong).max(1);
    print_status(&format!("{:36} {:5} {:7} {:5}", "all", all.right, all.refused, all.wrong));
    print_status(&format!("{} % right; at least {MIN_RIGHT} % and none wrong is wanted", 100 * all.right / total));
    all.wrong == 0 && 100 * all.right >= MIN_RIGHT * total && changes.len() == CHANGES
}

enum CaseResult {
    Right,
    Refused,
    Wrong,
}

/// Nothing where the server does not answer.
fn try_case(server: &mut SurfaceServer, dir: &Path, case: &DiffCase) -> Option<CaseResult> {
    let file = dir.join("files").join(PATH);
    fs::write(&file, &case.old).ok()?;
    let call = json!({"name": "apply_patch", "arguments": {"patch": case.patch}});
    let result = server.request("tools/call", &call)?;
    let now = fs::read_to_string(&file).ok()?;
    let is_error = result["isError"] == true;
    Some(match () {
        () if is_error && now == case.old => CaseResult::Refused,
        () if !is_error && now == case.new => CaseResult::Right,
        () => CaseResult::Wrong,
    })
}

impl HistoryChange {
    fn hunks(&self, context: usize) -> &[DiffHunk] {
        let at = CONTEXTS.iter().position(|known| *known == context).unwrap_or_default();
        &self.hunks[at]
    }

    fn case(&self, patch: String) -> DiffCase {
        DiffCase { old: self.old.clone(), patch, new: self.new.clone() }
    }

    fn body(&self, context: usize, head: &str, header: impl Fn(&DiffHunk) -> String) -> String {
        unified_text(self.hunks(context), head, header)
    }

    fn unified(&self, context: usize, header: impl Fn(&DiffHunk) -> String) -> DiffCase {
        self.case(self.body(context, &git_header(), header))
    }

    /// The whole diff, with the lines of its hunks as a model writes them.
    fn unified_lines(&self, write: impl Fn(&str) -> String) -> DiffCase {
        let mut patch = git_header();
        for hunk in self.hunks(3) {
            let _ = writeln!(patch, "{}", hunk.header());
            for (mark, line) in &hunk.lines {
                let _ = writeln!(patch, "{}", write(&format!("{mark}{line}")));
            }
        }
        self.case(patch)
    }

    fn v4a(&self, context: usize, header: impl Fn(&DiffHunk) -> String) -> DiffCase {
        self.case(v4a_text(self.hunks(context), header))
    }
}

impl DiffHunk {
    fn count(&self, other: char) -> usize {
        self.lines.iter().filter(|(mark, _)| *mark != other).count()
    }

    fn header(&self) -> String {
        let section = if self.section.is_empty() { String::new() } else { format!(" {}", self.section) };
        self.header_with(0, 0) + &section
    }

    /// The header with numbers and counts that are too large by so much.
    fn header_with(&self, lines: usize, counts: usize) -> String {
        let [old, new] = ['+', '-'].map(|other| self.count(other) + counts);
        format!("@@ -{},{old} +{},{new} @@", self.old_start + lines, self.new_start + lines)
    }

    /// The hunk with other old lines; what it adds stays.
    fn map_old(&self, map: fn(&str) -> String) -> Self {
        let line = |(mark, line): &(char, String)| (*mark, if *mark == '+' { line.clone() } else { map(line) });
        Self { lines: self.lines.iter().map(line).collect(), ..self.clone() }
    }

    /// Without the blanks that all its lines begin with.
    fn without_indentation(&self) -> Self {
        let indent = |line: &str| line.len() - line.trim_start_matches(' ').len();
        let filled = self.lines.iter().filter(|(_, line)| !line.trim().is_empty());
        let least = filled.map(|(_, line)| indent(line)).min().unwrap_or(0);
        let cut = |line: &str| line.get(least.min(indent(line))..).unwrap_or_default().to_owned();
        let lines = self.lines.iter().map(|(mark, line)| (*mark, cut(line))).collect();
        Self { lines, ..self.clone() }
    }

    fn body(&self) -> String {
        self.lines.iter().fold(String::new(), |mut body, (mark, line)| {
            let _ = writeln!(body, "{mark}{line}");
            body
        })
    }
}

fn git_header() -> String {
    format!("diff --git a/{PATH} b/{PATH}\nindex 1111111..2222222 100644\n--- a/{PATH}\n+++ b/{PATH}\n")
}

fn unified_text(hunks: &[DiffHunk], head: &str, header: impl Fn(&DiffHunk) -> String) -> String {
    let bodies: String = hunks.iter().map(|hunk| format!("{}\n{}", header(hunk), hunk.body())).collect();
    format!("{head}{bodies}")
}

fn v4a_text(hunks: &[DiffHunk], header: impl Fn(&DiffHunk) -> String) -> String {
    let head = format!("*** Begin Patch\n*** Update File: {PATH}\n");
    unified_text(hunks, &head, header) + "*** End Patch\n"
}

fn to_ascii(line: &str) -> String {
    line.replace(['“', '”'], "\"").replace(['‘', '’'], "'").replace(['–', '—'], "-")
}

/// The changes of the history; nothing where git fails.
fn history_changes() -> Option<Vec<HistoryChange>> {
    let commits = git(&["log", "--no-merges", "--reverse", "--format=%H", "--diff-filter=M", "--", "*.rs", "*.md"])?;
    let mut changes = Vec::new();
    for commit in commits.lines().step_by(COMMIT_STEP) {
        let parent = format!("{commit}^");
        let Some(names) = git(&["diff", "--name-only", "--diff-filter=M", &parent, commit, "--", "*.rs", "*.md"])
        else {
            continue;
        };
        changes.extend(names.lines().find_map(|name| history_change(&parent, commit, name)));
        if changes.len() == CHANGES {
            break;
        }
    }
    Some(changes)
}

fn history_change(parent: &str, commit: &str, name: &str) -> Option<HistoryChange> {
    let old = git(&["show", &format!("{parent}:{name}")])?;
    let new = git(&["show", &format!("{commit}:{name}")])?;
    let is_plain = |text: &str| text.ends_with('\n') && !text.contains('\r') && text.lines().count() <= MOST_FILE_LINES;
    if !is_plain(&old) || !is_plain(&new) {
        return None;
    }
    let hunks = |context: usize| {
        let diff = git(&["diff", "--no-color", "--no-ext-diff", &format!("-U{context}"), parent, commit, "--", name])?;
        parse_hunks(&diff)
    };
    let hunks = [hunks(CONTEXTS[0])?, hunks(CONTEXTS[1])?, hunks(CONTEXTS[2])?, hunks(CONTEXTS[3])?];
    let changed: usize = hunks[0].iter().map(|hunk| hunk.lines.len()).sum();
    (0 < changed && changed <= MOST_CHANGED_LINES).then_some(HistoryChange { old, new, hunks })
}

fn parse_hunks(diff: &str) -> Option<Vec<DiffHunk>> {
    let mut hunks: Vec<DiffHunk> = Vec::new();
    for line in diff.lines() {
        if let Some(header) = line.strip_prefix("@@ -") {
            let (numbers, section) = header.split_once(" @@")?;
            let (old, new) = numbers.split_once(" +")?;
            let start = |range: &str| range.split(',').next()?.parse::<usize>().ok();
            let (old_start, new_start) = (start(old)?, start(new)?);
            hunks.push(DiffHunk { old_start, new_start, section: section.trim().to_owned(), lines: Vec::new() });
        } else if let Some(hunk) = hunks.last_mut() {
            let mark = line.chars().next().filter(|mark| [' ', '+', '-'].contains(mark))?;
            hunk.lines.push((mark, line[1..].to_owned()));
        }
    }
    Some(hunks)
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(root()).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8(output.stdout).ok())?
}

#[cfg(test)]
mod tests {
    use super::{DiffHunk, parse_hunks, v4a_text};

    #[test]
    fn hunks_of_a_diff_are_read_and_written_again() {
        let text = "@@ -3,3 +3,3 @@ fn f() {\n     a\n-    b\n+    c\n     d\n";
        let hunks = parse_hunks(&format!("--- a/f\n+++ b/f\n{text}")).unwrap();
        assert_eq!(hunks.len(), 1);
        assert_eq!(format!("{}\n{}", hunks[0].header(), hunks[0].body()), text);
        assert_eq!(hunks[0].header_with(7, 2), "@@ -10,5 +10,5 @@");
        let cut: Vec<DiffHunk> = hunks.iter().map(DiffHunk::without_indentation).collect();
        assert!(v4a_text(&cut, |hunk| format!("@@ {}", hunk.section)).contains("@@ fn f() {\n a\n-b\n+c\n d\n***"));
    }
}
