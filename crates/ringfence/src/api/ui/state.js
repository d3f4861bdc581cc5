// State of the page: identity, pending requests, sessions, and the connection.
//
// One stream of events keeps it true. A view that shows some of it subscribes with `watch` and is called after each change.
//
// Not here: showing anything.

import { get, post, path } from './api.js';
import { follow } from './events.js';

export const state = {
    me: null,
    workspace: null,
    connection: { state: 'opening' },
    requests: [],
    paused: [],
    sessions: [],
    // Whether this server runs agents.
    runs: false,
};

const watchers = new Map();

/** Calls `changed` after a change of one of these: `requests`, `sessions`, `connection`, `workspace`, `runs`, or an
 * event as it came, `event`. Returns what ends it. */
export function watch(topics, changed) {
    for (const topic of topics) watchers.set(topic, (watchers.get(topic) ?? new Set()).add(changed));
    return () => topics.forEach(topic => watchers.get(topic).delete(changed));
}

function tell(topic, ...what) {
    for (const changed of [...(watchers.get(topic) ?? [])]) changed(...what);
}

export const may = scope => state.me?.scopes?.includes(scope) ?? false;
export const paused = session => state.paused.some(pause => pause.session === session.id) || session.paused;

export function choose(workspace) {
    state.workspace = workspace;
    tell('workspace');
}

let stream = null;

/** Loads everything and goes on hearing of it. */
export async function begin() {
    state.me = await get('/v1/me');
    state.workspace = state.me.workspaces?.[0] ?? null;
    stream?.stop();
    stream = follow('/v1/events', { heard, told });
    findRuns();
}

/** Forgets everything. */
export function end() {
    stream?.stop();
    stream = null;
    Object.assign(state, { me: null, requests: [], sessions: [], paused: [], runs: false });
}

export const tryNow = () => stream?.now();

function told(connection) {
    const came = connection.state === 'open' && state.connection.state !== 'open';
    state.connection = connection;
    tell('connection');
    if (came) load();
}

/** What is so now. The stream is heard already, so nothing falls in between. */
export async function load() {
    await Promise.all([loadRequests(), loadSessions()]);
}

export async function loadRequests() {
    if (!may('approve')) return;
    try {
        const { requests, paused = [] } = await get('/v1/approvals');
        replace({ requests, paused }, 'requests');
    } catch (error) {
        if (!error.isOffline) console.warn(error.message);
    }
}

export async function loadSessions() {
    try {
        const { sessions } = await get('/v1/sessions');
        replace({ sessions }, 'sessions');
    } catch (error) {
        if (!error.isOffline) console.warn(error.message);
    }
}

/** Unchanged parts are not drawn again: a button that the user is about to press stays. */
function replace(values, topic) {
    const isSame = Object.entries(values).every(
        ([name, value]) => JSON.stringify(value) === JSON.stringify(state[name]),
    );
    Object.assign(state, values);
    if (!isSame) tell(topic);
}

async function findRuns() {
    try {
        const said = await get('/v1/runs');
        state.runs = said.available !== false;
    } catch {
        state.runs = false;
    }
    tell('runs');
}

function heard(kind, data) {
    if (kind === 'gap') load();
    if (kind === 'request') put(state.requests, data.request, 'requests');
    if (kind === 'answered') drop(data.request);
    if (kind === 'session') put(state.sessions, data.session, 'sessions', 'first');
    // A session that was refused too often is paused.
    if (kind === 'refused') soon();
    tell('event', kind, data);
}

let waiting = 0;

function soon() {
    clearTimeout(waiting);
    waiting = setTimeout(loadRequests, 500);
}

function put(list, one, topic, where = 'last') {
    const index = list.findIndex(other => other.id === one.id);
    if (index >= 0) list[index] = one;
    else if (where === 'first') list.unshift(one);
    else list.push(one);
    tell(topic);
}

/** Takes a request off the list: it waits no more. */
export function drop(id) {
    if (!state.requests.some(request => request.id === id)) return;
    state.requests = state.requests.filter(request => request.id !== id);
    tell('requests');
}

/** Answers a request. The server says whether ours was the first answer. */
export async function answer(id, response) {
    const accepted = await post(path('approvals', id), response);
    drop(id);
    return accepted;
}
