//! `cargo xtask attack`: the attacks, the races, the escapes and the ways inward as one scoreboard, ours beside the peers'.
//!
//! In every table ours comes first, and an unsafe control last, which must not hold: otherwise the attack is
//! ineffective. The tables go to standard output, and each part's between its two marks in `docs/security.md`. It fails
//! where ours does not hold or the control does; the results of the peers are only reported.

mod control_server;
mod file_attacks;
mod jail_escapes;
mod mcp_client;
mod peer_sandboxes;
mod peer_servers;
mod races;
mod resource_abuse;
mod scoreboard;
mod security_page;
mod ssrf;
mod testbed;

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;
use std::time::Duration;

use serde_json::json;

use self::scoreboard::Scoreboard;
use crate::{print_status, root};

pub(crate) use self::control_server::serve as control;
pub(crate) use self::ssrf::run_in_namespace as web_inside;

const PARTS: [&str; 4] = ["files", "races", "jails", "web"];
/// Directory in memory, so that a race has many rounds.
const TMPFS_DIR: &str = "/dev/shm";
const DEFAULT_RACE_SECONDS: u64 = 10;

/// Options of the command line.
struct AttackOptions {
    time: Duration,
    is_json: bool,
    parts: Vec<String>,
}

/// False if ours did not hold, the control did, or nothing could be tried.
pub(crate) fn run(words: &[&str]) -> bool {
    let Some(options) = AttackOptions::parse(words) else {
        print_status(crate::USAGE);
        return false;
    };
    if !crate::run_cargo(&["build", "--quiet", "--package", "ringfence"], &[]) {
        return false;
    }
    match boards(&options) {
        Ok(boards) => report(&options, &boards).unwrap_or_else(|error| {
            print_status(&format!("the scoreboard cannot be written: {error}"));
            false
        }),
        Err(error) => {
            print_status(&format!("the attacks cannot be made: {error}"));
            false
        }
    }
}

impl AttackOptions {
    fn parse(words: &[&str]) -> Option<Self> {
        let mut options = Self { time: Duration::from_secs(DEFAULT_RACE_SECONDS), is_json: false, parts: Vec::new() };
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
fn boards(options: &AttackOptions) -> io::Result<Vec<(&'static str, Vec<Scoreboard>)>> {
    let ours = root().join("target/debug/ringfence");
    let disk = root().join("target/tmp/attack-stages");
    fs::create_dir_all(&disk)?;
    let memory = Some(Path::new(TMPFS_DIR)).filter(|memory| memory.is_dir()).unwrap_or(&disk);
    let mut boards = Vec::new();
    for part in PARTS.into_iter().filter(|part| options.has(part)) {
        print_status(part);
        let of_part = match part {
            "files" => vec![file_attacks::run(&ours, &disk)?],
            "races" => vec![races::run(&ours, memory, options.time)?],
            "jails" => jail_escapes::run(&ours)?,
            _ => vec![ssrf::run(&ours)?],
        };
        boards.push((part, of_part));
    }
    Ok(boards)
}

fn report(options: &AttackOptions, parts: &[(&str, Vec<Scoreboard>)]) -> io::Result<bool> {
    let boards: Vec<Scoreboard> = parts.iter().flat_map(|(_, boards)| boards.clone()).collect();
    let text = match options.is_json {
        true => format!("{}\n", json!({"boards": boards.iter().map(Scoreboard::json).collect::<Vec<_>>()})),
        false => security_page::text(&boards),
    };
    io::stdout().lock().write_all(text.as_bytes())?;
    for board in &boards {
        board.failures().iter().for_each(|complaint| print_status(&format!("{}: {complaint}", board.title)));
    }
    let is_written = parts.iter().all(|(part, boards)| security_page::write(part, boards));
    Ok(is_written && boards.iter().all(Scoreboard::passed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_words_that_are_known() {
        let check = |words: &[&str], fine| assert_eq!(AttackOptions::parse(words).is_some(), fine, "{words:?}");
        check(&[], true);
        check(&["--seconds", "3", "races", "--json"], true);
        check(&["--seconds"], false);
        check(&["--seconds", "soon"], false);
        check(&["everything"], false);
    }
}
