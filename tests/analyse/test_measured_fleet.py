"""Replicas of measured runs over time: as a gateway reports them, or by who answers."""

from __future__ import annotations

import pyarrow as pa

from loadstone.analyse.server_figures import measured_fleet
from loadstone.core.run_folder import server_schema
from loadstone.engines.server_metrics import NAMES, READY

RUNNING = "vllm:num_requests_running"


def samples(rows: list[tuple[float, int, str, float]]) -> pa.Table:
    columns = zip(
        *((at, server, name, "{}", value) for at, server, name, value in rows), strict=True
    )
    return pa.table([*map(list, columns)], schema=server_schema())


def test_a_gateway_tells_its_ready_replicas() -> None:
    counts = [2] * 20 + [3] * 10 + [1] * 10
    rows = [(float(at), 0, READY[0], float(count)) for at, count in enumerate(counts)]
    rows += [(float(at), 0, RUNNING, 4.0) for at in range(40)]
    fleet = measured_fleet(samples(rows))
    assert fleet is not None
    assert fleet.replicas == [(0.0, 2), (20.0, 3), (30.0, 1)]
    assert (fleet.policy, fleet.source) == ("measured", READY[0])
    assert set(READY) <= NAMES  # so that they are kept


def test_servers_are_counted_while_they_answer() -> None:
    """One all the time, asked a moment before the others; one from 10 s on; one until 20 s."""
    rows = [(at + 0.0, 0, RUNNING, 1.0) for at in range(40)]
    rows += [(at + 0.05, 1, RUNNING, 1.0) for at in range(10, 40)]
    rows += [(at + 0.05, 2, RUNNING, 1.0) for at in range(21)]
    rows.append((3.0, -1, "power_w", 300.0))  # a GPU
    fleet = measured_fleet(samples(rows))
    assert fleet is not None
    assert fleet.replicas == [(0.05, 2), (10.05, 3), (25.05, 2)]


def test_a_fleet_that_does_not_change_is_none() -> None:
    rows = [(at + 0.05 * server, server, RUNNING, 1.0) for at in range(40) for server in range(3)]
    rows = [row for row in rows if row[0] != 7.05]  # an answer that failed
    assert measured_fleet(samples(rows)) is None
    assert measured_fleet(None) is None
