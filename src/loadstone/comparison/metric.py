"""Which numbers are compared, and what a user may bound: `ttft_p99>+5%`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loadstone.errors import InputError

_STATISTICS = {"mean": float("nan"), "p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}
_RATES = ("output_tokens_per_s", "total_tokens_per_s", "requests_per_s", "goodput_per_s", "attainment")
_STEADY = ("output_tokens_per_s", "total_tokens_per_s", "requests_per_s")
_BOUND = re.compile(r"([a-z0-9_]+)\s*([<>])=?\s*([+-]?\d+(?:\.\d+)?)\s*%")


@dataclass(frozen=True)
class Metric:
    """`base` and `statistic`, as ttft and p99; a rate has no statistic."""

    base: str
    statistic: str | None = None

    @property
    def name(self) -> str:
        return f"{self.base}_{self.statistic}" if self.statistic else self.base

    @property
    def quantile(self) -> float:
        """NaN for a mean."""
        return _STATISTICS[self.statistic or "mean"]

    @property
    def more_is_better(self) -> bool:
        return self.statistic is None

    @property
    def per_request(self) -> bool:
        """Whether each request has a value of its own, of which the metric is a statistic."""
        return self.base in ("ttft", "tpot", "e2e")

    def value(self, cell: Mapping[str, Any], *, intended: bool, steady: bool) -> float | None:
        """Out of a summary's cell: seconds, or per second; None where it is missing."""
        metrics = cell["metrics"]
        if self.statistic is None:
            window = (metrics.get("steady") or {}) if steady and self.base in _STEADY else metrics
            found = window.get(self.base)
        else:
            clock = "_intended" if intended and self.base in ("ttft", "e2e") else ""
            found = (metrics.get(f"{self.base}{clock}_s") or {}).get(self.statistic)
        return float(found) if isinstance(found, int | float) else None


DEFAULT = (
    *(Metric(base, statistic) for base in ("ttft", "tpot", "e2e") for statistic in ("p50", "p99")),
    Metric("output_tokens_per_s"),
)


@dataclass(frozen=True)
class Bound:
    """`ttft_p99>+5%`: met where B's ttft_p99 is more than 5 % above A's."""

    text: str
    metric: Metric
    above: bool
    limit: float

    def beyond(self, ratio: float) -> bool:
        return ratio > self.limit if self.above else ratio < self.limit


def parse_metric(name: str, what: str) -> Metric:
    """A metric by its name, as `ttft_p99`; `what` asks for it, in an error. Raises InputError."""
    base, _, statistic = name.rpartition("_")
    if name in _RATES:
        return Metric(name)
    if base in ("ttft", "tpot", "e2e", "itl") and statistic in _STATISTICS:
        return Metric(base, statistic)
    raise InputError(
        f"{what}: {name!r} is no metric; use ttft, tpot, itl or e2e with mean, p50, p90, p95 or p99, as ttft_p99, "
        f"or {', '.join(_RATES)}"
    )


def parse_bounds(texts: list[str]) -> list[Bound]:
    """Bounds of `--fail-on`, several with commas. Raises InputError."""
    bounds = []
    for text in (part.strip() for one in texts for part in one.split(",")):
        match = _BOUND.fullmatch(text)
        if match is None:
            raise InputError(f"--fail-on {text!r}: write e.g. 'ttft_p99>+5%' or 'output_tokens_per_s<-3%'")
        limit = 1 + float(match[3]) / 100
        if limit <= 0:
            raise InputError(f"--fail-on {text!r}: no ratio is below −100 %")
        bounds.append(Bound(text, parse_metric(match[1], "--fail-on"), match[2] == ">", limit))
    return bounds
