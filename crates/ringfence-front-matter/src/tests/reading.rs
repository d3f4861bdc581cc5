//! Reading front matter: what is parsed, and what is refused.

use expect_test::{Expect, expect};

use crate::FrontMatter;

/// A file's front matter and its body, or the error.
fn read(text: &str) -> String {
    match FrontMatter::read(text) {
        Ok(front) => format!("{} {:?}", serde_json::to_string(&front.to_json()).unwrap(), front.body()),
        Err(error) => error.to_string().replace(" of the front matter:", ":"),
    }
}

fn check(text: &str, expected: Expect) {
    expected.assert_eq(&read(text));
}

/// The same for a block between two lines `---`.
fn check_block(block: &str, expected: Expect) {
    let shown = read(&format!("---\n{block}\n---\n"));
    expected.assert_eq(shown.strip_suffix(" \"\"").unwrap_or(&shown));
}

#[test]
fn the_first_line_opens_and_the_next_mark_closes() {
    check("---\na: 1\n---\nbody\n", expect![[r#"{"a":1} "body\n""#]]);
    check("---\r\na: 1\r\n---\r\nbody\r\n", expect![[r#"{"a":1} "body\r\n""#]]);
    check("---\na: 1\n...\n\n---\nb: 2\n---\n", expect![[r#"{"a":1} "\n---\nb: 2\n---\n""#]]);
    check("---\na: 1\n---", expect![[r#"{"a":1} """#]]);
    check("---\n---\n", expect![[r#"{} """#]]);
    check("---\n...\n", expect![[r#"{} """#]]);
    check("---\n\n# only a comment\n\n---\n", expect![[r#"{} """#]]);
    check("---\na: 1\n---\n```\n---\nb: 2\n---\n```\n", expect![[r#"{"a":1} "```\n---\nb: 2\n---\n```\n""#]]);
    check("---\na: |\n  ---\n  b: 2\n---\nbody", expect![[r#"{"a":"---\nb: 2\n"} "body""#]]);
    check("---\na: |\n---\nb: 2\n---\n", expect![[r#"{"a":""} "b: 2\n---\n""#]]);
    check("---\na: \"x\n---\ny\"\n---\n", expect!["line 3: invalid indentation in multiline quoted scalar"]);
    check(
        "---\na: 1\n--- \n ---\n----\n---\n",
        expect!["line 3: it starts like the line that closes the front matter"],
    );
}

#[test]
fn a_file_without_marks_has_no_front_matter() {
    check("", expect!["no front matter: the first line must be exactly `---`"]);
    check("---", expect!["no front matter: the first line must be exactly `---`"]);
    check("body\n", expect!["no front matter: the first line must be exactly `---`"]);
    check("\n---\na: 1\n---\n", expect!["no front matter: the first line must be exactly `---`"]);
    check("# comment\n---\na: 1\n---\n", expect!["no front matter: the first line must be exactly `---`"]);
    check("\u{feff}---\na: 1\n---\n", expect!["no front matter: the first line must be exactly `---`"]);
    check(" ---\na: 1\n---\n", expect!["no front matter: the first line must be exactly `---`"]);
    check("--- \na: 1\n---\n", expect!["no front matter: the first line must be exactly `---`"]);
    check("--- # c\na: 1\n---\n", expect!["no front matter: the first line must be exactly `---`"]);
    check("---\r\ra: 1\n---\n", expect!["no front matter: the first line must be exactly `---`"]);
    check("---\na: 1\n", expect!["the front matter is not closed: another line must be exactly `---`"]);
    check("---\na: 1\n --- \n", expect!["the front matter is not closed: another line must be exactly `---`"]);
}

#[test]
fn words_mean_what_the_core_schema_of_yaml_1_2_says() {
    check_block("a: [true, True, TRUE, false, False, FALSE]", expect![[r#"{"a":[true,true,true,false,false,false]}"#]]);
    check_block("a: [null, Null, NULL, ~]\nb:\nc: # c", expect![[r#"{"a":[null,null,null,null],"b":null,"c":null}"#]]);
    check_block(
        "a: [yes, Yes, no, NO, on, off, y, n, tRUE, nULL]",
        expect![[r#"{"a":["yes","Yes","no","NO","on","off","y","n","tRUE","nULL"]}"#]],
    );
    check_block(
        "a: ['true', \"null\", '~', \"1\", '']\nb: |-\n  1\nc: >-\n  true",
        expect![[r#"{"a":["true","null","~","1",""],"b":"1","c":"true"}"#]],
    );
    check_block(
        "a: [2024-01-02, 12:34:56, 2024-01-02T03:04:05Z, 190:20:30]",
        expect![[r#"{"a":["2024-01-02","12:34:56","2024-01-02T03:04:05Z","190:20:30"]}"#]],
    );
    check_block(
        "a: [0, -0, +1, 017, 0o17, 0x1F, 0xff, 0x, 0o8, -0x1, 0b1, 1_000, '1', 1,000]",
        expect![[r#"{"a":[0,0,1,17,15,31,255,"0x","0o8","-0x1","0b1","1_000","1",1,0]}"#]],
    );
    check_block(
        "a: [9223372036854775807, -9223372036854775808, 18446744073709551615]",
        expect![[r#"{"a":[9223372036854775807,-9223372036854775808,18446744073709551615]}"#]],
    );
    check_block(
        "a: [18446744073709551616, -9223372036854775809, 0x10000000000000000]",
        expect![[r#"{"a":["18446744073709551616","-9223372036854775809","0x10000000000000000"]}"#]],
    );
    check_block(
        "a: [1.5, -.5, 1., +1e3, 1E-3, 0.1, 100.0, 1e22, .0, -0.0]",
        expect![[r#"{"a":[1.5,-0.5,1.0,1000.0,0.001,0.1,100.0,1e+22,0.0,-0.0]}"#]],
    );
    check_block(
        "a: [1e999, 1e-999, 0.10000000000000000001, 1e9999999999999999999999]",
        expect![[r#"{"a":["1e999","1e-999","0.10000000000000000001","1e9999999999999999999999"]}"#]],
    );
    check_block(
        "a: [123456789012345678.5, 100000000000000000000, 1e400]",
        expect![[r#"{"a":["123456789012345678.5","100000000000000000000","1e400"]}"#]],
    );
    check_block(
        "a: [., .., e5, 1e, 1e+, 1.2.3, 1.1.0, .inf, -.INF, .nan, .NaN]",
        expect![[r#"{"a":[".","..","e5","1e","1e+","1.2.3","1.1.0",".inf","-.INF",".nan",".NaN"]}"#]],
    );
}

#[test]
fn every_style_says_the_same() {
    let expected = expect![[r#"{"a":["x",{"b":1},null],"c":{"d":""}} """#]];
    for block in [
        "a: [x, {b: 1}, null]\nc: {d: ''}",
        "a:\n- x\n- b: 1\n-\nc:\n  d: \"\"",
        "a:\n    - x\n    -\n        b: 1\n    - ~\nc:\n d: ''",
        "\"a\": [\n x, # one\n {\"b\":1,}, ~,\n]\n'c': { ? d : '' }",
        "  ? a\n  :\n  - x\n  - ? b\n    : 1\n  - \n\n  ? c\n  : {d: \"\"}",
        "{a: [x, b: 1, ~], c: {d: ''}}",
        "a: &a [x, &b {b: 1}, ~]\nc: &c\n  &k d: &d ''",
    ] {
        expected.assert_eq(&read(&format!("---\n{block}\n---\n")));
        expected.assert_eq(&read(&format!("---\n{block}\n---\n").replace('\n', "\r\n")));
    }
}

#[test]
fn text_over_several_lines_is_one_value() {
    check_block(
        "a: x\n  y\n\n  z # c\nb: 'x\n  y'\nc: \"x \\\n  y\"",
        expect![[r#"{"a":"x y\nz","b":"x y","c":"x y"}"#]],
    );
    check_block(
        "a: |\n  x\n   y\n\nb: |+\n  x\n\nc: >-\n  x\n  y\nd: |2\n   x\ne: |\nf: 1",
        expect![[r#"{"a":"x\n y\n","b":"x\n\n","c":"x y","d":" x\n","e":"","f":1}"#]],
    );
    check_block(
        "a: \"\\u00e9\\U0001F600\\x41\\0\\ud83d\\ude00\"\nb: é😀",
        expect![[r#"{"a":"é😀A\u0000😀","b":"é😀"}"#]],
    );
}

#[test]
fn aliases_stand_for_their_values_and_merge_keys_are_keys() {
    check_block("a: &a {x: 1}\nb: *a\nc: [*a, *a]", expect![[r#"{"a":{"x":1},"b":{"x":1},"c":[{"x":1},{"x":1}]}"#]]);
    check_block("a: &a {x: 1}\nb:\n  <<: *a\n  y: 2", expect!["line 4: a merge key; write the values out"]);
    check_block("a: &a 1\nb: *a\nc: &a 2\nd: *a", expect![[r#"{"a":1,"b":1,"c":2,"d":2}"#]]);
    check_block("a: &a\nb: *a", expect![[r#"{"a":null,"b":null}"#]]);
    check_block("a: &a [*a]", expect!["line 2: an alias inside its own anchor"]);
    check_block("a: &a {b: [1, *a]}", expect!["line 2: an alias inside its own anchor"]);
    check_block("&top\na: *top", expect!["line 3: an alias inside its own anchor"]);
    check_block("a: *b\nb: &b 1", expect!["line 2: an alias without an anchor"]);
    check_block("a: &a x\n*a : 1", expect!["line 3: a key that is not a scalar"]);
}

#[test]
fn keys_are_words_and_no_two_are_the_same() {
    check_block(
        "1: a\ntrue: b\n~: c\n? d\n: e\n2024-01-02: f",
        expect![[r#"{"1":"a","true":"b","~":"c","d":"e","2024-01-02":"f"}"#]],
    );
    check_block(": a", expect![[r#"{"":"a"}"#]]);
    check_block("a: 1\nb: 2\na: 3", expect!["line 4: a duplicate key"]);
    check_block("a: {b: 1, \"b\": 2}", expect!["line 2: a duplicate key"]);
    check_block("1: a\n\"1\": b", expect!["line 3: a duplicate key"]);
    check_block("a:\n  \"\\x61\": 1\n  a: 2", expect!["line 4: a duplicate key"]);
    check_block("<<: {a: 1}\n<<: {b: 1}", expect!["line 2: a merge key; write the values out"]);
    check_block("[a]: 1", expect!["line 2: a key that is not a scalar"]);
    check_block("{a: b}: 1", expect!["line 2: a key that is not a scalar"]);
    check_block("? - a\n: 1", expect!["line 2: a key that is not a scalar"]);
}

#[test]
fn only_plain_values_are_taken() {
    check_block("a: !!python/object:os.system x", expect!["line 2: a tag (`!`); front matter has plain values only"]);
    check_block("b: 1\na: !include /etc/passwd", expect!["line 3: a tag (`!`); front matter has plain values only"]);
    check_block("a: !!binary aGk=", expect!["line 2: a tag (`!`); front matter has plain values only"]);
    check_block("a: !!str 1", expect!["line 2: a tag (`!`); front matter has plain values only"]);
    check_block("a: ! 1", expect!["line 2: a tag (`!`); front matter has plain values only"]);
    check_block("a: !<tag:x> 1", expect!["line 2: a tag (`!`); front matter has plain values only"]);
    check_block("!!str a: 1", expect!["line 2: a tag (`!`); front matter has plain values only"]);
    check_block("!!map\na: 1", expect!["line 3: a tag (`!`); front matter has plain values only"]);
    check_block("a: !!seq\n- 1", expect!["line 3: a tag (`!`); front matter has plain values only"]);
    check_block("a: !x! 1", expect!["line 2: while parsing a tag, did not find expected tag URI"]);
    check_block("%YAML 1.2", expect!["line 2: YAML directives are disallowed"]);
    check_block("%TAG ! x:\n--- a", expect!["line 3: it starts like the line that closes the front matter"]);
}

#[test]
fn there_is_one_document_and_it_is_a_mapping() {
    check_block("- a", expect!["line 2: not a mapping; write `key: value`"]);
    check_block("[a]", expect!["line 2: not a mapping; write `key: value`"]);
    check_block("text", expect!["line 2: not a mapping; write `key: value`"]);
    check_block("~", expect!["line 2: not a mapping; write `key: value`"]);
    check_block("\"a\"", expect!["line 2: not a mapping; write `key: value`"]);
    check_block("&a", expect!["line 2: not a mapping; write `key: value`"]);
    check_block("a: 1\n--- b: 2", expect!["line 3: it starts like the line that closes the front matter"]);
    check_block("a: 1\n--- {b: 2}", expect!["line 3: it starts like the line that closes the front matter"]);
    check_block("--- {b: 2}", expect!["line 2: it starts like the line that closes the front matter"]);
    check_block("a: 1\n... \nb: 2", expect!["line 3: it starts like the line that closes the front matter"]);
    check_block("a: 1\n... # end", expect!["line 3: it starts like the line that closes the front matter"]);
    check_block("{a: 1}\n{b: 1}", expect!["line 3: did not find expected <document start>"]);
    check_block(
        "a: 1\n  b: 2",
        expect![
            "line 3: a `:` after something that cannot be a key; quote text that contains `: `, and keep keys short"
        ],
    );
}

#[test]
fn tabs_do_not_indent() {
    check_block("\ta: 1", expect!["line 2: a tab in the indentation; indent with spaces"]);
    check_block("a:\n\tb: 1", expect!["line 3: a tab in the indentation; indent with spaces"]);
    check_block("a:\n \tb: 1", expect!["line 3: a tab in the indentation; indent with spaces"]);
    check_block("a:\n\t- x", expect!["line 3: a tab in the indentation; indent with spaces"]);
    check_block("a:\n  - b\n\t- c", expect!["line 4: a tab in the indentation; indent with spaces"]);
    check_block("a: x\n\ty", expect!["line 3: a tab in the indentation; indent with spaces"]);
    check_block("a: [\n\tx]", expect!["line 3: a tab in the indentation; indent with spaces"]);
    check_block("a:\n  b: 1\n\tc: 2", expect!["line 4: a tab in the indentation; indent with spaces"]);
    check_block(
        "a:\tb\t# c\n\t\n\t# d\nc: |\n  \tcode\nd: 'x\n  \ty'",
        expect![[r#"{"a":"b","c":"\tcode\n","d":"x y"}"#]],
    );
}

#[test]
fn invisible_characters_are_refused() {
    check_block("a: b\0c", expect!["line 2: a control character; write it as an escape in double quotes"]);
    check_block("a: 1\n# b\0c", expect!["line 3: a control character; write it as an escape in double quotes"]);
    check_block("a: 1\nb: \u{1b}[31m", expect!["line 3: a control character; write it as an escape in double quotes"]);
    check_block("a: \u{7f}", expect!["line 2: a control character; write it as an escape in double quotes"]);
    check_block("a: \u{85}b: 2", expect!["line 2: a control character; write it as an escape in double quotes"]);
    check_block("a: 1\rb: 2", expect!["line 2: a control character; write it as an escape in double quotes"]);
    check_block("# c\radmin: true", expect!["line 2: a control character; write it as an escape in double quotes"]);
    check_block("a: \r\r\n", expect!["line 2: a control character; write it as an escape in double quotes"]);
    check_block("\u{feff}a: 1", expect!["line 2: a control character; write it as an escape in double quotes"]);
    check_block("a: \u{ffff}", expect!["line 2: a control character; write it as an escape in double quotes"]);
    check_block("a: 1 # \u{2028}b: 2", expect!["line 2: a control character; write it as an escape in double quotes"]);
    check_block("a: 1 # \u{2029}b: 2", expect!["line 2: a control character; write it as an escape in double quotes"]);
    let text = "xy\u{a0}\u{10ffff}";
    assert_eq!(FrontMatter::read(&format!("---\na: {text}\n---\n")).unwrap().to_json()["a"], text);
}

#[test]
fn a_parse_error_names_the_line_and_not_its_contents() {
    check_block("a: 1\nb: [secret", expect!["line 3: unclosed bracket '['"]);
    check_block(
        "a: 1\nb: secret: x",
        expect![
            "line 3: a `:` after something that cannot be a key; quote text that contains `: `, and keep keys short"
        ],
    );
    check_block("a: 'secret", expect!["line 3: invalid indentation in multiline quoted scalar"]);
    check_block("a: @secret", expect!["line 2: a character that cannot start a value"]);
    check_block("a: `secret", expect!["line 2: a character that cannot start a value"]);
    check_block("a: *secret", expect!["line 2: an alias without an anchor"]);
    check_block("secret", expect!["line 2: not a mapping; write `key: value`"]);
    check_block("a: \"\\q\"", expect!["line 2: while parsing a quoted scalar, found unknown escape character"]);
    check_block(
        "a: \"\\ud800\"",
        expect!["line 2: while parsing a quoted scalar, found high surrogate without following low surrogate"],
    );
    check_block("a: [x]]", expect!["line 2: misplaced bracket"]);
    check_block("a: {x]", expect!["line 2: mismatched bracket '{' closed by ']'"]);
    check_block(
        "a: |0\n x",
        expect!["line 2: while scanning a block scalar, found an indentation indicator equal to 0"],
    );
    check_block("a: x # c\n  y", expect!["line 2: comment intercepting the multiline text"]);
}

#[test]
fn front_matter_past_a_limit_is_refused() {
    let nested = |depth: usize| format!("a: {}x{}", "[".repeat(depth), "]".repeat(depth));
    let deep_map = |depth: usize| (0..depth).map(|level| format!("{}a:\n", " ".repeat(level))).collect::<String>();
    let items = |count: usize| format!("a:\n{}", "- x\n".repeat(count));
    let laughs = |levels: usize| {
        let line = |level: usize| format!("l{level}: &l{level} [{}]\n", vec![format!("*l{}", level - 1); 9].join(", "));
        format!("l0: &l0 x\n{}", (1..levels).map(line).collect::<String>())
    };
    let chain = |links: usize| {
        let line = |link: usize| format!("l{link}: &l{link} [[[[[[[[[[*l{}]]]]]]]]]]\n", link - 1);
        format!("l0: &l0 x\n{}", (1..links).map(line).collect::<String>())
    };
    check_block(&format!("a: {}", "x".repeat(65_533)), expect!["the front matter has 65537 bytes; the limit is 65536"]);
    check_block(&"[".repeat(100_000), expect!["the front matter has 100001 bytes; the limit is 65536"]);
    check_block(&"[".repeat(60_000), expect!["line 2: more than 64 levels deep, counting what aliases repeat"]);
    check_block(&"{a: ".repeat(16_000), expect!["line 2: more than 64 levels deep, counting what aliases repeat"]);
    check_block(
        &format!("a: {}", "- ".repeat(30_000)),
        expect!["line 2: block sequence entries are not allowed in this context"],
    );
    check_block(&"? ".repeat(30_000), expect!["line 2: more than 64 levels deep, counting what aliases repeat"]);
    check_block(&deep_map(5_000), expect!["the front matter has 12512501 bytes; the limit is 65536"]);
    check_block(&deep_map(300), expect!["line 65: more than 64 levels deep, counting what aliases repeat"]);
    check_block(&nested(63), expect!["line 2: more than 64 levels deep, counting what aliases repeat"]);
    check_block(&items(1_000_000), expect!["the front matter has 4000004 bytes; the limit is 65536"]);
    check_block(&items(16_000), expect!["line 10000: more than 10000 values, counting what aliases repeat"]);
    check_block(
        &format!("a: [{}]", "x,".repeat(16_000)),
        expect!["line 2: more than 10000 values, counting what aliases repeat"],
    );
    check_block(&laughs(9), expect!["line 6: more than 10000 values, counting what aliases repeat"]);
    check_block(&chain(9), expect!["line 9: more than 64 levels deep, counting what aliases repeat"]);
    check_block(
        &format!("a: &a {}\nb: [{}]", "x".repeat(30_000), "*a, ".repeat(5_000)),
        expect!["line 3: aliases that make more than 256 KiB of text"],
    );
    check_block(
        &format!("{}: 1", "k".repeat(1_025)),
        expect![
            "line 2: a `:` after something that cannot be a key; quote text that contains `: `, and keep keys short"
        ],
    );
    check_block(&format!("? {}\n: 1", "k".repeat(1_025)), expect!["line 2: a key of more than 1024 bytes"]);
    check_block(&format!("{}: 1", "é".repeat(600)), expect!["line 2: a key of more than 1024 bytes"]);
    check_block(
        &format!("{}: 1", "k".repeat(65_000)),
        expect![
            "line 2: a `:` after something that cannot be a key; quote text that contains `: `, and keep keys short"
        ],
    );
}

#[test]
fn front_matter_within_the_limits_is_read() {
    let nested = format!("---\na: {}x{}\n---\n", "[".repeat(62), "]".repeat(62));
    let items = format!("---\na:\n{}---\n", "- x\n".repeat(9_990));
    let text = format!("---\na: {}\n---\n", "x".repeat(65_532));
    let key = format!("---\n{}: 1\n---\n", "k".repeat(1_024));
    let comments = format!("---\na:\n{}b: 1\n---\n", "#\n".repeat(30_000));
    let aliases = format!("---\na: &a {}\nb: [*a, *a]\n---\n", "x".repeat(30_000));
    for text in [nested, items, text, key, comments, aliases] {
        FrontMatter::read(&text).unwrap();
    }
}
