//! `cargo xtask llmock`: our clients of models against `llmock`, which breaks on demand and grades who talks to it.
//!
//! It is fetched into `target/tmp/llmock` on the first run, which needs the network and `python3`. A failed download is
//! reported, and counts as a failure: nothing was tested then.

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::external_tools::{ChildGuard, fetch_python_package};
use crate::{print_status, root};

const LLMOCK: &str = "llmock==0.2.2";

/// False if llmock had a complaint, or could not be had.
pub(crate) fn run() -> bool {
    let dir = root().join("target/tmp/llmock");
    let Some(programs) = fetch_python_package(&dir, LLMOCK) else { return false };
    let Some((_server, address)) = start(&programs) else {
        print_status("llmock did not start");
        return false;
    };
    crate::run_cargo(&["run", "--quiet", "--package", "ringfence-agent", "--example", "llmock", "--", &address], &[])
}

/// Starts the server on a port that was free just before, and waits until it answers.
fn start(programs: &Path) -> Option<(ChildGuard, String)> {
    let port = TcpListener::bind("127.0.0.1:0").ok()?.local_addr().ok()?.port();
    let mut command = Command::new(programs.join("llmock"));
    command.args(["serve", "--log-level", "error", "--port", &port.to_string()]);
    let mut server = ChildGuard(command.stdout(Stdio::null()).spawn().ok()?);
    let address = format!("127.0.0.1:{port}");
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(30) && server.0.try_wait().is_ok_and(|ended| ended.is_none()) {
        if TcpStream::connect(&address).is_ok() {
            return Some((server, address));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    None
}
