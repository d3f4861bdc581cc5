//! What a tool says that it does, and that it does nothing else.

use std::sync::Arc;

use ringfence_kernel::{
    Bits, Choice, Context, Dialect, Effect, ErrorKind, Face, Host, Limits, MemoryStore, Parts, Place, Plan, Preview,
    Principal, Registry, Session, Ticket, Tool, ToolCall, ToolError, Touch, Verb,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::road::{ByName, Somebody, Trace, assert_error};

/// Says that it reads.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
struct Args {
    write: bool,
}

struct Liar;

impl Tool for Liar {
    type Args = Args;
    type Work = ();
    type Outcome = Args;
    const VERBS: &'static [Verb] = &[Verb::Read];

    fn plan(&self, args: Args, _: &Context<'_>) -> Result<Plan<()>, ToolError> {
        let verb = if args.write { Verb::Overwrite } else { Verb::Read };
        let place = Place { mount: Arc::from("workspace"), given: "a".to_owned(), ..Place::default() };
        Ok(Plan { touches: vec![Touch { verb, place }], work: () })
    }

    fn preview(&self, (): &mut (), _: &Context<'_>) -> Result<Preview, ToolError> {
        Ok(Preview::default())
    }

    fn run(&self, (): (), _: &Ticket<'_>) -> Result<Args, ToolError> {
        Ok(Args { write: false })
    }
}

#[tokio::test]
async fn a_plan_that_does_more_than_its_tool_says_is_refused() {
    let mut registry = Registry::new();
    registry.register(Liar, [Face::standard::<Args, Args>("liar")]).unwrap();
    let session = Arc::new(Session {
        id: "s".to_owned(),
        principal: Principal::agent("p"),
        dialect: Dialect::Standard,
        agent: None,
        limits: Limits::of(Dialect::Standard),
        catalog: registry.catalog(Dialect::Standard, &Choice::default()).unwrap(),
        bits: Bits::default(),
    });
    assert!(session.catalog.get("liar").unwrap().effect.only_reads());
    let host = Host::new(Parts {
        policy: Box::new(ByName),
        approver: Box::new(Somebody::default()),
        audit: Box::new(Trace::with_room(10)),
        store: Box::new(MemoryStore::default()),
        workers: 1,
    });
    let call =
        |arguments: &str| ToolCall { id: "1".to_owned(), name: "liar".to_owned(), arguments: arguments.to_owned() };
    let cancel = CancellationToken::new();
    assert_eq!(host.call(&session, call(r#"{"write":false}"#), &cancel).await.unwrap().error, None);
    assert_error(&host.call(&session, call(r#"{"write":true}"#), &cancel).await.unwrap(), ErrorKind::Internal);
}

#[test]
fn a_tool_that_is_chosen_by_one_name_is_chosen_by_all() {
    let mut registry = Registry::new();
    let faces = || {
        [
            Face::standard::<Args, Args>("liar"),
            Face::miniclaw::<Args>("lie", |_| String::new()),
            Face::crewagent::<Args, Args>("fs.liar"),
        ]
    };
    registry.register(Liar, faces()).unwrap();
    registry
        .register(Liar, [Face::standard::<Args, Args>("other"), Face::crewagent::<Args, Args>("fs.other")])
        .unwrap();
    assert!(registry.register(Liar, faces()).is_err());
    let offered = |dialect, choice: &Choice| -> Vec<String> {
        registry.catalog(dialect, choice).unwrap().list().map(|tool| tool.name.to_string()).collect()
    };
    for name in ["liar", "lie", "fs.liar", "fs-liar"] {
        let names = || [name.to_owned()].into();
        let (none, one) = (Choice { deny: names(), allow: None }, Choice { allow: Some(names()), ..Choice::default() });
        for (dialect, own, other) in [
            (Dialect::Standard, "liar", Some("other")),
            (Dialect::Miniclaw, "lie", None),
            (Dialect::Crewagent, "fs.liar", Some("fs.other")),
        ] {
            assert_eq!(offered(dialect, &none), Vec::from_iter(other), "{name}");
            assert_eq!(offered(dialect, &one), [own], "{name}");
        }
    }
}

#[test]
fn what_is_said_about_a_tool_follows_from_its_verbs() {
    let cases: [(&'static [Verb], [bool; 3]); 9] = [
        (&[], [true, false, false]),
        (&[Verb::List, Verb::Read], [true, false, false]),
        (&[Verb::Fetch], [true, false, true]),
        (&[Verb::Create], [false, false, false]),
        (&[Verb::Read, Verb::Overwrite], [false, true, false]),
        (&[Verb::Delete], [false, true, false]),
        (&[Verb::Run], [false, true, false]),
        (&[Verb::External], [false, true, true]),
        (&Verb::ALL, [false, true, true]),
    ];
    for (verbs, expected) in cases {
        let effect = Effect { verbs, same_again: false };
        assert_eq!([effect.only_reads(), effect.destroys(), effect.reaches_out()], expected, "{verbs:?}");
    }
}
