"""Builds the workers into target/benchmarks, and says how to start them and what version they have."""

import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").resolve()
BUILT = TARGET / "benchmarks"
FOREIGN = TARGET / "interop"
BINARY = "lockkeeper-benchmarks"


def run(*command, where=ROOT, **how):
    subprocess.run(list(map(str, command)), cwd=where, check=True, **how)


def ours(profile):
    """The workspace's own worker."""
    release = ["--release"] if profile == "release" else []
    # With the features of the tests, so that a debug build finds what these have built.
    features = ["-p", "lockkeeper-benchmarks"] if release else ["--workspace", "--all-features"]
    run("cargo", "build", "--quiet", "--locked", *release, *features, "--bin", BINARY)
    return [TARGET / profile / BINARY]


def baseline(revision):
    """Our worker with the library of another revision."""
    name = subprocess.run(["git", "rev-parse", "--short", revision + "^{commit}"], cwd=ROOT, check=True, text=True,
                          stdout=subprocess.PIPE).stdout.strip()
    sources = sorted((ROOT / "benchmarks" / "ours").rglob("*.*"))
    mark = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:8]
    program = BUILT / "baseline" / f"worker-{name}-{mark}"
    if program.exists():
        return name, [program]
    tree = BUILT / "baseline" / name
    if not tree.exists():
        partial = tree.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        archive = subprocess.Popen(["git", "archive", name], cwd=ROOT, stdout=subprocess.PIPE)
        run("tar", "-x", where=partial, stdin=archive.stdout)
        partial.rename(tree)
    worker = tree / "benchmarks" / "ours"
    shutil.rmtree(worker, ignore_errors=True)
    shutil.copytree(ROOT / "benchmarks" / "ours", worker)
    manifest = tree / "Cargo.toml"
    text = manifest.read_text()
    if '"benchmarks/ours"' not in text:
        manifest.write_text(text.replace('members = [', 'members = ["benchmarks/ours", ', 1))
    built = BUILT / "baseline" / "target"
    run("cargo", "build", "--quiet", "--release", "-p", "lockkeeper-benchmarks", "--bin", BINARY, where=tree,
        env={**os.environ, "CARGO_TARGET_DIR": str(built)})
    shutil.copy(built / "release" / BINARY, program)
    return name, [program]


def peers(profile):
    """The peers written in Rust. They share the target directory, and so the crates that both use."""
    release = ["--release"] if profile == "release" else []
    run("cargo", "build", "--quiet", "--locked", *release, where=ROOT / "benchmarks" / "peers",
        env={**os.environ, "CARGO_TARGET_DIR": str(TARGET)})
    return [TARGET / profile / "lockkeeper-benchmark-peers"]


def foreign(language):
    """A worker beside the drivers of interop/, which has the same libraries."""
    run(ROOT / "interop" / "build", language)
    return {
        "go": [FOREIGN / "go" / "benchmark"],
        "java": ["java", "-Xmx256m", "-cp", f"{FOREIGN}/java/classes:{FOREIGN}/java/lib/*", "benchmark.Worker"],
        "node": ["node", FOREIGN / "node" / "benchmark.mjs"],
        "python": [FOREIGN / "python" / "bin" / "python", FOREIGN / "python" / "benchmark.py"],
    }[language]


def program(name, profile="release"):
    """The command that starts a worker; the client's name and the order follow."""
    return ours(profile) if name == "ours" else peers(profile) if name == "peers" else foreign(name)


def versions():
    """The version of every library and server that takes part."""
    interop = ROOT / "interop"
    found = {}
    lock = (ROOT / "benchmarks" / "peers" / "Cargo.lock").read_text()
    for crate, client in {"rslock": "rslock", "redis": "redis (crate)", "zookeeper-client": "zookeeper-client",
                          "sqlx": "sqlx", "fd-lock": "fd-lock"}.items():
        found[client] = re.search(rf'name = "{crate}"\nversion = "(.*?)"', lock)[1]
    modules = (interop / "go" / "go.mod").read_text()
    for module, client in {"go-redsync/redsync/v4": "redsync", "bsm/redislock": "redislock",
                           "etcd/client/v3": "etcd concurrency"}.items():
        found[client] = re.search(rf"{module} v(\S+)", modules)[1]
    pom = (interop / "java" / "pom.xml").read_text()
    for artifact, client in {"redisson": "Redisson", "curator-recipes": "Curator"}.items():
        found[client] = re.search(rf"<artifactId>{artifact}</artifactId>\s*<version>(.*?)<", pom)[1]
    found["node-redlock"] = json.loads((interop / "node" / "package.json").read_text())["dependencies"]["redlock"]
    for package, version in re.findall(r"(\S+)==(\S+)", (interop / "python" / "requirements.txt").read_text()):
        found["redis-py" if package == "redis" else package] = version
    for name, command in {
        "Redis": "redis-server --version", "etcd": "etcd --version", "PostgreSQL": "ls /usr/lib/postgresql",
        "ZooKeeper": "ls -d /usr/share/java/zookeeper-3*.jar", "Java": "java --version", "Go": "go version",
        "Node": "node --version", "Python": "python3 --version", "Rust": "rustc --version", "Linux": "uname -r",
    }.items():
        text = subprocess.run(command, shell=True, text=True, capture_output=True).stdout
        number = re.search(r"\d+(\.\d+)*", text)
        found[name] = number[0] if number else "?"
    return found
