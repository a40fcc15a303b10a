"""What published runs gave their engines, where their source says so and their rows do not.

InferenceX (github.com/SemiAnalysisAI/InferenceX, benchmarks/; formerly InferenceMAX) publishes the script of each
run, by model and GPU, and its perf-changelog.yaml says when they changed. NVIDIA's gap analysis repeats those runs.
Only arguments that change what a scheduler does or what a token costs are kept here.
"""

from __future__ import annotations

import math

import msgspec

from loadstone.predict.calibrate.points import Point
from loadstone.predict.calibrate.sources import copies_of


class Arguments(msgspec.Struct, frozen=True, kw_only=True):
    """Engine arguments; None: the engine's default.

    kv_dtype           of the KV cache
    max_batched_tokens of a step
    poll_steps         SGLang's scheduler-recv-interval: new requests are looked for every so many decode steps
    eager              no CUDA graphs
    hold_steps         TensorRT-LLM's timeout_iters, where ranks of attention-DP wait for one another's prompts
    gather_steps       its batch_wait_timeout_iters: prompts wait for company
    gather_share       its batch_wait_max_tokens_ratio: they do not, from this share of max_batched_tokens on
    graph_tokens       largest step with prompts that runs as CUDA graphs: vLLM's max_cudagraph_capture_size (0: its
                       cudagraph_mode is FULL_DECODE_ONLY), TensorRT-LLM's capture_num_tokens
    experts_dealt      vLLM's --enable-expert-parallel, which a row may not say
    draft_tokens       guessed per step by speculative decoding, which a row may not say
    """

    kv_dtype: str | None = None
    max_batched_tokens: int | None = None
    max_seqs: int | None = None
    memory_fraction: float | None = None
    poll_steps: int | None = None
    hold_steps: int | None = None
    gather_steps: int | None = None
    gather_share: float | None = None
    graph_tokens: int | None = None
    experts_dealt: bool = False
    draft_tokens: int | None = None
    eager: bool = False


def arguments_of(point: Point, engine: str, gpu: str, tp: int) -> Arguments:
    """As the source's own scripts had it; all None for sources without, and where there are no users."""
    if "silicon_sample" not in point.source or point.load_value == math.inf:
        return Arguments()
    family, precision, concurrency = point.fold, point.precision, point.load_value
    blackwell = gpu in ("b200", "b300", "gb200", "gb300")
    if engine == "vllm":
        return _vllm(point, blackwell)
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


def _vllm(point: Point, blackwell: bool) -> Arguments:
    """benchmarks/70b_*, gptoss_*, kimik2.5_* and minimaxm2.5_*.sh, by what its changelog says of when."""
    family, users = point.fold, int(point.load_value or 1)
    if family == "llama-70b":
        return Arguments(
            kv_dtype="fp8",
            max_batched_tokens=8192,
            memory_fraction=0.9,
            max_seqs=512 if blackwell else users,
            graph_tokens=0 if blackwell else None,
        )
    if family == "gpt-oss":
        kv = "fp8" if blackwell else None
        seqs = 512 if blackwell else users
        return Arguments(kv_dtype=kv, max_batched_tokens=8192, memory_fraction=0.9, max_seqs=seqs, graph_tokens=2048)
    if family not in ("kimi", "minimax"):
        return Arguments()
    tuned = blackwell and "measured=2026-04" in point.notes and point.precision != "int4"
    if tuned and not (point.gpu.startswith("B200") and "nightly" in point.engine_version):
        budget = 2 * (point.input_tokens or 0)
        return Arguments(kv_dtype="fp8", max_batched_tokens=budget, memory_fraction=0.9, graph_tokens=2048)
    if family == "kimi":
        return Arguments(memory_fraction=0.9 if point.precision == "fp4" else 0.95, max_seqs=users)
    if point.precision == "fp4":
        return Arguments(memory_fraction=0.9, max_seqs=users)
    # Of MiniMax's scripts, those for B200 until vLLM 0.17 and for H200 dealt experts out whatever EP was.
    return Arguments(memory_fraction=0.95, experts_dealt="h100" not in point.gpu.lower())


def _tensorrt_llm(point: Point, blackwell: bool, tp: int) -> Arguments:
    """Prompts are never cut (no enable_chunked_prefill): max_num_tokens is how many of them a step takes."""
    lengths = (point.input_tokens, point.output_tokens)
    if (copies := copies_of(point)) > 1:
        # NVIDIA's own: what AIConfigurator generates, from the batch of a copy.
        batch = int(point.load_value or 0) // copies
        return Arguments(max_batched_tokens=batch + (point.input_tokens or 0) + 1500)
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
        drafts = _draft_tokens(point, tp)
        most = ((drafts + 1) * users + (point.input_tokens or 0) + 127) // 64 * 64
        late = point.engine_version[:3] >= LATE_DSR1
        gathers = late and blackwell and point.precision == "fp8" and lengths == (1024, 1024) and 64 <= users < 256
        budget = max(most, 8192) if late else most
        return Arguments(
            kv_dtype="fp8",
            max_batched_tokens=budget,
            memory_fraction=0.8 if blackwell else 0.75,
            hold_steps=60,
            gather_steps=40 if gathers else None,
            gather_share=0.8 if gathers else None,
            graph_tokens=budget if late and blackwell and _has_prompt_graphs(point, users, tp) else None,
            draft_tokens=drafts or None,
        )
    if point.fold == "llama-3.1-8b":
        # One place fewer than users: TTFT is a base plus (answer's time) / users, from 8 to 64 users and at each TP.
        return Arguments(max_seqs=max(1, int(point.load_value or 1) - 1))
    return Arguments()


def _draft_tokens(point: Point, tp: int) -> int:
    """Of multi-token prediction (benchmarks/dsr1_*_trt_mtp.sh): three; one with attention data-parallel, here tp 1.

    Rows do not say it. The changelog has 1.2.0rc6.post3 for scripts with it and post2 for those without; the former
    came in January of 2026, and rows of that month on the release of the year before take 0.5 to 0.7 of the TPOT.
    """
    early = point.engine_version.startswith("1.1.0rc2") and "measured=2026-01" in point.notes
    if early or point.engine_version.startswith("1.2.0rc6.post3"):
        return 1 if tp == 1 else 3
    return 0


def _has_prompt_graphs(point: Point, users: int, tp: int) -> bool:
    """The scripts' PIECEWISE_CUDA_GRAPHS: FP8 at many users, but not at most; FP4 on eight ranks of experts."""
    lengths = (point.input_tokens, point.output_tokens)
    if point.precision != "fp8":
        return lengths == (1024, 1024) and tp == point.moe_ep == 8
    if lengths == (8192, 1024):
        return users >= 64
    return (64 if lengths == (1024, 1024) else 128) <= users < 256


LATE_DSR1 = "1.2"
"""From this TensorRT-LLM on, in InferenceX's images, its DeepSeek scripts ask for at least 8,192 tokens a step."""


def ran_eager(point: Point) -> bool:
    """Whether a run was without CUDA graphs: its notes have the flag, or it is dstack's TensorRT-LLM 0.17, whose
    PyTorch backend had them off (use_cuda_graph false by default, and not set in its options)."""
    flagged = "--disable-cuda-graph" in point.notes or "--enforce-eager" in point.notes
    return flagged or (point.engine.startswith("tensorrt") and point.engine_version.startswith("0.17"))
