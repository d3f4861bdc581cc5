//! Fixtures for the official MCP conformance suite: the tools, resources and prompts that it expects.
//!
//! They wrap the real server and are only in a build with the feature `conformance`, which is never released. Every
//! other request goes to the server beneath.

#![expect(deprecated, reason = "the suite tests what older clients have too")]

use std::borrow::Cow;
use std::time::Duration;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CompleteRequestParams, CompleteResult, CreateMessageRequestParams,
    CustomRequest, CustomResult, ElicitRequest, ElicitRequestParams, ErrorData, GetPromptRequestParams,
    GetPromptResponse, InitializeRequestParams, InitializeResult, InputRequiredResult, InputResponses,
    ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult, ListToolsResult, LoggingLevel,
    LoggingMessageNotificationParam, PaginatedRequestParams, ProgressNotificationParam, ProtocolVersion,
    ReadResourceRequestParams, ReadResourceResponse, ServerCapabilities, ServerConfig, ServerRequest,
    SetLevelRequestParams, SubscribeRequestParams, Tool, UnsubscribeRequestParams,
};
use rmcp::service::{NotificationContext, RequestContext};
use rmcp::{RoleServer, ServerHandler};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::time::sleep;

use crate::mcp::handler::McpServerHandler;

/// A picture of one red point, and a sound of nothing.
const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==";
const WAV: &str = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAAAAA==";

/// The pause between two messages of one call.
const PAUSE: Duration = Duration::from_millis(50);

/// Names of tools that take nothing.
const TOOLS: [&str; 21] = [
    "test_simple_text",
    "test_image_content",
    "test_audio_content",
    "test_embedded_resource",
    "test_multiple_content_types",
    "test_tool_with_logging",
    "test_tool_with_progress",
    "test_error_handling",
    "test_elicitation_sep1034_defaults",
    "test_elicitation_sep1330_enums",
    "test_reconnection",
    "test_missing_capability",
    "test_streaming_elicitation",
    "test_logging_tool",
    "test_input_required_result_elicitation",
    "test_input_required_result_sampling",
    "test_input_required_result_list_roots",
    "test_input_required_result_request_state",
    "test_input_required_result_multiple_inputs",
    "test_input_required_result_multi_round",
    "test_input_required_result_tampered_state",
];

/// The real server with the fixtures in front of it.
#[derive(Debug)]
pub(super) struct ConformanceServer(pub(super) McpServerHandler);

type ConformanceContext = RequestContext<RoleServer>;

/// A value of the SDK from what it looks like on the wire.
fn of<T: DeserializeOwned>(value: Value) -> Result<T, ErrorData> {
    serde_json::from_value(value).map_err(|error| ErrorData::internal_error(error.to_string(), None))
}

fn content(list: Value) -> Result<CallToolResponse, ErrorData> {
    Ok(CallToolResponse::Complete(of(json!({"resultType": "complete", "content": list}))?))
}

fn text(text: impl Into<String>) -> Result<CallToolResponse, ErrorData> {
    content(json!([{"type": "text", "text": text.into()}]))
}

/// A state that clients cannot forge.
fn sealed(state: &str) -> String {
    let digest = Sha256::digest(format!("only this process knows {} {state}", std::process::id()));
    let mark: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{state}.{mark}")
}

fn is_sealed(state: Option<&str>, expected: &str) -> bool {
    state == Some(sealed(expected).as_str())
}

/// A form with one required field.
fn form(message: &str, field: &str, kind: &str) -> Value {
    let schema = json!({"type": "object", "properties": {field: {"type": kind}}, "required": [field]});
    json!({"method": "elicitation/create", "params": {"mode": "form", "message": message, "requestedSchema": schema}})
}

fn sampling(question: &str, tokens: u32) -> Value {
    let message = json!({"role": "user", "content": {"type": "text", "text": question}});
    json!({"method": "sampling/createMessage", "params": {"messages": [message], "maxTokens": tokens}})
}

fn ask(requests: Value, state: Option<String>) -> Result<InputRequiredResult, ErrorData> {
    Ok(InputRequiredResult::new(Some(of(requests)?), state))
}

impl ConformanceServer {
    /// Sends a request to the client, and gives its result.
    async fn request(&self, request: ServerRequest, context: &ConformanceContext) -> Result<Value, ErrorData> {
        let result = context.peer.send_request(request).await;
        let result = result.map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
        serde_json::to_value(result).map_err(|error| ErrorData::internal_error(error.to_string(), None))
    }

    async fn elicit(&self, message: &str, schema: Value, context: &ConformanceContext) -> Result<Value, ErrorData> {
        let params: ElicitRequestParams = of(json!({"mode": "form", "message": message, "requestedSchema": schema}))?;
        self.request(ServerRequest::ElicitRequest(ElicitRequest::new(params)), context).await
    }

    async fn log(&self, line: &str, context: &ConformanceContext) {
        let message = LoggingMessageNotificationParam::new(LoggingLevel::Info, json!(line));
        let _ = context.peer.notify_logging_message(message).await;
    }

    async fn fixture(
        &self,
        params: CallToolRequestParams,
        context: &ConformanceContext,
    ) -> Result<CallToolResponse, ErrorData> {
        let argument = |name: &str| {
            let found = params.arguments.as_ref().and_then(|arguments| arguments.get(name));
            found.and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        match params.name.as_ref() {
            "test_simple_text" => text("This is a simple text response for testing."),
            "test_image_content" => content(json!([{"type": "image", "data": PNG, "mimeType": "image/png"}])),
            "test_audio_content" => content(json!([{"type": "audio", "data": WAV, "mimeType": "audio/wav"}])),
            "test_embedded_resource" => content(json!([{"type": "resource", "resource": {
                "uri": "test://embedded-resource", "mimeType": "text/plain", "text": "This is an embedded resource content.",
            }}])),
            "test_multiple_content_types" => content(json!([
                {"type": "text", "text": "Multiple content types test:"},
                {"type": "image", "data": PNG, "mimeType": "image/png"},
                {"type": "resource", "resource": {
                    "uri": "test://mixed-content-resource", "mimeType": "application/json",
                    "text": r#"{"test":"data","value":123}"#,
                }},
            ])),
            "test_tool_with_logging" => {
                for line in ["Tool execution started", "Tool processing data", "Tool execution completed"] {
                    self.log(line, context).await;
                    sleep(PAUSE).await;
                }
                text("The messages were sent.")
            }
            "test_logging_tool" => {
                if context.meta.log_level().is_some() {
                    self.log("A message that was asked for", context).await;
                }
                text("Done.")
            }
            "test_tool_with_progress" => {
                for progress in [0.0, 50.0, 100.0] {
                    if let Some(token) = context.meta.get_progress_token() {
                        let progress_params = ProgressNotificationParam::new(token, progress).with_total(100.0);
                        let _ = context.peer.notify_progress(progress_params).await;
                    }
                    sleep(PAUSE).await;
                }
                text("The progress was told.")
            }
            "test_error_handling" => Ok(CallToolResponse::Complete(of(json!({
                "resultType": "complete",
                "isError": true,
                "content": [{"type": "text", "text": "This tool intentionally returns an error for testing"}],
            }))?)),
            "test_sampling" => {
                let asked: CreateMessageRequestParams = of(sampling(&argument("prompt"), 100)["params"].clone())?;
                let request = ServerRequest::CreateMessageRequest(rmcp::model::CreateMessageRequest::new(asked));
                let responses = self.request(request, context).await?;
                text(format!("LLM response: {}", responses["content"]["text"].as_str().unwrap_or_default()))
            }
            "test_elicitation" => {
                let schema = json!({"type": "object", "required": ["username", "email"], "properties": {
                    "username": {"type": "string", "description": "User's response"},
                    "email": {"type": "string", "description": "User's email address"},
                }});
                let responses = self.elicit(&argument("message"), schema, context).await?;
                text(format!("User response: {responses}"))
            }
            "test_elicitation_sep1034_defaults" => {
                let schema = json!({"type": "object", "properties": {
                    "name": {"type": "string", "default": "John Doe"},
                    "age": {"type": "integer", "default": 30},
                    "score": {"type": "number", "default": 95.5},
                    "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
                    "verified": {"type": "boolean", "default": true},
                }});
                let responses = self.elicit("Look over these values", schema, context).await?;
                text(format!("Elicitation completed: {responses}"))
            }
            "test_elicitation_sep1330_enums" => {
                let titled = |word: &str| {
                    json!([
                        {"const": "value1", "title": format!("First {word}")},
                        {"const": "value2", "title": format!("Second {word}")},
                        {"const": "value3", "title": format!("Third {word}")},
                    ])
                };
                let options = json!(["option1", "option2", "option3"]);
                let schema = json!({"type": "object", "properties": {
                    "untitledSingle": {"type": "string", "enum": options},
                    "titledSingle": {"type": "string", "oneOf": titled("Option")},
                    "legacyEnum": {"type": "string", "enum": ["opt1", "opt2", "opt3"],
                                   "enumNames": ["Option One", "Option Two", "Option Three"]},
                    "untitledMulti": {"type": "array", "items": {"type": "string", "enum": options}},
                    "titledMulti": {"type": "array", "items": {"anyOf": titled("Choice")}},
                }});
                let responses = self.elicit("Choose", schema, context).await?;
                text(format!("Elicitation completed: {responses}"))
            }
            "test_reconnection" => text("Done."),
            "test_missing_capability" => {
                let sampling = context.client_capabilities().and_then(|capabilities| capabilities.sampling);
                match sampling {
                    Some(_) => text("The capability is there."),
                    None => Err(ErrorData::missing_required_client_capability(of(json!({"sampling": {}}))?)),
                }
            }
            "test_streaming_elicitation" => {
                Ok(ask(json!({"user_name": form("What is your name?", "name", "string")}), None)?.into())
            }
            name => rounds(name, params.input_responses.unwrap_or_default(), params.request_state.as_deref(), context),
        }
    }
}

/// The tools whose answer takes more than one round.
fn rounds(
    name: &str,
    responses: InputResponses,
    state: Option<&str>,
    context: &ConformanceContext,
) -> Result<CallToolResponse, ErrorData> {
    let field = |key: &str, field: &str| responses.get(key)?.get("content")?.get(field).cloned();
    let bad_state = || Err(ErrorData::invalid_params("the state is not one that was given out", None));
    match name {
        "test_input_required_result_elicitation" => match field("user_name", "name") {
            Some(name) => text(format!("Hello, {}!", name.as_str().unwrap_or_default())),
            None => Ok(ask(json!({"user_name": form("What is your name?", "name", "string")}), None)?.into()),
        },
        "test_input_required_result_sampling" => match responses.get("capital_question") {
            Some(answer) => text(answer["content"]["text"].as_str().unwrap_or("nothing")),
            None => Ok(ask(json!({"capital_question": sampling("What is the capital of France?", 100)}), None)?.into()),
        },
        "test_input_required_result_list_roots" => match responses.get("client_roots") {
            Some(answer) => text(format!("Roots: {}", answer["roots"])),
            None => Ok(ask(json!({"client_roots": {"method": "roots/list", "params": {}}}), None)?.into()),
        },
        "test_input_required_result_request_state" | "test_input_required_result_tampered_state" => {
            match (state, field("confirm", "ok")) {
                (Some(_), _) if !is_sealed(state, name) => bad_state(),
                (Some(_), Some(_)) => text("state-ok"),
                _ => Ok(ask(json!({"confirm": form("Please confirm", "ok", "boolean")}), Some(sealed(name)))?.into()),
            }
        }
        "test_input_required_result_multiple_inputs" => {
            if state.is_some() && !is_sealed(state, name) {
                return bad_state();
            }
            match ["user_name", "greeting", "client_roots"].iter().all(|key| responses.contains_key(*key)) {
                true => text("All of it came."),
                false => {
                    let requests = json!({
                        "user_name": form("What is your name?", "name", "string"),
                        "greeting": sampling("Generate a greeting", 50),
                        "client_roots": {"method": "roots/list", "params": {}},
                    });
                    Ok(ask(requests, Some(sealed(name)))?.into())
                }
            }
        }
        "test_input_required_result_multi_round" => {
            if is_sealed(state, "round 2") && responses.contains_key("step2") {
                return text("Both steps are done.");
            }
            if is_sealed(state, "round 1") && responses.contains_key("step1") {
                let step = json!({"step2": form("Step 2: What is your favorite color?", "color", "string")});
                return Ok(ask(step, Some(sealed("round 2")))?.into());
            }
            let step = json!({"step1": form("Step 1: What is your name?", "name", "string")});
            Ok(ask(step, Some(sealed("round 1")))?.into())
        }
        "test_input_required_result_capabilities" => {
            let can = context.client_capabilities().unwrap_or_default();
            let mut requests = json!({});
            if can.sampling.is_some() {
                requests["greeting"] = sampling("Generate a greeting", 50);
            }
            if can.elicitation.is_some() {
                requests["user_name"] = form("What is your name?", "name", "string");
            }
            Ok(ask(requests, None)?.into())
        }
        _ => Err(ErrorData::invalid_params("there is no such fixture", None)),
    }
}

fn tools() -> Result<Vec<Tool>, ErrorData> {
    let one = |name: &str, schema: Value| {
        of::<Tool>(json!({"name": name, "description": "For the conformance suite.", "inputSchema": schema}))
    };
    let mut all = Vec::new();
    for name in TOOLS.into_iter().chain(["test_input_required_result_capabilities"]) {
        all.push(one(name, json!({"type": "object"}))?);
    }
    for (name, argument) in [("test_sampling", "prompt"), ("test_elicitation", "message")] {
        let schema = json!({"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]});
        all.push(one(name, schema)?);
    }
    Ok(all)
}

impl ServerHandler for ConformanceServer {
    async fn call_tool(
        &self,
        params: CallToolRequestParams,
        context: ConformanceContext,
    ) -> Result<CallToolResponse, ErrorData> {
        match params.name.starts_with("test_") {
            true => self.fixture(params, &context).await,
            false => self.0.call_tool(params, context).await,
        }
    }

    async fn list_tools(
        &self,
        params: Option<PaginatedRequestParams>,
        context: ConformanceContext,
    ) -> Result<ListToolsResult, ErrorData> {
        let mut listed = self.0.list_tools(params, context).await?;
        listed.tools.extend(tools()?);
        Ok(listed)
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: ConformanceContext,
    ) -> Result<ListResourcesResult, ErrorData> {
        let names = ["test://static-text", "test://static-binary", "test://watched-resource"];
        let all: Vec<Value> = names.iter().map(|uri| json!({"uri": uri, "name": uri})).collect();
        Ok(ListResourcesResult::with_all_items(of(json!(all))?))
    }

    async fn list_resource_templates(
        &self,
        params: Option<PaginatedRequestParams>,
        context: ConformanceContext,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let mut listed = self.0.list_resource_templates(params, context).await?;
        listed.resource_templates.push(of(json!({"uriTemplate": "test://template/{id}/data", "name": "template"}))?);
        Ok(listed)
    }

    async fn read_resource(
        &self,
        params: ReadResourceRequestParams,
        context: ConformanceContext,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let uri = params.uri.clone();
        let id = uri.strip_prefix("test://template/").and_then(|rest| rest.strip_suffix("/data"));
        let found = match (uri.as_str(), id) {
            ("test://static-text" | "test://watched-resource", _) => {
                json!({"mimeType": "text/plain", "text": "This is the content of the static text resource."})
            }
            ("test://static-binary", _) => json!({"mimeType": "image/png", "blob": PNG}),
            (_, Some(id)) => {
                let data = json!({"id": id, "templateTest": true, "data": format!("Data for ID: {id}")});
                json!({"mimeType": "application/json", "text": data.to_string()})
            }
            _ => return self.0.read_resource(params, context).await,
        };
        let mut contents = found;
        contents["uri"] = json!(uri);
        Ok(ReadResourceResponse::Complete(of(json!({"resultType": "complete", "contents": [contents]}))?))
    }

    async fn subscribe(&self, _: SubscribeRequestParams, _: ConformanceContext) -> Result<(), ErrorData> {
        Ok(())
    }

    async fn unsubscribe(&self, _: UnsubscribeRequestParams, _: ConformanceContext) -> Result<(), ErrorData> {
        Ok(())
    }

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: ConformanceContext,
    ) -> Result<ListPromptsResult, ErrorData> {
        let needs = |name: &str| json!({"name": name, "required": true});
        Ok(ListPromptsResult::with_all_items(of(json!([
            {"name": "test_simple_prompt", "description": "A prompt."},
            {"name": "test_prompt_with_arguments", "description": "A prompt.", "arguments": [needs("arg1"), needs("arg2")]},
            {"name": "test_prompt_with_embedded_resource", "description": "A prompt.", "arguments": [needs("resourceUri")]},
            {"name": "test_prompt_with_image", "description": "A prompt."},
            {"name": "test_input_required_result_prompt", "description": "A prompt."},
        ]))?))
    }

    async fn get_prompt(
        &self,
        params: GetPromptRequestParams,
        _: ConformanceContext,
    ) -> Result<GetPromptResponse, ErrorData> {
        let argument = |name: &str| {
            let found = params.arguments.as_ref().and_then(|arguments| arguments.get(name));
            found.and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let plain = |words: &str| json!({"role": "user", "content": {"type": "text", "text": words}});
        let messages = match params.name.as_str() {
            "test_simple_prompt" => json!([plain("This is a simple prompt for testing.")]),
            "test_prompt_with_arguments" => {
                let words = format!("Prompt with arguments: arg1='{}', arg2='{}'", argument("arg1"), argument("arg2"));
                json!([plain(&words)])
            }
            "test_prompt_with_embedded_resource" => {
                let resource = json!({
                    "uri": argument("resourceUri"), "mimeType": "text/plain",
                    "text": "Embedded resource content for testing.",
                });
                json!([
                    {"role": "user", "content": {"type": "resource", "resource": resource}},
                    plain("Please process the embedded resource above."),
                ])
            }
            "test_prompt_with_image" => json!([
                {"role": "user", "content": {"type": "image", "data": PNG, "mimeType": "image/png"}},
                plain("Please analyze the image above."),
            ]),
            "test_input_required_result_prompt" => {
                let responses = params.input_responses.unwrap_or_default();
                let Some(answer) = responses.get("user_context") else {
                    let question = form("What context should the prompt use?", "context", "string");
                    return Ok(ask(json!({"user_context": question}), None)?.into());
                };
                json!([plain(&format!("Context: {}", answer["content"]["context"]))])
            }
            _ => return Err(ErrorData::invalid_params("there is no such prompt", None)),
        };
        Ok(GetPromptResponse::Complete(of(json!({"resultType": "complete", "messages": messages}))?))
    }

    async fn complete(&self, _: CompleteRequestParams, _: ConformanceContext) -> Result<CompleteResult, ErrorData> {
        let completion = json!({"values": ["paris", "park", "party"], "total": 3, "hasMore": false});
        of(json!({"resultType": "complete", "completion": completion}))
    }

    async fn initialize(
        &self,
        request: InitializeRequestParams,
        context: ConformanceContext,
    ) -> Result<InitializeResult, ErrorData> {
        let mut responses = self.0.initialize(request, context).await?;
        responses.capabilities = self.get_info().capabilities;
        // The newest revision has another way to subscribe, which nothing here needs.
        if let Some(resources) = &mut responses.capabilities.resources {
            resources.subscribe = Some(true);
        }
        Ok(responses)
    }

    async fn set_level(&self, request: SetLevelRequestParams, context: ConformanceContext) -> Result<(), ErrorData> {
        self.0.set_level(request, context).await
    }

    async fn on_roots_list_changed(&self, context: NotificationContext<RoleServer>) {
        self.0.on_roots_list_changed(context).await;
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        context: ConformanceContext,
    ) -> Result<CustomResult, ErrorData> {
        self.0.on_custom_request(request, context).await
    }

    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_tools()
            .enable_logging()
            .enable_resources()
            .enable_prompts()
            .enable_completions();
        let mut info = self.0.get_info();
        info.capabilities = capabilities.build();
        info
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        self.0.supported_protocol_versions()
    }
}
