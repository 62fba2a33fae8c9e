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
    engines: tuple = ("redis", "redlock", "zookeeper", "etcd", "postgres", "file")
    ours_only: bool = False  # but for clients that name it


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


QUEUED = ("redis", "zookeeper", "etcd")
SCENARIOS = [
    Scenario("one", "One task, its own key"),
    Scenario("own64", "64 tasks of one process, each with its own key", tasks=64, keys="own",
             engines=("redis", "redlock", "zookeeper", "etcd", "postgres")),
    Scenario("tasks16", "16 tasks of one process, one key", tasks=16, seconds=2.0, engines=("redis", "zookeeper", "etcd")),
    Scenario("hot8", "8 processes, one key, empty section", processes=8, seconds=2.0),
    Scenario("section", "8 processes, one key, a section of 1 ms", processes=8, section_us=1000, seconds=2.0,
             engines=QUEUED),
    Scenario("alone", "One process, a section of 1 ms", section_us=1000, engines=("redis",), ours_only=True),
    Scenario("waiters4", "4 clients, one key", processes=4, engines=QUEUED),
    Scenario("waiters64", "64 clients, one key", processes=4, clients=16, seconds=2.0, engines=QUEUED),
    Scenario("waiters256", "256 clients, one key", processes=4, clients=64, seconds=3.0, engines=QUEUED),
    Scenario("waiters512", "512 clients, one key", processes=4, clients=128, seconds=3.0, engines=("redis",)),
    Scenario("rivals", "Two processes, one key, guards dropped and taken again at once", processes=2, seconds=2.0,
             engines=("redis",), ours_only=True),
    Scenario("wanted", "One task, a key that another client keeps between the visits", engines=("redis",), ours_only=True),
]

JVM = 4.0
OURS = Client("lockkeeper", "ours", "`mutex(key).acquire()`, `release().await`")
DROPPED = Client("lockkeeper-dropped", "ours", "`mutex(key).acquire()`, the guard is dropped", scenarios=("one", "rivals"))
BASE = [OURS, DROPPED]
KEPT = Client("lockkeeper-kept", "ours", "`mutex(key).keep(60s)`, `release().await`", scenarios=("one",))
WANTED = Client("lockkeeper-wanted", "ours", "`mutex(key).acquire()`, while another client has `keep(60s)`", scenarios=("wanted",))

CLIENTS = {
    "redis": BASE + [
        KEPT, WANTED,
        Client("lockkeeper-fair", "ours", "`mutex(key).fair()`", scenarios=("hot8", "section", "waiters4", "waiters64", "waiters256", "waiters512")),
        Client("socket", "ours", "two `PING`s by a blocking socket", scenarios=("one", "rivals", "wanted"), floor=True),
        Client("set-nx", "peers", "`SET NX PX`, then compare and delete, by the crate redis", scenarios=("one", "own64"), floor=True),
        Client("rslock", "peers", "`LockManager::acquire`, `release().await`; defaults", most=256),
        Client("redsync", "go", "`NewMutex`, `Lock`, `Unlock`; defaults", most=256),
        Client("redislock", "go", "`Obtain` with `LinearBackoff(100ms)`, `Release`", most=256),
        Client("redisson", "java", "`getLock`, `lock`, `unlock`; one client per process, a thread per contender", most=256, warm_up=JVM),
        Client("redis-py", "python", "`Redis.lock(timeout=30)`, a thread per contender", most=64),
        Client("node-redlock", "node", "`Redlock.acquire`, `release`; default retries, then again", most=64, warm_up=1.0),
    ],
    "redlock": BASE + [
        Client("rslock", "peers", "`LockManager` with five servers"),
        Client("redsync", "go", "`redsync.New` with five pools"),
        Client("node-redlock", "node", "`new Redlock` with five clients", warm_up=1.0),
    ],
    "zookeeper": BASE + [
        Client("create", "peers", "create an ephemeral node, delete it", scenarios=("one", "own64"), floor=True),
        Client("zookeeper-client", "peers", "`Client::lock`, dropped: there is no other way"),
        Client("curator", "java", "`InterProcessMutex`; one client per process, a thread per contender", warm_up=JVM),
        Client("kazoo", "python", "`client.Lock`, a thread per contender; one client per process", most=64),
    ],
    "etcd": BASE + [
        Client("put", "peers", "put with a lease, delete", scenarios=("one", "own64"), floor=True),
        Client("lock-service", "peers", "the server's `v3lock` service, by gRPC"),
        Client("concurrency", "go", "`concurrency.NewMutex`, a session per contender"),
    ],
    "postgres": [
        Client("lockkeeper-advisory", "ours", "`?strategy=advisory`"),
        Client("sqlx-advisory", "peers", "`PgAdvisoryLock`, a connection per contender"),
        Client("lockkeeper-lease", "ours", "`?strategy=lease`"),
        Client("naive-table", "peers", "`INSERT … ON CONFLICT DO NOTHING`, `DELETE`; polls every 10 ms", floor=True),
    ],
    "file": BASE + [
        Client("flock", "peers", "open, `flock`, close"),
        Client("fd-lock", "peers", "`RwLock::write` of a file kept open"),
    ],
}


def chosen(engine, scenario):
    """The clients that take part."""
    contenders = scenario.processes * scenario.clients * scenario.tasks
    return [client for client in CLIENTS[engine] if contenders <= client.most
            and (scenario.name in client.scenarios if client.scenarios
                 else client is OURS or not scenario.ours_only)]


def warm_up(client, scenario):
    """In seconds. Compilers of several processes share the processors."""
    return client.warm_up * (2 if scenario.processes > 1 else 1)


def baselines(scenario, clients):
    """Our own clients again, by the worker with the library of another revision. Variants are left out where they are
    not the point."""
    variants = ("lockkeeper-fair", KEPT.name, WANTED.name, *(() if scenario.name == "rivals" else (DROPPED.name,)))
    return [dataclasses.replace(client, name=client.name.replace("lockkeeper", "baseline"), program="baseline")
            for client in clients if client.program == "ours" and not client.floor and client.name not in variants]


def worker_name(client):
    """What a worker calls the client: some differ in their address only."""
    name = client.name.replace("baseline", "lockkeeper")
    return "lockkeeper" if name in ("lockkeeper-advisory", "lockkeeper-lease") else name


def address(client, store):
    if client.program not in ("ours", "baseline") or client.floor:
        return store.address
    strategy = client.name.partition("-")[2]
    url = store.other_url if client.program == "baseline" else store.url
    return url + (f"?strategy={strategy}" if strategy in ("advisory", "lease") else "")
