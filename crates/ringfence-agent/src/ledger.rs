//! Action ledger of a prompt: what was done, from audit records and never from the model.
//!
//! A `LedgerSink` hears every record that the audit log gets. A change counts when its call was recorded as begun and as well
//! ended, and it was not recorded as not kept; where the end is not known, the ledger says so. Of a program the exit code and
//! how much of its changes was kept come from the host's own reply.
//!
//! Not here: keeping it. The audit log and the journal do that.

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard};

use ringfence_kernel::sync::Mutex;
use ringfence_kernel::{
    AuditEvent, AuditSink, AuditSinkError, CallRecord, ErrorKind, PolicyAction, ReplyValue, ResourceAccess, ToolError,
    sanitize_line,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// No message of a call is kept longer than this.
const MAX_MESSAGE_BYTES: usize = 300;

/// Most discarded paths that are named in a line.
const MAX_LISTED: usize = 5;

/// Summary of a run's effects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Ledger {
    /// Calls that were made, whatever came of them.
    pub calls: usize,
    /// Files and directories that are not what they were, by path.
    pub files: Vec<LedgerChange>,
    pub commands: Vec<LedgerCommand>,
    /// Hosts that requests may have left for.
    pub network: Vec<String>,
    /// Tools of other programs that were called, whatever they did.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub external: Vec<String>,
    /// Calls that the policy or a person refused.
    pub denied: Vec<LedgerFailedCall>,
    /// Calls that failed for another reason.
    pub failed: Vec<LedgerFailedCall>,
    /// The changes, as `ringfence undo` takes them.
    pub changes: Vec<String>,
}

/// The net change of one path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerChange {
    pub path: String,
    #[serde(flatten)]
    pub outcome: NetFileChange,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "what")]
pub enum NetFileChange {
    Created,
    Changed,
    Deleted,
    /// It was made and is gone again.
    CameAndWent,
    Moved {
        from: String,
    },
    /// A call was about to change it, and how that ended is not known.
    Unknown,
}

/// A program that was run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LedgerCommand {
    pub language: String,
    /// Nothing where it did not end by itself.
    pub exit_code: Option<i64>,
    /// The error code of a failed call, in its dialect.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error: Option<String>,
    /// Whether all that it changed was kept.
    pub kept: bool,
    /// Whether some of it was, where not all.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub partly_kept: bool,
    /// Paths whose changes were discarded.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub not_kept: Vec<String>,
}

/// A call that did not do what it was made for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerFailedCall {
    pub tool: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub about: Option<String>,
    /// The name that the dialect has for it.
    pub error: String,
    pub message: String,
}

impl Ledger {
    /// Whether anything is not as it was.
    pub fn has_changes(&self) -> bool {
        !self.files.is_empty()
    }

    /// In words, a line each, safe to be shown.
    pub fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.files.iter().map(LedgerChange::line).collect();
        lines.extend(self.commands.iter().map(LedgerCommand::line));
        lines.extend(self.network.iter().map(|host| format!("reached  {}", sanitize_line(host))));
        let external = self.external.iter().map(|tool| sanitize_line(tool));
        lines.extend(external.map(|tool| format!("called   {tool}, an external tool: it cannot be undone")));
        lines.extend(self.denied.iter().map(|call| format!("denied   {}", call.line())));
        lines.extend(self.failed.iter().map(|call| format!("failed   {}", call.line())));
        if self.files.is_empty() {
            lines.insert(0, "no files changed".to_owned());
        }
        lines
    }
}

impl LedgerChange {
    fn line(&self) -> String {
        let path = sanitize_line(&self.path);
        match &self.outcome {
            NetFileChange::Created => format!("created  {path}"),
            NetFileChange::Changed => format!("changed  {path}"),
            NetFileChange::Deleted => format!("deleted  {path}"),
            NetFileChange::CameAndWent => format!("created  {path}, then deleted it"),
            NetFileChange::Moved { from } => format!("moved    {} to {path}", sanitize_line(from)),
            NetFileChange::Unknown => format!("unknown  {path}: a call was interrupted while changing it"),
        }
    }
}

impl LedgerCommand {
    fn line(&self) -> String {
        let kept = match (self.kept, self.partly_kept) {
            (true, _) => String::new(),
            (false, false) => ", no changes kept".to_owned(),
            (false, true) => format!(", not kept: {}", list_paths(&self.not_kept)),
        };
        match (self.exit_code, &self.error) {
            (Some(code), _) => format!("ran      {} code: exit code {code}{kept}", self.language),
            (None, error) => {
                format!("ran      {} code: {}{kept}", self.language, error.as_deref().unwrap_or("exit status unknown"))
            }
        }
    }
}

/// The first of some paths, and how many there are besides.
fn list_paths(paths: &[String]) -> String {
    let first: Vec<String> = paths.iter().take(MAX_LISTED).map(|path| sanitize_line(path)).collect();
    match paths.len().saturating_sub(MAX_LISTED) {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

impl LedgerFailedCall {
    fn line(&self) -> String {
        let about = self.about.as_deref().map(|about| format!(" {}", sanitize_line(about))).unwrap_or_default();
        format!("{}{about}: {}", sanitize_line(&self.tool), sanitize_line(&self.message))
    }
}

/// Hears the records of a session and makes a ledger of them.
#[derive(Clone, Debug, Default)]
pub struct LedgerSink(Arc<Mutex<LedgerState>>);

#[derive(Debug, Default)]
struct LedgerState {
    totals: Ledger,
    paths: BTreeMap<String, LedgerPath>,
    /// Calls that were begun and whose end is not known yet, in their order.
    in_flight: Vec<OpenLedgerCall>,
}

/// State of a path.
#[derive(Clone, Debug)]
struct LedgerPath {
    /// Whether it was there before the first change.
    existed_before: bool,
    exists_now: bool,
    from: Option<String>,
}

#[derive(Debug)]
struct OpenLedgerCall {
    call: String,
    change: String,
    accesses: Vec<(PolicyAction, String)>,
    /// Paths whose changes were discarded.
    not_kept: Vec<String>,
    language: Option<String>,
    hosts: Vec<String>,
}

/// Extent of a call's effects, by its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EffectExtent {
    All,
    Some,
    None,
    Unknown,
}

impl EffectExtent {
    /// Parses the field `committed` of a reply. Earlier versions wrote true or false.
    fn from_committed(committed: &Value) -> Option<Self> {
        match committed {
            Value::Bool(true) => Some(Self::All),
            Value::Bool(false) => Some(Self::None),
            Value::String(word) => match word.as_str() {
                "all" => Some(Self::All),
                "some" => Some(Self::Some),
                "none" => Some(Self::None),
                "unknown" => Some(Self::Unknown),
                _ => None,
            },
            _ => None,
        }
    }
}

impl LedgerSink {
    /// Starts an empty ledger for another prompt. Calls that are still running are counted there.
    pub fn reset(&self) {
        let mut heard = self.state();
        let open = std::mem::take(&mut heard.in_flight);
        *heard = LedgerState { in_flight: open, ..LedgerState::default() };
    }

    /// The effects since the start.
    pub fn ledger(&self) -> Ledger {
        let heard = self.state();
        let mut ledger = heard.totals.clone();
        ledger.files = heard.files();
        for open in &heard.in_flight {
            if let Some(language) = &open.language {
                ledger.commands.push(LedgerCommand {
                    language: language.clone(),
                    exit_code: None,
                    error: None,
                    kept: false,
                    partly_kept: false,
                    not_kept: open.not_kept.clone(),
                });
            }
        }
        ledger
    }

    fn state(&self) -> MutexGuard<'_, LedgerState> {
        self.0.lock()
    }
}

impl AuditSink for LedgerSink {
    fn record(&self, record: &CallRecord<'_>) -> Result<(), AuditSinkError> {
        let mut heard = self.state();
        match record.event {
            AuditEvent::Begin { change, .. } => heard.record_begin(record, change),
            AuditEvent::End { outcome, .. } => heard.record_end(record, outcome),
            AuditEvent::Refused { error, .. } => heard.record_refusal(record, error),
            AuditEvent::Connection { refused: None, .. } => heard.record_connection(record),
            AuditEvent::ChangesDiscarded { .. } => heard.record_not_kept(record),
            // It is in the review of the layer.
            AuditEvent::LayerConflict { .. } => {}
            // It changes nothing that the program may do.
            AuditEvent::TerminalWriter { .. } => {}
            // Each of the hosts is in a record of its own.
            AuditEvent::Connection { refused: Some(_), .. } | AuditEvent::UnlistedConnections { .. } => {}
            // Its end follows, or never does.
            AuditEvent::Overdue { error, .. } => heard.record_error(record, error),
        }
        Ok(())
    }
}

impl LedgerState {
    fn record_begin(&mut self, record: &CallRecord<'_>, change: &str) {
        let shown = |access: &ResourceAccess| (access.action, access.resource.display_path.clone());
        let at = match self.in_flight.iter().position(|open| open.call == record.call_id) {
            Some(at) => at,
            None => {
                let call = record.call_id.to_owned();
                self.in_flight.push(OpenLedgerCall {
                    call,
                    change: String::new(),
                    accesses: Vec::new(),
                    not_kept: Vec::new(),
                    language: None,
                    hosts: Vec::new(),
                });
                self.in_flight.len() - 1
            }
        };
        let Some(open) = self.in_flight.get_mut(at) else { return };
        for (action, path) in record.accesses.iter().map(shown) {
            match action {
                PolicyAction::Run => open.language = Some(path),
                PolicyAction::Fetch | PolicyAction::Send => open.hosts.push(path),
                // Whatever comes of it, that program was asked.
                PolicyAction::External => self.totals.external.push(path),
                action if action.changes_files() => open.accesses.push((action, path)),
                _ => {}
            }
        }
        change.clone_into(&mut open.change);
    }

    /// A program came to a host. Once is enough to say.
    fn record_connection(&mut self, record: &CallRecord<'_>) {
        let Some(open) = self.in_flight.iter_mut().find(|open| open.call == record.call_id) else { return };
        for access in record.accesses.iter().filter(|access| access.action.is_host_action()) {
            if !open.hosts.contains(&access.resource.display_path) {
                open.hosts.push(access.resource.display_path.clone());
            }
        }
    }

    /// Removes discarded changes, also those whose commit had begun.
    fn record_not_kept(&mut self, record: &CallRecord<'_>) {
        let Some(open) = self.in_flight.iter_mut().find(|open| open.call == record.call_id) else { return };
        for access in record.accesses.iter().filter(|access| access.action.changes_files()) {
            let path = &access.resource.display_path;
            open.accesses.retain(|(action, touched)| *action != access.action || touched != path);
            if !open.not_kept.contains(path) {
                open.not_kept.push(path.clone());
            }
        }
    }

    fn record_end(&mut self, record: &CallRecord<'_>, outcome: Result<&ReplyValue, &ToolError>) {
        let error = outcome.err();
        let open =
            self.in_flight.iter().position(|open| open.call == record.call_id).map(|at| self.in_flight.remove(at));
        self.totals.calls += 1;
        if let Some(error) = error {
            let first = open.as_ref().and_then(|open| open.not_kept.first());
            self.record_error_about(record, error, first.map(String::as_str));
        }
        let Some(open) = open else { return };
        for host in &open.hosts {
            if !self.totals.network.contains(host) {
                self.totals.network.push(host.clone());
            }
        }
        let reported = error.and_then(|error| EffectExtent::from_committed(error.details.get("committed")?));
        let made = match &open.language {
            None => reported.unwrap_or(if error.is_none() { EffectExtent::All } else { EffectExtent::None }),
            Some(language) => {
                let command = command_from_outcome(language, &open, outcome, record);
                let made = match (command.kept, command.partly_kept) {
                    _ if reported == Some(EffectExtent::Unknown) => EffectExtent::Unknown,
                    (true, _) => EffectExtent::All,
                    (false, true) => EffectExtent::Some,
                    (false, false) => EffectExtent::None,
                };
                self.totals.commands.push(command);
                made
            }
        };
        match made {
            EffectExtent::All | EffectExtent::Some => self.apply_changes(open),
            EffectExtent::Unknown => self.in_flight.push(OpenLedgerCall { language: None, ..open }),
            EffectExtent::None => {}
        }
    }

    fn apply_changes(&mut self, open: OpenLedgerCall) {
        if !open.change.is_empty() {
            self.totals.changes.push(open.change);
        }
        let mut from =
            open.accesses.iter().filter(|(action, _)| *action == PolicyAction::Move).map(|(_, path)| path.clone());
        let mut moved = from.next();
        for (action, path) in open.accesses {
            match action {
                PolicyAction::Create | PolicyAction::Overwrite => {
                    let from = moved.take();
                    self.path(path, action == PolicyAction::Overwrite).mark_present(from);
                }
                PolicyAction::Delete | PolicyAction::Move => self.path(path, true).mark_absent(),
                _ => {}
            }
        }
    }

    fn path(&mut self, path: String, was_there: bool) -> &mut LedgerPath {
        self.paths.entry(path).or_insert(LedgerPath { existed_before: was_there, exists_now: was_there, from: None })
    }

    fn record_refusal(&mut self, record: &CallRecord<'_>, error: &ToolError) {
        self.totals.calls += 1;
        self.in_flight.retain(|open| open.call != record.call_id);
        self.record_error(record, error);
    }

    fn record_error(&mut self, record: &CallRecord<'_>, error: &ToolError) {
        self.record_error_about(record, error, None);
    }

    fn record_error_about(&mut self, record: &CallRecord<'_>, error: &ToolError, about: Option<&str>) {
        let touched = record.accesses.first().map(|access| access.resource.display_path.as_str());
        let about = about.or(touched).or(record.subject);
        let call = LedgerFailedCall {
            tool: record.tool.to_owned(),
            about: about.map(str::to_owned),
            error: record.session.dialect.error_code(error).to_owned(),
            message: error.message[..error.message.floor_char_boundary(MAX_MESSAGE_BYTES)].to_owned(),
        };
        match error.kind {
            ErrorKind::ApprovalDenied | ErrorKind::ApprovalPending | ErrorKind::PermissionDenied => {
                self.totals.denied.push(call);
            }
            _ => self.totals.failed.push(call),
        }
    }

    fn files(&self) -> Vec<LedgerChange> {
        let sources: Vec<&String> = self.paths.values().filter_map(|path| path.from.as_ref()).collect();
        let mut files: Vec<LedgerChange> = self
            .paths
            .iter()
            .filter(|(path, what)| {
                what.exists_now
                    || what.existed_before && !sources.contains(path)
                    || !what.existed_before && what.from.is_none()
            })
            .map(|(path, what)| LedgerChange { path: path.clone(), outcome: what.outcome() })
            .collect();
        for open in &self.in_flight {
            let unknown = |(_, path): &(PolicyAction, String)| LedgerChange {
                path: path.clone(),
                outcome: NetFileChange::Unknown,
            };
            files.extend(open.accesses.iter().map(unknown));
        }
        files
    }
}

/// The result of a program, by its reply.
fn command_from_outcome(
    language: &str,
    open: &OpenLedgerCall,
    outcome: Result<&ReplyValue, &ToolError>,
    record: &CallRecord<'_>,
) -> LedgerCommand {
    let (value, error) = match outcome {
        Ok(value) => (value.to_value(), None),
        Err(error) => (Value::Object((*error.details).clone()), Some(error)),
    };
    let made = EffectExtent::from_committed(&value["committed"]);
    let changed_nothing =
        error.is_none() && value["totalChanges"].as_u64().unwrap_or(0) == 0 && open.accesses.is_empty();
    LedgerCommand {
        language: language.to_owned(),
        exit_code: value["exitCode"].as_i64(),
        error: error.map(|error| record.session.dialect.error_code(error).to_owned()),
        kept: made == Some(EffectExtent::All) || (changed_nothing && value["discarded"] != true),
        partly_kept: made == Some(EffectExtent::Some),
        not_kept: open.not_kept.clone(),
    }
}

impl LedgerPath {
    fn mark_present(&mut self, from: Option<String>) {
        self.exists_now = true;
        self.from = from;
    }

    fn mark_absent(&mut self) {
        self.exists_now = false;
        self.from = None;
    }

    fn outcome(&self) -> NetFileChange {
        match (self.existed_before, self.exists_now, &self.from) {
            (_, true, Some(from)) => NetFileChange::Moved { from: from.clone() },
            (false, true, None) => NetFileChange::Created,
            (true, true, None) => NetFileChange::Changed,
            (true, false, _) => NetFileChange::Deleted,
            (false, false, _) => NetFileChange::CameAndWent,
        }
    }
}
