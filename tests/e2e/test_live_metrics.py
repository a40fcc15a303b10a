"""A run that goes on, as Prometheus sees it."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from prometheus_client.parser import text_string_to_metric_families

from conftest import FAST, eventually
from loadstone.core.errors import InputError
from loadstone.measure.engines.process import free_port
from loadstone.measure.simulated_server import start
from loadstone.runs.bench import bench
from loadstone.runs.cells import Event
from loadstone.runs.live_metrics import serving
from loadstone.workload.option_fields import options_of
from loadstone.workload.options import Options

Scraped = dict[str, float]


def scrape(port: int) -> Scraped:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def run(
    out: Path, port: int, on_event: Callable[[Event], None], **options: object
) -> dict[str, object]:
    with start(FAST) as server:
        given = {
            "url": server.url,
            "input": "8",
            "output": "4",
            "concurrency": [2],
            "warmup": 0,
            "out": out,
        }
        return bench(
            options_of({**given, "metrics_port": str(port), **options}, Options), on_event
        ).document()


def test_a_run_that_goes_on_is_told_of_and_is_gone_after_it(tmp_path: Path) -> None:
    port, seen = free_port(), list[Scraped]()

    def look(event: Event) -> None:
        if event.kind in ("progress", "cell_end"):
            seen.append(scrape(port))

    document = run(tmp_path, port, look, requests=400)
    sent = document["cells"][0]["requests"]["sent"]  # type: ignore[index]
    ended = [each["loadstone_requests_completed_total"] for each in seen]
    assert ended == sorted(ended)
    assert ended[-1] <= sent == 400
    assert ended[-1] > 0
    last = seen[-1]
    assert last["loadstone_requests_failed_total"] == 0
    assert last["loadstone_load"] == 2
    assert last["loadstone_ttft_seconds_count"] <= 400
    assert 0 < last["loadstone_ttft_seconds_sum"] < 400
    with pytest.raises(OSError, match="refused"):
        scrape(port)


@pytest.mark.parametrize("address", ["http", "0", "70000", "127.0.0.1:x", "203.0.113.1:9464"])
def test_an_address_that_cannot_be_served_is_one_line(address: str) -> None:
    with pytest.raises(InputError, match="--metrics-port"), serving(address):
        pass


@pytest.mark.slow
def test_a_real_prometheus_scrapes_it(tmp_path: Path) -> None:
    """Debian's package, unpacked into a folder and not installed."""
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        pytest.skip("Prometheus is taken from Debian's archive, and this is no Debian")
    fetched = subprocess.run(
        ["apt-get", "download", "-qq", "prometheus"], cwd=tmp_path, check=False
    )
    if fetched.returncode:
        pytest.skip("Debian's archive has no prometheus here: apt-get update first")
    (package,) = tmp_path.glob("*.deb")
    subprocess.run(["dpkg", "-x", package, tmp_path / "root"], check=True)
    port, own = free_port(), free_port()
    config = {
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [
            {"job_name": "loadstone", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
        ],
    }
    (tmp_path / "prometheus.yml").write_text(json.dumps(config))
    flags = [
        f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data",
        f"--web.listen-address=127.0.0.1:{own}",
    ]  # fmt: skip

    def ask(query: str) -> float:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{own}/api/v1/query?query={quote(query)}", timeout=10
        ) as answer:
            result = json.load(answer)["data"]["result"]
        return float(result[0]["value"][1]) if result else 0.0

    seen: list[float] = []
    with (tmp_path / "log").open("w") as log:
        prometheus = subprocess.Popen(
            [tmp_path / "root/usr/bin/prometheus", *flags], stdout=log, stderr=log
        )
        try:
            assert eventually((tmp_path / "data" / "wal").is_dir)

            def look(event: Event) -> None:
                if event.kind == "progress":
                    seen.append(ask("loadstone_requests_completed_total"))

            run(tmp_path / "runs", port, look, rate=[20], concurrency=None, duration="10s")
        finally:
            prometheus.terminate()
            prometheus.wait()
    assert max(seen) > 20, (tmp_path / "log").read_text()[-2000:]
