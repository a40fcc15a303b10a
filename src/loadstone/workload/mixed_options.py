"""Reads the classes of a mix, and the load that they make together."""

import math
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from loadstone.core.errors import InputError
from loadstone.workload import trace
from loadstone.workload.class_requests import MAX_CLASSES, WORKLOAD_KEYS, ClassRequest, read_class
from loadstone.workload.draw import Workload
from loadstone.workload.load_options import WorkloadOptions
from loadstone.workload.loads import is_counted
from loadstone.workload.mix import MixedPart, rate_shares
from loadstone.workload.option_fields import change, changed_options, check_limits, options_of
from loadstone.workload.options import RunOptions
from loadstone.workload.sources import (
    WITH_A_TRACE,
    add_pictures,
    check_combinations,
    parse_output,
    read_workload,
    sessions_of,
)

_MIX_S = 60.0
"""How long classes with slots are measured, where nobody says it."""
Run = TypeVar("Run", bound=RunOptions)
_NOT_IN_A_MIX = (*WORKLOAD_KEYS, "agents", "plan", "structured")
_NOT_WITH_A_MIX = ("max-concurrency", "ramp", "find-max")


def load_of_mix(options: Run, parts: Sequence[MixedPart]) -> Run:
    """Return the options with the load that the classes make: the sum of their rates or slots; for
    as long as their traces, where nobody says it. Raises InputError for options that a mix does not
    go with."""
    requests = [part.request for part in parts]
    if options.workload.text is not None:
        raise InputError("--mix and --text: do not go together; leave one out")
    of_trace = ("trace", "skip-bad", *WITH_A_TRACE) if options.workload.trace is not None else ()
    for flag in changed_options(options.workload):
        if flag.replace("-", "_") in _NOT_IN_A_MIX and flag not in of_trace:
            raise InputError(f"--mix and --{flag}: each class says this of itself; give it there")
    load = options.load
    for flag in changed_options(load):
        if flag in _NOT_WITH_A_MIX:
            raise InputError(f"--mix and --{flag}: do not go together; leave one out")
    if options.grading.check is not None:
        raise InputError("--mix and --check: do not go together; leave one out")
    slots = sum(request.traffic.slots for request in requests)
    open_classes = [request.name for request in requests if not request.traffic.slots]
    if slots:
        if open_classes:
            raise InputError(
                f"class {open_classes[0]}: comes at a rate, and another class has slots; give all"
                " of them slots, or all a share or rate: times of the two loads count from other"
                " moments"
            )
        if load.rate or load.concurrency or load.requests:
            raise InputError(
                "--mix: classes with slots are a load of their own, which goes by --duration; leave"
                " out --rate, --concurrency and --requests"
            )
        return change(options, concurrency=[slots], duration_s=load.duration_s or _MIX_S)
    if load.concurrency:
        raise InputError(
            "--mix and --concurrency: classes with a share come at a --rate; for a closed loop give"
            " each class slots"
        )
    if math.inf in load.rate:
        raise InputError("--mix and --rate inf: a mix comes at a rate; give it in requests/s")
    if not load.rate and all(request.replays for request in requests):
        return options
    if not is_counted(load):
        ends_s = [
            part.workload.duration_s
            for part in parts
            if part.request.replays and isinstance(part.workload, trace.Trace)
        ]
        options = change(options, duration_s=max(ends_s, default=None))
    if not load.rate:
        if any(request.rate is None for request in requests):
            raise InputError("--mix: classes with a share need the --rate that they share")
        return change(options, rate=[sum(request.rate or 0.0 for request in requests)])
    for rate in load.rate:
        rate_shares(requests, rate)
    return options


def read_parts(options: WorkloadOptions, requests: Sequence[ClassRequest]) -> list[MixedPart]:
    """Read what the classes ask, and the classes that a trace's rows name. Raises InputError."""
    whole = None
    if options.trace is not None and options.plan is None:
        whole = read_workload(options, None)
    if not isinstance(whole, trace.Trace) or not whole.class_names:
        if whole is not None and requests:
            raise InputError(
                f"--mix and --trace: no row of {options.trace} names a class; give it a column"
                " class, or each class a trace"
            )
        return [_read_part(request, None) for request in requests]
    given = {request.name for request in requests}
    unnamed = [name for name in whole.class_names if name not in given]
    named = [read_class({"name": name}, f"{options.trace}: class {name!r}") for name in unnamed]
    if len(requests) + len(named) > MAX_CLASSES:
        raise InputError(
            f"{options.trace}: its rows name more than {MAX_CLASSES} classes; name fewer"
        )
    return [_read_part(request, whole) for request in [*requests, *named]]


def _read_part(request: ClassRequest, whole: trace.Trace | None) -> MixedPart:
    """Read what a class asks. `whole`: the trace whose rows name classes. Raises InputError, which
    names the class."""
    try:
        workload = options_of(request.workload, WorkloadOptions)
        check_limits(workload)
        check_combinations(workload)
        sessions = sessions_of(workload)
        output = None
        if workload.dataset is not None and workload.output is not None:
            output = parse_output(workload)
        if not request.replays or workload.trace is not None:
            read = add_pictures(read_workload(workload, sessions), workload)
        else:
            read = _take_rows(request, whole)
        if request.replays:
            request = msgspec.structs.replace(request, rate=_mean_rate(read))
        return MixedPart(request, read, output, sessions, workload.skip_bad)
    except InputError as error:
        raise InputError(f"class {request.name}: {error}") from None


def _mean_rate(read: Workload) -> float:
    """Return the requests/s of a class at its trace's times. Raises InputError."""
    if not isinstance(read, trace.Trace):
        raise InputError("pictures of a trace come at a load; give share, rate or slots")
    return read.loads((1.0,), None)[0].value


def _take_rows(request: ClassRequest, whole: trace.Trace | None) -> Workload:
    """Return the rows that a trace has of a class. Raises InputError."""
    if whole is None:
        raise InputError("needs one of share, rate (requests/s) and slots, or a trace")
    if request.workload:
        raise InputError(f"{next(iter(request.workload))}: the trace's rows say what is asked")
    return whole.of_class(request.name)
