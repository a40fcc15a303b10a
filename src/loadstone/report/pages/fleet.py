"""Tells of replicas that come and go: the decision, a row for each fleet, and notes."""

from collections.abc import Callable, Iterator

from loadstone.core.settings import FleetFigures, FleetPoint
from loadstone.core.units import show_number, show_seconds, show_share
from loadstone.report.table import Column, Footnote, Shown, Table, tabulate

_NAMES = {
    "static": "static, the fewest",
    "mean": "static, as many",
    "oracle": "knows the future",
}


def fleets_of(fleet: FleetFigures) -> list[tuple[str, FleetPoint]]:
    """Name the fleets of a run that are known, the autoscaled one first."""
    beside = ((name, getattr(fleet, key)) for key, name in _NAMES.items())
    return [(name, point) for name, point in ((fleet.autoscaler, fleet.point), *beside) if point]


def decide_fleet(fleet: FleetFigures) -> str:
    """Say whether the autoscaler holds the bounds, and what it saves."""
    point, static = fleet.point, fleet.static
    if point is None:
        return ""
    took = f"{show_number(point.gpu_hours)} GPU-hours"
    if point.met is None:
        return f"{fleet.autoscaler}: {took}; with --slo it is judged beside other fleets"
    holds = "the bounds hold" if point.met else "the bounds do NOT hold"
    text = f"{fleet.autoscaler}: {holds}, with {took}"
    if static is None or not static.gpu_hours or point.gpu_hours is None:
        return f"{text}; no static fleet holds them"
    saves = 1 - point.gpu_hours / static.gpu_hours
    change = f"{show_share(abs(saves))} {'less' if saves > 0 else 'more'}"
    return f"{text}: {change} than {static.replicas:.3g} replicas all the time"


def tabulate_fleets(fleet: FleetFigures) -> Table:
    """Make a row for each fleet: its cost, and the share of requests within their bounds."""
    fleets = fleets_of(fleet)
    names = list(dict.fromkeys(name for _, point in fleets for name in point.by_class))
    columns: list[Column[tuple[str, FleetPoint]]] = [
        Column("fleet", lambda row: row[0], "l"),
        Column("replicas", lambda row: f"{row[1].replicas:.3g}"),
        Column("GPU-hours", lambda row: show_number(row[1].gpu_hours)),
        Column("within bounds", lambda row: show_share(row[1].attainment, 1)),
        *(Column(name, _attained(name)) for name in names),
        Column("SLO", lambda row: {True: "met", False: "NO", None: "-"}[row[1].met]),
    ]
    return tabulate(columns, fleets)


def _attained(name: str) -> Callable[[tuple[str, FleetPoint]], str]:
    return lambda row: show_share(row[1].by_class.get(name), 1)


def render_fleet(fleet: FleetFigures) -> list[Shown]:
    """Show a fleet: the decision, the table, and at most three notes."""
    return [decide_fleet(fleet), tabulate_fleets(fleet), *list(note_fleet(fleet))[:3]]


def note_fleet(fleet: FleetFigures) -> Iterator[str]:
    """Yield what is to be known of a fleet's numbers, the weightiest first."""
    if fleet.cut:
        yield f"{fleet.cut:,} requests were cut off with their replica: give drain more time"
    if fleet.start_up_from == "assumed" and fleet.starts:
        yield (
            f"A start takes {show_seconds(fleet.start_up_s)}, an assumption: give start_up, or"
            " launch it once"
        )
    if fleet.held:
        yield f"{fleet.held:,} requests waited at the router for a replica"
    if fleet.sampled < 1:
        yield Footnote(
            f"Static fleets and oracle: by {show_share(fleet.sampled)} of the requests, in windows"
        )
    yield Footnote("no intervals: one simulation · GPU-hours from a replica's request to its end")
