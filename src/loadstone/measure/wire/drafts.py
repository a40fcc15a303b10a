"""Reads what an answer says of its speculative decoding, where each engine says it. No I/O.

vLLM        at the root `metrics.speculative_decoding`; before, `speculative_decoding_stats` of a
            choice
SGLang      `meta_info` of /generate; within `sglext` at the root of OpenAI's dialect
llama.cpp   `timings`, which counts no steps
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from loadstone.measure.wire.tolerant import count

_STEPS = ("num_spec_steps", "spec_verify_ct")
_TOKENS = ("num_draft_tokens", "spec_num_proposed_drafts", "draft_n")
_ACCEPTED = ("num_accepted_draft_tokens", "spec_num_correct_drafts", "draft_n_accepted")
_HISTOGRAM = ("acceptance_histogram", "spec_correct_drafts_histogram")
_MAX_POSITIONS = 64
"""Engines guess up to a dozen tokens in a step."""


class DraftCounts(NamedTuple):
    """Counts of one answer: steps that verified drafts, tokens drafted, of these accepted, and how
    many steps accepted exactly 0, 1, … tokens; None: not said."""

    steps: int | None = None
    tokens: int | None = None
    accepted: int | None = None
    histogram: list[int] | None = None


def read_drafts(
    document: Mapping[str, Any], output_tokens: int | None = None
) -> DraftCounts | None:
    """Read the counts of a decoded answer, or of one of its events; None where it says nothing of
    drafts, or what cannot be. `output_tokens`: of the answer, as SGLang had nothing else beside its
    steps at first.
    """
    for place in _places(document):
        steps, tokens, accepted = (_read(place, names) for names in (_STEPS, _TOKENS, _ACCEPTED))
        histogram = next(filter(None, (_histogram(place.get(name)) for name in _HISTOGRAM)), None)
        if histogram is not None:
            steps = sum(histogram) if steps is None else steps
            counted = sum(number * times for number, times in enumerate(histogram))
            accepted = counted if accepted is None else accepted
        if accepted is None and steps and output_tokens is not None:
            accepted = max(0, output_tokens - steps)
        if (
            accepted is not None
            and (steps or tokens)
            and not (tokens is not None and accepted > tokens)
        ):
            return DraftCounts(steps, tokens, accepted, histogram)
    return None


def _places(document: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the objects that may have the counts, the preferred ones first."""
    metrics, choices, extra = (document.get(name) for name in ("metrics", "choices", "sglext"))
    candidates: list[Any] = [
        metrics.get("speculative_decoding") if isinstance(metrics, dict) else None
    ]
    if isinstance(choices, list):
        candidates += [
            place.get("speculative_decoding_stats")
            for place in choices[:1]
            if isinstance(place, dict)
        ]
    for parent in (extra, document.get("meta_info")):
        candidates += [parent, *parent.values()] if isinstance(parent, dict) else []
    yield from (
        place for place in (*candidates, document.get("timings")) if isinstance(place, dict)
    )


def _read(place: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    counts = (count(place.get(name)) for name in names)
    return next((number for number in counts if number is not None), None)


def _histogram(value: object) -> list[int] | None:
    """Read a list of counts, or an object of them by their number; None of anything else."""
    if isinstance(value, dict):
        numbers = [number for number in range(_MAX_POSITIONS) if str(number) in value]
        if len(numbers) != len(value):
            return None
        value = [value.get(str(number), 0) for number in range(max(numbers, default=-1) + 1)]
    if not isinstance(value, list) or len(value) > _MAX_POSITIONS:
        return None
    counts = [number for number in map(count, value) if number is not None]
    return counts if len(counts) == len(value) and any(counts) else None
