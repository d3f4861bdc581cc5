//! Policy for terminal control sequences: which of them a wrapped program may send to the person's terminal.
//!
//! A program may draw, and ask what its terminal can do. It may not make the terminal send bytes of the program's choice as
//! input, read or print, touch files, change how later bytes are parsed, or resize the window. Strings (OSC, DCS, APC) pass
//! only if they are listed; control sequences (CSI) pass unless they are listed.
//!
//! Not here: finding the sequences in a stream (`output_filter.rs`), and the modes that they set (`terminal_modes.rs`).

/// Sequences that are a choice of the person.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FilterOptions {
    /// The program may write to the clipboard (OSC 52). It never reads it.
    pub(crate) clipboard_writes: bool,
    /// The program may send notifications, its progress and its directory (OSC 7, 9, 99, 777).
    pub(crate) notifications: bool,
}

impl Default for FilterOptions {
    fn default() -> Self {
        Self { clipboard_writes: true, notifications: true }
    }
}

/// A control sequence (CSI), in its parts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ControlSequence<'a> {
    /// `?`, `>`, `=` or `<`.
    pub(crate) prefix: Option<u8>,
    pub(crate) parameters: &'a [u8],
    pub(crate) intermediates: &'a [u8],
    pub(crate) final_byte: u8,
}

impl<'a> ControlSequence<'a> {
    /// Parses what follows `ESC [`. None if it is malformed.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (&final_byte, rest) = bytes.split_last()?;
        let (prefix, rest) = match rest.split_first() {
            Some((&first @ b'<'..=b'?', rest)) => (Some(first), rest),
            _ => (None, rest),
        };
        let end = rest.iter().position(|byte| !(b'0'..=b';').contains(byte)).unwrap_or(rest.len());
        let (parameters, intermediates) = rest.split_at_checked(end)?;
        let is_well_formed = intermediates.iter().all(|byte| (b' '..=b'/').contains(byte));
        (is_well_formed && (b'@'..=b'~').contains(&final_byte)).then_some(Self {
            prefix,
            parameters,
            intermediates,
            final_byte,
        })
    }

    /// The parameters as numbers, 0 for one that is left out. None if one has parts or is out of range.
    pub(crate) fn numbers(&self) -> Option<Vec<u16>> {
        let number = |text: &[u8]| match text {
            [] => Some(0),
            text => std::str::from_utf8(text).ok()?.parse().ok(),
        };
        self.parameters.split(|byte| *byte == b';').map(number).collect()
    }

    /// Whether the program may send it.
    pub(crate) fn is_allowed(&self) -> bool {
        match (self.prefix, self.intermediates, self.final_byte) {
            // Window operations. The title would come as input; the size of the window belongs to the person. The
            // sizes that are reported (14, 16, 18) are those that the program's own terminal has.
            (None, [], b't') => {
                self.numbers().and_then(|numbers| numbers.first().copied()).is_some_and(is_allowed_window_operation)
            }
            // How titles are reported, and what a terminal that skips bytes takes for a window operation.
            (_, _, b't') | (Some(b'>'), [], b'T') => false,
            // Printing.
            (_, _, b'i') => false,
            // The keyboard would be locked.
            (None, [], b'h') => self.numbers().is_some_and(|modes| !modes.contains(&2)),
            (Some(b'?'), [], b'h') => {
                self.numbers().is_some_and(|modes| !modes.iter().any(|mode| matches!(mode, 3 | 38 | 40 | 46)))
            }
            // VT52 mode has a syntax of its own.
            (Some(b'?'), [], b'l') => self.numbers().is_some_and(|modes| !modes.contains(&2)),
            // Conformance levels with 8-bit controls, secure reset, checksums of what is on the screen, macros.
            (None, [b'"' | b'+'], b'p') | (None, [b'*'], b'y' | b'z') => false,
            // The status line as the place of output; pages and screens of another size.
            (None, [b'$'], b'}' | b'~' | b'|') | (None, [b'*'], b'|') => false,
            _ => true,
        }
    }
}

fn is_allowed_window_operation(operation: u16) -> bool {
    matches!(operation, 14 | 16 | 18 | 22 | 23)
}

/// Whether an escape sequence of the bytes after `ESC` may pass.
pub(crate) fn is_escape_allowed(bytes: &[u8]) -> bool {
    // Other encodings (`%`), 8-bit controls (space): later bytes would mean something else than here.
    !matches!(bytes.first(), Some(b'%' | b' '))
}

/// Kind of a control string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ControlString {
    /// Operating system command, `ESC ]`.
    Osc,
    /// Device control string, `ESC P`.
    Dcs,
    /// Application program command, `ESC _`.
    Apc,
    /// Privacy message or start of string, `ESC ^` and `ESC X`.
    Ignored,
}

impl ControlString {
    /// The kind that this byte after `ESC` begins.
    pub(crate) fn begun_by(byte: u8) -> Option<Self> {
        match byte {
            b']' => Some(Self::Osc),
            b'P' => Some(Self::Dcs),
            b'_' => Some(Self::Apc),
            b'^' | b'X' => Some(Self::Ignored),
            _ => None,
        }
    }

    /// The decision about a string that begins so; None while more of it has to be seen. `is_whole` says that its end
    /// was seen.
    pub(crate) fn decide(self, content: &[u8], is_whole: bool, options: FilterOptions) -> Option<bool> {
        let decision = match self {
            Self::Osc => decide_osc(content, is_whole, options),
            Self::Dcs => decide_dcs(content, is_whole),
            Self::Apc => decide_apc(content, is_whole),
            Self::Ignored => Some(false),
        };
        // A string that ends before it can be recognized does nothing that is known.
        decision.or(is_whole.then_some(false))
    }
}

/// The part before the first of these bytes, and what follows it.
fn split_at_byte(content: &[u8], separator: u8) -> Option<(&[u8], &[u8])> {
    let at = content.iter().position(|byte| *byte == separator)?;
    Some((content.get(..at)?, content.get(at + 1..)?))
}

fn decide_osc(content: &[u8], is_whole: bool, options: FilterOptions) -> Option<bool> {
    let (command, rest) = match split_at_byte(content, b';') {
        Some(parts) => parts,
        None => (content, &[][..]),
    };
    // Numbers of commands have up to five digits.
    if command.len() > 5 || command.iter().any(|byte| !byte.is_ascii_digit()) {
        return Some(false);
    }
    if command.len() == content.len() && !is_whole {
        return None;
    }
    match std::str::from_utf8(command).ok()?.parse::<u16>().ok() {
        // Titles, links, pointer shapes, sizes of text, marks of prompts.
        Some(0..=2 | 8 | 22 | 66 | 133) => Some(true),
        // Colours: set, queried and reset. A reply has a colour and nothing else.
        Some(4 | 5 | 10..=19 | 21 | 104 | 105 | 110..=119 | 30001 | 30101) => Some(true),
        Some(7 | 99 | 777) => Some(options.notifications),
        Some(9) if !options.notifications => Some(false),
        Some(9) => decide_notification(rest, is_whole),
        Some(52) => decide_clipboard(rest, is_whole, options),
        Some(1337) => decide_inline_file(rest, is_whole),
        // Among others: logs, fonts, functions of an editor around the terminal, other clipboards, file transfers.
        _ => Some(false),
    }
}

/// A text, or a progress (`4;…`). With other numbers it is a command of the terminal, such as a macro.
fn decide_notification(rest: &[u8], is_whole: bool) -> Option<bool> {
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    match (digits, rest.get(digits)) {
        (0, None) if !is_whole => None,
        (0, _) => Some(true),
        (1.., Some(b';')) => Some(rest.get(..digits)? == b"4"),
        (1.., Some(_)) => Some(true),
        (1.., None) if is_whole => Some(false),
        (1.., None) => None,
    }
}

/// `SELECTION;DATA`, where `?` as data asks for the contents.
fn decide_clipboard(rest: &[u8], is_whole: bool, options: FilterOptions) -> Option<bool> {
    if !options.clipboard_writes {
        return Some(false);
    }
    let (_, data) = split_at_byte(rest, b';')?;
    match data.first() {
        // Base64.
        Some(first) => Some(first.is_ascii_alphanumeric() || matches!(first, b'+' | b'/')),
        None => is_whole.then_some(true),
    }
}

/// `File=ARGUMENTS:DATA`. Without `inline=1` the terminal would save it as a download.
fn decide_inline_file(rest: &[u8], is_whole: bool) -> Option<bool> {
    const FILE: &[u8] = b"File=";
    let Some(arguments) = rest.strip_prefix(FILE) else {
        return (is_whole || !FILE.starts_with(rest)).then_some(false);
    };
    let (arguments, _) = split_at_byte(arguments, b':')?;
    Some(arguments.split(|byte| *byte == b';').any(|argument| argument == b"inline=1"))
}

/// Sixel images, synchronized updates, and queries of capabilities. Not here: queries whose reply repeats a part of them
/// (`$q`), keys that are defined, and what a terminal multiplexer passes on (`tmux;`).
fn decide_dcs(content: &[u8], is_whole: bool) -> Option<bool> {
    let is_parameter = |byte: &u8| byte.is_ascii_digit() || *byte == b';';
    let at = content.iter().position(|byte| !is_parameter(byte))?;
    match (at, content.get(at..)?) {
        (_, [b'q', ..]) => Some(true),
        // `=1s` and `=2s`.
        (0, [b'=']) | (0, [b'=', b'1' | b'2']) => None,
        (0, [b'=', b'1' | b'2', b's']) => is_whole.then_some(true),
        (0, [b'+']) => None,
        // Names as hexadecimal digits, which the reply repeats.
        (0, [b'+', b'q', names @ ..]) if names.iter().all(|byte| byte.is_ascii_hexdigit() || *byte == b';') => {
            is_whole.then_some(true)
        }
        _ => Some(false),
    }
}

/// Images whose data is in the sequence. By another medium (`t=f`, `t=t`, `t=s`) the terminal would read, and delete, a file.
fn decide_apc(content: &[u8], is_whole: bool) -> Option<bool> {
    let keys = match (content.first(), split_at_byte(content, b';')) {
        (None, _) => return None,
        (Some(b'G'), Some((keys, _))) => keys,
        (Some(b'G'), None) if is_whole => content,
        (Some(b'G'), None) => return None,
        (Some(_), _) => return Some(false),
    };
    let mut keys = keys.get(1..)?.split(|byte| *byte == b',');
    Some(keys.all(|key| !key.trim_ascii().starts_with(b"t") || key == b"t=d"))
}
