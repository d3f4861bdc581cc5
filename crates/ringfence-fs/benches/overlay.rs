//! Benchmark of overlay views and commits: 10,000 files, and views of 100,000.
//!
//! `cargo xtask bench overlay` runs it. Printed are the best time and the median of each, beside copying the same files
//! without any sync, and copying them with one sync in the end.

#![expect(clippy::expect_used, clippy::print_stdout, reason = "a bench says what it finds, or stops")]
#![allow(clippy::disallowed_methods, reason = "a bench compares with the plain way")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use ringfence_fs::{Fence, FenceOptions, MountAccess, MountSpec};
use ringfence_kernel::{
    CallCommitState, CallContext, CallLimits, ChangeGroupDecision, DenyApprover, Dialect, Host, HostConfig,
    InMemoryApprovalStore, IoMode, NullAuditSink, Preset, Preview, Principal, ReplyForm, Session, SessionMemory,
    SessionTaint, Ticket, Tool, ToolBinding, ToolCall, ToolError, ToolFilter, ToolPlan, ToolRegistry, Workspace,
    WorkspaceChanges, WorkspaceView,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

const FILES: usize = 10_000;
const ROUNDS: usize = 5;
const VIEWED_FILES: usize = 100_000;
const VIEWS: usize = 50;

fn main() {
    // `cargo test --benches` only asks whether this builds and starts.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    println!(
        "| view of a workspace, as before each program | first | next, best of {VIEWS} | median |\n|---|---|---|---|"
    );
    for files in [0, VIEWED_FILES / 10, VIEWED_FILES] {
        let [first, best, median] = view_times(files).map(|time| time.as_secs_f64() * 1e3);
        println!("| {files} files | {first:.1} ms | {best:.1} ms | {median:.1} ms |");
    }
    println!();
    let mut times: Vec<(&str, Vec<Duration>)> = Vec::new();
    for _ in 0..ROUNDS {
        for (what, time) in round() {
            match times.iter_mut().find(|(known, _)| *known == what) {
                Some((_, taken)) => taken.push(time),
                None => times.push((what, vec![time])),
            }
        }
    }
    println!("| {FILES} files, {ROUNDS} times | best | median |\n|---|---|---|");
    for (what, mut taken) in times {
        taken.sort();
        let [best, median] = [0, ROUNDS / 2].map(|nth| taken[nth].as_secs_f64() * 1e3);
        println!("| {what} | {best:.0} ms | {median:.0} ms |");
    }
}

/// Times of the first view of a workspace, of the fastest after it, and their median. A file changes between two views.
fn view_times(files: usize) -> [Duration; 3] {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let root = directory.path().join("ws");
    fs::create_dir(&root).expect("a workspace");
    for number in 0..files {
        let path = root.join(format!("d{}/e{}/f{number}", number % 100, number % 1000));
        if number < 1000 {
            fs::create_dir_all(path.parent().expect("it has one")).expect("directories");
        }
        fs::write(path, "").expect("a file");
    }
    let workspace = MountSpec { alias: "workspace".to_owned(), path: root.clone(), rights: MountAccess::ReadWrite };
    let state = directory.path().join("state");
    let fence = Fence::new(workspace, Vec::new(), &state, FenceOptions::default()).expect("a fence");
    let caller = OverlayBench::new(&fence);
    let mut times: Vec<Duration> = (0..=VIEWS)
        .map(|view| {
            fs::write(root.join(format!("changed-{view}")), "").expect("a file");
            let begun = Instant::now();
            caller.started();
            begun.elapsed()
        })
        .collect();
    let first = times.remove(0);
    times.sort();
    [first, times[0], times[VIEWS / 2]]
}

/// Commits an overlay, as a tool that ran a program in it would.
struct CommitBenchTool(Arc<dyn Workspace>);

/// Commit a layer.
#[derive(Debug, Deserialize, JsonSchema)]
struct Args {
    upper: PathBuf,
    started: u64,
}

/// An empty outcome.
#[derive(Debug, Serialize, JsonSchema)]
struct CommitBenchOutcome {
    change: String,
}

impl Tool for CommitBenchTool {
    type Args = Args;
    type Prepared = Box<dyn WorkspaceChanges>;
    type Outcome = CommitBenchOutcome;

    fn plan(&self, args: Args, cx: &CallContext<'_>) -> Result<ToolPlan<Self::Prepared>, ToolError> {
        let view = WorkspaceView { started: UNIX_EPOCH + Duration::from_nanos(args.started), ..self.0.view(cx)? };
        let work = self.0.changes(&view, fs::File::open(args.upper).expect("a layer").into(), cx)?;
        let accesses = work.groups().into_iter().flat_map(|group| group.accesses).collect();
        Ok(ToolPlan { accesses, prepared: work })
    }

    fn preview(&self, work: &mut Self::Prepared, cx: &CallContext<'_>) -> Result<Preview, ToolError> {
        work.preview(cx)
    }

    fn run(&self, mut work: Self::Prepared, ticket: &Ticket<'_>) -> Result<CommitBenchOutcome, ToolError> {
        work.reconcile(vec![ChangeGroupDecision::Keep; work.groups().len()]);
        work.commit(ticket)?;
        Ok(CommitBenchOutcome { change: ticket.change_id().to_owned() })
    }
}

fn round() -> Vec<(&'static str, Duration)> {
    // Beside the build and not in memory: a sync has to mean something.
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let memory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let root = directory.path().join("ws");
    fs::create_dir(&root).expect("a workspace");
    let workspace = MountSpec { alias: "workspace".to_owned(), path: root.clone(), rights: MountAccess::ReadWrite };
    let fence =
        Fence::new(workspace, Vec::new(), &directory.path().join("state"), FenceOptions::default()).expect("a fence");
    let caller = OverlayBench::new(&fence);
    let mut times = Vec::new();
    let mut time = |what, act: &mut dyn FnMut()| {
        let begun = Instant::now();
        act();
        times.push((what, begun.elapsed()));
    };
    let (new, changed) = (memory.path().join("new"), memory.path().join("changed"));
    fill(&new, "first");
    fill(&changed, "second");
    time("copy them", &mut || copy(&new, &directory.path().join("copy")));
    time("copy them, and sync", &mut || {
        copy(&new, &directory.path().join("synced"));
        rustix::fs::syncfs(fs::File::open(&root).expect("a directory")).expect("a sync");
    });
    let started = caller.started();
    time("commit them in new directories", &mut || caller.commit(&new, started));
    time("view a workspace that has them", &mut || _ = caller.started());
    let started = caller.started();
    time("commit a change of each", &mut || caller.commit(&changed, started));
    time("compare a layer in which nothing changed", &mut || caller.compare(&changed));
    time("undo the change of each", &mut || caller.call("undo", "{}"));
    times
}

fn fill(at: &Path, word: &str) {
    for n in 0..FILES {
        let path = at.join(format!("d{}/f{n}.txt", n % 100));
        fs::create_dir_all(path.parent().expect("it has one")).expect("directories");
        fs::write(path, format!("{word} {n}\n").repeat(50)).expect("a file");
    }
}

fn copy(from: &Path, to: &Path) {
    for n in 0..FILES {
        let name = format!("d{}/f{n}.txt", n % 100);
        if n < 100 {
            fs::create_dir_all(to.join(format!("d{n}"))).expect("directories");
        }
        fs::copy(from.join(&name), to.join(&name)).expect("a copy");
    }
}

struct OverlayBench {
    host: Host,
    session: Arc<Session>,
    workspace: Arc<dyn Workspace>,
    limits: CallLimits,
}

impl OverlayBench {
    fn new(fence: &Fence) -> Self {
        let workspace = fence.workspace("workspace").expect("a workspace");
        let mut registry = ToolRegistry::new();
        ringfence_fs::register(&mut registry, fence).expect("tools");
        let face = ToolBinding::standard::<Args, CommitBenchOutcome>("commit_layer");
        registry.register(CommitBenchTool(Arc::clone(&workspace)), [face]).expect("a tool");
        let limits = CallLimits { call_time: Duration::from_secs(600), ..CallLimits::for_dialect(Dialect::Standard) };
        let session = Session {
            id: "bench".to_owned(),
            principal: Principal::agent("bench"),
            dialect: Dialect::Standard,
            agent: None,
            limits: limits.clone(),
            catalog: registry.catalog(Dialect::Standard, &ToolFilter::default()).expect("a catalog"),
            taint: SessionTaint::default(),
            memory: SessionMemory::default(),
            replies: ReplyForm::default(),
        };
        let host = Host::new(HostConfig {
            policy: Box::new(Preset::Edits),
            approver: Box::new(DenyApprover { advice: String::new() }),
            audit: Box::new(NullAuditSink),
            store: Box::new(InMemoryApprovalStore::default()),
            workers: 2,
        });
        Self { host, session: Arc::new(session), workspace, limits }
    }

    fn view(&self) -> WorkspaceView {
        let signal = CallCommitState::new();
        self.workspace.view(&CallContext::new(&self.limits, IoMode::Blocking, &signal)).expect("a view")
    }

    fn started(&self) -> u64 {
        let started = self.view().started.duration_since(UNIX_EPOCH).expect("a time");
        u64::try_from(started.as_nanos()).expect("a time")
    }

    fn compare(&self, upper: &Path) {
        let signal = CallCommitState::new();
        let cx = CallContext::new(&self.limits, IoMode::Blocking, &signal);
        let upper = fs::File::open(upper).expect("a layer");
        let changes = self.workspace.changes(&self.view(), upper.into(), &cx).expect("changes");
        assert!(changes.changed_paths().is_empty());
    }

    fn commit(&self, upper: &Path, started: u64) {
        self.call("commit_layer", &format!(r#"{{"upper":{upper:?},"started":{started}}}"#));
    }

    fn call(&self, tool: &str, arguments: &str) {
        let call = ToolCall { id: "1".to_owned(), name: tool.to_owned(), arguments: arguments.to_owned() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        let cancel = CancellationToken::new();
        let reply = runtime.block_on(self.host.call(&self.session, call, &cancel)).expect("a reply");
        assert!(reply.error_kind().is_none(), "{}", reply.text.chars().take(300).collect::<String>());
    }
}
