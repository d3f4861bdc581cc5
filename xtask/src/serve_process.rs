//! A `ringfence serve` in a process of its own, with a workspace and a state of its own, for commands that call it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::root;

/// The server, until it is dropped.
pub(crate) struct ServeProcess {
    child: Child,
    pub(crate) address: String,
    code: String,
    program: PathBuf,
    state: PathBuf,
}

impl Drop for ServeProcess {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl ServeProcess {
    /// Builds the program and starts it on an empty workspace below a directory.
    pub(crate) fn start(dir: &Path, arguments: &[&str], release: bool) -> Option<Self> {
        let profile: &[&str] = if release { &["--release"] } else { &[] };
        if !crate::run_cargo(&[&["build", "--quiet", "--package", "ringfence"], profile].concat(), &[]) {
            return None;
        }
        let program = root().join("target").join(if release { "release" } else { "debug" }).join("ringfence");
        let (workspace, state) = (dir.join("workspace"), dir.join("state"));
        for fresh in [&workspace, &state] {
            // It is not there the first time.
            let _ = std::fs::remove_dir_all(fresh);
            std::fs::create_dir_all(fresh).ok()?;
        }
        std::fs::write(workspace.join("a.txt"), vec![b'a'; 4096]).ok()?;
        let mut command = Command::new(&program);
        command.env("RINGFENCE_STATE_DIR", &state).args([
            "serve",
            "--print-link",
            "--address",
            "127.0.0.1:0",
            "--workspace",
        ]);
        let mut child = command.arg(&workspace).args(arguments).stderr(Stdio::piped()).spawn().ok()?;
        let mut value = BufReader::new(child.stderr.take()?);
        let (mut address, mut code) = (None, None);
        while code.is_none() {
            let mut line = String::new();
            if value.read_line(&mut line).ok()? == 0 {
                return None;
            }
            if let Some(rest) = line.split("http://").nth(1) {
                address = address.or_else(|| Some(rest.split('/').next()?.to_owned()));
                code = rest.split("#login=").nth(1).map(|code| code.trim().to_owned());
            }
        }
        std::thread::spawn(move || std::io::copy(&mut value, &mut std::io::sink()));
        Some(Self { child, address: address?, code: code?, program, state })
    }

    /// The token of the page.
    pub(crate) fn page_token(&self) -> Option<String> {
        let body = format!("{{\"code\":\"{}\"}}", self.code);
        let reply = self.connect()?.post("/v1/login", "", &body)?;
        text_of(&reply, "token")
    }

    /// A token of an agent.
    pub(crate) fn agent_token(&self, name: &str) -> Option<String> {
        let mut command = Command::new(&self.program);
        let made = command.env("RINGFENCE_STATE_DIR", &self.state).args(["token", "new", name]).output().ok()?;
        Some(String::from_utf8(made.stdout).ok()?.trim().to_owned())
    }

    /// Kilobytes of memory that are its own now.
    pub(crate) fn resident(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse().ok())
    }

    pub(crate) fn connect(&self) -> Option<ServeConnection> {
        let stream = TcpStream::connect(&self.address).ok()?;
        stream.set_nodelay(true).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(60))).ok()?;
        Some(ServeConnection { lines: BufReader::new(stream), host: self.address.clone() })
    }
}

/// A connection that is kept.
pub(crate) struct ServeConnection {
    lines: BufReader<TcpStream>,
    host: String,
}

impl ServeConnection {
    /// Sends a body, and gives the one that comes back. Nothing where the answer is not a good one.
    pub(crate) fn post(&mut self, path: &str, token: &str, body: &str) -> Option<String> {
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            self.host,
            body.len()
        );
        self.lines.get_mut().write_all(head.as_bytes()).ok()?;
        let mut status = String::new();
        self.lines.read_line(&mut status).ok()?;
        let mut length = 0;
        loop {
            let mut line = String::new();
            self.lines.read_line(&mut line).ok()?;
            let line = line.trim_end().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().ok()?;
            }
        }
        let mut reply = vec![0; length];
        self.lines.read_exact(&mut reply).ok()?;
        status.contains(" 20").then(|| String::from_utf8_lossy(&reply).into_owned())
    }
}

/// A text by its key, in JSON that has it once and without escapes.
pub(crate) fn text_of(json: &str, key: &str) -> Option<String> {
    let (_, rest) = json.split_once(&format!("\"{key}\":\""))?;
    Some(rest.split('"').next()?.to_owned())
}
