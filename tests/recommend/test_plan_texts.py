"""A recommendation as a person reads it, from documents made by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadstone.recommend.judge.by_hour import ByHour, Span
from loadstone.recommend.tell.document import (
    BoundText,
    DeploymentPlan,
    FinalistPoint,
    GpuChoice,
    LatencySpan,
    MeasureNext,
    Recommendation,
    Rejected,
    TrafficText,
)
from loadstone.recommend.tell.page import write_page
from loadstone.recommend.tell.text import answer, plan_table, remarks, render, why_measure
from loadstone.report.data.wording import spell

PLAN = DeploymentPlan(
    deployment="llama-3.1-8b@1xh100/tp1", replicas=3, gpus=3, p_slo=0.864, capacity_per_s=48.0, headroom=0.2,
    usd_per_mtok=Span(0.5, 0.4, 0.7), usd_per_month=Span(4380.0, 4380.0, 5840.0),
    ttft_s=LatencySpan(0.1, 0.4, 0.08, 0.12), tpot_s=LatencySpan(0.012, 0.02, 0.01, 0.014),
    binds="tpot_p99 of 20 ms", helps="sglang would carry 10% more per GPU", regret=12.0, source="simulated",
    launch=["vllm serve"],
)  # fmt: skip
DOCUMENT = Recommendation(
    model="llama-3.1-8b", traffic=TrafficText("rate", 40.0, 1024.0, 128.0), slo=[BoundText("tpot", 0.99, 0.03)],
    plans=[PLAN], rejected=[], measure_next=None, study=None, notes=[], finalists=[], deployments_ranked=1234,
    seconds={"ranking": 0.5, "simulating": 2.0, "deciding": 0.1},
)  # fmt: skip
HOURS = ByHour(
    replicas=[1, 3],
    every_s=3600,
    start_up_s=300,
    gpus=2.1,
    usd_per_month=Span(3000.0, 2900.0, 3500.0),
    saves=0.3,
)


def changed(document: Recommendation = DOCUMENT, **fields: Any) -> Recommendation:
    return msgspec.structs.replace(document, **fields)


def with_plan(**fields: Any) -> Recommendation:
    return changed(plans=[msgspec.structs.replace(PLAN, **fields)])


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (
            DOCUMENT,
            "Deploy 3 × llama-3.1-8b@1xh100/tp1: 3 GPUs hold tpot p99 < 30.0 ms at 40 requests/s",
        ),
        (DOCUMENT, "(1,024 tokens in, 128 out) with a probability of 86%."),
        (with_plan(replicas=1, gpus=1), "1 GPU holds tpot p99"),
        (
            changed(traffic=TrafficText("concurrency", 64.0, 10.0, 5.0)),
            "at 64 requests under way (10 tokens in",
        ),
        (with_plan(by_hour=HOURS), "at 40 requests/s, the busiest of the trace ("),
        (
            changed(slo=[*DOCUMENT.slo, BoundText("ttft", 0.5, 2.0)]),
            "tpot p99 < 30.0 ms, ttft p50 < 2.00 s at",
        ),
    ],
)
def test_the_answer_says_what_holds_which_bounds(document: Recommendation, words: str) -> None:
    assert words in answer(document)


@pytest.mark.parametrize("priced", [True, False])
def test_a_row_has_a_cell_for_each_column(priced: bool) -> None:
    document = DOCUMENT if priced else with_plan(usd_per_month=None, usd_per_mtok=None)
    table = plan_table(document, ["1"])
    (row,) = table.rows
    assert len(row) == len(table.heads) == len(table.align)
    assert row[:4] == ["1", "3", "86%", "+20%"]
    assert row[8:] == (["4,380", "0.50", "0.40 to 0.70"] if priced else [])


def test_a_plan_that_is_not_sure_enough_is_said_to_be_the_nearest() -> None:
    line = answer(changed(with_plan(p_slo=0.71), holds=False))
    assert line.startswith(
        "Nothing holds with 80%; the nearest is 3 × llama-3.1-8b@1xh100/tp1: 3 GPUs hold tpot p99"
    )
    assert line.endswith("with a probability of 71%.")


def test_each_kind_of_gpu_has_its_best_plan_beside_the_first() -> None:
    by_gpu = [
        GpuChoice(gpu="H100", deployment="a", replicas=3, gpus=3, usd_per_month=4380.0, more_usd_per_month=0.0),
        GpuChoice(
            gpu="H200", deployment="b", replicas=2, gpus=2, p_slo=0.9, usd_per_month=5000.0, more_usd_per_month=620.0,
            more_p_slo=0.04,
        ),
        GpuChoice(gpu="L4", deployment=None, why="does not fit"),
    ]  # fmt: skip
    lines = remarks(changed(by_gpu=by_gpu))
    assert "On H200: 2 × b, 2 GPUs, $5,000 a month (+620), 90% sure (+4 points)." in lines
    assert "On L4: nothing, does not fit." in lines


def test_the_price_with_one_replica_down_and_of_whole_nodes_is_told() -> None:
    plan = with_plan(
        usd_per_month_one_down=5840.0, usd_per_month_whole_nodes=11680.0, why="86% sure, because so"
    )
    lines = remarks(plan)
    assert "Plan 1 is 86% sure, because so." in lines
    assert (
        "With a replica more, so that one may be down: $5,840 a month; where GPUs are rented by the node: $11,680."
    ) in lines


@pytest.mark.parametrize(
    ("warned", "line"),
    [
        ((1, 2, 3), "Plans 1–3: mind the gap."),
        ((1, 3), "Plans 1 and 3: mind the gap."),
        ((2,), "Plan 2: mind the gap."),
        ((1, 2, 4), "Plans 1, 2 and 4: mind the gap."),
    ],
)
def test_a_warning_is_said_once(warned: tuple[int, ...], line: str) -> None:
    plans = [
        msgspec.structs.replace(PLAN, warnings=["mind the gap"] if number in warned else [])
        for number in range(1, 5)
    ]
    assert [each for each in remarks(changed(plans=plans)) if "gap" in each] == [line]


def test_by_throughput_the_answer_says_how_many_tokens_there_are() -> None:
    document = changed(with_plan(output_tokens_per_s=12345.6), objective="throughput")
    assert answer(document).endswith("with a probability of 86%, and give 12,346 tokens/s.")


@pytest.mark.parametrize(
    ("p_slo", "asked", "words"), [(0.986, 0.99, "98.6%"), (0.79, 0.8, "79%"), (0.796, 0.8, "79.6%")]
)
def test_what_is_below_the_asked_probability_never_looks_like_it(p_slo, asked, words) -> None:
    document = changed(with_plan(p_slo=p_slo), holds=False, confidence=asked)
    assert answer(document).startswith(f"Nothing holds with {asked * 100:g}%; ")
    assert answer(document).endswith(f"with a probability of {words}.")


@pytest.mark.parametrize(
    ("hours", "words"),
    [
        (
            HOURS,
            "Plan 1 by the hour: 1 to 3 replicas, 2.1 GPUs on average with 5 min to start, $3,000 a month",
        ),
        (HOURS, "(2,900 to 3,500): 30% less than 3 all the time."),
        (
            msgspec.structs.replace(HOURS, every_s=900, usd_per_month=None),
            "Plan 1 by the 15 min: 1 to 3 replicas",
        ),
    ],
)
def test_a_plan_that_follows_the_hours_is_remarked_on(hours: ByHour, words: str) -> None:
    first, second = remarks(with_plan(by_hour=hours))
    assert first == f"Plan 1: {PLAN.binds}. {PLAN.helps}."
    assert words in second


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (DOCUMENT, "No single measurement is expected to change the choice"),
        (
            changed(measure_next=MeasureNext("c", 10, 1234.0, 5.6789, "d")),
            "from $1,234 to $5.68 a month",
        ),
        (
            changed(
                with_plan(usd_per_month=None), measure_next=MeasureNext("c", 10, 2.0, 1.0, "d")
            ),
            "(about 10 min): it cuts the expected cost of a wrong choice from 2 to 1 GPUs.",
        ),
    ],
)
def test_the_measurement_is_explained(document: Recommendation, words: str) -> None:
    assert words in why_measure(document)


def test_the_page_begins_with_the_answer_and_ends_with_how_it_was_made() -> None:
    rejected = [Rejected(f"d{number}", "why", number + 1) for number in range(10)]
    lines = render(changed(rejected=rejected, notes=["a note"], study="verify.yaml"))
    assert lines[0] == spell(answer(DOCUMENT))
    assert lines[-1] == "1,234 deployments ranked in 0.5 s, 0 simulated in 2.0 s"
    assert {
        "a note",
        "  d0: why",
        "  d1 (and 1 like it): why",
        "  2 more kinds with --json",
        "  vllm serve",
    } <= set(map(str, lines))


def page_of(document: Recommendation, folder: Path, *command: str) -> str:
    path = folder / "plans.html"
    write_page(document, path, command)
    return path.read_text("utf-8").partition("<main id=")[2]


def point(plan: DeploymentPlan, **fields: Any) -> FinalistPoint:
    known = FinalistPoint(
        deployment=plan.deployment, replicas=plan.replicas, gpus=plan.gpus, p_slo=plan.p_slo, usd_per_month=4380.0,
        output_tokens_per_s_per_gpu=1000.0, output_tokens_per_s_per_user=50.0, loads=[1.0, 10.0, 100.0],
        worst=[0.2, 0.5, 1.4], front=True, needed_low=0.7, needed_high=1.4,
    )  # fmt: skip
    return msgspec.structs.replace(known, **fields)


@pytest.mark.parametrize(
    ("document", "title"),
    [
        (
            DOCUMENT,
            "3 × H100, one GPU each, vLLM, BF16 checkpoint of meta-llama: $4,380 a month, 86% sure",
        ),
        (
            with_plan(usd_per_month=None),
            "3 × H100, one GPU each, vLLM, BF16 checkpoint of meta-llama, 86% sure",
        ),
        (
            with_plan(
                deployment="llama-3.1-70b:fp8@2xb200/tp2,kv=fp8,engine=sglang", replicas=2, gpus=4
            ),
            "4 × B200, 2 replicas of two GPUs, SGLang, FP8 checkpoint of NVIDIA: $4,380 a month, 86% sure",
        ),
        (
            with_plan(
                deployment="llama-3.1-8b:fp8@prefill=2*(1xh100/tp1)+decode=1xh200/tp1,kv=fp8,engine=sglang",
                replicas=1,
                gpus=3,
            ),
            "3 × H100 and H200, in one replica, 2 that prefill and 1 that decode, SGLang, FP8 checkpoint",
        ),
        (
            changed(
                with_plan(deployment="llama-3.1-8b@4xmi300x/tp4", replicas=1, gpus=4), holds=False
            ),
            "Nothing holds with 80%; the nearest is 4 × MI300X, in one replica, vLLM, BF16",
        ),
    ],
)
def test_the_page_has_its_title_in_words(
    document: Recommendation, title: str, tmp_path: Path
) -> None:
    assert f"<h1>{title}" in page_of(document, tmp_path)


def test_the_page_puts_the_best_of_each_gpu_side_by_side(tmp_path: Path) -> None:
    dearer = msgspec.structs.replace(PLAN, deployment="llama-3.1-8b@1xmi300x/tp1,engine=sglang")
    choices = [
        GpuChoice(gpu="h100", deployment=PLAN.deployment, replicas=3, gpus=3, p_slo=0.864, usd_per_month=4380.0),
        GpuChoice(
            gpu="mi300x", deployment=dearer.deployment, replicas=3, gpus=3, p_slo=0.84, usd_per_month=5380.0,
            more_usd_per_month=1000.0, more_p_slo=-0.024,
        ),
        GpuChoice(gpu="a100", deployment=None, why="takes 72 GPUs to carry it"),
    ]  # fmt: skip
    points = [point(PLAN), point(dearer), point(dearer, replicas=9)]
    document = changed(plans=[PLAN, dearer], by_gpu=choices[::-1], finalists=points)
    text = page_of(document, tmp_path, "loadstone", "recommend", "a b")
    table = text.partition("The best plan of each GPU")[2].partition("</table>")[0]
    assert all(
        word in table
        for word in (">+1,000<", ">84%<", "3 × MI300X, one GPU each, SGLang", "takes 72 GPUs")
    )
    assert (
        table.index("3 × H100") < table.index("3 × MI300X") < table.index("72 GPUs")
    )  # the cheapest first
    assert "On mi300x:" not in text  # said once
    assert "TPOT p99 of 20 ms. sglang would carry 10% more per GPU." in text
    assert "loadstone recommend &#39;a b&#39;" in text
    assert re.findall(r">([\d,]+ to [\d,]+)<", table) == ["3,066 to 6,132", "3,766 to 7,532"]
    load = json.loads(re.findall(r'application/json">(.*?)</script>', text)[0])
    drawn = [row for rows in load["datasets"].values() for row in rows]
    asked = [row for row in drawn if "share of the asked load" in row.get("plan", "")]
    assert [row["replica"] for row in asked] == pytest.approx([40 / 3] * 2, rel=1e-4)
    assert [row["load"] for row in asked] == [40.0, 40.0]
    assert all(0.5 < row["worst"] < 1.4 for row in asked)  # on the curve
    flags = {row["label"]: row["load"] for row in drawn if "+" in row.get("label", "")}
    assert flags == {"plan 1: +20%": 48.0, "plan 2: +20%": 48.0}
    (hues,) = {
        tuple(layer["encoding"]["color"]["scale"]["range"])
        for layer in load["layer"]
        if "scale" in layer["encoding"].get("color", {})
    }
    assert len(set(hues)) == 2


def test_a_card_has_its_cost_its_certainty_and_its_headroom(tmp_path: Path) -> None:
    short = msgspec.structs.replace(PLAN, p_slo=0.71, headroom=-0.05)
    text = page_of(changed(plans=[PLAN, short]), tmp_path)
    first, second = re.findall(r"<li><h3>Plan \d</h3>.*?</li>", text, re.DOTALL)
    for words in ("$4,380 a month", "$4,380 to $5,840 for 80%", "$0.50 per million tokens out"):
        assert words in first
    assert "86% sure" in first
    assert re.findall(r"(?:width|left): ([\d.]+)%", first) == ["86.4", "80.0"]
    assert re.findall(r"(?:width|left): ([\d.]+)%", second) == ["71.0", "80.0"]
    assert "<dt>Headroom</dt><dd>+20%</dd>" in first
    assert "<dt>Headroom</dt><dd>-5%</dd>" in second
    assert ("short" in first, "short" in second) == (False, True)


@pytest.mark.parametrize(
    ("document", "assumed"),
    [
        (
            changed(finalists=[point(PLAN)]),
            {
                "Traffic": "40 requests/s, 1,024 tokens in, 128 out on average",
                "SLO": "TPOT p99 &lt; 30.0 ms; with a probability of 80% or more",
                "Per GPU and hour": "H100 $2.00",
                "Hours per month": "730, all replicas running",
            },
        ),
        (
            with_plan(usd_per_month=None),
            {"Per GPU and hour": "no price is given: plans are ranked by their GPUs"},
        ),
    ],
)
def test_the_page_says_what_it_assumes(
    document: Recommendation, assumed: dict[str, str], tmp_path: Path
) -> None:
    listed = page_of(document, tmp_path).partition("assumed")[2].partition("</dl>")[0]
    told = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", listed))
    assert told | assumed == told
    assert len(told) == 4


def test_why_a_plan_is_so_sure_is_one_sentence(tmp_path: Path) -> None:
    why = "86% sure, because ttft_p99 may be off. It was so before"
    text = page_of(with_plan(why=why), tmp_path)
    assert "<h2>Why it is 86% sure</h2>" in text
    assert text.count("Plan 1 is 86% sure, because TTFT p99 may be off.</p>") == 1
    assert text.count("may be off") == 1


def test_the_page_carries_the_study_to_copy(tmp_path: Path) -> None:
    study = tmp_path / "verify.yaml"
    study.write_text("study: <verify>\n", "utf-8")
    text = page_of(changed(study=str(study)), tmp_path)
    assert '<div class="copied"><pre>study: &lt;verify&gt;' in text
    study.unlink()
    assert "measures these plans" not in page_of(changed(study=str(study)), tmp_path)
