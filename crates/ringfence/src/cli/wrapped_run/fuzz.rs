//! Fuzz target for output of wrapped programs: the same result in each chunking, and nothing that is removed can be found in
//! it by a parser of another kind. And for the screen that it draws, which can be drawn again.

use ringfence_fuzz::FuzzTarget;
use ringfence_sandbox::TerminalSize;

use crate::cli::wrapped_run::output_filter::{MAX_HELD, OutputFilter, filtered};
use crate::cli::wrapped_run::screen_model::ScreenModel;
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

/// The first bytes are sizes of the screen; it changes in the middle of the output.
#[test]
fn a_screen_is_drawn_by_any_output_and_drawn_again_the_same() {
    FuzzTarget::new("terminal-screen", env!("CARGO_MANIFEST_DIR"))
        .tokens(&[
            "\x1b[", "\x1b7", "\x1b8", "\x1bM", "\x1bD", "\x1bc", "\x1b(0", "\x0e", "?1049h", "?1049l", "?6h", "?7l",
            "2;3r", "9999", "65535", "H", "J", "K", "L", "M", "P", "@", "X", "b", "S", "T", "\t", "\r\n", "你", "é",
            "\u{301}",
        ])
        .check(|bytes| {
            let (sizes, output) = bytes.split_at(bytes.len().min(2));
            let size = |at: usize| u16::from(sizes.get(at).copied().unwrap_or(7) % 32);
            let mut screen = ScreenModel::new(TerminalSize { rows: size(0), columns: size(1) });
            let (first, second) = output.split_at(output.len() / 2);
            screen.feed(first);
            screen.resize(TerminalSize { rows: size(1), columns: size(0) });
            screen.feed(second);
            // A sequence that is not whole yet is drawn later.
            screen.feed(b"\x18 ");
            let mut again = ScreenModel::new(screen.size());
            again.feed(&screen.repaint());
            assert_eq!(again.lines(), screen.lines());
            assert_eq!(screen.lines().len(), usize::from(screen.size().rows));
            screen.lines().concat().len()
        });
}
