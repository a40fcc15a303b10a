"""Rules on a run, or one of its cells, for which the records are not needed: was all kept, what was
left out before anything was sent, what a prediction rests on."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec
from msgspec import UNSET

from loadstone.analyse.verdict import thresholds
from loadstone.analyse.verdict.finding import finding, finding_row
from loadstone.core.plan import CHECK, Plan
from loadstone.core.record import CellInfo, JournalDamage, RunInfo, Source
from loadstone.core.settings import PredictionBasis
from loadstone.core.summary import Finding, Roofline, SessionNumbers


class _File(msgspec.Struct):
    """Plan.workload of a data set or trace: items of the file that are sent (`requests`,
    `prompts`), and others."""

    requests: int = 0
    prompts: int = 0
    skipped: dict[str, int] | int | None = None
    bad: int = 0
    too_long: int = 0
    lengthened: int = 0
    dropped: dict[str, int] = {}
    doubted_per_s: float | None = None
    overflowed: dict[str, int] = {}


class _Declared(msgspec.Struct):
    """The deployment that the user declared for a measured server, as far as it is doubted."""

    doubts: list[str] = []


_CALLS = re.compile(',"(?:tool_calls|function_call)":[{[]')
"""A tool call in messages as JSON: no text has it, for its quotation marks are escaped."""
_Part = TypeVar("_Part", _File, _Declared)


def _read(value: object, kind: type[_Part]) -> _Part:
    """Read a part of run.json or of a plan; an empty one where another version or program wrote
    it."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return kind()


def run_findings(info: RunInfo, plan: Plan, begun: Sequence[bool]) -> Iterator[Finding]:
    """Find what there is to know about one run; `begun`: for each cell, if anything of it was
    sent."""
    file = _read(plan.workload, _File)
    doubts = _read(info.settings.deployment, _Declared).doubts
    yield from _cells_not_begun(info, begun)
    yield from _journal_damaged(info.journals_damaged)
    yield from _lines_left_out(file)
    if file.lengthened:
        yield finding(
            "prompts_lengthened",
            f"{file.lengthened:,} of the trace's prompts are shorter than what the server adds to"
            " every prompt, and were lengthened to that",
        )
    if info.source == "simulated" and (plan.phase == CHECK).any():
        yield finding(
            "answers_simulated", "graded prompts take their time here, and are not graded"
        )
    if doubts:
        evidence = f"the server may not be the deployment that was stated: {'; '.join(doubts)}"
        yield finding("deployment_doubted", evidence)
    if info.target is not None and info.target.engines:
        servers = zip(info.target.urls, info.target.engines, strict=False)
        each = ", ".join(f"{url} is {engine or 'unknown'}" for url, engine in servers)
        yield finding("engines_differ", f"the fleet's servers are of different engines: {each}")


def _cells_not_begun(info: RunInfo, begun: Sequence[bool]) -> Iterator[Finding]:
    missing = [cell.load.label for cell, sent in zip(info.cells, begun, strict=True) if not sent]
    if missing:
        why = info.error or f"the run is {info.status}"
        yield finding(
            "cells_not_begun",
            f"{len(missing)} of {len(begun)} planned cells never began ({', '.join(missing)}):"
            f" {why}",
        )


def _lines_left_out(file: _File) -> Iterator[Finding]:
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
    if left := sum(counts.values()):
        why = ", ".join(f"{count:,} {reason}" for reason, count in counts.items() if count)
        yield finding(
            "lines_left_out",
            f"{left:,} of the file's items were left out ({why}), {remaining:,} remain to be sent",
        )


# --- one cell: was all sent that was asked for, and all kept? -------------------------------------


def kept_findings(info: RunInfo, plan: Plan, cell: int, records: int) -> Iterator[Finding]:
    """Find losses and changes of one cell. `records`: their number."""
    file, planned = _read(plan.workload, _File), len(plan.rows(cell))
    damaged = [
        damage
        for damage in info.journals_damaged
        if damage.first_cell <= cell and (damage.last_cell is None or cell <= damage.last_cell)
    ]
    yield from _journal_damaged(damaged)
    yield from _records_missing(info, cell, records, planned)
    yield from _stopped(info.cells[cell])
    yield from _messages_dropped(file, plan, info)
    if file.doubted_per_s is not None and info.cells[cell].load.process == "trace":
        rate = f"{file.doubted_per_s:,.0f} requests/s"
        evidence = (
            f"the trace's whole timestamps, read as milliseconds, are {rate}; are they seconds?"
        )
        yield finding("unit_doubted", evidence)


def session_findings(plan: Plan, numbers: SessionNumbers | None) -> Iterator[Finding]:
    """Find what there is to know about a cell's sessions of agents."""
    if numbers is None or not plan.graph.recorded:
        return
    over = _read(plan.workload, _File).overflowed
    if over.get("sessions"):
        evidence = (
            f"{over['sessions']:,} of the file's sessions grow beyond the model's context, and end"
            f" before that: {over.get('calls', 0):,} of their calls are not sent"
        )
        yield finding("context_overflow", evidence)
    if (left := numbers.sessions - numbers.finished) > 0:
        why = f", {numbers.failed:,} of them by a call that failed" if numbers.failed else ""
        evidence = (
            f"{left:,} of {numbers.sessions:,} sessions did not end{why}; time per task is of the"
            " others"
        )
        yield finding(
            "sessions_unfinished.failed" if numbers.failed else "sessions_unfinished", evidence
        )
    if not plan.graph.live:
        evidence = (
            "each call's prompt holds the recorded answers to those before, whatever the server"
            " answered"
        )
        yield finding("recorded_answers", evidence)


def _messages_dropped(file: _File, plan: Plan, info: RunInfo) -> Iterator[Finding]:
    """List parts of a data set that no endpoint is sent, and those that only chat endpoints
    take."""
    dropped = Counter(file.dropped)
    if (
        plan.chat
        and info.source == "measured"
        and info.target is not None
        and info.target.endpoint != "chat"
    ):
        with_tools = [
            prompt for prompt in plan.prompts if prompt.startswith(('{"messages"', '{"tools"'))
        ]
        dropped["tools"] += sum('"check":{' not in prompt for prompt in with_tools)
        dropped["tool calls"] += sum(_CALLS.search(prompt) is not None for prompt in plan.prompts)
    named = [f"{name} of {count:,}" for name, count in dropped.items() if count]
    if named:
        yield finding(
            "messages_dropped",
            f"not sent, though it belongs to what the file asks: {', '.join(named)} items",
        )


def record_findings(*, altered: bool, impossible: bool) -> Iterator[Finding]:
    """Make the findings on records that were changed, or are `impossible`: with times below 0."""
    if altered:
        yield finding("records_altered", "records.parquet is not as it was written")
    if impossible:
        yield finding("times_impossible", "some of its times are below 0")


def _journal_damaged(damaged: Sequence[JournalDamage]) -> Iterator[Finding]:
    parts = [
        f"{each.bytes:,} bytes of {each.file} from byte {each.at:,} on cannot be read"
        + (
            f", with them {each.batches:,} or more of its batches of records"
            if each.batches
            else ""
        )
        for each in damaged
    ]
    if parts:
        yield finding("journal_damaged", f"{'; '.join(parts)}; what they held is lost")


def _records_missing(info: RunInfo, cell: int, records: int, planned: int) -> Iterator[Finding]:
    """Find requests without a record: a cell that ends by count has one of each, whatever became of
    it."""
    measured, by_time = info.cells[cell], info.cells[cell].load.duration_s is not None
    holds = info.source in finding_row("records_missing").sources
    if (
        holds
        and measured.end_s is not None
        and not by_time
        and not measured.stopped
        and records < planned
    ):
        yield finding(
            "records_missing",
            f"{planned - records:,} of the {planned:,} requests of this cell have no record, though"
            " it ran to its end",
        )


def _stopped(cell: CellInfo) -> Iterator[Finding]:
    stop = cell.stopped
    if stop is not None:
        case = f".{stop.rule}" if stop.rule in ("errors", "imprecise", "time") else ""
        why = "not known as well as was requested: " if stop.rule == "imprecise" else ""
        yield finding(f"stopped{case}", f"{why}{stop.evidence}")


# --- what a prediction rests on -------------------------------------------------------------------


def describe_network_guess(nodes: int) -> str:
    """Say what a prediction over several nodes rests on."""
    return (
        f"one replica spans {nodes} nodes, and no measurement that the performance model was fitted"
        " on does: the latency of a message between nodes is a guess, its bandwidth that of the"
        " adapters' data sheet"
    )


def prediction_findings(info: RunInfo) -> Iterator[Finding]:
    """Find what the predictions of a simulated run rest on."""
    basis = info.settings.basis or PredictionBasis()
    yield from _unmeasured(basis)
    if basis.uncovered:
        evidence = (
            f"no measurement covers {'; nor '.join(basis.uncovered)}: intervals are twice as wide,"
            " or more"
        )
        yield finding("uncovered", evidence)
    if basis.moves_in_waves is True:
        evidence = (
            "all requests of a closed loop are of one length: its users move in waves, and prompts"
            " come together"
        )
        yield finding("waves", evidence)
    if basis.nodes_crossed and not basis.own_profile:
        yield finding("network_guessed", describe_network_guess(basis.nodes_crossed))
    if basis.assumed:
        evidence = f"assumed where the model's config.json is silent: {'; '.join(basis.assumed)}"
        yield finding("model_assumed", evidence)
    if basis.not_read:
        evidence = f"the model takes {basis.not_read} too; its prompts are simulated as text alone"
        yield finding("text_alone", evidence)
    if basis.not_simulated:
        yield finding(
            "launch_only", f"of the deployment's arguments, {'; '.join(basis.not_simulated)}"
        )
    yield from _drafts_assumed(basis)
    yield from _pools(info)


LIMITS = {
    "prefill": "the prefill pool is full",
    "decode": "the decode pool has no room, and requests wait for it",
    "link": "caches wait for the link between the pools",
    "none": "neither pool is full",
}
"""Of pools what is full, by PooledCell.limit."""


def _pools(info: RunInfo) -> Iterator[Finding]:
    """Say what the pools of a deployment did, load by load, and what limits."""
    if not info.settings.pools:
        return
    lines = [
        f"{cell.load.label}: {LIMITS.get(pools.limit, pools.limit)} (prefill"
        f" {pools.prefill_tokens_per_s:,.0f} tokens/s, busy {pools.prefill_busy:.0%}; decode"
        f" {pools.decode_tokens_per_s:,.0f} tokens/s; {pools.transfers:,} caches handed over, in"
        f" {pools.link_s * 1e3:,.1f} ms each)"
        for cell, pools in zip(info.cells, info.settings.pools, strict=False)
    ]
    yield finding("pools", "; ".join(lines))


def _unmeasured(basis: PredictionBasis) -> Iterator[Finding]:
    if not basis.unmeasured:
        return
    far = ", mostly on other vendors' GPUs" if basis.vendor_unmeasured else ""
    far = ", with other engines" if basis.engine_unmeasured else far
    yield finding(
        "unmeasured.far" if far else "unmeasured",
        f"this prediction has no measurement of {basis.unmeasured} behind it, only the data sheet"
        f" and measurements elsewhere{far} (profile {basis.profile})",
    )


def _drafts_assumed(basis: PredictionBasis) -> Iterator[Finding]:
    acceptance, draft = basis.assumed_acceptance, basis.draft
    if draft is UNSET and basis.own_draft:
        draft = "the model's own layers"
    if acceptance is UNSET and (draft is UNSET or draft is not None):
        return
    parts = []
    if acceptance is not UNSET:
        parts.append(
            f"each draft token is assumed to be accepted with a probability of {acceptance:.0%}"
        )
    if draft:
        yield finding("drafts_assumed", "; ".join([*parts, f"the draft is {draft}"]))
        return
    parts.append(
        "no draft is named and the model has none of its own: drafting is assumed to cost a pass"
        " through one more layer of the model, like an EAGLE head, and no memory"
    )
    yield finding(
        "drafts_assumed.draft" if acceptance is UNSET else "drafts_assumed.both", "; ".join(parts)
    )


# --- against what hardware allows -----------------------------------------------------------------


def beyond_hardware(light: Roofline | None, source: Source) -> Finding | None:
    """Find a cell that used more of the memory's bandwidth, or of the arithmetic, than there is."""
    if light is None or source not in finding_row("beyond_hardware").sources:
        return None
    parts = ((light.mbu, "memory bandwidth"), (light.mfu, "peak FLOP/s"))
    over = [
        f"{share:.0%} of the {of}"
        for share, of in parts
        if share is not None and share > thresholds.BEYOND
    ]
    if not over:
        return None
    return finding(
        "beyond_hardware", f"this would take {' and '.join(over)} of the GPUs that were stated"
    )
