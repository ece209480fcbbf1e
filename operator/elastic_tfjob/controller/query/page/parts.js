// Small components shared by several views.
import {useEffect, useState} from "./vendor/hooks.js";
import {html} from "./html.js";
import {follow} from "./stream.js";

const WORDS = {connecting: "Connecting", live: "Live", polling: "Updates every few seconds", lost: "Reconnecting", refused: "Not allowed", missing: "Not found", wrong: "Invalid request"};

export function useLive(path) {
  const [live, setLive] = useState(null);
  useEffect(() => {
    const found = follow(path);
    setLive(found);
    return () => found.close();
  }, [path]);
  return live;
}

// The state of a stream, with the reason if it is not live.
export function Status({live}) {
  const state = live?.state.value ?? "connecting";
  return html`<p class="status ${state}" role="status"><span class="lamp" aria-hidden="true"></span>${WORDS[state]}${
    live && state !== "live" && live.why.value ? html`<span class="why">: ${live.why.value}</span>` : null}</p>`;
}

export const State = ({state}) => html`<span class="state s-${state.toLowerCase()}">${state}</span>`;

export const Empty = ({children}) => html`<p class="empty">${children}</p>`;

export const Figure = ({name, value, note, tone}) => html`<div class="figure ${tone ?? ""}"><dt>${name}</dt><dd>${value}${
  note ? html`<small>${note}</small>` : null}</dd></div>`;

// The current time, updated every second.
export function useNow() {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => { if (!document.hidden) setNow(Date.now()); }, 1000);
    return () => clearInterval(timer);
  }, []);
  return now;
}
