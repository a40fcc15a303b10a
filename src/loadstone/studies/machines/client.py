"""Launches on other hosts: ranks that are led there, and a client there that is followed to its
end."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

from loadstone.core.errors import InputError, TargetError
from loadstone.engines.launch import Launch as Commands
from loadstone.measure.engines.launch import LaunchError, RankProcess, StartedRanks
from loadstone.measure.engines.process import last_lines
from loadstone.runs import provenance
from loadstone.studies.file import MachineSettings, Study
from loadstone.studies.journal import Handle
from loadstone.studies.plan import PlannedLaunch
from loadstone.studies.supervise import LoadClient, RunningLaunch

HERE = "localhost"
"""The name in a study file of the host that runs the study."""
_POLL_S = 0.1
_NO_PROGRAM = 127
_FILES = ("dataset", "text", "trace", "plan", "tokenizer", "structured")
"""Options of `bench` that name files; structured's may have `SCHEME:` before."""


class RemoteMachine:
    """A machine whose launches run on other hosts than this one."""

    def __init__(self, machine: MachineSettings, study: Study) -> None:
        self._machine = machine
        self._limits = study.limits
        self._study = study.study


def check_is_started(launch: PlannedLaunch) -> None:
    """Raise InputError for an engine that runs already."""
    if launch.settings.url is not None:
        raise InputError(f"{launch.engine} has a url; measure it on a machine with local: true")


def check_has_no_mpi(commands: Commands, machine: str = "use Slurm") -> None:
    """Raise InputError for commands whose nodes are one world of MPI."""
    if commands.tasks_per_node > 1:
        raise InputError(f"{commands.engine} over several nodes is one world of MPI; {machine}")


def running_launch(ranks: StartedRanks, handle: Handle, sender: LoadClient | None) -> RunningLaunch:
    """Describe ranks that are ready, and what they were made with. `handle`: what the journal has
    of them."""
    launch = ranks.launch
    made = provenance.of_launch(launch, here=False, start_up_s=ranks.start_up_s)
    return RunningLaunch(
        launch.url, handle | {"url": launch.url}, ranks.check, sender, made, launch.model
    )


class LedProcess:
    """A process on another host. `lost`: what was lost with it, where that is why it ended."""

    def __init__(self, log_path: Path, on_end: Callable[[], None], patience_s: float) -> None:
        """`patience_s`: how long `stop` waits for its end, at the most."""
        self.log_path = log_path
        self.lost = ""
        self._on_end = on_end
        self._patience_s = patience_s
        self._code: int | None = None
        self._is_told = False
        self._over = threading.Event()

    def exit_code(self) -> int | None:
        """Return None while it runs, and where it was told to end."""
        return self._code

    def end(self) -> None:
        """Ask it to end."""
        self._is_told = True

    def stop(self) -> None:
        """Ask it to end; returns when it has, or its host is gone."""
        self.end()
        self._over.wait(self._patience_s)

    def _ended(self, code: int) -> None:
        if not self._is_told:
            self._code = code
        self._over.set()
        self._on_end()


class LedRanks(StartedRanks):
    """An engine whose ranks are led elsewhere. When one of them ends, the others are ended."""

    def __init__(
        self,
        launch: Commands,
        url: str,
        folder: Path,
        start: Callable[[int, Path, Callable[[], None]], LedProcess],
    ) -> None:
        """Start the ranks. `start` gets a rank's number, its log, and what is to be called when it
        has ended."""
        super().__init__(launch, url)
        folder.mkdir(parents=True, exist_ok=True)
        self._processes: list[LedProcess] = []
        try:
            for i in range(len(launch.ranks)):
                self._processes.append(start(i, folder / f"rank-{i}.log", self._end))
                self.ranks.append(self._processes[i])
        except BaseException:
            self.stop()
            raise

    def check(self) -> None:
        """Check the ranks. Raises LaunchError, which names the host where one was lost."""
        for i, process in enumerate(self._processes):
            if process.exit_code() is not None and process.lost:
                which = f"rank {i} of {self.launch.engine}"
                raise LaunchError(f"{which} is lost", process.lost, process.log_path)
        super().check()

    def stop(self) -> None:
        """End all ranks together; returns when they are gone, or their hosts are."""
        self._end()
        for process in self._processes:
            process.stop()

    def _end(self) -> None:
        for process in self._processes:
            process.end()


def copy_named_file(word: str, put: Callable[[Path, str], str]) -> str:
    """Return a word of `bench` for another host. `put` copies the file that it names there, and
    returns its path."""
    name, _, value = word.removeprefix("--").partition("=")
    scheme, colon, file = value.rpartition(":") if name == "structured" else ("", "", value)
    if name not in _FILES or not Path(file).is_file():
        return word
    return f"--{name}={scheme}{colon}{put(Path(file), f'{name}-{Path(file).name}')}"


def follow(client: RankProcess, host: str, check: Callable[[], None]) -> None:
    """Return once `loadstone bench` on `host` has left a run folder there. `check` is called
    meanwhile; what it raises ends the client, which saves what it has. Raises TargetError.
    """
    try:
        while (code := client.exit_code()) is None:
            check()
            time.sleep(_POLL_S)
    finally:
        client.stop()
    if code in (0, 1):  # 1: the run has failed, which its folder says
        return
    *_, last = ["it wrote nothing", *last_lines(client.log_path)]
    remedy = ""
    if code == _NO_PROGRAM or "No module named loadstone" in last:
        remedy = (
            "; Loadstone must be there: name its interpreter with python:, or write client:"
            " localhost"
        )
    raise TargetError(f"the client on {host} ended with exit code {code}: {last}{remedy}")
