"""Reads what a config.json leaves to its `model_type`: facts that are in the model's code, read
from families.toml."""

from functools import cache
from importlib import resources
from typing import Literal

import msgspec

Mixer = Literal["full", "window", "linear", "none"]
"""What mixes the tokens of a layer: attention to all, to a window, a state of constant size,
nothing."""
State = Literal["mamba1", "mamba1-normed", "lightning", "short-conv", "beside"]
"""`mamba1-normed`: with norms within (Jamba); `beside`: Mamba-2 with attention in each layer."""


class Family(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Holds what is so unless the config's own field says otherwise.

    source              whose code these facts are from, see families.toml

    The attention:
    bias                on Q, K, V
    output_bias         on the output, where Q, K, V have theirs; None: by `attention_bias`, unless
                        `bias` is the class's own and no field turns it off
    qk_norm             see FullAttention; bare: without weights
    qk_norm_by_flag     only where `use_qk_norm` (`qk_layernorm`) is true
    gate                sigmoid on the output; gate_in_query: see FullAttention
    sinks               a number for each head
    head_dim            where no field says; None: hidden / heads. wide_head_dim: of layers that see
                        everything
    window_kv_heads_doubled  layers with a window have twice the KV heads, and sinks, where no
                             `swa_` field says it
    window_pattern      which layers have one where neither `layer_types` nor a pattern says: L a
                        window, G everything, again and again; $ at the end: the last one sees
                        everything
    state               what layers without a KV cache keep, where fields do not tell
    only_states         all layers are such, without an MLP

    The MLP and the experts:
    matrices            of an MLP: 3 with a gate, else 2
    mlp_bias            on an MLP
    mlp_four_times_hidden  where no field says how wide MLPs are
    expert_bias         on the experts. router_bias: a correction for each in the router.
                        shared_gate: see Experts
    shared_experts      so many, where no field says
    draft_dense         draft layers have the dense MLP and the sliding window, whatever the last
                        layer has

    What is beside both:
    norms               vectors of hidden size in each layer
    parallel_flag       the field by which attention and MLP run side by side, behind one norm
    model_norms         vectors of hidden size beside the layers
    bias_flag           the field that turns all biases off or on. head_bias: on the output head
    position_rows       a learnt table of positions, so many rows longer than the context
    unused_positions    so many rows of it stand for no token
    token_types         a table of `type_vocab_size` kinds of text
    pooler              a matrix behind the last layer, with another row of a class for scores
    encoder             tokens see those behind them
    tied_embeddings     the output head is the input table, where `tie_word_embeddings` is absent
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
    state: State | None = None
    only_states: bool = False
    matrices: Literal[2, 3] = 3
    mlp_bias: bool = False
    mlp_four_times_hidden: bool = False
    expert_bias: bool = False
    router_bias: bool = False
    shared_gate: bool = False
    shared_experts: int = 0
    draft_dense: bool = False
    norms: int = 2
    parallel_flag: str = ""
    model_norms: int = 1
    bias_flag: str = ""
    head_bias: bool = False
    position_rows: int | None = None
    unused_positions: int = 0
    token_types: bool = False
    pooler: bool = False
    encoder: bool = False
    tied_embeddings: bool = False


class Tower(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Holds what the class of an image tower has that its config does not say.

    norm         vectors of its width that one norm has (LayerNorm 2, RMSNorm 1)
    outer_norms  norms beside the layers
    matrices     of an MLP
    bias         on all of it. qk_norm: norms over each head
    positions    learnt tables of them, for each patch of the image
    inner        the field that says how wide MLPs are, where that is not intermediate_size
    joins        what reaches the text model's width: patches side by side, behind a norm, through
                 an MLP (others for inner layers); one matrix behind a norm; one matrix; the MLP as
                 wide as the text model, behind patches joined to their width (merged) or not
                 (wide), or behind one with a gate (gated); `output`: of the tower's own output
    """

    norm: Literal[1, 2] = 2
    outer_norms: int = 1
    matrices: Literal[2, 3] = 2
    bias: bool = True
    qk_norm: bool = False
    positions: int = 1
    inner: str = "intermediate_size"
    joins: Literal["mlp", "norm", "matrix", "merged", "wide", "gated", "output"] = "mlp"


class VisualFamily(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Holds how a model type takes pictures. rule: of visual/rules.py; numbers: its numbers where
    no file says them; fixed: no file's word counts; remark: for the reader."""

    rule: str
    numbers: dict[str, int]
    fixed: bool = False
    remark: str = ""


class Ignored(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fields that change no size: always, beside another one, and in a model without some kind of
    part."""

    always: frozenset[str]
    beside: dict[str, frozenset[str]]
    without: dict[
        Literal["experts", "dense_mlps", "windows", "states", "attention"], frozenset[str]
    ]


class CheckpointNames(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Holds what the parts of a matrix's dotted name may be called in its place."""

    prefix: tuple[str, ...]
    home: dict[str, tuple[str, ...]]
    part: dict[str, tuple[str, ...]]


class Tables(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Holds families.toml, which describes each of them."""

    family: dict[str, Family]
    same: dict[str, str]
    refused: dict[str, str]
    tied_embeddings: dict[str, Literal["inner", "outer", "never"]]
    spellings: dict[str, tuple[str, ...]]
    layer_types: dict[Mixer, frozenset[str]]
    checkpoint_names: CheckpointNames
    tower: dict[str, Tower]
    visual: dict[str, VisualFamily]
    visual_numbers: dict[str, tuple[str, ...]]
    ignored: Ignored

    def find(self, kind: str) -> Family | None:
        """Return the family that a model type is exactly of; None: it is estimated."""
        return self.family.get(self.same.get(kind, kind))


@cache
def tables() -> Tables:
    content = resources.files("loadstone.catalogue").joinpath("families.toml").read_bytes()
    return msgspec.toml.decode(content, type=Tables)
