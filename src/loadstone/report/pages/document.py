"""A report before it is written: tables, sentences and pictures. HTML, Markdown and PNG are made of
it."""

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from loadstone.analyse import imported_run
from loadstone.analyse.compare.price import (
    Prices,
    list_prices,
    per_million,
    pool_dollars,
    without_price,
)
from loadstone.analyse.stored_run import StoredRun
from loadstone.core.errors import InputError
from loadstone.core.groups import by_key
from loadstone.core.units import show_seconds
from loadstone.core.version import __version__
from loadstone.report.charts.bands import tails
from loadstone.report.charts.fleets import fleet_over_time
from loadstone.report.charts.inside import cumulative, gaps, timeline
from loadstone.report.charts.select import Drawn, draw_pictures
from loadstone.report.charts.theme import Figure
from loadstone.report.data.frames import E2E, TPOT, TTFT, Frame
from loadstone.report.data.points import CellPoint, points_of
from loadstone.report.data.repeats import merge_cells, name_setups
from loadstone.report.data.samples import sample
from loadstone.report.data.series import ChartSeries, workload_label
from loadstone.report.data.statistic import Estimate
from loadstone.report.data.wording import clean, join
from loadstone.report.findings import (
    Headline,
    Sentence,
    answer,
    explain_intervals,
    find_silent,
    observations,
)
from loadstone.report.pages import cell_tables, tables
from loadstone.report.pages.class_cost import tabulate_cost
from loadstone.report.pages.first import FirstScreen, first_screen
from loadstone.report.pages.fleet import decide_fleet, note_fleet, tabulate_fleets
from loadstone.report.pages.study import (
    StudyPart,
    compare_settings,
    map_cells,
    predictions,
    table_cells,
)
from loadstone.report.table import Table

SECTIONS = {
    "throughput": "Throughput against latency",
    "price": "Price of tokens",
    "load": "Latency and throughput by load",
    "offline": "Batches: all requests at once",
    "output": "By output length",
    "input": "By input length",
    "prefix": "Shared prefixes",
    "parallel": "Parallelism",
    "gpus": "GPU against GPU",
    "models": "Models on the same machine",
    "predicted": "Measured over simulated",
    "sizing": "Memory",
}
_NOTHING_SHOWN = (
    "These runs show no clear difference: there is only one series, or differences are within"
    " intervals."
)
_SILENCE = (
    "Simulated runs have no findings where measured or imported runs of the same model and workload"
    " are in the report."
)
INSIDE_RUNS = 12
"""Runs that are drawn singly: percentiles over loads, distributions, timeline, gaps. Of more nobody
looks at all."""


class RunPart(msgspec.Struct, kw_only=True):
    """Holds what a report says of one run alone. `facts`: (name, value) pairs of its
    environment. `beside`: a table of the fleets beside an autoscaler's, or of what a class costs
    the others."""

    number: int
    title: str
    table: Table
    beside: Table | None = None
    figures: list[Figure]
    facts: list[tuple[str, str]]
    repeat: str
    notes: list[str]


class Report(msgspec.Struct, kw_only=True):
    """`about`: workload and date. `passed_over`: what could not be read, a line each. `trusted`:
    (trusted cells, cells).

    `stated`: cells with nothing but figures of another tool's. `prices`: dollars per GPU and hour,
    by GPU. `unpriced`: of which runs no price is known, and why.
    """

    title: str
    about: str
    first: FirstScreen | None
    runs: int
    trusted: tuple[int, int]
    stated: int
    overview: Table
    verdicts: Table
    answer: Headline | None
    sentences: list[Sentence]
    scores: Table
    predictions: Table
    tables: list[Table]
    pictures: Drawn
    parts: list[RunPart]
    passed_over: list[str]
    points: list[CellPoint]
    prices: dict[str, float] = msgspec.field(default_factory=dict)
    unpriced: str | None = None
    study: StudyPart | None = None
    version: str = __version__
    nothing_shown: str = _NOTHING_SHOWN

    @property
    def first_tables(self) -> list[Table]:
        """Before those of measurements: a study against its baseline, what was predicted, who is
        best at what, and a study's loads."""
        of_study = [self.study.against, self.study.table] if self.study is not None else []
        shown = [*of_study[:1], self.predictions, self.scores, *of_study[1:]]
        return [table for table in shown if table is not None and table.rows]

    @property
    def results(self) -> Table:
        """All loads, which a page always shows."""
        return next(table for table in self.tables if table.key == "cells")

    @property
    def divided(self) -> list[Table]:
        """The classes of traffic, and sizes of pictures, where there are any: a page always shows
        them."""
        return [table for table in self.tables if table.key in ("classes", "pictures")]

    @property
    def figures(self) -> list[Figure]:
        """All that are of several runs, those of the answer first."""
        return [
            *(figure for _, tab in self.pictures.tabs for figure in tab),
            *self.pictures.figures,
        ]

    @property
    def by_context(self) -> list[tuple[str, list[Sentence]]]:
        """The findings, those of one model and workload together, in the order of the first of
        each."""
        groups: dict[str, list[Sentence]] = {}
        for sentence in self.sentences:
            where = join(sentence.context, "predicted" if sentence.predicted else "", by="; ")
            groups.setdefault(where, []).append(sentence)
        return list(groups.items())

    @property
    def size(self) -> str:
        """The number of runs and cells, in words; of a study its own cells, and how many of its
        runs there are."""
        if self.study is not None:
            cells = len(self.study.cells)
            runs = sum(len(cell.runs) for cell in self.study.cells)
            planned = sum(cell.planned for cell in self.study.cells)
            if planned == cells:
                return f"{runs} of {cells} loads"
            return f"{cells} loads, {runs} of {planned} runs"
        cells = self.trusted[1]
        return f"{self.runs} run{'s' * (self.runs != 1)}, {cells} load{'s' * (cells != 1)}"

    @property
    def tone(self) -> str:
        """The style of the verdict on a page."""
        trusted, cells = self.trusted
        if trusted < cells or not cells or self.passed_over:
            return "bad"
        return "told" if self.stated else "good"

    @property
    def verdict(self) -> str:
        """One sentence on all cells together, and one on what is none of them for it could not be
        read."""
        left_out = len(self.passed_over)
        unread = (
            f" {left_out} {'was' if left_out == 1 else 'were'} passed over: what is named below"
            " cannot be read."
        )
        return self._on_cells + (unread if left_out else "")

    @property
    def _on_cells(self) -> str:
        trusted, cells = self.trusted
        warned = cells - trusted
        if not cells:
            return "Nothing was measured."
        if self.stated == cells and not warned:
            return "The numbers are as reported by another tool, without contradictions."
        if cells == 1:
            predicted = all(point.is_simulated for point in self.points)
            noun = "prediction" if predicted else "measurement"
            return (
                f"This {noun} carries a warning."
                if warned
                else f"No problems found in this {noun}."
            )
        if warned:
            be = "is" if self.stated == 1 else "are"
            rest = f"; {self.stated} {be} as reported by another tool" if self.stated else ""
            return f"{warned} of {cells} loads carr{'y' if warned > 1 else 'ies'} a warning{rest}."
        if self.stated:
            sound = f"{cells - self.stated} of {cells} loads"
            return f"No problems found in {sound}; the others are as reported by another tool."
        return f"No problems found in these {cells} loads."

    @property
    def unnamed(self) -> str:
        """Say what to do where files do not name their model."""
        named = [bool(point.setup.model) for point in self.points]
        if all(named):
            return ""
        which = "Some models are" if any(named) else "The model is"
        return f"{which} not named in the files: add --set model=NAME."

    @property
    def remarks(self) -> list[str]:
        """Sentences that have to be known to read the findings."""
        remarks: list[str] = []
        if self.sentences:
            remarks += filter(None, [explain_intervals(self.sentences, self.points)])
        if find_silent(self.points):
            remarks.append(_SILENCE)
        if self.prices:
            prices = ", ".join(
                f"{clean(gpu.upper(), 40)} ${dollars:.2f}" for gpu, dollars in self.prices.items()
            )
            unpriced = f" {self.unpriced[0].upper()}{self.unpriced[1:]}." if self.unpriced else ""
            remarks.append(f"Prices as given, per GPU and hour: {prices}.{unpriced}")
        return remarks

    def prices_document(self) -> dict[str, object]:
        """`prices`: those given, what a million tokens of each cell cost, who is cheapest; empty
        without any."""
        if not self.prices:
            return {}
        document = {
            "dollars_per_gpu_hour": self.prices,
            "cells": [_cell_prices(point, Prices(self.prices)) for point in self.points],
            "cheapest": [sentence.whole for sentence in self.sentences if sentence.kind == "price"],
            "without_price": self.unpriced,
        }
        return {"prices": document}

    def sections(self) -> list[tuple[str, str, list[Figure]]]:
        """Return (key, title, figures) of the sections that have any."""
        figures = by_key((figure.section, figure) for figure in self.pictures.figures)
        return [(key, title, figures[key]) for key, title in SECTIONS.items() if key in figures]


def _cell_prices(point: CellPoint, prices: Prices) -> dict[str, object]:
    """Return what a million tokens of a cell cost, of all and of each pool."""
    pools = [(pool, pool_dollars(pool, prices)) for pool in point.cells[0].pools]
    list_price = point.dollars.input
    return {
        "run": point.run,
        "cell": point.cell,
        "load": {"kind": point.kind, "value": point.load},
        "dollars_per_hour": point.dollars.per_hour,
        "dollars_per_million_output_tokens": _price(point.dollars.output),
        "dollars_per_million_total_tokens": _price(point.dollars.total),
        "pools": [
            {
                "role": pool.role,
                "dollars_per_hour": dollars,
                "dollars_per_million_tokens": per_million(dollars, pool.tokens_per_s),
            }
            for pool, dollars in pools
        ],
        "list_prices": list_prices(list_price.value) if list_price else None,
    }


def _price(stat: Estimate | None) -> dict[str, object] | None:
    """`interval`: what low and high are."""
    if stat is None:
        return None
    return {"value": stat.value, "low": stat.low, "high": stat.high, "interval": stat.level}


def build(
    runs: Sequence[StoredRun],
    *,
    passed_over: Sequence[str] = (),
    inside: bool = True,
    drawn: bool = True,
    prices: Prices | None = None,
    study: StudyPart | None = None,
) -> Report:
    """Build the report of these runs. `drawn`: with its figures, which take most of the time.
    `inside`: also those of their records, of what only single requests show. `prices`: of GPUs, for
    what tokens cost. `study`: they are of it: each of its cells is one in the findings, the figures
    and the table of the best.
    """
    from altair.utils.schemapi import debug_mode

    points = points_of(runs, prices)
    cells = points
    twins: list[Path | None] = []
    if study is not None:
        cell_of = map_cells(study, runs)
        points = name_setups(points, cell_of)
        cells = merge_cells(points, cell_of)
        study.table = table_cells(study, runs, points)
        study.against, study.conclusion = compare_settings(study, cells, cell_of)
        twins = [cell.simulated for cell in study.cells]
    answered = answer(cells)
    frame = answered.frame if answered is not None else None
    numbered = list(enumerate(runs, 1))
    points_of_run = by_key((point.number, point) for point in points)
    # Checking specifications against their schema is the tests' work, and takes most of the time.
    with debug_mode(False):
        parts = [
            _part(number, run, points_of_run.get(number, []), drawn, inside)
            for number, run in numbered
        ]
        pictures = draw_pictures(cells, frame) if drawn else Drawn([], [], {}, {})
    unpriced = None
    if prices:
        unpriced = without_price([(f"run {number}", run.facts) for number, run in numbered], prices)
    title = "All loads" if study is None else f"Loads of all {len(runs)} runs"
    judged = [point.trusted for point in cells if runs[point.number - 1].folder not in twins]
    return Report(
        about=_about(points, runs),
        first=first_screen(frame.points if frame is not None else ()),
        predictions=predictions(cells if study is None else ()),
        title=join(study.name if study is not None else "", _title(points, len(runs)), by=": "),
        runs=len(runs),
        trusted=(sum(judged), len(judged)),
        stated=tables.stated_cells(runs),
        overview=tables.overview(runs, points),
        verdicts=tables.verdicts(runs),
        answer=answered,
        sentences=observations(cells),
        scores=cell_tables.scores(frame.points if frame is not None else ()),
        tables=[
            *cell_tables.ratios(cells),
            cell_tables.cells(points, title=title, run=len(runs) > 1, place=pictures.place),
            *tables.classes(points),
            *tables.picture_sizes(points),
            *tables.stated_otherwise(runs),
        ],
        pictures=pictures,
        parts=parts,
        passed_over=[clean(text, 300) for text in passed_over],
        points=points,
        prices=dict(prices or {}),
        unpriced=clean(unpriced, 600) if unpriced is not None else None,
        study=study,
    )


def _about(points: Sequence[CellPoint], runs: Sequence[StoredRun]) -> str:
    """Name the workload, or how many there are, and the days on which they were measured."""
    workloads = list(dict.fromkeys(map(workload_label, points)))
    days = sorted({run.info.created[:10] for run in runs if _has_date(run)})
    return join(
        workloads[0] if len(workloads) == 1 else f"{len(workloads)} workloads" if workloads else "",
        " to ".join(dict.fromkeys([*days[:1], *days[-1:]])),
        by=" · ",
    )


def _has_date(run: StoredRun) -> bool:
    """Tell whether a run's date is its own: an imported file may not tell it, and the date is then
    that of the import."""
    return run.info.source != "imported" or _any_cell(run, "created")


def _title(points: Sequence[CellPoint], runs: int) -> str:
    def name_few(names: Iterable[str], noun: str) -> str:
        distinct = list(dict.fromkeys(filter(None, names)))
        return ", ".join(distinct) if len(distinct) <= 3 else f"{len(distinct)} {noun}"

    setups = [point.setup for point in points]
    named = join(
        name_few((setup.model for setup in setups), "models"),
        name_few((setup.hardware for setup in setups), "machines"),
        name_few((setup.engine for setup in setups), "engines"),
        by=" · ",
    )
    return named or f"{runs} run{'s' * (runs != 1)}"


def _part(
    number: int, run: StoredRun, points: Sequence[CellPoint], drawn: bool, inside: bool
) -> RunPart:
    name = clean(run.facts.label, 120)
    words = workload_label(points[0]) if points else ""
    notes = [f"{clean(finding.evidence, 300)}." for finding in run.summary.findings]
    figures: list[Figure | None] = []
    key = f"run-{number}"
    fleet = run.summary.fleet
    if fleet is not None:
        figures.append(fleet_over_time(fleet, name, key=f"{key}-fleet"))
        notes += [decide_fleet(fleet), *note_fleet(fleet)] if fleet.point else []
    beside = tabulate_fleets(fleet) if fleet is not None and fleet.point else None
    if run.summary.class_cost is not None:
        loads = [cell.load.label for cell in run.summary.cells]
        beside = tabulate_cost(run.summary.class_cost, loads)
    if drawn and number > INSIDE_RUNS:
        drawn = False
        notes.append(
            f"Not drawn: single runs are, up to the {INSIDE_RUNS}th. A report on this one alone"
            " shows it."
        )
    if drawn and len({point.load for point in points}) > 1:
        lines = tuple(ChartSeries(name, "") for _ in points)
        frame = Frame("load", tuple(points), lines, join(name, words, by=" · "))
        figures += [
            tails(frame, (measure,), key=f"{key}-spread-{measure.key}")
            for measure in (TTFT, TPOT, E2E)
        ]
    if not run.has_records:
        notes.append("A summary without records: no distributions, no timeline.")
    elif drawn and inside:
        try:
            figures += _inside(run, name, key, points)
        except (InputError, ValueError) as error:
            notes.append(f"The run's records cannot be read: {clean(str(error), 300)}")
        if _any_cell(run, "relative_times"):
            notes.append(
                "Each request's times count from its own send, so there are no charts over time."
            )
    return RunPart(
        number=number,
        title=join(f"Run {number}: {name}", words, by=" · "),
        table=cell_tables.cells(points, key=f"{key}-cells", title="Loads", run=False),
        beside=beside,
        figures=[figure for figure in figures if figure is not None],
        facts=_environment(run),
        repeat=_repeat(run),
        notes=notes,
    )


def _any_cell(run: StoredRun, fact: str) -> bool:
    """Tell whether the import said that of any cell; see imported_run.of_cell()."""
    cells = (imported_run.of_cell(run.info, cell) for cell in range(len(run.info.cells)))
    return any(getattr(cell, fact, None) for cell in cells)


def _inside(
    run: StoredRun, name: str, key: str, points: Sequence[CellPoint]
) -> list[Figure | None]:
    seen = sample(run)
    if seen is None:
        return []
    loop = "closed loop" if run.info.cells[0].load.is_closed else "open loop"
    since = f"{' or '.join(sorted({point.since for point in points})) or 'sending'} ({loop})"
    figures: list[Figure | None] = [
        cumulative(seen, metric, name, since, key=f"{key}-cdf-{metric.lower()}")
        for metric in ("TTFT", "TPOT", "E2E")
    ]
    if not _any_cell(run, "relative_times"):
        figures.append(timeline(seen, name, key=f"{key}-timeline"))
        if seen.heat is not None:
            figures.append(gaps(seen.heat, name, key=f"{key}-gaps"))
    return figures


def _environment(run: StoredRun) -> list[tuple[str, str]]:
    """Return the environment: what one needs to know, or to have, to repeat it."""
    info, facts, settings, target = run.info, run.facts, run.info.settings, run.info.target
    cache, start_up_s = settings.prefix_cache, settings.provenance.start_up_s
    context = target.max_model_tokens if target else None
    client = {name: getattr(info.host, name) for name in ("cpu", "cores", "system", "python")}
    values: dict[str, object] = {
        "run": info.run_id,
        "status": info.status + (f": {info.error}" if info.error else ""),
        "started" if _has_date(run) else "imported": info.created,
        "files": ", ".join(settings.imported.files if settings.imported is not None else ()),
        "deployment": facts.label,
        "declared by the user": facts.stated,
        "endpoint": target.endpoint if target else None,
        "start-up": show_seconds(start_up_s) if start_up_s else None,
        "longest context": f"{context} tokens" if context else None,
        "precision": join(facts.weights_dtype, f"KV {facts.kv_dtype}" if facts.kv_dtype else None),
        "plan": f"{info.plan_id}, seed {info.seed}" if info.plan_id else None,
        "users' start": settings.workload.get("start"),
        "salt": info.salt,
        "prefix cache": cache if isinstance(cache, str) else None,
        "sampling": _flat(settings.sampling),
        "tool": facts.tool,
        "client": _flat(client),
        "clock": info.clock,
        "Loadstone": info.loadstone,
    }
    return [
        (name, clean(str(value), 300))
        for name, value in values.items()
        if value not in (None, "", "None")
    ]


def _flat(value: object) -> str:
    if not isinstance(value, dict):
        return ""
    return ", ".join(f"{name} {part}" for name, part in value.items() if part not in (None, [], ""))


def _repeat(run: StoredRun) -> str:
    """Write the command that does it again: the same plan, and the same prompts where it was
    measured."""
    command = shlex.join(str(word) for word in run.info.command)
    return command if run.info.source == "imported" else clean(command, 600)
