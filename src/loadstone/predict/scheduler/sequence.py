"""A request as the scheduler sees it."""

from __future__ import annotations

from collections.abc import Iterable

from loadstone.predict.scheduler.blocks import Segment
from loadstone.predict.step_time.pictures import Picture


class Sequence:
    """A request, from its arrival at the scheduler to its last token.

    row            the caller's name for it
    prompt_tokens  as sent, whatever a prefix cache may have of it
    output_tokens  that it will have written when it ends
    session        the row of its session's first request, or its own
    segments       of the blocks, from the first on, that other requests may ask for as well:
                   `shared_blocks` of them

    target         tokens to compute before it decodes: the prompt; after a preemption also what it
                   had written
    computed       of those, what is done, the step under way included
    emitted        tokens written before the present run of it began; -1: even the first is a decode
                   step's, of one whose cache came from elsewhere
    base           tokens in the KV cache less the scheduler's tick, while it decodes
    growth         tokens written per step while it decodes: 1, more with speculation
    end_tick       the decode step that writes its last token
    cached_tokens  of the prompt, taken from the prefix cache when it was first let in
    most_blocks    that it can come to hold
    held           how many of these it uses
    preempted      how many times
    fetched        it holds the blocks of what is computed, though it does not run: they are or were
                   loaded into them
    priority       the larger is served first, where the policy has priorities
    adapter        its LoRA adapter's number; 0: it has none
    pictures       in its prompt that a tower encodes
    states         of pictures, which stand before the prompt's tokens in the cache
    order          by which it is served then: the smallest first
    found          what each tier has of it, where the step loads it (LowerTiers.find)
    """

    # Defaults of the class: a million of these are made, and most fields are set only once it runs.
    emitted = computed = end_tick = cached_tokens = most_blocks = preempted = held = (
        shared_blocks
    ) = states = session = priority = adapter = 0
    pictures: tuple[Picture, ...] = ()
    order: tuple[int, int] = (0, 0)
    base: float = 0
    growth: float = 1
    fetched = False
    found: list[int] | None = None
    segments: Iterable[Segment] = ()
    gains: list[int] | None = None

    def __init__(self, row: int, prompt_tokens: int, output_tokens: int) -> None:
        self.row = row
        self.prompt_tokens = self.target = prompt_tokens
        self.output_tokens = output_tokens

    def share(self, segments: Iterable[Segment], blocks: int) -> Sequence:
        """Say which blocks it shares, and how many these are."""
        self.segments, self.shared_blocks = segments, blocks
        return self
