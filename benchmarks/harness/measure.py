"""Crews of worker processes, and what their cycles say.

The protocol of a worker is described in ours/src/lib.rs.
"""

import os
import statistics
import subprocess
import tempfile
import threading
import time

from . import servers

WINDOW = 100_000_000
# How long a crew may take to end its cycles after a run. Waiters that starve take long.
PATIENCE = 60


class Crew:
    """The processes of one client in one scenario."""

    def __init__(self, command, scenario, address, key):
        self.scenario = scenario
        self.contenders = scenario.processes * scenario.clients * scenario.tasks
        order = [address, key, scenario.clients, scenario.tasks, scenario.keys, scenario.section_us]
        self.log = tempfile.TemporaryFile("w+")
        self.workers = [
            subprocess.Popen([*command, *map(str, order)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             stderr=self.log, text=True)
            for _ in range(scenario.processes)
        ]

    def ready(self):
        """None, or why it cannot start."""
        for worker in self.workers:
            if worker.stdout.readline() != "ready\n":
                self.log.seek(0)
                return self.log.read().strip()[-500:] or "it ended without a word"
        return None

    def run(self, seconds, store):
        """One run, as figures."""
        tasks = self.scenario.clients * self.scenario.tasks
        results = [None] * len(self.workers)
        before = self.cpu(), store.cpu(), store.commands(), servers.busy()
        start = time.monotonic_ns()
        until = start + int(seconds * 1e9)
        for worker in self.workers:
            worker.stdin.write(f"{until}\n")
            worker.stdin.flush()

        def collect(n):
            results[n] = read_run(self.workers[n], n * tasks)

        threads = [threading.Thread(target=collect, args=[n], daemon=True) for n in range(len(self.workers))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, (until - time.monotonic_ns()) / 1e9) + PATIENCE)
        if any(thread.is_alive() for thread in threads):
            self.stop()
            return {"failed": f"waiters were still waiting {PATIENCE} s after the run"}
        if None in results:
            self.stop()
            return {"failed": "a worker ended during the run"}
        after = self.cpu(), store.cpu(), store.commands(), servers.busy()
        return figures([cycle for cycles, _, _ in results for cycle in cycles], start, until, self, before, after,
                       sum(count for _, count, _ in results), next((why for *_, why in results if why), ""))

    def cpu(self):
        return sum(servers.cpu(worker.pid) for worker in self.workers)

    def stop(self):
        for worker in self.workers:
            worker.stdin.close()
        for worker in self.workers:
            try:
                worker.wait(5)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()


def read_run(worker, first):
    """The cycles of a worker, its errors, and the first of these."""
    cycles, errors, why = [], 0, ""
    for line in worker.stdout:
        if line == "end\n":
            return cycles, errors, why
        if line.startswith("errors"):
            _, count, why = line.rstrip("\n").split(" ", 2)
            errors = int(count)
        else:
            task, asked, granted, leaving = map(int, line.split())
            cycles.append((granted, first + task, asked, leaving))
    return None


def figures(cycles, start, until, crew, before, after, errors, why):
    cycles.sort()
    hot = crew.scenario.keys == "hot"
    within = [cycle for cycle in cycles if start <= cycle[0] < until]
    count, seconds = len(within), (until - start) / 1e9
    passes = handoffs(within) if hot else 0
    waits = [granted - asked for granted, _, asked, _ in cycles]
    # Work that goes on after the end is divided by all cycles that caused it.
    share = 1e6 / len(cycles) if cycles else 0.0
    result = {
        "cycles": count,
        "rate": count / seconds,
        "cycle": spread(cycle_times(cycles)),
        "wait": spread(waits),
        "client_cpu": (after[0] - before[0]) * share,
        "server_cpu": (after[1] - before[1]) * share,
        "others": others(before, after, (time.monotonic_ns() - start) / 1e9),
        "errors": errors,
        "error": why,
    }
    if hot and crew.contenders > 1:
        result["handoffs"] = passes / seconds
        # From the end of a section to the beginning of the next one, of another contender.
        result["gap"] = spread([max(0, later[0] - earlier[3]) for earlier, later in zip(within, within[1:])
                                if earlier[1] != later[1]])
        result["jain"] = jain(within, crew.contenders, start, until)
        result["overlaps"] = sum(later[0] < earlier[3] for earlier, later in zip(cycles, cycles[1:]))
    if before[2] is not None and cycles:
        commands = after[2] - before[2]
        result["commands"] = commands / len(cycles)
        if passes:
            result["commands_per_handoff"] = commands / handoffs(cycles)
    return result


def handoffs(cycles):
    """How often the lock went to another contender than before."""
    return sum(one[1] != other[1] for one, other in zip(cycles, cycles[1:]))


def others(before, after, seconds):
    """The share of all processors that was used by neither clients nor servers: the harness, and other programs."""
    own = after[0] - before[0] + after[1] - before[1]
    return max(0.0, after[3] - before[3] - own) / (seconds * os.cpu_count())


def cycle_times(cycles):
    """From asking to asking again, per task."""
    last, times = {}, []
    for _, task, asked, _ in cycles:
        if task in last:
            times.append(asked - last[task])
        last[task] = asked
    return times


def spread(times):
    """Percentiles in microseconds."""
    if not times:
        return None
    times = sorted(times)

    def at(share):
        return times[min(len(times) - 1, int(share * len(times)))] / 1000

    shares = {f"p{percent:g}": at(percent / 100) for percent in (1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9)}
    return {**shares, "max": times[-1] / 1000}


def jain(cycles, contenders, start, until):
    """Jain's index of the grants per contender in a window, averaged over the windows."""
    windows = {}
    for granted, contender, *_ in cycles:
        grants = windows.setdefault((granted - start) // WINDOW, {})
        grants[contender] = grants.get(contender, 0) + 1
    count = max(1, (until - start) // WINDOW)
    indices = [sum(g.values()) ** 2 / (contenders * sum(n * n for n in g.values())) for g in windows.values()]
    return sum(indices) / count


def median(rounds):
    """One figure for each of several rounds' figures: the median, and the worst where that is the point."""
    good = [one for one in rounds if "failed" not in one and one["cycles"]]
    if not good:
        failed = [one.get("failed") or one.get("error") or "no cycles" for one in rounds]
        return {"failed": failed[0]}
    result = {"cycles": sum(one["cycles"] for one in good)}
    for name in ("rate", "handoffs", "jain", "client_cpu", "server_cpu", "others", "commands", "commands_per_handoff"):
        values = [one[name] for one in good if name in one]
        if values:
            result[name] = statistics.median(values)
    for name in ("cycle", "wait", "gap"):
        spreads = [one[name] for one in good if one.get(name)]
        if spreads:
            result[name] = {share: statistics.median(s[share] for s in spreads) for share in spreads[0]}
            result[name]["max"] = max(s["max"] for s in spreads)
    result["errors"] = sum(one["errors"] for one in good)
    result["error"] = next((one["error"] for one in good if one["error"]), "")
    result["overlaps"] = sum(one.get("overlaps", 0) for one in good)
    result["rounds"] = len(good)
    return result
