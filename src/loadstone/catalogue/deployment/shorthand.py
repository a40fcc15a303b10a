"""Parses the shorthand of a deployment: `MODEL[:weights]@N×GPU[/tp8,ep8,kv=fp8,engine=vllm]`."""

import difflib
import re
from collections.abc import Iterable
from typing import NoReturn

import msgspec

from loadstone.catalogue.architecture.model import Model
from loadstone.catalogue.architecture.precision import FORMATS, dtype_of, kv_dtype_of
from loadstone.catalogue.checkpoints import split_precision
from loadstone.catalogue.config.reader import read_given
from loadstone.catalogue.deployment.alternatives import split_commas
from loadstone.catalogue.deployment.deployment import DeployedPool, Deployment, Draft, Worker
from loadstone.catalogue.deployment.pools import has_pools, split_pools
from loadstone.catalogue.deployment.suggestion import EXAMPLE, suggest
from loadstone.catalogue.engines import (
    ARGUMENTS,
    CHOICES,
    DEFAULT_ENGINE,
    ELSEWHERE,
    ENGINES,
    NAMED_OTHERWISE,
    OFF,
    ON,
    OWNERS,
    SWITCHES,
    engine_key,
    engine_title,
    is_taken,
    owners_of,
)
from loadstone.catalogue.find import find_gpu, find_hardware, find_model, is_catalogued
from loadstone.catalogue.hardware import Gpu, Node
from loadstone.catalogue.user_files import is_file
from loadstone.core.errors import InputError

_MAX_GPUS = 65_536
_WHERE = re.compile(
    r"(?:([0-9]+)\s*[x×*]\s*)?([a-z0-9][a-z0-9 ._-]*|.+\.(?:ya?ml|json))", re.IGNORECASE
)
_FILE = re.compile(r"(.+?\.(?:ya?ml|json))(?:/(.*))?", re.IGNORECASE)
_COUNT = re.compile(r"(tp|pp|dp|ep|nodes)=?([0-9]+)")
_DRAFTS = {
    "draft",
    *(flag for engine in ENGINES.values() for flag, ours in engine.same.items() if ours == "draft"),
}
_DRAFT = re.compile(
    rf"[/,]\s*-*(?:{'|'.join(sorted(_DRAFTS)).replace('_', '[-_]')})\s*=", re.IGNORECASE
)
_WORDS = [
    "tp8",
    "pp2",
    "dp2",
    "ep8",
    "nodes=2",
    "attention-dp",
    "kv=fp8",
    "engine=vllm",
    "version=1.0",
]
"""Options of all engines, as examples."""
_SHARED = ("attention-dp", "dp-attention", "attention_dp", "dp_attention")


class _Options(msgspec.Struct):
    """Holds what stands after the slash. `within`: attention-dp in SGLang's words, whose tp counts
    the replicas in."""

    model: str
    counts: dict[str, int] = msgspec.field(default_factory=dict)
    attention_dp: bool = False
    within: bool = False
    kv_dtype: str | None = None
    engine: str = DEFAULT_ENGINE
    engine_version: str | None = None
    arguments: dict[str, str] = msgspec.field(default_factory=dict)


def split_deployment(text: str) -> tuple[str, str, str]:
    """Return (model, hardware, options) of a shorthand; one that is not there is empty.

    Only what follows the GPU is options: a model's name may hold slashes, a GPU's none, but the
    path of a file may.
    """
    left, _, right = text.strip().rpartition("@")
    draft = _DRAFT.search(right)  # whose path ends like that of a GPU's file
    end = draft.start() if draft is not None else len(right)
    file = _FILE.fullmatch(right[:end])
    if file is not None:
        where, options = file[1], file[2] or ""
    else:
        where, _, options = right[:end].partition("/")
    return left, where.strip(), (options + right[end:]).lstrip("/")


def models_of(text: str) -> list[str]:
    """Return the names of models in a shorthand, without their precisions: the large one's, and the
    draft's. Raises InputError where a precision is none.
    """
    if has_pools(text):
        return list(
            dict.fromkeys(name for pool in split_pools(text) for name in models_of(pool.worker))
        )
    left, _, rest = split_deployment(text)
    drafts = [value for key, value in map(key_value, split_commas(rest)) if key in _DRAFTS]
    return [_name_and_weights(name)[0] for name in (left, *drafts)]


def key_value(part: str) -> tuple[str, str]:
    """Return `--Max-Num-Seqs = 8` as (max_num_seqs, 8)."""
    key, _, value = (piece.strip() for piece in part.partition("="))
    return key.lower().replace("-", "_").lstrip("_"), value


def names_engine(text: str) -> bool:
    """Return whether a shorthand says the engine, so that it is not the default: by name, or by an
    argument of its alone."""
    if has_pools(text):
        return any(names_engine(pool.worker) for pool in split_pools(text))
    keys = [key for key, _ in map(key_value, split_commas(split_deployment(text)[2]))]
    return any(key == "engine" or key in OWNERS for key in keys)


def leave_engine_out(name: str) -> str:
    """Return a deployment's own name without the engine, which stands behind other options
    there."""
    return re.sub(r",engine=[^,)]*", "", name)


def parse_deployment(text: str, gpu: Gpu | None = None, model: Model | None = None) -> Deployment:
    """Return a deployment from its shorthand. `gpu`, `model`: in place of those it names, which are
    then not looked for.

    `N×` defaults to 1; GPU may be a node of the catalogue, and N then counts nodes. Without
    parallelism: tensor parallel within a node, pipeline parallel between nodes. `dp` alone: tp
    takes the rest; `tp` alone: pp takes the nodes if each is filled, else dp the rest. Whether the
    model can be cut that way is not looked at here. Of pools (pools.py) each worker is a deployment
    by these rules. Raises InputError: syntax, unknown names (with the nearest), tp·pp·dp ≠ GPUs, ep
    that fits no rank count.
    """
    if has_pools(text):
        return _parse_pools(text, gpu, model)
    if gpu is not None or model is not None:
        return Deployment.of(_parse(text, gpu, model))
    try:
        return Deployment.of(_parse(text))
    except InputError as error:
        meant = _guess(text)
        if meant is None or not split_deployment(text)[0]:
            raise
        raise InputError(f"{error}; did you mean {meant}?") from None


def parse_worker(text: str) -> Worker:
    """Return the worker of a shorthand that names no pools, as parse_deployment() has it. Raises
    InputError."""
    return parse_deployment(text).worker


def _parse_pools(text: str, gpu: Gpu | None, model: Model | None) -> Deployment:
    pools = []
    for role, workers, worker in split_pools(text):
        try:
            pools.append(DeployedPool(role, workers, _parse(worker, gpu, model)))
        except InputError as error:
            raise InputError(f"{role} pool: {error}") from None
    deployment = Deployment(tuple(pools))
    if deployment.gpus > _MAX_GPUS:
        raise InputError(f"deployment {text!r}: {deployment.gpus:,} GPUs; write 1 to {_MAX_GPUS:,}")
    return deployment


def _guess(text: str) -> str | None:
    """Return the deployment that has the parts of the text, where that can be one."""
    meant = suggest(text)
    if meant is None or meant == text:
        return None
    try:
        _parse(meant)
    except InputError:
        return None
    return meant


def _parse(text: str, gpu: Gpu | None = None, model: Model | None = None) -> Worker:
    left, where, rest = split_deployment(text)
    if not left or not where:
        example = _guess(text) or f"{EXAMPLE}/tp8,engine=vllm"
        raise InputError(f"deployment {text!r}: not MODEL@GPUS; write e.g. {example}")
    model, weights = _model_of(left, model)
    try:
        kind, gpus, nodes, node = _hardware_of(where, gpu)
        made = _arrange(
            model, kind, gpus, nodes, node, weights, _options_of(rest, _name_and_weights(left)[0])
        )
        return msgspec.structs.replace(made, named=_named(left, model))
    except InputError as error:
        raise InputError(f"deployment {text!r}: {error}") from None


def parse_named(text: str, hardware: Gpu | None, own: str | None = None) -> Deployment:
    """Return the deployment that a run names: what the catalogue alone has, but `hardware` and the
    model `own` (JSON, see RunFacts) where the run describes its own.

    Names come from servers and papers, so no file is read for one. Raises InputError where it takes
    one, and as parse_deployment() does.
    """
    model = read_given(msgspec.json.decode(own)) if own is not None else None
    named = models_of(text)[model is not None :]
    workers = [pool.worker for pool in split_pools(text)] if has_pools(text) else [text]
    described = hardware is None and any(is_file(split_deployment(worker)[1]) for worker in workers)
    if not all(map(is_catalogued, named)) or described:
        raise InputError("it names what only a file of yours describes")
    return parse_deployment(text, hardware, model)


def _model_of(left: str, model: Model | None = None) -> tuple[Model, str]:
    """Return the model that `MODEL[:weights]` names, and its precision; a model that is known by
    another precision's name is in that one."""
    name, weights = _name_and_weights(left)
    model = model or find_model(name)
    return model, weights or model.weights_dtype


def _name_and_weights(left: str) -> tuple[str, str | None]:
    name, colon, dtype = left.rpartition(":")
    if not colon:
        return split_precision(left)
    try:
        weights = dtype_of(dtype, f"deployment {left!r}")
    except InputError:
        if dtype.lower() not in FORMATS and ("/" in dtype or "\\" in dtype or "." in dtype):
            return left, None  # a path with a colon in it
        raise
    return split_precision(name)[0], weights


def _named(left: str, model: Model) -> str:
    """Return the name of a model as it was written, with the end that says its precision; nothing
    where it is the name that its entry is shown by anyway."""
    name, _, dtype = left.rpartition(":")
    written = name if name and dtype and _name_and_weights(left)[1] is not None else left
    shown = next((alias for alias in model.aliases if "/" not in alias), model.name)
    return "" if written.strip().lower() in (model.name.lower(), shown) else written.strip()


def _hardware_of(where: str, gpu: Gpu | None) -> tuple[Gpu, int, int, Node | None]:
    match = _WHERE.fullmatch(where)
    if match is None:
        raise InputError(
            f"{where!r} names no GPUs; write e.g. 8xh200, and options behind a slash, 8xh200/tp8"
        )
    count, name = int(match[1] or 1), match[2].strip()
    if not 1 <= count <= _MAX_GPUS:
        raise InputError(f"{count} GPUs; write 1 to {_MAX_GPUS}")
    hardware = gpu or find_hardware(name)
    if isinstance(hardware, Gpu):
        return hardware, count, -(-count // hardware.per_node), None
    gpu, nic = find_gpu(hardware.gpu), hardware.scale_out_bytes_per_s
    if nic is not None and nic != gpu.nic_bytes_per_s:
        gpu = msgspec.structs.replace(gpu, nic_bytes_per_s=nic)
    if count * hardware.gpus > _MAX_GPUS:
        raise InputError(f"{count * hardware.gpus} GPUs; write 1 to {_MAX_GPUS}")
    return gpu, count * hardware.gpus, count, hardware


def _options_of(rest: str, model: str) -> _Options:
    options = _Options(model)
    parts = split_commas(rest)
    for key, value in map(key_value, parts):  # what another option means depends on it
        if key == "engine":
            options.engine = engine_of(value)
    for part in parts:
        _read_option(part, options)
    for key in options.arguments:
        if OWNERS.get(key, options.engine) != options.engine:
            arguments = [name for name, engine in OWNERS.items() if engine == options.engine]
            whose = f"{key} is an argument of {OWNERS[key]}, not of {options.engine}"
            remedy = f"; its own are {', '.join(arguments)}" if arguments else ""
            raise InputError(whose + remedy)
    return options


def _read_option(part: str, options: _Options) -> None:
    key, value = key_value(part)
    ours = ENGINES[options.engine].same.get(key, key)
    stands = "=" in part
    count = _COUNT.fullmatch(part.lower()) or _COUNT.fullmatch(f"{ours}={value}")
    if count:
        _check_once(count[1], options.counts)
        options.counts[count[1]] = int(count[2])
    elif ours in _SHARED:
        if stands and value.lower() not in (*ON, *OFF):
            raise InputError(f"{part!r} is neither true nor false")
        options.attention_dp = not stands or value.lower() in ON
        options.within = options.attention_dp and key not in _SHARED
    elif ours == "kv":
        options.kv_dtype = kv_dtype_of(value, "kv")
    elif ours == "version":
        options.engine_version = value or None
    elif is_taken(options.engine, ours):
        if not value and (stands or ours not in SWITCHES):
            raise InputError(f"{part!r} has no value; write {ours}=…")
        value = value or "1"
        if value.lower() not in CHOICES.get(ours, (value.lower(),)):
            ways = " or ".join(f"{ours}={choice}" for choice in CHOICES[ours])
            raise InputError(f"{part!r} is not known; write {ways}")
        _check_once(ours, options.arguments)
        options.arguments[ours] = value.lower() if ours in CHOICES else value
    elif ours != "engine":
        _not_taken(part, key, value, options)


def _not_taken(part: str, key: str, value: str, options: _Options) -> NoReturn:
    """Return what is no option here: said elsewhere, another engine's, or not known at all."""
    engine = options.engine
    hint = ENGINES[engine].elsewhere.get(key) or ELSEWHERE.get(key)
    if hint:
        try:
            weights = dtype_of(value, key)
        except InputError:
            weights = "fp8"
        raise InputError(f"{key} {hint.format(model=options.model, weights=weights)}")
    owners = [owner for owner in owners_of(key) if owner != engine]
    if owners:
        theirs = (ENGINES[owner].same.get(key) for owner in owners)
        ours = next((name for name in theirs if name and name not in OWNERS), None)
        whose = f"{key} is an argument of {' and '.join(owners)}, not of {engine}"
        raise InputError(whose + (f"; here it is {ours}" if ours else ""))
    entry = ENGINES[engine]
    arguments = [name for name in ARGUMENTS if OWNERS.get(name, engine) == engine]
    words = (*_WORDS, *arguments, *entry.same, *entry.launch)
    names = {word.partition("=")[0]: word for word in words}
    close = difflib.get_close_matches(key, names, 3, 0.5) or list(names)
    raise InputError(f"unknown option {part!r}; write {', '.join(names[name] for name in close)}")


def _check_once(key: str, seen: Iterable[str]) -> None:
    if key in seen:
        raise InputError(f"{key} is given twice")


def engine_of(value: str) -> str:
    """Return an engine by any of its names. Raises InputError, which names all there are."""
    name = engine_key(value)
    if name in NAMED_OTHERWISE:
        raise InputError(NAMED_OTHERWISE[name])
    if name is None or name not in ENGINES:
        *first, last = ENGINES
        problem = f"{engine_title(value)} is not modelled here"
        if name is None:
            problem = f"unknown engine {value[:60]!r}"
        raise InputError(f"{problem}; the engines are {', '.join(first)} and {last}")
    return name


def _arrange(
    model: Model,
    gpu: Gpu,
    gpus: int,
    nodes: int,
    node: Node | None,
    weights_dtype: str,
    options: _Options,
) -> Worker:
    """Fills in the parallelism that was not said, and checks what was. Raises InputError."""
    counts = options.counts
    for key, value in counts.items():
        if not 1 <= value <= _MAX_GPUS:
            raise InputError(f"{key}{value} is not a count; write at least 1")
    if node is None:
        nodes = counts.get("nodes", nodes)
    elif counts.get("nodes", nodes) != nodes:
        raise InputError(f"nodes={counts['nodes']} beside {nodes}x{node.name}; leave one out")
    if options.within:
        counts = _split_replicas(counts, gpus)
    if options.attention_dp and "tp" in counts and "dp" not in counts:
        counts = {"pp": 1} | counts  # the rest is for replicas: one alone has nobody to share with
    tp, pp, dp = _parallelism(counts, gpus, nodes)
    if tp * pp * dp != gpus:
        hint = f"make their product {gpus}, or leave one out"
        if options.attention_dp and tp == gpus and tp % dp == 0:
            ours = f"tp{tp // dp},dp{dp},attention-dp"
            hint = f"SGLang's --tp {tp} --dp {dp} --enable-dp-attention is {ours} here"
        raise InputError(f"tp{tp} · pp{pp} · dp{dp} is {tp * pp * dp}, not {gpus} GPUs; {hint}")
    if gpus < nodes:
        raise InputError(f"{gpus} GPUs on {nodes} nodes; write at least one for each")
    ep = counts.get("ep", 1)
    attention_dp = options.attention_dp or (ep > tp and ep <= tp * dp)
    if attention_dp and dp == 1:
        would = (
            f"write e.g. tp1,dp{gpus},attention-dp, or leave it out" if gpus > 1 else "leave it out"
        )
        raise InputError(f"attention-dp has one replica, which shares with nobody; {would}")
    ranks = tp * dp if attention_dp else tp
    if ranks % ep:
        raise InputError(
            f"ep{ep} does not divide the {ranks} ranks that share the experts; write ep{ranks}, or"
            " leave ep out"
        )
    return Worker(
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
        draft=_draft_of(options.arguments),
    )


def _draft_of(arguments: dict[str, str]) -> Draft | None:
    """Return the model that `draft` names. Raises InputError where it is not known, or guesses
    nothing."""
    if "draft" not in arguments:
        return None
    if arguments.get("num_speculative_tokens", "0") == "0":
        raise InputError("the draft guesses no tokens; add num_speculative_tokens=5")
    try:
        model, weights = _model_of(arguments["draft"])
        return Draft(model, weights, _named(arguments["draft"], model))
    except InputError as error:
        raise InputError(f"draft: {error}") from None


def _split_replicas(counts: dict[str, int], gpus: int) -> dict[str, int]:
    """Return SGLang's `--tp 8 --dp 8 --enable-dp-attention` in our words, where tp is one
    replica's: tp1, dp8."""
    tp, pp, dp = (
        counts.get("tp", gpus // counts.get("pp", 1)),
        counts.get("pp", 1),
        counts.get("dp", 1),
    )
    within = dp > 1 and tp * pp == gpus and tp % dp == 0
    return counts | {"tp": tp // dp, "pp": pp} if within else counts


def _parallelism(counts: dict[str, int], gpus: int, nodes: int) -> tuple[int, int, int]:
    tp, pp, dp = counts.get("tp"), counts.get("pp"), counts.get("dp")
    if pp is None and dp is None:
        # A replica that leaves room on its node has no use for stages on others.
        pp = nodes if tp in (None, gpus // nodes) and gpus % ((tp or 1) * nodes) == 0 else 1
    pp = pp or (max(1, gpus // (tp * dp)) if tp and dp else 1)
    tp = tp or max(1, gpus // (pp * (dp or 1)))
    return tp, pp, dp or max(1, gpus // (tp * pp))
