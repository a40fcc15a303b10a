"""--profile: a window of the engine's profiler after each load, under it, and in no figure."""

from __future__ import annotations

import json
import time

import pyarrow.parquet as pq
import pytest

from conftest import Ask, Loadstone, ScriptedServer, Send, answer, whole

FLAGS = [
    "--profile",
    "500ms",
    "--input",
    "8",
    "--output",
    "4",
    "--warmup",
    "1",
    "--json",
    "--seed",
    "3",
]


class Engine:
    """A server with profiler routes, which keeps when these were asked, on the requests' clock."""

    def __init__(self, stop: str = "200 OK", *, has_profiler: bool = True) -> None:
        self.stop, self.has_profiler = stop, has_profiler
        self.asked: list[tuple[str, int]] = []
        self.prompts: list[str] = []
        self.server = ScriptedServer(self.reply, meets=True)

    def reply(self, ask: Ask, send: Send) -> None:
        if ask.path in ("/start_profile", "/stop_profile") and self.has_profiler:
            if ask.line.startswith("OPTIONS"):
                return send(whole("405 Method Not Allowed", b"{}"))
            self.asked.append((ask.path, len(self.prompts)))
            status = self.stop if ask.path == "/stop_profile" else "200 OK"
            return send(whole(status, b"{}"))
        if ask.measured:
            self.prompts.append(ask.body.decode())
            time.sleep(0.01)
        return answer(ask, send)


@pytest.mark.parametrize(
    ("load", "requests"),
    [
        (("--concurrency", "1,3", "--requests", "12"), 12),
        (("--rate", "40", "--requests", "12"), 12),
        (("--concurrency", "2", "--duration", "300ms"), None),
        (("--rate", "inf", "--requests", "6"), 6),
        (("--turns", "2", "--concurrency", "2", "--requests", "8"), 8),
    ],
)
def test_a_window_after_each_load(
    loadstone: Loadstone, load: tuple[str, ...], requests: int | None
) -> None:
    engine = Engine()
    with engine.server as server:
        outcome = loadstone("bench", server.url, *load, *FLAGS)
    cells = outcome.document["cells"]
    assert [path for path, _ in engine.asked] == ["/start_profile", "/stop_profile"] * len(cells)
    assert all(cell["requests"]["sent"] == requests or requests is None for cell in cells)
    assert "profiled" not in outcome.findings
    run = json.loads((outcome.folder / "run.json").read_text())
    sent = len(outcome.records)
    for number, cell in enumerate(run["cells"]):
        window = cell["profiled"]
        assert window["stopped"]
        assert cell["end_s"] <= window["start_s"] < window["end_s"]
        if "inf" not in load:
            assert window["end_s"] - window["start_s"] > 0.49
        own = pq.read_table(outcome.folder / "profile" / str(number) / "records.parquet")
        starts = own["sent_s"].to_pylist()
        if "inf" not in load:
            assert sum(window["start_s"] < at < window["end_s"] for at in starts if at) > 5
        assert min(at for at in starts if at) >= cell["end_s"]
        sent += len(own)
    assert len(engine.prompts) == sent  # nothing sent is without a record
    assert len(set(engine.prompts)) == len(engine.prompts)  # nor finds itself in a cache
    shown = loadstone("show", outcome.folder, "--json").document["cells"]
    assert [cell["requests"] for cell in shown] == [cell["requests"] for cell in cells]


def test_a_profiler_that_does_not_stop_is_in_the_next_load(loadstone: Loadstone) -> None:
    engine = Engine(stop="500 Oh")
    with engine.server as server:
        outcome = loadstone("bench", server.url, "--concurrency", "1,2", "--requests", "8", *FLAGS)
    kinds = [
        {finding["kind"] for finding in cell["verdict"]["findings"]}
        for cell in outcome.document["cells"]
    ]
    assert ["profiled" in found for found in kinds] == [False, True]
    assert "/stop_profile: HTTP 500" in outcome.err


def test_a_server_without_a_profiler_is_one_line(loadstone: Loadstone) -> None:
    engine = Engine(has_profiler=False)
    with engine.server as server:
        line = loadstone("bench", server.url, "--concurrency", "1", *FLAGS).line()
        both = loadstone("bench", server.url, "--find-max", "ttft_p99<1s", *FLAGS).line()
    assert line.startswith(f"--profile: {server.url} has no /start_profile; start vLLM with")
    assert both.startswith("--profile and --find-max")
    assert not engine.prompts


def test_an_engine_that_profiles_itself_is_told(loadstone: Loadstone) -> None:
    with ScriptedServer() as server:
        outcome = loadstone(
            "bench", server.url, "--label", "TLLM_PROFILE_START_STOP=10-20", *FLAGS[2:]
        )
    assert "profiled" in outcome.findings
