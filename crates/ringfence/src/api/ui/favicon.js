// Favicon with the number of pending requests.

const POSTS = Array.from({ length: 12 }, (_, step) => {
    const [x, y] = [Math.sin((step * Math.PI) / 6), -Math.cos((step * Math.PI) / 6)];
    return `M${32 + x * 18} ${32 + y * 18}L${32 + x * 28} ${32 + y * 28}`;
}).join('');

export function showFavicon(waits) {
    const icon = document.getElementById('favicon');
    if (waits === 0) {
        icon.href = '/page/logo.svg';
        return;
    }
    const number = waits > 9 ? '9+' : String(waits);
    const drawing =
        `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 64 64"><path d="${POSTS}" stroke="#2f7d62" ` +
        'stroke-width="5" stroke-linecap="round"/><circle cx="36" cy="36" r="25" fill="#b4570b"/><text x="36" y="49" ' +
        `font-family="sans-serif" font-weight="700" font-size="36" text-anchor="middle" fill="#fff">${number}</text></svg>`;
    icon.href = `data:image/svg+xml,${encodeURIComponent(drawing)}`;
}
