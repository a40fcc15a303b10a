"""A deployment's memory under its engine's rules: the pieces of each rank, the cache, and what it holds."""

from __future__ import annotations

import math
from types import ModuleType

import msgspec

from loadstone.catalogue.deployment import Deployment
from loadstone.errors import InputError
from loadstone.sizing import llama_cpp, sglang, tensorrt_llm, vllm
from loadstone.sizing.budget import Budget, EngineLimits, Limits, count
from loadstone.sizing.cache import Cache
from loadstone.sizing.check import context_limit, contradictions
from loadstone.sizing.ranks import Rank, ranks

_ENGINES: dict[str, ModuleType] = {
    "vllm": vllm,
    "sglang": sglang,
    "tensorrt-llm": tensorrt_llm,
    "llama.cpp": llama_cpp,
}

NO_LIMIT_TOKENS = 1 << 24
"""The longest context looked at where the model's config names none."""


class Memory(msgspec.Struct, frozen=True):
    """limits; a (rank, budget, cache) per pipeline stage; `binding`: the stage whose cache has the fewest blocks,
    which all of them then have."""

    limits: Limits
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
    def rank(self) -> Rank:
        return self.stages[self.binding][0]

    def requests(self, context_tokens: int) -> float:
        """That one replica holds at once, with a fraction; inf where nothing grows with them."""
        held = math.inf
        for rank, budget, cache in self.stages:
            if cache.block_bytes:
                held = min(held, cache.concurrency(self.blocks, context_tokens))
            state = sum(layer.count * layer.state_bytes for layer in rank.cache)
            if state and budget.state_bytes:
                held = min(held, budget.state_bytes / state)
        return held

    def holds(self, context_tokens: int, requests: int) -> bool:
        if self.budget.kv_bytes <= 0:
            return False
        return self.requests(context_tokens) >= requests and all(
            cache.holds(self.blocks, context_tokens, requests) for _, _, cache in self.stages if cache.block_bytes
        )


def engine_of(deployment: Deployment) -> ModuleType:
    engine = _ENGINES.get(deployment.engine)
    if engine is None:
        raise InputError(f"engine {deployment.engine!r} has no sizing rules here; write one of {', '.join(_ENGINES)}")
    return engine


def memory_of(deployment: Deployment, context_tokens: int | None = None) -> Memory:
    """`context_tokens` matters to old vLLM alone, whose steps took whole prompts. Raises InputError: an engine
    without rules, an argument that is no number.
    """
    engine = engine_of(deployment)
    limits = engine.limits(deployment, context_tokens)
    stages = []
    for rank in ranks(deployment):
        stages.append((rank, engine.budget(deployment, rank, limits), engine.cache(deployment, rank, limits)))
    counts = [cache.blocks(budget.kv_bytes) for _, budget, cache in stages]
    rooms = [budget.kv_bytes for _, budget, _ in stages]
    growing = [i for i, (_, _, cache) in enumerate(stages) if cache.block_bytes]
    binding = min(growing or range(len(stages)), key=lambda i: (counts[i], rooms[i]))
    if min(rooms) <= 0:
        binding = rooms.index(min(rooms))
    return Memory(limits, tuple(stages), binding, 0 if min(rooms) <= 0 else counts[binding])


def max_context(deployment: Deployment, requests: int = 1) -> int:
    """The longest context at which a replica holds `requests` at once, up to the model's limit; 0 where none fits."""
    limit = context_limit(deployment) or NO_LIMIT_TOKENS
    if deployment.engine == "vllm" and vllm.is_v0(deployment):
        # Where longer prompts were taken in pieces, the memory no longer depends on their length.
        pieces = 32_768 if vllm.chunks_prompts(deployment, limit) else limit
        if limit > pieces:
            longest = _longest(memory_of(deployment, limit), limit, requests)
            if longest > pieces:
                return longest
        low, high = 0, min(limit, pieces)
        while low < high:
            middle = (low + high + 1) // 2
            fits = memory_of(deployment, middle).holds(middle, requests)
            low, high = (middle, high) if fits else (low, middle - 1)
        return low
    return _longest(memory_of(deployment), limit, requests)


def _longest(memory: Memory, limit: int, requests: int) -> int:
    if memory.budget.kv_bytes <= 0 or memory.requests(1) < requests:
        return 0
    return min(
        (cache.max_context(memory.blocks, limit, requests) for _, _, cache in memory.stages if cache.block_bytes),
        default=limit,
    )


def max_seqs(deployment: Deployment, memory: Memory) -> int:
    """Requests that one replica's scheduler runs at once, whatever the memory."""
    if deployment.engine == "sglang":
        return sglang.max_running(deployment, _tokens(deployment, memory))
    return memory.limits.max_seqs


def _tokens(deployment: Deployment, memory: Memory) -> int:
    context = context_limit(deployment) or NO_LIMIT_TOKENS
    tokens = memory.cache.tokens(memory.blocks, context) if memory.cache.block_bytes else NO_LIMIT_TOKENS
    said = count(deployment, "max_total_tokens") if deployment.engine == "sglang" else None
    return tokens if said is None else min(tokens, said)


def engine_limits(deployment: Deployment) -> EngineLimits:
    """What a scheduler of this deployment works under. Raises InputError where it does not fit, and says why."""
    wrong = contradictions(deployment)
    if wrong:
        raise InputError(f"{deployment.name}: {wrong[0]}")
    memory = memory_of(deployment)
    tokens = _tokens(deployment, memory)
    if memory.budget.kv_bytes <= 0 or tokens <= 0:
        raise InputError(f"{deployment.name}: {no_room(deployment, memory)}")
    block = memory.limits.block_tokens
    blocks = memory.blocks if tokens == memory.blocks * block else tokens // block
    return EngineLimits(tokens, blocks, block, memory.limits.max_batched_tokens, max_seqs(deployment, memory))


def no_room(deployment: Deployment, memory: Memory) -> str:
    """Why nothing is left for a KV cache, and how many GPUs would do."""
    budget = memory.budget
    others = budget.total_bytes - budget.outside_bytes - (budget.kv_bytes + budget.weights_bytes + budget.state_bytes)
    room = budget.total_bytes - budget.outside_bytes - others
    per_gpu = f"{_gib(budget.weights_bytes)} GiB of weights per GPU and {_gib(others)} of everything else"
    have = budget.total_bytes - budget.outside_bytes
    text = f"{per_gpu} do not fit the {_gib(have)} GiB that the engine may use of a {deployment.gpu.name}"
    weights = budget.weights_bytes * deployment.tp * deployment.pp
    if room <= 0:
        return f"{text}; smaller steps (max_num_batched_tokens, max_num_seqs) or a larger GPU would"
    needed = max(2 * deployment.tp * deployment.pp, 1 << math.ceil(math.log2(max(1.0, weights / room))))
    return f"{text}; {needed} GPUs would, or lower precision (--weights-dtype)"


def _gib(value: float) -> str:
    return f"{value / (1 << 30):,.1f}"
