// Audit view: records, newest first, and the verification of the hash chain.

import { badge, button, el, fill } from '../dom.js';
import { loading, trying } from '../ask.js';
import { get, query } from '../api.js';
import { accesses } from '../cards.js';
import { clock, count, took } from '../time.js';

const AT_ONCE = 100;

export function show(place) {
    const body = el('div', {});
    fill(
        place,
        el('h1', {}, 'Audit log'),
        el(
            'p',
            { class: 'lead' },
            'Every call is recorded, including denied ones. Records contain no contents: arguments and replies are stored as sizes and keyed hashes.',
        ),
        body,
    );
    loading(body, async () => {
        const chain = await get('/v1/audit/verify');
        const list = el('ol', { class: 'audit' });
        const older = el('div', { class: 'actions' });
        const { records } = await get(query('/v1/audit', { limit: AT_ONCE }));
        put(list, older, records);
        return [chainState(chain), list, older];
    });
}

function chainState({ ok, records, message }) {
    return el(
        'div',
        { class: `chain ${ok ? 'good' : 'bad'}`, role: ok ? 'status' : 'alert' },
        el('span', { class: 'links', 'aria-hidden': 'true' }, el('i', {}), el('i', {}), el('i', {})),
        el(
            'p',
            {},
            el('strong', {}, ok ? 'The hash chain is intact.' : 'The hash chain is broken.'),
            ' ',
            message || count(records, 'record'),
        ),
    );
}

/** Adds records, the newest first, and what brings those before them. */
function put(list, older, records) {
    for (const record of [...records].reverse()) list.append(row(record));
    const before = (records[0]?.seq ?? 1) - 1;
    fill(
        older,
        before > 0 ? button(`Earlier records (${before})`, () => trying(() => earlier(list, older, before))) : null,
    );
}

async function earlier(list, older, before) {
    const after = Math.max(0, before - AT_ONCE);
    const { records } = await get(query('/v1/audit', { after, limit: before - after }));
    put(list, older, records);
}

const KINDS = { end: 'good', refused: 'bad', overdue: 'wait' };

function row(record) {
    const failed = record.ok === false;
    return el(
        'li',
        { class: 'record' },
        el('span', { class: 'seq' }, record.seq),
        el(
            'div',
            { class: 'record-body' },
            el(
                'p',
                { class: 'record-head' },
                badge(
                    failed ? (record.error ?? 'failed') : (record.event ?? `version ${record.v}`),
                    failed ? 'bad' : KINDS[record.event],
                ),
                record.tool ? el('code', {}, record.tool) : null,
                el('span', { class: 'facts' }, record.micros === undefined ? '' : took(record.micros / 1000)),
                el('time', { class: 'facts' }, clock(record.ts)),
            ),
            accesses(record.accesses),
            record.session
                ? el(
                      'p',
                      { class: 'facts' },
                      record.principal,
                      ' · ',
                      el('a', { to: `sessions/${encodeURIComponent(record.session)}` }, record.session),
                      record.rule ? [' · by ', el('code', {}, record.rule), ` (${record.layer})`] : null,
                  )
                : null,
            el(
                'details',
                {},
                el('summary', {}, 'Raw record'),
                el('pre', { class: 'code', tabindex: '0' }, JSON.stringify(record, null, 2)),
            ),
        ),
    );
}
