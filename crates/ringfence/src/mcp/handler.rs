//! MCP request handler: tool lists, tool calls and resources.
//!
//! Every call goes to `Host::call`. Calls that may change the same thing go one after another, in the order in which they
//! came; the others, and those that only read, never wait for them.
//!
//! Not here: which calls those are (`app/change_queue.rs`), who is asked (`elicitation.rs`), what is read as a resource
//! (`resources.rs`), how messages travel (`transport.rs`).

#![expect(deprecated, reason = "older clients have no other log")]

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use ringfence_kernel::sync::Mutex;
use ringfence_kernel::{ApprovalRequest, Dialect, ErrorKind, HostError, Principal, ResumeRequest, ToolCall, ToolReply};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CompleteRequestParams, CompleteResult, ContentBlock, CustomRequest,
    CustomResult, ElicitRequest, ElicitResult, ErrorCode, ErrorData, Implementation, InitializeRequestParams,
    InitializeResult, InputRequest, InputRequiredResult, InputResponses, ListPromptsResult,
    ListResourceTemplatesResult, ListToolsResult, LoggingLevel, PaginatedRequestParams, ProtocolVersion,
    ReadResourceRequestParams, ReadResourceResponse, ServerCapabilities, ServerConfig, SetLevelRequestParams,
};
use rmcp::service::{NotificationContext, RequestContext};
use rmcp::{RoleServer, ServerHandler};
use serde_json::Value;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::app::roots::McpDeclaredRoots;
use crate::mcp::McpServerContext;
use crate::mcp::callers::{WaitingMcpClient, WaitingMcpClientGuard};
use crate::mcp::catch_panic::catch_panic;
use crate::mcp::client_info::{ApprovalChannel, McpClientInfo, ProtocolEra};
use crate::mcp::deferred::DeferredCall;
use crate::mcp::elicitation::{answer_instructions, decision_from_result, elicitation_params};
use crate::mcp::instructions::instructions;
use crate::mcp::progress::ProgressNotifier;
use crate::mcp::resources::{self, ResourceEncoding};
use crate::mcp::session::{McpRootsState, McpSession, McpSessionSource};
use crate::mcp::tools::{ToolResultFormat, ToolResultSettings, call_result, tool};
use crate::mcp::truncate;
use crate::process::messages::{error_chain, print_error};

/// The name of our question among those that a result can have.
const APPROVAL_INPUT: &str = "approval";

/// Time for a client to list its roots.
const ROOTS_TIMEOUT: Duration = Duration::from_secs(5);

/// Poll interval for a person's answer.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Methods that the SDK knows. One of them reaches `on_custom_request` only with params that it cannot read.
const METHODS: [&str; 6] =
    ["server/discover", "tools/list", "tools/call", "resources/list", "resources/templates/list", "resources/read"];

/// Those that the newest revision has no more.
const HANDSHAKE_METHODS: [&str; 3] = ["initialize", "ping", "logging/setLevel"];

/// One session of a client with the host.
#[derive(Debug)]
pub(super) struct McpServerHandler {
    context: McpServerContext,
    source: McpSessionSource,
    /// Cancelled when the client closed the connection.
    closed: CancellationToken,
    /// The least that the client wants in its log.
    level: Mutex<LoggingLevel>,
    /// The handshake was made.
    is_initialized: AtomicBool,
}

/// A call on its way through this server.
struct McpCall<'a> {
    call: ToolCall,
    session: &'a McpSession,
    client: &'a McpClientInfo,
    cancel: &'a CancellationToken,
    notifier: ProgressNotifier,
    caller: WaitingMcpClient,
}

impl McpServerHandler {
    pub(super) fn new(context: McpServerContext, source: McpSessionSource, closed: CancellationToken) -> Self {
        let level = Mutex::new(LoggingLevel::Warning);
        Self { context, source, closed, level, is_initialized: AtomicBool::new(false) }
    }

    fn new_call<'a>(
        &self,
        mcp_session: &'a McpSession,
        (name, arguments): (&str, String),
        client: &'a McpClientInfo,
        context: &'a RequestContext<RoleServer>,
    ) -> McpCall<'a> {
        let call = ToolCall { id: mcp_session.live.next_call_id(), name: name.to_owned(), arguments };
        let level = match client.era {
            ProtocolEra::Handshake => Some(*self.level.lock()),
            ProtocolEra::Stateless => context.meta.log_level(),
        };
        let (news, notifier) = ProgressNotifier::new(context.peer.clone(), context.meta.get_progress_token(), level);
        let caller = WaitingMcpClient {
            client: client.clone(),
            peer: context.peer.clone(),
            progress: news,
            closed: self.closed.clone(),
        };
        McpCall { call, session: mcp_session, client, cancel: &context.ct, notifier, caller }
    }

    /// Narrows the session to what the client has open, before its first call and when it says that this changed. A client
    /// that does not answer says nothing, and the config alone holds.
    async fn refresh_roots(
        &self,
        mcp_session: &McpSession,
        client: &McpClientInfo,
        context: &RequestContext<RoleServer>,
    ) {
        let has_roots = context.client_capabilities().is_some_and(|capabilities| capabilities.roots.is_some());
        if client.era == ProtocolEra::Stateless || !has_roots {
            return;
        }
        let mut known = mcp_session.roots.lock().await;
        if *known == McpRootsState::Unknown {
            if let Ok(Ok(result)) = timeout(ROOTS_TIMEOUT, context.peer.list_roots()).await {
                let open = McpDeclaredRoots::from_uris(result.roots.iter().map(|root| root.uri.as_str()));
                self.context.front.roots.narrow(&mcp_session.session().id, &open, &self.context.mounts);
            }
            *known = McpRootsState::Known;
        }
    }

    fn register_caller(&self, mcp_call: &McpCall<'_>) -> WaitingMcpClientGuard {
        self.context.front.callers.register(&mcp_call.session.session().id, &mcp_call.call.id, mcp_call.caller.clone())
    }

    async fn call(
        &self,
        params: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let mut client = McpClientInfo::from_context(&context)?;
        client.supports_forms &= self.source.may_relay(&context);
        // In any order of its keys it is the same call, for one that was deferred.
        let mut arguments = Value::Object(params.arguments.unwrap_or_default());
        arguments.sort_all_objects();
        let mcp_session = self.source.session(client.era, &context)?;
        self.refresh_roots(&mcp_session, &client, &context).await;
        let mut mcp_call = self.new_call(&mcp_session, (&params.name, arguments.to_string()), &client, &context);
        let turn = mcp_session.live.change_turn(&mcp_call.call.name, &mcp_call.call.arguments, &context.ct);
        let _turn = turn.await;
        let reply = match params.request_state.filter(|_| client.era == ProtocolEra::Stateless) {
            Some(token) => self.resume_call(&mut mcp_call, token, params.input_responses).await,
            None => self.run_call(&mut mcp_call).await,
        };
        self.call_response(&mcp_call, reply.map_err(|fatal| internal_error(&fatal))?).await
    }

    /// Makes a call for the first time, or goes on with it where its client came again.
    async fn run_call(&self, mcp_call: &mut McpCall<'_>) -> Result<ToolReply, HostError> {
        let _entered = self.register_caller(mcp_call);
        let McpCall { call, session: mcp_session, cancel, notifier, caller, .. } = mcp_call;
        match mcp_session.deferred.take(call, SystemTime::now()) {
            Some(waiting) => {
                let going_on = async {
                    caller.progress.notice(answer_instructions(&waiting.request));
                    self.wait_for_answer(&waiting.request).await;
                    let listener = Some(Arc::new(caller.progress.clone()) as _);
                    let back = ResumeRequest { token: waiting.token, call: call.clone(), decision: None, listener };
                    self.context.host.resume_call(mcp_session.session(), back, cancel).await
                };
                notifier.run_with_progress(going_on).await
            }
            None => {
                let listener = Some(Arc::new(caller.progress.clone()) as _);
                notifier
                    .run_with_progress(self.context.host.call_with_progress(
                        mcp_session.session(),
                        call.clone(),
                        cancel,
                        listener,
                    ))
                    .await
            }
        }
    }

    /// Goes on with a call that its client brings back with an answer.
    async fn resume_call(
        &self,
        mcp_call: &mut McpCall<'_>,
        token: String,
        result: Option<InputResponses>,
    ) -> Result<ToolReply, HostError> {
        let _entered = self.register_caller(mcp_call);
        let result = result.unwrap_or_default().remove(APPROVAL_INPUT).filter(|_| mcp_call.client.supports_forms);
        let answered = result
            .and_then(|result| serde_json::from_value::<ElicitResult>(result).ok())
            .map(|result| decision_from_result(&result));
        let listener = Some(Arc::new(mcp_call.caller.progress.clone()) as _);
        let back = ResumeRequest { token, call: mcp_call.call.clone(), decision: answered, listener };
        let McpCall { session: mcp_session, cancel, notifier, .. } = mcp_call;
        notifier.run_with_progress(self.context.host.resume_call(mcp_session.session(), back, cancel)).await
    }

    /// Returns when a request is answered, or a client would not wait any longer.
    async fn wait_for_answer(&self, request: &str) {
        let until = Instant::now() + self.context.front.wait;
        while Instant::now() < until && self.request(request).await.is_some() {
            sleep(POLL_INTERVAL).await;
        }
    }

    /// An unanswered request.
    async fn request(&self, id: &str) -> Option<ApprovalRequest> {
        let (host, id) = (self.context.host.clone(), id.to_owned());
        let look = move || {
            // Only for reading: another principal answers.
            let reader = Principal::person("MCP server");
            host.inbox(&reader).request(&id, SystemTime::now()).ok()
        };
        spawn_blocking(look).await.ok().flatten()
    }

    /// Reads a file for a resource.
    async fn read(
        &self,
        mcp_session: &McpSession,
        (path, form): (&str, ResourceEncoding),
        client: &McpClientInfo,
        context: &RequestContext<RoleServer>,
    ) -> Result<ToolReply, ErrorData> {
        let mut mcp_call = self.new_call(mcp_session, ("read_file", form.arguments(path)), client, context);
        self.run_call(&mut mcp_call).await.map_err(|fatal| internal_error(&fatal))
    }

    /// The response for a call that waits for approval: an elicitation, or instructions for the approver.
    async fn deferred_response(
        &self,
        mcp_call: &McpCall<'_>,
        reply: &ToolReply,
        token: String,
        id: String,
    ) -> CallToolResponse {
        let request = self.request(&id).await;
        if let Some(request) = &request
            && mcp_call.client.approval_channel(request.assurance) == ApprovalChannel::Result
        {
            let asked = InputRequest::Elicitation(ElicitRequest::new(elicitation_params(request)));
            let questions = BTreeMap::from([(APPROVAL_INPUT.to_owned(), asked)]);
            return InputRequiredResult::new(Some(questions), Some(token)).into();
        }
        let mut result = call_result(reply, self.result_settings(mcp_call));
        let advice = format!("{}; then make the same call again", answer_instructions(&id));
        result.content.push(ContentBlock::text(advice));
        if let Some(request) = request {
            mcp_call
                .session
                .deferred
                .insert(&mcp_call.call, DeferredCall { token, request: id, expires: request.expires });
        }
        result.into()
    }

    async fn call_response(&self, mcp_call: &McpCall<'_>, reply: ToolReply) -> Result<CallToolResponse, ErrorData> {
        if let Some(waits) = reply.suspended.clone() {
            return Ok(self.deferred_response(mcp_call, &reply, waits.token, waits.request_id).await);
        }
        let name = &mcp_call.call.name;
        match &reply.outcome {
            Ok(_) => mcp_call.notifier.log(LoggingLevel::Info, &format!("{name}: ok")).await,
            Err(error) if error.kind == ErrorKind::UnknownTool => {
                return Err(ErrorData::invalid_params(format!("unknown tool `{}`", truncate_name(name)), None));
            }
            Err(error) => {
                let level = match error.kind {
                    ErrorKind::ApprovalDenied | ErrorKind::ApprovalPending | ErrorKind::PermissionDenied => {
                        LoggingLevel::Warning
                    }
                    _ => LoggingLevel::Info,
                };
                let sentence = match mcp_call.session.session().dialect {
                    Dialect::Miniclaw => &reply.text,
                    _ => &error.message,
                };
                let text = truncate::truncate_text(sentence, mcp_call.session.max_message_bytes());
                mcp_call.notifier.log(level, &format!("{name}: {text}")).await;
            }
        }
        Ok(call_result(&reply, self.result_settings(mcp_call)).into())
    }

    fn result_settings<'a>(&self, mcp_call: &'a McpCall<'_>) -> ToolResultSettings<'a> {
        ToolResultSettings {
            outputs: &mcp_call.session.session().memory.outputs,
            dialect: mcp_call.session.session().dialect,
            form: self.form_for(mcp_call.client),
            most: mcp_call.session.max_message_bytes(),
        }
    }

    fn form_for(&self, client: &McpClientInfo) -> ToolResultFormat {
        match self.context.front.form {
            ToolResultFormat::Structured if !client.supports_structured => ToolResultFormat::Json,
            form => form,
        }
    }
}

impl ServerHandler for McpServerHandler {
    async fn call_tool(
        &self,
        params: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        // The SDK moves the future of a request three times before it is polled; a large one costs more than the box.
        catch_panic(Box::pin(self.call(params, context))).await
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let client = McpClientInfo::from_context(&context)?;
        let form = self.form_for(&client);
        let offered = self.source.template().catalog.list();
        Ok(ListToolsResult::with_all_items(offered.map(|definition| tool(definition, form)).collect()))
    }

    async fn initialize(
        &self,
        request: InitializeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<InitializeResult, ErrorData> {
        if self.is_initialized.swap(true, Ordering::Relaxed) {
            return Err(ErrorData::invalid_request("this connection is already initialized", None));
        }
        let mut client = request.clone();
        let result = self.negotiate_initialize(&request)?;
        client.protocol_version = result.protocol_version.clone();
        context.peer.set_peer_info(client);
        Ok(result)
    }

    async fn set_level(
        &self,
        request: SetLevelRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        if McpClientInfo::from_context(&context)?.era == ProtocolEra::Stateless {
            return Err(method_not_found("logging/setLevel"));
        }
        *self.level.lock() = request.level;
        Ok(())
    }

    async fn on_roots_list_changed(&self, _: NotificationContext<RoleServer>) {
        // Only a connection with a session of its own has roots.
        if let Some(mcp_session) = self.source.own_session() {
            *mcp_session.roots.lock().await = McpRootsState::Unknown;
        }
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let templates =
            if resources::are_available(self.source.template()) { vec![resources::template()] } else { Vec::new() };
        Ok(ListResourceTemplatesResult::with_all_items(templates))
    }

    async fn read_resource(
        &self,
        params: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let mut client = McpClientInfo::from_context(&context)?;
        client.may_be_asked = false;
        let path = resources::path(&params.uri)?;
        if !resources::are_available(self.source.template()) {
            return Err(ErrorData::invalid_params("this dialect has no resources", None));
        }
        let mcp_session = self.source.session(client.era, &context)?;
        self.refresh_roots(&mcp_session, &client, &context).await;
        let mut form = ResourceEncoding::Text;
        let mut reply = self.read(&mcp_session, (&path, form), &client, &context).await?;
        if reply.error_kind() == Some(ErrorKind::NotText) {
            form = ResourceEncoding::Bytes;
            reply = self.read(&mcp_session, (&path, form), &client, &context).await?;
        }
        Ok(resources::read_result(&params.uri, &reply, form, mcp_session.max_message_bytes())?.into())
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        let method = request.method.as_str();
        let is_stateless =
            McpClientInfo::from_context(&context).is_ok_and(|client| client.era == ProtocolEra::Stateless);
        if METHODS.contains(&method) || (!is_stateless && HANDSHAKE_METHODS.contains(&method)) {
            return Err(ErrorData::invalid_params(format!("invalid params for `{method}`"), None));
        }
        Err(method_not_found(method))
    }

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        Err(method_not_found("prompts/list"))
    }

    async fn complete(
        &self,
        _: CompleteRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        Err(method_not_found("completion/complete"))
    }

    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().enable_logging();
        let mut info = ServerConfig::new(match resources::are_available(self.source.template()) {
            true => capabilities.enable_resources().build(),
            false => capabilities.build(),
        });
        info.protocol_version = ProtocolVersion::LATEST_WITH_INITIALIZE;
        info.instructions = Some(instructions(self.source.template(), &self.context.mounts));
        info.server_info = Implementation::new("ringfence", env!("CARGO_PKG_VERSION")).with_title("Ringfence");
        info
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        Cow::Borrowed(ProtocolVersion::KNOWN_VERSIONS)
    }
}

/// There is no such method, or the client's revision has it no more.
fn method_not_found(method: &str) -> ErrorData {
    let message = format!("unknown method `{}`", truncate_name(method));
    ErrorData::new(ErrorCode::METHOD_NOT_FOUND, message, None)
}

/// Names that a client made up are quoted in part.
fn truncate_name(name: &str) -> &str {
    &name[..name.floor_char_boundary(64)]
}

impl Drop for McpServerHandler {
    fn drop(&mut self) {
        if let Some(mcp_session) = self.source.own_session() {
            self.context.front.roots.remove_session(&mcp_session.session().id);
        }
    }
}

/// The call cannot be made safely, or its outcome is unknown.
fn internal_error(fatal: &HostError) -> ErrorData {
    let text = error_chain(fatal);
    print_error(&text);
    ErrorData::internal_error(text, None)
}
