//! MCP server connection: initialize, list tools and call tools. A server that ended is restarted by the next call, and
//! must then give the same definition of that tool as when the session began.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringfence_kernel::sync::Mutex;
use ringfence_kernel::{CallContext, ToolError};
use serde_json::{Map, Value, json};

use crate::config::mcp_servers::{McpServerConfig, McpServerProgram, McpServerTransport, ServerWorkspaceAccess};
use crate::mcp_client::definition::{McpToolDefinition, McpToolList, parse_tools};
use crate::mcp_client::launch::{PerCallMcpServer, ServerLauncher};
use crate::mcp_client::transport::{McpClientError, McpDeadline, McpTransport};

/// Supported protocol versions, the requested one first.
const PROTOCOL_VERSIONS: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];

/// Default time for a server to be ready.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// Pages of a list that are asked for.
const MAX_PAGES: usize = 16;

/// A server, running or not.
#[derive(Debug)]
pub(crate) struct McpServerHandle {
    config: McpServerConfig,
    launcher: Arc<ServerLauncher>,
    transport: Mutex<Option<Arc<dyn McpTransport>>>,
}

impl McpServerHandle {
    pub(crate) fn new(config: McpServerConfig, launcher: Arc<ServerLauncher>) -> Self {
        Self { config, launcher, transport: Mutex::default() }
    }

    pub(crate) fn name(&self) -> &str {
        &self.config.name
    }

    /// Time limit of a call, within the general one.
    pub(crate) fn call_timeout(&self, most: Duration) -> Duration {
        self.config.timeout.map_or(most, |timeout| timeout.min(most))
    }

    /// Where it runs, for a person who decides about its calls.
    pub(crate) fn location(&self) -> Cow<'static, str> {
        match &self.config.transport {
            McpServerTransport::Program(program) if program.is_per_call() => {
                let files = match program.workspace {
                    ServerWorkspaceAccess::None => "without files",
                    ServerWorkspaceAccess::Read => "with read access to the workspace",
                };
                let network = match program.network.as_slice() {
                    [] => "without network".to_owned(),
                    hosts => format!("with network access to {}", hosts.join(", ")),
                };
                format!("in the sandbox, {files} and {network}").into()
            }
            McpServerTransport::Program(McpServerProgram { jail: true, .. }) => {
                "in the sandbox, without network or files".into()
            }
            McpServerTransport::Program(_) => "outside the sandbox, with your full permissions".into(),
            McpServerTransport::Url { .. } => "on another machine, or behind a local port".into(),
        }
    }

    /// Hosts that it may reach from the jail, as rules know them.
    pub(crate) fn network(&self) -> Result<Vec<String>, ToolError> {
        match &self.config.transport {
            McpServerTransport::Program(program) => self.launcher.canonical_hosts(&program.network),
            McpServerTransport::Url { .. } => Ok(Vec::new()),
        }
    }

    /// Starts it, and gives its tools, or the reason why there are none.
    pub(crate) fn start_and_list(&self) -> Result<McpToolList, String> {
        let until = Instant::now() + self.config.timeout.unwrap_or(START_TIMEOUT);
        let deadline = McpDeadline { until, check: &|| Ok(()) };
        let (line, listed) = self.connect(&deadline).map_err(|trouble| trouble.to_string())?;
        // A server that is started for each call is ended.
        let stays = !matches!(&self.config.transport, McpServerTransport::Program(program) if program.is_per_call());
        *self.transport.lock() = Some(line).filter(|_| stays);
        Ok(listed)
    }

    /// Calls a tool.
    pub(crate) fn call(
        &self,
        tool: &McpToolDefinition,
        arguments: &Map<String, Value>,
        deadline: &McpDeadline<'_>,
        cx: &CallContext<'_>,
    ) -> Result<Value, McpClientError> {
        let asked = json!({"name": tool.remote_name, "arguments": arguments});
        match &self.config.transport {
            McpServerTransport::Program(program) if program.is_per_call() => {
                let PerCallMcpServer { transport: line, channel } = self.launcher.open_for_call(program, cx)?;
                let check = || {
                    while let Some(attempt) = channel.as_ref().and_then(|channel| channel.next_attempt()) {
                        attempt.record(cx);
                    }
                    (deadline.check)()
                };
                let deadline = McpDeadline { until: deadline.until, check: &check };
                let listed = self.initialize(line.as_ref(), &deadline).map_err(before_call)?;
                check_definition(&listed, tool)?;
                let answer = line.request("tools/call", &asked, &deadline);
                // It ends with its transport. Its remaining connection attempts are recorded too, and not made.
                drop(line);
                while let Some(attempt) = channel.as_ref().and_then(|channel| channel.next_attempt()) {
                    attempt.record(cx);
                }
                answer
            }
            McpServerTransport::Program(_) | McpServerTransport::Url { .. } => {
                self.transport_for(tool, deadline)?.request("tools/call", &asked, deadline)
            }
        }
    }

    /// The line that there is, or a new one to a server that is still the same.
    fn transport_for(
        &self,
        tool: &McpToolDefinition,
        deadline: &McpDeadline<'_>,
    ) -> Result<Arc<dyn McpTransport>, McpClientError> {
        let mut now = self.transport.lock();
        if let Some(line) = now.as_ref().filter(|line| !line.is_closed()) {
            return Ok(Arc::clone(line));
        }
        // The old process ends before a new one starts.
        *now = None;
        let (line, listed) = self.connect(deadline).map_err(before_call)?;
        check_definition(&listed, tool)?;
        Ok(Arc::clone(now.insert(line)))
    }

    fn connect(&self, deadline: &McpDeadline<'_>) -> Result<(Arc<dyn McpTransport>, McpToolList), McpClientError> {
        let line = self.launcher.open(&self.config.transport)?;
        let listed = self.initialize(line.as_ref(), deadline)?;
        Ok((line, listed))
    }

    /// Makes its acquaintance, and hears what tools it has.
    fn initialize(&self, line: &dyn McpTransport, deadline: &McpDeadline<'_>) -> Result<McpToolList, McpClientError> {
        let hello = json!({
            "protocolVersion": PROTOCOL_VERSIONS[0],
            "capabilities": {},
            "clientInfo": {"name": "ringfence", "version": env!("CARGO_PKG_VERSION")},
        });
        let answer = line.request("initialize", &hello, deadline)?;
        let version = answer["protocolVersion"].as_str().unwrap_or_default();
        if !PROTOCOL_VERSIONS.contains(&version) {
            return Err(McpClientError::ProtocolViolation("an unsupported protocol version"));
        }
        line.set_protocol_version(version);
        line.notify("notifications/initialized", &Value::Null, deadline)?;
        let tools = list_tools(line, deadline)?;
        Ok(parse_tools(&self.config, tools))
    }
}

/// Trouble before the server got the call.
fn before_call(trouble: McpClientError) -> McpClientError {
    match trouble {
        McpClientError::Cancelled(error) => McpClientError::Cancelled(error),
        other => McpClientError::Start(other.to_string()),
    }
}

/// Fails where a server's definition of a tool changed since the session began.
fn check_definition(listed: &McpToolList, tool: &McpToolDefinition) -> Result<(), McpClientError> {
    let same = listed.tools.iter().any(|now| now.remote_name == tool.remote_name && now.digest == tool.digest);
    if same { Ok(()) } else { Err(McpClientError::DefinitionChanged) }
}

/// Every tool, as the server says it.
fn list_tools(line: &dyn McpTransport, deadline: &McpDeadline<'_>) -> Result<Vec<Value>, McpClientError> {
    let mut tools = Vec::new();
    let mut cursor = Value::Null;
    for _ in 0..MAX_PAGES {
        let params = if cursor.is_null() { json!({}) } else { json!({"cursor": cursor}) };
        let mut page = line.request("tools/list", &params, deadline)?;
        let mut take = |key: &str| page.get_mut(key).map(Value::take);
        let Some(Value::Array(more)) = take("tools") else {
            return Err(McpClientError::ProtocolViolation("no list of tools"));
        };
        tools.extend(more);
        cursor = take("nextCursor").unwrap_or_default();
        if !cursor.is_string() {
            return Ok(tools);
        }
    }
    Err(McpClientError::ProtocolViolation("an endless list of tools"))
}
