"""The worker of benchmarks/run for redis-py and kazoo: `benchmark.py CLIENT ADDRESS KEY CLIENTS TASKS own|hot
SECTION_US`; benchmarks/ours/src/lib.rs has the protocol. A contender is a thread."""

import sys
import threading
import time

LEASE = 30


def redis_py(address):
    import redis

    host, port = address.split(":")
    client = redis.Redis(host=host, port=int(port))
    return lambda key: client.lock(key, timeout=LEASE)


def kazoo(address):
    from kazoo.client import KazooClient

    client = KazooClient(hosts=address, timeout=LEASE)
    client.start(timeout=60)
    return lambda key: client.Lock(f"/{key}")


def contend(lock, section, until, cycles, errors):
    while (asked := time.monotonic_ns()) < until:
        try:
            with lock:
                granted = time.monotonic_ns()
                if section:
                    time.sleep(section)
                cycles.append((asked, granted, time.monotonic_ns()))
        except Exception as problem:  # Whatever it is, it counts.
            errors.append(f"{type(problem).__name__}: {problem}".replace("\n", " "))


def main():
    name, address, key, clients, tasks, keys, section = sys.argv[1:]
    connect = {"redis-py": redis_py, "kazoo": kazoo}[name]
    locks = []
    for _ in range(int(clients)):
        make = connect(address)
        locks += [make(f"{key}-{task}" if keys == "own" else key) for task in range(int(tasks))]
    print("ready", flush=True)
    for line in sys.stdin:
        results = [([], []) for _ in locks]
        threads = [threading.Thread(target=contend, args=[lock, int(section) / 1e6, int(line), *result])
                   for lock, result in zip(locks, results)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        out = [f"{task} {a} {g} {l}\n" for task, (cycles, _) in enumerate(results) for a, g, l in cycles]
        errors = [error for _, errors in results for error in errors]
        print(f"{''.join(out)}errors {len(errors)} {errors[0] if errors else ''}\nend", flush=True)


main()
