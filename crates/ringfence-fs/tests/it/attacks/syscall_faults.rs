//! Syscall fault injection, by a seccomp filter on the calling thread.
//!
//! A filter cannot be removed, and threads that are started later have it too: use it on a thread that ends.

use std::collections::BTreeMap;

use ringfence_fs::{Durability, ResolverBackend};
use ringfence_kernel::ErrorKind::{self, Io, WriteLimit};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter,
};
use serde_json::json;

use super::{FsAttackCase, case, prepare, run};
use crate::fixture::FsFixture;

pub(crate) const ENOSYS: u32 = 38;
const EIO: u32 = 5;
const EAGAIN: u32 = 11;
pub(crate) const EMFILE: u32 = 24;
const EINVAL: u32 = 22;
const EFBIG: u32 = 27;
const ENOSPC: u32 = 28;
const EDQUOT: u32 = 122;

/// Flags of `renameat2`.
const NOREPLACE: u64 = 1;
const EXCHANGE: u64 = 2;

/// A length that nothing but our content has, so that only its `write` fails.
const ODD_LENGTH: usize = 12_347;

/// One system call that fails, always or when an argument has a value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SyscallFault {
    call: SyscallNumber,
    when: Option<(u8, u64)>,
    errno: u32,
}

/// System calls, by their numbers on this machine.
#[derive(Clone, Copy, Debug)]
enum SyscallNumber {
    Write,
    Fsync,
    Fdatasync,
    Renameat2,
    Openat2,
    Statx,
}

impl SyscallNumber {
    fn get(self) -> i64 {
        let (x86_64, elsewhere) = match self {
            Self::Write => (1, 64),
            Self::Fsync => (74, 82),
            Self::Fdatasync => (75, 83),
            Self::Renameat2 => (316, 276),
            Self::Openat2 => (437, 437),
            Self::Statx => (332, 291),
        };
        if cfg!(target_arch = "x86_64") { x86_64 } else { elsewhere }
    }
}

impl SyscallFault {
    pub(crate) const fn openat2(errno: u32) -> Self {
        Self { call: SyscallNumber::Openat2, when: None, errno }
    }

    /// A kernel so old that it does not tell which mount a file is on.
    pub(crate) const fn statx(errno: u32) -> Self {
        Self { call: SyscallNumber::Statx, when: None, errno }
    }

    /// A file system that does not know these flags.
    const fn rename_with(flags: u64) -> Self {
        Self { call: SyscallNumber::Renameat2, when: Some((4, flags)), errno: EINVAL }
    }

    const fn write(errno: u32) -> Self {
        Self { call: SyscallNumber::Write, when: Some((2, ODD_LENGTH as u64)), errno }
    }

    const fn sync(call: SyscallNumber) -> Self {
        Self { call, when: None, errno: EIO }
    }
}

/// From now on these calls fail on this thread, and on those that it starts.
pub(crate) fn fail_with(faults: &[SyscallFault]) {
    for fault in faults {
        let rules = match fault.when {
            None => Vec::new(),
            Some((argument, value)) => {
                let when = SeccompCondition::new(argument, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, value).unwrap();
                vec![SeccompRule::new(vec![when]).unwrap()]
            }
        };
        let rules = BTreeMap::from([(fault.call.get(), rules)]);
        let arch = std::env::consts::ARCH.try_into().unwrap();
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(fault.errno), arch).unwrap();
        apply_filter(&BpfProgram::try_from(filter).unwrap()).unwrap();
    }
}

/// Checks cases on both backends, with faults that begin after the worlds are made.
fn check_with(faults: &'static [SyscallFault], cases: fn() -> Vec<FsAttackCase>) {
    for backend in [ResolverBackend::Best, ResolverBackend::CapStd] {
        let failing = std::thread::spawn(move || {
            let cases = cases();
            let worlds: Vec<FsFixture> =
                cases.iter().map(|case| FsFixture::with(case.setup.clone().on(backend))).collect();
            for (world, case) in worlds.iter().zip(&cases) {
                prepare(world, case);
            }
            fail_with(faults);
            for (world, case) in worlds.iter().zip(&cases) {
                run(world, case);
            }
        });
        failing.join().unwrap();
    }
}

/// Every way to write contents that cannot be written: what was there stays, and nothing else comes.
fn every_write(kind: ErrorKind) -> Vec<FsAttackCase> {
    let whole = "x".repeat(ODD_LENGTH);
    let cases = vec![
        case("a change that cannot be written changes nothing")
            .file("f", "old")
            .file("log", "old\n")
            .file("big", whole.clone())
            .fails("write_file", json!({"path": "f", "content": whole}), kind)
            .fails("write_file", json!({"path": "new", "content": whole}), kind)
            .fails("write_file", json!({"path": "a/b/new", "content": whole, "createDirs": true}), kind)
            .fails("append_file", json!({"path": "log", "content": whole}), kind)
            .fails("append_file", json!({"path": "new", "content": whole}), kind)
            .fails("edit_file", json!({"path": "f", "oldText": "old", "newText": whole}), kind)
            .fails("copy_file", json!({"from": "big", "to": "copy"}), kind)
            .fails("copy_file", json!({"from": "big", "to": "f", "overwrite": true}), kind),
    ];
    cases
}

#[test]
fn a_full_disk_leaves_what_was_there() {
    check_with(const { &[SyscallFault::write(ENOSPC)] }, || every_write(Io));
}

#[test]
fn an_exhausted_quota_leaves_what_was_there() {
    check_with(const { &[SyscallFault::write(EDQUOT)] }, || every_write(Io));
}

#[test]
fn a_file_larger_than_the_process_may_write_is_too_large() {
    check_with(const { &[SyscallFault::write(EFBIG)] }, || every_write(WriteLimit));
}

#[test]
fn a_sync_that_fails_is_a_change_that_did_not_happen() {
    check_with(
        const { &[SyscallFault::sync(SyscallNumber::Fsync), SyscallFault::sync(SyscallNumber::Fdatasync)] },
        || {
            let cases = every_write(Io);
            // A directory that is not synced is then no step of the change.
            cases.into_iter().map(|case| case.set(|setup| setup.options.durability = Durability::Ordered)).collect()
        },
    );
}

#[test]
fn a_directory_that_cannot_be_synced_leaves_no_temporary_file() {
    check_with(const { &[SyscallFault::sync(SyscallNumber::Fsync)] }, || {
        vec![
            case("what was deleted is gone, though it is not known whether on disk")
                .file("f", "x")
                .file("d/g", "x")
                .then(|world| {
                    for path in ["f", "d"] {
                        let arguments = json!({"path": path, "recursive": true});
                        assert_eq!(world.error("delete_file", &arguments), Io);
                    }
                    let left = std::fs::read_dir(&world.root).unwrap().map(|entry| entry.unwrap().file_name());
                    let left: Vec<_> = left.filter(|name| name != ".ringfence").collect();
                    assert!(left.is_empty(), "{left:?}");
                }),
        ]
    });
}

#[test]
fn a_lookup_that_is_disturbed_again_and_again_is_busy() {
    let disturbed = std::thread::spawn(|| {
        let world = FsFixture::new();
        world.write("f", "x");
        fail_with(&[SyscallFault::openat2(EAGAIN)]);
        assert_eq!(world.backend, "openat2");
        for (tool, arguments) in [
            ("read_file", json!({"path": "f"})),
            ("list_directory", json!({"path": "."})),
            ("write_file", json!({"path": "f", "content": "y"})),
            ("delete_file", json!({"path": "f"})),
        ] {
            let case = case("busy").fails_saying(tool, arguments, Io, &["busy"]);
            run(&world, &case);
        }
    });
    disturbed.join().unwrap();
}

/// Cases that have to work on file systems without rename flags, such as NFS.
fn every_rename() -> Vec<FsAttackCase> {
    vec![
        case("files are made, replaced, moved and deleted without help of the file system")
            .file("f", "old")
            .file("g", "g")
            .file("d/h", "h")
            .succeeds("write_file", json!({"path": "new", "content": "new"}), |world, _| {
                assert_eq!(world.read("new"), "new");
            })
            .succeeds("write_file", json!({"path": "f", "content": "new"}), |world, _| {
                assert_eq!(world.read("f"), "new")
            })
            .succeeds("edit_file", json!({"path": "f", "oldText": "new", "newText": "newer"}), |world, _| {
                assert_eq!(world.read("f"), "newer");
            })
            .succeeds("copy_file", json!({"from": "f", "to": "copy"}), |world, _| {
                assert_eq!(world.read("copy"), "newer");
            })
            .fails("move_file", json!({"from": "f", "to": "g"}), ErrorKind::AlreadyExists)
            .succeeds("move_file", json!({"from": "f", "to": "g", "overwrite": true}), |world, _| {
                assert_eq!(world.read("g"), "newer");
                assert!(!world.root.join("f").exists());
            })
            .succeeds("move_file", json!({"from": "g", "to": "f"}), |world, _| assert_eq!(world.read("f"), "newer"))
            .succeeds("move_file", json!({"from": "d", "to": "e"}), |world, _| assert_eq!(world.read("e/h"), "h"))
            .succeeds("delete_file", json!({"path": "e", "recursive": true}), |world, _| {
                assert!(!world.root.join("e").exists());
            })
            .succeeds("delete_file", json!({"path": "f"}), |world, _| assert!(!world.root.join("f").exists())),
    ]
}

#[test]
fn a_file_system_that_cannot_exchange_names_will_do() {
    check_with(const { &[SyscallFault::rename_with(EXCHANGE)] }, every_rename);
}

#[test]
fn a_file_system_that_knows_no_flags_for_a_rename_will_do() {
    check_with(const { &[SyscallFault::rename_with(EXCHANGE), SyscallFault::rename_with(NOREPLACE)] }, every_rename);
}
