"""Two nodes on this machine and an engine of two ranks, for tests of machines."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from loadstone.studies.file import read_study
from loadstone.studies.plan import plan_study
from loadstone.studies.status import StudyStatus, status_of

ROOT = Path(__file__).resolve().parents[2]

# Stands for vllm over two nodes: rank 0 serves once rank 1 is there, and each writes down its process.
ENGINE = """\
#!{python}
import os, sys, time
words = sys.argv[1:]
def value(flag):
    return words[words.index(flag) + 1]
rank = int(value("--node-rank"))
print("rank", rank, "of", value("--nnodes"), "leader", value("--master-addr"), flush=True)
with open(os.path.join({folder!r}, f"pid-{{rank}}.tmp"), "w") as file:
    file.write(str(os.getpid()))
os.rename(file.name, file.name[:-4])
if os.path.exists({folder!r} + "/no-rank-1") and rank == 1:
    raise SystemExit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
if rank:
    time.sleep(600)
while not os.path.exists(os.path.join({folder!r}, "pid-1")):
    time.sleep(0.05)
served = ["llama-3.1-8b@1xh200/engine=vllm", "--host", value("--host"), "--port", value("--port")]
os.execv({python!r}, [{python!r}, "-m", "loadstone", "serve-sim", *served])
"""
STUDY = """\
study: two
model: llama-3.1-8b
engines: {{vllm: {{program: {folder}/engine}}}}
deployments: {{engine: [vllm], layout: ["2xcpu/tp2,nodes=2"]}}
workloads: {{short: {{input: 64, output: {output}}}}}
loads: {{concurrency: [1, 2], requests: 4, warmup: 0}}
limits: {{ready: 60s}}
machines:
  nodes: {machine}
"""
# Stands for Docker: what runs in a container is no child of the command, and goes on when that is killed.
DOCKER = """\
#!/bin/sh
if [ "$1" = stop ]; then
    echo "$@" >>{folder}/stopped
else
    echo "$@" >>{folder}/started
    trap '' TERM
    sleep 600
fi
"""


@contextmanager
def cluster(kind: str, folder: Path) -> Iterator[str]:
    """What `scripts/clusters/KIND start` prints, as long as the cluster is up; skips where there can be none."""
    script = ROOT / "scripts" / "clusters" / kind
    started = subprocess.run([script, "start", folder], capture_output=True, text=True, timeout=300, check=False)
    try:
        if started.returncode != 0:
            pytest.skip(started.stderr.strip().splitlines()[-1])
        yield started.stdout.strip()
    finally:
        subprocess.run([script, "stop", folder], timeout=60, check=True)


def lose(kind: str, folder: Path, node: str) -> None:
    subprocess.run([ROOT / "scripts" / "clusters" / kind, "lose", folder, node], timeout=60, check=True)


class TwoRanks:
    """A study of an engine of two ranks in a folder, run by `loadstone study run` as another process."""

    def __init__(self, folder: Path, machine: str, env: Mapping[str, str], output: int = 16) -> None:
        self.folder = folder
        self.env = {**os.environ, **env}
        self.out = folder / "out" / "two"
        self.path = folder / "study.yaml"
        self.path.write_text(STUDY.format(folder=folder, machine=machine, output=output))
        engine = folder / "engine"
        engine.write_text(ENGINE.format(python=sys.executable, folder=str(folder)))
        engine.chmod(engine.stat().st_mode | stat.S_IXUSR)

    def contain(self) -> None:
        """Have the engine in containers of a Docker that is none; `setup` must have the folder in $PATH."""
        text = self.path.read_text().replace(f"program: {self.folder}/engine", 'image: "maker/engine:1"')
        self.path.write_text(text)
        docker = self.folder / "docker"
        docker.write_text(DOCKER.format(folder=self.folder))
        docker.chmod(0o755)

    def containers(self, verb: str) -> list[str]:
        """Names of those that were `started` or `stopped`."""
        path = self.folder / verb
        words = path.read_text().split() if path.exists() else []
        return sorted(word for word in words if word.startswith("loadstone-"))

    def run(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "loadstone", "study", "run", str(self.path), "--out", str(self.out.parent)]
        return subprocess.Popen(
            [*command, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.env
        )

    def pid(self, rank: int) -> int:
        return int((self.folder / f"pid-{rank}").read_text())

    def ranks_alive(self) -> list[int]:
        return [rank for rank in (0, 1) if (self.folder / f"pid-{rank}").exists() and is_alive(self.pid(rank))]

    def status(self) -> StudyStatus:
        read = read_study(self.path)
        return status_of(read, plan_study(read), self.out)

    def states(self) -> list[str]:
        return [cell.state for launch in self.status().launches for cell in launch.cells]

    def why(self) -> str:
        return self.status().launches[0].why

    def wait_for(self, event: str, count: int = 1, timeout_s: float = 60) -> None:
        journal = self.out / "journal.jsonl"
        until(lambda: journal.exists() and journal.read_text().count(f'"event":"{event}"') >= count, timeout_s)

    def close(self) -> None:
        """End what a test that failed may have left."""
        for rank in self.ranks_alive():
            os.kill(self.pid(rank), signal.SIGKILL)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(condition: Callable[[], bool], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(0.05)
