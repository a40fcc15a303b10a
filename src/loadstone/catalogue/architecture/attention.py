"""Counts attention of several kinds; each knows its weight matrices and what it keeps of a token.

A `weights(hidden)` lists every matrix with its shape, by the name it has in Hugging Face
checkpoints (the common one, where families differ). Parameter counts, bytes, FLOPs and how tensor
parallelism cuts it all follow from that list.
"""

from collections.abc import Iterator
from typing import Literal, TypeAlias

import msgspec

from loadstone.catalogue.architecture.linear import LinearAttention
from loadstone.catalogue.architecture.matrix import Matrix, vector
from loadstone.catalogue.architecture.precision import KV_BYTES


class FullAttention(msgspec.Struct, frozen=True):
    """Counts softmax attention with its own keys and values: MHA (kv_heads = heads), GQA, MQA
    (kv_heads = 1).

    `window_tokens`: the layer sees at most so many tokens (a sliding window, or a chunk).
    `top_tokens`: sparse attention's budget; an indexer of `index_heads` × `index_dim` picks the
    tokens. `gate`: sigmoid gate on the output, one number per element or per head; `gate_in_query`:
    a part of the queries' projection, and so with its bias. `qk_norm`: norms over each head or over
    the whole projection (`layer`: over each head, with biases). `keys_as_values`: no value
    projection, values are the keys (the cache still holds both). `stores_kv` is false where the
    layer reads the cache of an earlier one, and has no projections for it. `bidirectional`: tokens
    see those behind them too, so many that nothing is kept; `window_tokens` are of either side.
    `cross`: what is seen are a picture's states, not the prompt's tokens.
    """

    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    window_tokens: int | None = None
    top_tokens: int | None = None
    index_heads: int = 0
    index_dim: int = 0
    bias: bool = False
    output_bias: bool = False
    qk_norm: Literal["head", "whole", "layer"] | None = None
    gate: Literal["element", "head"] | None = None
    gate_in_query: bool = False
    sinks: bool = False
    keys_as_values: bool = False
    stores_kv: bool = True
    bidirectional: bool = False
    cross: bool = False

    def weights(self, hidden: int) -> Iterator[Matrix]:
        query, output = self.heads * self.head_dim, self.heads * self.v_head_dim
        kv_heads = self.kv_heads if self.stores_kv else 0
        key, value = (
            kv_heads * self.head_dim,
            (0 if self.keys_as_values else kv_heads * self.v_head_dim),
        )
        yield Matrix("self_attn.q_proj", hidden, query, "attention", "column")
        if key:
            yield Matrix("self_attn.k_proj", hidden, key, "attention", "kv")
        if value:
            yield Matrix("self_attn.v_proj", hidden, value, "attention", "kv")
        yield Matrix("self_attn.o_proj", output, hidden, "attention", "row")
        if self.gate:
            width = output if self.gate == "element" else self.heads
            yield Matrix("self_attn.g_proj", hidden, width, "attention", "column")
        if self.bias:
            gate = query if self.gate_in_query else 0
            yield vector("self_attn.qkv_bias", query + gate + key + value, "attention")
        if self.output_bias:
            yield vector("self_attn.o_bias", hidden, "attention")
        if self.qk_norm in ("head", "layer"):
            norms = (2 if self.stores_kv else 1) * (2 if self.qk_norm == "layer" else 1)
            yield vector("self_attn.qk_norm", norms * self.head_dim)
        elif self.qk_norm == "whole":
            yield vector("self_attn.qk_norm", query + key)
        if self.sinks:
            yield vector("self_attn.sinks", self.heads, "attention")
        if self.index_heads:
            yield Matrix(
                "self_attn.index_q_proj", hidden, self.index_heads * self.index_dim, "attention"
            )
            yield Matrix("self_attn.index_k_proj", hidden, self.index_dim, "attention")
            yield vector("self_attn.index_norm", 2 * self.index_dim)

    def kv_bytes_per_token(self, kv_dtype: str) -> float:
        """Return K and V of all KV heads, and the indexer's keys."""
        if not self.stores_kv or self.bidirectional:
            return 0.0
        index = self.index_dim if self.index_heads else 0
        return (self.kv_heads * (self.head_dim + self.v_head_dim) + index) * KV_BYTES[kv_dtype]


class LatentAttention(msgspec.Struct, frozen=True):
    """Counts MLA (DeepSeek-V2, arXiv 2405.04434): the cache holds one latent of `kv_rank` numbers
    and one RoPE key of `rope_dim` per token, for all heads together.

    `top_tokens`: sparse attention's budget (DeepSeek-V3.2); `index_heads` is 0 in a layer that
    reuses the choice of an earlier one. `window_tokens`, `gate`: as in full attention. `bias`: on
    both compressions and on the output.
    """

    heads: int
    q_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    top_tokens: int | None = None
    index_heads: int = 0
    index_dim: int = 0
    gate: Literal["element", "head"] | None = None
    window_tokens: int | None = None
    bias: bool = False

    def weights(self, hidden: int) -> Iterator[Matrix]:
        query = self.heads * (self.nope_dim + self.rope_dim)
        if self.q_rank is None:
            yield Matrix("self_attn.q_proj", hidden, query, "attention", "column")
        else:
            yield Matrix("self_attn.q_a_proj", hidden, self.q_rank, "attention")
            yield vector("self_attn.q_a_layernorm", self.q_rank)
            yield Matrix("self_attn.q_b_proj", self.q_rank, query, "attention", "column")
        expanded = self.heads * (self.nope_dim + self.v_dim)
        yield Matrix(
            "self_attn.kv_a_proj_with_mqa", hidden, self.kv_rank + self.rope_dim, "attention"
        )
        yield vector("self_attn.kv_a_layernorm", self.kv_rank)
        yield Matrix("self_attn.kv_b_proj", self.kv_rank, expanded, "attention", "column")
        yield Matrix("self_attn.o_proj", self.heads * self.v_dim, hidden, "attention", "row")
        if self.gate:
            width = self.heads * self.v_dim if self.gate == "element" else self.heads
            yield Matrix("self_attn.g_proj", hidden, width, "attention", "column")
        if self.bias:
            biases = (self.q_rank or 0) + self.kv_rank + self.rope_dim + hidden
            yield vector("self_attn.bias", biases, "attention")
        if self.index_heads:
            yield Matrix(
                "self_attn.indexer.wq_b",
                self.q_rank or hidden,
                self.index_heads * self.index_dim,
                "attention",
            )
            yield Matrix("self_attn.indexer.wk", hidden, self.index_dim, "attention")
            yield vector("self_attn.indexer.k_norm", 2 * self.index_dim)
            yield Matrix(
                "self_attn.indexer.weights_proj",
                hidden,
                self.index_heads,
                "attention",
                quantisable=False,
            )

    def kv_bytes_per_token(self, kv_dtype: str) -> float:
        """Return the latent and the RoPE key, and one FP8 key of the indexer with an fp32 scale per
        128 numbers.

        `fp8_ds_mla` (vLLM, sparse MLA): the latent in FP8 with an fp32 scale per 128 numbers, the
        RoPE key in bf16: 512 + 16 + 128 = 656 bytes for DeepSeek.
        """
        held: float
        if kv_dtype == "fp8_ds_mla":
            held = self.kv_rank + 4 * (self.kv_rank // 128) + 2 * self.rope_dim
        else:
            held = (self.kv_rank + self.rope_dim) * KV_BYTES[kv_dtype]
        return held + (self.index_dim + 4 * (self.index_dim // 128) if self.index_heads else 0)


class CompressedAttention(msgspec.Struct, frozen=True):
    """Counts DeepSeek-V4's attention: one key-value vector of `head_dim` for all heads, kept for
    the last `window_tokens`, and beyond them one compressed vector for every `ratio` tokens (0:
    window only). `top_tokens` compressed vectors are read, where an indexer picks them; without
    one, all.

    The output projection is of low rank: `groups` matrices to `o_rank` each, then one back to
    hidden.
    """

    heads: int
    head_dim: int
    rope_dim: int
    q_rank: int
    o_rank: int
    groups: int
    ratio: int
    window_tokens: int
    top_tokens: int | None = None
    index_heads: int = 0
    index_dim: int = 0

    def weights(self, hidden: int) -> Iterator[Matrix]:
        query = self.heads * self.head_dim
        yield Matrix("self_attn.wq_a", hidden, self.q_rank, "attention")
        yield vector("self_attn.q_norm", self.q_rank)
        yield Matrix("self_attn.wq_b", self.q_rank, query, "attention", "column")
        yield Matrix("self_attn.wkv", hidden, self.head_dim, "attention")
        yield vector("self_attn.kv_norm", self.head_dim)
        yield Matrix(
            "self_attn.wo_a", query // self.groups, self.groups * self.o_rank, "attention", "column"
        )
        yield Matrix("self_attn.wo_b", self.groups * self.o_rank, hidden, "attention", "row")
        yield vector("self_attn.sinks", self.heads, "attention")
        if self.ratio:
            yield from self._compressor("self_attn.compressor", hidden, self.head_dim)
        if self.index_heads:
            yield Matrix(
                "self_attn.indexer.wq_b",
                self.q_rank,
                self.index_heads * self.index_dim,
                "attention",
            )
            yield Matrix(
                "self_attn.indexer.weights_proj",
                hidden,
                self.index_heads,
                "attention",
                quantisable=False,
            )
            yield from self._compressor("self_attn.indexer.compressor", hidden, self.index_dim)

    def _compressor(self, name: str, hidden: int, width: int) -> Iterator[Matrix]:
        """Return keys and gates, twice where blocks overlap (the fine ones), a bias for each
        position, and a norm."""
        wide = width * (2 if self.index_heads else 1)
        yield Matrix(f"{name}.wkv", hidden, wide, "attention", quantisable=False)
        yield Matrix(f"{name}.wgate", hidden, wide, "attention", quantisable=False)
        yield vector(f"{name}.ape", self.ratio * wide, "attention")
        yield vector(f"{name}.norm", width)

    def kv_bytes_per_token(self, kv_dtype: str) -> float:
        """Return the compressed numbers that a token adds for good; the window is extra."""
        held = self.head_dim + (self.index_dim if self.index_heads else 0)
        return held / self.ratio * KV_BYTES[kv_dtype] if self.ratio else 0.0


Attention: TypeAlias = FullAttention | LatentAttention | CompressedAttention | LinearAttention
