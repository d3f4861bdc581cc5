//! HTML as markdown or plain text, in one pass and without a tree.
//!
//! A page is read token by token. What is open is kept on a stack that has a bound; deeper tags are passed over and their
//! text is kept. So the work grows with the page and not with how it nests, and the output has a bound of its own.
//!
//! Not here: bytes and their charset (`page.rs`).

use html5gum::{DefaultEmitter, HtmlString, StartTag, Token, Tokenizer};
use url::Url;

/// Tags that are open at once; deeper ones are passed over.
const DEEPEST: usize = 256;

/// Quotes and lists are drawn to this depth.
const DEEPEST_DRAWN: usize = 8;

/// Cells of a row that are told apart.
const MOST_CELLS: usize = 64;

/// A longer link is given as its text alone.
const LONGEST_LINK: usize = 2 << 10;

/// How a page is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    Markdown,
    Text,
}

/// What became of a page.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Converted {
    pub(crate) text: String,
    pub(crate) title: Option<String>,
    /// There was more than the bound.
    pub(crate) truncated: bool,
    /// How often something was looked at, to see that it grows with the page and not faster.
    #[cfg(test)]
    steps: usize,
}

/// Converts a page, to at most so many bytes.
pub(crate) fn convert(html: &str, base: Option<&Url>, style: Style, most: usize) -> Converted {
    let mut emitter = DefaultEmitter::default();
    emitter.naively_switch_states(true);
    let mut writer = Writer::new(base.cloned(), style, most);
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
            writer.is_cut = true;
            break;
        }
    }
    writer.finish()
}

/// Plain text without any markup, such as a title that somebody marked up.
pub(crate) fn plain(html: &str, most: usize) -> String {
    let text = convert(html, None, Style::Text, most).text;
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Elements that are not what a reader came for, with all that is in them.
const SKIPPED: &[&str] = &[
    "script", "style", "template", "svg", "math", "nav", "noscript", "iframe", "object", "canvas", "audio", "video",
    "select", "datalist", "dialog", "noembed", "noframes", "head",
];

/// Elements that begin on a line of their own.
const BLOCKS: &[&str] = &[
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

/// What is open and changes what is written.
#[derive(Debug)]
enum Open {
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
    /// What stands around text: the marker in front was written at `at`, the one behind is this.
    Around {
        at: usize,
        behind: &'static str,
    },
    Link {
        at: usize,
        target: Option<Url>,
    },
}

struct Writer {
    style: Style,
    most: usize,
    /// The rest of the page was not looked at.
    is_cut: bool,
    base: Option<Url>,
    out: String,
    stack: Vec<(String, Open)>,
    /// An element that is passed over, and how deep it is in others of its name.
    skipping: Option<(String, usize)>,
    title: Option<String>,
    in_title: bool,
    /// Line ends that are due before the next text.
    breaks: usize,
    /// A space is due before the next text.
    space: bool,
    quotes: usize,
    lists: usize,
    /// What stands in front of the next text: a bullet or a number.
    bullet: Option<String>,
    /// The contents of `pre`, until their longest run of backticks is known.
    pre: Option<Preformatted>,
    tables: usize,
    /// Cells of the row so far, and whether it is the first.
    cells: usize,
    rows: usize,
    #[cfg(test)]
    steps: usize,
}

#[derive(Default)]
struct Preformatted {
    text: String,
    language: String,
}

impl Writer {
    fn new(base: Option<Url>, style: Style, most: usize) -> Self {
        Self {
            style,
            most,
            is_cut: false,
            base,
            out: String::new(),
            stack: Vec::new(),
            skipping: None,
            title: None,
            in_title: false,
            breaks: 0,
            space: false,
            quotes: 0,
            lists: 0,
            bullet: None,
            pre: None,
            tables: 0,
            cells: 0,
            rows: 0,
            #[cfg(test)]
            steps: 0,
        }
    }

    fn step(&mut self, count: usize) {
        #[cfg(test)]
        {
            self.steps += count;
        }
        let _ = count;
    }

    fn open(&mut self, tag: &StartTag<()>) {
        self.step(1);
        let name = String::from_utf8_lossy(&tag.name).into_owned();
        // Wherever it stands: the tokenizer reads what follows as its text.
        if name == "title" {
            self.in_title = true;
            return;
        }
        if let Some((skipped, depth)) = &mut self.skipping {
            *depth += usize::from(*skipped == name);
            // A head ends where the body begins, whether or not somebody says so.
            if skipped != "head" || name != "body" {
                return self.note_base(&name, tag);
            }
            self.skipping = None;
        }
        if SKIPPED.contains(&name.as_str()) {
            if !tag.self_closing {
                self.skipping = Some((name, 1));
            }
            return;
        }
        self.note_base(&name, tag);
        match name.as_str() {
            "br" => self.line(1),
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

    /// What a new one of them ends without saying so.
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
        self.step(looked);
        if let Some(above) = found {
            self.pop_to(self.stack.len() - above - 1);
        }
    }

    fn push(&mut self, name: String, tag: &StartTag<()>) {
        if self.stack.len() >= DEEPEST {
            return;
        }
        let marked = self.style == Style::Markdown && self.pre.is_none();
        let open = match name.as_str() {
            "h1" | "h2" | "h3" | "h4" | "h5" | "h6" => {
                self.line(2);
                let level = name.as_bytes().get(1).map_or(1, |digit| usize::from(digit - b'0'));
                if marked && self.tables == 0 {
                    self.bullet = Some(format!("{} ", "#".repeat(level)));
                }
                Open::Block
            }
            "b" | "strong" if marked => self.around("**"),
            "i" | "em" if marked => self.around("*"),
            "code" | "kbd" | "samp" if marked => self.around("`"),
            "code" => {
                self.note_language(tag);
                return;
            }
            "del" | "s" if marked => self.around("~~"),
            "a" if marked => {
                let target = attribute(tag, b"href").and_then(|link| self.link(&link));
                self.settle();
                let at = self.out.len();
                if target.is_some() {
                    self.out.push('[');
                }
                Open::Link { at, target }
            }
            "blockquote" => {
                self.line(2);
                self.quotes += 1;
                Open::Quote
            }
            "ul" | "ol" | "menu" => {
                self.line(if self.lists == 0 { 2 } else { 1 });
                self.lists += 1;
                let first = || attribute(tag, b"start").and_then(|start| start.parse().ok()).unwrap_or(1);
                Open::List { next: (name == "ol").then(first) }
            }
            "li" => {
                self.line(1);
                self.bullet = Some(self.next_bullet());
                Open::Item
            }
            "pre" | "xmp" | "listing" | "textarea" if self.pre.is_none() && self.tables == 0 => {
                self.line(2);
                self.pre = Some(Preformatted::default());
                self.note_language(tag);
                Open::Pre
            }
            "table" => {
                self.line(2);
                self.tables += 1;
                self.rows = if self.tables == 1 { 0 } else { self.rows };
                Open::Table
            }
            "tr" if self.tables == 1 => {
                self.line(1);
                self.cells = 0;
                Open::Row
            }
            "td" | "th" if self.tables == 1 => {
                self.cells += 1;
                if self.cells <= MOST_CELLS {
                    self.put(if self.cells == 1 { "| " } else { " | " });
                }
                Open::Cell
            }
            block if BLOCKS.contains(&block) => {
                self.line(if matches!(block, "dt" | "dd" | "div" | "summary") { 1 } else { 2 });
                Open::Block
            }
            "td" | "th" => {
                self.space = true;
                Open::Block
            }
            _ => Open::Block,
        };
        self.stack.push((name, open));
    }

    fn close(&mut self, name: &HtmlString) {
        self.step(1);
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
        self.step(above.unwrap_or(self.stack.len()));
        match above {
            Some(above) => self.pop_to(self.stack.len() - above - 1),
            None if name == "p" || name == "br" => self.line(1),
            None => {}
        }
    }

    fn pop_to(&mut self, length: usize) {
        while self.stack.len() > length {
            let Some((name, open)) = self.stack.pop() else { return };
            self.step(1);
            self.end(&name, open);
        }
    }

    fn end(&mut self, name: &str, open: Open) {
        match open {
            Open::Block if name.starts_with('h') && name.len() == 2 => {
                self.bullet = None;
                self.line(2);
            }
            Open::Block if matches!(name, "dt" | "dd" | "div" | "summary") => self.line(1),
            Open::Block if BLOCKS.contains(&name) => self.line(2),
            Open::Block => {}
            Open::Quote => {
                self.line(2);
                self.quotes -= 1;
            }
            Open::List { .. } => {
                self.lists -= 1;
                self.line(if self.lists == 0 { 2 } else { 1 });
            }
            Open::Item => {
                self.bullet = None;
                self.line(1);
            }
            Open::Pre => self.end_pre(),
            Open::Table => {
                self.tables -= 1;
                self.line(2);
            }
            Open::Row => self.end_row(),
            Open::Cell => self.space = false,
            Open::Around { at, behind } => match self.out.len() == at + behind.len() {
                true => self.out.truncate(at),
                false => self.out.push_str(behind),
            },
            Open::Link { target: None, .. } => {}
            Open::Link { at, target: Some(target) } => match self.out.len() == at + 1 {
                true => self.out.truncate(at),
                false => {
                    self.step(target.as_str().len());
                    self.out.push_str("](");
                    self.out.push_str(target.as_str());
                    self.out.push(')');
                }
            },
        }
    }

    fn text(&mut self, text: &str) {
        self.step(text.len());
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
            let room = self.most.saturating_sub(pre.text.len()).saturating_add(1);
            pre.text.push_str(text.get(..text.floor_char_boundary(room)).unwrap_or(text));
            return;
        }
        for (number, word) in text.split(|c: char| c.is_ascii_whitespace()).enumerate() {
            self.space |= number > 0;
            if !word.is_empty() {
                self.word(word);
            }
            if self.out.len() > self.most {
                return;
            }
        }
    }

    fn word(&mut self, word: &str) {
        self.settle();
        match self.tables > 0 && self.style == Style::Markdown {
            true => self.out.push_str(&word.replace('|', "\\|")),
            false => self.out.push_str(word),
        }
    }

    /// Writes what is due before the next text.
    fn settle(&mut self) {
        if self.breaks > 0 {
            if !self.out.is_empty() {
                let until = if self.bullet.is_some() { self.breaks.min(2) } else { self.breaks };
                for _ in 0..until {
                    self.trim_line();
                    self.out.push('\n');
                    self.prefix();
                }
            } else {
                self.prefix();
            }
            self.space = false;
        } else if self.out.is_empty() {
            self.prefix();
            self.space = false;
        }
        self.breaks = 0;
        if let Some(bullet) = self.bullet.take() {
            self.out.push_str(&bullet);
            self.space = false;
        }
        if std::mem::take(&mut self.space) && !self.out.ends_with([' ', '\n']) {
            self.out.push(' ');
        }
    }

    /// Quote marks and the depth of lists, for a line that begins.
    fn prefix(&mut self) {
        for _ in 0..self.quotes.min(DEEPEST_DRAWN) {
            self.out.push_str("> ");
        }
        for _ in 1..self.lists.min(DEEPEST_DRAWN) {
            self.out.push_str("  ");
        }
        if self.lists > 0 && self.bullet.is_none() {
            self.out.push_str("  ");
        }
    }

    fn trim_line(&mut self) {
        let length = self.out.trim_end_matches([' ', '\t']).len();
        self.out.truncate(length);
    }

    /// The next text begins so many lines further down.
    fn line(&mut self, count: usize) {
        match self.tables {
            0 => self.breaks = self.breaks.max(count),
            // A row is one line.
            _ => self.space = true,
        }
        if self.tables == 1 && self.stack.last().is_none_or(|(_, open)| !matches!(open, Open::Cell | Open::Row)) {
            let in_cell = self.stack.iter().rev().take(4).any(|(_, open)| matches!(open, Open::Cell));
            if !in_cell {
                self.breaks = self.breaks.max(count);
            }
        }
    }

    /// Something that is no word of the page.
    fn put(&mut self, text: &str) {
        self.space = false;
        self.settle();
        self.out.push_str(text);
    }

    fn around(&mut self, marker: &'static str) -> Open {
        self.settle();
        let at = self.out.len();
        self.out.push_str(marker);
        Open::Around { at, behind: marker }
    }

    fn rule(&mut self) {
        if self.style == Style::Markdown && self.tables == 0 && self.pre.is_none() {
            self.line(2);
            self.put("---");
        }
        self.line(2);
    }

    fn image(&mut self, tag: &StartTag<()>) {
        let Some(words) = attribute(tag, b"alt").filter(|words| !words.trim().is_empty()) else { return };
        let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
        let source = attribute(tag, b"src").and_then(|source| self.link(&source));
        match source.filter(|_| self.style == Style::Markdown && self.pre.is_none()) {
            Some(source) => self.word(&format!("![{words}]({source})")),
            None if self.pre.is_none() => self.word(&words),
            None => {}
        }
    }

    fn next_bullet(&mut self) -> String {
        let list = self.stack.iter_mut().rev().find_map(|(_, open)| match open {
            Open::List { next } => Some(next),
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
        let Some(Preformatted { text, language }) = self.pre.take() else { return };
        let text = text.strip_prefix('\n').unwrap_or(&text).trim_end();
        if text.is_empty() {
            return;
        }
        self.settle();
        let fence = (self.style == Style::Markdown).then(|| "`".repeat(longest_run(text).max(2) + 1));
        let lines = fence.iter().map(|fence| format!("{fence}{language}"));
        let lines: Vec<String> = lines.chain(text.lines().map(str::to_owned)).chain(fence.iter().cloned()).collect();
        for (number, line) in lines.iter().enumerate() {
            if number > 0 {
                self.out.push('\n');
                self.prefix();
            }
            self.out.push_str(line);
        }
        self.line(2);
    }

    fn end_row(&mut self) {
        if self.cells > 0 {
            self.out.push_str(" |");
            self.rows += 1;
            if self.rows == 1 && self.style == Style::Markdown {
                self.out.push('\n');
                self.prefix();
                let rule = "| --- ".repeat(self.cells.min(MOST_CELLS));
                self.out.push_str(&rule);
                self.out.push('|');
            }
        }
        self.cells = 0;
        self.breaks = self.breaks.max(1);
    }

    fn note_language(&mut self, tag: &StartTag<()>) {
        let Some(pre) = self.pre.as_mut().filter(|pre| pre.language.is_empty()) else { return };
        let class = attribute(tag, b"class").unwrap_or_default();
        let language = class.split_whitespace().find_map(|word| word.strip_prefix("language-"));
        let plain =
            |word: &&str| word.len() <= 32 && word.chars().all(|c| c.is_ascii_alphanumeric() || "+-#".contains(c));
        pre.language = language.filter(plain).unwrap_or_default().to_owned();
    }

    /// Where relative links start.
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
        if href.is_empty() || href.starts_with('#') || href.len() > LONGEST_LINK {
            return None;
        }
        let url = match &self.base {
            Some(base) => base.join(href).ok()?,
            None => Url::parse(href).ok()?,
        };
        (matches!(url.scheme(), "http" | "https") && url.as_str().len() <= LONGEST_LINK).then_some(url)
    }

    fn finish(mut self) -> Converted {
        self.pop_to(0);
        let truncated = self.is_cut || self.out.len() > self.most;
        self.out.truncate(self.out.floor_char_boundary(self.most));
        let length = self.out.trim_end().len();
        self.out.truncate(length);
        Converted {
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
fn longest_run(text: &str) -> usize {
    text.split(|c| c != '`').map(str::len).max().unwrap_or_default()
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
