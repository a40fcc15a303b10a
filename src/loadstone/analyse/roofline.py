"""Compares a cell with the limits of its hardware: the roofline's times, MBU and MFU.

Only where a run says enough (model, GPU, how many, how they are split) and the catalogue knows
them. Formulas and what is assumed: docs/metrics.md, "Roofline".
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from loadstone.analyse.run_facts import RunFacts
from loadstone.catalogue.hardware import Gpu
from loadstone.core.errors import InputError
from loadstone.core.metrics import Latency, finite
from loadstone.core.plan import Load
from loadstone.core.record import RunInfo
from loadstone.core.settings import DeploymentRecord
from loadstone.core.summary import CellSummary, Roofline, mean_tokens

if TYPE_CHECKING:
    from loadstone.predict.step_time.roofline import RooflineModel


def limits_of(info: RunInfo, facts: RunFacts) -> RooflineModel | None:
    """Return the limits of the run's deployment; None where the catalogue does not know it."""
    return _roofline(_shorthand(info, facts), facts.hardware, facts.own_model)


@np.errstate(
    over="ignore", invalid="ignore"
)  # files may hold any number; what comes of it is left out
def roofline_of(info: RunInfo, facts: RunFacts, cell: CellSummary) -> Roofline | None:
    """Compute the roofline of a cell; None where the catalogue does not know what it ran on, or a
    request has several answers, which the formulas do not know. `facts`: those of its run.
    """
    if info.target is not None and info.target.choices > 1:
        return None
    roofline = limits_of(info, facts)
    metrics = cell.metrics
    input_tokens, output_tokens = _lengths(facts, cell)
    if roofline is None or not input_tokens:
        return None
    rate = finite((cell.steady or metrics).requests_per_s)
    cached = _cached_share(facts, cell)
    tpot_s = ttft_s = mbu = mfu = None
    if cached is not None:
        ttft_s = roofline.ttft_s(input_tokens * (1 - cached), input_tokens * cached)
    if rate and output_tokens and cached is not None:
        flops = roofline.flops(input_tokens * (1 - cached), input_tokens * cached, output_tokens)
        mfu = rate * flops / roofline.peak_flops_per_s
    tpot_median_s = _median_s(metrics.tpot_s)
    mean_s = (finite(metrics.tpot_s.mean) if metrics.tpot_s is not None else None) or tpot_median_s
    # Little's law: so many are decoding, on average over all time.
    decoding = (rate or 0.0) * (mean_s or 0.0) * ((output_tokens or 1.0) - 1)
    if mean_s and 0 < decoding < math.inf and not _speculates(info.settings.deployed):
        tpot_s, reading_s = roofline.decode(
            decoding, _slots(cell.load), input_tokens + (output_tokens or 0.0) / 2
        )
        mbu = reading_s / mean_s
    return Roofline(
        tpot_s=finite(tpot_s),
        ttft_s=finite(ttft_s),
        tpot_ratio=_over(tpot_s, tpot_median_s),
        ttft_ratio=_over(ttft_s, _median_s(metrics.ttft_s)),
        mbu=finite(mbu),
        mfu=finite(mfu),
    )


def _lengths(facts: RunFacts, cell: CellSummary) -> tuple[float | None, float | None]:
    """Mean tokens of the cell's prompts and answers; those of the run where the cell does not
    tell."""
    lengths = mean_tokens([cell])
    return lengths if all(lengths) else (facts.input_tokens, facts.output_tokens)


def _cached_share(facts: RunFacts, cell: CellSummary) -> float | None:
    """Count the prompts' tokens that came from a cache; None where prompts have something in common
    and nobody tells what came of it.
    """
    cached, inputs = finite(cell.metrics.cached_input_tokens), finite(cell.metrics.input_tokens)
    if cached is not None and inputs:
        return min(1.0, cached / inputs)
    shared = cell.metrics.shared_input_tokens or facts.prefix_tokens or cell.by_turn
    return None if shared and facts.prefix_cache is not False else 0.0


def _slots(load: Load) -> float:
    """Return the most requests that can be under way: a closed loop's or a burst's number; of an
    open loop any."""
    return math.inf if load.is_open else finite(load.value) or math.inf


def _median_s(values: Latency | None) -> float | None:
    """The mean where another tool states no median."""
    return (finite(values.p50) or finite(values.mean)) if values is not None else None


def _over(ideal_s: float | None, measured_s: float | None) -> float | None:
    return finite(ideal_s / measured_s) if ideal_s is not None and measured_s else None


def _speculates(deployment: DeploymentRecord) -> bool:
    """Tell if the run says that its engine guesses tokens: a step gives several then, and its time
    bounds no TPOT."""
    return str(deployment.arguments.get("num_speculative_tokens") or 0).strip() != "0"


def _shorthand(info: RunInfo, facts: RunFacts) -> str | None:
    """Find the deployment of the run: as its papers name it, or put together from the facts of a
    file."""
    from loadstone.catalogue.deployment.shorthand import split_deployment
    from loadstone.engines import ENGINES

    shorthand = info.settings.deployed.name
    if shorthand is not None and facts.hardware is not None:
        # A node that only a file describes counts itself; its GPUs, which are in the papers, count
        # here.
        model, _, options = split_deployment(shorthand)
        return f"{model}@{facts.gpus}xgpu/{options}"
    if shorthand is not None:
        return shorthand
    name = facts.architecture or facts.model
    if (
        not name
        or not facts.gpu
        or not facts.gpus
        or (facts.source == "imported" and facts.tp is None)
    ):
        return None
    counts = (("tp", facts.tp), ("pp", facts.pp), ("dp", facts.dp), ("ep", facts.ep))
    words = [f"{name}{n}" for name, n in counts if n]
    engine = (facts.engine or "").lower()
    words += [f"engine={engine}"] if engine in ENGINES and ENGINES[engine].eras else []
    words += [f"kv={facts.kv_dtype}"] if facts.kv_dtype and facts.kv_dtype != "auto" else []
    dtype = f":{facts.weights_dtype}" if facts.weights_dtype else ""
    return f"{name}{dtype}@{facts.gpus}x{facts.gpu}/{','.join(words)}".rstrip("/")


@lru_cache(maxsize=256)
def _roofline(
    shorthand: str | None, hardware: Gpu | None, own_model: str | None
) -> RooflineModel | None:
    """Look up a model of the catalogue; None for one that only a file describes: names come from
    servers and papers, and no file is read for one.
    """
    from loadstone.catalogue.deployment.shorthand import parse_named
    from loadstone.predict.step_time.boards import architecture_of
    from loadstone.predict.step_time.coefficients import PROCESSOR
    from loadstone.predict.step_time.roofline import RooflineModel

    try:
        if not shorthand:
            return None
        worker = parse_named(shorthand, hardware, own_model).decoder
        # The catalogue's processor stands for all there are: its rates are no limit of any.
        return None if architecture_of(worker.gpu) == PROCESSOR else RooflineModel(worker)
    except (InputError, ArithmeticError, KeyError, OSError, RuntimeError):
        return None  # the last two: a model's name that no path can have
