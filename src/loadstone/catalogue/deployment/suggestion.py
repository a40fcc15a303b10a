"""Guesses what a text that is no deployment was probably meant to be."""

import re
from functools import cache

from loadstone.catalogue.find import gpu_names, is_catalogued, node_names

EXAMPLE = "llama-3.1-70b@8xh200"
_APART = " \t@,/"
_MOST_CHARACTERS = 1000


@cache
def _hardware() -> re.Pattern[str]:
    """Return a name of the catalogue between other words, a count before it (`8xh200`, `8 h200`) or
    behind it (`h200x8`)."""
    names = "|".join(
        re.escape(name) for name in sorted({*gpu_names(), *node_names()}, key=len, reverse=True)
    )
    return re.compile(
        rf"(?<![\w.-])(?:([0-9]+)\s*[x×*]?\s*)?({names})(?:\s*[x×*]\s*([0-9]+))?(?![\w.-])",
        re.IGNORECASE,
    )


def suggest(text: str) -> str | None:
    """Return the deployment that has the parts of `text`, whatever is between them: before the GPUs
    the model, behind them options. Without a model that of the example, without GPUs those of the
    example; None without either.

        >>> suggest("llama-3.1-8b 8xh200,tp8"), suggest("2 h100"), suggest("llama-3.1-8b")
        ('llama-3.1-8b@8xh200/tp8', 'llama-3.1-70b@2xh100', 'llama-3.1-8b@8xh200')
    """
    text = text[:_MOST_CHARACTERS].strip()
    match = _hardware().search(text)
    model, _, gpus = EXAMPLE.partition("@")
    if match is None:
        return f"{text}@{gpus}" if is_catalogued(text) else None
    hardware = f"{match[1] or match[3] or 1}x{match[2].lower()}"
    options = [
        part for part in re.split(rf"[{_APART}]+", text[match.end() :]) if part and part != hardware
    ]
    return f"{text[: match.start()].strip(_APART) or model}@{hardware}" + (
        f"/{','.join(options)}" if options else ""
    )
