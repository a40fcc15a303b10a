"""Makes benchmarks/results/questions.md: what four documents ask, answered by studies.

    python benchmarks/questions.py POINTS.csv [--only 1,7] [--out FOLDER]      (simulated: six
    minutes, two cores) python benchmarks/questions.py POINTS.csv --only 10
    (measured: five, on an idle machine)

POINTS.csv: measurements of others, as docs/accuracy.md has them; `--traces FOLDER` for the eleventh
question. Each section comes from a study in examples/questions; cells that are in FOLDER already
are not run again. Sections not made stay as they are.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import altair as alt
import numpy as np

import loadstone
from loadstone.analyse.compare.price import Prices
from loadstone.recommend.demand.hours import Hours
from loadstone.recommend.judge.by_hour import Span
from loadstone.report.charts.layers import axis_scale, lines
from loadstone.report.charts.theme import (
    PALETTE,
    Figure,
    Row,
    colour_by,
    figure,
    load_axis,
    tooltips,
)
from loadstone.report.data.frames import OUTPUT, TPOT, TTFT, Measure
from loadstone.report.data.pairs import Effect, effect
from loadstone.report.data.points import CellPoint, points_of
from loadstone.report.data.runs import read_runs
from loadstone.report.data.statistic import Estimate
from loadstone.report.pages.html import save_picture
from loadstone.studies.file import read_study
from loadstone.studies.machines import make_machines
from loadstone.studies.measure import Simulation, live, simulated
from loadstone.studies.plan import plan_study
from loadstone.studies.supervise import find_run, run_study

ROOT = Path(__file__).resolve().parents[1]
STUDIES = ROOT / "examples" / "questions"
PICTURES = ROOT / "docs" / "pictures" / "questions"
RESULTS = ROOT / "benchmarks" / "results"
PAGE = RESULTS / "questions.md"
PRICES = Prices(h100=2.1, h200=3.2)
"""Dollars per GPU and hour, as in the other pages; the break-even of their ratio is computed."""
MEASURED = ("measured-here",)


class Cell(NamedTuple):
    engine: str
    model: str
    layout: str
    workload: str
    load: float
    repeat: int
    run: Path
    point: CellPoint


class Answer(NamedTuple):
    """A section of the page; `text` and `made` are the Markdown of its results."""

    title: str
    asked: str
    answer: str
    text: str
    picture: Figure
    holds: str
    made: str


class Cells(list[Cell]):
    def of(self, **facts: Any) -> Cells:
        """Those whose facts are these."""
        return Cells(
            cell
            for cell in self
            if all(getattr(cell, name) == value for name, value in facts.items())
        )

    def one(self, **facts: Any) -> CellPoint:
        (found,) = self.of(**facts)
        return found.point


def run(study: Path, out: Path) -> Cells:
    """What is missing is run, through the same functions as `loadstone study run`."""
    read = read_study(study)
    launches, measured = plan_study(read), read.study.study in MEASURED
    folder = out / (read.study.study if measured else f"{read.study.study}-simulated")
    how = live(read, lambda event: None) if measured else simulated(read)
    left = run_study(
        read, launches, folder, make_machines(read, None) if measured else [Simulation()], how
    )
    assert not left, f"{study}: {left} cells are missing; `loadstone study status` says why"
    keyed = [(launch, cell, find_run(folder, cell)) for launch in launches for cell in launch.cells]
    runs, passed_over = read_runs([path for _, _, path in keyed if path is not None])
    assert not passed_over, passed_over
    by_folder = {runs[point.number - 1].folder: point for point in points_of(runs, PRICES)}
    return Cells(
        Cell(
            launch.engine, launch.model, launch.layout, cell.workload, float(cell.load.rpartition(" ")[2]),
            cell.repeat, path, by_folder[path],
        )
        for launch, cell, path in keyed
        if path is not None
    )  # fmt: skip


# --- words and tables -----------------------------------------------------------------------------


def number(value: float) -> str:
    """Three digits: `3,337`, `54.2`, `0.819`."""
    return f"{float(f'{value:.3g}'):,.0f}" if value >= 99.5 else f"{value:.3g}"


def span(stat: Estimate | None, scale: float = 1.0) -> str:
    """`54.2 (40.1–70.3)`: a value with its interval."""
    assert stat is not None
    if stat.low is None or stat.high is None:
        return number(stat.value * scale)
    return f"{number(stat.value * scale)} ({number(stat.low * scale)}–{number(stat.high * scale)})"


def times(of: Effect | None) -> str:
    """`1.35× (1.28–1.42)`"""
    assert of is not None
    return of.times


def over(a: CellPoint, b: CellPoint, measure: Measure) -> Effect:
    """a over b, also where both waited in a queue as long as the burst was: simulations of one
    load."""
    known = effect(a, b, measure)
    assert known is not None, (a.run, b.run, measure.key)
    return known


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines_ = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in row) + " |" for row in lines_)


def row(
    colour: str,
    variant: str,
    x: float,
    y: float,
    low: float | None = None,
    high: float | None = None,
) -> Row:
    bounds = {} if low is None or high is None else {"low": low, "high": high}
    return {"colour": colour, "variant": variant, "x": x, "y": y} | bounds


def stat_row(colour: str, variant: str, x: float, stat: Estimate | None, scale: float = 1.0) -> Row:
    assert stat is not None
    low, high = (None if each is None else each * scale for each in (stat.low, stat.high))
    return row(colour, variant, x, stat.value * scale, low, high)


def plot(
    key: str,
    title: str,
    rows: Sequence[Row],
    x: str,
    y: str,
    *notes: str,
    log: bool = False,
    zero: bool = True,
) -> Figure:
    """Lines over loads, a colour or dash for each series, bars where there are intervals."""
    hues = list(dict.fromkeys(each["colour"] for each in rows))
    rows = [
        {
            **each,
            "label": " · ".join(part for part in (each["colour"], each["variant"]) if part),
            "who": each["colour"],
            "hue": PALETTE[hues.index(each["colour"]) % len(PALETTE)],
        }
        for each in rows
    ]
    known = list(dict.fromkeys(each["variant"] for each in rows))
    shown = tooltips(("label:N", "series"), ("x:Q", x), ("y:Q", y, ",.4~r"))
    scale = axis_scale(rows, "y", bars=True, log=log)
    if not zero:
        ends = [each["y"] for each in rows]
        scale = alt.Scale(domain=[0.98 * min(ends), 1.02 * max(ends)], nice=False)
    y_axis = alt.Y("y:Q", title=y, scale=scale)
    chart = lines(rows, known, load_axis(x, sorted({each["x"] for each in rows})), y_axis, shown)
    spoken = "; ".join(
        f"{r['colour']} {r['variant']} at {r['x']:g}: {r['y']:.3g}" for r in rows[:24]
    )
    return figure(key, title, notes, chart, section="questions", summary=f"{title}. {spoken}")


def bars(key: str, title: str, rows: Sequence[Row], x: str, *notes: str) -> Figure:
    """A bar for each row, named by `variant`, in groups by `colour`, with its interval."""
    base = alt.Chart(alt.InlineData(values=list(rows))).encode(
        y=alt.Y("variant:N", title=None, sort=None, axis=alt.Axis(labelLimit=240)),
        yOffset=alt.YOffset("colour:N", sort=None),
        color=colour_by("colour", list(dict.fromkeys(each["colour"] for each in rows))),
    )
    chart = base.mark_bar().encode(x=alt.X("y:Q", title=x))
    chart += base.mark_rule(color="#222222").encode(
        x="low:Q", x2="high:Q", color=alt.value("#222222")
    )
    spoken = "; ".join(f"{r['colour']} {r['variant']}: {r['y']:.3g}" for r in rows)
    return figure(key, title, notes, chart, section="questions", summary=f"{title}. {spoken}")


BAND = "bars: 80 % intervals of the predictions"


# --- the questions --------------------------------------------------------------------------------


def chips_or_memory(cells: Cells, points: Sequence[Mapping[str, str]]) -> Answer:
    names = {"8xh100/tp8": "8 × H100", "8xh200/tp8": "8 × H200"} | {
        f"16x{gpu}/tp16,nodes=2": f"16 × {gpu.upper()}" for gpu in ("h100", "h200")
    }
    models = {
        "llama-3.1-405b": "405B, 16 bits",
        "llama-3.1-405b:fp8": "405B, FP8",
        "deepseek-v3": "DeepSeek-V3, FP8",
    }
    shown, drawn, ratios = [], [], {}
    for model, title in models.items():
        best = {}
        for layout, name in names.items():
            held = [
                c.point
                for c in cells.of(model=model, layout=layout)
                if c.point.tpot and c.point.tpot.value < 0.05
            ]
            if held:
                best[layout] = top = min(held, key=lambda point: point.dollars.output.value)  # type: ignore[union-attr]
                pace = number(top.tokens_per_s_per_user or 0)
                shown.append(
                    [
                        title,
                        name,
                        f"{top.load:g}",
                        pace,
                        number(top.tokens_per_s_per_gpu or 0),
                        span(top.dollars.output),
                    ]
                )
                drawn += [row(name, title, *_bounds(top.dollars.output))]
        for layout, top in best.items():
            if layout != "8xh200/tp8":
                ratios[model, layout] = _per_dollar(top, best["8xh200/tp8"])
    sixteen, eight = (
        ratios["llama-3.1-405b", "16xh100/tp16,nodes=2"],
        ratios["llama-3.1-405b:fp8", "8xh100/tp8"],
    )
    deep = ratios["deepseek-v3", "16xh100/tp16,nodes=2"]
    limits = [PRICES["h200"] / PRICES["h100"] * each.ratio for each in (eight, sixteen, deep)]
    return Answer(
        "More chips, or more memory on each?",
        "000: “increasing the number of chips with more GPU memory, H200, versus increasing the"
        " parallel inference world size when H100 … Reduce the price/generation at scale as much as"
        " possible.”",
        "Whether sixteen H100 on two nodes beat eight H200 cannot be decided: nobody has published"
        " such a pair, the network's latency is a guess, and intervals contain 1. What can be said"
        " is that the price decides: at $2.10 an hour for H100 and $3.20 for H200, a token costs,"
        f" against eight H200: on eight H100 {times(eight)} (405B in FP8, which both hold); on 16"
        f" H100, where eight do not hold the model, {times(sixteen)} (405B in 16 bits) and"
        f" {times(deep)} (DeepSeek-V3).",
        table(
            [
                "model",
                "GPUs",
                "users",
                "tok/s of a user",
                "tok/s of a GPU",
                "$ per million output tokens",
            ],
            shown,
        )
        + "\n\n"
        + wrap(
            "Of loads with a TPOT below 50 ms the cheapest. H200 is the cheaper one while its hour"
            f" costs less than {limits[0]:.2f}, {limits[1]:.2f} and {limits[2]:.2f} times the"
            " H100's (now 1.52). Sixteen H200 in one group are never cheaper than two servers of"
            " eight, which do twice what one does."
        ),
        bars("01", "Price of a million output tokens, TPOT below 50 ms", drawn, "$", BAND),
        "Prompts of 820 to 1,024 tokens, answers of 410 to 512, no shared prefixes, 400 Gbit/s for"
        " each GPU. All intervals are the model's own.",
        "All simulated (vLLM of today).",
    )


def _bounds(stat: Estimate | None) -> tuple[float, float, float, float]:
    """x, y, low, high of a bar."""
    assert stat is not None
    return 0.0, stat.value, stat.low or stat.value, stat.high or stat.value


def _per_dollar(a: CellPoint, b: CellPoint) -> Effect:
    """Dollars for a token, a over b; of the two throughputs with what the GPUs cost."""
    assert a.dollars.per_hour is not None
    assert b.dollars.per_hour is not None
    rate, cost = over(b, a, OUTPUT), a.dollars.per_hour / b.dollars.per_hour
    return Effect(rate.ratio * cost, rate.low * cost, rate.high * cost)


def what_binds(cells: Cells, points: Sequence[Mapping[str, str]]) -> Answer:
    pairs = _both_gpus(points)
    shown, drawn = [], []
    for tp in (2, 4, 8):
        line = [f"tp {tp}"]
        for load in (4.0, 64.0):
            a, b = (
                cells.one(layout=f"{tp}x{gpu}/tp{tp}", workload="chat", load=load)
                for gpu in ("h200", "h100")
            )
            seen = [each[TPOT.key] for key, each in pairs.items() if key[:2] == (tp, load)]
            line += [times(over(a, b, TPOT)), f"{median(seen):.2f}"]
        a, b = (
            cells.one(layout=f"{tp}x{gpu}/tp{tp}", workload="document", load=4.0)
            for gpu in ("h200", "h100")
        )
        assert b.roofline.mbu is not None
        line += [times(over(a, b, TTFT)), f"{100 * b.roofline.mbu:.0f} %", span(b.tpot, 1e3)]
        shown.append(line)
        for load in (4.0, 8.0, 16.0, 32.0, 64.0):
            a, b = (
                cells.one(layout=f"{tp}x{gpu}/tp{tp}", workload="chat", load=load)
                for gpu in ("h200", "h100")
            )
            drawn.append(row(f"tp {tp}", "simulated", load, over(a, b, TPOT).ratio))
            seen = [each[TPOT.key] for key, each in pairs.items() if key[:2] == (tp, load)]
            drawn.append(row(f"tp {tp}", "measured", load, median(seen)))
    ttft = [each[TTFT.key] for each in pairs.values()]
    tenths = quantiles(ttft, n=10)
    tpot = [each[TPOT.key] for each in pairs.values()]
    one, eight = (cells.one(layout=f"{tp}xh100/tp{tp}", workload="chat", load=4.0) for tp in (2, 8))
    products = {name: _products(cells, name) for name in ("chat", "document")}
    sparse = [each[TPOT.key] for each in _both_gpus(points, "gpt-oss-120b", "fp4").values()]
    return Answer(
        "Is TTFT bound by computing, and decoding by bandwidth?",
        "000: “TTFT is compute-bound, meaning H200 retains a similar time to first token as H100 …"
        " Transformer … decoding is memory bound, thus we expect higher TPS on H200s.”",
        f"TTFT is the same on both: measured {median(ttft):.2f} times the H100's (eight in ten of"
        f" {len(ttft)} pairs: {tenths[0]:.2f} to {tenths[-1]:.2f}), but computing is only"
        f" {products['chat']} of it with 1,024 tokens. Decoding is bound by bandwidth in part: TPOT"
        f" falls to {median(tpot):.2f} of the H100's, where bandwidth alone would make it 0.70, and"
        " less the more GPUs share a model.",
        table(
            [
                "",
                "TPOT, 4 users",
                "measured",
                "TPOT, 64 users",
                "measured",
                "TTFT, 8,192 in",
                "bandwidth used by H100",
                "its TPOT, ms, 8,192 in",
            ],
            shown,
        )
        + "\n\n"
        + wrap(
            "H200 over H100. Four times the GPUs (tp 2 to 8) shorten TPOT at 4 users to"
            f" {times(over(eight, one, TPOT))}, not to a quarter: weights are read four times as"
            " fast, but launches, the host and two all-reduces of each of 80 layers stay. Of the"
            f" TTFT of a prompt that is alone, matrix products are {products['chat']} (1,024"
            f" tokens, tp 8 to 2) and {products['document']} (8,192); links, host and launches are"
            " most of the rest, and the same on H200."
        ),
        plot(
            "02",
            "TPOT of H200 over H100, Llama 70B FP8",
            drawn,
            "users",
            "H200 / H100",
            "bandwidth alone: 0.70; simulated: 1,024 tokens in and out; measured: median of three"
            " lengths",
            zero=False,
        ),
        "Llama 70B in FP8, vLLM, one node. For gpt-oss-120b, which reads few of its weights for a"
        f" token, the median of {len(sparse)} measured pairs is {median(sparse):.2f}: bandwidth"
        " hardly limits its steps.",
        "Simulated: six deployments, two lengths, five loads. Measured: pairs of InferenceX's runs"
        f" that differ in the GPU alone, {len(pairs)} of this model (TP, load and three pairs of"
        " lengths).",
    )


def _products(cells: Cells, workload: str) -> str:
    """Share of matrix products in the TTFT of a prompt that is alone, by tp: `48 to 61 %`."""
    shares = []
    for cell in cells.of(workload=workload, load=4.0):
        parts = json.loads((cell.run / "summary.json").read_text("utf-8"))["first_token"]["parts_s"]
        shares.append(100 * parts["products"] / sum(parts.values()))
    return f"{min(shares):.0f} to {max(shares):.0f} %"


def _both_gpus(
    points: Sequence[Mapping[str, str]], model: str = "Llama-3.1-70B", precision: str = "fp8"
) -> dict[tuple[Any, ...], dict[str, float]]:
    """By (tp, users, lengths): TTFT and TPOT of H200 over those of H100, with vLLM."""
    found: dict[tuple[Any, ...], dict[str, Mapping[str, str]]] = {}
    for each in points:
        if (
            each["exclude"]
            or (each["engine"], each["precision"]) != ("vllm", precision)
            or model not in each["model"]
        ):
            continue
        if (
            each["gpu"][:4] in ("H100", "H200")
            and "capped" not in each["gpu"]
            and each["arrival_value"]
        ):
            key = (
                int(each["tp"]),
                float(each["arrival_value"]),
                each["input_len"],
                each["output_len"],
            )
            found.setdefault(key, {})[each["gpu"][:4]] = each
    columns = {TTFT.key: "ttft_ms_median", TPOT.key: "tpot_ms_median"}
    return {
        key: {
            name: float(both["H200"][column]) / float(both["H100"][column])
            for name, column in columns.items()
        }
        for key, both in found.items()
        if len(both) == 2
    }


def room_for_users(cells: Cells, points: Sequence[Mapping[str, str]]) -> Answer:
    shown = []
    for model, gpus in (
        ("llama-3.1-8b", 1),
        ("llama-3.1-70b:fp8", 2),
        ("llama-3.1-70b", 4),
        ("llama-3.1-405b:fp8", 8),
    ):
        rows = [
            loadstone.size(f"{model}@{gpus}x{gpu}", context="8k").document()["rows"][0]
            for gpu in ("h100", "h200")
        ]
        users = [each["max_concurrent_requests"] for each in rows]
        memory = [each["weights_bytes"] / gpus / 1e9 for each in rows]
        shown.append([model, gpus, f"{memory[0]:.0f} GB", *users, f"{users[1] / users[0]:.1f}×"])
    drawn, names = [], {"2xh100/tp2": "2 × H100", "2xh200/tp2": "2 × H200", "1xh200": "1 × H200"}
    for layout, name in names.items():
        for cell in cells.of(model="llama-3.1-70b:fp8", layout=layout):
            drawn.append(stat_row(name, "", cell.load, cell.point.output))
    a, b = (
        cells.one(model="llama-3.1-70b:fp8", layout=f"2x{gpu}/tp2", load=64.0)
        for gpu in ("h200", "h100")
    )
    few = [
        cells.one(model="llama-3.1-70b:fp8", layout=f"2x{gpu}/tp2", load=4.0)
        for gpu in ("h200", "h100")
    ]
    assert a.ttft is not None
    assert b.ttft is not None
    one = cells.one(model="llama-3.1-70b:fp8", layout="1xh200", load=16.0)
    two = cells.one(model="llama-3.1-70b:fp8", layout="2xh100/tp2", load=16.0)
    return Answer(
        "What does the larger memory buy?",
        "000: “How can we leverage H200 extra HBM for efficient KV cache management during"
        " inference?”",
        "Of 1.76 times the memory the KV cache gets 2 to 4 times its room, because the weights"
        f" stay as large. That shortens waiting, from {number(b.ttft.value)} s to"
        f" {number(a.ttft.value)} (median TTFT of 64 users with 8,192 tokens on two GPUs), more"
        f" than it speeds up: {times(over(a, b, OUTPUT))} the tokens a second, and"
        f" {times(over(few[0], few[1], OUTPUT))} with 4 users, who fit in either.",
        table(["model", "GPUs", "weights of each", "users on H100", "on H200", "times"], shown)
        + "\n\n"
        + wrap(
            "Users of 8,192 tokens each at once, by vLLM's own rules for memory (no error to speak"
            " of; [sizing](sizing.md)). Bandwidth alone would give the gain of the 4 users. One"
            f" H200 instead of two H100 does, with 16 users, {times(over(one, two, OUTPUT))} of"
            " their tokens a second for 0.76 of their price."
        ),
        plot(
            "03", "Llama 70B FP8, documents of 8,192 tokens", drawn, "users", "output tok/s", BAND
        ),
        "Long requests: with 1,024 tokens the cache of two H100 holds some 200, and only the"
        " bandwidth is left as a gain (question 2).",
        "Sized: users. Simulated: tokens a second, vLLM of today.",
    )


def two_nodes(cells: Cells, points: Sequence[Mapping[str, str]]) -> Answer:
    folder = "examples/questions/"
    names = {
        "8xh200/tp8": "one node", "16xh200/tp16,nodes=2": "two, 400 Gbit/s a GPU",
        f"16x{folder}h200-100gbit.yaml/tp16,nodes=2": "two, 100 Gbit/s a node",
        f"16x{folder}h200-20gbit.yaml/tp16,nodes=2": "two, 20 Gbit/s a node",
        "16xh200/tp8,pp2,nodes=2": "two stages, 400 Gbit/s",
    }  # fmt: skip
    deep = cells.of(model="deepseek-v3")
    shown, drawn = [], []
    for layout, name in names.items():
        line = [name]
        for load in (4.0, 64.0, 256.0):
            here, base = (
                deep.one(layout=layout, load=load),
                deep.one(layout="8xh200/tp8", load=load),
            )
            line += [span(here.tpot, 1e3), "1" if here is base else times(over(here, base, TPOT))]
        shown.append(line)
        drawn += [
            stat_row(name, "", cell.load, cell.point.tpot, 1e3) for cell in deep.of(layout=layout)
        ]
    fast, slow = (deep.one(layout=list(names)[at], load=256.0) for at in (1, 3))
    base = deep.one(layout="8xh200/tp8", load=256.0)
    gains = {}
    for gpu, load in itertools.product(("h100", "h200"), (4.0, 256.0)):
        eight, sixteen = (
            cells.one(model=f"llama-3.1-70b{weights}", layout=f"4x{gpu}/tp4", load=load)
            for weights in (":fp8", "")
        )
        gains[gpu, load] = over(eight, sixteen, OUTPUT)
    return Answer(
        "What does a second node cost, and what does FP8 gain?",
        "000: the overhead of communication between nodes “is at least one order of magnitude"
        " greater … for moderate-to-large batch sizes”; FP8's “speedup ratio over BF16/FP16 should"
        " be equal to H100”.",
        "An order of magnitude is the price of a slow network, not of a second node: with 256"
        f" users TPOT is {times(over(slow, base, TPOT))} that of one node where nodes have 20"
        f" Gbit/s, and {times(over(fast, base, TPOT))} where each GPU has 400. FP8 gains"
        f" {gains['h100', 4.0].ratio:.2f} times on H100 and {gains['h200', 4.0].ratio:.2f} on H200"
        f" with 4 users, {gains['h100', 256.0].ratio:.2f} and {gains['h200', 256.0].ratio:.2f} with"
        " 256: nearly equal.",
        table(["DeepSeek-V3", "TPOT, ms, 4 users", "times", "64", "times", "256", "times"], shown)
        + "\n\n"
        + wrap(
            "000 measured TPOT of 209 ms on one node and 843 on two at 1 request/s (4.0 times), 640"
            " and 275 tok/s, and at 8 requests/s 2,249 and 250: a factor of nine. Its gaps grow as"
            " those of a network of 6 Gbit/s would ([why](./seeds.md#000-deepseek-v3-sglang-041))."
            " Tensor parallelism sends every token across 122 times; a pipeline of two stages sends"
            " it once. FP8's intervals: "
            + "; ".join(
                f"{gpu.upper()}, {load:g} users: {times(each)}"
                for (gpu, load), each in gains.items()
            )
            + " (output tok/s, Llama 70B on four)."
        ),
        plot("04", "TPOT of DeepSeek-V3 by network", drawn, "users", "TPOT (ms)", BAND, log=True),
        "SGLang of today, 1,024 tokens in and out, FP8 weights. Two published measurements cross"
        " nodes: 000, on its slow network, and LMSYS's of DeepSeek on twelve nodes of eight H100"
        " with prefill and decode apart, which has no counterpart on one node. Neither tells the"
        " latency of a message, which is a guess (`network_guessed`); the bandwidth is arithmetic.",
        "All simulated; 000's own numbers are measured.",
    )


def paged_continuous(cells: Cells, points: Sequence[Mapping[str, str]]) -> Answer:
    held = {
        name: loadstone.size(
            f"llama-3.1-70b:fp8@1xh200/max_model_len={name}", context=768
        ).document()["rows"][0]["max_concurrent_requests"]
        for name in ("8192", "2048,kv_cache=reserved", "8192,kv_cache=reserved")
    }
    names = {
        "equal": "256 each",
        "guide": "200 to 512",
        "wide": "1 to 1,024",
        "widest": "log-normal, median 96, σ 0.75",
    }
    shown, drawn, static = [], [], {}
    for workload, title in names.items():

        def at(model: str, layout: str, workload: str = workload) -> CellPoint:
            return cells.one(model=model, layout=layout, workload=workload)

        paged = at("llama-3.1-70b:fp8", "1xh200/max_model_len=2048")
        reserved = {
            n: at("llama-3.1-70b:fp8", f"1xh200/max_model_len={n},kv_cache=reserved")
            for n in (2048, 8192)
        }
        batches = [
            at("llama-3.1-70b", f"8xh200/tp8,max_num_seqs=64{more}")
            for more in ("", ",batching=static")
        ]
        static[workload] = over(batches[0], batches[1], OUTPUT)
        effects = {
            "continuous over static": static[workload],
            "paged over reserved, 2,048": over(paged, reserved[2048], OUTPUT),
            "paged over reserved, 8,192": over(paged, reserved[8192], OUTPUT),
        }
        shown.append([title, *map(times, effects.values())])
        drawn += [
            row(name, title, 0, each.ratio, each.low, each.high) for name, each in effects.items()
        ]
    at_2048, at_8192 = (held["8192"] / held[f"{n},kv_cache=reserved"] for n in (2048, 8192))
    return Answer(
        "Paged caches and continuous batches",
        "001: PagedAttention: “Memory waste: 30-50% → Near-zero … 2-4× more sequences in memory”;"
        " continuous batching: “Throughput improvement: 2–8× over static batching”.",
        f"Sequences: {at_2048:.1f} times as many with contexts of 2,048, so “2–4×” holds there, and"
        f" {at_8192:.0f} times with 8,192; throughput gains less. Continuous batching gains"
        f" {static['equal'].ratio:.2f} times with equal answers and {static['widest'].ratio:.2f}"
        " with the most spread: “2–8×” is about the lengths, not about batching.",
        table(["answers, tokens", *(f"{each}, tok/s" for each in effects)], shown)
        + "\n\n"
        + wrap(
            f"Requests of 768 tokens at once on one H200 (70B, FP8): {held['8192']} paged,"
            f" {held['2048,kv_cache=reserved']} with 2,048 reserved for each,"
            f" {held['8192,kv_cache=reserved']} with 8,192. Of 2,048 reserved, 768 used leave 62 %"
            " to waste, not 30 to 50. From 91 sequences to 244 little is gained: by then computing"
            " fills a step, of prompts above all, not the reading of weights that more sequences"
            " would share."
        ),
        bars("05", "Output tok/s, new over old", drawn, "times", BAND),
        "A burst of 1,000 requests of 512 tokens. Paging pays where memory is scarce: on all eight"
        " GPUs vLLM's 1,024 slots run out first, and nothing is gained.",
        "Sized: sequences. Simulated: throughput, the old ways by the same step times"
        " (`kv_cache=reserved`, `batching=static`).",
    )


def precision(cells: Cells, points: Sequence[Mapping[str, str]]) -> Answer:
    models = {"llama-3.1-70b": "16 bits", "llama-3.1-70b:fp8": "FP8", "llama-3.1-70b:int4": "INT4"}
    claimed = {"16 bits": 12_000, "FP8": 22_000, "INT4": 28_000}
    shown, drawn, gains = [], [], {}
    for model, name in models.items():
        line: list[object] = [name, f"{claimed[name]:,}, {claimed[name] / 12_000:.2f}×"]
        for gpus, load in ((8, 64.0), (8, 1.0), (2, 64.0), (2, 1.0)):
            facts = {"layout": f"{gpus}xh200/tp{gpus}", "workload": "guide", "load": load}
            here, base = cells.one(model=model, **facts), cells.one(model="llama-3.1-70b", **facts)
            gains[name, gpus, load] = gain = (
                over(here, base, OUTPUT) if here is not base else Effect(1, 1, 1)
            )
            line.append(
                span(here.output)
                if here is base
                else f"{number(here.output_tokens_per_s or 0)}, {times(gain)}"
            )
            if here is not base:
                drawn.append(
                    row(
                        name,
                        f"{gpus} GPUs, {load:g} user{'s' * (load > 1)}",
                        0,
                        gain.ratio,
                        gain.low,
                        gain.high,
                    )
                )
        shown.append(line)
    users = [
        loadstone.size(f"llama-3.1-70b@8xh200/tp8{kv}", context="128k").document()["rows"][0][
            "max_concurrent_requests"
        ]
        for kv in ("", ",kv=fp8")
    ]
    long = [
        cells.one(model="llama-3.1-70b:fp8", layout=f"2xh200/tp2{kv}", workload="long", load=64.0)
        for kv in (",kv=fp8", "")
    ]
    return Answer(
        "FP8, INT4, and the KV cache in FP8",
        "001: FP8 offers “~2× throughput over BF16”: 12,000 tok/s for Llama-70B at a batch of 64,"
        " 22,000 with FP8, 28,000 with INT4; KV cache in FP8: “2× more concurrent long-context"
        " requests”.",
        f"On the eight GPUs that it names, FP8 gains {gains['FP8', 8, 64.0].ratio:.2f} times at 64"
        f" users and INT4 {gains['INT4', 8, 64.0].ratio:.2f}; on two, where weights are most of a"
        f" step, {gains['FP8', 2, 64.0].ratio:.2f} and {gains['INT4', 2, 64.0].ratio:.2f}"
        f" ({gains['FP8', 2, 1.0].ratio:.2f} and {gains['INT4', 2, 1.0].ratio:.2f} for one user)."
        " Measured, for another model: Qwen3.5-397B on four B300 (SGLang 0.5.10, 1,024 tokens in"
        " and out) has a TPOT of 19.7 ms in FP8 and 23.7 in 16 bits with 64 users, and 8.6 and 7.6"
        f" with four. The KV cache in FP8 does double the requests of 128K: {users[0]} to"
        f" {users[1]}.",
        table(["weights", "001", "8 GPUs, 64 users", "8, one", "2 GPUs, 64", "2, one"], shown)
        + "\n\n"
        + wrap(
            "Output tok/s, 512 in and 256 out, and times 16 bits. The levels of 001 are out of"
            " reach (question 8). "
            "Twice the "
            "requests are not twice the throughput: with prompts of 32,768 tokens for 64 users on"
            " two GPUs the FP8 "
            "cache "
            f"gives {times(over(long[0], long[1], OUTPUT))} the output tok/s, because prompts fill"
            " the time; users "
            "wait "
            f"{number(long[0].ttft.value)} s instead of {number(long[1].ttft.value)} for their first token."  # type: ignore[union-attr]
        ),
        bars("06", "Output tok/s over that of 16 bits, Llama 70B on H200", drawn, "times", BAND),
        "vLLM. INT4 weights are computed in 16 bits, so that long prompts and large batches gain"
        " nothing from them. Quality is not looked at.",
        "Sized: requests of 128K. Simulated: all else; the model's worst error for a precision is"
        " not known apart from its general one.",
    )


def speculative(cells: Cells, points: Sequence[Mapping[str, str]]) -> Answer:
    base, shown, drawn, gains = "8xh200/tp8", [], [], {}
    rates = (0.5, 0.6, 0.7, 0.8, 0.9)
    for guesses in (1, 3, 5):
        layout = f"{base},num_speculative_tokens={guesses},draft=llama-3.1-8b"
        line: list[object] = [f"{guesses} guess{'es' * (guesses > 1)}"]
        for load in (1.0, 8.0, 64.0):
            facts = [{"workload": f"accepted-{100 * rate:.0f}", "load": load} for rate in rates]
            found = [
                over(cells.one(layout=layout, **each), cells.one(layout=base, **each), OUTPUT)
                for each in facts
            ]
            gains[guesses, load] = dict(zip(rates, found, strict=True))
            if guesses != 3 or load != 8.0:
                drawn += [
                    row(f"{load:g} user{'s' * (load > 1)}", f"{guesses} guesses", rate, each.ratio)
                    for rate, each in zip(rates, found, strict=True)
                    if guesses > 1
                ]
            line += [
                f"{found[2].ratio:.2f}, {found[3].ratio:.2f}, {found[4].ratio:.2f}",
                _break_even(rates, gains[guesses, load]),
            ]
        shown.append(line)
    one = gains[5, 1.0]
    return Answer(
        "Speculative decoding, and when it pays",
        "001, a model of 8B guessing five tokens for one of 70B: “Typical speedup: 1.5–2.5×”.",
        f"For one user: {one[0.8].ratio:.2f} to {one[0.9].ratio:.2f} times with 80 to 90 % of"
        " guesses accepted. Five guesses pay for one user from an acceptance of"
        f" {_break_even(rates, one)} on, for 64 users from {_break_even(rates, gains[5, 64.0])} on,"
        f" and there they gain {gains[5, 64.0][0.9].ratio:.2f} times at 0.9.",
        table(
            [
                "",
                "1 user: at 0.7, 0.8, 0.9",
                "breaks even",
                "8 users",
                "breaks even",
                "64 users",
                "breaks even",
            ],
            shown,
        )
        + "\n\n"
        + wrap(
            "Output tok/s over those without a draft, and the acceptance at which they are equal,"
            " with its interval; that of a ratio is, at 0.8 with five guesses and one user,"
            f" {times(one[0.8])}. Three guesses are worth more than five up to 0.8: what is"
            " rejected was computed all the same."
        ),
        plot(
            "07",
            "Gain of a draft, by acceptance",
            drawn,
            "probability that a guess is accepted",
            "times without a draft",
            "Llama 70B on 8 × H200, drafts of 8B; from 1 on it pays",
        ),
        "Greedy or nearly so: acceptance is an assumption, and a property of the text. The host's"
        " work between a draft's passes is not counted, so the gains are upper ends.",
        "All simulated.",
    )


def _break_even(rates: Sequence[float], gains: Mapping[float, Effect]) -> str:
    """Where the gain crosses 1, `0.56 (<0.5–0.69)`: of the ratios, and of the ends of their
    intervals."""
    found = [gains[rate] for rate in rates]
    best, low, high = (
        _crossing(rates, [getattr(each, end) for each in found]) for end in ("ratio", "high", "low")
    )
    return f"{best} ({low}–{high})"


def _crossing(rates: Sequence[float], ratios: Sequence[float]) -> str:
    if ratios[0] >= 1:
        return f"<{rates[0]:g}"
    for (rate, ratio), (next_rate, next_ratio) in itertools.pairwise(
        zip(rates, ratios, strict=True)
    ):
        if next_ratio >= 1:
            return f"{rate + (1 - ratio) / (next_ratio - ratio) * (next_rate - rate):.2f}"
    return f">{rates[-1]:g}"


def baselines(cells: Cells, points: Sequence[Mapping[str, str]]) -> Answer:
    shown, drawn = [], []
    loads = (1.0, 16.0, 64.0, 128.0, 256.0, 512.0)
    for engine in ("vllm", "tensorrt-llm"):
        for model, name in (("llama-3.1-70b", "16 bits"), ("llama-3.1-70b:fp8", "FP8")):
            own = cells.of(engine=engine, model=model)
            at = own.one(load=64.0)
            most = max(
                (own.one(load=load) for load in loads),
                key=lambda point: point.output_tokens_per_s or 0,
            )
            probability = "–" if at.p_met is None else f"{100 * at.p_met:.0f} %"
            shown.append(
                [
                    f"{engine}, {name}",
                    span(at.ttft, 1e3),
                    span(at.tpot, 1e3),
                    probability,
                    span(at.output),
                    span(most.output),
                ]
            )
            drawn += [stat_row(engine, name, load, own.one(load=load).output) for load in loads]
    at = cells.one(engine="vllm", model="llama-3.1-70b", load=64.0)
    light_s = at.roofline.tpot_s
    assert light_s is not None
    near = next(
        each
        for each in points
        if each["gpu"].startswith("H200")
        and "Llama-3.1-70B" in each["model"]
        and not each["exclude"]
        and [
            each[name]
            for name in ("engine", "precision", "tp", "arrival_value", "input_len", "output_len")
        ]
        == ["vllm", "fp8", "8", "64", "1024", "1024"]
    )
    tpot_ms = float(near["tpot_ms_median"])
    return Answer(
        "The expected baselines contradict one another",
        "001, Llama-3 70B, tp 8 on H200: TTFT of 512 tokens < 100 ms, TPOT < 20 ms, throughput at a"
        " batch of 64 > 15,000 tokens/s.",
        "The first two are just met at 64 users, and the third cannot be: 64 users with a TPOT of"
        " 20 ms are 3,200 tok/s, 15,000 need 4.3 ms, and in 16 bits the hardware's own limit is"
        f" {1e3 * light_s:.1f} ms; the most at any load is a third of it.",
        table(
            [
                "64 users",
                "TTFT, ms",
                "TPOT, ms",
                "P(both bounds)",
                "output tok/s",
                "most at any load",
            ],
            shown,
        )
        + "\n\n"
        + wrap(
            "`P(both bounds)` is how likely the medians of both are within their bounds, by the"
            " model's errors. 15,000 would be right for prompts and answers together: at 256 users"
            " that is"
            f" {number(cells.one(engine='vllm', model='llama-3.1-70b', load=256.0).total_tokens_per_s or 0)}"
            " tok/s, and `benchmark_throughput.py`, which 001 quotes, printed that sum. Measured"
            " nearby: InferenceX's run of vLLM with FP8, tp 8 on H200, 64 users with 1,024 + 1,024"
            f" tokens has a TPOT of {tpot_ms:.1f} ms, at most {64e3 / tpot_ms:,.0f} tok/s."
        ),
        plot(
            "08",
            "Output tok/s of Llama 70B on 8 × H200",
            drawn,
            "users",
            "output tok/s",
            BAND + "; 15,000 tok/s are claimed at 64",
        ),
        "512 tokens in, 256 out, defaults of the engines of today. TTFT is of a loop in which users"
        " are out of step.",
        "Simulated; the limit of 4.3 ms is arithmetic, and that of the hardware the sum of what"
        " must be read and computed.",
    )


def tensor_or_data(cells: Cells, points: Sequence[Mapping[str, str]]) -> Answer:
    measured = {
        (each["model"].lower(), each["num_gpus"]): float(each["output_tok_s"])
        for each in points
        if each["source"].startswith("seed003")
        and each["gpu"].startswith("H100")
        and each["output_tok_s"]
    }
    tables = (RESULTS / "seeds_contexts.md").read_text("utf-8").partition("<!-- 003 -->")[2]
    contexts = re.findall(r" (\d+)/(\d+) ", tables)
    names = {"llama-3.1-8b:fp8": "8B FP8", "mistral-7b": "Mistral 7B"}
    shown, drawn = [], []
    for engine, then in (("vllm-0.6", "0.6"), ("vllm", "today")):
        for model, name in names.items():
            own = cells.of(engine=engine, model=model)
            line: list[object] = [f"{name}, {then}"]
            one = own.one(layout="1xh100/max_model_len=2000", load=320.0)
            line.append(span(one.output))
            for layout in ("8xh100/tp8,max_model_len=2000", "8xh100/tp1,dp8,max_model_len=2000"):
                many = own.one(layout=layout, load=2560.0)
                tpot = many.tpot or one.tpot
                assert tpot is not None
                line += [times(over(many, one, OUTPUT)), f"{number(tpot.value * 1e3)}"]
            shown.append(line)
            for gpus in (1, 2, 4, 8):
                for kind, layout in (
                    ("tensor", f"{gpus}xh100/tp{gpus}"),
                    ("data", f"{gpus}xh100/tp1,dp{gpus}"),
                ):
                    named = "1xh100" if gpus == 1 else layout
                    at = own.one(
                        layout=f"{named},max_model_len=2000".replace("1xh100,", "1xh100/"),
                        load=2560.0,
                    )
                    if model == "llama-3.1-8b:fp8":
                        drawn.append(stat_row(f"{kind} parallel", f"vLLM {then}", gpus, at.output))
    short, long = (
        cells.one(
            engine="vllm-0.6",
            model="llama-3.1-70b:fp8",
            layout=f"8xh100/tp8,max_model_len={n}",
            load=320.0,
        )
        for n in ("2000", "32000")
    )
    lone = [
        cells.one(engine="vllm", model="llama-3.1-8b:fp8", layout=f"{gpus}xh100/{kind}", load=1.0)
        for gpus, kind in ((8, "tp8,max_model_len=2000"), (1, "max_model_len=2000"))
    ]
    ours = {"meta-llama-3.1-8b-fp8": "llama-3.1-8b:fp8", "mistral-7b-instruct-v0.3": "mistral-7b"}
    beside = []
    for theirs, model in ours.items():
        own = cells.of(engine="vllm-0.6", model=model, load=320.0)
        first = own.one(layout="1xh100/max_model_len=2000")
        gain = times(over(own.one(layout="8xh100/tp8,max_model_len=2000"), first, OUTPUT))
        alone, eight = (
            next(rate for (name, gpus), rate in measured.items() if theirs in name and gpus == n)
            for n in "18"
        )
        beside.append(
            f"{names[model]} {number(alone)} tok/s and {eight / alone:.2f}× (simulated"
            f" {span(first.output)} and {gain})"
        )
    return Answer(
        "Tensor or data parallel, the longest context, max_model_len",
        "003: “tensor parallelism runs at lower latencies, while data parallelism runs at higher"
        " throughputs”; the longest contexts of eight models; “the ‘throughput v.s. latency’"
        " profile doesn't vary” with max_model_len.",
        "All three hold: with as many requests for each GPU, eight servers of one GPU give about"
        " eight times the tokens of one and a server of eight far fewer, while a lone user's TPOT"
        f" is {times(over(lone[0], lone[1], TPOT))} of a single GPU's; our sizing has"
        f" {sum(a == b for a, b in contexts)} of their {len(contexts)} longest contexts;"
        f" max_model_len of 32,000 instead of 2,000 gives {times(over(long, short, OUTPUT))} the"
        " throughput.",
        table(
            [
                "model, vLLM",
                "1 GPU, 320 requests, tok/s",
                "tp 8, 2,560 requests",
                "TPOT, ms",
                "dp 8, 2,560 requests",
                "TPOT, ms",
            ],
            shown,
        )
        + "\n\n"
        + wrap(
            "Times the tokens of one GPU. 003 sent 320 requests whatever the number of GPUs, and"
            f" measured on one H100 and, by tensor parallelism, on eight: {'; '.join(beside)}. So"
            " the simulation of that vLLM is too fast by more than half, and right in that eight"
            " GPUs gain little where each has so few requests. The contexts are in"
            " [seeds](seeds.md#003-longest-context-of-eight-models-a100-and-h100-80-gb)."
        ),
        plot(
            "09",
            "Llama 8B FP8, 2,560 requests of 220 + 220 tokens",
            drawn,
            "GPUs (H100)",
            "output tok/s",
            BAND,
        ),
        "Models that fit one GPU. Where the KV cache is scarce, tensor parallelism frees room by"
        " holding the weights once.",
        "Simulated: vLLM 0.6, as in 2024, and today's. Sized: contexts. 003's own numbers are"
        " measured.",
    )


def measured_here(cells: Cells, points: Sequence[Mapping[str, str]]) -> Answer:
    names = {
        "one-slot": "one slot", "static": "no continuous batching", "no-prefix-cache": "no prefix cache",
        "kv-q8": "KV cache q8_0", "drafts": "drafts (n-grams)",
    }  # fmt: skip
    shown, drawn, found, waits = [], [], {}, {}

    def bracketed(each: Mapping[str, Any]) -> str:
        return f"{each['ratio']:.2f}× ({each['low']:.2f}–{each['high']:.2f})"

    for engine, name in names.items():
        line: list[object] = [name]
        for workload, load in (("answers", 1.0), ("answers", 8.0), ("shared", 8.0)):
            sides = [
                [c.run for c in cells.of(engine=e, workload=workload, load=load)]
                for e in ("eight-slots", engine)
            ]
            rows = {
                each["metric"]: each
                for each in loadstone.compare(*sides).document()["cells"][0]["metrics"]
            }
            found[engine, workload, load] = each = rows["output_tokens_per_s"]
            line.append(bracketed(each))
            name_of = f"{workload}, {load:g} user{'s' * (load > 1)}"
            drawn.append(row(name_of, name, 0, each["ratio"], each["low"], each["high"]))
            if (workload, load) == ("answers", 8.0):
                waits[engine] = rows["ttft_p50"]
        shown.append([*line, bracketed(waits[engine])])
    base = [
        cells.of(engine="eight-slots", workload=workload, load=8.0)
        for workload in ("answers", "shared")
    ]
    rates = [[cell.point.output_tokens_per_s or 0 for cell in each] for each in base]
    cache = found["no-prefix-cache", "shared", 8.0]
    return Answer(
        "Measured here: llama.cpp's switches",
        "001's and 003's switches where a real engine has them on this machine: batching, prefix"
        " cache, the KV cache's type, drafts.",
        "The prefix cache counts most: without it prompts that share 448 of 512 tokens give"
        f" {bracketed(cache)} the tokens a second. Continuous batching brings first tokens: without"
        f" it TTFT of 8 users is {bracketed(waits['static'])}, with one slot"
        f" {bracketed(waits['one-slot'])}. On two cores, which have no idle units for a second"
        " request, it brings no throughput.",
        table(
            [
                "against eight slots, all on",
                "answers, one user, tok/s",
                "8 users, tok/s",
                "shared prefix, 8 users, tok/s",
                "answers, 8 users, TTFT",
            ],
            shown,
        )
        + "\n\n"
        + wrap(
            "Output tok/s over those of eight slots with continuous batching, a prefix cache and"
            f" 16-bit cache, which had {number(min(rates[0]))} to {number(max(rates[0]))} tok/s"
            f" with answers of 16 to 112 tokens for 8 users and {number(min(rates[1]))} to"
            f" {number(max(rates[1]))} with the shared prefix, in three repeats. In brackets: 95 %"
            " intervals of `loadstone compare` over the repeats, engines restarted for each and"
            " taken in turn."
        ),
        bars(
            "10",
            "llama.cpp's switches on two cores, measured",
            drawn,
            "output tok/s over eight slots with all on",
            "bars: 95 % intervals over three repeats",
        ),
        "The small random model of 4 million parameters, in 32 bits, llama-server build 11669: the"
        " signs hold, the sizes do not carry over to a GPU. Text of a random model repeats itself,"
        " which favours drafts.",
        "All measured, engine and client on the same two cores of a virtual machine that others"
        " use: hence wide intervals. Measured again, with more of others' work, the prefix cache"
        " came out at 0.33× (0.15–0.72), TTFT with one slot at 10.6× (1.6–72), and nothing else"
        " could be told apart.",
    )


def by_the_hour(traces: Path) -> Answer:
    """The one without a study: a recommendation of each trace."""
    every_s, bound = 300.0, "ttft_p99<2s,tpot_p90<60ms"
    kinds = {"conversations": ("conv", 10), "code": ("code", 5)}
    shown, drawn, saved, command = [], [], {}, ""
    checked: list[str] = []
    late: list[str] = []
    for name, (which, growth) in kinds.items():
        file = traces / "azure" / f"AzureLLMInferenceTrace_{which}.csv"
        found = loadstone.recommend(
            "llama-3.1-70b", trace=file, growth=growth, every=every_s, start_up=120, reserve=1, slo=bound,
            gpus="h100,h200", engine="vllm", price="h100=2.1,h200=3.2", gpus_max=128,
        )  # fmt: skip
        command = command or (
            f"loadstone recommend llama-3.1-70b --trace {file.name} --growth {growth} --every 5m"
            f" --start-up 2m --reserve 1 --slo '{bound}' --gpus h100,h200 --engine vllm --price"
            " h100=2.1,h200=3.2 --gpus-max 128"
        )
        plan = found.plans[0]
        assert plan.by_hour is not None
        replicas, each = np.array(plan.by_hour.replicas, float), plan.gpus / plan.replicas
        means = [
            float(Hours(replicas, every_s, 60 * minutes, (0, 0)).mean(replicas)) * each
            for minutes in (0, 2, 5, 15)
        ]
        saved[name] = plan.by_hour.saves
        hourly, p_slo = plan.by_hour, 100 * plan.p_slo
        line = [
            f"{name}, {growth}×",
            number(found.traffic.value),
            f"{plan.gpus}, P {p_slo:.0f} %",
            dollars(plan.usd_per_month),
        ]
        line += [f"{hourly.gpus:.1f}", dollars(hourly.usd_per_month)]
        shown.append([*line, ", ".join(f"{100 * (1 - mean / plan.gpus):.0f}" for mean in means)])
        checked += [f"{name} {_checked(plan.deployment, hourly.replicas, file, growth, every_s)}"]
        late.append(f"{100 * (1 - means[-1] / plan.gpus):.0f}")
        for window, here in enumerate(plan.by_hour.replicas):
            drawn.append(row(name, "by 5 minutes", 5 * window, here * each))
            drawn.append(row(name, "all the time", 5 * window, plan.gpus))
    return Answer(
        "How many GPUs does an hour of Azure's traffic take?",
        "Next after the documents' questions: the fewest GPUs for a trace of real traffic, all the"
        " time or as it comes, with the time to start them, and one replica that may fail.",
        f"Following the traffic in steps of five minutes saves {100 * saved['conversations']:.0f} %"
        f" of the GPUs for conversations and {100 * saved['code']:.0f} % for code, if a replica"
        f" starts in two minutes, and {' and '.join(late)} % if it takes fifteen.",
        table(
            [
                "trace",
                "requests/s, busiest 5 min",
                "GPUs all the time",
                "$ a month",
                "GPUs by 5 min, mean",
                "$ a month",
                "saves, % at 0, 2, 5, 15 min to start",
            ],
            shown,
        )
        + "\n\n"
        + wrap(
            "In brackets: 80 % intervals, those by 5 minutes of the draws in which 128 GPUs can"
            " hold the bounds at all. Each window was then simulated with its replicas, one of"
            f" them failed (p99 of TTFT, p90 of TPOT): {'; '.join(checked)}. The first plan of the"
            " recommendation, Llama 70B:"
        )
        + f"\n\n```console\n$ {command}\n```",
        plot("11", "GPUs that follow Azure's traffic", drawn, "minutes of the trace", "GPUs"),
        "Traces of an hour in November 2023, grown ten and five times and repeated; a day's varies"
        " more. Windows are compared by requests per second.",
        "Simulated: the busiest five minutes, at several loads. Arithmetic: the rest. No study; the"
        " command is above.",
    )


def _checked(
    deployment: str, replicas: Sequence[int], file: Path, growth: float, every_s: float
) -> str:
    """The windows simulated with a replica less than they have: `0.33–0.58 s, 24–34 ms`."""
    head, _, options = deployment.partition("/")
    model, _, where = head.rpartition("@")
    gpus, _, gpu = where.partition("x")
    ttft, tpot = [], []
    with TemporaryDirectory() as folder:
        for at, many in enumerate(replicas):
            cell = loadstone.simulate(
                f"{model}@{int(gpus) * (many - 1)}x{gpu}/dp{many - 1},{options}",
                trace=file, trace_window=f"{every_s * at:g}s:{every_s * (at + 1):g}s", time_scale=1 / growth,
                warmup=0, draws=0, out=folder,
            ).document()["cells"][0]["metrics"]  # fmt: skip
            ttft.append(cell["ttft_intended_s"]["p99"])
            tpot.append(1e3 * cell["tpot_s"]["p90"])
    return f"{min(ttft):.2f}–{max(ttft):.2f} s, {min(tpot):.0f}–{max(tpot):.0f} ms"


def dollars(span_: Span | None) -> str:
    assert span_ is not None
    return f"{number(span_.value)} ({number(span_.low)}–{number(span_.high)})"


# --- the page -------------------------------------------------------------------------------------


def wrap(text: str) -> str:
    return textwrap.fill(text, 118, break_long_words=False, break_on_hyphens=False)


Question = Callable[[Cells, Sequence[Mapping[str, str]]], Answer]
QUESTIONS: dict[int, Question] = {
    1: chips_or_memory, 2: what_binds, 3: room_for_users, 4: two_nodes, 5: paged_continuous, 6: precision,
    7: speculative, 8: baselines, 9: tensor_or_data, 10: measured_here,
}  # fmt: skip
BY_THE_HOUR = 11
HEAD = """# The questions that this project started from, answered

Each answer comes from a study in `examples/questions`. `python benchmarks/questions.py POINTS.csv` makes this page and
its pictures. Numbers in brackets are 80 % intervals of the performance model's error on machines that no fit has seen
([accuracy](../../docs/accuracy.md)), unless a section says otherwise; an interval that contains 1 leaves the sign
open. [Seeds](../../docs/seeds.md) describes the four documents, 000 to 003.
"""


def section(number_: int, study: Path | None, made: Answer) -> str:
    """Writes what was asked, the answer with its picture and table, and how it was made."""
    source = (
        f" Study: [{study.name}](../../examples/questions/{study.name})."
        if study is not None
        else ""
    )
    return "\n\n".join((
        f"## {number_}. {made.title}",
        "\n".join(f"> {line}" for line in wrap(made.asked).split("\n")),
        wrap(f"**{made.answer}**"),
        f"![{made.picture.title}](../../docs/pictures/questions/{number_:02}.svg)",
        re.sub(r"\]\((?=\w+\.md)", "](../../docs/", made.text),
        wrap(f"*Where it holds.* {made.holds}{source}"),
        wrap(f"*How.* {made.made}"),
    ))  # fmt: skip


def put(page: Path, head: str, number_: int, text: str) -> None:
    """Replaces one section of a page; the others stay as they are."""
    old = page.read_text("utf-8") if page.exists() else ""
    sections = {
        int(each.partition(".")[0]): f"## {each.strip()}" for each in old.split("\n## ")[1:]
    }
    sections[number_] = text
    page.write_text(
        "\n\n".join([head.strip(), *(sections[key] for key in sorted(sections))]) + "\n", "utf-8"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("points", type=Path)
    parser.add_argument(
        "--traces", type=Path, default=Path("traces"), help="folder with azure/ in it"
    )
    parser.add_argument(
        "--only", default=",".join(map(str, [*QUESTIONS, BY_THE_HOUR])), help="numbers of questions"
    )
    parser.add_argument("--out", type=Path, default=Path("studies"), help="folder for studies")
    given = parser.parse_args()
    with given.points.open(encoding="utf-8", newline="") as file:
        points = list(csv.DictReader(file))
    PICTURES.mkdir(parents=True, exist_ok=True)
    for number_ in map(int, given.only.split(",")):
        study = None if number_ == BY_THE_HOUR else next(STUDIES.glob(f"{number_:02}-*.yaml"))
        made = (
            QUESTIONS[number_](run(study, given.out), points)
            if study
            else by_the_hour(given.traces)
        )
        save_picture(made.picture, PICTURES / f"{number_:02}.svg")
        put(PAGE, HEAD, number_, section(number_, study, made))
        print(f"question {number_}: {made.answer}")


if __name__ == "__main__":
    main()
