// Fields for a JSON value, made from its JSON Schema.
//
// What the schema says plainly gets a field of its own; everything else is written as JSON. Nothing is left out: a
// value that came with keys that the schema does not have keeps them.
//
// Not here: checking against the schema. The server does that, and says what is wrong.

import { el, field, ticked } from './dom.js';
import { get, query } from './api.js';
import { state } from './state.js';
import { misleads, visible } from './visible.js';

/** The schema of a tool, where this server offers it in a dialect that it has by this name. */
export async function schemaOf(tool) {
    try {
        const { tools } = await get(query('/v1/tools', { workspace: state.workspace, format: 'full' }));
        return tools.find(one => one.name === tool)?.parameters ?? null;
    } catch {
        return null;
    }
}

/** A form for an object: `{element, value()}`; `value` throws a readable error where a field is not JSON. */
export function schemaForm(schema, initial = {}) {
    const fields = [];
    const required = new Set(schema?.required ?? []);
    // What is needed comes first, in the order of the schema; a name stands once.
    const names = new Set([...required, ...Object.keys(initial), ...Object.keys(schema?.properties ?? {})]);
    for (const name of names)
        fields.push(makeField(name, schema?.properties?.[name] ?? {}, required.has(name), initial));
    const [shown, folded] = [fields.filter(made => made.first), fields.filter(made => !made.first)];
    const element = el('div', { class: 'form' }, ...shown.map(made => made.element));
    if (folded.length > 0) {
        element.append(
            el(
                'details',
                { class: 'more-fields' },
                el('summary', {}, `${folded.length} optional`),
                ...folded.map(made => made.element),
            ),
        );
    }
    if (names.size === 0) element.append(el('p', { class: 'quiet-note' }, 'This takes no arguments.'));
    return {
        element,
        value() {
            const value = {};
            for (const made of fields) {
                const given = made.read();
                if (given !== undefined) value[made.name] = given;
            }
            return value;
        },
    };
}

function makeField(name, schema, isRequired, initial) {
    const given = name in initial ? initial[name] : undefined;
    const kind = kindOf(schema, given);
    const { control, read } = CONTROLS[kind]({ name, schema, given, isRequired });
    const label = [name, isRequired ? el('span', { class: 'required' }, ' required') : null];
    const element = kind === 'flag' ? flagField(name, control, about(schema)) : field(label, control, about(schema));
    if (control.tagName === 'TEXTAREA') element.append(unseen(control));
    return { name, element, read, first: isRequired || given !== undefined };
}

function about({ description }) {
    return description ? ticked(description.replaceAll('\n', ' ')) : null;
}

function flagField(name, control, hint) {
    const made = field(name, control, hint);
    made.classList.add('flag');
    return made;
}

function kindOf(schema, given) {
    const types = [schema.type ?? []].flat().filter(type => type !== 'null');
    const of = type => types.length === 1 && types[0] === type;
    if (schema.enum && schema.enum.every(one => typeof one === 'string')) return 'choice';
    if (of('boolean') && typeof (given ?? true) === 'boolean') return 'flag';
    if ((of('integer') || of('number')) && typeof (given ?? 0) === 'number') return 'number';
    if (of('string') && typeof (given ?? '') === 'string') return 'text';
    if (types.length === 0 && typeof given === 'string' && !schema.anyOf) return 'text';
    return 'json';
}

const CONTROLS = {
    text({ name, given, isRequired }) {
        const long = /content|text|code|patch|prompt|body/i.test(name) || (given ?? '').includes('\n');
        const control = el('textarea', {
            name,
            rows: long ? 8 : 1,
            spellcheck: 'false',
            value: given ?? '',
            class: 'text',
        });
        const start = control.value;
        // An unchanged field returns its original value: a browser changes the line ends of what it shows. An empty
        // optional text is omitted; an empty required text is sent.
        const read = () => (control.value === start ? (given ?? (isRequired ? '' : undefined)) : control.value);
        return { control, read };
    },
    number({ name, schema, given }) {
        const control = el('input', {
            type: 'number',
            name,
            min: schema.minimum,
            max: schema.maximum,
            value: given ?? '',
            step: [schema.type].flat().includes('integer') ? 1 : 'any',
        });
        return { control, read: () => (control.value === '' ? undefined : Number(control.value)) };
    },
    flag({ name, schema, given }) {
        const start = given ?? schema.default ?? false;
        const control = el('input', { type: 'checkbox', name, checked: start });
        return {
            control,
            read: () => (control.checked === start && given === undefined ? undefined : control.checked),
        };
    },
    choice({ name, schema, given, isRequired }) {
        const blank = isRequired ? [] : [el('option', { value: '' }, '(default)')];
        const control = el('select', { name }, ...blank, ...schema.enum.map(one => el('option', { value: one }, one)));
        control.value = given ?? (isRequired ? schema.enum[0] : '');
        return { control, read: () => (control.value === '' ? undefined : control.value) };
    },
    json({ name, given }) {
        const start = given === undefined ? '' : JSON.stringify(given, null, 2);
        const control = el('textarea', {
            name,
            rows: Math.min(10, start.split('\n').length + 1),
            spellcheck: 'false',
            class: 'text',
            placeholder: 'JSON',
            value: start,
        });
        const read = () => {
            if (control.value === start) return given;
            if (control.value.trim() === '') return undefined;
            try {
                return JSON.parse(control.value);
            } catch (error) {
                control.focus();
                throw new Error(`${name} is not JSON: ${error.message}`);
            }
        };
        return { control, read };
    },
};

/** What a field cannot show: the same text with every character to be seen, while there is a difference. */
function unseen(control) {
    const shown = el('pre', { class: 'unseen', hidden: true });
    const look = () => {
        shown.hidden = !misleads(control.value);
        if (!shown.hidden) shown.textContent = `Contains invisible characters:\n${visible(control.value)}`;
    };
    control.addEventListener('input', look);
    look();
    return shown;
}
