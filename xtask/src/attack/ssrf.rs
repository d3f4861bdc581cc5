//! SSRF attempts: URLs that lead to this machine, to a private network or to a cloud's metadata, directly and behind a
//! redirect.
//!
//! They are tried in a network namespace, in which such addresses have servers that count their requests, and one
//! address is public. A server with a request was reached, whatever the tool replied. A tool that does not reach the
//! public server shows nothing, and is left out.

use std::fs;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use super::mcp_client::{AttackClient, AttackReply};
use super::scoreboard::{AttackOutcome, ScoreCell, ScoreRow, Scoreboard};
use crate::{print_status, root};

const FETCH_SERVER_PACKAGE: &str = "mcp-server-fetch==2026.10.24";
const PUBLIC_ADDRESS: &str = "203.0.114.10";
const PRIVATE_LISTENERS: [&str; 4] = ["127.0.0.1:80", "[::1]:80", "10.0.0.5:80", "169.254.169.254:80"];
const NETWORK_SETUP: &str = "ip link set lo up && ip addr add 203.0.114.10/32 dev lo && ip addr add 10.0.0.5/32 dev lo && \
                       ip addr add 169.254.169.254/32 dev lo && exec \"$@\"";

/// Hosts that lead inward as they are written.
const PRIVATE_HOST_SPELLINGS: &[(&str, &[&str])] = &[
    (
        "loopback, numeric forms",
        &["127.0.0.1", "127.1", "2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "017700000001"],
    ),
    ("loopback, unspecified address", &["0", "0.0.0.0"]),
    (
        "loopback, encoded and Unicode forms",
        &["127.0.0.1.", "%31%32%37.0.0.1", "\u{ff11}\u{ff12}\u{ff17}.0.0.1", "127\u{3002}0.0.1"],
    ),
    ("loopback, by name", &["localhost", "LOCALHOST", "localhost.", "a.localhost"]),
    ("loopback, IPv6", &["[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::]"]),
    ("loopback, after user info", &["user@127.0.0.1", "203.0.114.10@127.0.0.1"]),
    ("a private network", &["10.0.0.5", "10.5", "0xa000005", "167772165"]),
    ("cloud metadata services", &["169.254.169.254", "0xa9fea9fe", "2852039166", "0251.0376.0251.0376"]),
];

/// The board of a run in a network of its own.
pub(crate) fn run(ours: &Path) -> io::Result<Scoreboard> {
    let mut notes = Vec::new();
    let dir = root().join("target/tmp/attack-web");
    let stage = dir.join(format!("stage-{}", std::process::id()));
    fs::create_dir_all(stage.join("ws"))?;
    fs::create_dir_all(stage.join("config/ringfence"))?;
    // The fence is to be tested and not an approval request without an approver.
    fs::write(stage.join("config/ringfence/config.toml"), "[[rules]]\ndecision = \"allow\"\neffect = \"fetch\"\n")?;
    let fetch = fetch_peer(&dir);
    if fetch.is_none() {
        notes.push("skipped: `mcp-server-fetch`, which cannot be fetched here".to_owned());
    }
    let mut command = Command::new("unshare");
    command.args(["-rn", "sh", "-c", NETWORK_SETUP, "sh"]).arg(std::env::current_exe()?).args(["attack", "--inside"]);
    command.arg(ours).arg(&stage).args(fetch).stderr(Stdio::inherit());
    let ended = command.output();
    // A directory that cannot be removed does no harm.
    let _ = fs::remove_dir_all(&stage);
    let report: Value = serde_json::from_slice(&ended?.stdout).unwrap_or_default();
    let mut board = Scoreboard::from_json(&report);
    if board.rows.is_empty() {
        notes.push("skipped: this system does not allow private network namespaces (`unshare -rn`, `ip`)".to_owned());
    }
    board.title = "SSRF attempts with web tools".to_owned();
    board.notes.extend(notes);
    Ok(board)
}

fn fetch_peer(dir: &Path) -> Option<PathBuf> {
    let program = dir.join("venv/bin/mcp-server-fetch");
    if !program.exists() {
        // Whether it is there is what counts.
        let _ = Command::new("python3").args(["-m", "venv"]).arg(dir.join("venv")).status();
        let _ = Command::new(dir.join("venv/bin/python"))
            .args(["-m", "pip", "install", "--quiet", FETCH_SERVER_PACKAGE])
            .status();
    }
    program.exists().then_some(program)
}

/// In that network: prints the board as JSON.
pub(crate) fn run_in_namespace(ours: &str, stage: &str, fetch: Option<&str>) -> bool {
    let board = attack_in_namespace(Path::new(ours), Path::new(stage), fetch.map(Path::new));
    let report = board.and_then(|board| writeln!(io::stdout().lock(), "{}", board.json()));
    if let Err(error) = &report {
        print_status(&format!("the ways inward cannot be tried: {error}"));
    }
    report.is_ok()
}

fn attack_in_namespace(ours: &Path, stage: &Path, fetch: Option<&Path>) -> io::Result<Scoreboard> {
    let (inner, outer) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    for address in PRIVATE_LISTENERS {
        serve(address, &inner)?;
    }
    serve(&format!("{PUBLIC_ADDRESS}:80"), &outer)?;
    let mut board = Scoreboard { title: String::new(), columns: Vec::new(), rows: Vec::new(), notes: Vec::new() };
    let mut tools = vec![SsrfFetcher::Ours(ours.to_owned(), stage.to_owned())];
    if let Some(program) = fetch {
        let mut command = Command::new(program);
        command.arg("--ignore-robots-txt");
        match AttackClient::connect(command) {
            Some(client) => tools.push(SsrfFetcher::Fetch(Box::new(client))),
            None => board.notes.push("skipped: `mcp-server-fetch`, which does not start here".to_owned()),
        }
    }
    tools.push(SsrfFetcher::Curl);
    tools.retain_mut(|tool| {
        let before = outer.load(Ordering::SeqCst);
        tool.get(&format!("http://{PUBLIC_ADDRESS}/"));
        let reaches = outer.load(Ordering::SeqCst) > before;
        if !reaches {
            board.notes.push(format!("skipped: `{}`, which does not reach a public address here", tool.title()));
        }
        reaches
    });
    board.columns = tools.iter().map(|tool| tool.title().to_owned()).collect();
    for (kind, prefix) in [("", "http://"), (", behind a redirect", "http://203.0.114.10/go?to=http://")] {
        for (name, hosts) in PRIVATE_HOST_SPELLINGS {
            let visit = |tool: &mut SsrfFetcher, host: &str| {
                let before = inner.load(Ordering::SeqCst);
                let is_answered = tool.get(&format!("{prefix}{host}/"));
                match inner.load(Ordering::SeqCst) > before {
                    true => AttackOutcome::Leaked,
                    false if is_answered => AttackOutcome::Held,
                    false => AttackOutcome::Hung,
                }
            };
            // A target that the control does not reach shows nothing.
            let shows = |host: &&str| visit(&mut SsrfFetcher::Curl, host) == AttackOutcome::Leaked;
            let hosts: Vec<&str> = hosts.iter().copied().filter(shows).collect();
            let cells = tools.iter_mut().map(|tool| {
                let outcomes: Vec<AttackOutcome> = hosts.iter().map(|host| visit(tool, host)).collect();
                let bad = outcomes.iter().filter(|outcome| **outcome != AttackOutcome::Held).count();
                let worst = outcomes.iter().copied().max().unwrap_or(AttackOutcome::NotApplicable);
                ScoreCell::new(worst, format!("{bad} of {}", hosts.len()))
            });
            let cells = cells.collect();
            if !hosts.is_empty() {
                board.rows.push(ScoreRow { name: format!("{name}{kind}"), cells });
            }
        }
    }
    Ok(board)
}

enum SsrfFetcher {
    /// The program, and where its config is.
    Ours(PathBuf, PathBuf),
    Fetch(Box<AttackClient>),
    Curl,
}

impl SsrfFetcher {
    fn title(&self) -> &'static str {
        match self {
            Self::Ours(..) => "ringfence",
            Self::Fetch(_) => "mcp-server-fetch",
            Self::Curl => "control: curl -L",
        }
    }

    /// Whether there was a reply, of any content.
    fn get(&mut self, url: &str) -> bool {
        match self {
            Self::Ours(program, stage) => {
                let arguments = json!({"url": url, "timeout": 5}).to_string();
                let mut command = Command::new(program);
                command.args(["call", "web_fetch", &arguments, "--workspace"]).arg(stage.join("ws"));
                command.env("RINGFENCE_STATE_DIR", stage.join("state")).env("XDG_CONFIG_HOME", stage.join("config"));
                let ended = command.env("HOME", stage).stdin(Stdio::null()).output();
                ended.is_ok_and(|ended| serde_json::from_slice::<Value>(&ended.stdout).is_ok())
            }
            Self::Fetch(client) => {
                matches!(client.call("fetch", &json!({"url": url, "raw": true})), AttackReply::Message(_))
            }
            Self::Curl => {
                let mut command = Command::new("curl");
                command.args(["--location", "--silent", "--max-time", "5", "--noproxy", "*", url]).output().is_ok()
            }
        }
    }
}

/// Counts requests, and redirects those that ask for it, until the process ends.
fn serve(address: &str, visits: &Arc<AtomicUsize>) -> io::Result<()> {
    let listener = TcpListener::bind(address)?;
    let visits = Arc::clone(visits);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            visits.fetch_add(1, Ordering::SeqCst);
            let mut line = String::new();
            // One who says nothing came all the same.
            let _ = BufReader::new(&stream).read_line(&mut line);
            let to = line.split_once("?to=").and_then(|(_, rest)| rest.split(' ').next());
            let answer = match to {
                Some(to) => format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\n"),
                None => "HTTP/1.1 200 OK\r\n".to_owned(),
            };
            let _ = stream.write_all(
                format!("{answer}Content-Type: text/plain\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
                    .as_bytes(),
            );
        }
    });
    Ok(())
}
