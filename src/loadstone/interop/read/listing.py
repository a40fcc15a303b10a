"""Chooses the files of a folder that are results, and says what they are called."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from loadstone.core.errors import InputError
from loadstone.interop.read.detect import load_readers
from loadstone.interop.read.files import printable

_MAX_FILES = 10_000
_SUFFIXES = (".json", ".jsonl", ".csv", ".yaml", ".yml", ".txt")


class ListedFile(NamedTuple):
    """A file, what findings call it, and whether it was named itself."""

    path: Path
    where: str
    named: bool


def list_files(paths: Sequence[Path]) -> list[ListedFile]:
    """List the files to read, each once.

    Some tools name all their results alike: what a file is called has its folder, from the one
    folder that was named or that all files are in, else as it was named.
    """
    listed: dict[Path, ListedFile] = {}
    apart = len({path if path.is_dir() else path.parent for path in paths}) > 1
    for path in paths:
        if not path.is_dir():
            where = printable(path if apart else path.name)
            listed[_follow_links(path)] = ListedFile(path, where, True)
            continue
        found = sorted(
            file for file in path.rglob("*") if file.suffix in _SUFFIXES and file.is_file()
        )
        if len(found) > _MAX_FILES:
            raise InputError(f"{path}: {len(found):,} files; name at most {_MAX_FILES:,}")
        for file in found:
            if not any(reader.is_part(file) for reader in load_readers()):
                where = printable(file if apart else file.relative_to(path))
                listed.setdefault(_follow_links(file), ListedFile(file, where, False))

    def is_second(file: Path, named: bool) -> bool:
        """Tell whether reading another file reads this one with it, unless it alone was named."""
        for reader in load_readers():
            whole = reader.read_with(file)
            if whole in listed and (listed[whole].named or not named):
                return True
        return False

    return [file for path, file in listed.items() if not is_second(path, file.named)]


def _follow_links(path: Path) -> Path:
    """Follow links. Not Path.resolve(), which fails where links go in a circle."""
    return Path(os.path.realpath(path))
