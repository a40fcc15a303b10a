"""Counts layers that keep a state of constant size: linear attention of several kinds, and short
convolutions."""

from typing import Literal

import msgspec

from loadstone.catalogue.architecture.matrix import Matrix, vector
from loadstone.catalogue.architecture.precision import KV_BYTES


class LinearAttention(msgspec.Struct, frozen=True):
    """Counts attention with a state of constant size in place of a cache.

    mamba1       `heads` channels (`value_dim` 1) with a state of `key_dim` each; steps through
                 `rank` numbers
    mamba2       `heads` × `value_dim` channels, states of `key_dim`, shared by `key_heads` groups
    gated-delta  Qwen3-Next, Qwen3.5: `key_heads` of `key_dim`, `heads` value heads of `value_dim`
    kda          Kimi Delta Attention: `heads` of `key_dim` and `value_dim`, decay per channel
    lightning    MiniMax-01: `heads` of `key_dim` and `value_dim`, no convolution (`conv_width` 1)
    short-conv   LFM2: `heads` channels (`value_dim` 1) through a short convolution and nothing else
                 (`key_dim` 0)
    state numbers per sequence = heads · key_dim · value_dim, and (conv_width − 1) inputs of the
    short convolution.

    `state_dtype`: None where the config does not say, which engines take differently. `bias`,
    `output_bias`: of the projections in and out. `normed`: Mamba-2's norm before the projection
    out; `inner_norms`: of what the steps come from (Jamba). `full_rank_gate`: KDA's projection to
    it is one matrix, not two of low rank.
    """

    kind: Literal["mamba1", "mamba2", "gated-delta", "kda", "lightning", "short-conv"]
    heads: int
    key_heads: int
    key_dim: int
    value_dim: int
    conv_width: int
    conv_bias: bool = False
    state_dtype: str | None = None
    full_rank_gate: bool = False
    rank: int = 0
    bias: bool = False
    output_bias: bool = False
    normed: bool = True
    inner_norms: bool = False

    window_tokens: None = None

    @property
    def conv_channels(self) -> int:
        return 2 * self.key_heads * self.key_dim + self.heads * self.value_dim

    def weights(self, hidden: int) -> tuple[Matrix, ...]:
        inner, keys = self.heads * self.value_dim, self.key_heads * self.key_dim
        matrices = list(self._weights(hidden, inner, keys))
        if self.conv_width > 1:
            long = self.conv_channels * (self.conv_width + self.conv_bias)
            matrices.append(vector("linear_attn.conv1d", long, "linear"))
        if self.bias:
            matrices.append(vector("linear_attn.in_bias", matrices[0].outputs, "linear"))
        if self.output_bias:
            matrices.append(vector("linear_attn.out_bias", hidden, "linear"))
        return tuple(matrices)

    def _weights(self, hidden: int, inner: int, keys: int) -> tuple[Matrix, ...]:
        """Return all but the convolution and biases; the projection in comes first."""
        if self.kind == "mamba1":
            steps = self.rank + 2 * self.key_dim
            return (
                Matrix("mamba.in_proj", hidden, 2 * inner, "linear", "column"),
                Matrix("mamba.x_proj", inner, steps, "linear", "row"),
                Matrix("mamba.dt_proj", self.rank, inner, "linear", "column"),
                vector("mamba.A_D_dt", (self.key_dim + 2) * inner, "linear"),
                *([vector("mamba.inner_norms", steps)] if self.inner_norms else []),
                Matrix("mamba.out_proj", inner, hidden, "linear", "row"),
            )
        if self.kind == "lightning":
            return (
                Matrix("self_attn.qkv_proj", hidden, 2 * keys + inner, "linear", "column"),
                Matrix("self_attn.output_gate", hidden, inner, "linear", "column"),
                vector("self_attn.norm", inner),
                Matrix("self_attn.out_proj", inner, hidden, "linear", "row"),
            )
        if self.kind == "short-conv":
            return (
                Matrix("conv.in_proj", hidden, 3 * inner, "linear", "column"),
                Matrix("conv.out_proj", inner, hidden, "linear", "row"),
            )
        if self.kind == "mamba2":
            return (
                Matrix(
                    "mixer.in_proj",
                    hidden,
                    inner + self.conv_channels + self.heads,
                    "linear",
                    "column",
                ),
                vector("mixer.A_D_dt", 3 * self.heads, "linear"),
                *([vector("mixer.norm", inner)] if self.normed else []),
                Matrix("mixer.out_proj", inner, hidden, "linear", "row"),
            )
        if self.kind == "gated-delta":
            return (
                Matrix("linear_attn.in_proj_qkv", hidden, self.conv_channels, "linear", "column"),
                Matrix("linear_attn.in_proj_z", hidden, inner, "linear", "column"),
                Matrix(
                    "linear_attn.in_proj_b",
                    hidden,
                    self.heads,
                    "linear",
                    "column",
                    quantisable=False,
                ),
                Matrix(
                    "linear_attn.in_proj_a",
                    hidden,
                    self.heads,
                    "linear",
                    "column",
                    quantisable=False,
                ),
                vector("linear_attn.A_dt", 2 * self.heads, "linear"),
                vector("linear_attn.norm", self.value_dim),
                Matrix("linear_attn.out_proj", inner, hidden, "linear", "row"),
            )
        return (
            Matrix("self_attn.q_proj", hidden, keys, "linear", "column"),
            Matrix("self_attn.k_proj", hidden, keys, "linear", "column"),
            Matrix("self_attn.v_proj", hidden, inner, "linear", "column"),
            *_to_gate("f", hidden, self.key_dim, keys, False),
            Matrix("self_attn.b_proj", hidden, self.heads, "linear", "column", quantisable=False),
            *_to_gate("g", hidden, self.value_dim, inner, self.full_rank_gate),
            vector("self_attn.A_dt", self.heads + keys, "linear"),
            vector("self_attn.o_norm", self.value_dim),
            Matrix("self_attn.o_proj", inner, hidden, "linear", "row"),
        )

    def kv_bytes_per_token(self, kv_dtype: str) -> float:
        return 0.0

    def state_bytes(self, unsaid: str = "fp32") -> float:
        """Return the bytes of one sequence: the recurrent state at `state_dtype` or `unsaid`, the
        convolution's inputs in bf16."""
        recurrent = (
            self.heads * self.key_dim * self.value_dim * KV_BYTES[self.state_dtype or unsaid]
        )
        return recurrent + (self.conv_width - 1) * self.conv_channels * KV_BYTES["bf16"]


def _to_gate(letter: str, hidden: int, rank: int, width: int, full: bool) -> tuple[Matrix, ...]:
    if full:
        return (Matrix(f"self_attn.{letter}_proj", hidden, width, "linear", "column"),)
    return (
        Matrix(f"self_attn.{letter}_a_proj", hidden, rank, "linear"),
        Matrix(f"self_attn.{letter}_b_proj", rank, width, "linear", "column"),
    )
