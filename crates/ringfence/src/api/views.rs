//! Types of replies whose values come from elsewhere: tools, the store, the audit log.
//!
//! They say in the API's document what such a value has. The value itself goes out as it came, so a field that is new
//! there is not lost here.

use std::borrow::Cow;
use std::marker::PhantomData;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

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
    /// There are older ones that are not listed.
    truncated: bool,
}

/// One change.
#[derive(Debug, JsonSchema)]
#[expect(dead_code, reason = "it is the type of a document")]
pub(super) struct ChangeView {
    /// Its id.
    change: String,
    #[schemars(extend("format" = "date-time"))]
    time: String,
    session: String,
    call: String,
    tool: String,
    paths: Vec<String>,
    /// `done`, `undone`, `gone` when it can no longer be undone, or `pending` while it is being made.
    state: String,
    /// The changes that it undid.
    #[schemars(default)]
    undoes: Vec<String>,
}

/// What one change did.
#[derive(Debug, JsonSchema)]
#[expect(dead_code, reason = "it is the type of a document")]
pub(super) struct ChangeDetails {
    #[schemars(flatten)]
    change: ChangeView,
    /// A unified diff, where it is text.
    diff: String,
    /// The diff may show a secret.
    secret: Option<bool>,
}

/// What an undo or a redo did, or would do.
#[derive(Debug, JsonSchema)]
#[schemars(rename_all = "camelCase")]
#[expect(dead_code, reason = "it is the type of a document")]
pub(super) struct UndoResult {
    /// The changes that were undone, the newest first.
    undone: Vec<String>,
    /// Every path that changed.
    paths: Vec<String>,
    /// The id of this change, for `redo`. Left out if nothing was done.
    change: Option<String>,
    /// Nothing was done: this is what would be.
    dry_run: Option<bool>,
    /// What it displaces is too large to be kept, so no `redo` brings it back.
    lost: Option<bool>,
    /// What would happen to contents, for a dry run.
    diff: Option<String>,
    /// The diff may show a secret.
    secret: Option<bool>,
}

/// The entries of a directory.
#[derive(Debug, JsonSchema)]
#[expect(dead_code, reason = "it is the type of a document")]
pub(super) struct DirectoryListing {
    entries: Vec<DirectoryEntry>,
    /// There are more entries than were listed.
    truncated: Option<bool>,
    /// How many there are, when not all were listed.
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
    /// A mount has this name; the entry is reached with `./` in front.
    shadowed: Option<bool>,
}

/// A file as text.
#[derive(Debug, JsonSchema)]
#[schemars(rename_all = "camelCase")]
#[expect(dead_code, reason = "it is the type of a document")]
pub(super) struct FileText {
    content: String,
    /// Of the whole file, in bytes.
    size: u64,
    #[schemars(extend("format" = "date-time"))]
    modified: String,
    /// Of the whole file; null when it is too large to hash.
    sha256: Option<String>,
    /// `content` is only the first part of the file.
    truncated: bool,
    /// The file begins with a byte order mark, which `content` leaves out.
    bom: Option<bool>,
    /// How many names the file has, where it has several.
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
    /// Whose call it is. They never answer it.
    principal: String,
    agent: Option<String>,
    tool: String,
    /// As the caller sent them. Null where the request is about a secret and the token is not a person's page.
    args: Option<Map<String, Value>>,
    reason: String,
    /// The rule that wants it approved.
    rule: String,
    /// Whose rule it is: `managed`, `user`, `workspace`, `preset`, and so on.
    layer: String,
    /// The least an answer must be: `none`, `relayed` or `person`.
    assurance: String,
    /// What would happen, as text.
    preview: String,
    /// The same in one line.
    summary: String,
    /// The preview shows what is or will be in a secret.
    secret: bool,
    fingerprint: String,
    /// The rule that "always" would add, where one may be added.
    grant: Option<String>,
    /// The call returned to its caller, and goes on only when the caller calls again.
    suspended: bool,
    #[schemars(extend("format" = "date-time"))]
    opened: String,
    /// Until when an answer counts.
    #[schemars(extend("format" = "date-time"))]
    expires: String,
}

/// A persistent approval.
#[derive(Debug, JsonSchema)]
#[expect(dead_code, reason = "it is the type of a document")]
pub(super) struct GrantView {
    id: String,
    /// The rule that it adds, with the keys of `[[rules]]`.
    rule: Map<String, Value>,
    /// The directory that it is about.
    directory: String,
    by: String,
    #[schemars(extend("format" = "date-time"))]
    since: String,
    #[schemars(extend("format" = "date-time"))]
    until: String,
}

/// A record of the audit log. Which other fields it has depends on `event`. Records of version 1 are given in the vocabulary
/// of version 2.
#[derive(Debug, JsonSchema)]
#[expect(dead_code, reason = "it is the type of a document")]
pub(super) struct AuditRecordView {
    /// The version of the vocabulary.
    v: Option<u64>,
    seq: Option<u64>,
    /// `begin`, `end`, `refused`, `overdue`, `access`, `discarded`, and so on.
    event: Option<String>,
    /// When it was written, where the record is of an event.
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
    /// Where that really was, if it is not what the caller called it.
    real: Option<String>,
}

/// A tool. In the forms `openai` and `functions` it has the fields of that form alone.
#[derive(Debug, JsonSchema)]
#[schemars(rename_all = "camelCase")]
#[expect(dead_code, reason = "it is the type of a document")]
pub(super) struct ToolView {
    name: Option<String>,
    description: Option<String>,
    /// JSON Schema of the arguments.
    parameters: Option<Map<String, Value>>,
    /// JSON Schema of the value in a success reply.
    output: Option<Map<String, Value>>,
    effect: Option<ToolEffect>,
    only_reads: Option<bool>,
    /// Whether calls require approval under the current policy: `never`, `always`, or `sometimes` where it depends on the
    /// arguments.
    requires_approval: Option<String>,
    /// `function` in the form `openai`.
    r#type: Option<String>,
    /// The function, in the form `openai`.
    function: Option<Map<String, Value>>,
}

#[derive(Debug, JsonSchema)]
#[schemars(rename_all = "camelCase")]
#[expect(dead_code, reason = "it is the type of a document")]
pub(super) struct ToolEffect {
    only_reads: bool,
    destroys: bool,
    reaches_out: bool,
    same_again: bool,
}

/// One isolation mechanism of this machine.
#[derive(Debug, JsonSchema)]
#[expect(dead_code, reason = "it is the type of a document")]
pub(super) struct IsolationView {
    wall: String,
    stands: bool,
    /// What was found.
    note: String,
    /// What to do, where it is missing or could be better.
    advice: Option<String>,
}
