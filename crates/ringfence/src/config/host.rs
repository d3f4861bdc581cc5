//! Host settings derived from the config: reserved paths, directories of agents, settings of jails.

use std::path::PathBuf;

use ringfence_fs::{HostPaths, resolve_mount, workspace_path};
use ringfence_sandbox::Toolchain;

use crate::config::{AppSettings, Environment, LogTarget, RunCodeSettings};

pub(crate) fn reserved_paths(settings: &AppSettings, environment: &Environment) -> HostPaths {
    // A policy that an agent could rewrite would not bind it, and neither would such a log be evidence.
    let log = match &settings.log {
        LogTarget::File(path) => Some(environment.current.join(path)),
        LogTarget::Discard | LogTarget::StandardError => None,
    };
    HostPaths {
        home: environment.home.clone(),
        current_dir: environment.current.clone(),
        reserved: [&settings.state, &environment.managed]
            .into_iter()
            .chain(&environment.config)
            .chain(&settings.config_file)
            .chain(&log)
            .chain(&settings.audit_heads)
            .cloned()
            .collect(),
    }
}

/// Every directory that agents may write to, or that has untrusted contents, by its resolved path: workspaces and
/// mounts.
pub(crate) fn agent_directories(settings: &AppSettings, environment: &Environment) -> Vec<PathBuf> {
    let around = reserved_paths(settings, environment);
    let named = settings.workspaces.values().map(|path| Some(path.as_str())).chain([settings.workspace.as_deref()]);
    // One that is not there yet may be made before a program starts.
    let workspaces = named.filter_map(|path| workspace_path(path, &around));
    let mounts = settings.mounts.iter().filter_map(|mount| resolve_mount(&mount.path, &around).ok());
    workspaces.chain(mounts).collect()
}

/// Settings of jails.
pub(crate) fn jail_settings(settings: &AppSettings, environment: &Environment) -> ringfence_sandbox::SandboxSettings {
    let RunCodeSettings { waiting_jails, detect_toolchains, toolchains: declared, fallback } = &settings.run_code;
    let home = environment.home.as_deref().filter(|_| *detect_toolchains);
    let mut toolchains = home.map(ringfence_sandbox::detect).unwrap_or_default();
    toolchains.extend(declared.iter().map(|directory| Toolchain::declared(directory)));
    let (program, pool) = (environment.program.clone(), *waiting_jails);
    ringfence_sandbox::SandboxSettings { program, pool, toolchains, fallback: *fallback }
}
