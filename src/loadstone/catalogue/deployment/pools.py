"""Reads the shorthand of a deployment whose prefill and decode have pools of workers of their own:
`deepseek-r1@prefill=4*(4xgb200/tp4)+decode=32xgb200/dp32,ep32,attention-dp`. Encoders of pictures
may stand before them, or before workers that do both:
`qwen3-vl-8b@encode=1xh100/tp1+both=2*(1xh100/tp1)`."""

import re
from typing import Literal, NamedTuple

from loadstone.catalogue.deployment.alternatives import split_commas
from loadstone.core.errors import InputError

Role = Literal["encode", "both", "prefill", "decode"]
ROLES: tuple[Role, ...] = ("encode", "both", "prefill", "decode")
EXAMPLE = "deepseek-r1@prefill=2*(8xh200/tp8)+decode=8xh200/dp8,attention-dp"
_MAX_WORKERS = 4096
_POOLS = re.compile(rf"@\s*(?:{'|'.join(ROLES)})\s*=", re.IGNORECASE)
_NEXT = re.compile(r"\+\s*(?=[a-z]+\s*=\s*[0-9(])", re.IGNORECASE)
_POOL = re.compile(r"\s*([a-z]+)\s*=\s*(.*?)\s*", re.IGNORECASE | re.DOTALL)
_WORKERS = re.compile(
    r"(?:([0-9]+)\s*[*×x]\s*)?\(([^()]*)\)\s*(?:[/,](.*))?", re.IGNORECASE | re.DOTALL
)
_BARE = re.compile(r"([0-9]+)\s*[*×x]\s*([0-9]+\s*[*×x]\s*.+)", re.IGNORECASE | re.DOTALL)
_SHARED = ("engine", "version", "kv")
"""Options that one pool says for the others too."""


class PoolText(NamedTuple):
    """A pool as its shorthand has it: `workers` of what the shorthand `worker` is."""

    role: Role
    workers: int
    worker: str


def has_pools(text: str) -> bool:
    """Return whether a shorthand names pools."""
    return _POOLS.search(text) is not None


def split_pools(text: str) -> list[PoolText]:
    """Return the pools of a shorthand, prefill first, each worker as a shorthand of its own. The
    engine, its version and the KV cache's precision that one pool says are those of a pool that
    does not. Raises InputError.

        >>> [pool.worker for pool in
        split_pools("m@prefill=2*(8xh200/tp8)+decode=8xh200/dp8,engine=sglang")]
        ['m@8xh200/tp8,engine=sglang', 'm@8xh200/dp8,engine=sglang']
    """
    found = _POOLS.search(text)
    assert found is not None  # noqa: S101
    model, rest = text[: found.start()].strip(), text[found.start() + 1 :]
    if not model:
        raise InputError(f"deployment {text!r}: names no model; write e.g. {EXAMPLE}")
    pools: dict[Role, tuple[int, str, list[str]]] = {}
    for part in _NEXT.split(rest):
        role, workers, hardware, options = _read_pool(part, text)
        if role in pools:
            raise InputError(
                f"deployment {text!r}: {role} is given twice; write one pool with more workers"
            )
        pools[role] = workers, hardware, options
    language: tuple[Role, ...] = ("both",) if "both" in pools else ("prefill", "decode")
    for role in language:
        if role not in pools:
            raise InputError(f"deployment {text!r}: has no {role} pool; write both, e.g. {EXAMPLE}")
    if "both" in pools and set(pools) != {"encode", "both"}:
        raise InputError(
            f"deployment {text!r}: workers that do both stand behind an encode pool alone; write"
            " encode=…+both=…, or leave both out"
        )
    shared: dict[str, str] = {}
    for _, _, options in pools.values():
        shared |= {_name_of(option): option for option in options if _name_of(option) in _SHARED}
    made = []
    for role in filter(pools.__contains__, ROLES):
        workers, hardware, options = pools[role]
        given = {_name_of(option) for option in options}
        options = options + [option for name, option in shared.items() if name not in given]
        worker = f"{model}@{hardware}" + (f"/{','.join(options)}" if options else "")
        made.append(PoolText(role, workers, worker))
    return made


def _read_pool(part: str, text: str) -> tuple[Role, int, str, list[str]]:
    """Return role, workers, GPUs and options of `prefill=4*(4xgb200/tp4)`, with or without
    parentheses."""
    pool = _POOL.fullmatch(part)
    role = next((role for role in ROLES if pool is not None and role == pool[1].lower()), None)
    if pool is None or role is None:
        raise InputError(
            f"deployment {text!r}: {part[:60]!r} is no pool; write prefill=…+decode=…, or"
            " encode=… before them or before both=…, e.g."
            f" {EXAMPLE}"
        )
    grouped, bare = _WORKERS.fullmatch(pool[2]), _BARE.fullmatch(pool[2])
    count, worker, shared = "1", pool[2], ""
    if grouped is not None:
        count, worker, shared = grouped[1] or "1", grouped[2], grouped[3] or ""
    elif bare is not None:
        count, worker = bare[1], bare[2]
    elif "(" in worker or ")" in worker:
        raise InputError(
            f"deployment {text!r}: {pool[2][:60]!r} is no N*(…) of {role} workers; write e.g."
            f" {EXAMPLE}"
        )
    if not 1 <= len(count) <= 9 or not 1 <= int(count) <= _MAX_WORKERS:
        raise InputError(
            f"deployment {text!r}: {role} has {count} workers; write 1 to {_MAX_WORKERS}"
        )
    hardware, _, options = worker.partition("/")
    return role, int(count), hardware.strip(), [*split_commas(options), *split_commas(shared)]


def _name_of(option: str) -> str:
    name = option.partition("=")[0].strip().lower().replace("-", "_").lstrip("_")
    return "kv" if name in ("kv_cache_dtype", "kv_dtype") else name
