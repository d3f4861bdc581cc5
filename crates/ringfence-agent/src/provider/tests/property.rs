//! Property tests: whatever a server sends, nothing panics, and an unfinished response is never an answer.

use proptest::prelude::*;

use super::{read_anthropic, read_openai};

/// Pieces of streams, good, bad and in between, that never say that the model finished.
fn unfinished() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        Just(&b"data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n"[..]),
        Just(&b"data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"a\",\"function\":{\"name\":\"read_file\",\"arguments\":\"{}\"}}]}}]}\n\n"[..]),
        Just(&b"data: {\"choices\":[{\"delta\":{},\"finish_reason\":null}]}\r\n\r\n"[..]),
        Just(&b"data: {\"choices\":[{\"index\":1,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"[..]),
        Just(&b"data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"sto"[..]),
        Just(&b"data: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"tool_use\",\"id\":\"a\",\"name\":\"b\",\"input\":{}}}\n\n"[..]),
        Just(&b"data: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":null}}\n\n"[..]),
        Just(&b"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"[..]),
        Just(&b"data: [DONE]\n\n"[..]),
        Just(&b": ping\n\n"[..]),
        Just(&b"\xEF\xBB\xBF"[..]),
        Just(&b"\n\n"[..]),
        Just(&b"{\"choices\":[{\"message\":{\"content\":\"a\"}}]}"[..]),
        Just(&b"<html>"[..]),
    ];
    let noise = prop::collection::vec(any::<u8>(), 0..20);
    let piece = prop_oneof![8 => piece.prop_map(<[u8]>::to_vec), 1 => noise];
    prop::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat())
}

/// A good stream with some of its bytes changed.
fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let good = concat!(
        "data: {\"model\":\"tiny\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"grüße\"}}]}\n\n",
        "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"a\",\"function\":{\"name\":\"read_file\",\"arguments\":\"{\\\"path\\\"\"}}]}}]}\n\n",
        "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\":1}\"}}]}}]}\n\n",
        "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"tool_calls\"}],\"usage\":{\"prompt_tokens\":-1}}\n\n",
        "data: [DONE]\n\n",
    );
    let change = (0..good.len(), prop_oneof![any::<u8>(), Just(b'"'), Just(b'\n'), Just(b'{'), Just(b'9')]);
    prop::collection::vec(change, 0..6).prop_map(|changes| {
        let mut bytes = good.as_bytes().to_vec();
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        bytes
    })
}

fn cut(body: &[u8], at: usize) -> [&[u8]; 2] {
    let (head, tail) = body.split_at(at.min(body.len()));
    [head, tail]
}

proptest! {
    #[test]
    fn an_unfinished_stream_gives_no_answer(body in unfinished(), at in 0..400_usize) {
        for read in [read_openai, read_anthropic] {
            let answer = read(&[&body]);
            prop_assert!(answer.is_err(), "{answer:?}");
            prop_assert_eq!(read(&cut(&body, at)), answer);
        }
    }

    #[test]
    fn damage_never_panics_and_cuts_change_nothing(body in damaged(), at in 0..600_usize) {
        let answer = read_openai(&[&body]);
        prop_assert_eq!(&read_openai(&cut(&body, at)), &answer);
        if answer.is_ok() {
            prop_assert!(body.windows(13).any(|word| word == b"finish_reason"));
        }
        prop_assert!(read_anthropic(&[&body]).is_err());
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(body in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(read_openai(&[&body]).is_err());
        prop_assert!(read_anthropic(&[&body]).is_err());
    }
}
