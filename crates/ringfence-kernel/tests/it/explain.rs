//! Policy dry run: the same decision as the call itself gets, without making it.

use ringfence_kernel::{Decision, ErrorKind, Principal, ResourceAccess, Taint, ToolCall, ToolError};
use serde_json::{Value, json};

use crate::harness::{HostSetup, TestHost, ToolScript};

async fn explain(test_host: &TestHost, tool: &str, arguments: &Value) -> Result<(Decision, Vec<String>), ToolError> {
    let call = ToolCall { id: "1".to_owned(), name: tool.to_owned(), arguments: arguments.to_string() };
    let explanation = test_host.host.explain(&test_host.session, call).await?;
    let access = |access: &ResourceAccess| format!("{} {}", access.action.as_str(), access.resource.display_path);
    let accesses = explanation.accesses.iter();
    let accesses = accesses.map(|one| format!("{}: {}", access(&one.access), one.verdict.decision.name()));
    Ok((explanation.verdict.decision, accesses.collect()))
}

#[tokio::test]
async fn a_call_is_planned_and_judged_and_goes_no_further() {
    for (path, decision) in [("a", Decision::Allow), ("ask", Decision::Ask), ("deny", Decision::Deny)] {
        let test_host = HostSetup::default().build();
        let (verdict, accesses) = explain(&test_host, "act", &json!({"path": path})).await.unwrap();
        assert_eq!((verdict, accesses), (decision, vec![format!("overwrite {path}: {}", decision.name())]));
        assert_eq!((test_host.runs(), test_host.trace.lines(), test_host.approver.asked_paths()), (0, vec![], vec![]));
    }
    let test_host = HostSetup::default().build();
    let (verdict, accesses) = explain(&test_host, "act", &json!({"path": "a", "action": "nothing"})).await.unwrap();
    assert_eq!((verdict, accesses), (Decision::Ask, vec![]));
}

#[tokio::test]
async fn explaining_adds_no_taint() {
    let script = ToolScript::plan(|_, cx| {
        cx.add_taint(Taint::SawUntrusted);
        Ok(())
    });
    let test_host = HostSetup::with_script(script).build();
    explain(&test_host, "act", &json!({"path": ".env", "action": "read"})).await.unwrap();
    assert!(test_host.session.taint.snapshot().is_empty());
}

#[tokio::test]
async fn the_error_of_a_failing_call_is_reported() {
    let fails = ToolScript::plan(|_, _| Err(ToolError::new(ErrorKind::NotFound, "it is not there")));
    let kind = |result: Result<_, ToolError>| result.map(|_: (Decision, Vec<String>)| ()).unwrap_err().kind;
    assert_eq!(
        kind(explain(&HostSetup::with_script(fails).build(), "act", &json!({"path": "a"})).await),
        ErrorKind::NotFound
    );
    let test_host = HostSetup::default().build();
    assert_eq!(kind(explain(&test_host, "acts", &json!({"path": "a"})).await), ErrorKind::UnknownTool);
    assert_eq!(kind(explain(&test_host, "act", &json!({"pfad": "a"})).await), ErrorKind::InvalidArgs);
    let watcher = Principal { scopes: [].into(), ..Principal::agent("watcher") };
    let test_host = HostSetup { principal: watcher, ..HostSetup::default() }.build();
    assert_eq!(kind(explain(&test_host, "act", &json!({"path": "a"})).await), ErrorKind::PermissionDenied);
    let panics = HostSetup::with_script(ToolScript::plan(|_, _| panic!("a bug"))).build();
    assert_eq!(kind(explain(&panics, "act", &json!({"path": "a"})).await), ErrorKind::Internal);
}

#[tokio::test(start_paused = true)]
async fn a_plan_that_takes_too_long_is_given_up() {
    let script = ToolScript::plan(|_, cx| {
        while cx.check().is_ok() {
            std::thread::yield_now();
        }
        cx.check()
    });
    let test_host = HostSetup::with_script(script).build();
    let limit = test_host.session.limits.call_time;
    let explaining = tokio::spawn(async move { explain(&test_host, "act", &json!({"path": "a"})).await });
    tokio::task::yield_now().await;
    tokio::time::advance(limit * 2).await;
    assert_eq!(explaining.await.unwrap().unwrap_err().kind, ErrorKind::Timeout);
}

#[tokio::test]
async fn a_tool_asks_about_what_it_comes_upon() {
    let script = ToolScript::plan(|args, cx| {
        let [access] = &args.accesses()[..] else { panic!("one access") };
        let decision = cx.evaluate(access).decision;
        Err(ToolError::new(ErrorKind::Io, decision.name()))
    });
    let test_host = HostSetup::with_script(script).build();
    for path in ["allowed", "ask", "deny"] {
        let expected = if path == "allowed" { "allow" } else { path };
        assert_eq!(explain(&test_host, "act", &json!({"path": path})).await.unwrap_err().message, expected);
        let reply = test_host.call(&json!({"path": path})).await;
        assert_eq!(crate::harness::reply_json(&reply)["error"]["message"], expected);
    }
}
