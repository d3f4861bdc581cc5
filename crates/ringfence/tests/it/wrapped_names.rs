//! Transparent capture in `ringfence run`: programs that know no proxy are decided about by name, and nothing leaves.
//!
//! Not here: the sockets that capture them (`ringfence-sandbox`), and what is served on these (`ringfence-web`).

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use ringfence_testkit::requirement::{Requirement, print_note, skip_without};
use serde_json::Value;

use crate::site::{CliOutput, PROGRAM, TestSite, cli_output};

/// A rule that denies every host.
const NO_HOSTS: &str = "[[rules]]\nname = \"no hosts\"\ndecision = \"deny\"\neffect = \"fetch\"\n";

/// A network with one way out, whose packets are counted: a pair of interfaces, of which the other end takes everything.
const COUNTED_NETWORK: &str = "ip link set lo up && for which in all default; do \
    echo 1 > /proc/sys/net/ipv6/conf/$which/disable_ipv6; done && ip link add out0 type veth peer name end0 && \
    ip addr add 203.0.114.1/24 dev out0 && ip link set out0 up && ip link set end0 up && \
    ip route add default via 203.0.114.2 && { \"$@\"; code=$?; cat /proc/net/dev >&2; exit $code; }";

/// Connects by name, and prints the time that a refusal takes by port. A name that is asked for twice has the same address.
const SOCKETS: &str = r#"
import socket, ssl, time
tls = ssl.create_default_context()
def refused(host, port, first):
    began = time.monotonic()
    with socket.create_connection((host, port), timeout=20) as stream:
        try:
            if port == 443: tls.wrap_socket(stream, server_hostname=host)
            stream.sendall(first)
            got = stream.recv(100)
        except (ConnectionResetError, ssl.SSLError) as error:
            got = str(error).encode()
    return got, (time.monotonic() - began) * 1000
refused("python.ringfence-test.org", 5432, b"")
assert socket.gethostbyname("PYTHON.ringfence-test.org.") == socket.gethostbyname("python.ringfence-test.org")
for port, first in ((22, b""), (80, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"), (443, b""), (5432, b"")):
    taken = sorted(refused("timed.ringfence-test.org", port, first)[1] for _ in range(20))
    print(f"time port {port}: median {taken[10]:.1f} ms, longest {taken[-1]:.1f} ms")
"#;

const STATIC_PROGRAM: &str = r#"
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
int main(void) {
    struct addrinfo wanted, *found;
    memset(&wanted, 0, sizeof wanted);
    wanted.ai_socktype = SOCK_STREAM;
    if (getaddrinfo("static.ringfence-test.org", "6379", &wanted, &found)) return puts("no name"), 1;
    int stream = socket(found->ai_family, SOCK_STREAM, 0);
    if (connect(stream, found->ai_addr, found->ai_addrlen)) return puts("no connection"), 1;
    char byte;
    return read(stream, &byte, 1) > 0;
}
"#;

/// A program, the host and port by which it is to be known, and a part of what it prints.
struct NamedClient {
    requirement: Requirement,
    program: &'static str,
    command: &'static str,
    authority: &'static str,
    prints: &'static str,
}

const CLIENTS: [NamedClient; 6] = [
    NamedClient {
        requirement: Requirement::Curl,
        program: "curl",
        command: "curl -sS -m 20 http://curl.ringfence-test.org/x",
        authority: "curl.ringfence-test.org:80",
        prints: "no hosts",
    },
    NamedClient {
        requirement: Requirement::Curl,
        program: "curl",
        command: "curl -sS -m 20 --noproxy '*' https://curl-tls.ringfence-test.org/x",
        authority: "curl-tls.ringfence-test.org:443",
        prints: "access denied",
    },
    NamedClient {
        requirement: Requirement::Node,
        program: "node",
        command: "node -e \"fetch('https://node.ringfence-test.org/').catch(e => console.log(e.cause.message))\"",
        authority: "node.ringfence-test.org:443",
        prints: "access denied",
    },
    NamedClient {
        requirement: Requirement::Ssh,
        program: "ssh",
        command: "git ls-remote ssh://git@git.ringfence-test.org/x.git",
        authority: "git.ringfence-test.org:22",
        prints: "git.ringfence-test.org",
    },
    NamedClient {
        requirement: Requirement::Python,
        program: "python3",
        command: "python3 sockets.py",
        authority: "python.ringfence-test.org:5432",
        prints: "time port 443",
    },
    NamedClient {
        requirement: Requirement::MuslGcc,
        program: "musl-gcc",
        command: "./static",
        authority: "static.ringfence-test.org:6379",
        prints: "",
    },
];

#[test]
fn programs_without_proxy_support_are_refused_by_name_and_send_nothing_out() {
    if !can_count_packets() {
        return skip_without(Requirement::NetworkNamespaces, "`unshare --net` or `ip` is refused or missing");
    }
    let site = TestSite::new();
    fs::create_dir_all(site.config.join("ringfence")).unwrap();
    fs::write(site.config.join("ringfence/config.toml"), NO_HOSTS).unwrap();
    site.write("sockets.py", SOCKETS);
    compile_static(&site);
    let clients: Vec<&NamedClient> = CLIENTS.iter().filter(|client| is_there(client)).collect();
    let mut script = "unset http_proxy https_proxy HTTP_PROXY HTTPS_PROXY no_proxy NO_PROXY\n".to_owned();
    for client in &clients {
        script += &format!("echo '== {}'; {} 2>&1\n", client.authority, client.command);
    }
    // The control: a question to a name server outside is counted.
    let asks = "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('203.0.114.9', 53))";
    let bare = counted(&site, &["/usr/bin/python3", "-c", asks]);
    assert!(packets_sent(&bare) > 0, "{bare:?}");
    let workspace = site.workspace.to_str().unwrap();
    let ended = counted(&site, &[PROGRAM, "--workspace", workspace, "run", "--", "sh", "-c", &script]);
    assert_eq!(packets_sent(&ended), 0, "{ended:?}");
    let refused = refused_hosts(&site);
    let mut sections = ended.out.split("== ");
    for client in clients {
        let NamedClient { authority, prints, .. } = client;
        assert!(refused.contains(*authority), "{authority}: {refused:?}\n{ended:?}");
        let printed = sections.find(|section| section.starts_with(authority)).unwrap();
        assert!(printed.contains(prints), "{authority}: {printed}");
    }
    let timed = "timed.ringfence-test.org";
    let unknown: Vec<&String> = refused.iter().filter(|host| !host.starts_with(timed)).collect();
    assert!(unknown.len() <= CLIENTS.len(), "others were reached: {unknown:?}");
    ended.out.lines().filter_map(|line| line.strip_prefix("time ")).for_each(print_note);
}

/// A name that was never asked for has no address, and an address that no name has is not a way around the names.
#[test]
fn an_address_without_a_name_is_refused_and_recorded_as_one() {
    let site = TestSite::new();
    let script = "import socket\n\
        for address in (('198.18.9.9', 443), ('198.18.9.9', 5432)):\n    \
        with socket.create_connection(address, timeout=20) as stream:\n        \
        try: print(stream.recv(10))\n        except ConnectionResetError: print(b'')\n\
        for address in (('192.0.2.1', 80), ('203.0.113.7', 443)):\n    \
        try: socket.create_connection(address, timeout=20)\n    except OSError as error: print(error.strerror)\n";
    site.write("addresses.py", script);
    let mut program = site.program_without_arguments();
    program.arg("--workspace").arg(&site.workspace).args(["--approve", "never", "run", "--", "sh", "-c"]);
    let ended = cli_output(program.arg("python3 addresses.py").output().unwrap());
    assert_eq!(ended.out, "b''\nb''\nNetwork is unreachable\nNetwork is unreachable\n", "{ended:?}");
    let refused = refused_hosts(&site);
    assert_eq!(refused, BTreeSet::from(["198.18.9.9:443".to_owned(), "198.18.9.9:5432".to_owned()]));
}

/// The hosts of refused connections in the audit log.
fn refused_hosts(site: &TestSite) -> BTreeSet<String> {
    let log = fs::read_to_string(site.state.join("audit/000001.jsonl")).unwrap();
    let records = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let connections = records.filter(|record| record["event"] == "access");
    connections
        .map(|record| {
            assert_eq!(record["ok"], false, "{record}");
            record["accesses"][0]["path"].as_str().unwrap().to_owned()
        })
        .collect()
}

/// A command in a network whose packets are counted.
fn counted(site: &TestSite, command: &[&str]) -> CliOutput {
    let mut program = site.program(unshare()[0]);
    program.args(&unshare()[1..]).args(["sh", "-c", COUNTED_NETWORK, "sh"]).args(command);
    cli_output(program.output().unwrap())
}

fn unshare() -> &'static [&'static str] {
    match rustix::process::geteuid().is_root() {
        true => &["unshare", "--net"],
        false => &["unshare", "--net", "--map-current-user", "--keep-caps"],
    }
}

fn can_count_packets() -> bool {
    let mut command = Command::new(unshare()[0]);
    command.args(&unshare()[1..]).args(["sh", "-c", COUNTED_NETWORK, "sh", "true"]);
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// Packets that were sent by the interfaces of the network, its loopback included.
fn packets_sent(ended: &CliOutput) -> u64 {
    let counts = ["lo:", "out0:"].map(|name| {
        let line = ended.err.lines().find_map(|line| line.trim_start().strip_prefix(name)).unwrap();
        line.split_whitespace().nth(9).unwrap().parse::<u64>().unwrap()
    });
    counts.iter().sum()
}

fn is_there(client: &NamedClient) -> bool {
    let found = std::env::split_paths(&std::env::var_os("PATH").unwrap()).any(|dir| dir.join(client.program).exists());
    if !found {
        skip_without(client.requirement, client.program);
    }
    found
}

/// Makes a program that needs no library of the system.
fn compile_static(site: &TestSite) {
    let source = site.root().join("static.c");
    fs::write(&source, STATIC_PROGRAM).unwrap();
    let mut compiler = Command::new("musl-gcc");
    compiler.args(["-static", "-o"]).arg(site.workspace.join("static")).arg(Path::new(&source));
    // Without a compiler the client is skipped.
    let _ = compiler.status();
}
