"""Requests for vectors or scores: texts of demanded lengths, several to a request."""

from typing import Any, NamedTuple

import msgspec
import numpy as np

from loadstone.core.errors import InputError
from loadstone.core.plan import Inputs, PoolingTask
from loadstone.core.vectors import Ints32
from loadstone.workload.draw import GROUPS, LENGTHS, Draw, Rows, Workload, roll
from loadstone.workload.lengths import Length, parse_length
from loadstone.workload.load_options import WorkloadOptions
from loadstone.workload.option_fields import changed_options, values_of
from loadstone.workload.options import RunOptions, pooling_task

_OF_THESE = ("input", "range-ratio", "seed", "scenario", "plan")
"""Options of a workload that hold for texts, too."""


class _Defaults(NamedTuple):
    """Holds what a request has where nobody says it: tokens of an input, or the query; texts of
    which vectors or scores are asked for; tokens of a document. `flag`: that which says how
    many."""

    input: str
    texts: str
    document: str
    flag: str


_EMBEDDINGS = _Defaults("256", "1", "", "inputs")
_DOCUMENTS = _Defaults("32", "10", "256", "documents")


class Pooled(Workload, msgspec.Struct, frozen=True, tag_field="kind", tag="pooled"):
    """Texts of random words. `input`: the tokens of each, or of a query beside `count` documents of
    `document` tokens."""

    task: PoolingTask
    input: Length
    count: Length
    document: Length | None = None

    def describe(self, output: Length | None) -> dict[str, Any]:
        described: dict[str, Any] = msgspec.to_builtins(self)
        return described

    def rows(self, draw: Draw) -> Rows:
        starts_s = draw.starts_s(draw.count(draw.requested))
        total = len(starts_s)
        # A stream for each: a longer cell begins like a shorter one.
        counts = self.count.draw(draw.generator(GROUPS), total)
        texts = np.empty(total, object)
        queries, lengths = draw.generator(LENGTHS).spawn(2)
        sampler = self.document or self.input
        ends = np.cumsum(counts)[:-1]
        for place, drawn in enumerate(np.split(sampler.draw(lengths, int(counts.sum())), ends)):
            texts[place] = drawn
        query = self.input.draw(queries, total)
        columns: Rows = {
            "input_tokens": np.zeros(total, np.int32),
            "output_tokens": counts,
            "prefix_group": np.full(total, -1, np.int32),
            "prefix_tokens": np.zeros(total, np.int32),
            "prompt": np.full(total, -1, np.int32),
            "texts": texts,
            "query": query,
        }
        rows = draw.single_rows(starts_s, roll(columns, draw.warm))
        # The warm-up of a closed loop asks for fewer, so that its slots end one after another.
        pairs = zip(rows.pop("query"), rows["texts"], rows["output_tokens"], strict=True)
        for place, (tokens, of_row, count) in enumerate(pairs):
            first = [] if self.document is None else [tokens]
            rows["texts"][place] = np.concatenate([first, of_row[:count]]).astype(np.int32)
        rows["input_tokens"] = np.array([tokens.sum() for tokens in rows["texts"]], np.int32)
        return rows

    def finish(self, rows: Rows, draw: Draw) -> dict[str, Any]:
        texts: list[Ints32] = list(rows["texts"])
        offsets = np.cumsum([0, *map(len, texts)]).astype(np.int64)
        return {
            "inputs": Inputs(self.task, offsets, np.concatenate(texts)),
            "exact_output": False,
        }


def read_pooled(options: RunOptions) -> Pooled | None:
    """Describe the texts that the options ask for; None where text is to be written. Raises
    InputError for options that are about the other."""
    task, workload = pooling_task(options), options.workload
    if task is None:
        named = [flag for flag in ("inputs", "documents", "document") if getattr(workload, flag)]
        if named:
            tasks = "embeddings" if named[0] == "inputs" else "rerank or score"
            raise InputError(f"--{named[0]}: goes with --endpoint {tasks}; give that too")
        return None
    _check_options(options, task)
    defaults = _EMBEDDINGS if task == "embeddings" else _DOCUMENTS
    return Pooled(
        task,
        _length(workload, "input", defaults.input),
        _length(workload, defaults.flag, defaults.texts),
        _length(workload, "document", defaults.document) if defaults.document else None,
    )


def _length(workload: WorkloadOptions, flag: str, default: str) -> Length:
    ratio = workload.range_ratio if flag in ("input", "document") else 1.0
    return parse_length(getattr(workload, flag) or default, ratio, f"--{flag}")


def _check_options(options: RunOptions, task: PoolingTask) -> None:
    """Raise InputError for what such requests do not have."""
    task_flags = ("inputs",) if task == "embeddings" else ("documents", "document")
    for flag in changed_options(options.workload):
        if flag not in (*_OF_THESE, *task_flags):
            raise InputError(f"--endpoint {task} and --{flag}: do not go together; leave one out")
    given = values_of(options)
    for name in ("temperature", "top_p", "sampling_seed", "stop"):
        if given.get(name) not in (None, ()):
            flag = name.replace("_", "-")
            raise InputError(f"--endpoint {task} and --{flag}: no text is drawn; leave one out")
    if options.grading.check is not None:
        raise InputError(f"--endpoint {task} and --check: no text is written; leave one out")
