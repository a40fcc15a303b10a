"""Compressed bodies: several members, cut ones, and bombs."""

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadstone.measure.wire.coding import Unpacker


def unpack(coding: str, pieces: list[bytes], most: int = 1 << 20) -> tuple[bytes, Unpacker]:
    unpacker = Unpacker.choose(coding)
    assert unpacker is not None
    return b"".join(unpacker.feed(piece, most) for piece in pieces), unpacker


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=5), st.integers(1, 40))
def test_members_come_one_after_another_wherever_they_are_cut(
    texts: list[bytes], size: int
) -> None:
    packed = b"".join(map(gzip.compress, texts))
    pieces = [packed[at : at + size] for at in range(0, len(packed), size)]
    unpacked, unpacker = unpack("gzip", pieces)
    assert (unpacked, unpacker.whole, unpacker.overflowed) == (b"".join(texts), True, False)


def test_padding_after_a_member_says_nothing() -> None:
    unpacked, unpacker = unpack(
        "gzip", [gzip.compress(b"one") + bytes(64), bytes(64) + gzip.compress(b"two")]
    )
    assert (unpacked, unpacker.whole) == (b"onetwo", True)


def test_a_cut_member_is_not_whole() -> None:
    assert not unpack("gzip", [gzip.compress(b"one") + gzip.compress(b"two" * 50)[:-4]])[1].whole


@pytest.mark.parametrize("members", [1, 50])
def test_a_bomb_is_unpacked_no_further_than_allowed(members: int) -> None:
    packed = gzip.compress(bytes(1 << 20), 9) * members
    unpacked, unpacker = unpack("gzip", [packed], 1000)
    assert (len(unpacked), unpacker.overflowed) == (1000, True)


def test_what_is_packed_otherwise() -> None:
    assert unpack("Deflate ", [zlib.compress(b"one")])[0] == b"one"
    assert Unpacker.choose("br") is None
    with pytest.raises(zlib.error):
        unpack("gzip", [gzip.compress(b"one") + b"no member"])
