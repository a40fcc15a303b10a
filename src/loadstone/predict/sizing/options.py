"""The options of `loadstone size`, each written once: for the command line and for Python. It
imports little, for `--help` reads it.
"""

import dataclasses
import operator
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from loadstone.core.errors import InputError
from loadstone.core.plan import PoolingTask
from loadstone.core.units import TOKEN_UNITS, parse_counts
from loadstone.workload.option_fields import (
    ARGUMENT,
    DEPLOYMENT,
    ENGINE,
    Flags,
    flag,
    list_in_docstring,
)

_TOKENS = re.compile(r"([0-9]+)\s*([km]?)", re.IGNORECASE)
_EXAMPLES = {
    "--gpu": "h200",
    "--weights-dtype": "fp8",
    "--kv-dtype": "fp8",
    "--engine": "vllm",
    "--engine-version": "0.19.0",
    "--arguments": "max_num_seqs=64",
}


def _several(value: Any) -> Iterable[Any]:
    """Take apart what stands for several: a list, a range, a column of pandas; all else is one."""
    single = isinstance(value, str | os.PathLike | Mapping) or getattr(value, "shape", None) == ()
    return value if isinstance(value, Iterable) and not single else (value,)


def text(value: object, name: str) -> str:
    if not isinstance(value, str | os.PathLike):
        raise InputError(
            f"{name}: {value!r} is not a text; write e.g. {_EXAMPLES.get(name, 'llama-3.1-70b')!r}"
        )
    return str(os.fspath(value))


def texts(value: object, name: str) -> tuple[str, ...]:
    return tuple(text(part, name) for part in _several(value))


def words(value: object, name: str) -> tuple[str, ...]:
    """Texts, also several in one with commas."""
    parts = (part.strip() for text in texts(value, name) for part in text.split(","))
    return tuple(part for part in parts if part)


def _numbers(
    value: object, name: str, below: int, what: str, parse: Callable[[str, str], list[int]]
) -> list[int]:
    """From numbers, numpy's too, or as `parse` reads a text. Raises InputError, for True too."""
    numbers: list[int] = []
    for entry in _several(value):
        if isinstance(entry, str):
            numbers += parse(entry, name)
            continue
        try:
            number = 0 if isinstance(entry, bool) else operator.index(entry)
        except TypeError:
            number = 0
        if not 1 <= number < below:
            raise InputError(f"{name}: {entry!r} is not a {what}")
        numbers.append(number)
    return numbers


def counts(value: object, name: str) -> tuple[int, ...]:
    """Whole numbers of at least 1, as numbers or as `1,2,4`. Raises InputError."""
    return tuple(
        _numbers(
            value,
            name,
            2**31,
            "whole number of at least 1; write e.g. 1, 8 or [1, 8]",
            parse_counts,
        )
    )


def tokens(value: object, name: str) -> tuple[int, ...]:
    """Tokens, as numbers or as `8k,131072`; k is 1024, as in "128k" of 131,072. Raises
    InputError."""
    kind = "number of tokens; write e.g. 4096, 8k or 1m"

    def parse(text: str, name: str) -> list[int]:
        numbers = []
        for part in (piece.strip() for piece in text.split(",") if piece.strip()):
            match = _TOKENS.fullmatch(part)
            number = (
                int(match[1]) * TOKEN_UNITS[match[2].lower()] if match and len(match[1]) < 10 else 0
            )
            if number < 1:
                raise InputError(f"{name}: {part!r} is not a {kind}")
            numbers.append(number)
        return numbers

    return tuple(_numbers(value, name, 10**9, kind, parse))


@list_in_docstring
@dataclasses.dataclass(kw_only=True)
class SizeOptions(Flags):
    """The deployments to size: each of `models` with all combinations of what the other options
    list. Models that are whole deployments (with an `@`) take engine, context and batch alone.
    Combinations of parallelism that make no deployment are left out, unless none is left. The
    options of `loadstone size`:"""

    models: Sequence[str] = flag(
        ARGUMENT,
        "models (names or config.json, several with commas), or deployments: llama-3.1-70b@8xh200",
        dataclasses.MISSING,
        texts,
        argument="models",
    )
    gpu: tuple[str, ...] = flag(
        DEPLOYMENT, "GPUs of the catalogue, or files that describe one, e.g. h100,h200", (), words
    )
    gpus: tuple[int, ...] = flag(
        DEPLOYMENT, "number of GPUs, e.g. 1,2,4,8 [default: 1]", (), counts
    )
    context: tuple[int, ...] = flag(
        DEPLOYMENT, "tokens of a request, e.g. 8k,128k [default: the longest]", (), tokens
    )
    answer: tuple[int, ...] = flag(
        DEPLOYMENT,
        "of the context, tokens of the answer, e.g. 1k: what each of two pools carries, their"
        " ratio",
        (),
        tokens,
    )
    endpoint: PoolingTask | None = flag(
        DEPLOYMENT, "what is asked of a model that writes no text: embeddings, rerank or score"
    )
    batch: tuple[int, ...] = flag(
        DEPLOYMENT, "requests of that context at once, e.g. 1,32", "1", counts
    )
    weights_dtype: tuple[str, ...] = flag(
        DEPLOYMENT,
        "precision of the weights, e.g. bf16,fp8,int4 [default: the checkpoint's]",
        (),
        words,
    )
    kv_dtype: tuple[str, ...] = flag(
        DEPLOYMENT, "precision of the KV cache, e.g. bf16,fp8 [default: the model's]", (), words
    )
    tp: tuple[int, ...] = flag(
        DEPLOYMENT, "tensor-parallel ranks, e.g. 8 [default: all GPUs of a node]", (), counts
    )
    pp: tuple[int, ...] = flag(
        DEPLOYMENT, "pipeline stages [default: the number of nodes]", (), counts
    )
    dp: tuple[int, ...] = flag(
        DEPLOYMENT, "data-parallel replicas [default: what tp and pp leave]", (), counts
    )
    ep: tuple[int, ...] = flag(
        DEPLOYMENT,
        "expert-parallel ranks, each with whole experts [default: 1, a slice of each expert on"
        " every rank]",
        (),
        counts,
    )
    attention_dp: bool = flag(
        DEPLOYMENT, "data-parallel attention: replicas share one set of experts", False
    )
    engine: tuple[str, ...] = flag(
        ENGINE,
        "vllm, sglang, tensorrt-llm, llama.cpp; several: a row each [default: vllm]",
        (),
        words,
    )
    engine_version: str | None = flag(
        ENGINE, "e.g. 0.19.0 [default: the newest whose rules are known]", read=text
    )
    gpu_memory_utilization: float | None = flag(
        ENGINE, "vLLM's share of each GPU, 0 to 1 [default: that of the vLLM release]"
    )
    mem_fraction_static: float | None = flag(
        ENGINE, "SGLang's share of each GPU, 0 to 1 [default: as SGLang computes it]"
    )
    arguments: Sequence[str] = flag(
        ENGINE,
        "any other argument of the engine, e.g. max_num_seqs=64",
        (),
        texts,
        name="argument",
        short="-a",
    )
