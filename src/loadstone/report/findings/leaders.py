"""Say who is ahead: in each measure, at each load or length, on the same hardware; the highest
throughput; and, where prices are given, who is cheapest, and whether that is sure.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from loadstone.analyse.slo import SURE
from loadstone.core.groups import by_key
from loadstone.core.units import show_number, show_share
from loadstone.report.data.frames import (
    DOLLARS,
    E2E,
    OUTPUT,
    TOTAL,
    TPOT,
    TTFT,
    Frame,
    Measure,
    best_cells,
    load_label,
)
from loadstone.report.data.pairs import Effect, effect
from loadstone.report.data.points import CellPoint
from loadstone.report.data.series import series_of
from loadstone.report.data.statistic import Estimate
from loadstone.report.data.wording import join
from loadstone.report.findings.sentence import (
    Sentence,
    doubt,
    is_surely_met,
    ranges,
    setup,
    setups,
    spans,
    throughput,
    value,
    warn,
    within_slo,
    work,
)


def leaders(frame: Frame) -> Iterator[Sentence]:
    """Say for each hardware who leads at which x. Contests that the data does not decide are left
    out."""
    groups = by_key((point.setup.hardware, point) for point in frame.points)
    if len(groups) > 1 and all(len(_names(group)) == 1 for group in groups.values()):
        return  # one engine on several machines: ratios say that
    for hardware, group in groups.items():
        for measure in (OUTPUT,) if frame.offline else (OUTPUT, TTFT, TPOT, E2E):
            clauses = _describe_contest(frame, group, measure)
            if clauses:
                first, place = group[0], f"On {hardware}" if hardware else "Here"
                demand = first.demand
                yield Sentence(
                    text=f"{place}, {clauses}.",
                    kind="leader",
                    about=frame.section,
                    context=work(first)
                    if frame.axis == "load"
                    else join(first.setup.model, load_label(first), demand.prefix, demand.work),
                )


def _names(group: Sequence[CellPoint]) -> set[str]:
    return {series.setup for series in series_of(group, without=("gpu", "gpus"))}


class Win(NamedTuple):
    """Says that `name` is ahead of `loser` at `x`, beyond the interval."""

    x: float
    name: str
    effect: Effect
    first: CellPoint
    loser: str
    second: CellPoint


def _describe_contest(frame: Frame, group: Sequence[CellPoint], measure: Measure) -> str:
    """Say who wins where; nothing where nobody does."""
    xs, wins = contests(frame, group, measure)
    best = "highest" if measure.better == "higher" else "lowest"
    unit = " requests/s" if frame.axis == "load" and group[0].kind == "rate" else ""
    clauses: list[str] = []
    for winner, won in by_key((win.name, win) for win in wins).items():
        head = winner if clauses else f"{winner} has the {best} {measure.noun}"
        place = f"at {frame.axis_word} {ranges([win.x for win in won], xs)}{unit}"
        if len(won) == len(xs) > 1:
            place = f"at every {frame.axis_word} measured ({spans(xs)}{unit})"
        clauses.append(f"{head} {place}, {_sizes(won, measure)}")
    if not clauses:
        return ""
    open_xs = [x for x in xs if x not in {win.x for win in wins}]
    if open_xs:
        clauses.append(f"the first two cannot be told apart at {ranges(open_xs, xs)}")
    contested = [point for win in wins for point in (win.first, win.second)]
    return f"{'; '.join(clauses)}{warn(contested)}"


def contests(
    frame: Frame,
    group: Sequence[CellPoint],
    measure: Measure,
    without: Collection[str] = ("gpu", "gpus"),
) -> tuple[list[float], list[Win]]:
    """Return the x at which several setups compete, and who is ahead where, beyond the interval.
    `without`: facts in which the group does not differ.
    """
    sign = 1 if measure.better == "lower" else -1
    xs: list[float] = []
    wins: list[Win] = []
    for x, entrants in sorted(entries(frame, group, measure, without).items()):
        if len(entrants) < 2:
            continue
        xs.append(x)
        ranked = sorted(entrants, key=lambda entry: sign * entry[0])
        (_, name, first), (_, loser, second), *_ = ranked
        lead = effect(first, second, measure)
        if lead is not None and lead.clear:
            wins.append(Win(x, name, lead, first, loser, second))
    return xs, wins


def entries(
    frame: Frame,
    group: Sequence[CellPoint],
    measure: Measure,
    without: Collection[str] = ("gpu", "gpus"),
) -> dict[float, list[tuple[float, str, CellPoint]]]:
    """List (value, name, point) of each setup at each x, where all was measured; of repeats the
    middle one."""
    names = [series.setup for series in series_of(group, without=without)]
    repeats: dict[tuple[float, str], list[tuple[float, CellPoint]]] = {}
    for point, name in zip(group, names, strict=True):
        x, value = frame.x(point), measure.of(point)
        if x is not None and value is not None and not point.failed:
            repeats.setdefault((x, name), []).append((value, point))
    found = []
    for (x, name), pairs in repeats.items():
        middle, point = sorted(pairs, key=lambda pair: pair[0])[(len(pairs) - 1) // 2]
        found.append((x, (middle, name, point)))
    return by_key(found)


def _sizes(wins: Sequence[Win], measure: Measure) -> str:
    """Return effect and interval: of the one load, or of the smallest and the largest lead."""
    side = "above" if measure.better == "higher" else "below"
    ranked = sorted(wins, key=lambda win: abs(win.effect.ratio - 1))
    smallest, largest = ranked[0], ranked[-1]
    if smallest is largest:
        return f"{value(largest.first, measure)}, {largest.effect.words} {side} {largest.loser}"
    ends = (f"{win.effect.words} {side} {win.loser} at {win.x:g}" for win in (smallest, largest))
    return f"from {' to '.join(ends)}"


def peaks(frame: Frame) -> Iterator[Sentence]:
    """Return the highest throughput of a sweep, on all hardware and on each; by total tokens where
    all points have them.
    """
    rank = TOTAL if all(point.total_tokens_per_s is not None for point in frame.points) else OUTPUT
    met, meets = within_slo(frame.points)
    ranked = list(best_cells(met, setups(met), rank).values())
    if len(ranked) < 2:
        return
    contests = [("", ranked)]
    for hardware in dict.fromkeys(point.setup.hardware for point in ranked):
        local = [point for point in ranked if point.setup.hardware == hardware]
        if local[0] is not ranked[0] and len(local) > 1:
            contests.append((f" on {hardware}", local))
    for where, entered in contests:
        head = f"Highest {frame.mode} throughput{where}{f' ({meets})' if meets else ''}"
        context = work(frame.points[0])
        yield Sentence(
            text=_peak(head, entered, rank), kind="peak", about=frame.section, context=context
        )


def _peak(head: str, ranked: Sequence[CellPoint], rank: Measure) -> str:
    first, second, *_ = ranked
    names = setups(ranked)
    gap = effect(first, second, rank)
    lead = (
        f", {gap.words} above the next,"
        if gap is not None and gap.clear
        else "; not clearly above the next,"
    )
    text = f"{head}: {names[0]} with {throughput(first)} at {load_label(first)}{lead}"
    return f"{text} {names[1]} ({throughput(second)} at {load_label(second)}){doubt(ranked[:2])}."


def cheapest(frame: Frame) -> Iterator[Sentence]:
    """Name the cheapest setup of one model and workload, each at the load at which its output
    tokens cost least and its bounds are met: if it is so beyond the intervals of all others, if its
    bounds are met with SURE or more, and if none that may meet them is cheaper; else say which
    cannot be told apart, and how likely each qualifies.
    """
    priced = [point for point in frame.points if point.dollars.output is not None]
    met, meets = within_slo(priced)
    ranked = _rank_prices(frame, met)
    doubts = _doubt_prices(frame, ranked)
    where = "in bursts" if frame.mode == "burst" else frame.mode
    head = f"Cheapest output tokens {where}{f' ({meets})' if meets else ''}"
    if len(ranked) > 1:
        text = _compare_prices(ranked, doubts)
    elif meets and len(set(setups(frame.points))) > 1:
        only = [f"only {setup(p)}, at {load_label(p)}, {_price(p)}" for p in ranked]
        text = f"{join(*only) or 'none'}{doubts}"
    else:
        return
    yield Sentence(
        text=f"{head}: {text}.", kind="price", about="price", context=work(frame.points[0])
    )


def _compare_prices(ranked: Sequence[CellPoint], doubts: str) -> str:
    """Say by how much the first is cheaper than the next, or from which it cannot be told apart."""
    first, second, *_ = ranked
    names = dict(zip(map(id, ranked), setups(ranked), strict=True))
    effects = [(rival, effect(first, rival, DOLLARS)) for rival in ranked[1:]]
    unclear = [rival for rival, gap in effects if gap is None or not gap.clear]
    lead = effects[0][1]

    def describe(point: CellPoint) -> str:
        return f"{names[id(point)]} ({_dollars(point.dollars.output)} at {load_label(point)})"

    head = f"{names[id(first)]} at {load_label(first)}"
    if not unclear and lead is not None:
        sure = "probably " if doubts else ""
        text = f"{sure}{head}, {_price(first)}; {lead.words} below the next, {describe(second)}"
    else:
        rivals = [describe(rival) for rival in unclear[:3]]
        rivals += [f"{len(unclear) - 3} more"] if len(unclear) > 3 else []
        listed = " and ".join(filter(None, (", ".join(rivals[:-1]), rivals[-1])))
        text = f"no clear winner. {head} is lowest, {_price(first)}, but not clearly below {listed}"
    return f"{text}{doubts}{doubt([first, *(unclear or [second])])}"


def _rank_prices(frame: Frame, points: Sequence[CellPoint]) -> list[CellPoint]:
    """Find each setup's cell in which output tokens cost least; the cheapest first."""
    least: dict[str, tuple[float, CellPoint]] = {}
    for priced in entries(frame, points, DOLLARS, without=()).values():
        for dollars, name, point in priced:
            if name not in least or dollars < least[name][0]:
                least[name] = dollars, point
    return [point for _, point in sorted(least.values(), key=lambda entry: entry[0])]


def _doubt_prices(frame: Frame, ranked: Sequence[CellPoint]) -> str:
    """Say what is unsure about the ranking: whether the first meets its bounds, which is the first
    that does with SURE or more, and which cheaper cell may meet them after all.
    """
    clauses: list[str] = []
    if ranked and not is_surely_met(ranked[0]):
        first = ranked[0]
        sure = [point for point in frame.points if point.holds and is_surely_met(point)]
        likely = _rank_prices(frame, sure)[:1]
        clauses.append(
            f"{setup(first)} at {load_label(first)} meets its bounds with probability "
            f"{show_share(first.p_met or 0.0)}"
        )
        clauses += [
            f"the cheapest that does with {SURE:.0%} or more is {setup(point)} at"
            f" {load_label(point)} ({_dollars(point.dollars.output)})"
            for point in likely
        ] or [f"none does with {SURE:.0%} or more"]
    limit = DOLLARS.of(ranked[0]) if ranked else None
    unlikely = [
        point
        for point in frame.points
        if point.slo_met is not None and not point.holds and (point.p_met or 0.0) >= 1 - SURE
    ]
    clauses += [
        f"{setup(point)} at {load_label(point)} ({_dollars(point.dollars.output)}) would be"
        " cheaper, and may meet them after all (probability"
        f" {show_share(point.p_met or 0.0)})"
        for point in _rank_prices(frame, unlikely)[:1]
        if limit is None or (DOLLARS.of(point) or 0.0) < limit
    ]
    return "".join(f"; {clause}" for clause in clauses)


def _price(point: CellPoint) -> str:
    """Write `$0.432 (0.41–0.45) a million, or $0.0533 with input counted, 41.2 tok/s per user`."""
    cost, pace = point.dollars.output, point.tokens_per_s_per_user
    sure = (
        f" ({show_number(cost.low)}–{show_number(cost.high)})"
        if cost is not None and cost.reach is not None
        else ""
    )
    return join(
        f"{_dollars(cost)}{sure} a million",
        (
            f"or {_dollars(point.dollars.total)} with input counted"
            if point.dollars.total is not None
            else ""
        ),
        f"{show_number(pace)} tok/s per user" if pace is not None else "",
    )


def _dollars(stat: Estimate | None) -> str:
    return f"${show_number(stat.value)}" if stat is not None else "-"
