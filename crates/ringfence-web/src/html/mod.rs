//! HTML to markdown or plain text, in one pass and without a tree.
//!
//! A page is read token by token. Open elements are kept on a stack that has a bound; deeper tags are skipped and their
//! text is kept. So the work grows with the page and not with how it nests, and the output has a bound of its own.
//!
//! Not here: bytes and their charset (`response_body.rs`).

use html5gum::{DefaultEmitter, HtmlString, StartTag, Token, Tokenizer};
use url::Url;

/// Tags that are open at once; deeper ones are passed over.
const MAX_OPEN_TAGS: usize = 256;

/// Quotes and lists are drawn to this depth.
const MAX_RENDERED_DEPTH: usize = 8;

/// Most cells of a row that are kept apart.
const MAX_ROW_CELLS: usize = 64;

/// A longer link is given as its text alone.
const MAX_LINK_BYTES: usize = 2 << 10;

/// Output form of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HtmlOutputStyle {
    Markdown,
    Text,
}

/// A converted page.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ConvertedHtml {
    pub(crate) text: String,
    pub(crate) title: Option<String>,
    /// There was more than the bound.
    pub(crate) truncated: bool,
    /// Number of steps, to check that it grows linearly with the page.
    #[cfg(test)]
    steps: usize,
}

/// Converts a page, within a limit in bytes.
pub(crate) fn convert(html: &str, base: Option<&Url>, style: HtmlOutputStyle, most: usize) -> ConvertedHtml {
    let mut emitter = DefaultEmitter::default();
    emitter.naively_switch_states(true);
    let mut writer = HtmlWriter::new(base.cloned(), style, most);
    for token in Tokenizer::new_with_emitter(html, emitter) {
        let Ok(token) = token;
        match token {
            Token::StartTag(tag) => writer.open(&tag),
            Token::EndTag(tag) => writer.close(&tag.name),
            Token::String(text) => writer.text(&String::from_utf8_lossy(&text.value)),
            _ => {}
        }
        if writer.out.len() > most {
            // Marks without a text between them are taken away again at the end, and the page goes on all the same.
            writer.truncated = true;
            break;
        }
    }
    writer.finish()
}

/// Plain text without any markup, such as a title with tags in it.
pub(crate) fn plain_text(html: &str, most: usize) -> String {
    let text = convert(html, None, HtmlOutputStyle::Text, most).text;
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Elements that are not what a reader came for, with all that is in them.
const SKIPPED_ELEMENTS: &[&str] = &[
    "script", "style", "template", "svg", "math", "nav", "noscript", "iframe", "object", "canvas", "audio", "video",
    "select", "datalist", "dialog", "noembed", "noframes", "head",
];

/// Elements that begin on a line of their own.
const BLOCK_ELEMENTS: &[&str] = &[
    "address",
    "article",
    "aside",
    "body",
    "dd",
    "details",
    "div",
    "dl",
    "dt",
    "fieldset",
    "figcaption",
    "figure",
    "footer",
    "form",
    "header",
    "hgroup",
    "html",
    "legend",
    "main",
    "p",
    "section",
    "summary",
    "caption",
    "center",
];

/// An open element that changes the output.
#[derive(Debug)]
enum HtmlElementState {
    /// An element that is on the stack only to be closed.
    Block,
    Quote,
    List {
        next: Option<u64>,
    },
    Item,
    Pre,
    Table,
    Row,
    Cell,
    /// Inline markup: the opening marker was written at `at`, the closing one is this.
    InlineMarker {
        at: usize,
        behind: &'static str,
    },
    Link {
        at: usize,
        target: Option<Url>,
    },
}

struct HtmlWriter {
    style: HtmlOutputStyle,
    max_bytes: usize,
    /// The rest of the page was not looked at.
    truncated: bool,
    base: Option<Url>,
    out: String,
    stack: Vec<(String, HtmlElementState)>,
    /// An element that is passed over, and how deep it is in others of its name.
    skipping: Option<(String, usize)>,
    title: Option<String>,
    in_title: bool,
    /// Line ends that are due before the next text.
    pending_breaks: usize,
    /// A space is due before the next text.
    pending_space: bool,
    quotes: usize,
    lists: usize,
    /// The bullet or number in front of the next text.
    pending_bullet: Option<String>,
    /// The contents of `pre`, until their longest run of backticks is known.
    pre: Option<PreformattedBlock>,
    tables: usize,
    /// Cells of the row so far, and whether it is the first.
    cells: usize,
    rows: usize,
    #[cfg(test)]
    steps: usize,
}

#[derive(Default)]
struct PreformattedBlock {
    text: String,
    language: String,
}

impl HtmlWriter {
    fn new(base: Option<Url>, style: HtmlOutputStyle, max_bytes: usize) -> Self {
        Self {
            style,
            max_bytes,
            truncated: false,
            base,
            out: String::new(),
            stack: Vec::new(),
            skipping: None,
            title: None,
            in_title: false,
            pending_breaks: 0,
            pending_space: false,
            quotes: 0,
            lists: 0,
            pending_bullet: None,
            pre: None,
            tables: 0,
            cells: 0,
            rows: 0,
            #[cfg(test)]
            steps: 0,
        }
    }

    fn count_steps(&mut self, count: usize) {
        #[cfg(test)]
        {
            self.steps += count;
        }
        let _ = count;
    }

    fn open(&mut self, tag: &StartTag<()>) {
        self.count_steps(1);
        let name = String::from_utf8_lossy(&tag.name).into_owned();
        // Wherever it stands: the tokenizer reads what follows as its text.
        if name == "title" {
            self.in_title = true;
            return;
        }
        if let Some((skipped, depth)) = &mut self.skipping {
            *depth += usize::from(*skipped == name);
            // A head ends where the body begins, with or without a closing tag.
            if skipped != "head" || name != "body" {
                return self.note_base(&name, tag);
            }
            self.skipping = None;
        }
        if SKIPPED_ELEMENTS.contains(&name.as_str()) {
            if !tag.self_closing {
                self.skipping = Some((name, 1));
            }
            return;
        }
        self.note_base(&name, tag);
        match name.as_str() {
            "br" => self.break_lines(1),
            "hr" => self.rule(),
            "img" => self.image(tag),
            "input" | "meta" | "link" | "base" | "area" | "col" | "embed" | "source" | "track" | "wbr" | "param" => {}
            "p" | "li" | "dt" | "dd" | "tr" | "td" | "th" | "option" => {
                self.close_implied(&name);
                self.push(name, tag);
            }
            _ => self.push(name, tag),
        }
    }

    /// Closes the elements that the start of another one implies to be closed.
    fn close_implied(&mut self, name: &str) {
        let (ends, within): (&[&str], &[&str]) = match name {
            "li" => (&["li"], &["ul", "ol", "menu"]),
            "dt" | "dd" => (&["dt", "dd"], &["dl"]),
            "tr" => (&["tr"], &["table"]),
            "td" | "th" => (&["td", "th"], &["tr", "table"]),
            _ => (&["p"], &["div", "li", "td", "th", "blockquote", "section", "article"]),
        };
        let mut looked = 0;
        let found =
            self.stack.iter().rev().take_while(|(open, _)| !within.contains(&open.as_str())).position(|(open, _)| {
                looked += 1;
                ends.contains(&open.as_str())
            });
        self.count_steps(looked);
        if let Some(above) = found {
            self.pop_to(self.stack.len() - above - 1);
        }
    }

    fn push(&mut self, name: String, tag: &StartTag<()>) {
        if self.stack.len() >= MAX_OPEN_TAGS {
            return;
        }
        let marked = self.style == HtmlOutputStyle::Markdown && self.pre.is_none();
        let open = match name.as_str() {
            "h1" | "h2" | "h3" | "h4" | "h5" | "h6" => {
                self.break_lines(2);
                let level = name.as_bytes().get(1).map_or(1, |digit| usize::from(digit - b'0'));
                if marked && self.tables == 0 {
                    self.pending_bullet = Some(format!("{} ", "#".repeat(level)));
                }
                HtmlElementState::Block
            }
            "b" | "strong" if marked => self.open_inline_marker("**"),
            "i" | "em" if marked => self.open_inline_marker("*"),
            "code" | "kbd" | "samp" if marked => self.open_inline_marker("`"),
            "code" => {
                self.note_language(tag);
                return;
            }
            "del" | "s" if marked => self.open_inline_marker("~~"),
            "a" if marked => {
                let target = attribute(tag, b"href").and_then(|link| self.link(&link));
                self.flush_pending();
                let at = self.out.len();
                if target.is_some() {
                    self.out.push('[');
                }
                HtmlElementState::Link { at, target }
            }
            "blockquote" => {
                self.break_lines(2);
                self.quotes += 1;
                HtmlElementState::Quote
            }
            "ul" | "ol" | "menu" => {
                self.break_lines(if self.lists == 0 { 2 } else { 1 });
                self.lists += 1;
                let first = || attribute(tag, b"start").and_then(|start| start.parse().ok()).unwrap_or(1);
                HtmlElementState::List { next: (name == "ol").then(first) }
            }
            "li" => {
                self.break_lines(1);
                self.pending_bullet = Some(self.next_bullet());
                HtmlElementState::Item
            }
            "pre" | "xmp" | "listing" | "textarea" if self.pre.is_none() && self.tables == 0 => {
                self.break_lines(2);
                self.pre = Some(PreformattedBlock::default());
                self.note_language(tag);
                HtmlElementState::Pre
            }
            "table" => {
                self.break_lines(2);
                self.tables += 1;
                self.rows = if self.tables == 1 { 0 } else { self.rows };
                HtmlElementState::Table
            }
            "tr" if self.tables == 1 => {
                self.break_lines(1);
                self.cells = 0;
                HtmlElementState::Row
            }
            "td" | "th" if self.tables == 1 => {
                self.cells += 1;
                if self.cells <= MAX_ROW_CELLS {
                    self.write_marker(if self.cells == 1 { "| " } else { " | " });
                }
                HtmlElementState::Cell
            }
            block if BLOCK_ELEMENTS.contains(&block) => {
                self.break_lines(if matches!(block, "dt" | "dd" | "div" | "summary") { 1 } else { 2 });
                HtmlElementState::Block
            }
            "td" | "th" => {
                self.pending_space = true;
                HtmlElementState::Block
            }
            _ => HtmlElementState::Block,
        };
        self.stack.push((name, open));
    }

    fn close(&mut self, name: &HtmlString) {
        self.count_steps(1);
        let name = String::from_utf8_lossy(name).into_owned();
        if name == "title" {
            self.in_title = false;
            return;
        }
        if let Some((skipped, depth)) = &mut self.skipping {
            *depth -= usize::from(*skipped == name);
            if *depth == 0 {
                self.skipping = None;
            }
            return;
        }
        let above = self.stack.iter().rev().position(|(open, _)| *open == name);
        self.count_steps(above.unwrap_or(self.stack.len()));
        match above {
            Some(above) => self.pop_to(self.stack.len() - above - 1),
            None if name == "p" || name == "br" => self.break_lines(1),
            None => {}
        }
    }

    fn pop_to(&mut self, length: usize) {
        while self.stack.len() > length {
            let Some((name, open)) = self.stack.pop() else { return };
            self.count_steps(1);
            self.end_element(&name, open);
        }
    }

    fn end_element(&mut self, name: &str, open: HtmlElementState) {
        match open {
            HtmlElementState::Block if name.starts_with('h') && name.len() == 2 => {
                self.pending_bullet = None;
                self.break_lines(2);
            }
            HtmlElementState::Block if matches!(name, "dt" | "dd" | "div" | "summary") => self.break_lines(1),
            HtmlElementState::Block if BLOCK_ELEMENTS.contains(&name) => self.break_lines(2),
            HtmlElementState::Block => {}
            HtmlElementState::Quote => {
                self.break_lines(2);
                self.quotes -= 1;
            }
            HtmlElementState::List { .. } => {
                self.lists -= 1;
                self.break_lines(if self.lists == 0 { 2 } else { 1 });
            }
            HtmlElementState::Item => {
                self.pending_bullet = None;
                self.break_lines(1);
            }
            HtmlElementState::Pre => self.end_pre(),
            HtmlElementState::Table => {
                self.tables -= 1;
                self.break_lines(2);
            }
            HtmlElementState::Row => self.end_row(),
            HtmlElementState::Cell => self.pending_space = false,
            HtmlElementState::InlineMarker { at, behind } => match self.out.len() == at + behind.len() {
                true => self.out.truncate(at),
                false => self.out.push_str(behind),
            },
            HtmlElementState::Link { target: None, .. } => {}
            HtmlElementState::Link { at, target: Some(target) } => match self.out.len() == at + 1 {
                true => self.out.truncate(at),
                false => {
                    self.count_steps(target.as_str().len());
                    self.out.push_str("](");
                    self.out.push_str(target.as_str());
                    self.out.push(')');
                }
            },
        }
    }

    fn text(&mut self, text: &str) {
        self.count_steps(text.len());
        if self.in_title {
            let of_page = self.skipping.as_ref().is_none_or(|(skipped, _)| skipped == "head");
            let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
            if of_page && self.title.is_none() && !words.is_empty() {
                self.title = Some(words);
            }
            return;
        }
        if self.skipping.is_some() {
            return;
        }
        if let Some(pre) = &mut self.pre {
            let room = self.max_bytes.saturating_sub(pre.text.len()).saturating_add(1);
            pre.text.push_str(text.get(..text.floor_char_boundary(room)).unwrap_or(text));
            return;
        }
        for (number, word) in text.split(|c: char| c.is_ascii_whitespace()).enumerate() {
            self.pending_space |= number > 0;
            if !word.is_empty() {
                self.word(word);
            }
            if self.out.len() > self.max_bytes {
                return;
            }
        }
    }

    fn word(&mut self, word: &str) {
        self.flush_pending();
        match self.tables > 0 && self.style == HtmlOutputStyle::Markdown {
            true => self.out.push_str(&word.replace('|', "\\|")),
            false => self.out.push_str(word),
        }
    }

    /// Writes what is due before the next text.
    fn flush_pending(&mut self) {
        if self.pending_breaks > 0 {
            if !self.out.is_empty() {
                let until =
                    if self.pending_bullet.is_some() { self.pending_breaks.min(2) } else { self.pending_breaks };
                for _ in 0..until {
                    self.trim_line();
                    self.out.push('\n');
                    self.prefix();
                }
            } else {
                self.prefix();
            }
            self.pending_space = false;
        } else if self.out.is_empty() {
            self.prefix();
            self.pending_space = false;
        }
        self.pending_breaks = 0;
        if let Some(bullet) = self.pending_bullet.take() {
            self.out.push_str(&bullet);
            self.pending_space = false;
        }
        if std::mem::take(&mut self.pending_space) && !self.out.ends_with([' ', '\n']) {
            self.out.push(' ');
        }
    }

    /// Quote marks and the depth of lists, for a line that begins.
    fn prefix(&mut self) {
        for _ in 0..self.quotes.min(MAX_RENDERED_DEPTH) {
            self.out.push_str("> ");
        }
        for _ in 1..self.lists.min(MAX_RENDERED_DEPTH) {
            self.out.push_str("  ");
        }
        if self.lists > 0 && self.pending_bullet.is_none() {
            self.out.push_str("  ");
        }
    }

    fn trim_line(&mut self) {
        let length = self.out.trim_end_matches([' ', '\t']).len();
        self.out.truncate(length);
    }

    /// Starts the next text this number of lines further down.
    fn break_lines(&mut self, count: usize) {
        match self.tables {
            0 => self.pending_breaks = self.pending_breaks.max(count),
            // A row is one line.
            _ => self.pending_space = true,
        }
        if self.tables == 1
            && self.stack.last().is_none_or(|(_, open)| !matches!(open, HtmlElementState::Cell | HtmlElementState::Row))
        {
            let in_cell = self.stack.iter().rev().take(4).any(|(_, open)| matches!(open, HtmlElementState::Cell));
            if !in_cell {
                self.pending_breaks = self.pending_breaks.max(count);
            }
        }
    }

    /// Writes markup that is not text of the page.
    fn write_marker(&mut self, text: &str) {
        self.pending_space = false;
        self.flush_pending();
        self.out.push_str(text);
    }

    fn open_inline_marker(&mut self, marker: &'static str) -> HtmlElementState {
        self.flush_pending();
        let at = self.out.len();
        self.out.push_str(marker);
        HtmlElementState::InlineMarker { at, behind: marker }
    }

    fn rule(&mut self) {
        if self.style == HtmlOutputStyle::Markdown && self.tables == 0 && self.pre.is_none() {
            self.break_lines(2);
            self.write_marker("---");
        }
        self.break_lines(2);
    }

    fn image(&mut self, tag: &StartTag<()>) {
        let Some(words) = attribute(tag, b"alt").filter(|words| !words.trim().is_empty()) else { return };
        let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
        let source = attribute(tag, b"src").and_then(|source| self.link(&source));
        match source.filter(|_| self.style == HtmlOutputStyle::Markdown && self.pre.is_none()) {
            Some(source) => self.word(&format!("![{words}]({source})")),
            None if self.pre.is_none() => self.word(&words),
            None => {}
        }
    }

    fn next_bullet(&mut self) -> String {
        let list = self.stack.iter_mut().rev().find_map(|(_, open)| match open {
            HtmlElementState::List { next } => Some(next),
            _ => None,
        });
        match list {
            Some(Some(number)) => {
                let bullet = format!("{number}. ");
                *number = number.saturating_add(1);
                bullet
            }
            _ => "- ".to_owned(),
        }
    }

    fn end_pre(&mut self) {
        let Some(PreformattedBlock { text, language }) = self.pre.take() else { return };
        let text = text.strip_prefix('\n').unwrap_or(&text).trim_end();
        if text.is_empty() {
            return;
        }
        self.flush_pending();
        let fence =
            (self.style == HtmlOutputStyle::Markdown).then(|| "`".repeat(longest_backtick_run(text).max(2) + 1));
        let lines = fence.iter().map(|fence| format!("{fence}{language}"));
        let lines: Vec<String> = lines.chain(text.lines().map(str::to_owned)).chain(fence.iter().cloned()).collect();
        for (number, line) in lines.iter().enumerate() {
            if number > 0 {
                self.out.push('\n');
                self.prefix();
            }
            self.out.push_str(line);
        }
        self.break_lines(2);
    }

    fn end_row(&mut self) {
        if self.cells > 0 {
            self.out.push_str(" |");
            self.rows += 1;
            if self.rows == 1 && self.style == HtmlOutputStyle::Markdown {
                self.out.push('\n');
                self.prefix();
                let rule = "| --- ".repeat(self.cells.min(MAX_ROW_CELLS));
                self.out.push_str(&rule);
                self.out.push('|');
            }
        }
        self.cells = 0;
        self.pending_breaks = self.pending_breaks.max(1);
    }

    fn note_language(&mut self, tag: &StartTag<()>) {
        let Some(pre) = self.pre.as_mut().filter(|pre| pre.language.is_empty()) else { return };
        let class = attribute(tag, b"class").unwrap_or_default();
        let language = class.split_whitespace().find_map(|word| word.strip_prefix("language-"));
        let plain =
            |word: &&str| word.len() <= 32 && word.chars().all(|c| c.is_ascii_alphanumeric() || "+-#".contains(c));
        pre.language = language.filter(plain).unwrap_or_default().to_owned();
    }

    /// Base URL of relative links.
    fn note_base(&mut self, name: &str, tag: &StartTag<()>) {
        if name == "base"
            && let Some(href) = attribute(tag, b"href")
            && let Some(base) = self.link(&href)
        {
            self.base = Some(base);
        }
    }

    /// A link that can be followed, whole.
    fn link(&self, href: &str) -> Option<Url> {
        let href = href.trim();
        if href.is_empty() || href.starts_with('#') || href.len() > MAX_LINK_BYTES {
            return None;
        }
        let url = match &self.base {
            Some(base) => base.join(href).ok()?,
            None => Url::parse(href).ok()?,
        };
        (matches!(url.scheme(), "http" | "https") && url.as_str().len() <= MAX_LINK_BYTES).then_some(url)
    }

    fn finish(mut self) -> ConvertedHtml {
        self.pop_to(0);
        let truncated = self.truncated || self.out.len() > self.max_bytes;
        self.out.truncate(self.out.floor_char_boundary(self.max_bytes));
        let length = self.out.trim_end().len();
        self.out.truncate(length);
        ConvertedHtml {
            text: self.out,
            title: self.title,
            truncated,
            #[cfg(test)]
            steps: self.steps,
        }
    }
}

fn attribute(tag: &StartTag<()>, name: &[u8]) -> Option<String> {
    tag.attributes.get(name).map(|value| String::from_utf8_lossy(value).into_owned())
}

/// The longest run of backticks.
fn longest_backtick_run(text: &str) -> usize {
    text.split(|c| c != '`').map(str::len).max().unwrap_or_default()
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
