"""Rules on a run, or one of its cells, for which the records are not needed: was all kept, what was
left out before anything was sent, what a prediction rests on."""

import re
from collections import Counter
from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from loadstone.analyse.verdict import thresholds
from loadstone.analyse.verdict.finding import Findings, finding, finding_rows
from loadstone.core.parts import SessionNumbers
from loadstone.core.plan import CHECK, Plan
from loadstone.core.record import MESSAGE_APIS, CellInfo, JournalDamage, RunInfo, Source
from loadstone.core.settings import PredictionBasis
from loadstone.core.summary import Roofline


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


_CALLS = re.compile(',"(?:tool_calls|function_call)":[{[]')
"""A tool call in messages as JSON: no text has it, for its quotation marks are escaped."""


def _read_file(workload: object) -> _File:
    """Read what a plan says of its file; an empty one where another version or program wrote
    it."""
    try:
        return msgspec.convert(workload, _File)
    except msgspec.ValidationError:
        return _File()


def run_findings(info: RunInfo, plan: Plan, begun: Sequence[bool]) -> Findings:
    """Find what there is to know about one run; `begun`: for each cell, if anything of it was
    sent."""
    file = _read_file(plan.workload)
    doubts = info.settings.deployed.doubts
    absent = [cell.load.label for cell, sent in zip(info.cells, begun, strict=True) if not sent]
    if absent and not info.settings.sweep_ended:
        yield finding(
            "cells_not_begun",
            missing=len(absent),
            cells=len(begun),
            loads=absent,
            why=info.error or f"the run is {info.status}",
        )
    yield from _journal_damaged(info.journals_damaged)
    yield from _lines_left_out(file)
    if file.lengthened:
        yield finding("prompts_lengthened", prompts=file.lengthened)
    if info.source == "simulated" and (plan.phase == CHECK).any():
        yield finding("answers_simulated")
    if doubts:
        yield finding("deployment_doubted", doubts=doubts)
    if info.target is not None and info.target.engines:
        servers = zip(info.target.urls, info.target.engines, strict=False)
        named = [{"url": url, "engine": engine or "unknown"} for url, engine in servers]
        yield finding("engines_differ", servers=named)


def _lines_left_out(file: _File) -> Findings:
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
    reasons = [{"count": count, "reason": reason} for reason, count in counts.items() if count]
    if reasons:
        left_out = sum(counts.values())
        yield finding("lines_left_out", left_out=left_out, reasons=reasons, remaining=remaining)


# --- one cell: was all sent that was asked for, and all kept? -------------------------------------


def kept_findings(info: RunInfo, plan: Plan, cell: int, records: int) -> Findings:
    """Find losses and changes of one cell. `records`: their number."""
    file, planned = _read_file(plan.workload), len(plan.rows(cell))
    damaged = [
        damage
        for damage in info.journals_damaged
        if damage.first_cell <= cell and (damage.last_cell is None or cell <= damage.last_cell)
    ]
    yield from _journal_damaged(damaged)
    sources = finding_rows()["records_missing"].sources
    if info.source in sources and _ended_by_count(info.cells[cell]) and records < planned:
        yield finding("records_missing", missing=planned - records, planned=planned)
    stop = info.cells[cell].stopped
    if stop is not None:
        case = f".{stop.rule}" if stop.rule in ("errors", "imprecise", "time") else ""
        yield finding(f"stopped{case}", seen=stop.evidence)
    yield from _messages_dropped(file, plan, info)
    if file.doubted_per_s is not None and info.cells[cell].load.process == "trace":
        yield finding("unit_doubted", rate_per_s=file.doubted_per_s)


def session_findings(plan: Plan, numbers: SessionNumbers | None) -> Findings:
    """Find what there is to know about a cell's sessions of agents."""
    if numbers is None:
        return
    yield from _unfinished(numbers)
    if not plan.graph.recorded:
        return
    overflowed = _read_file(plan.workload).overflowed
    if overflowed.get("sessions"):
        yield finding(
            "context_overflow",
            sessions=overflowed["sessions"],
            calls=overflowed.get("calls", 0),
        )
    if not plan.graph.live:
        yield finding("recorded_answers")


def _unfinished(numbers: SessionNumbers) -> Findings:
    unfinished = numbers.sessions - numbers.finished
    biased = unfinished > thresholds.UNFINISHED_SHARE * numbers.sessions
    case = ".failed" if numbers.failed else ".many" if biased else ""
    if unfinished > 0:
        yield finding(
            f"sessions_unfinished{case}",
            unfinished=unfinished,
            sessions=numbers.sessions,
            failed=numbers.failed or None,
        )


def _messages_dropped(file: _File, plan: Plan, info: RunInfo) -> Findings:
    """List parts of a data set that no endpoint is sent, and those that only chat endpoints
    take."""
    counts = Counter(file.dropped)
    target = info.target
    if (
        plan.chat
        and info.source == "measured"
        and target is not None
        and target.endpoint not in MESSAGE_APIS
    ):
        objects = ('{"messages"', '{"tools"')
        with_tools = [prompt for prompt in plan.prompts if prompt.startswith(objects)]
        counts["tools"] += sum('"check":{' not in prompt for prompt in with_tools)
        counts["tool calls"] += sum(_CALLS.search(prompt) is not None for prompt in plan.prompts)
    dropped = [{"part": part, "count": count} for part, count in counts.items() if count]
    if dropped:
        yield finding("messages_dropped", dropped=dropped)


def record_findings(*, altered: bool, impossible: bool) -> Findings:
    """Make the findings on records that were changed, or are `impossible`: with times below 0."""
    if altered:
        yield finding("records_altered")
    if impossible:
        yield finding("times_impossible")


def _journal_damaged(damaged: Sequence[JournalDamage]) -> Findings:
    if damaged:
        journals = [
            {"file": part.file, "at": part.at, "bytes": part.bytes, "batches": part.batches or None}
            for part in damaged
        ]
        yield finding("journal_damaged", journals=journals)


def _ended_by_count(cell: CellInfo) -> bool:
    """Tell if a cell has a record of each request, whatever became of it."""
    return cell.end_s is not None and cell.load.duration_s is None and not cell.stopped


# --- what a prediction rests on -------------------------------------------------------------------


def prediction_findings(info: RunInfo) -> Findings:
    """Find what the predictions of a simulated run rest on."""
    basis = info.settings.basis or PredictionBasis()
    if basis.unmeasured:
        but = "mostly on other vendors' GPUs" if basis.vendor_unmeasured else None
        but = "with other engines" if basis.engine_unmeasured else but
        yield finding(
            "unmeasured.far" if but else "unmeasured",
            unmeasured=basis.unmeasured,
            but=but,
            profile=str(basis.profile),
        )
    if basis.uncovered:
        yield finding("uncovered", classes=basis.uncovered)
    if basis.priorities_unused:
        yield finding("priorities_unused")
    if basis.adapters_guessed:
        yield finding("lora_guessed", release=basis.adapters_guessed)
    if basis.pictures_guessed:
        yield finding("pictures_guessed", machine=basis.pictures_guessed)
    if basis.moves_in_waves is True:
        yield finding("waves")
    if basis.nodes_crossed and not basis.own_profile:
        yield finding("network_guessed", nodes=basis.nodes_crossed)
    if basis.assumed:
        yield finding("model_assumed", assumed=basis.assumed)
    if basis.not_read:
        yield finding("text_alone", inputs=basis.not_read)
    if basis.not_simulated:
        yield finding("launch_only", arguments=basis.not_simulated)
    yield from _drafts_assumed(basis)
    yield from _pools(info)


LIMITS = {
    "encode": "the encode pool is full",
    "prefill": "the prefill pool is full",
    "decode": "the decode pool has no room, and requests wait for it",
    "link": "caches wait for the link between the pools",
    "none": "no pool is full",
    "both": "the encode pool is not full",
}
"""Of pools what is full, by PooledCell.limit."""


def _pools(info: RunInfo) -> Findings:
    """Say what the pools of a deployment did, load by load, and what limits."""
    loads = [
        {
            "load": cell.load.label,
            "limit": LIMITS.get(pools.limit, pools.limit),
            "encode_busy_share": pools.encode_busy,
            "encode_s": pools.encode_s,
            "prefill_tokens_per_s": pools.prefill_tokens_per_s,
            "prefill_busy_share": pools.prefill_busy,
            "decode_tokens_per_s": pools.decode_tokens_per_s,
            "transfers": pools.transfers,
            "transfer_ms": None if pools.link_s is None else pools.link_s * 1e3,
        }
        for cell, pools in zip(info.cells, info.settings.pools, strict=False)
    ]
    if loads:
        yield finding("pools", loads=loads)


def _drafts_assumed(basis: PredictionBasis) -> Findings:
    acceptance, draft = basis.assumed_acceptance, basis.draft
    if draft is UNSET and basis.own_draft:
        draft = "the model's own layers"
    if acceptance is UNSET and (draft is UNSET or draft is not None):
        return
    assumed = None if acceptance is UNSET else acceptance
    if draft:
        yield finding("drafts_assumed", acceptance=assumed, draft=draft)
    else:
        case = "draft" if assumed is None else "both"
        yield finding(f"drafts_assumed.{case}", acceptance=assumed)


# --- against what hardware allows -----------------------------------------------------------------


def beyond_hardware(light: Roofline | None, source: Source) -> Findings:
    """Find a cell that used more of the memory's bandwidth, or of the arithmetic, than there is."""
    if light is None or source not in finding_rows()["beyond_hardware"].sources:
        return
    shares = {"memory bandwidth": light.mbu, "peak FLOP/s": light.mfu}
    beyond = [
        {"share": share, "limit": limit}
        for limit, share in shares.items()
        if share is not None and share > thresholds.BEYOND
    ]
    if beyond:
        yield finding("beyond_hardware", shares=beyond)
