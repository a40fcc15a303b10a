"""From a config's fields to its layers: which attention and which MLP each has."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from loadstone.catalogue.architecture.attention import FullAttention
from loadstone.catalogue.architecture.matrix import Matrix, vector
from loadstone.catalogue.architecture.mlp import DenseMlp
from loadstone.catalogue.architecture.model import Layers
from loadstone.catalogue.config.attention import attention_kinds, full_attention, read_attention
from loadstone.catalogue.config.beside import beside_halves, with_states
from loadstone.catalogue.config.families import Family
from loadstone.catalogue.config.fields import Fields
from loadstone.catalogue.config.mlp import read_dense, read_experts, sparse_layers
from loadstone.catalogue.config.states import linear_attention
from loadstone.core.errors import InputError

_MOST_DRAFTS = 16
_LETTERS = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}
_SHARING = {"linear_attention": False, "mamba": False, "hybrid": True}
"""What `layers_block_type` calls a layer of Zamba2: whether one of the shared blocks stands before it."""


def read_layers(fields: Fields, family: Family, hidden: int) -> list[Layers]:
    """Each layer for itself, before equal ones are put together, and without formats. Raises InputError."""
    blocks = fields.items("block_configs")
    if blocks is not None:
        fields.layers(len(blocks))
        if not all(isinstance(block, dict) and "block_type" in block for block in blocks):
            return _searched(fields, blocks, hidden)
        return with_states(fields, family, _blocks(fields, family, "block_configs", blocks, hidden), hidden)
    if family.state == "shared":
        return _shared_blocks(fields, family, hidden)
    halves = _halves(fields, family, "hybrid_override_pattern", "layers_block_type")
    if halves is not None:
        return with_states(fields, family, [_half(fields, family, kind, hidden) for kind in halves], hidden)
    count = fields.layers(fields.count("num_hidden_layers"))
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
    return with_states(fields, family, layers, hidden)


def _shortcut(fields: Fields, family: Family, count: int, hidden: int) -> list[Layers]:
    """LongCat-Flash: a layer is two of attention and MLP, with experts that run beside the first MLP and what
    follows. Engines keep the caches of two layers.
    """
    count = fields.count("num_layers", default=count, least=1)  # `num_hidden_layers` may be twice as many
    extra = beside_halves(fields, family, hidden)
    attention = read_attention(fields, family, "full", 0, count, hidden)
    dense = DenseMlp(fields.count("ffn_hidden_size", "intermediate_size", least=1))
    experts = replace(read_experts(fields, family), shared_intermediate=dense.intermediate)
    return [Layers(1, attention, experts, extra), Layers(1, attention, dense, extra)] * count


# --- layers that are only one half ---------------------------------------------------------------------------------


def _halves(fields: Fields, family: Family, letters: str, listed: str) -> list[str] | None:
    """Nemotron-H: every layer is a mixer of one kind; Mamba: of this one. `letters`, `listed`: the fields
    that say so. None: its layers have two halves.
    """
    if family.only_states:
        return ["mamba"] * fields.layers(fields.count("num_hidden_layers", least=1))
    pattern = fields.text(letters)
    unknown = sorted(set(pattern) - set(_LETTERS))
    if unknown:
        raise InputError(f"{fields.where}: {letters} has {unknown[0]!r}; known are {' '.join(_LETTERS)}")
    names = [_LETTERS[letter] for letter in pattern] or fields.items(listed)
    if names is None:
        return None
    fields.layers(len(names))
    return [str(name) for name in names]


def _half(fields: Fields, family: Family, kind: str, hidden: int) -> Layers:
    extra = beside_halves(fields, family, hidden)
    if kind in ("mamba", "linear_attention"):
        return Layers(1, linear_attention(fields, family, hidden), None, extra)
    if kind in ("attention", "full_attention"):
        attention = full_attention(fields, family, False, 0, 1, hidden)
        # Nemotron-H's code has no biases, whatever the config says.
        return Layers(1, replace(attention, bias=False, output_bias=False), None, extra)
    if kind == "moe":
        return Layers(1, None, read_experts(fields, family), extra)
    if kind == "mlp":
        return Layers(1, None, read_dense(fields, family, hidden), extra)
    raise InputError(
        f"{fields.where}: layer kind {kind[:40]!r} is not known; known are {', '.join(_LETTERS.values())}"
    )


def _blocks(fields: Fields, family: Family, name: str, blocks: list[Any], hidden: int) -> list[Layers]:
    """Nemotron-H Puzzle: halves, each with fields of its own in place of those that hold for all."""
    layers = []
    for index, block in enumerate(blocks):
        own = fields.with_own(block, f"{fields.where}, {name}[{index}]")
        layers.append(_half(own, family, own.text("block_type"), hidden))
        new = sorted(block.keys() - own.used - fields.values.keys())
        if new:
            raise InputError(f"{own.where}: {new[0][:40]} is not understood of one layer")
    return layers


# --- searched architectures, and blocks that layers share ----------------------------------------------------------


def _searched(fields: Fields, blocks: list[Any], hidden: int) -> list[Layers]:
    """Nemotron-NAS (DeciLM): a block per layer, with or without each half."""
    heads = fields.count("num_attention_heads", least=1)
    layers = []
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
        layers.append(Layers(1, mixer, feed, (vector("norms", norms * hidden),)))
    return layers


def _searched_width(mlp: Fields, hidden: int) -> int:
    """ffn_mult · hidden · 2/3, to the next multiple of 256."""
    width = mlp.maybe("intermediate_size", least=1)
    if width is not None:
        return width
    factor = mlp.raw("ffn_mult")
    if not isinstance(factor, (int, float)) or not 0 < factor < 1000:
        raise InputError(f"{mlp.where}: no ffn_mult and no intermediate_size")
    return -(-int(2 * factor * hidden / 3) // 256) * 256


def _shared_blocks(fields: Fields, family: Family, hidden: int) -> list[Layers]:
    """Zamba2 (arXiv 2411.15242): Mamba-2 in each layer; before it, in some, one of `num_mem_blocks` blocks in turn of
    attention, which sees the embeddings too, and MLP, with adapters and a projection of the layer's own.
    """
    kinds = fields.items("layers_block_type")
    if not kinds:
        raise InputError(f"{fields.where}: no layers_block_type, so which layers have attention is unknown")
    fields.layers(len(kinds))
    state = replace(linear_attention(fields, family, hidden), conv_bias=True)
    norm = (vector("norms", hidden),)
    blocks = fields.count("num_mem_blocks", default=1, least=1)
    attention, mlp, extra = _shared_block(fields, hidden)
    layers: list[Layers] = []
    placed = 0
    for kind in kinds:
        if not isinstance(kind, str) or kind not in _SHARING:
            known = ", ".join(_SHARING)
            raise InputError(f"{fields.where}: layer kind {str(kind)[:40]!r} is not known; known are {known}")
        if not _SHARING[kind]:
            layers.append(Layers(1, state, None, norm))
            continue
        own = () if placed >= blocks else (vector("block_norms", 3 * hidden),)
        layers.append(Layers(1, attention, mlp, (*norm, *extra, *own), state=state, shared=placed >= blocks))
        placed += 1
    return layers


def _shared_block(fields: Fields, hidden: int) -> tuple[FullAttention, DenseMlp, tuple[Matrix, ...]]:
    """The block's two halves, and what each layer that uses it has of its own."""
    heads = fields.count("num_attention_heads", least=1)
    wide = fields.count("attention_hidden_size", default=2 * hidden, least=heads)
    dim = fields.count("attention_head_dim", "head_dim", default=wide // heads, least=1)
    kv_heads = fields.count("num_key_value_heads", default=heads, least=1)
    width = fields.count("intermediate_size", "ffn_hidden_size", default=4 * hidden, least=1)
    rank = fields.count("adapter_rank", "lora_rank", default=128, least=1)
    extra = [
        Matrix("block.linear", hidden, hidden, "other"),
        Matrix("block.mlp_adapter_a", hidden, rank, "other"),
        Matrix("block.mlp_adapter_b", rank, 2 * width, "other"),
    ]
    if fields.flag("use_shared_attention_adapter"):
        extra.append(Matrix("block.attention_adapters_a", wide, 3 * rank, "other"))
        extra += [Matrix(f"block.{name}_adapter_b", rank, wide, "other") for name in "qkv"]
    attention = FullAttention(heads, kv_heads, dim, dim, input_width=wide)
    return attention, DenseMlp(width, bias=fields.flag("add_bias_linear")), tuple(extra)


# --- draft layers --------------------------------------------------------------------------------------------------


def draft_layers(fields: Fields, family: Family, hidden: int, last: Layers) -> list[Layers]:
    """Multi-token-prediction heads: layers like the last one, each behind a projection that joins the hidden state
    with the embedding of the next token (2·hidden → hidden). Raises InputError.
    """
    count = fields.maybe("num_nextn_predict_layers") or 0
    if count > _MOST_DRAFTS:
        raise InputError(f"{fields.where}: {count} draft layers; {_MOST_DRAFTS} at most")
    if not count:
        return []
    halves = _halves(fields, family, "mtp_hybrid_override_pattern", "mtp_layers_block_type")
    own = fields.items("mtp_block_configs")
    if family.draft_dense:
        window = fields.maybe("sliding_window") is not None
        attention = full_attention(fields, family, window, 0, 1, hidden)
        last = Layers(1, attention, read_dense(fields, family, hidden), last.extra)
    if own and all(isinstance(block, dict) for block in own):
        layers = _blocks(fields, family, "mtp_block_configs", own, hidden)
    else:
        layers = [_half(fields, family, kind, hidden) for kind in halves] if halves else [last]
    joining = (Matrix("eh_proj", 2 * hidden, hidden, "other"), vector("enorm_hnorm_norm", 3 * hidden))
    first, *others = layers
    return [replace(first, extra=first.extra + joining), *others] * count
