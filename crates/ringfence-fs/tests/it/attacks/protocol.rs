//! Tool call protocol: tool names, arguments, cancelling, and descriptors that a child would inherit.

use std::process::Command;
use std::time::Duration;

use ringfence_kernel::ErrorKind::{Cancelled, InvalidArgs, Io, Timeout, Unavailable, UnknownTool};
use ringfence_kernel::{Dialect, ToolCall};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::operations::{PathOperation, operations};
use super::subprocess::{TestSubprocess, is_child};
use super::{case, check, inside};
use crate::fixture::{FsFixture, FsFixtureConfig};

const MINICLAW: &str = "read_file, write_file, append_file, list_dir, edit_file";

#[test]
fn a_tool_that_is_not_offered_is_not_found() {
    check(|| {
        let mut standard = case("standard").file("f", "x");
        for name in
            ["Read_File", "READ_FILE", "read_file ", "readfile", "list_dir", "fs.read", "", "../read_file", "\0"]
        {
            standard = standard.fails(name, json!({"path": "f"}), UnknownTool);
        }
        let mut miniclaw = case("miniclaw").miniclaw().file("f", "x");
        for name in ["list_directory", "delete_file", "move_file", "copy_file", "get_file_info", "Read_File", "exec"] {
            let text = format!("tool not found: {name}. Available tools: {MINICLAW}");
            miniclaw = miniclaw.fails_with_text(name, json!({"path": "f"}), UnknownTool, text);
        }
        vec![standard, miniclaw]
    });
}

#[test]
fn arguments_are_an_object_of_known_fields_or_refused() {
    check(|| {
        let mut cases = Vec::new();
        for dialect in Dialect::ALL {
            let plain = || {
                let case = case(format!("{} arguments", dialect.name())).file("f", "other").file("other.txt", "other");
                case.with_dialect(dialect)
            };
            let mut case = plain();
            for operation in operations(dialect, "f") {
                let (tool, good) = (operation.tool, operation.arguments.to_string());
                let open = good.trim_end_matches('}');
                for bad in [
                    format!("{open},\"extra\":1}}"),
                    format!("{open},\"Path\":\"f\"}}"),
                    format!("{open},\"__proto__\":{{}}}}"),
                    format!("[{good}]"),
                    format!("{good}{good}"),
                    format!("{good},"),
                    open.to_owned(),
                    format!("/* */{good}"),
                    good.replace('"', "'"),
                    "5".to_owned(),
                    "\"path\"".to_owned(),
                    "null".to_owned(),
                    "{\"path\":".to_owned(),
                    "[".repeat(100_000),
                    format!("{{\"path\":{}", "[".repeat(100_000)),
                    format!("{open},\"x\":{}}}", "{\"a\":".repeat(10_000)),
                ] {
                    case = case.fails(tool, bad, InvalidArgs);
                }
                if !matches!(tool, "list_dir" | "list_directory") {
                    case = case.fails(tool, "", InvalidArgs).fails(tool, "{}", InvalidArgs);
                }
            }
            cases.push(case);
        }
        cases.push(
            case("miniclaw says what is wrong with them")
                .miniclaw()
                .fails_with_text("read_file", "{}", InvalidArgs, "invalid parameters: missing field `path`")
                .fails_with_text(
                    "read_file",
                    "[]",
                    InvalidArgs,
                    "invalid parameters: the arguments must be a JSON object",
                )
                .replies("list_dir", "", "ok: listed 0 entries in .")
                .replies("list_dir", "{}", "ok: listed 0 entries in ."),
        );
        cases
    });
}

#[test]
fn a_call_that_is_cancelled_before_it_begins_changes_nothing() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let cancelled = CancellationToken::new();
    cancelled.cancel();
    for dialect in Dialect::ALL {
        let world = FsFixture::with(FsFixtureConfig::of(dialect));
        world.write("f", "other");
        world.write("other.txt", "other");
        let before = inside(&world);
        for path in ["f", "new"] {
            for PathOperation { tool, arguments, .. } in operations(dialect, path) {
                let call = ToolCall { id: "1".to_owned(), name: tool.to_owned(), arguments: arguments.to_string() };
                let reply = runtime.block_on(world.host.call(&world.session, call, &cancelled)).unwrap();
                assert_eq!(reply.error_kind(), Some(Cancelled), "{tool} {arguments}: {}", reply.text);
                assert_eq!(inside(&world).difference(&before), "", "{tool} {arguments}");
            }
        }
    }
}

#[test]
fn a_call_that_has_no_time_says_so_and_changes_nothing() {
    check(|| {
        // A tree that takes longer to look at than the clock of the runtime takes to tick.
        let tree = |world: &FsFixture| {
            for at in 0..400 {
                std::fs::create_dir_all(world.root.join(format!("d/{at}/e/f/g/h"))).unwrap();
            }
        };
        vec![
            case("whatever has to look at many entries")
                .set(|setup| setup.limits.call_time = Duration::from_nanos(1))
                .given(tree)
                .fails("delete_file", json!({"path": "d", "recursive": true}), Timeout)
                .fails("list_directory", json!({"path": ".", "recursive": true}), Timeout)
                .fails("find_files", json!({"path": ".", "glob": "*"}), Timeout),
        ]
    });
}

#[test]
fn a_program_that_is_started_inherits_no_descriptor_of_ours() {
    let world = FsFixture::new();
    world.write("d/f", "x");
    for _ in 0..3 {
        world.value("read_file", &json!({"path": "d/f"}));
        world.value("append_file", &json!({"path": "d/f", "content": "x"}));
    }
    let listed = Command::new("ls").args(["-l", "/proc/self/fd"]).output().unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.contains("->"), "{listed}");
    assert!(!listed.contains(world.host_path().to_str().unwrap()), "{listed}");
}

#[test]
fn a_change_of_the_current_directory_moves_nothing() {
    if !is_child() {
        return TestSubprocess::new()
            .run_after("true", "attacks::protocol::a_change_of_the_current_directory_moves_nothing");
    }
    check(|| {
        vec![
            case("the root is held, not looked up")
                .file("f", "inside")
                .file("d/f", "deep")
                .given(|world| std::fs::write(world.outside.join("f"), "elsewhere").unwrap())
                .given(|world| std::env::set_current_dir(&world.outside).unwrap())
                .succeeds("read_file", json!({"path": "f"}), |_, value| assert_eq!(value["content"], "inside"))
                .succeeds("write_file", json!({"path": "f", "content": "new"}), |world, _| {
                    assert_eq!(world.read("f"), "new");
                })
                .succeeds("move_file", json!({"from": "f", "to": "d/g"}), |world, _| {
                    assert_eq!(world.read("d/g"), "new")
                })
                .succeeds("delete_file", json!({"path": "d", "recursive": true}), |world, _| {
                    assert!(!world.root.join("d").exists());
                })
                .then(|_| std::env::set_current_dir("/").unwrap()),
        ]
    });
}

#[test]
fn a_host_that_is_out_of_descriptors_says_so_and_goes_on() {
    if !is_child() {
        return TestSubprocess::new()
            .run_after("ulimit -n 200", "attacks::protocol::a_host_that_is_out_of_descriptors_says_so_and_goes_on");
    }
    for backend in [ringfence_fs::ResolverBackend::Best, ringfence_fs::ResolverBackend::CapStd] {
        let world = FsFixture::with(FsFixtureConfig::default().on(backend));
        world.write("f", "old");
        world.write("d/f", "old");
        let calls = [
            ("read_file", json!({"path": "d/f"})),
            ("list_directory", json!({"path": ".", "recursive": true})),
            ("write_file", json!({"path": "f", "content": "new"})),
            ("write_file", json!({"path": "a/b/f", "content": "new", "createDirs": true})),
            ("append_file", json!({"path": "f", "content": "new"})),
            ("edit_file", json!({"path": "f", "oldText": "old", "newText": "new"})),
            ("copy_file", json!({"from": "f", "to": "g"})),
            ("move_file", json!({"from": "d", "to": "e"})),
            ("delete_file", json!({"path": "d", "recursive": true})),
        ];
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        for (tool, arguments) in calls {
            // With this number of descriptors to spare, until there are enough.
            for spare in 0.. {
                let before = inside(&world);
                let mut taken = Vec::new();
                while let Ok(file) = std::fs::File::open("/dev/null") {
                    taken.push(file);
                }
                taken.truncate(taken.len() - spare);
                let call = ToolCall { id: "1".to_owned(), name: tool.to_owned(), arguments: arguments.to_string() };
                let cancel = CancellationToken::new();
                let reply = runtime.block_on(world.host.call(&world.session, call, &cancel)).unwrap();
                drop(taken);
                let now = inside(&world);
                assert!(now.temporary().is_empty(), "{tool} with {spare}: {now:?}");
                let Some(kind) = reply.error_kind() else { break };
                assert_eq!(now.difference(&before), "", "{tool} with {spare}: {}", reply.text);
                assert!(matches!(kind, Io | Unavailable), "{tool} with {spare}: {}", reply.text);
                assert!(spare < 20, "{tool}: {}", reply.text);
            }
            for gone in ["a", "e", "g"] {
                let _ = std::fs::remove_dir_all(world.root.join(gone));
            }
            let _ = std::fs::remove_file(world.root.join("g"));
            world.write("f", "old");
            world.write("d/f", "old");
        }
    }
}
