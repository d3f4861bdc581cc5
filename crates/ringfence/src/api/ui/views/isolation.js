// The report of `ringfence doctor`: isolation mechanisms available on this machine, each probed.

import { badge, el, fill } from '../dom.js';
import { loading } from '../ask.js';
import { get } from '../api.js';

export function show(place) {
    const body = el('div', {});
    fill(
        place,
        el('h1', {}, 'Sandbox'),
        el(
            'p',
            { class: 'lead' },
            'Programs that agents run are sandboxed. These isolation mechanisms were just checked on this machine.',
        ),
        body,
    );
    loading(body, async () => {
        const { isolation } = await get('/v1/doctor');
        const available = isolation.filter(one => one.available).length;
        return [
            el(
                'div',
                { class: 'isolation-sum', 'aria-hidden': 'true' },
                ...isolation.map(one => el('i', { class: one.available ? 'available' : 'missing' })),
            ),
            el('p', {}, el('strong', {}, `${available} of ${isolation.length} isolation mechanisms available.`)),
            el(
                'ul',
                { class: 'mechanisms' },
                ...[...isolation].sort((a, b) => Number(a.available) - Number(b.available)).map(row),
            ),
        ];
    });
}

function row({ mechanism, available, note, advice }) {
    return el(
        'li',
        { class: 'card mechanism' },
        el(
            'div',
            { class: 'card-head' },
            el('h2', {}, words(mechanism)),
            badge(available ? 'available' : 'missing', available ? 'good' : 'bad'),
        ),
        el('p', { class: 'facts' }, note),
        advice ? el('p', {}, advice) : null,
    );
}

function words(name) {
    const said = name.replaceAll('_', ' ');
    return said.charAt(0).toUpperCase() + said.slice(1);
}
