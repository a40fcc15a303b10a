"""How the engine of a deployment schedules by default, in its release: limits from its sizing, habits from here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loadstone.catalogue.deployment.deployment import Deployment
from loadstone.core.errors import InputError
from loadstone.predict.engine_rules import rules_of
from loadstone.predict.engine_rules.rules import Scheduling
from loadstone.predict.scheduler.policy import EnginePolicy, Speculative
from loadstone.predict.sharding.limits import switched
from loadstone.predict.sizing import engine_limits, reserved_tokens

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ACCEPTANCE = 0.7
"""Of a guessed token: an assumption, for it depends on the draft and on the text. With it the TPOT of 111 published
runs of DeepSeek with multi-token prediction is met within 11 % (docs/accuracy.md). `--acceptance` overrides it."""


def policy_of(
    deployment: Deployment, *, acceptance: float | None = None, lengths: NDArray[np.int64] | None = None
) -> EnginePolicy:
    """The policy of one scheduler of a deployment. Raises InputError where the model does not fit.

    `lengths`: tokens of the requests to come, prompts and answers: a cache of windows or states is as large as it is
    for requests of their mean, and holds the longest. None: as it is for the longest there may be.

    Of a pipeline, whose stages work on `pp` batches at a time: of all of these, which share cache, queue and places;
    SGLang gives each a pp-th of the places (pp_max_micro_batch_size), TensorRT-LLM all that max_batch_size says. vLLM
    before 0.8 had an engine for each (virtual engines), and it is the policy of one: a pp-th of cache and places.

    For contrast with what engines do, `batching=static` lets a batch in when the one before has ended, and with
    `kv_cache=reserved` each request takes room for the longest that there may be.

    `acceptance`: of a guessed token; None: ACCEPTANCE.
    """
    acceptance = ACCEPTANCE if acceptance is None else acceptance
    if not 0 <= acceptance <= 1:
        raise InputError(f"--acceptance {acceptance:g}: is a share of guessed tokens; write a number from 0 to 1")
    reserved = reserved_tokens(deployment)
    limits = engine_limits(deployment, None if lengths is None or reserved else max(1, round(lengths.mean())))
    rules = rules_of(deployment)
    pipeline = rules.batches_under_way
    share = deployment.pp // pipeline
    drafts = deployment.argument("num_speculative_tokens")
    speculative = None
    if drafts is not None and drafts != "0":
        if not drafts.isdigit():
            raise InputError(f"num_speculative_tokens={drafts}: not a number of tokens; write e.g. 3")
        speculative = Speculative(int(drafts), acceptance)
        if int(drafts) >= limits.max_batched_tokens:
            room = f"a step has room for {limits.max_batched_tokens} tokens"
            raise InputError(f"num_speculative_tokens={drafts}: {room}; write e.g. 3")
    caching = switched(deployment, "prefix_caching")
    habits = rules.scheduling(limits.max_batched_tokens)
    budget = habits.budget_tokens or limits.max_batched_tokens
    per_decode = 1 if speculative is None else 1 + speculative.draft_tokens
    max_seqs = max(1, limits.max_seqs // share)
    batch_seqs = max(1, max_seqs // pipeline) if rules.places_per_batch and pipeline > 1 else None
    kv_blocks = max(1, limits.kv_blocks // share)
    if lengths is not None:
        longest = -(-int(lengths.max()) // limits.block_tokens)
        kv_blocks = max(kv_blocks, min(longest, engine_limits(deployment).kv_blocks // share))
    if deployment.argument("batching") == "static":
        if pipeline > 1:
            raise InputError(f"{deployment.name}: static batches do not share a pipeline's stages; leave pp out")
        habits = Scheduling("static", route=habits.route)
    if habits.order == "mixed":
        # All that runs may come to decode in one step; of a pipeline, all in a batch.
        if batch_seqs is None:
            max_seqs = min(max_seqs, budget // per_decode)
        else:
            batch_seqs = min(batch_seqs, budget // per_decode)
    return EnginePolicy(
        kv_blocks=kv_blocks,
        block_tokens=limits.block_tokens,
        max_batched_tokens=budget,
        max_seqs=max_seqs,
        order=habits.order,
        chunked=habits.chunked,
        prefix_cache=reserved is None and (habits.prefix_cache if caching is None else caching),
        reserved_tokens=None if reserved is None else min(reserved, kv_blocks * limits.block_tokens),
        keep_free=habits.keep_free,
        speculative=speculative,
        route=habits.route,
        poll_steps=habits.poll_steps,
        hold_steps=habits.hold_steps,
        gather_steps=habits.gather_steps,
        gather_tokens=habits.gather_tokens,
        pipeline=pipeline,
        batch_seqs=batch_seqs,
    )
