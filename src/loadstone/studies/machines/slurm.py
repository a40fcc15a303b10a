"""Slurm: each launch is a job, which lives on when the process that runs the study is gone.

The batch script is whole in itself: `sbatch` of it by hand starts the same. Ranks write logs and
exit codes into the launch's folder, which all nodes share, as clusters do. A job is found again by
its name, which the journal has before the job is submitted.
"""

from __future__ import annotations

import contextlib
import hashlib
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from loadstone.core.errors import InputError, TargetError
from loadstone.engines.launch import Launch as Commands
from loadstone.measure.engines.launch import LaunchError, StartedRanks, first_error
from loadstone.measure.engines.process import ServerProcess, container_stop, free_port
from loadstone.studies.commands import (
    commands_of,
    gpus_per_node,
    node_addresses,
    shell_word,
    with_address,
)
from loadstone.studies.file import MachineSettings, StudyFile
from loadstone.studies.journal import Handle, StudyJournal
from loadstone.studies.machines import client
from loadstone.studies.machines.client import RemoteMachine, check_is_started, running_launch
from loadstone.studies.machines.kind import MachineKind, Rendered
from loadstone.studies.machines.ssh import choose_client
from loadstone.studies.plan import PlannedLaunch
from loadstone.studies.supervise import Machine, RunningLaunch

_PORT = 8000
_FIRST_POLL_S, _LAST_POLL_S = 0.5, 10.0
"""Seconds between looks at a job that waits: ever more, for the sake of who runs the controller."""
_LOOK_S = 5.0
"""Between looks at a job that runs."""
_ANSWER_S = 60.0
_SILENT_S = 600.0
"""A controller may be restarted; one that is silent for so long is gone."""
_END_S = 120.0
_WAITS = ("PENDING", "CONFIGURING", "REQUEUED", "SUSPENDED")
_RUNS = ("RUNNING",)
_GOES = "COMPLETING"
_NEVER = (
    "PartitionNodeLimit",
    "PartitionTimeLimit",
    "PartitionConfig",
    "BadConstraints",
    "AccountNotAllowed",
    "QOSNotAllowed",
    "InvalidAccount",
    "InvalidQOS",
    "AssocGrpNodeLimit",
    "QOSMaxNodePerUserLimit",
)
"""Reasons for which a job would wait until somebody changes it or the cluster."""
_CLIENT = "loadstone-client"
"""The name of its step."""
_NOT_SHARED = (
    "nothing was written to {}, which nodes must share with this host; give such a folder with"
    " --out"
)
_CLIENT_S = 60.0
"""A client that is told to end saves what it has."""

_SCRIPT = """\
#!/bin/bash
{options}
cd {folder} || exit 1
{files}
addresses=()
for node in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do
    addresses+=("$(scontrol show node "$node" --oneliner |
        sed -n 's/.* NodeAddr=\\([^ ]*\\).*/\\1/p')")
done
read -r -d '' rank <<'RANK'
trap : TERM
trap 'code=$?; echo $code >rank-$SLURM_NODEID.exit; exit $((code ? code : 1))' EXIT
addresses=("$@")
set --
{setup}
case $SLURM_NODEID in
{ranks}
esac
{run}
RANK
srun --nodes={step} --kill-on-bad-exit=1 --cpu-bind=none --output=rank-%n.log \\
    bash -c "$rank" rank "${{addresses[@]}}"
"""
_CONTAINED = '"$@" &\nwait $!'
"""A shell that waits for a child in the background heeds signals at once: the container is stopped
before Slurm kills what started it, which would leave it behind."""


class SlurmKind(MachineKind):
    """The nodes of a cluster of Slurm."""

    def make(self, read: StudyFile, name: str) -> Sequence[Machine]:
        """See MachineKind."""
        machine = read.study.machines[name]
        return [SlurmMachine(machine, read.study) for _ in range(machine.parallel)]

    def render(
        self, read: StudyFile, name: str, launch: PlannedLaunch, folder: Path
    ) -> Rendered | None:
        """See MachineKind: the script that a study submits."""
        text = SlurmMachine(read.study.machines[name], read.study).render(launch, folder)
        hint = f"mkdir -p {shlex.quote(str(folder.absolute()))}, then sbatch"
        return Rendered(f"loadstone-{launch.id}.sh", text, hint)


class SlurmMachine(RemoteMachine):
    """Submits a job for each launch. The folder of studies must be one that the nodes share with
    this host."""

    kind = "slurm"

    @contextlib.contextmanager
    def running(
        self, launch: PlannedLaunch, folder: Path, journal: StudyJournal, left: Handle
    ) -> Iterator[RunningLaunch]:
        """See supervise.Machine."""
        check_is_started(launch)
        folder = folder.absolute()
        name = self._name(launch, folder)
        old = find_job(_job_name(left)) if left else None
        taken_up = old is not None and old.state in (*_WAITS, *_RUNS)
        port = int(str(left.get("port"))) if taken_up else free_port()
        handle: Handle = {"kind": self.kind, "job_name": name, "port": port}
        journal.write("launch", launch=launch.id, handle=handle)
        try:
            commands = self._commands(launch, port)
            if not taken_up:
                _submit(self.script(launch, commands, folder, name), folder, len(commands.ranks))
            job = self._wait_for_nodes(name)
            url = with_address(commands.url, job.addresses[0])
            commands = msgspec.structs.replace(commands, url=url)
            with SlurmRanks(commands, folder, job) as ranks:
                ranks.wait_ready(self._limits.ready, look=ranks.check_job)
                senders = {
                    node: SlurmClient(job, node or job.nodes[0], self._machine, folder, ranks.check)
                    for node in (None, *job.nodes)
                }
                with choose_client(self._machine, senders, folder, ranks.check) as sender:
                    yield running_launch(ranks, handle | {"job": job.id}, sender)
        finally:
            cancel(name)

    def release(self, left: Handle) -> None:
        """Cancel the job, if there is one still."""
        cancel(_job_name(left))

    def render(self, launch: PlannedLaunch, folder: Path) -> str:
        """Write the script that would be submitted, with a port that is likely to be free."""
        folder, commands = folder.absolute(), self._commands(launch, _PORT)
        return self.script(launch, commands, folder, self._name(launch, folder))

    def _name(self, launch: PlannedLaunch, folder: Path) -> str:
        """Name the job: the same study in another folder has jobs of its own."""
        return (
            f"loadstone-{self._study}-{launch.id}-{hashlib.sha256(bytes(folder)).hexdigest()[:8]}"
        )

    def _commands(self, launch: PlannedLaunch, port: int) -> Commands:
        """Return the commands of all ranks, with what stands for addresses until the job has its
        nodes."""
        nodes = node_addresses(len(commands_of(launch, (), port).ranks))
        return commands_of(launch, nodes, port, nodes[0])

    def script(self, launch: PlannedLaunch, commands: Commands, folder: Path, name: str) -> str:
        """Write the script that `sbatch` gets."""
        machine = self._machine
        gpus = gpus_per_node(launch)
        options = [
            f"--job-name={name}",
            f"--nodes={len(commands.ranks)}",
            f"--ntasks-per-node={commands.tasks_per_node}",
            "--no-requeue",
            f"--output={folder / 'job.log'}",
            f"--partition={machine.partition}",
            *([f"--gpus-per-node={gpus}"] if gpus else []),
            *([f"--account={machine.account}"] if machine.account else []),
            *([f"--qos={machine.qos}"] if machine.qos else []),
            *([f"--time={max(1, round(machine.time / 60))}"] if machine.time else []),
            *(machine.options or ("--exclusive",)),
        ]
        ranks = []
        run = '"$@"'
        for i, rank in enumerate(commands.ranks):
            exports = [
                f"export {key}={shell_word(value, _address)}" for key, value in rank.env.items()
            ]
            words = [shell_word(word, _address) for word in commands.words(rank, str(folder))]
            stop = container_stop(rank.argv)
            if stop:
                exports.append(f"trap {shlex.quote(shlex.join(stop))} TERM")
                run = _CONTAINED
            ranks += [f"{i})", *exports, f"set -- {' '.join(words)}", ";;"]
        return _SCRIPT.format(
            options="\n".join(f"#SBATCH {option}" for option in options),
            folder=shlex.quote(str(folder)),
            files="\n".join(
                f"printf %s {shlex.quote(text)} >{file}" for file, text in commands.files.items()
            ),
            ranks="\n".join(ranks),
            setup="\n".join(machine.setup),
            step=f"{len(commands.ranks)} --ntasks-per-node={commands.tasks_per_node}"
            + (" --mpi=pmix" if commands.tasks_per_node > 1 else ""),
            run=run,
        )

    def _wait_for_nodes(self, name: str) -> SlurmJob:
        """Return the job once it runs. Its wait is not the engine's time. Raises TargetError."""
        pause_s = _FIRST_POLL_S
        while True:
            job = find_job(name)
            if (
                job is not None and job.nodes and job.state not in _WAITS
            ):  # it may be over already: see its logs
                names = (_field_of(node, "NodeAddr", ask_patiently) or node for node in job.nodes)
                return job._replace(addresses=tuple(names))
            if job is None or job.state not in _WAITS:
                raise TargetError(_describe_end(job, name))
            if job.reason in _NEVER:
                problem = f"Slurm would keep the job waiting for ever ({job.reason})"
                raise TargetError(
                    f"{problem}; see partition, account, qos, time and options under machines"
                )
            time.sleep(pause_s)
            pause_s = min(_LAST_POLL_S, pause_s * 1.3)


class SlurmRanks(StartedRanks):
    """An engine whose ranks are the tasks of a job."""

    def __init__(
        self, commands: Commands, folder: Path, job: SlurmJob, ask: Ask | None = None
    ) -> None:
        super().__init__(commands, commands.url)
        self._ask = ask or ask_patiently
        self._job = job
        self._folder = folder
        self._looked_s = 0.0
        self.ranks.extend(SlurmRank(folder, i) for i in range(len(commands.ranks)))

    def check(self) -> None:
        """Check the ranks. Raises LaunchError also where Slurm has ended the job, and names a node
        that was lost."""
        try:
            super().check()
        except LaunchError as error:
            lost = find_lost_nodes(self._job.nodes, self._ask)
            if lost:  # the ranks on others end for it, which is no reason
                raise LaunchError(f"{self.launch.engine}: {lost}", error.cause, error.log) from None
            raise
        self.check_job()

    def check_job(self) -> None:
        """Look at the job, where that was not done a moment ago."""
        if time.monotonic() - self._looked_s < _LOOK_S:
            return
        job = find_job(self._job.name, self._ask)
        self._looked_s = time.monotonic()
        if job is None or job.state not in (*_RUNS, _GOES):
            lost = find_lost_nodes(self._job.nodes, self._ask)
            if lost:
                why = f"{self.launch.engine}: {lost}"
                raise LaunchError(why, _describe_end(job, self._job.name), self._folder / "job.log")
            super().check()  # a rank that ended is the better reason
            log = self._folder / "job.log"
            words = (
                first_error(log.read_text(errors="replace"))
                if log.exists()
                else _NOT_SHARED.format(self._folder)
            )
            raise LaunchError(
                f"{self.launch.engine}: {_describe_end(job, self._job.name)}", words, log
            )

    def stop(self) -> None:
        """Do nothing: the job is cancelled as a whole."""


class SlurmRank:
    """A task of a job; see measure.engines.launch.Rank. Its exit code is in a file, written by the
    task's shell."""

    def __init__(self, folder: Path, number: int) -> None:
        self.log_path = folder / f"rank-{number}.log"
        self._exit = folder / f"rank-{number}.exit"

    def exit_code(self) -> int | None:
        """Return None while it runs, and where another ended first: Slurm then ends all."""
        with contextlib.suppress(OSError, ValueError):
            code = int(self._exit.read_text())
            ends = {path: path.stat().st_mtime_ns for path in self._exit.parent.glob("rank-*.exit")}
            return code if min(ends, key=ends.__getitem__) == self._exit else None
        return None

    def stop(self) -> None:
        """Do nothing: see SlurmRanks.stop."""


class SlurmClient(NamedTuple):
    """Sends the load from a node of the job, into a folder that the node shares with this host."""

    job: SlurmJob
    node: str
    machine: MachineSettings
    folder: Path
    check: Callable[[], None]

    def bench(self, words: Sequence[str], out: Path) -> None:
        """See supervise.Client."""
        python = self.machine.python or sys.executable
        script = "\n".join((*self.machine.setup, 'exec "$@"'))
        where = (
            f"--jobid={self.job.id}",
            "--overlap",
            "--nodes=1",
            "--ntasks=1",
            f"--nodelist={self.node}",
        )
        argv = (python, "-P", "-m", "loadstone", "bench", *words, f"--out={out.absolute()}")
        log = self.folder / "client.log"
        step = (
            "srun",
            *where,
            f"--job-name={_CLIENT}",
            "--cpu-bind=none",
            "bash",
            "-c",
            script,
            "client",
            *argv,
        )
        client.follow(SlurmStep(self.job, step, log), self.node, self.check)


class SlurmStep(ServerProcess):
    """A step of a job, ended gently: what ends `srun` kills the step."""

    def __init__(self, job: SlurmJob, words: Sequence[str], log_path: Path) -> None:
        self._job = job
        super().__init__(words, log_path=log_path)

    def stop(self) -> None:
        """Tell it to end; returns when it has."""
        ends_s = time.monotonic() + _CLIENT_S
        if self.exit_code() is None:
            with contextlib.suppress(_RefusedError):
                steps = _slurm(
                    "squeue", "--steps", "--noheader", f"--jobs={self._job.id}", "--format=%i|%j"
                )
                for number in [
                    line.split("|")[0] for line in steps.split() if line.endswith(f"|{_CLIENT}")
                ]:
                    _slurm("scancel", "--signal=TERM", number)
        while self.exit_code() is None and time.monotonic() < ends_s:
            time.sleep(_FIRST_POLL_S)
        super().stop()


# --- commands of Slurm ----------------------------------------------------------------------------


class SlurmJob(NamedTuple):
    """A job as Slurm has it. `reason`: why it waits, or ended; `addresses`: its nodes'."""

    id: int
    name: str
    state: str
    nodes: tuple[str, ...]
    reason: str
    addresses: tuple[str, ...] = ()


def ask_patiently(*words: str) -> str:
    """Return what a command of Slurm prints; it is run again while the controller does not
    answer."""
    ends_s = time.monotonic() + _SILENT_S
    while True:
        try:
            return _slurm(*words)
        except _RefusedError as refusal:
            if time.monotonic() > ends_s:
                raise TargetError(f"Slurm does not answer: {refusal}") from None
            time.sleep(_FIRST_POLL_S)


Ask = Callable[..., str]
"""What runs a command of Slurm and returns what it prints."""


def find_job(name: str, ask: Ask = ask_patiently) -> SlurmJob | None:
    """Find the last job of that name; None: Slurm knows none. Raises TargetError where it is silent
    for long."""
    words = ("squeue", "--noheader", "--states=all", f"--name={name}", "--format=%A|%T|%N|%r")
    jobs = [line.strip().split("|") for line in ask(*words).splitlines() if line.count("|") == 3]
    if not jobs:
        return None
    number, state, nodes, reason = max(jobs, key=lambda fields: int(fields[0]))
    names = ask("scontrol", "show", "hostnames", nodes).split() if nodes else []
    return SlurmJob(int(number), name, state, tuple(names), reason)


def cancel(name: str) -> None:
    """Cancel the jobs of that name; returns when they are gone. Raises TargetError where they do
    not go."""
    ends_s = time.monotonic() + _END_S
    ask_patiently("scancel", "--quiet", f"--name={name}")
    job = find_job(name)
    while job is not None and job.state in (*_WAITS, *_RUNS, _GOES):
        if time.monotonic() > ends_s:
            raise TargetError(
                f"job {job.id} is {job.state} {_END_S:.0f} s after it was cancelled; see scancel"
                f" {job.id}"
            )
        time.sleep(_FIRST_POLL_S)
        job = find_job(name)


def _job_name(left: Handle) -> str:
    """Return the name of a job that a study submitted. Raises InputError for another: none is ever
    cancelled."""
    name = left.get("job_name")
    if (
        not isinstance(name, str)
        or not name.startswith("loadstone-")
        or not str(left.get("port")).isdecimal()
    ):
        raise InputError(
            f"journal.jsonl names {name!r}, which is no job of a study; end what is left of it by"
            " hand"
        )
    return name


def _submit(script: str, folder: Path, count: int) -> None:
    """Submit a job. Raises TargetError with Slurm's own words where it refuses."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in (folder / "job.log", *folder.glob("rank-*.exit"), *folder.glob("rank-*.log")):
        old.unlink(missing_ok=True)
    for i in range(count):
        (folder / f"rank-{i}.log").touch()
    path = folder / "job.sh"
    path.write_text(script, "utf-8")
    try:
        _slurm("sbatch", "--parsable", str(path))
    except _RefusedError as refusal:
        raise TargetError(f"Slurm refuses the job: {refusal}") from None


class _RefusedError(Exception):
    """A command of Slurm has failed; the message is its standard error, as one line."""


def _slurm(*words: str) -> str:
    try:
        # In a group of its own, and waited for: Ctrl-C shall not cut off a submission, of which
        # nobody would know whether it counts.
        with subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        ) as process:
            try:
                output, errors = process.communicate(timeout=_ANSWER_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
    except FileNotFoundError:
        raise TargetError(
            f"no {words[0]} here; run the study on a host where jobs are submitted"
        ) from None
    except subprocess.TimeoutExpired:
        raise _RefusedError(f"{words[0]} took more than {_ANSWER_S:.0f} s") from None
    if process.returncode != 0:
        lines = [line.split("error: ")[-1].strip() for line in errors.splitlines() if line.strip()]
        raise _RefusedError(
            lines[-1] if lines else f"{words[0]} ended with exit code {process.returncode}"
        )
    return output


def _describe_end(job: SlurmJob | None, name: str) -> str:
    if job is None:
        return f"Slurm knows no job {name} any more"
    why = f" ({job.reason})" if job.reason not in ("", "None") else ""
    remedy = {
        "TIMEOUT": "; give it more with time:",
        "NODE_FAIL": "; a node of it has vanished",
    }.get(job.state, "")
    return f"job {job.id} of Slurm is {job.state}{why}{remedy}"


def find_lost_nodes(nodes: Sequence[str], ask: Ask = ask_patiently) -> str:
    """Name those of a job's nodes that Slurm has lost: `node n2 is lost (DOWN*)`; nothing where it
    has them all."""
    lost = []
    for node in nodes:
        state = _field_of(node, "State", ask)
        if "DOWN" in state or "FAIL" in state or "NOT_RESPONDING" in state or state.endswith("*"):
            lost.append(f"node {node} is lost ({state})")
    return ", ".join(lost)


def _field_of(node: str, name: str, ask: Ask) -> str:
    """Return what Slurm says of a node under this name; "" where it says nothing."""
    fields = ask("scontrol", "show", "node", node, "--oneliner").split()
    return next((field.partition("=")[2] for field in fields if field.startswith(f"{name}=")), "")


def _address(number: int) -> str:
    """Return a node's address as the rank's shell has it."""
    return f'"${{addresses[{number}]}}"'
