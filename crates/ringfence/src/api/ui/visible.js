// Escapes for characters that would mislead: control, bidirectional and invisible ones.
//
// Whatever a browser would obey, reorder or leave out becomes an escape such as \u{202e}; text without such characters
// comes out as it went in. The same characters and the same writing as in the kernel's sanitize.rs.
//
// Not here: what is worth showing. dom.js sends every text that it puts on the page through here.

const LONGEST_LINE = 2000;

// Control characters, Unicode's Default_Ignorable_Code_Point, separators that break lines, interlinear marks,
// lone surrogates and code points that are not characters.
const MISLEADING = new RegExp(
    '[\\u{0}-\\u{8}\\u{b}-\\u{1f}\\u{7f}-\\u{9f}\\u{ad}\\u{34f}\\u{61c}\\u{115f}\\u{1160}\\u{17b4}\\u{17b5}' +
        '\\u{180b}-\\u{180f}\\u{200b}-\\u{200f}\\u{2028}-\\u{202e}\\u{2060}-\\u{206f}\\u{3164}\\u{fdd0}-\\u{fdef}' +
        '\\u{fe00}-\\u{fe0f}\\u{feff}\\u{ffa0}\\u{fff0}-\\u{fffb}\\u{fffe}\\u{ffff}\\u{1bca0}-\\u{1bca3}' +
        '\\u{1d173}-\\u{1d17a}\\u{e0000}-\\u{e0fff}\\u{d800}-\\u{dfff}]' +
        '|[\\u{1fffe}\\u{1ffff}\\u{2fffe}\\u{2ffff}\\u{3fffe}\\u{3ffff}\\u{4fffe}\\u{4ffff}\\u{5fffe}\\u{5ffff}' +
        '\\u{6fffe}\\u{6ffff}\\u{7fffe}\\u{7ffff}\\u{8fffe}\\u{8ffff}\\u{9fffe}\\u{9ffff}\\u{afffe}\\u{affff}' +
        '\\u{bfffe}\\u{bffff}\\u{cfffe}\\u{cffff}\\u{dfffe}\\u{dffff}\\u{efffe}\\u{effff}\\u{ffffe}\\u{fffff}' +
        '\\u{10fffe}\\u{10ffff}]',
    'gu',
);

function escape(character) {
    return character === '\r' ? '␍' : `\\u{${character.codePointAt(0).toString(16)}}`;
}

/** The text in pieces, [{text, escaped}]: an escape that was put in is a piece of its own. */
export function pieces(text) {
    const found = [];
    let end = 0;
    for (const match of text.matchAll(MISLEADING)) {
        if (match.index > end) found.push({ text: text.slice(end, match.index), escaped: false });
        found.push({ text: escape(match[0]), escaped: true });
        end = match.index + match[0].length;
    }
    if (end < text.length) found.push({ text: text.slice(end), escaped: false });
    return found;
}

/** Text of several lines. */
export function visible(text) {
    return text.replace(MISLEADING, escape);
}

/** Text that must stay one line, such as a name: a newline or a tab in it is an escape too. */
export function visibleLine(text) {
    return visible(text).replace(/[\n\t]/g, escape);
}

/** Whether something in the text would not be seen as what it is. */
export function misleads(text) {
    return text.search(MISLEADING) >= 0;
}

/** A line that can be read: the end of a longer one is left out, and that is said. */
export function cut(line) {
    if (line.length <= LONGEST_LINE) return line;
    return `${line.slice(0, LONGEST_LINE)}… (truncated: the line has ${line.length} characters)`;
}
