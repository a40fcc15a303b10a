"""Describes a model: its layers, what they weigh, and what a token of context costs.

Everything is counted from shapes; a published total is a test, not an input.
"""

from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Literal

import msgspec

from loadstone.catalogue.architecture.attention import (
    Attention,
    CompressedAttention,
    FullAttention,
    LatentAttention,
)
from loadstone.catalogue.architecture.linear import LinearAttention
from loadstone.catalogue.architecture.matrix import Matrix, vector
from loadstone.catalogue.architecture.mlp import DenseMlp, Experts, Mlp
from loadstone.catalogue.architecture.precision import FORMATS, Format
from loadstone.catalogue.visual.visual import Visual

__all__ = [
    "CompressedAttention",
    "DenseMlp",
    "Experts",
    "FullAttention",
    "LatentAttention",
    "Layers",
    "LinearAttention",
    "Matrix",
    "Model",
]


Pooling = Literal["embed", "score"]
"""A vector for a text, or how well a text fits: what a model gives that writes none."""


class Layers(msgspec.Struct, frozen=True):
    """Holds a run of `count` equal layers, in the model's order. A hybrid's layer may have only one
    of its two halves.

    `extra`: weights beside the two halves, norms above all. `state`: kept beside the attention's
    own in the same layer (Falcon-H1's Mamba-2). `formats`: (matrix name, format) of what the
    checkpoint does not keep at the model's full precision.
    """

    count: int
    attention: Attention | None
    mlp: Mlp | None
    extra: tuple[Matrix, ...] = ()
    formats: tuple[tuple[str, Format], ...] = ()
    state: LinearAttention | None = None

    def weights(self, hidden: int) -> tuple[Matrix, ...]:
        """Return those of one layer."""
        parts = [
            part.weights(hidden)
            for part in (self.attention, self.mlp, self.state)
            if part is not None
        ]
        return tuple(matrix for part in parts for matrix in part) + self.extra

    def kv_bytes_per_token(self, kv_dtype: str) -> float:
        """Return the bytes of one layer; 0 without attention."""
        return self.attention.kv_bytes_per_token(kv_dtype) if self.attention is not None else 0.0

    @property
    def states(self) -> tuple[LinearAttention, ...]:
        """Return what of one layer has a constant size per sequence."""
        linear = (self.attention,) if isinstance(self.attention, LinearAttention) else ()
        return linear if self.state is None else (*linear, self.state)


class Model(msgspec.Struct, frozen=True, dict=True):
    """Holds the architecture of a model.

    name                a Hugging Face id, or a path
    layers              in order, runs of equal ones; `draft_layers`: multi-token-prediction heads,
                        not counted in totals (engines load them only for speculative decoding)
    max_context_tokens  as its config says, RoPE's scaling included; None where it does not
    model_type          its family's name in the config: engines treat some apart
    dtype               full precision: what is not quantised (`bf16`)
    weights_dtype       what most of the checkpoint is kept in (`fp8` for DeepSeek-V3)
    kv_dtype            what a KV cache has unless the engine is told otherwise
    vision_parameters   of towers beside the text model, counted where the config says enough; kept
                        at `dtype`
    visual              how it takes pictures; None: no rule is known, or it takes none
    norms               vectors of hidden size beside the layers
    assumed             what the config left open and was assumed, and fields not understood; for
                        the reader
    pooling             of one that writes no text: what it gives in its place
    given               where it is none of the catalogue's: `config` and `quantisation`, its files
                        as they are
    """

    name: str
    hidden: int
    vocab: int
    layers: tuple[Layers, ...]
    tied_embeddings: bool
    max_context_tokens: int | None
    dtype: str = "bf16"
    weights_dtype: str = "bf16"
    kv_dtype: str = "bf16"
    draft_layers: tuple[Layers, ...] = ()
    vision_parameters: int = 0
    visual: Visual | None = None
    embedding_formats: tuple[tuple[str, Format], ...] = ()
    extra: tuple[Matrix, ...] = ()
    norms: int = 1
    aliases: tuple[str, ...] = ()
    source: str = ""
    assumed: tuple[str, ...] = ()
    model_type: str = ""
    pooling: Pooling | None = None
    given: dict[str, Any] | None = None

    def __hash__(self) -> int:
        return hash((self.name, self.weights_dtype, self.hidden, len(self.layers)))

    @property
    def layer_count(self) -> int:
        return sum(run.count for run in self.layers)

    @cached_property
    def kinds(self) -> tuple[Layers, ...]:
        """Return the layers with equal ones together, whatever their order: for sums over
        layers."""
        counts: Counter[Layers] = Counter()
        for run in self.layers:
            counts[msgspec.structs.replace(run, count=1)] += run.count
        return tuple(msgspec.structs.replace(run, count=count) for run, count in counts.items())

    @cached_property
    def embeddings(self) -> tuple[Matrix, ...]:
        """Return the input table, the output head (tied: one matrix for both), the last norm, and
        `extra`."""
        matrices = [
            Matrix("embed_tokens", self.vocab, self.hidden, "embedding", "vocab", quantisable=False)
        ]
        if not self.tied_embeddings:
            matrices.append(
                Matrix("lm_head", self.hidden, self.vocab, "embedding", "vocab", quantisable=False)
            )
        return (*matrices, vector("norm", self.norms * self.hidden), *self.extra)

    def weights(self) -> Iterator[tuple[Layers | None, Matrix, int]]:
        """Yield every matrix of the text model, (its run, itself, how many layers have it); None:
        the embeddings.

        Draft layers and vision towers are not in it.
        """
        for matrix in self.embeddings:
            yield None, matrix, 1
        for run in self.kinds:
            for matrix in run.weights(self.hidden):
                yield run, matrix, run.count

    @property
    def has_experts(self) -> bool:
        return any(isinstance(run.mlp, Experts) for run in self.kinds)

    @property
    def is_encoder(self) -> bool:
        """Return whether its tokens see those behind them: it reads whole texts, and keeps none."""
        return any(
            isinstance(run.attention, FullAttention) and run.attention.bidirectional
            for run in self.kinds
        )

    @property
    def cross(self) -> Layers | None:
        """Return its layers of cross attention to pictures; None: it has none."""
        return next(
            (
                run
                for run in self.kinds
                if isinstance(run.attention, FullAttention) and run.attention.cross
            ),
            None,
        )

    @property
    def has_latent_attention(self) -> bool:
        return any(isinstance(run.attention, LatentAttention) for run in self.kinds)

    def format_of(self, run: Layers | None, matrix: Matrix, dtype: str | None = None) -> Format:
        """Return how a matrix is kept: as in the checkpoint (`dtype` None or the checkpoint's own),
        or with all that engines quantise at `dtype`.
        """
        full = FORMATS[self.dtype]
        if dtype is None or dtype == self.weights_dtype:
            formats = self.embedding_formats if run is None else run.formats
            return dict(formats).get(matrix.name, full)
        if dtype in ("bf16", "fp16", "fp32"):
            return FORMATS[dtype]
        return FORMATS[dtype] if matrix.quantisable else full

    @cached_property
    def parameters_by_kind(self) -> dict[str, int]:
        """Return the parameters of embedding, attention, linear, mlp, experts, router, norm, other;
        vision where it was counted."""
        counts: Counter[str] = Counter()
        for _, matrix, count in self.weights():
            counts[matrix.kind] += matrix.parameters * count
        if self.vision_parameters:
            counts["vision"] += self.vision_parameters
        return dict(counts)

    @cached_property
    def parameters(self) -> int:
        """Return all but the draft layers."""
        return sum(self.parameters_by_kind.values())

    @cached_property
    def active_parameters(self) -> int:
        """Return what one token of text passes: of the experts those it takes; both embeddings; no
        vision tower."""
        return sum(matrix.active_parameters * count for _, matrix, count in self.weights())

    @cached_property
    def draft_parameters(self) -> int:
        return sum(
            matrix.parameters * run.count
            for run in self.draft_layers
            for matrix in run.weights(self.hidden)
        )

    def weights_bytes(self, dtype: str | None = None) -> float:
        """Return the bytes as in the checkpoint, or with all that engines quantise at `dtype`.
        Without draft layers."""
        text = sum(
            matrix.parameters * count * self.format_of(run, matrix, dtype).bytes
            for run, matrix, count in self.weights()
        )
        return text + self.vision_parameters * FORMATS[self.dtype].bytes

    def kv_bytes_per_token(self, kv_dtype: str | None = None) -> float:
        """Return the KV cache of one token over all layers, all ranks together, without
        replication: Σ layers · 2 · kv_heads · head_dim · bytes, or what the layer's kind of
        attention keeps. Windows are not looked at: every token is written.
        """
        dtype = kv_dtype or self.kv_dtype
        return sum(run.count * run.kv_bytes_per_token(dtype) for run in self.kinds)

    @property
    def state_bytes(self) -> float:
        """Return the bytes of one sequence, whatever its length: the states of linear attention,
        and what short convolutions keep; in fp32 where the config does not say."""
        return sum(run.count * state.state_bytes() for run in self.kinds for state in run.states)
