"""Runs engines that are started here: their processes, how one knows that they are ready, and why
they were not.

The commands come from engines; each rank is a child that cannot outlive this program (process.py).
What an engine's log says of a failed start is in its table.
"""

import contextlib
import itertools
import os
import re
import shutil
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, Self
from urllib.parse import urlsplit

from loadstone.core.errors import TargetError
from loadstone.core.files import open_regular
from loadstone.engines.launch import Launch
from loadstone.engines.table import failures
from loadstone.measure.engines.process import ServerProcess, describe_exit

READY_S = 1800.0
SILENT_S = 900.0
"""An engine that is loading writes; one that has written nothing for so long hangs."""
_FIRST_POLL_S, _POLL_S = 0.02, 0.2
"""llama.cpp serves after a tenth of a second, others after minutes."""
ANSWER_TIMEOUT_S = 5.0
"""For the status of one request that asks whether the engine is ready."""
_MAX_LOG_BYTES = 4 << 20
"""Of each end of a log."""
_TAIL_LINES = 3
_TRACEBACK = "Traceback (most recent call last)"
_PREFIX = re.compile(
    r"^(?:\x1b\[[0-9;]*m|\([^)]*\) ?|\[[^\]]*\] ?|[A-Z]+ \d\d-\d\d \d\d:\d\d:\d\d (?:\[\S+\] ?)?)+"
)
"""What engines put before a line: colours, process names, times and levels."""


class LaunchError(TargetError):
    """Says that an engine did not start, or ended. `cause`: in a few words; `log`: where all of it
    is."""

    def __init__(self, problem: str, cause: str, log: Path) -> None:
        place = f" (log: {log})" if log.suffix else ""
        super().__init__(f"{problem}: {cause}{place}")
        self.cause = cause
        self.log = log


class RankProcess(Protocol):
    """Runs one node's part of an engine, wherever it runs. `exit_code`: None while it runs, and
    where it was ended since another had; `log_path`: what it has written so far."""

    log_path: Path

    def exit_code(self) -> int | None: ...

    def stop(self) -> None: ...


class StartedRanks:
    """Ranks that were started together and end together. `url`: where they are asked whether they
    are ready; `start_up_s`: how long it took until they were."""

    def __init__(self, launch: Launch, url: str) -> None:
        self.launch = launch
        self.url = url
        self.ranks: list[RankProcess] = []
        self.start_up_s: float | None = None
        self._begun = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def check(self) -> None:
        """Raises LaunchError where a rank has ended: the others then wait for it in vain."""
        for i, rank in enumerate(self.ranks):
            code = rank.exit_code()
            if code is not None:
                engine = self.launch.engine
                which = f"rank {i} of {engine}" if len(self.ranks) > 1 else engine
                cause = cause_in(rank.log_path, engine, code)
                raise LaunchError(f"{which} ended {describe_exit(code)}", cause, rank.log_path)

    def wait_ready(
        self,
        timeout_s: float = READY_S,
        silent_s: float = SILENT_S,
        look: Callable[[], None] = lambda: None,
    ) -> None:
        """Return once the server answers. `look` is called between tries; what it raises ends the
        wait.

        Raises LaunchError, with the cause as the log shows it, where a rank ends, nothing is
        written for `silent_s`, or `timeout_s` are over.
        """
        import httpx

        from loadstone.measure.engines.http import status_of

        begun = changed = time.monotonic()
        size = -1
        with httpx.Client(trust_env=False, timeout=ANSWER_TIMEOUT_S) as client:
            while True:
                status = status_of(client, self.url + self.launch.ready, ANSWER_TIMEOUT_S)
                # after the answer: on a port that something else holds, it is not this server's
                self.check()
                if status == 200:
                    self.start_up_s = round(time.monotonic() - self._begun, 3)
                    return
                look()
                now_s = time.monotonic()
                written = sum(_size(rank.log_path) for rank in self.ranks)
                if written != size:
                    size, changed = written, now_s
                is_silent = now_s - changed > silent_s
                if is_silent or now_s - begun > timeout_s:
                    over = f"not ready after {now_s - begun:.0f} s"
                    if is_silent:
                        over += f", the last {now_s - changed:.0f} s without a word"
                    engine, log = self.launch.engine, self.ranks[0].log_path
                    raise LaunchError(f"{engine}: {over}", cause_in(log, engine, None), log)
                time.sleep(min(_POLL_S, _FIRST_POLL_S + (now_s - begun) / 10))

    def wait(self) -> None:
        """Return never: raises LaunchError once a rank ends, or what a signal raises."""
        while True:
            self.check()
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """End all ranks, the last first; returns when they are gone. May be called again."""
        for rank in reversed(self.ranks):
            rank.stop()


def cause_in(log: Path, engine: str, code: int | None, start: int = 0) -> str:
    """Return why an engine failed, by its log from byte `start` on, in a line. `code`: with which
    it ended, if it did."""
    text = _read_log(log, start)
    cause = cause_of(text, engine)
    if cause is not None:
        return f"{cause.cause}; {cause.remedy}"
    if code == 137:
        return (
            "it was killed, which is what a full memory does (of the machine, or the container's"
            " limit)"
        )
    return first_error(text)


class RunningEngine(StartedRanks):
    """Runs an engine whose ranks are children of this process."""

    def __init__(self, launch: Launch, folder: Path) -> None:
        """Start every rank, with its log `rank-N.log` and the launch's files in `folder`.

        Raises LaunchError where something listens on its port already, which would answer in its
        place, and TargetError where a program cannot be started.
        """
        super().__init__(launch, launch.url)
        _check_port(launch, folder)
        for program in {rank.argv[0] for rank in launch.ranks}:
            if shutil.which(program) is None:
                remedy = (
                    "install the engine, give its path with --program, or start it in a container"
                )
                raise LaunchError(
                    f"{launch.engine} cannot be started",
                    f"no program {program} here; {remedy}",
                    folder,
                )
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in launch.files.items():
            (folder / name).write_text(content, "utf-8")
        self.processes: list[int] = []
        try:
            for i, rank in enumerate(launch.ranks):
                argv = launch.words(rank, str(folder.absolute()))
                log, env = folder / f"rank-{i}.log", {**os.environ, **rank.env}
                process = ServerProcess(argv, log_path=log, url=launch.url, env=env)
                self.ranks.append(process)
                self.processes.append(process.pid)
        except BaseException:
            self.stop()
            raise

    @property
    def handle(self) -> dict[str, str | int | list[str | int]]:
        """Return what tells its processes from others': where it answers, and the process of every
        rank."""
        return {"url": self.url, "processes": list(self.processes)}


def serve(
    command: Sequence[str],
    engine: str,
    *,
    log_path: Path,
    url: str,
    ready: str = "/health",
    env: Mapping[str, str] | None = None,
    timeout_s: float = READY_S,
) -> ServerProcess:
    """Start a server of `engine` by its command; returns it once GET `url` + `ready` answers 200.

    Raises LaunchError as StartedRanks.wait_ready() does and where its port is taken, and
    TargetError where it cannot be started; nothing is left then.
    """
    launch = Launch(engine=engine, ranks=(), url=url, container=None, notes=(), ready=ready)
    _check_port(launch, log_path.parent)
    process = ServerProcess(command, log_path=log_path, url=url, env=env)
    try:
        waiting = StartedRanks(launch, url)
        waiting.ranks.append(process)
        waiting.wait_ready(timeout_s)
    except BaseException:
        process.stop()
        raise
    return process


def _check_port(launch: Launch, folder: Path) -> None:
    """Raises LaunchError where something listens there already, which would answer in the engine's
    place."""
    address = urlsplit(launch.url)
    with (
        contextlib.suppress(OSError),
        socket.create_connection((address.hostname, address.port), timeout=1),
    ):
        problem = f"{launch.engine} cannot be started at {launch.url}"
        raise LaunchError(problem, "the port is in use; give another one with --port", folder)


def _size(log: Path) -> int:
    with contextlib.suppress(OSError):
        return log.stat().st_size
    return 0


def _read_log(log: Path, start: int) -> str:
    """Return both ends of a log from byte `start` on, whatever stands in its place by now."""
    try:
        with open_regular(log) as file:
            file.seek(start)
            begin = file.read(_MAX_LOG_BYTES)
            file.seek(max(start + len(begin), os.fstat(file.fileno()).st_size - _MAX_LOG_BYTES))
            return (begin + file.read(_MAX_LOG_BYTES)).decode(errors="replace")
    except OSError as error:
        return f"its log cannot be read ({error.strerror or error})"


class Cause(NamedTuple):
    """Holds what a log says of why an engine failed, and what would help."""

    cause: str
    remedy: str


def cause_of(log: str, engine: str) -> Cause | None:
    """Return the first known cause in a log; None: none is known."""
    candidates = list(failures(engine))
    some = re.compile(
        "|".join(failure.pattern for failure in candidates)
    )  # one look at each line of a long log
    lines = [
        line
        for line in (_PREFIX.sub("", line) for line in dict.fromkeys(log.splitlines()))
        if some.search(line)
    ]
    for is_vague, text, failure in itertools.product((False, True), lines, candidates):
        match = re.search(failure.pattern, text) if failure.vague == is_vague else None
        if match is not None:
            groups = [group for group in match.groups() if group is not None] + [""] * 4
            return Cause(failure.cause.format(*groups), failure.remedy.format(*groups))
    return None


def first_error(log: str) -> str:
    """Return what the first traceback in a log ends with; without one, its last lines. Later ones
    are the parents'."""
    lines = [_PREFIX.sub("", line) for line in log.splitlines()]
    for i, line in enumerate(lines):
        if line.startswith(_TRACEBACK):
            ends = (text for text in lines[i + 1 :] if text and not text[0].isspace())
            return " ".join(next(ends, "a traceback that ends nowhere").split())[:300]
    last = [" ".join(line.split()) for line in lines if line.strip()][-_TAIL_LINES:]
    return " | ".join(last)[:300] or "it wrote nothing"
