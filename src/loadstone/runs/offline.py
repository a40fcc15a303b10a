"""Offline throughput: batches through an engine's own interface, each a cell of an ordinary run folder."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from loadstone.catalogue.deployment.shorthand import parse_deployment
from loadstone.catalogue.engines import engine_title
from loadstone.core import run_folder
from loadstone.core.errors import InputError
from loadstone.core.plan import Plan
from loadstone.core.record import CellInfo, RequestRecord, RunInfo, Target
from loadstone.core.signals import Signals
from loadstone.engines.offline.keywords import Keywords
from loadstone.measure.engines.launch import LaunchError
from loadstone.measure.offline.engine import (
    LoadedEngine,
    OfflineAnswer,
    OfflineBatch,
    OfflineEngine,
    find_interpreter,
)
from loadstone.runs import execution, preflight
from loadstone.workload.options import Options
from loadstone.workload.planning import plan_of
from loadstone.workload.prompts import PromptWriter, Vocabulary

_EVENT_BYTES = 1
_WARMUP_TOKENS = 16
"""Answers of warm-up requests are cut to so many: they are there so that kernels are compiled and memory is taken."""
_MOST_IDS = 1 << 16


class _Stopped(Exception):
    """A signal came while the engine worked."""


def offline(
    runs: Sequence[Options], keywords: Keywords, python: str | None, environment: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Load the engine once and run the batches of `runs`, each with `deployment` and bursts as its loads, into a
    folder of its own; returns their summaries.

    Raises InputError, one line, where it cannot be done, and Interrupted, after saving, when a signal ended it. An
    engine that ends during a later batch leaves a failed run with the cells before.
    """
    plans = [_plan(options) for options in runs]
    interpreter = find_interpreter(keywords, python)
    with Signals() as signals:

        def look() -> None:
            if signals.count:
                raise _Stopped

        documents = []
        with OfflineEngine(keywords, interpreter, environment, look) as engine:
            met = engine.load()
            for options, plan in zip(runs, plans, strict=True):
                documents.append(_run(options, plan, keywords, engine, met, signals))
                signals.on_first = None
                if documents[-1]["status"] != "done":
                    break
    return documents


def _plan(options: Options) -> Plan:
    plan = plan_of(options)
    plan.output_tokens = np.where(plan.phase == 0, plan.output_tokens.clip(max=_WARMUP_TOKENS), plan.output_tokens)
    plan.workload["mode"] = "offline"
    return plan


def _run(
    options: Options, plan: Plan, keywords: Keywords, engine: OfflineEngine, met: LoadedEngine, signals: Signals
) -> dict[str, Any]:
    text = options.deployment or ""
    deployment = parse_deployment(text)
    target = Target(
        url=text,
        urls=[text],
        endpoint="offline",
        streams=keywords.timed,
        model=deployment.model.name,
        engine=engine_title(keywords.engine),
        engine_version=met.version,
        prompt_kind="token ids",
    )
    salt = preflight.salt_of(options)
    info = execution.describe(
        options,
        plan,
        target,
        execution.bounds_of(options),
        source="measured",
        name=(target.engine, "offline", target.model.rsplit("/", 1)[-1]),
        salt=salt,
        settings={
            "deployment": preflight.deployment_record(text, deployment, target),
            "sampling": {"temperature": 0.0},
            "prefix_cache": "prompts are new",
            "engine_arguments": msgspec.json.decode(keywords.arguments),
            "loaded": keywords.model,
        },
    )
    tenth = met.vocabulary // 10  # special tokens are the first or the last of a vocabulary
    ids = tuple(range(tenth, min(met.vocabulary - tenth, tenth + _MOST_IDS)))
    if not ids:
        raise InputError(f"{keywords.model}: a vocabulary of {met.vocabulary} tokens makes no prompts")
    writer = PromptWriter(Vocabulary("token ids", ids), seed=plan.seed, salt=salt, chat=False)
    folder = run_folder.create(options.out, info.run_id)
    info.run_id = folder.name
    execution.check_room(folder, plan, _EVENT_BYTES)

    def run() -> str | None:
        info.origin_ns = time.monotonic_ns()
        run_folder.write_info(folder, info)
        signals.on_first = lambda: None  # the batch under way ends, and what there is is saved
        journal = run_folder.JournalWriter(folder, 0)
        try:
            return _cells(plan, info, folder, engine, writer, journal)
        except _Stopped:
            return None
        finally:
            journal.close()
            shutil.copyfile(engine.log, folder / "engine.log")

    return execution.execute(folder, info, plan, signals, run)


def _cells(
    plan: Plan,
    info: RunInfo,
    folder: Path,
    engine: OfflineEngine,
    writer: PromptWriter,
    journal: run_folder.JournalWriter,
) -> str | None:
    """Every batch, and its warm-up before it; why they ended early, where a later one did."""
    import pyarrow as pa

    assert info.origin_ns is not None  # noqa: S101
    origin_s = info.origin_ns * 1e-9
    for cell, load in enumerate(plan.cells):
        for first, last in plan.steps(cell):
            requests = [plan.request(cell, index) for index in range(first, last or len(plan.rows(cell)))]
            try:
                batch = engine.generate(
                    [writer.write(each) for each in requests], [x.output_tokens for x in requests]
                )
            except LaunchError as error:
                if cell == 0:
                    raise
                return str(error)
            rows = [
                msgspec.structs.asdict(_record(each.request_id, cell, each.phase, answer, batch, origin_s))
                | {"status": "ok" if answer.output_tokens >= each.output_tokens else "short"}
                for each, answer in zip(requests, batch.answers, strict=True)
            ]
            table = pa.Table.from_pylist(rows, schema=run_folder.records_schema())
            if not all(journal.write(each) for each in table.combine_chunks().to_batches()):
                return "the disk is full"
        start_s, end_s = batch.start_s - origin_s, batch.end_s - origin_s
        info.cells[cell] = CellInfo(load=load, start_s=start_s, issue_end_s=start_s, end_s=end_s)
        run_folder.write_info(folder, info)
        run_folder.log(folder, f"{load.label}: {end_s - start_s:.3g} s")
    return None


def _record(
    name: str, cell: int, phase: Any, answer: OfflineAnswer, batch: OfflineBatch, origin_s: float
) -> RequestRecord:
    """Of one request of a batch: its first and last token where the engine says when these were, else the end."""
    timed = answer.first_s is not None and answer.last_s is not None and answer.output_tokens > 1
    times = [answer.first_s, answer.last_s] if timed else [answer.last_s or batch.end_s]
    tokens = [1, answer.output_tokens] if timed else [answer.output_tokens]
    return RequestRecord(
        request_id=name,
        cell=cell,
        phase=phase,
        intended_s=batch.start_s - origin_s,
        sent_s=batch.start_s - origin_s,
        arrival_s=[(each or 0.0) - origin_s for each in times],
        read=list(range(len(times))),
        tokens=tokens,
        token_source="running usage",  # noqa: S106
        end_s=batch.end_s - origin_s,
        input_tokens=answer.input_tokens,
        output_tokens=answer.output_tokens,
        finish_reason="length",
        status="ok",
    )
