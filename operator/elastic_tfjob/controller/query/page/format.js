// Formats numbers and times.
export const MISSING = "–";

export const cores = milli => milli == null ? MISSING : (milli / 1000).toLocaleString("en", {maximumFractionDigits: milli < 10_000 ? 1 : 0});
export const whole = n => n == null ? MISSING : Math.round(n).toLocaleString("en");
export const figure = n => n == null ? MISSING : n.toLocaleString("en", {maximumSignificantDigits: 3});

export function bytes(n) {
  if (n == null) return MISSING;
  const power = Math.min(Math.floor(Math.log2(Math.max(n, 1)) / 10), 4);
  return `${figure(n / 2 ** (10 * power))} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
}

export function span(seconds) {
  if (seconds == null) return MISSING;
  const s = Math.abs(Math.round(seconds));
  const parts = s < 120 ? [[s, "s"]]
    : s < 7200 ? [[Math.floor(s / 60), "min"]]
    : s < 172_800 ? [[Math.floor(s / 3600), "h"], [Math.floor(s % 3600 / 60), "min"]]
    : [[Math.floor(s / 86_400), "d"], [Math.floor(s % 86_400 / 3600), "h"]];
  return parts.filter(([n], i) => n || !i).map(([n, unit]) => `${n} ${unit}`).join(" ");
}

export const pause = s => s == null ? MISSING : s < 10 ? `${figure(s)} s` : span(s);

export const seconds = (from, to = Date.now()) => from ? (to - Date.parse(from)) / 1000 : null;

export function when(at) {
  if (!at) return MISSING;
  const s = seconds(at);
  return s >= 0 ? `${span(s)} ago` : `in ${span(s)}`;
}

export function clock(at) {
  if (!at) return MISSING;
  const day = new Date(at), now = new Date();
  const time = day.toLocaleTimeString("en-GB", {hour: "2-digit", minute: "2-digit"});
  return day.toDateString() === now.toDateString() ? time
    : `${day.toLocaleDateString("en-GB", {day: "numeric", month: "short"})} ${time}`;
}

export const total = counts => Object.values(counts).reduce((sum, n) => sum + n, 0);
// As in the operator's messages: 1 chief, 2 workers, 3 PS.
export const replicas = (n, type) => `${n} ${["Chief", "Evaluator", "Master", "Worker"].includes(type) ? type.toLowerCase() + (n === 1 ? "" : "s") : type}`;
export const size = counts => Object.entries(counts).map(([type, n]) => replicas(n, type)).join(", ") || "none";
export const path = (...parts) => parts.map(encodeURIComponent).join("/");
