"""Which shapes are worth measuring: those of catalogued models' layers, as engines run them."""

from __future__ import annotations

from typing import NamedTuple

from loadstone import catalogue
from loadstone.catalogue.architecture.model import DenseMlp, Experts, FullAttention, Model
from loadstone.core.errors import InputError

TOKENS = (1, 8, 64, 256, 1024, 8192)
TOKENS_BETWEEN = (2, 4, 16, 32, 128, 512, 2048, 4096)
DECODE = ((1, 1024), (8, 1024), (32, 1024), (128, 1024), (32, 4096), (256, 1024), (8, 16384), (1, 65536))
DECODE_BETWEEN = ((64, 512), (64, 2048), (16, 4096), (1, 8192), (64, 8192), (4, 32768), (2, 131072))
"""(sequences, context tokens of each)"""
PREFILL = ((1024, 0), (2048, 0), (8192, 0), (2048, 8192), (512, 4096))
PREFILL_BETWEEN = ((256, 0), (512, 0), (4096, 0), (16384, 0), (2048, 30720), (512, 32768))
"""(new tokens, cached tokens)"""
MODELS = (
    ("llama-3.1-8b", 1), ("qwen3-32b", 1), ("llama-3.1-70b", 1), ("llama-3.1-70b", 8), ("llama-3.1-70b", 4),
    ("mistral-nemo", 1), ("deepseek-v3", 8),
)  # fmt: skip
"""(model, tensor-parallel ranks), in the order of what matters most."""
MODELS_OF_EXPERTS = ("mixtral-8x7b", "qwen3-30b-a3b", "gpt-oss-20b")


class Product(NamedTuple):
    """y = x·Wᵀ of one rank: x has `inputs` columns, W `outputs` rows."""

    name: str
    inputs: int
    outputs: int


class Heads(NamedTuple):
    """Attention of one rank."""

    heads: int
    kv_heads: int
    head_dim: int


class ExpertShape(NamedTuple):
    """The experts of one layer: W₁ joins gate and up."""

    experts: int
    per_token: int
    hidden: int
    intermediate: int


def products(model: Model, tp: int) -> list[Product]:
    """The products of a model's layers and its head on one of `tp` ranks, those with one input joined as engines do.

    A width of no whole multiple of 16 is left out: engines pad it, each in its own way.
    """
    joined: dict[tuple[str, int, int], int] = {}
    for run in model.kinds:
        kv_heads = run.attention.kv_heads if isinstance(run.attention, FullAttention) else 1
        for matrix in run.weights(model.hidden):
            if matrix.inputs == 1 or matrix.kind in ("experts", "router", "norm"):
                continue
            row = matrix.split == "row"
            ranks = {"column": tp, "row": tp, "vocab": tp, "kv": min(tp, kv_heads)}.get(matrix.split, 1)
            inputs = matrix.inputs // ranks if row else matrix.inputs
            outputs = matrix.outputs if row else matrix.outputs // ranks
            stem = matrix.name if row else matrix.name.rpartition(".")[0]
            key = (stem, inputs, id(run))
            joined[key] = joined.get(key, 0) + outputs
    every = [Product(stem, inputs, outputs) for (stem, inputs, _), outputs in joined.items()]
    every.append(Product("lm_head", model.hidden, model.vocab // tp))
    unique: dict[tuple[int, int], Product] = {}
    for each in every:
        if each.inputs % 16 == 0 and each.outputs % 16 == 0 and each.inputs and each.outputs:
            unique.setdefault((each.inputs, each.outputs), each)
    return list(unique.values())


def heads(model: Model, tp: int) -> list[Heads]:
    """The kinds of ordinary attention in a model, on one of `tp` ranks."""
    kinds = [
        Heads(max(1, part.heads // tp), max(1, part.kv_heads // tp), part.head_dim)
        for part in (run.attention for run in model.kinds)
        if isinstance(part, FullAttention) and part.head_dim == part.v_head_dim
    ]
    return list(dict.fromkeys(each for each in kinds if each.heads % each.kv_heads == 0))


def experts(model: Model) -> list[ExpertShape]:
    kinds = [
        ExpertShape(part.experts, part.per_token, part.latent or model.hidden, part.intermediate)
        for part in (run.mlp for run in model.kinds)
        if isinstance(part, Experts)
    ]
    return list(dict.fromkeys(each for each in kinds if each.intermediate % 16 == 0))


def dense_layer(model: Model) -> tuple[Heads, int] | None:
    """Heads and the MLP's width of an ordinary decoder layer, if the model has one."""
    for run in model.kinds:
        if isinstance(run.attention, FullAttention) and isinstance(run.mlp, DenseMlp) and run.mlp.matrices == 3:
            part = run.attention
            return Heads(part.heads, part.kv_heads, part.head_dim), run.mlp.intermediate
    return None


def known(name: str) -> Model | None:
    """A catalogued model; None where this version's catalogue has none of that name."""
    try:
        return catalogue.model(name)
    except InputError:
        return None
