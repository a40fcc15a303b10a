"""A session: what is measured, in the order of what matters most, within a budget of time."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Concatenate, NamedTuple, ParamSpec

from gpubench import engine_kernels, memory_and_launches, shapes
from gpubench.attention import measure_decode, measure_prefill
from gpubench.lab import Lab, OutOfTimeError, describe_device, number_of
from gpubench.points import Bench, Skipped, save
from gpubench.products import measure_experts, measure_products
from loadstone.core.errors import InputError
from loadstone.core.version import __version__
from loadstone.measure.nvml import Gpus

BUDGET_S = 480.0
LARGE = 8192
"""A square product of this size shows the best rate that a library reaches."""
_SPEND_S = 0.02
"""Time spent on the repeats of a point, about."""

P = ParamSpec("P")


class Job(NamedTuple):
    """A group of points: the lower `rank`, the sooner."""

    rank: int
    name: str
    run: Callable[[Lab], None]


def run(
    out: Path,
    budget_s: float = BUDGET_S,
    say: Callable[[str], None] = lambda text: None,
    *,
    device: str = "cuda",
    only: tuple[str, ...] = (),
) -> Bench:
    """Measure, and keep what was measured in the file `out` after every group of points.

    Ends soon after `budget_s` seconds whatever is left; `Bench.complete` says whether all was
    measured. `only`: groups whose name begins with one of these. Raises InputError where there is
    no torch or no GPU.
    """
    if budget_s <= 0:
        raise InputError(f"--budget {budget_s:g}: must be above 0 seconds")
    try:
        import torch
    except ImportError:
        raise InputError(
            "torch is missing; install it beside loadstone, built for this GPU"
        ) from None
    if not out.parent.is_dir():
        raise InputError(f"{out}: its folder is missing; make it first")
    if device != "cpu" and not torch.cuda.is_available():
        raise InputError(
            "torch sees no GPU here; see what nvidia-smi says, and that torch is built for CUDA"
        )
    with contextlib.ExitStack() as stack:
        gpus = None
        if device != "cpu":
            try:
                gpus = stack.enter_context(Gpus())
            except InputError as missing:
                say(f"no clocks and no power: {missing}")
        bench = Bench(
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            loadstone=__version__,
            device=describe_device(device, gpus),
            budget_s=budget_s,
        )
        lab = Lab(bench, device, budget_s, gpus=gpus, gpu=number_of(device, gpus), spend_s=_SPEND_S)
        # Captures may collect garbage: what is there by now need not be looked through each time.
        gc.freeze()
        stack.callback(gc.unfreeze)
        with torch.inference_mode():
            _measure(lab, jobs(small=not lab.cuda), only, out, say)
    return bench


def _measure(
    lab: Lab, selected: list[Job], only: tuple[str, ...], out: Path, say: Callable[[str], None]
) -> None:
    bench = lab.bench
    selected = [job for job in selected if not only or job.name.startswith(only)]
    lab.note("before")
    left = list(selected)
    try:
        for job in selected:
            lab.check_time()
            before = len(bench.points)
            try:
                job.run(lab)
            except OutOfTimeError:
                raise
            except (
                Exception
            ) as error:  # out of memory, or not supported here: the others still count
                lab.skip(job.name, error)
            left.remove(job)
            bench.took_s = round(lab.took_s, 3)
            save(bench, out)
            say(f"{lab.took_s:5.0f} s  {job.name}: {len(bench.points) - before} points")
        bench.complete = True
    except OutOfTimeError:
        why = (
            f"the GPU failed: {lab.broken}"
            if lab.broken
            else f"the budget of {bench.budget_s:g} s was spent"
        )
        bench.skipped += [Skipped(job.name, why) for job in left]
        say(f"{why}; {len(left)} of {len(selected)} groups are missing or not whole")
    if not lab.broken:
        lab.note("after")
    bench.took_s = round(lab.took_s, 3)
    save(bench, out)


def jobs(small: bool = False) -> list[Job]:
    """All groups in their order. `small`: tiny shapes, for trying the code on a processor."""
    return sorted(_small() if small else _full(), key=lambda job: job.rank)


def _of(
    measure: Callable[Concatenate[Lab, P], None], *args: P.args, **named: P.kwargs
) -> Callable[[Lab], None]:
    """What a job runs: `measure` of these, once there is a lab."""
    return lambda lab: measure(lab, *args, **named)


def _full() -> Iterator[Job]:
    yield Job(0, "memory bandwidth", memory_and_launches.bandwidth)
    for dtype in ("bf16", "fp8", "fp8-rows"):
        yield Job(
            1, f"product {LARGE}³ {dtype}", _of(measure_products, LARGE, LARGE, (LARGE,), dtype)
        )
    yield Job(2, "launch floors", memory_and_launches.floors)
    seen: set[Any] = set()
    engine = engine_kernels.installed()
    for place, (name, products, heads, mlp) in enumerate(shapes.RANKS):
        far = 10 * min(place, 1) + place
        for size in products:
            if size in seen:
                continue
            seen.add(size)
            for later, dtype in enumerate(("bf16", "fp8-rows", "fp8")):
                task = f"product {size[0]}→{size[1]} {dtype} ({name})"
                yield Job(
                    10 + far + 2 * later, task, _of(measure_products, *size, shapes.TOKENS, dtype)
                )
                more = _of(measure_products, *size, shapes.TOKENS_BETWEEN, dtype)
                yield Job(60 + far + 2 * later, f"{task}, between", more)
                if engine and dtype == "fp8-rows":
                    again = _of(measure_products, *size, shapes.TOKENS, dtype, engine=True)
                    yield Job(42 + place, f"engine's {task}", again)
        if heads is not None and heads not in seen:
            seen.add(heads)
            task = f"{heads.heads}/{heads.kv_heads} heads of {heads.head_dim} ({name})"
            for later, (what, measure, usual, between) in enumerate((
                ("decode", measure_decode, shapes.DECODE, shapes.DECODE_BETWEEN),
                ("prefill", measure_prefill, shapes.PREFILL, shapes.PREFILL_BETWEEN),
            )):  # fmt: skip
                yield Job(11 + far + later, f"attention {what} {task}", _of(measure, heads, usual))
                yield Job(
                    61 + far + later,
                    f"attention {what} {task}, between",
                    _of(measure, heads, between),
                )
                if engine:
                    again = _of(measure, heads, usual, engine=True)
                    yield Job(41 + place, f"engine's attention {what} {task}", again)
        if heads is not None and mlp is not None:
            whole = _of(memory_and_launches.layer, products[0][0], heads, mlp, (1, 8, 64, 256))
            yield Job(13 + far, f"layer of {name}", whole)
    yield Job(14, "small kernels", memory_and_launches.small_kernels)
    yield Job(15, "sustained product", memory_and_launches.sustained)
    for name, shape in shapes.EXPERTS.items():
        yield Job(40, f"experts of {name}", _of(measure_experts, shape, (1, 8, 64, 512, 4096)))


def _small() -> Iterator[Job]:
    heads = shapes.Heads(4, 2, 32)
    yield Job(0, "memory bandwidth", memory_and_launches.bandwidth)
    yield Job(1, "launch floors", memory_and_launches.floors)
    for dtype in ("bf16", "fp8", "fp8-rows"):
        yield Job(2, f"product {dtype}", _of(measure_products, 64, 96, (1, 16), dtype))
    yield Job(3, "attention decode", _of(measure_decode, heads, ((2, 50),)))
    yield Job(3, "attention prefill", _of(measure_prefill, heads, ((16, 0), (8, 24))))
    yield Job(4, "small kernels", memory_and_launches.small_kernels)
    yield Job(5, "layer", _of(memory_and_launches.layer, 64, heads, 96, (1, 4)))
    yield Job(6, "experts", _of(measure_experts, shapes.ExpertShape(8, 2, 64, 32), (1, 16)))
