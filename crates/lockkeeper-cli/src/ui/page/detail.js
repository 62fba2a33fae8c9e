// Everything about one lock.

import { clicking, el, find, known, lasts, moment, nameOf, now, spell } from "./dom.js";
import { get } from "./live.js";
import { lease } from "./table.js";
import { outcome, timeline } from "./timeline.js";

let current = null;
let asked = 0;

export const isOpen = () => current !== null;
export const openLock = () => current;

/** Shows a lock; `actions` gives the buttons for what may be changed. */
export async function show(engine, key, actions) {
  const first = !current || current.engine !== engine || current.key !== key;
  current = { engine, key };
  const turn = ++asked;
  let answer;
  try {
    answer = await get(`/api/v1/locks/${encodeURIComponent(key)}?engine=${encodeURIComponent(engine)}`);
  } catch (error) {
    answer = { locks: [], error: error.message };
  }
  if (turn !== asked || !current || (clicking() && !first)) return;
  const panel = find("detail");
  const focused = panel.contains(document.activeElement) ? document.activeElement.id : "";
  const buttons = first ? null : panel.querySelector(".buttons");
  panel.replaceChildren(...content(engine, key, answer, actions));
  // They are the same as before, and one of them may be about to be clicked.
  if (buttons) panel.querySelector(".buttons")?.replaceWith(buttons);
  panel.hidden = false;
  if (focused) find(focused)?.focus();
  if (first) panel.focus({ preventScroll: true });
}

export function close() {
  current = null;
  asked++;
  find("detail").hidden = true;
}

function content(engine, key, answer, actions) {
  const lock = answer.locks[0];
  const head = el("header", {}, el("h2", {}, key),
    el("button", { id: "close", type: "button", "aria-label": "Close the details" }, "✕"));
  if (!lock) return [head, el("p", {}, answer.error ?? "Nobody holds it, and nothing was seen of it.")];
  const holder = lock.holders[0];
  const parts = [head, el("dl", { class: "facts" },
    ...fact("engine", engine), ...fact("kind", lock.holders.length ? known(lock.kind) : lock.kind ?? "free"),
    ...fact("fence", known(lock.fence)),
    ...(lock.stale ? fact("seen", "before the engine stopped answering") : []),
    ...fact("trouble", { deadlock: "deadlock", lease_low: "its lease is low", waiting: "others wait" }[lock.trouble] ?? "none"))];
  if (holder) parts.push(el("div", { class: "buttons" }, actions({ engine, key })));
  parts.push(el("h3", {}, lock.holders.length === 1 ? "Holder" : `Holders (${lock.holders.length})`));
  parts.push(lock.holders.length ? holders(lock.holders) : el("p", {}, "nobody"));
  parts.push(el("h3", {}, `Waiters${lock.waiting ? ` (${lock.waiting})` : ""}`));
  parts.push(lock.waiters === null
    ? el("p", { class: "unknown" }, `unknown: ${lock.waiters_unknown ?? "this engine does not see all of them"}`) : waiters(lock));
  parts.push(el("h3", {}, "Timeline"), timeline(lock.timeline));
  parts.push(el("h3", {}, "Last holders"), lastHolders(lock.last_holders));
  parts.push(el("h3", {}, "Contention"), episodes(lock.episodes));
  return parts;
}

const fact = (name, value) => [el("dt", {}, name), el("dd", {}, value)];

/** A table; on a phone every row becomes a card, whose cells are named by `data-name`. */
function table(label, heading, rows) {
  const cells = (row) => el("tr", { role: "row" }, row.map((cell, n) => el("td", { role: "cell", "data-name": heading[n] }, cell)));
  const names = heading.map((name) => el("th", { role: "columnheader", scope: "col" }, name));
  return el("table", { role: "table", "aria-label": label },
    el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, names)), el("tbody", { role: "rowgroup" }, rows.map(cells)));
}

function holders(list) {
  // The fence of a lock with one holder stands above.
  const fence = list.length > 1;
  return table("Holders", ["who", "command", "note", "for", "lease", ...(fence ? ["fence"] : [])], list.map((party) => [
    nameOf(party) + (party.kept ? " (kept)" : ""), known(party.command), party.note ?? "", lasts(party), lease(party),
    ...(fence ? [known(party.fence)] : [])]));
}

function waiters(lock) {
  if (!lock.waiters.length) return el("p", {}, "nobody waits");
  const rows = lock.waiters.map((party, n) =>
    [String(n + 1), nameOf(party), known(party.command), party.kind, party.note ?? "", lasts(party)]);
  const more = lock.waiting > lock.waiters.length ? el("p", {}, `and ${lock.waiting - lock.waiters.length} more`) : null;
  return el("div", {}, table("Waiters in order", ["#", "who", "command", "wants", "note", "waits for"], rows), more);
}

function lastHolders(list) {
  if (!list.length) return el("p", { class: "unknown" }, "none seen since this page was started");
  return table("Last holders", ["who", "until", "for", "outcome", "fence"], list.slice(0, 50).map((span) => [
    nameOf(span), moment(span.to), spell((Date.parse(span.to) - Date.parse(span.from)) / 1000), outcome(span), known(span.fence)]));
}

function episodes(list) {
  if (!list.length) return el("p", {}, "none seen");
  return table("Contention episodes", ["from", "for", "most waited", "waiter-seconds", "who blocked whom"],
    list.slice(0, 50).map((episode) => [
      moment(episode.from), spell(((episode.to ? Date.parse(episode.to) : now()) - Date.parse(episode.from)) / 1000)
        + (episode.to ? "" : ", lasts"),
      String(episode.peak), episode.waiter_seconds.toFixed(1),
      el("div", {}, [...episode.blocked].sort((a, b) => b.seconds - a.seconds).slice(0, 5).map((pair) =>
        el("div", {}, `${pair.holder} blocked ${pair.waiter} for ${spell(pair.seconds)}`)))]));
}
