"""Starts processes of the package without their imports: a process that has imported it forks them.

Most of what a short run costs is the start of its workers and servers, 0.3 s of a processor each.
`Preloader` answers subprocess.Popen where the command is `python [-P] -m MODULE …` of one of
MODULES: one process, which has imported what they import and does nothing else, forks, and the
child is what the command says: in its folder, with its environment, files, group, session and
command line, and this process its parent. Whatever else is started is started as ever, commands
too, and all is where PRELOAD_OFF is set, or on another system than Linux.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO, cast

OFF = "PRELOAD_OFF"
PYTHON = sys.executable
MODULES = ("loadstone.measure.client.worker", "loadstone.measure.simulated_server")
"""Names after -m of what is forked."""
IMPORTED = (
    "loadstone.measure.client.worker",
    "loadstone.measure.simulated_server.__main__",
    "loadstone.predict.simulator.fleet",
)
"""What they import, now or when they are under way."""
_ROOM = 16384
"""Bytes of a command line that a child can show for its own."""
_MESSAGE = 1 << 17
_SET_CHILD_SUBREAPER = 36
_FORK_EXEC_PARAMETERS = 23


class Order(NamedTuple):
    """What a child is to be; its files 0, 1, 2 and its folder come beside it."""

    words: list[str]
    environment: dict[str, str]
    session: bool
    group: int
    """-1: that of this process."""

    @property
    def safe_path(self) -> bool:
        return self.words[1] == "-P"

    @property
    def module(self) -> str:
        return self.words[self.words.index("-m") + 1]

    @property
    def arguments(self) -> list[str]:
        return self.words[self.words.index("-m") + 2 :]


class Preloader:
    """Forks what subprocess.Popen would execute. `installed()` is the one way to use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._python: dict[str, str] = {}
        self._owner = os.getpid()
        self._execute = getattr(subprocess, "_fork_exec", None)

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        if not sys.platform.startswith("linux") or OFF in os.environ or self._execute is None:
            yield
            return
        # Popen has no other place where its pipes are made and the child is not.
        setattr(subprocess, "_fork_exec", self._fork_exec)  # noqa: B010
        try:
            yield
        finally:
            setattr(subprocess, "_fork_exec", self._execute)  # noqa: B010
            if self._socket is not None and self._process is not None:
                self._socket.close()
                self._process.wait()

    def _fork_exec(self, *details: Any) -> int:
        """Return the process id of what is started, as _posixsubprocess.fork_exec() does."""
        started = self._forked(details)
        if started is None:
            started = self._execute(*details)  # type: ignore[misc]
        return int(started)

    def _forked(self, details: Sequence[Any]) -> int | None:
        """Return the child's id; None where it is not for the process that forks."""
        order = _order_of(details)
        # A fork of this process has its copy of the socket, and would not be the child's parent.
        if order is None or os.getpid() != self._owner:
            return None
        with self._lock:
            if self._socket is None:
                self._start()
            if _of_python(order.environment) != self._python:
                return None
            folder, stdin, stdout, stderr = details[4], details[6], details[9], details[11]
            return self._ask(order, folder, (stdin, stdout, stderr))

    def _start(self) -> None:
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MESSAGE)
        self._python = _of_python(dict(os.environ))
        command = [PYTHON, "-P", __file__, str(other.fileno()), " " * _ROOM]
        environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            command,
            pass_fds=[other.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=environment,
        )
        other.close()

    def _ask(self, order: Order, folder: Any, pipes: tuple[int, int, int]) -> int | None:
        assert self._socket is not None
        place = os.open("." if folder is None else folder, os.O_RDONLY | os.O_DIRECTORY)
        files = [number if pipe == -1 else pipe for number, pipe in enumerate(pipes)]
        prctl = ctypes.CDLL(None).prctl
        # The child's first parent ends at once, and its next is the nearest process above that
        # collects orphans: this one, and only until then.
        prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            socket.send_fds(self._socket, [json.dumps(order).encode()], [*files, place])
            answer = self._socket.recv(64)
        except OSError:  # one of 0, 1, 2 is closed
            return None
        finally:
            prctl(_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
            os.close(place)
        return int(answer)


def _order_of(details: Sequence[Any]) -> Order | None:
    """Read the arguments of _posixsubprocess.fork_exec(); None where they ask for anything else."""
    if len(details) != _FORK_EXEC_PARAMETERS or OFF in os.environ:
        return None
    words = [os.fsdecode(word) for word in details[0]]
    programs = [os.fsdecode(path) for path in details[1]]
    close_fds, kept, pairs, error_pipe = details[2], details[3], details[5], details[13]
    session, group, preexec = details[15], details[16], details[21]
    rights = details[17:21]  # gid, gids, uid, umask
    module = words[words.index("-m") + 1 :][:1] if "-m" in words[1:3] else []
    plain = close_fds and set(kept) == {error_pipe} and preexec is None
    if (
        not plain
        or rights != (None, None, None, -1)
        or programs != [PYTHON]
        or words[0] != PYTHON
        or not set(MODULES) & set(module)
        or words[1] not in ("-P", "-m")
        or len("\0".join(words).encode()) >= _ROOM
    ):
        return None
    environment = dict(os.environ)
    if pairs is not None:
        split = [os.fsdecode(pair).partition("=") for pair in pairs]
        environment = {name: text for name, _, text in split}
    return Order(words, environment, session, group)


def _of_python(environment: dict[str, str]) -> dict[str, str]:
    """Return the variables that Python reads when it begins."""
    return {name: text for name, text in environment.items() if name.startswith("PYTHON")}


def main() -> None:
    """Serve orders until the other end of the socket closes; in a child, do what its order says."""
    for module in IMPORTED:
        importlib.import_module(module)
    for module in IMPORTED[:2]:
        del sys.modules[module]  # each is run anew, as `__main__`
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    order = _wait_for_order(socket.socket(fileno=int(sys.argv[1])))
    if order is not None:
        runpy.run_module(order.module, run_name="__main__", alter_sys=True)


def _wait_for_order(orders: socket.socket) -> Order | None:
    """Return an order in the child that it is for; None where there will be no more."""
    while True:
        message, files, _, _ = socket.recv_fds(orders, _MESSAGE, 4)
        if not message:
            return None
        order = Order(*json.loads(message))
        reading, writing = os.pipe()
        between = os.fork()
        if between == 0:
            between = os.getpid()
            if os.fork() != 0:
                os._exit(0)
            os.close(reading)
            orders.close()
            _become(order, files)
            while os.getppid() == between:
                time.sleep(0.0002)
            os.write(writing, str(os.getpid()).encode())
            os.close(writing)
            return order
        os.waitpid(between, 0)
        os.close(writing)
        for file in files:
            os.close(file)
        orders.send(os.read(reading, 64))
        os.close(reading)


def _become(order: Order, files: Sequence[int]) -> None:
    """Make this process what the order says, as far as the kernel and Python know of it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if order.session:
        os.setsid()
    if order.group >= 0:
        os.setpgid(0, order.group)
    *standard, folder = files
    for number, file in enumerate(standard):
        os.dup2(file, number)
    os.fchdir(folder)
    for file in files:
        os.close(file)
    _name(order.words)
    os.environ.clear()
    os.environ.update(order.environment)
    sys.argv, sys.orig_argv = [order.module, *order.arguments], order.words
    if not order.safe_path:
        sys.path.insert(0, str(Path.cwd()))
    sys.stdin = _opened(0, "r", "strict")
    sys.stdout = _opened(1, "w", "strict")
    sys.stderr = _opened(2, "w", "backslashreplace")


def _opened(file: int, mode: str, errors: str) -> TextIO:
    """Open a standard file as Python does when it begins: by what it is now."""
    by_line = file == 2 or os.isatty(file)
    return cast(
        TextIO,
        open(file, mode, buffering=1 if by_line else -1, errors=errors, closefd=False),
    )


def _name(words: Sequence[str]) -> None:
    """Write a command line over that of this process, where others read it."""
    status = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    first, end = int(status[45]), int(status[46])  # proc(5): fields 48 and 49
    line = "\0".join(words).encode()
    ctypes.memmove(first, line.ljust(end - first, b"\0"), end - first)


if __name__ == "__main__":
    main()
