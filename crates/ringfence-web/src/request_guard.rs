//! Request guard: judges the requests of one intercepted host, and puts credentials in the place of their placeholders.
//!
//! A placeholder is replaced only where a header is exactly that, on a path of its binding. Anywhere else it is a
//! tripwire: the request is refused. Each request names the judged host, and only that.
//!
//! Not here: bodies (`request_body.rs`), answers (`answer_filter.rs`) and connections (`interceptor.rs`).

use std::sync::Arc;

use base64::Engine as _;
use base64::alphabet::STANDARD as STANDARD_ALPHABET;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use base64::prelude::BASE64_STANDARD;
use hyper::header::{CONNECTION, HOST, HeaderName, HeaderValue, UPGRADE};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, StatusCode, Version};
use zeroize::Zeroizing;

use crate::credential::{
    BoundHost, CredentialBinding, CredentialError, CredentialHeader, HostPathRule, SecretText, parse_patterns,
};
use crate::leak_scanner::LeakPatterns;
use crate::oauth_login::OAuthLogin;
use crate::request_path::{PathPattern, RequestPath};

/// Base64 as clients write it, with or without padding.
const BASIC: GeneralPurpose = GeneralPurpose::new(
    &STANDARD_ALPHABET,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The rules of one host.
#[derive(Debug)]
pub(crate) struct HostGuard {
    host: BoundHost,
    bindings: Vec<HostBinding>,
    /// Logins whose token endpoint is on this host.
    token_endpoints: Vec<Arc<OAuthLogin>>,
    /// Requests that a person is asked about.
    asked: Vec<(Method, PathPattern)>,
    /// Where there are any, a request must be one that a rule names.
    rules: Vec<PathSet>,
    /// Of all credentials, also those for other hosts.
    placeholders: LeakPatterns,
}

/// A credential for this host.
#[derive(Debug)]
struct HostBinding {
    name: String,
    paths: PathSet,
    headers: Vec<CredentialHeader>,
    secret: BoundSecret,
}

/// What takes the place of a placeholder.
#[derive(Debug)]
enum BoundSecret {
    Fixed {
        placeholder: String,
        secret: SecretText,
    },
    /// The access token of a login.
    Login(Arc<OAuthLogin>),
}

impl BoundSecret {
    /// The secret, if the text is a placeholder of it.
    fn for_text(&self, text: &str) -> Result<Option<SecretText>, RequestRefusal> {
        match self {
            Self::Fixed { placeholder, secret } => Ok((text == placeholder).then(|| secret.clone())),
            Self::Login(login) => {
                login.access_token(text).map_err(|error| RequestRefusal::new(StatusCode::FORBIDDEN, error.to_string()))
            }
        }
    }
}

#[derive(Debug)]
struct PathSet {
    /// Empty: all.
    paths: Vec<PathPattern>,
    websocket_paths: Vec<PathPattern>,
}

impl PathSet {
    fn allows(&self, path: Option<&RequestPath>) -> bool {
        self.paths.is_empty() || path.is_some_and(|path| self.paths.iter().any(|pattern| pattern.matches(path)))
    }

    fn allows_websocket(&self, path: Option<&RequestPath>) -> bool {
        path.is_some_and(|path| self.websocket_paths.iter().any(|pattern| pattern.matches(path)))
    }
}

/// A request that may be sent.
#[derive(Debug)]
pub(crate) struct JudgedRequest {
    /// Name of the credential that it has now.
    pub(crate) credential: Option<String>,
    pub(crate) is_websocket: bool,
    /// The login whose tokens it is for. The request is still that of the program.
    pub(crate) token_exchange: Option<Arc<OAuthLogin>>,
    /// Whether a person has to be asked about it.
    pub(crate) is_asked: bool,
}

/// A request that is not sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RequestRefusal {
    pub(crate) status: StatusCode,
    pub(crate) reason: String,
    /// Where a placeholder was, if that is the reason.
    pub(crate) tripwire: Option<String>,
}

impl RequestRefusal {
    pub(crate) fn new(status: StatusCode, reason: impl Into<String>) -> Self {
        Self { status, reason: reason.into(), tripwire: None }
    }

    pub(crate) fn tripwire(place: String) -> Self {
        let reason = format!(
            "the request has the placeholder of a credential in its {place}; it is replaced only in the headers and paths of its binding"
        );
        Self { status: StatusCode::FORBIDDEN, reason, tripwire: Some(place) }
    }
}

impl HostGuard {
    pub(crate) fn new(
        host: BoundHost,
        (bindings, logins): (&[CredentialBinding], &[Arc<OAuthLogin>]),
        rules: &[HostPathRule],
        placeholders: &LeakPatterns,
    ) -> Result<Self, CredentialError> {
        let token_endpoints = logins.iter().filter(|login| login.has_token_endpoint_at(&host)).cloned().collect();
        let (bindings_here, asked, placeholders) = (Vec::new(), Vec::new(), placeholders.clone());
        let mut guard = Self { host, bindings: bindings_here, token_endpoints, asked, rules: Vec::new(), placeholders };
        for binding in bindings {
            for asked in &binding.asked {
                if guard.is_bound(&binding.name, std::slice::from_ref(&asked.host))? {
                    let method = Method::from_bytes(asked.method.as_bytes())
                        .map_err(|_| CredentialError::Method(binding.name.clone(), asked.method.clone()))?;
                    let mut patterns = parse_patterns(&binding.name, std::slice::from_ref(&asked.path))?;
                    guard.asked.extend(patterns.pop().map(|pattern| (method, pattern)));
                }
            }
            if guard.is_bound(&binding.name, &binding.hosts)? {
                guard.bindings.push(HostBinding {
                    name: binding.name.clone(),
                    paths: path_set(&binding.name, &binding.paths, &binding.websocket_paths)?,
                    headers: binding.headers.clone(),
                    secret: BoundSecret::Fixed {
                        placeholder: binding.placeholder.clone(),
                        secret: binding.secret.clone(),
                    },
                });
            }
        }
        for login in logins {
            let binding = &login.binding;
            if guard.is_bound(&binding.name, &binding.hosts)? {
                guard.bindings.push(HostBinding {
                    name: binding.name.clone(),
                    paths: path_set(&binding.name, &binding.paths, &binding.websocket_paths)?,
                    headers: binding.headers.clone(),
                    secret: BoundSecret::Login(Arc::clone(login)),
                });
            }
        }
        for rule in rules {
            if guard.is_bound(&rule.host, std::slice::from_ref(&rule.host))? {
                guard.rules.push(path_set(&rule.host, &rule.paths, &rule.websocket_paths)?);
            }
        }
        Ok(guard)
    }

    fn is_bound(&self, owner: &str, hosts: &[String]) -> Result<bool, CredentialError> {
        hosts.iter().try_fold(false, |found, host| Ok(found || BoundHost::parse(owner, host)? == self.host))
    }

    /// Judges a request, and gives it the credential that it is for.
    pub(crate) fn judge(&self, head: &mut Parts) -> Result<JudgedRequest, RequestRefusal> {
        self.check_names(head)?;
        if matches!(head.method, Method::CONNECT | Method::TRACE) {
            let reason = format!("the method {} is not allowed on this host", head.method);
            return Err(RequestRefusal::new(StatusCode::METHOD_NOT_ALLOWED, reason));
        }
        let target = head.uri.path_and_query().map_or("", |target| target.as_str());
        if self.placeholders.are_in(target.as_bytes()) {
            return Err(RequestRefusal::tripwire("URL".to_owned()));
        }
        let is_websocket = is_websocket(head);
        let path = self.check_path(head.uri.path(), is_websocket)?;
        let endpoint = self.token_endpoints.iter().find(|login| login.is_token_endpoint(&self.host, path.as_ref()));
        if endpoint.is_some() && head.method != Method::POST {
            let reason = "a token endpoint takes the method POST only";
            return Err(RequestRefusal::new(StatusCode::METHOD_NOT_ALLOWED, reason));
        }
        let credential = match endpoint {
            Some(_) => None,
            None => self.replace_placeholder(&mut head.headers, path.as_ref(), is_websocket)?,
        };
        let is_asked = self.is_asked(head)?;
        match placeholder_header(&head.headers, &self.placeholders) {
            Some(place) => Err(RequestRefusal::tripwire(place)),
            None => Ok(JudgedRequest { credential, is_websocket, token_exchange: endpoint.cloned(), is_asked }),
        }
    }

    /// Whether a person is to be asked. A path that could be one of several is refused where the method is asked about.
    fn is_asked(&self, head: &Parts) -> Result<bool, RequestRefusal> {
        let mut patterns = self.asked.iter().filter(|(method, _)| *method == head.method).peekable();
        if patterns.peek().is_none() {
            return Ok(false);
        }
        let path = RequestPath::parse(head.uri.path()).map_err(ambiguous_path)?;
        Ok(patterns.any(|(_, pattern)| pattern.matches(&path)))
    }

    /// Fails unless every name in the request is that of the host.
    fn check_names(&self, head: &Parts) -> Result<(), RequestRefusal> {
        let bad = |reason| Err(RequestRefusal::new(StatusCode::BAD_REQUEST, reason));
        let is_http2 = head.version == Version::HTTP_2;
        let hosts: Vec<&HeaderValue> = head.headers.get_all(HOST).iter().collect();
        if hosts.len() > 1 || (hosts.is_empty() && !is_http2) {
            return bad("the request must have one `Host`");
        }
        if head.uri.scheme_str().is_some_and(|scheme| scheme != "https") {
            return bad("the request must be for `https`");
        }
        let authority = head.uri.authority().map(|authority| authority.as_str().as_bytes());
        if authority.is_none() && is_http2 {
            return bad("the request must have an `:authority`");
        }
        let mut names = hosts.into_iter().map(HeaderValue::as_bytes).chain(authority);
        match names.all(|name| self.is_host(name)) {
            true => Ok(()),
            false => {
                let reason = format!("this connection is for `{}` only", self.host.name);
                Err(RequestRefusal::new(StatusCode::MISDIRECTED_REQUEST, reason))
            }
        }
    }

    fn is_host(&self, authority: &[u8]) -> bool {
        let Ok(authority) = std::str::from_utf8(authority) else { return false };
        let (name, port) = authority.split_once(':').unwrap_or((authority, ""));
        let is_port = match port {
            // The port of a connection is known without it.
            "" => !authority.ends_with(':'),
            port => port == self.host.port.to_string(),
        };
        is_port && name.eq_ignore_ascii_case(&self.host.name)
    }

    /// The path, where a rule needs it.
    fn check_path(&self, raw: &str, is_websocket: bool) -> Result<Option<RequestPath>, RequestRefusal> {
        let has_rules = !self.rules.is_empty()
            || !self.token_endpoints.is_empty()
            || self.bindings.iter().any(|binding| !binding.paths.paths.is_empty());
        if !has_rules && !is_websocket {
            return Ok(None);
        }
        let path = Some(RequestPath::parse(raw).map_err(ambiguous_path)?);
        let is_denied = !self.rules.is_empty() && {
            let allows =
                |rule: &PathSet| rule.allows(path.as_ref()) || is_websocket && rule.allows_websocket(path.as_ref());
            !self.rules.iter().any(allows)
        };
        if is_denied {
            return Err(RequestRefusal::new(StatusCode::FORBIDDEN, "no rule allows this path"));
        }
        let sets = || self.bindings.iter().map(|binding| &binding.paths).chain(&self.rules);
        if is_websocket && !sets().any(|set| set.allows_websocket(path.as_ref())) {
            let reason = "no rule allows a WebSocket on this path; list it in `websocket_paths`";
            return Err(RequestRefusal::new(StatusCode::FORBIDDEN, reason));
        }
        Ok(path)
    }

    /// Puts secrets into the headers that are exactly a placeholder. Returns the name of the credential.
    fn replace_placeholder(
        &self,
        headers: &mut HeaderMap,
        path: Option<&RequestPath>,
        is_websocket: bool,
    ) -> Result<Option<String>, RequestRefusal> {
        let mut used = None;
        for binding in &self.bindings {
            let is_allowed = binding.paths.allows(path) || (is_websocket && binding.paths.allows_websocket(path));
            if !is_allowed {
                continue;
            }
            for header in &binding.headers {
                let Some(name) = header.name() else { continue };
                let hyper::header::Entry::Occupied(mut values) = headers.entry(name) else { continue };
                for value in values.iter_mut() {
                    if let Some(with_secret) = binding.with_secret(header, value)? {
                        *value = with_secret;
                        used = Some(binding.name.clone());
                    }
                }
            }
        }
        Ok(used)
    }
}

impl HostBinding {
    /// The value with the secret, if it is exactly the placeholder.
    fn with_secret(
        &self,
        header: &CredentialHeader,
        value: &HeaderValue,
    ) -> Result<Option<HeaderValue>, RequestRefusal> {
        let Some(place) = value.to_str().ok().and_then(|text| SecretPlace::find(header, text)) else { return Ok(None) };
        for candidate in place.candidates() {
            if let Some(secret) = self.secret.for_text(candidate)? {
                let mut value = HeaderValue::from_str(&place.with(candidate, secret.expose())).ok();
                value.iter_mut().for_each(|value| value.set_sensitive(true));
                return Ok(value);
            }
        }
        Ok(None)
    }
}

/// Where a secret is in the value of a header.
enum SecretPlace<'a> {
    Whole(&'a str),
    /// After the name of a scheme.
    Token {
        scheme: &'a str,
        token: &'a str,
    },
    Basic {
        scheme: &'a str,
        user: String,
        password: String,
    },
}

impl<'a> SecretPlace<'a> {
    fn find(header: &CredentialHeader, text: &'a str) -> Option<Self> {
        let scheme_and_token =
            |name: &str| text.split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case(name));
        match header {
            CredentialHeader::Header(_) => Some(Self::Whole(text)),
            CredentialHeader::Bearer => scheme_and_token("bearer").map(|(scheme, token)| Self::Token { scheme, token }),
            CredentialHeader::Token => scheme_and_token("token").map(|(scheme, token)| Self::Token { scheme, token }),
            CredentialHeader::Basic => {
                let (scheme, token) = scheme_and_token("basic")?;
                let decoded = String::from_utf8(BASIC.decode(token).ok()?).ok()?;
                let (user, password) = decoded.split_once(':')?;
                Some(Self::Basic { scheme, user: user.to_owned(), password: password.to_owned() })
            }
        }
    }

    /// The text that may be a placeholder: a user only without a password.
    fn candidates(&self) -> impl Iterator<Item = &str> {
        let (first, second) = match self {
            Self::Whole(text) | Self::Token { token: text, .. } => (*text, None),
            Self::Basic { user, password, .. } => (password.as_str(), password.is_empty().then_some(user.as_str())),
        };
        std::iter::once(first).chain(second)
    }

    /// The value with the secret in the place of the placeholder.
    fn with(&self, placeholder: &str, secret: &str) -> Zeroizing<String> {
        Zeroizing::new(match self {
            Self::Whole(_) => secret.to_owned(),
            Self::Token { scheme, .. } => format!("{scheme} {secret}"),
            Self::Basic { scheme, user, password } => {
                let pair = match password == placeholder {
                    true => format!("{user}:{secret}"),
                    false => format!("{secret}:"),
                };
                let encoded = Zeroizing::new(BASE64_STANDARD.encode(Zeroizing::new(pair).as_bytes()));
                format!("{scheme} {}", encoded.as_str())
            }
        })
    }
}

fn ambiguous_path(why: &str) -> RequestRefusal {
    RequestRefusal::new(StatusCode::BAD_REQUEST, format!("{why}, so that no rule can decide about it"))
}

fn path_set(owner: &str, paths: &[String], websocket_paths: &[String]) -> Result<PathSet, CredentialError> {
    Ok(PathSet { paths: parse_patterns(owner, paths)?, websocket_paths: parse_patterns(owner, websocket_paths)? })
}

/// The header that has a placeholder, as text.
pub(crate) fn placeholder_header(headers: &HeaderMap, placeholders: &LeakPatterns) -> Option<String> {
    let has_placeholder = |name: &HeaderName, value: &HeaderValue| {
        placeholders.are_in(name.as_str().as_bytes()) || placeholders.are_in(value.as_bytes())
    };
    let found = headers.iter().find(|(name, value)| has_placeholder(name, value))?.0;
    Some(match placeholders.are_in(found.as_str().as_bytes()) {
        true => "headers".to_owned(),
        false => format!("header `{found}`"),
    })
}

/// Whether a request of HTTP/1.1 asks for a WebSocket.
fn is_websocket(head: &Parts) -> bool {
    let has_token = |name: HeaderName, token: &str| {
        let values = head.headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).any(|one| one.trim().eq_ignore_ascii_case(token))
    };
    head.version == Version::HTTP_11
        && head.method == Method::GET
        && has_token(CONNECTION, "upgrade")
        && has_token(UPGRADE, "websocket")
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::prelude::BASE64_STANDARD;
    use hyper::{Request, StatusCode};

    use super::{HostGuard, JudgedRequest, RequestRefusal};
    use crate::credential::{
        AskedRequest, BoundHost, CredentialBinding, CredentialHeader, HostPathRule, tests::binding,
    };
    use crate::leak_scanner::LeakPatterns;
    use crate::oauth_login::tests::{ACCESS, MemoryLogin, REFRESH, login};

    const PLACEHOLDER: &str = "sk-ant-api03-rfAAAABBBB";
    const SECRET: &str = "sk-ant-api03-the-real-one";
    const OTHER: &str = "ghp_rfPLACEHOLDER00";

    fn guard(bound: CredentialBinding, rules: &[HostPathRule]) -> HostGuard {
        let placeholders = LeakPatterns::new([PLACEHOLDER, OTHER]).unwrap();
        let host = BoundHost::parse("", "api.example.org").unwrap();
        HostGuard::new(host, (&[bound], &[]), rules, &placeholders).unwrap()
    }

    fn api_binding() -> CredentialBinding {
        let headers =
            vec![CredentialHeader::Header("x-api-key".to_owned()), CredentialHeader::Bearer, CredentialHeader::Basic];
        CredentialBinding { headers, ..binding("api", PLACEHOLDER, SECRET) }
    }

    fn v1_binding() -> CredentialBinding {
        let (paths, websocket_paths) = (vec!["/v1/**".to_owned()], vec!["/v1/realtime".to_owned()]);
        CredentialBinding { paths, websocket_paths, ..api_binding() }
    }

    /// The judgement of a request, and the value of a header after it.
    fn judge(guard: &HostGuard, request: &str) -> (Result<JudgedRequest, RequestRefusal>, Vec<String>) {
        let mut lines = request.lines();
        let (method, target) = lines.next().unwrap().split_once(' ').unwrap();
        let mut builder = Request::builder().method(method).uri(target).header("host", "api.example.org");
        for (name, value) in lines.map(|line| line.split_once(": ").unwrap()) {
            builder = builder.header(name, value);
        }
        let (mut head, ()) = builder.body(()).unwrap().into_parts();
        let judged = guard.judge(&mut head);
        let values = head.headers.iter().filter(|(name, _)| *name != "host");
        (judged, values.map(|(_, value)| value.to_str().unwrap().to_owned()).collect())
    }

    #[track_caller]
    fn assert_replaced(guard: &HostGuard, request: &str, expected: &str) {
        let (judged, values) = judge(guard, request);
        assert_eq!(judged.unwrap().credential.as_deref(), Some("api"), "{request}");
        assert_eq!(values, [expected], "{request}");
    }

    #[track_caller]
    fn assert_tripwire(guard: &HostGuard, request: &str, place: &str) {
        let (judged, values) = judge(guard, request);
        let refusal = judged.unwrap_err();
        assert_eq!((refusal.status, refusal.tripwire.as_deref()), (StatusCode::FORBIDDEN, Some(place)), "{request}");
        assert!(!refusal.reason.contains(PLACEHOLDER) && !refusal.reason.contains(SECRET), "{}", refusal.reason);
        drop(values);
    }

    #[track_caller]
    fn assert_refused(guard: &HostGuard, request: &str, status: u16) {
        let refusal = judge(guard, request).0.unwrap_err();
        assert_eq!((refusal.status.as_u16(), refusal.tripwire), (status, None), "{request}");
    }

    fn basic(pair: &str) -> String {
        BASE64_STANDARD.encode(pair)
    }

    #[test]
    fn a_header_that_is_exactly_the_placeholder_is_replaced() {
        let guard = guard(api_binding(), &[]);
        assert_replaced(&guard, &format!("POST /v1/messages\nx-api-key: {PLACEHOLDER}"), SECRET);
        assert_replaced(&guard, &format!("GET /\nauthorization: Bearer {PLACEHOLDER}"), &format!("Bearer {SECRET}"));
        assert_replaced(&guard, &format!("GET /\nauthorization: bearer {PLACEHOLDER}"), &format!("bearer {SECRET}"));
        let token = CredentialBinding { headers: vec![CredentialHeader::Token], ..api_binding() };
        let token = super::tests::guard(token, &[]);
        assert_replaced(&token, &format!("GET /\nauthorization: token {PLACEHOLDER}"), &format!("token {SECRET}"));
        for (given, sent) in [
            (format!("x-access-token:{PLACEHOLDER}"), format!("x-access-token:{SECRET}")),
            (format!("{PLACEHOLDER}:"), format!("{SECRET}:")),
        ] {
            let expected = format!("Basic {}", basic(&sent));
            assert_replaced(&guard, &format!("GET /\nauthorization: Basic {}", basic(&given)), &expected);
        }
    }

    #[test]
    fn the_placeholder_anywhere_else_is_a_tripwire() {
        let guard = guard(v1_binding(), &[]);
        let percent: String = PLACEHOLDER.bytes().map(|byte| format!("%{byte:02x}")).collect();
        for (request, place) in [
            (format!("GET /v1/x\nx-api-key: {PLACEHOLDER}x"), "header `x-api-key`"),
            (format!("GET /v1/x\nx-api-key:  {PLACEHOLDER},{PLACEHOLDER}"), "header `x-api-key`"),
            (format!("GET /v1/x\nauthorization: {PLACEHOLDER}"), "header `authorization`"),
            (format!("GET /v1/x\nauthorization: Bearer  {PLACEHOLDER}"), "header `authorization`"),
            (format!("GET /v1/x\nauthorization: Token {PLACEHOLDER}"), "header `authorization`"),
            (
                format!("GET /v1/x\nauthorization: Basic {}", basic(&format!("u:{PLACEHOLDER}x"))),
                "header `authorization`",
            ),
            (format!("GET /v1/x\nx-other: {PLACEHOLDER}"), "header `x-other`"),
            (format!("GET /v1/x\ncookie: a=b; key={PLACEHOLDER}"), "header `cookie`"),
            (format!("GET /v1/x\nx-api-key: {PLACEHOLDER}\nx-api-key: a{PLACEHOLDER}"), "header `x-api-key`"),
            (format!("GET /v1/x\nx-api-key: {OTHER}"), "header `x-api-key`"),
            (format!("GET /v2/x\nx-api-key: {PLACEHOLDER}"), "header `x-api-key`"),
            (format!("GET /v1/{PLACEHOLDER}"), "URL"),
            (format!("GET /v1/x?key={PLACEHOLDER}"), "URL"),
            (format!("GET /v1/x?key={percent}"), "URL"),
            (format!("GET /v1/x?key={}", basic(PLACEHOLDER).trim_end_matches('=')), "URL"),
        ] {
            assert_tripwire(&guard, &request, place);
        }
    }

    #[test]
    fn other_tokens_and_paths_pass_untouched() {
        let guard = guard(v1_binding(), &[]);
        for request in ["GET /v1/x\nauthorization: Bearer other", "GET /v2/x\nx-api-key: other", "GET /\nx-a: b"] {
            let (judged, values) = judge(&guard, request);
            assert_eq!(judged.unwrap().credential, None, "{request}");
            assert!(request.ends_with(&values[0]), "{values:?}");
        }
    }

    #[test]
    fn the_access_token_of_a_login_is_that_of_the_moment() {
        let store = MemoryLogin::new(ACCESS, REFRESH, None);
        let login = login(store.clone());
        let placeholders = LeakPatterns::new([OTHER]).unwrap();
        let host = BoundHost::parse("", "api.example.org").unwrap();
        let guard = HostGuard::new(host, (&[], std::slice::from_ref(&login)), &[], &placeholders).unwrap();
        let issued = login.placeholders().unwrap().unwrap();
        placeholders.add([issued.access.as_str(), issued.refresh.as_str()]).unwrap();
        let request = format!("GET /v1/x\nauthorization: Bearer {}", issued.access);
        assert_eq!(judge(&guard, &request).1, [format!("Bearer {ACCESS}")]);
        *store.0.lock() = MemoryLogin::new("sk-ant-oat01-another", REFRESH, None).0.lock().clone();
        assert_eq!(judge(&guard, &request).1, ["Bearer sk-ant-oat01-another"]);
        assert_tripwire(
            &guard,
            &format!("GET /v1/x\nauthorization: Bearer {}", issued.refresh),
            "header `authorization`",
        );
        *store.0.lock() = None;
        let refusal = judge(&guard, &request).0.unwrap_err();
        assert_eq!((refusal.reason.as_str(), refusal.tripwire), ("there is no login", None));
    }

    #[test]
    fn requests_are_asked_about_by_method_and_path() {
        let asked = ["POST api.example.org/**/git-receive-pack", "DELETE api.example.org/**", "PUT other.org/**"];
        let asked = asked.map(|text| AskedRequest::parse(text).unwrap()).to_vec();
        let guard = guard(CredentialBinding { asked, ..api_binding() }, &[]);
        for (request, expected) in [
            ("POST /o/r.git/git-receive-pack", true),
            ("POST /o/r.git/git%2Dreceive-pack", true),
            ("POST /o/r.git/git-upload-pack", false),
            ("GET /o/r.git/info/refs?service=git-receive-pack", false),
            ("GET /a%2fb", false),
            ("DELETE /x", true),
            ("PUT /x", false),
        ] {
            assert_eq!(judge(&guard, request).0.unwrap().is_asked, expected, "{request}");
        }
        for request in ["POST /o/r.git//git-receive-pack", "POST /o%2fr/git-receive-pack", "DELETE /a%2fb"] {
            assert_refused(&guard, request, 400);
        }
    }

    #[test]
    fn a_request_to_the_token_endpoint_is_an_exchange() {
        let login = login(MemoryLogin::new(ACCESS, REFRESH, None));
        let host = BoundHost::parse("", "auth.example.org").unwrap();
        let placeholders = LeakPatterns::new([OTHER]).unwrap();
        let guard = HostGuard::new(host, (&[], &[login]), &[], &placeholders).unwrap();
        let judged = |method: &str, path: &str| {
            let request = Request::builder().method(method).uri(path).header("host", "auth.example.org");
            guard.judge(&mut request.body(()).unwrap().into_parts().0)
        };
        for (path, expected) in [
            ("/oauth/token", true),
            ("/oauth/token?x=1", true),
            ("/oauth/%74oken", true),
            ("/oauth/token/x", false),
            ("/oauth/authorize", false),
        ] {
            assert_eq!(judged("POST", path).unwrap().token_exchange.is_some(), expected, "{path}");
        }
        assert_eq!(judged("GET", "/oauth/token").unwrap_err().status, StatusCode::METHOD_NOT_ALLOWED);
        assert_eq!(judged("POST", "/oauth/x/../token").unwrap_err().status, StatusCode::BAD_REQUEST);
    }

    #[test]
    fn a_request_names_the_judged_host_only() {
        let guard = guard(api_binding(), &[]);
        for (request, status) in [
            ("GET https://other.example.org/", 421),
            ("GET https://api.example.org.evil.org/", 421),
            ("GET https://api.example.org:8443/", 421),
            ("GET https://api.example.org@evil.org/", 421),
            ("GET http://api.example.org/", 400),
            ("GET /\nhost: api.example.org", 400),
            ("GET /\nhost: other.example.org", 400),
            ("TRACE /", 405),
            ("CONNECT api.example.org:443", 405),
        ] {
            assert_refused(&guard, request, status);
        }
        for request in ["GET https://api.example.org/", "GET https://API.example.org:443/x"] {
            assert!(judge(&guard, request).0.is_ok(), "{request}");
        }
        for (host, expected) in [("other.org", 421), ("api.example.org:", 421), ("api.example.org:80", 421), ("", 421)]
        {
            let (mut head, ()) = Request::builder().uri("/").header("host", host).body(()).unwrap().into_parts();
            assert_eq!(guard.judge(&mut head).unwrap_err().status.as_u16(), expected, "{host}");
        }
        let (mut head, ()) = Request::builder().uri("/").body(()).unwrap().into_parts();
        assert_eq!(guard.judge(&mut head).unwrap_err().status, StatusCode::BAD_REQUEST, "no Host");
    }

    #[test]
    fn an_ambiguous_path_is_refused_where_a_rule_needs_it() {
        let guarded = guard(v1_binding(), &[]);
        for path in ["/v1//x", "/v1/a%2fb", "/v1/..;/x", "/v1/../x", "/v1/%2e%2e/x", "/v1/a;b"] {
            assert_refused(&guarded, &format!("GET {path}\nx-api-key: {PLACEHOLDER}"), 400);
        }
        // A registry names packages such as `@scope%2fname`.
        assert!(judge(&guard(api_binding(), &[]), "GET /@scope%2fname").0.is_ok());
    }

    #[test]
    fn a_websocket_passes_on_the_paths_that_a_rule_names() {
        let upgrade = "connection: keep-alive, Upgrade\nupgrade: WebSocket";
        let v1 = guard(v1_binding(), &[]);
        assert!(judge(&v1, &format!("GET /v1/realtime\n{upgrade}")).0.unwrap().is_websocket);
        assert_refused(&v1, &format!("GET /v1/other\n{upgrade}"), 403);
        assert_refused(&v1, &format!("GET /v1/realtime/\n{upgrade}"), 403);
        assert_refused(&guard(api_binding(), &[]), &format!("GET /v1/realtime\n{upgrade}"), 403);
        assert!(!judge(&v1, "GET /v1/realtime").0.unwrap().is_websocket);
    }

    #[test]
    fn a_path_rule_keeps_requests_from_other_paths() {
        let rule = HostPathRule {
            host: "api.example.org".to_owned(),
            paths: vec!["/docs/**".to_owned()],
            websocket_paths: vec!["/live".to_owned()],
        };
        let guard = guard(api_binding(), &[rule]);
        assert!(judge(&guard, "GET /docs/a").0.is_ok());
        assert_refused(&guard, "GET /other", 403);
        assert_refused(&guard, "GET /live", 403);
        assert!(judge(&guard, "GET /live\nconnection: upgrade\nupgrade: websocket").0.unwrap().is_websocket);
    }
}
