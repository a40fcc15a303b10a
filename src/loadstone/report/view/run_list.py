"""List the runs, and what is known of each. Looks again each time it is asked; reads only what
changed.

A run is known by a key, never by a path: what a browser sends is looked up among the keys found
here, and nothing else is opened. Links that lead out of the folders that were named are refused,
and so is whatever is no plain file.
"""

import hashlib
import os
import re
import shlex
import stat
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import msgspec

from loadstone.analyse.run_facts import run_facts
from loadstone.analyse.stored_run import StoredRun
from loadstone.core import run_folder
from loadstone.core import summary as summaries
from loadstone.core.errors import InputError
from loadstone.core.record import RunInfo
from loadstone.core.summary import Summary
from loadstone.core.text import excerpt
from loadstone.report.data.points import CellPoint, points_of
from loadstone.report.data.series import workload_label
from loadstone.report.data.wording import clean, join
from loadstone.report.pages.tables import stated_cells, trust

State = Literal["running", "done", "interrupted", "failed", "cut off", "no summary", "unreadable"]
Signature = tuple[tuple[int, int, int] | None, ...]

FRESH_S = 30.0
"""A run that says `running` and was written to within this time is believed, even if nobody holds
its journals: workers come before journals, and the records are made after them."""
_PAPERS_BYTES = 64 * 1024 * 1024
_SUMMARY_BYTES = 32 * 1024 * 1024
"""More than any run's; a file beyond is not opened for a list."""
_PARTS = ("run.json", run_folder.OWNER, "plan.parquet", "records.parquet", "summary.json")
_CELLS = "cells"
"""A study's folder of the folders of its cells, which hold the runs."""
_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,150}")


class RunRow(msgspec.Struct, kw_only=True):
    """A run as a list shows it, in harmless text. Numbers are of its cells; None or "" where nobody
    said.

    why                  what is wrong with it, one line
    trusted              (trusted cells, cells)
    stated               all cells are as another tool stated them, without requests to judge by
    output_tokens_per_s  the highest of its cells; ttft_p99_s, tpot_p99_s: of that cell
    slo                  (cells that meet their bounds, cells that have some)
    group                the study, or the search for the highest load, that it is part of
    probes               names of the runs of a search, of the one that its answer is about
    """

    key: str
    folder: Path
    name: str
    state: State
    why: str = ""
    created: str = ""
    source: str = ""
    engine: str = ""
    deployment: str = ""
    workload: str = ""
    loads: str = ""
    trusted: tuple[int, int] = (0, 0)
    stated: bool = False
    output_tokens_per_s: float | None = None
    ttft_p99_s: float | None = None
    tpot_p99_s: float | None = None
    slo: tuple[int, int] = (0, 0)
    search: str = ""
    group: str = ""
    probes: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        return f"/runs/{quote(self.key, safe='~')}"

    @property
    def comparable(self) -> bool:
        return self.state not in ("unreadable", "running", "cut off")

    @property
    def trust(self) -> str:
        """The number of its cells that are trusted, in words."""
        return trust(self.trusted, self.stated) if self.trusted[1] else "-"

    @property
    def live(self) -> bool:
        """True if there are journals to see, and no records yet."""
        return self.state in ("running", "cut off")


class RunList:
    """The runs in `roots`, each a run folder or a folder of them. Raises InputError where one is
    not there."""

    def __init__(self, roots: Sequence[Path]) -> None:
        for root in roots:
            if not root.is_dir():
                raise InputError(f"{root}: no such folder; name a folder of runs, or a run")
        self._roots = list(dict.fromkeys(root.resolve() for root in roots))
        self._known: dict[str, tuple[Signature, RunRow]] = {}
        self._lock = threading.Lock()

    def rows(self) -> list[RunRow]:
        """Return all runs, the newest first."""
        with self._lock:
            rows = [self._look(key, folder, root) for key, folder, root in self._folders()]
            present = {row.key for row in rows}
            self._known = {key: entry for key, entry in self._known.items() if key in present}
        searches = {name: f"search {row.name}" for row in rows for name in row.probes}
        for row in rows:
            row.group = _study_of(row.folder) or searches.get(row.name, "")
        return sorted(rows, key=lambda row: (row.created, row.key), reverse=True)

    def find(self, key: str) -> RunRow | None:
        """Return the run of this key, as it is now."""
        with self._lock:
            return next(
                (self._look(k, folder, root) for k, folder, root in self._folders() if k == key),
                None,
            )

    def _folders(self) -> Iterator[tuple[str, Path, Path]]:
        """Return (key, folder, what its links must stay within)."""
        seen = set()
        for number, root in enumerate(self._roots):
            for folder in [root] if _is_run(root) else _runs_in(root):
                if folder not in seen:
                    seen.add(folder)
                    yield _key(folder.name, number), folder, root
            for folder in _study_runs(root):
                yield _key(str(folder.relative_to(root)), number), folder, root

    def _look(self, key: str, folder: Path, root: Path) -> RunRow:
        why = leads_out(folder, root)
        if why:
            return _unreadable(key, folder, why)
        current = signature(folder, ("run.json", "summary.json"))
        previous = self._known.get(key)
        row = (
            previous[1]
            if previous is not None and previous[0] == current
            else self._read(key, folder)
        )
        self._known[key] = current, row
        if row.state == "running" and not is_written_to(folder):
            command = clean(f"loadstone recover {shlex.quote(str(folder))}", 300)
            return msgspec.structs.replace(
                row, state="cut off", why=f"the run was cut off; to finish it: {command}"
            )
        return row

    def _read(self, key: str, folder: Path) -> RunRow:
        try:
            return _row(key, folder)
        except InputError as error:
            why = str(error)
        except Exception as error:
            # A file of another's making may be wrong in ways nobody thought of: one bad run is one
            # bad line.
            why = f"cannot be read ({type(error).__name__}: {error})"
        return _unreadable(key, folder, clean(why, 300))


def _unreadable(key: str, folder: Path, why: str) -> RunRow:
    name = _name(folder)
    return RunRow(key=key, folder=folder, name=name, state="unreadable", why=why, search=name)


def _row(key: str, folder: Path) -> RunRow:
    _check_size(folder / "run.json", _PAPERS_BYTES)
    info = run_folder.read_info(folder)
    summary, why = _summary(folder, info)
    facts = run_facts(info, summary)
    runs = (
        [StoredRun(folder=folder, info=info, summary=summary, facts=facts)]
        if summary is not None
        else []
    )
    points, stated = points_of(runs), stated_cells(runs)
    busiest = max(points, key=lambda point: point.output_tokens_per_s or 0.0, default=None)
    bounded = [point.slo_met for point in points if point.slo_met is not None]
    state: State = info.status if info.status == "running" or not why else "no summary"
    sealed = info.marks or not run_folder.find_changed(folder, info.marks, info.status)
    problems = [why if state == "no summary" else "", clean(info.error or "", 300)]
    problems += [] if sealed else ["not sealed, and perhaps changed since"]
    first = points[0] if points else None
    row = RunRow(
        key=key,
        folder=folder,
        name=_name(folder),
        state=state,
        why=join(*problems, by="; "),
        created=clean(info.created, 25),
        source=info.source,
        engine=clean(facts.engine or "unknown", 60),
        deployment=clean(facts.label, 160),
        workload=workload_label(first) if first is not None else "",
        loads=_loads(info, points),
        trusted=(sum(point.trusted for point in points), len(points)),
        stated=stated == len(points) > 0,
        slo=(sum(bounded), len(bounded)),
        probes=_probes(info),
    )
    if busiest is not None:
        row.output_tokens_per_s = busiest.output_tokens_per_s
        row.ttft_p99_s = busiest.ttft.p99 if busiest.ttft is not None else None
        row.tpot_p99_s = busiest.tpot.p99 if busiest.tpot is not None else None
    row.search = " ".join(
        [row.name, row.deployment, row.source, row.state, row.workload, row.loads]
    ).casefold()
    return row


def _probes(info: RunInfo) -> tuple[str, ...]:
    found = info.settings.find_max
    return tuple(clean(name, 120) for name in found.runs) if found is not None else ()


def _summary(folder: Path, info: RunInfo) -> tuple[Summary | None, str]:
    """Read summary.json; None, and why, if it cannot be used."""
    path = folder / "summary.json"
    if not path.exists():
        return None, "it has no summary yet"
    _check_size(path, _SUMMARY_BYTES)
    changed = run_folder.find_changed(folder, info.marks) if info.marks else []
    if changed:
        return None, f"{changed[0]} was changed after it was written"
    try:
        return summaries.read(folder), ""
    except InputError as error:
        return None, f"summary.json cannot be read ({clean(str(error), 100)})"


def _check_size(path: Path, limit: int) -> None:
    try:
        size = path.stat().st_size
    except OSError:
        return  # who reads it says so
    if size > limit:
        raise InputError(f"{path.name}: {size} bytes are too many for one")


def _loads(info: RunInfo, points: Iterable[CellPoint]) -> str:
    """Write `concurrency 1, 4, 16`, of what ran; of what was planned where nothing did."""
    loads = [(point.kind, point.load) for point in points] or [
        (cell.load.kind, cell.load.value) for cell in info.cells
    ]
    kinds = list(dict.fromkeys(kind for kind, _ in loads))
    values = [f"{value:g}" for _, value in loads]
    shown = ", ".join(values if len(values) <= 8 else [*values[:6], "…", values[-1]])
    return f"{'/'.join(kinds)} {shown}" if loads else ""


# --- folders and files ----------------------------------------------------------------------------


def _is_run(folder: Path) -> bool:
    return any(os.path.lexists(folder / name) for name in _PARTS)


def _runs_in(root: Path) -> list[Path]:
    try:
        folders = sorted(root.iterdir())
    except OSError:
        return []
    return [folder for folder in folders if _is_run(folder)]


def _study_runs(root: Path) -> Iterator[Path]:
    """Return the runs of the studies in a folder, or of the study that it is; none that a link
    leads to."""
    try:
        places = [
            root,
            *sorted(folder for folder in root.iterdir() if folder.is_dir() and not _is_run(folder)),
        ]
        for place in places:
            cells = place / _CELLS
            if cells.is_dir() and cells.resolve() == root.resolve() / cells.relative_to(root):
                for cell in sorted(
                    folder
                    for folder in cells.iterdir()
                    if folder.is_dir() and not folder.is_symlink()
                ):
                    yield from _runs_in(cell)
    except OSError:
        return


def _study_of(folder: Path) -> str:
    cells = folder.parent.parent
    return f"study {_name(cells.parent)}" if cells.name == _CELLS else ""


def _key(name: str, root: int) -> str:
    """Return a name for URLs: the folder's where that is plain, else a digest; `~2` if it is of the
    second folder named.
    """
    plain = (
        name
        if _KEY.fullmatch(name)
        else f"run-{hashlib.sha256(os.fsencode(name)).hexdigest()[:12]}"
    )
    return plain if root == 0 else f"{plain}~{root + 1}"


def _name(folder: Path) -> str:
    return excerpt(os.fsencode(folder.name), 120)


def leads_out(folder: Path, root: Path) -> str:
    """Say why this folder is not to be opened: something in it is a link out of `root`, or no plain
    file; else ""."""
    if folder.is_symlink() and not _is_within(folder, root):
        return "refused: a link that leads out of the folder of runs"
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_symlink() and not _is_within(Path(entry.path), root):
                    return (
                        f"refused: {clean(entry.name)} is a link that leads out of the folder of"
                        " runs"
                    )
                try:
                    mode = entry.stat().st_mode
                except FileNotFoundError:
                    continue  # went meanwhile: journals do
                if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                    return f"refused: {clean(entry.name)} is not a regular file"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return ""


def _is_within(path: Path, root: Path) -> bool:
    try:
        return path.resolve().is_relative_to(root)
    except (OSError, RuntimeError):  # a circle of links
        return False


def signature(folder: Path, names: Iterable[str]) -> Signature:
    """Give what changes when one of these files does."""
    signatures: list[tuple[int, int, int] | None] = []
    for name in names:
        try:
            seen = (folder / name).stat()
        except OSError:
            signatures.append(None)
            continue
        signatures.append((seen.st_mtime_ns, seen.st_size, seen.st_ino))
    return tuple(signatures)


def is_written_to(folder: Path) -> bool:
    """Tell whether somebody is at work on this run: its owner or a worker holds a lock, or a file
    is new."""
    newest_s = 0.0
    for path in [*folder.glob("journal-*.arrow"), folder / run_folder.OWNER, folder / "run.json"]:
        try:
            newest_s = max(newest_s, path.stat().st_mtime)
            if path.name != "run.json" and run_folder.is_held(path):
                return True
        except OSError:
            continue
    return time.time() - newest_s < FRESH_S
