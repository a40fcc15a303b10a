"""Does `recommend --mix` divide classes of traffic as well as trying everything does?

    python benchmarks/planner_partitions.py [--draws 9] [--most 5] [-o PAGE.md]

Each case is a mix on one deployment, so that a division of the classes into fleets is a number of
replicas for each set of classes. Everything is tried: for each set of classes, first come and by
priority, and in each draw of the model's error (the same in all fleets, since all are one
deployment), whole fleets are simulated with more and more replicas until every class of the set
holds its bounds. The requests are others than those by which the planner chose. From these numbers
follows for every division and every number of replicas how often it holds, and what its GPUs and
misses cost. The planner's regret is what its choice costs more, by these numbers, than the best
of all that hold in 80 % of the draws; beside it stands the regret that it states.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from loadstone.catalogue import parse_deployment
from loadstone.core.plan import Plan
from loadstone.predict.simulator.cell import run_cell
from loadstone.predict.simulator.fleet import Fleet, fleet_of
from loadstone.predict.simulator.latencies import simulated_pace
from loadstone.predict.simulator.parts import hasten
from loadstone.predict.simulator.uncertainty import bounded_figures, estimate_error
from loadstone.recommend.demand.effort import Effort
from loadstone.recommend.demand.options import RecommendOptions
from loadstone.recommend.recommend import recommend_mix
from loadstone.recommend.tell.mixed import MixRecommendation
from loadstone.workload.option_fields import options_of
from loadstone.workload.options import Options
from loadstone.workload.planning import plan_of

_REQUESTS, _SEED, _MISS_COST, _CONFIDENCE = 1_500, 77, 3.0, 0.8
_LIMITS = "max_num_batched_tokens=8192,max_num_seqs=256"
DEPLOYMENT = f"llama-3.1-8b@1xh100/engine=vllm,{_LIMITS}"
_MOST_REPLICAS = 14


class Class(NamedTuple):
    """A class of a case: requests/s, lengths, bounds, priority."""

    name: str
    rate: float
    input: str
    output: str
    slo: str
    priority: int

    @property
    def text(self) -> str:
        return (
            f"{self.name},rate={self.rate:g},input={self.input},output={self.output},"
            f"priority={self.priority},slo={self.slo}"
        )


CASES: dict[str, list[Class]] = {
    "chat and documents": [
        Class("chat", 20, "512", "128", "ttft_p99<300ms,tpot_p99<25ms", 1),
        Class("documents", 3, "8k", "200", "e2e_p99<30s", 0),
    ],
    "alike": [
        Class("one", 15, "1k", "128", "ttft_p99<1s,tpot_p99<30ms", 1),
        Class("two", 10, "1k", "128", "ttft_p99<1s,tpot_p99<30ms", 0),
    ],
    "a tight and a loose bound": [
        Class("tight", 8, "256", "64", "ttft_p99<150ms,tpot_p99<12ms", 1),
        Class("loose", 12, "1k", "400", "tpot_p99<60ms", 0),
    ],
    "three": [
        Class("chat", 18, "800", "200", "ttft_p99<1s,tpot_p99<30ms", 2),
        Class("search", 9, "3k", "100", "ttft_p99<2s,tpot_p99<50ms", 1),
        Class("batch", 3, "6k", "600", "e2e_p99<60s", 0),
    ],
    "three with a tight one": [
        Class("voice", 6, "300", "60", "ttft_p99<120ms,tpot_p99<12ms", 2),
        Class("chat", 12, "1k", "150", "ttft_p99<500ms,tpot_p99<30ms", 1),
        Class("batch", 4, "4k", "300", "e2e_p99<60s", 0),
    ],
}  # fmt: skip

Key = tuple[tuple[int, ...], bool]
"""Classes of a fleet, by place, and whether it serves by priority."""


def divide(places: tuple[int, ...]) -> list[list[tuple[int, ...]]]:
    """Return every division of some places into sets."""
    if not places:
        return [[]]
    first, rest = places[0], places[1:]
    found = []
    for size in range(1 << len(rest)):
        beside = tuple(place for bit, place in enumerate(rest) if size >> bit & 1)
        left = tuple(place for place in rest if place not in beside)
        found += [[(first, *beside), *others] for others in divide(left)]
    return found


def draw_errors(plan: Plan, fleet: Fleet, draws: int) -> Any:
    """Return factors of TTFT and TPOT, draws × 2, even in the share of draws that are slower."""
    error = estimate_error(run_cell(plan, 0, fleet, grace_s=math.inf), fleet)
    factors = error.draw_factors()
    order = np.argsort(factors.max(axis=1))
    picked = order[((np.arange(draws) + 0.5) / draws * len(order)).astype(int)]
    return factors[picked]


def holds(plan: Plan, fleet: Fleet, factors: Sequence[float], bounds: dict[str, float]) -> bool:
    """Tell whether a whole fleet holds every bound where times are so many times as long."""
    first, pace = factors
    sooner = hasten(plan, pace)
    run = run_cell(sooner, 0, fleet, grace_s=math.inf)
    figures = bounded_figures(run, sooner, bounds)
    met = all(
        figures[name] * (first if ":ttft" in name else pace) <= limit
        for name, limit in bounds.items()
    )
    return met and simulated_pace(run, sooner.cells[0]).keeps_up is not False


def count_needed(classes: Sequence[Class], key: Key, draws: int) -> Any:
    """Return by draw how many replicas a fleet for a set of classes needs, by whole simulations."""
    chosen, by_priority = [classes[place] for place in key[0]], key[1]
    name = f"{DEPLOYMENT},scheduling_policy=priority" if by_priority else DEPLOYMENT
    one = fleet_of(parse_deployment(name))
    options = {"classes": [each.text for each in chosen], "requests": _REQUESTS, "seed": _SEED}
    plan = plan_of(options_of(options, Options))
    bounds = {
        f"{kind.name}:{bound}": limit for kind in plan.classes for bound, limit in kind.slo.items()
    }
    needed = []
    replicas = 1
    for factors in draw_errors(plan, replace(one, replicas=2), draws):
        replicas = max(1, replicas - 1)
        while replicas > 1 and holds(plan, replace(one, replicas=replicas), factors, bounds):
            replicas -= 1
        while replicas <= _MOST_REPLICAS and not holds(
            plan, replace(one, replicas=replicas), factors, bounds
        ):
            replicas += 1
        needed.append(replicas)
    return np.array(needed, float)


def cost(needed: Sequence[Any], replicas: Sequence[int]) -> tuple[float, float]:
    """Return the GPUs and misses of fleets with so many replicas, and how often all hold."""
    held = np.all([row <= count for row, count in zip(needed, replicas, strict=True)], axis=0)
    spent = 0.0
    for row, count in zip(needed, replicas, strict=True):
        losses = np.maximum(row - count, 1.0) + _MISS_COST * row
        spent += count + float(np.where(row <= count, 0.0, losses).mean())
    return spent, float(held.mean())


def choose_best(classes: Sequence[Class], needed: dict[Key, Any]) -> tuple[float, str]:
    """Return the least cost of every division with every number of replicas that holds."""
    best = math.inf, ""
    for sets in divide(tuple(range(len(classes)))):
        ways = [[key for key in ((each, False), (each, True)) if key in needed] for each in sets]
        for keys in product(*ways):
            rows = [needed[key] for key in keys]
            for counts in product(*(sorted({int(value) for value in row}) for row in rows)):
                spent, held = cost(rows, counts)
                if held >= _CONFIDENCE and spent < best[0]:
                    best = (
                        spent,
                        "; ".join(
                            f"{count} × {name_set(classes, key)}"
                            for key, count in zip(keys, counts, strict=True)
                        ),
                    )
    return best


def name_set(classes: Sequence[Class], key: Key) -> str:
    return " + ".join(classes[place].name for place in key[0]) + " by priority" * key[1]


def advise(classes: Sequence[Class], effort: Effort | None) -> MixRecommendation:
    asked = {
        "model": "llama-3.1-8b", "classes": [each.text for each in classes], "gpus": "h100", "engine": "vllm",
        "weights_dtype": "bf16", "kv_dtype": "bf16", "tp": (1,), "gpus_max": 40, "arguments": _LIMITS.split(","),
        "miss_cost": _MISS_COST,
    }  # fmt: skip
    return recommend_mix(options_of(asked, RecommendOptions), effort)


def judge_case(
    classes: Sequence[Class], draws: int, effort: Effort | None = None
) -> dict[str, Any]:
    """Plan one case, try everything, and return both."""
    document = advise(classes, effort)
    sets = {chosen for division in divide(tuple(range(len(classes)))) for chosen in division}
    keys = [(chosen, by) for chosen in sorted(sets) for by in (False, True)[: len(chosen)]]
    needed = {key: count_needed(classes, key, draws) for key in keys}
    least, best = choose_best(classes, needed)
    first, names = document.partitions[0], [each.name for each in classes]
    rows, counts = [], []
    for fleet in first.fleets:
        key = tuple(sorted(names.index(name) for name in fleet.classes)), fleet.by_priority
        rows.append(needed[key])
        counts.append(fleet.plan.replicas)
    spent, held = cost(rows, counts)
    chosen = "; ".join(
        f"{fleet.plan.replicas} × {' + '.join(fleet.classes)}{' by priority' * fleet.by_priority}"
        for fleet in first.fleets
    )
    return {
        "chosen": chosen,
        "gpus": first.gpus,
        "stated": first.p_slo,
        "held": held,
        "stated_regret": first.regret,
        "regret": spent - least,
        "best": best,
        "seconds": document.seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--draws", type=int, default=9)
    parser.add_argument("--most", type=int, default=len(CASES))
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    lines = [
        "| case | chosen | stated | held | best of all | regret, GPUs | stated regret | s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, classes in list(CASES.items())[: given.most]:
        row = judge_case(classes, given.draws)
        lines.append(
            f"| {name} | {row['chosen']} | {row['stated']:.0%} | {row['held']:.0%} |"
            f" {row['best']} | {row['regret']:.2f} | {row['stated_regret']:.2f} |"
            f" {row['seconds']:.0f} |"
        )
        print(lines[-1], flush=True)
    if given.output is not None:
        given.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
