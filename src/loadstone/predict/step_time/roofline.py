"""A deployment at the rates of its data sheet, without any overhead: what its hardware allows a
mean request and a mean step.

The step model with all efficiencies 1 and all overheads 0 (coefficients.LIGHT), its experts evenly
spread.
"""

import math
from typing import NamedTuple

import msgspec
import numpy as np

from loadstone.catalogue.deployment.deployment import Worker
from loadstone.predict.step_time.coefficients import LIGHT
from loadstone.predict.step_time.formulas import (
    MeanStep,
    attended_pairs,
    kernel_seconds,
    window_pairs,
)
from loadstone.predict.step_time.operators import EXPERTS, GEMM, HEAD, Work, idealise
from loadstone.predict.step_time.step import StepModel
from loadstone.predict.step_time.work import work_of


class DecodeLimit(NamedTuple):
    """A step of nothing but decodes. `reading_s`: of its `step_s`, the time in which a GPU reads
    weights and KV cache at full bandwidth, times the share of time in which it has such steps."""

    step_s: float
    reading_s: float


class RooflineModel:
    """The limits of one deployment.

    gpu               the kind that it has
    peak_flops_per_s  of all GPUs, for products in the type that most of the weights are multiplied
                      in
    """

    def __init__(self, worker: Worker) -> None:
        self.gpu = worker.gpu
        self._schedulers = worker.dp * worker.pp
        self._group = worker.dp if worker.attention_dp else 1
        self._work = idealise(work_of(worker))
        self._step = StepModel(worker, values=LIGHT, work=self._work)
        self._reading = _reading_alone(self._work)
        # FLOPs are the model's: what ranks do twice, because they have a copy each, is no use to
        # anybody.
        alone = msgspec.structs.replace(
            worker, gpus=1, nodes=1, tp=1, pp=1, dp=1, ep=1, attention_dp=False, node=None
        )
        self._whole = work_of(alone)
        ops = self._whole.operators
        flops = ops.layers * ops.flops * np.where(ops.kind == EXPERTS, ops.per_token, 1.0)
        products = (ops.kind == GEMM) | (ops.kind == EXPERTS)
        self._token_flops = float(flops[products].sum())
        self._head_flops = float(flops[ops.kind == HEAD].sum())
        self.peak_flops_per_s = worker.gpus * float(ops.peak[products].max())

    def decode(self, decoding: float, slots: float, context_tokens: float) -> DecodeLimit:
        """Return the limit of a step of `decoding` requests, on average over all schedulers, of the
        `slots` of a closed loop. `context_tokens`: mean of a request.

        An attention rank reads its own weights where it has requests, and its experts where any of
        its group has.
        """
        mean, slots = decoding / self._schedulers, slots / self._schedulers
        busy = _busy_share(mean, slots)
        group_busy = _busy_share(mean * self._group, slots * self._group)
        batch, met = mean / busy, mean / group_busy
        own_s, met_s = _decode_s(self._work, batch, met, context_tokens)
        own_reading_s, met_reading_s = _decode_s(self._reading, batch, met, context_tokens)
        return DecodeLimit(own_s + met_s, busy * own_reading_s + group_busy * met_reading_s)

    def ttft_s(self, new_tokens: float, cached_tokens: float) -> float:
        """Return the seconds of one prompt through all layers, alone and whole."""
        new = max(1, round(new_tokens))
        return self._step.step_s(
            0, 0, [(new, round(cached_tokens))], met_tokens=max(1, new // self._group)
        )

    def flops(self, new_tokens: float, cached_tokens: float, output_tokens: float) -> float:
        """Count the FLOPs of a request: products and attention of its prompt but for cached tokens,
        then of each token but the last, which nothing follows; the head once for each token of the
        answer.
        """
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


def _reading_alone(work: Work) -> Work:
    """Return the work whose arithmetic and messages take no time: what is left of a step is reading
    weights and KV cache."""
    endless, idle = np.full_like(work.operators.peak, np.inf), np.zeros_like(work.operators.peak)
    no_flops = np.zeros_like(work.hbm)
    reading = work.with_operators(peak=endless, link=endless, activations=idle)
    return reading._replace(context_flops=no_flops, window_flops=no_flops)


def _busy_share(mean: float, slots: float) -> float:
    """Return the share of time in which any request decodes, of `mean` on average. Each of the
    slots of a closed loop does or does not whatever the others do; of any number of slots that is
    Poisson's law.
    """
    slots = max(1.0, slots)
    if mean >= slots:
        return 1.0
    return -math.expm1(-mean if math.isinf(slots) else slots * math.log1p(-mean / slots))


def _decode_s(work: Work, batch: float, met: float, context_tokens: float) -> tuple[float, float]:
    """Return the seconds of a decode step: (a rank's own part, what the ranks of its group do
    together), of so many requests of its own, and of its group per rank."""
    requests = np.array([batch])
    step = MeanStep(
        requests,
        np.array([context_tokens]),
        sequences=requests,
        tokens=requests,
        met=np.array([met]),
    )
    own_s, met_s = kernel_seconds(work, LIGHT[None, :], step)
    return float(own_s[0]), float(met_s[0])
