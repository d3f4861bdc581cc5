//! A call whose effects only its run can tell: what it left is judged, shown and made like a plan of its own.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use ringfence_kernel::{
    Answered, ApprovalResponse, Bits, CODE, ChangeGroup, Choice, Context, Dialect, ErrorKind, Face, Host, KeepDecision,
    Limits, Listener, MemoryStore, Next, Parts, Place, Plan, Policy, Preset, Preview, Principal, Progress, Registry,
    Remainder, Reply, Review, Session, Ticket, Tool, ToolCall, ToolError, Touch, Verb,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::road::{ByName, Somebody, Trace, assert_error, by_person, change, json, no, yes};

/// Run a program that changes a path.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Args {
    path: String,
    #[serde(default)]
    review: bool,
}

#[derive(Debug)]
enum Work {
    Start(Args),
    Keep(Args, Vec<KeepDecision>),
}

#[derive(Debug, Serialize, JsonSchema)]
struct Did {
    committed: bool,
    approved: bool,
    refused: Option<String>,
    #[serde(skip)]
    left: Option<Args>,
}

/// Runs until it may go on, and leaves a change.
struct Program {
    go: Mutex<Option<Receiver<()>>>,
    starts: Arc<AtomicUsize>,
    kept: Arc<AtomicBool>,
}

impl Tool for Program {
    type Args = Args;
    type Work = Work;
    type Outcome = Did;
    const STOPS_ITSELF: bool = true;

    fn plan(&self, args: Args, _: &Context<'_>) -> Result<Plan<Work>, ToolError> {
        Ok(Plan { touches: vec![touch(Verb::Run, CODE, "python")], work: Work::Start(args) })
    }

    fn preview(&self, work: &mut Work, _: &Context<'_>) -> Result<Preview, ToolError> {
        match work {
            Work::Start(args) => Ok(Preview::new(&format!("keep `{}`", args.path), "f")),
            Work::Keep(args, decided) => {
                let asked = args.path.split('+').zip(decided).filter(|(_, decision)| **decision == KeepDecision::Ask);
                let paths: Vec<&str> = asked.map(|(path, _)| path).collect();
                Ok(Preview::new(&format!("keep `{}`", paths.join("+")), "f"))
            }
        }
    }

    fn run(&self, work: Work, ticket: &Ticket<'_>) -> Result<Did, ToolError> {
        let cx = ticket.context();
        let (committed, left) = match work {
            Work::Start(args) => {
                self.starts.fetch_add(1, Ordering::SeqCst);
                cx.report(&Progress { stream: "stdout", text: "half way" });
                if let Some(go) = self.go.lock().unwrap().take() {
                    // Until it may go on, it listens for the order to stop, as a real program's keeper does.
                    while go.recv_timeout(std::time::Duration::from_millis(1)).is_err() {
                        cx.check().map_err(|error| error.detail("stdout", "half way"))?;
                    }
                }
                (false, Some(args))
            }
            Work::Keep(args, decided) => {
                ticket.commit()?;
                self.kept.store(true, Ordering::SeqCst);
                let paths = args.path.split('+').enumerate();
                paths
                    .filter(|(_, path)| path.starts_with("late"))
                    .for_each(|(group, _)| ticket.withhold(group, ToolError::new(ErrorKind::Conflict, "late")));
                assert!(decided.contains(&KeepDecision::Keep) && !decided.contains(&KeepDecision::Ask));
                (true, None)
            }
        };
        Ok(Did { committed, approved: ticket.approved(), refused: None, left })
    }

    fn wants_review(&self, work: &Work) -> Option<Review> {
        matches!(work, Work::Keep(args, _) if args.review).then_some(Review::WISHED)
    }

    fn follow(&self, mut outcome: Did) -> Next<Did, Work> {
        match outcome.left.take() {
            Some(args) if !args.path.is_empty() => {
                let group = |path: &str| ChangeGroup {
                    touches: vec![touch(Verb::Overwrite, "workspace", path)],
                    refused: path.starts_with("pipe").then(|| ToolError::new(ErrorKind::WrongType, "a pipe")),
                };
                let groups = args.path.split('+').map(group).collect();
                Next::Rest(Remainder { groups, work: Work::Keep(args, Vec::new()) })
            }
            _ => Next::Done(outcome),
        }
    }

    fn settle(&self, work: &mut Work, wanted: Vec<KeepDecision>) -> Vec<KeepDecision> {
        if let Work::Keep(_, decided) = work {
            decided.clone_from(&wanted);
        }
        wanted
    }

    fn leave(&self, _: Work, refused: ToolError) -> Result<Did, ToolError> {
        match refused.kind {
            ErrorKind::Cancelled => Err(refused),
            _ => Ok(Did { committed: false, approved: false, refused: Some(refused.message), left: None }),
        }
    }
}

/// A call like most.
struct Glance;

impl Tool for Glance {
    type Args = Args;
    type Work = ();
    type Outcome = Did;
    const VERBS: &'static [Verb] = &[Verb::Read];

    fn plan(&self, args: Args, _: &Context<'_>) -> Result<Plan<()>, ToolError> {
        Ok(Plan { touches: vec![touch(Verb::Read, "workspace", &args.path)], work: () })
    }

    fn preview(&self, (): &mut (), _: &Context<'_>) -> Result<Preview, ToolError> {
        Ok(Preview::new("look", "f"))
    }

    fn run(&self, (): (), _: &Ticket<'_>) -> Result<Did, ToolError> {
        Ok(Did { committed: false, approved: false, refused: None, left: None })
    }
}

fn touch(verb: Verb, mount: &str, path: &str) -> Touch {
    let place = Place { mount: Arc::from(mount), given: path.to_owned(), shown: path.to_owned(), ..Place::default() };
    Touch { verb, place }
}

struct Stage {
    host: Host,
    session: Arc<Session>,
    somebody: Somebody,
    trace: Trace,
    starts: Arc<AtomicUsize>,
    kept: Arc<AtomicBool>,
}

impl Stage {
    fn new(policy: impl Policy + 'static, somebody: Somebody, go: Option<Receiver<()>>) -> Self {
        let (kept, starts, trace) = (Arc::<AtomicBool>::default(), Arc::default(), Trace::with_room(usize::MAX));
        let mut registry = Registry::new();
        let tool = Program { go: Mutex::new(go), starts: Arc::clone(&starts), kept: Arc::clone(&kept) };
        registry.register(tool, [Face::standard::<Args, Did>("run")]).unwrap();
        registry.register(Glance, [Face::standard::<Args, Did>("look")]).unwrap();
        let session = Session {
            id: "test".to_owned(),
            principal: Principal::agent("test"),
            dialect: Dialect::Standard,
            agent: None,
            limits: Limits::of(Dialect::Standard),
            catalog: registry.catalog(Dialect::Standard, &Choice::default()).unwrap(),
            bits: Bits::default(),
        };
        let host = Host::new(Parts {
            policy: Box::new(policy),
            approver: Box::new(somebody.clone()),
            audit: Box::new(trace.clone()),
            store: Box::new(MemoryStore::default()),
            workers: 1,
        });
        Self { host, session: Arc::new(session), somebody, trace, starts, kept }
    }

    fn answering(answers: impl IntoIterator<Item = Answered>) -> Self {
        Self::new(ByName, Somebody::saying(answers), None)
    }

    async fn call(&self, arguments: &Value, cancel: &CancellationToken) -> Reply {
        let call = ToolCall { id: "1".to_owned(), name: "run".to_owned(), arguments: arguments.to_string() };
        self.host.call(&self.session, call, cancel).await.unwrap()
    }

    async fn run(&self, arguments: Value) -> Value {
        json(&self.call(&arguments, &CancellationToken::new()).await)
    }

    fn kept(&self) -> bool {
        self.kept.load(Ordering::SeqCst)
    }
}

#[tokio::test]
async fn what_is_allowed_is_kept_with_a_record_of_its_own() {
    let stage = Stage::answering([]);
    let reply = stage.run(json!({"path": "free"})).await;
    assert_eq!(reply["value"], json!({"committed": true, "approved": false, "refused": null}));
    assert_eq!(stage.trace.lines(), ["begin python", "begin change free", "end ok free"]);
}

#[tokio::test]
async fn a_run_that_left_nothing_is_over() {
    let stage = Stage::answering([]);
    assert_eq!(stage.run(json!({"path": ""})).await["value"]["committed"], false);
    assert_eq!(stage.trace.lines(), ["begin python", "end ok python"]);
}

#[tokio::test]
async fn what_is_asked_about_is_kept_after_a_yes_and_left_after_a_no() {
    let stage = Stage::answering([yes(), no()]);
    let reply = stage.run(json!({"path": "ask"})).await;
    assert_eq!(reply["value"], json!({"committed": true, "approved": true, "refused": null}));
    stage.kept.store(false, Ordering::SeqCst);
    let reply = stage.run(json!({"path": "ask"})).await;
    assert_eq!((&reply["ok"], &reply["value"]["committed"]), (&json!(true), &json!(false)));
    assert!(reply["value"]["refused"].as_str().unwrap().contains("I do not like it"), "{reply}");
    assert!(!stage.kept());
    let lines = [
        "begin python",
        "begin approved change ask",
        "end ok ask",
        "begin python",
        "not kept ApprovalDenied ask",
        "end ok python",
    ];
    assert_eq!(stage.trace.lines(), lines);
    let asked = stage.somebody.asked.lock().unwrap()[0].clone();
    assert_eq!((asked.preview.as_str(), asked.grant), ("keep `ask`", None));
}

#[tokio::test]
async fn what_is_denied_is_left_and_nobody_is_asked() {
    let stage = Stage::answering([yes()]);
    let reply = stage.run(json!({"path": "deny"})).await;
    assert_eq!((&reply["ok"], &reply["value"]["committed"]), (&json!(true), &json!(false)));
    assert_eq!((stage.kept(), stage.somebody.asked.lock().unwrap().len()), (false, 0));
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
            Some(yes()),
            Some("keep `ask 1+ask 2`"),
            vec!["begin approved change free ask 1 ask 2", "end ok free ask 1 ask 2"],
        ),
        (
            "free+ask 1+deny",
            Some(no()),
            Some("keep `ask 1`"),
            vec!["not kept ApprovalDenied ask 1", "not kept PermissionDenied deny", "begin change free", "end ok free"],
        ),
        ("pipe+free", None, None, vec!["not kept WrongType pipe", "begin change free", "end ok free"]),
        (
            "ask 1+pipe",
            Some(no()),
            Some("keep `ask 1`"),
            vec!["not kept ApprovalDenied ask 1", "not kept WrongType pipe", "end ok python"],
        ),
        ("free+late", None, None, vec!["begin change free late", "not kept Conflict late", "end ok free"]),
    ] {
        let stage = Stage::answering(answer);
        stage.run(json!({"path": path})).await;
        assert_eq!(stage.trace.lines()[1..], lines, "{path}");
        let questions: Vec<String> =
            stage.somebody.asked.lock().unwrap().iter().map(|request| request.preview.clone()).collect();
        assert_eq!(questions, asked.map(str::to_owned).into_iter().collect::<Vec<_>>(), "{path}");
    }
}

#[tokio::test]
async fn a_review_is_asked_for_where_the_policy_allows_and_never_loosens_it() {
    let stage = Stage::answering([no(), yes()]);
    assert_eq!(stage.run(json!({"path": "free", "review": true})).await["value"]["committed"], false);
    assert_eq!(stage.run(json!({"path": "free", "review": true})).await["value"]["committed"], true);
    assert_eq!(stage.run(json!({"path": "deny", "review": true})).await["value"]["committed"], false);
    let asked = stage.somebody.asked.lock().unwrap().clone();
    assert_eq!(asked.iter().map(|request| request.rule.as_str()).collect::<Vec<_>>(), ["review", "review"]);
}

#[tokio::test]
async fn what_ran_cannot_be_changed_any_more_nor_allowed_for_good() {
    let always = by_person(ApprovalResponse { approved: true, remember: true, ..ApprovalResponse::default() });
    let stage = Stage::answering([change(json!({"path": "other"})), always]);
    for _ in 0..2 {
        assert_eq!(stage.run(json!({"path": "ask"})).await["value"]["committed"], false);
    }
    assert!(!stage.kept());
}

#[tokio::test]
async fn an_answer_that_is_put_off_is_waited_for() {
    let somebody = Somebody { puts_off: true, ..Somebody::default() };
    let stage = Arc::new(Stage::new(ByName, somebody, None));
    let call = tokio::spawn({
        let stage = Arc::clone(&stage);
        async move { stage.run(json!({"path": "ask"})).await }
    });
    stage.somebody.bell.notified().await;
    let person = Principal::person("somebody");
    let desk = stage.host.desk(&person);
    let request = desk.pending(SystemTime::now()).unwrap().remove(0);
    desk.answer(&request.id, yes().response, ringfence_kernel::Assurance::Person, SystemTime::now()).unwrap();
    assert_eq!(call.await.unwrap()["value"]["committed"], true);
}

#[tokio::test]
async fn what_waits_for_its_turn_to_be_asked_about_is_not_run_again() {
    let stage = Arc::new(Stage::new(ByName, Somebody::default(), None));
    let run = |path: &'static str| {
        let stage = Arc::clone(&stage);
        tokio::spawn(async move { stage.run(json!({"path": path})).await })
    };
    let calls = [run("ask 1"), run("ask 2")];
    let person = Principal::person("somebody");
    for _ in &calls {
        stage.somebody.bell.notified().await;
        let desk = stage.host.desk(&person);
        let waiting = desk.pending(SystemTime::now()).unwrap();
        assert_eq!(waiting.len(), 1);
        desk.answer(&waiting[0].id, yes().response, ringfence_kernel::Assurance::Person, SystemTime::now()).unwrap();
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
        let stage = Stage::new(preset, Somebody::saying([no()]), None);
        assert_eq!(stage.run(json!({"path": path})).await["value"]["committed"], committed, "{preset:?} {path}");
    }
}

#[tokio::test]
async fn a_cancelled_run_ends_by_itself_and_says_what_it_had_to_say() {
    let (_go, held) = channel();
    let stage = Stage::new(ByName, Somebody::default(), Some(held));
    let cancel = CancellationToken::new();
    let listener = Arc::new(Stopper(cancel.clone(), Mutex::default()));
    let call = ToolCall { id: "1".to_owned(), name: "run".to_owned(), arguments: json!({"path": "free"}).to_string() };
    let heard: Arc<dyn Listener> = listener.clone();
    let reply = stage.host.call_heard(&stage.session, call, &cancel, Some(heard)).await.unwrap();
    assert_error(&reply, ErrorKind::Cancelled);
    assert_eq!(json(&reply)["error"]["details"]["stdout"], "half way");
    assert_eq!(*listener.1.lock().unwrap(), ["stdout half way"]);
    assert_eq!(
        (stage.kept(), stage.trace.lines()),
        (false, vec!["begin python".to_owned(), "end Cancelled python".to_owned()])
    );
}

#[tokio::test]
async fn other_calls_go_on_while_programs_take_all_their_places() {
    let (go, held) = channel();
    let stage = Arc::new(Stage::new(ByName, Somebody::default(), Some(held)));
    let program = tokio::spawn({
        let stage = Arc::clone(&stage);
        async move { stage.run(json!({"path": "free"})).await }
    });
    stage.trace.reaches(1).await;
    let call = ToolCall { id: "2".to_owned(), name: "look".to_owned(), arguments: json!({"path": "a"}).to_string() };
    let reply = stage.host.call(&stage.session, call, &CancellationToken::new()).await.unwrap();
    assert_eq!(reply.error, None, "{}", reply.text);
    assert!(!program.is_finished());
    go.send(()).unwrap();
    assert_eq!(program.await.unwrap()["value"]["committed"], true);
}

/// Cancels as soon as it hears of anything.
#[derive(Debug)]
struct Stopper(CancellationToken, Mutex<Vec<String>>);

impl Listener for Stopper {
    fn hear(&self, progress: &Progress<'_>) {
        self.1.lock().unwrap().push(format!("{} {}", progress.stream, progress.text));
        self.0.cancel();
    }
}
