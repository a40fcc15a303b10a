"""The report: one page that needs no network and believes nobody; Markdown, CSV and pictures beside
it."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from browser import Browser, needs_chromium
from conftest import Loadstone
from loadstone.core.errors import InputError
from loadstone.core.text import escape_formula
from loadstone.interop.read import import_files
from loadstone.interop.read.folders import run_folders
from loadstone.report import write
from loadstone.report.data.points import alike
from loadstone.report.data.runs import read_runs
from loadstone.report.pages.csv_sheet import sheet
from loadstone.report.pages.document import Report, build
from loadstone.report.pages.html import _pack, asset, page
from loadstone.report.pages.markdown import markdown
from loadstone.report.pages.study import StudyCell, StudyPart
from loadstone.report.table import Table, drop_empty_columns, escape
from loadstone.report.write import report
from report_folders import Json, cell, length, points, record, run, stat
from test_import import VLLM

SPOILT: Json = {"trusted": False, "findings": [{"kind": "short_outputs"}]}
HOSTILE = '</script><script>document.title="owned"</script><img src=x onerror="document.title=1">\x1b]0;owned\x07=cmd()|`x`'


class Page(HTMLParser):
    """Elements of a page: (tag, attributes), and the text of its scripts and of everything else."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[str, str]] = []
        self.words = ""
        self._inside = ""
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append((dict(attrs).get("type") or "", ""))

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            kind, before = self.scripts[-1]
            self.scripts[-1] = kind, before + data
        elif self._inside != "style":
            self.words += data


def made(folder: Path) -> str:
    runs, passed_over = read_runs([folder])
    return page(build(runs, passed_over=passed_over))


def built(folder: Path, **more: Any) -> Report:
    return build(read_runs([folder])[0], inside=False, **more)


@contextmanager
def opened(
    folder: Path, size: tuple[int, int] | None = None, anchor: str = "", **flags: bool
) -> Iterator[Browser]:
    """The report of the runs in `folder`/runs in a browser."""
    (folder / "r.html").write_text(made(folder / "runs"))
    with Browser(folder / "profile", **flags) as browser:
        if size is not None:
            browser.size(*size)
        browser.open((folder / "r.html").as_uri() + anchor)
        yield browser


def two_runs(folder: Path) -> None:
    records = [record(n, float(n), [n + 0.1 + 0.01 * k for k in range(11)]) for n in range(20)]
    run(folder, "a", [cell(1), cell(4, ttft=0.2), cell(16, ttft=0.9)], records=records)
    run(
        folder,
        "b",
        [cell(1), cell(4, ttft=0.1), cell(16, ttft=0.4)],
        engine="SGLang",
        source="simulated",
    )


def test_a_page_needs_nothing_but_itself(tmp_path: Path) -> None:
    two_runs(tmp_path)
    seen = Page(made(tmp_path))
    for tag, attributes in seen.tags:
        for name in ("src", "href", "action", "data"):
            target = attributes.get(name)
            assert target is None or target.startswith("#"), (tag, target)
    policy = next(dict(a)["content"] for tag, a in seen.tags if tag == "meta" and "http-equiv" in a)
    assert policy is not None
    assert "default-src 'none'" in policy
    assert "unsafe-eval" not in policy
    allowed = re.search(r"script-src ([^;]+)", policy)
    assert allowed is not None
    assert "unsafe-inline" not in allowed[1]
    run_by_browser = [code for kind, code in seen.scripts if kind == ""]
    hashes = {
        f"'sha256-{base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()}'"
        for code in run_by_browser
    }
    assert hashes == set(allowed[1].split())
    assert run_by_browser == [asset("vega.js"), asset("page.js")]


def test_a_page_has_all_that_a_report_must(tmp_path: Path) -> None:
    two_runs(tmp_path)
    spoilt = cell(64)
    finding = {
        "kind": "short_answers",
        "severity": "warning",
        "evidence": "half of them",
        "remedy": "Ask for less.",
    }
    spoilt["verdict"] = {"trusted": False, "findings": [finding]}
    run(tmp_path, "c", [spoilt], engine="llama.cpp")
    source = made(tmp_path)
    words = Page(source).words
    assert "1 of 7 loads carries a warning" in words
    assert "short answers" in words
    assert "run 3, concurrency 64: half of them" in words
    main = words[words.index("To the content") :]
    order = [
        "Most output throughput",
        "1 of 7 loads carries",
        "All loads",
        "Charts",
        "severity",
        "More tables",
    ]
    places = [main.index(each) for each in order]
    assert places == sorted(places)
    assert main.rindex("short answers") < main.index("Environment")
    assert "loadstone bench http://localhost:8000" in words
    assert "95%" in words
    assert source.count('class="chart"') == source.count('<script type="application/json">') > 12
    for _, code in Page(source).scripts[:-2]:
        assert json.loads(code)["$schema"].startswith("https://vega.github.io/schema/vega-lite/")


def test_what_engines_say_is_text(tmp_path: Path) -> None:
    bad = cell(1)
    bad["verdict"] = {
        "trusted": False,
        "findings": [
            dict.fromkeys(("kind", "evidence", "remedy"), HOSTILE) | {"severity": "error"}
        ],
    }
    for name in ("a", "b"):
        run(
            tmp_path, name, [bad, cell(4)], engine=HOSTILE + name, model=HOSTILE, settings={"prefix_cache": HOSTILE},
            workload={"name": HOSTILE, "kind": "dataset"}, deployment={"gpu": HOSTILE, "weights_dtype": HOSTILE},
        )  # fmt: skip
    runs, _ = read_runs([tmp_path])
    for each in runs:
        each.info.command = ["loadstone", HOSTILE]
        each.info.error = HOSTILE
    report = build(runs, passed_over=[HOSTILE])
    source = page(report)
    seen = Page(source)
    assert not [tag for tag, _ in seen.tags if tag == "img"]
    assert [kind for kind, _ in seen.scripts].count("") == 2
    assert 'owned"</script>' in seen.words
    for character in ("\x1b", "\x07"):
        assert character not in source
        assert character not in markdown(report)
        assert character not in sheet(report)
    said = markdown(report)
    outside_of_code = re.sub(r"(?m)^```\n.*?^```$", "", said, flags=re.DOTALL)
    assert not re.search(r"(?<!\\)<", outside_of_code)


def test_markdown_is_taken_literally() -> None:
    assert escape("a|b_c*d<e>[f](g)`h`") == r"a\|b\_c\*d\<e\>\[f\](g)\`h\`"
    assert escape("1.5-2 (x)") == "1.5-2 (x)"


def test_formulas_are_no_formulas_in_csv(tmp_path: Path) -> None:
    run(tmp_path, "a", [cell(1)], engine="=1+1", model="@x")
    rows = list(csv.DictReader(io.StringIO(sheet(built(tmp_path)))))
    assert (rows[0]["engine"], rows[0]["model"]) == ("'=1+1", "'@x")
    assert float(rows[0]["ttft_value_s"]) == 0.1
    values = ("+1", "-x", "\tx", "x=1", -1.5, None)
    assert [escape_formula(value) for value in values] == ["'+1", "'-x", "'\tx", "x=1", -1.5, ""]


@pytest.mark.process
def test_a_measured_run_is_reported_in_every_format(loadstone: Loadstone, tmp_path: Path) -> None:
    words = (
        "bench --sim ttft=5ms,itl=1ms --concurrency 1,2 --requests 6 --input 8 --output 4 --json"
    )
    folder = loadstone(*words.split()).folder
    assert folder
    for name, first in (
        ("r.html", "<!doctype html>"),
        ("r.md", "# timing · timing server"),
        ("r.csv", "run,cell,source"),
    ):
        done = loadstone("report", folder, "-o", tmp_path / name, "--json")
        assert (done.code, done.document) == (0, {"schema": 1, "files": [str(tmp_path / name)]})
        assert (tmp_path / name).read_text().startswith(first)
    done = loadstone("report", folder.parent, "--format", "svg", "-o", tmp_path / "pictures")
    assert done.code == 0
    pictures = [Path(line) for line in done.out.split()]
    assert {path.suffix for path in pictures} == {".svg"}
    names = " ".join(path.stem for path in pictures)
    assert all(
        word in names
        for word in (
            "ttft-by-load",
            "throughput-e2e",
            "run-1-timeline",
            "run-1-gaps",
            "run-1-cdf-ttft",
        )
    )


def test_result_files_are_reported_in_one_command(loadstone: Loadstone, tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text(
        "engine,concurrency,output_tok_s,ttft_ms_median\nvllm,1,100,20\nvllm,4,300,30\nsglang,1,90,20\nsglang,4,200,60\n"
    )
    done = loadstone("report", path, "--set", "model=m", "-o", tmp_path / "r.md")
    assert done.code == 0, done.err
    assert "vLLM has the highest output throughput" in (tmp_path / "r.md").read_text()


def test_pictures_of_single_runs_are_left_out_of_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(3):
        run(tmp_path / "runs", f"r{number}", [cell(1), cell(4)], engine=f"engine {number}")
    monkeypatch.setattr(write, "INSIDE_RUNS", 3)
    every = report([tmp_path / "runs"], tmp_path / "all", "svg").files
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(write, "INSIDE_RUNS", 2)
    few = report([tmp_path / "runs"], tmp_path / "few", "svg").files
    alone = [path.name for path in every if "-run-" in path.name]
    assert len(alone) == 9  # TTFT, TPOT and E2E of each
    assert [path.name for path in few] == [path.name for path in every if path.name not in alone]
    said = "loadstone: 9 pictures of single runs are left out, as for more than 2 runs; name one run to get its own\n"
    assert capsys.readouterr().err == said
    # Where there is nothing else to draw, they stay.
    run(
        tmp_path / "other",
        "a",
        [cell(1)],
        records=[record(n, 0.1 * n, [0.1 * n + 0.05]) for n in range(9)],
    )
    monkeypatch.setattr(write, "INSIDE_RUNS", 0)
    assert all(
        "-run-1-" in path.name
        for path in report([tmp_path / "other"], tmp_path / "one", "svg").files
    )


def test_what_cannot_be_reported_is_said_in_one_line(loadstone: Loadstone, tmp_path: Path) -> None:
    folder = run(tmp_path / "runs", "a", [cell(1)])
    assert (
        "neither a run folder nor a folder of run folders"
        in loadstone("report", tmp_path / "nowhere").line()
    )
    assert "cannot be written" in loadstone("report", folder, "-o", "/proc/nowhere/r.html").line()
    for place in (".", "/", "..", "./", str(folder)):
        assert "is a folder" in loadstone("report", folder, "-o", place).line()
        assert "is a folder" in loadstone("export", folder, "-o", place).line()
    assert (
        "no picture" in loadstone("report", folder, "--format", "png", "-o", tmp_path / "p").line()
    )
    assert (
        "--set: only for other tools' results"
        in loadstone("report", folder, "--set", "model=m").line()
    )
    (folder / "summary.json").write_text("[]")
    assert "not a summary" in loadstone("report", folder).line()
    (folder / "summary.json").write_text("{")
    assert "not a summary" in loadstone("report", folder).line()


def test_a_broken_run_among_others_is_passed_over(tmp_path: Path) -> None:
    two_runs(tmp_path)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{}")
    words = Page(made(tmp_path)).words
    assert "Passed over" in words
    assert "1 was passed over: what is named below cannot be read." in words
    assert "not a run this version of Loadstone can read" in words


def test_runs_without_cells_records_or_metrics_are_shown(tmp_path: Path) -> None:
    run(tmp_path, "a", [])
    bare = cell(1, ttft=None, tpot=None, output=None, total=None)
    bare["metrics"] = {}
    run(tmp_path, "b", [bare, cell(4, kind="rate")], source="imported")
    folder = run(tmp_path, "c", [cell(1), cell(4)])
    (folder / "records.parquet").write_bytes(b"no parquet")
    words = Page(made(tmp_path)).words
    assert "A summary without records" in words
    assert "The run's records cannot be read" in words
    assert "no loads" in words


def test_the_best_of_each_goal_has_a_star_though_another_lacks_the_number(tmp_path: Path) -> None:
    run(tmp_path, "a", [cell(1, ttft=None), cell(4, ttft=None)])
    run(tmp_path, "b", [cell(1), cell(4)], engine="SGLang")
    scores = built(tmp_path).scores
    at = scores.heads.index("TTFT")
    assert {row[0]: row[at] for row in scores.rows} == {"vLLM": "-", "SGLang": "★ 100 ms at 1"}


def test_every_link_of_a_page_leads_somewhere(tmp_path: Path) -> None:
    for n, name in enumerate(("vLLM", "SGLang")):
        run(
            tmp_path,
            name,
            [cell(4.0**k, output=1000.0 * (n + k + 1)) for k in range(3)],
            engine=name,
        )
    source = made(tmp_path)
    places = set(re.findall(r' id="([^"]+)"', source))
    links = set(re.findall(r'href="#([^"]+)"', source))
    assert "tables" in links
    assert links <= places


def test_a_dozen_findings_are_open_and_the_context_is_said_once(tmp_path: Path) -> None:
    for n, name in enumerate(("vLLM", "SGLang", "llama.cpp", "MAX", "TGI", "LMDeploy", "MLC")):
        outputs = [1000.0 + 100 * n + k for k in range(3)]
        many = [
            cell(4.0 ** (k + 1), output=output, ttft=0.1 * (n + 1))
            for k, output in enumerate(outputs)
        ]
        run(tmp_path, name, many, engine=name)
        run(tmp_path, f"{name}-long", many, engine=name, workload={"output": length(999)})
    words = made(tmp_path).partition('id="findings"')[2].partition('id="tables"')[0]
    shown, _, more = words.partition("more findings</summary>")
    assert shown.count("<li>") == 12
    assert more.count("<li>") > 12
    assert shown.count("Model-7B, 1,024 tokens in, 128 out") == 1
    assert "stops growing" in shown


def test_requests_without_a_common_clock_are_not_drawn_over_time(tmp_path: Path) -> None:
    """vLLM's older files have durations alone; a timeline would show all of them sent at once."""
    told = {
        "model_id": "m", "backend": "vllm", "num_prompts": 3, "request_rate": 2.0, "duration": 100.0, "completed": 3,
        "total_input_tokens": 30, "total_output_tokens": 9, "request_throughput": 0.03, "output_throughput": 0.09,
        "total_token_throughput": 0.39, "input_lens": [10] * 3, "output_lens": [3] * 3, "ttfts": [0.5, 0.6, 0.7],
        "itls": [[1.0, 1.0]] * 3, "errors": [""] * 3, "generated_texts": ["a b c"] * 3,
    }  # fmt: skip
    (tmp_path / "old.json").write_text(json.dumps(told))
    import_files([tmp_path / "old.json"], tmp_path / "runs")
    (part,) = build(read_runs([tmp_path / "runs"])[0]).parts
    assert [figure.key for figure in part.figures] == [
        "run-1-cdf-ttft",
        "run-1-cdf-tpot",
        "run-1-cdf-e2e",
    ]
    assert "TTFT from sending (open loop)" in " ".join(part.figures[0].notes)
    assert any("from its own send" in note for note in part.notes)


def test_findings_come_before_the_list_of_folders(tmp_path: Path) -> None:
    two_runs(tmp_path)
    text = markdown(build(read_runs([tmp_path])[0]))
    assert (
        text.index("**Model")
        < text.index("### All loads")
        < text.index("## Findings")
        < text.index("### Runs")
    )
    page = made(tmp_path)
    assert (
        page.index('class="answer"')
        < page.index("<h2>All loads</h2>")
        < page.index('id="findings"')
        < page.index('aria-label="Runs"')
    )


@pytest.mark.parametrize(("date", "said"), [("20260102-030405", "started"), (None, "imported")])
def test_an_imported_run_tells_its_files_and_when_it_was_measured(
    tmp_path: Path, date: str | None, said: str
) -> None:
    (tmp_path / "in" / "monday").mkdir(parents=True)
    (tmp_path / "in" / "monday" / "a.json").write_text(json.dumps(VLLM | {"date": date}))
    import_files([tmp_path / "in"], tmp_path / "runs")
    (part,) = build(read_runs([tmp_path / "runs"])[0]).parts
    facts = dict(part.facts)
    assert facts["files"] == "monday/a.json"
    assert {"started", "imported"} & facts.keys() == {said}


def test_a_folder_of_other_tools_results_is_imported_for_the_report(tmp_path: Path) -> None:
    results = tmp_path / "in" / "monday"
    results.mkdir(parents=True)
    (results / "a.json").write_text(json.dumps(VLLM))
    with run_folders([tmp_path / "in"], ["gpu=h100"]) as (folders, _):
        made = report(folders, tmp_path / "r.md").report
    assert [dict(part.facts)["files"] for part in made.parts] == ["monday/a.json"]
    assert not list(tmp_path.rglob("run.json"))
    (tmp_path / "empty").mkdir()
    with (
        pytest.raises(InputError, match="folder of run folders"),
        run_folders([tmp_path / "empty"]) as (folders, _),
    ):
        report(folders, tmp_path / "r.md")


def test_rows_that_were_left_out_of_an_import_are_told(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(
        "\n".join(json.dumps(VLLM | {"request_rate": rate}) for rate in (2.0, "inf"))
    )
    (tmp_path / "b.json").write_text(json.dumps({"avg_latency": 1.0, "percentiles": {"50": 1.0}}))
    with run_folders([tmp_path / "a.json", tmp_path / "b.json"]) as (folders, passed_over):
        report(folders, tmp_path / "r.md", passed_over=passed_over)
    assert "passed over: b.json: does not state the load; left out" in (
        tmp_path / "r.md"
    ).read_text().replace("\\", "")


def test_silence_about_simulated_runs_is_told(tmp_path: Path) -> None:
    two_runs(tmp_path)
    assert "Simulated runs have no findings" in made(tmp_path)


@pytest.mark.parametrize(
    ("workload", "said"),
    [
        ({"pictures": {"count": {"kind": "uniform", "mean": 1.0, "low": 0, "high": 2}}}, "0 to 2 pictures of 512x512"),
        ({"pictures": {"count": {"kind": "fixed", "mean": 1.0}}}, "1 picture of 512x512"),
        ({"pictures": {"count": {"kind": "normal", "mean": 1.5, "sd": 1}}}, "about 1.5 pictures of 512x512"),
        ({"kind": "pooled", "task": "rerank", "count": {"kind": "uniform", "mean": 5.5, "low": 1, "high": 10},
          "document": {"kind": "fixed", "mean": 64.0}}, "rerank, 1 to 10 documents of 64 in a request"),
        ({"kind": "pooled", "task": "embeddings", "count": {"kind": "fixed", "mean": 1.0}}, "embeddings, 1 input in a request"),
    ],
)  # fmt: skip
def test_a_number_that_is_drawn_is_told_by_its_ends(
    tmp_path: Path, workload: dict[str, Any], said: str
) -> None:
    for pictures in filter(None, [workload.get("pictures")]):
        pictures["sizes"] = [[512, 512]]
    run(tmp_path, "a", [cell(1)], workload=workload)
    assert said in made(tmp_path).replace(",\n", ", ")


def test_a_report_of_one_run_does_not_repeat_its_name_in_each_row(tmp_path: Path) -> None:
    run(tmp_path, "a", [cell(1), cell(4)])
    table = all_cells(tmp_path)
    assert "deployment" not in table.heads
    assert table.rows[0][:1] == ["concurrency 1"]
    run(tmp_path, "b", [cell(1), cell(4)], engine="SGLang")
    table = all_cells(tmp_path)
    assert table.heads[:2] == ["run", "deployment"]
    assert table.rows[0][table.heads.index("95%")] == "98.0–102 ms"


def test_columns_without_a_number_are_left_out(tmp_path: Path) -> None:
    one = cell(4)
    one["metrics"]["ttft_s"]["ci95"] = {}
    run(tmp_path, "a", [one])
    table = all_cells(tmp_path)
    assert "E2E" in table.heads
    assert not {"ITL", "roofline", "MBU", "MFU"} & set(table.heads)
    assert all(len(row) == len(table.heads) == len(table.align) for row in table.rows)


def test_what_was_used_of_the_hardware_stands_beside_the_share_of_light(tmp_path: Path) -> None:
    run(tmp_path, "a", [cell(25)], deployment={"model": "llama-3.1-8b", "gpus": 1, "tp": 1})
    report = built(tmp_path)
    table = all_cells(tmp_path)
    at = table.heads.index("roofline")
    assert table.heads[at : at + 3] == ["roofline", "MBU", "MFU"]
    # A step of 25 requests reads 18.6 GB at 4.8 TB/s and takes 20 ms; 10 requests/s of 1,024 in and
    # 128 out are 11,510 tokens/s of 14 GFLOP, a head for each of the answer's, and attention, of
    # 989 TFLOP/s.
    assert table.rows[0][at : at + 3] == ["20%", "19%", "17%"]
    assert any(note.startswith("MBU:") for note in table.notes)
    (row,) = csv.DictReader(sheet(report).splitlines())
    assert float(row["mbu"]) == pytest.approx(18.58e9 / 4.8e12 / 0.02, rel=0.01)
    assert {"light_tpot_s", "light_ttft_s", "mfu"} <= {name for name, value in row.items() if value}


def test_what_a_summary_tells_of_light_is_what_a_report_shows(tmp_path: Path) -> None:
    told = {
        "tpot_s": 0.01,
        "ttft_s": 0.02,
        "tpot_ratio": 0.5,
        "ttft_ratio": 0.2,
        "mbu": 0.3,
        "mfu": None,
    }
    run(
        tmp_path,
        "a",
        [cell(25, light=told), cell(50, light=None)],
        deployment={"model": "llama-3.1-8b", "gpus": 1},
    )
    first, second = points(tmp_path)
    light = first.roofline
    assert (light.tpot_s, light.ttft_s, light.mbu, light.mfu) == (0.01, 0.02, 0.3, None)
    assert second.roofline.tpot_s is None


def test_runs_that_differ_by_what_was_asked_are_told_apart_by_their_titles(tmp_path: Path) -> None:
    for name, tokens in (("a", 128), ("b", 512)):
        run(tmp_path, name, [cell(4)], workload={"output": length(tokens)})
    titles = [part.title for part in built(tmp_path).parts]
    assert [title.rpartition(" · ")[2] for title in titles] == [
        "1,024 tokens in, 128 out",
        "1,024 tokens in, 512 out",
    ]


def test_markdown_says_what_its_brackets_are(tmp_path: Path) -> None:
    for name, source in (("a", "measured"), ("b", "simulated")):
        run(tmp_path, name, [cell(4), cell(16, output=4000)], source=source)
    run(tmp_path, "c", [cell(4, output=500), cell(16, output=500)], engine="SGLang")
    said = markdown(built(tmp_path))
    assert "In brackets is the interval of the effect" in said
    assert "95%" in said.partition("In brackets")[2]
    assert "Simulated runs have no findings" in said


def test_the_name_of_a_report_says_its_format_or_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path / "runs", "a", [cell(1), cell(4)])
    with pytest.raises(InputError, match=r"\.pdf is none of html, md, csv, png, svg"):
        report([tmp_path / "runs"], tmp_path / "r.pdf")
    assert not (tmp_path / "r.pdf").exists()
    (written,) = report([tmp_path / "runs"], tmp_path / "r.htm").files
    assert written.read_text().startswith("<!doctype html>")
    assert report([tmp_path / "runs"], Path("-")).files == []
    assert capsys.readouterr().out.startswith("# Model-7B · 8×H200 · vLLM")
    with pytest.raises(InputError, match="name a folder"):
        report([tmp_path / "runs"], Path("-"), "png")


def test_a_report_of_nothing_but_an_empty_run(tmp_path: Path) -> None:
    run(tmp_path, "a", [])
    words = Page(made(tmp_path)).words
    assert "Nothing was measured" in words
    assert "These runs show no clear difference" in words


# --- in a browser ---------------------------------------------------------------------------------


DRAWN = "document.querySelectorAll('main > .part > .grid .chart.drawn').length"
OPEN = (
    "document.querySelectorAll('details.part[id^=section]').forEach(each => { each.open = true; })"
)
"""The parts with charts: each is closed until it is asked for."""


@pytest.mark.process
@needs_chromium
def test_charts_are_drawn_when_they_are_looked_at(tmp_path: Path) -> None:
    two_runs(tmp_path / "runs")
    with opened(tmp_path, (375, 700)) as browser:
        count = browser.run("document.querySelectorAll('.chart').length")
        assert count > 12
        assert browser.run("document.querySelectorAll('.chart.drawn').length") < count
        browser.run(OPEN)
        for width in (375, 1600):
            browser.size(width, 24000)
            browser.until(
                f"{DRAWN} === document.querySelectorAll('main > .part > .grid .chart').length"
            )
            browser.until(f"document.documentElement.scrollWidth <= {width}")
            widest = "Math.max(...[...document.querySelectorAll('.chart svg')].map(e => e.getBoundingClientRect().right))"
            browser.until(f"{widest} <= {width}")
        assert browser.complaints == []


@pytest.mark.process
@needs_chromium
def test_without_scripts_no_chart_is_an_empty_box(tmp_path: Path) -> None:
    two_runs(tmp_path / "runs")
    with opened(tmp_path, scripts=False) as browser:
        assert (
            browser.run("document.querySelector('noscript p').getBoundingClientRect().height") > 0
        )
        boxes = "[...document.querySelectorAll('.chart, figure details')]"
        assert browser.run(f"{boxes}.filter(each => each.getClientRects().length).length") == 0


@pytest.mark.process
@needs_chromium
def test_on_paper_no_row_is_on_two_pages(tmp_path: Path) -> None:
    two_runs(tmp_path / "runs")
    with opened(tmp_path) as browser:
        breaks = "new Set([...document.querySelectorAll('tr')].map(each => getComputedStyle(each).breakInside))"
        assert browser.run(f"[...{breaks}]") == ["auto"]
        browser.media("print")
        browser.until(f"String([...{breaks}]) === 'avoid'")


def test_long_data_takes_less_room_as_columns() -> None:
    told = ({"label": "vLLM · H200", "x": n, "p50": n / 7} for n in range(200))
    rows: list[Json] = [each | ({"low": 1.5} if each["x"] % 2 else {}) for each in told]
    long, short = _pack({"datasets": {"long": rows, "short": rows[:3]}})["datasets"].values()
    assert short == rows[:3]
    again = [
        {key: values[at] for key, values in long.items() if values[at] is not None}
        for at in range(200)
    ]
    assert again == rows
    assert len(json.dumps(long)) < 0.7 * len(json.dumps(rows))


@pytest.mark.process
@needs_chromium
def test_on_paper_letters_can_be_read_and_pages_are_few(tmp_path: Path) -> None:
    for n in range(37):
        gpu, engine = ("h100", "h200", "b200")[n % 3], ("vLLM", "SGLang")[n % 2]
        work = {"input": length(1024 * (1 + n // 6)), "output": length(128)}
        cells = [cell(load, ttft=0.1 * load, output=100.0 * load) for load in (1, 4, 16)]
        deployment = {"gpu": gpu, "gpus": 8}
        run(tmp_path / "runs", f"r{n}", cells, engine=engine, deployment=deployment, workload=work)
    with opened(tmp_path, (1440, 900)) as browser:
        browser.run("document.querySelector('figure').scrollIntoView()")
        browser.until("document.querySelector('.chart.drawn') !== null")
        assert browser.pages() <= 8
        browser.size(718, 1000)
        browser.media("print")
        browser.run("window.dispatchEvent(new Event('beforeprint'))")
        browser.until("document.querySelectorAll('.part .chart.drawn').length > 3")
        letters = """[...document.querySelectorAll('main *')].filter((each) => each.getClientRects().length
            && [...each.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim())
            && !each.matches('.chart *, script'))"""
        assert (
            browser.run(
                f"Math.min(...{letters}.map((each) => parseFloat(getComputedStyle(each).fontSize)))"
            )
            > 10.6
        )
        drawn = """[...document.querySelectorAll('.part .chart.drawn svg text')].filter((each) => each.textContent
            && each.getClientRects().length)
            .map((each) => [parseFloat(getComputedStyle(each).fontSize), each.getScreenCTM()])
            .map(([size, turned]) => size * Math.hypot(turned.a, turned.b))"""
        assert browser.run(f"Math.min(...{drawn})") > 10.6
        cut = """[...document.querySelectorAll('.part .chart.drawn svg text')].filter((each) => each.textContent
            && each.getBoundingClientRect().right > each.closest('svg').getBoundingClientRect().right + 1)
            .map((each) => each.textContent)"""
        assert browser.run(cut) == []


def test_a_model_that_no_file_names_is_asked_for_once(tmp_path: Path) -> None:
    run(tmp_path, "a", [cell(1), cell(4)], model="")
    asked = "not named in the files: add --set model=NAME"
    assert made(tmp_path).count(asked) == 1
    assert "unknown model" not in made(tmp_path)
    run(tmp_path / "named", "b", [cell(1)])
    assert asked not in made(tmp_path / "named")


@pytest.mark.process
@needs_chromium
def test_long_names_of_rows_leave_room_for_the_picture(tmp_path: Path) -> None:
    for gpu in ("h200", "mi300x"):
        for engine in (
            "vLLM, a build of our own with a long name",
            "SGLang, a build of our own with a long name",
        ):
            run(
                tmp_path / "runs",
                f"{gpu}-{engine[:4]}",
                [cell(1), cell(4)],
                engine=engine,
                deployment={"gpu": gpu},
            )
    with opened(tmp_path, (375, 24000)) as browser:
        browser.run(OPEN)
        chart = "document.querySelector('figure[id^=gpus] .chart')"
        browser.until(f"{chart}.classList.contains('drawn')")
        plot = browser.run(f"{chart}.querySelector('.background').getBoundingClientRect().toJSON()")
        assert plot["width"] > 100
        assert plot["right"] < 375


@pytest.mark.process
@needs_chromium
def test_verdicts_are_read_on_a_phone_without_scrolling_sideways(tmp_path: Path) -> None:
    spoilt = cell(64)
    said = {"kind": "request_errors", "severity": "error", "evidence": "378 of 1000 requests failed " * 3,
            "remedy": "Percentiles leave out failed requests: fix the cause. " * 2}  # fmt: skip
    spoilt["verdict"] = {"trusted": False, "findings": [said]}
    run(tmp_path / "runs", "a", [spoilt])
    with opened(tmp_path) as browser:
        for width, heads in ((400, False), (1400, True)):
            browser.size(width)
            table = "document.querySelector('.scroll.words')"
            browser.until(
                f"{table}.scrollWidth <= {table}.clientWidth && window.innerWidth === {width}"
            )
            cell_of = f"{table}.querySelector('td:nth-child(3)')"
            named = browser.run(f"getComputedStyle({cell_of}, '::before').content")
            assert ("none" in named) == heads, named
            assert browser.run(f"{cell_of}.getBoundingClientRect().right") <= width


def test_a_table_of_cells_says_what_differs_once(tmp_path: Path) -> None:
    """What all runs share stands under the table; what tells them apart, here the precision, in
    each row."""
    run(tmp_path, "a", [cell(1)], deployment={"weights_dtype": "bf16"})
    run(tmp_path, "b", [cell(1)], deployment={"weights_dtype": "fp8"})
    table = all_cells(tmp_path)
    assert [row[1] for row in table.rows] == ["bf16", "fp8"]
    assert table.notes[0] == "All rows: 8×H200 · vLLM · Model-7B."


def all_cells(folder: Path) -> Table:
    (table,) = [each for each in built(folder).tables if each.key == "cells"]
    return table


def column(table: Table, head: str) -> list[str]:
    at = table.heads.index(head)
    return [row[at] for row in table.rows]


def test_a_cell_with_a_warning_is_marked_where_its_numbers_stand(tmp_path: Path) -> None:
    bunched = cell(4)
    bunched["verdict"] = {
        "trusted": False,
        "findings": [{"kind": "arrivals_bunched", "severity": "warning"}],
    }
    run(tmp_path, "a", [cell(1), bunched])
    table = all_cells(tmp_path)
    assert column(table, "load") == ["concurrency 1", "concurrency 4 †"]
    assert "†: the load carries a warning, see Warnings." in table.notes
    run(tmp_path / "fine", "a", [cell(1)])
    assert "†" not in " ".join(all_cells(tmp_path / "fine").notes)


def test_what_was_promised_is_in_every_format(tmp_path: Path) -> None:
    """A bound per request, of which some miss; one on a percentile, which is met once and missed
    once."""
    cells = [cell(1), cell(4), cell(16)]
    for one, attainment, met in zip(cells, (1.0, 0.982, 1.0), (True, True, False), strict=True):
        one["metrics"] |= {"attainment": attainment, "goodput_per_s": 9 * attainment}
        one["slo"] = [{"bound": "tpot_p99", "limit_s": 0.03, "measured_s": 0.02, "met": met}]
        one["slo_per_request_s"] = {"ttft": 0.5}
    run(tmp_path, "a", cells, slo={"ttft": 0.5, "tpot_p99": 0.03})
    table = all_cells(tmp_path)
    assert column(table, "SLO") == ["met", "MISSED", "MISSED"]
    assert column(table, "attained") == ["100%", "98.2%", "100%"]
    assert column(table, "goodput/s") == ["9.00", "8.84", "9.00"]
    assert "SLO: ttft < 500 ms, tpot_p99 < 30.0 ms." in table.notes
    report = built(tmp_path)
    assert '<td class="r bad">MISSED<small>98.2%</small><small>8.84</small></td>' in page(report)
    assert "| MISSED | 98.2% | 8.84 |" in markdown(report)
    assert "---:|---:|---:|\n" in markdown(report).partition("All loads")[2]
    rows = list(csv.DictReader(io.StringIO(sheet(report))))
    assert [row["slo_met"] for row in rows] == ["True", "False", "False"]
    assert (rows[1]["attainment"], rows[1]["slo"]) == ("0.982", "ttft < 500 ms, tpot_p99 < 30.0 ms")
    on_percentiles = cell(
        1, slo=[{"bound": "ttft_p99", "limit_s": 0.5, "measured_s": 0.2, "met": True}]
    )
    run(tmp_path, "b", [on_percentiles], slo={"ttft_p99": 0.5})
    table = all_cells(tmp_path)
    assert "SLO of run 1: ttft < 500 ms, tpot_p99 < 30.0 ms." in table.notes
    assert (column(table, "SLO")[3], column(table, "attained")[3]) == ("met", "-")


def test_throughput_of_a_load_beyond_capacity_is_that_of_the_whole_cell(tmp_path: Path) -> None:
    """Between its first and its last send the server has mostly taken up prompts. The others keep
    their window."""
    cells = [cell(rate, kind="rate", output=whole) for rate, whole in ((2, 800.0), (20, 2372.0))]
    for one, window in zip(cells, (900.0, 756.0), strict=True):
        one["metrics"]["steady"] = {"output_tokens_per_s": window, "total_tokens_per_s": 9 * window}
    finding = {"kind": "overload", "severity": "warning"}
    cells[1]["verdict"] = {"trusted": False, "findings": [finding]}
    run(tmp_path, "a", cells)
    assert column(all_cells(tmp_path), "output tok/s") == ["900.0", "2,372"]
    assert (
        "steady window (for bursts, and for loads that the server did not keep up with: whole load)"
        in " ".join(all_cells(tmp_path).notes)
    )
    finding["kind"] = "short_outputs"
    run(tmp_path / "other", "a", cells)
    assert column(all_cells(tmp_path / "other"), "output tok/s") == ["900.0", "756.0"]
    run(tmp_path / "alone", "a", [cells[1] | {"verdict": {"findings": [{"kind": "queue_grows"}]}}])
    assert column(all_cells(tmp_path / "alone"), "output tok/s") == ["2,372"]


def stated(load: float) -> Json:
    one = cell(load)
    return one | {"requests": one["requests"] | {"short": None}}


@pytest.mark.parametrize(
    ("cells", "verdict"),
    [
        ([cell(1)], "No problems found in this measurement."),
        ([cell(1, verdict=SPOILT)], "This measurement carries a warning."),
        ([cell(1), cell(2), stated(4)],
         "No problems found in 2 of 3 loads; the others are as reported by another tool."),
        ([cell(1), cell(2), stated(4), cell(8, verdict=SPOILT)],
         "1 of 4 loads carries a warning; 1 is as reported by another tool."),
    ],
)  # fmt: skip
def test_the_verdict_is_a_sentence(tmp_path: Path, cells: list[Json], verdict: str) -> None:
    run(tmp_path, "a", cells)
    report = built(tmp_path)
    assert report.verdict == verdict
    assert ('class="good"' in page(report)) == (verdict == "No problems found in this measurement.")
    if len(cells) == 3:
        assert column(report.overview, "trusted") == ["as reported"]


def predicted(load: float) -> Json:
    one = cell(load)
    one["metrics"]["ttft_s"] |= {"low": 0.08, "high": 0.13}
    one["metrics"]["tpot_s"] |= {"low": 0.015, "high": 0.025}
    return one


def test_a_column_of_predictions_is_not_headed_95(tmp_path: Path) -> None:
    run(tmp_path, "a", [predicted(1)], source="simulated")
    table = all_cells(tmp_path)
    assert "95%" not in table.heads
    assert column(table, "80%") == ["80.0–130 ms"]
    assert "Intervals: 80%, of the prediction." in table.notes
    run(tmp_path, "b", [cell(1)])
    table = all_cells(tmp_path)
    assert not {"80%", "95%"} & set(table.heads)
    assert column(table, "interval") == ["80.0–130 ms", "98.0–102 ms"]
    assert "Intervals: 95%; for simulated loads, 80%, of the prediction." in table.notes


def test_a_p99_that_is_not_bounded_is_not_called_a_bound(tmp_path: Path) -> None:
    bounded = cell(4)
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        bounded["metrics"][name]["ci95"]["p99"][1] = 9.0
    bounded["metrics"]["e2e_s"] = stat(3.0)
    run(tmp_path, "a", [cell(1), bounded], records=[record(0, 0.0, [0.1, 0.2])])
    table = all_cells(tmp_path)
    assert [
        [text for head, text in zip(table.heads, row, strict=True) if head == "p99"]
        for row in table.rows
    ] == [
        ["~130 ms", "~26.0 ms", "~2.60 s"],
        ["130 ms", "26.0 ms", "~3.90 s"],
    ]
    legend = "~ too few requests for a reliable p99"
    assert legend in " ".join(table.notes)
    run(tmp_path / "e2e alone", "a", [bounded], records=[record(0, 0.0, [0.1, 0.2])])
    assert legend in " ".join(all_cells(tmp_path / "e2e alone").notes)
    bounded["metrics"]["e2e_s"]["ci95"]["p99"][1] = 9.0
    run(tmp_path / "none", "a", [bounded], records=[record(0, 0.0, [0.1, 0.2])])
    assert legend not in " ".join(all_cells(tmp_path / "none").notes)


def test_what_a_load_was_is_told_beside_its_number(tmp_path: Path) -> None:
    """A fleet, sessions, a ramp: neither is what its mean, or one server at this load, would be."""
    ramp = cell(22.5, kind="rate")
    ramp["load"] |= {"profile": [[5.0, 40.0, 60.0]]}
    run(tmp_path, "a", [ramp])
    talk = cell(3)
    talk["load"] |= {"unit": "sessions"}
    run(tmp_path, "b", [talk], workload={"sessions": {"turns": length(4)}})
    run(tmp_path, "c", [cell(3)], servers=2)
    run(tmp_path, "d", [cell(3)])
    report = built(tmp_path)
    assert [text.rpartition(", ")[2] for text in column(report.overview, "workload")][:2] == [
        "ramp 5–40 req/s in 60 s",
        "sessions of 4 turns",
    ]
    assert column(report.overview, "deployment")[1:3] == [
        "vLLM · Model-7B · 8×H200",
        "first of 2 servers: vLLM · Model-7B · 8×H200",
    ]
    table = all_cells(tmp_path)
    assert column(table, "load") == [
        "concurrency 3",  # the workload of most requests first
        "concurrency 3",
        "22.5 requests/s · ramp 5–40 req/s in 60 s",
        "concurrency 3 · sessions of 4 turns",
    ]
    assert "fleet of 2" in column(table, "deployment")[0]
    # None of them is a repeat of another, or a point on its line.
    assert len({alike(point) for point in report.points}) == 4


def test_sessions_of_agents_lead_with_their_cliff(tmp_path: Path) -> None:
    cells = []
    for load, output, cached in (
        (1, 500.0, 900),
        (8, 3000.0, 880),
        (16, 3100.0, 850),
        (32, 2000.0, 300),
    ):
        one = cell(load, output=output)
        one["load"] |= {"unit": "sessions"}
        one["metrics"] |= {"input_tokens": 1000, "cached_input_tokens": cached, "shared_input_tokens": 920,
                           "thinking_share": 0.25, "answer_s": stat(1.5)}  # fmt: skip
        one |= {"sessions": {"sessions": 9, "finished": 9, "failed": 0, "task_s": stat(60.0), "per_hour": 540.0},
                "drafts": {"source": "counters", "accepted_length": 2.5}}  # fmt: skip
        cells.append(one)
    run(tmp_path, "a", cells, workload={"kind": "agents"})
    report = built(tmp_path)
    hero = report.pictures.hero
    assert hero is not None
    assert hero.title.startswith("Output throughput per GPU by")
    assert "ringed: the last load before throughput falls" in " ".join(hero.notes)
    assert [
        row["x"] for row in next(rows for rows in hero.spec["datasets"].values() if len(rows) == 1)
    ] == [16]
    shares = next(figure for figure in report.pictures.figures if figure.key == "hit_share-by-load")
    assert [row["y"] for row in next(iter(shares.spec["datasets"].values()))] == [90, 88, 85, 30]
    table = all_cells(tmp_path)
    last = dict(zip(table.heads, table.rows[-1], strict=True))
    names = ("sessions/h", "task", "cached", "could be", "answer", "thinking", "accepted")
    assert [last[name] for name in names] == [
        "540",
        "60.0 s",
        "30%",
        "92%",
        "1.50 s",
        "25%",
        "2.50",
    ]
    heads, *rows = csv.reader(sheet(report).splitlines())
    told = dict(zip(heads, rows[-1], strict=True))
    assert [told[name] for name in ("task_p50_s", "hit_share", "accepted_length")] == [
        "60.0",
        "0.3",
        "2.5",
    ]


def test_what_stands_under_a_column_that_is_left_out_stands_for_itself() -> None:
    table = Table(
        key="k", title="t", heads=["x", "a", "b", "c"], align="ruuu", rows=[["-", "1", "-", "2"]]
    )
    assert (drop_empty_columns(table).heads, drop_empty_columns(table).align) == (["a", "c"], "ru")
    table.rows = [["3", "-", "1", "-"]]
    assert (drop_empty_columns(table).heads, drop_empty_columns(table).align) == (["x", "b"], "ru")


@pytest.mark.process
@needs_chromium
def test_the_table_of_all_cells_fits_a_laptop(tmp_path: Path) -> None:
    """Of two simulated sweeps and a measured one, with prices and bounds: each column has something
    to say."""
    for name, gpu, source in (
        ("a", "h200", "simulated"),
        ("b", "h100", "simulated"),
        ("c", "h100", "measured"),
    ):
        cells = [predicted(load) if source == "simulated" else cell(load) for load in (1, 16, 64)]
        for one in cells:
            one["metrics"] |= {"itl_s": stat(0.0123), "attainment": 0.982, "goodput_per_s": 9.12}
            one["metrics"]["interval"] = {"output_tokens_per_s": {"low": 880.0, "high": 1230.0}}
        run(
            tmp_path / "runs",
            name,
            cells,
            source=source,
            deployment={"gpu": gpu},
            slo={"ttft": 0.5},
        )
    made = built(tmp_path / "runs", prices={"h200": 3.2, "h100": 2.1})
    (tmp_path / "r.html").write_text(page(made))
    with Browser(tmp_path / "profile") as browser:
        browser.size(1280, 900)
        browser.open((tmp_path / "r.html").as_uri())
        table = "document.querySelector('.scroll[aria-label=\"All loads\"]')"
        browser.until(f"{table} !== null && window.innerWidth === 1280")
        assert browser.run(
            f"[{table}.scrollWidth - {table}.clientWidth, {table}.querySelectorAll('th').length]"
        ) == [
            0,
            15,
        ]


@pytest.mark.process
@needs_chromium
def test_a_run_opens_by_keyboard_and_tells_its_numbers(tmp_path: Path) -> None:
    two_runs(tmp_path / "runs")
    with opened(tmp_path, (900, 900), dark=True) as browser:
        browser.press("Tab")
        assert browser.run("document.activeElement.className") == "skip"
        browser.run("document.querySelector('#runs').open = true")
        browser.run("document.querySelector('#run-1 summary').focus()")
        browser.press("Enter")
        browser.until("document.querySelector('#run-1').open")
        browser.run("document.querySelector('#run-1 .drawn').open = true")
        # Charts above, drawn meanwhile, may have pushed this one out of sight, and charts are drawn
        # when looked at.
        browser.run("document.querySelector('#run-1 .chart').scrollIntoView()")
        browser.until("document.querySelector('#run-1 .chart.drawn') !== null")
        browser.run("document.querySelector('#run-1 figure details').open = true")
        browser.until("document.querySelectorAll('#run-1 figure td').length > 4")
        browser.run(OPEN)
        names = [name for role, name in browser.accessible() if role in ("image", "img")]
        assert any("TTFT, median" in name and "vLLM" in name for name in names)
        ink = browser.run("getComputedStyle(document.querySelector('#run-1 .chart text')).fill")
        assert ink == "rgb(232, 234, 237)"
        assert browser.complaints == []


@pytest.mark.process
@needs_chromium
def test_a_browser_runs_nothing_of_what_engines_say(tmp_path: Path) -> None:
    for name in ("a", "b"):
        run(tmp_path / "runs", name, [cell(1), cell(4)], engine=HOSTILE + name, model=HOSTILE)
    with opened(tmp_path, (1600, 24000)) as browser:
        browser.run(OPEN)
        browser.until(f"{DRAWN} > 4")
        browser.run(
            "document.querySelectorAll('figure details').forEach(each => { each.open = true; })"
        )
        browser.until("document.querySelectorAll('figure td').length > 4")
        assert browser.run("document.title").endswith("Loadstone")
        assert browser.run("document.querySelectorAll('img, iframe, object').length") == 0
        assert browser.complaints == []


@pytest.mark.parametrize("value", [0.0, -1.0, 5e-324, 1e300])
def test_numbers_that_cannot_be_are_left_out(tmp_path: Path, value: float) -> None:
    light = {"tpot_s": 0.01, "ttft_s": 0.02, "mbu": 0.3, "mfu": None}
    loads = (1, 2, 4)
    wrong = [
        cell(n, ttft=value, tpot=value, e2e=value, output=value, total=value, roofline=light)
        for n in loads
    ]
    run(tmp_path, "a", wrong, deployment={"gpu": "h100"})
    run(tmp_path, "b", [cell(n) for n in loads], deployment={"gpu": "h200"})
    runs, _ = read_runs([tmp_path])
    made = build(runs, prices={"h100": 2.0, "h200": 3.0})
    assert "inf" not in page(made).partition("<main")[2].partition("<noscript")[0].split()
    assert "nan" not in sheet(made)
    assert "-1" not in sheet(made).replace("2026-01-01", "")


@pytest.mark.parametrize("suffix", ["md", "csv"])
def test_what_shows_no_pictures_draws_none(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_runs(tmp_path / "runs")
    monkeypatch.setattr("loadstone.report.charts.theme.figure", None)
    for module in ("bands", "bars", "inside", "lines"):
        monkeypatch.setattr(f"loadstone.report.charts.{module}.figure", None)
    files, made = report([tmp_path / "runs"], tmp_path / f"r.{suffix}")
    assert files[0].stat().st_size > 100
    assert made.figures == []


def test_records_with_times_that_no_run_has_are_said_to_be_so(tmp_path: Path) -> None:
    run(
        tmp_path,
        "a",
        [cell(1)],
        records=[record(n, 1e300 * n, [1e300 * n + 1.0]) for n in range(3)],
    )
    runs, _ = read_runs([tmp_path])
    assert "cannot be read: they have times that no run has" in page(build(runs))


@pytest.mark.process
@needs_chromium
def test_a_reader_sorts_filters_follows_and_switches(tmp_path: Path) -> None:
    two_runs(tmp_path / "runs")
    with opened(tmp_path, (1440, 24000), "#tables") as browser:
        browser.until("document.querySelector('#tables').getClientRects().length")
        rows = "[...document.querySelectorAll('.sortable tbody tr')].filter((row) => !row.hidden)"
        head = "[...document.querySelectorAll('.sortable th')].find((each) => each.textContent.startsWith('load'))"
        for order in (1, -1):
            browser.run(f"{head}.click()")
            loads = f"{rows}.map((row) => Number(row.textContent.match(/concurrency (\\d+)/)[1]))"
            seen = browser.run(loads)
            assert seen == sorted(seen, reverse=order < 0)
        every = len(seen)
        browser.run("document.querySelector('input[type=search]').value = 'sglang'")
        browser.run(
            "document.querySelector('input[type=search]').dispatchEvent(new Event('input'))"
        )
        assert 0 < browser.run(f"{rows}.length") < every
        browser.run(OPEN)
        browser.until(f"{DRAWN} > 4")
        axes = "[...document.querySelectorAll('.chart svg text')].map((each) => each.textContent).join(' ')"
        assert "TTFT, median" in browser.run(axes)
        browser.run("document.querySelector('#quantile').value = 'p99'")
        browser.run("document.querySelector('#quantile').dispatchEvent(new Event('change'))")
        browser.until(f"{axes}.includes('TTFT, p99')")
        mark = "document.querySelector('.first .chart .mark-symbol path')"
        spot = browser.run(
            f"(({{x, y, width, height}}) => [x + width / 2, y + height / 2])({mark}.getBoundingClientRect())"
        )
        for kind in ("mousePressed", "mouseReleased"):
            browser.mouse(kind, *spot)
        browser.until("document.querySelector('#picked').textContent.startsWith('Followed: ')")
        pale = "[...document.querySelectorAll('.chart path')].some((each) => each.getAttribute('opacity') === '0.12')"
        browser.until(pale)
        assert browser.complaints == []


# --- the first screen -----------------------------------------------------------------------------


def bounded(metric: str, limit_s: float, met: bool, **more: Any) -> Json:
    return {
        "bound": metric,
        "metric": metric,
        "limit_s": limit_s,
        "measured_s": 0.02,
        "met": met,
    } | more


def tiles(folder: Path) -> dict[str, tuple[str, str]]:
    first = built(folder).first
    assert first is not None
    return {tile.name: (tile.value, tile.tone) for tile in first.tiles}


def test_one_load_has_its_numbers_on_the_first_screen(tmp_path: Path) -> None:
    slo = [bounded("ttft_p99", 0.5, met=True), bounded("tpot_p99", 0.01, met=False)]
    one = cell(8, slo=slo)
    one["metrics"] |= {"attainment": 0.4, "goodput_per_s": 4.0}
    run(tmp_path, "a", [one], slo={"ttft_p99": 0.5, "tpot_p99": 0.01})
    assert tiles(tmp_path) == {
        "Output tok/s": ("1,000", ""),
        "TTFT p50 / p99": ("100 ms / 130 ms", "good"),
        "TPOT p50 / p99": ("20.0 ms / 26.0 ms", "bad"),
        "E2E p50 / p99": ("2.00 s / 2.60 s", ""),
        "Goodput req/s": ("4.00", "bad"),
    }
    report = built(tmp_path)
    assert [row[0] for row in report.results.rows] == ["concurrency 8"]
    assert report.answer is not None
    assert "SLO: MISSED" in report.answer.sentences[0]
    assert 'class="answer"' in page(report)


def test_the_tiles_are_of_the_most_throughput_that_holds_the_slo(tmp_path: Path) -> None:
    """A bound that is met by its number alone, but less likely than not, does not hold."""
    chances = {1: 0.99, 4: 0.97, 16: 0.45}
    cells = [
        cell(load, output=100.0 * load, slo=[bounded("ttft_p99", 0.5, met=True, p_met=p_met)])
        for load, p_met in chances.items()
    ]
    run(tmp_path, "a", cells, slo={"ttft_p99": 0.5})
    assert tiles(tmp_path)["Output tok/s"][0] == "400.0"
    report = built(tmp_path)
    assert report.answer is not None
    assert "up to concurrency 4, unsure at 16 (45%)" in report.answer.sentences[0]
    at = report.results.heads.index("SLO")
    assert [row[at] for row in report.results.rows] == ["met (99%)", "met (97%)", "unsure (45%)"]
    facts = dict(report.first.facts if report.first else ())
    assert facts["What next?"].startswith("Measure loads between 4 and 16")


def test_the_workload_of_the_most_trusted_requests_leads_and_no_toy(tmp_path: Path) -> None:
    many = {
        "requests": {"sent": 900, "ok": 900, "error": 0, "timeout": 0, "cancelled": 0, "short": 0}
    }
    run(
        tmp_path,
        "toy",
        [cell(1, **many), cell(2, **many)],
        workload={"input": length(8), "output": length(4)},
    )
    run(tmp_path, "few", [cell(1), cell(4)])
    run(tmp_path, "most", [cell(1), cell(4), cell(16)], workload={"input": length(512)})
    report = build(read_runs([tmp_path])[0])
    assert report.answer is not None
    assert (report.answer.context, report.answer.rest) == ("Model-7B, 512 tokens in, 128 out", 2)
    assert [name for name, _ in report.pictures.tabs] == [
        "Model-7B, 512 tokens in, 128 out, by concurrency",
        "Model-7B, 8 tokens in, 4 out, by concurrency",
        "Model-7B, 1,024 tokens in, 128 out, by concurrency",
    ]
    keys = [figure.key for _, figures in report.pictures.tabs for figure in figures]
    assert keys[1::2] == ["latencies-1", "latencies-2", "latencies-3"]


def test_a_prediction_stands_beside_what_was_measured(tmp_path: Path) -> None:
    run(tmp_path, "s", [cell(1, tpot=0.03), cell(4, tpot=0.02)], source="simulated")
    run(tmp_path, "m", [cell(1, tpot=0.025), cell(8)])
    table = built(tmp_path).predictions
    (row,) = table.rows
    place = table.heads.index("TPOT")
    assert row[place : place + 3] == ["25.0 ms", "30.0 ms", "+20.0%"]
    assert "<h2>Measured and predicted, by load</h2>" in made(tmp_path)


def test_brackets_are_explained_where_there_are_any(tmp_path: Path) -> None:
    run(tmp_path, "a", [cell(1), cell(4, output=1500.0)])
    assert not any("brackets" in remark for remark in built(tmp_path).remarks)


@pytest.mark.process
@needs_chromium
def test_eight_columns_are_shown_and_a_tab_for_each_workload(tmp_path: Path) -> None:
    for name, tokens in (("a", 1024), ("b", 2048)):
        run(tmp_path / "runs", name, [cell(1), cell(4)], workload={"input": length(tokens)})
    with opened(tmp_path, (1280, 800)) as browser:
        shown = "[...document.querySelectorAll('#tables th')].filter((head) => !head.hidden).length"
        browser.until(f"{shown} === 8")
        browser.run("document.querySelector('#tables .tools button').click()")
        assert browser.run(shown) > 8
        tabs = "[...document.querySelectorAll('.tab')].map((each) => each.hidden)"
        assert browser.run(tabs) == [False, True]
        browser.run("document.querySelectorAll('[role=tab]')[1].click()")
        assert browser.run(tabs) == [True, False]
        browser.until("document.querySelectorAll('#tab-2 .chart.drawn').length === 2")
        assert browser.complaints == []


def test_a_study_begins_with_its_settings_against_the_first(tmp_path: Path) -> None:
    outputs = {"vLLM": 1000.0, "SGLang": 2500.0, "MAX": 1010.0}
    cells = []
    for name, output in outputs.items():
        for load in (1, 4):
            held = load == 1 or name == "SGLang"
            one = cell(load, output=output, tpot=0.02, slo=[bounded("ttft_p99", 0.5, met=held)])
            one["metrics"]["steady"] = {
                "output_tokens_per_s": output,
                "ci95": {"output_tokens_per_s": [0.99 * output, 1.01 * output]},
            }
            folder = run(tmp_path, f"{name}-{load}", [one], engine=name, slo={"ttft_p99": 0.5})
            cells.append(
                StudyCell(
                    name=name, workload="chat", load=f"concurrency {load}", planned=1, runs=[folder]
                )
            )
    part = StudyPart(
        name="s", missing=[], differences=[], cells=cells, file="", shared=[], apart=[]
    )
    report = built(tmp_path, study=part)
    assert part.against is not None
    rows = {row[0]: row[2:] for row in part.against.rows}
    assert rows["SGLang"][0] == "2.5× better"
    assert rows["SGLang"][3] == "up to 4, the baseline up to 1: better"
    assert rows["MAX"] == [
        "+1.0% (not proven)",
        *["+0.0% (not proven)"] * 2,
        "up to 1, as the baseline",
    ]
    assert part.conclusion.startswith(
        "Against vLLM, the baseline, SGLang: 2.5× better in throughput"
    )
    assert "of no other is a difference proven" in part.conclusion
    source = page(report)
    assert (
        source.index("2.5× better</td>")
        < source.index(part.conclusion)
        < source.index("<h2>Loads of all")
    )
    assert 'class="r good">2.5× better' in source
