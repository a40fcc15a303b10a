"""What `loadstone calibrate --gpu` does: measure (or read an earlier measurement), fit, write a profile, and show the
best rates beside the data sheet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from loadstone import catalogue
from loadstone.catalogue.hardware import Gpu
from loadstone.core.errors import InputError
from loadstone.core.units import show_number, show_seconds
from loadstone.predict.calibrate import gpu as fit
from loadstone.predict.calibrate.gpu import Fitted
from loadstone.predict.gpubench import session
from loadstone.predict.gpubench.points import Bench, load
from loadstone.predict.step_time.profile import profile_of, save, user_folder

_ANY_MODEL = "llama-3.1-8b"
"""A profile belongs to an engine on a kind of GPU; a deployment names a model too."""


def calibrate(
    out: Path,
    budget_s: float = session.BUDGET_S,
    say: Callable[[str], None] = lambda text: None,
    *,
    name: str = "gpu",
    engine: str | None = None,
    measured: Path | None = None,
    folder: Path | None = None,
) -> dict[str, Any]:
    """Benchmark this machine's GPU into the file `out`, and make the profile `name` of it, for `engine`.

    `measured`: a file that was written before, perhaps elsewhere, instead of measuring. `folder`: where profiles go,
    else the user's. Returns the `--json` document. The measured points stay in `out` whatever the fit says. Raises
    InputError where there is no GPU, the catalogue does not know it, or too little was measured.
    """
    if not name or not all(letter.isalnum() or letter in "._-" for letter in name) or name.startswith("."):
        raise InputError(f"--profile {name!r}: letters, digits, dots and dashes only")
    bench = load(measured) if measured is not None else session.run(out, budget_s, say)
    path = measured or out
    gpu = fit.gpu_of(bench.device.name)
    fitted = fit.fit(bench, gpu)
    for line in lines(bench, gpu, fitted):
        say(line)
    text = f"{_ANY_MODEL}@1x{gpu.given or gpu.name}" + (f"/engine={engine}" if engine else "")
    profile = fit.updated(profile_of(catalogue.parse_deployment(text)), fitted, name, bench.created[:10])
    written = save(profile, folder or user_folder())
    say(f"profile {name}: {written}")
    return document(bench, fitted, str(path)) | {"profile": name, "profile_file": str(written)}


def best(bench: Bench) -> dict[str, float]:
    """The highest rate of each kind, in bytes/s or FLOP/s; what was not measured is missing."""
    rates = {
        "copy_bytes_per_s": [point.bytes_per_s for point in bench.of("copy")],
        "read_bytes_per_s": [point.bytes_per_s for point in bench.of("read")],
        "bf16_flops_per_s": [point.flops_per_s for point in bench.of("product", "bf16")],
        "bf16_sustained_flops_per_s": [point.flops_per_s for point in bench.of("sustained_product", "bf16")],
        "fp8_flops_per_s": [point.flops_per_s for kind in ("fp8", "fp8-rows") for point in bench.of("product", kind)],
        "decode_bytes_per_s": [point.bytes_per_s for point in bench.of("attention_decode")],
        "prefill_flops_per_s": [point.flops_per_s for point in bench.of("attention_prefill")],
    }
    return {name: max(values) for name, values in rates.items() if values}


def document(bench: Bench, fitted: Fitted, path: str) -> dict[str, Any]:
    """What `--json` prints; the points are in the file."""
    return {
        "schema": 1,
        "file": path,
        "device": msgspec.to_builtins(bench.device),
        "complete": bench.complete,
        "took_s": bench.took_s,
        "points": len(bench.points),
        "skipped": msgspec.to_builtins(bench.skipped),
        "best": best(bench),
        "fit": msgspec.to_builtins(fitted),
    }


def lines(bench: Bench, gpu: Gpu, fitted: Fitted) -> Iterator[str]:
    software = bench.device.software
    yield (
        f"{bench.device.name} · driver {bench.device.driver or 'unknown'} · torch {software['torch']} · "
        f"{len(bench.points)} points in {show_seconds(bench.took_s)}{'' if bench.complete else ', not complete'}"
    )
    for name, rate in best(bench).items():
        peak = gpu.hbm_bytes_per_s
        if "flops" in name:
            peak = gpu.peak_flops_per_s("fp8" if name.startswith("fp8") else "bf16")
        what = f"{name.removesuffix('_per_s').replace('_', ' '):22} {show_number(rate / 1e12):>6} T/s"
        yield f"  {what}  {rate / peak:4.0%} of the data sheet"
    for point in (*bench.of("launch"), *bench.of("graph_launch")):
        yield f"  {point.operator.replace('_', ' ') + ', ' + point.method:22} {show_seconds(point.median_s):>10}"
    yield "  coefficient                 value    ± standard error, scatter of points"
    for name, each in fitted.estimates.items():
        value = show_seconds(each.value) if name.endswith("_s") else f"{each.value:.3f}"
        yield f"  {name:22} {value:>10}    ± {each.spread:.1%}, {each.scatter:.1%} ({each.n})"
    if bench.skipped:
        yield f"  {len(bench.skipped)} skipped; the first: {bench.skipped[0].what}: {bench.skipped[0].why}"
