// Tool calls as cards: arguments, decision, result.
//
// A transcript takes events as they come and keeps one card a call, in the order in which the calls began.

import { badge, button, el, fill, ticked } from './dom.js';
import { openRequest } from './approval.js';
import { showObject, showReply } from './values.js';
import { isDiff, showDiff } from './diff.js';
import { showCard } from './reply_card.js';
import { clock, took } from './time.js';

const MOST = 500;
// The end of what a program printed is what is looked at while it runs.
const LONGEST_OUTPUT = 4000;

/** `{element, heard(kind, data), remembered(record), size()}`; `extra(call)` are further actions of a card. */
export function transcript(extra = () => []) {
    const element = el('ol', { class: 'transcript', 'aria-live': 'polite', 'aria-relevant': 'additions' });
    const calls = new Map();

    function card(key, start, where = element.querySelector(':scope > li:has(> .waiting)')) {
        if (!calls.has(key)) {
            // What waits stays last, where it is looked for.
            const place = el('li', {});
            element.insertBefore(place, where);
            calls.set(key, { ...start, place });
            while (calls.size > MOST) {
                const [oldest, { place: gone }] = calls.entries().next().value;
                gone.remove();
                calls.delete(oldest);
            }
        }
        return calls.get(key);
    }

    function heard(kind, data) {
        if (kind === 'request') return asked(data.request);
        if (kind === 'answered') return answered(data.request);
        if (kind === 'progress') return printed(data);
        if (kind === 'access') return accessed(data);
        if (kind === 'access-unlisted') return accessedMore(data);
        if (!['begin', 'end', 'refused', 'overdue'].includes(kind)) return;
        // A caller may reuse an id once its call is over.
        if (kind === 'begin' && calls.get(data.callId)?.isLive && calls.get(data.callId).duration !== undefined) {
            calls.set(`${data.callId} before ${data.id}`, calls.get(data.callId));
            calls.delete(data.callId);
        }
        const call = card(data.callId, { tool: data.tool, at: data.at });
        call.isLive ||= !data.isOld;
        if (kind === 'refused' && data.error === 'APPROVAL_PENDING') {
            // Its own request is pending, or another one is and there is none for this call.
            const state = call.request || (data.request && !data.isOld) ? 'waiting' : 'postponed';
            const duration = state === 'postponed' ? data.durationMs : undefined;
            Object.assign(call, { state, accesses: data.accesses, error: null, duration });
            return draw(call, extra);
        }
        if (kind === 'begin')
            Object.assign(call, {
                error: null,
                reply: null,
                drawn: null,
                state: 'running',
                accesses: data.accesses,
                rule: data.rule,
                layer: data.layer,
                approved: data.approved,
                change: data.change,
                callId: data.callId,
                args: data.args,
            });
        else
            Object.assign(call, {
                state: kind === 'end' && !data.error ? 'done' : kind === 'end' ? 'failed' : kind,
                error: data.error,
                reply: data.reply,
                // Drawn once: what is open in it stays open.
                drawn: showCard(data.card),
                duration: data.durationMs,
                accesses: data.accesses?.length ? data.accesses : call.accesses,
            });
        call.request = null;
        draw(call, extra);
    }

    /** A record of the audit log: the same without contents, for calls made before the page was open. */
    function remembered(record) {
        const known = calls.get(record.call);
        if (!record.call || known?.state === 'waiting' || (known?.isLive && known.duration !== undefined)) return;
        const ended = record.micros === undefined ? undefined : record.micros / 1000;
        heard(record.event, {
            ...record,
            callId: record.call,
            at: record.ts,
            error: record.error ?? null,
            durationMs: ended,
            reply: null,
            approved: typeof record.approved === 'object' ? record.approved : record.approved || null,
            isOld: true,
        });
    }

    /** What a program prints while it runs. */
    function printed({ callId, text }) {
        const call = calls.get(callId);
        if (!call || typeof text !== 'string') return;
        call.printed = ((call.printed ?? '') + text).slice(-LONGEST_OUTPUT);
        draw(call, extra);
    }

    /** A host that a program of the call came to, or was kept from. */
    function accessed({ callId, accesses: places = [], error }) {
        const call = calls.get(callId);
        if (!call) return;
        call.hosts ??= new Map();
        for (const { path } of places) call.hosts.set(`${path} ${error ?? ''}`, { path, error });
        draw(call, extra);
    }

    function accessedMore({ callId, made, refused }) {
        const call = calls.get(callId);
        if (!call) return;
        call.hosts ??= new Map();
        if (made) call.hosts.set('more', { path: `${made} more connections` });
        if (refused) call.hosts.set('more refused', { path: `${refused} more connections`, error: 'refused' });
        draw(call, extra);
    }

    function asked(request) {
        const call = card(request.stepId, { tool: request.tool, at: request.opened }, null);
        Object.assign(call, { state: 'waiting', request, error: null, reply: null, duration: undefined });
        draw(call, extra);
    }

    function answered(id) {
        for (const call of calls.values()) {
            if (call.request?.id !== id) continue;
            Object.assign(call, { state: call.request.suspended ? 'returned' : 'answered', request: null });
            draw(call, extra);
        }
    }

    return { element, heard, remembered, size: () => calls.size };
}

const STATES = {
    waiting: ['waiting for approval', 'wait'],
    answered: ['answered', 'quiet'],
    returned: ['settled; the agent must call again', 'quiet'],
    postponed: ['not asked; the agent must call again', 'quiet'],
    running: ['running', 'live'],
    done: ['done', 'good'],
    failed: ['failed', 'bad'],
    refused: ['refused', 'bad'],
    overdue: ['outcome unknown', 'wait'],
};

function draw(call, extra) {
    const [word, kind] = STATES[call.state] ?? [call.state, 'quiet'];
    const isOpen = call.place.querySelector('details.reply')?.open ?? false;
    fill(
        call.place,
        el(
            'article',
            { class: `card call ${call.state}`, 'aria-label': `${call.tool}: ${word}` },
            el(
                'div',
                { class: 'card-head' },
                el('h3', {}, el('code', {}, call.tool)),
                badge(call.error ? kindOf(call.error) : word, kind),
                el('span', { class: 'facts grow' }, took(call.duration)),
                el('time', { class: 'facts' }, clock(call.at)),
            ),
            accesses(call.accesses),
            hosts(call.hosts),
            call.request ? waiting(call.request) : null,
            how(call),
            call.args
                ? el(
                      'details',
                      { open: call.state === 'running' },
                      el('summary', {}, 'Arguments'),
                      showObject(call.args),
                  )
                : null,
            call.state === 'running' && call.printed ? el('pre', { class: 'code printed' }, call.printed) : null,
            call.drawn ?? null,
            call.reply
                ? el('details', { class: 'reply', open: isOpen }, el('summary', {}, 'Reply'), replied(call.reply))
                : null,
            actions(extra(call)),
        ),
    );
}

function kindOf(error) {
    return typeof error === 'string' ? error : (error.kind ?? error.code ?? 'failed');
}

export function accesses(list) {
    if (!list?.length) return null;
    return el(
        'ul',
        { class: 'accesses' },
        ...list
            .slice(0, 30)
            .map(({ action, path, real }) =>
                el(
                    'li',
                    {},
                    el('span', { class: `access-action access-${action}` }, action),
                    ' ',
                    el('code', {}, path),
                    real ? ', resolves to ' : null,
                    real ? el('code', {}, real) : null,
                ),
            ),
        list.length > 30 ? el('li', {}, `and ${list.length - 30} more`) : null,
    );
}

function hosts(found) {
    if (!found) return null;
    const row = ({ path, error }) =>
        el(
            'li',
            {},
            el('span', { class: 'access-action' }, error ? 'blocked' : 'reached'),
            ' ',
            el('code', {}, path),
        );
    return el('ul', { class: 'accesses' }, ...[...found.values()].slice(0, 30).map(row));
}

function waiting(request) {
    return el(
        'div',
        { class: 'asks' },
        el('p', {}, ticked(request.reason)),
        request.suspended ? el('p', { class: 'facts' }, 'The call is deferred: the agent must call again.') : null,
        button('Review', () => openRequest(request.id), { class: 'primary' }),
        el('details', {}, el('summary', {}, 'Arguments'), showObject(request.args)),
    );
}

function how({ rule, layer, approved, change }) {
    if (!rule) return null;
    const by = typeof approved === 'string' ? approved : (approved?.by?.name ?? approved?.by);
    const allowed = by
        ? ['approved by ', el('strong', {}, String(by)), ', required by ']
        : approved
          ? 'approved, required by '
          : 'allowed by ';
    return el(
        'p',
        { class: 'facts' },
        allowed,
        el('code', {}, rule),
        ` (${layer})`,
        change ? [' · change ', el('a', { to: `changes/${encodeURIComponent(change)}` }, change)] : null,
    );
}

function replied(reply) {
    return isDiff(reply) ? showDiff(reply) : showReply(reply);
}

function actions(list) {
    return list.length > 0 ? el('div', { class: 'actions' }, ...list) : null;
}
