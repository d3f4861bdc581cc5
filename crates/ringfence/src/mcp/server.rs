//! The server that a client talks to: lists of tools, and calls.
//!
//! Every call goes to `Host::call`. Calls that may change something go one after another, in the order in which they came;
//! those that only read never wait for them.
//!
//! Not here: who is asked (`approve.rs`), what is read as a resource (`resources.rs`), how messages travel (`lines.rs`).

#![expect(deprecated, reason = "older clients have no other log")]

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use ringfence_kernel::{ApprovalRequest, ErrorKind, Fatal, Principal, Reply, Returned, ToolCall};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CompleteRequestParams, CompleteResult, ContentBlock, CustomRequest,
    CustomResult, ElicitRequest, ElicitResult, ErrorCode, ErrorData, Implementation, InitializeRequestParams,
    InitializeResult, InputRequest, InputRequiredResult, InputResponses, ListPromptsResult,
    ListResourceTemplatesResult, ListToolsResult, LoggingLevel, PaginatedRequestParams, ProtocolVersion,
    ReadResourceRequestParams, ReadResourceResponse, ServerCapabilities, ServerConfig, SetLevelRequestParams,
};
use rmcp::service::{NotificationContext, RequestContext};
use rmcp::{RoleServer, ServerHandler};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::Served;
use super::approve::{answer, how_to_answer, question};
use super::callers::{Caller, Entered};
use super::client::{Client, Era, Road};
use super::fit;
use super::guarded::guarded;
use super::instructions::instructions;
use super::news::Teller;
use super::plain;
use super::put_off::Waiting;
use super::resources::{self, As};
use super::roots::Open;
use super::talk::{Known, Source, Talk};
use super::tools::{ResultForm, ResultSettings, result, tool};

/// The name of our question among those that a result can have.
const QUESTION: &str = "approval";

/// How long a client may take to say what it has open.
const ROOTS_TIME: Duration = Duration::from_secs(5);

/// How often it is looked whether a person answered.
const LOOK: Duration = Duration::from_millis(250);

/// Methods that the SDK knows. One of them reaches `on_custom_request` only with params that it cannot read.
const METHODS: [&str; 6] =
    ["server/discover", "tools/list", "tools/call", "resources/list", "resources/templates/list", "resources/read"];

/// Those that the newest revision has no more.
const OLDER_METHODS: [&str; 3] = ["initialize", "ping", "logging/setLevel"];

/// One session of a client with the host.
#[derive(Debug)]
pub(super) struct Server {
    served: Served,
    source: Source,
    /// Told when the client closed the connection.
    gone: CancellationToken,
    /// The least that the client wants in its log.
    level: Mutex<LoggingLevel>,
    /// The handshake was made.
    is_greeted: AtomicBool,
}

/// A call on its way through this server.
struct Trip<'a> {
    call: ToolCall,
    talk: &'a Talk,
    client: &'a Client,
    cancel: &'a CancellationToken,
    teller: Teller,
    caller: Caller,
}

impl Server {
    pub(super) fn new(served: Served, source: Source, gone: CancellationToken) -> Self {
        let level = Mutex::new(LoggingLevel::Warning);
        Self { served, source, gone, level, is_greeted: AtomicBool::new(false) }
    }

    fn trip<'a>(
        &self,
        talk: &'a Talk,
        (name, arguments): (&str, String),
        client: &'a Client,
        context: &'a RequestContext<RoleServer>,
    ) -> Trip<'a> {
        let call = ToolCall { id: format!("call-{}", talk.next_call()), name: name.to_owned(), arguments };
        let level = match client.era {
            Era::Handshake => Some(*self.level.lock().unwrap_or_else(PoisonError::into_inner)),
            Era::Stateless => context.meta.log_level(),
        };
        let (news, teller) = Teller::new(context.peer.clone(), context.meta.get_progress_token(), level);
        let caller = Caller { client: client.clone(), peer: context.peer.clone(), news, gone: self.gone.clone() };
        Trip { call, talk, client, cancel: &context.ct, teller, caller }
    }

    /// Narrows the session to what the client has open, before its first call and when it says that this changed. A client
    /// that does not answer says nothing, and the config alone holds.
    async fn learn_roots(&self, talk: &Talk, client: &Client, context: &RequestContext<RoleServer>) {
        let has_roots = context.client_capabilities().is_some_and(|capabilities| capabilities.roots.is_some());
        if client.era == Era::Stateless || !has_roots {
            return;
        }
        let mut known = talk.roots.lock().await;
        if *known == Known::No {
            if let Ok(Ok(said)) = timeout(ROOTS_TIME, context.peer.list_roots()).await {
                let open = Open::of(said.roots.iter().map(|root| root.uri.as_str()));
                self.served.front.roots.narrow(&talk.session.id, &open, &self.served.mounts);
            }
            *known = Known::Yes;
        }
    }

    fn enter(&self, trip: &Trip<'_>) -> Entered {
        self.served.front.callers.enter(&trip.talk.session.id, &trip.call.id, trip.caller.clone())
    }

    async fn call(
        &self,
        params: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let mut client = Client::of(&context)?;
        client.shows_forms &= self.source.may_relay(&context);
        let arguments = serde_json::to_string(&params.arguments.unwrap_or_default())
            .map_err(|_| ErrorData::internal_error("the arguments cannot be written", None))?;
        let talk = self.source.talk(client.era, &context)?;
        self.learn_roots(&talk, &client, &context).await;
        let mut trip = self.trip(&talk, (&params.name, arguments), &client, &context);
        let _turn = tokio::select! {
            turn = talk.turn(&params.name) => turn,
            // The host says what becomes of a call that was cancelled.
            () = context.ct.cancelled() => None,
        };
        let reply = match params.request_state.filter(|_| client.era == Era::Stateless) {
            Some(token) => self.go_on(&mut trip, token, params.input_responses).await,
            None => self.make(&mut trip).await,
        };
        self.said(&trip, reply.map_err(|fatal| broken(&fatal))?).await
    }

    /// Makes a call for the first time, or goes on with it where its client came again.
    async fn make(&self, trip: &mut Trip<'_>) -> Result<Reply, Fatal> {
        let _entered = self.enter(trip);
        let Trip { call, talk, cancel, teller, caller, .. } = trip;
        match talk.put_off.take(call, SystemTime::now()) {
            Some(waiting) => {
                let going_on = async {
                    caller.news.notice(how_to_answer(&waiting.request));
                    self.wait_for_answer(&waiting.request).await;
                    let listener = Some(Arc::new(caller.news.clone()) as _);
                    let back = Returned { token: waiting.token, call: call.clone(), answered: None, listener };
                    self.served.host.resume_call(&talk.session, back, cancel).await
                };
                teller.while_waiting(going_on).await
            }
            None => {
                let listener = Some(Arc::new(caller.news.clone()) as _);
                teller.while_waiting(self.served.host.call_heard(&talk.session, call.clone(), cancel, listener)).await
            }
        }
    }

    /// Goes on with a call that its client brings back with an answer.
    async fn go_on(&self, trip: &mut Trip<'_>, token: String, said: Option<InputResponses>) -> Result<Reply, Fatal> {
        let _entered = self.enter(trip);
        let said = said.unwrap_or_default().remove(QUESTION).filter(|_| trip.client.shows_forms);
        let answered =
            said.and_then(|said| serde_json::from_value::<ElicitResult>(said).ok()).map(|said| answer(&said));
        let listener = Some(Arc::new(trip.caller.news.clone()) as _);
        let back = Returned { token, call: trip.call.clone(), answered, listener };
        let Trip { talk, cancel, teller, .. } = trip;
        teller.while_waiting(self.served.host.resume_call(&talk.session, back, cancel)).await
    }

    /// Returns when a request is answered, or a client would not wait any longer.
    async fn wait_for_answer(&self, request: &str) {
        let until = Instant::now() + self.served.front.patience;
        while Instant::now() < until && self.request(request).await.is_some() {
            sleep(LOOK).await;
        }
    }

    /// A request that nobody answered yet.
    async fn request(&self, id: &str) -> Option<ApprovalRequest> {
        let (host, id) = (self.served.host.clone(), id.to_owned());
        let look = move || {
            // Only to read it: who answers is somebody else.
            let reader = Principal::person("MCP server");
            host.desk(&reader).request(&id, SystemTime::now()).ok()
        };
        spawn_blocking(look).await.ok().flatten()
    }

    /// Reads a file for a resource.
    async fn read(
        &self,
        talk: &Talk,
        (path, form): (&str, As),
        client: &Client,
        context: &RequestContext<RoleServer>,
    ) -> Result<Reply, ErrorData> {
        let mut trip = self.trip(talk, ("read_file", form.arguments(path)), client, context);
        self.make(&mut trip).await.map_err(|fatal| broken(&fatal))
    }

    /// What a call comes to that waits for a person: a question to the client, or words that say who has to answer.
    async fn not_yet(&self, trip: &Trip<'_>, reply: &Reply, token: String, id: String) -> CallToolResponse {
        let request = self.request(&id).await;
        if let Some(request) = &request
            && trip.client.road(request.assurance) == Road::Result
        {
            let asked = InputRequest::Elicitation(ElicitRequest::new(question(request)));
            let questions = BTreeMap::from([(QUESTION.to_owned(), asked)]);
            return InputRequiredResult::new(Some(questions), Some(token)).into();
        }
        let mut said = result(reply, self.result_settings(trip));
        let advice = format!("{}; then make the same call again", how_to_answer(&id));
        said.content.push(ContentBlock::text(advice));
        if let Some(request) = request {
            trip.talk.put_off.keep(&trip.call, Waiting { token, request: id, expires: request.expires });
        }
        said.into()
    }

    async fn said(&self, trip: &Trip<'_>, reply: Reply) -> Result<CallToolResponse, ErrorData> {
        if let Some(waits) = reply.suspended.clone() {
            return Ok(self.not_yet(trip, &reply, waits.token, waits.request).await);
        }
        let name = &trip.call.name;
        match reply.error {
            None => trip.teller.log(LoggingLevel::Info, &format!("{name}: ok")).await,
            Some(ErrorKind::UnknownTool) => {
                return Err(ErrorData::invalid_params(format!("there is no tool `{}` here", clipped(name)), None));
            }
            Some(kind) => {
                let level = match kind {
                    ErrorKind::ApprovalDenied | ErrorKind::ApprovalPending | ErrorKind::PermissionDenied => {
                        LoggingLevel::Warning
                    }
                    _ => LoggingLevel::Info,
                };
                let sentence = plain::sentence(&reply.text);
                let text = fit::text(&sentence, trip.talk.most());
                trip.teller.log(level, &format!("{name}: {text}")).await;
            }
        }
        Ok(result(&reply, self.result_settings(trip)).into())
    }

    fn result_settings<'a>(&self, trip: &'a Trip<'_>) -> ResultSettings<'a> {
        ResultSettings {
            tool: &trip.call.name,
            dialect: trip.talk.session.dialect,
            form: self.form_for(trip.client),
            most: trip.talk.most(),
        }
    }

    fn form_for(&self, client: &Client) -> ResultForm {
        match self.served.front.form {
            ResultForm::Structured if !client.has_structured => ResultForm::Json,
            form => form,
        }
    }
}

impl ServerHandler for Server {
    async fn call_tool(
        &self,
        params: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        // The SDK moves the future of a request three times before it is polled; a large one costs more than the box.
        guarded(Box::pin(self.call(params, context))).await
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let client = Client::of(&context)?;
        let form = self.form_for(&client);
        let available = self.source.model().catalog.list().filter(|definition| definition.is_available);
        Ok(ListToolsResult::with_all_items(available.map(|definition| tool(definition, form)).collect()))
    }

    async fn initialize(
        &self,
        request: InitializeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<InitializeResult, ErrorData> {
        if self.is_greeted.swap(true, Ordering::Relaxed) {
            return Err(ErrorData::invalid_request("this connection was initialized already", None));
        }
        let mut client = request.clone();
        let said = self.negotiate_initialize(&request)?;
        client.protocol_version = said.protocol_version.clone();
        context.peer.set_peer_info(client);
        Ok(said)
    }

    async fn set_level(
        &self,
        request: SetLevelRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        if Client::of(&context)?.era == Era::Stateless {
            return Err(no_method("logging/setLevel"));
        }
        *self.level.lock().unwrap_or_else(PoisonError::into_inner) = request.level;
        Ok(())
    }

    async fn on_roots_list_changed(&self, _: NotificationContext<RoleServer>) {
        // Only a connection with a session of its own has roots.
        if let Some(talk) = self.source.own() {
            *talk.roots.lock().await = Known::No;
        }
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let templates =
            if resources::are_there(self.source.model()) { vec![resources::template()] } else { Vec::new() };
        Ok(ListResourceTemplatesResult::with_all_items(templates))
    }

    async fn read_resource(
        &self,
        params: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let mut client = Client::of(&context)?;
        client.is_asked = false;
        let path = resources::path(&params.uri)?;
        if !resources::are_there(self.source.model()) {
            return Err(ErrorData::invalid_params("there are no resources in this dialect", None));
        }
        let talk = self.source.talk(client.era, &context)?;
        self.learn_roots(&talk, &client, &context).await;
        let mut form = As::Text;
        let mut reply = self.read(&talk, (&path, form), &client, &context).await?;
        if reply.error == Some(ErrorKind::NotText) {
            form = As::Bytes;
            reply = self.read(&talk, (&path, form), &client, &context).await?;
        }
        Ok(resources::result(&params.uri, &reply, form, talk.most())?.into())
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        let method = request.method.as_str();
        let is_stateless = Client::of(&context).is_ok_and(|client| client.era == Era::Stateless);
        if METHODS.contains(&method) || (!is_stateless && OLDER_METHODS.contains(&method)) {
            return Err(ErrorData::invalid_params(format!("`{method}` does not take these params"), None));
        }
        Err(no_method(method))
    }

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        Err(no_method("prompts/list"))
    }

    async fn complete(
        &self,
        _: CompleteRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        Err(no_method("completion/complete"))
    }

    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().enable_logging();
        let mut info = ServerConfig::new(match resources::are_there(self.source.model()) {
            true => capabilities.enable_resources().build(),
            false => capabilities.build(),
        });
        info.protocol_version = ProtocolVersion::LATEST_WITH_INITIALIZE;
        info.instructions = Some(instructions(self.source.model(), &self.served.mounts));
        info.server_info = Implementation::new("ringfence", env!("CARGO_PKG_VERSION")).with_title("Ringfence");
        info
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        Cow::Borrowed(ProtocolVersion::KNOWN_VERSIONS)
    }
}

/// There is no such method, or the client's revision has it no more.
fn no_method(method: &str) -> ErrorData {
    let message = format!("there is no method `{}` here", clipped(method));
    ErrorData::new(ErrorCode::METHOD_NOT_FOUND, message, None)
}

/// Names that a client made up are quoted in part.
fn clipped(name: &str) -> &str {
    &name[..name.floor_char_boundary(64)]
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(talk) = self.source.own() {
            self.served.front.roots.forget(&talk.session.id);
        }
    }
}

/// The call cannot be made safely, or nobody knows how it ended.
fn broken(fatal: &Fatal) -> ErrorData {
    let mut text = fatal.to_string();
    let mut cause = std::error::Error::source(fatal);
    while let Some(error) = cause {
        let _ = write!(text, ": {error}");
        cause = error.source();
    }
    ErrorData::internal_error(text, None)
}
