// Results as cards: test runs, diffs, commits and formatted files.
//
// A card is drawn from the typed value that the server sends beside the text of a reply; no text is taken apart here. The
// server bounds it. Names, messages and paths in it come from programs of the workspace.
//
// Not here: the call that the result is of (cards.js).

import { badge, button, el, fill } from './dom.js';
import { trying } from './ask.js';
import { get, path, query } from './api.js';
import { diffLines, showDiff, showLines, totals } from './diff.js';
import { behindClick } from './request.js';
import { may, state } from './state.js';
import { count, took } from './time.js';
import { cut } from './visible.js';

const DRAWN = { tests, diff, commits, formatted };

/** The element of a card; null where there is none, or one of a kind that this page does not know. */
export function showCard(card) {
    if (!card || !Object.hasOwn(DRAWN, card.kind)) return null;
    return el('section', { class: `reply-card reply-${card.kind}`, 'aria-label': 'Result' }, DRAWN[card.kind](card));
}

function tests({ isPass, runner, duration, passed, failed, skipped, errors, failures, more }) {
    const counts = [
        [failed, 'failed'],
        [errors, 'errors'],
        [passed, 'passed'],
        [skipped, 'skipped'],
    ];
    const shown = counts.filter(([number, word]) => number > 0 || (number === 0 && word === 'passed'));
    return [
        el(
            'p',
            { class: 'reply-head' },
            badge(isPass ? 'passed' : 'failed', isPass ? 'good' : 'bad'),
            el('strong', {}, shown.map(([number, word]) => `${number} ${word}`).join(', ') || 'no report'),
            el('span', { class: 'facts' }, runner, ' · ', took(duration)),
        ),
        failures.length > 0 ? el('ol', { class: 'failures' }, ...failures.map(failure)) : null,
        andMore(more, 'failure'),
    ];
}

function failure({ name, file, line, message }) {
    return el(
        'li',
        {},
        file ? el('code', { class: 'where' }, cut(file), line ? `:${line}` : null) : null,
        el('strong', { class: 'test-name' }, cut(name)),
        message ? el('pre', { class: 'code', tabindex: '0' }, message.split('\n').map(cut).join('\n')) : null,
    );
}

function diff({ diff, truncated }) {
    return [linesOf(diff), truncated ? el('p', { class: 'quiet-note' }, 'The end is not shown.') : null];
}

function linesOf(diff) {
    const lines = diffLines(diff);
    if (lines.length === 0) return el('p', { class: 'quiet-note' }, 'No changes.');
    const { added, removed } = totals(lines);
    return [el('p', { class: 'reply-head' }, el('strong', {}, `+${added} −${removed}`)), showLines(lines)];
}

function commits({ commits, more, change, truncated }) {
    return [
        commits.length > 0
            ? el('ol', { class: 'commits' }, ...commits.map(commit))
            : el('p', { class: 'quiet-note' }, 'No commits.'),
        andMore(more, 'commit'),
        truncated ? el('p', { class: 'quiet-note' }, 'The end is not shown.') : null,
        changed(change),
    ];
}

function commit({ id, subject, author, date, refs, diff }) {
    return el(
        'li',
        {},
        el('code', { class: 'where' }, cut(id)),
        el('strong', { class: 'subject' }, cut(subject)),
        el('span', { class: 'facts' }, [author, date, refs].filter(Boolean).map(cut).join(' · ')),
        diff ? el('details', {}, el('summary', {}, 'Changes'), linesOf(diff)) : null,
    );
}

function formatted({ formatters, total, paths, more, check, change }) {
    const number = paths.length + more;
    const words = check ? `${number} of ${count(total, 'file')} not formatted` : `formatted ${number} of ${count(total, 'file')}`;
    return [
        el(
            'p',
            { class: 'reply-head' },
            badge(number === 0 ? 'formatted' : check ? 'not formatted' : 'changed', number === 0 ? 'good' : 'wait'),
            el('strong', {}, number === 0 ? `${count(total, 'file')} already formatted` : words),
            el('span', { class: 'facts' }, formatters),
        ),
        paths.length > 0
            ? el('ul', { class: 'accesses' }, ...paths.map(name => el('li', {}, el('code', {}, cut(name)))))
            : null,
        andMore(more, 'file'),
        changed(change),
    ];
}

function andMore(more, what) {
    return more > 0 ? el('p', { class: 'quiet-note' }, `and ${count(more, `more ${what}`)}`) : null;
}

/** A change that the call made: its diff is read when it is asked for. */
function changed(id) {
    if (!id || !may('undo')) return null;
    const place = el('div', {});
    const show = () =>
        trying(async () => {
            const shown = await get(query(path('changes', id), { workspace: state.workspace }));
            fill(
                place,
                !shown.diff
                    ? el('p', { class: 'quiet-note' }, 'No diff available.')
                    : shown.secret
                      ? behindClick('Show the diff, which may contain a secret', showDiff(shown.diff))
                      : showDiff(shown.diff),
            );
        });
    fill(place, button('Show changes', show));
    return place;
}
