// Approvals view: pending requests, and paused sessions.

import { badge, button, el, fill, ticked } from '../dom.js';
import { openRequest } from '../approval.js';
import { empty, trying } from '../ask.js';
import { path, post } from '../api.js';
import { loadRequests, may, state, watch } from '../state.js';
import { clock, left, moment } from '../time.js';

export function show(place) {
    const list = el('div', { class: 'stack' });
    fill(place, el('h1', {}, 'Approval requests'), list);
    const draw = () =>
        fill(
            list,
            may('approve') ? requests() : empty('You cannot answer requests: your token lacks the scope “approve”.'),
        );
    draw();
    return watch(['requests'], draw);
}

function requests() {
    const none =
        state.requests.length === 0
            ? empty(
                  'No pending requests. When a call requires approval, it appears here and the dialog opens automatically.',
              )
            : null;
    return [none, ...state.requests.map(requestCard), ...state.paused.map(pausedCard)];
}

function requestCard(request) {
    const remains = (moment(request.expires) ?? Infinity) - Date.now();
    return el(
        'article',
        { class: 'card waits', 'aria-label': request.summary },
        el(
            'div',
            { class: 'card-head' },
            el('h2', {}, ticked(request.summary || request.tool)),
            button('Review', () => openRequest(request.id), { class: 'primary' }),
        ),
        el('p', {}, ticked(request.reason)),
        request.suspended ? el('p', { class: 'facts' }, 'The call is deferred: the agent must call again.') : null,
        el(
            'p',
            { class: 'facts' },
            el('strong', {}, request.principal),
            ' · ',
            el('code', {}, request.tool),
            ' · since ',
            clock(request.opened),
            Number.isFinite(remains) ? ` · ${left(remains)} left` : null,
            ' · ',
            el('a', { to: `sessions/${encodeURIComponent(request.session)}` }, 'session'),
        ),
    );
}

function pausedCard({ session, principal, count }) {
    const resume = () =>
        trying(async () => {
            await post(path('sessions', session, 'resume'));
            await loadRequests();
        });
    return el(
        'article',
        { class: 'card' },
        el(
            'div',
            { class: 'card-head' },
            el('h2', {}, principal, ' ', badge('paused', 'wait')),
            button('Resume', resume),
        ),
        el(
            'p',
            {},
            `Paused after ${count} consecutive denials. Until you resume the session, calls that require approval are denied.`,
        ),
        el('p', { class: 'facts' }, el('code', {}, session)),
    );
}
