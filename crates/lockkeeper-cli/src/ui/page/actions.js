// What an operator may change: ask to yield, and break. Each asks first.

import { el, find, nameOf, plain } from "./dom.js";
import { get } from "./live.js";

let allowed = false;
export const allow = (changes) => { allowed = changes; };

/** The buttons for one lock. */
export function buttons(lock) {
  if (!allowed) return el("small", { class: "unknown" }, "read-only: started without --allow-changes");
  return [
    el("button", { id: "yield", type: "button", onclick: () => askToYield(lock) }, "Ask to yield"),
    el("button", { id: "break", type: "button", class: "danger", onclick: () => breakLock(lock) }, "Break…"),
  ];
}

const names = (holders) => holders.slice(0, 5).map(nameOf).join(", ") + (holders.length > 5 ? ` and ${holders.length - 5} more` : "");
const name = () => localStorage.getItem("name") ?? "";
const nameField = () => el("label", {}, "Your name, for the audit file ", el("input", { id: "who", maxlength: 100, value: name(), autocomplete: "name" }));

function askToYield(lock) {
  dialog("Ask to yield", `Whoever holds ${lock.key} on ${lock.engine} is asked to release it. Nothing is taken away.`,
    [nameField(), el("label", {}, "Why (optional) ", el("textarea", { id: "why", rows: 2, maxlength: 500 }))],
    el("button", { id: "go", type: "submit" }, "Ask"),
    () => get("/api/v1/yield", { ...lock, who: find("who").value, why: find("why").value }),
    (answer) => (answer.holders.length ? `Asked ${names(answer.holders)}.` : "Nobody held it."));
}

function breakLock(lock) {
  const confirm = el("input", { id: "confirm", autocomplete: "off", spellcheck: "false" });
  const why = el("textarea", { id: "why", rows: 2, maxlength: 500 });
  const go = el("button", { id: "go", type: "submit", class: "danger", disabled: true }, "Break the lock");
  const check = () => { go.disabled = confirm.value !== plain(lock.key) || !why.value.trim(); };
  confirm.addEventListener("input", check);
  why.addEventListener("input", check);
  dialog("Break a lock", `The holder of ${lock.key} on ${lock.engine} loses it, and may still be at work. Others can then take it.`,
    [nameField(), el("label", {}, "Type the key to confirm ", confirm), el("label", {}, "Why ", why)], go,
    () => get("/api/v1/break", { ...lock, who: find("who").value, why: why.value, confirm: lock.key }),
    (answer) => (answer.holders.length ? `Broken: ${names(answer.holders)} lost it.` : "Nobody held it."));
}

function dialog(title, text, fields, go, work, said) {
  const box = find("dialog");
  const error = el("p", { class: "error", role: "alert" });
  const submit = async (event) => {
    event.preventDefault();
    go.disabled = true;
    localStorage.setItem("name", find("who").value);
    try {
      const answer = await work();
      box.replaceChildren(el("h2", { id: "dialog-title" }, title), el("p", { id: "outcome", role: "status" }, said(answer)), closer("Close"));
    } catch (problem) {
      error.textContent = problem.message;
      go.disabled = false;
    }
  };
  box.replaceChildren(el("h2", { id: "dialog-title" }, title), el("p", {}, text),
    el("form", { onsubmit: submit }, fields, error, el("div", { class: "buttons" }, go, closer("Cancel"))));
  box.showModal();
}

export const closer = (word) => el("button", { type: "button", id: "cancel", onclick: () => find("dialog").close() }, word);
