"""What the connection alone must hold; whole answers are tested end to end."""

from __future__ import annotations

import asyncio
import gc
import socket
import time

from loadstone.client.clock import Clock
from loadstone.client.connection import Address, Connection
from loadstone.client.stream import Stream


class Owner:
    """Stands for the worker; remembers what it was told."""

    held_limit_bytes = 65536

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.clock = Clock(time.monotonic_ns())
        self.told: list[str] = []

    def ended(self, connection: Connection, stream: Stream) -> None:
        self.told.append("ended")

    def broke(self, connection: Connection, stream: Stream, reason: str, *, retry: bool) -> None:
        self.told.append(reason)

    def opened(self, connection: Connection) -> None:
        self.told.append("opened")

    def dropped(self, connection: Connection) -> None:
        self.told.append("dropped")


def test_closed_connections_are_freed_without_a_garbage_collector() -> None:
    owner = Owner()
    address = Address(socket.AF_INET, ("127.0.0.1", 9), None)
    gc.collect()
    gc.disable()
    try:
        for _ in range(20):
            Connection(owner, address, None).close()
        left = sum(type(thing) is Connection for thing in gc.get_objects())
    finally:
        gc.enable()
        owner.loop.close()
    assert left == 0


def test_closing_twice_is_harmless() -> None:
    owner = Owner()
    connection = Connection(owner, Address(socket.AF_INET, ("127.0.0.1", 9), None), None)
    connection.close()
    connection.close()
    owner.loop.close()
    assert connection.closed
