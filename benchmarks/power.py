"""Watts of a GPU by the share of its bandwidth and arithmetic that is used: the fit, and how far off
it is on GPUs and models that were left out.

    python benchmarks/power.py POINTS.csv [--to src/loadstone/predict/power.json]

    W/TDP = a + (c − a)·(1 − exp(−(k1·MBU^p + k2·MFU^q)))

POINTS has a row for each measured load: gpu, tdp, model, gpus, power_w_per_gpu, j_per_out_tok,
out_tok_s, mbu, mfu, flag. Kinds of GPU weigh alike. `--to` writes the coefficients.
One with fewer than ten rows is no kind that is known.
"""

from __future__ import annotations

import argparse
import collections
import csv
import json
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from loadstone.predict.power import LEAST_OWN, PowerCurve, move

LEAST_ROWS = 10
NAMES = ("a", "c", "k1", "k2", "p", "q")
KINDS = {"A100-80": "a100", "RTX3090": "rtx-3090"}
_START, _LOW, _HIGH = (.15, .95, 2, 3, .7, .7), (.03, .7, 0, 0, .2, .2), (.4, 1.05, 30, 60, 2, 2)  # fmt: skip
TRIES = 200
Row = dict[str, str]
Floats = NDArray[np.float64]
# What the rate of tokens is off by where it is predicted, median; normal in logarithms.
RATE_OFF = 0.086


def read(path: Path) -> tuple[list[Row], list[str]]:
    """Return the rows that are sound, and why others are not."""
    rows, refused = [], []
    with path.open(encoding="utf-8") as file:
        for number, row in enumerate(csv.DictReader(file), 2):
            joules = float(row["power_w_per_gpu"]) * float(row["gpus"]) / float(row["out_tok_s"])
            stated = float(row["j_per_out_tok"] or joules)
            if not 1 / 1.1 < stated / joules < 1.1:
                refused.append(f"line {number}: J/token is {stated / joules:.2f} of W·GPUs/(tok/s)")
            elif row["flag"]:
                refused.append(f"line {number}: {row['flag']}")
            else:
                rows.append(row)
    return rows, refused


def shares(rows: Sequence[Row]) -> Floats:
    """Return rows of MBU, MFU and W/TDP. The table's MFU of four bits is of the peak of 16; here it
    is of that of the GPU's units, where it has any."""
    units = {"B200": 4.0, "MI355X": 4.0}
    return np.array(
        [
            (max(float(r["mbu"]), 1e-3), max(float(r["mfu"]), 1e-4) / (units.get(r["gpu"], 1) if "fp4" in r["precision"] else 1), float(r["power_w_per_gpu"]) / float(r["tdp"]))
            for r in rows
        ]
    )  # fmt: skip


def fit(rows: Sequence[Row]) -> PowerCurve:
    """Fit the curve robustly, kinds of GPU alike."""
    mbu, mfu, share = shares(rows).T
    count = collections.Counter(row["gpu"] for row in rows)
    weight = np.array([10 / count[row["gpu"]] ** 0.5 for row in rows])

    def off(b: Floats) -> Floats:
        return np.asarray(weight * (PowerCurve(*b).share(mbu, mfu) / share - 1))

    found = least_squares(off, _START, bounds=(_LOW, _HIGH), loss="soft_l1", f_scale=0.1)
    return PowerCurve(*found.x.tolist())


def logs(curve: PowerCurve, rows: Sequence[Row]) -> Floats:
    """Return ln(measured/predicted) of each row."""
    mbu, mfu, share = shares(rows).T
    return np.asarray(np.log(share / np.clip(curve.share(mbu, mfu), 0.05, 1)))


def ends(residuals: Floats) -> tuple[float, float]:
    low, high = np.exp(np.quantile(residuals, (0.1, 0.9)))
    return float(low), float(high)


def inside(residuals: Floats, low: float, high: float) -> float:
    return float(np.mean((residuals >= np.log(low)) & (residuals <= np.log(high))))


def describe(residuals: Floats) -> str:
    """Write the errors of predictions: median, p90, bias."""
    error = np.expm1(-residuals)
    return f"{np.median(abs(error)):.1%} | {np.quantile(abs(error), .9):.0%} | {np.median(error):+.0%}"  # fmt: skip


def without_model(rows: Sequence[Row], gpu: str) -> dict[str, Floats]:
    """Return by model of a kind of GPU its residuals, where the fit has not seen that model."""
    found = {}
    for model in sorted({row["model"] for row in rows if row["gpu"] == gpu}):
        others = [row for row in rows if row["model"] != model]
        curve = fit(others)
        known = logs(curve, [row for row in others if row["gpu"] == gpu] or others)
        held = [row for row in rows if row["gpu"] == gpu and row["model"] == model]
        found[model] = logs(curve, held) - np.median(known)
    return found


def nested(by_model: dict[str, Floats]) -> float:
    """Return the share of rows within an interval that the other models' residuals give."""
    hits = total = 0.0
    for model, residuals in by_model.items():
        others = [each for name, each in by_model.items() if name != model]
        hits += inside(residuals, *ends(np.concatenate(others))) * len(residuals)
        total += len(residuals)
    return hits / total


def learnt(curve: PowerCurve, rows: Sequence[Row], runs: int) -> Floats:
    """Return residuals of rows of an unseen GPU once some others of it, of any model, were taken."""
    gaps, drawn = logs(curve, rows), random.Random(0)
    found = []
    for _ in range(TRIES):
        own = drawn.sample(range(len(rows)), runs)
        rest = np.delete(gaps, own)
        found.append(rest - move(gaps[own].tolist()))
    return np.concatenate(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)  # fmt: skip
    parser.add_argument("points", type=Path)
    parser.add_argument("--to", type=Path, help="file for the coefficients")
    args = parser.parse_args()
    rows, refused = read(args.points)
    print(f"{len(rows)} rows, {len(refused)} refused:", *collections.Counter(r.split(": ")[1][:40] for r in refused).items())  # fmt: skip
    count = collections.Counter(row["gpu"] for row in rows)
    big = [gpu for gpu, number in count.most_common() if number >= LEAST_ROWS]
    taken = [row for row in rows if row["gpu"] in big]
    curve = fit(taken)
    print("all:", {name: round(value, 3) for name, value in zip(NAMES, curve, strict=True)})
    print("\n| GPU | rows | unseen: median | p90 | bias | after 3 loads: median | p90 | bias |\n|---|---|---|---|---|---|---|---|")  # fmt: skip
    unseen = {}
    for gpu, number in count.most_common():
        held = [row for row in rows if row["gpu"] == gpu]
        other = fit([row for row in taken if row["gpu"] != gpu])
        line = f"| {gpu} | {number} | {describe(logs(other, held))} |"
        if number >= LEAST_ROWS:
            unseen[gpu] = learnt(other, held, LEAST_OWN)
            line += f" {describe(unseen[gpu])} |"
        print(line)
    own = {
        gpu: ends(np.concatenate([each for g, each in unseen.items() if g != gpu])) for gpu in big
    }
    print("\n| known GPU, unseen model | models | W: median | p90 | bias | J/token, rate 8.6 % off | interval | holds of others | after 3 loads holds |\n|---|---|---|---|---|---|---|---|---|")  # fmt: skip
    kinds, hits = {}, []
    for gpu in big:
        by_model = without_model(taken, gpu)
        pooled = np.concatenate(list(by_model.values()))
        offset = float(np.median(logs(curve, [row for row in taken if row["gpu"] == gpu])))
        # With one model, it is the interval of one that is not known.
        low, high = ends(pooled)
        rate = np.random.default_rng(0).standard_normal(len(pooled)) * np.log1p(RATE_OFF) / 0.6745
        holds = nested(by_model) if len(by_model) > 1 else inside(pooled, *own[gpu])
        if len(by_model) == 1:
            low, high = min(low, own[gpu][0]), max(high, own[gpu][1])
        print(f"| {gpu} | {len(by_model)} | {describe(pooled)} | {describe(pooled + rate).split(' |')[0]} | ×{low:.2f} to {high:.2f} | {holds:.0%} | {inside(unseen[gpu], *own[gpu]):.0%} |")  # fmt: skip
        kinds[KINDS.get(gpu, gpu.lower())] = {"rows": count[gpu], "move": offset, "low": low, "high": high}  # fmt: skip
        hits.append((holds, inside(unseen[gpu], *own[gpu]), count[gpu]))
    rows_of = np.array([number for *_, number in hits])
    known, new = (float(np.average([hit[at] for hit in hits], weights=rows_of)) for at in (0, 1))
    print(f"| all | | | | | | | {known:.0%} | {new:.0%} |")
    low, high = ends(np.concatenate([unseen[gpu] for gpu in big]))
    print(f"\nafter three loads, all: ×{low:.2f} to {high:.2f}")
    if args.to is not None:
        document = {"curve": list(curve), "gpus": kinds, "own": {"low": low, "high": high}}  # fmt: skip
        text = json.dumps(json.loads(json.dumps(document), parse_float=lambda x: round(float(x), 3)), indent=1)  # fmt: skip
        args.to.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
