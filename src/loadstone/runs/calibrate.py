"""A profile from a user's own runs: each cell is a case of what was sent and measured; a profile is
moved towards all of them and kept.
"""

import datetime
from collections.abc import Callable, Mapping, Sequence
from math import exp, expm1
from pathlib import Path
from statistics import fmean, median

import msgspec
import numpy as np

from loadstone.analyse import imported_run
from loadstone.analyse.drafts import pool_drafts
from loadstone.analyse.power import PowerGap, power_gap
from loadstone.analyse.run_facts import RunFacts, run_facts
from loadstone.analyse.summary import summary_of
from loadstone.calibrate.cases import MOST_REQUESTS, Case, fit_fleet, slower_than_fewer
from loadstone.calibrate.points import Point
from loadstone.calibrate.update import update
from loadstone.catalogue import Deployment, parse_deployment
from loadstone.catalogue.deployment.shorthand import parse_named
from loadstone.core import run_folder
from loadstone.core.document import Document
from loadstone.core.errors import InputError
from loadstone.core.pictures import Pictures
from loadstone.core.plan import Inputs, Plan
from loadstone.core.summary import CellSummary
from loadstone.core.vectors import Ints64
from loadstone.engines import rules_of
from loadstone.predict.step_time.operators import Work
from loadstone.predict.step_time.pictures import PictureTerms
from loadstone.predict.step_time.profile import Quantity, profile_of, save, user_folder
from loadstone.predict.step_time.work import work_of
from loadstone.runs.pictures import count_visual_tokens, parts_of

_TELLS_NO_ENGINE = ("Triton",)
"""In front of engines that it does not name."""
_LEAST_COUNTED = 0.9
"""Of the tokens of a prompt with pictures, by the rule."""
_MAX_CACHED = 0.05
"""Of a cell's prompt tokens: fewer, as of a chat template that all begin with, change TTFT by less
than it varies."""


class LearnedPictures(msgspec.Struct, frozen=True):
    """Holds the sizes of pictures that a profile learned from, and which of its terms they tell
    (pictures.TERMS); the others' sum is known at these sizes alone."""

    sizes: list[str]
    learned: list[str]


class CalibratedProfile(Document, msgspec.Struct, frozen=True, rename={"base": "from"}):
    """A profile moved towards measurements; the document of `loadstone calibrate --json`.

    profile, path   its name, and the file it is kept in
    base            the name of the profile it came from
    points          measured cells
    deployment      what they are of
    interval_…      mean half-widths of the predictions' 80 % intervals, relative
    error_…         median errors, relative
    furthest        the factor that predictions were off by before, of TTFT or TPOT, whichever is
                    the larger
    acceptance      of guessed tokens, as the engines counted it; None: they did not, or it was
                    forced
    remark          what is odd about the measurements, in words; None: nothing
    pictures        what was learned of these; None: no prompt had any
    """

    schema: int
    profile: str
    path: Path
    base: str
    points: int
    interval_before: dict[Quantity, float]
    interval_after: dict[Quantity, float]
    error_before: dict[Quantity, float]
    error_after: dict[Quantity, float]
    deployment: str
    furthest: float
    remark: str | None = None
    acceptance: float | None = None
    pictures: LearnedPictures | None = None


def calibrate(
    runs: Sequence[Path],
    deployment: str | None,
    name: str,
    folder: Path | None,
    *,
    force: bool = False,
) -> CalibratedProfile:
    """Fit the profile of what the `runs` were measured on, moved towards them and kept in `folder`
    (None: the user's).

    `deployment`: its shorthand; None: as the runs tell it. `force`: from cells that are not
    trusted, too. Raises InputError, one line.
    """
    if not name.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise InputError(f"--profile {name!r}: letters, digits, - _ . only")
    if not runs:
        raise InputError("RUNS: none; name run folders, or ask what to measure with --advise")
    runs = list(
        {run.resolve(): run for run in runs}.values()
    )  # a run that is named twice counts once
    target = parse_deployment(deployment) if deployment is not None else deployment_of_runs(runs)
    if target.is_split:
        raise InputError(
            f"{target.name}: a profile is of one engine; recommend --pools --with learns from pools"
        )
    cases = cases_of_runs(runs, target, force=force)
    base = profile_of(target.worker)
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    calibration = update(base, cases, name, today)
    acceptance = pool_drafts([case.drafts for case in cases if case.drafts is not None])
    power: dict[str, list[float]] = {}
    for gpu, gap in power_gaps(runs):
        power.setdefault(gpu, []).append(gap)
    kept = msgspec.structs.replace(
        calibration.profile, acceptance=acceptance or base.acceptance, power=power
    )
    path = save(kept, folder or user_folder())
    gaps = calibration.gap_before.values()
    return CalibratedProfile(
        schema=1,
        profile=name,
        path=path,
        base=base.name,
        points=len(cases),
        interval_before=_middle_of(calibration.before, fmean),
        interval_after=_middle_of(calibration.after, fmean),
        error_before=_middle_of(calibration.gap_before, _error),
        error_after=_middle_of(calibration.gap_after, _error),
        deployment=target.name,
        remark=slower_than_fewer(cases),
        acceptance=acceptance,
        pictures=_learned_pictures(cases, kept.pictures),
        furthest=max((exp(abs(median(values))) for values in gaps if values), default=1.0),
    )


def _middle_of(
    values: Mapping[Quantity, list[float]], middle: Callable[[list[float]], float]
) -> dict[Quantity, float]:
    return {
        key: middle(numbers)
        for key, numbers in values.items()
        if numbers and not np.isnan(numbers).any()
    }


def _learned_pictures(cases: Sequence[Case], terms: PictureTerms | None) -> LearnedPictures | None:
    """Say what was learned of pictures."""
    if terms is None:
        return None
    shapes = [case.pictures.shapes for case in cases if case.pictures is not None]
    sizes = dict.fromkeys(shape.size for of_case in shapes for shape in of_case)
    return LearnedPictures(list(sizes), list(terms.learned))


def _error(gaps: list[float]) -> float:
    """Return the median of |predicted/measured − 1|."""
    return median(abs(expm1(-gap)) for gap in gaps)


def power_gaps(runs: Sequence[Path]) -> list[PowerGap]:
    """Return how far the watts of each measured load are off what is predicted."""
    found = []
    for run in runs:
        info, summary = run_folder.read_info(run), summary_of(run)
        facts = run_facts(info, summary)
        found += [power_gap(info, facts, cell) for cell in summary.cells]
    return [gap for gap in found if gap is not None]


# --- cases of runs --------------------------------------------------------------------------------


def deployment_of_runs(folders: Sequence[Path]) -> Deployment:
    """Return the deployment that the user declared when the runs were measured, one for all. Raises
    InputError."""
    deployments: dict[str, tuple[Path, Deployment]] = {}
    for folder in folders:
        info = run_folder.read_info(folder)
        if info.source == "simulated":
            raise InputError(f"{folder}: is a simulated run; calibrate on measured ones")
        facts = run_facts(info)
        name = info.settings.deployed.name if facts.stated else None
        if name is None:
            raise InputError(
                f"{folder}: does not say what it was measured on; give it with --deployment"
            )
        if facts.engine in _TELLS_NO_ENGINE:
            raise InputError(
                f"{folder}: {facts.engine} was measured, but not which engine is behind it; give it"
                " with --deployment"
            )
        described = f"{msgspec.json.encode(facts.hardware)!r} {facts.own_model}"
        deployments.setdefault(f"{name} {described}", (folder, _parse(folder, name, facts)))
    (first, deployment), *further = deployments.values()
    if further:
        raise InputError(
            f"{further[0][0]}: was measured on {further[0][1].name}, and {first} on"
            f" {deployment.name}; calibrate on runs of one deployment, or give it with --deployment"
        )
    return deployment


def _parse(folder: Path, name: str, facts: RunFacts) -> Deployment:
    """Read a deployment of the catalogue's, or that the run describes; no file is read for a name
    in a run."""
    try:
        return parse_named(name, facts.hardware, facts.own_model)
    except InputError as error:
        raise InputError(
            f"{folder}: {error}; give what it was measured on with --deployment"
        ) from error


def cases_of_runs(
    folders: Sequence[Path], deployment: Deployment, *, force: bool = False
) -> list[Case]:
    """Make a case of each cell with a TPOT. Raises InputError where a folder has none, or the model
    does not fit; or, unless `force`, where a cell is not trusted: a model that learned from it
    would be as wrong, and be believed.
    """
    cases: list[Case] = []
    work = work_of(deployment.decoder)
    for folder in folders:
        info = run_folder.read_info(folder)
        if info.source == "simulated":
            raise InputError(f"{folder}: is a simulated run; calibrate on measured ones")
        if imported_run.is_summary_only(folder, info):
            raise InputError(
                f"{folder}: its file has figures and no requests, of which calibration needs each"
            )
        if info.target is not None and info.target.choices > 1:
            raise InputError(
                f"{folder}: each request has {info.target.choices} answers side by side, and its"
                " TPOT is of all together; calibrate on a run without n"
            )
        count = len(cases)
        for number, cell in enumerate(summary_of(folder).cells):
            case = _case(folder, number, cell, deployment, work, len(cases) + 1)
            if case is None:
                continue
            if not (cell.verdict.trusted or force):
                kinds = ", ".join(cell.verdict.kinds("error", "warning"))
                raise InputError(
                    f"{folder}: {cell.load.label} is not trusted ({kinds}), and nothing is learned"
                    " from it; measure it again, or take it all the same with --force"
                )
            cases.append(case)
        if len(cases) == count:
            raise InputError(
                f"{folder}: no load with a TPOT; answers of two tokens or more, over a stream, are"
                " needed"
            )
    return cases


def _case(
    folder: Path, number: int, cell: CellSummary, deployment: Deployment, work: Work, row: int
) -> Case | None:
    """Make a case of one cell; None where it has no TPOT, but of vectors or scores, which have none
    and whose E2E stands for TTFT."""
    metrics, load = cell.metrics, cell.load
    tpot_s = metrics.tpot_s.p50 if metrics.tpot_s is not None else None
    first = metrics.ttft_s
    is_pooled = cell.rate_name != "output_tokens_per_s"
    if is_pooled:
        first = metrics.e2e_s
    elif not tpot_s:
        return None
    cached = (metrics.cached_input_tokens or 0) / max(1, metrics.input_tokens or 0)
    if cached > _MAX_CACHED:
        raise InputError(
            f"{folder}: {cached:.0%} of a load's prompt tokens were in the prefix cache, which is"
            " not simulated here; calibrate on a run whose prompts share no prefix"
        )
    names = ["sent_s", "input_tokens", "output_tokens", "phase", "status", "request_id"]
    table = run_folder.read_columns(folder, names, number)
    sent_s, inputs, outputs, phase, status, ids = (
        table.column(name).to_numpy(zero_copy_only=False) for name in names
    )
    # Without its warm-up a closed loop of equal lengths would start and stay in lock-step. A
    # burst's is over before.
    usable = (status == "ok") & ((phase == "measure") | (load.kind != "burst"))
    usable &= np.isfinite(inputs.astype(float)) & (outputs.astype(float) >= (1 if is_pooled else 2))
    order = np.flatnonzero(usable)[np.argsort(sent_s[usable], kind="stable")]
    if not len(order):
        return None
    warm = int((phase[order] == "warmup").sum())
    point = Point(
        row=row,
        source=str(folder),
        load=load.kind,
        load_value=float(load.value),
        ttft_s=(first and first.p50) or None,
        tpot_s=tpot_s,
        output_tokens_per_s=metrics.output_tokens_per_s,
        stat="median",
        fold="the user's",
    )
    inputs, outputs = inputs[order].astype(np.int64), outputs[order].astype(np.int64)
    drafts, keep = cell.drafts, order[:MOST_REQUESTS]
    plan = run_folder.read_plan(folder)
    rows = np.array([plan.row(number, int(name.rpartition("-")[2])) for name in ids[keep]])
    texts = _texts(folder, plan, rows) if is_pooled else None
    if texts is not None:
        outputs = np.ones_like(outputs)
    pictures = _pictures(folder, plan, deployment, rows, inputs)
    try:
        fleet, policy = fit_fleet(
            deployment, inputs + outputs, drafts.acceptance if drafts else None
        )
    except InputError as reason:
        raise InputError(f"--deployment: {reason}") from reason
    # Where more than the ends of answers says when requests come, they come when they came.
    at_times = load.kind == "rate" or load.unit == "sessions" or load.profile
    return Case(
        point,
        deployment,
        int(load.value) if load.kind == "concurrency" else len(order) - warm,
        policy,
        inputs[:MOST_REQUESTS],
        outputs[:MOST_REQUESTS],
        work,
        sent_s[keep] - sent_s[keep[0]] if at_times else None,
        warm,
        drafts=drafts,
        fleet=fleet,
        texts=texts,
        pictures=pictures,
    )


def _texts(folder: Path, plan: Plan, rows: Ints64) -> Inputs | None:
    """Return the texts of requests for vectors or scores, by the plan's rows, as the model reads
    them."""
    target = run_folder.read_info(folder).target
    if plan.inputs is None:
        return None
    texts = plan.inputs.take(rows)
    if target is not None and target.pairs:
        texts.pairs = target.overhead_tokens
    return texts


def _pictures(
    folder: Path, plan: Plan, deployment: Deployment, rows: Ints64, inputs: Ints64
) -> Pictures | None:
    """Return the pictures of the plan's rows, as the deployment counts them; None: there are none.
    Raises InputError where nothing can be learned of them, or the server counted fewer `inputs`.
    """
    parts = parts_of(plan.workload)
    if not parts:
        return None
    if plan.pictures is None or parts - {"image_url"}:
        raise InputError(
            f"{folder}: what parts of a data set ({', '.join(sorted(parts))}) take is not learned;"
            " calibrate on pictures, or on text"
        )
    items = plan.prompt[rows]
    items = items[items >= 0]
    if (plan.pictures.group[rows] >= 0).any() or len(set(items.tolist())) < len(items):
        raise InputError(
            f"{folder}: its pictures came again (--image-groups, or a data set's), and from caches;"
            " calibrate on new ones"
        )
    if rules_of(deployment.worker).encoder(rules_of(deployment.worker).limits()) is None:
        raise InputError(
            f"{folder}: how {deployment.name} encodes pictures is not known; name a model with a"
            " vision_config, in vllm, sglang or llama.cpp, with --deployment"
        )
    pictures = count_visual_tokens(plan, deployment, None).pictures
    assert pictures is not None  # noqa: S101
    pictures = pictures.take(rows)
    planned = plan.input_tokens[rows].clip(0) + pictures.tokens()
    if (inputs[: len(rows)] < _LEAST_COUNTED * planned).any():
        raise InputError(
            f"{folder}: prompts have fewer tokens than their pictures become; give what was"
            " measured with --deployment"
        )
    return pictures
