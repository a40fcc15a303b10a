"""Points: published measurements, one a line of CSV, and the deployment and traffic each was taken with.

Columns: source, engine, engine_version, model, precision, kv_dtype, gpu, num_gpus, nodes, tp, dp, input_len,
output_len, prefix_len, arrival, arrival_value, num_prompts, ttft_ms_median, tpot_ms_median, itl_ms_median,
e2e_ms_median, output_tok_s, moe_tp, moe_ep, mode, range_ratio, stat, exclude, sweep, fold, notes, deployment. Missing
columns and empty cells are missing values. `deployment` is a shorthand (catalogue/shorthand.py) in place of the
columns that say what was measured.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from pathlib import Path

import msgspec

from loadstone.core.errors import InputError

MOST_ROWS = 200_000
MOST_CHARACTERS = 20_000

_DECIDE = (
    "num_gpus", "nodes", "tp", "dp", "moe_tp", "moe_ep", "input_len", "output_len", "prefix_len", "arrival_value",
    "num_prompts", "range_ratio",
)  # fmt: skip
_MEASURED = ("ttft_ms_median", "tpot_ms_median", "output_tok_s")
_MISSING = ("nan", "n/a", "na", "none", "null", "-")
"""How tables write, beside an empty cell, that nothing was measured."""
_MOST = 1e9
"""No count, length or load is larger."""


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement. Times in seconds. `row` counts from 1, without the header."""

    row: int
    source: str = ""
    engine: str = ""
    engine_version: str = ""
    model: str = ""
    precision: str = ""
    kv_dtype: str = ""
    gpu: str = ""
    gpus: int | None = None
    nodes: int | None = None
    tp: int | None = None
    dp: int | None = None
    moe_tp: int | None = None
    moe_ep: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    prefix_tokens: int | None = None
    load: str = ""
    load_value: float | None = None
    requests: int | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    itl_s: float | None = None
    output_tokens_per_s: float | None = None
    mode: str = ""
    range_ratio: float = 1.0
    stat: str = ""
    exclude: str = ""
    sweep: str = ""
    fold: str = ""
    notes: str = ""
    deployment: str = ""
    wrong: str = ""
    """The first cell that decides a prediction, or was measured, and cannot be read; empty: none."""


class Unpredictable(Exception):
    """Why a point has no prediction: one line."""


def read_points(path: Path) -> list[Point]:
    """All rows of a points file. Raises InputError where it cannot be read as one."""
    try:
        with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
            csv.field_size_limit(MOST_CHARACTERS)
            reader = csv.DictReader(file)
            names = reader.fieldnames or ()
            missing = [name for name in ("engine", "model", "gpu") if name not in names]
            if missing and "deployment" not in names:
                columns = f"column{'s' if missing[1:] else ''} {', '.join(missing)}"
                form = "a points file is CSV in UTF-8, its first line names them, or deployment in their place"
                raise InputError(f"{path}: no {columns}; {form}")
            points = []
            for number, row in enumerate(reader, 1):
                if number > MOST_ROWS:
                    raise InputError(f"{path}: more than {MOST_ROWS} rows; split it")
                points.append(_point(number, row))
            return points
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; check the path and who may read it") from error
    except csv.Error as error:
        raise InputError(f"{path}: line {reader.line_num + 1}: {error}; correct the line") from error


def _point(number: int, row: Mapping[str | None, object]) -> Point:
    def text(name: str) -> str:
        return str(row.get(name) or "").strip()

    def value(name: str) -> float | None:
        try:
            found = float(text(name))
        except ValueError:
            return None
        return found if math.isfinite(found) else None

    def whole(name: str) -> int | None:
        found = value(name)
        return None if found is None or abs(found) > _MOST else int(found)

    def seconds(name: str) -> float | None:
        found = value(name)
        return None if found is None or found <= 0 else found / 1e3

    return Point(
        row=number,
        source=text("source"),
        engine=text("engine"),
        engine_version=text("engine_version"),
        model=text("model"),
        precision=text("precision"),
        kv_dtype=text("kv_dtype"),
        gpu=text("gpu"),
        gpus=whole("num_gpus"),
        nodes=whole("nodes"),
        tp=whole("tp"),
        dp=whole("dp"),
        moe_tp=whole("moe_tp"),
        moe_ep=whole("moe_ep"),
        input_tokens=whole("input_len"),
        output_tokens=whole("output_len"),
        prefix_tokens=whole("prefix_len"),
        load=text("arrival"),
        load_value=math.inf if text("arrival_value") == "inf" else value("arrival_value"),
        requests=whole("num_prompts"),
        ttft_s=seconds("ttft_ms_median"),
        tpot_s=seconds("tpot_ms_median"),
        itl_s=seconds("itl_ms_median"),
        output_tokens_per_s=value("output_tok_s") or None,
        mode=text("mode"),
        range_ratio=value("range_ratio") or 1.0,
        stat=text("stat"),
        exclude=text("exclude"),
        sweep=text("sweep"),
        fold=text("fold"),
        notes=text("notes"),
        deployment=text("deployment"),
        wrong=next(filter(None, (_wrong(name, text(name)) for name in (*_DECIDE, *_MEASURED))), ""),
    )


def _wrong(name: str, text: str) -> str:
    """What is the matter with a cell, in one line; empty where it is a number that can be, or nothing at all."""
    if not text or (name == "arrival_value" and text == "inf") or (name in _MEASURED and text.lower() in _MISSING):
        return ""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if name == "range_ratio" and not 0 < found <= 1:
        return f"{name} {text[:40]!r} is not a share of the length; write a number above 0, up to 1"
    return "" if 0 <= found <= _MOST else f"{name} {text[:40]!r} is not a possible number"
