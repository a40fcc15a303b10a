"""Watts and joules: of predictions, by the formula and its rows; of measurements, by their definition."""

from __future__ import annotations

import csv
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from loadstone.analyse.scenario import scenario_result
from loadstone.analyse.summary import summary_of
from loadstone.catalogue import parse_worker
from loadstone.core.electricity import BOARDS, Electricity, parse_electricity
from loadstone.core.errors import InputError
from loadstone.core.machine_figures import GpuFigures, Level
from loadstone.core.run_folder import read_info
from loadstone.predict.power import board_power, gap_of

ROOT = Path(__file__).parents[2]
POINTS = ROOT.parent / "shared/data/energy/energy_points.csv"


def gpu(name: str):
    return parse_worker(f"llama-3.1-8b@1x{name}/tp1").gpu


def test_watts_rise_with_what_is_used_and_stay_below_the_limit() -> None:
    board = gpu("h100")
    watts = [board_power(board, use, use / 4) for use in (0.01, 0.2, 0.5, 0.9)]
    assert all(power is not None for power in watts)
    middle = [power.w for power in watts if power]
    assert middle == sorted(middle)
    assert middle[0] < 0.3 * board.tdp_w
    for power in watts:
        assert power is not None
        assert power.low < power.w <= power.high <= board.tdp_w


def test_a_gpu_without_rows_is_known_after_three_own_loads() -> None:
    board = gpu("h200")
    assert board_power(board, 0.4, 0.1) is None
    assert board_power(board, 0.4, 0.1, [0.1, 0.1]) is None
    plain = replace(board, name="own")
    known = board_power(plain, 0.4, 0.1, [0.2] * 9)
    assert known is not None
    assert gap_of(plain, 0.4, 0.1, known.w) == pytest.approx(0.18)  # the fit counts as one load
    assert known.low < known.w < known.high


def test_own_loads_move_a_gpu_that_has_rows() -> None:
    board = gpu("b200")
    shipped, own = board_power(board, 0.3, 0.05), board_power(board, 0.3, 0.05, [-0.5] * 3)
    assert shipped is not None
    assert own is not None
    assert own.w < shipped.w


def test_boundaries_are_named_and_counted() -> None:
    boards = parse_electricity("0.12", "--electricity")
    assert boards.boundary == BOARDS
    assert boards.drawn_w(8000, 8) == 8000
    # 1 kW for an hour is 1 kWh: at 1,000 tokens/s, 3.6 million tokens.
    assert boards.usd_per_mtok(1000, 1000) == pytest.approx(0.12 / 3.6)
    site = parse_electricity("0.12,host=250,pue=1.2", "--electricity")
    assert site.drawn_w(8000, 8) == pytest.approx((8000 + 2000) * 1.2)
    assert "250 W" in site.boundary
    assert "PUE 1.2" in site.boundary
    assert Electricity().usd_per_mtok(1000, 1000) is None


@pytest.mark.parametrize("text", ["", "cheap", "-1", "0.1,pue=0.9", "0.1,fans=3", "nan", "99"])
def test_what_is_no_price_of_electricity_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"--electricity .*: write dollars per kWh"):
        parse_electricity(text, "--electricity")


def test_rows_whose_joules_are_not_of_all_gpus_are_refused(tmp_path: Path) -> None:
    """A row as they are published (719.5 W on each of 8, 402.885 tokens/s a GPU: 1.786 J), and one
    whose joules are of one role alone."""
    pytest.importorskip("scipy")
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from power import read  # type: ignore[import-not-found]

    names = ("gpus", "power_w_per_gpu", "out_tok_s", "j_per_out_tok", "flag")
    rows = [(8, 719.5, 402.885 * 8, 1.7859, ""), (24, 907.773, 9489.978, 2.2958 / 3.35, "")]
    path = tmp_path / "points.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([names, *rows])
    kept, refused = read(path)
    assert [row["j_per_out_tok"] for row in kept] == ["1.7859"]
    assert refused[0].startswith("line 3: J/token is 0.30 of")


@pytest.mark.skipif(not POINTS.is_file(), reason="the table of measured watts is not here")
def test_the_shipped_coefficients_are_the_fit(tmp_path: Path) -> None:
    """And errors on GPUs that were left out are as they are stated."""
    pytest.importorskip("scipy")
    done = subprocess.run(
        [sys.executable, "benchmarks/power.py", str(POINTS), "--to", str(tmp_path / "power.json")],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    made = json.loads((tmp_path / "power.json").read_text())
    kept = json.loads((ROOT / "src/loadstone/predict/power.json").read_text())
    assert made["curve"] == pytest.approx(kept["curve"], rel=0.05)
    assert made["gpus"].keys() == kept["gpus"].keys()
    for name, kind in kept["gpus"].items():
        assert made["gpus"][name] == pytest.approx(kind, rel=0.05, abs=0.02)
    table = (ROOT / "benchmarks/results/energy.md").read_text()
    for line in done.stdout.splitlines():
        if line.startswith("| H100"):
            assert line in table


def test_a_simulation_states_watts_under_the_names_of_measured_ones(loadstone) -> None:
    words = (
        "--input",
        "256",
        "--output",
        "64",
        "--concurrency",
        "8",
        "--requests",
        "32",
        "--draws",
        "4",
    )
    site = ("--electricity", "0.12,host=250,pue=1.2")
    outcome = loadstone("simulate", "llama-3.1-8b@2xh100/tp2", *words, *site, "--json")
    cell = outcome.cell
    power, watts = cell["power"], cell["gpu"]["power_w"]["mean"]
    assert power["power_w"][0] < watts < power["power_w"][1] <= 1400
    metrics = cell["metrics"]
    assert metrics["j_per_output_token"] == pytest.approx(watts / metrics["output_tokens_per_s"])
    assert metrics["j_per_total_token"] == pytest.approx(watts / metrics["total_tokens_per_s"])
    low, high = power["j_per_output_token"]
    # The rate is not sure either.
    assert math.log(high / low) > math.log(power["power_w"][1] / power["power_w"][0])
    assert power["drawn_w"] == pytest.approx((watts + 500) * 1.2)
    assert power["usd_per_mtok"] > 0
    shown = loadstone("show", outcome.folder, "--explain").out
    assert "would draw" in shown
    assert "PUE 1.2" in shown


def test_a_simulation_on_a_gpu_without_rows_says_so(loadstone) -> None:
    outcome = loadstone(
        "simulate", "llama-3.1-8b@1xl40s", "--input", "64", "--output", "8", "--requests", "8",
        "--concurrency", "2", "--draws", "0", "--json",
    )  # fmt: skip
    assert "l40s" in outcome.cell["power"]["unknown"]
    assert "gpu" not in outcome.cell
    assert "j_per_output_token" not in outcome.cell["metrics"]


BATCH = (
    "--concurrency",
    "16",
    "--input",
    "512",
    "--output",
    "64",
    "--slo",
    "tpot_p99<80ms",
    "--gpus",
    "h100",
)


def test_a_power_budget_leaves_out_plans_that_may_draw_more(loadstone) -> None:
    plan = (
        "recommend",
        "llama-3.1-8b",
        *BATCH,
        "--engine",
        "vllm",
        "--tp",
        "1",
        "--quality",
        "as-published",
    )
    fed = loadstone(*plan, "--power-budget", "0.9kW", "--json").document
    for each in fed["plans"]:
        assert each["power"]["power_w"][1] <= 900
        assert each["gpus"] == 1
    refused = loadstone(*plan, "--power-budget", "100W")
    assert refused.code == 2
    assert "--power-budget: 0.1 kW is too little; the plan that draws least" in refused.err
    assert "GPU boards alone" in refused.err
    node = loadstone(*plan, "--power-budget", "0.9kW", "--electricity", "host=600")
    assert "600 W of the node" in node.err


def test_agents_per_megawatt_are_of_measured_boards(loadstone) -> None:
    """57.5 agents a GPU at 937 W each are 61,400 a megawatt."""
    outcome = loadstone(
        "simulate", "llama-3.1-8b@2xh100/tp2", "--scenario", "like:aa-agentperf", "--concurrency", "2,400",
        "--requests", "400", "--warmup", "0", "--draws", "4", "--json",
    )  # fmt: skip
    folder = Path(outcome.folder)
    info, cells = read_info(folder), summary_of(folder).cells
    for cell in cells:
        cell.gpu = GpuFigures(gpus=2, samples=9, throttled={}, power_w=Level(2 * 937.0, 2000.0))
    said = scenario_result(info, cells, 2)
    assert said is not None
    agents = said.agents_per_gpu
    assert agents is not None
    assert agents.per_mw == pytest.approx(agents.value * 61_400 / 57.5, rel=1e-3)
    assert agents.boundary == "the GPUs alone"
