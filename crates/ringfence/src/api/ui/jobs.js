// Background jobs of this server: of API sessions, of runs and of MCP clients that are connected over HTTP.
//
// Jobs end by themselves, of which no event tells, so the list is read again and again while there are any.
//
// Not here: jobs of other processes, such as an MCP server over stdio. Those are known to that process alone.

import { badge, el } from './dom.js';
import { get, query } from './api.js';
import { watch } from './state.js';
import { clock } from './time.js';

/** Milliseconds between looks at background jobs. */
export const JOBS_INTERVAL = 2000;

const MOST = 100;
const LONGEST_COMMAND = 200;

/** The jobs of a session, or of every session that the token may see. */
export function jobsOf(session = null) {
    return get(query('/v1/jobs', { session })).then(
        got => got.jobs,
        () => [],
    );
}

/** Calls `heard` with the jobs after each call, and while there are any. Returns what ends it. */
export function followJobs(heard) {
    let [isOver, next] = [false, 0];
    const look = async () => {
        clearTimeout(next);
        const found = await jobsOf();
        if (isOver) return;
        heard(found);
        clearTimeout(next);
        if (found.length > 0) next = setTimeout(look, JOBS_INTERVAL);
    };
    look();
    const unwatch = watch(['event'], kind => {
        if (kind === 'end') look();
    });
    return () => {
        isOver = true;
        clearTimeout(next);
        unwatch();
    };
}

/** The jobs, if there are any. */
export function showJobs(jobs, { withSession = false } = {}) {
    if (jobs.length === 0) return [];
    const line = job =>
        el(
            'li',
            {},
            el('code', {}, job.command.split('\n', 1)[0].slice(0, LONGEST_COMMAND)),
            ' ',
            job.exitCode === null ? badge('running', 'good') : badge(`exit ${job.exitCode}`),
            ' since ',
            clock(job.started),
            withSession
                ? [' · ', el('a', { to: `sessions/${encodeURIComponent(job.session)}` }, job.principal)]
                : null,
        );
    return [
        el('h2', {}, 'Background jobs'),
        el('ul', { class: 'jobs' }, ...jobs.slice(0, MOST).map(line)),
        jobs.length > MOST ? el('p', { class: 'quiet-note' }, `and ${jobs.length - MOST} more`) : null,
    ];
}
