"""Reading runs for a report: their papers, their summaries, whether measured, simulated or
imported."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from loadstone.analyse.stored_run import StoredRun, read_run
from loadstone.core.errors import InputError


def read_runs(paths: Sequence[Path]) -> tuple[list[StoredRun], list[str]]:
    """Return the runs in these folders, each a run or a folder of runs, by their start; and what
    could not be read.

    Raises InputError where a run that was named itself cannot be read, and where there is none at
    all.
    """
    runs: list[StoredRun] = []
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
        why = f" ({passed_over[0]})" if passed_over else ""
        raise InputError(
            f"{paths[0] if paths else 'runs'}: no run that can be read{why}; name run folders"
        )
    return sorted(runs, key=lambda run: (run.info.created, run.info.run_id)), passed_over


def _folders(path: Path) -> Iterable[Path]:
    files = (list(path.glob("*/run.json")) or path.glob("*/*/run.json")) if path.is_dir() else []
    folders = sorted(file.parent for file in files)  # of a study's cells, each has a folder of runs
    if not folders:
        raise InputError(
            f"{path}: neither a run folder nor a folder of run folders; give one, or other tools'"
            " result files"
        )
    return folders
