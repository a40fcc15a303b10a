"""Which tool wrote a file, told by what is in it, never by its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from loadstone.errors import InputError
from loadstone.importers import (
    aiperf,
    guidellm,
    inference_perf,
    llmd,
    mlperf,
    requestlog,
    sglang,
    source,
    table,
    vllm,
)
from loadstone.importers.cell import Cell
from loadstone.importers.values import Value

KNOWN = (
    "vLLM's bench serve, throughput or latency, SGLang's bench_serving, AIPerf, genai-perf, GuideLLM, "
    "inference-perf, llm-d's benchmark report, MLPerf's log summary, or CSV"
)
_AIPERF_SUMMARY, _AIPERF_REQUESTS = "profile_export_aiperf.json", "profile_export.jsonl"


def read(path: Path, mapped: Mapping[str, str]) -> list[Cell]:
    """The cells of one file. Raises InputError where it is of no known kind, or broken."""
    said = source.read_text(path)
    what = str(path)
    start = said.lstrip()[:1]
    if start in ("{", "["):
        return _json(said, path)
    if mlperf.is_summary(said):
        return [mlperf.summary(said, path.name)]
    if path.suffix in (".yaml", ".yml"):
        document = Value(source.parse_yaml(said, what))
        if llmd.is_report(document):
            return [llmd.report(document, path.name)]
        raise InputError(f"{what}: YAML, but no benchmark report of llm-d's; give a result of {KNOWN}")
    if not start:
        raise InputError(f"{what}: empty; give a result of {KNOWN}")
    return _csv(said, path, mapped)


def _json(said: str, path: Path) -> list[Cell]:
    what, where = str(path), path.name
    try:
        document = Value(source.parse_json(said, what))
    except InputError as error:
        lines = said.split("\n", 2)
        # JSON lines are not one document; a document that breaks off is neither.
        if "Extra data" not in str(error) or len(lines) < 2:
            raise
        rows = source.parse_lines(said, what)
        return _rows([Value(row) for _, row in rows], [line for line, _ in rows], path)
    if isinstance(document.raw, list):
        if inference_perf.is_requests(document):
            return [_with_stage(inference_perf.requests(document.items(), where), path)]
        if document and all(isinstance(row, dict) for row in document.raw):
            return _rows(document.items(), range(1, len(document.raw) + 1), path)
    else:
        if guidellm.is_report(document):
            return guidellm.report(document, where)
        if aiperf.is_profile(document):
            return aiperf.profile(document, where)
        if aiperf.is_request(document) or requestlog.is_row(document):
            return _rows([document], [1], path)
        if (cell := _one(document, where)) is not None:
            if aiperf.is_summary(document) and (path.parent / _AIPERF_REQUESTS).is_file():
                _beside(cell, path.parent / _AIPERF_REQUESTS)
            return [cell]
    if document.has("run_id", "cells"):
        raise InputError(f"{what}: this is Loadstone's own; a run folder needs no import")
    raise InputError(f"{what}: JSON, but no result of a tool that is known; give one of {KNOWN}")


def _one(document: Value, where: str) -> Cell | None:
    """A document that is one cell."""
    readers = (
        (sglang.is_serving, sglang.serving),
        (sglang.is_offline, sglang.offline),
        (sglang.is_one_batch, sglang.one_batch),
        (aiperf.is_summary, aiperf.summary),
        (inference_perf.is_stage, inference_perf.stage),
        (llmd.is_report, llmd.report),
        (vllm.is_serve, vllm.serve),
        (vllm.is_throughput, vllm.throughput),
        (vllm.is_latency, vllm.latency),
    )
    for is_it, make in readers:
        if is_it(document):
            return make(document, where)
    return None


def _rows(rows: Sequence[Value], lines: Sequence[int], path: Path) -> list[Cell]:
    """JSON lines: requests of one cell, or a cell each, as SGLang's and vLLM's clients append them."""
    if rows and all(aiperf.is_request(row) for row in rows):
        summary = path.parent / _AIPERF_SUMMARY
        cell = Cell(where=path.name, tool="AIPerf", load=None, definitions="aiperf")
        if summary.is_file():
            document = Value(source.parse_json(source.read_text(summary), str(summary)))
            if aiperf.is_summary(document):
                cell = aiperf.summary(document, path.name)
        aiperf.requests(rows, cell)
        return [cell]
    if rows and all(requestlog.is_row(row) for row in rows):
        return [requestlog.requests(rows, path.name)]
    cells = []
    for line, row in zip(lines, rows, strict=True):
        made = _one(row, f"{path.name}, line {line}")
        if made is None:
            raise InputError(f"{path}, line {line}: no result of a tool that is known; give one of {KNOWN}")
        cells.append(made)
    return cells


def _beside(cell: Cell, path: Path) -> None:
    """The requests that lie beside AIPerf's summary."""
    rows = [Value(row) for _, row in source.parse_lines(source.read_text(path), str(path))]
    if rows and all(aiperf.is_request(row) for row in rows):
        aiperf.requests(rows, cell)


def _with_stage(cell: Cell, path: Path) -> Cell:
    """The load of inference-perf's requests, from the stage's file beside them where there was one stage."""
    stages = sorted(path.parent.glob("stage_*_lifecycle_metrics.json"))[:2]
    if len(stages) == 1:
        document = Value(source.parse_json(source.read_text(stages[0]), str(stages[0])))
        if inference_perf.is_stage(document):
            stage = inference_perf.stage(document, stages[0].name)
            cell.load, cell.requests, cell.latencies, cell.totals = (
                stage.load, stage.requests, stage.latencies, stage.totals
            )  # fmt: skip
            cell.duration_s = stage.duration_s
    return cell


def _csv(said: str, path: Path, mapped: Mapping[str, str]) -> list[Cell]:
    what = str(path)
    header, rows = source.parse_csv(said, what)
    if not mapped and sglang.is_table(header):
        return [sglang.table_row(dict(zip(header, row, strict=False)), f"{path.name}, line {n}") for n, row in rows]
    if not mapped and vllm.is_table(header):
        return [vllm.table_row(dict(zip(header, row, strict=False)), f"{path.name}, line {n}") for n, row in rows]
    names = table.columns(header, mapped, what)
    return [table.row(row, names, header, f"{path.name}, line {number}") for number, row in rows]
