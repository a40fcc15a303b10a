"""Sets where Linux's scheduler counts the workers: a client beside a busy engine must get a
processor when data come.

Processors are shared among sessions first (autogroups, sched(7)), and only then among the threads
of one. In the engine's session a worker, which mostly sleeps, runs soon after data wake it. In
another session it waits until its whole group is due, which beside a busy group took up to 0.2 s on
two cores; unless that group has more weight. Too much weight keeps a server on the same cores from
writing: it rises only while the worker is kept waiting.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

LEVELS = (-5, -10, -15, -20)
"""Weights of 3, 9, 29 and 87 times that of others. At -20 from the start, a hundred streams that
start together on two cores kept the timing server from writing: TTFT p50 was 15 to 25 ms above the
truth; at -5 it is 0.2 ms. At -5 beside vLLM on two cores, arrivals waited 60 to 220 ms (p99) to be
read. Straight to -20 once kept waiting gave 0.4 to 0.8 ms, and 5 to 120 ms (docs/trust.md)."""
_TICK_S = 0.01
_WINDOW_S = 1.0
_WAITED = 0.1
"""The share of a window in which a worker was ready and had no processor: with more, its weight
rises."""
_AUTOGROUP = Path("/proc/self/autogroup")
_LISTENING = "0A"
_TRIES = 20
_RETRY_S = 0.1
"""Without CAP_SYS_ADMIN the kernel takes one such change in 0.1 s, of all processes together."""


def needs_own_session(ports: Collection[int], may: Callable[[], bool] | None = None) -> bool:
    """Return True if workers are to be started in sessions of their own and call `rise`.

    Not if a server on one of these TCP ports is in this session: its group is theirs. Nor without
    the right to raise priority (root, CAP_SYS_NICE, RLIMIT_NICE): a further session is then one
    group more to wait for. Nor under nice(1), which asks for less. `may`: tells of that right.
    """
    return (may or may_rise)() and not _is_listening_here(ports)


def leads_session() -> bool:
    return os.getsid(0) == os.getpid()


def set_weight(nice: int, autogroup: Path = _AUTOGROUP) -> bool:
    """Set the weight of this session's group; returns False if the kernel wants to be asked again
    later."""
    with contextlib.suppress(
        OSError
    ):  # what counts where there are no autogroups, as in a container
        os.setpriority(os.PRIO_PROCESS, 0, nice)
    try:
        autogroup.write_text(str(nice), "ascii")
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def rise(change: Callable[[int], bool] = set_weight, retry_s: float = _RETRY_S) -> None:
    """In a process that leads its session: raise the weight of its group, as far as that is
    permitted."""
    if not leads_session():
        return
    for _ in range(_TRIES):
        if change(LEVELS[0]):
            return
        time.sleep(retry_s)


class WeightGuard:
    """Raises the weight of a session that leads its group by a level whenever it was kept waiting
    for a processor.

    A timer that fires late, by more than the process computed meanwhile, tells of that.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        change: Callable[[int], bool] = set_weight,
        used_s: Callable[[], float] = time.process_time,
    ) -> None:
        """`used_s`: the time that this process has computed."""
        self._loop = loop
        self._change = change
        self._count_used_s = used_s
        self._levels = list(LEVELS[1:])
        self._waited_s = 0.0
        self._used_s = used_s()
        self._due_s = self._window_end_s = loop.time()

    def watch(self) -> None:
        """Look every 10 ms until the highest level is reached."""
        now_s, used_s = self._loop.time(), self._count_used_s()
        self._waited_s += max(0.0, now_s - self._due_s - (used_s - self._used_s))
        if now_s >= self._window_end_s:
            if self._waited_s > _WAITED * _WINDOW_S and self._change(self._levels[0]):
                del self._levels[0]
            self._waited_s, self._window_end_s = 0.0, now_s + _WINDOW_S
        self._used_s, self._due_s = used_s, now_s + _TICK_S
        if self._levels:
            self._loop.call_at(self._due_s, self.watch)


def may_rise() -> bool:
    """Return whether priority may be raised: by trying, for rights depend on the user namespace
    too."""
    priority = os.getpriority(os.PRIO_PROCESS, 0)
    if priority > 0:
        return False
    try:
        os.setpriority(os.PRIO_PROCESS, 0, min(priority, LEVELS[0]))
    except OSError:
        return False
    os.setpriority(os.PRIO_PROCESS, 0, priority)
    return True


def _is_listening_here(ports: Collection[int]) -> bool:
    sockets = set(_listening(ports))
    session = os.getsid(0)
    for process in Path("/proc").glob("[0-9]*") if sockets else ():
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if os.getsid(int(process.name)) == session:
                for descriptor in (process / "fd").iterdir():
                    with contextlib.suppress(OSError):
                        if str(descriptor.readlink()) in sockets:
                            return True
    return False


def _listening(ports: Collection[int]) -> Iterator[str]:
    """Sockets that listen on these ports, as links in /proc/PID/fd have them."""
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path("/proc/net", name).read_text("ascii").splitlines()[1:]:
                _, local, _, state, *rest = line.split()
                if state == _LISTENING and int(local.rpartition(":")[2], 16) in ports:
                    yield f"socket:[{rest[5]}]"
