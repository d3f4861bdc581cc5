//! Persistent grants: who may give them, how narrow they are, where they hold, and revoking them.

use std::sync::Arc;
use std::time::SystemTime;

use ringfence_kernel::{
    ApprovalResponse, ApprovalStore, Assurance, Decision, ErrorKind, GRANT_LIFETIME, GrantedRules,
    InMemoryApprovalStore, LayeredRules, PolicyLayer, PolicyRule, Preset, Principal, Taint,
};
use ringfence_testkit::approver::{ScriptedApprover, decision_by_person, deny};
use serde_json::{Value, json};

use crate::harness::{HookedStore, HostSetup, TestHost, assert_error, reply_json};

fn rule(text: Value) -> PolicyRule {
    PolicyRule::new(serde_json::from_value(text).unwrap(), "rule").unwrap()
}

fn approve_always() -> ringfence_kernel::ApprovalDecision {
    decision_by_person(ApprovalResponse { approved: true, remember: true, ..ApprovalResponse::default() })
}

fn setup(store: &Arc<dyn ApprovalStore>, rules: LayeredRules) -> HostSetup {
    HostSetup {
        policy: Box::new(GrantedRules::new(rules)),
        store: HookedStore::shared(store),
        directory: Some("this one"),
        ..HostSetup::default()
    }
}

fn memory_store() -> Arc<dyn ApprovalStore> {
    Arc::new(InMemoryApprovalStore::default())
}

/// A host under the preset `ask`, with an approver that answers so.
fn asking_host(
    store: &Arc<dyn ApprovalStore>,
    answers: impl IntoIterator<Item = ringfence_kernel::ApprovalDecision>,
) -> TestHost {
    HostSetup {
        approver: ScriptedApprover::with_answers(answers),
        ..setup(store, LayeredRules::from_preset(Preset::Ask))
    }
    .build()
}

fn offered_grant(test_host: &TestHost) -> Option<String> {
    test_host.approver.asked.lock().unwrap().last().and_then(|request| request.grant.clone())
}

#[tokio::test]
async fn a_grant_is_not_asked_about_again_and_allows_nothing_else() {
    let store = memory_store();
    let test_host = asking_host(&store, [approve_always(), deny(), deny()]);
    assert_eq!(test_host.call(&json!({"path": "docs/a.md"})).await.error_kind(), None);
    let shown =
        r#"{ decision = "allow", tool = "act", effect = "overwrite", path = "docs/a.md", mount = "workspace" }"#;
    assert_eq!(offered_grant(&test_host).unwrap(), shown);
    let reply = test_host.call(&json!({"path": "docs/a.md"})).await;
    assert_eq!(reply_json(&reply)["value"]["approved"], false);
    assert_eq!(test_host.approver.asked_paths().len(), 1);
    for other in ["docs/b.md", "docs/a.md/below"] {
        assert_error(&test_host.call(&json!({"path": other})).await, ErrorKind::ApprovalDenied);
    }
    let grants = store.grants(SystemTime::now()).unwrap();
    let [grant] = grants.as_slice() else { panic!("{grants:?}") };
    assert_eq!((grant.by.as_str(), grant.directory.as_str()), ("the approver", "this one"));
    assert_eq!(grant.until.duration_since(grant.since).unwrap(), GRANT_LIFETIME);
    assert_eq!(GRANT_LIFETIME.as_secs(), 30 * 24 * 60 * 60);
    let permissions = test_host.trace.permissions.lock().unwrap().clone();
    assert_eq!(permissions[1], format!("grants {} no person", grant.id));
}

#[tokio::test]
async fn a_grant_holds_for_every_host_on_that_directory_until_it_is_revoked() {
    let store = memory_store();
    assert_eq!(asking_host(&store, [approve_always()]).call(&json!({"path": "a"})).await.error_kind(), None);
    let other = asking_host(&store, [deny()]);
    assert_eq!(other.call(&json!({"path": "a"})).await.error_kind(), None);
    let elsewhere = HostSetup { directory: Some("another"), ..setup(&store, LayeredRules::from_preset(Preset::Ask)) };
    let elsewhere = HostSetup { approver: ScriptedApprover::with_answers([deny()]), ..elsewhere }.build();
    assert_error(&elsewhere.call(&json!({"path": "a"})).await, ErrorKind::ApprovalDenied);
    let person = Principal::person("ann");
    let id = store.grants(SystemTime::now()).unwrap()[0].id.clone();
    assert!(other.host.inbox(&person).revoke_grant(&id).unwrap());
    assert_error(&other.call(&json!({"path": "a"})).await, ErrorKind::ApprovalDenied);
}

#[tokio::test]
async fn an_answer_that_was_only_relayed_is_not_remembered() {
    let store = memory_store();
    let mut relayed = approve_always();
    relayed.approval.assurance = Assurance::Relayed;
    let test_host = asking_host(&store, [relayed]);
    let reply = test_host.call(&json!({"path": "a"})).await;
    assert_error(&reply, ErrorKind::ApprovalDenied);
    assert!(reply.text.contains("may grant it persistently"), "{}", reply.text);
    assert!(store.grants(SystemTime::now()).unwrap().is_empty());
    assert_eq!(test_host.runs(), 0);
}

#[tokio::test]
async fn a_changed_call_is_not_remembered() {
    let store = memory_store();
    let mut changed = approve_always();
    changed.response.modified_args = Some(json!({"path": "b"}));
    let test_host = asking_host(&store, [changed]);
    assert_error(&test_host.call(&json!({"path": "a"})).await, ErrorKind::ApprovalDenied);
    assert!(store.grants(SystemTime::now()).unwrap().is_empty());
}

/// Under these rules nothing is offered, and an answer that wants to be remembered does not count.
#[track_caller]
fn assert_never_grantable(rules: LayeredRules, arguments: Value, prepare: impl Fn(&HostSetup)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = memory_store();
        let setup = HostSetup { approver: ScriptedApprover::with_answers([approve_always()]), ..setup(&store, rules) };
        prepare(&setup);
        let test_host = setup.build();
        let reply = test_host.call(&arguments).await;
        assert_error(&reply, ErrorKind::ApprovalDenied);
        assert!(reply.text.contains("cannot be granted persistently"), "{}", reply.text);
        assert_eq!((offered_grant(&test_host), test_host.runs()), (None, 0));
        assert!(store.grants(SystemTime::now()).unwrap().is_empty());
    });
}

#[test]
fn some_accesses_are_never_grantable() {
    let ask = || LayeredRules::from_preset(Preset::Ask);
    let plain = |_: &HostSetup| {};
    assert_never_grantable(ask(), json!({"path": ".env", "action": "read"}), plain);
    assert_never_grantable(ask(), json!({"path": ".env"}), plain);
    assert_never_grantable(ask(), json!({"path": ".git/hooks/pre-commit"}), plain);
    assert_never_grantable(ask(), json!({"path": "docs.rs:443", "action": "fetch"}), plain);
    assert_never_grantable(ask(), json!({"path": "a", "action": "nothing"}), plain);
    assert_never_grantable(ask().with_managed_preset(Preset::Ask), json!({"path": "a"}), plain);
    for layer in [PolicyLayer::Managed, PolicyLayer::User, PolicyLayer::Workspace] {
        let wants = rule(json!({"decision": "ask", "path": "a"}));
        assert_eq!(wants.decision(), Decision::Ask);
        assert_never_grantable(ask().with_layer(layer, vec![wants]), json!({"path": "a"}), plain);
    }
    assert_never_grantable(
        LayeredRules::from_preset(Preset::Edits).with_workspace_preset(Preset::Ask),
        json!({"path": "a"}),
        plain,
    );
    let add_taint = |setup: &HostSetup| {
        [Taint::SawUntrusted, Taint::HasEgress].into_iter().for_each(|taint| setup.taint.add(taint))
    };
    assert_never_grantable(ask(), json!({"path": ".env", "action": "read"}), add_taint);
}

#[tokio::test]
async fn a_deferred_call_is_granted_by_the_rule_that_was_shown() {
    for (arguments, kept) in [(json!({"path": "a"}), true), (json!({"path": ".env", "action": "read"}), false)] {
        let store = memory_store();
        let approver = ScriptedApprover::deferring();
        let test_host = HostSetup { approver, ..setup(&store, LayeredRules::from_preset(Preset::Ask)) }.build();
        let suspended = test_host.call(&arguments).await.suspended.unwrap();
        // The inbox refuses it where no grant is possible; a resumed call does too.
        store.answer(&suspended.request_id, &approve_always(), SystemTime::now()).unwrap();
        let cancel = tokio_util::sync::CancellationToken::new();
        let reply = test_host.host.resume(&test_host.session, &suspended.token, &cancel).await.unwrap();
        assert_eq!(reply.error_kind(), (!kept).then_some(ErrorKind::ApprovalDenied), "{arguments}: {}", reply.text);
        let grants = store.grants(SystemTime::now()).unwrap().len();
        assert_eq!((test_host.runs(), grants), (usize::from(kept), usize::from(kept)));
    }
}

#[tokio::test]
async fn without_a_known_directory_nothing_is_grantable() {
    let store = memory_store();
    let setup = HostSetup { directory: None, ..setup(&store, LayeredRules::from_preset(Preset::Ask)) };
    let test_host = HostSetup { approver: ScriptedApprover::with_answers([approve_always()]), ..setup }.build();
    assert_error(&test_host.call(&json!({"path": "a"})).await, ErrorKind::ApprovalDenied);
    assert_eq!(offered_grant(&test_host), None);
}

#[tokio::test]
async fn a_grant_cannot_stand_against_a_deny_that_came_later() {
    let store = memory_store();
    assert_eq!(asking_host(&store, [approve_always()]).call(&json!({"path": "a"})).await.error_kind(), None);
    let deny = rule(json!({"decision": "deny", "path": "a"}));
    let test_host =
        setup(&store, LayeredRules::from_preset(Preset::Ask).with_layer(PolicyLayer::User, vec![deny])).build();
    assert_error(&test_host.call(&json!({"path": "a"})).await, ErrorKind::PermissionDenied);
}
