import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from conftest import eventually
from loadstone.analyse.server_figures import server_figures
from loadstone.core import run_folder
from loadstone.engines.server_metrics import NAMES
from loadstone.measure.engines import observe
from loadstone.measure.engines.observe import Observer, read_metrics

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "wire"
SGLANG = Path(__file__).parent / "wire" / "sglang" / "metrics.txt"


def recorded(name: str) -> str:
    path = SGLANG if name == "sglang" else DATA / f"{name}.metrics.txt"
    if not path.exists():
        pytest.skip(f"no recorded metrics at {path.name}")
    return path.read_text()


@contextmanager
def serving(
    page: Callable[[int], bytes],
    status: int = 200,
    heard: list[dict[str, str]] | None = None,
    **headers: str,
) -> Iterator[str]:
    """A server whose n-th answer is `page(n)`; its URL. `heard`: the headers that it is asked
    with."""
    count = iter(range(10**9))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = page(next(count))
            if heard is not None:
                heard.append({name.lower(): text for name, text in self.headers.items()})
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()


# --- reading a page -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vllm", {"vllm:num_requests_running": 0.0, "vllm:prefix_cache_queries_total": 8102.0}),
        ("sglang", {"sglang:cached_tokens_total": 190.0, "sglang:token_usage": 0.0}),
        (
            "lcppbin",
            {"llamacpp:prompt_tokens_cached_total": 829.0, "llamacpp:requests_deferred": 0.0},
        ),
    ],
)
def test_what_engines_say(name: str, expected: dict[str, float]) -> None:
    samples = read_metrics(recorded(name))
    values = {sample.name: sample.value for sample in samples}
    assert values.items() >= expected.items()
    assert len(samples) <= observe.SERIES
    assert not [sample for sample in samples if sample.name.endswith(("_bucket", "_created"))]
    for sample in samples:
        labels = msgspec.json.decode(sample.labels, type=dict[str, str])
        assert list(labels) == sorted(labels)


def test_histograms_are_kept_as_sums_and_counts() -> None:
    page = (
        "# TYPE wait_seconds histogram\n"
        'wait_seconds_bucket{le="1"} 3\nwait_seconds_sum 2.5\nwait_seconds_count 3\nwait_seconds_created 1.7e9\n'
        "# TYPE kept gauge\nkept 1\nuntyped 2\n# TYPE python_info gauge\npython_info 1\n"
    )
    assert [(s.name, s.value) for s in read_metrics(page)] == [
        ("wait_seconds_sum", 2.5),
        ("wait_seconds_count", 3.0),
        ("kept", 1.0),
    ]


def test_a_gauge_with_the_name_of_a_counter_is_none() -> None:
    page = (
        "# TYPE requests_active_total gauge\nrequests_active_total 4\n"
        "# TYPE requests_done_total counter\nrequests_done_total 9\n"
    )
    assert [sample.name for sample in read_metrics(page)] == ["requests_done_total"]


def test_a_line_that_is_none_costs_no_other() -> None:
    page = 'vllm:num_requests_running{a="b} 1\nvllm:num_requests_waiting x\nvllm:kv_cache_usage_perc 0.5\n\x00\x1b[31m\n'
    assert [(s.name, s.value) for s in read_metrics(page)] == [("vllm:kv_cache_usage_perc", 0.5)]


def test_the_number_of_series_is_bounded_and_the_known_come_first() -> None:
    page = (
        "# TYPE x gauge\n"
        + "".join(f'x{{i="{i}"}} {i}\n' for i in range(5000))
        + "vllm:num_requests_running 7\n"
    )
    samples = read_metrics(page)
    assert len(samples) == observe.SERIES
    assert samples[0] == ("vllm:num_requests_running", "{}", 7.0)
    assert read_metrics('# TYPE x gauge\nx{a="' + "y" * 100_000 + '"} 1\n') == []
    assert read_metrics('# TYPE x gauge\nx{a="' + "y" * 1000 + '"} 1\n') == []


# --- watching a server ----------------------------------------------------------------------------


def test_a_server_is_watched(tmp_path: Path) -> None:
    def page(number: int) -> bytes:
        return b"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running %d\n" % number

    origin_ns = time.monotonic_ns()
    with (
        serving(page) as url,
        Observer(tmp_path, [None, url], origin_ns, interval_s=0.01, flush_s=0.0) as observer,
    ):
        # What a run that is killed now would leave:
        assert eventually(
            lambda: (table := run_folder.read_server(tmp_path)) is not None and table.num_rows >= 3
        )
        assert not (tmp_path / "server.parquet").exists()
    table = run_folder.read_server(tmp_path)
    assert table is not None
    assert table.schema.equals(run_folder.server_schema())
    assert (tmp_path / "server.parquet").exists()
    assert not (tmp_path / "server.arrow").exists()
    assert table["value"].to_pylist() == [float(i) for i in range(table.num_rows)]
    assert set(table["replica"].to_pylist()) == {1}
    times = table["time_s"].to_pylist()
    assert times == sorted(times)
    assert 0 < times[0] < times[-1] < (time.monotonic_ns() - origin_ns) * 1e-9
    assert observer.notes == []


def test_a_look_is_taken_when_asked_and_at_the_end(tmp_path: Path) -> None:
    asked: list[int] = []

    def page(number: int) -> bytes:
        asked.append(number)
        return b"vllm:num_requests_running 1\n"

    with (
        serving(page) as url,
        Observer(tmp_path, [url], time.monotonic_ns(), interval_s=3600) as observer,
    ):
        assert eventually(lambda: len(asked) == 1)
        time.sleep(0.05)
        observer.look()
        assert eventually(lambda: len(asked) == 2)
    assert len(asked) == 3
    table = run_folder.read_server(tmp_path)
    assert table is not None
    assert table.num_rows == 3


@pytest.mark.parametrize(
    ("page", "status", "headers", "note"),
    [
        (b"no", 404, {}, "HTTP 404"),
        (b"<html>", 200, {}, "no metrics"),
        (b"x" * (3 * 1024 * 1024), 200, {}, "more than"),
        (b"\x1f\x8b", 200, {"Content_Encoding": "gzip"}, "compressed"),
    ],
)
def test_a_server_without_metrics_harms_nothing(
    tmp_path: Path, page: bytes, status: int, headers: dict[str, str], note: str
) -> None:
    with (
        serving(lambda _: page, status, **headers) as url,
        Observer(tmp_path, [url], time.monotonic_ns(), interval_s=0.01) as observer,
    ):
        assert eventually(lambda: observer.notes)
    (said,) = observer.notes
    assert note in said
    assert list(tmp_path.iterdir()) == []
    assert run_folder.read_server(tmp_path) is None


def test_no_server_at_all(tmp_path: Path) -> None:
    with Observer(
        tmp_path, ["http://127.0.0.1:1/metrics", "http://[bad"], time.monotonic_ns()
    ) as observer:
        assert eventually(lambda: len(observer.notes) == 2)
    assert run_folder.read_server(tmp_path) is None


def test_a_folder_that_cannot_be_written_ends_the_keeping_only(tmp_path: Path) -> None:
    with (
        serving(lambda _: b"vllm:num_requests_running 1\n") as url,
        Observer(tmp_path / "gone", [url], time.monotonic_ns()) as observer,
    ):
        pass
    assert ["metrics end here" in note for note in observer.notes] == [True]


def test_a_torn_file_is_read_as_far_as_it_goes(
    tmp_path: Path,
) -> None:
    with (
        serving(lambda _: b"vllm:num_requests_running 1\n") as url,
        Observer(tmp_path, [url], time.monotonic_ns(), interval_s=0.01, flush_s=0.0),
    ):
        assert eventually(
            lambda: (table := run_folder.read_server(tmp_path)) is not None and table.num_rows >= 3
        )
        data = (tmp_path / "server.arrow").read_bytes()
    (tmp_path / "server.parquet").unlink()
    (tmp_path / "server.arrow").write_bytes(data[:-5])
    table = run_folder.read_server(tmp_path)
    assert table is not None
    assert table.num_rows >= 2
    (tmp_path / "server.parquet").write_bytes(b"PAR1 and then nothing")
    assert run_folder.read_server(tmp_path) is None


# --- from samples to a cell's figures -------------------------------------------------------------


def test_recorded_pages_give_figures_in_common_words(tmp_path: Path) -> None:
    """Two looks at the same page: gauges as they stand, counters that gained nothing."""
    for name, known in {
        "vllm": {
            "running",
            "waiting",
            "kv_usage",
            "preemptions",
            "prefix_hits",
            "prefix_queries",
            "picture_hits",
            "picture_queries",
            "transferred_tokens",
            "output_tokens",
        },
        "sglang": {
            "running",
            "waiting",
            "kv_usage",
            "prefix_hits",
            "prefix_queries",
            "accepted_length",
            "output_tokens",
        },
        "lcppbin": {
            "running",
            "waiting",
            "prefix_hits",
            "prefix_queries",
            "draft_steps",
            "draft_tokens",
            "draft_accepted",
        },
    }.items():
        page = recorded(name).encode()
        folder = tmp_path / name
        folder.mkdir()
        with (
            serving(lambda _, page=page: page) as url,
            Observer(folder, [url], time.monotonic_ns()),
        ):  # type: ignore[misc]
            pass
        samples = run_folder.read_server(folder)
        assert samples is not None
        figures = server_figures(samples, 0.0, 100.0)
        assert figures is not None
        assert msgspec.to_builtins(figures).keys() == known | {"samples", "restarts"}
        assert figures.restarts == 0
        assert figures.prefix_hits == figures.prefix_queries == 0


def test_names_are_whole_names() -> None:
    assert all(name == name.strip() and not set("{}+ ") & set(name) for name in NAMES)
