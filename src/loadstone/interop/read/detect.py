"""Tells which tool wrote a file, by what is in it, never by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from loadstone.core.errors import InputError
from loadstone.interop.read import (
    aiperf,
    bench_serving,
    evaluations,
    files,
    guidellm,
    inference_perf,
    inferencex,
    llmperf,
    mlperf,
    plain_csv,
)
from loadstone.interop.read.cell import ResultCell
from loadstone.interop.read.files import NoResult
from loadstone.interop.read.findings import finding, list_some
from loadstone.interop.read.values import Value

KNOWN = (
    "vLLM's bench serve, throughput or latency, SGLang's bench_serving, AIPerf, genai-perf,"
    " GuideLLM, inference-perf, llm-d's benchmark report, InferenceX's aggregates or evaluations,"
    " lm-evaluation-harness, llmperf, MLPerf's log summary, or CSV"
)
# What a document has, and its reader. The first counts.
_READERS: tuple[
    tuple[tuple[str, ...], Callable[[Value, str], ResultCell | list[ResultCell]]], ...
] = (
    (guidellm.REPORT, guidellm.report),
    (aiperf.PROFILE, aiperf.profile),
    (bench_serving.SGLANG, bench_serving.sglang),
    (bench_serving.SGLANG_OFFLINE, bench_serving.sglang_offline),
    (bench_serving.ONE_BATCH, bench_serving.one_batch),
    (aiperf.SUMMARY, aiperf.summary),
    (inference_perf.STAGE, inference_perf.stage),
    (inference_perf.LLMD, inference_perf.llmd),
    (inferencex.AGGREGATE, inferencex.aggregate),
    (evaluations.INFERENCEX, evaluations.evaluation),
    (evaluations.LM_EVAL, evaluations.lm_eval),
    (llmperf.SUMMARY, llmperf.summary),
    (bench_serving.VLLM, bench_serving.vllm),
    (bench_serving.VLLM_THROUGHPUT, bench_serving.vllm_throughput),
    (bench_serving.VLLM_LATENCY, bench_serving.vllm_latency),
)
# Documents that are a request each and one cell together.
_REQUESTS: tuple[tuple[tuple[str, ...], Callable[[Sequence[Value], str], ResultCell]], ...] = (
    (aiperf.REQUEST, aiperf.requests),
    (inference_perf.REQUEST, inference_perf.requests),
    (llmperf.REQUEST, llmperf.requests),
)


def read(path: Path, mapped: Mapping[str, str], where: str) -> list[ResultCell]:
    """Read the cells of one file, which they call `where`, with what the file beside it has of the
    same measurement: its requests or its sums. Raises InputError: NoResult where it is of no known
    kind.
    """
    requests = path.with_name(aiperf.REQUESTS)
    try:
        cells = _read(path, mapped, where)
    except InputError:
        if (
            path != aiperf.summary_path(path)
            or not requests.is_file()
            or not requests.stat().st_size
        ):
            raise
        return read(requests, mapped, where)  # which says what the sums lack
    if len(cells) != 1:
        return cells
    (cell,) = cells
    beside = None
    if cell.tool.startswith(aiperf.TOOLS):
        beside = aiperf.summary_path(path) if cell.records else requests
    elif cell.tool == llmperf.TOOL:
        beside = llmperf.name_partner(path, wanted=0 if cell.records else 1)
    elif cell.tool == inference_perf.TOOL and cell.records:
        stages = inference_perf.list_stages(path.parent)
        beside = stages[0] if len(stages) == 1 else None
    joined = cell if beside in (None, path) or not beside.is_file() else _join(cell, beside)
    accuracy = path.with_name(aiperf.ACCURACY)
    if cell.tool.startswith(aiperf.TOOLS) and accuracy.is_file():
        joined.graded = evaluations.aiperf(accuracy)
    return [joined]


def _join(cell: ResultCell, beside: Path) -> ResultCell:
    """Join a measurement's sums and its requests, of which `cell` has one and the file `beside`
    should have the other.
    """
    try:
        others = _read(beside, {}, cell.where)
    except InputError as error:
        remedy = "Copy it again, or state what is missing: --set model=…, --set concurrency=…"
        cell.findings.append(
            finding("broken", f"{error}; the file beside it was read", remedy=remedy)
        )
        return cell
    if len(others) != 1 or bool(others[0].records) == bool(cell.records):
        return cell
    sums, requests = (others[0], cell) if cell.records else (cell, others[0])
    kinds = {each.kind for each in requests.findings}
    sums.findings = [each for each in sums.findings if each.kind not in kinds] + requests.findings
    sums.deployment |= requests.deployment
    sums.records, sums.relative, sums.unknown = (
        requests.records,
        requests.relative,
        requests.unknown,
    )
    return sums


def _read(path: Path, mapped: Mapping[str, str], where: str) -> list[ResultCell]:
    content = files.read_text(path)
    cells = _parse_cells(content, path, mapped, where)
    if cells and "\ufffd" in content:
        evidence = (
            f"{where}: holds characters that are not UTF-8; \ufffd replaces them, in names too"
        )
        cells[0].findings.append(finding("unreadable_characters", evidence))
    return cells


def _parse_cells(
    content: str, path: Path, mapped: Mapping[str, str], where: str
) -> list[ResultCell]:
    what = files.printable(path)
    start = content.lstrip()[:1]
    if start in ("{", "["):
        return _parse_json(content, what, where)
    if mlperf.is_summary(content):
        return [mlperf.summary(content, where)]
    if path.suffix in (".yaml", ".yml"):
        return _read_document(Value(files.parse_yaml(content, what)), what, where, "YAML, but ")
    if not start:
        raise NoResult(f"{what}: empty; give a result of {KNOWN}")
    header, rows = files.parse_csv(content, what)
    row_of = bench_serving.choose_row_reader(header) if not mapped else None
    if row_of is not None:
        return [
            row_of(dict(zip(header, row, strict=False)), f"{where}, line {line}")
            for line, row in rows
        ]
    names = plain_csv.columns(header, mapped, what)
    return [plain_csv.row(row, names, header, f"{where}, line {line}") for line, row in rows]


def _parse_json(content: str, what: str, where: str) -> list[ResultCell]:
    """Read a document; or several, in a list or a line each: requests of one cell, or cells, as
    SGLang's and vLLM's clients append them.
    """
    broken: list[int] = []
    try:
        document = Value(files.parse_json(content, what))
        rows = dict(enumerate(document.items(), 1))
    except InputError as error:
        # JSON lines are not one document; a document that breaks off is neither.
        if "Extra data" not in str(error) or "\n" not in content.strip():
            raise
        objects, broken = files.parse_lines(content, what)
        rows = {line: Value(row) for line, row in objects}
    else:
        if not rows or not all(isinstance(row.raw, dict) for row in rows.values()):
            return _read_document(document, what, where, "JSON, but ")
    cells = _read_requests(list(rows.values()), where)
    if not cells:
        if len(rows) > files.MOST_RESULTS:
            raise InputError(f"{what}: more than {files.MOST_RESULTS:,} results; split it")
        for line, row in rows.items():
            cells += _read_document(row, f"{what}, line {line}", f"{where}, line {line}")
    if broken:
        # The cell that the lines before belong to: its own numbers suffer only where lines are
        # requests.
        are = "is" if len(broken) == 1 else "are"
        evidence = (
            f"{where}: {len(broken)} of its lines {are} not JSON: line {list_some(broken)}; the"
            " others were read"
        )
        severity = "warning" if cells[-1].records else "info"
        cells[-1].findings.append(finding("lines_left_out", evidence, severity))
    return cells


def _read_requests(rows: Sequence[Value], where: str) -> list[ResultCell]:
    """Make the cell that these are the requests of; none where they are no requests."""
    for parts, reader in _REQUESTS:
        if all(row.has(*parts) for row in rows):
            cell = reader(rows, where)
            cell.say_odd({name: value for row in rows for name, value in row.odd.items()})
            return [cell]
    return []


def _read_document(document: Value, what: str, where: str, form: str = "") -> list[ResultCell]:
    for parts, reader in _READERS:
        if document.has(*parts):
            read = reader(document, where)
            cells = read if isinstance(read, list) else [read]
            if cells:
                cells[0].say_odd(document.odd)
            return cells
    if cells := _read_requests([document], where):
        return cells
    if document.has("run_id", "cells"):
        raise NoResult(f"{what}: this is Loadstone's own; a run folder needs no import")
    raise NoResult(f"{what}: {form}not a result of a known tool; give one of {KNOWN}")
