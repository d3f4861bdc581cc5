//! Replacing updates, what values may contain, and what cannot be updated.

use expect_test::expect;
use serde_json::json;

use crate::tests::{apply_json, check, steps};
use crate::{FrontMatter, FrontMatterError};

#[test]
fn a_scalar_is_replaced_in_place() {
    let node = || json!({"currentNodeId": "n"});
    check(
        "currentNodeId: m # where\nx: 1",
        node(),
        expect![[r#"
        currentNodeId: "n" # where
        x: 1
    "#]],
    );
    check(
        "currentNodeId: 'm'   # where",
        node(),
        expect![[r#"
        currentNodeId: "n"   # where
    "#]],
    );
    check(
        "'currentNodeId': \"m\\n\n  o\" # where",
        node(),
        expect![[r#"
        'currentNodeId': "n" # where
    "#]],
    );
    check(
        "currentNodeId: m\n  o\n\n  p # where\n# x",
        node(),
        expect![[r#"
        currentNodeId: "n" # where
        # x
    "#]],
    );
    check(
        "currentNodeId:\n  m # where",
        node(),
        expect![[r#"
        currentNodeId:
          "n" # where
    "#]],
    );
    check(
        "currentNodeId: ''",
        node(),
        expect![[r#"
        currentNodeId: "n"
    "#]],
    );
    check(
        "currentNodeId: &m m",
        node(),
        expect![[r#"
        currentNodeId: &m "n"
    "#]],
    );
    check(
        "currentNodeId: | # where\n  m\n  o\n\n# x",
        node(),
        expect![[r#"
        currentNodeId: "n" # where

        # x
    "#]],
    );
    check(
        "currentNodeId: >2-\n\n   m\n",
        node(),
        expect![[r#"
        currentNodeId: "n"

    "#]],
    );
    check(
        "currentNodeId: &a |\nx: 1",
        node(),
        expect![[r#"
        currentNodeId: &a "n"
        x: 1
    "#]],
    );
    check(
        "currentNodeId: |+\n  m\n\n\nx: 1",
        node(),
        expect![[r#"
        currentNodeId: "n"


        x: 1
    "#]],
    );
    check(
        "? currentNodeId # the key\n: m # where",
        node(),
        expect![[r#"
        ? currentNodeId # the key
        : "n" # where
    "#]],
    );
    check(
        "# in\n  currentNodeId   :   m\n  x: 1",
        node(),
        expect![[r##"
            # in
              currentNodeId   :   "n"
              x: 1
        "##]],
    );
}

#[test]
fn keys_outside_the_update_keep_their_bytes() {
    let lines = [
        "n: [18446744073709551616, 1e999, .inf, 0o17, 017, 0x1F, 1_000, 1.50]",
        "d: 2024-01-02   # c",
        "t: 12:34:56",
        "w: [ NO,on , ~]",
        "",
        "q: 'x'",
        "a: &a \"\\x41\"",
        "b: {m: *a}",
    ];
    let odd = lines.map(|line| format!("{line}\n")).concat();
    let text = format!("---\n{odd}currentNodeId: m\n---\n");
    let updated = apply_json(&text, &json!({"currentNodeId": "n", "updatedAt": "t"})).unwrap();
    assert_eq!(updated, format!("---\n{odd}currentNodeId: \"n\"\nupdatedAt: \"t\"\n---\n"));
}

#[test]
fn a_nested_value_is_replaced_whole() {
    let node = || json!({"currentNodeId": "n"});
    check(
        "currentNodeId:\n  a: 1\n  b: 2\nx: 1",
        node(),
        expect![[r#"
        currentNodeId: "n"
        x: 1
    "#]],
    );
    check(
        "currentNodeId: # what\n  # before\n\n  a: 1 # gone\n  b:\n  # behind\nx: 1",
        node(),
        expect![[r#"
        currentNodeId: "n" # what
          # before

          # behind
        x: 1
    "#]],
    );
    check(
        "currentNodeId:\n- a\n- b: 1 # behind\n# after\nx: 1",
        node(),
        expect![[r#"
        currentNodeId: "n"
         # behind
        # after
        x: 1
    "#]],
    );
    check(
        "currentNodeId:\n- - a\n  - |\n   b\n\n\nx: 1",
        node(),
        expect![[r#"
        currentNodeId: "n"


        x: 1
    "#]],
    );
    check(
        "currentNodeId: &a\n  a: 1",
        node(),
        expect![[r#"
        currentNodeId: &a "n"
    "#]],
    );
    check(
        "currentNodeId: {a: 1,\n  b: [2] } # behind",
        node(),
        expect![[r#"
        currentNodeId: "n" # behind
    "#]],
    );
    check(
        "? currentNodeId\n: a: 1\n  b: 2 # behind\nx: 1",
        node(),
        expect![[r#"
        ? currentNodeId
        : "n" # behind
        x: 1
    "#]],
    );
    check(
        "? currentNodeId\n: - a\n  - b\nx: 1",
        node(),
        expect![[r#"
        ? currentNodeId
        : "n"
        x: 1
    "#]],
    );
}

#[test]
fn variables_are_merged_one_level_deep() {
    let set = || json!({"variables": {"a": [1, {"b": "c"}], "z": null}});
    check(
        "variables:\n  a: 1 # one\n  b: 2\nx: 1",
        set(),
        expect![[r#"
        variables:
          a: [1, {"b": "c"}] # one
          b: 2
          z: null
        x: 1
    "#]],
    );
    check(
        "variables:\n  z: 1\n  a:\n    deep: 1\n    er: 2\nx: 1",
        set(),
        expect![[r#"
        variables:
          z: null
          a: [1, {"b": "c"}]
        x: 1
    "#]],
    );
    check(
        "variables:\n  # first\n  a: |\n    text\n\n  # last\n\nx: 1",
        set(),
        expect![[r#"
        variables:
          # first
          a: [1, {"b": "c"}]
          z: null

          # last

        x: 1
    "#]],
    );
    check(
        "variables:\n  b:\n  # last",
        set(),
        expect![[r#"
        variables:
          b:
          a: [1, {"b": "c"}]
          z: null
          # last
    "#]],
    );
    check(
        "variables:\n  b:\n  - 1\nx: 1",
        set(),
        expect![[r#"
        variables:
          b:
          - 1
          a: [1, {"b": "c"}]
          z: null
        x: 1
    "#]],
    );
    check(
        "variables:\n  b: |+\n    t\n\nx: 1",
        set(),
        expect![[r#"
        variables:
          b: |+
            t

          a: [1, {"b": "c"}]
          z: null
        x: 1
    "#]],
    );
    check(
        "variables:\n    \"a\": 1\n    'z': 1",
        set(),
        expect![[r#"
        variables:
            "a": [1, {"b": "c"}]
            'z': null
    "#]],
    );
    check(
        "variables:\n  a:\n  z: ''",
        set(),
        expect![[r#"
        variables:
          a: [1, {"b": "c"}]
          z: null
    "#]],
    );
    check(
        "variables: {a: 1, b: 2}",
        set(),
        expect![[r#"
        variables: {a: [1, {"b": "c"}], b: 2, z: null}
    "#]],
    );
    check(
        "variables: {\n  \"b\":1, # one\n  a: [x,\n    y], # two\n}",
        set(),
        expect![[r#"
        variables: {
          "b":1, # one
          a: [1, {"b": "c"}], z: null, # two
        }
    "#]],
    );
    check(
        "variables: {b: }",
        set(),
        expect![[r#"
        variables: {b:, a: [1, {"b": "c"}], z: null }
    "#]],
    );
    check(
        "variables: {b}",
        set(),
        expect![[r#"
        variables: {b, a: [1, {"b": "c"}], z: null}
    "#]],
    );
    check("variables: {a}", set(), expect!["`a` in line 2 cannot be updated in place; write it as `key: value`"]);
    check(
        "variables:\n  &k b: &v 1\n  c: *v",
        set(),
        expect![[r#"
        variables:
          &k b: &v 1
          c: *v
          a: [1, {"b": "c"}]
          z: null
    "#]],
    );
    check(
        "variables:\n  ? b\nx: 1",
        set(),
        expect![[r#"
        variables:
          ? b
          a: [1, {"b": "c"}]
          z: null
        x: 1
    "#]],
    );
    check(
        "base: &base {q: 1}\nvariables:\n  m: *base",
        set(),
        expect![[r#"
            base: &base {q: 1}
            variables:
              m: *base
              a: [1, {"b": "c"}]
              z: null
        "#]],
    );
}

#[test]
fn nothing_in_a_value_closes_the_block_or_adds_a_key() {
    let node = |text: &str| json!({"currentNodeId": text});
    check(
        "currentNodeId: x",
        node("a\n---\nadmin: true\n"),
        expect![[r#"
        currentNodeId: "a\n---\nadmin: true\n"
    "#]],
    );
    check(
        "currentNodeId: x",
        node("a: 1\nadmin: true # \" ' \\"),
        expect![[r#"
        currentNodeId: "a: 1\nadmin: true # \" ' \\"
    "#]],
    );
    check(
        "currentNodeId: x",
        node("\r\n...\r\n"),
        expect![[r#"
        currentNodeId: "\r\n...\r\n"
    "#]],
    );
    check(
        "currentNodeId: x",
        node("---"),
        expect![[r#"
        currentNodeId: "---"
    "#]],
    );
    check(
        "currentNodeId: x",
        node(""),
        expect![[r#"
        currentNodeId: ""
    "#]],
    );
    check(
        "stepsCompleted: [a]",
        json!({"stepsCompleted": ["]", "b, c", "*a", "&a", "!t", "- x"]}),
        expect![[r#"
        stepsCompleted: [a, "]", "b, c", "*a", "&a", "!t", "- x"]
    "#]],
    );
    check(
        "variables: {a: 1}",
        json!({"variables": {"b: 1\nadmin": 1, "---": 1, "yes": 1, "No": 1, "1": 1, "": 1, "a b": 1, "ok_1": 1}}),
        expect![[r#"
            variables: {a: 1, "b: 1\nadmin": 1, "---": 1, "yes": 1, "No": 1, "1": 1, "": 1, "a b": 1, ok_1: 1}
        "#]],
    );
    check(
        "variables:\n  a: 1",
        json!({"variables": {"n": [1.5, -0.0, 1e300, 1e-7, u64::MAX, i64::MIN, 1e22], "o": {"\n---\n": {"x": []}}}}),
        expect![[r#"
            variables:
              a: 1
              "n": [1.5, -0.0, 1.0e+300, 1.0e-7, 18446744073709551615, -9223372036854775808, 1.0e+22]
              o: {"\n---\n": {"x": []}}
        "#]],
    );
}

#[test]
fn a_key_that_cannot_be_updated_is_named() {
    check(
        "x: &x [a]\nstepsCompleted: *x",
        steps(),
        expect!["`stepsCompleted` in line 3 is an alias; write the value out first"],
    );
    check(
        "stepsCompleted: &x [a]\nx: *x",
        steps(),
        expect!["`stepsCompleted` in line 2 has an anchor that an alias refers to; write the alias out first"],
    );
    check(
        "stepsCompleted: &x\nx: *x",
        steps(),
        expect!["`stepsCompleted` in line 2 has an anchor that an alias refers to; write the alias out first"],
    );
    check(
        "x: 1\nstepsCompleted: a",
        steps(),
        expect!["`stepsCompleted` in line 3 is not a list, so it cannot be appended to"],
    );
    check(
        "stepsCompleted: ''",
        steps(),
        expect!["`stepsCompleted` in line 2 is not a list, so it cannot be appended to"],
    );
    check(
        "stepsCompleted: {a: 1}",
        steps(),
        expect!["`stepsCompleted` in line 2 is not a list, so it cannot be appended to"],
    );
    check(
        "? stepsCompleted\nx: 1",
        steps(),
        expect!["`stepsCompleted` in line 2 cannot be updated in place; write it as `key: value`"],
    );
    check(
        "? stepsCompleted\n: - a",
        steps(),
        expect!["`stepsCompleted` in line 2 cannot be updated in place; write it as `key: value`"],
    );
    check(
        "variables: [a]",
        json!({"variables": {"a": 1}}),
        expect!["`variables` in line 2 is not a mapping, so its keys cannot be set"],
    );
    check(
        "variables: &v {a: 1}\nx: *v",
        json!({"variables": {"a": 2}}),
        expect!["`variables` in line 2 has an anchor that an alias refers to; write the alias out first"],
    );
    check(
        "x: &v {a: 1}\nvariables: *v",
        json!({"variables": {"a": 2}}),
        expect!["`variables` in line 3 is an alias; write the value out first"],
    );
    check(
        "variables:\n  a: &a 1\n  b: *a",
        json!({"variables": {"a": 2}}),
        expect!["`a` in line 3 has an anchor that an alias refers to; write the alias out first"],
    );
    check(
        "variables:\n  a: &a 1\n  b: *a",
        json!({"variables": {"b": 2}}),
        expect!["`b` in line 4 is an alias; write the value out first"],
    );
    check(
        "variables:\n  a: {b: [&b 1]}\n  c: *b",
        json!({"variables": {"a": 2}}),
        expect!["`a` in line 3 has an anchor that an alias refers to; write the alias out first"],
    );
    check(
        "variables:\n  a: {b: [&b 1, *b]}",
        json!({"variables": {"a": 2}}),
        expect![[r#"
        variables:
          a: 2
    "#]],
    );
    check(
        "x: &x 1\ncurrentNodeId: *x",
        json!({"currentNodeId": "n"}),
        expect!["`currentNodeId` in line 3 is an alias; write the value out first"],
    );
    check(
        "currentNodeId: &x 1\nx: *x",
        json!({"currentNodeId": "n"}),
        expect!["`currentNodeId` in line 2 has an anchor that an alias refers to; write the alias out first"],
    );
    check("a: 1\na: 2", json!({"currentNodeId": "n"}), expect!["line 3: a duplicate key"]);
}

#[test]
fn a_result_that_could_not_be_read_again_is_refused() {
    let mut deep = json!(1);
    for _ in 0..64 {
        deep = json!([deep]);
    }
    let many: Vec<String> = (0..12_000).map(|step| format!("{step:x}")).collect();
    check(
        "a: 1",
        json!({"variables": {"a": deep}}),
        expect![
            "the update would make the front matter invalid: line 4: more than 64 levels deep, counting what aliases repeat"
        ],
    );
    check(
        "a: 1",
        json!({"currentNodeId": "x".repeat(70_000)}),
        expect!["the update would make the front matter invalid: the front matter has 70023 bytes; the limit is 65536"],
    );
    check(
        "a: 1",
        json!({"variables": {"k".repeat(1_025): 1}}),
        expect![
            "the update would make the front matter invalid: line 4: a `:` after something that cannot be a key; quote text that contains `: `, and keep keys short"
        ],
    );
    check(
        "stepsCompleted: []",
        json!({"stepsCompleted": many}),
        expect!["the update would make the front matter invalid: the front matter has 91649 bytes; the limit is 65536"],
    );
}

#[test]
fn a_file_without_front_matter_is_not_updated() {
    let asked = json!({"currentNodeId": "n"});
    for text in ["", "body\n", "\n---\na: 1\n---\n", "# c\n---\na: 1\n---\n", "\u{feff}---\na: 1\n---\n"] {
        assert_eq!(apply_json(text, &asked), Err(FrontMatterError::Missing), "{text:?}");
    }
    assert_eq!(apply_json("---\na: 1\n", &asked), Err(FrontMatterError::Unclosed));
}

#[test]
fn characters_that_end_a_line_somewhere_are_escapes() {
    let odd = "\0\t\u{1b}\u{7f}\u{85}\u{2028}\u{2029}\u{feff}\u{ffff}\u{a0}\u{10ffff}";
    let text = apply_json("---\n---\n", &json!({"currentNodeId": odd})).unwrap();
    let escaped = r#""\u0000\t\u001b\u007f\u0085\u2028\u2029\ufeff\uffff"#;
    assert_eq!(text, format!("---\ncurrentNodeId: {escaped}\u{a0}\u{10ffff}\"\n---\n"));
}

#[test]
fn long_and_odd_text_comes_back_as_it_was() {
    let long = "\u{10ffff}\\\" ".repeat(4_000);
    let text = apply_json("---\nstepsCompleted: [a]\n---\n", &json!({"stepsCompleted": [long]})).unwrap();
    assert_eq!(FrontMatter::read(&text).unwrap().to_json()["stepsCompleted"], json!(["a", long]));
}
