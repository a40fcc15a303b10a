"""Cuts the KV cache as engines do it: pages, groups of layers that share block numbers, and what
fits.

Pure arithmetic on the bytes that a rank has for it: how many blocks, how long a context, how many
requests.
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from loadstone.engines.sharding.rank import CacheLayer


class Group(msgspec.Struct, frozen=True):
    """Layers that take their blocks together.

    kind          full: a block per `block_tokens` tokens; window: only of those in the window and
                  on their way to the engine; state: `states` blocks, whatever the length; pools: as
                  full, while those of windows lie in a pool beside it that has room for
                  `window_share` tokens for each of its own
    block_tokens  tokens of one block
    """

    kind: Literal["full", "window", "state", "pools"]
    block_tokens: int
    window_tokens: int = 0
    states: int = 0
    window_share: float = 1.0


class Cache(msgspec.Struct, frozen=True):
    """Holds a rank's KV cache: `groups` draw blocks of `block_bytes` (over the layers of one group)
    from one pool.

    in_flight_tokens  scheduled but not settled; a window's blocks are freed only behind them
    held_blocks       blocks the engine never gives out (vLLM's null block)
    each_in_flight    whether its tokens are told as the log has them, with a whole batch in flight
                      for each request
    """

    groups: tuple[Group, ...]
    block_bytes: float
    in_flight_tokens: int = 0
    held_blocks: int = 0
    each_in_flight: bool = False

    @property
    def block_tokens(self) -> int:
        """Return the tokens of a block of full attention; of the smallest group where there is
        none."""
        full = [group.block_tokens for group in self.groups if group.kind in ("full", "pools")]
        return min(full or [group.block_tokens for group in self.groups])

    def request_blocks(self, context_tokens: int) -> int:
        """Return the blocks that one request of `context_tokens` takes at most.

        full ⌈n / block⌉ · window ⌈min(window − 1 + in flight, n) / block⌉ + 1 (it need not begin at
        a block's edge) · state: as many as it keeps. vLLM 0.32, KVCacheSpec.max_memory_usage_bytes.
        pools: ⌈n / block⌉, or where the windows' runs out first, what stands for min(window, n) of
        its tokens.
        """
        total = 0
        for group in self.groups:
            if group.kind == "full":
                total += -(-context_tokens // group.block_tokens)
            elif group.kind == "pools":
                kept = math.ceil(min(group.window_tokens, context_tokens) / group.window_share)
                total += -(-max(context_tokens, kept) // group.block_tokens)
            elif group.kind == "window":
                seen = min(group.window_tokens - 1 + self.in_flight_tokens, context_tokens)
                total += -(-seen // group.block_tokens) + 1
            else:
                total += group.states
        return total

    def settled_blocks(self, context_tokens: int) -> int:
        """Return the blocks that it takes once its prompt is computed: a window's group holds the
        window's blocks and one more."""
        total = self.request_blocks(context_tokens)
        for group in self.groups:
            if group.kind == "window":
                computing = min(group.window_tokens - 1 + self.in_flight_tokens, context_tokens)
                settled = min(group.window_tokens, context_tokens)
                total -= -(-computing // group.block_tokens) - -(-settled // group.block_tokens)
        return min(total, self.request_blocks(context_tokens))

    def blocks(self, kv_bytes: float) -> int:
        """Return ⌊kv_bytes / block_bytes⌋, the number that vLLM prints."""
        return max(0, math.floor(kv_bytes / self.block_bytes)) if self.block_bytes else 1

    def holds(self, blocks: int, context_tokens: int, requests: int = 1) -> bool:
        """Return whether so many requests of `context_tokens` are held at once. What is in flight
        is so for all of them together, so that one is at its most, and the others have settled.
        """
        needed = self.request_blocks(context_tokens) + (requests - 1) * self.settled_blocks(
            context_tokens
        )
        return needed <= blocks - self.held_blocks

    def requests(self, blocks: int, context_tokens: int) -> float:
        """Return how many are, with a fraction: 1 + (blocks − peak) / settled; below one, blocks /
        peak."""
        peak, settled = self.request_blocks(context_tokens), self.settled_blocks(context_tokens)
        if not peak or not settled:
            return math.inf
        return blocks / peak if blocks < peak else 1 + (blocks - peak) / settled

    def max_context(self, blocks: int, limit_tokens: int, requests: int = 1) -> int:
        """Return the longest context, up to `limit_tokens`, at which `requests` are held at once; 0
        where none is."""
        if not self.groups:
            return limit_tokens
        if not self.holds(blocks, 1, requests):
            return 0
        return largest(
            1, limit_tokens, lambda context_tokens: self.holds(blocks, context_tokens, requests)
        )

    def concurrency(self, blocks: int, context_tokens: int) -> float:
        """Return requests of `context_tokens` at once, with a fraction, as vLLM prints it: blocks /
        blocks of one."""
        needed = self.request_blocks(context_tokens)
        return blocks / needed if needed else math.inf

    def held_tokens(self, blocks: int, context_tokens: int) -> int:
        """Return tokens the pool holds when all requests have `context_tokens`, their windows
        having slid on."""
        if self.each_in_flight or not any(group.kind == "window" for group in self.groups):
            return self.tokens(blocks, context_tokens)
        return int(self.requests(blocks, context_tokens) * context_tokens)

    def tokens(self, blocks: int, context_tokens: int) -> int:
        """Return the tokens that it holds, as vLLM prints it ("KV cache size"): with a whole batch
        in flight for each of them."""
        if not any(group.kind != "full" for group in self.groups):
            return blocks * self.block_tokens
        return int(self.concurrency(blocks, context_tokens) * context_tokens)


def largest(low: int, high: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number that fits, from `low`, which does, to `high`: what fits less than
    another does too."""
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def grouped(
    layers: Sequence[CacheLayer],
    block_tokens: int,
    in_flight_tokens: int,
    states: int,
    held_blocks: int,
) -> Cache:
    """Return vLLM's cache of one rank (0.32, kv_cache_utils.get_kv_cache_groups).

    Layers of one kind: one group, a block is `block_tokens` tokens of all of them. A hybrid's
    layers are dealt into groups of equal size, and all groups have pages of one size, so that any
    block serves any group:
      - the page is the largest any layer has at `block_tokens`; a larger state makes attention's
        blocks longer until a page holds it, in steps of `block_tokens`
      - smaller pages get longer blocks where that comes out even, else are padded
      - group size = the fewest layers of a kind, or the most where that is less than half as many
        again
    `states`: blocks that a state keeps for a request (two where the engine keeps one to go back
    to).
    """
    attention = [layer for layer in layers if layer.token_bytes]
    state = [layer for layer in layers if layer.state_bytes]
    if not state and len({layer.window_tokens for layer in attention}) <= 1:
        if not attention:
            return Cache((), 0.0)
        window = attention[0].window_tokens
        kind: Literal["full", "window"] = "full" if window is None else "window"
        page = block_tokens * sum(layer.count * layer.token_bytes for layer in attention)
        return Cache((Group(kind, block_tokens, window or 0),), page, in_flight_tokens, held_blocks)
    widest = max((layer.token_bytes for layer in attention), default=0.0)
    largest_state = max((layer.state_bytes for layer in state), default=0.0)
    block = block_tokens
    if largest_state and widest:
        block = max(block, block_tokens * math.ceil(largest_state / (block_tokens * widest)))
    page = max(block * widest, largest_state)
    kinds: dict[Group, int] = {}
    for layer in attention:
        times = page / (block * layer.token_bytes)
        longer = block * int(times) if times == int(times) else block
        window = layer.window_tokens
        group = Group("full", longer) if window is None else Group("window", longer, window)
        kinds[group] = kinds.get(group, 0) + layer.count
    if state:
        kinds[Group("state", block, states=states)] = sum(layer.count for layer in state)
    fewest, largest_kind = min(kinds.values()), max(kinds.values())
    size = largest_kind if largest_kind < 1.5 * fewest else fewest
    groups = tuple(group for group, count in kinds.items() for _ in range(-(-count // size)))
    return Cache(groups, size * page, in_flight_tokens, held_blocks)


def pooled(layers: Sequence[CacheLayer], block_tokens: int, window_share: float = 1.0) -> Cache:
    """Return a cache with a pool for each kind, sized in proportion (SGLang, TensorRT-LLM): full
    attention's tokens count, and the windows' where they are most of a request.

    One block stands for `block_tokens` tokens of full attention and `window_share` as many of the
    windows' pool; SGLang's `swa_full_tokens_ratio` is 0.8. States are not in it: their pool is
    taken off before.
    """
    full = sum(layer.count * layer.token_bytes for layer in layers if layer.window_tokens is None)
    window = sum(
        layer.count * layer.token_bytes for layer in layers if layer.window_tokens is not None
    )
    if not full:
        window_share = 1.0
    per_token = full + window_share * window
    if not per_token:
        return Cache((), 0.0)
    widest = max((layer.window_tokens or 0 for layer in layers if layer.token_bytes), default=0)
    group = Group("full", block_tokens)
    if widest and window_share < 1:
        group = Group("pools", block_tokens, widest, window_share=window_share)
    return Cache((group,), block_tokens * per_token)
