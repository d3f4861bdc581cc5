//! Tools of other programs: servers of the Model Context Protocol, as a client of theirs.
//!
//! Nothing that a server says about itself is believed. Each of its tools is one more tool on the one road, with the one
//! effect `external`: asked about by default, by a person, with the note that it cannot be undone. What it answers is a
//! stranger's. The list of a server's tools is taken once, when a session begins; later changes wait for the next one.
//!
//! Not here: which servers there are (`mcp_config.rs`), and starting programs outside of the jail (`launch.rs`).

mod definition;
#[cfg(test)]
mod fuzz;
mod line;
mod pipes;
mod posts;
mod server;
mod speech;
mod start;
mod tool;

use std::collections::BTreeMap;
use std::sync::Arc;

use ringfence_kernel::{Dialect, Face, MCP, NameTaken, Registry, visible_line};
use serde::Serialize;

use crate::config::{Environment, Settings};
use crate::store::SqliteStore;
use definition::Listed;
use server::Server;
pub(crate) use start::Reach;
use start::Starter;
use tool::{Foreign, Value};

/// What was found of a server, for `ringfence doctor`.
#[derive(Debug, Serialize)]
pub(crate) struct Checked {
    pub(crate) name: String,
    pub(crate) starts: bool,
    pub(crate) note: String,
}

/// What came of starting the servers.
#[derive(Debug, Default)]
pub(crate) struct Joined {
    /// For each tool, as grants know it, a digest of what its server says about it.
    pub(crate) definitions: BTreeMap<String, String>,
    /// What the user should know.
    pub(crate) warnings: Vec<String>,
}

/// Starts every server, all at once, and gives its tools to a registry. One that does not start is a warning. Other dialects
/// than the standard one have a fixed list of tools.
pub(crate) fn join(
    registry: &mut Registry,
    settings: &Settings,
    environment: &Environment,
    reach: Reach,
) -> Result<Joined, NameTaken> {
    let mut joined = Joined::default();
    if settings.mcp_servers.is_empty() || settings.dialect != Dialect::Standard {
        return Ok(joined);
    }
    let store = Arc::new(SqliteStore::new(&settings.state));
    for (server, listed) in start_all(settings, environment, reach) {
        let name = server.name().to_owned();
        let listed = match listed {
            Ok(listed) => listed,
            Err(problem) => {
                joined.warnings.push(format!("the MCP server `{name}` has no tools here: {problem}"));
                continue;
            }
        };
        joined.warnings.extend(listed.left_out.iter().map(|why| format!("the MCP server `{name}`: {why}")));
        for definition in listed.tools {
            joined.definitions.insert(format!("{MCP}/{}", definition.place), definition.digest.clone());
            let face = Face::declared::<Value>(definition.declared());
            let tool = Foreign { server: Arc::clone(&server), definition, store: Arc::clone(&store) };
            registry.register(tool, [face])?;
        }
    }
    Ok(joined)
}

/// Starts every server, and says how that went.
pub(crate) fn check(settings: &Settings, environment: &Environment) -> Vec<Checked> {
    let checked = start_all(settings, environment, Reach::default()).into_iter().map(|(server, listed)| {
        let name = server.name().to_owned();
        match listed {
            Ok(Listed { tools, left_out }) => {
                let left_out = left_out.iter().map(|why| format!("; {why}")).collect::<String>();
                let note = format!("{}, {} tools{left_out}", server.whereabouts(), tools.len());
                Checked { name, starts: true, note }
            }
            Err(problem) => Checked { name, starts: false, note: visible_line(&problem) },
        }
    });
    checked.collect()
}

/// Each server with its tools, or with the reason why it has none.
fn start_all(
    settings: &Settings,
    environment: &Environment,
    reach: Reach,
) -> Vec<(Arc<Server>, Result<Listed, String>)> {
    let starter = Arc::new(Starter::new(settings, environment, reach));
    let servers: Vec<Arc<Server>> =
        settings.mcp_servers.iter().map(|told| Arc::new(Server::new(told.clone(), Arc::clone(&starter)))).collect();
    std::thread::scope(|scope| {
        let starting: Vec<_> = servers.iter().map(|server| scope.spawn(|| server.list())).collect();
        let listed = starting.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err("it failed".to_owned())));
        servers.iter().cloned().zip(listed.collect::<Vec<_>>()).collect()
    })
}
