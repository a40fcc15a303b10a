"""Inside one run: distributions, the course of time, every inter-token gap."""

from typing import Literal

import altair as alt
import numpy as np

from loadstone.core.groups import by_key
from loadstone.core.units import show_number
from loadstone.report.charts.bands import WIDE
from loadstone.report.charts.theme import (
    BLUE,
    DASHES,
    GREEN,
    GREY,
    PALETTE,
    VERMILION,
    WIDTH,
    Figure,
    Row,
    colour_by,
    data,
    figure,
    seconds_unit,
    tooltips,
    wide,
)
from loadstone.report.data.samples import TIME_BINS, Heat, RunSample
from loadstone.report.data.wording import join, requests_a

_SHADES = (BLUE, VERMILION, GREEN, GREY)
_STROKES = ([1, 0], [3, 3], [1, 0], [3, 3])
"""Of the tracks of a panel, what the client saw first."""


def cumulative(sample: RunSample, metric: str, name: str, since: str, *, key: str) -> Figure | None:
    """Draw the share of requests below each latency, a line for each load."""
    cdfs = [cdf for cdf in sample.cdfs if cdf.metric == metric]
    if not cdfs:
        return None
    top = max(cdf.values[-1] for cdf in cdfs)
    unit, scale = seconds_unit(top)
    rows: list[Row] = [
        {"x": value * scale, "y": 100 * level, "load": cdf.label}
        for cdf in cdfs
        for level, value in zip(cdf.levels, cdf.values, strict=True)
    ]
    kind: Literal["log", "linear"] = "log" if wide([row["x"] for row in rows], WIDE) else "linear"
    names = [cdf.label for cdf in cdfs]
    chart = (
        alt.Chart(data(rows))
        .mark_line(
            order=False, interpolate="step-after", strokeWidth=2
        )  # as the rows are: a share holds until the next
        .encode(
            x=alt.X("x:Q", title=f"{metric} ({unit})").scale(type=kind, nice=False),
            y=alt.Y("y:Q", title="requests below (%)").scale(domain=[0, 100]),
            color=colour_by("load", names, least=2),
            strokeDash=alt.StrokeDash("load:N").scale(domain=names, range=_dashes(len(names))),
            tooltip=tooltips(
                ("load:N",), ("x:Q", f"{metric} ({unit})", ",.4~r"), ("y:Q", "% below", ".4~g")
            ),
        )
    )
    sizes = requests_a("line", (cdf.n for cdf in cdfs))
    if len(cdfs) < len(sample.cells):
        sizes += f", {len(cdfs)} of {len(sample.cells)} loads"
    definition = "(last − first token) / (tokens − 1)" if metric == "TPOT" else f"from {since}"
    spoken = "; ".join(
        f"{cdf.label}: median {show_number(cdf.p50_s * scale, 4)} {unit}, p99"
        f" {show_number(cdf.p99_s * scale, 4)}"
        for cdf in cdfs
    )
    return figure(
        key,
        f"{metric} of single requests",
        [name, f"{metric} {definition}; {sizes}, ok and short requests of the measured phase"],
        chart,
        section="run",
        summary=f"Cumulative distribution of {metric}, {name}. {spoken}",
    )


def _dashes(count: int) -> list[list[float]]:
    """Return a dash for each line: another one where colours come again."""
    return [list(DASHES[number // len(PALETTE) % len(DASHES)]) for number in range(count)]


def timeline(sample: RunSample, name: str, *, key: str) -> Figure | None:
    """Draw the run's course: a panel for each kind of thing that was counted, all over the same
    seconds."""
    panels = by_key((track.panel, track) for track in sample.tracks)
    if not panels:
        return None
    end = max(track.times_s[-1] for track in sample.tracks)
    x_scale = alt.Scale(domain=[min(track.times_s[0] for track in sample.tracks), end], nice=False)
    spans = [{"label": label, "start": start, "end": over} for label, start, over in sample.cells]
    charts = []
    for number, (panel, tracks) in enumerate(panels.items()):
        rows = [
            {"x": time_s, "y": value, "what": track.name}
            for track in tracks
            for time_s, value in zip(track.times_s, track.values, strict=True)
        ]
        names = [track.name for track in tracks]
        last = number == len(panels) - 1
        x_title = "seconds of the run" if last else None
        x = alt.X("x:Q", scale=x_scale, title=x_title).axis(labels=last, grid=False)
        lines = (
            alt.Chart(data(rows))
            .mark_line(strokeWidth=2, interpolate="step")
            .encode(
                x=x,
                y=alt.Y("y:Q", title=panel).axis(tickCount=4),
                color=colour_by("what", names, _SHADES, least=2, columns=2),
                strokeDash=alt.StrokeDash("what:N", legend=None).scale(
                    domain=names, range=list(_STROKES)
                ),
                tooltip=tooltips(("what:N",), ("x:Q", "s", ",.4~r"), ("y:Q", "", ",.4~r")),
            )
        )
        edges = alt.Chart(data(spans)).mark_rule(
            color="#999999", strokeDash=[2, 3], strokeWidth=1.2
        )
        layers = (
            [edges.encode(x=alt.X("start:Q", scale=x_scale, title=x_title))]
            if len(spans) > 1
            else []
        )
        charts.append(
            alt.layer(*layers, lines).properties(width=WIDTH, height=120 if len(tracks) > 1 else 90)
        )
    chart = alt.vconcat(*charts, spacing=14).resolve_scale(color="independent")
    dotted = "dotted: a new load begins" if len(spans) > 1 else ""
    return figure(
        key,
        "The run over time",
        [
            name,
            join(
                "under way: sent, not ended",
                f"means over {TIME_BINS} intervals of the run",
                dotted,
                by="; ",
            ),
        ],
        chart,
        section="run",
        summary=f"Timeline of {name}: "
        + "; ".join(
            f"{track.name} up to {show_number(max(track.values), 4)}" for track in sample.tracks
        ),
    )


def gaps(heat: Heat, name: str, *, key: str) -> Figure:
    """Draw ITL over the run: how many tokens came after which gap, when."""
    used = np.flatnonzero(heat.counts.sum(axis=0))
    low, high = int(used[0]), int(used[-1]) + 1
    total = int(heat.counts.sum())
    rows = [
        {
            "x": float(heat.time_edges_s[t]),
            "x2": float(heat.time_edges_s[t + 1]),
            "y": 1e3 * float(heat.gap_edges_s[g]),
            "y2": 1e3 * float(heat.gap_edges_s[g + 1]),
            "n": int(heat.counts[t, g]),
        }
        for t, g in zip(*np.nonzero(heat.counts), strict=True)
    ]
    edges_ms = [1e3 * float(heat.gap_edges_s[low]), 1e3 * float(heat.gap_edges_s[high])]
    chart = (
        alt.Chart(data(rows))
        .mark_rect()
        .encode(
            x=alt.X("x:Q", title="seconds of the run")
            .scale(nice=False, zero=False)
            .axis(grid=False),
            x2=alt.X2("x2:Q"),
            y=alt.Y("y:Q", title="ITL (ms)")
            .scale(type="log", domain=edges_ms, nice=False)
            .axis(grid=False),
            y2=alt.Y2("y2:Q"),
            color=alt.Color("n:Q")
            .scale(type="log", scheme="cividis")
            .legend(title="tokens", orient="right", gradientLength=180, tickCount=4, format="~s"),
            tooltip=tooltips(
                ("x:Q", "from (s)", ".4~g"), ("y:Q", "ITL from (ms)", ".4~g"), ("n:Q", "tokens")
            ),
        )
    )
    together = int(heat.counts[:, 0].sum())
    lowest = (
        f"Lowest row: below {1e3 * heat.gap_edges_s[1]:.2g} ms or 0: {together:,} that came with"
        " another"
    )
    return figure(
        key,
        "Every gap between tokens",
        [
            name,
            f"ITL: a gap is divided among the tokens it brought; {total:,} gaps, warm-up included",
            lowest if together else "",
        ],
        chart,
        section="run",
        summary=(
            f"Heat map of inter-token latency over time, {name}: {total:,} gaps between "
            f"{edges_ms[0]:.3g} and {edges_ms[1]:.3g} ms"
        ),
    )
