//! Response fuzzing: cuts change nothing, and an unfinished response is never an answer.

use ringfence_fuzz::FuzzTarget;

use super::{ModelResponse, ProviderError, read_anthropic, read_openai};

const TOKENS: &[&str] = &[
    "data: ",
    "\n\n",
    "\r\n\r\n",
    "event: ",
    ": ping\n\n",
    "data: [DONE]\n\n",
    "\u{feff}",
    "\"finish_reason\":\"stop\"",
    "\"stop_reason\":\"end_turn\"",
    "\"tool_calls\":[",
    "\"index\":",
    "\"id\":\"a\"",
    "\"arguments\":\"",
    "\"content\":null",
    "\"usage\":{\"prompt_tokens\":",
    "\"error\":{\"message\":\"x\"}",
    "{\"type\":\"message_stop\"}",
    "{\"type\":\"ping\"}",
    "\\\"",
    "\\u00e9",
    "{",
    "}",
    "]",
    "null",
];

type BodyReadFn = fn(&[&[u8]]) -> Result<ModelResponse, ProviderError>;

/// The outcome of a body, which must be the same in one piece, byte by byte and in two.
fn check(read: BodyReadFn, body: &[u8]) -> Result<(usize, usize, String), String> {
    let whole = read(&[body]);
    let bytes: Vec<&[u8]> = body.chunks(1).collect();
    assert_eq!(read(&bytes), whole, "byte by byte");
    // A handful of cuts, which differ from input to input.
    for cut in 1..6 {
        let (head, tail) = body.split_at(body.len() * cut / 6);
        assert_eq!(read(&[head, tail]), whole, "cut at {}", head.len());
        assert_eq!(read(&[head, &[], tail]), whole, "cut at {}, with nothing in between", head.len());
    }
    match whole {
        Ok(answer) => {
            assert!(String::from_utf8_lossy(body).contains("_reason"), "an answer without an end: {answer:?}");
            Ok((answer.calls.len(), answer.warnings.len(), format!("{:?}", answer.finish)))
        }
        Err(fault) => Err(format!("{:?} {}", fault.kind, fault.text.chars().take(30).collect::<String>())),
    }
}

fn target(name: &'static str) -> FuzzTarget {
    FuzzTarget::new(name, env!("CARGO_MANIFEST_DIR")).tokens(TOKENS)
}

#[test]
fn a_completion_is_the_same_however_it_comes() {
    target("openai").check(|body| check(read_openai, body));
}

#[test]
fn a_message_is_the_same_however_it_comes() {
    target("anthropic").check(|body| check(read_anthropic, body));
}
