"""From a GPU's benchmark to the performance model's coefficients of that GPU, and into a profile.

The same formulas as loadstone.predict.step_time.formulas, each kernel with a floor t0:

    product         t0 + ‖ FLOPs/(eC·peak), bytes/(eM·bandwidth) ‖          ‖a, b‖ = (a³ + b³)^⅓
    experts         t0 + FLOPs/(xC·c·peak) + bytes/(xM·m·bandwidth), c and m of engines' kernels (expert_kernels.py)
    decode          t0 + ‖ bytes/(eA·bandwidth), FLOPs/(eP·peak) ‖
    prompt          t0 + FLOPs/(eP·peak)
    product_s       t0 of 16-bit products
    layer_s         a layer in a graph − its products + the floor of a decode attention
    launch_s        the host's time for launching a kernel

Robust least squares of ln(measured/predicted) over the fastest kernel of each shape. `spread` is the standard error
of ln(value), `scatter` what single points are off by. An engine has its own kernels and its own host code: how far
they may be from these is TRANSFER, and goes in where a profile is updated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from loadstone import catalogue
from loadstone.catalogue.find import match_gpu
from loadstone.catalogue.hardware import Gpu
from loadstone.core.errors import InputError
from loadstone.predict.gpubench.points import Bench, Point, fastest
from loadstone.predict.step_time.boards import architecture_of
from loadstone.predict.step_time.coefficients import COEFFICIENTS, INDEX, Array
from loadstone.predict.step_time.expert_kernels import expert_kernel
from loadstone.predict.step_time.formulas import both
from loadstone.predict.step_time.profile import Profile, Provenance

TRANSFER = {
    "gemm_compute_bf16": 0.05, "gemm_memory_bf16": 0.05, "gemm_compute_fp8": 0.12, "gemm_memory_fp8": 0.12,
    "expert_compute": 0.25, "expert_memory": 0.25, "attention_decode": 0.15, "attention_prefill": 0.15,
    "product_s": 0.20, "layer_s": 0.40, "launch_s": 0.60,
}  # fmt: skip
"""Standard deviation of ln(engine's / measured here): engines call the same libraries for products, have attention
kernels of their own, and fuse and launch small kernels in their own way. Guesses, from how the two differ."""
FLOOR_S = 3e-6
_FLOOR_SPREAD = 1.0
_LEAST_POINTS = 4
_LEAST_SCATTER = 0.01
_WEAK = 1.5
"""Spread of the belief a fit begins with: what the points do not tell stays that wide, and is left out."""
_KNOWN = 0.5
_FEW_TOKENS = 64
Law = Callable[[Array], Array]
"""From values, efficiencies and a floor in seconds, to the seconds of each point."""
_PRIORS = {each.name: each.prior for each in COEFFICIENTS}


class Estimate(msgspec.Struct, frozen=True):
    """A coefficient as measured here: its value, standard error and scatter of its logarithm, from n points."""

    value: float
    spread: float
    scatter: float
    n: int


class Fitted(msgspec.Struct, frozen=True):
    """`estimates`: coefficients by the performance model's names. `floors_s`: t0 by operator."""

    gpu: str
    device: str
    estimates: dict[str, Estimate]
    floors_s: dict[str, float]


def gpu_of(device: str) -> Gpu:
    """The catalogued GPU that a driver's name means: `NVIDIA H100 80GB HBM3` is h100, `NVIDIA H100 PCIe` is not, nor
    is a slice of one. Raises InputError where the catalogue has none.
    """
    match = match_gpu(device)
    if match is None or match.form:
        raise InputError(f"{device}: not a GPU of the catalogue; see loadstone catalogue gpus")
    if re.search(r"\bmig\b", device, re.IGNORECASE):
        raise InputError(f"{device}: a slice of a GPU, which no data sheet is of; use the whole GPU")
    return catalogue.gpu(match.key)


def fit(bench: Bench, gpu: Gpu | None = None) -> Fitted:
    """Raises InputError where the points say nothing about any coefficient."""
    gpu = gpu or gpu_of(bench.device.name)
    fitted = Fitted(gpu.name, bench.device.name, {}, {})
    hbm, peak16 = gpu.hbm_bytes_per_s, gpu.peak_flops_per_s("bf16")
    for dtype, kinds in (("bf16", ("bf16",)), ("fp8", ("fp8-rows", "fp8"))):
        points = next(filter(None, (fastest(bench.of("product", kind, "graph")) for kind in kinds)), [])
        names = (f"gemm_compute_{dtype}", f"gemm_memory_{dtype}")
        law = _product_law(points, gpu.peak_flops_per_s(dtype), hbm)
        _add(fitted, f"product_{dtype}", names, points, law, "product_s" if dtype == "bf16" else None)
    kernel = expert_kernel("*", architecture_of(gpu), "bf16")
    points = fastest(bench.of("experts", "bf16", "graph"))
    computed_s = _column(points, "flops") / (kernel.compute * peak16)
    moved_s = _column(points, "bytes") / (kernel.memory * hbm)
    names = ("expert_compute", "expert_memory")
    _add(fitted, "experts", names, points, lambda e: e[2] + computed_s / e[0] + moved_s / e[1])
    prompts = fastest(bench.of("attention_prefill", method="graph"))
    prompt_s = _column(prompts, "flops") / peak16
    _add(fitted, "attention_prefill", ("attention_prefill",), prompts, lambda e: e[1] + prompt_s / e[0])
    decodes = fastest(bench.of("attention_decode", method="graph"))
    known = fitted.estimates.get("attention_prefill")
    products_s = _column(decodes, "flops") / (peak16 * (known.value if known else _PRIORS["attention_prefill"]))
    read_s = _column(decodes, "bytes") / hbm
    one = ("attention_decode",)
    _add(fitted, "attention_decode", one, decodes, lambda e: e[1] + both(read_s / e[0], products_s))
    _add_layers(fitted, bench, hbm, peak16)
    _add_times(fitted, "launch_s", [point.median_s for point in bench.of("launch", "bf16", "host")], [0.0])
    if not fitted.estimates:
        eager = sum(point.method == "eager" for point in bench.points)
        why = f"{eager} were not captured in CUDA graphs" if eager else "give it more time"
        raise InputError(f"a benchmark of {bench.device.name}: too few points to fit anything; {why}")
    return fitted


def _product_law(points: Sequence[Point], flops_per_s: float, bytes_per_s: float) -> Law:
    """Of a compute efficiency, a memory efficiency and a floor."""
    flops_s, bytes_s = _column(points, "flops") / flops_per_s, _column(points, "bytes") / bytes_per_s
    return lambda e: e[2] + both(flops_s / e[0], bytes_s / e[1])


def _column(points: Sequence[Point], name: str) -> Array:
    return np.array([getattr(point, name) for point in points], dtype=np.float64)


def _add(
    fitted: Fitted, operator: str, names: tuple[str, ...], points: Sequence[Point], law: Law, floor: str | None = None
) -> None:
    """Fit efficiencies `names` and a floor, the last of the values that `law` takes, which is the coefficient `floor`
    if it is one."""
    if len(points) < _LEAST_POINTS:
        return
    from scipy.optimize import least_squares

    measured = np.log(_column(points, "median_s"))
    x = start = np.log([*(_PRIORS[name] for name in names), FLOOR_S])
    width = np.array([_WEAK] * len(names) + [_FLOOR_SPREAD])

    def gaps(x: Array) -> Array:
        return np.asarray(measured - np.log(law(np.exp(x))), dtype=np.float64)

    def residuals(x: Array, scatter: float) -> Array:
        return np.concatenate([gaps(x) / scatter, (x - start) / width])

    scatter = 0.1
    for turn in range(3):
        if turn:
            scatter = max(_LEAST_SCATTER, 1.4826 * float(np.median(np.abs(gaps(x)))))
        x = least_squares(residuals, x, loss="soft_l1", f_scale=1.5, args=(scatter,)).x
    # Of the unscaled problem: what soft_l1 does to the Jacobian is undone.
    step = 1e-5 * np.eye(len(x))
    jacobian = np.stack([residuals(x + s, scatter) - residuals(x - s, scatter) for s in step], 1) / 2e-5
    spread = np.sqrt(np.diag(np.linalg.inv(jacobian.T @ jacobian)))
    for name, value, unsure in zip((*names, floor), np.exp(x).tolist(), spread.tolist(), strict=True):
        if name is not None and unsure < _KNOWN:
            fitted.estimates[name] = Estimate(value, unsure, scatter, len(points))
    if spread[-1] < _KNOWN:
        fitted.floors_s[operator] = float(np.exp(x[-1]))


def _add_layers(fitted: Fitted, bench: Bench, hbm: float, peak: float) -> None:
    """What a layer takes beside its products, of points with few tokens."""
    compute, memory = (fitted.estimates.get(f"gemm_{which}_bf16") for which in ("compute", "memory"))
    if compute is None or memory is None:
        return
    left, unsure = [], []
    for point in bench.of("layer", "bf16", "graph"):
        size = point.shape
        hidden, wide, tokens = size["hidden"], size["intermediate"], size["tokens"]
        if tokens > _FEW_TOKENS:
            continue
        query, key = size["heads"] * size["head_dim"], size["kv_heads"] * size["head_dim"]
        inputs = np.array([hidden, query, hidden, wide])
        outputs = np.array([query + 2 * key, hidden, 2 * wide, hidden])
        computed_s = 2.0 * tokens * inputs * outputs / (compute.value * peak)
        moved_s = 2.0 * (inputs * outputs + tokens * (inputs + outputs)) / (memory.value * hbm)
        floors_s = len(inputs) * fitted.floors_s.get("product_bf16", 0.0)
        products_s = floors_s + sum(both(computed_s, moved_s).tolist())
        left.append(point.median_s - products_s + fitted.floors_s.get("attention_decode", 0.0))
        unsure.append(memory.spread * products_s)
    _add_times(fitted, "layer_s", left, unsure)


def _add_times(fitted: Fitted, name: str, seconds: Sequence[float], unsure_s: Sequence[float]) -> None:
    """The median of `seconds`; `unsure_s`: the error that they share, for they are differences."""
    if not seconds or min(seconds) <= 0:
        return  # what is left of a layer is lost in the error of its products
    logs = np.log(seconds)
    value, scatter = float(np.exp(np.median(logs))), max(_LEAST_SCATTER, float(logs.std()))
    spread = float(np.hypot(scatter / len(logs) ** 0.5, max(unsure_s) / value))
    if spread < _KNOWN:
        fitted.estimates[name] = Estimate(value, spread, scatter, len(logs))


def updated(profile: Profile, fitted: Fitted, name: str, date: str) -> Profile:
    """`profile` with what was measured on this GPU: a Bayesian update of its log-normal coefficients, each measured
    one with the variance spread² + TRANSFER². Those that correlate with them move too. A fit without a model family
    moves by the same rule, so that a family's own points still do not score themselves. What the model has no
    coefficient for stays out.
    """
    names = [each for each in fitted.estimates if each in INDEX]
    at = [INDEX[each] for each in names]
    measured = [fitted.estimates[each] for each in names]
    seen = np.log([each.value for each in measured])
    noise = np.diag([each.spread**2 + TRANSFER[n] ** 2 for n, each in zip(names, measured, strict=True)])
    covariance = np.array(profile.covariance)
    gain = covariance[:, at] @ np.linalg.inv(covariance[np.ix_(at, at)] + noise)

    def moved(logarithms: Sequence[float]) -> tuple[float, ...]:
        before = np.array(logarithms)
        return tuple((before + gain @ (seen - before[at])).tolist())

    after = covariance - gain @ covariance[at]
    after = (after + after.T) / 2
    old, points = profile.provenance, sum(each.n for each in measured)
    return msgspec.structs.replace(
        profile,
        name=name,
        logarithms=moved(profile.logarithms),
        covariance=tuple(map(tuple, after.tolist())),
        held_out={family: moved(each) for family, each in profile.held_out.items()},
        provenance=Provenance(
            script="loadstone calibrate --gpu",
            date=date,
            rows=old.rows,
            sources=old.sources,
            note=f"{profile.name}, and {points} points measured on {fitted.device}. {old.note}".strip(),
        ),
    )
