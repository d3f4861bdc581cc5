//! HTML conversion tests, hostile pages included.

use expect_test::{Expect, expect};
use proptest::prelude::*;
use url::Url;

use super::{HtmlOutputStyle, convert, plain_text};

const MIB: usize = 1 << 20;

#[track_caller]
fn check(html: &str, expected: Expect) {
    let base = Url::parse("https://docs.rs/a/b").unwrap();
    expected.assert_eq(&convert(html, Some(&base), HtmlOutputStyle::Markdown, MIB).text);
}

#[test]
fn text_flows_and_blocks_stand_apart() {
    check(
        "<p>one\n  two</p><p>three<br>four</p><div>five</div>six",
        expect![[r#"
        one two

        three
        four

        five
        six"#]],
    );
    check(
        "a<b>b</b> c <i>d</i><em></em> <code>e</code> &amp; &lt;f&gt; <s>g</s>",
        expect!["a**b** c *d* `e` & <f> ~~g~~"],
    );
}

#[test]
fn headings_lists_and_quotes() {
    check(
        "<h1>A <b>b</b></h1><h2>C</h2>text<h3></h3>",
        expect![[r#"
        # A **b**

        ## C

        text"#]],
    );
    check(
        "<ul><li>a<li>b<ul><li>c</ul><li>d</ul><ol start=3><li>x<li>y</ol>z",
        expect![[r#"
        - a
        - b
          - c
        - d

        3. x
        4. y

        z"#]],
    );
    check(
        "<blockquote><p>a</p><p>b</p><blockquote>c</blockquote></blockquote>d",
        expect![[r#"
        > a
        >
        > b
        > >
        > > c

        d"#]],
    );
    check(
        "<dl><dt>a<dd>b<dt>c<dd>d</dl>",
        expect![[r#"
        a
        b
        c
        d"#]],
    );
}

#[test]
fn links_are_whole_and_only_of_the_web() {
    check(
        "<a href='c?d#e'>x</a> <a href='//o.org/'>y</a> <a href='#f'>z</a> <a href='javascript:alert(1)'>w</a> <a href=g></a>",
        expect!["[x](https://docs.rs/a/c?d#e) [y](https://o.org/) z w"],
    );
    check(
        "<base href='https://b.org/q/'><a href=r>s</a><img src=t alt='u v'><img src=t>",
        expect!["[s](https://b.org/q/r)![u v](https://b.org/q/t)"],
    );
}

#[test]
fn code_is_fenced_by_more_than_it_has() {
    check(
        "<pre><code class='x language-rust'>fn main() {\n    a  b\n}\n</code></pre>then",
        expect![[r#"
        ```rust
        fn main() {
            a  b
        }
        ```

        then"#]],
    );
    check(
        "<pre>````</pre>",
        expect![[r#"
        `````
        ````
        `````"#]],
    );
}

#[test]
fn tables_are_rows_of_cells() {
    check(
        "<table><tr><th>a<th>b</tr><tr><td>1|2<td><p>3</p><p>4</p></tr></table>after",
        expect![[r#"
        | a | b |
        | --- | --- |
        | 1\|2 | 3 4 |

        after"#]],
    );
    check(
        "<table><thead><tr><th>a</th></tr></thead><tbody><tr><td><table><tr><td>x<td>y</table></td></tr></tbody></table>",
        expect![[r#"
            | a |
            | --- |
            | x y |"#]],
    );
}

#[test]
fn elements_without_text_are_left_out() {
    check(
        "<head><title>T</title><style>x{}</style></head><body><nav><a href=/>home</a></nav><script>if (a < b) {}</script>text<svg><text>no</text></svg><!-- c -->",
        expect!["text"],
    );
    check("<head><meta charset=utf-8><body>unclosed head", expect!["unclosed head"]);
    let page = convert("<title> A \n B </title><title>C</title>x", None, HtmlOutputStyle::Text, MIB);
    assert_eq!((page.title.as_deref(), page.text.as_str()), (Some("A B"), "x"));
}

#[test]
fn plain_text_has_no_marks() {
    assert_eq!(plain_text("<b>a</b> &amp; <a href='https://x.org'>b</a><script>c</script>", MIB), "a & b");
    let text = convert("<h1>A</h1><ul><li><a href='https://x.org'>b</a></ul>", None, HtmlOutputStyle::Text, MIB).text;
    assert_eq!(text, "A\n\n- b");
}

#[test]
fn the_output_has_a_bound() {
    let page = convert(&"<p>word".repeat(1000), None, HtmlOutputStyle::Markdown, 100);
    assert!(page.truncated && page.text.len() <= 100, "{}", page.text.len());
    let page = convert(&format!("<pre>{}", "x".repeat(1000)), None, HtmlOutputStyle::Markdown, 100);
    assert!(page.truncated && page.text.len() <= 100);
    let page = convert(&format!("<a href='{}'>x</a>", "y".repeat(3000)), None, HtmlOutputStyle::Markdown, 100);
    assert_eq!(page.text, "x");
    // Marks that do not fit are taken away again, and what is between them is missing all the same.
    let page = convert("aaaa <b>more</b>", None, HtmlOutputStyle::Markdown, 5);
    assert_eq!((page.text.as_str(), page.truncated), ("aaaa", true));
}

/// Pages that nest, each as often as asked.
fn hostile_pages(count: usize) -> Vec<String> {
    let repeated = |part: &str| part.repeat(count);
    let tags = [
        "div",
        "b",
        "ul><li",
        "blockquote",
        "table><tr><td",
        "pre",
        "a href=x",
        "font",
        "p",
        "svg",
        "h1",
        "dl><dt",
        "em><code",
    ];
    let mut pages: Vec<String> = tags.iter().map(|tag| repeated(&format!("<{tag}>x "))).collect();
    pages.extend(tags.iter().map(|tag| format!("{}{}", repeated(&format!("<{tag}>")), repeated("</div></td>"))));
    pages.extend([
        repeated("</div>"),
        repeated("<"),
        repeated("<!--"),
        repeated("&amp"),
        repeated("&"),
        format!("<a {}>", repeated("a=b ")),
        format!("<a {}>", (0..count).map(|n| format!("a{n}=b ")).collect::<String>()),
        repeated("<title>"),
        repeated("<li><p><td><tr>"),
        repeated("<br><hr><img alt=x src=y>"),
    ]);
    pages
}

#[test]
fn twice_the_page_is_at_most_twice_the_work() {
    for (small, large) in hostile_pages(5_000).iter().zip(&hostile_pages(20_000)) {
        let steps = |page: &str| convert(page, None, HtmlOutputStyle::Markdown, MIB).steps;
        let (few, many) = (steps(small), steps(large));
        let name: String = small.chars().take(40).collect();
        assert!(many <= few * 5 + 1_000, "{name}: {few} steps became {many}");
        assert!(many <= large.len() * 300 + 1_000, "{name}: {many} steps for {} bytes", large.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_page_makes_it_panic(
        parts in prop::collection::vec(
            prop::sample::select(vec![
                "<div>", "</div>", "<b>", "</b>", "<ul>", "<ol start=99999999999999999999>", "<li>", "</ul>", "<table>", "<tr>", "<td>",
                "</table>", "</tr>", "<pre>", "</pre>", "<a href=/x>", "<a href='\u{0}'>", "</a>", "<h1>", "</h1>", "<blockquote>",
                "</blockquote>", "<title>", "</title>", "<head>", "</head>", "<body>", "<svg>", "</svg>", "<nav>", "text ", "\u{1f600}",
                "`", "|", "\n", "&#x110000;", "<br>", "<hr>", "<img alt=a src=b>", "<code class=language-x>", "</code>", "<script>", "</script>",
            ]),
            0..60,
        ),
        most in 0_usize..200,
    ) {
        let base = Url::parse("https://docs.rs/").unwrap();
        for style in [HtmlOutputStyle::Markdown, HtmlOutputStyle::Text] {
            let page = convert(&parts.concat(), Some(&base), style, most);
            prop_assert!(page.text.len() <= most);
        }
    }

    #[test]
    fn no_text_makes_it_panic(text: String) {
        plain_text(&text, 1000);
    }
}
