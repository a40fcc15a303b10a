"""Which numbers are compared, and what a user may bound: `ttft_p99>+5%`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loadstone.analyse.compare.interval import Reach, reach
from loadstone.analyse.compare.price import per_million
from loadstone.analyse.run_facts import lasting, mapping, number
from loadstone.core.errors import InputError
from loadstone.core.statistics import PERCENTILES

_STATISTICS = {"mean": float("nan"), **PERCENTILES}
_RATES = ("output_tokens_per_s", "total_tokens_per_s", "requests_per_s", "goodput_per_s", "attainment")
_STEADY = ("output_tokens_per_s", "total_tokens_per_s", "requests_per_s")
_PRICED = {f"dollars_per_million_{kind}_tokens": f"{kind}_tokens_per_s" for kind in ("output", "total")}
_ENERGY = "j_per_output_token"
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
        return self.statistic is None and not self.priced and self.base != _ENERGY

    @property
    def per_request(self) -> bool:
        """Whether each request has a value of its own, of which the metric is a statistic."""
        return self.base in ("ttft", "tpot", "e2e")

    @property
    def priced(self) -> bool:
        return self.base in _PRICED

    @property
    def counts_output(self) -> bool:
        """Whether it is output tokens per second, or follows from them."""
        return _PRICED.get(self.base, self.base) == "output_tokens_per_s"

    def stat(self, cell: Mapping[str, Any], intended: bool, steady: bool, dollars: float | None) -> Stat | None:
        """Out of a summary's cell: seconds, per second, or dollars of what costs `dollars` per hour; None where it is
        missing.
        """
        metrics = cell["metrics"]
        if self.statistic is None:
            rate = "output_tokens_per_s" if self.base == _ENERGY else _PRICED.get(self.base, self.base)
            window = lasting(cell, steady=steady) if rate in _STEADY else metrics
            found = Stat.of(window.get(rate), rate_interval(metrics, rate, window))
            if self.base == _ENERGY:
                return None if found is None else found.of_energy(window.get(_ENERGY))
            return found.priced(dollars) if found is not None and self.priced else found
        values = metrics.get(f"{self.base}{self._clock(intended)}_s") or {}
        return Stat.of(values.get(self.statistic), (values.get("ci95") or {}).get(self.statistic))

    def model_reach(self, cell: Mapping[str, Any], intended: bool) -> Reach | None:
        """How far the performance model may be off, 80 %, out of a simulated run's cell; None where it is not told.

        A mean and every percentile take what is known of the median.
        """
        metrics = cell["metrics"]
        if self.statistic is None:
            if _PRICED.get(self.base, self.base) not in _STEADY:
                return None
            found = predicted_rate(metrics, mapping(cell.get("load")).get("kind"))
            return found[::-1] if found is not None and self.priced else found
        values = mapping(metrics.get(f"{self.base}{self._clock(intended)}_s"))
        return _reach(values.get("p50"), values)

    def _clock(self, intended: bool) -> str:
        return "_intended" if intended and self.base in ("ttft", "e2e") else ""


def predicted_rate(metrics: Mapping[str, Any], kind: Any) -> Reach | None:
    """How far a predicted throughput may be off because the performance model is, 80 %; `kind`: of its load. What is
    known of output tokens in the long run holds, as a share, for all throughputs and windows. That of a closed loop
    varies as its E2E: it is places over mean E2E.
    """
    e2e = mapping(metrics.get("e2e_s"))
    of_e2e = _reach(e2e.get("p50"), e2e) if kind == "concurrency" else None
    if of_e2e is not None:
        return of_e2e[::-1]
    said = mapping(mapping(metrics.get("interval")).get("output_tokens_per_s"))
    ends = {end: said.get(f"model_{end}", said.get(end)) for end in ("low", "high")}
    return _reach(said.get("value", metrics.get("output_tokens_per_s")), ends)


def _reach(value: Any, ends: Mapping[str, Any]) -> Reach | None:
    centre = number(value)
    return None if centre is None else reach(centre, number(ends.get("low")), number(ends.get("high")))


@dataclass(frozen=True)
class Stat:
    """A value of one run, and how far its 95 % interval goes; None where that is not known."""

    value: float
    reach: Reach | None

    @classmethod
    def of(cls, value: Any, ends: Any) -> Stat | None:
        if not isinstance(value, int | float):
            return None
        low, high = ends if isinstance(ends, list) and len(ends) == 2 else (None, None)
        return cls(float(value), reach(float(value), low, high))

    def of_energy(self, joules: Any) -> Stat | None:
        """Of a throughput: what its tokens take, as sure as it is."""
        value = number(joules)
        return None if value is None else Stat(value, None if self.reach is None else self.reach[::-1])

    def priced(self, dollars: float | None) -> Stat | None:
        value = per_million(dollars, self.value)
        return None if value is None else Stat(value, None if self.reach is None else self.reach[::-1])


def rate_interval(metrics: Mapping[str, Any], rate: str, window: Mapping[str, Any]) -> list[float | None]:
    """The 95 % interval of a throughput of a cell in one of its windows: what is known of the steady one, as a share,
    holds for the whole cell.
    """
    known = window if "ci95" in window else mapping(metrics.get("steady"))
    ends, over, value = mapping(known.get("ci95")).get(rate), number(known.get(rate)), number(window.get(rate))
    if not isinstance(ends, list) or len(ends) != 2 or not over or value is None:
        return [None, None]
    return [end * value / over if isinstance(end, int | float) else None for end in ends]


DEFAULT = (
    *(Metric(base, statistic) for base in ("ttft", "tpot", "e2e") for statistic in ("p50", "p99")),
    Metric("output_tokens_per_s"),
)
PRICED = tuple(Metric(name) for name in _PRICED)
"""What is compared besides where prices are given."""
ENERGY = Metric(_ENERGY)
"""And where a run tells it. It is never tested: nobody knows what the GPUs drew for one request."""


@dataclass(frozen=True)
class Bound:
    """`ttft_p99>+5%`: met where B's ttft_p99 is more than 5 % above A's."""

    text: str
    metric: Metric
    above: bool
    limit: float

    def beyond(self, ratio: float) -> bool:
        return ratio > self.limit if self.above else ratio < self.limit


def parse_metric(name: str) -> Metric:
    """A metric by its name, as `ttft_p99`. Raises InputError."""
    base, _, statistic = name.rpartition("_")
    if name in (*_RATES, *_PRICED, _ENERGY):
        return Metric(name)
    if base in ("ttft", "tpot", "e2e", "itl") and statistic in _STATISTICS:
        return Metric(base, statistic)
    raise InputError(
        f"--fail-on: {name!r} is not a metric; use ttft, tpot, itl or e2e with mean, p50, p90, p95 or p99, e.g. "
        f"ttft_p99, or {', '.join((*_RATES, _ENERGY))}; with --price {', '.join(_PRICED)}"
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
        bounds.append(Bound(text, parse_metric(match[1]), match[2] == ">", limit))
    return bounds
