"""Turns results of other tools into run folders, which report and compare take like any other.

A file with its requests gives records; one with sums alone a run without records, whose
summary.json is what the file stated. What a file cannot tell stays missing. docs/import.md says
which tool tells what.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from loadstone.analyse.run_facts import engine_name, gpu_name
from loadstone.core.errors import InputError
from loadstone.core.plan import Load
from loadstone.core.verdict import Finding
from loadstone.interop.read import detect, files, plain_csv
from loadstone.interop.read.cell import ResultCell
from loadstone.interop.read.check import check
from loadstone.interop.read.findings import finding, list_some
from loadstone.interop.read.listing import list_files
from loadstone.interop.read.run_folders import group_runs, write
from loadstone.interop.read.values import (
    COUNTS,
    FACTS,
    Value,
    drop_missing,
    make_lengths,
    model_name,
)

__all__ = ["Imported", "import_files"]

SETTABLE = (
    *FACTS,
    *COUNTS,
    *plain_csv.LOADS,
    "input",
    "output",
    "range_ratio",
    "prefix",
    "prefix_cache",
    "label",
)


class Imported:
    """The result of an import: run folders, and findings, each with the run and cell it is about
    (None: of a file).
    """

    def __init__(self) -> None:
        self.runs: list[Path] = []
        self.findings: list[dict[str, Any]] = []

    def say(self, about: Finding, where: str, run: Path | None = None) -> None:
        place = {"run": str(run) if run is not None else None, "where": where}
        self.findings.append(place | msgspec.to_builtins(about))

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
    """Write run folders in `out` for result files, or for all such in a folder.

    `mapped`: NAME=COLUMN pairs for plain CSV. `given`: NAME=VALUE facts that the files do not tell,
    of SETTABLE. Raises InputError, one line, where a file that was named is of no known kind or
    broken; in a folder such files are passed over, each with a finding.
    """
    names, facts = plain_csv.parse_map(list(mapped)), _parse_given(given)
    imported = Imported()
    cells: list[ResultCell] = []
    unknown: list[str] = []
    broken: list[str] = []
    for path, where, named in list_files(paths):
        try:
            cells += detect.read(path, names, where)
        except InputError as error:
            if named:
                raise
            # What programs print is text too, and may begin with a bracket.
            if isinstance(error, files.NoResult) or path.suffix == ".txt":
                unknown.append(where)
            else:
                broken.append(str(error))
    if not cells and broken:
        raise InputError(
            broken[0] + (f" (and {len(broken) - 1} more files like it)" if broken[1:] else "")
        )
    if not cells:
        begin = paths[0] if paths else "import"
        raise InputError(f"{begin}: no results in it; give a result of {detect.known_tools()}")
    if unknown:
        evidence = f"no results of a known tool, passed over: {list_some(unknown)}"
        imported.say(finding("passed_over", evidence), "")
    if broken:
        evidence = (
            f"{len(broken)} files could not be read and are left out: {list_some(broken, '; ')}"
        )
        imported.say(finding("broken", evidence), "")
    cells = _drop_copies(cells, imported)
    for cell in cells:
        _add_facts(cell, facts)
        check(cell)
    unwritten: list[InputError] = []
    time = datetime.now(UTC)
    for run in group_runs(_keep_loaded(cells, imported)):
        try:
            folder = write(run, out, list(command), time)
        except InputError as error:
            unwritten.append(error)
            imported.say(finding("broken", f"{run[0].where}: left out ({error})"), run[0].where)
            continue
        imported.runs.append(folder)
        for cell in run:
            for found in cell.findings:
                imported.say(found, cell.where, folder)
    if unwritten and not imported.runs:
        raise unwritten[0]
    return imported


def _drop_copies(cells: Sequence[ResultCell], imported: Imported) -> list[ResultCell]:
    """Keep each measurement once, with its requests where a file has them: tools write one in
    several formats, and people copy files; a copy is no repeat.
    """
    first: dict[tuple[str, str, int], ResultCell] = {}
    alike: Counter[tuple[str, str, str]] = Counter()
    copies = []
    for cell in cells:
        name = cell.identity or cell.content
        if cell.identity is None:
            alike[cell.tool, name, cell.file] += 1  # within a file, measurements may come out alike
        key = cell.tool, name, alike[cell.tool, name, cell.file]
        rival = first.setdefault(key, cell)
        if rival is not cell:
            kept, copy = sorted((rival, cell), key=lambda same: (not same.records, not same.label))
            first[key] = kept
            copies.append(copy)
    if copies:
        evidence = (
            "the same measurements as in other files, left out:"
            f" {list_some([cell.where for cell in copies])}"
        )
        imported.say(finding("copies", evidence), "")
    dropped = set(map(id, copies))
    return [cell for cell in cells if id(cell) not in dropped]


def _keep_loaded(cells: Sequence[ResultCell], imported: Imported) -> list[ResultCell]:
    """Keep the cells whose load is stated. Raises InputError where none is."""
    bare = [cell for cell in cells if cell.load is None]
    if bare:
        evidence = f"{bare[0].where}: does not state the load" + (
            f", nor do {len(bare) - 1} more" if bare[1:] else ""
        )
        remedy = "state it, e.g. --set concurrency=16, --set rate=4 or --set burst=32"
        if len(bare) == len(cells):
            raise InputError(f"{evidence}; {remedy}")
        left_out = finding(
            "load_missing", f"{evidence}; left out", remedy=f"{remedy.capitalize()}."
        )
        imported.say(left_out, bare[0].where)
    return [cell for cell in cells if cell.load is not None]


def _parse_given(pairs: Sequence[str]) -> Value:
    facts = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign or name.strip() not in SETTABLE or not value.strip():
            raise InputError(
                f"--set {pair!r}: write NAME=VALUE, with NAME one of {', '.join(SETTABLE)}"
            )
        facts[name.strip()] = value.strip()
    given = Value(facts)
    for name, value in facts.items():
        if name in (*COUNTS, "input", "output") and not given.whole(name):
            raise InputError(f"--set {name}={value}: must be a whole number of at least 1")
        if name in plain_csv.LOADS and given.positive(name) is None:
            raise InputError(f"--set {name}={value}: must be a number above 0")
        if name == "prefix_cache" and value not in ("on", "off"):
            raise InputError(f"--set prefix_cache={value}: write on or off")
    return given


def _add_facts(cell: ResultCell, given: Value) -> None:
    """Add the facts that the user gives; they go before what the file says: it may be wrong, and
    the user was there.
    """
    cell.deployment |= given.fields(*FACTS, *COUNTS)
    cell.load = plain_csv.read_load(given) or cell.load
    # One name for one thing, as simulated runs have them: SQL over many runs groups by these.
    if "model" in cell.deployment:
        cell.deployment["model"] = model_name(cell.deployment["model"])
    engine, gpu = (cell.deployment.get(name) for name in ("engine", "gpu"))
    if engine:
        cell.deployment["engine"] = engine_name(engine)
    if gpu:
        cell.deployment["gpu"] = (gpu_name(gpu) or gpu).lower()
    if {"input", "output", "range_ratio"} & given.raw.keys():
        cell.workload |= make_lengths(
            given.get("input"), given.get("output"), given.get("range_ratio")
        )
    cell.workload |= drop_missing({"prefix_tokens": given.whole("prefix")})
    if given.has("prefix_cache"):
        cell.prefix_cache = given.get("prefix_cache") == "on"
    cell.label = given.text("label", 120) or cell.label
    if cell.load is None:
        # What was sent per second, else what was answered.
        rate = cell.sends_per_s(cell.records) or cell.totals.get("requests_per_s")
        if rate:
            cell.load = Load("rate", rate)
            cell.say(
                "load_not_told",
                f"does not state the load; the {rate:.4g} requests/s observed are used instead",
            )
