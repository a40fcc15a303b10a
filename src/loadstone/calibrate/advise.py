"""Advice on what to measure: the few loads after which the predictions of those that matter have
the narrowest intervals.

Of a small grid the next load is the one with the least mean, over the loads that matter and TTFT
and TPOT, of √(J·C·Jᵀ + s²), with C = (P⁻¹ + Σ JᵀJ/σ²)⁻¹ after all that are chosen: the update's own
P, σ and s (update.py), and slopes J at the profile's coefficients.
"""

import shlex
from collections.abc import Sequence
from itertools import product

import msgspec
import numpy as np

from loadstone.calibrate.cases import REQUESTS_PER_USER, Case, CaseTable, fit_fleet, refresh, slopes
from loadstone.calibrate.points import Point
from loadstone.calibrate.update import LEAST, SIGMA, widen, widths
from loadstone.catalogue import Deployment
from loadstone.core.document import Document
from loadstone.core.errors import InputError
from loadstone.core.statistics.distribution import Z80
from loadstone.core.vectors import Floats
from loadstone.predict.simulator.fleet import longest_request
from loadstone.predict.step_time.profile import Quantity, profile_of
from loadstone.predict.step_time.work import work_of
from loadstone.workload.draw import stagger

_PROMPTS = (32, 256, 1024, 4096)
_USERS = (1, 16, 64)
"""The grid, beside what is asked for: loads that take less than a minute each."""
MOST = 3
_FOLDER = "measured"
_QUANTITIES: tuple[Quantity, Quantity] = ("ttft", "tpot")


class AdvisedLoad(msgspec.Struct, frozen=True):
    """Holds a load to measure; `interval_after`: mean half-widths of the 80 % intervals of the
    loads that matter once it, and those before it, are measured."""

    input_tokens: int
    concurrency: int
    interval_after: dict[Quantity, float]


class Advice(Document, msgspec.Struct, frozen=True, rename={"base": "from"}):
    """Holds what to measure before a calibration, the best first; the document of `loadstone
    calibrate --advise … --json`.

    base             the name of the profile that would be moved
    input_tokens …   of the loads that matter: `concurrency` has one for each
    interval_before  mean half-widths of their 80 % intervals, relative
    """

    schema: int
    deployment: str
    base: str
    input_tokens: int
    output_tokens: int
    concurrency: list[int]
    interval_before: dict[Quantity, float]
    loads: list[AdvisedLoad]
    commands: list[str]


def advise(
    deployment: Deployment, input_tokens: int, output_tokens: int, users: Sequence[int]
) -> Advice:
    """Choose the loads whose measurement tells most of `users` at once who send prompts of
    `input_tokens` and get `output_tokens` each. Raises InputError where they do not fit."""
    if deployment.is_split:
        raise InputError(f"{deployment.name}: a profile is of one engine; name one")
    targets = [make_case(deployment, input_tokens, output_tokens, count) for count in users]
    cases = [*targets]
    for prompt, count in product({*_PROMPTS, input_tokens}, {*_USERS, *users}):
        try:
            cases.append(make_case(deployment, prompt, output_tokens, count))
        except InputError:
            continue  # longer than the model's context, or than its cache
    profile = profile_of(deployment.worker)
    table = CaseTable(cases)
    values = np.tile(profile.values(), (len(cases), 1))
    refresh(table, values)
    by = dict(zip(_QUANTITIES, slopes(table, values), strict=True))
    matter = {name: slope[: len(targets)] for name, slope in by.items()}
    rows = [
        sum(
            np.outer(by[name][place], by[name][place]) / SIGMA[name] ** 2
            for name in _QUANTITIES
            # A queue for memory says nothing of kernels.
            if name != "ttft" or not table.held_back[place]
        )
        for place in range(len(targets), len(cases))
    ]
    precision = np.asarray(np.linalg.inv(widen(profile)), np.float64)
    left, loads = dict(enumerate(rows)), []
    for _ in range(MOST):
        spreads = {place: _spreads(matter, precision + gain) for place, gain in left.items()}
        best = min(spreads, key=lambda place: sum(row.mean() for row in spreads[place].values()))
        precision = np.asarray(precision + left.pop(best), np.float64)
        case = cases[len(targets) + best]
        interval = {name: float(np.expm1(Z80 * row).mean()) for name, row in spreads[best].items()}
        loads.append(AdvisedLoad(int(case.inputs[0]), case.users, interval))
    return Advice(
        schema=1,
        deployment=deployment.name,
        base=profile.name,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        concurrency=list(users),
        interval_before={
            name: float(np.mean(widths(profile, slope, name))) for name, slope in matter.items()
        },
        loads=loads,
        commands=_commands(deployment, output_tokens, loads),
    )


def make_case(deployment: Deployment, input_tokens: int, output_tokens: int, users: int) -> Case:
    """Make a closed loop as `bench` runs it, its warm-up cut. Raises InputError."""
    count = (1 + REQUESTS_PER_USER) * users
    inputs = np.full(count, input_tokens, np.int64)
    outputs = stagger(np.full(count, output_tokens, np.int32), users).astype(np.int64)
    outputs = np.maximum(outputs, 2)
    fleet, policy = fit_fleet(deployment, inputs + outputs, None)
    longest, limit = longest_request(deployment, policy)
    if input_tokens + output_tokens > longest:
        raise InputError(f"--input {input_tokens}: with its answer longer than {limit}, {longest}")
    point = Point(row=users, load="concurrency", load_value=float(users), stat="median")
    work = work_of(deployment.worker)
    return Case(point, deployment, users, policy, inputs, outputs, work, warm=users, fleet=fleet)


def _spreads(matter: dict[Quantity, Floats], known: Floats) -> dict[Quantity, Floats]:
    """Return what remains of each load that matters, in ln, where so much is known of the
    coefficients."""
    covariance = np.linalg.inv(known)
    return {
        name: np.sqrt(
            np.einsum("ij,jk,ik->i", slope, covariance, slope)
            + max(SIGMA[name], LEAST.get(name, 0.0)) ** 2
        )
        for name, slope in matter.items()
    }


def _commands(
    deployment: Deployment, output_tokens: int, loads: Sequence[AdvisedLoad]
) -> list[str]:
    """Return what measures these loads, a command for each length of prompts, and what learns from
    them."""
    users: dict[int, list[int]] = {}
    for load in loads:
        users.setdefault(load.input_tokens, []).append(load.concurrency)
    measure = [
        f"loadstone bench URL --deployment {shlex.quote(deployment.name)} --input {prompt}"
        f" --output {output_tokens} --concurrency {','.join(map(str, sorted(set(counts))))}"
        f" --duration 30s --out {_FOLDER}"
        for prompt, counts in users.items()
    ]
    return [*measure, f"loadstone calibrate {_FOLDER}/*"]
