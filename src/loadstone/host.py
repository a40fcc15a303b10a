"""The machine a run is made on: what somebody who repeats it would want to know, and where things are kept on it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
from pathlib import Path
from typing import Any

_LIBRARIES = ("httptools", "msgspec", "numpy", "pyarrow", "uvloop")


def describe() -> dict[str, Any]:
    """Processor, cores, memory (bytes), kernel, Python, library versions, file limit, load. No host or user name."""
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "libraries": {name: _version(name) for name in _LIBRARIES},
        "open_files_limit": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        "load_average": os.getloadavg()[0],
    }


def path_of(given: str | os.PathLike[str]) -> Path:
    """As a path, a leading ~ as the home folder: pyarrow takes it for that, and no shell has done so before Python.

    Raises TypeError where it is none.
    """
    path = Path(given)
    try:
        return path.expanduser()
    except RuntimeError:  # ~name of nobody here: the name of a file
        return path


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/loadstone; the XDG rules say to ignore a relative path there."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "loadstone"


def config_folder() -> Path:
    """$XDG_CONFIG_HOME/loadstone, likewise."""
    base = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".config") / "loadstone"


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
