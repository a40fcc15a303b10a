"""What a reader should know of a simulated cell: what its prediction stands on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadstone.verdict.finding import Finding


def prediction_findings(settings: Mapping[str, Any]) -> list[Finding]:
    """`settings`: of a simulated run; its `basis` says what the numbers were made from."""
    basis = settings.get("basis")
    if not isinstance(basis, Mapping):
        return []
    found = [_unmeasured(basis), _assumed(basis), _drafts(basis)]
    return [finding for finding in found if finding is not None]


def _unmeasured(basis: Mapping[str, Any]) -> Finding | None:
    if not (what := basis.get("unmeasured")):
        return None
    far = bool(basis.get("vendor_unmeasured"))
    return Finding(
        "unmeasured",
        "warning" if far else "info",
        f"no measurement of {what} is behind this: it is predicted from the data sheet and from what was measured "
        + ("on other vendors' GPUs" if far else "elsewhere")
        + f" (profile {basis.get('profile')})",
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


def _drafts(basis: Mapping[str, Any]) -> Finding | None:
    if (acceptance := basis.get("assumed_acceptance")) is None:
        return None
    return Finding(
        "drafts_assumed",
        "info",
        f"of the tokens that are guessed, {acceptance:.0%} are taken to be accepted each, and the draft to be "
        + (
            "the model's own layer"
            if basis.get("own_draft")
            else "one more layer of the model, which takes no memory"
        ),
        "Give the acceptance that your engine reports (--acceptance).",
    )
