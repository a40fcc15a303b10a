"""Contradictions of a deployment: parallelism that does not divide the model, contexts beyond its
limit; with what would work."""

import math
from collections.abc import Iterator

import msgspec

from loadstone.catalogue.architecture.model import (
    Experts,
    FullAttention,
    Layers,
    LinearAttention,
    Model,
)
from loadstone.catalogue.deployment.deployment import Worker
from loadstone.catalogue.find import published_in
from loadstone.engines import ENGINES, rules_of
from loadstone.engines.refusals import refuse_adapters, refuse_pictures, refuse_tiers
from loadstone.engines.rules import EngineRules
from loadstone.engines.sharding.rank import shape_of

_WAYS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 64)


def contradictions(worker: Worker, context_tokens: int | None = None) -> list[str]:
    """One line each; empty where the deployment can be."""
    rules = rules_of(worker)
    problems = find_misfits(rules)
    limit, length = rules.model_context, worker.count("max_model_len", "max_seq_len")
    if length is not None and limit is not None and length > limit and rules.refuses_longer:
        problems.append(
            f"max_model_len {length:,} is beyond the {limit:,} that {worker.model.name} was"
            f" made for, and {worker.engine} will not start; ask for at most {limit:,}, or"
            f" scale its positions: {rules.longer_context(length)}"
        )
    too_long = beyond_context(rules, context_tokens)
    return problems if too_long is None else [*problems, too_long]


def find_misfits(rules: EngineRules) -> list[str]:
    """Find what of a worker cannot be, whatever the context; a line each."""
    worker = rules.worker
    lines = [
        *_shape(worker),
        *_published(worker),
        _with_others(worker, rules.hardware_refusal()),
        rules.cache_refusal(),
        *_draft(worker),
        rules.draft_refusal(),
        refuse_tiers(rules),
        refuse_adapters(rules),
        refuse_pictures(rules),
    ]
    return list(dict.fromkeys(line for line in lines if line is not None))


def beyond_context(rules: EngineRules, context_tokens: int | None) -> str | None:
    """Why requests cannot be so long, whatever the memory; None where they can."""
    model, limit = rules.worker.model, rules.context_limit
    if context_tokens is None or limit is None or context_tokens <= limit:
        return None
    if limit == rules.model_context:
        return (
            f"context {context_tokens:,} is beyond the {limit:,} that {model.name} was made for;"
            f" ask for at most {limit:,}, or scale its positions (YaRN):"
            f" {rules.longer_context(context_tokens)}"
        )
    return (
        f"context {context_tokens:,} is beyond the {limit:,} that the engine was given; "
        f"ask for at most {limit:,}, or give it more"
    )


def _published(worker: Worker) -> Iterator[str]:
    """List what stands against the checkpoint that is published in the precision of
    `MODEL:weights`."""
    model, dtype = worker.model, worker.weights_dtype
    checkpoint = None if dtype == model.weights_dtype else published_in(model, dtype)
    if checkpoint is not None:
        for line in _shape(msgspec.structs.replace(worker, model=checkpoint)):
            yield f"{model.name} in {dtype} is published as {checkpoint.name}: {line}"


def _with_others(worker: Worker, refusal: str | None) -> str | None:
    """A refusal of the engine with the other engines that would run the model on this GPU, if there
    are any."""
    if refusal is None:
        return None
    engines = [
        engine
        for engine, rules in ENGINES.items()
        if engine != worker.engine
        and worker.weights_dtype not in rules.unreadable_weights
        and rules(msgspec.structs.replace(worker, engine=engine, arguments=())).hardware_refusal()
        is None
    ]
    return (
        f"{refusal}; {' or '.join(f'engine={engine}' for engine in engines)} would run it"
        if engines
        else refusal
    )


def _draft(worker: Worker) -> Iterator[str]:
    """A draft model that cannot be cut as the large one is."""
    if worker.draft is None:
        return
    draft, tp = worker.draft.model, worker.tp
    uncut = _uncut_parts(draft, tp)
    if uncut:
        ways = ", ".join(map(str, _tp_ways(draft)))
        yield (
            f"tp{tp} does not divide the {', the '.join(uncut)} of the draft {draft.name}; tp"
            f" {ways} would"
        )


def _shape(worker: Worker) -> Iterator[str]:
    shape, model = shape_of(worker), worker.model
    if shape.pp > model.layer_count:
        yield (
            f"pp{shape.pp} is more stages than the {model.layer_count} layers; pp up to"
            f" {model.layer_count} works"
        )
    uncut = _uncut_parts(model, shape.tp)
    if uncut:
        ways = _tp_ways(model)
        widest = max((n for n in ways if worker.gpus % n == 0), default=1)
        rest = worker.gpus // widest
        would = (
            f"would: of {worker.gpus} GPUs tp{widest} with dp{rest} or pp{rest}"
            if rest > 1
            else "would"
        )
        things = ", the ".join(uncut[:-1]) + (" and the " if uncut[1:] else "") + uncut[-1]
        yield f"tp{shape.tp} does not divide the {things}; tp {', '.join(map(str, ways))} {would}"
    for run in model.kinds:
        yield from _mlp(run, shape.expert_tp, shape.expert_ep)


def _uncut_parts(model: Model, tp: int) -> list[str]:
    return list(dict.fromkeys(part for run in model.kinds for part in _uncut(run, tp)))


def _tp_ways(model: Model) -> list[int]:
    """The tensor parallelism that divides all of it."""
    return [tp for tp in _WAYS if not _uncut_parts(model, tp)]


def _uncut(run: Layers, tp: int) -> Iterator[str]:
    """List what `tp` ranks cannot share evenly. KV heads and groups may also be copied, each to as
    many ranks."""
    attention, mlp = run.attention, run.mlp
    if attention is not None and attention.heads % tp:
        yield f"{attention.heads} attention heads"
    if isinstance(attention, FullAttention) and attention.kv_heads % tp and tp % attention.kv_heads:
        yield f"{attention.kv_heads} KV heads"
    for state in run.states:
        if isinstance(state, LinearAttention) and state.heads % tp:
            yield f"{state.heads} heads of the linear attention"
        if state.key_heads % tp and tp % state.key_heads:
            yield f"{state.key_heads} groups of the linear attention"
    if mlp is not None and not isinstance(mlp, Experts) and mlp.intermediate % tp:
        yield f"{mlp.intermediate} numbers of the MLP's width"


def _mlp(run: Layers, expert_tp: int, expert_ep: int) -> Iterator[str]:
    mlp = run.mlp
    if not isinstance(mlp, Experts):
        return
    if expert_ep > mlp.experts:
        yield (
            f"ep{expert_ep} is more ranks than the {mlp.experts} experts; ep up to {mlp.experts}"
            " works"
        )
    if mlp.intermediate % expert_tp:
        ways = ", ".join(str(n) for n in _WAYS if mlp.intermediate % n == 0)
        yield (
            f"experts cut {expert_tp} ways: that does not divide the {mlp.intermediate} numbers of"
            f" an expert's width; {ways} ways would, the rest by ep"
        )
    elif _blocked(run) and mlp.intermediate // expert_tp % 128:
        widest = math.gcd(mlp.intermediate // 128, expert_tp)
        ep = expert_ep * expert_tp // widest
        yield (
            f"tp{expert_tp} cuts an expert's {mlp.intermediate} to {mlp.intermediate // expert_tp},"
            f" which the checkpoint's blocks of 128 do not divide; experts cut {widest} ways work,"
            f" the rest by ep (ep{ep})"
        )


def _blocked(run: Layers) -> bool:
    return any(
        name.startswith("mlp.experts") and shared.group == 128 * 128 for name, shared in run.formats
    )
