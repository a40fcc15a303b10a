"""Tells which tool wrote a file, by what is in it, never by its name."""

from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path

from loadstone.core import plugins
from loadstone.core.errors import InputError
from loadstone.interop.read import files, plain_csv
from loadstone.interop.read.cell import ResultCell
from loadstone.interop.read.files import NoResult
from loadstone.interop.read.findings import finding, list_some
from loadstone.interop.read.reader import Reader
from loadstone.interop.read.values import Value, find_own_verdict


@cache
def load_readers() -> list[Reader]:
    """Return the readers of all packages, by the names of their entry points. Raises InputError
    where one cannot be loaded."""
    names = sorted(plugins.offers(plugins.READERS))
    return [plugins.load(plugins.READERS, name, "reader") for name in names]


def known_tools() -> str:
    """Name the tools whose results are read."""
    return f"{', '.join(reader.tools for reader in load_readers())}, or CSV"


def read(path: Path, mapped: Mapping[str, str], where: str) -> list[ResultCell]:
    """Read the cells of one file, which they call `where`, with what the file beside it has of the
    same measurement: its requests or its sums. Raises InputError: NoResult where it is of no known
    kind.
    """
    try:
        reader, cells = _read(path, mapped, where)
    except InputError:
        for reader in load_readers():
            companion = reader.companion(path, None)
            if companion is not None:
                return read(companion, mapped, where)  # which says what this one lacks
        raise
    if reader is None or len(cells) != 1:
        return cells
    companion = reader.companion(path, cells[0])
    joined = cells[0]
    if companion not in (None, path) and companion.is_file():
        joined = _join(joined, companion)
    reader.finish(joined, path)
    return [joined]


def _join(cell: ResultCell, companion: Path) -> ResultCell:
    """Join a measurement's sums and its requests, of which `cell` has one and the companion should
    have the other.
    """
    try:
        _, cells = _read(companion, {}, cell.where)
    except InputError as error:
        remedy = "Copy it again, or state what is missing: --set model=…, --set concurrency=…"
        cell.findings.append(
            finding("broken", f"{error}; the file beside it was read", remedy=remedy)
        )
        return cell
    if len(cells) != 1 or bool(cells[0].records) == bool(cell.records):
        return cell
    sums, requests = (cells[0], cell) if cell.records else (cell, cells[0])
    kinds = {found.kind for found in requests.findings}
    sums.findings = [found for found in sums.findings if found.kind not in kinds]
    sums.findings += requests.findings
    sums.deployment |= requests.deployment
    sums.records = requests.records
    sums.relative = requests.relative
    sums.unknown = requests.unknown
    return sums


Found = tuple[Reader | None, list[ResultCell]]
"""Cells, and the reader that made them; None: a CSV's own columns."""


def _read(path: Path, mapped: Mapping[str, str], where: str) -> Found:
    content = files.read_text(path)
    reader, cells = _parse(content, path, mapped, where)
    if cells and "\ufffd" in content:
        evidence = (
            f"{where}: holds characters that are not UTF-8; \ufffd replaces them, in names too"
        )
        cells[0].findings.append(finding("unreadable_characters", evidence))
    return reader, cells


def _parse(content: str, path: Path, mapped: Mapping[str, str], where: str) -> Found:
    name = files.printable(path)
    start = content.lstrip()[:1]
    if start in ("{", "["):
        return _parse_json(content, name, where)
    if path.suffix in (".yaml", ".yml"):
        document = Value(files.parse_yaml(content, name))
        return _read_document(document, name, where, "YAML, but ")
    if not start:
        raise NoResult(f"{name}: empty; give a result of {known_tools()}")
    header, rows = files.parse_csv(content, name)
    readers = [] if mapped else load_readers()
    found = ((reader, reader.rows(header)) for reader in readers)
    reader, read_row = next((pair for pair in found if pair[1] is not None), (None, None))
    if read_row is None:
        read_row = partial(plain_csv.read_row, plain_csv.columns(header, mapped, name))
        rows = plain_csv.leave_out_classes(header, rows)
    return reader, [
        read_row(dict(zip(header, row, strict=False)), f"{where}, line {line}")
        for line, row in rows
    ]


def _parse_json(content: str, name: str, where: str) -> Found:
    """Read a document; or several, in a list or a line each: requests of one cell, or cells, as
    SGLang's and vLLM's clients append them.
    """
    broken: list[int] = []
    try:
        document = Value(files.parse_json(content, name))
        rows = dict(enumerate(document.items(), 1))
    except InputError as error:
        # JSON lines are not one document; a document that breaks off is neither.
        if "Extra data" not in str(error) or "\n" not in content.strip():
            raise
        objects, broken = files.parse_lines(content, name)
        rows = {line: Value(row) for line, row in objects}
    else:
        if not rows or not all(isinstance(row.raw, dict) for row in rows.values()):
            return _read_document(document, name, where, "JSON, but ")
    reader, cells = _read_requests(list(rows.values()), where)
    if not cells:
        if len(rows) > files.MAX_RESULTS:
            raise InputError(f"{name}: more than {files.MAX_RESULTS:,} results; split it")
        for line, row in rows.items():
            reader, found = _read_document(row, f"{name}, line {line}", f"{where}, line {line}")
            cells += found
    if broken:
        # The cell that the lines before belong to: its own numbers suffer only where lines are
        # requests.
        verb = "is" if len(broken) == 1 else "are"
        evidence = (
            f"{where}: {len(broken)} of its lines {verb} not JSON: line {list_some(broken)}; the"
            " others were read"
        )
        severity = "warning" if cells[-1].records else "info"
        cells[-1].findings.append(finding("lines_left_out", evidence, severity))
    return reader, cells


def _read_requests(rows: Sequence[Value], where: str) -> Found:
    """Make the cell that these are the requests of; none where they are no requests."""
    for reader in load_readers():
        for paths, read_requests in reader.requests:
            if all(row.has(*paths) for row in rows):
                cell = read_requests(rows, where)
                cell.say_odd({name: value for row in rows for name, value in row.odd.items()})
                return reader, [cell]
    return None, []


def _read_document(document: Value, name: str, where: str, form: str = "") -> Found:
    for reader in load_readers():
        for paths, read_document in reader.documents:
            if document.has(*paths):
                found = read_document(document, where)
                cells = found if isinstance(found, list) else [found]
                own_verdict = find_own_verdict(document.raw)
                for cell in cells:
                    if own_verdict is not None:
                        cell.say("invalid_by_tool", own_verdict)
                if cells:
                    cells[0].say_odd(document.odd)
                return reader, cells
    requests = _read_requests([document], where)
    if requests[1]:
        return requests
    if document.has("run_id", "cells"):
        raise NoResult(f"{name}: this is Loadstone's own; a run folder needs no import")
    raise NoResult(f"{name}: {form}not a result of a known tool; give one of {known_tools()}")
