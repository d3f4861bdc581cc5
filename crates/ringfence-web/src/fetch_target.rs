//! Fetch targets: a URL parsed once, and checked against names and ports.
//!
//! A `FetchTarget` is http or https, has no credentials, and a host that is either a name of the public internet or an address
//! that may be reached. Hosts are read as browsers read them, so that no spelling of an address is taken for a name.
//!
//! Not here: what a name leads to. Nothing is looked up before it is approved (`connector.rs`).

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ringfence_kernel::{PolicyAction, PolicyResource, ResourceAccess};
use ringfence_net::{AddressPolicy, AddressRefusal, TargetHost, check_public};
use url::{Host as UrlHost, Url};

use crate::error::WebError;
use crate::private_hosts::PrivateHosts;

/// No longer URL is taken.
const MAX_URL_BYTES: usize = 8 << 10;

/// The host of a URL, as the parser read it.
pub(crate) fn host_from_url(host: UrlHost<&str>) -> TargetHost {
    match host {
        UrlHost::Domain(name) => TargetHost::Name(name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()),
        UrlHost::Ipv4(address) => TargetHost::Address(IpAddr::V4(address)),
        UrlHost::Ipv6(address) => TargetHost::Address(IpAddr::V6(address)),
    }
}

/// A URL that may be asked for.
#[derive(Clone, Debug)]
pub(crate) struct FetchTarget {
    url: Url,
    host: TargetHost,
    port: u16,
}

impl FetchTarget {
    /// Reads and checks a URL. Looks nothing up.
    pub(crate) fn parse(text: &str, private: &PrivateHosts) -> Result<Self, WebError> {
        check_text(text)?;
        let url = Url::parse(text).map_err(|cause| WebError::Url(format!("is not valid: {cause}")))?;
        Self::from_url(url, has_userinfo(text), private)
    }

    /// The target of a redirect.
    pub(crate) fn join(&self, location: &str, private: &PrivateHosts) -> Result<Self, WebError> {
        if location.len() > MAX_URL_BYTES || location.chars().any(|c| c.is_control() || c == '\\') {
            return Err(WebError::Url("of a redirect is too long, or has an invalid character".to_owned()));
        }
        let url = self
            .url
            .join(location.trim())
            .map_err(|cause| WebError::Url(format!("of a redirect is not valid: {cause}")))?;
        Self::from_url(url, has_userinfo(location.trim()), private)
    }

    /// The host (`host:port`) of a captured connection, whose port is open for any protocol.
    pub(crate) fn for_captured(authority: &str, port: u16, private: &PrivateHosts) -> Result<Self, WebError> {
        let text = format!("http://{authority}/");
        check_text(&text)?;
        let url = Url::parse(&text).map_err(|cause| WebError::Url(format!("is not valid: {cause}")))?;
        let host = url.host().map(host_from_url).ok_or_else(|| WebError::Url("has no host".to_owned()))?;
        let target = Self { url, host, port };
        if !private.contains(&target.host, port) {
            target.check_host(private)?;
        }
        Ok(target)
    }

    fn from_url(mut url: Url, names_user: bool, private: &PrivateHosts) -> Result<Self, WebError> {
        if !matches!(url.scheme(), "http" | "https") {
            return Err(WebError::Url(format!(
                "must begin with `https://` or `http://`, not with `{}:`",
                url.scheme()
            )));
        }
        if names_user || !url.username().is_empty() || url.password().is_some() {
            return Err(WebError::Url("must not contain a user name or password; use a header".to_owned()));
        }
        let host = url.host().map(host_from_url).ok_or_else(|| WebError::Url("has no host".to_owned()))?;
        let port = url.port_or_known_default().filter(|port| *port != 0);
        let port = port.ok_or_else(|| WebError::Url("has port 0, which is not valid".to_owned()))?;
        url.set_fragment(None);
        let target = Self { url, host, port };
        if !private.contains(&target.host, port) {
            target.check_public(private)?;
        }
        Ok(target)
    }

    /// Fails unless the host is public, or in a range that the user allows.
    fn check_public(&self, private: &PrivateHosts) -> Result<(), WebError> {
        let is_named = matches!(self.host, TargetHost::Address(ip) if private.allows_port_explicitly(ip, self.port));
        if let Some((_, why)) = BLOCKED_PORTS.iter().find(|(port, _)| *port == self.port && !is_named) {
            return Err(WebError::Port(self.port, why));
        }
        self.check_host(private)
    }

    fn check_host(&self, private: &PrivateHosts) -> Result<(), WebError> {
        match &self.host {
            TargetHost::Name(name) => check_name(name).map_err(|why| WebError::Name(name.clone(), why)),
            TargetHost::Address(ip) => self.check_address(*ip, private),
        }
    }

    /// Fails for an address that this host may not lead to.
    pub(crate) fn check_address(&self, ip: IpAddr, private: &PrivateHosts) -> Result<(), WebError> {
        self.address_policy(private).check(ip).map_err(|refused| self.not_public(refused))
    }

    /// Decides about the addresses that this host may lead to.
    pub(crate) fn address_policy<'a>(&'a self, private_hosts: &'a PrivateHosts) -> TargetAddressPolicy<'a> {
        TargetAddressPolicy { target: self, private_hosts }
    }

    /// The error for a refused address, with the setting that would allow it if there is one.
    pub(crate) fn not_public(&self, refused: AddressRefusal) -> WebError {
        let entry = || format!("; to allow it, set `allow_private = [\"{}\"]` under `[web]`", self.authority());
        let hint = if refused.overridable { entry() } else { String::new() };
        WebError::NotPublic { host: self.host.to_string(), why: refused.reason, hint }
    }

    pub(crate) fn url(&self) -> &Url {
        &self.url
    }

    pub(crate) fn host(&self) -> &TargetHost {
        &self.host
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        self.url.scheme() == "https"
    }

    /// `host:port`.
    pub(crate) fn authority(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// Path and query for the request line.
    pub(crate) fn path_and_query(&self) -> &str {
        &self.url[url::Position::BeforePath..url::Position::AfterQuery]
    }

    /// Value of the header `Host`.
    pub(crate) fn host_header(&self) -> String {
        match self.url.port() {
            Some(port) => format!("{}:{port}", self.host),
            None => self.host.to_string(),
        }
    }

    pub(crate) fn same_origin(&self, other: &Self) -> bool {
        self.url.scheme() == other.url.scheme() && self.host == other.host && self.port == other.port
    }

    /// For the policy: the host, and the path without what was asked of it.
    pub(crate) fn access(&self, mount: &str) -> ResourceAccess {
        let given = format!("{}{}", self.authority(), self.url.path());
        let resource = PolicyResource {
            mount: Arc::from(mount),
            display_path: given.clone(),
            requested_path: given,
            ..PolicyResource::default()
        };
        ResourceAccess { action: PolicyAction::Fetch, resource }
    }
}

impl fmt::Display for FetchTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.url.as_str())
    }
}

/// Public addresses, and the private ones that the user allows for a target.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TargetAddressPolicy<'a> {
    target: &'a FetchTarget,
    private_hosts: &'a PrivateHosts,
}

impl AddressPolicy for TargetAddressPolicy<'_> {
    fn check(&self, address: IpAddr) -> Result<(), AddressRefusal> {
        let Self { target: FetchTarget { host, port, .. }, private_hosts } = self;
        let is_allowed = || private_hosts.contains(host, *port) || private_hosts.contains_address(address, *port);
        check_public(address).or_else(|refused| if refused.overridable && is_allowed() { Ok(()) } else { Err(refused) })
    }
}

/// Whether there is an `@` before the host, also with nothing before it, which a parser leaves out.
fn has_userinfo(text: &str) -> bool {
    let is_web = |scheme: &str| scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https");
    let after_scheme = text.split_once(':').filter(|(scheme, _)| is_web(scheme));
    let rest = after_scheme.map(|(_, rest)| rest).or_else(|| text.starts_with("//").then_some(text));
    let host = rest.and_then(|rest| rest.trim_start_matches('/').split(['/', '?', '#']).next());
    host.is_some_and(|host| host.contains('@'))
}

/// Refuses text that URL parsers read differently.
fn check_text(text: &str) -> Result<(), WebError> {
    let wrong = |problem: &str| Err(WebError::Url(problem.to_owned()));
    if text.len() > MAX_URL_BYTES {
        return wrong("must have at most 8192 bytes");
    }
    if text.chars().any(|c| c.is_control() || c.is_whitespace() || c == '\\') {
        return wrong("must not contain spaces, control characters or backslashes");
    }
    let Some((scheme, rest)) = text.split_once(':') else { return wrong("must begin with `https://` or `http://`") };
    let is_web = scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https");
    if is_web && rest.strip_prefix("//").is_none_or(|rest| rest.is_empty() || rest.starts_with(['/', '?', '#'])) {
        return wrong("has no host, such as `https://docs.rs/`");
    }
    Ok(())
}

/// Fails for a name that the public internet does not have.
fn check_name(name: &str) -> Result<(), &'static str> {
    let labels: Vec<&str> = name.split('.').collect();
    let is_label = |label: &&str| {
        let known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        (1..=63).contains(&label.len()) && label.bytes().all(known) && !label.starts_with('-') && !label.ends_with('-')
    };
    if name.len() > 253 || !labels.iter().all(is_label) {
        return Err("the labels of a name have at most 63 letters, digits and hyphens");
    }
    if labels.len() < 2 {
        return Err("it has no dot, so it is a local name");
    }
    let last = labels.last().copied().unwrap_or_default();
    if last.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("it ends in a number, as only IP addresses do");
    }
    let ends = |ending: &&(&str, &str)| name.strip_suffix(ending.0).is_some_and(|rest| rest.ends_with('.'));
    NON_PUBLIC_SUFFIXES.iter().find(ends).map_or(Ok(()), |(_, why)| Err(why))
}

/// Endings that are not of the public internet.
const NON_PUBLIC_SUFFIXES: &[(&str, &str)] = &[
    ("localhost", "it is this machine (RFC 6761)"),
    ("local", "it is a link-local name (RFC 6762)"),
    ("internal", "it is a private network name (reserved by ICANN)"),
    ("home.arpa", "it is a home network name (RFC 8375)"),
    ("in-addr.arpa", "it is an address, not a host name"),
    ("ip6.arpa", "it is an address, not a host name"),
    ("localdomain", "it is this machine"),
    ("lan", "it is a private network name"),
    ("home", "it is a private network name"),
    ("corp", "it is a private network name"),
    ("intranet", "it is a private network name"),
    ("private", "it is a private network name"),
    ("test", "it is reserved for tests (RFC 6761)"),
    ("invalid", "it is reserved as invalid (RFC 6761)"),
    ("example", "it is reserved for examples (RFC 6761)"),
    ("onion", "it is not a DNS name (RFC 7686)"),
    ("alt", "it is not a DNS name (RFC 9476)"),
];

/// Ports of services that could be made to do something by the text of a request; browsers leave them out too.
const BLOCKED_PORTS: &[(u16, &str)] = &[
    (1, "tcpmux"),
    (7, "echo"),
    (9, "discard"),
    (11, "systat"),
    (13, "daytime"),
    (15, "netstat"),
    (17, "QOTD"),
    (19, "chargen"),
    (20, "FTP"),
    (21, "FTP"),
    (22, "SSH"),
    (23, "Telnet"),
    (25, "SMTP"),
    (37, "the Time protocol"),
    (42, "WINS"),
    (43, "WHOIS"),
    (53, "DNS"),
    (69, "TFTP"),
    (77, "RJE"),
    (79, "Finger"),
    (87, "TTYLINK"),
    (95, "SUPDUP"),
    (101, "the host name server"),
    (102, "ISO-TSAP"),
    (103, "GPPITNP"),
    (104, "ACR-NEMA"),
    (109, "POP2"),
    (110, "POP3"),
    (111, "RPC portmapper"),
    (113, "Ident"),
    (115, "SFTP"),
    (117, "UUCP"),
    (119, "NNTP"),
    (123, "NTP"),
    (135, "Microsoft RPC"),
    (137, "NetBIOS"),
    (139, "NetBIOS"),
    (143, "IMAP"),
    (161, "SNMP"),
    (179, "BGP"),
    (389, "LDAP"),
    (427, "SLP"),
    (445, "SMB"),
    (465, "SMTP"),
    (512, "rexec"),
    (513, "rlogin"),
    (514, "rsh"),
    (515, "LPD printing"),
    (526, "tempo"),
    (530, "RPC"),
    (531, "chat"),
    (532, "netnews"),
    (540, "UUCP"),
    (548, "AFP"),
    (554, "RTSP"),
    (556, "RFS"),
    (563, "NNTP"),
    (587, "SMTP"),
    (601, "syslog"),
    (636, "LDAP"),
    (873, "rsync"),
    (989, "FTP"),
    (990, "FTP"),
    (993, "IMAP"),
    (995, "POP3"),
    (1719, "H.323"),
    (1720, "H.323"),
    (1723, "PPTP"),
    (2049, "NFS"),
    (2375, "Docker"),
    (2376, "Docker"),
    (3306, "MySQL"),
    (3389, "RDP"),
    (3659, "Apple SASL"),
    (4045, "NFS locks"),
    (4190, "ManageSieve"),
    (5060, "SIP"),
    (5061, "SIP"),
    (5432, "PostgreSQL"),
    (6000, "X11"),
    (6379, "Redis"),
    (6566, "SANE"),
    (6665, "IRC"),
    (6666, "IRC"),
    (6667, "IRC"),
    (6668, "IRC"),
    (6669, "IRC"),
    (6679, "IRC"),
    (6697, "IRC"),
    (10080, "Amanda"),
    (11211, "memcached"),
    (27017, "MongoDB"),
];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::FetchTarget;
    use crate::private_hosts::PrivateHosts;

    fn private(entries: &[&str]) -> PrivateHosts {
        PrivateHosts::parse_with_ranges(&entries.iter().map(|entry| (*entry).to_owned()).collect::<Vec<_>>()).unwrap()
    }

    #[track_caller]
    fn assert_target(url: &str, authority: &str, path: &str) {
        let target = FetchTarget::parse(url, &PrivateHosts::default()).unwrap_or_else(|error| panic!("{url}: {error}"));
        assert_eq!((target.authority().as_str(), target.path_and_query()), (authority, path), "{url}");
    }

    #[track_caller]
    fn assert_refused(url: &str, why: &str) {
        match FetchTarget::parse(url, &PrivateHosts::default()) {
            Ok(target) => panic!("{url} is taken for {target}"),
            Err(error) => assert!(error.to_string().contains(why), "{url}: {error}"),
        }
    }

    #[test]
    fn a_url_is_read_as_browsers_read_it() {
        assert_target("https://docs.rs", "docs.rs:443", "/");
        assert_target("http://docs.rs/a?b=c#d", "docs.rs:80", "/a?b=c");
        assert_target("HTTPS://Docs.RS./a/../b", "docs.rs:443", "/b");
        assert_target("https://docs.rs:8443/%2e%2e/x", "docs.rs:8443", "/x");
        assert_target("https://b\u{fc}cher.de/", "xn--bcher-kva.de:443", "/");
        assert_target("https://1.1.1.1/", "1.1.1.1:443", "/");
        assert_target("https://0x01010101/", "1.1.1.1:443", "/");
        assert_target("https://[2606:4700::1111]/", "[2606:4700::1111]:443", "/");
        assert_target("https://a_b.example.org/", "a_b.example.org:443", "/");
        assert_target("https://docs\u{3002}rs/", "docs.rs:443", "/");
    }

    #[test]
    fn a_url_that_is_not_http_is_refused() {
        for (url, why) in [
            ("", "must begin"),
            ("docs.rs", "must begin"),
            ("//docs.rs/", "must begin"),
            ("ftp://docs.rs/", "must begin"),
            ("file:///etc/passwd", "must begin"),
            ("data:text/html,x", "must begin"),
            ("javascript:alert(1)", "must begin"),
            ("gopher://docs.rs/", "must begin"),
            ("ws://docs.rs/", "must begin"),
            ("jar:http://docs.rs/", "must begin"),
            ("http:docs.rs", "no host"),
            ("http:/docs.rs", "no host"),
            ("http://", "no host"),
            ("http:///x", "no host"),
            ("http://?x", "no host"),
            ("http://#x", "no host"),
            ("https://:80/", "is not valid"),
            ("http://a b.org/", "not contain spaces"),
            (" http://docs.rs/", "not contain spaces"),
            ("http://docs.rs/\n", "not contain spaces"),
            ("http://docs.rs/\r\nHost: x", "not contain spaces"),
            ("http://docs.rs\\@evil.org/", "backslashes"),
            ("http://docs.rs/\u{0}", "control"),
            ("http://docs.rs%00.evil.org/", "is not valid"),
            ("http://docs.rs%0d%0a/", "is not valid"),
            ("http://user@docs.rs/", "user name or password"),
            ("http://@docs.rs/", "user name or password"),
            ("http://:@docs.rs", "user name or password"),
            ("HTTP://@docs.rs?a", "user name or password"),
            ("http://user:secret@docs.rs/", "user name or password"),
            ("http://:secret@docs.rs/", "user name or password"),
            ("http://docs.rs@127.0.0.1/", "user name or password"),
            ("http://docs.rs:0/", "port 0"),
            ("http://docs.rs:99999/", "is not valid"),
            ("http://docs.rs:x/", "is not valid"),
            ("http://[docs.rs]/", "is not valid"),
            ("http://[fe80::1%25lo]/", "is not valid"),
            ("http://[::1/", "is not valid"),
            ("http://1.2.3.4.5/", "is not valid"),
            ("http://256.1.1.1/", "is not valid"),
            ("http://0x100000000/", "is not valid"),
            ("http://a..b.org/", "labels"),
            ("http://.docs.rs/", "labels"),
            ("http://-a.org/", "labels"),
            ("http://a!b.org/", "labels"),
        ] {
            assert_refused(url, why);
        }
        assert_refused(&format!("http://docs.rs/{}", "a".repeat(9000)), "8192");
        assert_refused(&format!("http://{}.org/", "a".repeat(64)), "labels");
        assert_refused(&format!("http://{}org/", "abc.".repeat(80)), "labels");
    }

    #[test]
    fn every_spelling_of_an_address_that_is_not_public_is_refused() {
        for url in [
            "http://127.0.0.1/",
            "http://127.1/",
            "http://127.0.1/",
            "http://2130706433/",
            "http://0x7f000001/",
            "http://0x7f.1/",
            "http://0X7F.0.0.1/",
            "http://0177.0.0.1/",
            "http://017700000001/",
            "http://0177.0x0.0.1/",
            "http://127.0.0.1./",
            "http://%31%32%37.0.0.1/",
            "http://\u{ff11}\u{ff12}\u{ff17}.0.0.1/",
            "http://127\u{3002}0\u{3002}0\u{3002}1/",
            "http://\u{2460}27.0.0.1/",
            "http://[::1]/",
            "http://[0:0:0:0:0:0:0:1]/",
        ] {
            assert_refused(url, "this machine");
        }
        for (url, why) in [
            ("http://0/", "unspecified"),
            ("http://0.0.0.0/", "unspecified"),
            ("http://[::]/", "unspecified"),
            ("http://[::ffff:127.0.0.1]/", "IPv4"),
            ("http://[::ffff:7f00:1]/", "IPv4"),
            ("http://[::127.0.0.1]/", "IPv4"),
            ("http://[64:ff9b::7f00:1]/", "IPv4"),
            ("http://[2002:7f00:1::]/", "IPv4"),
            ("http://169.254.169.254/latest/meta-data/", "metadata"),
            ("http://0xa9fea9fe/", "metadata"),
            ("http://2852039166/", "metadata"),
            ("http://0251.0376.0251.0376/", "metadata"),
            ("http://[fd00:ec2::254]/", "metadata"),
            ("http://100.100.100.200/", "metadata"),
            ("http://168.63.129.16/", "metadata"),
            ("http://10.1/", "private"),
            ("http://192.168.257/", "private"),
            ("http://172.16.0.1:8080/", "private"),
            ("http://[fc00::1]/", "private"),
            ("http://[fe80::1]/", "link"),
            ("http://100.64.0.1/", "carrier"),
            ("http://224.0.0.1/", "multicast"),
            ("http://255.255.255.255/", "reserved"),
        ] {
            assert_refused(url, why);
        }
    }

    #[test]
    fn names_of_other_networks_are_refused() {
        for (url, why) in [
            ("http://localhost/", "no dot"),
            ("http://LOCALHOST./", "no dot"),
            ("http://intranet/", "no dot"),
            ("http://a.localhost/", "this machine"),
            ("http://printer.local/", "link-local"),
            ("http://metadata.google.internal/", "private network"),
            ("http://Metadata.Google.Internal./", "private network"),
            ("http://router.home.arpa/", "home network"),
            ("http://nas.lan/", "private network"),
            ("http://wiki.corp/", "private network"),
            ("http://x.test/", "tests"),
            ("http://x.onion/", "not a DNS name"),
            ("http://1.0.0.127.in-addr.arpa/", "address"),
        ] {
            assert_refused(url, why);
        }
        assert_target("https://local.example.org/", "local.example.org:443", "/");
        assert_target("https://mylocal.com/", "mylocal.com:443", "/");
    }

    #[test]
    fn ports_of_other_services_are_refused() {
        for port in [21, 22, 25, 53, 110, 445, 2375, 3306, 5432, 6379, 6667, 11211] {
            assert_refused(&format!("http://docs.rs:{port}/"), "is not allowed");
        }
        assert_target("http://docs.rs:8080/", "docs.rs:8080", "/");
    }

    #[test]
    fn a_user_s_exception_covers_that_host_and_that_port() {
        let allowed = private(&[
            "127.0.0.1:8080",
            "wiki.internal:80",
            "[::1]:9000",
            "searx:8888",
            "169.254.169.254:80",
            "10.0.0.1:22",
        ]);
        for url in [
            "http://127.0.0.1:8080/",
            "http://0x7f.1:8080/",
            "http://wiki.internal/",
            "http://[::1]:9000/",
            "http://searx:8888/",
            "http://10.0.0.1:22/",
        ] {
            FetchTarget::parse(url, &allowed).unwrap_or_else(|error| panic!("{url}: {error}"));
        }
        for url in [
            "http://127.0.0.1/",
            "http://127.0.0.2:8080/",
            "http://wiki.internal:8080/",
            "http://a.wiki.internal/",
            "http://localhost:8080/",
        ] {
            assert!(FetchTarget::parse(url, &allowed).is_err(), "{url}");
        }
        let metadata = FetchTarget::parse("http://169.254.169.254/", &allowed).unwrap();
        assert!(metadata.check_address("169.254.169.254".parse().unwrap(), &allowed).is_err());
    }

    #[test]
    fn a_redirect_is_read_as_strictly() {
        let (none, target) =
            (PrivateHosts::default(), FetchTarget::parse("https://docs.rs/a/b", &PrivateHosts::default()).unwrap());
        assert_eq!(target.join("../c?d", &none).unwrap().to_string(), "https://docs.rs/c?d");
        assert_eq!(target.join("//other.org/x", &none).unwrap().to_string(), "https://other.org/x");
        for inward in [
            "http://127.0.0.1/",
            "//127.1/x",
            "http://[::1]/",
            "file:///etc/passwd",
            "javascript:x",
            "\\\\evil",
            "http://a@b.org/",
            "http://@b.org/",
            "//@b.org",
            "https:@b.org",
            "http:////:@b.org#a",
            "http://localhost/",
            "http://169.254.169.254/",
            "https://docs.rs:22/",
        ] {
            assert!(target.join(inward, &none).is_err(), "{inward}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_text_makes_it_panic(text in "(https?:)?/{0,3}[-a-z0-9.:@%\\[\\]/\\\\?# \u{ff10}\u{3002}]{0,40}") {
            if let Ok(target) = FetchTarget::parse(&text, &PrivateHosts::default()) {
                // An accepted target is accepted again, with the same result.
                let again = FetchTarget::parse(&target.to_string(), &PrivateHosts::default()).unwrap();
                prop_assert_eq!(again.authority(), target.authority());
            }
        }

        #[test]
        fn an_address_in_any_number_format_is_that_address(a: u8, b: u8, c: u8, d: u8, form in 0..5) {
            let number = u32::from_be_bytes([a, b, c, d]);
            let host = match form {
                0 => format!("{a}.{b}.{c}.{d}"),
                1 => format!("{number}"),
                2 => format!("{number:#x}"),
                3 => format!("0{number:o}"),
                _ => format!("0x{a:x}.0{b:o}.{}", u16::from_be_bytes([c, d])),
            };
            let taken = FetchTarget::parse(&format!("http://{host}/"), &PrivateHosts::default());
            let public = ringfence_net::check_public([a, b, c, d].into()).is_ok();
            prop_assert_eq!(taken.is_ok(), public);
            if let Ok(target) = taken {
                prop_assert_eq!(target.authority(), format!("{a}.{b}.{c}.{d}:80"));
            }
        }
    }
}
