"""Many deployments at once: every model × GPU × count × … that was asked for."""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import msgspec

from loadstone.catalogue import parse_deployment
from loadstone.catalogue.deployment.deployment import Deployment
from loadstone.catalogue.deployment.shorthand import engine_of, key_value, split_deployment
from loadstone.catalogue.engines import OWNERS, owners_of
from loadstone.core.errors import InputError
from loadstone.core.units import TOKEN_UNITS, parse_counts
from loadstone.predict.sizing.size import Row, size
from loadstone.workload.flag_names import no_such_option

MOST_ROWS = 100_000

_OPTION = re.compile(
    r"(tp|pp|dp|ep|nodes)=?[0-9]+|attention[-_]dp|dp[-_]attention|-*(enable|disable|enforce|no)[-_][a-z_-]+|[a-z_-]+=.*",
    re.IGNORECASE,
)

_TOKENS = re.compile(r"([0-9]+)\s*([km]?)", re.IGNORECASE)
_COUNTS = ("gpus", "tp", "pp", "dp", "ep", "batch")
_WRITE = {
    "gpu": "h200", "weights_dtype": "fp8", "kv_dtype": "fp8", "engine": "vllm", "engine_version": "0.19.0",
    "arguments": "max_num_seqs=64",
}  # fmt: skip


class Ask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to size: each of `models` with all that the other fields list; an empty one leaves the default.

    models            names, paths, or whole deployments (with an `@`): these take engine, context and batch alone
    gpus              counts of each of `gpu`
    tp, pp, dp, ep    combinations that make no deployment are left out, unless none is left
    arguments         the engine's own, `name=value`
    context, batch    tokens and requests; no context: the longest that the model allows
    """

    models: tuple[str, ...]
    gpu: tuple[str, ...] = ()
    gpus: tuple[int, ...] = ()
    tp: tuple[int, ...] = ()
    pp: tuple[int, ...] = ()
    dp: tuple[int, ...] = ()
    ep: tuple[int, ...] = ()
    attention_dp: bool = False
    weights_dtype: tuple[str, ...] = ()
    kv_dtype: tuple[str, ...] = ()
    engine: tuple[str, ...] = ()
    engine_version: str | None = None
    arguments: tuple[str, ...] = ()
    context: tuple[int, ...] = ()
    batch: tuple[int, ...] = (1,)


def split_models(text: str) -> list[str]:
    """Models from a list with commas; those in a deployment's options (`@8xh200/tp4,engine=sglang`) part nothing."""
    found: list[str] = []
    for part in text.split(","):
        if found and "@" in found[-1] and _OPTION.fullmatch(part.strip()):
            found[-1] += "," + part.strip()
        elif part.strip():
            found.append(part.strip())
    return found


def deployments(ask: Ask) -> Iterator[Deployment]:
    """All that were asked for, in order. Raises InputError: unknown names, and what no deployment can be."""
    if not ask.models:
        raise InputError("MODEL: none given; write e.g. llama-3.1-70b, or llama-3.1-70b@8xh200")
    for model in ask.models:
        yield from _whole(model, ask) if "@" in model else _combined(model, ask)


def _whole(model: str, ask: Ask) -> Iterator[Deployment]:
    for flag in ("gpu", "gpus", "tp", "pp", "dp", "ep", "attention_dp", "weights_dtype", "kv_dtype"):
        if getattr(ask, flag):
            raise InputError(f"--{flag.replace('_', '-')}: {model!r} is a whole deployment; leave one of them out")
    name, where, rest = split_deployment(model)
    for engine in ask.engine or (None,):
        parts = [*(rest.split(",") if rest else ()), *_engine(ask, engine)]
        yield _parsed(f"{name}@{where}", parts)


def _combined(model: str, ask: Ask) -> Iterator[Deployment]:
    if not ask.gpu:
        raise InputError(f"--gpu: none given for {model!r}; write e.g. --gpu h200, or {model}@8xh200")
    counts = ask.gpus or (1,)
    ways = list(product(ask.tp or (None,), ask.pp or (None,), ask.dp or (None,), ask.ep or (None,)))
    choosy = len(counts) * len(ways) > 1
    some = False
    for weights, gpu, count, kv, engine in product(
        ask.weights_dtype or (None,), ask.gpu, counts, ask.kv_dtype or (None,), ask.engine or (None,)
    ):
        for tp, pp, dp, ep in ways:
            if choosy and not _possible(count, tp, pp, dp, ep, ask.attention_dp):
                continue
            some = True
            named = (("tp", tp), ("pp", pp), ("dp", dp), ("ep", ep))
            parts = [f"{name}{value}" for name, value in named if value is not None]
            parts += ["attention-dp"] if ask.attention_dp else []
            parts += [f"kv={kv}"] if kv else []
            name = f"{model}:{weights}" if weights else model
            yield _parsed(f"{name}@{count}x{gpu}", [*parts, *_engine(ask, engine)])
    if not some:
        raise InputError("--gpus: no count is tp · pp · dp for any of those given; leave one of --tp, --pp, --dp out")


def _engine(ask: Ask, engine: str | None) -> list[str]:
    parts = [f"engine={engine}"] if engine else []
    parts += [f"version={ask.engine_version}"] if ask.engine_version else []
    # Of several engines, each takes what is its own.
    own = {engine_of(engine)} if engine else set()
    others = {engine_of(other) for other in ask.engine} - own
    for said in ask.arguments:
        owners = _owners(key_value(said)[0])
        if owners & own or not owners & others:
            parts.append(said)
    return parts


def _owners(argument: str) -> set[str]:
    """Engines that alone have it, under its name here or under their own."""
    return {OWNERS[argument]} if argument in OWNERS else set(owners_of(argument))


def _parsed(where: str, options: Sequence[str]) -> Deployment:
    return parse_deployment(f"{where}/{','.join(options)}" if options else where)


def _possible(gpus: int, tp: int | None, pp: int | None, dp: int | None, ep: int | None, sharing: bool) -> bool:
    ways = (tp or 1) * (pp or 1) * (dp or 1)
    whole = None not in (tp, pp, dp)
    if sharing and (dp or (gpus // ways if tp else 1)) < 2:
        return False  # one replica shares with nobody
    return (ways == gpus if whole else gpus % ways == 0) and gpus % (ep or 1) == 0


def rows(wanted: Iterable[Deployment], contexts: Sequence[int] = (), batches: Sequence[int] = (1,)) -> list[Row]:
    """A row for each deployment × context × batch. Raises InputError, also where there would be too many."""
    found: list[Row] = []
    for deployment in wanted:
        for context, batch in product(contexts or (None,), batches):
            if len(found) >= MOST_ROWS:
                raise InputError(f"more than {MOST_ROWS:,} rows; ask for fewer at a time")
            found.append(size(deployment, context, batch))
    return found


def document(found: Sequence[Row]) -> dict[str, Any]:
    """The JSON document; whole numbers of bytes are integers."""
    builtin = [msgspec.to_builtins(row) for row in found]
    for row in builtin:
        for name, value in row.items():
            if isinstance(value, float) and (value.is_integer() or (name.endswith("_bytes") and abs(value) > 1e6)):
                row[name] = round(value)
    return {"schema": 1, "rows": builtin}


def ask(models: str | Sequence[str], **options: Any) -> dict[str, Any]:
    """answer() with single values for lists, and models, tokens and counts as on the command line too.

    Raises InputError as answer() does, for a value of the wrong kind, and where there is no such option.
    """
    plain = Ask(models=())
    given: dict[str, Any] = {}
    for name, value in options.items():
        if name == "models" or name not in Ask.__struct_fields__:
            raise no_such_option(name, Ask.__struct_fields__[1:], "size")
        if value is None:
            continue
        if isinstance(getattr(plain, name), tuple):
            read = tokens_of if name == "context" else counts_of if name in _COUNTS else _words_of
            if parts := tuple(part for each in _several(value) for part in read(each, name)):
                given[name] = parts
        elif name == "attention_dp":
            given[name] = bool(value)
        else:
            (given[name],) = _words_of(value, name)
    texts = [text for each in _several(models) for text in _words_of(each, "models")]
    return answer(Ask(models=tuple(part for text in texts for part in split_models(text)), **given))


def _several(value: Any) -> Iterable[Any]:
    """What stands for several: a list, a range, a column of pandas; all else is one."""
    one = isinstance(value, str | os.PathLike | Mapping) or getattr(value, "shape", None) == ()
    return value if hasattr(value, "__iter__") and not one else (value,)


def _words_of(value: Any, what: str) -> tuple[str, ...]:
    if not isinstance(value, str | os.PathLike):
        raise InputError(f"{what}: {value!r} is not a text; write e.g. {_WRITE.get(what, 'llama-3.1-70b')!r}")
    return (os.fspath(value),)


def counts_of(value: Any, what: str) -> tuple[int, ...]:
    """Whole numbers of at least 1, as numbers or as `1,2,4`. Raises InputError."""
    if isinstance(value, str):
        return tuple(parse_counts(value, what))
    number = _integer(value)
    if number is None or not 1 <= number < 2**31:
        raise InputError(f"{what}: {value!r} is not a whole number of at least 1; write e.g. 1, 8 or [1, 8]")
    return (number,)


def tokens_of(value: Any, what: str) -> tuple[int, ...]:
    """Tokens, as numbers or as `8k,131072`; k is 1024, as in "128k" of 131,072. Raises InputError."""
    if not isinstance(value, str):
        number = _integer(value)
        if number is None or not 1 <= number < 10**9:
            raise InputError(f"{what}: {value!r} is not a number of tokens; write e.g. 4096, 8k or 1m")
        return (number,)
    found = []
    for part in (piece.strip() for piece in value.split(",") if piece.strip()):
        match = _TOKENS.fullmatch(part)
        tokens = int(match[1]) * TOKEN_UNITS[match[2].lower()] if match and len(match[1]) < 10 else 0
        if tokens < 1:
            raise InputError(f"{what}: {part!r} is not a number of tokens; write e.g. 4096, 8k or 1m")
        found.append(tokens)
    return tuple(found)


def _integer(value: Any) -> int | None:
    """As an int, numpy's too; None for what is no whole number, and for True."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def answer(ask: Ask) -> dict[str, Any]:
    """The whole way: what was asked, as a document. A deployment that cannot be has a row that says why.

    Raises InputError: names and numbers that mean nothing.
    """
    return document(rows(deployments(ask), ask.context, ask.batch))
