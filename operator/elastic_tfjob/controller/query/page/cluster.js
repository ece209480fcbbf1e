// Nodes as bars of CPU: held, of that lent, others, free; a line for what is used.
import {useRef} from "./vendor/hooks.js";
import {html} from "./html.js";
import {Empty, Figure, Status, useLive, useNow} from "./parts.js";
import {cores, whole} from "./format.js";
import {Lines, remember} from "./charts.js";

const sum = (rows, of) => rows.reduce((all, row) => all + (row[of] ?? 0), 0);

function Bar({row}) {
  const part = milli => `${Math.min(100, 100 * milli / Math.max(1, row.cpu))}%`;
  const text = `${cores(row.held - row.lent)} of ${cores(row.cpu)} cores held as requested, ${cores(row.lent)} lent, `
    + `${cores(row.others)} held by others, ${cores(row.free)} free`
    + (row.used == null ? "" : `, ${cores(row.used)} used`);
  return html`<div class="bar" role="img" aria-label=${text} title=${text}>
    <i class="held" style=${{width: part(row.held - row.lent)}} /><i class="lent" style=${{width: part(row.lent)}} /><i
      class="others" style=${{width: part(row.others)}} />
    ${row.used == null ? null : html`<b style=${{left: part(row.used)}} />`}
  </div>`;
}

export function Cluster() {
  const nodes = useLive("nodes?limit=200"), jobs = useLive("jobs?limit=1&state=Running,Rescaling,Starting,Restarting");
  const queue = useLive("queue?limit=1"), now = useNow();
  const samples = useRef([]);
  const answer = nodes?.data.value;
  const rows = answer?.items ?? [];
  const all = {cpu: sum(rows, "cpu"), held: sum(rows, "held"), lent: sum(rows, "lent"), others: sum(rows, "others"),
    used: rows.some(row => row.used != null) ? sum(rows, "used") : null};
  if (nodes?.state.value === "live") remember(samples.current, now, [all.held / 1000, all.lent / 1000, all.used == null ? null : all.used / 1000]);
  const total = (live, word) => html`<${Figure} name=${word} value=${live?.data.value ? whole(live.data.value.total) : "…"} />`;
  return html`<section aria-labelledby="title"><header class="head"><h1 id="title">Cluster</h1><${Status} live=${nodes} /></header>
    <dl class="figures">
      ${total(jobs, "Jobs that train")}${total(queue, "Jobs that wait")}
      <${Figure} name="CPU held" value=${cores(all.held)} note=${`of ${cores(all.cpu)} cores`} />
      <${Figure} name="Lent of that" value=${cores(all.lent)} note="beyond requests" />
      <${Figure} name="Used" value=${cores(all.used)} note=${all.used == null ? "only the leader knows" : "cores, by training"} />
    </dl>
    <div class="card"><h2>Nodes${answer && answer.total > rows.length ? ` (the first ${rows.length} of ${whole(answer.total)})` : ""}</h2>
      <p class="legend"><span><i class="held" />held</span><span><i class="lent" />lent</span><span><i class="others" />others</span>${
        all.used == null ? null : html`<span><b />used</span>`}</p>
      ${answer && !rows.length ? html`<${Empty}>There are no nodes.<//>` : null}
      <ul class="nodes">${rows.map(row => html`<li key=${row.name}>
        <span class="name">${row.name}${row.ready ? null : html` <em class="bad">not ready</em>`}${
          row.cordoned ? html` <em>cordoned</em>` : null}</span>
        <${Bar} row=${row} />
        <span class="numbers">${cores(row.held)} / ${cores(row.cpu)} cores · ${row.replicas} ${row.replicas === 1 ? "replica" : "replicas"}</span>
      </li>`)}</ul></div>
    <div class="card"><h2>Cores since this page was opened</h2>
      <${Lines} samples=${samples.current} names=${["held", "lent", "used"]} /></div>
  </section>`;
}
