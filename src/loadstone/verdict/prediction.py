"""What a reader should know of a simulated cell: what its prediction stands on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadstone.verdict.finding import Finding

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
        f"no measurement of {what} is behind this: it is predicted from the data sheet and from what was measured "
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
        f"the model's config.json left open, and was taken as: {'; '.join(map(str, texts))}",
        "See `loadstone catalogue models NAME`; where it is not so, write it into the config.json.",
    )


def _network(basis: Mapping[str, Any]) -> Finding | None:
    if not isinstance(nodes := basis.get("nodes_crossed"), int) or basis.get("own_profile"):
        return None
    return Finding(
        "network_guessed",
        "warning",
        f"one replica reaches over {nodes} nodes, and no measurement that the model was fitted on does: what a "
        "message between nodes takes at least is a guess, its bandwidth the adapters' data sheet",
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
        said.append(f"of the tokens that are guessed, {acceptance:.0%} are taken to be accepted each")
    if draft is None:
        said.append(
            "no draft is named and the model has none of its own: guessing is taken to cost a pass through one more "
            "layer of the model, as an EAGLE head's, and no memory"
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
