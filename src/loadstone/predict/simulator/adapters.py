"""Adapters in the slots of a GPU and in its host's memory, and when steps wait for one."""

from collections import OrderedDict
from collections.abc import Collection

from loadstone.engines.sharding.adapters import AdapterSlots
from loadstone.predict.step_time.adapters import AdapterTimes

_FIRST = 65_536
"""The most adapters that a host is taken to begin with."""


class ResidentAdapters:
    """The slots of one engine, and the host's memory below; each gives up the least recently used.

    The host begins with the first adapters, as engines load those that they are started with.
    loads  so far, from the host or from disk
    """

    def __init__(self, slots: AdapterSlots, times: AdapterTimes) -> None:
        self.loads = 0
        self._slots, self._host = slots.slots, slots.host
        self._base = int(slots.needs_base)
        self._times = times
        self._on_gpu: OrderedDict[int, None] = OrderedDict()
        first = range(1, 1 + min(slots.host, _FIRST))
        self._on_host: OrderedDict[int, None] = OrderedDict.fromkeys(first)

    def step_s(self, used: Collection[int], tokens: float) -> tuple[float, float]:
        """Return the seconds that a step with these adapters (0: none) and so many tokens takes
        longer: (each such step, the first one for loads)."""
        adapters = [adapter for adapter in used if adapter]
        loading_s = sum(map(self._take, adapters))
        while len(self._on_gpu) > max(len(adapters), self._slots - (self._base and 0 in used)):
            self._on_gpu.popitem(last=False)
        return self._times.step_s(tokens, len(adapters)), loading_s

    def _take(self, adapter: int) -> float:
        """Have an adapter on the GPU; returns the seconds of its load."""
        loaded = adapter in self._on_gpu
        self._on_gpu[adapter] = None
        self._on_gpu.move_to_end(adapter)
        if loaded:
            return 0.0
        self.loads += 1
        in_host = adapter in self._on_host
        self._on_host[adapter] = None
        self._on_host.move_to_end(adapter)
        if len(self._on_host) > self._host:
            self._on_host.popitem(last=False)
        return self._times.load_s + (0.0 if in_host else self._times.disk_s)
