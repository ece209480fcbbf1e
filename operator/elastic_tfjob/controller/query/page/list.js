// A long list that renders only visible rows. Rows come from a live window that follows scrolling.
import {useEffect, useRef, useState} from "./vendor/hooks.js";
import {html} from "./html.js";
import {Empty, Status} from "./parts.js";
import {follow} from "./stream.js";

const WINDOW = 200, STEP = 50, SETTLE_MS = 120, KEPT = 2000, BEYOND = 8;

export function LiveList({path, label, columns, row, height, empty}) {
  const box = useRef(null), kept = useRef(new Map()), ticket = useRef(0);
  const [top, setTop] = useState(0), [room, setRoom] = useState(600), [offset, setOffset] = useState(0);
  const [live, setLive] = useState(null), [, redraw] = useState(0);

  useEffect(() => { kept.current.clear(); setOffset(0); box.current.scrollTop = 0; }, [path]);
  useEffect(() => {
    const found = follow(`${path}${path.includes("?") ? "&" : "?"}limit=${WINDOW}&offset=${offset}`);
    const stop = found.data.subscribe(answer => {
      if (!answer) return;
      if (kept.current.size > KEPT) kept.current.clear();
      answer.items.forEach((item, i) => kept.current.set(answer.offset + i, item));
      kept.current.total = answer.total;
      redraw(n => n + 1);
    });
    setLive(found);
    return () => { stop(); found.close(); };
  }, [path, offset]);
  useEffect(() => {
    const watch = new ResizeObserver(([entry]) => setRoom(entry.contentRect.height));
    watch.observe(box.current);
    return () => watch.disconnect();
  }, []);

  const total = kept.current.total ?? 0;
  const first = Math.max(0, Math.floor(top / height) - BEYOND);
  const last = Math.min(total, Math.ceil((top + room) / height) + BEYOND);
  useEffect(() => {
    if (first >= offset && last <= offset + WINDOW) return;
    const mine = ++ticket.current;
    setTimeout(() => {
      if (mine === ticket.current) setOffset(Math.max(0, STEP * Math.floor((first - WINDOW / 3) / STEP)));
    }, SETTLE_MS);
  }, [first, last, offset]);

  const rows = [];
  for (let index = first; index < last; index++) {
    const item = kept.current.get(index);
    rows.push(html`<div class="row" role="row" key=${index} aria-rowindex=${index + 2} style=${{top: `${index * height}px`, height: `${height}px`}}>${
      item ? row(item).map((cell, i) => html`<span role="cell" class=${columns[i][1]}>${cell}</span>`)
        : html`<span role="cell" class="blank">…</span>`}</div>`);
  }
  return html`<div class="card list"><div class="above"><span>${live?.data.value ? total.toLocaleString("en") : "…"} ${label}</span><${Status} live=${live} /></div>
    ${live?.data.value && !total ? html`<${Empty}>${empty}<//>` : null}
    <div class="table" role="table" aria-label=${label} aria-rowcount=${total + 1}>
      <div role="rowgroup"><div class="row header" role="row" aria-rowindex="1">${
        columns.map(([name, kind]) => html`<span role="columnheader" class=${kind}>${name}</span>`)}</div></div>
      <div class="scroll" role="rowgroup" tabindex="0" aria-label=${`${label}, scrollable`} ref=${box} onScroll=${event => setTop(event.currentTarget.scrollTop)}>
        <div class="all" role="presentation" style=${{height: `${total * height}px`}}>${rows}</div>
      </div></div></div>`;
}
