"""What packets brought and when, on real connections of 127.0.0.1 and ::1, where the host allows a
ring."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from conftest import Loadstone, needs_packets
from loadstone.measure.client.clock import ANCILLARY_BYTES, ask_for_stamps
from loadstone.measure.client.packets import Flow, PacketRing, _follow_order

EVENTS = [b"data: %d\n\n" % number for number in range(4)]
HOSTS = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}


class Pair(NamedTuple):
    """A connection and the ring that follows it."""

    ring: PacketRing
    flow: Flow
    client: socket.socket
    server: socket.socket

    def read(self) -> tuple[list[bytes], list[bytes], list[int]]:
        data, ancillary, _, _ = self.client.recvmsg(65536, ANCILLARY_BYTES)
        return [data], [ancillary[0][2] if ancillary else b""], [time.monotonic_ns()]


@pytest.fixture(params=HOSTS)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    family = socket.AddressFamily(request.param)
    host = HOSTS[family]
    if family == socket.AF_INET6 and not socket.has_ipv6:
        pytest.skip("this host has no IPv6")
    with socket.create_server((host, 0), family=family) as listener, socket.socket(family) as sock:
        port = listener.getsockname()[1]
        ring = PacketRing(family, [port])
        ask_for_stamps(sock)
        sock.connect((host, port))
        flow = ring.follow(sock, host, port)
        server, _ = listener.accept()
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with server:
            yield Pair(ring, flow, sock, server)
        ring.close()


def send(pair: Pair) -> list[int]:
    """Send the events, a packet each; the times at which each was about to be sent, and the end."""
    times = []
    for event in EVENTS:
        times.append(time.time_ns())
        pair.server.send(event)
        time.sleep(0.002)
    return [*times, time.time_ns()]


def realtime_ns(stamp: bytes) -> int:
    seconds, ns = struct.unpack("@qq", stamp)
    return int(seconds) * 1_000_000_000 + int(ns)


@needs_packets
def test_a_late_read_is_cut_where_packets_ended_each_with_its_own_stamp(pair: Pair) -> None:
    times = send(pair)
    pieces, stamps, reads_ns = pair.ring.cut(pair.flow, *pair.read())
    assert pieces == EVENTS
    assert len(set(reads_ns)) == 1
    for sent_ns, stamp, next_ns in zip(times, stamps, times[1:], strict=False):
        assert sent_ns <= realtime_ns(stamp) <= next_ns
    assert pair.ring.take_counts() == (0, 0)


@needs_packets
def test_sequence_numbers_may_begin_anew(pair: Pair) -> None:
    send(pair)
    pair.ring.drain()
    assert pair.flow.base is not None
    # As if the server had chosen numbers that end between its second event and its third.
    shift = (1 << 32) - len(b"".join(EVENTS[:2])) - pair.flow.base
    pair.ring._sequences[:] = pair.ring._sequences.astype("i8") + shift & 0xFFFFFFFF
    pair.flow.base += shift
    pieces, _, _ = pair.ring.cut(pair.flow, *pair.read())
    assert pieces == EVENTS


@needs_packets
def test_a_read_of_one_event_keeps_the_stamp_of_its_socket(pair: Pair) -> None:
    pair.server.send(EVENTS[0])
    early = pair.read()
    assert pair.ring.cut(pair.flow, *early) == early
    send(pair)
    pieces, _, _ = pair.ring.cut(pair.flow, *pair.read())
    assert pieces == EVENTS


@needs_packets
def test_a_read_whose_packets_were_not_seen_stays_whole_and_is_counted(pair: Pair) -> None:
    pair.ring.drain()
    pair.flow.base = None  # its beginning was lost
    send(pair)
    late = pair.read()
    assert pair.ring.cut(pair.flow, *late) == late
    assert pair.ring.take_counts() == (1, 0)
    assert pair.ring.take_counts() == (0, 0)


@needs_packets
def test_a_ring_that_nobody_empties_tells_what_it_lost(pair: Pair) -> None:
    for _ in range(1 << 16):
        pair.server.send(b"data: x\n\n")
        pair.client.recv(65536)
    send(pair)
    late = pair.read()
    pair.flow.taken = (1 << 16) * len(b"data: x\n\n")
    assert pair.ring.cut(pair.flow, *late) == late
    missed, lost = pair.ring.take_counts()
    assert (missed, lost >= len(EVENTS)) == (1, True)
    send(pair)
    pieces, _, _ = pair.ring.cut(pair.flow, *pair.read())
    assert pieces == EVENTS  # there is room again


@pytest.mark.parametrize(
    ("packets", "arrived"),
    [
        ([(0, 10, 1), (10, 20, 2)], [(10, 1), (20, 2)]),
        ([(-5, 10, 1), (10, 25, 2)], [(10, 1), (20, 2)]),  # of the reads before it and after it
        ([(10, 20, 1), (0, 10, 2)], [(20, 2)]),  # out of order
        ([(5, 10, 1), (15, 20, 2), (0, 5, 3), (10, 15, 4)], [(10, 3), (20, 4)]),
        ([(0, 10, 1), (0, 10, 2), (10, 20, 3)], [(10, 1), (20, 3)]),  # sent twice
        ([(0, 10, 1), (5, 20, 2), (10, 20, 3)], [(10, 1), (20, 2)]),  # sent anew with more
        ([(0, 10, 1)], []),
        ([(0, 5, 1), (10, 20, 2)], []),
        ([], []),
    ],
)
def test_packets_are_followed_as_tcp_does(
    packets: list[tuple[int, int, int]], arrived: list[tuple[int, int]]
) -> None:
    assert _follow_order(packets, 20) == arrived


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("https://127.0.0.1:1",), "--clock packets: with https"),
        (("http://127.0.0.1:1",), "--clock packets: this host does not allow it"),
    ],
)
def test_where_packets_cannot_be_the_clock_one_line_says_so(
    words: tuple[str, ...], said: str, loadstone: Loadstone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(socket, "AF_PACKET", raising=False)  # as where there is no Linux
    outcome = loadstone("bench", *words, "--clock", "packets")
    assert outcome.code == 2
    assert said in outcome.err
    assert outcome.err.count("\n") == 1
