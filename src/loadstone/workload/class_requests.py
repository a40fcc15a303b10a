"""Reads the classes of traffic that users ask for, of a YAML file or of --class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from loadstone.core.bounds import TASK, parse_slo
from loadstone.core.errors import InputError
from loadstone.core.files import read_bytes
from loadstone.core.plan import TrafficClass
from loadstone.core.secrets import has_scheme, names_key
from loadstone.core.yaml_text import decode_yaml
from loadstone.workload.option_values import check_headers

MAX_CLASSES = 64
_MAX_BYTES = 1 << 20
_MAX_ADAPTERS = 10_000
_NAME_MARKS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.")
_PRIORITIES = {"high": 1, "normal": 0, "low": -1}
_CLASS_KEYS = (
    "name",
    "share",
    "rate",
    "slots",
    "slo",
    "priority",
    "tenant",
    "headers",
    "key_env",
    "model",
    "adapter",
    "adapters",
    "popularity",
)
WORKLOAD_KEYS = (
    "input",
    "output",
    "range_ratio",
    "prefix",
    "prefix_groups",
    "dataset",
    "images",
    "image_size",
    "image_format",
    "image_content",
    "image_groups",
    "image_place",
    "turns",
    "think_time",
    "skip_bad",
    "trace",
    "trace_window",
    "trace_sample",
    "length_scale",
)
"""Options of a run that a class may have as its own, by their names in Python."""


class ClassRequest(msgspec.Struct, frozen=True):
    """A class of traffic as the user asks for it.

    share, rate   of an open load, one of them; `rate` requests/s, whatever the load is
    slots         of a closed one
    replays       it comes at the times of a trace, of which `rate` is the mean once it is read
    workload      options of the run that it has as its own
    """

    traffic: TrafficClass
    share: float | None = None
    rate: float | None = None
    workload: dict[str, Any] = {}
    replays: bool = False

    @property
    def name(self) -> str:
        return self.traffic.name


def read_classes(file: Path | None, texts: Sequence[str]) -> list[ClassRequest]:
    """Read the classes of a mix: of a YAML file, and each of `texts` as --class has it. Raises
    InputError."""
    classes = [] if file is None else _read_file(file)
    classes += [read_class(_split(text), f"--class {text.partition(',')[0]}") for text in texts]
    names = [of_class.name for of_class in classes]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise InputError(f"class {repeated}: two classes have this name; rename one")
    if len(classes) > MAX_CLASSES:
        raise InputError(f"--mix: {len(classes)} classes; at most {MAX_CLASSES}")
    return classes


def _read_file(file: Path) -> list[ClassRequest]:
    try:
        document = decode_yaml(
            read_bytes(file, _MAX_BYTES, "give a file of classes of traffic").decode()
        )
    except ValueError as error:
        raise InputError(f"--mix {file}: no YAML ({error}); see docs/mixed.md") from None
    if not isinstance(document, dict):
        document = {}
    listed = document.get("classes")
    if not isinstance(listed, list) or not listed:
        raise InputError(
            f"--mix {file}: has no list 'classes'; write e.g. classes: [{{name: chat}}]"
        )
    unknown = set(document) - {"mix", "classes", "adapters"}
    if unknown:
        raise InputError(f"--mix {file}: {sorted(map(str, unknown))[0]!r} is no key of a mix")
    if document.get("mix", 1) != 1:
        raise InputError(f"--mix {file}: this version of Loadstone reads 'mix: 1'")
    classes = [
        read_class(entry, f"--mix {file}: class {number}")
        for number, entry in enumerate(listed, start=1)
    ]
    return _describe_adapters(classes, document.get("adapters"), f"--mix {file}: adapters")


class _Adapter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Holds what a mix says of an adapter. Slots have room for all targets, whatever one has."""

    rank: Annotated[int, msgspec.Meta(ge=1, le=4096)] | None = None
    targets: Literal["all"] = "all"
    path: str | None = None


def _describe_adapters(
    classes: Sequence[ClassRequest], given: Any, place: str
) -> list[ClassRequest]:
    """Return the classes with what a file says of their adapters. Raises InputError."""
    try:
        described = msgspec.convert(given or {}, dict[str, _Adapter])
    except msgspec.ValidationError as error:
        raise InputError(f"{place}: {error}; write e.g. {{legal: {{rank: 16}}}}") from None
    unused = described.keys() - {of_class.traffic.adapter for of_class in classes}
    if unused:
        raise InputError(f"{place}: no class asks for {sorted(unused)[0]!r}")
    found = []
    for of_class in classes:
        adapter = described.get(of_class.traffic.adapter or "", _Adapter())
        traffic = msgspec.structs.replace(
            of_class.traffic, adapter_rank=adapter.rank, adapter_path=adapter.path
        )
        found.append(msgspec.structs.replace(of_class, traffic=traffic))
    return found


def _split(text: str) -> dict[str, Any]:
    """Split `chat,share=0.7,input=512`: a part without `=` goes on the value before it."""
    name, *parts = text.split(",")
    found: dict[str, Any] = {"name": name.strip()}
    last = ""
    for part in parts:
        key, equals, value = part.partition("=")
        if equals:
            last = key.strip()
            if last in found:
                raise InputError(f"--class {text!r}: {last} is given twice; give one")
            found[last] = value.strip()
        elif last:
            found[last] += f",{part}"
        else:
            raise InputError(f"--class {text!r}: {part!r} is no KEY=VALUE")
    return found


def read_class(entry: Any, place: str) -> ClassRequest:
    """Read one class of a mapping. Raises InputError."""
    if not isinstance(entry, Mapping):
        raise InputError(f"{place}: is no mapping; write e.g. {{name: chat, share: 0.7}}")
    given = {str(key).replace("-", "_"): value for key, value in entry.items()}
    name = given.get("name")
    if not isinstance(name, str) or not name or not _NAME_MARKS.issuperset(name):
        raise InputError(
            f"{place}: needs a name of letters, digits, '-' and '.'; in quotes where YAML reads a"
            " number, yes or no"
        )
    unknown = set(given) - {*_CLASS_KEYS, *WORKLOAD_KEYS}
    if unknown:
        key = sorted(unknown)[0]
        keys = ", ".join((*_CLASS_KEYS[1:], *WORKLOAD_KEYS))
        raise InputError(f"class {name}: {key!r} is no key of a class; there are {keys}")
    amounts = {
        key: _number(given[key], name, key) for key in ("share", "rate", "slots") if key in given
    }
    if len(amounts) > 1:
        raise InputError(f"class {name}: {' and '.join(amounts)}: say the same; give one")
    slots = amounts.get("slots", 0.0)
    if slots != int(slots):
        raise InputError(f"class {name}: slots {slots:g} is no whole number")
    headers = given.get("headers", {})
    if not isinstance(headers, Mapping):
        raise InputError(
            f"class {name}: headers is no mapping; write {{x-team: batch}} in a file, --mix"
        )
    own_headers = {str(key): str(value) for key, value in headers.items()}
    tenant = _read_text(given, "tenant", name)
    of_tenant = [] if tenant is None else [("tenant", tenant)]
    check_headers([*own_headers.items(), *of_tenant], f"class {name}: headers")
    secret = next(
        (key for key, value in own_headers.items() if names_key(key) or has_scheme(value)), None
    )
    if secret is not None:
        raise InputError(
            f"class {name}: headers: {secret} holds a key, which is read from the environment"
            " alone; name its variable under key_env"
        )
    traffic = TrafficClass(
        name,
        slots=int(slots),
        slo=_read_bounds(given.get("slo"), name),
        priority=_read_priority(given.get("priority"), name),
        tenant=tenant,
        headers=own_headers,
        key_env=_read_text(given, "key_env", name),
        model=_read_text(given, "model", name),
        **_read_popularity(given, name),
    )
    workload = {key: given[key] for key in WORKLOAD_KEYS if key in given}
    return ClassRequest(
        traffic, amounts.get("share"), amounts.get("rate"), workload, replays=not amounts
    )


def _read_popularity(given: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Read which adapters a class has: one by its name, or so many, equally popular or by Zipf's
    law."""
    adapter, count = _read_text(given, "adapter", name), given.get("adapters")
    if adapter is not None and "model" in given:
        raise InputError(f"class {name}: adapter and model: an adapter goes by its own name")
    if count is None:
        if "popularity" in given:
            raise InputError(f"class {name}: popularity is of several adapters; give adapters too")
        return {"adapter": adapter}
    number = _number(count, name, "adapters")
    if number != int(number) or number > _MAX_ADAPTERS:
        raise InputError(f"class {name}: adapters {count!r} is no whole number up to 10,000")
    law, _, power = str(given.get("popularity", "equal")).partition(":")
    if law not in ("equal", "zipf") or (law == "equal" and power):
        raise InputError(f"class {name}: popularity must be equal, zipf, or e.g. zipf:1.2")
    exponent = _number(power or 1, name, "popularity") if law == "zipf" else 0.0
    return {"adapter": adapter or name, "adapters": int(number), "popularity": exponent}


def _number(value: Any, name: str, key: str) -> float:
    text = str(value).strip()
    text, per_second = text.removesuffix("/s"), text.endswith("/s")
    try:
        share = key == "share" and text.endswith("%")
        number = float(text.removesuffix("%")) / 100 if share else float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e9 or (per_second and key != "rate"):
        raise InputError(f"class {name}: {key} {value!r} must be a number above 0")
    return number


def _read_text(given: Mapping[str, Any], key: str, name: str) -> str | None:
    value = given.get(key)
    if value is None:
        return None
    text = str(value)
    if not text or "\n" in text or "\r" in text:
        raise InputError(f"class {name}: {key} must be one line of text")
    return text


def _read_priority(value: Any, name: str) -> int | None:
    if value is None:
        return None
    number = _PRIORITIES.get(str(value))
    if number is not None:
        return number
    try:
        return int(str(value))
    except ValueError:
        raise InputError(
            f"class {name}: priority {value!r} must be high, normal, low, or a whole number (larger"
            " is served first)"
        ) from None


def _read_bounds(text: Any, name: str) -> dict[str, float]:
    if text is None:
        return {}
    try:
        bounds = dict(parse_slo(str(text)))
    except InputError as error:
        raise InputError(str(error).replace("--slo", f"class {name}: slo", 1)) from None
    if any(":" in bound or bound.startswith(TASK) for bound in bounds):
        raise InputError(f"class {name}: slo: bounds of a class are on ttft, tpot, e2e or answer")
    return bounds


def show_bounds(request: ClassRequest) -> str:
    """Write the bounds of a class as --slo has them: `ttft_p99<1s,tpot_p99<30ms`."""
    limits = request.traffic.slo.items()
    return ",".join(f"{name}<{limit_s * 1e3:.10g}ms" for name, limit_s in limits)
