//! Isolation mechanisms of the jail, and the status of each.
//!
//! Not here: how the status is found (`isolation.rs`).

use std::fmt;

use serde::{Deserialize, Serialize};

/// An isolation mechanism of the jail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// User namespace: IDs inside have no rights outside.
    UserNamespace,
    /// A view of the files of its own.
    MountNamespace,
    /// Processes of its own, which all end with the first.
    PidNamespace,
    /// Network namespace, with no other process in it.
    NetNamespace,
    /// Shared memory and queues of its own.
    IpcNamespace,
    /// A host name of its own.
    UtsNamespace,
    /// Control groups seen from its own.
    CgroupNamespace,
    /// A `/proc` that shows its own processes only.
    Proc,
    /// Overlay above the workspace that takes the writes.
    Overlay,
    /// Extended attributes of the overlay on a tmpfs.
    TmpfsAttributes,
    /// Files of root's that show up as the user's. Only root needs it.
    IdmappedMounts,
    /// Landlock, the second access control of files.
    Landlock,
    /// Refused system calls.
    Seccomp,
    /// Bounds on memory and processes of the whole run.
    Cgroup,
    /// Ending exactly the process that is meant.
    Pidfd,
    /// The fallback: the isolation of the system's own `bwrap`, where no other program may create namespaces.
    Bwrap,
}

impl Isolation {
    pub const ALL: [Self; 16] = [
        Self::UserNamespace,
        Self::MountNamespace,
        Self::PidNamespace,
        Self::NetNamespace,
        Self::IpcNamespace,
        Self::UtsNamespace,
        Self::CgroupNamespace,
        Self::Proc,
        Self::Overlay,
        Self::TmpfsAttributes,
        Self::IdmappedMounts,
        Self::Landlock,
        Self::Seccomp,
        Self::Cgroup,
        Self::Pidfd,
        Self::Bwrap,
    ];
}

impl fmt::Display for Isolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UserNamespace => "user namespace",
            Self::MountNamespace => "mount namespace",
            Self::PidNamespace => "process namespace",
            Self::NetNamespace => "network namespace",
            Self::IpcNamespace => "IPC namespace",
            Self::UtsNamespace => "host name namespace",
            Self::CgroupNamespace => "cgroup namespace",
            Self::Proc => "own /proc",
            Self::Overlay => "overlay in a user namespace",
            Self::TmpfsAttributes => "user attributes on tmpfs",
            Self::IdmappedMounts => "idmapped mounts",
            Self::Landlock => "Landlock",
            Self::Seccomp => "seccomp filter",
            Self::Cgroup => "cgroup limits",
            Self::Pidfd => "process descriptors",
            Self::Bwrap => "fallback to the system's bwrap, workspace read-only",
        })
    }
}

/// Availability of one mechanism.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IsolationStatus {
    pub mechanism: Isolation,
    pub available: bool,
    /// The finding.
    pub note: String,
    /// Advice, where it is unavailable or could be better.
    pub advice: Option<String>,
}
