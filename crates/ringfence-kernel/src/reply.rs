//! Replies: structured values, the codes that each dialect has for errors, and the shape of its replies.
//!
//! A reply stays a value until a frontend writes it. Its text for the model is rendered once, here, because the audit
//! log has its digest; what else a frontend shows comes from the value, and the text is never parsed.
//!
//! Not here: names and arguments of tools (`tool_binding.rs`).

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::dialect::Dialect;
use crate::error::{ErrorKind, ToolError};
use crate::reply_card::ReplyCard;
use crate::suggest::nearest_name;

/// The text for models about arguments that a person changed.
pub const MODIFIED_NOTE: &str = "the user edited the arguments before this call ran";

/// Notes of the kernel on a successful call.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReplyNotes {
    /// The arguments that ran are not those that were asked for: a person changed them.
    pub modified: bool,
    /// The form of the reply's text.
    pub form: ReplyForm,
}

/// The form of a reply's text in the standard dialect. The other dialects have one form each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplyForm {
    /// The whole reply as JSON.
    #[default]
    Json,
    /// The text for models, where the result has one.
    ModelText,
}

/// The structured content of a successful reply. It becomes JSON only where a frontend asks for it.
#[derive(Clone, Default)]
pub struct ReplyValue {
    fields: Option<Arc<dyn ReplyFields>>,
    /// A text for models that was rendered with the reply.
    model_text: Option<Arc<str>>,
    shape: ReplyShape,
    notes: ReplyNotes,
}

/// Place of the fields in a reply of the dialect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ReplyShape {
    /// In `value`.
    #[default]
    Value,
    /// Beside `ok`.
    Flat,
    /// The dialect replies in text.
    Text,
}

/// A result with a text of its own for models: `standard` shows it over MCP, and the dialects of model families always.
pub trait ModelText {
    /// The text, of at most [`MODEL_TEXT_BYTES`](crate::MODEL_TEXT_BYTES) where it can be continued. The dialect
    /// decides how advice names arguments and tools, and nothing else.
    fn model_text(&self, dialect: Dialect) -> String;

    /// The image that the result is, which a frontend shows beside the text if it can.
    fn image(&self) -> Option<ReplyImage> {
        None
    }

    /// What a person's frontend draws of the result, where it is more than values.
    fn card(&self) -> Option<ReplyCard> {
        None
    }
}

/// An image in a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplyImage {
    /// Its media type, such as `image/png`.
    pub media_type: &'static str,
    /// The file, as it is.
    pub bytes: Arc<[u8]>,
}

/// A type-erased result of a tool.
trait ReplyFields: Send + Sync {
    fn to_value(&self) -> Value;
    fn model_text(&self, dialect: Dialect) -> Option<String>;
    fn image(&self) -> Option<ReplyImage>;
    fn card(&self) -> Option<ReplyCard>;
}

/// A result that is for programs.
struct ValueFields<V>(V);

/// A result that is for models too.
struct ModelFields<V>(V);

impl<V: Serialize + Send + Sync> ReplyFields for ValueFields<V> {
    fn to_value(&self) -> Value {
        serde_json::to_value(&self.0).unwrap_or_default()
    }

    fn model_text(&self, _: Dialect) -> Option<String> {
        None
    }

    fn image(&self) -> Option<ReplyImage> {
        None
    }

    fn card(&self) -> Option<ReplyCard> {
        None
    }
}

impl<V: Serialize + ModelText + Send + Sync> ReplyFields for ModelFields<V> {
    fn to_value(&self) -> Value {
        serde_json::to_value(&self.0).unwrap_or_default()
    }

    fn model_text(&self, dialect: Dialect) -> Option<String> {
        Some(self.0.model_text(dialect))
    }

    fn image(&self) -> Option<ReplyImage> {
        self.0.image()
    }

    fn card(&self) -> Option<ReplyCard> {
        self.0.card()
    }
}

/// A reply of a tool: for programs, and for the model.
#[derive(Debug)]
pub(crate) struct RenderedReply {
    pub(crate) value: ReplyValue,
    pub(crate) text: String,
}

impl ReplyValue {
    /// The value of a reply in the standard dialect.
    pub fn new(fields: impl Serialize + Send + Sync + 'static) -> Self {
        Self { fields: Some(Arc::new(ValueFields(fields))), ..Self::default() }
    }

    /// The same of a result that has a text for models.
    pub fn for_models(fields: impl Serialize + ModelText + Send + Sync + 'static) -> Self {
        Self { fields: Some(Arc::new(ModelFields(fields))), ..Self::default() }
    }

    /// The result of the tool, as its output schema has it; null where it has none. In a dialect that replies in text,
    /// the result as the standard dialect has it.
    pub fn to_value(&self) -> Value {
        self.fields.as_ref().map(|fields| fields.to_value()).unwrap_or_default()
    }

    /// The text of the result for a model, rendered on demand; nothing where the tool has none.
    pub fn model_text(&self, dialect: Dialect) -> Option<String> {
        match &self.model_text {
            Some(text) => Some(text.to_string()),
            None => self.fields.as_ref()?.model_text(dialect),
        }
    }

    /// The image that the result is.
    pub fn image(&self) -> Option<ReplyImage> {
        self.fields.as_ref()?.image()
    }

    /// What a person's frontend draws of the result, within bounds; nothing where its values are enough.
    pub fn card(&self) -> Option<ReplyCard> {
        Some(self.fields.as_ref()?.card()?.bounded())
    }

    /// The same with notes.
    #[must_use]
    pub fn with_notes(self, notes: ReplyNotes) -> Self {
        Self { notes, ..self }
    }

    /// Whether the text of the reply is the text for models.
    pub fn is_text(&self) -> bool {
        self.shape == ReplyShape::Text
    }

    /// Notes of the kernel.
    pub fn notes(&self) -> ReplyNotes {
        self.notes
    }

    /// The whole reply, as the dialect has it; nothing where that is a text.
    pub(crate) fn to_envelope(&self) -> Option<Value> {
        let (value, modified) = (self.to_value(), self.notes.modified);
        let mut envelope = match (self.shape, value) {
            (ReplyShape::Text, _) => return None,
            (ReplyShape::Flat, Value::Object(fields)) => fields,
            (ReplyShape::Flat | ReplyShape::Value, value) => Map::from_iter([("value".to_owned(), value)]),
        };
        envelope.insert("ok".to_owned(), Value::Bool(true));
        if modified {
            envelope.insert("modified".to_owned(), Value::Bool(true));
        }
        Some(Value::Object(envelope))
    }
}

impl fmt::Debug for ReplyValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplyValue").field("shape", &self.shape).field("notes", &self.notes).finish_non_exhaustive()
    }
}

impl RenderedReply {
    /// The standard dialect's reply that carries a value.
    pub(crate) fn with_value<V: Serialize + Send + Sync + 'static>(value: V, notes: ReplyNotes) -> Self {
        let text = to_json(&ValueEnvelope { ok: true, value: &value, modified: notes.modified });
        Self { value: ReplyValue::new(value).with_notes(notes), text }
    }

    /// The same with a text for models, which is rendered on demand.
    pub(crate) fn with_model_value<V: Serialize + ModelText + Send + Sync + 'static>(
        value: V,
        notes: ReplyNotes,
    ) -> Self {
        if notes.form == ReplyForm::ModelText {
            return Self::for_model(value, Dialect::Standard, notes);
        }
        let text = to_json(&ValueEnvelope { ok: true, value: &value, modified: notes.modified });
        Self { value: ReplyValue::for_models(value).with_notes(notes), text }
    }

    /// The same with a text for models that the tool rendered.
    pub(crate) fn with_model_text(self, model_text: String) -> Self {
        let Self { mut value, text } = self;
        match value.notes.form {
            ReplyForm::ModelText => {
                value.shape = ReplyShape::Text;
                Self { value, text: model_text }
            }
            ReplyForm::Json => Self { value: ReplyValue { model_text: Some(Arc::from(model_text)), ..value }, text },
        }
    }

    /// The reply whose fields stand beside `ok`.
    pub(crate) fn flat<V: Serialize + Send + Sync + 'static>(value: V, notes: ReplyNotes) -> Self {
        let text = to_json(&FlatEnvelope { ok: true, value: &value, modified: notes.modified });
        Self { value: ReplyValue { shape: ReplyShape::Flat, ..ReplyValue::new(value).with_notes(notes) }, text }
    }

    /// The reply of a dialect that replies in text.
    pub(crate) fn with_text<V: Serialize + Send + Sync + 'static>(text: String, value: V, notes: ReplyNotes) -> Self {
        Self { value: ReplyValue { shape: ReplyShape::Text, ..ReplyValue::new(value).with_notes(notes) }, text }
    }

    /// The reply of the dialect of a model family.
    pub(crate) fn for_model<V>(value: V, dialect: Dialect, notes: ReplyNotes) -> Self
    where
        V: Serialize + ModelText + Send + Sync + 'static,
    {
        let text = value.model_text(dialect);
        Self { value: ReplyValue { shape: ReplyShape::Text, ..ReplyValue::for_models(value).with_notes(notes) }, text }
    }
}

impl Dialect {
    /// The name that this dialect has for an error, as programs compare it.
    pub fn error_code(self, error: &ToolError) -> &'static str {
        match self {
            Self::Standard | Self::Claude | Self::Codex | Self::Gemini => standard_code(error.kind),
            Self::Miniclaw => miniclaw_code(error),
            Self::Crewagent => crewagent_code(error.kind),
        }
    }

    /// The reply that says a call failed.
    pub fn render_error(self, error: &ToolError) -> String {
        match self {
            Self::Standard | Self::Crewagent => to_json(&ErrorEnvelope::new(self, error)),
            Self::Claude | Self::Codex | Self::Gemini => error.to_model_text().to_owned(),
            // This one is a whole sentence instead of a category and its detail.
            Self::Miniclaw if error.kind == ErrorKind::UnknownTool => error.message.clone(),
            // One line: a second one could be taken for another reply.
            Self::Miniclaw => {
                format!("{}: {}", self.error_code(error), error.message.replace(['\n', '\r'], " "))
            }
        }
    }

    /// The same as a value; nothing where this dialect replies in text.
    pub(crate) fn error_envelope(self, error: &ToolError) -> Option<Value> {
        match self {
            Self::Standard | Self::Crewagent => serde_json::to_value(ErrorEnvelope::new(self, error)).ok(),
            Self::Miniclaw | Self::Claude | Self::Codex | Self::Gemini => None,
        }
    }

    /// The error for a call of a tool that this session is not offered.
    pub(crate) fn unknown_tool_error<'a>(self, name: &str, offered: impl Iterator<Item = &'a str>) -> ToolError {
        let name = &name[..name.floor_char_boundary(64)];
        let known: Vec<&str> = offered.collect();
        let message = match self {
            Self::Miniclaw => format!("tool not found: {name}. Available tools: {}", known.join(", ")),
            Self::Standard | Self::Crewagent | Self::Claude | Self::Codex | Self::Gemini => {
                match nearest_name(name, known.iter().copied()) {
                    Some(guess) => format!("unknown tool `{name}`; did you mean `{guess}`?"),
                    None => format!("unknown tool `{name}`"),
                }
            }
        };
        ToolError::new(ErrorKind::UnknownTool, message).detail("available", known)
    }
}

impl ErrorKind {
    /// Error code outside of any dialect: the standard one's name.
    pub fn code(self) -> &'static str {
        standard_code(self)
    }
}

fn standard_code(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::InvalidArgs => "INVALID_ARGS",
        ErrorKind::InvalidPath | ErrorKind::OutsideWorkspace => "INVALID_PATH",
        ErrorKind::ReadOnly | ErrorKind::PermissionDenied => "PERMISSION_DENIED",
        ErrorKind::NotFound => "FILE_NOT_FOUND",
        ErrorKind::AlreadyExists => "ALREADY_EXISTS",
        ErrorKind::ApprovalDenied => "APPROVAL_DENIED",
        ErrorKind::ApprovalPending => "APPROVAL_PENDING",
        ErrorKind::NotText => "NOT_TEXT",
        ErrorKind::WrongType => "WRONG_TYPE",
        ErrorKind::ReadLimit => "READ_LIMIT",
        ErrorKind::WriteLimit => "WRITE_LIMIT",
        ErrorKind::Conflict => "CONFLICT",
        ErrorKind::EditNotFound => "EDIT_NOT_FOUND",
        ErrorKind::AmbiguousEdit => "AMBIGUOUS_EDIT",
        ErrorKind::Frontmatter => "INVALID_FRONTMATTER",
        ErrorKind::Schema => "SCHEMA_VALIDATION",
        ErrorKind::Transition => "INVALID_TRANSITION",
        ErrorKind::Timeout => "TIMEOUT",
        ErrorKind::Cancelled => "CANCELLED",
        ErrorKind::UnknownTool => "UNKNOWN_TOOL",
        ErrorKind::Execution => "EXECUTION_ERROR",
        ErrorKind::Network => "NETWORK_ERROR",
        ErrorKind::Unavailable => "UNAVAILABLE",
        ErrorKind::Io => "IO_ERROR",
        ErrorKind::Internal => "INTERNAL",
    }
}

fn miniclaw_code(error: &ToolError) -> &'static str {
    match error.kind {
        ErrorKind::InvalidArgs if error.field.is_some_and(|field| matches!(field, "path" | "old_text")) => {
            "invalid_path"
        }
        ErrorKind::InvalidArgs => "invalid parameters",
        ErrorKind::InvalidPath => "invalid_path",
        ErrorKind::OutsideWorkspace => "outside_workspace",
        ErrorKind::NotFound => "path_not_found",
        ErrorKind::ReadOnly | ErrorKind::PermissionDenied | ErrorKind::ApprovalDenied | ErrorKind::ApprovalPending => {
            "permission_denied"
        }
        ErrorKind::EditNotFound => "edit_not_found",
        ErrorKind::AmbiguousEdit => "ambiguous_edit",
        ErrorKind::UnknownTool => "tool not found",
        ErrorKind::AlreadyExists
        | ErrorKind::NotText
        | ErrorKind::WrongType
        | ErrorKind::ReadLimit
        | ErrorKind::WriteLimit
        | ErrorKind::Conflict
        | ErrorKind::Frontmatter
        | ErrorKind::Schema
        | ErrorKind::Transition
        | ErrorKind::Timeout
        | ErrorKind::Cancelled
        | ErrorKind::Execution
        | ErrorKind::Network
        | ErrorKind::Unavailable
        | ErrorKind::Io
        | ErrorKind::Internal => "io_error",
    }
}

fn crewagent_code(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::InvalidArgs => "E_INVALID_ARGS",
        ErrorKind::InvalidPath | ErrorKind::OutsideWorkspace | ErrorKind::ReadOnly => "E_SANDBOX_VIOLATION",
        ErrorKind::NotFound => "ENOENT",
        ErrorKind::AlreadyExists | ErrorKind::Conflict | ErrorKind::EditNotFound | ErrorKind::AmbiguousEdit => {
            "E_PRECONDITION_FAILED"
        }
        ErrorKind::ApprovalDenied => "E_APPROVAL_DENIED",
        ErrorKind::ApprovalPending => "E_APPROVAL_PENDING",
        ErrorKind::NotText => "FS_READ_BINARY_FALLBACK",
        ErrorKind::ReadLimit => "E_READ_LIMIT",
        ErrorKind::WriteLimit => "E_WRITE_LIMIT",
        ErrorKind::Frontmatter => "E_INVALID_FRONTMATTER",
        ErrorKind::Schema => "E_SCHEMA_VALIDATION",
        ErrorKind::Transition => "E_INVALID_TRANSITION",
        ErrorKind::Timeout => "E_TIMEOUT",
        ErrorKind::Cancelled => "E_CANCELLED",
        ErrorKind::UnknownTool | ErrorKind::Unavailable => "TOOL_NOT_AVAILABLE",
        ErrorKind::Execution => "TOOL_EXEC_FAILED",
        ErrorKind::Network => "E_NETWORK",
        ErrorKind::PermissionDenied | ErrorKind::WrongType | ErrorKind::Io | ErrorKind::Internal => "E_INTERNAL",
    }
}

#[derive(Serialize)]
struct ValueEnvelope<'a, V> {
    ok: bool,
    value: &'a V,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    modified: bool,
}

#[derive(Serialize)]
struct FlatEnvelope<'a, V> {
    ok: bool,
    #[serde(flatten)]
    value: &'a V,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    modified: bool,
}

#[derive(Serialize)]
struct ErrorEnvelope<'a> {
    ok: bool,
    error: DialectErrorBody<'a>,
}

#[derive(Serialize)]
struct DialectErrorBody<'a> {
    code: &'a str,
    message: &'a str,
    #[serde(skip_serializing_if = "Map::is_empty")]
    details: Cow<'a, Map<String, Value>>,
}

impl<'a> ErrorEnvelope<'a> {
    fn new(dialect: Dialect, error: &'a ToolError) -> Self {
        let mut details = Cow::Borrowed(&*error.details);
        // This dialect has no name for it, so it says why.
        if dialect == Dialect::Crewagent && error.kind == ErrorKind::PermissionDenied {
            details.to_mut().entry("reason").or_insert_with(|| "permission denied".into());
        }
        let body = DialectErrorBody { code: dialect.error_code(error), message: &error.message, details };
        Self { ok: false, error: body }
    }
}

/// Our own reply types have string keys and no failing `Serialize`, the two things that could go wrong.
fn to_json<V: Serialize>(value: &V) -> String {
    serde_json::to_string(value).unwrap_or_else(|_| {
        r#"{"ok":false,"error":{"code":"INTERNAL","message":"the reply could not be serialized as JSON"}}"#.to_owned()
    })
}
