"""Chooses a replica by what it has of a prompt already, beside how busy it is."""

from collections import OrderedDict
from collections.abc import Hashable, Sequence

from loadstone.core.plan import PlannedRequest

_MOST_TIMES, _MOST_MORE = 2, 8
"""A replica with more than so many times the requests of the least busy, and so many more, is
passed over."""
_MOST_KEYS = 1_000_000


def choose_by_prefix(found: Sequence[int], loads: Sequence[int], turn: int) -> int:
    """Return the replica that has most of the prompt, unless it is far busier than another; of
    several that have as much, the least busy, in turn."""
    count = len(loads)
    limit = _MOST_TIMES * min(loads) + _MOST_MORE
    free = [replica for replica in range(count) if loads[replica] <= limit]
    return min(
        free, key=lambda replica: (-found[replica], loads[replica], (replica - turn) % count)
    )


class SentPrefixes:
    """Remembers which replica was sent what, as a router outside of the engines knows it: prefix
    groups, a trace's blocks, sessions."""

    def __init__(self, replicas: int) -> None:
        self._all = range(replicas)
        self._sent: OrderedDict[Hashable, int] = OrderedDict()  # to replicas, as bits

    def found(self, request: PlannedRequest) -> list[int]:
        """Count the parts of a request, from the first on, that each replica was sent before."""
        found = [0 for _ in self._all]
        replicas = -1
        for part in _parts(request):
            replicas &= self._sent.get(part, 0)
            if not replicas:
                break
            for replica in self._all:
                found[replica] += replicas >> replica & 1
        return found

    def note(self, request: PlannedRequest, replica: int) -> None:
        """It goes there."""
        for part in _parts(request):
            self._sent[part] = self._sent.pop(part, 0) | 1 << replica
        while len(self._sent) > _MOST_KEYS:
            self._sent.popitem(last=False)


def _parts(request: PlannedRequest) -> list[Hashable]:
    """List what a prompt is made of, the first first."""
    parts: list[Hashable] = (
        [] if request.prefix_group is None else [("prefix", request.prefix_group)]
    )
    parts += [("block", place, block) for place, block in enumerate(request.blocks)]
    if request.session_id is not None:
        parts.append(("session", request.session_id))
    return parts
