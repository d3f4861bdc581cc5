// The files of the workspace, as the fence lets them be seen. Contents are shown as text, or saved; never opened.

import { appendInBatches } from '../diff.js';
import { button, el, fill } from '../dom.js';
import { empty, loading, trying } from '../ask.js';
import { bytes, get, query } from '../api.js';
import { state } from '../state.js';
import { cut, visibleLine } from '../visible.js';
import { clock, count, size } from '../time.js';

export function show(place, parts) {
    const at = parts[0] === 'text' ? 'file' : 'directory';
    const names = parts.slice(1);
    const where = names.join('/') || '.';
    const body = el('div', {});
    fill(place, el('h1', {}, 'Files'), crumbs(names), body);
    loading(body, () => (at === 'file' ? file(where) : directory(where, names)));
}

const to = (kind, names) => ['files', kind, ...names.map(encodeURIComponent)].join('/');

function crumbs(names) {
    const steps = names.map((name, index) => ['/', el('a', { to: to('at', names.slice(0, index + 1)) }, name)]);
    return el(
        'p',
        { class: 'crumbs', 'aria-label': 'Current directory' },
        el('a', { to: 'files' }, state.workspace ?? 'workspace'),
        ...steps.flat(),
    );
}

async function directory(where, names) {
    const { entries = [], truncated } = await get(query('/v1/files', { workspace: state.workspace, path: where }));
    if (entries.length === 0) return empty('This directory is empty.');
    const kinds = ['directory', 'file'];
    const order = entry => (kinds.indexOf(entry.type) + 3) % 3;
    const sorted = [...entries].sort((a, b) => order(a) - order(b) || (a.name < b.name ? -1 : 1));
    return [
        el(
            'table',
            { class: 'files' },
            el('thead', {}, el('tr', {}, ...['Name', 'Size', 'Modified'].map(name => el('th', { scope: 'col' }, name)))),
            el('tbody', {}, ...sorted.map(entry => entryRow(entry, names))),
        ),
        truncated ? el('p', { class: 'quiet-note' }, 'More entries are not listed.') : null,
    ];
}

function entryRow({ name, type, size: bytesOf, modified }, names) {
    const target = { directory: 'at', file: 'text' }[type];
    const label = type === 'directory' ? `${name}/` : name;
    return el(
        'tr',
        {},
        el(
            'td',
            { class: `entry ${type}` },
            target ? el('a', { to: to(target, [...names, name]) }, label) : label,
            target ? null : el('span', { class: 'facts' }, ` ${type}`),
        ),
        el('td', { class: 'number' }, type === 'file' ? size(bytesOf) : ''),
        el('td', {}, clock(modified)),
    );
}

async function file(where, reveal = '') {
    const save = button('Download', () => trying(() => saved(where, reveal)));
    let said;
    try {
        said = await get(query('/v1/files/text', { workspace: state.workspace, path: where, reveal }));
    } catch (error) {
        if (error.isOffline) throw error;
        if (error.kind === 'secret') return hidden(where);
        return [el('div', { class: 'actions' }, save), empty(error.message)];
    }
    const content = said.content ?? '';
    const lines = content.split('\n');
    if (lines.at(-1) === '') lines.pop();
    return [
        el(
            'div',
            { class: 'title' },
            el(
                'p',
                { class: 'facts grow' },
                `${count(lines.length, 'line')} · ${size(said.size)} · ${clock(said.modified)}`,
            ),
            save,
        ),
        said.truncated ? el('p', { class: 'problem' }, 'Only the first part of the file is shown.') : null,
        said.encoding === 'base64' ? empty('This is a binary file.') : numbered(lines),
    ];
}

/** A file that may hold secrets is shown after a click. */
function hidden(where) {
    const place = el('div', {});
    const open = button('Show', () => loading(place, () => file(where, 'true')));
    fill(place, empty('This file may contain secrets.', open));
    return place;
}

function numbered(lines) {
    const body = el('div', { class: 'diff-lines' });
    const shown = el('div', { class: 'diff file-text', role: 'group', tabindex: '0', 'aria-label': 'Contents' }, body);
    appendInBatches(shown, body, lines.length, index =>
        el(
            'div',
            { class: 'line same' },
            el('span', { class: 'number', 'aria-hidden': 'true' }, index + 1),
            el('span', { class: 'words' }, cut(lines[index])),
        ),
    );
    return lines.length === 0 ? empty('The file is empty.') : shown;
}

/** The bytes come with the token, so the browser is handed a copy of them and never an address. */
async function saved(where, reveal) {
    const address = URL.createObjectURL(
        await bytes(query('/v1/files/raw', { workspace: state.workspace, path: where, reveal })),
    );
    const link = document.createElement('a');
    link.href = address;
    link.download = visibleLine(where.split('/').at(-1));
    link.click();
    setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
