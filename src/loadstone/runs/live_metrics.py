"""Serves a run that goes on as Prometheus reads it: GET /metrics, for as long as the run takes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from loadstone.core.errors import InputError
from loadstone.measure.client.protocol import NOTHING_YET, Progress
from loadstone.runs.cells import Event, Listener


class _LiveRun(Collector):
    """Keeps what the last events said. Warm-up is counted too, as on the terminal."""

    def __init__(self) -> None:
        self._progress: Progress = NOTHING_YET
        self._about: dict[str, str] = {}
        self._load = ("none", 0.0)

    def hear(self, event: Event) -> None:
        if event.kind == "attached" and event.info is not None:
            target = event.info.target
            self._about = {"run_id": event.info.run_id}
            if target is not None:
                self._about |= {"model": target.model, "engine": target.engine or ""}
        elif event.kind == "cell" and event.plan is not None and event.cell is not None:
            load = event.plan.cells[event.cell]
            self._load = load.kind, load.value
        elif event.progress is not None:
            self._progress = event.progress

    def collect(self) -> Iterator[Metric]:
        seen = self._progress
        yield InfoMetricFamily("loadstone_run", "The run that goes on", self._about)
        load = GaugeMetricFamily("loadstone_load", "The load of the cell that is measured", labels=["kind"])
        load.add_metric([self._load[0]], self._load[1])
        yield load
        requests = CounterMetricFamily("loadstone_requests", "Requests that ended, by how", labels=["outcome"])
        requests.add_metric(["completed"], seen.ended - seen.failed)
        requests.add_metric(["failed"], seen.failed)
        yield requests
        yield CounterMetricFamily("loadstone_requests_sent", "Requests that were taken up", seen.issued)
        yield GaugeMetricFamily("loadstone_requests_active", "Requests under way", seen.active)
        yield CounterMetricFamily("loadstone_output_events", "Stream events that carried output", seen.tokens)
        for name, text, count, total in (
            ("ttft", "Time to first token, from sending", seen.ttfts, seen.ttft_s),
            ("tpot", "Time per output token after the first", seen.tpots, seen.tpot_s),
        ):
            yield SummaryMetricFamily(f"loadstone_{name}_seconds", text, count, total)


@contextlib.contextmanager
def serving(address: str | None) -> Iterator[Listener]:
    """Serve /metrics at PORT of this machine, or at HOST:PORT, while the block lasts; what it yields is to hear the
    run's events. None: nothing is served. Raises InputError where that is no address, or is taken.
    """
    if address is None:
        yield lambda event: None
        return
    host, _, port = address.rpartition(":")
    if not (port.isdecimal() and 0 < int(port) < 65536):
        raise InputError(f"--metrics-port {address}: write a port from 1 to 65535, or HOST:PORT")
    registry, live = CollectorRegistry(), _LiveRun()
    registry.register(live)
    try:
        server, thread = start_http_server(int(port), host.strip("[]") or "127.0.0.1", registry)
    except OSError as error:
        raise InputError(f"--metrics-port {address}: {error.strerror or error}; choose another") from None
    try:
        yield live.hear
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
