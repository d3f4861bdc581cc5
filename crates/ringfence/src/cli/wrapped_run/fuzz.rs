//! Fuzz target for output of wrapped programs: the same result in each chunking, and nothing that is removed can be found in
//! it by a parser of another kind.

use ringfence_fuzz::FuzzTarget;

use crate::cli::wrapped_run::output_filter::{MAX_HELD, OutputFilter, filtered};
use crate::cli::wrapped_run::sequence_policy::FilterOptions;

/// Strings and control sequences of an output, found by a search for their introducers. Text that looks like one after a
/// string that is open counts too: more is found than a terminal would obey.
fn check_output(output: &[u8]) {
    assert!(!output.contains(&0x05), "{}", output.escape_ascii());
    let text = String::from_utf8_lossy(output);
    assert!(!text.contains(|c: char| ('\u{80}'..='\u{9f}').contains(&c)), "{}", output.escape_ascii());
    for sequence in text.split('\u{1b}').skip(1) {
        let body = sequence.get(1..).unwrap_or_default();
        match sequence.chars().next() {
            Some('[') => {
                let end = body.find(|c: char| ('@'..='~').contains(&c));
                let (parameters, last) = body.split_at(end.unwrap_or(0));
                let parameters: String = parameters.chars().filter(|c| !c.is_control()).collect();
                match last.chars().next() {
                    Some('t') => {
                        assert!(!matches!(parameters.split(';').next(), Some("" | "20" | "21" | "8" | "11" | "19")));
                    }
                    Some('i') => panic!("{}", output.escape_ascii()),
                    _ => {}
                }
            }
            Some(']') if body.starts_with("52;") => {
                assert!(body.split(';').nth(2).is_none_or(|data| !data.starts_with('?')), "{}", output.escape_ascii());
            }
            Some('P') => assert!(!body.starts_with("$q") && !body.starts_with("tmux"), "{}", output.escape_ascii()),
            Some('^' | 'X' | '%' | ' ') => panic!("{}", output.escape_ascii()),
            _ => {}
        }
    }
}

#[test]
fn output_is_filtered_the_same_in_each_chunking() {
    FuzzTarget::new("terminal-output", env!("CARGO_MANIFEST_DIR"))
        .tokens(&[
            "\x1b[",
            "\x1b]",
            "\x1bP",
            "\x1b_",
            "\x1b^",
            "\x1b\\",
            "\x07",
            "\x18",
            "\u{9b}",
            "\u{9c}",
            "52;c;",
            "?",
            "21t",
            "5i",
            "$q",
            "+q",
            "?1049h",
            "?2026l",
            ">1u",
            "1337;File=",
            "inline=1:",
            "Ga=T,t=d;",
            "\x05",
            "✳",
        ])
        .check(|bytes| {
            let whole = filtered(bytes);
            check_output(&whole);
            // Of its own output it removes nothing. A character that goes on nowhere ends at the space.
            let ended = [whole.as_slice(), b" "].concat();
            assert_eq!(filtered(&ended), ended);
            let mut filter = OutputFilter::new(FilterOptions::default());
            let mut output = Vec::new();
            for byte in bytes {
                filter.filter(&[*byte], &mut output);
                assert!(filter.held_len() <= MAX_HELD);
            }
            assert_eq!(output, whole);
            let modes = filter.modes();
            // The modes as they are set again are those that were set.
            let mut again = OutputFilter::new(FilterOptions::default());
            again.filter(&modes.resume(), &mut Vec::new());
            assert_eq!(again.modes().suspend(), modes.suspend());
            (bytes.len() - whole.len().min(bytes.len()), modes.suspend().len())
        });
}
