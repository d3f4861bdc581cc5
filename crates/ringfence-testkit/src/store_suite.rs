//! Conformance suite for stores. The stores of other crates are held to the same.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use ringfence_kernel::{
    Approval, ApprovalAnswerStatus, ApprovalDecision, ApprovalRequest, ApprovalResponse, ApprovalStore, ArgumentDraft,
    Assurance, DENIAL_STREAK_LIFETIME, DenialStreak, DraftOutcome, Grant, PolicyLayer, Preview, PreviewBody, Principal,
    RuleText, SuspendLifetime,
};
use serde_json::json;

/// A time, in seconds after a fixed day.
pub fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000 + seconds)
}

/// A request that was opened then and may be answered for ten seconds.
pub fn request(id: &str, opened: u64) -> ApprovalRequest {
    ApprovalRequest {
        id: id.to_owned(),
        step_id: "call \u{1b}[31m".to_owned(),
        session: "s".to_owned(),
        principal: "the agent".to_owned(),
        agent: Some("writer".to_owned()),
        tool: "write_file".to_owned(),
        args: json!({"path": "a", "content": "\u{0}é'\"; drop table requests"}),
        reason: "because".to_owned(),
        rule: "preset ask".to_owned(),
        layer: PolicyLayer::Preset,
        assurance: Assurance::Relayed,
        preview: Preview::new("replace `a`", "f").with_body(PreviewBody::Text("é\u{0}".to_owned())),
        grant: Some("{ decision = \"allow\" }".to_owned()),
        suspended: false,
        opened: at(opened),
        expires: at(opened + 10),
    }
}

/// An approval with other arguments, by that person.
pub fn answer(by: &str) -> ApprovalDecision {
    let response = ApprovalResponse {
        approved: true,
        modified_args: Some(json!({"path": "b"})),
        reason: Some(by.to_owned()),
        ..ApprovalResponse::default()
    };
    ApprovalDecision { response, approval: Approval { assurance: Assurance::Person, by: Some(Principal::person(by)) } }
}

fn grant(id: &str, until: u64) -> Grant {
    Grant {
        id: id.to_owned(),
        rule: RuleText { decision: "allow".to_owned(), path: Some(vec!["./a".to_owned()]), ..RuleText::default() },
        directory: "d".to_owned(),
        by: "a person".to_owned(),
        since: at(0),
        until: at(until),
    }
}

/// Holds a store that is still empty to everything.
pub fn check(store: &dyn ApprovalStore) {
    requests_are_kept_until_they_are_closed(store);
    the_first_answer_counts(store);
    a_detached_request_is_marked_as_suspended(store);
    a_draft_has_the_outcome_that_is_its_own(store);
    a_late_answer_does_not_count(store);
    of_many_answers_at_once_one_is_first(store);
    grants_hold_until_they_expire_or_are_revoked(store);
    a_nonce_is_consumed_once(store);
    denials_are_counted_until_they_are_reset(store);
    assert_eq!(store.sealing_key().unwrap(), store.sealing_key().unwrap());
    assert_ne!(store.sealing_key().unwrap(), [0; 32]);
}

fn a_detached_request_is_marked_as_suspended(store: &dyn ApprovalStore) {
    for (id, lifetime) in [("left-1", SuspendLifetime::Process), ("left-2", SuspendLifetime::Persistent)] {
        store.open_request(&request(id, 0)).unwrap();
        assert!(!store.request(id).unwrap().unwrap().suspended);
        store.detach(id, lifetime).unwrap();
        let left = ApprovalRequest { suspended: true, ..request(id, 0) };
        assert_eq!(store.request(id).unwrap().as_ref(), Some(&left));
        assert_eq!(store.pending(at(1)).unwrap(), [left]);
        store.close_request(id).unwrap();
    }
}

fn a_draft_has_the_outcome_that_is_its_own(store: &dyn ApprovalStore) {
    let draft = |id: &str| ArgumentDraft { id: id.to_owned(), args: json!({"path": id}), outcome: None };
    let done = |id: &str| ArgumentDraft { outcome: Some(DraftOutcome::Refused(id.to_owned())), ..draft(id) };
    assert!(!store.set_draft("drafted", &draft("d1")).unwrap(), "there is no such request");
    store.open_request(&request("drafted", 0)).unwrap();
    assert_eq!(store.draft_of("drafted").unwrap(), None);
    assert!(!store.set_draft("drafted", &done("d1")).unwrap(), "it was not requested");
    assert!(store.set_draft("drafted", &draft("d1")).unwrap());
    assert!(store.set_draft("drafted", &draft("d2")).unwrap());
    assert!(!store.set_draft("drafted", &done("d1")).unwrap(), "another one took its place");
    assert_eq!(store.draft_of("drafted").unwrap(), Some(draft("d2")));
    assert!(store.set_draft("drafted", &done("d2")).unwrap());
    assert_eq!(store.draft_of("drafted").unwrap(), Some(done("d2")));
    store.close_request("drafted").unwrap();
    assert_eq!(store.draft_of("drafted").unwrap(), None);
}

fn ids(requests: &[ApprovalRequest]) -> Vec<&str> {
    requests.iter().map(|request| request.id.as_str()).collect()
}

fn requests_are_kept_until_they_are_closed(store: &dyn ApprovalStore) {
    assert!(store.pending(at(0)).unwrap().is_empty());
    store.open_request(&request("z", 0)).unwrap();
    store.open_request(&request("a", 1)).unwrap();
    assert_eq!(store.pending(at(1)).unwrap(), [request("z", 0), request("a", 1)]);
    assert_eq!(store.request("a").unwrap(), Some(request("a", 1)));
    assert_eq!(store.request("b").unwrap(), None);
    store.close_request("z").unwrap();
    store.close_request("never there").unwrap();
    assert_eq!(ids(&store.pending(at(1)).unwrap()), ["a"]);
    assert_eq!((store.request("z").unwrap(), store.answer_of("z").unwrap()), (None, None));
    store.close_request("a").unwrap();
}

fn the_first_answer_counts(store: &dyn ApprovalStore) {
    assert_eq!(store.answer("a", &answer("x"), at(0)).unwrap(), ApprovalAnswerStatus::UnknownRequest);
    store.open_request(&request("a", 0)).unwrap();
    assert_eq!(store.answer_of("a").unwrap(), None);
    assert_eq!(store.answer("a", &answer("x"), at(1)).unwrap(), ApprovalAnswerStatus::Accepted);
    assert_eq!(store.answer("a", &answer("y"), at(2)).unwrap(), ApprovalAnswerStatus::AlreadyAnswered);
    assert_eq!(store.answer_of("a").unwrap(), Some(answer("x")));
    assert!(store.pending(at(2)).unwrap().is_empty());
    store.close_request("a").unwrap();
    assert_eq!(store.answer("a", &answer("y"), at(2)).unwrap(), ApprovalAnswerStatus::UnknownRequest);
    assert_eq!(store.answer_of("a").unwrap(), None);
}

fn a_late_answer_does_not_count(store: &dyn ApprovalStore) {
    store.open_request(&request("a", 0)).unwrap();
    assert_eq!(ids(&store.pending(at(9)).unwrap()), ["a"]);
    assert!(store.pending(at(10)).unwrap().is_empty());
    assert_eq!(store.answer("a", &answer("x"), at(10)).unwrap(), ApprovalAnswerStatus::Expired);
    assert_eq!(store.answer_of("a").unwrap(), None);
    // A request that was not closed, because its process died, goes with the next one.
    store.open_request(&request("b", 20)).unwrap();
    assert_eq!(store.request("a").unwrap(), None);
    store.close_request("b").unwrap();
}

fn of_many_answers_at_once_one_is_first(store: &dyn ApprovalStore) {
    for round in 0..20 {
        let id = format!("race {round}");
        store.open_request(&request(&id, 0)).unwrap();
        let first = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for by in ["a", "b", "c", "d"] {
                let (id, first) = (&id, &first);
                scope.spawn(move || match store.answer(id, &answer(by), at(1)).unwrap() {
                    ApprovalAnswerStatus::Accepted => {
                        first.fetch_add(1, Ordering::SeqCst);
                        assert_eq!(store.answer_of(id).unwrap(), Some(answer(by)));
                    }
                    put => assert_eq!(put, ApprovalAnswerStatus::AlreadyAnswered),
                });
            }
        });
        assert_eq!(first.load(Ordering::SeqCst), 1);
        store.close_request(&id).unwrap();
    }
}

fn grants_hold_until_they_expire_or_are_revoked(store: &dyn ApprovalStore) {
    assert!(store.grants(at(0)).unwrap().is_empty());
    for (id, until) in [("g2", 10), ("g1", 20)] {
        store.add_grant(&grant(id, until)).unwrap();
    }
    assert_eq!(store.grants(at(9)).unwrap(), [grant("g2", 10), grant("g1", 20)]);
    assert_eq!(store.grants(at(10)).unwrap(), [grant("g1", 20)]);
    assert!(store.revoke_grant("g1").unwrap());
    assert!(!store.revoke_grant("g1").unwrap());
    assert!(!store.revoke_grant("never there").unwrap());
    assert!(store.grants(at(10)).unwrap().is_empty());
    assert!(store.revoke_grant("g2").unwrap());
}

fn denials_are_counted_until_they_are_reset(store: &dyn ApprovalStore) {
    let noes = |session: &str, count| DenialStreak { session: session.to_owned(), principal: "p".to_owned(), count };
    assert!(store.denial_streaks().unwrap().is_empty());
    for (session, seconds) in [("a", 0), ("b", 1), ("a", 2)] {
        store.record_denial(session, "p", at(seconds)).unwrap();
    }
    assert_eq!(store.denial_streaks().unwrap(), [noes("a", 2), noes("b", 1)]);
    assert!(store.reset_denials("a").unwrap());
    assert!(!store.reset_denials("a").unwrap());
    assert_eq!(store.denial_streaks().unwrap(), [noes("b", 1)]);
    // What is long ago goes with the next one.
    store.record_denial("c", "p", at(1) + DENIAL_STREAK_LIFETIME - Duration::from_secs(1)).unwrap();
    assert_eq!(store.denial_streaks().unwrap(), [noes("b", 1), noes("c", 1)]);
    store.record_denial("c", "p", at(1) + DENIAL_STREAK_LIFETIME).unwrap();
    assert_eq!(store.denial_streaks().unwrap(), [noes("c", 2)]);
    assert!(store.reset_denials("c").unwrap());
}

fn a_nonce_is_consumed_once(store: &dyn ApprovalStore) {
    assert!(store.consume_nonce("n", at(10), at(0)).unwrap());
    assert!(!store.consume_nonce("n", at(10), at(9)).unwrap());
    assert!(store.consume_nonce("m", at(10), at(9)).unwrap());
    let wins = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let wins = &wins;
            scope.spawn(move || {
                wins.fetch_add(usize::from(store.consume_nonce("race", at(10), at(0)).unwrap()), Ordering::SeqCst)
            });
        }
    });
    assert_eq!(wins.load(Ordering::SeqCst), 1);
}
