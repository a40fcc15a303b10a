"""What `loadstone compare` holds: false alarms on pairs that do not differ, power on pairs that do,
and coverage.

    python benchmarks/comparison.py [--pairs 1000] [--quick] [--only TEXT] [--intervals]
    [--simulated DEPLOYMENT] python benchmarks/comparison.py --measured FOLDER [--runs 240] python
    benchmarks/comparison.py --repeats [--pairs 300]

Pairs of runs come from two laws that share nothing with the product, and whose requests depend on
one another as those of engines do:

closed   so many slots, each taking the next request when its own ends; one step time for all, which
         waits for prefills and drifts (AR(1), correlation 0.98 from step to step, 10 %); lengths
         uniform in [64, 128]
stretches  four slots, 16 tokens each; TTFT and steps go up and down by a quarter with what else the
           machine does,
         correlated over so many seconds (an Ornstein-Uhlenbeck process on a log scale); 0: each
         request by itself
open     Poisson arrivals to eight servers with a common queue (M/G/8, gamma service times, shape
         4), at a share of their capacity: near 1, queues outlast the run

--intervals: of single runs instead, how many of the intervals in their summaries hold what such
runs have on average (of simulated runs: to 0.1 %); in brackets, of those that take each request for
independent. A side that is open counts as holding.

simulated  `loadstone simulate` with another seed on each side, through run folders and the whole
           comparison; no power

measured   llama.cpp with the small random model, run after run on one server, kept in FOLDER.
           Successive runs are A or B by the design: one against one; three against three and four
           against four, interleaved. No run is in two pairs of a design

repeats    sides of several whole runs of one setup, by laws of how runs differ; in turn, or one
           side after the other

Each pair is judged as a comparison is: seven metrics in one family (with 999 relabellings instead
of 3,999). `alarms` is the share of pairs with any metric called different at 5 %; its 95 % range is
binomial. `covered` is the share of 95 % intervals that hold the true ratio, 1 (of simulated runs:
to 0.1 %, below which nothing is called different). Power is the share of pairs with a difference
shown, of a tenth as many.
"""

from __future__ import annotations

import argparse
import heapq
import json
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.signal import lfilter

from loadstone import compare
from loadstone.analyse.compare.cells import bound, by_runs, take_blocks
from loadstone.analyse.compare.comparison import judge
from loadstone.analyse.compare.metric import DEFAULT, Metric, Stat
from loadstone.analyse.compare.ratio import Side
from loadstone.analyse.compare.result import LEVEL, ComparedCell, ComparedMetric
from loadstone.analyse.compare.sides import RequestTimes
from loadstone.core.plan import Load
from loadstone.core.statistics import Dependence, distribution
from loadstone.core.statistics.dependence import RESOLUTION, window_curve
from loadstone.measure.engines import llama_cpp
from loadstone.runs import bench, simulate
from loadstone.workload.options import Options, SimulateOptions

FixedLatency = Callable[[np.random.Generator, float], RequestTimes]


def closed(requests: int, places: int) -> FixedLatency:
    def run(rng: np.random.Generator, slower: float) -> RequestTimes:
        lengths = rng.integers(64, 129, requests)
        first, last = np.zeros(requests, np.int64), np.zeros(requests, np.int64)
        # Steps, not seconds: a place's next request begins in the step after its last token.
        ends = [(0, place) for place in range(places)]
        heapq.heapify(ends)
        for index in range(requests):
            step, place = heapq.heappop(ends)
            first[index], last[index] = step, step + lengths[index]
            heapq.heappush(ends, (int(last[index]) + 1, place))
        steps = int(last.max()) + 2
        prefills = np.bincount(first, minlength=steps)
        noise = rng.normal(size=steps) * np.sqrt(1 - 0.98**2)
        noise[0] = rng.normal()
        drift = lfilter([1.0], [1.0, -0.98], noise)
        took_s = 0.01 * slower * np.exp(0.1 * drift) + 0.03 * slower * prefills
        at_s = np.concatenate([[0.0], np.cumsum(took_s)])
        return _requests(at_s[first], at_s[first + 1], at_s[last + 1], lengths + 1.0)

    return run


def stretches(requests: int, lasts_s: float) -> FixedLatency:
    def run(rng: np.random.Generator, slower: float) -> RequestTimes:
        tick_s, tokens = 0.002, 16
        rho = np.exp(-tick_s / lasts_s) if lasts_s else 0.0
        own = rng.normal(0, np.sqrt(1 - rho * rho), 50 * requests)
        own[0] = rng.normal()
        level = slower * np.exp(0.25 * lfilter([1.0], [1.0, -rho], own))
        free = [0.0, 0.04, 0.08, 0.12]
        sent, first, last = np.empty((3, requests))
        for index in range(requests):
            at = sent[index] = heapq.heappop(free)
            for token in range(tokens):
                now = level[min(len(level) - 1, int(at / tick_s))] if lasts_s else level[index]
                at += now * (0.008 if token else 0.04 * rng.lognormal(0, 0.1))
                first[index] = at if not token else first[index]
            last[index] = at
            heapq.heappush(free, at)
        return _requests(sent, first, last, np.full(requests, float(tokens)))

    return run


def open_loop(requests: int, share: float) -> FixedLatency:
    def run(rng: np.random.Generator, slower: float) -> RequestTimes:
        servers = 8
        arrives = np.cumsum(rng.exponential(1 / (share * servers), requests))
        service = rng.gamma(4, 0.25, requests) * slower
        free = [0.0] * servers
        begins = np.empty(requests)
        for index in range(requests):
            begins[index] = max(arrives[index], heapq.heappop(free))
            heapq.heappush(free, begins[index] + service[index])
        first = begins + 0.05 * service * rng.gamma(20, 0.05, requests)
        return _requests(arrives, first, begins + service, np.full(requests, 101.0))

    return run


def _requests(
    sent_s: np.ndarray, first_s: np.ndarray, end_s: np.ndarray, tokens: np.ndarray
) -> RequestTimes:
    order = np.argsort(sent_s, kind="stable")
    sent_s, first_s, end_s, tokens = sent_s[order], first_s[order], end_s[order], tokens[order]
    # A request's tokens are evenly spread: 16 events stand for them.
    shares = np.linspace(0, 1, 16)
    arrivals = (first_s[:, None] + shares * (end_s - first_s)[:, None]).ravel()
    return RequestTimes(
        index=np.arange(len(order)),
        ttft_s=first_s - sent_s,
        tpot_s=(end_s - first_s) / (tokens - 1),
        e2e_s=end_s - sent_s,
        sent_s=sent_s,
        end_s=end_s,
        curve=window_curve(
            arrivals, np.repeat(tokens / 16, 16), (float(sent_s[0]), float(sent_s[-1]))
        ),
        window_s=float(sent_s[-1] - sent_s[0]),
        span_s=float(end_s.max() - sent_s.min()),
    )


def _stat(run: RequestTimes, metric: Metric, places: int) -> Stat | None:
    """As a summary has it."""
    dependence = Dependence.of(run.sent_s, run.end_s, places=places)
    if not metric.per_request:
        assert run.curve is not None
        assert run.window_s is not None
        value = float(run.curve.sum() / run.window_s)
        return Stat.of(value, dependence.rate_bounds(run.curve, run.window_s))
    found = distribution(getattr(run, f"{metric.base}_s"), dependence)
    assert found is not None
    assert metric.statistic is not None
    return Stat.of(getattr(found, metric.statistic), found.ci95[metric.statistic])


def compared(law: FixedLatency, places: int, pair: int, slower: float) -> ComparedCell:
    a, b = (
        law(np.random.default_rng([pair, side]), factor) for side, factor in ((0, 1.0), (1, slower))
    )
    rows, reaches = [], {}
    for metric in DEFAULT:
        on_a, on_b = _stat(a, metric, places), _stat(b, metric, places)
        assert on_a is not None
        assert on_b is not None
        rows.append(ComparedMetric(metric, on_a.value, on_b.value, ratio=on_b.value / on_a.value))
        reaches[metric] = Side(on_a.reach, None, ()), Side(on_b.reach, None, ())
    cell = ComparedCell(Load("concurrency" if places else "rate", places or 1), rows)
    take_blocks(cell, [[a], [b]], paired=False)
    bound(cell, reaches)
    judge([cell], pair, relabellings=999)
    return cell


LAWS: dict[str, tuple[FixedLatency, int]] = {
    **{f"closed, {c} slots, {n} requests": (closed(n, c), c) for c, n in (
        (1, 32), (8, 128), (8, 512), (32, 256), (32, 512), (32, 2048), (128, 1024), (128, 4096),
    )},
    **{f"stretches of {lasts:g} s, {n} requests": (stretches(n, lasts), 4) for n in (32, 64, 200)
       for lasts in (0, 0.2, 1)},
    **{f"open at {share:.0%}, {n} requests": (open_loop(n, share), 0) for share, n in (
        (0.5, 300), (0.5, 4000), (0.8, 300), (0.8, 1000), (0.8, 4000), (0.95, 300), (0.95, 2000),
    )},
}  # fmt: skip
"""Each with its places; 0: an open loop."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--quick", action="store_true", help="one law of each sort")
    parser.add_argument("--only", default="", help="laws whose name holds this")
    parser.add_argument(
        "--simulated", metavar="DEPLOYMENT", help="pairs of this instead, as llama-3.1-8b@1xh200"
    )
    parser.add_argument(
        "--measured", metavar="FOLDER", type=Path, help="pairs of measured runs instead"
    )
    parser.add_argument("--runs", type=int, default=240, help="runs that FOLDER shall have")
    parser.add_argument(
        "--repeats", action="store_true", help="pairs of sides of several runs instead"
    )
    parser.add_argument(
        "--intervals", action="store_true", help="of single runs, how often they hold the truth"
    )
    options = parser.parse_args()
    if options.repeats:
        repeated(options.pairs)
        return
    if options.measured:
        take_runs(options.measured, options.runs)
        measured(options.measured)
        return
    if options.simulated:
        loads = {name: load for name, load in SIMULATED.items() if options.only in name}
        if options.intervals:
            intervals_of_simulated(options.simulated, options.pairs, loads)
        else:
            simulated(options.simulated, options.pairs, loads)
        return
    laws = [(name, *law) for name, law in LAWS.items() if options.only in name]
    if options.quick:
        laws = [laws[2], laws[9]]
    if options.intervals:
        intervals(laws, options.pairs)
        return
    print(
        "| law | blocks | alarms | 95 % range | covered | power at 2 % | at 5 % | at 10 % | TPOT"
        " p50 at 5 % | ms |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for name, law, places in laws:
        begin = time.perf_counter()
        same = [compared(law, places, pair, 1.0) for pair in range(options.pairs)]
        each_ms = (time.perf_counter() - begin) / options.pairs * 1e3
        alarms = sum(any(row.differs for row in cell.rows) for cell in same)
        low, high = _binomial_range(alarms, options.pairs)
        bounded = [
            row
            for cell in same
            for row in cell.rows
            if row.low is not None and row.high is not None
        ]
        covered = sum((row.low or 0) <= 1 <= (row.high or 0) for row in bounded)
        powers, pace = [], 0.0
        for slower in (1.02, 1.05, 1.10):
            apart = [
                compared(law, places, pair, slower) for pair in range(max(options.pairs // 10, 20))
            ]
            powers.append(sum(any(row.differs for row in cell.rows) for cell in apart) / len(apart))
            if slower == 1.05:
                pace = sum(
                    row.differs
                    for cell in apart
                    for row in cell.rows
                    if row.metric.name == "tpot_p50"
                ) / len(apart)
        counts = [cell.counts[0] for cell in same if cell.counts]
        print(
            f"| {name} | {np.mean(counts) if counts else 0:.0f} | {alarms / options.pairs:.1%} | "
            f"{low:.1%} – {high:.1%} | {covered / len(bounded) if bounded else float('nan'):.1%} | "
            + " | ".join(f"{power:.0%}" for power in powers)
            + f" | {pace:.0%} | {each_ms:.0f} |",
            flush=True,
        )


SHOWN = (
    ("ttft", "p50"),
    ("ttft", "p99"),
    ("tpot", "p50"),
    ("e2e", "mean"),
    ("e2e", "p50"),
    ("e2e", "p99"),
)


Bounds = list[float | None]


def _head() -> None:
    names = [f"{base.upper()} {statistic}" for base, statistic in SHOWN]
    print(f"| law | runs | {' | '.join(names)} | output tok/s | no interval |")
    print("|---|---:|" + "---:|" * (len(names) + 2))


def intervals(laws: list[tuple[str, FixedLatency, int]], runs: int) -> None:
    _head()
    for name, law, places in laws:
        values: dict[str, list[tuple[float, Bounds, Bounds]]] = {}
        missing = 0
        for seed in range(runs):
            run = law(np.random.default_rng([seed, 2]), 1.0)
            dependence = Dependence.of(run.sent_s, run.end_s, places=places)
            for base, statistic in SHOWN:
                sample = getattr(run, f"{base}_s")
                found, plain = distribution(sample, dependence), distribution(sample)
                assert found is not None
                assert plain is not None
                values.setdefault(f"{base} {statistic}", []).append(
                    (getattr(found, statistic), found.ci95[statistic], plain.ci95[statistic])
                )
                missing += statistic == "p50" and None in found.ci95[statistic]
            assert run.curve is not None
            assert run.window_s is not None
            bounds = dependence.rate_bounds(run.curve, run.window_s)
            values.setdefault("rate", []).append(
                (float(run.curve.sum() / run.window_s), bounds, bounds)
            )
        shares = []
        for what, each in values.items():
            truth = float(np.mean([value for value, _, _ in each]))
            held = np.mean([_holds(bounds, truth) for _, bounds, _ in each])
            plainly = np.mean([_holds(bounds, truth) for _, _, bounds in each])
            shares.append(f"{held:.0%}" + (f" ({plainly:.0%})" if what != "rate" else ""))
        print(
            f"| {name} | {runs} | {' | '.join(shares)} | {missing / (3 * runs):.0%} |", flush=True
        )


def intervals_of_simulated(deployment: str, runs: int, loads: dict[str, dict[str, Any]]) -> None:
    _head()
    for name, load in loads.items():
        values: dict[str, list[tuple[float, Bounds]]] = {}
        missing = 0
        with tempfile.TemporaryDirectory() as folder:
            for seed in range(runs):
                options = SimulateOptions.read(
                    deployment=deployment, seed=seed, out=Path(folder), draws=0, **load
                )
                document = simulate.simulate(options).document()
                metrics = document["cells"][0]["metrics"]
                for base, statistic in SHOWN:
                    found = metrics[f"{base}_s"]
                    values.setdefault(f"{base} {statistic}", []).append(
                        (found[statistic], found["ci95"][statistic])
                    )
                    missing += statistic == "p50" and None in found["ci95"][statistic]
                steady = metrics["steady"]
                values.setdefault("rate", []).append(
                    (steady["output_tokens_per_s"], steady["ci95"]["output_tokens_per_s"])
                )
                shutil.rmtree(document["run_dir"])
        shares = []
        for each in values.values():
            truth = float(np.mean([value for value, _ in each]))
            shares.append(
                f"{np.mean([_holds(bounds, truth, RESOLUTION) for _, bounds in each]):.0%}"
            )
        print(
            f"| {name} | {runs} | {' | '.join(shares)} | {missing / (3 * runs):.0%} |", flush=True
        )


def _holds(bounds: Bounds, truth: float, near: float = 0.0) -> bool:
    low, high = bounds
    return (low is None or low <= truth * (1 + near)) and (
        high is None or truth * (1 - near) <= high
    )


_VARIED = {"input": "512", "output": "128", "range_ratio": 0.5}
SIMULATED: dict[str, dict[str, Any]] = {
    "8 slots, 256 requests": {"concurrency": [8], "requests": [256], **_VARIED},
    "24 requests/s, 300 of them": {"rate": [24.0], "requests": [300], **_VARIED},
    "24 requests/s, 1,000 of them": {"rate": [24.0], "requests": [1000], **_VARIED},
    "fixed 256 and 64, 8 slots, 256 requests": {
        "concurrency": [8], "requests": [256], "input": "256", "output": "64",
    },
    "fixed 1024 and 128, 32 slots, 512 requests": {
        "concurrency": [32], "requests": [512], "input": "1024", "output": "128",
    },
    "fixed 1024 and 128, 8 requests/s, 300 of them": {
        "rate": [8.0], "requests": [300], "input": "1024", "output": "128",
    },
}  # fmt: skip
"""Lengths in [256, 512] and [64, 128], or all alike: then requests fall into a rhythm, another in
each run."""


MEASURED: dict[str, Any] = {
    "concurrency": [1, 4], "requests": [64], "input": "64", "output": "32", "range_ratio": 0.5,
}  # fmt: skip


def simulated(deployment: str, pairs: int, loads: dict[str, dict[str, Any]]) -> None:
    """False alarms on pairs of simulated runs with another seed each."""
    print("| load | pairs | alarms | 95 % range | covered |")
    print("|---|---:|---:|---:|---:|")
    for name, load in loads.items():
        alarms = covered = bounded = 0
        with tempfile.TemporaryDirectory() as folder:
            for pair in range(pairs):
                runs = []
                for side in (0, 1):
                    seed = 2 * pair + side
                    options = SimulateOptions.read(
                        deployment=deployment, seed=seed, out=Path(folder), draws=0, **load
                    )
                    runs.append(Path(simulate.simulate(options).run_dir))
                document = compare([runs[0]], [runs[1]], seed=pair).document()
                rows = [row for cell in document["cells"] for row in cell["metrics"]]
                alarms += any(row["differs"] for row in rows)
                ends = [(row["low"], row["high"]) for row in rows if row["low"] is not None]
                covered += sum(
                    low <= 1 + RESOLUTION and high >= 1 / (1 + RESOLUTION) for low, high in ends
                )
                bounded += len(ends)
                for run in runs:
                    shutil.rmtree(run)
        low, high = _binomial_range(alarms, pairs)
        print(
            f"| {name} | {pairs} | {alarms / pairs:.1%} | {low:.1%} – {high:.1%} |"
            f" {covered / max(bounded, 1):.1%} |",
            flush=True,
        )


def take_runs(folder: Path, count: int) -> None:
    """Measures llama.cpp until `folder` has `count` runs, in a folder of its own each: one server
    for all of them."""
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as scratch,
        llama_cpp.launch(slots=4, context_tokens=512, log_path=Path(scratch) / "log") as server,
    ):
        bench.bench(Options.read(url=server.url, out=Path(scratch), **MEASURED))
        for number in range(len(list(folder.iterdir())), count):
            bench.bench(Options.read(url=server.url, out=folder / f"{number:04d}", **MEASURED))


DESIGNS = {
    "one against one": "AB",
    "three against three": "ABBAAB",
    "four against four": "ABBABAAB",
}
"""Sides of successive runs."""


def measured(folder: Path) -> None:
    """False verdicts of each design on pairs that do not differ."""
    runs = [path.parent for path in sorted(folder.glob("*/*/summary.json"))]
    print(f"{len(runs)} runs, {sum(map(_trusted, runs))} trusted\n")
    print(
        "| design | pairs | p ≤ 5 % | called better | 95 % range | lines | better | with a number |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for design, sides in DESIGNS.items():
        tests = alarms = pairs = 0
        words: Counter[str] = Counter()
        numbers = 0
        for start in range(0, len(runs) - len(sides) + 1, len(sides)):
            taken = list(zip(runs[start:], sides, strict=False))
            document = compare(
                *([run for run, side in taken if side == which] for which in "AB"), seed=start
            ).document()
            rows = [
                row
                for cell in document["cells"]
                for row in cell["metrics"]
                if row["conclusion"] is not None
            ]
            pairs += 1
            tests += any(row["p_family"] <= LEVEL for row in rows)
            alarms += any(row["better"] for row in rows)
            words.update(row["conclusion"] for row in rows)
            numbers += sum(
                row["would_show"] is not None or row["repeats_needed"] is not None for row in rows
            )
        low, high = _binomial_range(alarms, pairs)
        print(
            f"| {design} | {pairs} | {tests} | {alarms} | {low:.0%} – {high:.0%} | {words.total()}"
            f" | {words['better']} | {numbers} |  <!-- {dict(words)} -->",
            flush=True,
        )


RunLaw = Callable[[np.random.Generator, int], np.ndarray]


def _drift(rng: np.random.Generator, runs: int) -> np.ndarray:
    steps = rng.normal(size=runs) * np.r_[1.0, np.full(runs - 1, np.sqrt(1 - 0.81))]
    return np.asarray(lfilter([1.0], [1.0, -0.9], steps))


RUN_LAWS: dict[str, tuple[RunLaw, bool]] = {
    "normal": (lambda rng, runs: rng.normal(size=runs), True),
    "heavy tails": (lambda rng, runs: rng.standard_t(2, size=runs), True),
    "two states": (
        lambda rng, runs: 3.0 * (rng.random(runs) < 0.3) + 0.3 * rng.normal(size=runs),
        True,
    ),
    "drift": (_drift, True),
    "drift, one side after the other": (_drift, False),
    "walk": (lambda rng, runs: np.cumsum(rng.normal(size=runs)), True),
    "walk, one side after the other": (lambda rng, runs: np.cumsum(rng.normal(size=runs)), False),
}
"""What a run is off by, in spreads, and whether A and B take turns."""


def repeated(pairs: int) -> None:
    """Pairs with anything called better, of sides that do not differ: two loads, seven metrics."""
    print("| law | runs | p ≤ 5 % | better |\n|---|---:|---:|---:|")
    for name, (law, in_turn) in RUN_LAWS.items():
        for runs in (2, 3, 4, 6, 8):
            tests = alarms = 0
            for pair in range(pairs):
                rng = np.random.default_rng([pair, runs])
                on_b = (
                    np.resize([False, True], 2 * runs) if in_turn else np.arange(2 * runs) >= runs
                )
                shared, compared = law(rng, 2 * runs), []
                for load in (1, 4):
                    cell = ComparedCell(
                        Load("concurrency", load),
                        [],
                        runs=(runs, runs),
                        one_after_another=not in_turn,
                    )
                    values = {}
                    for metric in DEFAULT:
                        own = (
                            rng.normal(size=2 * runs)
                            if "drift" in name or "walk" in name
                            else law(rng, 2 * runs)
                        )
                        each = np.exp(0.03 * (0.7 * shared + 0.3 * own))
                        values[metric] = [each[~on_b].tolist(), each[on_b].tolist()]
                        a, b = (float(np.exp(np.log(side).mean())) for side in values[metric])
                        cell.rows.append(ComparedMetric(metric, a, b, ratio=b / a))
                    by_runs(cell, values)
                    compared.append(cell)
                judge(compared, pair)
                rows = [row for cell in compared for row in cell.rows]
                tests += any((row.p_family or 0.0) <= LEVEL for row in rows)
                alarms += any(row.better for row in rows)
            print(f"| {name} | {runs} | {tests} | {alarms} |", flush=True)


def _trusted(run: Path) -> bool:
    return all(
        cell["verdict"]["trusted"]
        for cell in json.loads((run / "summary.json").read_bytes())["cells"]
    )


def _binomial_range(found: int, of: int) -> tuple[float, float]:
    """95 % range of a share (Clopper and Pearson 1934)."""
    from scipy.special import betaincinv

    low = float(betaincinv(found, of - found + 1, 0.025)) if found else 0.0
    high = float(betaincinv(found + 1, of - found, 0.975)) if found < of else 1.0
    return low, high


if __name__ == "__main__":
    main()
