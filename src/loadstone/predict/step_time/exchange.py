"""How tokens reach experts that are dealt out over many ranks, and come back: dispatch and combine.

    seconds = FLOOR_S + copies · (dispatched + combined bytes of a token) / rate, for each token of
    a rank

Within a scale-up domain (a node, or a rack of 72) and in kernels of low latency, each of a token's
k experts gets a copy; so k·(1 − 1/n) leave the rank, or the node where n nodes share the experts.
Kernels for prompts send one copy to each node, from which NVLink takes it on. Two rates and a floor
meet what was measured of the kernels alone:

    NVL72, one-sided, GB200, EP 8 to 64 (TensorRT-LLM's blog 18)               72 to 78 % of the
    links, 48 µs DeepEP, low latency, H100, EP 16, 32, 64 (AIConfigurator's tables)         92 % of
    a 400 Gbit/s card, 45 to 52 µs DeepEP, low latency, H800, EP 128 (its own page)
    86 % DeepEP, normal, H100, EP 16 and 32 (AIConfigurator's tables)               77 and 93 %
    MoRI, MI300X, EP 16 and 32 (its own page)                                  within 12 % of the
    sum
"""

from typing import NamedTuple

from loadstone.catalogue.deployment.deployment import Worker

WIDE = 16
"""Ranks of experts from which on engines deal tokens out; with fewer, step times are those of
measured engines, most of which gather the tokens of all ranks."""
FLOOR_S = 50e-6
"""Both ways together, however few the tokens."""
FEW_TOKENS = 512.0
"""Of a rank, up to which engines take kernels of low latency between nodes (128 to 1,024 in
published launches)."""
HIDDEN = 0.5
"""Where the halves of a batch take turns, of the shorter of products and exchange: prompts gain 31
% then, as LMSYS measured 27 to 35 % of DeepSeek-V3 on 32 H100."""
DEALT_COMPUTE, DEALT_MEMORY = 0.7, 0.95
"""Of peak: DeepGEMM's grouped products in FP8 on the tokens that came, on H800. Its page has 815 to
1,233 TFLOP/s for 1,024 tokens of one to four experts; the sum of both times is within a fifth of
that."""
_LINK_SHARE, _NETWORK_SHARE = 0.72, 0.92
_BACKENDS = ("deepep", "mooncake", "mori")
"""SGLang's --moe-a2a-backend."""
_USUAL_NIC = 50e9
_COMBINED_BYTES = 2.0


class Exchange(NamedTuple):
    """Holds what a token takes on its way: `message` bytes where each expert gets a copy, `bundled`
    bytes where each node does, over `link` bytes per second."""

    message: float
    bundled: float
    link: float


def is_wide(worker: Worker) -> bool:
    """Tell whether tokens are dealt out to ranks with whole experts, not gathered on every rank:
    over many ranks, or where the engine is told to."""
    ranks = min(worker.ep, worker.moe_ranks)
    ordered = worker.argument("moe_a2a_backend") in _BACKENDS and ranks > 1
    return worker.attention_dp and (ranks >= WIDE or ordered)


def guesses_network(worker: Worker) -> bool:
    """Tell whether its steps cross nodes by collectives: none was measured there, but exchanges
    were."""
    dealt = is_wide(worker) and worker.pp == 1 and worker.tp <= worker.gpus // worker.nodes
    return worker.nodes_crossed > 1 and not dealt


def exchange_of(worker: Worker, width: int, per_token: int, sent_bytes: float) -> Exchange:
    """Return the way of a token of `width` values, `sent_bytes` each, to its experts and back."""
    gpu, nodes = worker.gpu, worker.nodes_crossed
    token_bytes = width * (sent_bytes + _COMBINED_BYTES)
    if nodes > 1:
        copies = per_token * (1 - 1 / nodes)
        bundled = (nodes - 1) * (1 - (1 - 1 / nodes) ** per_token)
        return Exchange(
            copies * token_bytes,
            bundled * token_bytes,
            _NETWORK_SHARE * (gpu.nic_bytes_per_s or _USUAL_NIC),
        )
    ranks = worker.moe_ranks
    message = per_token * (1 - 1 / ranks) * token_bytes
    return Exchange(
        message,
        message,
        _LINK_SHARE * min(gpu.link_bytes_per_s, gpu.pair_bytes_per_s * (ranks - 1)),
    )
