"""Gives run folders of whatever a user names: runs as they are, other tools' results imported for
the moment."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from loadstone.core.errors import InputError
from loadstone.core.files import TemporaryFolder


class Folders(NamedTuple):
    """`runs`: run folders, and folders of them. `passed_over`: results that were not imported, a
    line each."""

    runs: list[Path]
    passed_over: list[str]


@contextlib.contextmanager
def run_folders(paths: Sequence[Path], given: Sequence[str] = ()) -> Iterator[Folders]:
    """Yield folders that can be read as runs until the block ends. Raises InputError, one line.

    A file, or a folder of files without a run, is another tool's results; `given` are facts that
    these do not tell (NAME=VALUE, see import_files).
    """
    files = [path for path in paths if _is_results(path)]
    runs = [path for path in paths if path not in files]
    if not files:
        if given:
            raise InputError(
                "--set: only for other tools' results, and none was named; run folders hold their"
                " own facts"
            )
        yield Folders(runs, [])
        return
    from loadstone.interop.read import import_files

    with TemporaryFolder() as scratch:
        facts = [word for fact in given for word in ("--set", fact)]
        command = ["loadstone", "import", *map(str, files), *facts]
        imported = import_files(files, scratch, given=given, command=command)
        # The findings of a run stand in its verdict.
        passed_over = [
            finding["evidence"] for finding in imported.findings if finding["run"] is None
        ]
        yield Folders([*runs, *imported.runs], passed_over)


def _is_results(path: Path) -> bool:
    """Return True if it is another tool's: a file, or a folder of files without a run."""
    if not path.is_dir() or next(path.rglob("run.json"), None) is not None:
        return path.is_file()
    from loadstone.interop.read.listing import list_files

    return bool(list_files([path]))
