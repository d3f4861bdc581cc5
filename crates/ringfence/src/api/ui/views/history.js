// Sessions of other fronts, to be looked at: of the agent at a terminal or in an editor, and of clients of the Model Context
// Protocol. Nothing can be done to them here.

import { badge, button, el, fill } from '../dom.js';
import { empty, loading } from '../ask.js';
import { get, path, query } from '../api.js';
import { transcript } from '../cards.js';
import { listener, outcomeBox } from './runs.js';
import { clock, count } from '../time.js';

/** The list, below the sessions of this server. */
export async function history() {
    const { sessions } = await get('/v1/history');
    if (sessions.length === 0) return [];
    return [
        el(
            'section',
            { 'aria-label': 'Sessions of other clients' },
            el('h2', { class: 'section' }, 'Sessions of other clients'),
            el('ul', { class: 'rows' }, ...sessions.map(row)),
        ),
    ];
}

function row(session) {
    return el(
        'li',
        {},
        el(
            'a',
            { class: 'row', to: `sessions/history/${encodeURIComponent(session.id)}` },
            el('span', { class: 'row-main' }, el('strong', {}, nameOf(session)), facts(session, 'span')),
            el(
                'span',
                { class: 'row-side' },
                session.hasTranscript ? null : badge('calls only'),
                el('span', { class: 'facts' }, clock(session.updated)),
            ),
        ),
    );
}

const nameOf = session => session.title || session.agent || session.principal;

function facts(session, tag) {
    const known = [session.principal, session.model, session.workspace, session.dialect].filter(Boolean);
    return el(tag, { class: 'facts' }, known.join(' · '));
}

export function show(place, [, id]) {
    const body = el('div', {});
    const draw = () => loading(body, () => whole(id, draw));
    fill(place, el('p', { class: 'crumbs' }, el('a', { to: 'sessions' }, 'Sessions')), body);
    draw();
}

async function whole(id, again) {
    const { session, entries, leftOut } = await get(path('history', id));
    return [
        el('div', { class: 'title' }, el('h1', {}, nameOf(session)), badge('read-only')),
        facts(session, 'p'),
        el('p', { class: 'facts' }, el('code', {}, session.id), ' · since ', clock(session.started)),
        el('div', { class: 'actions' }, button('Refresh', again)),
        leftOut > 0 ? el('p', { class: 'facts' }, `${count(leftOut, 'older entry', 'older entries')} not shown`) : null,
        session.hasTranscript ? said(entries) : await called(id),
    ];
}

/** What was said, called and answered. */
function said(entries) {
    if (entries.length === 0) return empty('No messages yet.');
    const parts = [];
    let hear = () => {};
    // What follows a prompt stands below it.
    const begin = (...first) => {
        const log = el('div', { class: 'run-log' }, ...first);
        hear = listener(log, outcome => log.append(outcomeBox(outcome)));
        parts.push(log);
    };
    begin();
    // An id of a call is its own only in its message.
    let message = 0;
    const SHOWN = {
        user: ({ text }) => begin(el('blockquote', { class: 'prompt' }, text)),
        assistant: ({ text, calls = [] }) => {
            message += 1;
            if (text) hear('run', { type: 'text', text });
            hear('run', { type: 'answered', text });
            for (const call of calls) hear('run', { type: 'call', ...call, id: `${message} ${call.id}` });
        },
        tool: ({ call_id: id, name, text, is_error: isError }) =>
            hear('run', { type: 'result', id: `${message} ${id}`, name, text, isError }),
        host: ({ outcome }) => hear('run', { type: 'finished', ...outcome }),
    };
    for (const entry of entries) if (Object.hasOwn(SHOWN, entry.role)) SHOWN[entry.role](entry);
    return parts;
}

/** What the audit log has of its calls. */
async function called(id) {
    const { records } = await get(query('/v1/audit', { session: id, limit: 1000 }));
    const cards = transcript();
    records.forEach(record => cards.remembered(record));
    return cards.element;
}
