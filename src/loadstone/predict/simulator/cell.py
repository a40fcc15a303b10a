"""One cell, from its first request to its last: client and replicas, event by event."""

import gc
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from loadstone.core.plan import Plan
from loadstone.predict.scheduler import Sequence
from loadstone.predict.scheduler.queue import Refusal
from loadstone.predict.simulator.client import NEVER, CellRequests, SimulatedClient
from loadstone.predict.simulator.content import Contents, shares
from loadstone.predict.simulator.encoders import EncodedArrivals, EncoderWork
from loadstone.predict.simulator.engine import picture_times_of, text_share_of
from loadstone.predict.simulator.fast import applies, run_fast
from loadstone.predict.simulator.fleet import Fleet, sharing
from loadstone.predict.simulator.gateway import Gateway
from loadstone.predict.simulator.pictures import (
    LaterArrivals,
    PreparedArrivals,
    PromptPictures,
)
from loadstone.predict.simulator.pipeline import complete, engines_of, next_s_of
from loadstone.predict.simulator.pools import Pools, Unit, route
from loadstone.predict.simulator.run import CellRun, Look, LookBuffer
from loadstone.predict.step_time.pictures import Picture

_LEAD_S = 0.1
"""Between a burst's warm-up and the burst."""


def run_cell(
    plan: Plan,
    cell: int,
    fleet: Fleet,
    start_s: float = 0.0,
    grace_s: float = 30.0,
    look: Look | None = None,
    *,
    quick: bool = True,
) -> CellRun:
    """Simulate one cell from rest. Raises InputError where a request would never fit into the KV
    cache.

    `quick`: by the faster loop (fast.py) where that gives the same.
    """
    model, policy = fleet.model, fleet.policy
    frontend = model.request_s, model.request_token_s
    requests = CellRequests(plan, cell, *frontend, policy.unset_priority, text_share_of(model))
    run = CellRun(requests, start_s, model.stream_s)
    run.route = fleet.route
    if plan.pictures is not None:
        prompts = fleet if fleet.prefill is None else fleet.prefill.fleet
        times = picture_times_of(prompts.model)
        if fleet.encoders is not None:
            times, run.encoders = fleet.encoders.times, EncoderWork(fleet.encoders, start_s)
        run.pictures = PromptPictures(plan, cell, times, prompts.workers)
    contents = None
    if policy.prefix_cache and shares(plan, cell):
        computing = policy if fleet.prefill is None else fleet.prefill.fleet.policy
        policy = sharing(policy)
        contents = Contents(plan, cell, requests, sharing(computing).block_tokens)
    fleet, shared = replace(fleet, policy=policy), contents is not None
    units: list[Unit]
    if fleet.prefill is not None:
        pools = Pools(fleet, run.journal, shared=shared, seed=plan.seed)
        run.replicas, run.prefill_replicas, run.pool_times = (
            [*pools.replicas],
            pools.prefill_replicas,
            pools.times,
        )
        units = [pools]
    else:
        run.replicas, engines = engines_of(fleet, run.journal, shared=shared, seed=plan.seed)
        units = [*engines]
        if fleet.flow_control is not None:
            units = [Gateway(fleet.flow_control, engines, run.replicas, fleet.route, (plan, cell))]
    collecting = gc.isenabled()
    # nothing here makes cycles, and the collector would look at a million rows again and again
    gc.disable()
    try:
        apart = fleet.prefill is not None or fleet.flow_control is not None
        if quick and not apart and applies(plan, cell, policy, fleet.replicas, shared):
            buffer = LookBuffer()
            if run_fast(
                run, plan.cells[cell], policy, model, buffer.look if look is not None else None
            ):
                if look is not None:
                    buffer.show(look)
                return run
            return run_cell(plan, cell, fleet, start_s, grace_s, look, quick=False)
        at_s = start_s
        for first, last in plan.steps(cell):
            client = SimulatedClient(requests, plan.cells[cell], first, last, at_s)
            _run_step(run, client, units, contents, plan.cells[cell].duration_s, grace_s, look)
            run.issue_end_s = client.issue_end_s
            at_s = run.over_s + _LEAD_S
    finally:
        if collecting:
            gc.enable()
    return run


def _is_read(unread: Counter[int], index: int) -> bool:
    """Count one more text of a request as read; tell whether it was the last."""
    unread[index] -= 1
    return not unread[index]


def _run_step(
    run: CellRun,
    client: SimulatedClient,
    units: list[Unit],
    contents: Contents | None,
    duration_s: float | None,
    grace_s: float,
    look: Look | None,
) -> None:
    stream_s = run.stream_s
    arrivals, pop = prepare(run, client)
    answered = client.ended
    end_s, cached_tokens = run.end_s, run.cached_tokens
    only = units[0] if len(units) == 1 else None
    unit = units[0]
    turn, how = 0, run.route or run.replicas[0].scheduler.policy.route
    refused = _share_refused(run, units)
    now_s = run.start_s
    timer_s = client.timer_s
    look_s = now_s if look is not None else NEVER
    sequences, unread = run.requests.sequences, Counter[int]()
    over_s = now_s
    stop_s = NEVER
    while True:
        if only is None:
            unit = min(units, key=next_s_of)
        next_s = unit.next_s
        arrival_s = arrivals[0][0] if arrivals else NEVER
        if duration_s is not None and client.measure_start_s is not None:
            stop_s = client.measure_start_s + duration_s + grace_s
        soonest_s = arrival_s if arrival_s <= next_s else next_s
        if timer_s < soonest_s:  # noqa: PLR1730  (min() takes longer)
            soonest_s = timer_s
        if soonest_s == NEVER:
            break
        # As things stand between the event before and the one to come.
        while look is not None and look_s < stop_s and look_s < soonest_s:
            look_s = look(look_s, run.states(look_s))
        if stop_s < soonest_s:
            run.stop(stop_s)
            return
        if timer_s < arrival_s and timer_s <= next_s:
            now_s = timer_s
            client.act()
            timer_s = client.timer_s
        elif arrival_s <= next_s:
            now_s, index = pop(arrivals)
            sequence = arrive(run, client, contents, index, now_s, duration_s)
            if only is None:
                turn += 1
                unit = route(units, turn, how, sequence)
            texts = sequences[run.requests.row(index)] if sequences else ()
            for tokens in texts:
                unread[index] += 1
                unit.add(Sequence(index, tokens, 1), now_s)
            if not texts:
                unit.add(sequence, now_s)
            if refused:
                turn_away(run, client, refused, now_s)
                timer_s = client.timer_s
        else:
            now_s = next_s
            for sequence in complete(unit):
                index = sequence.row
                if sequences and not _is_read(unread, index):
                    continue
                end_s[index] = now_s
                if sequence.cached_tokens:
                    cached_tokens[index] = sequence.cached_tokens
                over_s = now_s + stream_s
                answered(index, over_s)
            if refused:
                turn_away(run, client, refused, now_s)
            timer_s = client.timer_s
    run.over_s = max(run.over_s, over_s)


def _share_refused(run: CellRun, units: list[Unit]) -> list[Refusal]:
    """Return the list in which all schedulers, and a gateway, note whom they turn away."""
    refused: list[Refusal] = []
    if isinstance(units[0], Gateway):
        units[0].refused = refused
    for replica in run.replicas:
        replica.scheduler.refused = refused
    return refused


def prepare(run: CellRun, client: SimulatedClient) -> tuple[Any, Callable[[Any], Any]]:
    """Return the arrivals of a client at the schedulers, and what takes the first: those of the
    client, or as its pictures are prepared, and encoded where others do that."""
    pictures, requests = run.pictures, run.requests
    if pictures is None:
        return client.arrivals, client.pop

    def pictures_of(index: int) -> tuple[Picture, ...]:
        row = requests.row(index)
        return pictures.of(index, row, requests.input_tokens[row])

    arrivals: tuple[Any, Callable[[Any], Any]] = client.arrivals, client.pop
    if run.encoders is not None:
        arrivals = EncodedArrivals(*arrivals, pictures_of, work=run.encoders), LaterArrivals.take
        if not run.encoders.pool.again:
            return arrivals
    return PreparedArrivals(*arrivals, pictures_of, host=pictures.host), LaterArrivals.take


def turn_away(run: CellRun, client: SimulatedClient, refused: list[Refusal], now_s: float) -> None:
    """Tell the client of those that were turned away at `now_s`."""
    at_s = now_s + run.stream_s
    for refusal in refused:
        run.turn_away(refusal, at_s)
        client.failed(refusal.sequence.row, at_s)
    refused.clear()
    run.over_s = max(run.over_s, at_s)


def arrive(
    run: CellRun,
    client: SimulatedClient,
    contents: Contents | None,
    index: int,
    now_s: float,
    duration_s: float | None,
) -> Sequence:
    """Make what the scheduler sees of request `index`, which reaches it at `now_s`."""
    requests = run.requests
    row = index
    if index >= requests.count:
        row = requests.row(index)
        if index >= len(run.end_s):
            begun_s = now_s if client.measure_start_s is None else client.measure_start_s
            run.grow((now_s - begun_s) / duration_s if duration_s else 0.0)
    sequence = Sequence(index, requests.input_tokens[row], requests.output_tokens[row])
    sequence.priority = requests.priority[row]
    sequence.adapter = requests.adapter[row]
    if run.pictures is not None and run.encoders is None:
        sequence.pictures = run.pictures.of(index, row, sequence.prompt_tokens)
        sequence.states = states = sum(picture.states for picture in sequence.pictures)
        sequence.prompt_tokens += states
        sequence.target += states
    turn = requests.turn[row]
    sequence.session = index - turn if turn > 0 else index
    if contents is not None:
        segments = contents.segments(index)
        sequence.share(segments, segments[-1][1] if segments else 0)
    return sequence
