//! The in-memory store, and the approval inbox in front of it.

use ringfence_kernel::{
    ApprovalInbox, ApprovalResponse, ApprovalStore as _, Assurance, AuthScope, Grant, InMemoryApprovalStore,
    InboxError, Principal, RuleText,
};
use ringfence_testkit::store_suite::{at, check, request};
use serde_json::json;

#[test]
fn the_store_in_memory_keeps_what_every_store_promises() {
    check(&InMemoryApprovalStore::default());
}

fn yes() -> ApprovalResponse {
    ApprovalResponse { approved: true, ..ApprovalResponse::default() }
}

#[test]
fn an_agent_sees_and_answers_no_request_and_revokes_no_grant() {
    let store = InMemoryApprovalStore::default();
    store.open_request(&request("a", 0)).unwrap();
    let agent = Principal::agent("another agent");
    let inbox = ApprovalInbox { store: &store, principal: &agent };
    assert!(matches!(inbox.pending(at(1)), Err(InboxError::MayNotApprove(_))));
    assert!(matches!(inbox.request("a", at(1)), Err(InboxError::MayNotApprove(_))));
    for response in [yes(), ApprovalResponse::default()] {
        let answer = inbox.answer("a", response, Assurance::Person, at(1));
        assert!(matches!(answer, Err(InboxError::MayNotApprove(_))), "{answer:?}");
    }
    assert!(matches!(inbox.grants(at(1)), Err(InboxError::MayNotAdmin(_))));
    assert!(matches!(inbox.revoke_grant("g"), Err(InboxError::MayNotAdmin(_))));
    assert_eq!(store.answer_of("a").unwrap(), None);
}

#[test]
fn a_principal_who_may_approve_sees_the_named_request() {
    let store = InMemoryApprovalStore::default();
    let person = Principal::person("ann");
    let inbox = ApprovalInbox { store: &store, principal: &person };
    assert!(matches!(inbox.request("a", at(1)), Err(InboxError::UnknownRequest(_))));
    for id in ["a", "b", "c"] {
        store.open_request(&request(id, 0)).unwrap();
    }
    for id in ["a", "b", "c"] {
        assert_eq!(inbox.request(id, at(1)).unwrap(), request(id, 0));
    }
    assert!(matches!(inbox.request("d", at(1)), Err(InboxError::UnknownRequest(_))));
    assert!(matches!(inbox.request("a", at(10)), Err(InboxError::UnknownRequest(_))));
}

#[test]
fn a_principal_cannot_answer_its_own_request_whatever_its_scopes() {
    let store = InMemoryApprovalStore::default();
    store.open_request(&request("a", 0)).unwrap();
    let own = Principal { name: "the agent".to_owned(), scopes: [AuthScope::Call, AuthScope::Approve].into() };
    let answer = ApprovalInbox { store: &store, principal: &own }.answer("a", yes(), Assurance::Person, at(1));
    assert!(matches!(answer, Err(InboxError::OwnRequest(_))), "{answer:?}");
    assert_eq!(store.answer_of("a").unwrap(), None);
}

#[test]
fn an_answer_that_could_not_count_leaves_the_request_to_others() {
    let store = InMemoryApprovalStore::default();
    let person = Principal::person("ann");
    let inbox = ApprovalInbox { store: &store, principal: &person };
    let secret =
        |id: &str| ringfence_kernel::ApprovalRequest { assurance: Assurance::Person, grant: None, ..request(id, 0) };
    store.open_request(&secret("a")).unwrap();
    let answer = |response, assurance| inbox.answer("a", response, assurance, at(1));
    assert!(matches!(answer(yes(), Assurance::Relayed), Err(InboxError::NeedsPerson)));
    let remember = ApprovalResponse { remember: true, ..yes() };
    assert!(matches!(answer(remember, Assurance::Person), Err(InboxError::NotGrantable)));
    answer(yes(), Assurance::Person).unwrap();
    assert!(matches!(answer(yes(), Assurance::Person), Err(InboxError::AlreadyAnswered(_))));
    assert!(matches!(inbox.answer("b", yes(), Assurance::Person, at(1)), Err(InboxError::UnknownRequest(_))));
    store.open_request(&request("c", 0)).unwrap();
    let changed = ApprovalResponse { modified_args: Some(json!({})), ..yes() };
    for response in [changed, ApprovalResponse { remember: true, ..yes() }] {
        let answer = inbox.answer("c", response, Assurance::Relayed, at(1));
        assert!(matches!(answer, Err(InboxError::NeedsPerson)), "{answer:?}");
    }
    assert!(matches!(inbox.answer("c", yes(), Assurance::Relayed, at(10)), Err(InboxError::Expired(_))));
    inbox.answer("c", ApprovalResponse::default(), Assurance::None, at(1)).unwrap();
}

#[test]
fn an_administrator_lists_and_revokes_grants() {
    let store = InMemoryApprovalStore::default();
    let rule = RuleText { decision: "allow".to_owned(), ..RuleText::default() };
    let text = || String::new();
    let grant = Grant { id: "g".to_owned(), rule, directory: text(), by: text(), since: at(0), until: at(9) };
    store.add_grant(&grant).unwrap();
    let person = Principal::person("ann");
    let inbox = ApprovalInbox { store: &store, principal: &person };
    assert_eq!(inbox.grants(at(1)).unwrap(), [grant]);
    assert!(inbox.revoke_grant("g").unwrap());
    assert!(inbox.grants(at(1)).unwrap().is_empty());
}
