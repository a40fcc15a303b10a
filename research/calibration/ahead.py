"""Whether a second step waited for, where the next step is scheduled while one runs, brings TTFT nearer.

    python research/calibration/ahead.py FITTED.csv… --unseen UNSEEN.csv… [--every N]

Every N-th row of the FITTED files is fitted on, once as it is and once with that step in the present eras (vLLM from
0.14, SGLang from 0.5, TensorRT-LLM from 1.0). Rows are scored with their family held out; rows of the UNSEEN files
likewise, by these fits. Some minutes on one core at --every 8.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec
import numpy as np

from accuracy import cases_of, say
from fit import values_of
from loadstone.calibrate.cases import Case, CaseTable, refresh
from loadstone.engines import rules_of
from profiles import fit_all, fit_without, gaps, held_out_values

AHEAD = {("vllm", "async"), *(("sglang", era) for era in ("0.5", "graphs", "0.5.11"))}
AHEAD |= {("tensorrt-llm", era) for era in ("1.0", "1.3")}


def scheduled_ahead(case: Case) -> Case:
    policy = case.policy
    deployment = case.deployment
    if (deployment.engine, rules_of(deployment).era) not in AHEAD or policy.pipeline > 1 or policy.poll_steps:
        return case
    case.policy = msgspec.structs.replace(policy, schedules_ahead=True)
    return case


def show(title: str, table: CaseTable) -> None:
    gap = gaps(table)
    engines = np.array([case.deployment.engine for case in table.cases])
    present = np.array([(case.deployment.engine, rules_of(case.deployment).era) in AHEAD for case in table.cases])
    busy = np.array([case.users > 8 for case in table.cases])
    for what, mine in (
        ("all", np.ones(len(engines), bool)),
        ("present eras", present),
        ("present eras, over 8 users", present & busy),
        *((f"present {name}", present & (engines == name)) for name in np.unique(engines)),
    ):
        text = f"{title:28s} {what:28s}"
        for name in ("ttft", "tpot"):
            here = gap[name][mine & np.isfinite(gap[name])]
            if len(here):
                off = np.abs(np.expm1(-here))
                text += f" {name} n {len(here):4d} {np.median(off):6.1%} p90 {np.quantile(off, 0.9):5.0%}"
                text += f" {np.expm1(-np.median(here)):+5.0%} |"
        print(text, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fitted", type=Path, nargs="+")
    parser.add_argument("--unseen", type=Path, nargs="*", default=[])
    parser.add_argument("--every", type=int, default=8)
    arguments = parser.parse_args()
    chosen = [case for case in cases_of(arguments.fitted) if case.point.ttft_s][:: arguments.every]
    unseen = [case for case in cases_of(arguments.unseen) if case.point.ttft_s]
    say(f"{len(chosen)} rows fitted on, {len(unseen)} unseen")
    for title in ("as it is", "the next step, too"):
        if title != "as it is":
            chosen, unseen = [*map(scheduled_ahead, chosen)], [*map(scheduled_ahead, unseen)]
        table = CaseTable(chosen)
        use = np.ones(len(chosen), bool)
        fit = fit_all(table, use, 2)
        fits = fit_without(table, fit, use)
        refresh(table, np.exp(held_out_values(table, fits, fit)))
        show(f"{title}: fitted", table)
        if unseen:
            table = CaseTable(unseen)
            refresh(table, np.exp(values_of(fit, unseen)))
            show(f"{title}: unseen", table)


if __name__ == "__main__":
    main()
