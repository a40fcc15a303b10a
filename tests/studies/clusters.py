"""Two nodes on this machine and an engine of two ranks, for tests of the machines that a study runs
on."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from conftest import eventually, gone, kill
from loadstone.studies.file import read_study
from loadstone.studies.plan import plan_study
from loadstone.studies.status import StudyStatus, read_status

ROOT = Path(__file__).resolve().parents[2]

# Stands for vllm over two nodes: rank 0 serves once rank 1 is there, and each writes down its
# process.
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
# Stands for Docker: what runs in a container is no child of the command, and goes on when that is
# killed.
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
    """Yield what `scripts/clusters/KIND start` prints while the cluster is up; skip where there can
    be none."""
    script = ROOT / "scripts" / "clusters" / kind
    started = subprocess.run(
        [script, "start", folder], capture_output=True, text=True, timeout=300, check=False
    )
    try:
        if started.returncode != 0:
            pytest.skip(started.stderr.strip().splitlines()[-1])
        yield started.stdout.strip()
    finally:
        subprocess.run([script, "stop", folder], timeout=60, check=True)


class TwoRanks:
    """A study of an engine of two ranks in a folder, run by `loadstone study run` as another
    process."""

    def __init__(
        self, folder: Path, machine: str, env: Mapping[str, str], output: int = 16
    ) -> None:
        self.folder = folder
        self.env = {**os.environ, **env}
        self.out = folder / "out" / "two"
        self.path = folder / "study.yaml"
        self.path.write_text(STUDY.format(folder=folder, machine=machine, output=output))
        engine = folder / "engine"
        engine.write_text(ENGINE.format(python=sys.executable, folder=str(folder)))
        engine.chmod(engine.stat().st_mode | stat.S_IXUSR)

    def contain(self) -> None:
        """Have the engine in containers of a Docker that is none; `setup` must have the folder in
        $PATH."""
        text = self.path.read_text().replace(
            f"program: {self.folder}/engine", 'image: "maker/engine:1"'
        )
        self.path.write_text(text)
        docker = self.folder / "docker"
        docker.write_text(DOCKER.format(folder=self.folder))
        docker.chmod(0o755)

    def containers(self, verb: str) -> list[str]:
        """Names of those that were `started` or `stopped`."""
        path = self.folder / verb
        words = path.read_text().split() if path.exists() else []
        return sorted(word for word in words if word.startswith("loadstone-"))

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = [
            sys.executable,
            "-m",
            "loadstone",
            "study",
            "run",
            str(self.path),
            "--out",
            str(self.out.parent),
        ]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [*command, *words], stdout=pipe, stderr=pipe, text=True, env=self.env
        )

    def run(self, code: int = 0) -> str:
        """Run the study to its end, which must have that exit code; returns what it told on
        stderr."""
        return end(self.start(), code)

    def failure(self) -> str:
        """Run the study, which must fail; returns its one line that says why."""
        told = self.run(code=1)
        assert "Traceback" not in told
        return next((line for line in told.splitlines() if line.startswith("failed")), told)

    def pid(self, rank: int) -> int:
        return int((self.folder / f"pid-{rank}").read_text())

    def ranks_alive(self) -> list[int]:
        return [
            rank
            for rank in (0, 1)
            if (self.folder / f"pid-{rank}").exists() and not gone(self.pid(rank))
        ]

    def status(self) -> StudyStatus:
        read = read_study(self.path)
        return read_status(read, plan_study(read), self.out)

    def states(self) -> list[str]:
        return [cell.state for launch in self.status().launches for cell in launch.cells]

    def why(self) -> str:
        return self.status().launches[0].why

    def wait_for(self, event: str, count: int = 1) -> None:
        journal = self.out / "journal.jsonl"
        assert eventually(
            lambda: journal.exists() and journal.read_text().count(f'"event":"{event}"') >= count
        )

    def close(self) -> None:
        """End what a test that failed may have left."""
        kill(*(self.pid(rank) for rank in self.ranks_alive()))


def end(run: subprocess.Popen[str], code: int, number: signal.Signals | None = None) -> str:
    """Wait for a run, after a signal if one is given."""
    if number is not None:
        run.send_signal(number)
    _, told = run.communicate(timeout=600)
    assert run.returncode == code, told
    return told


class Nodes:
    """A cluster of two nodes that is up, and the studies that run on it."""

    kind: str
    machine: str
    """As a study file has it, without its braces."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self.folder = folder
        self.env = env
        self.studies: list[TwoRanks] = []

    def study(self, more: str = "", output: int = 16, machine: str = "") -> TwoRanks:
        text = machine or f"{{{self.machine}{more}}}"
        study = TwoRanks(self.folder, text, self.env, output)
        self.studies.append(study)
        return study

    def leftovers(self) -> list[str]:
        """Return what studies have left on the nodes, but for the ranks."""
        return []

    def lose_node(self) -> None:
        script = ROOT / "scripts" / "clusters" / self.kind
        subprocess.run([script, "lose", self.folder / self.kind, "node1"], timeout=60, check=True)

    def check_clean(self) -> None:
        """Check that nothing is left, of the ranks neither."""
        assert eventually(lambda: not any(study.ranks_alive() for study in self.studies))
        left = self.leftovers()
        assert left == [], left


class SshNodes(Nodes):
    kind = "ssh"
    machine = f"ssh: [node0, node1], python: {sys.executable}"

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        super().__init__(folder, env)
        self._before = self._work()

    def _work(self) -> set[str]:
        """Return the work folders on the hosts, which are this machine."""
        kinds = ("loadstone-??????", "loadstone-????????-??????")
        return {str(path) for kind in kinds for path in Path("/tmp").glob(kind)}

    def leftovers(self) -> list[str]:
        return sorted(self._work() - self._before)


class SlurmNodes(Nodes):
    kind = "slurm"
    machine = "partition: main"

    def jobs(self, states: str = "PENDING,CONFIGURING,RUNNING,COMPLETING") -> list[str]:
        words = ["squeue", "--noheader", "--format=%A %T", f"--states={states}"]
        return self.command(*words).split("\n")[:-1]

    def command(self, *words: str) -> str:
        env = {**os.environ, **self.env}
        return subprocess.run(words, env=env, capture_output=True, text=True, check=True).stdout

    def leftovers(self) -> list[str]:
        return self.jobs()


class RayNodes(Nodes):
    kind = "ray"

    def __init__(self, folder: Path, address: str) -> None:
        super().__init__(folder, {"TMPDIR": str(folder)})
        self.address = address
        self.machine = f"ray: '{address}', python: {sys.executable}"
