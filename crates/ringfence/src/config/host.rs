//! Host settings derived from the config: reserved paths, directories of agents, settings of jails.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use ringfence_fs::{HostPaths, resolve_mount, workspace_path};
use ringfence_git::{GIT_TOOLSET, GitIdentity};
use ringfence_sandbox::Toolchain;

use crate::config::{AppSettings, Environment, LogTarget, MAX_FILE_BYTES, RunCodeSettings};

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

/// Below the state directory: a journal for each directory that agents could write to. Its name begins with the
/// directory's device and inode, and ends with the time of its creation where the file system tells.
const JOURNALS: &str = "journal";

/// Every directory that agents may write to, or that has untrusted contents: the workspaces and mounts of the config, and
/// those of earlier sessions, which an agent may have written to.
#[derive(Debug)]
pub(crate) struct AgentDirectories {
    /// By their resolved paths. One that is not there yet may be made before a program starts.
    configured: Vec<PathBuf>,
    used: HashSet<UsedDirectory>,
}

/// A directory by device, inode and time of creation in nanoseconds: an inode is given out again.
type UsedDirectory = (u64, u64, Option<u128>);

impl AgentDirectories {
    pub(crate) fn new(settings: &AppSettings, environment: &Environment) -> Self {
        let around = reserved_paths(settings, environment);
        let named = settings.workspaces.values().map(|path| Some(path.as_str())).chain([settings.workspace.as_deref()]);
        let workspaces = named.filter_map(|path| workspace_path(path, &around));
        let mounts = settings.mounts.iter().filter_map(|mount| resolve_mount(&mount.path, &around).ok());
        Self::from_parts(workspaces.chain(mounts).collect(), &settings.state)
    }

    pub(crate) fn from_parts(configured: Vec<PathBuf>, state: &Path) -> Self {
        let journals = std::fs::read_dir(state.join(JOURNALS)).into_iter().flatten().flatten();
        let used = journals.filter_map(|journal| journal_directory(journal.file_name().to_str()?)).collect();
        Self { configured, used }
    }

    /// Whether a resolved path is in one of them.
    pub(crate) fn contain(&self, path: &Path) -> bool {
        let is_used = |directory: &Path| {
            let Ok(found) = std::fs::metadata(directory) else { return false };
            let born = found.created().ok().and_then(|born| born.duration_since(UNIX_EPOCH).ok());
            let is_there = |born| self.used.contains(&(found.dev(), found.ino(), born));
            is_there(None) || is_there(born.map(|born| born.as_nanos()))
        };
        self.configured.iter().any(|directory| path.starts_with(directory)) || path.ancestors().any(is_used)
    }
}

/// The directory in the name of a journal.
fn journal_directory(name: &str) -> Option<UsedDirectory> {
    let (device, rest) = name.split_once('-')?;
    let (inode, born) = rest.split_once('-').map_or((rest, None), |(inode, born)| (inode, Some(born)));
    let hex = |text| u64::from_str_radix(text, 16).ok();
    Some((hex(device)?, hex(inode)?, born.map(str::parse).transpose().ok()?))
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

/// Name and mail address of this user for commits, from the files that git has for them. They are read only for sessions
/// that may commit.
pub(crate) fn git_identity(settings: &AppSettings, environment: &Environment) -> GitIdentity {
    if !settings.tools.toolsets.contains(GIT_TOOLSET) {
        return GitIdentity::default();
    }
    person_git_identity(environment)
}

/// The same for a person, and for a program that a person wraps.
pub(crate) fn person_git_identity(environment: &Environment) -> GitIdentity {
    let own = environment.home.as_ref().map(|home| home.join(".gitconfig"));
    let in_config = environment.config.as_deref().and_then(Path::parent).map(|config| config.join("git/config"));
    let read = |path: PathBuf| {
        let is_small = std::fs::metadata(&path).is_ok_and(|found| found.is_file() && found.len() <= MAX_FILE_BYTES);
        is_small.then(|| std::fs::read_to_string(path).ok()).flatten().unwrap_or_default()
    };
    let identities = [own, in_config].into_iter().flatten().map(|path| GitIdentity::from_config(&read(path)));
    identities.fold(GitIdentity::default(), GitIdentity::or)
}
