"""Plans a study: launches, each a deployment started once, and the cells that are measured while it
runs.

The launch is what is scheduled. Its id and those of its cells are hashes of what matters to their
results, so that a study whose file changes measures again what changed, and nothing else.
"""

import hashlib
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from loadstone.catalogue.deployment.deployment import Deployment
from loadstone.catalogue.deployment.pools import has_pools
from loadstone.catalogue.deployment.shorthand import parse_deployment
from loadstone.catalogue.engines import ARGUMENTS, engine_key
from loadstone.core.errors import InputError
from loadstone.engines import EMBEDDED
from loadstone.runs import find_max
from loadstone.studies.file import ACCEPTANCE, EngineSettings, StudyFile, load_entries
from loadstone.workload.lengths import parse_length
from loadstone.workload.option_fields import options_of, values_of
from loadstone.workload.options import Options, SimulateOptions
from loadstone.workload.planning import Planner

EMBEDDED_MODEL = "tiny"
"""What llama.cpp serves where the study names no model: the small random one that comes with
Loadstone."""
_FIND_MAX = "find-max"
_AXES = ("concurrency", "rate", "time-scale")
_ID_LENGTH = 12
_MAX_CELLS = 20_000
"""The most cells of a study; at a minute each they take a fortnight."""
_COUNT = re.compile(r"\b(tp|pp|dp|ep|nodes)=([0-9])")


class PlannedCell(NamedTuple):
    """One workload at one load of one launch: a run folder of its own.

    repeat    from 1
    options   of `bench`, by their flags' names, as the file has them
    """

    id: str
    workload: str
    load: str
    repeat: int
    options: Mapping[str, Any]

    @property
    def is_search(self) -> bool:
        """Tell a search for the highest load, whose answer is about one of several runs."""
        return self.options.get(_FIND_MAX) is not None


class PlannedLaunch(NamedTuple):
    """A deployment that is started, measured and stopped.

    engine      its name in the study; `settings`: what the study says of it
    layout      hardware and parallelism, as the study has them; empty: this machine as it is
    deployment  the shorthand; None where nothing is known of the hardware
    parsed      the deployment that it stands for
    arguments   of the engine, which the shorthand does not have, as (flag, value)
    repeat      of its cells, from 1; the first of them, where one launch serves all (restart:
                never)
    """

    id: str
    engine: str
    settings: EngineSettings
    model: str
    layout: str
    deployment: str | None
    parsed: Deployment | None
    arguments: tuple[tuple[str, str | None], ...]
    repeat: int
    cells: tuple[PlannedCell, ...]


def plan_study(read: StudyFile, first: int = 1) -> tuple[PlannedLaunch, ...]:
    """Return all launches in the order in which they run, their repeats counted from `first`.
    Raises InputError, with line and column."""
    study = read.study
    _check_size(read)
    loads = _cells(read)
    setups = [_setup(read, *combination) for combination in _combinations(read)]
    _check_different(read, setups)
    repeats = range(first, first + study.repeats)
    if study.restart == "never":
        return tuple(_launch(read, setup, repeats, loads) for setup in setups)
    interleaved = study.order == "interleaved"
    order = (
        itertools.product(repeats, setups)
        if interleaved
        else ((r, s) for s in setups for r in repeats)
    )
    return tuple(_launch(read, setup, (repeat,), loads) for repeat, setup in order)


def _check_size(read: StudyFile) -> None:
    """Refuse a study of no cell, or of so many that planning them would take all memory."""
    study, axes = read.study, read.study.deployments
    loads = sum(len(list(_single_loads(entry))) for _, entry in load_entries(study))
    if not loads * len(study.workloads):
        raise read.error(
            "$.loads" if not loads else "$.workloads",
            "this leaves nothing to measure; name one at least",
        )
    setups = (
        max(1, len(axes.engine) or len(study.engines))
        * max(1, len(axes.model))
        * max(1, len(axes.layout))
    )
    cells = study.repeats * setups * len(study.workloads) * loads
    if cells > _MAX_CELLS:
        raise read.error(
            "$.study", f"{cells:,} loads, more than {_MAX_CELLS:,}; make several studies of it"
        )


def _combinations(read: StudyFile) -> Iterator[tuple[str, str, str]]:
    deployments = read.study.deployments
    engines = deployments.engine or tuple(read.study.engines)
    if not engines:
        raise read.error("$.deployments", "no engine; write e.g. engine: [vllm, sglang]")
    models = deployments.model or (read.study.model or "",)
    left = 0
    for engine, model, layout in itertools.product(engines, models, deployments.layout):
        values = {"engine": engine, "model": model, "layout": layout}
        if not any(
            all(values[axis] == value for axis, value in exclusion.items())
            for exclusion in deployments.excluded
        ):
            left += 1
            yield engine, model, layout
    if not left:
        raise read.error(
            "$.deployments.except", "nothing is left of the deployments; leave an entry out"
        )


def _setup(read: StudyFile, name: str, model: str, layout: str) -> PlannedLaunch:
    """Make the launch of a deployment that every repeat has, without its id and cells."""
    engine = read.study.engines.get(name, EngineSettings())
    kind = engine_key(engine.engine or name)
    of_shorthand, of_engine = _split_arguments(engine, layout)
    if of_shorthand and has_pools(f"@{layout}"):
        raise read.error(
            "$.engines",
            f"{name}: of pools each has its own {of_shorthand[0]}; write it in the layout",
        )
    model = model or engine.model or ""
    if not model and kind != EMBEDDED and engine.url is None:
        raise read.error(
            "$.study", f"{name} has no model to load; write model: with an id or a path"
        )
    if layout and not model and engine.url is None:
        index = read.study.deployments.layout.index(layout)
        remedy = (
            "the small model that llama.cpp gets without one runs on this machine as it is; write"
            " model:"
        )
        raise read.error(
            f"$.deployments.layout[{index}]", f"{layout}: a layout of no model: {remedy}"
        )
    deployment = parsed = None
    if model and layout and kind is not None:
        version = [f"version={engine.version}"] if engine.version else []
        options = [layout.partition("/")[2], f"engine={kind}", *version, *of_shorthand]
        deployment = f"{model}@{layout.partition('/')[0]}/{','.join(filter(None, options))}"
        try:
            parsed = parse_deployment(deployment)
        except InputError as error:
            index = read.study.deployments.layout.index(layout)
            raise read.error(f"$.deployments.layout[{index}]", str(error)) from None
    return PlannedLaunch(
        "",
        name,
        engine,
        model or EMBEDDED_MODEL,
        layout,
        deployment,
        parsed,
        tuple(of_engine),
        0,
        (),
    )


def _split_arguments(
    engine: EngineSettings, layout: str
) -> tuple[list[str], list[tuple[str, str | None]]]:
    """Return the arguments that the shorthand of a deployment has, and the others."""
    of_shorthand, of_engine = [], []
    for key, value in engine.args.items():
        plain = key.lstrip("-").replace("-", "_")
        text = (
            None
            if value is None or value is True
            else f"{value}".lower()
            if value is False
            else f"{value}"
        )
        if plain in ARGUMENTS and layout and text is not None:
            of_shorthand.append(f"{plain}={text}")
        else:
            of_engine.append((key.lstrip("-"), text))
    return of_shorthand, of_engine


class _Cell(NamedTuple):
    """A cell before it belongs to a launch. `identity`: what its options mean, however they are
    written."""

    workload: str
    load: str
    options: dict[str, Any]
    identity: dict[str, Any]


def _cells(read: StudyFile) -> list[_Cell]:
    cells: list[_Cell] = []
    seen: dict[str, _Cell] = {}
    for name, workload in read.study.workloads.items():
        for place, entry in load_entries(read.study):
            for number, (label, load) in enumerate(_single_loads(entry)):
                options = workload | load | {"seed": read.study.seed}
                try:
                    named = {key.replace("-", "_"): value for key, value in options.items()}
                    accepted = _acceptance(named.pop(ACCEPTANCE, None))
                    meant = options_of(named, Options)
                    if meant.load.find_max is not None:
                        find_max.read_search(meant)
                    planner = Planner(meant)
                    if not number:  # the others have the same options, and other values of one
                        planner.plan()
                    identity = _identity(meant, accepted)
                    if planner.contents:
                        identity["contents"] = planner.contents
                except InputError as error:
                    key = str(error).partition(":")[0].lstrip("-")
                    where = f"$.workloads.{name}.{key}" if key in workload else f"{place}.{key}"
                    raise read.error(where, str(error)) from None
                cells.append(_Cell(name, label, options, identity))
                same = seen.setdefault(_hash(identity), cells[-1])
                if same is not cells[-1]:
                    problem = (
                        f"{name}, {label} is the same as {same.workload}, {same.load}; leave"
                        " one out"
                    )
                    raise read.error(
                        place if same.workload == name else f"$.workloads.{name}", problem
                    )
    return cells


def _acceptance(value: Any) -> float | None:
    return options_of({"deployment": "", ACCEPTANCE: value}, SimulateOptions).simulator.acceptance


def _identity(meant: Options, acceptance: float | None) -> dict[str, Any]:
    """Return the options that are not the defaults, as values: `1k` and 1024 are one length, `4`
    and [4] one load."""
    default = values_of(Options())
    values = {name: value for name, value in values_of(meant).items() if value != default[name]}
    if acceptance is not None:
        values[ACCEPTANCE] = acceptance
    for name in ("input", "output"):
        if name in values:
            values[name] = repr(parse_length(values[name], meant.workload.range_ratio, f"--{name}"))
    return values


def _single_loads(entry: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Cut an entry of `loads` into single loads, each with its name."""
    if entry.get(_FIND_MAX) is not None:
        yield f"{_FIND_MAX} {entry[_FIND_MAX]}{' by concurrency' * ('concurrency' in entry)}", entry
        return
    axis = next((axis for axis in _AXES if axis in entry), None)
    if axis == "rate" and _is_burst(entry[axis]):
        axis = "requests"
    if axis is None or axis not in entry:
        yield (entry.get("ramp") and f"ramp {entry['ramp']}") or "default", entry
        return
    for value in entry[axis] if isinstance(entry[axis], list) else str(entry[axis]).split(","):
        yield f"{axis} {value}", entry | {axis: value}


def _is_burst(rate: Any) -> bool:
    """Tell a rate that sends all requests at once; one that is no number is refused later, with its
    place."""
    try:
        return float(rate[0] if isinstance(rate, list) and len(rate) == 1 else rate) == math.inf
    except (TypeError, ValueError):
        return False


def _check_different(read: StudyFile, setups: Sequence[PlannedLaunch]) -> None:
    """Refuse two deployments that are one."""
    seen: dict[str, PlannedLaunch] = {}
    for setup in setups:
        same = seen.setdefault(_hash(_identity_of(setup)), setup)
        if same is not setup:
            names = (
                f"{launch.engine} {launch.model} {launch.layout}".strip()
                for launch in (setup, same)
            )
            raise read.error("$.deployments", f"{' is the same as '.join(names)}; leave one out")


def _identity_of(setup: PlannedLaunch) -> dict[str, Any]:
    engine = setup.settings
    return {
        "engine": engine_key(engine.engine or setup.engine) or setup.engine,
        "settings": msgspec.to_builtins(engine),
        "model": setup.model,
        "layout": _COUNT.sub(r"\1\2", setup.layout.replace(" ", "")),
    }


def _launch(
    read: StudyFile, setup: PlannedLaunch, repeats: Sequence[int], loads: list[_Cell]
) -> PlannedLaunch:
    never = read.study.restart == "never"
    launch = _hash(_identity_of(setup) | {"repeat": None if never else repeats[0]})
    cells = tuple(
        PlannedCell(
            _hash(
                {"launch": launch, "options": cell.identity} | ({"repeat": repeat} if never else {})
            ),
            cell.workload,
            cell.load,
            repeat,
            cell.options,
        )
        for repeat in repeats
        for cell in loads
    )
    return setup._replace(id=launch, repeat=repeats[0], cells=cells)


def _hash(value: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(value, order="sorted", enc_hook=str)).hexdigest()[
        :_ID_LENGTH
    ]
