//! The full listing of tools: schemas, effects, and whether calls require approval.
//!
//! Not here: the forms that model APIs take (the kernel's catalog has those).

use ringfence_kernel::{
    CODE_MOUNT, Decision, LayeredRules, MCP_MOUNT, NET_MOUNT, Policy, PolicyAction, PolicyRequest, PolicyResource,
    REGISTRY_MOUNT, ResourceAccess, SEARCH_MOUNT, Session, ToolDefinition,
};
use serde_json::{Value, json};

use crate::app::App;
use crate::codec::renamed_keys::with_old_keys;

/// An ordinary file, a secret, and a setting that other programs act on.
const SAMPLE_PATHS: [&str; 3] = ["notes/ordinary.txt", ".env", ".git/config"];

/// A host that is on no list.
const SAMPLE_URL: &str = "https://unlisted.invalid/";

/// Every tool of a session, as `GET /v1/tools` and `ringfence tools --format full` give it.
pub(crate) fn full_listing(app: &App) -> Vec<Value> {
    let rules = app.settings.rules();
    let tool = |tool: &ToolDefinition| {
        with_old_keys(json!({
            "name": tool.name,
            "description": tool.description(),
            "parameters": tool.parameters(),
            "output": tool.output(),
            "effect": with_old_keys(json!({
                "readOnly": tool.capabilities.is_read_only(),
                "destructive": tool.capabilities.is_destructive(),
                "openWorld": tool.capabilities.is_open_world(),
                "idempotent": tool.capabilities.idempotent,
            })),
            "readOnly": tool.capabilities.is_read_only(),
            "requiresApproval": requires_approval(&rules, &app.session, tool),
        }))
    };
    app.session.catalog.list().map(tool).collect()
}

/// `never` and `always` where the policy leaves no choice, `sometimes` where it depends on the arguments. Changes of a
/// program are judged by themselves, so running one can always lead to an approval request.
fn requires_approval(rules: &LayeredRules, session: &Session, tool: &ToolDefinition) -> &'static str {
    let asks = |access: &ResourceAccess| {
        let question = PolicyRequest::new(session, &tool.name, std::slice::from_ref(access), session.taint.snapshot());
        rules.decide(&question).decision == Decision::Ask
    };
    let answers: Vec<bool> =
        tool.capabilities.actions.iter().flat_map(|action| samples(*action, tool)).map(|t| asks(&t)).collect();
    let runs_programs = tool.capabilities.actions.contains(&PolicyAction::Run);
    match (answers.iter().any(|asks| *asks), answers.iter().all(|asks| *asks)) {
        (true, true) => "always",
        (false, _) if !runs_programs => "never",
        _ => "sometimes",
    }
}

/// Sample accesses for an action of a tool.
fn samples(action: PolicyAction, tool: &ToolDefinition) -> Vec<ResourceAccess> {
    let access = |mount: &str, given: &str| {
        let resource = PolicyResource {
            mount: mount.into(),
            requested_path: given.to_owned(),
            display_path: given.to_owned(),
            ..PolicyResource::default()
        };
        ResourceAccess { action, resource }
    };
    match action {
        PolicyAction::Fetch if tool.name == "web_search" => vec![access(SEARCH_MOUNT, SAMPLE_URL)],
        PolicyAction::Fetch if tool.name == "install_package" => vec![access(REGISTRY_MOUNT, SAMPLE_URL)],
        PolicyAction::Fetch | PolicyAction::Send | PolicyAction::Listen => vec![access(NET_MOUNT, SAMPLE_URL)],
        PolicyAction::Run => vec![access(CODE_MOUNT, "")],
        PolicyAction::External => vec![access(MCP_MOUNT, &tool.name)],
        _ => SAMPLE_PATHS.map(|file| access("workspace", file)).to_vec(),
    }
}
