"""The table a person reads at a glance: one row per cell, definitions below it, findings by number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from loadstone.analyse.imported_run import as_stated
from loadstone.analyse.run_facts import steady_window
from loadstone.core.text import excerpt
from loadstone.core.units import show_load, show_number, show_seconds
from loadstone.report.data.wording import show_p, show_share

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    Row = list[tuple[str, str | Text]]
    """The cells of a row, each with the head of its column."""

_LOAD_HEADS = {"concurrency": "conc", "rate": "req/s", "burst": "burst"}
_FIRST_PARTS = 5
"""Of a predicted TTFT, by name."""
UNBOUNDED = "~"
UNBOUNDED_NOTE = (
    "~: p99 of the sample, without an upper 95 % bound, which takes 368 requests, or more if slow ones come together"
)


def heading(document: Mapping[str, Any]) -> str:
    """What was measured, in one line."""
    target = document["target"] or {}
    engine = " ".join(part for part in (target.get("engine"), target.get("engine_version")) if part)
    model = excerpt(target.get("model") or "?", 120)
    engine = f"simulated {engine}" if document.get("source") == "simulated" else engine or "unknown engine"
    servers = len(target.get("urls") or ())
    if servers > 1:
        engine = f"first of {servers} servers: {engine}"  # the others were not asked who they are
    parts = [engine, model, target.get("endpoint", "?")]
    return " · ".join([*parts, f"plan {document['plan_id'][:6]} seed {document['seed']}"])


def render(document: Mapping[str, Any]) -> RenderableType:
    """The table with its foot, for a rich console. Everything the engine said is shown as plain text."""
    from rich.console import Group
    from rich.text import Text

    cells = document["cells"]
    of_run = [f"{said['kind']}: {said['evidence']}. {said['remedy']}" for said in document.get("findings", ())]
    if not cells:
        return Group(Text("nothing was sent"), *map(Text, of_run))
    findings: list[dict[str, str]] = []
    table = _table(cells, findings)
    lines = [*_definitions(cells, document.get("source") == "simulated"), *_first_token(document.get("first_token"))]
    lines += [*_findings(findings), *of_run]
    parts = [_parts(cells, key, *heads) for key, heads in _PARTS.items() if any(cell.get(key) for cell in cells)]
    dialect = [_dialect(cells)] if "dialect" in cells[0] else []
    return Group(Text(heading(document)), table, *parts, *dialect, *(Text(line) for line in lines))


def empty(title: str | None = None) -> Table:
    """A table without rows, as all of ours look."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    return Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1), header_style="bold", title=title)


def _table(cells: list[dict[str, Any]], findings: list[dict[str, str]]) -> Table:
    from rich.text import Text

    clock = _clock(cells)
    lit = any(_lit(cell, "tpot_ratio") is not None for cell in cells)
    # Where nothing failed its column is empty, and makes room for one more within 120 characters.
    failing = not lit or any(_failed(cell["requests"]) for cell in cells)
    rows: list[Row] = []
    load_head, loads = _loads(cells)
    for cell, load in zip(cells, loads, strict=True):
        metrics, requests = cell["metrics"], cell["requests"]
        ttft, e2e = metrics[f"ttft{clock}_s"], metrics[f"e2e{clock}_s"]
        throughput = (steady_window(cell) or metrics)["output_tokens_per_s"]
        rows.append(
            [
                (load_head, load),
                ("ok", str(_done(requests))),
                *([("failed", _failed(requests))] if failing else []),
                ("out tok/s", show_number(throughput, 4)),
                ("TTFT p50", _at(ttft, "p50")),
                ("p99", _p99(cell, ttft)),
                ("TPOT p50", _at(metrics["tpot_s"], "p50")),
                ("p99", _p99(cell, metrics["tpot_s"])),
                ("ITL p99", _at(metrics["itl_s"], "p99")),
                ("E2E p50", _at(e2e, "p50")),
                ("p99", _p99(cell, e2e)),
                *([("of light", percent(_lit(cell, "tpot_ratio")))] if lit else []),
                ("trusted", Text(*_trusted(cell, findings))),
            ]
        )
    return _of_rows(rows, left="trusted")


def _of_rows(rows: list[Row], left: str) -> Table:
    """A table of rows that have the same heads; of numbers, but for the column `left`."""
    table = empty()
    for head, _ in rows[0]:
        table.add_column(head, justify="left" if head == left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(shown for _, shown in row))
    return table


def _parts(cells: list[dict[str, Any]], key: str, head: str, name: Callable[[Mapping[str, Any]], str]) -> Table:
    """One row for each turn, server or piece of a profile, of each cell; tokens are a request's mean.

    What a row is of is one column: where the table is too wide, that is what each piece of it begins with.
    """
    from rich.text import Text

    clock = _clock(cells)
    rows: list[Row] = []
    load_head, loads = _loads(cells)
    for cell, load in zip(cells, loads, strict=True):
        for part in cell.get(key, ()):
            requests, cached, given = part["requests"], part["cached_input_tokens"], part["input_tokens"]
            ttft, e2e = part[f"ttft{clock}_s"], part[f"e2e{clock}_s"]
            rows.append(
                [
                    (f"{load_head} · {head}", Text(f"{load} · {name(part)}")),
                    ("ok", str(_done(requests))),
                    ("failed", _failed(requests)),
                    ("in tok", _figure(part["mean_input_tokens"])),
                    ("cached", f"{cached / given:.0%}" if cached is not None and given else "-"),
                    ("out tok", _figure(part["mean_output_tokens"])),
                    ("share", f"{part['token_share']:.0%}" if part["token_share"] is not None else "-"),
                    ("TTFT p50", _at(ttft, "p50")),
                    ("p99", _p99(cell, ttft)),
                    ("TPOT p50", _at(part["tpot_s"], "p50")),
                    ("E2E p50", _at(e2e, "p50")),
                    ("p99", _p99(cell, e2e)),
                ]
            )
    return _of_rows(rows, left=rows[0][0][0])


def _dialect(cells: list[dict[str, Any]]) -> Table:
    """Another tool's numbers, a column for each cell, each with its definition."""
    first = cells[0]["dialect"]
    table = empty()
    table.add_column(first["tool"], no_wrap=True)
    for load in _loads(cells)[1]:
        table.add_column(load, justify="right", no_wrap=True)
    table.add_column("is")
    for key, definition in first["definitions"].items():
        values = [cell["dialect"]["metrics"][key] for cell in cells]
        if any(value is not None for value in values):
            table.add_row(key, *map(_figure, values), definition)
    return table


def _figure(value: float | None) -> str:
    """Counts whole, all else to four digits."""
    if value is not None and float(value).is_integer():
        return show_number(value, len(f"{abs(value):.0f}"))
    return show_number(value, 4)


def _piece(part: Mapping[str, Any]) -> str:
    start, end = part["from"], part["to"]
    return f"{start:g} for {part['seconds']:g} s" if start == end else f"{start:g}–{end:g} in {part['seconds']:g} s"


_PARTS: dict[str, tuple[str, Callable[[Mapping[str, Any]], str]]] = {
    "by_turn": ("turn", lambda part: str(part["turn"] + 1)),
    "by_replica": ("server", lambda part: excerpt(str(part["url"]), 60)),
    "by_piece": ("load", _piece),
}


def _load(cell: Mapping[str, Any]) -> str:
    return show_load(float(cell["load"]["value"]))


def _loads(cells: list[dict[str, Any]]) -> tuple[str, list[str]]:
    """The head of a column of loads, and each cell's: a number, and its unit where they are of several kinds."""
    kinds = {cell["load"]["kind"] for cell in cells}
    if len(kinds) > 1:
        return "load", [f"{_load(cell)} {_LOAD_HEADS[cell['load']['kind']]}" for cell in cells]
    return _LOAD_HEADS[kinds.pop()], [_load(cell) for cell in cells]


def _at_load(cell: Mapping[str, Any]) -> str:
    """Names a cell at the head of a line, which a number alone, as of a finding, would not."""
    return {"concurrency": "concurrency {}", "rate": "{} req/s", "burst": "burst of {}"}[cell["load"]["kind"]].format(
        _load(cell)
    )


def _clock(cells: list[dict[str, Any]]) -> str:
    """Open loops are judged from the intended time: waiting that a slow server causes is latency.

    Other tools do not tell it, and it is from sending then.
    """
    told = any(cell["metrics"]["e2e_intended_s"] is not None for cell in cells)
    return "_intended" if cells[0]["load"]["kind"] != "concurrency" and told else ""


def _done(requests: Mapping[str, Any]) -> int:
    """Imported runs may not tell how many were short."""
    return (requests["ok"] or 0) + (requests["short"] or 0)


def _failed(requests: Mapping[str, Any]) -> str:
    sent, done = requests["sent"], _done(requests)
    return "?" if sent is None else str(sent - done) if sent != done else ""


def _at(values: Mapping[str, Any] | None, name: str) -> str:
    return show_seconds(values[name]) if values is not None else "-"


def _p99(cell: Mapping[str, Any], values: Mapping[str, Any] | None) -> str:
    """The p99, marked where the sample cannot bound it from above."""
    if values is None:
        return "-"
    unbounded = values["ci95"]["p99"][1] is None and not as_stated(cell)
    return (UNBOUNDED if unbounded else "") + show_seconds(values["p99"])


def _lit(cell: Mapping[str, Any], name: str) -> float | None:
    """Of the cell's shares of what its hardware allows."""
    share = (cell.get("light") or {}).get(name)
    return float(share) if share is not None else None


def percent(share: float | None) -> str:
    return "-" if share is None else f"{show_number(100 * share, 2)} %"


def _light(cells: list[dict[str, Any]]) -> list[str]:
    """What `of light` is, and how much of bandwidth and arithmetic was used, from the least to the most."""
    said = []
    if any(_lit(cell, "tpot_ratio") is not None for cell in cells):
        said.append("of light: the roofline's TPOT / TPOT p50")
    for name, of in (("MBU", "memory bandwidth"), ("MFU", "peak FLOP/s")):
        shares = [share for cell in cells if (share := _lit(cell, name.lower())) is not None]
        if shares:
            least, most = percent(min(shares)), percent(max(shares))
            said.append(f"{name} {least if least == most else f'{least} to {most}'} of {of}")
    return [" · ".join(said)] if said else []


def _energy(cells: list[dict[str, Any]]) -> list[str]:
    """What GPUs drew, in the order of the loads."""
    power = [((cell.get("gpu") or {}).get("power_w") or {}).get("mean") for cell in cells]
    each = [(steady_window(cell) or cell["metrics"]).get("j_per_output_token") for cell in cells]
    if all(value is None for value in power):
        return []
    gpus = max((cell.get("gpu") or {}).get("gpus", 0) for cell in cells)
    said = f"{gpus} GPU{'s' * (gpus > 1)} drew {', '.join(map(show_number, power))} W"
    if any(value is not None for value in each):
        said += f" · {', '.join(map(show_number, each))} J per output token"
    return [said]


def _trusted(cell: Mapping[str, Any], findings: list[dict[str, str]]) -> tuple[str, str]:
    numbers = []
    for finding in cell["verdict"]["findings"]:
        if finding["severity"] == "info":
            continue
        if finding not in findings:
            findings.append(finding)
        numbers.append(str(findings.index(finding) + 1))
    if not numbers:
        return ("as stated", "") if as_stated(cell) else ("yes", "green")
    return f"NO ({','.join(numbers)})", "bold red"


def _definitions(cells: list[dict[str, Any]], simulated: bool) -> list[str]:
    clock = _clock(cells)
    whole = [load for cell, load in zip(cells, _loads(cells)[1], strict=True) if steady_window(cell) is None]
    window = "steady window" if len(whole) < len(cells) else "whole cell"
    if 0 < len(whole) < len(cells):
        window += f", at {', '.join(whole)} over the whole cell"
    lines = [
        f"TTFT, E2E from {_since(cells)} · TPOT = (tT−t1)/(T−1) · ITL per token · out tok/s over the {window}",
        _intervals(cells, clock) if simulated and not cells[0].get("measured_by") else _measured_by(cells),
    ]
    lines += [
        f"{_at_load(cell)}: the plan shares {metrics['shared_input_tokens'] / metrics['input_tokens']:.1%} of input "
        f"tokens{' (besides earlier turns of sessions)' if 'by_turn' in cell else ''}, "
        f"{metrics['cached_input_tokens'] / metrics['input_tokens']:.1%} were in the cache"
        for cell in cells
        if (metrics := cell["metrics"]).get("shared_input_tokens")
        and metrics["cached_input_tokens"] is not None
        and metrics["input_tokens"]
    ]
    lines += _light(cells)
    lines += _energy(cells)
    lines += dict.fromkeys(said for cell in cells if (said := cell["client"].get("selftest")) is not None)
    if any(
        _p99(cell, cell["metrics"][name]).startswith(UNBOUNDED)
        for cell in cells
        for name in (f"ttft{clock}_s", "tpot_s", f"e2e{clock}_s")
    ):
        lines.append(UNBOUNDED_NOTE)
    lines += [
        f"{_at_load(cell)}: {finding['evidence']}"
        for cell in cells
        for finding in cell["verdict"]["findings"]
        if finding["kind"] == "rate_by_chance"
    ]
    lines += [f"{_at_load(cell)}: {'; '.join(said)}" for cell in cells if (said := _bounds(cell))]
    return lines


def _since(cells: list[dict[str, Any]]) -> str:
    if cells[0]["load"]["kind"] == "concurrency":
        return "sending (closed loop)"
    return "the intended time (open loop)" if _clock(cells) else "sending (open loop, intended times unknown)"


def _measured_by(cells: list[dict[str, Any]]) -> str:
    """By whose client; of our own, how late it was at the most."""
    if tool := cells[0].get("measured_by"):
        return f"measured by {tool}"
    capped = any(found["kind"] == "cap_held_back" for cell in cells for found in cell["verdict"]["findings"])
    held = "; held back by --max-concurrency, not by the client" if capped else ""
    return (
        f"{cells[0]['client']['clock']} clock: receive lag p99 {_worst(cells, 'receive_lag_p99_s')}, "
        f"sends late p99 {_worst(cells, 'send_lag_p99_s')} (worst cell{held})"
    )


def _bounds(cell: Mapping[str, Any]) -> list[str]:
    """Whether what was asked for with --slo was met."""
    said = []
    for bound in cell.get("slo", ()):
        name, met, p = bound.get("metric", bound["bound"]), "met" if bound["met"] else "MISSED", bound.get("p_met")
        value = ("" if "_" in name else "slowest ") + show_seconds(bound["measured_s"])
        sure = "" if p is None else f", {show_p(p)}"
        said.append(f"{name} < {show_seconds(bound['limit_s'])} {met} ({value}){sure}")
    if (attainment := cell["metrics"].get("attainment")) is not None:
        each = cell.get("slo_per_request_s") or {}
        limits = " and ".join(f"{name} < {show_seconds(limit_s)}" for name, limit_s in each.items())
        limits = limits or ("these limits" if said else "the SLO")
        goodput = show_number(cell["metrics"]["goodput_per_s"])
        said.append(f"{show_share(attainment)} of requests sent meet {limits}, goodput {goodput} req/s")
    return said


def _intervals(cells: list[dict[str, Any]], clock: str) -> str:
    """How far a prediction may be off, by the table's clock; at the largest load whose numbers are to be trusted."""
    cell = max(
        [cell for cell in cells if cell["verdict"]["trusted"]] or cells, key=lambda each: each["load"]["value"]
    )
    shown = [
        f"{name} {show_seconds(metric['low'])} to {show_seconds(metric['high'])}"
        for name, key in (("TTFT p50", f"ttft{clock}_s"), ("TPOT p50", "tpot_s"), ("E2E p50", f"e2e{clock}_s"))
        if (metric := cell["metrics"][key]) is not None and metric.get("low") is not None
    ]
    if not shown:
        return "simulated"
    return f"simulated; 80 % intervals at {_at_load(cell)}: " + ", ".join(shown)


def _first_token(content: object) -> list[str]:
    """Of what a prediction's TTFT consists, the largest parts by name."""
    if content is None:
        return []
    import msgspec

    from loadstone.predict.step_time.step import FirstToken

    try:
        first = msgspec.convert(content, FirstToken)
    except msgspec.ValidationError:
        return []
    parts = sorted(first.parts_s.items(), key=lambda part: -part[1])
    shown = [f"{excerpt(name, 40)} {show_seconds(part_s)}" for name, part_s in parts[:_FIRST_PARTS]]
    if rest := parts[_FIRST_PARTS:]:
        shown.append(f"other {show_seconds(sum(part_s for _, part_s in rest))}")
    tokens = f"{first.prompt_tokens:,} token{'s' if first.prompt_tokens != 1 else ''}"
    return [f"TTFT of {tokens} alone, {show_seconds(sum(first.parts_s.values()))}: {' · '.join(shown)}"]


def _worst(cells: list[dict[str, Any]], name: str) -> str:
    known = [cell["client"][name] for cell in cells if cell["client"][name] is not None]
    return show_seconds(max(known, default=None), 2)


def _findings(findings: list[dict[str, str]]) -> list[str]:
    return [
        f"({number}) {finding['kind']}: {finding['evidence']}. {finding['remedy']}"
        for number, finding in enumerate(findings, 1)
    ]
