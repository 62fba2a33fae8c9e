"""docs/performance.md and its plots, from the results of runs."""

import json
import statistics

from . import build, plot, scenarios, targets

PAGE = build.ROOT / "docs" / "performance.md"
PLOTS = build.ROOT / "docs" / "performance"
TITLES = {"redis": "Redis", "redlock": "Redlock on five Redis servers", "zookeeper": "ZooKeeper", "etcd": "etcd",
          "postgres": "PostgreSQL", "file": "Files"}
CROWDS = {"waiters4": 4, "waiters64": 64, "waiters256": 256, "waiters512": 512}

INTRO = """\
# Performance

lockkeeper beside other lock libraries, measured by one command:

```sh
{command}
```

It starts the servers, builds a small worker for every library, and runs them in turn, round by round, so that a busy machine affects all of them alike.
Compare the figures of a table with each other, not with those of another machine.
Where another library is faster, the table shows it.

- Every library is used as its documentation recommends, with its defaults; see [how each library is used](#how-each-library-is-used). The workers are in [benchmarks](../benchmarks) and [interop](../interop).
- Figures are medians of {rounds} of {seconds} s; the longest wait is the longest of all rounds. The JVM warms up for {warm_up:g} s, several of them for twice as long.
- A *cycle* is an acquire and a release. A *hand-off* is a grant to another contender than the one before; its time is from the end of one critical section to the start of the next. *Jain* is Jain's index of fairness over windows of 100 ms: 1 if all contenders got in equally often, 1/8 if one of eight got in every time.
- CPU is user and system time of all client or server processes, in microseconds per cycle. Commands are those that the Redis server counted (`INFO commandstats`), including those inside scripts.
- A worker records when it was granted the lock and when it left the critical section, by the machine's monotonic clock. No two holders of any library overlapped{overlaps}.
- A *floor* is not a lock: it is the least that the store itself needs.{baseline}

{when}
Client and server share {cores} cores of one machine ({processor}).
{versions}

"""


def write(results):
    files = {}
    for path in sorted(results.glob("*.json")):
        content = json.loads(path.read_text())
        files[content["engine"], content["scenario"]] = content
    if not files:
        raise SystemExit(f"there are no results in {results}: run benchmarks/run first")
    PLOTS.mkdir(exist_ok=True)
    parts = [intro(files), target_table(files)]
    for engine, title in TITLES.items():
        mine = [(scenario, files[engine, scenario.name]) for scenario in scenarios.SCENARIOS
                if (engine, scenario.name) in files]
        if mine:
            parts.append(f"## {title}\n\n")
            parts += [plots(engine, dict((scenario.name, content) for scenario, content in mine))]
            parts += [section(engine, scenario, content) for scenario, content in mine]
    parts.append(usage(files))
    PAGE.write_text("".join(parts).rstrip("\n") + "\n")
    print(f"wrote {PAGE.relative_to(build.ROOT)}")


def intro(files):
    some = list(files.values())
    newest = max(some, key=lambda content: content["date"])
    overlapping = sorted({name for content in some for name, result in content["clients"].items()
                          if result.get("overlaps")})
    baselines = sorted({content["baseline"] for content in some if content["baseline"]})
    seconds = sorted({content["seconds"] for content in some})
    versions = ", ".join(f"{name} {version}" for name, version in sorted(newest["versions"].items(), key=str))
    revisions = sorted({content["revision"] for content in some})
    others = [result["others"] for content in some for result in content["clients"].values() if "others" in result]
    dates = sorted(content["date"] for content in some)
    return INTRO.format(
        command="benchmarks/run" + (f" --baseline {baselines[-1]}" if baselines else ""),
        rounds="one round" if newest["rounds"] == 1 else f"{newest['rounds']} rounds",
        seconds=" or ".join(f"{one:g}" for one in seconds),
        warm_up=scenarios.JVM,
        overlaps=", except those of " + ", ".join(overlapping) if overlapping else "",
        baseline=f" *baseline* is lockkeeper at `{baselines[-1]}`, in the same run." if baselines else "",
        when=f"Measured from {dates[0]} to {dates[-1]} at `{'`, `'.join(revisions)}`; the harness and all other programs "
             f"together used {100 * statistics.median(others):.0f} % of the processors (median; at most "
             f"{100 * max(others):.0f} %).",
        cores=newest["machine"]["cores"],
        processor=newest["machine"]["processor"],
        versions=f"Versions: {versions}.",
    )


def target_table(files):
    lines = ["## Targets\n\n", "What lockkeeper aims at, and what this run measured. Ratios are of throughput unless a row says otherwise.\n\n",
             "| | target | measured | |\n|---|---|---|---|\n"]
    for what, target, measured, met in targets.rows(targets.Results(files)):
        if met is not None:
            lines.append(f"| {what} | {target} | {measured} | {'met' if met else '**missed**'} |\n")
    return "".join(lines) + "\n"


def section(engine, scenario, content):
    contended = scenario.keys == "hot" and scenario.processes * scenario.clients * scenario.tasks > 1
    counted = engine in ("redis", "redlock")
    head = ["", "cycles/s"]
    head += ["hand-offs/s", "hand-off p50", "Jain", "wait p50", "p99", "longest"] if contended else ["cycle p50", "p99"]
    head += ["client CPU", "server CPU"] + (["commands per " + ("hand-off" if contended else "cycle")] if counted else [])
    rows = []
    floors = {client.name for client in scenarios.CLIENTS[engine] if client.floor}
    ranked = sorted(content["clients"].items(), key=lambda item: -item[1].get("rate", 0))
    troubles = []
    for name, result in ranked:
        label = f"**{name}**" if name.startswith("lockkeeper") else f"{name} (floor)" if name in floors else name
        if "failed" in result:
            rows.append([label, "–"] + [""] * (len(head) - 2))
            troubles.append(f"{name} failed: {result['failed']}")
            continue
        row = [label, number(result["rate"])]
        if contended:
            wait = result["wait"]
            gap = time(result["gap"]["p50"]) if result.get("gap") else "–"
            row += [number(result["handoffs"]), gap, f"{result['jain']:.2f}",
                    *(time(wait[p]) for p in ("p50", "p99", "max"))]
        else:
            cycle = result["cycle"] or result["wait"]
            row += [time(cycle["p50"]), time(cycle["p99"])]
        row += [f"{result['client_cpu']:.0f} µs", f"{result['server_cpu']:.0f} µs"]
        if counted:
            commands = result.get("commands_per_handoff" if contended else "commands")
            row.append("–" if commands is None else number(commands))
        rows.append(row)
        if result["errors"]:
            troubles.append(f"{name}: {result['errors']} calls failed ({result['error'][:80]})")
    text = f"### {TITLES[engine].split()[0]}: {scenario.title[0].lower()}{scenario.title[1:]}\n\n" + table(head, rows)
    return text + "".join(f"\n{trouble}.\n" for trouble in troubles) + "\n"


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def plots(engine, files):
    text = ""
    crowds = {scenario: count for scenario, count in CROWDS.items() if scenario in files}
    figures = [("waiters", "rate", "throughput", "cycles per second")]
    if engine == "redis":
        # Clients that poll have a high throughput because the lock stays with one of them.
        figures.append(("handoffs", "handoffs", "hand-offs", "hand-offs per second"))
    for name, figure, title, unit in figures if len(crowds) > 1 else []:
        clients = dict.fromkeys(client for scenario in crowds for client in files[scenario]["clients"])
        points = {client: [(count, value) for scenario, count in crowds.items()
                           if (value := files[scenario]["clients"].get(client, {}).get(figure))] for client in clients}
        series = {client: known for client, known in points.items() if len(known) > 1}
        title = f"{TITLES[engine]}: {title} against waiting clients"
        text += picture(f"{engine}-{name}", title, plot.lines(
            title, "clients that want the same key", unit, series,
            [(count, str(count)) for count in crowds.values()], number))
    shown = [("one", "cycle", "the cycle of one task"), ("section", "wait", "the wait, 8 processes, a section of 1 ms"),
             ("hot8", "wait", "the wait, 8 processes, empty section")]
    for scenario, what, title in shown:
        if scenario in files and (scenario != "hot8" or "section" not in files):
            series = {name: points for name, result in files[scenario]["clients"].items()
                      if (points := distribution(result.get(what)))}
            title = f"{TITLES[engine]}: {title}"
            ticks = [(2, "p50"), (10, "p90"), (100, "p99"), (1000, "p99.9")]
            if series:
                text += picture(f"{engine}-{scenario}", title,
                                plot.lines(title, "percentile", "", series, ticks, time))
    return text


def distribution(spread):
    """Percentiles, the rarer the further to the right: 1 in 2, 1 in 10, 1 in 100, 1 in 1000."""
    if not spread:
        return None
    rare = {"p50": 2, "p75": 4, "p90": 10, "p95": 20, "p99": 100, "p99.9": 1000}
    return [(place, max(spread[share], 0.1)) for share, place in rare.items()]


def picture(name, title, svg):
    (PLOTS / f"{name}.svg").write_text(svg)
    return f"![{title}](performance/{name}.svg)\n\n"


def usage(files):
    rows = []
    for engine in TITLES:
        seen = {name for (of, _), content in files.items() if of == engine for name in content["clients"]}
        rows += [[TITLES[engine].split()[0], client.name, client.how] for client in scenarios.CLIENTS[engine]
                 if client.name in seen]
    return "## How each library is used\n\n" + table(["engine", "name", "how"], rows).replace("---:", "---")


def number(value):
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def time(micros):
    if micros < 1000:
        return f"{micros:.0f} µs" if micros >= 10 else f"{micros:.1f} µs"
    return f"{micros / 1000:.3g} ms" if micros < 1e6 else f"{micros / 1e6:.3g} s"


def line(client, result):
    """A result on the terminal."""
    if "failed" in result:
        return f"{client.name:<20} failed: {result['failed']}"
    text = f"{client.name:<20}{number(result['rate']):>9}/s"
    if result.get("cycle"):
        text += f"  cycle {time(result['cycle']['p50']):>8}"
    if "handoffs" in result:
        text += (f"  {number(result['handoffs']):>7} hand-offs/s  Jain {result['jain']:.2f}  wait p99 "
                 f"{time(result['wait']['p99']):>8}, longest {time(result['wait']['max']):>8}")
    text += f"  CPU {result['client_cpu']:.0f}+{result['server_cpu']:.0f} µs"
    if "commands" in result:
        text += f"  {number(result.get('commands_per_handoff', result['commands']))} commands"
    if result["errors"]:
        text += f"  {result['errors']} errors ({result['error'][:60]})"
    return text + (f"  {result['overlaps']} OVERLAPS" if result["overlaps"] else "")
