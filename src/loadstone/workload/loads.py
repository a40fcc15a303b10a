"""Makes the loads that the options name: rates, slots, bursts and ramps, each with its requests."""

import math
from collections.abc import Sequence
from typing import Literal

from loadstone.core.errors import InputError
from loadstone.core.plan import Load, Unit
from loadstone.workload import arrivals, trace
from loadstone.workload.draw import Workload
from loadstone.workload.load_options import LoadOptions
from loadstone.workload.mix import Mix
from loadstone.workload.options import RunOptions

_MAX_REQUESTS = 20_000_000
"""In one run: a plan of more would not fit into memory, and its run would take days."""


def is_counted(load: LoadOptions) -> bool:
    """True where a cell's end is given, by count or by time."""
    return bool(load.requests) or load.requests_per_rate is not None or load.duration_s is not None


def warmup_of(options: LoadOptions, loads: Sequence[Load]) -> int | None:
    """Return the warm-up's requests; None: as many as the load has by default."""
    if options.start == "staggered":
        return options.warmup
    if not any(load.is_closed for load in loads):
        raise InputError("--start together: a closed loop starts so; it goes with --concurrency")
    if options.warmup:
        raise InputError("--start together and --warmup: there is no warm-up then; leave one out")
    return 0


def check_count(options: LoadOptions, loads: Sequence[Load], requests: Sequence[float]) -> None:
    total = sum(
        count + (arrivals.default_warmup(load, count) if options.warmup is None else options.warmup)
        for load, count in zip(loads, requests, strict=True)
    )
    if total > _MAX_REQUESTS:
        raise InputError(
            f"{total:.3g} requests in one run: at most {_MAX_REQUESTS:,}; lower the load or"
            " --requests"
        )


def expected_requests(load: Load, workload: Workload) -> float:
    """Estimate how many requests or sessions a cell has, where their number is not given."""
    length = workload.length(load)
    if length is not None:
        return length
    if load.is_open and (load.profile or load.duration_s is not None):
        return load.value * (load.duration_s or arrivals.duration_s(load.profile))
    return 0 if load.duration_s is not None else arrivals.default_requests(load)


def loads_of(
    options: RunOptions, workload: Workload, unit: Unit
) -> tuple[list[Load], list[int] | None]:
    """Return the loads, and measured requests per load where they are given."""
    load, scales = options.load, options.workload.time_scale
    named = [flag for flag in ("rate", "concurrency", "ramp") if getattr(load, flag)]
    _check_load(load, named, scales)
    if math.inf in load.rate:
        _check_bursts(load, unit)
        if len(load.rate) == 1:
            return _bursts(load, unit), None
    _check_ends(load)
    if isinstance(workload, trace.Trace | Mix) and not named:
        if load.duration_s is not None:
            raise InputError(
                "--trace and --duration: the trace ends by itself; cut it with"
                " --trace-window 0s:60s"
            )
        loads = workload.loads(scales or (1.0,), load.max_concurrency)
    elif load.ramp is not None:
        loads = [_ramp(load, load.ramp, unit)]
    elif load.rate:
        loads = _rates(load, unit)
    elif load.max_concurrency is not None:
        raise InputError("--max-concurrency: caps an open loop; a closed one has --concurrency")
    else:
        loads = [
            Load("concurrency", concurrency, duration_s=load.duration_s, unit=unit)
            for concurrency in load.concurrency or (1, 4, 16)
        ]
    per_rate = load.requests_per_rate
    if per_rate is not None:
        return loads, [max(1, round(min(per_rate * cell.value, 1e18))) for cell in loads]
    return loads, [load.requests[0]] * len(loads) if load.requests else None


def _check_load(options: LoadOptions, named: Sequence[str], scales: Sequence[float]) -> None:
    """Raise InputError for options that are about another load than the one that is `named`."""
    if len(named) > 1:
        raise InputError(
            f"--{named[0]} and --{named[1]}: one run is an open or a closed loop; give one"
            " (--max-concurrency caps)"
        )
    bad = [rate for rate in options.rate if not rate > 0]
    if bad:
        raise InputError(f"--rate {bad[0]:g}: must be above 0 requests/s, or inf for all at once")
    per_rate = options.requests_per_rate
    if per_rate is not None and not (options.rate and 0 < per_rate < math.inf):
        raise InputError("--requests-per-rate: needs --rate, and a number above 0")
    if options.burstiness != 1 and not (options.rate or options.ramp):
        raise InputError(
            "--burstiness: says how arrivals of an open loop are spread; it goes with --rate"
        )
    if scales and named:
        raise InputError(
            f"--time-scale and --{named[0]}: requests go at a trace's times or at a load; give one"
        )


def _check_bursts(options: LoadOptions, unit: Unit) -> None:
    if options.duration_s is not None or options.requests_per_rate is not None:
        raise InputError(
            "--rate inf: only --requests says how large its bursts are; leave out the rest"
        )
    if len(options.rate) > 1 and unit == "sessions":
        raise InputError(
            "--rate: with --turns inf stands alone; --requests counts sessions there, not requests"
        )


def _check_ends(options: LoadOptions) -> None:
    """Raise InputError where a cell's end is given in two ways."""
    if len(options.requests) > 1:
        raise InputError(
            "--requests: a list goes with --rate inf alone; give one number for every load"
        )
    if options.requests_per_rate is not None and (
        options.requests or options.duration_s is not None
    ):
        flag = "--requests" if options.requests else "--duration"
        raise InputError(f"{flag} and --requests-per-rate: each says when a load ends; give one")
    if options.requests and options.duration_s is not None:
        raise InputError("--requests and --duration: a load ends by count or by time; give one")


def _bursts(options: LoadOptions, unit: Unit) -> list[Load]:
    return [
        Load("burst", size, max_concurrency=options.max_concurrency, unit=unit)
        for size in options.requests or (32,)
    ]


def _rates(options: LoadOptions, unit: Unit) -> list[Load]:
    process, shape = _process(options)
    loads = []
    for rate in options.rate:
        if rate == math.inf:
            loads += _bursts(options, unit)
            continue
        cap, duration_s = options.max_concurrency, options.duration_s
        loads.append(Load("rate", rate, process, shape, cap, duration_s, unit=unit))
    return loads


def _process(options: LoadOptions) -> tuple[Literal["poisson", "constant", "gamma"], float]:
    if options.burstiness == 1.0:
        return "poisson", 1.0
    return ("constant", 1.0) if options.burstiness == math.inf else ("gamma", options.burstiness)


def _ramp(options: LoadOptions, pieces: str, unit: Unit) -> Load:
    kind, profile = arrivals.parse_profile(pieces)
    if options.duration_s is not None or options.requests:
        flag = "--requests" if options.requests else "--duration"
        raise InputError(f"--ramp and {flag}: its pieces say how long they last; leave out {flag}")
    if kind == "rate":
        process, shape = _process(options)
        mean, cap = arrivals.mean(profile), options.max_concurrency
        return Load("rate", mean, process, shape, cap, profile=profile, unit=unit)
    if options.max_concurrency is not None:
        raise InputError("--max-concurrency: caps an open loop; a closed one ramps as --ramp says")
    peak = max(max(start, end) for start, end, _ in profile)
    if peak < 1:
        raise InputError("--ramp: fewer than one request under way; ramp to 1 or more")
    return Load(
        "concurrency", peak, duration_s=arrivals.duration_s(profile), profile=profile, unit=unit
    )
