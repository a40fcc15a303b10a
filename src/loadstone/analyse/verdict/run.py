"""What a reader should know of a run, or of one of its cells, that its records cannot tell: whether all was kept,
what was left out before anything was sent, what a prediction rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loadstone.analyse.verdict.finding import finding, rules
from loadstone.core.plan import Load
from loadstone.core.record import JournalDamage, RunInfo
from loadstone.core.summary import Finding


def run_findings(
    loads: Sequence[Load],
    begun: Sequence[bool],
    workload: Mapping[str, Any],
    why: str,
    deployment: Mapping[str, Any] | None = None,
    damaged: Sequence[JournalDamage] = (),
) -> list[Finding]:
    """Findings of one run.

    `loads`: of its cells, as planned; `begun`: whether anything of each was sent; `workload`: as Plan.workload;
    `why`: what ended the run; `deployment`: what the user stated that it runs on; `damaged`: journals; both as in
    run.json.
    """
    findings = [
        _cells_not_begun([load for load, sent in zip(loads, begun, strict=True) if not sent], len(loads), why),
        _journal_damaged(damaged),
        _lines_left_out(workload),
        _prompts_lengthened(workload),
        _deployment_doubted(deployment or {}),
    ]
    return [each for each in findings if each is not None]


def _cells_not_begun(missing: Sequence[Load], planned: int, why: str) -> Finding | None:
    if not missing:
        return None
    labels = ", ".join(load.label for load in missing)
    return finding("cells_not_begun", f"{len(missing)} of {planned} planned cells never began ({labels}): {why}")


def _lines_left_out(workload: Mapping[str, Any]) -> Finding | None:
    """Of a file: lines that could not be used, and items that hold no prompt to send."""
    reasons = workload.get("skipped")
    if isinstance(reasons, Mapping):
        remaining = workload.get("requests") or 0
        counts = dict(reasons)
    else:
        remaining = workload.get("prompts") or 0
        counts = {
            "cannot be read": workload.get("bad") or 0,
            "no prompt to send": reasons or 0,
            "too long for the model": workload.get("too_long") or 0,
        }
    left = sum(counts.values())
    if not left:
        return None
    why = ", ".join(f"{count:,} {reason}" for reason, count in counts.items() if count)
    return finding(
        "lines_left_out", f"{left:,} of the file's items were left out ({why}), {remaining:,} remain to be sent"
    )


def _prompts_lengthened(workload: Mapping[str, Any]) -> Finding | None:
    if not (count := workload.get("lengthened")):
        return None
    return finding(
        "prompts_lengthened",
        f"{count:,} of the trace's prompts are shorter than what the server adds to every prompt, and were "
        "lengthened to that",
    )


def _deployment_doubted(deployment: Mapping[str, Any]) -> Finding | None:
    if not (doubts := deployment.get("doubts")):
        return None
    return finding(
        "deployment_doubted",
        f"the server may not be the deployment that was stated: {'; '.join(map(str, doubts))}",
    )


# --- one cell: was all that was measured kept? ----------------------------------------------------------------------


def kept_findings(info: RunInfo, cell: int, records: int, planned: int) -> list[Finding]:
    """Findings of one cell. `records`: that it has; `planned`: requests."""
    damaged = [
        damage
        for damage in info.journals_damaged
        if damage.first_cell <= cell and (damage.last_cell is None or cell <= damage.last_cell)
    ]
    findings = [_journal_damaged(damaged), _records_missing(info, cell, records, planned)]
    return [each for each in findings if each is not None]


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
    """A cell that ends by count has a record of each request, whatever became of it."""
    measured, by_time = info.cells[cell], info.cells[cell].load.duration_s is not None
    holds = info.source in rules()["records_missing"].sources
    if not holds or measured.end_s is None or by_time or records >= planned:
        return None
    return finding(
        "records_missing",
        f"{planned - records:,} of the {planned:,} requests of this cell have no record, though it ran to its end",
    )


# --- what a prediction rests on -------------------------------------------------------------------------------------


def prediction_findings(settings: Mapping[str, Any]) -> list[Finding]:
    """`settings`: of a simulated run; its `basis` says what the numbers were made from."""
    basis = settings.get("basis")
    if not isinstance(basis, Mapping):
        return []
    findings = [_unmeasured(basis), _network_guessed(basis), _model_assumed(basis), _drafts_assumed(basis)]
    return [each for each in findings if each is not None]


def _unmeasured(basis: Mapping[str, Any]) -> Finding | None:
    if not (setup := basis.get("unmeasured")):
        return None
    far = ", mostly on other vendors' GPUs" if basis.get("vendor_unmeasured") else ""
    far = ", with other engines" if basis.get("engine_unmeasured") else far
    return finding(
        "unmeasured.far" if far else "unmeasured",
        f"this prediction has no measurement of {setup} behind it, only the data sheet and measurements "
        f"elsewhere{far} (profile {basis.get('profile')})",
    )


def _model_assumed(basis: Mapping[str, Any]) -> Finding | None:
    if not (texts := basis.get("assumed")):
        return None
    return finding("model_assumed", f"assumed where the model's config.json is silent: {'; '.join(map(str, texts))}")


def _network_guessed(basis: Mapping[str, Any]) -> Finding | None:
    if not isinstance(nodes := basis.get("nodes_crossed"), int) or basis.get("own_profile"):
        return None
    return finding(
        "network_guessed",
        f"one replica spans {nodes} nodes, and no measurement that the performance model was fitted on does: the "
        "latency of a message between nodes is a guess, its bandwidth that of the adapters' data sheet",
    )


def _drafts_assumed(basis: Mapping[str, Any]) -> Finding | None:
    acceptance = basis.get("assumed_acceptance")
    # `own_draft`: the key of older runs.
    draft = basis.get("draft", "the model's own layers" if basis.get("own_draft") else None)
    if acceptance is None and ("draft" not in basis or draft is not None):
        return None
    parts = (
        []
        if acceptance is None
        else [f"each draft token is assumed to be accepted with a probability of {acceptance:.0%}"]
    )
    if draft is not None:
        return finding("drafts_assumed", "; ".join([*parts, f"the draft is {draft}"]))
    parts.append(
        "no draft is named and the model has none of its own: drafting is assumed to cost a pass through one "
        "more layer of the model, like an EAGLE head, and no memory"
    )
    return finding("drafts_assumed.draft" if acceptance is None else "drafts_assumed.both", "; ".join(parts))
