//! Upgrade test: the state of earlier versions keeps working.
//!
//! `tests/state` has state directories, each with its config and workspace, as programs of earlier commits wrote them:
//! journal with stored images, audit log, tokens, approvals and transcripts. A test installs one as a user would have
//! it and goes on from there. Only paths and identities are adapted: the identity of the workspace and of its image
//! store, which every file system assigns, and the hash of the workspace's path. Of `v0.1.0` the secret of its token is
//! not known; the token gets the hash of another one.
//!
//! Not here: states of versions that never landed.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use ringfence::store::STORE_FILE;
use rusqlite::Connection;
use serde_json::{Value, json};

use crate::api_client::{ApiTestClient, TestApiServer};
use crate::site::{CliOutput, TestSite};

/// The state of an earlier version.
struct StateFixture {
    /// The directory below `tests/state`.
    name: &'static str,
    /// Its changes, oldest first. The last two create `plan.md` and overwrite `lib/a.txt`.
    changes: [(&'static str, &'static str); 10],
    agent_session: &'static str,
    api_session: &'static str,
    /// Records of the audit log, all of version 1.
    records: usize,
    /// The hash of the token `ci`.
    token_hash: &'static str,
}

const FIXTURES: [StateFixture; 2] = [
    // Commit 03a5332.
    StateFixture {
        name: "v0.1.0",
        changes: [
            ("c-55e9304954a5f5ca15a8", "write_file"),
            ("c-a12a389cfb080083ef47", "write_file"),
            ("c-c7506f444a620004b792", "edit_file"),
            ("c-77e217797ae5b84b4d59", "append_file"),
            ("c-5913c4e43bbae27ca59b", "move_file"),
            ("c-e92e17de9474513e38de", "run_code"),
            ("c-8c89423d85a82b1148c6", "delete_file"),
            ("c-842aec2d660b1776bbd9", "undo"),
            ("c-87f6d9c6f63f7eb7c8c9", "write_file"),
            ("c-9f7f102baffb350a361a", "write_file"),
        ],
        agent_session: "agent-c099d24f3aabd129",
        api_session: "api-49cfd12bf380e9f06d51",
        records: 29,
        token_hash: "545def6a12244fa7925acc87d527002941fc0775c3277561f9fe982051ea1639",
    },
    // Commit 7633823, the last one before the store, the records and the API got other names.
    StateFixture {
        name: "v0.1.1-dev",
        changes: [
            ("c-77c221a09d833087a81a", "write_file"),
            ("c-71118dd8a6eff49d19f7", "write_file"),
            ("c-ecf44502c93f8d705a88", "edit_file"),
            ("c-464fe33d8c8d69f21d94", "append_file"),
            ("c-d376eb2df73fbc21e2c0", "move_file"),
            ("c-7f7ab5d4b9ca45f1dcac", "run_code"),
            ("c-8d85d34731b8728d1eae", "delete_file"),
            ("c-ea3728c7a5db3b1a06a3", "undo"),
            ("c-0ac70034562b25342d1f", "write_file"),
            ("c-cfc5453e35366223bbb9", "write_file"),
        ],
        agent_session: "agent-ac6d80da4e7a6d4c",
        api_session: "api-5c3cbce241a32470bf14",
        records: 33,
        token_hash: KNOWN_TOKEN_HASH,
    },
];

/// The hash of the token in `tests/state/v0.1.1-dev/token`.
const KNOWN_TOKEN_HASH: &str = "f3c0d687a29a7c65aebceff1622a0345bdd1b29974f3273a6e38fdd3e9537879";

fn fixture_path(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/state")).join(name)
}

/// A site with the state of an earlier version in it.
fn upgraded_site(fixture: &StateFixture) -> TestSite {
    let site = TestSite::new();
    let directory = fixture_path(fixture.name);
    copy_private(&directory.join("config.toml"), &site.config.join("ringfence/config.toml"));
    copy_tree(&directory.join("workspace"), &site.workspace);
    std::fs::create_dir(site.workspace.join("notes")).unwrap();
    let images = site.workspace.join(".ringfence");
    copy_tree(&directory.join("images"), &images);
    std::fs::write(images.join(".gitignore"), "*\n").unwrap();
    std::fs::set_permissions(&images, PermissionsExt::from_mode(0o700)).unwrap();
    let state = directory.join("state");
    let anchor = Some("audit-heads.jsonl").filter(|file| state.join(file).exists());
    let audit = ["audit/000001.jsonl", "audit/heads.jsonl", "audit/key", "audit/key.pub"];
    for file in ["approvals.db", "tokens.json"].into_iter().chain(audit).chain(anchor) {
        copy_private(&state.join(file), &site.state.join(file));
    }
    let tokens = std::fs::read_to_string(state.join("tokens.json")).unwrap();
    assert!(tokens.contains(fixture.token_hash), "{}", fixture.name);
    std::fs::write(site.state.join("tokens.json"), tokens.replace(fixture.token_hash, KNOWN_TOKEN_HASH)).unwrap();
    let journal = site.state.join("journal").join(identity(&site.workspace, '-'));
    copy_private(&state.join("journal/log"), &journal.join("log"));
    std::fs::write(journal.join("keep"), identity(&images, ':')).unwrap();
    adopt_transcripts(&site);
    site
}

/// A directory as the journal knows it: device, inode and birth.
fn identity(directory: &Path, before_birth: char) -> String {
    let metadata = std::fs::metadata(directory).unwrap();
    let identity = format!("{:x}-{:x}", metadata.dev(), metadata.ino());
    match metadata.created() {
        Ok(birth) => format!("{identity}{before_birth}{}", birth.duration_since(UNIX_EPOCH).unwrap().as_nanos()),
        Err(_) => identity,
    }
}

/// Gives the transcripts to the workspace of this site. Which hash its path has is seen in a state that it writes now.
fn adopt_transcripts(site: &TestSite) {
    let other = site.root().join("other-state");
    std::fs::write(site.current.join("script.jsonl"), "{\"text\": \"Hello.\"}\n").unwrap();
    let mut greeting = site.command(&["agent", "--script", "script.jsonl", "-p", "hello"]);
    assert!(greeting.env("RINGFENCE_STATE_DIR", &other).output().unwrap().status.success());
    let hash: String = Connection::open(other.join(STORE_FILE))
        .and_then(|store| store.query_row("SELECT directory FROM sessions", [], |row| row.get(0)))
        .unwrap();
    let store = Connection::open(site.state.join("approvals.db")).unwrap();
    assert_eq!(store.execute("UPDATE sessions SET directory = ?1", [hash]).unwrap(), 1);
}

fn copy_tree(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy_tree(&entry.path(), &to),
            false => std::fs::write(to, std::fs::read(entry.path()).unwrap()).unwrap(),
        }
    }
}

/// Copies a file as the program keeps its own: for its user alone.
fn copy_private(from: &Path, to: &Path) {
    let mut directory = to.parent().unwrap();
    std::fs::create_dir_all(directory).unwrap();
    while !directory.ends_with("state") && !directory.ends_with("ringfence") {
        std::fs::set_permissions(directory, PermissionsExt::from_mode(0o700)).unwrap();
        directory = directory.parent().unwrap();
    }
    std::fs::set_permissions(directory, PermissionsExt::from_mode(0o700)).unwrap();
    std::fs::write(to, std::fs::read(from).unwrap()).unwrap();
    std::fs::set_permissions(to, PermissionsExt::from_mode(0o600)).unwrap();
}

#[track_caller]
fn ok(said: &CliOutput) -> &str {
    assert_eq!(said.code, Some(0), "{said:?}");
    &said.out
}

fn changes(site: &TestSite) -> Vec<Value> {
    let listed: Value = serde_json::from_str(ok(&site.run(&["log", "--json"]))).unwrap();
    listed["changes"].as_array().unwrap().iter().rev().cloned().collect()
}

/// The audit log of a site, as bytes.
fn audit_log(site: &TestSite) -> Vec<u8> {
    std::fs::read(site.state.join("audit/000001.jsonl")).unwrap()
}

#[test]
fn an_older_journal_is_listed_and_undone() {
    for fixture in &FIXTURES {
        let site = upgraded_site(fixture);
        let listed = changes(&site);
        let listed: Vec<(&str, &str)> = listed
            .iter()
            .map(|change| (change["change"].as_str().unwrap(), change["tool"].as_str().unwrap()))
            .collect();
        assert_eq!(listed, fixture.changes, "{}", fixture.name);
        let [.., (plan, _), (overwrite, _)] = fixture.changes;
        ok(&site.run(&["undo", overwrite]));
        assert_eq!(site.read("lib/a.txt"), "one\n");
        ok(&site.run(&["redo"]));
        assert_eq!(site.read("lib/a.txt"), "changed\n");
        // The directory that the program made is known by inodes that this disk does not have, and the older changes lie
        // below that one.
        ok(&site.run(&["undo", plan]));
        assert!(!site.workspace.join("plan.md").exists());
    }
}

#[test]
fn an_older_audit_log_verifies_and_new_records_are_appended_to_its_bytes() {
    for fixture in &FIXTURES {
        let (site, records) = (upgraded_site(fixture), fixture.records);
        let former = audit_log(&site);
        let verified = site.run(&["audit", "verify"]);
        assert!(ok(&verified).starts_with(&format!("ok: {records} records, signed up to {records}")), "{verified:?}");
        assert!(audit_log(&site) == former, "{}", fixture.name);
        site.call("read_file", &json!({"path": "plan.md"})).value();
        let (verified, records) = (site.run(&["audit", "verify"]), records + 2);
        assert!(ok(&verified).starts_with(&format!("ok: {records} records, signed up to {records}")), "{verified:?}");
        let appended = audit_log(&site);
        let appended = std::str::from_utf8(appended.strip_prefix(&former[..]).unwrap()).unwrap();
        let appended: Vec<Value> = appended.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let words: Vec<_> =
            appended.iter().map(|record| (&record["v"], &record["event"], &record["accesses"])).collect();
        let accesses = json!([{"action": "read", "path": "plan.md"}]);
        assert_eq!(words, [(&json!(2), &json!("begin"), &accesses), (&json!(2), &json!("end"), &accesses)]);
        let printed = site.run(&["audit", "show", "--json"]);
        assert!(ok(&printed).as_bytes() == audit_log(&site), "{printed:?}");
    }
}

#[test]
fn records_of_an_older_audit_log_are_shown_in_the_current_vocabulary() {
    for fixture in &FIXTURES {
        let site = upgraded_site(fixture);
        let shown = site.run(&["audit", "show"]);
        let lines: Vec<&str> = ok(&shown).lines().collect();
        assert_eq!(lines.len(), fixture.records, "{shown:?}");
        assert!(lines[1].ends_with("  2  begin  write_file  create \"notes/today.md\""), "{shown:?}");
        let server = TestApiServer::start(&site, &[]);
        let listed = server.page().get("/v1/audit?limit=1000")["records"].clone();
        let listed = listed.as_array().unwrap();
        let former: Vec<Value> = std::fs::read_to_string(fixture_path(fixture.name).join("state/audit/000001.jsonl"))
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(listed.len(), former.len());
        for ((listed, former), line) in listed.iter().zip(&former).zip(lines) {
            let event = match former["moment"].as_str().unwrap() {
                "reached" => "access",
                "not-kept" => "discarded",
                same => same,
            };
            assert_eq!((&listed["v"], &listed["event"]), (&json!(2), &json!(event)));
            assert!(line.contains(&format!("  {event}")), "{line}");
            for word in ["moment", "touches", "verb"] {
                assert!(!listed.to_string().contains(&format!("\"{word}\":")), "{listed}");
            }
            let number = |accesses: &Value| accesses.as_array().map(Vec::len);
            assert_eq!(number(&listed["accesses"]), number(&former["touches"]));
            assert_eq!(listed["accesses"][0]["action"], former["touches"][0]["verb"]);
        }
    }
}

#[test]
fn older_transcripts_tokens_and_config_are_read() {
    for fixture in &FIXTURES {
        let (site, session) = (upgraded_site(fixture), fixture.agent_session);
        let sessions = site.run(&["sessions", "list"]);
        assert!(ok(&sessions).contains(session) && sessions.out.contains("write a plan"), "{sessions:?}");
        let shown = site.run(&["sessions", "show", session]);
        assert!(ok(&shown).contains("The plan is written."), "{shown:?}");
        let tokens = site.run(&["token", "list"]);
        assert!(ok(&tokens).contains("ci"), "{tokens:?}");
        let denied = site.call("write_file", &json!({"path": "docs/api/x.md", "content": "x", "createDirs": true}));
        assert_eq!(denied.error(), "PERMISSION_DENIED");
    }
}

#[test]
fn older_tokens_are_imported_into_the_store_and_earlier_versions_refuse_the_file_that_is_left() {
    for fixture in &FIXTURES {
        let site = upgraded_site(fixture);
        let file = site.state.join("tokens.json");
        let former: Vec<Value> = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        let listed = site.run(&["token", "list"]);
        assert!(ok(&listed).contains("  ci  call"), "{listed:?}");
        let store = Connection::open(site.state.join(STORE_FILE)).unwrap();
        let stored = |query: &str| store.query_row(query, [], |row| row.get::<_, String>(0)).unwrap();
        assert_eq!(stored("SELECT hash FROM tokens WHERE name = 'ci'"), KNOWN_TOKEN_HASH);
        for kept in &former {
            let body = stored(&format!("SELECT body FROM tokens WHERE hash = '{}'", kept["hash"].as_str().unwrap()));
            let body: Value = serde_json::from_str(&body).unwrap();
            assert_eq!((&body["name"], &body["id"], &body["since"]), (&kept["name"], &kept["id"], &kept["since"]));
        }
        // They read a list of tokens from it, and report that they cannot.
        let left = std::fs::read(&file).unwrap();
        serde_json::from_slice::<Vec<Value>>(&left).unwrap_err();
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        ok(&site.run(&["token", "revoke", "ci"]));
        assert!(!ok(&site.run(&["token", "list"])).contains("ci"), "{}", fixture.name);
        assert!(std::fs::read(&file).unwrap() == left);
    }
}

#[test]
fn an_older_token_keeps_its_session_and_the_former_paths_name_the_new_ones() {
    let token = std::fs::read_to_string(fixture_path("v0.1.1-dev/token")).unwrap();
    for fixture in &FIXTURES {
        let site = upgraded_site(fixture);
        let server = TestApiServer::start(&site, &[]);
        let client = ApiTestClient { server: &server, token: token.trim().to_owned() };
        assert_eq!(client.get("/v1/me")["name"], "ci", "{}", fixture.name);
        let sessions = client.get("/v1/sessions");
        let ids: Vec<&Value> = sessions["sessions"].as_array().unwrap().iter().map(|session| &session["id"]).collect();
        assert_eq!(ids, [fixture.api_session], "{}", fixture.name);
        let reply = client.call(fixture.api_session, "read_file", json!({"path": "plan.md"}));
        assert!(reply["reply"].as_str().unwrap().contains("# Plan"), "{reply}");
        let page = server.page();
        let history = page.get("/v1/history");
        assert!(history.to_string().contains(fixture.agent_session), "{history}");
        let document = server.send("GET", "/v1/openapi.json", &[], None).json();
        assert!(!document.to_string().contains("elsewhere"));
        for path in ["/v1/elsewhere".to_owned(), format!("/v1/elsewhere/{}", fixture.agent_session)] {
            let refused = page.send("GET", &path, None);
            assert_eq!((refused.status, &refused.json()["error"]["kind"]), (410, &json!("gone")), "{refused:?}");
            assert!(refused.json()["error"]["message"].as_str().unwrap().contains("`GET /v1/history"), "{refused:?}");
        }
    }
}
