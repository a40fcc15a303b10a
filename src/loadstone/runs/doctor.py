"""Looks at what this machine has for launching, measuring and keeping runs, and says what to install: `loadstone
doctor`. It starts no engine and changes nothing.
"""

from __future__ import annotations

import os
import resource
import shutil
import socket
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import msgspec

from loadstone.analyse import client_accuracy
from loadstone.catalogue.engines import engine_title
from loadstone.catalogue.find import match_gpu
from loadstone.core import host
from loadstone.core.errors import InputError
from loadstone.core.nvml import Gpus, reasons_in
from loadstone.measure.client.clock import ask_for_stamps
from loadstone.measure.engines import llama_cpp

_PROGRAMS = {
    "vllm": ("vllm", "pip install vllm"),
    "sglang": ("sglang", "pip install sglang"),
    "tensorrt-llm": ("trtllm-serve", "use NVIDIA's image, or pip install tensorrt-llm"),
    "triton": ("tritonserver", "use NVIDIA's image nvcr.io/nvidia/tritonserver"),
}
_PLACES = {
    "containers": ("docker", "podman", "apptainer", "enroot"),
    "schedulers": ("sbatch", "kubectl", "dstack", "ray"),
}
_EXTRAS = {
    "gpu": ("pynvml", "power, clocks and energy of NVIDIA GPUs"),
    "tokenizers": ("tokenizers", "exact token counts of texts"),
    "triton": ("tritonclient", "Triton over gRPC"),
    "ssh": ("asyncssh", "studies on other machines"),
    "ray": ("ray", "clients on several machines, and Ray's clusters"),
}
_OPEN_FILES = 4096
"""Files for some thousand connections at once, which users ask for."""
_FREE_BYTES = 5 << 30
_GIB = 1 << 30

State = Literal["ok", "missing", "warning"]


class DoctorCheck(msgspec.Struct, frozen=True):
    """One thing that was looked at: `found`, and what to do where it is not as it should be."""

    group: str
    name: str
    state: State
    found: str
    remedy: str | None = None


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """What was found, as `loadstone doctor --json` prints it."""

    schema: int = 1
    checks: list[DoctorCheck]


def examine(out: Path = Path("runs")) -> Diagnosis:
    """Look at everything. `out`: where runs are to be kept."""
    return Diagnosis(checks=[*_host(), *_client(), *_gpus(), *_engines(), *_extras(), *_folders(out)])


def _host() -> Iterator[DoctorCheck]:
    about = host.describe()
    memory = f"{(about.memory_bytes or 0) / _GIB:.0f} GiB"
    yield DoctorCheck("host", "machine", "ok", f"{about.cpu}, {about.cores} cores, {memory}, {about.system}")
    busy = about.load_average is not None and about.load_average > max(1.0, 0.5 * (about.cores or 1))
    remedy = "measure when nothing else runs: other processes delay the client" if busy else None
    found = f"{about.load_average:.1f} processes ran in the last minute"
    yield DoctorCheck("host", "load", "warning" if busy else "ok", found, remedy)
    files = Path("/sys/devices/system/cpu").glob("cpu*/cpufreq/scaling_governor")
    governors = {path.read_text().strip() for path in files}
    if governors:
        slow = governors != {"performance"}
        remedy = "cpupower frequency-set -g performance" if slow else None
        yield DoctorCheck("host", "CPU clock", "warning" if slow else "ok", ", ".join(sorted(governors)), remedy)


def _client() -> Iterator[DoctorCheck]:
    with socket.socket() as sock:
        stamped = ask_for_stamps(sock)
    remedy = None if stamped else "use Linux: elsewhere the client's own clock dates what arrives"
    yield DoctorCheck("client", "clock", "ok" if stamped else "warning", "kernel" if stamped else "user", remedy)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = soft < _OPEN_FILES
    remedy = f"ulimit -n {min(hard, 65536) if hard > 0 else 65536}" if few else None
    yield DoctorCheck("client", "open files", "warning" if few else "ok", f"{soft:,} of at most {hard:,}", remedy)
    tested = client_accuracy.load() is not None
    found = "runs quote this host's" if tested else "none of this host"
    remedy = None if tested else "loadstone selftest"
    yield DoctorCheck("client", "self-test", "ok" if tested else "missing", found, remedy)


def _gpus() -> Iterator[DoctorCheck]:
    try:
        gpus = Gpus()
    except InputError as error:
        problem, _, remedy = str(error).removeprefix("GPU telemetry: ").partition("; ")
        yield DoctorCheck("GPUs", "NVIDIA", "missing", problem, remedy)
        return
    with gpus:
        values = {(each.gpu, each.name.partition(":")[2]): each.value for each in gpus.read()}
        for gpu in gpus.describe():
            clock, most = values.get((gpu.gpu, "sm_clock_mhz")), gpu.sm_clock_max_mhz
            known = "" if match_gpu(gpu.name) else ", not in the catalogue"
            parts = [
                f"{gpu.name}{known}",
                f"{gpu.memory_bytes / _GIB:.0f} GiB" if gpu.memory_bytes else "",
                f"clock {clock:.0f} of {most:.0f} MHz" if clock and most else "",
                f"limit {gpu.power_limit_w:.0f} W" if gpu.power_limit_w else "",
                f"driver {gpus.driver}",
            ]
            held = set(reasons_in(values.get((gpu.gpu, "clock_reasons"), 0))) - {"idle"}
            used = values.get((gpu.gpu, "memory_used_bytes"), 0) / _GIB > 1
            remedy = f"its clock is held down: {', '.join(sorted(held))}" if held else None
            remedy = "another process has its memory; end it before an engine starts" if used else remedy
            state: State = "warning" if remedy else "ok"
            yield DoctorCheck("GPUs", f"GPU {gpu.gpu}", state, ", ".join(filter(None, parts)), remedy)


def _engines() -> Iterator[DoctorCheck]:
    for engine, (program, install) in _PROGRAMS.items():
        path = shutil.which(program)
        remedy = None if path else install
        yield DoctorCheck(
            "engines", engine_title(engine), "ok" if path else "missing", path or f"no {program}", remedy
        )
    llama = llama_cpp.find()
    remedy = "`loadstone bench --engine llama.cpp` fetches it on Debian" if llama is None else None
    found = f"{llama}" if llama else "no llama-server"
    yield DoctorCheck("engines", "llama.cpp", "ok" if llama else "missing", found, remedy)
    for group, programs in _PLACES.items():
        there = [program for program in programs if shutil.which(program)]
        found = ", ".join(there) or f"none of {', '.join(programs)}"
        yield DoctorCheck("engines", group, "ok" if there else "missing", found)


def _extras() -> Iterator[DoctorCheck]:
    for extra, (module, what) in _EXTRAS.items():
        there = find_spec(module) is not None
        remedy = None if there else f"pip install 'loadstone[{extra}]'"
        yield DoctorCheck("extras", extra, "ok" if there else "missing", what, remedy)


def _folders(out: Path) -> Iterator[DoctorCheck]:
    for name, folder in (("cache", host.cache_folder()), ("runs", out.absolute())):
        there = next(path for path in (folder, *folder.parents) if path.exists())
        free = shutil.disk_usage(there).free
        writable = os.access(there, os.W_OK)
        little = free < _FREE_BYTES
        remedy = "choose another: XDG_CACHE_HOME" if name == "cache" else "choose another with --out"
        state: State = "ok" if writable and not little else "warning"
        found = f"{folder}, {free / _GIB:.0f} GiB free{'' if writable else ', cannot be written'}"
        yield DoctorCheck("folders", name, state, found, None if state == "ok" else remedy)
