"""The deployments that could carry the traffic, by engines, GPUs, layouts, precisions and limits;
and what each carries within the bounds, by closed form."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

import msgspec

from loadstone.analyse.compare.price import Prices, key
from loadstone.catalogue import parse_deployment
from loadstone.catalogue.architecture.model import Experts
from loadstone.catalogue.deployment.deployment import Deployment, Worker
from loadstone.core.errors import InputError
from loadstone.engines import rules_of
from loadstone.predict.scheduler import EnginePolicy, policy_of
from loadstone.predict.simulator.fleet import Fleet
from loadstone.predict.sizing.check import contradictions
from loadstone.predict.sizing.memory import Memory, memory_of
from loadstone.predict.sizing.size import size
from loadstone.predict.steady_state import Lengths, SteadyState, steady_state, steady_states
from loadstone.predict.step_time import StepModel
from loadstone.predict.step_time.profile import profile_of
from loadstone.predict.step_time.work import work_of
from loadstone.recommend.options import HOURS_PER_MONTH, RecommendOptions
from loadstone.recommend.precisions import list_precisions
from loadstone.recommend.traffic import QuantileBound, Traffic, TrafficLevel

_STEPS = (None, 2048, 16384)
_SLOTS = (None, 64, 256)
_DRAFTS = (None, 1, 3)
Models = dict[tuple[object, ...], StepModel]
_HOPELESS = 4.0
"""Layouts so many times as dear as the cheapest are looked at under their engine's own limits
alone."""
_NO_ROOM = "does not fit"
_MOST_TP = 16
_MOST_STAGES = 4


class Candidate(NamedTuple):
    """One deployment, and what one replica of it carries: by closed form, before anything is
    simulated.

    load         requests/s, or requests under way, that it carries within all bounds
    replicas     that carry the traffic; 0: none within the GPUs that there are
    cost         dollars per hour of all of them, or GPUs where no price is known
    level        at that load
    fleet        of a deployment with pools, one replica of both
    """

    deployment: Deployment
    policy: EnginePolicy
    model: StepModel
    load: float
    replicas: int
    cost: float
    level: SteadyState
    fleet: Fleet | None = None

    @property
    def worker(self) -> Worker:
        """Return the worker that decodes."""
        return self.deployment.decoder

    @property
    def gpus(self) -> int:
        return self.replicas * self.deployment.gpus

    @property
    def group(self) -> tuple[str, str]:
        """Name the deployments whose errors have much in common."""
        return self.deployment.engine, self.deployment.gpu.name


class Refused(NamedTuple):
    """A deployment that cannot carry the traffic, and why.

    alike        it and all others that cannot for the same reason
    gpus_needed  that would carry it, where the reason is that there are fewer; else 0
    missed_s     the latency that misses its bound with one request at a time, where that is the
                 reason; else 0
    """

    deployment: str
    why: str
    alike: int = 1
    gpus_needed: int = 0
    missed_s: float = 0.0


class Search(NamedTuple):
    candidates: list[Candidate]
    refused: list[Refused]
    looked_at: int


def search(options: RecommendOptions, traffic: Traffic, prices: Prices) -> Search:
    """Rank every deployment of the options, the cheapest first. Raises InputError: names that mean
    nothing."""
    candidates: list[Candidate] = []
    refusals: dict[tuple[object, ...], Refused] = {}
    models: Models = {}
    memories: dict[tuple[object, ...], Memory | str] = {}
    looked_at, least = 0, math.inf

    def refuse(deployment: Deployment, refused: Refused) -> None:
        kind = (
            deployment.gpu.name,
            deployment.gpus,
            deployment.engine,
            deployment.weights_dtype,
            refused.why,
        )
        before = refusals.get(kind)
        refusals[kind] = refused if before is None else before._replace(alike=before.alike + 1)

    for base in list_machines(options):
        shape = shape_of(base)
        if shape not in memories:
            wrong = contradictions(base)
            memories[shape] = (
                wrong[0] if wrong else _refuse_length(base, traffic) or memory_of(base)
            )
        memory = memories[shape]
        if isinstance(memory, str) or not memory.has_room:
            refuse(base, Refused(base.name, memory if isinstance(memory, str) else _NO_ROOM))
            looked_at += 1
            continue
        for number, deployment in enumerate(vary_limits(base)):
            looked_at += 1
            try:
                candidate = make_candidate(deployment, options, traffic, prices, models)
            except InputError as reason:
                refuse(deployment, Refused(deployment.name, str(reason)))
                continue
            if candidate.replicas:
                candidates.append(candidate)
            else:
                refuse(deployment, _refuse(candidate, traffic))
            if candidate.load > 0:
                unit = deployment.gpus * price_gpu(deployment, prices) / candidate.load
                least = min(least, unit)
                if number == 0 and unit > _HOPELESS * least:
                    break
    candidates.sort(key=lambda each: (each.cost, -each.load * each.replicas))
    return Search(candidates, [_explain_no_room(each) for each in refusals.values()], looked_at)


def _refuse_length(base: Deployment, traffic: Traffic) -> str | None:
    """Return why a request is longer than the engine takes, by its own limits; None where it is
    not."""
    context = rules_of(base).context_limit
    if context is None or (longest := traffic.longest_tokens) <= context:
        return None
    what = (
        f"a request of {longest:,} tokens, in and out together, is beyond the model's context of"
        f" {context:,}"
    )
    return f"{what}; ask for less"


def _explain_no_room(refused: Refused) -> Refused:
    if refused.why != _NO_ROOM:
        return refused
    return refused._replace(why=size(parse_deployment(refused.deployment)).why or refused.why)


def _refuse(candidate: Candidate, traffic: Traffic) -> Refused:
    name = candidate.deployment.name
    if candidate.load > 0:
        needed = math.ceil(traffic.demand / candidate.load) * candidate.deployment.gpus
        return Refused(name, f"takes {needed:,} GPUs to carry it", gpus_needed=needed)

    def latency_s(bound: QuantileBound) -> float:
        return traffic.latency_s(candidate.level, bound.metric, bound.quantile)

    worst = max(traffic.bounds, key=lambda bound: latency_s(bound) / bound.bound_s)
    value_s = latency_s(worst)
    why = (
        f"misses {worst.name}: {_ms(value_s)} with one request at a time, beyond"
        f" {_ms(worst.bound_s)}"
    )
    return Refused(name, why, missed_s=value_s)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def list_machines(options: RecommendOptions) -> Iterator[Deployment]:
    """List deployments that differ in all but their engines' limits. Raises InputError: unknown
    names."""
    arguments = ",".join(options.arguments)
    for gpu, engine in product(options.gpus, options.engine):
        first = parse_deployment(f"{options.model}@1x{gpu}/tp1,engine={engine}")
        if arguments:
            try:
                first = parse_deployment(f"{options.model}@1x{gpu}/tp1,engine={engine},{arguments}")
            except InputError:
                if len(options.engine) == 1:
                    raise
                continue  # of several engines, those have an argument that know it
        mixture = any(isinstance(run.mlp, Experts) for run in first.model.kinds)
        precisions = list_precisions(first, options)
        for gpus in _powers_of_two(options.gpus_max):
            nodes = -(-gpus // first.gpu.per_node)
            for tp, pp, dp, ep in _layouts(
                gpus, min(gpus, first.gpu.per_node), mixture, options.tp
            ):
                for weights, kv in precisions:
                    yield msgspec.structs.replace(
                        first,
                        gpus=gpus,
                        nodes=nodes,
                        tp=tp,
                        pp=pp,
                        dp=dp,
                        ep=ep,
                        attention_dp=dp > 1,
                        weights_dtype=weights,
                        kv_dtype=kv,
                    )


def _powers_of_two(most: int) -> list[int]:
    return [2**exponent for exponent in range(most.bit_length()) if 2**exponent <= most]


def _layouts(
    gpus: int, per_node: int, mixture: bool, tps: Sequence[int]
) -> Iterator[tuple[int, int, int, int]]:
    """List (tp, pp, dp, ep) of one replica. Replicas that share nothing are replicas of the plan;
    only ranks that share experts are counted as dp here."""
    for tp in _powers_of_two(min(gpus, _MOST_TP)):
        rest = gpus // tp
        if tps and tp not in tps:
            continue
        if rest == 1:
            yield from ((tp, 1, 1, ep) for ep in ((1, tp) if mixture and tp > 1 else (1,)))
        elif rest <= _MOST_STAGES and tp <= per_node:
            yield tp, rest, 1, 1
        if mixture and rest > 1 and tp <= 4:
            yield from ((tp, 1, rest, ep) for ep in (1, gpus))


def vary_limits(base: Deployment) -> Iterator[Deployment]:
    """List a deployment under its engine's own limits, and others; with drafts where the checkpoint
    has layers."""
    given = {name for name, _ in base.arguments}
    rules = rules_of(base)
    for tokens, seqs, drafts in product(
        _STEPS, _SLOTS, _DRAFTS if base.model.draft_layers else (None,)
    ):
        more = [
            (rules.step_argument, tokens),
            (rules.seqs_argument, seqs),
            ("num_speculative_tokens", drafts),
        ]
        chosen = [(name, str(value)) for name, value in more if value is not None and name]
        if any(name in given for name, _ in chosen):
            continue
        yield (
            msgspec.structs.replace(base, arguments=(*base.arguments, *chosen)) if chosen else base
        )


def context_of(options: RecommendOptions) -> int | None:
    """Return where sessions of a file end, the longest request that the model takes; None: nowhere,
    or not known."""
    machines = list_machines(options) if options.agents is not None else ()
    return next((rules_of(each).context_limit for each in machines), None)


def shape_of(base: Deployment) -> tuple[object, ...]:
    """Return what a deployment is without the arguments of its engine."""
    if base.is_split:
        return (base.name,)
    return (
        base.gpu.name,
        base.engine,
        base.gpus,
        base.tp,
        base.pp,
        base.dp,
        base.ep,
        base.weights_dtype,
        base.kv_dtype,
    )


def make_candidate(
    deployment: Deployment,
    options: RecommendOptions,
    traffic: Traffic,
    prices: Prices,
    models: Models,
) -> Candidate:
    """Compute what a deployment carries. `models`: those made so far, by shape. Raises InputError
    where the model does not fit."""
    policy = policy_of(deployment, acceptance=options.acceptance)
    drafts = policy.speculative.draft_tokens if policy.speculative is not None else 0
    shape = (*shape_of(deployment), drafts, rules_of(deployment).graph_tokens)
    if shape not in models:
        models[shape] = StepModel(
            deployment, profile_of(deployment), draft_tokens=drafts, work=work_of(deployment)
        )
    model = models[shape]
    load, level = closed_form_capacity(model, policy, deployment, traffic)
    replicas = math.ceil(traffic.demand / load * (1 - 1e-9)) if load > 0 else 0
    if replicas * deployment.gpus > options.gpus_max:
        replicas = 0
    cost = replicas * deployment.gpus * price_gpu(deployment, prices)
    return Candidate(deployment, policy, model, load, replicas, cost, level)


def most_replicas(candidate: Candidate, options: RecommendOptions) -> int:
    """Count the replicas that --gpus-max and --budget give."""
    most = options.gpus_max // candidate.deployment.gpus
    if options.budget is None or not options.price:
        return most
    return min(most, int(options.budget / HOURS_PER_MONTH * candidate.replicas / candidate.cost))


def predict_rate(candidate: Candidate, options: RecommendOptions, traffic: Traffic) -> float:
    """Return by closed form the requests/s of a closed loop on as many replicas as there can be."""
    deployment, replicas = candidate.deployment, most_replicas(candidate, options)
    share = min(1.0, traffic.demand / max(1, replicas) / candidate.load)
    if candidate.fleet is not None:
        return share * replicas * candidate.fleet.replicas * candidate.level.rate_per_s
    decoding = max(min(1.0, candidate.level.decoding), candidate.level.decoding * share)
    schedulers = schedulers_in_step(deployment)
    level = steady_state(candidate.model, candidate.policy, schedulers, decoding, traffic.lengths)
    return replicas * deployment.dp * level.rate_per_s


def price_gpu(deployment: Deployment, prices: Prices) -> float:
    """Return dollars per hour of one GPU; 1 where no prices are given."""
    return prices.get(key(deployment.gpu.name), math.nan) if prices else 1.0


def schedulers_in_step(deployment: Deployment) -> int:
    """Count the schedulers of one replica that share their steps."""
    return deployment.dp if deployment.attention_dp else 1


def closed_form_capacity(
    model: StepModel, policy: EnginePolicy, deployment: Deployment, traffic: Traffic
) -> tuple[float, SteadyState]:
    """Return what one replica carries, requests/s or requests under way, and the state of one
    scheduler then; of a trace in the window that it carries worst. 0 where not even one request at
    a time meets the bounds.
    """
    found, schedulers = [], schedulers_in_step(deployment)

    def carry(lengths: Lengths, *, seldom: bool = False) -> tuple[float, SteadyState]:
        levels = steady_states(model, policy, schedulers, lengths, seldom=seldom)
        return _carried_load(levels, deployment.dp, traffic)

    for times, lengths in traffic.levels or (TrafficLevel(1.0, traffic.lengths),):
        here = lengths if policy.prefix_cache else lengths._replace(cached=0.0)
        load, level = carry(here)
        if load <= 0:  # with short answers, one that decodes at all times keeps prompts coming
            load, level = carry(here, seldom=True)
        warm = _most_warm(policy, deployment, traffic, level)
        if (
            load > warm
        ):  # so many find what they had; more than that carries it only where nothing is found
            cold, cold_level = carry(here._replace(cached=0.0))
            fewer = level._replace(decoding=max(1.0, level.decoding * warm / load))
            load, level = (cold, cold_level) if cold > warm else (warm, fewer)
        found.append((load / times, level))
    return min(found, key=lambda each: each[0])


def _most_warm(
    policy: EnginePolicy, deployment: Deployment, traffic: Traffic, level: SteadyState
) -> float:
    """Return the load whose sessions all keep their blocks, in the KV cache or in the tiers
    below."""
    if traffic.sessions is None:
        return math.inf
    room, tiers = policy.kv_tokens, policy.tiers
    if tiers is not None:
        below = tiers.host_tokens + tiers.disk_tokens
        room = room + below if tiers.write == "evicted" else max(room, below)
    warm = max(1.0, deployment.dp * room / (traffic.input_tokens + traffic.output_tokens))
    return warm / float(traffic.sessions.tasks_s(level).mean()) if traffic.is_open else warm


def _carried_load(
    levels: Iterator[SteadyState], dp: int, traffic: Traffic
) -> tuple[float, SteadyState]:
    best: tuple[float, SteadyState] | None = None
    for level in levels:
        load = dp * traffic.load_at(level)
        slack = _slack(level, traffic)
        if slack < 0:
            if best is None:
                return 0.0, level
            before, good = best
            reserve = _slack(good, traffic)
            share = reserve / (reserve - slack) if math.isfinite(slack) else 0.5
            return before * (load / before) ** share if before < load < math.inf else before, good
        if best is None or load > best[0]:
            best = load, level
    return best or (0.0, level)


def _slack(level: SteadyState, traffic: Traffic) -> float:
    """Return ln(bound / value) of the tightest bound."""
    if level.busy >= 1:
        return -math.inf
    latencies = [traffic.latency_s(level, each.metric, each.quantile) for each in traffic.bounds]
    return min(
        math.log(bound.bound_s / value) if math.isfinite(value) else -math.inf
        for bound, value in zip(traffic.bounds, latencies, strict=True)
    )
