//! The store on disk: what every store promises, and what a file adds to it.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::SystemTime;

use ringfence::store::{STORE_FILE, SqliteStore};
use ringfence_kernel::{ApprovalAnswerStatus, ApprovalRequest, ApprovalStore as _, SuspendLifetime};
use ringfence_testkit::store_suite::{answer, at, check, request};
use serde_json::json;

use crate::site::TestSite;

fn state() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

#[track_caller]
fn store_error(state: &Path) -> String {
    let store = SqliteStore::new(state);
    let error = store.open_request(&request("a", 0)).unwrap_err();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(error.to_string(), "the state store is unavailable");
    // A reader gets the same error.
    assert_eq!(std::error::Error::source(&store.grants(at(0)).unwrap_err()).unwrap().to_string(), cause);
    assert!(!cause.contains(state.to_str().unwrap()), "{cause}");
    cause
}

#[test]
fn the_store_on_disk_keeps_what_every_store_promises() {
    check(&SqliteStore::new(state().path()));
}

#[test]
fn records_survive_a_restart() {
    let state = state();
    let before = SqliteStore::new(state.path());
    before.open_request(&request("a", 0)).unwrap();
    before.open_request(&request("b", 0)).unwrap();
    ["a", "b"].into_iter().for_each(|id| before.detach(id, SuspendLifetime::Persistent).unwrap());
    before.answer("b", &answer("x"), at(1)).unwrap();
    assert!(before.consume_nonce("n", at(10), at(0)).unwrap());
    let key = before.sealing_key().unwrap();
    drop(before);
    let after = SqliteStore::new(state.path());
    assert_eq!(after.pending(at(1)).unwrap(), [ApprovalRequest { suspended: true, ..request("a", 0) }]);
    assert_eq!(after.answer_of("b").unwrap(), Some(answer("x")));
    assert!(!after.consume_nonce("n", at(10), at(1)).unwrap());
    assert_eq!(after.sealing_key().unwrap(), key);
}

#[test]
fn a_request_goes_with_who_waits_for_it_unless_it_was_left() {
    let state = state();
    let (one, two) = (SqliteStore::new(state.path()), SqliteStore::new(state.path()));
    one.open_request(&request("waits", 0)).unwrap();
    one.open_request(&request("left", 0)).unwrap();
    one.detach("left", SuspendLifetime::Persistent).unwrap();
    one.open_request(&request("left here", 0)).unwrap();
    one.detach("left here", SuspendLifetime::Process).unwrap();
    two.open_request(&request("other", 0)).unwrap();
    let pending = || two.pending(at(1)).unwrap().into_iter().map(|request| request.id).collect::<Vec<_>>();
    assert_eq!(pending(), ["waits", "left", "left here", "other"]);
    drop(one);
    assert_eq!(two.answer("waits", &answer("x"), at(1)).unwrap(), ApprovalAnswerStatus::UnknownRequest);
    assert_eq!(pending(), ["left", "other"]);
    assert_eq!(SqliteStore::new(state.path()).pending(at(1)).unwrap().len(), 2);
}

#[test]
fn a_file_of_the_version_before_is_brought_up() {
    let state = state();
    SqliteStore::new(state.path()).sealing_key().unwrap();
    let connection = rusqlite::Connection::open(state.path().join(STORE_FILE)).unwrap();
    // As it was before requests had owners.
    let back = "DROP TABLE tokens; DROP TABLE idempotency_keys; ALTER TABLE requests DROP COLUMN draft; ALTER TABLE requests DROP COLUMN draft_id;
                DROP TABLE definitions; DROP TABLE sessions; DROP TABLE entries; DROP TABLE api_sessions; DROP TABLE runs; DROP TABLE denials; DROP TABLE trusted;
                ALTER TABLE used_resume_tokens RENAME TO used;
                ALTER TABLE requests DROP COLUMN owner; PRAGMA user_version = 1;";
    connection.execute_batch(back).unwrap();
    let body = serde_json::to_string(&request("old", 0)).unwrap();
    let insert = "INSERT INTO requests (id, body, expires) VALUES ('old', ?1, 9223372036854775807)";
    connection.execute(insert, [body]).unwrap();
    drop(connection);
    let store = SqliteStore::new(state.path());
    assert_eq!(store.pending(at(1)).unwrap(), [request("old", 0)]);
    store.record_denial("s", "p", at(0)).unwrap();
    assert_eq!(store.denial_streaks().unwrap()[0].count, 1);
}

/// The store of an earlier version, as `tests/state` has it.
fn former_store(state: &Path, version: &str) -> PathBuf {
    let fixture =
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/state")).join(version).join("state/approvals.db");
    let former = state.join("approvals.db");
    std::fs::write(&former, std::fs::read(fixture).unwrap()).unwrap();
    former
}

fn schema_version(database: &Path) -> u32 {
    let connection = rusqlite::Connection::open(database).unwrap();
    connection.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap()
}

#[test]
fn a_store_of_the_former_name_is_moved_and_earlier_versions_refuse_what_is_left() {
    for (version, schema) in [("v0.1.0", 5), ("v0.1.1-dev", 6)] {
        let state = state();
        let former = former_store(state.path(), version);
        let grants = |store: &SqliteStore| store.grants(SystemTime::UNIX_EPOCH).unwrap().len();
        assert_eq!(schema_version(&former), schema);
        let kept: i64 = rusqlite::Connection::open(&former)
            .unwrap()
            .query_row("SELECT count(*) FROM grants", [], |row| row.get(0))
            .unwrap();
        assert!(kept > 0, "the fixture has no grant");
        for _ in 0..2 {
            assert_eq!(grants(&SqliteStore::new(state.path())), usize::try_from(kept).unwrap());
            assert_eq!(schema_version(&state.path().join(STORE_FILE)), 8);
            // Earlier versions know 6 at most, and refuse every later one before they write.
            assert_eq!(schema_version(&former), 1_000_000);
        }
    }
}

#[test]
fn a_new_store_leaves_earlier_versions_nothing_to_start_over_with() {
    let state = state();
    SqliteStore::new(state.path()).sealing_key().unwrap();
    assert_eq!(schema_version(&state.path().join("approvals.db")), 1_000_000);
    // A damaged store that was moved away is replaced by an empty one.
    std::fs::remove_file(state.path().join(STORE_FILE)).unwrap();
    SqliteStore::new(state.path()).sealing_key().unwrap();
    assert_eq!(schema_version(&state.path().join(STORE_FILE)), 8);
}

#[test]
fn earlier_versions_refuse_a_state_without_a_store_and_change_nothing() {
    let site = TestSite::new();
    for _ in 0..2 {
        site.call("list_directory", &json!({"path": "."})).value();
        assert!(!site.state.join(STORE_FILE).exists());
    }
    let tombstone = site.state.join("approvals.db");
    let bytes = std::fs::read(&tombstone).unwrap();
    // As version 0.1.0 opens it, up to where it refuses.
    let connection = rusqlite::Connection::open(&tombstone).unwrap();
    connection.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(())).unwrap();
    connection.pragma_update(None, "synchronous", "FULL").unwrap();
    let intact: String = connection.pragma_query_value(None, "integrity_check", |row| row.get(0)).unwrap();
    assert_eq!(intact, "ok");
    drop(connection);
    assert_eq!(schema_version(&tombstone), 1_000_000);
    assert!(std::fs::read(&tombstone).unwrap() == bytes);
    assert_eq!(SqliteStore::new(&site.state).grants(at(0)).unwrap().len(), 0);
    assert!(!site.state.join(STORE_FILE).exists());
    SqliteStore::new(&site.state).sealing_key().unwrap();
    assert_eq!(schema_version(&site.state.join(STORE_FILE)), 8);
    assert!(std::fs::read(&tombstone).unwrap() == bytes);
}

#[test]
fn a_store_of_the_former_name_stays_while_an_earlier_version_has_it_open() {
    let state = state();
    let former = former_store(state.path(), "v0.1.0");
    let earlier = rusqlite::Connection::open(&former).unwrap();
    earlier.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(())).unwrap();
    earlier.execute("INSERT INTO keys (name, key) VALUES ('later', x'00')", []).unwrap();
    assert!(
        store_error(state.path()).contains("stop ringfence processes of an earlier version"),
        "{}",
        store_error(state.path())
    );
    assert!(!state.path().join(STORE_FILE).exists());
    drop(earlier);
    SqliteStore::new(state.path()).sealing_key().unwrap();
    let connection = rusqlite::Connection::open(state.path().join(STORE_FILE)).unwrap();
    let keys: i64 =
        connection.query_row("SELECT count(*) FROM keys WHERE name = 'later'", [], |row| row.get(0)).unwrap();
    assert_eq!(keys, 1);
}

#[test]
fn one_file_of_a_directory_is_trusted_at_a_time() {
    let state = state();
    let store = SqliteStore::new(state.path());
    let person = ringfence_kernel::Principal::person("somebody");
    assert!(!store.is_trusted("d", "1").unwrap() && !store.distrust("d").unwrap());
    assert!(!state.path().join(STORE_FILE).exists());
    for (directory, hash) in [("d", "1"), ("e", "1"), ("d", "2")] {
        store.trust(directory, hash, &person, at(0)).unwrap();
    }
    let trusted = |directory, hash| SqliteStore::new(state.path()).is_trusted(directory, hash).unwrap();
    assert_eq!(
        [trusted("d", "1"), trusted("d", "2"), trusted("e", "1"), trusted("e", "2")],
        [false, true, true, false]
    );
    assert!(store.distrust("d").unwrap());
    assert_eq!([trusted("d", "2"), trusted("e", "1")], [false, true]);
}

#[test]
fn the_file_is_created_on_first_write_and_private() {
    let state = state();
    let store = SqliteStore::new(&state.path().join("deep/state"));
    assert!(store.pending(at(0)).unwrap().is_empty() && store.grants(at(0)).unwrap().is_empty());
    assert_eq!(store.answer("a", &answer("x"), at(0)).unwrap(), ApprovalAnswerStatus::UnknownRequest);
    store.close_request("a").unwrap();
    assert!(!state.path().join("deep").exists());
    store.open_request(&request("a", 0)).unwrap();
    for entry in std::fs::read_dir(state.path().join("deep/state")).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{entry:?}");
    }
}

#[test]
fn abandoned_arguments_are_deleted() {
    let state = state();
    let file = || std::fs::read(state.path().join(STORE_FILE)).unwrap();
    let has = |bytes: &[u8], text: &str| bytes.windows(text.len()).any(|part| part == text.as_bytes());
    let store = SqliteStore::new(state.path());
    store.open_request(&request("a", 0)).unwrap();
    store.open_request(&request("b", 0)).unwrap();
    drop(store);
    assert!(has(&file(), "drop table requests"));
    let store = SqliteStore::new(state.path());
    store.close_request("a").unwrap();
    store.close_request("b").unwrap();
    drop(store);
    assert!(!has(&file(), "drop table requests"));
    assert!(!state.path().join(format!("{STORE_FILE}-wal")).exists());
}

#[test]
fn a_damaged_file_is_an_error_that_says_what_to_do() {
    let state = state();
    let file = state.path().join(STORE_FILE);
    let said = "the store in the state directory, `state.db` or `approvals.db` of an earlier version, is damaged; move it \
                away to continue: persistent grants are lost and must be approved again";
    std::fs::write(&file, "this is not a database, and long enough to be looked at ".repeat(100)).unwrap();
    assert_eq!(store_error(state.path()), said);
    std::fs::remove_file(&file).unwrap();
    drop(SqliteStore::new(state.path()).open_request(&request("a", 0)));
    let connection = rusqlite::Connection::open(&file).unwrap();
    connection.execute("DROP TABLE requests", []).unwrap();
    connection.execute("UPDATE grants SET body = 'x'", []).unwrap();
    connection.execute("INSERT INTO grants (id, body, until) VALUES ('g', 'x', 9223372036854775807)", []).unwrap();
    assert_eq!(store_error(state.path()), said);
}

#[test]
fn a_file_of_a_later_version_is_left_alone() {
    let state = state();
    let connection = rusqlite::Connection::open(state.path().join(STORE_FILE)).unwrap();
    connection.pragma_update(None, "user_version", 77).unwrap();
    let said = "`state.db` in the state directory was written by a newer ringfence: schema version 77, and this one supports up to 8";
    assert_eq!(store_error(state.path()), said);
    let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0)).unwrap();
    assert_eq!(tables, 0);
}

#[test]
fn no_command_writes_the_state_of_a_later_version() {
    let site = TestSite::new();
    assert_eq!(site.run(&["call", "list_directory", r#"{"path": "."}"#]).code, Some(0));
    SqliteStore::new(&site.state).open_request(&request("a", 0)).unwrap();
    let connection = rusqlite::Connection::open(site.state.join(STORE_FILE)).unwrap();
    connection.pragma_update(None, "user_version", 77).unwrap();
    drop(connection);
    let before = directory_contents(&site.state);
    let commands: [&[&str]; 9] = [
        &["token", "new", "a"],
        &["token", "revoke", "a"],
        &["workflow", "new"],
        &["call", "write_file", r#"{"path": "a", "content": "b"}"#],
        &["undo"],
        &["redo"],
        &["policy", "trust", "--revoke"],
        &["policy", "grants", "revoke", "g"],
        &["approvals", "list"],
    ];
    for command in commands {
        let said = site.run(command);
        assert_eq!(said.code, Some(2), "{command:?} {said:?}");
        assert!(said.err.contains("was written by a newer ringfence"), "{command:?} {said:?}");
        assert_eq!(directory_contents(&site.state), before, "{command:?}");
    }
}

/// The files below a directory, without the files that SQLite makes and removes beside a database.
fn directory_contents(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
            let path = entry.path();
            let name = entry.file_name().into_string().unwrap();
            if entry.file_type().unwrap().is_dir() {
                directories.push(path);
            } else if !name.starts_with(&format!("{STORE_FILE}-")) {
                files.insert(path.clone(), std::fs::read(path).unwrap());
            }
        }
    }
    files
}

#[test]
fn a_link_in_the_place_of_the_file_is_not_followed() {
    let state = state();
    std::os::unix::fs::symlink(state.path().join("elsewhere"), state.path().join(STORE_FILE)).unwrap();
    assert!(SqliteStore::new(state.path()).open_request(&request("a", 0)).is_err());
    assert!(!state.path().join("elsewhere").exists());
}

#[test]
fn processes_that_make_the_file_at_once_share_it() {
    for _ in 0..10 {
        let state = state();
        let start = Barrier::new(4);
        // A connection each, as processes have.
        std::thread::scope(|scope| {
            for id in ["a", "b", "c", "d"] {
                let (state, start) = (state.path(), &start);
                scope.spawn(move || {
                    let store = SqliteStore::new(state);
                    start.wait();
                    store.open_request(&request(id, 0)).unwrap();
                    store.detach(id, SuspendLifetime::Persistent).unwrap();
                    store.sealing_key().unwrap()
                });
            }
        });
        let store = SqliteStore::new(state.path());
        assert_eq!(store.pending(at(1)).unwrap().len(), 4);
    }
}

#[test]
fn of_two_processes_that_answer_at_once_one_is_first() {
    let state = state();
    let store = SqliteStore::new(state.path());
    for round in 0..10 {
        let id = format!("r{round}");
        store.open_request(&request(&id, 0)).unwrap();
        let start = Barrier::new(2);
        let puts: Vec<ApprovalAnswerStatus> = std::thread::scope(|scope| {
            let put = |by: &'static str| {
                let (state, start, id) = (state.path(), &start, &id);
                scope.spawn(move || {
                    let store = SqliteStore::new(state);
                    start.wait();
                    store.answer(id, &answer(by), at(1)).unwrap()
                })
            };
            [put("x"), put("y")].map(|thread| thread.join().unwrap()).to_vec()
        });
        assert!(
            puts.contains(&ApprovalAnswerStatus::Accepted) && puts.contains(&ApprovalAnswerStatus::AlreadyAnswered),
            "{puts:?}"
        );
    }
}
