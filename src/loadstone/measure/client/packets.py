"""Keeps when each packet came to this worker's connections: a late read then changes no arrival.

A socket's stamp is that of the newest packet of a read, as packets that waited were merged. A ring
that the kernel fills (AF_PACKET, packet_mmap) still has all of them, with their sequence numbers,
and reads are cut where packets ended. Its version 2 has each packet ready at once, the third only
blocks of them. It needs Linux and CAP_NET_RAW. Which event a record of TLS brought it cannot tell.
"""

import contextlib
import ctypes
import mmap
import socket
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from loadstone.core.errors import InputError

_FRAMES = 1 << 16
_FRAME_BYTES = 256
_BLOCK_BYTES = 1 << 16
_WINDOW = 4096
"""Frames that are read at a time, and that are searched at a time, the newest first."""
_SNAP_BYTES = 96
_ALL_PROTOCOLS = 3
_SOL_PACKET = 263
_RX_RING, _STATISTICS, _VERSION, _IGNORE_OUTGOING = 5, 6, 10, 23
_TPACKET_V2 = 1
_SO_ATTACH_FILTER = 26
"""linux/if_packet.h, asm-generic/socket.h: names that Python's socket module lacks."""
_FOR_USER = 1
_IP = 80
"""Where a frame's IP header is: behind the kernel's header (32 bytes), an address, and 16 bytes."""
_SYN = 2
_STAMP = struct.Struct("@qq")
_STEP = struct.Struct("@HBBI")
_LAYOUTS = {
    socket.AF_INET: (_IP + 2, 20, _IP + 12, _IP + 20),
    socket.AF_INET6: (_IP + 4, 0, _IP + 20, _IP + 40),
}
"""Where the length is, the bytes of it that are IP's, and where the end of the source's address and
the TCP header are; IPv4 has no options, IPv6 no further headers."""


class Flow:
    """Holds where a connection's bytes are: the sequence number of the first, and how many were
    read."""

    __slots__ = ("base", "key", "taken")

    def __init__(self, key: int) -> None:
        self.key = key
        self.base: int | None = None
        self.taken = 0


class PacketRing:
    """Use: `follow` a connection as it opens, `cut` what was read of it, `forget` it; `drain` now
    and then."""

    def __init__(self, family: int, ports: Iterable[int]) -> None:
        """Open a ring of packets from these ports. Raises InputError where the host does not allow
        it."""
        length_at, self._header, source_at, tcp_at = _LAYOUTS[socket.AddressFamily(family)]
        self._missed = 0
        self._flows: dict[int, Flow] = {}
        self._head = 0
        self._sock = _open_ring(_make_filter(family, ports))
        self._map = mmap.mmap(self._sock.fileno(), _FRAMES * _FRAME_BYTES)
        self._states = memoryview(self._map).cast("I")[:: _FRAME_BYTES // 4]
        offsets = (0, 16, 20, length_at, source_at, tcp_at, tcp_at + 4, tcp_at + 12, tcp_at + 13)
        names = ("state", "s", "ns", "length", "source", "ports", "sequence", "words", "flags")
        formats = ("u4", "u4", "u4", ">u2", ">u4", ">u4", ">u4", "u1", "u1")
        layout: Any = {"names": names, "formats": formats, "offsets": offsets}
        self._frames: Any = np.frombuffer(self._map, np.dtype(layout | {"itemsize": _FRAME_BYTES}))
        # The last packets, a row a frame.
        self._keys = np.zeros(_FRAMES, np.uint64)
        self._sequences = np.zeros(_FRAMES, np.uint32)
        self._lengths = np.zeros(_FRAMES, np.int32)
        self._stamps_ns = np.zeros(_FRAMES, np.int64)

    def close(self) -> None:
        """Keep no more packets."""
        self._sock.close()

    def follow(self, sock: socket.socket, address: str, port: int) -> Flow:
        """Follow a connection that begins to connect."""
        remote = socket.inet_pton(sock.family, address.partition("%")[0])[-4:]
        key = int.from_bytes(remote, "big") << 32 | port << 16 | sock.getsockname()[1]
        flow = self._flows[key] = Flow(key)
        return flow

    def forget(self, flow: Flow) -> None:
        if self._flows.get(flow.key) is flow:
            del self._flows[flow.key]

    def take_counts(self) -> tuple[int, int]:
        """Count, since the last call, reads of several events of which a packet was not seen, and
        packets for which there was no room."""
        missed, self._missed = self._missed, 0
        _, lost = struct.unpack("2I", self._sock.getsockopt(_SOL_PACKET, _STATISTICS, 8))
        return missed, lost

    def drain(self, least: int = 1) -> None:
        """Take the packets out of the ring, if there are `least`."""
        while self._states[(self._head + least - 1) % _FRAMES] & _FOR_USER:
            part = self._frames[self._head : min(self._head + _WINDOW, _FRAMES)]
            ready = part["state"] & _FOR_USER
            part = part if ready.all() else part[: ready.argmin()]
            if not len(part):
                return
            rows = slice(self._head, self._head + len(part))
            keys = self._keys[rows] = part["source"].astype(np.uint64) << 32 | part["ports"]
            self._sequences[rows] = part["sequence"]
            self._lengths[rows] = (
                part["length"].astype(np.int32) - self._header - (part["words"] >> 4) * 4
            )
            self._stamps_ns[rows] = part["s"].astype(np.int64) * 1_000_000_000 + part["ns"]
            for row in np.flatnonzero(part["flags"] & _SYN).tolist():
                flow = self._flows.get(int(keys[row]))
                if flow is not None:
                    flow.base = int(part["sequence"][row]) + 1
            part["state"] = 0
            self._head = rows.stop % _FRAMES

    def cut(
        self, flow: Flow, reads: list[bytes], stamps: list[bytes], reads_ns: list[int]
    ) -> tuple[list[bytes], list[bytes], list[int]]:
        """Cut reads of several events where packets ended: each piece has its packet's stamp.

        Lists as `HttpReader.read` takes them. A read whose packets are not known stays as it is.
        """
        if not any(map(_has_several, reads)):
            flow.taken += sum(map(len, reads))
            return reads, stamps, reads_ns
        self.drain()
        pieces: list[bytes] = []
        piece_stamps: list[bytes] = []
        pieces_ns: list[int] = []
        for read, stamp, read_ns in zip(reads, stamps, reads_ns, strict=True):
            ends = [(len(read), stamp)]
            if _has_several(read):
                found = self._find_packets(flow, len(read))
                self._missed += not found
                ends = found or ends
            begin = 0
            for end, piece_stamp in ends:
                pieces.append(read[begin:end])
                piece_stamps.append(piece_stamp)
                pieces_ns.append(read_ns)
                begin = end
            flow.taken += len(read)
        return pieces, piece_stamps, pieces_ns

    def _windows(self) -> Iterator[tuple[int, int]]:
        """Yield ranges of rows, the newest first."""
        head = self._head
        block = head - head % _WINDOW
        yield block, head
        for back in range(_WINDOW, _FRAMES, _WINDOW):
            begin = (block - back) % _FRAMES
            yield begin, begin + _WINDOW
        yield head, block + _WINDOW

    def _find_packets(self, flow: Flow, size: int) -> list[tuple[int, bytes]]:
        """Find the packets of the next `size` bytes: where each ends in them, and its stamp. Empty
        where one is missing."""
        packets: list[tuple[int, int, int]] = []
        if flow.base is None:
            return []
        first = np.uint32((flow.base + flow.taken) & 0xFFFFFFFF)
        for begin, end in self._windows():
            rows = begin + np.flatnonzero(self._keys[begin:end] == np.uint64(flow.key))
            starts = (self._sequences[rows] - first).astype(np.int32)
            ends = starts + self._lengths[rows]
            inside = (ends > 0) & (starts < size) & (self._lengths[rows] > 0)
            columns = starts[inside], ends[inside], self._stamps_ns[rows[inside]]
            packets = [*zip(*(column.tolist() for column in columns), strict=True), *packets]
            arrived = _follow_order(packets, size)
            if arrived:
                return [(end, _STAMP.pack(*divmod(ns, 1_000_000_000))) for end, ns in arrived]
        return []


def _has_several(read: bytes) -> bool:
    """Return True where something follows the end of an event in a read."""
    return read.find(b"\n\n", 0, -4) >= 0 or read.count(b"data:") > 1


def _follow_order(packets: Sequence[tuple[int, int, int]], size: int) -> list[tuple[int, int]]:
    """Follow packets (first byte, end, ns) as TCP does: up to where there was all, and since when.

    A packet that came before an earlier one waits for it; of bytes that came twice the first count.
    Empty where something is missing of `size` bytes.
    """
    arrived: list[tuple[int, int]] = []
    early: list[tuple[int, int]] = []
    whole = 0
    for start, end, ns in packets:
        if end <= whole:
            continue
        if start > whole:
            early.append((start, end))
            continue
        whole = end
        for early_start, early_end in sorted(early):
            if early_start <= whole:
                whole = max(whole, early_end)
        arrived.append((min(whole, size), ns))
        if whole >= size:
            return arrived
    return []


def check_packets() -> None:
    """Raise InputError where this host does not allow a ring of packets."""
    _open_ring(_make_filter(socket.AF_INET, ())).close()


def _open_ring(program: bytes) -> socket.socket:
    """Open a socket whose packets, those that a filter passes, go to a ring. Raises InputError."""
    code = ctypes.create_string_buffer(program, len(program))
    attached = struct.pack("@HP", len(program) // _STEP.size, ctypes.addressof(code))
    blocks = _FRAMES * _FRAME_BYTES // _BLOCK_BYTES
    ring = struct.pack("4I", _BLOCK_BYTES, blocks, _FRAME_BYTES, _FRAMES)
    with contextlib.ExitStack() as stack:
        try:
            protocols = socket.htons(_ALL_PROTOCOLS)
            sock = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, protocols)
            stack.callback(sock.close)
            sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, attached)
            sock.setsockopt(_SOL_PACKET, _IGNORE_OUTGOING, 1)
            sock.setsockopt(_SOL_PACKET, _VERSION, _TPACKET_V2)
            sock.setsockopt(_SOL_PACKET, _RX_RING, ring)
        except (OSError, AttributeError) as error:
            raise InputError(
                f"--clock packets: this host does not allow it ({error}); it needs Linux and"
                " CAP_NET_RAW: run loadstone with sudo, or leave it out"
            ) from error
        stack.pop_all()
    return sock


def _make_filter(family: int, ports: Iterable[int]) -> bytes:
    """Write classic BPF that passes TCP packets from these ports, as the kernel takes it."""
    byte, half, equal, any_bit, end = 0x30, 0x28, 0x15, 0x45, 0x06
    refuse = (end, 0, 0, 0)
    if family == socket.AF_INET:
        program = [
            *((byte, 0, 0, 0), (equal, 1, 0, 0x45), refuse),
            *((byte, 0, 0, 9), (equal, 1, 0, socket.IPPROTO_TCP), refuse),
            *((half, 0, 0, 6), (any_bit, 0, 1, 0x3FFF), refuse),  # a fragment
            (half, 0, 0, 20),
        ]
    else:
        program = [
            *((byte, 0, 0, 6), (equal, 1, 0, socket.IPPROTO_TCP), refuse),
            (half, 0, 0, 40),
        ]
    for port in sorted(set(ports)):
        program += [(equal, 0, 1, port), (end, 0, 0, _SNAP_BYTES)]
    return b"".join(_STEP.pack(*step) for step in (*program, refuse))
