// JSON values and tool replies as readable text.

import { el } from './dom.js';
import { cut } from './visible.js';
import { withLinks } from './links.js';

const LONGEST = 20_000;

/** An object as names and values. */
export function showObject(object) {
    if (object === null || typeof object !== 'object' || Array.isArray(object)) return showValue(object);
    const names = Object.keys(object);
    if (names.length === 0) return el('p', { class: 'quiet-note' }, 'none');
    return el(
        'dl',
        { class: 'values' },
        ...names.flatMap(name => [el('dt', {}, name), el('dd', {}, showValue(object[name]))]),
    );
}

/** Any value. */
export function showValue(value) {
    if (typeof value === 'string') return showText(value);
    if (value === null || typeof value !== 'object')
        return el('code', { class: 'literal' }, JSON.stringify(value) ?? 'none');
    return el('pre', { class: 'code', tabindex: '0' }, clipped(JSON.stringify(value, null, 2)));
}

function showText(text) {
    if (text === '') return el('span', { class: 'quiet-note' }, 'empty string');
    if (!text.includes('\n') && text.length < 400) return el('code', { class: 'literal' }, withLinks(text));
    return el('pre', { class: 'code', tabindex: '0' }, withLinks(clipped(text)));
}

function clipped(text) {
    const lines = text.split('\n').map(cut).join('\n');
    return lines.length <= LONGEST ? lines : `${lines.slice(0, LONGEST)}\n… (truncated: ${text.length} characters in total)`;
}

/** What a tool replied: what is in its envelope, or its text. */
export function showReply(reply) {
    let value;
    try {
        value = JSON.parse(reply);
    } catch {
        return showValue(reply);
    }
    if (value?.ok === true && 'value' in value) return showObject(value.value);
    if (value?.ok === false && value.error) return showObject(value.error);
    return showObject(value);
}
