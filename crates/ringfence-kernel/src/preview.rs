//! Approval previews, and the digest that binds an answer to one.
//!
//! Everything in a preview was sanitized when it was put in (`sanitize.rs`), so a frontend can show it as it is.
//!
//! Not here: making one. Each tool knows what it would do.

use std::borrow::Cow;
use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::line_diff::LineDiff;
use crate::sanitize::{sanitize_line, sanitize_text};
use crate::{ResourceAccess, ToolError};

/// Most resolved paths that are named.
const MAX_RESOLVED_NAMES: usize = 5;

/// Preview of a call's effects, for an approver.
///
/// ```
/// use ringfence_kernel::{Preview, PreviewBody};
///
/// let preview = Preview::new("write `.env`", "fingerprint")
///     .with_body(PreviewBody::Text("TOKEN=1".to_owned()))
///     .with_secret(true);
/// assert_eq!(preview.text(), "write `.env`\nTOKEN=1");
/// assert_eq!(preview.redacted().text(), "write `.env`");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "StoredPreview", into = "StoredPreview")]
pub struct Preview {
    summary: String,
    /// Further notes, a line each.
    lines: Vec<String>,
    body: PreviewBody,
    fingerprint: String,
    secret: bool,
    failure: Option<Box<ToolError>>,
}

/// The part of a preview that can be long.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", content = "value", rename_all = "camelCase")]
pub enum PreviewBody {
    /// No body: the summary says everything.
    #[default]
    None,
    /// Changes of files, line by line.
    Diff(LineDiff),
    /// Words about what cannot be shown as a diff.
    Text(String),
    /// Entries that are deleted or moved along.
    List(PreviewList),
    /// A program that would run.
    Code(String),
    /// The URL of a request.
    Url(String),
}

/// Entries of a directory, as many as are worth listing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PreviewList {
    /// The listed entries.
    pub entries: Vec<PreviewEntry>,
    /// The number of further entries.
    pub more: u64,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PreviewEntry {
    /// Display form of the path.
    pub path: String,
    /// Size in bytes.
    pub size: u64,
    /// `file`, `directory`, `symlink`; rarely another.
    pub kind: Cow<'static, str>,
}

/// A preview in the store and for programs: as text too, which is all that earlier versions have.
#[derive(Serialize, Deserialize)]
struct StoredPreview {
    preview: String,
    summary: String,
    secret: bool,
    #[serde(default)]
    fingerprint: String,
    #[serde(default)]
    lines: Vec<String>,
    #[serde(default)]
    body: Option<PreviewBody>,
}

impl From<Preview> for StoredPreview {
    fn from(shown: Preview) -> Self {
        let preview = shown.text();
        let Preview { summary, lines, body, fingerprint, secret, .. } = shown;
        Self { preview, summary, secret, fingerprint, lines, body: Some(body) }
    }
}

impl From<StoredPreview> for Preview {
    fn from(stored: StoredPreview) -> Self {
        let StoredPreview { preview, summary, secret, fingerprint, lines, body } = stored;
        let body =
            body.unwrap_or_else(|| match preview.strip_prefix(&summary).and_then(|text| text.strip_prefix('\n')) {
                Some(text) => PreviewBody::Text(text.to_owned()),
                None => PreviewBody::None,
            });
        Self { summary, lines, body, fingerprint, secret, failure: None }
    }
}

impl Preview {
    /// In one line what would happen. The fingerprint is of what was found, and not of the arguments: it changes when they
    /// would do something else than is shown.
    pub fn new(summary: &str, fingerprint: impl Into<String>) -> Self {
        Self { summary: sanitize_line(summary), fingerprint: fingerprint.into(), ..Self::default() }
    }

    /// Says more on a line of its own, above the body: however long it is, nothing else is cut off for it.
    #[must_use]
    pub fn with_line(mut self, text: &str) -> Self {
        self.lines.push(sanitize_line(text));
        self
    }

    /// Sets the body.
    #[must_use]
    pub fn with_body(mut self, body: PreviewBody) -> Self {
        self.body = match body {
            PreviewBody::None => PreviewBody::None,
            PreviewBody::Diff(diff) => PreviewBody::Diff(diff.sanitized()),
            PreviewBody::Text(text) => PreviewBody::Text(sanitize_text(&text)),
            PreviewBody::Code(text) => PreviewBody::Code(sanitize_text(&text)),
            PreviewBody::Url(text) => PreviewBody::Url(sanitize_line(&text)),
            PreviewBody::List(mut list) => {
                for entry in &mut list.entries {
                    entry.path = sanitize_line(&entry.path);
                }
                PreviewBody::List(list)
            }
        };
        self
    }

    /// Binds an answer to where it would happen, and says so where that is not what the caller called it.
    #[must_use]
    pub(crate) fn bound_to(mut self, accesses: &[ResourceAccess]) -> Self {
        let mut hash = Sha256::new();
        for ResourceAccess { action, resource } in accesses {
            let resolved = resource.resolved_path.as_deref();
            let parts = [action.as_str(), &resource.mount, &resource.requested_path, resolved.unwrap_or_default()];
            for part in parts {
                hash.update(part.len().to_le_bytes());
                hash.update(part);
            }
            hash.update([u8::from(resolved.is_some())]);
        }
        let digest = hash.finalize();
        let hex = digest.iter().take(16).fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
        self.fingerprint = format!("{}@{hex}", self.fingerprint);
        let mut named: Vec<(&str, String)> = Vec::new();
        for resource in accesses.iter().map(|access| &access.resource) {
            let real = resource
                .resolved_display_path()
                .filter(|_| !named.iter().any(|(shown, _)| *shown == resource.display_path));
            named.extend(real.map(|real| (resource.display_path.as_str(), real)));
        }
        for (shown, real) in named.iter().take(MAX_RESOLVED_NAMES) {
            let _ = write!(self.summary, "; `{}` is `{}`", sanitize_line(shown), sanitize_line(real));
        }
        if let Some(more @ 1..) = named.len().checked_sub(MAX_RESOLVED_NAMES) {
            let _ = write!(self.summary, "; {more} more are links to other paths");
        }
        self
    }

    /// Says why the call is certain to fail, where that is known already.
    #[must_use]
    pub fn with_failure(mut self, failure: Option<ToolError>) -> Self {
        self.failure = failure.map(Box::new);
        self
    }

    /// The error that the call is certain to end with. It reveals contents of the target, so only callers who may read
    /// that get it.
    pub fn failure(&self) -> Option<&ToolError> {
        self.failure.as_deref()
    }

    /// Says whether the body shows what is or shall be in a secret.
    #[must_use]
    pub fn with_secret(mut self, secret: bool) -> Self {
        self.secret = secret && self.body != PreviewBody::None;
        self
    }

    /// The same for a channel that others hear: without the body, if that shows a secret.
    #[must_use]
    pub fn redacted(&self) -> Self {
        match self.secret {
            true => Self { lines: Vec::new(), body: PreviewBody::None, secret: false, ..self.clone() },
            false => self.clone(),
        }
    }

    /// The summary, one sentence.
    pub fn summary(&self) -> &str {
        &self.summary
    }

    /// Further notes, a line each.
    pub fn lines(&self) -> &[String] {
        &self.lines
    }

    /// The body.
    pub fn body(&self) -> &PreviewBody {
        &self.body
    }

    /// The fingerprint, which an approval is bound to.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Whether the body shows what is or shall be in a secret.
    pub fn is_secret(&self) -> bool {
        self.secret
    }

    /// All of it as plain text.
    pub fn text(&self) -> String {
        let mut text = self.summary.clone();
        for line in &self.lines {
            let _ = write!(text, "\n{line}");
        }
        match &self.body {
            PreviewBody::None => {}
            PreviewBody::Diff(diff) => {
                let _ = write!(text, "\n{diff}");
            }
            PreviewBody::Text(body) | PreviewBody::Code(body) | PreviewBody::Url(body) => {
                let _ = write!(text, "\n{body}");
            }
            PreviewBody::List(PreviewList { entries, more }) => {
                for PreviewEntry { path, size, kind } in entries {
                    let _ = match &**kind {
                        "file" => write!(text, "\n{path} ({size} bytes)"),
                        kind => write!(text, "\n{path} ({kind})"),
                    };
                }
                if *more > 0 {
                    let _ = write!(text, "\n… and {more} more");
                }
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use crate::line_diff::{DiffHunk, DiffLine, DiffLineChange, DiffPart, DiffRange, FileDiff, LineDiff};

    use super::{Preview, PreviewBody, PreviewEntry, PreviewList};

    /// A diff of a file that gets a line.
    fn added_line(text: &str) -> PreviewBody {
        let line = DiffLine { change: DiffLineChange::Added, text: text.to_owned(), unterminated: true };
        let hunk = DiffHunk { new: DiffRange { first: 1, count: 1 }, lines: vec![line], ..DiffHunk::default() };
        let file = FileDiff { old_path: None, new_path: Some("f".to_owned()), hunks: vec![hunk] };
        PreviewBody::Diff(LineDiff { parts: vec![DiffPart::File(file)] })
    }

    #[test]
    fn everything_shown_is_visible() {
        let diff = Preview::new("write `a\u{202e}b\nc`", "f").with_body(added_line("x\x1b[2K\r"));
        let shown = "--- /dev/null\n+++ b/f\n@@ -0,0 +1,1 @@\n+x\\u{1b}[2K␍\n\\ No newline at end of file";
        assert_eq!(diff.text(), format!("write `a\\u{{202e}}b\\u{{a}}c`\n{shown}"));
        let entry = PreviewEntry { path: "a\nb".to_owned(), size: 3, kind: "file".into() };
        let below = PreviewEntry { path: "d".to_owned(), size: 0, kind: "directory".into() };
        let list = Preview::new("delete", "f")
            .with_body(PreviewBody::List(PreviewList { entries: vec![entry, below], more: 7 }));
        assert_eq!(list.text(), "delete\na\\u{a}b (3 bytes)\nd (directory)\n… and 7 more");
        let url = Preview::new("fetch", "f").with_body(PreviewBody::Url("https://a/\u{200b}\n".to_owned()));
        assert_eq!(url.text(), "fetch\nhttps://a/\\u{200b}\\u{a}");
        let lines =
            Preview::new("run", "f").with_line("a\x1b\nb").with_line("c").with_body(PreviewBody::Code("d".to_owned()));
        assert_eq!((lines.text().as_str(), lines.summary()), ("run\na\\u{1b}\\u{a}b\nc\nd", "run"));
    }

    #[test]
    fn a_relayed_preview_shows_no_secret() {
        let preview = Preview::new("write `.env`", "f").with_body(added_line("KEY=1"));
        assert_eq!(preview.redacted(), preview);
        let secret = preview.with_line("KEY is new").with_secret(true);
        assert!(secret.is_secret() && secret.text().contains("KEY"));
        assert_eq!((secret.redacted().text().as_str(), secret.redacted().fingerprint()), ("write `.env`", "f"));
    }

    #[test]
    fn a_stored_preview_comes_back_as_it_was() {
        let entry = PreviewEntry { path: "d".to_owned(), size: 0, kind: "directory".into() };
        let list = PreviewBody::List(PreviewList { entries: vec![entry], more: 1 });
        for body in [added_line("x"), list, PreviewBody::Text("t".to_owned()), PreviewBody::None] {
            let preview = Preview::new("write `a`", "f").with_line("more").with_body(body);
            let stored = serde_json::to_value(&preview).unwrap();
            assert_eq!(stored["preview"], preview.text());
            assert_eq!(serde_json::from_value::<Preview>(stored).unwrap(), preview);
        }
    }

    #[test]
    fn a_preview_of_an_earlier_version_is_text() {
        let stored = |text: &str| {
            let stored =
                serde_json::json!({"preview": text, "summary": "write `a`", "secret": true, "fingerprint": "f"});
            serde_json::from_value::<Preview>(stored).unwrap()
        };
        let preview = stored("write `a`\n@@ -0,0 +1,1 @@\n+x");
        assert_eq!(preview.body(), &PreviewBody::Text("@@ -0,0 +1,1 @@\n+x".to_owned()));
        assert!(preview.is_secret() && preview.text() == "write `a`\n@@ -0,0 +1,1 @@\n+x");
        assert_eq!(stored("write `a`").body(), &PreviewBody::None);
    }
}
