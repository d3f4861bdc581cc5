//! What a session has been through: who raises a bit, when, and what two calls at once come to.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ringfence_kernel::{
    Answered, Bit, Bits, ErrorKind, Layer, MemoryStore, Policy, Preset, Question, Rule, Rules, Store, ToolError, Touch,
    Verdict,
};
use serde_json::{Value, json};

use crate::road::{Hooked, Road, Script, Setup, Somebody, assert_error, change, json, no, yes};

fn rules(texts: impl IntoIterator<Item = Value>) -> Rules {
    let rule = |text: Value| Rule::new(serde_json::from_value(text).unwrap(), "rule").unwrap();
    Rules::of(Preset::Edits).with(Layer::User, texts.into_iter().map(rule).collect())
}

/// A road on which everything is allowed that no bit forbids.
fn allowing() -> Setup {
    Setup { policy: Box::new(rules([json!({"decision": "allow"})])), ..Setup::default() }
}

fn up(road: &Road) -> Vec<&'static str> {
    road.session.bits.now().iter().map(Bit::name).collect()
}

#[tokio::test]
async fn reading_a_secret_and_fetching_raise_their_bits_for_good() {
    let road = allowing().road();
    road.call(&json!({"path": "a", "verb": "read"})).await;
    road.call(&json!({"path": ".env"})).await;
    assert_eq!(up(&road), [] as [&str; 0]);
    assert_eq!(road.call(&json!({"path": ".env", "verb": "read"})).await.error, None);
    assert_eq!(up(&road), ["read-secret"]);
    assert_eq!(road.call(&json!({"path": "docs.rs:443", "verb": "fetch"})).await.error, None);
    assert_eq!(up(&road), ["read-secret", "has-egress"]);
    road.call(&json!({"path": "a", "verb": "read"})).await;
    assert_eq!(up(&road), ["read-secret", "has-egress"]);
}

#[tokio::test]
async fn a_bit_is_up_before_the_call_runs_and_stays_down_where_it_does_not() {
    let bits = Bits::default();
    let seen = bits.clone();
    let script = Script::run(move |_, _| match seen.has(Bit::ReadSecret) {
        true => Err(ToolError::new(ErrorKind::Io, "half of it was read")),
        false => Ok(()),
    });
    let road = Setup { script, bits, ..allowing() }.road();
    assert_error(&road.call(&json!({"path": ".env", "verb": "read"})).await, ErrorKind::Io);
    assert_eq!(up(&road), ["read-secret"]);
    let denied = Setup { policy: Box::new(rules([json!({"decision": "deny"})])), ..Setup::default() }.road();
    assert_error(&denied.call(&json!({"path": ".env", "verb": "read"})).await, ErrorKind::PermissionDenied);
    assert_eq!(up(&denied), [] as [&str; 0]);
}

#[tokio::test]
async fn a_tool_says_that_it_saw_what_strangers_wrote() {
    let script = Script::run(|args, ticket| {
        if args.path == "page" {
            ticket.context().raise(Bit::SawUntrusted);
        }
        ticket.commit()
    });
    let road = Setup { script, ..allowing() }.road();
    road.call(&json!({"path": "a", "verb": "read"})).await;
    assert_eq!(up(&road), [] as [&str; 0]);
    road.call(&json!({"path": "page", "verb": "read"})).await;
    assert_eq!(up(&road), ["saw-untrusted"]);
}

#[tokio::test]
async fn after_two_the_third_is_asked_about() {
    let road = Setup { somebody: Somebody::saying([yes()]), ..allowing() }.road();
    road.session.bits.raise(Bit::SawUntrusted);
    assert_eq!(road.call(&json!({"path": ".env", "verb": "read"})).await.error, None);
    assert_eq!(road.somebody.questions(), [] as [Value; 0]);
    let reply = road.call(&json!({"path": "docs.rs:443", "verb": "fetch"})).await;
    assert_eq!(json(&reply)["value"], json!({"path": "docs.rs:443", "approved": true}));
    assert_eq!(road.somebody.questions(), [json!("docs.rs:443")]);
    assert_eq!(up(&road), ["read-secret", "saw-untrusted", "has-egress"]);
}

#[tokio::test]
async fn a_quick_call_that_raises_a_bit_does_not_meet_it_again() {
    let once = rules([
        json!({"decision": "deny", "effect": "read", "secret": true, "when": "read-secret"}),
        json!({"decision": "allow"}),
    ]);
    let road = Setup { quick: true, policy: Box::new(once), ..Setup::default() }.road();
    assert_eq!(road.call(&json!({"path": ".env", "verb": "read"})).await.error, None);
    assert_eq!((up(&road), road.runs()), (vec!["read-secret"], 1));
    assert_error(&road.call(&json!({"path": ".env", "verb": "read"})).await, ErrorKind::PermissionDenied);
}

#[tokio::test]
async fn of_two_calls_at_once_the_second_is_decided_about_again() {
    let rules = rules([json!({"decision": "allow"})]);
    let policy = Meanwhile { rules, raised: AtomicBool::new(false) };
    let road = Setup { policy: Box::new(policy), ..Setup::answering([no()]) }.road();
    road.session.bits.raise(Bit::SawUntrusted);
    let reply = road.call(&json!({"path": "docs.rs:443", "verb": "fetch"})).await;
    assert_error(&reply, ErrorKind::ApprovalDenied);
    assert_eq!(json(&reply)["error"]["details"]["rule"], "third bit");
    assert_eq!((up(&road), road.runs()), (vec!["read-secret", "saw-untrusted"], 0));
}

/// A policy that is slow: while it decides for the first time, another call reads a secret.
#[derive(Debug)]
struct Meanwhile {
    rules: Rules,
    raised: AtomicBool,
}

impl Policy for Meanwhile {
    fn judge(&self, touch: &Touch, question: &Question<'_>) -> Verdict {
        let verdict = self.rules.judge(touch, question);
        if !self.raised.swap(true, Ordering::SeqCst) {
            question.session.bits.raise(Bit::ReadSecret);
        }
        verdict
    }
}

/// A road on which a secret is read while somebody is asked.
fn asked_meanwhile(answers: impl IntoIterator<Item = Answered>, policy: Rules) -> Road {
    let bits = Bits::default();
    bits.raise(Bit::SawUntrusted);
    let raised = bits.clone();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    // While the store opens the first request, another call reads a secret.
    let store = Hooked::new(&store, move |step| {
        if step == "open_request" {
            raised.raise(Bit::ReadSecret);
        }
        Ok(())
    });
    Setup { bits, store, policy: Box::new(policy), ..Setup::answering(answers) }.road()
}

#[tokio::test]
async fn a_yes_to_what_has_become_worse_meanwhile_does_not_count() {
    let fetch = json!({"path": "docs.rs:443", "verb": "fetch"});
    let road = asked_meanwhile([yes()], rules([]));
    assert_error(&road.call(&fetch).await, ErrorKind::Conflict);
    assert_eq!((road.trace.lines(), road.runs()), (vec!["refused Conflict docs.rs:443".to_owned()], 0));
    let deny = json!({"decision": "deny", "effect": "fetch", "when": "read-secret"});
    let road = asked_meanwhile([yes()], rules([deny]));
    assert_error(&road.call(&fetch).await, ErrorKind::PermissionDenied);
    assert_eq!(road.runs(), 0);
    // What has nothing to do with it goes on.
    let road = asked_meanwhile([yes()], rules([json!({"decision": "ask", "path": "a"})]));
    assert_eq!(road.call(&json!({"path": "a"})).await.error, None);
    // And so does what is allowed by now, and raises its bit.
    let allow = json!({"decision": "allow", "effect": "fetch", "when": ["read-secret", "saw-untrusted"]});
    let rule = |text: Value| Rule::new(serde_json::from_value(text).unwrap(), "rule").unwrap();
    let policy = rules([json!({"decision": "ask"})]).with(Layer::Managed, vec![rule(allow)]);
    let road = asked_meanwhile([yes()], policy);
    assert_eq!(road.call(&fetch).await.error, None);
    assert_eq!(up(&road), ["read-secret", "saw-untrusted", "has-egress"]);
}

#[tokio::test]
async fn a_yes_with_other_arguments_is_asked_again_when_the_session_went_on_meanwhile() {
    let fetch = json!({"path": "docs.rs:443", "verb": "fetch"});
    let road = asked_meanwhile([change(fetch.clone()), no()], rules([]));
    let reply = road.call(&fetch).await;
    assert_error(&reply, ErrorKind::ApprovalDenied);
    assert_eq!(json(&reply)["error"]["details"]["rule"], "third bit");
    assert_eq!((road.somebody.questions().len(), road.runs()), (2, 0));
}
