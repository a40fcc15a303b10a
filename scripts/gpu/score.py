"""Predictions beside what was measured: the same plan simulated, for each run that scripts/gpu/engines kept.

The shipped profile first: it knows nothing of this machine. Then each --profile, such as the one that `loadstone
calibrate --gpu` wrote, or `loadstone calibrate RUNS` of two points. Errors are predicted/measured − 1 of the medians.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from loadstone.core.errors import InputError
from loadstone.predict.calibrate.gpu import gpu_of

METRICS = ("ttft_s", "tpot_s", "output_tokens_per_s")
_NAME = re.compile(
    r"(?P<engine>vllm|transformers)-(?P<model>.+)-(?P<precision>bf16|fp8)(?P<cache>-cache|-nocache)?-\d+-\d+"
)


def deployment_of(found: re.Match[str], gpu: str) -> str:
    """The shorthand of what a file of scripts/gpu/engines, by its name, is about."""
    weights = ":fp8" if found["precision"] == "fp8" else ""
    arguments = ",prefix_caching=1" if found["cache"] == "-cache" else ""
    return f"{found['model']}{weights}@1x{gpu}/engine={found['engine']}{arguments}"


def gpu_in(papers: Path) -> str:
    """The catalogue's name of the GPU that a run's papers say was there. Raises InputError."""
    try:
        gpus = json.loads(papers.read_text())["settings"]["gpus"]
        return gpu_of(str(gpus[0]["name"])).name
    except (OSError, ValueError, LookupError, TypeError):
        raise InputError(f"{papers}: tells no GPU; name it with --gpu") from None


def value(cell: dict[str, Any], metric: str) -> float | None:
    found = cell["metrics"].get(metric)
    return found["p50"] if isinstance(found, dict) else found


def predict(deployment: str, plan: Path, profile: str | None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "loadstone.commands", "simulate", deployment, "--plan", str(plan), "--json"]
        command += ["--draws", "0", "--out", out] + (["--profile", profile] if profile else [])
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no word of why")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def rows_of(measured: dict[str, Any], predicted: dict[str, Any]) -> list[dict[str, Any]]:
    """One row a cell: its load, and of each metric measured, predicted, error."""
    rows = []
    for cell, other in zip(measured["cells"], predicted["cells"], strict=False):
        row: dict[str, Any] = {"load": cell["load"]["value"], "trusted": cell["verdict"]["trusted"]}
        for metric in METRICS:
            seen, said = value(cell, metric), value(other, metric)
            if seen and said:
                row[metric] = {"measured": seen, "predicted": said, "error": said / seen - 1}
        rows.append(row)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/gpu/score", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gpu", help="as the catalogue has it: h100, h200 … [default: as the runs' papers say]")
    parser.add_argument("--profile", action="append", default=[], help="beside the shipped one")
    given = parser.parse_args()
    document: dict[str, Any] = {"schema": 1, "gpu": given.gpu, "runs": []}
    status = 0
    for path in sorted(given.folder.glob("*.json")):
        plan = path.with_suffix(".plan.parquet")
        name = _NAME.fullmatch(path.stem)
        if name is None or not plan.is_file():
            continue
        try:
            document["gpu"] = given.gpu or gpu_in(path.with_suffix(".run.json"))
        except InputError as error:
            print(error, file=sys.stderr)
            return 2
        deployment = deployment_of(name, document["gpu"])
        measured = json.loads(path.read_text())
        for profile in (None, *given.profile):
            try:
                rows = rows_of(measured, predict(deployment, plan, profile))
            except RuntimeError as error:
                print(f"{path.name}: {error}", file=sys.stderr)
                status = 1
                continue
            document["runs"].append(
                {"file": path.name, "deployment": deployment, "profile": profile or "shipped", "cells": rows}
            )
    if not document["runs"]:
        print(f"{given.folder}: nothing of scripts/gpu/engines in it", file=sys.stderr)
        return 2
    json.dump(document, sys.stdout, indent=1)
    print()
    return status


if __name__ == "__main__":
    sys.exit(main())
