//! `ringfence why`: what was refused in a wrapped run, and what to do about each.
//!
//! Everything is from the audit log, where the run itself recorded it. What the log does not have, such as why a person said
//! no, is not here either.
//!
//! Not here: changes that were not kept, which `ringfence layers review` shows.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::Path;

use clap::Args;
use ringfence_audit::{read_records, to_current_vocabulary};
use ringfence_kernel::{PolicyAction, PolicyLayer, sanitize_line};
use ringfence_sandbox::RUN_PROGRAM;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cli::CliError;

/// Runs that are named where there is none of the given name.
const LISTED_RUNS: usize = 5;

/// Options of `ringfence why`.
#[derive(Debug, Args)]
pub(crate) struct WhyOptions {
    /// The run, by its ID or the start of it; the last one if not set. `ringfence audit show --json` has the IDs of sessions.
    run: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The text for the person, or JSON for programs.
pub(crate) fn explain_run(state: &Path, options: &WhyOptions) -> Result<String, CliError> {
    let history = RunHistory::read(state, options.run.as_deref()).map_err(CliError::AuditRead)?;
    let RunHistory { run: Some(run), .. } = history else { return Err(history.not_found(options.run.as_deref())) };
    match options.json {
        true => Ok(serde_json::to_string_pretty(&run).unwrap_or_default() + "\n"),
        false => Ok(run.to_text()),
    }
}

/// The run of a session.
pub(crate) fn read_run(state: &Path, session: &str) -> std::io::Result<Option<RunRefusals>> {
    Ok(RunHistory::read(state, Some(session))?.run)
}

/// A wrapped run, as the audit log has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct RunRefusals {
    pub(crate) run: String,
    /// Name of the program.
    pub(crate) program: String,
    /// Name of its profile.
    pub(crate) profile: String,
    pub(crate) started: String,
    /// Absent while it runs, and after a crash.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ended: Option<String>,
    /// In the order of the first refusal of each.
    pub(crate) refusals: Vec<RunRefusal>,
    /// Ports that were published at the start.
    #[serde(skip)]
    pub(crate) published: Vec<String>,
    /// What was allowed while it ran.
    #[serde(skip)]
    pub(crate) allowed: Vec<AllowedAccess>,
}

/// An access that was allowed, however often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AllowedAccess {
    pub(crate) action: String,
    pub(crate) path: String,
    /// Whether it required an approval, and got one.
    pub(crate) is_approved: bool,
    pub(crate) count: u64,
}

/// One thing that was refused, however often.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct RunRefusal {
    pub(crate) kind: RefusalKind,
    /// A host with its port, an address with its port, or the name of a program.
    pub(crate) resource: String,
    /// What was refused of it, such as a request by its method and path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) detail: Option<String>,
    pub(crate) count: u64,
    /// The reason, as a code.
    pub(crate) error: String,
    /// The rule that denied it, or required an approval that there was not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rule: Option<String>,
    /// The layer of the policy that has the rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) layer: Option<String>,
    /// What to do, the simplest first.
    pub(crate) advice: Vec<String>,
}

/// The kind of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RefusalKind {
    /// The run itself: the program was not started.
    Run,
    /// A connection.
    Host,
    /// A port of the program, to be published.
    Port,
    /// A request with the placeholder of a key where it does not belong.
    Tripwire,
    /// A request to a host of a key, or its answer.
    Request,
    /// A request that sends contents, such as a push.
    Send,
}

/// The run that is looked for, and the last ones.
#[derive(Debug, Default)]
struct RunHistory {
    run: Option<RunRefusals>,
    last: VecDeque<String>,
}

/// Fields of an audit record.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RunRecord {
    ts: String,
    event: String,
    session: String,
    agent: Option<String>,
    tool: String,
    accesses: Vec<RecordedAccess>,
    about: Option<String>,
    ok: Option<bool>,
    approved: Option<bool>,
    error: Option<String>,
    rule: Option<String>,
    layer: Option<String>,
    count: Option<u64>,
    refused: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
struct RecordedAccess {
    action: String,
    path: String,
}

impl RunHistory {
    fn read(state: &Path, wanted: Option<&str>) -> std::io::Result<Self> {
        let mut history = Self::default();
        read_records(state, |line| {
            let record = serde_json::from_str::<Value>(line).map(to_current_vocabulary);
            // Other records have other fields.
            if let Ok(record) = record.and_then(serde_json::from_value::<RunRecord>) {
                history.add(&record, wanted);
            }
            Ok(())
        })?;
        Ok(history)
    }

    fn add(&mut self, record: &RunRecord, wanted: Option<&str>) {
        if record.tool != RUN_PROGRAM || record.session.is_empty() {
            return;
        }
        if self.last.back() != Some(&record.session) {
            self.last.retain(|known| *known != record.session);
            self.last.push_back(record.session.clone());
            if self.last.len() > LISTED_RUNS {
                self.last.pop_front();
            }
        }
        if wanted.is_some_and(|wanted| !record.session.starts_with(wanted)) {
            return;
        }
        // Two runs at once are told apart by what begins last.
        let is_new = self.run.as_ref().is_none_or(|run| run.run != record.session);
        if is_new && matches!(record.event.as_str(), "begin" | "refused") {
            self.run = Some(RunRefusals::new(record));
        }
        if let Some(run) = self.run.as_mut().filter(|run| run.run == record.session) {
            run.add(record);
        }
    }

    fn not_found(&self, wanted: Option<&str>) -> CliError {
        let runs: Vec<&str> = self.last.iter().rev().map(String::as_str).collect();
        match wanted {
            Some(wanted) if !runs.is_empty() => {
                CliError::UnknownRun { wanted: wanted.to_owned(), known: runs.join(", ") }
            }
            _ => CliError::NoRun,
        }
    }
}

impl RunRefusals {
    fn new(record: &RunRecord) -> Self {
        let program = record.accesses.iter().find(|access| access.action == PolicyAction::Run.as_str());
        let ports = record.accesses.iter().filter(|access| access.action == PolicyAction::Listen.as_str());
        Self {
            run: record.session.clone(),
            program: program.map(|access| access.path.clone()).or_else(|| record.about.clone()).unwrap_or_default(),
            profile: record.agent.clone().unwrap_or_default(),
            started: record.ts.clone(),
            ended: None,
            refusals: Vec::new(),
            published: ports.map(|access| access.path.clone()).collect(),
            allowed: Vec::new(),
        }
    }

    fn add(&mut self, record: &RunRecord) {
        let access = record.accesses.first();
        match (record.event.as_str(), access) {
            ("end", _) => self.ended = Some(record.ts.clone()),
            ("refused", _) => {
                self.ended = Some(record.ts.clone());
                let refusal = RunRefusal::new(RefusalKind::Run, self.program.clone(), record, self);
                self.refusals.push(refusal);
            }
            ("access", Some(access)) if record.ok == Some(false) => {
                let (kind, resource, detail) = parse_access(access);
                let refusal = RunRefusal { detail, ..RunRefusal::new(kind, resource, record, self) };
                match self.refusals.iter_mut().find(|known| known.is_like(&refusal)) {
                    Some(known) => known.count += 1,
                    None => self.refusals.push(refusal),
                }
            }
            ("access", Some(access)) if record.ok == Some(true) => {
                let is_approved = record.approved == Some(true);
                match self.allowed.iter_mut().find(|known| known.is_about(access)) {
                    Some(known) => {
                        known.count += 1;
                        known.is_approved |= is_approved;
                    }
                    None => {
                        let (action, path) = (access.action.clone(), access.path.clone());
                        self.allowed.push(AllowedAccess { action, path, is_approved, count: 1 });
                    }
                }
            }
            // Further ones, after one with a record of its own.
            ("access-unlisted", Some(access)) => {
                let (kind, resource, detail) = parse_access(access);
                let is_it = |known: &&mut RunRefusal| {
                    (known.kind, &known.resource, &known.detail) == (kind, &resource, &detail)
                };
                let refused = record.refused.unwrap_or_default();
                if let Some(known) = self.refusals.iter_mut().rev().find(is_it) {
                    known.count += refused;
                }
                if let Some(known) = self.allowed.iter_mut().find(|known| known.is_about(access)) {
                    known.count += record.count.unwrap_or_default().saturating_sub(refused);
                }
            }
            _ => {}
        }
    }

    fn to_text(&self) -> String {
        let Self { run, program, profile, started, ended, refusals, .. } = self;
        let ended = ended.as_ref().map_or_else(|| "no end recorded".to_owned(), |ended| format!("ended {ended}"));
        let mut text = format!("run {run} of `{program}`, profile `{profile}`: began {started}, {ended}\n");
        if refusals.is_empty() {
            text.push_str("nothing was refused\n");
        }
        for refusal in refusals {
            text.push_str(&refusal.to_text());
        }
        let lines: Vec<String> = text.lines().map(sanitize_line).collect();
        lines.join("\n") + "\n"
    }
}

impl AllowedAccess {
    fn is_about(&self, access: &RecordedAccess) -> bool {
        self.action == access.action && self.path == access.path
    }
}

impl RunRefusal {
    fn new(kind: RefusalKind, resource: String, record: &RunRecord, run: &RunRefusals) -> Self {
        let refusal = Self {
            kind,
            resource,
            detail: None,
            count: 1,
            error: record.error.clone().unwrap_or_default(),
            rule: record.rule.clone(),
            layer: record.layer.clone(),
            advice: Vec::new(),
        };
        Self { advice: refusal.find_advice(run), ..refusal }
    }

    fn is_like(&self, other: &Self) -> bool {
        Self { count: other.count, ..self.clone() } == *other
    }

    fn find_advice(&self, run: &RunRefusals) -> Vec<String> {
        let with = |options: &str| format!("ringfence run {options} -- {} …", run.program);
        let rule = |scope: &str| {
            format!("add to `rules` in your config: {{ decision = \"allow\", tool = \"{RUN_PROGRAM}\", {scope} }}")
        };
        let resource = &self.resource;
        let mut advice = match self.kind {
            RefusalKind::Tripwire => {
                return vec![
                    "send the placeholder only in the header that the profile names, to the host of the key".to_owned(),
                ];
            }
            RefusalKind::Request => {
                return vec![format!(
                    "paths of the key: `paths` in [[credentials]] or in the profile `{}`",
                    run.profile
                )];
            }
            RefusalKind::Send => vec![
                "try again, and answer in place, with `ringfence approvals` or in the web UI".to_owned(),
                rule(&format!("effect = \"send\", host = \"{resource}\"")),
            ],
            RefusalKind::Run => vec!["ringfence policy show".to_owned()],
            RefusalKind::Port => {
                let (outside, inside) = resource.split_once(" to ").unwrap_or((resource, ""));
                let colon = if inside.is_empty() { "" } else { ":" };
                vec![
                    with(&format!("--publish {outside}{colon}{inside}")),
                    rule(&format!("effect = \"listen\", host = \"{outside}\"")),
                ]
            }
            RefusalKind::Host if loopback_port(resource).is_some() => {
                let port = loopback_port(resource).unwrap_or_default();
                vec![with(&format!("--connect {port}"))]
            }
            RefusalKind::Host if self.rule.is_none() && is_network_error(&self.error) => {
                return vec![
                    "connect by name, and name the same host in TLS".to_owned(),
                    "for a host of a private network: `private_hosts` under [web] in your config".to_owned(),
                ];
            }
            RefusalKind::Host => {
                vec![with(&format!("--allow-host {resource}")), rule(&format!("host = \"{resource}\""))]
            }
        };
        let is_denied = self.error.ends_with("PERMISSION_DENIED") || self.error.ends_with("E_DENIED");
        let Some(name) = self.rule.as_ref().filter(|_| is_denied) else { return advice };
        // Nothing that is allowed elsewhere lifts a denial.
        advice.clear();
        advice.push(match self.layer.as_deref() {
            Some(layer) if layer == PolicyLayer::Managed.name() => {
                format!("the machine's owner denies it: ask them about the rule `{name}` in /etc/ringfence")
            }
            Some(layer) if layer == PolicyLayer::Workspace.name() => {
                format!("change or remove the rule `{name}` in ringfence.toml of the workspace")
            }
            _ => format!("change or remove the rule `{name}` in your config; `ringfence policy show` has its line"),
        });
        advice
    }

    fn to_text(&self) -> String {
        let Self { kind, resource, detail, count, error, rule, layer, advice } = self;
        let kind = match kind {
            RefusalKind::Run => "run",
            RefusalKind::Host => "host",
            RefusalKind::Port => "port",
            RefusalKind::Tripwire => "tripwire",
            RefusalKind::Request => "request",
            RefusalKind::Send => "send",
        };
        let times = if *count == 1 { String::new() } else { format!(" ({count} times)") };
        let detail = detail.as_ref().map(|detail| format!(" {detail}")).unwrap_or_default();
        let mut text = format!("\n{kind} {resource}{detail}{times}: {}", reason(error));
        if let (Some(rule), Some(layer)) = (rule, layer) {
            let _ = write!(text, ", by the rule `{rule}` ({layer})");
        }
        text.push('\n');
        for line in advice {
            let _ = writeln!(text, "  {line}");
        }
        text
    }
}

/// The kind of a refused access, its resource, and what was refused of it.
fn parse_access(access: &RecordedAccess) -> (RefusalKind, String, Option<String>) {
    if access.action == PolicyAction::Listen.as_str() {
        return (RefusalKind::Port, access.path.clone(), None);
    }
    match access.path.split_once(' ') {
        None => (RefusalKind::Host, access.path.clone(), None),
        Some((host, detail)) if access.action == PolicyAction::Send.as_str() => {
            (RefusalKind::Send, host.to_owned(), Some(detail.to_owned()))
        }
        Some((host, detail)) => match detail.strip_prefix("tripwire: ") {
            Some(place) => (RefusalKind::Tripwire, host.to_owned(), Some(place.to_owned())),
            None => (RefusalKind::Request, host.to_owned(), Some(detail.to_owned())),
        },
    }
}

/// The port of a host that is this machine.
pub(crate) fn loopback_port(resource: &str) -> Option<u16> {
    let (host, port) = resource.rsplit_once(':')?;
    let host = host.trim_matches(['[', ']']);
    let is_loopback = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    port.parse().ok().filter(|_| is_loopback)
}

fn is_network_error(error: &str) -> bool {
    error.contains("NETWORK")
}

/// The reason behind a code.
fn reason(error: &str) -> &str {
    match error {
        "PERMISSION_DENIED" => "denied",
        "APPROVAL_PENDING" => "approval was required, and not given in time",
        "APPROVAL_DENIED" => "approval was required, and not given",
        "NETWORK_ERROR" => "refused without asking, because it is never allowed",
        other => other,
    }
}
