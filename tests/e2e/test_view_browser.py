"""The page in a browser, over real runs: what a reader does, by mouse, by keyboard, with a screen
reader."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from browser import Browser, needs_chromium
from loadstone import bench
from loadstone.core import run_folder
from loadstone.core.record import Target
from loadstone.report.view.run_list import is_written_to
from test_view_pages import HOSTILE
from test_view_run_list import finished

pytestmark = pytest.mark.slow
NARROW, MIDDLE, WIDE = 375, 970, 1600


@contextlib.contextmanager
def viewing(*arguments: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`loadstone view` as a process; its URL."""
    command = [
        sys.executable,
        "-m",
        "loadstone.commands",
        "view",
        *arguments,
        "--port",
        "0",
        "--json",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["url"], process
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(20)
        finally:
            process.kill()
            process.communicate()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two measured runs and a hostile one."""
    root = tmp_path_factory.mktemp("view") / "runs"
    for seed in (0, 1):
        bench(out=root, concurrency=[1, 2], requests=[12], input="16", output="8", seed=seed)
    target = Target(
        url="http://x", endpoint="chat", model=HOSTILE, prompt_kind="text", engine=HOSTILE
    )
    finished(root / "hostile", target=target)
    return root


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as tab:
        yield tab


@pytest.fixture
def url(runs: Path) -> Iterator[str]:
    with viewing(str(runs)) as (found, _):
        yield found


@pytest.fixture(autouse=True)
def no_complaints(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "browser" in request.fixturenames:
        tab: Browser = request.getfixturevalue("browser")
        found, tab.complaints = tab.complaints, []
        assert found == []


def fits(browser: Browser) -> bool:
    return bool(browser.run("document.documentElement.scrollWidth <= window.innerWidth"))


@needs_chromium
@pytest.mark.parametrize("width", [NARROW, MIDDLE, WIDE])
def test_ticking_two_compares_them_and_draws(browser: Browser, url: str, width: int) -> None:
    browser.size(width)
    browser.open(url)
    assert fits(browser)
    assert browser.run("document.querySelector('#compare button').disabled")
    browser.run(
        "[...document.querySelectorAll('input[name=run]')].slice(0, 2).forEach((box) => box.click())"
    )
    assert browser.run("document.getElementById('ticked').textContent").startswith("2 ticked: ")
    browser.run("document.querySelector('#compare button').click()")
    browser.until("location.pathname === '/compare' && document.readyState === 'complete'")
    told = browser.run("document.querySelector('#comparison').textContent")
    assert told == "No difference is shown between A and B."
    browser.run("document.querySelector('figure').scrollIntoView()")
    browser.until("document.querySelector('figure svg') !== null")
    assert fits(browser)


@needs_chromium
def test_no_state_is_broken_in_two(browser: Browser, runs: Path) -> None:
    name = "with a long name, " * 8
    for status in ("interrupted", "failed"):
        target = Target(
            url="http://x", endpoint="chat", model=name, prompt_kind="text", engine="an engine"
        )
        finished(runs.parent / "long" / status, target=target, status=status)
    with viewing(str(runs.parent / "long")) as (url, _):
        browser.size(1280)
        browser.open(url)
        heights = browser.run(
            "[...document.querySelectorAll('.runs .state')].map((each) => each.getClientRects().length)"
        )
    assert heights == [1, 1]


@needs_chromium
def test_the_list_narrows_while_one_types_and_keeps_what_is_ticked(
    browser: Browser, url: str
) -> None:
    browser.size(WIDE)
    browser.open(url)
    browser.run("document.querySelector('input[value=hostile]').click()")
    browser.run(
        "(() => { const q = document.querySelector('[name=q]'); q.value = 'llama'; "
        "q.dispatchEvent(new Event('input', { bubbles: true })); })()"
    )
    browser.until("document.querySelectorAll('.runs tbody tr').length === 2")
    assert browser.run("location.search") == "?q=llama"
    browser.run("document.querySelector('input[name=run]').click()")
    browser.run("document.querySelector('#compare button').click()")
    browser.until("location.pathname === '/compare' && document.readyState === 'complete'")
    assert "run=hostile" in browser.run("location.search")


@needs_chromium
def test_a_run_is_found_and_opened_by_keyboard_alone(browser: Browser, url: str) -> None:
    browser.size(WIDE)
    browser.open(url)
    seen = []
    for _ in range(30):
        browser.press("Tab")
        seen.append(
            browser.run(
                "document.activeElement.tagName + ' ' + (document.activeElement.name || '')"
            )
        )
        if browser.run("document.activeElement.matches('.name a')"):
            break
        if browser.run("document.activeElement.matches('input[name=run]')"):
            outline = browser.run("getComputedStyle(document.activeElement).outlineStyle")
            assert outline != "none", "one sees where one is"
            browser.press(" ")
            assert browser.run("document.activeElement.checked")
    assert [
        name
        for name in ("INPUT q", "SELECT engine", "SELECT source", "SELECT trusted")
        if name not in seen
    ] == []
    browser.press("Enter")
    browser.until(
        "location.pathname.startsWith('/runs/') && document.querySelector('#hero') !== null", 60
    )


@needs_chromium
@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_a_screen_reader_is_told_of_everything(browser: Browser, url: str, width: int) -> None:
    browser.size(width)
    browser.open(url)
    told = browser.accessible()
    roles = [role for role, _ in told]
    assert roles.count("row") == 4
    assert {"navigation", "main", "search", "table", "columnheader", "status"} <= set(roles)
    assert [name for role, name in told if role == "columnheader"][:3] == [
        "Tick",
        "Deployment",
        "Started",
    ]
    named = ("checkbox", "combobox", "searchbox", "link", "button")
    unnamed = [(role, name) for role, name in told if role in named and not name]
    assert unnamed == []


@needs_chromium
def test_a_hostile_run_is_shown_and_runs_nothing(browser: Browser, url: str) -> None:
    browser.open(url)
    assert "alert(1)" in browser.run("document.body.textContent")
    for path in ("", "runs/hostile"):
        browser.open(url + path)
        assert (
            browser.run("document.querySelectorAll('img, script:not([src]):not([type])').length")
            == 0
        )
    browser.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert "alert(1)" in browser.run("document.body.textContent")


@needs_chromium
def test_scripts_in_the_page_and_eval_are_forbidden(browser: Browser, url: str) -> None:
    browser.open(url)
    browser.run(
        "(() => { const s = document.createElement('script'); s.textContent = 'window.ran = 1'; "
        "document.body.append(s); })()"
    )
    assert browser.run("window.ran") is None
    browser.run("setTimeout('window.ran = 2', 0) && 0")
    time.sleep(0.2)
    assert browser.run("window.ran") is None
    blocked, browser.complaints = browser.complaints, []
    assert len(blocked) == 2
    assert all("Content Security Policy" in one for one in blocked)


@needs_chromium
@pytest.mark.parametrize("dark", [False, True])
def test_a_benchmark_is_watched_to_its_report(
    browser: Browser, runs: Path, url: str, dark: bool
) -> None:
    command = [
        sys.executable,
        "-m",
        "loadstone.commands",
        "bench",
        "--sim",
        "ttft=20ms,itl=5ms",
        "--concurrency",
        "2,4",
    ]
    command += ["--requests", "80", "--input", "16", "--output", "20", "--out", str(runs)]
    before = set(runs.iterdir())
    browser.size(WIDE)
    browser.open(url)
    measuring = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while (
            not (new := set(runs.iterdir()) - before) or not (next(iter(new)) / "run.json").exists()
        ):
            assert measuring.poll() is None
            time.sleep(0.05)
        name = next(iter(new)).name
        browser.until(
            f"[...document.querySelectorAll('.name')].some((one) => one.textContent === '{name}')"
        )
        browser.size(NARROW if dark else WIDE)
        browser.open(f"{url}runs/{name}")
        browser.until("document.querySelector('#curve-tokens svg') !== null")
        browser.until("document.querySelector('#curve-ttft svg') !== null")
        assert fits(browser)
        label = browser.run(
            "document.querySelector('#curve-tokens svg').getAttribute('aria-label')"
        )
        assert re.match(r"Output tokens per second: output tokens/s now \S+, highest \S+", label)
        assert "requests ended" in browser.run("document.getElementById('said').textContent")
        assert browser.run("document.querySelectorAll('#cells tbody th[scope=row]').length") == 2
        browser.until("document.querySelector('#hero') !== null", 60)
    finally:
        measuring.wait(60)
        shutil.rmtree(next(iter(set(runs.iterdir()) - before)))


@needs_chromium
def test_the_token_opens_the_page_and_leaves_the_address(browser: Browser, runs: Path) -> None:
    with viewing(str(runs), "--token") as (url, process):
        bare = url.partition("?")[0]
        assert httpx.get(bare).status_code == 401
        browser.open(url)
        browser.until("document.querySelector('h1')?.textContent === 'Runs'")
        assert browser.run("location.href") == bare
        assert browser.run("document.cookie") == ""
        (cookie,) = [one for one in browser.cookies() if one["name"].startswith("loadstone-")]
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        browser.run("document.querySelector('.name a').click()")
        browser.until("document.querySelector('#hero') !== null", 60)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
        assert process.returncode == 0
        assert out == ""
        assert url.partition("token=")[2] not in err


def test_a_head_without_end_is_refused(runs: Path) -> None:
    with viewing(str(runs)) as (url, _):
        port = int(url.rsplit(":", 1)[1].strip("/"))
        connection = socket.create_connection(("127.0.0.1", port), timeout=10)
        with connection, pytest.raises(ConnectionError):
            connection.sendall(b"GET / HTTP/1.1\r\nx: " + b"x" * 30_000_000)
        assert httpx.get(f"{url}assets/view.css").status_code == 200


def test_it_listens_beyond_this_machine_only_with_a_token(runs: Path) -> None:
    with viewing(str(runs), "--host", "0.0.0.0") as (url, process):
        port = re.search(r":(\d+)/\?token=[\w-]{40,}$", url)
        assert port is not None
        assert httpx.get(f"http://127.0.0.1:{port[1]}/").status_code == 401
        assert httpx.get(f"http://127.0.0.1:{port[1]}/{url.rpartition('/')[2]}").status_code == 200
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
        assert "not encrypted" in err
        assert "token" not in err


def test_a_killed_run_is_shown_as_cut_off(runs: Path, tmp_path: Path) -> None:
    root = tmp_path / "runs"
    command = [
        sys.executable,
        "-m",
        "loadstone.commands",
        "bench",
        "--sim",
        "ttft=20ms,itl=5ms",
        "--concurrency",
        "4",
    ]
    process = subprocess.Popen(
        [*command, "--duration", "60s", "--out", str(root)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        while not any(path.stat().st_size > 20_000 for path in root.glob("*/journal-*.arrow")):
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    (folder,) = root.iterdir()
    while is_written_to(folder):  # workers save what they have when their owner is gone
        assert time.monotonic() < deadline
        then = time.time() - 3600
        for path in folder.iterdir():
            os.utime(path, (then, then))
        time.sleep(0.1)
    assert run_folder.read_info(folder).status == "running"
    with viewing(str(root)) as (url, _):
        assert "cut off" in httpx.get(url).text
        told = httpx.get(f"{url}runs/{folder.name}/live.json").json()
        assert told["state"] == "cut off"
        assert "loadstone recover" in told["why"]
        assert told["cells"][0]["ok"] > 0
