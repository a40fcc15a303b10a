"""From a config's fields to what stands beside attention and MLP: norms, embeddings of every layer, small vectors."""

from __future__ import annotations

from loadstone.catalogue.architecture.matrix import Matrix, vector
from loadstone.catalogue.config.families import Family
from loadstone.catalogue.config.fields import Fields
from loadstone.catalogue.config.read_residual import residual_matrices


def beside_halves(fields: Fields, family: Family, hidden: int, sparse: bool = False) -> tuple[Matrix, ...]:
    """Of one layer; `sparse`: its MLP is experts."""
    found = [vector("norms", _norms(fields, family, sparse) * hidden)]
    for many, of in family.beside:
        usual = hidden // fields.count("num_attention_heads", least=1) if of == "head_dim" else None
        length = 1 if of == "number" else fields.count(of, default=usual, least=1)
        found.append(vector(f"beside.{of}", many * length, "other"))
    found += residual_matrices(fields, family, hidden, sparse)
    if sparse and fields.flag("enable_moe_block"):  # Gemma 4: scales of the router's input and of each expert
        found.append(vector("router_scales", hidden + fields.count("num_experts"), "router"))
    return (*found, *_layer_embedding(fields, hidden), *_streams(fields, hidden))


def beside_layers(fields: Fields, family: Family, hidden: int, vocab: int, layers: int) -> tuple[Matrix, ...]:
    """Of the model, but for its table of embeddings, its output head and its last norm."""
    found = []
    width = fields.maybe("hidden_size_per_layer_input")
    if width:
        rows = fields.count("vocab_size_per_layer_input", default=vocab, least=1)
        # A token looks up one row: no weights are passed.
        found += [
            Matrix("embed_tokens_per_layer", rows, layers * width, "embedding", "vocab", active=0, quantisable=False),
            Matrix("per_layer_model_projection", hidden, layers * width, "other", "column"),
            vector("per_layer_projection_norm", width),
        ]
    streams = fields.maybe("altup_num_inputs", least=1)
    if streams:
        copies = 2 * (streams - 1)
        found.append(Matrix("altup_projections", hidden, hidden, "other", copies=copies, active=copies))
    if fields.flag("lm_head_bias", default=family.head_bias):
        found.append(vector("lm_head_bias", vocab, "embedding"))
    added = fields.maybe("additional_vocab_size")
    if added:  # Molmo 2: tokens that are read and never written
        found.append(Matrix("embed_tokens_added", added, hidden, "embedding", "vocab", active=0, quantisable=False))
    narrow = embedding_width(fields, hidden)
    if narrow:
        found.append(Matrix("project_in", narrow, hidden, "other"))
        found.append(Matrix("project_out", hidden, narrow, "other"))
    return tuple(found)


def embedding_width(fields: Fields, hidden: int) -> int | None:
    """Of OPT-350M's table; None: as wide as the residual stream."""
    width = fields.maybe("word_embed_proj_dim", least=1)
    return None if width == hidden else width


def outer_norms(fields: Fields, family: Family) -> int:
    """Vectors of hidden size beside the layers: the last norm's, and those of the embeddings."""
    # OPT-350M has a norm after each half, and none at the end.
    last, removed = fields.flag("do_layer_norm_before", default=True), fields.flag("_remove_final_layer_norm")
    return 0 if removed or not last or _plain(fields) else family.outer_norms


def _norms(fields: Fields, family: Family, sparse: bool) -> int:
    if _plain(fields):
        return 0
    apart = 2 if fields.flag("new_decoder_architecture") else 1  # Falcon 40B: side by side, each with its own
    apart = fields.count("num_ln_in_parallel_attn", default=apart)
    if family.one_norm and apart == 1 and fields.flag(family.one_norm, default=family.one_norm == "parallel_attn"):
        return family.norms // 2
    if sparse and fields.flag("enable_moe_block"):  # Gemma 4, whose experts have norms beside the MLP's
        return family.norms + 3
    if family.norms == 4 and not fields.flag("use_post_norm", default=True):  # HyperCLOVA X: none behind the halves
        return 2
    return family.norms


def _plain(fields: Fields) -> bool:
    """OPT's norms without weights."""
    return not fields.flag("layer_norm_elementwise_affine", default=True)


def _layer_embedding(fields: Fields, hidden: int) -> list[Matrix]:
    """Gemma 3n and 4: a token's embedding for this layer, gated by the residual stream and added to it."""
    width = fields.maybe("hidden_size_per_layer_input")
    if not width:
        return []
    return [
        Matrix("per_layer_input_gate", hidden, width, "other"),
        Matrix("per_layer_projection", width, hidden, "other"),
        vector("post_per_layer_input_norm", hidden),
    ]


def _streams(fields: Fields, hidden: int) -> list[Matrix]:
    """Gemma 3n: AltUp mixes several residual streams by what a router says; LAuReL is a shortcut of low rank."""
    found = []
    streams = fields.maybe("altup_num_inputs", least=1)
    if streams:
        found += [
            Matrix("altup.modality_router", hidden, streams, "other", quantisable=False),
            vector("altup.coefs", streams**2 + streams**3, "other"),
            vector("altup.norms", 2 * hidden),
        ]
    rank = fields.maybe("laurel_rank", least=1)
    if rank:
        found += [
            Matrix("laurel.linear_left", hidden, rank, "other"),
            Matrix("laurel.linear_right", rank, hidden, "other"),
            vector("laurel.norm", hidden),
        ]
    return found
