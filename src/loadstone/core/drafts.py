"""Computes what speculative decoding comes to from its counts.

S verify steps, D tokens drafted, A of these accepted: accepted length L = 1 + A/S, with the token
that every step gives, and rate A/D. They are of sums: a mean of ratios would be another thing.
"""

from loadstone.core.machine_figures import DraftFigures


def acceptance_of(length: float, drafted: float) -> float | None:
    """Find the probability α at which a step of `drafted` guesses gives `length` tokens: Σ αⁱ, i
    from 0; None where none does.
    """
    k = round(drafted)
    if k < 1 or not 1 <= length <= k + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if sum(middle**i for i in range(k + 1)) < length else (low, middle)
        )
    return high


def pool_counts(
    source: str,
    steps: float | None,
    drafted: float | None,
    accepted: float,
    by_position: list[float],
) -> DraftFigures:
    """Compute the figures of these sums."""
    length = 1 + accepted / steps if steps else None
    return DraftFigures(
        source=source,
        steps=steps,
        drafted=drafted,
        accepted=accepted,
        accepted_length=length,
        rate=accepted / drafted if drafted else None,
        by_position=by_position,
        acceptance=acceptance_of(length, drafted / steps) if length and drafted and steps else None,
    )
