//! Errors of web requests.
//!
//! The message is for the model: it names the host that was asked for and never the address that a name led to, because
//! that would tell what the inside of a network looks like.

use ringfence_kernel::{ErrorKind, ToolError};

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WebError {
    #[error("url {0}")]
    Url(String),
    #[error("`{host}` leads to {why}, which web tools do not reach{hint}")]
    NotPublic { host: String, why: &'static str, hint: String },
    #[error("`{0}` is no name that can be looked up: {1}")]
    Name(String, &'static str),
    #[error("the port {0} is not used for the web: {1}")]
    Port(u16, &'static str),
    #[error("the name `{host}` cannot be looked up: {cause}")]
    Lookup { host: String, cause: std::io::Error },
    #[error("`{host}` cannot be reached: {cause}")]
    Connect { host: String, cause: std::io::Error },
    #[error("`{host}` did not prove that it is that host: {cause}")]
    Tls { host: String, cause: std::io::Error },
    #[error("the certificates of this system cannot be used: {0}")]
    RootCertificates(String),
    #[error("`{host}` did not answer as HTTP wants it: {cause}")]
    Protocol { host: String, cause: String },
    #[error("`{host}` sent a page that cannot be decompressed: {cause}")]
    Encoding { host: String, cause: String },
    #[error("{0} took longer than {1} s")]
    Timeout(&'static str, f64),
    #[error("it was sent on more than {0} times; the last was to `{1}`")]
    TooManyRedirects(u64, String),
    #[error("{0}")]
    Backend(String),
    #[error(transparent)]
    Tool(ToolError),
    #[error("no thread for it could be made: {0}")]
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
