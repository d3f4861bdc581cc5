//! IPC protocol between the host, the spawner and a jail's init process.
//!
//! Messages are serde types in the `postcard` format, which writes bytes as bytes: paths need not be UTF-8. Both ends are
//! the same binary, so the format needs no version. Messages are checked all the same: an invalid one is an error, never a
//! panic. The run spec lies in a memory file, because a script may be larger than a socket takes.
//!
//! Not here: receiving. Descriptors travel beside these bytes, in the order that `SpawnerRequest` and `SpawnerReply` say.

use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::job::JailError;
use crate::limits::JailLimits;
use crate::program_network::NetworkHandle;
use crate::sys;
use crate::terminal::TerminalSize;
use crate::wrapped_environment::RecordedCalls;

/// Larger orders are refused by who gives them.
pub(crate) const MAX_RUN_SPEC_BYTES: usize = 64 << 20;

/// A message other than an order is shorter than this.
pub(crate) const MAX_MESSAGE_BYTES: usize = 64;

/// A message that does not read.
#[derive(Debug)]
pub(crate) struct MalformedMessage;

impl From<MalformedMessage> for Errno {
    fn from(_: MalformedMessage) -> Self {
        Self::BADMSG
    }
}

impl From<MalformedMessage> for std::io::Error {
    fn from(malformed: MalformedMessage) -> Self {
        Errno::from(malformed).into()
    }
}

/// User and group of a jail's program, as the host counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct JailUser {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// One user and one group that a user namespace has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct IdMapping {
    pub(crate) inside: JailUser,
    pub(crate) outside: JailUser,
}

/// The kind of program that a jail is built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum JailKind {
    /// A program of a tool, in the image that all of them share.
    Tool,
    /// A wrapped program, in an image of its own.
    Wrapped,
    /// The same, with a terminal as its standard streams.
    WrappedOnTerminal,
}

/// From the host to the spawner.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum SpawnerRequest {
    /// Sets the toolchains of the jails that are made from now on. With: the reply socket, and the paths as a memory
    /// file. The first request is one.
    SetImage,
    /// A jail to be made, under a name for `Run`. With: where it and we reply, the plan of its image as a memory file unless
    /// the kind is `Tool`, and files to enter cgroups by. In a shared network, where it names one; else its network is its own.
    Create { name: u64, identity: IdMapping, network: Option<u64>, kind: JailKind },
    /// With: the order, and the order's own descriptors.
    Run { name: u64 },
    /// Discards a jail that will not be used.
    Discard { name: u64 },
    /// Forgets a shared network. It lasts as long as a jail is in it.
    CloseNetwork { network: u64 },
    /// Checks that the spawner is alive. With: the reply socket.
    Ping,
    /// A user namespace that maps these to the jail's. With: where to reply.
    MapUser { from: JailUser, to: JailUser },
    /// Opens something in the network of a running program. With: the reply socket, and the network.
    OpenInNetwork { handle: NetworkHandle },
}

/// To the host, from the spawner or from a jail.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum SpawnerReply {
    Ready,
    /// With a handle on the first process of the jail.
    Created,
    /// With the user namespace.
    Mapped,
    /// The program runs, with this isolation. With the upper directory if that is in memory; for a wrapped program, with
    /// the root of the workspace's overlay, the configuration of that mount, the program's network, the file of its refusals,
    /// the socket of records if there are any, and the master of its terminal if it has one.
    Started {
        proc: bool,
    },
    /// The process group of a program with a terminal was stopped. It continues on `HostCommand::Continue`.
    Stopped,
    /// Everything is dead.
    Exited {
        status: ProgramStatus,
        beyond: Option<LimitExceeded>,
    },
    ProgramNotFound,
    Failed(SetupError),
    /// With what was opened.
    Opened,
}

/// From the host to the init process of a wrapped program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum HostCommand {
    /// Continues the program after `Stopped`.
    Continue,
    /// Sends this signal to the foreground of the program.
    Signal(i32),
}

/// Exit status of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ProgramStatus {
    Exited(i32),
    Killed(i32),
}

/// A limit that a run went beyond, as the jail's first process knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum LimitExceeded {
    Memory,
    Cpu,
}

/// A failed setup step, with the kernel's error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SetupError {
    pub(crate) step: SetupStep,
    pub(crate) errno: i32,
}

macro_rules! steps {
    ($($name:ident = $words:literal,)*) => {
        /// The steps that can fail.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub(crate) enum SetupStep { $($name,)* }

        impl SetupStep {
            #[cfg(test)]
            const ALL: &[Self] = &[$(Self::$name,)*];

            /// After "could not".
            fn words(self) -> &'static str {
                match self { $(Self::$name => $words,)* }
            }
        }
    };
}

steps! {
    Namespaces = "create its namespaces",
    Users = "map its user",
    Root = "build its root",
    Loopback = "bring its loopback up",
    Network = "enter the network of the session",
    ProgramNetwork = "reach the network of its program",
    Hold = "drop its privileges",
    Order = "read its run spec",
    Find = "find a directory of the workspace view",
    Show = "mount a directory of the workspace view",
    Layer = "mount an overlay on the workspace",
    Cover = "mask hidden files",
    Script = "write its files",
    Cgroup = "enter its cgroup",
    Start = "start a process",
    Limits = "set its limits",
    Landlock = "set its Landlock rules",
    Capabilities = "drop its capabilities",
    Seccomp = "set its seccomp filter",
    Bwrap = "build the sandbox with bwrap",
    Egress = "open its egress channel",
    Terminal = "open its terminal",
    DiskLayer = "mount a layer on disk",
    Home = "mount its home directory",
    Place = "place its files and directories",
}

impl SetupStep {
    /// For `map_err`.
    pub(crate) fn failed<E: Into<Errno>>(self) -> impl FnOnce(E) -> SetupError {
        move |errno| SetupError { step: self, errno: errno.into().raw_os_error() }
    }

    /// For errors that are not an `Errno`.
    pub(crate) fn failed_with(self, cause: &std::io::Error) -> SetupError {
        SetupError { step: self, errno: cause.raw_os_error().unwrap_or(libc::EIO) }
    }
}

impl From<SetupError> for JailError {
    fn from(setup_error: SetupError) -> Self {
        let cause = std::io::Error::from_raw_os_error(setup_error.errno);
        let message = || format!("could not {} ({cause})", setup_error.step.words());
        match setup_error.step {
            SetupStep::Namespaces
            | SetupStep::Users
            | SetupStep::Root
            | SetupStep::Hold
            | SetupStep::Landlock
            | SetupStep::Seccomp => Self::unavailable(message(), "run `ringfence doctor` for details and advice"),
            SetupStep::Bwrap => Self::unavailable(
                "namespaces are not permitted, and the system's bwrap failed too",
                "run `ringfence doctor` for details and advice",
            ),
            SetupStep::Cover if setup_error.errno == libc::E2BIG => Self::unavailable(
                "there are more secret files than the system's bwrap can mask",
                "remove some, or keep them outside the workspace",
            ),
            SetupStep::Find => Self::unavailable(
                "a directory of the workspace was moved or replaced",
                "reopen the workspace at its current path",
            ),
            SetupStep::Terminal => Self::unavailable(
                message(),
                "run the program without a terminal, for example with its output in a pipe",
            ),
            SetupStep::DiskLayer => Self::unavailable(
                message(),
                "move the state directory to a local file system such as ext4, XFS or Btrfs, outside the workspace",
            ),
            SetupStep::Home => Self::unavailable(message(), "drop the layers of the program, and start it again"),
            SetupStep::Place => Self::unavailable(
                message(),
                "place files only where the sandbox has a directory of its own or a file already",
            ),
            SetupStep::Layer if setup_error.errno == libc::EINVAL => Self::unavailable(
                "an overlay cannot be mounted on the workspace",
                "unmount file systems inside it, or move it to a local file system",
            ),
            step => Self::Io(step.words(), cause),
        }
    }
}

/// A run, as the spawner and the jail need it. Its descriptors, in this order: standard output, standard error, one for
/// each of `mounts`, those of `wrapped`, standard input if it has one, that for the final directory if it reports one, and that of the way out
/// if there is one.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RunSpec {
    pub(crate) argv: Vec<OsString>,
    pub(crate) env: Vec<OsString>,
    pub(crate) files: Vec<RunFile>,
    pub(crate) limits: JailLimits,
    /// The workspace first.
    pub(crate) mounts: Vec<RunMount>,
    /// Whether a cgroup keeps the memory.
    pub(crate) memory_by_cgroup: bool,
    pub(crate) has_stdin: bool,
    /// Whether the program has a descriptor to report its final directory on.
    pub(crate) reports_directory: bool,
    /// Whether there is a way out; its socket is the last descriptor.
    pub(crate) egress: bool,
    /// Cargo's home on the host, of which the run gets one to write to. Empty, if it does not.
    #[serde(with = "path_bytes")]
    pub(crate) cargo_home: PathBuf,
    /// The place of a wrapped program.
    pub(crate) wrapped: Option<WrappedSpec>,
}

/// The place of a wrapped program: real paths, a home directory, layers on disk. Its descriptors, in this order: the
/// directory that the home starts with, for each layer the directory of its parts, its upper directory and its work
/// directory, and the lower directory of each cache that has one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WrappedSpec {
    #[serde(with = "path_bytes")]
    pub(crate) workspace_path: PathBuf,
    #[serde(with = "path_bytes")]
    pub(crate) home: PathBuf,
    /// Toolchains below the home, which stay visible in it.
    #[serde(with = "path_list")]
    pub(crate) home_toolchains: Vec<PathBuf>,
    pub(crate) files: Vec<PlacedRunFile>,
    /// Whether the descriptors are mounts; else they are held directories, to be found again.
    pub(crate) is_mounted: bool,
    #[serde(with = "path_bytes")]
    pub(crate) home_start: PathBuf,
    pub(crate) workspace_layer: LayerPath,
    pub(crate) home_layer: LayerPath,
    pub(crate) caches: Vec<CacheSpec>,
    pub(crate) terminal: Option<TerminalSize>,
    pub(crate) recorded: RecordedCalls,
}

/// A cache under a layer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CacheSpec {
    /// Relative to the home.
    #[serde(with = "path_bytes")]
    pub(crate) path: PathBuf,
    /// On the host. Empty, if it has no lower directory.
    #[serde(with = "path_bytes")]
    pub(crate) lower: PathBuf,
    pub(crate) layer: LayerPath,
    /// Files and directories in it that are empty inside.
    #[serde(with = "path_list")]
    pub(crate) masked_files: Vec<PathBuf>,
    #[serde(with = "path_list")]
    pub(crate) masked_directories: Vec<PathBuf>,
}

impl CacheSpec {
    pub(crate) fn has_lower(&self) -> bool {
        !self.lower.as_os_str().is_empty()
    }
}

/// The parts of a layer on disk: both are entries of one directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LayerPath {
    #[serde(with = "path_bytes")]
    pub(crate) directory: PathBuf,
    pub(crate) upper: OsString,
    pub(crate) work: OsString,
}

/// A read-only file at an absolute path inside.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PlacedRunFile {
    #[serde(with = "path_bytes")]
    pub(crate) path: PathBuf,
    pub(crate) contents: Vec<u8>,
}

impl WrappedSpec {
    /// Number of descriptors of one layer.
    pub(crate) const LAYER_DESCRIPTORS: usize = 3;

    /// Number of descriptors of all layers.
    pub(crate) fn layer_descriptors(&self) -> usize {
        (2 + self.caches.len()) * Self::LAYER_DESCRIPTORS
    }

    /// Number of its descriptors.
    pub(crate) fn descriptor_count(&self) -> usize {
        1 + self.layer_descriptors() + self.caches.iter().filter(|cache| cache.has_lower()).count()
    }
}

/// What the image of a jail has besides the system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ImagePlan {
    #[serde(with = "path_list")]
    pub(crate) toolchains: Vec<PathBuf>,
    /// Mount points of directories and of files, which are made where they are missing.
    #[serde(with = "path_list")]
    pub(crate) directories: Vec<PathBuf>,
    #[serde(with = "path_list")]
    pub(crate) files: Vec<PathBuf>,
}

impl ImagePlan {
    /// As a memory file.
    pub(crate) fn write(&self) -> std::io::Result<OwnedFd> {
        memory_file(&encode(self)?)
    }

    pub(crate) fn read(file: &OwnedFd) -> Result<Self, Errno> {
        Ok(decode(&read_memory_file(file)?)?)
    }
}

/// A file of the run itself.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RunFile {
    pub(crate) name: OsString,
    pub(crate) contents: Vec<u8>,
    /// The file below the workspace that it is mounted over. Empty, if none is.
    #[serde(with = "path_bytes")]
    pub(crate) over: PathBuf,
}

/// One directory of the view.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RunMount {
    pub(crate) alias: OsString,
    #[serde(with = "path_bytes")]
    pub(crate) path: PathBuf,
    /// Whether its descriptor is a mount to be attached; else it is the held directory, to be found again.
    pub(crate) is_mount: bool,
    #[serde(with = "path_list")]
    pub(crate) masked: Vec<PathBuf>,
}

impl RunSpec {
    /// As a memory file.
    pub(crate) fn write(&self) -> std::io::Result<OwnedFd> {
        memory_file(&encode(self)?)
    }

    pub(crate) fn read(file: &OwnedFd) -> Result<Self, Errno> {
        Ok(decode(&read_memory_file(file)?)?)
    }

    /// Whether the standard streams are a terminal.
    pub(crate) fn has_terminal(&self) -> bool {
        self.wrapped.as_ref().is_some_and(|wrapped| wrapped.terminal.is_some())
    }

    /// Number of descriptors of its directories.
    pub(crate) fn directory_count(&self) -> usize {
        self.mounts.len() + self.wrapped.as_ref().map_or(0, WrappedSpec::descriptor_count)
    }
}

/// Paths, as a memory file.
pub(crate) fn write_paths(paths: &[PathBuf]) -> std::io::Result<OwnedFd> {
    memory_file(&encode(&paths.iter().map(|path| path.as_os_str()).collect::<Vec<_>>())?)
}

pub(crate) fn read_paths(file: &OwnedFd) -> Result<Vec<PathBuf>, Errno> {
    let paths: Vec<OsString> = decode(&read_memory_file(file)?)?;
    Ok(paths.into_iter().map(PathBuf::from).collect())
}

impl SpawnerRequest {
    pub(crate) fn send(&self, socket: BorrowedFd<'_>, descriptors: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        sys::send(socket, &encode(self)?, descriptors)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, MalformedMessage> {
        decode(bytes)
    }
}

impl HostCommand {
    pub(crate) fn send(&self, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        sys::send(socket, &encode(self)?, &[])
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, MalformedMessage> {
        decode(bytes)
    }
}

impl SpawnerReply {
    pub(crate) fn send(&self, socket: BorrowedFd<'_>, descriptors: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        sys::send(socket, &encode(self)?, descriptors)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, MalformedMessage> {
        decode(bytes)
    }
}

fn encode(message: &impl Serialize) -> Result<Vec<u8>, MalformedMessage> {
    postcard::to_stdvec(message).map_err(|_| MalformedMessage)
}

/// The whole of a message: bytes behind it are an error too.
fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, MalformedMessage> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        _ => Err(MalformedMessage),
    }
}

/// A path by its bytes; serde's own format of it is text.
pub(crate) mod path_bytes {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
        OsStr::serialize(path.as_os_str(), serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
        OsString::deserialize(deserializer).map(PathBuf::from)
    }
}

/// Paths by their bytes.
mod path_list {
    use super::*;

    pub(super) fn serialize<S: Serializer>(paths: &[PathBuf], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(paths.iter().map(|path| path.as_os_str()))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PathBuf>, D::Error> {
        let paths = Vec::<OsString>::deserialize(deserializer)?;
        Ok(paths.into_iter().map(PathBuf::from).collect())
    }
}

fn memory_file(bytes: &[u8]) -> std::io::Result<OwnedFd> {
    let file = memfd_create("order", MemfdFlags::CLOEXEC)?;
    let mut file = std::fs::File::from(file);
    file.write_all(bytes)?;
    Ok(file.into())
}

/// All of a memory file. Host, spawner and jail share its offset, so that none may use it.
fn read_memory_file(file: &OwnedFd) -> Result<Vec<u8>, Errno> {
    let broken = |cause: std::io::Error| Errno::from_io_error(&cause).unwrap_or(Errno::IO);
    let file = std::fs::File::from(file.try_clone().map_err(broken)?);
    let length = file.metadata().map_err(broken)?.len();
    let mut bytes = vec![0; usize::try_from(length).unwrap_or_default().min(MAX_RUN_SPEC_BYTES)];
    file.read_exact_at(&mut bytes, 0).map_err(broken)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt as _;

    use proptest::prelude::*;

    use super::*;

    fn wrapped_spec() -> WrappedSpec {
        let layer = |name: &str| LayerPath {
            directory: OsString::from_vec(vec![b'/', 0xfe]).into(),
            upper: name.into(),
            work: "work".into(),
        };
        WrappedSpec {
            workspace_path: "/home/me/w".into(),
            home: "/home/me".into(),
            home_toolchains: vec!["/home/me/.cargo/bin".into()],
            files: vec![PlacedRunFile { path: "/etc/hosts".into(), contents: vec![0, 255] }],
            is_mounted: true,
            home_start: OsString::from_vec(vec![0xff]).into(),
            workspace_layer: layer("upper"),
            home_layer: layer("above"),
            caches: vec![CacheSpec {
                path: ".npm/_cacache".into(),
                lower: OsString::from_vec(vec![b'/', 0xfd]).into(),
                layer: layer("cache"),
                masked_files: vec![".npmrc".into()],
                masked_directories: vec![OsString::from_vec(vec![0xfc]).into()],
            }],
            terminal: Some(TerminalSize { rows: 24, columns: 80 }),
            recorded: RecordedCalls { lookups: true, starts: false },
        }
    }

    fn run_spec() -> RunSpec {
        RunSpec {
            argv: vec!["python3".into(), "-c".into()],
            env: vec!["A=b".into()],
            files: vec![RunFile { name: "main.py".into(), contents: vec![0, 255, b'\n'], over: ".git/config".into() }],
            mounts: vec![RunMount {
                alias: "w".into(),
                path: OsString::from_vec(vec![b'/', 0xff]).into(),
                is_mount: true,
                masked: vec![".env".into(), OsString::from_vec(vec![0xfe]).into()],
            }],
            memory_by_cgroup: true,
            wrapped: Some(wrapped_spec()),
            ..RunSpec::default()
        }
    }

    #[test]
    fn a_run_spec_reads_as_it_was_written() {
        let spec = run_spec();
        let file = spec.write().unwrap();
        assert_eq!(RunSpec::read(&file).unwrap(), spec);
        assert_eq!(RunSpec::read(&file).unwrap(), spec, "a second reader starts anew");
        let paths = [OsString::from_vec(vec![0xfe]).into(), "/usr".into()];
        assert_eq!(read_paths(&write_paths(&paths).unwrap()).unwrap(), paths);
    }

    #[test]
    fn a_message_that_is_cut_or_extended_does_not_read() {
        let whole = encode(&run_spec()).unwrap();
        for length in 0..whole.len() {
            assert!(RunSpec::read(&memory_file(&whole[..length]).unwrap()).is_err(), "{length}");
        }
        assert!(RunSpec::read(&memory_file(&[&whole[..], &[0]].concat()).unwrap()).is_err());
        for bytes in [&[][..], &[9], &[6, 200, 1], &[0, 0]] {
            assert!(SpawnerRequest::decode(bytes).is_err(), "{bytes:?}");
            assert!(SpawnerReply::decode(bytes).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn a_length_beyond_the_message_allocates_nothing() {
        let claimed = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        assert!(decode::<RunSpec>(&claimed).is_err());
        assert!(decode::<Vec<OsString>>(&claimed).is_err());
    }

    #[test]
    fn every_message_comes_back_and_is_short() {
        let user = JailUser { uid: u32::MAX, gid: u32::MAX };
        let identity = IdMapping { inside: user, outside: user };
        let create = |network, kind| SpawnerRequest::Create { name: u64::MAX, identity, network, kind };
        let requests = [
            SpawnerRequest::SetImage,
            create(None, JailKind::Tool),
            create(Some(u64::MAX), JailKind::WrappedOnTerminal),
            SpawnerRequest::CloseNetwork { network: u64::MAX },
            SpawnerRequest::Run { name: u64::MAX },
            SpawnerRequest::Discard { name: 0 },
            SpawnerRequest::Ping,
            SpawnerRequest::MapUser { from: user, to: user },
            SpawnerRequest::OpenInNetwork { handle: NetworkHandle::Ipv6Table },
        ];
        for request in requests {
            let bytes = encode(&request).unwrap();
            assert!(bytes.len() <= MAX_MESSAGE_BYTES);
            assert_eq!(SpawnerRequest::decode(&bytes).unwrap(), request);
        }
        let mut replies = vec![
            SpawnerReply::Ready,
            SpawnerReply::Created,
            SpawnerReply::Mapped,
            SpawnerReply::Started { proc: true },
            SpawnerReply::Stopped,
            SpawnerReply::ProgramNotFound,
            SpawnerReply::Opened,
        ];
        for status in [ProgramStatus::Exited(3), ProgramStatus::Exited(i32::MIN), ProgramStatus::Killed(9)] {
            for beyond in [None, Some(LimitExceeded::Memory), Some(LimitExceeded::Cpu)] {
                replies.push(SpawnerReply::Exited { status, beyond });
            }
        }
        replies.extend(SetupStep::ALL.iter().map(|&step| SpawnerReply::Failed(SetupError { step, errno: i32::MAX })));
        for reply in replies {
            let bytes = encode(&reply).unwrap();
            assert!(bytes.len() <= MAX_MESSAGE_BYTES);
            assert_eq!(SpawnerReply::decode(&bytes).unwrap(), reply);
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_a_message_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(request) = SpawnerRequest::decode(&bytes) {
                prop_assert_eq!(SpawnerRequest::decode(&encode(&request).unwrap()).unwrap(), request);
            }
            if let Ok(reply) = SpawnerReply::decode(&bytes) {
                prop_assert_eq!(SpawnerReply::decode(&encode(&reply).unwrap()).unwrap(), reply);
            }
            if let Ok(spec) = decode::<RunSpec>(&bytes) {
                prop_assert_eq!(decode::<RunSpec>(&encode(&spec).unwrap()).unwrap(), spec);
            }
        }
    }
}
