// Unified diff view: line numbers, colours, and changed words within a line.
//
// Every line of the text is on the page with its own sign, whatever it says: colour is an addition and never the message.
// How many lines belong to a hunk is what its head says, so a removed line `-- a` is never taken for the name of a file.
//
// Not here: whether a reply is a diff at all, which `isDiff` only guesses for the choice of colours. A preview says it.

import { cut } from './visible.js';
import { el } from './dom.js';

const HUNK = /^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@/;
// Longer diffs are shown a part at a time: a page that does not respond is of no use for a decision.
const LINES_AT_ONCE = 1500;

export function isDiff(text) {
    const lines = text.split('\n');
    const first = lines.findIndex(line => HUNK.test(line));
    return first === 0 || (first > 0 && lines.slice(0, first).some(line => line.startsWith('+++ ')));
}

/** Lines as [{kind, text, old, new}], with the kinds add, remove, same, hunk, file and note. */
export function parse(text) {
    const found = [];
    let [old, now, oldLeft, nowLeft] = [0, 0, 0, 0];
    for (const line of text.replace(/\n$/, '').split('\n')) {
        const head = HUNK.exec(line);
        const inside = oldLeft > 0 || nowLeft > 0;
        if (inside && line.startsWith('+')) {
            found.push({ kind: 'add', text: line, new: now++ });
            nowLeft--;
        } else if (inside && line.startsWith('-')) {
            found.push({ kind: 'remove', text: line, old: old++ });
            oldLeft--;
        } else if (inside && (line.startsWith(' ') || line === '')) {
            found.push({ kind: 'same', text: line, old: old++, new: now++ });
            oldLeft--;
            nowLeft--;
        } else if (head) {
            [old, now] = [Number(head[1]), Number(head[3])];
            [oldLeft, nowLeft] = [Number(head[2] ?? 1), Number(head[4] ?? 1)];
            found.push({ kind: 'hunk', text: line });
        } else {
            found.push({
                kind: /^(---|\+\+\+|diff|rename|new file|deleted file) /.test(line) ? 'file' : 'note',
                text: line,
            });
        }
    }
    return found;
}

/** The same lines of a preview's diff, which names its files, hunks and lines. */
export function diffLines(diff) {
    const found = [];
    const name = (side, path) => (path === null ? '/dev/null' : `${side}/${path}`);
    for (const part of diff.parts) {
        if (part.kind === 'note') {
            found.push(...part.text.split('\n').map(text => ({ kind: 'note', text })));
            continue;
        }
        found.push({ kind: 'file', text: `--- ${name('a', part.oldPath)}` });
        found.push({ kind: 'file', text: `+++ ${name('b', part.newPath)}` });
        for (const hunk of part.hunks) {
            let [old, now] = [hunk.old.first, hunk.new.first];
            const range = side => `${side.first},${side.count}`;
            found.push({ kind: 'hunk', text: `@@ -${range(hunk.old)} +${range(hunk.new)} @@` });
            for (const { change, text, unterminated } of hunk.lines) {
                if (change === 'added') found.push({ kind: 'add', text: `+${text}`, new: now++ });
                else if (change === 'removed') found.push({ kind: 'remove', text: `-${text}`, old: old++ });
                else found.push({ kind: 'same', text: ` ${text}`, old: old++, new: now++ });
                if (unterminated) found.push({ kind: 'note', text: '\\ No newline at end of file' });
            }
        }
    }
    return found;
}

/** How much a diff adds and removes. */
export function totals(lines) {
    const of = kind => lines.filter(line => line.kind === kind).length;
    return { added: of('add'), removed: of('remove') };
}

/** A unified diff as an element. */
export function showDiff(text) {
    return showLines(parse(text));
}

/** The lines of a diff as an element. */
export function showLines(lines) {
    const changed = changedWords(lines);
    const body = el('div', { class: 'diff-lines' });
    const { added, removed } = totals(lines);
    const shown = el(
        'div',
        {
            class: 'diff',
            role: 'group',
            tabindex: '0',
            'aria-label': `Changes: ${added} lines added, ${removed} removed`,
        },
        body,
    );
    appendInBatches(shown, body, lines.length, index => row(lines[index], changed.get(index)));
    return shown;
}

/** Fills a list with as many lines as are read at once, and offers the others. */
export function appendInBatches(shown, body, total, line) {
    const more = start => {
        const end = Math.min(start + LINES_AT_ONCE, total);
        for (let index = start; index < end; index++) body.append(line(index));
        if (end === total) return;
        const rest = el(
            'button',
            {
                type: 'button',
                class: 'plain',
                on: {
                    click: () => {
                        rest.remove();
                        more(end);
                    },
                },
            },
            `Show ${total - end} more lines`,
        );
        shown.append(rest);
    };
    more(0);
}

function row(line, span) {
    return el(
        'div',
        { class: `line ${line.kind}` },
        el('span', { class: 'number', 'aria-hidden': 'true' }, line.old ?? ''),
        el('span', { class: 'number', 'aria-hidden': 'true' }, line.new ?? ''),
        el('span', { class: 'words' }, ...words(line.text, span)),
    );
}

function words(text, span) {
    if (!span || text.length > 2000) return [cut(text)];
    const [from, to] = span;
    return [text.slice(0, from), el('mark', {}, text.slice(from, to)), text.slice(to)].filter(part => part !== '');
}

/** Where one line takes the place of another, what lies between their common start and their common end. */
function changedWords(lines) {
    const spans = new Map();
    let index = 0;
    while (index < lines.length) {
        const removed = run(lines, index, 'remove');
        const added = run(lines, index + removed, 'add');
        if (removed > 0 && removed === added) {
            for (let step = 0; step < removed; step++) pair(lines, index + step, index + removed + step, spans);
        }
        index += Math.max(1, removed + added);
    }
    return spans;
}

function run(lines, from, kind) {
    let end = from;
    while (end < lines.length && lines[end].kind === kind) end++;
    return end - from;
}

/** Whether the place before a character lies within a word. */
function isInWord(text, index) {
    return /\w/.test(text[index - 1] ?? '') && /\w/.test(text[index] ?? '');
}

function pair(lines, removed, added, spans) {
    const [a, b] = [lines[removed].text.slice(1), lines[added].text.slice(1)];
    const shorter = Math.min(a.length, b.length);
    let [start, end] = [0, 0];
    while (start < shorter && a[start] === b[start]) start++;
    while (end < shorter - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end++;
    // Two lines that have little in common are not shown as changed words.
    if (start + end < shorter / 3) return;
    while (start > 0 && isInWord(a, start)) start--;
    while (end > 0 && (isInWord(a, a.length - end) || isInWord(b, b.length - end))) end--;
    if (a.length - end > start) spans.set(removed, [1 + start, 1 + a.length - end]);
    if (b.length - end > start) spans.set(added, [1 + start, 1 + b.length - end]);
}
