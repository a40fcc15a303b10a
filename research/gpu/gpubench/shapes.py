"""Which shapes are worth measuring: those of models' layers as engines run them, products with one
input joined."""

from __future__ import annotations

from typing import NamedTuple

TOKENS = (1, 8, 64, 256, 1024, 8192)
TOKENS_BETWEEN = (2, 4, 16, 32, 128, 512, 2048, 4096)
DECODE = (
    (1, 1024),
    (8, 1024),
    (32, 1024),
    (128, 1024),
    (32, 4096),
    (256, 1024),
    (8, 16384),
    (1, 65536),
)
DECODE_BETWEEN = ((64, 512), (64, 2048), (16, 4096), (1, 8192), (64, 8192), (4, 32768), (2, 131072))
"""(sequences, context tokens of each)"""
PREFILL = ((1024, 0), (2048, 0), (8192, 0), (2048, 8192), (512, 4096))
PREFILL_BETWEEN = ((256, 0), (512, 0), (4096, 0), (16384, 0), (2048, 30720), (512, 32768))
"""(new tokens, cached tokens)"""


class Heads(NamedTuple):
    """Attention of one rank."""

    heads: int
    kv_heads: int
    head_dim: int


class Rank(NamedTuple):
    """What one GPU computes of a model: `products` y = x·Wᵀ by (columns of x, rows of W), and the
    kind of attention. `mlp`: the width of an ordinary decoder layer's MLP, where one is measured
    whole.
    """

    name: str
    products: tuple[tuple[int, int], ...]
    heads: Heads | None
    mlp: int | None = None


class ExpertShape(NamedTuple):
    """The experts of one layer: W₁ joins gate and up."""

    experts: int
    per_token: int
    hidden: int
    intermediate: int


# fmt: off
RANKS = (
    Rank("llama-3.1-8b/tp1", ((4096, 6144), (4096, 4096), (4096, 28672), (14336, 4096), (4096, 128256)),
         Heads(32, 8, 128), 14336),
    Rank("qwen3-32b/tp1", ((5120, 10240), (8192, 5120), (5120, 51200), (25600, 5120), (5120, 151936)),
         Heads(64, 8, 128), 25600),
    Rank("llama-3.1-70b/tp1", ((8192, 10240), (8192, 8192), (8192, 57344), (28672, 8192), (8192, 128256)),
         Heads(64, 8, 128), 28672),
    Rank("llama-3.1-70b/tp8", ((8192, 1280), (1024, 8192), (8192, 7168), (3584, 8192), (8192, 16032)),
         Heads(8, 1, 128)),
    Rank("llama-3.1-70b/tp4", ((8192, 2560), (2048, 8192), (8192, 14336), (7168, 8192), (8192, 32064)),
         Heads(16, 2, 128)),
    Rank("mistral-nemo/tp1", ((5120, 6144), (4096, 5120), (5120, 28672), (14336, 5120), (5120, 131072)),
         Heads(32, 8, 128), 14336),
    Rank("deepseek-v3/tp8", ((7168, 2112), (1536, 3072), (512, 4096), (2048, 7168), (7168, 4608), (2304, 7168),
                             (7168, 512), (256, 7168), (7168, 16160)), None),
)
"""In the order of what matters most."""
# fmt: on
EXPERTS = {
    "mixtral-8x7b": ExpertShape(8, 2, 4096, 14336),
    "qwen3-30b-a3b": ExpertShape(128, 8, 2048, 768),
    "gpt-oss-20b": ExpertShape(32, 4, 2880, 2880),
}
