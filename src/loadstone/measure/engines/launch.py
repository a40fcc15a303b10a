"""Engines started here: their processes, how one knows that they are ready, and why they were not.

The commands come from predict/engine_rules; each rank is a child that cannot outlive this program (process.py). What
an engine's log says of a failed start is in failures.toml.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import time
import tomllib
from collections.abc import Callable
from functools import cache
from importlib import resources
from pathlib import Path
from typing import NamedTuple, Self
from urllib.parse import urlsplit

import msgspec

from loadstone.core.errors import TargetError
from loadstone.measure.engines.process import ServerProcess
from loadstone.predict.engine_rules.launch import Launch

READY_S = 1800.0
SILENT_S = 900.0
"""An engine that is loading writes; one that has written nothing for so long hangs."""
_POLL_S = 0.2
_MOST_LOG_BYTES = 4 << 20
_TAIL_LINES = 3
_TRACEBACK = "Traceback (most recent call last)"
_PREFIX = re.compile(r"^(?:\x1b\[[0-9;]*m|\([^)]*\) ?|\[[^\]]*\] ?|[A-Z]+ \d\d-\d\d \d\d:\d\d:\d\d (?:\[\S+\] ?)?)+")
"""What engines put before a line: colours, process names, times and levels."""


class Failure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of failures.toml, which describes its fields."""

    pattern: str
    cause: str
    remedy: str
    engines: tuple[str, ...] = ()


class LaunchError(TargetError):
    """An engine did not start, or ended. `cause`: in a few words; `log`: where all of it is."""

    def __init__(self, problem: str, cause: str, log: Path) -> None:
        super().__init__(f"{problem}: {cause} (log: {log})" if log.suffix else f"{problem}: {cause}")
        self.cause = cause
        self.log = log


class RunningEngine:
    """Ranks that were started together and end together."""

    client = None

    def __init__(self, launch: Launch, folder: Path) -> None:
        """Start every rank, with its log `rank-N.log` and the launch's files in `folder`.

        Raises LaunchError where something listens on its port already, which would answer in its place, and
        TargetError where a program cannot be started.
        """
        self.launch = launch
        self.url = launch.url
        self.ranks: list[ServerProcess] = []
        address = urlsplit(launch.url)
        with contextlib.suppress(OSError), socket.create_connection((address.hostname, address.port), timeout=1):
            problem = f"{launch.engine} cannot be started at {launch.url}"
            raise LaunchError(problem, "the port is in use; give another one with --port", folder)
        for program in {rank.argv[0] for rank in launch.ranks}:
            if shutil.which(program) is None:
                remedy = "install the engine, give its path with --program, or start it in a container"
                raise LaunchError(
                    f"{launch.engine} cannot be started", f"no program {program} here; {remedy}", folder
                )
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in launch.files.items():
            (folder / name).write_text(content, "utf-8")
        try:
            for i, rank in enumerate(launch.ranks):
                argv = launch.words(rank, str(folder.absolute()))
                log, env = folder / f"rank-{i}.log", {**os.environ, **rank.env}
                self.ranks.append(ServerProcess(argv, log_path=log, url=launch.url, env=env))
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def handle(self) -> dict[str, str | int | list[str | int]]:
        """What tells its processes from others': where it answers, and the process of every rank."""
        return {"url": self.url, "processes": [rank.pid for rank in self.ranks]}

    def check(self) -> None:
        """Raises LaunchError where a rank has ended: the others then wait for it in vain."""
        for i, rank in enumerate(self.ranks):
            code = rank.exit_code()
            if code is not None:
                which = f"rank {i} of {self.launch.engine}" if len(self.ranks) > 1 else self.launch.engine
                how = f"by signal {code - 128}" if code > 128 else f"with exit code {code}"
                raise LaunchError(f"{which} ended {how}", self._cause(rank, code), rank.log_path)

    def wait_ready(
        self, timeout_s: float = READY_S, silent_s: float = SILENT_S, look: Callable[[], None] = lambda: None
    ) -> None:
        """Return once the server answers. `look` is called between tries; what it raises ends the wait.

        Raises LaunchError, with the cause as the log shows it, where a rank ends, nothing is written for `silent_s`,
        or `timeout_s` are over.
        """
        import httpx

        begun = changed = time.monotonic()
        size = -1
        with httpx.Client(trust_env=False, timeout=5.0) as client:
            while True:
                status = 0
                with contextlib.suppress(httpx.TransportError):
                    status = client.get(self.url + self.launch.ready).status_code
                self.check()  # after the answer: on a port that something else holds, it is not this server's
                if status == 200:
                    return
                look()
                now = time.monotonic()
                written = sum(rank.log_path.stat().st_size for rank in self.ranks)
                if written != size:
                    size, changed = written, now
                if now - begun > timeout_s or now - changed > silent_s:
                    over = f"not ready after {now - begun:.0f} s"
                    quiet = f", the last {now - changed:.0f} s without a word" if now - changed > silent_s else ""
                    first = self.ranks[0]
                    raise LaunchError(f"{self.launch.engine}: {over}{quiet}", self._cause(first), first.log_path)
                time.sleep(_POLL_S)

    def wait(self) -> None:
        """Return never: raises LaunchError once a rank ends, or what a signal raises."""
        while True:
            self.check()
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """End all ranks, the last first; returns when they are gone. May be called again."""
        for rank in reversed(self.ranks):
            rank.stop()

    def _cause(self, rank: ServerProcess, code: int | None = None) -> str:
        with rank.log_path.open("rb") as file:
            text = file.read(_MOST_LOG_BYTES).decode(errors="replace")
        known = cause_of(text, self.launch.engine)
        if known is not None:
            return f"{known.cause}; {known.remedy}"
        if code == 137:
            return "it was killed, which is what a full memory does (of the machine, or the container's limit)"
        return first_error(text)


class Cause(NamedTuple):
    """What a log says of why an engine failed, and what would help."""

    cause: str
    remedy: str


def cause_of(log: str, engine: str) -> Cause | None:
    """The first known cause in a log; None: none is known."""
    known = [each for each in _failures() if not each.engines or engine in each.engines]
    for line in log.splitlines():
        text = _PREFIX.sub("", line)
        for failure in known:
            match = re.search(failure.pattern, text)
            if match is not None:
                groups = [group for group in match.groups() if group is not None]
                return Cause(failure.cause.format(*groups, *[""] * 4), failure.remedy.format(*groups, *[""] * 4))
    return None


def first_error(log: str) -> str:
    """What the first traceback in a log ends with; without one, its last lines. Later ones are the parents'."""
    lines = [_PREFIX.sub("", line) for line in log.splitlines()]
    for i, line in enumerate(lines):
        if line.startswith(_TRACEBACK):
            ends = (each for each in lines[i + 1 :] if each and not each[0].isspace())
            return " ".join(next(ends, "a traceback that ends nowhere").split())[:300]
    last = [" ".join(line.split()) for line in lines if line.strip()][-_TAIL_LINES:]
    return " | ".join(last)[:300] or "it wrote nothing"


@cache
def _failures() -> tuple[Failure, ...]:
    content = resources.files("loadstone.measure.engines").joinpath("failures.toml").read_text("utf-8")
    return tuple(msgspec.convert(tomllib.loads(content)["failure"], list[Failure]))
