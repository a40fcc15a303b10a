"""From a deployment to what is simulated: schedulers, and the time of their steps."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from loadstone.catalogue.config.encoder import encoder
from loadstone.catalogue.deployment.deployment import Deployment
from loadstone.core.errors import InputError
from loadstone.engines import rules_of
from loadstone.engines.rules import Route
from loadstone.predict.scheduler import EnginePolicy, policy_of
from loadstone.predict.simulator.engine import StepTimes
from loadstone.predict.sizing.memory import max_context
from loadstone.predict.step_time import StepModel
from loadstone.predict.step_time.profile import profile_of

_CACHE = "its whole KV cache"
_LEAST_BLOCK = 16
"""Tokens of a block where requests share them. An engine whose tree shares single tokens finds up to 15 more."""


@dataclass(frozen=True)
class Fleet:
    """The deployment that is simulated: `replicas` engines behind one address.

    in_step  they share a model's experts: every step of all takes as long as the slowest of them needs
    """

    policy: EnginePolicy
    model: StepTimes
    replicas: int = 1
    in_step: bool = False


def routed(policy: EnginePolicy, route: Route | None) -> EnginePolicy:
    """Return the policy with another router; None: with its own."""
    return policy if route is None else msgspec.structs.replace(policy, route=route)


def fleet_of(
    deployment: Deployment,
    *,
    acceptance: float | None = None,
    profile: str | None = None,
    offline: bool = False,
    route: Route | None = None,
) -> Fleet:
    """Make the engines of a deployment, and the times of their steps; by the user's `profile`, None: the one that is
    shipped for it. `offline`: as their own interfaces answer batches, without server and client."""
    coefficients = profile_of(deployment, profile)
    accepted = coefficients.acceptance if acceptance is None else acceptance
    policy = routed(policy_of(deployment, acceptance=accepted), route)
    model = StepModel(
        deployment,
        coefficients,
        draft_tokens=policy.speculative.draft_tokens if policy.speculative is not None else 0,
        offline=offline,
    )
    return fleet_with(deployment, policy, model)


def fleet_with(deployment: Deployment, policy: EnginePolicy, model: StepTimes) -> Fleet:
    """Make as many engines of this policy as the deployment has: one for each replica, of vLLM before 0.8 also for
    each batch in its pipeline (see policy_of())."""
    if told := encoder((deployment.model.given or {}).get("config") or {}):
        raise InputError(
            f"{deployment.model.name}: is an encoder ({told}), which writes no text: nothing to simulate"
        )
    virtual = deployment.pp // policy.pipeline
    return Fleet(policy, model, deployment.dp * virtual, in_step=deployment.attention_dp)


def sharing(policy: EnginePolicy) -> EnginePolicy:
    """Return the policy where requests share blocks: blocks of 16 tokens at least, so that there are not too many
    keys."""
    if policy.block_tokens >= _LEAST_BLOCK:
        return policy
    blocks = -(-policy.kv_tokens // _LEAST_BLOCK)  # what fits as single tokens has to fit here
    return msgspec.structs.replace(policy, block_tokens=_LEAST_BLOCK, kv_blocks=blocks)


def longest_request(deployment: Deployment, policy: EnginePolicy) -> tuple[int, str]:
    """Return the tokens, prompt and answer together, that one request may have at most; and what ends there."""
    limit, longest = rules_of(deployment).context_limit, max_context(deployment)
    if policy.longest_tokens < longest:
        virtual = deployment.pp // policy.pipeline
        part = f"a virtual engine's part (1/{virtual}) of the KV cache"
        return policy.longest_tokens, part if virtual > 1 else _CACHE
    return longest, "the model's context" if longest == limit else _CACHE
