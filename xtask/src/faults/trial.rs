//! One trial: a workspace, a call, a fault in the middle of it, and what is there afterwards.
//!
//! After every fault the workspace is opened once more, as whoever comes next would, and then: every file has its old or its
//! new contents and nothing else is there; what was answered is there; an error did not change anything unless it says so; the
//! chain of the audit log holds; the journal lists what is there, and takes it back; the store opens.

use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use std::{fs, io};

use serde_json::{Value, json};

use super::disk::Disk;
use super::operations::{ACKNOWLEDGED, Claim, Front, LAST_WORDS, Opened, Operation, call, claim};
use super::site::{Ended, PATIENCE, Site, Tree};
use super::strace::{Point, Tamper, Tracer, failed_on_file, points};
use super::talk::{Heard, Talk};

#[derive(Clone, Debug)]
pub(super) enum Fault {
    Kill(Point),
    Fail(Point, &'static str),
    /// A kill, and the power goes in the same moment.
    Power(Point),
    /// The power goes when the call has just been answered.
    PowerAfter,
    /// So many bytes are left on the disk.
    Full(u64),
    /// The disk becomes read-only in the middle of the call.
    ReadOnly(Point),
    /// The clock goes by so much, as `faketime` writes it.
    Clock(Point, &'static str),
}

impl Fault {
    /// The column that it is counted in.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Kill(_) => "kill",
            Self::Fail(_, error) => error,
            Self::Power(_) | Self::PowerAfter => "power cut",
            Self::Full(_) => "full disk",
            Self::ReadOnly(_) => "read-only",
            Self::Clock(..) => "clock",
        }
    }

    pub(super) fn needs_disk(&self) -> bool {
        matches!(self, Self::Power(_) | Self::PowerAfter | Self::Full(_) | Self::ReadOnly(_))
    }

    fn tamper(&self) -> Option<Tamper<'_>> {
        match self {
            Self::Kill(point) | Self::Power(point) => Some(Tamper::Kill(point)),
            Self::Fail(point, error) => Some(Tamper::Fail(point, error)),
            Self::ReadOnly(point) | Self::Clock(point, _) => Some(Tamper::Stop(point)),
            Self::PowerAfter | Self::Full(_) => None,
        }
    }
}

/// A run in which nothing went wrong.
#[derive(Debug)]
pub(super) struct Known {
    before: Tree,
    after: Tree,
    /// What the journal lists, by state.
    listed_before: Vec<String>,
    listed_after: Vec<String>,
    pub(super) points: Vec<Point>,
}

/// What is wrong after a fault, in the words of the table's columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Wrong {
    Torn,
    Lost,
    Untrue,
    Chain,
    Journal,
    Shut,
    Hung,
}

impl Wrong {
    pub(super) const ALL: [(Self, &'static str); 7] = [
        (Self::Torn, "torn"),
        (Self::Lost, "lost"),
        (Self::Untrue, "untrue"),
        (Self::Chain, "chain"),
        (Self::Journal, "journal"),
        (Self::Shut, "shut"),
        (Self::Hung, "hung"),
    ];
}

/// What was found, with a line about each.
pub(super) type Found = Vec<(Wrong, String)>;

/// Where trials are made, and with which program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    pub(super) memory: &'a Path,
    pub(super) disk: Option<&'a Disk>,
    pub(super) program: &'a Path,
}

/// Makes the call once with nothing in its way.
pub(super) fn known(operation: &Operation, place: Place<'_>) -> io::Result<Known> {
    let mut site = Site::new(place.memory, place.program)?;
    operation.lay(&mut site)?;
    let Opened { mut talk, method, params } = operation.open(&site, None)?;
    let (before, listed_before) = (site.tree()?, listed(operation, &site)?);
    let tracer = Tracer::attach(talk.id(), &place.memory.join("trace"), Tamper::Watch)?;
    let heard = talk.request(method, &params);
    let Heard::Answer(answer) = &heard else { return Err(io::Error::other(format!("{}: {heard:?}", operation.name))) };
    if claim(answer) != Claim::Made {
        return Err(io::Error::other(format!("{}: {answer}", operation.name)));
    }
    talk.end()?;
    let (after, listed_after) = (site.tree()?, listed(operation, &site)?);
    let points = points(&tracer.log()?);
    Ok(Known { before, after, listed_before, listed_after, points })
}

/// Makes the call with a fault. Nothing where the fault was never met.
pub(super) fn tried(
    operation: &Operation,
    known: &Known,
    fault: &Fault,
    place: Place<'_>,
) -> io::Result<Option<Found>> {
    let disk = place.disk.filter(|_| fault.needs_disk());
    let mut site = Site::new(disk.map_or(place.memory, |disk| &disk.place), place.program)?;
    operation.lay(&mut site)?;
    disk.map_or(Ok(()), Disk::sync)?;
    let Some((heard, mut found)) = suffered(operation, fault, &site, disk, place.memory)? else { return Ok(None) };
    found.extend(checked(operation, known, &site, &heard)?);
    Ok(Some(found))
}

/// The call and its fault, until the program is gone and the disk is back.
fn suffered(
    operation: &Operation,
    fault: &Fault,
    site: &Site,
    disk: Option<&Disk>,
    notes: &Path,
) -> io::Result<Option<(Heard, Found)>> {
    let clock = notes.join("clock");
    fs::write(&clock, "+0")?;
    let faked = matches!(fault, Fault::Clock(..)).then_some(clock.as_path());
    let Opened { mut talk, method, params } = operation.open(site, faked)?;
    let attach = |tamper| Tracer::attach(talk.id(), &notes.join("trace"), tamper);
    let tracer = fault.tamper().map(attach).transpose()?;
    let filler = match (fault, disk) {
        (Fault::Full(left), Some(disk)) => Some(disk.fill(*left)?),
        _ => None,
    };
    talk.ask(method, &params);
    let mut is_met = true;
    let stop = || match (fault, disk) {
        (Fault::ReadOnly(_), Some(disk)) => disk.fail(),
        (Fault::Clock(_, by), _) => fs::write(&clock, by),
        _ => Ok(()),
    };
    let (heard, tracer) = match (tracer, fault) {
        (Some(tracer), Fault::ReadOnly(_) | Fault::Clock(..)) => {
            let (heard, stopped) = stopped(&talk, tracer, stop)?;
            is_met = stopped;
            (heard, None)
        }
        (tracer, _) => (talk.answer(), tracer),
    };
    let mut found = Found::new();
    if let (Fault::Power(_) | Fault::PowerAfter, Some(disk)) = (fault, disk) {
        disk.cut()?;
    }
    let is_kill = matches!(fault, Fault::Kill(_) | Fault::Power(_));
    if !is_kill && operation.front == Front::Mcp && !matches!(fault, Fault::PowerAfter) {
        let next = talk.request("tools/call", &call("list_directory", &json!({"path": "."})));
        if let Heard::Hung = next {
            found.push((Wrong::Hung, "the call after the fault has no answer".to_owned()));
        }
    }
    if matches!(heard, Heard::Hung) {
        found.push((Wrong::Hung, "the call has no answer".to_owned()));
    }
    if matches!(fault, Fault::PowerAfter) {
        talk.kill()?;
    }
    match talk.end()? {
        Some(status) if is_kill => is_met = status.signal() == Some(9) || operation.front == Front::Control,
        Some(_) => {}
        None => {
            found.push((Wrong::Hung, "the program does not end".to_owned()));
            talk.kill()?;
        }
    }
    if let Some(tracer) = tracer {
        let log = tracer.log()?;
        match fault {
            Fault::Fail(..) => is_met = failed_on_file(&log) == Some(true),
            Fault::Kill(_) | Fault::Power(_) => is_met = is_met && log.contains("killed by SIGKILL"),
            _ => {}
        }
    }
    filler.map_or(Ok(()), fs::remove_file)?;
    if let (Fault::Power(_) | Fault::PowerAfter | Fault::ReadOnly(_), Some(disk)) = (fault, disk) {
        disk.restart()?;
    }
    Ok(is_met.then_some((heard, found)))
}

/// Waits until the program stands still, does something meanwhile, and lets it go on. False if it was never stopped.
fn stopped(talk: &Talk, tracer: Tracer, meanwhile: impl FnOnce() -> io::Result<()>) -> io::Result<(Heard, bool)> {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(PATIENCE) {
        if tracer.has_stopped() {
            meanwhile()?;
            // Else it would stop every other thread at its n-th call too.
            tracer.leave()?;
            // What was stopped may be a child of the program.
            Command::new("kill").args(["-CONT", "--", &format!("-{}", talk.id())]).status()?;
            return Ok((talk.answer(), true));
        }
        if let Some(heard) = talk.answered() {
            tracer.leave()?;
            return Ok((heard, false));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    tracer.leave()?;
    Ok((Heard::Hung, false))
}

/// What is there after a fault.
fn checked(operation: &Operation, known: &Known, site: &Site, heard: &Heard) -> io::Result<Found> {
    let mut found = Found::new();
    let is_ours = operation.front != Front::Control;
    if is_ours {
        // The next call of anything opens the workspace, and cleans up.
        expect(&mut found, Wrong::Shut, site.run(&["call", "list_directory", r#"{"path": "."}"#])?);
    }
    let tree = site.tree()?;
    let is_there = |(name, content): &(String, Option<Vec<u8>>)| {
        name == ACKNOWLEDGED.0 && content.as_deref() == Some(ACKNOWLEDGED.1.as_bytes())
    };
    if !tree.iter().any(is_there) {
        found.push((Wrong::Lost, format!("{} is gone", ACKNOWLEDGED.0)));
    }
    let is_made = known.is_after(&tree);
    if !is_made && !known.is_before(&tree) {
        found.push((Wrong::Torn, format!("neither the old nor the new: {}", shown(&tree))));
    }
    match heard {
        // What an editor is told is the last words. What was done is in the session.
        Heard::Answer(answer) if operation.front != Front::Acp => match claim(answer) {
            Claim::Made if !is_made => found.push((Wrong::Lost, format!("answered, and there is {}", shown(&tree)))),
            Claim::NotMade if is_made => found.push((Wrong::Untrue, format!("made, and the answer is {answer:.300}"))),
            _ => {}
        },
        _ => {}
    }
    if is_ours {
        expect(&mut found, Wrong::Chain, site.run(&["audit", "verify"])?);
        let sessions = expect(&mut found, Wrong::Shut, site.run(&["sessions", "list", "--json"])?);
        if operation.front == Front::Acp {
            found.extend(check_session(site, &sessions, heard, is_made)?);
        }
        found.extend(check_journal(operation, known, site, is_made)?);
    }
    Ok(found)
}

/// What was said is kept, and what it says of its call is so.
fn check_session(site: &Site, sessions: &str, heard: &Heard, is_made: bool) -> io::Result<Found> {
    let mut found = Found::new();
    let heads: Value = serde_json::from_str(sessions).unwrap_or_default();
    let Some(id) = heads[0]["id"].as_str() else {
        return Ok(vec![(Wrong::Lost, "the session is gone".to_owned())]);
    };
    let exported = expect(&mut found, Wrong::Shut, site.run(&["sessions", "export", id])?);
    if matches!(heard, Heard::Answer(answer) if answer.get("error").is_none()) && !exported.contains(LAST_WORDS) {
        found.push((Wrong::Lost, "the answer is not in the session".to_owned()));
    }
    let exported: Value = serde_json::from_str(&exported).unwrap_or_default();
    let entries = exported["entries"].as_array().map(Vec::as_slice).unwrap_or_default();
    // The first is of the call before.
    let result = entries.iter().filter(|entry| entry["role"] == "tool").nth(1);
    match result.map(|result| (&result["is_error"], result["text"].as_str().unwrap_or_default())) {
        Some((Value::Bool(false), _)) if !is_made => found.push((Wrong::Lost, "a result that is not there".to_owned())),
        Some((Value::Bool(true), text)) if is_made && !text.contains("committed") && !text.contains("unknown") => {
            found.push((Wrong::Untrue, format!("made, and the session says {text:.200}")));
        }
        _ => {}
    }
    Ok(found)
}

/// What the journal lists is what is there, and can be taken back.
fn check_journal(operation: &Operation, known: &Known, site: &Site, is_made: bool) -> io::Result<Found> {
    let mut found = Found::new();
    let states = match listed(operation, site) {
        Ok(states) => states,
        Err(error) => return Ok(vec![(Wrong::Journal, error.to_string())]),
    };
    let expected = if is_made { &known.listed_after } else { &known.listed_before };
    if states != *expected {
        found.push((Wrong::Journal, format!("lists {states:?}, not {expected:?}")));
    }
    if is_made {
        expect(&mut found, Wrong::Journal, site.run(&[operation.back])?);
        let tree = site.tree()?;
        if !known.is_before(&tree) {
            found.push((Wrong::Journal, format!("{} left {}", operation.back, shown(&tree))));
        }
    }
    Ok(found)
}

/// The states of the changes that the journal lists.
fn listed(operation: &Operation, site: &Site) -> io::Result<Vec<String>> {
    if operation.front == Front::Control {
        return Ok(Vec::new());
    }
    let said = match site.run(&["log", "--json"])? {
        Ended::Well(said) => said,
        other => return Err(io::Error::other(format!("the log cannot be read: {other:.300?}"))),
    };
    let log: Value = serde_json::from_str(&said)?;
    let changes = log["changes"].as_array().map(Vec::as_slice).unwrap_or_default();
    Ok(changes.iter().map(|change| change["state"].as_str().unwrap_or_default().to_owned()).collect())
}

/// What a command printed, or a line about why it did not end well.
fn expect(found: &mut Found, wrong: Wrong, ended: Ended) -> String {
    match ended {
        Ended::Well(said) => return said,
        Ended::Badly(why) => found.push((wrong, format!("{why:.300}"))),
        Ended::Hung => found.push((Wrong::Hung, "a command does not end".to_owned())),
    }
    String::new()
}

impl Known {
    fn is_before(&self, tree: &Tree) -> bool {
        self.essence(tree) == self.essence(&self.before)
    }

    fn is_after(&self, tree: &Tree) -> bool {
        self.essence(tree) == self.essence(&self.after)
    }

    /// A tree without what is checked by itself, and without directories that were made for a file that never came: those
    /// are empty, and do no harm.
    fn essence(&self, tree: &Tree) -> Tree {
        let is_meant = |name: &str| {
            let was = self.before.iter().any(|(old, _)| old == name);
            was || (self.after.iter().any(|(new, _)| new == name) && !has_files(&self.after, name))
        };
        let counts = |(name, content): &&(String, Option<Vec<u8>>)| {
            name != ACKNOWLEDGED.0 && (content.is_some() || is_meant(name) || has_files(tree, name))
        };
        tree.iter().filter(counts).cloned().collect()
    }
}

fn has_files(tree: &Tree, directory: &str) -> bool {
    let below = format!("{directory}/");
    tree.iter().any(|(name, content)| content.is_some() && name.starts_with(&below))
}

fn shown(tree: &Tree) -> String {
    let line = |(name, content): &(String, Option<Vec<u8>>)| match content {
        Some(content) => format!("{name} ({} bytes)", content.len()),
        None => format!("{name}/"),
    };
    tree.iter().map(line).collect::<Vec<_>>().join(", ")
}
