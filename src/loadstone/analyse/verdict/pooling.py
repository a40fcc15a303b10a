"""Rules on vectors and scores: are they of whole inputs, as long as asked, and different where the
texts are?"""

import numpy as np

from loadstone.analyse.verdict import thresholds
from loadstone.analyse.verdict.finding import Findings, finding
from loadstone.analyse.verdict.requests import JudgedCell, RequestTable
from loadstone.core.vectors import Floats


def count_planned(cell: JudgedCell, requests: RequestTable) -> Floats:
    """Count the tokens that the plan asks for in each of these requests, as the server counts them:
    a query once, or again with each document."""
    inputs, target, rows = cell.plan.inputs, cell.target, cell.plan_rows(requests)
    planned = cell.plan.input_tokens[rows].astype(np.float64)
    if inputs is None or target is None or not (inputs.has_queries and target.pairs):
        return planned
    query, documents = inputs.tokens[inputs.offsets[rows]], cell.plan.output_tokens[rows]
    return np.asarray(planned + (documents - 1) * query + documents * target.overhead_tokens)


def inputs_truncated(cell: JudgedCell) -> Findings:
    """Find requests of which the server counts fewer tokens than were sent."""
    if cell.plan.inputs is None:
        return
    measured = cell.measured
    lacking = count_planned(cell, measured) - measured.input_tokens
    short = lacking > thresholds.TRUNCATED_TOKENS
    if short.any():
        counted = float(measured.input_tokens[short].sum())
        yield finding(
            "inputs_truncated",
            truncated=short.sum(),
            requests=int((~np.isnan(measured.input_tokens)).sum()),
            read_share=counted / (counted + float(lacking[short].sum())),
        )


def vectors(cell: JudgedCell) -> Findings:
    """Find vectors that are not as long as asked, hold no numbers, or are the same for different
    texts."""
    facts, target = cell.info.vectors, cell.target
    if facts is None:
        return
    requested = target.dimensions if target is not None else None
    lengths = {int(length): count for length, count in facts.lengths.items()}
    if requested is not None and lengths and lengths.keys() != {requested}:
        yield finding("dimensions_ignored", asked=requested, came=sorted(lengths)[0])
    elif len(lengths) > 1:
        yield finding(
            "vectors_odd.lengths", lengths=[*map(str, sorted(lengths))], answers=facts.answers
        )
    if facts.faulty:
        yield finding("vectors_odd", faulty=facts.faulty, answers=facts.answers)
    if facts.alike:
        yield finding("vectors_alike", alike=facts.alike, answers=facts.answers)
