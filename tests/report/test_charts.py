"""Charts: what they show, that all of them can be drawn, and colours that stay."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loadstone.analyse.compare.result import MetricRow
from loadstone.analyse.stored_run import StoredRun, read_run
from loadstone.catalogue import parse_worker
from loadstone.core import run_folder
from loadstone.predict.sizing.size import Row, size
from loadstone.report.charts import bands, bars, inside, layers, lines
from loadstone.report.charts.plans import PlanCurve, load_figure
from loadstone.report.charts.select import Drawn, draw_pictures
from loadstone.report.charts.sizing import contexts_picture
from loadstone.report.charts.theme import PALETTE, Figure, to_png, to_svg
from loadstone.report.data import pairs
from loadstone.report.data.frames import E2E, ITL, OUTPUT, PER_GPU, TOTAL, TPOT, TTFT, frames
from loadstone.report.data.points import CellPoint
from loadstone.report.data.samples import LEVELS, Cdf, sample
from loadstone.report.data.series import assign_hues, number_engines, series_of
from report_folders import cell, length, points, record, run, stat

PNG = b"\x89PNG"


def two_engines(folder: Path) -> list[CellPoint]:
    run(folder, "a", [cell(c, ttft=0.1 * c, tpot=0.01 * c, output=100.0 * c) for c in (1, 4, 16)])
    run(
        folder,
        "b",
        [cell(c, ttft=0.2 * c, tpot=0.02 * c, output=50.0 * c) for c in (1, 4, 16)],
        engine="SGLang",
    )
    return points(folder)


def rows_of(figure: Figure) -> list[dict[str, Any]]:
    """The longest data of a specification."""
    found: list[list[dict[str, Any]]] = list(figure.spec["datasets"].values())
    return max(found, key=len)


def drawn(figure: Figure | None) -> Figure:
    assert figure is not None
    assert to_png(figure, scale=1).startswith(PNG)
    return figure


def legend(figure: Figure) -> tuple[int, list[str]]:
    """How many signs its legends have, and their words."""
    svg = to_svg(figure)
    signs = re.findall(r'role-legend-symbol".*?</g>', svg, re.DOTALL)
    labels = "".join(re.findall(r'role-legend-label".*?</g>', svg, re.DOTALL))
    return sum(sign.count("<path") for sign in signs), sorted(
        re.findall(r">([^<]*)</text>", labels)
    )


def test_a_curve_shows_units_definition_count_and_interval(tmp_path: Path) -> None:
    (frame,) = frames(two_engines(tmp_path), "load")
    figure = drawn(lines.against(frame, TTFT, key="k"))
    notes = " ".join(figure.notes)
    assert "TTFT = first token − sending (closed loop)" in notes
    assert "500 requests a point; bars: 95% interval; measured" in notes
    assert "Model-7B" in notes
    assert "1,024 tokens in, 128 out" in notes
    assert "TTFT, median (s)" in json.dumps(figure.spec, ensure_ascii=False)
    rows = rows_of(figure)
    assert [(row["x"], row["y"], row["low"], row["high"], row["label"]) for row in rows][:2] == [
        (1.0, 0.1, 0.098, 0.102, "vLLM"), (4.0, 0.4, 0.392, 0.408, "vLLM"),
    ]  # fmt: skip
    assert figure.spec["title"]["subtitle"]
    assert "vLLM: 0.100 s at 1 to 1.60 at 16" in figure.summary


@pytest.mark.parametrize(("highest", "scale"), [(0.9, "linear"), (1.1, "log")])
def test_a_line_is_read_from_0_unless_that_would_press_most_of_it_flat(
    tmp_path: Path, highest: float, scale: str
) -> None:
    """An overloaded server's TTFT beside that of one at ease: on a linear axis the latter would be
    0."""
    run(tmp_path, "a", [cell(1, ttft=0.1), cell(4, ttft=0.2), cell(16, ttft=highest)])
    (frame,) = frames(points(tmp_path), "load")
    spec = drawn(lines.against(frame, TTFT, key="k")).spec
    line = next(layer for layer in spec["layer"] if layer["mark"]["type"] == "line")
    assert line["encoding"]["y"]["scale"]["type"] == scale


def test_where_one_series_of_several_is_left_the_chart_says_which(tmp_path: Path) -> None:
    """A legend is drawn of two names or more."""
    run(tmp_path, "a", [cell(1), cell(4)])
    run(tmp_path, "b", [cell(1, ttft=None), cell(4, ttft=None)], engine="SGLang")
    (frame,) = frames(points(tmp_path), "load")
    both, one = (drawn(lines.against(frame, measure, key="k")) for measure in (TPOT, TTFT))
    assert {"SGLang", "vLLM"} <= {text for text, *_ in texts_of(both)}
    assert not {"SGLang", "vLLM"} & {text for text, *_ in texts_of(one)}
    assert "vLLM" not in both.notes[0]
    assert one.notes[0] == f"{both.notes[0]} · vLLM"


def test_of_more_setups_than_signs_the_fastest_are_drawn(tmp_path: Path) -> None:
    """Two setups under one sign of a legend cannot be told apart."""
    for n in range(10):
        for engine in ("vLLM", "SGLang"):
            cells = [cell(c, output=100.0 * (n + 1)) for c in (1, 4)]
            run(tmp_path, f"{engine}-{n}", cells, engine=engine, settings={"label": f"setup {n}"})
    figure = drawn(
        next(
            figure
            for figure in draw_pictures(points(tmp_path)).figures
            if figure.key == "tpot-by-load"
        )
    )
    assert {row["variant"] for row in rows_of(figure)} == {f"setup {n}" for n in range(2, 10)}
    assert legend(figure)[0] == 16
    assert figure.notes[0].endswith("16 of 20 series")


def test_a_published_range_ratio_is_rounded(tmp_path: Path) -> None:
    drawn_from = {"kind": "uniform", "mean": 512.5, "sd": 295.0, "low": 1, "high": 1024}
    run(tmp_path, "a", [cell(1), cell(4)], workload={"output": drawn_from})
    (frame,) = frames(points(tmp_path), "load")
    assert frame.words.endswith("lengths down to < 1% of the longest")


def test_short_latencies_are_in_milliseconds(tmp_path: Path) -> None:
    (frame,) = frames(two_engines(tmp_path), "load")
    assert rows_of(drawn(lines.against(frame, TPOT, key="k")))[0]["y"] == 10


def test_throughput_over_latency_follows_the_load(tmp_path: Path) -> None:
    (frame,) = frames(two_engines(tmp_path), "load")
    figure = drawn(lines.trade_off(frame, E2E, TOTAL, section="throughput", key="k"))
    assert [row["load"] for row in rows_of(figure)] == [1, 4, 16, 1, 4, 16]
    assert "better is up and left" in " ".join(figure.notes)


def test_the_pareto_front_has_what_none_beats(tmp_path: Path) -> None:
    (frame,) = frames(two_engines(tmp_path), "load")
    figure = drawn(lines.front(frame, PER_GPU, section="throughput", key="pareto"))
    front = figure.spec["datasets"][figure.spec["layer"][0]["data"]["name"]]
    assert [(row["x"], row["y"]) for row in front] == [(100, 12.5), (25, 50), (6.25, 200)]
    assert "per GPU" in figure.title


def test_a_front_of_what_was_measured_has_no_prediction_on_it(tmp_path: Path) -> None:
    run(tmp_path, "a", [cell(4, tpot=0.01, output=400), cell(16, tpot=0.02, output=800)])
    run(
        tmp_path,
        "b",
        [cell(4, tpot=0.005, output=4000), cell(16, tpot=0.006, output=9000)],
        source="simulated",
    )
    (frame,) = frames(points(tmp_path), "load")
    figure = drawn(lines.front(frame, PER_GPU, section="throughput", key="pareto"))
    assert "2 of 4 points are on the front" in figure.summary
    assert any("no other beats in both, without predictions" in note for note in figure.notes)


def test_loads_that_double_stand_at_equal_distances(tmp_path: Path) -> None:
    (frame,) = frames(two_engines(tmp_path), "load")
    figure = drawn(lines.against(frame, TTFT, key="k"))
    scale = figure.spec["layer"][0]["encoding"]["x"]["scale"]
    assert (scale["type"], scale["base"]) == ("log", 2)


def test_loads_are_written_out(tmp_path: Path) -> None:
    """Vega writes 1.3e+2 for a 128 beside 32 and 64 where a format has no precision."""
    run(tmp_path, "a", [cell(c) for c in (32, 64, 128)])
    (frame,) = frames(points(tmp_path), "load")
    svg = to_svg(drawn(lines.against(frame, TTFT, key="k")))
    assert [tick for tick in ("32", "64", "128") if f">{tick}<" in svg] == ["32", "64", "128"]
    assert "e+2" not in svg


def test_pooled_gaps_are_not_called_requests(tmp_path: Path) -> None:
    gaps = stat(0.02, n=50_000)
    cells = [cell(c, ttft=0.1 * c) for c in (1, 4)]
    for each in cells:
        each["metrics"]["itl_s"] = gaps
    run(tmp_path, "a", cells)
    (frame,) = frames(points(tmp_path), "load")
    assert "500 requests a point" in " ".join(drawn(lines.against(frame, ITL, key="k")).notes)


def test_the_ends_of_bars_are_inside_the_picture(tmp_path: Path) -> None:
    cells = [cell(c, e2e=1.0 * c) for c in (1, 4, 16)]
    cells[-1]["metrics"]["e2e_s"] = stat(16.0, spread=0.5)
    run(tmp_path, "a", cells)
    (frame,) = frames(points(tmp_path), "load")
    figure = drawn(lines.trade_off(frame, E2E, OUTPUT, section="throughput", key="k"))
    ends = {
        each["x"]["scale"]["domain"][1]
        for each in _encodings(figure.spec)
        if "scale" in each.get("x", {})
    }
    assert all(end > 24 for end in ends)


def texts_of(figure: Figure) -> list[tuple[str, float, float]]:
    """(text, middle x, y) of what is written into a picture beside its points."""
    found = []
    for group in re.findall(r'<g class="mark-text role-mark .*?</g>', to_svg(figure), re.DOTALL):
        for anchor, x, y, text in re.findall(
            r'<text [^>]*text-anchor="(\w+)" transform="translate\(([-\d.]+),([-\d.]+)\)"[^>]*>([^<]*)<',
            group,
        ):
            half = 3.5 * len(text) * {"start": 1, "end": -1}.get(anchor, 0)
            found.append((text, float(x) + half, float(y)))
    return found


def test_loads_written_beside_points_lie_on_nothing_else(tmp_path: Path) -> None:
    for name, output in (("vLLM", 1000.0), ("SGLang", 1005.0), ("llama.cpp", 300.0)):
        cells = [cell(4**n, e2e=0.5 + n, output=output * (n + 1) / 4) for n in range(4)]
        run(tmp_path, name, cells, engine=name)
    (frame,) = frames(points(tmp_path), "load")
    figure = drawn(lines.trade_off(frame, E2E, OUTPUT, section="throughput", key="k"))
    written = [each for each in texts_of(figure) if each[0].isdigit()]
    assert [text for text, *_ in written].count("64") == 2  # two of the three lie together
    assert {text for text, *_ in written} == {"1", "4", "16", "64"}
    for (_, x, y), (_, other_x, other_y) in itertools.combinations(written, 2):
        assert abs(x - other_x) > 7 or abs(y - other_y) > 8
    assert "labelled where there is room" in " ".join(figure.notes)


@pytest.mark.parametrize("spread", [0.02, 20.0])
def test_loads_beside_points_that_saturate_do_not_overprint(tmp_path: Path, spread: float) -> None:
    """A prediction's wide bars make the axis long, and what seemed apart lies together."""
    for number in range(5):
        cells = []
        for load, output in ((1, 100.0), (1024, 1000.0), (16, 1010.0), (320, 1020.0)):
            one = cell(load, e2e=4.0 + 0.5 * number, output=output + 60 * number)
            one["metrics"]["e2e_s"] |= {"low": 1.0, "high": (4.0 + 0.5 * number) * (1 + spread)}
            cells.append(one)
        run(tmp_path, f"r{number}", cells, engine=f"engine {number}", source="simulated")
    (frame,) = frames(points(tmp_path), "load")
    written = texts_of(drawn(lines.trade_off(frame, E2E, OUTPUT, section="throughput", key="k")))
    assert len(written) > 2
    for (text, x, y), (other, other_x, other_y) in itertools.combinations(written, 2):
        assert abs(x - other_x) > 3.3 * (len(text) + len(other)) or abs(y - other_y) > 6.5, (
            text,
            other,
        )


def test_what_carries_a_warning_is_crossed_out(tmp_path: Path) -> None:
    spoilt: dict[str, Any] = {
        "verdict": {"trusted": False, "findings": [{"kind": "short_outputs"}]}
    }
    run(tmp_path, "a", [cell(1, tpot=0.02, output=100), cell(4, tpot=0.001, output=9000, **spoilt)])
    run(
        tmp_path,
        "b",
        [cell(1, tpot=0.02, output=90), cell(4, tpot=0.03, output=200)],
        engine="SGLang",
    )
    (frame,) = frames(points(tmp_path), "load")
    made = [
        lines.against(frame, TTFT, key="k"),
        lines.trade_off(frame, E2E, OUTPUT, section="throughput", key="k"),
        lines.front(frame, PER_GPU, section="throughput", key="pareto"),
    ]
    for figure in made:
        assert [text for text, *_ in texts_of(drawn(figure))].count("×") == 1
        assert figure is not None
        assert "×: the load carries a warning" in " ".join(figure.notes)
    assert made[2] is not None
    assert "2 of 4 points are on the front" in made[2].summary
    assert "without points with a warning" in " ".join(made[2].notes)
    fine = frame.only(lambda point, _: point.trusted)
    assert "warning" not in " ".join(drawn(lines.against(fine, TTFT, key="k")).notes)


def test_a_bar_of_a_cell_with_a_warning_is_pale(tmp_path: Path) -> None:
    run(
        tmp_path,
        "a",
        [cell(8, ttft=1.0, verdict={"trusted": False, "findings": [{"kind": "short_outputs"}]})],
    )
    run(tmp_path, "b", [cell(8, ttft=0.2)], workload={"prefix_tokens": 512, "input": length(1040)})
    found = pairs.switches(points(tmp_path), "prefix")
    figure = drawn(bars.side_by_side(found, TTFT, "prefix", "shared prefix or not", absence="none"))
    assert [row.get("warned", False) for row in rows_of(figure)] == [True, False]
    assert "pale: the load carries a warning" in " ".join(figure.notes)
    assert to_svg(figure).count('opacity="0.4"') == 1


def test_tokens_that_arrived_together_have_no_time_between_them(tmp_path: Path) -> None:
    bunched = cell(4, tpot=0.0, output=2000)
    bunched["metrics"]["itl_s"] = stat(0.0)
    run(tmp_path, "a", [cell(1, tpot=0.02), bunched])
    run(tmp_path, "b", [cell(1, tpot=0.03), cell(4, tpot=0.04)], engine="SGLang")
    (frame,) = frames(points(tmp_path), "load")
    for measure in (TPOT, ITL):
        assert [
            measure.of(point)
            for point in frame.points
            if point.load == 4 and point.setup.engine == "vLLM"
        ] == [None]
    figure = drawn(lines.against(frame, TPOT, key="k"))
    assert min(row["y"] for row in rows_of(figure)) == 20
    assert "left out: 1 point whose tokens arrived together" in " ".join(figure.notes)


def test_a_missing_interval_has_its_reason(tmp_path: Path) -> None:
    few = cell(4)
    few["metrics"]["ttft_s"]["ci95"]["p50"] = [None, None]
    both = [cell(1), few]
    for each in both:
        each["metrics"]["itl_s"] = stat(0.02) | {"ci95": {}}
    run(tmp_path, "a", both, records=[record(0, 0.0, [0.1, 0.2])])
    (frame,) = frames(points(tmp_path), "load")
    said = {
        measure.key: drawn(lines.against(frame, measure, key="k")).notes[-1]
        for measure in (TTFT, ITL)
    }
    assert (
        "bars: 95% interval, none at 1 of 2 points: too few generations of requests" in said["ttft"]
    )
    assert "no interval: tokens of all requests are pooled" in said["itl"]
    run(tmp_path / "sums", "a", [few, cell(16) | {"metrics": few["metrics"]}])
    (frame,) = frames(points(tmp_path / "sums"), "load")
    assert (
        "no interval: other tools' summaries have none"
        in drawn(lines.against(frame, TTFT, key="k")).notes[-1]
    )


def test_a_line_for_each_load_or_a_word_on_how_many(tmp_path: Path) -> None:
    records = [record(n, float(n), [n + 0.1 + 0.01 * k for k in range(5)]) for n in range(4)]
    folder = run(tmp_path, "a", [cell(float(c)) for c in range(1, 10)])
    schema = run_folder.records_schema()
    rows = [
        {name: at if name == "cell" else getattr(each, name) for name in schema.names}
        for at in range(9)
        for each in records
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), folder / "records.parquet")
    seen = sample(read_run(folder))
    assert seen is not None
    figure = drawn(inside.cumulative(seen, "TTFT", "vLLM", "sending", key="k"))
    assert "7 of 9 loads" in " ".join(figure.notes)
    looks = [figure.spec["encoding"][name]["scale"]["range"] for name in ("color", "strokeDash")]
    assert len({(shade, tuple(dash)) for shade, dash in zip(*looks, strict=True)}) == 7


def test_repeats_are_counted_where_there_are_several_setups(tmp_path: Path) -> None:
    for number, engine in enumerate(("vLLM", "SGLang", "vLLM", "SGLang")):
        run(tmp_path, f"r{number}", [cell(1), cell(4)], engine=engine)
    (frame,) = frames(points(tmp_path), "load")
    names = {"vLLM · repeat 1", "vLLM · repeat 2", "SGLang · repeat 1", "SGLang · repeat 2"}
    assert {series.label for series in frame.series} == names
    front = drawn(lines.front(frame, PER_GPU, section="throughput", key="pareto"))
    assert names <= {text for text, *_ in texts_of(front)}
    alone = [point for point in points(tmp_path) if point.setup.engine == "vLLM"]
    assert {series.variant for series in series_of(alone)} == {"run 1", "run 3"}


def test_lines_have_their_names_beside_them_and_of_many_a_legend(tmp_path: Path) -> None:
    for n in range(10):
        run(tmp_path, f"r{n}", [cell(1), cell(4)], engine=f"engine {n}")
    (frame,) = frames(points(tmp_path), "load")
    assert len(legend(drawn(lines.against(frame, TTFT, key="k")))[1]) == 10
    few = frame.only(lambda point, _: point.setup.engine < "engine 4")
    figure = drawn(lines.against(few, TTFT, key="k"))
    assert legend(figure)[0] == 0
    assert {f"engine {n}" for n in range(4)} <= {text for text, *_ in texts_of(figure)}


def test_a_setup_looks_the_same_in_all_pictures_of_a_report(tmp_path: Path) -> None:
    """Whichever comes first in a picture, and though it stands there alone."""
    for engine in ("vLLM", "SGLang", "TensorRT-LLM"):
        for gpu in ("h100", "h200", "b200"):
            for tokens in (128, 512)[: 1 if gpu == "b200" else 2]:
                cells = [cell(1, ttft=0.1), cell(4, ttft=10.0 if gpu == "h100" else 0.1)]
                work = {"output": length(tokens)}
                told = {"gpu": gpu, "gpus": 8}
                run(
                    tmp_path,
                    f"{engine}-{gpu}-{tokens}",
                    cells,
                    engine=engine,
                    deployment=told,
                    workload=work,
                )
    looks: dict[str, set[tuple[Any, ...]]] = {}
    for figure in draw_pictures(points(tmp_path)).figures:
        for encoding in _encodings(figure.spec):
            for channel in ("color", "strokeDash"):
                scale = (encoding.get(channel) or {}).get("scale")
                for name, look in (
                    zip(scale["domain"], scale["range"], strict=True) if scale else ()
                ):
                    looks.setdefault(f"{channel} {name}", set()).add(tuple(look))
    assert len(looks) == 2 * 9
    assert all(len(each) == 1 for each in looks.values())


def _encodings(spec: dict[str, Any]) -> list[dict[str, Any]]:
    own = [spec["encoding"]] if "encoding" in spec else []
    return own + [found for layer in spec.get("layer", ()) for found in _encodings(layer)]


def test_more_variants_than_dashes_differ_while_they_can() -> None:
    order = [f"tp{n}" for n in range(20)]

    def dashes(variants: list[str]) -> list[tuple[int, ...]]:
        rows = [{"label": name, "variant": name, "hue": PALETTE[0]} for name in variants]
        return [
            tuple(dash)
            for dash in layers.encode_lines(rows, order)("line")["strokeDash"].to_dict()["scale"][
                "range"
            ]
        ]

    assert len(set(dashes([order[1], order[9], order[10]]))) == 3
    assert len(dashes(order)) == 20


def test_only_what_is_comparable_shares_a_picture(tmp_path: Path) -> None:
    run(tmp_path, "a", [cell(1), cell(4)])
    run(tmp_path, "b", [cell(1), cell(4)], workload={"output": length(999)})
    run(tmp_path, "c", [cell(1), cell(4)], model="other")
    run(tmp_path, "d", [cell(1, kind="rate"), cell(4, kind="rate")])
    assert [len(frame.points) for frame in frames(points(tmp_path), "load")] == [2, 2, 2, 2]


def test_files_turns_and_endpoints_are_different_questions(tmp_path: Path) -> None:
    for name, tokens, digest in (("a", 30, "1" * 64), ("b", 287, "2" * 64)):
        asked = {"kind": "dataset", "format": "prompts", "sha256": digest, "input": length(tokens)}
        run(tmp_path, name, [cell(2)], workload=asked)
    assert frames(points(tmp_path), "input") == []
    assert {point.demand.work for point in points(tmp_path)} == {
        "dataset 11111111",
        "dataset 22222222",
    }
    for name in ("c", "d"):
        run(tmp_path / "chat", name, [cell(1), cell(4)], engine=name)
    path = tmp_path / "chat" / "d" / "run.json"
    path.write_text(path.read_text().replace('"completions"', '"chat"'))
    assert len(frames(points(tmp_path / "chat"), "load")) == 2


def test_lengths_that_nearly_agree_are_one_workload(tmp_path: Path) -> None:
    run(tmp_path, "a", [cell(1), cell(4)], workload={"input": length(3275)})
    run(tmp_path, "b", [cell(1), cell(4)], workload={"input": length(3272)}, engine="SGLang")
    (frame,) = frames(points(tmp_path), "load")
    assert len(set(frame.series)) == 2


def test_series_are_named_by_what_differs(tmp_path: Path) -> None:
    run(tmp_path, "a", [cell(1)], deployment={"tp": 8})
    run(tmp_path, "b", [cell(1)], deployment={"tp": 4, "dp": 2})
    assert [series.label for series in series_of(points(tmp_path))] == ["tp8", "tp4 dp2"]
    run(tmp_path, "c", [cell(1)], deployment={"tp": 8})
    assert [series.label for series in series_of(points(tmp_path))] == [
        "tp8 · run 1",
        "tp4 dp2",
        "tp8 · run 3",
    ]
    run(tmp_path / "both", "a", [cell(4)], deployment={"weights_dtype": "bf16"})
    run(tmp_path / "both", "b", [cell(4)], deployment={"weights_dtype": "fp8", "gpus": 4})
    assert [series.label for series in series_of(points(tmp_path / "both"))] == [
        "8× · bf16",
        "4× · fp8",
    ]


def test_what_was_predicted_is_called_so_wherever_it_stands_beside_measurements(
    tmp_path: Path,
) -> None:
    """Also where another fact, here the split that only a simulation tells, would tell the lines
    apart."""
    run(tmp_path, "a", [cell(4), cell(16)], source="imported")
    run(tmp_path, "b", [cell(4), cell(16)], source="simulated", deployment={"tp": 8})
    (frame,) = frames(points(tmp_path), "load")
    assert {series.label for series in frame.series} == {
        "parallel not stated · imported",
        "tp8 · simulated",
    }


def test_bars_of_a_prefix_shared_or_not(tmp_path: Path) -> None:
    run(tmp_path, "a", [cell(8, ttft=1.0)])
    run(tmp_path, "b", [cell(8, ttft=0.2)], workload={"prefix_tokens": 512, "input": length(1040)})
    found = pairs.switches(points(tmp_path), "prefix")
    figure = drawn(bars.side_by_side(found, TTFT, "prefix", "shared prefix or not", absence="none"))
    assert [(row["value"], row["y"]) for row in rows_of(figure)] == [
        ("none", 1000),
        ("512 tokens shared", 200),
    ]


def test_ratios_put_better_to_the_right(tmp_path: Path) -> None:
    for gpu, output, ttft in (("a100", 500.0, 0.4), ("h100", 1000.0, 0.1)):
        run(
            tmp_path,
            gpu,
            [cell(load, output=output, ttft=ttft) for load in (8, 64)],
            deployment={"gpu": gpu},
        )
    found = pairs.gpu_ratios(points(tmp_path))
    assert {(ratio.over.setup.gpu, ratio.under.setup.gpu) for ratio in found} == {("H100", "A100")}
    (figure,) = bars.ratio_figures(found)
    drawn(figure)
    assert {row["measure"]: row["times"] for row in rows_of(figure)} == {
        "Output throughput": 2, "TTFT": 4, "TPOT": 1, "E2E latency": 1,
    }  # fmt: skip
    # A page has these columns as the picture's numbers: none is there that says nothing.
    assert all(row.keys() == {"row", "measure", "times", "low", "high"} for row in rows_of(figure))


def test_ratios_have_the_intervals_of_their_table(tmp_path: Path) -> None:
    """Two predictions that cannot be told apart must not look far apart."""
    for gpu, ttft in (("h100", 0.102), ("a100", 0.1)):
        one = cell(64, ttft=ttft)
        one["metrics"]["ttft_s"] |= {"low": ttft / 2, "high": ttft * 2}
        run(tmp_path, gpu, [one], deployment={"gpu": gpu, "gpus": 1}, source="simulated")
    found = pairs.gpu_ratios(points(tmp_path))
    (figure,) = bars.ratio_figures(found)
    drawn(figure)
    rows = {row["measure"]: row for row in rows_of(figure)}
    # ln 2 of both, two thirds of the errors alike: e^√(2·(1 − 2/3)·0.693²)
    assert rows["TTFT"]["times"] == pytest.approx(1.02)
    assert rows["TTFT"]["low"] == pytest.approx(1.02 / 1.761, rel=1e-3)
    assert rows["TTFT"]["high"] == pytest.approx(1.02 * 1.761, rel=1e-3)
    assert "bars: for predictions the model's own, 80%, and how much repeats differ" in figure.notes


def test_ratios_without_any_interval_say_so(tmp_path: Path) -> None:
    one = cell(64)
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        one["metrics"][name]["ci95"] = {"p50": [None, None], "p99": [None, None]}
    for gpu in ("a100", "h100"):
        run(tmp_path, gpu, [one], deployment={"gpu": gpu})
    found = [msgspec.structs.replace(point, sums=False) for point in points(tmp_path)]
    (figure,) = bars.ratio_figures(pairs.gpu_ratios(found))
    assert "no interval: too few generations of requests" in figure.notes


def test_bursts_have_the_pictures_of_batches(tmp_path: Path) -> None:
    """Whoever sends all at once asks what a batch takes."""
    for engine in ("vLLM", "SGLang"):
        cells = [cell(n, kind="burst", duration_s=n / 8) for n in (8, 32)]
        run(tmp_path, engine, cells, engine=engine)
        run(tmp_path / "closed", engine, [cell(8), cell(32)], engine=engine)
    made = {figure.key: figure for figure in draw_pictures(points(tmp_path)).figures}
    batch = made["burst-throughput-latency"]
    assert (batch.title, batch.section) == ("Total throughput against batch latency", "offline")
    assert {row["x"] for row in rows_of(batch)} == {1, 4}
    assert {"batch_s-by-load", "total_tok_s-by-load", "ttft-by-load"} <= set(made)
    assert {figure.section for key, figure in made.items() if key.endswith("by-load")} == {
        "offline"
    }
    closed = {figure.key for figure in draw_pictures(points(tmp_path / "closed")).figures}
    assert not any("batch" in key or "burst" in key for key in closed)
    assert "ttft-by-load" in closed


def test_percentile_bands(tmp_path: Path) -> None:
    run(tmp_path, "a", [cell(1), cell(4)])
    (frame,) = frames(points(tmp_path), "load")
    figure = drawn(bands.tails(frame, [TTFT], key="k"))
    assert [row["y"] for row in rows_of(figure) if row["part"] == "p99"] == [130, 130]
    assert [row["y"] for row in rows_of(figure) if row["part"] == "p50"] == [100, 100]
    assert "too few requests to bound the p99" in " ".join(figure.notes)


def test_measured_lies_over_simulated_with_its_interval(tmp_path: Path) -> None:
    simulated = [cell(c, tpot=0.02) for c in (1, 4)]
    for each in simulated:
        each["metrics"]["tpot_s"] |= {"low": 0.015, "high": 0.03}
    run(tmp_path, "s", simulated, source="simulated")
    run(tmp_path, "m", [cell(1, tpot=0.022), cell(4, tpot=0.021)])
    every = points(tmp_path)
    assert every[0].tpot is not None or every[1].tpot is not None
    (pair,) = pairs.pair_predictions(every)
    figure = drawn(bands.draw_prediction(pair, TPOT))
    said = "measured / simulated: 1.05 to 1.10 over 2 loads; band: 80% interval of the prediction"
    assert f"{said}; bars: 95% interval of what was measured" in figure.notes
    assert {(row["low"], row["high"]) for row in rows_of(figure) if row["what"] == "simulated"} == {
        (15, 30)
    }
    bare = [cell(1, tpot=0.022), cell(4, tpot=0.021)]
    for each in bare:
        del each["metrics"]["tpot_s"]["ci95"]
    run(tmp_path / "bare", "s", simulated, source="simulated")
    run(tmp_path / "bare", "m", bare)
    (pair,) = pairs.pair_predictions(points(tmp_path / "bare"))
    assert (
        said in drawn(bands.draw_prediction(pair, TPOT)).notes
    )  # no bars where nothing bounds what was measured
    run(tmp_path / "warned", "s", simulated, source="simulated")
    run(
        tmp_path / "warned",
        "m",
        [cell(1, verdict={"trusted": False, "findings": [{"kind": "short_outputs"}]}), cell(4)],
    )
    (pair,) = pairs.pair_predictions(points(tmp_path / "warned"))
    figure = drawn(bands.draw_prediction(pair, TPOT))
    assert figure.notes[-1].endswith("×: the load carries a warning")
    assert [text for text, *_ in texts_of(figure)] == ["×"]


def test_what_is_far_from_its_prediction_is_on_a_logarithmic_axis(tmp_path: Path) -> None:
    run(tmp_path, "s", [cell(c, tpot=0.02) for c in (1, 4)], source="simulated")
    run(tmp_path, "m", [cell(1, tpot=0.06), cell(4, tpot=5.1)])
    (pair,) = pairs.pair_predictions(points(tmp_path))
    figure = drawn(bands.draw_prediction(pair, TPOT))
    assert figure.notes[1].startswith("measured / simulated: 3.00 to 255 over 2 loads")
    assert _axes(figure) == {"log"}
    assert _axes(drawn(bands.draw_prediction(pair, TTFT))) == {None}


def _axes(figure: Figure) -> set[str | None]:
    """Of what sort the vertical axes are."""
    return {
        each["y"].get("scale", {}).get("type")
        for each in _encodings(figure.spec)
        if each["y"]["field"] == "y"
    }


def test_the_roofline_is_drawn_where_the_catalogue_knows_it(tmp_path: Path) -> None:
    deployment = {"model": "llama-3.1-8b", "gpus": 1, "tp": 1}
    run(tmp_path, "s", [cell(1), cell(4)], source="simulated", deployment=deployment)
    run(tmp_path, "m", [cell(1), cell(4)], deployment=deployment)
    every = points(tmp_path)
    # 10 requests/s · 20 ms · 127 tokens: 25 decode at once. 8.03 G parameters but for 128,256 ×
    # 4,096 of embedding, two bytes each, and 131,072 bytes of KV cache for each of 25 × 1,088
    # tokens, at 4.8 TB/s.
    expected_s = (2 * (8.03e9 - 128256 * 4096) + 25 * 1088 * 131072) / 4.8e12
    assert every[0].roofline.tpot_s == pytest.approx(expected_s, rel=0.02)
    (pair,) = pairs.pair_predictions(every)
    figure = drawn(bands.draw_prediction(pair, TPOT))
    assert any(
        row.get("what") == "roofline" for rows in figure.spec["datasets"].values() for row in rows
    )


def test_each_setting_is_laid_under_what_was_measured_with_it(tmp_path: Path) -> None:
    """What was measured without a word on its settings is laid over all predictions."""
    for name, source, label in (
        ("p8", "simulated", "8k"), ("p2", "simulated", "2k"), ("p", "simulated", None),
        ("m8", "measured", "8k"), ("m4", "measured", "4k"), ("m", "measured", None),
    ):  # fmt: skip
        run(tmp_path, name, [cell(8)], source=source, settings={"label": label})
    found = pairs.pair_predictions(points(tmp_path))
    laid = [
        ([point.run for point in simulated], [point.run for point in others])
        for simulated, others in found
    ]
    assert sorted(laid) == [(["p"], ["m", "m4", "m8"]), (["p2"], ["m"]), (["p8"], ["m", "m8"])]


def sized(**changes: Any) -> Row:
    return msgspec.structs.replace(size(parse_worker("llama-3.1-8b@1xh200")), **changes)


def test_the_longest_contexts_as_a_map() -> None:
    rows = [
        sized(gpus=gpus, max_context_tokens=tokens)
        for gpus, tokens in ((1, 0), (2, 4096), (4, 131072))
    ]
    figure = drawn(contexts_picture(rows))
    assert [row["text"] for row in rows_of(figure)] == ["–", "4k", "128k"]
    assert figure.notes == [
        "tokens of one request, beside weights and activations; grey: the model does not fit"
    ]


def test_a_map_of_contexts_says_for_how_many_requests_and_of_what_it_is_the_best() -> None:
    kinds = (("bf16", 1024), ("fp8", 4096))
    rows = [
        sized(batch=64, weights_dtype=dtype, max_context_tokens=tokens) for dtype, tokens in kinds
    ]
    figure = drawn(
        contexts_picture([*rows, msgspec.structs.replace(rows[1], gpus=2, engine="sglang")])
    )
    assert [row["text"] for row in rows_of(figure)] == ["4k", "4k"]
    assert "tokens of each of 64 requests at once" in figure.notes[0]
    assert (
        figure.notes[1] == "each is the longest over several precisions"
    )  # engines differ from box to box alone


def made_run(folder: Path) -> StoredRun:
    """20 requests a second apart; tokens 10 ms apart; the last one is warm-up, the one before
    failed."""
    records = [record(n, float(n), [n + 0.1 + 0.01 * k for k in range(11)]) for n in range(18)]
    records += [
        record(18, 18.0, [], status="error"),
        record(19, 19.0, [19.1, 19.2], phase="warmup"),
    ]
    return read_run(run(folder, "a", [cell(1)], records=records))


def test_what_records_show(tmp_path: Path) -> None:
    seen = sample(made_run(tmp_path))
    assert seen is not None
    cdfs = {cdf.metric: cdf for cdf in seen.cdfs}
    assert {cdf.n for cdf in cdfs.values()} == {18}
    assert np.allclose(cdfs["TTFT"].values, 0.1)
    assert np.allclose(cdfs["TPOT"].values, 0.01)
    assert np.allclose(cdfs["E2E"].values, 0.2)
    assert {(cdf.n, cdf.levels[0], cdf.levels[-1]) for cdf in seen.cdfs} == {(18, 0.0, 1.0)}
    assert seen.heat is not None
    assert seen.heat.counts.sum() == 18 * 10 + 1
    tokens = next(track for track in seen.tracks if track.panel == "output tok/s")
    width_s = tokens.times_s[1] - tokens.times_s[0]
    assert sum(tokens.values) * width_s == pytest.approx(18 * 11 + 2)
    under_way = next(track for track in seen.tracks if track.name == "under way")
    # One at a time for a fifth of a second, but for the failed one, whose end nobody knows.
    assert max(under_way.values[:100]) == pytest.approx(1)
    assert sum(under_way.values[:100]) * width_s == pytest.approx(0.2 * 12.5 / 1, rel=0.1)
    name = "vLLM"
    for metric in cdfs:
        drawn(inside.cumulative(seen, metric, name, "sending", key="c"))
    drawn(inside.timeline(seen, name, key="t"))
    drawn(inside.gaps(seen.heat, name, key="g"))


def cdf_of(folder: Path, ttfts: list[float]) -> Cdf:
    records = [record(n, float(n), [n + ttft, n + ttft + 0.1]) for n, ttft in enumerate(ttfts)]
    seen = sample(read_run(run(folder, "a", [cell(1)], records=records)))
    assert seen is not None
    return next(cdf for cdf in seen.cdfs if cdf.metric == "TTFT")


def test_few_requests_are_steps_at_their_own_values(tmp_path: Path) -> None:
    cdf = cdf_of(tmp_path, [0.4, 0.1, 0.2])
    assert np.allclose(cdf.values, [0.1, 0.1, 0.2, 0.2, 0.4, 0.4])
    assert np.allclose(cdf.levels, [0, 1 / 3, 1 / 3, 2 / 3, 2 / 3, 1])
    assert cdf.p50_s == pytest.approx(0.2)


def test_many_requests_are_a_line_through_their_quantiles(tmp_path: Path) -> None:
    cdf = cdf_of(tmp_path, [0.001 * n for n in range(101)])
    assert np.allclose(cdf.levels, LEVELS)
    assert np.allclose(cdf.values, 0.1 * LEVELS)
    assert len(LEVELS) < cdf.n


def test_a_gap_of_nothing_is_explained(tmp_path: Path) -> None:
    seen = sample(
        read_run(run(tmp_path, "a", [cell(1)], records=[record(0, 0.0, [0.1, 0.1, 0.2])]))
    )
    assert seen is not None
    assert seen.heat is not None
    said = " ".join(drawn(inside.gaps(seen.heat, "vLLM", key="g")).notes)
    assert "Lowest row: below 0.014 ms or 0: 1 that came with another" in said


def test_a_gap_is_shared_by_the_tokens_that_it_brought(tmp_path: Path) -> None:
    one = record(0, 0.0, [0.1, 0.2])
    one.tokens = [1, 5]
    seen = sample(read_run(run(tmp_path, "a", [cell(1)], records=[one])))
    assert seen is not None
    assert seen.heat is not None
    assert seen.heat.counts.sum() == 4
    (gap,) = np.flatnonzero(seen.heat.counts.sum(axis=0))
    assert seen.heat.gap_edges_s[gap] <= 0.025 < seen.heat.gap_edges_s[gap + 1]


def test_every_picture_of_a_set_can_be_drawn_as_svg(tmp_path: Path) -> None:
    for name, engine in (("a", "vLLM"), ("b", "SGLang")):
        run(tmp_path, name, [cell(1), cell(4)], engine=engine)
        run(tmp_path, f"{name}-long", [cell(4)], engine=engine, workload={"output": length(512)})
        offline = [
            cell(8, kind="burst", ttft=None, tpot=None),
            cell(32, kind="burst", ttft=None, tpot=None),
        ]
        run(tmp_path, f"{name}-offline", offline, engine=engine, workload={"mode": "offline"})
    found = draw_pictures(points(tmp_path)).figures
    assert len({figure.key for figure in found}) == len(found) > 12
    for figure in found:
        assert to_svg(figure).startswith("<svg")


def test_hostile_names_are_text(tmp_path: Path) -> None:
    name = '</script><script>alert("x")</script>\x1b[31m=1+1'
    run(tmp_path, "a", [cell(1), cell(4)], engine=name, model=name)
    run(tmp_path, "b", [cell(1), cell(4)], engine="vLLM", model=name)
    for figure in draw_pictures(points(tmp_path)).figures:
        assert "<script" not in to_svg(figure)
        assert "\x1b" not in json.dumps(figure.spec, ensure_ascii=False)


# --- colours --------------------------------------------------------------------------------------


def test_colours_are_told_apart_by_the_colour_blind() -> None:
    """Machado, Oliveira and Fernandes (2009), severity 1; distance in CIE L*a*b*, of which 10 is
    seen at a glance."""
    kinds = {
        "none": np.eye(3),
        "protanopia": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
        "deuteranopia": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
        "tritanopia": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
    }
    for matrix in kinds.values():
        seen = [_lab(np.clip(np.asarray(matrix) @ _linear(each), 0, 1)) for each in PALETTE]
        nearest = min(float(np.linalg.norm(a - b)) for a, b in itertools.combinations(seen, 2))
        assert nearest > 10


def test_marks_are_seen_on_both_grounds() -> None:
    """WCAG 2.2, 1.4.11: a contrast of 3."""
    light = np.array([0.2126, 0.7152, 0.0722])
    for mark in (*PALETTE, "#777777"):
        for ground in ("#ffffff", "#17191c"):
            brightest, darkest = sorted(
                (float(light @ _linear(each)) for each in (mark, ground)), reverse=True
            )
            assert (brightest + 0.05) / (darkest + 0.05) >= 3, (mark, ground)


@pytest.mark.parametrize("repeats", [1, 2])
def test_a_colour_is_an_engine_on_the_whole_page_and_a_shape_a_gpu(
    tmp_path: Path, repeats: int
) -> None:
    """Whether a picture compares engines, GPUs or both; of repeats, which look alike otherwise, the
    shapes differ."""
    for gpu, engine, n in itertools.product(("h100", "h200"), ("vLLM", "SGLang"), range(repeats)):
        deployment = {"gpu": gpu, "gpus": 8}
        run(
            tmp_path,
            f"{gpu}-{engine}-{n}",
            [cell(1), cell(4)],
            engine=engine,
            deployment=deployment,
        )
    hues: dict[str, set[str]] = {}
    shapes: dict[str, set[str]] = {}
    for figure in draw_pictures(points(tmp_path)).figures:
        for row in itertools.chain(*figure.spec["datasets"].values()):
            if "who" in row and "label" in row:
                engine = (
                    "vLLM"
                    if "vLLM" in row["label"]
                    else "SGLang"
                    if "SGLang" in row["label"]
                    else ""
                )
                hues.setdefault(engine, set()).add(row["hue"])
        for layer in figure.spec.get("layer", []):
            scale = layer["encoding"].get("shape", {}).get("scale", {})
            if figure.section == "load":
                for label, shape in zip(
                    scale.get("domain", ()), scale.get("range", ()), strict=True
                ):
                    shapes.setdefault("H100" if "H100" in label else "H200", set()).add(shape)
    assert sorted(map(sorted, (hues["vLLM"], hues["SGLang"]))) == sorted(
        [[PALETTE[0]], [PALETTE[1]]]
    )
    assert len(shapes["H100"]) == len(shapes["H200"]) == repeats
    if repeats == 1:
        assert shapes["H100"] != shapes["H200"]


@pytest.mark.parametrize(
    ("engines", "gpus"), [(("vLLM",), ("h100", "h200")), (("vLLM", "SGLang"), ("h100",))]
)
def test_what_alone_differs_has_the_colours(
    tmp_path: Path, engines: Sequence[str], gpus: Sequence[str]
) -> None:
    for engine, gpu in itertools.product(engines, gpus):
        run(
            tmp_path,
            f"{gpu}-{engine}",
            [cell(1), cell(4)],
            engine=engine,
            deployment={"gpu": gpu, "gpus": 8},
        )
    known = assign_hues(points(tmp_path))
    assert {point.look.hue for point in known} == {0, 1}
    assert {point.look.shape for point in known} == {None}


def test_plans_of_one_gpu_and_engine_have_curves_of_their_own() -> None:
    one = PlanCurve("plan 1", "words", [1.0, 8.0, 9.0], [0.5, 0.9, 1.4], 8.2, 1.0)
    spec = load_figure([one, one._replace(name="plan 2")], 5.0, "requests/s").spec
    drawn = [row for rows in spec["datasets"].values() for row in rows if "plan" in row]
    assert {row["name"] for row in drawn} == {"plan 1", "plan 2"}
    assert max(row["worst"] for row in drawn) == 1.05  # a curve ends above its bound


def test_a_known_engine_has_the_same_colour_on_all_pages() -> None:
    one, other = (
        number_engines(["SGLang", "mine", "vLLM"]),
        number_engines(["vllm on 1xh100", "vllm 0.9", "sglang"]),
    )
    assert (one["vLLM"], one["SGLang"]) == (other["vllm on 1xh100"], other["sglang"])
    assert len(set(one.values())) == len(set(other.values())) == 3


def test_engines_that_are_only_simulated_take_no_colour_from_what_was_measured(
    tmp_path: Path,
) -> None:
    for engine, gpu in itertools.product(("a server", "vLLM", "SGLang"), ("h100", "h200")):
        source = "measured" if engine == "a server" else "simulated"
        told = {"gpu": gpu, "gpus": 8}
        run(
            tmp_path,
            f"{gpu}-{engine}",
            [cell(1), cell(4)],
            engine=engine,
            deployment=told,
            source=source,
        )
    measured = [
        point for point in assign_hues(points(tmp_path)) if point.setup.source == "measured"
    ]
    assert len({point.look.hue for point in measured}) == 2


def test_what_is_left_out_is_said_and_no_kind_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for tokens in (64, 128, 256, 512):
        for engine in ("vLLM", "SGLang"):
            work = {"output": length(tokens)}
            run(tmp_path, f"{engine}-{tokens}", [cell(1), cell(4)], engine=engine, workload=work)
    every = draw_pictures(points(tmp_path))
    assert not any(every.left_out.values())

    def kinds_of(pictures: Drawn) -> set[str]:
        return {
            re.sub(r"-\d+$", "", figure.key)
            for figure in (pictures.hero, *pictures.figures)
            if figure is not None
        }

    kinds = kinds_of(every)
    monkeypatch.setattr("loadstone.report.charts.select.MAX_FIGURES", len(kinds) + 4)
    some = draw_pictures(points(tmp_path))
    assert kinds_of(some) == kinds
    assert len(some.figures) + sum(some.left_out.values()) >= len(every.figures)
    assert sum(some.left_out.values()) > 0


def test_a_distribution_goes_up_in_steps(tmp_path: Path) -> None:
    records = [record(n, float(n), [n + 0.1 + 0.01 * k for k in range(5)]) for n in range(4)]
    seen = sample(read_run(run(tmp_path, "a", [cell(1)], records=records)))
    assert seen is not None
    figure = drawn(inside.cumulative(seen, "TTFT", "vLLM", "sending", key="k"))
    assert figure.spec["mark"]["interpolate"] == "step-after"


def test_ratios_stand_around_one(tmp_path: Path) -> None:
    for gpu, output in (("h100", 1000.0), ("h200", 3000.0)):
        run(
            tmp_path,
            gpu,
            [cell(1, output=output), cell(4, output=output)],
            deployment={"gpu": gpu, "gpus": 8},
        )
    (figure,) = bars.ratio_figures(pairs.gpu_ratios(points(tmp_path)))
    (scale,) = [
        each["x"]["scale"] for each in _encodings(figure.spec) if "scale" in each.get("x", {})
    ]
    low, high = scale["domain"]
    assert low * high == pytest.approx(1)
    assert "times better on H200 than on H100" in json.dumps(figure.spec)
    assert re.search(r'role-axis-label".*>1</text>', to_svg(figure))


def test_numbers_have_no_exponents(tmp_path: Path) -> None:
    run(tmp_path, "a", [cell(1, output=12345.0), cell(4, output=23456.0)])
    for figure in draw_pictures(points(tmp_path)).figures:
        assert not re.search(r"\de\+", figure.summary)
        assert "~g" not in json.dumps(figure.spec).replace('".4~g"', "").replace(
            '"format": "~g"', ""
        )


def _linear(hexadecimal: str) -> Any:
    values = np.array([int(hexadecimal[n : n + 2], 16) for n in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def _lab(linear: Any) -> Any:
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    x, y, z = (to_xyz @ linear) / np.array([0.9505, 1.0, 1.089])
    f = [each ** (1 / 3) if each > 0.008856 else 7.787 * each + 16 / 116 for each in (x, y, z)]
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_the_output_throughput_of_nothing_is_no_picture(tmp_path: Path) -> None:
    run(tmp_path, "a", [cell(1, output=None, total=None), cell(4, output=None, total=None)])
    (frame,) = frames(points(tmp_path), "load")
    assert lines.against(frame, OUTPUT, key="k") is None
    assert lines.front(frame, PER_GPU, section="throughput", key="pareto") is None


def test_the_knee_of_a_sweep_is_ringed(tmp_path: Path) -> None:
    run(
        tmp_path,
        "a",
        [cell(1, output=100, e2e=1.0), cell(4, output=380, e2e=1.1), cell(16, output=500, e2e=4.0)],
    )
    (frame,) = frames(points(tmp_path), "load")
    figure = drawn(lines.trade_off(frame, E2E, OUTPUT, section="throughput", key="k"))
    (ring,) = [each for each in figure.spec["layer"] if each["mark"].get("filled") is False]
    assert [row["load"] for row in figure.spec["datasets"][ring["data"]["name"]]] == [4]
    assert "ringed: the knee" in figure.notes[1]


def test_of_many_lines_each_engine_has_a_small_picture(tmp_path: Path) -> None:
    for engine in ("vLLM", "SGLang", "TensorRT-LLM"):
        for gpu in ("h100", "h200", "b200"):
            run(
                tmp_path,
                f"{engine}-{gpu}",
                [cell(1), cell(4)],
                engine=engine,
                deployment={"gpu": gpu, "gpus": 8},
            )
    figure = next(
        each for each in draw_pictures(points(tmp_path)).figures if each.key == "tpot-by-load"
    )
    assert figure.spec["facet"]["sort"] == ["SGLang", "TensorRT-LLM", "vLLM"]
    assert legend(drawn(figure))[0] == 9


def test_a_comparison_draws_the_ratios_of_its_table() -> None:
    def metric(name: str, ratio: float) -> MetricRow:
        absent: dict[str, Any] = dict.fromkeys(MetricRow.__struct_fields__)
        return MetricRow(**absent | {"name": name, "a": 1.0, "b": ratio, "ratio": ratio})

    metrics = [
        metric("ttft_p99", 1.12),
        metric("output_tokens_per_s", 0.96),
        metric("tpot_p50", 0.89),
    ]
    figure = bars.change_figure([("concurrency 1", metrics)])
    assert figure is not None
    drawn = max(figure.spec["datasets"].values(), key=len)
    assert [(row["times"], row["worse"]) for row in drawn] == [
        (1.12, True),
        (0.96, True),
        (0.89, False),
    ]
    assert "B / A" in json.dumps(figure.spec)
