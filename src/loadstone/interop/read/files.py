"""Which files are results: those that were named, and those in folders, but for what others there repeat."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from loadstone.core.errors import InputError
from loadstone.interop.read import aiperf, inference_perf
from loadstone.interop.read.source import printable

_MOST_FILES = 10_000
_SUFFIXES = (".json", ".jsonl", ".csv", ".yaml", ".yml", ".txt")


def files_of(paths: Sequence[Path]) -> list[tuple[Path, str, bool]]:
    """(file, what to call it, whether it was named itself), each once.

    Some tools name all their results alike: what a file is called has its folder, from the one folder that was named
    or that all files are in, else as it was named.
    """
    found: dict[Path, tuple[Path, str, bool]] = {}
    apart = len({path if path.is_dir() else path.parent for path in paths}) > 1
    for path in paths:
        if path.is_dir():
            inside = sorted(one for one in path.rglob("*") if one.suffix in _SUFFIXES and one.is_file())
            if len(inside) > _MOST_FILES:
                raise InputError(f"{path}: {len(inside):,} files; name at most {_MOST_FILES:,}")
            for one in inside:
                if not _told_elsewhere(one):
                    where = printable(one if apart else one.relative_to(path))
                    found.setdefault(one.resolve(), (one, where, False))
        else:
            found[path.resolve()] = (path, printable(path if apart else path.name), True)
    named = {resolved for resolved, (_, _, is_named) in found.items() if is_named}
    # AIPerf's summary and its requests are one result: reading either reads both.
    pairs = {one for one in found if one.name == aiperf.REQUESTS and aiperf.summary_beside(one) in found}
    return [entry for resolved, entry in found.items() if resolved not in pairs or (
        resolved in named and aiperf.summary_beside(resolved) not in named
    )]  # fmt: skip


def _told_elsewhere(path: Path) -> bool:
    """Files of a folder that repeat what others in it say: AIPerf's phases, inference-perf's summary and report."""
    if "phases" in path.parts and path.name.startswith("profile_export"):
        return True
    stages = inference_perf.stages_in(path.parent)
    requests = path.parent / inference_perf.REQUESTS
    if path.name == "summary_lifecycle_metrics.json" or path.name.startswith("inference-perf."):
        return bool(stages)
    # One stage tells its requests' load; with several, none tells which requests are its.
    if path in stages:
        return len(stages) == 1 and requests.exists()
    return path == requests and len(stages) > 1
