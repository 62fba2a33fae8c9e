"""The figures that lockkeeper aims at, as ratios within one run, and whether it reaches them."""


class Results:
    """What was measured, by engine, scenario and client. A figure that is missing is None."""

    def __init__(self, files):
        self.files = files

    def get(self, engine, scenario, client, *path):
        found = self.files.get((engine, scenario), {}).get("clients", {}).get(client, {})
        for step in path:
            found = (found or {}).get(step)
        return found

    def rate(self, engine, scenario, client="lockkeeper"):
        return self.get(engine, scenario, client, "rate")

    def cycle(self, engine, scenario, client="lockkeeper"):
        return self.get(engine, scenario, client, "cycle", "p50")


def ratio(one, other):
    return one / other if one is not None and other else None


def rows(results):
    """(what, target, measured, met) for each; met is None if it was not measured."""
    r = results
    out = []

    def at_least(what, value, target, unit=" ×"):
        out.append((what, f"≥ {target:g}{unit}", shown(value, unit), None if value is None else value >= target))

    def at_most(what, value, target, unit=" ×"):
        out.append((what, f"≤ {target:g}{unit}", shown(value, unit), None if value is None else value <= target))

    at_most("Redis, one task: the cycle against two round trips of a bare socket",
            ratio(r.cycle("redis", "one"), r.cycle("redis", "one", "socket")), 1.1)
    at_least("Redis, 64 tasks, own keys: against rslock",
             ratio(r.rate("redis", "own64"), r.rate("redis", "own64", "rslock")), 1.1)
    handoffs = r.get("redis", "hot8", "lockkeeper", "handoffs")
    at_least("Redis, 8 processes, one key: hand-offs against the baseline",
             ratio(handoffs, r.get("redis", "hot8", "baseline", "handoffs")), 3)
    at_least("the same: Jain's index over 100 ms", r.get("redis", "hot8", "lockkeeper", "jain"), 0.99, "")
    alone = r.rate("redis", "alone")
    at_least("Redis, 8 processes, a section of 1 ms: against one client alone",
             ratio(r.rate("redis", "section"), alone), 0.85)
    at_least("the same: against Redisson",
             ratio(r.rate("redis", "section"), r.rate("redis", "section", "redisson")), 1)
    p99 = r.get("redis", "section", "lockkeeper", "wait", "p99")
    at_most("the same: p99 of the wait against the ideal first-come wait",
            ratio(p99, 7e6 / alone if alone else None), 1.5)
    at_least("the same: Jain's index over 100 ms", r.get("redis", "section", "lockkeeper", "jain"), 0.99, "")
    crowds = [f"waiters{n}" for n in (4, 64, 256, 512)]
    rates = [r.rate("redis", crowd) for crowd in crowds]
    known = None not in rates
    at_most("Redis, 4 to 512 clients, one key: the fastest against the slowest",
            max(rates) / min(rates) if known else None, 1.25)
    commands = [r.get("redis", crowd, "lockkeeper", "commands_per_handoff") for crowd in crowds]
    at_most("the same: commands at the server per hand-off", None if None in commands else max(commands), 20, "")
    at_least("Redis, 16 tasks of one process, one key: hand-offs against those between 8 processes",
             ratio(r.get("redis", "tasks16", "lockkeeper", "handoffs"), handoffs), 20)
    ping = r.cycle("redis", "one", "socket")
    at_most("Redis, one task, a kept lock: the cycle against a `PING`",
            ratio(r.cycle("redis", "one", "lockkeeper-kept"), ping / 2 if ping else None), 0.05)
    ping = r.cycle("redis", "wanted", "socket")
    at_most("Redis, a lock that another client keeps: the wait, in `PING`s",
            ratio(r.get("redis", "wanted", "lockkeeper-wanted", "wait", "p50"), ping / 2 if ping else None), 3)
    for peer in ("curator", "zookeeper-client"):
        at_least(f"ZooKeeper, 8 processes, one key: against {peer}",
                 ratio(r.rate("zookeeper", "hot8"), r.rate("zookeeper", "hot8", peer)), 1)
    put = r.cycle("etcd", "one", "put")
    at_most("etcd, 8 processes, one key: a hand-off against one put with a lease",
            ratio(r.get("etcd", "hot8", "lockkeeper", "gap", "p50"), put / 2 if put else None), 5)
    at_least("the same: against Go's concurrency",
             ratio(r.rate("etcd", "hot8"), r.rate("etcd", "hot8", "concurrency")), 5)
    at_least("etcd, 256 clients, one key: against 4", ratio(r.rate("etcd", "waiters256"), r.rate("etcd", "waiters4")), 0.8)
    at_least("etcd, 64 tasks, own keys: against the lock service",
             ratio(r.rate("etcd", "own64"), r.rate("etcd", "own64", "lock-service")), 1)
    at_most("Redlock, five servers, one task: the cycle against node-redlock",
            ratio(r.cycle("redlock", "one"), r.cycle("redlock", "one", "node-redlock")), 1)
    at_least("Redlock, 64 tasks, own keys: against rslock",
             ratio(r.rate("redlock", "own64"), r.rate("redlock", "own64", "rslock")), 1.1)
    for mine, peer, name in (("lockkeeper-advisory", "sqlx-advisory", "sqlx"),
                             ("lockkeeper-lease", "naive-table", "a naive table")):
        for scenario, title in (("one", "one task"), ("own64", "64 tasks, own keys"), ("hot8", "8 processes, one key")):
            at_least(f"PostgreSQL {mine.partition('-')[2]}, {title}: against {name}",
                     ratio(r.rate("postgres", scenario, mine), r.rate("postgres", scenario, peer)), 0.9)
    at_most("`file:`, one task: the cycle against open, `flock`, close",
            ratio(r.cycle("file", "one"), r.cycle("file", "one", "flock")), 2)
    at_most("`file:`, 8 processes, one key: a hand-off against `flock`'s",
            ratio(r.get("file", "hot8", "lockkeeper", "gap", "p50"), r.get("file", "hot8", "flock", "gap", "p50")), 4)
    pings = r.rate("redis", "one", "socket")
    pings = 2 * pings if pings else None
    at_least("Redis, two rivals, guards dropped: hand-offs against `PING`s",
             ratio(r.get("redis", "rivals", "lockkeeper-dropped", "handoffs"), pings), 0.1)
    longest = r.get("redis", "rivals", "lockkeeper-dropped", "wait", "max")
    at_most("the same: the longest wait, in `PING`s", longest * pings / 1e6 if longest and pings else None, 100, "")
    return out


def shown(value, unit):
    return "–" if value is None else f"{value:.3g}{unit}"
