//! One server: greeted, its tools listed, its tools called. One that ended is started again by the next call, and has to
//! say about that tool what it said when the session began.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::definition::{Definition, Listed, read};
use super::line::{Line, Patience, Trouble};
use super::speech::VERSIONS;
use super::start::Starter;
use crate::mcp_config::{ForeignServer, Program, Way};

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
    pub(crate) fn whereabouts(&self) -> &'static str {
        match &self.told.way {
            Way::Program(Program { jail: true, .. }) => "in the jail, without network and files",
            Way::Program(_) => "outside of the jail, with all that you may do",
            Way::Url { .. } => "on another machine, or behind a port of this one",
        }
    }

    /// Starts it, and gives its tools, or the reason why there are none.
    pub(crate) fn list(&self) -> Result<Listed, String> {
        let until = Instant::now() + self.told.timeout.unwrap_or(START);
        let patience = Patience { until, check: &|| Ok(()) };
        let (line, listed) = self.connect(&patience).map_err(|trouble| trouble.to_string())?;
        *self.line.lock().unwrap_or_else(PoisonError::into_inner) = Some(line);
        Ok(listed)
    }

    /// Calls a tool.
    pub(crate) fn call(
        &self,
        tool: &Definition,
        arguments: &Map<String, Value>,
        patience: &Patience<'_>,
    ) -> Result<Value, Trouble> {
        let line = self.line(tool, patience)?;
        line.ask("tools/call", &json!({"name": tool.called, "arguments": arguments}), patience)
    }

    /// The line that there is, or a new one to a server that is still the same.
    fn line(&self, tool: &Definition, patience: &Patience<'_>) -> Result<Arc<dyn Line>, Trouble> {
        let mut now = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(line) = now.as_ref().filter(|line| !line.is_over()) {
            return Ok(Arc::clone(line));
        }
        // What is left of it ends before there is another.
        *now = None;
        let (line, listed) = self.connect(patience).map_err(|trouble| match trouble {
            Trouble::Unwanted(error) => Trouble::Unwanted(error),
            // Nothing was asked of it yet.
            other => Trouble::Start(other.to_string()),
        })?;
        let same = listed.tools.iter().any(|now| now.called == tool.called && now.digest == tool.digest);
        if !same {
            return Err(Trouble::Changed);
        }
        Ok(Arc::clone(now.insert(line)))
    }

    fn connect(&self, patience: &Patience<'_>) -> Result<(Arc<dyn Line>, Listed), Trouble> {
        let line = self.starter.open(&self.told.way)?;
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
        let tools = pages(line.as_ref(), patience)?;
        let listed = read(&self.told, tools);
        Ok((line, listed))
    }
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
