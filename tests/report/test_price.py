"""What tokens cost: prices as they are given, in a comparison, in a report; never where one is not
known."""

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import pytest

from conftest import Loadstone
from loadstone import compare
from loadstone.analyse.compare.price import (
    check_prices,
    dollars_per_hour,
    key,
    list_prices,
    parse_prices,
    per_million,
    weigh_tokens,
    without_price,
)
from loadstone.analyse.compare.ratio import OTHER_REPEATS
from loadstone.analyse.run_facts import RunFacts
from loadstone.core.errors import InputError
from loadstone.core.metrics import Metrics
from loadstone.report.charts.lines import front as front_of
from loadstone.report.data.frames import DOLLARS, frames
from loadstone.report.data.pairs import effect
from loadstone.report.data.runs import read_runs
from loadstone.report.pages.csv_sheet import sheet
from loadstone.report.pages.document import Report, build
from loadstone.report.pages.html import body
from loadstone.report.pages.markdown import markdown
from report_folders import Json, cell, points, run
from test_compare import make, rows

H200 = {"deployment": {"gpu": "h200", "gpus": 1}}
H100 = {"deployment": {"gpu": "h100", "gpus": 2}}


def facts(**fields: Any) -> RunFacts:
    return RunFacts(source="measured", **fields)


def test_prices_are_of_gpus_by_any_of_their_names() -> None:
    prices = parse_prices(["h200=3.2,H100-PCIe = 2.1", "mi300x=2.50"])
    assert prices == {"h200": 3.2, "h100 pcie": 2.1, "mi300x": 2.5}
    assert key("NVIDIA H200") == key("h200-sxm-141gb") == "h200"
    assert dollars_per_hour(facts(gpu="H200", gpus=8), prices) == pytest.approx(25.6)
    assert dollars_per_hour(facts(gpu="RTX-4090", gpus=1), parse_prices("rtx-4090=0.4")) == 0.4


def test_a_million_tokens_by_hand() -> None:
    """$3.60 an hour is a tenth of a cent a second; at 500 tokens/s a million takes 2,000 s."""
    assert per_million(3.6, 500.0) == pytest.approx(2.0)
    assert per_million(None, 500.0) is None
    assert per_million(3.6, 0.0) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "h200",
        "h200=",
        "=3",
        "h200=x",
        "h200=0",
        "h200=-1",
        "h200=nan",
        "h200=inf",
        "h200=3,",
        "h200=3;h100=2",
    ],
)
def test_what_is_no_price_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"^--price .*write GPU=DOLLARS per GPU and hour"):
        parse_prices([text])


def test_two_prices_of_one_gpu_are_refused() -> None:
    with pytest.raises(InputError, match="has two prices, 3 and 4"):
        parse_prices(["h200=3,H200-SXM=4"])
    assert parse_prices(["h200=3", "H200=3.0"]) == {"h200": 3.0}


@pytest.mark.parametrize(
    ("price", "words"),
    [
        ("h20o=3", "no run is on such a GPU, and the catalogue has none; did you mean h20"),
        ("h2000=3", "did you mean h200"),
        ("warpcore=3", r"the catalogue has none.* \(the runs are on H200, Prototype X\)"),
        ("8xh200=24", "give the price of one GPU, h200=3$"),
        ("8 × H200=24", "give the price of one GPU, h200=3$"),
        ("dgx-h200=24", "give the price of one GPU, h200=DOLLARS"),
        ("8 h200=24", "give the price of one GPU, h200=3$"),
        ("0xh200=24", "give the price of one GPU, h200=24$"),
    ],
)
def test_a_price_that_would_change_nothing_is_refused(price: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        check_prices(parse_prices(price), [facts(gpu="H200"), facts(gpu="Prototype X"), facts()])


def test_prices_of_any_known_gpu_and_of_a_runs_own_are_taken() -> None:
    check_prices(
        parse_prices("h200=3,b300=5,mi300=2,prototype x=9"), [facts(gpu="Prototype X"), facts()]
    )


def test_a_mistyped_price_is_one_line_in_compare_and_report(
    tmp_path: Path, loadstone: Loadstone
) -> None:
    a, b = make(tmp_path / "a", seed=1, settings=H200), make(tmp_path / "b", seed=2, settings=H100)
    for command in (
        ("compare", str(a), str(b)),
        ("report", str(tmp_path), "-o", str(tmp_path / "r.md")),
    ):
        done = loadstone(*command, "--price", "h20o=3")
        assert (done.code, done.err.count("\n")) == (2, 1), done.err
        assert "did you mean h20" in done.err


def test_what_is_not_known_is_told_and_not_guessed() -> None:
    prices = parse_prices("h200=3")
    known, no_gpu = facts(gpu="H200", gpus=1), facts()
    assert without_price([("a", known)], prices) is None
    said = without_price(
        [("a", known), ("b", no_gpu), ("c", facts(gpu="H200")), ("d", facts(gpu="H100", gpus=1))],
        prices,
    )
    assert said == (
        "no price is known for b (the GPU is not stated); c (the number of GPUs is not stated); "
        "d (--price has none for H100)"
    )
    assert dollars_per_hour(facts(gpu="H100 PCIe", gpus=1), parse_prices("h100=2")) is None


def test_prices_of_each_kind_of_token_pay_for_the_gpus() -> None:
    """Of 800 input tokens/s half come from a cache; with 100 output tokens/s they bring in the
    $3.60 an hour."""
    metrics = Metrics(
        input_tokens=80, cached_input_tokens=40, output_tokens_per_s=100.0, total_tokens_per_s=900.0
    )
    weighed = 100 * (weigh_tokens(metrics, metrics) or 0.0)
    assert weighed == pytest.approx(400 + 400 * 0.1 + 100 * 4)
    prices = list_prices(per_million(3.6, weighed) or 0.0)
    assert prices["output"] == 4 * prices["input"] == pytest.approx(40 * prices["cached"])
    paid = 3600 / 1e6 * (400 * prices["input"] + 400 * prices["cached"] + 100 * prices["output"])
    assert paid == pytest.approx(3.6)
    assert weigh_tokens(Metrics(output_tokens_per_s=100.0), metrics) is None


def test_a_report_has_the_prices_of_each_kind_of_token(tmp_path: Path) -> None:
    two_gpus(tmp_path)
    document = reported(tmp_path).prices_document()["prices"]
    for each in document["cells"]:
        prices, total = each["list_prices"], each["dollars_per_million_total_tokens"]["value"]
        # Of nine tokens eight are input.
        assert 8 * prices["input"] + prices["output"] == pytest.approx(9 * total)
    text = markdown(reported(tmp_path))
    assert "list in" in text


# --- compare --------------------------------------------------------------------------------------


def test_a_price_is_compared_as_the_throughput_for_a_dollar(tmp_path: Path) -> None:
    """B is 10% slower and costs 2·2/3 as much an hour: its tokens cost 1.1·4/3 times as much."""
    a, b = (
        make(tmp_path / "a", seed=1, settings=H200),
        make(tmp_path / "b", seed=2, slower=1.1, settings=H100),
    )
    document = compare([a], [b], price=["h200=3,h100=2"]).document()
    found = rows(document)
    row, rate = found["dollars_per_million_output_tokens"], found["output_tokens_per_s"]
    assert row["a"] == pytest.approx(3 / 3600 / rate["a"] * 1e6)
    assert row["ratio"] == pytest.approx(4 / 3 / rate["ratio"])
    assert (row["low"], row["high"]) == pytest.approx((4 / 3 / rate["high"], 4 / 3 / rate["low"]))
    assert (row["differs"], row["better"]) == (True, "a")
    assert (
        found["dollars_per_million_total_tokens"]["low"]
        < 1.1 * 4 / 3
        < found["dollars_per_million_total_tokens"]["high"]
    )
    assert document["prices"] == {
        "dollars_per_gpu_hour": {"h200": 3.0, "h100": 2.0},
        "a": [3.0],
        "b": [4.0],
    }


def test_what_is_slower_and_as_much_cheaper_is_no_different(tmp_path: Path) -> None:
    a, b = (
        make(tmp_path / "a", seed=1, settings=H200),
        make(tmp_path / "b", seed=2, slower=1.1, settings=H100),
    )
    found = rows(compare([a], [b], price=["h200=2.2,h100=1"]).document())
    assert found["output_tokens_per_s"]["differs"]
    row = found["dollars_per_million_output_tokens"]
    assert not row["differs"]
    assert row["low"] < 1 < row["high"]


def test_prices_of_repeats_are_compared_as_runs(tmp_path: Path) -> None:
    a = [make(tmp_path / f"a{n}", seed=n, settings=H200) for n in range(4)]
    b = [make(tmp_path / f"b{n}", seed=10 + n, settings=H100) for n in range(4)]
    row = rows(compare(a, b, price=["h200=3,h100=2"]).document())[
        "dollars_per_million_output_tokens"
    ]
    assert row["ratio"] == pytest.approx(4 / 3, rel=0.02)
    assert row["better"] == "a"


def test_without_a_price_nothing_changes(tmp_path: Path) -> None:
    a, b = (
        make(tmp_path / "a", seed=1, settings=H200),
        make(tmp_path / "b", seed=2, slower=1.01, settings=H200),
    )
    plain, priced = compare([a], [b]).document(), compare([a], [b], price=["h200=3"]).document()
    assert "prices" not in plain
    assert not any(name.startswith("dollars") for name in rows(plain))
    # What costs as much on both sides adds nothing to the family either.
    assert rows(priced).items() >= rows(plain).items()


def test_a_side_without_a_price_is_told_of(tmp_path: Path) -> None:
    a, b = make(tmp_path / "a", settings=H200), make(tmp_path / "b")
    document = compare([a], [b], price=["h200=3"]).document()
    assert rows(document)["dollars_per_million_output_tokens"]["ratio"] is None
    (said,) = [one["evidence"] for one in document["findings"] if one["kind"] == "no_price"]
    assert said == "no price is known for B b (the GPU is not stated)"


def test_a_bound_on_a_price_needs_one(tmp_path: Path) -> None:
    a, b = (
        make(tmp_path / "a", seed=1, settings=H200),
        make(tmp_path / "b", seed=2, slower=1.1, settings=H200),
    )
    bound = "dollars_per_million_output_tokens>+5%"
    (met,) = compare([a], [b], fail_on=[bound], price=["h200=3"]).document()["fail_on"]
    assert met["met"]
    with pytest.raises(InputError, match="needs --price"):
        compare([a], [b], fail_on=[bound])


# --- report ---------------------------------------------------------------------------------------


def steady(rate: float, spread: float) -> Json:
    """A steady window whose output throughput is known to ±spread."""
    ends = [rate * (1 - spread), rate * (1 + spread)]
    return {
        "output_tokens_per_s": rate, "total_tokens_per_s": 9 * rate, "requests_per_s": 1.0,
        "ci95": {"output_tokens_per_s": ends, "total_tokens_per_s": [9 * end for end in ends]},
    }  # fmt: skip


def priced_cell(load: float, rate: float, tpot: float = 0.02, spread: float = 0.01) -> Json:
    one = cell(load, tpot=tpot)
    one["metrics"]["steady"] = steady(rate, spread)
    return one


def reported(folder: Path, price: str = "h200=3,h100=2") -> Report:
    return build(read_runs([folder])[0], prices=parse_prices(price) if price else None)


def two_gpus(folder: Path, *, rate: float = 2000.0, spread: float = 0.01) -> None:
    run(
        folder,
        "a",
        [priced_cell(1, 100), priced_cell(64, rate, spread=spread)],
        deployment={"gpu": "h200", "gpus": 1},
    )
    run(
        folder,
        "b",
        [priced_cell(1, 80), priced_cell(64, 1000)],
        deployment={"gpu": "h100", "gpus": 1},
    )


def test_the_cheapest_is_named_with_its_price(tmp_path: Path) -> None:
    two_gpus(tmp_path)
    (said,) = [each.text for each in reported(tmp_path).sentences if each.kind == "price"]
    assert said.startswith(
        "Cheapest output tokens online: vLLM on 1×H200 at concurrency 64, "
        "$0.417 (0.413–0.421) a million, or $0.0463 with input counted, 50.0 tok/s per user; 25% ("
    )
    assert said.endswith(" below the next, vLLM on 1×H100 ($0.556 at concurrency 64).")


def test_nobody_is_called_cheapest_within_the_intervals(tmp_path: Path) -> None:
    two_gpus(tmp_path, rate=1600.0, spread=0.15)
    (said,) = [each.text for each in reported(tmp_path).sentences if each.kind == "price"]
    assert "no clear winner. vLLM on 1×H200 at concurrency 64 is lowest, $0.521 (" in said
    assert said.endswith(", but not clearly below vLLM on 1×H100 ($0.556 at concurrency 64).")


def bounded(rate: float, value_s: float, p_met: float, load: float = 64) -> Json:
    """A cell whose TPOT is bounded by 40 ms, surely or not."""
    one, met = priced_cell(load, rate), value_s <= 0.04
    one["slo"] = [
        {
            "bound": "tpot_p99<40ms",
            "metric": "tpot_p99",
            "value": value_s,
            "met": met,
            "p_met": p_met,
        }
    ]
    return one


def test_who_may_miss_a_bound_is_not_called_cheapest_outright(tmp_path: Path) -> None:
    h200, h100 = ({"gpu": gpu, "gpus": 1} for gpu in ("h200", "h100"))
    run(
        tmp_path,
        "a",
        [bounded(2000, 0.0351, 0.66), bounded(4000, 0.047, 0.31, load=128)],
        deployment=h200,
    )
    run(tmp_path, "b", [bounded(1000, 0.021, 0.97)], deployment=h100)
    (said,) = [each.text for each in reported(tmp_path).sentences if each.kind == "price"]
    assert "1 of them with a probability below 90%" in said
    assert ": probably vLLM on 1×H200 at concurrency 64" in said
    assert "vLLM on 1×H200 at concurrency 64 meets its bounds with probability 66%" in said
    assert (
        "the cheapest that does with 90% or more is vLLM on 1×H100 at concurrency 64 ($0.556)"
        in said
    )
    assert (
        "vLLM on 1×H200 at concurrency 128 ($0.208) would be cheaper, and may meet them after all (probability 31%)"
        in said
    )
    assert [point.p_met for point in points(tmp_path)] == [0.66, 0.31, 0.97]


def test_who_surely_meets_its_bounds_is_called_cheapest(tmp_path: Path) -> None:
    h200, h100 = ({"gpu": gpu, "gpus": 1} for gpu in ("h200", "h100"))
    run(
        tmp_path,
        "a",
        [bounded(2000, 0.0351, 0.96), bounded(4000, 0.047, 0.05, load=128)],
        deployment=h200,
    )
    run(tmp_path, "b", [bounded(1000, 0.021, 0.97)], deployment=h100)
    (said,) = [each.text for each in reported(tmp_path).sentences if each.kind == "price"]
    assert ": vLLM on 1×H200 at concurrency 64" in said
    assert "probability" not in said


def test_the_third_must_be_told_apart_too(tmp_path: Path) -> None:
    """The next is surely dearer; another, dearer still by its value, is not surely so."""
    two_gpus(tmp_path)
    run(tmp_path, "c", [priced_cell(1, 90), priced_cell(64, 900, spread=0.5)], engine="SGLang",
        deployment={"gpu": "h100", "gpus": 1})  # fmt: skip
    (said,) = [each.text for each in reported(tmp_path).sentences if each.kind == "price"]
    assert "no clear winner" in said
    assert said.endswith(", but not clearly below SGLang on 1×H100 ($0.617 at concurrency 64).")


def test_one_load_each_is_enough(tmp_path: Path) -> None:
    run(tmp_path, "a", [priced_cell(64, 2000)], deployment={"gpu": "h200", "gpus": 1})
    run(tmp_path, "b", [priced_cell(64, 1000)], deployment={"gpu": "h100", "gpus": 1})
    assert [each.kind for each in reported(tmp_path).sentences].count("price") == 1


def test_a_price_is_as_sure_as_its_throughput(tmp_path: Path) -> None:
    two_gpus(tmp_path)
    a, _, b, _ = points(tmp_path, {"h200": 3.0, "h100": 2.0})
    found = effect(a, b, DOLLARS)
    assert found is not None
    assert found.ratio == pytest.approx(3 / 2 * 80 / 100)
    reach = math.hypot(math.log(1.01), -math.log(0.99), OTHER_REPEATS)
    assert found.high / found.ratio == pytest.approx(math.exp(reach), rel=1e-3)
    assert a.dollars.output is not None
    assert (a.dollars.output.low, a.dollars.output.high) == pytest.approx(
        (25 / 3 / 1.01, 25 / 3 / 0.99)
    )


def test_a_prediction_lies_within_its_own_interval(tmp_path: Path) -> None:
    """It is of the whole cell, and holds as a share for the steady window: 80% of 400, where 300 is
    shown."""
    one = priced_cell(2, 300)
    one["load"]["kind"] = "rate"
    one["metrics"] |= {
        "output_tokens_per_s": 400.0, "interval": {"output_tokens_per_s": {"low": 360.0, "high": 440.0}},
    }  # fmt: skip
    run(tmp_path, "a", [one], source="simulated", deployment={"gpu": "h200", "gpus": 1})
    (point,) = points(tmp_path, {"h200": 3.0})
    for stat, times in ((point.output, 1), (point.total, 9)):
        assert stat is not None
        assert (stat.value, stat.low, stat.high) == pytest.approx(
            (300 * times, 270 * times, 330 * times), rel=1e-3
        )
        assert stat.level == "80%, predicted"
    for stat in (point.dollars.output, point.dollars.total):
        assert stat is not None
        assert (stat.low, stat.high) == pytest.approx(
            (stat.value / 1.1, stat.value / 0.9), rel=1e-3
        )


def test_predicted_throughput_of_a_closed_loop_goes_with_its_e2e(tmp_path: Path) -> None:
    """Places over E2E: the slower each request may be, the lower it may be."""
    one = priced_cell(4, 300)
    one["metrics"]["e2e_s"] |= {"low": 1.6, "high": 4.0}
    run(tmp_path, "a", [one], source="simulated")
    (point,) = points(tmp_path)
    assert point.output is not None
    assert (point.output.low, point.output.high) == pytest.approx((150, 375), rel=1e-3)


def test_prices_stand_in_tables_charts_and_files(tmp_path: Path) -> None:
    two_gpus(tmp_path / "runs")
    run(
        tmp_path / "runs",
        "c",
        [priced_cell(1, 70)],
        engine="SGLang",
        deployment={"gpu": None, "gpus": None},
    )
    made = reported(tmp_path / "runs")
    (table,) = [each for each in made.tables if each.key == "cells"]
    at = table.heads.index("$/M output")
    assert [row[at : at + 3] for row in table.rows] == [
        ["8.33", "8.25–8.42", "0.926"], ["0.417", "0.413–0.421", "0.0463"],
        ["6.94", "6.88–7.01", "0.772"], ["0.556", "0.550–0.561", "0.0617"], ["-", "-", "-"],
    ]  # fmt: skip
    assert [row[-1] for row in made.overview.rows] == ["$3.00", "$2.00", "-"]
    assert [figure.key for figure in made.figures if figure.section == "price"] == []
    words = "Prices as given, per GPU and hour: H200 $3.00, H100 $2.00. "
    words += "No price is known for run 3 (the GPU is not stated)."
    assert words in body(made)
    assert words.replace("$", r"\$") in markdown(made)
    lines = list(csv.DictReader(io.StringIO(sheet(made))))
    assert [float(line["dollars_per_hour"] or "nan") for line in lines[:4:2]] == [3.0, 2.0]
    assert float(lines[1]["dollars_per_million_output_tokens_high"]) == pytest.approx(
        0.41667 / 0.99, rel=1e-4
    )


def test_a_report_without_prices_says_nothing_of_them(tmp_path: Path) -> None:
    two_gpus(tmp_path)
    made = reported(tmp_path, "")
    assert not any(figure.section == "price" for figure in made.figures)
    for text in (body(made), markdown(made), sheet(made)):
        assert "$" not in text.replace("\\$", "$").replace("$ref", "").replace("$schema", "")
        assert "dollars" not in text


def test_the_chart_shows_what_a_pace_costs_at_least(tmp_path: Path) -> None:
    run(
        tmp_path,
        "a",
        [priced_cell(1, 100, 0.01), priced_cell(64, 2000, 0.05)],
        deployment={"gpu": "h200", "gpus": 1},
    )
    run(
        tmp_path,
        "b",
        [priced_cell(1, 50, 0.02), priced_cell(64, 1000, 0.04)],
        deployment={"gpu": "h100", "gpus": 1},
    )
    (frame,) = frames(points(tmp_path, {"h200": 3.0, "h100": 2.0}), "load")
    figure = front_of(frame, DOLLARS, section="price", key="price")
    assert figure is not None
    front = min(
        figure.spec["datasets"].values(),
        key=lambda each: len(each) if "label" not in each[0] and "x" in each[0] else 99,
    )
    # 100 tok/s at $8.33, 25 at $0.556, 20 at $0.417; 50 at $11.1 is both slower and dearer than the
    # first.
    assert [(row["x"], row["y"]) for row in front] == [(100, 8.3333), (25, 0.55556), (20, 0.41667)]
    assert figure.notes[-1].startswith("500 requests a point; bars: 95% interval")


def test_simulated_setups_are_told_of_beside_runs_of_another_question(tmp_path: Path) -> None:
    for name, gpu, rate in (("a", "h200", 2000.0), ("b", "h100", 1000.0)):
        run(
            tmp_path,
            name,
            [priced_cell(64, rate)],
            source="simulated",
            deployment={"gpu": gpu, "gpus": 1},
        )
    run(tmp_path, "c", [priced_cell(64, 10)], model="org/Another")
    assert [each.kind for each in reported(tmp_path).sentences].count("price") == 1
    assert "Simulated runs have no findings" not in body(reported(tmp_path))
    run(tmp_path, "d", [priced_cell(64, 1500)])
    assert "price" not in [each.kind for each in reported(tmp_path).sentences]
    assert "Simulated runs have no findings" in body(reported(tmp_path))


def test_the_command_carries_prices(tmp_path: Path, loadstone: Loadstone) -> None:
    two_gpus(tmp_path / "runs")
    told = loadstone(
        "report", tmp_path / "runs", "-o", tmp_path / "r.csv", "--price", "h200=3", "--json"
    )
    assert told.code == 0
    said = json.loads(told.out)["prices"]
    assert said["dollars_per_gpu_hour"] == {"h200": 3.0}
    assert said["without_price"] == "no price is known for run 2 (--price has none for H100)"
    assert [one["dollars_per_hour"] for one in said["cells"]] == [3.0, 3.0, None, None]
    assert said["cells"][1]["dollars_per_million_output_tokens"] == {
        "value": pytest.approx(0.41667, rel=1e-4), "low": pytest.approx(0.41254, rel=1e-4),
        "high": pytest.approx(0.42088, rel=1e-4), "interval": "95%",
    }  # fmt: skip
    loud = loadstone("report", tmp_path / "runs", "-o", tmp_path / "r.csv", "--price", "h200=3")
    assert loud.err == "loadstone: no price is known for run 2 (--price has none for H100)\n"
    for command in (
        ("report", tmp_path / "runs"),
        ("compare", tmp_path / "runs/a", tmp_path / "runs/b"),
    ):
        bad = loadstone(*command, "--price", "h200")
        assert bad.code == 2
        assert bad.err.startswith("loadstone: --price 'h200': write GPU=DOLLARS")
        assert len(bad.err.splitlines()) == 1
