// Event stream that reconnects.
//
// Nothing is missed in silence: after a break it goes on behind the last event that was seen, and where the server has
// lost some it says so with a `gap`. EventSource is not used, because it cannot send the token as a header.
//
// Not here: what an event means (state.js and the views).

import { stream } from './api.js';

const [FIRST_WAIT, LONGEST_WAIT] = [500, 15_000];
// The server says something every 15 seconds. A connection that says nothing for so long is dead, whatever TCP thinks.
const LONGEST_SILENCE = 40_000;

/**
 * Follows a stream: `heard(kind, data)` for each event, `told({state, again})` when the connection comes (`open`), is
 * lost (`lost`; `again` is when it is tried next) or is refused permanently (`refused`). `after` is the event to begin
 * behind. Returns what stops it, and what tries at once.
 */
export function follow(address, { after = null, heard, told = () => {} }) {
    const all = new AbortController();
    let [last, wait, wake] = [after, FIRST_WAIT, () => {}];

    async function once() {
        const [attempt, silence] = [new AbortController(), { timer: 0 }];
        const stop = () => attempt.abort();
        const alive = () => {
            clearTimeout(silence.timer);
            silence.timer = setTimeout(stop, LONGEST_SILENCE);
        };
        all.signal.addEventListener('abort', stop);
        try {
            alive();
            const headers = last === null ? {} : { 'Last-Event-ID': String(last) };
            const body = await stream(address, headers, attempt.signal);
            wait = FIRST_WAIT;
            told({ state: 'open' });
            for await (const event of parsed(body, alive)) {
                if (event.id !== null) last = event.id;
                heard(event.kind, event.data);
            }
        } finally {
            clearTimeout(silence.timer);
            all.signal.removeEventListener('abort', stop);
            attempt.abort();
        }
    }

    async function run() {
        while (!all.signal.aborted) {
            try {
                await once();
            } catch (error) {
                if (all.signal.aborted) return;
                if ([401, 403, 404].includes(error.status)) return told({ state: 'refused', error });
            }
            if (all.signal.aborted) return;
            // Not all pages of a person come back at the same moment.
            const pause = wait * (0.75 + Math.random() / 2);
            told({ state: 'lost', again: Date.now() + pause });
            await new Promise(done => {
                wake = done;
                setTimeout(done, pause);
            });
            wait = Math.min(wait * 2, LONGEST_WAIT);
        }
    }

    run();
    return {
        stop: () => {
            all.abort();
            wake();
        },
        now: () => wake(),
    };
}

/** Events from bytes: blocks of `name: value` lines with an empty line behind each. */
async function* parsed(body, alive) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = '';
    for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        alive();
        const blocks = (rest + value).replace(/\r\n/g, '\n').split('\n\n');
        rest = blocks.pop();
        for (const block of blocks) {
            const event = read(block);
            if (event) yield event;
        }
    }
}

function read(block) {
    const event = { id: null, kind: 'message', data: null };
    const data = [];
    for (const line of block.split('\n')) {
        const [, name, value] = /^([^:]*): ?(.*)$/.exec(line) ?? [];
        if (name === 'id') event.id = value;
        else if (name === 'event') event.kind = value;
        else if (name === 'data') data.push(value);
    }
    if (data.length === 0) return null;
    try {
        event.data = JSON.parse(data.join('\n'));
    } catch {
        return null;
    }
    return event;
}
