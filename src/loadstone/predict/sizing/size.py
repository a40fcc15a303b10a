"""Does it fit, how long a context, how many at once: one row per deployment."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from loadstone.catalogue.architecture.precision import FORMATS
from loadstone.catalogue.deployment.deployment import DeployedPool, Deployment, Worker
from loadstone.catalogue.engines import not_simulated
from loadstone.core.errors import InputError
from loadstone.engines import rules_of
from loadstone.engines.handover import handover_problem, language_workers
from loadstone.engines.rules import EngineRules
from loadstone.engines.sharding.limits import Budget
from loadstone.engines.sharding.pictures import UNLIMITED
from loadstone.engines.sharding.rank import kv_replication, sequence_bytes
from loadstone.predict.sizing.check import beyond_context, contradictions
from loadstone.predict.sizing.memory import (
    NO_LIMIT_TOKENS,
    Memory,
    can_hold,
    lower_tiers,
    max_context,
    memory_of,
    more_gpus,
    no_room,
    reserved_tokens,
)

_SAME = ("gpus", "tp", "pp", "dp", "ep", "weights_dtype", "kv_dtype", "engine", "engine_version")
"""Fields of a Row that are a deployment's under the same name."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """The size of one deployment, a row of `loadstone size --json`. Bytes are of all its GPUs
    together, copies included, unless said otherwise; whole numbers of them are integers.

    kv_bytes_per_token       of the model, all ranks together, nothing counted twice; loaded draft
                             layers too, or the draft model
    kv_replication           bytes stored per token / kv_bytes_per_token, in one replica: above 1
                             where tensor parallelism exceeds the KV heads, or with MLA
    context_tokens, batch    the request; without a context, the longest that the model allows
    kv_bytes                 of batch × context_tokens, copies included; windows and states as they
                             are; of what writes no text: of as many as a step computes
    activation_bytes         peak of a step, runtime and CUDA graphs; SGLang: all it keeps beside
                             weights and KV
    reserve_bytes            what the engine leaves alone
    free_bytes               room for KV that batch × context_tokens leaves; negative: it lacks
    fits                     whether batch requests of context_tokens are held at once
    max_context_tokens       at which `batch` requests are held at once, up to the model's limit;
                             where each reserves the longest (kv_cache=reserved), that or none
    max_concurrent_requests  of context_tokens, held and run at once, over all replicas; of what
                             writes no text: texts of one step
    kv_capacity_tokens       that the KV caches of all replicas hold, of requests of context_tokens
    warm_sessions            of context_tokens, whose blocks all of the KV caches hold at once, over
                             all replicas
    warm_sessions_host       with those that the host's memory has, where it keeps blocks too
                             (kv_host); None: it does not
    why                      what stands against it and what would work, or what else limits it;
                             empty: nothing
    pool, workers            of a deployment with pools: the row is one of so many workers of
                             `prefill`, `decode` or `both`; of `encode`, whose context is the
                             tokens of the largest picture
    staging_bytes            of such a worker, room that caches on their way take: buffers beside
                             the cache, and what is kept free in it for each request
    adapters_bytes           slots for LoRA adapters, used or not; None: there are none
    embeddings_bytes         the cache of pictures' embeddings, on every rank; None: the engine
                             takes no pictures, or none before its cache
    tower_bytes              what the tower for pictures needs while it encodes the largest one
    processor_cache_bytes    of the host's memory, for pictures that are prepared; None: not known
    assumed                  what the model's config left open and was assumed, and fields not
                             understood; a draft that is not counted
    """

    model: str
    gpu: str
    gpus: int
    tp: int
    pp: int
    dp: int
    ep: int
    weights_dtype: str
    kv_dtype: str
    engine: str
    engine_version: str | None
    weights_bytes: float
    kv_bytes_per_token: float
    kv_replication: float
    context_tokens: int
    batch: int
    kv_bytes: float = 0
    activation_bytes: float = 0
    reserve_bytes: float = 0
    free_bytes: float
    usable_bytes: float
    fits: bool
    max_context_tokens: int = 0
    max_concurrent_requests: int = 0
    kv_capacity_tokens: int = 0
    warm_sessions: int = 0
    warm_sessions_host: int | None = None
    kv_blocks: int = 0
    block_tokens: int = 0
    why: str
    assumed: str = ""
    pool: str | None = None
    workers: int | None = None
    staging_bytes: float | None = None
    adapters_bytes: float | None = None
    embeddings_bytes: float | None = None
    tower_bytes: float | None = None
    processor_cache_bytes: float | None = None

    @property
    def machine(self) -> str:
        return f"{self.gpus}×{self.gpu}"

    @property
    def pictures_bytes(self) -> float:
        return (self.embeddings_bytes or 0.0) + (self.tower_bytes or 0.0)


def size(worker: Worker, context_tokens: int | None = None, batch: int = 1) -> Row:
    """The row of one deployment, under its engine's rules. Raises InputError: an engine without
    rules, an argument that is no number.
    """
    model, dp, rules = worker.model, worker.dp, rules_of(worker)
    context = context_tokens or rules.context_limit or NO_LIMIT_TOKENS
    wrong = contradictions(worker, context_tokens)
    memory = memory_of(worker, context)
    together = memory.together(context)
    requests = min(together, -(-batch // dp))  # requests of the fullest replica
    longest = 0 if contradictions(worker) else max_context(worker, requests)
    reserved = None if wrong else reserved_tokens(worker)
    # By each request, whatever it writes, with the largest picture that cross attention sees.
    taken = max(context, reserved or 0) + rules.picture_states
    fits = not wrong and memory.holds(taken, requests)
    if reserved is not None and not memory.holds(reserved, requests):
        longest = 0
    held = 0 if wrong or not memory.has_room else memory.whole_requests(taken)
    seqs = min(memory.max_seqs, together) if memory.has_room else 0
    ways = worker.tp * dp
    kv_bytes = (
        min(batch, dp * together)
        * worker.tp
        * sum(sequence_bytes(rank.cache, taken) for rank, _, _ in memory.stages)
    )
    budgets = [budget for _, budget, _ in memory.stages]
    room = ways * sum(budget.kv_bytes + budget.state_bytes for budget in budgets)
    capacity = memory.cache.held_tokens(memory.blocks, context) if memory.cache.block_bytes else 0
    return Row(
        model=model.name,
        gpu=worker.gpu.name,
        **{name: getattr(worker, name) for name in _SAME},
        weights_bytes=_as_integer(ways * sum(rank.weights_bytes for rank, _, _ in memory.stages)),
        kv_bytes_per_token=_as_integer(_kv_bytes_per_token(rules), limit=math.inf),
        kv_replication=_as_integer(
            kv_replication(model, worker.tp, rules.kv_dtype), limit=math.inf
        ),
        context_tokens=context,
        batch=batch,
        kv_bytes=_as_integer(kv_bytes),
        activation_bytes=_as_integer(
            ways
            * sum(
                budget.activation_bytes + budget.runtime_bytes + budget.graphs_bytes
                for budget in budgets
            )
        ),
        reserve_bytes=_as_integer(ways * sum(budget.outside_bytes for budget in budgets)),
        free_bytes=_as_integer(room - kv_bytes),
        usable_bytes=_as_integer(worker.gpu.usable_bytes * worker.gpus),
        fits=fits,
        max_context_tokens=longest,
        max_concurrent_requests=dp * int(min(seqs, held)),
        kv_capacity_tokens=dp * capacity,
        warm_sessions=dp * capacity // context,
        warm_sessions_host=_warm_with_host(rules, context, capacity) if fits else None,
        kv_blocks=memory.blocks,
        block_tokens=memory.cache.block_tokens if memory.cache.groups else 0,
        adapters_bytes=(
            _as_integer(ways * sum(budget.adapters_bytes for budget in budgets))
            if rules.has_adapters
            else None
        ),
        **_pictures(rules, ways, budgets),
        why=_why(worker, memory, _Request(taken, batch, longest, seqs), fits, wrong),
        assumed="; ".join(_assumed(rules)),
    )


def _pictures(rules: EngineRules, ways: int, budgets: list[Budget]) -> dict[str, Any]:
    names = ("embeddings_bytes", "tower_bytes")
    sizes = {name: ways * sum(getattr(budget, name) for budget in budgets) for name in names}
    if not sizes["embeddings_bytes"]:
        return {}
    found = {name: _as_integer(value) for name, value in sizes.items()}
    return {**found, "processor_cache_bytes": rules.processor_cache_bytes}


def pool_sizes(
    deployment: Deployment, context_tokens: int | None = None, batch: int = 1
) -> list[Row]:
    """Return a row for each pool, of one of its workers: of those that prefill with one request, of
    those that decode with their part of `batch`, and what caches on their way leave of the room."""
    problem, rows = handover_problem(deployment), []
    if deployment.encoders is not None:
        if problem is not None:
            raise InputError(f"{deployment.name}: {problem}")
        rows.append(_encoder_size(deployment.encoders))
    for pool, worker in zip(deployment.language, language_workers(deployment), strict=True):
        rules = rules_of(worker).handover if deployment.hands_over else None
        requests = 1 if pool.role == "prefill" else -(-batch // pool.workers)
        row = size(worker, context_tokens, requests)
        if rules is None or not row.kv_capacity_tokens:
            rows.append(_of_pool(row, pool, 0.0, row.max_concurrent_requests, problem))
            continue
        spare = (rules.spare_tokens or 0) if pool.role == "decode" else 0
        buffer = row.context_tokens if rules.buffers else 0
        room = row.kv_capacity_tokens // worker.dp - buffer
        held = min(
            row.max_concurrent_requests, worker.dp * max(0, room // (row.context_tokens + spare))
        )
        token = row.kv_bytes_per_token * row.kv_replication
        rows.append(_of_pool(row, pool, token * (worker.dp * buffer + held * spare), held, problem))
    return rows


def _encoder_size(pool: DeployedPool) -> Row:
    """Return the row of a worker that encodes pictures: its tower, what that needs for the largest
    one, and in vLLM its cache of embeddings (SGLang's is of the host). There is no KV cache.
    """
    worker, rules = pool.worker, rules_of(pool.worker)
    encoder, model = rules.encoder(rules.limits()), worker.model
    assert encoder is not None  # noqa: S101  handover_problem() looks
    copies = worker.tp if encoder.copies else 1
    weights = copies * encoder.tower.parameters * FORMATS[model.dtype].bytes
    tower = worker.tp * encoder.activation_bytes(model, worker.tp)
    cached = worker.tp * encoder.cache_bytes(model) if encoder.step_tokens < UNLIMITED else 0.0
    usable = worker.gpu.usable_bytes * worker.gpus
    free = usable - weights - tower - cached
    return Row(
        model=model.name,
        gpu=worker.gpu.name,
        **{name: getattr(worker, name) for name in _SAME},
        weights_bytes=_as_integer(weights),
        kv_bytes_per_token=0,
        kv_replication=1,
        context_tokens=encoder.largest.tokens,
        batch=1,
        free_bytes=_as_integer(free),
        usable_bytes=_as_integer(usable),
        fits=free >= 0,
        why="" if free >= 0 else "the tower and what it needs exceed the GPU; more tp would do",
        pool=pool.role,
        workers=pool.workers,
        embeddings_bytes=_as_integer(cached),
        tower_bytes=_as_integer(tower),
        processor_cache_bytes=rules.processor_cache_bytes,
    )


def _of_pool(
    row: Row, pool: DeployedPool, staging_bytes: float, held: int, problem: str | None
) -> Row:
    fits, why = row.fits and problem is None and held >= row.batch, row.why
    if problem is not None:
        why = problem
    elif row.fits and not fits:
        why = (
            f"beside caches on their way a {pool.role} worker has room for {held:,} requests of"
            f" {row.context_tokens:,} tokens, {row.batch:,} asked; more workers, or a shorter"
            " context, would do"
        )
    return msgspec.structs.replace(
        row,
        pool=pool.role,
        workers=pool.workers,
        staging_bytes=_as_integer(staging_bytes),
        max_concurrent_requests=held,
        free_bytes=_as_integer(row.free_bytes - staging_bytes),
        fits=fits,
        why=why,
    )


def _warm_with_host(rules: EngineRules, context: int, capacity: int) -> int | None:
    """Count the sessions that stay warm in the KV caches or the host: what is copied when it is
    computed is in both, what is copied when its room is wanted in one of them."""
    offload, lower = rules.offload, lower_tiers(rules.worker)
    if offload is None or not lower:
        return None
    host = int(lower["host_tokens"])
    tokens = capacity + host if offload.write == "evicted" else max(capacity, host)
    return rules.worker.dp * tokens // context


def _kv_bytes_per_token(rules: EngineRules) -> float:
    worker, kv_dtype = rules.worker, rules.kv_dtype
    total = worker.model.kv_bytes_per_token(kv_dtype)
    total += sum(run.count * run.kv_bytes_per_token(kv_dtype) for run in rules.draft_layers)
    if worker.draft is not None:
        total += worker.draft.model.kv_bytes_per_token(kv_dtype)
    return total


def _as_integer(value: float, limit: float = 1e6) -> float:
    """Return an integer where it is one, or beyond `limit`."""
    return round(value) if float(value).is_integer() or abs(value) > limit else value


def _assumed(rules: EngineRules) -> Iterator[str]:
    """List what was assumed, and what of the arguments changes nothing here."""
    worker = rules.worker
    yield from worker.model.assumed
    if rules.picture_states:
        yield (
            f"each request keeps {rules.picture_states:,} states of one largest picture in the"
            " cache, in slots of all layers, beside its tokens"
        )
    yield from _draft_assumed(worker)
    yield from not_simulated(worker.engine, worker.arguments)


def _draft_assumed(worker: Worker) -> Iterator[str]:
    """List what the draft's config left open, or say that nothing is counted of what guesses."""
    if worker.draft is not None:
        yield from (
            f"draft {worker.draft.model.name}: {assumption}"
            for assumption in worker.draft.model.assumed
        )
    elif worker.is_speculative and not worker.model.draft_layers:
        yield (
            "no memory of a draft is counted: none is named (draft=MODEL), and the checkpoint has"
            " none of its own"
        )


class _Request(NamedTuple):
    """The tokens and the number of requests asked for, and the most tokens and requests that there
    can be."""

    context: int
    batch: int
    longest: int
    seqs: int


def _why(worker: Worker, memory: Memory, request: _Request, fits: bool, wrong: list[str]) -> str:
    context, batch, longest, seqs = request
    if wrong:
        if wrong == [beyond_context(memory.rules, context)] and memory.has_room:
            held = int(min(memory.whole_requests(context), seqs)) * worker.dp
            if not held:
                return wrong[0]
            plural = "" if held == 1 else "s"
            return f"memory holds {held:,} request{plural} of {context:,} tokens, but {wrong[0]}"
        return "; ".join(wrong)
    if not memory.has_room:
        return no_room(worker, memory, context, batch, _fewer_bits(worker, context, batch))
    if not fits:
        whole, dp = memory.whole_requests(context), worker.dp
        held = int(whole) * dp
        requests = min(math.floor(memory.requests(context) * 100) / 100, whole + 0.99)
        whose = f"the KV cache of each of {dp} replicas" if dp > 1 else "the KV cache"
        share = f"{-(-batch // dp):,} of {batch:,} asked" if dp > 1 else f"{batch:,} asked"
        text = f"{whose} holds {requests:.2f} requests of {context:,} tokens, {share}"
        remedies = (
            ["a shorter max_model_len reserves less"] if reserved_tokens(worker) is not None else []
        )
        if longest:
            remedies.append(f"a context of {longest:,} fits")
        if batch > 1 and held:
            remedies.append(f"a batch of {min(held, seqs * dp)} fits")
        remedies += _larger_caches(memory.rules, context, batch)
        return "; ".join([text, *(remedies or ["larger GPUs would"])])
    if batch > seqs * worker.dp:
        return f"held, but {worker.engine} runs {seqs * worker.dp} requests at once at its defaults"
    per_node = min(worker.gpu.per_node, -(-worker.gpus // worker.nodes))
    if worker.tp > per_node:
        return f"tp{worker.tp} reaches beyond the {per_node} GPUs of a node: slow links"
    return ""


def _fewer_bits(worker: Worker, context: int, batch: int) -> str | None:
    """Find the widest precision of weights in which the same GPUs hold it; None where none of those
    looked at will do."""
    four = "nvfp4" if "fp4" in worker.gpu.flops_per_s else "int4"
    present = worker.weights_dtype
    for dtype in (
        name
        for name in ("fp8", four)
        if present not in FORMATS or FORMATS[name].bytes < FORMATS[present].bytes
    ):
        narrower = msgspec.structs.replace(worker, weights_dtype=dtype)
        if can_hold(narrower, context, batch):
            return dtype
    return None


def _larger_caches(rules: EngineRules, context: int, batch: int) -> list[str]:
    """List what would make the room for KV larger, or a token smaller."""
    deployment, arguments = rules.worker, rules.cache_arguments(context, batch)
    if arguments:
        texts = {name: str(value) for name, value in arguments}
        kept = tuple(argument for argument in deployment.arguments if argument[0] not in texts)
        larger = msgspec.structs.replace(deployment, arguments=(*kept, *texts.items()))
        if not contradictions(larger, context) and memory_of(larger, context).holds(context, batch):
            return [" with ".join(f"{name}={text}" for name, text in texts.items()) + " would"]
        return []
    wider = more_gpus(deployment, context, batch)
    half = deployment.kv_dtype in ("bf16", "fp16", "fp32")
    return [
        *(["an fp8 KV cache (--kv-dtype fp8) takes half"] if half else []),
        *([wider] if wider else []),
    ]
