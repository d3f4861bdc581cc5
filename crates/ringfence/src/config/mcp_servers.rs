//! MCP server config: `[mcp_servers]`.
//!
//! Only the owner of the machine and the user say these: a workspace cannot. Variables are named, never written down.

use std::collections::BTreeMap;
use std::time::Duration;

use ringfence_web::{PrivateHosts, WebApiKey};
use serde::Deserialize;

use crate::config::limits::ConfigDuration;
use crate::config::{EnvironmentVariables, NamedSetting, NamedValues, named_value};

/// No name of a server is longer. With the longest name of a tool it still fits what models' interfaces take.
pub(crate) const MAX_NAME_CHARS: usize = 20;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct McpServerConfigSection {
    command: Option<String>,
    args: Vec<String>,
    env: Vec<String>,
    jail: Option<bool>,
    workspace: Option<NamedSetting<ServerWorkspaceAccess>>,
    network: Vec<String>,
    url: Option<String>,
    key_env: Option<String>,
    timeout: Option<ConfigDuration>,
}

/// A program whose tools join ours.
#[derive(Clone, Debug)]
pub struct McpServerConfig {
    pub name: String,
    pub transport: McpServerTransport,
    /// Time limit of a call, where that is less than the general one.
    pub timeout: Option<Duration>,
}

/// Transport to the server.
#[derive(Clone, Debug)]
pub enum McpServerTransport {
    /// We start it, and talk over its standard input and output.
    Program(McpServerProgram),
    /// It runs somewhere, and we post to it.
    Url { url: String, key: Option<WebApiKey> },
}

/// A program that we start.
#[derive(Clone, Debug)]
pub struct McpServerProgram {
    pub command: String,
    pub args: Vec<String>,
    /// Its environment variables.
    pub env: EnvironmentVariables,
    /// In the jail, where it sees no file of the user's and no network but for what comes next.
    pub jail: bool,
    pub workspace: ServerWorkspaceAccess,
    /// Hosts that it may reach from the jail, each with its port.
    pub network: Vec<String>,
}

/// Access of a program in the jail to the workspace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServerWorkspaceAccess {
    #[default]
    None,
    /// All that programs may read of it. Its writes are discarded.
    Read,
}

impl NamedValues for ServerWorkspaceAccess {
    const VALUES: &'static [(&'static str, Self)] = &[("none", Self::None), ("read", Self::Read)];
}

impl McpServerProgram {
    /// Whether the user granted it anything. Then a process is started for each call: its view is that of the call's
    /// start, and its connections are recorded with that call.
    pub(crate) fn is_per_call(&self) -> bool {
        self.workspace != ServerWorkspaceAccess::None || !self.network.is_empty()
    }
}

/// Merges two layers, with warnings for the user. Fails with the invalid key.
pub(crate) fn merge_servers(
    managed: &BTreeMap<String, McpServerConfigSection>,
    user: &BTreeMap<String, McpServerConfigSection>,
    variables: &EnvironmentVariables,
) -> Result<(Vec<McpServerConfig>, Vec<String>), String> {
    // A name of the machine's owner holds for every user.
    let all: BTreeMap<&String, &McpServerConfigSection> = user.iter().chain(managed).collect();
    let mut warnings = Vec::new();
    let mut servers = Vec::new();
    for (name, keys) in all {
        let wrong = |problem: String| format!("`mcp_servers.{name}`: {problem}");
        check_name(name).map_err(|problem| wrong(problem.to_owned()))?;
        let variable = |key: &str| {
            let found = variables.0.get(key).cloned();
            let missing = found.is_none().then(|| wrong(format!("the environment variable `{key}` is not set")));
            (found, missing)
        };
        let mut missing = Vec::new();
        let transport = server_transport(keys, |key| {
            let (found, warning) = variable(key);
            missing.extend(warning);
            found
        });
        servers.push(McpServerConfig {
            name: name.clone(),
            transport: transport.map_err(wrong)?,
            timeout: keys.timeout.map(ConfigDuration::duration),
        });
        warnings.extend(missing);
    }
    Ok((servers, warnings))
}

fn server_transport(
    keys: &McpServerConfigSection,
    mut variable: impl FnMut(&str) -> Option<String>,
) -> Result<McpServerTransport, String> {
    let wrong = |problem: &str| Err(problem.to_owned());
    match (&keys.command, &keys.url) {
        (Some(_), Some(_)) => wrong("set either `command` or `url`, not both"),
        (None, None) => wrong("set `command` or `url`"),
        (None, Some(_))
            if !keys.args.is_empty() || !keys.env.is_empty() || keys.jail.is_some() || keys.grants_access() =>
        {
            wrong("`args`, `env`, `jail`, `workspace` and `network` cannot be combined with `url`")
        }
        (None, Some(url)) => Ok(McpServerTransport::Url {
            url: url.clone(),
            key: keys.key_env.as_deref().and_then(variable).map(WebApiKey::new),
        }),
        (Some(_), None) if keys.key_env.is_some() => {
            wrong("`key_env` requires a `url`; use `env` to pass variables to a `command`")
        }
        (Some(command), None) if command.is_empty() => wrong("`command` is empty"),
        (Some(command), None) if command.contains('/') && !command.starts_with('/') => {
            wrong("`command` must be a program name or an absolute path")
        }
        (Some(_), None) if keys.jail == Some(false) && keys.grants_access() => wrong(
            "`workspace` and `network` require `jail = true`; outside the sandbox a program has your full permissions",
        ),
        (Some(command), None) => Ok(McpServerTransport::Program(McpServerProgram {
            command: command.clone(),
            args: keys.args.clone(),
            env: EnvironmentVariables(
                keys.env.iter().filter_map(|name| Some((name.clone(), variable(name)?))).collect(),
            ),
            jail: keys.jail.unwrap_or(true),
            workspace: named_value(keys.workspace).unwrap_or_default(),
            network: keys.network.iter().map(|host| with_port(host)).collect::<Result<_, _>>()?,
        })),
    }
}

impl McpServerConfigSection {
    /// Whether it is given something that programs in the jail do not have.
    fn grants_access(&self) -> bool {
        self.workspace.is_some() || !self.network.is_empty()
    }
}

/// Hosts and ports of the network are read in the same way as those that the user lets web tools reach.
fn with_port(host: &str) -> Result<String, String> {
    let has_port = host.contains(':') && !host.ends_with(']');
    let whole = if has_port { host.to_owned() } else { format!("{host}:443") };
    match PrivateHosts::parse(std::slice::from_ref(&whole)) {
        Ok(_) => Ok(whole),
        Err(_) => Err(format!("invalid host `{host}` in `network`: use a host such as `pypi.org` or `pypi.org:80`")),
    }
}

/// Names of tools are made of it, and rules are written about those.
fn check_name(name: &str) -> Result<(), &'static str> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_');
    let fits = !name.is_empty() && name.len() <= MAX_NAME_CHARS && name.bytes().all(plain);
    let ends = name.starts_with('_') || name.ends_with('_') || name.contains("__");
    match fits && !ends {
        true => Ok(()),
        false => Err("a server name may have at most 20 lower-case letters, digits, `-` and single `_` between them"),
    }
}
