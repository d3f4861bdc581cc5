// Entry point of the page: sign-in, routing, navigation and the connection status.
//
// Not here: any view. Each is a file in views/ with `show(place, parts)`, which may return what ends it.

import { badge, button, el, fill, icon } from './dom.js';
import { forgetToken, login, onLogout, token } from './api.js';
import { begin, choose, end, may, state, tryNow, watch } from './state.js';
import { beginAsking, openRequest } from './approval.js';
import { showFavicon } from './favicon.js';
import { showLogin } from './views/login.js';
import * as approvals from './views/approvals.js';
import * as audit from './views/audit.js';
import * as call from './views/call.js';
import * as changes from './views/changes.js';
import * as historyView from './views/history.js';
import * as files from './views/files.js';
import * as isolation from './views/isolation.js';
import * as policy from './views/policy.js';
import * as runs from './views/runs.js';
import * as session from './views/session.js';
import * as sessions from './views/sessions.js';
import * as wrapped from './views/wrapped.js';

const VIEWS = [
    { name: 'waiting', label: 'Approvals', view: approvals },
    { name: 'sessions', label: 'Sessions', view: sessions },
    { name: 'runs', label: 'Agent', view: runs, when: () => state.runs },
    { name: 'wrapped', label: 'Wrapped runs', view: wrapped, when: () => may('approve') },
    { name: 'changes', label: 'Changes', view: changes },
    { name: 'files', label: 'Files', view: files },
    { name: 'call', label: 'Call a tool', view: call, when: () => may('call') },
    { name: 'policy', label: 'Policy', view: policy },
    { name: 'audit', label: 'Audit log', view: audit },
    { name: 'sandbox', label: 'Sandbox', view: isolation },
];

/** Former names of views, which bookmarks may have. */
const FORMER_NAMES = { walls: 'sandbox' };

const main = document.getElementById('main');
let leave = () => {};

/** The view that the address names: `#/sessions/ID`. */
function route() {
    if (!state.me) return;
    const parts = location.hash
        .replace(/^#\/?/, '')
        .split('/')
        .map(decode)
        .filter(part => part !== '');
    if (Object.hasOwn(FORMER_NAMES, parts[0])) return location.replace(`#/${FORMER_NAMES[parts[0]]}`);
    const name = VIEWS.some(one => one.name === parts[0]) ? parts[0] : 'waiting';
    leave();
    const chosen = VIEWS.find(one => one.name === name);
    const one = parts[1] === 'history' && parts.length > 2 ? historyView : session;
    const view = name === 'sessions' && parts.length > 1 ? one : chosen.view;
    const place = el('div', { class: `view view-${name}` });
    fill(main, place);
    document.body.dataset.view = name;
    leave = view.show(place, parts.slice(1)) ?? (() => {});
    showNav(name);
    showTitle();
    window.scrollTo(0, 0);
}

function decode(part) {
    try {
        return decodeURIComponent(part);
    } catch {
        return part;
    }
}

function showNav(current = document.body.dataset.view) {
    const links = VIEWS.filter(({ when }) => !when || when()).map(({ name, label }) => {
        const waits = name === 'waiting' ? state.requests.length : 0;
        return el(
            'li',
            {},
            el(
                'a',
                { to: name, 'aria-current': name === current ? 'page' : null, class: `nav-${name}` },
                icon(name),
                el('span', {}, label),
                waits > 0 ? el('span', { class: 'count', 'aria-label': `${waits} pending` }, waits) : null,
            ),
        );
    });
    const nav = document.getElementById('nav');
    const focused = nav.contains(document.activeElement) ? document.activeElement.className : null;
    fill(nav, el('ul', {}, ...links));
    if (focused) nav.getElementsByClassName(focused)[0]?.focus();
    document.querySelector('#nav [aria-current]')?.scrollIntoView({ block: 'nearest', inline: 'center' });
}

function showTop() {
    const { me, workspace } = state;
    if (!me) return fill(document.getElementById('top-right'));
    const workspaces = me.workspaces ?? [];
    const chooser = el(
        'select',
        { 'aria-label': 'Workspace', on: { change: event => choose(event.target.value) } },
        ...workspaces.map(name => el('option', { value: name }, name)),
    );
    chooser.value = workspace;
    const waits = state.requests.length;
    fill(
        document.getElementById('top-right'),
        waits > 0
            ? button(`${waits} pending`, () => openRequest(state.requests[0].id), { class: 'waiting-button' })
            : null,
        workspaces.length > 1 ? chooser : badge(workspace ?? 'no workspace'),
        el('span', {
            class: 'dot',
            title: CONNECTION[state.connection.state],
            'aria-hidden': 'true',
            data: { state: state.connection.state },
        }),
        el(
            'details',
            { class: 'me' },
            el('summary', { 'aria-label': `Account: ${me.name}` }, me.name),
            el(
                'div',
                {},
                el('p', {}, `Scopes: ${me.scopes.join(', ')}`),
                el('p', {}, `Ringfence ${me.version}`),
                button('Sign out', logOut),
            ),
        ),
    );
}

const CONNECTION = {
    opening: 'Connecting',
    open: 'Connected',
    lost: 'Connection lost',
    refused: 'Not allowed to receive events',
};

let ticking = 0;

/** A lost connection cannot be overlooked: what is shown may be old. */
function showConnection() {
    clearInterval(ticking);
    const place = document.getElementById('connection');
    document.body.dataset.connection = state.connection.state;
    if (state.connection.state === 'refused')
        return fill(place, el('p', { class: 'banner' }, `No live updates: ${state.connection.error.message}`));
    if (state.connection.state !== 'lost') return fill(place);
    const when = el('span', { 'aria-hidden': 'true' });
    const tick = () =>
        fill(when, ` Reconnecting in ${Math.max(0, Math.ceil((state.connection.again - Date.now()) / 1000))} s.`);
    fill(
        place,
        el(
            'p',
            { class: 'banner' },
            el('strong', {}, 'Connection lost.'),
            ' The data shown may be out of date.',
            when,
            ' ',
            button('Reconnect now', tryNow),
        ),
    );
    tick();
    ticking = setInterval(tick, 1000);
}

function showTitle() {
    const waits = state.requests.length;
    const label = VIEWS.find(one => one.name === document.body.dataset.view)?.label ?? '';
    document.title = `${waits > 0 ? `(${waits}) ` : ''}${label ? `${label} · ` : ''}Ringfence`;
    showFavicon(waits);
}

function logOut() {
    forgetToken();
    loggedOut('You are signed out.');
}

function loggedOut(why) {
    leave();
    leave = () => {};
    end();
    document.body.dataset.view = 'login';
    showTop();
    showTitle();
    fill(document.getElementById('nav'));
    fill(document.getElementById('connection'));
    document.querySelectorAll('dialog').forEach(dialog => dialog.close());
    fill(main, showLogin(why, start));
}

/** Takes the code from a printed link, once, and out of the address before anything else. */
async function enter() {
    const code = /^#login=(.+)$/.exec(location.hash)?.[1];
    if (code) {
        history.replaceState(null, '', location.pathname);
        await login(decode(code));
    }
    if (!token()) throw new Error('You are not signed in.');
    await begin();
}

async function start() {
    try {
        await enter();
    } catch (error) {
        return error.isOffline && token() ? retry() : loggedOut(error.message);
    }
    showTop();
    route();
}

/** The server is away, and we may still know it when it is back. */
function retry() {
    state.connection = { state: 'lost', again: Date.now() + 3000 };
    showConnection();
    setTimeout(start, 3000);
}

onLogout(() => loggedOut('Your session has expired.'));
watch(['requests'], () => {
    showNav();
    showTop();
    showTitle();
});
watch(['connection'], () => {
    showTop();
    showConnection();
});
watch(['workspace'], () => {
    showTop();
    route();
});
watch(['runs'], () => {
    showNav();
    if (location.hash.startsWith('#/runs')) route();
});
window.addEventListener('hashchange', () => {
    if (location.hash.startsWith('#login=')) return start();
    if (location.hash === '#main') return;
    route();
    // Those who hear the page are where the new view begins.
    main.focus({ preventScroll: true });
});
window.addEventListener('online', tryNow);
beginAsking();
start();
