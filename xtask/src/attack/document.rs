//! The scoreboards as text, and their place in `docs/security.md`. The text around them is written by hand.

use std::fs;
use std::process::Command;

use super::board::Board;

pub(crate) fn text(boards: &[Board]) -> String {
    let mut text = String::new();
    for board in boards {
        text += &format!("### {}\n\n{}\n", board.title, board.table());
        for note in &board.notes {
            text += &format!("- {note}\n");
        }
        if !board.notes.is_empty() {
            text.push('\n');
        }
    }
    text
}

/// The page with these boards in the place of those that it had for this part. Nothing if it has no marks for it.
pub(crate) fn put(page: &str, part: &str, boards: &[Board]) -> Option<String> {
    let (begin, end) = marks(part);
    let (before, rest) = page.split_once(&begin)?;
    let (_, after) = rest.split_once(&end)?;
    let printed = format!("Printed by `cargo xtask attack {part}` on {}.", machine());
    Some(format!("{before}{begin}\n{printed}\n\n{}{end}{after}", text(boards)))
}

fn marks(part: &str) -> (String, String) {
    (format!("<!-- attack {part}: begin -->\n"), format!("<!-- attack {part}: end -->\n"))
}

/// What it ran on, and when.
fn machine() -> String {
    let said = |program: &str, words: &[&str]| {
        let output = Command::new(program).args(words).output().ok();
        output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
    };
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let version: Vec<&str> = release.trim().split(['.', '-']).take(2).collect();
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{}, Linux {}, {processors} processors", said("date", &["-u", "+%Y-%m-%d"]), version.join("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boards_take_the_place_between_the_marks_and_no_other() {
        let (begin, end) = marks("web");
        let page = format!("above\n{begin}old\n{end}below\n");
        let put = put(&page, "web", &[]).unwrap_or_default();
        assert!(put.starts_with("above\n") && put.ends_with("below\n") && !put.contains("old"), "{put}");
        assert_eq!(super::put(&page, "files", &[]), None);
    }

    #[test]
    fn the_page_has_a_place_for_every_part() {
        let page = fs::read_to_string(crate::root().join("docs/security.md")).unwrap_or_default();
        for part in crate::attack::PARTS {
            assert!(put(&page, part, &[]).is_some(), "{part}");
        }
    }
}
