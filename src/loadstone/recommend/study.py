"""A study that measures plans: the same traffic, on one replica of each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadstone.catalogue.deployment.shorthand import split_deployment
from loadstone.core.errors import InputError
from loadstone.recommend.options import RecommendOptions
from loadstone.recommend.traffic import Traffic

_REPEATS = 2


def write_study(
    path: Path, options: RecommendOptions, traffic: Traffic, deployments: Sequence[str], replicas: int
) -> None:
    """Raises InputError where the file cannot be written."""
    import yaml  # type: ignore[import-untyped]

    engines: dict[str, dict[str, Any]] = {}
    excluded: list[dict[str, str]] = []
    layouts = []
    for text in deployments:
        _, where, rest = split_deployment(text)
        parts = rest.split(",")
        engine = next(part.partition("=")[2] for part in parts if part.startswith("engine="))
        engines[engine] = {}
        layouts.append(
            (engine, "/".join([where, ",".join(part for part in parts if not part.startswith("engine="))]))
        )
    for engine in engines:
        excluded += [{"engine": engine, "layout": layout} for own, layout in layouts if own != engine]
    workload: dict[str, Any] = {}
    if options.trace is not None:
        workload["trace"] = str(options.trace)
    else:
        workload = {"input": options.input or "1024", "output": options.output or "128"}
        if options.range_ratio < 1:
            workload["range-ratio"] = options.range_ratio
        if options.prefix:
            workload |= {"prefix": options.prefix, "prefix-groups": options.prefix_groups}
    share = traffic.demand / replicas
    loads: dict[str, Any] = (
        {"rate": [round(share * part, 3) for part in (0.7, 1.0, 1.3)]}
        if traffic.is_open
        else {"concurrency": sorted({max(1, round(share * part)) for part in (0.7, 1.0, 1.3)})}
    )
    deployed: dict[str, Any] = {
        "engine": list(engines),
        "layout": list(dict.fromkeys(layout for _, layout in layouts)),
    }
    if excluded and len(engines) > 1:
        deployed["except"] = excluded
    study = {
        "study": path.stem,
        "model": options.model,
        "deployments": deployed,
        "workloads": {"asked": workload},
        "loads": {} if options.trace is not None else loads | {"duration": "5m"},
        "repeats": _REPEATS,
        "slo": options.slo,
    }
    text = yaml.safe_dump(study, sort_keys=False, allow_unicode=True, width=100)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"--study {path}: cannot be written ({error.strerror}); name another file") from error
