//! Call fuzzing: paths and arguments of any bytes, through `Host::call`: nothing outside is seen or changed.

use std::cell::RefCell;
use std::os::unix::fs::symlink;

use ringfence_fs::{Durability, MountAccess, ResolverBackend};
use ringfence_fuzz::FuzzTarget;
use ringfence_kernel::{Dialect, Preset};
use serde_json::{Value, json};

use crate::fixture::{FixtureReply, FsFixture, FsFixtureConfig};

/// Calls after which a workspace has enough files to make the rest slow.
const A_FULL_WORLD: u64 = 500;

/// A workspace with links that lead out, on both resolvers.
fn world(dialect: Dialect, backend: ResolverBackend, preset: Preset) -> FsFixture {
    let mut setup = FsFixtureConfig::of(dialect).on(backend);
    setup.preset = preset;
    setup.options.durability = Durability::Ordered;
    setup.mounts = vec![("pkg", MountAccess::ReadOnly)];
    let world = FsFixture::in_memory(setup);
    world.write("a.txt", "alpha\nbeta\n");
    world.write("dir/b.txt", "b\n");
    world.write("dir/deep/c.txt", "c\n");
    for (name, to) in [("out", "../outside"), ("dir/up", "../.."), ("abs", "/etc"), ("in", "dir"), ("loop", "loop")] {
        symlink(to, world.root.join(name)).unwrap();
    }
    symlink("../outside/secret", world.root.join("leak")).unwrap();
    world
}

/// Nothing outside was revealed or changed.
#[track_caller]
fn check_inside(world: &FsFixture, answer: &FixtureReply) {
    assert!(!answer.text.contains("SECRET"), "{}", answer.text);
    let host = world.host_path().to_str().unwrap();
    assert!(!answer.text.contains(host), "{}", answer.text);
    let outside: Vec<_> = std::fs::read_dir(&world.outside).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(outside, ["secret"]);
    assert_eq!(std::fs::read(world.outside.join("secret")).unwrap(), b"SECRET\n");
    let mut beside: Vec<_> =
        std::fs::read_dir(world.host_path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    beside.sort();
    assert_eq!(beside, ["mount-pkg", "outside", "state", "ws"]);
}

#[test]
fn no_path_leads_outside() {
    let fresh = || {
        [ResolverBackend::Best, ResolverBackend::CapStd].map(|backend| world(Dialect::Standard, backend, Preset::Edits))
    };
    let worlds = RefCell::new((0, fresh()));
    FuzzTarget::new("path", env!("CARGO_MANIFEST_DIR"))
        .max_len(512)
        .tokens(&[
            "../",
            "..",
            "/",
            "//",
            "./",
            "out/",
            "out/secret",
            "leak",
            "dir/",
            "dir/up/",
            "abs/passwd",
            "loop",
            "in/b.txt",
            "@pkg/",
            "@workspace/",
            "~",
            "file://",
            "C:\\",
            "\\..\\",
            "%2e%2e/",
            "a.txt",
            ".ringfence-",
            "\u{0}",
        ])
        .check(|bytes| {
            let (&tool, path) = bytes.split_first().unwrap_or((&0, b""));
            let path = String::from_utf8_lossy(path);
            let (tool, arguments) = match tool % 8 {
                0 => ("read_file", json!({"path": path})),
                1 => ("list_directory", json!({"path": path})),
                2 => ("get_file_info", json!({"path": path})),
                3 => ("write_file", json!({"path": path, "content": "new"})),
                4 => ("create_directory", json!({"path": path})),
                5 => ("copy_file", json!({"from": "dir/b.txt", "to": path})),
                6 => ("copy_file", json!({"from": path, "to": "copy", "overwrite": true})),
                _ => ("search_files", json!({"pattern": "SEC", "path": path})),
            };
            let (calls, worlds) = &mut *worlds.borrow_mut();
            *calls += 1;
            if *calls % A_FULL_WORLD == 0 {
                *worlds = fresh();
            }
            worlds.each_ref().map(|world| {
                let answer = world.call(tool, &arguments);
                check_inside(world, &answer);
                (tool, answer.error.map(|kind| kind.code()))
            })
        });
}

#[test]
fn no_arguments_are_more_than_a_wrong_call() {
    let worlds = Dialect::ALL.map(|dialect| world(dialect, ResolverBackend::Best, Preset::ReadOnly));
    FuzzTarget::new("arguments", env!("CARGO_MANIFEST_DIR"))
        .tokens(&[
            "{",
            "}",
            "\"path\":",
            "\"content\":",
            "\"patch\":",
            "\"encoding\":\"base64\"",
            "\"a.txt\"",
            "\"@workspace/a.txt\"",
            "\"old_string\":",
            "\"expected_sha256\":",
            "\"limit\":",
            "\"offset\":-1",
            "null",
            "true",
            "[]",
            "1e308",
            "\\ud800",
            "\\u0000",
            "\"pattern\":\"(a+)+$\"",
            "\"glob\":\"**/*\"",
            ",",
            ":",
        ])
        .check(|bytes| {
            let (&choice, arguments) = bytes.split_first().unwrap_or((&0, b""));
            let arguments = String::from_utf8_lossy(arguments);
            worlds.each_ref().map(|world| {
                let tools: Vec<_> = world.session.catalog.list().map(|tool| tool.name.clone()).collect();
                let tool = &tools[usize::from(choice) % tools.len()];
                let answer = world.call_text(tool, &arguments);
                check_inside(world, &answer);
                assert_eq!(world.read("a.txt"), "alpha\nbeta\n");
                if matches!(world.session.dialect, Dialect::Standard | Dialect::Crewagent) {
                    let reply: Value = serde_json::from_str(&answer.text).unwrap();
                    assert_eq!(reply["ok"], answer.error.is_none(), "{}", answer.text);
                }
                let said: String = answer.text.chars().filter(|c| !c.is_ascii_digit()).take(80).collect();
                (tool.clone(), answer.error.map(|kind| kind.code()), answer.error.map(|_| said))
            })
        });
}
