// HTTP client of the API: the token, requests and their errors.
//
// The token is kept in this origin's own storage and sent as a header, never as a cookie and never in an address.
//
// Not here: streams of events (events.js).

const KEY = 'ringfence.token';

/** What the server, or the way to it, said instead of an answer. Its message is for people. */
export class ApiError extends Error {
    constructor(status, kind, message) {
        super(message);
        Object.assign(this, { status, kind });
    }

    get isOffline() {
        return this.status === 0;
    }
}

let whenLoggedOut = () => {};

/** Calls this when the server no longer knows the token. */
export function onLogout(heard) {
    whenLoggedOut = heard;
}

export function token() {
    return localStorage.getItem(KEY);
}

export function keepToken(value) {
    localStorage.setItem(KEY, value);
}

export function forgetToken() {
    localStorage.removeItem(KEY);
}

/** `path('sessions', id)` with every part as it must be written in an address. */
export function path(...parts) {
    return `/v1/${parts.map(encodeURIComponent).join('/')}`;
}

/** The same with a query; what is empty is left out. */
export function query(address, values) {
    const kept = Object.entries(values).filter(([, value]) => value !== null && value !== undefined && value !== '');
    return kept.length === 0 ? address : `${address}?${new URLSearchParams(kept)}`;
}

export const get = (address, options) => ask('GET', address, undefined, options);
export const post = (address, body = {}) => ask('POST', address, body);
export const remove = address => ask('DELETE', address);

/** A code from the printed link, for a token. A used or unknown one is refused. */
export async function login(code) {
    const answer = await answered(
        await send('/v1/login', {
            method: 'POST',
            headers: { 'Content-Type': 'application/json' },
            body: JSON.stringify({ code }),
        }),
    );
    keepToken(answer.token);
}

/** The bytes of a file. */
export async function bytes(address) {
    const response = await send(address, { headers: bearer() });
    if (!response.ok) await answered(response);
    return response.blob();
}

/** A stream that goes on until `signal` ends it. */
export async function stream(address, headers, signal) {
    const response = await send(address, { headers: { ...bearer(), Accept: 'text/event-stream', ...headers }, signal });
    if (!response.ok) await answered(response);
    return response.body;
}

async function ask(method, address, body, { signal } = {}) {
    const headers = bearer();
    if (body !== undefined) headers['Content-Type'] = 'application/json';
    const sent = body === undefined ? undefined : JSON.stringify(body);
    return answered(await send(address, { method, headers, body: sent, signal }));
}

function bearer() {
    const kept = token();
    return kept ? { Authorization: `Bearer ${kept}` } : {};
}

async function send(address, options) {
    try {
        return await fetch(address, { cache: 'no-store', credentials: 'omit', redirect: 'error', ...options });
    } catch (error) {
        if (error.name === 'AbortError') throw error;
        throw new ApiError(0, 'OFFLINE', 'the server cannot be reached');
    }
}

async function answered(response) {
    const said = await response.text().catch(() => '');
    let value = null;
    try {
        value = said === '' ? null : JSON.parse(said);
    } catch {
        // A reply without JSON comes from a proxy; its status suffices.
    }
    if (response.ok) return value;
    if (response.status === 401 && token()) {
        forgetToken();
        whenLoggedOut();
    }
    const { kind = 'HTTP', message = `the server answered ${response.status}` } = value?.error ?? {};
    throw new ApiError(response.status, kind, message);
}
