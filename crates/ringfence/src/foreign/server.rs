//! One server: greeted, its tools listed, its tools called. One that ended is started again by the next call, and has to
//! say about that tool what it said when the session began.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ringfence_kernel::{Context, ToolError};
use serde_json::{Map, Value, json};

use super::definition::{Definition, Listed, read};
use super::line::{Line, Patience, Trouble};
use super::speech::VERSIONS;
use super::start::{ForCall, Starter};
use crate::mcp_config::{Files, ForeignServer, Program, Way};

/// How long a server may take to be ready, where the user says nothing.
const START: Duration = Duration::from_secs(10);

/// Pages of a list that are asked for.
const MOST_PAGES: usize = 16;

/// A server, running or not.
#[derive(Debug)]
pub(crate) struct Server {
    told: ForeignServer,
    starter: Arc<Starter>,
    line: Mutex<Option<Arc<dyn Line>>>,
}

impl Server {
    pub(crate) fn new(told: ForeignServer, starter: Arc<Starter>) -> Self {
        Self { told, starter, line: Mutex::default() }
    }

    pub(crate) fn name(&self) -> &str {
        &self.told.name
    }

    /// How long a call may take, of what it may take at most.
    pub(crate) fn time(&self, most: Duration) -> Duration {
        self.told.timeout.map_or(most, |timeout| timeout.min(most))
    }

    /// Where it runs, for a person who decides about its calls.
    pub(crate) fn whereabouts(&self) -> Cow<'static, str> {
        match &self.told.way {
            Way::Program(program) if program.is_per_call() => {
                let files = match program.files {
                    Files::None => "without files",
                    Files::Read => "with the workspace to be read",
                };
                let network = match program.network.as_slice() {
                    [] => "without network".to_owned(),
                    hosts => format!("with a way to {}", hosts.join(", ")),
                };
                format!("in the jail, {files} and {network}").into()
            }
            Way::Program(Program { jail: true, .. }) => "in the jail, without network and files".into(),
            Way::Program(_) => "outside of the jail, with all that you may do".into(),
            Way::Url { .. } => "on another machine, or behind a port of this one".into(),
        }
    }

    /// Hosts that it may reach from the jail, as rules know them.
    pub(crate) fn network(&self) -> Result<Vec<String>, ToolError> {
        match &self.told.way {
            Way::Program(program) => self.starter.known_hosts(&program.network),
            Way::Url { .. } => Ok(Vec::new()),
        }
    }

    /// Starts it, and gives its tools, or the reason why there are none.
    pub(crate) fn list(&self) -> Result<Listed, String> {
        let until = Instant::now() + self.told.timeout.unwrap_or(START);
        let patience = Patience { until, check: &|| Ok(()) };
        let (line, listed) = self.connect(&patience).map_err(|trouble| trouble.to_string())?;
        // Who is started anew for each call has no more to do.
        let stays = !matches!(&self.told.way, Way::Program(program) if program.is_per_call());
        *self.line.lock().unwrap_or_else(PoisonError::into_inner) = Some(line).filter(|_| stays);
        Ok(listed)
    }

    /// Calls a tool.
    pub(crate) fn call(
        &self,
        tool: &Definition,
        arguments: &Map<String, Value>,
        patience: &Patience<'_>,
        cx: &Context<'_>,
    ) -> Result<Value, Trouble> {
        let asked = json!({"name": tool.called, "arguments": arguments});
        match &self.told.way {
            Way::Program(program) if program.is_per_call() => {
                let ForCall { line, way } = self.starter.open_for_call(program, cx)?;
                let check = || {
                    while let Some(attempt) = way.as_ref().and_then(|way| way.next()) {
                        attempt.record(cx);
                    }
                    (patience.check)()
                };
                let patience = Patience { until: patience.until, check: &check };
                let listed = self.greet(line.as_ref(), &patience).map_err(not_yet_asked)?;
                still_says(&listed, tool)?;
                let answer = line.ask("tools/call", &asked, &patience);
                // It ends with its line. What it still wanted then is recorded too, and not made.
                drop(line);
                while let Some(attempt) = way.as_ref().and_then(|way| way.next()) {
                    attempt.record(cx);
                }
                answer
            }
            Way::Program(_) | Way::Url { .. } => self.line(tool, patience)?.ask("tools/call", &asked, patience),
        }
    }

    /// The line that there is, or a new one to a server that is still the same.
    fn line(&self, tool: &Definition, patience: &Patience<'_>) -> Result<Arc<dyn Line>, Trouble> {
        let mut now = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(line) = now.as_ref().filter(|line| !line.is_over()) {
            return Ok(Arc::clone(line));
        }
        // What is left of it ends before there is another.
        *now = None;
        let (line, listed) = self.connect(patience).map_err(not_yet_asked)?;
        still_says(&listed, tool)?;
        Ok(Arc::clone(now.insert(line)))
    }

    fn connect(&self, patience: &Patience<'_>) -> Result<(Arc<dyn Line>, Listed), Trouble> {
        let line = self.starter.open(&self.told.way)?;
        let listed = self.greet(line.as_ref(), patience)?;
        Ok((line, listed))
    }

    /// Makes its acquaintance, and hears what tools it has.
    fn greet(&self, line: &dyn Line, patience: &Patience<'_>) -> Result<Listed, Trouble> {
        let hello = json!({
            "protocolVersion": VERSIONS[0],
            "capabilities": {},
            "clientInfo": {"name": "ringfence", "version": env!("CARGO_PKG_VERSION")},
        });
        let answer = line.ask("initialize", &hello, patience)?;
        let version = answer["protocolVersion"].as_str().unwrap_or_default();
        if !VERSIONS.contains(&version) {
            return Err(Trouble::Nonsense("a version that we do not know"));
        }
        line.agree(version);
        line.tell("notifications/initialized", &Value::Null, patience)?;
        let tools = pages(line, patience)?;
        Ok(read(&self.told, tools))
    }
}

/// Trouble before the server got the call.
fn not_yet_asked(trouble: Trouble) -> Trouble {
    match trouble {
        Trouble::Unwanted(error) => Trouble::Unwanted(error),
        other => Trouble::Start(other.to_string()),
    }
}

/// Whether a server says about a tool what it said when the session began.
fn still_says(listed: &Listed, tool: &Definition) -> Result<(), Trouble> {
    let same = listed.tools.iter().any(|now| now.called == tool.called && now.digest == tool.digest);
    if same { Ok(()) } else { Err(Trouble::Changed) }
}

/// Every tool, as the server says it.
fn pages(line: &dyn Line, patience: &Patience<'_>) -> Result<Vec<Value>, Trouble> {
    let mut tools = Vec::new();
    let mut cursor = Value::Null;
    for _ in 0..MOST_PAGES {
        let params = if cursor.is_null() { json!({}) } else { json!({"cursor": cursor}) };
        let mut page = line.ask("tools/list", &params, patience)?;
        let mut take = |key: &str| page.get_mut(key).map(Value::take);
        let Some(Value::Array(more)) = take("tools") else { return Err(Trouble::Nonsense("no list of tools")) };
        tools.extend(more);
        cursor = take("nextCursor").unwrap_or_default();
        if !cursor.is_string() {
            return Ok(tools);
        }
    }
    Err(Trouble::Nonsense("a list of tools without end"))
}
