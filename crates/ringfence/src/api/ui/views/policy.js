// Policy view: rules by layer in order of precedence, persistent grants, and how a call would be decided.

import { badge, button, el, field, fill } from '../dom.js';
import { confirm, empty, loading, trying } from '../ask.js';
import { get, path, post, query, remove } from '../api.js';
import { schemaForm } from '../form.js';
import { may, state } from '../state.js';
import { clock } from '../time.js';

export function show(place) {
    const [layers, grants, explain] = [el('div', {}), el('div', {}), el('div', {})];
    fill(
        place,
        el('h1', {}, 'Policy'),
        el('section', {}, el('h2', { class: 'section' }, 'Layers, in order of precedence'), layers),
        el('section', {}, el('h2', { class: 'section' }, 'Test a call'), explain),
        may('admin') ? el('section', {}, el('h2', { class: 'section' }, 'Persistent grants'), grants) : null,
    );
    loading(layers, showLayers);
    loading(explain, showExplain);
    if (may('admin')) loading(grants, () => showGrants(grants));
}

async function showLayers() {
    const { layers = [] } = await get(query('/v1/policy', { workspace: state.workspace }));
    return layers.map(({ layer, remark, rules }) =>
        el(
            'article',
            { class: 'card layer' },
            el('h3', {}, layer, ' ', el('span', { class: 'facts' }, (remark ?? '').replace(/^:\s*/, ''))),
            rules.length === 0
                ? el('p', { class: 'quiet-note' }, 'no rules')
                : el('ol', { class: 'rules' }, ...rules.map(ruleRow)),
        ),
    );
}

function ruleRow({ rule, source }) {
    const decision = /decision = "(\w+)"/.exec(rule)?.[1];
    return el(
        'li',
        {},
        decision ? badge(decision, { allow: 'good', ask: 'wait', deny: 'bad' }[decision]) : null,
        el('code', {}, rule),
        source ? el('span', { class: 'facts' }, source) : null,
    );
}

/** A rule as it is written in config files. */
function ruleText(rule) {
    if (typeof rule === 'string') return rule;
    const fields = Object.entries(rule).filter(([, value]) => value !== null && value !== false && value?.length !== 0);
    return `{ ${fields.map(([name, value]) => `${name} = ${JSON.stringify(value)}`).join(', ')} }`;
}

async function showGrants(place) {
    const { grants = [] } = await get('/v1/grants');
    if (grants.length === 0) return empty('No persistent grants. “Remember” in an approval adds a rule here.');
    const revoke = grant => async () => {
        const yes = await confirm({
            title: 'Revoke this grant?',
            body: [el('pre', { class: 'code' }, ruleText(grant.rule))],
            yes: 'Revoke',
            danger: true,
        });
        if (yes && (await trying(() => remove(path('grants', grant.id))))) loading(place, () => showGrants(place));
    };
    return el(
        'ul',
        { class: 'rows' },
        ...grants.map(grant =>
            el(
                'li',
                {},
                el(
                    'div',
                    { class: 'row' },
                    el(
                        'span',
                        { class: 'row-main' },
                        el('code', {}, ruleText(grant.rule)),
                        el(
                            'span',
                            { class: 'facts' },
                            grant.by ? `by ${grant.by} · ` : '',
                            grant.until ? `until ${clock(grant.until)}` : '',
                        ),
                    ),
                    el('span', { class: 'row-side' }, button('Revoke', revoke(grant))),
                ),
            ),
        ),
    );
}

async function showExplain() {
    const { tools } = await get(query('/v1/tools', { workspace: state.workspace, format: 'full' }));
    const chooser = el('select', { name: 'tool' }, ...tools.map(tool => el('option', { value: tool.name }, tool.name)));
    const [place, said] = [el('div', {}), el('div', { 'aria-live': 'polite' })];
    let form = null;
    const choose = () => {
        form = schemaForm(tools.find(tool => tool.name === chooser.value)?.parameters);
        fill(place, form.element);
        fill(said);
    };
    chooser.addEventListener('change', choose);
    choose();
    const submit = event => {
        event.preventDefault();
        trying(async () => {
            const { decision, text } = await post('/v1/policy/explain', {
                workspace: state.workspace,
                tool: chooser.value,
                arguments: form.value(),
            });
            fill(
                said,
                el(
                    'div',
                    { class: 'verdict' },
                    badge(decision ?? 'fails before the decision', { allow: 'good', ask: 'wait', deny: 'bad' }[decision]),
                    el('pre', { class: 'code' }, text),
                ),
            );
        });
    };
    return el(
        'form',
        { class: 'card', on: { submit } },
        field('Tool', chooser),
        place,
        el('div', { class: 'actions' }, el('button', { type: 'submit' }, 'Explain')),
        said,
    );
}
