"""Says whether the pools of a deployment can hand KV caches and pictures over, and how long a cache
is on its way."""

from collections.abc import Iterator
from itertools import chain
from math import gcd
from typing import NamedTuple

import msgspec

from loadstone.catalogue.deployment.deployment import Deployment, Worker
from loadstone.core.errors import InputError
from loadstone.engines import rules_of
from loadstone.engines.habits import Handover
from loadstone.engines.rules import EngineRules
from loadstone.engines.sharding.rank import CacheLayer, sequence_bytes

SHARE = 0.75
"""Of a network's bandwidth: Mooncake's own measurements with vLLM and SGLang have 71 and 82 % of
the line."""
_USUAL_NIC = 50e9
"""Bytes per second of each GPU where its node has no usual network: 400 Gbit/s. Between GPUs of one
node or rack too: NIXL over MNNVL measured 48 GB/s, over NVLink 49 (its issue 1037, vLLM's 52607).
"""


_BALANCED = ("round_robin", "total_requests", "total_tokens")
"""SGLang's --load-balance-method, where it does not follow the room."""


class Link(NamedTuple):
    """The way of a KV cache from one worker to another.

    cache        what the layers of a decode rank keep
    copies       ranks that get it, or a part of it, each
    bytes_per_s  of all pairs of ranks that send and receive together
    """

    cache: tuple[CacheLayer, ...]
    copies: int
    bytes_per_s: float
    latency_s: float

    def transfer_s(self, tokens: int) -> float:
        """Return the seconds that the bytes of so many tokens take."""
        return self.copies * sequence_bytes(self.cache, tokens) / self.bytes_per_s

    def token_bytes(self, tokens: int) -> float:
        return self.copies * sequence_bytes(self.cache, tokens) / max(1, tokens)


def link_of(prefill: Worker, decode: Worker, handover: Handover) -> Link:
    """Return the way of a cache: each rank of the decode worker that serves a request (all its
    tensor-parallel ones; with latent attention each gets it whole) receives from a rank of the
    prefill worker, over its own network card.
    """
    cache = tuple(layer for rank in rules_of(decode).ranks for layer in rank.cache)
    pairs = min(prefill.tp, decode.tp)
    nics = (gpu.nic_bytes_per_s or _USUAL_NIC for gpu in (prefill.gpu, decode.gpu))
    return Link(cache, decode.tp, pairs * SHARE * min(nics), handover.latency_s)


def picture_bytes_per_s(encode: Worker, language: Worker) -> float:
    """Return at which rate embeddings leave a worker that encodes: over one network card."""
    return SHARE * min(gpu.nic_bytes_per_s or _USUAL_NIC for gpu in (encode.gpu, language.gpu))


def language_workers(deployment: Deployment) -> list[Worker]:
    """Return a worker of each pool that has the language model: who gets pictures encoded is
    without the tower, if its engine leaves it out."""
    return [
        pool.worker
        if deployment.encoders is None or pool.role == "decode"
        else _without_tower(pool.worker)
        for pool in deployment.language
    ]


def _without_tower(worker: Worker) -> Worker:
    encoding = rules_of(worker).encoding
    if encoding is None or encoding.keeps_tower:
        return worker
    model = msgspec.structs.replace(worker.model, vision_parameters=0)
    return msgspec.structs.replace(worker, model=model)


def handover_of(deployment: Deployment) -> Handover | None:
    """Return how the pools of a deployment hand caches over; None: prefill and decode are not
    apart. Raises InputError where its pools cannot work together."""
    problem = handover_problem(deployment)
    if problem is not None:
        raise InputError(f"{deployment.name}: {problem}")
    prefill, decode = _rules_of_both(deployment)
    handover = decode.handover
    if handover is None or not deployment.hands_over:
        return None
    balanced = prefill.worker.argument("load_balance_method") in _BALANCED
    by_room = not (balanced and prefill.version >= handover.balances_since)
    return handover._replace(by_room=handover.by_room and by_room)


def handover_problem(deployment: Deployment) -> str | None:
    """Return why the pools of a deployment cannot work together; None where they can."""
    prefill, decode = _rules_of_both(deployment)
    problems = _problems(prefill, decode) if deployment.hands_over else iter(())
    if deployment.encoders is not None:
        problems = chain(_picture_problems(rules_of(deployment.encoders.worker), prefill), problems)
    return next(problems, None)


def _picture_problems(encode: EngineRules, prefill: EngineRules) -> Iterator[str]:
    """List why the one cannot encode pictures for the other, each with what would work."""
    worker, engine, encoding = encode.worker, prefill.worker.engine, prefill.encoding
    if worker.engine != engine:
        yield (
            f"{worker.engine} cannot encode pictures for {engine}; give all pools one engine, e.g."
            f" engine={engine}"
        )
    elif encoding is None:
        yield f"{engine} has no pool that encodes pictures; vllm and sglang have"
    elif min(encode.version, prefill.version) < encoding.since:
        since = ".".join(map(str, encoding.since))
        yield f"{engine} encodes pictures apart since {since}; write a later version="
    elif encode.encoder(encode.limits()) is None:
        yield (
            f"{worker.model.name} takes no pictures, or how it does is not known; leave encode= out"
        )
    elif encoding.types and not worker.model.model_type.startswith(encoding.types):
        yield (
            f"{engine} encodes pictures of {worker.model.model_type} within their prompts' workers"
            " alone; leave encode= out, or use vllm"
        )
    elif worker.dp > 1 or worker.pp > 1:
        yield "a worker that encodes has tp alone; write more workers in place of dp and pp"


def _rules_of_both(deployment: Deployment) -> tuple[EngineRules, EngineRules]:
    return rules_of(deployment.prefiller), rules_of(deployment.decoder)


def _problems(prefill: EngineRules, decode: EngineRules) -> Iterator[str]:
    """List why the two cannot hand caches over, each with what would work (vLLM's
    nixl_connector_compatibility.md, SGLang's issue 15674)."""
    sender, receiver = prefill.worker, decode.worker
    if sender.engine != receiver.engine:
        yield (
            f"{sender.engine} cannot hand a KV cache to {receiver.engine}; give both pools one"
            f" engine, e.g. engine={receiver.engine}"
        )
        return
    engine, handover = receiver.engine, decode.handover
    if handover is None:
        yield f"{engine} has no prefill and decode apart; vllm, sglang and tensorrt-llm have"
        return
    if min(prefill.version, decode.version) < handover.since:
        yield (
            f"{engine} hands caches over since {'.'.join(map(str, handover.since))}; write a later"
            " version="
        )
    if prefill.kv_dtype != decode.kv_dtype:
        yield (
            f"the prefill pool keeps its KV cache in {prefill.kv_dtype}, the decode pool in"
            f" {decode.kv_dtype}; write kv={decode.kv_dtype} in both"
        )
    if engine == "vllm" and prefill.version != decode.version:
        yield (
            "vllm hands caches over between equal versions alone; write one version= for both pools"
        )
    if any(run.states for run in receiver.model.kinds) and sender.tp != receiver.tp:
        yield (
            f"tp{sender.tp} and tp{receiver.tp}: recurrent states are handed over between equal tp"
            " alone; write one tp"
        )
    if (
        engine != "tensorrt-llm"
        and not receiver.model.has_latent_attention
        and gcd(sender.tp, receiver.tp) < min(sender.tp, receiver.tp)
    ):
        yield (
            f"tp{sender.tp} and tp{receiver.tp}: {engine} cuts KV heads only where one tp divides"
            " the other"
        )
    if receiver.pp > 1:
        yield (
            f"a decode worker with pp{receiver.pp} is not simulated; write tp or attention-dp in"
            " its place"
        )
