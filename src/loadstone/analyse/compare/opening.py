"""From what a user names to the runs of both sides: run folders, or folders of repeats; no run twice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from loadstone.analyse.compare.price import Prices
from loadstone.analyse.compare.setup import differences
from loadstone.analyse.compare.sides import Run, load_key, open_run
from loadstone.core.errors import InputError

MOST_RUNS = 1000
_OF_REPEATS = ("seed", "plan", "client host", "loadstone")
"""What repeats of one run may differ in."""


def open_sides(a: Sequence[Path], b: Sequence[Path], prices: Prices) -> tuple[list[Run], list[Run]]:
    """The runs of both sides, each a run folder, or a folder that holds repeats of one run and nothing else.

    Raises InputError where one cannot be read or holds nothing, or a run is named twice, however it is spelled.
    """
    held = [[(path, _runs_in(path)) for path in paths] for paths in (a, b)]
    named: dict[tuple[int, int], tuple[str, Path]] = {}
    for side, each in zip("AB", held, strict=True):
        folders = [folder for _, found in each for folder in found]
        if not folders:
            raise InputError("compare: one side has no run; write RUN_A RUN_B, repeats with commas: A1,A2 B1,B2")
        if len(folders) > MOST_RUNS:
            raise InputError(f"{len(folders)} runs on a side: at most {MOST_RUNS}; compare fewer")
        for folder in folders:
            _name(folder, side, named)
    sides = [[run for path, found in each for run in _opened(path, found, prices)] for each in held]
    return sides[0], sides[1]


def _runs_in(path: Path) -> list[Path]:
    """The run folder itself, or those in it. Raises InputError where it holds none."""
    if (path / "run.json").exists() or not path.is_dir():
        return [path]
    found = sorted(paper.parent for paper in path.glob("*/run.json"))
    if not found:
        raise InputError(f"{path}: neither a run folder nor a folder of run folders; name a run, e.g. runs/RUN")
    return found


def _name(folder: Path, side: str, named: dict[tuple[int, int], tuple[str, Path]]) -> None:
    """Enters a folder under what it is on its file system. Raises InputError where it is there already."""
    try:
        found = folder.stat()
    except OSError:
        return  # it is told of when it is opened
    key = found.st_dev, found.st_ino
    if key not in named:
        named[key] = side, folder
        return
    before, spelled = named[key]
    where = f"twice on side {side}" if before == side else "on both sides"
    also = f" (also as {spelled})" if str(spelled) != str(folder) else ""
    raise InputError(f"{folder}: the same run {where}{also}; name each once, a repeat is another run")


def _opened(path: Path, folders: Sequence[Path], prices: Prices) -> list[Run]:
    """Raises InputError where a folder of runs holds others than repeats of one."""
    runs = [open_run(folder, prices) for folder in folders]
    told = dict.fromkeys(row["what"] for run in runs[1:] for row in differences(runs[:1], [run]))
    loads = [sorted(repr(load_key(cell["load"])) for cell in run.document["cells"]) for run in runs]
    differ = [what for what in told if what not in _OF_REPEATS] + ["loads"] * any(each != loads[0] for each in loads)
    if differ:
        names = ", ".join(map(str, folders[:3])) + (" …" if len(folders) > 3 else "")
        raise InputError(
            f"{path}: holds {len(runs)} runs that are not repeats of one another ({', '.join(differ[:4])}); "
            f"name the run in it: {names}"
        )
    return runs
