"""What `loadstone calibrate --gpu` does: measure (or read what was measured), fit, and write a profile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from loadstone import catalogue
from loadstone.core.errors import InputError
from loadstone.gpubench import session
from loadstone.gpubench.points import load
from loadstone.predict.calibrate import gpu as fit
from loadstone.predict.step_time.profile import profile_of, save, user_folder
from loadstone.runs import gpu_table

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
    for line in gpu_table.lines(bench, gpu, fitted):
        say(line)
    text = f"{_ANY_MODEL}@1x{gpu.given or gpu.name}" + (f"/engine={engine}" if engine else "")
    profile = fit.updated(profile_of(catalogue.parse_deployment(text)), fitted, name, bench.created[:10])
    written = save(profile, folder or user_folder())
    say(f"profile {name}: {written}")
    return gpu_table.document(bench, fitted, str(path)) | {"profile": name, "profile_file": str(written)}
