"""From a deployment to what is simulated: schedulers, and the time of their steps."""

from __future__ import annotations

from dataclasses import dataclass

from loadstone.batching import EnginePolicy, policy_of
from loadstone.batching.defaults import ACCEPTANCE
from loadstone.catalogue.deployment import Deployment
from loadstone.perfmodel import StepModel
from loadstone.perfmodel.profile import profile_of
from loadstone.simulator.engine import StepTimes
from loadstone.sizing import max_context
from loadstone.sizing.check import context_limit


@dataclass(frozen=True)
class Fleet:
    """What is simulated: `replicas` schedulers behind one address.

    in_step  they share a model's experts: every step of all takes as long as the slowest of them needs
    """

    policy: EnginePolicy
    model: StepTimes
    replicas: int = 1
    in_step: bool = False


def fleet_of(deployment: Deployment, *, acceptance: float = ACCEPTANCE, profile: str | None = None) -> Fleet:
    """The schedulers of a deployment, and their time; by the user's `profile`, None: the one that is shipped for it.

    A pipeline works on `pp` batches at a time, each on its own way through all stages: it is taken as so many
    schedulers that share the cache and the places.
    """
    policy = policy_of(deployment, acceptance=acceptance)
    model = StepModel(
        deployment,
        profile_of(deployment, profile),
        draft_tokens=policy.speculative.draft_tokens if policy.speculative is not None else 0,
    )
    return fleet_with(deployment, policy, model)


def fleet_with(deployment: Deployment, policy: EnginePolicy, model: StepTimes) -> Fleet:
    """As many schedulers of this policy as the deployment has, see fleet_of()."""
    return Fleet(policy, model, deployment.dp * max(1, deployment.pp), in_step=deployment.attention_dp)


def longest_request(deployment: Deployment, policy: EnginePolicy) -> tuple[int, str]:
    """Tokens, prompt and answer together, that one request may have at most; and what it is that ends there."""
    limit, longest = context_limit(deployment), max_context(deployment)
    if policy.kv_tokens < longest:
        part = f"a pipeline's batch, simulated with its part (1/{deployment.pp}) of the KV cache,"
        return policy.kv_tokens, part if deployment.pp > 1 else "its whole KV cache"
    return longest, "the model's context" if longest == limit else "its whole KV cache"
