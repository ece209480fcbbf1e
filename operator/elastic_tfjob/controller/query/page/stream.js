// One live answer of the query API: the whole answer, then its changes. It reconnects by itself after any failure.
// EventSource cannot send a header with a token, so the stream is read with fetch.
import {batch, signal} from "./vendor/signals-core.js";

const SILENT_MS = 40_000;   // the operator sends at least a comment every 15 s
const HIDDEN_MS = 60_000;   // a hidden page closes its stream
const FIRST_MS = 500, MOST_MS = 15_000;
const MOST_CHARS = 32 << 20; // of one event

// In memory only: after a reload the user signs in again.
export const token = signal("");
export const asked = signal("");  // why sign-in is needed; empty: it is not

const headers = more => ({...(token.value ? {"X-Elastic-Tfjob-Token": token.value} : {}), ...more});

export function patched(data, delta) {
  const {items, ...rest} = delta;
  const found = {...data, ...rest};
  if (Array.isArray(items)) found.items = items;
  else if (items) {
    found.items = data.items.slice();
    for (const [index, row] of Object.entries(items)) found.items[Number(index)] = row;
  }
  return found;
}

async function problem(response) {
  try { return (await response.json()).error.message; } catch { return `${response.status} ${response.statusText}`; }
}

// The connection's state after an answer with this error status.
export function stateOf(status) {
  if (status >= 500) return "lost";
  return {401: "refused", 403: "refused", 404: "missing", 410: "missing"}[status] ?? "wrong";
}

// `path`: a path below api/v1/. Returns {data, state, why, close()}; state: connecting, live, polling, lost, refused, missing, wrong.
export function follow(path) {
  const data = signal(null), state = signal("connecting"), why = signal("");
  let last = "", closed = false, abort = null, wake = null, wait = FIRST_MS, watchdog = 0, hidden = 0;

  const say = (now, because = "") => batch(() => { state.value = now; why.value = because; });
  const pause = ms => new Promise(done => {
    const timer = setTimeout(done, ms);
    wake = () => { clearTimeout(timer); done(); };
  });
  const heard = () => { clearTimeout(watchdog); watchdog = setTimeout(() => abort?.abort(), SILENT_MS); };

  function take(name, id, text) {
    if (name === "snapshot") data.value = JSON.parse(text);
    else if (name === "delta" && data.value) data.value = patched(data.value, JSON.parse(text));
    else if (name === "refused") {
      say("refused", JSON.parse(text).error.message);
      return;
    }
    if (id) last = id;
    if (state.value !== "live") say("live");
    wait = FIRST_MS;
  }

  async function read(response) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const {done, value} = await reader.read();
      if (done) return;
      heard();
      rest += value;
      if (rest.length > MOST_CHARS) throw new Error("an event is too long");
      for (let end; (end = rest.indexOf("\n\n")) >= 0; rest = rest.slice(end + 2)) {
        const said = {event: "", id: "", data: ""};
        for (const line of rest.slice(0, end).split("\n")) {
          const at = line.indexOf(": ");
          if (at > 0) said[line.slice(0, at)] = line.slice(at + 2);
        }
        if (said.event) take(said.event, said.id, said.data);
      }
    }
  }

  async function once() {
    abort = new AbortController();
    heard();
    const more = last && data.value ? {"Last-Event-ID": last} : {};
    let response = await fetch(`api/v1/stream/${path}`, {headers: headers(more), signal: abort.signal, cache: "no-store"});
    if (response.ok) {
      await read(response);
      return;
    }
    const again = 1000 * Number(response.headers.get("Retry-After") || 0);
    const because = await problem(response);
    if (response.status === 401) {
      asked.value = because;
      say("refused", because);
    } else if (response.status === 503 || response.status === 429) {  // the limit of streams is reached: poll instead
      response = await fetch(`api/v1/${path}`, {headers: headers(), signal: abort.signal, cache: "no-store"});
      if (response.ok) {
        data.value = await response.json();
        last = "";
        say("polling", because);
      } else say("lost", because);
    } else say(stateOf(response.status), because);
    wait = Math.max(wait, again);
  }

  async function run() {
    while (!closed) {
      if (document.hidden && hidden && Date.now() - hidden > HIDDEN_MS) {
        await new Promise(done => { wake = done; });
        continue;
      }
      try {
        await once();
      } catch (error) {
        if (!closed && !document.hidden) say("lost", "the operator does not answer");
      }
      clearTimeout(watchdog);
      if (!closed) await pause(wait * (0.75 + Math.random() / 2));
      wait = Math.min(MOST_MS, wait * 2);
    }
  }

  function seen() {
    if (document.hidden) {
      hidden = Date.now();
      setTimeout(() => { if (document.hidden && !closed) abort?.abort(); }, HIDDEN_MS + 1000);
    } else {
      hidden = 0;
      wait = FIRST_MS;
      wake?.();
    }
  }

  const retry = token.subscribe(() => { if (state.value === "refused") { wait = FIRST_MS; wake?.(); } });
  document.addEventListener("visibilitychange", seen);
  run();
  return {data, state, why, close() {
    closed = true;
    retry();
    document.removeEventListener("visibilitychange", seen);
    clearTimeout(watchdog);
    abort?.abort();
    wake?.();
  }};
}
