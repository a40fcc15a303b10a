"""Reads the catalogue's files, and finds things in them by name."""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import msgspec

from loadstone.catalogue import user_files
from loadstone.catalogue.architecture.model import Model
from loadstone.catalogue.config.hub import cached_config
from loadstone.catalogue.config.reader import read_config, read_path, read_visual_of
from loadstone.catalogue.hardware import Gpu, Node
from loadstone.catalogue.visual.visual import Visual
from loadstone.core.errors import InputError
from loadstone.core.groups import by_key
from loadstone.core.host import make_path

GIB = 1 << 30
_TUNED = re.compile(r"-(instruct|chat|it)$")
_OWNER = re.compile(r"[a-z0-9][a-z0-9._-]*")
_FORMS = ("pcie", "nvl")
"""Sorts of a GPU that differ by half in bandwidth."""
_WORDS = {"pcie": "PCIe", "ada": "Ada", "gaudi2": "Gaudi2", "gaudi3": "Gaudi3"}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@cache
def entries_of(name: str) -> dict[str, dict[str, Any]]:
    """Return what `name`.toml has, by name: of checkpoints, gpus, hosts, models or nodes."""
    content = files("loadstone.catalogue").joinpath(f"{name}.toml").read_bytes()
    try:
        return msgspec.toml.decode(content, type=dict[str, dict[str, Any]])
    except msgspec.DecodeError as error:
        raise InputError(f"{name}.toml of the catalogue: {error}; correct it there") from None


@contextmanager
def _one_line_error(
    where: str, remedy: str = "other entries show what there has to be"
) -> Iterator[None]:
    """Turn what is wrong with a written entry into an error of one line. Raises InputError."""
    try:
        yield
    except (msgspec.ValidationError, KeyError, TypeError) as error:
        problem = f"lacks {error.args[0]}" if isinstance(error, KeyError) else str(error)
        raise InputError(f"{where}: {problem}; {remedy}") from None


def _by_alias(table: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return every name and alias, in small letters, to the name."""
    return {
        alias.lower(): name
        for name, entry in table.items()
        for alias in (name, *entry.get("aliases", ()))
    }


@cache
def gpu_names() -> dict[str, str]:
    """Return the processor, which is one more name here: whatever runs a model is a Gpu to what
    counts."""
    return _by_alias({**entries_of("gpus"), **entries_of("hosts")})


@cache
def node_names() -> dict[str, str]:
    return _by_alias(entries_of("nodes"))


@cache
def model_names() -> dict[str, str]:
    """Return its names, with the id's last part as one more alias, where nothing else has it."""
    table = entries_of("models")
    names = _by_alias(table)
    for name in table:
        names.setdefault(name.rpartition("/")[2].lower(), name)
    return names


@cache
def _near_names() -> dict[str, str]:
    """Return models by the last part of each alias, too, that no two models share, and without
    `-instruct`: a model that was tuned for instructions has its base's sizes.
    """
    names = model_names()
    lasts = by_key((alias.rpartition("/")[2], name) for alias, name in names.items())
    names = {last: owners[0] for last, owners in lasts.items() if len(set(owners)) == 1} | names
    return {_TUNED.sub("", alias): name for alias, name in names.items()} | names


class GpuMatch(NamedTuple):
    """Holds an entry of the catalogue that a text means; `form`: a sort of it that has no entry
    (`pcie`), or empty."""

    key: str
    form: str


@cache
def match_gpu(text: str) -> GpuMatch | None:
    """Return the GPU that a driver or a report means, by the name or alias that has the most words
    in common with the text: `NVIDIA A100-SXM4-40GB` is a100-40gb, `Tesla T4` t4, `H20-3e`
    h20-141gb. None: no such GPU in the catalogue.
    """
    words = set(re.findall("[a-z0-9]+", text.lower()))
    names = {name: set(name.split("-")) for name in _by_alias(entries_of("gpus"))}
    matches = [name for name, parts in names.items() if parts <= words]
    if not matches:
        return None
    best = max(matches, key=lambda name: (len(names[name]), len(name)))
    key = gpu_names()[best]
    form = next(
        (form for form in _FORMS if form in words and form not in names[best] | {*key.split("-")}),
        "",
    )
    return GpuMatch(key, "" if form == entries_of("gpus")[key]["link"] else form)


def gpu_title(text: str) -> str:
    """Return `H200` for `h200`, `NVIDIA H200`, `H200-SXM-141GB`; a name not known stays as it
    is."""
    match = match_gpu(text)
    if match is None:
        return text
    return " ".join(
        _WORDS.get(word, word.upper()) for word in (*match.key.split("-"), match.form) if word
    )


def find_gpu(name: str) -> Gpu:
    """Return the GPU of a name or alias, or that a file describes. Raises InputError with the
    nearest names."""
    hardware = find_hardware(name, "GPU")
    if isinstance(hardware, Node):
        raise InputError(f"{name!r} is a node; name its GPU, {hardware.gpu}")
    return hardware


def find_node(name: str) -> Node:
    """Return the node of that name."""
    hardware = find_hardware(name, "node")
    if isinstance(hardware, Gpu):
        raise InputError(f"{name!r} is a GPU, not a node; see loadstone catalogue nodes")
    return hardware


def find_hardware(name: str, what: str = "GPU or node") -> Gpu | Node:
    """Return the GPU or node of a name of the catalogue, of a file's name in the user's folder, or
    of a file's path.

    Raises InputError with the nearest names; `what` it should have been.
    """
    text = name.strip()
    if user_files.is_file(text):
        return _of_file(make_path(text), text)
    gpus, nodes = gpu_names(), node_names()
    key = "-".join(text.lower().split())  # as reports write it: H100 PCIe
    if what != "node" and key in gpus:
        return _gpu(gpus[key])
    if what != "GPU" and key in nodes:
        return _node(nodes[key])
    kept = user_files.kept()
    if key in kept:
        return _of_file(kept[key], key)
    names = {"GPU": gpus, "node": nodes}.get(what, gpus | nodes)
    return _refuse(
        what,
        name,
        [*names, *kept],
        "; a file that describes it will do as well (docs/catalogue.md)",
    )


def kept_hardware() -> list[Gpu | Node]:
    """Return what the user's folder holds. Raises InputError."""
    return [_of_file(path, name) for name, path in user_files.kept().items()]


@cache
def _gpu(key: str) -> Gpu:
    entry = entries_of("gpus").get(key) or entries_of("hosts")[key]
    with _one_line_error(f"gpus.toml of the catalogue, [{key}]"):
        return _to_gpu({"name": key, **_convert_to_bytes(entry)})


@cache
def _node(key: str) -> Node:
    with _one_line_error(f"nodes.toml of the catalogue, [{key}]"):
        return msgspec.convert({"name": key, **_convert_to_bytes(entries_of("nodes")[key])}, Node)


def _convert_to_bytes(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Convert capacities, which are written in GiB, as in `hbm_gib`, and kept in bytes."""
    fields = dict(entry)
    for name in ("hbm", "usable", "ram"):
        if f"{name}_gib" in fields:
            gib = fields.pop(f"{name}_gib")
            if isinstance(gib, bool) or not isinstance(gib, int | float) or not 0 < gib < GIB:
                raise TypeError(f"{name}_gib is {str(gib)[:40]!r}, no number of GiB")
            fields[f"{name}_bytes"] = round(gib * GIB)
    return fields


def _to_gpu(fields: dict[str, Any], *, strict: bool = True) -> Gpu:
    fields = {"pair_bytes_per_s": fields["link_bytes_per_s"], **fields}
    for name in ("hbm", "usable"):
        if f"{name}_bytes" not in fields:
            raise KeyError(f"{name}_gib")
    # msgspec holds the entry to the struct: a misspelt field is an error here, not a missing number
    # later.
    return msgspec.convert(fields, Gpu, strict=strict)


def _of_file(path: Path, given: str) -> Gpu | Node:
    """Return a user's own, whose fields take the place of those of the entry that it is `like`.
    Raises InputError."""
    entry = user_files.read(path)
    is_node = "gpu" in entry or str(entry.get("like")).lower() in node_names()
    kind, names = ("nodes", node_names()) if is_node else ("gpus", gpu_names())
    shown = f"{kind} dgx-h200" if is_node else f"{kind} h200"
    with _one_line_error(str(path), f"`loadstone catalogue {shown} --json` shows all fields"):
        given_fields = _convert_to_bytes(
            {name: value for name, value in entry.items() if name not in ("like", "given")}
        )
        _check_name(given_fields["name"], path)
        fields = _lay_over(entry.get("like"), given_fields, kind, names, path) | {"given": given}
        # YAML takes 4.8e12 for a text; not strict is what reads it as the number that it is.
        hardware = (
            msgspec.convert(fields, Node, strict=False)
            if is_node
            else _to_gpu(fields, strict=False)
        )
    user_files.check_rates(hardware, str(path))
    if isinstance(hardware, Node) and user_files.is_file(hardware.gpu):
        return msgspec.structs.replace(hardware, gpu=str(path.parent / make_path(hardware.gpu)))
    return hardware


def _check_name(name: Any, path: Path) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InputError(
            f"{path}: {str(name)[:60]!r} is not a name; add one of letters and digits, e.g. `name:"
            " h20`"
        )
    if name.lower() in gpu_names() or name.lower() in node_names():
        raise InputError(
            f"{path}: {name!r} is the catalogue's own; rename the file, or add e.g. `name:"
            f" {name}-mine`: two that differ shall not be called the same"
        )


def _lay_over(
    like: Any, given: dict[str, Any], kind: str, names: Mapping[str, str], path: Path
) -> dict[str, Any]:
    """Return `given`, on top of the catalogue's entry `like` where one is named; each number with
    its source."""
    entry = {"source": path.name if kind == "nodes" else {}, **given}
    if like is None:
        return entry if entry["source"] else entry | {"source": {"all": path.name}}
    key = names.get(str(like).strip().lower())
    if key is None:
        close = ", ".join(nearest(str(like)[:60], names)) or "h200"
        raise InputError(f"{path}: like {str(like)[:60]!r}: not in the catalogue; nearest: {close}")
    base = _convert_to_bytes(entries_of(kind).get(key) or entries_of("hosts")[key])
    fields = {**base, "aliases": (), "notes": (), **entry}
    if kind == "nodes" or not isinstance(entry["source"], dict):
        return fields
    changed = dict.fromkeys(
        (name for name in entry if name not in ("name", "source", "notes")), path.name
    )
    if "hbm_bytes" in entry and "usable_bytes" not in entry:
        # A driver's share goes with the kind of memory: ECC in GDDR takes a sixteenth, HBM brings
        # its own.
        fields["usable_bytes"] = round(
            entry["hbm_bytes"] * base["usable_bytes"] / base["hbm_bytes"]
        )
        changed["usable_bytes"] = f"an estimate: the share that a {key} shows"
    kept = {
        name: text
        for name, text in base["source"].items()
        if name.partition(".")[0] + "_per_s" not in entry
    }
    return fields | {"source": {**kept, **changed, **entry["source"]}}


def find_model(name: str) -> Model:
    """Return the model of a Hugging Face id, an alias, or a path to a `config.json` or its folder.
    An id that the catalogue lacks may be one that was downloaded to this machine. Raises InputError
    with the nearest.
    """
    path = make_path(name)
    key = _key_of(name)
    if key is not None:
        return _read_catalogued(key)
    if name.strip() and (name.endswith(".json") or path.exists()):
        return read_path(path)
    downloaded = cached_config(name)
    if downloaded is None:
        _refuse("model", name, list(model_names()), "; a path to a config.json will do as well")
    return msgspec.structs.replace(read_path(downloaded), name=name.strip())


def find_visual(name: str) -> tuple[str, Visual | None]:
    """Return a model's name, and how it takes pictures, also of one whose text model is not read
    here. Raises InputError as find_model() does."""
    try:
        model = find_model(name)
    except InputError:
        path = make_path(name)
        if not path.exists():
            raise
        return name, read_visual_of(path)
    return model.name, model.visual


def published_in(model: Model, dtype: str) -> Model | None:
    """Return the catalogue's checkpoint of a model of its own in the precision `dtype`:
    `Qwen/Qwen3-32B-FP8`; else None. It says which layers have that precision, and how they are
    scaled.
    """
    names = (model.name, *model.aliases, f"nvidia/{model.name.rpartition('/')[2]}")
    name = next((f"{name}-{dtype}" for name in names if is_catalogued(f"{name}-{dtype}")), None)
    if name is None or model.given:
        return None
    checkpoint = find_model(name)
    return checkpoint if checkpoint.layer_count == model.layer_count else None


def is_catalogued(name: str) -> bool:
    """Return whether find_model() takes the name for one of the catalogue's."""
    return _key_of(name) is not None


def _key_of(name: str) -> str | None:
    """Return the catalogue's own name for a model: as it is, as its base, or whoever has put it
    where it is."""
    text = name.strip().lower()
    key = model_names().get(text)
    if key is None and text and not make_path(name).exists():
        near = _near_names()
        owner, _, last = text.rpartition("/")
        names = [text, last] if _OWNER.fullmatch(owner) else [text]
        key = next(
            (
                near[name]
                for spelling in names
                for name in (spelling, _TUNED.sub("", spelling))
                if name in near
            ),
            None,
        )
    return key


@cache
def _read_catalogued(key: str) -> Model:
    """Read an entry: it is what matters of a config.json, or is `like` another one with its own
    fields in front; its own `quantisation` takes the place of the other's.
    """
    table = entries_of("models")
    entry = table[key]
    config: dict[str, Any] = entry.get("config", {})
    with _one_line_error(f"models.toml of the catalogue, [{key}]"):
        if "like" in entry:
            base = table[entry["like"]]["config"]
            config = {**(_leave_unquantised(base) if "quantisation" in entry else base), **config}
        model = read_config(config, key, entry.get("quantisation"))
        return msgspec.structs.replace(
            model,
            aliases=tuple(entry.get("aliases", ())),
            source=entry["source"],
            pooling=entry.get("pooling") or model.pooling,
            # Engines load no output head of what writes no text.
            tied_embeddings=model.tied_embeddings or "pooling" in entry,
        )


def _leave_unquantised(config: dict[str, Any]) -> dict[str, Any]:
    left = {
        name: value
        for name, value in config.items()
        if name not in ("quantization_config", "expert_dtype")
    }
    return {
        name: _leave_unquantised(value) if name == "text_config" else value
        for name, value in left.items()
    }


def nearest(name: str, candidates: Iterable[str]) -> list[str]:
    """Return names with all words of this one (five, the newest version first), after up to three
    like it where they are fewer than three; else those that hold it.
    """
    name, names = name.strip().lower(), list(candidates)
    words = _words(name)
    close = difflib.get_close_matches(name, names, 3, 0.6)
    if len(words) > 1:
        holding = [candidate for candidate in names if words <= _words(candidate)]
        newest = sorted(sorted(holding, reverse=True), key=lambda other: len(_words(other)))
        # With and without its owner.
        by_name = {full.rpartition("/")[2]: full for full in reversed(newest)}
        if by_name:
            matches = [candidate for candidate in newest if candidate in by_name.values()][:5]
            # One model with the words of another's name, as a fine-tune of it, is not what was
            # meant.
            return matches if len(matches) > 2 else list(dict.fromkeys([*close, *matches]))
    return (
        close
        or [candidate for candidate in names if name and name in candidate][:3]
        or difflib.get_close_matches(name, names, 3, 0.4)
    )


def _words(name: str) -> set[str]:
    return set(re.split(r"[-/_\s]+", name.strip("-/_ ")))


def _refuse(what: str, name: str, names: Sequence[str], remark: str = "") -> NoReturn:
    close = nearest(name, names)
    kind = what.partition(" ")[0].lower()
    hint = f"; nearest: {', '.join(close)}" if close else f"; see loadstone catalogue {kind}s"
    raise InputError(f"no {what} {name!r} in the catalogue{hint}{remark}")
