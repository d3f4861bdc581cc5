//! TLS certificate checks.

use std::io::Write as _;
use std::net::TcpListener;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use ringfence_web::TlsTrust;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::json;

use crate::harness::{ScriptedResolver, WebTestHost, WebTestSetup, read_head, text_page};

pub(crate) struct TestCertificateAuthority(CertifiedIssuer<'static, KeyPair>);

impl TestCertificateAuthority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub(crate) fn certificate(&self) -> CertificateDer<'static> {
        self.0.der().clone()
    }

    /// A server with a certificate for these names.
    pub(crate) fn serve(&self, names: &[&str], until: i32) -> u16 {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.not_after = date_time_ymd(until, 1, 1);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let versions = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let config = versions.with_no_client_auth().with_single_cert(vec![certificate.der().clone()], key).unwrap();
        let (config, listener) = (Arc::new(config), TcpListener::bind("127.0.0.1:0").unwrap());
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut stream = StreamOwned::new(ServerConnection::new(Arc::clone(&config)).unwrap(), stream);
                if read_head(&mut stream).is_ok() {
                    let _ = stream.write_all(text_page("encrypted").as_bytes());
                    stream.conn.send_close_notify();
                    let _ = stream.flush();
                }
            }
        });
        port
    }
}

fn world(port: u16, trusted: &TestCertificateAuthority) -> WebTestHost {
    let names = ScriptedResolver::default();
    names.add("right.example.org", &[&["127.0.0.1"]]);
    names.add("wrong.example.org", &[&["127.0.0.1"]]);
    let hosts = ["right.example.org", "wrong.example.org", "127.0.0.1"].map(|host| format!("{host}:{port}"));
    let rules = vec![json!({"decision": "allow", "host": hosts})];
    WebTestSetup {
        names,
        private: hosts.to_vec(),
        rules,
        trust: TlsTrust::Only(vec![trusted.certificate()]),
        ..WebTestSetup::default()
    }
    .build()
}

#[track_caller]
fn assert_untrusted(world: &WebTestHost, url: &str) {
    let (code, message) = world.error(json!({"url": url}));
    assert_eq!(code, "NETWORK_ERROR", "{url}: {message}");
    assert!(message.contains("TLS certificate verification failed"), "{url}: {message}");
}

#[test]
fn a_host_is_believed_by_its_certificate_and_its_name() {
    let authority = TestCertificateAuthority::new();
    let port = authority.serve(&["right.example.org", "127.0.0.1"], 4000);
    let trusting = world(port, &authority);
    assert_eq!(trusting.body(&format!("https://right.example.org:{port}/")), "encrypted");
    assert_eq!(trusting.body(&format!("https://127.0.0.1:{port}/")), "encrypted");
    assert_untrusted(&trusting, &format!("https://wrong.example.org:{port}/"));
    assert_untrusted(&world(port, &TestCertificateAuthority::new()), &format!("https://right.example.org:{port}/"));
    let expired = authority.serve(&["right.example.org"], 2020);
    assert_untrusted(&world(expired, &authority), &format!("https://right.example.org:{expired}/"));
    // A page in the clear where an encrypted one was asked for.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let plain = listener.local_addr().unwrap().port();
    std::thread::spawn(move || listener.accept().unwrap().0.write_all(text_page("x").as_bytes()));
    assert_untrusted(&world(plain, &authority), &format!("https://right.example.org:{plain}/"));
}
