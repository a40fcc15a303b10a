"""Reads a GPU or node of the user's own: a small file of YAML or JSON with the fields of the
catalogue's entries.

It is found by its path, or by its name among those in the user's configuration folder. What it says
is others' text: read with bounds, and decoded by the same code as the catalogue's own entries
(find).
"""

from pathlib import Path
from typing import Any

import msgspec

from loadstone.catalogue.hardware import Gpu, Node
from loadstone.core import host
from loadstone.core.errors import InputError
from loadstone.core.files import read_bytes
from loadstone.core.yaml_text import decode_yaml

SUFFIXES = (".yaml", ".yml", ".json")
_MOST_BYTES = 64 << 10
_MOST_FILES = 1000
_LEAST_PER_S = 1e8
"""No link, memory or arithmetic unit is slower: below, a number is in TB/s or TFLOP/s."""
_RATES = ("hbm_bytes_per_s", "link_bytes_per_s", "pair_bytes_per_s", "nic_bytes_per_s")


def is_file(name: str) -> bool:
    """Return whether a name of hardware is a file's: by its ending, so that no other name is looked
    for on disk."""
    return name.strip().lower().endswith(SUFFIXES)


def folder() -> Path:
    return host.config_folder() / "hardware"


def kept() -> dict[str, Path]:
    """Return the files in the user's folder by name, in small letters; none where there is no
    folder."""
    try:
        paths = sorted(path for path in folder().iterdir() if is_file(path.name))
    except OSError:
        return {}
    return {path.stem.lower(): path for path in paths[:_MOST_FILES]}


def read(path: Path) -> dict[str, Any]:
    """Return the entry as it is written, with its `name`: the file's own where it gives none.
    Raises InputError."""
    remedy = "give a GPU or node of the catalogue, or a file that describes one"
    content = read_bytes(path, _MOST_BYTES, remedy)
    # Keys that are merged are repeated, and repeats of repeats have no end that the file's size
    # bounds.
    if b"<<" in content:
        raise InputError(
            f"{path}: YAML's merge key << is not read; name the catalogue's entry as `like`"
        )
    try:
        is_json = path.suffix.lower() == ".json"
        entry = (
            msgspec.json.decode(content) if is_json else decode_yaml(content.decode("utf-8-sig"))
        )
    except (ValueError, RecursionError) as error:  # msgspec's own errors are ValueErrors
        raise InputError(
            f"{path}: not readable ({' '.join(str(error).split())}); write one field a line"
        ) from None
    if not isinstance(entry, dict) or not all(isinstance(key, str) for key in entry):
        raise InputError(f"{path}: no fields; write one a line, e.g. `like: h200`")
    return {"name": path.stem.lower(), **entry}


def check_rates(hardware: Gpu | Node, where: str) -> None:
    """Look for numbers that would be right in another unit. Raises InputError."""
    rates = {name: getattr(hardware, name, None) for name in _RATES}
    if isinstance(hardware, Gpu):
        rates |= {f"flops_per_s.{dtype}": rate for dtype, rate in hardware.flops_per_s.items()}
    for name, rate in rates.items():
        if rate is not None and rate < _LEAST_PER_S:
            raise InputError(
                f"{where}: {name} is {rate:g} per second; write it in full, e.g. 4.8e12 for 4.8"
                " TB/s"
            )
