"""Finds what there is to know of the classes of traffic of a cell."""

from collections.abc import Sequence

from loadstone.analyse.verdict import thresholds
from loadstone.analyse.verdict.finding import Findings, finding
from loadstone.core.plan import Load
from loadstone.core.summary import ClassPart


def class_findings(parts: Sequence[ClassPart], load: Load) -> Findings:
    """Find classes that got few answers, or were turned away, or came otherwise than planned."""
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
