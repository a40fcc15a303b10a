"""Reads what a client states of speculative decoding: sums of steps, or an accepted length."""

from typing import Any

from loadstone.core.drafts import pool_counts
from loadstone.core.machine_figures import DraftFigures
from loadstone.interop.read.values import Value, keep

_STEPS = "spec_decode_num_drafts|num_drafts"
_DRAFTED = "spec_decode_draft_tokens|spec_decode_num_draft_tokens|num_draft_tokens"
_ACCEPTED = "spec_decode_accepted_tokens|spec_decode_num_accepted_tokens|num_accepted_tokens"
_LENGTH = (
    "spec_decode_acceptance_length|accept_length|acceptance_length|avg_spec_accept_length"
    "|server_info.avg_spec_accept_length|server_info.internal_states.0.avg_spec_accept_length"
)
_POSITIONS = "spec_decode_per_position_acceptance_rates|per_position_acceptance_rates"
_METHOD = (
    "speculative_algorithm|server_info.speculative_algorithm|spec_decode_method"
    "|speculative_method|speculative_config.method"
)
_TOKENS = (
    "num_speculative_tokens|speculative_config.num_speculative_tokens"
    "|speculative_num_steps|server_info.speculative_num_steps"
)


def read_drafts(document: Value) -> DraftFigures | None:
    """Read the figures of a document; None where nothing was guessed, or nobody says so."""
    steps, drafted, accepted = (document.amount(path) for path in (_STEPS, _DRAFTED, _ACCEPTED))
    by_position = keep(share.amount() for share in document.items(_POSITIONS))
    if drafted and accepted is not None:
        return pool_counts("stated", steps, drafted, accepted, by_position)
    length = document.positive(_LENGTH)
    if length is None or length <= 1:
        return None
    return DraftFigures(source="stated", accepted_length=length, by_position=by_position)


def read_speculation(document: Value, drafts: DraftFigures | None) -> dict[str, Any]:
    """Read the arguments that turn speculation on, as far as they are told; {} where it was off."""
    method, tokens = document.text(_METHOD, limit=40), document.whole(_TOKENS)
    if not tokens and drafts is not None:
        tokens = len(drafts.by_position)
        if drafts.steps and drafts.drafted:
            tokens = tokens or round(drafts.drafted / drafts.steps)
    found: dict[str, Any] = {}
    if method and method.lower() != "none":
        found["speculation"] = method
    elif drafts is not None and not tokens:
        found["speculation"] = "on"
    return found | ({"num_speculative_tokens": str(tokens)} if tokens else {})
