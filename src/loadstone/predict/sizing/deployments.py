"""Many deployments at once: every model × GPU × count × … of the options."""

import re
from collections.abc import Iterator, Sequence
from itertools import product

import msgspec

from loadstone.catalogue import parse_deployment
from loadstone.catalogue.deployment.alternatives import expand, split_commas
from loadstone.catalogue.deployment.deployment import Deployment
from loadstone.catalogue.deployment.pools import ROLES, has_pools
from loadstone.catalogue.deployment.shorthand import engine_of, key_value, split_deployment
from loadstone.catalogue.deployment.suggestion import EXAMPLE, suggest
from loadstone.catalogue.engines import OWNERS, owners_of
from loadstone.core.document import Document
from loadstone.core.errors import InputError
from loadstone.predict.sizing.options import SizeOptions
from loadstone.predict.sizing.size import Row, pool_sizes, size

MOST_ROWS = 100_000

_OPTION = re.compile(
    r"(tp|pp|dp|ep|nodes)=?[0-9]+|attention[-_]dp|dp[-_]attention"
    r"|-*(enable|disable|enforce|no)[-_][a-z_-]+|[a-z_-]+=.*",
    re.IGNORECASE,
)
_COUNTED = re.compile(r"([0-9]+)\s*[x×*]\s*(.+)", re.IGNORECASE)
_OF_A_DEPLOYMENT = (
    "gpu",
    "gpus",
    "tp",
    "pp",
    "dp",
    "ep",
    "attention_dp",
    "weights_dtype",
    "kv_dtype",
)
"""Options that a model with an `@` says itself."""


def split_models(text: str) -> list[str]:
    """Models from a list with commas; those in a deployment's options (`@8xh200/tp4,engine=sglang`)
    part nothing."""
    models: list[str] = []
    for part in split_commas(text):
        goes_on = (
            _OPTION.fullmatch(part) or _in_pool(models[-1], part)
            if models and "@" in models[-1]
            else None
        )
        if goes_on:
            models[-1] += "," + part
        else:
            models.append(part)
    return models


def _in_pool(text: str, part: str) -> bool:
    """Tell whether a part is still of the pools before it: within their parentheses, or with the
    next one in it."""
    return (
        text.count("(") > text.count(")")
        or re.search(rf"\+\s*({'|'.join(ROLES)})\s*=", part) is not None
    )


def deployments(options: SizeOptions) -> Iterator[Deployment]:
    """All of them, in order. Raises InputError: unknown names, and what no deployment can be."""
    models = [
        model for text in options.models for part in split_models(text) for model in expand(part)
    ]
    if not models:
        raise InputError("MODEL: none given; write e.g. llama-3.1-70b, or llama-3.1-70b@8xh200")
    for model in models:
        yield from _read_deployment(model, options) if "@" in model else _combine(model, options)


def _read_deployment(model: str, options: SizeOptions) -> Iterator[Deployment]:
    for flag in _OF_A_DEPLOYMENT:
        if getattr(options, flag):
            raise InputError(
                f"--{flag.replace('_', '-')}: {model!r} is a whole deployment; leave one of"
                " them out"
            )
    if has_pools(model):
        if options.engine or options.arguments:
            raise InputError(
                f"--engine: {model!r} has pools, whose engine is said there; leave --engine out"
            )
        yield parse_deployment(model)
        return
    name, where, rest = split_deployment(model)
    for engine in options.engine or (None,):
        yield _parse(f"{name}@{where}", [*([rest] if rest else []), *_engine(options, engine)])


def _check_gpus(model: str, options: SizeOptions) -> None:
    counted = _COUNTED.fullmatch(model)
    if counted is not None and counted[2][0].isalpha():
        raise InputError(f"MODEL: {model!r} is GPUs and no model; write e.g. llama-3.1-70b@{model}")
    for gpu in options.gpu:
        counted = _COUNTED.fullmatch(gpu)
        if counted is not None:
            remedy = f"write --gpu {counted[2]} --gpus {counted[1]}, or {model}@{gpu}"
            raise InputError(f"--gpu: {gpu!r} is a number of GPUs, not the name of one; {remedy}")
    if not options.gpu:
        raise InputError(
            f"--gpu: none given for {model!r}; write e.g. --gpu h200, or"
            f" {suggest(model) or EXAMPLE}"
        )


def _combine(model: str, options: SizeOptions) -> Iterator[Deployment]:
    _check_gpus(model, options)
    counts = options.gpus or (1,)
    splits = list(
        product(
            options.tp or (None,),
            options.pp or (None,),
            options.dp or (None,),
            options.ep or (None,),
        )
    )
    several = len(counts) * len(splits) > 1
    none_yet = True
    for weights, gpu, count, kv, engine in product(
        options.weights_dtype or (None,),
        options.gpu,
        counts,
        options.kv_dtype or (None,),
        options.engine or (None,),
    ):
        for split in splits:
            if several and not _is_possible(count, *split, options.attention_dp):
                continue
            none_yet = False
            named = zip(("tp", "pp", "dp", "ep"), split, strict=True)
            parts = [f"{name}{value}" for name, value in named if value is not None]
            parts += ["attention-dp"] if options.attention_dp else []
            parts += [f"kv={kv}"] if kv else []
            name = f"{model}:{weights}" if weights else model
            yield _parse(f"{name}@{count}x{gpu}", [*parts, *_engine(options, engine)])
    if none_yet:
        raise InputError(
            "--gpus: no count is tp · pp · dp for any of those given; leave one of --tp, --pp,"
            " --dp out"
        )


def _engine(options: SizeOptions, engine: str | None) -> list[str]:
    parts = [f"engine={engine}"] if engine else []
    parts += [f"version={options.engine_version}"] if options.engine_version else []
    shares = {
        name: getattr(options, name) for name in ("gpu_memory_utilization", "mem_fraction_static")
    }
    arguments = [
        *(f"{name}={value}" for name, value in shares.items() if value is not None),
        *options.arguments,
    ]
    # Of several engines, each takes what it alone has, under its name here or under its own.
    named = {engine_of(engine)} if engine else set()
    rivals = {engine_of(name) for name in options.engine} - named
    for argument in arguments:
        key, _ = key_value(argument)
        owners = {OWNERS[key]} if key in OWNERS else set(owners_of(key))
        if owners & named or not owners & rivals:
            parts.append(argument)
    return parts


def _parse(where: str, options: Sequence[str]) -> Deployment:
    return parse_deployment(f"{where}/{','.join(options)}" if options else where)


def _is_possible(
    gpus: int, tp: int | None, pp: int | None, dp: int | None, ep: int | None, sharing: bool
) -> bool:
    ways = (tp or 1) * (pp or 1) * (dp or 1)
    whole = None not in (tp, pp, dp)
    if sharing and (dp or (gpus // ways if tp else 1)) < 2:
        return False  # one replica shares with nobody
    return (ways == gpus if whole else gpus % ways == 0) and gpus % (ep or 1) == 0


class Sizes(Document, msgspec.Struct, frozen=True, kw_only=True):
    """The document of `loadstone size --json`."""

    schema: int = 1
    rows: list[Row]


def sizes(options: SizeOptions) -> list[Row]:
    """A row for each deployment × context × batch; one that cannot be says why. Raises InputError:
    names and numbers that mean nothing, too many rows.
    """
    rows: list[Row] = []
    task = options.endpoint
    if task is not None and options.answer:
        raise InputError(f"--endpoint {task} and --answer: no text is written; leave one out")
    for named in deployments(options):
        deployment = named if task is None else named.asked_for(task)
        for context, batch in product(options.context or (None,), options.batch or (1,)):
            if len(rows) >= MOST_ROWS:
                raise InputError(f"more than {MOST_ROWS:,} rows; ask for fewer at a time")
            if deployment.is_split:
                rows += pool_sizes(deployment, context, batch)
            else:
                rows.append(size(deployment.worker, context, batch))
    return rows
