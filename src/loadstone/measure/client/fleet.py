"""Chooses where requests go: the servers of a fleet, the connections kept to each, and which server
is next."""

import ssl
import time
from collections.abc import Callable
from typing import Any

from loadstone.core.plan import PlannedRequest
from loadstone.measure.client.connection import Connection, Owner
from loadstone.measure.client.protocol import Destination
from loadstone.measure.client.stream import Stream
from loadstone.workload.request import Route
from loadstone.workload.routing import SentPrefixes, choose_by_prefix

_AVOID_NS = 1_000_000_000
"""The time for which the least busy server is not chosen after a connection to it failed: it is
idle because it is dead."""
_NEVER_CHOSEN = 1 << 40
_NEVER_KEPT = 5
"""So many requests lost with their kept connections, and none ever served on one: the server keeps
none. Each would lose a write, and have the next connection in its TTFT (llama.cpp promises to keep
them, and does not)."""


class ServerFleet:
    """One or more servers. Replicas are numbered as the destinations are."""

    def __init__(self, owner: Owner, destinations: list[Destination], route: Route) -> None:
        self._owner = owner
        self._addresses = [to.address for to in destinations]
        has_tls = any(address.tls_name for address in self._addresses)
        self._tls = ssl.create_default_context() if has_tls else None
        self._route = route
        self.sticky = route == "sticky"
        self._idle: list[list[Connection]] = [[] for _ in destinations]
        self._busy = [0] * len(destinations)
        self._avoid_until_ns = [0] * len(destinations)
        self._cut = [0] * len(destinations)
        self._keeps = [False] * len(destinations)
        self._replica_of: dict[Connection, int] = {}
        self._turn = 0
        self._sent = SentPrefixes(len(destinations)) if route == "prefix" else None

    def choose(self, request: PlannedRequest) -> int:
        """Choose the replica for a request, or for a session's first turn.

        round-robin  by the request's index, so that several workers go round together
        least-busy   the fewest requests of this worker's under way
        sticky       by prefix group, where there are any; sessions go round as they begin, and then
                     stay
        prefix       to whom this worker sent most of the prompt before, unless it is far busier
                     than another
        """
        count = len(self._addresses)
        if count == 1:
            return 0
        self._turn += 1
        if self._route in ("least-busy", "prefix"):
            now_ns = time.monotonic_ns()
            loads = [
                busy + _NEVER_CHOSEN * (avoid > now_ns)
                for busy, avoid in zip(self._busy, self._avoid_until_ns, strict=True)
            ]
            if self._sent is None:
                return min(range(count), key=lambda i: (loads[i], (i - self._turn) % count))
            replica = choose_by_prefix(self._sent.found(request), loads, self._turn)
            self._sent.note(request, replica)
            return replica
        if self.sticky and request.prefix_group is not None:
            return request.prefix_group % count
        if self.sticky and request.turn is not None:
            return self._turn % count
        return request.index % count

    def launch(self, stream: Stream, *, fresh: bool = False) -> Connection:
        """Send `stream` to its replica, over a kept connection unless `fresh`. Raises OSError
        without a socket."""
        idle = self._idle[stream.replica]
        while idle and not fresh:
            connection = idle.pop()
            if not connection.closed and connection.connected and connection.listens():
                self._busy[stream.replica] += 1
                connection.start(stream)
                return connection
        return self._open(stream.replica, stream)

    def _open(self, replica: int, stream: Stream | None) -> Connection:
        address = self._addresses[replica]
        tls = self._tls if address.tls_name is not None else None
        connection = Connection(self._owner, address, tls)
        self._replica_of[connection] = replica
        if stream is not None:
            self._busy[replica] += 1
        connection.open(address, stream)
        return connection

    def free(self, stream: Stream) -> None:
        """Note that the request under way at a replica has ended, however it did."""
        self._busy[stream.replica] -= 1

    def note_failure(self, stream: Stream) -> None:
        """Note that a connection could not be made, or was cut."""
        self._avoid_until_ns[stream.replica] = time.monotonic_ns() + _AVOID_NS

    def note_cut(self, stream: Stream) -> None:
        """Note that a kept connection was closed under its request, unanswered."""
        self._cut[stream.replica] += 1

    def keep(self, connection: Connection, served: Stream | None = None) -> None:
        """Keep an idle connection for the next request: one opened ahead, or that `served` one."""
        if served is not None:
            self._keeps[served.replica] |= served.reused
            if self._cut[served.replica] >= _NEVER_KEPT and not self._keeps[served.replica]:
                connection.close()
        if connection.closed:
            self._replica_of.pop(connection, None)
        else:
            self._idle[self._replica_of[connection]].append(connection)

    def drop(self, connection: Connection, under: Stream | None = None) -> None:
        """Forget a connection of no more use; the request `under` way on it, if any, has ended."""
        if under is not None:
            self.free(under)
        replica = self._replica_of.pop(connection, None)
        if replica is not None and connection in self._idle[replica]:
            self._idle[replica].remove(connection)

    def preconnect(self, count: int, call_later: Callable[..., Any]) -> None:
        """Open connections before they are needed, over all replicas, a few at a time for the
        servers' backlog."""
        missing = []
        for replica, idle in enumerate(self._idle):
            share = count // len(self._addresses) + (replica < count % len(self._addresses))
            missing += [replica] * max(0, share - len(idle))
        self._preconnect(missing, call_later)

    def _preconnect(self, missing: list[int], call_later: Callable[..., Any]) -> None:
        for replica in missing[:64]:
            try:
                self._open(replica, None)
            except OSError:
                return  # told when a request finds no socket
        if len(missing) > 64:
            call_later(0.005, self._preconnect, missing[64:], call_later)
