"""A deployment's memory under its engine's rules: the pieces of each rank, the cache, and what it
holds."""

import math

import msgspec

from loadstone.catalogue.deployment.deployment import Worker
from loadstone.core.errors import InputError
from loadstone.engines import ENGINES, rules_of
from loadstone.engines.rules import EngineRules
from loadstone.engines.sharding.kv_cache import Cache, largest
from loadstone.engines.sharding.limits import BatchLimits, Budget, EngineLimits
from loadstone.engines.sharding.rank import Rank
from loadstone.predict.sizing.check import contradictions

NO_LIMIT_TOKENS = 1 << 24
"""The longest context looked at where the model's config names none."""
_USUAL_FRACTION = "0.8"
_MOST_DOUBLED = 9
"""Remedies are looked for up to 2⁸ times the GPUs."""


class Memory(msgspec.Struct, frozen=True):
    """limits; a (rank, budget, cache) per pipeline stage; `binding`: the stage whose cache has the
    fewest blocks, which all of them then have."""

    rules: EngineRules
    limits: BatchLimits
    stages: tuple[tuple[Rank, Budget, Cache], ...]
    binding: int
    blocks: int

    @property
    def budget(self) -> Budget:
        return self.stages[self.binding][1]

    @property
    def cache(self) -> Cache:
        return self.stages[self.binding][2]

    @property
    def tokens(self) -> int:
        """Return the tokens that the cache holds, of requests as long as they may be."""
        if not self.cache.block_bytes:
            return NO_LIMIT_TOKENS
        return self.cache.tokens(self.blocks, self.rules.context_limit or NO_LIMIT_TOKENS)

    @property
    def max_seqs(self) -> int:
        """Return the requests that one replica's scheduler runs at once, whatever the memory."""
        return self.rules.max_seqs(self.limits, self.tokens)

    def together(self, context_tokens: int) -> int:
        """Return the requests that a replica's cache has at once at most: of what writes no text
        those of one step, which then leave it."""
        if self.rules.worker.task is None:
            return NO_LIMIT_TOKENS
        return max(1, self.limits.max_batched_tokens // context_tokens)

    @property
    def has_room(self) -> bool:
        """Something is left for a cache. A rank that keeps nothing but states, in a pool, needs
        nothing."""
        return not _lacks(self.budget, self.cache)

    @property
    def grows_evenly(self) -> bool:
        """Each token of a request takes as much as any other, and nothing else does."""
        states = any(layer.state_bytes for rank, _, _ in self.stages for layer in rank.cache)
        return not states and all(
            group.kind == "full" for _, _, cache in self.stages for group in cache.groups
        )

    def requests(self, context_tokens: int) -> float:
        """That one replica holds at once, with a fraction; inf where nothing grows with them.

        States come out of their own pool, or out of the cache's blocks (vLLM), else out of the same
        room as it.
        """
        held = math.inf
        for rank, budget, cache in self.stages:
            if cache.block_bytes:
                held = min(held, cache.requests(self.blocks, context_tokens))
            state = sum(layer.count * layer.state_bytes for layer in rank.cache)
            if not state or any(group.kind == "state" for group in cache.groups):
                continue
            if budget.state_bytes:
                held = min(held, budget.state_bytes / (state * budget.request_states))
            else:
                blocks_bytes = cache.request_blocks(context_tokens) * cache.block_bytes
                held = min(held, max(0.0, budget.kv_bytes) / (state + blocks_bytes))
        return held

    def holds(self, context_tokens: int, requests: int) -> bool:
        if not self.has_room:
            return False
        return self.requests(context_tokens) >= requests and all(
            cache.holds(self.blocks, context_tokens, requests)
            for _, _, cache in self.stages
            if cache.block_bytes
        )

    def whole_requests(self, context_tokens: int) -> float:
        """requests() in whole ones, all of which are held; inf where nothing grows with them."""
        held = self.requests(context_tokens)
        if held == math.inf:
            return held
        whole = math.floor(held)
        # A block that is never given out may be what the last one lacks.
        return whole if not whole or self.holds(context_tokens, whole) else whole - 1


def memory_of(worker: Worker, context_tokens: int | None = None) -> Memory:
    """Divide the memory of each stage. `context_tokens` matters to old vLLM alone, whose steps took
    whole prompts. Raises InputError: an engine without rules, an argument that is no number."""
    if worker.engine not in ENGINES:
        raise InputError(
            f"engine {worker.engine!r} has no sizing rules here; write one of {', '.join(ENGINES)}"
        )
    rules = rules_of(worker)
    limits = rules.limits(context_tokens)
    stages = tuple(
        (rank, rules.budget(rank, limits), rules.cache(rank, limits)) for rank in rules.ranks
    )
    rooms = [budget.kv_bytes for _, budget, _ in stages]
    lacking = [i for i, (_, budget, cache) in enumerate(stages) if _lacks(budget, cache)]
    if lacking:
        return Memory(rules, limits, stages, min(lacking, key=lambda i: rooms[i]), 0)
    blocks = [cache.blocks(budget.kv_bytes) for _, budget, cache in stages]
    growing = [i for i, (_, _, cache) in enumerate(stages) if cache.block_bytes]
    binding = min(growing or range(len(stages)), key=lambda i: (blocks[i], rooms[i]))
    fewest, limit = blocks[binding], rules.most_kv_tokens
    if limit is not None:
        fewest = min(fewest, limit // limits.block_tokens)
    return Memory(rules, limits, stages, binding, fewest)


def _lacks(budget: Budget, cache: Cache) -> bool:
    # Rounding: what is left of a rank without a growing cache may come out a fraction of a byte
    # below nothing.
    return budget.kv_bytes <= 0 if cache.block_bytes else budget.kv_bytes < -1


def max_context(worker: Worker, requests: int = 1) -> int:
    """The longest context at which a replica holds `requests` at once, up to the model's limit; 0
    where none fits."""
    rules = rules_of(worker)
    limit = rules.context_limit or NO_LIMIT_TOKENS
    if rules.worker.task is not None:
        requests = 1  # those of a step take no more than its tokens
    if rules.picture_states:
        states, memory = rules.picture_states, memory_of(worker)
        return largest(0, limit, lambda n: memory.holds(n + states, requests))
    whole = rules.whole_prompts(limit)
    if limit > whole:
        longest = _longest(memory_of(worker, limit if whole else None), limit, requests)
        if longest > whole or not whole:
            return longest
    return largest(0, min(limit, whole), lambda n: memory_of(worker, n).holds(n, requests))


def reserved_tokens(worker: Worker) -> int | None:
    """Return the tokens that each request takes room for where the cache is not paged: the longest
    that is held at all; else None."""
    return max_context(worker) if worker.argument("kv_cache") == "reserved" else None


def _longest(memory: Memory, limit: int, requests: int) -> int:
    if not memory.holds(1, requests):
        return 0
    longest = min(
        (
            cache.max_context(memory.blocks, limit, requests)
            for _, _, cache in memory.stages
            if cache.block_bytes
        ),
        default=limit,
    )
    if memory.holds(longest, requests):
        return longest
    return largest(
        1, longest, lambda context: memory.holds(context, requests)
    )  # states share the room


def engine_limits(worker: Worker, context_tokens: int | None = None) -> EngineLimits:
    """Return the limits that a scheduler of this deployment works under. Raises InputError where it
    does not fit, and says why.

    A cache of windows or states holds more tokens of long requests than of short ones: it is that
    of requests of `context_tokens`; None: of the longest there may be.
    """
    wrong = contradictions(worker)
    if wrong:
        raise InputError(f"{worker.name}: {wrong[0]}")
    memory = memory_of(worker)
    tokens = memory.tokens
    if not memory.has_room or tokens <= 0:
        raise InputError(f"{worker.name}: {no_room(worker, memory)}")
    block = memory.limits.block_tokens
    if context_tokens is not None and not memory.grows_evenly:
        tokens = max(
            block, int(min(memory.requests(context_tokens), NO_LIMIT_TOKENS) * context_tokens)
        )
    blocks = memory.blocks if tokens == memory.blocks * block else tokens // block
    # However short they are, each takes its states.
    seqs = max(1, int(min(memory.max_seqs, memory.whole_requests(1))))
    return EngineLimits(block, memory.limits.max_batched_tokens, seqs, tokens, blocks)


DISK_BYTES_PER_S = 7e9
"""Of a node, whose GPUs share it: an NVMe disk on PCIe 4.0."""


def lower_tiers(worker: Worker) -> dict[str, float]:
    """Return what the tiers below one replica's KV cache hold, in tokens, and the seconds that a
    token takes over the link to each, as Tiers has them; nothing where the deployment names none.
    Raises InputError.

    A rank keeps the blocks of its own layout: copies of a latent cache are kept as often as there
    are ranks. Memory and disk are the deployment's, dealt evenly over its ranks.
    """
    host, disk = (worker.memory_bytes(name) for name in ("kv_host", "kv_disk"))
    if host is None:
        return {}
    memory, limits = memory_of(worker), engine_limits(worker)
    token_bytes = memory.blocks * memory.cache.block_bytes / limits.kv_tokens  # of a rank
    replica_bytes = worker.gpus * token_bytes
    per_node = worker.gpus / worker.nodes
    return {
        "host_tokens": int(host / replica_bytes),
        "host_token_s": token_bytes / worker.gpu.from_host_per_s,
        "disk_tokens": int((disk or 0) / replica_bytes),
        "disk_token_s": token_bytes * per_node / DISK_BYTES_PER_S,
    }


def no_room(
    worker: Worker,
    memory: Memory,
    context_tokens: int = 1,
    requests: int = 1,
    narrower: str | None = None,
) -> str:
    """Why nothing is left for a KV cache, and how many GPUs would hold `requests` of
    `context_tokens` in all.

    `narrower`: a precision of weights in which these GPUs do, where one was looked for and found.
    """
    budget = memory.budget
    have = budget.total_bytes - budget.outside_bytes
    room = budget.kv_bytes + budget.weights_bytes + budget.state_bytes
    per_gpu = (
        f"{_gib(budget.weights_bytes)} GiB of weights per GPU and {_gib(have - room)} of everything"
        " else"
    )
    text = (
        f"{per_gpu} do not fit the {_gib(have)} GiB that the engine may use of each"
        f" {worker.gpu.name}"
    )
    if room <= 0:
        return f"{text}; smaller steps (max_num_batched_tokens, max_num_seqs) or a larger GPU would"
    shared = _sharing_experts(worker, context_tokens, requests)
    if shared is not None:
        return f"{text}; replicas that share one set of experts would ({_cut(shared)})"
    freed = _keeping_less_free(memory.rules)
    if freed is not None:
        return (
            f"{text}; {freed} would: by itself the engine keeps more free, the larger its chunks of"
            " prompts"
        )
    larger = (
        more_gpus(worker, context_tokens, requests, budget.weights_bytes / room)
        or "larger GPUs would"
    )
    # In the shorthand's words, which all commands take; --weights-dtype is of `size` alone.
    wide = worker.weights_dtype in ("bf16", "fp16", "fp32")
    half = msgspec.structs.replace(worker, weights_dtype="fp8")
    halved = " (MODEL:fp8)" if wide and not contradictions(half) else ""
    text = f"{text}; {larger}, or weights of fewer bits{halved}"
    if halved and narrower == "fp8":
        return f"{text}, which these GPUs hold"
    return text if narrower is None else f"{text}: these GPUs hold {narrower} (MODEL:{narrower})"


def can_hold(worker: Worker, context_tokens: int, requests: int) -> bool:
    """Tell whether such a deployment can be, and holds `requests` of `context_tokens` at once, over
    all its replicas."""
    if contradictions(worker, context_tokens):
        return False
    return memory_of(worker, context_tokens).holds(context_tokens, -(-requests // worker.dp))


def more_gpus(worker: Worker, context_tokens: int, requests: int, times: float = 1.0) -> str | None:
    """Name the GPUs, at least so many `times` as many, that hold `requests` of `context_tokens`: `4
    GPUs would (tp4)`."""
    found = _enough(worker, context_tokens, requests, times)
    return None if found is None else f"{found.gpus} GPUs would ({_cut(found)})"


def _keeping_less_free(rules: EngineRules) -> str | None:
    """The argument for the usual share of static memory, if the engine's own is smaller and with
    this there is room."""
    name, worker = rules.static_argument, rules.worker
    if not name or worker.argument(name) is not None:
        return None
    static = msgspec.structs.replace(worker, arguments=(*worker.arguments, (name, _USUAL_FRACTION)))
    return f"{name}={_USUAL_FRACTION}" if memory_of(static).has_room else None


def _sharing_experts(worker: Worker, context_tokens: int, requests: int) -> Worker | None:
    """The same with attention data-parallel, where it has replicas whole and that holds it."""
    if worker.dp == 1 or worker.attention_dp or not worker.model.has_experts:
        return None
    for ep in (worker.ep, worker.tp * worker.dp):
        shared = msgspec.structs.replace(worker, attention_dp=True, ep=ep)
        if can_hold(shared, context_tokens, requests):
            return shared
    return None


def _enough(worker: Worker, context_tokens: int, requests: int, times: float) -> Worker | None:
    """The same on twice as many GPUs, four times …: the first that holds it, with tp as wide as a
    node allows."""
    ranks_now = worker.tp * worker.pp
    first = max(1, math.ceil(math.log2(times)))
    for doubled in range(first, _MOST_DOUBLED):
        ranks_then = ranks_now << doubled
        gpus = ranks_then * worker.dp
        nodes = -(-gpus // worker.gpu.per_node)
        widest = min(ranks_then, 1 << (worker.gpu.per_node.bit_length() - 1))
        for tp in (widest >> halvings for halvings in range(widest.bit_length())):
            if ranks_then % tp:
                continue
            larger = msgspec.structs.replace(
                worker, gpus=gpus, nodes=nodes, node=None, tp=tp, pp=ranks_then // tp
            )
            if larger.moe_ranks % larger.ep == 0 and can_hold(larger, context_tokens, requests):
                return larger
    return None


def _cut(worker: Worker) -> str:
    """The parallelism in words, `tp8 pp2`; empty on one GPU."""
    named = (
        ("tp", worker.tp),
        ("pp", worker.pp),
        ("dp", worker.dp),
        ("ep", worker.ep),
    )
    words = ["attention-dp"] * worker.attention_dp + [
        f"{name}{value}" for name, value in named if value > 1
    ]
    return " ".join(words)


def _gib(value: float) -> str:
    return f"{value / (1 << 30):,.1f}"
