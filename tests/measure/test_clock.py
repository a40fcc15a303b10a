"""Kernel stamps to arrival times, also where a stamp makes no sense."""

from __future__ import annotations

import socket
import struct
import sys
import time

import pytest

from loadstone.measure.client.clock import (
    ANCILLARY_BYTES,
    RunClock,
    ask_for_stamps,
    measure_offset_ns,
)

STAMP = struct.Struct("@qq")


def stamp(realtime_ns: int) -> bytes:
    return STAMP.pack(*divmod(realtime_ns, 1_000_000_000))


@pytest.fixture
def clock() -> RunClock:
    return RunClock(time.monotonic_ns() - 10_000_000_000)


def test_a_stamp_is_mapped_to_the_monotonic_clock(clock: RunClock) -> None:
    read_ns = time.monotonic_ns()
    arrived_ns = read_ns - 3_000_000
    assert clock.arrivals_ns([stamp(arrived_ns - clock._offset_ns)], [read_ns]) == (
        [arrived_ns],
        3_000_000,
    )


def test_without_a_stamp_the_time_of_the_read_is_taken(clock: RunClock) -> None:
    read_ns = time.monotonic_ns()
    assert clock.arrivals_ns([b""], [read_ns]) == ([read_ns], 0)


def test_stamped_and_unstamped_reads_may_be_mixed(clock: RunClock) -> None:
    read_ns = time.monotonic_ns()
    arrived_ns = read_ns - 1_000_000
    found, _ = clock.arrivals_ns(
        [stamp(arrived_ns - clock._offset_ns), b""], [read_ns, read_ns + 5]
    )
    assert found == [arrived_ns, read_ns + 5]


@pytest.mark.parametrize("step_s", [-3600, 3600])
def test_a_host_clock_that_was_set_does_not_move_arrivals(
    clock: RunClock, step_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    true_time_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: true_time_ns() + step_s * 1_000_000_000)
    read_ns = time.monotonic_ns()
    arrived_ns = read_ns - 2_000_000
    realtime_ns = time.time_ns() - (time.monotonic_ns() - arrived_ns)
    found, _ = clock.arrivals_ns([stamp(realtime_ns)], [read_ns])
    assert (
        abs(found[0] - arrived_ns) < 1_000_000
    )  # to what two clock reads can be apart, not to an hour


@pytest.mark.parametrize("step_ms", [-30, -5, 5, 30])
def test_a_small_step_of_the_host_clock_is_found_and_moves_no_arrival(
    clock: RunClock, step_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too small to look impossible: a stamp would only seem to have waited a little less, or
    more."""
    true_time_ns = time.time_ns

    def arrival(set_by_ms: int) -> tuple[bytes, int, int]:
        """A stamp of now, when it was read, and when it arrived: 0.2 ms before."""
        read_ns = time.monotonic_ns()
        realtime_ns = true_time_ns() - 200_000 + set_by_ms * 1_000_000
        return stamp(realtime_ns), read_ns, read_ns - 200_000

    before = arrival(0)
    monkeypatch.setattr(time, "time_ns", lambda: true_time_ns() + step_ms * 1_000_000)
    between = arrival(step_ms)
    clock.resample()
    after = arrival(step_ms)
    for said, read_ns, arrived_ns in (before, between, after):
        (found,), _ = clock.arrivals_ns([said], [read_ns])
        assert abs(found - arrived_ns) < 1_000_000


def test_an_offset_that_only_jitters_is_left_as_it_is(clock: RunClock) -> None:
    offset_ns = clock._offset_ns
    for _ in range(20):
        clock.resample()
    assert clock._offset_ns == offset_ns


def test_an_arrival_is_never_after_its_own_reading(clock: RunClock) -> None:
    read_ns = time.monotonic_ns()
    found, _ = clock.arrivals_ns([stamp(read_ns + 100_000 - clock._offset_ns)], [read_ns])
    assert found == [read_ns]


def test_the_offset_between_the_clocks_is_found_again() -> None:
    assert abs(measure_offset_ns()[0] - measure_offset_ns()[0]) < 1_000_000


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="kernel stamps are Linux's")
def test_the_kernel_stamps_what_arrives_over_loopback() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        peer, _ = server.accept()
        with peer:
            assert ask_for_stamps(client)
            clock = RunClock(time.monotonic_ns())
            # The kernel switches stamping on in the background when the first socket asks for it.
            for _ in range(40):
                before_ns = time.monotonic_ns()
                peer.sendall(b"x")
                time.sleep(0.05)
                _, ancillary, _, _ = client.recvmsg(100, ANCILLARY_BYTES)
                read_ns = time.monotonic_ns()
                if ancillary:
                    break
            (arrived_ns,), lag_ns = clock.arrivals_ns([ancillary[0][2]], [read_ns])
    # Stamped when it arrived, not when it was read 50 ms later.
    assert before_ns - 1_000_000 < arrived_ns < read_ns - 25_000_000
    assert lag_ns == read_ns - arrived_ns
