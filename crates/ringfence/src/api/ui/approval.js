// The approval dialog: the request of a call, and the answer of a person.
//
// Only its own key or button approves, and not in the first moment after the dialog opened. Escape never approves; the focus is on
// the denial. Edited arguments are previewed by the server before they can be approved, and evaluated again when they are used.
//
// Not here: rendering of a request (request.js), and the list of pending requests (views/approvals.js).

import { button, el, fill, key, ticked } from './dom.js';
import { notice } from './ask.js';
import { schemaForm, schemaOf } from './form.js';
import { showArguments, showPreview, showWho, showWhy } from './request.js';
import { path, post } from './api.js';
import { answer, drop, may, state, watch } from './state.js';
import { left, moment } from './time.js';

const CLOSED = 'This request is closed: it was answered by another client, or its call ended.';

// Milliseconds in which no answer counts after the dialog opened, or after a key that came too early.
const SETTLES = 400;

let shown = null;
const putAside = new Set();

/** Opens the dialog whenever a new request waits. */
export function beginAsking() {
    watch(['requests'], look);
    window.addEventListener('focus', () => shown?.settle());
}

/** Opens the dialog for one request. */
export function openRequest(id) {
    const request = state.requests.find(one => one.id === id);
    if (request && !shown) open(request);
}

function look() {
    if (shown) {
        const request = state.requests.find(one => one.id === shown.request.id);
        if (!request) shown.over(CLOSED);
        else shown.refresh(request);
        shown?.count();
        return;
    }
    const next = state.requests.find(request => !putAside.has(request.id) && remains(request) > 0);
    if (!next || !may('approve')) return;
    announce(`${next.principal} requests approval: ${next.summary}`);
    // A user who is typing would answer with the next key. The count above says that a request is pending.
    if (isWriting()) {
        putAside.add(next.id);
        notice(`Approval needed: ${next.summary}`, 'wait');
        return;
    }
    open(next);
}

function isWriting() {
    const isField = document.activeElement?.matches('input:not([type=checkbox]), textarea, select') ?? false;
    return isField || document.querySelector('dialog[open]') !== null;
}

function announce(text) {
    fill(document.getElementById('announce'), text);
}

function open(request) {
    putAside.add(request.id);
    shown = new Approval(request);
    document.body.append(shown.dialog);
    shown.dialog.showModal();
    shown.choose();
    shown.begin();
}

class Approval {
    constructor(request) {
        this.request = request;
        this.problem = el('p', { class: 'problem', role: 'alert' });
        this.time = el('span', { class: 'time' });
        this.place = el('span', {});
        this.panel = el('div', { class: 'panel' });
        this.actions = el('div', { class: 'actions approval-actions' });
        this.remember = this.makeRemember();
        this.why = el('div', {}, showWhy(request));
        this.dialog = el(
            'dialog',
            { class: 'approval', 'aria-labelledby': 'approval-title', data: { request: request.id } },
            el('div', { class: 'fence', 'aria-hidden': 'true' }),
            el(
                'header',
                {},
                el('p', { class: 'eyebrow' }, 'Waiting for your approval ', this.place, this.time),
                el('h2', { id: 'approval-title' }, ticked(request.summary || request.tool)),
                showWho(request),
            ),
            el(
                'div',
                { class: 'dialog-body', tabindex: '-1' },
                this.why,
                showPreview(request),
                showArguments(request),
                this.panel,
            ),
            el('footer', {}, this.remember.element, this.problem, this.actions),
        );
        this.dialog.addEventListener('keydown', event => this.key(event), true);
        this.dialog.addEventListener('click', event => this.click(event), true);
        this.dialog.addEventListener('cancel', event => {
            event.preventDefault();
            this.back();
        });
        this.dialog.addEventListener('close', () => this.close());
    }

    begin() {
        this.clock = setInterval(() => this.tick(), 1000);
        this.tick();
        this.count();
    }

    makeRemember() {
        const { grant } = this.request;
        if (!grant)
            return {
                box: null,
                element: el(
                    'p',
                    { class: 'remember none' },
                    'This cannot be remembered: an approval applies to this call only.',
                ),
            };
        const box = el('input', { type: 'checkbox', id: 'remember', on: { change: () => this.choose() } });
        const rule = el(
            'div',
            { class: 'rule' },
            el(
                'p',
                {},
                'This rule will be added. It applies for 30 days, in this workspace only; revoke it in the Policy view.',
            ),
            el('pre', { class: 'code' }, grant),
        );
        return {
            box,
            rule,
            element: el(
                'div',
                { class: 'remember' },
                el('label', {}, box, ' Remember: always allow this ', key('r')),
                rule,
            ),
        };
    }

    /** The four answers. */
    choose(focus = 'deny') {
        this.mode = 'choose';
        this.settle();
        fill(this.panel);
        const remembers = this.remember.box?.checked ?? false;
        if (this.remember.rule) this.remember.rule.hidden = !remembers;
        this.remember.element.hidden = false;
        const deny = button(['Deny ', key('d')], () => this.deny(), {
            class: 'danger-quiet',
            'aria-keyshortcuts': 'd',
        });
        const edit = button(['Edit ', key('e')], () => this.edit(), { 'aria-keyshortcuts': 'e' });
        const approve = button([remembers ? 'Approve and remember ' : 'Approve ', key('a')], () => this.approve(), {
            class: 'primary',
            'aria-keyshortcuts': 'a',
        });
        fill(this.actions, deny, edit, el('span', { class: 'gap' }), approve);
        (focus === 'approve' ? approve : deny).focus();
    }

    /** A no, with the reason that the caller is told. */
    deny() {
        this.mode = 'reason';
        this.remember.element.hidden = true;
        const reason = el('input', {
            type: 'text',
            name: 'reason',
            autocomplete: 'off',
            placeholder: 'sent to the agent',
        });
        reason.maxLength = 500;
        const send = () => this.send({ approved: false, reason: reason.value.trim() || null }, 'Denied');
        const form = el(
            'form',
            {
                class: 'reason-form',
                on: {
                    submit: event => {
                        event.preventDefault();
                        send();
                    },
                },
            },
            el('label', {}, el('span', {}, 'Reason (optional)'), reason),
            button(['Back ', key('Esc')], () => this.back()),
            el('button', { type: 'submit', class: 'danger' }, 'Deny ', key('Enter')),
        );
        fill(this.actions, form);
        reason.focus();
    }

    async edit() {
        this.mode = 'edit';
        this.remember.element.hidden = true;
        const schema = await schemaOf(this.request.tool);
        if (this.mode !== 'edit') return;
        const form = schemaForm(schema, this.request.args ?? {});
        fill(
            this.panel,
            el(
                'section',
                { class: 'edit', 'aria-label': 'Edit the arguments' },
                el('h3', {}, 'Edit the arguments'),
                el(
                    'p',
                    { class: 'hint' },
                    'The call above is shown as it was sent. The effect of your arguments is shown before you approve them.',
                ),
                form.element,
            ),
        );
        const preview = button('Preview', () => this.preview(form), { class: 'primary' });
        fill(
            this.actions,
            button(['Back ', key('Esc')], () => this.back()),
            el('span', { class: 'gap' }),
            preview,
        );
        this.panel.scrollIntoView({ block: 'start' });
        this.panel.querySelector('textarea, input, select')?.focus();
    }

    /** What the call would do with the arguments of a form; only then can they be approved. */
    async preview(form) {
        fill(this.problem);
        let args, shown;
        try {
            args = form.value();
            shown = showPreview(await post(path('approvals', this.request.id, 'preview'), { modifiedArgs: args }));
        } catch (error) {
            // Without its caller the call cannot be previewed, and the approver decides whether that is enough.
            if (error.status !== 409) {
                fill(this.problem, error.message);
                return;
            }
            shown = el('p', { class: 'problem' }, error.message);
        }
        if (this.mode !== 'edit') return;
        this.settle();
        const use = button(
            'Approve with these arguments',
            () => this.send({ approved: true, modifiedArgs: args }, 'Approved with your arguments'),
            { class: 'primary' },
        );
        const change = button('Edit again', () => {
            fill(previewed);
            fill(this.actions, ...editing);
        });
        const previewed = el('div', { class: 'previewed' }, shown ?? el('p', {}, 'No differences to show.'));
        const editing = [...this.actions.childNodes];
        this.panel.querySelector('.previewed')?.remove();
        this.panel.append(previewed);
        fill(this.actions, change, el('span', { class: 'gap' }), use);
        previewed.scrollIntoView({ block: 'start' });
        change.focus();
    }

    approve() {
        const remember = this.remember.box?.checked ?? false;
        return this.send(
            { approved: true, ...(remember && { remember }) },
            remember ? 'Approved, and remembered' : 'Approved',
        );
    }

    async send(response, done) {
        fill(this.problem);
        this.sending = true;
        try {
            const { waitsForCaller } = await answer(this.request.id, response);
            const later = response.approved && waitsForCaller;
            const what = later ? `${done}; runs when the agent calls again` : done;
            notice(`${what}: ${this.request.summary}`, later ? 'wait' : response.approved ? 'good' : 'quiet');
            this.dialog.close();
        } catch (error) {
            this.sending = false;
            if ([404, 409, 410].includes(error.status)) {
                this.over(error.status === 404 ? CLOSED : error.message);
                drop(this.request.id);
            } else {
                fill(this.problem, `Not sent: ${error.message}`);
            }
        } finally {
            this.sending = false;
        }
    }

    /** The request is closed. The dialog stays, so that the next key goes nowhere else. */
    over(why) {
        if (this.mode === 'over' || this.sending) return;
        this.mode = 'over';
        this.settle();
        clearInterval(this.clock);
        fill(this.time);
        this.remember.element.hidden = true;
        fill(this.panel);
        fill(this.problem, why);
        const close = button('Close', () => this.dialog.close());
        fill(this.actions, el('span', { class: 'gap' }), close);
        close.focus();
    }

    /** The agent may stop waiting while the dialog is open. */
    refresh(request) {
        if (request.suspended !== this.request.suspended) fill(this.why, showWhy(request));
        this.request = request;
    }

    back() {
        if (!this.isSettled()) return;
        fill(this.problem);
        if (this.mode === 'reason' || this.mode === 'edit') this.choose();
        else this.dialog.close();
    }

    close() {
        clearInterval(this.clock);
        this.dialog.remove();
        if (shown !== this) return;
        shown = null;
        look();
    }

    key(event) {
        const isModified = event.ctrlKey || event.altKey || event.metaKey;
        if (event.key === 'Tab' || isModified || ['Shift', 'Control', 'Alt', 'Meta'].includes(event.key)) return;
        if (!this.isSettled() || (event.repeat && event.target.matches('button'))) {
            this.settle();
            event.preventDefault();
            event.stopPropagation();
            return;
        }
        // A browser closes a dialog by the second Escape, whatever the page says; so Escape does not get there.
        if (event.key === 'Escape') {
            event.preventDefault();
            this.back();
            return;
        }
        if (this.mode !== 'choose' || event.target.matches('textarea, input:not([type=checkbox]), select')) return;
        const does = { a: () => this.approve(), d: () => this.deny(), e: () => this.edit(), r: () => this.toggle() }[
            event.key.toLowerCase()
        ];
        if (!does) return;
        event.preventDefault();
        does();
    }

    click(event) {
        if (this.isSettled() || !event.target.closest('.actions')) return;
        event.preventDefault();
        event.stopPropagation();
    }

    toggle() {
        if (!this.remember.box) return;
        this.remember.box.checked = !this.remember.box.checked;
        this.choose();
    }

    /** From here on a moment has to pass before anything counts. */
    settle() {
        this.since = performance.now();
        this.dialog.classList.remove('settled');
        clearTimeout(this.settling);
        this.settling = setTimeout(() => this.dialog.classList.add('settled'), SETTLES);
    }

    isSettled() {
        return performance.now() - this.since >= SETTLES;
    }

    tick() {
        const time = remains(this.request);
        if (time <= 0) return this.over('The request timed out.');
        fill(this.time, Number.isFinite(time) ? `${left(time)} left` : '');
    }

    count() {
        fill(this.place, state.requests.length > 1 ? `· ${state.requests.length} pending in total` : '');
    }
}

function remains(request) {
    return (moment(request.expires) ?? Infinity) - Date.now();
}
