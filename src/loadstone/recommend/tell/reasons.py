"""Why a plan is as it is: what binds, what would help, why its probability is what it is."""

import math
from functools import cache
from importlib.resources import files

import msgspec

from loadstone.analyse.verdict.run import LIMITS
from loadstone.catalogue.deployment.deployment import Deployment, Worker
from loadstone.catalogue.engines import engine_title
from loadstone.core.errors import InputError
from loadstone.core.statistics.distribution import Z80
from loadstone.core.units import show_gpus, show_share
from loadstone.predict.simulator.uncertainty import UNEXPLAINED
from loadstone.predict.sizing.check import contradictions
from loadstone.predict.steady_state import full_step
from loadstone.predict.step_time.step import parts_of
from loadstone.recommend.demand.planning import Planning
from loadstone.recommend.judge.asked_load import AskedLoad, quantity_of
from loadstone.recommend.judge.confirm import ConfirmedPlan
from loadstone.recommend.judge.errors import UncertainFinalist
from loadstone.recommend.search.candidates import Candidate, Search, make_candidate
from loadstone.recommend.search.precisions import further_precisions

_WORTH = 1.03
_ALMOST = 0.9
"""Share that is almost all."""
_SPENT = {"weights read": "reading weights", "experts read": "reading experts"}
"""What a step does in parts whose names do not say it."""
_LAYOUT = ("tp", "pp", "dp", "ep")


class HeldShare(msgspec.Struct, frozen=True):
    """How often bounds held that were stated to hold with a probability from `stated` on, up to the
    next (benchmarks/planner_choice.py)."""

    stated: float
    words: str
    held: float


@cache
def held_shares() -> list[HeldShare]:
    """Read what the benchmark wrote, the surest first."""
    table = files(__package__).joinpath("held.json").read_bytes()
    return msgspec.json.decode(table, type=list[HeldShare])


def explain_probability(figures: AskedLoad) -> str:
    """Say which bound breaks most often, by which error, and how often such a statement held."""
    name, missed = figures.weakest
    cause, share = figures.cause
    quantity = quantity_of(name)
    off = math.expm1(Z80 * math.sqrt(float(figures.error.covariance[quantity, quantity])))
    held = ""
    for row in held_shares():
        if figures.p_slo >= row.stated:
            held = f". Past plans rated {row.words} held {row.held:.0%} of the time"
            break
    remedy = f"{share:.0%} of this uncertainty is {cause}"
    if cause == UNEXPLAINED:
        amount = "Almost all" if share > _ALMOST else f"{share:.0%}"
        remedy = f"{amount} of this uncertainty goes away once you measure your model on this GPU"
    return (
        f"{show_share(round(figures.p_slo, 3))} sure, because the prediction of {name} may be off"
        f" by {off:.0%}, which breaks its bound in {missed:.0%} of cases. {remedy}{held}"
    )


def describe_check(confirmed: ConfirmedPlan, planning: Planning) -> str | None:
    """Say how much of a trace was simulated; None where the traffic has no times of its own."""
    traffic, figures = planning.traffic, confirmed.figures
    if not traffic.has_times:
        return None
    replicas = confirmed.choice.replicas
    size = figures.side_by_side
    traced = "trace" if traffic.plan.cells[0].process == "trace" else "drawn traffic"
    if traffic.hours is not None:
        traced = "busiest window"
    extent = f"the windows of the {traced} that ask for most"
    if figures.whole or confirmed.on_whole:
        extent = f"the whole {traced}"
    count = confirmed.on_whole or figures.requests
    share = "" if size == replicas else f", the share of {size} of {replicas} replicas"
    verdict = "hold" if figures.met else "break"
    return (
        f"simulated on {extent} ({count:,} requests{share}): the bounds {verdict} by the best"
        " prediction"
    )


def name_tightest(finalist: UncertainFinalist, figures: AskedLoad, planning: Planning) -> str:
    """Name the bound that breaks first as the load grows, and what its time mostly is; another may
    break more often at the asked load, over the errors."""
    candidate, traffic = finalist.candidate, planning.traffic
    broken = finalist.curve.first_broken(traffic.bounds)
    name = "throughput"
    if broken.keeps_up:
        tightest = max(traffic.bounds, key=lambda bound: broken.figures[bound.name] / bound.bound_s)
        name = tightest.name
    batch, chunks = candidate.decoding_batch, list[tuple[int, int]]()
    context = batch * (traffic.input_tokens + traffic.output_tokens / 2)
    at_once = "1 request" if batch == 1 else f"{batch} requests at once"
    if traffic.texts:
        batch, context, chunks = 0, 0.0, full_step(candidate.policy, traffic.lengths)
        at_once = f"{len(chunks)} text{'s' * (len(chunks) > 1)} a step"
    parts = parts_of(candidate.model, lambda model: model.step_s(batch, context, chunks))
    whole_s = sum(part.seconds for part in parts)
    mostly = " and ".join(
        f"{part.seconds / whole_s:.0%} on {_SPENT.get(part.name, part.name)}" for part in parts[:2]
    )
    full = f"; {LIMITS[broken.limit]}" if broken.limit else ""
    first = f"{name} breaks first"
    if name != figures.weakest[0]:
        first += " as the load grows if the prediction is right, though over its errors"
        first += f" {figures.weakest[0]} breaks more often at the asked load"
    return f"{first}{full}. At its limit ({at_once}) a step spends {mostly}"


def name_best_change(candidate: Candidate, found: Search) -> str:
    """Name the one change on the same GPUs that would carry most more of the traffic per GPU, by
    closed form."""
    deployment = candidate.deployment
    best, change = _WORTH, "No single setting improves this"
    for rival in found.candidates:
        if not _differs_once(deployment, rival.deployment):
            continue
        gain = (rival.load / rival.deployment.gpus) / (candidate.load / deployment.gpus)
        if gain > best:
            best = gain
            name = _name_change(candidate.worker, rival.worker)
            change = f"{name} would carry {gain - 1:.0%} more per GPU"
    return change


def describe_further(candidate: Candidate, replicas: int, planning: Planning) -> str | None:
    """Say what one step narrower, which nobody publishes, would save by closed form; None:
    nothing."""
    if planning.search.quality == "any" or candidate.deployment.is_split:
        return None
    worker = candidate.worker
    best, change = _WORTH, ""
    for weights, kv in further_precisions(worker):
        narrower = msgspec.structs.replace(worker, weights_dtype=weights, kv_dtype=kv)
        if contradictions(narrower):
            continue
        try:
            gain = make_candidate(narrower, planning).load / candidate.load
        except InputError:
            continue
        if gain > best:
            best = gain
            change = f"kv={kv}" if kv != worker.kv_dtype else f"weights in {weights}"
    if not change:
        return None
    fewer = math.ceil(replicas / best - 1e-9)
    saves = "no GPU fewer"
    if fewer < replicas:
        saves = f"{show_gpus(fewer * worker.gpus)} for {replicas * worker.gpus}"
    return (
        f"one step further (--quality any), {change}, would carry {best - 1:.0%} more per GPU by"
        f" closed form: {saves}"
    )


def _differs_once(deployment: Deployment, rival: Deployment) -> bool:
    """Tell whether two deployments on one kind of GPU differ in one thing; a layout is one."""
    if rival.is_split or deployment.is_split:
        return False
    worker, changed_worker = deployment.worker, rival.worker
    if changed_worker.gpu.name != worker.gpu.name:
        return False
    changed = {
        "layout" if axis in ("gpus", *_LAYOUT) else axis
        for axis in ("gpus", *_LAYOUT, "engine", "weights_dtype", "kv_dtype", "arguments")
        if getattr(changed_worker, axis) != getattr(worker, axis)
    }
    return len(changed) == 1


def _name_change(worker: Worker, rival: Worker) -> str:
    if worker.engine != rival.engine:
        return engine_title(rival.engine)
    if worker.weights_dtype != rival.weights_dtype:
        return f"weights in {rival.weights_dtype}"
    if worker.kv_dtype != rival.kv_dtype:
        return f"kv={rival.kv_dtype}"
    if worker.arguments != rival.arguments:
        added = [
            f"{name}={value}"
            for name, value in rival.arguments
            if (name, value) not in worker.arguments
        ]
        return ", ".join(added) or "the engine's own limits"
    gpus = "one GPU" if rival.gpus == 1 else f"{rival.gpus} GPUs"
    layout = [f"{axis}{getattr(rival, axis)}" for axis in _LAYOUT if getattr(rival, axis) > 1]
    return f"{gpus} a replica with {', '.join(layout) or 'tp1'}"
