"""Options of other load generators, and what they are called here: said of one that there is not."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from loadstone.core.errors import InputError

_SUMMARY = "not needed: p50, p90, p95 and p99 are in every run's summary"

HERE = {
    # vLLM's and SGLang's
    "--num-prompts": "--requests",
    "--request-rate": "--rate",
    "--random-input-len": "--input",
    "--random-input": "--input",
    "--random-output-len": "--output",
    "--random-output": "--output",
    "--random-prefix-len": "--prefix",
    "--random-range-ratio": "--range-ratio, which draws lengths from [ratio·n, n]",
    "--input-len": "--input",
    "--output-len": "--output",
    "--sharegpt-output-len": "--output, with --dataset FILE",
    "--dataset-name": "--dataset FILE or --trace FILE; without, prompts are random",
    "--dataset-path": "--dataset FILE, or --trace FILE",
    "--base-url": "the first argument, as in `loadstone bench http://localhost:8000`",
    "--host": "the first argument, as in `loadstone bench http://localhost:8000`",
    "--port": "the first argument, as in `loadstone bench http://localhost:8000`",
    "--backend": "--endpoint",
    "--goodput": "--slo, with units: ttft<500ms,tpot<30ms",
    "--percentile-metrics": _SUMMARY,
    "--metric-percentiles": _SUMMARY,
    "--percentile": _SUMMARY,
    "--percentiles": _SUMMARY,
    "--save-result": "not needed: each run has a folder, under --out",
    "--save-detailed": "not needed: records.parquet in each run's folder has every request",
    "--result-dir": "--out",
    "--result-filename": "--out, the folder of run folders; `loadstone export RUN` writes files",
    "--output-file": "--out, the folder of run folders; `loadstone export RUN` writes files",
    "--output-path": "--out, the folder of run folders; `loadstone export RUN` writes files",
    "--num-warmups": "--warmup",
    "--warmup-requests": "--warmup",
    "--ignore-eos": "not needed: answers have the length of --output",
    "--served-model-name": "--model",
    "--disable-stream": "--no-stream",
    "--extra-request-body": "--extra-body",
    "--ramp-up-strategy": "--ramp",
    # GuideLLM's
    "--target": "the first argument, as in `loadstone bench http://localhost:8000`",
    "--rate-type": "--rate (open loop), --concurrency (closed loop) or --rate inf (all at once)",
    "--max-requests": "--requests",
    "--max-seconds": "--duration",
    "--max-duration": "--duration",
    "--data": "--input and --output, or --dataset FILE",
    "--processor": "--tokenizer",
    "--output-dir": "--out",
    "--random-seed": "--seed",
    # AIPerf's
    "--isl": "--input",
    "--osl": "--output",
    "--synthetic-input-tokens-mean": "--input",
    "--synthetic-input-tokens-stddev": "--input, as in --input normal:1024:128",
    "--output-tokens-mean": "--output",
    "--output-tokens-stddev": "--output, as in --output normal:128:16",
    "--prompt-input-tokens-mean": "--input",
    "--prompt-output-tokens-mean": "--output",
    "--request-count": "--requests",
    "--num-requests": "--requests",
    "--warmup-request-count": "--warmup",
    "--benchmark-duration": "--duration",
    "--endpoint-type": "--endpoint",
    "--url": "the first argument, as in `loadstone bench http://localhost:8000`",
    "--input-file": "--dataset FILE, or --trace FILE",
    "--artifact-dir": "--out",
    "--streaming": "not needed: --no-stream asks for answers in one piece",
    "--extra-inputs": "--extra-body",
    # Of most of them
    "--api-key": "LOADSTONE_API_KEY or OPENAI_API_KEY in the environment",
    "--requests-per-second": "--rate",
    "--num-concurrent-requests": "--concurrency",
}
"""By the other tool's flag."""


def said_of(flag: str, command: str | None) -> str | None:
    """One line about another tool's flag of a load; None where it is none, or where no load is asked for."""
    here = HERE.get(flag) if command in ("bench", "simulate") else None
    return None if here is None else f"{flag}: here it is {here}"


def no_such_option(name: str, known: Iterable[str], command: str) -> InputError:
    """One line about a name that is none of the `known` options, from Python: another tool's, else the nearest."""
    if (said := said_of(f"--{name.replace('_', '-')}", command)) is not None:
        return InputError(said)
    near = get_close_matches(name, list(known), n=1)
    return InputError(f"{name}: no such option" + (f"; the nearest is {near[0]}" if near else ""))
