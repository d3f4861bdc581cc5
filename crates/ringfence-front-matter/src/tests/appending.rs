//! Appending updates: to lists, to keys without a value, and new keys.

use expect_test::expect;
use serde_json::json;

use crate::tests::{apply_json, check, steps};

#[test]
fn a_block_list_grows_by_lines() {
    check(
        "stepsCompleted:\n  - a\n  - b\nx: 1",
        steps(),
        expect![[r#"
        stepsCompleted:
          - a
          - b
          - "c"
        x: 1
    "#]],
    );
    check(
        "stepsCompleted:\n- a\n- b\nx: 1",
        steps(),
        expect![[r#"
        stepsCompleted:
        - a
        - b
        - "c"
        x: 1
    "#]],
    );
    check(
        "stepsCompleted:\n      - a # one\n\n      # two\n\nx: 1",
        steps(),
        expect![[r#"
        stepsCompleted:
              - a # one
              - "b"
              - "c"

              # two

        x: 1
    "#]],
    );
    check(
        "stepsCompleted: # done\n# more\n  - 'b'",
        steps(),
        expect![[r#"
        stepsCompleted: # done
        # more
          - 'b'
          - "c"
    "#]],
    );
    check(
        "stepsCompleted:\n- - a\n  - x: 1\n    y:\n-",
        steps(),
        expect![[r#"
        stepsCompleted:
        - - a
          - x: 1
            y:
        -
        - "b"
        - "c"
    "#]],
    );
    check(
        "stepsCompleted:\n- |\n  a\n\n# end\nx: 1",
        steps(),
        expect![[r#"
        stepsCompleted:
        - |
          a
        - "b"
        - "c"

        # end
        x: 1
    "#]],
    );
    check(
        "stepsCompleted:\n  - a\n  - |+\n    b\n\n\nx: 1",
        steps(),
        expect![[r#"
        stepsCompleted:
          - a
          - |+
            b


          - "b"
          - "c"
        x: 1
    "#]],
    );
    check(
        "stepsCompleted:\n  -\n    a",
        steps(),
        expect![[r#"
        stepsCompleted:
          -
            a
          - "b"
          - "c"
    "#]],
    );
    check(
        "stepsCompleted: &s\n  - &a a\nx: *a",
        steps(),
        expect![[r#"
        stepsCompleted: &s
          - &a a
          - "b"
          - "c"
        x: *a
    "#]],
    );
    check(
        "# in\n  stepsCompleted:\n  - a\n  x: 1",
        steps(),
        expect![[r##"
            # in
              stepsCompleted:
              - a
              - "b"
              - "c"
              x: 1
        "##]],
    );
    check(
        "\"stepsCompleted\" :\n  - \"a\n    b\"",
        steps(),
        expect![[r#"
        "stepsCompleted" :
          - "a
            b"
          - "b"
          - "c"
    "#]],
    );
    check(
        "? stepsCompleted\n:\n  - a",
        steps(),
        expect![[r#"
        ? stepsCompleted
        :
          - a
          - "b"
          - "c"
    "#]],
    );
}

#[test]
fn a_flow_list_grows_inside_its_brackets() {
    check(
        "stepsCompleted: []",
        steps(),
        expect![[r#"
        stepsCompleted: ["b", "c"]
    "#]],
    );
    check(
        "stepsCompleted: [ ] # none",
        steps(),
        expect![[r#"
        stepsCompleted: ["b", "c" ] # none
    "#]],
    );
    check(
        "stepsCompleted: [a, b]",
        steps(),
        expect![[r#"
        stepsCompleted: [a, b, "c"]
    "#]],
    );
    check(
        "stepsCompleted: [ 'a' , \"b\" , ] # c",
        steps(),
        expect![[r#"
        stepsCompleted: [ 'a' , "b", "c" , ] # c
    "#]],
    );
    check(
        "stepsCompleted: [\n  a, # one\n  b # two\n  # three\n]",
        steps(),
        expect![[r#"
        stepsCompleted: [
          a, # one
          b, "c" # two
          # three
        ]
    "#]],
    );
    check(
        "stepsCompleted:\n  [\n    a,\n  ]\nx: 1",
        steps(),
        expect![[r#"
        stepsCompleted:
          [
            a, "b", "c",
          ]
        x: 1
    "#]],
    );
    check(
        "stepsCompleted: [ # none\n]",
        steps(),
        expect![[r#"
        stepsCompleted: ["b", "c" # none
        ]
    "#]],
    );
    check(
        "stepsCompleted: [x: 1, {y}, [z], a: ]",
        steps(),
        expect![[r#"
        stepsCompleted: [x: 1, {y}, [z], a: , "b", "c"]
    "#]],
    );
    check(
        "x: &x 1\nstepsCompleted: [*x]",
        steps(),
        expect![[r#"
        x: &x 1
        stepsCompleted: [*x, "b", "c"]
    "#]],
    );
}

#[test]
fn a_key_without_a_value_gets_one() {
    check(
        "stepsCompleted:\nx: 1",
        steps(),
        expect![[r#"
        stepsCompleted:
          - "b"
          - "c"
        x: 1
    "#]],
    );
    check(
        "stepsCompleted: # none\n# y\nx: 1",
        steps(),
        expect![[r#"
        stepsCompleted: # none
          - "b"
          - "c"
        # y
        x: 1
    "#]],
    );
    check(
        "stepsCompleted: ~ # none",
        steps(),
        expect![[r#"
        stepsCompleted: ["b", "c"] # none
    "#]],
    );
    check(
        "stepsCompleted: null",
        steps(),
        expect![[r#"
        stepsCompleted: ["b", "c"]
    "#]],
    );
    check(
        "stepsCompleted: &s # none",
        steps(),
        expect![[r#"
        stepsCompleted: &s # none
          - "b"
          - "c"
    "#]],
    );
    check(
        "# in\n  stepsCompleted:\n\n  x: 1",
        steps(),
        expect![[r##"
            # in
              stepsCompleted:
                - "b"
                - "c"

              x: 1
        "##]],
    );
    check(
        "variables:",
        json!({"variables": {"a": 1, "b": {}}}),
        expect![[r#"
        variables:
          a: 1
          b: {}
    "#]],
    );
    check(
        "variables: {}",
        json!({"variables": {"a": 1, "b": {}}}),
        expect![[r#"
        variables: {a: 1, b: {}}
    "#]],
    );
    check(
        "variables: ~",
        json!({"variables": {"a": 1, "b": {}}}),
        expect![[r#"
        variables: {"a": 1, "b": {}}
    "#]],
    );
    check(
        "currentNodeId:\nx: 1",
        json!({"currentNodeId": "n"}),
        expect![[r#"
        currentNodeId: "n"
        x: 1
    "#]],
    );
    check(
        "currentNodeId: # where\nx: 1",
        json!({"currentNodeId": "n"}),
        expect![[r#"
        currentNodeId: "n" # where
        x: 1
    "#]],
    );
}

#[test]
fn a_missing_key_comes_at_the_end() {
    let all = json!({
        "stepsCompleted": ["a"], "artifacts": ["b"], "variables": {"c": 1, "d e": [true, null]},
        "decisionLog": [{"from": "a", "to": "b"}], "currentNodeId": "f", "updatedAt": "2024-01-02T03:04:05Z",
    });
    check(
        "a: 1 # c\n\n# end",
        all.clone(),
        expect![[r#"
        a: 1 # c

        # end
        stepsCompleted:
          - "a"
        artifacts:
          - "b"
        variables:
          c: 1
          "d e": [true, null]
        decisionLog:
          - {"from": "a", "to": "b"}
        currentNodeId: "f"
        updatedAt: "2024-01-02T03:04:05Z"
    "#]],
    );
    check(
        "# in\n  a: 1",
        all.clone(),
        expect![[r##"
            # in
              a: 1
              stepsCompleted:
                - "a"
              artifacts:
                - "b"
              variables:
                c: 1
                "d e": [true, null]
              decisionLog:
                - {"from": "a", "to": "b"}
              currentNodeId: "f"
              updatedAt: "2024-01-02T03:04:05Z"
        "##]],
    );
    check(
        "a: |\n  text\n\n",
        all.clone(),
        expect![[r#"
        a: |
          text


        stepsCompleted:
          - "a"
        artifacts:
          - "b"
        variables:
          c: 1
          "d e": [true, null]
        decisionLog:
          - {"from": "a", "to": "b"}
        currentNodeId: "f"
        updatedAt: "2024-01-02T03:04:05Z"
    "#]],
    );
    check(
        "a: |+\n  text\n\n",
        json!({"currentNodeId": "x"}),
        expect![[r#"
        a: |+
          text


        currentNodeId: "x"
    "#]],
    );
    check(
        "variables:\n  a: 1",
        json!({"variables": {"b": 1}, "currentNodeId": "x"}),
        expect![[r#"
        variables:
          a: 1
          b: 1
        currentNodeId: "x"
    "#]],
    );
    check(
        "# only a comment",
        json!({"currentNodeId": "x"}),
        expect![[r##"
        # only a comment
        currentNodeId: "x"
    "##]],
    );
    check(
        "",
        json!({"currentNodeId": "x"}),
        expect![[r#"

        currentNodeId: "x"
    "#]],
    );
    check(
        "{a: 1} # c",
        all,
        expect![[r#"
        {a: 1, stepsCompleted: ["a"], artifacts: ["b"], variables: {"c": 1, "d e": [true, null]}, decisionLog: [{"from": "a", "to": "b"}], currentNodeId: "f", updatedAt: "2024-01-02T03:04:05Z"} # c
    "#]],
    );
    check(
        "{}",
        json!({"currentNodeId": "x"}),
        expect![[r#"
        {currentNodeId: "x"}
    "#]],
    );
    assert_eq!(apply_json("---\n---", &json!({"updatedAt": "x"})).unwrap(), "---\nupdatedAt: \"x\"\n---");
}

#[test]
fn a_front_matter_in_braces_is_updated_inside_them() {
    let asked = json!({"stepsCompleted": ["b"], "variables": {"x": 2, "y": 1}, "currentNodeId": "n"});
    check(
        "{stepsCompleted: [a], variables: {x: 1}, currentNodeId: m}",
        asked.clone(),
        expect![[r#"
        {stepsCompleted: [a, "b"], variables: {x: 2, "y": 1}, currentNodeId: "n"}
    "#]],
    );
    check(
        "{\"stepsCompleted\":[],\"variables\":{},\"currentNodeId\":\"\"}",
        asked.clone(),
        expect![[r#"
        {"stepsCompleted":["b"],"variables":{x: 2, "y": 1},"currentNodeId":"n"}
    "#]],
    );
    check(
        "{\n  stepsCompleted: , # c\n  currentNodeId: }",
        asked.clone(),
        expect![[r#"
        {
          stepsCompleted: ["b"] , # c
          currentNodeId: "n", variables: {"x": 2, "y": 1} }
    "#]],
    );
    check(
        "{stepsCompleted}",
        asked,
        expect!["`stepsCompleted` in line 2 cannot be updated in place; write it as `key: value`"],
    );
}

#[test]
fn decisions_are_always_appended() {
    let log = || json!({"decisionLog": [{"from": "a", "to": "b", "reason": "x: 1 # \"y\""}]});
    check(
        "decisionLog:\n  - from: z\n    to: a\n    label: go\nx: 1",
        log(),
        expect![[r#"
            decisionLog:
              - from: z
                to: a
                label: go
              - {"from": "a", "to": "b", "reason": "x: 1 # \"y\""}
            x: 1
        "#]],
    );
    check(
        "decisionLog: [{from: a, to: b}]",
        log(),
        expect![[r#"
            decisionLog: [{from: a, to: b}, {"from": "a", "to": "b", "reason": "x: 1 # \"y\""}]
        "#]],
    );
    check(
        "decisionLog:\n- {\"from\": \"a\", \"reason\": \"x: 1 # \\\"y\\\"\", \"to\": \"b\"}",
        log(),
        expect![[r#"
            decisionLog:
            - {"from": "a", "reason": "x: 1 # \"y\"", "to": "b"}
            - {"from": "a", "to": "b", "reason": "x: 1 # \"y\""}
        "#]],
    );
}

#[test]
fn items_already_present_are_not_touched() {
    let lists = "stepsCompleted: [ a,'b' ]\nartifacts:\n- \"c\"\nvariables: {n: 0x10, t: yes, e: }";
    let block = format!("{lists}\ncurrentNodeId: 'd' # c\nupdatedAt: 2024-01-02");
    for asked in [
        json!({}),
        json!({"stepsCompleted": ["b", "a", "b"], "artifacts": ["c"], "currentNodeId": "d", "updatedAt": "2024-01-02"}),
        json!({"variables": {"n": 16, "t": "yes", "e": null}, "decisionLog": []}),
    ] {
        let text = format!("---\n{block}\n---\r\nbody");
        assert_eq!(apply_json(&text, &asked).unwrap(), text);
    }
    check(
        "stepsCompleted: [1]",
        json!({"stepsCompleted": ["1", "1", "2", "1"]}),
        expect![[r#"
        stepsCompleted: [1, "1", "2"]
    "#]],
    );
    check(
        "x: &x [a, b]\nstepsCompleted: *x",
        json!({"stepsCompleted": ["b"]}),
        expect![[r#"
        x: &x [a, b]
        stepsCompleted: *x
    "#]],
    );
}
