//! Tests of the output filter: what passes, what is removed, and properties of every stream.

use proptest::prelude::*;

use crate::cli::wrapped_run::output_filter::{MAX_HELD, OutputFilter, filtered};
use crate::cli::wrapped_run::sequence_policy::FilterOptions;

/// Sequences that full-screen programs use.
const DRAWING: &[&str] = &[
    "plain text\r\n\ttab \u{8}\u{7} ünïcödé 漢字 ✳ 👍🏽",
    "\x1b[1;38;2;10;20;30;48;5;7m\x1b[4:3m\x1b[m",
    "\x1b[2J\x1b[H\x1b[10;20H\x1b[K\x1b[5A\x1b[3X\x1b[2@\x1b[1;24r\x1b[r",
    "\x1b[?1049h\x1b[?25l\x1b[?2004h\x1b[?1000;1002;1006h\x1b[?1004h\x1b[?2026h\x1b[?2026l",
    "\x1b[>1u\x1b[<u\x1b[=5;1u\x1b[?u\x1b[>4;2m\x1b[?4m",
    "\x1b[c\x1b[>c\x1b[=c\x1b[5n\x1b[6n\x1b[?6n\x1b[?996n\x1b[>q\x1b[?2026$p\x1b[?2048$p",
    "\x1b[2 q\x1b[!p\x1b[?3;4l\x1b[4l\x1b[22;0;0t\x1b[23;0;0t\x1b[14t\x1b[16t\x1b[18t",
    "\x1b7\x1b8\x1bM\x1bD\x1bE\x1bH\x1b=\x1b>\x1b(0\x1b(B\x1b)0\x0e\x0f\x1b#8\x1bc",
    "\x1b]0;✳ a title\x07\x1b]2;another\x1b\\\x1b]8;id=1;https://example.org/\x1b\\link\x1b]8;;\x1b\\",
    "\x1b]4;1;?\x1b\\\x1b]10;?\x07\x1b]11;?\x1b\\\x1b]12;#ffffff\x07\x1b]104\x07\x1b]111\x1b\\\x1b]22;pointer\x07",
    "\x1b]52;c;aGVsbG8=\x07\x1b]52;;\x1b\\",
    "\x1b]7;file://host/tmp\x07\x1b]9;done\x07\x1b]9;4;1;50\x07\x1b]9;2 files\x07\x1b]777;notify;a;b\x1b\\\x1b]99;i=1;hi\x1b\\",
    "\x1b]133;A\x07\x1b]66;s=2;Big\x07\x1b]1337;File=inline=1;size=3:AAAA\x07",
    "\x1bP0;1;0q\"1;1;10;10#0;2;0;0;0~~@@vv$-\r\n\x1b\\\x1bP=1s\x1b\\\x1bP=2s\x1b\\\x1bP+q544e;436f\x1b\\",
    "\x1b_Ga=T,f=100,t=d;AAAA\x1b\\\x1b_Gm=1;AAAA\x1b\\\x1b_Gi=31,a=q\x1b\\",
    "\x1b[12\nm\x1b[?1;2;4;6;9;15;22c",
];

/// Sequences that speak to the terminal itself.
const REMOVED: &[&str] = &[
    "\x05",
    "\x1b[21t",
    "\x1b[20t",
    "\x1b[0021t",
    "\x1b[21:1t",
    "\x1b[t",
    "\x1b[8;50;100t",
    "\x1b[3;0;0t",
    "\x1b[11t",
    "\x1b[13t",
    "\x1b[15t",
    "\x1b[19t",
    "\x1b[30t",
    "\x1b[>2;3t",
    "\x1b[65557t",
    "\x1b[21 t",
    "\x1b[?21t",
    "\x1b[\"i",
    "\x1b[i",
    "\x1b[5i",
    "\x1b[4i",
    "\x1b[?5i",
    "\x1b[2h",
    "\x1b[?2l",
    "\x1b[?1;2l",
    "\x1b[?38h",
    "\x1b[?3h",
    "\x1b[?40h",
    "\x1b[?46h",
    "\x1b[?65538l",
    "\x1b[62;0\"p",
    "\x1b[1;1;1;1;24;80*y",
    "\x1b[1*z",
    "\x1b[1$}",
    "\x1b[132$|",
    "\x1b[48*|",
    "\x1b[1?h",
    "\x1b[ 1m",
    "\x1b%@",
    "\x1b%G",
    "\x1b G",
    "\x1b]52;c;?\x07",
    "\x1b]52;;?\x1b\\",
    "\x1b]52;pc;?garbage\x07",
    "\x1b]0052;c;?\x07",
    "\x1b]3;WM_NAME=x\x07",
    "\x1b]46;/tmp/log\x07",
    "\x1b]50;?\x07",
    "\x1b]51;[\"call\",\"Tapi_x\",1]\x07",
    "\x1b]633;E;rm\x07",
    "\x1b]5522;type=read\x1b\\",
    "\x1b]5113;ac=send\x1b\\",
    "\x1b]1337;File=name=eA==:AAAA\x07",
    "\x1b]1337;RequestUpload=format=tgz\x07",
    "\x1b]1337;Copy=:AAAA\x07",
    "\x1b]9;6;macro\x07",
    "\x1b]9;1;9999\x07",
    "\x1b]lTitle\x1b\\",
    "\x1b]\x07",
    "\x1b]999999;x\x07",
    "\x1bP$qm\x1b\\",
    "\x1bP$q q\x1b\\",
    "\x1bP1$tx\x1b\\",
    "\x1bP0;1|17/41\x1b\\",
    "\x1bP1;0;0!z41\x1b\\",
    "\x1bP+qxyz\x1b\\",
    "\x1bP+p787465726d\x1b\\",
    "\x1bPtmux;x\x1b\\",
    "\x1bP1p\x1b\\",
    "\x1bP\x1b\\",
    "\x1b_Ga=T,t=f;L2V0Yy9wYXNzd2Q=\x1b\\",
    "\x1b_Gt=t,a=T;L3RtcC94\x1b\\",
    "\x1b_Gt=s;eA==\x1b\\",
    "\x1b_tmux title\x1b\\",
    "\x1b^message\x1b\\",
    "\x1bXstring\x1b\\",
    "\u{9b}",
    "\u{9d}",
    "\u{90}",
    "\u{85}",
    // Cut short by a cancel.
    "\x1b[12\x18",
    "\x1b]52;c\x1a",
];

#[track_caller]
fn check(input: &[u8], expected: &[u8]) {
    let output = filtered(input);
    assert_eq!(output.escape_ascii().to_string(), expected.escape_ascii().to_string(), "{}", input.escape_ascii());
}

fn filtered_with(options: FilterOptions, input: &[u8]) -> Vec<u8> {
    let mut output = Vec::new();
    OutputFilter::new(options).filter(input, &mut output);
    output
}

#[test]
fn what_draws_and_asks_for_features_passes_unchanged() {
    for sequence in DRAWING {
        check(sequence.as_bytes(), sequence.as_bytes());
    }
}

#[test]
fn what_speaks_to_the_terminal_itself_is_removed() {
    for sequence in REMOVED {
        check(format!("a{sequence}b").as_bytes(), b"ab");
    }
    // 8-bit controls that are not UTF-8.
    check(b"a\x9b21tb\x90\x9c", b"a21tb");
}

#[test]
fn characters_with_bytes_of_controls_stay_whole() {
    // U+2733 and U+271B have the bytes 9C and 9B.
    check("\x1b]2;✳ ✛ title\x07✛[21t".as_bytes(), "\x1b]2;✳ ✛ title\x07✛[21t".as_bytes());
    check(b"latin \xe9t\xe9 \xff", b"latin \xe9t\xe9 \xff");
}

#[test]
fn clipboard_and_notifications_are_the_choice_of_the_person() {
    let options = FilterOptions { clipboard_writes: false, notifications: false };
    let removed =
        "\x1b]52;c;aGk=\x07\x1b]52;c;\x07\x1b]7;file:///\x07\x1b]9;hi\x07\x1b]9;4;1;5\x07\x1b]777;a\x07\x1b]99;;a\x07";
    assert_eq!(filtered_with(options, removed.as_bytes()), b"");
    assert_eq!(filtered_with(options, b"\x1b]0;t\x07"), b"\x1b]0;t\x07");
}

#[test]
fn a_sequence_in_another_one_is_decided_by_itself() {
    check(b"\x1b[3\x1b[21tx", b"x");
    check(b"\x1b[3\x1b[1mx", b"\x1b[1mx");
    check(b"\x1b]0;title\x1b[21tx", b"\x1b]0;title\x1b\\x");
    check(b"\x1b]0;title\x1b]52;c;?\x07x", b"\x1b]0;title\x1b\\x");
    check(b"\x1b]0;a\x05b\x18\x1b[1m", b"\x1b]0;ab\x1b\\\x1b[1m");
    check(b"\x1bPq#0\x1b\x1b[5ix", b"\x1bPq#0\x1b\\x");
    check(b"\x1b[2\x051t", b"");
    check(b"\x1b[2\x7f1t", b"");
    check("\x1b[2é1t".as_bytes(), "é1t".as_bytes());
}

#[test]
fn an_endless_sequence_is_removed_and_bounded() {
    check(format!("\x1b[{}mx", "1;".repeat(1000)).as_bytes(), b"x");
    check(format!("\x1b]1337;File={}\x07x", "a".repeat(1000)).as_bytes(), b"x");
    check(format!("\x1b{}Gx", " ".repeat(600)).as_bytes(), b"x");
}

#[test]
fn an_interrupted_string_ends_at_once_and_its_rest_is_removed() {
    let mut filter = OutputFilter::new(FilterOptions::default());
    let mut output = Vec::new();
    filter.filter(b"\x1bPq#0~~", &mut output);
    filter.interrupt(&mut output);
    filter.interrupt(&mut output);
    filter.filter(b"~~\x1b\\after", &mut output);
    assert_eq!(output.escape_ascii().to_string(), b"\x1bPq#0~~\x1b\\after".escape_ascii().to_string());
    // What was not written yet goes on.
    let mut filter = OutputFilter::new(FilterOptions::default());
    let mut output = Vec::new();
    filter.filter(b"\x1b[1", &mut output);
    filter.interrupt(&mut output);
    filter.filter(b"mx", &mut output);
    assert_eq!(output, b"\x1b[1mx");
}

/// The modes after an output: how they are switched off, and on again.
#[track_caller]
fn check_modes(input: &str, suspended: &str, resumed: &str) {
    let mut filter = OutputFilter::new(FilterOptions::default());
    filter.filter(input.as_bytes(), &mut Vec::new());
    let written = (filter.modes().suspend(), filter.modes().resume());
    let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
    assert_eq!(
        (text(&written.0), text(&written.1)),
        (text(suspended.as_bytes()), text(resumed.as_bytes())),
        "{input:?}"
    );
}

#[test]
fn modes_that_are_on_are_switched_off_and_on_again_and_others_are_left_alone() {
    check_modes("text \x1b[1m\x1b[?25h\x1b[?2004l", "", "");
    check_modes("\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l", "\x1b[?1049h\x1b[?25l");
    check_modes("\x1b[?1002;1006;2004h", "\x1b[?1002l\x1b[?1006l\x1b[?2004l", "\x1b[?1002h\x1b[?1006h\x1b[?2004h");
    check_modes("\x1b[?2026h\x1b[?1004h", "\x1b[?2026l\x1b[?1004l", "\x1b[?1004h\x1b[?2026h");
    check_modes("\x1b[?7l", "\x1b[?7h", "\x1b[?7l");
    check_modes("\x1b[4h\x1b=", "\x1b[4l\x1b>", "\x1b=\x1b[4h");
    check_modes("\x1b[3;20r", "\x1b7\x1b[r\x1b8", "\x1b7\x1b[3;20r\x1b8");
    check_modes("\x1b[3;20r\x1b[r", "", "");
    check_modes("\x1b(0\x0e", "\x0f\x1b(B", "\x1b(0\x0e");
    check_modes("\x1b[>4;2m", "\x1b[>4;0m", "\x1b[>4;2m");
    check_modes("\x1b[>4;2m\x1b[>4n", "", "");
    check_modes("\x1b[?1000h\x1b[?1049h\x1bc", "", "");
    check_modes("\x1b[?1000s\x1b[?1000h\x1b[?1000r", "", "");
    // What was removed set nothing.
    check_modes("\x1b[?1000;38h", "", "");
}

#[test]
fn the_keyboard_protocol_has_a_stack_on_each_screen() {
    check_modes("\x1b[>1u", "\x1b[=0;1u", "\x1b[=1;1u");
    check_modes("\x1b[>1u\x1b[>7u\x1b[<u", "\x1b[=0;1u", "\x1b[=1;1u");
    check_modes("\x1b[>1u\x1b[<9u", "", "");
    check_modes("\x1b[=1u\x1b[=4;2u\x1b[=1;3u", "\x1b[=0;1u", "\x1b[=4;1u");
    check_modes("\x1b[>1u\x1b[?1049h", "\x1b[?1049l", "\x1b[?1049h");
    check_modes("\x1b[>1u\x1b[?1049h\x1b[>3u\x1b[?1049l", "\x1b[=0;1u", "\x1b[=1;1u");
}

#[test]
fn a_program_that_dies_on_the_alternate_screen_leaves_a_plain_terminal() {
    let mut filter = OutputFilter::new(FilterOptions::default());
    filter.filter(b"\x1b[>1u\x1b[?1049h\x1b[>3u\x1b[?25l\x1b[5 q\x1b[31m", &mut Vec::new());
    assert!(filter.modes().is_on_alternate_screen());
    let expected = "\x1b[<1u\x1b[?25h\x1b[?1049l\x1b[<1u\x1b[0 q\x1b[m";
    let reset = filter.modes().reset();
    // The flags of the alternate screen are 3 until its entry is popped, and are also set to 0.
    assert_eq!(String::from_utf8(reset).unwrap().replace("\x1b[=0;1u", ""), expected);
}

/// A piece of output, with what passes of it.
fn piece() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
    let passes = prop::sample::select(DRAWING).prop_map(|text| (text.as_bytes().to_vec(), text.as_bytes().to_vec()));
    let removed = prop::sample::select(REMOVED).prop_map(|text| (text.as_bytes().to_vec(), Vec::new()));
    let text = "[ -~äß漢👍\r\n\t]{0,20}".prop_map(|text| (text.clone().into_bytes(), text.into_bytes()));
    prop_oneof![passes, removed, text]
}

proptest! {
    #[test]
    fn bytes_other_than_the_removed_sequences_are_unchanged(pieces in prop::collection::vec(piece(), 0..20)) {
        let input: Vec<u8> = pieces.iter().flat_map(|(input, _)| input.clone()).collect();
        let expected: Vec<u8> = pieces.iter().flat_map(|(_, output)| output.clone()).collect();
        prop_assert_eq!(filtered(&input).escape_ascii().to_string(), expected.escape_ascii().to_string());
    }

    #[test]
    fn any_chunks_give_the_same_output(pieces in prop::collection::vec(piece(), 0..8), cuts in prop::collection::vec(1_usize..9, 1..20)) {
        let input: Vec<u8> = pieces.iter().flat_map(|(input, _)| input.clone()).collect();
        let mut filter = OutputFilter::new(FilterOptions::default());
        let (mut output, mut rest, mut cuts) = (Vec::new(), input.as_slice(), cuts.into_iter().cycle());
        while !rest.is_empty() {
            let (chunk, after) = rest.split_at(cuts.next().unwrap_or(1).min(rest.len()));
            filter.filter(chunk, &mut output);
            prop_assert!(filter.held_len() <= MAX_HELD);
            rest = after;
        }
        prop_assert_eq!(output, filtered(&input));
    }
}
