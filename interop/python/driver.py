"""Drivers for redis-py, kazoo, and the commands etcdctl and psql: `driver.py CLIENT ADDRESS LEASE_MS`.

Each takes orders from its input, one per line, and answers each with one line. The address of redis-py may be
`redis+sentinel://ADDRESS[,ADDRESS…]/MASTER`.
"""

import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
import time


class RedisPy:
    """`redis.lock.Lock`: a string that is asked for again and again."""

    def __init__(self, address, lease):
        import redis

        sentinels, _, master = address.removeprefix("redis+sentinel://").partition("/")
        servers = [(host, int(port)) for host, port in (each.split(":") for each in sentinels.split(","))]
        if master:
            self.client = redis.Sentinel(servers, socket_timeout=2).master_for(master)
        else:
            self.client = redis.Redis(*servers[0])
        self.lease = lease
        self.held = {}
        # What was released last, and the locks of other tasks of this process.
        self.released = {}
        self.others = []

    def take(self, kind, name, wait):
        lock = self.client.lock(name, timeout=self.lease, sleep=0.01)
        if not lock.acquire(blocking=wait):
            return None
        self.held[name] = lock
        return 0

    def release(self, kind, name):
        self.released[name] = self.held.pop(name)
        self.released[name].release()

    def again(self, name):
        self.released[name].release()

    def beside(self, name):
        lock = self.client.lock(name, timeout=self.lease, sleep=0.01)
        lock.acquire()
        self.others.append(lock)


class Kazoo:
    """`kazoo.recipe.lock.Lock`, told to wait for names in the style of Curator as well."""

    def __init__(self, address, lease):
        from kazoo.client import KazooClient

        hosts, self.root = address.split("/", 1)
        self.client = KazooClient(hosts=hosts, timeout=lease)
        self.client.start(timeout=60)
        self.locks = {}
        # The locks of other tasks of this process.
        self.others = []

    def take(self, kind, name, wait):
        from kazoo.exceptions import NoNodeError

        path = f"/{self.root}/{name}"
        while True:
            if name not in self.locks:
                self.locks[name] = self.client.Lock(path, extra_lock_patterns=["-lock-"])
            try:
                return 0 if self.locks[name].acquire(blocking=wait) else None
            except NoNodeError:
                # A `Lock` makes its directory once, and the servers remove one that is empty.
                del self.locks[name]

    def release(self, kind, name):
        self.locks[name].release()

    def again(self, name):
        self.locks[name].release()

    def beside(self, name):
        released = self.locks.pop(name)
        self.take("mutex", name, True)
        self.others.append(self.locks.pop(name))
        self.locks[name] = released


class Etcdctl:
    """`etcdctl lock NAME`: one process per lock, which says its key when it holds it."""

    def __init__(self, address, lease):
        self.command = ["etcdctl", f"--endpoints=http://{address}", "lock", f"--ttl={lease:.0f}"]
        self.held = {}

    def take(self, kind, name, wait):
        if not wait:
            raise ValueError("etcdctl cannot try")
        process = subprocess.Popen(
            [*self.command, name],
            env={**os.environ, "ETCDCTL_API": "3"},
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=die_with_parent,
        )
        # It says its key, and no revision: there is no fence.
        if not process.stdout.readline().startswith(name + "/"):
            raise RuntimeError("etcdctl did not get the lock")
        self.held[name] = process
        return 0

    def release(self, kind, name):
        process = self.held.pop(name)
        process.send_signal(signal.SIGINT)
        process.wait()


def die_with_parent():
    """Whoever kills the driver means the lock's holder."""
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Psql:
    """One session of psql that takes the documented advisory lock."""

    def __init__(self, address, lease):
        self.process = subprocess.Popen(
            ["psql", "--no-psqlrc", "-qtA", address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, function, name):
        self.process.stdin.write(f"SELECT 'got ' || {function}(lockkeeper_id('{name}'))::text;\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer.startswith("got"):
            raise RuntimeError(f"psql said {answer!r}")
        return answer.split()[1:] != ["false"]

    def take(self, kind, name, wait):
        function = "pg_advisory_lock" if wait else "pg_try_advisory_lock"
        return 0 if self.ask(function, name) else None

    def release(self, kind, name):
        if not self.ask("pg_advisory_unlock", name):
            raise RuntimeError("it was not held")


def hammer(client, endures, kind, name, count, port, pause):
    """Enters so many times; if it endures, the arbiter is told of failures, and it goes on."""
    with socket.create_connection(("127.0.0.1", port)) as arbiter:
        arbiter.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def ask(line):
            arbiter.sendall(line.encode())
            if arbiter.recv(1) != b".":
                raise RuntimeError("the arbiter is gone")

        for _ in range(count):
            try:
                fence = client.take(kind, name, True)
                ask(f"enter theirs exclusive {fence} {name}\n")
                ask("leave\n")
                client.release(kind, name)
            except Exception as problem:
                if not endures:
                    raise
                ask(f"trouble theirs {name} failed {one_line(problem)}\n")
            time.sleep(random.uniform(0, pause / 1000))


def obey(client, order):
    if order[0] in ("acquire", "try"):
        fence = client.take(order[1], order[2], order[0] == "acquire")
        return "busy" if fence is None else f"held {fence}"
    if order[0] == "release":
        client.release(order[1], order[2])
        return "released"
    if order[0] == "beside":
        client.beside(order[2])
        return "held 0"
    if order[0] == "again":
        client.again(order[2])
        return "released"
    if order[0] in ("hammer", "endure"):
        hammer(client, order[0] == "endure", order[1], order[2], *map(int, order[3:]))
        return "done"
    raise ValueError(f"what is {order[0]}?")


def one_line(problem):
    return f"{type(problem).__name__}: {problem}".replace("\n", " ")


def main():
    clients = {"redis-py": RedisPy, "kazoo": Kazoo, "etcdctl": Etcdctl, "psql": Psql}
    client = clients[sys.argv[1]](sys.argv[2], int(sys.argv[3]) / 1000)
    print("ready", flush=True)
    for line in sys.stdin:
        try:
            answer = obey(client, line.split())
        except Exception as problem:  # Whatever it is, the caller must see it.
            answer = f"error {one_line(problem)}"
        print(answer, flush=True)


main()
