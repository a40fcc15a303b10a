"""Reads values of other people's files: of the expected kind and finite, or missing. Nothing is
raised over them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from loadstone.core.plan import Load, Process
from loadstone.core.text import excerpt
from loadstone.workload.lengths import MAX_TOKENS, parse_length

T = TypeVar("T")
FACTS = ("engine", "engine_version", "model", "gpu", "weights_dtype", "kv_dtype")
"""The facts that identify a deployment, as text."""
COUNTS = ("gpus", "nodes", "tp", "pp", "dp", "ep")
MAX_NUMBER = 1e19
"""The largest number that a result file may have: nanoseconds since 1970 are below."""
_REQUESTS = ("ok", "error", "cancelled", "sent")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?:,|\.|\s*$))")
"""The commas of 214,924.09; not that of 12,5, which may stand for a point."""
_STATISTICS = {
    "p50": "p50",
    "p90": "p90",
    "p95": "p95",
    "p99": "p99",
    "median": "p50",
    "avg": "mean",
    "mean": "mean",
    "std": "std",
    "stddev": "std",
    "std_dev": "std",
    "min": "min",
    "max": "max",
}
"""Our names of statistics by any of their usual ones."""
SECONDS = {
    "ns": 1e-9,
    "us": 1e-6,
    "ms": 1e-3,
    "ms/token": 1e-3,
    "s": 1.0,
    "sec": 1.0,
    "seconds": 1.0,
    "s/token": 1.0,
    "nanoseconds": 1e-9,
    "microseconds": 1e-6,
    "milliseconds": 1e-3,
    "msec": 1e-3,
    "usec": 1e-6,
}
_METRICS = {
    "ttft": "ttft_s",
    "time to first token": "ttft_s",
    "tpot": "tpot_s",
    "time per output token": "tpot_s",
    "itl": "itl_s",
    "inter token latency": "itl_s",
    "e2e": "e2e_s",
    "e2el": "e2e_s",
    "e2e latency": "e2e_s",
    "end to end latency": "e2e_s",
    "request latency": "e2e_s",
}
_HUB = re.compile(r"(?:^|/)models--([^/]+)(?:/|$)")
"""A model's folder in Hugging Face's cache, which has its name with dashes for the slash."""
_VERDICTS = {"result", "valid", "status", "validity", "verdict"}
_REASONS = re.compile(r"reason|invalid_(?:because|cause)", re.IGNORECASE)
_COMPACT_TIME = re.compile(r"^(\d{4})(\d\d)(\d\d)-(\d\d)(\d\d)(\d\d)$")
_MISSING = object()


def number(value: Any) -> float | None:
    """Read a finite number of at most MAX_NUMBER in size; also from text, as in CSV."""
    if isinstance(value, str) and len(value) <= 40:
        value = _THOUSANDS.sub("", value)
    elif isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        converted = float(value)
    except (ValueError, OverflowError):
        return None
    return converted if math.isfinite(converted) and abs(converted) <= MAX_NUMBER else None


def positive(value: Any) -> float | None:
    converted = number(value)
    return converted if converted is not None and converted > 0 else None


def amount(value: Any) -> float | None:
    """Read a number of at least 0."""
    converted = number(value)
    return converted if converted is not None and converted >= 0 else None


def whole(value: Any) -> int | None:
    """Read a whole number of at least 0, exactly: nanoseconds since 1970 do not fit into a
    float."""
    converted = amount(value)
    if isinstance(value, int) and converted is not None:
        return int(value)
    return int(converted) if converted is not None and converted == int(converted) else None


_AMOUNTS = (positive, amount, whole)
"""The readers that take no number below 0."""


def _show_odd(value: Any) -> str | None:
    """Write a number that is below 0, or too large to be read; None for any other."""
    found = number(value)
    if found is not None:
        return f"{found:.6g}" if found < 0 else None
    too_large = type(value) in (int, float) and MAX_NUMBER < abs(value) < math.inf
    return f"over {MAX_NUMBER:.0e}" if too_large else None


def text(value: Any, limit: int = 200) -> str | None:
    """Read a short printable line; None where there is no text."""
    if not isinstance(value, str) or not value.strip():
        return None
    return excerpt(value.strip()[: 4 * limit], limit)


def when(value: Any) -> str | None:
    """Read a wall-clock time as ISO 8601, from what tools write: `20241109-150842`, ISO,
    (nano)seconds since 1970."""
    if not isinstance(value, str):
        seconds = number(value) or 0.0
        if seconds > 1e14:
            seconds /= 1e9
        return (
            datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
            if 1e9 < seconds < 4e9
            else None
        )
    value = _COMPACT_TIME.sub(r"\1-\2-\3T\4:\5:\6", value)
    try:
        return datetime.fromisoformat(value).isoformat(timespec="seconds")
    except ValueError:
        return None


def origin(value: Any) -> str | None:
    """Read `http://host:8000` of a URL: without what may be secret in it, names, passwords and
    queries."""
    try:
        parts = urlsplit(value if isinstance(value, str) and len(value) <= 2000 else "")
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return text(f"{parts.scheme}://{host}" + (f":{port}" if port else ""))


def statistics(source: Mapping[str, Any], scale: float = 1.0) -> dict[str, float]:
    """Read mean, std, min, max and percentiles under any of their usual names, times `scale`."""
    numbers: dict[str, float] = {}
    for name, statistic in _STATISTICS.items():
        value = number(source.get(name))
        if value is not None:
            numbers.setdefault(statistic, value * scale)
    return numbers


@lru_cache(maxsize=1024)
def _split_path(path: str) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(filter(None, steps.split("."))) for steps in path.split("|"))


class Value:
    """A value of a file, with readers of its parts.

    A path is keys and indices of lists, joined by dots, with alternatives between bars:
    `backend.model|models.0`. The first part that is what is asked for counts; without any the
    answer is None (of `items`: none). The empty path is the value itself. `odd` collects, of it and
    its parts, numbers below 0 or too large that were left out as there cannot be so many.
    """

    __slots__ = ("name", "odd", "raw")

    def __init__(self, raw: Any, odd: dict[str, str] | None = None, name: str = "") -> None:
        self.raw, self.name = raw, name
        self.odd: dict[str, str] = {} if odd is None else odd

    def __bool__(self) -> bool:
        return bool(self.raw)

    def _find(self, steps: tuple[str, ...]) -> Any:
        value = self.raw
        for step in steps:
            if isinstance(value, dict):
                value = value.get(step, _MISSING)
            elif isinstance(value, list) and step.isdigit() and int(step) < len(value):
                value = value[int(step)]
            else:
                return _MISSING
        return value

    def has(self, *paths: str) -> bool:
        """Return True if there is something at each of these, be it null."""
        return all(
            any(self._find(steps) is not _MISSING for steps in _split_path(path)) for path in paths
        )

    def first(self, convert: Callable[[Any], T | None], path: str) -> T | None:
        """Return the first alternative that `convert` takes."""
        for steps in _split_path(path):
            value = self._find(steps)
            if value is _MISSING:
                continue
            converted = convert(value)
            if converted is not None:
                return converted
            odd = _show_odd(value) if convert in _AMOUNTS else None
            if odd is not None:
                self.odd.setdefault(".".join(filter(None, (self.name, *steps))), odd)
        return None

    def get(self, path: str) -> Any:
        """Return the part as the file has it."""
        return self.first(lambda value: value, path)

    def at(self, path: str) -> Value:
        return Value(self.get(path), self.odd, path)

    def items(self, path: str = "") -> list[Value]:
        value = self.get(path)
        return [Value(item, self.odd, path) for item in value] if isinstance(value, list) else []

    def number(self, path: str = "") -> float | None:
        return self.first(number, path)

    def positive(self, path: str = "") -> float | None:
        return self.first(positive, path)

    def amount(self, path: str = "") -> float | None:
        return self.first(amount, path)

    def whole(self, path: str = "") -> int | None:
        return self.first(whole, path)

    def text(self, path: str = "", limit: int = 200) -> str | None:
        return self.first(lambda value: text(value, limit), path)

    def when(self, path: str) -> str | None:
        return self.first(when, path)

    def mapping(self, path: str = "") -> dict[str, Any]:
        value = self.get(path)
        return value if isinstance(value, dict) else {}

    def fields(self, *names: str, **paths: str) -> dict[str, Any]:
        """Read what is told of a cell's deployment, counts and totals, by our names, which may be
        the file's too: facts are text, counts of requests, tokens and GPUs whole, and all others
        amounts.
        """
        values: dict[str, Any] = {}
        for name, path in (dict(zip(names, names, strict=True)) | paths).items():
            counted = name in COUNTS or name in _REQUESTS or name.endswith("_tokens")
            if name in FACTS:
                values[name] = self.text(path)
            else:
                values[name] = self.whole(path) if counted else self.amount(path)
        return drop_missing(values)

    def latencies(
        self, paths: Mapping[str, str], scale: float | None = None
    ) -> dict[str, dict[str, float]]:
        """Read statistics of our metrics in seconds; without `scale` each has its unit beside
        it."""
        spans = {}
        for name, path in paths.items():
            part = self.at(path)
            factor = scale or SECONDS.get((part.text("unit|units") or "").lower())
            if factor:
                spans[name] = statistics(part.mapping(), factor)
        return drop_missing(spans)

    def read_spelled(
        self, duration_s: float | None = None, answer_tokens: float | None = None
    ) -> dict[str, Any]:
        """Read latencies in seconds by keys such as `mean_ttft_ms`, `p99_e2el` or `TPOT p50 (s)`:
        the words in any order.

        Without a unit they are seconds; milliseconds where one request would then outlast the run.
        """
        named = []
        for key, value in self.mapping().items():
            parsed, time = _parse_key(key), number(value)
            if parsed is not None and time is not None:
                named.append((*parsed, time))
        gaps = max(1.0, (answer_tokens or 0.0) - 1)
        bare = [
            time * (gaps if metric in ("tpot_s", "itl_s") else 1)
            for metric, _, unit, time in named
            if not unit
        ]
        bare_s = 1e-3 if duration_s is not None and max(bare, default=0.0) > duration_s else 1.0
        found: dict[str, dict[str, float]] = {}
        for metric, statistic, unit, time in named:
            found.setdefault(metric, {}).setdefault(
                statistic, time * (SECONDS[unit] if unit else bare_s)
            )
        return found


@lru_cache(maxsize=4096)
def _parse_key(key: str) -> tuple[str, str, str | None] | None:
    """Parse a key into the metric, statistic and unit that it names; None where it names no
    latency, or something besides."""
    words = [word for word in re.split(r"[^a-z0-9]+", key.lower()[:80]) if word]
    statistic = [word for word in words if word in _STATISTICS]
    unit = [word for word in words if word in SECONDS]
    metric = _METRICS.get(" ".join(word for word in words if word not in (*statistic, *unit)))
    if metric is None or len(statistic) != 1 or len(unit) > 1:
        return None
    return metric, _STATISTICS[statistic[0]], unit[0] if unit else None


_MAX_CHECKS = 20
"""Longer lists are of requests, whose verdicts are theirs."""


def find_own_verdict(document: Any, depth: int = 4) -> str | None:
    """Find where a document itself says that it is not valid: `submission_valid: false`, with the
    reasons beside it; also one of a few checks in a list."""
    if isinstance(document, list) and len(document) <= _MAX_CHECKS:
        document = dict(enumerate(document))
    if not isinstance(document, dict) or not depth:
        return None
    for key, value in document.items():
        name = str(key)[:80]
        words = set(re.split(r"[^a-z]+", name.lower()))
        answer = str(value)[:20].strip().lower() if isinstance(value, str | bool) else ""
        invalid = (
            ("valid" in words and answer in ("false", "no"))
            or ("invalid" in words and answer in ("true", "yes"))
            or (answer == "invalid" and bool(words & _VERDICTS))
        )
        if invalid:
            reasons = [
                str(reason)
                for beside, given in document.items()
                if _REASONS.search(str(beside))
                for reason in (given if isinstance(given, list) else [given])
            ]
            because = text(", ".join(reasons), 300)
            return f"the file itself says {name}: {value}" + (f" ({because})" if because else "")
    parts = (find_own_verdict(part, depth - 1) for part in document.values())
    return next((verdict for verdict in parts if verdict is not None), None)


def model_name(model: str) -> str:
    """Make `org/name` of a path into Hugging Face's cache; others stay as they are."""
    hub = _HUB.search(model)
    return model if hub is None else hub[1].replace("--", "/")


def is_infinite(value: Any) -> bool:
    return value in ("inf", "Infinity") or (
        isinstance(value, float) and math.isinf(value) and value > 0
    )


def make_load(
    *,
    rate: Any = None,
    concurrency: Any = None,
    prompts: Any = None,
    burstiness: Any = None,
    process: Any = "poisson",
) -> Load | None:
    """Make the load of a client that has a request rate (number or infinite) and a cap on requests
    under way.

    An infinite rate under a cap is a closed loop; without one, a burst of all prompts. None where
    it is not stated.
    """
    per_s, cap = positive(rate), positive(concurrency)
    if per_s is not None:
        shape = positive(burstiness) or 1.0
        drawn: Process = "poisson" if shape == 1.0 else "gamma"
        return Load(
            "rate",
            per_s,
            process="constant" if process == "constant" else drawn,
            burstiness=shape,
            max_concurrency=int(cap) if cap is not None else None,
        )
    if cap is not None:
        return Load("concurrency", cap)
    return make_burst(positive(prompts)) if is_infinite(rate) else None


def make_burst(count: float | None) -> Load | None:
    """Make the load of so many requests all at once."""
    return Load("burst", count) if count else None


def make_lengths(
    input_tokens: Any, output_tokens: Any, range_ratio: Any = None, **more: Any
) -> dict[str, Any]:
    """Make a synthetic workload as Plan.workload has it, of the lengths that are told (tokens per
    request)."""
    ratio = amount(range_ratio)
    spans: dict[str, Any] = {}
    for name, value in (("input", input_tokens), ("output", output_tokens)):
        tokens = whole(value)
        if tokens is not None and 1 <= tokens <= MAX_TOKENS:
            length = parse_length(str(tokens), 1.0 if ratio is None else min(1.0, ratio), name)
            spans[name] = msgspec.to_builtins(length)
    return ({"kind": "synthetic", **spans} if spans else {}) | drop_missing(more)


def make_sessions(turns: float | None, pause_s: float | None = None) -> dict[str, Any]:
    """Make the part of Plan.workload that says how many turns conversations had, in the mean; {} of
    single requests.
    """
    if turns is None or turns <= 1:
        return {}
    return {
        "sessions": {"turns": {"kind": "fixed", "mean": turns}, "think": {"mean_s": pause_s or 0.0}}
    }


def keep(values: Iterable[T | None]) -> list[T]:
    """Drop the values that are None."""
    return [value for value in values if value is not None]


def drop_missing(pairs: Mapping[str, Any]) -> dict[str, Any]:
    """Drop what is missing: None, and statistics of which none is told."""
    return {key: value for key, value in pairs.items() if value is not None and value != {}}


def multiply(mean: float | None, count: int | None) -> int | None:
    return round(mean * count) if mean is not None and count is not None else None


def count_ended(ok: int | None, failed: int | None) -> dict[str, int | None]:
    """Make counts of requests that completed and failed, as far as they are stated."""
    return drop_missing(
        {
            "ok": ok,
            "error": failed,
            "sent": ok + failed if ok is not None and failed is not None else None,
        }
    )
