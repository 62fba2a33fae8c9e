// The worker of benchmarks/run for node-redlock: `benchmark.mjs CLIENT ADDRESS[,ADDRESS…] KEY CLIENTS TASKS own|hot
// SECTION_US`; benchmarks/ours/src/lib.rs has the protocol.

import readline from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import Redis from "ioredis";
import Redlock, { ExecutionError } from "redlock";

const [, addresses, key, clients, tasks, keys, section] = process.argv.slice(2);
const LEASE = 30_000;
const now = () => process.hrtime.bigint();

const connections = [];
const contenders = [];
for (let client = 0; client < Number(clients); client++) {
  const servers = addresses.split(",").map((address) => {
    const [host, port] = address.split(":");
    return new Redis({ host, port: Number(port) });
  });
  connections.push(...servers);
  const redlock = new Redlock(servers);
  // What an attempt met is told by its result as well.
  redlock.on("error", () => {});
  for (let task = 0; task < Number(tasks); task++) {
    contenders.push({ redlock, key: keys === "own" ? `${key}-${task}` : key });
  }
}

async function run({ redlock, key }, until) {
  const cycles = [];
  const errors = [];
  for (let asked = now(); asked < until; asked = now()) {
    try {
      const lock = await redlock.acquire([key], LEASE);
      const granted = now();
      if (section !== "0") await sleep(Number(section) / 1000);
      cycles.push([asked, granted, now()]);
      await lock.release();
    } catch (problem) {
      if (!(problem instanceof ExecutionError)) throw problem;
      errors.push(problem.message.replaceAll("\n", " "));
    }
  }
  return { cycles, errors };
}

await Promise.all(connections.map((connection) => connection.ping()));
process.stdout.write("ready\n");
for await (const line of readline.createInterface({ input: process.stdin })) {
  const runs = await Promise.all(contenders.map((contender) => run(contender, BigInt(line))));
  const lines = runs.flatMap(({ cycles }, task) => cycles.map((cycle) => `${task} ${cycle.join(" ")}\n`));
  const errors = runs.flatMap(({ errors }) => errors);
  process.stdout.write(`${lines.join("")}errors ${errors.length} ${errors[0] ?? ""}\nend\n`);
}
process.exit(0);
