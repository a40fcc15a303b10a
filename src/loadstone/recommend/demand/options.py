"""The options of `loadstone recommend`, each written once: for the command line and for Python."""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from loadstone.core.electricity import HELP, Electricity, parse_electricity
from loadstone.core.errors import InputError
from loadstone.core.plan import PoolingTask
from loadstone.predict.sizing.options import counts, text, texts, words
from loadstone.workload import option_values as values
from loadstone.workload.load_options import WorkloadOptions
from loadstone.workload.option_fields import (
    ARGUMENT,
    AT_LEAST_0,
    BURSTINESS,
    LOAD,
    RUN,
    SEARCH,
    WORKLOAD,
    Flags,
    Limits,
    flag,
    group,
    list_in_docstring,
)

HOURS_PER_MONTH = 730.0
_TRAFFIC = Limits("must be above 0 and at most 1,000,000,000", exclusive_minimum=0, maximum=1e9)
_CONFIDENCE = Limits("must be 0 to 0.99", 0, maximum=0.99)
_UNITS = {"": 1.0, "k": 1e3, "m": 1e6}
_WATTS = re.compile(r"(\d+\.?\d*|\.\d+)(k|m|)w?", re.IGNORECASE)
_DOLLARS = re.compile(r"\$?(\d+\.?\d*|\.\d+)(k|m|)(/month|/hour|)", re.IGNORECASE)


def _dollars_per_month(value: object, name: str) -> float:
    """Read `30k/month`, `40/hour`, or a number a month."""
    found = _DOLLARS.fullmatch(str(value).replace(",", "").replace(" ", ""))
    if found is None:
        raise InputError(f"{name}: {value!r} is no budget; write e.g. 30k/month or 40/hour")
    number, unit, period = (part.lower() for part in found.groups())
    hours = HOURS_PER_MONTH if period == "/hour" else 1.0
    return float(number) * _UNITS[unit] * hours


def _watts(value: object, name: str) -> float:
    """Read `40kW`, `0.5MW`, or watts."""
    found = _WATTS.fullmatch(str(value).replace(",", "").replace(" ", ""))
    watts = float(found[1]) * _UNITS[found[2].lower()] if found else 0.0
    if watts <= 0:
        raise InputError(f"{name}: {value!r} is no power; write e.g. 40kW or 40000")
    return watts


_WORKLOAD = {
    "input": "prompt tokens: 1024, 8k, uniform:512:1024, lognormal:1024:0.5 [default: 1024]",
    "inputs": "{}",
    "documents": "{}",
    "document": "{}",
    "output": "output tokens, in the same forms [default: 128; a trace's own]",
    "range_ratio": "{}",
    "images": "{}",
    "image_size": "{}",
    "image_groups": "{}",
    "image_place": "{}",
    "prefix": "tokens at the start of each prompt that its group shares",
    "prefix_groups": "{}",
    "trace": "the traffic is this trace's, at its own times",
    "agents": "sessions of agents, those of this file; loads count them",
    "turns": "conversations of so many turns: 4; loads count them",
    "think_time": "with --turns: pause between them: 2s, exponential:2s",
    "mix": "file of classes of traffic, each with its bounds: one fleet for all, or several",
    "classes": "{}",
}
"""Options of a workload that a traffic has, with their help."""


@dataclasses.dataclass(kw_only=True)
class TrafficLoad(Flags):
    """How much traffic there is, and the bounds under it."""

    rate: float | None = flag(
        LOAD, "requests/s to serve; of sessions, how many begin a second", limits=_TRAFFIC
    )
    burstiness: float = flag(
        LOAD,
        "with --rate: spread of the arrivals: 1 is Poisson, below 1 burstier, above 1 more even,"
        " inf constant",
        1.0,
        limits=BURSTINESS,
    )
    concurrency: int | None = flag(
        LOAD,
        "or: requests or sessions at all times",
        limits=Limits("must be 1 to 1,000,000,000", 1, maximum=1e9),
    )
    slo: str | None = flag(
        LOAD,
        "bounds to hold: ttft_p99<1s,tpot_p99<40ms (ttft, tpot, e2e, task; p50 to p99)",
        read=text,
    )
    growth: float = flag(LOAD, "multiply the traffic by this", 1.0, limits=_TRAFFIC)
    every_s: float = flag(
        LOAD,
        "with --trace: how often replicas are started and stopped",
        "1h",
        values.seconds,
        limits=Limits("must be above 0", exclusive_minimum=0),
    )
    start_up_s: float = flag(
        LOAD, "with --trace: time until a replica that is started answers", "5m", values.seconds
    )
    autoscale: tuple[str, ...] = flag(
        LOAD,
        "with --trace: autoscalers whose target and least replicas are chosen for the first plan:"
        " keda,planner, or files",
        (),
        words,
    )


@dataclasses.dataclass(kw_only=True)
class SearchOptions(Flags):
    """The deployments to choose among."""

    gpus: tuple[str, ...] = flag(
        SEARCH, "kinds of GPU to choose among, e.g. h200,b200,mi300x", (), words
    )
    gpus_max: int = flag(
        SEARCH, "GPUs in all, at most", 32, limits=Limits("must be 1 to 65,536", 1, maximum=65_536)
    )
    engine: tuple[str, ...] = flag(
        SEARCH, "engines to choose among", "vllm,sglang,tensorrt-llm", words
    )
    pools: bool = flag(
        SEARCH, "prefill and decode in pools of their own too: whether splitting pays", False
    )
    route: Literal["least-busy", "prefix", "hashed", "round-robin"] | None = flag(
        SEARCH,
        "router before the replicas: least-busy; prefix, to the one that has most of the prompt;"
        " hashed, a session stays; round-robin [default: the best]",
    )
    quality: Literal["as-published", "any"] = flag(
        SEARCH,
        "precisions to choose among: as-published, those of checkpoints that somebody publishes;"
        " any, fp8 besides",
        "as-published",
    )
    weights_dtype: tuple[str, ...] = flag(
        SEARCH, "precisions of the weights [default: by --quality]", (), words
    )
    kv_dtype: tuple[str, ...] = flag(
        SEARCH, "precisions of the KV cache [default: by --quality]", (), words
    )
    tp: tuple[int, ...] = flag(
        SEARCH, "tensor parallelism [default: all powers of two]", (), counts
    )
    arguments: Sequence[str] = flag(
        SEARCH,
        "an argument that every deployment has, e.g. max_model_len=16384",
        (),
        texts,
        name="argument",
        short="-a",
    )
    acceptance: float | None = flag(
        SEARCH,
        "speculative decoding: probability that a draft token is accepted [default: 0.7 ± 0.1]",
        limits=Limits("must be 0 to 1", 0, maximum=1),
    )


@dataclasses.dataclass(kw_only=True)
class ChoiceOptions(Flags):
    """Groups the options of cost and ranking."""

    price: tuple[str, ...] = flag(SEARCH, "dollars per GPU and hour: h200=3.2,b200=5.5", (), words)
    reserve: int = flag(
        SEARCH, "replicas that may fail: so many more than the traffic needs", 0, limits=AT_LEAST_0
    )
    budget: float | None = flag(
        SEARCH, "dollars that there are, with --price: 30k/month, 40/hour", read=_dollars_per_month
    )
    electricity: Electricity | None = flag(SEARCH, HELP, read=parse_electricity)
    power_budget: float | None = flag(
        SEARCH, "power that there is for what --electricity counts, e.g. 40kW", read=_watts
    )
    miss_cost: float = flag(
        SEARCH,
        "what broken bounds cost, in multiples of the cheapest plan that would have held; more buys"
        " more headroom",
        3.0,
        limits=AT_LEAST_0,
    )
    objective: Literal["cost", "throughput"] = flag(
        SEARCH,
        "rank plans that hold by cost; or of a batch, with --concurrency, by throughput: the most"
        " tokens/s that --gpus-max and --budget give",
        "cost",
    )
    measured: tuple[str, ...] = flag(
        SEARCH,
        "run folders of measurements (bench --launch, or --deployment), from which the model"
        " learns",
        (),
        texts,
        name="with_",
    )
    force: bool = flag(SEARCH, "learn from loads of --with that are not trusted, too", False)
    confidence: float = flag(
        SEARCH,
        "probability from which a plan counts as one that holds the bounds",
        0.8,
        limits=_CONFIDENCE,
    )


@dataclasses.dataclass(kw_only=True)
class RecommendOptions(Flags):
    """The traffic, the bounds and the GPUs to choose among. The options of `loadstone
    recommend`:"""

    model: str = flag(
        ARGUMENT,
        "the model, by name or config.json, with its precision if that is fixed: llama-3.1-70b,"
        " deepseek-r1:fp8",
        dataclasses.MISSING,
        text,
        argument="model",
    )
    endpoint: PoolingTask | None = flag(
        WORKLOAD, "what is asked of a model that writes no text: embeddings, rerank or score"
    )
    workload: WorkloadOptions = group(WorkloadOptions, wording=_WORKLOAD)
    load: TrafficLoad = group(TrafficLoad)
    search: SearchOptions = group(SearchOptions)
    choice: ChoiceOptions = group(ChoiceOptions)
    plans: int = flag(RUN, "plans to show", 3, limits=Limits("must be 1 to 20", 1, maximum=20))
    seed: int = flag(
        RUN,
        "seed of the requests by which the figures shown are simulated; the choice is the same"
        " for all",
        0,
        limits=AT_LEAST_0,
    )
    study: Path | None = flag(
        RUN, "write a study that measures these plans to this file", read=values.path
    )


list_in_docstring(RecommendOptions)
