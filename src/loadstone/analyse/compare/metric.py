"""Defines the numbers that are compared, and parses bounds on them: `ttft_p99>+5%`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from loadstone.analyse.compare.price import per_million
from loadstone.analyse.compare.ratio import Reach, reach
from loadstone.core.errors import InputError
from loadstone.core.metrics import Latency, Metrics, Window, finite
from loadstone.core.plan import LoadKind
from loadstone.core.statistics import PERCENTILES
from loadstone.core.summary import CellSummary

_STATISTICS = {"mean": float("nan"), **PERCENTILES}
_RATES = (
    "output_tokens_per_s",
    "total_tokens_per_s",
    "requests_per_s",
    "goodput_per_s",
    "attainment",
    "inputs_per_s",
    "documents_per_s",
)
_POOLED = ("inputs_per_s", "documents_per_s")
"""In place of output tokens, of requests for vectors or scores."""
_STEADY = ("output_tokens_per_s", "total_tokens_per_s", "requests_per_s", *_POOLED)
_PRICED = {
    f"dollars_per_million_{kind}_tokens": f"{kind}_tokens_per_s" for kind in ("output", "total")
}
_ENERGY = "j_per_output_token"
_FAILED = "failed_share"
_BOUND = re.compile(r"(?:([\w.-]+):)?([a-z0-9_]+)\s*([<>])=?\s*([+-]?\d+(?:\.\d+)?)\s*%")


@dataclass(frozen=True)
class Metric:
    """A number that is compared: `base` and `statistic`, as ttft and p99; a rate has no
    statistic."""

    base: str
    statistic: str | None = None

    @property
    def name(self) -> str:
        return f"{self.base}_{self.statistic}" if self.statistic else self.base

    @property
    def quantile(self) -> float:
        """The quantile; NaN for a mean."""
        return _STATISTICS[self.statistic or "mean"]

    @property
    def more_is_better(self) -> bool:
        return self.statistic is None and not self.priced and self.base not in (_ENERGY, _FAILED)

    @property
    def is_share(self) -> bool:
        """True if it is compared by its difference, for 0 is usual and has no ratio."""
        return self.base == _FAILED

    @property
    def per_request(self) -> bool:
        """True if each request has a value of its own, of which the metric is a statistic."""
        return self.base in ("ttft", "tpot", "e2e")

    @property
    def priced(self) -> bool:
        return self.base in _PRICED

    @property
    def of_classes(self) -> bool:
        """True if a class of traffic has it, too: not of what servers cost or draw."""
        return not self.priced and self.base not in (_ENERGY, "total_tokens_per_s")

    @property
    def counts_output(self) -> bool:
        """True if it is output tokens per second, or follows from them."""
        return _PRICED.get(self.base, self.base) == "output_tokens_per_s"

    def stat(
        self, cell: CellSummary, intended: bool, steady: bool, dollars: float | None
    ) -> Stat | None:
        """Take the value from a summary's cell: seconds, per second, or dollars at `dollars` per
        hour; None where it is missing.
        """
        if self.statistic is not None:
            latency = self._latency(cell.metrics, intended)
            return (
                None
                if latency is None
                else Stat.of(latency.value(self.statistic), latency.bounds(self.statistic))
            )
        if self.is_share:
            return Stat.of(cell.requests.failed_share, (None, None))
        rate = "output_tokens_per_s" if self.base == _ENERGY else _PRICED.get(self.base, self.base)
        window = cell.lasting(steady=steady) if rate in _STEADY else cell.metrics
        throughput = Stat.of(getattr(window, rate), rate_interval(cell.metrics, rate, window))
        if throughput is None or rate == self.base:
            return throughput
        joules = window.j_per_output_token
        return throughput.inverse(
            joules if self.base == _ENERGY else per_million(dollars, throughput.value)
        )

    def model_margin(self, cell: CellSummary, intended: bool) -> Reach | None:
        """Return the margin of the performance model, 80 %, from a simulated run's cell; None where
        it is not known.

        A mean and every percentile take what is known of the median.
        """
        if self.statistic is not None:
            return _predicted(self._latency(cell.metrics, intended))
        if _PRICED.get(self.base, self.base) not in _STEADY:
            return None
        rate = predicted_rate(cell.metrics, cell.load.kind)
        return rate[::-1] if rate is not None and self.priced else rate

    def _latency(self, metrics: Metrics, intended: bool) -> Latency | None:
        clock = "_intended" if intended and self.base in ("ttft", "e2e") else ""
        return metrics.latency(f"{self.base}{clock}_s")


def predicted_rate(metrics: Metrics, kind: LoadKind) -> Reach | None:
    """Return the margin that the performance model's error gives a predicted throughput, 80 %;
    `kind`: of its load. The one of output tokens in the long run holds, as a share, for all
    throughputs and windows. A closed loop's varies as its E2E: it is concurrency over mean E2E.
    """
    of_e2e = _predicted(metrics.e2e_s) if kind == "concurrency" else None
    if of_e2e is not None:
        return of_e2e[::-1]
    rates = ("output_tokens_per_s", *_POOLED)
    rate = next((name for name in rates if name in metrics.interval), None)
    if rate is None:
        return None
    interval = metrics.interval[rate]
    value = getattr(metrics, rate) if interval.value is None else interval.value
    low = interval.low if interval.model_low is None else interval.model_low
    high = interval.high if interval.model_high is None else interval.model_high
    return None if value is None else reach(value, low, high)


def _predicted(latency: Latency | None) -> Reach | None:
    return (
        None
        if latency is None or latency.p50 is None
        else reach(latency.p50, latency.low, latency.high)
    )


@dataclass(frozen=True)
class Stat:
    """A value of one run, with the margin of its 95 % interval; None where that is not known."""

    value: float
    reach: Reach | None

    @classmethod
    def of(cls, value: float | None, ends: Sequence[float | None]) -> Stat | None:
        value = finite(value)  # another tool's file may state any
        return None if value is None else cls(float(value), reach(float(value), *ends))

    def inverse(self, value: float | None) -> Stat | None:
        """Turn a throughput into a value that is larger the lower it is, with the same relative
        margin."""
        return (
            None if value is None else Stat(value, None if self.reach is None else self.reach[::-1])
        )


def rate_interval(metrics: Metrics, rate: str, window: Window) -> tuple[float | None, float | None]:
    """Compute the 95 % interval of a throughput of a cell in one of its windows: the one of the
    steady window holds, as a share, for the whole cell.
    """
    source = metrics.steady if isinstance(window, Metrics) else window
    value, whole = getattr(window, rate), getattr(source, rate, None)
    if source is None or rate not in source.ci95 or value is None or not whole:
        return None, None
    low, high = (None if end is None else end * value / whole for end in source.ci95[rate])
    return low, high


DEFAULT = (
    *(Metric(base, statistic) for base in ("ttft", "tpot", "e2e") for statistic in ("p50", "p99")),
    Metric("output_tokens_per_s"),
)
POOLED = tuple(Metric(name) for name in _POOLED)
"""Metrics that take the place of output tokens where no text is written."""
PRICED = tuple(Metric(name) for name in _PRICED)
"""Metrics that are added where prices are given."""
ENERGY = Metric(_ENERGY)
"""A metric that is added where a run has it. It is never tested: nobody knows what the GPUs drew
for one request."""
FAILED = Metric(_FAILED)
"""A metric that is added where requests failed: the rest of a cell then looks better."""


@dataclass(frozen=True)
class ChangeBound:
    """`ttft_p99>+5%`: met where B's ttft_p99 is more than 5 % above A's; of a share, by 5 points of
    a hundred. `traffic_class`: of `chat:ttft_p99`; "": of all requests, and of each class."""

    text: str
    metric: Metric
    is_upper: bool
    limit: float
    traffic_class: str = ""

    def beyond(self, change: float) -> bool:
        """`change`: the ratio; of a share 1 and the difference."""
        return change > self.limit if self.is_upper else change < self.limit


def parse_metric(name: str) -> Metric:
    """Parse a metric's name, as `ttft_p99`. Raises InputError."""
    base, _, statistic = name.rpartition("_")
    if name in (*_RATES, *_PRICED, _ENERGY, _FAILED):
        return Metric(name)
    if base in ("ttft", "tpot", "e2e", "itl") and statistic in _STATISTICS:
        return Metric(base, statistic)
    raise InputError(
        f"--fail-on: {name!r} is not a metric; use ttft, tpot, itl or e2e with mean, p50, p90, p95"
        f" or p99, e.g. ttft_p99, or {', '.join((*_RATES, _ENERGY, _FAILED))}; with --price"
        f" {', '.join(_PRICED)}"
    )


def compared_name(field: str, statistic: str | None) -> str:
    """Return the name that a field of core's Metrics has in comparisons: `ttft_p50` for ("ttft_s",
    "p50")."""
    return field if statistic is None else f"{field.removesuffix('_s')}_{statistic}"


def parse_bounds(texts: Sequence[str]) -> list[ChangeBound]:
    """Parse the bounds of `--fail-on`, several with commas. Raises InputError."""
    bounds = []
    for text in (part.strip() for group in texts for part in group.split(",")):
        match = _BOUND.fullmatch(text)
        if match is None:
            raise InputError(
                f"--fail-on {text!r}: write e.g. 'ttft_p99>+5%' or 'output_tokens_per_s<-3%'"
            )
        limit = 1 + float(match[4]) / 100
        if limit <= 0:
            raise InputError(f"--fail-on {text!r}: no ratio is below −100%")
        metric = parse_metric(match[2])
        bounds.append(ChangeBound(text, metric, match[3] == ">", limit, match[1] or ""))
    return bounds
