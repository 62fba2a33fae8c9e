// Elements and words. Text from a store is only ever set as text, never as markup.

export const find = (id) => document.getElementById(id);

// Control characters, and those that have no width or change the direction of the text, as in table.rs.
const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\u{1d173}-\u{1d17a}\u{e0000}-\u{e0fff}]/gu;

/** Text in which nothing hides: two keys that differ do not look the same. */
export const plain = (text) => text.replace(HIDDEN, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);

/** An element: attributes, listeners (`onclick`), and children that are elements or text, which is made plain. */
export function el(name, attributes = {}, ...children) {
  const svg = ["svg", "rect", "line", "text", "title", "g"].includes(name);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "title" || key === "aria-label") element.setAttribute(key, plain(String(value)));
    else element.setAttribute(key, value === true ? "" : value);
  }
  const shown = children.flat().filter((child) => child !== null && child !== undefined);
  element.append(...shown.map((child) => (typeof child === "string" ? plain(child) : child)));
  return element;
}

/** A value, or the word for what the store cannot tell. */
export const known = (value) => (value === null || value === undefined || value === ""
  ? el("span", { class: "unknown" }, "unknown") : String(value));

/** Seconds as people say them: `4 min`. */
export function spell(seconds) {
  if (!Number.isFinite(seconds)) return "unknown";
  const s = Math.max(0, seconds);
  if (s < 1) return `${Math.round(s * 1000)} ms`;
  if (s < 60) return `${Math.floor(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor(s / 60) % 60} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor(s / 3600) % 24} h`;
}

/** A moment of today by its time, another one with its date. */
export function moment(text) {
  const time = new Date(text);
  const today = time.toDateString() === new Date().toDateString();
  return today ? time.toLocaleTimeString() : time.toLocaleString();
}

// The server's clock may differ from this machine's.
let ahead = 0;
export const setClock = (serverNow) => { ahead = Date.parse(serverNow) - Date.now(); };
export const now = () => Date.now() + ahead;
export const since = (text) => (now() - Date.parse(text)) / 1000;

/** How long somebody holds or waits. Without a beginning in the store, at least as long as it has been seen. */
export const lasts = (party) => (party.since ? spell(since(party.since)) : `> ${spell(since(party.seen))}`);

/** Who holds, in a few words. */
export const nameOf = (party) => party.who ?? `${party.id}…`;

// An element that is replaced between pressing and letting go of a button is never clicked.
let down = 0;
document.addEventListener("pointerdown", (event) => { if (event.target.closest?.("a, button, tr")) down = Date.now(); }, true);
document.addEventListener("pointerup", () => setTimeout(() => { down = 0; }), true);

/** Whether somebody is clicking right now, so that nothing should be drawn anew. */
export const clicking = () => Date.now() - down < 700;
