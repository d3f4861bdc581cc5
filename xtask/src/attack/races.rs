//! Race conditions: links and pipes that are swapped in while a server works, and concurrent edits of several clients.
//!
//! The control checks a path and then opens it by its name. The time is per tool and server; the number of calls is
//! reported, because a race that is lost once in ten thousand calls is lost.

use std::fs;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use ringfence_testkit::swap_race::PathSwapper;

use super::mcp_client::{AttackClient, AttackReply};
use super::peer_servers::{ControlMode, FileOperation, ServerDialect, ServerProgram, edit_call, programs, tool_call};
use super::scoreboard::{AttackOutcome, ScoreCell, ScoreRow, Scoreboard};
use super::testbed::{AttackTestbed, SEARCHED_LINE};
use crate::print_status;

/// Operations while `d` alternates between a directory and a link out.
const RACES: &[(FileOperation, &str)] = &[
    (FileOperation::Read, "d/secret.txt"),
    (FileOperation::Info, "d/secret.txt"),
    (FileOperation::List, "d"),
    (FileOperation::Find, "."),
    (FileOperation::Search, "."),
    (FileOperation::Write, "d/new.txt"),
    (FileOperation::Edit, "d/secret.txt"),
    (FileOperation::MakeDirectory, "d/made"),
    (FileOperation::MoveOut, "d/secret.txt"),
    (FileOperation::MoveIn, "d/moved.txt"),
];

/// Calls that a race has, if they can be made in six times the time.
const MIN_CALLS: u32 = 200;

/// Number of clients that edit one file concurrently, and of edits each.
const CLIENTS: usize = 8;
const EDITS: usize = 12;

pub(crate) fn run(ours: &Path, dir: &Path, time: Duration) -> io::Result<Scoreboard> {
    let (programs, notes) = programs(ours, ControlMode::Checked);
    let mut rows = Vec::new();
    let mut enter = |name: String, race: &dyn Fn(&ServerProgram) -> io::Result<ScoreCell>| {
        print_status(&format!("  {name}"));
        let cells: io::Result<Vec<ScoreCell>> = programs.iter().map(race).collect();
        cells.map(|cells| rows.push(ScoreRow { name, cells }))
    };
    for (act, path) in RACES {
        enter(format!("{} while a link is swapped in", act.label()), &|program| {
            race_operation(program, dir, *act, path, time)
        })?;
    }
    enter("read while a FIFO is swapped in".to_owned(), &|program| race_with_fifo(program, dir, time))?;
    enter(format!("{CLIENTS} servers edit one file"), &|program| many_servers(program, dir))?;
    enter(format!("one server, {} edits at once", CLIENTS * EDITS), &|program| one_server(program, dir))?;
    let columns = programs.into_iter().map(|program| program.title).collect();
    let title = format!("Races, {} s per tool and server", time.as_secs());
    Ok(Scoreboard { title, columns, rows, notes })
}

fn race_operation(
    program: &ServerProgram,
    dir: &Path,
    act: FileOperation,
    path: &str,
    time: Duration,
) -> io::Result<ScoreCell> {
    let stage = AttackTestbed::new(dir)?;
    let workspace = stage.workspace();
    let (name, link) = (workspace.join("d"), workspace.join("link"));
    let inside = format!("{SEARCHED_LINE} inside\n");
    stage.write("d/secret.txt", &inside)?;
    symlink(stage.outside(), &link)?;
    // The directory itself, whatever it is called.
    let held = fs::File::open(&name)?;
    let real = PathBuf::from(format!("/proc/self/fd/{}", held.as_raw_fd()));
    let path = workspace.join(path).display().to_string();
    let Some((tool, arguments)) = tool_call(program.dialect, act, &path, &workspace) else {
        return Ok(ScoreCell::new(AttackOutcome::NotApplicable, ""));
    };
    let Some(mut client) = AttackClient::start(program, &stage.base) else {
        return Ok(ScoreCell::new(AttackOutcome::Crashed, "at the start"));
    };
    let _swapped = PathSwapper::start(name, link);
    let (started, mut calls, mut bad, mut worst) = (Instant::now(), 0_u32, 0_u32, AttackOutcome::Held);
    let is_control = program.dialect == ServerDialect::Control;
    // On a busy machine a race goes on for longer: until it had some rounds, and the control until it lost.
    let shows = |calls, worst| if is_control { worst != AttackOutcome::Held } else { calls >= MIN_CALLS };
    while started.elapsed() < time || (started.elapsed() < time * 6 && !shows(calls, worst)) {
        let reply = client.call(tool, &arguments);
        let outcome = stage.classify_reply(&reply);
        calls += 1;
        if outcome != AttackOutcome::Held {
            bad += 1;
            worst = worst.max(outcome);
            if !matches!(reply, AttackReply::Message(_)) {
                break;
            }
            stage.restore()?;
        }
        // A file that the call used up is restored for the next one; a transient failure is retried then.
        match act {
            FileOperation::MoveOut => {
                let _ = fs::remove_file(workspace.join("stolen"));
                let _ = fs::write(real.join("secret.txt"), &inside);
            }
            FileOperation::MoveIn => stage.write("inside.txt", &inside)?,
            FileOperation::MakeDirectory => drop(fs::remove_dir(real.join("made"))),
            FileOperation::Edit => drop(fs::write(real.join("secret.txt"), &inside)),
            _ => {}
        }
    }
    Ok(ScoreCell::new(worst, format!("{bad} of {calls} calls")))
}

fn race_with_fifo(program: &ServerProgram, dir: &Path, time: Duration) -> io::Result<ScoreCell> {
    let stage = AttackTestbed::new(dir)?;
    let workspace = stage.workspace();
    stage.write("f", "text\n")?;
    stage.pipe("pipe")?;
    let path = workspace.join("f").display().to_string();
    let Some((tool, arguments)) = tool_call(program.dialect, FileOperation::Read, &path, &workspace) else {
        return Ok(ScoreCell::new(AttackOutcome::NotApplicable, ""));
    };
    let Some(mut client) = AttackClient::start(program, &stage.base) else {
        return Ok(ScoreCell::new(AttackOutcome::Crashed, "at the start"));
    };
    let _swapped = PathSwapper::start(workspace.join("f"), workspace.join("pipe"));
    let (started, mut calls) = (Instant::now(), 0_u32);
    while started.elapsed() < time {
        calls += 1;
        match stage.classify_reply(&client.call(tool, &arguments)) {
            AttackOutcome::Held => {}
            bad => return Ok(ScoreCell::new(bad, format!("in call {calls}"))),
        }
    }
    Ok(ScoreCell::new(AttackOutcome::Held, format!("0 of {calls} calls")))
}

fn many_servers(program: &ServerProgram, dir: &Path) -> io::Result<ScoreCell> {
    let stage = shared_testbed(dir)?;
    let path = stage.workspace().join("shared").display().to_string();
    let start = Barrier::new(CLIENTS);
    let acknowledged: Vec<usize> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (stage, path, start) = (&stage, &path, &start);
                scope.spawn(move || {
                    let server = AttackClient::start(program, &stage.base);
                    start.wait();
                    let Some(mut server) = server else { return Vec::new() };
                    let done = |number: &usize| {
                        let (tool, arguments) = numbered_edit(program, path, *number);
                        server.call(tool, &arguments).is_success()
                    };
                    ((client * EDITS)..((client + 1) * EDITS)).filter(done).collect()
                })
            })
            .collect();
        clients.into_iter().flat_map(|client| client.join().unwrap_or_default()).collect()
    });
    Ok(count_kept_edits(&stage, &acknowledged))
}

fn one_server(program: &ServerProgram, dir: &Path) -> io::Result<ScoreCell> {
    let stage = shared_testbed(dir)?;
    let path = stage.workspace().join("shared").display().to_string();
    let Some(mut client) = AttackClient::start(program, &stage.base) else {
        return Ok(ScoreCell::new(AttackOutcome::Crashed, "at the start"));
    };
    let calls: Vec<_> = (0..CLIENTS * EDITS).map(|number| numbered_edit(program, &path, number)).collect();
    let done = client.call_concurrently(&calls);
    let acknowledged: Vec<usize> =
        done.iter().enumerate().filter(|(_, done)| **done).map(|(number, _)| number).collect();
    Ok(count_kept_edits(&stage, &acknowledged))
}

fn shared_testbed(dir: &Path) -> io::Result<AttackTestbed> {
    let stage = AttackTestbed::new(dir)?;
    let lines: String = (0..CLIENTS * EDITS).map(|number| format!("line {number} old\n")).collect();
    stage.write("shared", lines)?;
    Ok(stage)
}

fn numbered_edit(program: &ServerProgram, path: &str, number: usize) -> (&'static str, serde_json::Value) {
    edit_call(program.dialect, path, &format!("line {number} old\n"), &format!("line {number} new\n"))
}

/// Whether each acknowledged edit is in the file.
fn count_kept_edits(stage: &AttackTestbed, acknowledged: &[usize]) -> ScoreCell {
    let text = String::from_utf8_lossy(&stage.read("shared")).into_owned();
    let lost = acknowledged.iter().filter(|number| !text.contains(&format!("line {number} new\n"))).count();
    let is_torn = text.lines().count() != CLIENTS * EDITS;
    let outcome = match lost > 0 || is_torn {
        true => AttackOutcome::Lost,
        // Nothing was shown by who does nothing.
        false if acknowledged.is_empty() => AttackOutcome::NotApplicable,
        false => AttackOutcome::Held,
    };
    ScoreCell::new(outcome, format!("{lost} of {} acknowledged", acknowledged.len()))
}
