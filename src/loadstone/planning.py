"""From what a user asks to the plan that follows from it: which workload, under which loads."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from loadstone import arrivals, store
from loadstone.errors import InputError
from loadstone.options import Options
from loadstone.records import Load, Plan, Unit
from loadstone.schedule import Workload, make_plan
from loadstone.workload import dataset, trace
from loadstone.workload.session import Sessions, parse_think
from loadstone.workload.synthetic import Length, Synthetic, parse_length

_DEFAULT_INPUT, _DEFAULT_OUTPUT = "1024", "128"
_MOST_REQUESTS = 20_000_000
"""In one run: a plan of more would not fit into memory, and its run would take days."""
_PLANNED = (
    "rate", "concurrency", "ramp", "burstiness", "max-concurrency", "requests", "requests-per-rate", "duration",
    "warmup", "input", "output", "range-ratio", "prefix", "prefix-groups", "dataset", "turns", "think-time", "trace",
    "time-scale", "trace-window", "trace-sample", "length-scale", "skip-bad", "seed",
)  # fmt: skip
"""Flags that a plan answers already."""
_FIELDS = {"duration": "duration_s", "trace-window": "trace_window_s"}
"""Of Options, where they are named otherwise than their flag."""
_UNSAID = Options()
_OF_A_TRACE = ("time-scale", "trace-window", "trace-sample", "length-scale")


def plan_of(options: Options, max_tokens: int | None = None, min_input_tokens: int = 1) -> Plan:
    """The plan that the options ask for.

    `max_tokens`: the server's context; lines of a trace that are longer are bad lines. `min_input_tokens`: the least
    that a prompt can have there; a trace's shorter ones are made as long.
    Raises InputError, one line that names the flag, or the file and line.
    """
    if options.seed < 0 or options.seed >= 1 << 63:
        raise InputError(f"--seed {options.seed}: must be 0 or more, and below 2^63")
    if options.temperature is not None and not 0 <= options.temperature < math.inf:
        raise InputError(f"--temperature {options.temperature:g}: must be 0 (greedy) or above")
    if options.top_p is not None and not 0 < options.top_p <= 1:
        raise InputError(f"--top-p {options.top_p:g}: must be above 0 and at most 1")
    if options.plan is not None:
        told = [flag for flag in _PLANNED if _given(options, flag)]
        if told:
            raise InputError(f"--plan and --{told[0]}: the plan says what is sent and when; give one")
        plan = store.read_plan(options.plan)
        # Runs of other tools have plans, too, that nobody can send: without requests, or of a load that is not known.
        if not all(len(plan.rows(cell)) and load.value > 0 for cell, load in enumerate(plan.cells)):
            raise InputError(f"--plan {options.plan}: a cell without requests or load; give a plan that was measured")
        return plan
    _check_numbers(options)
    sessions = _sessions(options)
    workload, output = _workload(options, sessions, max_tokens)
    loads, requests = _loads(options, workload, "requests" if sessions is None else "sessions")
    most = sum(
        (requests[i] if requests is not None else _begun(load, workload))
        + (arrivals.default_warmup(load) if options.warmup is None else options.warmup)
        for i, load in enumerate(loads)
    )
    if most > _MOST_REQUESTS:
        raise InputError(f"{most:.3g} requests in one run: at most {_MOST_REQUESTS:,}; lower the load or --requests")
    lengthened = 0
    if isinstance(workload, trace.Trace):
        lengthened = int((workload.input_tokens < min_input_tokens).sum())
        workload = msgspec.structs.replace(workload, input_tokens=workload.input_tokens.clip(min=min_input_tokens))
    plan = make_plan(
        workload,
        loads,
        seed=options.seed,
        requests=requests,
        warmup=options.warmup,
        output=output,
        sessions=sessions,
        # An answer of a given form ends when it is complete.
        exact=options.structured is None,
    )
    cut = {
        "lengthened": lengthened,
        "window_s": options.trace_window_s,
        "sample": options.trace_sample,
        "length_scale": options.length_scale,
    }
    plan.workload.update({name: value for name, value in cut.items() if value})
    return plan


def _begun(load: Load, workload: Workload) -> float:
    """About how many requests or sessions a cell has, where their number is not said."""
    if load.process == "trace" and isinstance(workload, trace.Trace):
        return workload.count
    if load.kind == "rate" and (load.profile or load.duration_s is not None):
        return load.value * (load.duration_s or arrivals.duration_s(load.profile))
    return 0 if load.duration_s is not None else arrivals.default_requests(load)


def _given(options: Options, flag: str) -> bool:
    """Whether a flag says something else than it would by being left out."""
    name = _FIELDS.get(flag, flag.replace("-", "_"))
    value = getattr(options, name)
    return bool((tuple(value) if isinstance(value, list) else value) != getattr(_UNSAID, name))


def _check_numbers(options: Options) -> None:
    if not 0 < options.range_ratio <= 1:
        raise InputError(f"--range-ratio {options.range_ratio:g}: must be above 0 and at most 1")
    if options.prefix < 0 or options.prefix_groups < 1:
        raise InputError("--prefix must be 0 or more tokens, and --prefix-groups at least 1")
    if options.prefix_groups > 1 and not options.prefix:
        raise InputError("--prefix-groups: prompts of a group share a prefix; say with --prefix how long it is")
    if options.warmup is not None and options.warmup < 0:
        raise InputError(f"--warmup {options.warmup}: must be 0 or more")
    for name in _OF_A_TRACE:
        if _given(options, name) and options.trace is None:
            raise InputError(f"--{name}: says how a trace is replayed; it goes with --trace")
    if options.skip_bad and options.trace is None and options.dataset is None:
        raise InputError("--skip-bad: leaves out bad lines of a file; it goes with --trace or --dataset")


# --- what is asked --------------------------------------------------------------------------------------------


def _sessions(options: Options) -> Sessions | None:
    if options.turns is None:
        if options.think_time is not None:
            raise InputError("--think-time: lies between the turns of a session; it goes with --turns")
        return None
    think = parse_think(options.think_time) if options.think_time is not None else parse_think("0")
    return Sessions(parse_length(options.turns, 1.0, "--turns"), think)


def _workload(options: Options, sessions: Sessions | None, max_tokens: int | None) -> tuple[Workload, Length | None]:
    """The workload; and, for a dataset, how long answers should be where it does not say."""
    if options.trace is not None:
        for flag in ("input", "output", "dataset", "prefix", "turns", "range-ratio"):
            if _given(options, flag):
                raise InputError(f"--trace and --{flag}: the trace says what is asked; give one")
        return _trace(options, max_tokens), None
    if options.dataset is not None:
        for flag in ("input", "prefix"):
            if _given(options, flag):
                raise InputError(f"--dataset and --{flag}: the dataset says what prompts hold; give one")
        output = parse_length(options.output, options.range_ratio, "--output") if options.output else None
        return dataset.read(options.dataset, conversations=sessions is not None, skip_bad=options.skip_bad), output
    synthetic = Synthetic(
        parse_length(options.input or _DEFAULT_INPUT, options.range_ratio, "--input"),
        parse_length(options.output or _DEFAULT_OUTPUT, options.range_ratio, "--output"),
        options.prefix,
        options.prefix_groups,
        system_prompt=sessions is not None,
    )
    return synthetic, None


def _trace(options: Options, max_tokens: int | None) -> trace.Trace:
    assert options.trace is not None  # noqa: S101
    factor = options.length_scale
    if factor is not None and not 0 < factor < math.inf:
        raise InputError(f"--length-scale {factor:g}: must be above 0")
    share = options.trace_sample
    if share is not None and not 0 < share <= 1:
        raise InputError(f"--trace-sample {share:g}: must be above 0 and at most 1")
    if max_tokens is not None and factor is not None:
        max_tokens = max(1, math.floor(max_tokens / factor) - 1)  # what is still short enough once it is scaled
    traced = trace.read(options.trace, skip_bad=options.skip_bad, max_tokens=max_tokens)
    if options.trace_window_s is not None:
        traced = traced.cut(*options.trace_window_s)
    if share is not None:
        traced = traced.sample(share, options.seed)
    if options.requests and not (options.rate or options.concurrency or options.ramp):
        if options.requests[0] > traced.count:
            raise InputError(f"--requests {options.requests[0]:,}: the trace has {traced.count:,}; ask for no more")
        traced = traced.first(options.requests[0])
    return traced if factor is None else traced.scaled_lengths(factor)


# --- when it is asked -----------------------------------------------------------------------------------------


def _loads(options: Options, workload: Workload, unit: Unit) -> tuple[list[Load], list[int] | None]:
    """Loads, and measured requests per load where they are said."""
    given = [flag for flag in ("rate", "concurrency", "ramp") if getattr(options, flag)]
    if len(given) > 1:
        raise InputError(
            f"--{given[0]} and --{given[1]}: one run is an open or a closed loop; give one (--max-concurrency caps)"
        )
    if options.duration_s is not None and options.duration_s <= 0:
        raise InputError("--duration: must be above 0")
    cap = options.max_concurrency
    if cap is not None and cap < 1:
        raise InputError(f"--max-concurrency {cap}: must be at least 1")
    bad = [rate for rate in options.rate if not rate > 0]
    if bad:
        raise InputError(f"--rate {bad[0]:g}: must be above 0 requests/s, or inf for all at once")
    per_rate = options.requests_per_rate
    if per_rate is not None and not (options.rate and 0 < per_rate < math.inf):
        raise InputError("--requests-per-rate: needs --rate, and a number above 0")
    if not options.burstiness > 0:
        raise InputError(f"--burstiness {options.burstiness:g}: must be above 0 (1 is Poisson, inf constant)")
    if options.burstiness != 1 and not (options.rate or options.ramp):
        raise InputError("--burstiness: says how arrivals of an open loop are spread; it goes with --rate")
    if options.time_scale and given:
        raise InputError(f"--time-scale and --{given[0]}: requests go at a trace's times or at a load; give one")
    if math.inf in options.rate:
        if len(options.rate) > 1:
            raise InputError("--rate: inf stands alone; its bursts are as large as --requests says")
        if options.duration_s is not None or per_rate is not None:
            raise InputError("--rate inf: only --requests says how large its bursts are; leave out the rest")
        return [Load("burst", size, max_concurrency=cap, unit=unit) for size in options.requests or (32,)], None
    if len(options.requests) > 1:
        raise InputError("--requests: a list goes with --rate inf only; give one number for every cell")
    if options.requests and options.duration_s is not None:
        raise InputError("--requests and --duration: a cell ends by count or by time; give one")
    if isinstance(workload, trace.Trace) and not given:
        loads = _trace_loads(options, workload)
    elif options.ramp is not None:
        loads = [_ramp(options, unit)]
    elif options.rate:
        process, shape = _process(options)
        loads = [
            Load("rate", rate, process, shape, max_concurrency=cap, duration_s=options.duration_s, unit=unit)
            for rate in options.rate
        ]
    else:
        if cap is not None:
            raise InputError("--max-concurrency: caps an open loop; a closed one has --concurrency")
        loads = [
            Load("concurrency", places, duration_s=options.duration_s, unit=unit)
            for places in options.concurrency or (1, 4, 16)
        ]
    if per_rate is not None:
        return loads, [max(1, round(per_rate * load.value)) for load in loads]
    if options.requests:
        return loads, [options.requests[0]] * len(loads)
    return loads, None


def _process(options: Options) -> tuple[Literal["poisson", "constant", "gamma"], float]:
    if options.burstiness == 1.0:
        return "poisson", 1.0
    return ("constant", 1.0) if options.burstiness == math.inf else ("gamma", options.burstiness)


def _trace_loads(options: Options, traced: trace.Trace) -> list[Load]:
    if options.duration_s is not None:
        raise InputError("--trace and --duration: the trace ends by itself; cut it with --trace-window 0s:60s")
    loads = []
    for scale in options.time_scale or (1.0,):
        if not 0 < scale < math.inf:
            raise InputError(f"--time-scale {scale:g}: must be above 0; 0.1 replays ten times as fast")
        span_s = (traced.duration_s - float(traced.time_s[0])) * scale
        mean = (traced.count - 1) / span_s if span_s else float(traced.count)
        loads.append(
            Load("rate", max(mean, 1e-9), "trace", max_concurrency=options.max_concurrency, time_scale=scale)
        )
    return loads


def _ramp(options: Options, unit: Unit) -> Load:
    assert options.ramp is not None  # noqa: S101
    kind, profile = arrivals.parse_profile(options.ramp)
    if options.duration_s is not None or options.requests:
        flag = "--requests" if options.requests else "--duration"
        raise InputError(f"--ramp and {flag}: its pieces say how long they last; leave out {flag}")
    if kind == "rate":
        process, shape = _process(options)
        cap = options.max_concurrency
        mean = arrivals.mean(profile)
        return Load("rate", mean, process, shape, max_concurrency=cap, profile=profile, unit=unit)
    if options.max_concurrency is not None:
        raise InputError("--max-concurrency: caps an open loop; a closed one ramps as --ramp says")
    most = max(max(start, end) for start, end, _ in profile)
    if most < 1:
        raise InputError("--ramp: fewer than one request under way; ramp to 1 or more")
    return Load("concurrency", most, duration_s=arrivals.duration_s(profile), profile=profile, unit=unit)
