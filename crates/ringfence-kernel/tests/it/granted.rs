//! What is allowed for good: by whom, how narrow, where, and until it is taken back.

use std::sync::Arc;
use std::time::SystemTime;

use ringfence_kernel::{
    ApprovalResponse, Assurance, Bit, Decision, ErrorKind, GRANT_TIME, GrantedRules, Layer, MemoryStore, Preset,
    Principal, Rule, Rules, Store,
};
use serde_json::{Value, json};

use crate::road::{Hooked, Road, Setup, Somebody, assert_error, by_person, json, no};

fn rule(text: Value) -> Rule {
    Rule::new(serde_json::from_value(text).unwrap(), "rule").unwrap()
}

fn always() -> ringfence_kernel::Answered {
    by_person(ApprovalResponse { approved: true, remember: true, ..ApprovalResponse::default() })
}

fn setup(store: &Arc<dyn Store>, rules: Rules) -> Setup {
    Setup {
        policy: Box::new(GrantedRules::new(rules)),
        store: Hooked::shared(store),
        directory: Some("this one"),
        ..Setup::default()
    }
}

fn memory() -> Arc<dyn Store> {
    Arc::new(MemoryStore::default())
}

/// A road under the preset `ask`, and somebody who answers so.
fn asking(store: &Arc<dyn Store>, answers: impl IntoIterator<Item = ringfence_kernel::Answered>) -> Road {
    Setup { somebody: Somebody::saying(answers), ..setup(store, Rules::of(Preset::Ask)) }.road()
}

fn offered(road: &Road) -> Option<String> {
    road.somebody.asked.lock().unwrap().last().and_then(|request| request.grant.clone())
}

#[tokio::test]
async fn what_is_allowed_for_good_is_not_asked_about_again_and_nothing_else_is_allowed() {
    let store = memory();
    let road = asking(&store, [always(), no(), no()]);
    assert_eq!(road.call(&json!({"path": "docs/a.md"})).await.error, None);
    let shown =
        r#"{ decision = "allow", tool = "act", effect = "overwrite", path = "docs/a.md", mount = "workspace" }"#;
    assert_eq!(offered(&road).unwrap(), shown);
    let reply = road.call(&json!({"path": "docs/a.md"})).await;
    assert_eq!(json(&reply)["value"]["approved"], false);
    assert_eq!(road.somebody.questions().len(), 1);
    for other in ["docs/b.md", "docs/a.md/below"] {
        assert_error(&road.call(&json!({"path": other})).await, ErrorKind::ApprovalDenied);
    }
    let grants = store.grants(SystemTime::now()).unwrap();
    let [grant] = grants.as_slice() else { panic!("{grants:?}") };
    assert_eq!((grant.by.as_str(), grant.directory.as_str()), ("somebody", "this one"));
    assert_eq!(grant.until.duration_since(grant.since).unwrap(), GRANT_TIME);
    assert_eq!(GRANT_TIME.as_secs(), 30 * 24 * 60 * 60);
    let permissions = road.trace.permissions.lock().unwrap().clone();
    assert_eq!(permissions[1], format!("grants {} nobody", grant.id));
}

#[tokio::test]
async fn a_grant_holds_for_every_host_on_that_directory_until_it_is_taken_back() {
    let store = memory();
    assert_eq!(asking(&store, [always()]).call(&json!({"path": "a"})).await.error, None);
    let other = asking(&store, [no()]);
    assert_eq!(other.call(&json!({"path": "a"})).await.error, None);
    let elsewhere = Setup { directory: Some("another"), ..setup(&store, Rules::of(Preset::Ask)) };
    let elsewhere = Setup { somebody: Somebody::saying([no()]), ..elsewhere }.road();
    assert_error(&elsewhere.call(&json!({"path": "a"})).await, ErrorKind::ApprovalDenied);
    let person = Principal::person("somebody");
    let id = store.grants(SystemTime::now()).unwrap()[0].id.clone();
    assert!(other.host.desk(&person).revoke(&id).unwrap());
    assert_error(&other.call(&json!({"path": "a"})).await, ErrorKind::ApprovalDenied);
}

#[tokio::test]
async fn an_answer_that_was_only_relayed_is_not_remembered() {
    let store = memory();
    let mut relayed = always();
    relayed.approval.assurance = Assurance::Relayed;
    let road = asking(&store, [relayed]);
    let reply = road.call(&json!({"path": "a"})).await;
    assert_error(&reply, ErrorKind::ApprovalDenied);
    assert!(reply.text.contains("may allow it for good"), "{}", reply.text);
    assert!(store.grants(SystemTime::now()).unwrap().is_empty());
    assert_eq!(road.runs(), 0);
}

#[tokio::test]
async fn a_changed_call_is_not_remembered() {
    let store = memory();
    let mut changed = always();
    changed.response.modified_args = Some(json!({"path": "b"}));
    let road = asking(&store, [changed]);
    assert_error(&road.call(&json!({"path": "a"})).await, ErrorKind::ApprovalDenied);
    assert!(store.grants(SystemTime::now()).unwrap().is_empty());
}

/// Under these rules nothing is offered, and an answer that wants to be remembered does not count.
#[track_caller]
fn never(rules: Rules, arguments: Value, prepare: impl Fn(&Setup)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = memory();
        let setup = Setup { somebody: Somebody::saying([always()]), ..setup(&store, rules) };
        prepare(&setup);
        let road = setup.road();
        let reply = road.call(&arguments).await;
        assert_error(&reply, ErrorKind::ApprovalDenied);
        assert!(reply.text.contains("cannot be allowed for good"), "{}", reply.text);
        assert_eq!((offered(&road), road.runs()), (None, 0));
        assert!(store.grants(SystemTime::now()).unwrap().is_empty());
    });
}

#[test]
fn some_things_are_never_allowed_for_good() {
    let ask = || Rules::of(Preset::Ask);
    let plain = |_: &Setup| {};
    never(ask(), json!({"path": ".env", "verb": "read"}), plain);
    never(ask(), json!({"path": ".env"}), plain);
    never(ask(), json!({"path": ".git/hooks/pre-commit"}), plain);
    never(ask(), json!({"path": "docs.rs:443", "verb": "fetch"}), plain);
    never(ask(), json!({"path": "a", "verb": "nothing"}), plain);
    never(ask().with_managed_preset(Preset::Ask), json!({"path": "a"}), plain);
    for layer in [Layer::Managed, Layer::User, Layer::Workspace] {
        let wants = rule(json!({"decision": "ask", "path": "a"}));
        assert_eq!(wants.decision(), Decision::Ask);
        never(ask().with(layer, vec![wants]), json!({"path": "a"}), plain);
    }
    never(Rules::of(Preset::Edits).with_workspace_preset(Preset::Ask), json!({"path": "a"}), plain);
    let bits = |setup: &Setup| [Bit::SawUntrusted, Bit::HasEgress].into_iter().for_each(|bit| setup.bits.raise(bit));
    never(ask(), json!({"path": ".env", "verb": "read"}), bits);
}

#[tokio::test]
async fn a_call_that_was_put_off_is_allowed_for_good_by_the_rule_that_was_shown() {
    for (arguments, kept) in [(json!({"path": "a"}), true), (json!({"path": ".env", "verb": "read"}), false)] {
        let store = memory();
        let somebody = Somebody { puts_off: true, ..Somebody::default() };
        let road = Setup { somebody, ..setup(&store, Rules::of(Preset::Ask)) }.road();
        let suspended = road.call(&arguments).await.suspended.unwrap();
        // The desk would not take it where nothing may be granted; whoever brings the call back does not either.
        store.answer(&suspended.request, &always(), SystemTime::now()).unwrap();
        let cancel = tokio_util::sync::CancellationToken::new();
        let reply = road.host.resume(&road.session, &suspended.token, &cancel).await.unwrap();
        assert_eq!(reply.error, (!kept).then_some(ErrorKind::ApprovalDenied), "{arguments}: {}", reply.text);
        let grants = store.grants(SystemTime::now()).unwrap().len();
        assert_eq!((road.runs(), grants), (usize::from(kept), usize::from(kept)));
    }
}

#[tokio::test]
async fn where_no_directory_is_known_nothing_is_allowed_for_good() {
    let store = memory();
    let setup = Setup { directory: None, ..setup(&store, Rules::of(Preset::Ask)) };
    let road = Setup { somebody: Somebody::saying([always()]), ..setup }.road();
    assert_error(&road.call(&json!({"path": "a"})).await, ErrorKind::ApprovalDenied);
    assert_eq!(offered(&road), None);
}

#[tokio::test]
async fn a_grant_cannot_stand_against_a_deny_that_came_later() {
    let store = memory();
    assert_eq!(asking(&store, [always()]).call(&json!({"path": "a"})).await.error, None);
    let deny = rule(json!({"decision": "deny", "path": "a"}));
    let road = setup(&store, Rules::of(Preset::Ask).with(Layer::User, vec![deny])).road();
    assert_error(&road.call(&json!({"path": "a"})).await, ErrorKind::PermissionDenied);
}
