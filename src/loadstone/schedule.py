"""From a workload and loads to a Plan: which requests, how long, when. Everything is drawn here, before the run.

Each purpose has its own generator, seeded by (seed, purpose, …), so that one choice never shifts another. Measured
requests have the same sequence of lengths in every cell of a run: cells then differ by their load alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from loadstone.errors import InputError
from loadstone.records import Load, Plan
from loadstone.workload.dataset import Dataset
from loadstone.workload.synthetic import Length, Synthetic

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_LENGTHS, _GROUPS, _ARRIVALS, _ORDER = range(4)

CYCLE_MIN_REQUESTS = 1024
"""A closed loop that runs by time goes round at least this many requests."""


def arrivals(load: Load, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """`count` intended times in seconds, the first one gap after 0.

    constant  gaps 1/rate
    poisson   exponential gaps, mean 1/rate
    gamma     gamma gaps, shape k = burstiness, mean 1/rate: k < 1 bunches, 1 is Poisson, k > 1 evens out
    """
    import numpy as np

    mean = 1 / load.value
    if load.process == "constant":
        gaps = np.full(count, mean)
    elif load.process == "poisson":
        gaps = rng.exponential(mean, count)
    else:
        gaps = rng.gamma(load.burstiness, mean / load.burstiness, count)
    return np.cumsum(gaps)


def default_requests(load: Load) -> int:
    """How many requests a cell measures when nothing is said: enough slots' turns, or a minute of arrivals."""
    if load.kind == "burst":
        return int(load.value)
    if load.kind == "rate":
        return max(32, math.ceil(60 * load.value))
    return max(32, 8 * int(load.value), min(512, 16 * int(load.value)))


def default_warmup(load: Load) -> int:
    """As many requests as fill the engine: the concurrency; a second's worth of a rate; one before a burst."""
    if load.kind == "concurrency":
        return int(load.value)
    return max(1, math.ceil(min(load.value, load.max_concurrency or math.inf))) if load.kind == "rate" else 1


def make_plan(
    workload: Synthetic | Dataset,
    loads: Sequence[Load],
    *,
    seed: int = 0,
    requests: Sequence[int] | None = None,
    warmup: int | None = None,
    output: Length | None = None,
) -> Plan:
    """The plan of a run with one cell per load.

    requests  measured requests per cell; None: `default_requests`, or the duration's worth
    warmup    requests per cell before the measured ones; None: `default_warmup`
    output    for datasets: demanded lengths where the file states none
    Raises InputError where a dataset has no length to ask for.
    """
    import numpy as np

    columns: dict[str, list[NDArray[Any]]] = {name: [] for name in Plan.COLUMNS}
    for cell, load in enumerate(loads):
        warm = default_warmup(load) if warmup is None else warmup
        count = warm + (requests[cell] if requests is not None else _count(load))
        intended = np.full(count, np.nan)
        if load.kind == "burst":
            intended[:] = 0.0
        elif load.kind == "rate":
            rng = np.random.default_rng([seed, _ARRIVALS, cell])
            intended = arrivals(load, count, rng)
            if load.duration_s is not None and requests is None:
                intended = _cut(intended, load, warm, rng)
                count = len(intended)
        phase = np.ones(count, np.uint8)
        phase[:warm] = 0
        columns["cell"].append(np.full(count, cell, np.int32))
        columns["phase"].append(phase)
        columns["intended_s"].append(intended)
        if isinstance(workload, Synthetic):
            rows = _synthetic(workload, count, seed)
        else:
            rows = _dataset(workload, count, warm, output, seed)
        # Drawn with the measured ones first: how long the warm-up is does not shift what is measured.
        rows = {name: np.roll(values, warm) for name, values in rows.items()}
        if load.kind == "concurrency" and warm > 1:
            rows["output_tokens"] = _staggered(rows["output_tokens"], warm)
        for name, values in rows.items():
            columns[name].append(values)
    joined = {name: np.concatenate(parts) for name, parts in columns.items()}
    prompts: list[str] = []
    if isinstance(workload, Dataset):
        joined["prompt"], prompts = _by_first_use(joined["prompt"], workload.prompts)
    return Plan(
        seed=seed,
        cells=tuple(loads),
        workload=describe(workload, output),
        exact_output=isinstance(workload, Synthetic) or output is not None,
        prompts=prompts,
        chat=isinstance(workload, Dataset) and workload.format in ("sharegpt", "messages"),
        **joined,
    )


def _count(load: Load) -> int:
    if load.duration_s is None:
        return default_requests(load)
    if load.kind == "rate":
        # Mostly enough for the duration; `_cut` draws more where it is not.
        expected = load.value * load.duration_s
        return math.ceil(expected + 6 * math.sqrt(expected) + 6)
    return max(CYCLE_MIN_REQUESTS, 4 * int(load.value))


def _cut(intended: NDArray[np.float64], load: Load, warm: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """The arrivals up to `duration_s` after the warm-up ended, and at least one."""
    import numpy as np

    duration = load.duration_s or 0.0
    start = intended[warm - 1] if warm else 0.0
    while intended[-1] - start < duration:
        intended = np.concatenate([intended, intended[-1] + arrivals(load, len(intended), rng)])
    return intended[: max(warm + 1, int(np.searchsorted(intended, start + duration)))]


def _synthetic(workload: Synthetic, count: int, seed: int) -> dict[str, NDArray[np.int32]]:
    import numpy as np

    # A stream for each: a longer cell begins like a shorter one.
    inputs, outputs = np.random.default_rng([seed, _LENGTHS]).spawn(2)
    prefix = workload.prefix_tokens > 0
    groups = np.random.default_rng([seed, _GROUPS]).integers(workload.prefix_groups, size=count, dtype=np.int32)
    return {
        "input_tokens": workload.input.draw(inputs, count),
        "output_tokens": workload.output.draw(outputs, count),
        "prefix_group": groups if prefix else np.full(count, -1, np.int32),
        "prefix_tokens": np.full(count, workload.prefix_tokens, np.int32),
        "prompt": np.full(count, -1, np.int32),
    }


def _dataset(
    workload: Dataset, count: int, warm: int, output: Length | None, seed: int
) -> dict[str, NDArray[np.int32]]:
    """Measured requests, here first, take the prompts shuffled by seed; warm-up takes them from the end of that."""
    import numpy as np

    order = np.random.default_rng([seed, _ORDER]).permutation(len(workload.prompts))
    picks = np.concatenate([order[np.arange(count - warm) % len(order)], order[::-1][np.arange(warm) % len(order)]])
    lengths = np.array([-1 if n is None else n for n in workload.output_tokens], np.int32)[picks]
    if output is not None:
        drawn = output.draw(np.random.default_rng([seed, _LENGTHS]), count)
        lengths = np.where(lengths < 0, drawn, lengths)
    elif (lengths < 0).any():
        raise InputError("--output: the dataset does not say how long answers should be; give e.g. --output 256")
    return {
        "input_tokens": np.full(count, -1, np.int32),
        "output_tokens": lengths.astype(np.int32),
        "prefix_group": np.full(count, -1, np.int32),
        "prefix_tokens": np.zeros(count, np.int32),
        "prompt": picks.astype(np.int32),
    }


def _staggered(output_tokens: NDArray[np.int32], warm: int) -> NDArray[np.int32]:
    """Warm-up answers of a closed loop cut to evenly spread parts of their length.

    All slots start at once. With whole answers they would also end at once, and prefill bursts would go round the
    loop for the whole cell; with the remaining lives of a loop long under way (uniform, for equal lengths) the
    first measured requests already meet the steady state.
    """
    import numpy as np

    shares = (np.arange(warm) + 1) / warm
    staggered = output_tokens.copy()
    staggered[:warm] = np.maximum(1, np.rint(output_tokens[:warm] * shares))
    return staggered


def _by_first_use(picks: NDArray[np.int32], prompts: list[str]) -> tuple[NDArray[np.int32], list[str]]:
    import numpy as np

    used, first, inverse = np.unique(picks, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(used), np.int32)
    rank[order] = np.arange(len(used))
    return rank[inverse].astype(np.int32), [prompts[used[i]] for i in order]


def describe(workload: Synthetic | Dataset, output: Length | None) -> dict[str, Any]:
    """The workload as the run's papers name it."""
    if isinstance(workload, Synthetic):
        return workload.describe()
    import msgspec

    return {
        "kind": "dataset",
        "format": workload.format,
        "sha256": workload.sha256,
        "prompts": len(workload.prompts),
        "skipped": workload.skipped,
        "output": msgspec.to_builtins(output),
    }
