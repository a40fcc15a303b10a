"""One row for each cell of each run: what was deployed, what was asked, what came of it. Charts, tables and findings
are made of these, and cannot tell a measured run from a simulated or an imported one but by `source`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from loadstone.report.light import light_tpot_s, light_ttft_s
from loadstone.report.runs import RunView
from loadstone.runfacts import RunFacts
from loadstone.wire.text import excerpt

LATENCIES = ("ttft", "tpot", "itl", "e2e")
Z95 = 1.959964
_SHARED = "shared-prefix"
"""In the name of SGLang's data set of that sort."""
LENGTHS = 0.02
"""Mean lengths of different runs that are so near to one another are of one workload."""


class Stat(msgspec.Struct, kw_only=True, frozen=True):
    """A latency of one cell, seconds.

    value      the median, or the mean where nobody gave a median
    which      which of the two it is
    low, high  of `value`; None where it is not known
    level      what they are: a 95 % confidence interval, of n independent requests; the 80 % interval of a prediction
    p99_*      bounds of the p99, 95 %
    """

    value: float
    which: Literal["median", "mean"]
    low: float | None = None
    high: float | None = None
    level: str | None = None
    n: int | None = None
    mean: float | None = None
    std: float | None = None
    p90: float | None = None
    p99: float | None = None
    p99_low: float | None = None
    p99_high: float | None = None


class Point(msgspec.Struct, kw_only=True, frozen=True):
    """A cell. Facts as in RunFacts, in words; numbers in SI units; None where nobody said.

    number      of the run, from 1, in the order of the report
    prefix      what prompts share, and whether a cache was off; work: what else was asked, but for lengths
    near_*      lengths by which cells are grouped: those within LENGTHS of one another are the same
    ttft, e2e   from the intended time in open loops, from sending in closed ones and where no more is told (`since`)
    output_low, output_high  of the output tok/s, 80 %, where they are predicted
    light_*     what the hardware allows: see light.py
    *_tokens_per_s  over the steady window if all of the runs shown have one, else over whole cells (`window`)
    """

    run: str
    number: int
    cell: int
    source: str
    model: str
    engine: str
    version: str
    gpu: str
    gpus: int | None
    hardware: str
    parallel: str
    precision: str
    context: str
    offline: bool
    input_tokens: int | None
    output_tokens: int | None
    near_input: int | None
    near_output: int | None
    prefix: str
    work: str
    kind: str
    load: float
    ok: int | None
    sent: int | None
    trusted: bool
    ttft: Stat | None
    tpot: Stat | None
    itl: Stat | None
    e2e: Stat | None
    output_tokens_per_s: float | None
    total_tokens_per_s: float | None
    requests_per_s: float | None
    duration_s: float | None
    since: str
    window: str
    output_low: float | None
    output_high: float | None
    light_tpot_s: float | None
    light_ttft_s: float | None
    server: dict[str, Any]

    @property
    def tokens_per_s_per_user(self) -> float | None:
        """1 / TPOT: the pace at which one reader sees tokens come."""
        return 1 / self.tpot.value if self.tpot is not None and self.tpot.value > 0 else None

    @property
    def tokens_per_s_per_gpu(self) -> float | None:
        return self.output_tokens_per_s / self.gpus if self.output_tokens_per_s is not None and self.gpus else None


def points_of(runs: Sequence[RunView]) -> list[Point]:
    """The points of all cells that have a load and any number at all, in the order of the runs."""
    cells = [
        (number, run, at, cell) for number, run in enumerate(runs, 1) for at, cell in enumerate(run.document["cells"])
    ]
    served = [cell for _, run, _, cell in cells if run.facts.mode != "offline" and _load(cell)[0] != "burst"]
    steady = bool(served) and all(_mapping(_mapping(cell.get("metrics")).get("steady")) for cell in served)
    made = (_point(number, run, at, cell, steady) for number, run, at, cell in cells)
    return _grouped([point for point in made if point is not None])


def _grouped(points: Sequence[Point]) -> list[Point]:
    """The same points, lengths that are nearly the same made the one that most cells have."""
    inputs, outputs = (
        _representatives([length for point in points if (length := getattr(point, name)) is not None])
        for name in ("input_tokens", "output_tokens")
    )
    return [
        msgspec.structs.replace(
            point,
            near_input=inputs.get(point.input_tokens or 0),
            near_output=outputs.get(point.output_tokens or 0),
        )
        for point in points
    ]


def _representatives(lengths: Sequence[int]) -> dict[int, int]:
    counts = Counter(lengths)
    chosen: dict[int, int] = {}
    for length, _ in counts.most_common():
        near = (known for known in set(chosen.values()) if abs(known - length) <= LENGTHS * known)
        chosen[length] = min(near, key=lambda known: abs(known - length), default=length)
    return chosen


def _point(number: int, run: RunView, at: int, cell: Mapping[str, Any], steady: bool) -> Point | None:
    kind, load = _load(cell)
    metrics, facts = _mapping(cell.get("metrics")), run.facts
    if kind is None or load is None:
        return None
    counts = _mapping(cell.get("requests"))
    done = [value for name in ("ok", "short") if (value := _number(counts.get(name))) is not None]
    ok = int(sum(done)) if done else None
    window = _mapping(metrics.get("steady")) if steady and kind != "burst" else metrics
    clock = "" if kind == "concurrency" else "_intended"
    lengths = _mapping(run.info.settings.get("workload"))
    tpot, e2e = _stat(metrics.get("tpot_s"), ok), _stat(metrics.get(f"e2e{clock}_s"), ok)
    ttft = _stat(metrics.get(f"ttft{clock}_s"), ok)
    intended = clock != "" and (ttft is not None or e2e is not None)
    predicted = _mapping(_mapping(metrics.get("interval")).get("output_tokens_per_s"))
    rate = _number(window.get("requests_per_s"))
    light_tpot, light_ttft = _light(facts, tpot, rate)
    return Point(
        run=clean(run.info.run_id),
        number=number,
        cell=at,
        source=run.info.source,
        model=clean((facts.model or "unknown model").rstrip("/").rsplit("/", 1)[-1]),
        engine=clean(facts.engine or "unknown engine"),
        version=clean(facts.engine_version or ""),
        gpu=clean(facts.gpu or ""),
        gpus=facts.gpus,
        hardware=clean(f"{facts.gpus}×{facts.gpu}" if facts.gpu and facts.gpus else facts.gpu or ""),
        parallel=clean(_parallel(run)),
        precision=clean(_precision(run)),
        context=_context(run),
        offline=facts.mode == "offline",
        input_tokens=_whole(facts.input_tokens),
        output_tokens=_whole(facts.output_tokens),
        near_input=_whole(facts.input_tokens),
        near_output=_whole(facts.output_tokens),
        prefix=_prefix(run),
        work=clean(_work(run, lengths)),
        kind=kind,
        load=load,
        ok=ok,
        sent=_whole(_number(counts.get("sent"))),
        trusted=bool(_mapping(cell.get("verdict")).get("trusted")),
        ttft=ttft or _stat(metrics.get("ttft_s"), ok),
        tpot=tpot,
        itl=_stat(metrics.get("itl_s"), ok, independent=False),
        e2e=e2e or _stat(metrics.get("e2e_s"), ok),
        output_tokens_per_s=_number(window.get("output_tokens_per_s")),
        total_tokens_per_s=_number(window.get("total_tokens_per_s")),
        requests_per_s=rate,
        duration_s=_number(cell.get("duration_s")),
        since="the intended time" if intended else "sending",
        window="steady window" if window is not metrics else "whole cell",
        output_low=_number(predicted.get("low")),
        output_high=_number(predicted.get("high")),
        light_tpot_s=light_tpot,
        light_ttft_s=light_ttft,
        server=dict(_mapping(cell.get("server"))),
    )


def _light(facts: RunFacts, tpot: Stat | None, requests_per_s: float | None) -> tuple[float | None, float | None]:
    """The least TPOT with as many requests decoding as there were, by Little's law; and the least TTFT."""
    ttft_s = light_ttft_s(facts, round(facts.input_tokens)) if facts.input_tokens else None
    if tpot is None or not requests_per_s or not facts.output_tokens or not facts.input_tokens:
        return None, ttft_s
    mean_s = tpot.mean if tpot.mean is not None else tpot.value
    decodes = requests_per_s * mean_s * (facts.output_tokens - 1)
    return light_tpot_s(facts, max(1.0, decodes), facts.input_tokens + facts.output_tokens / 2), ttft_s


def count(number: int) -> str:
    return f"{number:,}".replace(",", "\u202f")


def counted(counts: Sequence[int]) -> str:
    """`500`, or `300 to 500`, of ascending counts."""
    return count(counts[0]) if counts[0] == counts[-1] else f"{count(counts[0])} to {count(counts[-1])}"


def clean(text: str, limit: int = 80) -> str:
    """Names come from servers and files: one printable line."""
    return excerpt(text.encode("utf-8", "replace"), limit)


def _load(cell: Mapping[str, Any]) -> tuple[str | None, float | None]:
    load = _mapping(cell.get("load"))
    kind, value = load.get("kind"), _number(load.get("value"))
    return (kind, value) if kind in ("concurrency", "rate", "burst") else (None, None)


def _stat(said: Any, ok: int | None, *, independent: bool = True) -> Stat | None:
    values = {name: _number(value) for name, value in _mapping(said).items()}
    median, mean = values.get("p50"), values.get("mean")
    value = median if median is not None else mean
    if value is None:
        return None
    n = _whole(values.get("n")) or ok
    std = values.get("std")
    bounds = _mapping(_mapping(said).get("ci95"))
    low, high = _pair(bounds.get("p50"))
    level: str | None = "95 %"
    if values.get("low") is not None and values.get("high") is not None:
        low, high, level = values["low"], values["high"], "80 %, predicted"
    elif median is None and mean is not None and std is not None and n and independent:
        reach = Z95 * std / math.sqrt(n)
        low, high = mean - reach, mean + reach
    p99_low, p99_high = _pair(bounds.get("p99"))
    return Stat(
        value=value,
        which="median" if median is not None else "mean",
        low=low,
        high=high,
        level=level if low is not None and high is not None else None,
        n=n,
        mean=mean,
        std=std,
        p90=values.get("p90"),
        p99=values.get("p99"),
        p99_low=p99_low,
        p99_high=p99_high,
    )


def _pair(said: Any) -> tuple[float | None, float | None]:
    if not isinstance(said, list | tuple) or len(said) != 2:
        return None, None
    return _number(said[0]), _number(said[1])


def _parallel(run: RunView) -> str:
    facts = run.facts
    split = (("tp", facts.tp), ("pp", facts.pp), ("dp", facts.dp), ("ep", facts.ep))
    return " ".join(f"{name}{n}" for name, n in split if n and (n > 1 or name == "tp"))


def _precision(run: RunView) -> str:
    facts = run.facts
    kv = f"KV {facts.kv_dtype}" if facts.kv_dtype and facts.kv_dtype != facts.weights_dtype else None
    return ", ".join(part for part in (facts.weights_dtype, kv) if part)


def _context(run: RunView) -> str:
    """The longest context the engine was set up for."""
    deployment = _mapping(run.info.settings.get("deployment"))
    stated = _whole(_number(deployment.get("max_model_tokens")))
    tokens = stated or (run.info.target.max_model_tokens if run.info.target else None)
    return f"max {count(tokens)} tokens" if tokens else ""


def _prefix(run: RunView) -> str:
    """Whether prompts share a prefix, and whether the engine's cache was on, where that is known."""
    facts = run.facts
    shared = f"{count(facts.prefix_tokens)} tokens shared" if facts.prefix_tokens else ""
    if not shared and _SHARED in (facts.workload or ""):
        shared = "a prefix shared"  # how much of it is not told
    off = "cache off" if facts.prefix_cache is False and shared else ""
    return ", ".join(part for part in (shared, off) if part)


def _work(run: RunView, workload: Mapping[str, Any]) -> str:
    ratio = run.facts.range_ratio
    kind = run.facts.workload or ""
    parts = [f"lengths from {ratio:g}·n to n" if ratio is not None and ratio < 1 else ""]
    name = workload.get("name") or workload.get("file")
    if name and _SHARED in str(name):
        name = None  # said of the prefix
    parts.append(str(name) if name else kind if kind not in ("synthetic", "random", "", workload.get("name")) else "")
    return ", ".join(part for part in parts if part)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _number(value: Any) -> float | None:
    """A finite number, else nothing: summaries may come from anywhere."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def _whole(value: float | None) -> int | None:
    return round(value) if value is not None and value > 0 else None
