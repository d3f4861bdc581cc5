//! Attach sockets: one for each running wrapped program, in a directory of the state directory that only this user enters.
//!
//! A socket is named after the layer of its run, has the mode 0600, and is there from the moment at which it can be connected
//! to. The process at the other end is asked of the kernel: it is of this user, or of root. A run that was killed leaves its
//! socket behind; it refuses connections, and the next run removes it.
//!
//! Not here: what is said on a connection (`protocol.rs`).

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use ringfence_sys::own_files::{names_in, open_state_dir};
use rustix::fs::{AtFlags, Mode, chmodat, fstat, renameat, unlinkat};
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;

/// The directory of the sockets, below the state directory.
const DIRECTORY: &str = "attach";

/// Prefix of the name of a socket that is not ready yet.
const UNFINISHED_PREFIX: &str = ".new-";

/// Most sockets that are looked at.
const MOST_SOCKETS: usize = 4096;

/// The directory of the attach sockets.
#[derive(Debug)]
pub(crate) struct AttachDirectory(OwnedFd);

impl AttachDirectory {
    /// The one below a state directory, made if it is missing. Fails where others could enter it.
    pub(crate) fn open(state: &Path) -> io::Result<Self> {
        let directory = open_state_dir(state, DIRECTORY)?;
        let found = fstat(&directory)?;
        if found.st_uid != geteuid().as_raw() || found.st_mode & 0o077 != 0 {
            return Err(io::Error::other("other users may enter the directory of the attach sockets"));
        }
        Ok(Self(directory))
    }

    /// A socket for the run of a layer.
    pub(crate) fn bind(self, layer: &str) -> io::Result<AttachListener> {
        self.remove_stale();
        let unfinished = format!("{UNFINISHED_PREFIX}{layer}");
        // One of a process that died right here.
        let _ = unlinkat(&self.0, &unfinished, AtFlags::empty());
        #[expect(clippy::disallowed_methods, reason = "persons attach to a run here")]
        let listener = UnixListener::bind(self.path_of(&unfinished))?;
        chmodat(&self.0, &unfinished, Mode::RUSR | Mode::WUSR, AtFlags::empty())?;
        listener.set_nonblocking(true)?;
        renameat(&self.0, &unfinished, &self.0, layer)?;
        Ok(AttachListener { listener, directory: self, name: layer.to_owned() })
    }

    /// Connects to the run of a layer.
    pub(crate) fn connect(&self, layer: &str) -> io::Result<UnixStream> {
        #[expect(clippy::disallowed_methods, reason = "persons attach to a run here")]
        UnixStream::connect(self.path_of(layer))
    }

    /// The layers that have a socket. A run that was killed is still among them.
    pub(crate) fn layers(&self) -> io::Result<Vec<String>> {
        let mut names = names_in(self.0.as_fd(), MOST_SOCKETS)?;
        names.retain(|name| !name.starts_with('.'));
        names.sort();
        Ok(names)
    }

    /// The path of a socket: its address has no room for a long one.
    fn path_of(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{name}", self.0.as_raw_fd()))
    }

    /// Removes the sockets of runs that were killed.
    fn remove_stale(&self) {
        for name in self.layers().unwrap_or_default() {
            if self.connect(&name).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
                let _ = unlinkat(&self.0, &name, AtFlags::empty());
            }
        }
    }
}

/// The socket of a run. Dropping it removes the socket.
#[derive(Debug)]
pub(crate) struct AttachListener {
    listener: UnixListener,
    directory: AttachDirectory,
    name: String,
}

impl AttachListener {
    /// The next connection, if one waits. That of a process of another user is closed.
    pub(crate) fn accept(&self) -> io::Result<Option<UnixStream>> {
        match self.listener.accept() {
            Ok((stream, _)) => {
                let peer = socket_peercred(&stream)?.uid;
                if !peer.is_root() && peer != geteuid() {
                    return Err(io::Error::from(io::ErrorKind::PermissionDenied));
                }
                stream.set_nonblocking(true)?;
                Ok(Some(stream))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for AttachListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for AttachListener {
    fn drop(&mut self) {
        // One that stays behind refuses connections.
        let _ = unlinkat(&self.directory.0, &self.name, AtFlags::empty());
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::fs::PermissionsExt as _;
    use std::process::Command;

    use ringfence_testkit::patience::PATIENCE;
    use ringfence_testkit::requirement::{Requirement, skip_without};

    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn a_socket_and_its_directory_are_for_one_user() {
        let state = tempfile::tempdir().unwrap();
        let listener = AttachDirectory::open(state.path()).unwrap().bind("l-1").unwrap();
        let directory = state.path().join(DIRECTORY);
        assert_eq!((mode(&directory), mode(&directory.join("l-1"))), (0o700, 0o600));
        let stream = AttachDirectory::open(state.path()).unwrap().connect("l-1").unwrap();
        assert!(listener.accept().unwrap().is_some());
        assert!(listener.accept().unwrap().is_none());
        drop((stream, listener));
        assert!(!directory.join("l-1").exists());
    }

    #[test]
    fn a_directory_that_others_may_enter_is_refused() {
        let state = tempfile::tempdir().unwrap();
        let directory = state.path().join(DIRECTORY);
        std::fs::create_dir(&directory).unwrap();
        std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert!(AttachDirectory::open(state.path()).is_err());
    }

    #[test]
    fn a_path_longer_than_an_address_works() {
        let state = tempfile::tempdir().unwrap();
        let state = state.path().join("a".repeat(200));
        let listener = AttachDirectory::open(&state).unwrap().bind("l-1").unwrap();
        let _stream = AttachDirectory::open(&state).unwrap().connect("l-1").unwrap();
        assert!(listener.accept().unwrap().is_some());
    }

    #[test]
    fn a_socket_that_a_killed_run_left_is_removed_by_the_next_one() {
        let state = tempfile::tempdir().unwrap();
        let open = || AttachDirectory::open(state.path()).unwrap();
        let left = open().bind("l-1").unwrap();
        // As if the process was killed: the socket is closed and has its name.
        let [socket, kept] = ["attach/l-1", "attach/.kept"].map(|name| state.path().join(name));
        std::fs::hard_link(&socket, &kept).unwrap();
        drop(left);
        std::fs::rename(&kept, &socket).unwrap();
        assert_eq!(open().connect("l-1").unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        let other = open().bind("l-2").unwrap();
        assert_eq!(open().layers().unwrap(), ["l-2"]);
        // One that runs stays.
        let _third = open().bind("l-3").unwrap();
        assert_eq!(open().layers().unwrap(), ["l-2", "l-3"]);
        drop(other);
    }

    /// The directory is opened to everyone here, so that the check of the peer is what refuses.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "another user is a process of their own")]
    fn a_process_of_another_user_is_refused() {
        if !geteuid().is_root() {
            skip_without(Requirement::Root, "a process of another user");
            return;
        }
        // One that another user may run, too.
        let Some(python) =
            ["/usr/bin/python3", "/usr/local/bin/python3"].into_iter().find(|path| Path::new(path).exists())
        else {
            skip_without(Requirement::Python, "a process of another user");
            return;
        };
        let state = tempfile::Builder::new().tempdir_in("/tmp").unwrap();
        let listener = AttachDirectory::open(state.path()).unwrap().bind("l-1").unwrap();
        let directory = state.path().join(DIRECTORY);
        for path in [state.path(), &directory, &directory.join("l-1")] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
        }
        let script =
            "import socket,sys\ns=socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\nsys.exit(len(s.recv(1)))";
        let connect = |ids: &[&str]| {
            let mut command = Command::new("setpriv");
            command.args(ids).args(["--clear-groups", "--", python, "-c", script]);
            command.arg(directory.join("l-1")).spawn().unwrap()
        };
        let wait = || {
            let mut fds = [rustix::event::PollFd::new(&listener, rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut fds, Some(&PATIENCE.try_into().unwrap())).unwrap();
        };
        let mut other = connect(&["--reuid", "65534", "--regid", "65534"]);
        wait();
        assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        // It is closed, and has read nothing.
        assert_eq!(other.wait().unwrap().code(), Some(0));
        let mut own = connect(&["--reuid", "0", "--regid", "0"]);
        wait();
        let mut stream = listener.accept().unwrap().unwrap();
        assert!(stream.read(&mut [0; 1]).is_err());
        io::Write::write_all(&mut stream, b"x").unwrap();
        assert_eq!(own.wait().unwrap().code(), Some(1));
    }
}
