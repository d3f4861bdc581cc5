//! The store that ends with its process, and the desk before it.

use ringfence_kernel::{
    ApprovalResponse, Assurance, Desk, DeskError, Grant, MemoryStore, Principal, RuleText, Scope, Store as _,
};
use serde_json::json;

use crate::store_suite::{at, check, request};

#[test]
fn the_store_in_memory_keeps_what_every_store_promises() {
    check(&MemoryStore::default());
}

fn yes() -> ApprovalResponse {
    ApprovalResponse { approved: true, ..ApprovalResponse::default() }
}

#[test]
fn an_agent_sees_no_request_answers_none_and_takes_no_grant_back() {
    let store = MemoryStore::default();
    store.open_request(&request("a", 0)).unwrap();
    let agent = Principal::agent("another agent");
    let desk = Desk { store: &store, by: &agent };
    assert!(matches!(desk.pending(at(1)), Err(DeskError::MayNotApprove(_))));
    assert!(matches!(desk.request("a", at(1)), Err(DeskError::MayNotApprove(_))));
    for response in [yes(), ApprovalResponse::default()] {
        let answer = desk.answer("a", response, Assurance::Person, at(1));
        assert!(matches!(answer, Err(DeskError::MayNotApprove(_))), "{answer:?}");
    }
    assert!(matches!(desk.grants(at(1)), Err(DeskError::MayNotAdmin(_))));
    assert!(matches!(desk.revoke("g"), Err(DeskError::MayNotAdmin(_))));
    assert_eq!(store.answer_of("a").unwrap(), None);
}

#[test]
fn somebody_who_may_sees_the_request_that_they_name() {
    let store = MemoryStore::default();
    let person = Principal::person("somebody");
    let desk = Desk { store: &store, by: &person };
    assert!(matches!(desk.request("a", at(1)), Err(DeskError::Unknown(_))));
    for id in ["a", "b", "c"] {
        store.open_request(&request(id, 0)).unwrap();
    }
    for id in ["a", "b", "c"] {
        assert_eq!(desk.request(id, at(1)).unwrap(), request(id, 0));
    }
    assert!(matches!(desk.request("d", at(1)), Err(DeskError::Unknown(_))));
    assert!(matches!(desk.request("a", at(10)), Err(DeskError::Unknown(_))));
}

#[test]
fn nobody_answers_a_request_of_their_own_whatever_they_may() {
    let store = MemoryStore::default();
    store.open_request(&request("a", 0)).unwrap();
    let own = Principal { name: "the agent".to_owned(), scopes: [Scope::Call, Scope::Approve].into() };
    let answer = Desk { store: &store, by: &own }.answer("a", yes(), Assurance::Person, at(1));
    assert!(matches!(answer, Err(DeskError::Own(_))), "{answer:?}");
    assert_eq!(store.answer_of("a").unwrap(), None);
}

#[test]
fn an_answer_that_could_not_count_leaves_the_request_to_others() {
    let store = MemoryStore::default();
    let person = Principal::person("somebody");
    let desk = Desk { store: &store, by: &person };
    let secret =
        |id: &str| ringfence_kernel::ApprovalRequest { assurance: Assurance::Person, grant: None, ..request(id, 0) };
    store.open_request(&secret("a")).unwrap();
    let answer = |response, assurance| desk.answer("a", response, assurance, at(1));
    assert!(matches!(answer(yes(), Assurance::Relayed), Err(DeskError::NeedsPerson)));
    let remember = ApprovalResponse { remember: true, ..yes() };
    assert!(matches!(answer(remember, Assurance::Person), Err(DeskError::NotForGood)));
    answer(yes(), Assurance::Person).unwrap();
    assert!(matches!(answer(yes(), Assurance::Person), Err(DeskError::Already(_))));
    assert!(matches!(desk.answer("b", yes(), Assurance::Person, at(1)), Err(DeskError::Unknown(_))));
    store.open_request(&request("c", 0)).unwrap();
    let changed = ApprovalResponse { modified_args: Some(json!({})), ..yes() };
    for response in [changed, ApprovalResponse { remember: true, ..yes() }] {
        let answer = desk.answer("c", response, Assurance::Relayed, at(1));
        assert!(matches!(answer, Err(DeskError::NeedsPerson)), "{answer:?}");
    }
    assert!(matches!(desk.answer("c", yes(), Assurance::Relayed, at(10)), Err(DeskError::Expired(_))));
    desk.answer("c", ApprovalResponse::default(), Assurance::None, at(1)).unwrap();
}

#[test]
fn somebody_in_charge_sees_grants_and_takes_them_back() {
    let store = MemoryStore::default();
    let rule = RuleText { decision: "allow".to_owned(), ..RuleText::default() };
    let text = || String::new();
    let grant = Grant { id: "g".to_owned(), rule, directory: text(), by: text(), since: at(0), until: at(9) };
    store.add_grant(&grant).unwrap();
    let person = Principal::person("somebody");
    let desk = Desk { store: &store, by: &person };
    assert_eq!(desk.grants(at(1)).unwrap(), [grant]);
    assert!(desk.revoke("g").unwrap());
    assert!(desk.grants(at(1)).unwrap().is_empty());
}
