"""The options of `loadstone tune`, each written once: for the command line and for Python."""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

from loadstone.core.errors import InputError
from loadstone.core.metrics import LATENCIES
from loadstone.predict.sizing.options import texts
from loadstone.workload import option_values as values
from loadstone.workload.load_options import CheckOptions, LoadOptions, WorkloadOptions
from loadstone.workload.option_fields import (
    LOAD,
    RUN,
    SEARCH,
    TARGET,
    Flags,
    Limits,
    flag,
    group,
    list_in_docstring,
)
from loadstone.workload.start_options import StartOptions

_LATENCIES = tuple(name.removesuffix("_s") for name in LATENCIES)
_TAIL = re.compile(r"(p50|p90|p95|p99):(\w+)")


def _objective(value: object, name: str) -> str:
    """Read what is to be made large or small. Raises InputError."""
    text = str(value).strip()
    tail = _TAIL.fullmatch(text)
    if text in ("throughput", "rate", "energy") or (tail and tail[2] in _LATENCIES):
        return text
    raise InputError(
        f"{name} {text!r}: no such objective; write throughput, rate, energy, or p99:ttft (p50,"
        f" p90, p95, p99 of {', '.join(_LATENCIES)})"
    )


_LEAST_LAUNCHES = Limits("must be at least 10: of two settings, and four fresh ones of each", 10)
_AS_IT_IS = "{}"
_TAKEN = (
    *("input", "output", "range_ratio", "prefix", "prefix_groups", "dataset"),
    *("turns", "think_time", "trace", "mix", "seed"),
)
_WORKLOAD = dict.fromkeys(_TAKEN, _AS_IT_IS)
_LOAD = {
    "concurrency": "requests under way: the one load of all settings",
    "rate": "requests/s: the one load of all settings",
} | dict.fromkeys(("burstiness", "requests", "duration_s", "warmup"), _AS_IT_IS)
_START = {
    "model": "what the engine loads: a path, or an id",
    "arguments": "a flag that every setting has, FLAG or FLAG=VALUE",
} | dict.fromkeys(
    ("environment", "program", "container", "image", "cache", "timeout_ready_s"), _AS_IT_IS
)
"""Options of a run that a race has, with their help."""


@dataclasses.dataclass(kw_only=True)
class TuneOptions(Flags):
    """The options of `loadstone tune`:"""

    target: str = flag(
        TARGET,
        "a deployment, MODEL@GPUs/engine=NAME; an engine on this machine, llama.cpp; or a study's"
        " file with one deployment and one load",
        dataclasses.MISSING,
        values.text,
        argument="target",
    )
    objective: str = flag(
        SEARCH,
        "what the best setting is best at: throughput (output tokens/s), rate (the highest that"
        " --slo allows), p99:ttft (p50 to p99 of a latency), energy (J per output token)",
        "throughput",
        _objective,
    )
    set_: Sequence[str] = flag(
        SEARCH,
        "a flag of the engine to try: FLAG=V1,V2, FLAG for the values that are known to matter,"
        " A+B=V1,V2 for flags that change together [default: the engine's main flags]",
        (),
        texts,
        name="set",
    )
    layouts: Sequence[str] = flag(
        SEARCH,
        "layouts to try on the same GPUs, separated by blanks: 'tp8 tp4,dp2'; or auto, all of tp ×"
        " dp in powers of two",
        (),
        values.texts,
        name="layouts",
    )
    time_s: float = flag(
        SEARCH,
        "how long launches may take in all",
        "2h",
        values.seconds,
        name="time",
        limits=Limits("must be above 0", exclusive_minimum=0),
    )
    launches: int | None = flag(
        SEARCH, "the most launches [default: as many as the time allows]", limits=_LEAST_LAUNCHES
    )
    slo: str | None = flag(
        LOAD, "bounds that a setting must hold: ttft_p99<1s,tpot_p99<30ms", None, values.text
    )
    workload: WorkloadOptions = group(WorkloadOptions, wording=_WORKLOAD)
    load: LoadOptions = group(LoadOptions, wording=_LOAD)
    grading: CheckOptions = group(CheckOptions)
    start: StartOptions = group(StartOptions, TARGET, _START)
    on: str | None = flag(
        RUN, "with a study's file: the machine on which settings are launched [default: the first]"
    )
    name: str | None = flag(RUN, "the race's name, its folder under --out", None, values.text)
    out: Path = flag(RUN, "folder for races", "tunes", values.path)


list_in_docstring(TuneOptions)
