"""Makes one row for each cell of each run: what was deployed, what was asked, what came of it.
Charts, tables and findings are made of these, and tell a measured run from a simulated or an
imported one by `source` alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any, TypeVar

import msgspec

from loadstone.analyse.compare.price import Prices, dollars_per_hour, weigh_tokens
from loadstone.analyse.compare.ratio import Basis, basis
from loadstone.analyse.run_facts import RunFacts, mapping, number
from loadstone.analyse.stored_run import StoredRun
from loadstone.core.groups import by_key
from loadstone.core.plan import Load, LoadKind
from loadstone.core.summary import (
    Accuracy,
    CellSummary,
    Roofline,
    ServerFigures,
    SessionNumbers,
    Window,
)
from loadstone.core.units import show_seconds, show_share
from loadstone.report.data.statistic import (
    Estimate,
    energy,
    latency,
    price,
    round_count,
    throughput,
)
from loadstone.report.data.wording import clean, join

_Value = TypeVar("_Value")
LATENCIES = ("ttft", "tpot", "itl", "e2e")
_SHARED = "shared-prefix"
"""Part of the name of SGLang's data set of that sort."""
LONG_RUN = "rate × mean tokens"
"""The window of the throughput of an open loop that keeps up."""
LENGTHS = 0.02
"""The share within which mean lengths of different runs count as those of one workload."""


class CellPoint(msgspec.Struct, kw_only=True, frozen=True):
    """A cell, or repeats of one. Facts as in RunFacts, in words; numbers in SI units; None where
    nobody reported them.

    number      of the run, from 1, in the order of the report
    cells       the cells' numbers as their summaries have them: one cell, or all repeats
    prefix      the tokens that prompts share, and whether a cache was off; work: other wishes,
                without lengths
    how         a part of the load that `load` does not tell: a ramp, sessions; it is in `work` too
    parallel    how one server is split, and how many of them there were, if several
    label       the user's name for the setup; it is in `settings` where nothing else tells setups
                apart (_add_labels)
    near_*      lengths by which cells are grouped: those within LENGTHS of one another are the same
                (_unify_lengths)
    ttft, e2e   from the intended time in open loops, from sending in closed ones and where no more
                is told (`since`)
    sums        True where only another tool's figures are known, without the requests they are of
    output, total  tok/s: of a rate that is kept up with, that of the long run (LONG_RUN); else over
                   the
                steady window if all of the runs shown have one, or over whole cells (`window`);
                those of bursts, and of cells that were never steady, always over whole cells
    requests_per_s  over the same window
    slo         the bounds that were asked for
    dollars_per_hour  of all its GPUs, where prices are given and its own is known
    dollars_*   for a million tokens
    j_output    joules for an output token, of all GPUs that were watched; j_total: for an input or
                output token
    dollars_input  what a million input tokens must be sold for, see price.weigh_tokens()
    architecture  the catalogue's name for the model, where the user declared it and the server has
                  another
    basis       of a prediction, what it rests on: see ratio.basis()
    study       a study's name for its setup
    who         its name in all pictures of a report
    hue, shape  the numbers of its colour, and of its shape where that is the GPU's: see
                series.assign_hues()
    """

    run: str
    number: int
    cell: int
    cells: tuple[CellSummary, ...]
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
    ttft: Estimate | None
    tpot: Estimate | None
    itl: Estimate | None
    e2e: Estimate | None
    requests_per_s: float | None
    since: str
    window: str
    sums: bool
    output: Estimate | None
    total: Estimate | None
    dollars_per_hour: float | None
    dollars_output: Estimate | None
    dollars_total: Estimate | None
    dollars_input: Estimate | None
    j_output: Estimate | None
    j_total: Estimate | None
    basis: Basis | None
    architecture: str
    how: str
    slo: str
    study: str = ""
    who: str = ""
    hue: int = 0
    shape: int | None = None

    @property
    def sent(self) -> int | None:
        return reduce_known(sum, (round_count(cell.requests.sent) for cell in self.cells))

    @property
    def ok(self) -> int | None:
        return reduce_known(sum, map(_count_completed, self.cells))

    @property
    def trusted(self) -> bool:
        return all(cell.verdict.trusted for cell in self.cells)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Kinds of the findings for which it is not trusted."""
        kinds = (kind for cell in self.cells for kind in cell.verdict.kinds("error", "warning"))
        return tuple(dict.fromkeys(map(clean, kinds)))

    @property
    def failed(self) -> bool:
        """Tell if a finding is an error: not all was measured."""
        return any(cell.verdict.kinds("error") for cell in self.cells)

    @property
    def duration_s(self) -> float | None:
        return reduce_known(median, (cell.duration_s for cell in self.cells))

    @property
    def power_w(self) -> float | None:
        """The power that the GPUs drew over the cell."""
        levels = (cell.gpu.power_w for cell in self.cells if cell.gpu is not None)
        return reduce_known(median, (level.mean for level in levels if level is not None))

    @property
    def slo_met(self) -> bool | None:
        """Tell if every request and percentile met its own bound, in each repeat."""
        return reduce_known(min, (cell.slo_met for cell in self.cells))

    @property
    def p_met(self) -> float | None:
        """The probability that it meets all bounds."""
        return reduce_known(min, (cell.slo_probability for cell in self.cells))

    @property
    def attainment(self) -> float | None:
        """The share of the requests sent that are within the bounds."""
        return reduce_known(min, (cell.metrics.attainment for cell in self.cells))

    @property
    def goodput_per_s(self) -> float | None:
        """Requests within the bounds, per second."""
        return reduce_known(median, (cell.metrics.goodput_per_s for cell in self.cells))

    @property
    def roofline(self) -> Roofline:
        """The time and the work that the hardware allows, and the share of it that was used."""
        return self.cells[0].roofline or Roofline()

    @property
    def graded(self) -> Accuracy | None:
        """Tell how many answers were right: of repeats those of the first."""
        return self.cells[0].graded

    @property
    def sessions(self) -> SessionNumbers | None:
        """The numbers of sessions of agents: of repeats those of the first."""
        return self.cells[0].sessions

    @property
    def hit_share(self) -> float | None:
        """The share of the tokens of sessions' prompts that was in a prefix cache."""
        return self._share_of_prompts("cached_input_tokens")

    @property
    def could_share(self) -> float | None:
        """The share that the plan has in common with earlier calls: the most that a cache could
        give."""
        return self._share_of_prompts("shared_input_tokens")

    def _share_of_prompts(self, name: str) -> float | None:
        pairs = [
            (getattr(cell.metrics, name), cell.metrics.input_tokens)
            for cell in self.cells
            if cell.sessions
        ]
        return reduce_known(
            median, (part / whole if part is not None and whole else None for part, whole in pairs)
        )

    @property
    def thinking_share(self) -> float | None:
        """The share of output tokens that was thinking; None where there was none."""
        return reduce_known(median, (cell.metrics.thinking_share or None for cell in self.cells))

    @property
    def answer_s(self) -> float | None:
        """Time to the first token that is no thinking, median; None where nothing was thought."""
        times = (cell.metrics.answer_s for cell in self.cells if self.thinking_share)
        return reduce_known(median, (each.p50 if each is not None else None for each in times))

    @property
    def accepted_length(self) -> float | None:
        """Tokens that a step with drafts gives."""
        return reduce_known(
            median, (cell.drafts.accepted_length for cell in self.cells if cell.drafts is not None)
        )

    @property
    def server(self) -> ServerFigures | None:
        return self.cells[0].server

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
        return (
            self.output_tokens_per_s / self.gpus
            if self.output_tokens_per_s is not None and self.gpus
            else None
        )


def reduce_known(
    reduce: Callable[[list[_Value]], _Value], values: Iterable[_Value | None]
) -> _Value | None:
    """Reduce the values that are known to one; None where none is."""
    known = [value for value in values if value is not None]
    return reduce(known) if known else None


def _count_completed(cell: CellSummary) -> int | None:
    """Count the requests that are ok or short; None where neither is told."""
    counts = cell.requests
    return None if counts.ok is None and counts.short is None else counts.completed


def points_of(runs: Sequence[StoredRun], prices: Prices | None = None) -> list[CellPoint]:
    """Make the points of all cells, in the order of the runs. `prices`: dollars per GPU and
    hour."""
    served = [
        c
        for run in runs
        if run.facts.mode != "offline"
        for c in run.summary.cells
        if not c.load.is_burst
    ]
    lasting = [cell for cell in served if not cell.queue_grows]
    steady = bool(lasting) and all(cell.steady is not None for cell in lasting)
    points = [
        _point(number, run, at, cell, steady, prices or Prices())
        for number, run in enumerate(runs, 1)
        for at, cell in enumerate(run.summary.cells)
    ]
    return _add_labels(_unify_lengths(points))


def _add_labels(points: Sequence[CellPoint]) -> list[CellPoint]:
    """Put labels among the settings of points where labels alone tell cells apart.

    Where other facts do, a label is but a name for them: runs labelled `plain` and `shared` that
    differ in their prefix are alike in all else.
    """
    names = by_key((alike(point), point.label) for point in points)
    telling = {label for labels in names.values() if len(set(labels)) > 1 for label in labels}
    if len({point.label for point in points}) == 1:
        telling = {point.label for point in points}  # of all: it stands in titles
    return [
        (
            msgspec.structs.replace(point, settings=join(point.label, point.settings))
            if point.label in telling
            else point
        )
        for point in points
    ]


def _unify_lengths(points: Sequence[CellPoint]) -> list[CellPoint]:
    """Give points of nearly the same length the length that most of them have."""
    inputs, outputs = (
        _representatives(
            [length for point in points if (length := getattr(point, name)) is not None]
        )
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


def _point(
    number: int, run: StoredRun, at: int, cell: CellSummary, steady: bool, prices: Prices
) -> CellPoint:
    kind, metrics, facts, ok = cell.load.kind, cell.metrics, run.facts, _count_completed(cell)
    window: Window = (cell.steady if steady and kind != "burst" else None) or metrics
    longer = cell.lasting(steady=window is not metrics)
    closed = kind == "concurrency"
    ttft, e2e = (
        None if closed else latency(each, ok)
        for each in (metrics.ttft_intended_s, metrics.e2e_intended_s)
    )
    intended = ttft is not None or e2e is not None
    output = throughput(metrics, longer, "output_tokens_per_s", kind)
    total = throughput(metrics, longer, "total_tokens_per_s", kind)
    delivered = throughput(metrics, window, "output_tokens_per_s", kind)
    dollars = dollars_per_hour(facts, prices)
    how = _describe_load(run, cell.load)
    return CellPoint(
        run=clean(run.info.run_id),
        number=number,
        cell=at,
        cells=(cell,),
        source=run.info.source,
        model=clean((facts.model or "").rstrip("/").rsplit("/", 1)[-1]),
        engine=clean(facts.engine or "unknown engine"),
        version=clean(facts.engine_version or ""),
        gpu=clean(facts.gpu or ""),
        gpus=facts.gpus,
        hardware=clean(
            f"{facts.gpus}×{facts.gpu}" if facts.gpu and facts.gpus else facts.gpu or ""
        ),
        parallel=clean(join(_parallel(facts), _fleet(run), by=" ")),
        precision=clean(_precision(facts)),
        context=_context(run),
        settings=clean((facts.settings or "").removeprefix(facts.named or "").removeprefix(", ")),
        label=clean(facts.named or ""),
        offline=facts.mode == "offline",
        input_tokens=round_count(facts.input_tokens),
        output_tokens=round_count(facts.output_tokens),
        prefix=_prefix(facts),
        work=clean(join(_work(facts, run.info.settings.workload), how, _chat(run))),
        kind=kind,
        load=cell.load.value,
        ttft=ttft or latency(metrics.ttft_s, ok),
        tpot=latency(metrics.tpot_s, ok),
        itl=latency(metrics.itl_s, ok),
        e2e=e2e or latency(metrics.e2e_s, ok),
        requests_per_s=longer.requests_per_s,
        since="the intended time" if intended else "sending",
        window=(
            LONG_RUN
            if longer is not window
            else "steady window"
            if window is not metrics
            else "whole cell"
        ),
        sums=not run.has_records,
        output=output,
        total=total,
        dollars_per_hour=dollars,
        dollars_output=price(dollars, output),
        dollars_total=price(dollars, total),
        dollars_input=price(dollars, output, weigh_tokens(longer, metrics)),
        j_output=energy(window.j_per_output_token, delivered),
        j_total=energy(window.j_per_total_token, delivered),
        basis=basis(run.info, facts, [kind, cell.load.value, how]),
        architecture=clean((facts.architecture or "").rstrip("/").rsplit("/", 1)[-1]),
        how=how,
        slo=", ".join(
            f"{clean(name)} < {show_seconds(limit_s)}" for name, limit_s in run.info.slo.items()
        ),
    )


FACTS = (
    "engine",
    "model",
    "gpu",
    "gpus",
    "parallel",
    "version",
    "precision",
    "context",
    "settings",
    "source",
    "kind",
    "load",
    "offline",
    "near_input",
    "near_output",
    "prefix",
    "work",
)


def alike(point: CellPoint, *but: str) -> tuple[Any, ...]:
    """Make a key that is equal for points with all the same facts, `but` for these."""
    return tuple(getattr(point, fact) for fact in FACTS if fact not in but)


def _parallel(facts: RunFacts) -> str:
    if facts.layout:
        return facts.layout
    split = (("tp", facts.tp), ("pp", facts.pp), ("dp", facts.dp), ("ep", facts.ep))
    return " ".join(f"{name}{n}" for name, n in split if n and (n > 1 or name == "tp"))


def _fleet(run: StoredRun) -> str:
    servers = len(run.info.target.urls) if run.info.target else 0
    return f"fleet of {servers}" if servers > 1 else ""


def _describe_load(run: StoredRun, load: Load) -> str:
    """Show sessions and ramps: `sessions of 4 turns`, `ramp 5–40 req/s in 60 s`."""
    sessions = mapping(run.info.settings.workload.get("sessions"))
    turns = number(mapping(sessions.get("turns")).get("mean"))
    conversations = f"sessions of {turns:.3g} turns" if turns else "sessions"
    talks = (
        bool(sessions) or load.unit == "sessions"
    )  # imported loads may count requests of conversations
    return join(conversations if talks else "", f"ramp {load.label}" if load.profile else "")


def _chat(run: StoredRun) -> str:
    """Name the chat endpoint, whose template lengthens every prompt."""
    return "chat" if run.info.target is not None and "chat" in run.info.target.endpoint else ""


def _precision(facts: RunFacts) -> str:
    kv = (
        f"KV {facts.kv_dtype}" if facts.kv_dtype and facts.kv_dtype != facts.weights_dtype else None
    )
    return join(facts.weights_dtype, kv)


def _context(run: StoredRun) -> str:
    """Show the longest context the engine was set up for."""
    deployment = run.info.settings.deployment
    stated = round_count(number(deployment.get("max_model_tokens")))
    tokens = stated or (run.info.target.max_model_tokens if run.info.target else None)
    return f"max {tokens:,} tokens" if tokens else ""


def _prefix(facts: RunFacts) -> str:
    """Show the prefix that prompts share, and if the engine's cache was off, where that is
    known."""
    shared = f"{facts.prefix_tokens:,} tokens shared" if facts.prefix_tokens else ""
    if not shared and _SHARED in (facts.workload or ""):
        shared = "a prefix shared"  # how much of it is not told
    return join(shared, "cache off" if facts.prefix_cache is False and shared else "")


def _work(facts: RunFacts, workload: Mapping[str, Any]) -> str:
    ratio, kind = facts.range_ratio, facts.workload or ""
    spread = (
        f"lengths down to {show_share(ratio)} of the longest"
        if ratio is not None and ratio < 1
        else ""
    )
    name = workload.get("name") or workload.get("file")
    if name and _SHARED in str(name):
        name = None  # the prefix tells it
    name_of_data = (
        str(name)
        if name
        else kind
        if kind not in ("synthetic", "random", workload.get("name"))
        else ""
    )
    if not name and (sha256 := workload.get("sha256")):
        name_of_data = f"{name_of_data} {str(sha256)[:8]}"
    return join(spread, name_of_data)
