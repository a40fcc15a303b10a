"""Which tool wrote a file, told by what is in it, never by its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from loadstone.core.errors import InputError
from loadstone.interop.read import (
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
from loadstone.interop.read.cell import Cell
from loadstone.interop.read.source import NoResult
from loadstone.interop.read.values import Value

KNOWN = (
    "vLLM's bench serve, throughput or latency, SGLang's bench_serving, AIPerf, genai-perf, GuideLLM, "
    "inference-perf, llm-d's benchmark report, MLPerf's log summary, or CSV"
)
_SHOWN = 8


def read(path: Path, mapped: Mapping[str, str], where: str) -> list[Cell]:
    """The cells of one file, which they call `where`. Raises InputError: NoResult where it is of no known kind."""
    said = source.read_text(path)
    cells = _cells(said, path, mapped, where)
    if cells and "\ufffd" in said:
        cells[0].say(
            "unreadable_characters",
            "info",
            f"{where}: holds characters that are not UTF-8; \ufffd replaces them, in names too",
            "Save the file as UTF-8 and import it again, or give the names with --set.",
        )
    return cells


def _cells(said: str, path: Path, mapped: Mapping[str, str], where: str) -> list[Cell]:
    what = source.printable(path)
    start = said.lstrip()[:1]
    if start in ("{", "["):
        return _json(said, path, where)
    if mlperf.is_summary(said):
        return [mlperf.summary(said, where)]
    if path.suffix in (".yaml", ".yml"):
        document = Value(source.parse_yaml(said, what))
        if llmd.is_report(document):
            return [llmd.report(document, where)]
        if guidellm.is_report(document):
            return guidellm.report(document, where)
        raise NoResult(f"{what}: YAML, but not a benchmark report of llm-d or GuideLLM; give a result of {KNOWN}")
    if not start:
        raise NoResult(f"{what}: empty; give a result of {KNOWN}")
    return _csv(said, what, mapped, where)


def _json(said: str, path: Path, where: str) -> list[Cell]:
    what = source.printable(path)
    try:
        document = Value(source.parse_json(said, what))
    except InputError as error:
        # JSON lines are not one document; a document that breaks off is neither.
        if "Extra data" not in str(error) or "\n" not in said.strip():
            requests = path.with_name(aiperf.REQUESTS)
            if path == aiperf.summary_beside(path) and requests.is_file() and requests.stat().st_size:
                return _json(source.read_text(requests), requests, where)  # which says what the sums lack
            raise
        rows, broken = source.parse_lines(said, what)
        cells = _rows([Value(row) for _, row in rows], [line for line, _ in rows], path, where)
        _say_broken(cells[-1], broken, where)
        return cells
    if isinstance(document.raw, list):
        if inference_perf.is_requests(document):
            return [_with_stage(inference_perf.requests(document.items(), where), path)]
        if document and all(isinstance(row, dict) for row in document.raw):
            return _rows(document.items(), range(1, len(document.raw) + 1), path, where)
    else:
        if guidellm.is_report(document):
            return guidellm.report(document, where)
        if aiperf.is_profile(document):
            return aiperf.profile(document, where)
        if aiperf.is_request(document) or requestlog.is_row(document):
            return _rows([document], [1], path, where)
        if (cell := _one(document, where)) is not None:
            if aiperf.is_summary(document) and (requests := path.with_name(aiperf.REQUESTS)).is_file():
                _beside(cell, requests)
            return [cell]
    if document.has("run_id", "cells"):
        raise NoResult(f"{what}: this is Loadstone's own; a run folder needs no import")
    raise NoResult(f"{what}: JSON, but not a result of a known tool; give one of {KNOWN}")


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


def _rows(rows: Sequence[Value], lines: Sequence[int], path: Path, where: str) -> list[Cell]:
    """JSON lines: requests of one cell, or a cell each, as SGLang's and vLLM's clients append them."""
    if rows and all(aiperf.is_request(row) for row in rows):
        summary = aiperf.summary_beside(path)
        cell = Cell(where=where, tool="AIPerf", load=None, definitions="aiperf")
        sums = {}
        try:
            if summary.is_file():
                sums = source.parse_json(source.read_text(summary), source.printable(summary))
        except InputError as error:
            remedy = "Copy it again, or state what is missing: --set model=…, --set concurrency=…"
            cell.say("broken", "warning", f"{error}; its requests were read", remedy)
        if aiperf.is_summary(Value(sums)):
            cell = aiperf.summary(Value(sums), where)
        aiperf.requests(rows, cell)
        return [cell]
    if rows and all(requestlog.is_row(row) for row in rows):
        return [requestlog.requests(rows, where)]
    cells = []
    for line, row in zip(lines, rows, strict=True):
        made = _one(row, f"{where}, line {line}")
        if made is None:
            what = source.printable(path)
            raise NoResult(f"{what}, line {line}: not a result of a known tool; give one of {KNOWN}")
        cells.append(made)
    return cells


def _beside(cell: Cell, path: Path) -> None:
    """The requests that lie beside AIPerf's summary."""
    found, broken = source.parse_lines(source.read_text(path), source.printable(path))
    rows = [Value(row) for _, row in found]
    if rows and all(aiperf.is_request(row) for row in rows):
        aiperf.requests(rows, cell)
        _say_broken(cell, broken, source.printable(path.name))


def _say_broken(cell: Cell, broken: Sequence[int], where: str) -> None:
    """`cell`: the one that the lines before belong to. Its own numbers suffer only where lines are requests."""
    if broken:
        shown = ", ".join(map(str, broken[:_SHOWN])) + (" …" if len(broken) > _SHOWN else "")
        cell.say(
            "lines_left_out",
            "warning" if cell.records else "info",
            f"{where}: {len(broken)} of its lines {'is' if len(broken) == 1 else 'are'} not JSON: line {shown}; "
            "the others were read",
            "Perhaps the tool was killed while writing: copy the file again, or measure again what is missing.",
        )


def _with_stage(cell: Cell, path: Path) -> Cell:
    """The load of inference-perf's requests, from the stage's file beside them where there was one stage."""
    stages = inference_perf.stages_in(path.parent)
    if len(stages) == 1:
        document = Value(source.parse_json(source.read_text(stages[0]), str(stages[0])))
        if inference_perf.is_stage(document):
            stage = inference_perf.stage(document, cell.where)
            cell.load, cell.requests, cell.latencies, cell.totals = (
                stage.load, stage.requests, stage.latencies, stage.totals
            )  # fmt: skip
            cell.duration_s = stage.duration_s
    return cell


def _csv(said: str, what: str, mapped: Mapping[str, str], where: str) -> list[Cell]:
    header, rows = source.parse_csv(said, what)
    for tool in () if mapped else (sglang, vllm):
        if tool.is_table(header):
            return [tool.table_row(dict(zip(header, row, strict=False)), f"{where}, line {n}") for n, row in rows]
    names = table.columns(header, mapped, what)
    return [table.row(row, names, header, f"{where}, line {number}") for number, row in rows]
