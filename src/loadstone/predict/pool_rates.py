"""Rates that a prefill and a decode pool carry at most, each by itself, and the ratio of workers
that balances both.

    prefill   b / T(b) requests per second of each scheduler, of steps with the b prompts that its
              budget has room for
    decode    u / (answer · TPOT(u)), with the u requests that its slots and its cache hold

Both are upper bounds: a simulation, with its queues and waves, has less (TensorRT-LLM's engineers
measured 0 to 25 % less than such a balance promises).
"""

from itertools import product
from typing import NamedTuple

from loadstone.catalogue.deployment.deployment import Deployment
from loadstone.core.errors import InputError
from loadstone.engines.habits import Handover
from loadstone.predict.simulator.fleet import Fleet, fleet_of
from loadstone.predict.sizing.deployments import deployments
from loadstone.predict.sizing.options import SizeOptions

_IDLE = 0.5
"""Share of the time from which on a pool that waits for the other counts as starved."""


class PoolRates(NamedTuple):
    """Holds the requests per second that each pool carries at most, and the TPOT of the full decode
    pool; `most_w`: the limits of all boards, since no watts of pools were fitted."""

    deployment: str
    prompt_tokens: int
    answer_tokens: int
    prefill_per_s: float
    decode_per_s: float
    tpot_s: float
    workers: tuple[int, int]
    most_w: float

    def describe(self) -> str:
        """Say what limits, and which ratio of workers would balance the pools."""
        prefill, decode = self.workers
        ratio = (self.decode_per_s / decode) / (self.prefill_per_s / prefill)
        low, high = sorted((self.prefill_per_s, self.decode_per_s))
        starved, idle = ("decode" if low == self.prefill_per_s else "prefill"), 1 - low / high
        text = (
            f"{self.prompt_tokens:,} + {self.answer_tokens:,} tokens: prefill carries"
            f" {self.prefill_per_s:,.2f} requests/s and decode {self.decode_per_s:,.2f} (TPOT"
            f" {self.tpot_s * 1e3:,.1f} ms when full): {ratio:,.2g} prefill workers for each decode"
            " worker balance them"
        )
        if idle > _IDLE:
            text += f"; this ratio starves the {starved} pool, {idle:.0%} of which is idle"
        return (
            f"{text}; GPU boards alone draw at most {self.most_w / 1e3:.3g} kW, their limit (watts"
            " of pools are not known)"
        )


def rates_of(options: SizeOptions) -> list[PoolRates]:
    """Return the rates of every deployment with pools among those to size, for each context and
    answer. Raises InputError."""
    found = []
    for deployment, answer, context in product(
        deployments(options), options.answer, options.context or (None,)
    ):
        if context is None or answer >= context:
            raise InputError(
                f"--answer {answer}: is a part of --context; give a longer --context, of prompt and"
                " answer"
            )
        if not deployment.hands_over:
            raise InputError(
                f"--answer: {deployment.name} does not prefill and decode apart; write"
                " prefill=…+decode=…, or leave it out"
            )
        found.append(pool_rates(deployment, context - answer, answer))
    return found


def pool_rates(deployment: Deployment, prompt_tokens: int, answer_tokens: int) -> PoolRates:
    """Return what the pools carry, of requests of these lengths. Raises InputError where one cannot
    be."""
    decode = fleet_of(deployment)
    pool = decode.prefill
    if pool is None:
        raise InputError(f"{deployment.name}: has one pool; write prefill=…+decode=…")
    prefill, (prefilling, decoding) = pool.fleet, deployment.language
    seconds, together = prompts_s(prefill, prompt_tokens)
    users = most_users(decode, pool.rules, prompt_tokens, answer_tokens)
    tpot_s = decode_tpot_s(decode, users, prompt_tokens, answer_tokens)
    return PoolRates(
        deployment.name,
        prompt_tokens,
        answer_tokens,
        prefill.replicas * together / seconds,
        decode.replicas * users / (answer_tokens * tpot_s),
        tpot_s,
        (prefilling.workers, decoding.workers),
        deployment.boards_w,
    )


def prompts_s(prefill: Fleet, prompt_tokens: int, together: int | None = None) -> tuple[float, int]:
    """Return the seconds of the steps of a scheduler that computes so many prompts `together`, and
    how many; None: as many as a step has room for."""
    budget, seconds, done = prefill.policy.max_batched_tokens, 0.0, 0
    together = together or max(1, min(budget // prompt_tokens, prefill.policy.max_seqs))
    while done < prompt_tokens:
        new = min(prompt_tokens - done, budget if prefill.policy.chunked else prompt_tokens)
        seconds += prefill.model.step_s(0, 0, [(new, done)] * together)
        done += new
    return seconds, together


def decode_tpot_s(decode: Fleet, users: int, prompt_tokens: int, answer_tokens: int) -> float:
    """Return the TPOT of a scheduler that decodes so many requests at once."""
    base_s, slope_s = decode.model.decode_line(users)
    step_s = base_s + slope_s * users * (prompt_tokens + answer_tokens / 2)
    return step_s / decode.policy.tokens_per_step


def most_users(decode: Fleet, rules: Handover, prompt_tokens: int, answer_tokens: int) -> int:
    """Count the requests that a decode scheduler's slots and cache let decode at once, with what is
    kept free."""
    written = (
        answer_tokens if rules.spare_tokens is None else answer_tokens // 2 + rules.spare_tokens
    )
    return max(1, min(decode.policy.max_seqs, decode.policy.kv_tokens // (prompt_tokens + written)))
