"""What a reader should know of a simulated cell: what its prediction stands on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadstone.analyse.verdict.finding import Finding

_OWN = "the model's own layers"


def prediction_findings(settings: Mapping[str, Any]) -> list[Finding]:
    """`settings`: of a simulated run; its `basis` says what the numbers were made from."""
    basis = settings.get("basis")
    if not isinstance(basis, Mapping):
        return []
    found = [_unmeasured(basis), _network(basis), _assumed(basis), _drafts(basis)]
    return [finding for finding in found if finding is not None]


def _unmeasured(basis: Mapping[str, Any]) -> Finding | None:
    if not (what := basis.get("unmeasured")):
        return None
    far = ", mostly on other vendors' GPUs" if basis.get("vendor_unmeasured") else ""
    far = ", with other engines" if basis.get("engine_unmeasured") else far
    return Finding(
        "unmeasured",
        "warning" if far else "info",
        f"this prediction has no measurement of {what} behind it, only the data sheet and measurements "
        f"elsewhere{far} (profile {basis.get('profile')})",
        "Measure one or two loads there and give them to `loadstone calibrate`"
        + (" before you buy on these numbers." if far else "."),
    )


def _assumed(basis: Mapping[str, Any]) -> Finding | None:
    if not (texts := basis.get("assumed")):
        return None
    return Finding(
        "model_assumed",
        "info",
        f"assumed where the model's config.json is silent: {'; '.join(map(str, texts))}",
        "See `loadstone catalogue models NAME`; where an assumption is wrong, write the value into the config.json.",
    )


def _network(basis: Mapping[str, Any]) -> Finding | None:
    if not isinstance(nodes := basis.get("nodes_crossed"), int) or basis.get("own_profile"):
        return None
    return Finding(
        "network_guessed",
        "warning",
        f"one replica spans {nodes} nodes, and no measurement that the performance model was fitted on does: the "
        "latency of a message between nodes is a guess, its bandwidth that of the adapters' data sheet",
        "Measure one or two loads there and give them to `loadstone calibrate`, or compare with replicas that stay "
        "within a node.",
    )


def _drafts(basis: Mapping[str, Any]) -> Finding | None:
    acceptance = basis.get("assumed_acceptance")
    draft = basis.get("draft", _OWN if basis.get("own_draft") else None)  # `own_draft`: as runs said it before
    if acceptance is None and ("draft" not in basis or draft is not None):
        return None
    said = []
    if acceptance is not None:
        said.append(f"each draft token is assumed to be accepted with a probability of {acceptance:.0%}")
    if draft is None:
        said.append(
            "no draft is named and the model has none of its own: drafting is assumed to cost a pass through one "
            "more layer of the model, like an EAGLE head, and no memory"
        )
    else:
        said.append(f"the draft is {draft}")
    remedies = ["Give the acceptance that your engine reports (--acceptance)."] if acceptance is not None else []
    if draft is None:
        remedies.append("Name the draft that your engine has (draft=MODEL in the deployment).")
    return Finding(
        "drafts_assumed",
        "warning" if draft is None else "info",
        "; ".join(said),
        " ".join(remedies),
    )
