"""Findings in words: said where planted data shows it, with sizes; silent where it does not."""

from __future__ import annotations

import csv
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from loadstone.analyse.compare.ratio import OTHER_REPEATS, REPEATS
from loadstone.core.errors import InputError
from loadstone.interop.read.folders import run_folders
from loadstone.report.charts.bars import ratio_figures
from loadstone.report.data.frames import E2E, ITL, OUTPUT, TPOT, TTFT
from loadstone.report.data.pairs import Effect, effect, gpu_ratios
from loadstone.report.data.points import CellPoint
from loadstone.report.data.runs import read_runs
from loadstone.report.findings import answer, observations
from loadstone.report.findings.sentence import ranges
from loadstone.report.pages.cell_tables import ratios
from loadstone.report.pages.document import build
from loadstone.report.pages.study import StudyCell, StudyPart
from report_folders import Json, cell, length, points, record, run, stat

WARNED: Json = {"trusted": False, "findings": [{"kind": "queue_grows", "severity": "warning"}]}
UNMEASURED: Json = {"trusted": False, "findings": [{"kind": "unmeasured", "severity": "warning"}]}
POINTS = Path(__file__).resolve().parents[3] / "shared" / "data" / "points.csv"


def said(folder: Path, kind: str | None = None) -> list[str]:
    return [each.text for each in observations(points(folder)) if kind in (None, each.kind)]


def sweep(tpots: list[float], **more: Any) -> list[Json]:
    return [cell(4.0 ** (n + 1), tpot=tpot, **more) for n, tpot in enumerate(tpots)]


Made = tuple[list[Json], Json]
LEVEL: Json = {"samples": 9, "restarts": 0}
WAITING: Json = {"waiting": {"mean": 30.0, "max": 40.0}}
RUNNING: Json = {"running": {"mean": 32.0, "max": 32.0}}
PREFIX: Json = {"workload": {"prefix_tokens": 512}}
SLO: Json = {"slo": {"tpot_p99": 0.05}}
LLAMA: Json = {
    "model": "meta-llama/Llama-3.1-8B", "deployment": {"gpu": "h200", "gpus": 1, "tp": 1, "weights_dtype": "bf16"},
}  # fmt: skip


def made(*cells: Json, **more: Any) -> Made:
    """A run of these cells: those of vLLM on 8×H200, but for `more`."""
    return list(cells), more


def swept(tpots: list[float], **more: Any) -> Made:
    return sweep(tpots), more


def grown(engine: str, ttfts: tuple[float, ...]) -> list[Made]:
    """A run for each output length, which doubles."""
    runs = enumerate(ttfts)
    return [
        made(cell(8, ttft=ttft), engine=engine, workload={"output": length(800 * 2**n)})
        for n, ttft in runs
    ]


def outputs(*values: float, **more: Any) -> Made:
    """A run whose load grows fourfold from cell to cell, from 4."""
    return made(*(cell(4.0 ** (n + 1), output=value) for n, value in enumerate(values)), **more)


def bounded(load: float, output: float, met: bool) -> Json:
    return cell(
        load,
        output=output,
        total=2 * output,
        slo=[{"bound": "tpot_p99", "limit_s": 0.05, "met": met}],
    )


def priced(*met: bool) -> list[Made]:
    ours = [bounded(4, 400, met[0]), bounded(16, 1500, met[1])]
    return [
        made(*ours, **SLO),
        made(bounded(4, 300, True), bounded(16, 1000, True), engine="SGLang", **SLO),
    ]


def scaled(more: Json) -> list[Made]:
    cells = [cell(4, output=1001), cell(16, output=3000, tpot=0.015, verdict=WARNED)]
    return [
        made(cell(4, output=1000), cell(16, output=2000), deployment={"gpus": 8, "tp": 8}),
        made(*cells, deployment=more),
        made(*cells, deployment={"gpus": 16, "tp": 4, "pp": 4}),  # another split too: what does it?
        made(*cells, deployment=more, model="Other-7B"),
    ]


FOUND: dict[str, tuple[str, list[Made], list[str]]] = {
    "a leader is named with its lead": (
        "leader", [swept([0.010, 0.012]), swept([0.020, 0.018], engine="SGLang")],
        ["^On 8×H200, vLLM has the lowest TPOT at every concurrency measured (4 and 16), from 33% (",
         " below SGLang at 16 to a factor of 2 (1.91–2.09) below SGLang at 4", "!TTFT"],
    ),
    "repeats of one setup do not compete": (
        "leader", [swept([0.010, 0.010]), swept([0.013, 0.013]), swept([0.020, 0.020])], [],
    ),
    "of repeats the one in the middle competes": (
        "leader", [*(swept([tpot, tpot]) for tpot in (0.010, 0.013, 0.020)), swept([0.026, 0.026], engine="SGLang")],
        ["^On 8×H200, vLLM has the lowest TPOT at every concurrency measured (4 and 16), ", "a factor of 2 ("],
    ),
    "what lies within the intervals is not said": (
        "leader", [swept([0.0200, 0.0200]), swept([0.0203, 0.0203], engine="SGLang")], [],
    ),
    "leads that change are told by load": (
        "leader", [swept([0.010, 0.020, 0.030]), swept([0.020, 0.020, 0.020], engine="SGLang")],
        ["vLLM has the lowest TPOT at concurrency 4, 10.0 ms, a factor of 2 (",
         "SGLang at concurrency 64, 20.0 ms, 33%", "the first two cannot be told apart at 16"],
    ),
    "a leader at one load": (
        "leader", [made(cell(16, output=2000)), made(cell(16, output=1000), engine="SGLang")],
        ["^On 8×H200, vLLM has the highest output throughput at concurrency 16, 2,000 tok/s, a factor"],
    ),
    "a leader's cells carry a warning": (
        "leader", [made(*(cell(load, tpot=tpot, **more) for load in (1.0, 4.0)), engine=name)
                   for name, tpot, more in (("vLLM", 0.01, {"verdict": WARNED}), ("SGLang", 0.02, {}))],
        ["TPOT", "some of these loads carry a warning.$"],
    ),
    "a peak's cells carry a warning": (
        "peak", [made(*(cell(load, total=load * 10 / tpot, **more) for load in (1.0, 4.0)), engine=name)
                 for name, tpot, more in (("vLLM", 0.01, {"verdict": WARNED}), ("SGLang", 0.02, {}))],
        ["1 of these 2 loads carries a warning.$"],
    ),
    "a peak says output and total": (
        "peak", [made(cell(4, output=500, total=1000), cell(16, output=900, total=1800)),
                 made(cell(4, output=500, total=1000), cell(16, output=700, total=1400), engine="SGLang")],
        ["vLLM on 8×H200 with 1,800 tok/s of input and output (900.0 of output) at concurrency 16, 29% ("],
    ),
    "a peak says output where a total is missing": (
        "peak", [made(cell(4, output=500, total=1000), cell(16, output=900, total=1800)),
                 made(cell(4, output=500, total=None), cell(16, output=950, total=None), engine="llama.cpp")],
        ["llama.cpp on 8×H200 with 950.0 output tok/s"],
    ),
    "a peak that is none is called so": (
        "peak", [made(cell(4, output=500), cell(16, output=900, total=1801)),
                 made(cell(4, output=500), cell(16, output=895, total=1790), engine="SGLang")],
        ["; not clearly above the next, "],
    ),
    "setups that differ in their precision alone are told apart": (
        "peak", [made(cell(4, output=500), cell(16, output=900), deployment={"weights_dtype": "bf16"}),
                 made(cell(4), cell(16, output=1800, total=3600), deployment={"weights_dtype": "fp8"})],
        [": vLLM on 8×H200, fp8 with 3,600 tok/s", "the next, vLLM on 8×H200, bf16 ("],
    ),
    "another precision is told though the GPUs differ too": (
        "peak", [made(cell(4, output=500), cell(16, output=900), deployment={"weights_dtype": "bf16"}),
                 made(cell(4), cell(16, output=1800, total=3600), deployment={"weights_dtype": "fp8", "gpus": 4})],
        [": vLLM on 4×H200, fp8 with 3,600 tok/s"],
    ),
    "a burst is not called online": (
        "peak", [made(*(cell(n, kind="burst", output=output) for n in (8, 32)), engine=engine)
                 for engine, output in (("vLLM", 2000), ("SGLang", 1000))],
        ["^Highest burst throughput: "],
    ),
    **{
        f"the server says: {word}": (
            "bottleneck", [made(cell(4, output=400), cell(16, output=1500), cell(64, output=1520, server=server))],
            ["output throughput stops growing at concurrency 16 (1,500 tok/s; 1,520 at 64)", f"limited by {word}"],
        ) for server, word in (
            (LEVEL | WAITING | {"kv_usage": {"mean": 0.9, "max": 0.99}}, "KV room: the cache is 99% full"),
            (LEVEL | {"preemptions": 12.0}, "KV room: 12 requests were preempted"),
            (LEVEL | WAITING | RUNNING | {"kv_usage": {"mean": 0.2, "max": 0.3}}, "slots: 30 requests wait"),
        )
    },
    **{
        f"the hardware says: {word}": (
            "bottleneck", [made(cell(4, output=400), cell(16, output=1500), cell(64, output=1520, light=light))],
            [f"limited by {word}."],
        ) for light, word in (
            ({"mfu": 0.52, "mbu": 0.3}, "prefill compute: MFU is 52%"),
            ({"mfu": 0.1, "mbu": 0.8}, "decode bandwidth: MBU is 80%"),
        )
    },
    **{
        f"latencies say: {word}": (
            "bottleneck", [made(cell(16, output=1500, ttft=before[0], tpot=before[1]),
                                cell(64, output=1520, ttft=after[0], tpot=after[1]))], [word],
        ) for before, after, word in (
            ((0.1, 0.02), (2.0, 0.021), "an unknown resource: requests wait before their first token"),
            ((0.1, 0.02), (0.4, 0.08), "by compute or by KV reads"),
            ((None, None), (None, None), "limited by an unknown resource: neither metrics nor latencies tell.$"),
        )
    },
    "free growth is told": ("bottleneck", [outputs(400, 1590, 6200)], ["memory bandwidth"]),
    "a pause in growth is not its end": (
        "bottleneck", [outputs(300, 310, 600, 610)], ["stops growing at concurrency 64 (600"],
    ),
    "throughput that still grows is not said to stop": (  # 2.5% a doubling
        "bottleneck", [outputs(1000, 1050)],
        ["output throughput hardly grows beyond concurrency 4 (1,000 tok/s; 1,050 at 16)"],
    ),
    "throughput that falls has stopped": (
        "bottleneck", [outputs(1000, 900)], ["output throughput stops growing at concurrency 4 (1,000 tok/s; 900"],
    ),
    "growth of a tenth a doubling is growth": (
        "bottleneck", [made(cell(4, output=1000), cell(8, output=1106), cell(16, output=1223))],
        ["!hardly", "!stops"],
    ),
    # 15 others that begin while 127 tokens come take 15·TTFT at most: 24 ms of each of 200, or 236.
    "a step that others' prompts do not explain is the host's": (
        "light", [made(cell(16, tpot=0.2, ttft=0.2), cell(64, tpot=0.4, ttft=0.2), **LLAMA)],
        ["host, launches or links"],
    ),
    "prompts of others are not taken for host time": (
        "light", [made(cell(16, tpot=0.2, ttft=2.0), cell(64, tpot=0.4, ttft=2.0), **LLAMA)],
        ["of the roofline", "!host, launches or links"],
    ),
    "steady and rising by length": (
        "trend", [*grown("vLLM", (0.1, 0.1, 1.5)), *grown("SGLang", (0.2, 0.2, 0.21))],
        ["^TTFT", "steady for SGLang on 8×H200 (within 5%)", "vLLM on 8×H200's grows 15×",
         "most of it from 1,600 to 3,200 (15×)"],
    ),
    "of a run and its copy neither comes first": (  # and nothing is said of how they grow
        "trend", [*grown("vLLM", (0.1, 0.1, 1.5)) * 2, *grown("SGLang", (0.1, 0.1, 1.5))],
        ["^TTFT", "SGLang on 8×H200's grows 15×", "!vLLM"],
    ),
    "a switch says what it changes": (
        "switch", [made(cell(8, ttft=1.0, output=500)), made(cell(8, ttft=0.1, output=1000), **PREFIX)],
        ["^vLLM on 8×H200 with 512 tokens shared, at concurrency 8: output throughput ", ": TTFT a factor of 10 ("],
    ),
    "a switch's cells carry a warning": (
        "switch", [made(cell(8, ttft=1.0)), made(cell(8, ttft=0.1), **PREFIX), made(cell(64, verdict=WARNED)),
                   made(cell(64, ttft=0.01), **PREFIX)],
        ["some of these loads carry a warning.$"],
    ),
    **{
        f"runs of other settings are no repeats: {names[0]}": (
            "switch", [made(cell(8, ttft=ttft), **told(n)) for n, ttft in (("8", 1.0), ("64", 0.1))],
            ["^vLLM on 8×H200 with settings {1} instead of {0}, at concurrency 8: ".format(*names),
             ": TTFT a factor of 10 ("],
        ) for told, names in (
            (lambda n: {"settings": {"label": f"seqs {n}"}}, ("seqs 64", "seqs 8")),
            (lambda n: {"deployment": {"arguments": {"max_num_seqs": n}}}, ("max_num_seqs=64", "max_num_seqs=8")),
        )
    },
    # A label is a fact of the setup only where nothing else tells the labelled cells from others.
    "a label hides no prefix": (
        "switch", [made(cell(8, ttft=1.0), settings={"label": "plain"}),
                   made(cell(8, ttft=0.1), settings={"label": "shared"}, **PREFIX)],
        ["vLLM on 8×H200 with 512 tokens shared (shared instead of plain), at concurrency 8: "],
    ),
    "a label hides no GPU": (
        "ratio", [made(cell(64, output=output), deployment={"gpu": gpu}, settings={"label": label})
                  for label, gpu, output in (("old", "a100", 500.0), ("new", "h100", 1000.0))],
        ["^H100 against A100 with vLLM, all else equal: output throughput a factor of 2 ("],
    ),
    "labels are compared with labels": (  # eager and not, with a prefix and without: four setups
        "switch", [made(cell(8, ttft=slower * ttft), settings={"label": label}, workload={"prefix_tokens": prefix})
                   for label, slower in (("eager", 2.0), ("graphs", 1.0)) for prefix, ttft in ((0, 1.0), (512, 0.1))],
        ["eager with 512 tokens shared, at", "with settings graphs instead of eager, at"],
    ),
    "GPUs are compared where all else is equal": (
        "ratio", [made(cell(64, output=output, tpot=tpot), deployment={"gpu": gpu, "gpus": 1})
                  for gpu, output, tpot in (("a100", 500.0, 0.04), ("h100", 1000.0, 0.02))],
        ["^H100 against A100 with vLLM, all else equal: output throughput a factor of 2 ("],
    ),
    "GPUs are not compared where their number differs": (
        "ratio", [made(cell(64), deployment={"gpu": gpu, "gpus": gpus}) for gpu, gpus in (("a100", 1), ("h100", 2))],
        [],
    ),
    # Else it would stand beside a peak of which nobody can tell whose it is.
    "a ratio of which half is beyond its interval is said of that half": (
        "ratio", [swept([0.02, 0.02], deployment={"gpu": "h100"}),
                  made(cell(4, tpot=0.01, output=1001), cell(16, tpot=0.0199), deployment={"gpu": "h200"})],
        ["^8×H200 against 8×H100 with vLLM, at concurrency 4 and 16: TPOT a factor of 2 (1.91–2.09) lower at 4.$"],
    ),
    **{
        f"more GPUs say what they give in all and each: {split}": (
            "scale", scaled(more),
            [f"^vLLM on 16×H200 ({split}) instead of 8×H200 (tp8), at concurrency 4 and 16: output throughput 50% (",
             "higher at 16; TPOT 25% (", "; output throughput per GPU 25% (22–28) to 50% (48–52) lower; some of"],
        ) for more, split in (
            ({"gpus": 16, "tp": 8, "pp": 2}, "tp8 pp2"), ({"gpus": 16, "tp": 16}, "tp16"),
            ({"gpus": 16, "tp": 8, "dp": 2}, "tp8 dp2"),
        )
    },
    "the next number of GPUs is compared": (
        "scale", [made(cell(4, output=output), cell(16, output=output), deployment={"gpus": gpus, "tp": gpus})
                  for gpus, output in ((1, 100), (2, 190), (4, 350))],
        ["^vLLM on 2×H200 (tp2) instead of 1×H200 (tp1), at", "^vLLM on 4×H200 (tp4) instead of 2×H200 (tp2), at",
         "!4×H200 (tp4) instead of 1×"],
    ),
    "predictions without any measurement say so": (
        "price", [made(cell(4, output=900), source="simulated"),
                  made(cell(4, output=300, verdict=UNMEASURED), source="simulated", deployment={"gpu": "gaudi3"})],
        ["(Gaudi3: from the data sheet, without a measurement of that vendor's GPUs).$"],
    ),
    "bursts have a price": (
        "price", [made(*(cell(n, kind="burst", output=output) for n in (8, 32)), engine=engine)
                  for engine, output in (("vLLM", 2000), ("SGLang", 1000))],
        ["^Cheapest output tokens in bursts: "],
    ),
    **{
        f"the best meet what was asked of them: {met}": (
            kind, priced(*met), [words.replace("SLO", "tpot_p99 < 50.0 ms")] if words else [],
        ) for met, kind, words in (
            ((True, True), "price", "of the 4 of 4 loads that meet SLO): vLLM on 8×H200 at concurrency 16"),
            ((True, False), "price", "of the 3 of 4 loads that meet SLO): SGLang on 8×H200 at concurrency 16"),
            ((False, False), "price", "of the 2 of 4 loads that meet SLO): only SGLang on 8×H200, at"),
        )
    },
    **{
        f"the peak meets what was asked of it: {met}": ("peak", priced(*met), words) for met, words in (
            ((True, True), ["with 3,000 tok/s"]), ((True, False), ["with 2,000 tok/s"]), ((False, False), []),
        )
    },
    "none that meets its bounds is cheapest": (
        "price", [made(bounded(4, 400, False), **SLO), made(bounded(4, 300, False), engine="SGLang", **SLO)],
        ["of the 0 of 2 loads that meet", "): none.$"],
    ),
    "one run of one cell says nothing": ("", [made(cell(4))], []),
}  # fmt: skip
"""What is said of which runs: the kind of the sentences, and parts of them. ^ begins a sentence and
$ ends one; what follows ! is in none; without any part nothing is said."""


@pytest.mark.parametrize("case", FOUND)
def test_what_the_runs_show_is_said(tmp_path: Path, case: str) -> None:
    kind, runs, parts = FOUND[case]
    for number, (cells, more) in enumerate(runs):
        run(tmp_path, f"r{number:02d}", cells, **more)
    found = observations(
        points(tmp_path, {"h200": 3.0, "gaudi3": 2.0} if kind == "price" else None)
    )
    texts = [f"^{each.text}$" for each in found if kind in ("", each.kind)]
    for part in parts:
        assert (
            any(part in text for text in texts)
            if part[0] != "!"
            else all(part[1:] not in each for each in texts)
        )
    assert texts or not [part for part in parts if part[0] != "!"]
    assert parts or not texts, texts


def test_a_cell_of_too_few_generations_has_no_winner(tmp_path: Path) -> None:
    """Its requests are there, and their summary says that nothing is known of how sure a value
    is."""
    for name, engine, tpot in (("a", "vLLM", 0.01), ("b", "SGLang", 0.02)):
        one = cell(64, tpot=tpot)
        one["metrics"]["tpot_s"]["ci95"]["p50"] = [None, None]
        run(tmp_path, name, [one], engine=engine, records=[record(0, 0.0, [0.1, 0.2])])
    a, b = points(tmp_path)
    assert effect(a, b, TPOT) is None
    assert not [text for text in said(tmp_path, "leader") if "TPOT" in text]


def test_the_interval_has_sampling_and_repeats_in_it(tmp_path: Path) -> None:
    run(tmp_path, "a", [cell(4, ttft=0.2)])
    run(tmp_path, "b", [cell(4, ttft=0.1)], engine="SGLang")
    a, b = points(tmp_path)
    found = effect(a, b, TTFT)
    assert found is not None
    assert found.ratio == pytest.approx(2)
    sampling = 0.5 * math.log(1.02 / 0.98)
    reach = (2 * sampling**2 + REPEATS["ttft"] ** 2) ** 0.5  # both were measured, once
    assert found.high / found.ratio == pytest.approx(math.exp(reach))
    assert found.clear
    assert not Effect(1.01, 0.99, 1.03).clear
    throughput = effect(a, b, OUTPUT)
    assert throughput is not None
    assert throughput.high > 1 + OTHER_REPEATS


def test_effects_in_words() -> None:
    assert Effect(1.25, 1.2, 1.3).words == "25% (20–30)"
    assert Effect(0.75, 0.7, 0.8).words == "25% (20–30)"
    assert Effect(0.25, 0.2, 0.5).words == "a factor of 4 (2–5)"


def test_a_predicted_throughput_of_a_closed_loop_is_as_sure_as_its_latency(tmp_path: Path) -> None:
    """Places over mean E2E: of 4.8 times the throughput nobody says that nothing is shown."""

    def simulated(name: str, gpu: str, output: float) -> CellPoint:
        one = cell(16, e2e=16_000 / output, output=output)
        one["metrics"]["interval"] = {
            "output_tokens_per_s": {"low": output / 4, "high": output * 4}
        }
        one["metrics"]["e2e_s"] |= {"low": 0.8 * 16_000 / output, "high": 1.25 * 16_000 / output}
        run(tmp_path / name, name, [one], source="simulated", deployment={"gpu": gpu})
        return points(tmp_path / name)[0]

    found = effect(simulated("a", "h200", 4800.0), simulated("b", "h100", 1000.0), OUTPUT)
    assert found is not None
    # Two thirds of it are one error, and a simulation repeats itself.
    assert found.ratio / found.low == pytest.approx(math.exp(math.sqrt(2 / 3) * math.log(1.25)))


def test_percentages_have_no_exponents() -> None:
    assert Effect(1.53, 1.13, 2.1).percent == "53% (13–110)"
    assert Effect(1.034, 1.0012, 1.0679).percent == "3.4% (0.12–6.8)"


def two_gpus(folder: Path, source: str = "measured", **more: Any) -> None:
    for gpu, output, latency in (("a100", 500.0, 100.0), ("h100", 1000.0, 0.5)):
        cells = [
            cell(1, kind="rate", output=output, ttft=0.02 * latency**0.1, e2e=2.0),
            cell(
                8,
                kind="rate",
                output=output,
                ttft=latency,
                tpot=0.02 * 1000 / output,
                e2e=10 * latency,
                **more,
            ),
        ]
        run(folder, gpu, cells, deployment={"gpu": gpu, "gpus": 1}, source=source)


def test_queues_that_grew_are_not_divided(tmp_path: Path) -> None:
    """The ratio of two of them is that of how long the cells lasted."""
    two_gpus(tmp_path / "fine")
    assert "TTFT 18.4× better on average" in said(tmp_path / "fine", "ratio")[0]
    two_gpus(tmp_path / "grown", verdict=WARNED)
    found = points(tmp_path / "grown")
    text, by_load = said(tmp_path / "grown", "ratio")
    assert "TPOT a factor of 2 (1.91–2.09) lower at 8; some" in by_load
    assert "TTFT 41% (" in text  # of the pair of cells that kept up
    assert "TPOT" in text or "output throughput" in text
    assert text.endswith("some of these loads carry a warning.")
    heavy = [point for point in found if point.load == 8]
    assert [effect(heavy[0], heavy[1], measure) is None for measure in (TTFT, E2E, OUTPUT)] == [
        True,
        True,
        False,
    ]
    (table,) = ratios(found)
    assert [row[3].partition(",")[0] for row in table.rows] == ["1 request/s"]
    (figure,) = ratio_figures(gpu_ratios(found))
    assert "keep up with" in " ".join(figure.notes)
    only = [point for point in found if point.load == 8]
    (table,) = ratios(only)
    assert table.rows[0][3].endswith("†")
    assert "lower TTFT" not in table.heads
    assert any("†: a load carries a warning" in note for note in table.notes)
    assert any("are left out" in note for note in table.notes)
    (figure,) = ratio_figures(gpu_ratios(only))
    assert "×: the load carries a warning" in figure.notes[-1]
    assert "are left out" in figure.notes[-1]


def test_loads_are_listed_as_one_says_them() -> None:
    every = [4.0, 8.0, 16.0, 32.0, 64.0, 128.0]
    said = {(8,): "8", (8, 32): "8 and 32", (64, 128): "64 and 128", (4, 8, 32, 64, 128): "4, 8 and 32 to 128",
            (4, 8, 16, 128): "4 to 16 and 128"}  # fmt: skip
    assert {xs: ranges([float(x) for x in xs], every) for xs in said} == said


def test_predictions_are_called_so(tmp_path: Path) -> None:
    two_gpus(tmp_path, source="simulated")
    for path in tmp_path.glob("*/summary.json"):
        document = json.loads(path.read_text())
        for each in document["cells"]:
            for name in ("ttft_intended_s", "tpot_s", "e2e_intended_s"):
                values = each["metrics"][name]
                values |= {"low": values["p50"] / 1.3, "high": values["p50"] * 1.3}
        path.write_text(json.dumps(document))
    every = observations(points(tmp_path))
    assert every
    assert all(each.predicted and each.whole.startswith("Predicted: ") for each in every)
    # ln 1.3 of both, two thirds of which are one error: e^√(2/3·0.262²)
    assert "over 2 pairs of loads, each certain to a factor of 1.2)" in said(tmp_path, "ratio")[0]
    (table,) = ratios(points(tmp_path))
    assert "for predictions the model's own, 80%" in table.notes[0]
    (figure,) = ratio_figures(gpu_ratios(points(tmp_path)))
    assert (
        figure.notes[-1]
        == "bars: for predictions the model's own, 80%, and how much repeats differ"
    )
    two_gpus(tmp_path / "measured")
    assert not [text for text in said(tmp_path / "measured") if "redict" in text]
    assert "predict" not in " ".join(ratios(points(tmp_path / "measured"))[0].notes)


def test_means_stand_in_where_no_median_is_known(tmp_path: Path) -> None:
    only_mean = {"mean": 0.1, "std": 0.01, "p50": None}
    bare = cell(4)
    bare["metrics"]["ttft_s"] = only_mean
    run(tmp_path, "a", [bare], source="imported")
    (point,) = points(tmp_path)
    assert point.ttft is not None
    assert (point.ttft.which, point.ttft.value, point.ttft.n) == ("mean", 0.1, 500)
    assert point.ttft.low is None  # of sums nobody knows how their requests depend on one another


@pytest.mark.parametrize(
    "odd",
    [
        {"load": {"kind": "concurrency", "value": 1.0}},
        {
            "load": {"kind": "concurrency", "value": 2.0},
            "metrics": None,
            "requests": [],
            "verdict": 3,
        },
        {"load": None, "metrics": {"ttft_s": stat(1.0)}},
        "no cell",
    ],
)
def test_an_odd_summary_is_refused_in_one_line(tmp_path: Path, odd: Json | str) -> None:
    path = run(tmp_path, "a", [cell(4)]) / "summary.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document | {"cells": [*document["cells"], odd]}))
    with pytest.raises(InputError, match=r"not a summary \(.*recover"):
        read_runs([path.parent])


def test_a_gpu_that_is_ahead_at_some_loads_is_ahead_at_these(tmp_path: Path) -> None:
    """One load of another model that disagrees is too little to be said of it."""
    for gpu, outputs in (("h100", (100, 1500, 3000, 5000)), ("h200", (130, 1900, 3010, 4990))):
        cells = [cell(4.0**n, output=output) for n, output in enumerate(outputs)]
        for each in cells:
            each["metrics"]["interval"] = {"output_tokens_per_s": {"low": 99.0, "high": 101.0}}
        run(tmp_path, gpu, cells, deployment={"gpu": gpu, "gpus": 1})
    (text,) = said(tmp_path, "ratio")
    assert text.startswith("1×H200 against 1×H100 with vLLM, at concurrency 1 to 64: ")
    assert re.search(
        r": output throughput 27% \([^)]*\) to 30% \([^)]*\) higher at 1 and 4\.$", text
    )
    (table,) = ratios(points(tmp_path))
    assert [(row[3].partition(",")[0], row[4].partition("×")[0]) for row in table.rows] == [
        ("concurrency 1", "1.3"),
        ("concurrency 64", "0.998"),
    ]
    for gpu, output in (("h100", 1000), ("h200", 500)):
        cells = [cell(8, output=output)]
        run(tmp_path, f"{gpu}-other", cells, model="Other-7B", deployment={"gpu": gpu, "gpus": 1})
    assert not any("Other-7B" in each for each in said(tmp_path, "ratio"))


def test_a_bottleneck_says_whose_it_is(tmp_path: Path) -> None:
    """The same sentence of each model and precision would be told apart by its numbers alone."""
    told = {"gpu": "h200", "gpus": 1, "tp": 1}
    for model in ("meta-llama/Llama-3.1-8B", "Qwen/Qwen3-8B"):
        for dtype in ("bf16", "fp8"):
            cells = [cell(1, output=1000), cell(4, output=1010, verdict=WARNED)]
            run(
                tmp_path,
                f"{model[:2]}-{dtype}",
                cells,
                model=model,
                deployment=told | {"weights_dtype": dtype},
            )
    names = {
        f"{model}, 1,024 tokens in, 128 out: vLLM on 1×H200, {dtype}, tp1"
        for model in ("Llama-3.1-8B", "Qwen3-8B")
        for dtype in ("bf16", "fp8")
    }
    stops, lights = said(tmp_path, "bottleneck"), said(tmp_path, "light")
    found = observations(points(tmp_path))
    for kind in ("bottleneck", "light"):
        heads = {each.whole.rsplit(": ", 2)[0] for each in found if each.kind == kind}
        assert {head for head in heads if any(head.startswith(name) for name in names)} == heads
        assert {name for name in names if any(head.startswith(name) for head in heads)} == names
    assert all(text.endswith("; some of these loads carry a warning.") for text in stops)
    assert not any("carry" in text or "carries" in text for text in lights)  # of the lightest load
    run(
        tmp_path / "warned",
        "a",
        [cell(1, verdict=WARNED), cell(4)],
        model="Qwen/Qwen3-8B",
        deployment=told,
    )
    (text,) = said(tmp_path / "warned", "light")
    assert text.endswith("; this load carries a warning.")


def test_other_findings_say_of_which_model_they_are(tmp_path: Path) -> None:
    for model, faster in (("Model-7B", 1.0), ("Other-70B", 0.1)):
        for engine, tpot in (("vLLM", 0.01), ("SGLang", 0.02)):
            for tokens in (100, 400):
                cells = [cell(4, tpot=tpot / faster), cell(16, tpot=tpot / faster)]
                work = {"output": length(tokens)}
                run(
                    tmp_path,
                    f"{model}-{engine}-{tokens}",
                    cells,
                    model=model,
                    engine=engine,
                    workload=work,
                )
    for kind in ("leader", "trend"):
        whole = [each.whole for each in observations(points(tmp_path)) if each.kind == kind]
        assert whole
        assert all(("Model-7B" in text) != ("Other-70B" in text) for text in whole)


def test_nobody_guesses_tokens_faster_than_light(tmp_path: Path) -> None:
    """A step that gives several tokens takes its time for all of them."""
    told = {"gpu": "h200", "gpus": 1, "tp": 1, "weights_dtype": "bf16"}
    cells = [cell(1, tpot=0.001), cell(4, tpot=0.001)]
    for tokens, light in (("5", False), ("0", True)):
        own = told | {"arguments": {"num_speculative_tokens": tokens}}
        run(tmp_path / tokens, "a", cells, model="meta-llama/Llama-3.1-8B", deployment=own)
        first = points(tmp_path / tokens)[0]
        assert (first.roofline.tpot_s is not None) == light
        assert first.roofline.ttft_s is not None
        texts = said(tmp_path / tokens, "light")
        assert [
            ("speculative decoding" in text, "faster than possible" in text) for text in texts
        ] == [(True, True)] * light


def test_gpus_are_compared_by_what_both_tell(tmp_path: Path) -> None:
    for gpu, tpot in (("a100", None), ("h100", 0.04)):
        one = cell(8, tpot=tpot, output=1000 if tpot else 500)
        one["metrics"]["itl_s"] = stat(0.03 if tpot is None else 0.02)
        run(tmp_path, gpu, [one], deployment={"gpu": gpu, "gpus": 1})
    assert {ratio.measure for ratio in gpu_ratios(points(tmp_path))} == {OUTPUT, TTFT, ITL, E2E}


@pytest.mark.skipif(not POINTS.exists(), reason="the published points are not beside the checkout")
def test_the_tables_of_a_published_comparison_come_out(tmp_path: Path) -> None:
    """Lambda's vLLM table of 2024: throughput/latency cells, and ratios of H100 to A100."""
    with POINTS.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["source"].startswith("seed003")]
    names = (
        "engine",
        "engine_version",
        "model",
        "gpu",
        "num_gpus",
        "tp",
        "arrival",
        "num_prompts",
        "tpot_ms_median",
        "itl_ms_median",
        "output_tok_s",
    )
    path = tmp_path / "lambda.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows({name: row[name] for name in names} for row in rows)
    with run_folders([path]) as (folders, _):
        report = build(read_runs(folders)[0], inside=False)  # all prompts at once: bursts of 320
    cells = {
        (point.setup.hardware, point.setup.model): (
            f"{point.output_tokens_per_s:.0f}",
            f"{1e3 * point.itl.value:.4g}",
        )
        for point in report.points
        if point.itl is not None
    }
    assert cells["1×A100", "Mistral-7B-Instruct-v0.3"] == ("1591", "56.51")
    assert cells["1×H100", "Mistral-7B-Instruct-v0.3"] == (
        "3281",
        "27.23",
    )  # the only one that has a TPOT too
    assert cells["8×H100", "Hermes-3-Llama-3.1-405B-FP8"] == ("1231", "73.54")
    assert cells["4×H100", "Mixtral-8x7B-Instruct-v0.1"] == ("2103", "30.36")
    (against,) = [table for table in report.tables if table.key == "ratios-H100-A100"]
    assert against.heads[4:] == [
        "output throughput",
        "lower ITL",
    ]  # nobody told of TTFT, TPOT and E2E
    found = {(row[0], row[2]): (row[4], row[5]) for row in against.rows}
    assert len(found) == 24
    assert [text.split("×")[0] for text in found["Mistral-7B-Instruct-v0.3", "1×"]] == [
        "2.06",
        "2.08",
    ]
    assert [text.split("×")[0] for text in found["Hermes-3-Llama-3.1-405B-FP8", "8×"]] == [
        "2.63",
        "2.46",
    ]
    text = next(each.text for each in report.sentences if each.kind == "ratio")
    assert re.search(
        r"output throughput [\d.]+× better on average \([\d.]+× to [\d.]+× over 24 pairs of loads\)",
        text,
    )


# --- the answer -----------------------------------------------------------------------------------


def answered(folder: Path, prices: dict[str, float] | None = None) -> list[str]:
    found = answer(points(folder, prices) if prices else points(folder))
    assert found is not None
    assert len(found.sentences) <= 5
    return found.sentences


def test_the_answer_names_the_best_for_each_goal_and_how_sure(tmp_path: Path) -> None:
    for engine, outputs, tpot in (
        ("vLLM", (400, 1000, 4000), 0.02),
        ("SGLang", (390, 1500, 2000), 0.01),
    ):
        cells = [cell(4.0**n, output=output, tpot=tpot) for n, output in enumerate(outputs, 1)]
        run(tmp_path, engine, cells, engine=engine)
    texts = answered(tmp_path, {"h200": 3.0})
    assert texts[0].startswith(
        "Cheapest output tokens: vLLM on 8×H200, $1.67 a million at concurrency 64, a factor of 2"
    )
    assert texts[1].startswith(
        "Most output throughput: vLLM on 8×H200, 4,000 tok/s at concurrency 64, a factor of 2"
    )
    assert (
        texts[2]
        == "Most throughput by concurrency: SGLang on 8×H200 at 16, then vLLM on 8×H200 at 64."
    )
    assert texts[3].startswith(
        "Shortest time per token (TPOT): SGLang on 8×H200, 10.0 ms at concurrency 4, a factor of 2 ("
    )
    assert (
        texts[4]
        == "Soonest first token (TTFT): SGLang on 8×H200, 100 ms at concurrency 4, not clearly below vLLM on 8×H200."
    )


def test_of_setups_that_nothing_compares_each_is_told(tmp_path: Path) -> None:
    run(tmp_path, "a", [cell(1, ttft=None, tpot=None, output=0.0)], engine="vLLM")
    run(tmp_path, "b", [cell(1, tpot=None, output=None)], engine="SGLang")
    assert answered(tmp_path) == [
        "vLLM: at concurrency 1: nothing was timed.", "SGLang: at concurrency 1: TTFT 100 ms."
    ]  # fmt: skip


def test_setups_on_several_machines_are_no_repeats_of_one_another(tmp_path: Path) -> None:
    for gpu, outputs in (("h200", (400, 4000)), ("h100", (800, 2000))):
        cells = [cell(4.0**n, output=output) for n, output in enumerate(outputs, 1)]
        run(tmp_path, gpu, cells, deployment={"gpu": gpu, "gpus": 8})
    assert (
        "Most throughput by concurrency: vLLM on 8×H100 at 4, then vLLM on 8×H200 at 16."
        in answered(tmp_path)
    )


def test_one_sweep_alone_has_knee_capacity_and_the_share_within_its_slo(tmp_path: Path) -> None:
    cells = []
    for load, output, e2e, share in (
        (1, 100, 1.0, 1.0),
        (4, 380, 1.1, 1.0),
        (16, 800, 2.5, 0.43),
        (64, 820, 10.0, 0.1),
    ):
        bound = {
            "metric": "ttft_p99",
            "limit_s": 1.0,
            "measured_s": 0.5 if share == 1 else 3.0,
            "met": share == 1,
        }
        one = cell(load, output=output, e2e=e2e, slo=[bound])
        one["metrics"]["attainment"] = share
        cells.append(one)
    run(tmp_path, "a", cells, slo={"ttft_p99": 1.0})
    meets, most, bend = answered(tmp_path)
    bound = "time to first token (TTFT) p99 < 1.00 s"
    assert meets == f"Meets {bound} up to concurrency 4, not at 16 (43.0% of requests do)."
    assert most.startswith(
        "Most throughput at concurrency 64 (820.0 output tok/s, 10.0 s a request)"
    )
    assert bend.startswith(
        "Knee, from where latency grows faster than throughput, at concurrency 4 (380.0 output"
    )
    assert "hardly grows beyond concurrency 16" in said(tmp_path, "bottleneck")[0]


def test_every_bracket_says_its_level_and_of_what(tmp_path: Path) -> None:
    run(tmp_path, "a", [cell(4), cell(16)], source="imported")
    run(
        tmp_path, "b", [cell(4, tpot=0.03), cell(16, tpot=0.03)], source="imported", engine="SGLang"
    )
    words = " ".join(build(read_runs([tmp_path])[0], inside=False).remarks)
    assert "95%" in words
    assert "imported" in words
    assert "repeats of one configuration differ (TTFT 8.8%, all else 3.4%)" in words


# --- repeats, studies, and cells of which not all was measured ------------------------------------

FAILED: Json = {"trusted": False, "findings": [{"kind": "request_errors", "severity": "error"}]}


def test_a_cell_with_an_error_has_no_star_and_leads_nowhere(tmp_path: Path) -> None:
    run(tmp_path, "a", sweep([0.010, 0.012]))
    run(
        tmp_path,
        "b",
        sweep([0.005, 0.006], output=3000.0, ttft=0.01, verdict=FAILED),
        engine="SGLang",
    )
    assert said(tmp_path, "leader") == []
    made = build(read_runs([tmp_path])[0], drawn=False)
    row = next(row for row in made.scores.rows if row[0] == "SGLang") if made.scores.rows else ["-"]
    assert not [text for text in row if "★" in text]
    assert made.answer is not None
    assert not [text for text in made.answer.sentences if "SGLang, " in text]


def test_the_headline_takes_no_luckier_repeat(tmp_path: Path) -> None:
    met = {"slo": [{"bound": "ttft<1s", "metric": "ttft", "limit_s": 1.0, "met": True}]}
    missed = {"slo": [{"bound": "ttft<1s", "metric": "ttft", "limit_s": 1.0, "met": False}]}
    run(tmp_path, "a1", [cell(4.0, output=57.0), cell(8.0, output=60.0)], slo={"ttft": 1.0})
    run(tmp_path, "a2", [cell(4.0, output=1129.0), cell(8.0, output=60.0)], slo={"ttft": 1.0})
    run(
        tmp_path,
        "b",
        [cell(4.0, output=700.0), cell(8.0, output=60.0)],
        engine="SGLang",
        slo={"ttft": 1.0},
    )
    said_first = answer(points(tmp_path))
    assert said_first is not None
    assert said_first.sentences[0].startswith(
        "Most output throughput: SGLang on 8×H200, 700.0 tok/s at concurrency 4"
    )
    for name, repeats in (("c1", met), ("c2", missed)):
        run(
            tmp_path / "slo",
            name,
            [cell(4.0, output=900.0) | repeats, cell(8.0, output=60.0) | met],
            slo={"ttft": 1.0},
        )
    run(
        tmp_path / "slo",
        "d",
        [cell(4.0) | met, cell(8.0, output=60.0) | met],
        engine="SGLang",
        slo={"ttft": 1.0},
    )
    within = answer(points(tmp_path / "slo"))
    assert within is not None
    assert "SGLang on 8×H200" in within.sentences[0]
    assert "900 tok/s" not in within.sentences[0]


def test_a_cell_of_a_study_is_one_point_of_a_series_by_its_name(tmp_path: Path) -> None:
    """Two settings at three loads, twice; what the server said of itself differs and does not name
    them."""
    cells = []
    for name, context in (("few", 8192), ("many", 32768)):
        for at, load in enumerate((1.0, 4.0, 16.0)):
            folders = [
                run(
                    tmp_path, f"{name}-{at}-{repeat}", [cell(load, output=load * much)],
                    deployment={"max_model_tokens": context}, settings={"label": f"{name} here"},
                )
                for repeat, much in enumerate((100.0, 150.0))
            ]  # fmt: skip
            cells.append(
                StudyCell(name=name, workload="w", load=f"{load}", planned=2, runs=folders)
            )
    study = StudyPart(
        name="s", missing=[], differences=[], cells=cells, file="", shared=[], apart=[]
    )
    made = build(read_runs([tmp_path])[0], study=study)
    assert made.answer is not None
    pairs = list(made.answer.frame.pairs)
    assert sorted((series.label, point.load) for point, series in pairs) == [
        (name, load) for name in ("few", "many") for load in (1.0, 4.0, 16.0)
    ]
    output = next(point.output for point, _ in pairs if point.load == 16)
    assert output is not None
    assert (output.low, output.value, output.high, output.level) == (
        1600.0,
        2000.0,
        2400.0,
        "range of repeats",
    )
    assert made.answer.sentences[0].startswith("Most output throughput: few, 2")
    drawn = next(figure for figure in made.figures if figure.key == "output_tok_s-by-load")
    labels = {
        row["label"] for rows in drawn.spec["datasets"].values() for row in rows if "label" in row
    }
    assert labels == {"few", "many"}
    assert "range of repeats" in json.dumps(drawn.spec, ensure_ascii=False)


def test_a_bar_that_reaches_0_begins_with_a_logarithmic_axis(tmp_path: Path) -> None:
    def steady(rate: float) -> Json:
        return {"output_tokens_per_s": rate, "ci95": {"output_tokens_per_s": [0.0, 2 * rate]}}

    cells = [cell(load, output=rate) for load, rate in ((1.0, 10.0), (4.0, 100.0), (16.0, 900.0))]
    for each in cells:
        each["metrics"]["steady"] = steady(each["metrics"]["output_tokens_per_s"])
    run(tmp_path, "a", cells)
    made = build(read_runs([tmp_path])[0])
    figure = next(each for each in made.figures if each.key == "output_tok_s-by-load")
    (bars,) = (layer for layer in figure.spec["layer"] if layer["mark"].get("type") == "rule")
    least = re.search(r"max\(datum\.low, ([0-9.e-]+)\)", json.dumps(bars))
    assert least is not None
    assert 0 < float(least[1]) < 10
