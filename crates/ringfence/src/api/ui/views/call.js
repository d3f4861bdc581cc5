// Form to call a tool, generated from its schema. The call is decided and recorded like an agent's.

import { badge, el, field, fill, ticked } from '../dom.js';
import { loading, notice } from '../ask.js';
import { get, path, post, query } from '../api.js';
import { schemaForm } from '../form.js';
import { showCard } from '../reply_card.js';
import { showReply } from '../values.js';
import { loadSessions, state, watch } from '../state.js';

export function show(place, [wanted]) {
    const body = el('div', {});
    fill(
        place,
        el('h1', {}, 'Call a tool'),
        el('p', { class: 'lead' }, 'The call is checked against the policy and recorded like any other, and can be undone.'),
        body,
    );
    loading(body, () => form(wanted));
}

// One session for all calls that are made by hand on a workspace, while this page is open.
const sessions = new Map();

async function sessionFor(workspace) {
    const kept = state.sessions.find(one => one.id === sessions.get(workspace));
    if (kept && !kept.ended) return kept.id;
    const { id } = await post('/v1/sessions', { workspace, label: 'by hand' });
    sessions.set(workspace, id);
    await loadSessions();
    return id;
}

async function form(wanted) {
    const { workspace } = state;
    const { tools } = await get(query('/v1/tools', { workspace, format: 'full' }));
    const chooser = el('select', { name: 'tool' }, ...tools.map(tool => el('option', { value: tool.name }, tool.name)));
    if (tools.some(tool => tool.name === wanted)) chooser.value = wanted;
    const [about, fields, result] = [
        el('p', { class: 'hint' }),
        el('div', {}),
        el('div', { class: 'result', 'aria-live': 'polite' }),
    ];
    let made = null;
    const choose = () => {
        const tool = tools.find(one => one.name === chooser.value);
        made = schemaForm(tool?.parameters);
        fill(
            about,
            tool?.readOnly ? badge('read-only', 'good') : badge('makes changes', 'wait'),
            ' ',
            ticked((tool?.description ?? '').replaceAll('\n', ' ')),
        );
        fill(fields, made.element);
        fill(result);
    };
    chooser.addEventListener('change', choose);
    choose();
    const send = el('button', { type: 'submit', class: 'primary' }, 'Run');
    const submit = async event => {
        event.preventDefault();
        send.disabled = true;
        fill(
            result,
            el('p', { class: 'quiet-note', role: 'status' }, 'Running… If the policy requires approval, the call waits for it.'),
        );
        try {
            await call(workspace, { name: chooser.value, arguments: made.value() }, result);
        } catch (error) {
            fill(result);
            notice(error.message, 'bad');
        } finally {
            send.disabled = false;
        }
    };
    return el(
        'form',
        { class: 'card', on: { submit } },
        field('Tool', chooser),
        about,
        fields,
        el('div', { class: 'actions' }, send),
        result,
    );
}

async function call(workspace, wanted, result) {
    const session = await sessionFor(workspace);
    let answer = await post(path('sessions', session, 'calls'), wanted);
    while (answer.suspended) {
        fill(
            result,
            el(
                'p',
                { class: 'quiet-note', role: 'status' },
                badge('waiting', 'wait'),
                ' The call waits for approval and continues automatically.',
            ),
        );
        await answered(answer.suspended.request);
        answer = await post(path('sessions', session, 'calls', 'resume'), {
            token: answer.suspended.token,
            id: answer.callId,
            ...wanted,
        });
    }
    fill(
        result,
        el('h2', { class: 'section' }, 'Reply ', badge(answer.error ?? 'done', answer.error ? 'bad' : 'good')),
        showCard(answer.card) ?? showReply(answer.reply),
        el('p', { class: 'facts' }, el('a', { to: `sessions/${encodeURIComponent(session)}` }, 'Open session')),
    );
}

/** Until a request waits no more. */
function answered(request) {
    return new Promise(done => {
        const waits = () => state.requests.some(one => one.id === (request.id ?? request));
        if (!waits()) return setTimeout(done, 500);
        const stop = watch(['requests'], () => {
            if (!waits()) {
                stop();
                done();
            }
        });
    });
}
