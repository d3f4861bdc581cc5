//! Streaming Markdown renderer for terminals: headings and emphasis are bold, code is faint.
//!
//! Nothing is left out or moved: the marks stay, so what is copied from the terminal is what the model wrote. Whatever a
//! terminal would obey is written as an escape.

use ringfence_kernel::sanitize_text;

const BOLD: &str = "\x1b[1m";
const FAINT: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";

/// State of a partly rendered text.
#[derive(Debug)]
pub(crate) struct MarkdownRenderer {
    styled: bool,
    /// Marks whose end has not come yet.
    marks: String,
    at_line_start: bool,
    heading: bool,
    bold: bool,
    code: bool,
    fence: bool,
}

impl MarkdownRenderer {
    pub(crate) fn new(styled: bool) -> Self {
        Self {
            styled,
            marks: String::new(),
            at_line_start: true,
            heading: false,
            bold: false,
            code: false,
            fence: false,
        }
    }

    /// The output for the next piece.
    pub(crate) fn push(&mut self, text: &str) -> String {
        let text = sanitize_text(text);
        if !self.styled {
            return text;
        }
        let mut shown = String::with_capacity(text.len());
        for c in text.chars() {
            if matches!(c, '*' | '`' | '#') && self.marks.chars().all(|mark| mark == c) {
                self.marks.push(c);
                continue;
            }
            self.flush_marks(&mut shown);
            match c {
                '*' | '`' | '#' => self.marks.push(c),
                '\n' => self.end_line(&mut shown),
                c => {
                    shown.push(c);
                    self.at_line_start &= c == ' ';
                }
            }
        }
        shown
    }

    /// The end of the text.
    pub(crate) fn finish(&mut self) -> String {
        let mut shown = String::new();
        self.flush_marks(&mut shown);
        if self.heading || self.bold || self.code || self.fence {
            shown.push_str(PLAIN);
        }
        *self = Self::new(self.styled);
        shown
    }

    fn flush_marks(&mut self, shown: &mut String) {
        let marks = std::mem::take(&mut self.marks);
        let Some(mark) = marks.chars().next() else { return };
        let begins_line = std::mem::take(&mut self.at_line_start);
        match (mark, marks.len()) {
            ('`', 3..) if begins_line => {
                self.fence = !self.fence;
                shown.push_str(FAINT);
                shown.push_str(&marks);
            }
            _ if self.fence => shown.push_str(&marks),
            ('`', 1) => self.toggle(shown, &marks, |state| &mut state.code),
            ('*', 2) if !self.code => self.toggle(shown, &marks, |state| &mut state.bold),
            ('#', 1..=6) if begins_line => {
                self.heading = true;
                shown.push_str(BOLD);
                shown.push_str(&marks);
            }
            _ => shown.push_str(&marks),
        }
    }

    fn toggle(&mut self, shown: &mut String, marks: &str, state: fn(&mut Self) -> &mut bool) {
        let on = !*state(self);
        *state(self) = on;
        if on {
            shown.push_str(self.style());
            shown.push_str(marks);
        } else {
            shown.push_str(marks);
            shown.push_str(PLAIN);
            shown.push_str(self.style());
        }
    }

    fn end_line(&mut self, shown: &mut String) {
        if self.heading || (!self.fence && (self.bold || self.code)) {
            (self.heading, self.bold, self.code) = (false, false, false);
            shown.push_str(PLAIN);
        }
        shown.push('\n');
        self.at_line_start = true;
        if self.fence {
            shown.push_str(FAINT);
        } else {
            shown.push_str(PLAIN);
        }
    }

    fn style(&self) -> &'static str {
        match (self.code || self.fence, self.bold || self.heading) {
            (true, _) => FAINT,
            (false, true) => BOLD,
            (false, false) => "",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::MarkdownRenderer;

    const TEXT: &str = "# Title\nSome **bold** and `code` * star\n```rust\nlet a = **b;\n```\nend ** \u{1b}[2J\n";

    fn plain(text: &str) -> String {
        text.replace("\x1b[1m", "").replace("\x1b[2m", "").replace("\x1b[0m", "")
    }

    #[test]
    fn rendering_is_the_same_for_any_chunking() {
        let mut markdown = MarkdownRenderer::new(true);
        let whole = markdown.push(TEXT) + &markdown.finish();
        assert_eq!(plain(&whole), TEXT.replace('\u{1b}', "\\u{1b}"));
        for size in 1..9 {
            let mut markdown = MarkdownRenderer::new(true);
            let chars: Vec<char> = TEXT.chars().collect();
            let pieces = chars.chunks(size).map(|piece| markdown.push(&piece.iter().collect::<String>()));
            let shown: String = pieces.collect::<Vec<_>>().concat() + &markdown.finish();
            assert_eq!(shown, whole, "in pieces of {size}");
        }
        assert!(whole.contains("\x1b[1m# Title\x1b[0m") && whole.contains("\x1b[1m**bold**\x1b[0m"), "{whole:?}");
        assert!(whole.contains("\x1b[2m`code`\x1b[0m") && whole.contains("\x1b[2mlet a = **b;"), "{whole:?}");
    }

    #[test]
    fn without_styles_the_text_is_as_it_was() {
        assert_eq!(MarkdownRenderer::new(false).push("**a**\n"), "**a**\n");
    }
}
