// One job: state and reason, sizes over time, metrics, and timeline.
import {useRef} from "./vendor/hooks.js";
import {html} from "./html.js";
import {Empty, Figure, State, Status, useLive, useNow} from "./parts.js";
import {Lines, Steps, remember} from "./charts.js";
import {MISSING, bytes, clock, figure, path, pause, size, span, when, whole} from "./format.js";

const interval = f => f.earliest ? `90 % interval: ${clock(f.earliest)} to ${f.latest ? clock(f.latest) : "open"}` : "";

function Finish({job, forecast}) {
  if (job.ended) return html`<${Figure} name="Ended" value=${when(job.ended)} note=${clock(job.ended)} />`;
  return html`<${Figure} name="Expected end" value=${when(forecast.expected)} note=${interval(forecast)} />`;
}

function Deadline({job, forecast}) {
  if (!job.deadline) return null;
  const slack = forecast.slack_s ?? job.slack_s, late = slack != null && slack < 0;
  return html`<${Figure} name="Deadline" value=${when(job.deadline)} tone=${late ? "bad" : forecast.at_risk ? "warn" : ""}
    note=${slack == null ? "no forecast yet" : late ? `late by ${span(slack)}` : `${span(slack)} to spare${forecast.at_risk ? ", at risk" : ""}`} />`;
}

// Of the replica of a type that uses most.
function Memory({job, type}) {
  const used = job.memory_used[type], limit = job.memory_limit[type], kills = job.memory_kills[type];
  return html`<${Figure} name="Memory of ${type}" value=${bytes(used)} tone=${kills ? "bad" : limit && used > 0.9 * limit ? "warn" : ""}
    note=${[limit && `of ${bytes(limit)}`, kills && `killed ${kills === 1 ? "once" : `${kills} times`}`].filter(Boolean).join(", ")} />`;
}

function Event({each}) {
  return html`<li class="k-${each.kind}"><time datetime=${each.at}>${each.at ? clock(each.at) : "pending"}</time><div><p>${each.text}</p>
    ${each.reason && html`<p class="because">${each.reason}</p>`}
    ${each.downtime_s != null || each.mode || each.lost_steps ? html`<p class="facts">${each.mode && html`<span>${each.mode}</span>`}${
      each.downtime_s != null && html`<span>paused ${pause(each.downtime_s)}</span>`}${each.lost_steps ? html`<span>${whole(each.lost_steps)} steps lost</span>` : null}</p>` : null}
  </div></li>`;
}

export function JobPage({namespace, name}) {
  const live = useLive(`jobs/${path(namespace, name)}`), now = useNow(), samples = useRef([]);
  const detail = live?.data.value;
  const head = html`<header class="head"><h1 id="title"><small>${namespace}/</small>${name} ${detail && html`<${State} state=${detail.job.state} />`}</h1><${Status} live=${live} /></header>`;
  if (!detail) return html`<section aria-labelledby="title">${head}<div class="card"><${Empty}>${live?.why.value || "Loading…"}<//></div></section>`;
  const {job, forecast, timeline, position} = detail;
  const step = detail.live?.step ?? job.step, rate = detail.live?.steps_per_s ?? job.steps_per_s, loss = detail.live?.loss ?? null;
  if (live.state.value === "live") remember(samples.current, now, [rate, loss]);
  return html`<section aria-labelledby="title">${head}
    ${job.reason && html`<p class="reason">${job.reason}</p>`}
    ${job.growth && html`<p class="reason">${job.growth}</p>`}
    ${job.problems.length ? html`<ul class="problems">${job.problems.map(each => html`<li>${each}</li>`)}</ul>` : null}
    ${step != null && job.total_steps ? html`<div class="progress"><progress max="1" value=${step / job.total_steps} aria-label="Training progress" />
      <span>${whole(step)} of ${whole(job.total_steps)} steps</span></div>` : null}
    <dl class="figures">
      ${position != null && html`<${Figure} name="Place in the queue" value=${position} note=${job.waits_since ? `since ${when(job.waits_since)}` : ""} />`}
      <${Figure} name="Size" tone="wide" value=${size(job.replicas)} note=${job.elastic ? "elastic" : "fixed"} />
      ${Object.keys(job.orders).length ? html`<${Figure} name="Nodes ordered for" tone="wide" value=${size(job.orders)} note="from an autoscaler" />` : null}
      <${Figure} name="Steps/s" value=${figure(rate)} note=${detail.live ? "now" : job.figures_at ? `as of ${when(job.figures_at)}` : ""} />
      <${Figure} name="Loss" value=${detail.live?.loss_problem || figure(loss)} note=${detail.live ? "" : "only in the leader's view"} />
      <${Figure} name="Checkpoint" value=${detail.live?.checkpoint_at ? when(detail.live.checkpoint_at) : MISSING} note=${
        detail.live?.checkpoint_step != null ? `step ${whole(detail.live.checkpoint_step)}` : ""} />
      <${Finish} job=${job} forecast=${forecast} /><${Deadline} job=${job} forecast=${forecast} />
      <${Figure} name="Rescales" value=${job.rescales} note=${job.last_downtime_s == null ? "" : `last pause ${pause(job.last_downtime_s)}`} />
      ${[...new Set([...Object.keys(job.memory_used), ...Object.keys(job.memory_kills)])].sort().map(type => html`<${Memory} job=${job} type=${type} />`)}
    </dl>
    <div class="card"><h2>Size over time</h2><${Steps} detail=${detail} now=${now} /></div>
    <div class="pair"><div class="card"><h2>Timeline</h2><ol class="events">${timeline.slice().reverse().map(each => html`<${Event} each=${each} />`)}</ol></div>
    <div class="card"><h2>Training since this page was opened</h2><${Lines} samples=${samples.current} names=${["steps/s"]} />
      <${Lines} samples=${samples.current} names=${["loss"]} from=${1} /></div></div>
  </section>`;
}
