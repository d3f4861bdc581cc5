//! OAuth login: the tokens of a person, which are refreshed, and the placeholders that programs have of them.
//!
//! A program has placeholders only. The access token takes the place of its placeholder in headers, as any credential does;
//! the refresh token takes its place in a request to the token endpoint. Every placeholder of a run stands for the token
//! that is in the person's store now, also after the person's own client or another run has refreshed it.
//!
//! Not here: where the tokens are kept (a `LoginStore` of the caller), requests (`request_guard.rs`), and the messages of the token
//! endpoint (`token_message.rs`).

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ringfence_kernel::sync::{Condvar, Mutex};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use crate::credential::{BoundHost, CredentialError, CredentialHeader, SecretText, fits_header, placeholder_like};
use crate::leak_scanner::LeakPatterns;
use crate::request_path::{PathPattern, RequestPath};

/// Exchanges of one run. Each adds texts to look for.
const MAX_EXCHANGES: usize = 500;

/// The tokens of a login.
#[derive(Clone, Debug)]
pub struct OAuthTokens {
    pub access: SecretText,
    pub refresh: SecretText,
    /// That of OpenID Connect, if the login has one.
    pub id: Option<SecretText>,
}

impl OAuthTokens {
    /// Whether these are the same tokens.
    pub fn are_same(&self, other: &Self) -> bool {
        let id = |tokens: &Self| tokens.id.as_ref().map(|id| id.expose().to_owned());
        self.access.expose() == other.access.expose()
            && self.refresh.expose() == other.refresh.expose()
            && id(self) == id(other)
    }

    fn texts(&self) -> impl Iterator<Item = &str> {
        [Some(&self.access), Some(&self.refresh), self.id.as_ref()].into_iter().flatten().map(SecretText::expose)
    }
}

/// New tokens from a token endpoint. What it leaves out stays as it is.
#[derive(Clone, Debug)]
pub struct RefreshedTokens {
    pub access: SecretText,
    pub refresh: Option<SecretText>,
    pub id: Option<SecretText>,
    /// Seconds for which the access token is valid.
    pub expires_in: Option<u64>,
    /// The same for the refresh token.
    pub refresh_expires_in: Option<u64>,
}

/// A store of tokens that failed. The text is for a person, and has no token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoginStoreError {
    /// There is no login.
    #[error("{0}")]
    Absent(String),
    /// It cannot be used.
    #[error("{0}")]
    Unusable(String),
}

/// Where the tokens of a login are, which other programs may change at any time.
pub trait LoginStore: fmt::Debug + Send + Sync {
    /// The tokens now.
    fn tokens(&self) -> Result<OAuthTokens, LoginStoreError>;

    /// Holds the login, so that nothing else refreshes it, and reads its tokens. It may wait. Fails where new tokens could not be stored.
    fn begin_refresh(&self) -> Result<Box<dyn LoginRefresh>, LoginStoreError>;
}

/// A login that is held for one refresh.
pub trait LoginRefresh: Send {
    /// The tokens when it began.
    fn tokens(&self) -> &OAuthTokens;

    /// Stores new tokens durably, and returns those that the store has then: others, if something changed it meanwhile and
    /// has newer ones.
    fn store(self: Box<Self>, tokens: &RefreshedTokens) -> Result<OAuthTokens, LoginStoreError>;
}

/// The shape of placeholders.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OAuthTokenShapes {
    /// The characters that an access token begins with.
    pub access: String,
    /// The same of a refresh token.
    pub refresh: String,
    /// Claims of tokens that are JSON web tokens which programs may read.
    pub claims: Vec<String>,
}

/// A login, and the requests that it is for.
#[derive(Clone, Debug)]
pub struct OAuthLoginBinding {
    /// Name in the configuration and in records.
    pub name: String,
    /// Hosts that take the access token, with a port where it is not 443.
    pub hosts: Vec<String>,
    /// Globs such as `/v1/**`. Empty: all paths.
    pub paths: Vec<String>,
    /// Globs of the paths that may become a WebSocket.
    pub websocket_paths: Vec<String>,
    /// The headers that may carry the access token.
    pub headers: Vec<CredentialHeader>,
    /// Host of the token endpoint, with a port where it is not 443.
    pub token_host: String,
    /// Its path.
    pub token_path: String,
    /// Members of its answer that programs may have, besides placeholders.
    pub answer_members: Vec<String>,
    pub shapes: OAuthTokenShapes,
    pub store: Arc<dyn LoginStore>,
    /// Random bytes, from which placeholders are made.
    pub seed: [u8; 32],
}

/// The placeholders of the tokens of a login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OAuthPlaceholders {
    pub access: String,
    pub refresh: String,
    pub id: Option<String>,
}

/// A token, by what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OAuthTokenKind {
    Access,
    Refresh,
    Id,
}

/// A login that programs use.
pub(crate) struct OAuthLogin {
    pub(crate) binding: OAuthLoginBinding,
    token_host: BoundHost,
    token_path: PathPattern,
    /// What answers and requests are searched for.
    secrets: LeakPatterns,
    placeholders: LeakPatterns,
    state: Mutex<OAuthLoginState>,
    is_idle: Condvar,
}

#[derive(Default)]
struct OAuthLoginState {
    /// Every placeholder of this run.
    issued: HashMap<String, OAuthTokenKind>,
    /// Of the tokens that the store had last.
    known: Option<OAuthTokens>,
    exchanges: usize,
    /// Exchanges that have begun and not ended.
    open_exchanges: usize,
}

impl fmt::Debug for OAuthLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OAuthLogin").field("name", &self.binding.name).finish_non_exhaustive()
    }
}

impl OAuthLogin {
    /// Tokens and placeholders are added to what is searched for.
    pub(crate) fn new(
        binding: OAuthLoginBinding,
        secrets: LeakPatterns,
        placeholders: LeakPatterns,
    ) -> Result<Self, CredentialError> {
        let token_host = BoundHost::parse(&binding.name, &binding.token_host)?;
        let token_path = PathPattern::parse(&binding.token_path)
            .map_err(|cause| CredentialError::Path { owner: binding.name.clone(), cause })?;
        let (state, is_idle) = (Mutex::default(), Condvar::new());
        Ok(Self { binding, token_host, token_path, secrets, placeholders, state, is_idle })
    }

    /// Whether it is the token endpoint of this login.
    pub(crate) fn is_token_endpoint(&self, host: &BoundHost, path: Option<&RequestPath>) -> bool {
        self.has_token_endpoint_at(host) && path.is_some_and(|path| self.token_path.matches(path))
    }

    pub(crate) fn has_token_endpoint_at(&self, host: &BoundHost) -> bool {
        self.token_host == *host
    }

    pub(crate) fn token_host(&self) -> &BoundHost {
        &self.token_host
    }

    /// Placeholders for the tokens that are in the store. `None` if there is no login.
    pub(crate) fn placeholders(&self) -> Result<Option<OAuthPlaceholders>, LoginStoreError> {
        match self.binding.store.tokens() {
            Ok(tokens) => {
                self.look_for(&tokens)?;
                self.issue(&tokens).map(Some)
            }
            Err(LoginStoreError::Absent(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The access token for a text, if that is a placeholder of it.
    pub(crate) fn access_token(&self, text: &str) -> Result<Option<SecretText>, LoginStoreError> {
        if self.kind_of(text) != Some(OAuthTokenKind::Access) {
            return Ok(None);
        }
        let tokens = self.binding.store.tokens()?;
        self.look_for(&tokens)?;
        Ok(Some(tokens.access))
    }

    pub(crate) fn is_refresh_placeholder(&self, text: &str) -> bool {
        self.kind_of(text) == Some(OAuthTokenKind::Refresh)
    }

    /// Whether a host name without its dots, in lower case, has a placeholder of the run.
    pub(crate) fn is_in_name(&self, joined: &str) -> bool {
        let issued = &self.state.lock().issued;
        issued.keys().any(|placeholder| joined.contains(&placeholder.replace('.', "").to_ascii_lowercase()))
    }

    fn kind_of(&self, text: &str) -> Option<OAuthTokenKind> {
        self.state.lock().issued.get(text).copied()
    }

    /// Looks for these tokens in answers from now on.
    pub(crate) fn look_for(&self, tokens: &OAuthTokens) -> Result<(), LoginStoreError> {
        let mut state = self.state.lock();
        if state.known.as_ref().is_some_and(|known| known.are_same(tokens)) {
            return Ok(());
        }
        let unusable = |problem: &str| LoginStoreError::Unusable(format!("login `{}`: {problem}", self.binding.name));
        if !tokens.texts().all(fits_header) {
            return Err(unusable("a token is shorter than 8 characters, longer than 8 KiB, or not visible ASCII"));
        }
        self.secrets.add(tokens.texts()).map_err(|_| unusable("there is too much to look for in answers"))?;
        state.known = Some(tokens.clone());
        Ok(())
    }

    /// Looks for tokens that have just come, wherever they end up.
    pub(crate) fn look_for_new(&self, tokens: &RefreshedTokens) -> Result<(), LoginStoreError> {
        let texts = [Some(&tokens.access), tokens.refresh.as_ref(), tokens.id.as_ref()];
        let added = self.secrets.add(texts.into_iter().flatten().map(SecretText::expose));
        added.map_err(|_| LoginStoreError::Unusable("there is too much to look for in answers".to_owned()))
    }

    /// New placeholders, for tokens that are looked for.
    pub(crate) fn issue(&self, tokens: &OAuthTokens) -> Result<OAuthPlaceholders, LoginStoreError> {
        let mut state = self.state.lock();
        let mut make = |kind: OAuthTokenKind, secret: &SecretText| {
            let placeholder = self.placeholder(kind, secret, state.issued.len());
            state.issued.insert(placeholder.clone(), kind);
            placeholder
        };
        let placeholders = OAuthPlaceholders {
            access: make(OAuthTokenKind::Access, &tokens.access),
            refresh: make(OAuthTokenKind::Refresh, &tokens.refresh),
            id: tokens.id.as_ref().map(|id| make(OAuthTokenKind::Id, id)),
        };
        let texts = [Some(&placeholders.access), Some(&placeholders.refresh), placeholders.id.as_ref()];
        let added = self.placeholders.add(texts.into_iter().flatten().map(String::as_str));
        let failed = |_| LoginStoreError::Unusable("there is too much to look for in requests".to_owned());
        added.map(|()| placeholders).map_err(failed)
    }

    fn placeholder(&self, kind: OAuthTokenKind, secret: &SecretText, number: usize) -> String {
        let shapes = &self.binding.shapes;
        let prefix = match kind {
            OAuthTokenKind::Access => shapes.access.as_str(),
            OAuthTokenKind::Refresh => shapes.refresh.as_str(),
            OAuthTokenKind::Id => "",
        };
        let random = Sha256::new().chain_update(self.binding.seed).chain_update(number.to_le_bytes()).finalize();
        match jwt_claims(secret.expose()) {
            Some(claims) => jwt_placeholder(claims, &shapes.claims, &random),
            None => placeholder_like(prefix, &random),
        }
    }

    /// Begins an exchange of tokens, which lasts until the result is dropped. `None`: there were too many.
    pub(crate) fn begin_exchange(self: &Arc<Self>) -> Option<OpenExchange> {
        let mut state = self.state.lock();
        if state.exchanges >= MAX_EXCHANGES {
            return None;
        }
        state.exchanges += 1;
        state.open_exchanges += 1;
        Some(OpenExchange(Arc::clone(self)))
    }

    /// Waits until no exchange is open. Each has a time limit.
    pub(crate) fn until_idle(&self) {
        let mut state = self.state.lock();
        while state.open_exchanges > 0 {
            state = self.is_idle.wait(state);
        }
    }
}

/// An exchange of tokens that must come to its end: the host may have replaced the refresh token.
#[derive(Debug)]
pub(crate) struct OpenExchange(Arc<OAuthLogin>);

impl Drop for OpenExchange {
    fn drop(&mut self) {
        self.0.state.lock().open_exchanges -= 1;
        self.0.is_idle.notify_all();
    }
}

/// The claims of a JSON web token, if it is one.
fn jwt_claims(token: &str) -> Option<Map<String, Value>> {
    let [head, claims, _signature] = token.split('.').collect::<Vec<_>>()[..] else { return None };
    let object = |part: &str| serde_json::from_slice::<Map<String, Value>>(&URL_SAFE_NO_PAD.decode(part).ok()?).ok();
    object(head)?;
    object(claims)
}

/// A token of the same form with a few of the claims, and random bytes for a signature.
fn jwt_placeholder(mut claims: Map<String, Value>, readable: &[String], random: &[u8]) -> String {
    claims.retain(|name, _| readable.contains(name));
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let head = part(&json!({"alg": "RS256", "kid": "placeholder", "typ": "JWT"}));
    format!("{head}.{}.{}", part(&Value::Object(claims)), URL_SAFE_NO_PAD.encode(random))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use ringfence_kernel::sync::Mutex;
    use serde_json::{Value, json};

    use super::{
        LoginRefresh, LoginStore, LoginStoreError, OAuthLogin, OAuthLoginBinding, OAuthTokenShapes, OAuthTokens,
        RefreshedTokens, jwt_claims,
    };
    use crate::credential::{CredentialHeader, SecretText};
    use crate::leak_scanner::LeakPatterns;

    pub(crate) const ACCESS: &str = "sk-ant-oat01-the-real-access-token";
    pub(crate) const REFRESH: &str = "sk-ant-ort01-the-real-refresh-token";

    /// Tokens in memory.
    #[derive(Clone, Debug)]
    pub(crate) struct MemoryLogin(pub(crate) Arc<Mutex<Option<OAuthTokens>>>);

    impl MemoryLogin {
        pub(crate) fn new(access: &str, refresh: &str, id: Option<&str>) -> Self {
            let secret = |text: &str| SecretText::new(text.to_owned());
            let tokens = OAuthTokens { access: secret(access), refresh: secret(refresh), id: id.map(secret) };
            Self(Arc::new(Mutex::new(Some(tokens))))
        }
    }

    impl LoginStore for MemoryLogin {
        fn tokens(&self) -> Result<OAuthTokens, LoginStoreError> {
            self.0.lock().clone().ok_or_else(|| LoginStoreError::Absent("there is no login".to_owned()))
        }

        fn begin_refresh(&self) -> Result<Box<dyn LoginRefresh>, LoginStoreError> {
            let tokens = self.tokens()?;
            Ok(Box::new(MemoryRefresh { tokens, login: self.clone() }))
        }
    }

    struct MemoryRefresh {
        tokens: OAuthTokens,
        login: MemoryLogin,
    }

    impl LoginRefresh for MemoryRefresh {
        fn tokens(&self) -> &OAuthTokens {
            &self.tokens
        }

        fn store(self: Box<Self>, tokens: &RefreshedTokens) -> Result<OAuthTokens, LoginStoreError> {
            let Self { tokens: before, login } = *self;
            let tokens = OAuthTokens {
                access: tokens.access.clone(),
                refresh: tokens.refresh.clone().unwrap_or(before.refresh),
                id: tokens.id.clone().or(before.id),
            };
            *login.0.lock() = Some(tokens.clone());
            Ok(tokens)
        }
    }

    pub(crate) fn binding(store: MemoryLogin) -> OAuthLoginBinding {
        OAuthLoginBinding {
            name: "login".to_owned(),
            hosts: vec!["api.example.org".to_owned()],
            paths: Vec::new(),
            websocket_paths: Vec::new(),
            headers: vec![CredentialHeader::Bearer],
            token_host: "auth.example.org".to_owned(),
            token_path: "/oauth/token".to_owned(),
            answer_members: vec!["expires_in".to_owned(), "scope".to_owned()],
            shapes: OAuthTokenShapes {
                access: "sk-ant-oat01-".to_owned(),
                refresh: "sk-ant-ort01-".to_owned(),
                claims: vec!["exp".to_owned(), "plan".to_owned()],
            },
            store: Arc::new(store),
            seed: [7; 32],
        }
    }

    pub(crate) fn login(store: MemoryLogin) -> Arc<OAuthLogin> {
        let patterns = || LeakPatterns::new([]).unwrap();
        Arc::new(OAuthLogin::new(binding(store), patterns(), patterns()).unwrap())
    }

    fn jwt(claims: &Value) -> String {
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        format!("{}.{}.{}", part(&json!({"alg": "RS256"})), part(claims), URL_SAFE_NO_PAD.encode("a real signature"))
    }

    #[test]
    fn a_placeholder_stands_for_the_token_of_the_moment() {
        let store = MemoryLogin::new(ACCESS, REFRESH, None);
        let login = login(store.clone());
        let first = login.placeholders().unwrap().unwrap();
        assert!(first.access.starts_with("sk-ant-oat01-rf") && first.refresh.starts_with("sk-ant-ort01-rf"));
        assert_eq!(login.access_token(&first.access).unwrap().unwrap().expose(), ACCESS);
        assert!(login.access_token(&first.refresh).unwrap().is_none(), "a refresh token is not sent in headers");
        assert!(login.is_refresh_placeholder(&first.refresh) && !login.is_refresh_placeholder(&first.access));
        // Someone else refreshes it.
        *store.0.lock() = MemoryLogin::new("sk-ant-oat01-another", REFRESH, None).tokens().ok();
        assert_eq!(login.access_token(&first.access).unwrap().unwrap().expose(), "sk-ant-oat01-another");
        assert!(login.secrets.are_in(b"x sk-ant-oat01-another"), "answers are searched for it");
        let second = login.placeholders().unwrap().unwrap();
        assert_ne!(first, second);
        for placeholder in [&first.access, &second.access] {
            assert!(login.access_token(placeholder).unwrap().is_some());
            assert!(login.placeholders.are_in(placeholder.as_bytes()));
        }
        *store.0.lock() = None;
        assert_eq!(login.access_token(&first.access).unwrap_err().to_string(), "there is no login");
        assert_eq!(login.placeholders().unwrap(), None);
    }

    #[test]
    fn a_web_token_keeps_the_claims_that_are_named() {
        let real = jwt(&json!({"exp": 4_000_000_000_u64, "plan": {"type": "plus"}, "sub": "user-1", "sid": "s-1"}));
        let login = login(MemoryLogin::new(&real, REFRESH, Some(&real)));
        let placeholders = login.placeholders().unwrap().unwrap();
        let id = placeholders.id.unwrap();
        assert_ne!(id, placeholders.access);
        for placeholder in [id, placeholders.access] {
            let claims = jwt_claims(&placeholder).unwrap();
            assert_eq!(Value::Object(claims), json!({"exp": 4_000_000_000_u64, "plan": {"type": "plus"}}));
            assert_ne!(placeholder.rsplit_once('.').unwrap().1, real.rsplit_once('.').unwrap().1);
        }
        for other in ["", "a.b.c", "e30.e30", &format!("e30.{}.x", URL_SAFE_NO_PAD.encode("[1]"))] {
            assert_eq!(jwt_claims(other), None, "{other}");
        }
    }

    #[test]
    fn a_token_that_no_header_takes_is_refused() {
        for wrong in ["tiny", "with a space in it", "line\nbreak-in-it"] {
            let error = login(MemoryLogin::new(wrong, REFRESH, None)).placeholders().unwrap_err().to_string();
            assert!(error.starts_with("login `login`: a token is") && !error.contains(wrong), "{error}");
        }
    }

    #[test]
    fn exchanges_are_counted_and_waited_for() {
        let login = login(MemoryLogin::new(ACCESS, REFRESH, None));
        let open = login.begin_exchange().unwrap();
        let waiting = std::thread::spawn({
            let login = Arc::clone(&login);
            move || login.until_idle()
        });
        drop(open);
        waiting.join().unwrap();
        let more = std::iter::repeat_with(|| login.begin_exchange()).take_while(Option::is_some).count();
        assert_eq!(more, super::MAX_EXCHANGES - 1);
        login.until_idle();
    }
}
