"""Decode steps with LoRA adapters against what was measured: `python benchmarks/adapters.py [--write]`.

Rows: TPOT of Llama-3.1-8B on an H100 by vLLM of May 2025, one token in and 200 out, adapters drawn for each user
(arXiv 2508.08343, raw results; and two logs of the model alone between many slots). Predicted is what adapters add
to the measured step of the model alone, so that errors are those of adapters' terms. The first five rows of rank 16
are what these were fitted to.
"""

import argparse
import statistics
from pathlib import Path
from typing import NamedTuple

from loadstone.catalogue.deployment.shorthand import parse_worker
from loadstone.engines import rules_of
from loadstone.predict.step_time.adapters import adapter_times, different_adapters

OUT = Path(__file__).with_name("results") / "adapters.md"


class Row(NamedTuple):
    """`adapters` from which each of `batch` requests draws one; 0: the model alone is asked for. Milliseconds."""

    slots: int
    rank: int
    batch: int
    adapters: int
    alone: float
    measured: float
    fitted: bool = False


ROWS = [
    Row(100, 16, 32, 1, 13.23, 17.08, True),
    Row(100, 16, 32, 32, 13.23, 24.56, True),
    Row(100, 16, 64, 1, 13.86, 19.01, True),
    Row(100, 16, 64, 32, 13.86, 29.25, True),
    Row(100, 16, 64, 64, 13.86, 34.06, True),
    Row(100, 8, 32, 32, 13.23, 24.90),
    Row(100, 32, 32, 32, 13.23, 28.77, True),
    Row(100, 8, 64, 64, 13.86, 34.82),
    Row(100, 32, 64, 64, 13.86, 42.80),
    Row(300, 8, 220, 1, 17.83, 36.26),
    Row(300, 8, 220, 64, 17.83, 55.63),
    # Of both logs the step without slots is not known; 16 slots' is taken.
    Row(128, 16, 1, 0, 13.24 - 16 * 0.0228, 15.79),
]


def predicted(row: Row) -> float:
    rank = max(16, row.rank)  # the kernels' least
    worker = parse_worker(
        f"llama-3.1-8b@1xh100/version=0.9,max_loras={row.slots},max_lora_rank={rank}"
    )
    times = adapter_times(rules_of(worker))
    assert times is not None
    shares = (1 / row.adapters,) * row.adapters if row.adapters else ()
    return row.alone + 1000 * times.step_s(row.batch, different_adapters(shares, row.batch))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    lines = [
        "# Decode steps with LoRA adapters",
        "",
        "By `python benchmarks/adapters.py --write`, whose head says what the rows are.",
        "",
        "| slots | rank | batch | adapters | alone ms | measured ms | predicted ms | error of the step | error of what is added |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    steps, added = [], []
    for row in ROWS:
        value = predicted(row)
        step, more = value / row.measured - 1, (value - row.alone) / (row.measured - row.alone) - 1
        if not row.fitted:
            steps.append(abs(step))
            added.append(abs(more))
        which = " (fitted)" if row.fitted else ""
        lines.append(
            f"| {row.slots} | {row.rank} | {row.batch} | {row.adapters}{which} | {row.alone:.2f} | {row.measured:.2f}"
            f" | {value:.2f} | {step:+.1%} | {more:+.1%} |"
        )
    lines += [
        "",
        f"Of rows that were not fitted the median error is {statistics.median(steps):.1%} of the step, the largest"
        f" {max(steps):.1%}; of what adapters add {statistics.median(added):.1%}, and {max(added):.1%}.",
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    if parser.parse_args().write:
        OUT.write_text(text)


if __name__ == "__main__":
    main()
