"""Resumes streams at the times they name, to some tens of microseconds and at little cost."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Iterator

from loadstone.measure.client.pacer import Pacer

_WRITES_PER_TURN = 256  # then sockets are read again: about 2 ms
# A wake costs 20 to 30 µs of CPU on a virtual machine, as much as five writes. Where many tokens are due, wakes thus
# come no closer than this, and a token may be that much late.
_WAKE_GAP_NS = 200_000


class Scheduler:
    """Resumes each stream when it is due, never earlier.

    A stream is a generator: it yields the CLOCK_MONOTONIC ns at which it is due next, and is resumed to write.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._heap: list[tuple[int, int, Iterator[int]]] = []  # due ns, serial, stream
        self._serial = itertools.count()  # keeps the heap from comparing streams
        self._pacer = Pacer(loop, self._run)
        self.close = self._pacer.close

    def add(self, stream: Iterator[int]) -> None:
        """Take on a stream that has something to write. Not to be called by a stream."""
        entry = (next(stream), next(self._serial), stream)
        heapq.heappush(self._heap, entry)
        if self._heap[0] is entry:
            self._pacer.wake_at(entry[0])

    def _run(self) -> None:
        heap = self._heap
        begun_ns = now_ns = time.monotonic_ns()
        for _ in range(_WRITES_PER_TURN):
            if not heap:
                return
            due_ns, serial, stream = heap[0]
            if due_ns > now_ns and due_ns > (now_ns := time.monotonic_ns()):  # 100 ns, seldom spent
                self._pacer.wake_at(max(due_ns, begun_ns + _WAKE_GAP_NS))
                return
            next_ns = next(stream, None)
            if next_ns is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (next_ns, serial, stream))
        self._pacer.wake_at(begun_ns)  # more is due, after the sockets that wait to be read
