"""What a config.json leaves to its `model_type`: facts that are in the model's code, read from families.toml."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import Any, Literal

import msgspec

Mixer = Literal["full", "window", "linear", "none"]
"""What mixes the tokens of a layer: attention to all, to a window, a state of constant size, nothing."""
VectorLength = Literal["number", "head_dim", "num_attention_heads", "intermediate_size"]
State = Literal["mamba1", "mamba1-normed", "mamba2", "lightning", "short-conv", "kda-full", "beside", "shared"]
"""`mamba1-normed`: with norms within (Jamba); `kda-full`: KDA whose gates are of full rank; `beside`: Mamba-2 with
attention in each layer; `shared`: Mamba-2 in each layer, and in some one of few blocks that they share."""


class Family(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What holds unless the config's own field says otherwise.

    source              whose code these facts are from, see families.toml

    The attention:
    bias                on Q, K, V
    output_bias         on the output, where Q, K, V have theirs; None: by `attention_bias`, unless `bias` is the
                        class's own and no field turns it off
    qk_norm             see FullAttention; bare: without weights
    qk_norm_by_flag     only where `use_qk_norm` (`qk_layernorm`) is true
    gate                sigmoid on the output; gate_in_query: see FullAttention
    sinks               a number for each head
    head_dim            where no field says; None: hidden / heads. wide_head_dim: of layers that see everything
    window_pattern      which layers have one where neither `layer_types` nor a pattern says: L a window, G
                        everything, again and again; $ at the end: the last one sees everything
    window_kv_heads_doubled  layers with a window have twice the KV heads, and sinks, where no `swa_` field says it
    rope_norm           on latent attention's RoPE key
    state               what layers without a KV cache keep, where fields do not tell
    only_states         all layers are such, without an MLP
    full_attention_every  where no field says which, every so many layers one with a KV cache among such without

    The MLP and the experts:
    matrices            of an MLP: 3 with a gate, else 2
    mlp_bias            on an MLP; mlp_bias_ignored: the field `mlp_bias` means nothing
    mlp_four_times_hidden  where no field says how wide MLPs are
    expert_bias         on the experts. router_bias: a correction for each in the router. shared_gate: see Experts
    shared_experts      so many, where no field says
    draft_dense         draft layers have the dense MLP and the sliding window, whatever the last layer has

    What is beside both:
    norms               vectors of hidden size in each layer; sparse_norms: more of them in layers with experts
    parallel_flag       the field by which attention and MLP run side by side, behind one norm
    model_norms         vectors of hidden size beside the layers
    extra_vectors       other vectors of each layer, so many of such a length
    bias_flag           the field that turns all biases off or on. head_bias: on the output head
    position_rows       a learnt table of positions, so many rows longer than the context
    streams_averaged    several residual streams end in their mean, not in weights
    tied_embeddings     the output head is the input table, where `tie_word_embeddings` is absent

    How its makers write a config:
    names               their names of fields, and what all others call these
    published           fields that have this value in all published models; no other is read
    defaults, fixed     fields taken to have this value where they are absent, and always
    dropped             fields that the class does not look at, though they mean something of other types
    ignored             fields that change no size of this type
    when                `field=value` to facts that then take the place of these; true and false: of any kind
    """

    source: str = ""
    bias: bool = False
    output_bias: bool | None = None
    qk_norm: Literal["head", "whole", "layer", "bare"] | None = None
    qk_norm_by_flag: bool = False
    gate: Literal["element", "head"] | None = None
    gate_in_query: bool = False
    sinks: bool = False
    head_dim: int | None = None
    wide_head_dim: int | None = None
    window_pattern: str = ""
    window_kv_heads_doubled: bool = False
    rope_norm: bool = False
    state: State | None = None
    only_states: bool = False
    full_attention_every: int = 0
    matrices: Literal[2, 3] = 3
    mlp_bias: bool = False
    mlp_bias_ignored: bool = False
    mlp_four_times_hidden: bool = False
    expert_bias: bool = False
    router_bias: bool = False
    shared_gate: bool = False
    shared_experts: int = 0
    draft_dense: bool = False
    norms: int = 2
    sparse_norms: int = 0
    parallel_flag: str = ""
    model_norms: int = 1
    extra_vectors: tuple[tuple[int, VectorLength], ...] = ()
    bias_flag: str = ""
    head_bias: bool = False
    position_rows: int | None = None
    streams_averaged: bool = False
    tied_embeddings: bool = False
    names: dict[str, str] = {}
    published: dict[str, bool | int] = {}
    defaults: dict[str, Any] = {}
    fixed: dict[str, Any] = {}
    dropped: frozenset[str] = frozenset()
    ignored: frozenset[str] = frozenset()
    when: dict[str, dict[str, Any]] = {}


class Tower(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the class of an image tower has that its config does not say.

    norm            vectors of its width that one norm has (LayerNorm 2, RMSNorm 1)
    outer_norms     norms beside the layers
    matrices        of an MLP
    bias            of the attention. mlp_bias, patch_bias: of the MLPs, of what reads the patches
    positions       a learnt table, for each patch of the image, or none
    class_token     one more token, with its position
    scales          two vectors of a layer that scale its halves
    head            a layer that pools, unless `vision_use_head` says no
    merger          the tower itself joins patches and reaches the text model's width
    """

    norm: Literal[1, 2] = 2
    outer_norms: int = 1
    matrices: Literal[2, 3] = 2
    bias: bool = True
    mlp_bias: bool = True
    patch_bias: bool = True
    positions: bool = True
    class_token: bool = False
    scales: bool = False
    head: bool = False
    merger: bool = False


class Ignored(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fields that change no size: always, beside another one, and in a model without some kind of part."""

    always: frozenset[str]
    beside: dict[str, frozenset[str]]
    without: dict[Literal["experts", "dense_mlps", "windows", "states", "attention"], frozenset[str]]


class CheckpointNames(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the parts of a matrix's dotted name may be called in its place."""

    prefix: tuple[str, ...]
    home: dict[str, tuple[str, ...]]
    part: dict[str, tuple[str, ...]]


class Tables(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """families.toml, which describes each of them."""

    family: dict[str, Family]
    refused: dict[str, str]
    read_as: dict[str, str]
    read_as_by_version: dict[str, dict[str, str]]
    read_as_by_architecture: dict[str, str]
    tied_embeddings: dict[str, Literal["inner", "outer", "never"]]
    spellings: dict[str, tuple[str, ...]]
    layer_types: dict[Mixer, frozenset[str]]
    checkpoint_names: CheckpointNames
    tower: dict[str, Tower]
    ignored: Ignored


@cache
def tables() -> Tables:
    text = resources.files("loadstone.catalogue").joinpath("families.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text), Tables)
