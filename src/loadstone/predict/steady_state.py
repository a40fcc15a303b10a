"""One scheduler in steady state, by closed form: rate and latencies where `B` requests decode at
once.

    TPOT(B) = (t_decode(B) + P·t_prompt) / tokens per step,   rate = B / (output tokens · TPOT)

with t_prompt what a step with a piece of a prompt takes beyond one without, and P how many of these
a decode sees: B · pieces / output of its own, and where ranks go in step also those of others, as
far as they do not fall together. A pipeline's batches each have a part of B, and wait for one
another's prompts.

TTFT is the way of a prompt through an engine with B decodes and no queue, half a step of waiting,
and the queue of an M/D/1 server whose busy share is ρ = rate · service time: P(wait > t) =
ρ·exp(−t/θ), θ = service time / (2·(1 − ρ)) (the heavy-traffic approximation, Kingman 1961).
Requests that decode at once vary as a Poisson number does.

It is made for thousands of deployments a second, to choose which of them are worth a simulation.
"""

import math
from collections.abc import Iterator
from statistics import NormalDist
from typing import NamedTuple

from loadstone.predict.scheduler import EnginePolicy
from loadstone.predict.step_time import StepModel
from loadstone.predict.step_time.adapters import different_adapters
from loadstone.predict.step_time.pictures import PictureShares, PictureTimes, mean_picture_work

SELDOM = 1 / 1024
"""Requests that decode at once on average where they hardly ever meet."""
_LEVELS = 10
_BUSY = (0.01, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 0.99)
"""Shares of the time at which a scheduler that reads texts alone is looked at."""
_NORMAL = NormalDist()
_FILLED = 0.92
"""The share of a cache that is in use on average where requests wait for it: they come and go in
whole ones."""
_FOLLOWS = 0.7
"""The share of the variation at one moment that the mean number of a request's neighbours has."""


class Lengths(NamedTuple):
    """Mean tokens of a request; `cached`: of its prompt, those that a prefix cache has. `adapters`:
    the share of requests that ask for each LoRA adapter. `pictures`: see picture_shares(). `texts`:
    of a request for vectors or scores, how many it has, each of `prompt` tokens; none is decoded.
    """

    prompt: float
    answer: float
    cached: float = 0.0
    adapters: tuple[float, ...] = ()
    pictures: PictureShares = ()
    texts: float = 0.0


class SteadyState(NamedTuple):
    """A scheduler with `decoding` requests that decode at once. Times in seconds, rate in requests
    per second.

    users     requests under way, queue and prompts included
    base_s    TTFT without a queue
    busy      share of the time that is taken by prompts' service; at 1 the queue has no end
    queue_s   θ of the queue's tail
    varies    relative standard deviation of TPOT between requests
    prompt_token_s  by which a longer prompt's way is longer, for each token that is computed
    pictures  the times of pictures there
    """

    decoding: float
    users: float
    rate_per_s: float
    tpot_s: float
    base_s: float
    busy: float
    queue_s: float
    varies: float = 0.0
    prompt_token_s: float = 0.0
    pictures: PictureTimes | None = None

    def latency_s(self, metric: str, quantile: float, output_tokens: float) -> float:
        """Return a quantile of `ttft`, `tpot`, `itl` or `e2e`."""
        if self.busy >= 1:
            return math.inf
        queued = (
            self.queue_s * math.log(self.busy / (1 - quantile)) if self.busy > 1 - quantile else 0.0
        )
        ttft_s = self.base_s + queued
        tpot_s = self.tpot_s * math.exp(self.varies * max(0.0, _NORMAL.inv_cdf(quantile)))
        if metric in ("ttft", "answer"):
            return ttft_s
        return ttft_s + (output_tokens - 1) * tpot_s if metric == "e2e" else tpot_s


def most_decoding(policy: EnginePolicy, lengths: Lengths) -> float:
    """Count the requests that a scheduler's cache and slots let decode at once, on average."""
    # Where an answer's room is kept from the start it is taken whole, else half of it on average.
    # What requests share is held once.
    tokens = (
        lengths.prompt - lengths.cached + lengths.answer * (1.0 if policy.keep_free > 0 else 0.5)
    )
    if policy.reserved_tokens is not None:
        tokens = policy.reserved_tokens
    return max(1.0, min(policy.max_seqs, _FILLED * policy.kv_tokens / max(1.0, tokens)))


def steady_states(
    model: StepModel, policy: EnginePolicy, in_step: int, lengths: Lengths, *, seldom: bool = False
) -> Iterator[SteadyState]:
    """List states from one request to as many as there is room for, geometrically; `seldom`: from
    hardly ever one to one. `in_step`: schedulers in step; else 1."""
    if lengths.texts:
        yield from (_reading_state(model, policy, busy, lengths) for busy in _BUSY)
        return
    least, largest = (SELDOM, 1.0) if seldom else (1.0, most_decoding(policy, lengths))
    previous: SteadyState | None = None
    for number in range(_LEVELS):
        decoding = least * (largest / least) ** (number / (_LEVELS - 1))
        level = steady_state(model, policy, in_step, decoding, lengths)
        if previous is not None:
            growth = math.log(level.tpot_s / previous.tpot_s) / max(
                1e-9, math.log(level.decoding / previous.decoding)
            )
            level = level._replace(varies=_FOLLOWS * max(0.0, growth) / math.sqrt(decoding))
        yield level
        previous = level
        if largest <= least:
            return


def steady_state(
    model: StepModel, policy: EnginePolicy, in_step: int, decoding: float, lengths: Lengths
) -> SteadyState:
    """Compute the state in which so many requests decode at once; below one it is the share of the
    time."""
    if lengths.texts:
        return _reading_state(model, policy, decoding, lengths)
    output_tokens = lengths.answer
    new_tokens = max(1.0, lengths.prompt - lengths.cached)
    per_step = policy.tokens_per_step
    batches = policy.pipeline
    batch = max(1, round(decoding / batches))
    prompting = batch if decoding >= 1 else decoding  # that bring prompts
    context = batch * (lengths.prompt + output_tokens / 2)
    decode_s = model.step_s(batch, context, ()) + _adapters_s(model, lengths, batch, batch)
    mixed = policy.order == "mixed"
    mixed_decodes = batch if mixed else 0
    room = policy.max_batched_tokens - mixed_decodes * policy.decode_tokens
    piece = max(1, int(min(new_tokens, room))) if policy.chunked else max(1, int(new_tokens))
    if piece > room:
        # A prompt that is not cut finds no step with room for it and these: they would have to end
        # first.
        return SteadyState(
            decoding, decoding, 0.0, decode_s / per_step, math.inf, math.inf, math.inf
        )
    pieces = max(1.0, new_tokens / piece)
    # A later piece of a prompt attends to those before it: on average to half of the prompt.
    cached = int(lengths.cached + ((new_tokens - piece) / 2 if pieces > 1 else 0.0))
    # Short prompts share a step where many come: B·pieces/output of them in each.
    together = max(
        1.0,
        min(prompting * pieces / output_tokens * per_step, room / piece if room > piece else 1.0),
    )
    chunks = [(piece, cached)] * max(1, round(together))
    met = None
    if in_step > 1:
        apart = min(1.0, decoding * pieces * per_step / output_tokens)
        met = int(mixed_decodes + piece * len(chunks) * max(1 / in_step, apart))
    with_prompt_s = model.step_s(mixed_decodes, context if mixed else 0.0, chunks, met)
    tokens = mixed_decodes + piece * len(chunks)
    with_prompt_s += _adapters_s(model, lengths, mixed_decodes + len(chunks), tokens)
    shared = lengths.cached > 0
    work = mean_picture_work(model.pictures, lengths.pictures, prefix_cache=shared)
    with_prompt_s += work.encode_s * len(chunks) / pieces
    more_s = max(1e-9, with_prompt_s - (decode_s if mixed else 0.0)) / len(chunks)
    prompts_seen = prompting * pieces * per_step / output_tokens
    seen = prompts_seen if in_step == 1 or prompts_seen >= 1 else 1 - (1 - prompts_seen) ** in_step
    seen *= batches  # each stage waits for the longest step that any of them has in it
    tpot_s = (decode_s + seen * more_s) / per_step
    rate = decoding / (output_tokens * tpot_s)
    service_s = pieces * (with_prompt_s / len(chunks) if mixed else more_s)
    busy = rate * service_s / batches
    base_s = (
        model.request_s
        + work.prepare_s
        + model.request_token_s * lengths.prompt
        + model.stream_s
        + pieces * with_prompt_s
        + decode_s * max(0.5, policy.poll_steps / 2)
    )
    # Of two queues one after another the fuller one makes the tail, the other one its mean wait.
    host_s = work.host_s * model.deployment.dp
    (idler, idler_s), (busy, service_s) = sorted([(rate * host_s, host_s), (busy, service_s)])
    queue_s = service_s / (2 * (1 - busy)) if busy < 1 else math.inf
    if busy < 1:
        base_s += idler * idler_s / (2 * (1 - idler))
    waited_s = busy * queue_s if busy < 1 else math.inf
    users = decoding + rate * (base_s + waited_s)
    token_s = model.request_token_s + (with_prompt_s if pieces > 1 else more_s) / piece
    level = SteadyState(decoding, users, rate, tpot_s, base_s, busy, queue_s)
    return level._replace(prompt_token_s=token_s, pictures=model.pictures)


def full_step(policy: EnginePolicy, lengths: Lengths) -> list[tuple[int, int]]:
    """Return the texts, or pieces of one, that fill a step, each as (new, cached) tokens."""
    tokens, budget = max(1, round(lengths.prompt)), policy.max_batched_tokens
    piece = min(tokens, budget) if policy.chunked else tokens
    # A later piece attends to those before it: on average to half of the text.
    return [(piece, (tokens - piece) // 2)] * max(1, min(policy.max_seqs, budget // piece))


def _reading_state(
    model: StepModel, policy: EnginePolicy, busy: float, lengths: Lengths
) -> SteadyState:
    """Compute the state of a scheduler that reads texts for a share of the time, which `decoding`
    holds: an M/D/1 queue whose service is a request's part of full steps. TPOT is E2E without a
    queue, so that both have one error."""
    chunks = full_step(policy, lengths)
    room, full_s = len(chunks), model.step_s(0, 0.0, chunks)
    parts = lengths.texts * max(1.0, lengths.prompt / chunks[0][0])
    service_s = parts * full_s / room / policy.pipeline
    whole, rest = divmod(math.ceil(parts), room)
    own_s = whole * full_s + (model.step_s(0, 0.0, chunks[:rest]) if rest else 0.0)
    # Others are in its last step, and it waits for half of the step that runs.
    own_s += busy * (max(0.0, full_s - own_s) + full_s / 2)
    prompt_s = model.request_token_s * lengths.prompt * lengths.texts
    request_s = model.request_s * (1 + model.text_share * (lengths.texts - 1))
    base_s = request_s + prompt_s + model.stream_s + own_s
    queue_s = service_s / (2 * (1 - busy)) if busy < 1 else math.inf
    rate = busy / service_s
    users = rate * (base_s + busy * queue_s)
    return SteadyState(busy, users, rate, base_s, base_s, busy, queue_s)


def _adapters_s(model: StepModel, lengths: Lengths, requests: float, tokens: float) -> float:
    """Return what a step of so many requests and tokens takes longer for LoRA adapters, as many
    different ones as it has on average."""
    times = model.adapters
    if times is None:
        return 0.0
    different = min(times.slots, different_adapters(lengths.adapters, requests))
    return times.step_s(tokens, different)
