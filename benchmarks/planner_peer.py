"""AIConfigurator's choice in the groups of planner_choice.py, beside Loadstone's.

    pip install "aiconfigurator==0.12.*"      (an environment of its own; this script needs nothing of Loadstone)
    python benchmarks/planner_choice.py POINTS.csv --groups GROUPS.json     (Loadstone's environment)
    python benchmarks/planner_peer.py GROUPS.json [--groups 60]

Of a seeded sample of groups without speculative decoding, those of which it predicts every row. Both choose the
largest predicted throughput per GPU: users · output / (TTFT + (output − 1) · TPOT) / GPUs.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
from pathlib import Path
from typing import Any

from accuracy_peer import SYSTEMS, estimate

NEAR = 1.1


def rate(row: dict[str, Any], ttft_s: float, tpot_s: float) -> float:
    output = row["output_tokens"]
    return float(row["users"] * output / (ttft_s + (output - 1) * tpot_s) / row["gpus"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", type=Path)
    parser.add_argument("--groups", dest="count", type=int, default=60)
    arguments = parser.parse_args()
    logging.disable(logging.ERROR)
    groups = [
        rows
        for rows in json.loads(arguments.groups.read_text())
        if all(row["gpu"] in SYSTEMS and "num_speculative_tokens" not in row["deployment"] for row in rows)
    ]
    random.Random(1).shuffle(groups)
    right = {"AIConfigurator": 0, "Loadstone": 0, "by chance": 0.0}
    whole = tried = 0
    for rows in groups:
        if tried >= arguments.count:
            break
        tried += 1
        try:
            theirs = [rate(row, *estimate(row)) for row in rows]
        except Exception as error:
            print(f"not predicted: {rows[0]['gpu']} {rows[0]['model']}: {str(error)[:80]}")
            continue
        whole += 1
        ours = [rate(row, row["predicted_ttft_s"], row["predicted_tpot_s"]) for row in rows]
        measured = [rate(row, row["ttft_s"], row["tpot_s"]) for row in rows]
        good = [NEAR * value >= max(measured) for value in measured]
        right["AIConfigurator"] += good[theirs.index(max(theirs))]
        right["Loadstone"] += good[ours.index(max(ours))]
        right["by chance"] += sum(good) / len(good)
    print(f"{whole} of {tried} groups are predicted whole")
    for name, count in right.items():
        print(f"{name}: right in {count / max(1, whole):.1%}")


if __name__ == "__main__":
    main()
