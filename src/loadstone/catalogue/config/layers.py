"""From a config's fields to its layers: which attention and which MLP each has."""

from __future__ import annotations

from typing import Any

import msgspec

from loadstone.catalogue.architecture.attention import FullAttention
from loadstone.catalogue.architecture.matrix import Matrix, vector
from loadstone.catalogue.architecture.mlp import DenseMlp
from loadstone.catalogue.architecture.model import Layers
from loadstone.catalogue.config.attention import attention_kinds, full_attention, read_attention
from loadstone.catalogue.config.beside import beside_halves
from loadstone.catalogue.config.families import Family
from loadstone.catalogue.config.fields import Fields
from loadstone.catalogue.config.linear import linear_attention
from loadstone.catalogue.config.mlp import EXPERTS_ONLY, read_dense, read_experts, sparse_layers
from loadstone.catalogue.config.read_beside_attention import beside_attention
from loadstone.catalogue.config.read_shared import shared_blocks
from loadstone.core.errors import InputError

_MOST_DRAFTS = 16


def read_layers(fields: Fields, family: Family, hidden: int) -> list[Layers]:
    """Each layer for itself, before equal ones are put together, and without formats. Raises InputError."""
    blocks = fields.items("block_configs")
    if blocks is not None:
        fields.layers(len(blocks))
        if all(isinstance(block, dict) and "block_type" in block for block in blocks):
            return beside_attention(fields, family, _blocks(fields, family, "block_configs", blocks, hidden), hidden)
        return _searched(fields, blocks, hidden)
    if family.state == "shared":
        return shared_blocks(fields, family, hidden)
    halves = _halves(fields, family)
    if halves is not None:
        return beside_attention(fields, family, [_half(fields, family, kind, hidden) for kind in halves], hidden)
    count = fields.layers(fields.count("num_hidden_layers", "n_layer", "num_layers", "n_layers"))
    if fields.find("zero_expert_num"):
        return _shortcut(fields, family, count, hidden)
    kinds = attention_kinds(fields, family, count)
    sparse = sparse_layers(fields, count)
    each = [fields.of_layer(index) for index in range(count)]
    layers = [
        Layers(
            1,
            read_attention(own, family, kinds[index], index, count, hidden),
            read_experts(own, family, index) if sparse[index] else read_dense(own, family, hidden, index, count),
            beside_halves(own, family, hidden, sparse[index]),
        )
        for index, own in enumerate(each)
    ]
    return beside_attention(fields, family, layers, hidden)


def _shortcut(fields: Fields, family: Family, count: int, hidden: int) -> list[Layers]:
    """LongCat-Flash: a layer is two of attention and MLP, with experts that run beside the first MLP and what
    follows. Engines keep the caches of two layers.
    """
    count = fields.count("num_layers", default=count, least=1)  # `num_hidden_layers` may be twice as many
    extra = beside_halves(fields, family, hidden)
    attention = read_attention(fields, family, "full", 0, count, hidden)
    dense = DenseMlp(fields.count("ffn_hidden_size", "intermediate_size", least=1))
    experts = msgspec.structs.replace(read_experts(fields, family), shared_intermediate=dense.intermediate)
    return [Layers(1, attention, experts, extra), Layers(1, attention, dense, extra)] * count


# --- layers that are only one half, and searched architectures -----------------------------------------------------

_LETTERS = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}


def _halves(fields: Fields, family: Family, prefix: str = "") -> list[str] | None:
    """Nemotron-H: every layer is a mixer of one kind; Mamba: of this one."""
    if family.only_states:
        return ["mamba"] * fields.layers(fields.count("num_hidden_layers", "n_layer", least=1))
    names = (
        ("mtp_hybrid_override_pattern", "mtp_layers_block_type")
        if prefix
        else ("hybrid_override_pattern", "layers_block_type")
    )
    pattern = fields.text(names[0])
    if pattern:
        unknown = sorted(set(pattern) - set(_LETTERS))
        if unknown:
            raise InputError(f"{fields.where}: {names[0]} has {unknown[0]!r}; known are {' '.join(_LETTERS)}")
        kinds = [_LETTERS[letter] for letter in pattern]
    else:
        listed = fields.items(names[1])
        if listed is None:
            return None
        kinds = [str(kind) for kind in listed]
    fields.find("num_hidden_layers")
    if "moe" not in kinds:
        fields.find(*EXPERTS_ONLY)
    fields.layers(len(kinds))
    return kinds


def _half(fields: Fields, family: Family, kind: str, hidden: int) -> Layers:
    extra = beside_halves(fields, family, hidden)
    if kind in ("mamba", "linear_attention"):
        return Layers(1, linear_attention(fields, family, hidden), None, extra)
    if kind in ("attention", "full_attention"):
        fields.find("attention_bias")  # Nemotron-H's code has none
        attention = full_attention(fields, family, False, 0, 1, hidden)
        return Layers(1, msgspec.structs.replace(attention, bias=False, output_bias=False), None, extra)
    if kind == "moe":
        return Layers(1, None, read_experts(fields, family), extra)
    if kind == "mlp":
        return Layers(1, None, read_dense(fields, family, hidden), extra)
    raise InputError(
        f"{fields.where}: layer kind {kind[:40]!r} is not known; known are {', '.join(_LETTERS.values())}"
    )


def _blocks(fields: Fields, family: Family, name: str, blocks: list[Any], hidden: int) -> list[Layers]:
    """Nemotron-H Puzzle: halves, each with fields of its own in place of those that hold for all."""
    fields.find("num_hidden_layers", "hybrid_override_pattern", "layers_block_type")
    found = []
    for index, block in enumerate(blocks):
        own = fields.with_own(block, f"{fields.where}, {name}[{index}]")
        found.append(_half(own, family, own.text("block_type"), hidden))
        new = sorted(block.keys() - own.used - fields.values.keys())
        if new:
            raise InputError(f"{own.where}: {new[0][:40]} is not understood of one layer")
    return found


def _searched(fields: Fields, blocks: list[Any], hidden: int) -> list[Layers]:
    """Nemotron-NAS (DeciLM): a block per layer, with or without each half."""
    fields.find("num_hidden_layers", "num_key_value_heads", "intermediate_size")
    heads = fields.count("num_attention_heads", least=1)
    found = []
    for index, entry in enumerate(blocks):
        where = f"{fields.where}, block_configs[{index}]"
        if not isinstance(entry, dict):
            raise InputError(f"{where}: must be an object")
        block = Fields(entry, where)
        attention, mlp = block.inner("attention"), block.inner("ffn")
        mixer, feed = None, None
        if attention is not None and not attention.flag("no_op"):
            group = attention.count("n_heads_in_group", default=1, least=1)
            dim, window = hidden // heads, attention.maybe("window_length")
            mixer = FullAttention(heads, max(1, heads // group), dim, dim, window)
            if attention.flag("replace_with_linear"):
                fields.assume("attention replaced by linear layers: sized as attention")
        if mlp is not None and not mlp.flag("no_op"):
            feed = DenseMlp(_searched_width(mlp, hidden))
        norms = (mixer is not None) + (feed is not None)
        found.append(Layers(1, mixer, feed, (vector("norms", norms * hidden),)))
    return found


def _searched_width(mlp: Fields, hidden: int) -> int:
    """ffn_mult · hidden · 2/3, to the next multiple of 256."""
    said = mlp.find("intermediate_size")
    if said:
        return mlp.whole("intermediate_size", said[1], least=1)
    factor = mlp.find("ffn_mult")
    if factor is None or not isinstance(factor[1], (int, float)) or not 0 < factor[1] < 1000:
        raise InputError(f"{mlp.where}: no ffn_mult and no intermediate_size")
    return -(-int(2 * factor[1] * hidden / 3) // 256) * 256


def draft_layers(fields: Fields, family: Family, hidden: int, last: Layers) -> list[Layers]:
    """Multi-token-prediction heads: layers like the last one, each behind a projection that joins the hidden state
    with the embedding of the next token (2·hidden → hidden). Raises InputError.
    """
    count = fields.maybe("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules") or 0
    if count > _MOST_DRAFTS:
        raise InputError(f"{fields.where}: {count} draft layers; {_MOST_DRAFTS} at most")
    fields.find("mtp_hybrid_override_pattern", "mtp_layers_block_type")
    fields.find("mtp_use_dedicated_embeddings", "use_mtp", "mtp_transformer_layers", "num_mtp_modules")
    halves = _halves(fields, family, "mtp") if count else None
    if family.draft_dense and count:
        window = fields.maybe("sliding_window") is not None
        attention = full_attention(fields, family, window, 0, 1, hidden)
        last = Layers(1, attention, read_dense(fields, family, hidden), last.extra)
    joining = (Matrix("eh_proj", 2 * hidden, hidden, "other"), vector("enorm_hnorm_norm", 3 * hidden))
    own = fields.items("mtp_block_configs") if count else None
    if own and all(isinstance(block, dict) for block in own):
        found = _blocks(fields, family, "mtp_block_configs", own, hidden)
    else:
        found = [_half(fields, family, kind, hidden) for kind in halves] if halves else [last]
    first, *others = found
    return [msgspec.structs.replace(first, extra=first.extra + joining), *others] * count
