"""Runs an engine's own interface in Python, loaded by its interpreter in a process that cannot
outlive this one."""

import math
import os
import shutil
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self, TypeVar

import msgspec

from loadstone.core.errors import InputError
from loadstone.core.files import TemporaryFolder
from loadstone.engines.offline import program
from loadstone.engines.offline.keywords import Keywords
from loadstone.measure.engines.launch import READY_S, LaunchError, cause_in
from loadstone.measure.engines.process import ServerProcess, describe_exit

_PROGRAM = Path(program.__file__)
_POLL_S = 0.2
_PIECE_BYTES = 1 << 20
_MOST_PATH_BYTES = 103
"""The longest path of a Unix socket: 104 with the final zero on macOS, 108 on Linux."""


class LoadedEngine(msgspec.Struct, frozen=True):
    """A loaded engine's version, and how many tokens its vocabulary has."""

    version: str
    vocabulary: int


class OfflineAnswer(msgspec.Struct, frozen=True):
    """The answer to one request of a batch. Times of its first and last token in seconds of the
    monotonic clock; None where the engine does not say."""

    input_tokens: int
    output_tokens: int
    first_s: float | None = None
    last_s: float | None = None


class OfflineBatch(msgspec.Struct, frozen=True):
    """Answers in the order of the requests; start and end of the call, seconds of the monotonic
    clock."""

    start_s: float
    end_s: float
    answers: tuple[OfflineAnswer, ...]


Message = TypeVar("Message", LoadedEngine, OfflineBatch)


def _find_problem(batch: OfflineBatch, expected: int) -> str | None:
    """Say what cannot be of a batch's answers; None where all can."""
    if len(batch.answers) != expected:
        return f"{len(batch.answers)} came for {expected} prompts"
    times = [batch.start_s, batch.end_s]
    for answer in batch.answers:
        if min(answer.input_tokens, answer.output_tokens) < 0:
            return "a count of tokens is below 0"
        times += [time_s for time_s in (answer.first_s, answer.last_s) if time_s is not None]
    if not all(map(math.isfinite, times)):
        return "a time is no number"
    if batch.end_s < batch.start_s:
        return "the batch ends before it begins"
    return None


def find_interpreter(keywords: Keywords, given: str | None) -> str:
    """Find the interpreter that has the engine: `given`, else that beside the engine's program on
    PATH. Raises InputError."""
    if given is not None:
        if shutil.which(given) is None:
            raise InputError(
                f"--python {given}: no such program; give the path of the engine's interpreter"
            )
        return given
    program = shutil.which(keywords.program)
    beside = Path(program).parent / "python3" if program is not None else None
    if beside is None or not beside.exists():
        raise InputError(
            f"no {keywords.program} with its interpreter on PATH; install {keywords.engine}, or"
            " give the path of its environment's interpreter with --python"
        )
    return str(beside)


class OfflineEngine:
    """The engine, loading from the moment it is made; ends with `stop()`, or with this process."""

    def __init__(
        self,
        keywords: Keywords,
        python: str,
        environment: Mapping[str, str],
        look: Callable[[], None],
    ) -> None:
        """`look` is called several times a second while the engine works; what it raises ends the
        wait.

        Raises TargetError where the interpreter cannot be started.
        """
        self._name, self._look = keywords.engine, look
        self._folder = TemporaryFolder()
        self.log = self._folder.path / "engine.log"
        self._read = bytearray()
        self._channel: socket.socket | None = None
        self._marked = 0  # where in the log the work at hand begins
        path = str(self._folder.path / "socket")
        if len(os.fsencode(path)) > _MOST_PATH_BYTES:
            self._folder.remove()
            raise InputError(
                f"{self._folder.path.parent}: too long a path for a socket; set TMPDIR to a"
                " shorter one"
            )
        self._listener = socket.socket(socket.AF_UNIX)
        try:
            self._listener.bind(path)
            self._listener.listen(1)
            self._listener.settimeout(_POLL_S)
            env = {**os.environ, **environment}
            self._process = ServerProcess([python, str(_PROGRAM), path], log_path=self.log, env=env)
        except BaseException:
            self._listener.close()
            raise
        self._first = msgspec.json.encode(
            {
                "engine": keywords.engine,
                "model": keywords.model,
                "arguments": msgspec.Raw(keywords.arguments.encode()),
            }
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def load(self, timeout_s: float = READY_S) -> LoadedEngine:
        """Return once the engine is loaded. Raises LaunchError, with the cause as its log shows it,
        where it ends or `timeout_s` are over."""
        deadline_s = time.monotonic() + timeout_s
        while self._channel is None:
            try:
                self._channel, _ = self._listener.accept()
            except TimeoutError:
                self._check(deadline_s)
        self._channel.settimeout(_POLL_S)
        self._send(self._first)
        return self._receive(LoadedEngine, deadline_s)

    def generate(self, prompts: Sequence[bytes], lengths: Sequence[int]) -> OfflineBatch:
        """Answer `prompts`, JSON arrays of token ids, with so many tokens each. Raises LaunchError
        where the engine ends."""
        self._marked = self.log.stat().st_size
        self._send(
            b'{"prompts":[%b],"lengths":%b}'
            % (b",".join(prompts), msgspec.json.encode(list(lengths)))
        )
        batch = self._receive(OfflineBatch)
        problem = _find_problem(batch, len(lengths))
        if problem is not None:
            raise self._refuse(problem)
        return batch

    def stop(self) -> None:
        """End the engine with all of its processes. Its log stays only where it failed."""
        if self._channel is not None:
            self._channel.close()
        self._listener.close()
        self._process.stop()
        self._folder.remove()

    def _send(self, message: bytes) -> None:
        assert self._channel is not None  # noqa: S101
        view = memoryview(message + b"\n")
        while view:
            try:
                view = view[self._channel.send(view) :]
            except TimeoutError:
                self._check()
            except OSError:
                break  # it has ended, as _receive() says with the cause

    def _receive(self, kind: type[Message], deadline_s: float | None = None) -> Message:
        assert self._channel is not None  # noqa: S101
        while b"\n" not in self._read:
            try:
                piece = self._channel.recv(_PIECE_BYTES)
            except TimeoutError:
                piece = b""
            except OSError:
                piece = b""
                time.sleep(_POLL_S)
            self._read += piece
            if not piece:
                self._check(deadline_s)
        line, _, rest = bytes(self._read).partition(b"\n")
        self._read = bytearray(rest)
        try:
            return msgspec.json.decode(line, type=kind)
        except msgspec.DecodeError as error:
            raise self._refuse(f"they cannot be read ({error})") from None

    def _refuse(self, problem: str) -> LaunchError:
        self._folder.keep()
        return LaunchError(
            f"answers of {self._name} are not as its interface has them", problem, self.log
        )

    def _check(self, deadline_s: float | None = None) -> None:
        code = self._process.exit_code()
        if code is not None:
            raise self._error(f"{self._name} ended {describe_exit(code)}", code)
        if deadline_s is not None and time.monotonic() > deadline_s:
            raise self._error(f"{self._name} was not loaded in time")
        self._look()

    def _error(self, problem: str, code: int | None = None) -> LaunchError:
        self._folder.keep()
        return LaunchError(problem, cause_in(self.log, self._name, code, self._marked), self.log)
