"""From a config's fields to what stands beside attention and MLP: norms, embeddings of every layer, residual streams,
states, small vectors."""

from __future__ import annotations

from msgspec.structs import replace

from loadstone.catalogue.architecture.attention import FullAttention
from loadstone.catalogue.architecture.linear import LinearAttention, ShortStates
from loadstone.catalogue.architecture.matrix import Matrix, vector
from loadstone.catalogue.architecture.model import Layers
from loadstone.catalogue.config.families import Family
from loadstone.catalogue.config.fields import Fields
from loadstone.catalogue.config.states import hashed_ngrams, inkling_states, linear_attention, zaya_states

# --- of one layer --------------------------------------------------------------------------------------------------


def beside_halves(fields: Fields, family: Family, hidden: int, sparse: bool = False) -> tuple[Matrix, ...]:
    """Of one layer; `sparse`: its MLP is experts."""
    weights = [vector("norms", _norms(fields, family, sparse) * hidden)]
    for many, of in family.extra_vectors:
        default = hidden // fields.count("num_attention_heads", least=1) if of == "head_dim" else None
        length = 1 if of == "number" else fields.count(of, default=default, least=1)
        weights.append(vector(f"beside.{of}", many * length, "other"))
    if sparse and family.sparse_norms:
        weights.append(vector("mlp.norms", family.sparse_norms * hidden))
    pooled = fields.maybe("moe_hidden_size", least=1)
    if sparse and pooled:  # Muse Spark: norms around the experts, at the width that they work at
        weights.append(vector("mlp.latent_norms", 2 * pooled))
    streams = _hyper_connected_streams(fields)
    if streams:
        # Hyper-connections: before and after each half, a map from all residual streams to their mixing weights: n to
        # read, n to write, and where they are manifold-constrained (DeepSeek-V4) n² among themselves; with scales.
        among = 0 if fields.find("hc_magnitude") else streams
        mix, scales = (2 + among) * streams, 3 if among else 2
        weights.append(vector("hyper_connections", 2 * (mix * streams * hidden + mix + scales), "other"))
    if sparse and fields.flag("enable_moe_block"):  # Gemma 4: scales of the router's input and of each expert
        weights.append(vector("router_scales", hidden + fields.count("num_experts"), "router"))
    return (*weights, *_gemma_parts(fields, hidden))


def _norms(fields: Fields, family: Family, sparse: bool) -> int:
    if _without_norm_weights(fields):
        return 0
    apart = 2 if fields.flag("new_decoder_architecture") else 1  # Falcon 40B: side by side, each with its own
    apart = fields.count("num_ln_in_parallel_attn", default=apart)
    flag = family.parallel_flag
    if flag and apart == 1 and fields.flag(flag, default=flag == "parallel_attn"):
        return family.norms // 2
    if sparse and fields.flag("enable_moe_block"):  # Gemma 4, whose experts have norms beside the MLP's
        return family.norms + 3
    if family.norms == 4 and not fields.flag("use_post_norm", default=True):  # HyperCLOVA X: none behind the halves
        return 2
    return family.norms


def _without_norm_weights(fields: Fields) -> bool:
    """OPT's norms."""
    return not fields.flag("layer_norm_elementwise_affine", default=True)


def _gemma_parts(fields: Fields, hidden: int) -> list[Matrix]:
    """Gemma 3n and 4: a token's embedding for this layer, gated by the residual stream and added to it. Gemma 3n:
    AltUp mixes several residual streams by what a router says; LAuReL is a shortcut of low rank.
    """
    weights = []
    width = fields.maybe("hidden_size_per_layer_input")
    if width:
        weights += [
            Matrix("per_layer_input_gate", hidden, width, "other"),
            Matrix("per_layer_projection", width, hidden, "other"),
            vector("post_per_layer_input_norm", hidden),
        ]
    streams = fields.maybe("altup_num_inputs", least=1)
    if streams:
        weights += [
            Matrix("altup.modality_router", hidden, streams, "other", quantisable=False),
            vector("altup.coefs", streams**2 + streams**3, "other"),
            vector("altup.norms", 2 * hidden),
        ]
    rank = fields.maybe("laurel_rank", least=1)
    if rank:
        weights += [
            Matrix("laurel.linear_left", hidden, rank, "other"),
            Matrix("laurel.linear_right", rank, hidden, "other"),
            vector("laurel.norm", hidden),
        ]
    return weights


def with_states(fields: Fields, family: Family, layers: list[Layers], hidden: int) -> list[Layers]:
    """The layers with the states and streams that they have beside their halves. Raises InputError."""
    return [_with_state(fields, family, layer, index, hidden) for index, layer in enumerate(layers)]


def _with_state(fields: Fields, family: Family, layer: Layers, index: int, hidden: int) -> Layers:
    attention = layer.attention
    state: LinearAttention | ShortStates | None = None
    extra: tuple[Matrix, ...] = ()
    more: tuple[Matrix, ...] = ()
    if fields.flag("use_sandwich_norm"):  # LFM3
        extra += (vector("sandwich_norms", 2 * hidden),)
    if family.state == "beside":
        state = linear_attention(fields, family, hidden)
    if isinstance(attention, FullAttention) and fields.find("cca_time0"):
        state, more = zaya_states(fields, attention, index, hidden)
    if isinstance(attention, FullAttention) and fields.find("d_rel"):
        state, more = inkling_states(fields, attention, hidden)
    extra += more
    streams = fields.maybe("hc_count", least=1)
    if streams:
        extra += 2 * _gated_residual(fields, streams, hidden)
        placed = fields.items("ple_layer_ids") or []
        if index + 1 in placed:
            state, more = hashed_ngrams(fields, streams, sorted(set(placed)).index(index + 1), hidden)
            extra += more
    return replace(layer, state=state, extra=layer.extra + extra)


def _gated_residual(fields: Fields, streams: int, hidden: int) -> tuple[Matrix, ...]:
    """Qwen4: what a half reads of all residual streams, through a projection of low rank, and writes back to each."""
    wide, rank = streams * hidden, fields.count("hc_lowrank", least=1)
    return (
        Matrix("hyper_connection.down", wide, rank, "other"),
        Matrix("hyper_connection.up", rank, wide, "other"),
        Matrix("hyper_connection.inject", wide, streams, "other"),
        vector("hyper_connection.norm", wide),
    )


# --- of the model --------------------------------------------------------------------------------------------------


def beside_layers(fields: Fields, family: Family, hidden: int, vocab: int, layers: int) -> tuple[Matrix, ...]:
    """Of the model, but for its table of embeddings, its output head and its last norm."""
    weights = []
    width = fields.maybe("hidden_size_per_layer_input")
    if width:
        rows = fields.count("vocab_size_per_layer_input", default=vocab, least=1)
        # A token looks up one row: no weights are passed.
        weights += [
            Matrix("embed_tokens_per_layer", rows, layers * width, "embedding", "vocab", active=0, quantisable=False),
            Matrix("per_layer_model_projection", hidden, layers * width, "other", "column"),
            vector("per_layer_projection_norm", width),
        ]
    altup = fields.maybe("altup_num_inputs", least=1)
    if altup:
        copies = 2 * (altup - 1)
        weights.append(Matrix("altup_projections", hidden, hidden, "other", copies=copies, active=copies))
    if fields.flag("lm_head_bias", default=family.head_bias):
        weights.append(vector("lm_head_bias", vocab, "embedding"))
    added = fields.maybe("additional_vocab_size")
    if added:  # Molmo 2: tokens that are read and never written
        weights.append(Matrix("embed_tokens_added", added, hidden, "embedding", "vocab", active=0, quantisable=False))
    narrow = embedding_width(fields, hidden)
    if narrow:
        weights.append(Matrix("project_in", narrow, hidden, "other"))
        weights.append(Matrix("project_out", hidden, narrow, "other"))
    gated = fields.maybe("hc_count", least=1)
    if gated:
        # Its last mixer's norm is over all streams, and there is no other: less the one that every model has.
        down, up, _, norm = _gated_residual(fields, gated, hidden)
        weights += [down, up, replace(norm, outputs=norm.outputs - hidden)]
    if fields.find("cca_time0"):
        weights.append(vector("input_scale_bias", 2 * hidden, "other"))
    streams = _hyper_connected_streams(fields)
    if streams and not family.streams_averaged:
        weights.append(vector("hyper_head", streams * streams * hidden + streams + 1, "other"))
    return tuple(weights)


def embedding_width(fields: Fields, hidden: int) -> int | None:
    """Of OPT-350M's table; None: as wide as the residual stream."""
    width = fields.maybe("word_embed_proj_dim", least=1)
    return None if width == hidden else width


def outer_norms(fields: Fields, family: Family) -> int:
    """Vectors of hidden size beside the layers: the last norm's, and those of the embeddings."""
    # OPT-350M has a norm after each half, and none at the end.
    last, removed = fields.flag("do_layer_norm_before", default=True), fields.flag("_remove_final_layer_norm")
    return 0 if removed or not last or _without_norm_weights(fields) else family.model_norms


def _hyper_connected_streams(fields: Fields) -> int | None:
    """None: one stream."""
    streams, on = fields.maybe("hc_mult", least=1), fields.flag("enable_ihc", default=True)
    return streams if on else None
