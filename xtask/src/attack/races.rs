//! What happens at the same time: links and pipes that are swapped in while a server works, and edits of several clients.
//!
//! The control checks a path and then opens it by its name. The time is per tool and server; the count of calls is told,
//! because a race that is lost once in ten thousand calls is lost.

use std::fs;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use super::board::{Board, Cell, Outcome, Row};
use super::client::{Client, Reply};
use super::servers::{Act, Control, Dialect, Program, edit, phrase, programs};
use super::stage::{LINE, Stage};
use super::swapped::Swapped;
use crate::say;

/// What is done while `d` is a directory one moment and a link out the next.
const RACES: &[(Act, &str)] = &[
    (Act::Read, "d/secret.txt"),
    (Act::Info, "d/secret.txt"),
    (Act::List, "d"),
    (Act::Find, "."),
    (Act::Search, "."),
    (Act::Write, "d/new.txt"),
    (Act::Edit, "d/secret.txt"),
    (Act::MakeDirectory, "d/made"),
    (Act::Take, "d/secret.txt"),
    (Act::Put, "d/moved.txt"),
];

/// Calls that a race has, if they can be made in six times the time.
const FEWEST: u32 = 200;

/// Who edits one file at once, and how often each.
const CLIENTS: usize = 8;
const EDITS: usize = 12;

pub(crate) fn run(ours: &Path, place: &Path, time: Duration) -> io::Result<Board> {
    let (programs, notes) = programs(ours, Control::Checked);
    let mut rows = Vec::new();
    let mut enter = |name: String, race: &dyn Fn(&Program) -> io::Result<Cell>| {
        say(&format!("  {name}"));
        let cells: io::Result<Vec<Cell>> = programs.iter().map(race).collect();
        cells.map(|cells| rows.push(Row { name, cells }))
    };
    for (act, path) in RACES {
        enter(format!("{} while a link is swapped in", act.word()), &|program| {
            raced(program, place, *act, path, time)
        })?;
    }
    enter("read while a FIFO is swapped in".to_owned(), &|program| with_pipe(program, place, time))?;
    enter(format!("{CLIENTS} servers edit one file"), &|program| many_servers(program, place))?;
    enter(format!("one server, {} edits at once", CLIENTS * EDITS), &|program| one_server(program, place))?;
    let columns = programs.into_iter().map(|program| program.title).collect();
    let title = format!("Races, {} s per tool and server", time.as_secs());
    Ok(Board { title, columns, rows, notes })
}

fn raced(program: &Program, place: &Path, act: Act, path: &str, time: Duration) -> io::Result<Cell> {
    let stage = Stage::new(place)?;
    let workspace = stage.workspace();
    let (name, link) = (workspace.join("d"), workspace.join("link"));
    let inside = format!("{LINE} inside\n");
    stage.write("d/secret.txt", &inside)?;
    symlink(stage.outside(), &link)?;
    // The directory itself, whatever it is called.
    let held = fs::File::open(&name)?;
    let real = PathBuf::from(format!("/proc/self/fd/{}", held.as_raw_fd()));
    let path = workspace.join(path).display().to_string();
    let Some((tool, arguments)) = phrase(program.dialect, act, &path, &workspace) else {
        return Ok(Cell::new(Outcome::Missing, ""));
    };
    let Some(mut client) = Client::start(program, &stage.base) else {
        return Ok(Cell::new(Outcome::Crashed, "at the start"));
    };
    let _swapped = Swapped::start(name, link);
    let (started, mut calls, mut bad, mut worst) = (Instant::now(), 0_u32, 0_u32, Outcome::Held);
    let is_control = program.dialect == Dialect::Control;
    // On a busy machine a race goes on for longer: until it had some rounds, and the control until it lost.
    let shows = |calls, worst| if is_control { worst != Outcome::Held } else { calls >= FEWEST };
    while started.elapsed() < time || (started.elapsed() < time * 6 && !shows(calls, worst)) {
        let reply = client.call(tool, &arguments);
        let outcome = stage.judge(&reply);
        calls += 1;
        if outcome != Outcome::Held {
            bad += 1;
            worst = worst.max(outcome);
            if !matches!(reply, Reply::Said(_)) {
                break;
            }
            stage.restore()?;
        }
        // What the call used up is there again for the next one; what is in the way for a moment is tried again then.
        match act {
            Act::Take => {
                let _ = fs::remove_file(workspace.join("stolen"));
                let _ = fs::write(real.join("secret.txt"), &inside);
            }
            Act::Put => stage.write("inside.txt", &inside)?,
            Act::MakeDirectory => drop(fs::remove_dir(real.join("made"))),
            Act::Edit => drop(fs::write(real.join("secret.txt"), &inside)),
            _ => {}
        }
    }
    Ok(Cell::new(worst, format!("{bad} of {calls} calls")))
}

fn with_pipe(program: &Program, place: &Path, time: Duration) -> io::Result<Cell> {
    let stage = Stage::new(place)?;
    let workspace = stage.workspace();
    stage.write("f", "text\n")?;
    stage.pipe("pipe")?;
    let path = workspace.join("f").display().to_string();
    let Some((tool, arguments)) = phrase(program.dialect, Act::Read, &path, &workspace) else {
        return Ok(Cell::new(Outcome::Missing, ""));
    };
    let Some(mut client) = Client::start(program, &stage.base) else {
        return Ok(Cell::new(Outcome::Crashed, "at the start"));
    };
    let _swapped = Swapped::start(workspace.join("f"), workspace.join("pipe"));
    let (started, mut calls) = (Instant::now(), 0_u32);
    while started.elapsed() < time {
        calls += 1;
        match stage.judge(&client.call(tool, &arguments)) {
            Outcome::Held => {}
            bad => return Ok(Cell::new(bad, format!("in call {calls}"))),
        }
    }
    Ok(Cell::new(Outcome::Held, format!("0 of {calls} calls")))
}

fn many_servers(program: &Program, place: &Path) -> io::Result<Cell> {
    let stage = shared(place)?;
    let path = stage.workspace().join("shared").display().to_string();
    let start = Barrier::new(CLIENTS);
    let acknowledged: Vec<usize> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (stage, path, start) = (&stage, &path, &start);
                scope.spawn(move || {
                    let server = Client::start(program, &stage.base);
                    start.wait();
                    let Some(mut server) = server else { return Vec::new() };
                    let done = |number: &usize| {
                        let (tool, arguments) = numbered(program, path, *number);
                        server.call(tool, &arguments).is_success()
                    };
                    ((client * EDITS)..((client + 1) * EDITS)).filter(done).collect()
                })
            })
            .collect();
        clients.into_iter().flat_map(|client| client.join().unwrap_or_default()).collect()
    });
    Ok(kept(&stage, &acknowledged))
}

fn one_server(program: &Program, place: &Path) -> io::Result<Cell> {
    let stage = shared(place)?;
    let path = stage.workspace().join("shared").display().to_string();
    let Some(mut client) = Client::start(program, &stage.base) else {
        return Ok(Cell::new(Outcome::Crashed, "at the start"));
    };
    let calls: Vec<_> = (0..CLIENTS * EDITS).map(|number| numbered(program, &path, number)).collect();
    let done = client.call_at_once(&calls);
    let acknowledged: Vec<usize> =
        done.iter().enumerate().filter(|(_, done)| **done).map(|(number, _)| number).collect();
    Ok(kept(&stage, &acknowledged))
}

fn shared(place: &Path) -> io::Result<Stage> {
    let stage = Stage::new(place)?;
    let lines: String = (0..CLIENTS * EDITS).map(|number| format!("line {number} old\n")).collect();
    stage.write("shared", lines)?;
    Ok(stage)
}

fn numbered(program: &Program, path: &str, number: usize) -> (&'static str, serde_json::Value) {
    edit(program.dialect, path, &format!("line {number} old\n"), &format!("line {number} new\n"))
}

/// Whether each edit that was acknowledged is in the file.
fn kept(stage: &Stage, acknowledged: &[usize]) -> Cell {
    let text = String::from_utf8_lossy(&stage.read("shared")).into_owned();
    let lost = acknowledged.iter().filter(|number| !text.contains(&format!("line {number} new\n"))).count();
    let is_torn = text.lines().count() != CLIENTS * EDITS;
    let outcome = match lost > 0 || is_torn {
        true => Outcome::Lost,
        // Nothing was shown by who does nothing.
        false if acknowledged.is_empty() => Outcome::Missing,
        false => Outcome::Held,
    };
    Cell::new(outcome, format!("{lost} of {} acknowledged", acknowledged.len()))
}
