//! The system's own `bwrap`: the one fallback, where the machine lets that make namespaces and nobody else.
//!
//! It is taken only if root put it into a directory of the system, is told everything by a list that is made here, and shows
//! the workspace read-only: a layer of its own would lie on the host's disk, where nothing bounds it.
//!
//! Not here: starting it (`launcher.rs`), and what happens inside before the program does (`inmate.rs`).

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::RawFd;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{fs, io};

use rustix::process::geteuid;

use crate::claim::{SCRIPTS, WORKSPACE, beside};
use crate::etc;
use crate::jail::COVERED_IN_PROC;
use crate::limits::JailLimits;
use crate::message::Order;
use crate::mounts::{SYSTEM, is_plain};
use crate::walls::{Standing, Wall};

/// What to do where this machine refuses us namespaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fallback {
    /// Run nothing.
    None,
    /// Run programs by the system's own `bwrap`, if it may.
    #[default]
    Bwrap,
    /// By that even where nothing is refused. For tests.
    Forced,
}

/// Who builds the jails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    Native,
    Bwrap,
}

/// Whether the fallback is what helps: namespaces are refused, `bwrap` gets them, and whatever it does not bring stands.
pub fn falls_back(walls: &[Standing]) -> bool {
    let stands = |wall: &Wall| walls.iter().any(|standing| standing.wall == *wall && standing.stands);
    !BROUGHT.iter().all(stands) && [Wall::Bwrap, Wall::Landlock, Wall::Seccomp, Wall::Pidfd].iter().all(stands)
}

/// Walls that `bwrap` builds.
pub(crate) const BROUGHT: [Wall; 7] = [
    Wall::UserNamespace,
    Wall::MountNamespace,
    Wall::PidNamespace,
    Wall::NetNamespace,
    Wall::IpcNamespace,
    Wall::UtsNamespace,
    Wall::CgroupNamespace,
];

/// Where a system keeps it. No `PATH` is asked.
const PLACES: [&str; 2] = ["/usr/bin/bwrap", "/bin/bwrap"];

/// Older ones cannot do all that they are told: bounds on file systems in memory, no further user namespaces.
const OLDEST: (u32, u32) = (0, 8);

/// A `bwrap` that may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bwrap {
    pub(crate) path: PathBuf,
    pub(crate) version: (u32, u32),
    /// Whether it is root when it starts. Then it cannot keep its inmates from making user namespaces; the filter does.
    setuid: bool,
}

/// Why there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoBwrap {
    #[error("there is no bwrap")]
    Absent,
    #[error("bwrap, or a directory above it, can be changed by others than root")]
    NotTheSystems,
    #[error("bwrap is older than 0.8")]
    Old,
    #[error("bwrap is refused namespaces too")]
    Refused,
}

impl Bwrap {
    /// Finds it. Starts it once, to ask for its version: for helper processes only.
    pub(crate) fn find() -> Result<Self, NoBwrap> {
        let path = PLACES.iter().map(Path::new).find(|place| place.exists()).ok_or(NoBwrap::Absent)?;
        let path = systems_own(path).map_err(|_| NoBwrap::Absent)?.ok_or(NoBwrap::NotTheSystems)?;
        let setuid = fs::metadata(&path).map_err(|_| NoBwrap::Absent)?.permissions().mode() & libc::S_ISUID != 0;
        let said = Command::new(&path).arg("--version").env_clear().stdin(Stdio::null()).stderr(Stdio::null()).output();
        let version = said.ok().and_then(|said| version(&String::from_utf8_lossy(&said.stdout)));
        let version = version.filter(|version| *version >= OLDEST).ok_or(NoBwrap::Old)?;
        Ok(Self { path, version, setuid })
    }

    /// Has it build something small, as a user that is not root.
    pub(crate) fn attempt(&self) -> Result<(), NoBwrap> {
        let mut command = Command::new(&self.path);
        command.args(self.namespaces()).args(["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "/bin/true"]);
        command.env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        let ended = command.status().map_err(|_| NoBwrap::Refused)?;
        ended.success().then_some(()).ok_or(NoBwrap::Refused)
    }

    fn namespaces(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = "--unshare-user --unshare-pid --unshare-net --unshare-ipc --unshare-uts \
                                        --unshare-cgroup --die-with-parent --as-pid-1"
            .split_whitespace()
            .map(Into::into)
            .collect();
        for (word, value) in [("--uid", etc::UID.to_string()), ("--gid", etc::GID.to_string())] {
            words.extend([word.into(), value.into()]);
        }
        words.extend(["--hostname".into(), etc::HOSTNAME.into()]);
        words.extend((!self.setuid).then_some("--disable-userns".into()));
        words
    }

    /// What it is told: words, and contents that it reads from descriptors.
    pub(crate) fn told(&self, told: &Told<'_>) -> Arguments {
        let mut list = Arguments { words: self.namespaces(), data: Vec::new(), first: told.first };
        list.system(told.host, told.toolchains);
        list.own(&told.order.limits, told.host);
        list.word("--perms")
            .word("0444")
            .data(&told.order.script)
            .word(Path::new(SCRIPTS).join(&told.order.script_name));
        for (index, directory) in told.order.shown.iter().enumerate() {
            list.word("--ro-bind").word(&directory.path).word(shown_at(told.order, index));
        }
        for (place, kind) in told.covers {
            match kind {
                Cover::Directory => list.word("--perms").word("0755").word("--tmpfs").word(place),
                Cover::File => list.word("--perms").word("0444").data(b"").word(place),
            };
        }
        let directories = told.covers.iter().filter(|(_, kind)| **kind == Cover::Directory).map(|(place, _)| place);
        for place in directories.map(PathBuf::as_path).chain(["/proc", "/dev", "/"].map(Path::new)) {
            list.word("--remount-ro").word(place);
        }
        list
    }
}

/// The user of an attempt by root.
const NOBODY: u32 = 65_534;

/// Where a program finds one of the directories that it is shown.
pub(crate) fn shown_at(order: &Order, index: usize) -> PathBuf {
    match order.shown.get(index).filter(|_| index > 0) {
        Some(directory) => beside(&directory.alias),
        None => WORKSPACE.into(),
    }
}

/// Everything that a list of arguments is made from.
pub(crate) struct Told<'a> {
    pub(crate) order: &'a Order,
    pub(crate) toolchains: &'a [PathBuf],
    /// Places in the jail that must be empty.
    pub(crate) covers: &'a BTreeMap<PathBuf, Cover>,
    /// The host's root directory.
    pub(crate) host: &'a Path,
    /// The number of the first descriptor with contents.
    pub(crate) first: RawFd,
}

/// What is put over what must not be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cover {
    File,
    Directory,
}

/// A list of arguments, and the contents of the files among them.
#[derive(Debug)]
pub(crate) struct Arguments {
    words: Vec<OsString>,
    pub(crate) data: Vec<Vec<u8>>,
    first: RawFd,
}

impl Arguments {
    /// As `--args` reads them.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.words.iter().flat_map(|word| [word.as_encoded_bytes(), b"\0"].concat()).collect()
    }

    fn word(&mut self, word: impl AsRef<OsStr>) -> &mut Self {
        self.words.push(word.as_ref().to_owned());
        self
    }

    fn data(&mut self, contents: &[u8]) -> &mut Self {
        let number = self.first.saturating_add(RawFd::try_from(self.data.len()).unwrap_or(RawFd::MAX));
        self.data.push(contents.to_vec());
        self.word("--ro-bind-data").word(number.to_string())
    }

    /// Programs of the system, its `/etc` as the jail has it, and toolchains.
    fn system(&mut self, host: &Path, toolchains: &[PathBuf]) {
        for name in SYSTEM {
            self.show(host, Path::new(name));
        }
        for (name, contents) in etc::files() {
            self.word("--perms").word("0444").data(contents.as_bytes()).word(Path::new("/etc").join(name));
        }
        for name in etc::from_host(&host.join("etc")) {
            self.show(host, &Path::new("etc").join(name));
        }
        for path in toolchains.iter().filter_map(|path| path.strip_prefix("/").ok()).filter(|path| is_plain(path)) {
            self.show(host, path);
        }
    }

    /// Shows something of the host where it is, or a link as the link that it is. What is not there is not shown.
    fn show(&mut self, host: &Path, path: &Path) {
        let (source, place) = (host.join(path), Path::new("/").join(path));
        match fs::symlink_metadata(&source) {
            Ok(found) if found.is_symlink() => {
                let Ok(target) = fs::read_link(&source) else { return };
                self.word("--symlink").word(target).word(place);
            }
            Ok(found) if found.is_dir() || found.is_file() => {
                self.word("--ro-bind-try").word(source).word(place);
            }
            _ => {}
        }
    }

    /// What every jail has of its own.
    fn own(&mut self, limits: &JailLimits, host: &Path) {
        let size = limits.tmp_bytes.max(1).to_string();
        // With harmless devices and terminals of its own, and nothing else.
        self.word("--proc").word("/proc").word("--dev").word("/dev");
        for place in ["/tmp", "/dev/shm"] {
            self.word("--perms").word("1777").word("--size").word(&size).word("--tmpfs").word(place);
        }
        for place in ["/tmp/home", "/mnt", "/var"] {
            self.word("--dir").word(place);
        }
        self.word("--symlink").word("/tmp").word("/var/tmp");
        for name in COVERED_IN_PROC {
            let place = Path::new("/proc").join(name);
            match fs::symlink_metadata(host.join("proc").join(name)) {
                Ok(found) if found.is_dir() => self.word("--tmpfs").word(&place).word("--remount-ro").word(&place),
                Ok(_) => self.word("--perms").word("0444").data(b"").word(&place),
                Err(_) => continue,
            };
        }
    }
}

/// The real path of a program that nobody but root can change or put another in the place of.
fn systems_own(path: &Path) -> io::Result<Option<PathBuf>> {
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
fn version(said: &str) -> Option<(u32, u32)> {
    let mut numbers = said.trim().strip_prefix("bubblewrap ")?.split('.').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::path::{Path, PathBuf};

    use super::{Bwrap, Cover, Told, falls_back, systems_own, version};
    use crate::limits::JailLimits;
    use crate::message::{Order, ShownDirectory};
    use crate::walls::{Standing, Wall};

    #[test]
    fn it_is_the_fallback_only_where_it_brings_what_is_missing() {
        let check = |missing: &[Wall], expected: bool| {
            let standing =
                |wall| Standing { wall, stands: !missing.contains(&wall), note: String::new(), advice: None };
            let walls: Vec<Standing> = Wall::ALL.into_iter().map(standing).collect();
            assert_eq!(falls_back(&walls), expected, "without {missing:?}");
        };
        check(&[], false);
        check(&[Wall::UserNamespace], true);
        check(&[Wall::MountNamespace, Wall::Overlay, Wall::TmpfsAttributes, Wall::Proc, Wall::Cgroup], true);
        check(&[Wall::UserNamespace, Wall::Bwrap], false);
        // Nothing is run without these, whoever builds the jail.
        check(&[Wall::UserNamespace, Wall::Landlock], false);
        check(&[Wall::UserNamespace, Wall::Seccomp], false);
        // It brings none of these.
        check(&[Wall::Overlay], false);
        check(&[Wall::Landlock], false);
        assert!(!falls_back(&[]));
    }

    #[test]
    fn versions_are_read() {
        assert_eq!(version("bubblewrap 0.8.0\n"), Some((0, 8)));
        assert_eq!(version("bubblewrap 0.11.2"), Some((0, 11)));
        for other in ["", "bubblewrap", "bubblewrap x.y", "bwrap 1.2", "bubblewrap 1"] {
            assert_eq!(version(other), None, "{other}");
        }
    }

    #[test]
    fn only_a_program_of_the_systems_own_is_taken() {
        assert_eq!(systems_own(Path::new("/usr/bin")).unwrap(), None, "a directory is no program");
        assert!(systems_own(Path::new("/nonexistent")).is_err());
        // Wherever others may write, or own something, it could be another one the next time.
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("bwrap");
        fs::write(&program, "#!/bin/sh\n").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(systems_own(&program).unwrap(), None);
        let link = directory.path().join("link");
        symlink("/bin/sh", &link).unwrap();
        let real = systems_own(&link).unwrap();
        assert_eq!(real, systems_own(Path::new("/bin/sh")).unwrap(), "what counts is where a link leads");
    }

    fn told(setuid: bool) -> (Vec<String>, usize) {
        let host = tempfile::tempdir().unwrap();
        let make = |path: &str| fs::create_dir_all(host.path().join(path)).unwrap();
        ["usr/bin", "etc", "proc/acpi", "home/u/.cargo"].into_iter().for_each(make);
        symlink("usr/bin", host.path().join("bin")).unwrap();
        for file in ["etc/shadow", "etc/ld.so.cache", "proc/keys"] {
            fs::write(host.path().join(file), "x").unwrap();
        }
        let shown = |alias: &str, path: &str| ShownDirectory {
            alias: alias.into(),
            path: path.into(),
            ..ShownDirectory::default()
        };
        let order = Order {
            script_name: "code.sh".into(),
            limits: JailLimits { tmp_bytes: 4096, ..JailLimits::default() },
            shown: vec![shown("w", "/home/u/project"), shown("docs", "/srv/docs")],
            ..Order::default()
        };
        let covers: BTreeMap<PathBuf, Cover> =
            [("/workspace/.env".into(), Cover::File), ("/workspace/keys".into(), Cover::Directory)].into();
        let toolchains: Vec<PathBuf> = vec!["/home/u/.cargo".into(), "/tmp/evil".into(), "/home/u/absent".into()];
        let told = Told { order: &order, toolchains: &toolchains, covers: &covers, host: host.path(), first: 20 };
        let list = Bwrap { path: "/usr/bin/bwrap".into(), version: (0, 8), setuid }.told(&told);
        let root = host.path().display().to_string();
        let text = String::from_utf8(list.bytes()).unwrap();
        (text.split_terminator('\0').map(|word| word.replace(&root, "HOST")).collect(), list.data.len())
    }

    #[test]
    fn it_is_told_what_a_jail_has_and_nothing_else() {
        let (words, data) = told(false);
        let text = words.join(" ");
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
            assert!(!words.iter().any(|word| word.contains(part) && !word.starts_with("--ro-")), "{part}: {text}");
        }
        // Each of these is read from a descriptor of its own.
        let numbers = words.windows(2).filter(|pair| pair[0] == "--ro-bind-data").map(|pair| pair[1].parse().unwrap());
        assert_eq!(numbers.collect::<Vec<usize>>(), (20..20 + data).collect::<Vec<_>>());
    }

    #[test]
    fn one_that_is_root_is_not_asked_for_what_it_refuses() {
        assert!(!told(true).0.contains(&"--disable-userns".to_owned()));
    }
}
