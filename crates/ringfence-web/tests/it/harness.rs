//! Test harness: a network with scripted servers and names, and a host.
//!
//! Where the platform allows it, a test runs once more in a process whose network has nothing but its own loopback, and
//! there our servers have addresses of the public internet. What must not be reached listens too, and counts.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::pin::Pin;
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use ringfence_kernel::{
    ApprovalRequest, ApprovalResponse, CallLimits, Dialect, Host, HostConfig, LayeredRules, PolicyLayer, PolicyRule,
    Preset, Session, ToolCall, ToolRegistry,
};
use ringfence_testkit::approver::{ScriptedApprover, decision_by_person};
use ringfence_testkit::audit_trace::AuditTrace;
use ringfence_testkit::host::{test_host_config, test_session};
use ringfence_testkit::requirement::{Requirement, skip_without};
use ringfence_testkit::subprocess::run_test;
use ringfence_web::{NameResolver, PrivateHosts, SearchEngine, TlsTrust, WebConnector};
use rustls::pki_types::CertificateDer;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// A public address that is not in use.
pub(crate) const PUBLIC: &str = "203.0.114.10";
pub(crate) const PUBLIC_V6: &str = "2606:4700:9::10";

const PUBLIC_NETWORK: &str = "public-network";

/// Runs a test in a process whose network is its own, or skips it.
pub(crate) fn in_public_network(name: &str, test: impl FnOnce()) {
    if std::env::args().any(|argument| argument == PUBLIC_NETWORK) {
        return test();
    }
    let prepare = format!(
        "ip link set lo up && ip addr add {PUBLIC}/32 dev lo && ip addr add {PUBLIC_V6}/128 dev lo nodad && \
         ip addr add 10.0.0.5/32 dev lo && ip addr add 169.254.169.254/32 dev lo && exec \"$@\""
    );
    let possible = Command::new("unshare").args(["-rn", "sh", "-c", &prepare, "sh", "true"]).status();
    if !possible.is_ok_and(|status| status.success()) {
        return skip_without(Requirement::NetworkNamespaces, "`unshare -rn` or `ip` is refused or missing");
    }
    let mut command = Command::new("unshare");
    command.args(["-rn", "sh", "-c", &prepare, "sh"]).arg(std::env::current_exe().unwrap());
    // Tools must not use these.
    let proxies = ["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"];
    command.envs(proxies.map(|name| (name, "http://127.0.0.1:80")));
    run_test(command, name, &[PUBLIC_NETWORK]);
}

/// A server's handling of a connection: the head of the request, and the connection.
pub(crate) type HttpServerScript = Arc<dyn Fn(&str, &mut dyn ServerStream) -> io::Result<()> + Send + Sync>;

pub(crate) trait ServerStream: io::Read + io::Write + Send {}

impl<T: io::Read + io::Write + Send> ServerStream for T {}

/// A server that runs until the test ends.
#[derive(Clone)]
pub(crate) struct TestHttpServer {
    pub(crate) address: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
}

impl TestHttpServer {
    /// Serves a script.
    pub(crate) fn start(
        at: &str,
        script: impl Fn(&str, &mut dyn ServerStream) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(at).unwrap_or_else(|error| panic!("{at}: {error}"));
        let server = Self { address: listener.local_addr().unwrap(), heads: Arc::default() };
        let (heads, script): (_, HttpServerScript) = (Arc::clone(&server.heads), Arc::new(script));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (heads, script) = (Arc::clone(&heads), Arc::clone(&script));
                std::thread::spawn(move || serve(stream, &heads, &script));
            }
        });
        server
    }

    /// Whatever is asked, this is the answer.
    pub(crate) fn with_answer(at: &str, answer: &str) -> Self {
        let answer = answer.to_owned();
        Self::start(at, move |_, stream| stream.write_all(answer.as_bytes()))
    }

    pub(crate) fn hits(&self) -> usize {
        self.heads.lock().unwrap().len()
    }

    pub(crate) fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }
}

fn serve(mut stream: TcpStream, heads: &Mutex<Vec<String>>, script: &HttpServerScript) {
    // A connection counts whether or not anything is sent.
    let number = {
        let mut heads = heads.lock().unwrap();
        heads.push(String::new());
        heads.len() - 1
    };
    let Ok(head) = read_head(&mut stream) else { return };
    heads.lock().unwrap()[number] = head.clone();
    let _ = script(&head, &mut stream);
}

/// A request with its body, as far as its head says that there is one.
pub(crate) fn read_head(stream: &mut dyn ServerStream) -> io::Result<String> {
    let mut text = Vec::new();
    let mut byte = [0];
    while !text.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        text.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&text).into_owned();
    let length = head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body)?;
    Ok(head + &String::from_utf8_lossy(&body))
}

/// The path that a request asks for.
pub(crate) fn path_of(head: &str) -> &str {
    head.split(' ').nth(1).unwrap_or_default()
}

pub(crate) fn text_page(body: &str) -> String {
    response_with_type("text/plain", body)
}

pub(crate) fn response_with_type(kind: &str, body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

pub(crate) fn redirect_to(to: &str) -> String {
    format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n")
}

/// Names with scripted addresses, one answer after the other.
#[derive(Clone, Debug, Default)]
pub(crate) struct ScriptedResolver {
    answers: Arc<Mutex<BTreeMap<String, Vec<Vec<IpAddr>>>>>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl ScriptedResolver {
    pub(crate) fn add(&self, name: &str, answers: &[&[&str]]) {
        let answer = |addresses: &&[&str]| addresses.iter().map(|address| address.parse().unwrap()).collect();
        self.answers.lock().unwrap().insert(name.to_owned(), answers.iter().map(answer).collect());
    }

    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

impl NameResolver for ScriptedResolver {
    fn resolve(&self, name: &str) -> Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send + '_>> {
        let name = name.trim_end_matches('.').to_owned();
        self.asked.lock().unwrap().push(name.clone());
        let mut answers = self.answers.lock().unwrap();
        let answer = match answers.get_mut(&name) {
            Some(answers) if answers.len() > 1 => Ok(answers.remove(0)),
            Some(answers) => Ok(answers[0].clone()),
            None => Err(io::Error::other("no such name")),
        };
        Box::pin(std::future::ready(answer))
    }
}

/// The parts of a host.
pub(crate) struct WebTestHost {
    pub(crate) host: Host,
    pub(crate) session: Arc<Session>,
    pub(crate) names: ScriptedResolver,
    pub(crate) asked: Arc<Mutex<Vec<ApprovalRequest>>>,
    pub(crate) trace: AuditTrace,
}

pub(crate) struct WebTestSetup {
    pub(crate) names: ScriptedResolver,
    pub(crate) private: Vec<String>,
    pub(crate) rules: Vec<Value>,
    pub(crate) trust: TlsTrust,
    pub(crate) approves: bool,
    /// Arguments that the approver sets instead.
    pub(crate) changes: Option<Value>,
    pub(crate) limits: CallLimits,
    pub(crate) engine: Option<SearchEngine>,
}

impl Default for WebTestSetup {
    fn default() -> Self {
        Self {
            names: ScriptedResolver::default(),
            private: Vec::new(),
            rules: vec![json!({"decision": "allow", "host": ["*", "*:8080"]})],
            trust: TlsTrust::Only(vec![CertificateDer::from(Vec::new())]),
            approves: false,
            changes: None,
            limits: CallLimits::for_dialect(Dialect::Standard),
            engine: None,
        }
    }
}

impl WebTestSetup {
    pub(crate) fn build(self) -> WebTestHost {
        let Self { names, private, rules, trust, approves, changes, limits, engine } = self;
        let private = PrivateHosts::parse(&private).unwrap();
        let net = Arc::new(WebConnector::new(Arc::new(names.clone()), private, trust));
        let mut registry = ToolRegistry::new();
        ringfence_web::register(&mut registry, &net, engine).unwrap();
        let rules =
            rules.into_iter().map(|text| PolicyRule::new(serde_json::from_value(text).unwrap(), "rule").unwrap());
        let policy = LayeredRules::from_preset(Preset::Ask).with_layer(PolicyLayer::User, rules.collect());
        let response = ApprovalResponse { approved: approves, modified_args: changes, ..ApprovalResponse::default() };
        let approver = ScriptedApprover::always(decision_by_person(response));
        let (asked, trace) = (Arc::clone(&approver.asked), AuditTrace::default());
        let host = Host::new(HostConfig {
            policy: Box::new(policy),
            approver: Box::new(approver),
            audit: Box::new(trace.clone()),
            ..test_host_config()
        });
        let session = Session { limits, ..test_session(&registry, Dialect::Standard) };
        WebTestHost { host, session: Arc::new(session), names, asked, trace }
    }
}

impl WebTestHost {
    pub(crate) fn call(&self, tool: &str, arguments: &Value) -> Value {
        self.call_until(tool, arguments, &CancellationToken::new())
    }

    pub(crate) fn call_until(&self, tool: &str, arguments: &Value, cancel: &CancellationToken) -> Value {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let call = ToolCall { id: "c".to_owned(), name: tool.to_owned(), arguments: arguments.to_string() };
        let reply = runtime.block_on(self.host.call(&self.session, call, cancel)).unwrap();
        runtime.shutdown_background();
        serde_json::from_str(&reply.text).unwrap()
    }

    pub(crate) fn fetch(&self, arguments: Value) -> Value {
        self.call("web_fetch", &arguments)
    }

    /// The body that came back.
    #[track_caller]
    pub(crate) fn body(&self, url: &str) -> String {
        let reply = self.fetch(json!({"url": url}));
        reply["value"]["body"].as_str().unwrap_or_else(|| panic!("{url}: {reply}")).to_owned()
    }

    /// The error.
    #[track_caller]
    pub(crate) fn error(&self, arguments: Value) -> (String, String) {
        let reply = self.fetch(arguments.clone());
        let error = &reply["error"];
        assert_eq!(reply["ok"], false, "{arguments}: {reply}");
        (error["code"].as_str().unwrap().to_owned(), error["message"].as_str().unwrap().to_owned())
    }
}

/// Two ends for a server to say that something happened.
pub(crate) fn event_channel<T>() -> (Mutex<Sender<T>>, Receiver<T>) {
    let (sender, receiver) = channel();
    (Mutex::new(sender), receiver)
}
