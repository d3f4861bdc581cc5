//! Response bodies: charset decoding, and conversion to the format that was asked for.
//!
//! The charset is that of the byte order mark, else that of the header, else the one that the page names itself, else a
//! guess. Bytes that are wrong in it are replaced and never fail the call.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chardetng::{EncodingDetector, Iso2022JpDetection, Utf8Detection};
use encoding_rs::{Encoding, UTF_8};
use ringfence_kernel::{ErrorKind, ToolError};
use schemars::JsonSchema;
use serde::Deserialize;
use url::Url;

use crate::html::{HtmlOutputStyle, convert};

/// A page names its charset in its first bytes, if it does.
const CHARSET_SCAN_BYTES: usize = 1024;

/// Requested form of a body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum BodyFormat {
    // As it came; base64 where it is not text.
    #[default]
    Raw,
    // A page without its markup.
    Text,
    // A page with its headings, lists, links, code and tables.
    Markdown,
}

/// A body, ready for a reply.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct RenderedBody {
    pub(crate) text: String,
    pub(crate) title: Option<String>,
    pub(crate) is_base64: bool,
    pub(crate) truncated: bool,
}

/// Renders a body of this type in this form, within a limit in bytes.
pub(crate) fn render_body(
    body: &[u8],
    kind: &str,
    url: &Url,
    format: BodyFormat,
    most: usize,
) -> Result<RenderedBody, ToolError> {
    let kind = ContentType::parse(kind);
    if !kind.is_text(body) {
        return match format {
            BodyFormat::Raw => Ok(base64_body(body, most)),
            BodyFormat::Text | BodyFormat::Markdown => {
                let message = format!("the response is {}, not text", kind.display());
                Err(ToolError::new(ErrorKind::NotText, message).hint("set `format: \"raw\"` to get it"))
            }
        };
    }
    let text = decode_text(body, &kind, url);
    let style = match format {
        BodyFormat::Markdown if kind.is_html(&text) => HtmlOutputStyle::Markdown,
        BodyFormat::Text if kind.is_html(&text) => HtmlOutputStyle::Text,
        _ => return Ok(truncated_text(text, most)),
    };
    let page = convert(&text, Some(url), style, most);
    Ok(RenderedBody { text: page.text, title: page.title, is_base64: false, truncated: page.truncated })
}

/// The text of a body.
pub(crate) fn decode_text(body: &[u8], kind: &ContentType, url: &Url) -> String {
    let named = kind.charset.as_deref().and_then(|label| Encoding::for_label(label.as_bytes()));
    let named = named.or_else(|| meta_charset(body)).unwrap_or_else(|| detect_charset(body, url));
    // A byte order mark counts before all else.
    named.decode(body).0.into_owned()
}

fn truncated_text(mut text: String, most: usize) -> RenderedBody {
    let truncated = text.len() > most;
    text.truncate(text.floor_char_boundary(most));
    RenderedBody { text, truncated, ..RenderedBody::default() }
}

fn base64_body(body: &[u8], most: usize) -> RenderedBody {
    // Four characters say three bytes.
    let fits = most / 4 * 3;
    let part = body.get(..fits).unwrap_or(body);
    RenderedBody { text: STANDARD.encode(part), is_base64: true, truncated: part.len() < body.len(), title: None }
}

/// The header `content-type`, read once.
#[derive(Debug, Default)]
pub(crate) struct ContentType {
    essence: String,
    charset: Option<String>,
}

impl ContentType {
    pub(crate) fn parse(text: &str) -> Self {
        let mut parts = text.split(';');
        let essence = parts.next().unwrap_or_default().trim().to_ascii_lowercase();
        let charset = parts.find_map(|part| {
            let (name, value) = part.split_once('=')?;
            let is_charset = name.trim().eq_ignore_ascii_case("charset");
            is_charset.then(|| value.trim().trim_matches(['"', '\'']).to_owned())
        });
        Self { essence, charset }
    }

    fn display(&self) -> &str {
        if self.essence.is_empty() { "of unknown type" } else { &self.essence }
    }

    fn declares_text(&self) -> bool {
        let essence = self.essence.as_str();
        let ends =
            ["+json", "+xml", "/json", "/xml", "/javascript", "/x-javascript", "/x-www-form-urlencoded", "/graphql"];
        essence.starts_with("text/")
            || ends.iter().any(|end| essence.ends_with(end))
            || ["/yaml", "/toml", "/x-yaml", "/x-sh", "/x-ndjson", "/sql"].iter().any(|end| essence.ends_with(end))
    }

    /// Whether the body is text, whatever its declared type.
    fn is_text(&self, body: &[u8]) -> bool {
        let start = body.get(..CHARSET_SCAN_BYTES).unwrap_or(body);
        let has_mark = Encoding::for_bom(body).is_some();
        let wide = self.charset.as_deref().is_some_and(|label| label.to_ascii_lowercase().starts_with("utf-16"));
        let has_zero = start.contains(&0) && !has_mark && !wide;
        !has_zero && (self.declares_text() || has_mark || std::str::from_utf8(body).is_ok())
    }

    fn is_html(&self, text: &str) -> bool {
        let start = text.trim_start().get(..15).unwrap_or_default().to_ascii_lowercase();
        match self.essence.as_str() {
            "text/html" | "application/xhtml+xml" => true,
            "" | "text/plain" | "application/octet-stream" => {
                start.starts_with("<!doctype html") || start.starts_with("<html")
            }
            _ => false,
        }
    }
}

/// The charset that a page names in its own markup.
fn meta_charset(body: &[u8]) -> Option<&'static Encoding> {
    let start = body.get(..CHARSET_SCAN_BYTES).unwrap_or(body).to_ascii_lowercase();
    let start = String::from_utf8_lossy(&start);
    let (_, rest) = start.split_once("<meta").and_then(|(_, rest)| rest.split_once("charset"))?;
    let rest = rest.trim_start().strip_prefix('=')?.trim_start().trim_start_matches(['"', '\'']);
    let label: String = rest.chars().take_while(|c| c.is_ascii_alphanumeric() || "-_:".contains(*c)).collect();
    let found = Encoding::for_label(label.as_bytes())?;
    // A page whose `meta` tag could be read as ASCII is not UTF-16.
    Some(if found.name().starts_with("UTF-16") { UTF_8 } else { found })
}

fn detect_charset(body: &[u8], url: &Url) -> &'static Encoding {
    if std::str::from_utf8(body).is_ok() {
        return UTF_8;
    }
    let mut detector = EncodingDetector::new(Iso2022JpDetection::Deny);
    detector.feed(body, true);
    let ending = url
        .host_str()
        .and_then(|host| host.rsplit('.').next())
        .filter(|end| end.bytes().all(|b| b.is_ascii_lowercase()));
    detector.guess(ending.map(str::as_bytes), Utf8Detection::Allow)
}

#[cfg(test)]
mod tests {
    use url::Url;

    use super::{BodyFormat, RenderedBody, render_body};

    fn render_test_body(body: &[u8], kind: &str, format: BodyFormat) -> RenderedBody {
        render_body(body, kind, &Url::parse("https://docs.rs/").unwrap(), format, 1000).unwrap()
    }

    #[track_caller]
    fn assert_text(body: &[u8], kind: &str, text: &str) {
        assert_eq!(render_test_body(body, kind, BodyFormat::Raw).text, text, "{kind}");
    }

    #[test]
    fn the_charset_is_found_in_order() {
        assert_text(b"\xef\xbb\xbfa\xc3\xbc", "text/plain; charset=iso-8859-1", "a\u{fc}");
        assert_text(b"\xff\xfea\0", "text/plain", "a");
        assert_text(b"\xfc", "text/plain; charset=\"ISO-8859-1\"", "\u{fc}");
        assert_text(b"<meta charset=windows-1251>\xe9", "text/html", "<meta charset=windows-1251>\u{439}");
        assert_text(b"<meta charset='utf-16'>\xc3\xbc", "text/html", "<meta charset='utf-16'>\u{fc}");
        assert_text("\u{fc}ber".as_bytes(), "text/plain", "\u{fc}ber");
        assert_text(
            b"\x93\xfa\x96{\x8c\xea\x82\xc5\x82\xb7",
            "text/plain; charset=shift_jis",
            "\u{65e5}\u{672c}\u{8a9e}\u{3067}\u{3059}",
        );
        assert_text(b"a\xff", "text/plain; charset=utf-8", "a\u{fffd}");
        assert_text(b"a\0\xfc\0", "text/plain; charset=utf-16le", "a\u{fc}");
    }

    #[test]
    fn a_body_that_is_not_text_is_base64_or_refused() {
        let raw = render_test_body(b"\x89PNG\0\xff", "image/png", BodyFormat::Raw);
        assert_eq!((raw.text.as_str(), raw.is_base64), ("iVBORwD/", true));
        let url = Url::parse("https://docs.rs/").unwrap();
        let refused = render_body(b"\x89PNG\0\xff", "image/png", &url, BodyFormat::Markdown, 1000).unwrap_err();
        assert_eq!(refused.message, "the response is image/png, not text; set `format: \"raw\"` to get it");
        assert!(render_test_body(b"a\0b", "text/html", BodyFormat::Raw).is_base64);
        assert!(!render_test_body(b"{}", "application/octet-stream", BodyFormat::Raw).is_base64);
        assert!(render_test_body(&[0xff; 2000], "", BodyFormat::Raw).truncated);
    }

    #[test]
    fn a_page_is_known_by_its_type_or_its_beginning() {
        assert_eq!(render_test_body(b"<h1>a</h1>", "text/html; charset=utf-8", BodyFormat::Markdown).text, "# a");
        assert_eq!(render_test_body(b" <!DOCTYPE html><h1>a</h1>", "text/plain", BodyFormat::Text).text, "a");
        assert_eq!(render_test_body(b"<h1>a</h1>", "text/plain", BodyFormat::Markdown).text, "<h1>a</h1>");
        assert_eq!(
            render_test_body(b"{\"a\": \"<b>\"}", "application/json", BodyFormat::Markdown).text,
            "{\"a\": \"<b>\"}"
        );
        assert_eq!(render_test_body(b"<h1>a</h1>", "text/html", BodyFormat::Raw).text, "<h1>a</h1>");
    }

    #[test]
    fn text_is_cut_between_characters() {
        let cut = render_body(
            "\u{fc}".repeat(10).as_bytes(),
            "text/plain",
            &Url::parse("https://docs.rs/").unwrap(),
            BodyFormat::Raw,
            5,
        )
        .unwrap();
        assert_eq!((cut.text.as_str(), cut.truncated), ("\u{fc}\u{fc}", true));
    }
}
