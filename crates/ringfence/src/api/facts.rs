//! What holds and what was: who you are, the tools, the rules, the trace, and the walls.

use std::sync::Arc;

use ringfence_fs::{Verified, read_records, verify};
use ringfence_kernel::{Bits, Dialect, Principal, Session, ToolCall};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::Api;
use super::houses::{Which, off_thread};
use super::problem::Problem;
use super::routes::{Nothing, Visit};
use super::views::{AuditRecord, Documented, IsolationView, ToolView};
use crate::policy_text;
use crate::tool_listing::full_listing;

/// Records of one answer.
const MOST_RECORDS: u64 = 1000;

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Me {
    name: String,
    scopes: Vec<&'static str>,
    /// Of this server.
    version: &'static str,
    /// The workspaces that sessions can be begun on.
    workspaces: Vec<String>,
}

/// Which tools, in which form.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WhichTools {
    workspace: Option<String>,
    /// `standard`, `miniclaw` or `crewagent`.
    dialect: Option<String>,
    agent: Option<String>,
    #[serde(default)]
    format: Format,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Format {
    /// With schemas of what comes and goes, and what calls can do.
    #[default]
    Full,
    /// What chat completions take as `tools`.
    Openai,
    /// The bare functions.
    Functions,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Tools {
    tools: Vec<Documented<ToolView>>,
}

/// Which records.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WhichRecords {
    /// Those after this number; without it the newest.
    after: Option<u64>,
    /// At most so many.
    limit: Option<u64>,
    /// Only those of this session.
    session: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Records {
    /// As they are in the log, the oldest first.
    records: Vec<Documented<AuditRecord>>,
    /// The number of the last one that was looked at, for the next question.
    next: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Checked {
    ok: bool,
    /// How many records there are.
    records: u64,
    /// How many of them a signed head vouches for.
    signed: u64,
    message: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WhichRules {
    workspace: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Rules {
    text: String,
    /// In the order in which they decide.
    layers: Vec<LayerView>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct LayerView {
    layer: &'static str,
    remark: String,
    rules: Vec<RuleView>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct RuleView {
    rule: String,
    /// Where it is written.
    source: Option<String>,
}

/// A call to be judged without being made.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Supposed {
    workspace: Option<String>,
    tool: String,
    #[serde(default)]
    arguments: Map<String, Value>,
    /// As in a session that has been through this: `read-secret`, `saw-untrusted`, `has-egress`.
    #[serde(default)]
    when: Vec<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Judged {
    /// `allow`, `ask` or `deny`; nothing where the call would not get so far.
    decision: Option<&'static str>,
    rule: Option<String>,
    layer: Option<&'static str>,
    text: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Walls {
    walls: Vec<Documented<IsolationView>>,
}

pub(super) async fn me(api: Arc<Api>, visit: Visit, _: Nothing) -> Result<Me, Problem> {
    Ok(Me {
        name: visit.who.name.to_string(),
        scopes: visit.who.scopes.iter().map(|scope| scope.name()).collect(),
        version: env!("CARGO_PKG_VERSION"),
        workspaces: api.houses.names(),
    })
}

pub(super) async fn tools(api: Arc<Api>, _: Visit, which: WhichTools) -> Result<Tools, Problem> {
    let dialect = match which.dialect.as_deref() {
        None => None,
        Some(name) => Some(Dialect::named(name).ok_or_else(|| Problem::bad("there is no such dialect"))?),
    };
    let house = Which { dialect, agent: which.agent, ..Which::of(which.workspace.as_deref()) };
    let wired = api.houses.agent(house).await?;
    let catalog = &wired.session.catalog;
    let tools = match which.format {
        Format::Full => full_listing(&wired),
        Format::Openai => catalog.openai_tools(),
        Format::Functions => catalog.openai_functions(),
    };
    Ok(Tools { tools: tools.into_iter().map(Documented::from).collect() })
}

pub(super) async fn records(api: Arc<Api>, _: Visit, which: WhichRecords) -> Result<Records, Problem> {
    let most = which.limit.unwrap_or(100).clamp(1, MOST_RECORDS);
    let state = api.state.clone();
    off_thread(move || {
        let mut found = std::collections::VecDeque::new();
        let (mut number, mut next) = (0, which.after.unwrap_or(0));
        let read = read_records(&state, |line| {
            number += 1;
            if which.after.is_some_and(|after| number <= after || found.len() as u64 >= most) {
                return Ok(());
            }
            let record: Value = serde_json::from_str(line).unwrap_or_default();
            next = number;
            if which.session.as_ref().is_none_or(|session| record["session"] == session.as_str()) {
                found.push_back(record);
            }
            // Without a number to begin at, the newest are wanted.
            if which.after.is_none() && found.len() as u64 > most {
                found.pop_front();
            }
            Ok(())
        });
        match read {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Problem::internal("the audit log cannot be read"))
            }
            _ => Ok(Records { records: found.into_iter().map(Documented::from).collect(), next }),
        }
    })
    .await
}

pub(super) async fn check(api: Arc<Api>, _: Visit, _: Nothing) -> Result<Checked, Problem> {
    let state = api.state.clone();
    off_thread(move || {
        Ok(match verify(&state, &[]) {
            Ok(Verified { records, signed, .. }) => {
                let message = format!("{records} records, signed up to {signed}");
                Checked { ok: true, records, signed, message }
            }
            Err(broken) => Checked { ok: false, records: 0, signed: 0, message: broken.to_string() },
        })
    })
    .await
}

pub(super) async fn rules(api: Arc<Api>, _: Visit, which: WhichRules) -> Result<Rules, Problem> {
    let wired = api.houses.agent(Which::of(which.workspace.as_deref())).await?;
    let rules = wired.settings.rules();
    let layers = rules.layers().map(|(layer, rules)| LayerView {
        layer: layer.name(),
        remark: policy_text::remark(layer).trim_start_matches([':', ' ']).to_owned(),
        rules: rules
            .iter()
            .map(|rule| RuleView { rule: rule.to_string(), source: rule.source().map(str::to_owned) })
            .collect(),
    });
    Ok(Rules { layers: layers.collect(), text: policy_text::show(&rules) })
}

pub(super) async fn explain(api: Arc<Api>, _: Visit, supposed: Supposed) -> Result<Judged, Problem> {
    let wired = api.houses.agent(Which::of(supposed.workspace.as_deref())).await?;
    let model = &wired.session;
    let bits = Bits::default();
    for name in &supposed.when {
        bits.raise(ringfence_kernel::Bit::named(name).ok_or_else(|| Problem::bad("there is no such bit"))?);
    }
    let caller = Principal::agent(&model.principal.name);
    let session = Arc::new(Session { bits, ..model.like(&model.id, caller) });
    let arguments = Value::Object(supposed.arguments).to_string();
    let call = ToolCall { id: "explain".to_owned(), name: supposed.tool, arguments };
    Ok(match wired.host.explain(&session, call).await {
        Ok(explanation) => Judged {
            decision: Some(explanation.verdict.decision.name()),
            rule: Some(explanation.verdict.rule.to_string()),
            layer: Some(explanation.verdict.layer.name()),
            text: policy_text::explain(&explanation),
        },
        Err(error) => Judged { decision: None, rule: None, layer: None, text: error.message },
    })
}

pub(super) async fn walls(api: Arc<Api>, _: Visit, _: Nothing) -> Result<Walls, Problem> {
    let program = api.program.clone();
    let walls = off_thread(move || Ok(ringfence_sandbox::probe(&program))).await?;
    Ok(Walls { walls: walls.iter().map(|wall| json!(wall).into()).collect() })
}
