//! What the policy would say, said without making the call.

use ringfence_kernel::{Bit, Decision, ErrorKind, Principal, ToolCall, ToolError, Touch};
use serde_json::{Value, json};

use crate::road::{Road, Script, Setup};

async fn explain(road: &Road, tool: &str, arguments: &Value) -> Result<(Decision, Vec<String>), ToolError> {
    let call = ToolCall { id: "1".to_owned(), name: tool.to_owned(), arguments: arguments.to_string() };
    let explanation = road.host.explain(&road.session, call).await?;
    let touch = |touch: &Touch| format!("{} {}", touch.verb.as_str(), touch.place.shown);
    let touches = explanation.touches.iter();
    let touches = touches.map(|one| format!("{}: {}", touch(&one.touch), one.verdict.decision.name()));
    Ok((explanation.verdict.decision, touches.collect()))
}

#[tokio::test]
async fn a_call_is_planned_and_judged_and_goes_no_further() {
    for (path, decision) in [("a", Decision::Allow), ("ask", Decision::Ask), ("deny", Decision::Deny)] {
        let road = Setup::default().road();
        let (said, touches) = explain(&road, "act", &json!({"path": path})).await.unwrap();
        assert_eq!((said, touches), (decision, vec![format!("overwrite {path}: {}", decision.name())]));
        assert_eq!((road.runs(), road.trace.lines(), road.somebody.questions()), (0, vec![], vec![]));
    }
    let road = Setup::default().road();
    let (said, touches) = explain(&road, "act", &json!({"path": "a", "verb": "nothing"})).await.unwrap();
    assert_eq!((said, touches), (Decision::Ask, vec![]));
}

#[tokio::test]
async fn nothing_is_raised() {
    let script = Script::plan(|_, cx| {
        cx.raise(Bit::SawUntrusted);
        Ok(())
    });
    let road = Setup::of(script).road();
    explain(&road, "act", &json!({"path": ".env", "verb": "read"})).await.unwrap();
    assert!(road.session.bits.now().is_empty());
}

#[tokio::test]
async fn what_the_call_would_fail_of_is_said() {
    let fails = Script::plan(|_, _| Err(ToolError::new(ErrorKind::NotFound, "it is not there")));
    let kind = |result: Result<_, ToolError>| result.map(|_: (Decision, Vec<String>)| ()).unwrap_err().kind;
    assert_eq!(kind(explain(&Setup::of(fails).road(), "act", &json!({"path": "a"})).await), ErrorKind::NotFound);
    let road = Setup::default().road();
    assert_eq!(kind(explain(&road, "acts", &json!({"path": "a"})).await), ErrorKind::UnknownTool);
    assert_eq!(kind(explain(&road, "act", &json!({"pfad": "a"})).await), ErrorKind::InvalidArgs);
    let watcher = Principal { scopes: [].into(), ..Principal::agent("watcher") };
    let road = Setup { principal: watcher, ..Setup::default() }.road();
    assert_eq!(kind(explain(&road, "act", &json!({"path": "a"})).await), ErrorKind::PermissionDenied);
    let panics = Setup::of(Script::plan(|_, _| panic!("a bug"))).road();
    assert_eq!(kind(explain(&panics, "act", &json!({"path": "a"})).await), ErrorKind::Internal);
}

#[tokio::test(start_paused = true)]
async fn a_plan_that_takes_too_long_is_given_up() {
    let script = Script::plan(|_, cx| {
        while cx.check().is_ok() {
            std::thread::yield_now();
        }
        cx.check()
    });
    let road = Setup::of(script).road();
    let limit = road.session.limits.call_time;
    let explaining = tokio::spawn(async move { explain(&road, "act", &json!({"path": "a"})).await });
    tokio::task::yield_now().await;
    tokio::time::advance(limit * 2).await;
    assert_eq!(explaining.await.unwrap().unwrap_err().kind, ErrorKind::Timeout);
}

#[tokio::test]
async fn a_tool_asks_about_what_it_comes_upon() {
    let script = Script::plan(|args, cx| {
        let [touch] = &args.touches()[..] else { panic!("one touch") };
        let said = cx.judge(touch).decision;
        Err(ToolError::new(ErrorKind::Io, said.name()))
    });
    let road = Setup::of(script).road();
    for path in ["allowed", "ask", "deny"] {
        let expected = if path == "allowed" { "allow" } else { path };
        assert_eq!(explain(&road, "act", &json!({"path": path})).await.unwrap_err().message, expected);
        let reply = road.call(&json!({"path": path})).await;
        assert_eq!(crate::road::json(&reply)["error"]["message"], expected);
    }
}
