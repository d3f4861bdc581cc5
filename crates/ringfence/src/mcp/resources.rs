//! MCP resources: files of the workspace.
//!
//! A resource is read by a call of `read_file`, so the same rules, limits and records hold for it. It never requests
//! approval: a read that needs one is refused, with the advice to call the tool.
//!
//! Not here: lists of files. The tools are better at those.

use ringfence_kernel::{Dialect, ErrorKind, Session, ToolError, ToolReply};
use rmcp::model::{ErrorCode, ErrorData, MetaObject, ReadResourceResult, ResourceContents, ResourceTemplate};
use serde_json::{Map, Value, json};

use crate::codec::percent::percent_decode;
use crate::mcp::truncate;

/// URI of a resource: this, and its path.
const URI_PREFIX: &str = "ringfence:///";

/// Whether a session has files to read in this way.
pub(super) fn are_available(session: &Session) -> bool {
    session.dialect == Dialect::Standard && session.catalog.get("read_file").is_some()
}

pub(super) fn template() -> ResourceTemplate {
    ResourceTemplate::new(format!("{URI_PREFIX}{{+path}}"), "workspace file").with_description(
        "A file in the workspace, or in a mount as `@ALIAS/…`. A large file is truncated; read it by lines with the \
         tool `read_file`.",
    )
}

/// The path of a resource.
pub(super) fn path(uri: &str) -> Result<String, ErrorData> {
    let path = uri.strip_prefix(URI_PREFIX).and_then(percent_decode).filter(|path| !path.is_empty());
    path.ok_or_else(|| {
        let message = format!("resource URIs are `{URI_PREFIX}` followed by a path in the workspace");
        ErrorData::invalid_params(message, Some(json!({"uri": truncate_uri(uri)})))
    })
}

/// Encoding of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResourceEncoding {
    Text,
    Bytes,
}

impl ResourceEncoding {
    /// The arguments for `read_file`.
    pub(super) fn arguments(self, path: &str) -> String {
        let encoding = match self {
            Self::Text => "utf-8",
            Self::Bytes => "base64",
        };
        json!({"path": path, "encoding": encoding}).to_string()
    }
}

/// The result of a read.
pub(super) fn read_result(
    uri: &str,
    reply: &ToolReply,
    form: ResourceEncoding,
    most: usize,
) -> Result<ReadResourceResult, ErrorData> {
    let value = match &reply.outcome {
        Ok(value) => value.to_value(),
        Err(error) => return Err(read_error(error, uri)),
    };
    let whole = value["content"].as_str().unwrap_or_default();
    // The response repeats the whole URI.
    let content = truncate::truncate_text(whole, most.saturating_sub(json!(uri).to_string().len()));
    let is_cut = content.len() < whole.len() || value["truncated"] == true;
    let mut contents = match form {
        ResourceEncoding::Text => ResourceContents::text(&*content, uri).with_mime_type("text/plain"),
        ResourceEncoding::Bytes => ResourceContents::blob(&*content, uri).with_mime_type("application/octet-stream"),
    };
    if is_cut {
        let meta = Map::from_iter([("ringfence/truncated".to_owned(), Value::Bool(true))]);
        contents = contents.with_meta(MetaObject(meta));
    }
    Ok(ReadResourceResult::new(vec![contents]))
}

fn read_error(error: &ToolError, uri: &str) -> ErrorData {
    let code = match error.kind {
        ErrorKind::NotFound => ErrorCode::RESOURCE_NOT_FOUND,
        ErrorKind::Io | ErrorKind::Internal | ErrorKind::Timeout => ErrorCode::INTERNAL_ERROR,
        _ => ErrorCode::INVALID_PARAMS,
    };
    ErrorData::new(code, error.message.clone(), Some(json!({"uri": truncate_uri(uri)})))
}

/// The part of a URI that is quoted.
fn truncate_uri(uri: &str) -> &str {
    &uri[..uri.floor_char_boundary(4 << 10)]
}

#[cfg(test)]
mod tests {
    use super::path;

    #[test]
    fn a_resource_is_a_path_of_the_workspace() {
        assert_eq!(path("ringfence:///src/main.rs").unwrap(), "src/main.rs");
        assert_eq!(path("ringfence:///@docs/a%20b").unwrap(), "@docs/a b");
        for uri in ["ringfence:///", "ringfence://host/a", "file:///etc/passwd", "src/main.rs", ""] {
            path(uri).unwrap_err();
        }
    }
}
