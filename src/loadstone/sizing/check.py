"""What cannot be: parallelism that does not divide the model, contexts beyond its limit; with what would work."""

from __future__ import annotations

import math
from collections.abc import Iterator

from loadstone.catalogue.deployment import Deployment
from loadstone.catalogue.model import Experts, FullAttention, Layers, LinearAttention
from loadstone.sizing import llama_cpp
from loadstone.sizing.budget import count
from loadstone.sizing.ranks import shape_of


def context_limit(deployment: Deployment) -> int | None:
    """The model's own limit, or the engine's shorter one where it was given; None where neither says."""
    said = count(deployment, "max_model_len", "max_seq_len")
    slot = llama_cpp.slot_tokens(deployment) if deployment.engine == "llama.cpp" else None
    limits = [limit for limit in (deployment.model.max_context_tokens, said, slot) if limit is not None]
    return min(limits) if limits else None


def contradictions(deployment: Deployment, context_tokens: int | None = None) -> list[str]:
    """One line each; empty where the deployment can be."""
    found = list(dict.fromkeys(_shape(deployment)))
    limit = context_limit(deployment)
    if context_tokens is not None and limit is not None and context_tokens > limit:
        found.append(
            f"context {context_tokens:,} is beyond the {limit:,} that {deployment.model.name} was made for; "
            f"ask for at most {limit:,}"
        )
    return found


def _shape(deployment: Deployment) -> Iterator[str]:
    shape, model = shape_of(deployment), deployment.model
    if shape.pp > model.layer_count:
        yield f"pp{shape.pp} is more stages than the {model.layer_count} layers; pp up to {model.layer_count} works"
    for run in model.kinds:
        yield from _attention(run, shape.tp)
        yield from _mlp(run, shape.tp, shape.expert_tp, shape.expert_ep)


def _attention(run: Layers, tp: int) -> Iterator[str]:
    attention = run.attention
    if attention is None:
        return
    if attention.heads % tp:
        yield _no("tp", tp, attention.heads, "attention heads")
    if isinstance(attention, FullAttention) and attention.kv_heads % tp and tp % attention.kv_heads:
        yield (
            f"tp{tp} neither divides the {attention.kv_heads} KV heads nor is a multiple of them; "
            f"{_those('tp', attention.kv_heads)}"
        )
    if isinstance(attention, LinearAttention) and attention.key_heads % tp and tp % attention.key_heads:
        yield _no("tp", tp, attention.key_heads, "groups of the linear attention")


def _mlp(run: Layers, tp: int, expert_tp: int, expert_ep: int) -> Iterator[str]:
    mlp = run.mlp
    if mlp is None:
        return
    if isinstance(mlp, Experts):
        if expert_ep > mlp.experts:
            yield f"ep{expert_ep} is more ranks than the {mlp.experts} experts; ep up to {mlp.experts} works"
        if mlp.intermediate % expert_tp:
            yield _no("tp", expert_tp, mlp.intermediate, "numbers of an expert's width")
        elif _blocked(run) and mlp.intermediate // expert_tp % 128:
            most = math.gcd(mlp.intermediate // 128, expert_tp)
            yield (
                f"tp{expert_tp} cuts an expert's {mlp.intermediate} to {mlp.intermediate // expert_tp}, which the "
                f"checkpoint's blocks of 128 do not divide; experts cut {most} ways work, the rest by ep"
            )
    elif mlp.intermediate % tp:
        yield _no("tp", tp, mlp.intermediate, "numbers of the MLP's width")


def _blocked(run: Layers) -> bool:
    return any(name.startswith("mlp.experts") and shared.group == 128 * 128 for name, shared in run.formats)


def _no(what: str, ways: int, of: int, things: str) -> str:
    return f"{what}{ways} does not divide the {of} {things}; {_those(what, of)}"


def _those(what: str, of: int) -> str:
    ways = [str(n) for n in (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 64) if of % n == 0]
    return f"{what} {', '.join(ways)} would"
