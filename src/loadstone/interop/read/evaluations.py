"""Reads accuracy as it is stated: rows of InferenceX's evaluations, result files of
lm-evaluation-harness, and what AIPerf writes beside a result.

They state a share of right answers and no latency; without the answers nothing can be paired.
"""

import re
from dataclasses import replace
from pathlib import Path

import msgspec

from loadstone.analyse.grading.pairs import wilson
from loadstone.core.plan import Load
from loadstone.core.summary import Accuracy
from loadstone.interop.read import files, inferencex
from loadstone.interop.read.cell import ResultCell
from loadstone.interop.read.reader import Reader
from loadstone.interop.read.values import Value

_RIGHT = (
    "exact_match,flexible-extract|exact_match,custom-extract|exact_match,none|acc,none"
    "|exact_match,strict-match"
)
_STRICT = "exact_match,strict-match"
_MAX_TASKS = 1000
_CONCURRENT = re.compile(r"\bnum_concurrent\W{1,4}([1-9]\d{0,5})\b")


def _read_inferencex(document: Value, where: str) -> ResultCell:
    """Read a row of InferenceX's evaluations, which tells the setup as its aggregates do."""
    metrics, task = document.at("metrics"), document.text("task", 60) or ""
    graded = _state(
        task, metrics.whole("n_eff"), metrics, "em_flexible|score|em_strict", "em_strict"
    )
    cell = inferencex.read_aggregate(document, where)
    return replace(cell, graded=graded, label=task, definitions=None)


def _read_lm_eval(document: Value, where: str) -> list[ResultCell]:
    """Read a result file of lm-evaluation-harness: a cell for each task."""
    found = _CONCURRENT.search(str(document.get("config.model_args"))[:10_000])
    load = Load("concurrency", float(found[1])) if found else None
    counts, results = Value(document.get("n-samples")), document.mapping("results")
    stated = [
        _state(
            task,
            Value(counts.mapping().get(task)).whole("effective"),
            Value(scores),
            _RIGHT,
            _STRICT,
        )
        for task, scores in list(results.items())[:_MAX_TASKS]
    ]
    return [
        ResultCell(
            where=where,
            tool="lm-evaluation-harness",
            load=load,
            created=document.when("date"),
            graded=graded,
            deployment=document.fields(model="model_name"),
            label=graded.name,
        )
        for graded in stated
        if graded.accuracy is not None
    ]


def read_aiperf(path: Path) -> Accuracy | None:
    """Read AIPerf's table of right answers, a row for each task and one for all, which counts; None
    where there is no such row. Raises InputError where it cannot be read.
    """
    header, lines = files.parse_csv(files.read_text(path), files.printable(path))
    rows = {row[0]: Value(dict(zip(header, row, strict=False))) for _, row in lines}
    whole = rows.pop("OVERALL", None)
    if whole is None or not whole.whole("total"):
        return None
    stated = _state(", ".join(rows), whole.whole("total"), whole, "accuracy", _STRICT)
    return msgspec.structs.replace(stated, unparsed=whole.whole("unparsed"))


def _read_share(share: float | None) -> float | None:
    return share if share is not None and share <= 1 else None


def _state(task: str, count: int | None, scores: Value, *paths: str) -> Accuracy:
    """Make what is stated of a task: the share of right answers, and that in the form that was
    asked for."""
    right, strict = (_read_share(scores.amount(path)) for path in paths)
    low, high = wilson((right or 0.0) * (count or 0), count or 0)
    return Accuracy(
        name=task[:60],
        asked=count or 0,
        questions=count or 0,
        accuracy=right,
        low=low,
        high=high,
        strict=strict,
        undecided="a tool states them, without the answers",
    )


READER = Reader(
    tools="InferenceX's evaluations, lm-evaluation-harness",
    documents=[
        (("task", "conc", "metrics.em_strict|metrics.em_flexible|metrics.score"), _read_inferencex),
        (("results", "n-samples|n-shot"), _read_lm_eval),
    ],
)
