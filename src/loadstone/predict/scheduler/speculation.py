"""The luck of speculative decoding, drawn so that it can be drawn again."""

from __future__ import annotations

import numpy as np

from loadstone.predict.scheduler.policy import Speculative


def gains(speculative: Speculative, seed: int, row: int, written: int, left: int) -> list[int]:
    """How many of `left` tokens are written after each step, for a request that has written some already."""
    luck = np.random.default_rng([seed, row, written]).random((left, speculative.draft_tokens))
    # A guess counts where all before it did; each step writes one token besides.
    gained = 1 + np.cumprod(luck < speculative.acceptance, axis=1).sum(axis=1)
    after = np.cumsum(gained)
    steps = int(np.searchsorted(after, left)) + 1
    found: list[int] = np.minimum(after[:steps], left).tolist()
    return found
