"""The plan that follows from a user's options: which workload, under which loads."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np

from loadstone.core import run_folder
from loadstone.core.errors import InputError
from loadstone.core.plan import Load, Plan, Unit
from loadstone.workload import agents, arrivals, dataset, option_values, real_text, trace
from loadstone.workload.checks import CheckSet, mix, read_checks
from loadstone.workload.draw import Beyond, ServerLimits, Workload
from loadstone.workload.lengths import Length, Sessions, parse_length, parse_think
from loadstone.workload.load_options import CheckOptions, LoadOptions, WorkloadOptions
from loadstone.workload.mix import (
    MAX_CLASSES,
    WORKLOAD_KEYS,
    ClassRequest,
    Mix,
    MixedPart,
    leave_out,
    rate_shares,
    read_class,
    read_classes,
)
from loadstone.workload.option_fields import change, changed_flags, check_limits, options_of
from loadstone.workload.options import Options, RunOptions, pooling_task
from loadstone.workload.pictures import Pictured, parse_pictures
from loadstone.workload.pooled import read_pooled
from loadstone.workload.schedule import make_plan
from loadstone.workload.synthetic import Synthetic

_DEFAULT_INPUT, _DEFAULT_OUTPUT = "1024", "128"
_MAX_REQUESTS = 20_000_000
"""In one run: a plan of more would not fit into memory, and its run would take days."""
_MIX_S = 60.0
"""How long classes with slots are measured, where nobody says it."""
_LONGEST_S = 600.0
"""Of a cell that ends by its precision."""
_WITH_A_PLAN = ("plan", "structured", "grace", "without")
"""Options that --plan leaves open."""
_WITH_A_TRACE = ("time-scale", "trace-window", "trace-sample", "length-scale")
"""Options that need --trace."""
_WITH_AGENTS = ("answers", "tool-time")
"""Options that need --agents."""


Run = TypeVar("Run", bound=RunOptions)


class Planner:
    """Makes the plans that follow from a user's options. Files that they name are read once.

    Raises InputError, one line that names the flag, or the file and line.
    """

    def __init__(self, options: RunOptions, classes: Sequence[ClassRequest] = ()) -> None:
        """`classes`: of a mix, beside those that the options name."""
        check_limits(options)
        options = until_precise(options) if isinstance(options, Options) else options
        requests = [*read_classes(options.workload.mix, options.workload.classes), *classes]
        parts = _read_parts(options.workload, requests)
        self._requests = requests = [part.request for part in parts]
        self.options = options = _load_of_mix(options, parts) if requests else options
        self._checks: CheckSet | None = None
        self._plan: Plan | None = None
        self._grading = options.grading
        if options.workload.plan is not None:
            if self._grading.check is not None:
                raise InputError(
                    "--plan and --check: the plan has the graded prompts of its run; leave out"
                    " --check"
                )
            self._plan = _read_given_plan(options, options.workload.plan)
            return
        pooled = read_pooled(options)
        _check_combinations(options.workload)
        self._sessions = _sessions(options.workload)
        self._output: Length | None = None
        if options.workload.dataset is not None and options.workload.output is not None:
            self._output = _parse_output(options.workload)
        self.workload: Workload
        if pooled is not None:
            self.workload = pooled
        elif requests:
            self.workload = Mix(parts)
        else:
            read = _read_workload(options.workload, self._sessions)
            self.workload = _add_pictures(read, options.workload)
        self._checks = _read_checks(self._grading, options.workload.seed, self.workload)

    @property
    def contents(self) -> list[Any]:
        """Tell what files say that the options name, as far as it decides what is sent; empty where
        they name none."""
        workload = self.options.workload
        if self._plan is not None:
            return [self._plan.plan_id]
        named = (
            workload.mix or workload.dataset or workload.text or workload.trace or workload.agents
        )
        if not (named or self._requests or self._checks):
            return []
        digest = None if self._checks is None else self._checks.sha256
        return [self._requests, self.workload.describe(self._output), digest]

    @property
    def chooses_length(self) -> bool:
        """True where nobody says how many single requests come at a rate: they then last for
        several E2Es."""
        workload, load = self.options.workload, self.options.load
        files = (
            workload.plan is not None or workload.trace is not None or workload.agents is not None
        )
        open_loop = any(rate < math.inf for rate in load.rate)
        return open_loop and not (_is_counted(load) or files or workload.turns is not None)

    def plan(
        self,
        max_tokens: int | None = None,
        min_input_tokens: int = 1,
        beyond: Beyond | None = None,
        e2e_s: Sequence[float] = (),
        count: real_text.Count | None = None,
    ) -> Plan:
        """Make the plan that the options ask for.

        `max_tokens`: the server's context; lines of a trace that are longer are bad lines, and so
        are prompts of a file that are `beyond` it. `min_input_tokens`: the least that a prompt can
        have there; a trace's shorter ones are made as long. `e2e_s`: about how long a request of
        each cell takes, in seconds; it decides how many there are, if the planner chooses_length.
        `count`: counts the tokens of a prompt; without it real text is not cut. Raises InputError.
        """
        if self._plan is not None:
            name = self.options.workload.without
            return self._plan if name is None else leave_out(self._plan, name)
        options, given = self.options, self.options.workload
        load = options.load
        named = bool(load.rate or load.concurrency or load.ramp)
        limits = ServerLimits(
            max_tokens,
            min_input_tokens,
            beyond,
            1 if self._output is None else self._output.smallest,
            given.skip_bad,
            load.requests[0] if load.requests and not named else None,
        )
        workload = self.workload.fit(limits)
        single = self._sessions is None and given.agents is None
        if isinstance(self.workload, Mix):
            single = all(part.sessions is None for part in self.workload.parts)
        loads, requests = _loads(options, workload, "requests" if single else "sessions")
        if e2e_s and self.chooses_length:
            requests = [
                arrivals.default_requests(load, expected)
                for load, expected in zip(loads, e2e_s, strict=True)
            ]
        requests = self._add_for_checks(loads, requests)
        _check_count(
            load, loads, requests or [_expected_requests(load, workload) for load in loads]
        )
        plan = make_plan(
            workload,
            loads,
            seed=given.seed,
            requests=requests,
            warmup=_warmup(load, loads),
            output=self._output,
            sessions=self._sessions,
        )
        # An answer of a given form ends when it is complete.
        plan.exact_output = plan.exact_output and given.structured is None
        workload.check(plan, limits, str(given.trace or given.dataset))
        text = getattr(workload, "inner", workload)
        if isinstance(text, real_text.RealText) and count is not None:
            plan = real_text.cut(plan, text.source, count)
        return plan if self._checks is None else mix(plan, self._checks, self._grading.check_share)

    def _add_for_checks(
        self, loads: Sequence[Load], requests: list[int] | None
    ) -> list[int] | None:
        """Raise the number of requests, where nobody gives it, until the questions asked for are at
        most their share."""
        checks, options = self._checks, self.options
        counted = _is_counted(options.load) or options.workload.trace is not None
        if checks is None or checks.limit is None or counted:
            return requests
        if any(load.is_burst or load.profile for load in loads):
            return requests
        least = math.ceil(checks.limit * (1 / self._grading.check_share - 1))
        return [max(least, count) for count in requests or map(arrivals.default_requests, loads)]


def _read_checks(grading: CheckOptions, seed: int, workload: Workload) -> CheckSet | None:
    """Return the questions to mix in. Raises InputError."""
    if grading.check is None:
        if grading.check_min is not None or grading.keep_answers:
            raise InputError("--check-min, --keep-answers: nothing is graded; give --check too")
        return None
    workload = getattr(workload, "inner", workload)
    tokens = int(workload.input.mean) if isinstance(workload, Synthetic) else 1024
    return read_checks(
        grading.check, seed=seed, prompt_tokens=tokens, most_tokens=grading.check_tokens
    )


def _is_counted(load: LoadOptions) -> bool:
    """True where a cell's end is given, by count or by time."""
    return bool(load.requests) or load.requests_per_rate is not None or load.duration_s is not None


def until_precise(options: Options) -> Options:
    """Let a cell that ends by its precision take its longest time, where no number of requests is
    given. Raises InputError.
    """
    end, load, workload = options.early_end, options.load, options.workload
    if end.stop_when is None:
        if end.min_duration_s is not None:
            raise InputError(
                "--min-duration: says how soon --stop-when may end a load, and goes with it"
            )
        return options
    if math.inf in load.rate:
        raise InputError("--stop-when: a burst sends all of its requests at once; leave it out")
    longest_s = end.max_duration_s or _LONGEST_S
    if (end.min_duration_s or 0) > longest_s:
        raise InputError(
            f"--min-duration {end.min_duration_s:g}: is longer than --max-duration, {longest_s:g} s"
        )
    if (
        _is_counted(load)
        or load.ramp is not None
        or workload.trace is not None
        or workload.plan is not None
    ):
        return options
    return change(options, duration_s=longest_s, max_duration_s=longest_s)


def plan_of(options: RunOptions) -> Plan:
    """Make the plan that the options ask for, of whatever server. Raises InputError."""
    return Planner(options).plan()


def _read_given_plan(options: RunOptions, path: Path) -> Plan:
    for flag in [*changed_flags(options.workload), *changed_flags(options.load)]:
        if flag not in _WITH_A_PLAN:
            raise InputError(f"--plan and --{flag}: the plan says what is sent and when; give one")
    plan = run_folder.read_plan(path)
    # Runs of other tools have plans, too, that nobody can send: without requests, or of a load that
    # is not known.
    if not plan.cells or not all(
        len(plan.rows(cell)) and load.value > 0 for cell, load in enumerate(plan.cells)
    ):
        raise InputError(f"--plan {path}: a load without requests; give a plan that was measured")
    task = None if plan.inputs is None else plan.inputs.task
    if task != pooling_task(options):
        remedy = "leave out --endpoint" if task is None else f"give --endpoint {task}"
        raise InputError(f"--plan {path}: asks for {task or 'text'}; {remedy}")
    return plan


def _warmup(asked: LoadOptions, loads: Sequence[Load]) -> int | None:
    """Return the warm-up's requests; None: as many as the load has by default."""
    if asked.start == "staggered":
        return asked.warmup
    if not any(load.is_closed for load in loads):
        raise InputError("--start together: a closed loop starts so; it goes with --concurrency")
    if asked.warmup:
        raise InputError("--start together and --warmup: there is no warm-up then; leave one out")
    return 0


def _check_count(asked: LoadOptions, loads: Sequence[Load], requests: Sequence[float]) -> None:
    total = sum(
        count + (arrivals.default_warmup(load, count) if asked.warmup is None else asked.warmup)
        for load, count in zip(loads, requests, strict=True)
    )
    if total > _MAX_REQUESTS:
        raise InputError(
            f"{total:.3g} requests in one run: at most {_MAX_REQUESTS:,}; lower the load or"
            " --requests"
        )


def _expected_requests(load: Load, workload: Workload) -> float:
    """Estimate how many requests or sessions a cell has, where their number is not given."""
    length = workload.length(load)
    if length is not None:
        return length
    if load.is_open and (load.profile or load.duration_s is not None):
        return load.value * (load.duration_s or arrivals.duration_s(load.profile))
    return 0 if load.duration_s is not None else arrivals.default_requests(load)


def _check_combinations(asked: WorkloadOptions) -> None:
    if asked.prefix_groups > 1 and not asked.prefix:
        raise InputError(
            "--prefix-groups: prompts of a group share a prefix; give its length with --prefix"
        )
    for flag in changed_flags(asked):
        has_trace = asked.trace is not None or (
            flag == "time-scale" and (asked.mix or asked.classes)
        )
        if flag in _WITH_A_TRACE and not has_trace:
            raise InputError(f"--{flag}: says how a trace is replayed; it goes with --trace")
        if flag in _WITH_AGENTS and asked.agents is None:
            raise InputError(f"--{flag}: says how sessions are replayed; it goes with --agents")
    if asked.skip_bad and asked.trace is None and asked.dataset is None and asked.agents is None:
        raise InputError(
            "--skip-bad: leaves out bad lines of a file; it goes with --trace, --dataset or"
            " --agents"
        )


# --- classes of traffic ---------------------------------------------------------------------------

_NOT_IN_A_MIX = (*WORKLOAD_KEYS, "agents", "plan", "structured")
_NOT_WITH_A_MIX = ("max-concurrency", "ramp", "find-max")


def _load_of_mix(options: Run, parts: Sequence[MixedPart]) -> Run:
    """Return the options with the load that the classes make: the sum of their rates or slots; for
    as long as their traces, where nobody says it. Raises InputError for options that a mix does not
    go with."""
    requests = [part.request for part in parts]
    if options.workload.text is not None:
        raise InputError("--mix and --text: do not go together; leave one out")
    of_trace = ("trace", "skip-bad", *_WITH_A_TRACE) if options.workload.trace is not None else ()
    for flag in changed_flags(options.workload):
        if flag.replace("-", "_") in _NOT_IN_A_MIX and flag not in of_trace:
            raise InputError(f"--mix and --{flag}: each class says this of itself; give it there")
    load = options.load
    for flag in changed_flags(load):
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
    if not _is_counted(load):
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


def _read_parts(asked: WorkloadOptions, requests: Sequence[ClassRequest]) -> list[MixedPart]:
    """Read what the classes ask, and the classes that a trace's rows name. Raises InputError."""
    whole = None
    if asked.trace is not None and asked.plan is None:
        whole = _read_workload(asked, None)
    if not isinstance(whole, trace.Trace) or not whole.class_names:
        if whole is not None and requests:
            raise InputError(
                f"--mix and --trace: no row of {asked.trace} names a class; give it a column class,"
                " or each class a trace"
            )
        return [_read_part(request, None) for request in requests]
    given = {request.name for request in requests}
    unnamed = [name for name in whole.class_names if name not in given]
    named = [read_class({"name": name}, f"{asked.trace}: class {name!r}") for name in unnamed]
    if len(requests) + len(named) > MAX_CLASSES:
        raise InputError(
            f"{asked.trace}: its rows name more than {MAX_CLASSES} classes; name fewer"
        )
    return [_read_part(request, whole) for request in [*requests, *named]]


def _read_part(request: ClassRequest, whole: trace.Trace | None) -> MixedPart:
    """Read what a class asks. `whole`: the trace whose rows name classes. Raises InputError, which
    names the class."""
    try:
        workload = options_of(request.workload, WorkloadOptions)
        check_limits(workload)
        _check_combinations(workload)
        sessions = _sessions(workload)
        output = None
        if workload.dataset is not None and workload.output is not None:
            output = _parse_output(workload)
        if not request.replays or workload.trace is not None:
            read = _add_pictures(_read_workload(workload, sessions), workload)
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


# --- what is sent ---------------------------------------------------------------------------------


def _sessions(asked: WorkloadOptions) -> Sessions | None:
    if asked.turns is None:
        if asked.think_time is not None:
            raise InputError(
                "--think-time: lies between the turns of a session; it goes with --turns"
            )
        return None
    think = parse_think(asked.think_time) if asked.think_time is not None else parse_think("0")
    return Sessions(parse_length(asked.turns, 1.0, "--turns"), think)


def _parse_output(asked: WorkloadOptions, default: str | None = None) -> Length:
    return parse_length(asked.output or default or "", asked.range_ratio, "--output")


_EXCLUDED = {
    "agents": (
        ("input", "dataset", "trace", "text", "prefix", "turns", "think-time", "range-ratio"),
        "the file says what is asked, and when",
    ),
    "trace": (
        ("input", "output", "dataset", "text", "prefix", "turns", "range-ratio"),
        "the trace says what is asked",
    ),
    "dataset": (("input", "prefix", "text"), "the dataset says what prompts hold"),
    "text": (("prefix", "turns"), "each prompt is text of its own"),
}
"""By the flag of a file: those that it excludes, and why."""


def _read_workload(asked: WorkloadOptions, sessions: Sessions | None) -> Workload:
    """Read the file that is named, or describe synthetic prompts. Raises InputError."""
    changed = changed_flags(asked)
    source = next((name for name in _EXCLUDED if getattr(asked, name) is not None), None)
    if source is not None:
        excluded, why = _EXCLUDED[source]
        for flag in changed:
            if flag in excluded:
                raise InputError(f"--{source} and --{flag}: {why}; give one")
    if asked.agents is not None:
        return _read_agents(asked, asked.agents)
    if asked.trace is not None:
        return _read_trace(asked, asked.trace)
    if asked.dataset is not None:
        conversations = sessions is not None
        return dataset.read(asked.dataset, conversations=conversations, skip_bad=asked.skip_bad)
    synthetic = Synthetic(
        parse_length(asked.input or _DEFAULT_INPUT, asked.range_ratio, "--input"),
        _parse_output(asked, _DEFAULT_OUTPUT),
        asked.prefix,
        asked.prefix_groups,
        system_prompt=sessions is not None,
    )
    if asked.text is None:
        return synthetic
    return real_text.RealText(real_text.read(asked.text), synthetic)


def _add_pictures(workload: Workload, asked: WorkloadOptions) -> Workload:
    """Return a workload with the pictures that are asked for. Raises InputError."""
    flags = [flag for flag in changed_flags(asked) if flag.startswith("image")]
    if not flags:
        return workload
    if asked.images is None:
        raise InputError(f"--{flags[0]}: says how pictures are; say how many with --images")
    for source in ("trace", "agents"):
        if getattr(asked, source) is not None:
            raise InputError(f"--{source} and --images: do not go together; leave one out")
    request = parse_pictures(
        asked.images,
        asked.image_size,
        asked.image_format,
        asked.image_content,
        asked.image_groups,
        asked.image_place,
    )
    return Pictured(workload, request)


def _read_trace(asked: WorkloadOptions, path: Path) -> trace.Trace:
    """Read the part of a trace that is replayed, with the lengths asked for. Raises InputError."""
    traced = trace.read(path, skip_bad=asked.skip_bad)
    if asked.trace_window_s is not None:
        traced = traced.cut(*asked.trace_window_s)
    if asked.trace_sample is not None:
        traced = traced.sample(asked.trace_sample, asked.seed)
    if asked.length_scale is not None:
        traced = traced.scaled_lengths(asked.length_scale)
    return traced


def _read_agents(asked: WorkloadOptions, path: Path) -> agents.AgentTrace:
    """Read sessions of agents, with the pauses and lengths asked for. Raises InputError."""
    read = agents.read(path, skip_bad=asked.skip_bad)
    if asked.answers == "live":
        if read.block_tokens:
            raise InputError(
                "--answers live: the file has no messages that could hold them; leave it out"
            )
        read = msgspec.structs.replace(read, live=True)
    unknown = sum(not call.output_tokens for calls in read.sessions for call in calls)
    if unknown:
        if asked.output is None:
            raise InputError(
                f"--output: {unknown} calls of {path} have no answer there, nor its length; give"
                " e.g. --output 256"
            )
        lengths = parse_length(asked.output, 1.0, "--output").draw(
            np.random.default_rng([asked.seed, 0]), unknown
        )
        read = read.with_outputs(lengths)
    if asked.tool_time is None:
        return read
    scale = asked.tool_time.strip().removesuffix("x")
    if scale != asked.tool_time.strip():
        factors = option_values.numbers(scale, "--tool-time")
        if len(factors) != 1 or not 0 <= factors[0] <= 1e6:
            raise InputError(
                f"--tool-time: {asked.tool_time!r} is no multiple of the recorded; write e.g. 0.5x"
            )
        return read.with_pauses(factors[0], None, asked.seed)
    return read.with_pauses(1.0, parse_think(asked.tool_time, "--tool-time"), asked.seed)


# --- when it is sent ------------------------------------------------------------------------------


def _loads(
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


def _check_load(asked: LoadOptions, named: Sequence[str], scales: Sequence[float]) -> None:
    """Raise InputError for options that are about another load than the one that is `named`."""
    if len(named) > 1:
        raise InputError(
            f"--{named[0]} and --{named[1]}: one run is an open or a closed loop; give one"
            " (--max-concurrency caps)"
        )
    bad = [rate for rate in asked.rate if not rate > 0]
    if bad:
        raise InputError(f"--rate {bad[0]:g}: must be above 0 requests/s, or inf for all at once")
    per_rate = asked.requests_per_rate
    if per_rate is not None and not (asked.rate and 0 < per_rate < math.inf):
        raise InputError("--requests-per-rate: needs --rate, and a number above 0")
    if asked.burstiness != 1 and not (asked.rate or asked.ramp):
        raise InputError(
            "--burstiness: says how arrivals of an open loop are spread; it goes with --rate"
        )
    if scales and named:
        raise InputError(
            f"--time-scale and --{named[0]}: requests go at a trace's times or at a load; give one"
        )


def _check_bursts(asked: LoadOptions, unit: Unit) -> None:
    if asked.duration_s is not None or asked.requests_per_rate is not None:
        raise InputError(
            "--rate inf: only --requests says how large its bursts are; leave out the rest"
        )
    if len(asked.rate) > 1 and unit == "sessions":
        raise InputError(
            "--rate: with --turns inf stands alone; --requests counts sessions there, not requests"
        )


def _check_ends(asked: LoadOptions) -> None:
    """Raise InputError where a cell's end is given in two ways."""
    if len(asked.requests) > 1:
        raise InputError(
            "--requests: a list goes with --rate inf alone; give one number for every load"
        )
    if asked.requests_per_rate is not None and (asked.requests or asked.duration_s is not None):
        flag = "--requests" if asked.requests else "--duration"
        raise InputError(f"{flag} and --requests-per-rate: each says when a load ends; give one")
    if asked.requests and asked.duration_s is not None:
        raise InputError("--requests and --duration: a load ends by count or by time; give one")


def _bursts(asked: LoadOptions, unit: Unit) -> list[Load]:
    return [
        Load("burst", size, max_concurrency=asked.max_concurrency, unit=unit)
        for size in asked.requests or (32,)
    ]


def _rates(asked: LoadOptions, unit: Unit) -> list[Load]:
    process, shape = _process(asked)
    loads = []
    for rate in asked.rate:
        if rate == math.inf:
            loads += _bursts(asked, unit)
            continue
        cap, duration_s = asked.max_concurrency, asked.duration_s
        loads.append(Load("rate", rate, process, shape, cap, duration_s, unit=unit))
    return loads


def _process(asked: LoadOptions) -> tuple[Literal["poisson", "constant", "gamma"], float]:
    if asked.burstiness == 1.0:
        return "poisson", 1.0
    return ("constant", 1.0) if asked.burstiness == math.inf else ("gamma", asked.burstiness)


def _ramp(asked: LoadOptions, pieces: str, unit: Unit) -> Load:
    kind, profile = arrivals.parse_profile(pieces)
    if asked.duration_s is not None or asked.requests:
        flag = "--requests" if asked.requests else "--duration"
        raise InputError(f"--ramp and {flag}: its pieces say how long they last; leave out {flag}")
    if kind == "rate":
        process, shape = _process(asked)
        mean, cap = arrivals.mean(profile), asked.max_concurrency
        return Load("rate", mean, process, shape, cap, profile=profile, unit=unit)
    if asked.max_concurrency is not None:
        raise InputError("--max-concurrency: caps an open loop; a closed one ramps as --ramp says")
    peak = max(max(start, end) for start, end, _ in profile)
    if peak < 1:
        raise InputError("--ramp: fewer than one request under way; ramp to 1 or more")
    return Load(
        "concurrency", peak, duration_s=arrivals.duration_s(profile), profile=profile, unit=unit
    )
