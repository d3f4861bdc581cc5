//! `ringfence run`: wraps an agent, and decides about what it changed.
//!
//! Not here: the run (`wrapped_run/mod.rs`), and later decisions (`layers.rs`).

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use clap::{Args, ValueEnum};
use ringfence_kernel::ToolReply;
use ringfence_sandbox::{PublishedPort, RunProgramReply, TerminalSize};
use tokio_util::sync::CancellationToken;

use crate::app::workspace_directory;
use crate::cli::gc::collect_if_due;
use crate::cli::layers::{
    HomeReviewRequest, announce_home, branch_allowed, decide_at_end, drop_layer, keep_allowed, keep_home,
};
use crate::cli::learn::DraftFile;
use crate::cli::output_file::OutputFile;
use crate::cli::run_report::{ReportFile, RunReport};
use crate::cli::wrapped_run::call_records::StartCounts;
use crate::cli::wrapped_run::detached_run::{close_detached_terminal, parse_size, start_detached};
use crate::cli::wrapped_run::live_checkpoints::{CheckpointResult, LiveCheckpoints};
use crate::cli::wrapped_run::{WrappedRun, WrappedRunOptions, parse_reply};
use crate::cli::{CliError, SUCCESS, print};
use crate::config::{AppSettings, Environment};
use crate::process::messages::{error_chain, print_error};

/// Exit code of a run that could not be started, as for `env` and `timeout`.
const NOT_STARTED: u8 = 125;

/// Options of `ringfence run`.
#[derive(Debug, Args)]
pub(crate) struct RunOptions {
    /// The profile or its file, instead of the one that is chosen by the name of the program; `none` for no hosts and no keys.
    #[arg(long, value_name = "NAME|FILE")]
    profile: Option<String>,
    /// A toolchain, instead of those that files of the workspace choose (repeatable); `none` for none. Programs get its
    /// caches with a layer over yours, and may reach the hosts of its registry.
    #[arg(long, value_name = "NAME")]
    toolchain: Vec<String>,
    /// What happens to the changes: `review` them at this terminal, `keep` what the policy allows, commit that to a
    /// `branch`, `drop` them, or keep them for `later`. Without a terminal, the default is `later`.
    #[arg(long, value_enum, value_name = "HOW")]
    end: Option<EndMode>,
    /// Let the program reach this host (repeatable).
    #[arg(long, value_name = "HOST[:PORT]")]
    allow_host: Vec<String>,
    /// Publish a port of the program: `5173`, `8080:5173` or `0.0.0.0:8080:5173` (repeatable). Without an address, it is
    /// reachable from this machine only.
    #[arg(long, value_name = "[ADDRESS:]PORT[:PORT]")]
    publish: Vec<PublishedPort>,
    /// Let the program reach this port of this machine's `127.0.0.1` at the same address, such as that of a database
    /// (repeatable).
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    connect: Vec<u16>,
    /// Write a draft of a profile for the program to this file: the hosts and ports that it was refused. Without a terminal,
    /// nothing is asked.
    #[arg(long, value_name = "FILE")]
    learn: Option<PathBuf>,
    /// Write each program that is started to this file, outside of the workspace, with its arguments: a line of JSON each.
    #[arg(long, value_name = "FILE")]
    exec_log: Option<PathBuf>,
    /// Write what the run did to this file when it has ended: `json`, `md` or `sarif` (repeatable).
    #[arg(long, num_args = 2, value_names = ["FORMAT", "FILE"])]
    report: Vec<String>,
    /// Most memory of all its processes, such as `4G`; three quarters of the machine's if not set.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    memory: Option<u64>,
    /// Most that it may write to disk, such as `10G`; three quarters of the free space if not set.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    disk: Option<u64>,
    /// Most processes and threads.
    #[arg(long, value_name = "NUMBER")]
    processes: Option<u64>,
    /// End it after this number of seconds.
    #[arg(long, value_name = "SECONDS")]
    time: Option<u64>,
    /// Let changes that the policy allows land in the workspace while the program runs: whenever it is idle for two
    /// seconds, when you press `^]`, and at the latest after `--checkpoint`. Each checkpoint is a change that can be undone.
    #[arg(long)]
    live: bool,
    /// Longest time between two checkpoints of `--live`, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 300, requires = "live",
        value_parser = clap::value_parser!(u64).range(1..))]
    checkpoint: u64,
    /// Run it without this terminal, and print the ID of its layer: `ringfence layers attach ID` attaches a terminal, and
    /// `ringfence layers stop ID` ends the program. Its changes are kept for later.
    #[arg(long)]
    detach: bool,
    /// This is the process of a detached run, with a terminal of this size.
    #[arg(long, hide = true, requires = "detach", value_parser = parse_size)]
    detached_process: Option<TerminalSize>,
    /// Pass escape sequences that speak to the terminal itself; nothing is asked at this terminal while it runs.
    #[arg(long)]
    raw_terminal: bool,
    /// The program and its arguments, after `--`.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl RunOptions {
    /// Whether another process is to run it, which says everything that there is to say.
    pub(crate) fn is_for_another_process(&self) -> bool {
        self.detach && self.detached_process.is_none()
    }
}

/// What happens to the changes of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EndMode {
    Review,
    Keep,
    Branch,
    Drop,
    Later,
}

/// Parses a number of bytes with an optional suffix.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let (number, unit) = match text.trim_end_matches(['B', 'b', 'i']).char_indices().last() {
        Some((at, 'K' | 'k')) => (&text[..at], 10),
        Some((at, 'M' | 'm')) => (&text[..at], 20),
        Some((at, 'G' | 'g')) => (&text[..at], 30),
        _ => (text, 0),
    };
    let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << unit));
    bytes.filter(|bytes| *bytes > 0).ok_or_else(|| "expected a size such as `512M` or `4G`".to_owned())
}

/// Runs the program, and decides about its layer. The exit code is the program's.
pub(crate) fn run_wrapped(
    settings: AppSettings,
    environment: &Environment,
    options: RunOptions,
) -> Result<u8, CliError> {
    if options.detach && options.end == Some(EndMode::Review) {
        return Err(CliError::DetachedReview);
    }
    if options.is_for_another_process() {
        return run_detached();
    }
    let is_detached = options.detach;
    let RunOptions { profile, toolchain, end, allow_host, publish, connect, detached_process, .. } = options;
    let RunOptions { report, learn, exec_log, memory, disk, processes, time, live, checkpoint, .. } = options;
    let RunOptions { raw_terminal, command, .. } = options;
    let workspace = || workspace_directory(&settings, environment);
    let draft =
        learn.as_ref().map(|file| DraftFile::new(&environment.current.join(file), &workspace()?)).transpose()?;
    let exec_log = exec_log.map(|file| create_exec_log(&environment.current.join(file), &workspace()?)).transpose()?;
    let reports = ReportFile::parse_all(&report, &environment.current)?;
    let options = WrappedRunOptions {
        profile,
        toolchains: toolchain,
        command,
        allowed_hosts: allow_host,
        published_ports: publish,
        connected_ports: connect,
        learns: draft.is_some(),
        exec_log,
        memory,
        processes,
        disk,
        seconds: time,
        raw_terminal,
        checkpoints: live.then(|| Duration::from_secs(checkpoint)),
        detached: detached_process,
    };
    let run = WrappedRun::prepare(settings.clone(), environment, options)?;
    let attachments = Arc::clone(&run.attachments);
    let end = end.or(is_detached.then_some(EndMode::Later));
    let files = RunFiles { draft: draft.zip(learn), reports };
    let result = run_and_decide(settings, environment, run, (end, is_detached), files);
    if is_detached && attachments.has_started() {
        // Those who attached see what is said at the end. It has no other place.
        if let Err(error) = &result {
            print_error(&error_chain(error));
        }
        close_detached_terminal().map_err(CliError::Output)?;
    }
    attachments.finish(result.as_ref().ok().copied());
    result
}

/// Starts the run in a process of its own, and says how to get to it.
fn run_detached() -> Result<u8, CliError> {
    match start_detached(std::env::args_os().skip(1)).map_err(CliError::Detach)? {
        Ok(layer) => {
            print_error(&format!(
                "the program runs detached; `ringfence layers attach {layer}` attaches this terminal, `ringfence layers stop \
                 {layer}` ends it"
            ));
            print(&format!("{layer}\n"), SUCCESS)
        }
        // It has said why.
        Err(code) => Ok(code),
    }
}

/// Files to be written at the end of a run.
#[derive(Debug)]
struct RunFiles {
    /// The draft of a profile, with its name as the person gave it.
    draft: Option<(DraftFile, PathBuf)>,
    reports: Vec<ReportFile>,
}

/// The run and what follows it.
fn run_and_decide(
    settings: AppSettings,
    environment: &Environment,
    run: WrappedRun,
    (end, is_detached): (Option<EndMode>, bool),
    files: RunFiles,
) -> Result<u8, CliError> {
    run.app.print_warnings();
    run.notes.iter().for_each(|note| print_error(&format!("note: {note}")));
    let began = SystemTime::now();
    let (reply, checkpoints) = follow(&run)?;
    let (is_interactive, home_keep) = (run.has_terminal(), run.home_keep.clone());
    let (recorded, session) = (run.recorded.clone(), run.app.session.id.clone());
    let attachments = Arc::clone(&run.attachments);
    drop(run);
    let reply = match reply.outcome {
        Ok(value) => parse_reply(value.to_value())
            .ok_or_else(|| CliError::Review("the reply of the run is incomplete".to_owned()))?,
        Err(error) => {
            print_error(&error.message);
            return Ok(NOT_STARTED);
        }
    };
    let code = u8::try_from(reply.exit_code).unwrap_or(u8::MAX);
    if !is_detached {
        // What follows is between the person and their terminal.
        attachments.finish(Some(code));
    }
    let starts = recorded.as_ref().and_then(|recorded| recorded.calls.start_counts());
    if let (Some((draft, file)), Some(recorded)) = (files.draft, recorded) {
        draft.write(&settings.state, &recorded)?;
        print_error(&format!("profile draft written; check it, and use it with `--profile {}`", file.display()));
    }
    if !files.reports.is_empty() {
        let report = RunReport::new(&settings.state, &session, &reply, starts.as_ref())?;
        files.reports.iter().try_for_each(|file| file.write(&report))?;
    }
    starts.iter().filter_map(exec_log_warning).for_each(|warning| print_error(&warning));
    if let Some(limit) = &reply.limit {
        print_error(&format!("the program was ended: limit `{limit}` exceeded"));
    }
    if !home_keep.files.is_empty() {
        keep_home(settings.clone(), environment, &home_keep)?;
    }
    let kept = settings.clone();
    let home = HomeReviewRequest { home: &home_keep, since: humantime::format_rfc3339_nanos(began).to_string() };
    decide(settings, environment, (end, is_interactive, &home), &reply, checkpoints.as_ref())?;
    // The person has decided, and the exit code is known.
    collect_if_due(&kept);
    Ok(code)
}

fn create_exec_log(path: &Path, workspace: &Path) -> Result<File, CliError> {
    let file = OutputFile::outside(path, workspace).map_err(CliError::ExecLog)?;
    let file = file.ok_or(CliError::OutputInWorkspace("a log of programs"))?;
    file.create().map_err(CliError::ExecLog)
}

/// What a log of programs lacks.
fn exec_log_warning(starts: &StartCounts) -> Option<String> {
    match starts {
        StartCounts { is_unavailable: true, .. } => {
            Some("the log of programs is empty: this container answers calls of its programs itself".to_owned())
        }
        StartCounts { missing: 0, .. } => None,
        StartCounts { total, missing, .. } => Some(format!("the log of programs lacks {missing} of {total} starts")),
    }
}

/// The end of a run: what happens to its layer.
fn decide(
    settings: AppSettings,
    environment: &Environment,
    (end, is_interactive, home): (Option<EndMode>, bool, &HomeReviewRequest<'_>),
    reply: &RunProgramReply,
    checkpoints: Option<&CheckpointResult>,
) -> Result<(), CliError> {
    if let Some(checkpoints) = checkpoints {
        print_error(&checkpoints.summary());
    }
    // Everything landed while the program ran.
    let is_decided = checkpoints.is_some_and(|checkpoints| checkpoints.left == 0);
    let layer = reply.layer.as_ref().filter(|_| !is_decided);
    let end = end.unwrap_or(if is_interactive { EndMode::Review } else { EndMode::Later });
    let Some(layer) = layer else { return announce_home(settings, environment, home) };
    if checkpoints.is_none() {
        print_error(&summary(reply));
    }
    if end != EndMode::Review {
        announce_home(settings.clone(), environment, home)?;
    }
    match end {
        EndMode::Review => drop(decide_at_end(settings, environment, (layer, home))?),
        // What may be kept without a decision was.
        EndMode::Keep if checkpoints.is_some() => print_kept_layer(layer),
        EndMode::Keep => drop(keep_allowed(settings, environment, layer)?),
        EndMode::Branch => drop(branch_allowed(settings, environment, layer)?),
        EndMode::Drop => drop(drop_layer(settings, environment, layer)?),
        EndMode::Later => print_kept_layer(layer),
    }
    Ok(())
}

fn print_kept_layer(layer: &str) {
    print_error(&format!("kept as layer {layer}; decide with `ringfence layers review {layer}`"));
}

/// Makes the call, with the person's terminal and signals for the program, and the checkpoints meanwhile. The last one is made
/// after the end.
fn follow(run: &WrappedRun) -> Result<(ToolReply, Option<CheckpointResult>), CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(CliError::Runtime)?;
    let attached = run.attach_person().map_err(CliError::Output)?;
    let (cancel, ended) = (CancellationToken::new(), CancellationToken::new());
    let mut checkpoints = LiveCheckpoints::new(run);
    let call = async {
        let reply = run.app.host.call(&run.app.session, run.call(), &cancel).await;
        ended.cancel();
        reply
    };
    let follow = async {
        if let Some(checkpoints) = &mut checkpoints {
            checkpoints.follow(&ended).await;
        }
    };
    let (reply, ()) = runtime.block_on(async { tokio::join!(call, follow) });
    drop(attached);
    run.finish_logins();
    run.print_messages();
    let ended = reply.as_ref().ok().and_then(|reply| parse_reply(reply.outcome.as_ref().ok()?.to_value()));
    let result = checkpoints.map(|mut checkpoints| {
        let RunProgramReply { layer, created, changed, deleted, conflicts, .. } = ended.unwrap_or_default();
        checkpoints.result.left = created + changed + deleted + conflicts;
        if let Some(layer) = layer {
            runtime.block_on(checkpoints.checkpoint(&layer));
        }
        checkpoints.result
    });
    // A worker that a file system holds must not hold the program too.
    runtime.shutdown_background();
    Ok((reply?, result))
}

fn summary(reply: &RunProgramReply) -> String {
    let RunProgramReply { created, changed, deleted, conflicts, .. } = reply;
    let conflicts = if *conflicts > 0 { format!(", {conflicts} in conflict") } else { String::new() };
    format!("{created} new, {changed} changed, {deleted} deleted{conflicts}")
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes_are_numbers_with_a_suffix() {
        for (text, expected) in [("1", 1), ("512M", 512 << 20), ("4G", 4 << 30), ("2GiB", 2 << 30), ("8k", 8 << 10)] {
            assert_eq!(size(text), Ok(expected), "{text}");
        }
        for text in ["", "0", "G", "1T", "-1", "99999999999G"] {
            assert!(size(text).is_err(), "{text}");
        }
    }
}
