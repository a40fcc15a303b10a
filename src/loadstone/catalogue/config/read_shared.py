"""From a config's fields to layers that share the weights of a block (Zamba2)."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from loadstone.catalogue.architecture.attention import FullAttention
from loadstone.catalogue.architecture.matrix import Matrix, vector
from loadstone.catalogue.architecture.mlp import DenseMlp
from loadstone.catalogue.architecture.model import Layers
from loadstone.catalogue.config.families import Family
from loadstone.catalogue.config.fields import Fields
from loadstone.catalogue.config.linear import linear_attention
from loadstone.core.errors import InputError

_KINDS = {"linear_attention": False, "mamba": False, "hybrid": True}


def shared_blocks(fields: Fields, family: Family, hidden: int) -> list[Layers]:
    """Zamba2 (arXiv 2411.15242): Mamba-2 in each layer; before it, in some, one of `num_mem_blocks` blocks in turn of
    attention, which sees the embeddings too, and MLP, with adapters and a projection of the layer's own. Raises
    InputError.
    """
    listed = fields.items("layers_block_type")
    if not listed:
        raise InputError(f"{fields.where}: no layers_block_type, so which layers have attention is unknown")
    fields.layers(len(listed))
    fields.find("num_hidden_layers", "hybrid_layer_ids", "use_mem_rope", "num_query_groups", "use_conv_bias")
    state = replace(linear_attention(fields, family, hidden), conv_bias=True)
    norm = (vector("norms", hidden),)
    blocks = fields.count("num_mem_blocks", default=1, least=1)
    attention, mlp, extra = _block(fields, hidden)
    found: list[Layers] = []
    placed = 0
    for kind in listed:
        if not _is_hybrid(fields, kind):
            found.append(Layers(1, state, None, norm))
            continue
        own = () if placed >= blocks else (vector("block_norms", 3 * hidden),)
        found.append(Layers(1, attention, mlp, (*norm, *extra, *own), state=state, shared=placed >= blocks))
        placed += 1
    return found


def _is_hybrid(fields: Fields, kind: Any) -> bool:
    if not isinstance(kind, str) or kind not in _KINDS:
        raise InputError(f"{fields.where}: layer kind {str(kind)[:40]!r} is not known; known are {', '.join(_KINDS)}")
    return _KINDS[kind]


def _block(fields: Fields, hidden: int) -> tuple[FullAttention, DenseMlp, tuple[Matrix, ...]]:
    """The block's two halves, and what each layer that uses it has of its own."""
    heads = fields.count("num_attention_heads", least=1)
    wide = fields.count("attention_hidden_size", default=2 * hidden, least=heads)
    dim = fields.count("attention_head_dim", "head_dim", default=wide // heads, least=1)
    fields.find("kv_channels")  # half of that: of the residual stream alone
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
