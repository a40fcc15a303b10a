"""Latencies of the requests of a simulated cell, by the definitions that measured ones have
(core/arrays.py)."""

import numpy as np

from loadstone.core import arrays
from loadstone.core.pace import Pace, pace_of
from loadstone.core.plan import Load, Plan
from loadstone.core.sessions import time_tasks
from loadstone.core.vectors import Array, Floats, Ints64
from loadstone.predict.simulator.run import CellRun


def request_rows(run: CellRun) -> Array:
    """Return an arrays.ROW for each request of the cell, as its client sees it; NaN: it did not
    happen."""
    requests = run.requests
    count = requests.count
    rows = np.zeros(count, arrays.ROW)
    rows["measured"] = np.arange(count) >= requests.warm
    # Nobody thinks: the first token is the answer's.
    rows["first"] = rows["answer"] = np.array(run.journal.first_s[:count]) + run.stream_s
    rows["last"] = rows["end"] = np.array(run.end_s[:count]) + run.stream_s
    rows["sent"], rows["intended"] = requests.sent_s_of[:count], requests.intended_s_of[:count]
    rows["tokens"] = requests.output_tokens
    return rows


def answered_rows(run: CellRun) -> Array:
    """Return the rows of measured requests that ended."""
    rows = request_rows(run)
    answered: Array = rows[rows["measured"] & ~np.isnan(rows["end"])]
    return answered


def answered_classes(run: CellRun, plan: Plan) -> Ints64:
    """Return the place of the class of traffic of each of answered_rows()."""
    rows = request_rows(run)
    answered = rows["measured"] & ~np.isnan(rows["end"])
    classes: Ints64 = classes_of(run, plan)[answered]
    return classes


def classes_of(run: CellRun, plan: Plan) -> Ints64:
    """Return the place of the class of traffic of each request; 0 where there is one kind."""
    if plan.traffic_class is None:
        return np.zeros(run.requests.count, np.int64)
    return plan.traffic_class[plan.span(run.requests.cell)].astype(np.int64)


def task_times(run: CellRun) -> tuple[Floats, Floats]:
    """Return the times of measured sessions that ended, and how much of each calls were under
    way."""
    rows, turn = request_rows(run), np.array(run.requests.turn)
    whole = np.logical_and.reduceat(
        rows["measured"] & ~np.isnan(rows["end"]), np.flatnonzero(turn <= 0)
    )
    spans, busy = time_tasks(turn, rows["sent"], rows["end"], whole)
    return np.array(spans), np.array(busy)


def latencies_s(rows: Array) -> dict[str, Floats]:
    """Return the latencies of requests that ended, by metric; answers of one token have no TPOT and
    no ITL."""
    tpot = arrays.tpot_s(rows)[rows["tokens"] > 1]
    return {
        "ttft_s": rows["first"] - rows["sent"],
        "ttft_intended_s": rows["first"] - rows["intended"],
        "answer_s": rows["first"] - rows["sent"],  # nobody thinks
        "answer_intended_s": rows["first"] - rows["intended"],
        "tpot_s": tpot,
        "itl_s": tpot,
        "e2e_s": rows["end"] - rows["sent"],
        "e2e_intended_s": rows["end"] - rows["intended"],
    }


def simulated_pace(run: CellRun, load: Load) -> Pace:
    """Tell whether the simulated deployment keeps up with an open loop."""
    return pace_of(load, request_rows(run))


def answer_s(run: CellRun) -> float:
    """Estimate how long a request takes under the load, but for a queue before it, which grows as
    long as an overload does: the least TTFT, and the median time from the first token to the last.
    Seconds.
    """
    count = run.requests.count
    first, end, sent = (
        np.array(times[:count])
        for times in (run.journal.first_s, run.end_s, run.requests.sent_s_of)
    )
    done = ~np.isnan(end)
    if not done.any():
        return 0.0
    return float((first - sent)[done].min() + np.median((end - first)[done]))
