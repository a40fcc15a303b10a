"""Asks what became of the pictures in prompts: did they come in time, and whole?"""

import math

import numpy as np

from loadstone.analyse.pictures import visual_tokens
from loadstone.analyse.verdict import thresholds
from loadstone.analyse.verdict.finding import Findings, finding
from loadstone.analyse.verdict.requests import JudgedCell
from loadstone.core.pictures import Pictures
from loadstone.core.vectors import Array, Bools, Floats, Ints64


def pictures(cell: JudgedCell) -> Findings:
    """Find what there is to know of a cell's pictures."""
    table = cell.plan.pictures
    if table is None:
        return
    measured = cell.measured
    with_any = table.count[cell.plan_rows(measured)] > 0
    if not with_any.any():
        return
    late = cell.info.pictures_late
    if late > thresholds.PICTURES_LATE * len(cell.requests):
        yield finding("images_late", late=late, requests=len(cell.requests))
    yield from _refused(cell, with_any)
    done = measured.pick(with_any & measured.completed)
    if not len(done):
        return
    rows = cell.plan_rows(done)
    upload, ttft = _median(done.sent_end_s - done.sent_s), _median(done.first_s - done.sent_s)
    if cell.streams and upload > thresholds.UPLOAD_SHARE * ttft:
        yield finding("upload_dominates", upload_s=upload, share=upload / ttft)
    seen = visual_tokens(cell.plan, rows, done.visual_tokens, done.input_tokens)
    if np.isnan(seen).all():
        yield finding("image_count_unknown")
        return
    if np.nanmedian(seen) <= 0:
        yield finding("images_dropped", requests=int((seen <= 0).sum()), sent=len(done))
        return
    tokens = seen / table.count[rows]
    yield from _differ(table, rows, tokens, np.isnan(done.visual_tokens))
    yield from _rescaled(table, table.shape[rows], tokens)
    cached = np.nan_to_num(done.cached_tokens) / np.maximum(1.0, done.input_tokens)
    reused = (table.group[rows] < 0) & (cached > thresholds.PICTURE_CACHED_SHARE)
    if reused.any():
        yield finding("image_cache_helped", requests=int(reused.sum()), sent=len(done))


def _median(values: Floats) -> float:
    """Return the median of the values that are there, NaN where none is."""
    kept = values[np.isfinite(values)]
    return float(np.median(kept)) if len(kept) else math.nan


def _refused(cell: JudgedCell, with_any: Bools) -> Findings:
    """Find requests that were refused for their pictures."""
    refusals = [
        str(error)
        for error, status, shown in zip(
            cell.measured.error, cell.measured.http_status, with_any, strict=True
        )
        if shown and status == 400 and "image" in str(error).lower()
    ]
    if refusals:
        yield finding("images_refused", requests=len(refusals), said=refusals[0])


def _differ(table: Pictures, rows: Ints64, each: Floats, by_difference: Bools) -> Findings:
    """Find sizes of which the server counts other tokens than planned; by difference the markers
    around a picture are counted too."""
    numbers = table.shape[rows]
    counts = {
        number: float(np.nanmedian(each[numbers == number]))
        for number in np.unique(numbers[np.isfinite(each)]).tolist()
        if table.shapes[number].tokens is not None
    }
    excess = {
        number: count - (table.shapes[number].tokens or 0) for number, count in counts.items()
    }
    slack, around = 0.0, set(excess.values())
    if by_difference.any():
        # What is added to every size alike is text around a picture, in this tokenizer's tokens.
        alike = len(excess) > 1 and len(around) == 1 and 0 < min(around) <= thresholds.MARKER_TOKENS
        markers = [table.shapes[number].markers for number in counts]
        slack = min(around) if alike else max([2, *markers])
    wrong = {number: counts[number] for number in counts if abs(excess[number]) > slack}
    if wrong:
        number, counted = max(wrong.items(), key=lambda pair: table.shapes[pair[0]].pixels)
        shape = table.shapes[number]
        scale = math.sqrt(counted / (shape.tokens or 1))
        like = f"{round(shape.width * scale)}x{round(shape.height * scale)}"
        yield finding(
            "visual_tokens_differ",
            sizes=len(wrong),
            size=shape.size,
            counted=counted,
            planned=shape.tokens,
            like=like,
        )


def _rescaled(table: Pictures, numbers: Array, tokens: Floats) -> Findings:
    """Find that large pictures become no more tokens than small ones, where the model's own rule
    makes more of them."""
    counted = sorted(np.unique(numbers[np.isfinite(tokens)]), key=lambda n: table.shapes[n].pixels)
    first, last = table.shapes[counted[0]], table.shapes[counted[-1]]
    counts = [float(np.nanmedian(tokens[numbers == number])) for number in counted]
    area = last.pixels / first.pixels
    by_rule = (last.full or math.inf) / (first.full or 1)
    flat = counts[-1] < thresholds.FLAT_TOKENS * counts[0]
    if area >= thresholds.FLAT_AREA and flat and by_rule >= thresholds.FLAT_TOKENS:
        yield finding(
            "images_rescaled",
            first=first.size,
            last=last.size,
            area=area,
            least=min(counts),
            most=max(counts),
            limit=last.limit,
        )
