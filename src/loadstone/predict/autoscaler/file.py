"""Reads autoscalers: YAML files, and presets by their names."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args

from loadstone.core.errors import InputError
from loadstone.core.files import read_bytes
from loadstone.core.units import parse_seconds
from loadstone.core.yaml_text import decode_yaml
from loadstone.predict.autoscaler.policy import (
    DAY_S,
    Autoscaler,
    Metric,
    MetricTarget,
    Policy,
    ScalingPace,
    StartUp,
)

_MAX_BYTES = 1 << 20
_MOST = 4096
"""Replicas."""
_POLICIES: tuple[str, ...] = get_args(Policy)
_METRICS: tuple[str, ...] = get_args(Metric)
_LAWS = ("hpa", "slo", "planner", "saturation")
_CLOCK = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)")
_BANDWIDTH = re.compile(r"([0-9]*\.?[0-9]+) ?GB/s")
_WAKING = ("queued", "in_flight", "rate")
"""Metrics that a fleet without replicas has."""


def _seconds(value: Any, key: str) -> float:
    return parse_seconds(str(value), key)


def _positive_seconds(value: Any, key: str) -> float:
    seconds = _seconds(value, key)
    if not seconds:
        raise InputError(f"{key}: must be above 0; write e.g. 15s")
    return seconds


def _number(value: Any, key: str) -> float:
    try:
        number = float(str(value).strip().removesuffix("/s"))
    except ValueError:
        number = 0.0
    if isinstance(value, bool) or not 0 < number < 1e9:
        raise InputError(f"{key}: {value!r} must be a number above 0, without a unit")
    return number


def _share(value: Any, key: str) -> float:
    text = str(value).strip()
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if isinstance(value, bool) or not 0 <= share <= 1:
        raise InputError(f"{key}: {value!r} must be a share from 0 to 1; write e.g. 10%")
    return share


def _count(value: Any, key: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST:
        raise InputError(f"{key}: {value!r} must be a whole number from 0 to {_MOST:,}")
    return value


def _mapping(value: Any, key: str, keys: tuple[str, ...], example: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not value:
        raise InputError(f"{key}: is no mapping; write e.g. {example}")
    unknown = sorted(str(entry) for entry in value if entry not in keys)
    if unknown:
        raise InputError(f"{key}: {unknown[0]!r} is no key of it; there are {', '.join(keys)}")
    return cast(Mapping[str, Any], value)


def _start_up(value: Any, key: str) -> float | StartUp:
    """Read the seconds that a start takes, or its parts."""
    if not isinstance(value, Mapping):
        return _seconds(value, key)
    given = _mapping(
        value, key, ("pull", "bandwidth", "compile", "graphs", "probe"), "{pull: 60s, compile: 0s}"
    )
    fields: dict[str, float] = {
        f"{name}_s": _seconds(part, f"{key}.{name}")
        for name, part in given.items()
        if name != "bandwidth"
    }
    if "bandwidth" in given:
        match = _BANDWIDTH.fullmatch(str(given["bandwidth"]).strip())
        if match is None or not float(match[1]):
            raise InputError(f"{key}.bandwidth: {given['bandwidth']!r}: write e.g. 2 GB/s")
        fields["bytes_per_s"] = float(match[1]) * 1e9
    return StartUp(**fields)


def _pace(value: Any, key: str) -> ScalingPace:
    given = _mapping(
        value, key, ("window", "percent", "pods", "period"), "{percent: 100, pods: 4, period: 15s}"
    )
    return ScalingPace(
        _seconds(given.get("window", 0), f"{key}.window"),
        _number(given["percent"], f"{key}.percent") if "percent" in given else None,
        _count(given["pods"], f"{key}.pods") if "pods" in given else None,
        _positive_seconds(given.get("period", "15s"), f"{key}.period"),
    )


def _targets(value: Any, key: str) -> tuple[MetricTarget, ...]:
    example = "[{metric: running, target: 16}]"
    if not isinstance(value, list) or not value:
        raise InputError(f"{key}: is no list; write e.g. {example}")
    targets = []
    for entry in value:
        given = _mapping(entry, key, ("metric", "target"), example)
        metric = given.get("metric")
        if metric not in _METRICS:
            raise InputError(f"{key}: {metric!r} is no metric; there are {', '.join(_METRICS)}")
        read = _share if metric == "kv_usage" else _number
        target = read(given.get("target"), f"{key}: target of {metric}")
        if not target:
            raise InputError(f"{key}: target of {metric} must be above 0")
        targets.append(MetricTarget(cast(Metric, metric), target))
    return tuple(targets)


def _schedule(value: Any, key: str) -> tuple[tuple[float, int], ...]:
    example = '{"00:00": 2, "08:00": 6}'
    if not isinstance(value, Mapping) or not value:
        raise InputError(f"{key}: is no mapping of times of the day; write e.g. {example}")
    entries = []
    for time, replicas in value.items():
        clock = _CLOCK.fullmatch(str(time).strip())
        if clock is None:
            raise InputError(f"{key}: {time!r} is no time of the day; write e.g. {example}")
        at_s = 3600.0 * int(clock[1]) + 60.0 * int(clock[2])
        entries.append((at_s % DAY_S, _count(replicas, f"{key}: {time}")))
    return tuple(sorted(entries))


class _Key(NamedTuple):
    """Says how a key of a file is read, into which field, and of which policies it is."""

    read: Callable[[Any, str], Any]
    field: str
    policies: tuple[str, ...] = _POLICIES


_KEYS: Mapping[str, _Key] = {
    "poll": _Key(_positive_seconds, "poll_s", (*_LAWS, "clock")),
    "scrape": _Key(_positive_seconds, "scrape_s"),
    "age": _Key(_seconds, "age_s", _LAWS),
    "window": _Key(_seconds, "window_s", _LAWS),
    "min": _Key(_count, "min", _LAWS),
    "max": _Key(_count, "max", _LAWS),
    "initial": _Key(_count, "initial", (*_LAWS, "clock")),
    "start_up": _Key(_start_up, "start_up_s"),
    "start_up_spread": _Key(_share, "start_up_spread"),
    "drain": _Key(_seconds, "drain_s"),
    "hold": _Key(_count, "hold"),
    "idle": _Key(_seconds, "idle_s", ("hpa", "saturation")),
    "up": _Key(_pace, "up", _LAWS),
    "down": _Key(_pace, "down", _LAWS),
    "metrics": _Key(_targets, "metrics", ("hpa",)),
    "tolerance": _Key(_share, "tolerance", ("hpa",)),
    "ttft": _Key(_positive_seconds, "ttft_s", ("slo", "planner")),
    "tpot": _Key(_positive_seconds, "tpot_s", ("slo", "planner")),
    "capacity": _Key(_number, "capacity_per_s", ("planner",)),
    "replicas": _Key(_count, "replicas", ("fixed",)),
    "schedule": _Key(_schedule, "schedule", ("clock",)),
}


@cache
def presets() -> Mapping[str, Mapping[str, Any]]:
    """Return the keys of each preset, by its name."""
    text = files("loadstone.predict.autoscaler").joinpath("presets.yaml").read_text("utf-8")
    return cast(Mapping[str, Mapping[str, Any]], decode_yaml(text))


def read_autoscaler(named: str, slo: Mapping[str, float] | None = None) -> Autoscaler:
    """Read the autoscaler of a file, or the preset of that name. `slo`: the bounds of the run, from
    which a law has those that it is not given. Raises InputError."""
    place, file = f"--autoscale {named}", Path(named)
    if named in presets():
        return _make({"preset": named}, named, place, slo or {})
    if file.suffix not in (".yaml", ".yml") and not file.exists():
        raise InputError(f"{place}: no file, and no preset; there are {', '.join(presets())}")
    try:
        document = decode_yaml(
            read_bytes(file, _MAX_BYTES, "give a file of an autoscaler").decode()
        )
    except ValueError as error:
        raise InputError(f"{place}: no YAML ({error}); see docs/autoscale.md") from None
    if not isinstance(document, dict):
        raise InputError(f"{place}: is no mapping; write e.g. policy: hpa")
    given = {str(key).replace("-", "_"): value for key, value in document.items()}
    return _make(given, file.stem, place, slo or {})


def _make(given: Mapping[str, Any], name: str, place: str, slo: Mapping[str, float]) -> Autoscaler:
    """Make an autoscaler of keys, over those of its preset."""
    chosen = given.get("preset", given.get("policy"))
    base = presets().get(str(chosen))
    if base is None or ("preset" not in given and chosen not in _POLICIES):
        choices = presets() if "preset" in given else _POLICIES
        fault = f"{chosen!r} is no" if chosen is not None else "needs a"
        raise InputError(
            f"{place}: {fault} {'preset' if 'preset' in given else 'policy'}; choose one of"
            f" {', '.join(choices)}"
        )
    policy = str(given.get("policy", base["policy"]))
    if policy != base["policy"]:
        raise InputError(
            f"{place}: preset {chosen} is of policy {base['policy']}, not {policy}; leave policy"
            " out"
        )
    for key in given:
        if key not in ("preset", "policy", *_KEYS):
            raise InputError(
                f"{place}: {key!r} is no key of an autoscaler; there are {', '.join(_KEYS)}"
            )
        if key in _KEYS and policy not in _KEYS[key].policies:
            raise InputError(
                f"{place}: {key} is a key of policy {' and '.join(_KEYS[key].policies)}, and this"
                f" is {policy}; leave it out"
            )
    fields = {
        _KEYS[key].field: _KEYS[key].read(value, f"{place}: {key}")
        for key, value in (dict(base) | dict(given)).items()
        if key in _KEYS
    }
    if isinstance(fields.get("start_up_s"), StartUp):
        fields["start_up"] = fields.pop("start_up_s")
    scaler = Autoscaler(policy=cast(Policy, policy), name=name, **_bounded(policy, fields, slo))
    _check(scaler, place)
    return scaler


def _bounded(policy: str, fields: dict[str, Any], slo: Mapping[str, float]) -> dict[str, Any]:
    """Give the SLO-aware law the least bounds of the run, where its file has none."""
    if policy == "slo" and "ttft_s" not in fields and "tpot_s" not in fields:
        for name, limit_s in slo.items():
            field = f"{name.rpartition(':')[2].partition('_')[0]}_s"
            if field in ("ttft_s", "tpot_s"):
                fields[field] = min(limit_s, fields.get(field, limit_s))
    return fields


def _check(scaler: Autoscaler, place: str) -> None:
    """Refuse values that do not go together. Raises InputError."""
    policy, law, from_nothing = scaler.policy, scaler.policy in _LAWS, not scaler.min
    wakes = any(target.metric in _WAKING for target in scaler.metrics)
    bounded = scaler.ttft_s is not None or scaler.tpot_s is not None
    problems = (
        (law and scaler.min > scaler.max, f"min {scaler.min} is above max {scaler.max}; lower min"),
        (law and not scaler.max, "max is 0, which serves nothing; give 1 or more"),
        (
            from_nothing and policy in ("slo", "planner"),
            f"min is 0, and policy {policy} cannot start from nothing; give 1 or more",
        ),
        (
            from_nothing and policy == "hpa" and not wakes,
            "min is 0, and no metric tells that requests wait; add one of"
            f" {', '.join(_WAKING)} to metrics",
        ),
        (
            policy == "slo" and not bounded,
            "policy slo needs a bound; give ttft or tpot, or --slo",
        ),
        (
            policy == "clock" and not scaler.schedule,
            'policy clock needs a schedule; write e.g. schedule: {"00:00": 2, "08:00": 6}',
        ),
        (scaler.hold == 0, "hold is 0, and the router would send nothing; give 1 or more"),
        (not scaler.max_replicas, "there is never a replica; give 1 or more"),
        (
            (scaler.initial or 0) > scaler.max_replicas,
            f"initial {scaler.initial} is more than ever may be, {scaler.max_replicas}",
        ),
    )
    for found, problem in problems:
        if found:
            raise InputError(f"{place}: {problem}")
