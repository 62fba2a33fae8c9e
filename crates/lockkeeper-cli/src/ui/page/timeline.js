// Holds and waits over time, one lane per holder.

import { el, nameOf, now, spell } from "./dom.js";

const LANE = 20;
const WIDTH = 560;
const NAMES = 150;
const MOST_LANES = 30;

/** A drawing of what `/api/v1/locks/{key}` calls the timeline. */
export function timeline(records) {
  if (!records.length) return el("p", { class: "unknown" }, "nothing seen yet");
  const end = now();
  const ended = (record) => (record.to ? Date.parse(record.to) : end);
  const lanes = new Map();
  for (const record of records) {
    const name = nameOf(record);
    if (!lanes.has(name) && lanes.size < MOST_LANES) lanes.set(name, []);
    lanes.get(name)?.push(record);
  }
  const seen = [...lanes.values()].flat();
  // The last hour, or less if there is less: an old hold must not squeeze the rest.
  const start = Math.max(end - 3600e3, Math.min(...seen.map((record) => Date.parse(record.from))));
  const x = (time) => NAMES + (Math.max(0, time - start) / Math.max(1, end - start)) * (WIDTH - NAMES);
  const drawing = el("svg", {
    class: "timeline", viewBox: `0 0 ${WIDTH} ${lanes.size * LANE + 18}`, role: "img",
    "aria-label": `Timeline of the last ${spell((end - start) / 1000)}: ${seen.length} holds and waits of ${lanes.size} holders`,
  });
  let y = 0;
  for (const [name, spans] of lanes) {
    drawing.append(el("line", { x1: 0, x2: WIDTH, y1: y + LANE, y2: y + LANE }));
    drawing.append(el("text", { x: 0, y: y + 14 }, name.length > 24 ? `${name.slice(0, 23)}…` : name));
    for (const span of spans.filter((span) => ended(span) >= start)) {
      const [from, to] = [x(Date.parse(span.from)), x(ended(span))];
      const words = `${span.what} of ${name}, ${spell((ended(span) - Date.parse(span.from)) / 1000)}, ${outcome(span)}`;
      drawing.append(el("rect", {
        class: `${span.what} ${span.outcome}`, x: from, width: Math.max(2, to - from), rx: 2,
        y: y + (span.what === "hold" ? 4 : 8), height: span.what === "hold" ? 13 : 5,
      }, el("title", {}, words)));
    }
    y += LANE;
  }
  drawing.append(el("text", { x: NAMES, y: y + 14 }, `${spell((end - start) / 1000)} ago`));
  drawing.append(el("text", { x: WIDTH, y: y + 14, "text-anchor": "end" }, "now"));
  return el("div", {}, drawing, el("p", { class: "legend" },
    el("b", { class: "h" }), "held", el("b", { class: "w" }), "waited", el("b", { class: "l" }), "expired or broken"));
}

/** How a hold or a wait ended, in words. */
export function outcome(span) {
  if (span.outcome === "broken" && span.broken_by) return `broken by ${span.broken_by}${span.why ? `: ${span.why}` : ""}`;
  return {
    now: span.what === "wait" ? "waits" : "holds", ended: "ended", expired: "lease expired", broken: "broken",
    granted: "got the lock", left: "left", unknown: "unknown: the store could not be reached",
  }[span.outcome] ?? span.outcome;
}
