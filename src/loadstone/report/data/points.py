"""One row for each cell of each run: what was deployed, what was asked, what came of it. Charts, tables and findings
are made of these, and cannot tell a measured run from a simulated or an imported one but by `source`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from loadstone.analyse.compare.price import Prices, dollars_per_hour
from loadstone.analyse.compare.ratio import Basis, basis
from loadstone.analyse.run_facts import RunFacts, mapping, number
from loadstone.analyse.stored_run import StoredRun
from loadstone.core.plan import Load, LoadKind
from loadstone.core.summary import CellSummary, Roofline, ServerFigures, Window
from loadstone.core.units import show_seconds
from loadstone.report.data.statistic import Stat, energy, latency, price, throughput, whole
from loadstone.report.data.wording import clean, count, joined

LATENCIES = ("ttft", "tpot", "itl", "e2e")
_SHARED = "shared-prefix"
"""In the name of SGLang's data set of that sort."""
LONG_RUN = "rate × mean tokens"
"""Over what the throughput of an open loop is that keeps up."""
LENGTHS = 0.02
"""Mean lengths of different runs that are so near to one another are of one workload."""


class Point(msgspec.Struct, kw_only=True, frozen=True):
    """A cell. Facts as in RunFacts, in words; numbers in SI units; None where nobody said.

    number      of the run, from 1, in the order of the report
    prefix      what prompts share, and whether a cache was off; work: what else was asked, but for lengths
    how         what `load` alone does not tell of the load: a ramp, sessions; it is in `work` too
    parallel    how one server is split, and how many of them there were, if several
    label       the user's name for the setup; it is in `settings` where nothing else tells setups apart (_labelled)
    near_*      lengths by which cells are grouped: those within LENGTHS of one another are the same (_grouped)
    ttft, e2e   from the intended time in open loops, from sending in closed ones and where no more is told (`since`)
    sums        whether there is nothing but another tool's figures, without the requests they are of
    output, total  tok/s: of a rate that is kept up with, that of the long run (LONG_RUN); else over the
                steady window if all of the runs shown have one, or over whole cells (`window`); those of bursts, and
                of cells that were never steady, always over whole cells
    slo         the bounds that were asked for; slo_met: whether every request and percentile meets its own; p_met:
                how likely all of them are
    attainment  share of the requests sent that are within the bounds; goodput_per_s: those, per second
    dollars_per_hour  of all its GPUs, where prices are given and its own is known
    dollars_*   for a million tokens
    j_output    joules for an output token, of all GPUs that were watched; power_w: what these drew, over the cell
    architecture  the catalogue's name for the model, where the user stated it and the server has another
    basis       of a prediction, what it rests on: see comparison.model
    roofline    what the hardware allows, and how much of it was used
    warnings    kinds of the findings for which it is not trusted; failed: one is an error: not all was measured
    study       what a study calls its setup
    who, hue    whose it is in all pictures of a report, and the number of that one's colour: see series.hued()
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
    settings: str
    label: str
    offline: bool
    input_tokens: int | None
    output_tokens: int | None
    near_input: int | None = None
    near_output: int | None = None
    prefix: str
    work: str
    kind: LoadKind
    load: float
    ok: int | None
    sent: int | None
    trusted: bool
    warnings: tuple[str, ...]
    failed: bool
    ttft: Stat | None
    tpot: Stat | None
    itl: Stat | None
    e2e: Stat | None
    requests_per_s: float | None
    duration_s: float | None
    since: str
    window: str
    sums: bool
    output: Stat | None
    total: Stat | None
    dollars_per_hour: float | None
    dollars_output: Stat | None
    dollars_total: Stat | None
    j_output: Stat | None
    basis: Basis | None
    power_w: float | None
    roofline: Roofline
    server: ServerFigures | None
    architecture: str
    how: str
    slo: str
    slo_met: bool | None
    p_met: float | None
    attainment: float | None
    goodput_per_s: float | None
    study: str = ""
    who: str = ""
    hue: int = 0

    @property
    def output_tokens_per_s(self) -> float | None:
        return self.output.value if self.output is not None else None

    @property
    def total_tokens_per_s(self) -> float | None:
        return self.total.value if self.total is not None else None

    @property
    def tokens_per_s_per_user(self) -> float | None:
        """1 / TPOT: the pace at which one reader sees tokens come."""
        return 1 / self.tpot.value if self.tpot is not None and self.tpot.value > 0 else None

    @property
    def tokens_per_s_per_gpu(self) -> float | None:
        return self.output_tokens_per_s / self.gpus if self.output_tokens_per_s is not None and self.gpus else None


def points_of(runs: Sequence[StoredRun], prices: Prices | None = None) -> list[Point]:
    """The points of all cells, in the order of the runs. `prices`: dollars per GPU and hour."""
    served = [c for run in runs if run.facts.mode != "offline" for c in run.summary.cells if not c.load.is_burst]
    lasting = [cell for cell in served if not cell.queue_grows]
    steady = bool(lasting) and all(cell.steady is not None for cell in lasting)
    points = [
        _point(number, run, at, cell, steady, prices or Prices())
        for number, run in enumerate(runs, 1)
        for at, cell in enumerate(run.summary.cells)
    ]
    return _labelled(_grouped(points))


def _labelled(points: Sequence[Point]) -> list[Point]:
    """The same points, with their labels among the settings where labels alone tell cells apart.

    Where other facts do, a label is but a name for them: runs labelled `plain` and `shared` that differ in their
    prefix are alike in all else.
    """
    names: dict[tuple[Any, ...], set[str]] = defaultdict(set)
    for point in points:
        names[alike(point)].add(point.label)
    telling = {label for labels in names.values() if len(labels) > 1 for label in labels}
    if len({point.label for point in points}) == 1:
        telling = {point.label for point in points}  # of all: it stands in titles
    return [
        msgspec.structs.replace(point, settings=joined(point.label, point.settings))
        if point.label in telling
        else point
        for point in points
    ]


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


def _point(number: int, run: StoredRun, at: int, cell: CellSummary, steady: bool, prices: Prices) -> Point:
    kind, metrics, facts, counts = cell.load.kind, cell.metrics, run.facts, cell.requests
    ok = None if counts.ok is None and counts.short is None else counts.completed
    window: Window = (cell.steady if steady and kind != "burst" else None) or metrics
    longer = cell.lasting(steady=window is not metrics)
    closed = kind == "concurrency"
    ttft, e2e = (None if closed else latency(each, ok) for each in (metrics.ttft_intended_s, metrics.e2e_intended_s))
    intended = ttft is not None or e2e is not None
    output = throughput(metrics, longer, "output_tokens_per_s", kind)
    total = throughput(metrics, longer, "total_tokens_per_s", kind)
    delivered = throughput(metrics, window, "output_tokens_per_s", kind)
    dollars = dollars_per_hour(facts, prices)
    how = _how(run, cell.load)
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
        parallel=clean(joined(_parallel(facts), _fleet(run), by=" ")),
        precision=clean(_precision(facts)),
        context=_context(run),
        settings=clean((facts.settings or "").removeprefix(facts.named or "").removeprefix(", ")),
        label=clean(facts.named or ""),
        offline=facts.mode == "offline",
        input_tokens=whole(facts.input_tokens),
        output_tokens=whole(facts.output_tokens),
        prefix=_prefix(facts),
        work=clean(joined(_work(facts, run.info.settings.workload), how, _chat(run))),
        kind=kind,
        load=cell.load.value,
        ok=ok,
        sent=whole(counts.sent),
        trusted=cell.verdict.trusted,
        warnings=tuple(map(clean, cell.verdict.kinds("error", "warning"))),
        failed=bool(cell.verdict.kinds("error")),
        ttft=ttft or latency(metrics.ttft_s, ok),
        tpot=latency(metrics.tpot_s, ok),
        itl=latency(metrics.itl_s, ok),
        e2e=e2e or latency(metrics.e2e_s, ok),
        requests_per_s=longer.requests_per_s,
        duration_s=cell.duration_s,
        since="the intended time" if intended else "sending",
        window=LONG_RUN if longer is not window else "steady window" if window is not metrics else "whole cell",
        sums=not run.has_records,
        output=output,
        total=total,
        dollars_per_hour=dollars,
        dollars_output=price(dollars, output),
        dollars_total=price(dollars, total),
        j_output=energy(window.j_per_output_token, delivered),
        basis=basis(run.info, facts, [kind, cell.load.value, how]),
        power_w=cell.gpu.power_w.mean if cell.gpu is not None and cell.gpu.power_w is not None else None,
        roofline=cell.roofline or Roofline(),
        server=cell.server,
        architecture=clean((facts.architecture or "").rstrip("/").rsplit("/", 1)[-1]),
        how=how,
        slo=", ".join(f"{clean(name)} < {show_seconds(limit_s)}" for name, limit_s in run.info.slo.items()),
        slo_met=cell.slo_met,
        p_met=cell.slo_probability,
        attainment=metrics.attainment,
        goodput_per_s=metrics.goodput_per_s,
    )


FACTS = (
    "engine", "model", "gpu", "gpus", "parallel", "version", "precision", "context", "settings", "source",
    "kind", "load", "offline", "near_input", "near_output", "prefix", "work",
)  # fmt: skip


def alike(point: Point, *but: str) -> tuple[Any, ...]:
    """Points with equal ones are equal in all that was deployed and asked, `but` for these."""
    return tuple(getattr(point, fact) for fact in FACTS if fact not in but)


def _parallel(facts: RunFacts) -> str:
    split = (("tp", facts.tp), ("pp", facts.pp), ("dp", facts.dp), ("ep", facts.ep))
    return " ".join(f"{name}{n}" for name, n in split if n and (n > 1 or name == "tp"))


def _fleet(run: StoredRun) -> str:
    servers = len(run.info.target.urls) if run.info.target else 0
    return f"fleet of {servers}" if servers > 1 else ""


def _how(run: StoredRun, load: Load) -> str:
    """`sessions of 4 turns`, `ramp 5–40 req/s in 60 s`."""
    sessions = mapping(run.info.settings.workload.get("sessions"))
    turns = number(mapping(sessions.get("turns")).get("mean"))
    conversations = f"sessions of {turns:.3g} turns" if turns else "sessions"
    talks = bool(sessions) or load.unit == "sessions"  # imported loads may count requests of conversations
    return joined(conversations if talks else "", f"ramp {load.label}" if load.profile else "")


def _chat(run: StoredRun) -> str:
    """Its template lengthens every prompt."""
    return "chat" if run.info.target is not None and "chat" in run.info.target.endpoint else ""


def _precision(facts: RunFacts) -> str:
    kv = f"KV {facts.kv_dtype}" if facts.kv_dtype and facts.kv_dtype != facts.weights_dtype else None
    return joined(facts.weights_dtype, kv)


def _context(run: StoredRun) -> str:
    """The longest context the engine was set up for."""
    deployment = run.info.settings.deployment
    stated = whole(number(deployment.get("max_model_tokens")))
    tokens = stated or (run.info.target.max_model_tokens if run.info.target else None)
    return f"max {count(tokens)} tokens" if tokens else ""


def _prefix(facts: RunFacts) -> str:
    """Whether prompts share a prefix, and whether the engine's cache was on, where that is known."""
    shared = f"{count(facts.prefix_tokens)} tokens shared" if facts.prefix_tokens else ""
    if not shared and _SHARED in (facts.workload or ""):
        shared = "a prefix shared"  # how much of it is not told
    return joined(shared, "cache off" if facts.prefix_cache is False and shared else "")


def _work(facts: RunFacts, workload: Mapping[str, Any]) -> str:
    ratio, kind = facts.range_ratio, facts.workload or ""
    spread = f"lengths from {ratio:.3g}·n to n" if ratio is not None and ratio < 1 else ""
    name = workload.get("name") or workload.get("file")
    if name and _SHARED in str(name):
        name = None  # said of the prefix
    name_of_data = str(name) if name else kind if kind not in ("synthetic", "random", workload.get("name")) else ""
    if not name and (sha256 := workload.get("sha256")):
        name_of_data = f"{name_of_data} {str(sha256)[:8]}"
    return joined(spread, name_of_data)
