// The table: only the rows that can be seen are in the document, so ten thousand locks stay smooth.

import { clicking, el, find, known, lasts, nameOf, now, spell } from "./dom.js";

const ROW = 36; // As in style.css.
const TROUBLE = { deadlock: 0, lease_low: 1, waiting: 2 };
const WORDS = { deadlock: "deadlock", lease_low: "lease low", waiting: "contended" };

const rows = new Map();
let shown = [];
let chosen = -1;
let open = () => {};

export const idOf = (row) => JSON.stringify([row.engine, row.key]);
export const rowOf = (engine, key) => rows.get(JSON.stringify([engine, key]));

export function start(onOpen) {
  open = onOpen;
  find("scroller").addEventListener("scroll", draw, { passive: true });
  new ResizeObserver(draw).observe(find("scroller"));
  setInterval(redraw, 1000);
}

/** Takes in a message of the server. */
export function update(message) {
  if (message.all) rows.clear();
  for (const [engine, key] of message.removed) rows.delete(JSON.stringify([engine, key]));
  for (const row of message.locks) rows.set(idOf(row), row);
  options("engine", message.engines.map((engine) => engine.name));
  const hosts = new Set();
  for (const row of rows.values()) for (const holder of row.holders) if (holder.host) hosts.add(holder.host);
  options("host", [...hosts].sort().slice(0, 500));
  filter();
}

function options(id, names) {
  const select = find(id);
  const old = [...select.options].slice(1).map((option) => option.value);
  const wanted = select.value && !names.includes(select.value) ? [...names, select.value] : names;
  if (old.join("\n") === wanted.join("\n")) return;
  const value = select.value;
  select.replaceChildren(el("option", { value: "" }, "all"), ...wanted.map((name) => el("option", { value: name }, name)));
  select.value = value;
}

/** Makes sure that a filter can have this value before any lock has it. */
export function setFilter(id, value) {
  const input = find(id);
  if (input.tagName === "SELECT" && value && ![...input.options].some((option) => option.value === value)) {
    input.append(el("option", { value }, value));
  }
  input.value = value;
}

/** Applies the filters, trouble first. */
export function filter() {
  const value = (id) => find(id).value;
  const [text, engine, prefix, holder, host] =
    [value("search").toLowerCase(), value("engine"), value("prefix"), value("holder").toLowerCase(), value("host")];
  const has = (row, by) => row.holders.some(by);
  const before = shown[chosen] && idOf(shown[chosen]);
  shown = [...rows.values()].filter((row) =>
    (!engine || row.engine === engine) && row.key.startsWith(prefix)
    && (!holder || has(row, (party) => nameOf(party).toLowerCase().includes(holder)))
    && (!host || has(row, (party) => party.host === host))
    && (!text || row.key.toLowerCase().includes(text)
      || has(row, (party) => `${nameOf(party)} ${party.command ?? ""} ${party.note ?? ""}`.toLowerCase().includes(text))));
  const rank = (row) => TROUBLE[row.trouble] ?? 9;
  shown.sort((a, b) => rank(a) - rank(b) || (b.waiting ?? 0) - (a.waiting ?? 0)
    || (a.key < b.key ? -1 : a.key > b.key ? 1 : 0));
  chosen = before ? shown.findIndex((row) => idOf(row) === before) : -1;
  const count = `${shown.length} of ${rows.size} locks`;
  if (find("count").textContent !== count) find("count").textContent = count;
  find("empty").hidden = shown.length > 0;
  find("empty").textContent = rows.size ? "No lock matches the filters." : "No locks in use.";
  redraw();
}

/** Moves the choice by some rows. */
export function move(by) {
  if (!shown.length) return;
  chosen = Math.min(shown.length - 1, Math.max(0, chosen + by));
  const scroller = find("scroller");
  const top = chosen * ROW;
  if (top < scroller.scrollTop) scroller.scrollTop = top;
  const bottom = top + 2 * ROW - scroller.clientHeight;
  if (bottom > scroller.scrollTop) scroller.scrollTop = bottom;
  draw();
  find("rows").querySelector(".chosen a")?.focus({ preventScroll: true });
}

export const openChosen = () => { if (shown[chosen]) open(shown[chosen]); };

const redraw = () => { if (!clicking()) draw(); };

function draw() {
  const scroller = find("scroller");
  if (!scroller.clientHeight) return;
  const first = Math.max(0, Math.floor(scroller.scrollTop / ROW) - 10);
  const last = Math.min(shown.length, first + Math.ceil(scroller.clientHeight / ROW) + 20);
  const focused = document.activeElement?.closest?.("#rows tr")?.dataset.id;
  space("above", first);
  space("below", shown.length - last);
  scroller.querySelector("table").setAttribute("aria-rowcount", shown.length + 1);
  const before = new Map([...find("rows").children].map((tr) => [tr.dataset.id, tr.cells[0]]));
  find("rows").replaceChildren(...shown.slice(first, last).map((row, n) => {
    const tr = line(row, first + n);
    // A link that is the same as before may be about to be clicked.
    const cell = before.get(tr.dataset.id);
    if (cell?.isEqualNode(tr.cells[0])) tr.cells[0].replaceWith(cell);
    return tr;
  }));
  if (focused) {
    const again = [...find("rows").children].find((tr) => tr.dataset.id === focused);
    again?.querySelector("a").focus({ preventScroll: true });
  }
}

function space(id, count) {
  const tr = el("tr", {}, el("td", { colspan: 7 }));
  tr.firstChild.style.cssText = `padding:0;border:0;height:${count * ROW}px`;
  find(id).replaceChildren(...(count ? [tr] : []));
}

function line(row, n) {
  const holder = row.holders[0];
  const more = row.held_by > 1 ? ` +${row.held_by - 1}` : "";
  const link = el("a", { href: linkTo(row), "aria-label": `${row.key}: details` }, row.key);
  const tag = row.trouble && row.trouble !== "waiting"
    ? el("span", { class: `tag ${row.trouble}` }, WORDS[row.trouble]) : null;
  const holderText = holder ? nameOf(holder) + (holder.kept ? " (kept)" : "") + more : "nobody";
  const about = [holderText, holder?.command, holder?.note].filter(Boolean).join(": ");
  const stale = row.stale ? el("span", { class: "tag stale", title: "the engine does not answer: this was seen last" }, "stale") : null;
  const tr = el("tr", {
    "aria-rowindex": n + 2, class: [n === chosen ? "chosen" : "", row.stale ? "stale" : ""].join(" ").trim() || null,
    onclick: (event) => { if (!event.target.closest("a")) open(row); },
  },
  el("td", { title: `${row.key} (${row.engine})` }, link, tag, stale, el("span", { class: "engine" }, row.engine)),
  el("td", { class: "wide" }, known(row.kind)),
  el("td", { title: about }, el("span", {}, holderText), holder?.command ? el("span", { class: "engine" }, holder.command) : null),
  el("td", {}, holder && !row.stale ? lasts(holder) : ""),
  el("td", {}, holder && !row.stale ? lease(holder) : ""),
  el("td", { class: "wide num" }, known(row.fence)),
  el("td", { class: `num ${row.waiting ? "waiting" : ""}` }, known(row.waiting)));
  tr.dataset.id = idOf(row);
  return tr;
}

/** What is left of a lease, as a bar and in words. */
export function lease(holder) {
  if (!holder.lease_ends) return el("span", { class: "unknown", title: "no lease, or the engine cannot tell" }, "none");
  const left = Math.max(0, (Date.parse(holder.lease_ends) - now()) / 1000);
  const share = Math.min(1, left / (holder.lease || 1));
  const fill = el("i", { class: share < 0.25 ? "out" : share < 0.5 ? "low" : null });
  fill.style.width = `${Math.round(share * 100)}%`;
  const words = `${spell(left)} left of ${spell(holder.lease)}`;
  return el("span", { role: "img", "aria-label": words, title: words },
    el("span", { class: "bar" }, fill), el("span", { class: "left" }, spell(left)));
}

/** A link to a lock that can be sent to others. */
export function linkTo(row) {
  const here = new URLSearchParams(location.hash.slice(1));
  here.set("lock", row.key);
  here.set("at", row.engine);
  return `#${here}`;
}
