"""Reads the layers from a config's fields: which attention and which MLP each has."""

from typing import Any

from msgspec.structs import replace

from loadstone.catalogue.architecture.attention import FullAttention
from loadstone.catalogue.architecture.matrix import Matrix, vector
from loadstone.catalogue.architecture.mlp import DenseMlp
from loadstone.catalogue.architecture.model import Layers
from loadstone.catalogue.config.attention import attention_kinds, full_attention, read_attention
from loadstone.catalogue.config.beside import beside_halves
from loadstone.catalogue.config.families import Family
from loadstone.catalogue.config.fields import Fields
from loadstone.catalogue.config.mlp import read_dense, read_experts, sparse_layers
from loadstone.catalogue.config.states import linear_attention
from loadstone.core.errors import InputError

_MOST_DRAFTS = 16
_LETTERS = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}


def read_layers(fields: Fields, family: Family, hidden: int) -> list[Layers]:
    """Return each layer for itself, before equal ones are put together, and without formats. Raises
    InputError."""
    blocks = fields.entries("block_configs")
    if blocks is not None:
        fields.check_layers(len(blocks))
        return _read_searched(fields, blocks, hidden)
    halves = _read_halves(fields, family, "hybrid_override_pattern", "layers_block_type")
    if halves is not None:
        return [_half(fields, family, kind, hidden) for kind in halves]
    count = fields.check_layers(fields.count("num_hidden_layers"))
    if fields.find("zero_expert_num"):
        return _read_shortcut(fields, family, count, hidden)
    kinds = attention_kinds(fields, family, count)
    sparse = sparse_layers(fields, count)
    state = linear_attention(fields, family, hidden) if family.state == "beside" else None
    return [
        Layers(
            1,
            read_attention(layer_fields, family, kind, index, count, hidden),
            (
                read_experts(layer_fields, family, index)
                if experts
                else read_dense(layer_fields, family, hidden, index, count)
            ),
            tuple(beside_halves(layer_fields, family, hidden, experts)),
            state=state,
        )
        for index, (kind, experts) in enumerate(zip(kinds, sparse, strict=True))
        for layer_fields in [fields.of_layer(index)]
    ]


def _read_shortcut(fields: Fields, family: Family, count: int, hidden: int) -> list[Layers]:
    """Return LongCat-Flash's layers: each is two of attention and MLP, with experts that run beside
    the first MLP and what follows. Engines keep the caches of two layers.
    """
    count = fields.count(
        "num_layers", default=count, least=1
    )  # `num_hidden_layers` may be twice as many
    extra = tuple(beside_halves(fields, family, hidden))
    attention = read_attention(fields, family, "full", 0, count, hidden)
    dense = DenseMlp(fields.count("ffn_hidden_size", "intermediate_size", least=1))
    experts = replace(read_experts(fields, family), shared_intermediate=dense.intermediate)
    return [Layers(1, attention, experts, extra), Layers(1, attention, dense, extra)] * count


# --- layers that are only one half ----------------------------------------------------------------


def _read_halves(fields: Fields, family: Family, letters: str, listed: str) -> list[str] | None:
    """Return layers of Nemotron-H, each a mixer of one kind; Mamba: of this one. `letters`,
    `listed`: the fields that say so. None: its layers have two halves.
    """
    if family.only_states:
        return ["mamba"] * fields.check_layers(fields.count("num_hidden_layers", least=1))
    pattern = fields.text(letters)
    unknown = sorted(set(pattern) - set(_LETTERS))
    if unknown:
        raise InputError(
            f"{fields.where}: {letters} has {unknown[0]!r}; known are {' '.join(_LETTERS)}"
        )
    names = [_LETTERS[letter] for letter in pattern] or fields.entries(listed)
    if names is None:
        return None
    fields.check_layers(len(names))
    return [str(name) for name in names]


def _half(fields: Fields, family: Family, kind: str, hidden: int) -> Layers:
    extra = tuple(beside_halves(fields, family, hidden))
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
        f"{fields.where}: layer kind {kind[:40]!r} is not known; known are"
        f" {', '.join(_LETTERS.values())}"
    )


# --- searched architectures -----------------------------------------------------------------------


def _read_searched(fields: Fields, blocks: list[Any], hidden: int) -> list[Layers]:
    """Return Nemotron-NAS's (DeciLM) layers: a block per layer, with or without each half."""
    heads = fields.count("num_attention_heads", least=1)
    layers = []
    for index, entry in enumerate(blocks):
        where = f"{fields.where}, block_configs[{index}]"
        if not isinstance(entry, dict) or entry.keys().isdisjoint(("attention", "ffn")):
            raise InputError(f"{where}: must be an object with attention and ffn")
        block = Fields(entry, where)
        attention, mlp = block.inner("attention"), block.inner("ffn")
        mixer, feed = None, None
        if attention is not None and not attention.flag("no_op"):
            group = attention.count("n_heads_in_group", default=1, least=1)
            dim, window = hidden // heads, attention.optional_count("window_length")
            mixer = FullAttention(heads, max(1, heads // group), dim, dim, window)
            if attention.flag("replace_with_linear"):
                fields.assume("attention replaced by linear layers: sized as attention")
        if mlp is not None and not mlp.flag("no_op"):
            feed = DenseMlp(_searched_width(mlp, hidden))
        norms = (mixer is not None) + (feed is not None)
        layers.append(Layers(1, mixer, feed, (vector("norms", norms * hidden),)))
    return layers


def _searched_width(mlp: Fields, hidden: int) -> int:
    """Return ffn_mult · hidden · 2/3, to the next multiple of 256."""
    width = mlp.optional_count("intermediate_size", least=1)
    if width is not None:
        return width
    factor = mlp.raw("ffn_mult")
    if not isinstance(factor, (int, float)) or not 0 < factor < 1000:
        raise InputError(f"{mlp.where}: no ffn_mult and no intermediate_size")
    return -(-int(2 * factor * hidden / 3) // 256) * 256


# --- draft layers ---------------------------------------------------------------------------------


def draft_layers(fields: Fields, family: Family, hidden: int, last: Layers) -> list[Layers]:
    """Return multi-token-prediction heads: layers like the last one, each behind a projection that
    joins the hidden state with the embedding of the next token (2·hidden → hidden). Raises
    InputError.
    """
    count = fields.optional_count("num_nextn_predict_layers") or 0
    if count > _MOST_DRAFTS:
        raise InputError(f"{fields.where}: {count} draft layers; {_MOST_DRAFTS} at most")
    if not count:
        return []
    halves = _read_halves(fields, family, "mtp_hybrid_override_pattern", "mtp_layers_block_type")
    if family.draft_dense:
        window = fields.optional_count("sliding_window") is not None
        attention = full_attention(fields, family, window, 0, 1, hidden)
        last = Layers(1, attention, read_dense(fields, family, hidden), last.extra)
    layers = [_half(fields, family, kind, hidden) for kind in halves] if halves else [last]
    joining = (
        Matrix("eh_proj", 2 * hidden, hidden, "other"),
        vector("enorm_hnorm_norm", 3 * hidden),
    )
    first, *rest = layers
    return [replace(first, extra=first.extra + joining), *rest] * count
