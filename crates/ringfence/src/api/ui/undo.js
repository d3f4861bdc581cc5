// Undo and redo of changes: a preview, a confirmation, then the request.

import { el } from './dom.js';
import { confirm, notice, trying } from './ask.js';
import { showDiff } from './diff.js';
import { behindClick } from './request.js';
import { post } from './api.js';
import { count } from './time.js';

/** Undoes what `which` names, `{change}` or `{session}` or `{since}`. True if it was done. */
export async function undo(which, force = false) {
    let plan;
    try {
        plan = await post('/v1/undo', { ...which, dryRun: true, ...(force && { force }) });
    } catch (error) {
        return error.status === 409 && !force ? confirmForce(which, error) : (notice(error.message, 'bad'), false);
    }
    const paths = plan.paths ?? [];
    const yes = await confirm({
        title: force ? 'Undo anyway?' : 'Undo this change?',
        body: [
            el(
                'p',
                {},
                `${count((plan.undone ?? []).length, 'change')} will be undone, affecting ${count(paths.length, 'path')}. Redo reverses this.`,
            ),
            plan.lost
                ? el('p', { class: 'problem' }, 'The current contents are too large to be kept: redo cannot restore them.')
                : null,
            el('ul', { class: 'paths' }, ...paths.map(path => el('li', {}, el('code', {}, path)))),
            plan.diff && plan.secret ? behindClick('Show the diff, which may contain a secret', showDiff(plan.diff)) : null,
            plan.diff && !plan.secret ? showDiff(plan.diff) : null,
        ],
        yes: 'Undo',
        danger: Boolean(plan.lost || force),
    });
    if (!yes) return false;
    return trying(async () => {
        const done = await post('/v1/undo', { ...which, ...(force && { force }) });
        notice(`Undone: ${(done.paths ?? paths).join(', ')}`, 'good');
    });
}

async function confirmForce(which, error) {
    const yes = await confirm({
        title: 'Changed since',
        body: [
            el('p', {}, error.message),
            el('p', {}, 'You can undo anyway. The current contents are kept, and redo can restore them.'),
        ],
        yes: 'Preview',
    });
    return yes ? undo(which, true) : false;
}

/** Redoes what an undo reverted. */
export async function redo(which) {
    const yes = await confirm({
        title: 'Redo this change?',
        body: [el('p', {}, 'The undone changes are applied again.')],
        yes: 'Redo',
    });
    if (!yes) return false;
    return trying(async () => {
        const done = await post('/v1/redo', which);
        notice(`Redone: ${(done.paths ?? []).join(', ')}`, 'good');
    });
}
