"""From what a user asks to the plan that follows from it: which workload, under which loads."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from loadstone.core import run_folder
from loadstone.core.errors import InputError
from loadstone.core.plan import Load, Plan, Unit
from loadstone.core.text import excerpt
from loadstone.workload import arrivals, dataset, trace
from loadstone.workload.lengths import Length, Sessions, Synthetic, parse_length, parse_think
from loadstone.workload.options import LOAD, WORKLOAD, Options, changed_flags, check_limits
from loadstone.workload.schedule import Workload, make_plan

_DEFAULT_INPUT, _DEFAULT_OUTPUT = "1024", "128"
_MOST_REQUESTS = 20_000_000
"""In one run: a plan of more would not fit into memory, and its run would take days."""
_LONGEST_S = 600.0
"""Of a cell that ends by its precision."""
_BESIDE_A_PLAN = ("plan", "temperature", "top-p", "grace")
_OF_A_TRACE = ("time-scale", "trace-window", "trace-sample", "length-scale")


class Beyond(Protocol):
    """The tokens of a file's prompt (`chat`: messages as a JSON array), where with so many of an answer they are more
    than the server takes; None where they are not, or where they cannot be counted.
    """

    def __call__(self, prompt: str, chat: bool, output_tokens: int) -> int | None: ...


class Planner:
    """The plans that follow from a user's options. Files that they name are read once.

    Raises InputError, one line that names the flag, or the file and line.
    """

    def __init__(self, options: Options) -> None:
        check_limits(options)
        self.options = options = _until_precise(options)
        self._plan: Plan | None = None
        if options.plan is not None:
            self._plan = _given_plan(options, options.plan)
            return
        _check_combinations(options)
        self._sessions = _sessions(options)
        self._workload, self._output = _workload(options, self._sessions)

    @property
    def chooses_length(self) -> bool:
        """Whether it is left to us how many single requests come at a rate: as many as last for several of their
        E2Es.
        """
        options = self.options
        counted = options.requests or options.requests_per_rate is not None or options.duration_s is not None
        files = options.plan is not None or options.trace is not None
        open_loop = any(rate < math.inf for rate in options.rate)
        return open_loop and not (counted or files or options.turns is not None)

    def plan(
        self,
        max_tokens: int | None = None,
        min_input_tokens: int = 1,
        beyond: Beyond | None = None,
        e2e_s: Sequence[float] = (),
    ) -> Plan:
        """The plan that the options ask for.

        `max_tokens`: the server's context; lines of a trace that are longer are bad lines, and so are prompts of a
        file that are `beyond` it. `min_input_tokens`: the least that a prompt can have there; a trace's shorter ones
        are made as long. `e2e_s`: about how long a request of each cell takes, in seconds; it decides how many there
        are, if the planner chooses_length. Raises InputError.
        """
        if self._plan is not None:
            return self._plan
        options, workload, sessions = self.options, self._workload, self._sessions
        cut: dict[str, Any] = {
            "window_s": options.trace_window_s,
            "sample": options.trace_sample,
            "length_scale": options.length_scale,
        }
        if isinstance(workload, trace.Trace):
            workload = _cut(options, workload, max_tokens)
        elif isinstance(workload, dataset.Dataset) and beyond is not None and options.skip_bad:
            every = len(workload.prompts)
            workload = _without_longer(workload, self._output, beyond)
            cut["too_long"] = every - len(workload.prompts)
        loads, requests = _loads(options, workload, "requests" if sessions is None else "sessions")
        if e2e_s and self.chooses_length:
            requests = [
                arrivals.default_requests(load, expected) for load, expected in zip(loads, e2e_s, strict=True)
            ]
        _check_count(options, loads, requests or [_begun(load, workload) for load in loads])
        if isinstance(workload, trace.Trace):
            cut["lengthened"] = int((workload.input_tokens < min_input_tokens).sum())
            workload = msgspec.structs.replace(
                workload, input_tokens=workload.input_tokens.clip(min=min_input_tokens)
            )
        plan = make_plan(
            workload,
            loads,
            seed=options.seed,
            requests=requests,
            warmup=options.warmup,
            output=self._output,
            sessions=sessions,
            # An answer of a given form ends when it is complete.
            exact=options.structured is None,
        )
        if isinstance(workload, trace.Trace) and options.trace is not None and max_tokens is not None:
            # The warm-up is as long as the trace's first requests.
            warm = [plan.warmup_count(cell) for cell in range(len(plan.cells))]
            sent = max(max(count, len(plan.rows(cell)) - count) for cell, count in enumerate(warm))
            workload.check_lengths(options.trace, max_tokens, sent)
        if options.dataset is not None and beyond is not None and plan.prompts:
            _check_prompts(options, plan, beyond)
        plan.workload.update({name: value for name, value in cut.items() if value})
        return plan


def _until_precise(options: Options) -> Options:
    """A cell that ends by its precision has no number of requests where none is said: it may take its longest time.
    Raises InputError.
    """
    if options.stop_when is None:
        if options.min_duration_s is not None:
            raise InputError("--min-duration: says how soon --stop-when may end a cell, and goes with it")
        return options
    if math.inf in options.rate:
        raise InputError("--stop-when: a burst sends all of its requests at once; leave it out")
    longest_s = options.max_duration_s or _LONGEST_S
    if (options.min_duration_s or 0) > longest_s:
        raise InputError(f"--min-duration {options.min_duration_s:g}: is longer than --max-duration, {longest_s:g} s")
    said = options.requests or options.requests_per_rate is not None or options.duration_s is not None
    if said or options.ramp is not None or options.trace is not None or options.plan is not None:
        return options
    return dataclasses.replace(options, duration_s=longest_s, max_duration_s=longest_s)


def plan_of(options: Options) -> Plan:
    """The plan that the options ask for, of whatever server. Raises InputError."""
    return Planner(options).plan()


def _given_plan(options: Options, path: Path) -> Plan:
    for flag in changed_flags(options, LOAD, WORKLOAD):
        if flag not in _BESIDE_A_PLAN:
            raise InputError(f"--plan and --{flag}: the plan says what is sent and when; give one")
    plan = run_folder.read_plan(path)
    # Runs of other tools have plans, too, that nobody can send: without requests, or of a load that is not known.
    if not plan.cells or not all(len(plan.rows(cell)) and load.value > 0 for cell, load in enumerate(plan.cells)):
        raise InputError(f"--plan {path}: a cell without requests or load; give a plan that was measured")
    return plan


def _check_count(options: Options, loads: Sequence[Load], requests: Sequence[float]) -> None:
    most = sum(
        count + (arrivals.default_warmup(load, count) if options.warmup is None else options.warmup)
        for load, count in zip(loads, requests, strict=True)
    )
    if most > _MOST_REQUESTS:
        raise InputError(f"{most:.3g} requests in one run: at most {_MOST_REQUESTS:,}; lower the load or --requests")


def _begun(load: Load, workload: Workload) -> float:
    """About how many requests or sessions a cell has, where their number is not said."""
    if load.process == "trace" and isinstance(workload, trace.Trace):
        return workload.count
    if load.is_open and (load.profile or load.duration_s is not None):
        return load.value * (load.duration_s or arrivals.duration_s(load.profile))
    return 0 if load.duration_s is not None else arrivals.default_requests(load)


def _check_combinations(options: Options) -> None:
    if options.prefix_groups > 1 and not options.prefix:
        raise InputError("--prefix-groups: prompts of a group share a prefix; give its length with --prefix")
    for flag in changed_flags(options, WORKLOAD):
        if flag in _OF_A_TRACE and options.trace is None:
            raise InputError(f"--{flag}: says how a trace is replayed; it goes with --trace")
    if options.skip_bad and options.trace is None and options.dataset is None:
        raise InputError("--skip-bad: leaves out bad lines of a file; it goes with --trace or --dataset")


# --- what is sent ---------------------------------------------------------------------------------------------


def _sessions(options: Options) -> Sessions | None:
    if options.turns is None:
        if options.think_time is not None:
            raise InputError("--think-time: lies between the turns of a session; it goes with --turns")
        return None
    think = parse_think(options.think_time) if options.think_time is not None else parse_think("0")
    return Sessions(parse_length(options.turns, 1.0, "--turns"), think)


def _workload(options: Options, sessions: Sessions | None) -> tuple[Workload, Length | None]:
    """The workload; and, for a dataset, how long answers should be where it does not say."""
    if options.trace is not None:
        for flag in changed_flags(options, WORKLOAD):
            if flag in ("input", "output", "dataset", "prefix", "turns", "range-ratio"):
                raise InputError(f"--trace and --{flag}: the trace says what is asked; give one")
        return trace.read(options.trace, skip_bad=options.skip_bad), None
    if options.dataset is not None:
        for flag in changed_flags(options, WORKLOAD):
            if flag in ("input", "prefix"):
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


def _without_longer(prompts: dataset.Dataset, output: Length | None, beyond: Beyond) -> dataset.Dataset:
    """A file's prompts that the server takes with the shortest answers that are asked for. Raises InputError."""
    least = 1 if output is None else output.smallest
    keep = [
        i
        for i, (prompt, tokens) in enumerate(zip(prompts.prompts, prompts.output_tokens, strict=True))
        if beyond(prompt, prompts.chat, least if tokens is None else tokens) is None
    ]
    if not keep:
        raise InputError(
            "--dataset: every prompt is longer than the server's context; start the server with a longer one"
        )
    return msgspec.structs.replace(
        prompts, prompts=[prompts.prompts[i] for i in keep], output_tokens=[prompts.output_tokens[i] for i in keep]
    )


def _check_prompts(options: Options, plan: Plan, beyond: Beyond) -> None:
    """Raises InputError where the server does not take one of a file's prompts with the answer asked for."""
    import numpy as np

    most = np.zeros(len(plan.prompts), np.int64)
    np.maximum.at(most, plan.prompt, plan.output_tokens)
    for prompt, output_tokens in zip(plan.prompts, most.tolist(), strict=True):
        tokens = beyond(prompt, plan.chat, output_tokens)
        if tokens is not None:
            remedy = "" if options.skip_bad else ", or leave such prompts out with --skip-bad"
            raise InputError(
                f"{options.dataset}: a prompt of {tokens} tokens ({excerpt(prompt, 40)}) and an answer of "
                f"{output_tokens}: together beyond the server's context; ask for shorter answers{remedy}"
            )


def _cut(options: Options, traced: trace.Trace, max_tokens: int | None) -> trace.Trace:
    """The part of a trace that is replayed, with the lengths asked for."""
    if options.trace_window_s is not None:
        traced = traced.cut(*options.trace_window_s)
    if options.trace_sample is not None:
        traced = traced.sample(options.trace_sample, options.seed)
    if options.length_scale is not None:
        traced = traced.scaled_lengths(options.length_scale)
    if max_tokens is not None and options.skip_bad:
        traced = traced.without_longer(max_tokens)
    if options.requests and not (options.rate or options.concurrency or options.ramp):
        if options.requests[0] > traced.count:
            raise InputError(f"--requests {options.requests[0]:,}: the trace has {traced.count:,}; ask for no more")
        traced = traced.first(options.requests[0])
    return traced


# --- when it is sent ------------------------------------------------------------------------------------------


def _loads(options: Options, workload: Workload, unit: Unit) -> tuple[list[Load], list[int] | None]:
    """Loads, and measured requests per load where they are said."""
    named = [flag for flag in ("rate", "concurrency", "ramp") if getattr(options, flag)]
    if len(named) > 1:
        raise InputError(
            f"--{named[0]} and --{named[1]}: one run is an open or a closed loop; give one (--max-concurrency caps)"
        )
    cap = options.max_concurrency
    bad = [rate for rate in options.rate if not rate > 0]
    if bad:
        raise InputError(f"--rate {bad[0]:g}: must be above 0 requests/s, or inf for all at once")
    per_rate = options.requests_per_rate
    if per_rate is not None and not (options.rate and 0 < per_rate < math.inf):
        raise InputError("--requests-per-rate: needs --rate, and a number above 0")
    if options.burstiness != 1 and not (options.rate or options.ramp):
        raise InputError("--burstiness: says how arrivals of an open loop are spread; it goes with --rate")
    if options.time_scale and named:
        raise InputError(f"--time-scale and --{named[0]}: requests go at a trace's times or at a load; give one")
    bursts: list[Load] = []
    if math.inf in options.rate:
        if options.duration_s is not None or per_rate is not None:
            raise InputError("--rate inf: only --requests says how large its bursts are; leave out the rest")
        bursts = [Load("burst", size, max_concurrency=cap, unit=unit) for size in options.requests or (32,)]
        if len(options.rate) == 1:
            return bursts, None
        if unit == "sessions":
            raise InputError("--rate: with --turns inf stands alone; --requests counts sessions there, not requests")
    if len(options.requests) > 1:
        raise InputError("--requests: a list goes with --rate inf alone; give one number for every cell")
    if per_rate is not None and (options.requests or options.duration_s is not None):
        other = "--requests" if options.requests else "--duration"
        raise InputError(f"{other} and --requests-per-rate: each says when a cell ends; give one")
    if options.requests and options.duration_s is not None:
        raise InputError("--requests and --duration: a cell ends by count or by time; give one")
    if isinstance(workload, trace.Trace) and not named:
        loads = _trace_loads(options, workload)
    elif options.ramp is not None:
        loads = [_ramp(options, unit)]
    elif options.rate:
        process, shape = _process(options)
        loads = []
        for rate in options.rate:
            if rate == math.inf:
                loads += bursts
                continue
            loads.append(
                Load("rate", rate, process, shape, max_concurrency=cap, duration_s=options.duration_s, unit=unit)
            )
    else:
        if cap is not None:
            raise InputError("--max-concurrency: caps an open loop; a closed one has --concurrency")
        loads = [
            Load("concurrency", places, duration_s=options.duration_s, unit=unit)
            for places in options.concurrency or (1, 4, 16)
        ]
    if per_rate is not None:
        return loads, [max(1, round(min(per_rate * load.value, 1e18))) for load in loads]
    return loads, [options.requests[0]] * len(loads) if options.requests else None


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
