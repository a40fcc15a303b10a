"""Looks at what this machine has for launching, measuring and keeping runs, and says what to
install: `loadstone doctor`. It starts no engine and changes nothing.
"""

import os
import re
import resource
import shutil
import socket
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from loadstone.analyse import client_accuracy
from loadstone.catalogue.engines import engine_title
from loadstone.core import host
from loadstone.core.errors import InputError
from loadstone.core.gpu_metrics import reasons_in
from loadstone.engines.llama_cpp import LlamaCpp
from loadstone.engines.table import engine_tables
from loadstone.measure.client.clock import ask_for_stamps
from loadstone.measure.engines import llama_cpp
from loadstone.measure.nvml import Gpus

_PLACES = {
    "containers": "docker podman apptainer enroot",
    "schedulers": "sbatch kubectl dstack ray",
}
_EXTRA = re.compile(r"([\w.-]+).*;.*extra == ['\"](?!all|dev|docs)(\w+)['\"]")
_LACKING = re.compile("no|.* missing$")
_OPEN_FILES = 4096
"""Files for some thousand connections at once, which users ask for."""
_GIB = 1 << 30


class DoctorCheck(NamedTuple):
    """One thing that was looked at: `found`, and what to do where it is not as it should be.
    `state`: ok, missing or warning."""

    group: str
    name: str
    state: str
    found: str
    remedy: str | None = None


def examine(out: Path) -> list[DoctorCheck]:
    """Look at everything. `out`: where runs are to be kept."""
    groups = (_host(), _client(), _gpus(), _engines(), _extras(), _folders(out))
    return [
        DoctorCheck(
            group,
            name,
            "ok" if do is None else "missing" if _LACKING.match(found) else "warning",
            found,
            do,
        )
        for group, checks in zip(
            ("host", "client", "GPUs", "engines", "extras", "folders"), groups, strict=True
        )
        for name, found, do in checks
    ]


_Checks = Iterator[tuple[str, str, str | None]]
"""Of a group: names, what was found, and what to do."""


def _host() -> _Checks:
    about = host.describe()
    memory = f"{(about.memory_bytes or 0) / _GIB:.0f} GiB"
    yield "machine", f"{about.cpu}, {about.cores} cores, {memory}, {about.system}", None
    busy = (about.load_average or 0) > max(1.0, 0.5 * (about.cores or 1))
    remedy = "measure when nothing else runs: it delays the client" if busy else None
    yield "load", f"{about.load_average:.1f} processes ran in the last minute", remedy


def _client() -> _Checks:
    with socket.socket() as sock:
        stamped = ask_for_stamps(sock)
    yield (
        "clock",
        "kernel" if stamped else "user",
        None if stamped else "use Linux, whose kernel dates what arrives",
    )
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield (
        "open files",
        f"{soft:,} of at most {hard:,}",
        f"ulimit -n {hard}" if soft < _OPEN_FILES else None,
    )
    tested = client_accuracy.load() is not None
    yield (
        "self-test",
        "runs quote it" if tested else "none of this host",
        None if tested else "loadstone selftest",
    )


def _gpus() -> _Checks:
    try:
        gpus = Gpus()
    except InputError as error:
        problem, _, remedy = str(error).removeprefix("GPU telemetry: ").partition("; ")
        yield "NVIDIA", problem, remedy
        return
    with gpus:
        values = {
            (reading.gpu, reading.name.partition(":")[2]): reading.value for reading in gpus.read()
        }
        for gpu in gpus.describe():
            clock, held_by, used = (
                values.get((gpu.gpu, name), 0.0)
                for name in ("sm_clock_mhz", "clock_reasons", "memory_used_bytes")
            )
            held = sorted(set(reasons_in(held_by)) - {"idle"})
            do = f"its clock is held down by {', '.join(held)}" if held else None
            do = f"{used / _GIB:.0f} GiB are in use: end what has them" if used > _GIB else do
            limits = (
                f"clock {clock:.0f} of {gpu.sm_clock_max_mhz or 0:.0f} MHz, limit"
                f" {gpu.power_limit_w or 0:.0f} W"
            )
            yield f"GPU {gpu.gpu}", f"{gpu.name}, {limits}, driver {gpus.driver}", do


def _engines() -> _Checks:
    for engine, table in engine_tables().items():
        if table.program:
            path = shutil.which(table.program) or (
                llama_cpp.find() if engine == LlamaCpp.name else None
            )
            yield (
                engine_title(engine),
                str(path or f"no {table.program}"),
                None if path else table.install,
            )
    for name, programs in _PLACES.items():
        found = ", ".join(filter(shutil.which, programs.split()))
        yield (
            name,
            found or "none",
            None if found else f"one of {programs.replace(' ', ', ')}, if wanted",
        )


def _extras() -> _Checks:
    """Look for the packages that Loadstone's extras would install."""
    for parts in filter(None, map(_EXTRA.match, metadata.requires("loadstone") or ())):
        try:
            yield parts[2], f"{parts[1]} {metadata.version(parts[1])}", None
        except metadata.PackageNotFoundError:
            yield parts[2], f"no {parts[1]}", f"pip install 'loadstone[{parts[2]}]'"


def _folders(out: Path) -> _Checks:
    for name, folder, do in (
        ("cache", host.cache_folder(), "set XDG_CACHE_HOME"),
        ("runs", out.absolute(), "--out"),
    ):
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        free = shutil.disk_usage(existing).free / _GIB
        remedy = None if os.access(existing, os.W_OK) and free > 5 else f"{do}: another"
        yield name, f"{folder}, {free:.0f} GiB free", remedy
