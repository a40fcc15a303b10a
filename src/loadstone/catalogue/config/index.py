"""Compares a model read from its config.json with what the index of its checkpoint says that it
weighs."""

import math

from msgspec.structs import replace

from loadstone.catalogue.architecture.matrix import Matrix
from loadstone.catalogue.architecture.mlp import Experts
from loadstone.catalogue.architecture.model import Layers, Model

_NEAR = 0.01
"""Padding, scales and buffers: a checkpoint may differ by so much from what is counted."""


def held_against(model: Model, total_bytes: float, estimated: bool) -> Model:
    """Return the model with a note on the index's `total_size`, and where that contradicts an
    estimate, with as many parameters as it says: the difference is taken for the width of MLPs and
    experts.
    """
    counted = model.weights_bytes()
    drafts = model.draft_parameters * counted / model.parameters
    near = any(
        math.isclose(size, total_bytes, rel_tol=_NEAR) for size in (counted, counted + drafts)
    )
    if near and not estimated:
        return model
    text = f"the checkpoint's index says {total_bytes / 1e9:.2f} GB, {counted / 1e9:.2f} GB counted"
    text += f" ({counted / total_bytes - 1:+.1%})"
    if estimated and not near:
        widened = _widen(model, round(total_bytes * model.parameters / counted))
        text += (
            ": taken as the index says"
            if widened
            else ": too far for the widths of its MLPs to explain"
        )
        model = widened or model
    return replace(model, assumed=(*model.assumed, text))


def _widen(model: Model, parameters: int) -> Model | None:
    """Return the model with MLPs as wide as makes it so many parameters; None: no width does."""
    counts = model.parameters_by_kind
    factor = 1 + (parameters - model.parameters) / max(
        1, counts.get("mlp", 0) + counts.get("experts", 0)
    )
    if not 0 < factor < math.inf:
        return None
    wider = replace(model, layers=tuple(_widened_layer(run, factor) for run in model.layers))
    left = parameters - wider.parameters
    rest = Matrix("uncounted", 1, left, "other", "column", active=0, quantisable=False)
    return replace(wider, extra=(*wider.extra, rest)) if left >= 0 else None


def _widened_layer(run: Layers, factor: float) -> Layers:
    if run.mlp is None:
        return run
    widths = {"intermediate": _width(run.mlp.intermediate, factor)}
    if isinstance(run.mlp, Experts):
        widths["shared_intermediate"] = _width(run.mlp.shared_intermediate, factor)
    return replace(run, mlp=replace(run.mlp, **widths))


def _width(width: int, factor: float) -> int:
    """Return it rounded down to what ranks and blocks of quantised weights divide as they divided
    it before."""
    part = math.gcd(width, 128 if width >= 1024 else 8)
    return width and max(part, math.floor(width * factor / part) * part)
