"""Describes what engines do each in its own way: eras of releases, scheduling, tiers, handovers."""

from typing import Literal, NamedTuple

import msgspec

from loadstone.catalogue.deployment.pools import Role
from loadstone.engines.sharding.limits import Version

Order = Literal["mixed", "prefill-first", "static"]
Route = Literal["least-busy", "round-robin", "prefix", "hashed"]
Load = Literal["async", "overlap", "blocking"]
Write = Literal["through", "evicted"]


class Era(NamedTuple):
    """Releases from version `since` on whose step times share coefficients. The coefficients of
    `old` ones are freer than those of later ones, for few measurements tell them
    (docs/perfmodel.md)."""

    since: Version
    name: str
    old: bool = False


class Offload(NamedTuple):
    """Holds how an engine keeps its KV cache in the tiers below, as Tiers of scheduler/policy.py
    has it; `disk`: whether it has one below the host."""

    load: Load
    write: Write = "through"
    chunk_tokens: int = 1
    disk: bool = False


class Scheduling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds the part of an EnginePolicy that an engine decides, which says what it means;
    `max_batched_tokens` 0: as sizing has it."""

    order: Order = "mixed"
    chunked: bool = True
    keep_free: float = 0.0
    route: Route = "least-busy"
    prefix_cache: bool = True
    max_batched_tokens: int = 0
    poll_steps: int = 0
    hold_steps: int = 0
    gather_steps: int = 0
    gather_tokens: int = 0
    priorities: bool = False
    priority_sign: int = 0
    unset_priority: int = 0
    preempt_above: int | None = None
    max_waiting: int | None = None
    max_under_way: int | None = None
    max_queued_tokens: int | None = None


class Handover(NamedTuple):
    """Says how a worker that prefills hands a request's KV cache to one that decodes.

    reserves_first  the decode side keeps room before the prompt is computed, and the prompt waits
                    for it; else room is looked for when the prompt is computed, whose blocks the
                    prefill side holds until they are read
    spare_tokens    of the decode side's cache, kept free for each request there beside its prompt;
                    None: its answer
    takes_slot      a request on its way there has one of the decode side's slots; `twice_up_to`: of
                    up to so many slots there are twice as many more
    first_by        which side makes the first token; the decode side shows it either way
    by_chunk        a chunk of a prompt leaves when it is computed, so that only the last one is
                    waited for
    latency_s       from a computed prompt to a cache that can be used, beside the bytes
    since           the first release that can
    buffers         both sides keep a buffer beside the cache for the longest prompt on its way
    by_room         the prefill worker's rank of attention-DP follows from a random number that the
                    router gives a request, unless load_balance_method says otherwise, which is
                    heard since `balances_since`
    """

    reserves_first: bool
    spare_tokens: int | None
    takes_slot: bool
    first_by: Role
    by_chunk: bool
    latency_s: float
    twice_up_to: int = 0
    since: Version = ()
    buffers: bool = False
    by_room: bool = False
    balances_since: Version = ()

    def slots(self, max_seqs: int) -> int:
        """Return how many requests the decode side has or awaits at once, where it runs
        `max_seqs`."""
        return max_seqs * 3 if max_seqs <= self.twice_up_to else max_seqs


class PictureHandover(NamedTuple):
    """Says how a worker that encodes pictures hands them to one that computes prompts.

    since        the first release that can
    types        what the types of text models begin with, whose pictures it can; none: all
    keeps_tower  the worker that computes prompts loads the tower all the same
    together     requests that a step encodes at most
    again_until  the first release whose router does not send pictures on, so that the worker that
                 computes prompts prepares none
    """

    since: Version
    types: tuple[str, ...] = ()
    keeps_tower: bool = False
    together: int = 1 << 30
    again_until: Version = ()
