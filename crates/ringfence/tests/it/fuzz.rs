//! Config, requests and arguments of any bytes, through the program as people and agents reach it.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};

use ringfence::app::build_app;
use ringfence::config::{CliFlags, load};
use ringfence_fuzz::FuzzTarget;
use ringfence_kernel::{DenyApprover, Dialect, Preset, ToolCall};
use ringfence_testkit::patience::PATIENCE;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::api_client::TestApiServer;
use crate::config::ConfigLayers;
use crate::site::TestSite;

fn target(name: &'static str) -> FuzzTarget {
    FuzzTarget::new(name, env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn no_config_is_more_than_a_wrong_one_and_none_of_a_workspace_loosens() {
    let layers = ConfigLayers::new();
    let (toml, json) = (layers.write("config/config.toml", ""), layers.write("json/config.json", ""));
    let tokens = &[
        "[[rules]]\n",
        "decision = \"deny\"\n",
        "decision = \"allow\"\n",
        "path = [\"**/*.rs\", \"!a\"]\n",
        "host = [\"*.org:443/x\"]\n",
        "tool = [\"write_file\"]\n",
        "effect = [\"fetch\"]\n",
        "match = [\"read a\"]\n",
        "[limits]\n",
        "max_read_bytes = 1\n",
        "max_prompt_duration = \"3s\"\n",
        "[tools]\n",
        "allow = []\n",
        "[agents.x]\n",
        "[mounts.pkg]\n",
        "preset = \"edits\"\n",
        "[web]\n",
        "allow_private = [\"a:1\"]\n",
        "[mcp_servers.x]\n",
        "command = [\"x\"]\n",
        "\"rules\": [{",
        "\"decision\": \"ask\"",
        "= ",
        "\"\"\"",
        "'",
        "[",
        "]",
        "{",
        "}",
        "#",
    ];
    target("config").tokens(tokens).check(|bytes| {
        let (&which, text) = bytes.split_first().unwrap_or((&0, b""));
        let mut settings = match which % 3 {
            0 => {
                std::fs::write(&toml, text).unwrap();
                layers.load(&CliFlags::default())
            }
            1 => {
                std::fs::write(&json, text).unwrap();
                layers.load(&CliFlags { config: Some(json.clone()), ..CliFlags::default() })
            }
            _ => {
                std::fs::write(&toml, "").unwrap();
                layers.load(&CliFlags::default())
            }
        }
        .map_err(|error| outline(&error.to_string()))?;
        let (limits, preset) = (settings.limits.clone(), settings.preset);
        let allowing = settings.tighten(text).map_err(|error| outline(&error.to_string()));
        assert_eq!(settings.limits, limits.tightened(&settings.limits), "a workspace loosened a limit");
        assert_eq!(settings.preset, preset);
        assert!(settings.workspace_preset.is_none_or(|wanted| wanted > preset));
        settings.rules();
        Ok::<_, String>((settings.user_rules.len(), settings.warnings.len(), allowing.map(|rules| rules.len())))
    });
}

/// An error without the lines that it quotes.
fn outline(error: &str) -> String {
    error.lines().last().unwrap_or_default().chars().filter(|c| !c.is_ascii_digit()).take(60).collect()
}

/// Every tool there is, also those of the web and the jail; none is approved.
#[test]
fn no_arguments_of_any_tool_are_more_than_a_wrong_call() {
    let site = TestSite::in_memory();
    site.write("a.txt", "alpha\n");
    let environment = site.environment();
    let app = Dialect::ALL.map(|dialect| {
        let workspace = Some(site.workspace.to_str().unwrap().to_owned());
        let flags =
            CliFlags { workspace, dialect: Some(dialect), preset: Some(Preset::ReadOnly), ..CliFlags::default() };
        let mut settings = load(&flags, &environment).unwrap();
        settings.run_code.waiting_jails = 0;
        build_app(settings, &environment, Box::new(DenyApprover { advice: "this is a test".to_owned() })).unwrap()
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let tokens = &[
        "{",
        "}",
        "\"url\":\"http://127.0.0.1/\"",
        "\"method\":\"POST\"",
        "\"headers\":{\"Host\":\"x\"}",
        "\"query\":",
        "\"numResults\":-1",
        "\"language\":\"python\"",
        "\"code\":",
        "\"network\":[\"pypi.org:443\"]",
        "\"timeout\":1e99",
        "\"path\":\"a.txt\"",
        "\"format\":\"markdown\"",
        "null",
        "[",
        "]",
        ",",
        "\\ud800",
        "\\u0000",
    ];
    target("calls").tokens(tokens).check(|bytes| {
        let (&choice, arguments) = bytes.split_first().unwrap_or((&0, b""));
        let arguments = String::from_utf8_lossy(arguments);
        app.each_ref().map(|app| {
            let tools: Vec<_> = app.session.catalog.list().map(|tool| tool.name.to_string()).collect();
            let name = tools[usize::from(choice) % tools.len()].clone();
            let call = ToolCall { id: "1".to_owned(), name: name.clone(), arguments: arguments.clone().into_owned() };
            let reply = runtime.block_on(app.host.call(&app.session, call, &CancellationToken::new())).unwrap();
            assert!(!reply.text.contains(site.root().to_str().unwrap()), "{}", reply.text);
            if matches!(app.session.dialect, Dialect::Standard | Dialect::Crewagent) {
                let said: Value = serde_json::from_str(&reply.text).unwrap();
                assert_eq!(said["ok"], reply.error_kind().is_none(), "{}", reply.text);
            }
            assert_eq!(site.read("a.txt"), "alpha\n");
            (name, reply.error_kind().map(|kind| kind.code()), reply.text.len().checked_ilog2())
        })
    });
}

#[test]
fn no_request_is_more_than_a_wrong_one() {
    let site = TestSite::in_memory();
    site.write("a.txt", "alpha\n");
    let server = TestApiServer::start(&site, &["--wait", "0", "--rate", "1000000"]);
    let (page, agent) = (server.page(), server.agent(&site, "agent"));
    let session = agent.create_session(&json!({}));
    let tokens = &[
        "GET ",
        "POST ",
        "DELETE ",
        "/v1/sessions",
        "/v1/sessions/$SESSION/calls",
        "/v1/files/text?path=",
        "/v1/policy/explain",
        "/mcp",
        " HTTP/1.1\r\n",
        "Host: $HOST\r\n",
        "Authorization: Bearer $AGENT\r\n",
        "Authorization: Bearer $PAGE\r\n",
        "Origin: http://evil\r\n",
        "Content-Type: application/json\r\n",
        "Content-Length: 10\r\n",
        "Transfer-Encoding: chunked\r\n",
        "\r\n\r\n",
        "{\"name\":\"read_file\",\"arguments\":{}}",
        "%2e%2e/",
        "?after=-1",
        "\u{0}",
    ];
    target("http").tokens(tokens).check(|bytes| {
        // What differs from server to server is filled in.
        let filled =
            [("$HOST", &server.address), ("$PAGE", &page.token), ("$AGENT", &agent.token), ("$SESSION", &session)];
        let mut request = bytes.to_vec();
        for (mark, value) in filled {
            request = replaced(&request, mark.as_bytes(), value.as_bytes());
        }
        let mut stream = TcpStream::connect(&server.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // A server that has seen enough closes.
        let _ = stream.write_all(&request).and_then(|()| stream.shutdown(Shutdown::Write));
        let mut head = Vec::new();
        let mut piece = [0; 4096];
        // A stream of events never ends: what comes first is all that is waited for.
        while !head.windows(4).any(|four| four == b"\r\n\r\n") {
            match stream.read(&mut piece) {
                Ok(0) => break,
                Ok(length) => head.extend_from_slice(&piece[..length]),
                Err(error) => {
                    assert_ne!(error.kind(), std::io::ErrorKind::WouldBlock, "no answer in a minute");
                    break;
                }
            }
        }
        let said = String::from_utf8_lossy(&head);
        assert!(head.is_empty() || said.starts_with("HTTP/1."), "{said}");
        let status = said.split(' ').nth(1).map(|status| status.parse::<u16>().unwrap());
        assert!(status.is_none_or(|status| status != 500), "{said}");
        assert!(!said.contains("SECRET"));
        assert_eq!(site.read("a.txt"), "alpha\n");
        (status, said.lines().nth(1).map(|line| line.len()))
    });
    assert_eq!(server.send("GET", "/healthz", &[], None).status, 200);
}

fn replaced(bytes: &[u8], mark: &[u8], value: &[u8]) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::new(), bytes);
    while let Some(at) = rest.windows(mark.len()).position(|piece| piece == mark) {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(value);
        rest = &rest[at + mark.len()..];
    }
    out.extend_from_slice(rest);
    out
}
