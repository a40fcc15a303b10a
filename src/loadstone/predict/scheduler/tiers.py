"""The tiers below the KV cache: which blocks host memory and disk have, and when a request has them
back.

As the engines do it today, from their own code:

vLLM        (OffloadingConnector; Scheduler, WAITING_FOR_REMOTE_KVS) blocks are copied to the host
            as they are computed, and touched whenever a request that has them is looked at; the
            host's least recently used go first. A waiting request is looked up in HBM first, then
            in the host from there on. What is found is loaded whatever it would cost to compute:
            the request takes the blocks of what it has, waits beside the queue while others pass,
            and is let in at a step after its load; where that was all of it, its last token is
            computed. Loads follow one another over the link. A request that would find blocks on
            their way for another waits for them
KVBM        the same
LMCache     the same copies, in chunks of 256 tokens; the step that lets the request in waits for
            the load
SGLang      (HiRadixCache) copies as they are computed (`write_through`), or when HBM wants their
            room (`write_back`). The load goes layer by layer beside the prompts' step, which takes
            the longer of the two
TensorRT-LLM  (KVCacheManager) blocks go to the host when HBM wants their room, and leave it when
              they are used
            again; a step waits for the copies of both ways

Two levels, each giving up its least recently used, of which one takes what leaves the other, hold
what one of the size of both would: so what is written late is kept in a host that is larger by HBM.
A copy to the host is over when the request ends: its blocks are in HBM until long after that.
"""

from collections.abc import Hashable

from loadstone.predict.scheduler.blocks import PrefixCache
from loadstone.predict.scheduler.policy import EnginePolicy, Tiers
from loadstone.predict.scheduler.sequence import Sequence

NEVER = float("inf")


class LowerTiers:
    """Whoever drives the scheduler sets `now_s` before each step, and adds to it what `lengthen`
    says.

    asynchronous   requests wait for their loads, not the steps
    loaded_tokens  so far
    levels         what is in the host, and on disk
    """

    def __init__(self, tiers: Tiers, policy: EnginePolicy) -> None:
        block = policy.block_tokens
        self.asynchronous = tiers.load == "async"
        self.now_s = 0.0
        self.loaded_tokens = 0
        self._overlaps = tiers.load == "overlap"
        self._late = tiers.write == "evicted"
        self._block = block
        self._chunk = max(1, tiers.chunk_tokens // block)
        self.levels = [PrefixCache() for tokens in (tiers.host_tokens, tiers.disk_tokens) if tokens]
        beside = policy.kv_blocks if self._late else 0
        self._blocks = [tiers.host_tokens // block + beside, tiers.disk_tokens // block]
        self._block_s = [tiers.host_token_s * block, tiers.disk_token_s * block]
        self._free_s = [0.0, 0.0]  # when each link has done what it was given
        self._loads: dict[Sequence, tuple[float, frozenset[Hashable]]] = {}
        self._step_s = 0.0  # of the loads of the step
        self._evicted = 0

    @property
    def wake_s(self) -> float:
        """When the next request has its blocks."""
        return min(
            (until_s for until_s, _ in self._loads.values() if until_s > self.now_s), default=NEVER
        )

    def keep(self, sequence: Sequence, shared: int, unshared: int, owner: Hashable | None) -> None:
        """Have the blocks of a request that leaves the KV cache, of which nobody but its `owner`
        asks for `unshared`."""
        for cache, blocks in zip(self.levels, self._blocks, strict=False):
            cache.take_own(sequence)
            cache.take(sequence.segments, 0, shared)
            cache.give_back(sequence.segments, shared, unshared, owner)
            cache.shrink(blocks)

    def find(self, sequence: Sequence, hits: int, limit: int) -> list[int]:
        """Count the blocks, from the first on, that the KV cache with `hits` of them and each lower
        tier have."""
        found = [hits]
        shared = min(limit, sequence.shared_blocks)
        for cache in self.levels:
            hits_below = cache.match(sequence.segments, shared)
            cache.take(sequence.segments, 0, hits_below)
            cache.give_back(sequence.segments, hits_below, 0)
            if sequence.preempted and hits_below == shared:
                hits_below = min(limit, hits_below + cache.own_blocks_left(sequence))
            found.append(max(found[-1], hits_below // self._chunk * self._chunk))
        return found

    # --- loads for which a request waits ----------------------------------------------------------

    def is_loading(self, sequence: Sequence) -> bool:
        """Tell whether its blocks are still on their way; if they have come, that is over."""
        load = self._loads.get(sequence)
        if load is not None and load[0] > self.now_s:
            return True
        self._loads.pop(sequence, None)
        return False

    def are_on_their_way(self, sequence: Sequence, found: int) -> bool:
        """Tell whether some of its first `found` blocks are being loaded for another request."""
        coming = [keys for until_s, keys in self._loads.values() if until_s > self.now_s]
        if not coming:
            return False
        wanted = self._keys(sequence, 0, found)
        return any(not wanted.isdisjoint(keys) for keys in coming)

    def begin_load(self, sequence: Sequence, found: list[int]) -> None:
        """Load what the tiers have beyond the KV cache: from disk to the host, then to the GPU."""
        at_s = self.now_s
        blocks = found[-1] - found[0]
        for level in range(len(found) - 1, 0, -1):
            count = blocks if level == 1 else found[level] - found[level - 1]
            if count:
                at_s = max(at_s, self._free_s[level - 1]) + count * self._block_s[level - 1]
                self._free_s[level - 1] = at_s
        self.loaded_tokens += blocks * self._block
        self._loads[sequence] = at_s, self._keys(sequence, found[0], found[-1])

    def forget(self, sequence: Sequence) -> None:
        """Its client has gone."""
        self._loads.pop(sequence, None)

    @staticmethod
    def _keys(sequence: Sequence, first: int, last: int) -> frozenset[Hashable]:
        keys = set()
        for key, end in sequence.segments:
            if end > first:
                keys.add(key)
            if end >= last:
                break
        return frozenset(keys)

    # --- loads for which a step waits -------------------------------------------------------------

    def load_in_step(self, found: list[int]) -> None:
        """Load it within the step that is being scheduled."""
        for level in range(1, len(found)):
            count = (found[-1] if level == 1 else found[level]) - found[level - 1]
            self._step_s += count * self._block_s[level - 1]
        self.loaded_tokens += (found[-1] - found[0]) * self._block

    def lengthen(self, step_s: float, cache: PrefixCache | None) -> float:
        """Return the seconds of a step with its loads, and with what was written out of the KV
        cache for it."""
        load_s, self._step_s = self._step_s, 0.0
        if self._late and cache is not None:
            written, self._evicted = cache.evicted - self._evicted, cache.evicted
            if not self._overlaps:
                load_s = max(load_s, written * self._block_s[0])
        return max(step_s, load_s) if self._overlaps else step_s + load_s
