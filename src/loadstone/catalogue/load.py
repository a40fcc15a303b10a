"""The catalogue's files, and finding things in them by name."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from loadstone.catalogue.hardware import Gpu, Node
from loadstone.catalogue.model import Model
from loadstone.catalogue.reader import read_config, read_path
from loadstone.errors import InputError

GIB = 1 << 30


@cache
def _table(name: str) -> dict[str, dict[str, Any]]:
    try:
        return tomllib.loads(files("loadstone.catalogue").joinpath(f"{name}.toml").read_text("utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{name}.toml of the catalogue: {error}; mend it there") from None


@contextmanager
def _told(file: str, key: str) -> Iterator[None]:
    """What is wrong with an entry that somebody wrote is told in one line. Raises InputError."""
    try:
        yield
    except (msgspec.ValidationError, KeyError, TypeError) as error:
        what = f"lacks {error.args[0]}" if isinstance(error, KeyError) else str(error)
        raise InputError(
            f"{file}.toml of the catalogue, [{key}]: {what}; other entries show what there has to be"
        ) from None


def _by_alias(table: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Every name and alias, in small letters, to the name."""
    found: dict[str, str] = {}
    for name, entry in table.items():
        for alias in (name, *entry.get("aliases", ())):
            found[alias.lower()] = name
    return found


@cache
def gpu_names() -> dict[str, str]:
    """A processor is one more name here: whatever runs a model is a Gpu to what counts."""
    return _by_alias({**_table("gpus"), **_table("hosts")})


@cache
def node_names() -> dict[str, str]:
    return _by_alias(_table("nodes"))


@cache
def model_names() -> dict[str, str]:
    """With the id's last part as one more alias, where nothing else has it."""
    table = _table("models")
    found = _by_alias(table)
    for name in table:
        found.setdefault(name.rpartition("/")[2].lower(), name)
    return found


@cache
def find_gpu(name: str) -> Gpu:
    key = gpu_names().get(name.strip().lower())
    if key is None:
        _missing("GPU", name, gpu_names())
    entry = _table("gpus").get(key) or _table("hosts")[key]
    with _told("gpus", key):
        fields = {"name": key, "pair_bytes_per_s": entry["link_bytes_per_s"], **entry}
        fields["hbm_bytes"] = round(fields.pop("hbm_gib") * GIB)
        fields["usable_bytes"] = round(fields.pop("usable_gib") * GIB)
        # msgspec holds the table to the struct: a misspelt field is an error here, not a missing number later.
        return msgspec.convert(fields, Gpu)


@cache
def find_node(name: str) -> Node:
    key = node_names().get(name.strip().lower())
    if key is None:
        _missing("node", name, node_names())
    fields = {"name": key, **_table("nodes")[key]}
    with _told("nodes", key):
        ram = fields.pop("ram_gib", None)
        return msgspec.convert({**fields, "ram_bytes": None if ram is None else ram * GIB}, Node)


def find_model(name: str) -> Model:
    """From the catalogue, or from a `config.json` (or its folder) where `name` is a path."""
    key = model_names().get(name.strip().lower())
    if key is not None:
        return _catalogued(key)
    path = Path(name).expanduser()
    if not name.strip() or not (name.endswith(".json") or path.exists()):
        _missing("model", name, model_names(), "; a path to a config.json will do as well")
    return read_path(path)


@cache
def _catalogued(key: str) -> Model:
    """An entry is what matters of a config.json, or is `like` another one with its own fields in front; its own
    `quantisation` takes the place of the other's.
    """
    table = _table("models")
    entry = table[key]
    config: dict[str, Any] = entry.get("config", {})
    with _told("models", key):
        if "like" in entry:
            base = table[entry["like"]]["config"]
            config = {**(_unquantised(base) if "quantisation" in entry else base), **config}
        model = read_config(config, key, entry.get("quantisation"))
        return msgspec.structs.replace(model, aliases=tuple(entry.get("aliases", ())), source=entry["source"])


def _unquantised(config: dict[str, Any]) -> dict[str, Any]:
    left = {name: value for name, value in config.items() if name not in ("quantization_config", "expert_dtype")}
    return {name: _unquantised(value) if name == "text_config" else value for name, value in left.items()}


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Up to three names like this one; those that hold it, where none is like it."""
    name, names = name.strip().lower(), list(known)
    close = difflib.get_close_matches(name, names, 3, 0.6)
    return (
        close
        or [other for other in names if name and name in other][:3]
        or difflib.get_close_matches(name, names, 3, 0.2)
    )


def _missing(what: str, name: str, known: Mapping[str, str], more: str = "") -> NoReturn:
    close = nearest(name, known)
    hint = f"; nearest: {', '.join(close)}" if close else f"; see loadstone catalogue {what.lower()}s"
    raise InputError(f"no {what} {name!r} in the catalogue{hint}{more}")
