"""Values out of other people's files: of the expected kind and finite, or missing. Nothing is raised over them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from loadstone.analyse.run_facts import mapping
from loadstone.core import Load
from loadstone.core.text import excerpt
from loadstone.workload.lengths import MAX_TOKENS, parse_length

MOST = 1e19
"""Beyond it nothing in a result file is a number of anything: nanoseconds since 1970 are below."""
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?:,|\.|\s*$))")
"""The commas of 214,924.09; not that of 12,5, which may stand for a point."""
_STATISTICS = {
    "p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99", "median": "p50", "avg": "mean", "mean": "mean",
    "std": "std", "stddev": "std", "std_dev": "std", "min": "min", "max": "max",
}  # fmt: skip
"""By any of their usual names."""


def number(value: Any) -> float | None:
    """A finite number of at most MOST in size; also from text, as in CSV."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, str):
        try:
            value = float(_THOUSANDS.sub("", value)) if len(value) <= 40 else None
        except ValueError:
            return None
    if not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) and abs(found) <= MOST else None


def positive(value: Any) -> float | None:
    found = number(value)
    return found if found is not None and found > 0 else None


def amount(value: Any) -> float | None:
    """A number of at least 0."""
    found = number(value)
    return found if found is not None and found >= 0 else None


def whole(value: Any) -> int | None:
    """A whole number of at least 0, exactly: nanoseconds since 1970 do not fit into a float."""
    found = amount(value)
    if isinstance(value, int) and found is not None:
        return int(value)
    return int(found) if found is not None and found == int(found) else None


def text(value: Any, limit: int = 200) -> str | None:
    """A short printable line; None where there is no text."""
    if not isinstance(value, str) or not value.strip():
        return None
    return excerpt(value.strip()[: 4 * limit], limit)


def items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


class Value:
    """A value out of a file: readers of its parts, each at a path of keys and indices (none: the value itself).

    A part that is not there, or is not what is asked for, is None (of `items`: none).
    """

    __slots__ = ("raw",)

    def __init__(self, raw: Any) -> None:
        self.raw = raw

    def __bool__(self) -> bool:
        return bool(self.raw)

    def __contains__(self, name: str) -> bool:
        return name in mapping(self.raw)

    def has(self, *names: str) -> bool:
        return mapping(self.raw).keys() >= set(names)

    def get(self, *path: str | int) -> Any:
        """The part as the file has it."""
        value = self.raw
        for step in path:
            if isinstance(step, int):
                value = value[step] if isinstance(value, list) and -len(value) <= step < len(value) else None
            else:
                value = mapping(value).get(step)
        return value

    def at(self, *path: str | int) -> Value:
        return Value(self.get(*path))

    def items(self, *path: str | int) -> list[Value]:
        return [Value(item) for item in items(self.get(*path))]

    def number(self, *path: str | int) -> float | None:
        return number(self.get(*path))

    def positive(self, *path: str | int) -> float | None:
        return positive(self.get(*path))

    def amount(self, *path: str | int) -> float | None:
        return amount(self.get(*path))

    def whole(self, *path: str | int) -> int | None:
        return whole(self.get(*path))

    def text(self, *path: str | int, limit: int = 200) -> str | None:
        return text(self.get(*path), limit)

    def when(self, *path: str | int) -> str | None:
        return when(self.get(*path))

    def statistics(self, *path: str | int, scale: float = 1.0) -> dict[str, float]:
        return statistics(mapping(self.get(*path)), scale)


def infinite(value: Any) -> bool:
    return value in ("inf", "Infinity") or (isinstance(value, float) and math.isinf(value) and value > 0)


def statistics(source: Mapping[str, Any], scale: float = 1.0) -> dict[str, float]:
    """mean, std, min, max and percentiles under any of their usual names, times `scale`."""
    found = {}
    for name, ours in _STATISTICS.items():
        value = number(source.get(name))
        if value is not None and ours not in found:
            found[ours] = value * scale
    return found


def keyed(source: Value, name: str) -> dict[str, float]:
    """Statistics spelled as `mean_<name>`, `p99_<name>`, as vLLM and SGLang do, from milliseconds."""
    return statistics({stat: source.get(f"{stat}_{name}") for stat in _STATISTICS}, 1e-3)


_SCALES = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0, "ms/token": 1e-3, "s/token": 1.0}


def in_seconds(source: Value, unit: str) -> dict[str, float]:
    """Statistics with their unit beside them, under this name; none of an unknown unit."""
    scale = _SCALES.get(str(source.get(unit)))
    return source.statistics(scale=scale) if scale is not None else {}


def load_of(
    *,
    rate: Any = None,
    concurrency: Any = None,
    prompts: Any = None,
    burstiness: Any = None,
    process: Any = "poisson",
) -> Load | None:
    """The load of a client that has a request rate (number or infinite) and a cap on requests under way.

    An infinite rate under a cap is a closed loop; without one, a burst of all prompts. None where it is not told.
    """
    per_s, places = positive(rate), positive(concurrency)
    if per_s is not None:
        shape = positive(burstiness) or 1.0
        return Load(
            "rate",
            per_s,
            process="constant" if process == "constant" else "poisson" if shape == 1.0 else "gamma",
            burstiness=shape,
            max_concurrency=int(places) if places is not None else None,
        )
    if places is not None:
        return Load("concurrency", places)
    count = positive(prompts)
    return Load("burst", count) if infinite(rate) and count is not None else None


def lengths(input_tokens: Any, output_tokens: Any, range_ratio: Any = None, **more: Any) -> dict[str, Any]:
    """A synthetic workload as Plan.workload has it, of the lengths that are told (tokens per request)."""
    import msgspec

    told = amount(range_ratio)
    ratio = 1.0 if told is None else min(1.0, told)
    found: dict[str, Any] = {}
    for name, value in (("input", input_tokens), ("output", output_tokens)):
        tokens = whole(value)
        if tokens is not None and 1 <= tokens <= MAX_TOKENS:
            found[name] = msgspec.to_builtins(parse_length(str(tokens), ratio, name))
    return ({"kind": "synthetic", **found} if found else {}) | known(more)


def sessions(turns: float | None, pause_s: float | None = None) -> dict[str, Any]:
    """The part of Plan.workload that says how many turns conversations had, in the mean; {} of single requests."""
    if turns is None or turns <= 1:
        return {}
    return {"sessions": {"turns": {"kind": "fixed", "mean": turns}, "think": {"mean_s": pause_s or 0.0}}}


def when(value: Any) -> str | None:
    """A wall-clock time as ISO 8601, from what tools write: `20241109-150842`, ISO, (nano)seconds since 1970."""
    from datetime import UTC, datetime

    seconds = number(value) if not isinstance(value, str) else None
    if seconds is not None:
        if seconds > 1e14:
            seconds /= 1e9
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds") if 1e9 < seconds < 4e9 else None
    if not isinstance(value, str):
        return None
    if match := re.fullmatch(r"(\d{4})(\d\d)(\d\d)-(\d\d)(\d\d)(\d\d)", value):
        value = "{}-{}-{}T{}:{}:{}".format(*match.groups())
    try:
        return datetime.fromisoformat(value).isoformat(timespec="seconds")
    except ValueError:
        return None


def origin(value: Any) -> str | None:
    """`http://host:8000` of a URL: without what may be secret in it, names, passwords and queries."""
    try:
        parts = urlsplit(value if isinstance(value, str) and len(value) <= 2000 else "")
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return text(f"{parts.scheme}://{host}" + (f":{port}" if port else ""))


def known(pairs: Mapping[str, Any]) -> dict[str, Any]:
    """Without what is missing: None, and statistics of which none is told."""
    return {key: value for key, value in pairs.items() if value is not None and value != {}}


def sum_of(mean: float | None, count: int | None) -> int | None:
    return round(mean * count) if mean is not None and count is not None else None


def sum_per_s(seconds: float | None, *counts: float | None) -> float | None:
    """Σ counts/seconds; None where one of them is not told."""
    told = [count for count in counts if count is not None]
    return sum(told) / seconds if seconds and len(told) == len(counts) else None


def ended(ok: int | None, failed: int | None) -> dict[str, int | None]:
    """Counts of requests that completed and failed, as far as they are told."""
    return known({"ok": ok, "error": failed, "sent": ok + failed if ok is not None and failed is not None else None})
