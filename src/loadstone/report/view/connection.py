"""A browser's connection to the live page: HTTP/1.1 that ends if no request comes."""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

IDLE_S = 20.0
"""A connection on which nothing is asked for so long is closed: each takes one of the process's
file descriptors."""


class BrowserConnection(H11Protocol):
    """Reads requests with h11: httptools bounds neither a head nor requests sent ahead of their
    answers."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._end_if_idle(since=self)

    def _end_if_idle(self, since: object) -> None:
        """`since`: the newest request when this was looked at last; an answer that is under way may
        take its time."""
        answered = self.cycle is None or self.cycle.response_complete
        if answered and self.cycle is since:
            self.transport.close()
        elif not self.transport.is_closing():
            self.loop.call_later(IDLE_S, self._end_if_idle, self.cycle)
