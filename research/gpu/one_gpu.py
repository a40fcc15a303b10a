"""Take the machine code of other GPUs out of CUDA libraries, in place: python one_gpu.py 90 FOLDER.

A library holds each of its kernels once for each kind of GPU; a driver takes the one that fits, or
translates PTX of an earlier kind. What it would not take is left out of the list, and its room
filled with zeros: the library stays as long as it was, and packs small.

A fat binary, as CUDA 13 writes it and cuobjdump reads it: a header of 16 bytes with magic
0xBA55ED50, version 1, its own length and that of what follows; then entries, each with kind (1 PTX,
2 machine code), length of its header and of its payload, and at byte 28 the compute capability
times ten. It is found by its address, so that it must not move.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from typing import NamedTuple

MAGIC = struct.pack("<IHH", 0xBA55ED50, 1, 16)
_HEADER_BYTES = 16
_ENTRY_BYTES = 64
PTX, CODE = 1, 2


class Entry(NamedTuple):
    kind: int
    capability: int
    start: int
    end: int


def entries_at(code: bytearray, at: int) -> list[Entry]:
    """The entries of the fat binary at byte `at`. Raises ValueError where they do not add up."""
    (length,) = struct.unpack_from("<Q", code, at + 8)
    found, at = [], at + _HEADER_BYTES
    end = at + length
    while at < end:
        if end > len(code) or at + _ENTRY_BYTES > end:
            raise ValueError(f"a fat binary's entries end beyond it, at byte {at}")
        kind, header, payload = struct.unpack_from("<H2xIQ", code, at)
        (capability,) = struct.unpack_from("<I", code, at + 28)
        if kind not in (PTX, CODE) or header < _ENTRY_BYTES or at + header + payload > end:
            raise ValueError(
                f"no entry of a fat binary at byte {at}: kind {kind}, header of {header} bytes"
            )
        found.append(Entry(kind, capability, at, at + header + payload))
        at += header + payload
    return found


def wanted(entries: list[Entry], capability: int) -> list[Entry]:
    """What a driver could take: machine code for it, else PTX for it or the newest of earlier ones;
    else the smallest entry, for a fat binary without any is a case of its own."""
    exact = [each for each in entries if (each.kind, each.capability) == (CODE, capability)]
    if exact:
        return exact
    earlier = [each for each in entries if each.kind == PTX and each.capability <= capability]
    if earlier:
        return [max(earlier, key=lambda each: each.capability)]
    return sorted(entries, key=lambda each: each.end - each.start)[:1]


def clear(code: bytearray, capability: int) -> tuple[int, int]:
    """Returns the bytes kept and cleared. Raises ValueError, and changes nothing, where one makes
    no sense."""
    found = []
    at = code.find(MAGIC)
    while at >= 0:
        entries = entries_at(code, at)
        found.append((at, entries))
        at = code.find(MAGIC, entries[-1].end if entries else at + _HEADER_BYTES)
    kept = cleared = 0
    for at, entries in found:
        if not entries:
            continue
        body = b"".join(bytes(code[each.start : each.end]) for each in wanted(entries, capability))
        room = entries[-1].end - at - _HEADER_BYTES
        struct.pack_into("<Q", code, at + 8, len(body))
        code[at + _HEADER_BYTES : entries[-1].end] = body + bytes(room - len(body))
        kept, cleared = kept + len(body), cleared + room - len(body)
    return kept, cleared


def main() -> int:
    capability, folder = int(sys.argv[1]), Path(sys.argv[2])
    for path in sorted(folder.rglob("*.so*")):
        code = bytearray(path.read_bytes())
        try:
            kept, cleared = clear(code, capability)
        except ValueError as error:
            print(f"{path.name}: left as it is: {error}", file=sys.stderr)
            continue
        if cleared:
            path.write_bytes(code)
            print(
                f"{path.name}: {kept / 1e6:.1f} MB of code kept, {cleared / 1e6:.1f} MB cleared",
                file=sys.stderr,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
