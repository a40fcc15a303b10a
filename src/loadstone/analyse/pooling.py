"""Names the rates of requests for vectors or scores: what is computed as output tokens is inputs,
or documents, there."""

from __future__ import annotations

from typing import Any, TypeVar

from msgspec.structs import replace

from loadstone.core.metrics import Metrics, Steady, Sustained
from loadstone.core.plan import Inputs
from loadstone.core.summary import CellSummary

_Rates = TypeVar("_Rates", Steady, Sustained)


def name_rates(summary: CellSummary, inputs: Inputs) -> None:
    """Put inputs or documents per second, and input tokens per second, in the place of output
    tokens and what counts them."""
    unit = "documents_per_s" if inputs.has_queries else "inputs_per_s"
    metrics = summary.metrics
    if metrics.steady is not None:
        metrics.steady = _name(metrics.steady, unit)
    if metrics.sustained is not None:
        metrics.sustained = _name(metrics.sustained, unit)
    for name, value in _rates_of(metrics, unit).items():
        setattr(metrics, name, value)
    metrics.output_tokens = metrics.output_events = None
    interval = metrics.interval.pop("output_tokens_per_s", None)
    if interval is not None:
        metrics.interval[unit] = interval


def _rates_of(window: Metrics | Steady | Sustained, unit: str) -> dict[str, Any]:
    output, total = window.output_tokens_per_s, window.total_tokens_per_s
    return {
        unit: output,
        "input_tokens_per_s": None if total is None or output is None else total - output,
        "output_tokens_per_s": None,
        "total_tokens_per_s": None,
    }


def _name(window: _Rates, unit: str) -> _Rates:
    rates, ci95 = _rates_of(window, unit), dict(window.ci95)
    total = ci95.pop("total_tokens_per_s", None)
    ci95[unit] = ci95.pop("output_tokens_per_s")
    tokens, whole = rates["input_tokens_per_s"], window.total_tokens_per_s
    if total is not None and tokens is not None and whole:
        ci95["input_tokens_per_s"] = [
            None if end is None else end * tokens / whole for end in total
        ]
    named: _Rates = replace(window, ci95=ci95, **rates)
    return named
