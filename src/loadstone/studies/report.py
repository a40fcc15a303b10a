"""Says what a study's report has beyond that of its runs: what is missing and why, what differs,
how to repeat it."""

import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from loadstone.analyse.compare.setup import MADE_WITH
from loadstone.catalogue.engines import ENGINES, engine_title
from loadstone.catalogue.find import gpu_title
from loadstone.core import run_folder
from loadstone.core.errors import InputError
from loadstone.core.files import read_bytes
from loadstone.core.groups import by_key
from loadstone.core.provenance import Provenance
from loadstone.core.record import RunInfo
from loadstone.core.run_folder.owner import is_owned
from loadstone.core.secrets import blank, keys_in, names_key
from loadstone.core.settings import FoundMax
from loadstone.report.data.wording import clean
from loadstone.report.pages.study import StudyCell, StudyPart
from loadstone.studies.file import StudyFile
from loadstone.studies.journal import read_entries
from loadstone.studies.plan import PlannedCell, PlannedLaunch
from loadstone.studies.status import deployment_name, read_answer
from loadstone.studies.supervise import CELLS, find_run

_LONGEST = 20_000
_MAX_BYTES = 1 << 20
_CREDENTIALS = re.compile(r"://[^/\s]*@")
_SHORTEST_KEY = 8
_OF_A_LAUNCH = re.compile(r"(?<=:)\d{4,5}\b|(?<=/launches/)[0-9a-f]{12}\b")

Facts = list[tuple[str, str]]


class StudyRuns(NamedTuple):
    """The run folders that are done, what a report says of the study, and what of its folder is
    passed over."""

    folders: tuple[Path, ...]
    part: StudyPart
    passed_over: tuple[str, ...]


class _Done(NamedTuple):
    launch: PlannedLaunch
    info: RunInfo
    made: Provenance


def study_runs(
    read: StudyFile, launches: Sequence[PlannedLaunch], folder: Path, twin: Path | None = None
) -> StudyRuns:
    """Return the runs of the study in `folder`; beside them those of the same cells in `twin`, its
    simulation.

    Raises InputError where nothing of it is done yet.
    """
    runs = {cell.id: find_run(folder, cell) for launch in launches for cell in launch.cells}
    missing = _missing(launches, folder, runs)
    foreign = (
        sum(path.name not in runs for path in (folder / CELLS).glob("*")) if folder.is_dir() else 0
    )
    if not any(runs.values()):
        cause = f" ({missing[0]})" if (folder / "journal.jsonl").exists() else ""
        why = (
            f"its {foreign} loads are of another study, or of this file before it was changed"
            if foreign
            else ""
        )
        remedy = "run the study first, or name the folder that holds its folder with --out"
        raise InputError(
            f"{folder}: {why or f'nothing of this study is done yet{cause}'}; {remedy}"
        )
    done = []
    for launch in launches:
        for run in filter(None, (runs[cell.id] for cell in launch.cells)):
            info = run_folder.read_info(run)
            done.append(_Done(launch, info, info.settings.provenance))
    cells = _cells(launches, runs, twin)
    shared, apart = _made_with(done)
    part = StudyPart(
        name=clean(read.study.study, 120),
        missing=missing,
        differences=_differences(done),
        cells=cells,
        file=_without_secrets(read),
        shared=shared,
        apart=apart,
    )
    folders = (*filter(None, runs.values()), *(cell.simulated for cell in cells if cell.simulated))
    left_out = f"{folder / CELLS}: {foreign} loads that are not, or no longer, of this file"
    return StudyRuns(folders, part, (left_out,) if foreign else ())


def _cells(
    launches: Sequence[PlannedLaunch], runs: Mapping[str, Path | None], twin: Path | None
) -> list[StudyCell]:
    """Put repeats together. Those of a simulation are alike: one of them stands for all."""
    cells: dict[tuple[object, ...], StudyCell] = {}
    names = _names(launches)
    for launch in launches:
        for index, cell in enumerate(launch.cells):
            new = StudyCell(name=names[launch.id], workload=cell.workload, load=cell.load)
            study_cell = cells.setdefault((launch.engine, launch.model, launch.layout, index), new)
            study_cell.planned += 1
            run = runs[cell.id]
            if run is not None:
                study_cell.runs.append(run)
                study_cell.simulated = study_cell.simulated or (
                    find_run(twin, cell) if twin else None
                )
    for study_cell in cells.values():
        runs_by_source = [("", run) for run in study_cell.runs]
        if study_cell.simulated:
            runs_by_source.append(("simulated: ", study_cell.simulated))
        answers = [(source, read_answer(run)) for source, run in runs_by_source]
        study_cell.found = "; ".join(
            source + _found(answer) for source, answer in answers if answer
        )
    return list(cells.values())


def _found(answer: FoundMax) -> str:
    """Say what a search found, in a few words."""
    holds, fails = (
        f"{load.value:.4g}" if load is not None else "" for load in (answer.load, answer.fails_at)
    )
    shown = f"holds at {holds} {answer.unit}" if holds else "holds at no load tried"
    return f"{shown}, fails at {fails or 'no load tried'}"


def _names(launches: Sequence[PlannedLaunch]) -> dict[str, str]:
    """Name deployments by the study's own names: the engine's, and the model's and layout's where
    it has several."""
    has_models = len({launch.model for launch in launches}) > 1
    has_layouts = len({launch.layout for launch in launches}) > 1
    named = {}
    for launch in launches:
        engine = engine_title(launch.engine) if launch.engine in ENGINES else launch.engine
        model = f" {launch.model}" if has_models else ""
        named[launch.id] = engine + model + (f" on {launch.layout}" if has_layouts else "")
    gpus = re.compile(r"(?<= on )(\d+)x(\w+)(?:/tp\1$)?")
    return {
        key: gpus.sub(lambda it: f"{it[1]}×{gpu_title(it[2])}", name) for key, name in named.items()
    }


def _missing(
    launches: Sequence[PlannedLaunch], folder: Path, runs: Mapping[str, Path | None]
) -> list[str]:
    """Return a sentence on each deployment of which cells are missing, by the last cause that the
    journal knows."""
    why: dict[str, str] = {}
    measured: set[str] = set()
    for entry in read_entries(folder):
        if entry.event in ("launch", "end"):
            why[entry.launch] = entry.why
        elif entry.event in ("cell", "done"):
            why[entry.cell] = entry.why
            measured.add(entry.cell)
    otherwise = "it is being run" if is_owned(folder) else "not run yet"
    repeats: dict[tuple[str, str, str], list[str]] = {}
    shown: dict[str, str] = {}
    names = _names(launches)
    for launch in launches:
        lacking = [cell for cell in launch.cells if runs[cell.id] is None]
        if not lacking:
            continue
        causes = dict.fromkeys(filter(None, (why.get(cell.id) for cell in lacking)))
        whole = why.get(launch.id, "")
        if not any(whole.endswith(cause) for cause in causes):
            causes = dict.fromkeys(filter(None, (whole, *causes)))
        cause = "; ".join(causes) or _cut(lacking, measured) or otherwise
        alike = _OF_A_LAUNCH.sub("", cause)  # a port and a folder of its own
        shown.setdefault(alike, cause)
        which = f" ({lacking[0].workload} at {lacking[0].load})" if len(lacking) == 1 else ""
        lacks = f"{len(lacking)} of its {len(launch.cells)} loads{which}"
        repeats.setdefault((names[launch.id], lacks, alike), []).append(str(launch.repeat))
    often = len({launch.repeat for launch in launches}) > 1
    return [
        clean(
            f"{name} lacks {lacks}{' in repeat ' * often}{' and '.join(which * often)}:"
            f" {shown[alike]}",
            600,
        )
        for (name, lacks, alike), which in repeats.items()
    ]


def _cut(lacking: Sequence[PlannedCell], measured: set[str]) -> str:
    begun = any(cell.id in measured for cell in lacking)
    return "cut off while it was measured, or its run folder cannot be read" if begun else ""


# --- what differs ---------------------------------------------------------------------------------

_Value = Callable[[_Done], object]
_Group = Callable[[_Done], str]


def _of_provenance(value: Callable[[Provenance], object]) -> _Value:
    """Return what takes a value of what a run was made with."""
    return lambda done: value(done.made)


def _differences(done: Sequence[_Done]) -> list[str]:
    """Return sentences on what differs between runs though the study does not vary it: a deployment
    has one command, an engine one installation, and the rest is the same for the whole study."""
    compared: dict[str, tuple[_Group, _Value]] = {
        fact: (_GROUPS.get(fact, _study), _of_provenance(value))
        for fact, value in MADE_WITH.items()
    }
    compared |= {
        "engine version": (
            _engine,
            lambda each: each.info.target and each.info.target.engine_version,
        ),
        "GPUs": (_deployment, lambda each: ", ".join(each.made.gpus) or None),
        "Loadstone version": (_study, lambda each: each.info.loadstone),
        "client's processor": (_study, lambda each: each.info.host.cpu),
    }
    sentences = []
    for fact, (whose, value) in compared.items():
        pairs = ((whose(run), value(run)) for run in done)
        groups = by_key(pair for pair in pairs if pair[1] is not None)
        for name, values in groups.items():
            distinct = list(
                {msgspec.json.encode(value, order="sorted"): value for value in values}.values()
            )
            if len(distinct) > 1:
                shown = " or ".join(map(_text, _only_differing(distinct)))
                owner = f" of {name}" if name else ""
                sentences.append(clean(f"Not every run{owner} has the same {fact}: {shown}.", 600))
    return sentences


def _study(run: _Done) -> str:
    return ""


def _engine(run: _Done) -> str:
    return run.launch.engine


def _deployment(run: _Done) -> str:
    return deployment_name(run.launch)


_GROUPS: dict[str, _Group] = {
    "engine flags": _deployment,
    "image": _engine,
    "engine python": _engine,
    "engine packages": _engine,
    "engine environment": _engine,
}
"""Among which runs it should be the same; else among all."""


def _only_differing(values: list[object]) -> list[object]:
    """Keep what mappings say differently."""
    mappings = [value for value in values if isinstance(value, dict)]
    if len(mappings) < len(values):
        return values
    keys = dict.fromkeys(key for mapping in mappings for key in mapping)
    differing = [key for key in keys if len({mapping.get(key) for mapping in mappings}) > 1]
    return [{key: mapping.get(key) for key in differing} for mapping in mappings]


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(
            f"no {name}" if content is None else f"{name} {content}"
            for name, content in value.items()
        )
    return str(value)


# --- how to repeat it -----------------------------------------------------------------------------


def _made_with(done: Sequence[_Done]) -> tuple[Facts, list[tuple[str, Facts]]]:
    """Return what all runs were made with alike, as (name, value); and by deployment the rest."""
    by_deployment: dict[str, dict[str, dict[str, None]]] = {}
    for run in done:
        facts = by_deployment.setdefault(deployment_name(run.launch), {})
        for fact, value in _known(run):
            if (
                not fact.startswith("command") or fact not in facts
            ):  # each launch has a port of its own
                facts.setdefault(fact, {})[clean(value, _LONGEST)] = None
    texts = {
        name: {fact: " | ".join(contents) for fact, contents in facts.items()}
        for name, facts in by_deployment.items()
    }
    names = dict.fromkeys(fact for facts in texts.values() for fact in facts)
    alike = [fact for fact in names if len({facts.get(fact) for facts in texts.values()}) == 1]
    first = next(iter(texts.values()))
    apart = [
        (name, [(fact, facts[fact]) for fact in facts if fact not in alike])
        for name, facts in texts.items()
    ]
    return [(fact, first[fact]) for fact in alike], [
        deployment for deployment in apart if deployment[1]
    ]


def _known(run: _Done) -> Facts:
    made, info, target = run.made, run.info, run.info.target
    several = len(made.commands) > 1
    commands = [
        (f"command of rank {rank}" if several else "command", shlex.join(words))
        for rank, words in enumerate(made.commands)
    ]
    if not commands and info.source == "measured":
        commands = [("command", "not recorded")]
    facts = {
        "engine": target and " ".join(filter(None, (target.engine, target.engine_version))),
        "image": made.image,
        "image digest": made.image_digest,
        "Python of the engine": made.python,
        "driver": made.driver,
        "GPUs": ", ".join(made.gpus),
        "environment": ", ".join(f"{name}={value}" for name, value in made.environment.items()),
        "packages": ", ".join(
            f"{name} {version}" for name, version in sorted(made.packages.items())
        ),
        "git": made.git and f"{made.git.commit}{', with changes' if made.git.changed else ''}",
        "Loadstone": info.loadstone,
        "client": (
            f"{info.host.cpu}, {info.host.cores} cores, {info.host.system}, Python"
            f" {info.host.python}"
        ),
    }
    return [*commands, *((fact, value) for fact, value in facts.items() if value)]


def _without_secrets(read: StudyFile) -> str:
    """Return the file's text without values that are named as keys are, keys that are in this
    process's environment, and passwords in addresses."""
    text = read_bytes(read.path, _MAX_BYTES, "give a study file").decode("utf-8-sig", "replace")
    keys = [
        value
        for name, value in os.environ.items()
        if names_key(name) and len(value) >= _SHORTEST_KEY
    ]
    named = [msgspec.to_builtins(read.study.engines), read.study.workloads, read.study.loads]
    text = blank(text, [*keys, *keys_in((), named)])
    for engine in read.study.engines.values():
        for name, value in (*engine.env.items(), *engine.args.items()):
            if (
                names_key(name) and isinstance(value, str) and value
            ):  # too short to look for it everywhere
                text = re.sub(
                    rf"({re.escape(name)}[\"']?\s*:\s*[\"']?){re.escape(value)}", r"\1…", text
                )
    return _CREDENTIALS.sub("://…@", text)
