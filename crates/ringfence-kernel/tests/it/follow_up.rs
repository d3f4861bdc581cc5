//! Follow-up approval: what a run left is judged, shown and made like a plan of its own.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use ringfence_kernel::{
    ApprovalDecision, ApprovalResponse, CODE_MOUNT, CallContext, ChangeGroup, ChangeGroupDecision, Dialect, ErrorKind,
    FollowUpPlan, Host, HostConfig, PhasedTool, Policy, PolicyAction, PolicyRequest, PolicyResource, Preset, Preview,
    Principal, ProgressListener, ProgressUpdate, ResourceAccess, ReviewRequirement, Session, Ticket, Tool, ToolBinding,
    ToolCall, ToolError, ToolPhaseResult, ToolPlan, ToolRegistry, ToolReply, Verdict,
};
use ringfence_testkit::approver::{ScriptedApprover, approve, approve_with_changes, decision_by_person, deny};
use ringfence_testkit::audit_trace::AuditTrace;
use ringfence_testkit::host::{test_host_config, test_session};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::harness::{PathWordPolicy, assert_error, reply_json};

/// Run a program that changes a path.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Args {
    path: String,
    #[serde(default)]
    review: bool,
}

#[derive(Debug)]
enum TestProgramWork {
    Start(Args),
    Keep(Args, Vec<ChangeGroupDecision>),
}

#[derive(Debug, Serialize, JsonSchema)]
struct TestProgramOutcome {
    committed: bool,
    approved: bool,
    refused: Option<String>,
}

/// Runs until it may go on, and leaves a change.
struct TestProgramTool {
    release: Mutex<Option<Receiver<()>>>,
    starts: Arc<AtomicUsize>,
    kept: Arc<AtomicBool>,
    refused: Arc<Mutex<Vec<String>>>,
}

impl PhasedTool for TestProgramTool {
    type Args = Args;
    type Prepared = TestProgramWork;
    type Outcome = TestProgramOutcome;
    const GRACEFUL_STOP: bool = true;

    fn plan(&self, args: Args, _: &CallContext<'_>) -> Result<ToolPlan<TestProgramWork>, ToolError> {
        Ok(ToolPlan {
            accesses: vec![access(PolicyAction::Run, CODE_MOUNT, "python")],
            prepared: TestProgramWork::Start(args),
        })
    }

    fn preview(&self, work: &mut TestProgramWork, _: &CallContext<'_>) -> Result<Preview, ToolError> {
        match work {
            TestProgramWork::Start(args) => Ok(Preview::new(&format!("keep `{}`", args.path), "f")),
            TestProgramWork::Keep(args, decided) => {
                let asked =
                    args.path.split('+').zip(decided).filter(|(_, decision)| **decision == ChangeGroupDecision::Ask);
                let paths: Vec<&str> = asked.map(|(path, _)| path).collect();
                Ok(Preview::new(&format!("keep `{}`", paths.join("+")), "f"))
            }
        }
    }

    fn run_phase(
        &self,
        work: TestProgramWork,
        ticket: &Ticket<'_>,
    ) -> Result<ToolPhaseResult<TestProgramOutcome, TestProgramWork>, ToolError> {
        let cx = ticket.context();
        let (committed, left) = match work {
            TestProgramWork::Start(args) => {
                self.starts.fetch_add(1, Ordering::SeqCst);
                cx.report_progress(&ProgressUpdate { stream: "stdout", text: "half way" });
                if let Some(go) = self.release.lock().unwrap().take() {
                    // Until it may go on, it listens for the order to stop, as a real program's keeper does.
                    while go.recv_timeout(std::time::Duration::from_millis(1)).is_err() {
                        cx.check().map_err(|error| error.detail("stdout", "half way"))?;
                    }
                }
                (false, Some(args))
            }
            TestProgramWork::Keep(args, decided) => {
                ticket.commit()?;
                self.kept.store(true, Ordering::SeqCst);
                let paths = args.path.split('+').enumerate();
                paths
                    .filter(|(_, path)| path.starts_with("late"))
                    .for_each(|(group, _)| ticket.withhold(group, ToolError::new(ErrorKind::Conflict, "late")));
                assert!(decided.contains(&ChangeGroupDecision::Keep) && !decided.contains(&ChangeGroupDecision::Ask));
                let reason = |decision: &ChangeGroupDecision| match decision {
                    ChangeGroupDecision::Refuse(error) => Some(error.message.clone()),
                    _ => None,
                };
                self.refused.lock().unwrap().extend(decided.iter().filter_map(reason));
                (true, None)
            }
        };
        let outcome = TestProgramOutcome { committed, approved: ticket.is_approved(), refused: None };
        Ok(match left {
            Some(args) if !args.path.is_empty() => {
                let group = |path: &str| ChangeGroup {
                    accesses: vec![access(PolicyAction::Overwrite, "workspace", path)],
                    refusal: path.starts_with("pipe").then(|| ToolError::new(ErrorKind::WrongType, "a pipe")),
                };
                let groups = args.path.split('+').map(group).collect();
                ToolPhaseResult::FollowUp(FollowUpPlan { groups, prepared: TestProgramWork::Keep(args, Vec::new()) })
            }
            _ => ToolPhaseResult::Done(outcome),
        })
    }

    fn required_review(&self, work: &TestProgramWork) -> Option<ReviewRequirement> {
        matches!(work, TestProgramWork::Keep(args, _) if args.review).then_some(ReviewRequirement::REQUESTED_BY_CALLER)
    }

    fn reconcile(&self, work: &mut TestProgramWork, wanted: Vec<ChangeGroupDecision>) -> Vec<ChangeGroupDecision> {
        if let TestProgramWork::Keep(_, decided) = work {
            decided.clone_from(&wanted);
        }
        wanted
    }

    fn abort(&self, _: TestProgramWork, refused: ToolError) -> Result<TestProgramOutcome, ToolError> {
        match refused.kind {
            ErrorKind::Cancelled => Err(refused),
            _ => Ok(TestProgramOutcome { committed: false, approved: false, refused: Some(refused.message) }),
        }
    }
}

/// A call like most.
struct TestReadTool;

impl Tool for TestReadTool {
    type Args = Args;
    type Prepared = ();
    type Outcome = TestProgramOutcome;
    const ACTIONS: &'static [PolicyAction] = &[PolicyAction::Read];

    fn plan(&self, args: Args, _: &CallContext<'_>) -> Result<ToolPlan<()>, ToolError> {
        Ok(ToolPlan { accesses: vec![access(PolicyAction::Read, "workspace", &args.path)], prepared: () })
    }

    fn preview(&self, (): &mut (), _: &CallContext<'_>) -> Result<Preview, ToolError> {
        Ok(Preview::new("look", "f"))
    }

    fn run(&self, (): (), _: &Ticket<'_>) -> Result<TestProgramOutcome, ToolError> {
        Ok(TestProgramOutcome { committed: false, approved: false, refused: None })
    }
}

/// A call about a background job.
struct TestJobTool;

impl PhasedTool for TestJobTool {
    type Args = Args;
    type Prepared = ();
    type Outcome = TestProgramOutcome;
    const GRACEFUL_STOP: bool = true;
    const WAITS_FOR_JOB: bool = true;

    fn plan(&self, _: Args, _: &CallContext<'_>) -> Result<ToolPlan<()>, ToolError> {
        Ok(ToolPlan { accesses: vec![access(PolicyAction::Read, CODE_MOUNT, "free")], prepared: () })
    }

    fn preview(&self, (): &mut (), _: &CallContext<'_>) -> Result<Preview, ToolError> {
        Ok(Preview::new("wait", "f"))
    }

    fn run_phase(&self, (): (), _: &Ticket<'_>) -> Result<ToolPhaseResult<TestProgramOutcome, ()>, ToolError> {
        Ok(ToolPhaseResult::Done(TestProgramOutcome { committed: false, approved: false, refused: None }))
    }
}

fn access(action: PolicyAction, mount: &str, path: &str) -> ResourceAccess {
    let resource = PolicyResource {
        mount: Arc::from(mount),
        requested_path: path.to_owned(),
        display_path: path.to_owned(),
        ..PolicyResource::default()
    };
    ResourceAccess { action, resource }
}

struct FollowUpHost {
    host: Host,
    session: Arc<Session>,
    approver: ScriptedApprover,
    trace: AuditTrace,
    starts: Arc<AtomicUsize>,
    kept: Arc<AtomicBool>,
    refused: Arc<Mutex<Vec<String>>>,
}

impl FollowUpHost {
    fn new(policy: impl Policy + 'static, approver: ScriptedApprover, go: Option<Receiver<()>>) -> Self {
        let (kept, starts, trace) = (Arc::<AtomicBool>::default(), Arc::default(), AuditTrace::default());
        let refused = Arc::<Mutex<Vec<String>>>::default();
        let mut registry = ToolRegistry::new();
        let tool = TestProgramTool {
            release: Mutex::new(go),
            starts: Arc::clone(&starts),
            kept: Arc::clone(&kept),
            refused: Arc::clone(&refused),
        };
        registry.register(tool, [ToolBinding::standard::<Args, TestProgramOutcome>("run")]).unwrap();
        registry.register(TestReadTool, [ToolBinding::standard::<Args, TestProgramOutcome>("look")]).unwrap();
        registry.register(TestJobTool, [ToolBinding::standard::<Args, TestProgramOutcome>("job")]).unwrap();
        let session = test_session(&registry, Dialect::Standard);
        let host = Host::new(HostConfig {
            policy: Box::new(policy),
            approver: Box::new(approver.clone()),
            audit: Box::new(trace.clone()),
            workers: 1,
            ..test_host_config()
        });
        Self { host, session: Arc::new(session), approver, trace, starts, kept, refused }
    }

    fn answering(answers: impl IntoIterator<Item = ApprovalDecision>) -> Self {
        Self::new(PathWordPolicy, ScriptedApprover::with_answers(answers), None)
    }

    async fn call(&self, arguments: &Value, cancel: &CancellationToken) -> ToolReply {
        let call = ToolCall { id: "1".to_owned(), name: "run".to_owned(), arguments: arguments.to_string() };
        self.host.call(&self.session, call, cancel).await.unwrap()
    }

    async fn run(&self, arguments: Value) -> Value {
        reply_json(&self.call(&arguments, &CancellationToken::new()).await)
    }

    fn changes_kept(&self) -> bool {
        self.kept.load(Ordering::SeqCst)
    }
}

#[tokio::test]
async fn allowed_changes_are_kept_with_a_record_of_their_own() {
    let stage = FollowUpHost::answering([]);
    let reply = stage.run(json!({"path": "free"})).await;
    assert_eq!(reply["value"], json!({"committed": true, "approved": false, "refused": null}));
    assert_eq!(stage.trace.lines(), ["begin python", "begin change free", "end ok free"]);
}

#[tokio::test]
async fn a_run_without_changes_ends_the_call() {
    let stage = FollowUpHost::answering([]);
    assert_eq!(stage.run(json!({"path": ""})).await["value"]["committed"], false);
    assert_eq!(stage.trace.lines(), ["begin python", "end ok python"]);
}

#[tokio::test]
async fn changes_asked_about_are_kept_when_approved_and_discarded_when_denied() {
    let stage = FollowUpHost::answering([approve(), deny()]);
    let reply = stage.run(json!({"path": "ask"})).await;
    assert_eq!(reply["value"], json!({"committed": true, "approved": true, "refused": null}));
    stage.kept.store(false, Ordering::SeqCst);
    let reply = stage.run(json!({"path": "ask"})).await;
    assert_eq!((&reply["ok"], &reply["value"]["committed"]), (&json!(true), &json!(false)));
    assert!(reply["value"]["refused"].as_str().unwrap().contains("I do not like it"), "{reply}");
    assert!(!stage.changes_kept());
    let lines = [
        "begin python",
        "begin approved change ask",
        "end ok ask",
        "begin python",
        "not kept ApprovalDenied ask",
        "end ok python",
    ];
    assert_eq!(stage.trace.lines(), lines);
    let asked = stage.approver.asked.lock().unwrap()[0].clone();
    assert_eq!((asked.preview.text().as_str(), asked.grant), ("keep `ask`", None));
}

#[tokio::test]
async fn denied_changes_are_discarded_without_asking() {
    let stage = FollowUpHost::answering([approve()]);
    let reply = stage.run(json!({"path": "deny"})).await;
    assert_eq!((&reply["ok"], &reply["value"]["committed"]), (&json!(true), &json!(false)));
    assert_eq!((stage.changes_kept(), stage.approver.asked.lock().unwrap().len()), (false, 0));
    let lines = ["begin python", "not kept PermissionDenied deny", "end ok python"];
    assert_eq!(stage.trace.lines(), lines, "what was denied never happened");
}

/// A run that leaves several groups: what is asked, and what the records say is kept.
#[tokio::test]
async fn every_group_is_decided_by_itself_with_one_question_and_one_change() {
    for (path, answer, asked, lines) in [
        ("free+deny", None, None, vec!["not kept PermissionDenied deny", "begin change free", "end ok free"]),
        (
            "free+ask 1+ask 2",
            Some(approve()),
            Some("keep `ask 1+ask 2`"),
            vec!["begin approved change free ask 1 ask 2", "end ok free ask 1 ask 2"],
        ),
        (
            "free+ask 1+deny",
            Some(deny()),
            Some("keep `ask 1`"),
            vec!["not kept ApprovalDenied ask 1", "not kept PermissionDenied deny", "begin change free", "end ok free"],
        ),
        ("pipe+free", None, None, vec!["not kept WrongType pipe", "begin change free", "end ok free"]),
        (
            "ask 1+pipe",
            Some(deny()),
            Some("keep `ask 1`"),
            vec!["not kept ApprovalDenied ask 1", "not kept WrongType pipe", "end ok python"],
        ),
        ("free+late", None, None, vec!["begin change free late", "not kept Conflict late", "end ok free"]),
    ] {
        let stage = FollowUpHost::answering(answer);
        stage.run(json!({"path": path})).await;
        assert_eq!(stage.trace.lines()[1..], lines, "{path}");
        let questions: Vec<String> =
            stage.approver.asked.lock().unwrap().iter().map(|request| request.preview.text()).collect();
        assert_eq!(questions, asked.map(str::to_owned).into_iter().collect::<Vec<_>>(), "{path}");
    }
}

#[tokio::test]
async fn a_review_is_asked_for_where_the_policy_allows_and_never_loosens_it() {
    let stage = FollowUpHost::answering([deny(), approve()]);
    assert_eq!(stage.run(json!({"path": "free", "review": true})).await["value"]["committed"], false);
    assert_eq!(stage.run(json!({"path": "free", "review": true})).await["value"]["committed"], true);
    assert_eq!(stage.run(json!({"path": "deny", "review": true})).await["value"]["committed"], false);
    let asked = stage.approver.asked.lock().unwrap().clone();
    assert_eq!(asked.iter().map(|request| request.rule.as_str()).collect::<Vec<_>>(), ["review", "review"]);
}

#[tokio::test]
async fn the_arguments_of_a_run_cannot_be_changed_or_granted_afterwards() {
    let always = decision_by_person(ApprovalResponse { approved: true, remember: true, ..ApprovalResponse::default() });
    let stage = FollowUpHost::answering([approve_with_changes(json!({"path": "other"})), always]);
    for _ in 0..2 {
        assert_eq!(stage.run(json!({"path": "ask"})).await["value"]["committed"], false);
    }
    assert!(!stage.changes_kept());
}

/// An approver that defers the answer does not wait any longer, and the changes exist in this call only.
#[tokio::test]
async fn a_deferred_answer_keeps_what_is_allowed_and_nothing_else() {
    for (path, lines) in [
        ("ask", vec!["not kept ApprovalDenied ask", "end ok python"]),
        ("free+ask", vec!["not kept ApprovalDenied ask", "begin change free", "end ok free"]),
    ] {
        let stage = FollowUpHost::new(PathWordPolicy, ScriptedApprover::deferring(), None);
        let reply = stage.run(json!({"path": path})).await;
        assert_eq!(reply["ok"], true, "{reply}");
        assert_eq!(stage.trace.lines()[1..], lines, "{path}");
        assert!(stage.host.inbox(&Principal::person("ann")).pending(SystemTime::now()).unwrap().is_empty(), "{path}");
    }
    let stage = FollowUpHost::new(PathWordPolicy, ScriptedApprover::deferring(), None);
    let reply = stage.run(json!({"path": "free", "review": true})).await;
    let reason = reply["value"]["refused"].as_str().unwrap();
    assert!(reason.starts_with("not approved: no answer while the call waited ("), "{reply}");
    assert!(!stage.changes_kept());
}

#[tokio::test]
async fn an_answer_from_another_front_counts_while_the_approver_waits() {
    let stage = Arc::new(FollowUpHost::new(PathWordPolicy, ScriptedApprover::default(), None));
    let call = tokio::spawn({
        let stage = Arc::clone(&stage);
        async move { stage.run(json!({"path": "ask"})).await }
    });
    stage.approver.asked_notify.notified().await;
    let person = Principal::person("ann");
    let inbox = stage.host.inbox(&person);
    let request = inbox.pending(SystemTime::now()).unwrap().remove(0);
    inbox.answer(&request.id, approve().response, ringfence_kernel::Assurance::Person, SystemTime::now()).unwrap();
    assert_eq!(call.await.unwrap()["value"]["committed"], true);
}

/// The program has ended by then: only what still needs an answer is lost.
#[tokio::test]
async fn a_call_cancelled_while_its_changes_wait_keeps_what_is_allowed() {
    for (arguments, error, lines) in [
        (json!({"path": "free+ask"}), None, vec!["not kept Cancelled ask", "begin change free", "end ok free"]),
        (json!({"path": "ask"}), Some(ErrorKind::Cancelled), vec!["not kept Cancelled ask", "end Cancelled python"]),
        (
            json!({"path": "free 1+free 2", "review": true}),
            Some(ErrorKind::Cancelled),
            vec!["not kept Cancelled free 1 free 2", "end Cancelled python"],
        ),
    ] {
        let stage = Arc::new(FollowUpHost::new(PathWordPolicy, ScriptedApprover::default(), None));
        let cancel = CancellationToken::new();
        let call = tokio::spawn({
            let (stage, cancel, arguments) = (Arc::clone(&stage), cancel.clone(), arguments.clone());
            async move { stage.call(&arguments, &cancel).await }
        });
        stage.approver.asked_notify.notified().await;
        cancel.cancel();
        let reply = call.await.unwrap();
        assert_eq!(reply.error_kind(), error, "{}", reply.text);
        assert_eq!(stage.trace.lines()[1..], lines, "{arguments}");
    }
}

/// As `PathWordPolicy`, with a reason that names the path.
#[derive(Debug)]
struct NamedReasons;

impl Policy for NamedReasons {
    fn evaluate(&self, access: &ResourceAccess, request: &PolicyRequest<'_>) -> Verdict {
        let reason = format!("this would overwrite `{}`", access.resource.display_path);
        Verdict { reason, ..PathWordPolicy.evaluate(access, request) }
    }
}

#[tokio::test]
async fn each_group_that_is_not_approved_has_a_reason_of_its_own() {
    for approver in [ScriptedApprover::with_answers([deny()]), ScriptedApprover::deferring()] {
        let stage = FollowUpHost::new(NamedReasons, approver, None);
        stage.run(json!({"path": "free+ask 1+ask 2"})).await;
        let refused = stage.refused.lock().unwrap().clone();
        let paths = ["ask 1", "ask 2"];
        assert_eq!(refused.len(), 2, "{refused:?}");
        for (path, reason) in paths.iter().zip(&refused) {
            let others = paths.iter().filter(|other| *other != path);
            assert!(reason.contains(path) && !others.into_iter().any(|other| reason.contains(other)), "{refused:?}");
        }
    }
}

#[tokio::test]
async fn a_run_waiting_in_the_approval_queue_is_not_run_again() {
    let stage = Arc::new(FollowUpHost::new(PathWordPolicy, ScriptedApprover::default(), None));
    let run = |path: &'static str| {
        let stage = Arc::clone(&stage);
        tokio::spawn(async move { stage.run(json!({"path": path})).await })
    };
    let calls = [run("ask 1"), run("ask 2")];
    let person = Principal::person("ann");
    for _ in &calls {
        stage.approver.asked_notify.notified().await;
        let inbox = stage.host.inbox(&person);
        let waiting = inbox.pending(SystemTime::now()).unwrap();
        assert_eq!(waiting.len(), 1);
        inbox
            .answer(&waiting[0].id, approve().response, ringfence_kernel::Assurance::Person, SystemTime::now())
            .unwrap();
    }
    for call in calls {
        assert_eq!(call.await.unwrap()["value"]["committed"], true);
    }
    assert_eq!(stage.starts.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_preset_says_to_a_program_what_it_says_to_every_tool() {
    for (preset, path, committed) in [
        (Preset::Ask, "src/main.rs", false),
        (Preset::Ask, ".git/hooks/pre-commit", false),
        (Preset::Edits, "src/main.rs", true),
        (Preset::Edits, ".vscode/tasks.json", false),
        (Preset::ReadOnly, "src/main.rs", false),
    ] {
        let stage = FollowUpHost::new(preset, ScriptedApprover::with_answers([deny()]), None);
        assert_eq!(stage.run(json!({"path": path})).await["value"]["committed"], committed, "{preset:?} {path}");
    }
}

#[tokio::test]
async fn a_cancelled_run_ends_by_itself_and_says_what_it_had_to_say() {
    let (_go, held) = channel();
    let stage = FollowUpHost::new(PathWordPolicy, ScriptedApprover::default(), Some(held));
    let cancel = CancellationToken::new();
    let listener = Arc::new(CancelOnProgress(cancel.clone(), Mutex::default()));
    let call = ToolCall { id: "1".to_owned(), name: "run".to_owned(), arguments: json!({"path": "free"}).to_string() };
    let progress: Arc<dyn ProgressListener> = listener.clone();
    let reply = stage.host.call_with_progress(&stage.session, call, &cancel, Some(progress)).await.unwrap();
    assert_error(&reply, ErrorKind::Cancelled);
    assert_eq!(reply_json(&reply)["error"]["details"]["stdout"], "half way");
    assert_eq!(*listener.1.lock().unwrap(), ["stdout half way"]);
    assert_eq!(
        (stage.changes_kept(), stage.trace.lines()),
        (false, vec!["begin python".to_owned(), "end Cancelled python".to_owned()])
    );
}

#[tokio::test]
async fn other_calls_go_on_while_programs_take_all_their_places() {
    let (go, held) = channel();
    let stage = Arc::new(FollowUpHost::new(PathWordPolicy, ScriptedApprover::default(), Some(held)));
    let program = tokio::spawn({
        let stage = Arc::clone(&stage);
        async move { stage.run(json!({"path": "free"})).await }
    });
    stage.trace.wait_for_lines(1).await;
    // Calls about background jobs have places of their own too.
    for name in ["look", "job"] {
        let call = ToolCall { id: "2".to_owned(), name: name.to_owned(), arguments: json!({"path": "a"}).to_string() };
        let reply = stage.host.call(&stage.session, call, &CancellationToken::new()).await.unwrap();
        assert_eq!(reply.error_kind(), None, "{}", reply.text);
    }
    assert!(!program.is_finished());
    go.send(()).unwrap();
    assert_eq!(program.await.unwrap()["value"]["committed"], true);
}

/// Cancels as soon as it hears of anything.
#[derive(Debug)]
struct CancelOnProgress(CancellationToken, Mutex<Vec<String>>);

impl ProgressListener for CancelOnProgress {
    fn on_progress(&self, progress: &ProgressUpdate<'_>) {
        self.1.lock().unwrap().push(format!("{} {}", progress.stream, progress.text));
        self.0.cancel();
    }
}
