"""Expands several deployments in one text, `llama-3.1-70b@4xh200/engine={vllm,sglang},tp={2,4}`,
and where commas part."""

import math
import re
from itertools import product

from loadstone.core.errors import InputError

MOST_ALTERNATIVES = 1000
_PIECE = re.compile(r'"(?:[^"\\]|\\.)*"?|[^"]')
"""A text in quotes, as JSON has them, or one character."""
_ALTERNATIVES = re.compile(r'\{([^{}"]+)\}')
"""Braces with something in them, and no quotes, which JSON would have."""


def split_commas(text: str) -> list[str]:
    """Return the parts between commas, stripped, without empty ones. Commas within braces, brackets
    and quotes part nothing: `tp2,hf_overrides={"a": 1, "b": 2}` has two parts.
    """
    parts, depth = [""], 0
    for piece in _PIECE.findall(text):
        depth = max(0, depth + (piece in "{[") - (piece in "}]"))
        if piece == "," and not depth:
            parts.append("")
        else:
            parts[-1] += piece
    return [part.strip() for part in parts if part.strip()]


def expand(text: str) -> list[str]:
    """Return every deployment that a text with braces stands for, in order, the last braces
    changing first; JSON in braces is left as it is. Raises InputError: braces without an end, an
    alternative that is empty, too many.

        >>> expand("llama-3.1-8b@1x{h100,h200}/tp1")
        ['llama-3.1-8b@1xh100/tp1', 'llama-3.1-8b@1xh200/tp1']
    """
    characters = _PIECE.findall(text)
    if characters.count("{") != characters.count("}"):
        raise InputError(
            f"deployment {text!r}: braces that are not closed; write e.g. engine={{vllm,sglang}}"
        )
    pieces = _ALTERNATIVES.split(
        text
    )  # what is between the braces, and at every second place what is in them
    choices = [piece.split(",") if number % 2 else [piece] for number, piece in enumerate(pieces)]
    if any(not choice.strip() for values in choices[1::2] for choice in values):
        raise InputError(
            f"deployment {text!r}: an alternative in braces is empty; write e.g. tp={{2,4}}"
        )
    count = math.prod(map(len, choices))
    if count > MOST_ALTERNATIVES:
        raise InputError(
            f"deployment {text!r}: its braces make {count:,} deployments; write at most"
            f" {MOST_ALTERNATIVES}"
        )
    return [
        "".join(piece.strip() if n % 2 else piece for n, piece in enumerate(chosen))
        for chosen in product(*choices)
    ]
