"""Would the planner have chosen well among what others measured?

    python benchmarks/planner_choice.py POINTS.csv      best as annotate.py (research/calibration)
    writes them

Groups are the rows of one model, GPU, lengths, precision and load that were measured in several
layouts or on several engines; rows that are one deployment, named differently, count once. In each
the coefficients are those of a fit without the model's family. Of each row the throughput per GPU
is predicted, and the probability that TPOT stays below a bound (the group's median of what was
measured); the choice is the row with the largest product. Other rules are the largest throughput of
those that hold with 40 %, and the planner's own: the least mean regret over draws of the errors,
where a miss costs three times, or half, the best that holds. A choice is right where it meets the
bound, or breaks it by less than a tenth, and its measured throughput per GPU is within a tenth of
the best that meets it. Also printed: the same without a bound; how often bounds held that were
stated to hold with some probability, in ten bins, over bounds of 0.7 to 1.4 times the group's
median; and what a measurement is worth, advised against random. `--held` writes what `recommend`
says of that beside its probabilities.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadstone.calibrate.points import deployment_of, read_points
from loadstone.calibrate.update import SIGMA
from loadstone.calibrate.validate import Scored, score
from loadstone.core.statistics.distribution import Z80
from loadstone.predict.simulator.uncertainty import AS_WIDE, TAILS
from loadstone.recommend.judge.errors import COMMON
from loadstone.recommend.tell.reasons import HeldShare

Floats = NDArray[np.float64]
NEAR = 1.1
LIKELY = 0.4
MISS_COSTS = (0.5, 3.0)


class Row(NamedTuple):
    """Predicted and measured TPOT (s) and output tokens/s per GPU; spread: of ln TPOT."""

    name: str
    engine: str
    gpus: int
    tpot: float
    rate: float
    spread: float
    measured_tpot: float
    measured_rate: float
    facts: dict[str, object]

    def holds(self, bound: float) -> float:
        from scipy.stats import t

        wide = Z80 / t.ppf(0.9, TAILS)
        return float(t.cdf(math.log(bound / self.tpot) / (self.spread * wide), TAILS))


def row_of(each: Scored) -> Row | None:
    point = each.point
    users, output = each.users, point.output_tokens
    if each.skipped_because or not users or not output or point.load != "concurrency":
        return None
    if "tpot" not in each.measured or "ttft" not in each.measured or not point.gpus:
        return None
    ttft, tpot = each.measured["ttft"], each.measured["tpot"]
    gpus = deployment_of(point).gpus
    measured = users * output / (ttft + (output - 1) * tpot) / gpus
    predicted = (
        users * output / (each.predicted["ttft"] + (output - 1) * each.predicted["tpot"]) / gpus
    )
    spread = math.log(each.high["tpot"] / each.low["tpot"]) / (2 * Z80)
    name = f"{each.deployment}"
    facts = facts_of(each, ttft, tpot)
    return Row(
        name, point.engine, gpus, each.predicted["tpot"], predicted, spread, tpot, measured, facts
    )


def facts_of(each: Scored, ttft: float, tpot: float) -> dict[str, object]:
    """What another predictor asks of a row; see accuracy_peer.py."""
    deployment, point = deployment_of(each.point).decoder, each.point
    return {
        "engine": deployment.engine, "gpu": deployment.gpu.name, "model": point.model, "family": point.fold,
        "weights": deployment.weights_dtype, "kv": deployment.kv_dtype, "tp": deployment.tp, "dp": deployment.dp,
        "attention_dp": deployment.attention_dp, "ep": deployment.ep, "gpus": deployment.gpus, "users": each.users,
        "input_tokens": point.input_tokens, "output_tokens": point.output_tokens, "ttft_s": ttft, "tpot_s": tpot,
        "predicted_ttft_s": each.predicted["ttft"], "predicted_tpot_s": each.predicted["tpot"],
        "deployment": each.deployment,
    }  # fmt: skip


def groups_of(scored: Sequence[Scored]) -> list[list[Row]]:
    members: dict[tuple[object, ...], dict[tuple[object, ...], Row]] = defaultdict(dict)
    for each in scored:
        row, point = row_of(each), each.point
        if row is None:
            continue
        key = (
            point.model, point.precision, point.gpu, point.input_tokens, point.output_tokens, point.range_ratio,
            point.load_value, point.prefix_tokens,
        )  # fmt: skip
        made = deployment_of(point).decoder
        layout = (
            made.engine,
            made.gpus,
            made.tp,
            made.dp,
            made.ep,
            made.attention_dp,
            made.kv_dtype,
        )
        members[key].setdefault(layout, row)  # of repeats and versions the first
    return [list(rows.values()) for rows in members.values() if len(rows) > 1]


def choose(rows: Sequence[Row], bound: float, least: float | None = None) -> Row:
    """`least`: the largest throughput of those that hold with this probability, the surest if none
    does."""
    if least is None:
        return max(rows, key=lambda row: row.rate * row.holds(bound))
    return max(
        rows,
        key=lambda row: (
            row.holds(bound) >= least,
            row.rate if row.holds(bound) >= least else -row.tpot,
        ),
    )


def choose_by_regret(rows: Sequence[Row], bound: float, miss_cost: float, draws: int = 500) -> Row:
    """The least mean regret: a row that holds costs GPUs per token, one that does not what the best
    that does costs, and `miss_cost` times that."""
    rng = np.random.default_rng(1)
    spread, axes = np.linalg.eigh(covariance_of(rows))
    wide = AS_WIDE * np.sqrt(TAILS / rng.chisquare(TAILS, (draws, 1)))
    normal = rng.standard_normal((draws, len(rows))) * np.sqrt(np.maximum(spread, 0.0)) * wide
    slower = np.exp(normal @ axes.T)
    cost = slower / np.array([row.rate for row in rows])
    holds = slower * np.array([row.tpot for row in rows]) <= bound
    least = np.where(holds, cost, np.inf).min(1, keepdims=True)
    least = np.where(np.isfinite(least), least, cost.max(1, keepdims=True))
    regret = np.where(holds, cost, (1 + miss_cost) * least) / least
    return rows[int(np.argmin(regret.mean(0)))]


def covariance_of(rows: Sequence[Row]) -> Floats:
    """Of ln TPOT of the rows: those of one engine have much of it in common."""
    spread, engines = np.array([row.spread for row in rows]), np.array([row.engine for row in rows])
    same = engines[:, None] == engines
    common: Floats = (
        np.where(np.eye(len(rows)) > 0, 1.0, COMMON["tpot"]) * same * spread[:, None] * spread
    )
    return common


def is_right(rows: Sequence[Row], chosen: Row, bound: float) -> bool:
    best = max((row.measured_rate for row in rows if row.measured_tpot <= bound), default=0.0)
    return chosen.measured_tpot <= NEAR * bound and NEAR * chosen.measured_rate >= best


def calibration(groups: Sequence[Sequence[Row]]) -> list[tuple[str, int, float, float]]:
    stated: list[tuple[float, bool]] = []
    for rows in groups:
        middle = median(row.measured_tpot for row in rows)
        for factor in (0.7, 0.85, 1.0, 1.2, 1.4):
            stated += [
                (row.holds(factor * middle), row.measured_tpot <= factor * middle) for row in rows
            ]
    table = []
    for low in range(10):
        here = [
            each
            for each in stated
            if low / 10 <= each[0] < (low + 1) / 10 or (low == 9 and each[0] == 1)
        ]
        if here:
            means = (
                float(np.mean([each[0] for each in here])),
                float(np.mean([each[1] for each in here])),
            )
            table.append((f"{low * 10} to {low * 10 + 10} %", len(here), *means))
    return table


def held_shares(groups: Sequence[Sequence[Row]]) -> list[HeldShare]:
    """How often bounds held that were stated to hold with 60 % or more, the surest first."""
    shares = []
    for label, _, _, held in calibration(groups)[::-1]:
        low, high = (int(word) for word in label.removesuffix(" %").split(" to "))
        words = "90% or more" if high == 100 else f"{low} to {high}%"
        if low >= 60:
            shares.append(HeldShare(low / 100, words, round(held, 2)))
    return shares


def worth(groups: Sequence[Sequence[Row]], seed: int = 0) -> dict[str, float]:
    """Regret, as a share of the best throughput per GPU: by prediction, after measuring the row
    that is advised, a random one, the one that looks best."""
    rng = np.random.default_rng(seed)
    regrets: dict[str, list[float]] = {"none": [], "advised": [], "random": [], "best looking": []}
    for rows in groups:
        if len(rows) < 3:
            continue
        best = max(row.measured_rate for row in rows)
        regrets["none"].append(1 - choose_rate(rows, {}).measured_rate / best)
        advised = advise(rows, rng)
        looking = max(range(len(rows)), key=lambda at: rows[at].rate)
        others = [
            1 - choose_rate(rows, {at: rows[at]}).measured_rate / best for at in range(len(rows))
        ]
        regrets["advised"].append(others[advised])
        regrets["random"].append(float(np.mean(others)))
        regrets["best looking"].append(others[looking])
    return {name: float(np.mean(values)) for name, values in regrets.items()} | {
        "groups": len(regrets["none"])
    }


def choose_rate(rows: Sequence[Row], known: dict[int, Row]) -> Row:
    """The largest throughput per GPU, once some were measured: engines' errors have much in
    common."""
    shifts: dict[str, float] = {}
    for at, row in known.items():
        gap = math.log(row.measured_rate / rows[at].rate)
        shifts[row.engine] = COMMON["tpot"] * gap
    values = [
        known[at].measured_rate if at in known else row.rate * math.exp(shifts.get(row.engine, 0.0))
        for at, row in enumerate(rows)
    ]
    return rows[int(np.argmax(values))]


def advise(rows: Sequence[Row], rng: np.random.Generator, worlds: int = 512) -> int:
    """The row whose measurement lowers the expected regret most, by the covariance that the planner
    has."""
    count = len(rows)
    covariance = covariance_of(rows)
    logs = np.log([row.rate for row in rows]) + rng.multivariate_normal(
        np.zeros(count), covariance, worlds
    )
    rates = np.exp(logs)
    noise = SIGMA["tpot"] ** 2
    prior = np.log([row.rate for row in rows])
    after = []
    for at in range(count):
        gain = covariance[:, at] / (covariance[at, at] + noise)
        seen = prior + gain[None, :] * (logs[:, at : at + 1] - prior[at])
        chosen = seen.argmax(axis=1)
        after.append(float((rates.max(axis=1) - rates[np.arange(worlds), chosen]).mean()))
    return int(np.argmin(after))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("points", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--groups", type=Path, help="write the groups there, for planner_peer.py")
    parser.add_argument(
        "--held",
        type=Path,
        help="write how often what was stated held: held.json of recommend/tell",
    )
    arguments = parser.parse_args()
    scored = score(read_points(arguments.points))
    groups = groups_of(scored)
    bounds: dict[str, Callable[[Sequence[Row]], float]] = {
        "no bound": lambda rows: math.inf if not rows else 1e9,
        "3 × the fastest": lambda rows: 3 * min(row.measured_tpot for row in rows),
        "2 × the fastest": lambda rows: 2 * min(row.measured_tpot for row in rows),
        "1.5 × the fastest": lambda rows: 1.5 * min(row.measured_tpot for row in rows),
        "median TPOT": lambda rows: median(row.measured_tpot for row in rows),
    }
    if arguments.groups:
        for rows in groups:
            for row in rows:
                row.facts["holds"] = {
                    name: row.holds(bound_of(rows)) for name, bound_of in bounds.items()
                }
        arguments.groups.write_text(json.dumps([[row.facts for row in rows] for rows in groups]))
    document: dict[str, object] = {"groups": len(groups), "rows": sum(map(len, groups))}
    print(f"{len(groups)} groups, {document['rows']} rows")
    for name, bound_of in bounds.items():
        right = [is_right(rows, choose(rows, bound_of(rows)), bound_of(rows)) for rows in groups]
        cut = [
            is_right(rows, choose(rows, bound_of(rows), LIKELY), bound_of(rows)) for rows in groups
        ]
        regret = {
            str(cost): float(np.mean([
                is_right(rows, choose_by_regret(rows, bound_of(rows), cost), bound_of(rows)) for rows in groups
            ]))
            for cost in MISS_COSTS
        }  # fmt: skip
        chance = float(np.mean([
            np.mean([is_right(rows, row, bound_of(rows)) for row in rows]) for rows in groups
        ]))  # fmt: skip
        document[name] = {
            "right": float(np.mean(right)),
            "with a cut": float(np.mean(cut)),
            "by regret": regret,
            "by chance": chance,
        }
        print(
            f"{name}: right in {np.mean(right):.1%} of groups, {np.mean(cut):.1%} with P ≥ 40 %, "
            f"{regret} by regret (chance {chance:.1%})"
        )
    document["calibration"] = calibration(groups)
    print("stated P(SLO), rows, mean stated, held")
    for label, count, stated, held in calibration(groups):
        print(f"  {label:>12} {count:6} {stated:6.1%} {held:6.1%}")
    if arguments.held:
        arguments.held.write_bytes(msgspec.json.format(msgspec.json.encode(held_shares(groups))))
    document["worth"] = worth(groups)
    print("mean regret of throughput per GPU:", document["worth"])
    if arguments.json:
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
