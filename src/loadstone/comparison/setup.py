"""What differs between two sides before any number is looked at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from loadstone.comparison.sides import Run

_FACTS = (
    "source", "tool", "engine", "engine_version", "model", "gpu", "gpus", "nodes", "tp", "pp", "dp", "ep",
    "weights_dtype", "kv_dtype", "mode", "workload", "input_tokens", "output_tokens", "range_ratio", "prefix_tokens",
    "prefix_groups", "prefix_cache",
)  # fmt: skip
_PAPERS = ("hardware", "endpoint", "plan", "seed", "engine arguments", "client", "client host", "loadstone")
WORKLOAD = ("mode", "workload", "input_tokens", "output_tokens", "range_ratio", "prefix_tokens", "prefix_groups")
"""Facts that make two sides answer different questions."""


def differences(a: Sequence[Run], b: Sequence[Run]) -> list[dict[str, Any]]:
    """{"what", "a", "b"} of everything that is not the same on both sides; several values in a list."""
    found = []
    for what in (*_FACTS, *_PAPERS):
        sides = [_values(runs, what) for runs in (a, b)]
        if sides[0] != sides[1]:
            if what == "hardware":
                sides = _only_differing(*sides)
            shown = [values[0] if len(values) == 1 else values for values in sides]
            found.append({"what": what, "a": shown[0], "b": shown[1]})
    return found


def _only_differing(a: list[Any], b: list[Any]) -> list[list[Any]]:
    """Of two GPUs with files of their own what the files say differently."""
    if not (len(a) == len(b) == 1 and a[0] and b[0]):
        return [a, b]
    keys = [key for key in a[0] if a[0][key] != b[0].get(key)]
    return [[{key: side[0].get(key) for key in keys}] for side in (a, b)]


def _values(runs: Sequence[Run], what: str) -> list[Any]:
    """The distinct values of a side, in a fixed order."""
    distinct: dict[bytes, Any] = {}
    for run in runs:
        value = _value(run, what)
        distinct[msgspec.json.encode(value, order="sorted")] = value
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
    if what == "endpoint":
        return info.target.endpoint if info.target else None
    if what == "engine arguments":
        deployment = info.settings.get("deployment")
        return (deployment.get("arguments") or None) if isinstance(deployment, dict) else None
    if what == "client":
        return _said({name: info.settings.get(name) for name in ("sampling", "structured", "route")})
    if what == "client host":
        return info.host.get("hostname") or info.host.get("cpu")
    # Imported runs have no plan or seed of their own.
    own = info.source != "imported"
    return {"plan": info.plan_id if own else None, "seed": info.seed if own else None}.get(what, info.loadstone)
