"""Matrix products of a model's layers: y = x·Wᵀ with 16-bit and 8-bit weights, and the grouped ones
of experts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from gpubench import engine_kernels
from gpubench.lab import Lab, Operation
from gpubench.memory_and_launches import quantise
from gpubench.shapes import ExpertShape

_SAMPLE = 48
"""Rows and columns of a result that are computed in float64."""
_MOST_COPIES_BYTES = 6 << 30


def measure_products(
    lab: Lab, inputs: int, outputs: int, tokens: Iterable[int], dtype: str, engine: bool = False
) -> None:
    """One weight matrix, in copies enough to come from memory, at several numbers of tokens.

    By torch's kernel, or by an engine's.
    """
    small, by_row = dtype.startswith("fp8"), dtype == "fp8-rows"
    each_bytes = 1 if small else 2
    size = each_bytes * inputs * outputs
    copies = min(lab.copies(size), max(1, _MOST_COPIES_BYTES // size))
    weights = [lab.random(outputs, inputs, scale=inputs**-0.5) for _ in range(copies)]
    if small:
        scaled = [quantise(lab.torch, weight, by_row) for weight in weights]
        del weights
    else:
        scaled = [(weight, None) for weight in weights]
    for count in tokens:
        lab.check_time()
        x = lab.random(count, inputs)
        kernels, reference = (
            _fp8(lab, x, scaled, by_row, engine) if small else _bf16(lab, x, scaled)
        )
        operation = Operation(
            "product",
            {"tokens": count, "inputs": inputs, "outputs": outputs},
            dtype,
            flops=2.0 * count * inputs * outputs,
            moved_bytes=size + count * (each_bytes * inputs + 2 * outputs),
        )
        for kernel, call in kernels.items():
            lab.measure(
                operation,
                kernel,
                call,
                copies=copies,
                error=_error(lab, call, reference, count, outputs, copies),
                # Quantised inputs are the reference's too. What is left is rounding, and 8-bit
                # products are added up in fewer bits than 32 on Hopper (DeepSeek-V3, arXiv
                # 2412.19437, 3.3.2).
                limit=5e-2 if small else 1e-2,
            )
    lab.tidy()


Reference = Callable[[int, Any, Any], Any]
"""(which copy, rows, columns) to that part of the result, in float64."""
Kernels = dict[str, Callable[[int], Any]]
"""Whose code to the product of x and a copy of the weights by it."""


def _error(
    lab: Lab, call: Callable[[int], Any], reference: Reference, rows: int, columns: int, copies: int
) -> Callable[[], float]:
    """The error of a sample of rows and columns, of the first and of the last copy."""

    def error() -> float:
        row = lab.integers(0, rows, min(_SAMPLE, rows))
        column = lab.integers(0, columns, _SAMPLE)
        return max(
            lab.relative_error(call(copy)[row][:, column], reference(copy, row, column))
            for copy in {0, copies - 1}
        )

    return error


def _bf16(lab: Lab, x: Any, weights: list[tuple[Any, Any]]) -> tuple[Kernels, Reference]:
    out = lab.torch.empty(len(x), len(weights[0][0]), dtype=x.dtype, device=lab.device)

    def call(copy: int) -> Any:
        return lab.torch.mm(x, weights[copy][0].t(), out=out)

    def reference(copy: int, row: Any, column: Any) -> Any:
        return x[row].double() @ weights[copy][0][column].double().t()

    return {"cublas": call}, reference


def _fp8(
    lab: Lab, x: Any, weights: list[tuple[Any, Any]], by_row: bool, engine: bool
) -> tuple[Kernels, Reference]:
    torch = lab.torch
    small, x_scale = quantise(torch, x, by_row)

    def call(copy: int) -> Any:
        weight, scale = weights[copy]
        scales = {"scale_a": x_scale, "scale_b": scale.t() if by_row else scale}
        return torch._scaled_mm(
            small, weight.t(), **scales, out_dtype=torch.bfloat16, use_fast_accum=True
        )

    def reference(copy: int, row: Any, column: Any) -> Any:
        weight, scale = weights[copy]
        left = small[row].double() * (x_scale[row] if by_row else x_scale).double()
        right = weight[column].double() * (scale[column] if by_row else scale).double()
        return left @ right.t()

    if not engine:  # whose library is not even loaded before torch's kernels are measured
        return {"scaled_mm": call}, reference
    product = engine_kernels.scaled_mm(lab)
    if product is None:
        return {}, reference
    return {
        "cutlass": lambda copy: product(small, weights[copy][0].t(), x_scale, weights[copy][1])
    }, reference


def measure_experts(lab: Lab, shape: ExpertShape, tokens: Iterable[int]) -> None:
    """The first product of a layer's experts (gate and up), tokens dealt out evenly at random, in
    bf16.

    `flops` of the tokens there are; `bytes` of the experts that some token goes to.
    """
    torch = lab.torch
    grouped = getattr(torch.nn.functional, "grouped_mm", None) or getattr(
        torch, "_grouped_mm", None
    )
    what = f"experts bf16 {shape.experts}×{shape.hidden}×{2 * shape.intermediate}"
    if grouped is None:
        lab.skip(what, "this torch has no grouped product")
        return
    size = 2 * shape.experts * shape.hidden * 2 * shape.intermediate
    if 2 * size > lab.free_bytes:
        lab.skip(what, "not enough free memory")
        return
    # Each expert's rows are outputs × inputs in memory, as engines keep them.
    weights = lab.random(
        shape.experts, 2 * shape.intermediate, shape.hidden, scale=shape.hidden**-0.5
    )
    for count in tokens:
        lab.check_time()
        _experts(lab, shape, weights, grouped, count)
    lab.tidy()


def _experts(
    lab: Lab, shape: ExpertShape, weights: Any, grouped: Callable[..., Any], count: int
) -> None:
    torch, outputs = lab.torch, 2 * shape.intermediate
    chosen = torch.stack(
        [lab.shuffled(shape.experts)[: shape.per_token] for _ in range(min(count, 1024))]
    )
    chosen = chosen.repeat(-(-count // len(chosen)), 1)[:count].flatten()
    each = torch.bincount(chosen, minlength=shape.experts)
    touched, rows = int((each > 0).sum()), count * shape.per_token
    # Few tokens go to experts that the cache may hold: calls go round over other experts, as many
    # of them.
    copies = min(lab.copies(2 * touched * shape.hidden * outputs), shape.experts)
    ends = [each.roll(shift).cumsum(0).to(torch.int32) for shift in range(copies)]
    x = lab.random(rows, shape.hidden)

    def call(copy: int) -> Any:
        return grouped(x, weights.transpose(1, 2), offs=ends[copy])

    def error() -> float:
        row, last = lab.integers(0, rows, min(_SAMPLE, rows)), copies - 1
        expert = torch.searchsorted(ends[last], row.to(torch.int32), right=True)
        some = weights[:, :_SAMPLE][expert].double()
        return lab.relative_error(
            call(last)[row][:, :_SAMPLE], torch.einsum("rk,rnk->rn", x[row].double(), some)
        )

    sizes = {
        "tokens": count,
        "experts": shape.experts,
        "per_token": shape.per_token,
        "touched": touched,
    }
    operation = Operation(
        "experts",
        {**sizes, "inputs": shape.hidden, "outputs": outputs},
        flops=2.0 * rows * shape.hidden * outputs,
        moved_bytes=2.0 * touched * shape.hidden * outputs + 2.0 * rows * (shape.hidden + outputs),
    )
    lab.measure(operation, "torch", call, copies=copies, error=error)
