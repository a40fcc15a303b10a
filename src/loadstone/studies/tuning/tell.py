"""A race as a person reads it: what to set, what it gains, how sure."""

from collections.abc import Iterator

from loadstone.core.groups import by_key
from loadstone.core.units import show_number, show_seconds, show_share
from loadstone.report.table import MAX_NOTES, Footnote, Shown, Table, drop_empty_columns
from loadstone.studies.tuning.race import FAILURES
from loadstone.studies.tuning.result import GainSpan, SettingResult, TuneResult

_SHOWN_ROWS, _NAMED = 8, 3
_UNITS = {"throughput": "out tok/s", "rate": "requests/s", "energy": "J/token"}


def render(result: TuneResult, explain: bool = False) -> list[Shown]:
    """Show the advice with its command, a table of settings, and three notes.

    explain: all settings, refused ones too, and all notes
    """
    parts: list[Shown] = [answer(result)]
    if result.command:
        parts += ["", *(f"  {line}" for line in result.command)]
    rows = result.settings if explain else _first_rows(result)
    parts += ["", settings_table(result, rows)]
    notes = list(remarks(result))
    parts += notes if explain else notes[:MAX_NOTES]
    parts += ["", f"next: loadstone report {result.cells}/*/*"]
    hidden = len(result.settings) - len(rows)
    rest = f"; {hidden} more settings with --explain" if hidden else ""
    return [*parts, Footnote(f"{footer(result)}{rest}")]


def answer(result: TuneResult) -> str:
    """Say which setting to use, and what it gains."""
    if result.ending == "nothing_to_gain":
        return f"Keep the default: no setting is likely to be better by 1% in {_what(result)}."
    if result.winner == "default":
        return (
            "Keep the default: nothing better was found before the time was over."
            if result.ending == "no_time"
            else "Keep the default: it is the best of all."
        )
    if result.gain is None:
        return (
            f"Keep the default: {result.winner} looked best, and the time was over before fresh"
            " launches could confirm it."
        )
    gained = f"{show_gain(result.gain)} in {_what(result)}"
    if not result.proven and result.advised == "default":
        return f"Keep the default: the gain of {result.winner} is not proven: {gained}."
    return f"Set {result.advised}: {gained} over the default."


def unit_of(result: TuneResult) -> str:
    """Return the unit of the objective, as heads and axes have it."""
    statistic, _, metric = result.objective.partition(":")
    return _UNITS.get(result.objective, f"{metric.upper()} {statistic}")


def _what(result: TuneResult) -> str:
    statistic, _, metric = result.objective.partition(":")
    named = {"throughput": "output tokens/s", "rate": "requests/s", "energy": "tokens per joule"}
    return named.get(result.objective, f"{metric} {statistic} (lower is better)")


def show_gain(gain: GainSpan) -> str:
    """Write `+8.1% (+5.0 to +11.3)`."""
    return f"{100 * gain.value:+.1f}% ({100 * gain.low:+.1f} to {100 * gain.high:+.1f})"


def _first_rows(result: TuneResult) -> list[SettingResult]:
    """Return the settings to show: the winner and the default, the next best, and failures."""
    first = [row for row in result.settings if row.state in ("winner", "default")]
    raced = [row for row in result.settings if row.state == "raced" and row.gain]
    raced.sort(key=lambda row: -(row.gain.value if row.gain else 0))
    failed = [row for row in result.settings if row.state in ("failed", "skipped")]
    shown = [*sorted(first, key=lambda row: row.state != "winner"), *raced][:_SHOWN_ROWS]
    return [*shown, *failed[: max(2, _SHOWN_ROWS - len(shown))]]


def settings_table(result: TuneResult, rows: list[SettingResult]) -> Table:
    """Make a table of settings: what each gave, its gain, and what became of it."""
    table = Table(
        title="Settings",
        heads=["setting", unit_of(result), "gain", "90%", "near best", "runs", "what happened"],
        align="wrrurrw",
        rows=[_row(result, row) for row in rows],
        spare=("near best", "runs"),
        notes=[
            "gain: over the default, by all launches; near best: probability that it is within 1%"
            " of the best; runs: its launches"
        ],
    )
    return drop_empty_columns(table)


def _row(result: TuneResult, row: SettingResult) -> list[str]:
    mean = sum(row.values) / len(row.values) if row.values else None
    timed = result.objective.startswith("p")
    gain, span = "", ""
    if row.gain is not None and row.state != "default":
        gain = f"{100 * row.gain.value:+.1f}%"
        span = f"{100 * row.gain.low:+.1f} to {100 * row.gain.high:+.1f}"
    return [
        row.name,
        (show_seconds(mean) if timed else show_number(mean, 4)) if mean is not None else "-",
        gain,
        span,
        show_share(row.p_near_best) if row.p_near_best is not None else "-",
        str(row.launches or "-"),
        _state(row),
    ]


def _state(row: SettingResult) -> str:
    words = FAILURES[row.failure] if row.failure else ""
    if words:
        return f"{words}: {row.why}" if row.why else words
    named = {"skipped": row.why, "refused": f"refused: {row.why}", "not_measured": "not measured"}
    return named.get(row.state, "")


def remarks(result: TuneResult) -> Iterator[str]:
    """Say how sure it is, what made no difference, and how noisy launches were."""
    if result.gain is not None and result.proven and result.p_near_best is not None:
        text = f"{result.winner} is within 1% of the best with {show_share(result.p_near_best)}"
        if result.runner_up is not None and result.runner_up_regret is not None:
            text += (
                f"; taking it in place of {result.runner_up} is expected to cost"
                f" {100 * result.runner_up_regret:.1f}%"
            )
        yield f"{text}."
    idle = [flag.flag for flag in result.flags if flag.matters is False]
    if idle:
        yield f"No difference within 2%: {', '.join(idle)}."
    if result.fresh:
        yield (
            f"The gain comes from {result.fresh} fresh launches each of {result.winner} and the"
            " default, none of which the search used."
        )
    yield from _tell_failures(result)
    if result.ending == "no_time":
        yield "The time was over before enough was known: run it again with more --time to go on."
    if result.noise is not None:
        yield f"Launches of one setting differ by {100 * result.noise:.1f}% (one sd)."
    matter = [flag for flag in result.flags if flag.matters]
    for flag in matter:
        yield f"{flag.flag} makes a difference of {show_gain(flag.spread)}, all else equal."


def _tell_failures(result: TuneResult) -> Iterator[str]:
    """Name the settings that are out, those of one failure in one line."""
    failed = by_key((row.failure, row) for row in result.settings if row.state == "failed")
    for failure, rows in failed.items():
        names = "; ".join(row.name for row in rows[:_NAMED])
        rest = f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else ""
        words = FAILURES[failure] if failure else ""
        why = rows[0].why[:1].upper() + rows[0].why[1:]
        yield f"Out of the race ({words}): {names}{rest}. {why}."


def footer(result: TuneResult) -> str:
    """Say what it took."""
    refused = sum(row.state == "refused" for row in result.settings)
    text = (
        f"{result.launches} launches in {show_seconds(result.seconds, 2)}, kept in {result.folder}"
    )
    return f"{text}; {refused} combinations refused" if refused else text
