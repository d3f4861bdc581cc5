//! Bubblewrap fallback: the system's `bwrap`, where only that may create namespaces.
//!
//! It is used only if root installed it in a system directory, gets all of its arguments from here, and mounts the
//! workspace read-only: its overlay would lie on the host's disk, without a size limit.
//!
//! Not here: starting it (`bwrap_launcher.rs`), and what happens inside before the program does (`bwrap_init.rs`).

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::RawFd;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{fs, io};

use rustix::process::geteuid;

use crate::etc;
use crate::isolation_status::{Isolation, IsolationStatus};
use crate::limits::JailLimits;
use crate::mounts::{MASKED_PROC_PATHS, SYSTEM_DIRS, is_plain};
use crate::protocol::RunSpec;
use crate::run_mounts::{SCRIPT_DIR, WORKSPACE, mount_point};

/// Fallback where this machine denies us namespaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JailFallback {
    /// Run nothing.
    None,
    /// Run programs by the system's own `bwrap`, if it may.
    #[default]
    Bwrap,
    /// By that even where nothing is refused. For tests.
    Forced,
}

/// Implementation that builds the jails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JailBackend {
    Native,
    Bwrap,
}

/// Whether the fallback is what helps: namespaces are refused, `bwrap` gets them, and the other mechanisms are available.
pub fn needs_bwrap_fallback(statuses: &[IsolationStatus]) -> bool {
    let available =
        |mechanism: &Isolation| statuses.iter().any(|status| status.mechanism == *mechanism && status.available);
    !BWRAP_ISOLATION.iter().all(available)
        && [Isolation::Bwrap, Isolation::Landlock, Isolation::Seccomp, Isolation::Pidfd].iter().all(available)
}

/// Isolation that `bwrap` provides.
pub(crate) const BWRAP_ISOLATION: [Isolation; 7] = [
    Isolation::UserNamespace,
    Isolation::MountNamespace,
    Isolation::PidNamespace,
    Isolation::NetNamespace,
    Isolation::IpcNamespace,
    Isolation::UtsNamespace,
    Isolation::CgroupNamespace,
];

/// Standard paths of the program. `PATH` is not searched.
const BWRAP_PATHS: [&str; 2] = ["/usr/bin/bwrap", "/bin/bwrap"];

/// Oldest supported version: size limits on tmpfs, no further user namespaces.
const MIN_VERSION: (u32, u32) = (0, 8);

/// A `bwrap` that may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BwrapBinary {
    pub(crate) path: PathBuf,
    pub(crate) version: (u32, u32),
    /// Whether it is root when it starts. Then it cannot keep its inmates from making user namespaces; the filter does.
    setuid: bool,
}

/// Reasons why `bwrap` cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BwrapError {
    #[error("bwrap is not installed")]
    NotFound,
    #[error("bwrap, or a directory above it, is writable by users other than root")]
    NotRootOwned,
    #[error("bwrap is older than 0.8")]
    TooOld,
    #[error("bwrap may not create namespaces either")]
    NamespacesDenied,
}

impl BwrapBinary {
    /// Finds it. Starts it once, to ask for its version: for helper processes only.
    pub(crate) fn find() -> Result<Self, BwrapError> {
        let path = BWRAP_PATHS.iter().map(Path::new).find(|target| target.exists()).ok_or(BwrapError::NotFound)?;
        let path = root_owned_path(path).map_err(|_| BwrapError::NotFound)?.ok_or(BwrapError::NotRootOwned)?;
        let setuid = fs::metadata(&path).map_err(|_| BwrapError::NotFound)?.permissions().mode() & libc::S_ISUID != 0;
        let version_output =
            Command::new(&path).arg("--version").env_clear().stdin(Stdio::null()).stderr(Stdio::null()).output();
        let version = version_output
            .ok()
            .and_then(|version_output| parse_version(&String::from_utf8_lossy(&version_output.stdout)));
        let version = version.filter(|version| *version >= MIN_VERSION).ok_or(BwrapError::TooOld)?;
        Ok(Self { path, version, setuid })
    }

    /// Has it build something small, as a user that is not root.
    pub(crate) fn try_run(&self) -> Result<(), BwrapError> {
        let mut command = Command::new(&self.path);
        command.args(self.namespaces()).args(["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "/bin/true"]);
        command.env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if geteuid().is_root() {
            command.uid(NOBODY_UID).gid(NOBODY_UID);
        }
        let ended = command.status().map_err(|_| BwrapError::NamespacesDenied)?;
        ended.success().then_some(()).ok_or(BwrapError::NamespacesDenied)
    }

    fn namespaces(&self) -> Vec<OsString> {
        let mut args: Vec<OsString> = "--unshare-user --unshare-pid --unshare-net --unshare-ipc --unshare-uts \
                                        --unshare-cgroup --die-with-parent --as-pid-1"
            .split_whitespace()
            .map(Into::into)
            .collect();
        for (arg, value) in [("--uid", etc::UID.to_string()), ("--gid", etc::GID.to_string())] {
            args.extend([arg.into(), value.into()]);
        }
        args.extend(["--hostname".into(), etc::HOSTNAME.into()]);
        args.extend((!self.setuid).then_some("--disable-userns".into()));
        args
    }

    /// Its arguments, and contents that it reads from descriptors.
    pub(crate) fn build_args(&self, bwrap_spec: &BwrapSpec<'_>) -> BwrapArgs {
        let mut list = BwrapArgs { args: self.namespaces(), data: Vec::new(), first_fd: bwrap_spec.first_fd };
        list.system_mounts(bwrap_spec.host, bwrap_spec.toolchains);
        list.private_mounts(&bwrap_spec.spec.limits, bwrap_spec.host);
        for file in &bwrap_spec.spec.files {
            list.arg("--perms").arg("0444").data(&file.contents).arg(Path::new(SCRIPT_DIR).join(&file.name));
        }
        for (index, directory) in bwrap_spec.spec.mounts.iter().enumerate() {
            list.arg("--ro-bind").arg(&directory.path).arg(mount_path(bwrap_spec.spec, index));
        }
        for (target, kind) in bwrap_spec.masks {
            match kind {
                MaskKind::Directory => list.arg("--perms").arg("0755").arg("--tmpfs").arg(target),
                MaskKind::File(contents) => list.arg("--perms").arg("0444").data(contents).arg(target),
            };
        }
        let directories =
            bwrap_spec.masks.iter().filter(|(_, kind)| **kind == MaskKind::Directory).map(|(target, _)| target);
        for target in directories.map(PathBuf::as_path).chain(["/proc", "/dev", "/"].map(Path::new)) {
            list.arg("--remount-ro").arg(target);
        }
        list
    }
}

/// The user of an attempt by root.
const NOBODY_UID: u32 = 65_534;

/// Path in the jail of one of the mounted directories.
pub(crate) fn mount_path(spec: &RunSpec, index: usize) -> PathBuf {
    match spec.mounts.get(index).filter(|_| index > 0) {
        Some(directory) => mount_point(&directory.alias),
        None => WORKSPACE.into(),
    }
}

/// Everything that a list of arguments is made from.
pub(crate) struct BwrapSpec<'a> {
    pub(crate) spec: &'a RunSpec,
    pub(crate) toolchains: &'a [PathBuf],
    /// Paths in the jail that are not what the host has there.
    pub(crate) masks: &'a BTreeMap<PathBuf, MaskKind<'a>>,
    /// The host's root directory.
    pub(crate) host: &'a Path,
    /// The number of the first descriptor with contents.
    pub(crate) first_fd: RawFd,
}

/// The mask over a hidden path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MaskKind<'a> {
    /// A file with these contents.
    File(&'a [u8]),
    /// An empty directory.
    Directory,
}

/// A list of arguments, and the contents of the files among them.
#[derive(Debug)]
pub(crate) struct BwrapArgs {
    args: Vec<OsString>,
    pub(crate) data: Vec<Vec<u8>>,
    first_fd: RawFd,
}

impl BwrapArgs {
    /// As `--args` reads them.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.args.iter().flat_map(|arg| [arg.as_encoded_bytes(), b"\0"].concat()).collect()
    }

    fn arg(&mut self, arg: impl AsRef<OsStr>) -> &mut Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    fn data(&mut self, contents: &[u8]) -> &mut Self {
        let number = self.first_fd.saturating_add(RawFd::try_from(self.data.len()).unwrap_or(RawFd::MAX));
        self.data.push(contents.to_vec());
        self.arg("--ro-bind-data").arg(number.to_string())
    }

    /// Programs of the system, its `/etc` as the jail has it, and toolchains.
    fn system_mounts(&mut self, host: &Path, toolchains: &[PathBuf]) {
        for name in SYSTEM_DIRS {
            self.bind(host, Path::new(name));
        }
        for (name, contents) in etc::files() {
            self.arg("--perms").arg("0444").data(contents.as_bytes()).arg(Path::new("/etc").join(name));
        }
        for name in etc::host_files(&host.join("etc")) {
            self.bind(host, &Path::new("etc").join(name));
        }
        for path in toolchains.iter().filter_map(|path| path.strip_prefix("/").ok()).filter(|path| is_plain(path)) {
            self.bind(host, path);
        }
    }

    /// Mounts a path of the host at the same path, or copies a link. A missing one is skipped.
    fn bind(&mut self, host: &Path, path: &Path) {
        let (source, jail_path) = (host.join(path), Path::new("/").join(path));
        match fs::symlink_metadata(&source) {
            Ok(found) if found.is_symlink() => {
                let Ok(target) = fs::read_link(&source) else { return };
                self.arg("--symlink").arg(target).arg(jail_path);
            }
            Ok(found) if found.is_dir() || found.is_file() => {
                self.arg("--ro-bind-try").arg(source).arg(jail_path);
            }
            _ => {}
        }
    }

    /// Mounts that every jail has of its own.
    fn private_mounts(&mut self, limits: &JailLimits, host: &Path) {
        let size = limits.tmp_bytes.max(1).to_string();
        // With harmless devices and terminals of its own, and nothing else.
        self.arg("--proc").arg("/proc").arg("--dev").arg("/dev");
        for target in ["/tmp", "/dev/shm"] {
            self.arg("--perms").arg("1777").arg("--size").arg(&size).arg("--tmpfs").arg(target);
        }
        for target in ["/tmp/home", "/mnt", "/var"] {
            self.arg("--dir").arg(target);
        }
        self.arg("--symlink").arg("/tmp").arg("/var/tmp");
        for name in MASKED_PROC_PATHS {
            let target = Path::new("/proc").join(name);
            match fs::symlink_metadata(host.join("proc").join(name)) {
                Ok(found) if found.is_dir() => self.arg("--tmpfs").arg(&target).arg("--remount-ro").arg(&target),
                Ok(_) => self.arg("--perms").arg("0444").data(b"").arg(&target),
                Err(_) => continue,
            };
        }
    }
}

/// The resolved path of a program that only root can change or replace.
fn root_owned_path(path: &Path) -> io::Result<Option<PathBuf>> {
    let path = fs::canonicalize(path)?;
    if !fs::metadata(&path)?.is_file() {
        return Ok(None);
    }
    for part in path.ancestors() {
        let found = fs::symlink_metadata(part)?;
        if found.uid() != 0 || found.permissions().mode() & 0o022 != 0 {
            return Ok(None);
        }
    }
    Ok(Some(path))
}

/// From `bubblewrap 0.8.0`.
fn parse_version(version_output: &str) -> Option<(u32, u32)> {
    let mut numbers = version_output.trim().strip_prefix("bubblewrap ")?.split('.').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::path::{Path, PathBuf};

    use super::{BwrapBinary, BwrapSpec, MaskKind, needs_bwrap_fallback, parse_version, root_owned_path};
    use crate::isolation_status::{Isolation, IsolationStatus};
    use crate::limits::JailLimits;
    use crate::protocol::{RunFile, RunMount, RunSpec};

    #[test]
    fn it_is_the_fallback_only_where_it_brings_what_is_missing() {
        let check = |missing: &[Isolation], expected: bool| {
            let status = |mechanism| IsolationStatus {
                mechanism,
                available: !missing.contains(&mechanism),
                note: String::new(),
                advice: None,
            };
            let statuses: Vec<IsolationStatus> = Isolation::ALL.into_iter().map(status).collect();
            assert_eq!(needs_bwrap_fallback(&statuses), expected, "without {missing:?}");
        };
        check(&[], false);
        check(&[Isolation::UserNamespace], true);
        check(
            &[
                Isolation::MountNamespace,
                Isolation::Overlay,
                Isolation::TmpfsAttributes,
                Isolation::Proc,
                Isolation::Cgroup,
            ],
            true,
        );
        check(&[Isolation::UserNamespace, Isolation::Bwrap], false);
        // Required isolation, whatever builds the jail.
        check(&[Isolation::UserNamespace, Isolation::Landlock], false);
        check(&[Isolation::UserNamespace, Isolation::Seccomp], false);
        // It brings none of these.
        check(&[Isolation::Overlay], false);
        check(&[Isolation::Landlock], false);
        assert!(!needs_bwrap_fallback(&[]));
    }

    #[test]
    fn versions_are_read() {
        assert_eq!(parse_version("bubblewrap 0.8.0\n"), Some((0, 8)));
        assert_eq!(parse_version("bubblewrap 0.11.2"), Some((0, 11)));
        for other in ["", "bubblewrap", "bubblewrap x.y", "bwrap 1.2", "bubblewrap 1"] {
            assert_eq!(parse_version(other), None, "{other}");
        }
    }

    #[test]
    fn only_a_program_of_the_systems_own_is_taken() {
        assert_eq!(root_owned_path(Path::new("/usr/bin")).unwrap(), None, "a directory is not a program");
        assert!(root_owned_path(Path::new("/nonexistent")).is_err());
        // Wherever others may write, or own something, it could be another one the next time.
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("bwrap");
        fs::write(&program, "#!/bin/sh\n").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(root_owned_path(&program).unwrap(), None);
        let link = directory.path().join("link");
        symlink("/bin/sh", &link).unwrap();
        let real = root_owned_path(&link).unwrap();
        assert_eq!(real, root_owned_path(Path::new("/bin/sh")).unwrap(), "what counts is where a link leads");
    }

    fn bwrap_spec(setuid: bool) -> (Vec<String>, usize) {
        let host = tempfile::tempdir().unwrap();
        let make = |path: &str| fs::create_dir_all(host.path().join(path)).unwrap();
        ["usr/bin", "etc", "proc/acpi", "home/u/.cargo"].into_iter().for_each(make);
        symlink("usr/bin", host.path().join("bin")).unwrap();
        for file in ["etc/shadow", "etc/ld.so.cache", "proc/keys"] {
            fs::write(host.path().join(file), "x").unwrap();
        }
        let shown =
            |alias: &str, path: &str| RunMount { alias: alias.into(), path: path.into(), ..RunMount::default() };
        let spec = RunSpec {
            files: vec![RunFile { name: "code.sh".into(), ..RunFile::default() }],
            limits: JailLimits { tmp_bytes: 4096, ..JailLimits::default() },
            mounts: vec![shown("w", "/home/u/project"), shown("docs", "/srv/docs")],
            ..RunSpec::default()
        };
        let covers: BTreeMap<PathBuf, MaskKind<'_>> =
            [("/workspace/.env".into(), MaskKind::File(b"")), ("/workspace/keys".into(), MaskKind::Directory)].into();
        let toolchains: Vec<PathBuf> = vec!["/home/u/.cargo".into(), "/tmp/evil".into(), "/home/u/absent".into()];
        let bwrap_spec =
            BwrapSpec { spec: &spec, toolchains: &toolchains, masks: &covers, host: host.path(), first_fd: 20 };
        let list = BwrapBinary { path: "/usr/bin/bwrap".into(), version: (0, 8), setuid }.build_args(&bwrap_spec);
        let root = host.path().display().to_string();
        let text = String::from_utf8(list.bytes()).unwrap();
        (text.split_terminator('\0').map(|arg| arg.replace(&root, "HOST")).collect(), list.data.len())
    }

    #[test]
    fn it_is_told_what_a_jail_has_and_nothing_else() {
        let (args, data) = bwrap_spec(false);
        let text = args.join(" ");
        for part in [
            "--unshare-user --unshare-pid --unshare-net --unshare-ipc --unshare-uts --unshare-cgroup",
            "--die-with-parent --as-pid-1 --uid 1000 --gid 1000 --hostname jail --disable-userns",
            "--ro-bind-try HOST/usr /usr --symlink usr/bin /bin",
            "--ro-bind-try HOST/etc/ld.so.cache /etc/ld.so.cache",
            "--ro-bind-try HOST/home/u/.cargo /home/u/.cargo",
            "--proc /proc --dev /dev --perms 1777",
            "--size 4096 --tmpfs /tmp",
            "--tmpfs /proc/acpi --remount-ro /proc/acpi",
            "--ro-bind /home/u/project /workspace --ro-bind /srv/docs /mnt/docs",
            "/workspace/.env --perms 0755 --tmpfs /workspace/keys --remount-ro /workspace/keys",
        ] {
            assert!(text.contains(part), "`{part}` is not in: {text}");
        }
        assert!(text.ends_with("--remount-ro /proc --remount-ro /dev --remount-ro /"), "{text}");
        for part in ["shadow", "/tmp/evil", "absent", "--bind", "--share-net", "--cap-add", "--dev-bind"] {
            assert!(!args.iter().any(|arg| arg.contains(part) && !arg.starts_with("--ro-")), "{part}: {text}");
        }
        // Each of these is read from a descriptor of its own.
        let numbers = args.windows(2).filter(|pair| pair[0] == "--ro-bind-data").map(|pair| pair[1].parse().unwrap());
        assert_eq!(numbers.collect::<Vec<usize>>(), (20..20 + data).collect::<Vec<_>>());
    }

    #[test]
    fn one_that_is_root_is_not_asked_for_what_it_refuses() {
        assert!(!bwrap_spec(true).0.contains(&"--disable-userns".to_owned()));
    }
}
