//! Fuzz target for server-sent events: the events, the id and the delay do not depend on how a stream is split, and no event
//! exceeds the limit.

use ringfence_fuzz::FuzzTarget;

use crate::sse::{SseDecoder, SseEvent, SseEventTooLong};

/// Bytes of an event that are read.
const LIMIT: usize = 256;

/// The events of a stream, how it ended, and the state after it.
type StreamOutcome = (Vec<SseEvent>, Result<(), SseEventTooLong>, String, Option<u128>);

fn decode<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> StreamOutcome {
    let (mut decoder, mut events) = (SseDecoder::new(LIMIT), Vec::new());
    let result = pieces.into_iter().try_for_each(|piece| {
        decoder.push(piece, &mut |event| {
            events.push(event);
            Ok(())
        })
    });
    (events, result, decoder.last_event_id().to_owned(), decoder.retry().map(|delay| delay.as_millis()))
}

#[test]
fn a_stream_has_the_same_events_however_it_is_split() {
    let tokens =
        &["data", "data: ", "event: ", "id: ", "retry: ", ":", "\n", "\r", "\r\n", "\n\n", "\u{feff}", "\0", "10"];
    FuzzTarget::new("sse", env!("CARGO_MANIFEST_DIR")).tokens(tokens).check(|bytes| {
        let whole = decode([bytes]);
        assert_eq!(decode(bytes.chunks(1)), whole, "byte by byte");
        for cut in 1..6 {
            let (head, tail) = bytes.split_at(bytes.len() * cut / 6);
            assert_eq!(decode([head, &[], tail]), whole, "cut at {}", head.len());
        }
        let (events, result, id, retry) = whole;
        for event in &events {
            // A byte that is not UTF-8 becomes a character of three.
            assert!(event.data.len() + event.name.len() <= 3 * LIMIT, "{}", event.data.len());
            assert!(!event.data.contains('\r') && !event.name.contains(['\r', '\n']), "{event:?}");
        }
        assert!(!id.contains(['\0', '\r', '\n']), "{id:?}");
        let shape =
            |event: &SseEvent| (event.name.is_empty(), event.data.lines().count().min(3), event.had_invalid_utf8);
        (events.iter().take(3).map(shape).collect::<Vec<_>>(), result.is_ok(), id.is_empty(), retry.is_some())
    });
}
