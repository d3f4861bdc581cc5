//! API routes for approval requests and persistent grants.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ringfence_kernel::{
    ApprovalInbox, ApprovalRequest, ApprovalResponse, Assurance, DraftOutcome, InboxError, Preview, PreviewBody,
    Principal,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use crate::api::ApiState;
use crate::api::error::ApiError;
use crate::api::feed::FeedItem;
use crate::api::hosts::run_blocking;
use crate::api::routes::{ApiRequestContext, EmptyRequest, EmptyResponse};
use crate::api::views::{ApprovalView, DocumentedValue, GrantView};
use crate::process::messages::{error_chain, print_error};
use crate::store::tokens::TokenIdentity;

/// Poll interval for requests of other processes.
const POLL_INTERVAL: Duration = Duration::from_millis(300);

/// Time to wait for a preview of other arguments.
const PREVIEW_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ApprovalList {
    /// Oldest first.
    requests: Vec<DocumentedValue<ApprovalView>>,
    /// Sessions that are paused after too many consecutive denials.
    paused: Vec<PausedSession>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct PausedSession {
    session: String,
    principal: String,
    count: u64,
}

/// A person's answer to an approval request.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct ApprovalBody {
    approved: bool,
    /// Arguments to use instead of the requested ones.
    #[serde(default)]
    modified_args: Option<serde_json::Map<String, Value>>,
    /// Add the rule shown in the request as a persistent grant.
    #[serde(default)]
    remember: bool,
    /// The reason for a denial, sent to the caller.
    #[serde(default)]
    reason: Option<String>,
}

/// Arguments to preview.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct ArgumentPreviewBody {
    modified_args: serde_json::Map<String, Value>,
}

/// The effect that the call would have with these arguments.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ArgumentPreview {
    summary: String,
    /// The effect as text.
    preview: String,
    /// The preview shows the contents of a secret.
    secret: bool,
    /// Further notes, a line each.
    lines: Vec<String>,
    /// The changes, or what else there is to see.
    body: PreviewBody,
}

impl ArgumentPreview {
    fn new(preview: &Preview) -> Self {
        Self {
            summary: preview.summary().to_owned(),
            preview: preview.text(),
            secret: preview.is_secret(),
            lines: preview.lines().to_vec(),
            body: preview.body().clone(),
        }
    }
}

/// An accepted answer.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct AnswerAccepted {
    /// The call is deferred: it runs when its caller calls again.
    waits_for_caller: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct GrantList {
    grants: Vec<DocumentedValue<GrantView>>,
}

/// A request as a viewer may see it: contents are for a person.
fn request_view(request: &ApprovalRequest, assurance: Assurance) -> Value {
    let request = if assurance == Assurance::Person { request.clone() } else { request.redacted_for_relay() };
    json!(request)
}

impl ApiState {
    async fn with_inbox<T: Send + 'static>(
        &self,
        who: TokenIdentity,
        work: impl FnOnce(ApprovalInbox<'_>) -> Result<T, InboxError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let store = Arc::clone(&self.store);
        run_blocking(move || {
            let by = who.principal();
            Ok(work(ApprovalInbox { store: store.as_ref(), principal: &by })?)
        })
        .await
    }

    /// The sessions that are paused.
    pub(super) async fn paused(&self) -> Result<BTreeSet<String>, ApiError> {
        let (store, limit) = (Arc::clone(&self.store), self.pause_after_denials);
        run_blocking(move || {
            let reader = Principal::person("server");
            let paused = ApprovalInbox { store: store.as_ref(), principal: &reader }.paused_sessions(limit)?;
            Ok(paused.into_iter().map(|streak| streak.session).collect())
        })
        .await
    }

    /// Tells of requests that come and go, from whichever process. Goes on until the server stops.
    pub(super) async fn watch_requests(self: Arc<Self>) {
        // With whether their calls returned to their callers, which is an event too.
        let mut known: BTreeMap<String, bool> = BTreeMap::new();
        let mut failed = false;
        loop {
            sleep(POLL_INTERVAL).await;
            let store = Arc::clone(&self.store);
            let look = move || {
                let reader = Principal::person("server");
                ApprovalInbox { store: store.as_ref(), principal: &reader }.pending(SystemTime::now())
            };
            // A failed read is repeated the next time, and reported once.
            let pending = match spawn_blocking(look).await {
                Ok(Ok(pending)) => pending,
                Err(_) => continue,
                Ok(Err(error)) => {
                    if !std::mem::replace(&mut failed, true) {
                        print_error(&format!("cannot watch approval requests: {}", error_chain(&error)));
                    }
                    continue;
                }
            };
            failed = false;
            let found: BTreeMap<String, bool> =
                pending.iter().map(|request| (request.id.clone(), request.suspended)).collect();
            for request in pending.iter().filter(|request| known.get(&request.id) != Some(&request.suspended)) {
                self.publish_request(request);
            }
            for id in known.keys().filter(|id| !found.contains_key(*id)) {
                self.feed.publish(FeedItem {
                    kind: "answered",
                    session: None,
                    owner: None,
                    data: json!({"request": id}),
                    contents: Value::Null,
                });
            }
            known = found;
        }
    }

    fn publish_request(&self, request: &ApprovalRequest) {
        self.feed.publish(FeedItem {
            kind: "request",
            session: Some(&request.session),
            owner: None,
            data: json!({"request": request_view(request, Assurance::Relayed)}),
            contents: json!({"request": request_view(request, Assurance::Person)}),
        });
    }
}

pub(super) async fn list(
    api: Arc<ApiState>,
    context: ApiRequestContext,
    _: EmptyRequest,
) -> Result<ApprovalList, ApiError> {
    let (assurance, limit) = (context.identity.assurance, api.pause_after_denials);
    let look = move |inbox: ApprovalInbox<'_>| Ok((inbox.pending(SystemTime::now())?, inbox.paused_sessions(limit)?));
    let (pending, paused) = api.with_inbox(context.identity, look).await?;
    let paused = paused.into_iter().map(|streak| PausedSession {
        session: streak.session,
        principal: streak.principal,
        count: streak.count,
    });
    let requests = pending.iter().map(|request| request_view(request, assurance).into()).collect();
    Ok(ApprovalList { requests, paused: paused.collect() })
}

pub(super) async fn show(
    api: Arc<ApiState>,
    context: ApiRequestContext,
    _: EmptyRequest,
) -> Result<DocumentedValue<ApprovalView>, ApiError> {
    let (id, assurance) = (context.path_param(0).to_owned(), context.identity.assurance);
    let found = api.with_inbox(context.identity, move |inbox| inbox.request(&id, SystemTime::now())).await?;
    Ok(request_view(&found, assurance).into())
}

/// Previews a call with other arguments, by the process that waits with it. This approves nothing.
pub(super) async fn preview(
    api: Arc<ApiState>,
    context: ApiRequestContext,
    wanted: ArgumentPreviewBody,
) -> Result<ArgumentPreview, ApiError> {
    if context.identity.assurance != Assurance::Person {
        return Err(InboxError::NeedsPerson.into());
    }
    let (id, who, args) = (context.path_param(0).to_owned(), context.identity, Value::Object(wanted.modified_args));
    let request = id.clone();
    let draft = api.with_inbox(who.clone(), move |inbox| inbox.open_draft(&request, args, SystemTime::now())).await?;
    let until = Instant::now() + PREVIEW_TIMEOUT;
    loop {
        let (request, asked) = (id.clone(), draft.clone());
        let found = api.with_inbox(who.clone(), move |inbox| inbox.draft_of(&request, &asked)).await?;
        match found.map(|draft| draft.outcome) {
            Some(Some(DraftOutcome::Planned(preview))) => return Ok(ArgumentPreview::new(&preview)),
            Some(Some(DraftOutcome::Refused(why))) => return Err(ApiError::bad_request(why)),
            Some(None) if Instant::now() < until => sleep(POLL_INTERVAL / 3).await,
            _ => return Err(ApiError::conflict("the request is already answered, or its caller does not respond")),
        }
    }
}

pub(super) async fn answer(
    api: Arc<ApiState>,
    context: ApiRequestContext,
    body: ApprovalBody,
) -> Result<AnswerAccepted, ApiError> {
    let (id, assurance) = (context.path_param(0).to_owned(), context.identity.assurance);
    let ApprovalBody { approved, modified_args, remember, reason } = body;
    let modified_args = modified_args.map(Value::Object);
    let response = ApprovalResponse { approved, modified_args, remember, reason };
    let put = move |inbox: ApprovalInbox<'_>| {
        let suspended = inbox.store.request(&id)?.is_some_and(|request| request.suspended);
        inbox.answer(&id, response, assurance, SystemTime::now()).map(|()| suspended)
    };
    let waits_for_caller = api.with_inbox(context.identity, put).await?;
    Ok(AnswerAccepted { waits_for_caller })
}

/// Lets a session ask again that was refused too often.
pub(super) async fn resume(
    api: Arc<ApiState>,
    context: ApiRequestContext,
    _: EmptyRequest,
) -> Result<EmptyResponse, ApiError> {
    let (id, assurance) = (context.path_param(0).to_owned(), context.identity.assurance);
    match api.with_inbox(context.identity, move |inbox| inbox.resume_session(&id, assurance)).await? {
        true => Ok(EmptyResponse {}),
        false => Err(ApiError::not_found("no paused session with that id")),
    }
}

pub(super) async fn grants(
    api: Arc<ApiState>,
    context: ApiRequestContext,
    _: EmptyRequest,
) -> Result<GrantList, ApiError> {
    let grants = api.with_inbox(context.identity, |inbox| inbox.grants(SystemTime::now())).await?;
    Ok(GrantList { grants: grants.iter().map(|grant| json!(grant).into()).collect() })
}

pub(super) async fn revoke(
    api: Arc<ApiState>,
    context: ApiRequestContext,
    _: EmptyRequest,
) -> Result<EmptyResponse, ApiError> {
    let id = context.path_param(0).to_owned();
    match api.with_inbox(context.identity, move |inbox| inbox.revoke_grant(&id)).await? {
        true => Ok(EmptyResponse {}),
        false => Err(ApiError::not_found("there is no grant with that id")),
    }
}
