"""Keeps one clock for a run: seconds since its origin on CLOCK_MONOTONIC, which all processes of a
host share.

The kernel stamps arriving data with CLOCK_REALTIME. Both clocks are slewed alike, so the offset
between them stays the same until somebody sets the time. That is looked for through the run
(`RunClock.resample`); a stamp that makes no sense in between is told by the reading time. And a
Pacer, which wakes an event loop at an absolute time.
"""

import asyncio
import ctypes
import os
import socket
import struct
import sys
import time
from collections.abc import Callable
from operator import sub

SO_TIMESTAMPNS = 35
"""asm-generic/socket.h: the value on x86-64 and arm64; Python 3.11's socket module lacks the name.
"""

ANCILLARY_BYTES = 64

_CLOCK_MONOTONIC = 1
_ABSOLUTE = 1
_NONBLOCK_CLOEXEC = 0o4000 | 0o2000000
_PR_SET_TIMERSLACK = 29
_TIMER_SLACK_NS = 1000
_STAMP = struct.Struct("@qq")
_EARLY_NS = 200_000
_LATE_NS = 50_000_000
_STEP_NS = 20_000
"""A difference between two samples of the offset that is no step: they are taken with some hundreds
of ns, in user space."""


def ask_for_stamps(sock: socket.socket) -> bool:
    """Have the kernel stamp what arrives on `sock`. False where the system cannot; reads are timed
    in user space."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    except OSError:
        return False
    return True


class RunClock:
    """Times since `origin_ns` (CLOCK_MONOTONIC), and arrival times from kernel stamps."""

    def __init__(self, origin_ns: int) -> None:
        self.origin_ns = origin_ns
        self._offset_ns = self._before_ns = measure_offset_ns()[0]
        self._set_ns = 0
        """CLOCK_MONOTONIC from which `_offset_ns` holds for sure; reads before may belong to
        `_before_ns`."""

    def resample(self) -> None:
        """Look whether the host's clock was set since the last look; call it about once a
        second."""
        offset_ns, within_ns = measure_offset_ns()
        if abs(offset_ns - self._offset_ns) > _STEP_NS + within_ns:
            self._before_ns, self._offset_ns = self._offset_ns, offset_ns
            self._set_ns = time.monotonic_ns()

    def since_origin_s(self, monotonic_ns: int) -> float:
        return (monotonic_ns - self.origin_ns) * 1e-9

    def arrivals_ns(self, stamps: list[bytes], reads_ns: list[int]) -> tuple[list[int], int]:
        """Return when the newest byte of each read arrived, CLOCK_MONOTONIC ns, and the longest
        that one waited to be read.

        `stamps` as the kernel wrote them, a struct timespec, or b"" where there is none: then it is
        the time of the read, `reads_ns`.
        """
        offset_ns = self._offset_ns
        try:
            arrivals = [
                s * 1_000_000_000 + ns + offset_ns for s, ns in _STAMP.iter_unpack(b"".join(stamps))
            ]
            lags = list(map(sub, reads_ns, arrivals))
            if len(arrivals) == len(reads_ns) and reads_ns[0] >= self._set_ns:
                worst = max(lags)
                if worst <= _LATE_NS and min(lags) >= 0:
                    return arrivals, worst
        except struct.error:
            pass
        arrivals = [
            self._arrival_ns(stamp, read_ns)
            for stamp, read_ns in zip(stamps, reads_ns, strict=True)
        ]
        return arrivals, max(map(sub, reads_ns, arrivals))

    def _arrival_ns(self, stamp: bytes, read_ns: int) -> int:
        if len(stamp) != _STAMP.size:
            return read_ns
        seconds, nanoseconds = _STAMP.unpack(stamp)
        stamp_ns: int = seconds * 1_000_000_000 + nanoseconds
        offsets = (
            (self._offset_ns,) if read_ns >= self._set_ns else (self._offset_ns, self._before_ns)
        )
        all_lags = [read_ns - stamp_ns - offset for offset in offsets]
        lags = [lag for lag in all_lags if -_EARLY_NS <= lag <= _LATE_NS]
        # Of two that are possible the shorter: a step hides in a wait, and long waits are rare.
        return read_ns - max(0, min(lags)) if lags else self._doubtful(stamp_ns, read_ns)

    def _doubtful(self, stamp_ns: int, read_ns: int) -> int:
        """Decide about a stamp after its own reading, or long before it: was the host's clock set,
        or was this process late?"""
        self.resample()
        arrival = stamp_ns + self._offset_ns
        return arrival if arrival <= read_ns and arrival >= self.origin_ns else read_ns


def measure_offset_ns() -> tuple[int, int]:
    """Measure CLOCK_MONOTONIC − CLOCK_REALTIME in ns: of five tries the one in the tightest
    bracket, and half that bracket."""
    tries = []
    for _ in range(5):
        begun_ns = time.monotonic_ns()
        real = time.time_ns()
        ended_ns = time.monotonic_ns()
        tries.append(((ended_ns - begun_ns) // 2, (begun_ns + ended_ns) // 2 - real))
    within_ns, offset_ns = min(tries)
    return offset_ns, within_ns


class _TimerSpec(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_long) for name in ("interval_s", "interval_ns", "value_s", "value_ns")
    )


class Pacer:
    """Calls `callback` on `loop` at the time set last with `wake_at`, to some tens of µs. Close it
    when done.

    Event loop timers count milliseconds (libuv's and asyncio's alike), too coarse for thousands of
    sends a second. On Linux a timerfd wakes the loop instead; elsewhere the loop's timer does.
    Python has os.timerfd_create from 3.13 on; here libc is called directly.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._fd = -1
        self._handle: asyncio.TimerHandle | None = None
        if sys.platform.startswith("linux"):
            self._libc = ctypes.CDLL(None, use_errno=True)
            # The kernel may delay a thread's wake-ups by 50 µs to save power; not this one's.
            self._libc.prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(_TIMER_SLACK_NS), 0, 0, 0)
            self._fd = self._libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK_CLOEXEC)
        if self._fd >= 0:
            self._spec = _TimerSpec()
            self._spec_at = ctypes.byref(self._spec)
            loop.add_reader(self._fd, self._on_timer)

    def wake_at(self, monotonic_ns: int) -> None:
        """Call back at `monotonic_ns` on CLOCK_MONOTONIC, at once if that is past; forgets an
        earlier time set."""
        if self._fd >= 0:
            # A zero time would disarm the timer.
            self._spec.value_s, self._spec.value_ns = divmod(max(1, monotonic_ns), 1_000_000_000)
            self._libc.timerfd_settime(self._fd, _ABSOLUTE, self._spec_at, None)
            return
        if self._handle is not None:
            self._handle.cancel()
        delay = max(0.0, (monotonic_ns - time.monotonic_ns()) * 1e-9)
        self._handle = self._loop.call_later(delay, self._callback)

    def _on_timer(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return
        self._callback()

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Make an event loop: uvloop's where it is installed, which costs half of asyncio's."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
