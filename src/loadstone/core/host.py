"""Describes the machine of a run for whoever repeats it, and finds the folders where things are
kept on it."""

import math
import os
import platform
import resource
from pathlib import Path

import msgspec

CGROUPS = Path("/sys/fs/cgroup")
_LIBRARIES = ("httptools", "msgspec", "numpy", "pyarrow", "uvloop")


class Host(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """The machine of a client. No host or user name; nothing of a run that another tool's client
    measured.

    cores         that the process might use
    system        kernel, its release, architecture
    libraries     versions by name; None: not installed
    load_average  of the last minute
    """

    cpu: str | None = None
    cores: int | None = None
    memory_bytes: int | None = None
    system: str | None = None
    python: str | None = None
    libraries: dict[str, str | None] = {}
    open_files_limit: int | None = None
    load_average: float | None = None


def describe() -> Host:
    """Describe this machine as it is now."""
    return Host(
        cpu=_cpu(),
        cores=count_processors(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        libraries={name: _version(name) for name in _LIBRARIES},
        open_files_limit=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        load_average=os.getloadavg()[0],
    )


def count_processors() -> int:
    """Count the processors that this process may use: its affinity's, and no more than its
    container's quota comes to.
    """
    allowed = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return max(1, math.ceil(min(allowed, _quota(CGROUPS))))


def _quota(groups: Path) -> float:
    """Read how many processors the control group at `groups` may use, v2 or v1: quota / period;
    infinite where none is set.
    """
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            quota, period = (
                int(word) for name in names for word in (groups / name).read_text("ascii").split()
            )
        except (OSError, ValueError):  # no such file, or "max" in it
            continue
        if quota > 0 and period > 0:
            return quota / period
    return math.inf


def make_path(text: str | os.PathLike[str]) -> Path:
    """Make a path, a leading ~ as the home folder: pyarrow takes it for that, and no shell has done
    so before Python. Where there is no such home it stays as it is, as does what no file can be
    called.

    Raises TypeError where it is none.
    """
    path = Path(text)
    # Path's own raises where there is no home.
    return path if "\0" in str(path) else Path(os.path.expanduser(path))  # noqa: PTH111


def cache_folder() -> Path:
    """Return $XDG_CACHE_HOME/loadstone; the XDG rules say to ignore a relative path there."""
    return _xdg("XDG_CACHE_HOME", ".cache")


def config_folder() -> Path:
    """Return $XDG_CONFIG_HOME/loadstone, likewise."""
    return _xdg("XDG_CONFIG_HOME", ".config")


def _xdg(variable: str, usual: str) -> Path:
    base = Path(os.environ.get(variable, ""))
    return (base if base.is_absolute() else Path.home() / usual) / "loadstone"


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def _version(name: str) -> str | None:
    from importlib.metadata import (
        PackageNotFoundError,
        version,
    )  # a fifth of what `loadstone --help` takes

    try:
        return version(name)
    except PackageNotFoundError:
        return None
