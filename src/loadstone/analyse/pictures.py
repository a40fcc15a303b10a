"""Divides a cell's numbers by the size of the pictures in its prompts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from loadstone.analyse.classes import rows_of
from loadstone.analyse.metrics import label_rows, measure_part
from loadstone.core import arrays
from loadstone.core.parts import SizePart
from loadstone.core.pictures import Pictures, PictureShape
from loadstone.core.plan import Plan
from loadstone.core.vectors import Array, Floats, Ints64

if TYPE_CHECKING:
    import pyarrow as pa

_READ = ("input_tokens", "visual_tokens", "sent_end_s", "body_bytes")
COLUMNS = tuple(dict.fromkeys((*arrays.COLUMNS, "cell", "request_id", *_READ)))
_MOST_SIZES, _GROUPS = 8, 4
"""Sizes that have a row each; of more, so many groups of them by their area."""


def visual_tokens(plan: Plan, rows: Ints64, counted: Floats, inputs: Floats) -> Floats:
    """Return the visual tokens of requests by the plan's rows: those that the server states, else
    its prompt tokens beyond the text that was asked for; NaN where nothing tells, as of later
    turns, whose prompts have the pictures before them, too."""
    text_tokens = plan.input_tokens[rows]
    beyond = np.where(text_tokens > 0, inputs - text_tokens, np.nan)
    seen = np.where(np.isnan(counted), beyond, counted)
    return np.where(plan.turn[rows] > 0, np.nan, seen)


def sizes_of(
    read: Iterable[pa.RecordBatch], plan: Plan, duration_s: float | None, streams: bool = True
) -> list[SizePart]:
    """Compute the numbers of a cell's measured requests by the size of their pictures; none where
    they have none. `read`: the records, with COLUMNS."""
    pictures = plan.pictures
    if pictures is None:
        return []
    groups = _group_sizes(pictures)
    places: list[Ints64] = []
    facts: list[Floats] = []

    def keys(batch: pa.RecordBatch) -> Ints64:
        found = rows_of(batch, plan)
        places.append(found)
        columns = [batch.column(name).to_numpy(zero_copy_only=False) for name in _READ]
        facts.append(np.array(columns, np.float64))
        has_any = (found >= 0) & (pictures.count[found] > 0)
        return np.where(has_any, groups[pictures.shape[found]], -1)

    rows, label = label_rows(read, keys)
    plan_rows, columns = np.concatenate(places), np.concatenate(facts, axis=1)
    tokens = float(np.nansum(rows["tokens"][rows["measured"]]))
    parts = []
    for number in np.unique(label[label >= 0]).tolist():
        chosen = label == number
        part = measure_part(rows[chosen], tokens, streams)
        facts_of = _facts(plan, plan_rows[chosen], rows[chosen], columns[:, chosen], duration_s)
        shapes = [pictures.shapes[place] for place in np.flatnonzero(groups == number)]
        parts.append(SizePart(size=_name(shapes), **facts_of, **msgspec.structs.asdict(part)))
    return parts


def _name(shapes: Sequence[PictureShape]) -> str:
    """Write the size of shapes, or those of the smallest and the largest, of single pictures where
    there are any."""
    if len({shape.size for shape in shapes}) == 1:
        return shapes[0].size
    single = [shape for shape in shapes if shape.images == 1] or shapes
    ordered = sorted(single, key=lambda shape: shape.pixels)
    return " to ".join(dict.fromkeys((ordered[0].size, ordered[-1].size)))


def _group_sizes(pictures: Pictures) -> Ints64:
    """Number the shapes by their size, or the group of sizes, smallest first."""
    pixels = np.array([shape.pixels / shape.images for shape in pictures.shapes])
    sizes, first, numbers = np.unique(
        [shape.size for shape in pictures.shapes], return_index=True, return_inverse=True
    )
    order = np.argsort(np.argsort(pixels[first]))[numbers]
    return order if len(sizes) <= _MOST_SIZES else order * _GROUPS // len(sizes)


def _facts(
    plan: Plan, places: Ints64, rows: Array, columns: Floats, duration_s: float | None
) -> dict[str, Any]:
    """Return what is of a size's pictures alone."""
    pictures = plan.pictures
    assert pictures is not None  # noqa: S101
    inputs, counted, sent_end_s, body_bytes = columns
    done, images = arrays.is_completed(rows), pictures.images(places)
    of_shapes = np.array([(shape.tokens or np.nan) / shape.images for shape in pictures.shapes])
    seen = visual_tokens(plan, places, counted, inputs) / images
    share = (sent_end_s - rows["sent"]) / (rows["first"] - rows["sent"])

    def middle(values: Floats) -> float | None:
        kept = values[done & np.isfinite(values)]
        return float(np.median(kept)) if len(kept) else None

    return {
        "images": int(images[done].sum()),
        "images_per_s": arrays.divide(int(images[done].sum()), duration_s),
        "visual_tokens": middle(seen),
        "visual_tokens_planned": middle(of_shapes[pictures.shape[places]]),
        "upload_share": middle(share),
        "body_bytes": middle(body_bytes),
    }
