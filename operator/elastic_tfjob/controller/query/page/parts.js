// Small pieces that several views share.
import {useEffect, useState} from "./vendor/hooks.js";
import {html} from "./html.js";
import {follow} from "./stream.js";

const WORDS = {connecting: "Connecting", live: "Live", polling: "Every few seconds", lost: "Reconnecting", refused: "Not allowed", missing: "Not found", wrong: "Wrong request"};

export function useLive(path) {
  const [live, setLive] = useState(null);
  useEffect(() => {
    const found = follow(path);
    setLive(found);
    return () => found.close();
  }, [path]);
  return live;
}

// What goes on with a stream. `aria-live` says it once, where it is not live.
export function Status({live}) {
  const state = live?.state.value ?? "connecting";
  return html`<p class="status ${state}" role="status"><span class="lamp" aria-hidden="true"></span>${WORDS[state]}${
    live && state !== "live" && live.why.value ? html`<span class="why">: ${live.why.value}</span>` : null}</p>`;
}

export const State = ({state}) => html`<span class="state s-${state.toLowerCase()}">${state}</span>`;

export const Empty = ({children}) => html`<p class="empty">${children}</p>`;

export const Figure = ({name, value, note, tone}) => html`<div class="figure ${tone ?? ""}"><dt>${name}</dt><dd>${value}${
  note ? html`<small>${note}</small>` : null}</dd></div>`;

// Now, every second, for "3 s ago".
export function useNow() {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => { if (!document.hidden) setNow(Date.now()); }, 1000);
    return () => clearInterval(timer);
  }, []);
  return now;
}
