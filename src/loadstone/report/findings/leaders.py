"""Who is ahead: of each measure, at each load or length, on the same hardware; and the highest throughput of all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from loadstone.report.charts.frames import E2E, OUTPUT, TOTAL, TPOT, TTFT, Frame, Measure, load_label
from loadstone.report.findings.effect import Effect, effect
from loadstone.report.findings.sentence import Sentence, lengths, setups, spans, throughput, value
from loadstone.report.points import Point
from loadstone.report.series import series_of

_WORDS = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E latency", "output_tok_s": "output throughput"}


def leaders(frame: Frame) -> Iterable[Sentence]:
    """For each hardware: who leads at which x. Contests that the data does not decide are left out."""
    measures = (OUTPUT,) if frame.offline else (OUTPUT, TTFT, TPOT, E2E)
    groups: dict[str, list[Point]] = defaultdict(list)
    for point in frame.points:
        groups[point.hardware].append(point)
    contests = list(groups.items())
    if all(len(_names(group)) == 1 for group in groups.values()) and len(groups) > 1:
        contests = []  # one engine on several machines: ratios say that
    for hardware, group in contests:
        for measure in measures:
            said = _contest(frame, group, measure)
            if said is not None:
                where = f"On {hardware}" if hardware else "Here"
                about = "offline" if frame.offline else frame.axis
                yield Sentence(text=f"{where}, {said}.", kind="leader", about=about)


def _names(group: Sequence[Point]) -> set[str]:
    return {series.setup for series in series_of(group, without=("gpu", "gpus"))}


def _contest(frame: Frame, group: Sequence[Point], measure: Measure) -> str | None:
    sign = 1 if measure.better == "lower" else -1
    at = entries(frame, group, measure)
    won: list[tuple[float, str, Effect, Point, str, Point]] = []
    decided: set[float] = set()
    xs = sorted(x for x, entries in at.items() if len(entries) > 1)
    for x in xs:
        ranked = sorted(at[x], key=lambda entry: sign * entry[0])
        (_, name, first), (_, other, second) = ranked[0], ranked[1]
        found = effect(first, second, measure)
        if found is not None and found.clear:
            won.append((x, name, found, first, other, second))
            decided.add(x)
    if not won:
        return None
    best = "highest" if measure.better == "higher" else "lowest"
    side = "above" if measure.better == "higher" else "below"
    word = _WORDS[measure.key]
    where = _where(frame)
    clauses = []
    for number, winner in enumerate(dict.fromkeys(entry[1] for entry in won)):
        own = [entry for entry in won if entry[1] == winner]
        head = f"{winner} has the {best} {word}" if number == 0 else winner
        everywhere = len(own) == len(xs) and len(xs) > 1
        place = (
            f"at every {where} measured ({spans(xs)})"
            if everywhere
            else f"at {where} {_ranges([e[0] for e in own], xs)}"
        )
        clauses.append(f"{head} {place}, {_sizes(own, measure, side)}")
    left = [x for x in xs if x not in decided]
    if left:
        clauses.append(f"no difference between the first two that this data can show at {_ranges(left, xs)}")
    words = ", ".join(
        part
        for part in (lengths(group[0]) if frame.axis == "load" else load_label(group[0]), group[0].prefix)
        if part
    )
    doubt = "; some of these cells carry a warning" if not all(e[3].trusted and e[5].trusted for e in won) else ""
    return "; ".join(clauses) + (f" ({words})" if words else "") + doubt


def entries(
    frame: Frame, group: Sequence[Point], measure: Measure, without: Iterable[str] = ("gpu", "gpus")
) -> dict[float, list[tuple[float, str, Point]]]:
    """(value, name, point) of each setup at each x. Of repeats the one in the middle: they do not compete."""
    found: dict[float, dict[str, list[tuple[float, Point]]]] = defaultdict(lambda: defaultdict(list))
    for point, series in zip(group, series_of(group, without=without), strict=True):
        x, y = frame.x(point), measure.of(point)
        if x is not None and y is not None:
            found[x][series.setup].append((y, point))
    return {
        x: [
            (y, name, point)
            for name, repeats in setups.items()
            for y, point in [sorted(repeats, key=lambda entry: entry[0])[(len(repeats) - 1) // 2]]
        ]
        for x, setups in found.items()
    }


def _sizes(own: Sequence[tuple[float, str, Effect, Point, str, Point]], measure: Measure, side: str) -> str:
    """Effect and interval: of the one load, or of the smallest and the largest lead."""
    key: Callable[[tuple[float, str, Effect, Point, str, Point]], float] = lambda entry: abs(entry[2].ratio - 1)  # noqa: E731
    least, most = min(own, key=key), max(own, key=key)

    def one(entry: tuple[float, str, Effect, Point, str, Point]) -> str:
        _, _, found, first, other, _ = entry
        y = measure.of(first)
        return f"{value(measure.key, y) if y is not None else ''}, {found.words} {side} {other}"

    if least is most:
        return one(most)
    return (
        f"from {least[2].words} {side} {least[4]} at {least[0]:g} to {most[2].words} {side} {most[4]} at {most[0]:g}"
    )


def _ranges(xs: Sequence[float], every: Sequence[float]) -> str:
    """Neighbours of the sweep joined: `4 to 64 and 256`."""
    runs: list[list[float]] = []
    for x in xs:
        if runs and every.index(x) == every.index(runs[-1][-1]) + 1:
            runs[-1].append(x)
        else:
            runs.append([x])
    return ", ".join(spans(run) for run in runs)


def _where(frame: Frame) -> str:
    if frame.axis != "load":
        return f"{frame.axis} length"
    if frame.offline:
        return "batch size"
    return {"concurrency": "concurrency", "rate": "rate (requests/s)"}.get(frame.points[0].kind, "burst")


def peaks(frame: Frame) -> Iterable[Sentence]:
    """The highest throughput of a sweep, on all hardware and on each; by total tokens where all points have them."""
    rank = TOTAL if all(point.total_tokens_per_s is not None for point in frame.points) else OUTPUT
    best: dict[str, tuple[float, Point]] = {}
    for name, point in zip(setups(frame.points), frame.points, strict=True):
        much = rank.of(point)
        if much is not None and much > best.get(name, (0.0, point))[0]:
            best[name] = much, point
    if len(best) < 2:
        return
    ranked = [point for _, point in sorted(best.values(), key=lambda entry: -entry[0])]
    kind = "offline" if frame.offline else "online"
    about = "offline" if frame.offline else frame.axis
    yield Sentence(text=_peak(f"Highest {kind} throughput ({_work(frame)})", ranked, rank), kind="peak", about=about)
    machines = dict.fromkeys(point.hardware for point in ranked)
    for hardware in machines if len(machines) > 1 else ():
        own = [point for point in ranked if point.hardware == hardware]
        if own[0] is not ranked[0] and len(own) > 1:
            head = f"Highest {kind} throughput on {hardware} ({_work(frame)})"
            yield Sentence(text=_peak(head, own, rank), kind="peak", about=about)


def _work(frame: Frame) -> str:
    point = frame.points[0]
    return ", ".join(part for part in (point.model, lengths(point), point.prefix) if part)


def _peak(head: str, ranked: Sequence[Point], rank: Measure) -> str:
    first = ranked[0]
    compared = ranked[:2]
    names = setups(ranked)
    text = f"{head}: {names[0]} with {throughput(first)} at {load_label(first)}"
    if len(ranked) > 1:
        second = ranked[1]
        found = effect(first, second, rank)
        lead = (
            f"{found.words} above"
            if found is not None and found.clear
            else "which is no difference that this data can show from"
        )
        text += f", {lead} the next, {names[1]} ({throughput(second)} at {load_label(second)})"
    doubtful = sum(not point.trusted for point in compared)
    if doubtful:
        text += f"; {doubtful} of these {len(compared)} cells carr{'ies' if doubtful == 1 else 'y'} a warning"
    return text + "."
