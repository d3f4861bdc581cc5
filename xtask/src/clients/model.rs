//! A scripted model on loopback: an HTTP server that real clients take for their provider.
//!
//! It makes the calls of its script one after another, as far as their tools are offered, and then ends the turn. Every
//! request is kept, and written to a directory, so that what reached the model can be read byte for byte.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use ringfence_testkit::oauth_server::{SyntheticOAuth, TOKEN_PATH};
use serde_json::{Value, json};

use super::wire_formats::{ModelTurn, OfferedTool, WireFormat};

/// No request of a client is longer.
const MAX_BODY_BYTES: usize = 64 << 20;

/// The program that a tool belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ToolOwner {
    Ringfence,
    Client,
}

/// A call that the model makes: a tool by the name that its owner gives it, and the arguments.
#[derive(Clone, Debug)]
pub(super) struct ScriptedCall {
    pub(super) owner: ToolOwner,
    pub(super) tool: String,
    pub(super) arguments: Value,
}

impl ScriptedCall {
    /// A call of one of our tools.
    pub(super) fn ours(tool: &str, arguments: Value) -> Self {
        Self { owner: ToolOwner::Ringfence, tool: tool.to_owned(), arguments }
    }

    fn find_in(&self, offered: &[OfferedTool]) -> Option<OfferedTool> {
        match self.owner {
            ToolOwner::Ringfence => find_our_tool(offered, &self.tool),
            ToolOwner::Client => {
                let is_it = |tool: &&OfferedTool| {
                    !tool.name.contains("ringfence")
                        && tool.namespace.is_none()
                        && (tool.name == self.tool || tool.name.ends_with(&format!("__{}", self.tool)))
                };
                offered.iter().find(is_it).cloned()
            }
        }
    }
}

/// A request as it came.
#[derive(Clone, Debug)]
pub(super) struct LoggedRequest {
    pub(super) format: WireFormat,
    pub(super) body: Value,
}

/// A model that listens until the program ends.
#[derive(Debug)]
pub(super) struct ScriptedModel {
    address: SocketAddr,
    script: Vec<ScriptedCall>,
    directory: PathBuf,
    requests: Mutex<Vec<LoggedRequest>>,
    observer: CallObserver,
    /// Text that ends the turn.
    last_words: String,
    /// The login that requests for the model need.
    login: Option<Arc<SyntheticOAuth>>,
}

/// Hears the number of calls whose results are there, before the next one is made.
pub(super) struct CallObserver(pub(super) Box<dyn Fn(usize) + Send + Sync>);

impl std::fmt::Debug for CallObserver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CallObserver")
    }
}

impl ScriptedModel {
    pub(super) fn start(script: Vec<ScriptedCall>, directory: &Path, observer: CallObserver) -> io::Result<Arc<Self>> {
        Self::start_with_last_words(script, "Done.".to_owned(), directory, observer)
    }

    pub(super) fn start_with_last_words(
        script: Vec<ScriptedCall>,
        last_words: String,
        directory: &Path,
        observer: CallObserver,
    ) -> io::Result<Arc<Self>> {
        Self::listen(script, last_words, directory, observer, None)
    }

    /// For clients that are logged in.
    pub(super) fn start_with_login(
        script: Vec<ScriptedCall>,
        directory: &Path,
        login: Arc<SyntheticOAuth>,
    ) -> io::Result<Arc<Self>> {
        let observer = CallObserver(Box::new(|_| ()));
        Self::listen(script, "Done.".to_owned(), directory, observer, Some(login))
    }

    fn listen(
        script: Vec<ScriptedCall>,
        last_words: String,
        directory: &Path,
        observer: CallObserver,
        login: Option<Arc<SyntheticOAuth>>,
    ) -> io::Result<Arc<Self>> {
        std::fs::create_dir_all(directory)?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let (directory, requests) = (directory.to_owned(), Mutex::default());
        let model = Arc::new(Self { address, script, directory, requests, observer, last_words, login });
        let served = Arc::clone(&model);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let model = Arc::clone(&served);
                // A client that disconnects is not a failure of the model.
                std::thread::spawn(move || drop(model.serve(&stream)));
            }
        });
        Ok(model)
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(super) fn port(&self) -> u16 {
        self.address.port()
    }

    /// The requests that offered tools, oldest first: others ask for titles and the like.
    pub(super) fn requests(&self) -> Vec<LoggedRequest> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Words that find every tool of the script.
    fn search_words(&self) -> String {
        let mut names: Vec<&str> = self.script.iter().map(|call| call.tool.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        format!("ringfence {}", names.join(" "))
    }

    fn serve(&self, stream: &TcpStream) -> io::Result<()> {
        let mut input = BufReader::new(stream);
        while let Some(HttpRequest { method, path, headers, body }) = read_request(&mut input)? {
            self.log_headers(&headers)?;
            if let Some((status, answer)) = self.check_login(&method, &path, &headers, &body) {
                let head = format!(
                    "HTTP/1.1 {status} Login\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                    answer.len()
                );
                let mut output = stream;
                output.write_all(&[head.as_bytes(), &answer].concat())?;
                continue;
            }
            let (kind, answer) = match path.split('?').next().is_some_and(|path| path.ends_with("/echo")) {
                // For what an agent gets back of a key that it did not have.
                true => ("text/plain", Some(headers.concat())),
                false => self.answer(&method, &path, &body),
            };
            let status = if answer.is_some() { "200 OK" } else { "404 Not Found" };
            let answer = answer.unwrap_or_else(|| r#"{"error":{"message":"not here","type":"not_found"}}"#.to_owned());
            let head = format!("HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n", answer.len());
            let mut output = stream;
            output.write_all(head.as_bytes())?;
            if method != "HEAD" {
                output.write_all(answer.as_bytes())?;
            }
        }
        Ok(())
    }

    /// The answer of the token endpoint, or to a request for the model without a login.
    fn check_login(&self, method: &str, path: &str, headers: &[String], body: &[u8]) -> Option<(u16, Vec<u8>)> {
        let login = self.login.as_ref()?;
        let head = format!("{method} {path} HTTP/1.1\n{}", headers.concat());
        if path.split('?').next().is_some_and(|path| path.ends_with(TOKEN_PATH)) {
            let answer = login.answer(&head, body);
            return Some((answer.status, answer.body));
        }
        let is_refused = WireFormat::from_path(path).is_some() && !login.admits(&head);
        is_refused.then(|| {
            (
                401,
                br#"{"type":"error","error":{"type":"authentication_error","message":"OAuth token has expired"}}"#
                    .to_vec(),
            )
        })
    }

    /// Keeps the headers of every request: which key came is seen in them.
    fn log_headers(&self, headers: &[String]) -> io::Result<()> {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(self.directory.join("headers.log"));
        file?.write_all(headers.concat().as_bytes())
    }

    fn answer(&self, method: &str, path: &str, body: &[u8]) -> (&'static str, Option<String>) {
        const JSON: &str = "application/json";
        let Some(format) = WireFormat::from_path(path).filter(|_| method == "POST") else {
            return (JSON, other_endpoint(path));
        };
        let Ok(request) = serde_json::from_slice::<Value>(body) else { return (JSON, None) };
        let turn = self.turn(format, path, &request);
        match format.is_streamed(path, &request) {
            true => ("text/event-stream", Some(format.event_stream(&request, &turn))),
            false => (JSON, Some(format.full_response(&request, &turn).to_string())),
        }
    }

    /// The next call of the script, or the end of the turn.
    fn turn(&self, format: WireFormat, path: &str, request: &Value) -> ModelTurn {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let file = self.directory.join(format!("{:02}.json", requests.len() + 1));
        // The log is for people; the run does not need it.
        let _ = std::fs::write(file, format!("{:#}", json!({"path": path, "body": request})));
        requests.push(LoggedRequest { format, body: request.clone() });
        let number = format.results(request).len();
        (self.observer.0)(number);
        let Some(call) = self.script.get(number) else { return ModelTurn::Text(self.last_words.clone()) };
        match call.find_in(&format.tools(request)) {
            Some(tool) => ModelTurn::Call { tool, arguments: call.arguments.clone(), number },
            None if format.can_search_tools(request) => ModelTurn::SearchTools { query: self.search_words() },
            None => ModelTurn::Text(format!("{} is not offered.", call.tool)),
        }
    }
}

/// A tool of our server among those that are offered. Clients put the server's name before it, each in its own way.
pub(super) fn find_our_tool(offered: &[OfferedTool], name: &str) -> Option<OfferedTool> {
    let is_ours = |tool: &&OfferedTool| match &tool.namespace {
        Some(namespace) => namespace.contains("ringfence") && tool.name == name,
        None => tool.name.contains("ringfence") && tool.name.ends_with(&format!("_{name}")),
    };
    offered.iter().find(is_ours).cloned()
}

/// Other requests of clients: the list of models, the token count of a text.
fn other_endpoint(path: &str) -> Option<String> {
    let path = path.split('?').next().unwrap_or_default();
    if path.ends_with("countTokens") {
        return Some(json!({"totalTokens": 10}).to_string());
    }
    if path.ends_with("/count_tokens") {
        return Some(json!({"input_tokens": 10}).to_string());
    }
    if path.ends_with("/accounts/check") {
        // Where Codex with a login finds out which host its workspace is on.
        let account = json!({
            "id": "account-1", "name": "Ada", "structure": "personal", "plan_type": "plus", "is_deactivated": false,
            "can_access_with_session": true, "is_fedramp_compliant_workspace": false, "sso_connection_name": null,
            "workspace_backend_origin": "https://chatgpt.com", "account_routing_override": "NO_CONSTRAINT", "profile_picture_url": null,
        });
        let answer =
            json!({"accounts": [account], "default_account_id": "account-1", "account_ordering": ["account-1"]});
        return Some(answer.to_string());
    }
    path.ends_with("/models").then(|| {
        let model = json!({"id": "scripted", "object": "model", "type": "model", "display_name": "scripted"});
        json!({"object": "list", "data": [model], "models": [], "has_more": false}).to_string()
    })
}

struct HttpRequest {
    method: String,
    path: String,
    /// Whole lines, with names in lower case.
    headers: Vec<String>,
    body: Vec<u8>,
}

/// A request. Nothing at the end of the connection.
fn read_request(input: &mut BufReader<&TcpStream>) -> io::Result<Option<HttpRequest>> {
    let mut first = String::new();
    if input.read_line(&mut first)? == 0 {
        return Ok(None);
    }
    let mut words = first.split_whitespace().map(str::to_owned);
    let (Some(method), Some(path)) = (words.next(), words.next()) else { return Ok(None) };
    let (mut length, mut is_chunked, mut headers) = (0, false, Vec::new());
    loop {
        let mut line = String::new();
        input.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.push(format!("{}:{value}\n", name.to_ascii_lowercase()));
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.trim().parse().unwrap_or_default(),
            "transfer-encoding" => is_chunked = value.to_ascii_lowercase().contains("chunked"),
            _ => {}
        }
    }
    let mut body = Vec::new();
    loop {
        if is_chunked {
            let mut size = String::new();
            input.read_line(&mut size)?;
            length = usize::from_str_radix(size.trim(), 16).unwrap_or_default();
        }
        if body.len() + length > MAX_BODY_BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let start = body.len();
        body.resize(start + length, 0);
        input.read_exact(&mut body[start..])?;
        if is_chunked {
            input.read_line(&mut String::new())?;
        }
        if !is_chunked || length == 0 {
            return Ok(Some(HttpRequest { method, path, headers, body }));
        }
    }
}
