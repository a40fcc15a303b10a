"""Peak memory of a step beside weights and KV cache.

Shaped after vLLM's profile run, and checked against what 29 runs of vLLM 0.15 to 0.19 on an H100 printed
(docs/sizing.md). Two moments can be the peak: the widest layer of a full batch, or sampling for `max_seqs` sequences,
whose logits are several copies of max_seqs × vocabulary. The second nearly always is.
"""

from __future__ import annotations

from loadstone.catalogue.deployment.deployment import Deployment
from loadstone.predict.sharding.limits import Limits
from loadstone.predict.sharding.rank import Rank, shape_of, widths

LOGIT_BYTES = 14
"""Per logit while sampling: as computed in bf16 (2), as float (4), probabilities (4), random numbers (4)."""
SORTED_LOGIT_BYTES = 38
"""Likewise where top-k and top-p sort the vocabulary: vLLM before 0.17. Measured: 37.9 on Llama-3.1-8B and on
Qwen3-14B."""
FILTER_ROWS = 132
"""Rows of float logits that the filter without sorting keeps at hand, one per multiprocessor: of an H100."""
ROUTED_TOKENS = 32_768
"""Tokens that the experts' kernel takes at once."""

_BYTES = 2  # activations are bf16, whatever the weights are


def activation_bytes(deployment: Deployment, rank: Rank, limit: Limits, logit_bytes: int) -> float:
    """Peak bytes of one rank, T = max_batched_tokens, S = min(max_seqs, T), V the vocabulary, h the hidden size:

    2 T h (residual stream and a layer's output, bf16) + the experts' buffers, which stay allocated, + the larger of
      sampling   S V logit_bytes + 4 min(S, 132) V where nothing is sorted; on the rank with the head
      a layer    T (MLP's gate, up and product + h), bf16
    Tensor parallelism cuts the layer, not the sampling: logits are gathered.
    """
    model, batched_tokens = deployment.model, limit.max_batched_tokens
    dense, routed = widths(model, shape_of(deployment))
    seqs = min(limit.max_seqs, batched_tokens)
    layer = _BYTES * batched_tokens * (dense + model.hidden)
    sampling = 0.0
    if rank.head:
        sampling = float(seqs * model.vocab * logit_bytes)
        if logit_bytes == LOGIT_BYTES:
            sampling += 4 * min(seqs, FILTER_ROWS) * model.vocab
    experts = _BYTES * min(batched_tokens, ROUTED_TOKENS) * routed
    return 2 * _BYTES * batched_tokens * model.hidden + experts + max(layer, sampling)
