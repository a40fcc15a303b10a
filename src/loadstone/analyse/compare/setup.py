"""What differs between two sides before any number is looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from loadstone.analyse.compare import request
from loadstone.analyse.compare.sides import Run
from loadstone.analyse.run_facts import mapping

_FACTS = (
    "source", "tool", "engine", "engine_version", "model", "gpu", "gpus", "nodes", "tp", "pp", "dp", "ep",
    "weights_dtype", "kv_dtype", "mode", "workload", "input_tokens", "output_tokens", "range_ratio", "prefix_tokens",
    "prefix_groups", "prefix_cache",
)  # fmt: skip
_ANSWERS = "answers a request"
_CONFIG = "model config"
_PAPERS = (
    "hardware", _CONFIG, "endpoint", _ANSWERS, "seed", "label", "engine arguments", "client", "client host",
    "loadstone",
)  # fmt: skip
WORKLOAD = (
    "mode", "workload", "input_tokens", "output_tokens", "range_ratio", "prefix_tokens", "prefix_groups", _ANSWERS,
)  # fmt: skip
"""What makes two sides answer different questions."""
_TOLD = {"": ("kind", "name", "mode", "prefix_tokens", "prefix_groups"), "input": ("mean",), "output": ("mean",)}
"""What facts say of a workload; "": of itself, else of a part of it."""


def differences(a: Sequence[Run], b: Sequence[Run]) -> list[dict[str, Any]]:
    """{"what", "a", "b"} of everything that is not the same on both sides; several values in a list."""
    found = []
    for what in (*_FACTS, *_PAPERS):
        sides = [_distinct([_value(run, what) for run in runs]) for runs in (a, b)]
        if what != _CONFIG or [None] not in sides:  # a name tells apart what the catalogue has
            found += _row(what, sides, only_differing=what in ("hardware", _CONFIG))
    found += _workload(a, b)
    return found + _plan(a, b, found)


def _workload(a: Sequence[Run], b: Sequence[Run]) -> list[dict[str, Any]]:
    """What both sides tell of their workload, besides the facts of it, and tell differently."""
    told = [[mapping(run.info.settings.get("workload")) for run in runs] for runs in (a, b)]
    names = dict.fromkeys(name for side in told for each in side for name in each if name not in _TOLD[""])
    found = []
    for name in names:
        sides = [_distinct([_untold(name, each.get(name)) for each in side]) for side in told]
        if all(values != [None] for values in sides):
            found += _row(f"workload {name}", sides, only_differing=True)
    return found


def _untold(name: str, value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: each for key, each in value.items() if key not in _TOLD.get(name, ())}


def _plan(a: Sequence[Run], b: Sequence[Run], found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """How loads ended differently; and what else makes plans differ, where the setup does not say it yet."""
    runs, loads = [*a, *b], request.common_loads(a, b)
    ends = [_distinct([request.ends(run, loads) for run in side]) for side in (a, b)]
    rows = _row("ends after", ends) if all(each != [[]] for each in ends) else []
    if not all(map(request.has_plan, runs)) or len({run.info.plan_id for run in runs}) == 1:
        return rows
    rows += _row("warm-up requests", [_distinct([request.warmups(run, loads) for run in side]) for side in (a, b)])
    told = rows or any(row["what"] in ("seed", *WORKLOAD) or row["what"].startswith("workload") for row in found)
    # By time as many requests are issued as fit, and a load that one side alone has is told of elsewhere.
    if told or any(map(request.by_time, runs)) or len({tuple(_loads(run)) for run in runs}) > 1:
        return rows
    return _row("plan", [_distinct([run.info.plan_id for run in side]) for side in (a, b)])


def _loads(run: Run) -> list[bytes]:
    return sorted(msgspec.json.encode(cell.load) for cell in run.info.cells)


def _row(what: str, sides: list[list[Any]], *, only_differing: bool = False) -> list[dict[str, Any]]:
    """Distinct values of either side, as a row; none where they are the same."""
    if sides[0] == sides[1]:
        return []
    if only_differing:
        sides = _only_differing(*sides)
    shown = [values[0] if len(values) == 1 else values for values in sides]
    return [{"what": what, "a": shown[0], "b": shown[1]}]


def _only_differing(a: list[Any], b: list[Any]) -> list[list[Any]]:
    """Of two things described what the descriptions say differently."""
    if not (len(a) == len(b) == 1 and isinstance(a[0], dict) and isinstance(b[0], dict)):
        return [a, b]
    keys = [key for key in {**a[0], **b[0]} if a[0].get(key) != b[0].get(key)]
    return [[{key: side[0].get(key) for key in keys}] for side in (a, b)]


def _distinct(values: Sequence[Any]) -> list[Any]:
    """Each once, in a fixed order."""
    distinct = {msgspec.json.encode(value, order="sorted"): value for value in values}
    return [distinct[key] for key in sorted(distinct)]


def _said(value: Any) -> Any:
    """Without what says nothing, so that one who leaves a setting out and one who leaves it unset are the same."""
    if not isinstance(value, dict):
        return value
    pruned = {name: _said(each) for name, each in value.items()}
    return {name: each for name, each in pruned.items() if each not in (None, [], {}, "")}


def _value(run: Run, what: str) -> Any:
    info = run.info
    if what in _FACTS:
        value = getattr(run.facts, what)
        return round(value, 1) if isinstance(value, float) else value
    if what == "hardware":
        return msgspec.to_builtins(run.facts.hardware) if run.facts.hardware else None
    if what == _CONFIG:
        return msgspec.json.decode(run.facts.own_model)["config"] if run.facts.own_model else None
    if what == "endpoint":
        return info.target.endpoint if info.target else None
    if what == _ANSWERS:
        return info.target.choices if info.target else 1
    if what == "label":
        return info.settings.get("label")
    if what == "engine arguments":
        return mapping(info.settings.get("deployment")).get("arguments") or None
    if what == "client":
        return _said({name: info.settings.get(name) for name in ("sampling", "structured", "route")})
    if what == "client host":
        return info.host.get("hostname") or info.host.get("cpu")
    if what == "seed":
        return info.seed if request.has_plan(run) else None
    return info.loadstone
