"""From a deployment to what is simulated: schedulers, and the time of their steps."""

from __future__ import annotations

from dataclasses import dataclass

from loadstone.batching import EnginePolicy, policy_of
from loadstone.batching.defaults import ACCEPTANCE
from loadstone.catalogue.deployment import Deployment
from loadstone.errors import InputError
from loadstone.perfmodel import StepModel
from loadstone.perfmodel.profile import profile_of
from loadstone.simulator.engine import StepTimes

_UNBOUNDED = 1 << 40
"""Where a model's configuration names no longest context, only the cache bounds it."""


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
    return Fleet(policy, model, deployment.dp * max(1, deployment.pp), in_step=deployment.attention_dp)


def context_tokens(deployment: Deployment) -> int:
    """The longest context that the engine takes: the model's, or what it was started with."""
    given = deployment.argument("max_model_len") or deployment.argument("max_seq_len")
    if given is None:
        return deployment.model.max_context_tokens or _UNBOUNDED
    if not given.isdigit() or not int(given):
        raise InputError(f"max_model_len={given}: no number of tokens; write e.g. max_model_len=8192")
    return int(given)
