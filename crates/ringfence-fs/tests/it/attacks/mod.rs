//! Attack tables: bad input, and the safe reply to each.
//!
//! A case is data: a workspace, some calls, and the expected replies. `check` makes the calls on every backend and
//! verifies, after each of them, that nothing outside was changed, that the reply leaks nothing, that no temporary file
//! stays, and that a refused change changed nothing.
//!
//! Not here: races.

mod content;
mod directory_dump;
mod edit;
mod links;
mod mounts;
mod move_delete;
mod operations;
mod patch;
mod permissions;
mod protocol;
mod real_mounts;
mod special_files;
mod spelling;
mod subprocess;
pub(crate) mod syscall_faults;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use ringfence_fs::{MountAccess, NameRule, ResolverBackend};
use ringfence_kernel::{Dialect, ErrorKind};
use ringfence_testkit::patience::PATIENCE;
use serde_json::Value;

use crate::attacks::directory_dump::{DirectoryDump, TimeComparison};
use crate::attacks::subprocess::is_child;
use crate::fixture::{FixtureReply, FsFixture, FsFixtureConfig};

/// A sentence, and the calls that show that it holds.
pub(crate) struct FsAttackCase {
    name: String,
    setup: FsFixtureConfig,
    given: Vec<FixtureAction>,
    steps: Vec<AttackStep>,
}

/// Something that is done to a world.
type FixtureAction = Box<dyn Fn(&FsFixture)>;

/// A look at a world and at what a call returned.
type ResultCheck = Box<dyn Fn(&FsFixture, &Value)>;

enum AttackStep {
    Call(AttackCall),
    /// Looks at the world, or changes it from outside.
    Then(FixtureAction),
}

struct AttackCall {
    tool: &'static str,
    arguments: AttackArguments,
    expected: AttackExpectation,
}

/// `{ROOT}` and `{HOST}` in arguments stand for where the workspace is, and what is around it.
enum AttackArguments {
    Text(String),
    /// Large ones are made when they are needed.
    Made(Box<dyn Fn() -> String>),
}

enum AttackExpectation {
    /// One of these kinds, and every one of these words in the reply.
    Error(Vec<ErrorKind>, Vec<String>),
    /// The whole text of the reply, error or not.
    Text(Option<ErrorKind>, String),
    /// Success; the value is looked at, in the standard dialect.
    Value(ResultCheck),
}

/// Begins a case. It goes on with what is there, and then the calls.
pub(crate) fn case(name: impl Into<String>) -> FsAttackCase {
    FsAttackCase { name: name.into(), setup: FsFixtureConfig::default(), given: Vec::new(), steps: Vec::new() }
}

impl FsAttackCase {
    pub(crate) fn miniclaw(self) -> Self {
        self.with_dialect(Dialect::Miniclaw)
    }

    pub(crate) fn with_dialect(mut self, dialect: Dialect) -> Self {
        let FsFixtureConfig { options, mounts, .. } = self.setup;
        self.setup = FsFixtureConfig { options, mounts, ..FsFixtureConfig::of(dialect) };
        self
    }

    pub(crate) fn portable(mut self) -> Self {
        self.setup.options.names = NameRule::Portable;
        self
    }

    pub(crate) fn mounted(mut self, mounts: &[(&'static str, MountAccess)]) -> Self {
        self.setup.mounts.extend_from_slice(mounts);
        self
    }

    pub(crate) fn set(mut self, change: impl FnOnce(&mut FsFixtureConfig)) -> Self {
        change(&mut self.setup);
        self
    }

    /// Puts something there before the first call.
    pub(crate) fn given(mut self, make: impl Fn(&FsFixture) + 'static) -> Self {
        self.given.push(Box::new(make));
        self
    }

    /// A file of the workspace.
    pub(crate) fn file(self, path: &'static str, content: impl AsRef<[u8]> + 'static) -> Self {
        self.given(move |world| world.write(path, content.as_ref()))
    }

    pub(crate) fn directory(self, path: &'static str) -> Self {
        self.given(move |world| std::fs::create_dir_all(world.root.join(path)).unwrap())
    }

    /// A link in the workspace; `{ROOT}` and `{HOST}` in its target are where they are.
    pub(crate) fn link(self, path: &'static str, target: &'static str) -> Self {
        self.given(move |world| {
            std::os::unix::fs::symlink(expand_placeholders(target, world), world.root.join(path)).unwrap();
        })
    }

    pub(crate) fn fails(self, tool: &'static str, arguments: impl ToString, kind: ErrorKind) -> Self {
        self.fails_saying(tool, arguments, kind, &[])
    }

    pub(crate) fn fails_saying(
        self,
        tool: &'static str,
        arguments: impl ToString,
        kind: ErrorKind,
        words: &[&str],
    ) -> Self {
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        self.call(tool, AttackArguments::Text(arguments.to_string()), AttackExpectation::Error(vec![kind], words))
    }

    /// Refused, by whichever of these names the backend has for it.
    pub(crate) fn refused(self, tool: &'static str, arguments: impl ToString, kinds: &[ErrorKind]) -> Self {
        self.call(
            tool,
            AttackArguments::Text(arguments.to_string()),
            AttackExpectation::Error(kinds.to_vec(), Vec::new()),
        )
    }

    /// The same for arguments that are too large to keep.
    pub(crate) fn fails_on(
        self,
        tool: &'static str,
        make: impl Fn() -> Value + 'static,
        kind: ErrorKind,
        words: &[&str],
    ) -> Self {
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        let made = AttackArguments::Made(Box::new(move || make().to_string()));
        self.call(tool, made, AttackExpectation::Error(vec![kind], words))
    }

    /// The whole reply of a call that succeeds.
    pub(crate) fn replies(self, tool: &'static str, arguments: impl ToString, text: impl Into<String>) -> Self {
        self.call(tool, AttackArguments::Text(arguments.to_string()), AttackExpectation::Text(None, text.into()))
    }

    /// The whole reply of a call that fails.
    pub(crate) fn fails_with_text(
        self,
        tool: &'static str,
        arguments: impl ToString,
        kind: ErrorKind,
        text: impl Into<String>,
    ) -> Self {
        self.call(tool, AttackArguments::Text(arguments.to_string()), AttackExpectation::Text(Some(kind), text.into()))
    }

    pub(crate) fn succeeds(
        self,
        tool: &'static str,
        arguments: impl ToString,
        look: impl Fn(&FsFixture, &Value) + 'static,
    ) -> Self {
        self.call(tool, AttackArguments::Text(arguments.to_string()), AttackExpectation::Value(Box::new(look)))
    }

    pub(crate) fn then(mut self, look: impl Fn(&FsFixture) + 'static) -> Self {
        self.steps.push(AttackStep::Then(Box::new(look)));
        self
    }

    fn call(mut self, tool: &'static str, arguments: AttackArguments, expected: AttackExpectation) -> Self {
        self.steps.push(AttackStep::Call(AttackCall { tool, arguments, expected }));
        self
    }
}

/// Implementation of path resolution while a table is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AttackBackend {
    /// The kernel, by `openat2`.
    Openat2,
    /// `cap-std`, because it was asked for.
    CapStd,
    /// `cap-std`, because a sandbox around us, or an old kernel, has neither `openat2` nor `statx`.
    Blocked,
}

/// Checks a table on every backend. It is built again for each, on a thread of its own.
#[track_caller]
pub(crate) fn check(table: fn() -> Vec<FsAttackCase>) {
    let failed: Vec<String> = [AttackBackend::Openat2, AttackBackend::CapStd, AttackBackend::Blocked]
        .into_iter()
        .flat_map(|way| std::thread::spawn(move || check_on(way, table())).join().unwrap())
        .collect();
    assert!(failed.is_empty(), "{} do not hold:\n{}", failed.len(), failed.join("\n"));
}

fn check_on(way: AttackBackend, cases: Vec<FsAttackCase>) -> Vec<String> {
    if way == AttackBackend::Blocked {
        syscall_faults::fail_with(&[
            syscall_faults::SyscallFault::openat2(syscall_faults::ENOSYS),
            syscall_faults::SyscallFault::statx(syscall_faults::ENOSYS),
        ]);
    }
    assert!(!cases.is_empty());
    let mut failed = Vec::new();
    for case in cases {
        let result = catch_unwind(AssertUnwindSafe(|| check_one(way, &case)));
        if let Err(panic) = result {
            let why = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            failed.push(format!("{way:?}: {}: {}", case.name, why.unwrap_or("?")));
        }
    }
    failed
}

fn check_one(way: AttackBackend, case: &FsAttackCase) {
    let backend = if way == AttackBackend::CapStd { ResolverBackend::CapStd } else { ResolverBackend::Best };
    let world = FsFixture::at(temp_dir_for(way), case.setup.clone().on(backend));
    assert_eq!(world.backend, if way == AttackBackend::Openat2 { "openat2" } else { "cap-std" });
    prepare(&world, case);
    run(&world, case);
}

/// `openat2` is tried on the disk, the others in memory where possible: two file systems for one, and a table that
/// writes a lot does not wait for the disk three times.
fn temp_dir_for(way: AttackBackend) -> tempfile::TempDir {
    let in_memory =
        if way == AttackBackend::Openat2 || is_child() { None } else { tempfile::tempdir_in("/dev/shm").ok() };
    in_memory.unwrap_or_else(|| tempfile::tempdir().unwrap())
}

/// Puts there what a case needs.
fn prepare(world: &FsFixture, case: &FsAttackCase) {
    for make in &case.given {
        make(world);
    }
}

/// Makes the calls of a case, and looks after each.
fn run(world: &FsFixture, case: &FsAttackCase) {
    for step in &case.steps {
        match step {
            AttackStep::Then(look) => look(world),
            AttackStep::Call(call) => check_call(world, case, call),
        }
    }
}

fn check_call(world: &FsFixture, case: &FsAttackCase, call: &AttackCall) {
    let arguments = match &call.arguments {
        AttackArguments::Text(text) => expand_placeholders(text, world),
        AttackArguments::Made(make) => make(),
    };
    let (inside, outside) = (inside(world), DirectoryDump::of(&world.outside, TimeComparison::Compared));
    let begun = Instant::now();
    let answer = world.call_text(call.tool, &arguments);
    let took = begun.elapsed();

    let shown: String = arguments.chars().take(200).collect();
    let what = format!("{} {shown}: {}", call.tool, answer.text.chars().take(600).collect::<String>());
    assert!(took < PATIENCE, "{what}: took {took:?}");
    assert_eq!(
        DirectoryDump::of(&world.outside, TimeComparison::Compared),
        outside,
        "{what}: something outside was touched"
    );
    assert!(!answer.text.contains("SECRET"), "{what}: gives away what is outside");
    assert!(!answer.text.contains(world.host_path().to_str().unwrap()), "{what}: gives away the host path");
    let now = self::inside(world);
    assert_eq!(now.temporary(), inside.temporary(), "{what}: left a temporary file");
    if let Some(kind) = answer.error {
        assert_eq!(now.difference(&inside), "", "{what}: refused, and changed something");
        assert!(answer.text.len() < 16 << 10, "{what}: {} bytes of error", answer.text.len());
        check_name(world, kind, &answer, &what);
    }
    match &call.expected {
        AttackExpectation::Error(kinds, words) => {
            let kind = answer.error.unwrap_or_else(|| panic!("{what}: succeeded, and {kinds:?} was expected"));
            assert!(kinds.contains(&kind), "{what}: {kind:?}, and {kinds:?} was expected");
            for word in words {
                assert!(answer.text.contains(word.as_str()), "{what}: does not say {word:?}");
            }
        }
        AttackExpectation::Text(kind, text) => assert_eq!((&answer.error, &answer.text), (kind, text), "{what}"),
        AttackExpectation::Value(look) => {
            assert_eq!(answer.error, None, "{what}: {} failed", case.name);
            let reply: Value = serde_json::from_str(&answer.text).unwrap_or(Value::Null);
            look(world, &reply["value"]);
        }
    }
}

/// Everything around the workspace but what is outside, and our own state.
fn inside(world: &FsFixture) -> DirectoryDump {
    DirectoryDump::excluding(world.host_path(), &["outside", "state"], TimeComparison::Ignored)
}

fn expand_placeholders(text: &str, world: &FsFixture) -> String {
    let host = world.host_path().to_str().unwrap();
    text.replace("{ROOT}", &format!("{host}/ws")).replace("{HOST}", host)
}

/// The name that each dialect has for a kind of error, as CONTRACTS.md says.
fn check_name(world: &FsFixture, kind: ErrorKind, answer: &FixtureReply, what: &str) {
    let (standard, miniclaw, crewagent) = match kind {
        ErrorKind::InvalidArgs => ("INVALID_ARGS", "invalid", "E_INVALID_ARGS"),
        ErrorKind::InvalidPath => ("INVALID_PATH", "invalid_path: ", "E_SANDBOX_VIOLATION"),
        ErrorKind::OutsideWorkspace => ("INVALID_PATH", "outside_workspace: ", "E_SANDBOX_VIOLATION"),
        ErrorKind::ReadOnly | ErrorKind::PermissionDenied => {
            ("PERMISSION_DENIED", "permission_denied: ", "E_SANDBOX_VIOLATION")
        }
        ErrorKind::NotFound => ("FILE_NOT_FOUND", "path_not_found: ", "ENOENT"),
        ErrorKind::AlreadyExists => ("ALREADY_EXISTS", "io_error: ", "E_PRECONDITION_FAILED"),
        ErrorKind::ApprovalDenied => ("APPROVAL_DENIED", "permission_denied: ", "E_APPROVAL_DENIED"),
        ErrorKind::ApprovalPending => ("APPROVAL_PENDING", "permission_denied: ", "E_APPROVAL_PENDING"),
        ErrorKind::NotText => ("NOT_TEXT", "io_error: ", "FS_READ_BINARY_FALLBACK"),
        ErrorKind::WrongType => ("WRONG_TYPE", "io_error: ", "E_INTERNAL"),
        ErrorKind::ReadLimit => ("READ_LIMIT", "io_error: ", "E_READ_LIMIT"),
        ErrorKind::WriteLimit => ("WRITE_LIMIT", "io_error: ", "E_WRITE_LIMIT"),
        ErrorKind::Conflict => ("CONFLICT", "io_error: ", "E_PRECONDITION_FAILED"),
        ErrorKind::EditNotFound => ("EDIT_NOT_FOUND", "edit_not_found: ", "E_PRECONDITION_FAILED"),
        ErrorKind::AmbiguousEdit => ("AMBIGUOUS_EDIT", "ambiguous_edit: ", "E_PRECONDITION_FAILED"),
        ErrorKind::Frontmatter => ("INVALID_FRONTMATTER", "io_error: ", "E_INVALID_FRONTMATTER"),
        ErrorKind::Schema => ("SCHEMA_VALIDATION", "io_error: ", "E_SCHEMA_VALIDATION"),
        ErrorKind::Transition => ("INVALID_TRANSITION", "io_error: ", "E_INVALID_TRANSITION"),
        ErrorKind::Timeout => ("TIMEOUT", "io_error: ", "E_TIMEOUT"),
        ErrorKind::Cancelled => ("CANCELLED", "io_error: ", "E_CANCELLED"),
        ErrorKind::UnknownTool => ("UNKNOWN_TOOL", "tool not found: ", "TOOL_NOT_AVAILABLE"),
        ErrorKind::Execution => ("EXECUTION_ERROR", "io_error: ", "TOOL_EXEC_FAILED"),
        ErrorKind::Network => ("NETWORK_ERROR", "io_error: ", "E_NETWORK"),
        ErrorKind::Unavailable => ("UNAVAILABLE", "io_error: ", "TOOL_NOT_AVAILABLE"),
        ErrorKind::Io => ("IO_ERROR", "io_error: ", "E_INTERNAL"),
        ErrorKind::Internal => ("INTERNAL", "io_error: ", "E_INTERNAL"),
    };
    match world.session.dialect {
        Dialect::Standard => {
            let reply: Value = serde_json::from_str(&answer.text).unwrap();
            assert_eq!((&reply["ok"], &reply["error"]["code"]), (&Value::Bool(false), &standard.into()), "{what}");
        }
        // A model reads the sentence alone.
        Dialect::Claude | Dialect::Codex | Dialect::Gemini => {
            assert!(!answer.text.starts_with(['{', '[']) && !answer.text.contains(standard), "{what}");
        }
        Dialect::Miniclaw => assert!(answer.text.starts_with(miniclaw), "{what}: does not begin with {miniclaw:?}"),
        Dialect::Crewagent => {
            let reply: Value = serde_json::from_str(&answer.text).unwrap();
            assert_eq!((&reply["ok"], &reply["error"]["code"]), (&Value::Bool(false), &crewagent.into()), "{what}");
        }
    }
}
