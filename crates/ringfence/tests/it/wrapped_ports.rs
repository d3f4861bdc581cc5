//! Ports of `ringfence run`: real servers inside and clients outside, and the other way round.
//!
//! Not here: what rules say about ports (`ringfence-kernel`), and the errors of ports (`published_ports.rs`).

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::lchown;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

use ringfence_testkit::executable::copy_executable;
use ringfence_testkit::patience::wait_for;
use ringfence_testkit::requirement::{Requirement, skip_without};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use serde_json::{Value, json};

use crate::browser::TestBrowser;
use crate::site::{CliOutput, PROGRAM, TestSite, cli_output};
use crate::wrapped_terminal::TmuxTerminal;

/// The user of the tests that need a plain one.
const PLAIN_UID: u32 = 65_534;

/// Answers with the headers of the request, at the IPv6 loopback address only.
const NODE_SERVER: &str = "const http = require('http'); http.createServer((request, reply) => \
    reply.end(JSON.stringify({...request.headers, placeholder: process.env.ANTHROPIC_API_KEY}))).listen(5173, '::1')";

const PAGE: &str = "<!doctype html><p id=out></p><script>fetch('data.json').then(reply => reply.json())\
    .then(data => { document.querySelector('#out').innerText = data.text; });</script>";

/// Asks a service of this machine, and another one, and prints both.
const CLIENT: &str = "
import socket, sys
for port in sys.argv[1:]:
    try:
        with socket.create_connection(('127.0.0.1', int(port)), timeout=20) as stream:
            stream.sendall(b'from inside')
            stream.shutdown(socket.SHUT_WR)
            print(stream.makefile().read())
    except OSError as error: print(error.strerror)
";

/// A run that is ended when this is dropped.
struct RunningProgram(Child);

impl Drop for RunningProgram {
    fn drop(&mut self) {
        let pid = Pid::from_raw(i32::try_from(self.0.id()).unwrap()).unwrap();
        // The program gets it, and its run ends in the ordinary way.
        let _ = kill_process(pid, Signal::TERM);
        let _ = self.0.wait();
    }
}

/// The program with these options, around a command, as a user.
fn wrapped(site: &TestSite, user: Option<u32>, options: &[&str], command: &[&str]) -> Command {
    let binary = site.root().join("bin/ringfence");
    if !binary.exists() {
        fs::create_dir_all(binary.parent().unwrap()).unwrap();
        copy_executable(Path::new(PROGRAM), &binary);
    }
    give_to(site.root(), user);
    let mut program = site.program(&binary);
    program.arg("--workspace").arg(&site.workspace).args(["--approve", "never", "run"]).args(options).arg("--");
    program.args(command).env("PATH", "/usr/local/bin:/usr/bin:/bin");
    if let Some(user) = user {
        program.uid(user).gid(user);
    }
    program
}

fn start(mut command: Command) -> RunningProgram {
    RunningProgram(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
}

/// Makes a tree a user's.
fn give_to(path: &Path, user: Option<u32>) {
    lchown(path, user, user).unwrap();
    if path.symlink_metadata().unwrap().is_dir() {
        fs::read_dir(path).unwrap().for_each(|entry| give_to(&entry.unwrap().path(), user));
    }
}

/// This user, and where that is root, a plain one.
fn users() -> Vec<Option<u32>> {
    match geteuid().is_root() {
        true => vec![None, Some(PLAIN_UID)],
        false => {
            skip_without(Requirement::Root, "the ports are those of this user only");
            vec![None]
        }
    }
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// What a server answers, as soon as there is one.
fn get(port: u16, path: &str, header: &str) -> String {
    wait_for(&format!("an answer at port {port}"), || {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
        write!(stream, "GET {path} HTTP/1.0\r\nhost: localhost\r\n{header}\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.contains("\r\n\r\n").then_some(answer)
    })
}

/// Records of the audit log that have an access like this.
fn records(site: &TestSite, event: &str, action: &str, path: &str) -> Vec<Value> {
    let log = fs::read_to_string(site.state.join("audit/000001.jsonl")).unwrap();
    let records = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let has = |record: &Value| {
        let accesses = record["accesses"].as_array().into_iter().flatten();
        record["event"] == event
            && accesses.into_iter().any(|access| access["action"] == action && access["path"] == path)
    };
    records.filter(has).collect()
}

#[test]
fn a_server_inside_is_reached_at_its_published_port() {
    for user in users() {
        let site = TestSite::new();
        site.write("hello.txt", "from the jail\n");
        let port = free_port();
        let command = ["python3", "-m", "http.server", "8000", "--bind", "127.0.0.1"];
        let run = start(wrapped(&site, user, &["--publish", &format!("{port}:8000")], &command));
        assert!(get(port, "/hello.txt", "").ends_with("\r\n\r\nfrom the jail\n"), "{user:?}");
        // More connections than there may be at once: each ends, and the next one is served.
        for _ in 0..100 {
            assert!(get(port, "/hello.txt", "").ends_with("from the jail\n"));
        }
        drop(run);
        assert!(TcpStream::connect(("127.0.0.1", port)).is_err(), "nothing listens after the run");
        assert_eq!(records(&site, "begin", "listen", &format!("127.0.0.1:{port} to 8000")).len(), 1);
    }
}

/// The server has the placeholder, and what comes to it through its port is what was sent.
#[test]
fn a_published_page_gets_no_key() {
    let has_node = Command::new("node").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !has_node.is_ok_and(|status| status.success()) {
        return skip_without(Requirement::Node, "a server of its own");
    }
    let site = TestSite::new();
    site.write("server.js", NODE_SERVER);
    let (port, key) = (free_port(), "sk-ant-api03-77b1d0e5c94f4a20");
    let options = ["--profile", "claude", "--publish", &format!("{port}:5173")];
    // The profile has arguments for its own agent.
    let mut command = wrapped(&site, None, &options, &["sh", "-c", "exec node server.js"]);
    command.env("ANTHROPIC_API_KEY", key);
    let _run = start(command);
    let body = |header: &str| -> Value {
        let answer = get(port, "/", header);
        serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
    };
    let placeholder = body("")["placeholder"].as_str().unwrap().to_owned();
    assert!(placeholder != key && placeholder.starts_with("sk-ant"), "{placeholder}");
    let headers = body(&format!("x-api-key: {placeholder}\r\n"));
    let expected = json!({"host": "localhost", "x-api-key": placeholder, "placeholder": placeholder});
    let mut headers = headers.as_object().unwrap().clone();
    headers.remove("connection");
    assert_eq!(Value::from(headers), expected);
}

#[test]
fn a_browser_opens_a_page_of_a_server_inside() {
    let Some(browser) = TestBrowser::start() else { return };
    let site = TestSite::new();
    site.write("index.html", PAGE);
    site.write("data.json", r#"{"text": "drawn by the page"}"#);
    let port = free_port();
    let _run = start(wrapped(
        &site,
        None,
        &["--publish", &format!("{port}:8000")],
        &["python3", "-m", "http.server", "8000", "--bind", "127.0.0.1"],
    ));
    get(port, "/", "");
    browser.open(&format!("http://127.0.0.1:{port}/"));
    browser.until_text("#out", "drawn by the page");
}

fn ended(command: &mut Command) -> CliOutput {
    cli_output(command.output().unwrap())
}

#[test]
fn a_port_that_cannot_be_published_keeps_the_program_from_starting() {
    let site = TestSite::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let privileged = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap();
    let needs_right = privileged.trim().parse::<u16>().unwrap() > 80;
    let cases = [
        (true, None, port.as_str(), "is in use by another program; end that, or choose another port outside"),
        (true, None, "192.0.2.1:8080:80", "`192.0.2.1` is not an address of this machine"),
        (true, None, "8080:3128", "port 3128 is that of the sandbox's own proxy"),
        // The site is this user's from then on.
        (
            needs_right && geteuid().is_root(),
            Some(PLAIN_UID),
            "80:3000",
            "choose one from 1024 on: `--publish 8080:3000`",
        ),
    ];
    for (_, user, publish, expected) in cases.into_iter().filter(|(is_possible, ..)| *is_possible) {
        let ended = ended(&mut wrapped(&site, user, &["--publish", publish], &["sh", "-c", "echo started"]));
        assert!(ended.err.contains(expected) && !ended.out.contains("started"), "{publish}: {ended:?}");
        assert_ne!(ended.code, Some(0), "{publish}");
    }
}

#[test]
fn rules_close_ports_both_ways() {
    for (rule, options) in [
        ("effect = \"listen\"", ["--publish", "8080"]),
        ("host = \"127.0.0.1:8080\"", ["--publish", "8080:80"]),
        ("host = \"127.0.0.1\"", ["--connect", "8080"]),
        ("effect = \"fetch\"", ["--connect", "8080"]),
    ] {
        let site = TestSite::new();
        fs::create_dir_all(site.config.join("ringfence")).unwrap();
        let text = format!("[[rules]]\nname = \"closed\"\ndecision = \"deny\"\n{rule}\n");
        fs::write(site.config.join("ringfence/config.toml"), text).unwrap();
        let ended = ended(&mut wrapped(&site, None, &options, &["sh", "-c", "echo started"]));
        assert!(ended.err.contains("rule `closed`") && !ended.out.contains("started"), "{rule}: {ended:?}");
    }
}

#[test]
fn a_service_of_this_machine_is_reached_by_its_port_and_no_other_is() {
    for user in users() {
        let site = TestSite::new();
        site.write("client.py", CLIENT);
        let [service, other] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [port, closed] = [&service, &other].map(|listener| listener.local_addr().unwrap().port().to_string());
        // It speaks first, as databases do, and no HTTP.
        let served = thread::spawn(move || {
            let (mut stream, _) = service.accept().unwrap();
            stream.write_all(b"hello ").unwrap();
            let mut asked = String::new();
            stream.read_to_string(&mut asked).unwrap();
            stream.write_all(asked.to_uppercase().as_bytes()).unwrap();
        });
        let command = ["python3", "client.py", &port, &closed];
        let ended = ended(&mut wrapped(&site, user, &["--connect", &port], &command));
        assert_eq!(ended.out, "hello FROM INSIDE\nConnection refused\n", "{user:?}: {ended:?}");
        served.join().unwrap();
        let address = format!("127.0.0.1:{port}");
        assert_eq!(records(&site, "begin", "fetch", &address).len(), 1);
        assert_eq!(records(&site, "access", "fetch", &address).len(), 1);
    }
}

/// At the person's terminal, while the program has it.
#[test]
fn a_port_at_which_a_program_listens_is_offered_and_published_after_a_yes() {
    let site = TestSite::new();
    site.write("hello.txt", "from the jail\n");
    let Some(terminal) = TmuxTerminal::start(&site) else { return };
    terminal.until("ready>");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    // Below the ports that the kernel chooses.
    let inside = 20_000 + taken.local_addr().unwrap().port() % 10_000;
    terminal.line(&format!(
        "PATH=/usr/bin:/bin {PROGRAM} run --end drop -- python3 -m http.server {inside} --bind 127.0.0.1"
    ));
    terminal.until("publish a port of the program at");
    terminal.until("[y] yes");
    let screen = terminal.screen();
    let outside = screen.split("127.0.0.1:").nth(1).unwrap();
    let outside: u16 = outside.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap();
    assert!(TcpStream::connect(("127.0.0.1", outside)).is_err(), "not before the answer");
    // The dialog takes no key for a moment.
    wait_for("the answer", || {
        terminal.key("y");
        (!terminal.screen().contains("[y] yes")).then_some(())
    });
    assert!(get(outside, "/hello.txt", "").ends_with("from the jail\n"));
    terminal.key("C-c");
    terminal.until("ready>");
    let path =
        if outside == inside { format!("127.0.0.1:{outside}") } else { format!("127.0.0.1:{outside} to {inside}") };
    assert_eq!(records(&site, "access", "listen", &path).len(), 1);
}
