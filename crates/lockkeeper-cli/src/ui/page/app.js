// Puts the page together: the stream, the address bar, the keyboard.

import * as actions from "./actions.js";
import * as blocking from "./blocking.js";
import * as detail from "./detail.js";
import { el, find, moment, setClock, spell } from "./dom.js";
import { follow, get, setToken } from "./live.js";
import * as table from "./table.js";

const FILTERS = { q: "search", in: "engine", prefix: "prefix", holder: "holder", host: "host" };
let about = false;

// What is shown is in the address, so that it can be sent to others.

const address = () => new URLSearchParams(location.hash.slice(1));

function change(edit) {
  const next = address();
  edit(next);
  location.hash = next.toString();
}

function route() {
  const now = address();
  for (const [name, id] of Object.entries(FILTERS)) if (find(id) !== document.activeElement) table.setFilter(id, now.get(name) ?? "");
  const tree = now.get("view") === "blocking";
  find("table-view").hidden = tree;
  find("blocking-view").hidden = !tree;
  find("show-table").setAttribute("aria-pressed", String(!tree));
  find("show-blocking").setAttribute("aria-pressed", String(tree));
  table.filter();
  refresh();
  if (!now.has("lock")) detail.close();
}

function refresh() {
  const now = address();
  if (now.get("view") === "blocking") blocking.show();
  if (now.has("lock")) detail.show(now.get("at") ?? "", now.get("lock"), actions.buttons);
}

const openLock = (row) => change((now) => { now.set("lock", row.key); now.set("at", row.engine); });
const closeLock = () => change((now) => { now.delete("lock"); now.delete("at"); });
const view = (name) => change((now) => { if (name) now.set("view", name); else now.delete("view"); });

// What the server says.

function receive(message) {
  setClock(message.now);
  find("link").title = `last look: ${moment(message.now)}`;
  const { strip } = message;
  const silent = message.engines.filter((engine) => engine.error).length;
  find("held").replaceChildren(String(strip.held), silent ? el("small", {}, ` + unknown at ${silent} engine${silent > 1 ? "s" : ""}`) : "");
  find("waiting").replaceChildren(String(strip.waiting), strip.waiting_unknown
    ? el("small", {}, ` + unknown at ${strip.waiting_unknown} lock${strip.waiting_unknown > 1 ? "s" : ""}`) : "");
  find("lost").textContent = strip.lost_last_hour;
  find("slack").replaceChildren(...(strip.smallest_slack
    ? [`${Math.round(strip.smallest_slack.share * 100)} %`, el("small", {}, ` ${spell(strip.smallest_slack.left)} · ${strip.smallest_slack.key}`)]
    : [el("small", {}, strip.silent ? "unknown" : "no leases")]));
  banners(message);
  table.update(message);
  refresh();
}

function banners(message) {
  const down = message.engines.filter((engine) => engine.error)
    .map((engine) => el("p", { class: "banner bad" }, `${engine.name} does not answer: ${engine.error}`));
  const deadlock = message.strip.deadlocks ? [el("p", { class: "banner bad", id: "deadlock" },
    `${message.strip.deadlocks === 1 ? "A deadlock" : `${message.strip.deadlocks} deadlocks`}: processes wait for each other. `,
    el("button", { type: "button", onclick: () => view("blocking") }, "Show"))] : [];
  const record = message.record_error ? [el("p", { class: "banner bad" }, `The history is not recorded: ${message.record_error}`)] : [];
  const all = [...deadlock, ...down, ...record];
  // Only when it changed, so that a screen reader does not repeat it.
  const text = all.map((banner) => banner.textContent).join("\n");
  if (find("banners").dataset.text === text) return;
  find("banners").dataset.text = text;
  find("banners").replaceChildren(...all);
}

function connection(problem, status) {
  const link = find("link");
  link.className = problem ? "off" : "";
  link.textContent = problem ? `not live: ${problem}` : "live";
  if (!problem && !about) {
    about = true;
    get("/api/v1/about").then((answer) => { actions.allow(answer.changes); refresh(); }, () => { about = false; });
  }
  return status === 401 ? askForToken() : null;
}

function askForToken() {
  return new Promise((resolve) => {
    const box = find("dialog");
    const input = el("input", { id: "token", type: "password", autocomplete: "current-password", required: true });
    const submit = (event) => { event.preventDefault(); setToken(input.value); box.close(); resolve(); };
    box.replaceChildren(el("h2", { id: "dialog-title" }, "Token"), el("form", { onsubmit: submit },
      el("label", {}, "This page needs the token that lockkeeper ui was started with ", input),
      el("button", { type: "submit", id: "go" }, "Open")));
    if (!box.open) box.showModal();
  });
}

// The keyboard and the buttons.

function help() {
  const keys = [["/", "search"], ["j k ↓ ↑", "choose a lock"], ["Enter", "open it"], ["Esc", "close"],
    ["b", "who blocks whom"], ["l", "the locks"], ["t", "theme"], ["?", "this list"]];
  const box = find("dialog");
  box.replaceChildren(el("h2", { id: "dialog-title" }, "Keys"), el("dl", { class: "facts" },
    keys.flatMap(([key, does]) => [el("dt", {}, el("kbd", {}, key)), el("dd", {}, does)])), actions.closer("Close"));
  if (!box.open) box.showModal();
}

function theme() {
  const dark = document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("theme", document.documentElement.dataset.theme);
}

const KEYS = {
  "/": () => find("search").focus(), j: () => table.move(1), k: () => table.move(-1),
  ArrowDown: () => table.move(1), ArrowUp: () => table.move(-1),
  b: () => view("blocking"), l: () => view(""), t: theme, "?": help,
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || find("dialog").open) return;
  const typing = event.target.closest("input, select, textarea");
  if (event.key === "Escape") {
    if (typing) typing.blur();
    else if (address().has("lock")) closeLock();
  } else if (event.key === "Enter" && !typing && !event.target.closest("a, button")) {
    table.openChosen();
  } else if (!typing && KEYS[event.key]) {
    event.preventDefault();
    KEYS[event.key]();
  }
});
find("detail").addEventListener("click", (event) => { if (event.target.closest("#close")) closeLock(); });
find("show-table").addEventListener("click", () => view(""));
find("show-blocking").addEventListener("click", () => view("blocking"));
find("theme").addEventListener("click", theme);
find("help").addEventListener("click", help);
find("filters").addEventListener("submit", (event) => event.preventDefault());
find("filters").addEventListener("input", () => {
  table.filter();
  change((now) => {
    for (const [name, id] of Object.entries(FILTERS)) if (find(id).value) now.set(name, find(id).value); else now.delete(name);
  });
});
window.addEventListener("hashchange", route);
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); find("main").focus(); });

const saved = localStorage.getItem("theme");
if (saved) document.documentElement.dataset.theme = saved;
table.start(openLock);
route();
follow(receive, connection);
