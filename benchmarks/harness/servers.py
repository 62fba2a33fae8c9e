"""The servers of a run, on free ports, with the settings that they have by default.

Writes are as durable as the server makes them: nothing here turns a sync off but Redis' snapshots.
"""

import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time

ZOOKEEPER = "/usr/share/java/zookeeper.jar:/usr/share/java/netty-codec.jar:/usr/share/java/netty-resolver.jar"
# PostgreSQL refuses to run as root.
AS_USER = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.getuid() == 0 else []


def start(engine):
    """The servers of an engine; use it as a context."""
    return {"redis": redis, "redlock": redlock, "zookeeper": zookeeper, "etcd": etcd, "postgres": postgres,
            "file": Files}[engine]()


class Servers:
    """Server processes. `address` is for foreign clients, `url` for ours, and `other_url` for another version of ours,
    whose tables or files may have another layout."""

    def __init__(self, scheme, commands, suffix="", count=1, ready=None):
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="benchmark-"))
        self.home.chmod(0o777)
        self.processes = []
        self.ports = free_ports(count)
        self.address = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        self.url = self.other_url = f"{scheme}://{self.address}{suffix}"
        with (self.home / "log").open("w") as log:
            for port in self.ports:
                place = self.home / str(port)
                place.mkdir()
                place.chmod(0o777)
                self.processes.append(subprocess.Popen([*AS_USER, "sh", "-c", commands(port)], cwd=place, stdout=log,
                                                       stderr=log, start_new_session=True))
        until = time.monotonic() + 60
        for process, port in zip(self.processes, self.ports):
            while not (ready or listening)(port):
                if process.poll() is not None or time.monotonic() > until:
                    self.stop()
                    raise SystemExit(f"a server of {scheme} did not start:\n{self.log}")
                time.sleep(0.05)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        self.log = (self.home / "log").read_text()
        for process in self.processes:
            try:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        shutil.rmtree(self.home, ignore_errors=True)

    def cpu(self):
        """The processor time of all processes so far, in seconds."""
        return sum(cpu(process.pid) for process in self.processes)

    def commands(self):
        """How many commands Redis servers ran so far, but for this one; None for other servers."""
        if not self.url.startswith("red"):
            return None
        return sum(redis_calls(port) for port in self.ports)


class Files:
    """A directory, and no server."""

    def __enter__(self):
        self.home = tempfile.mkdtemp(prefix="benchmark-")
        self.address, self.url, self.other_url = self.home, f"file:{self.home}/new", f"file:{self.home}/other"
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.home, ignore_errors=True)

    def cpu(self):
        return 0.0

    def commands(self):
        return None


def redis():
    return Servers("redis", redis_command)


def redlock():
    return Servers("redlock", redis_command, count=5)


def redis_command(port):
    return f"exec redis-server --port {port} --bind 127.0.0.1 --save '' --dir ."


def zookeeper():
    def command(port):
        settings = f"tickTime=2000\\ndataDir=data\\nclientPort={port}\\nclientPortAddress=127.0.0.1\\nmaxClientCnxns=0\\n"
        return (f"printf '{settings}admin.enableServer=false\\n4lw.commands.whitelist=srvr\\n' >zoo.cfg; exec java "
                f"-cp {ZOOKEEPER} org.apache.zookeeper.server.quorum.QuorumPeerMain zoo.cfg")

    def ready(port):
        try:
            with socket.create_connection(("127.0.0.1", port)) as stream:
                stream.sendall(b"srvr")
                return b"Mode: " in stream.recv(4096)
        except OSError:
            return False

    return Servers("zookeeper", command, suffix="/locks", ready=ready)


def etcd():
    def command(port):
        peer, = free_ports(1)
        url = f"http://127.0.0.1:{port}"
        return (f"exec etcd --data-dir data --listen-client-urls {url} --advertise-client-urls {url} "
                f"--listen-peer-urls http://127.0.0.1:{peer} --log-level error")

    def ready(port):
        health = ["etcdctl", f"--endpoints=http://127.0.0.1:{port}", "endpoint", "health"]
        return subprocess.run(health, env={**os.environ, "ETCDCTL_API": "3"}, capture_output=True).returncode == 0

    return Servers("etcd", command, ready=ready)


def postgres():
    installed = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin"))
    binaries = f"{installed[-1]}/" if installed else ""

    def command(port):
        return (f"{binaries}initdb -A trust -U postgres -D data >/dev/null && "
                f"echo 'CREATE DATABASE other' | {binaries}postgres --single -D data postgres >/dev/null && "
                f"exec {binaries}postgres -D data -p {port} -k '' -c max_connections=1000")

    def ready(port):
        probe = [f"{binaries}pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]
        return subprocess.run(probe).returncode == 0

    servers = Servers("postgres", command, suffix="/postgres", ready=ready)
    servers.url = servers.address = servers.url.replace("://", "://postgres@")
    servers.other_url = servers.url.removesuffix("postgres") + "other"
    return servers


def free_ports(count):
    """Ports that nobody listens at, all different."""
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def listening(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def cpu(pid):
    """The processor time of a process and its living descendants, in seconds."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0.0
    own = (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
    return own + sum(cpu(child) for child in children)


def busy():
    """The processor time of all processes of the machine so far, in seconds."""
    user, nice, system = pathlib.Path("/proc/stat").read_text().split()[1:4]
    return (int(user) + int(nice) + int(system)) / os.sysconf("SC_CLK_TCK")


def redis_calls(port):
    with socket.create_connection(("127.0.0.1", port)) as stream, stream.makefile("rb") as answers:
        stream.sendall(b"INFO commandstats\r\n")
        text = answers.read(int(answers.readline()[1:])).decode()
    lines = [line for line in text.splitlines() if line.startswith("cmdstat_") and not line.startswith("cmdstat_info:")]
    return sum(int(line.split("calls=")[1].split(",")[0]) for line in lines)
