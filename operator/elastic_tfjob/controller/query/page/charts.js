// The step chart of a job's sizes (SVG), and line charts over time (uPlot).
import {useEffect, useRef} from "./vendor/hooks.js";
import {html} from "./html.js";
import {clock, pause, size} from "./format.js";

const MOST_SAMPLES = 1800;
const second = at => new Date(at).toLocaleTimeString("en-GB");
const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Adds values at `now` (Unix time in ms) every 2 s, and drops the oldest, because a page may stay open for weeks.
export function remember(samples, now, values) {
  if (samples.length && now / 1000 - samples.at(-1)[0] < 1.9) return;
  samples.push([now / 1000, ...values]);
  if (samples.length > MOST_SAMPLES) samples.splice(0, samples.length - MOST_SAMPLES);
}

// `names`: the lines' names. Their values start at index `from` of each sample.
export function Lines({samples, names, from = 0}) {
  const box = useRef(null), plot = useRef(null);
  const columns = [0, ...names.map((_, i) => 1 + from + i)].map(i => samples.map(sample => sample[i]));
  useEffect(() => {
    const place = box.current;
    if (!place) return undefined;  // the view was left before its first effect
    const make = () => {
      plot.current?.destroy();
      const axis = {stroke: colour("--quiet"), grid: {stroke: colour("--line"), width: 1}, ticks: {show: false}, font: "12px system-ui"};
      plot.current = new uPlot({
        width: place.clientWidth, height: 170, cursor: {y: false}, legend: {live: true},
        scales: {x: {range: chart => {
          const times = chart.data[0], first = times[0] ?? Date.now() / 1000;
          return [first, Math.max(times.at(-1) ?? 0, first + 60)];
        }}, y: {range: (_, low, high) => [Math.min(0, low ?? 0), (high || 1) * 1.1]}},
        axes: [{...axis, space: 90, values: (_, ticks) => ticks.map(at => second(at * 1000))}, {...axis, size: 56}],
        series: [{value: (_, at) => at == null ? "–" : second(at * 1000)}, ...names.map((name, i) => ({label: name, stroke: colour(`--c${from + i + 1}`), width: 2, points: {show: false},
          value: (_, y) => y == null ? "–" : y.toLocaleString("en", {maximumFractionDigits: 2})}))],
      }, columns, place);
    };
    make();
    const resized = new ResizeObserver(() => plot.current.setSize({width: place.clientWidth, height: 170}));
    resized.observe(place);
    const themed = new MutationObserver(make), dark = matchMedia("(prefers-color-scheme: dark)");
    themed.observe(document.documentElement, {attributes: true, attributeFilter: ["data-theme"]});
    dark.addEventListener("change", make);
    return () => { resized.disconnect(); themed.disconnect(); dark.removeEventListener("change", make); plot.current.destroy(); };
  }, []);
  useEffect(() => { plot.current?.setData(columns); });
  return html`<div class="plot" ref=${box} aria-hidden="true" />`;
}

const W = 860, H = 230, LEFT = 34, RIGHT = 12, TOP = 26, BOTTOM = 26;

// Sizes by type, with marks for events and the forecast.
export function Steps({detail, now}) {
  const {sizes, timeline, forecast, job} = detail;
  if (!sizes.length) return html`<p class="empty">The job has had no size yet.</p>`;
  const begin = Date.parse(sizes[0].at), today = job.ended ? Date.parse(job.ended) : now;
  const ahead = [forecast.latest ?? forecast.expected, forecast.deadline].filter(Boolean).map(Date.parse)
    .filter(at => at > today && at - begin < 4 * Math.max(60_000, today - begin));
  const end = Math.max(today, ...ahead, begin + 1000);
  const types = [...new Set(sizes.flatMap(each => Object.keys(each.replicas)))].filter(type => type !== "Chief" && type !== "Evaluator").sort().reverse();
  const shown = types.length ? types : ["Chief"];
  const most = Math.max(1, ...sizes.flatMap(each => shown.map(type => each.replicas[type] ?? 0)));
  const x = at => LEFT + (W - LEFT - RIGHT) * (Math.min(end, Math.max(begin, at)) - begin) / (end - begin);
  const y = n => H - BOTTOM - (H - TOP - BOTTOM) * n / most;
  const line = type => sizes.map((each, i) => {
    const until = i + 1 < sizes.length ? Date.parse(sizes[i + 1].at) : today;
    return `${i ? "L" : "M"}${x(Date.parse(each.at))} ${y(each.replicas[type] ?? 0)}H${x(until)}`;
  }).join("");
  const every = Math.max(1, Math.ceil(most / 4));
  const levels = Array.from({length: Math.floor(most / every) + 1}, (_, i) => i * every);
  const marks = timeline.filter(each => each.at && ["rescaled", "rescaling", "stopped", "refused", "resumed"].includes(each.kind) && Date.parse(each.at) >= begin);
  const ticks = Array.from({length: 5}, (_, i) => begin + (end - begin) * i / 4);
  const told = `Sizes from ${clock(sizes[0].at)}: ${sizes.map(each => size(each.replicas)).slice(-6).join("; then ")}`;
  return html`<div class="steps"><p class="legend">${shown.map((type, i) => html`<span><i class="l${i + 1}" />${type}</span>`)}
    <span><i class="mark" />rescale</span>${forecast.expected && html`<span><i class="interval" />expected end, 90 % interval</span>`}${
      forecast.deadline && html`<span><i class="deadline" />deadline</span>`}</p>
  <div class="wide" tabindex="0" role="region" aria-label="Chart of job size"><svg viewBox="0 0 ${W} ${H}" role="img" aria-label=${told}>
    ${levels.map(n => html`<g class="grid"><line x1=${LEFT} x2=${W - RIGHT} y1=${y(n)} y2=${y(n)} /><text x=${LEFT - 8} y=${y(n) + 4} text-anchor="end">${n}</text></g>`)}
    ${ticks.map((at, i) => html`<text class="tick" x=${x(at)} y=${H - 6} text-anchor=${["start", "middle", "middle", "middle", "end"][i]}>${clock(at)}</text>`)}
    ${forecast.expected && Date.parse(forecast.expected) <= end && html`<g class="expected">
      <rect x=${x(Date.parse(forecast.earliest))} width=${Math.max(2, x(Date.parse(forecast.latest ?? forecast.expected)) - x(Date.parse(forecast.earliest)))} y=${TOP} height=${H - TOP - BOTTOM} />
      <line x1=${x(Date.parse(forecast.expected))} x2=${x(Date.parse(forecast.expected))} y1=${TOP} y2=${H - BOTTOM} /></g>`}
    ${end > today && html`<line class="now" x1=${x(today)} x2=${x(today)} y1=${TOP} y2=${H - BOTTOM} />`}
    ${forecast.deadline && Date.parse(forecast.deadline) <= end && html`<line class="due" x1=${x(Date.parse(forecast.deadline))} x2=${x(Date.parse(forecast.deadline))} y1=${TOP - 10} y2=${H - BOTTOM} />`}
    ${shown.map((type, i) => html`<path class="line l${i + 1}" d=${line(type)} />`)}
    ${marks.map(each => html`<g class="marker k-${each.kind}"><title>${`${clock(each.at)}: ${each.text}${each.reason ? `: ${each.reason}` : ""}`}</title>
      <line x1=${x(Date.parse(each.at))} x2=${x(Date.parse(each.at))} y1=${TOP - 8} y2=${H - BOTTOM} /><circle cx=${x(Date.parse(each.at))} cy=${TOP - 10} r="5" />
      ${each.downtime_s != null && html`<text x=${x(Date.parse(each.at)) + 8} y=${TOP - 7}>${pause(each.downtime_s)}</text>`}</g>`)}
  </svg></div></div>`;
}
