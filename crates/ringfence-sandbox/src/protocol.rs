//! IPC protocol between the host, the spawner and a jail's init process.
//!
//! Both ends are the same binary, so the format needs no version. Messages are checked all the same: an invalid one is
//! an error, never a panic. The run spec lies in a memory file, because a script may be larger than a socket takes.
//!
//! Not here: the sockets. Descriptors travel beside these bytes, in the order that `SpawnerRequest` and `SpawnerReply` say.

use std::ffi::OsString;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;

use crate::job::JailError;
use crate::limits::JailLimits;

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

/// User and group of a jail's program, as the host counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct JailUser {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// From the host to the spawner.
#[derive(Debug)]
pub(crate) enum SpawnerRequest {
    /// Sets the toolchains of the jails that are made from now on. With: the reply socket, and the paths as a memory
    /// file. The first request is one.
    SetImage,
    /// A jail to be made, under a name for `Run`. With: where it and we reply, and files to enter cgroups by.
    Create { name: u64, identity: JailUser },
    /// With: the order, and the order's own descriptors.
    Run { name: u64 },
    /// Discards a jail that will not be used.
    Discard { name: u64 },
    /// Checks that the spawner is alive. With: the reply socket.
    Ping,
    /// A user namespace that maps these to the jail's. With: where to reply.
    MapUser { from: JailUser, to: JailUser },
}

/// To the host, from the spawner or from a jail.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SpawnerReply {
    Ready,
    /// With a handle on the first process of the jail.
    Created,
    /// With the user namespace.
    Mapped,
    /// The program runs, with this isolation. With the upper directory.
    Started {
        proc: bool,
    },
    /// Everything is dead.
    Exited {
        status: ProgramStatus,
        beyond: Option<LimitExceeded>,
    },
    ProgramNotFound,
    Failed(SetupError),
}

/// Exit status of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProgramStatus {
    Exited(i32),
    Killed(i32),
}

/// A limit that a run went beyond, as the jail's first process knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LimitExceeded {
    Memory,
    Cpu,
}

/// A failed setup step, with the kernel's error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SetupError {
    pub(crate) step: SetupStep,
    pub(crate) errno: i32,
}

macro_rules! steps {
    ($($name:ident = $words:literal,)*) => {
        /// The steps that can fail.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum SetupStep { $($name,)* }

        impl SetupStep {
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
    Hold = "drop its privileges",
    Order = "read its run spec",
    Find = "find a directory of the workspace view",
    Show = "mount a directory of the workspace view",
    Layer = "mount an overlay on the workspace",
    Cover = "mask hidden files",
    Script = "write the script",
    Cgroup = "enter its cgroup",
    Start = "start a process",
    Limits = "set its limits",
    Landlock = "set its Landlock rules",
    Capabilities = "drop its capabilities",
    Seccomp = "set its seccomp filter",
    Bwrap = "build the sandbox with bwrap",
    Egress = "open its egress channel",
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
            SetupStep::Layer if setup_error.errno == libc::EINVAL => Self::unavailable(
                "an overlay cannot be mounted on the workspace",
                "unmount file systems inside it, or move it to a local file system",
            ),
            step => Self::Io(step.words(), cause),
        }
    }
}

/// A run, as the spawner and the jail need it. Its descriptors, in this order: standard output, standard error, one for
/// each of `shown`, standard input if it has one, and that of the way out if there is one.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct RunSpec {
    pub(crate) argv: Vec<OsString>,
    pub(crate) env: Vec<OsString>,
    pub(crate) script_name: OsString,
    pub(crate) script: Vec<u8>,
    pub(crate) limits: JailLimits,
    /// The workspace first.
    pub(crate) mounts: Vec<RunMount>,
    /// Whether a cgroup keeps the memory.
    pub(crate) memory_by_cgroup: bool,
    pub(crate) has_stdin: bool,
    /// Whether there is a way out; its socket is the last descriptor.
    pub(crate) egress: bool,
    /// Cargo's home on the host, of which the run gets one to write to. Empty, if it does not.
    pub(crate) cargo_home: PathBuf,
}

/// One directory of the view.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct RunMount {
    pub(crate) alias: OsString,
    pub(crate) path: PathBuf,
    /// Whether its descriptor is a mount to be attached; else it is the held directory, to be found again.
    pub(crate) is_mount: bool,
    pub(crate) masked: Vec<PathBuf>,
}

impl SpawnerRequest {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut text = SpawnerMessageWriter::default();
        match self {
            Self::SetImage => text.byte(0),
            Self::Create { name, identity } => text.byte(1).number(*name).identity(*identity),
            Self::Run { name } => text.byte(2).number(*name),
            Self::Discard { name } => text.byte(3).number(*name),
            Self::Ping => text.byte(5),
            Self::MapUser { from, to } => text.byte(4).identity(*from).identity(*to),
        };
        text.0
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, MalformedMessage> {
        let mut reader = SpawnerMessageReader(bytes);
        Ok(match reader.byte()? {
            0 => Self::SetImage,
            1 => Self::Create { name: reader.number()?, identity: reader.identity()? },
            2 => Self::Run { name: reader.number()? },
            3 => Self::Discard { name: reader.number()? },
            5 => Self::Ping,
            4 => Self::MapUser { from: reader.identity()?, to: reader.identity()? },
            _ => return Err(MalformedMessage),
        })
    }
}

impl LimitExceeded {
    fn byte(beyond: Option<Self>) -> u8 {
        match beyond {
            None => 0,
            Some(Self::Memory) => 1,
            Some(Self::Cpu) => 2,
        }
    }

    fn read(byte: u8) -> Result<Option<Self>, MalformedMessage> {
        match byte {
            0 => Ok(None),
            1 => Ok(Some(Self::Memory)),
            2 => Ok(Some(Self::Cpu)),
            _ => Err(MalformedMessage),
        }
    }
}

impl SpawnerReply {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut text = SpawnerMessageWriter::default();
        match self {
            Self::Ready => text.byte(0),
            Self::Created => text.byte(1),
            Self::Mapped => text.byte(2),
            Self::Started { proc } => text.byte(3).flag(*proc),
            Self::Exited { status: ProgramStatus::Exited(code), beyond } => {
                text.byte(4).byte(0).number(*code as u32).byte(LimitExceeded::byte(*beyond))
            }
            Self::Exited { status: ProgramStatus::Killed(signal), beyond } => {
                text.byte(4).byte(1).number(*signal as u32).byte(LimitExceeded::byte(*beyond))
            }
            Self::ProgramNotFound => text.byte(5),
            Self::Failed(setup_error) => text.byte(6).byte(setup_error.step as u8).number(setup_error.errno as u32),
        };
        text.0
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, MalformedMessage> {
        let mut reader = SpawnerMessageReader(bytes);
        Ok(match reader.byte()? {
            0 => Self::Ready,
            1 => Self::Created,
            2 => Self::Mapped,
            3 => Self::Started { proc: reader.flag()? },
            4 => {
                let kind = if reader.byte()? == 0 { ProgramStatus::Exited } else { ProgramStatus::Killed };
                Self::Exited { status: kind(reader.number_u32()? as i32), beyond: LimitExceeded::read(reader.byte()?)? }
            }
            5 => Self::ProgramNotFound,
            6 => {
                let step = *SetupStep::ALL.get(usize::from(reader.byte()?)).ok_or(MalformedMessage)?;
                Self::Failed(SetupError { step, errno: reader.number_u32()? as i32 })
            }
            _ => return Err(MalformedMessage),
        })
    }
}

impl RunSpec {
    /// As a memory file.
    pub(crate) fn write(&self) -> std::io::Result<OwnedFd> {
        let mut text = SpawnerMessageWriter::default();
        text.list(&self.argv, |text, one| text.bytes(one.as_bytes()));
        text.list(&self.env, |text, one| text.bytes(one.as_bytes()));
        text.bytes(self.script_name.as_bytes()).bytes(&self.script).limits(&self.limits);
        text.list(&self.mounts, |text, shown| {
            text.bytes(shown.alias.as_bytes()).path(&shown.path).flag(shown.is_mount).paths(&shown.masked)
        });
        text.flag(self.memory_by_cgroup).flag(self.has_stdin).flag(self.egress).path(&self.cargo_home);
        memory_file(&text.0)
    }

    pub(crate) fn read(file: &OwnedFd) -> Result<Self, Errno> {
        let bytes = read_memory_file(file)?;
        let mut reader = SpawnerMessageReader(&bytes);
        Ok(Self {
            argv: reader.list(SpawnerMessageReader::text)?,
            env: reader.list(SpawnerMessageReader::text)?,
            script_name: reader.text()?,
            script: reader.bytes()?.to_vec(),
            limits: reader.limits()?,
            mounts: reader.list(|reader| {
                Ok(RunMount {
                    alias: reader.text()?,
                    path: reader.path()?,
                    is_mount: reader.flag()?,
                    masked: reader.list(SpawnerMessageReader::path)?,
                })
            })?,
            memory_by_cgroup: reader.flag()?,
            has_stdin: reader.flag()?,
            egress: reader.flag()?,
            cargo_home: reader.path()?,
        })
    }
}

/// Paths, as a memory file.
pub(crate) fn write_paths(paths: &[PathBuf]) -> std::io::Result<OwnedFd> {
    let mut text = SpawnerMessageWriter::default();
    text.paths(paths);
    memory_file(&text.0)
}

pub(crate) fn read_paths(file: &OwnedFd) -> Result<Vec<PathBuf>, Errno> {
    Ok(SpawnerMessageReader(&read_memory_file(file)?).list(SpawnerMessageReader::path)?)
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

/// Bytes to be sent.
#[derive(Default)]
struct SpawnerMessageWriter(Vec<u8>);

impl SpawnerMessageWriter {
    fn byte(&mut self, byte: u8) -> &mut Self {
        self.0.push(byte);
        self
    }

    fn flag(&mut self, flag: bool) -> &mut Self {
        self.byte(flag.into())
    }

    fn number(&mut self, number: impl Into<u64>) -> &mut Self {
        self.0.extend(number.into().to_le_bytes());
        self
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.number(bytes.len() as u64).0.extend(bytes);
        self
    }

    fn path(&mut self, path: &std::path::Path) -> &mut Self {
        self.bytes(path.as_os_str().as_bytes())
    }

    fn paths(&mut self, paths: &[PathBuf]) -> &mut Self {
        self.list(paths, |text, path| text.path(path))
    }

    fn list<T>(&mut self, list: &[T], mut one: impl for<'a> FnMut(&'a mut Self, &T) -> &'a mut Self) -> &mut Self {
        self.number(list.len() as u64);
        for item in list {
            one(self, item);
        }
        self
    }

    fn identity(&mut self, identity: JailUser) -> &mut Self {
        self.number(identity.uid).number(identity.gid)
    }

    fn limits(&mut self, limits: &JailLimits) -> &mut Self {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.number(nanos(limits.wall)).number(nanos(limits.cpu)).number(limits.memory_bytes).number(limits.processes);
        self.number(limits.open_files).number(limits.file_bytes).number(limits.disk_bytes).number(limits.tmp_bytes);
        self.number(limits.output_bytes)
    }
}

/// The unread rest of a message.
struct SpawnerMessageReader<'a>(&'a [u8]);

impl<'a> SpawnerMessageReader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], MalformedMessage> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(MalformedMessage)?;
        self.0 = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, MalformedMessage> {
        self.take(1)?.first().copied().ok_or(MalformedMessage)
    }

    fn flag(&mut self) -> Result<bool, MalformedMessage> {
        Ok(self.byte()? != 0)
    }

    fn number(&mut self) -> Result<u64, MalformedMessage> {
        Ok(u64::from_le_bytes(self.take(8)?.try_into().map_err(|_| MalformedMessage)?))
    }

    fn number_u32(&mut self) -> Result<u32, MalformedMessage> {
        self.number()?.try_into().map_err(|_| MalformedMessage)
    }

    fn bytes(&mut self) -> Result<&'a [u8], MalformedMessage> {
        let length = self.number()?.try_into().map_err(|_| MalformedMessage)?;
        self.take(length)
    }

    fn text(&mut self) -> Result<OsString, MalformedMessage> {
        Ok(OsString::from_vec(self.bytes()?.to_vec()))
    }

    fn path(&mut self) -> Result<PathBuf, MalformedMessage> {
        Ok(self.text()?.into())
    }

    fn list<T>(
        &mut self,
        mut one: impl FnMut(&mut Self) -> Result<T, MalformedMessage>,
    ) -> Result<Vec<T>, MalformedMessage> {
        let length = self.number()?;
        let mut list = Vec::new();
        for _ in 0..length {
            list.push(one(self)?);
        }
        Ok(list)
    }

    fn identity(&mut self) -> Result<JailUser, MalformedMessage> {
        Ok(JailUser { uid: self.number_u32()?, gid: self.number_u32()? })
    }

    fn limits(&mut self) -> Result<JailLimits, MalformedMessage> {
        Ok(JailLimits {
            wall: Duration::from_nanos(self.number()?),
            cpu: Duration::from_nanos(self.number()?),
            memory_bytes: self.number()?,
            processes: self.number()?,
            open_files: self.number()?,
            file_bytes: self.number()?,
            disk_bytes: self.number()?,
            tmp_bytes: self.number()?,
            output_bytes: self.number()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{
        LimitExceeded, ProgramStatus, RunMount, RunSpec, SetupError, SetupStep, SpawnerReply, SpawnerRequest,
        memory_file, read_memory_file,
    };

    #[test]
    fn an_order_reads_as_it_was_written() {
        let spec = RunSpec {
            argv: vec!["python3".into(), "-c".into()],
            env: vec!["A=b".into()],
            script_name: "main.py".into(),
            script: vec![0, 255, b'\n'],
            mounts: vec![RunMount {
                alias: "w".into(),
                path: "/x".into(),
                is_mount: true,
                masked: vec![".env".into()],
            }],
            memory_by_cgroup: true,
            ..RunSpec::default()
        };
        let file = spec.write().unwrap();
        assert_eq!(RunSpec::read(&file).unwrap(), spec);
        assert_eq!(RunSpec::read(&file).unwrap(), spec, "a second reader starts anew");
    }

    #[test]
    fn a_message_that_is_cut_does_not_read() {
        let whole = read_memory_file(&RunSpec::default().write().unwrap()).unwrap();
        for length in 0..whole.len() {
            assert!(RunSpec::read(&memory_file(&whole[..length]).unwrap()).is_err(), "{length}");
        }
        assert!(SpawnerRequest::decode(&[9]).is_err());
        assert!(SpawnerReply::decode(&[]).is_err());
        assert!(SpawnerReply::decode(&[6, 200, 0, 0, 0, 0, 0, 0, 0, 0]).is_err());
    }

    #[test]
    fn every_end_comes_back() {
        for status in [ProgramStatus::Exited(3), ProgramStatus::Killed(9)] {
            for beyond in [None, Some(LimitExceeded::Memory), Some(LimitExceeded::Cpu)] {
                let reply = SpawnerReply::Exited { status, beyond };
                assert_eq!(SpawnerReply::decode(&reply.encode()).unwrap(), reply);
            }
        }
    }

    #[test]
    fn every_step_comes_back() {
        for &step in SetupStep::ALL {
            let reply = SpawnerReply::Failed(SetupError { step, errno: 13 });
            assert_eq!(SpawnerReply::decode(&reply.encode()).unwrap(), reply);
        }
    }
}
