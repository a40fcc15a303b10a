"""Write pieces of sentences: names made harmless, counts, parts joined."""

import re
from collections.abc import Iterable
from datetime import date

from loadstone.analyse.trend import ChangedMetric
from loadstone.core.text import excerpt
from loadstone.core.verdict import Finding


def requests_a(noun: str, counts: Iterable[int | None]) -> str:
    """Write `500 requests a point`, or `300 to 500 …`; empty where no count is known."""
    positive = [count for count in counts if count]
    if not positive:
        return ""
    low, high = f"{min(positive):,}", f"{max(positive):,}"
    return f"{low if low == high else f'{low} to {high}'} requests a {noun}"


def join(*parts: str | None, by: str = ", ") -> str:
    """Join those of the parts that are there."""
    return by.join(part for part in parts if part)


_LONG = {
    "ttft": "time to first token (TTFT)",
    "tpot": "time per token (TPOT)",
    "e2e": "time of a request (E2E)",
}


def spell(text: str, *, long: bool = False) -> str:
    """Write `TPOT p99` for `tpot_p99`; `long`: `time per token (TPOT) p99`; `tok/s` of rates; of a
    class of traffic `chat TPOT p99`."""
    of_class = re.sub(r":(?=(?:ttft|tpot|itl|e2e)_p\d)", " ", text)
    names = _LONG if long and of_class == text else {}
    text = of_class
    return re.sub(
        r"\b(ttft|tpot|itl|e2e)[_ ](?=p\d)", lambda it: f"{names.get(it[1], it[1].upper())} ", text
    ).replace("_tokens_per_s", " tok/s")


def show_day(created: str) -> str:
    """Write `28 Nov`, of a time in ISO 8601; what is none of them as it is."""
    try:
        day = date.fromisoformat(created[:10])
    except ValueError:
        return clean(created, 10)
    return f"{day.day} {day:%b}"


def show_name(metric: str) -> str:
    """Write a metric as people do: `TTFT p50` for `ttft_p50`, `output tok/s`."""
    return spell(metric).replace("_", " ")


def show_change(metric: ChangedMetric) -> str:
    """Write `12% slower`, of throughput `8% lower`, of a drift `1.0% slower a run`."""
    words = ("lower", "higher") if metric.metric.endswith("per_s") else ("faster", "slower")
    word = words[metric.ratio > 1]
    if metric.per_run is not None:
        return f"{abs(metric.per_run - 1):.1%} {word} a run"
    return f"{abs(metric.ratio - 1):.0%} {word}"


def show_finding(finding: Finding) -> str:
    """Write a finding in one line: its kind, what shows it, and what to do."""
    return f"{finding.kind}: {finding.evidence}. {finding.remedy}"


def clean(text: str, limit: int = 80) -> str:
    """Make a name from a server or file one printable line."""
    return excerpt(text, limit)
