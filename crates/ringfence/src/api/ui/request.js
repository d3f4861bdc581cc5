// An approval request as shown: caller, call, reason, preview, and the caller's arguments.
//
// Not here: answering (approval.js).

import { badge, el, ticked } from './dom.js';
import { diffLines, showLines, totals } from './diff.js';
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
            'required by the rule ',
            el('code', {}, rule),
            ` of the layer ${layer}`,
            assurance === 'person' ? badge('requires a person’s answer', 'quiet') : null,
            secret ? badge('shows a secret', 'wait') : null,
        ),
        request.suspended
            ? el('p', { class: 'facts' }, 'The call is deferred. If you approve it, it runs when the agent calls again.')
            : null,
    );
}

/** The preview: its summary is the title already. */
export function showPreview(request) {
    const isDiff = request.body.kind === 'diff';
    const text = isDiff ? request.lines.join('\n') : request.preview.slice(request.summary.length + 1);
    if (!isDiff && text.trim() === '') return null;
    const words = text.trim() === '' ? null : el('pre', { class: 'code', tabindex: '0' }, withLinks(text));
    const lines = isDiff ? diffLines(request.body.value) : [];
    const content = isDiff ? el('div', {}, words, showLines(lines)) : words;
    const { added, removed } = totals(lines);
    const sum = isDiff
        ? el(
              'span',
              { class: 'sum' },
              el('b', { class: 'plus' }, `+${added}`),
              ' ',
              el('b', { class: 'minus' }, `−${removed}`),
          )
        : null;
    if (!request.secret)
        return el('section', { 'aria-label': 'Preview' }, el('h3', {}, 'Preview ', sum), content);
    return behindClick(['Show the preview, which contains a secret ', sum], content);
}

/** What may show a secret is shown after a click. */
export function behindClick(words, content) {
    return el('details', { class: 'secret' }, el('summary', {}, words), content);
}

export function showArguments(request) {
    const hasPreview = request.body.kind !== 'none' || request.lines.length > 0;
    return el(
        'details',
        { class: 'arguments', open: !hasPreview },
        el('summary', {}, 'Arguments sent by the agent'),
        showObject(request.args),
    );
}
