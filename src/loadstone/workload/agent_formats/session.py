"""Holds what the readers of agents' sessions make, and what they share."""

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from loadstone.workload.files import BadLine, bad_block_count

MAX_SECONDS = 1e12
Seconds = Annotated[float, Meta(ge=0, le=MAX_SECONDS)]
Tokens = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Id = Annotated[int, Meta(ge=0)]
GROWN_BLOCK = 16
"""Tokens of a block of a prompt of which the length alone is known."""
NO_BLOCKS = np.empty(0, np.uint64)


class RawCall(NamedTuple):
    """A call as it was recorded; see agents.Call. `parents` are places in its session."""

    parents: tuple[int, ...]
    sent: bool
    delay_s: float
    input_tokens: int
    output_tokens: int
    blocks: NDArray[np.uint64]
    messages: Sequence[str] = ()
    fields: str | None = None


class RawSession(NamedTuple):
    """Calls, each behind those that it follows. `is_local`: its blocks' numbers mean nothing in
    other sessions."""

    calls: list[RawCall]
    block_tokens: int
    is_local: bool = False


def grow(calls: Sequence[RawCall], shared_tokens: Sequence[int]) -> RawSession:
    """Make a session of calls of which lengths alone are known, in whole blocks: each prompt begins
    with so many tokens of the one before it."""
    ids = np.empty(0, np.uint64)
    fresh = 0
    grown = []
    for call, shared in zip(calls, shared_tokens, strict=True):
        count = -(-call.input_tokens // GROWN_BLOCK)
        kept = ids[: min(count, shared // GROWN_BLOCK)]
        fresh_blocks = np.arange(fresh, fresh + count - len(kept), dtype=np.uint64)
        ids, fresh = np.concatenate([kept, fresh_blocks]), fresh + len(fresh_blocks)
        grown.append(call._replace(blocks=ids))
    return RawSession(grown, GROWN_BLOCK, is_local=True)


def make_blocks(ids: Sequence[int], tokens: int, block_tokens: int) -> NDArray[np.uint64]:
    """Make an array of a prompt's blocks. Raises BadLine where they are more than it has, but for
    one too many."""
    blocks = -(-tokens // block_tokens) if block_tokens else 0
    if block_tokens and len(ids) > blocks + 1:
        raise bad_block_count(len(ids), tokens, block_tokens)
    try:
        return np.array(ids[:blocks], np.uint64)
    except OverflowError:
        raise BadLine("hash_ids do not fit", "a number of hash_ids is beyond 64 bits") from None
