//! One trial: a workspace, a call, a fault in the middle of it, and the checks afterwards.
//!
//! After every fault the workspace is opened once more, as the next process would, and then: every file has its old or
//! its new contents and there is no other; an acknowledged change is there; an error did not change anything unless it
//! says so; the chain of the audit log holds; the journal lists the changes, and undoes them; the store opens.

use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use std::{fs, io};

use serde_json::{Value, json};

use super::fault_disk::FaultDisk;
use super::json_lines::{JsonLineClient, JsonLineReply};
use super::operations::{
    ACKNOWLEDGED, AnswerClaim, FINAL_ANSWER, FaultFrontend, FaultOperation, PreparedOperation, answer_claim, call,
};
use super::site::{FaultSite, HANG_SECONDS, SiteCommandResult, SiteTree};
use super::strace::{StraceTamper, SyscallPoint, Tracer, failed_on_file, points};

#[derive(Clone, Debug)]
pub(super) enum InjectedFault {
    Kill(SyscallPoint),
    Fail(SyscallPoint, &'static str),
    /// A kill, with a power cut at the same time.
    PowerCut(SyscallPoint),
    /// The power goes when the call has just been answered.
    PowerCutAfterReply,
    /// This number of bytes is left on the disk.
    DiskFull(u64),
    /// The disk becomes read-only in the middle of the call.
    ReadOnly(SyscallPoint),
    /// The clock goes by so much, as `faketime` writes it.
    ClockJump(SyscallPoint, &'static str),
}

impl InjectedFault {
    /// The column that it is counted in.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Kill(_) => "kill",
            Self::Fail(_, error) => error,
            Self::PowerCut(_) | Self::PowerCutAfterReply => "power cut",
            Self::DiskFull(_) => "full disk",
            Self::ReadOnly(_) => "read-only",
            Self::ClockJump(..) => "clock",
        }
    }

    pub(super) fn needs_disk(&self) -> bool {
        matches!(self, Self::PowerCut(_) | Self::PowerCutAfterReply | Self::DiskFull(_) | Self::ReadOnly(_))
    }

    fn tamper(&self) -> Option<StraceTamper<'_>> {
        match self {
            Self::Kill(point) | Self::PowerCut(point) => Some(StraceTamper::Kill(point)),
            Self::Fail(point, error) => Some(StraceTamper::Fail(point, error)),
            Self::ReadOnly(point) | Self::ClockJump(point, _) => Some(StraceTamper::Stop(point)),
            Self::PowerCutAfterReply | Self::DiskFull(_) => None,
        }
    }
}

/// A run in which nothing went wrong.
#[derive(Debug)]
pub(super) struct BaselineRun {
    before: SiteTree,
    after: SiteTree,
    /// The journal's entries, by state.
    journal_before: Vec<String>,
    journal_after: Vec<String>,
    pub(super) points: Vec<SyscallPoint>,
}

/// A violation after a fault, one for each column of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum FaultViolation {
    Torn,
    Lost,
    FalseReply,
    Chain,
    Journal,
    StoreUnusable,
    Hung,
}

impl FaultViolation {
    pub(super) const ALL: [(Self, &'static str); 7] = [
        (Self::Torn, "torn"),
        (Self::Lost, "lost"),
        (Self::FalseReply, "untrue"),
        (Self::Chain, "chain"),
        (Self::Journal, "journal"),
        (Self::StoreUnusable, "shut"),
        (Self::Hung, "hung"),
    ];
}

/// Violations, with a line about each.
pub(super) type FaultFindings = Vec<(FaultViolation, String)>;

/// The directory and the program of trials.
#[derive(Clone, Copy, Debug)]
pub(super) struct TrialEnvironment<'a> {
    pub(super) memory: &'a Path,
    pub(super) disk: Option<&'a FaultDisk>,
    pub(super) program: &'a Path,
}

/// Makes the call once with nothing in its way.
pub(super) fn record_baseline(operation: &FaultOperation, dir: TrialEnvironment<'_>) -> io::Result<BaselineRun> {
    let mut site = FaultSite::new(dir.memory, dir.program)?;
    operation.set_up(&mut site)?;
    let PreparedOperation { mut client, method, params } = operation.prepare(&site, None)?;
    let (before, listed_before) = (site.tree()?, journal_states(operation, &site)?);
    let tracer = Tracer::attach(client.process_id(), &dir.memory.join("trace"), StraceTamper::Watch)?;
    let reply = client.request(method, &params);
    let JsonLineReply::Answer(answer) = &reply else {
        return Err(io::Error::other(format!("{}: {reply:?}", operation.name)));
    };
    if answer_claim(answer) != AnswerClaim::Made {
        return Err(io::Error::other(format!("{}: {answer}", operation.name)));
    }
    client.close()?;
    let (after, listed_after) = (site.tree()?, journal_states(operation, &site)?);
    let points = points(&tracer.log()?);
    Ok(BaselineRun { before, after, journal_before: listed_before, journal_after: listed_after, points })
}

/// Makes the call with a fault. Nothing where the fault was never met.
pub(super) fn run_trial(
    operation: &FaultOperation,
    known: &BaselineRun,
    fault: &InjectedFault,
    dir: TrialEnvironment<'_>,
) -> io::Result<Option<FaultFindings>> {
    let disk = dir.disk.filter(|_| fault.needs_disk());
    let mut site = FaultSite::new(disk.map_or(dir.memory, |disk| &disk.dir), dir.program)?;
    operation.set_up(&mut site)?;
    disk.map_or(Ok(()), FaultDisk::sync)?;
    let Some((reply, mut found)) = inject_fault(operation, fault, &site, disk, dir.memory)? else { return Ok(None) };
    found.extend(check_after_fault(operation, known, &site, &reply)?);
    Ok(Some(found))
}

/// The call and its fault, until the program is gone and the disk is back.
fn inject_fault(
    operation: &FaultOperation,
    fault: &InjectedFault,
    site: &FaultSite,
    disk: Option<&FaultDisk>,
    notes: &Path,
) -> io::Result<Option<(JsonLineReply, FaultFindings)>> {
    let clock = notes.join("clock");
    fs::write(&clock, "+0")?;
    let faked = matches!(fault, InjectedFault::ClockJump(..)).then_some(clock.as_path());
    let PreparedOperation { mut client, method, params } = operation.prepare(site, faked)?;
    let attach = |tamper| Tracer::attach(client.process_id(), &notes.join("trace"), tamper);
    let tracer = fault.tamper().map(attach).transpose()?;
    let filler = match (fault, disk) {
        (InjectedFault::DiskFull(left), Some(disk)) => Some(disk.fill(*left)?),
        _ => None,
    };
    client.send_request(method, &params);
    let mut is_met = true;
    let stop = || match (fault, disk) {
        (InjectedFault::ReadOnly(_), Some(disk)) => disk.remount_read_only(),
        (InjectedFault::ClockJump(_, by), _) => fs::write(&clock, by),
        _ => Ok(()),
    };
    let (reply, tracer) = match (tracer, fault) {
        (Some(tracer), InjectedFault::ReadOnly(_) | InjectedFault::ClockJump(..)) => {
            let (reply, stopped) = while_stopped(&client, tracer, stop)?;
            is_met = stopped;
            (reply, None)
        }
        (tracer, _) => (client.answer(), tracer),
    };
    let mut found = FaultFindings::new();
    if let (InjectedFault::PowerCut(_) | InjectedFault::PowerCutAfterReply, Some(disk)) = (fault, disk) {
        disk.cut_power()?;
    }
    let is_kill = matches!(fault, InjectedFault::Kill(_) | InjectedFault::PowerCut(_));
    if !is_kill && operation.front == FaultFrontend::Mcp && !matches!(fault, InjectedFault::PowerCutAfterReply) {
        let next = client.request("tools/call", &call("list_directory", &json!({"path": "."})));
        if let JsonLineReply::TimedOut = next {
            found.push((FaultViolation::Hung, "the call after the fault has no answer".to_owned()));
        }
    }
    if matches!(reply, JsonLineReply::TimedOut) {
        found.push((FaultViolation::Hung, "the call has no answer".to_owned()));
    }
    if matches!(fault, InjectedFault::PowerCutAfterReply) {
        client.kill()?;
    }
    match client.close()? {
        Some(status) if is_kill => is_met = status.signal() == Some(9) || operation.front == FaultFrontend::Control,
        Some(_) => {}
        None => {
            found.push((FaultViolation::Hung, "the program does not end".to_owned()));
            client.kill()?;
        }
    }
    if let Some(tracer) = tracer {
        let log = tracer.log()?;
        match fault {
            InjectedFault::Fail(..) => is_met = failed_on_file(&log) == Some(true),
            InjectedFault::Kill(_) | InjectedFault::PowerCut(_) => is_met = is_met && log.contains("killed by SIGKILL"),
            _ => {}
        }
    }
    filler.map_or(Ok(()), fs::remove_file)?;
    if let (InjectedFault::PowerCut(_) | InjectedFault::PowerCutAfterReply | InjectedFault::ReadOnly(_), Some(disk)) =
        (fault, disk)
    {
        disk.remount()?;
    }
    Ok(is_met.then_some((reply, found)))
}

/// Waits until the program stands still, does something meanwhile, and lets it go on. False if it was never stopped.
fn while_stopped(
    client: &JsonLineClient,
    tracer: Tracer,
    meanwhile: impl FnOnce() -> io::Result<()>,
) -> io::Result<(JsonLineReply, bool)> {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(HANG_SECONDS) {
        if tracer.has_stopped() {
            meanwhile()?;
            // Else it would stop every other thread at its n-th call too.
            tracer.detach()?;
            // The stopped process may be a child of the program.
            Command::new("kill").args(["-CONT", "--", &format!("-{}", client.process_id())]).status()?;
            return Ok((client.answer(), true));
        }
        if let Some(reply) = client.try_answer() {
            tracer.detach()?;
            return Ok((reply, false));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    tracer.detach()?;
    Ok((JsonLineReply::TimedOut, false))
}

/// Checks the state after a fault.
fn check_after_fault(
    operation: &FaultOperation,
    known: &BaselineRun,
    site: &FaultSite,
    reply: &JsonLineReply,
) -> io::Result<FaultFindings> {
    let mut found = FaultFindings::new();
    let is_ours = operation.front != FaultFrontend::Control;
    if is_ours {
        // The next call of anything opens the workspace, and cleans up.
        expect(&mut found, FaultViolation::StoreUnusable, site.run(&["call", "list_directory", r#"{"path": "."}"#])?);
    }
    let tree = site.tree()?;
    let is_there = |(name, content): &(String, Option<Vec<u8>>)| {
        name == ACKNOWLEDGED.0 && content.as_deref() == Some(ACKNOWLEDGED.1.as_bytes())
    };
    if !tree.iter().any(is_there) {
        found.push((FaultViolation::Lost, format!("{} is gone", ACKNOWLEDGED.0)));
    }
    let is_made = known.is_after(&tree);
    if !is_made && !known.is_before(&tree) {
        found.push((FaultViolation::Torn, format!("neither the old nor the new: {}", tree_summary(&tree))));
    }
    match reply {
        // An editor gets the last text. The effects are in the session.
        JsonLineReply::Answer(answer) if operation.front != FaultFrontend::Acp => match answer_claim(answer) {
            AnswerClaim::Made if !is_made => {
                found.push((FaultViolation::Lost, format!("answered, and there is {}", tree_summary(&tree))))
            }
            AnswerClaim::NotMade if is_made => {
                found.push((FaultViolation::FalseReply, format!("made, and the answer is {answer:.300}")))
            }
            _ => {}
        },
        _ => {}
    }
    if is_ours {
        expect(&mut found, FaultViolation::Chain, site.run(&["audit", "verify"])?);
        let sessions = expect(&mut found, FaultViolation::StoreUnusable, site.run(&["sessions", "list", "--json"])?);
        if operation.front == FaultFrontend::Acp {
            found.extend(check_session(site, &sessions, reply, is_made)?);
        }
        found.extend(check_journal(operation, known, site, is_made)?);
    }
    Ok(found)
}

/// Checks that the transcript is kept, and that its results are true.
fn check_session(site: &FaultSite, sessions: &str, reply: &JsonLineReply, is_made: bool) -> io::Result<FaultFindings> {
    let mut found = FaultFindings::new();
    let heads: Value = serde_json::from_str(sessions).unwrap_or_default();
    let Some(id) = heads[0]["id"].as_str() else {
        return Ok(vec![(FaultViolation::Lost, "the session is gone".to_owned())]);
    };
    let exported = expect(&mut found, FaultViolation::StoreUnusable, site.run(&["sessions", "export", id])?);
    if matches!(reply, JsonLineReply::Answer(answer) if answer.get("error").is_none())
        && !exported.contains(FINAL_ANSWER)
    {
        found.push((FaultViolation::Lost, "the answer is not in the session".to_owned()));
    }
    let exported: Value = serde_json::from_str(&exported).unwrap_or_default();
    let entries = exported["entries"].as_array().map(Vec::as_slice).unwrap_or_default();
    // The first is of the call before.
    let result = entries.iter().filter(|entry| entry["role"] == "tool").nth(1);
    match result.map(|result| (&result["is_error"], result["text"].as_str().unwrap_or_default())) {
        Some((Value::Bool(false), _)) if !is_made => {
            found.push((FaultViolation::Lost, "a result that is not there".to_owned()))
        }
        Some((Value::Bool(true), text)) if is_made && !text.contains("committed") && !text.contains("unknown") => {
            found.push((FaultViolation::FalseReply, format!("made, and the session says {text:.200}")));
        }
        _ => {}
    }
    Ok(found)
}

/// Checks that the journal lists the actual changes, and can undo them.
fn check_journal(
    operation: &FaultOperation,
    known: &BaselineRun,
    site: &FaultSite,
    is_made: bool,
) -> io::Result<FaultFindings> {
    let mut found = FaultFindings::new();
    let states = match journal_states(operation, site) {
        Ok(states) => states,
        Err(error) => return Ok(vec![(FaultViolation::Journal, error.to_string())]),
    };
    let expected = if is_made { &known.journal_after } else { &known.journal_before };
    if states != *expected {
        found.push((FaultViolation::Journal, format!("lists {states:?}, not {expected:?}")));
    }
    if is_made {
        expect(&mut found, FaultViolation::Journal, site.run(&[operation.undo_command])?);
        let tree = site.tree()?;
        if !known.is_before(&tree) {
            found.push((FaultViolation::Journal, format!("{} left {}", operation.undo_command, tree_summary(&tree))));
        }
    }
    Ok(found)
}

/// The states of the changes that the journal lists.
fn journal_states(operation: &FaultOperation, site: &FaultSite) -> io::Result<Vec<String>> {
    if operation.front == FaultFrontend::Control {
        return Ok(Vec::new());
    }
    let printed_text = match site.run(&["log", "--json"])? {
        SiteCommandResult::Succeeded(printed_text) => printed_text,
        other => return Err(io::Error::other(format!("the log cannot be read: {other:.300?}"))),
    };
    let log: Value = serde_json::from_str(&printed_text)?;
    let changes = log["changes"].as_array().map(Vec::as_slice).unwrap_or_default();
    Ok(changes.iter().map(|change| change["state"].as_str().unwrap_or_default().to_owned()).collect())
}

/// The output of a command, or a violation if it failed.
fn expect(found: &mut FaultFindings, wrong: FaultViolation, ended: SiteCommandResult) -> String {
    match ended {
        SiteCommandResult::Succeeded(printed_text) => return printed_text,
        SiteCommandResult::Failed(why) => found.push((wrong, format!("{why:.300}"))),
        SiteCommandResult::Hung => found.push((FaultViolation::Hung, "a command does not end".to_owned())),
    }
    String::new()
}

impl BaselineRun {
    fn is_before(&self, tree: &SiteTree) -> bool {
        self.comparable_tree(tree) == self.comparable_tree(&self.before)
    }

    fn is_after(&self, tree: &SiteTree) -> bool {
        self.comparable_tree(tree) == self.comparable_tree(&self.after)
    }

    /// A tree without what is checked by itself, and without directories that were made for a file that never came: those
    /// are empty, and do no harm.
    fn comparable_tree(&self, tree: &SiteTree) -> SiteTree {
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

fn has_files(tree: &SiteTree, directory: &str) -> bool {
    let below = format!("{directory}/");
    tree.iter().any(|(name, content)| content.is_some() && name.starts_with(&below))
}

fn tree_summary(tree: &SiteTree) -> String {
    let line = |(name, content): &(String, Option<Vec<u8>>)| match content {
        Some(content) => format!("{name} ({} bytes)", content.len()),
        None => format!("{name}/"),
    };
    tree.iter().map(line).collect::<Vec<_>>().join(", ")
}
