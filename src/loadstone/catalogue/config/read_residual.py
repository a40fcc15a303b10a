"""From a config's fields to what a model does with its residual stream, beside the norms of each half."""

from __future__ import annotations

from loadstone.catalogue.architecture.matrix import Matrix, vector
from loadstone.catalogue.config.families import Family
from loadstone.catalogue.config.fields import Fields


def residual_matrices(fields: Fields, family: Family, hidden: int, sparse: bool) -> list[Matrix]:
    """Of one layer; `sparse`: its MLP is experts."""
    found = []
    if sparse and family.sparse_norms:
        found.append(vector("mlp.norms", family.sparse_norms * hidden))
    pooled = fields.maybe("moe_hidden_size", least=1)
    if sparse and pooled:  # Muse Spark: norms around the experts, at the width that they work at
        found.append(vector("mlp.latent_norms", 2 * pooled))
    streams = _streams(fields)
    if streams:
        # Hyper-connections: before and after each half, a map from all residual streams to their mixing weights: n to
        # read, n to write, and where they are manifold-constrained (DeepSeek-V4) n² among themselves; with scales.
        among = 0 if fields.find("hc_magnitude") else streams
        mix, scales = (2 + among) * streams, 3 if among else 2
        found.append(vector("hyper_connections", 2 * (mix * streams * hidden + mix + scales), "other"))
    return found


def residual_ends(fields: Fields, family: Family, hidden: int) -> tuple[Matrix, ...]:
    """Of the whole model: what joins the residual streams before the last norm."""
    streams = _streams(fields)
    if streams is None or family.streams_averaged:
        return ()
    return (vector("hyper_head", streams * streams * hidden + streams + 1, "other"),)


def _streams(fields: Fields) -> int | None:
    """Of hyper-connections; None: one stream."""
    said, on = fields.maybe("hc_mult", least=1), fields.flag("enable_ihc", default=True)
    return said if on else None
