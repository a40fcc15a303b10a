"""Unpacks compressed bodies piece by piece, and never further than is allowed. No I/O."""

from __future__ import annotations

import zlib

_WINDOWS = {"gzip": 47, "x-gzip": 47, "deflate": 15}
"""Content codings that are read, and the window that zlib wants for each."""


class Unpacker:
    """A body's content coding. A gzip body may have several members one after another (RFC 1952,
    section 2.2).

    overflowed   the last piece unpacks to more than was allowed
    whole        no member is cut
    """

    def __init__(self, coding: str) -> None:
        self._window = _WINDOWS[coding]
        self._member = zlib.decompressobj(self._window)
        self.overflowed = False

    @staticmethod
    def choose(coding: str) -> Unpacker | None:
        """Make one for a Content-Encoding header; None where it is no coding that is read."""
        name = coding.strip().lower()
        return Unpacker(name) if name in _WINDOWS else None

    @property
    def whole(self) -> bool:
        return self._member.eof

    def feed(self, piece: bytes, most_bytes: int) -> bytes:
        """Unpack a piece of the body, to at most so many bytes. Raises zlib.error."""
        unpacked = bytearray()
        while piece:
            if self._member.eof:
                piece = piece.lstrip(b"\0")  # members may be padded
                if not piece:
                    break
                self._member = zlib.decompressobj(self._window)
            room = most_bytes - len(unpacked)
            if room > 0:
                unpacked += self._member.decompress(piece, room)
            self.overflowed = room <= 0 or bool(self._member.unconsumed_tail)
            if self.overflowed:
                break
            piece = self._member.unused_data
        return bytes(unpacked)
