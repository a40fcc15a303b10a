"""Points made ready for a fit: thousands of them evaluated at once, by a formula whose constants
the simulator gives.

A point's TTFT and TPOT come from a simulation, which is slow to differentiate. So each point is
simulated once at the present coefficients; what the scheduler did there (mean batch, context,
prompt steps) is kept, and around it

    TPOT ≈ r·(t_decode(B, context) + q·t_prompt(chunk, B))
    TTFT ≈ request_s + request_token_s·n + stream_s + w·t_decode + k·t_prompt

with q the prompt steps per decode step that those who decode see, w the decode steps waited for,
and r (as a rule 1) and k such that both agree with the simulation there. These are smooth in the
coefficients, vectorised over points, right in value and, to a few per cent, in slope; a few rounds
of simulating and fitting converge.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from loadstone.calibrate.points import Point, deployment_of
from loadstone.catalogue import Deployment, Worker
from loadstone.catalogue.deployment.pools import has_pools
from loadstone.core.calls import CallGraph
from loadstone.core.errors import InputError
from loadstone.core.machine_figures import DraftFigures
from loadstone.core.pictures import Pictures
from loadstone.core.plan import Inputs, Load, Plan
from loadstone.core.vectors import Bools, Floats, Ints64
from loadstone.engines import rules_of
from loadstone.predict.scheduler import EnginePolicy, policy_of
from loadstone.predict.simulator.cell import run_cell
from loadstone.predict.simulator.engine import StepTimes, picture_times_of, text_share_of
from loadstone.predict.simulator.fleet import Fleet, fleet_for, fleet_of, fleet_with
from loadstone.predict.simulator.latencies import answered_rows, latencies_s, request_rows
from loadstone.predict.step_time.coefficients import FRONTEND, INDEX, slopes_of
from loadstone.predict.step_time.exchange import is_wide
from loadstone.predict.step_time.formulas import (
    MeanStep,
    both,
    kernel_seconds,
    step_seconds,
    step_terms,
)
from loadstone.predict.step_time.operators import Work, stack
from loadstone.predict.step_time.pictures import TERMS, PictureTimes
from loadstone.predict.step_time.profile import profile_of
from loadstone.predict.step_time.step import Chunks, StepModel
from loadstone.predict.step_time.work import work_of

MOST_REQUESTS = 4096
"""A simulated closed loop of more requests says nothing new."""
MOST_USERS = 65_536
MOST_TOKENS = 4_000_000
REQUESTS_PER_USER = 10
"""Requests that a closed loop sends, where a point does not say (InferenceX: `--num-prompts $((
CONC * 10 ))`)."""
_MOVED = 0.1
"""By how much terms of pictures are moved either way for a slope, in ln."""
_MOST_OF_PICTURES = 0.95
"""The most of a time that the formula takes for that of pictures."""
_FILLED_S = 1000.0
"""Between the request that fills the prefix cache and those that come at times of their own."""


# --- a point's traffic ----------------------------------------------------------------------------


@dataclass
class Case:
    """One point that can be simulated as a closed loop of users, or as one static batch, on all its
    schedulers. The first `warm` requests are its warm-up: simulated, and left out of TTFT and TPOT.
    All prompts begin with the same `cached` tokens. Of pools there is their `fleet`, with the
    policy and the work of a worker that decodes. Of requests for vectors or scores there are the
    `texts`, and their E2E is the point's TTFT. `inputs` count the tokens of `pictures`, too.
    """

    point: Point
    deployment: Deployment
    users: int
    policy: EnginePolicy
    inputs: Ints64
    outputs: Ints64
    work: Work
    times: Floats | None = None
    warm: int = 0
    cached: int = 0
    drafts: DraftFigures | None = None
    fleet: Fleet | None = None
    texts: Inputs | None = None
    pictures: Pictures | None = None

    @property
    def lengths(self) -> Ints64:
        """Return the tokens of each sequence that is read: of a prompt, or of a text."""
        if self.texts is None:
            return self.inputs
        rows = range(len(self.inputs))
        return np.array([n for row in rows for n in self.texts.sequences(row)], np.int64)

    @property
    def worker(self) -> Worker:
        """Return the worker that decodes."""
        return self.deployment.decoder

    @property
    def text_tokens(self) -> Ints64:
        """Return the tokens of each prompt without its pictures."""
        return self.inputs if self.pictures is None else self.inputs - self.pictures.tokens()

    def plan(self) -> Plan:
        row = self.point.row
        plan = _plan(self.users, self.text_tokens, self.outputs, row, self.times, self.cached)
        plan.inputs, plan.pictures = self.texts, self.pictures
        return plan


def case_of(point: Point, profile: str | None = None) -> Case:
    """Draw the point's traffic; of pools, make the fleet of both, by the `profile`. Raises
    InputError with the reason why it cannot be predicted."""
    if point.wrong:
        raise InputError(point.wrong)
    if point.load_value == math.inf and (point.load == "concurrency" or point.mode == "static"):
        raise InputError("arrival_value 'inf' is not a number of users")
    if point.mode == "disagg" and not has_pools(point.deployment):
        raise InputError("mode disagg: the pools are not said; write both in the column deployment")
    if not point.input_tokens or not point.output_tokens or point.output_tokens < 2:
        raise InputError("input and output lengths are not said")
    if not 0 < point.input_tokens <= MOST_TOKENS or point.output_tokens > MOST_TOKENS:
        raise InputError(f"lengths beyond {MOST_TOKENS} tokens")
    deployment = deployment_of(point)
    worker = deployment.decoder
    users, requests = _load(point)
    if not 0 < users <= MOST_USERS:
        raise InputError(f"{users} users at once; at most {MOST_USERS}")
    cached = _cached_tokens(point)
    # With a prefix that is cached, somebody has to have put it there: the first of each user, or
    # one before a burst.
    closed = point.load == "concurrency" and point.mode != "static" and users < requests
    warm = 0 if not cached else users if closed else 1
    rng = np.random.default_rng([0, point.row])
    inputs, outputs = _lengths(point, worker, requests + warm, rng)
    fleet, policy = fit_fleet(
        deployment, inputs + outputs, point.acceptance, profile, published=True
    )
    longest = int((inputs + outputs).max())
    if longest > policy.longest_tokens:
        raise InputError(
            f"requests of up to {longest} tokens; the KV cache holds {policy.longest_tokens}"
        )
    if cached and not policy.prefix_cache:
        raise InputError("cached_len: prefix caching is off in this deployment")
    times = None
    if point.load == "rate" and point.load_value and math.isfinite(point.load_value):
        times = np.cumsum(rng.exponential(1 / point.load_value, requests + warm))
    if warm and not closed:
        burst = np.zeros(requests) if times is None else times[1:]
        times = np.concatenate([[0.0], _FILLED_S + burst])
    return Case(
        point,
        deployment,
        users,
        policy,
        inputs,
        outputs,
        work_of(worker),
        times,
        warm,
        cached,
        fleet=fleet,
    )


def fit_fleet(
    deployment: Deployment,
    lengths: Ints64,
    acceptance: float | None,
    profile: str | None = None,
    *,
    published: bool = False,
) -> tuple[Fleet | None, EnginePolicy]:
    """Return the fleet of pools, by the `profile` (`published`: as in profile_of()), else None; and
    the policy, of a worker that decodes. Raises InputError."""
    if not deployment.is_split:
        return None, policy_of(deployment.worker, lengths=lengths, acceptance=acceptance)
    fleet = fleet_of(deployment, acceptance=acceptance, profile=profile, published=published)
    fleet = fleet_for(fleet, deployment, lengths, acceptance=acceptance)
    return fleet, fleet.policy


def _cached_tokens(point: Point) -> int:
    if point.prefix_tokens and point.cached_tokens is None:
        raise InputError("shared prefixes: what was cached is not said (cached_len)")
    cached = point.cached_tokens or 0
    shortest = int(point.range_ratio * (point.input_tokens or 0))
    if cached and (cached >= shortest or point.length_spread):
        raise InputError(f"cached_len {cached}: some prompts are no longer than that, or may be")
    return cached


def _lengths(
    point: Point, worker: Worker, count: int, rng: np.random.Generator
) -> tuple[Ints64, Ints64]:
    """Draw prompts and answers: uniform in a range, or log-normal as those of real text, within the
    context."""

    def draw(nominal: int, least: int) -> Ints64:
        if point.length_spread:
            variance = math.log1p(point.length_spread**2)
            drawn = rng.lognormal(math.log(nominal) - variance / 2, math.sqrt(variance), count)
            return np.maximum(least, np.rint(drawn)).astype(np.int64)
        return rng.integers(
            max(least, int(point.range_ratio * nominal)), int(point.range_most * nominal) + 1, count
        )

    inputs, outputs = draw(point.input_tokens or 0, 1), draw(point.output_tokens or 0, 2)
    limit = rules_of(worker).context_limit
    if point.length_spread and limit is not None:
        outputs = np.minimum(outputs, limit // 2)
        inputs = np.minimum(inputs, limit - outputs)
    return inputs, outputs


def _load(point: Point) -> tuple[int, int]:
    """Return (users, requests)."""
    if point.mode == "static":
        users = point.requests or int(point.load_value or 1)
        return users, users
    if point.load == "offline":
        if not point.requests:
            raise InputError("offline without the number of prompts")
        return point.requests, point.requests
    if point.load == "concurrency" and point.load_value:
        requested = point.requests or REQUESTS_PER_USER * int(point.load_value)
        users = min(int(point.load_value), requested)  # of users without a request nothing is seen
        return users, max(users, min(requested, max(MOST_REQUESTS, 2 * users)))
    if point.load == "rate" and point.load_value and point.requests:
        requests = min(point.requests, MOST_REQUESTS)
        return requests, requests
    raise InputError(f"load {point.load or 'unknown'!r} has no number of requests")


# --- through the simulator ------------------------------------------------------------------------


@dataclass
class Outcome:
    """Per request, in order of sending: seconds. And what one scheduler did, on average of all, for
    the fit.

    decode_steps       with decodes alone; of ranks that go in step, all of them
    decodes, context   in these: sequences of a step, tokens of a sequence
    prompt_steps       with prompts, of this scheduler or of one that it goes in step with
    chunk_tokens       prompt tokens of a step that has some of its own
    met_tokens         tokens that a scheduler brings to such steps, decodes included, those with
                       nothing counted too
    held_back          somebody waited for room in the KV cache
    states             of a prompt's pictures, those that cross attention reads, in all layers
    """

    ttft_s: Floats
    tpot_s: Floats
    e2e_s: Floats
    output_tokens: int
    duration_s: float
    preemptions: int
    decode_steps: float
    decodes: float
    context: float
    prompt_steps: float
    chunk_tokens: float
    met_tokens: float
    held_back: bool
    states: float = 0.0


class _Counted:
    """A performance model that counts the steps it is asked for."""

    def __init__(self, model: StepTimes) -> None:
        self.request_s, self.request_token_s, self.stream_s = (
            model.request_s,
            model.request_token_s,
            model.stream_s,
        )
        self.decode_line = model.decode_line
        self.window_tokens, self.window_s = model.window_tokens, model.window_s
        self.adapters = model.adapters
        self.pictures, self.text_share = picture_times_of(model), text_share_of(model)
        self._step_s = model.step_s
        self.chunked = self.others = 0  # steps with chunks; and with other ranks' alone
        self.with_decodes = self.decodes = self.tokens = 0
        self.context: float = 0

    def step_s(
        self,
        decodes: int,
        decode_context_tokens: float,
        chunks: Chunks,
        met_tokens: int | None = None,
    ) -> float:
        if chunks:
            self.chunked += 1
            for new, _ in chunks:
                self.tokens += new
        else:
            self.others += 1
        if decodes:
            self.with_decodes += 1
            self.decodes += decodes
            self.context += decode_context_tokens
        return self._step_s(decodes, decode_context_tokens, chunks, met_tokens)


def run(
    fleet: Fleet,
    users: int,
    inputs: Ints64,
    outputs: Ints64,
    seed: int = 0,
    times: Floats | None = None,
    warm: int = 0,
) -> Outcome:
    """A closed loop of `users`; or requests at `times`, seconds. Lengths in tokens, answers of 2 or
    more. The first `warm` requests are not in the outcome's times.

    Raises InputError where a request would never fit into the KV cache.
    """
    return _run_plan(fleet, _plan(users, inputs, outputs, seed, times), warm)


def _run_plan(fleet: Fleet, plan: Plan, warm: int) -> Outcome:
    model = _Counted(fleet.model)
    inputs, outputs = plan.input_tokens.astype(np.int64), plan.output_tokens.astype(np.int64)
    if plan.pictures is not None:
        inputs += plan.pictures.tokens()
    load, cached = plan.cells[0], bool(plan.prefix_tokens.any())
    # The quick loop may find only when it has counted steps that blocks run short: it is taken
    # where they cannot.
    at_once = len(inputs) if load.is_open else load.slots
    done = run_cell(
        plan,
        0,
        replace(fleet, model=model),
        quick=_holds_all(fleet.policy, at_once, inputs + outputs),
    )
    rows = request_rows(done)[warm:]
    latencies = latencies_s(rows)
    # What fills the cache before a burst is over before it, and does not count.
    alone = warm if cached and load.is_open else 0
    schedulers = [replica.scheduler for replica in done.replicas]
    preemptions = sum(scheduler.preemptions for scheduler in schedulers)
    replicas = len(done.replicas)
    steps = sum(scheduler.tick for scheduler in schedulers) - model.with_decodes
    # A prompt's step writes a token, when it is computed again as well; all others are of decodes.
    per_step = fleet.policy.tokens_per_step
    left, states = (outputs - 1).astype(float), _read_states(plan, model.pictures)
    decodes = (left.sum() - preemptions) / per_step - model.decodes
    read = inputs + states + outputs / 2
    context = float((left * read).sum()) / per_step - model.context
    prompt_steps = model.chunked + model.others
    return Outcome(
        ttft_s=latencies["ttft_s"],
        tpot_s=latencies["tpot_s"],
        e2e_s=latencies["e2e_s"],
        output_tokens=int(outputs[alone:].sum()),
        duration_s=done.over_s - (float(rows["sent"].min()) if alone else done.start_s),
        preemptions=preemptions,
        decode_steps=steps / replicas,
        decodes=max(0.0, decodes) / max(1, steps),
        context=max(0.0, context) / max(1.0, decodes),
        prompt_steps=prompt_steps / replicas,
        chunk_tokens=model.tokens / max(1, model.chunked),
        met_tokens=(model.tokens + model.decodes) / max(1, prompt_steps),
        held_back=any(scheduler.held_back for scheduler in schedulers),
        states=float(states.mean()),
    )


def _read_states(plan: Plan, times: PictureTimes | None) -> Floats:
    """Return the states of each prompt's pictures that cross attention reads, as if all layers
    did."""
    if plan.pictures is None or times is None or not times.state_flops:
        return np.zeros(len(plan))
    of_shapes = [
        sum(times.picture(file.width, file.height).states for file in shape.sizes)
        for shape in plan.pictures.shapes
    ]
    count = np.array(of_shapes)[plan.pictures.shape] * plan.pictures.count
    return np.asarray((1 - times.unread) * count)


def _holds_all(policy: EnginePolicy, users: int, tokens: Ints64) -> bool:
    """Tell whether the cache holds any that can run at once, to their last token."""
    blocks = -(-tokens // policy.block_tokens)
    return int(np.sort(blocks)[-min(users, policy.max_seqs) :].sum()) <= policy.kv_blocks


def _plan(
    users: int,
    inputs: Ints64,
    outputs: Ints64,
    seed: int,
    times: Floats | None,
    cached: int = 0,
) -> Plan:
    count = len(inputs)
    absent, zeros = np.full(count, -1, np.int32), np.zeros(count, np.int32)
    return Plan(
        seed=seed,
        cells=(Load("concurrency", users) if times is None else Load("rate", 1.0),),
        workload={},
        exact_output=True,
        cell=zeros,
        phase=np.ones(count, np.uint8),
        intended_s=np.full(count, np.nan) if times is None else times,
        input_tokens=inputs.astype(np.int32),
        output_tokens=outputs.astype(np.int32),
        prefix_group=zeros if cached else absent,
        prefix_tokens=np.full(count, cached, np.int32),
        turn=absent,
        think_s=np.zeros(count),
        prompt=absent,
        graph=CallGraph.of_turns(absent),
    )


# --- all points at once ---------------------------------------------------------------------------


class CaseTable:
    """Cases, their works as one, and what the last simulation of each gave, as arrays over the
    cases (see refresh()).

    batch, context          sequences of a decode step, tokens of a sequence
    chunk, chunk_sequences  prompt tokens of a step that has some, and of how many prompts they are
    chunk_pairs             pairs of a new and an earlier token in it; chunk_window_pairs: within
                            windows
    mixed_decodes, met      sequences that decode in such a step; tokens that a rank brings to it,
                            on average
    q, r, w, k              of the formula, see the module
    rate                    output tokens per second
    held_back               somebody waited for room in the KV cache
    picture_slopes          d ln TTFT and TPOT / d ln of the terms of pictures, 2 × d × terms
    pictures_s              seconds of TTFT and TPOT that pictures take, 2 × d
    """

    batch: Floats
    context: Floats
    chunk: Floats
    chunk_sequences: Floats
    chunk_pairs: Floats
    chunk_window_pairs: Floats
    mixed_decodes: Floats
    met: Floats
    q: Floats
    r: Floats
    w: Floats
    k: Floats
    rate: Floats
    ttft_s: Floats
    tpot_s: Floats
    held_back: Bools
    picture_slopes: Floats
    pictures_s: Floats

    def __init__(self, cases: Sequence[Case]) -> None:
        self.cases = list(cases)
        self.work = stack([case.work for case in cases])
        self.tokens = np.array([case.text_tokens.mean() for case in cases])
        further = np.array([len(case.lengths) / len(case.inputs) - 1 for case in cases])
        self.pictured = np.array([case.pictures is not None for case in cases])
        self.has_pictures = bool(self.pictured.any())
        workers = [case.worker for case in cases]
        rules = [rules_of(worker) for worker in workers]
        self.frontends = 1 + further * np.array([rule.further_text for rule in rules])
        self.eager = np.array([rule.is_eager for rule in rules])
        self.graph_tokens = np.array([rule.graph_tokens for rule in rules], float)
        self.is_wide = np.array([is_wide(worker) for worker in workers])
        self.in_step = np.array([worker.attention_dp and worker.dp > 1 for worker in workers])


def simulate(
    case: Case, values: Floats, pictures: Floats | None = None
) -> tuple[Outcome, StepModel]:
    """At coefficients `values` (K), all schedulers of the deployment. `pictures`: the logarithms of
    their terms; None: guessed."""
    drafts = case.policy.draft_tokens
    model = StepModel(case.worker, values=values, work=case.work, draft_tokens=drafts)
    times = model.pictures
    if times is not None and pictures is not None:
        steps = pictures - np.array(times.terms.logarithms)
        model = model.with_pictures(times.at(steps.tolist()))
    fleet = fleet_with(case.worker, case.policy, model)
    return _run_plan(fleet, case.plan(), case.warm), model


def predict_latencies(case: Case) -> tuple[float, float]:
    """Return the medians of TTFT and TPOT by the profile of the deployment, in seconds."""
    if case.fleet is None:
        outcome, _ = simulate(case, profile_of(case.worker).values())
        ttft_s, tpot_s = outcome.ttft_s, outcome.tpot_s
    else:
        answered = answered_rows(run_cell(case.plan(), 0, case.fleet))[case.warm :]
        latencies = latencies_s(answered)
        ttft_s, tpot_s = latencies["ttft_s"], latencies["tpot_s"]
    # Vectors and scores come in one piece, which has no TPOT.
    return float(np.median(ttft_s)), float(np.median(tpot_s)) if len(tpot_s) else math.nan


def slower_than_fewer(cases: Sequence[Case]) -> str | None:
    """Say that TPOT rises with tp, where the case with the fewest users took longer than half of
    its GPUs should."""
    timed = [case for case in cases if case.point.tpot_s]
    case = min(timed, key=lambda case: case.users, default=None)
    if case is None or case.point.tpot_s is None or case.worker.tp % 2:
        return None
    whole = case.worker
    half = msgspec.structs.replace(
        whole, tp=whole.tp // 2, gpus=whole.gpus // 2, ep=min(whole.ep, whole.gpus // 2)
    )
    try:
        alone = Deployment.of(half)
        fewer = replace(case, deployment=alone, policy=policy_of(half), work=work_of(half))
        outcome, _ = simulate(fewer, profile_of(half).values())
    except InputError:
        return None  # the model does not fit, or cannot be cut so
    expected_s = float(np.median(outcome.tpot_s))
    if case.point.tpot_s <= expected_s:
        return None
    return (
        f"TPOT rises with TP: {case.point.tpot_s * 1e3:.3g} ms was measured at tp{whole.tp} with"
        f" {case.users} users, and tp{half.tp} should take {expected_s * 1e3:.3g}; look at the host"
        " (clocks, links, other processes) first"
    )


def middle_of(case: Case) -> Callable[[Floats], np.floating[Any]]:
    """Return what the point's figures are of its requests: the mean or the median."""
    return np.mean if case.point.stat == "mean" else np.median


def _means(case: Case, outcome: Outcome) -> dict[str, float]:
    """Return the row of one case, by column of CaseTable."""
    middle = middle_of(case)
    mean = float(case.lengths.mean()) - case.cached
    sequences = max(1.0, outcome.chunk_tokens / mean)
    # A chunk of a longer prompt has on average half the prompt before it.
    new = min(mean, outcome.chunk_tokens)
    pairs = new * (case.cached + outcome.states + max(mean - new, 0.0) / 2 + new / 2)
    mixed = case.policy.order == "mixed"
    decode_steps = outcome.decode_steps + (outcome.prompt_steps if mixed else 0)
    return {
        "batch": max(1.0, outcome.decodes),
        "context": max(1.0, outcome.context),
        "chunk": outcome.chunk_tokens,
        "chunk_sequences": sequences,
        "chunk_pairs": sequences * pairs,
        "chunk_window_pairs": sequences * min(pairs, new * float(case.work.window[0])),
        "mixed_decodes": max(0.0, outcome.decodes - sequences) if mixed else 0.0,
        "met": outcome.met_tokens,
        "q": outcome.prompt_steps / max(1.0, decode_steps),
        "rate": outcome.output_tokens / outcome.duration_s,
        "ttft_s": float(middle(outcome.ttft_s)),
        "tpot_s": float(middle(outcome.tpot_s)) if len(outcome.tpot_s) else math.nan,
        "held_back": outcome.held_back,
    }


def _picture_slopes(case: Case, values: Floats, pictures: Floats | None) -> Floats:
    """Return d ln TTFT and TPOT of a case / d ln of the terms of pictures, 2 × terms: of means, for
    the median of users who wait for one another's pictures leaps from one to two of them."""
    terms = len(TERMS)
    if case.pictures is None or pictures is None:
        return np.zeros((2, terms))

    def logarithms(moved: Floats) -> Floats:
        outcome, _ = simulate(case, values, moved)
        times = outcome.ttft_s, outcome.tpot_s
        return np.log([float(seconds.mean()) if len(seconds) else 1.0 for seconds in times])

    steps = _MOVED * np.identity(terms)
    rows = [logarithms(pictures + step) - logarithms(pictures - step) for step in steps]
    return np.array(rows).T / (2 * _MOVED)


def refresh(table: CaseTable, values: Floats, pictures: Floats | None = None) -> None:
    """Simulate every case at its own coefficients (d × K), with `pictures` as simulate() has them,
    and keep what the formula needs."""
    rows = list(zip(table.cases, values, strict=True))
    means = [_means(case, simulate(case, row, pictures)[0]) for case, row in rows]
    for name in means[0]:
        setattr(table, name, np.array([row[name] for row in means], float))
    table.held_back = table.held_back.astype(bool)
    slopes_by_case = [_picture_slopes(case, row, pictures) for case, row in rows]
    table.picture_slopes = np.stack(slopes_by_case, axis=1)
    # As all terms of pictures do, so grows their part.
    shares = table.picture_slopes.sum(axis=2).clip(0.0, _MOST_OF_PICTURES)
    table.pictures_s = shares * np.array([table.ttft_s, table.tpot_s])
    first_s, pace_s = np.array([table.ttft_s, table.tpot_s]) - table.pictures_s
    decode, prompt = (
        mean_step_seconds(table, values, prompts=prompts) for prompts in (False, True)
    )
    mixes = table.mixed_decodes > 0
    # Prompts of a burst are nobody's decodes, and a median sees fewer than there are: as many as
    # explain TPOT.
    table.q = np.clip(
        (pace_s - decode) / np.maximum(prompt - np.where(mixes, decode, 0.0), 1e-9),
        0.0,
        table.q,
    )
    share = np.where(mixes, 1 - table.q, 1.0)
    table.r = pace_s / (share * decode + table.q * prompt)
    table.w = np.array([max(0.5, case.policy.poll_steps / 2) for case in table.cases])
    host = host_seconds(table, values)
    rest = first_s - host - table.w * decode
    low = 0.5 * prompt
    table.w = np.where(rest < low, np.maximum(0.0, (first_s - host - low) / decode), table.w)
    table.k = np.maximum(first_s - host - table.w * decode, 0.3 * prompt) / prompt


def mean_step_seconds(table: CaseTable, values: Floats, *, prompts: bool) -> Floats:
    """Return the seconds of a mean step that holds prompt tokens; or else of a decode step."""
    work, terms = table.work, step_terms(table.work, values)
    if prompts:
        tokens = table.chunk + table.mixed_decodes
        step = MeanStep(
            table.mixed_decodes,
            table.context,
            sequences=table.mixed_decodes + table.chunk_sequences,
            tokens=tokens,
            # The slowest rank has its own prompts before it; the experts meet what all ranks bring.
            met=np.where(table.in_step, table.met, tokens),
            pairs=table.chunk_pairs,
            window_pairs=table.chunk_window_pairs,
        )
        launched = tokens > table.graph_tokens
    else:
        batch = table.batch
        step = MeanStep(batch, table.context, sequences=batch, tokens=batch, met=batch)
        launched = table.eager
    alone, met = kernel_seconds(work, values, step)
    launch = np.where(launched, terms.launch, 0.0)
    kernels = np.where(table.is_wide, alone + met + launch, both(alone + met, launch))
    return step_seconds(terms, kernels, step.sequences, prompts=prompts)


def host_seconds(table: CaseTable, values: Floats) -> Floats:
    request, per_token, stream = values[:, [INDEX[name] for name in FRONTEND]].T
    return np.asarray(request * table.frontends + per_token * table.tokens + stream)


def predict(table: CaseTable, values: Floats) -> Floats:
    """Return ln TTFT and ln TPOT by the formula, 2 × d."""
    decode, prompt = (
        mean_step_seconds(table, values, prompts=prompts) for prompts in (False, True)
    )
    share = np.where(table.mixed_decodes > 0, 1 - table.q, 1.0)
    tpot = table.r * (share * decode + table.q * prompt)
    ttft = host_seconds(table, values) + table.w * decode + table.k * prompt
    return np.asarray(np.log(np.array([ttft, tpot]) + table.pictures_s))


def slopes(table: CaseTable, values: Floats) -> Floats:
    """Return d ln TTFT / d ln θ and d ln TPOT / d ln θ of the formula, 2 × d × K."""
    return np.ascontiguousarray(slopes_of(lambda moved: predict(table, moved), values))
