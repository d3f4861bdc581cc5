//! Errors of web requests.
//!
//! The message is for the model: it names the host that was asked for and never the address that a name led to, because
//! that would tell what the inside of a network looks like.

use ringfence_kernel::{ErrorKind, ToolError};

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
    Lookup { host: String, cause: std::io::Error },
    #[error("cannot connect to `{host}`: {cause}")]
    Connect { host: String, cause: std::io::Error },
    #[error("TLS certificate verification failed for `{host}`: {cause}")]
    Tls { host: String, cause: std::io::Error },
    #[error("cannot load this system's root certificates: {0}")]
    RootCertificates(String),
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
    Runtime(std::io::Error),
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
