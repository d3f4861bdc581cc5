//! What was truly done for a prompt: from the records of the road, and never from the model.
//!
//! A `Tap` hears every record that the audit log gets. A change counts when its call was recorded as begun and as well
//! ended, and it was not recorded as not kept; where the end is not known, the ledger says so. Of a program the exit code and
//! how much of its changes was kept come from the host's own reply.
//!
//! Not here: keeping it. The audit log and the journal do that.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringfence_kernel::{AuditLost, AuditSink, ErrorKind, Moment, Record, ToolError, Touch, Verb, visible_line};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// No message of a call is kept longer than this.
const LONGEST_MESSAGE: usize = 300;

/// So many paths that were not kept are named in a line.
const MOST_NAMED: usize = 5;

/// What was done, put together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Ledger {
    /// Calls that were made, whatever came of them.
    pub calls: usize,
    /// Files and directories that are not what they were, by path.
    pub files: Vec<Change>,
    pub commands: Vec<Command>,
    /// Hosts that requests may have left for.
    pub network: Vec<String>,
    /// Tools of other programs that were called, whatever they did.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub external: Vec<String>,
    /// Calls that the policy or a person refused.
    pub denied: Vec<Call>,
    /// Calls that failed for another reason.
    pub failed: Vec<Call>,
    /// The changes, as `ringfence undo` takes them.
    pub changes: Vec<String>,
}

/// What became of one path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    pub path: String,
    #[serde(flatten)]
    pub fate: Fate,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "what")]
pub enum Fate {
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
pub struct Command {
    pub language: String,
    /// Nothing where it did not end by itself.
    pub exit_code: Option<i64>,
    /// Why it did not, in the name that the dialect has for it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error: Option<String>,
    /// Whether all that it changed was kept.
    pub kept: bool,
    /// Whether some of it was, where not all.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub partly_kept: bool,
    /// What it changed and was not kept, by path.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub not_kept: Vec<String>,
}

/// A call that did not do what it was made for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    pub tool: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub about: Option<String>,
    /// The name that the dialect has for it.
    pub error: String,
    pub message: String,
}

impl Ledger {
    /// Whether anything is not as it was.
    pub fn changed_something(&self) -> bool {
        !self.files.is_empty()
    }

    /// In words, a line each, safe to be shown.
    pub fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.files.iter().map(Change::line).collect();
        lines.extend(self.commands.iter().map(Command::line));
        lines.extend(self.network.iter().map(|host| format!("reached  {}", visible_line(host))));
        let external = self.external.iter().map(|tool| visible_line(tool));
        lines.extend(external.map(|tool| format!("called   {tool}, a tool of another program: it cannot be undone")));
        lines.extend(self.denied.iter().map(|call| format!("denied   {}", call.line())));
        lines.extend(self.failed.iter().map(|call| format!("failed   {}", call.line())));
        if self.files.is_empty() {
            lines.insert(0, "no file was changed".to_owned());
        }
        lines
    }
}

impl Change {
    fn line(&self) -> String {
        let path = visible_line(&self.path);
        match &self.fate {
            Fate::Created => format!("created  {path}"),
            Fate::Changed => format!("changed  {path}"),
            Fate::Deleted => format!("deleted  {path}"),
            Fate::CameAndWent => format!("created  {path}, and deleted it again"),
            Fate::Moved { from } => format!("moved    {} to {path}", visible_line(from)),
            Fate::Unknown => format!("unknown  {path}: a call was ended while it changed it"),
        }
    }
}

impl Command {
    fn line(&self) -> String {
        let kept = match (self.kept, self.partly_kept) {
            (true, _) => String::new(),
            (false, false) => ", nothing of it kept".to_owned(),
            (false, true) => format!(", not kept: {}", named(&self.not_kept)),
        };
        match (self.exit_code, &self.error) {
            (Some(code), _) => format!("ran      {} code: exit code {code}{kept}", self.language),
            (None, error) => {
                format!(
                    "ran      {} code: {}{kept}",
                    self.language,
                    error.as_deref().unwrap_or("not known how it ended")
                )
            }
        }
    }
}

/// The first of some paths, and how many there are besides.
fn named(paths: &[String]) -> String {
    let first: Vec<String> = paths.iter().take(MOST_NAMED).map(|path| visible_line(path)).collect();
    match paths.len().saturating_sub(MOST_NAMED) {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

impl Call {
    fn line(&self) -> String {
        let about = self.about.as_deref().map(|about| format!(" {}", visible_line(about))).unwrap_or_default();
        format!("{}{about}: {}", visible_line(&self.tool), visible_line(&self.message))
    }
}

/// Hears the records of a session and makes a ledger of them.
#[derive(Clone, Debug, Default)]
pub struct Tap(Arc<Mutex<Heard>>);

#[derive(Debug, Default)]
struct Heard {
    ended: Ledger,
    paths: BTreeMap<String, Path>,
    /// Calls that were begun and whose end is not known yet, in their order.
    open: Vec<Open>,
}

/// What is known of a path.
#[derive(Clone, Debug)]
struct Path {
    /// Whether it was there before the first change.
    before: bool,
    now: bool,
    from: Option<String>,
}

#[derive(Debug)]
struct Open {
    call: String,
    change: String,
    touches: Vec<(Verb, String)>,
    /// What was left and is not kept.
    not_kept: Vec<String>,
    language: Option<String>,
    hosts: Vec<String>,
}

/// How much of what a call was about to change is changed, as its end says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Made {
    All,
    Some,
    None,
    Unknown,
}

impl Made {
    /// Of the word `committed` in a reply. Earlier versions said true or false.
    fn of(committed: &Value) -> Option<Self> {
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

impl Tap {
    /// Forgets what it heard: what comes from now on is another prompt's. What is still under way then ends in it.
    pub fn begin(&self) {
        let mut heard = self.heard();
        let open = std::mem::take(&mut heard.open);
        *heard = Heard { open, ..Heard::default() };
    }

    /// What was done since.
    pub fn ledger(&self) -> Ledger {
        let heard = self.heard();
        let mut ledger = heard.ended.clone();
        ledger.files = heard.files();
        for open in &heard.open {
            if let Some(language) = &open.language {
                ledger.commands.push(Command {
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

    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AuditSink for Tap {
    fn record(&self, record: &Record<'_>) -> Result<(), AuditLost> {
        let mut heard = self.heard();
        match record.moment {
            Moment::Begin { change, .. } => heard.begin(record, change),
            Moment::End { error, reply, .. } => heard.end(record, error, reply),
            Moment::Refused { error, .. } => heard.refused(record, error),
            Moment::Reached { refused: None } => heard.reached(record),
            Moment::NotKept { .. } => heard.not_kept(record),
            // Each of the hosts is in a record of its own.
            Moment::Reached { refused: Some(_) } | Moment::ReachedUnlisted { .. } => {}
            // Its end follows, or never does.
            Moment::Overdue { error, .. } => heard.note_error(record, error),
        }
        Ok(())
    }
}

impl Heard {
    fn begin(&mut self, record: &Record<'_>, change: &str) {
        let shown = |touch: &Touch| (touch.verb, touch.place.shown.clone());
        let at = match self.open.iter().position(|open| open.call == record.call_id) {
            Some(at) => at,
            None => {
                let call = record.call_id.to_owned();
                self.open.push(Open {
                    call,
                    change: String::new(),
                    touches: Vec::new(),
                    not_kept: Vec::new(),
                    language: None,
                    hosts: Vec::new(),
                });
                self.open.len() - 1
            }
        };
        let Some(open) = self.open.get_mut(at) else { return };
        for (verb, path) in record.touches.iter().map(shown) {
            match verb {
                Verb::Run => open.language = Some(path),
                Verb::Fetch => open.hosts.push(path),
                // Whatever comes of it, that program was asked.
                Verb::External => self.ended.external.push(path),
                verb if verb.changes() => open.touches.push((verb, path)),
                _ => {}
            }
        }
        change.clone_into(&mut open.change);
    }

    /// A program came to a host. Once is enough to say.
    fn reached(&mut self, record: &Record<'_>) {
        let Some(open) = self.open.iter_mut().find(|open| open.call == record.call_id) else { return };
        for touch in record.touches.iter().filter(|touch| touch.verb == Verb::Fetch) {
            if !open.hosts.contains(&touch.place.shown) {
                open.hosts.push(touch.place.shown.clone());
            }
        }
    }

    /// What a program left and is not kept never happened, also where it was about to be made.
    fn not_kept(&mut self, record: &Record<'_>) {
        let Some(open) = self.open.iter_mut().find(|open| open.call == record.call_id) else { return };
        for touch in record.touches.iter().filter(|touch| touch.verb.changes()) {
            let path = &touch.place.shown;
            open.touches.retain(|(verb, touched)| *verb != touch.verb || touched != path);
            if !open.not_kept.contains(path) {
                open.not_kept.push(path.clone());
            }
        }
    }

    fn end(&mut self, record: &Record<'_>, error: Option<&ToolError>, reply: &str) {
        let open = self.open.iter().position(|open| open.call == record.call_id).map(|at| self.open.remove(at));
        self.ended.calls += 1;
        if let Some(error) = error {
            let first = open.as_ref().and_then(|open| open.not_kept.first());
            self.note_error_about(record, error, first.map(String::as_str));
        }
        let Some(open) = open else { return };
        for host in &open.hosts {
            if !self.ended.network.contains(host) {
                self.ended.network.push(host.clone());
            }
        }
        let said = error.and_then(|error| Made::of(error.details.get("committed")?));
        let made = match &open.language {
            None => said.unwrap_or(if error.is_none() { Made::All } else { Made::None }),
            Some(language) => {
                let command = command(language, &open, error, reply, record);
                let made = match (command.kept, command.partly_kept) {
                    _ if said == Some(Made::Unknown) => Made::Unknown,
                    (true, _) => Made::All,
                    (false, true) => Made::Some,
                    (false, false) => Made::None,
                };
                self.ended.commands.push(command);
                made
            }
        };
        match made {
            Made::All | Made::Some => self.made(open),
            Made::Unknown => self.open.push(Open { language: None, ..open }),
            Made::None => {}
        }
    }

    fn made(&mut self, open: Open) {
        if !open.change.is_empty() {
            self.ended.changes.push(open.change);
        }
        let mut from = open.touches.iter().filter(|(verb, _)| *verb == Verb::MoveAway).map(|(_, path)| path.clone());
        let mut moved = from.next();
        for (verb, path) in open.touches {
            match verb {
                Verb::Create | Verb::Overwrite => {
                    let from = moved.take();
                    self.path(path, verb == Verb::Overwrite).arrive(from);
                }
                Verb::Delete | Verb::MoveAway => self.path(path, true).leave(),
                _ => {}
            }
        }
    }

    fn path(&mut self, path: String, was_there: bool) -> &mut Path {
        self.paths.entry(path).or_insert(Path { before: was_there, now: was_there, from: None })
    }

    fn refused(&mut self, record: &Record<'_>, error: &ToolError) {
        self.ended.calls += 1;
        self.open.retain(|open| open.call != record.call_id);
        self.note_error(record, error);
    }

    fn note_error(&mut self, record: &Record<'_>, error: &ToolError) {
        self.note_error_about(record, error, None);
    }

    fn note_error_about(&mut self, record: &Record<'_>, error: &ToolError, about: Option<&str>) {
        let touched = record.touches.first().map(|touch| touch.place.shown.as_str());
        let about = about.or(touched).or(record.subject);
        let call = Call {
            tool: record.tool.to_owned(),
            about: about.map(str::to_owned),
            error: record.session.dialect.error_name(error).to_owned(),
            message: error.message[..error.message.floor_char_boundary(LONGEST_MESSAGE)].to_owned(),
        };
        match error.kind {
            ErrorKind::ApprovalDenied | ErrorKind::ApprovalPending | ErrorKind::PermissionDenied => {
                self.ended.denied.push(call);
            }
            _ => self.ended.failed.push(call),
        }
    }

    fn files(&self) -> Vec<Change> {
        let sources: Vec<&String> = self.paths.values().filter_map(|path| path.from.as_ref()).collect();
        let mut files: Vec<Change> = self
            .paths
            .iter()
            .filter(|(path, what)| {
                what.now || what.before && !sources.contains(path) || !what.before && what.from.is_none()
            })
            .map(|(path, what)| Change { path: path.clone(), fate: what.fate() })
            .collect();
        for open in &self.open {
            let unknown = |(_, path): &(Verb, String)| Change { path: path.clone(), fate: Fate::Unknown };
            files.extend(open.touches.iter().map(unknown));
        }
        files
    }
}

/// How a program ended, by its reply.
fn command(language: &str, open: &Open, error: Option<&ToolError>, reply: &str, record: &Record<'_>) -> Command {
    let value = match error {
        Some(error) => Value::Object(error.details.clone()),
        None => serde_json::from_str::<Value>(reply).map(|mut reply| reply["value"].take()).unwrap_or_default(),
    };
    let made = Made::of(&value["committed"]);
    let changed_nothing =
        error.is_none() && value["totalChanges"].as_u64().unwrap_or(0) == 0 && open.touches.is_empty();
    Command {
        language: language.to_owned(),
        exit_code: value["exitCode"].as_i64(),
        error: error.map(|error| record.session.dialect.error_name(error).to_owned()),
        kept: made == Some(Made::All) || (changed_nothing && value["discarded"] != true),
        partly_kept: made == Some(Made::Some),
        not_kept: open.not_kept.clone(),
    }
}

impl Path {
    fn arrive(&mut self, from: Option<String>) {
        self.now = true;
        self.from = from;
    }

    fn leave(&mut self) {
        self.now = false;
        self.from = None;
    }

    fn fate(&self) -> Fate {
        match (self.before, self.now, &self.from) {
            (_, true, Some(from)) => Fate::Moved { from: from.clone() },
            (false, true, None) => Fate::Created,
            (true, true, None) => Fate::Changed,
            (true, false, _) => Fate::Deleted,
            (false, false, _) => Fate::CameAndWent,
        }
    }
}
