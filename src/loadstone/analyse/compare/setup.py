"""Lists the differences in the setup of two sides, before any number is looked at."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from loadstone.analyse.compare.result import Difference
from loadstone.analyse.compare.sides import ComparedRun, RunCell, load_key
from loadstone.analyse.run_facts import RunFacts
from loadstone.core.plan import Load
from loadstone.core.provenance import Provenance
from loadstone.core.settings import RunSettings

_DESCRIBED = (
    "settings",
    "named",
    "architecture",
    "stated",
    "hardware",
    "own_model",
    "pools",
    "layout",
)
"""Facts that have rows of their own, or are told by others."""
_ANSWERS = "answers a request"
_HARDWARE = "hardware"
_CONFIG = "model config"
WORKLOAD = (
    "mode",
    "workload",
    "input_tokens",
    "output_tokens",
    "range_ratio",
    "prefix_tokens",
    "prefix_groups",
    "workload pictures",
    "workload count",
    "workload document",
    _ANSWERS,
)
"""Differences with which two sides answer different questions."""
_IN_FACTS = {
    "": ("kind", "name", "mode", "prefix_tokens", "prefix_groups"),
    "input": ("mean",),
    "output": ("mean",),
}
"""Parts of a workload that the facts contain; "": of itself, else of a part of it."""


def _fact(name: str) -> Callable[[ComparedRun], Any]:
    def value(run: ComparedRun) -> Any:
        fact = getattr(run.facts, name)
        return round(fact, 1) if isinstance(fact, float) else fact

    return value


def _target(name: str, absent: Any = None) -> Callable[[ComparedRun], Any]:
    return lambda run: getattr(run.info.target, name, absent)


def _speculation(run: ComparedRun) -> str | None:
    """Say whether tokens were guessed, by the deployment's arguments or the servers' counters."""
    guesses = [
        len(cell.drafts.by_position) for cell in run.summary.cells if cell.drafts is not None
    ]
    arguments = run.info.settings.deployed.arguments
    tokens = arguments.get("num_speculative_tokens") or max(guesses, default=0)
    if not guesses and str(tokens) == "0" and "speculation" not in arguments:
        return None
    return f"{tokens} guesses a step" if str(tokens) != "0" else "on"


def _client(run: ComparedRun) -> Any:
    names = ("sampling", "structured", "route", "history")
    return _without_unset({name: getattr(run.info.settings, name) or None for name in names})


_COMPARED: dict[str, Callable[[ComparedRun], Any]] = {
    **{name: _fact(name) for name in RunFacts.__struct_fields__ if name not in _DESCRIBED},
    "pools": _fact("layout"),
    _HARDWARE: lambda run: msgspec.to_builtins(run.facts.hardware) if run.facts.hardware else None,
    _CONFIG: lambda run: (
        msgspec.json.decode(run.facts.own_model)["config"] if run.facts.own_model else None
    ),
    "longest context": _target("max_model_tokens"),
    "servers": lambda run: len(run.info.target.urls) or 1 if run.info.target else None,
    "endpoint": _target("endpoint"),
    _ANSWERS: _target("choices", 1),
    "seed": lambda run: run.info.seed if run.has_plan else None,
    "label": lambda run: run.info.settings.label or None,
    "speculation": _speculation,
    "engine arguments": lambda run: run.info.settings.deployed.arguments or None,
    "client": _client,
    "client host": lambda run: run.info.host.cpu,
    "loadstone": lambda run: run.info.loadstone,
}
"""Facts of two runs that are compared, in the order in which they are shown."""


MADE_WITH: dict[str, Callable[[Provenance], Any]] = {
    "engine flags": lambda made: made.flags if made.commands else None,
    "image": lambda made: made.image_digest or made.image,
    "engine python": lambda made: made.python,
    "engine packages": lambda made: made.packages or None,
    "engine environment": lambda made: made.environment if made.commands else None,
    "driver": lambda made: made.driver,
    "git commit": (
        lambda made: made.git and f"{made.git.commit[:12]}{', changed' if made.git.changed else ''}"
    ),
}
"""The programs that a run was made with, as far as they are known."""


def differences(a: Sequence[ComparedRun], b: Sequence[ComparedRun]) -> list[Difference]:
    """List everything that is not the same on both sides."""
    rows: list[Difference] = []
    for name, value in _COMPARED.items():
        sides = [_distinct([value(run) for run in runs]) for runs in (a, b)]
        if name != _CONFIG or [None] not in sides:  # a name tells apart what the catalogue has
            rows += _row(name, sides, only_differing=name in (_HARDWARE, _CONFIG))
    rows += _made_with(a, b)
    rows += _sent(a, b)
    rows += _workload(a, b)
    return rows + _plan(a, b, rows)


def _made_with(a: Sequence[ComparedRun], b: Sequence[ComparedRun]) -> Iterator[Difference]:
    """Compare the programs and flags of the engines, where both sides know them."""
    for name, value in MADE_WITH.items():
        sides = [
            _distinct([value(run.info.settings.provenance) for run in runs]) for runs in (a, b)
        ]
        if all(None not in values for values in sides):
            yield from _row(name, sides, only_differing=True)


def _sent(a: Sequence[ComparedRun], b: Sequence[ComparedRun]) -> list[Difference]:
    """Compare the fields and headers that users gave: the values by digests, where both sides have
    these, else the names."""
    if any(run.info.source != "measured" for run in (*a, *b)):
        return []
    have_digests = all(run.info.settings.sent is not None for run in (*a, *b))

    def given(settings: RunSettings) -> dict[str, str]:
        names = [*(settings.extra_body_fields or ()), *(settings.headers or ())]
        digests = settings.sent or {} if have_digests else {}
        return {name: f"digest {digests[name]}" if name in digests else "given" for name in names}

    sides = [_distinct([given(run.info.settings) for run in runs]) for runs in (a, b)]
    return _row("extra fields and headers", sides, only_differing=True)


def _workload(a: Sequence[ComparedRun], b: Sequence[ComparedRun]) -> Iterator[Difference]:
    """Compare other fields of the workload that both sides tell."""
    names = dict.fromkeys(
        name for run in (*a, *b) for name in run.info.settings.workload if name not in _IN_FACTS[""]
    )
    for name in names:
        sides = [
            _distinct([_beside_facts(name, _workload_part(run, name)) for run in side])
            for side in (a, b)
        ]
        if all(values != [None] for values in sides):
            yield from _row(f"workload {name}", sides, only_differing=True)


def _workload_part(run: ComparedRun, name: str) -> Any:
    """Return a field of a run's workload, also that a plan has no pictures made."""
    part = run.info.settings.workload.get(name)
    return "none made" if part is None and name == "pictures" and run.has_plan else part


def _beside_facts(name: str, value: Any) -> Any:
    if name == "classes" and isinstance(value, list):
        return {part["class"]: part for part in value if isinstance(part, dict) and "class" in part}
    if not isinstance(value, dict):
        return value
    return {key: part for key, part in value.items() if key not in _IN_FACTS.get(name, ())}


def _plan(
    a: Sequence[ComparedRun], b: Sequence[ComparedRun], differences: Sequence[Difference]
) -> list[Difference]:
    """Compare how loads ended; and why plans differ otherwise, where these `differences` give
    none."""
    runs, loads = [*a, *b], common_loads(a, b)
    ends = [_distinct([_ends(run, loads) for run in side]) for side in (a, b)]
    rows = _row("ends after", ends) if all(texts != [[]] for texts in ends) else []
    if not all(run.has_plan for run in runs) or len({run.info.plan_id for run in runs}) == 1:
        return rows
    rows += _row(
        "warm-up requests", [_distinct([_warmups(run, loads) for run in side]) for side in (a, b)]
    )
    explained = rows or any(
        row.what in ("seed", *WORKLOAD) or row.what.startswith("workload") for row in differences
    )
    # By time as many requests are issued as fit, and a load that one side alone has is shown
    # elsewhere.
    by_time = any(cell.load.duration_s is not None for run in runs for cell in run.info.cells)
    planned = {
        tuple(sorted(msgspec.json.encode(cell.load) for cell in run.info.cells)) for run in runs
    }
    if explained or by_time or len(planned) > 1:
        return rows
    return _row("plan", [_distinct([run.info.plan_id for run in side]) for side in (a, b)])


def flags_known(runs: Sequence[ComparedRun]) -> bool:
    """Tell if it is known of each run how its engine was started."""
    return all(run.simulated or run.info.settings.provenance.commands for run in runs)


def common_loads(a: Sequence[ComparedRun], b: Sequence[ComparedRun]) -> set[Load]:
    """Collect the keys of the loads that are on both sides."""
    on_a, on_b = (
        {load_key(cell.load) for run in side for cell in run.summary.cells} for side in (a, b)
    )
    return on_a & on_b


def _common(run: ComparedRun, loads: set[Load]) -> list[RunCell]:
    return [place for place in run.places if load_key(place.cell.load) in loads]


def _ends(run: ComparedRun, loads: set[Load]) -> list[str]:
    """List after how long, or how many requests, each of these loads ended; once where all are
    alike."""
    ends = []
    for place in _common(run, loads):
        cell, seconds = place.cell, None
        if cell.load.profile or cell.load.process == "trace":
            continue
        if place.number is not None:
            seconds = run.info.cells[place.number].load.duration_s
        if seconds is not None:
            ends.append(f"{seconds:g} s")
        elif cell.requests.sent is not None:
            ends.append(f"{cell.requests.sent} requests")
    return list(dict.fromkeys(ends))


def _warmups(run: ComparedRun, loads: set[Load]) -> list[int]:
    """Count the requests before the measured ones of each of these loads; once where all are
    alike."""
    plan = run.plan
    numbers = (place.number for place in _common(run, loads))
    return list(
        dict.fromkeys(plan.warmup_count(number) for number in numbers if number is not None)
    )


def _row(what: str, sides: list[list[Any]], *, only_differing: bool = False) -> list[Difference]:
    """Make a row of the distinct values of either side; none where they are the same."""
    if sides[0] == sides[1]:
        return []
    if only_differing:
        sides = _only_differing(*sides)
    shown = [values[0] if len(values) == 1 else values for values in sides]
    return [Difference(what, *shown)]


def _only_differing(a: list[Any], b: list[Any]) -> list[list[Any]]:
    """Keep the fields in which two descriptions differ."""
    if not (len(a) == len(b) == 1 and isinstance(a[0], dict) and isinstance(b[0], dict)):
        return [a, b]
    keys = [key for key in {**a[0], **b[0]} if a[0].get(key) != b[0].get(key)]
    return [[{key: side[0].get(key) for key in keys}] for side in (a, b)]


def _distinct(values: Sequence[Any]) -> list[Any]:
    """Keep each value once, in a fixed order."""
    distinct = {msgspec.json.encode(value, order="sorted"): value for value in values}
    return [distinct[key] for key in sorted(distinct)]


def _without_unset(value: Any) -> Any:
    """Remove empty settings, so that one left out and one left unset are the same."""
    if not isinstance(value, dict):
        return value
    pruned = {name: _without_unset(part) for name, part in value.items()}
    return {name: part for name, part in pruned.items() if part not in (None, [], {}, "")}
