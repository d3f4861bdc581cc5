//! Errors of web requests.
//!
//! The message is for the model: it names the host that was asked for and never the address that a name led to, because
//! that would tell what the inside of a network looks like.

use std::io;
use std::time::Duration;

use ringfence_kernel::{ErrorKind, ToolError};
use ringfence_net::{DialError, ExchangeError, TlsSetupError};

use crate::fetch_target::FetchTarget;

/// Failed web request.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WebError {
    #[error("url {0}")]
    Url(String),
    #[error("`{host}` resolves to {why}, which web tools may not reach{hint}")]
    NotPublic { host: String, why: &'static str, hint: String },
    #[error("host name `{0}` is not allowed: {1}")]
    Name(String, &'static str),
    #[error("port {0} is not allowed: it is used for {1}")]
    Port(u16, &'static str),
    #[error("cannot resolve `{host}`: {cause}")]
    Lookup { host: String, cause: io::Error },
    #[error("cannot connect to `{host}`: {cause}")]
    Connect { host: String, cause: io::Error },
    #[error("TLS certificate verification failed for `{host}`: {cause}")]
    Tls { host: String, cause: io::Error },
    #[error("cannot load this system's root certificates: {0}")]
    RootCertificates(TlsSetupError),
    #[error("invalid HTTP response from `{host}`: {cause}")]
    Protocol { host: String, cause: String },
    #[error("cannot decompress the response from `{host}`: {cause}")]
    Encoding { host: String, cause: String },
    #[error("{0} timed out after {1} s")]
    Timeout(&'static str, f64),
    #[error("more than {0} redirects; the last was to `{1}`")]
    TooManyRedirects(u64, String),
    #[error("{0}")]
    Backend(String),
    #[error(transparent)]
    Tool(ToolError),
    #[error("cannot start a thread: {0}")]
    Runtime(io::Error),
}

impl WebError {
    /// A connection to this target failed.
    pub(crate) fn from_dial(error: DialError, target: &FetchTarget, within: Duration) -> Self {
        let host = target.host().to_string();
        match error {
            DialError::Refused(refused) => target.not_public(refused),
            DialError::Resolve(cause) => Self::Lookup { host, cause },
            DialError::NoAddresses => Self::Lookup { host, cause: io::Error::other(error) },
            // Without the number of the system's error.
            DialError::Connect(cause) => Self::Connect { host, cause: cause.kind().into() },
            DialError::NoResponse => Self::Connect { host, cause: io::ErrorKind::TimedOut.into() },
            DialError::WrongPeer => Self::Connect { host, cause: io::Error::other(error) },
            DialError::Timeout => Self::Timeout("connecting to the host", within.as_secs_f64()),
            DialError::TlsSetup(cause) => Self::RootCertificates(cause),
            DialError::Tls(cause) => Self::Tls { host, cause },
        }
    }

    /// An exchange with this target failed.
    pub(crate) fn from_exchange(error: ExchangeError, target: &FetchTarget, first_byte: Duration) -> Self {
        let host = target.host().to_string();
        match error {
            ExchangeError::Target => Self::Url("cannot be sent in a request".to_owned()),
            ExchangeError::Host => Self::Url("has no host".to_owned()),
            ExchangeError::Timeout => Self::Timeout("waiting for the response", first_byte.as_secs_f64()),
            ExchangeError::Http(_) => Self::Protocol { host, cause: error.to_string() },
            ExchangeError::Encoding(cause) => Self::Encoding { host, cause },
        }
    }
}

impl From<WebError> for ToolError {
    fn from(error: WebError) -> Self {
        let kind = match &error {
            WebError::Url(problem) => return Self::invalid("url", problem),
            WebError::Tool(stopped) => return stopped.clone(),
            WebError::Timeout(..) => ErrorKind::Timeout,
            WebError::Runtime(_) => ErrorKind::Internal,
            WebError::RootCertificates(_) => ErrorKind::Unavailable,
            _ => ErrorKind::Network,
        };
        Self::new(kind, error.to_string())
    }
}
