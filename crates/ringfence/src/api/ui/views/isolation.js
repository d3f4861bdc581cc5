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
        const { walls } = await get('/v1/doctor');
        const standing = walls.filter(wall => wall.stands).length;
        return [
            el(
                'div',
                { class: 'wall-sum', 'aria-hidden': 'true' },
                ...walls.map(wall => el('i', { class: wall.stands ? 'stands' : 'missing' })),
            ),
            el('p', {}, el('strong', {}, `${standing} of ${walls.length} isolation mechanisms available.`)),
            el('ul', { class: 'walls' }, ...[...walls].sort((a, b) => Number(a.stands) - Number(b.stands)).map(row)),
        ];
    });
}

function row({ wall, stands, note, advice }) {
    return el(
        'li',
        { class: 'card wall' },
        el(
            'div',
            { class: 'card-head' },
            el('h2', {}, words(wall)),
            badge(stands ? 'available' : 'missing', stands ? 'good' : 'bad'),
        ),
        el('p', { class: 'facts' }, note),
        advice ? el('p', {}, advice) : null,
    );
}

function words(name) {
    const said = name.replaceAll('_', ' ');
    return said.charAt(0).toUpperCase() + said.slice(1);
}
