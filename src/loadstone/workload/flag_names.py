"""Options of other load generators, and what they are called here: told to who uses one of
those."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from loadstone.core.errors import InputError

_OTHERS = {
    "--requests": "num-prompts max-requests request-count num-requests",
    "--rate": "request-rate requests-per-second",
    "--concurrency": "num-concurrent-requests",
    "--duration": "max-seconds benchmark-duration",
    "--warmup": "num-warmups warmup-requests warmup-request-count",
    "--ramp": "ramp-up-strategy",
    "--input": (
        "random-input-len random-input input-len isl synthetic-input-tokens-mean"
        " prompt-input-tokens-mean"
    ),
    "--output": (
        "random-output-len random-output output-len osl output-tokens-mean"
        " prompt-output-tokens-mean"
    ),
    "--input, as in --input normal:1024:128": "synthetic-input-tokens-stddev",
    "--output, as in --output normal:128:16": "output-tokens-stddev",
    "--output, with --dataset FILE": "sharegpt-output-len",
    "--prefix": "random-prefix-len",
    "--range-ratio, which draws lengths from [ratio·n, n]": "random-range-ratio",
    "--input and --output, or --dataset FILE": "data",
    "--dataset FILE or --trace FILE; without, prompts are random": "dataset-name",
    "--dataset FILE, or --trace FILE": "dataset-path input-file",
    "--seed": "random-seed",
    "--rate (open loop), --concurrency (closed loop) or --rate inf (all at once)": "rate-type",
    "the first argument, as in `loadstone bench http://localhost:8000`": (
        "base-url host port target url"
    ),
    "--endpoint": "backend endpoint-type",
    "--model": "served-model-name",
    "--tokenizer": "processor",
    "--no-stream": "disable-stream",
    "--extra-body": "extra-request-body extra-inputs",
    "LOADSTONE_API_KEY or OPENAI_API_KEY in the environment": "api-key",
    "--slo, with units: ttft<500ms,tpot<30ms": "goodput",
    "--out": "result-dir output-dir artifact-dir",
    "--out, the folder of run folders; `loadstone export` writes files": (
        "result-filename output-file output-path"
    ),
    "not needed: p50, p90, p95 and p99 are in every run's summary": (
        "percentile-metrics metric-percentiles percentile percentiles"
    ),
    "not needed: each run has a folder, under --out": "save-result",
    "not needed: records.parquet in each run's folder has every request": "save-detailed",
    "not needed: answers have the length of --output": "ignore-eos",
    "not needed: --no-stream asks for answers in one piece": "streaming",
}
HERE = {f"--{name}": here for here, names in _OTHERS.items() for name in names.split()}
"""By the flag of vLLM, SGLang, GuideLLM, AIPerf or another: what it is here."""


def flag_here(flag: str, command: str | None) -> str | None:
    """Write one line about another tool's flag of a load; None where it is none, or the command
    makes no load."""
    hint = HERE.get(flag) if command in ("bench", "simulate") else None
    return None if hint is None else f"{flag}: here it is {hint}"


def no_such_option(name: str, known: Iterable[str], command: str) -> InputError:
    """Write one line about a name that is none of the `known` options: another tool's, else the
    nearest."""
    text = flag_here(f"--{name.replace('_', '-')}", command)
    if text is not None:
        return InputError(text)
    near = get_close_matches(name, list(known), n=1)
    return InputError(f"{name}: no such option" + (f"; the nearest is {near[0]}" if near else ""))
