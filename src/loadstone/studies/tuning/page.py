"""A race of settings as a page of its own, that needs no network."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from loadstone.core.errors import InputError
from loadstone.core.files import explain_os_error
from loadstone.core.units import show_seconds, show_share
from loadstone.report.charts.race import (
    Gained,
    Launched,
    gain_figure,
    group_of,
    groups,
    race_figure,
)
from loadstone.report.charts.theme import Figure
from loadstone.report.pages.html import frame_page, render
from loadstone.studies.tuning.result import SettingResult, TuneResult
from loadstone.studies.tuning.settings import show_value
from loadstone.studies.tuning.tell import (
    answer,
    footer,
    remarks,
    settings_table,
    show_gain,
    unit_of,
)


def write_page(result: TuneResult, path: Path, command: Sequence[str] = ()) -> None:
    """Write the page. `command`: what was asked, to be asked again. Raises InputError where it
    cannot be written."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"-o {path}: a race is an HTML page; name it e.g. tune.html")
    content = render(
        "tune.html",
        target=result.target,
        answer=answer(result),
        facts=_list_facts(result),
        start="\n".join(result.command),
        notes=list(remarks(result)),
        figures=_draw(result),
        settings=settings_table(result, result.settings),
        command=shlex.join(command),
        foot=footer(result),
    )
    with explain_os_error(f"-o {path}: cannot be written", "name another file"):
        path.write_text(frame_page(f"Flags for {result.target}", content), encoding="utf-8")


def _list_facts(result: TuneResult) -> dict[str, str]:
    """List what a reader wants to know first, each with its name."""
    facts = {"Objective": f"{result.objective} ({unit_of(result)})"}
    if result.gain is not None:
        facts["Gain over the default"] = f"{show_gain(result.gain)}, 95 % interval"
    if result.p_near_best is not None:
        facts["Within 1 % of the best"] = show_share(result.p_near_best)
    facts["Cost"] = f"{result.launches} launches, {show_seconds(result.seconds, 2)}"
    if result.noise is not None:
        facts["Noise"] = f"{100 * result.noise:.1f} % from launch to launch"
    return facts


def _draw(result: TuneResult) -> list[Figure]:
    """Draw the race and the gains, where anything was measured."""
    default = result.settings[0].name
    named = groups(result.winner, default)
    launches = [
        Launched(
            setting=step.setting,
            minutes=step.at_s / 60,
            value=step.value,
            kind="fresh" if step.confirms else f"round {step.round + 1}",
            group=group_of(step.setting, result.winner, default),
        )
        for step in result.steps
        if step.value is not None
    ]
    same = _same_flags(result)
    gained = [
        Gained(
            setting=_label(row, same),
            value=100 * row.gain.value,
            low=100 * row.gain.low,
            high=100 * row.gain.high,
            group=group_of(row.name, result.winner, default),
        )
        for row in result.settings
        if row.gain is not None
    ]
    if not launches:
        return []
    figures = [race_figure(launches, named, unit_of(result))]
    return [*figures, gain_figure(gained, named, " · ".join(same))] if len(gained) > 1 else figures


def _same_flags(result: TuneResult) -> tuple[str, ...]:
    """Return the flags of all settings, where all have the same; else none."""
    found = {tuple(row.flags) for row in result.settings if row.flags and row.gain is not None}
    layouts = any(row.layout for row in result.settings)
    return next(iter(found)) if len(found) == 1 and not layouts else ()


def _label(row: SettingResult, same: tuple[str, ...]) -> str:
    """Name a setting on an axis: by its values alone, where all have the same flags."""
    if not same or not row.flags:
        return row.name
    return " · ".join(show_value(row.flags[flag]) for flag in same)
