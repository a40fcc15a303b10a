"""Ranks that are led on other hosts, and a client there that is followed to its end: for SSH and Ray."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from loadstone.core.errors import TargetError
from loadstone.engines.launch import Launch
from loadstone.measure.engines.launch import LaunchError, RankProcess, StartedRanks

HERE = "localhost"
"""The name in a study file of the host that runs the study."""
_POLL_S = 0.1
_NO_PROGRAM = 127
_TAIL_BYTES = 4096
_FILES = ("dataset", "trace", "plan", "tokenizer", "structured")
"""Options of `bench` that name files; structured's may have `SCHEME:` before."""


class LedProcess(RankProcess, Protocol):
    """A process on another host. `stop` asks it to end, and returns when it has; `end` only asks. `lost`: what was
    lost with it, where that is why it ended."""

    lost: str

    def end(self) -> None: ...


class LedRanks(StartedRanks):
    """An engine whose ranks are led elsewhere. When one of them ends, the others are ended."""

    def __init__(
        self, launch: Launch, url: str, folder: Path, start: Callable[[int, Path, Callable[[], None]], LedProcess]
    ) -> None:
        """Start the ranks. `start` gets a rank's number, its log, and what is to be called when it has ended."""
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
    """Return a word of `bench` for another host. `put` copies the file that it names there, and returns its path."""
    name, _, value = word.removeprefix("--").partition("=")
    scheme, colon, file = value.rpartition(":") if name == "structured" else ("", "", value)
    if name not in _FILES or not Path(file).exists():
        return word
    return f"--{name}={scheme}{colon}{put(Path(file), f'{name}-{Path(file).name}')}"


def follow(client: RankProcess, host: str, check: Callable[[], None]) -> None:
    """Return once `loadstone bench` on `host` has left a run folder there. `check` is called meanwhile; what it
    raises ends the client, which saves what it has. Raises TargetError.
    """
    try:
        while (code := client.exit_code()) is None:
            check()
            time.sleep(_POLL_S)
    finally:
        client.stop()
    if code in (0, 1):  # 1: the run has failed, which its folder says
        return
    with client.log_path.open("rb") as log:
        log.seek(max(0, client.log_path.stat().st_size - _TAIL_BYTES))
        lines = [" ".join(line.split()) for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    last = lines[-1] if lines else "it wrote nothing"
    remedy = ""
    if code == _NO_PROGRAM or "No module named loadstone" in last:
        remedy = "; Loadstone must be there: name its interpreter with python:, or write client: localhost"
    raise TargetError(f"the client on {host} ended with exit code {code}: {last}{remedy}")
