"""Says what of a deployment would not start as it is, before it is: weights and contexts that do
not fit."""

import msgspec

from loadstone.catalogue.deployment.deployment import Worker
from loadstone.engines.launch import Site
from loadstone.engines.rules import EngineRules
from loadstone.engines.sharding.limits import GIB
from loadstone.engines.sharding.rank import Rank

_SURE = 0.9
"""Sizing is not exact: so much of what should fit is asked for."""
_WHOLE_TOKENS = 1024


def advise(rules: EngineRules, stages: tuple[Rank, ...]) -> tuple[Worker, list[str]]:
    """Return the deployment with a shorter context where the engine would not start with the
    model's own, and a line for each thing that is changed, or that will not do. `stages`: a rank of
    each."""
    worker = rules.worker
    limits = rules.limits()
    budgets = [rules.budget(rank, limits) for rank in stages]
    tightest = min(budgets, key=lambda budget: budget.kv_bytes)
    if tightest.kv_bytes <= 0:
        have, weights = tightest.total_bytes - tightest.outside_bytes, tightest.weights_bytes
        return worker, [
            f"{_gib(weights)} GiB of weights on each {worker.gpu.name} and what runs them do"
            f" not fit the {_gib(have)} GiB that the engine may use; `loadstone size` tells what"
            " would"
        ]
    given, limit = worker.count("max_model_len", "max_seq_len"), rules.model_context
    if given is not None and limit is not None and given > limit and rules.refuses_longer:
        remedy = rules.longer_context(given)
        return worker, [
            f"a context of {given:,} is beyond the {limit:,} of {worker.model.name}: {remedy}"
        ]
    wanted = given or rules.context_limit
    caches = [rules.cache(rank, limits) for rank in stages]
    blocks = [
        cache.blocks(budget.kv_bytes)
        for cache, budget in zip(caches, budgets, strict=True)
        if cache.block_bytes
    ]
    if not rules.needs_context or wanted is None or not blocks:
        return worker, []
    fits = min(cache.max_context(min(blocks), wanted, 1) for cache in caches if cache.block_bytes)
    if fits >= wanted:
        return worker, []
    if given is not None:
        return worker, [
            f"a request of {given:,} tokens does not fit the cache, which holds one of {fits:,}"
        ]
    shorter = max(1, int(fits * _SURE) // _WHOLE_TOKENS * _WHOLE_TOKENS or int(fits * _SURE))
    arguments = tuple(sorted((*worker.arguments, ("max_model_len", str(shorter)))))
    note = (
        f"max_model_len={shorter}: the cache holds no request of {wanted:,} tokens, which the model"
        " allows"
    )
    return msgspec.structs.replace(worker, arguments=arguments), [note]


def describe_loading(rules: EngineRules, site: Site, first: tuple[Rank, ...]) -> list[str]:
    """Say whether weights fit that are loaded before they are quantised; `first`: ranks with
    these."""
    worker = rules.worker
    weights, total = max(rank.weights_bytes for rank in first), worker.gpu.usable_bytes
    stored = rules.weights(site).first
    text = (
        f"{worker.engine} loads {_gib(weights)} GiB of {stored} weights on each GPU before it"
        " quantises them"
    )
    if weights < total:
        return [f"{text}, which fits"]
    return [
        f"{text}: more than its {_gib(total)} GiB; convert the checkpoint to"
        f" {worker.weights_dtype} first"
    ]


def _gib(value: float) -> str:
    return f"{value / GIB:,.1f}"
