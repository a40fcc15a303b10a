"""Compares a cell with the limits of its hardware: the roofline's times, MBU and MFU.

Only where a run says enough (model, GPU, how many, how they are split) and the catalogue knows
them. Formulas and what is assumed: docs/metrics.md, "Roofline".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from loadstone.analyse.run_facts import RunFacts, mapping
from loadstone.catalogue.hardware import Gpu
from loadstone.core.errors import InputError
from loadstone.core.plan import Load
from loadstone.core.record import RunInfo
from loadstone.core.summary import CellSummary, Latency, Roofline, finite, mean_tokens

if TYPE_CHECKING:
    from loadstone.catalogue.deployment.deployment import Deployment
    from loadstone.predict.step_time.work import Work


@np.errstate(
    over="ignore", invalid="ignore"
)  # files may hold any number; what comes of it is left out
def roofline_of(info: RunInfo, facts: RunFacts, cell: CellSummary) -> Roofline | None:
    """Compute the roofline of a cell; None where the catalogue does not know what it ran on, or a
    request has several answers, which the formulas do not know. `facts`: those of its run.
    """
    if info.target is not None and info.target.choices > 1:
        return None
    roofline = _roofline(_shorthand(info, facts), facts.hardware, facts.own_model)
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
    if mean_s and 0 < decoding < math.inf and not _speculates(info.settings.deployment):
        tpot_s, reading_s = roofline.decode(
            decoding, _places(cell.load), input_tokens + (output_tokens or 0.0) / 2
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


class _Roofline:
    """A deployment at the rates of its data sheet, without any overhead.

    peak_flops_per_s  of all GPUs, for products in the type that most of the weights are multiplied
                      in
    """

    def __init__(self, deployment: Deployment) -> None:
        from loadstone.predict.step_time import StepModel
        from loadstone.predict.step_time.coefficients import LIGHT
        from loadstone.predict.step_time.work import EXPERTS, GEMM, HEAD, ideal, work_of

        self._schedulers = deployment.dp * deployment.pp
        self._group = deployment.dp if deployment.attention_dp else 1
        self._work = work = ideal(work_of(deployment))
        self._step = StepModel(deployment, values=LIGHT, work=work)
        # Where arithmetic and messages take no time, what is left of a step is reading weights and
        # KV cache.
        none, idle, endless = (
            np.zeros_like(work.hbm),
            np.zeros_like(work.peak),
            np.full_like(work.peak, np.inf),
        )
        self._reading = replace(
            work,
            peak=endless,
            link=endless,
            activations=idle,
            context_flops=none,
            window_flops=none,
        )
        # FLOPs are the model's: what ranks do twice, because they have a copy each, is no use to
        # anybody.
        alone = msgspec.structs.replace(
            deployment, gpus=1, nodes=1, tp=1, pp=1, dp=1, ep=1, attention_dp=False, node=None
        )
        self._whole = whole = work_of(alone)
        flops = whole.count * whole.flops * np.where(whole.kind == EXPERTS, whole.per_token, 1.0)
        products = (whole.kind == GEMM) | (whole.kind == EXPERTS)
        self._token_flops = float(flops[products].sum())
        self._head_flops = float(flops[whole.kind == HEAD].sum())
        self.peak_flops_per_s = deployment.gpus * float(whole.peak[products].max())

    def decode(self, decoding: float, places: float, context_tokens: float) -> tuple[float, float]:
        """(seconds of a step of nothing but decodes, those of them in which a GPU reads weights and
        KV cache at full bandwidth, times the share of time in which it has such steps), of
        `decoding` requests on average over all schedulers. `context_tokens`: mean of a request.

        An attention rank reads its own weights where it has requests, and its experts where any of
        its group has.
        """
        each, places = decoding / self._schedulers, places / self._schedulers
        busy, group_busy = _busy(each, places), _busy(each * self._group, places * self._group)
        batch, met = each / busy, each / group_busy
        own_s, met_s = _decode_s(self._work, batch, met, context_tokens)
        own_reading_s, met_reading_s = _decode_s(self._reading, batch, met, context_tokens)
        return own_s + met_s, busy * own_reading_s + group_busy * met_reading_s

    def ttft_s(self, new_tokens: float, cached_tokens: float) -> float:
        """Seconds of one prompt through all layers, alone and whole."""
        new = max(1, round(new_tokens))
        return self._step.step_s(
            0, 0, [(new, round(cached_tokens))], met_tokens=max(1, new // self._group)
        )

    def flops(self, new_tokens: float, cached_tokens: float, output_tokens: float) -> float:
        """Count the FLOPs of a request: products and attention of its prompt but for cached tokens,
        then of each token but the last, which nothing follows; the head once for each token of the
        answer.
        """
        from loadstone.predict.step_time.formulas import attended_pairs, window_pairs

        whole, decodes = self._whole, max(0.0, output_tokens - 1)
        new, cached = np.array([new_tokens]), np.array([cached_tokens])
        prompt = whole.pair_flops * attended_pairs(new, cached)
        prompt += whole.window_pair_flops * window_pairs(new, cached, whole.window)
        context = np.array([new_tokens + cached_tokens + output_tokens / 2])
        decode = whole.context_flops * context + whole.window_flops * np.minimum(
            context, whole.window
        )
        attention = float((prompt + decodes * decode)[0])
        return (
            (new_tokens + decodes) * self._token_flops
            + (1 + decodes) * self._head_flops
            + attention
        )


def _busy(mean: float, places: float) -> float:
    """Share of time in which any request decodes, of `mean` on average. Each of the places of a
    closed loop does or does not whatever the others do; of any number of places that is Poisson's
    law.
    """
    places = max(1.0, places)
    if mean >= places:
        return 1.0
    return -math.expm1(-mean if math.isinf(places) else places * math.log1p(-mean / places))


def _decode_s(work: Work, batch: float, met: float, context_tokens: float) -> tuple[float, float]:
    """Seconds of a decode step: (a rank's own part, what the ranks of its group do together), of so
    many requests of its own, and of its group per rank.
    """
    from loadstone.predict.step_time.coefficients import LIGHT
    from loadstone.predict.step_time.formulas import (
        body_seconds,
        context_seconds,
        head_seconds,
        met_part,
    )

    values, own, shared = LIGHT[None, :], np.array([batch]), met_part(work)
    products = (
        body_seconds(work, values, own)
        - body_seconds(shared, values, own)
        + head_seconds(work, values, own)
    )
    full, windowed, state = context_seconds(work, values)
    attention = batch * (
        full * context_tokens + windowed * np.minimum(context_tokens, work.window) + state
    )
    return float((products + attention)[0]), float(body_seconds(shared, values, np.array([met]))[0])


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


def _places(load: Load) -> float:
    """Return the most requests that can be under way: a closed loop's or a burst's number; of an
    open loop any."""
    return math.inf if load.is_open else finite(load.value) or math.inf


def _median_s(values: Latency | None) -> float | None:
    """The mean where another tool states no median."""
    return (finite(values.p50) or finite(values.mean)) if values is not None else None


def _over(ideal_s: float | None, measured_s: float | None) -> float | None:
    return finite(ideal_s / measured_s) if ideal_s is not None and measured_s else None


def _speculates(deployment: Mapping[str, Any]) -> bool:
    """Tell if the run says that its engine guesses tokens: a step gives several then, and its time
    bounds no TPOT."""
    arguments = mapping(deployment.get("arguments"))
    return str(arguments.get("num_speculative_tokens") or 0).strip() != "0"


def _shorthand(info: RunInfo, facts: RunFacts) -> str | None:
    """Find the deployment of the run: as its papers name it, or put together from the facts of a
    file."""
    from loadstone.catalogue.deployment.shorthand import split_deployment
    from loadstone.engines import ENGINES

    shorthand = info.settings.deployment.get("name")
    if isinstance(shorthand, str) and facts.hardware is not None:
        # A node that only a file describes counts itself; its GPUs, which are in the papers, count
        # here.
        model, _, options = split_deployment(shorthand)
        return f"{model}@{facts.gpus}xgpu/{options}"
    if isinstance(shorthand, str):
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
) -> _Roofline | None:
    """Look up a model of the catalogue; None for one that only a file describes: names come from
    servers and papers, and no file is read for one.
    """
    from loadstone.catalogue.deployment.shorthand import parse_named
    from loadstone.predict.step_time.boards import architecture_of
    from loadstone.predict.step_time.coefficients import PROCESSOR

    try:
        if not shorthand:
            return None
        deployment = parse_named(shorthand, hardware, own_model)
        # The catalogue's processor stands for all there are: its rates are no limit of any.
        return None if architecture_of(deployment.gpu) == PROCESSOR else _Roofline(deployment)
    except (InputError, ArithmeticError, KeyError, OSError, RuntimeError):
        return None  # the last two: a model's name that no path can have
