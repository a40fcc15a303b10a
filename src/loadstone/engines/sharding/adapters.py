"""Counts LoRA adapters: their numbers on a rank, and the slots in which an engine keeps them.

An adapter of rank r has for a matrix of so many inputs and outputs a half of inputs · r numbers and
one of r · outputs. Tensor parallelism cuts one of the two with the matrix, the other is whole on
every rank.
"""

from collections.abc import Iterator
from functools import lru_cache

import msgspec

from loadstone.catalogue.architecture.model import FullAttention, Layers, Matrix, Model
from loadstone.engines.sharding.rank import Shape, layers_between, stage_layers

_ADAPTED = ("attention", "mlp", "experts")
_INDEXERS = ("self_attn.index_", "self_attn.indexer.")


class AdapterSlots(msgspec.Struct, frozen=True):
    """Holds how an engine keeps adapters.

    slots        that each GPU has: as many different adapters can be in a batch
    rank         that each slot has room for
    host         adapters that the host's memory keeps; others are read from disk
    allocated    the slots' memory is taken before the KV cache, used or not
    targets      matrices that a slot has room for: `all`, or the ends of their names
    split        both halves are cut over the ranks
    needs_base   requests without an adapter take one slot of a batch, all together
    passes       who finds no slot is passed by those behind it; else they wait too
    overlaps     steps do not wait for loads
    idle         what a step pays for slots: `always`, if it has adapters (`used`), or for those of
                 the adapters in it alone (`active`)
    measured     there are measurements of such a release's steps
    """

    slots: int
    rank: int = 16
    host: int = 1 << 30
    allocated: bool = True
    targets: str = "all"
    split: bool = False
    needs_base: bool = False
    passes: bool = True
    overlaps: bool = False
    idle: str = "always"
    measured: bool = False


def adapted(run: Layers, hidden: int, targets: str = "all") -> Iterator[Matrix]:
    """Yield the matrices of one layer that an adapter has two halves for."""
    ends = tuple(targets.split("+"))
    for matrix in run.weights(hidden):
        projects = matrix.kind in _ADAPTED and matrix.quantisable
        if not projects or matrix.name.startswith(_INDEXERS):
            continue
        if targets == "all" or matrix.name.endswith(ends):
            yield matrix


@lru_cache(maxsize=1024)
def adapter_numbers(
    model: Model, shape: Shape, stage: int | None = None, targets: str = "all", split: bool = False
) -> float:
    """Count the numbers of an adapter on one rank, for each unit of its rank; `stage`: of a
    pipeline, None: of all its stages together."""
    sizes = stage_layers(model.layer_count, shape.pp)
    first = 0 if stage is None else sum(sizes[:stage])
    last = model.layer_count if stage is None else first + sizes[stage]
    total = 0.0
    for run, count in layers_between(model.layers, first, last):
        attention = run.attention
        kv_heads = attention.kv_heads if isinstance(attention, FullAttention) else 1
        for matrix in adapted(run, model.hidden, targets):
            total += count * _halves(matrix, shape, kv_heads, split)
    return total


def _halves(matrix: Matrix, shape: Shape, kv_heads: int, split: bool) -> float:
    """Count the numbers of both halves of a matrix on one rank, for each unit of rank."""
    ways, copies = shape.tp, 1
    if matrix.split == "replicated":
        ways = 1
    elif matrix.split == "kv":
        ways = min(shape.tp, kv_heads)
    elif matrix.split == "expert":
        ways, copies = shape.expert_tp, -(-matrix.copies // shape.expert_ep)
    rows = matrix.split == "row" or (matrix.kind == "experts" and "down" in matrix.name)
    cut, whole = matrix.outputs, matrix.inputs
    if rows:
        cut, whole = whole, cut
    return copies * (cut / ways + whole / (ways if split else 1))


@lru_cache(maxsize=1024)
def adapted_modules(model: Model, targets: str = "all") -> tuple[int, int]:
    """Count what engines compute adapters for in all layers: (fused modules, tensors). Matrices of
    one input are fused, such as q, k and v, or gate and up."""
    modules = tensors = 0
    for run in model.kinds:
        matrices = list(adapted(run, model.hidden, targets))
        fused = {(m.kind, m.inputs, m.split == "row", "down" in m.name) for m in matrices}
        modules += run.count * len(fused)
        tensors += run.count * 2 * len(matrices)
    return modules, tensors
