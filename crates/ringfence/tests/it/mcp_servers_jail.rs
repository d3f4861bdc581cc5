//! Servers in the jail that were given something: the workspace to be read, or a way to some hosts. What they see and reach,
//! and what they do not.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener};

use ringfence_testkit::requirement::{Requirement, skip_without};
use serde_json::{Value, json};

use crate::site::{CliOutput, TestSite};

const ALLOW: &str = "[[rules]]\ndecision = \"allow\"\neffect = \"external\"\n";

/// A server in one argument, of what every jail has. What it finds it says in words without quotes.
const IN_BASH: &str = r#"
calls=0
seen() { cat "/workspace/$1" 2> /dev/null | tr -cd 'a-zA-Z0-9' || true; }
fetch() {
    exec 3<> "/dev/tcp/127.0.0.1/${http_proxy##*:}" || { echo no-proxy; return; }
    printf 'GET http://%s/ HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n' "$1" "$1" >&3
    head -n 1 <&3 | tr -cd '0-9. ' | cut -d ' ' -f 2
}
while read -r line; do
    [[ $line =~ \"id\":([0-9]+) ]] || continue
    id=${BASH_REMATCH[1]}
    case $line in
        *initialize*) result='{"protocolVersion":"2025-11-25"}' ;;
        *tools/list*) tool() { echo "{\"name\":\"$1\",\"inputSchema\":{\"type\":\"object\"}}"; }
            result="{\"tools\":[$(tool look),$(tool reach)]}" ;;
        *'"name":"look"'*)
            calls=$((calls + 1))
            said="mine=$(seen mine.txt) env=$(seen .env) private=$(seen private/x) keep=$(ls -A /workspace/.ringfence 2> /dev/null | wc -l)"
            echo x > /workspace/new && said="$said wrote=$(seen new)"
            result="{\"content\":[{\"type\":\"text\",\"text\":\"$said calls=$calls\"}]}" ;;
        *)
            (exec 4<> /dev/tcp/192.0.2.1/80) 2> /dev/null && around=open || around=closed
            [[ $line =~ \"hosts\":\"([^\"]*)\" ]]
            said=
            for host in ${BASH_REMATCH[1]}; do said="$said$(fetch "$host" 2> /dev/null) "; done
            result="{\"content\":[{\"type\":\"text\",\"text\":\"$said$around\"}]}" ;;
    esac
    echo "{\"jsonrpc\":\"2.0\",\"id\":$id,\"result\":$result}"
done
"#;

fn configure(site: &TestSite, keys: &str, more: &str) {
    let args = serde_json::to_string(&["-c", IN_BASH]).unwrap();
    let text = format!("{more}\n{ALLOW}\n[mcp_servers.near]\ncommand = \"bash\"\nargs = {args}\n{keys}\n");
    std::fs::create_dir_all(site.config.join("ringfence")).unwrap();
    std::fs::write(site.config.join("ringfence/config.toml"), text).unwrap();
}

/// The server's reply, unless there is no jail here.
fn text(said: &CliOutput) -> Option<String> {
    if said.err.contains("sandbox unavailable") {
        skip_without(Requirement::Sandbox, "this machine cannot build a jail");
        return None;
    }
    Some(said.value()["text"].as_str().unwrap().to_owned())
}

#[test]
fn a_server_that_may_read_sees_the_workspace_as_it_is_now_but_for_what_is_closed() {
    let site = TestSite::new();
    for (file, content) in [("mine.txt", "first"), (".env", "SECRET"), ("private/x", "closed")] {
        site.write(file, content);
    }
    let deny = "[[rules]]\ndecision = \"deny\"\neffect = \"read\"\npath = \"private/**\"\n";
    configure(&site, "workspace = \"read\"", deny);
    let look = || site.call("mcp__near__look", &json!({}));
    let Some(first) = text(&look()) else { return };
    assert_eq!(first, "mine=first env= private= keep=0 wrote=x calls=1");
    // A tool of ours changed it meanwhile, by replacing the file.
    let write = json!({"path": "mine.txt", "content": "second"});
    site.call("write_file", &write).value();
    assert_eq!(text(&look()).unwrap(), "mine=second env= private= keep=0 wrote=x calls=1");
    assert!(!site.workspace.join("new").exists(), "what it wrote was kept");
    let doctor = site.run(&["doctor"]).out;
    assert!(
        doctor.contains("near: in the sandbox, with read access to the workspace and without network, 2 tools"),
        "{doctor}"
    );
}

#[test]
fn in_one_session_each_call_has_a_server_of_its_own() {
    let site = TestSite::new();
    site.write("mine.txt", "first");
    configure(&site, "workspace = \"read\"", "");
    let answers = [
        crate::agent::call("mcp__near__look", json!({})),
        crate::agent::call("write_file", json!({"path": "mine.txt", "content": "second"})),
        crate::agent::call("write_file", json!({"path": ".env", "content": "SECRET"})),
        crate::agent::call("mcp__near__look", json!({})),
        crate::agent::text("done"),
    ];
    let mut command = crate::agent::scripted_agent(&site, &answers, &["--preset", "edits", "--json", "look"]);
    let said = crate::site::cli_output(command.output().unwrap());
    if said.err.contains("sandbox unavailable") {
        return skip_without(Requirement::Sandbox, "this machine cannot build a jail");
    }
    let events = crate::agent::events(&said);
    let looked = |event: &&Value| event["type"] == "result" && event["name"] == "mcp__near__look";
    let seen: Vec<String> = events.iter().filter(looked).map(Value::to_string).collect();
    assert_eq!(seen.len(), 2, "{events:?}");
    assert!(seen[0].contains("mine=first env= ") && seen[0].contains("calls=1"), "{seen:?}");
    assert!(seen[1].contains("mine=second env= ") && seen[1].contains("calls=1"), "{seen:?}");
}

/// A page on an address that programs do not keep for themselves. It ends with the tests.
fn page() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.2:0").unwrap();
    let at = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
            while lines.next().is_some_and(|line| !line.is_empty()) {}
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi");
        }
    });
    at
}

#[test]
fn a_server_reaches_the_hosts_that_it_was_given_and_each_connection_is_recorded_with_the_call() {
    let site = TestSite::new();
    site.write("mine.txt", "mine");
    let [granted, other] = [page(), page()];
    let web = format!("[web]\nallow_private = [\"{granted}\", \"{other}\"]\n");
    let network = format!("network = [\"{granted}\"]");
    configure(&site, &network, &web);
    let reach = || site.call("mcp__near__reach", &json!({"hosts": format!("{granted} {other}")}));
    let Some(found) = text(&reach()) else { return };
    assert_eq!(found, "200 403 closed");
    let records = site.run(&["audit", "show", "--json"]).out;
    let reached = |host: SocketAddr| {
        let lines = records.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let of_host = lines.filter(|line| line["event"] == "access" && line.to_string().contains(&host.to_string()));
        of_host.map(|line| line["ok"].clone()).collect::<Vec<_>>()
    };
    assert_eq!((reached(granted), reached(other)), (vec![json!(true)], vec![json!(false)]), "{records}");
    // It was given no files with that.
    let looked = text(&site.call("mcp__near__look", &json!({}))).unwrap();
    assert!(looked.starts_with("mine= env= "), "{looked}");
    // What the config gives, a deny takes.
    let deny = format!("{web}[[rules]]\ndecision = \"deny\"\nhost = \"{granted}\"\n");
    configure(&site, &network, &deny);
    let denied = reach();
    assert!(denied.out.contains("PERMISSION_DENIED") && denied.out.contains("the policy denies"), "{denied:?}");
    // However the config spells it.
    configure(&site, &format!("network = [\"0x7f000002:{}\"]", granted.port()), &deny);
    let denied = reach();
    assert!(denied.out.contains("PERMISSION_DENIED") && denied.out.contains("the policy denies"), "{denied:?}");
}
