"""Serves a run that goes on as Prometheus reads it: GET /metrics, for as long as the run takes."""

import contextlib
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from loadstone.core.errors import InputError
from loadstone.measure.client.protocol import NOTHING_YET
from loadstone.runs.cells import Event, Listener


class _LiveRun(Collector):
    """Keeps what the last events said. Warm-up is counted too, as on the terminal."""

    def __init__(self) -> None:
        self._seen, self._load = NOTHING_YET, 0.0

    def hear(self, event: Event) -> None:
        if event.kind == "cell" and event.plan is not None and event.cell is not None:
            self._load = event.plan.cells[event.cell].value
        self._seen = event.progress or self._seen

    def collect(self) -> Iterator[Metric]:
        seen, requests = self._seen, "loadstone_requests"
        yield GaugeMetricFamily(
            "loadstone_load", "Rate or concurrency of the load that is measured", self._load
        )
        yield GaugeMetricFamily(f"{requests}_active", "Requests under way", seen.active)
        yield CounterMetricFamily(
            f"{requests}_completed", "Requests that ended well", seen.ended - seen.failed
        )
        yield CounterMetricFamily(f"{requests}_failed", "Requests that failed", seen.failed)
        yield CounterMetricFamily(
            "loadstone_output_events", "Stream events that carried output", seen.tokens
        )
        yield SummaryMetricFamily(
            "loadstone_ttft_seconds", "Time to first token", seen.ttfts, seen.ttft_s
        )
        yield SummaryMetricFamily(
            "loadstone_tpot_seconds", "Time per later token", seen.tpots, seen.tpot_s
        )


@contextlib.contextmanager
def serving(address: str | None) -> Iterator[Listener]:
    """Serve /metrics at PORT of this machine, or at HOST:PORT, while the block lasts; what it
    yields is to hear the run's events. None: nothing is served. Raises InputError where that is no
    address, or is taken.
    """
    live, registry = _LiveRun(), CollectorRegistry()
    registry.register(live)
    with contextlib.ExitStack() as stack:
        if address is not None:
            host, _, port = address.rpartition(":")
            try:
                server, _thread = start_http_server(
                    int(port) or -1, host.strip("[]") or "127.0.0.1", registry
                )
            except (OSError, OverflowError, ValueError) as error:
                remedy = "choose another port from 1 to 65535, or HOST:PORT"
                raise InputError(
                    f"--metrics-port {address}: cannot be served ({error}); {remedy}"
                ) from None
            stack.callback(server.server_close)
            stack.callback(server.shutdown)
        yield live.hear
