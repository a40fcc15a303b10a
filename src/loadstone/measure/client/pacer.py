"""Wakes an event loop at an absolute monotonic time, to some tens of microseconds.

Event loop timers count milliseconds (libuv's and asyncio's alike), too coarse for thousands of sends a second. On
Linux a timerfd wakes the loop instead; elsewhere the loop's timer does. Python has os.timerfd_create from 3.13 on;
here libc is called directly.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Callable

_CLOCK_MONOTONIC = 1
_ABSOLUTE = 1
_NONBLOCK_CLOEXEC = 0o4000 | 0o2000000
_PR_SET_TIMERSLACK = 29
_TIMER_SLACK_NS = 1000


class _TimerSpec(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_long) for name in ("interval_s", "interval_ns", "value_s", "value_ns")
    )  # fmt: skip


class Pacer:
    """Calls `callback` on `loop` at the time set last with `wake_at`. Close it when done."""

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
        """Call back at `monotonic_ns` on CLOCK_MONOTONIC, at once if that is past; forgets an earlier time set."""
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
