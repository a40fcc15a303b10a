"""Makes the findings of an import: each kind has its severity and remedy."""

from collections.abc import Sequence

from loadstone.analyse.imported_run import CUT_AT_END
from loadstone.core.verdict import Finding

_SHOWN = 8
_DOUBT = "Ask the source; draw no conclusions from this row."
_SEVERITIES = {
    "error": ("empty_completed", "none_completed", "request_errors"),
    "info": (
        "as_stated",
        "columns_shifted",
        "copies",
        "counts_differ",
        "lengths_not_used",
        "passed_over",
        "tokens_bundled",
        "unreadable_characters",
    ),
}
"""All others are warnings."""
_REMEDIES = {
    "as_stated": (
        "Nothing here could be checked against requests; save them too if the tool can"
        " (docs/import.md)."
    ),
    "broken": "Copy them again, or repeat their measurements.",
    "columns_shifted": "Corrected here; ask the source for its own file if the ITL tail matters.",
    "copies": "Nothing is missing: each measurement was read once.",
    "counts_differ": "The server's count is used here; the tool's own figures use the client's.",
    CUT_AT_END: (
        "Percentiles leave them out, and long requests are cut off more often: measure longer."
    ),
    "empty_completed": (
        "They failed, and make latencies and requests/s look better. Find out what the server"
        " answered."
    ),
    "excluded": "Do not fit on it or score with it.",
    "impossible_number": "Ask the source what it means; the rest of the file was read.",
    "invalid_by_tool": "The tool that measured it does not count it: do not compare it.",
    "clock_doubted": "Ask the source in which unit requests' start times are.",
    "interrupted": "Measure again to the end.",
    "lengths_not_used": "The averages are used.",
    "lines_left_out": (
        "Perhaps the tool was killed while writing: copy the file again, or measure again what is"
        " missing."
    ),
    "lists_differ": "Save the results again; the summary statistics were kept.",
    "load_not_told": "State it, e.g. --set concurrency=16 or --set rate=4.",
    "no_number": "Left out.",
    "none_completed": "Find out what the server answered, and measure again.",
    "overload": (
        "The server does not keep up with this rate: latencies grow with the run's length. Lower"
        " the rate."
    ),
    "passed_over": "Name a file itself to see what is wrong with it.",
    "places_not_filled": (
        "The client was too slow, or sent too few requests: these are not the results of that"
        " concurrency."
    ),
    "rate_differs": (
        "The client did not keep to its schedule: these are not the results of that rate. Measure"
        " again."
    ),
    "request_errors": (
        "Percentiles leave out failed requests: fix the cause, or read them with the attainment."
    ),
    "requests_missing": (
        "Results here are of the requests in the file: copy the file again, or read the tool's own"
        " totals."
    ),
    "tokens_bundled": "Use TPOT, which does not depend on how tokens were bundled.",
    "tokens_doubtful": (
        "Answers ended early or failed in the stream while the requested length was counted;"
        " measure with usage."
    ),
    "unreadable_characters": (
        "Save the file as UTF-8 and import it again, or give the names with --set."
    ),
    "unit_doubted": (
        "One of them is in another unit than it says: ask the source; draw no conclusions."
    ),
    "waits_left_out": (
        "Measure with --save-detailed: latencies then count from when requests should have been"
        " sent."
    ),
}
"""All others share one: numbers that cannot all be true."""


def list_some(items: Sequence[object], between: str = ", ") -> str:
    """List the first few of what may be many."""
    rest = f"{between}and {len(items) - _SHOWN:,} more" if len(items) > _SHOWN else ""
    return between.join(map(str, items[:_SHOWN])) + rest


def finding(
    kind: str, evidence: str, severity: str | None = None, remedy: str | None = None
) -> Finding:
    """Make a finding. `severity`, `remedy`: where they are not those of the tables."""
    severity = severity or next(
        (name for name, kinds in _SEVERITIES.items() if kind in kinds), "warning"
    )
    remedy = remedy or _REMEDIES.get(kind, _DOUBT)
    return Finding(kind, severity, evidence, remedy)  # type: ignore[arg-type]
