"""From a deployment to what is simulated: schedulers, and the time of their steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec

from loadstone.catalogue.deployment.deployment import DeployedPool, Deployment, Worker
from loadstone.core.errors import InputError
from loadstone.core.vectors import Ints64
from loadstone.engines import rules_of
from loadstone.engines.habits import Handover, Route
from loadstone.engines.handover import Link, handover_of, language_workers, link_of
from loadstone.predict.scheduler import EnginePolicy, policy_of
from loadstone.predict.simulator.encoders import EncoderPool, encoder_pool
from loadstone.predict.simulator.engine import StepTimes
from loadstone.predict.simulator.flow_control import FlowControl
from loadstone.predict.sizing.memory import max_context
from loadstone.predict.step_time import StepModel
from loadstone.predict.step_time.boards import architecture_of
from loadstone.predict.step_time.exchange import is_wide
from loadstone.predict.step_time.profile import profile_of

DECODE_FLOORS = 0.6
"""Of the floors of layers and kernels of engines as they are launched by default, the share of
workers that decode alone as recipes launch them on data-centre Blackwell, where experts are not
wide: all-reduce, residual, norm and quantising are one kernel there, which starts before the one
before it has ended (FlashInfer's and TensorRT-LLM's fusions: 2.6 times as fast as apart on a B300
by vLLM's pull request 37756; programmatic dependent launch). Hopper's recipes have neither. Fitted
on B200, B300 and GB200, confirmed with each held out (docs/accuracy.md)."""
_CACHE = "its whole KV cache"
_PAIR_TOKENS = 3
"""That BERT has before, between and behind a query and a document; XLM-R one more."""
_LEAST_BLOCK = 16
"""Tokens of a block where requests share them. An engine whose tree shares single tokens finds up
to 15 more."""


@dataclass(frozen=True)
class Fleet:
    """The deployment that is simulated: `replicas` engines behind one address.

    in_step  those of a worker share a model's experts: every step of all takes as long as the
             slowest of them needs
    workers  among which the replicas are dealt out
    pairs    of a cross encoder: the tokens that it adds to a query and a document; None: it reads
             texts one by one
    route    of the router before them; None: as the engine's own
    flow_control  of a gateway before them; None: there is none
    prefill  where prompts are computed by workers of their own: these, the others decode
    encoders where pictures are encoded by workers of their own: these
    """

    policy: EnginePolicy
    model: StepTimes
    replicas: int = 1
    in_step: bool = False
    workers: int = 1
    prefill: PrefillPool | None = None
    route: Route | None = None
    flow_control: FlowControl | None = None
    pairs: int | None = None
    encoders: EncoderPool | None = None

    @property
    def pools(self) -> list[Fleet]:
        """Return the fleet that decodes, and that which prefills where it is another."""
        return [self] if self.prefill is None else [self, self.prefill.fleet]

    def draws(self, n: int, seed: int) -> list[Fleet]:
        """Return the fleet with coefficients drawn from its profiles' uncertainty, the same for all
        pools."""
        if not isinstance(self.model, StepModel):
            return []
        drawn = [replace(self, model=model) for model in self.model.draws(n, seed)]
        if self.encoders is not None:
            drawn = [
                replace(fleet, encoders=encoders)
                for fleet, encoders in zip(drawn, self.encoders.draws(n, seed), strict=True)
            ]
        pool = self.prefill
        if pool is None:
            return drawn
        prefills = pool.fleet.draws(n, seed)
        return [
            replace(decode, prefill=pool._replace(fleet=prefill))
            for decode, prefill in zip(drawn, prefills, strict=True)
        ]


class PrefillPool(NamedTuple):
    """The engines that compute prompts for a fleet that decodes, the way of KV caches between them,
    and how the router chooses workers. `context_limit`: of a prefill worker, with the first token;
    None: there is none.
    """

    fleet: Fleet
    rules: Handover
    link: Link
    route: Route = "least-busy"
    context_limit: int | None = None


def routed(policy: EnginePolicy, route: Route | None) -> EnginePolicy:
    """Return the policy with another router; None: with its own."""
    return policy if route is None else msgspec.structs.replace(policy, route=route)


def fleet_of(
    deployment: Deployment,
    *,
    acceptance: float | None = None,
    profile: str | None = None,
    published: bool = False,
    offline: bool = False,
    route: Route | None = None,
) -> Fleet:
    """Make the engines of a deployment, and the times of their steps; by the user's `profile`,
    None: the one that is shipped for it (`published`: see profile_of()). `offline`: as their own
    interfaces answer batches, without server and client. Of pools: those that decode, with those
    that prefill. Raises InputError where these cannot hand caches over."""
    rules, encoders = handover_of(deployment), encoder_pool(deployment, profile)
    made = [
        worker_fleet(
            worker,
            acceptance=acceptance,
            profile=profile,
            published=published,
            offline=offline,
        )
        for worker in language_workers(deployment)
    ]
    if rules is not None:
        made[1] = ease_floors(made[1], deployment.decoder)
    return replace(_join(deployment, rules, made, route), encoders=encoders)


def _deployed(fleet: Fleet, pool: DeployedPool) -> Fleet:
    """Return the fleet of all workers of a pool, from one of them."""
    return replace(fleet, replicas=fleet.replicas * pool.workers, workers=pool.workers)


def worker_fleet(
    worker: Worker,
    *,
    acceptance: float | None = None,
    profile: str | None = None,
    published: bool = False,
    offline: bool = False,
) -> Fleet:
    """Return the engines of one worker, as fleet_of() has them."""
    coefficients = profile_of(worker, profile, published=published)
    accepted = coefficients.acceptance if acceptance is None else acceptance
    policy = policy_of(worker, acceptance=accepted)
    model = StepModel(
        worker,
        coefficients,
        draft_tokens=policy.draft_tokens,
        offline=offline,
    )
    return fleet_with(worker, policy, model)


def ease_floors(fleet: Fleet, worker: Worker) -> Fleet:
    """Return the fleet of a worker that decodes alone: with the floors of its steps as they are
    there."""
    rules = rules_of(worker)
    # The newest era has them without being asked.
    has_new_era = rules.era not in ("*", *(era.name for era in rules.eras[:1]))
    fused = has_new_era and architecture_of(worker.gpu) == "blackwell"
    if isinstance(fleet.model, StepModel) and fused and not is_wide(worker):
        return replace(fleet, model=fleet.model.eased(DECODE_FLOORS))
    return fleet


def fleet_with(worker: Worker, policy: EnginePolicy, model: StepTimes) -> Fleet:
    """Make as many engines of this policy as the deployment has: one for each replica, of vLLM
    before 0.8 also for each batch in its pipeline (see policy_of())."""
    virtual = worker.pp // policy.pipeline
    return Fleet(
        policy,
        model,
        worker.dp * virtual,
        in_step=worker.attention_dp,
        pairs=pair_tokens(worker),
    )


def pair_tokens(worker: Worker) -> int | None:
    """Return the tokens that a worker adds to a query and a document; None: it reads texts one by
    one."""
    if worker.task != "score":
        return None
    return _PAIR_TOKENS if worker.model.is_encoder else 0


def _join(
    deployment: Deployment, rules: Handover | None, made: Sequence[Fleet], route: Route | None
) -> Fleet:
    """Make the fleet of all workers, from one of each pool. What of a cache's room is kept, and
    when, is the handover's, not the decode scheduler's own; without one there is one pool."""
    if rules is None:
        (fleet,), (pool,) = made, deployment.language
        return replace(_deployed(fleet, pool), policy=routed(fleet.policy, route))
    prefill, decode = made
    prefilling, decoding = deployment.language
    if prefill.policy.turns_away or decode.policy.turns_away:
        raise InputError(
            f"{deployment.name}: limits of queues are not simulated where prefill and decode are"
            " apart; leave them out"
        )
    policy = msgspec.structs.replace(
        decode.policy,
        keep_free=0.0,
        poll_steps=0,
        hold_steps=0,
        gather_steps=0,
        prefix_cache=prefill.policy.prefix_cache,
    )
    link = link_of(prefilling.worker, decoding.worker, rules)
    computing = PrefillPool(
        _deployed(prefill, prefilling),
        rules,
        link,
        route or "least-busy",
        rules_of(prefilling.worker).context_limit,
    )
    return replace(_deployed(decode, decoding), policy=policy, prefill=computing)


def fleet_for(
    fleet: Fleet,
    deployment: Deployment,
    lengths: Ints64,
    *,
    acceptance: float | None = None,
    route: Route | None = None,
) -> Fleet:
    """Return a deployment's fleet with caches as large as they are for requests of these
    lengths."""
    pool, workers = fleet.prefill, language_workers(deployment)
    models = (fleet.model,) if pool is None else (pool.fleet.model, fleet.model)
    made = [
        fleet_with(worker, policy_of(worker, acceptance=acceptance, lengths=lengths), model)
        for worker, model in zip(workers, models, strict=True)
    ]
    rules = None if pool is None else pool.rules
    return replace(_join(deployment, rules, made, route), encoders=fleet.encoders)


def sharing(policy: EnginePolicy) -> EnginePolicy:
    """Return the policy where requests share blocks: blocks of 16 tokens at least, so that there
    are not too many keys."""
    if policy.block_tokens >= _LEAST_BLOCK:
        return policy
    blocks = -(-policy.kv_tokens // _LEAST_BLOCK)  # what fits as single tokens has to fit here
    return msgspec.structs.replace(policy, block_tokens=_LEAST_BLOCK, kv_blocks=blocks)


def longest_request(deployment: Deployment, policy: EnginePolicy) -> tuple[int, str]:
    """Return the tokens, prompt and answer together, that one request may have at most; and what
    ends there."""
    worker = deployment.decoder  # which holds prompt and answer
    limit, longest = rules_of(worker).context_limit, max_context(worker)
    if policy.longest_tokens < longest:
        virtual = worker.pp // policy.pipeline
        part = f"a virtual engine's part (1/{virtual}) of the KV cache"
        return policy.longest_tokens, part if virtual > 1 else _CACHE
    return longest, "the model's context" if longest == limit else _CACHE
