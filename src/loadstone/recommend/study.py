"""A study that measures plans: the same traffic, on one replica of each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from loadstone.catalogue.deployment.shorthand import leave_engine_out, parse_deployment
from loadstone.core.files import explain_os_error
from loadstone.recommend.options import RecommendOptions
from loadstone.recommend.traffic import Traffic, asked_workload

_REPEATS = 2
_AXES = ("engine", "model", "layout")


def write_study(
    path: Path,
    options: RecommendOptions,
    traffic: Traffic,
    deployments: Sequence[str],
    replicas: int,
) -> None:
    """Raises InputError where the file cannot be written."""
    import yaml  # type: ignore[import-untyped]

    planned, replicas = [], replicas - options.reserve
    for text in deployments:
        model, _, layout = leave_engine_out(text).rpartition(
            "@"
        )  # the model with the precision of its weights
        planned.append((parse_deployment(text).engine, model, layout))
    axes = [list(dict.fromkeys(values)) for values in zip(*planned, strict=True)]
    deployed: dict[str, Any] = dict(zip(_AXES, axes, strict=True))
    if excluded := [
        dict(zip(_AXES, each, strict=True)) for each in product(*axes) if each not in planned
    ]:
        deployed["except"] = excluded
    share = traffic.demand / replicas
    loads: dict[str, Any] = (
        {"rate": [round(share * part, 3) for part in (0.7, 1.0, 1.3)]}
        if traffic.is_open
        else {"concurrency": sorted({max(1, round(share * part)) for part in (0.7, 1.0, 1.3)})}
    )
    loads |= {"burstiness": options.burstiness} if options.burstiness != 1 else {}
    study = {
        "study": path.stem,
        "deployments": deployed,
        "workloads": {"asked": asked_workload(options, traffic, replicas)},
        "loads": {} if options.trace is not None else loads | {"duration": "5m"},
        "repeats": _REPEATS,
        "slo": options.slo,
    }
    text = yaml.safe_dump(study, sort_keys=False, allow_unicode=True, width=100)
    with explain_os_error(f"--study {path}: cannot be written", "name another file"):
        path.write_text(text, encoding="utf-8")
