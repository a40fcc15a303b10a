"""Asks what became of the pictures in prompts: did they come in time, and whole?"""

import math
import re
from collections import Counter

import numpy as np

from loadstone.analyse.pictures import visual_tokens
from loadstone.analyse.verdict import thresholds
from loadstone.analyse.verdict.finding import Findings, finding
from loadstone.analyse.verdict.requests import JudgedCell, RequestTable
from loadstone.core.pictures import Pictures
from loadstone.core.plan import Plan
from loadstone.core.vectors import Array, Bools, Floats, Ints64
from loadstone.workload.media import picture_urls

_OF_PICTURES = re.compile("image|context|too (long|large)|longer than", re.IGNORECASE)
"""Refusals of a picture, or of a prompt that is too long with it: of text alone none is sent."""


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
    yield from _cached(cell, table, done)
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


def _cached(cell: JudgedCell, table: Pictures, done: RequestTable) -> Findings:
    """Find new pictures that a prefix cache had; or, by the server's count, that its cache of
    prepared pictures had beyond those that the plan sends again. Later turns do so with all before
    them."""
    plan, rows = cell.plan, cell.plan_rows(done)
    cached = np.nan_to_num(done.cached_tokens) / np.maximum(1.0, done.input_tokens)
    reused = (cached > thresholds.PICTURE_CACHED_SHARE) & (table.group[rows] < 0)
    reused &= ~(plan.turn[rows] > 0)
    sent = cell.plan_rows(cell.requests)
    earlier = np.arange(plan.rows(cell.number).start)
    of_file = reused & _are_files(table, rows)
    if of_file.any():
        # Of a data set's, those that no other request of the run before it or of this cell has.
        present, previous = _count_urls(plan, table, sent), _count_urls(plan, table, earlier)
        reused[of_file] = [
            any(
                present[url] == 1 and url not in previous
                for url in picture_urls(plan.prompts[prompt])
            )
            for prompt in plan.prompt[rows[of_file]].tolist()
        ]
    if reused.any():
        yield finding("image_cache_helped", requests=int(reused.sum()), sent=len(done))
        return
    server = cell.server
    if server is None or not server.picture_hits or plan.has_sessions:
        return
    images, group = table.images(sent), table.group[sent]
    urls = _count_urls(plan, table, sent)
    new = int(images[(group < 0) & ~_are_files(table, sent)].sum())
    new += sum(int(images[group == number].max()) for number in np.unique(group[group >= 0]))
    new += len(urls.keys() - _count_urls(plan, table, earlier).keys()) if urls else 0
    pictures = int(images.sum())
    # Another client's pictures may have been all that is looked for beyond these requests' own.
    hits = server.picture_hits - max(0.0, (server.picture_queries or 0.0) - pictures)
    if hits > pictures - new:
        repeats = pictures - new
        yield finding("image_cache_helped.counters", hits=hits, pictures=pictures, repeats=repeats)


def _are_files(table: Pictures, rows: Ints64) -> Bools:
    """Tell of rows whether their pictures are a data set's."""
    of_shapes = np.array([bool(shape.files) for shape in table.shapes])
    return np.asarray(of_shapes[table.shape[rows]] & (table.count[rows] > 0))


def _count_urls(plan: Plan, table: Pictures, rows: Ints64) -> Counter[str]:
    """Count how often rows send each of a data set's pictures."""
    prompts = plan.prompt[rows[_are_files(table, rows)]]
    urls = Counter[str]()
    for prompt, times in zip(*np.unique(prompts, return_counts=True), strict=True):
        for url in picture_urls(plan.prompts[prompt]):
            urls[url] += int(times)
    return urls


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
        if shown and status in range(400, 502) and _OF_PICTURES.search(str(error))
    ]
    if refusals:
        yield finding("images_refused", requests=len(refusals), said=refusals[0])


def _count_each(numbers: Array, seen: Floats) -> dict[int, float]:
    """Return the median tokens of shapes by their number."""
    finite = np.isfinite(seen)
    numbers, seen = numbers[finite], seen[finite]
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
        # What is added to every size alike is text around a picture, in this tokenizer's tokens;
        # of one size alone it may be.
        alike = len(around) == 1 and 0 < min(around) <= thresholds.MARKER_TOKENS
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
