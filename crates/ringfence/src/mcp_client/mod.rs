//! MCP client: tools of external MCP servers.
//!
//! A server's statements about itself are not trusted. Each of its tools is an ordinary tool with the one action
//! `external`: it requires a person's approval by default, with the note that it cannot be undone. Its results are
//! untrusted content. The list of a server's tools is read once, when a session begins; later changes apply to the next
//! one.
//!
//! Not here: the configured servers (`config/mcp_servers.rs`), and starting programs outside of the jail (`launch.rs`).

mod definition;
#[cfg(test)]
mod fuzz;
mod http;
mod launch;
mod server;
mod stdio;
mod tool;
mod transport;

use std::collections::BTreeMap;
use std::sync::Arc;

use ringfence_kernel::{Dialect, DuplicateToolError, MCP_MOUNT, ToolBinding, ToolRegistry, sanitize_line};
use serde::Serialize;

use crate::config::{AppSettings, Environment};
use crate::store::SqliteStore;
use definition::McpToolList;
pub(crate) use launch::McpServerGrants;
use launch::ServerLauncher;
use server::McpServerHandle;
use tool::{McpTool, McpToolValue};

/// The state of a server, for `ringfence doctor`.
#[derive(Debug, Serialize)]
pub(crate) struct McpServerCheck {
    pub(crate) name: String,
    pub(crate) starts: bool,
    pub(crate) note: String,
}

/// The outcome of starting the servers.
#[derive(Debug, Default)]
pub(crate) struct McpStartup {
    /// For each tool, as grants know it, a digest of what its server says about it.
    pub(crate) definitions: BTreeMap<String, String>,
    /// Warnings for the user.
    pub(crate) warnings: Vec<String>,
}

/// Starts every server, all at once, and gives its tools to a registry. One that does not start is a warning. Other dialects
/// than the standard one have a fixed list of tools.
pub(crate) fn register_tools(
    registry: &mut ToolRegistry,
    settings: &AppSettings,
    environment: &Environment,
    reach: McpServerGrants,
) -> Result<McpStartup, DuplicateToolError> {
    let mut joined = McpStartup::default();
    if settings.mcp_servers.is_empty() || settings.dialect != Dialect::Standard {
        return Ok(joined);
    }
    let store = Arc::new(SqliteStore::new(&settings.state));
    for (server, listed) in start_all(settings, environment, reach) {
        let name = server.name().to_owned();
        let listed = match listed {
            Ok(listed) => listed,
            Err(problem) => {
                joined.warnings.push(format!("the MCP server `{name}` is unavailable: {problem}"));
                continue;
            }
        };
        joined.warnings.extend(listed.skipped.iter().map(|why| format!("the MCP server `{name}`: {why}")));
        for definition in listed.tools {
            joined.definitions.insert(format!("{MCP_MOUNT}/{}", definition.rule_name), definition.digest.clone());
            let binding = ToolBinding::external::<McpToolValue>(definition.declaration());
            let tool = McpTool { server: Arc::clone(&server), definition, store: Arc::clone(&store) };
            registry.register(tool, [binding])?;
        }
    }
    Ok(joined)
}

/// Starts every server, and says how that went.
pub(crate) fn check_servers(settings: &AppSettings, environment: &Environment) -> Vec<McpServerCheck> {
    let checked = start_all(settings, environment, McpServerGrants::default()).into_iter().map(|(server, listed)| {
        let name = server.name().to_owned();
        match listed {
            Ok(McpToolList { tools, skipped: left_out }) => {
                let left_out = left_out.iter().map(|why| format!("; {why}")).collect::<String>();
                let note = format!("{}, {} tools{left_out}", server.location(), tools.len());
                McpServerCheck { name, starts: true, note }
            }
            Err(problem) => McpServerCheck { name, starts: false, note: sanitize_line(&problem) },
        }
    });
    checked.collect()
}

/// Each server with its tools, or with the reason why it has none.
fn start_all(
    settings: &AppSettings,
    environment: &Environment,
    reach: McpServerGrants,
) -> Vec<(Arc<McpServerHandle>, Result<McpToolList, String>)> {
    let starter = Arc::new(ServerLauncher::new(settings, environment, reach));
    let servers: Vec<Arc<McpServerHandle>> = settings
        .mcp_servers
        .iter()
        .map(|config| Arc::new(McpServerHandle::new(config.clone(), Arc::clone(&starter))))
        .collect();
    std::thread::scope(|scope| {
        let starting: Vec<_> = servers.iter().map(|server| scope.spawn(|| server.start_and_list())).collect();
        let listed = starting.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err("it failed".to_owned())));
        servers.iter().cloned().zip(listed.collect::<Vec<_>>()).collect()
    })
}
