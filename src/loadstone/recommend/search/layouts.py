"""The deployments to look at: engines, GPUs, layouts and precisions, under several limits."""

from collections.abc import Iterator, Sequence
from itertools import product

import msgspec

from loadstone.catalogue.architecture.model import Experts
from loadstone.catalogue.deployment.deployment import Worker
from loadstone.engines import rules_of
from loadstone.recommend.demand.planning import Planning, named_workers
from loadstone.recommend.search.precisions import list_precisions
from loadstone.workload.class_requests import ClassRequest

_STEPS = (None, 2048, 16384)
_SLOTS = (None, 64, 256)
_DRAFTS = (None, 1, 3)
_MAX_TP = 16


def list_machines(planning: Planning) -> Iterator[Worker]:
    """List workers that differ in all but their engines' limits. Raises InputError: unknown
    names."""
    options, stages = planning.options, planning.effort.stages
    for named in named_workers(options):
        first = _give_slots(named, planning.classes)
        mixture = any(isinstance(run.mlp, Experts) for run in first.model.kinds)
        precisions = list_precisions(first, options)
        for gpus in _powers_of_two(options.search.gpus_max):
            per_node = min(gpus, first.gpu.per_node)
            for tp, pp, dp, ep in _layouts(gpus, per_node, stages, mixture=mixture):
                if options.search.tp and tp not in options.search.tp:
                    continue
                for weights, kv in precisions:
                    yield msgspec.structs.replace(
                        first,
                        gpus=gpus,
                        nodes=-(-gpus // first.gpu.per_node),
                        tp=tp,
                        pp=pp,
                        dp=dp,
                        ep=ep,
                        attention_dp=dp > 1,
                        weights_dtype=weights,
                        kv_dtype=kv,
                    )


def _give_slots(worker: Worker, classes: Sequence[ClassRequest]) -> Worker:
    """Return a worker with a slot for each adapter that classes ask for, where it has any and was
    not told how many; some engines need one for requests without an adapter too."""
    slots = rules_of(worker).adapter_slots
    if slots is None or not classes or worker.argument("max_loras") is not None:
        return worker
    names = {name for request in classes for name in request.traffic.adapter_names or ("",)}
    count = len(names) - ("" in names and not slots.needs_base)
    return msgspec.structs.replace(worker, arguments=(*worker.arguments, ("max_loras", str(count))))


def _powers_of_two(limit: int) -> Sequence[int]:
    return [2**exponent for exponent in range(limit.bit_length())]


def _layouts(
    gpus: int, per_node: int, stages: int, *, mixture: bool
) -> Iterator[tuple[int, int, int, int]]:
    """List (tp, pp, dp, ep) of one replica. Replicas that share nothing are replicas of the plan;
    only ranks that share experts are counted as dp here."""
    for tp in _powers_of_two(min(gpus, _MAX_TP)):
        groups = gpus // tp
        if groups == 1:
            yield tp, 1, 1, 1
            if mixture and tp > 1:
                yield tp, 1, 1, tp
        elif groups <= stages and tp <= per_node:
            yield tp, groups, 1, 1
        if mixture and groups > 1 and tp <= 4:
            yield tp, 1, groups, 1
            yield tp, 1, groups, gpus


def vary_limits(base: Worker) -> Iterator[Worker]:
    """List a worker under its engine's own limits, and others; with drafts where the checkpoint
    has layers."""
    given = {name for name, _ in base.arguments}
    rules = rules_of(base)
    names = (rules.step_argument, rules.seqs_argument, "num_speculative_tokens")
    drafts = _DRAFTS if base.model.draft_layers else (None,)
    for limits in product(_STEPS, _SLOTS, drafts):
        added = [
            (name, str(limit))
            for name, limit in zip(names, limits, strict=True)
            if name and limit is not None
        ]
        if given.isdisjoint(name for name, _ in added):
            yield msgspec.structs.replace(base, arguments=(*base.arguments, *added))


def shape_of(base: Worker) -> tuple[object, ...]:
    """Return what a worker is without the arguments of its engine."""
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


def schedulers_in_step(worker: Worker) -> int:
    """Count the schedulers of one replica that share their steps."""
    return worker.dp if worker.attention_dp else 1
