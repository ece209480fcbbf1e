// All jobs, and those that wait.
import {useEffect, useState} from "./vendor/hooks.js";
import {html} from "./html.js";
import {LiveList} from "./list.js";
import {State} from "./parts.js";
import {MISSING, figure, path, size, total, when, whole} from "./format.js";

const HEIGHT = 46;
const STATES = ["Running", "Waiting", "Rescaling", "Starting", "Pending", "Suspended", "Stopping", "Restarting", "Terminating", "Succeeded", "Failed"];
const REASONS = ["as-declared", "asked", "behind", "best-effort", "bounds", "busy", "by-a-person", "converged", "cools", "cpu", "cpu-as-requested", "cpu-rank", "crowded", "deadline-met", "deadline-missed", "deadline-no-room", "dominant-share", "earliest-deadline", "first", "fits", "gain-per-replica", "gives-way", "given-room", "keeps", "later-deadline", "learned", "leaves-node", "less-room", "lost", "makes-room", "marginal-gain", "no-checkpoint", "no-deadline", "no-nodes", "no-size", "no-space-for-names", "node-full", "node-returns", "node-shrinks", "not-movable", "offered", "others-first", "packing", "pool-wants", "profile-begins", "released", "room-to-come", "short", "slower", "suspended", "time-saved", "tries-size", "unknown-speed", "unknown-steps", "waits-behind", "whole-cluster"];
const SORTS = [["name", "name"], ["-created", "newest"], ["slack_s", "least slack"], ["eta", "ends first"], ["-replicas", "largest"], ["-rescales", "most rescales"]];

export const JobLink = ({job}) => html`<a href=${`#/job/${path(job.namespace, job.name)}`} title=${`${job.namespace}/${job.name}`}><small>${job.namespace}/</small>${job.name}</a>`;

function bounds(of) {
  return Object.entries(of).map(([type, [low, high]]) => low === high ? `${low} ${type}` : `${low}–${high} ${type}`).join(", ");
}

function slack(job) {
  if (job.slack_s == null) return job.deadline ? when(job.deadline) : MISSING;
  return html`<span class=${job.slack_s < 0 ? "bad" : "good"}>${job.slack_s < 0 ? "late by" : "early by"} ${when(new Date(Date.now() + Math.abs(job.slack_s) * 1000)).slice(3)}</span>`;
}

export function Jobs() {
  const [text, setText] = useState(""), [name, setName] = useState(""), [state, setState] = useState(""), [reason, setReason] = useState(""), [sort, setSort] = useState("name");
  useEffect(() => {
    const timer = setTimeout(() => setName(text.replace(/[^\x20-\x7e]/g, "").slice(0, 253)), 200);
    return () => clearTimeout(timer);
  }, [text]);
  const asked = new URLSearchParams({sort, ...(name && {name}), ...(state && {state}), ...(reason && {reason})});
  return html`<section aria-labelledby="title"><header class="head"><h1 id="title">Jobs</h1>
    <form class="filters" onSubmit=${event => event.preventDefault()}>
      <label>Name <input type="search" value=${text} onInput=${event => setText(event.currentTarget.value)} placeholder="part of a name" /></label>
      <label>State <select value=${state} onChange=${event => setState(event.currentTarget.value)}><option value="">any</option>${STATES.map(each => html`<option>${each}</option>`)}</select></label>
      <label>Reason <select value=${reason} onChange=${event => setReason(event.currentTarget.value)}><option value="">any</option>${REASONS.map(each => html`<option>${each}</option>`)}</select></label>
      <label>Order <select value=${sort} onChange=${event => setSort(event.currentTarget.value)}>${SORTS.map(([value, word]) => html`<option value=${value}>${word}</option>`)}</select></label>
    </form></header>
    <${LiveList} path=${`jobs?${asked}`} label="jobs" height=${HEIGHT} empty="No job matches."
      columns=${[["Job", "c-job"], ["State", "c-state"], ["Replicas", "c-size"], ["Progress", "c-progress"], ["Steps/s", "c-num"], ["Ends", "c-when"], ["Slack", "c-slack"]]}
      row=${job => [
        html`<${JobLink} job=${job} />`, html`<${State} state=${job.state} />`,
        html`<span title=${size(job.replicas)}>${total(job.replicas) || MISSING}</span>`,
        job.step == null || !job.total_steps ? whole(job.step)
          : html`<progress max="1" value=${job.step / job.total_steps} aria-label=${`${whole(job.step)} of ${whole(job.total_steps)} steps`} />`,
        figure(job.steps_per_s), when(job.ended ?? job.eta), slack(job)]} />
  </section>`;
}

export function Queue() {
  return html`<section aria-labelledby="title"><header class="head"><h1 id="title">Queue</h1></header>
    <${LiveList} path="queue" label="jobs wait" height=${64} empty="Nothing waits."
      columns=${[["Place", "c-num"], ["Job", "c-job"], ["Why it waits", "c-why"], ["Since", "c-when"], ["Deadline", "c-when"], ["Size", "c-bounds"]]}
      row=${each => [each.position, html`<${JobLink} job=${each} />`, html`<span class="why" title=${each.reason}>${each.reason || MISSING}</span>`,
        when(each.waits_since), each.deadline ? when(each.deadline) : MISSING, html`<span title=${bounds(each.bounds)}>${bounds(each.bounds)}</span>`]} />
    <p class="hint">The order is the profile's. A job from behind may start first where it fits.</p></section>`;
}
