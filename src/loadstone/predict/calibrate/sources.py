"""What published rows do not say of what was sent, what was measured, and on which version of an engine."""

from __future__ import annotations

import re
from typing import NamedTuple

from loadstone.predict.calibrate.points import Point

PROMPTS_PER_USER = 10
"""InferenceX: `--num-prompts $(( CONC * 10 ))`; assumed where a closed loop does not say."""


class Traffic(NamedTuple):
    """Lengths are uniform in [low, high] of the nominal ones; a closed loop sends so many requests for each user."""

    low: float
    high: float
    requests_per_user: int


def traffic_of(point: Point) -> Traffic:
    """What was really sent.

    Rows of AIConfigurator's sample with an id `…_gap_analysis_…` or `…_cfgN` repeat runs of InferenceX (TTFT and TPOT
    to the last digit), range ratio 0.8 included. Its other rows come from a client that nobody describes: TTFT rises
    by 1/10 of a prefill per user, a burst of one in five requests, and no answer keeps step with another, so lengths
    vary; but for one set (SGLang 0.5.1, Qwen3-32B) where TTFT is half of all users' prefills together: lockstep,
    exact lengths.
    """
    if "silicon_sample" in point.source and point.range_ratio >= 1:
        if re.search(r"gap_analysis|_cfg\d", point.notes) and point.output_tokens in (1024, 8192):
            return Traffic(0.8, 1.0, PROMPTS_PER_USER)
        if point.engine == "sglang" and point.engine_version.startswith("0.5.1."):
            return Traffic(1.0, 1.0, 5)
        if point.engine == "tensorrt-llm" and point.fold == "llama-3.1-8b":
            return Traffic(0.9, 1.1, 10)
        return Traffic(0.9, 1.1, 5)
    return Traffic(min(1.0, max(0.0, point.range_ratio)), 1.0, PROMPTS_PER_USER)


def statistic_of(point: Point) -> str:
    """`mean` or `median`: what a point's TTFT and TPOT are.

    AIConfigurator's sample does not say, and its numbers are means: its TTFT rises by 1/20 of a prompt's prefill time
    for each user, whatever the length of the answers, which is the burst of the first tenth of the requests
    (½·C·prefill) seen by a mean over ten times C of them. The median of such a run does not see it.
    """
    if "stat not stated" in point.notes:
        return "mean"
    return point.stat or "median"


INFERENCEX = "InferenceX 2026"
RANDOM_TEXT = 0.5


def acceptance_of(point: Point) -> float | None:
    """Of a guessed token, where a source's text is known; None: as assumed everywhere.

    InferenceX's prompts of 2026 are random words in the model's chat template, and DeepSeek's answers to them are
    hard to guess: the values that meet the TPOT of each of 41 runs with drafts have quartiles of 0.41 and 0.54,
    whatever GPU, length and number of guesses, and their median without any one of the GPUs is 0.45 to 0.49.
    """
    return RANDOM_TEXT if point.source == INFERENCEX else None


_SUMMED = "1.3.0rc5"


def copies_of(point: Point) -> int:
    """How many instances share a closed loop's users.

    NVIDIA's rows on TensorRT-LLM 1.3.0rc5 have the users of 64 GPUs beside the parallelism of one copy: users over
    the batch in their notes, times TP, is 64 for each of them (13 of 416 at TP 2, 56 of 448 at TP 8). On 1.3.0rc1
    that quotient is TP itself, and one instance with all users is the nearer reading.
    """
    found = re.search(r"batch_size=(\d+)", point.notes)
    if found is None or not point.engine_version.startswith(_SUMMED) or not point.load_value:
        return 1
    return max(1, round(point.load_value / max(1, int(found[1]))))


_RELEASES = {
    # engine: (from that month on, the version that InferenceX's images had), newest first
    "vllm": (("2026-04", "0.19"), ("2026-03", "0.17"), ("2026-02", "0.15"), ("2026-01", "0.13"), ("2025-10", "0.11")),
    "sglang": (("2026-04", "0.5.10"), ("2026-03", "0.5.9"), ("2025-10", "0.5.5")),
    "tensorrt-llm": (("2025-10", "1.1.0"),),
}


def version_of(point: Point) -> str | None:
    """The engine's version; of a row that has only the month of its measurement, that of its neighbours then."""
    if not re.search(r"\d\.\d", point.engine_version):
        releases = _RELEASES.get(point.engine.lower().split()[0], ())
        found = re.search(r"measured=(20\d\d-\d\d)", point.notes)
        month = found[1] if found else _GAP_ANALYSIS if "gap_analysis" in point.notes else ""
        return next((version for since, version in releases if month >= since), point.engine_version or None)
    return point.engine_version or None


_GAP_ANALYSIS = "2026-03"
"""The newest rows of NVIDIA's gap analysis that have a month."""
