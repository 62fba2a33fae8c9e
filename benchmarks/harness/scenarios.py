"""What is measured, and with which clients."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Scenario:
    name: str
    title: str
    processes: int = 1
    clients: int = 1
    tasks: int = 1
    keys: str = "hot"
    section_us: int = 0
    seconds: float = 1.0
    engines: tuple = ("redis", "redlock", "zookeeper", "file")


@dataclasses.dataclass(frozen=True)
class Client:
    """A lock library as its documentation says how to use it. `program` names who runs it, `scenarios` restricts it."""
    name: str
    program: str
    how: str
    scenarios: tuple = ()
    most: int = 1024  # contenders, above which it is left out
    warm_up: float = 0.3  # seconds
    floor: bool = False  # no lock, or one that guarantees nothing


QUEUED = ("redis", "zookeeper")
SCENARIOS = [
    Scenario("one", "One task, its own key"),
    Scenario("own64", "64 tasks of one process, each with its own key", tasks=64, keys="own",
             engines=("redis", "redlock", "zookeeper")),
    Scenario("tasks16", "16 tasks of one process, one key", tasks=16, seconds=2.0, engines=QUEUED),
    Scenario("hot8", "8 processes, one key, empty section", processes=8, seconds=2.0),
    Scenario("section", "8 processes, one key, a section of 1 ms", processes=8, section_us=1000, seconds=2.0,
             engines=QUEUED),
    Scenario("alone", "One process, a section of 1 ms", section_us=1000, engines=QUEUED),
    Scenario("waiters4", "4 clients, one key", processes=4, engines=QUEUED),
    Scenario("waiters64", "64 clients, one key", processes=4, clients=16, seconds=2.0, engines=QUEUED),
    Scenario("waiters256", "256 clients, one key", processes=4, clients=64, seconds=3.0, engines=QUEUED),
    Scenario("waiters512", "512 clients, one key", processes=4, clients=128, seconds=3.0, engines=("redis",)),
    Scenario("rivals", "Two processes, one key, guards dropped and taken again at once", processes=2, seconds=2.0,
             engines=("redis",)),
]

OURS = Client("lockkeeper", "ours", "`mutex(key).acquire()`, `release().await`")
DROPPED = Client("lockkeeper-dropped", "ours", "`mutex(key).acquire()`, the guard is dropped", scenarios=("one", "rivals"))
BASE = [OURS, DROPPED]

CLIENTS = {
    "redis": BASE + [
        Client("lockkeeper-fair", "ours", "`mutex(key).fair()`", scenarios=("hot8", "section", "waiters4", "waiters64", "waiters256", "waiters512")),
        Client("socket", "ours", "two `PING`s by a blocking socket", scenarios=("one", "rivals"), floor=True),
        Client("redis-py", "python", "`Redis.lock(timeout=30)`, a thread per contender", most=64),
        Client("node-redlock", "node", "`Redlock.acquire`, `release`; default retries, then again", most=64, warm_up=1.0),
    ],
    "redlock": BASE + [
        Client("node-redlock", "node", "`new Redlock` with five clients", warm_up=1.0),
    ],
    "zookeeper": BASE + [
        Client("kazoo", "python", "`client.Lock`, a thread per contender; one client per process", most=64),
    ],
    "file": BASE,
}


def chosen(engine, scenario):
    """The clients that take part."""
    contenders = scenario.processes * scenario.clients * scenario.tasks
    rivals = scenario.name == "rivals"
    return [client for client in CLIENTS[engine]
            if (scenario.name in client.scenarios if client.scenarios else not rivals) and contenders <= client.most]


def as_baseline(client):
    """The same, by the worker with the library of another revision."""
    return dataclasses.replace(client, name=client.name.replace("lockkeeper", "baseline"), program="baseline")


def worker_name(client):
    """What a worker calls the client."""
    return client.name.replace("baseline", "lockkeeper")


def address(client, store):
    return store.url if client.program in ("ours", "baseline") and not client.floor else store.address
