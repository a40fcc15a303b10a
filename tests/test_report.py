"""The report: one page that needs no network and believes nobody; Markdown, CSV and pictures beside it."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from browser import Browser, needs_chromium
from conftest import Loadstone
from loadstone.errors import InputError
from loadstone.importers import import_files
from loadstone.report.document import build
from loadstone.report.html import page, script, vega
from loadstone.report.markdown import markdown, text
from loadstone.report.runs import read_runs
from loadstone.report.sheet import sheet
from loadstone.report.writing import report
from loadstone.wire.text import no_formula
from report_folders import cell, length, record, run
from test_import import VLLM

HOSTILE = (
    '</script><script>document.title="owned"</script><img src=x onerror="document.title=1">\x1b]0;owned\x07=cmd()|`x`'
)


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


def two_runs(folder: Path) -> None:
    records = [record(n, float(n), [n + 0.1 + 0.01 * k for k in range(11)]) for n in range(20)]
    run(folder, "a", [cell(1), cell(4, ttft=0.2), cell(16, ttft=0.9)], records=records)
    run(folder, "b", [cell(1), cell(4, ttft=0.1), cell(16, ttft=0.4)], engine="SGLang", source="simulated")


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
        f"'sha256-{base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()}'" for code in run_by_browser
    }
    assert hashes == set(allowed[1].split())
    assert run_by_browser == [vega(), script()]


def test_a_page_has_all_that_a_report_must(tmp_path: Path) -> None:
    two_runs(tmp_path)
    spoilt = cell(64)
    finding = {"kind": "short_answers", "severity": "warning", "evidence": "half of them", "remedy": "Ask for less."}
    spoilt["verdict"] = {"trusted": False, "findings": [finding]}
    run(tmp_path, "c", [spoilt], engine="llama.cpp")
    source = made(tmp_path)
    words = Page(source).words
    assert "1 of 7 cells carries a warning" in words
    assert "short answers" in words
    assert "run 3, concurrency 64: half of them" in words
    assert words.index("Verdicts") < words.index("Findings") < words.index("Tables") < words.index("Environment")
    assert "loadstone bench http://localhost:8000" in words
    assert "95 %" in words
    assert source.count('class="chart"') == source.count('<script type="application/json">') > 12
    for _, code in Page(source).scripts[:-2]:
        assert json.loads(code)["$schema"].startswith("https://vega.github.io/schema/vega-lite/")


def test_what_engines_say_is_text(tmp_path: Path) -> None:
    bad = cell(1)
    bad["verdict"] = {
        "trusted": False,
        "findings": [dict.fromkeys(("kind", "evidence", "remedy"), HOSTILE) | {"severity": "error"}],
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
    assert text("a|b_c*d<e>[f](g)`h`") == r"a\|b\_c\*d\<e\>\[f\](g)\`h\`"
    assert text("1.5-2 (x)") == "1.5-2 (x)"


def test_formulas_are_no_formulas_in_csv(tmp_path: Path) -> None:
    run(tmp_path, "a", [cell(1)], engine="=1+1", model="@x")
    runs, _ = read_runs([tmp_path])
    rows = list(csv.DictReader(io.StringIO(sheet(build(runs, inside=False)))))
    assert (rows[0]["engine"], rows[0]["model"]) == ("'=1+1", "'@x")
    assert float(rows[0]["ttft_value_s"]) == 0.1
    assert [no_formula(value) for value in ("+1", "-x", "\tx", "x=1", -1.5, None)] == [
        "'+1",
        "'-x",
        "'\tx",
        "x=1",
        -1.5,
        "",
    ]


def test_a_measured_run_is_reported_in_every_format(loadstone: Loadstone, tmp_path: Path) -> None:
    folder = loadstone(
        "bench",
        "--sim",
        "ttft=5ms,itl=1ms",
        "--concurrency",
        "1,2",
        "--requests",
        6,
        "--input",
        8,
        "--output",
        4,
        "--json",
    ).folder
    assert folder
    for name, first in (("r.html", "<!doctype html>"), ("r.md", "# timing server"), ("r.csv", "run,cell,source")):
        done = loadstone("report", folder, "-o", tmp_path / name, "--json")
        assert (done.code, done.document) == (0, {"schema": 1, "files": [str(tmp_path / name)]})
        assert (tmp_path / name).read_text().startswith(first)
    done = loadstone("report", folder.parent, "--format", "svg", "-o", tmp_path / "pictures")
    assert done.code == 0
    pictures = [Path(line) for line in done.out.split()]
    assert {path.suffix for path in pictures} == {".svg"}
    names = " ".join(path.stem for path in pictures)
    assert all(
        word in names for word in ("ttft-by-load", "throughput-e2e", "run-1-timeline", "run-1-gaps", "run-1-cdf-ttft")
    )


def test_result_files_are_reported_in_one_command(loadstone: Loadstone, tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text(
        "engine,concurrency,output_tok_s,ttft_ms_median\nvllm,1,100,20\nvllm,4,300,30\nsglang,1,90,20\nsglang,4,200,60\n"
    )
    done = loadstone("report", path, "--set", "model=m", "-o", tmp_path / "r.md")
    assert done.code == 0, done.err
    assert "vLLM has the highest output throughput" in (tmp_path / "r.md").read_text()


def test_what_cannot_be_reported_is_said_in_one_line(loadstone: Loadstone, tmp_path: Path) -> None:
    folder = run(tmp_path / "runs", "a", [cell(1)])
    assert "neither a run folder nor a folder of them" in loadstone("report", tmp_path / "nowhere").line()
    assert "cannot be written" in loadstone("report", folder, "-o", "/proc/nowhere/r.html").line()
    assert "no picture" in loadstone("report", folder, "--format", "png", "-o", tmp_path / "p").line()
    assert "--set: only of result files" in loadstone("report", folder, "--set", "model=m").line()
    (folder / "summary.json").write_text("[]")
    assert "no summary" in loadstone("report", folder).line()
    (folder / "summary.json").write_text("{")
    assert "no summary" in loadstone("report", folder).line()


def test_a_broken_run_among_others_is_passed_over(tmp_path: Path) -> None:
    two_runs(tmp_path)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{}")
    words = Page(made(tmp_path)).words
    assert "Passed over" in words
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
    assert "its records cannot be read" in words
    assert "no cells" in words


def test_few_findings_stand_together_and_many_with_their_charts(tmp_path: Path) -> None:
    def findings(page: str) -> str:
        return page.partition('id="findings"')[2].partition('id="tables"')[0]

    cells = [cell(4.0**n, output=1000.0 + n) for n in range(1, 4)]
    run(tmp_path / "one", "a", cells)
    assert "output throughput stops growing at concurrency 4" in findings(made(tmp_path / "one"))
    for n, name in enumerate(("vLLM", "SGLang", "llama.cpp", "MAX", "TGI", "LMDeploy", "MLC")):
        outputs = [1000.0 + 100 * n + k for k in range(3)]
        many = [cell(4.0 ** (k + 1), output=output, ttft=0.1 * (n + 1)) for k, output in enumerate(outputs)]
        run(tmp_path / "many", name, many, engine=name)
        run(tmp_path / "many", f"{name}-long", many, engine=name, workload={"output": length(999)})
    words = findings(made(tmp_path / "many"))
    assert "stops growing" not in words
    assert re.search(r'With their charts: <a href="#section-load">Latency and throughput by load</a> \(\d+\)', words)


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
    assert [figure.key for figure in part.figures] == ["run-1-cdf-ttft", "run-1-cdf-tpot", "run-1-cdf-e2e"]
    assert "TTFT from sending (open loop)" in " ".join(part.figures[0].notes)
    assert any("from its own send" in note for note in part.notes)


def test_one_cell_is_not_all_cells(tmp_path: Path) -> None:
    run(tmp_path, "a", [cell(1)])
    assert build(read_runs([tmp_path])[0]).verdict == "Its one cell can be trusted."


def test_one_cell_with_a_warning_is_one(tmp_path: Path) -> None:
    run(tmp_path, "a", [cell(1, verdict={"trusted": False, "findings": []})])
    assert build(read_runs([tmp_path])[0]).verdict == "Its one cell carries a warning."


def test_findings_come_before_the_list_of_folders(tmp_path: Path) -> None:
    two_runs(tmp_path)
    text = markdown(build(read_runs([tmp_path])[0]))
    assert text.index("## Findings") < text.index("### Runs") < text.index("### All cells")
    page = made(tmp_path)
    assert page.index('id="findings"') < page.index("<h3>Runs</h3>") < page.index("<h3>All cells</h3>")


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


def test_rows_that_were_left_out_of_an_import_are_told(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("\n".join(json.dumps(VLLM | {"request_rate": rate}) for rate in (2.0, "inf")))
    (tmp_path / "b.json").write_text(json.dumps({"avg_latency": 1.0, "percentiles": {"50": 1.0}}))
    report([tmp_path / "a.json", tmp_path / "b.json"], tmp_path / "r.md")
    assert "passed over: b.json: does not tell the load; left out" in (tmp_path / "r.md").read_text().replace(
        "\\", ""
    )


def test_silence_about_simulated_runs_is_told(tmp_path: Path) -> None:
    two_runs(tmp_path)
    assert "Of simulated runs nothing is said" in made(tmp_path)


def test_a_report_of_one_run_does_not_repeat_its_name_in_each_row(tmp_path: Path) -> None:
    run(tmp_path, "a", [cell(1), cell(4)])
    (table,) = [each for each in build(read_runs([tmp_path])[0]).tables if each.key == "cells"]
    assert "deployment" not in table.heads
    assert table.rows[0][:1] == ["concurrency 1"]
    run(tmp_path, "b", [cell(1), cell(4)], engine="SGLang")
    (table,) = [each for each in build(read_runs([tmp_path])[0]).tables if each.key == "cells"]
    assert table.heads[:2] == ["run", "deployment"]
    assert table.rows[0][table.heads.index("95 %")] == "98.0–102 ms"


def test_columns_without_a_number_are_left_out(tmp_path: Path) -> None:
    one = cell(4)
    one["metrics"]["ttft_s"]["ci95"] = {}
    run(tmp_path, "a", [one])
    runs, _ = read_runs([tmp_path])
    (table,) = [table for table in build(runs, inside=False).tables if table.key == "cells"]
    assert "E2E" in table.heads
    assert not {"ITL", "of light"} & set(table.heads)
    assert all(len(row) == len(table.heads) == len(table.align) for row in table.rows)


def test_runs_that_differ_by_what_was_asked_are_told_apart_by_their_titles(tmp_path: Path) -> None:
    for name, tokens in (("a", 128), ("b", 512)):
        run(tmp_path, name, [cell(4)], workload={"output": length(tokens)})
    runs, _ = read_runs([tmp_path])
    titles = [part.title.replace("\u202f", " ") for part in build(runs, inside=False).parts]
    assert [title.rpartition(" · ")[2] for title in titles] == ["1 024 in, 128 out", "1 024 in, 512 out"]


def test_markdown_says_what_its_brackets_are(tmp_path: Path) -> None:
    for name, source in (("a", "measured"), ("b", "simulated")):
        run(tmp_path, name, [cell(4), cell(16, output=4000)], source=source)
    run(tmp_path, "c", [cell(4, output=500), cell(16, output=500)], engine="SGLang")
    runs, _ = read_runs([tmp_path])
    said = markdown(build(runs, inside=False))
    assert "In brackets: interval of the effect" in said
    assert "Of simulated runs nothing is said" in said


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
    assert capsys.readouterr().out.startswith("# vLLM")
    with pytest.raises(InputError, match="name a folder"):
        report([tmp_path / "runs"], Path("-"), "png")


def test_a_report_of_nothing_but_an_empty_run(tmp_path: Path) -> None:
    run(tmp_path, "a", [])
    words = Page(made(tmp_path)).words
    assert "Nothing was measured" in words
    assert "Nothing that these runs show beyond doubt" in words


# --- in a browser -------------------------------------------------------------------------------------------------


DRAWN = "document.querySelectorAll('main > .grid .chart.drawn').length"


@needs_chromium
def test_charts_are_drawn_when_they_are_looked_at(tmp_path: Path) -> None:
    two_runs(tmp_path / "runs")
    (tmp_path / "r.html").write_text(made(tmp_path / "runs"))
    with Browser(tmp_path / "profile") as browser:
        browser.size(375, 700)
        browser.open((tmp_path / "r.html").as_uri())
        count = browser.run("document.querySelectorAll('.chart').length")
        assert count > 12
        assert browser.run("document.querySelectorAll('.chart.drawn').length") < count
        for width in (375, 1600):
            browser.size(width, 12000)
            browser.until(f"{DRAWN} === document.querySelectorAll('main > .grid .chart').length")
            browser.until(f"document.documentElement.scrollWidth <= {width}")
            widest = (
                "Math.max(...[...document.querySelectorAll('.chart svg')].map(e => e.getBoundingClientRect().right))"
            )
            browser.until(f"{widest} <= {width}")
        assert browser.complaints == []


@needs_chromium
def test_long_names_of_rows_leave_room_for_the_picture(tmp_path: Path) -> None:
    for gpu in ("h200", "mi300x"):
        for engine in ("vLLM, a build of our own with a long name", "SGLang, a build of our own with a long name"):
            run(tmp_path / "runs", f"{gpu}-{engine[:4]}", [cell(1), cell(4)], engine=engine, deployment={"gpu": gpu})
    (tmp_path / "r.html").write_text(made(tmp_path / "runs"))
    with Browser(tmp_path / "profile") as browser:
        browser.size(375, 12000)
        browser.open((tmp_path / "r.html").as_uri())
        chart = "document.querySelector('figure[id^=gpus] .chart')"
        browser.until(f"{chart}.classList.contains('drawn')")
        plot = browser.run(f"{chart}.querySelector('.background').getBoundingClientRect().toJSON()")
        assert plot["width"] > 100
        assert plot["right"] < 375


@needs_chromium
def test_verdicts_are_read_on_a_phone_without_scrolling_sideways(tmp_path: Path) -> None:
    spoilt = cell(64)
    said = {"kind": "request_errors", "severity": "error", "evidence": "378 of 1000 requests failed " * 3,
            "remedy": "Percentiles leave failed requests out: mend the cause. " * 2}  # fmt: skip
    spoilt["verdict"] = {"trusted": False, "findings": [said]}
    run(tmp_path / "runs", "a", [spoilt])
    (tmp_path / "r.html").write_text(made(tmp_path / "runs"))
    with Browser(tmp_path / "profile") as browser:
        browser.open((tmp_path / "r.html").as_uri())
        for width, heads in ((400, False), (1400, True)):
            browser.size(width)
            table = "document.querySelector('.scroll.words')"
            browser.until(f"{table}.scrollWidth <= {table}.clientWidth && window.innerWidth === {width}")
            cell_of = f"{table}.querySelector('td:nth-child(3)')"
            named = browser.run(f"getComputedStyle({cell_of}, '::before').content")
            assert ("none" in named) == heads, named
            assert browser.run(f"{cell_of}.getBoundingClientRect().right") <= width


def test_a_table_of_cells_says_what_differs_once(tmp_path: Path) -> None:
    """What all runs share stands under the table; what tells them apart, here the precision, in each row."""
    run(tmp_path, "a", [cell(1)], deployment={"weights_dtype": "bf16"})
    run(tmp_path, "b", [cell(1)], deployment={"weights_dtype": "fp8"})
    (table,) = [each for each in build(read_runs([tmp_path])[0]).tables if each.key == "cells"]
    assert [row[1] for row in table.rows] == ["bf16", "fp8"]
    assert table.notes[0] == "All of them: 8×H200 · vLLM · Model-7B."


@needs_chromium
def test_a_run_opens_by_keyboard_and_tells_its_numbers(tmp_path: Path) -> None:
    two_runs(tmp_path / "runs")
    (tmp_path / "r.html").write_text(made(tmp_path / "runs"))
    with Browser(tmp_path / "profile", dark=True) as browser:
        browser.size(900, 900)
        browser.open((tmp_path / "r.html").as_uri())
        browser.press("Tab")
        assert browser.run("document.activeElement.className") == "skip"
        browser.run("document.querySelector('#run-1 summary').focus()")
        browser.press("Enter")
        browser.until("document.querySelector('#run-1').open")
        # Charts above, drawn meanwhile, may have pushed this one out of sight, and charts are drawn when looked at.
        browser.run("document.querySelector('#run-1 .chart').scrollIntoView()")
        browser.until("document.querySelector('#run-1 .chart.drawn') !== null")
        browser.run("document.querySelector('#run-1 figure details').open = true")
        browser.until("document.querySelectorAll('#run-1 figure td').length > 4")
        names = [name for role, name in browser.accessible() if role in ("image", "img")]
        assert any("TTFT, median" in name and "vLLM" in name for name in names)
        ink = browser.run("getComputedStyle(document.querySelector('#run-1 .chart text')).fill")
        assert ink == "rgb(232, 234, 237)"
        assert browser.complaints == []


@needs_chromium
def test_a_browser_runs_nothing_of_what_engines_say(tmp_path: Path) -> None:
    for name in ("a", "b"):
        run(tmp_path / "runs", name, [cell(1), cell(4)], engine=HOSTILE + name, model=HOSTILE)
    (tmp_path / "r.html").write_text(made(tmp_path / "runs"))
    with Browser(tmp_path / "profile") as browser:
        browser.size(1600, 12000)
        browser.open((tmp_path / "r.html").as_uri())
        browser.until(f"{DRAWN} > 4")
        browser.run("document.querySelectorAll('figure details').forEach(each => { each.open = true; })")
        browser.until("document.querySelectorAll('figure td').length > 4")
        assert browser.run("document.title").endswith("Loadstone")
        assert browser.run("document.querySelectorAll('img, iframe, object').length") == 0
        assert browser.complaints == []
