"""The policy of an engine's scheduler, as numbers and names; and that of a deployment by default,
in its release: limits from its sizing, habits from its engine's rules.

What the engines do by default, from their own code and documents:

vLLM from 0.8 (V1)       decodes first, prompts in chunks with what is left of the token budget, in
                         one step; a prompt is let in where all of it fits into the free blocks
                         (`scheduler_reserve_full_isl`); where a decode finds no block the newest
                         request loses its KV and is computed again later, and nothing new is let in
                         during that step
vLLM before (V0)         prompts whole, alone and first, as many as the budget holds; with chunked
                         prefill (by default in long contexts) as V1. No prefix caching unless asked
                         for
SGLang                   a step is either prompts or decodes, prompts first (no
                         `--enable-mixed-chunk`); a prompt is let in where it, its whole answer, and
                         a share of what the running may still write fit (`new_token_ratio`: 0.7
                         falling to 0.098 within 600 steps; its floor is taken here). With
                         `--enable-dp-attention` that share is 0.3 times as much, and each rank has
                         its part of `--chunked-prefill-size`. From 0.5.23 on it is all, where
                         lengths are fixed, as here. Ranks go in step, each with prompts or decodes
                         of its own, or empty
TensorRT-LLM             prompts and decodes in one step (in-flight batching, fused), whole prompts;
                         a request is let in where prompt and answer are sure to fit (capacity
                         policy GUARANTEED_NO_EVICT). Ranks of attention-DP with `enable_balance`:
                         see hold_steps (PyExecutor._balance_adp_requests). One rank alone, with
                         `batch_wait_timeout_iters`: see gather_steps (PyExecutor._waiting_requests)
"""

from typing import Any

import msgspec

from loadstone.catalogue.deployment.deployment import Worker
from loadstone.core.errors import InputError
from loadstone.core.vectors import Ints64
from loadstone.engines import rules_of
from loadstone.engines.habits import Load, Scheduling, Write
from loadstone.engines.rules import EngineRules
from loadstone.engines.sharding.adapters import AdapterSlots
from loadstone.engines.sharding.limits import BatchLimits
from loadstone.predict.sizing.memory import engine_limits, lower_tiers, reserved_tokens


class Speculative(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Speculative decoding: `draft_tokens` are guessed per step, each accepted with probability
    `acceptance` if all before it were. A step then gives 1 to draft_tokens + 1 tokens, (1 −
    αᵏ⁺¹)/(1 − α) on average (Leviathan 2023).
    """

    draft_tokens: int
    acceptance: float

    def __post_init__(self) -> None:
        if self.draft_tokens < 1 or not 0 <= self.acceptance <= 1:
            raise InputError(
                "speculative decoding: needs draft tokens, and an acceptance between 0 and 1"
            )

    @property
    def tokens_per_step(self) -> float:
        """Expected tokens of one step."""
        return sum(self.acceptance**i for i in range(self.draft_tokens + 1))


class Tiers(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tiers below one scheduler's KV cache (tiers.py), in tokens, and the seconds that a
    token's load takes over the link to each.

    load          async: requests wait for it; overlap: beside the step's layers; blocking: the step
                  waits
    write         through: blocks are copied down as they are computed; evicted: when their room is
                  wanted
    chunk_tokens  that are found or not found together
    """

    host_tokens: int
    host_token_s: float
    disk_tokens: int = 0
    disk_token_s: float = 0.0
    load: Load = "async"
    write: Write = "through"
    chunk_tokens: int = 1


class EnginePolicy(Scheduling, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One scheduler: one data-parallel replica of an engine.

    kv_blocks, block_tokens  the paged KV cache
    max_batched_tokens       tokens of one step, decodes included
    max_seqs                 requests that run at once
    order                    mixed: prompts and decodes share a step; prefill-first: prompts go
                             alone and first; static: a batch is let in when the one before has
                             ended, and keeps its size to the end
    chunked                  a prompt may be cut where the budget ends
    prefix_cache             full blocks are kept after use, and found again by what is in them and
                             before them
    keep_free                share of what running requests may still write that letting in another
                             leaves free: 0 vLLM; 1 TensorRT-LLM and SGLang. Above 0 the whole
                             answer of the newcomer must fit too
    reserved_tokens          unpaged, for contrast: each request takes room for so many tokens (the
                             longest context) from the first to the last; None: paged
    speculative              None: one token per step
    poll_steps               new requests are looked for after a step with prompts, and every so
                             many decode steps; 0: after every step (SGLang's
                             --scheduler-recv-interval, scheduler_recv_skipper.py)
    hold_steps               of ranks that go in step: prompts wait until every rank has some, or
                             one has nothing to decode, at most so many steps; 0: they do not wait
                             (TensorRT-LLM's timeout_iters)
    gather_steps             while others decode, prompts wait until they and the decodes are
                             gather_tokens, or for so many steps; 0: they do not wait
    gather_tokens            of one step
    pipeline                 batches under way at once, each on its way through the stages of a
                             pipeline; they share the cache, the queue and the slots
    batch_seqs               requests that run in one of them; None: as many as in all
    tiers                    below the cache; None: there are none
    priorities               requests of a higher priority are let in first, and give way last; of
                             equal ones those that came first (vLLM's --scheduling-policy priority,
                             SGLang's --enable-priority-scheduling)
    priority_sign            −1: the engine's own numbers are smaller for what it serves first; 1:
                             larger; 0: it has none
    unset_priority           of requests that have none: vLLM 0, SGLang below all others
    preempt_above            one that waits while all slots are taken has running ones give way
                             whose priority is lower by more than that (SGLang); None: it never does
    max_waiting              requests; one more is turned away, or with priorities the last of all
                             that wait (SGLang's --max-queued-requests)
    max_under_way            requests that wait or run, in all ranks of a server; one more is turned
                             away (vLLM's --max-num-queued-reqs)
    max_queued_tokens        of prompts whose first token has not come, likewise; while there are as
                             many, all that come are turned away (vLLM's --max-num-queued-tokens)
    adapters                 slots for LoRA adapters: a request whose adapter has none in the batch,
                             nor finds a free one, is not let in; None: no request has an adapter
    encoder_tokens           embeddings of pictures that a step makes at most, and that the cache of
                             embeddings holds; None: any number
    encoder_kept             of these, how many stay for others who ask for the same picture, until
                             their room is needed
    whole_pictures           a picture's tokens are computed in one step
    """

    kv_blocks: int
    block_tokens: int = 16
    max_batched_tokens: int = 8192
    max_seqs: int = 1024
    reserved_tokens: int | None = None
    speculative: Speculative | None = None
    pipeline: int = 1
    batch_seqs: int | None = None
    tiers: Tiers | None = None
    adapters: AdapterSlots | None = None
    encoder_tokens: int | None = None
    encoder_kept: int = 0
    whole_pictures: bool = False

    def __post_init__(self) -> None:
        for name in ("kv_blocks", "block_tokens", "max_batched_tokens", "max_seqs", "pipeline"):
            if getattr(self, name) < 1:
                raise InputError(
                    f"{name} {getattr(self, name)}: an engine without any cannot serve"
                )
        for name in ("poll_steps", "hold_steps", "gather_steps", "gather_tokens"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} {getattr(self, name)}: is a number, 0 or more")
        if not 0 <= self.keep_free <= 1:
            raise InputError(f"keep_free {self.keep_free:g}: is a share, between 0 and 1")
        seqs = self.batch_seqs or self.max_seqs
        if self.order == "mixed" and seqs * self.decode_tokens > self.max_batched_tokens:
            # Every running request decodes in every step: that is what the engines ask of these two
            # as well.
            raise InputError(
                f"max_seqs {seqs}: {self.decode_tokens} tokens each are more than the"
                f" {self.max_batched_tokens} that a step has room for; lower it, or raise"
                " max_batched_tokens"
            )

    @property
    def turns_away(self) -> bool:
        """Tell whether requests may be turned away."""
        limits = (self.max_waiting, self.max_under_way, self.max_queued_tokens)
        return any(limit is not None for limit in limits)

    @property
    def draft_tokens(self) -> int:
        """Tokens that are guessed for each sequence of a step."""
        return 0 if self.speculative is None else self.speculative.draft_tokens

    @property
    def decode_tokens(self) -> int:
        """Tokens that one decode takes of a step's budget."""
        return 1 + self.draft_tokens

    @property
    def tokens_per_step(self) -> float:
        """Expected tokens that one decode writes in a step."""
        return 1.0 if self.speculative is None else self.speculative.tokens_per_step

    @property
    def kv_tokens(self) -> int:
        return self.kv_blocks * self.block_tokens

    @property
    def longest_tokens(self) -> int:
        """Prompt and answer of one request that the cache can hold, the guesses beyond its last
        token besides."""
        return self.kv_tokens - max(0, self.decode_tokens - 2)


ACCEPTANCE = 0.7
"""Of a guessed token: an assumption, for it depends on the draft and on the text. With it the TPOT
of 111 published runs of DeepSeek with multi-token prediction is met within 11 %
(research/calibration/facts.md). `--acceptance` overrides it."""


def _speculation(worker: Worker, acceptance: float, most_tokens: int) -> Speculative | None:
    drafts = worker.argument("num_speculative_tokens")
    if drafts is None or drafts == "0":
        return None
    if not drafts.isdigit():
        raise InputError(f"num_speculative_tokens={drafts}: not a number of tokens; write e.g. 3")
    if int(drafts) >= most_tokens:
        raise InputError(
            f"num_speculative_tokens={drafts}: a step has room for {most_tokens} tokens; write"
            " e.g. 3"
        )
    return Speculative(int(drafts), acceptance)


def _adapter_slots(rules: EngineRules, pipeline: int) -> AdapterSlots | None:
    slots = rules.adapter_slots
    if pipeline > 1 and slots is not None:
        raise InputError(f"{rules.worker.name}: adapters are not simulated with pp; leave one out")
    return slots


def _encoding(rules: EngineRules, limits: BatchLimits) -> dict[str, Any]:
    encoder = rules.encoder(limits)
    if encoder is None:
        return {}
    return {
        "encoder_tokens": encoder.step_tokens,
        "encoder_kept": encoder.kept,
        "whole_pictures": encoder.whole,
    }


def _tiers_of(rules: EngineRules, possible: bool) -> Tiers | None:
    lower, offload = lower_tiers(rules.worker), rules.offload
    if not lower or offload is None:
        return None
    if not possible:
        raise InputError(
            f"{rules.worker.name}: kv_host is not simulated here with pp, or without a prefix cache"
        )
    how = offload._asdict()
    del how["disk"]  # it is in what there is of it
    return msgspec.convert({**lower, **how}, Tiers)


def _habits_of(rules: EngineRules, max_batched_tokens: int) -> Scheduling:
    habits = rules.scheduling(max_batched_tokens)
    if not rules.worker.model.is_encoder:
        return habits
    # Every token sees all others: a text is read in one step, and nothing of it is kept.
    return msgspec.structs.replace(habits, chunked=False, prefix_cache=False)


def policy_of(
    worker: Worker,
    *,
    acceptance: float | None = None,
    lengths: Ints64 | None = None,
) -> EnginePolicy:
    """Return the policy of one scheduler of a deployment. Raises InputError where the model does
    not fit.

    `lengths`: tokens of the requests to come, prompts and answers: a cache of windows or states is
    as large as it is for requests of their mean, and holds the longest. None: as it is for the
    longest there may be.

    Of a pipeline, whose stages work on `pp` batches at a time: of all of these, which share cache,
    queue and slots; SGLang gives each a pp-th of the slots (pp_max_micro_batch_size), TensorRT-LLM
    all that max_batch_size says. vLLM before 0.8 had an engine for each (virtual engines), and it
    is the policy of one: a pp-th of cache and slots.

    For contrast with what engines do, `batching=static` lets a batch in when the one before has
    ended, and with `kv_cache=reserved` each request takes room for the longest that there may be.
    `acceptance`: of a guessed token; None: ACCEPTANCE.
    """
    acceptance = ACCEPTANCE if acceptance is None else acceptance
    if not 0 <= acceptance <= 1:
        raise InputError(
            f"--acceptance {acceptance:g}: is a share of guessed tokens; write a number from 0 to 1"
        )
    reserved = reserved_tokens(worker)
    limits = engine_limits(
        worker, None if lengths is None or reserved else max(1, round(lengths.mean()))
    )
    rules = rules_of(worker)
    pipeline = rules.batches_under_way
    share = worker.pp // pipeline
    speculative = _speculation(worker, acceptance, limits.max_batched_tokens)
    caching = worker.switch("prefix_caching")
    habits = _habits_of(rules, limits.max_batched_tokens)
    budget = habits.max_batched_tokens or limits.max_batched_tokens
    per_decode = 1 if speculative is None else 1 + speculative.draft_tokens
    max_seqs = max(1, limits.max_seqs // share)
    batch_seqs = max(1, max_seqs // pipeline) if rules.places_per_batch and pipeline > 1 else None
    kv_blocks = max(1, limits.kv_blocks // share)
    if lengths is not None:
        longest = -(-int(lengths.max()) // limits.block_tokens)
        kv_blocks = max(kv_blocks, min(longest, engine_limits(worker).kv_blocks // share))
    if worker.argument("batching") == "static":
        if pipeline > 1:
            raise InputError(
                f"{worker.name}: static batches do not share a pipeline's stages; leave pp out"
            )
        habits = Scheduling(order="static", route=habits.route)
    if habits.order == "mixed":
        # All that runs may come to decode in one step; of a pipeline, all in a batch.
        if batch_seqs is None:
            max_seqs = min(max_seqs, budget // per_decode)
        else:
            batch_seqs = min(batch_seqs, budget // per_decode)
    kept = reserved is None and (habits.prefix_cache if caching is None else caching)
    habits = msgspec.structs.replace(habits, max_batched_tokens=budget, prefix_cache=kept)
    return EnginePolicy(
        kv_blocks=kv_blocks,
        block_tokens=limits.block_tokens,
        max_seqs=max_seqs,
        reserved_tokens=(
            None if reserved is None else min(reserved, kv_blocks * limits.block_tokens)
        ),
        speculative=speculative,
        pipeline=pipeline,
        batch_seqs=batch_seqs,
        tiers=_tiers_of(rules, pipeline == 1 and kept),
        adapters=_adapter_slots(rules, pipeline),
        **msgspec.structs.asdict(habits),
        **_encoding(rules, limits),
    )
