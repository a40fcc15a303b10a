"""Makes a race of what a user asks for: a study of one load, its settings and their launches."""

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from loadstone.catalogue.deployment.shorthand import parse_deployment
from loadstone.catalogue.engines import engine_key
from loadstone.core.errors import InputError
from loadstone.engines import ENGINES, rules_of
from loadstone.engines.launch import Launch as Commands
from loadstone.predict.sizing.check import find_misfits
from loadstone.studies.commands import commands_of
from loadstone.studies.file import (
    Deployments,
    EngineSettings,
    Mark,
    Seconds,
    Study,
    StudyFile,
    StudyLimits,
    load_entries,
    read_study,
)
from loadstone.studies.plan import PlannedLaunch, plan_study
from loadstone.studies.tuning.options import TuneOptions
from loadstone.studies.tuning.settings import (
    FlagValues,
    RefusedSetting,
    Setting,
    Value,
    arguments,
    changes_answers,
    combine,
    find_broken_tie,
    find_flag,
    read_flags,
    read_value,
    tuned_flags,
)
from loadstone.workload.option_fields import changed_options, check_limits, values_of

MOST_SETTINGS = 32
"""More are not raced: each costs two launches at least."""
_QUESTIONS, _MOST_SHARE = 24, 0.9
"""Graded questions that are asked where a setting may change answers: twenty must be answered on
both sides. And the share of a short load's requests that they may be."""
_PORT = 8000
_FILE = re.compile(r".*\.ya?ml", re.IGNORECASE)


class Contest(NamedTuple):
    """Holds a race that is ready to begin.

    target     as the user wrote it
    base       the study of one deployment, workload and load, of which each launch is a variant
    engine     by its key
    settings   the default first
    refused    combinations that are not launched
    objective  as the options have it
    """

    target: str
    base: StudyFile
    engine: str
    settings: list[Setting]
    refused: list[RefusedSetting]
    objective: str
    flags: list[FlagValues]

    @property
    def name(self) -> str:
        return self.base.study.study

    def launch(self, setting: Setting, round_number: int) -> tuple[StudyFile, PlannedLaunch]:
        """Return the study and its one launch of a setting in a round. Rounds differ by their seed.
        Raises InputError where the setting cannot be launched."""
        study = self.base.study
        ((name, engine),) = study.engines.items()
        flags = {find_flag(self.engine, flag): flag for flag in engine.args}
        args = {
            flag: value
            for flag, value in engine.args.items()
            if find_flag(self.engine, flag) not in dict(setting.values)
        }
        args |= {flags.get(flag, flag): value for flag, value in arguments(setting)}
        layout = setting.layout or study.deployments.layout[0]
        read = self.base._replace(
            study=msgspec.structs.replace(
                study,
                seed=study.seed + round_number,
                engines={name: msgspec.structs.replace(engine, args=args)},
                deployments=msgspec.structs.replace(
                    study.deployments, layout=(_without(layout, args),)
                ),
            )
        )
        (launch,) = plan_study(read, first=round_number + 1)
        return read, launch

    def commands(self, setting: Setting) -> Commands | None:
        """Return the commands that start a setting; None: pools, whose workers are started one by
        one. Raises InputError where the engine has no such command."""
        _, launch = self.launch(setting, 0)
        if launch.parsed is not None and launch.parsed.is_split:
            return None
        return commands_of(launch, (), _PORT)


def _without(layout: str, args: Mapping[str, Value | None]) -> str:
    """Return a layout without the options that a setting has."""
    hardware, slash, options = layout.partition("/")
    plain = {flag.replace("-", "_") for flag in args}
    kept = [part for part in options.split(",") if part.partition("=")[0].strip() not in plain]
    return f"{hardware}{slash}{','.join(kept)}".rstrip("/")


def make_contest(options: TuneOptions) -> Contest:
    """Read what is to be tuned, and refuse settings that cannot be. Raises InputError."""
    check_limits(options)
    base = _read_base(options)
    ((name, settings_of_engine),) = base.study.engines.items()
    engine = engine_key(settings_of_engine.engine or name) or name
    if settings_of_engine.url is not None:
        raise InputError(
            f"{base.path}: {name} is a server at a url, which cannot be started with other flags;"
            " leave url out"
        )
    flags = read_flags(engine, options.set_)
    given = _given(Contest(options.target, base, engine, [], [], options.objective, flags))
    made = combine(flags, _layouts(options, base), given)
    if changes_answers(engine, made) and "check" not in _workload(base):
        base = _with_probe(base)
    contest = Contest(options.target, base, engine, made, [], options.objective, flags)
    kept, refused = [], []
    for setting in made:
        why = find_broken_tie(engine, setting, given) or _find_problem(contest, setting)
        if why and setting == made[0]:
            raise InputError(f"the default cannot be launched: {why}")
        if why:
            refused.append(RefusedSetting(setting, why))
        else:
            kept.append(setting)
    if len(kept) < 2:
        reason = f": {refused[0].why}" if refused else "; name other values with --set"
        raise InputError(f"no setting is left beside the default{reason}")
    return contest._replace(settings=kept, refused=refused)


def _find_problem(contest: Contest, setting: Setting) -> str | None:
    """Say why the engine would not start with a setting; None: nothing is known against it."""
    try:
        deployment = contest.launch(setting, 0)[1].parsed
        contest.commands(setting)
    except InputError as error:
        return str(error)
    if deployment is None or deployment.is_split or deployment.worker.engine not in ENGINES:
        return None
    return next(iter(find_misfits(rules_of(deployment.worker))), None)


def _given(contest: Contest) -> dict[str, Value]:
    """Return the flags that the default has, by their names in the engine's table: those that the
    engine takes without them, and those of its command."""
    rows = tuned_flags(contest.engine)
    given: dict[str, Value] = {
        flag: row.default for flag, row in rows.items() if row.default is not None
    }
    made = contest.commands(Setting())
    words = () if made is None else made.ranks[0].argv
    for word, following in zip(words, (*words[1:], ""), strict=False):
        if word.startswith("--"):
            name, _, value = word[2:].partition("=")
            text = value or ("" if following.startswith("--") else following)
            given[find_flag(contest.engine, name)] = read_value(text) if text else True
    return given


# --- the base ------------------------------------------------------------------------------------


def _read_base(options: TuneOptions) -> StudyFile:
    """Return the study of one deployment and one load that the options mean."""
    if _FILE.fullmatch(options.target):
        read = read_study(Path(options.target))
        groups = (options.workload, options.load, options.grading)
        changed = next((flag for group in groups for flag in changed_options(group)), None)
        if changed is not None:
            raise InputError(f"--{changed}: the study's file has the load; write it there")
        slo = options.slo or read.study.slo
        return _check_single(
            read._replace(study=msgspec.structs.replace(read.study, slo=slo)), options
        )
    if options.on is not None:
        raise InputError("--on: machines are named in a study's file; give one as the target")
    model, _, rest = options.target.partition("@")
    start = options.start
    if not rest:
        key, layout, model = engine_key(options.target), "", ""
        if key is None:
            raise InputError(
                f"{options.target}: no deployment and no engine; write e.g."
                " llama-3.1-8b@1xh100/engine=vllm, or llama.cpp"
            )
        version = None
    else:
        parsed = parse_deployment(options.target)
        key, version = parsed.decoder.engine, parsed.decoder.engine_version or None
        hardware, _, words = rest.partition("/")
        parts = [part for part in words.split(",") if part]
        kept = [p for p in parts if p.partition("=")[0].strip() not in ("engine", "version")]
        layout = "/".join(filter(None, (hardware, ",".join(kept))))
    engine = EngineSettings(
        engine=key,
        version=version,
        model=start.model,
        program=start.program,
        image=start.image,
        container=start.container or "docker",
        cache=str(start.cache),
        args=dict(start.arguments),
        env=dict(start.environment),
    )
    workload = changed_options(options.workload) | changed_options(options.grading)
    workload.pop("seed", None)
    study = Study(
        study=options.name or _name(options),
        deployments=Deployments(engine=(key,), layout=(layout,)),
        model=model or None,
        engines={key: engine},
        workloads={"load": workload},
        loads=changed_options(options.load),
        slo=options.slo,
        seed=options.workload.seed,
        limits=StudyLimits(ready=Seconds(start.timeout_ready_s)),
    )
    read = StudyFile(Path("tune"), study, {"$": Mark(1, 1)})
    return _check_single(read, options)


def _name(options: TuneOptions) -> str:
    """Name a race by what is asked, so that the same words go on with it."""
    words = {
        field: value
        for field, value in values_of(options).items()
        if field not in ("time_s", "launches", "out")
    }
    digest = hashlib.sha256(msgspec.json.encode(words, order="sorted", enc_hook=str)).hexdigest()
    plain = re.sub(r"[^A-Za-z0-9.]+", "-", options.target.partition("/")[0]).strip("-")
    return f"{plain}-{digest[:6]}"


def _check_single(read: StudyFile, options: TuneOptions) -> StudyFile:
    """Check that a study has one deployment, workload and load, as the objective needs them."""
    study, objective = read.study, options.objective
    engines = study.deployments.engine or tuple(study.engines)
    for noun, count in (
        ("deployments", len(engines) * len(study.deployments.layout)),
        ("workloads", len(study.workloads)),
    ):
        if count != 1:
            raise InputError(f"{read.path}: {count} {noun}; a race has one: leave the others out")
    (engine,) = engines
    study = msgspec.structs.replace(
        study,
        repeats=1,
        restart="repeat",
        engines={engine: study.engines.get(engine, EngineSettings())},
    )
    entries = [entry for _, entry in load_entries(study)]
    entry = dict(entries[0]) if len(entries) == 1 else None
    if entry is None:
        raise InputError(f"{read.path}: {len(entries)} loads; a race has one")
    if objective == "rate":
        if study.slo is None:
            raise InputError("--objective rate: the highest rate needs bounds; write --slo")
        entry.pop("rate", None)
        entry["find-max"] = study.slo
    elif "find-max" in entry:
        raise InputError("find-max: the objective of a search is the rate; write --objective rate")
    elif objective == "throughput" and "rate" in entry and not _is_saturated(entry["rate"]):
        raise InputError(
            "--objective throughput: at a fixed rate every setting gives what comes; write"
            " --concurrency, or --objective rate with --slo, or p99:ttft"
        )
    elif not {"concurrency", "rate"} & entry.keys() and "trace" not in _workload(read):
        raise InputError("no load; write --concurrency 16, or --rate 4")
    base = read._replace(study=msgspec.structs.replace(study, loads=entry))
    cells = plan_study(base)[0].cells
    if len(cells) != 1:
        raise InputError(f"{len(cells)} loads; a race has one: give one value")
    return base


def _is_saturated(rate: Any) -> bool:
    values = rate if isinstance(rate, list) else [rate]
    return all(math.isinf(float(value)) for value in values)


def _workload(read: StudyFile) -> dict[str, Any]:
    (workload,) = read.study.workloads.values()
    return workload


def _with_probe(read: StudyFile) -> StudyFile:
    """Return the study with graded questions among its requests."""
    ((name, workload),) = read.study.workloads.items()
    requests = next((entry.get("requests") for _, entry in load_entries(read.study)), None)
    count = int(requests[0] if isinstance(requests, list) else requests or 10 * _QUESTIONS)
    share = min(_MOST_SHARE, max(0.1, _QUESTIONS / count))
    probe = {"check": f"generated:{_QUESTIONS}", "check-share": share}
    workloads = {name: workload | probe}
    return read._replace(study=msgspec.structs.replace(read.study, workloads=workloads))


def _layouts(options: TuneOptions, read: StudyFile) -> Sequence[str]:
    """Return the layouts to try, as they stand behind the @; none where the deployment's own is the
    only one."""
    layouts = [word for text in options.layouts for word in str(text).split()]
    if not layouts:
        return ()
    layout_given = read.study.deployments.layout[0]
    hardware, _, words = layout_given.partition("/")
    if not hardware:
        raise InputError("--layouts: of a deployment with GPUs; write MODEL@8xh100/engine=…")
    kept = [p for p in words.split(",") if p and not re.fullmatch(r"(tp|dp|pp|ep)=?\d+", p)]
    if layouts == ["auto"]:
        count = int(re.match(r"\d+", hardware)[0])  # type: ignore[index]
        powers = [1 << power for power in range(count.bit_length()) if count % (1 << power) == 0]
        layouts = [f"tp{tp},dp{count // tp}" if count // tp > 1 else f"tp{tp}" for tp in powers]
    made = [f"{hardware}/{','.join((*word.split(','), *kept))}" for word in layouts]
    return [("" if layout == layout_given else layout) for layout in dict.fromkeys(made)]
