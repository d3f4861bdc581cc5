//! Declared actions: a tool does what it declares, and nothing else.

use std::sync::Arc;

use ringfence_kernel::{
    CallContext, Dialect, ErrorKind, Host, HostConfig, PolicyAction, PolicyResource, Preview, ResourceAccess, Ticket,
    Tool, ToolBinding, ToolCall, ToolCapabilities, ToolError, ToolFilter, ToolPlan, ToolRegistry,
};
use ringfence_testkit::host::{test_host_config, test_session};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::harness::{PathWordPolicy, assert_error};

/// Says that it reads.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
struct Args {
    write: bool,
}

struct UndeclaredActionTool;

impl Tool for UndeclaredActionTool {
    type Args = Args;
    type Prepared = ();
    type Outcome = Args;
    const ACTIONS: &'static [PolicyAction] = &[PolicyAction::Read];

    fn plan(&self, args: Args, _: &CallContext<'_>) -> Result<ToolPlan<()>, ToolError> {
        let action = if args.write { PolicyAction::Overwrite } else { PolicyAction::Read };
        let resource = PolicyResource {
            mount: Arc::from("workspace"),
            requested_path: "a".to_owned(),
            ..PolicyResource::default()
        };
        Ok(ToolPlan { accesses: vec![ResourceAccess { action, resource }], prepared: () })
    }

    fn preview(&self, (): &mut (), _: &CallContext<'_>) -> Result<Preview, ToolError> {
        Ok(Preview::default())
    }

    fn run(&self, (): (), _: &Ticket<'_>) -> Result<Args, ToolError> {
        Ok(Args { write: false })
    }
}

#[tokio::test]
async fn a_plan_that_does_more_than_its_tool_says_is_refused() {
    let mut registry = ToolRegistry::new();
    registry.register(UndeclaredActionTool, [ToolBinding::standard::<Args, Args>("liar")]).unwrap();
    let session = Arc::new(test_session(&registry, Dialect::Standard));
    assert!(session.catalog.get("liar").unwrap().capabilities.is_read_only());
    let host = Host::new(HostConfig { policy: Box::new(PathWordPolicy), ..test_host_config() });
    let call =
        |arguments: &str| ToolCall { id: "1".to_owned(), name: "liar".to_owned(), arguments: arguments.to_owned() };
    let cancel = CancellationToken::new();
    assert_eq!(host.call(&session, call(r#"{"write":false}"#), &cancel).await.unwrap().error_kind(), None);
    assert_error(&host.call(&session, call(r#"{"write":true}"#), &cancel).await.unwrap(), ErrorKind::Internal);
}

#[test]
fn a_tool_that_is_chosen_by_one_name_is_chosen_by_all() {
    let mut registry = ToolRegistry::new();
    let faces = || {
        [
            ToolBinding::standard::<Args, Args>("liar"),
            ToolBinding::miniclaw::<Args, Args>("lie", |_| String::new()),
            ToolBinding::crewagent::<Args, Args>("fs.liar"),
        ]
    };
    registry.register(UndeclaredActionTool, faces()).unwrap();
    registry
        .register(
            UndeclaredActionTool,
            [ToolBinding::standard::<Args, Args>("other"), ToolBinding::crewagent::<Args, Args>("fs.other")],
        )
        .unwrap();
    assert!(registry.register(UndeclaredActionTool, faces()).is_err());
    let offered = |dialect, choice: &ToolFilter| -> Vec<String> {
        registry.catalog(dialect, choice).unwrap().list().map(|tool| tool.name.to_string()).collect()
    };
    for name in ["liar", "lie", "fs.liar", "fs-liar"] {
        let names = || [name.to_owned()].into();
        let (none, one) = (
            ToolFilter { deny: names(), ..ToolFilter::default() },
            ToolFilter { allow: Some(names()), ..ToolFilter::default() },
        );
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
fn tools_of_a_toolset_are_offered_on_request() {
    let mut registry = ToolRegistry::new();
    let binding = |name| ToolBinding::standard::<Args, Args>(name);
    registry.register(UndeclaredActionTool, [binding("plain")]).unwrap();
    registry.register(UndeclaredActionTool, [binding("extra").in_toolset("more")]).unwrap();
    let names = |names: &[&str]| names.iter().map(ToString::to_string).collect();
    let check = |choice: &ToolFilter, expected: &[&str]| {
        let catalog = registry.catalog(Dialect::Standard, choice).unwrap();
        let offered: Vec<String> = catalog.list().map(|tool| tool.name.to_string()).collect();
        assert_eq!(offered, expected, "{choice:?}");
    };
    let more = ToolFilter { toolsets: names(&["more"]), ..ToolFilter::default() };
    check(&ToolFilter::default(), &["plain"]);
    check(&more, &["plain", "extra"]);
    check(&ToolFilter { deny: names(&["extra"]), ..more.clone() }, &["plain"]);
    check(&ToolFilter { allow: Some(names(&["extra"])), ..more.clone() }, &["extra"]);
    check(&ToolFilter { allow: Some(names(&["extra"])), ..ToolFilter::default() }, &[]);
    assert!(registry.require_toolsets(&more.toolsets).is_ok());
    let error = registry.require_toolsets(&names(&["mroe"])).unwrap_err();
    assert_eq!(error.to_string(), "unknown toolset `mroe`; available: more");
}

#[test]
fn a_tool_s_capabilities_follow_from_its_actions() {
    let cases: [(&'static [PolicyAction], [bool; 3]); 9] = [
        (&[], [true, false, false]),
        (&[PolicyAction::List, PolicyAction::Read], [true, false, false]),
        (&[PolicyAction::Fetch], [true, false, true]),
        (&[PolicyAction::Create], [false, false, false]),
        (&[PolicyAction::Read, PolicyAction::Overwrite], [false, true, false]),
        (&[PolicyAction::Delete], [false, true, false]),
        (&[PolicyAction::Run], [false, true, false]),
        (&[PolicyAction::External], [false, true, true]),
        (&PolicyAction::ALL, [false, true, true]),
    ];
    for (actions, expected) in cases {
        let effect = ToolCapabilities { actions, idempotent: false, waits_for_job: false };
        assert_eq!([effect.is_read_only(), effect.is_destructive(), effect.is_open_world()], expected, "{actions:?}");
    }
}
