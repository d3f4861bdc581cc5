//! API routes for token, tools, policy, audit log and isolation status.

use std::sync::Arc;

use ringfence_audit::{AuditVerification, read_records, to_current_vocabulary, verify};
use ringfence_kernel::{Dialect, Principal, Session, SessionTaint, ToolCall};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::api::ApiState;
use crate::api::error::ApiError;
use crate::api::hosts::{HostPoolKey, run_blocking};
use crate::api::routes::{ApiRequestContext, EmptyRequest};
use crate::api::views::{AuditRecordView, DocumentedValue, IsolationReport, ToolView};
use crate::app::isolation_report::isolation_report;
use crate::app::policy_text;
use crate::app::tool_listing::full_listing;

/// Records of one answer.
const MAX_RECORDS: u64 = 1000;

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct TokenInfo {
    name: String,
    scopes: Vec<&'static str>,
    /// The version of this server.
    version: &'static str,
    /// The workspaces that sessions can use.
    workspaces: Vec<String>,
}

/// Selection and format of tools.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ToolsQuery {
    workspace: Option<String>,
    /// `standard`, `miniclaw` or `crewagent`.
    dialect: Option<String>,
    agent: Option<String>,
    #[serde(default)]
    format: ApiToolFormat,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum ApiToolFormat {
    /// With input and output schemas and effects.
    #[default]
    Full,
    /// The `tools` list of chat completions.
    Openai,
    /// The function definitions only.
    Functions,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ToolList {
    tools: Vec<DocumentedValue<ToolView>>,
}

/// Filter for audit records.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AuditQuery {
    /// Only records after this number; without it, the newest records.
    after: Option<u64>,
    /// The maximum number of records.
    limit: Option<u64>,
    /// Only records of this session.
    session: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct AuditRecordList {
    /// The records as stored in the log, oldest first.
    records: Vec<DocumentedValue<AuditRecordView>>,
    /// The number of the last record that was read, for the next request.
    next: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct AuditVerifyResult {
    ok: bool,
    /// The number of records.
    records: u64,
    /// The number of records covered by a signed head.
    signed: u64,
    message: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PolicyQuery {
    workspace: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct PolicyView {
    text: String,
    /// In order of precedence.
    layers: Vec<PolicyLayerView>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct PolicyLayerView {
    layer: &'static str,
    remark: String,
    rules: Vec<PolicyRuleView>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct PolicyRuleView {
    rule: String,
    /// Where the rule is defined.
    source: Option<String>,
}

/// A call to evaluate without running it.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ExplainBody {
    workspace: Option<String>,
    tool: String,
    #[serde(default)]
    arguments: Map<String, Value>,
    /// Assume a session with these taints: `read-secret`, `saw-untrusted`, `has-egress`.
    #[serde(default)]
    when: Vec<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ExplainResult {
    /// `allow`, `ask` or `deny`; omitted if the call would fail before the decision.
    decision: Option<&'static str>,
    rule: Option<String>,
    layer: Option<&'static str>,
    text: String,
}

pub(super) async fn token_info(
    api: Arc<ApiState>,
    context: ApiRequestContext,
    _: EmptyRequest,
) -> Result<TokenInfo, ApiError> {
    Ok(TokenInfo {
        name: context.identity.name.to_string(),
        scopes: context.identity.scopes.iter().map(|scope| scope.name()).collect(),
        version: env!("CARGO_PKG_VERSION"),
        workspaces: api.hosts.names(),
    })
}

pub(super) async fn tools(api: Arc<ApiState>, _: ApiRequestContext, which: ToolsQuery) -> Result<ToolList, ApiError> {
    let dialect = match which.dialect.as_deref() {
        None => None,
        Some(name) => Some(Dialect::from_name(name).ok_or_else(|| ApiError::bad_request("unknown dialect"))?),
    };
    let house = HostPoolKey { dialect, agent: which.agent, ..HostPoolKey::for_workspace(which.workspace.as_deref()) };
    let app = api.hosts.agent_host(house).await?;
    let catalog = &app.session.catalog;
    let tools = match which.format {
        ApiToolFormat::Full => full_listing(&app),
        ApiToolFormat::Openai => catalog.openai_tools(),
        ApiToolFormat::Functions => catalog.openai_functions(),
    };
    Ok(ToolList { tools: tools.into_iter().map(DocumentedValue::from).collect() })
}

pub(super) async fn audit_records(
    api: Arc<ApiState>,
    _: ApiRequestContext,
    which: AuditQuery,
) -> Result<AuditRecordList, ApiError> {
    let most = which.limit.unwrap_or(100).clamp(1, MAX_RECORDS);
    let state = api.state.clone();
    run_blocking(move || {
        let mut found = std::collections::VecDeque::new();
        let (mut number, mut next) = (0, which.after.unwrap_or(0));
        let read = read_records(&state, |line| {
            number += 1;
            if which.after.is_some_and(|after| number <= after || found.len() as u64 >= most) {
                return Ok(());
            }
            let record = to_current_vocabulary(serde_json::from_str(line).unwrap_or_default());
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
                Err(ApiError::internal("cannot read the audit log"))
            }
            _ => Ok(AuditRecordList { records: found.into_iter().map(DocumentedValue::from).collect(), next }),
        }
    })
    .await
}

pub(super) async fn verify_audit(
    api: Arc<ApiState>,
    _: ApiRequestContext,
    _: EmptyRequest,
) -> Result<AuditVerifyResult, ApiError> {
    let state = api.state.clone();
    run_blocking(move || {
        Ok(match verify(&state, &[]) {
            Ok(AuditVerification { records, last_signed: signed, .. }) => {
                let message = format!("{records} records, signed up to {signed}");
                AuditVerifyResult { ok: true, records, signed, message }
            }
            Err(broken) => AuditVerifyResult { ok: false, records: 0, signed: 0, message: broken.to_string() },
        })
    })
    .await
}

pub(super) async fn policy(
    api: Arc<ApiState>,
    _: ApiRequestContext,
    which: PolicyQuery,
) -> Result<PolicyView, ApiError> {
    let app = api.hosts.agent_host(HostPoolKey::for_workspace(which.workspace.as_deref())).await?;
    let rules = app.settings.rules();
    let layers = rules.layers().map(|(layer, rules)| PolicyLayerView {
        layer: layer.name(),
        remark: policy_text::layer_description(layer).trim_start_matches([':', ' ']).to_owned(),
        rules: rules
            .iter()
            .map(|rule| PolicyRuleView { rule: rule.to_string(), source: rule.source().map(str::to_owned) })
            .collect(),
    });
    Ok(PolicyView { layers: layers.collect(), text: policy_text::format_rules(&rules) })
}

pub(super) async fn explain(
    api: Arc<ApiState>,
    _: ApiRequestContext,
    supposed: ExplainBody,
) -> Result<ExplainResult, ApiError> {
    let app = api.hosts.agent_host(HostPoolKey::for_workspace(supposed.workspace.as_deref())).await?;
    let model = &app.session;
    let taint = SessionTaint::default();
    for name in &supposed.when {
        taint.add(ringfence_kernel::Taint::from_name(name).ok_or_else(|| ApiError::bad_request("unknown taint"))?);
    }
    let caller = Principal::agent(&model.principal.name);
    let session = Arc::new(Session { taint, ..model.for_principal(&model.id, caller) });
    let arguments = Value::Object(supposed.arguments).to_string();
    let call = ToolCall { id: "explain".to_owned(), name: supposed.tool, arguments };
    Ok(match app.host.explain(&session, call).await {
        Ok(explanation) => ExplainResult {
            decision: Some(explanation.verdict.decision.name()),
            rule: Some(explanation.verdict.rule.to_string()),
            layer: Some(explanation.verdict.layer.name()),
            text: policy_text::format_explanation(&explanation),
        },
        Err(error) => ExplainResult { decision: None, rule: None, layer: None, text: error.message },
    })
}

pub(super) async fn isolation(
    api: Arc<ApiState>,
    _: ApiRequestContext,
    _: EmptyRequest,
) -> Result<DocumentedValue<IsolationReport>, ApiError> {
    let program = api.program.clone();
    let statuses = run_blocking(move || Ok(ringfence_sandbox::probe(&program))).await?;
    Ok(isolation_report(&statuses).into())
}
