// Wrapped runs view: programs that `ringfence run` started and that go on, each with its screen, hosts and changes so far.
//
// The screen is what an untrusted program drew: it is shown as text, as it stands, and nothing in it is obeyed.
//
// Not here: answering what a run asks (approval.js), and runs of the built-in agent (runs.js).

import { badge, button, code, el, field, fill } from '../dom.js';
import { confirm, empty, loading, notice, trying } from '../ask.js';
import { get, path, post, query } from '../api.js';
import { openRequest } from '../approval.js';
import { diffLines, showLines } from '../diff.js';
import { may, state, watch } from '../state.js';
import { count, size } from '../time.js';
import { undo } from '../undo.js';

const SCREEN_INTERVAL = 1000;
const HOSTS_INTERVAL = 5000;

export function show(place, [layer]) {
    return layer ? showRun(place, layer) : showRuns(place);
}

function showRuns(place) {
    const list = el('div', {});
    fill(
        place,
        el('h1', {}, 'Wrapped runs'),
        el('p', { class: 'lead' }, 'Programs in the sandbox that ringfence run started on this machine, and that go on.'),
        list,
    );
    loading(list, runsList);
    return every(HOSTS_INTERVAL, async () => fill(list, await runsList()));
}

async function runsList() {
    const { runs } = await get('/v1/wrapped-runs');
    if (runs.length === 0) return empty('No wrapped run goes on. Start one with ringfence run.');
    return el('ul', { class: 'rows' }, ...runs.map(runRow));
}

const pending = run => state.requests.filter(request => request.session === run.session);

function runRow(run) {
    const waits = pending(run).length;
    return el(
        'li',
        {},
        el(
            'a',
            { class: 'row', to: `wrapped/${encodeURIComponent(run.layer)}` },
            el(
                'span',
                { class: 'row-main' },
                el('strong', {}, run.program),
                el('span', { class: 'facts' }, run.profile, ' · ', el('code', {}, run.layer)),
            ),
            el(
                'span',
                { class: 'row-side' },
                waits > 0 ? badge(`${waits} pending`, 'wait') : null,
                run.detached ? badge('detached') : null,
                badge('running', 'live'),
            ),
        ),
    );
}

function showRun(place, layer) {
    const [head, waits, screen, hosts, changes] = ['', '', '', '', ''].map(() => el('div', {}));
    const typing = el('div', {});
    fill(
        place,
        el('p', { class: 'crumbs' }, el('a', { to: 'wrapped' }, 'Wrapped runs')),
        head,
        waits,
        section('Screen', screen, typing),
        section('Hosts', hosts),
        section('Changes so far', changes),
    );
    fill(hosts, empty('No host yet.'));
    fill(changes, button('Show changes', () => showChanges(changes, layer)));
    const found = { run: null, drawn: {}, records: [], next: 0 };
    const put = (name, part, value, draw) => {
        const text = JSON.stringify(value);
        if (found.drawn[name] === text) return;
        found.drawn[name] = text;
        fill(part, draw());
    };
    const drawWaits = () => {
        if (found.run) put('waits', waits, pending(found.run), () => requestsOf(found.run));
    };
    const stopScreen = every(
        SCREEN_INTERVAL,
        async () => {
            const run = await get(path('wrapped-runs', layer));
            const { screen: lines, ...facts } = run;
            found.run = run;
            put('head', head, facts, () => headOf(run));
            put('screen', screen, lines, () => code(lines.join('\n').trimEnd() || ' '));
            put('typing', typing, facts.detached, () => (run.detached && may('admin') ? typeForm(layer) : null));
            drawWaits();
        },
        error => {
            if (error.status !== 404) return true;
            fill(head, el('div', { class: 'title' }, el('h1', {}, 'Run'), badge('ended')));
            fill(typing);
            fill(waits, empty('This run ended. Its changes are in its layer until you decide about them.'));
            return false;
        },
    );
    const stopHosts = every(HOSTS_INTERVAL, async () => {
        if (!found.run) return;
        await readRecords(found);
        put('hosts', hosts, [found.records.length, pending(found.run)], () => hostTable(found));
    });
    const unwatch = watch(['requests'], drawWaits);
    return () => {
        stopScreen();
        stopHosts();
        unwatch();
    };
}

function section(name, ...parts) {
    return el('section', { 'aria-label': name }, el('h2', { class: 'section' }, name), ...parts);
}

/** Does something now and again, until the result is called or `failed` says that it is over. */
function every(interval, does, failed = () => true) {
    let timer = 0;
    let isOver = false;
    const next = async () => {
        let goesOn = true;
        if (!document.hidden) await does().catch(error => (goesOn = failed(error)));
        if (!isOver && goesOn) timer = setTimeout(next, interval);
    };
    next();
    return () => {
        isOver = true;
        clearTimeout(timer);
    };
}

function headOf(run) {
    const { layer } = run;
    const writer = run.writer ? `${run.writer} types` : run.detached ? 'no writer' : 'its own terminal types';
    return [
        el('div', { class: 'title' }, el('h1', {}, run.program), badge('running', 'live')),
        el(
            'p',
            { class: 'facts' },
            run.profile,
            ' · ',
            el('code', {}, layer),
            ' · ',
            `${run.columns}×${run.rows}`,
            ' · ',
            writer,
            ' · ',
            count(run.viewers, 'terminal attached', 'terminals attached'),
        ),
        el(
            'div',
            { class: 'actions' },
            run.checkpoints && may('admin') ? button('Make a checkpoint', () => makeCheckpoint(layer)) : null,
            run.checkpoints && may('undo') ? button('Undo the last checkpoint…', () => undoCheckpoint(run)) : null,
            may('admin') ? button('End…', () => endRun(run), { class: 'danger' }) : null,
        ),
    ];
}

function makeCheckpoint(layer) {
    return trying(async () => {
        await post(path('wrapped-runs', layer, 'checkpoint'));
        notice('A checkpoint is made if something changed.', 'good');
    });
}

function undoCheckpoint(run) {
    return trying(async () => {
        const { workspace } = state;
        const { changes } = await get(query('/v1/changes', { workspace, session: run.session }));
        const last = changes.find(change => change.tool === 'checkpoint_layer' && change.state === 'done');
        if (!last) return notice('No checkpoint of this run landed in this workspace.');
        return undo({ workspace, change: last.change });
    });
}

async function endRun(run) {
    const yes = await confirm({
        title: `End ${run.program}?`,
        body: [el('p', {}, 'It is asked to end, and what it changed stays in its layer. A second time within three seconds ends it at once.')],
        yes: 'End',
        danger: true,
    });
    if (yes) await trying(() => post(path('wrapped-runs', run.layer, 'stop')));
}

function requestsOf(run) {
    const waiting = pending(run);
    if (waiting.length === 0) return null;
    return section(
        'Questions',
        el(
            'ul',
            { class: 'rows' },
            ...waiting.map(request =>
                el(
                    'li',
                    {},
                    el(
                        'div',
                        { class: 'row' },
                        el('span', { class: 'row-main' }, el('strong', {}, request.summary)),
                        el('span', { class: 'row-side' }, button('Answer…', () => openRequest(request.id))),
                    ),
                ),
            ),
        ),
    );
}

/** A line for the program. Who types at a terminal only views from then on, and the audit log has it. */
function typeForm(layer) {
    const line = el('input', { type: 'text', name: 'line', autocomplete: 'off', spellcheck: 'false' });
    const submit = async event => {
        event.preventDefault();
        const typed = line.value;
        if (await trying(() => post(path('wrapped-runs', layer, 'input'), { text: `${typed}\r` }))) line.value = '';
    };
    return el(
        'form',
        { class: 'card', on: { submit } },
        field('Type a line', line, 'You take over from who types at a terminal, and that is recorded.'),
        el('div', { class: 'actions' }, el('button', { type: 'submit' }, 'Send')),
    );
}

/** The records of the run that came since. */
async function readRecords(found) {
    for (;;) {
        const { records, next } = await get(
            query('/v1/audit', { after: found.next, limit: 1000, session: found.run.session }),
        );
        found.records.push(...records.filter(record => record.event.startsWith('access')));
        if (next === found.next) return;
        found.next = next;
    }
}

/** Hosts by what became of connections to them. A request to a host of a key has its method and path after the host. */
function hostsOf(found) {
    const hosts = new Map();
    const host = name => {
        if (!hosts.has(name)) hosts.set(name, { allowed: 0, refused: 0, held: 0, withKey: 0 });
        return hosts.get(name);
    };
    for (const record of found.records) {
        const access = record.accesses?.[0];
        if (access?.action !== 'fetch') continue;
        const [name, ...request] = access.path.split(' ');
        const refused = record.event === 'access' ? Number(record.ok === false) : (record.refused ?? 0);
        const made = record.event === 'access' ? Number(record.ok === true) : (record.count ?? 0) - refused;
        host(name).refused += refused;
        host(name)[request.length > 0 ? 'withKey' : 'allowed'] += made;
    }
    for (const { args } of pending(found.run)) if (typeof args?.host === 'string') host(args.host).held += 1;
    return hosts;
}

function hostTable(found) {
    const hosts = [...hostsOf(found)];
    if (hosts.length === 0) return empty('No host yet.');
    const head = ['Host', 'Connections', 'Requests with a key', 'Held', 'Refused'];
    const cells = ({ allowed, withKey, held, refused }) => [allowed, withKey, held, refused];
    return el(
        'table',
        { class: 'files hosts' },
        el('thead', {}, el('tr', {}, ...head.map(name => el('th', { scope: 'col' }, name)))),
        el(
            'tbody',
            {},
            ...hosts.map(([name, counts]) =>
                el(
                    'tr',
                    {},
                    el('td', {}, el('code', {}, name)),
                    ...cells(counts).map(number => el('td', {}, number === 0 ? '' : number)),
                ),
            ),
        ),
    );
}

const SECTIONS = {
    acts_later: 'Acts later',
    conflicts: 'Conflicts',
    deletions: 'Deletions',
    changes: 'Changes',
    additions: 'Additions',
};

/** The review of the layer as it is now. It is read when it is wanted: a comparison of everything takes its time. */
function showChanges(place, layer) {
    return loading(place, async () => {
        const review = await get(query(path('wrapped-runs', layer, 'changes'), { workspace: state.workspace }));
        const parts = review.sections.filter(part => part.count > 0);
        return [
            el('div', { class: 'actions' }, button('Show changes again', () => showChanges(place, layer))),
            parts.length === 0 && review.derived.length === 0 ? empty('Nothing is changed.') : null,
            ...parts.map(changesIn),
            ...review.derived.map(tree =>
                el('p', { class: 'facts' }, el('code', {}, tree.path), ` (ignored): ${count(tree.count, 'file')}, ${size(tree.bytes)}`),
            ),
        ];
    });
}

function changesIn(part) {
    return [
        el('h3', {}, `${SECTIONS[part.section] ?? part.section} (${part.count})`),
        ...part.items.map(changedFile),
        part.omitted > 0 ? el('p', { class: 'quiet-note' }, `${part.omitted} more are not listed.`) : null,
    ];
}

function changedFile(item) {
    const facts = [item.kind, item.from ? `from ${item.from}` : null, item.why, item.refusal?.message, item.note];
    return el(
        'details',
        { class: 'card' },
        el(
            'summary',
            {},
            el('code', {}, item.path),
            ' ',
            el('span', { class: 'facts' }, facts.filter(fact => fact).join(' · ')),
        ),
        item.hunks?.length > 0 ? showLines(diffLines({ parts: [partOf(item)] })) : null,
    );
}

function partOf(item) {
    return {
        kind: 'file',
        oldPath: item.kind === 'created' ? null : (item.from ?? item.path),
        newPath: item.kind === 'deleted' ? null : item.path,
        hunks: item.hunks,
    };
}
