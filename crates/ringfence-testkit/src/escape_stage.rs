//! Stage of escape attempts: a workspace with secrets in it, files beside it, and services of the host.
//!
//! Not here: the attempts (`escape_attempts`), and the jails that they are made in.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, symlink};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::PathBuf;
use std::thread;

use rustix::fs::{CWD, FlockOperation, Mode, OFlags, flock, mkfifoat, open};
use tempfile::TempDir;

use crate::escape_attempts::PRELUDE;

/// The outcome of an attempt.
#[derive(Debug)]
pub enum AttemptOutcome {
    /// It got what it wanted.
    Escaped(String),
    /// By an error of the system.
    Refused(String),
    /// Nothing was there.
    Nothing,
    /// The program is wrong, or something was changed.
    Wrong(String),
}

impl AttemptOutcome {
    /// What a program printed.
    #[must_use]
    pub fn read(printed: &str) -> Self {
        let last = printed.lines().last().unwrap_or_default();
        match last.strip_prefix("held: ") {
            _ if printed.contains("ESCAPED") => Self::Escaped(printed.to_owned()),
            _ if printed.lines().count() != 1 => Self::Wrong(printed.to_owned()),
            Some("nothing") => Self::Nothing,
            Some(why) => Self::Refused(why.to_owned()),
            None => Self::Wrong(printed.to_owned()),
        }
    }
}

/// Targets on the host.
#[derive(Debug)]
pub struct EscapeHost {
    /// Of the socket with a path.
    pub directory: TempDir,
    port: u16,
    socket: String,
}

impl EscapeHost {
    /// Starts listeners that greet every client, for the lifetime of the test process.
    ///
    /// # Panics
    /// If it cannot listen.
    #[must_use]
    pub fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = tcp.local_addr().unwrap().port();
        // As unique as the directory, also for tests in other processes.
        let socket = format!("ringfence-test{}", directory.path().file_name().unwrap().to_str().unwrap());
        let nameless = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&socket).unwrap()).unwrap();
        let named = UnixListener::bind(directory.path().join("socket")).unwrap();
        thread::spawn(move || tcp.incoming().for_each(|client| drop(client.unwrap().write_all(b"hello"))));
        for listener in [nameless, named] {
            thread::spawn(move || listener.incoming().for_each(|client| drop(client.unwrap().write_all(b"hello"))));
        }
        Self { directory, port, socket }
    }

    /// The socket with a path.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.directory.path().join("socket")
    }
}

impl Default for EscapeHost {
    fn default() -> Self {
        Self::new()
    }
}

/// A workspace with secrets in it, and files beside it.
#[derive(Debug)]
pub struct EscapeStage {
    /// The workspace is `ws` in it.
    pub directory: TempDir,
    /// The host has pipes open, one of them with data in it, and locked files. A program that notices them has escaped.
    _open_fds: Vec<OwnedFd>,
}

impl EscapeStage {
    /// A new one.
    ///
    /// # Panics
    /// If it cannot be made.
    #[must_use]
    pub fn new(host: &EscapeHost) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let write = |name: &str, text: &str| {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for name in ["outside/secret.txt", "outside/secret.txt.spare", "home/.ssh/id_ed25519", "beside/shown.txt"] {
            write(name, "secret of the host");
        }
        for name in ["ws/.env", "ws/deep/er/id_rsa", "ws/.ringfence/kept"] {
            write(name, "masked secret");
        }
        write("ws/plain.txt", "open");
        symlink(root.join("outside/secret.txt"), root.join("ws/planted-link")).unwrap();
        symlink(root.join("outside"), root.join("ws/planted-directory-link")).unwrap();
        symlink(".env", root.join("ws/link-to-env")).unwrap();
        let hold = |name: &str, flags| open(root.join(name), flags | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let pipe = |name: &str, flags| {
            mkfifoat(CWD, root.join(name), Mode::from_raw_mode(0o600)).unwrap();
            hold(name, flags)
        };
        let mut held = Vec::new();
        for place in ["ws", "beside"] {
            fs::hard_link(host.path(), root.join(place).join("socket")).unwrap();
            held.push(pipe(&format!("{place}/pipe"), OFlags::RDONLY | OFlags::NONBLOCK));
        }
        let filled = pipe("beside/filled", OFlags::RDWR);
        rustix::io::write(&filled, b"of the host").unwrap();
        held.push(filled);
        for name in ["ws/plain.txt", "beside/shown.txt"] {
            let locked = hold(name, OFlags::RDONLY);
            flock(&locked, FlockOperation::LockExclusive).unwrap();
            held.push(locked);
        }
        Self { directory, _open_fds: held }
    }

    /// A path of the stage.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The program of an attempt, with the words of this stage, of its host and of the caller filled in.
    #[must_use]
    pub fn program(&self, host: &EscapeHost, code: &str, own: &[(&str, String)]) -> String {
        let hostname = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let words = [
            ("{OUT}", self.path("outside/secret.txt").display().to_string()),
            ("{HOME}", self.path("home").display().to_string()),
            ("{ROOT}", self.directory.path().display().to_string()),
            ("{PATH}", host.path().display().to_string()),
            ("{PORT}", host.port.to_string()),
            ("{SOCKET}", host.socket.clone()),
            ("{HOSTNAME}", hostname),
        ];
        let words = words.iter().chain(own);
        words.fold(format!("{PRELUDE}\n{code}\n"), |text, (word, value)| text.replace(word, value))
    }

    /// Every entry with what can be seen of it.
    ///
    /// # Panics
    /// If an entry cannot be read.
    #[must_use]
    pub fn everything(&self) -> BTreeMap<PathBuf, String> {
        let mut found = BTreeMap::new();
        let mut left = vec![self.directory.path().to_owned()];
        while let Some(path) = left.pop() {
            let it = fs::symlink_metadata(&path).unwrap();
            let contents = match it.file_type() {
                kind if kind.is_file() => fs::read_to_string(&path).unwrap(),
                kind if kind.is_symlink() => fs::read_link(&path).unwrap().display().to_string(),
                kind if kind.is_fifo() || kind.is_socket() => String::new(),
                _ => {
                    left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
                    String::new()
                }
            };
            // The names of the socket are as many as there are stages.
            let names = if it.file_type().is_socket() { 0 } else { it.nlink() };
            let looks = format!("{:o} {} {}:{} {names} {:?}", it.mode(), it.ino(), it.uid(), it.gid(), it.modified());
            found.insert(path, looks + &contents);
        }
        found
    }
}
