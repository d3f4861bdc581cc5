// Agent runs: a prompt, and what the agent says and does, as it comes.

import { add, badge, button, el, field, fill } from '../dom.js';
import { empty, loading, notice, trying } from '../ask.js';
import { get, path, post } from '../api.js';
import { follow } from '../events.js';
import { transcript } from '../cards.js';
import { showValue } from '../values.js';
import { withLinks } from '../links.js';
import { state, watch } from '../state.js';
import { clock } from '../time.js';

export function show(place, [id]) {
    if (!state.runs) return void fill(place, el('h1', {}, 'Agent'), empty('This server runs no agent: no model is set.'));
    return id ? showRun(place, id) : showRuns(place);
}

function showRuns(place) {
    const prompt = el('textarea', { name: 'prompt', rows: 4, required: true });
    const submit = event => {
        event.preventDefault();
        trying(async () => {
            const { id } = await post('/v1/runs', { workspace: state.workspace, prompt: prompt.value });
            location.hash = `#/runs/${encodeURIComponent(id)}`;
        });
    };
    const list = el('div', {});
    fill(place, el('h1', {}, 'Agent'),
        el('form', { class: 'card', on: { submit } }, field('What shall be done?', prompt, `It works in ${state.workspace}, and asks you where the policy asks.`),
            el('div', { class: 'actions' }, el('button', { type: 'submit', class: 'primary' }, 'Start'))), list);
    loading(list, runsList);
}

async function runsList() {
    const { runs = [] } = await get('/v1/runs');
    if (runs.length === 0) return empty('No run yet.');
    return [el('h2', { class: 'section' }, 'Runs'), el('ul', { class: 'rows' }, ...runs.map(run => el('li', {}, el('a', { class: 'row', to: `runs/${encodeURIComponent(run.id)}` },
        el('span', { class: 'row-main' }, el('strong', {}, run.prompt ?? run.id), el('span', { class: 'facts' }, clock(run.created))), el('span', { class: 'row-side' }, state_(run.state))))))];
}

function state_(word) {
    return badge(word ?? '', { running: 'live', waiting: 'wait', done: 'good', finished: 'good', failed: 'bad', cancelled: 'quiet' }[word]);
}

function showRun(place, id) {
    const [head, log] = [el('div', {}), el('div', { class: 'run-log' })];
    let cards = transcript();
    let said = null;
    fill(place, head, log);
    log.append(cards.element);
    const draw = async () => {
        const run = await get(path('runs', id));
        fill(head, el('p', { class: 'crumbs' }, el('a', { to: 'runs' }, 'Agent')),
            el('div', { class: 'title' }, el('h1', {}, 'Run'), state_(run.state)),
            run.prompt ? el('blockquote', { class: 'prompt' }, run.prompt) : null,
            el('div', { class: 'actions' }, ['running', 'waiting'].includes(run.state) ? button('Cancel', () => trying(() => post(path('runs', id, 'cancel')))) : null,
                ['interrupted', 'suspended', 'paused'].includes(run.state) ? button('Go on', () => trying(() => post(path('runs', id, 'resume')))) : null));
    };
    const redraw = () => draw().catch(error => notice(error.message, 'bad'));
    redraw();
    // What an agent says and what it does stand in the order in which they came.
    const heard = (kind, data) => {
        if (['begin', 'end', 'refused', 'overdue', 'request', 'answered'].includes(kind)) {
            said = null;
            return cards.heard(kind, data);
        }
        const text = data.text ?? data.delta;
        if (typeof text === 'string') {
            if (!said) {
                said = el('p', { class: `said ${data.kind ?? kind}` });
                cards = transcript();
                log.append(said, cards.element);
            }
            return void add(said, [withLinks(text)]);
        }
        said = null;
        if (['finished', 'end', 'cancelled', 'failed'].includes(data.kind ?? kind)) redraw();
        else log.append(el('details', { class: 'other' }, el('summary', {}, data.kind ?? kind), showValue(data)));
    };
    const stream = follow(path('runs', id, 'events'), { after: 0, heard });
    const unhear = watch(['event'], (kind, data) => { if (kind === 'run' && data.run === id) redraw(); });
    return () => { stream.stop(); unhear(); };
}
