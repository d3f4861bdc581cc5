// Agent runs: a prompt, and what the agent says and does, as it comes.
//
// What a model says is shown as text. What was truly done stands at the end, from the record and not from the model.

import { badge, button, el, field, fill } from '../dom.js';
import { empty, loading, trying } from '../ask.js';
import { get, path, post } from '../api.js';
import { follow } from '../events.js';
import { transcript } from '../cards.js';
import { showObject } from '../values.js';
import { withLinks } from '../links.js';
import { state, watch } from '../state.js';
import { clock, count, took } from '../time.js';

export function show(place, [id]) {
    if (!state.runs) {
        fill(place, el('h1', {}, 'Agent'), empty('The agent is unavailable: no model is configured.'));
        return undefined;
    }
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
    fill(
        place,
        el('h1', {}, 'Agent'),
        el(
            'form',
            { class: 'card', on: { submit } },
            field('What should the agent do?', prompt, `It works in ${state.workspace}, and asks you when the policy requires approval.`),
            el('div', { class: 'actions' }, el('button', { type: 'submit', class: 'primary' }, 'Start')),
        ),
        list,
    );
    const draw = () => loading(list, runsList);
    draw();
    return watch(['event'], kind => {
        if (kind === 'run') draw();
    });
}

async function runsList() {
    const { runs = [] } = await get('/v1/runs');
    if (runs.length === 0) return empty('No runs yet.');
    return [el('h2', { class: 'section' }, 'Runs'), el('ul', { class: 'rows' }, ...runs.map(runRow))];
}

function runRow(run) {
    return el(
        'li',
        {},
        el(
            'a',
            { class: 'row', to: `runs/${encodeURIComponent(run.id)}` },
            el(
                'span',
                { class: 'row-main' },
                el('strong', {}, run.prompt ?? run.id),
                el('span', { class: 'facts' }, clock(run.created)),
            ),
            el('span', { class: 'row-side' }, stateBadge(run.state)),
        ),
    );
}

const STATES = {
    running: 'live',
    waiting: 'wait',
    answered: 'good',
    done: 'good',
    finished: 'good',
    failed: 'bad',
    interrupted: 'wait',
};

function stateBadge(word) {
    return word ? badge(word, STATES[word]) : null;
}

function showRun(place, id) {
    const [head, log, end] = [el('div', {}), el('div', { class: 'run-log' }), el('div', {})];
    fill(place, head, log, end);
    let [stream, hear, isOver, drawn] = [null, () => {}, false, null];

    const redraw = () =>
        trying(async () => {
            const run = await get(path('runs', id));
            // An unchanged run is not drawn again: the user may be writing in it.
            if (JSON.stringify(run) !== drawn) fill(head, headOf(run, resumed));
            drawn = JSON.stringify(run);
            // What a server told before it was started again is gone; how it ended is kept.
            if (run.outcome && !end.hasChildNodes()) fill(end, outcomeBox(run.outcome));
        });

    // A run that goes on tells of itself from the start again.
    function listen() {
        stream?.stop();
        isOver = false;
        fill(end);
        hear = listener(log, outcome => {
            isOver = true;
            fill(end, outcomeBox(outcome));
            redraw();
        });
        stream = follow(path('runs', id, 'events'), { after: 0, heard: (kind, data) => hear(kind, data) });
    }

    function resumed() {
        listen();
        redraw();
    }

    listen();
    redraw();
    const unhear = watch(['event'], (kind, data) => {
        if (kind === 'answered') hear(kind, { type: 'requestOver', request: data.request });
        if (kind !== 'run' || data.run !== id) return;
        if (data.state === 'running' && isOver) listen();
        redraw();
    });
    return () => {
        stream.stop();
        unhear();
    };
}

function headOf(run, resumed) {
    const isRunning = run.state === 'running';
    return [
        el('p', { class: 'crumbs' }, el('a', { to: 'runs' }, 'Agent')),
        el('div', { class: 'title' }, el('h1', {}, 'Run'), stateBadge(run.state)),
        el('blockquote', { class: 'prompt' }, run.prompt),
        el(
            'div',
            { class: 'actions' },
            isRunning ? button('Cancel', () => trying(() => post(path('runs', run.id, 'cancel')))) : null,
            el('a', { to: `sessions/${encodeURIComponent(run.session)}` }, 'Open session'),
        ),
        isRunning ? null : continueForm(run, resumed),
    ];
}

function continueForm(run, resumed) {
    const more = el('textarea', { name: 'more', rows: 2 });
    const submit = event => {
        event.preventDefault();
        trying(async () => {
            await post(path('runs', run.id, 'resume'), more.value.trim() === '' ? {} : { prompt: more.value });
            resumed();
        });
    };
    return el(
        'details',
        { class: 'go-on', open: run.state === 'interrupted' },
        el('summary', {}, 'Continue'),
        el(
            'form',
            { class: 'card', on: { submit } },
            field('Follow-up', more, 'Leave empty to continue where it stopped.'),
            el('div', { class: 'actions' }, el('button', { type: 'submit', class: 'primary' }, 'Continue')),
        ),
    );
}

/** Shows events in the order in which they come: what is said, then the calls, then what is said of them. */
export function listener(log, over) {
    let [said, cards] = [null, null];
    const calls = new Map();

    function say(kind, text) {
        if (said?.kind !== kind) {
            said = { kind, element: el('p', { class: `said said-${kind}` }) };
            log.append(said.element);
            cards = null;
        }
        said.text = (said.text ?? '') + text;
        fill(said.element, withLinks(said.text));
    }

    function cardsOf(call) {
        if (!calls.has(call)) {
            if (!cards) {
                cards = transcript();
                log.append(cards.element);
            }
            calls.set(call, cards);
        }
        said = null;
        return calls.get(call);
    }

    const HEARD = {
        text: ({ text }) => say('text', text),
        reasoning: ({ text }) => say('reasoning', text),
        note: ({ text }) => {
            said = null;
            say('note', text);
            said = null;
        },
        // The parts that came before were for the eyes; this is what counts.
        answered: ({ text }) => {
            if (said?.kind === 'text' && text) fill(said.element, withLinks(text));
            said = null;
        },
        retrying: ({ why }) => {
            if (said?.kind === 'text') said.element.remove();
            said = null;
            HEARD.note({ text: `Retrying: ${why}` });
        },
        compacted: () => HEARD.note({ text: 'Older results were removed from the model’s context.' }),
        call: ({ id, name, arguments: args, at }) =>
            cardsOf(id).heard('begin', { callId: id, tool: name, args: asValue(args), at, accesses: [] }),
        output: ({ id, text }) => cardsOf(id).heard('progress', { callId: id, text }),
        result: ({ id, name, text, card, isError, durationMs, at }) =>
            cardsOf(id).heard('end', {
                callId: id,
                tool: name,
                error: isError ? 'failed' : null,
                reply: text,
                card,
                durationMs,
                at,
            }),
        waiting: ({ request }) => cardsOf(request.stepId).heard('request', { request }),
        requestOver: ({ request }) => new Set(calls.values()).forEach(list => list.heard('answered', { request })),
        finished: outcome => {
            said = null;
            over(outcome);
        },
    };

    return (kind, data) => {
        const type = data.type ?? kind;
        if (Object.hasOwn(HEARD, type)) HEARD[type](data);
    };
}

function asValue(text) {
    try {
        return typeof text === 'string' ? JSON.parse(text) : text;
    } catch {
        return text;
    }
}

export function outcomeBox({ end, why, text, byHost, steps, durationMs, ledger }) {
    return el(
        'article',
        { class: 'card outcome', 'aria-label': 'Outcome' },
        el(
            'div',
            { class: 'card-head' },
            el('h2', {}, 'Outcome'),
            badge(end ?? 'over', end === 'answered' ? 'good' : 'wait'),
        ),
        end === 'answered' ? null : el('p', {}, why ?? ''),
        byHost && text ? el('p', { class: 'said' }, withLinks(text)) : null,
        el('p', { class: 'facts' }, `${count(steps ?? 0, 'step')} · ${took(durationMs)}`),
        ledger
            ? el('details', { open: true }, el('summary', {}, 'Actions taken'), showObject(filled(ledger)))
            : null,
    );
}

function filled(object) {
    return Object.fromEntries(
        Object.entries(object).filter(([, value]) => !(Array.isArray(value) && value.length === 0)),
    );
}
