// What a person is shown of a request: who wants what, why that is asked, what would happen, and the words of the caller.
//
// Not here: answering (approval.js).

import { badge, el, ticked } from './dom.js';
import { isDiff, showDiff, totals } from './diff.js';
import { showObject } from './values.js';
import { withLinks } from './links.js';

export function showWho(request) {
    const { principal, agent, tool, session } = request;
    return el(
        'p',
        { class: 'who' },
        el('strong', {}, principal),
        agent ? [', agent ', el('strong', {}, agent), ','] : null,
        ' wants to call ',
        el('code', {}, tool),
        ' in session ',
        el('code', {}, session),
    );
}

export function showWhy(request) {
    const { reason, rule, layer, assurance, secret } = request;
    return el(
        'div',
        { class: 'why' },
        el('p', { class: 'reason' }, ticked(reason)),
        el(
            'p',
            { class: 'facts' },
            'asked by the rule ',
            el('code', {}, rule),
            ` of the layer ${layer}`,
            assurance === 'person' ? badge('only a person’s own answer counts', 'quiet') : null,
            secret ? badge('shows what is in a secret', 'wait') : null,
        ),
        request.suspended
            ? el('p', { class: 'facts' }, 'The agent does not wait any more. After a yes, nothing happens until it calls again.')
            : null,
    );
}

/** The preview: its first line is the title already. */
export function showPreview(request) {
    const body = request.preview.split('\n').slice(1).join('\n');
    if (body.trim() === '') return null;
    const content = isDiff(body) ? showDiff(body) : el('pre', { class: 'code', tabindex: '0' }, withLinks(body));
    const { added, removed } = isDiff(body) ? totals(body) : { added: 0, removed: 0 };
    const sum = isDiff(body)
        ? el(
              'span',
              { class: 'sum' },
              el('b', { class: 'plus' }, `+${added}`),
              ' ',
              el('b', { class: 'minus' }, `−${removed}`),
          )
        : null;
    if (!request.secret)
        return el('section', { 'aria-label': 'What would happen' }, el('h3', {}, 'What would happen ', sum), content);
    return behindClick(['Show what would happen to the secret ', sum], content);
}

/** What may show a secret is shown after a click. */
export function behindClick(words, content) {
    return el('details', { class: 'secret' }, el('summary', {}, words), content);
}

export function showArguments(request) {
    const hasPreview = request.preview.includes('\n');
    return el(
        'details',
        { class: 'arguments', open: !hasPreview },
        el('summary', {}, 'Arguments, in the words of whoever calls'),
        showObject(request.args),
    );
}
