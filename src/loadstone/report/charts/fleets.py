"""Replicas over time, the metric that decides, and how many requests are within their bounds."""

from collections.abc import Sequence

import altair as alt

from loadstone.core.settings import FleetFigures
from loadstone.report.charts.theme import (
    BLUE,
    GREEN,
    GREY,
    VERMILION,
    WIDTH,
    Figure,
    Row,
    colour_by,
    data,
    figure,
    tooltips,
)

_HOURS_FROM_S = 7200.0
"""From this time on an axis is in hours."""
_METRICS = {
    "queued": "at the router",
    "in_flight": "in flight",
    "rate": "requests/s",
    "kv_usage": "cache in use",
}
_SHADES = {"paid": GREY, "wanted": VERMILION, "ready": BLUE}


def fleet_over_time(fleet: FleetFigures, name: str, *, key: str) -> Figure | None:
    """Draw the replicas of a run; None where only one is known, or nothing."""
    lines = {"paid": fleet.paid, "wanted": fleet.wanted, "ready": fleet.replicas}
    drawn = {line: steps for line, steps in lines.items() if steps}
    if not drawn:
        return None
    courses = [[at_s for at_s, _ in course] for course in drawn.values()]
    courses += [[at_s for at_s, _ in course] for course in (fleet.readings, fleet.attained)]
    end_s = max(at_s for course in courses for at_s in course)
    unit, unit_s = ("hours", 3600.0) if end_s >= _HOURS_FROM_S else ("seconds", 1.0)
    axis = alt.Scale(domain=[0, max(end_s / unit_s, 1e-9)], nice=False)

    def rows(line: str, course: Sequence[tuple[float, float]], times: float = 1.0) -> list[Row]:
        """Return a line's points, its last value drawn on to the end."""
        points = [*course, (end_s, course[-1][1])]
        return [{"x": at_s / unit_s, "y": times * y, "what": line} for at_s, y in points]

    replicas = [row for line, steps in drawn.items() for row in rows(line, steps)]
    panels = [("replicas", replicas, [_SHADES[line] for line in drawn])]
    if fleet.readings:
        metric = _METRICS.get(fleet.metric, fleet.metric)
        panels.append((metric, rows(metric, fleet.readings), [GREEN]))
    if fleet.attained:
        panels.append(("within bounds (%)", rows("within bounds", fleet.attained, 100), [BLUE]))
    charts = []
    for number, (title, points, shades) in enumerate(panels):
        last = number == len(panels) - 1
        names = list(dict.fromkeys(point["what"] for point in points))
        x_title = f"{unit} of the run" if last else None
        charts.append(
            alt.Chart(data(points))
            .mark_line(strokeWidth=2, interpolate="step-after", order=False)
            .encode(
                x=alt.X("x:Q", scale=axis, title=x_title).axis(labels=last, grid=False),
                y=alt.Y("y:Q", title=title).axis(tickCount=4),
                color=colour_by("what", names, shades, least=2, columns=3),
                tooltip=tooltips(("what:N",), ("x:Q", unit, ",.4~r"), ("y:Q", "", ",.4~r")),
            )
            .properties(width=WIDTH, height=110 if not number else 80)
        )
    highest = max(count for _, count in fleet.replicas)
    lowest = min(count for _, count in fleet.replicas)
    counted = "paid from the request for a replica to its end" if fleet.paid else fleet.source
    return figure(
        key,
        "Replicas over time",
        [name, counted],
        alt.vconcat(*charts, spacing=14).resolve_scale(color="independent"),
        section="run",
        summary=f"Replicas over time of {name}: from {lowest} to {highest} that serve.",
    )
