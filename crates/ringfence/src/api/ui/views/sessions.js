// Sessions view: open sessions, and those of other frontends, read-only.

import { badge, el, fill } from '../dom.js';
import { empty, loading } from '../ask.js';
import { may, paused, state, watch } from '../state.js';
import { clock } from '../time.js';
import { followJobs, showJobs } from '../jobs.js';
import { history } from './history.js';

export function show(place) {
    const [list, jobs, others] = ['stack', 'stack', 'stack'].map(name => el('div', { class: name }));
    fill(place, el('h1', {}, 'Sessions'), jobs, list, others);
    const stopJobs = followJobs(found => fill(jobs, showJobs(found, { withSession: true })));
    if (may('admin')) loading(others, history);
    const draw = () =>
        fill(
            list,
            state.sessions.length === 0
                ? empty('No sessions yet. A session starts when an agent connects, or when you call a tool yourself.')
                : [
                      group(
                          'Open',
                          state.sessions.filter(one => !one.ended),
                      ),
                      group(
                          'Ended',
                          state.sessions.filter(one => one.ended),
                      ),
                  ],
        );
    draw();
    const unwatch = watch(['sessions', 'requests'], draw);
    return () => {
        stopJobs();
        unwatch();
    };
}

function group(name, sessions) {
    if (sessions.length === 0) return null;
    return el(
        'section',
        { 'aria-label': name },
        el('h2', { class: 'section' }, name),
        el('ul', { class: 'rows' }, ...sessions.map(row)),
    );
}

function row(session) {
    const waits = state.requests.filter(request => request.session === session.id).length;
    return el(
        'li',
        {},
        el(
            'a',
            { class: 'row', to: `sessions/${encodeURIComponent(session.id)}` },
            el(
                'span',
                { class: 'row-main' },
                el('strong', {}, session.label || session.agent || session.principal),
                el('span', { class: 'facts' }, session.principal, ' · ', session.workspace, ' · ', session.dialect),
            ),
            el(
                'span',
                { class: 'row-side' },
                waits > 0 ? badge(`${waits} pending`, 'wait') : null,
                paused(session) ? badge('paused', 'wait') : null,
                session.ended ? badge('ended') : badge('open', 'good'),
                el('span', { class: 'facts' }, clock(session.created)),
            ),
        ),
    );
}
