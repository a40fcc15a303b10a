"""Rules on a run, or one of its cells, for which the records are not needed: was all kept, what was left out before
anything was sent, what a prediction rests on."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from loadstone.analyse.verdict import thresholds
from loadstone.analyse.verdict.finding import finding, finding_row
from loadstone.core.plan import Load, Plan
from loadstone.core.record import CellInfo, JournalDamage, RunInfo, Source, Target
from loadstone.core.summary import Finding, Roofline


class _File(msgspec.Struct):
    """Plan.workload of a data set or trace: items of the file that are sent (`requests`, `prompts`), and others."""

    requests: int = 0
    prompts: int = 0
    skipped: dict[str, int] | int | None = None
    bad: int = 0
    too_long: int = 0
    lengthened: int = 0
    dropped: dict[str, int] = {}
    doubted_per_s: float | None = None


class _Declared(msgspec.Struct):
    """The deployment that the user declared for a measured server, as far as it is doubted."""

    doubts: list[str] = []


class _Basis(msgspec.Struct):
    """The basis of a prediction; see runs.simulate. `own_draft`: the key of older runs for `draft`."""

    profile: str | None = None
    unmeasured: str = ""
    vendor_unmeasured: bool = False
    engine_unmeasured: bool = False
    nodes_crossed: int | None = None
    own_profile: bool = False
    assumed: list[str] = []
    not_simulated: list[str] = []
    not_read: str = ""
    assumed_acceptance: float | None = None
    draft: str | UnsetType | None = UNSET
    own_draft: bool = False


_CALLS = re.compile(',"(?:tool_calls|function_call)":[{[]')
"""A tool call in messages as JSON: no text has it, for its quotation marks are escaped."""
_Part = TypeVar("_Part", _File, _Declared, _Basis)


def _read(value: object, kind: type[_Part]) -> _Part:
    """Read a part of run.json or of a plan; an empty one where another version or program wrote it."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return kind()


def run_findings(info: RunInfo, plan: Plan, begun: Sequence[bool]) -> list[Finding]:
    """Find what there is to know about one run; `begun`: for each cell, if anything of it was sent."""
    file = _read(plan.workload, _File)
    doubts = _read(info.settings.get("deployment"), _Declared).doubts
    missing = [cell.load for cell, sent in zip(info.cells, begun, strict=True) if not sent]
    findings = [
        _cells_not_begun(missing, len(begun), info.error or f"the run is {info.status}"),
        _journal_damaged(info.journals_damaged),
        _lines_left_out(file),
        _prompts_lengthened(file.lengthened),
        _deployment_doubted(doubts),
        _engines_differ(info.target),
    ]
    return [each for each in findings if each is not None]


def _cells_not_begun(missing: Sequence[Load], planned: int, why: str) -> Finding | None:
    if not missing:
        return None
    labels = ", ".join(load.label for load in missing)
    return finding("cells_not_begun", f"{len(missing)} of {planned} planned cells never began ({labels}): {why}")


def _lines_left_out(file: _File) -> Finding | None:
    """Count lines that could not be used, and items that hold no prompt to send."""
    if isinstance(file.skipped, dict):
        remaining, counts = file.requests, file.skipped
    else:
        remaining = file.prompts
        counts = {
            "cannot be read": file.bad,
            "no prompt to send": file.skipped or 0,
            "too long for the model": file.too_long,
        }
    left = sum(counts.values())
    if not left:
        return None
    why = ", ".join(f"{count:,} {reason}" for reason, count in counts.items() if count)
    return finding(
        "lines_left_out", f"{left:,} of the file's items were left out ({why}), {remaining:,} remain to be sent"
    )


def _prompts_lengthened(count: int) -> Finding | None:
    if not count:
        return None
    return finding(
        "prompts_lengthened",
        f"{count:,} of the trace's prompts are shorter than what the server adds to every prompt, and were "
        "lengthened to that",
    )


def _deployment_doubted(doubts: Sequence[str]) -> Finding | None:
    if not doubts:
        return None
    return finding("deployment_doubted", f"the server may not be the deployment that was stated: {'; '.join(doubts)}")


def _engines_differ(target: Target | None) -> Finding | None:
    if target is None or not target.engines:
        return None
    each = (f"{url} is {engine or 'unknown'}" for url, engine in zip(target.urls, target.engines, strict=False))
    return finding("engines_differ", f"the fleet's servers are of different engines: {', '.join(each)}")


# --- one cell: was all sent that was asked for, and all kept? -------------------------------------------------------


def kept_findings(info: RunInfo, plan: Plan, cell: int, records: int) -> list[Finding]:
    """Find losses and changes of one cell. `records`: their number."""
    file, planned = _read(plan.workload, _File), len(plan.rows(cell))
    damaged = [
        damage
        for damage in info.journals_damaged
        if damage.first_cell <= cell and (damage.last_cell is None or cell <= damage.last_cell)
    ]
    findings = [
        _journal_damaged(damaged),
        _records_missing(info, cell, records, planned),
        _stopped(info.cells[cell]),
        _messages_dropped(file, plan, info),
        _unit_doubted(file.doubted_per_s if info.cells[cell].load.process == "trace" else None),
    ]
    return [each for each in findings if each is not None]


def _messages_dropped(file: _File, plan: Plan, info: RunInfo) -> Finding | None:
    """List parts of a data set that no endpoint is sent, and those that only chat endpoints take."""
    dropped = Counter(file.dropped)
    if plan.chat and info.source == "measured" and info.target is not None and info.target.endpoint != "chat":
        dropped["tools"] += sum(prompt.startswith("{") for prompt in plan.prompts)
        dropped["tool calls"] += sum(_CALLS.search(prompt) is not None for prompt in plan.prompts)
    named = [f"{name} of {count:,}" for name, count in dropped.items() if count]
    if not named:
        return None
    return finding("messages_dropped", f"not sent, though it belongs to what the file asks: {', '.join(named)} items")


def _unit_doubted(per_s: float | None) -> Finding | None:
    if per_s is None:
        return None
    evidence = f"the trace's whole timestamps, read as milliseconds, are {per_s:,.0f} requests/s; are they seconds?"
    return finding("unit_doubted", evidence)


def record_findings(*, altered: bool, impossible: bool) -> list[Finding]:
    """Make the findings on records that were changed, or are `impossible`: with times below 0."""
    findings = [finding("records_altered", "records.parquet is not as it was written")] if altered else []
    return findings + ([finding("times_impossible", "some of its times are below 0")] if impossible else [])


def _journal_damaged(damaged: Sequence[JournalDamage]) -> Finding | None:
    if not damaged:
        return None
    parts = [
        f"{each.bytes:,} bytes of {each.file} from byte {each.at:,} on cannot be read"
        + (f", with them {each.batches:,} or more of its batches of records" if each.batches else "")
        for each in damaged
    ]
    return finding("journal_damaged", f"{'; '.join(parts)}; what they held is lost")


def _records_missing(info: RunInfo, cell: int, records: int, planned: int) -> Finding | None:
    """Find requests without a record: a cell that ends by count has one of each, whatever became of it."""
    measured, by_time = info.cells[cell], info.cells[cell].load.duration_s is not None
    holds = info.source in finding_row("records_missing").sources
    if not holds or measured.end_s is None or by_time or measured.stopped or records >= planned:
        return None
    return finding(
        "records_missing",
        f"{planned - records:,} of the {planned:,} requests of this cell have no record, though it ran to its end",
    )


def _stopped(cell: CellInfo) -> Finding | None:
    stop = cell.stopped
    if stop is None:
        return None
    if stop.rule == "errors":
        return finding("stopped.errors", stop.evidence)
    if stop.rule == "imprecise":
        return finding("stopped.imprecise", f"not known as well as was requested: {stop.evidence}")
    return finding("stopped.time" if stop.rule == "time" else "stopped", stop.evidence)


# --- what a prediction rests on -------------------------------------------------------------------------------------


def prediction_findings(info: RunInfo) -> list[Finding]:
    """Find what the predictions of a simulated run rest on."""
    basis = _read(info.settings.get("basis"), _Basis)
    rules = (_unmeasured, _network_guessed, _model_assumed, _text_alone, _launch_only, _drafts_assumed)
    findings = [each(basis) for each in rules]
    return [each for each in findings if each is not None]


def _unmeasured(basis: _Basis) -> Finding | None:
    if not basis.unmeasured:
        return None
    far = ", mostly on other vendors' GPUs" if basis.vendor_unmeasured else ""
    far = ", with other engines" if basis.engine_unmeasured else far
    return finding(
        "unmeasured.far" if far else "unmeasured",
        f"this prediction has no measurement of {basis.unmeasured} behind it, only the data sheet and measurements "
        f"elsewhere{far} (profile {basis.profile})",
    )


def _model_assumed(basis: _Basis) -> Finding | None:
    if not basis.assumed:
        return None
    return finding("model_assumed", f"assumed where the model's config.json is silent: {'; '.join(basis.assumed)}")


def _text_alone(basis: _Basis) -> Finding | None:
    evidence = f"the model takes {basis.not_read} too; its prompts are simulated as text alone"
    return finding("text_alone", evidence) if basis.not_read else None


def _launch_only(basis: _Basis) -> Finding | None:
    if not basis.not_simulated:
        return None
    return finding("launch_only", f"of the deployment's arguments, {'; '.join(basis.not_simulated)}")


def _network_guessed(basis: _Basis) -> Finding | None:
    if basis.nodes_crossed is None or basis.own_profile:
        return None
    return finding(
        "network_guessed",
        f"one replica spans {basis.nodes_crossed} nodes, and no measurement that the performance model was fitted on "
        "does: the latency of a message between nodes is a guess, its bandwidth that of the adapters' data sheet",
    )


def _drafts_assumed(basis: _Basis) -> Finding | None:
    acceptance, draft = basis.assumed_acceptance, basis.draft
    if draft is UNSET and basis.own_draft:
        draft = "the model's own layers"
    if acceptance is None and (draft is UNSET or draft is not None):
        return None
    parts = []
    if acceptance is not None:
        parts.append(f"each draft token is assumed to be accepted with a probability of {acceptance:.0%}")
    if draft:
        return finding("drafts_assumed", "; ".join([*parts, f"the draft is {draft}"]))
    parts.append(
        "no draft is named and the model has none of its own: drafting is assumed to cost a pass through one "
        "more layer of the model, like an EAGLE head, and no memory"
    )
    return finding("drafts_assumed.draft" if acceptance is None else "drafts_assumed.both", "; ".join(parts))


# --- beside what hardware allows ------------------------------------------------------------------------------------


def beyond_hardware(light: Roofline | None, source: Source) -> Finding | None:
    """Find a cell that used more of the memory's bandwidth, or of the arithmetic, than there is."""
    if light is None or source not in finding_row("beyond_hardware").sources:
        return None
    parts = ((light.mbu, "memory bandwidth"), (light.mfu, "peak FLOP/s"))
    over = [f"{share:.0%} of the {of}" for share, of in parts if share is not None and share > thresholds.BEYOND]
    if not over:
        return None
    return finding("beyond_hardware", f"this would take {' and '.join(over)} of the GPUs that were stated")
