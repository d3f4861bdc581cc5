// Formatting of times and sizes.

/** Milliseconds since 1970 from what the server says: RFC 3339, or seconds. */
export function moment(said) {
    if (typeof said === 'number') return said * 1000;
    const parsed = Date.parse(String(said ?? '').replace(/(\.\d{3})\d+/, '$1'));
    return Number.isNaN(parsed) ? null : parsed;
}

/** `14:05:09` of today, else with its date. */
export function clock(said) {
    const at = moment(said);
    if (at === null) return '';
    const date = new Date(at);
    const time = date.toLocaleTimeString([], { hour: '2-digit', minute: '2-digit', second: '2-digit', hour12: false });
    if (date.toDateString() === new Date().toDateString()) return time;
    return `${date.toLocaleDateString([], { day: 'numeric', month: 'short', year: 'numeric' })}, ${time}`;
}

/** `4:32`, never negative. */
export function left(milliseconds) {
    const seconds = Math.max(0, Math.round(milliseconds / 1000));
    const [hours, minutes] = [Math.floor(seconds / 3600), Math.floor(seconds / 60)];
    if (hours >= 48) return `${Math.floor(hours / 24)} days`;
    if (hours >= 1) return `${hours} h ${minutes % 60} min`;
    return `${minutes}:${String(seconds % 60).padStart(2, '0')}`;
}

export function took(milliseconds) {
    if (milliseconds === null || milliseconds === undefined) return '';
    return milliseconds < 1000 ? `${Math.round(milliseconds)} ms` : `${(milliseconds / 1000).toFixed(1)} s`;
}

export function size(bytes) {
    if (typeof bytes !== 'number') return '';
    if (bytes < 1024) return `${bytes} B`;
    const units = ['KiB', 'MiB', 'GiB', 'TiB'];
    let [value, unit] = [bytes / 1024, 0];
    while (value >= 1024 && unit < units.length - 1) [value, unit] = [value / 1024, unit + 1];
    return `${value.toFixed(value < 10 ? 1 : 0)} ${units[unit]}`;
}

export function count(number, one, many = `${one}s`) {
    return `${number} ${number === 1 ? one : many}`;
}
