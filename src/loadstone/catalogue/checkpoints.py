"""Finds checkpoints: which weights a name means, and who publishes a model in another precision.

Models of one shape share an entry of the catalogue, such as Llama 3.1 70B, 3.3 70B and their
instruct versions: they are sized alike, and are other weights. What is started is what was named.
"""

import re
from functools import cache
from typing import NamedTuple

from loadstone.catalogue.architecture.model import Model
from loadstone.catalogue.architecture.precision import dtype_of
from loadstone.catalogue.find import entries_of, find_model, is_catalogued
from loadstone.catalogue.user_files import is_file
from loadstone.core.errors import InputError
from loadstone.core.groups import by_key
from loadstone.core.host import make_path

TUNED = re.compile(r"-(instruct|chat|it)\b")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_PRECISION = re.compile(
    r"-(?:quantized\.)?(fp8|nvfp4|fp4|mxfp4|bf16|int8|int4|w8a8|w4a16|awq|gptq)"
    r"(?:-(?:dynamic|static|block|kv|pertensor|marlin|(int4|int8)))*$",
    re.IGNORECASE,
)
"""How a checkpoint's name ends with its precision: `-FP8-dynamic`, `-AWQ`, `-GPTQ-Int4`,
`-quantized.w4a16`."""
_UNKNOWN = "unknown"


class Checkpoint(NamedTuple):
    """Holds the id or folder of weights, with their precision and that of the KV cache that goes
    with them."""

    name: str
    weights: str
    kv: str

    @property
    def publisher(self) -> str:
        return self.name.partition("/")[0].lower()


def split_precision(name: str) -> tuple[str, str | None]:
    """Return (name, precision) of a model that the catalogue has without the end that says its
    precision; else None."""
    match = _PRECISION.search(name)
    if match is None or is_catalogued(name) or not is_catalogued(name[: match.start()]):
        return name, None
    return name[: match.start()], dtype_of(match[2] or match[1], name)


def named_checkpoint(model: Model, named: str) -> Checkpoint:
    """Return the checkpoint that a deployment of `model` named so. Raises InputError: a name of the
    catalogue for which no checkpoint is known, so that another would be started in its place."""
    name = named or model.name
    path = make_path(name)
    if is_file(name) or path.exists():
        return Checkpoint(
            str(path if path.is_dir() else path.parent), model.weights_dtype, model.kv_dtype
        )
    base, weights = split_precision(name)
    if weights is not None and not _HUB_ID.fullmatch(name):
        found = next(
            (checkpoint for checkpoint in published(model, base) if checkpoint.weights == weights),
            None,
        )
        name = found.name if found is not None else _find_id(model, base)
        weights = weights if found is not None else None
    elif not _HUB_ID.fullmatch(name):
        name = _find_id(model, name)
    return Checkpoint(name, weights or model.weights_dtype, _kv_of(name, model))


def _kv_of(name: str, model: Model) -> str:
    kv_dtype = next((kv for kv, names in _more().items() if name in names), _UNKNOWN)
    return model.kv_dtype if kv_dtype == _UNKNOWN else kv_dtype


def _find_id(model: Model, name: str) -> str:
    """Return the id with an owner that a short name means: the maker's with these words, else the
    entry's own."""
    text = name.strip().lower()
    ids = [model.name, *(alias for alias in model.aliases if "/" in alias)]
    lasts = [checkpoint_id.rpartition("/")[2].lower() for checkpoint_id in ids]
    stems = [_stem(checkpoint_id) for checkpoint_id in ids]
    for names in (lasts, stems, [TUNED.sub("", stem) for stem in stems]):
        if text in names:
            return ids[names.index(text)]
    if TUNED.search(text) or text not in {alias.lower() for alias in model.aliases}:
        problem = f"{name!r} has the shape of {model.name}, and no checkpoint is known by that name"
        raise InputError(f"{problem}; write the id of one, such as {' or '.join(ids[:3])}")
    return model.name


def published(model: Model, named: str = "") -> tuple[Checkpoint, ...]:
    """Return the checkpoints of a model that the catalogue knows, in every precision: of the very
    model that was named, by its makers first; where no instruct version was asked for by a short
    name, also of that one.
    """
    if model.given:
        return ()
    base = split_precision(named or model.name)[0]
    hub_id = base if _HUB_ID.fullmatch(base) else _find_id(model, base)
    stem, owner = _stem(hub_id), hub_id.partition("/")[0].lower()
    exact = list(_by_stem().get(stem, ()))
    if not _HUB_ID.fullmatch(named) and not TUNED.search(stem):
        tuned = (key for key in _by_stem() if TUNED.sub("", key) == stem != key)
        exact += [name for key in tuned for name in _by_stem()[key]]
    found = [hub_id, *sorted(exact, key=lambda name: name.partition("/")[0].lower() != owner)]
    return tuple(_describe(name, model) for name in dict.fromkeys(found))


def _describe(name: str, model: Model) -> Checkpoint:
    weights = split_precision(name)[1]
    if weights is None and is_catalogued(name):
        entry = find_model(name)
        return Checkpoint(name, entry.weights_dtype, entry.kv_dtype)
    return Checkpoint(name, weights or model.weights_dtype, _kv_of(name, model))


def _stem(name: str) -> str:
    """Return the name of a model without its owner, its precision, and what one maker has written
    before it."""
    return _PRECISION.sub("", name.rpartition("/")[2]).lower().removeprefix("meta-")


def _more() -> dict[str, list[str]]:
    return entries_of("checkpoints")["kv"]


@cache
def _by_stem() -> dict[str, tuple[str, ...]]:
    names = [
        name
        for key, entry in entries_of("models").items()
        for name in (key, *entry.get("aliases", ()))
    ]
    names += [name for added in _more().values() for name in added]
    stems = by_key((_stem(name), name) for name in names if "/" in name)
    return {stem: tuple(names) for stem, names in stems.items()}
