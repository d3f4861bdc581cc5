//! Raw system calls (`unsafe`), and messages with descriptors.
//!
//! Each function is one call, or the few that make no sense alone. Calls that `rustix` offers are used from there
//! directly.
//!
//! Not here: any decision. The callers say why.

use std::ffi::{CStr, CString, OsString};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use std::ptr;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, fcntl_dupfd_cloexec, retry_on_intr};
use rustix::mount::MountAttrFlags;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socket_with, socketpair,
};
use rustix::process::{Pid, Signal, set_parent_process_death_signal};

/// The kernel takes no more in one message.
pub(crate) const MAX_DESCRIPTORS: usize = 253;

/// Side of a fork.
pub(crate) enum ForkResult {
    Child,
    Parent(ChildProcess),
}

/// A process that we started.
#[derive(Debug)]
pub(crate) struct ChildProcess {
    pub(crate) pid: Pid,
    pub(crate) pidfd: OwnedFd,
}

/// Limits the number of the allocator's arenas for threads.
pub(crate) fn set_malloc_arenas(most: i32) {
    #[cfg(target_env = "gnu")]
    // SAFETY: it sets a number that the allocator reads under its own lock, and takes no pointer.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, most);
    }
    #[cfg(not(target_env = "gnu"))]
    let _ = most;
}

/// Begins to write the dirty pages of a file.
pub(crate) fn start_writeback(file: BorrowedFd<'_>) {
    // SAFETY: the descriptor is open, and the call takes no pointer. The range is the whole file.
    unsafe {
        libc::sync_file_range(file.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE);
    }
}

/// `clone3` without shared memory: a fork into new namespaces.
///
/// # Safety
///
/// The process must have one thread: in the child no other goes on, and what they held would stay held.
pub(crate) unsafe fn clone_into(namespaces: libc::c_int) -> Result<ForkResult, Errno> {
    let mut handle: RawFd = -1;
    // SAFETY: all zeros is a valid value of this plain struct.
    let mut wish: libc::clone_args = unsafe { MaybeUninit::zeroed().assume_init() };
    wish.flags = u64::from((namespaces | libc::CLONE_PIDFD) as u32);
    wish.pidfd = ptr::from_mut(&mut handle) as u64;
    wish.exit_signal = libc::SIGCHLD as u64;
    // SAFETY: the arguments outlive the call; without CLONE_VM the child has a copy of everything, the stack included.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw mut wish, size_of::<libc::clone_args>()) };
    if pid < 0 {
        return Err(last_error());
    }
    let Some(pid) = Pid::from_raw(pid as i32) else { return Ok(ForkResult::Child) };
    // SAFETY: the kernel just made this descriptor for us.
    Ok(ForkResult::Parent(ChildProcess { pid, pidfd: unsafe { OwnedFd::from_raw_fd(handle) } }))
}

/// Becomes another program. Comes back only if that failed.
pub(crate) fn execve(program: &CStr, argv: &[CString], env: &[CString]) -> Errno {
    let pointers =
        |list: &[CString]| list.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect::<Vec<*const _>>();
    let (argv, env) = (pointers(argv), pointers(env));
    // SAFETY: both lists end with a null pointer, and what they point to lives until the call is over.
    unsafe { libc::execve(program.as_ptr(), argv.as_ptr(), env.as_ptr()) };
    last_error()
}

/// Flags of a mount and, where asked, of all below it; with an idmapping if a user namespace is given.
pub(crate) fn set_mount_flags(
    mount: BorrowedFd<'_>,
    flags: MountAttrFlags,
    reach: MountFlagScope,
    idmap: Option<BorrowedFd<'_>>,
) -> Result<(), Errno> {
    let mut attr = libc::mount_attr {
        attr_set: u64::from(flags.bits()),
        attr_clr: 0,
        propagation: 0,
        userns_fd: idmap.map_or(0, |namespace| namespace.as_raw_fd() as u64),
    };
    if idmap.is_some() {
        attr.attr_set |= u64::from(MountAttrFlags::MOUNT_ATTR_IDMAP.bits());
    }
    let at = libc::AT_EMPTY_PATH | if reach == MountFlagScope::Tree { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is a constant and the struct outlives the call.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            at,
            &raw mut attr,
            size_of::<libc::mount_attr>(),
        )
    };
    if done < 0 { Err(last_error()) } else { Ok(()) }
}

/// Scope of a change of mount flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MountFlagScope {
    Mount,
    Tree,
}

/// The first number after the standard streams. The descriptors that a process keeps across `keep_only` start here.
pub(crate) const FIRST_INHERITED_FD: RawFd = 3;

/// Closes every descriptor but the standard streams and these, which get the numbers from `FIRST_INHERITED_FD` on and close with a
/// change of programs. Owners of closed descriptors must not be dropped later: this is for processes that just forked.
pub(crate) fn keep_only(descriptors: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let past = FIRST_INHERITED_FD + descriptors.len() as RawFd;
    // First out of the way of each other.
    let moved: Result<Vec<OwnedFd>, Errno> = descriptors.iter().map(|one| fcntl_dupfd_cloexec(one, past)).collect();
    for (one, number) in moved?.iter().zip(FIRST_INHERITED_FD..) {
        // SAFETY: the former owner of that number is forgotten, as this function says.
        let done = unsafe { libc::dup3(one.as_raw_fd(), number, libc::O_CLOEXEC) };
        if done < 0 {
            return Err(last_error());
        }
    }
    // SAFETY: as above.
    let done = unsafe { libc::syscall(libc::SYS_close_range, past as libc::c_uint, libc::c_uint::MAX, 0) };
    if done < 0 { Err(last_error()) } else { Ok(()) }
}

/// Path of a held directory.
pub(crate) fn held_path(directory: &OwnedFd) -> Result<PathBuf, Errno> {
    let path = rustix::fs::readlink(format!("/proc/self/fd/{}", directory.as_raw_fd()), Vec::new())?;
    Ok(OsString::from_vec(path.into_bytes()).into())
}

/// The descriptor at this index of `keep_only`. Call it once per index.
pub(crate) fn inherited_fd(index: usize) -> OwnedFd {
    // SAFETY: `keep_only` made it, and forgot it for us.
    unsafe { OwnedFd::from_raw_fd(FIRST_INHERITED_FD + index as RawFd) }
}

/// Makes a standard stream mean what `from` means.
pub(crate) fn dup_onto(from: BorrowedFd<'_>, stream: RawFd) -> Result<(), Errno> {
    // SAFETY: the standard streams have no owner.
    let done = unsafe { libc::dup3(from.as_raw_fd(), stream, 0) };
    if done < 0 { Err(last_error()) } else { Ok(()) }
}

/// Installs a filter of system calls, with a descriptor for the calls that it asks about. Takes `no_new_privs`.
pub(crate) fn install_filter_with_listener(program: &[seccompiler::sock_filter]) -> Result<OwnedFd, Errno> {
    let length = libc::c_ushort::try_from(program.len()).map_err(|_| Errno::INVAL)?;
    let program = libc::sock_fprog { len: length, filter: program.as_ptr().cast_mut().cast() };
    // SAFETY: the program outlives the call, which copies it, and both types of an instruction are the kernel's.
    let listener = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            // Once a request was received, only a signal that ends the program interrupts its call.
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV,
            &raw const program,
        )
    };
    if listener < 0 {
        return Err(last_error());
    }
    // The waiting thread runs on the processor of the listener's process as soon as it is answered, and the other way round,
    // which halves the time. Linux 6.6 has it.
    // SAFETY: the argument is a plain number.
    let _ = unsafe { libc::ioctl(listener as RawFd, SECCOMP_SET_FLAGS, SECCOMP_SYNC_WAKE_UP) };
    // SAFETY: the kernel just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(listener as RawFd) })
}

/// A call that a filter asks about.
pub(crate) struct SeccompNotification {
    id: u64,
    /// The thread that called.
    pub(crate) pid: Pid,
    pub(crate) number: i64,
    pub(crate) arguments: [u64; 6],
}

/// The next call that a filter asks about. Nothing, if the caller is gone meanwhile; an error, if no
/// process has the filter any more.
pub(crate) fn next_notification(listener: BorrowedFd<'_>) -> Result<Option<SeccompNotification>, Errno> {
    let mut watched = [PollFd::new(&listener, PollFlags::IN)];
    poll(&mut watched, Some(&Timespec::default()))?;
    let [watched] = &watched;
    if !watched.revents().contains(PollFlags::IN) {
        return if watched.revents().is_empty() { Ok(None) } else { Err(Errno::PIPE) };
    }
    // SAFETY: all zeros is a valid value of this plain struct, and what the kernel wants; it outlives the call.
    let (done, asked) = unsafe {
        let mut asked: libc::seccomp_notif = MaybeUninit::zeroed().assume_init();
        (libc::ioctl(listener.as_raw_fd(), SECCOMP_RECEIVE, &raw mut asked), asked)
    };
    match if done < 0 { Err(last_error()) } else { Ok(()) } {
        Ok(()) => Ok(Some(SeccompNotification {
            id: asked.id,
            pid: Pid::from_raw(asked.pid as i32).ok_or(Errno::SRCH)?,
            number: asked.data.nr.into(),
            arguments: asked.data.args,
        })),
        Err(Errno::NOENT | Errno::INTR) => Ok(None),
        Err(other) => Err(other),
    }
}

/// Answer to a call that was asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallAnswer {
    /// The kernel makes the call.
    Continue,
    /// The call is not made, and returns 0 or this error.
    Return(Result<(), Errno>),
}

/// Answers a call that was asked about. It may be gone.
pub(crate) fn answer_call(
    listener: BorrowedFd<'_>,
    call: &SeccompNotification,
    answer: CallAnswer,
) -> Result<(), Errno> {
    let (error, flags) = match answer {
        CallAnswer::Continue => (0, SECCOMP_CONTINUE),
        CallAnswer::Return(Ok(())) => (0, 0),
        CallAnswer::Return(Err(errno)) => (-errno.raw_os_error(), 0),
    };
    let mut answer = libc::seccomp_notif_resp { id: call.id, val: 0, error, flags };
    // SAFETY: the struct outlives the call.
    let done = unsafe { libc::ioctl(listener.as_raw_fd(), SECCOMP_SEND, &raw mut answer) };
    if done < 0 { Err(last_error()) } else { Ok(()) }
}

/// Checks that a call still waits for its answer, and its thread is the one that made it.
pub(crate) fn check_notification(listener: BorrowedFd<'_>, call: &SeccompNotification) -> Result<(), Errno> {
    // SAFETY: the number outlives the call.
    let done = unsafe { libc::ioctl(listener.as_raw_fd(), SECCOMP_ID_VALID, &raw const call.id) };
    if done < 0 { Err(last_error()) } else { Ok(()) }
}

/// Reads memory of another process, up to the end of the buffer or of what is mapped there.
pub(crate) fn read_memory(pid: Pid, address: u64, buffer: &mut [u8]) -> Result<usize, Errno> {
    let page = rustix::param::page_size() as u64;
    let address_at = |address: u64| address as *mut libc::c_void;
    // In two parts: the page behind may not be there.
    let first = usize::try_from(page - address % page).unwrap_or(buffer.len()).min(buffer.len());
    let theirs = [
        libc::iovec { iov_base: address_at(address), iov_len: first },
        libc::iovec { iov_base: address_at(address.saturating_add(first as u64)), iov_len: buffer.len() - first },
    ];
    let ours = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: the kernel writes only to the buffer, whose length it is given, and checks the other addresses.
    let read = unsafe { libc::process_vm_readv(pid.as_raw_nonzero().get(), &raw const ours, 1, theirs.as_ptr(), 2, 0) };
    usize::try_from(read).map_err(|_| last_error())
}

// The C libraries do not agree on the type of a request, and not all have these.
const SECCOMP_RECEIVE: libc::Ioctl = 0xc050_2100_u32 as libc::Ioctl;
const SECCOMP_SEND: libc::Ioctl = 0xc018_2101_u32 as libc::Ioctl;
const SECCOMP_ID_VALID: libc::Ioctl = 0x4008_2102_u32 as libc::Ioctl;
const SECCOMP_SET_FLAGS: libc::Ioctl = 0x4008_2104_u32 as libc::Ioctl;
const SECCOMP_SYNC_WAKE_UP: u64 = 1;
const SECCOMP_CONTINUE: u32 = 1;

/// Sends a signal to every process that this one can see, but for itself.
pub(crate) fn kill_all() {
    // SAFETY: plain numbers. Called by the first process of a pid namespace only, which sees that namespace.
    unsafe { libc::kill(-1, libc::SIGKILL) };
}

/// Every signal means what it means to a new process, and none is blocked.
pub(crate) fn reset_signals() {
    for signal in 1..=libc::SIGRTMAX() {
        // SAFETY: the default disposition runs no code of ours.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    unblock_signals();
}

/// Ignores a signal from now on.
pub(crate) fn ignore_signal(signal: i32) {
    // SAFETY: ignoring a signal runs no code of ours.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

pub(crate) fn unblock_signals() {
    // SAFETY: the set is initialised by sigemptyset before it is read.
    unsafe {
        let mut none = MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigemptyset(none.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut());
    }
}

/// Blocks one signal, for this process and those that it starts.
pub(crate) fn block_signal(signal: i32) {
    // SAFETY: the set is initialised before it is read.
    unsafe {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), signal);
        libc::sigprocmask(libc::SIG_BLOCK, set.as_ptr(), ptr::null_mut());
    }
}

/// Blocks the signal that says that a child ended and gives a descriptor that is readable instead.
pub(crate) fn sigchld_fd() -> Result<OwnedFd, Errno> {
    // SAFETY: the set is initialised before it is read; the descriptor is new and ours.
    unsafe {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGCHLD);
        libc::sigprocmask(libc::SIG_BLOCK, set.as_ptr(), ptr::null_mut());
        let descriptor = libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if descriptor < 0 { Err(last_error()) } else { Ok(OwnedFd::from_raw_fd(descriptor)) }
    }
}

/// Brings the loopback interface of this network namespace up.
pub(crate) fn bring_up_loopback() -> Result<(), Errno> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    // SAFETY: all zeros is a valid value of this plain struct; the name is shorter than its field.
    let done = unsafe {
        let mut wish: libc::ifreq = MaybeUninit::zeroed().assume_init();
        wish.ifr_name[0] = b'l' as libc::c_char;
        wish.ifr_name[1] = b'o' as libc::c_char;
        wish.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw mut wish)
    };
    if done < 0 { Err(last_error()) } else { Ok(()) }
}

/// Two ends that keep messages apart.
pub(crate) fn message_pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

/// Sends one message with descriptors.
pub(crate) fn send(socket: BorrowedFd<'_>, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::TOOMANYREFS);
    }
    retry_on_intr(|| sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)).map(drop)
}

/// Receives one message, with its descriptors. No bytes mean that the other end is closed.
pub(crate) fn receive<'a>(socket: BorrowedFd<'_>, buffer: &'a mut [u8]) -> Result<(&'a [u8], Vec<OwnedFd>), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut take =
        || retry_on_intr(|| recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, RecvFlags::CMSG_CLOEXEC));
    // Where the other end closed with something unread, the kernel says so once, before what that end had sent.
    let got = match take() {
        Err(Errno::CONNRESET) => take(),
        got => got,
    }?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(some) = message {
            descriptors.extend(some);
        }
    }
    if got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(Errno::MSGSIZE);
    }
    Ok((buffer.get(..got.bytes).unwrap_or_default(), descriptors))
}

/// Kills this process when its parent dies. If it is dead already, the next receive from it fails.
pub(crate) fn die_with_parent() -> Result<(), Errno> {
    set_parent_process_death_signal(Some(Signal::KILL))
}

/// Ends this process at once: a forked one must not clean up what its parent still has.
pub(crate) fn exit() -> ! {
    exit_with(0)
}

/// The same with a status.
pub(crate) fn exit_with(status: i32) -> ! {
    // SAFETY: does not come back, and runs nothing.
    unsafe { libc::_exit(status) }
}

/// Borrows each of several.
pub(crate) fn borrowed(descriptors: &[OwnedFd]) -> Vec<BorrowedFd<'_>> {
    descriptors.iter().map(AsFd::as_fd).collect()
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_message_is_received_although_its_sender_left_something_unread() {
        let (ours, theirs) = message_pair().unwrap();
        send(ours.as_fd(), b"unread", &[]).unwrap();
        send(theirs.as_fd(), b"the end", &[ours.as_fd()]).unwrap();
        drop(theirs);
        let mut buffer = [0; 16];
        let (bytes, descriptors) = receive(ours.as_fd(), &mut buffer).unwrap();
        assert_eq!((bytes, descriptors.len()), (&b"the end"[..], 1));
        assert_eq!(receive(ours.as_fd(), &mut [0; 16]).unwrap().0, b"");
    }
}
