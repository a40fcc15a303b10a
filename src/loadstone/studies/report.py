"""What a study's report says beyond that of its runs: what is missing and why, what differs, how to repeat it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from loadstone.analyse.compare.setup import MADE_WITH
from loadstone.core import run_folder
from loadstone.core.errors import InputError
from loadstone.core.files import read_bytes
from loadstone.core.provenance import Provenance
from loadstone.core.record import RunInfo
from loadstone.core.secrets import is_of_a_key
from loadstone.report.data.wording import clean
from loadstone.report.pages.document import StudyPart
from loadstone.studies.file import Engine, StudyFile
from loadstone.studies.journal import entries
from loadstone.studies.plan import Launch
from loadstone.studies.status import name_of
from loadstone.studies.supervise import CELLS, finished

_LONGEST = 20_000
_MOST_BYTES = 1 << 20
_CREDENTIALS = re.compile(r"://[^/\s@]+@")
_OF_THE_ENGINE = ("image", "engine python", "engine packages", "engine environment")


class StudyRuns(NamedTuple):
    """Run folders that are done, and of them what a report says of the study."""

    folders: tuple[Path, ...]
    part: StudyPart


class _Done(NamedTuple):
    launch: Launch
    info: RunInfo
    made: Provenance


def study_runs(read: StudyFile, launches: Sequence[Launch], folder: Path, twin: Path | None = None) -> StudyRuns:
    """The runs of the study in `folder`; with those of the same cells in `twin`, the folder of its simulation.

    Raises InputError where nothing of it is done yet.
    """
    cells = [(launch, cell) for launch in launches for cell in launch.cells]
    runs = [(launch, run) for launch, cell in cells if (run := finished(folder, cell)) is not None]
    missing = _missing(launches, folder)
    if not runs:
        others = any((folder / CELLS).glob("*/*/run.json"))
        why = (
            "its runs are of another study, or of a file that was changed since" if others else "nothing is done yet"
        )
        cause = f" ({missing[0]})" if (folder / "journal.jsonl").exists() else ""
        raise InputError(f"{folder}: {why}{cause}; run the study first, or name its folder's parent with --out")
    done = []
    for launch, run in runs:
        info = run_folder.read_info(run)
        done.append(_Done(launch, info, Provenance.of(info)))
    here = {cell.id for launch, cell in cells if finished(folder, cell)}
    simulated = [run for _, cell in cells if twin and cell.id in here and (run := finished(twin, cell))]
    shared, apart = _made_with(done)
    part = StudyPart(
        name=clean(read.study.study, 120),
        missing=missing,
        differences=_differences(done),
        file=_without_secrets(read),
        shared=shared,
        apart=apart,
    )
    return StudyRuns((*(run for _, run in runs), *simulated), part)


def _missing(launches: Sequence[Launch], folder: Path) -> list[str]:
    """A line for each launch of which a cell is missing, with the last cause that the journal knows."""
    why: dict[str, str] = {}
    for entry in entries(folder):
        if entry.event in ("launch", "end"):
            why[entry.launch] = entry.why
        elif entry.event in ("cell", "done"):
            why[entry.cell] = entry.why
    lines = []
    for launch in launches:
        cells = [cell for cell in launch.cells if finished(folder, cell) is None]
        if cells:
            causes = dict.fromkeys(why.get(each, "") for each in (launch.id, *(cell.id for cell in cells)))
            cause = "; ".join(filter(None, causes)) or "not run yet"
            of = f"{len(cells)} of {len(launch.cells)} cells are missing"
            lines.append(clean(f"{name_of(launch)}, repeat {launch.repeat}: {of}: {cause}", 400))
    return lines


def _differences(done: Sequence[_Done]) -> list[str]:
    """Sentences on what differs between runs though the study does not vary it.

    An engine has one installation, and a deployment one command; the rest is the same for all runs of a study.
    """
    values: dict[str, Callable[[_Done], object]] = {
        **{what: _of_provenance(value) for what, value in MADE_WITH.items()},
        "GPUs": lambda each: ", ".join(each.made.gpus) or None,
        "Loadstone": lambda each: each.info.loadstone,
        "client's processor": lambda each: each.info.host.cpu,
    }
    sentences = []
    for what, value in values.items():
        groups: dict[str, list[object]] = {}
        for each in done:
            group = "" if what not in (*_OF_THE_ENGINE, "engine flags", "GPUs") else each.launch.engine
            groups.setdefault(group if what in _OF_THE_ENGINE else group and name_of(each.launch), []).append(
                value(each)
            )
        for group, seen in groups.items():
            known = [each for each in seen if each is not None]
            distinct = {msgspec.json.encode(each, order="sorted"): each for each in known}
            if len(distinct) > 1:
                shown = " or ".join(_text(each) for each in _only_differing(list(distinct.values())))
                sentences.append(clean(f"Runs{group and f' of {group}'} differ in their {what}: {shown}.", 400))
    return sentences


def _of_provenance(value: Callable[[Provenance], object]) -> Callable[[_Done], object]:
    return lambda each: value(each.made)


def _only_differing(values: list[object]) -> list[object]:
    """Of mappings, what they say differently."""
    mappings = [value for value in values if isinstance(value, dict)]
    if len(mappings) < len(values):
        return values
    keys = [key for key in dict.fromkeys(key for each in mappings for key in each)]
    keys = [key for key in keys if len({each.get(key) for each in mappings}) > 1]
    return [{key: each.get(key) for key in keys} for each in mappings]


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {'absent' if each is None else each}" for name, each in value.items())
    return str(value)


def _made_with(done: Sequence[_Done]) -> tuple[list[tuple[str, str]], list[tuple[str, list[tuple[str, str]]]]]:
    """What all runs share, as (name, value); and by deployment what is not alike."""
    by_deployment: dict[str, dict[str, dict[str, None]]] = {}
    for each in done:
        known = by_deployment.setdefault(name_of(each.launch), {})
        for what, value in _known(each).items():
            if value and (what != "command" or what not in known):  # a port of its own for each launch
                known.setdefault(what, {})[value] = None
    texts = {name: {what: " | ".join(each) for what, each in known.items()} for name, known in by_deployment.items()}
    names = dict.fromkeys(what for known in texts.values() for what in known)
    alike = [what for what in names if len({known.get(what) for known in texts.values()}) == 1]
    first = next(iter(texts.values()))
    apart = [(name, [(what, known[what]) for what in known if what not in alike]) for name, known in texts.items()]
    return [(what, first[what]) for what in alike], [each for each in apart if each[1]]


def _known(run: _Done) -> dict[str, str]:
    made, info = run.made, run.info
    git = made.git and f"{made.git.commit}{', with changed files' if made.git.changed else ''}"
    known = {
        "command": "\n".join(" ".join(words) for words in made.commands),
        "image": made.image,
        "image digest": made.image_digest,
        "Python of the engine": made.python,
        "driver": made.driver,
        "GPUs": ", ".join(made.gpus),
        "environment": ", ".join(f"{name}={value}" for name, value in made.environment.items()),
        "packages": ", ".join(f"{name} {version}" for name, version in made.packages.items()),
        "git": git,
        "Loadstone": info.loadstone,
        "client": f"{info.host.cpu}, {info.host.cores} cores, {info.host.system}, Python {info.host.python}",
    }
    return {what: clean(value, _LONGEST) for what, value in known.items() if value}


def _without_secrets(read: StudyFile) -> str:
    """The file's text, without values that are named as keys are, and without passwords in addresses."""
    text = read_bytes(read.path, _MOST_BYTES, "give a study file").decode("utf-8-sig", "replace")
    for engine in read.study.engines.values():
        for value in _secrets(engine):
            text = text.replace(value, "…")
    return _CREDENTIALS.sub("://…@", text)


def _secrets(engine: Engine) -> list[str]:
    settings = [*engine.env.items(), *engine.args.items()]
    return [str(value) for name, value in settings if is_of_a_key(name) and value not in (None, True, False, "")]
