"""Reads what stands beside attention and MLP: norms, embeddings of every layer, residual
streams."""

from collections.abc import Iterator

from loadstone.catalogue.architecture.matrix import Matrix, vector
from loadstone.catalogue.config.families import Family
from loadstone.catalogue.config.fields import Fields

# --- of one layer ---------------------------------------------------------------------------------


def beside_halves(
    fields: Fields, family: Family, hidden: int, sparse: bool = False
) -> Iterator[Matrix]:
    """Return the parts of one layer; `sparse`: its MLP is experts."""
    yield vector("norms", _norms(fields, family, sparse) * hidden)
    streams = fields.optional_count("hc_mult", least=1)
    if streams:
        # Hyper-connections (DeepSeek-V4): before and after each half, a map from all residual
        # streams to their mixing weights: n to read, n to write, n² among themselves; with three
        # scales.
        mix = (2 + streams) * streams
        yield vector("hyper_connections", 2 * (mix * streams * hidden + mix + 3), "other")
    if sparse and fields.flag(
        "enable_moe_block"
    ):  # Gemma 4: scales of the router's input and of each expert
        yield vector("router_scales", hidden + fields.count("num_experts"), "router")
    yield from _gemma_parts(fields, hidden)


def _norms(fields: Fields, family: Family, sparse: bool) -> int:
    apart = (
        2 if fields.flag("new_decoder_architecture") else 1
    )  # Falcon 40B: side by side, each with its own
    apart = fields.count("num_ln_in_parallel_attn", default=apart)
    flag = family.parallel_flag
    if flag and apart == 1 and fields.flag(flag, default=True):
        return family.norms // 2
    if sparse and fields.flag(
        "enable_moe_block"
    ):  # Gemma 4, whose experts have norms beside the MLP's
        return family.norms + 3
    return family.norms


def _gemma_parts(fields: Fields, hidden: int) -> Iterator[Matrix]:
    """Return parts of Gemma 3n and 4: a token's embedding for this layer, gated by the residual
    stream and added to it. Gemma 3n: AltUp mixes several residual streams by what a router says;
    LAuReL is a shortcut of low rank.
    """
    width = fields.optional_count("hidden_size_per_layer_input")
    if width:
        yield Matrix("per_layer_input_gate", hidden, width, "other")
        yield Matrix("per_layer_projection", width, hidden, "other")
        yield vector("post_per_layer_input_norm", hidden)
    streams = fields.optional_count("altup_num_inputs", least=1)
    if streams:
        yield Matrix("altup.modality_router", hidden, streams, "other", quantisable=False)
        yield vector("altup.coefs", streams**2 + streams**3, "other")
        yield vector("altup.norms", 2 * hidden)
    rank = fields.optional_count("laurel_rank", least=1)
    if rank:
        yield Matrix("laurel.linear_left", hidden, rank, "other")
        yield Matrix("laurel.linear_right", rank, hidden, "other")
        yield vector("laurel.norm", hidden)


# --- of the model ---------------------------------------------------------------------------------


def beside_layers(
    fields: Fields, family: Family, hidden: int, vocab: int, layers: int
) -> Iterator[Matrix]:
    """Return what the model has but for layers, its table of embeddings, its output head and its
    last norm."""
    width = fields.optional_count("hidden_size_per_layer_input")
    if width:
        rows = fields.count("vocab_size_per_layer_input", default=vocab, least=1)
        # A token looks up one row: no weights are passed.
        yield Matrix(
            "embed_tokens_per_layer",
            rows,
            layers * width,
            "embedding",
            "vocab",
            active=0,
            quantisable=False,
        )
        yield Matrix("per_layer_model_projection", hidden, layers * width, "other", "column")
        yield vector("per_layer_projection_norm", width)
    altup = fields.optional_count("altup_num_inputs", least=1)
    if altup:
        copies = 2 * (altup - 1)
        yield Matrix("altup_projections", hidden, hidden, "other", copies=copies, active=copies)
    types = fields.optional_count("type_vocab_size")
    if family.token_types and types:
        yield vector("token_types", types * hidden, "embedding")
    if family.pooler:
        scores = hidden + 1 if "ForSequence" in str(fields.entries("architectures")) else 0
        yield Matrix("pooler.dense", hidden, hidden, "other")
        yield vector("pooler.bias", hidden + scores, "other")
    crossing = [index for index in fields.entries("cross_attention_layers") or () if index < layers]
    if crossing:  # Llama 3.2 Vision: rows for the places of pictures, two gates in each such layer
        yield vector("embed_tokens.pictures", 8 * hidden, "embedding")
        yield vector("cross_attention_gates", 2 * len(crossing))
    if fields.flag("lm_head_bias", default=family.head_bias):
        yield vector("lm_head_bias", vocab, "embedding")
    streams = fields.optional_count("hc_mult", least=1)
    if streams:
        yield vector("hyper_head", streams * streams * hidden + streams + 1, "other")
