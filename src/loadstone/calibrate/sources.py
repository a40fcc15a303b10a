"""What published runs were started with, where their source says so and their rows do not.

InferenceX (github.com/SemiAnalysisAI/InferenceX, benchmarks/*.sh; formerly InferenceMAX) publishes the script of each
run: engine arguments by model and GPU, `--num-prompts` ten times the concurrency. NVIDIA's gap analysis repeats those
runs. Only arguments that change what a scheduler does or what a token costs are kept here.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from loadstone.calibrate.points import Point

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


class Arguments(msgspec.Struct, frozen=True, kw_only=True):
    """Engine arguments; None: the engine's default.

    kv_dtype           of the KV cache
    max_batched_tokens of a step
    poll_steps         SGLang's scheduler-recv-interval: new requests are looked for every so many decode steps
    eager              no CUDA graphs
    hold_steps         TensorRT-LLM's timeout_iters, where ranks of attention-DP wait for one another's prompts
    gather_steps       its batch_wait_timeout_iters: prompts wait for company
    gather_share       its batch_wait_max_tokens_ratio: they do not, from this share of max_batched_tokens on
    """

    kv_dtype: str | None = None
    max_batched_tokens: int | None = None
    max_seqs: int | None = None
    memory_fraction: float | None = None
    poll_steps: int | None = None
    hold_steps: int | None = None
    gather_steps: int | None = None
    gather_share: float | None = None
    eager: bool = False


def arguments_of(point: Point, engine: str, gpu: str, tp: int) -> Arguments:
    """As the source's own scripts had it; all None for sources without."""
    if "silicon_sample" not in point.source:
        return Arguments()
    family, precision, concurrency = point.fold, point.precision, point.load_value
    blackwell = gpu in ("b200", "b300", "gb200", "gb300")
    if engine == "vllm":
        if family == "llama-70b":
            return Arguments(kv_dtype="fp8", max_batched_tokens=8192, memory_fraction=0.9)
        if family == "gpt-oss":
            return Arguments(kv_dtype="fp8" if blackwell else None, max_batched_tokens=8192, memory_fraction=0.9)
        if family in ("kimi", "minimax"):
            if blackwell and point.engine_version.startswith("0.19"):
                return Arguments(
                    kv_dtype="fp8", max_batched_tokens=2 * (point.input_tokens or 0), memory_fraction=0.9
                )
            return Arguments(memory_fraction=0.9 if precision != "fp8" else 0.95)
        return Arguments()
    if engine == "sglang":
        poll = (30 if (concurrency or 0) >= 16 else 10) if blackwell else None
        if family == "deepseek-v3":
            budget = 16384 if precision == "fp4" else 32768
            return Arguments(
                kv_dtype="fp8" if blackwell else None,
                max_batched_tokens=budget,
                memory_fraction=0.82,
                poll_steps=poll,
            )
        if family == "qwen3.5":
            kv = None if precision == "bf16" else "fp8"
            return Arguments(
                kv_dtype=kv, max_batched_tokens=32768 if blackwell else 16384, memory_fraction=0.82, poll_steps=poll
            )
        if family == "glm":
            kv = "fp8" if blackwell else None
            return Arguments(kv_dtype=kv, max_batched_tokens=32768 if blackwell else None, memory_fraction=0.85)
        return Arguments()
    if engine == "tensorrt-llm":
        return _tensorrt_llm(point, blackwell, tp)
    return Arguments()


def _tensorrt_llm(point: Point, blackwell: bool, tp: int) -> Arguments:
    """Prompts are never cut (no enable_chunked_prefill): max_num_tokens is how many of them a step takes."""
    lengths = (point.input_tokens, point.output_tokens)
    if point.fold == "llama-70b":
        # benchmarks/70b_*_trt*.sh
        gathers = lengths == (1024, 1024) and tp < 8
        return Arguments(
            kv_dtype="fp8",
            max_batched_tokens=16384,
            gather_steps=20 if gathers else None,
            gather_share=0.9 if gathers else None,
        )
    if point.fold == "gpt-oss":
        kv = "fp8" if blackwell else None
        return Arguments(kv_dtype=kv, max_batched_tokens=20000, memory_fraction=0.85, hold_steps=50)
    if point.fold == "deepseek-v3":
        # benchmarks/dsr1_*_trt*.sh: first as many tokens as one prompt and all decodes; from 2026 at least 8,192.
        users = int(point.load_value or 0)
        most = (users + (point.input_tokens or 0) + 127) // 64 * 64
        late = point.engine_version[:3] >= LATE_DSR1
        gathers = late and blackwell and point.precision == "fp8" and lengths == (1024, 1024) and 64 <= users < 256
        return Arguments(
            kv_dtype="fp8",
            max_batched_tokens=max(most, 8192) if late else most,
            memory_fraction=0.8 if blackwell else 0.75,
            hold_steps=60,
            gather_steps=40 if gathers else None,
            gather_share=0.8 if gathers else None,
        )
    return Arguments()


LATE_DSR1 = "1.2"
"""From this TensorRT-LLM on, in InferenceX's images, its DeepSeek scripts ask for at least 8,192 tokens a step."""


def ran_eager(point: Point) -> bool:
    """Whether a run was without CUDA graphs: its notes have the flag, or it is dstack's TensorRT-LLM 0.17, whose
    PyTorch backend had them off (use_cuda_graph false by default, and not set in its options)."""
    flagged = "--disable-cuda-graph" in point.notes or "--enforce-eager" in point.notes
    return flagged or (point.engine.startswith("tensorrt") and point.engine_version.startswith("0.17"))


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
