"""One replica's share of the traffic, as the options of `bench` say it: to measure a plan with."""

import shlex
from collections.abc import Sequence
from itertools import product
from typing import Any

from loadstone.catalogue.deployment.deployment import Deployment
from loadstone.catalogue.deployment.shorthand import leave_engine_out, parse_deployment
from loadstone.core.files import explain_os_error
from loadstone.recommend.demand.planning import Planning

_REPEATS = 2
_AXES = ("engine", "model", "layout")
_SHARES = (0.7, 1.0, 1.3)
"""Of the load of a replica, those that a study measures."""


def share_workload(planning: Planning, replicas: int) -> dict[str, Any]:
    """Return the options of `bench` that say what one of so many replicas is asked, but for the
    load."""
    workload = planning.options.workload
    if workload.trace is not None:
        return dict(share_trace(planning, replicas))
    if workload.agents is not None:
        return {"agents": str(workload.agents)}
    if planning.options.endpoint is not None:
        texts = ("input", "inputs", "documents", "document")
        given = {name: getattr(workload, name) for name in texts if getattr(workload, name)}
        if workload.range_ratio < 1:
            given["range-ratio"] = workload.range_ratio
        return {"endpoint": planning.options.endpoint, **given}
    named: dict[str, Any] = {"input": workload.input or "1024", "output": workload.output or "128"}
    if workload.range_ratio < 1:
        named["range-ratio"] = workload.range_ratio
    if workload.prefix:
        named |= {"prefix": workload.prefix, "prefix-groups": workload.prefix_groups}
    if workload.image_place != "first":
        named["image-place"] = workload.image_place
    for name in ("images", "image_size", "image_groups", "turns", "think_time"):
        if getattr(workload, name) is not None:
            named[name.replace("_", "-")] = getattr(workload, name)
    return named


def share_trace(planning: Planning, replicas: int) -> dict[str, str]:
    """Return options of `bench` that give one replica its share of the trace, of its busiest
    window."""
    options, hours = planning.options, planning.traffic.hours
    share, named = options.load.growth / replicas, {"trace": str(options.workload.trace)}
    if hours is not None:
        named["trace-window"] = hours.window
    if share < 1:
        named["trace-sample"] = f"{share:.3g}"
    if share > 1:
        named["time-scale"] = f"{1 / share:.3g}"
    return named


def bench_command(deployment: Deployment, planning: Planning, replicas: int, minutes: int) -> str:
    """Return the command that measures a deployment under the load of one of so many replicas."""
    options, traffic = planning.options, planning.traffic
    load = traffic.demand / replicas
    words = ["loadstone", "bench"]
    if deployment.nodes > 1 or deployment.is_split:
        words += ["http://HOST:PORT", "--deployment", deployment.name]
    else:
        words += ["--launch", deployment.name]
    named = share_workload(planning, replicas)
    if options.workload.trace is None:
        if traffic.is_open:
            named["rate"] = f"{load:.3g}"
        else:
            named["concurrency"] = max(1, round(load))
        if options.load.burstiness != 1:
            named["burstiness"] = options.load.burstiness
    named |= {"duration": f"{minutes}m", "slo": options.load.slo}
    for flag, value in named.items():
        words += [f"--{flag}", f"{value:g}" if isinstance(value, float) else str(value)]
    return shlex.join(words)


def write_study(planning: Planning, deployments: Sequence[str], replicas: int) -> None:
    """Write the study of --study: the same traffic, on one replica of each. Raises InputError where
    the file cannot be written."""
    import yaml  # type: ignore[import-untyped]

    options = planning.options
    traffic = planning.traffic
    path = planning.options.study
    if path is None:
        return
    replicas -= planning.choice.reserve
    study = {
        "study": path.stem,
        "deployments": _cross(deployments),
        "workloads": {"asked": share_workload(planning, replicas)},
        "loads": {},
        "repeats": _REPEATS,
        "slo": options.load.slo,
    }
    if options.workload.trace is None:
        load = traffic.demand / replicas
        loads: dict[str, Any] = {}
        if traffic.is_open:
            loads["rate"] = [round(load * share, 3) for share in _SHARES]
        else:
            loads["concurrency"] = sorted({max(1, round(load * share)) for share in _SHARES})
        if options.load.burstiness != 1:
            loads["burstiness"] = options.load.burstiness
        study["loads"] = loads | {"duration": "5m"}
    text = yaml.safe_dump(study, sort_keys=False, allow_unicode=True, width=100)
    with explain_os_error(f"--study {path}: cannot be written", "name another file"):
        path.write_text(text, encoding="utf-8")


def _cross(deployments: Sequence[str]) -> dict[str, Any]:
    """Return the axes of a study whose product is these deployments, but for what it excepts."""
    planned = []
    for text in deployments:
        # The model with the precision of its weights.
        model, _, layout = leave_engine_out(text).rpartition("@")
        planned.append((parse_deployment(text).decoder.engine, model, layout))
    axes = [list(dict.fromkeys(values)) for values in zip(*planned, strict=True)]
    excluded = [
        dict(zip(_AXES, combined, strict=True))
        for combined in product(*axes)
        if combined not in planned
    ]
    crossed: dict[str, Any] = dict(zip(_AXES, axes, strict=True))
    return crossed | ({"except": excluded} if excluded else {})
