"""Tables of a report: rows of text, made once for HTML and Markdown."""

from collections.abc import Sequence

from loadstone.analyse.stored_run import StoredRun
from loadstone.core.groups import by_key
from loadstone.core.metrics import latency_field
from loadstone.core.parts import ClassPart
from loadstone.core.summary import CellSummary, StatedNumber
from loadstone.core.units import show_load, show_met, show_number, show_seconds, show_share
from loadstone.report.data.frames import load_label
from loadstone.report.data.points import CellPoint
from loadstone.report.data.series import workload_label
from loadstone.report.data.wording import clean, join
from loadstone.report.pages.columns import show_megabytes, show_p50, show_p99, show_visual_tokens
from loadstone.report.table import Table, drop_empty_columns

_RATE_NAMES = {
    "output_tokens_per_s": "output tok/s",
    "total_tokens_per_s": "total tok/s",
    "requests_per_s": "requests/s",
}

MAX_ROWS = 400


def overview(runs: Sequence[StoredRun], points: Sequence[CellPoint]) -> Table:
    """Make a row for each run: what it was of, what was asked, whether it can be trusted."""
    points_of = by_key((point.number, point) for point in points)

    def row(number: int, run: StoredRun) -> list[str]:
        cells = points_of.get(number, [])
        dollars = cells[0].dollars.per_hour if cells else None
        trusted = sum(point.trusted for point in cells)
        return [
            str(number),
            clean(run.info.run_id),
            run.info.source,
            _name_deployment(run),
            workload_label(cells[0]) if cells else "",
            _loads(cells),
            trust((trusted, len(run.summary.cells)), stated_cells([run]) > 0),
            f"${show_number(dollars)}" if dollars is not None else "-",
        ]

    return drop_empty_columns(
        Table(
            key="runs",
            title="Runs",
            heads=[
                "run",
                "folder",
                "source",
                "deployment",
                "workload",
                "loads",
                "trusted",
                "$ per hour",
            ],
            align="rlnwllnr",
            rows=[row(number, run) for number, run in enumerate(runs, 1)],
            words=True,
        )
    )


def _loads(points: Sequence[CellPoint]) -> str:
    """Write `rate 1, 2`, of each kind of load."""
    by_kind = by_key(
        ("batch" if point.demand.offline else point.kind, show_load(point.load)) for point in points
    )
    return "; ".join(
        f"{kind} {', '.join(loads[:12])}" + (" …" if len(loads) > 12 else "")
        for kind, loads in by_kind.items()
    )


def _name_deployment(run: StoredRun) -> str:
    """Name the deployment; in a fleet only the first server was asked who it is."""
    servers = len(run.info.target.urls) if run.info.target else 0
    fleet = f"first of {servers} servers: " if servers > 1 else ""
    return clean(f"{fleet}{run.facts.label}", 120)


def trust(cells: tuple[int, int], stated: bool) -> str:
    """`cells`: (trusted, all). `stated`: they are as another tool stated them."""
    trusted, every = cells
    if not every:
        return "no loads"
    if trusted < every:
        return f"{trusted} of {every} loads"
    return "as reported" if stated else "yes"


def stated_cells(runs: Sequence[StoredRun]) -> int:
    """Return cells of which there is only what another tool stated: no records to judge by."""
    return sum(cell.is_as_stated for run in runs for cell in run.summary.cells)


def _name_load(cell: CellSummary) -> str:
    return f"{cell.load.kind} {show_load(cell.load.value)}"


def verdicts(runs: Sequence[StoredRun]) -> Table:
    """Make a table of every warning and error of every cell, the same ones together."""
    found = []
    for number, run in enumerate(runs, 1):
        found += [(f"run {number}, as a whole", finding) for finding in run.summary.findings]
        found += [
            (f"run {number}, {_name_load(cell)}", finding)
            for cell in run.summary.cells
            for finding in cell.verdict.findings
        ]
    places = by_key(
        (
            (finding.severity, clean(finding.kind, 60), clean(finding.remedy, 300)),
            f"{place}: {clean(finding.evidence, 300)}",
        )
        for place, finding in found
        if finding.severity != "info"
    )
    rows = []
    for (severity, kind, remedy), texts in sorted(
        places.items(), key=lambda entry: (entry[0][0] != "error", -len(entry[1]))
    ):
        count = len(texts) - 1
        rest = f"; and in {count} more load{'s' * (count > 1)}" if count else ""
        rows.append([severity, kind.replace("_", " "), texts[0] + rest, remedy])
    return Table(
        key="verdicts",
        title="Warnings and errors",
        heads=["severity", "finding", "evidence", "remedy"],
        align="llll",
        rows=rows,
        words=True,
    )


def classes(points: Sequence[CellPoint]) -> list[Table]:
    """Make a table of the classes of traffic of all loads, or no table."""
    several = len({point.number for point in points}) > 1
    rows = [
        _class_row(point, point.cells[0], part, several)
        for point in points
        for part in point.cells[0].by_class
    ]
    if not rows:
        return []
    heads = [*(["run"] if several else []), "load", "class", "share", "planned", "requests/s"]
    heads += ["output tok/s", "rejected", "TTFT", "p99", "TPOT", "p99", "E2E", "p99", "SLO"]
    heads.append("goodput/s")
    table = Table(
        key="classes",
        title="Classes of traffic",
        heads=heads,
        align=("l" if several else "") + "llrrrrrrurururr",
        rows=rows[:MAX_ROWS],
        notes=["Each class is judged by its own bounds. Times are medians, p99 beside them."],
    )
    return [drop_empty_columns(table)]


def _class_row(point: CellPoint, cell: CellSummary, part: ClassPart, several: bool) -> list[str]:
    times = []
    for base in ("ttft", "tpot", "e2e"):
        values = getattr(part, latency_field(base, cell.load))
        times += [show_p50(values), show_p99(values, cell)]
    return [
        *([f"run {point.number}"] if several else []),
        load_label(point),
        part.name,
        show_share(part.share),
        show_share(part.planned_share) if cell.load.is_open else "-",
        show_number(part.requests_per_s),
        show_number(part.output_tokens_per_s, 4),
        str(part.rejected or "-"),
        *times,
        show_met(part.slo_met, part.p_slo) if part.slo_met is not None else "-",
        show_number(part.goodput_per_s),
    ]


def picture_sizes(points: Sequence[CellPoint]) -> list[Table]:
    """Make a table of the sizes of pictures of all loads, or no table."""
    several = len({point.number for point in points}) > 1
    rows = [
        [
            part.size,
            *([f"run {point.number}"] if several else []),
            load_label(point),
            show_number(part.images_per_s),
            show_visual_tokens(part),
            show_p50(getattr(part, latency_field("ttft", point.cells[0].load))),
            show_p99(getattr(part, latency_field("ttft", point.cells[0].load)), point.cells[0]),
            show_share(part.upload_share, 1),
            show_megabytes(part.body_bytes),
        ]
        for point in points
        for part in point.cells[0].by_size
    ]
    if not rows:
        return []
    heads = ["picture", *(["run"] if several else []), "load", "images/s", "tokens each"]
    heads += ["TTFT", "p99", "upload", "body MB"]
    table = Table(
        key="pictures",
        title="Pictures by size",
        heads=heads,
        align=("l" if several else "") + "llrrrurr",
        rows=rows[:MAX_ROWS],
        notes=[
            "Tokens of a picture are the server's; in brackets those of the model's or engine's"
            " rule, where they are others. Upload: share of TTFT until the request had left."
        ],
    )
    return [drop_empty_columns(table)]


def stated_otherwise(runs: Sequence[StoredRun]) -> list[Table]:
    """Make a table of the numbers that imported files state otherwise than their requests do, or no
    table."""
    rows = [
        _stated_row(run_number, cell, number)
        for run_number, run in enumerate(runs, 1)
        for cell in run.summary.cells
        for number in cell.stated
    ]
    if not rows:
        return []
    notes = [
        "Definitions, token counts or failed requests make the difference. Here the definitions"
        " under the table of all loads hold, for all tools alike."
    ]
    if len(rows) > MAX_ROWS:
        notes.append(
            f"{len(rows) - MAX_ROWS} more are not shown; `loadstone show --json` has them as"
            " `stated`"
        )
    table = Table(
        key="stated",
        title="What files report otherwise",
        heads=["run", "load", "number", "in the file", "here", "the tool's own is", "tool"],
        align="rllrrww",
        rows=rows[:MAX_ROWS],
        notes=notes,
    )
    return [drop_empty_columns(table)]


def _stated_row(run_number: int, cell: CellSummary, number: StatedNumber) -> list[str]:
    name = _RATE_NAMES.get(number.metric) or clean(number.metric).removesuffix("_s").upper()
    digits = 3 if number.statistic else 4
    show = show_seconds if number.statistic else show_number
    return [
        str(run_number),
        _name_load(cell),
        join(name, clean(number.statistic or ""), by=" "),
        show(number.stated, digits),
        show(number.ours, digits),
        clean(number.definition or "-", 200),
        clean(cell.measured_by or "-"),
    ]
