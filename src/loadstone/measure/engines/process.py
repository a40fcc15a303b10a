"""Runs a server as a child process that cannot outlive the program that started it.

Between the two stands a guard, this module run as a program: it holds the read end of a pipe from
the owner and is the server's parent. When the pipe closes, or the guard is told to stop, or its own
parent changes, the server's process group gets SIGTERM and, five seconds later, SIGKILL. So a kill
−9 of the owner ends the server too, which no `atexit` can do and which Linux's parent-death signal
does unreliably where the owner has threads. On Linux, processes that the server has sent away from
itself become the guard's children, and end as well; a container, which is no process of ours, is
stopped by its name.
"""

import contextlib
import ctypes
import os
import random
import select
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Self

from loadstone.core.errors import TargetError

KILL_AFTER_S = 5.0
_CONTAINER_S = 60.0
"""Runtimes that answer do so within this, also while they stop a container."""
_TAIL_BYTES = 4096
_TAIL_LINES = 3
_PORTS = (20_000, 32_000)
CUT = b"\n[loadstone: what stood here was cut out, as this log had grown too large]\n"
_SET_CHILD_SUBREAPER = 36
"""Of Linux's prctl(2)."""


class ServerProcess:
    """Runs a server. It has a process group of its own, so Ctrl-C in the terminal reaches only the
    owner; the session is the owner's, for its sake and the client's: Linux shares processors among
    sessions.

    `pid` is the server's own, `url` whatever base address the owner gave, `log_path` its output,
    both streams.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        log_path: Path,
        url: str = "",
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Start `command`, with `env` as its whole environment (default: this process's). Raises
        TargetError."""
        self.url = url
        self.log_path = log_path
        self._group = 0
        self._command = command
        log_path.parent.mkdir(parents=True, exist_ok=True)
        # -P: a file called signal.py in the current folder must not be taken for the library's.
        guard = [sys.executable, "-P", "-m", __name__, str(os.getpid()), *command]
        log_path.unlink(
            missing_ok=True
        )  # what an earlier server may have put in its place is not followed
        with log_path.open("a+b") as log:
            self._guard = subprocess.Popen(
                guard,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=env,
                process_group=0,
            )
        with _pipe(self._guard.stdout) as answer:
            line = answer.readline().decode(errors="replace").strip()
        if not line.isdecimal():
            self.stop()
            last = " | ".join(last_lines(log_path)[-_TAIL_LINES:]) or "it wrote nothing"
            reason = line or f"{last} (log: {log_path})"
            raise TargetError(f"cannot start {command[0]}: {reason}")
        self.pid = self._group = int(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def exit_code(self) -> int | None:
        """Return None while the server runs; then its exit code, 128 + n if signal n ended it."""
        return self._guard.poll()

    def stop(self) -> None:
        """End the server and everything in its process group; returns when they are gone. May be
        called again."""
        # The signal as well as the closed pipe: a process forked off the owner may hold the pipe
        # open.
        self._guard.terminate()
        self._guard.send_signal(signal.SIGCONT)
        _pipe(self._guard.stdin).close()
        orphans, self._group = self._group, 0
        if self._guard.wait() < 0 and orphans:  # somebody killed it, and it ended nothing
            _signal_group(orphans, signal.SIGKILL)
            _end_container(self._command)


def describe_exit(code: int) -> str:
    """Return how a server ended, by its exit code as `ServerProcess` has it."""
    return f"by signal {code - 128}" if code > 128 else f"with exit code {code}"


def last_lines(log: Path) -> list[str]:
    """Return lines from a log's end, those that have words."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    return [" ".join(line.split()) for line in lines if line.strip()]


_claims: deque[int] = deque()


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that nothing listens on at this moment.

    Not one of those that the kernel gives to outgoing connections: one of these could be taken in
    the minutes until an engine listens, or the hours until a job starts. Nor one that another
    process has just been given.
    """
    while True:
        port = random.randrange(*_PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if sys.platform == "linux":
                _claim(f"\0loadstone-port-{port}")
            return port


def _claim(name: str) -> None:
    """Bind a name without a file: once on a machine, until this process ends or has had 16
    others."""
    with socket.socket(socket.AF_UNIX) as claim:
        claim.bind(name)
        if len(_claims) == 16:
            os.close(_claims.popleft())
        _claims.append(claim.detach())


def container_stop(command: Sequence[str]) -> tuple[str, ...]:
    """Return what ends the container that a command runs, also once the command is killed; () where
    it runs none."""
    if (
        len(command) < 2
        or Path(command[0]).name not in ("docker", "podman")
        or "--name" not in command[:-1]
    ):
        return ()
    return (command[0], "stop", "-t", f"{KILL_AFTER_S:.0f}", command[command.index("--name") + 1])


def _end_container(command: Sequence[str]) -> None:
    words = container_stop(command)
    if words:
        quiet = subprocess.DEVNULL
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                words, stdin=quiet, stdout=quiet, stderr=quiet, timeout=_CONTAINER_S, check=False
            )


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise RuntimeError("the guard was started without this pipe")
    return stream


def _guard(owner_pid: int, command: list[str]) -> int:
    """Run `command` until it ends or must end; standard input is the owner's pipe. Returns the exit
    code.

    The first line on standard output is the server's pid, or why there is none.
    """
    must_stop = False

    def stop(_signal: int, _frame: object) -> None:
        nonlocal must_stop
        must_stop = True

    # Every signal also makes the pipe readable, so that the wait below misses none.
    wake, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda _signal, _frame: None)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)

    log = sys.stderr.fileno()
    with contextlib.suppress(AttributeError):  # elsewhere than on Linux
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        server = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0
        )
    except OSError as error:
        os.write(sys.stdout.fileno(), f"{error.strerror}\n".encode())
        return 127
    with contextlib.suppress(BrokenPipeError):
        os.write(sys.stdout.fileno(), f"{server.pid}\n".encode())

    owner = sys.stdin.fileno()
    # The owner's pid is looked at too, once a second: a process that it forked may hold its end of
    # the pipe open.
    while server.poll() is None and not must_stop and os.getppid() == owner_pid:
        readable, _, _ = select.select([owner, wake], [], [], 1.0)
        if owner in readable:  # nothing is ever written to it: this is its end
            break
        if wake in readable:
            os.read(wake, 512)
        for child in _children({server.pid}):
            os.waitpid(child, os.WNOHANG)
        with contextlib.suppress(OSError):
            bound_log(log)
    _signal_group(server.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.wait(KILL_AFTER_S)
    _signal_group(
        server.pid, signal.SIGKILL
    )  # also what a server that ended by itself has left behind
    code = server.wait()
    _end_container(command)
    while children := _children(set()):
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    return code if code >= 0 else 128 - code


def _children(but: set[int]) -> set[int]:
    """Return this process's children, as Linux tells them."""
    with contextlib.suppress(OSError):
        return (
            set(map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())) - but
        )
    return set()


def bound_log(
    log: int, *, max_bytes: int = 128 << 20, begin_bytes: int = 64 << 20, end_bytes: int = 1 << 20
) -> None:
    """Cut the middle out of a log that is too large; who writes to it appends."""
    size = os.fstat(log).st_size
    if size > max_bytes:
        end = os.pread(log, end_bytes, size - end_bytes)
        os.ftruncate(log, begin_bytes)
        os.write(log, CUT + end)


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(
        ProcessLookupError, PermissionError
    ):  # macOS refuses for a group of zombies
        os.killpg(group, number)


if __name__ == "__main__":
    sys.exit(_guard(int(sys.argv[1]), sys.argv[2:]))
