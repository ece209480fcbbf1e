// Nodes as bars of CPU: held (in part borrowed), others, free; a line marks used CPU.
import {useRef} from "./vendor/hooks.js";
import {html} from "./html.js";
import {Empty, Figure, Status, useLive, useNow} from "./parts.js";
import {cores, when, whole} from "./format.js";
import {Lines, remember} from "./charts.js";

const LOANS = {loaned: "lent", recalled: "recalled", returned: "returned"};

// A node's pool, and the stage of its loan.
function Pool({row}) {
  if (!row.pool && !row.loan) return null;
  const loan = row.loan && html` <em class=${row.loan.stage} title=${row.loan.why}>${LOANS[row.loan.stage] ?? row.loan.stage} ${when(row.loan.since)}</em>`;
  return html` <em class="pool">${row.pool || row.loan.pool}</em>${loan}`;
}

// For each pool: nodes in its own use, lent nodes and recalled nodes.
function Pools({rows}) {
  const pools = new Map();
  for (const row of rows) {
    const name = row.loan && row.loan.stage !== "returned" ? row.loan.pool : row.pool;
    if (!name) continue;
    const count = pools.get(name) ?? {own: 0, loaned: 0, recalled: 0};
    count[row.loan && row.loan.stage in count ? row.loan.stage : "own"]++;
    pools.set(name, count);
  }
  if (!pools.size) return null;
  return html`<div class="card"><h2>Pools</h2><table><thead><tr><th scope="col">Pool</th><th scope="col">In own use</th>
    <th scope="col">Lent to TFJobs</th><th scope="col">Recalled</th></tr></thead>
    <tbody>${[...pools].sort().map(([name, count]) => html`<tr key=${name}><td>${name}</td><td>${count.own}</td>
      <td>${count.loaned}</td><td>${count.recalled}</td></tr>`)}</tbody></table></div>`;
}

const percent = share => `${(100 * share).toFixed(1)} %`;

// What each team has and deserves of the cluster; empty without teams, and where this replica is not the leader.
function Teams() {
  const rows = useLive("teams?limit=200")?.data.value?.items ?? [];
  if (!rows.length) return null;
  return html`<div class="card"><h2>Teams</h2><table><thead><tr><th scope="col">Team</th><th scope="col">Share</th>
    <th scope="col">Deserved</th><th scope="col">Waiting jobs</th></tr></thead>
    <tbody>${rows.map(row => html`<tr key=${row.name}><td>${row.name}${row.below ? html` <em class="bad">below its share</em>` : null}</td>
      <td>${percent(row.share)}</td><td>${percent(row.deserved)}</td><td>${row.waiting}</td></tr>`)}</tbody></table></div>`;
}

const sum = (rows, of) => rows.reduce((all, row) => all + (row[of] ?? 0), 0);

function Bar({row}) {
  const part = milli => `${Math.min(100, 100 * milli / Math.max(1, row.cpu))}%`;
  const text = `${cores(row.held - row.lent)} of ${cores(row.cpu)} cores held as requested, ${cores(row.lent)} borrowed, `
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
      ${total(jobs, "Running jobs")}${total(queue, "Waiting jobs")}
      <${Figure} name="CPU held" value=${cores(all.held)} note=${`of ${cores(all.cpu)} cores`} />
      <${Figure} name="Borrowed" value=${cores(all.lent)} note="cores beyond requests" />
      <${Figure} name="Used" value=${cores(all.used)} note=${all.used == null ? "only in the leader's view" : "cores by TFJobs"} />
    </dl>
    <div class="card"><h2>Nodes${answer && answer.total > rows.length ? ` (first ${rows.length} of ${whole(answer.total)})` : ""}</h2>
      <p class="legend"><span><i class="held" />held</span><span><i class="lent" />borrowed</span><span><i class="others" />others</span>${
        all.used == null ? null : html`<span><b />used</span>`}</p>
      ${answer && !rows.length ? html`<${Empty}>The cluster has no nodes.<//>` : null}
      <ul class="nodes">${rows.map(row => html`<li key=${row.name}>
        <span class="name">${row.name}${row.ready ? null : html` <em class="bad">not ready</em>`}${
          row.draining ? html` <em title=${row.draining}>draining${row.gone_at ? `, gone ${when(row.gone_at)}` : ""}</em>` : row.cordoned ? html` <em>cordoned</em>`
            : row.given_up ? html` <em title="jobs leave it, so that an autoscaler removes it">given up</em>` : null}<${Pool} row=${row} /></span>
        <${Bar} row=${row} />
        <span class="numbers">${cores(row.held)} / ${cores(row.cpu)} cores · ${row.replicas} ${row.replicas === 1 ? "replica" : "replicas"}</span>
      </li>`)}</ul></div>
    <${Teams} />
    <${Pools} rows=${rows} />
    <div class="card"><h2>CPU cores since this page was opened</h2>
      <${Lines} samples=${samples.current} names=${["held", "borrowed", "used"]} /></div>
  </section>`;
}
