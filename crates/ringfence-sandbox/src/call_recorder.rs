//! Recorder of calls of a wrapped program: programs that it started, and absolute paths that it looked for and that do not
//! exist inside.
//!
//! The seccomp listener is notified of such calls, where a run wants to know. Each call goes on unchanged, and nothing is
//! decided by what is read here: it may be another one when the kernel reads it. A host that reads slowly loses
//! records, which are counted, and never holds the program.
//!
//! Not here: whether a path exists on the host, and what becomes of the records (`CallSink`).

use std::collections::HashSet;
use std::ffi::{CStr, OsStr};
use std::fmt;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Access, AtFlags, CWD, FileType, accessat, statat};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::process::Pid;
use serde::{Deserialize, Serialize};

use crate::memory_monitor::ProcessSource;
use crate::protocol::path_bytes;
use crate::rename_requests::read_path;
use crate::sys::{self, CallAnswer, SeccompNotification};
use crate::wrapped_environment::RecordedCalls;

/// Most paths of a run, and most bytes of one.
const MAX_PATHS: usize = 10_000;
const MAX_PATH_BYTES: usize = 1024;

/// Most arguments of one start, most bytes of one argument, and of all.
const MAX_ARGUMENTS: usize = 64;
const MAX_ARGUMENT_BYTES: usize = 1024;
const MAX_ARGUMENTS_BYTES: usize = 8 << 10;

/// More than the longest record.
const MAX_RECORD_BYTES: usize = 64 << 10;

/// Directories whose contents are the jail's own, or not configuration.
const IGNORED_DIRECTORIES: [&[u8]; 4] = [b"/proc/", b"/dev/", b"/sys/", b"/run/"];

/// A call of a program inside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ObservedCall {
    Lookup(PathLookup),
    Start(ProgramStart),
    /// This many records could not be kept.
    Lost(u64),
    /// Nothing is recorded: a container answers calls of its programs itself.
    Unavailable,
}

/// A path that a program looked for in vain, and the name of the program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathLookup {
    #[serde(with = "path_bytes")]
    pub path: PathBuf,
    /// As the kernel has it, which is the first 15 bytes.
    pub program: String,
}

/// A program that a process started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramStart {
    /// Since the epoch.
    pub time: Duration,
    /// Inside.
    pub pid: i32,
    /// As the process named it.
    #[serde(with = "path_bytes")]
    pub program: PathBuf,
    pub arguments: Vec<String>,
    /// Whether there were more or longer arguments.
    pub is_truncated: bool,
}

/// Takes what is recorded of a run, while it runs.
pub trait CallSink: Send + Sync + fmt::Debug {
    fn recorded(&self) -> RecordedCalls;

    fn record(&self, record: ObservedCall);
}

/// Sends records to the host.
pub(crate) struct CallRecorder<'a> {
    host: OwnedFd,
    recorded: RecordedCalls,
    processes: ProcessSource<'a>,
    seen: HashSet<Vec<u8>>,
    lost: u64,
}

impl<'a> CallRecorder<'a> {
    pub(crate) fn new(host: OwnedFd, recorded: RecordedCalls, processes: ProcessSource<'a>) -> Self {
        Self { host, recorded, processes, seen: HashSet::new(), lost: 0 }
    }

    /// There is no listener.
    pub(crate) fn report_unavailable(&mut self) {
        self.send(&ObservedCall::Unavailable);
    }

    /// Takes a call, if it is one of these. Other calls are returned.
    pub(crate) fn take(&mut self, listener: BorrowedFd<'_>, call: SeccompNotification) -> Option<SeccompNotification> {
        if let Some(start) = StartCall::read(&call) {
            if self.recorded.starts {
                self.record_start(&call, &start);
            }
        } else if let Some(address) = path_argument(&call) {
            if let Ok(path) = read_path(call.pid, address) {
                self.record_lookup(&call, &path);
            }
        } else {
            return Some(call);
        }
        let _ = sys::answer_call(listener, &call, CallAnswer::Continue);
        None
    }

    /// Takes calls until something can be read from a socket.
    pub(crate) fn take_until_readable(&mut self, listener: BorrowedFd<'_>, socket: BorrowedFd<'_>) {
        loop {
            let mut watched = [PollFd::new(&socket, PollFlags::IN), PollFd::new(&listener, PollFlags::IN)];
            match poll(&mut watched, None) {
                Ok(_) if watched[0].revents().is_empty() => {}
                Err(Errno::INTR) => continue,
                _ => return,
            }
            match sys::next_notification(listener) {
                Ok(Some(call)) => {
                    if let Some(call) = self.take(listener, call) {
                        let _ = sys::answer_call(listener, &call, CallAnswer::Continue);
                    }
                }
                Ok(None) => {}
                // Nothing can ask any more.
                Err(_) => return,
            }
        }
    }

    fn record_start(&mut self, call: &SeccompNotification, start: &StartCall) {
        let Ok(path) = read_path(call.pid, start.path) else { return };
        let program = PathBuf::from(OsStr::from_bytes(path.to_bytes()));
        // A shell tries every directory of its search path.
        if !self.is_program(call, start, &program) {
            return;
        }
        let (arguments, is_truncated) = read_arguments(call.pid, start.arguments);
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let pid = call.pid.as_raw_nonzero().get();
        self.send(&ObservedCall::Start(ProgramStart { time, pid, program, arguments, is_truncated }));
    }

    /// Whether the call can succeed. What is executed by its descriptor is not looked at.
    fn is_program(&self, call: &SeccompNotification, start: &StartCall, program: &Path) -> bool {
        let base = match (self.processes, start.base) {
            _ if program.is_absolute() => Path::new("/").to_owned(),
            _ if program.as_os_str().is_empty() => return true,
            (ProcessSource::JailProc, libc::AT_FDCWD) => process_file(call, "cwd"),
            (ProcessSource::JailProc, descriptor) => process_file(call, &format!("fd/{descriptor}")),
            // It has other numbers for the processes.
            (ProcessSource::SpawnerProc(_), _) => return true,
        };
        let path = base.join(program);
        let found = statat(CWD, &path, AtFlags::empty());
        found.is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::RegularFile)
            && accessat(CWD, &path, Access::EXEC_OK, AtFlags::empty()).is_ok()
    }

    fn record_lookup(&mut self, call: &SeccompNotification, path: &CStr) {
        let bytes = path.to_bytes();
        let is_wanted = bytes.starts_with(b"/")
            && bytes.len() <= MAX_PATH_BYTES
            && !bytes.iter().any(u8::is_ascii_control)
            && !IGNORED_DIRECTORIES.iter().any(|directory| bytes.starts_with(directory));
        if !is_wanted || self.seen.len() >= MAX_PATHS || self.seen.contains(bytes) {
            return;
        }
        let found = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT);
        if matches!(found, Err(Errno::NOENT | Errno::NOTDIR)) {
            let lookup = PathLookup { path: OsStr::from_bytes(bytes).into(), program: self.program_name(call) };
            self.send(&ObservedCall::Lookup(lookup));
            self.seen.insert(bytes.to_owned());
        }
    }

    fn program_name(&self, call: &SeccompNotification) -> String {
        let ProcessSource::JailProc = self.processes else { return String::new() };
        let name = std::fs::read_to_string(process_file(call, "comm")).unwrap_or_default();
        name.chars().filter(|c| !c.is_control()).collect()
    }

    fn send(&mut self, record: &ObservedCall) {
        if self.lost > 0 && self.send_now(&ObservedCall::Lost(self.lost)) {
            self.lost = 0;
        }
        if self.lost > 0 || !self.send_now(record) {
            self.lost += 1;
        }
    }

    fn send_now(&self, record: &ObservedCall) -> bool {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        postcard::to_allocvec(record).is_ok_and(|bytes| send(&self.host, &bytes, flags).is_ok())
    }
}

impl Drop for CallRecorder<'_> {
    fn drop(&mut self) {
        if self.lost > 0 {
            self.send_now(&ObservedCall::Lost(self.lost));
        }
    }
}

/// Passes on what a recorder sent so far.
pub(crate) fn pass_on_records(recorder: &OwnedFd, sink: &dyn CallSink) {
    let mut buffer = vec![0; MAX_RECORD_BYTES];
    while let Ok((length @ 1.., _)) = recv(recorder.as_fd(), &mut buffer[..], RecvFlags::DONTWAIT) {
        // What is not a record was not sent by us.
        if let Some(Ok(record)) = buffer.get(..length).map(postcard::from_bytes) {
            sink.record(record);
        }
    }
}

/// The arguments of a call that starts a program.
struct StartCall {
    base: i32,
    path: u64,
    arguments: u64,
}

impl StartCall {
    /// Nothing, if it is another call.
    fn read(call: &SeccompNotification) -> Option<Self> {
        let [first, second, third, ..] = call.arguments;
        match call.number {
            libc::SYS_execve => Some(Self { base: libc::AT_FDCWD, path: first, arguments: second }),
            // The kernel looks at 32 bits of a descriptor.
            libc::SYS_execveat => Some(Self { base: first as i32, path: second, arguments: third }),
            _ => None,
        }
    }
}

/// The arguments at an address, and whether that is not all of them.
fn read_arguments(pid: Pid, address: u64) -> (Vec<String>, bool) {
    const WORD: usize = size_of::<u64>();
    let mut words = [0; MAX_ARGUMENTS * WORD];
    let length = sys::read_memory(pid, address, &mut words).unwrap_or_default();
    let addresses = words.get(..length).unwrap_or_default().chunks_exact(WORD);
    let addresses = addresses.map(|word| word.try_into().map_or(0, u64::from_ne_bytes));
    let (mut arguments, mut room, mut is_truncated) = (Vec::new(), MAX_ARGUMENTS_BYTES, true);
    for address in addresses {
        if address == 0 {
            is_truncated = false;
            break;
        }
        let mut text = [0; MAX_ARGUMENT_BYTES];
        let Ok(length) = sys::read_memory(pid, address, &mut text) else { break };
        let read = text.get(..length).unwrap_or_default();
        let argument = CStr::from_bytes_until_nul(read).map(CStr::to_bytes);
        let Ok(argument) = argument.map_err(|_| ()).and_then(|argument| {
            room = room.checked_sub(argument.len()).ok_or(())?;
            Ok(argument)
        }) else {
            break;
        };
        arguments.push(String::from_utf8_lossy(argument).into_owned());
    }
    (arguments, is_truncated)
}

/// A file of the calling process.
fn process_file(call: &SeccompNotification, name: &str) -> PathBuf {
    Path::new("/proc").join(call.pid.as_raw_nonzero().to_string()).join(name)
}

/// The address of the path that a call looks up. `None` for other calls.
fn path_argument(call: &SeccompNotification) -> Option<u64> {
    let [first, second, ..] = call.arguments;
    #[cfg(target_arch = "x86_64")]
    if [libc::SYS_open, libc::SYS_stat, libc::SYS_lstat, libc::SYS_access, libc::SYS_readlink].contains(&call.number) {
        return Some(first);
    }
    let at_directory = [
        libc::SYS_openat,
        libc::SYS_openat2,
        libc::SYS_newfstatat,
        libc::SYS_statx,
        libc::SYS_faccessat,
        libc::SYS_faccessat2,
        libc::SYS_readlinkat,
    ];
    at_directory.contains(&call.number).then_some(second)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use rustix::process::getpid;

    use super::*;

    #[derive(Debug, Default)]
    struct RecordedSink(Mutex<Vec<ObservedCall>>);

    impl CallSink for RecordedSink {
        fn recorded(&self) -> RecordedCalls {
            RecordedCalls { lookups: true, starts: true }
        }

        fn record(&self, record: ObservedCall) {
            self.0.lock().unwrap().push(record);
        }
    }

    fn recorder(host: OwnedFd) -> CallRecorder<'static> {
        CallRecorder::new(host, RecordedCalls { lookups: true, starts: true }, ProcessSource::JailProc)
    }

    fn lookup(number: usize) -> ObservedCall {
        let path = PathBuf::from(OsStr::from_bytes(b"/opt/\xff")).join(number.to_string());
        ObservedCall::Lookup(PathLookup { path, program: "sh".to_owned() })
    }

    #[test]
    fn records_arrive_in_order_and_lost_ones_are_counted() {
        let (host, ours) = sys::message_pair().unwrap();
        let mut recorder = recorder(ours);
        const SENT: usize = 100_000;
        for number in 0..SENT {
            recorder.send(&lookup(number));
        }
        let lost = recorder.lost;
        assert!(lost > 0, "the socket holds everything");
        let kept = RecordedSink::default();
        pass_on_records(&host, &kept);
        recorder.send(&lookup(SENT));
        drop(recorder);
        pass_on_records(&host, &kept);
        let kept = kept.0.into_inner().unwrap();
        let held = SENT - usize::try_from(lost).unwrap();
        let expected = (0..held).map(lookup).chain([ObservedCall::Lost(lost), lookup(SENT)]);
        assert!(kept.iter().eq(&expected.collect::<Vec<_>>()), "{} records, {lost} lost", kept.len());
    }

    #[test]
    fn arguments_are_read_up_to_their_end_and_within_bounds() {
        let check = |texts: &[&[u8]], expected: &[&str], is_truncated: bool| {
            let texts: Vec<Vec<u8>> = texts.iter().map(|text| [text, &b"\0"[..]].concat()).collect();
            let mut words: Vec<u64> = texts.iter().map(|text| text.as_ptr() as u64).collect();
            words.push(0);
            let (arguments, truncated) = read_arguments(getpid(), words.as_ptr() as u64);
            assert_eq!(
                (arguments, truncated),
                (expected.iter().map(|text| (*text).to_owned()).collect(), is_truncated)
            );
        };
        check(&[], &[], false);
        check(&[b"sh", b"-c", b"a b"], &["sh", "-c", "a b"], false);
        check(&[b"\xff", b""], &["\u{fffd}", ""], false);
        let long = vec![b'a'; MAX_ARGUMENT_BYTES];
        check(&[b"sh", &long, b"b"], &["sh"], true);
        let kilobyte = "a".repeat(MAX_ARGUMENT_BYTES - 1);
        let many = vec![kilobyte.as_bytes(); 20];
        check(&many, &[kilobyte.as_str(); 8], true);
        check(&[&b"a"[..]; 100], &["a"; MAX_ARGUMENTS], true);
    }
}
