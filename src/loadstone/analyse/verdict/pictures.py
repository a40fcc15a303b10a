"""Asks what became of the pictures in prompts: did they come in time, and whole?"""

import math

import numpy as np

from loadstone.analyse.pictures import visual_tokens
from loadstone.analyse.verdict import thresholds
from loadstone.analyse.verdict.finding import Findings, finding
from loadstone.analyse.verdict.requests import JudgedCell
from loadstone.core.pictures import Pictures
from loadstone.core.vectors import Array, Bools, Floats


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
    counts = _count_each(table.shape[rows], seen / table.count[rows])
    yield from _differ(table, counts, by_difference=bool(np.isnan(done.visual_tokens).any()))
    yield from _rescaled(table, counts)
    cached = np.nan_to_num(done.cached_tokens) / np.maximum(1.0, done.input_tokens)
    made = np.array([not shape.files for shape in table.shapes])[table.shape[rows]]
    reused = made & (table.group[rows] < 0) & (cached > thresholds.PICTURE_CACHED_SHARE)
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


def _count_each(numbers: Array, seen: Floats) -> dict[int, float]:
    """Return the median tokens of shapes by their number."""
    known = np.isfinite(seen)
    numbers, seen = numbers[known], seen[known]
    order = np.argsort(numbers, kind="stable")
    found, starts = np.unique(numbers[order], return_index=True)
    medians = (float(np.median(values)) for values in np.split(seen[order], starts[1:]))
    return dict(zip(found.tolist(), medians, strict=True))


def _differ(table: Pictures, counts: dict[int, float], *, by_difference: bool) -> Findings:
    """Find sizes of which the server counts other tokens than planned; by difference the markers
    around a picture are counted too."""
    excess = {
        number: count - tokens
        for number, count in counts.items()
        if (tokens := table.shapes[number].tokens) is not None
    }
    slack, around = 0.0, set(excess.values())
    if by_difference:
        # What is added to every size alike is text around a picture, in this tokenizer's tokens.
        alike = len(excess) > 1 and len(around) == 1 and 0 < min(around) <= thresholds.MARKER_TOKENS
        markers = [table.shapes[number].markers for number in excess]
        slack = min(around) if alike else max([2, *markers])
    wrong = [number for number, tokens in excess.items() if abs(tokens) > slack]
    if wrong:
        # One picture tells more than several of unlike sizes.
        number = max(
            wrong,
            key=lambda number: (-table.shapes[number].images, table.shapes[number].pixels),
        )
        shape = table.shapes[number]
        scale = math.sqrt(counts[number] / (shape.tokens or 1))
        like = f"{round(shape.width * scale)}x{round(shape.height * scale)}"
        yield finding(
            "visual_tokens_differ",
            sizes=len(wrong),
            size=shape.size,
            counted=counts[number],
            planned=shape.tokens,
            like=like,
        )


def _rescaled(table: Pictures, counts: dict[int, float]) -> Findings:
    """Find that large pictures become no more tokens than small ones, where the model's own rule
    makes more of them."""
    single = {number: count for number, count in counts.items() if table.shapes[number].images == 1}
    if not single:
        return
    first, last = (
        of_both(single, key=lambda number: table.shapes[number].pixels) for of_both in (min, max)
    )
    smallest, largest = table.shapes[first], table.shapes[last]
    area = largest.pixels / smallest.pixels
    by_rule = (largest.full or math.inf) / (smallest.full or 1)
    flat = single[last] < thresholds.FLAT_TOKENS * single[first]
    if area >= thresholds.FLAT_AREA and flat and by_rule >= thresholds.FLAT_TOKENS:
        yield finding(
            "images_rescaled",
            first=smallest.size,
            last=largest.size,
            area=area,
            least=min(single.values()),
            most=max(single.values()),
            limit=largest.limit,
        )
