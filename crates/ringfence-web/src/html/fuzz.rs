//! HTML fuzzing: bounded output, and linear work, however a page nests.

use ringfence_fuzz::FuzzTarget;
use url::Url;

use super::{HtmlOutputStyle, convert};

/// Length of a page that repeats one input. A quadratic algorithm takes minutes for it.
const LONG_PAGE_BYTES: usize = 128 << 10;

const TOKENS: &[&str] = &[
    "<div>",
    "</div>",
    "<p>",
    "<ul><li>",
    "<ol start=9>",
    "</li>",
    "<table><tr><td>",
    "</table>",
    "<pre>",
    "</pre>",
    "<a href=/x>",
    "</a>",
    "<h1>",
    "<blockquote>",
    "<title>",
    "<head>",
    "<body>",
    "<svg>",
    "<script>",
    "</script>",
    "<b>",
    "<code class=language-x>",
    "<img alt=a src=b>",
    "<br/>",
    "<!--",
    "-->",
    "<![CDATA[",
    "&amp;",
    "&#x41;",
    "<textarea>",
    "<base href=",
    "`",
    "|",
    "```",
];

#[test]
fn no_page_panics_or_costs_more_than_its_length() {
    let base = Url::parse("https://docs.rs/a/").unwrap();
    FuzzTarget::new("html", env!("CARGO_MANIFEST_DIR")).tokens(TOKENS).check(|bytes| {
        let page = String::from_utf8_lossy(bytes);
        let most = bytes.first().map_or(100, |byte| usize::from(*byte) * 8);
        // Few are worth the time.
        let often = if bytes.len() % 128 == 3 { LONG_PAGE_BYTES / bytes.len() } else { 4 };
        let longer = page.repeat(often);
        [HtmlOutputStyle::Markdown, HtmlOutputStyle::Text].map(|style| {
            let bounded = convert(&page, Some(&base), style, most);
            assert!(bounded.text.len() <= most, "{} bytes of {most}", bounded.text.len());
            let whole = convert(&page, Some(&base), style, usize::MAX);
            assert!(!whole.truncated);
            assert!(bounded.truncated || bounded.text == whole.text, "cut without a word");
            let more = convert(&longer, Some(&base), style, usize::MAX);
            for (converted, of) in [(&whole, page.len()), (&more, longer.len())] {
                assert!(converted.steps <= of * 300 + 1_000, "{} steps for {of} bytes", converted.steps);
            }
            (whole.text.len().checked_ilog2(), whole.title.is_some(), bounded.truncated)
        })
    });
}
