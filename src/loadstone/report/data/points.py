"""Makes one row for each cell of each run: what was deployed, what was asked, what came of it.
Charts, tables and findings are made of these, and tell a measured run from a simulated or an
imported one by `source` alone.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from statistics import median
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from loadstone.analyse.classes import cell_of_class
from loadstone.analyse.compare.price import Prices, dollars_per_hour, weigh_tokens
from loadstone.analyse.compare.ratio import Basis, basis
from loadstone.analyse.stored_run import StoredRun
from loadstone.core.groups import by_key
from loadstone.core.metrics import Metrics, Window
from loadstone.core.parts import SessionNumbers
from loadstone.core.plan import LoadKind
from loadstone.core.summary import Accuracy, CellSummary, Roofline
from loadstone.core.units import judge_met, show_met
from loadstone.report.data.setups import Demand, Setup, describe_demand, describe_setup
from loadstone.report.data.statistic import (
    Estimate,
    energy,
    latency,
    price,
    round_count,
    throughput,
    value_of,
)
from loadstone.report.data.wording import clean, join

_Value = TypeVar("_Value")
LATENCIES = ("ttft", "tpot", "itl", "e2e")
LONG_RUN = "rate × mean tokens"
"""The window of the throughput of an open loop that keeps up."""
LENGTHS = 0.02
"""The share within which mean lengths of different runs count as those of one workload."""


class Dollars(msgspec.Struct, kw_only=True, frozen=True):
    """Holds the costs, where prices are given and its own is known.

    per_hour       of all its GPUs
    output, total  for a million tokens
    input          what a million input tokens must be sold for, see price.weigh_tokens()
    """

    per_hour: float | None
    output: Estimate | None
    total: Estimate | None
    input: Estimate | None


class Joules(msgspec.Struct, kw_only=True, frozen=True):
    """Energy of all GPUs that were watched: for an output token; `total`: or an input one."""

    output: Estimate | None
    total: Estimate | None


class Look(msgspec.Struct, frozen=True):
    """How it looks in all pictures of a report: its name, the numbers of its colour, and of its
    shape where that is the GPU's: see series.assign_hues()."""

    name: str = ""
    hue: int = 0
    shape: int | None = None


class CellPoint(msgspec.Struct, kw_only=True, frozen=True):
    """A cell, or repeats of one. Numbers are in SI units; None where nobody reported them.

    number      of the run, from 1, in the order of the report
    cell        its number within the run
    cells       the cells' summaries: of one cell, or of all repeats
    ttft, e2e   from the intended time in open loops, from sending in closed ones and where no more
                is told (`since`)
    sums        True where only another tool's figures are known, without the requests they are of
    output, total  tok/s: of a rate that is kept up with, that of the long run (LONG_RUN); else over
                   the steady window if all of the runs shown have one, or over whole cells
                   (`window`); those of bursts, and of cells that were never steady, always over
                   whole cells
    requests_per_s  over the same window
    basis       of a prediction, what it rests on: see ratio.basis()
    """

    run: str
    number: int
    cell: int
    cells: tuple[CellSummary, ...]
    setup: Setup
    demand: Demand
    ttft: Estimate | None
    tpot: Estimate | None
    itl: Estimate | None
    e2e: Estimate | None
    since: str
    sums: bool
    output: Estimate | None
    total: Estimate | None
    pooled: Estimate | None
    requests_per_s: float | None
    window: str
    dollars: Dollars
    joules: Joules
    basis: Basis | None
    look: Look = Look()

    @property
    def is_simulated(self) -> bool:
        return self.setup.source == "simulated"

    @property
    def kind(self) -> LoadKind:
        return self.cells[0].load.kind

    @property
    def load(self) -> float:
        return self.cells[0].load.value

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
    def measured_over(self) -> str:
        """Name the window of its throughput as people read it; files have `cell` for a load."""
        return self.window.replace("cell", "load")

    @property
    def holds(self) -> bool:
        """Tell if the bounds are met, and more likely so than not."""
        return judge_met(self.slo_met, self.p_met) == "met"

    @property
    def slo_words(self) -> str:
        """Say if the bounds were met, with the probability of that."""
        return show_met(self.slo_met, self.p_met)

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
    def roofline_share(self) -> float | None:
        """The roofline's TPOT over the one there was: 1 is as fast as the hardware can be."""
        return share_of(self.roofline.tpot_s or None, value_of(self.tpot))

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
        served = [cell.metrics for cell in self.cells if cell.sessions]
        return reduce_known(
            median, (share_of(getattr(metrics, name), metrics.input_tokens) for metrics in served)
        )

    @property
    def thinking_share(self) -> float | None:
        """The share of output tokens that was thinking; None where there was none."""
        return reduce_known(median, (cell.metrics.thinking_share or None for cell in self.cells))

    @property
    def answer_s(self) -> float | None:
        """Time to the first token that is no thinking, median; None where nothing was thought."""
        times = (cell.metrics.answer_s for cell in self.cells if self.thinking_share)
        return reduce_known(median, (time.p50 for time in times if time is not None))

    @property
    def accepted_length(self) -> float | None:
        """Tokens that a step with drafts gives."""
        drafts = (cell.drafts for cell in self.cells if cell.drafts is not None)
        return reduce_known(median, (figures.accepted_length for figures in drafts))

    @property
    def output_tokens_per_s(self) -> float | None:
        return value_of(self.output)

    @property
    def total_tokens_per_s(self) -> float | None:
        return value_of(self.total)

    @property
    def inputs_per_s(self) -> float | None:
        """Inputs of requests for vectors; None of other requests."""
        return None if self.asks_scores else value_of(self.pooled)

    @property
    def documents_per_s(self) -> float | None:
        """Documents of requests for scores; None of other requests."""
        return value_of(self.pooled) if self.asks_scores else None

    @property
    def asks_scores(self) -> bool:
        return self.cells[0].metrics.documents_per_s is not None

    @property
    def input_tokens_per_s(self) -> float | None:
        """Over the same window as its texts."""
        steady = self.window != "whole load"
        rates = (cell.lasting(steady=steady).input_tokens_per_s for cell in self.cells)
        return reduce_known(median, rates)

    @property
    def e2e_p95_s(self) -> float | None:
        """The p95 of requests for vectors or scores, whose only latency E2E is."""
        times = (cell.metrics.e2e_s for cell in self.cells if self.pooled is not None)
        return reduce_known(median, (time.p95 for time in times if time is not None))

    @property
    def rate(self) -> float | None:
        """The throughput that loads are ranked by: output tokens, or inputs and documents."""
        return self.output_tokens_per_s or value_of(self.pooled)

    @property
    def tokens_per_s_per_user(self) -> float | None:
        """1 / TPOT: the pace at which one reader sees tokens come."""
        return 1 / self.tpot.value if self.tpot is not None and self.tpot.value > 0 else None

    @property
    def tokens_per_s_per_gpu(self) -> float | None:
        return share_of(self.output_tokens_per_s, self.setup.gpus)


def share_of(part: float | None, whole: float | None) -> float | None:
    """Divide; None where one is not known, or there is no whole."""
    return part / whole if part is not None and whole else None


def reduce_known(
    reduce: Callable[[list[_Value]], _Value], values: Iterable[_Value | None]
) -> _Value | None:
    """Reduce the values that are known to one; None where none is."""
    present = [value for value in values if value is not None]
    return reduce(present) if present else None


def _count_completed(cell: CellSummary) -> int | None:
    """Count the requests that are ok or short; None where neither is told."""
    counts = cell.requests
    return None if counts.ok is None and counts.short is None else counts.completed


def points_of(runs: Sequence[StoredRun], prices: Prices | None = None) -> list[CellPoint]:
    """Make the points of all cells, in the order of the runs. `prices`: dollars per GPU and
    hour."""
    served = [run.summary.cells for run in runs if run.facts.mode != "offline"]
    lasting = [
        cell
        for cells in served
        for cell in cells
        if not cell.load.is_burst and not cell.queue_grows
    ]
    steady = bool(lasting) and all(cell.steady is not None for cell in lasting)
    points: list[CellPoint] = []
    for run_number, run in enumerate(runs, 1):
        points += _points_of_run(run_number, run, steady, prices or Prices())
    return _add_labels(_unify_lengths(points))


def _add_labels(points: Sequence[CellPoint]) -> list[CellPoint]:
    """Put labels among the settings of points where labels alone tell cells apart.

    Where other facts do, a label is but a name for them: runs labelled `plain` and `shared` that
    differ in their prefix are alike in all else.
    """
    every = {point.setup.label for point in points}
    names = by_key((alike(point), point.setup.label) for point in points)
    telling = {label for labels in names.values() if len(set(labels)) > 1 for label in labels}
    if len(every) == 1:
        telling = every  # of all: it stands in titles
    return [
        change_setup(point, settings=join(point.setup.label, point.setup.settings))
        if point.setup.label in telling
        else point
        for point in points
    ]


def change_setup(point: CellPoint, **facts: str) -> CellPoint:
    """Return the point with other facts of its setup."""
    return replace(point, setup=replace(point.setup, **facts))


def _unify_lengths(points: Sequence[CellPoint]) -> list[CellPoint]:
    """Give points of nearly the same length the length that most of them have."""
    inputs = _representatives(point.demand.input_tokens for point in points)
    outputs = _representatives(point.demand.output_tokens for point in points)
    return [
        replace(
            point,
            demand=replace(
                point.demand,
                near_input=inputs.get(point.demand.input_tokens),
                near_output=outputs.get(point.demand.output_tokens),
            ),
        )
        for point in points
    ]


def _representatives(lengths: Iterable[int | None]) -> dict[int | None, int]:
    counts = Counter(length for length in lengths if length is not None)
    chosen: dict[int | None, int] = {}
    for length, _ in counts.most_common():
        near = (
            common for common in set(chosen.values()) if abs(common - length) <= LENGTHS * common
        )
        chosen[length] = min(near, key=lambda common: abs(common - length), default=length)
    return chosen


def _points_of_run(
    run_number: int, run: StoredRun, steady: bool, prices: Prices
) -> Iterator[CellPoint]:
    setup = describe_setup(run)
    dollars = dollars_per_hour(run.facts, prices)
    sums = not run.has_records
    for index, cell in enumerate(run.summary.cells):
        metrics, kind = cell.metrics, cell.load.kind
        window: Window = (cell.steady if steady and kind != "burst" else None) or metrics
        longer = cell.lasting(steady=window is not metrics)
        output = throughput(metrics, longer, "output_tokens_per_s", kind)
        total = throughput(metrics, longer, "total_tokens_per_s", kind)
        delivered = throughput(metrics, window, "output_tokens_per_s", kind)
        demand = describe_demand(run, cell.load)
        yield CellPoint(
            run=clean(run.info.run_id),
            number=run_number,
            cell=index,
            cells=(cell,),
            setup=setup,
            demand=demand,
            # Times over classes of traffic are no one's: see point_of_class().
            **(_times(cell, sums) | (dict.fromkeys(LATENCIES) if cell.by_class else {})),
            sums=sums,
            output=output,
            total=total,
            pooled=throughput(metrics, longer, "inputs_per_s", kind)
            or throughput(metrics, longer, "documents_per_s", kind),
            requests_per_s=longer.requests_per_s,
            window=_name_window(longer, window, metrics),
            dollars=Dollars(
                per_hour=dollars,
                output=price(dollars, output),
                total=price(dollars, total),
                input=price(dollars, output, weigh_tokens(longer, metrics)),
            ),
            joules=Joules(
                output=energy(window.j_per_output_token, delivered),
                total=energy(window.j_per_total_token, delivered),
            ),
            basis=basis(run.info, run.facts, [kind, cell.load.value, demand.how]),
        )


def _times(cell: CellSummary, sums: bool) -> dict[str, Any]:
    """Estimate the latencies of a cell, and say since when they count."""
    metrics = cell.metrics
    estimate = partial(latency, ok=_count_completed(cell), sums=sums)
    open_loop = cell.load.kind != "concurrency"
    ttft = estimate(metrics.ttft_intended_s) if open_loop else None
    e2e = estimate(metrics.e2e_intended_s) if open_loop else None
    return {
        "ttft": ttft or estimate(metrics.ttft_s),
        "tpot": estimate(metrics.tpot_s),
        "itl": estimate(metrics.itl_s),
        "e2e": e2e or estimate(metrics.e2e_s),
        "since": "sending" if ttft is None and e2e is None else "the intended time",
    }


def point_of_class(point: CellPoint, number: int) -> CellPoint:
    """Return a point with the latencies of one of its classes of traffic, and a colour for it."""
    part = point.cells[0].by_class[number]
    times = _times(cell_of_class(point.cells[0], part), point.sums)
    return replace(point, look=Look(part.name, number), **times)


def _name_window(longer: Window, window: Window, metrics: Metrics) -> str:
    if longer is not window:
        return LONG_RUN
    return "whole load" if window is metrics else "steady window"


FACTS: dict[str, Callable[[CellPoint], Any]] = {
    path.rpartition(".")[2]: attrgetter(path)
    for path in (
        "setup.engine",
        "setup.model",
        "setup.gpu",
        "setup.gpus",
        "setup.parallel",
        "setup.version",
        "setup.precision",
        "setup.context",
        "setup.settings",
        "setup.source",
        "demand.offline",
        "demand.near_input",
        "demand.near_output",
        "demand.prefix",
        "demand.work",
        "kind",
        "load",
    )
}
"""In what cells may differ."""


def alike(point: CellPoint, *but: str) -> tuple[Any, ...]:
    """Make a key that is equal for points with all the same facts, `but` for these."""
    return tuple(fact(point) for name, fact in FACTS.items() if name not in but)
