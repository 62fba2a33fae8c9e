// Who blocks whom, over keys and engines.

import { el, find } from "./dom.js";
import { get } from "./live.js";
import { linkTo } from "./table.js";

export async function show() {
  const view = find("blocking-view");
  let blocking;
  try {
    blocking = await get("/api/v1/blocking");
  } catch (error) {
    view.replaceChildren(el("p", {}, error.message));
    return;
  }
  const parts = [el("h2", {}, "Who blocks whom")];
  parts.push(...blocking.deadlocks.map(ring));
  if (blocking.trees.length) parts.push(el("ul", { class: "tree" }, blocking.trees.map(node)));
  if (!blocking.trees.length && !blocking.deadlocks.length) parts.push(el("p", {}, "Nobody waits for anybody, as far as the engines can tell."));
  if (blocking.truncated) parts.push(el("p", {}, "There is more than is shown here."));
  view.replaceChildren(...parts);
}

function ring(deadlock) {
  const { ring: links } = deadlock;
  return el("section", { class: "ring", "aria-label": "Deadlock" }, el("h3", {}, `Deadlock of ${links.length} processes`),
    el("ol", {}, links.map((link, n) => {
      const next = links[(n + 1) % links.length].process;
      return el("li", {}, link.process, ...command(link), ...(link.waits.for === "lock"
        ? [" waits for ", lock(link.waits), `, which ${next} holds`] : [` runs ${next} and waits for its end`]));
    })));
}

function node(tree) {
  const waits = !tree.waits ? [] : tree.waits.for === "lock" ? [" waits for ", lock(tree.waits)] : [" runs it"];
  const below = tree.blocks.length ? el("ul", {}, tree.blocks.map(node)) : null;
  return el("li", {}, el("strong", {}, tree.process), ...command(tree), ...waits, below);
}

const command = (process) => (process.command ? [" ", el("code", {}, process.command)] : []);

const lock = (reason) => el("span", {}, el("a", { href: linkTo(reason) }, reason.key), ` on ${reason.engine}`);
