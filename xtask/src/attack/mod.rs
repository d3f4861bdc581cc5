//! `cargo xtask attack`: the attacks, the races, the escapes and the ways inward as one scoreboard, ours beside the peers'.
//!
//! In every table ours comes first, and an unsafe control last, which must not hold: otherwise the attack is none. The tables
//! go to standard output, and each part's between its two marks in `docs/security.md`. It fails where ours does not hold or
//! the control does; who else holds is told and nothing more.

mod abuse;
#[path = "../../../crates/ringfence-sandbox/tests/it/attempts/mod.rs"]
mod attempts;
mod board;
mod catalogue;
mod client;
mod control;
mod document;
mod inward;
mod jails;
mod races;
mod sandboxes;
mod servers;
mod stage;
#[path = "../../../crates/ringfence/tests/it/swapped.rs"]
mod swapped;

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;
use std::time::Duration;

use serde_json::json;

use self::board::Board;
use crate::{root, say};

pub(crate) use self::control::serve as control;
pub(crate) use self::inward::run_inside as web_inside;

const PARTS: [&str; 4] = ["files", "races", "jails", "web"];
/// Where files are in memory, so that a race has many rounds.
const MEMORY: &str = "/dev/shm";
const SECONDS: u64 = 10;

/// What was asked for.
struct Options {
    time: Duration,
    is_json: bool,
    parts: Vec<String>,
}

/// False if ours did not hold, the control did, or nothing could be tried.
pub(crate) fn run(words: &[&str]) -> bool {
    let Some(options) = Options::read(words) else {
        say(crate::USAGE);
        return false;
    };
    if !crate::run(&["build", "--quiet", "--package", "ringfence"], &[]) {
        return false;
    }
    match boards(&options) {
        Ok(boards) => report(&options, &boards).unwrap_or_else(|error| {
            say(&format!("the scoreboard cannot be written: {error}"));
            false
        }),
        Err(error) => {
            say(&format!("the attacks cannot be made: {error}"));
            false
        }
    }
}

impl Options {
    fn read(words: &[&str]) -> Option<Self> {
        let mut options = Self { time: Duration::from_secs(SECONDS), is_json: false, parts: Vec::new() };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match *word {
                "--json" => options.is_json = true,
                "--seconds" => options.time = Duration::from_secs(words.next()?.parse().ok()?),
                part if PARTS.contains(&part) => options.parts.push(part.to_owned()),
                _ => return None,
            }
        }
        Some(options)
    }

    fn has(&self, part: &str) -> bool {
        self.parts.is_empty() || self.parts.iter().any(|wanted| wanted == part)
    }
}

/// By part.
fn boards(options: &Options) -> io::Result<Vec<(&'static str, Vec<Board>)>> {
    let ours = root().join("target/debug/ringfence");
    let disk = root().join("target/tmp/attack-stages");
    fs::create_dir_all(&disk)?;
    let memory = Some(Path::new(MEMORY)).filter(|memory| memory.is_dir()).unwrap_or(&disk);
    let mut boards = Vec::new();
    for part in PARTS.into_iter().filter(|part| options.has(part)) {
        say(part);
        let of_part = match part {
            "files" => vec![catalogue::run(&ours, &disk)?],
            "races" => vec![races::run(&ours, memory, options.time)?],
            "jails" => jails::run(&ours)?,
            _ => vec![inward::run(&ours)?],
        };
        boards.push((part, of_part));
    }
    Ok(boards)
}

fn report(options: &Options, parts: &[(&str, Vec<Board>)]) -> io::Result<bool> {
    let boards: Vec<Board> = parts.iter().flat_map(|(_, boards)| boards.clone()).collect();
    let text = match options.is_json {
        true => format!("{}\n", json!({"boards": boards.iter().map(Board::json).collect::<Vec<_>>()})),
        false => document::text(&boards),
    };
    io::stdout().lock().write_all(text.as_bytes())?;
    for board in &boards {
        board.complaints().iter().for_each(|complaint| say(&format!("{}: {complaint}", board.title)));
    }
    let is_written = parts.iter().all(|(part, boards)| document::write(part, boards));
    Ok(is_written && boards.iter().all(Board::is_fine))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_words_that_are_known() {
        let check = |words: &[&str], fine| assert_eq!(Options::read(words).is_some(), fine, "{words:?}");
        check(&[], true);
        check(&["--seconds", "3", "races", "--json"], true);
        check(&["--seconds"], false);
        check(&["--seconds", "soon"], false);
        check(&["everything"], false);
    }
}
