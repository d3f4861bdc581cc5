// Changes view: the changes of the workspace, newest first, each with its diff and undo.

import { badge, button, el, fill } from '../dom.js';
import { empty, loading } from '../ask.js';
import { get, path, query } from '../api.js';
import { showDiff } from '../diff.js';
import { behindClick } from '../request.js';
import { may, state, watch } from '../state.js';
import { redo, undo } from '../undo.js';
import { clock } from '../time.js';

export function show(place, [id]) {
    const body = el('div', {});
    fill(place, body);
    const draw = () => loading(body, () => (id ? one(id, draw) : all(draw)));
    draw();
    return watch(['event'], (kind, data) => {
        if (!id && kind === 'end' && !data.error) refresh(body, draw);
    });
}

// Many calls end at once; the list is read once for them.
let soon = 0;
function refresh(body, draw) {
    clearTimeout(soon);
    soon = setTimeout(async () => {
        if (body.isConnected) fill(body, await all(draw).catch(error => empty(error.message)));
    }, 400);
}

async function all(draw) {
    const { changes, truncated } = await get(query('/v1/changes', { workspace: state.workspace }));
    if (changes.length === 0) return [el('h1', {}, 'Changes'), empty('No changes in this workspace yet.')];
    return [
        el('h1', {}, 'Changes'),
        el('ul', { class: 'rows' }, ...changes.map(change => row(change, draw))),
        truncated ? el('p', { class: 'quiet-note' }, 'Older changes are not listed.') : null,
    ];
}

const STATES = { done: 'good', undone: 'quiet', failed: 'bad' };

function row(change, draw) {
    return el(
        'li',
        {},
        el(
            'div',
            { class: 'row' },
            el(
                'a',
                { class: 'row-main', to: `changes/${encodeURIComponent(change.change)}` },
                el('strong', {}, paths(change.paths)),
                el(
                    'span',
                    { class: 'facts' },
                    el('code', {}, change.tool ?? ''),
                    ' · ',
                    change.session ?? '',
                    ' · ',
                    clock(change.time),
                ),
            ),
            el('span', { class: 'row-side' }, badge(change.state, STATES[change.state]), action(change, draw)),
        ),
    );
}

function paths(list = []) {
    return list.length <= 3
        ? list.join(', ') || '(nothing)'
        : `${list.slice(0, 3).join(', ')} and ${list.length - 3} more`;
}

function action(change, draw) {
    if (!may('undo') || change.state !== 'done') return null;
    const which = { workspace: state.workspace, change: change.change };
    if (change.tool === 'undo')
        return button('Redo…', async () => {
            if (await redo(which)) draw();
        });
    return button('Undo…', async () => {
        if (await undo(which)) draw();
    });
}

async function one(id, draw) {
    const { workspace } = state;
    const [shown, { changes }] = await Promise.all([
        get(query(path('changes', id), { workspace })),
        get(query('/v1/changes', { workspace })),
    ]);
    const change = { ...changes.find(other => other.change === id), ...shown, change: id };
    return [
        el('p', { class: 'crumbs' }, el('a', { to: 'changes' }, 'Changes')),
        el(
            'div',
            { class: 'title' },
            el('h1', {}, paths(change.paths)),
            change.state ? badge(change.state, STATES[change.state]) : null,
            action(change, draw),
        ),
        el(
            'p',
            { class: 'facts' },
            el('code', {}, change.tool ?? ''),
            ' · ',
            clock(change.time),
            ' · ',
            el('code', {}, id),
            change.session
                ? [' · ', el('a', { to: `sessions/${encodeURIComponent(change.session)}` }, change.session)]
                : null,
        ),
        shown.diff
            ? shown.secret
                ? behindClick('Show the diff, which may contain a secret', showDiff(shown.diff))
                : showDiff(shown.diff)
            : empty('No diff available: the change has no text, or its stored contents are gone.'),
    ];
}
