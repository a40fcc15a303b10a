"""Describes a weight matrix: its shape, what kind it is, and how tensor parallelism cuts it."""

from typing import Literal

import msgspec

Kind = Literal[
    "embedding", "attention", "linear", "mlp", "experts", "router", "norm", "other", "vision"
]
Split = Literal["column", "row", "kv", "replicated", "expert", "vocab"]


class Matrix(msgspec.Struct, frozen=True):
    """Holds a weight matrix, or `copies` of them, of which a token passes through `active`.

    `split`: what tensor parallelism of n does to it.
        column      outputs / n            row         inputs / n
        kv          whole KV heads: outputs / min(n, kv_heads); beyond that, heads are copied
        replicated  whole on every rank    vocab       outputs / n (or rows of the embedding)
        expert      an expert's column or row; with expert parallelism whole experts are dealt out
    `quantisable`: whether engines quantise it when told to quantise a model (norms, routers,
    embeddings: no).
    """

    name: str
    inputs: int
    outputs: int
    kind: Kind
    split: Split = "replicated"
    copies: int = 1
    active: int = 1
    quantisable: bool = True

    @property
    def parameters(self) -> int:
        return self.inputs * self.outputs * self.copies

    @property
    def active_parameters(self) -> int:
        return self.inputs * self.outputs * self.active


def vector(name: str, length: int, kind: Kind = "norm") -> Matrix:
    """Return a norm's weights or a bias: never quantised, whole on every rank."""
    return Matrix(name, 1, length, kind, quantisable=False)
