//! Response schemas of values that other rooms produce: tools, the store, the audit log.
//!
//! They say in the API's document what such a value has. The value itself goes out as it came, so a field that is new
//! there is not lost here.

use std::borrow::Cow;
use std::marker::PhantomData;

use ringfence_kernel::PreviewBody;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use crate::codec::renamed_keys::document_old_keys;

/// A value that is documented as a `T`.
#[derive(Debug)]
pub(super) struct DocumentedValue<T> {
    value: Value,
    schema: PhantomData<fn() -> T>,
}

impl<T> From<Value> for DocumentedValue<T> {
    fn from(value: Value) -> Self {
        Self { value, schema: PhantomData }
    }
}

impl<T> Serialize for DocumentedValue<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.value.serialize(serializer)
    }
}

impl<T: JsonSchema> JsonSchema for DocumentedValue<T> {
    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }

    fn schema_id() -> Cow<'static, str> {
        T::schema_id()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        T::json_schema(generator)
    }
}

/// The changes of a workspace.
#[derive(Debug, JsonSchema)]
#[expect(dead_code, reason = "it is the type of a document")]
pub(super) struct ChangeList {
    changes: Vec<ChangeView>,
    /// Older changes exist that are not listed.
    truncated: bool,
}

/// One change.
#[derive(Debug, JsonSchema)]
#[expect(dead_code, reason = "it is the type of a document")]
pub(super) struct ChangeView {
    /// The id of the change.
    change: String,
    #[schemars(extend("format" = "date-time"))]
    time: String,
    session: String,
    call: String,
    tool: String,
    paths: Vec<String>,
    /// `done`, `undone`, `gone` if it can no longer be undone, or `pending` while it is in progress.
    state: String,
    /// The changes that this one undid.
    #[schemars(default)]
    undoes: Vec<String>,
}

/// A change with its diff.
#[derive(Debug, JsonSchema)]
#[expect(dead_code, reason = "it is the type of a document")]
pub(super) struct ChangeDetails {
    #[schemars(flatten)]
    change: ChangeView,
    /// A unified diff, for text files.
    diff: String,
    /// The diff may show a secret.
    secret: Option<bool>,
}

/// The result of an undo or redo, or of its dry run.
#[derive(Debug, JsonSchema)]
#[schemars(rename_all = "camelCase")]
#[expect(dead_code, reason = "it is the type of a document")]
pub(super) struct UndoResult {
    /// The changes that were undone, newest first.
    undone: Vec<String>,
    /// Every path that changed.
    paths: Vec<String>,
    /// The id of this change, for `redo`. Omitted if nothing was done.
    change: Option<String>,
    /// A dry run: nothing was done.
    dry_run: Option<bool>,
    /// The overwritten contents are too large to be kept, so `redo` cannot restore them.
    lost: Option<bool>,
    /// The diff that a dry run would apply.
    diff: Option<String>,
    /// The diff may show a secret.
    secret: Option<bool>,
}

/// The entries of a directory.
#[derive(Debug, JsonSchema)]
#[expect(dead_code, reason = "it is the type of a document")]
pub(super) struct DirectoryListing {
    entries: Vec<DirectoryEntry>,
    /// More entries exist than are listed.
    truncated: Option<bool>,
    /// The total number of entries, if not all are listed.
    total: Option<u64>,
    /// Directories that could not be read.
    unreadable: Option<u64>,
}

#[derive(Debug, JsonSchema)]
#[schemars(rename_all = "camelCase")]
#[expect(dead_code, reason = "it is the type of a document")]
pub(super) struct DirectoryEntry {
    name: String,
    /// `file`, `directory` or `symlink`; rarely `fifo`, `socket` or `device`.
    r#type: String,
    /// In bytes; 0 for a directory.
    size: u64,
    #[schemars(extend("format" = "date-time"))]
    modified: String,
    /// The name is not UTF-8; bytes of it are written as `\xHH`.
    non_utf8: Option<bool>,
    /// A mount has this name; use a leading `./` for the entry.
    shadowed: Option<bool>,
}

/// A file as text.
#[derive(Debug, JsonSchema)]
#[schemars(rename_all = "camelCase")]
#[expect(dead_code, reason = "it is the type of a document")]
pub(super) struct FileText {
    content: String,
    /// The size of the whole file, in bytes.
    size: u64,
    #[schemars(extend("format" = "date-time"))]
    modified: String,
    /// The SHA-256 of the whole file; null if it is too large to hash.
    sha256: Option<String>,
    /// `content` is only the first part of the file.
    truncated: bool,
    /// The file starts with a byte order mark, which `content` omits.
    bom: Option<bool>,
    /// The number of hard links, if more than one.
    links: Option<u64>,
}

/// An approval request.
#[derive(Debug, JsonSchema)]
#[schemars(rename_all = "camelCase")]
#[expect(dead_code, reason = "it is the type of a document")]
pub(super) struct ApprovalView {
    id: String,
    /// The call that waits.
    step_id: String,
    session: String,
    /// The principal that makes the call. It can never answer the request.
    principal: String,
    agent: Option<String>,
    tool: String,
    /// The arguments as sent by the caller. Null if the request is about a secret and the token is not a web UI session's.
    args: Option<Map<String, Value>>,
    reason: String,
    /// The rule that requires approval.
    rule: String,
    /// The policy layer of the rule: `managed`, `user`, `workspace`, `preset`, and so on.
    layer: String,
    /// The minimum assurance of an answer: `none`, `relayed` or `person`.
    assurance: String,
    /// The effect of the call, as text.
    preview: String,
    /// The effect of the call, on one line.
    summary: String,
    /// The preview shows the contents of a secret.
    secret: bool,
    fingerprint: String,
    /// Further notes, a line each.
    lines: Vec<String>,
    /// The changes, or what else there is to see.
    body: PreviewBody,
    /// The rule that "always" would add, if one can be added.
    grant: Option<String>,
    /// The call is deferred, and runs only when the caller calls again.
    suspended: bool,
    #[schemars(extend("format" = "date-time"))]
    opened: String,
    /// When the request expires.
    #[schemars(extend("format" = "date-time"))]
    expires: String,
}

/// A persistent approval.
#[derive(Debug, JsonSchema)]
#[expect(dead_code, reason = "it is the type of a document")]
pub(super) struct GrantView {
    id: String,
    /// The rule, with the keys of `[[rules]]`.
    rule: Map<String, Value>,
    /// The directory that the grant applies to.
    directory: String,
    by: String,
    #[schemars(extend("format" = "date-time"))]
    since: String,
    #[schemars(extend("format" = "date-time"))]
    until: String,
}

/// An audit log record. Its other fields depend on `event`. Records of version 1 are given in the vocabulary
/// of version 2.
#[derive(Debug, JsonSchema)]
#[expect(dead_code, reason = "it is the type of a document")]
pub(super) struct AuditRecordView {
    /// The version of the vocabulary.
    v: Option<u64>,
    seq: Option<u64>,
    /// `begin`, `end`, `refused`, `overdue`, `access`, `discarded`, and so on.
    event: Option<String>,
    /// When the record was written, for event records.
    ts: Option<String>,
    session: Option<String>,
    principal: Option<String>,
    tool: Option<String>,
    /// What the call accesses.
    accesses: Option<Vec<AuditAccessView>>,
    #[schemars(flatten)]
    other: Map<String, Value>,
}

/// An action on a resource.
#[derive(Debug, JsonSchema)]
#[expect(dead_code, reason = "it is the type of a document")]
pub(super) struct AuditAccessView {
    action: String,
    path: String,
    /// The resolved path, if it differs.
    real: Option<String>,
}

/// A tool. In the formats `openai` and `functions` it has only the fields of that format.
#[derive(Debug, JsonSchema)]
#[schemars(rename_all = "camelCase", transform = document_old_keys)]
#[expect(dead_code, reason = "it is the type of a document")]
pub(super) struct ToolView {
    name: Option<String>,
    description: Option<String>,
    /// JSON Schema of the arguments.
    parameters: Option<Map<String, Value>>,
    /// JSON Schema of the value in a successful reply.
    output: Option<Map<String, Value>>,
    effect: Option<ToolEffect>,
    /// The same as in `effect`.
    read_only: Option<bool>,
    /// Whether calls require approval under the current policy: `never`, `always`, or `sometimes` if it depends on the
    /// arguments.
    requires_approval: Option<String>,
    /// `function` in the format `openai`.
    r#type: Option<String>,
    /// The function, in the format `openai`.
    function: Option<Map<String, Value>>,
}

/// The effect of a tool, in the terms of MCP's tool annotations.
#[derive(Debug, JsonSchema)]
#[schemars(rename_all = "camelCase", transform = document_old_keys)]
#[expect(dead_code, reason = "it is the type of a document")]
pub(super) struct ToolEffect {
    /// It changes nothing.
    read_only: bool,
    /// It can delete or overwrite.
    destructive: bool,
    /// It reaches other machines or programs.
    open_world: bool,
    /// Repeating a call has no further effect.
    idempotent: bool,
}

/// The isolation mechanisms that programs run in.
#[derive(Debug, JsonSchema)]
#[schemars(transform = document_old_keys)]
#[expect(dead_code, reason = "it is the type of a document")]
pub(super) struct IsolationReport {
    isolation: Vec<IsolationView>,
}

/// An isolation mechanism on this machine.
#[derive(Debug, JsonSchema)]
#[schemars(transform = document_old_keys)]
#[expect(dead_code, reason = "it is the type of a document")]
pub(super) struct IsolationView {
    /// The name of the mechanism.
    mechanism: String,
    /// It works on this machine.
    available: bool,
    /// The result of the check.
    note: String,
    /// How to fix or improve it.
    advice: Option<String>,
}
