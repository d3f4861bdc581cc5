// Confirmation dialogs and notices.
//
// The no has the focus, and Escape is a no.
//
// Not here: approvals (approval.js), which are more than a small question.

import { add, button, el, fill } from './dom.js';

/** Asks, and says whether it was a yes. */
export function confirm({ title, body = [], yes, no = 'Cancel', danger = false }) {
    return new Promise(answered => {
        const close = answer => {
            dialog.close();
            dialog.remove();
            answered(answer);
        };
        const refuse = button(no, () => close(false));
        const dialog = el(
            'dialog',
            { class: 'small', 'aria-labelledby': 'confirm-title' },
            el('h2', { id: 'confirm-title' }, title),
            el('div', { class: 'dialog-body' }, ...body),
            el(
                'div',
                { class: 'actions' },
                refuse,
                button(yes, () => close(true), { class: danger ? 'danger' : 'primary' }),
            ),
        );
        dialog.addEventListener('cancel', event => {
            event.preventDefault();
            close(false);
        });
        document.body.append(dialog);
        dialog.showModal();
        refuse.focus();
    });
}

/** Says something in passing, aloud too for those who hear the page. */
export function notice(text, kind = 'quiet') {
    const place = document.getElementById('notices');
    const gone = () => shown.remove();
    const shown = el(
        'div',
        { class: `notice ${kind}` },
        el('p', {}, text),
        el('button', { type: 'button', class: 'tiny', 'aria-label': 'Dismiss', on: { click: gone } }, '×'),
    );
    place.append(shown);
    setTimeout(gone, kind === 'bad' ? 12_000 : 6_000);
}

/** Does something, and says so where it fails. False if it failed. */
export async function trying(work) {
    try {
        await work();
        return true;
    } catch (error) {
        notice(sentence(error), 'bad');
        return false;
    }
}

/** What a view shows while it loads, and where it cannot. */
export async function loading(place, load) {
    fill(place, el('p', { class: 'quiet-note', role: 'status' }, 'Loading…'));
    try {
        const children = await load();
        if (children !== undefined) fill(place, children);
    } catch (error) {
        if (error.name === 'AbortError') return;
        fill(
            place,
            el(
                'div',
                { class: 'empty bad', role: 'alert' },
                el('p', {}, sentence(error)),
                button('Try again', () => loading(place, load)),
            ),
        );
    }
}

export function empty(text, ...rest) {
    return add(el('div', { class: 'empty' }, el('p', {}, text)), rest);
}

function sentence(error) {
    const said = error?.message || 'something went wrong';
    return said.charAt(0).toUpperCase() + said.slice(1);
}
