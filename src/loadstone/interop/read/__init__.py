"""Results of other tools as run folders, which report and compare take like any other.

A file with its requests gives records; one with sums alone a run without records, whose summary.json is what the file
stated. What a file cannot tell stays missing. docs/import.md says which tool tells what.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from loadstone.analyse.run_facts import engine_name, gpu_name
from loadstone.analyse.verdict import Finding
from loadstone.core import Load
from loadstone.core.errors import InputError
from loadstone.interop.read import detect, files, source, table
from loadstone.interop.read.cell import Cell
from loadstone.interop.read.check import check
from loadstone.interop.read.values import lengths, positive, text, whole
from loadstone.interop.read.write import runs_of, write

__all__ = ["Imported", "import_files"]

SETTABLE = (
    *table.FACTS, *table.COUNTS, *table.LOADS, "input", "output", "range_ratio", "prefix", "prefix_cache", "label",
)  # fmt: skip
_SHOWN = 8


class Imported:
    """What came of an import: run folders, and findings, each with the run and cell it is about (None: of a file)."""

    def __init__(self) -> None:
        self.runs: list[Path] = []
        self.findings: list[dict[str, Any]] = []

    def say(self, finding: Finding, where: str, run: Path | None = None) -> None:
        told = {"run": str(run) if run is not None else None, "where": where}
        self.findings.append(told | msgspec.to_builtins(finding))

    def to_json(self) -> dict[str, Any]:
        return {"schema": 1, "runs": [str(run) for run in self.runs], "findings": self.findings}


def import_files(
    paths: Sequence[Path],
    out: Path = Path("runs"),
    *,
    mapped: Sequence[str] = (),
    given: Sequence[str] = (),
    command: Sequence[str] = (),
) -> Imported:
    """Run folders in `out` of result files, or of all such in a folder.

    `mapped`: NAME=COLUMN pairs for plain CSV. `given`: NAME=VALUE facts that the files do not tell, of SETTABLE.
    Raises InputError, one line, where a file that was named is of no known kind or broken; in a folder such files are
    passed over, each with a finding.
    """
    names, facts = table.parse_map(list(mapped)), _parse_given(given)
    found = Imported()
    cells: list[Cell] = []
    others: list[str] = []
    broken: list[str] = []
    for path, where, named in files.files_of(paths):
        try:
            cells += detect.read(path, names, where)
        except InputError as error:
            if named:
                raise
            # What programs print is text too, and may begin with a bracket.
            if isinstance(error, source.NoResult) or path.suffix == ".txt":
                others.append(where)
            else:
                broken.append(str(error))
    if others and cells:
        said = f"no results of a known tool, passed over: {_some(others, ', ')}"
        found.say(Finding("passed_over", "info", said, "Name a file itself to see what is wrong with it."), "")
    if broken and cells:
        said = f"{len(broken)} files could not be read and are left out: {_some(broken, '; ')}"
        found.say(Finding("broken", "warning", said, "Copy them again, or repeat their measurements."), "")
    if not cells and broken:
        raise InputError(broken[0] + (f" (and {len(broken) - 1} more files like it)" if broken[1:] else ""))
    if not cells:
        raise InputError(f"{paths[0] if paths else 'import'}: no results in it; give a result of {detect.KNOWN}")
    cells = _once(cells, found)
    for cell in cells:
        _supply(cell, facts)
        check(cell)
    for run in runs_of(_loaded(cells, found)):
        folder = write(run, out, list(command))
        found.runs.append(folder)
        for cell in run:
            for finding in cell.findings:
                found.say(finding, cell.where, folder)
    return found


def _some(texts: Sequence[str], between: str) -> str:
    return between.join(texts[:_SHOWN]) + (f"{between}and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else "")


def _once(cells: Sequence[Cell], found: Imported) -> list[Cell]:
    """Each measurement once, with its requests where a file has them: tools write one in several formats, and people
    copy files; a copy is no repeat.
    """
    kept: dict[tuple[str, str], Cell] = {}
    for cell in cells:
        if cell.identity is not None:
            before = kept.setdefault((cell.tool, cell.identity), cell)
            if cell.records and not before.records:
                kept[cell.tool, cell.identity] = cell
    copies = [cell for cell in cells if cell.identity and kept[cell.tool, cell.identity] is not cell]
    if copies:
        said = f"the same measurements as in other files, left out: {_some([cell.where for cell in copies], ', ')}"
        found.say(Finding("copies", "info", said, "Nothing is missing: each measurement was read once."), "")
    dropped = {id(cell) for cell in copies}
    return [cell for cell in cells if id(cell) not in dropped]


def _loaded(cells: Sequence[Cell], found: Imported) -> list[Cell]:
    """The cells whose load is told. Raises InputError where none is."""
    bare = [cell for cell in cells if cell.load is None]
    if bare:
        said = f"{bare[0].where}: does not state the load" + (f", nor do {len(bare) - 1} more" if bare[1:] else "")
        remedy = "state it, e.g. --set concurrency=16, --set rate=4 or --set burst=32"
        if len(bare) == len(cells):
            raise InputError(f"{said}; {remedy}")
        found.say(Finding("load_missing", "warning", f"{said}; left out", f"{remedy.capitalize()}."), bare[0].where)
    return [cell for cell in cells if cell.load is not None]


def _parse_given(pairs: Sequence[str]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign or name.strip() not in SETTABLE or not value.strip():
            raise InputError(f"--set {pair!r}: write NAME=VALUE, with NAME one of {', '.join(SETTABLE)}")
        found[name.strip()] = value.strip()
    for name in (*table.COUNTS, "input", "output"):
        if name in found and not whole(found[name]):
            raise InputError(f"--set {name}={found[name]}: must be a whole number of at least 1")
    for name in table.LOADS:
        if name in found and positive(found[name]) is None:
            raise InputError(f"--set {name}={found[name]}: must be a number above 0")
    if found.get("prefix_cache", "on") not in ("on", "off"):
        raise InputError(f"--set prefix_cache={found['prefix_cache']}: write on or off")
    return found


def _supply(cell: Cell, facts: Mapping[str, str]) -> None:
    """Facts that the user gives go before what the file says: it may be wrong, and the user was there."""
    cell.deployment |= {name: text(facts[name], 120) for name in table.FACTS if name in facts}
    cell.deployment |= {name: whole(facts[name]) for name in table.COUNTS if name in facts}
    for kind in table.LOADS:
        if kind in facts:
            cell.load = Load(kind, positive(facts[kind]) or 1.0)  # type: ignore[arg-type]
    # One name for one thing, as simulated runs have them: SQL over many runs groups by these.
    engine, gpu = (cell.deployment.get(name) for name in ("engine", "gpu"))
    if engine:
        cell.deployment["engine"] = engine_name(engine)
    if gpu:
        cell.deployment["gpu"] = (gpu_name(gpu) or gpu).lower()
    if {"input", "output", "range_ratio"} & facts.keys():
        cell.workload |= lengths(facts.get("input"), facts.get("output"), facts.get("range_ratio"))
    if "prefix" in facts:
        cell.workload["prefix_tokens"] = whole(facts["prefix"])
    if "prefix_cache" in facts:
        cell.prefix_cache = facts["prefix_cache"] == "on"
    if "label" in facts:
        cell.label = text(facts["label"], 120)
    if cell.load is None and (rate := _rate_per_s(cell)) is not None:
        cell.load = Load("rate", rate)
        cell.say(
            "load_not_told",
            "warning",
            f"{cell.where}: does not state the load; the {rate:.4g} requests/s observed are used instead",
            "State it, e.g. --set concurrency=16 or --set rate=4.",
        )


def _rate_per_s(cell: Cell) -> float | None:
    """(sends − 1)/(last − first send) of the requests, else what was answered per second."""
    sent = sorted(record.sent_s for record in cell.records if record.sent_s is not None)
    if not cell.relative and len(sent) > 1 and sent[-1] > sent[0]:
        return (len(sent) - 1) / (sent[-1] - sent[0])
    return positive(cell.totals.get("requests_per_s"))
