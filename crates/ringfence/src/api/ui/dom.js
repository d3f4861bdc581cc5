// DOM construction; no other file creates elements.
//
// Every string that becomes text or a spoken label goes through visible.js, and no string becomes markup. A link leads
// to a view of this page and nowhere else. So a view cannot forget it: text from models and files is shown, never obeyed.
//
// Not here: addresses that lead out (links.js).

import { pieces, visibleLine } from './visible.js';

// What a view may set. The values of fields stay as they are, because they are sent back.
const PLAIN = new Set([
    'id',
    'type',
    'name',
    'for',
    'role',
    'tabindex',
    'rows',
    'min',
    'max',
    'step',
    'autocomplete',
    'spellcheck',
    'scope',
    'open',
    'disabled',
    'hidden',
    'required',
    'readonly',
    'checked',
    'selected',
    'colspan',
    'list',
    'inputmode',
]);
const SPOKEN = new Set(['title', 'placeholder', 'label']);

/** An element: `el('p', { class: 'note', on: { click } }, 'text', element, null)`. */
export function el(tag, properties = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(properties)) set(element, name, value);
    add(element, children);
    return element;
}

function set(element, name, value) {
    if (value === null || value === undefined || value === false) return;
    if (name === 'class') element.className = value;
    else if (name === 'on') for (const [event, heard] of Object.entries(value)) element.addEventListener(event, heard);
    else if (name === 'data')
        for (const [key, datum] of Object.entries(value)) element.dataset[key] = visibleLine(String(datum));
    else if (name === 'value') element.value = value;
    else if (name === 'to') element.setAttribute('href', `#/${value}`);
    else if (name.startsWith('aria-') || SPOKEN.has(name)) element.setAttribute(name, visibleLine(String(value)));
    else if (PLAIN.has(name)) element.setAttribute(name, value === true ? '' : String(value));
    else throw new Error(`no view sets ${name}`);
}

/** Puts elements and texts at the end. */
export function add(element, children) {
    for (const child of children.flat(Infinity)) {
        if (child === null || child === undefined || child === false) continue;
        element.append(child instanceof Node ? child : text(String(child)));
    }
    return element;
}

/** A text in which nothing hides; what was made visible is marked. */
export function text(string) {
    const found = pieces(string);
    if (found.every(piece => !piece.escaped)) return document.createTextNode(string);
    const fragment = document.createDocumentFragment();
    for (const piece of found) {
        if (!piece.escaped) {
            fragment.append(document.createTextNode(piece.text));
            continue;
        }
        const mark = document.createElement('span');
        mark.className = 'escape';
        mark.title = 'an invisible character';
        mark.textContent = piece.text;
        fragment.append(mark);
    }
    return fragment;
}

/** Text of ours in which names stand between backticks, as the server writes it: the names as code. */
export function ticked(string) {
    const parts = string.split('`');
    if (parts.length % 2 === 0) return [string];
    return parts.map((part, index) => (index % 2 === 1 ? el('code', { class: 'name' }, part) : part));
}

/** Replaces what an element holds. */
export function fill(element, ...children) {
    element.replaceChildren();
    return add(element, children);
}

/** A button that does one thing, and cannot do it twice at once. */
export function button(label, does, properties = {}) {
    const made = el('button', { type: 'button', ...properties }, label);
    made.addEventListener('click', async event => {
        if (made.getAttribute('aria-disabled') === 'true') return;
        made.setAttribute('aria-disabled', 'true');
        try {
            await does(event);
        } finally {
            made.removeAttribute('aria-disabled');
        }
    });
    return made;
}

let lastId = 0;

/** A field with its label and, where there is one, what it means. */
export function field(label, control, hint) {
    control.id ||= `field-${++lastId}`;
    const about = hint ? el('p', { class: 'hint', id: `${control.id}-hint` }, hint) : null;
    if (about) control.setAttribute('aria-describedby', about.id);
    return el('div', { class: 'field' }, el('label', { for: control.id }, label), about, control);
}

/** A word in a box, such as a state. The kinds are in the style: good, bad, wait, quiet. */
export function badge(word, kind = 'quiet') {
    return el('span', { class: `badge ${kind}` }, word);
}

/** Text as it stands, in its own lines. */
export function code(string) {
    return el('pre', { class: 'code', tabindex: '0' }, el('code', {}, string));
}

/** The name of a key, for those who see it. */
export function key(name) {
    return el('kbd', { 'aria-hidden': 'true' }, name);
}

export function icon(name) {
    return el('span', { class: `icon icon-${name}`, 'aria-hidden': 'true' });
}
