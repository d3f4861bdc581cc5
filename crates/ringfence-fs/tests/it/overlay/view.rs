//! Overlay views: what a program is shown of the workspace.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;

use ringfence_kernel::{CallLimits, Dialect, ErrorKind};
use serde_json::json;

use super::{OverlayFixture, setup, view};
use crate::attacks::syscall_faults;
use crate::fixture::FsFixture;

fn masked(world: &FsFixture) -> Vec<String> {
    let view = view(world, &CallLimits::for_dialect(Dialect::Standard)).unwrap();
    view.workspace.masked.iter().map(|path| path.to_str().unwrap().to_owned()).collect()
}

/// A program that finds a directory covered is wrong about it: it could not even remove it.
#[test]
fn a_directory_that_the_host_cannot_open_now_keeps_a_program_from_starting() {
    let short = std::thread::spawn(|| {
        let layered = OverlayFixture::new(&[("d/f", "x")]);
        syscall_faults::fail_with(&[syscall_faults::SyscallFault::openat2(syscall_faults::EMFILE)]);
        view(&layered.world, &CallLimits::for_dialect(Dialect::Standard))
            .map(|view| view.workspace.masked)
            .map_err(|error| error.kind)
    });
    assert_eq!(short.join().unwrap(), Err(ErrorKind::Io));
}

#[test]
fn secrets_are_masked_by_name_and_by_what_they_are() {
    let world = FsFixture::with(setup());
    let files = [
        ".env",
        "node_modules/p/.env.local",
        "keys/server.pem",
        ".ssh/config",
        "src/main.rs",
        ".env.example",
        "z/plain",
    ];
    files.iter().for_each(|path| world.write(path, "x"));
    fs::hard_link(world.root.join(".env"), world.root.join("a-link")).unwrap();
    fs::hard_link(world.root.join(".env"), world.root.join("z/link")).unwrap();
    symlink("z/plain", world.root.join("deploy.env")).unwrap();
    symlink(world.outside.join("secret"), world.root.join("out.env")).unwrap();
    let expected = [".env", ".ssh", "a-link", "keys/server.pem", "node_modules/p/.env.local", "z/link", "z/plain"];
    assert_eq!(masked(&world), expected);
    // It is known by what it is, also when nothing has its name any more.
    fs::remove_file(world.root.join(".env")).unwrap();
    fs::rename(world.root.join("a-link"), world.root.join("b-link")).unwrap();
    let found = masked(&world);
    assert!(found.contains(&"b-link".to_owned()) && found.contains(&"z/link".to_owned()), "{found:?}");
}

#[test]
fn the_image_store_is_hidden_and_the_directory_stays_open() {
    let world = FsFixture::with(setup());
    world.write("a", "a");
    world.value("write_file", &json!({"path": "a", "content": "b"}));
    world.write("sub/.ringfence/x", "x");
    let view = view(&world, &CallLimits::for_dialect(Dialect::Standard)).unwrap();
    assert_eq!(view.workspace.hidden, [Path::new(".ringfence"), Path::new("sub/.ringfence")]);
    assert_eq!(view.workspace.path, fs::canonicalize(&world.root).unwrap());
    let (held, named) = (rustix::fs::fstat(&view.workspace.directory).unwrap(), fs::metadata(&world.root).unwrap());
    assert_eq!((held.st_dev, held.st_ino), (named.dev(), named.ino()));
}

#[test]
fn a_workspace_that_cannot_be_searched_for_secrets_is_not_shown() {
    let world = FsFixture::with(setup());
    (0..30).for_each(|n| world.write(&format!("d{}/{n}", n % 3), "x"));
    let limits = CallLimits { walk_entries: 20, ..CallLimits::for_dialect(Dialect::Standard) };
    let error = view(&world, &limits).unwrap_err();
    assert_eq!(error.kind, ErrorKind::ReadLimit);
    assert!(error.message.contains("searched for secrets"), "{}", error.message);
}

#[test]
fn a_directory_that_cannot_be_looked_into_is_masked() {
    let world = FsFixture::with(setup());
    world.write("shut/.env", "x");
    fs::set_permissions(world.root.join("shut"), fs::Permissions::from_mode(0o000)).unwrap();
    assert_eq!(masked(&world), ["shut"]);
    fs::set_permissions(world.root.join("shut"), fs::Permissions::from_mode(0o700)).unwrap();
}
