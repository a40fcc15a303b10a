"""Which tool wrote a file, told by what is in it, never by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from loadstone.core.errors import InputError
from loadstone.interop.read import (
    aiperf,
    bench_serving,
    files,
    guidellm,
    inference_perf,
    mlperf,
    plain_csv,
    requestlog,
)
from loadstone.interop.read.cell import Cell
from loadstone.interop.read.files import NoResult
from loadstone.interop.read.findings import finding
from loadstone.interop.read.values import Value

KNOWN = (
    "vLLM's bench serve, throughput or latency, SGLang's bench_serving, AIPerf, genai-perf, GuideLLM, "
    "inference-perf, llm-d's benchmark report, MLPerf's log summary, or CSV"
)
_SHOWN = 8
# A document that is one cell: how it is known, and its reader. The first that knows it reads it.
_READERS: tuple[tuple[Callable[[Value], bool], Callable[[Value, str], Cell]], ...] = (
    (bench_serving.is_sglang, bench_serving.sglang),
    (bench_serving.is_sglang_offline, bench_serving.sglang_offline),
    (bench_serving.is_one_batch, bench_serving.one_batch),
    (aiperf.is_summary, aiperf.summary),
    (inference_perf.is_stage, inference_perf.stage),
    (inference_perf.is_llmd, inference_perf.llmd),
    (bench_serving.is_vllm, bench_serving.vllm),
    (bench_serving.is_vllm_throughput, bench_serving.vllm_throughput),
    (bench_serving.is_vllm_latency, bench_serving.vllm_latency),
)


def read(path: Path, mapped: Mapping[str, str], where: str) -> list[Cell]:
    """The cells of one file, which they call `where`. Raises InputError: NoResult where it is of no known kind."""
    content = files.read_text(path)
    cells = _cells(content, path, mapped, where)
    if cells and "\ufffd" in content:
        evidence = f"{where}: holds characters that are not UTF-8; \ufffd replaces them, in names too"
        cells[0].findings.append(finding("unreadable_characters", evidence))
    return cells


def _cells(content: str, path: Path, mapped: Mapping[str, str], where: str) -> list[Cell]:
    what = files.printable(path)
    start = content.lstrip()[:1]
    if start in ("{", "["):
        return _json(content, path, where)
    if mlperf.is_summary(content):
        return [mlperf.summary(content, where)]
    if path.suffix in (".yaml", ".yml"):
        document = Value(files.parse_yaml(content, what))
        if inference_perf.is_llmd(document):
            return [inference_perf.llmd(document, where)]
        if guidellm.is_report(document):
            return guidellm.report(document, where)
        raise NoResult(f"{what}: YAML, but not a benchmark report of llm-d or GuideLLM; give a result of {KNOWN}")
    if not start:
        raise NoResult(f"{what}: empty; give a result of {KNOWN}")
    return _csv(content, what, mapped, where)


def _json(content: str, path: Path, where: str) -> list[Cell]:
    what = files.printable(path)
    try:
        document = Value(files.parse_json(content, what))
    except InputError as error:
        # JSON lines are not one document; a document that breaks off is neither.
        if "Extra data" in str(error) and "\n" in content.strip():
            objects, broken = files.parse_lines(content, what)
            cells = _rows([Value(row) for _, row in objects], [line for line, _ in objects], path, where)
            _say_broken(cells[-1], broken, where)
            return cells
        requests = path.with_name(aiperf.REQUESTS)
        if path == aiperf.summary_beside(path) and requests.is_file() and requests.stat().st_size:
            return _json(files.read_text(requests), requests, where)  # which says what the sums lack
        raise
    if inference_perf.is_requests(document):
        return [_with_stage(inference_perf.requests(document.items(), where), path)]
    rows = document.items()
    if rows and all(isinstance(row.raw, dict) for row in rows):
        return _rows(rows, range(1, len(rows) + 1), path, where)
    if guidellm.is_report(document):
        return guidellm.report(document, where)
    if aiperf.is_profile(document):
        return aiperf.profile(document, where)
    if aiperf.is_request(document) or requestlog.is_row(document):
        return _rows([document], [1], path, where)
    if (cell := _one(document, where)) is not None:
        if aiperf.is_summary(document) and (requests := path.with_name(aiperf.REQUESTS)).is_file():
            _add_requests_beside(cell, requests)
        return [cell]
    if document.has("run_id", "cells"):
        raise NoResult(f"{what}: this is Loadstone's own; a run folder needs no import")
    raise NoResult(f"{what}: JSON, but not a result of a known tool; give one of {KNOWN}")


def _one(document: Value, where: str) -> Cell | None:
    """A document that is one cell."""
    return next((reader(document, where) for is_it, reader in _READERS if is_it(document)), None)


def _rows(rows: Sequence[Value], lines: Sequence[int], path: Path, where: str) -> list[Cell]:
    """JSON lines: requests of one cell, or a cell each, as SGLang's and vLLM's clients append them."""
    if rows and all(map(aiperf.is_request, rows)):
        cell = _aiperf_summary_beside(path, where)
        aiperf.add_requests(rows, cell)
        return [cell]
    if rows and all(map(requestlog.is_row, rows)):
        return [requestlog.requests(rows, where)]
    cells = []
    for line, row in zip(lines, rows, strict=True):
        cell_of_line = _one(row, f"{where}, line {line}")
        if cell_of_line is None:
            what = files.printable(path)
            raise NoResult(f"{what}, line {line}: not a result of a known tool; give one of {KNOWN}")
        cells.append(cell_of_line)
    return cells


def _aiperf_summary_beside(path: Path, where: str) -> Cell:
    """The cell of the summary that lies beside AIPerf's requests; a bare one where there is none, or it is broken."""
    bare = Cell(where=where, tool="AIPerf", load=None, definitions="aiperf")
    summary = aiperf.summary_beside(path)
    if not summary.is_file():
        return bare
    try:
        document = Value(files.parse_json(files.read_text(summary), files.printable(summary)))
    except InputError as error:
        remedy = "Copy it again, or state what is missing: --set model=…, --set concurrency=…"
        bare.findings.append(finding("broken", f"{error}; its requests were read", remedy=remedy))
        return bare
    return aiperf.summary(document, where) if aiperf.is_summary(document) else bare


def _add_requests_beside(cell: Cell, path: Path) -> None:
    """The requests that lie beside AIPerf's summary."""
    objects, broken = files.parse_lines(files.read_text(path), files.printable(path))
    rows = [Value(row) for _, row in objects]
    if rows and all(map(aiperf.is_request, rows)):
        aiperf.add_requests(rows, cell)
        _say_broken(cell, broken, files.printable(path.name))


def _say_broken(cell: Cell, broken: Sequence[int], where: str) -> None:
    """`cell`: the one that the lines before belong to. Its own numbers suffer only where lines are requests."""
    if broken:
        shown = ", ".join(map(str, broken[:_SHOWN])) + (" …" if len(broken) > _SHOWN else "")
        evidence = (
            f"{where}: {len(broken)} of its lines {'is' if len(broken) == 1 else 'are'} not JSON: line {shown}; "
        )
        severity = "warning" if cell.records else "info"
        cell.findings.append(finding("lines_left_out", f"{evidence}the others were read", severity))


def _with_stage(cell: Cell, path: Path) -> Cell:
    """The load and the sums of inference-perf's requests, from the stage's file beside them where there was one."""
    stages = inference_perf.stages_in(path.parent)
    if len(stages) == 1:
        document = Value(files.parse_json(files.read_text(stages[0]), str(stages[0])))
        if inference_perf.is_stage(document):
            stage = inference_perf.stage(document, cell.where)
            for name in ("load", "requests", "latencies", "totals", "duration_s"):
                setattr(cell, name, getattr(stage, name))
    return cell


def _csv(content: str, what: str, mapped: Mapping[str, str], where: str) -> list[Cell]:
    header, rows = files.parse_csv(content, what)
    row_of = bench_serving.row_reader(header) if not mapped else None
    if row_of is not None:
        return [row_of(dict(zip(header, row, strict=False)), f"{where}, line {n}") for n, row in rows]
    names = plain_csv.columns(header, mapped, what)
    return [plain_csv.row(row, names, header, f"{where}, line {line}") for line, row in rows]
