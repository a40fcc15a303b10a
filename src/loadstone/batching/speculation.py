"""The luck of speculative decoding, drawn so that it can be drawn again."""

from __future__ import annotations

import random

from loadstone.batching.policy import Speculative


def gains(speculative: Speculative, seed: int, row: int, written: int, left: int) -> list[int]:
    """How many of `left` tokens are written after each step, for a request that has written some already."""
    luck = random.Random(f"{seed}/{row}/{written}").random
    found: list[int] = []
    done = 0
    while done < left:
        done += 1
        for _ in range(speculative.draft_tokens):
            if luck() >= speculative.acceptance:
                break
            done += 1
        found.append(min(done, left))
    return found
