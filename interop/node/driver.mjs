// The driver for node-redlock: `driver.mjs WHERE LEASE_MS`, where it is one server or several,
// `ADDRESS[,ADDRESS…]`, or `redis+sentinel://ADDRESS[,ADDRESS…]/MASTER`.
// It takes orders from its input, one per line, and answers each with one line.

import net from "node:net";
import readline from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import Redis from "ioredis";
import Redlock, { ExecutionError } from "redlock";

const [where, leaseText] = process.argv.slice(2);
const lease = Number(leaseText);
const [addresses, name] = where.replace("redis+sentinel://", "").split("/");
const servers = addresses.split(",").map((address) => {
  const [host, port] = address.split(":");
  return { host, port: Number(port) };
});
const clients = name ? [new Redis({ sentinels: servers, name })] : servers.map((server) => new Redis(server));
// Failures are told by the calls that meet them.
for (const client of clients) client.on("error", () => {});
// Between the tries of one acquire it keeps what a minority gave it, so that over several servers nobody
// may get a majority until leases end. One that has a single try gives it back; so it is asked again here.
const patient = new Redlock(clients, { retryCount: -1, retryDelay: 20, retryJitter: 20 });
const once = new Redlock(clients, { retryCount: 0 });
// What an attempt met is told by its result as well.
for (const redlock of [patient, once]) redlock.on("error", () => {});
const held = new Map();
// What was released last, to be released again.
const released = new Map();

// A lock, or nothing if it is busy and must not be waited for.
async function take(name, wait) {
  const inside = wait && clients.length === 1;
  for (;;) {
    try {
      return await (inside ? patient : once).acquire([name], lease);
    } catch (problem) {
      if (inside || !(problem instanceof ExecutionError)) throw problem;
      if (!wait) return undefined;
    }
    await sleep(20 + Math.random() * 100);
  }
}

async function keep(name, wait) {
  const lock = await take(name, wait);
  if (!lock) return "busy";
  held.set(name, lock);
  return "held 0";
}

// It enters so many times; if it endures, the arbiter is told of failures, and it goes on.
async function hammer(endures, name, count, port, pause) {
  const arbiter = net.connect({ port, host: "127.0.0.1", noDelay: true });
  const answers = arbiter[Symbol.asyncIterator]();
  const ask = async (line) => {
    arbiter.write(line);
    if ((await answers.next()).done) throw new Error("the arbiter is gone");
  };
  for (let n = 0; n < count; n++) {
    try {
      const lock = await take(name, true);
      await ask(`enter theirs exclusive 0 ${name}\n`);
      await ask("leave\n");
      await once.release(lock);
    } catch (problem) {
      if (!endures) throw problem;
      await ask(`trouble theirs ${name} failed ${problem}`.replaceAll("\n", " ") + "\n");
    }
    await sleep(Math.random() * pause);
  }
  arbiter.end();
}

async function obey([order, , name, ...numbers]) {
  switch (order) {
    case "acquire":
      return keep(name, true);
    case "try":
      return keep(name, false);
    case "beside":
      // Another task of this process; it keeps the lock.
      await take(name, true);
      return "held 0";
    case "release":
      released.set(name, held.get(name));
      held.delete(name);
      await once.release(released.get(name));
      return "released";
    case "again":
      await once.release(released.get(name));
      return "released";
    case "hammer":
    case "endure":
      await hammer(order === "endure", name, ...numbers.map(Number));
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
