//! Host and Origin validation of HTTP requests, and reverse proxies.
//!
//! A request names this server by a loopback name, by the literal address that it listens on, or by `--public-url`, and a
//! page that calls is of the request's own origin, of the public URL's or of one that `--origin` names. Everything else
//! may come from a page that the user never trusted: by DNS rebinding, or from another port of this host. Headers of a
//! proxy count only where the connection comes from a `--trusted-proxy`.
//!
//! Not here: tokens (`request_auth.rs`), and how a refusal is worded (`api/auth.rs`, `mcp/http.rs`).

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;

use axum::http::header::{HOST, ORIGIN};
use axum::http::{HeaderMap, Uri};

/// Names of this machine that no DNS server can hand out for another one.
const LOOPBACK: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

/// The URL under which browsers and clients reach the server through a proxy: a scheme, a host and perhaps a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PublicUrl {
    scheme: String,
    /// In lower case, without the scheme's own port.
    authority: String,
}

impl PublicUrl {
    /// As `Origin` headers have it.
    pub(crate) fn origin(&self) -> String {
        format!("{}://{}", self.scheme, self.authority)
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        self.scheme == "https"
    }

    fn is_host(&self, host: &str) -> bool {
        bare_authority(&self.scheme, host).eq_ignore_ascii_case(&self.authority)
    }
}

impl FromStr for PublicUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || "use a scheme and a host only, such as `https://rf.example.org`".to_owned();
        let uri: Uri = text.parse().map_err(|_| invalid())?;
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else { return Err(invalid()) };
        let is_bare = matches!(uri.path(), "" | "/") && uri.query().is_none() && !text.contains(['#', '@', '*']);
        if !is_bare || !matches!(scheme, "http" | "https") || authority.host().is_empty() {
            return Err(invalid());
        }
        let authority = bare_authority(scheme, authority.as_str()).to_ascii_lowercase();
        Ok(Self { scheme: scheme.to_owned(), authority })
    }
}

/// Without the port that the scheme has anyway.
fn bare_authority<'a>(scheme: &str, authority: &'a str) -> &'a str {
    let own = if scheme == "https" { ":443" } else { ":80" };
    authority.strip_suffix(own).unwrap_or(authority)
}

/// A range of addresses, such as `10.0.0.0/8` or `127.0.0.1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CidrBlock {
    /// As IPv6, with IPv4 mapped into it.
    base: u128,
    bits: u32,
}

impl CidrBlock {
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        let mask = u128::MAX.checked_shl(128 - self.bits).unwrap_or(0);
        mapped(address) & mask == self.base & mask
    }
}

impl FromStr for CidrBlock {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || "use an IP address or a CIDR block, such as `10.0.0.0/8`".to_owned();
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse::<u32>().map_err(|_| invalid())?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| invalid())?;
        let own_bits = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(own_bits);
        match bits <= own_bits {
            true => Ok(Self { base: mapped(address), bits: bits + 128 - own_bits }),
            false => Err(invalid()),
        }
    }
}

fn mapped(address: IpAddr) -> u128 {
    let address: Ipv6Addr = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    address.to_bits()
}

/// The proxies whose headers count.
#[derive(Clone, Debug, Default)]
pub(crate) struct TrustedProxies(pub(crate) Arc<[CidrBlock]>);

impl TrustedProxies {
    pub(crate) fn contain(&self, address: IpAddr) -> bool {
        self.0.iter().any(|block| block.contains(address))
    }
}

/// Addresses of the server, and origins of pages that may use it.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestSourceOptions {
    pub(crate) public_url: Option<PublicUrl>,
    /// Pages that may call, besides those of this server.
    pub(crate) origins: Vec<String>,
    pub(crate) proxies: TrustedProxies,
}

/// Refusal of a request by its host or origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RequestSourceError {
    #[error("unknown host name; set it with `serve --public-url`")]
    Host,
    #[error("requests from this origin are not allowed; allow it with `serve --origin`")]
    Origin,
}

/// Checks of the host and origin of requests.
#[derive(Clone, Debug)]
pub(crate) struct RequestSourceCheck {
    /// The literal address that the server listens on.
    listen: Option<String>,
    options: RequestSourceOptions,
}

impl RequestSourceCheck {
    pub(crate) fn new(listen: SocketAddr, options: RequestSourceOptions) -> Self {
        Self { listen: (!listen.ip().is_unspecified()).then(|| listen.to_string()), options }
    }

    /// Fails for a request that a page of another site may have sent. The peer is the other end of the connection.
    pub(crate) fn check(&self, headers: &HeaderMap, peer: Option<IpAddr>) -> Result<(), RequestSourceError> {
        let forwarded = self.forwarded(headers, peer);
        let host = single_header(headers, HOST.as_str()).ok_or(RequestSourceError::Host)?;
        let named = forwarded.host.as_deref();
        if !self.is_own_host(host) || named.is_some_and(|named| !self.is_own_host(named)) {
            return Err(RequestSourceError::Host);
        }
        let own = format!("{}://{}", forwarded.proto.as_deref().unwrap_or("http"), named.unwrap_or(host));
        let is_known = |origin: &str| {
            origin.eq_ignore_ascii_case(&own)
                || self.options.origins.iter().any(|known| known == origin)
                || self.options.public_url.as_ref().is_some_and(|url| url.origin() == origin)
        };
        let mut origins = headers.get_all(ORIGIN).iter();
        match origins.all(|origin| origin.to_str().is_ok_and(is_known)) {
            true => Ok(()),
            false => Err(RequestSourceError::Origin),
        }
    }

    /// The client of a request: the peer, or who a trusted proxy says it is.
    pub(crate) fn client(&self, headers: &HeaderMap, peer: Option<IpAddr>) -> Option<IpAddr> {
        self.forwarded(headers, peer).client.or(peer)
    }

    fn is_own_host(&self, host: &str) -> bool {
        let (name, port) = match host.rsplit_once(':') {
            Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
            _ => (host, None),
        };
        let is_port = port.is_none_or(|port| port.bytes().all(|c| c.is_ascii_digit()) && port.parse::<u16>().is_ok());
        let is_loopback = LOOPBACK.iter().any(|known| known.eq_ignore_ascii_case(name));
        (is_loopback && is_port)
            || self.listen.as_deref() == Some(host)
            || self.options.public_url.as_ref().is_some_and(|url| url.is_host(host))
    }

    /// Headers of a trusted proxy.
    fn forwarded(&self, headers: &HeaderMap, peer: Option<IpAddr>) -> ForwardedHeaders {
        match peer.is_some_and(|peer| self.options.proxies.contain(peer)) {
            true => ForwardedHeaders::read(headers, &self.options.proxies),
            false => ForwardedHeaders::default(),
        }
    }
}

/// The headers of a proxy.
#[derive(Debug, Default)]
struct ForwardedHeaders {
    client: Option<IpAddr>,
    proto: Option<String>,
    host: Option<String>,
}

impl ForwardedHeaders {
    fn read(headers: &HeaderMap, proxies: &TrustedProxies) -> Self {
        let standard = elements(headers, "forwarded");
        let last_named = |name: &str| standard.last().and_then(|element| parameter(element, name));
        let last_of = |name: &str| elements(headers, name).pop();
        // The nearest proxy comes last; elements before the first untrusted one can be forged.
        let mut hops: Vec<String> = standard.iter().filter_map(|element| parameter(element, "for")).collect();
        hops.extend(elements(headers, "x-forwarded-for"));
        let client = hops.iter().rev().map_while(|hop| address(hop)).find(|hop| !proxies.contain(*hop));
        Self {
            client,
            proto: last_named("proto").or_else(|| last_of("x-forwarded-proto")).map(|proto| proto.to_ascii_lowercase()),
            host: last_named("host").or_else(|| last_of("x-forwarded-host")),
        }
    }
}

/// The elements of a list that may stand in several headers.
fn elements(headers: &HeaderMap, name: &str) -> Vec<String> {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(|element| element.trim().to_owned()).collect()
}

fn parameter(element: &str, name: &str) -> Option<String> {
    let mut pairs = element.split(';').filter_map(|pair| pair.trim().split_once('='));
    let (_, value) = pairs.find(|(key, _)| key.trim().eq_ignore_ascii_case(name))?;
    Some(value.trim().trim_matches('"').to_owned())
}

/// An address with or without a port, as proxies write it.
fn address(text: &str) -> Option<IpAddr> {
    let bare = || text.strip_prefix('[')?.strip_suffix(']')?.parse().ok();
    text.parse().ok().or_else(|| text.parse::<SocketAddr>().ok().map(|address| address.ip())).or_else(bare)
}

/// The value of a header that is there exactly once.
fn single_header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let mut all = headers.get_all(name).iter();
    let first = all.next()?;
    all.next().is_none().then(|| first.to_str().ok())?
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use axum::http::{HeaderMap, HeaderName, HeaderValue};

    use super::{CidrBlock, PublicUrl, RequestSourceCheck, RequestSourceError, RequestSourceOptions, TrustedProxies};

    const PROXY: &str = "10.1.2.3";
    const OTHER: &str = "192.0.2.9";

    fn check_of(public_url: Option<&str>) -> RequestSourceCheck {
        let options = RequestSourceOptions {
            public_url: public_url.map(|url| url.parse().unwrap()),
            origins: vec!["http://a.example".to_owned()],
            proxies: TrustedProxies(["10.0.0.0/8".parse().unwrap()].into()),
        };
        RequestSourceCheck::new("127.0.0.1:7431".parse().unwrap(), options)
    }

    fn headers(lines: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for line in lines.lines() {
            let (name, value) = line.split_once(": ").unwrap();
            let name: HeaderName = name.parse().unwrap();
            headers.append(name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    #[track_caller]
    fn check(rules: &RequestSourceCheck, peer: &str, lines: &str, expected: Result<(), RequestSourceError>) {
        let peer: IpAddr = peer.parse().unwrap();
        assert_eq!(rules.check(&headers(lines), Some(peer)), expected, "{lines}");
    }

    /// Holds whether there is a public URL or not.
    #[track_caller]
    fn check_always(lines: &str, expected: Result<(), RequestSourceError>) {
        for url in [None, Some("https://rf.example.org"), Some("http://rf.example.org:8080/")] {
            check(&check_of(url), "127.0.0.1", lines, expected);
        }
    }

    #[test]
    fn loopback_names_are_ours_by_any_port_and_other_names_are_not() {
        for host in ["localhost:7431", "LOCALHOST", "127.0.0.1:80", "[::1]:8080", "[::1]", "localhost:1"] {
            check_always(&format!("host: {host}"), Ok(()));
        }
        let others = [
            "evil.example:7431",
            "127.0.0.1:7431@evil",
            "127.0.0.1.evil:7431",
            "localhost.evil",
            "localhost:7431:1",
            "localhost:x",
            "localhost:99999",
            "[::1",
            "::1",
            "0.0.0.0:7431",
            "rf.example.org.evil",
            "a.rf.example.org",
            "rf.example.org:1",
        ];
        for host in others {
            check_always(&format!("host: {host}"), Err(RequestSourceError::Host));
        }
        check_always("accept: x", Err(RequestSourceError::Host));
        check_always("host: localhost\nhost: evil.example", Err(RequestSourceError::Host));
    }

    #[test]
    fn a_page_is_of_the_request_s_own_origin_or_a_named_one_and_never_of_another_port() {
        for (host, origin) in [
            ("localhost:7431", "http://localhost:7431"),
            ("127.0.0.1:8080", "http://127.0.0.1:8080"),
            ("localhost:7431", "http://a.example"),
        ] {
            check_always(&format!("host: {host}\norigin: {origin}"), Ok(()));
        }
        for (host, origin) in [
            ("localhost:7431", "null"),
            ("localhost:7431", "http://evil"),
            ("localhost:7431", "https://localhost:7431"),
            ("localhost:7431", "http://localhost:3000"),
            ("localhost:7431", "http://localhost"),
            ("localhost:7431", "http://127.0.0.1:7431"),
            ("localhost:7431", "http://a.example\norigin: http://evil"),
            ("localhost:7431", "https://rf.example.org:444"),
        ] {
            check_always(&format!("host: {host}\norigin: {origin}"), Err(RequestSourceError::Origin));
        }
    }

    #[test]
    fn the_public_url_is_a_name_and_an_origin_of_ours_exactly() {
        let rules = check_of(Some("https://RF.example.org:443"));
        for lines in [
            "host: rf.example.org",
            "host: RF.EXAMPLE.ORG:443",
            "host: rf.example.org\norigin: https://rf.example.org",
            "host: 127.0.0.1:7431\norigin: https://rf.example.org",
        ] {
            check(&rules, OTHER, lines, Ok(()));
        }
        check(
            &rules,
            OTHER,
            "host: rf.example.org\norigin: https://rf.example.org:8443",
            Err(RequestSourceError::Origin),
        );
        check(&rules, OTHER, "host: rf.example.org:80", Err(RequestSourceError::Host));
        check(&check_of(None), OTHER, "host: rf.example.org", Err(RequestSourceError::Host));
    }

    #[test]
    fn headers_of_a_proxy_count_only_from_a_trusted_one() {
        let rules = check_of(Some("https://rf.example.org"));
        let forged = "host: rf.example.org\nx-forwarded-proto: https\nx-forwarded-host: localhost:1\n\
                      origin: https://localhost:1";
        check(&rules, OTHER, forged, Err(RequestSourceError::Origin));
        check(&rules, PROXY, forged, Ok(()));
        // They never make a name ours that is not.
        check(&rules, PROXY, "host: evil\nx-forwarded-host: rf.example.org", Err(RequestSourceError::Host));
        check(&rules, PROXY, "host: rf.example.org\nx-forwarded-host: evil", Err(RequestSourceError::Host));
        check(&rules, PROXY, "host: localhost\nforwarded: host=evil;proto=https", Err(RequestSourceError::Host));
        let client =
            |peer: &str, lines: &str| rules.client(&headers(lines), Some(peer.parse().unwrap())).unwrap().to_string();
        assert_eq!(client(OTHER, "x-forwarded-for: 203.0.113.5"), OTHER);
        assert_eq!(client(PROXY, "x-forwarded-for: 198.51.100.1, 203.0.113.5, 10.9.9.9"), "203.0.113.5");
        assert_eq!(client(PROXY, "forwarded: for=\"[2001:db8::1]:9\";proto=https"), "2001:db8::1");
        assert_eq!(client(PROXY, "x-forwarded-for: unknown"), PROXY);
    }

    #[test]
    fn invalid_urls_and_blocks_are_refused() {
        for text in ["rf.example.org", "ftp://x", "https://x/path", "https://u@x", "https://x?q", "https://", "*"] {
            assert!(text.parse::<PublicUrl>().is_err(), "{text}");
        }
        for text in ["", "10.0.0.0/33", "x/8", "10.0.0.0/", "::/129"] {
            assert!(text.parse::<CidrBlock>().is_err(), "{text}");
        }
        let block: CidrBlock = "fd00::/8".parse().unwrap();
        assert!(block.contains("fd12::1".parse().unwrap()) && !block.contains("fe80::1".parse().unwrap()));
        assert!("0.0.0.0/0".parse::<CidrBlock>().unwrap().contains("8.8.8.8".parse().unwrap()));
        assert!(!"0.0.0.0/0".parse::<CidrBlock>().unwrap().contains("2001:db8::1".parse().unwrap()));
    }
}
