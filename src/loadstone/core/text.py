"""Makes words of engines harmless: what a server said becomes one short printable line; and values
CSV. No I/O."""

import csv
import io
import json
import re
from collections.abc import Iterable

_WORDLESS = "no further word"
_PAGE_BYTES = 8192
_MARKUP = re.compile(rb"<(title|style|script)\b[^<]*</[^<>]*>|<[^<>]*>", re.IGNORECASE)
"""The parts of a web page that its reader does not see: a title, which repeats the heading; and
tags."""


def error_text(body: bytes) -> str:
    """Make one printable line of an error body: its message where it is an OpenAI error object,
    else its beginning.
    """
    try:
        error = json.loads(body.decode("utf-8-sig", "replace"))
        for _ in range(2):
            if isinstance(error, dict):
                error = error.get("error") or error.get("message") or error.get("detail") or error
        text = error if isinstance(error, str) else json.dumps(error, ensure_ascii=False)
    except (ValueError, RecursionError):
        begin = body[:_PAGE_BYTES].lstrip(b"\xef\xbb\xbf \t\r\n")
        # Proxies and gateways refuse with a page.
        page = begin[:9].lower().startswith((b"<html", b"<!doctype", b"<head", b"<body", b"<h1"))
        return (page and excerpt(_MARKUP.sub(b" ", begin))) or excerpt(body) or _WORDLESS
    return excerpt(text) or _WORDLESS


def escape_formula(value: object) -> object:
    """Make a cell of CSV: text that a spreadsheet takes for a formula gets an apostrophe, what is
    missing is empty.
    """
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return f"'{value}"
    return "" if value is None else value


def printable(text: str) -> str:
    """Replace what a terminal would obey; lines stay."""
    return "".join(
        character if character.isprintable() or character == "\n" else "\ufffd"
        for character in text
    )


def excerpt(output: bytes | str, limit: int = 200) -> str:
    """Cut engine output to its beginning, harmless for terminals and logs: one line, printable,
    short."""
    body = output.encode("utf-8", "replace") if isinstance(output, str) else output
    text = printable(" ".join(body[: 4 * limit].decode("utf-8", "replace").split()))
    return text if len(text) <= limit and len(body) <= 4 * limit else text[: limit - 1] + "…"


def to_csv(heads: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Write values under heads as CSV; text that a spreadsheet would run as a formula is marked as
    text."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(heads)
    writer.writerows(map(escape_formula, row) for row in rows)
    return text.getvalue()
