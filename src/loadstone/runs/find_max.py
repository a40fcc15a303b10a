"""The highest load at which bounds on latency hold: a search, each of whose probes is an ordinary
run.

A bracket by doubling, from a prediction where the deployment is known, else from one request per
second; then the middle of the bracket (geometric) until its ends are within 5 %, or the time is
over. A measured probe ends as soon as it is known whether the bounds hold, by an interval that is
valid whenever one looks (analyse/stopping.py). One that ends undecided shows where the next one
goes, and nothing is said of it. Most are short and only show where the edge is; what time is left
goes to a load a little below it and one a little above. The i-th of either kind is wrong with a
probability of at most 0.05/(i·(i+1)): all together, however many, with at most 10 %.

Percentiles take requests: a p99 takes some 500 of them. Below 20 requests/s that is minutes a
probe.
"""

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

import msgspec

from loadstone.analyse.stopping import Stopping, parse_rules
from loadstone.catalogue import parse_worker
from loadstone.core import run_folder
from loadstone.core.bounds import parse_slo
from loadstone.core.errors import InputError
from loadstone.core.provenance import Provenance
from loadstone.core.settings import FoundMax, SearchedLoad
from loadstone.core.signals import Interrupted
from loadstone.core.statistics.distribution import PERCENTILES
from loadstone.core.summary import SearchSummary, Summary
from loadstone.core.text import excerpt
from loadstone.core.verdict import QUEUE_GROWS
from loadstone.predict.scheduler import policy_of
from loadstone.predict.steady_state import Lengths, steady_states
from loadstone.predict.step_time import StepModel
from loadstone.runs.bench import bench
from loadstone.runs.cells import Event, Listener
from loadstone.runs.simulate import simulate
from loadstone.runs.targets import find_servers
from loadstone.workload.option_fields import change
from loadstone.workload.options import Options, RunOptions, SimulateOptions, TargetOptions
from loadstone.workload.planning import Planner
from loadstone.workload.start_options import StartOptions

CONFIDENCE = 0.9
NEAR = 1.05
LONGEST_S = 600.0
_LEAST_PROBE_S = 10.0
_LEAST_REQUESTS = 16
"""Fewer tell of no load whether it holds. A probe lasts for so many, and no bound is said to hold
before it does for _LEAST_PROBE_S: the queue of a server that does not keep up takes a while to
show."""
_MAX_PROBES = 40
_SIMULATED_REQUESTS = 6000
_MAX_FAILED = 0.01
_LEAST_RATE = 1e-3
_GROWTH, _GROWTH_UNKNOWN = 2.0, 4.0
"""Steps up to a load that fails, from one that is near it and from anywhere."""
_DISTANCES = (1.4, 1.2, 1.08)
_NEAR_MEASURED = 1.1
"""A short probe shows no more of where the edge is."""
_GUIDES, _DECIDES = 0.06, 0.45
"""Of the time that is left: for a probe that shows where to look, and for one whose answer is told.
"""

Kind = Literal["rate", "concurrency"]
AnyOptions = TypeVar("AnyOptions", bound=RunOptions)


class Probe(NamedTuple):
    """A load that was tried. `holds`: None where the time did not tell; `likely`: what then looks
    more likely; `run`: its summary; `why`: it does not, where that is no bound."""

    load: float
    holds: bool | None
    likely: bool
    run: Summary
    why: str = ""

    @property
    def requests(self) -> int:
        return sum(cell.requests.sent or 0 for cell in self.run.cells)


Try = Callable[[float, int, float, float], Probe]
"""A probe at a load, its number from 1, the seconds that it may take, and with what probability it
may be wrong."""


def find_max(
    options: RunOptions,
    on_event: Listener = lambda event: None,
    made_with: Provenance | None = None,
) -> SearchSummary:
    """Search by measuring a live engine, or by simulating. `made_with`: as in bench.

    Raises InputError, and Interrupted with what was measured.
    """
    if options.workload.mix is not None or options.workload.classes:
        raise InputError("--mix and --find-max: do not go together; leave one out")
    search = read_search(options)
    if isinstance(options, SimulateOptions):
        first = search.start or _guess(options, options.simulator.deployment, search)
        return _summary(
            _search(_probe_simulation(options, search), first, search.kind, math.inf), search
        )
    assert isinstance(options, Options)  # noqa: S101 - there is no third kind
    if options.client.profile_s is not None:
        raise InputError("--profile and --find-max: a search has many loads; profile what it finds")
    with contextlib.ExitStack() as stack:
        target = options.target
        draft = Planner(_probe_options(options, search.kind, search.start or 1.0, 1.0)).plan()
        servers = find_servers(
            options, draft, stack, lambda text: on_event(Event(kind="note", text=text))
        )
        stated = target.launch or target.deployment
        simulated = target.sim if "@" in (target.sim or "") else None
        declared = stated or simulated
        engine = servers.engine
        model = options.start.model if engine is None else engine.launch.model
        running = dataclasses.replace(
            options,
            target=TargetOptions(url=servers.urls, deployment=stated),
            start=StartOptions(model=model),
        )
        tried = _probe_server(running, search, on_event, made_with)
        first = search.start or (_guess(options, declared, search) if declared else 1.0)
        growth = _GROWTH if search.start or declared else _GROWTH_UNKNOWN
        budget_s = options.early_end.max_duration_s or LONGEST_S
        return _summary(
            _search(tried, first, search.kind, budget_s, growth, _NEAR_MEASURED), search
        )


class LoadSearch(NamedTuple):
    """The bounds that shall hold, what load is searched, and where to begin; None: nobody says
    where."""

    bounds: str
    kind: Kind
    start: float | None


def read_search(options: RunOptions) -> LoadSearch:
    """Read what is searched. Raises InputError."""
    load, workload = options.load, options.workload
    text = load.find_max or ""
    try:
        is_readable = all(rule.limit_s for rule in parse_rules(text)) and bool(parse_slo(text))
    except InputError:
        is_readable = False
    if not is_readable:
        problem = (
            f"{excerpt(text, 80)!r} is no bound on percentiles; write e.g."
            " ttft_p99<500ms,tpot_p99<30ms"
        )
        raise InputError(f"--find-max: {problem}")
    if len(load.rate) > 1 or len(load.concurrency) > 1 or (load.rate and load.concurrency):
        raise InputError(
            "--find-max: give one load to begin with, --rate 4 or --concurrency 8, or none"
        )
    fixed = {
        "--requests": load.requests,
        "--requests-per-rate": load.requests_per_rate,
        "--ramp": load.ramp,
        "--duration": load.duration_s,
        "--trace": workload.trace,
        "--plan": workload.plan,
        "--slo": options.output.slo,
        "--stop-when": options.early_end.stop_when if isinstance(options, Options) else None,
    }
    for flag, value in fixed.items():
        if value:
            raise InputError(f"{flag}: --find-max decides that itself; leave it out")
    if math.inf in load.rate:
        raise InputError("--rate inf: sends all at once; give a rate to begin with")
    kind: Kind = "concurrency" if load.concurrency else "rate"
    given: Sequence[float] = load.concurrency or load.rate
    return LoadSearch(text, kind, float(given[0]) if given else None)


def _probe_options(
    options: AnyOptions, kind: Kind, load: float, seconds: float | None
) -> AnyOptions:
    """Return the options of a probe at one load, for so many seconds."""
    return change(
        options,
        find_max=None,
        duration_s=seconds,
        rate=(load,) if kind == "rate" else (),
        concurrency=(round(load),) if kind == "concurrency" else (),
    )


# --- probes ---------------------------------------------------------------------------------------


def _probe_server(
    options: Options, search: LoadSearch, on_event: Listener, made_with: Provenance | None
) -> Try:
    def tried(load: float, number: int, longest_s: float, error: float) -> Probe:
        rules = tuple(rule._replace(error=error) for rule in parse_rules(search.bounds))
        probe = change(
            _probe_options(options, search.kind, load, longest_s),
            slo=search.bounds,
            stop_when=search.bounds,
            max_duration_s=None,
            seed=options.workload.seed + number - 1,
        )
        given = options.early_end.max_errors
        most_errors = _MAX_FAILED if given is None else given
        shows_s = (
            _LEAST_PROBE_S if search.kind == "rate" else 0.0
        )  # of a closed loop no queue grows
        run = bench(
            probe, on_event, made_with, Stopping(rules, most_errors, 0.0, longest_s, shows_s)
        )
        stopped = run_folder.read_info(Path(run.run_dir)).cells[0].stopped
        holds, why = stopped.holds if stopped is not None else None, ""
        kinds = _findings(run)
        if stopped is not None and stopped.rule == "errors":
            holds, why = False, f"{stopped.evidence.partition(',')[0]}"
        elif QUEUE_GROWS & kinds:
            holds, why = False, "the server does not keep up with it"
        elif holds and "pace_unknown" in kinds:
            holds = None
        return Probe(load, holds, _holds(run) if holds is None else holds, run, why)

    return tried


def _probe_simulation(options: SimulateOptions, search: LoadSearch) -> Try:
    def tried(load: float, number: int, left_s: float, error: float) -> Probe:
        requests = max(_SIMULATED_REQUESTS, 20 * round(load) if search.kind == "concurrency" else 0)
        probe = _probe_options(options, search.kind, load, None)
        run = simulate(change(probe, requests=(requests,), slo=search.bounds, draws=0))
        holds = _holds(run) and not QUEUE_GROWS & _findings(run)
        return Probe(load, holds, holds, run)

    return tried


def _findings(run: Summary) -> set[str]:
    """Return the kinds of a probe's findings; none where nothing of it was sent."""
    return {finding.kind for cell in run.cells for finding in cell.verdict.findings}


def _holds(run: Summary) -> bool:
    """Return True where each bounded percentile, as it was seen, is within its bound."""
    bounds = [bound for cell in run.cells for bound in cell.slo]
    return bool(bounds) and all(
        bound.value is not None and bound.value <= bound.limit_s for bound in bounds
    )


def _guess(options: RunOptions, deployed: str, search: LoadSearch) -> float:
    """Estimate by closed form what load a deployment carries; 1 where it is not known."""
    try:
        worker = parse_worker(deployed)
        policy = policy_of(worker)
        drafts = policy.draft_tokens
        model = StepModel(worker, draft_tokens=drafts)
    except InputError:
        return 1.0
    load = dataclasses.replace(
        options.load, rate=(1.0,), concurrency=(), requests=(200,), find_max=None
    )
    plan = Planner(RunOptions(workload=options.workload, load=load)).plan()
    inputs, outputs = float(plan.input_tokens.mean()), float(max(2.0, plan.output_tokens.mean()))
    best = 1.0
    rules = parse_rules(search.bounds)
    group = worker.dp if worker.attention_dp else 1
    for level in steady_states(model, policy, group, Lengths(inputs, outputs)):
        for rule in rules:
            value = level.latency_s(rule.metric, PERCENTILES[rule.percentile], outputs)
            if rule.limit_s is not None and value > rule.limit_s:
                return best
        best = max(best, worker.dp * (level.rate_per_s if search.kind == "rate" else level.users))
    return best


# --- the search -----------------------------------------------------------------------------------


class SearchAnswer(NamedTuple):
    """The probes in order, the highest load that holds (0: none did) and the lowest that fails
    (None: none did). `cut`: by a signal."""

    probes: list[Probe]
    low: float
    high: float | None
    cut: bool = False


def _search(
    tried: Try,
    start: float,
    kind: Kind,
    budget_s: float,
    growth: float = _GROWTH,
    near: float = NEAR,
) -> SearchAnswer:
    begun_s = time.monotonic()
    probes: list[Probe] = []
    believed: list[Probe] = []
    made = {_GUIDES: 0, _DECIDES: 0}
    load = max(1.0, round(start)) if kind == "concurrency" else start
    share, cut = _GUIDES, False
    while len(probes) < _MAX_PROBES:
        left_s = budget_s - (time.monotonic() - begun_s)
        least_s = max(_LEAST_PROBE_S, _LEAST_REQUESTS / load if kind == "rate" else 0.0)
        if left_s < least_s and probes:
            break
        made[share] += 1
        error = (1 - CONFIDENCE) / 2 / (made[share] * (made[share] + 1))
        try:
            probe = tried(load, len(probes) + 1, max(least_s, left_s * share), error)
        except Interrupted:
            if not probes:
                raise
            cut = True
            break
        probes.append(probe)
        believed = [
            earlier
            for earlier in believed
            if earlier.holds is not None or _is_consistent(earlier, probe)
        ] + [probe]
        low = max((candidate.load for candidate in believed if candidate.likely), default=0.0)
        high = min(
            (candidate.load for candidate in believed if not candidate.likely), default=math.inf
        )
        following, share = _next_load(low, high, kind, growth, near), _GUIDES
        if following is None:
            following, share = _deciding_load(probes, low, high, kind), _DECIDES
        if following is None:
            break
        load = following
    failed = min((candidate.load for candidate in probes if candidate.holds is False), default=None)
    # What failed at less does not hold: more load is not what would help.
    sure = [
        candidate.load
        for candidate in probes
        if candidate.holds and (failed is None or candidate.load < failed)
    ]
    return SearchAnswer(probes, max(sure, default=0.0), failed, cut)


def _is_consistent(probe: Probe, rival: Probe) -> bool:
    """Return True where it is not more load that makes one hold."""
    return probe.likely in (rival.likely, probe.load < rival.load)


def _deciding_load(probes: Sequence[Probe], low: float, high: float, kind: Kind) -> float | None:
    """Choose a load that decides, once it is clear where the edge is: one below that surely holds
    or above that surely fails, first one far from it, then nearer ones; None: both are known, or
    were tried for.
    """
    loads = [probe.load for probe in probes]
    for distance in _DISTANCES:
        for sure, edge in ((True, low), (False, high)):
            if edge in (0.0, math.inf):
                continue
            load = edge / distance if sure else edge * distance
            if kind == "concurrency":
                load = float(math.floor(load) if sure else math.ceil(load))
            is_decided = any(
                probe.holds is sure and (probe.load >= load if sure else probe.load <= load)
                for probe in probes
            )
            if not is_decided and load > _LEAST_RATE and load not in loads:
                return load
    return None


def _next_load(low: float, high: float, kind: Kind, growth: float, near: float) -> float | None:
    """Choose the next load between one that seems to hold and one that seems to fail; None: they
    are near enough."""
    if high == math.inf:
        return growth * low
    following = high / growth if low == 0 else math.sqrt(low * high)
    if kind == "concurrency":
        following = float(round(following))
        return (
            following
            if low < following < high and following >= 1 and (low == 0 or high > near * low)
            else None
        )
    return following if following > _LEAST_RATE and (low == 0 or high > near * low) else None


def _summary(answer: SearchAnswer, search: LoadSearch) -> SearchSummary:
    """Return the summary of the run whose load holds and is the highest, or of the last one, with
    the cells of all.

    Raises Interrupted with it where the search was cut off.
    """
    probes, kind = answer.probes, search.kind
    best = next((probe for probe in probes if probe.holds and probe.load == answer.low), probes[-1])
    cells = [cell for probe in probes for cell in probe.run.cells]
    found = FoundMax(
        load=SearchedLoad(kind, answer.low) if answer.low else None,
        fails_at=SearchedLoad(kind, answer.high) if answer.high is not None else None,
        confidence=CONFIDENCE,
        kind=kind,
        requests=sum(probe.requests for probe in probes),
        probes=list(range(len(cells))),
        runs=[Path(probe.run.run_dir).name for probe in probes],
    )
    text = _text(answer, found, search.bounds, best.run.source == "measured")
    found = msgspec.structs.replace(found, text=text)
    whole = msgspec.structs.asdict(best.run) | {"cells": cells}
    run_dirs = [probe.run.run_dir for probe in probes]
    summary = SearchSummary(**whole, run_dirs=run_dirs, max=found)
    folder = Path(best.run.run_dir)
    if answer.cut:
        raise Interrupted(folder, summary)
    info = run_folder.read_info(folder)
    info.settings.find_max = found
    run_folder.write_info(folder, info)
    return summary


def _text(answer: SearchAnswer, found: FoundMax, bounds: str, measured: bool) -> str:
    """Write the answer in a sentence: what holds and what fails, surely or as it seems."""
    unit = found.unit

    def loads(verb: str, sure: float | None, seem: list[float]) -> str:
        if sure:
            return f"{verb} at {sure:.4g} {unit}"
        return (
            f"seem to {verb} at {seem[0]:.4g} {unit}"
            if seem
            else f"{verb} at no load that was tried"
        )

    seem = {
        holds: sorted(probe.load for probe in answer.probes if probe.likely is holds)
        for holds in (True, False)
    }
    holding = [load for load in seem[True][::-1] if answer.high is None or load < answer.high]
    why = next(
        (
            probe.why
            for probe in answer.probes
            if probe.load == answer.high and probe.holds is False and probe.why
        ),
        "",
    )
    sure = (
        "simulated"
        if not measured
        else f"{found.confidence:.0%} sure"
        if answer.low or answer.high
        else ""
    )
    tail = f"{len(answer.probes)} probes, {found.requests:,} requests"
    if measured and not (answer.low and answer.high) and (holding or not why):
        tail += "; a longer --max-duration tells more"
    at_low = (
        probe.run.cells for probe in answer.probes if probe.load == answer.low and probe.holds
    )
    if not all(cell.verdict.trusted for cell in next(at_low, [])):
        tail += "; where they hold, the probe is not trusted"
    failing = [load for load in seem[False] if load > max([answer.low, *holding])]
    odd = [f"{load:.4g}" for load in seem[False] if holding and answer.low < load < holding[0]]
    if odd:
        tail += f"; {', '.join(odd)} {unit} seemed to fail: loads this near cannot be told apart"
    return (
        f"{bounds} {loads('hold', answer.low, holding)}, and "
        f"{loads('fail', answer.high, failing)}"
        f"{f', where {why}' if why else ''} ({'; '.join(filter(None, (sure, tail)))})"
    )
