"""AIConfigurator's choice in the groups of planner_choice.py, beside Loadstone's.

    pip install "aiconfigurator==0.12.*"      (an environment of its own; this script needs nothing
                                              of Loadstone)
    python benchmarks/planner_choice.py POINTS.csv --groups GROUPS.json     (Loadstone's
    environment) python benchmarks/planner_peer.py GROUPS.json [--groups 60]

Of the groups without speculative decoding, in a seeded order, those of which it predicts every row.
It chooses the largest predicted throughput per GPU among rows whose predicted TPOT keeps the bound,
else the fastest row; Loadstone as in planner_choice.py. Throughput is users · output / (TTFT +
(output − 1) · TPOT) / GPUs.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from accuracy_peer import SYSTEMS, estimate

NEAR = 1.1
LIKELY = 0.4
BOUNDS = {
    "no bound": math.inf,
    "3 × the fastest": 3.0,
    "2 × the fastest": 2.0,
    "1.5 × the fastest": 1.5,
}


def rate(row: dict[str, Any], ttft_s: float, tpot_s: float) -> float:
    output = row["output_tokens"]
    return float(row["users"] * output / (ttft_s + (output - 1) * tpot_s) / row["gpus"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("groups", type=Path)
    parser.add_argument("--groups", dest="count", type=int, default=1000)
    arguments = parser.parse_args()
    logging.disable(logging.ERROR)
    groups = [
        rows
        for rows in json.loads(arguments.groups.read_text())
        if all(
            row["gpu"] in SYSTEMS and "num_speculative_tokens" not in row["deployment"]
            for row in rows
        )
    ]
    random.Random(1).shuffle(groups)
    right: dict[tuple[str, str], float] = defaultdict(float)
    failed = Counter[str]()
    whole: list[list[dict[str, Any]]] = []
    groups = groups[: arguments.count]
    for rows in groups:
        try:
            for row in rows:
                row["their_ttft_s"], row["their_tpot_s"] = estimate(row)
        except Exception as error:
            failed[
                f"{row['gpu']} {row['engine']} {row['model']} {row['weights']}: {error}"[:160]
            ] += 1
            continue
        whole.append(rows)
    for rows in whole:
        for name, factor in BOUNDS.items():
            bound = factor * min(row["tpot_s"] for row in rows)
            best = max(
                rate(row, row["ttft_s"], row["tpot_s"]) for row in rows if row["tpot_s"] <= bound
            )
            good = [
                row["tpot_s"] <= NEAR * bound
                and NEAR * rate(row, row["ttft_s"], row["tpot_s"]) >= best
                for row in rows
            ]
            ours = [rate(row, row["predicted_ttft_s"], row["predicted_tpot_s"]) for row in rows]
            theirs = [rate(row, row["their_ttft_s"], row["their_tpot_s"]) for row in rows]
            holds = [row["holds"][name] for row in rows]
            scores: dict[str, list[tuple[float, ...]]] = {
                "AIConfigurator": [
                    (
                        row["their_tpot_s"] <= bound,
                        each if row["their_tpot_s"] <= bound else -row["their_tpot_s"],
                    )
                    for row, each in zip(rows, theirs, strict=True)
                ],
                "Loadstone, P × throughput": [
                    (p * each,) for p, each in zip(holds, ours, strict=True)
                ],
                "Loadstone, P ≥ 40 %": [
                    (p >= LIKELY, each if p >= LIKELY else -row["predicted_tpot_s"])
                    for row, p, each in zip(rows, holds, ours, strict=True)
                ],
            }
            for who, keys in scores.items():
                right[name, who] += good[max(range(len(rows)), key=keys.__getitem__)]
            right[name, "by chance"] += sum(good) / len(good)
    print(f"{len(whole)} of {len(groups)} groups are predicted whole, {sum(map(len, whole))} rows")
    print(
        "by GPU and engines:",
        Counter(f"{rows[0]['gpu']} {rows[0]['family']}" for rows in whole).most_common(12),
    )
    print("several engines:", sum(len({row["engine"] for row in rows}) > 1 for rows in whole))
    for (name, who), count in right.items():
        print(f"{name}: {who} right in {count / max(1, len(whole)):.1%}")
    for text, count in failed.most_common(15):
        print(f"  {count:3d} not predicted: {text}")


if __name__ == "__main__":
    main()
