//! The full listing of tools: schemas, effects, and whether calls require approval.
//!
//! Not here: the forms that model APIs take (the kernel's catalog has those).

use ringfence_kernel::{
    CODE, Decision, Definition, MCP, NET, Place, Policy, Question, Rules, SEARCH, Session, Touch, Verb,
};
use serde_json::{Value, json};

use crate::wire::Wired;

/// An ordinary file, a secret, and a setting that other programs act on.
const FILES: [&str; 3] = ["notes/ordinary.txt", ".env", ".git/config"];

/// A host that nobody has on a list.
const HOST: &str = "https://unlisted.invalid/";

/// Every tool of a session, as `GET /v1/tools` and `ringfence tools --format full` give it.
pub(crate) fn full_listing(wired: &Wired) -> Vec<Value> {
    let rules = wired.settings.rules();
    let tool = |tool: &Definition| {
        json!({
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters,
            "output": tool.output,
            "effect": {
                "onlyReads": tool.effect.only_reads(),
                "destroys": tool.effect.destroys(),
                "reachesOut": tool.effect.reaches_out(),
                "sameAgain": tool.effect.same_again,
            },
            "onlyReads": tool.effect.only_reads(),
            "requiresApproval": requires_approval(&rules, &wired.session, tool),
        })
    };
    wired.session.catalog.list().map(tool).collect()
}

/// `never` and `always` where the policy leaves no choice, `sometimes` where it depends on the arguments. What a program
/// leaves behind is decided about by itself, so running one can always lead to a question.
fn requires_approval(rules: &Rules, session: &Session, tool: &Definition) -> &'static str {
    let asks = |touch: &Touch| {
        let question = Question::new(session, &tool.name, std::slice::from_ref(touch), session.bits.now());
        rules.decide(&question).decision == Decision::Ask
    };
    let answers: Vec<bool> = tool.effect.verbs.iter().flat_map(|verb| samples(*verb, tool)).map(|t| asks(&t)).collect();
    let runs_programs = tool.effect.verbs.contains(&Verb::Run);
    match (answers.iter().any(|asks| *asks), answers.iter().all(|asks| *asks)) {
        (true, true) => "always",
        (false, _) if !runs_programs => "never",
        _ => "sometimes",
    }
}

/// What a verb of a tool can be about.
fn samples(verb: Verb, tool: &Definition) -> Vec<Touch> {
    let touch = |mount: &str, given: &str| {
        let place = Place { mount: mount.into(), given: given.to_owned(), shown: given.to_owned(), ..Place::default() };
        Touch { verb, place }
    };
    match verb {
        Verb::Fetch if tool.name == "web_search" => vec![touch(SEARCH, HOST)],
        Verb::Fetch => vec![touch(NET, HOST)],
        Verb::Run => vec![touch(CODE, "")],
        Verb::External => vec![touch(MCP, &tool.name)],
        _ => FILES.map(|file| touch("workspace", file)).to_vec(),
    }
}
