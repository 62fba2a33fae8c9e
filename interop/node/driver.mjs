// The driver for node-redlock, over one server or several: `driver.mjs ADDRESS[,ADDRESS…] LEASE_MS`.
// It takes orders from its input, one per line, and answers each with one line.

import net from "node:net";
import readline from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import Redis from "ioredis";
import Redlock, { ExecutionError } from "redlock";

const [addresses, leaseText] = process.argv.slice(2);
const lease = Number(leaseText);
const clients = addresses.split(",").map((address) => {
  const [host, port] = address.split(":");
  return new Redis({ host, port: Number(port) });
});
// Between the tries of one acquire it keeps what a minority gave it, so that over several servers nobody
// may get a majority until leases end. One that has a single try gives it back; so it is asked again here.
const patient = new Redlock(clients, { retryCount: -1, retryDelay: 20, retryJitter: 20 });
const once = new Redlock(clients, { retryCount: 0 });
// What an attempt met is told by its result as well.
for (const redlock of [patient, once]) redlock.on("error", () => {});
const held = new Map();

async function take(name, wait) {
  const inside = wait && clients.length === 1;
  for (;;) {
    try {
      held.set(name, await (inside ? patient : once).acquire([name], lease));
      return "held 0";
    } catch (problem) {
      if (inside || !(problem instanceof ExecutionError)) throw problem;
      if (!wait) return "busy";
    }
    await sleep(20 + Math.random() * 100);
  }
}

async function release(name) {
  const lock = held.get(name);
  held.delete(name);
  await once.release(lock);
}

async function hammer(name, count, port, pause) {
  const arbiter = net.connect({ port, host: "127.0.0.1", noDelay: true });
  const answers = arbiter[Symbol.asyncIterator]();
  const ask = async (line) => {
    arbiter.write(line);
    if ((await answers.next()).done) throw new Error("the arbiter is gone");
  };
  for (let n = 0; n < count; n++) {
    await take(name, true);
    await ask(`enter theirs exclusive 0 ${name}\n`);
    await ask("leave\n");
    await release(name);
    await sleep(Math.random() * pause);
  }
  arbiter.end();
}

async function obey([order, , name, ...numbers]) {
  switch (order) {
    case "acquire":
      return take(name, true);
    case "try":
      return take(name, false);
    case "release":
      await release(name);
      return "released";
    case "hammer":
      await hammer(name, ...numbers.map(Number));
      return "done";
    default:
      throw new Error(`what is ${order}?`);
  }
}

await Promise.all(clients.map((client) => client.ping()));
console.log("ready");
for await (const line of readline.createInterface({ input: process.stdin })) {
  const answer = await obey(line.split(" ")).catch((problem) => `error ${problem}`.replaceAll("\n", " "));
  console.log(answer);
}
process.exit(0);
