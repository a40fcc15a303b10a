"""One clock for a run: seconds since its origin on CLOCK_MONOTONIC, which all processes of a host share.

The kernel stamps arriving data with CLOCK_REALTIME. Both clocks are slewed alike, so the offset between them stays
the same until somebody sets the time. That is looked for through the run (`Clock.resample`); a stamp that makes no
sense in between is told by the reading time.
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from operator import sub

SO_TIMESTAMPNS = 35
"""asm-generic/socket.h: the value on x86-64 and arm64; Python 3.11's socket module lacks the name."""

ANCILLARY_BYTES = 64

_STAMP = struct.Struct("@qq")
_EARLY_NS = 200_000
_LATE_NS = 50_000_000
_STEP_NS = 20_000
"""A difference between two samples of the offset that is no step: they are taken with some hundreds of ns, in user
space."""


def ask_for_stamps(sock: socket.socket) -> bool:
    """Have the kernel stamp what arrives on `sock`. False where the system cannot; reads are timed in user space."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    except OSError:
        return False
    return True


class Clock:
    """Times since `origin_ns` (CLOCK_MONOTONIC), and arrival times from kernel stamps."""

    def __init__(self, origin_ns: int) -> None:
        self.origin_ns = origin_ns
        self._offset_ns = self._before_ns = measure_offset_ns()[0]
        self._set_ns = 0
        """CLOCK_MONOTONIC from which `_offset_ns` holds for sure; reads before may belong to `_before_ns`."""

    def resample(self) -> None:
        """Look whether the host's clock was set since the last look; call it about once a second."""
        offset_ns, within_ns = measure_offset_ns()
        if abs(offset_ns - self._offset_ns) > _STEP_NS + within_ns:
            self._before_ns, self._offset_ns = self._offset_ns, offset_ns
            self._set_ns = time.monotonic_ns()

    def since_origin_s(self, monotonic_ns: int) -> float:
        return (monotonic_ns - self.origin_ns) * 1e-9

    def arrivals_ns(self, stamps: list[bytes], reads_ns: list[int]) -> tuple[list[int], int]:
        """When the newest byte of each read arrived, CLOCK_MONOTONIC ns, and the longest that one waited to be read.

        `stamps` as the kernel wrote them, a struct timespec, or b"" where there is none: then it is the time of the
        read, `reads_ns`.
        """
        offset_ns = self._offset_ns
        try:
            arrivals = [s * 1_000_000_000 + ns + offset_ns for s, ns in _STAMP.iter_unpack(b"".join(stamps))]
            lags = list(map(sub, reads_ns, arrivals))
            sane = len(arrivals) == len(reads_ns) and min(lags) >= 0 and (worst := max(lags)) <= _LATE_NS
            if sane and reads_ns[0] >= self._set_ns:
                return arrivals, worst
        except struct.error:
            pass
        arrivals = [self._arrival_ns(stamp, read_ns) for stamp, read_ns in zip(stamps, reads_ns, strict=True)]
        return arrivals, max(map(sub, reads_ns, arrivals))

    def _arrival_ns(self, stamp: bytes, read_ns: int) -> int:
        if len(stamp) != _STAMP.size:
            return read_ns
        seconds, nanoseconds = _STAMP.unpack(stamp)
        stamp_ns: int = seconds * 1_000_000_000 + nanoseconds
        offsets = (self._offset_ns,) if read_ns >= self._set_ns else (self._offset_ns, self._before_ns)
        lags = [lag for offset in offsets if -_EARLY_NS <= (lag := read_ns - stamp_ns - offset) <= _LATE_NS]
        # Of two that are possible the shorter: a step hides in a wait, and long waits are rare.
        return read_ns - max(0, min(lags)) if lags else self._doubtful(stamp_ns, read_ns)

    def _doubtful(self, stamp_ns: int, read_ns: int) -> int:
        """A stamp after its own reading, or long before it: was the host's clock set, or was this process late?"""
        self.resample()
        arrival = stamp_ns + self._offset_ns
        return arrival if arrival <= read_ns and arrival >= self.origin_ns else read_ns


def measure_offset_ns() -> tuple[int, int]:
    """CLOCK_MONOTONIC − CLOCK_REALTIME in ns, of five tries the one in the tightest bracket; half that bracket."""
    tries = []
    for _ in range(5):
        before = time.monotonic_ns()
        real = time.time_ns()
        after = time.monotonic_ns()
        tries.append(((after - before) // 2, (before + after) // 2 - real))
    within_ns, offset_ns = min(tries)
    return offset_ns, within_ns
