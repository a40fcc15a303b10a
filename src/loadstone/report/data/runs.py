"""Reading runs for a report: their papers, their summaries, whether measured, simulated or imported."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from loadstone.analyse.run_facts import RunFacts, mapping, run_facts
from loadstone.core import RunInfo, run_folder
from loadstone.core.errors import InputError

_SUMMARY_BYTES = 256 * 1024 * 1024


class RunView(msgspec.Struct, kw_only=True):
    """A run as a report sees it. `document`: its summary, as `loadstone bench --json` prints it."""

    folder: Path
    info: RunInfo
    document: dict[str, Any]
    facts: RunFacts

    @property
    def has_records(self) -> bool:
        return (self.folder / "records.parquet").exists()


def read_runs(paths: Sequence[Path]) -> tuple[list[RunView], list[str]]:
    """The runs in these folders, each a run or a folder of runs, by their start; and what could not be read.

    Raises InputError where a run that was named itself cannot be read, and where there is none at all.
    """
    runs: list[RunView] = []
    passed_over: list[str] = []
    seen: set[Path] = set()
    for path in paths:
        named = (path / "run.json").exists()
        for folder in [path] if named else _folders(path):
            if folder.resolve() in seen:
                continue
            seen.add(folder.resolve())
            try:
                runs.append(read_run(folder))
            except InputError as error:
                if named:
                    raise
                passed_over.append(str(error))
    if not runs:
        said = f" ({passed_over[0]})" if passed_over else ""
        raise InputError(f"{paths[0] if paths else 'runs'}: no run that can be read{said}; name run folders")
    return sorted(runs, key=lambda run: (run.info.created, run.info.run_id)), passed_over


def _folders(path: Path) -> Iterable[Path]:
    found = sorted(each.parent for each in path.glob("*/run.json")) if path.is_dir() else []
    if not found:
        raise InputError(
            f"{path}: neither a run folder nor a folder of run folders; give one, or other tools' result files"
        )
    return found


def read_run(folder: Path) -> RunView:
    """One run. Its summary.json where it has one, else computed from its records. Raises InputError.

    A summary of before intervals had regard to how requests depend on one another is computed anew too; what the
    hardware allows is added where it is not told, as in sums that were imported.
    """
    info = run_folder.read_info(folder)
    path = folder / "summary.json"
    document: Any = None
    has_records = (folder / "records.parquet").exists()
    if path.exists():
        if path.stat().st_size > _SUMMARY_BYTES:
            size = path.stat().st_size
            raise InputError(f"{path}: {size} bytes, too large; `loadstone recover {folder}` makes it again")
        try:
            document = msgspec.json.decode(path.read_bytes())
        except (OSError, msgspec.DecodeError, RecursionError) as error:
            raise InputError(
                f"{path}: not a summary ({error}); `loadstone recover {folder}` makes it again"
            ) from error
    if document is None or (has_records and _by_requests(document)):
        from loadstone.analyse.summary import summarise

        document = summarise(folder)
    if not isinstance(document, dict) or not isinstance(document.get("cells"), list):
        raise InputError(f"{path}: not a summary (it has no cells); `loadstone recover {folder}` makes it again")
    document["cells"] = [cell for cell in document["cells"] if isinstance(cell, dict)]
    if any("light" not in cell for cell in document["cells"]):
        from loadstone.analyse.summary import with_roofline
        from loadstone.core.summary import Summary

        document = with_roofline(Summary.of(document), info).document()
    return RunView(folder=folder, info=info, document=document, facts=run_facts(info, document))


def _by_requests(document: Any) -> bool:
    """Whether its intervals take each request for independent: such summaries have none of a mean."""
    cells = mapping(document).get("cells")
    metrics = (mapping(mapping(cell).get("metrics")) for cell in (cells if isinstance(cells, list) else ()))
    found = (mapping(mapping(values).get("ci95")) for each in metrics for values in each.values())
    return any("p50" in bounds and "mean" not in bounds for bounds in found)
