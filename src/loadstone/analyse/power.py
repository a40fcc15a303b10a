"""Predicts the watts and joules of simulated loads, and says how far measured ones are off the
formula (predict/power.py)."""

import math
from typing import NamedTuple

from msgspec.structs import replace

from loadstone.analyse.roofline import limits_of
from loadstone.analyse.run_facts import RunFacts
from loadstone.core.electricity import Electricity
from loadstone.core.machine_figures import GpuFigures, Level, PredictedPower
from loadstone.core.metrics import Bounds
from loadstone.core.record import RunInfo
from loadstone.core.summary import CellSummary
from loadstone.predict.power import LEAST_OWN, board_power, gap_of


class PowerGap(NamedTuple):
    """ln(measured/predicted) of the watts of a load on this kind of GPU."""

    gpu: str
    gap: float


def power_gap(info: RunInfo, facts: RunFacts, cell: CellSummary) -> PowerGap | None:
    """Compare the measured watts of a load with the formula's; None where one is not known."""
    limits, shares, gpus = limits_of(info, facts), cell.roofline, cell.gpu
    if limits is None or shares is None or gpus is None or gpus.power_w is None:
        return None
    watts = gpus.power_w.mean / gpus.gpus
    if shares.mbu is None or shares.mfu is None or watts <= 0:
        return None
    return PowerGap(limits.gpu.name, gap_of(limits.gpu, shares.mbu, shares.mfu, watts))


def add_power(cell: CellSummary, info: RunInfo, facts: RunFacts) -> None:
    """Add to a simulated cell what its boards draw, under the names of what is measured."""
    limits, shares = limits_of(info, facts), cell.roofline
    terms = info.settings.electricity or Electricity()
    if facts.pools:
        unknown = "no row has pools of workers"
    elif limits is None or shares is None or not facts.gpus or info.settings.fleet is not None:
        return
    elif shares.mbu is None or shares.mfu is None:
        unknown = "no row has guessed tokens, prompts alone, or prompts that may be cached"
    else:
        power = board_power(limits.gpu, shares.mbu, shares.mfu, info.settings.own_power)
        if power is not None:
            w, low, high = (facts.gpus * watts for watts in power)
            _add_known(cell, facts.gpus, (w, low, high), terms)
            return
        unknown = unknown_power(limits.gpu.name)
    cell.power = PredictedPower(boundary=terms.boundary, unknown=unknown)


def unknown_power(gpu: str) -> str:
    """Say why nothing is known of a kind of GPU, and what makes it known."""
    return (
        f"no watts of {gpu} were fitted; calibrate on {LEAST_OWN} loads or more with --gpu-metrics"
    )


def _add_known(
    cell: CellSummary, gpus: int, watts: tuple[float, float, float], terms: Electricity
) -> None:
    w, low, high = watts
    metrics, lasting = cell.metrics, cell.lasting()
    cell.gpu = GpuFigures(gpus=gpus, samples=0, throttled={}, power_w=Level(w, w))
    names = {f"j_per_{kind}_token": f"{kind}_tokens_per_s" for kind in ("output", "total")}
    ends: dict[str, Bounds] = {}
    for joules, tokens in names.items():
        if getattr(metrics, tokens):
            setattr(metrics, joules, w / getattr(metrics, tokens))
        if metrics.steady is not None and getattr(metrics.steady, tokens):
            found = {joules: w / getattr(metrics.steady, tokens)}
            metrics.steady = replace(metrics.steady, **found)
        rate, error = getattr(lasting, tokens), metrics.interval.get(tokens)
        if rate:
            off = math.log(error.high / error.low) / 2 if error and error.low > 0 else 0.0
            ends[joules] = [
                w / rate * math.exp(sign * math.hypot(math.log(end / w), off))
                for sign, end in ((-1, low), (1, high))
            ]
    drawn_w = terms.drawn_w(w, gpus)
    cell.power = PredictedPower(
        boundary=terms.boundary,
        boards_w=w,
        power_w=[low, high],
        drawn_w=drawn_w,
        usd_per_mtok=terms.usd_per_mtok(drawn_w, lasting.output_tokens_per_s),
        j_per_output_token=ends.get("j_per_output_token"),
        j_per_total_token=ends.get("j_per_total_token"),
    )
