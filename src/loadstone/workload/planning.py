"""The plan that follows from a user's options: which workload, under which loads."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadstone.core import run_folder
from loadstone.core.errors import InputError
from loadstone.core.plan import Load, Plan
from loadstone.workload import arrivals, real_text
from loadstone.workload.checks import CheckSet, mix, read_checks
from loadstone.workload.class_requests import ClassRequest, read_classes
from loadstone.workload.draw import Beyond, ServerLimits, Workload
from loadstone.workload.lengths import Length
from loadstone.workload.load_options import CheckOptions
from loadstone.workload.loads import check_count, expected_requests, is_counted, loads_of, warmup_of
from loadstone.workload.mix import Mix, leave_out
from loadstone.workload.mixed_options import load_of_mix, read_parts
from loadstone.workload.option_fields import change, changed_options, check_limits
from loadstone.workload.options import Options, RunOptions, pooling_task
from loadstone.workload.pooled import read_pooled
from loadstone.workload.schedule import make_plan
from loadstone.workload.sources import (
    add_pictures,
    check_combinations,
    parse_output,
    read_workload,
    sessions_of,
)
from loadstone.workload.synthetic import Synthetic

_LONGEST_S = 600.0
"""Of a cell that ends by its precision."""
_WITH_A_PLAN = ("plan", "structured", "grace", "without")
"""Options that --plan leaves open."""


class Planner:
    """Makes the plans that follow from a user's options. Files that they name are read once.

    Raises InputError, one line that names the flag, or the file and line.
    """

    def __init__(self, options: RunOptions, classes: Sequence[ClassRequest] = ()) -> None:
        """`classes`: of a mix, beside those that the options name."""
        check_limits(options)
        options = until_precise(options) if isinstance(options, Options) else options
        requests = [*read_classes(options.workload.mix, options.workload.classes), *classes]
        parts = read_parts(options.workload, requests)
        self._requests = requests = [part.request for part in parts]
        self.options = options = load_of_mix(options, parts) if requests else options
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
        check_combinations(options.workload)
        self._sessions = sessions_of(options.workload)
        self._output: Length | None = None
        if options.workload.dataset is not None and options.workload.output is not None:
            self._output = parse_output(options.workload)
        self.workload: Workload
        if pooled is not None:
            self.workload = pooled
        elif requests:
            self.workload = Mix(parts)
        else:
            read = read_workload(options.workload, self._sessions)
            self.workload = add_pictures(read, options.workload)
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
        return open_loop and not (is_counted(load) or files or workload.turns is not None)

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
        loads, requests = loads_of(options, workload, "requests" if single else "sessions")
        if e2e_s and self.chooses_length:
            requests = [
                arrivals.default_requests(load, expected)
                for load, expected in zip(loads, e2e_s, strict=True)
            ]
        requests = self._add_for_checks(loads, requests)
        check_count(load, loads, requests or [expected_requests(load, workload) for load in loads])
        plan = make_plan(
            workload,
            loads,
            seed=given.seed,
            requests=requests,
            warmup=warmup_of(load, loads),
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
        counted = is_counted(options.load) or options.workload.trace is not None
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
        is_counted(load)
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
    for flag in [*changed_options(options.workload), *changed_options(options.load)]:
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
