"""The page's answers, without a socket and without a browser."""

import asyncio
import json
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Never
from urllib.parse import quote

import httpx
import msgspec
import pytest
import uvicorn

from loadstone.core import run_folder
from loadstone.core.errors import InputError
from loadstone.core.plan import Load
from loadstone.core.record import Target
from loadstone.core.settings import FoundMax
from loadstone.report.view import connection
from loadstone.report.view.app import ViewApp, report_page
from loadstone.report.view.guard import Guard
from loadstone.report.view.pages import Filter, rows_part
from loadstone.report.view.run_list import RunList, RunRow
from loadstone.report.view.serve import listen, url_of
from summary_documents import summarise
from test_view_curves import batch, part
from test_view_run_list import finished, papers

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'\x1b[31m"
TOKEN = "right-token"  # noqa: S105


def get(
    app: Any, path: str, headers: dict[str, str] | None = None, method: str = "GET"
) -> httpx.Response:
    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://localhost"
        ) as client:
            return await client.request(method, path, headers=headers)

    return asyncio.run(ask())


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Path]:
    """Two runs that went well, one that goes on, one that is broken."""
    root = tmp_path / "runs"
    root.mkdir()
    target = Target(url="http://x", endpoint="chat", model="m", prompt_kind="text", engine="vllm")
    finished(root / "one", [Load("concurrency", 1), Load("concurrency", 2)], target=target)
    finished(root / "two", [Load("concurrency", 1), Load("concurrency", 2)], source="simulated")
    going = papers(root / "going")
    writer = run_folder.JournalWriter(going, 0)
    writer.write(batch(part("0-0", [1.5, 2.0], "ok", end_s=2.0, output_tokens=2)))
    (root / "broken").mkdir()
    (root / "broken" / "run.json").write_text("{")
    yield root
    writer.close()


def open_page(root: Path, make_page: Callable[[Any], str] = report_page, **door: Any) -> Guard:
    return Guard(ViewApp(RunList([root]), make_page).app(), **door)


def listed(answer: httpx.Response) -> set[str]:
    return set(re.findall(r'class="name why">(?:<a [^>]*>)?([^<]+)<', answer.text))


# --- the list -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("", {"one", "two", "going", "broken"}),
        ("?q=VLLM", {"one"}),
        ("?q=concurrency+simulated", {"two"}),
        ("?engine=vLLM", {"one"}),
        ("?source=simulated", {"two"}),
        ("?trusted=yes", {"two"}),
        ("?slo=none&source=simulated", {"two"}),
        ("?slo=met", set()),
        ("?trusted=no&source=measured&q=vllm", {"one"}),
        ("?q=nothing+like+it", set()),
        ("?start=2", {"one", "two", "going", "broken"}),
        ("?start=-1&source=%00", set()),
    ],
)
def test_the_list_is_narrowed(runs: Path, query: str, names: set[str]) -> None:
    answer = get(open_page(runs), f"/{query}")
    assert answer.status_code == 200
    if "start=2" in query:
        assert len(listed(answer)) == 2
        assert "Newer runs" in answer.text
    else:
        assert listed(answer) == names


@pytest.mark.process
def test_a_study_is_one_row_and_a_search_is_that_of_its_answer(runs: Path) -> None:
    for cell in ("aa", "bb"):  # runs of a study are named by the second: two may be named alike
        shutil.copytree(runs / "two", runs / "mine" / "cells" / cell / "same")
    shutil.copytree(runs / "two", runs / "probe")
    info = run_folder.read_info(runs / "two")
    info.settings.find_max = FoundMax(load=None, fails_at=None, text="holds", runs=["two", "probe"])
    run_folder.write_info(runs / "two", info)
    (runs / "away" / "cells").mkdir(parents=True)
    (runs / "away" / "cells" / "cc").symlink_to(runs.parent)
    app = open_page(runs)
    answer = get(app, "/")
    assert listed(answer) == {"one", "two", "going", "broken", "same"}
    assert '<a href="/?group=study+mine">study mine</a>: 2 runs' in answer.text
    assert '<a href="/groups/study%20mine">report</a>' in answer.text
    report = get(app, "/groups/study%20mine")
    assert report.status_code == 200
    assert "Run 2:" in report.text
    assert get(app, "/groups/nope").status_code == 404
    assert '<a href="/?group=search+two">search: 2 probes</a>' in answer.text
    assert "7 of 7 runs" in answer.text
    opened = get(app, "/?group=study+mine&part=rows")
    keys = re.findall(r'name="run" value="([^"]+)"', opened.text)
    assert len(set(keys)) == 2
    assert all(get(app, f"/runs/{key}").status_code == 200 for key in keys)
    assert listed(get(app, "/?group=search+two")) == {"two", "probe"}


def test_the_list_is_ordered_by_a_number_the_best_first() -> None:
    def row(name: str, **fields: Any) -> RunRow:
        return RunRow(key=name, folder=Path(name), name=name, state="done", **fields)

    rows = [
        row("a", ttft_p99_s=0.4, tpot_p99_s=0.02, output_tokens_per_s=90.0, slo=(1, 2)),
        row("b", ttft_p99_s=0.3, tpot_p99_s=0.03, output_tokens_per_s=80.0, slo=(0, 2)),
        row("c"),
    ]
    for order, names in (
        ("TTFT p99", "bac"),
        ("TPOT p99", "abc"),
        ("output tok/s", "abc"),
        ("", "abc"),
        ("nonsense", "abc"),
    ):
        text = rows_part(rows, Filter(sort=order))
        assert "".join(re.findall(r'class="name why">(?:<a [^>]*>)?([^<]+)<', text)) == names
    for said in (">400 ms<", ">20.0 ms<", ">met at 1 of 2<", ">missed<"):
        assert said in text
    assert [Filter(slo=slo).takes(rows[0]) for slo in ("met", "missed", "none")] == [
        True,
        False,
        False,
    ]
    assert [Filter(slo=slo).takes(rows[1]) for slo in ("met", "missed", "none")] == [
        False,
        True,
        False,
    ]


def test_the_deployment_stands_before_the_time_stamp(runs: Path) -> None:
    heads = re.findall(r"columnheader[^>]*>([A-Z][^<]*)<", get(open_page(runs), "/").text)
    assert heads.index("Deployment") < heads.index("Started")


def test_a_part_of_the_page_is_the_table_alone_and_comes_once(runs: Path) -> None:
    app = open_page(runs)
    answer = get(app, "/?part=rows")
    assert answer.text.startswith("<table")
    again = get(app, "/?part=rows", {"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.text) == (304, "")


def test_every_state_is_said_and_only_results_can_be_ticked(runs: Path) -> None:
    text = get(open_page(runs), "/").text
    ticks = set(re.findall(r'name="run" value="([^"]+)"', text))
    assert ticks == {"one", "two"}
    for state in ("done", "running", "unreadable"):
        assert f">{state}" in text


def test_an_empty_folder_has_a_list_too(tmp_path: Path) -> None:
    assert "No runs here yet" in get(open_page(tmp_path), "/").text


# --- runs -----------------------------------------------------------------------------------------


def test_a_run_has_its_report_which_is_made_once(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from loadstone.report.pages import document

    app = open_page(runs)
    first = get(app, "/runs/one")
    assert first.status_code == 200
    assert 'id="verdicts"' in first.text
    monkeypatch.setattr(document, "build", None)
    assert get(app, "/runs/one").text == first.text
    monkeypatch.undo()
    summary = runs / "one" / "summary.json"
    known = msgspec.json.decode(summary.read_bytes())
    known["cells"] = known["cells"][:1]
    summary.write_bytes(msgspec.json.encode(known))
    run_folder.seal(runs / "one", run_folder.read_info(runs / "one"))
    assert get(app, "/runs/one").text != first.text


def test_a_run_that_goes_on_has_a_live_page(runs: Path) -> None:
    app = open_page(runs)
    assert 'data-url="/runs/going/live.json"' in get(app, "/runs/going").text
    told = get(app, "/runs/going/live.json").json()
    assert (told["state"], told["cells"][0]["ok"]) == ("running", 1)
    assert get(app, "/runs/one/live.json").json() == {"schema": 1, "state": "done"}


@pytest.mark.parametrize("name", ["broken", "empty", "lost", "torn"])
def test_a_broken_run_has_a_page_that_says_so(runs: Path, name: str) -> None:
    if name == "empty":  # papers and nothing else
        papers(runs / name, status="failed", error="the server is gone")
    elif name == "lost":
        shutil.copytree(runs / "one", runs / name)
        for file in ("records.parquet", "summary.json"):
            (runs / name / file).unlink()
    elif name == "torn":
        shutil.copytree(runs / "one", runs / name)
        (runs / name / "records.parquet").write_bytes(b"PAR1 no more")
        (runs / name / "plan.parquet").write_bytes(b"")
    app = open_page(runs)
    assert name in listed(get(app, "/"))
    answer = get(app, f"/runs/{name}")
    assert answer.status_code == 200
    assert "Traceback" not in answer.text
    assert ("cannot be read" in answer.text) or ("no report" in answer.text.lower())


def test_what_breaks_the_report_is_told_in_its_place(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = open_page(runs)
    (runs / "two" / "summary.json").write_text(
        '{"cells": [{"verdict": {"findings": [3]}, "load": {}}]}'
    )
    assert "There is no report of this yet" in get(page, "/runs/two").text

    def broken(_: object) -> Never:
        raise ValueError("nobody thought of this")

    answer = get(open_page(runs, broken), "/runs/two")
    assert answer.status_code == 200
    assert "No report can be made of these files" in answer.text
    assert "loadstone view: two:" in capsys.readouterr().err


@pytest.mark.parametrize(
    "path",
    ["/runs/nope", "/runs/..", "/runs/%2e%2e%2fone", "/runs/..%2f..%2fetc%2fpasswd", "/runs/one%00",
     "/runs/one/../..", "/runs/one/run.json", "/run.json", "/assets/..%2fapp.py", "/assets/%2e%2e%2fguard.py",
     "/assets/view.css%00"],
)  # fmt: skip
def test_nothing_else_can_be_reached(runs: Path, path: str) -> None:
    answer = get(open_page(runs), path)
    assert answer.status_code in (200, 404)
    if answer.status_code == 200:  # a client takes `..` out of a path itself
        assert "<h1>Runs</h1>" in answer.text


# --- comparing ------------------------------------------------------------------------------------


def test_two_runs_are_compared(runs: Path) -> None:
    text = get(open_page(runs), "/compare?run=one&run=two").text
    assert "B against A" in text
    assert 'class="chart"' in text.partition("Swap them")[2].partition("What differs")[0]
    assert "What differs in the setup" in text
    assert "<td>source</td>" in text
    assert "TTFT p50" in text
    assert "Run 2:" in text


def test_the_older_run_is_the_baseline_and_the_two_can_be_swapped(runs: Path) -> None:
    for name, created in (
        ("two", "2020-01-01T00:00:00+00:00"),
        ("one", "2021-01-01T00:00:00+00:00"),
    ):
        path = runs / name / "run.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"created": created}))
    page = open_page(runs)
    for query in ("run=one&run=two", "run=two&run=one"):
        text = get(page, f"/compare?{query}").text
        assert "A, the baseline, is two; B, the change, is one." in text
    swapped = get(page, "/compare?run=one&run=two&as=given").text
    assert "A, the baseline, is one; B, the change, is two." in swapped


@pytest.mark.parametrize(
    ("query", "status"),
    [("", 400), ("?run=one", 400), ("?run=one&run=one", 400), ("?run=one&run=nope", 404), ("?run=one&run=going", 409),
     ("?run=one&run=broken", 409), ("?" + "&".join(f"run={n}" for n in range(50)), 400)],
)  # fmt: skip
def test_what_cannot_be_compared_is_said(runs: Path, query: str, status: int) -> None:
    assert get(open_page(runs), f"/compare{query}").status_code == status


def test_runs_that_share_no_load_are_reported_and_the_comparison_says_why(runs: Path) -> None:
    finished(runs / "other", [Load("concurrency", 9)])
    finished(runs / "one-9", [Load("concurrency", 9)])
    page = open_page(runs)
    assert "No comparison: A and B:" in get(page, "/compare?run=one&run=one-9").text
    text = get(page, "/compare?run=one&run=other").text
    assert "No comparison:" in text
    assert 'id="verdicts"' in text


# --- what others wrote ----------------------------------------------------------------------------


def test_hostile_text_is_shown_and_never_run(tmp_path: Path) -> None:
    target = Target(
        url=HOSTILE,
        endpoint=HOSTILE,
        model=HOSTILE,
        prompt_kind="text",
        engine=HOSTILE,
        engine_version=HOSTILE,
    )
    for name in ("a", "b"):
        folder = finished(
            tmp_path / name,
            [Load("concurrency", 1)],
            target=target,
            created=HOSTILE,
            command=[HOSTILE],
        )
        document = summarise(folder)
        document["cells"][0]["verdict"]["findings"] = [
            {"kind": HOSTILE, "severity": "warning", "evidence": HOSTILE, "remedy": HOSTILE}
        ]
        run_folder.write_json(folder / "summary.json", document)
    (tmp_path / "<img src=x onerror=alert(3)>").mkdir()
    papers(tmp_path / "<b>").rename(tmp_path / "<i>x")
    (tmp_path / "<img src=x onerror=alert(3)>" / "run.json").write_text("<script>")
    app = open_page(tmp_path)
    paths = ["/", "/?q=" + quote(HOSTILE), "/runs/a", "/compare?run=a&run=b", "/?part=rows"]
    paths += re.findall(r'href="(/runs/run-[^"]+)"', get(app, "/").text)
    assert len(paths) == 6
    for path in paths:
        text = get(app, path).text
        assert "<script>" not in text
        assert "<img" not in text
        assert "\x1b" not in text
        assert re.findall(r"<script[^>]*src=\"(?!/assets/)", text) == []


# --- the door -------------------------------------------------------------------------------------


def test_every_answer_has_the_headers(runs: Path) -> None:
    app = open_page(runs)
    for path in (
        "/",
        "/runs/one",
        "/runs/nope",
        "/assets/vega.js",
        "/runs/going/live.json",
        "/compare",
    ):
        headers = get(app, path).headers
        policy = headers["content-security-policy"]
        assert "unsafe" not in policy
        assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
    assert get(app, "/").headers["cache-control"] == "private, no-cache"
    assert get(app, "/runs/one").headers["cache-control"] == "no-store"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_the_page_only_reads(runs: Path, method: str) -> None:
    assert get(open_page(runs), "/", method=method).status_code == 405


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost", 200), ("LOCALHOST.:9000", 200), ("127.0.0.1:8717", 200), ("[::1]:8717", 200), ("10.1.2.3", 200),
     ("lab.example", 200), ("evil.example", 421), ("localhost.evil.example", 421), ("", 421),
     ("localhost:8717@evil.example", 421), ("127.0.0.1.evil.example", 421), ("localhost/..", 421), ("[::1", 421)],
)  # fmt: skip
def test_only_hosts_of_this_page_are_answered(runs: Path, host: str, status: int) -> None:
    app = open_page(runs, names=["Lab.example"])
    assert get(app, "/", {"host": host}).status_code == status


def test_what_nobody_thought_of_is_a_line_and_no_traceback(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert get(open_page(runs, token=TOKEN), "/?" + "a=1&" * 200).status_code == 400
    assert get(open_page(runs, token=TOKEN), f"/?token={TOKEN}&" + "a=1&" * 200).status_code == 400
    page = ViewApp(RunList([runs]))
    monkeypatch.setattr(page, "listing", lambda request: 1 / 0)
    answer = get(Guard(page.app()), "/?q=%1b[31m")
    assert answer.status_code == 500
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert capsys.readouterr().err == "loadstone view: /: ZeroDivisionError: division by zero\n"


def test_the_list_is_there_while_many_wait_for_reports(runs: Path) -> None:
    making, most, done = [0], [0], threading.Event()

    def slow(rows: object) -> str:
        making[0] += 1
        most[0] = max(most[0], making[0])
        done.wait(20)
        making[0] -= 1
        raise InputError("not today")

    app = open_page(runs, slow)

    async def visit() -> int:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://localhost"
        ) as client:
            waiting = [asyncio.create_task(client.get("/runs/one")) for _ in range(60)]
            await asyncio.sleep(0.1)
            answer = await asyncio.wait_for(client.get("/"), 10)
            done.set()
            await asyncio.gather(*waiting)
            return answer.status_code

    assert asyncio.run(visit()) == 200
    assert most == [1]


def test_a_connection_on_which_nothing_is_asked_for_is_closed(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "IDLE_S", 0.2)
    app = open_page(runs)
    server = uvicorn.Server(
        uvicorn.Config(app, http=connection.BrowserConnection, log_level="critical", lifespan="off")
    )

    async def wait() -> tuple[bytes, bytes]:
        with listen("127.0.0.1", 0) as listener:
            serving = asyncio.create_task(server.serve([listener]))
            port = listener.getsockname()[1]
            while not server.started:
                await asyncio.sleep(0.01)
            silent, nothing = await asyncio.open_connection("127.0.0.1", port)
            slow, head = await asyncio.open_connection("127.0.0.1", port)
            head.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
            heard = await asyncio.wait_for(asyncio.gather(silent.read(), slow.read()), 10)
            for writer in (nothing, head):
                writer.close()
                await writer.wait_closed()
            server.should_exit = True
            await serving
            return heard[0], heard[1]

    assert asyncio.run(wait()) == (b"", b"")


def test_other_sites_may_link_here_and_nothing_more(runs: Path) -> None:
    app = open_page(runs)
    for site in ("cross-site", "same-site"):
        assert (
            get(app, "/", {"sec-fetch-site": site, "sec-fetch-mode": "no-cors"}).status_code == 403
        )
        assert (
            get(app, "/", {"sec-fetch-site": site, "sec-fetch-mode": "navigate"}).status_code == 200
        )
    assert (
        get(app, "/", {"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}).status_code
        == 200
    )


def test_a_token_opens_once_and_leaves_a_cookie(runs: Path) -> None:
    app = open_page(runs, token=TOKEN, cookie="loadstone-1")
    for path in ("/", "/runs/one", "/assets/view.css", "/runs/going/live.json", "/nowhere"):
        assert get(app, path).status_code == 401
    for wrong in ("", "wrong", TOKEN[:-1], TOKEN + "x", "\u00e9"):
        assert get(app, f"/?token={wrong}").status_code == 401
        assert get(app, "/", {"cookie": f"loadstone-1={wrong.encode().hex()}"}).status_code == 401
    opened = get(app, f"/runs/one?token={TOKEN}&q=a%26b")
    assert opened.status_code == 200
    assert TOKEN not in opened.text
    assert 'href="/runs/one?q=a%26b"' in opened.text
    cookie = opened.headers["set-cookie"]
    assert re.fullmatch(f"loadstone-1={TOKEN}; HttpOnly; Path=/; SameSite=strict", cookie)
    assert get(app, "/", {"cookie": f"other=1; loadstone-1={TOKEN}"}).status_code == 200
    assert get(app, "/", {"cookie": f"loadstone-2={TOKEN}"}).status_code == 401


def test_the_way_on_from_a_token_leads_nowhere_else(runs: Path) -> None:
    app = open_page(runs, token=TOKEN, cookie="c")
    for path in (
        f"//evil.example/?token={TOKEN}",
        f"/%5Cevil.example/?token={TOKEN}",
        f'/"><b>?token={TOKEN}',
    ):
        text = get(app, path).text
        assert re.findall(r'(?:url=|href=")(//|/\\|http)', text) == []
        assert "<b>" not in text


def test_where_it_listens(tmp_path: Path) -> None:
    with listen("127.0.0.1", 0) as taken, pytest.raises(InputError, match="--port 0 takes any"):
        listen("127.0.0.1", taken.getsockname()[1])
    for host in ("no.such.host.invalid", "999.1.1.1"):
        with pytest.raises(InputError, match="cannot listen there"):
            listen(host, 0)
    assert url_of("127.0.0.1", "127.0.0.1", 1, None) == "http://127.0.0.1:1/"
    assert url_of("::1", "::1", 1, "t") == "http://[::1]:1/?token=t"
