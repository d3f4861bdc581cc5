// One session, live: its calls as cards, as they happen.

import { badge, button, el, fill } from '../dom.js';
import { confirm, empty, trying } from '../ask.js';
import { get, path, post, query, remove } from '../api.js';
import { follow } from '../events.js';
import { transcript } from '../cards.js';
import { loadRequests, loadSessions, may, paused, state, watch } from '../state.js';
import { JOBS_INTERVAL, jobsOf, showJobs } from '../jobs.js';
import { undo } from '../undo.js';
import { clock } from '../time.js';

export function show(place, [id]) {
    const head = el('div', {});
    const jobs = el('div', {});
    const nothing = empty('No calls yet. Calls in this session appear here as they happen.');
    const cards = transcript(call =>
        call.state === 'running' && isMine(session) ? [button('Cancel', () => cancel(id, call))] : [],
    );
    fill(place, head, jobs, nothing, cards.element);

    let isGone = false;
    let session = state.sessions.find(one => one.id === id) ?? null;
    const draw = () => {
        session = state.sessions.find(one => one.id === id) ?? session;
        fill(head, headOf(id, session));
    };
    if (!session)
        get(path('sessions', id)).then(
            found => {
                session ??= found;
                draw();
            },
            () => {},
        );
    // Jobs begin, and are read, by calls; they end by themselves, of which no event tells.
    let nextLook = 0;
    const drawJobs = async () => {
        clearTimeout(nextLook);
        const found = session?.ended ? [] : await jobsOf(id);
        if (isGone) return;
        fill(jobs, showJobs(found));
        clearTimeout(nextLook);
        if (found.length > 0) nextLook = setTimeout(drawJobs, JOBS_INTERVAL);
    };
    draw();
    drawJobs();

    // Scrolls with new content while the user is at the end of the page.
    const heard = (kind, data) => {
        if (kind === 'gap') return recall();
        const atEnd = window.innerHeight + window.scrollY > document.body.scrollHeight - 80;
        cards.heard(kind, data);
        nothing.hidden = cards.size() > 0;
        if (kind === 'end') drawJobs();
        if (atEnd && cards.size() > 3) window.scrollTo(0, document.body.scrollHeight);
    };
    const recall = async () => {
        const records = await remember(id).catch(() => []);
        records.forEach(record => cards.remembered(record));
        nothing.hidden = cards.size() > 0;
    };
    let stream = { stop: () => {} };
    // First what the audit log has, then what the server still knows of the session, with contents, then what comes.
    recall().then(() => {
        if (!isGone) stream = follow(path('sessions', id, 'events'), { after: 0, heard });
    });
    for (const request of state.requests) if (request.session === id) heard('request', { request });
    const unwatch = watch(['sessions', 'requests'], draw);
    // A request may begin to wait in another process, of which only the stream of everything tells.
    const unhear = watch(['event'], (kind, data) => {
        if ((kind === 'request' && data.request.session === id) || kind === 'answered') heard(kind, data);
    });
    return () => {
        isGone = true;
        clearTimeout(nextLook);
        stream.stop();
        unwatch();
        unhear();
    };
}

async function remember(id) {
    if (!may('approve') && !may('admin')) return [];
    return (await get(query('/v1/audit', { session: id, limit: 1000 }))).records;
}

const isMine = session => [state.me?.name, `by hand, ${state.me?.name}`].includes(session?.principal);

function headOf(id, session) {
    const isOpen = session && !session.ended;
    return [
        el('p', { class: 'crumbs' }, el('a', { to: 'sessions' }, 'Sessions')),
        el(
            'div',
            { class: 'title' },
            el('h1', {}, session?.label || session?.agent || session?.principal || 'Session'),
            session ? (session.ended ? badge('ended') : badge('open', 'good')) : null,
            session && paused(session) ? badge('paused', 'wait') : null,
        ),
        session
            ? el(
                  'p',
                  { class: 'facts' },
                  session.principal,
                  ' · workspace ',
                  session.workspace,
                  ' · dialect ',
                  session.dialect,
                  ' · since ',
                  clock(session.created),
              )
            : null,
        el('p', { class: 'facts' }, el('code', {}, id)),
        el(
            'div',
            { class: 'actions' },
            session && paused(session) && may('approve')
                ? button('Resume', () =>
                      trying(async () => {
                          await post(path('sessions', id, 'resume'));
                          await loadRequests();
                          await loadSessions();
                      }),
                  )
                : null,
            may('undo')
                ? button('Undo all changes of this session…', () => undo({ session: id, workspace: session?.workspace }))
                : null,
            isOpen && (may('admin') || isMine(session)) ? button('End session', () => finish(id)) : null,
        ),
    ];
}

async function finish(id) {
    const yes = await confirm({
        title: 'End this session?',
        body: [el('p', {}, 'Its calls are cancelled, and it cannot make new ones.')],
        yes: 'End',
        danger: true,
    });
    if (yes)
        await trying(async () => {
            await remove(path('sessions', id));
            await loadSessions();
        });
}

const cancel = (id, call) => trying(() => post(path('sessions', id, 'calls', call.callId, 'cancel')));
