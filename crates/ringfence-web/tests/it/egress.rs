//! Egress proxy: reachable hosts, refused hosts, and records before each connection.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use ringfence_kernel::{CallCommitState, CallContext, CallLimits, Dialect, Egress as _, EgressChannel, IoMode};
use ringfence_web::{EgressProxy, PrivateHosts, TlsTrust, WebConnector};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::harness::{ScriptedResolver, TestHttpServer, path_of, text_page};
use crate::tls::TestCertificateAuthority;

/// A stand-in for a jail: a listening socket, and the end of the channel that keeps it open.
struct ProxyClientJail {
    proxy: SocketAddr,
    _socket: OwnedFd,
    log: Arc<Mutex<Vec<String>>>,
    stopped: Arc<AtomicBool>,
}

impl Drop for ProxyClientJail {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::SeqCst);
    }
}

fn names() -> ScriptedResolver {
    let names = ScriptedResolver::default();
    for name in ["one.example.org", "two.example.org"] {
        names.add(name, &[&["127.0.0.1"]]);
    }
    names.add("inward.example.org", &[&["10.0.0.5"]]);
    names
}

fn open(names: &ScriptedResolver, private: &[String], hosts: &[String]) -> Result<Box<dyn EgressChannel>, String> {
    let net = WebConnector::new(Arc::new(names.clone()), PrivateHosts::parse(private).unwrap(), TlsTrust::System);
    let (limits, signal) = (CallLimits::for_dialect(Dialect::Standard), CallCommitState::new());
    let cx = CallContext::new(&limits, IoMode::Blocking, &signal);
    EgressProxy::new(Arc::new(net)).open(hosts, &cx).map_err(|error| error.message)
}

/// Egress to these, with a recorder of the requests.
fn jail(names: &ScriptedResolver, private: &[String], hosts: &[String]) -> ProxyClientJail {
    let mut way = open(names, private, hosts).unwrap();
    let socket = way.socket().unwrap();
    assert!(way.socket().is_none());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = listener.local_addr().unwrap();
    send_listener(&socket, &listener);
    let (log, over) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
    let (kept, ends) = (Arc::clone(&log), Arc::clone(&over));
    std::thread::spawn(move || {
        let (limits, signal) = (CallLimits::for_dialect(Dialect::Standard), CallCommitState::new());
        let cx = CallContext::new(&limits, IoMode::Blocking, &signal);
        while !ends.load(Ordering::SeqCst) {
            match way.next_attempt() {
                Some(attempt) => {
                    let refused = if attempt.refusal.is_some() { "kept from " } else { "" };
                    kept.lock().unwrap().push(format!("{refused}{}", attempt.access.resource.display_path));
                    attempt.record(&cx);
                }
                None => std::thread::yield_now(),
            }
        }
    });
    ProxyClientJail { proxy, _socket: socket, log, stopped: over }
}

fn send_listener(socket: &OwnedFd, listener: &TcpListener) {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [listener.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
    sendmsg(socket, &[io::IoSlice::new(b"l")], &mut control, SendFlags::empty()).unwrap();
}

impl ProxyClientJail {
    fn connect(&self) -> TcpStream {
        TcpStream::connect(self.proxy).unwrap()
    }

    /// The proxy's response to a request: its status and all that follows.
    fn ask(&self, request: &str) -> String {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    }

    fn get(&self, url: &str) -> String {
        self.ask(&format!(
            "GET {url} HTTP/1.1\r\nHost: elsewhere.org\r\nProxy-Connection: x\r\nConnection: close\r\n\r\n"
        ))
    }

    /// A tunnel, if it is opened.
    fn tunnel(&self, to: &str) -> Result<TcpStream, String> {
        let mut stream = self.connect();
        write!(stream, "CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n").unwrap();
        let mut reader = BufReader::with_capacity(1, stream.try_clone().unwrap());
        let mut status = String::new();
        reader.read_line(&mut status).unwrap();
        let mut line = String::new();
        while reader.read_line(&mut line).unwrap() > 2 {
            line.clear();
        }
        if status.contains(" 200 ") { Ok(stream) } else { Err(status) }
    }

    fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }
}

#[test]
fn a_jail_is_told_which_addresses_of_its_loopback_stand_for_granted_hosts() {
    let hosts = ["127.0.0.1:4873", "localhost:8080", "[::1]:9000", "127.0.0.2:1234", "10.0.0.5:80"].map(str::to_owned);
    let mut way = open(&names(), &hosts, &hosts).unwrap();
    let mut reader = BufReader::new(std::os::unix::net::UnixStream::from(way.socket().unwrap()));
    let told: Vec<String> = reader.by_ref().lines().take(3).map(Result::unwrap).collect();
    assert_eq!(told, ["127.0.0.1:4873", "127.0.0.1:8080", "[::1]:9000"]);
    assert_eq!(String::from_utf8_lossy(reader.buffer()), "");
    // The loopback of other hosts is not granted along with it.
    assert!(open(&names(), &[], &hosts[..1]).is_err());
}

#[test]
fn a_host_with_a_path_is_not_granted() {
    for host in ["one.example.org/a:443", "one.example.org/", "one.example.org?x", "10.0.0.0/8"] {
        assert!(open(&names(), &[], &[host.to_owned()]).is_err(), "{host}");
    }
}

#[test]
fn a_page_of_a_granted_host_is_reached_and_no_other() {
    let server =
        TestHttpServer::start("127.0.0.1:0", |head, stream| stream.write_all(text_page(path_of(head)).as_bytes()));
    let port = server.address.port();
    let [one, two] = ["one.example.org", "two.example.org"].map(|host| format!("{host}:{port}"));
    let names = names();
    let jail = jail(&names, &[one.clone(), two.clone()], std::slice::from_ref(&one));
    let answer = jail.get(&format!("http://{one}/a?b"));
    assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("/a?b"), "{answer}");
    let head = server.heads().remove(0).to_lowercase();
    assert!(head.starts_with("get /a?b http/1.1\r\n") && head.contains(&format!("host: {one}\r\n")), "{head}");
    assert!(!head.contains("proxy-connection") && !head.contains("elsewhere"), "{head}");
    for (url, status) in [
        (format!("http://{two}/"), "403"),
        (format!("http://one.example.org:{}/", port ^ 1), "403"),
        ("http://one.example.org/".to_owned(), "403"),
        (format!("http://127.0.0.1:{port}/"), "403"),
        (format!("http://sub.{one}/"), "403"),
        (format!("http://{one}@{two}/"), "403"),
        (format!("https://{one}/"), "403"),
        ("/a".to_owned(), "403"),
        ("http://169.254.169.254/latest/".to_owned(), "403"),
        ("http://localhost/".to_owned(), "403"),
    ] {
        let answer = jail.get(&url);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{url}: {answer}");
    }
    assert_eq!(server.hits(), 1);
    assert_eq!(names.asked(), ["one.example.org"], "no other name is even looked up");
    assert_eq!(jail.log()[..2], [one, format!("kept from {two}")]);
    assert!(jail.log().contains(&"kept from 169.254.169.254".to_owned()), "{:?}", jail.log());
}

#[test]
fn nothing_passes_that_was_not_recorded() {
    let server = TestHttpServer::with_answer("127.0.0.1:0", &text_page("x"));
    let one = format!("one.example.org:{}", server.address.port());
    let names = names();
    let mut way = open(&names, std::slice::from_ref(&one), std::slice::from_ref(&one)).unwrap();
    let socket = way.socket().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    send_listener(&socket, &listener);
    // There is no recorder.
    drop(way);
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    write!(stream, "GET http://{one}/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    assert_eq!((server.hits(), names.asked().len()), (0, 0));
}

#[test]
fn a_name_that_leads_inward_is_not_followed() {
    let names = names();
    let jail = jail(&names, &[], &["inward.example.org:80".to_owned()]);
    let answer = jail.get("http://inward.example.org/");
    assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains("a private network"), "{answer}");
    assert_eq!(jail.log(), ["inward.example.org:80"]);
}

#[test]
fn an_invalid_host_cannot_be_granted() {
    for host in [
        "127.0.0.1:80",
        "localhost:443",
        "169.254.169.254:80",
        "a b:443",
        "one.example.org:22",
        "::1",
        "",
        "x@one.example.org:443",
    ] {
        assert!(open(&names(), &[], &[host.to_owned()]).is_err(), "{host}");
    }
}

/// A client of TLS that asks for `name` in a tunnel, and what it reads.
fn request_over_tls(stream: TcpStream, name: &str, authority: &TestCertificateAuthority) -> io::Result<String> {
    let mut roots = RootCertStore::empty();
    roots.add(authority.certificate()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = versions.with_root_certificates(roots).with_no_client_auth();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut stream = StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), stream);
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[test]
fn an_encrypted_connection_names_the_host_that_it_was_granted() {
    let authority = TestCertificateAuthority::new();
    let port = authority.serve(&["one.example.org", "two.example.org"], 4000);
    let one = format!("one.example.org:{port}");
    let names = names();
    let jail = jail(&names, std::slice::from_ref(&one), std::slice::from_ref(&one));
    let answer = request_over_tls(jail.tunnel(&one).unwrap(), "one.example.org", &authority).unwrap();
    assert!(answer.ends_with("encrypted"), "{answer}");
    // The server would accept any name.
    let error = request_over_tls(jail.tunnel(&one).unwrap(), "two.example.org", &authority).unwrap_err();
    assert!(error.to_string().contains("AccessDenied"), "{error}");
    let alert = &[21, 3, 3, 0, 2, 2, 49][..];
    for (words, answer) in
        [(&b"GET / HTTP/1.1\r\n\r\n"[..], &[][..]), (b"SSH-2.0-x\r\n", &[]), (&[22, 3, 1, 0, 1, 2], alert)]
    {
        let mut stream = jail.tunnel(&one).unwrap();
        stream.write_all(words).unwrap();
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said);
        assert_eq!(said, answer, "{words:?}");
    }
    for other in [format!("two.example.org:{port}"), format!("127.0.0.1:{port}"), "one.example.org:443".to_owned()] {
        assert!(jail.tunnel(&other).unwrap_err().contains(" 403 "), "{other}");
    }
    assert_eq!(jail.log().iter().filter(|line| **line == one).count(), 5);
    assert_eq!(jail.log().iter().filter(|line| line.starts_with("kept from")).count(), 3);
}

#[test]
fn connections_per_run_are_limited_and_the_next_one_waits() {
    let authority = TestCertificateAuthority::new();
    let port = authority.serve(&["one.example.org"], 4000);
    let one = format!("one.example.org:{port}");
    let jail = jail(&names(), std::slice::from_ref(&one), std::slice::from_ref(&one));
    let mut tunnels: Vec<TcpStream> = (0..64).map(|_| jail.tunnel(&one).unwrap()).collect();
    let mut waiting = jail.connect();
    write!(waiting, "CONNECT {one} HTTP/1.1\r\nHost: {one}\r\n\r\n").unwrap();
    assert_eq!(jail.log().len(), 64);
    tunnels.pop();
    let mut status = String::new();
    BufReader::new(waiting).read_line(&mut status).unwrap();
    assert!(status.contains(" 200 "), "{status}");
    assert_eq!(jail.log().len(), 65);
}

#[test]
fn the_channel_closes_with_the_jail() {
    let server = TestHttpServer::with_answer("127.0.0.1:0", &text_page("x"));
    let one = format!("one.example.org:{}", server.address.port());
    let jail = jail(&names(), std::slice::from_ref(&one), std::slice::from_ref(&one));
    let mut waiting = jail.connect();
    let proxy = jail.proxy;
    assert!(jail.get(&format!("http://{one}/")).ends_with('x'));
    drop(jail);
    // The connection ends, and then there is no listener.
    assert!(matches!(waiting.read(&mut [0]), Ok(0) | Err(_)));
    while TcpStream::connect(proxy).is_ok_and(|mut stream| stream.read(&mut [0]).is_ok_and(|count| count > 0)) {}
}
