"""The same records, summarised as other tools define their numbers: to be laid beside published ones.

A dialect gives the keys of the tool's own result file in its own units; where that file is nested, keys are the path
in it, joined by dots. `DEFINITIONS` says in a line what each key is. Percentiles, which requests count and where a
duration begins and ends are the tool's own too; what a record cannot tell is None. docs/dialects.md has the reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from loadstone.analyse.other_tools import aiperf, guidellm, inference_perf, llmperf, mlperf, sglang, vllm
from loadstone.analyse.other_tools.facts import Facts, Summary, gather
from loadstone.core.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

    from loadstone.core import Load

__all__ = ["DEFINITIONS", "DIALECTS", "TOOLS", "summarise_as"]


class _Dialect(NamedTuple):
    """`tool`: whose definitions, as read from its source; `summary`: its numbers; `definitions`: key to formula."""

    tool: str
    summary: Callable[[Facts, Load], Summary]
    definitions: dict[str, str]


_DIALECTS = {
    "vllm": _Dialect("vllm bench serve 0.33.0", lambda facts, _: vllm.summary(facts), vllm.DEFINITIONS),
    "sglang": _Dialect(
        "sglang.bench_serving 0.5.23 --backend sglang",
        lambda facts, _: sglang.summary(facts, native=True),
        sglang.definitions(native=True),
    ),
    "sglang-oai": _Dialect(
        "sglang.bench_serving 0.5.23 --backend sglang-oai, sglang-oai-chat or vllm",
        lambda facts, _: sglang.summary(facts, native=False),
        sglang.definitions(native=False),
    ),
    "aiperf": _Dialect("AIPerf 0.13.0", lambda facts, _: aiperf.summary(facts), aiperf.DEFINITIONS),
    "guidellm": _Dialect("GuideLLM 0.8.1", lambda facts, _: guidellm.summary(facts), guidellm.DEFINITIONS),
    "inference-perf": _Dialect(
        "inference-perf 0.7.0", lambda facts, _: inference_perf.summary(facts), inference_perf.DEFINITIONS
    ),
    "llmperf": _Dialect(
        "llmperf token_benchmark_ray.py", lambda facts, _: llmperf.summary(facts), llmperf.DEFINITIONS
    ),
    "mlperf": _Dialect("MLPerf LoadGen, token latencies", mlperf.summary, mlperf.DEFINITIONS),
}

DIALECTS = tuple(_DIALECTS)
TOOLS = {name: dialect.tool for name, dialect in _DIALECTS.items()}
"""Whose definitions each dialect follows, and of which version."""
DEFINITIONS = {name: dialect.definitions for name, dialect in _DIALECTS.items()}
"""For each dialect, what each of its keys is, in a line."""


def summarise_as(
    name: str, read: Callable[[], Iterable[pa.RecordBatch]], load: Load, *, streams: bool = True
) -> Summary:
    """The numbers of one cell in the dialect `name`, a value for every key of `DEFINITIONS[name]`.

    `read` starts reading the cell's records, columns named as in RequestRecord; it is called once.
    `streams`: False where answers came in one piece: what needs a first token or a gap is None then.
    Raises InputError where there is no such dialect.

    Kept are 90 bytes per request and 12 per stream event, several times over while values are sorted.
    """
    if name not in _DIALECTS:
        raise InputError(f"--dialect {name}: unknown; choose one of {', '.join(DIALECTS)}")
    return _DIALECTS[name].summary(gather(read, streams=streams), load)
