"""Sets where Linux's scheduler counts the workers: a client beside a busy engine must get a processor when data come.

Processors are shared among sessions first (autogroups, sched(7)), and only then among the threads of one. In the
engine's session a worker, which mostly sleeps, runs soon after data wake it. In another session it waits until its
whole group is due, which beside a busy group took up to 0.2 s on two cores; unless that group has more weight.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Iterator
from pathlib import Path

NICE = -5
"""Three times the weight of others. With 87 times (-20), a hundred streams that start together on two cores kept the
timing server from writing: TTFT p50 was 15 to 25 ms above the truth; with this 1 to 2 ms."""
_AUTOGROUP = "/proc/self/autogroup"
_LISTENING = "0A"
_TRIES = 20
_RETRY_S = 0.1
"""Without CAP_SYS_ADMIN the kernel takes one such change in 0.1 s, of all processes together."""


def needs_own_session(ports: Collection[int]) -> bool:
    """Return True if workers are to be started in sessions of their own and call `rise`.

    Not if a server on one of these TCP ports is in this session: its group is theirs. Nor without the right to raise
    priority (root, CAP_SYS_NICE, RLIMIT_NICE): a further session is then one group more to wait for. Nor under
    nice(1), which asks for less.
    """
    return _may_rise() and not _is_listening_here(ports)


def rise() -> None:
    """In a process that leads its session: raise the weight of its group, as far as that is permitted."""
    if os.getsid(0) != os.getpid():
        return
    with contextlib.suppress(OSError):  # what counts where there are no autogroups, as in a container
        os.setpriority(os.PRIO_PROCESS, 0, NICE)
    for _ in range(_TRIES):
        try:
            Path(_AUTOGROUP).write_text(str(NICE), "ascii")
        except BlockingIOError:
            time.sleep(_RETRY_S)
            continue
        except OSError:
            pass
        return


def _may_rise() -> bool:
    """Found out by trying, for rights depend on the user namespace too."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    if before > 0:
        return False
    try:
        os.setpriority(os.PRIO_PROCESS, 0, min(before, NICE))
    except OSError:
        return False
    os.setpriority(os.PRIO_PROCESS, 0, before)
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
                _, local, _, state, *others = line.split()
                if state == _LISTENING and int(local.rpartition(":")[2], 16) in ports:
                    yield f"socket:[{others[5]}]"
