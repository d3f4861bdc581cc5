//! A suspended call that its client brings back whole, perhaps with what its user said.

use std::sync::Arc;

use ringfence_kernel::{
    Answered, Approval, ApprovalResponse, Assurance, ErrorKind, MemoryStore, Principal, Reply, Returned, Store,
    Suspended, ToolCall,
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::road::{Hooked, Road, Setup, Somebody, assert_error, json};

fn putting_off() -> Road {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let somebody = Somebody { puts_off: true, ..Somebody::default() };
    Setup { somebody, store: Hooked::shared(&store), ..Setup::default() }.road()
}

/// What the user of a client said.
fn said(approved: bool) -> Option<Answered> {
    let response = ApprovalResponse { approved, ..ApprovalResponse::default() };
    let by = Some(Principal::person("the client's user"));
    Some(Answered { response, approval: Approval { assurance: Assurance::Relayed, by } })
}

impl Road {
    async fn suspend(&self, arguments: &Value) -> Suspended {
        self.call(arguments).await.suspended.unwrap()
    }

    async fn come_back(&self, token: &str, arguments: &str, answered: Option<Answered>) -> Reply {
        let call = ToolCall { id: "2".to_owned(), name: "act".to_owned(), arguments: arguments.to_owned() };
        let back = Returned { token: token.to_owned(), call, answered, listener: None };
        self.host.resume_call(&self.session, back, &CancellationToken::new()).await.unwrap()
    }
}

#[tokio::test]
async fn it_brings_its_answer_along() {
    for approved in [true, false] {
        let road = putting_off();
        let Suspended { token, .. } = road.suspend(&json!({"path": "ask"})).await;
        let reply = road.come_back(&token, r#" { "path" : "ask" } "#, said(approved)).await;
        assert_eq!((reply.error.is_none(), road.runs()), (approved, usize::from(approved)), "{}", reply.text);
        let again = road.come_back(&token, r#"{"path":"ask"}"#, said(true)).await;
        assert_error(&again, ErrorKind::ApprovalDenied);
        assert_eq!(road.runs(), usize::from(approved));
    }
}

#[tokio::test]
async fn without_an_answer_it_waits_on() {
    let road = putting_off();
    let suspended = road.suspend(&json!({"path": "ask"})).await;
    let reply = road.come_back(&suspended.token, r#"{"path":"ask"}"#, None).await;
    assert_eq!(reply.suspended, Some(suspended));
}

#[tokio::test]
async fn another_call_cannot_come_in_its_place() {
    let road = putting_off();
    let Suspended { token, .. } = road.suspend(&json!({"path": "ask"})).await;
    for arguments in [r#"{"path":"ask2"}"#, "", "{"] {
        let reply = road.come_back(&token, arguments, said(true)).await;
        assert_error(&reply, ErrorKind::ApprovalDenied);
        assert!(reply.text.contains("another call"), "{}", reply.text);
        assert_eq!(road.runs(), 0);
    }
}

#[tokio::test]
async fn an_answer_that_is_not_sure_enough_leaves_the_request_to_a_person() {
    let road = putting_off();
    let Suspended { token, request } = road.suspend(&json!({"path": "ask/person"})).await;
    let reply = road.come_back(&token, r#"{"path":"ask/person"}"#, said(true)).await;
    assert!(reply.suspended.is_some(), "{}", reply.text);
    assert_eq!((road.runs(), road.pending()[0].id.as_str()), (0, request.as_str()));
    let person = Principal::person("the person");
    let yes = ApprovalResponse { approved: true, ..ApprovalResponse::default() };
    road.host.desk(&person).answer(&request, yes, Assurance::Person, std::time::SystemTime::now()).unwrap();
    let reply = road.come_back(&token, r#"{"path":"ask/person"}"#, None).await;
    assert_eq!(json(&reply)["value"]["approved"], true);
}

#[tokio::test]
async fn a_client_that_gives_its_call_up_ends_the_request_and_counts_as_nobody_s_no() {
    let road = putting_off();
    let Suspended { token, .. } = road.suspend(&json!({"path": "ask"})).await;
    let none = Answered::no("the client declined".to_owned());
    let reply = road.come_back(&token, r#"{"path":"ask"}"#, Some(none)).await;
    assert_error(&reply, ErrorKind::ApprovalDenied);
    assert!(reply.text.contains("not approved: the client declined"), "{}", reply.text);
    assert_eq!((road.runs(), road.pending().len()), (0, 0));
    // A yes that nobody said is none at all.
    let Suspended { token, .. } = road.suspend(&json!({"path": "ask"})).await;
    let mut yes = Answered::no(String::new());
    yes.response.approved = true;
    let reply = road.come_back(&token, r#"{"path":"ask"}"#, Some(yes)).await;
    assert!(reply.suspended.is_some(), "{}", reply.text);
    assert_eq!((road.runs(), road.pending().len()), (0, 1));
}
