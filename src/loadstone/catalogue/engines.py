"""Finds inference engines by any of their names, and what their own command lines call things:
engines.toml."""

from collections.abc import Iterator
from importlib import resources

import msgspec

from loadstone.catalogue.plug_ins import read_table
from loadstone.core import plugins


class Engine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Holds an entry of engines.toml, which describes its fields."""

    title: str
    names: tuple[str, ...] = ()
    deployable: bool = False
    arguments: tuple[str, ...] = ()
    same: dict[str, str] = {}
    launch: dict[str, str] = {}
    switches: tuple[str, ...] = ()
    elsewhere: dict[str, str] = {}
    instead: str = ""


class _Common(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    default: str
    arguments: tuple[str, ...]
    elsewhere: dict[str, str]


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    common: _Common
    engine: dict[str, Engine]


def _simplify(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())


_FILE = msgspec.toml.decode(
    resources.files("loadstone.catalogue").joinpath("engines.toml").read_bytes(), type=_File
)


def _plugged_in() -> Iterator[tuple[str, Engine]]:
    """Yield the engines that other packages bring, by name; [shorthand] of their tables is what an
    entry here is."""
    for name, point in plugins.offers(plugins.ENGINES).items():
        if name not in _FILE.engine:
            entry = {"title": name, "deployable": True, **read_table(point).get("shorthand", {})}
            yield name, msgspec.convert(entry, Engine)


_ENTRIES = {**_FILE.engine, **dict(_plugged_in())}
_KEYS = {_simplify(name): key for key, engine in _ENTRIES.items() for name in (key, *engine.names)}

ENGINES = {key: engine for key, engine in _ENTRIES.items() if engine.deployable}
"""Those that the shorthand of a deployment may name."""

ALL_ENGINES = tuple(_ENTRIES)

NAMED_OTHERWISE = {key: engine.instead for key, engine in _ENTRIES.items() if engine.instead}
"""What to write in place of names that are no engine of a deployment."""

DEFAULT_ENGINE = _FILE.common.default

ELSEWHERE = _FILE.common.elsewhere
"""Arguments of all engines that are not taken, and what to write in their place."""

OWNERS = {argument: key for key, engine in ENGINES.items() for argument in engine.arguments}
"""Arguments that one engine alone has."""

ARGUMENTS = tuple(sorted([*_FILE.common.arguments, *OWNERS]))
"""Engines' own arguments that a shorthand may carry, `-` or `_` alike. What they do is sizing's and
the scheduler's business."""

CHOICES = {"batching": ("continuous", "static"), "kv_cache": ("paged", "reserved")}
"""Arguments of a few values, the first of which is what all engines do: the other is there for
contrast."""

SWITCHES = (
    "disable_chunked_mm_input",
    "disable_piecewise_cuda_graph",
    "enable_chunked_prefill",
    "enable_lora",
    "enable_lora_overlap_loading",
    "enforce_eager",
    "eplb",
    "fully_sharded_loras",
    "mm_enable_dp_encoder",
    "prefix_caching",
    "skip_mm_profiling",
    "specialize_active_lora",
    "two_batch_overlap",
    *{name for engine in ENGINES.values() for name in engine.switches},
)
"""Arguments that are true or false, and true where they stand alone."""

ON, OFF = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
"""How true and false are written."""


def engine_key(name: str) -> str | None:
    """Return `tensorrt-llm` for `TRT-LLM`, `trtllm` …; None: no engine that is known here."""
    return _KEYS.get(_simplify(name))


def engine_title(name: str) -> str:
    """Return `TensorRT-LLM` for `trt-llm`, `trtllm` …; a name not known stays as it is."""
    key = engine_key(name)
    return name if key is None else _ENTRIES[key].title


def owners_of(flag: str) -> list[str]:
    """Return engines whose command lines have such a flag."""
    return [
        key
        for key, entry in ENGINES.items()
        if flag in entry.same or flag in entry.launch or flag in entry.elsewhere
    ]


def is_taken(engine: str, name: str) -> bool:
    """Return whether the shorthand takes an engine's argument by that name, `_` for `-`: to
    simulate it, or to start it."""
    return name in ARGUMENTS or (engine in ENGINES and name in ENGINES[engine].launch)


def not_simulated(engine: str, arguments: tuple[tuple[str, str], ...]) -> list[str]:
    """Return those arguments of a deployment that change nothing but how it is started, each as
    half a sentence."""
    rows = ENGINES[engine].launch if engine in ENGINES else {}
    return [f"{name}={value} is not simulated" for name, value in arguments if name in rows]
