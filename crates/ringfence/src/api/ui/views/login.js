// Sign-in by a code or a token; a printed link needs no form.

import { el, field, fill } from '../dom.js';
import { keepToken, login } from '../api.js';

export function showLogin(why, entered) {
    const secret = el('input', {
        type: 'password',
        name: 'secret',
        autocomplete: 'off',
        spellcheck: 'false',
        required: true,
    });
    const problem = el('p', { class: 'problem', role: 'alert' }, why);
    const submit = async event => {
        event.preventDefault();
        const given = secret.value.trim().replace(/^.*#login=/, '');
        try {
            await login(given);
        } catch (error) {
            if (error.status !== 401 && error.status !== 400) return fill(problem, error.message);
            // It is not a login code; the first request shows whether it is a token.
            keepToken(given);
        }
        entered();
    };
    return el(
        'form',
        { class: 'login card', on: { submit } },
        el('h1', {}, 'Sign in'),
        problem,
        el(
            'p',
            {},
            'Open the link that ',
            el('code', {}, 'ringfence serve'),
            ' printed. It works once; restart the server or run ringfence token link for a new one.',
        ),
        field(
            'Or enter a code, the whole link, or a token',
            secret,
            'A token is stored in this browser, for this address only.',
        ),
        el('button', { type: 'submit', class: 'primary' }, 'Sign in'),
    );
}
