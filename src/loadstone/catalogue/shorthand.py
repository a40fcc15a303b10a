"""The shorthand of a deployment: `MODEL[:weights]@N×GPU[/tp8,ep8,kv=fp8,engine=vllm]`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import NoReturn

import msgspec

from loadstone.catalogue.deployment import ARGUMENTS, ENGINES, OWNERS, Deployment
from loadstone.catalogue.hardware import Gpu, Node
from loadstone.catalogue.load import find_gpu, find_hardware, find_model
from loadstone.catalogue.model import Model
from loadstone.catalogue.precision import FORMATS, dtype_of, kv_dtype_of
from loadstone.errors import InputError

_ENGINE_NAMES = {
    "trtllm": "tensorrt-llm",
    "trt-llm": "tensorrt-llm",
    "tensorrt": "tensorrt-llm",
    "llama-cpp": "llama.cpp",
}
_MOST_GPUS = 65_536
_WHERE = re.compile(r"(?:([0-9]+)\s*[x×*]\s*)?([a-z0-9][a-z0-9 ._-]*|.+\.(?:ya?ml|json))", re.IGNORECASE)
_FILE = re.compile(r"(.+?\.(?:ya?ml|json))(?:/(.*))?", re.IGNORECASE)
_COUNT = re.compile(r"(tp|pp|dp|ep|nodes)=?([0-9]+)")
_FORM = "write e.g. llama-3.1-70b:fp8@8xh200/tp8,engine=vllm"


class _Options(msgspec.Struct):
    """What stands after the slash."""

    counts: dict[str, int] = msgspec.field(default_factory=dict)
    attention_dp: bool = False
    kv_dtype: str | None = None
    engine: str = "vllm"
    engine_version: str | None = None
    arguments: dict[str, str] = msgspec.field(default_factory=dict)


def split_deployment(text: str) -> tuple[str, str, str]:
    """(model, hardware, options) of a shorthand; one that is not there is empty.

    Only what follows the GPU is options: a model's name may hold slashes, a GPU's none, but the path of a file may.
    """
    left, _, right = text.strip().rpartition("@")
    file = _FILE.fullmatch(right)
    if file:
        return left, file[1].strip(), file[2] or ""
    where, _, rest = right.partition("/")
    return left, where.strip(), rest


def names_engine(text: str) -> bool:
    """Whether a shorthand says the engine, so that it is not the default: by name, or by an argument of its alone."""
    keys = [part.partition("=")[0].strip().lower() for part in split_deployment(text)[2].split(",")]
    return any(key == "engine" or key.replace("-", "_").lstrip("_") in OWNERS for key in keys)


def parse_deployment(text: str, gpu: Gpu | None = None) -> Deployment:
    """A deployment from its shorthand. `gpu`: in place of the one it names, which is then not looked for.

    `N×` defaults to 1; GPU may be a node of the catalogue, and N then counts nodes. Without parallelism: tensor
    parallel within a node, pipeline parallel between nodes. `dp` alone: tp takes the rest; `tp` alone: pp takes the
    nodes if that fits, dp the rest. Whether the model can be cut that way is not looked at here.
    Raises InputError: syntax, unknown names (with the nearest), tp·pp·dp ≠ GPUs, ep that fits no rank count.
    """
    left, where, rest = split_deployment(text)
    if not left or not where:
        raise InputError(f"deployment {text!r}: no MODEL@GPUS; {_FORM}")
    model, weights = _model_of(left, text)
    found, gpus, nodes, node = _hardware_of(where, text, gpu)
    options = _options_of(rest, text)
    return arrange(model, found, gpus, nodes, node, weights, options, text)


def _model_of(left: str, text: str) -> tuple[Model, str]:
    name, colon, dtype = left.rpartition(":")
    if not colon:
        model = find_model(left)
        return model, model.weights_dtype
    try:
        weights = dtype_of(dtype, f"deployment {text!r}")
    except InputError:
        if dtype.lower() not in FORMATS and ("/" in dtype or "\\" in dtype or "." in dtype):
            model = find_model(left)  # a path with a colon in it
            return model, model.weights_dtype
        raise
    return find_model(name), weights


def _hardware_of(where: str, text: str, gpu: Gpu | None) -> tuple[Gpu, int, int, Node | None]:
    match = _WHERE.fullmatch(where)
    if match is None:
        raise InputError(f"deployment {text!r}: {where!r} names no GPUs; write e.g. 8xh200")
    count, name = int(match[1] or 1), match[2].strip()
    if not 1 <= count <= _MOST_GPUS:
        raise InputError(f"deployment {text!r}: {count} GPUs; write 1 to {_MOST_GPUS}")
    try:
        found = gpu or find_hardware(name)
    except InputError as error:
        raise InputError(f"deployment {text!r}: {error}") from None
    if isinstance(found, Gpu):
        return found, count, -(-count // found.per_node), None
    gpu, nic = find_gpu(found.gpu), found.scale_out_bytes_per_s
    if nic is not None and nic != gpu.nic_bytes_per_s:
        gpu = msgspec.structs.replace(gpu, nic_bytes_per_s=nic)
    if count * found.gpus > _MOST_GPUS:
        raise InputError(f"deployment {text!r}: {count * found.gpus} GPUs; write 1 to {_MOST_GPUS}")
    return gpu, count * found.gpus, count, found


def _options_of(rest: str, text: str) -> _Options:
    found = _Options()
    for part in (piece.strip() for piece in rest.split(",") if piece.strip()):
        lower = part.lower()
        count = _COUNT.fullmatch(lower)
        key, equals, value = (piece.strip() for piece in part.partition("="))
        key = key.lower()
        if count:
            _once(count[1], found.counts, text)
            found.counts[count[1]] = int(count[2])
        elif lower in ("attention-dp", "dp-attention", "attention_dp"):
            found.attention_dp = True
        elif key == "kv":
            found.kv_dtype = kv_dtype_of(value, f"deployment {text!r}, kv")
        elif key == "engine":
            found.engine = engine_of(value, text)
        elif key == "version":
            found.engine_version = value or None
        elif key.replace("-", "_").lstrip("_") in ARGUMENTS and equals and value:
            key = key.replace("-", "_").lstrip("_")
            _once(key, found.arguments, text)
            found.arguments[key] = value
        else:
            known = ["tp8", "pp2", "dp2", "ep8", "nodes=2", "attention-dp", "kv=fp8", "engine=vllm", "version=1.0"]
            _unknown("option", part, key, [*known, *ARGUMENTS], text)
    for key in found.arguments:
        if OWNERS.get(key, found.engine) != found.engine:
            own = ", ".join(name for name, engine in OWNERS.items() if engine == found.engine)
            whose = f"{key} is an argument of {OWNERS[key]}, not of {found.engine}"
            raise InputError(f"deployment {text!r}: {whose}" + (f"; its own are {own}" if own else ""))
    return found


def _once(key: str, seen: Iterable[str], text: str) -> None:
    if key in seen:
        raise InputError(f"deployment {text!r}: {key} is given twice")


def engine_of(value: str, text: str) -> str:
    """An engine by any of its names; `text` is the deployment that an error quotes. Raises InputError."""
    name = _ENGINE_NAMES.get(value.lower(), value.lower())
    if name not in ENGINES:
        _unknown("engine", value, name, ENGINES, text)
    return name


def _unknown(what: str, said: str, key: str, known: Iterable[str], text: str) -> NoReturn:
    heads = {name.partition("=")[0]: name for name in known}
    close = difflib.get_close_matches(key, heads, 3, 0.5) or list(heads)
    raise InputError(
        f"deployment {text!r}: unknown {what} {said!r}; write {', '.join(heads[name] for name in close)}"
    )


def arrange(
    model: Model,
    gpu: Gpu,
    gpus: int,
    nodes: int,
    node: Node | None,
    weights_dtype: str,
    options: _Options,
    text: str,
) -> Deployment:
    """Fills in the parallelism that was not said, and checks what was. Raises InputError."""
    counts = options.counts
    for key, value in counts.items():
        if not 1 <= value <= _MOST_GPUS:
            raise InputError(f"deployment {text!r}: {key}{value} is no count; write at least 1")
    if node is None:
        nodes = counts.get("nodes", nodes)
    elif counts.get("nodes", nodes) != nodes:
        raise InputError(f"deployment {text!r}: nodes={counts['nodes']} beside {nodes}x{node.name}; leave one out")
    tp, pp, dp = _parallelism(counts, gpus, nodes)
    if tp * pp * dp != gpus:
        hint = ""
        if options.attention_dp and tp == gpus:
            ours = f"tp{max(1, tp // dp)},dp{dp},attention-dp"
            hint = f"; SGLang's --tp {tp} --dp {dp} --enable-dp-attention is {ours} here"
        raise InputError(f"deployment {text!r}: tp{tp} · pp{pp} · dp{dp} is {tp * pp * dp}, not {gpus} GPUs{hint}")
    if gpus < nodes:
        raise InputError(f"deployment {text!r}: {gpus} GPUs on {nodes} nodes; write at least one for each")
    ep = counts.get("ep", 1)
    attention_dp = options.attention_dp or (ep > tp and ep <= tp * dp)
    ranks = tp * dp if attention_dp else tp
    if ranks % ep:
        raise InputError(
            f"deployment {text!r}: ep{ep} does not divide the {ranks} ranks that share the experts; "
            f"write ep{ranks}, or leave ep out"
        )
    return Deployment(
        model=model,
        gpu=gpu,
        gpus=gpus,
        nodes=nodes,
        tp=tp,
        pp=pp,
        dp=dp,
        ep=ep,
        attention_dp=attention_dp,
        weights_dtype=weights_dtype,
        kv_dtype=options.kv_dtype or model.kv_dtype,
        engine=options.engine,
        engine_version=options.engine_version,
        arguments=tuple(sorted(options.arguments.items())),
        node=node,
    )


def _parallelism(counts: dict[str, int], gpus: int, nodes: int) -> tuple[int, int, int]:
    tp, pp, dp = counts.get("tp"), counts.get("pp"), counts.get("dp")
    if pp is None:
        if tp is None and dp is None:
            pp = nodes if gpus % nodes == 0 else 1
        elif tp is not None and dp is None:
            pp = nodes if gpus % (tp * nodes) == 0 else 1
        elif tp is not None and dp is not None:
            pp = max(1, gpus // (tp * dp))
        else:
            pp = 1
    if tp is None:
        tp = max(1, gpus // (pp * (dp or 1)))
    if dp is None:
        dp = max(1, gpus // (tp * pp))
    return tp, pp, dp
