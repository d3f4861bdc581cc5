// URLs in untrusted text.
//
// They are text. Beside each stands a button; it shows where the address really leads, and only a second click opens it.

import { add, button, el } from './dom.js';
import { confirm } from './ask.js';

const ADDRESS = /\bhttps?:\/\/[^\s<>"'`\\^{|}]+[^\s<>"'`\\^{|}.,;:!?)\]]/g;

/** A text with a button beside each address in it. */
export function withLinks(text) {
    const shown = el('span', {});
    let end = 0;
    for (const match of text.matchAll(ADDRESS)) {
        add(shown, [text.slice(end, match.index + match[0].length), opener(match[0])]);
        end = match.index + match[0].length;
    }
    return add(shown, [text.slice(end)]);
}

function opener(address) {
    let url;
    try {
        url = new URL(address);
    } catch {
        return null;
    }
    return button('open', () => open(url), { class: 'tiny', 'aria-label': `Open ${url.href}` });
}

async function open(url) {
    const yes = await confirm({
        title: 'Leave this page?',
        body: [
            el('p', {}, 'This link comes from a model or a file. It leads to'),
            el('p', { class: 'big-code' }, url.host),
            el('pre', { class: 'code' }, url.href),
        ],
        yes: 'Open in a new tab',
        no: 'Stay',
    });
    if (yes) window.open(url.href, '_blank', 'noopener,noreferrer');
}
