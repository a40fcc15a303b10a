"""The pictures of a race of settings: every launch over time, and what each setting gains."""

from collections.abc import Sequence
from typing import NamedTuple

import altair as alt

from loadstone.report.charts.theme import GREY, Figure, Row, colour_by, data, figure, tooltips

_OTHERS = "other settings"


class Launched(NamedTuple):
    """A launch: the setting's name, minutes of launches until its end, its value; `kind`: round 1,
    …, or fresh; `group`: the name that has a colour of its own, or `other settings`."""

    setting: str
    minutes: float
    value: float
    kind: str
    group: str


class Gained(NamedTuple):
    """Holds the gain of a setting over the default, in per cent, with its interval."""

    setting: str
    value: float
    low: float
    high: float
    group: str


def groups(winner: str, default: str) -> list[str]:
    """Return the names that have colours."""
    return list(dict.fromkeys((winner, default, _OTHERS)))


def group_of(setting: str, winner: str, default: str) -> str:
    return setting if setting in (winner, default) else _OTHERS


def race_figure(launches: Sequence[Launched], named: Sequence[str], unit: str) -> Figure:
    """Draw every launch that gave a value over the time that launches took."""
    rows: list[Row] = [launch._asdict() for launch in launches]
    colour = colour_by("group", list(named), least=len(named))
    shape = alt.Shape("fresh:N", title=None).scale(
        domain=["search", "fresh"], range=["circle", "diamond"]
    )
    for row in rows:
        row["fresh"] = "fresh" if row["kind"] == "fresh" else "search"
    tooltip = tooltips(
        ("setting:N", "setting"),
        ("value:Q", unit, ".4g"),
        ("kind:N", "launch"),
        ("minutes:Q", "minutes", ".1f"),
    )
    points = (
        alt.Chart(data(rows))
        .mark_point(filled=True, size=70, opacity=0.8)
        .encode(
            x=alt.X("minutes:Q", title="minutes of launches"),
            y=alt.Y("value:Q", title=unit).scale(zero=False),
            color=colour,
            shape=shape,
            tooltip=tooltip,
        )
    )
    return figure(
        "tune-race",
        "The race: every launch",
        ["diamond: a fresh launch, from which alone the gain comes"],
        [points],
        section="race",
        summary=f"{len(rows)} launches of {len({row['setting'] for row in rows})} settings",
    )


def gain_figure(gained: Sequence[Gained], named: Sequence[str], flags: str) -> Figure:
    """Draw what each setting gains over the default, the best first; `flags`: whose values their
    names are, where these are values alone."""
    rows: list[Row] = [gain._asdict() for gain in gained]
    order = [gain.setting for gain in sorted(gained, key=lambda gain: -gain.value)]
    y = alt.Y("setting:N", sort=order, title=None, axis=alt.Axis(labelLimit=260))
    colour = colour_by("group", list(named), least=len(named))
    tooltip = tooltips(
        ("setting:N", "setting"),
        ("value:Q", "gain, %", "+.1f"),
        ("low:Q", "from", "+.1f"),
        ("high:Q", "to", "+.1f"),
    )
    base = alt.Chart(data(rows)).encode(y=y, color=colour, tooltip=tooltip)
    spans = base.mark_rule(strokeWidth=2).encode(
        x=alt.X("low:Q", title="gain over the default, %"), x2="high:Q"
    )
    middles = base.mark_point(filled=True, size=70).encode(x="value:Q")
    zero = alt.Chart(data([{"zero": 0}])).mark_rule(color=GREY, strokeDash=[4, 3])
    best = order[0] if order else ""
    return figure(
        "tune-gain",
        "What each setting gains",
        [f"{flags}; 90 % intervals by all launches" if flags else "90 % intervals by all launches"],
        [zero.encode(x="zero:Q"), spans, middles],
        section="gain",
        summary=f"{len(rows)} settings; {best} gains most",
    )
