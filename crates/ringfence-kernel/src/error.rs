//! Tool errors: one taxonomy for every dialect.
//!
//! An `ErrorKind` is for programs, the message for the model that corrects its call. A message never holds
//! an absolute host path, a secret or file contents.
//!
//! Not here: what a dialect calls a kind (`reply.rs`), and the failures that end a run (`HostError`, in `host.rs`).

use std::convert::Infallible;

use serde_json::{Map, Value};

use crate::resource::PolicyResource;
use crate::suggest::nearest_name;

/// The one error taxonomy. Every kind is recoverable: the model gets it as a reply and goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The arguments do not decode or validate.
    InvalidArgs,
    /// The path is empty, malformed, has a NUL, or names an unknown mount.
    InvalidPath,
    /// The path leaves the workspace by `..`, by being absolute, or through a link.
    OutsideWorkspace,
    /// A change on a read-only mount.
    ReadOnly,
    /// The path does not exist.
    NotFound,
    /// The target exists and `overwrite` is not set.
    AlreadyExists,
    /// Denied by the operating system or the policy.
    PermissionDenied,
    /// An approver denied the call, or no answer came in time.
    ApprovalDenied,
    /// The approval request is pending: nothing was done, and nothing was refused.
    ApprovalPending,
    /// The file is not text.
    NotText,
    /// Not a regular file, or not a directory where one is required.
    WrongType,
    /// The file exceeds the read limit.
    ReadLimit,
    /// The content exceeds the write limit.
    WriteLimit,
    /// The target has changed since the caller read it or the approver saw it.
    Conflict,
    /// The text to replace is not in the file.
    EditNotFound,
    /// The text to replace is in the file more than once.
    AmbiguousEdit,
    /// The YAML front matter does not parse.
    Frontmatter,
    /// The front matter does not match its schema.
    Schema,
    /// The graph of the workflow has no such edge.
    Transition,
    /// The call exceeded its deadline.
    Timeout,
    /// The caller cancelled the call.
    Cancelled,
    /// The session's catalog has no such tool.
    UnknownTool,
    /// The program did not run to completion. A program that exits with an error is a success.
    Execution,
    /// The host is not allowed, resolves to an address that is not allowed, or returned an invalid response.
    Network,
    /// This machine cannot provide the tool safely, or a service that the tool needs is unavailable.
    Unavailable,
    /// Any other file system error.
    Io,
    /// A bug in Ringfence.
    Internal,
}

impl ErrorKind {
    /// Every kind, in the order of the reference.
    pub const ALL: [Self; 27] = [
        Self::InvalidArgs,
        Self::InvalidPath,
        Self::OutsideWorkspace,
        Self::ReadOnly,
        Self::NotFound,
        Self::AlreadyExists,
        Self::PermissionDenied,
        Self::ApprovalDenied,
        Self::ApprovalPending,
        Self::NotText,
        Self::WrongType,
        Self::ReadLimit,
        Self::WriteLimit,
        Self::Conflict,
        Self::EditNotFound,
        Self::AmbiguousEdit,
        Self::Frontmatter,
        Self::Schema,
        Self::Transition,
        Self::Timeout,
        Self::Cancelled,
        Self::UnknownTool,
        Self::Execution,
        Self::Network,
        Self::Unavailable,
        Self::Io,
        Self::Internal,
    ];
}

/// The error of a call.
///
/// ```
/// use ringfence_kernel::{Dialect, ErrorKind, ToolError};
///
/// let error = ToolError::new(ErrorKind::NotFound, "`a.txt` does not exist");
/// assert_eq!(Dialect::Miniclaw.render_error(&error), "path_not_found: `a.txt` does not exist");
/// assert_eq!(
///     Dialect::Standard.render_error(&error),
///     r#"{"ok":false,"error":{"code":"FILE_NOT_FOUND","message":"`a.txt` does not exist"}}"#
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ToolError {
    /// The machine-readable kind.
    pub kind: ErrorKind,
    /// The message for the reader: the affected thing and the next step, without host paths or contents.
    pub message: String,
    /// The argument with the error, in the caller's own spelling.
    pub field: Option<&'static str>,
    /// Further machine-readable fields, such as the limit that was exceeded.
    pub details: Box<Map<String, Value>>,
    /// Candidates for the intended name. The kernel names the nearest that the caller may list, and no other.
    pub suggestions: Option<Box<NameSuggestions>>,
    /// The text for models where the message alone does not say enough, such as that of a program with its output.
    pub model_text: Option<Box<str>>,
}

/// Names beside one that does not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameSuggestions {
    /// The name that does not exist.
    pub missing_name: String,
    /// Existing names, the nearest first.
    pub names: Vec<String>,
    /// The directory that has them.
    pub directory: PolicyResource,
    /// Prefix of each candidate in replies.
    pub display_prefix: String,
}

impl ToolError {
    /// An error without a field, details or suggestions.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            field: None,
            details: Box::default(),
            suggestions: None,
            model_text: None,
        }
    }

    /// The arguments have the right types, but the value of `field` is invalid.
    pub fn invalid(field: &'static str, problem: &str) -> Self {
        Self { field: Some(field), ..Self::new(ErrorKind::InvalidArgs, format!("{field} {problem}")) }
    }

    /// Adds the nearest name that `may_list` allows as a hint.
    #[must_use]
    pub(crate) fn suggest_name(mut self, may_list: impl Fn(&PolicyResource) -> bool) -> Self {
        let Some(alternatives) = self.suggestions.take() else { return self };
        let NameSuggestions { missing_name, mut names, directory, display_prefix } = *alternatives;
        while let Some(guess) = nearest_name(&missing_name, names.iter().map(String::as_str)).map(str::to_owned) {
            if may_list(&directory.join(&guess)) {
                return self.hint(&format!("did you mean `{display_prefix}{guess}`?"));
            }
            names.retain(|name| *name != guess);
        }
        self
    }

    /// Sets the text for models, for `standard` over MCP and the dialects of model families.
    #[must_use]
    pub fn with_model_text(self, text: String) -> Self {
        Self { model_text: Some(text.into()), ..self }
    }

    /// The text for models: the message, unless the error has more to say.
    pub fn to_model_text(&self) -> &str {
        self.model_text.as_deref().unwrap_or(&self.message)
    }

    /// Adds a field to `details`.
    #[must_use]
    pub fn detail(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.details.insert(key.to_owned(), value.into());
        self
    }

    /// Adds advice to the message: what to do next.
    #[must_use]
    pub fn hint(mut self, advice: &str) -> Self {
        self.message.push_str("; ");
        self.message.push_str(advice);
        self
    }
}

impl From<Infallible> for ToolError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}
