//! Property tests: any front matter, any update, any damage.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Map, Value, json};

use crate::tests::update;
use crate::tests::yaml_writer::YamlWriter;
use crate::{FrontMatter, FrontMatterUpdate, apply};

/// Scalars that front matter is made of.
#[rustfmt::skip]
const WORDS: &[&str] = &[
    "stepsCompleted", "variables", "currentNodeId", "a", "'b'", "\"c\"", "1", "~", ":", ": ", ":\n", " ", "  ",
    "\n", "\n  ", "- ", "[", "]", "{", "}", ",", ", ", " # d\n", "&a ", "*a", "|\n", ">+\n", "? ", "'", "\"",
    "\t", "---", "...", "\r\n", "!t ", "%", "stepsCompleted:", "variables:\n  ", "stepsCompleted: [",
    "currentNodeId: ",
];

const MARKS: &[u8] = b"\0\t\n\r #&*-:?,[]{}'\"|>!%~a\\\xff";

/// Text that could be taken for something else.
#[rustfmt::skip]
const ODD_TEXT: &[&str] = &[
    "", " ", "a\n", "a\n\n", "\n", "---", "...", "a: b", "# c", "a # b", "- a", "null", "true", "1", "0x1",
    "1.5", "a\n---\nb: 1\n", "[", "*a", "&a", "!a", "\"", "'", "\\", "|", "\t", "a\u{a0}b", "\u{85}",
    "\u{7f}", "\u{feff}", "é", "😀", "a\r\nb", "\0", "yes", "line one\nline two",
];

fn text() -> impl Strategy<Value = String> {
    let odd = select(ODD_TEXT).prop_map(str::to_owned);
    prop_oneof![3 => "[a-z]{1,6}".boxed(), 2 => odd.boxed(), 1 => ".{0,8}".boxed()]
}

fn key() -> impl Strategy<Value = String> {
    prop_oneof![4 => "[a-d]{1,2}".boxed(), 1 => text().boxed()]
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_filter("JSON has none", |number| number.is_finite()).prop_map(Value::from),
        text().prop_map(Value::from),
        text().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![vec(inner.clone(), 0..4).prop_map(Value::from), object(inner).prop_map(Value::Object)]
    })
}

fn object(value: impl Strategy<Value = Value>) -> impl Strategy<Value = Map<String, Value>> {
    vec((key(), value), 0..4).prop_map(Map::from_iter)
}

fn list() -> impl Strategy<Value = Value> {
    vec(text(), 0..4).prop_map(Value::from)
}

/// Each pair may be there or not.
fn some_of(pairs: Vec<(&'static str, BoxedStrategy<Value>)>) -> BoxedStrategy<Map<String, Value>> {
    let chosen = pairs.into_iter().map(|(key, value)| proptest::option::of(value).prop_map(move |value| (key, value)));
    let kept = |(key, value): (&str, Option<Value>)| value.map(|value| (key.to_owned(), value));
    chosen.collect::<Vec<_>>().prop_map(move |pairs| pairs.into_iter().filter_map(kept).collect()).boxed()
}

/// A front matter as a workflow has it, with keys that no update changes.
fn front_matter() -> BoxedStrategy<Map<String, Value>> {
    let or_null = |value: BoxedStrategy<Value>| prop_oneof![4 => value, 1 => Just(Value::Null)].boxed();
    some_of(vec![
        ("stepsCompleted", or_null(vec(value(), 0..4).prop_map(Value::from).boxed())),
        ("artifacts", or_null(list().boxed())),
        ("variables", or_null(object(value()).prop_map(Value::Object).boxed())),
        ("decisionLog", or_null(vec(object(value()).prop_map(Value::Object), 0..3).prop_map(Value::from).boxed())),
        ("currentNodeId", value().boxed()),
        ("updatedAt", value().boxed()),
        ("Above", value().boxed()),
        ("between", value().boxed()),
        ("zlast", value().boxed()),
    ])
}

fn any_update() -> BoxedStrategy<Map<String, Value>> {
    some_of(vec![
        ("stepsCompleted", list().boxed()),
        ("artifacts", list().boxed()),
        ("variables", object(value()).prop_map(Value::Object).boxed()),
        ("decisionLog", vec(object(value()).prop_map(Value::Object), 0..3).prop_map(Value::from).boxed()),
        ("currentNodeId", text().prop_map(Value::from).boxed()),
        ("updatedAt", text().prop_map(Value::from).boxed()),
    ])
}

/// The update by a second, simpler implementation.
fn expected(mut json: Map<String, Value>, asked: &Map<String, Value>) -> Map<String, Value> {
    for (key, value) in asked {
        let old = json.get(key).cloned().unwrap_or_default();
        let new = match value {
            Value::Array(items) => {
                let mut list = old.as_array().cloned().unwrap_or_default();
                for item in items {
                    if key == "decisionLog" || !list.contains(item) {
                        list.push(item.clone());
                    }
                }
                (list != old.as_array().cloned().unwrap_or_default()).then_some(Value::Array(list))
            }
            Value::Object(pairs) => {
                let mut object = old.as_object().cloned().unwrap_or_default();
                object.extend(pairs.clone());
                (!pairs.is_empty()).then_some(Value::Object(object))
            }
            value => Some(value.clone()),
        };
        if let Some(new) = new {
            json.insert(key.clone(), new);
        }
    }
    json
}

fn without_log(update: &FrontMatterUpdate) -> FrontMatterUpdate {
    FrontMatterUpdate { decision_log_append: Vec::new(), ..update.clone() }
}

/// Whatever the text: an update works or is refused, keeps the body, and says what it should.
fn check_any(text: &str, update: &FrontMatterUpdate) {
    let Ok(front) = FrontMatter::read(text) else { return };
    let Ok(updated) = apply(text, update) else { return };
    assert_eq!(FrontMatter::read(&updated).unwrap().body(), front.body());
    assert_eq!(apply(&updated, &without_log(update)).unwrap(), updated);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_front_matter_is_read_and_updated_and_nothing_else_changes(
        json in front_matter(),
        asked in any_update(),
        choices in vec(any::<u8>(), 0..200),
        body in ".{0,20}(\n---\n)?",
    ) {
        let mut scribe = YamlWriter::new(choices);
        let pieces = scribe.write(&json);
        let text = format!("---\n{}---\n{body}", pieces.concat());
        let front = FrontMatter::read(&text).unwrap();
        prop_assert_eq!(front.to_json(), json.clone());
        prop_assert_eq!(front.body(), &body);

        let update = update(&Value::Object(asked.clone()));
        let updated = apply(&text, &update).unwrap();
        let front = FrontMatter::read(&updated).unwrap();
        prop_assert_eq!(front.to_json(), expected(json.clone(), &asked));
        prop_assert_eq!(front.body(), body);
        for comment in 0..scribe.comments() {
            prop_assert!(updated.contains(&format!("#c{comment};")), "comment {comment} is gone:\n{text}\n{updated}");
        }
        if pieces.len() > 1 {
            for (key, piece) in json.keys().zip(&pieces).filter(|(key, _)| !asked.contains_key(*key)) {
                prop_assert!(updated.contains(piece.as_str()), "{key} changed:\n{text}\n{updated}");
            }
        }
        prop_assert_eq!(apply(&updated, &without_log(&update)).unwrap(), updated);
    }

    #[test]
    fn line_ends_make_no_difference(json in front_matter(), asked in any_update(), choices in vec(any::<u8>(), 0..200)) {
        let text = format!("---\n{}---\nbody\n", YamlWriter::new(choices).write(&json).concat());
        let update = update(&Value::Object(asked));
        let with_returns = apply(&text.replace('\n', "\r\n"), &update).unwrap();
        prop_assert_eq!(with_returns, apply(&text, &update).unwrap().replace('\n', "\r\n"));
    }

    #[test]
    fn any_damage_is_survived(
        json in front_matter(),
        asked in any_update(),
        choices in vec(any::<u8>(), 0..200),
        damage in vec((any::<Index>(), select(MARKS), 0..3u8), 1..6),
    ) {
        let mut bytes = YamlWriter::new(choices).write(&json).concat().into_bytes();
        for (at, byte, how) in damage {
            let at = at.index(bytes.len() + 1);
            match how {
                0 => bytes.insert(at, byte),
                1 if at < bytes.len() => bytes[at] = byte,
                _ if at < bytes.len() => drop(bytes.remove(at)),
                _ => {}
            }
        }
        check_any(&format!("---\n{}---\nbody", String::from_utf8_lossy(&bytes)), &update(&Value::Object(asked)));
    }

    #[test]
    fn any_words_and_marks_are_survived(
        words in vec(select(WORDS), 0..24),
        asked in any_update(),
    ) {
        check_any(&format!("---\n{}\n---\nbody", words.concat()), &update(&Value::Object(asked)));
    }

    #[test]
    fn any_text_is_survived(text in any::<String>(), asked in any_update()) {
        let update = update(&Value::Object(asked));
        check_any(&text, &update);
        check_any(&format!("---\n{text}\n---\n{text}"), &update);
    }

    #[test]
    fn any_value_comes_back_from_any_key(value in value(), name in key()) {
        let asked = json!({"variables": {name.clone(): value.clone()}});
        for text in ["---\n---\n", "---\nvariables: {}\n---\n", "---\nvariables:\n  q: 1\n---\n", "---\n{}\n---\n"] {
            let updated = apply(text, &update(&asked)).unwrap();
            prop_assert_eq!(&FrontMatter::read(&updated).unwrap().to_json()["variables"][&name], &value);
        }
    }
}
