"""Finds what there is to know of the classes of traffic of a cell."""

from collections.abc import Sequence

from loadstone.analyse.overtaking import ignored
from loadstone.analyse.verdict import thresholds
from loadstone.analyse.verdict.finding import Findings, finding
from loadstone.core.parts import ClassPart
from loadstone.core.plan import Plan
from loadstone.core.record import CellInfo


def class_findings(parts: Sequence[ClassPart], plan: Plan, info: CellInfo, cell: int) -> Findings:
    """Find classes that got few answers, or were turned away, or came otherwise than planned, or
    whose adapters are not there or not enough."""
    load = plan.cells[cell]
    yield from _adapter_findings(parts, plan, info, cell)
    for part in parts:
        sent, done = part.requests.sent or 0, part.requests.completed
        if done < thresholds.CLASS_ANSWERS:
            yield finding("class_starved", traffic_class=part.name, answers=done, sent=sent)
        if part.rejected:
            yield finding(
                "class_rejected", traffic_class=part.name, rejected=part.rejected, sent=sent
            )
        planned, share = part.planned_share, part.share
        drift = 0.0 if share is None or not planned else abs(share / planned - 1)
        if load.is_open and drift > thresholds.CLASS_DRIFT:
            yield finding(
                "class_shares_drifted", traffic_class=part.name, share=share, planned=planned
            )
    behind = ignored([overtakes for part in parts for overtakes in part.overtakes])
    for part in parts:
        for overtakes in part.overtakes:
            if overtakes in behind:
                yield finding(
                    "priority_ignored",
                    traffic_class=part.name,
                    lower=overtakes.traffic_class,
                    met=overtakes.met,
                    overtook=overtakes.overtook,
                )


def _adapter_findings(
    parts: Sequence[ClassPart], plan: Plan, info: CellInfo, cell: int
) -> Findings:
    for part, kind in zip(parts, plan.classes, strict=True):
        model = kind.adapter or kind.model
        if part.unknown_model and model is not None:
            yield finding(
                "adapter_missing.refused",
                traffic_class=part.name,
                asked=model,
                refused=part.unknown_model,
                sent=part.requests.sent,
            )
        elif part.name in info.misnamed:
            yield finding(
                "adapter_missing",
                traffic_class=part.name,
                asked=model,
                answers=info.misnamed[part.name],
            )
    if plan.adapter is None or info.adapter_slots is None:
        return
    different = len(set(plan.adapter[plan.span(cell)].tolist()) - {0})
    answers = sum(part.requests.completed for part in parts)
    loads = info.adapter_loads
    if different > info.adapter_slots or (loads or 0) > answers * thresholds.ADAPTER_LOADS:
        yield finding(
            "adapters_thrash",
            different=different,
            slots=info.adapter_slots,
            loads=loads,
            answers=answers,
        )
