//! Scoreboards as text, and their section in `docs/security.md`. The text around them is written by hand.

use std::fs;
use std::process::Command;

use super::scoreboard::Scoreboard;
use crate::doc_markers;

const SECURITY_PAGE: &str = "docs/security.md";

pub(crate) fn text(boards: &[Scoreboard]) -> String {
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

/// Writes the boards of a part into their section. False, with a message, if that fails.
pub(crate) fn write(part: &str, boards: &[Scoreboard]) -> bool {
    let printed = format!("Printed by `cargo xtask attack {part}` on {}.", machine());
    doc_markers::write(SECURITY_PAGE, &name(part), &format!("\n{printed}\n\n{}", text(boards)))
}

fn name(part: &str) -> String {
    format!("attack {part}")
}

/// The machine, and the date.
fn machine() -> String {
    let output_of = |program: &str, words: &[&str]| {
        let output = Command::new(program).args(words).output().ok();
        output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
    };
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let version: Vec<&str> = release.trim().split(['.', '-']).take(2).collect();
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{}, Linux {}, {processors} processors", output_of("date", &["-u", "+%Y-%m-%d"]), version.join("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_a_place_for_every_part() {
        let page = fs::read_to_string(crate::root().join(SECURITY_PAGE)).unwrap_or_default();
        for part in crate::attack::PARTS {
            assert!(doc_markers::replace_between(&page, &name(part), "").is_some(), "{part}");
        }
    }
}
