"""The pacer wakes at the time set last, never before it."""

from __future__ import annotations

import asyncio
import sys
import time

import pytest

from loadstone.measure.client.clock import Pacer


@pytest.fixture(params=["timerfd", "loop timer"])
def platform(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "loop timer":
        monkeypatch.setattr(sys, "platform", "other")
    elif not sys.platform.startswith("linux"):
        pytest.skip("timerfd is Linux's")
    return str(request.param)


def test_it_wakes_at_each_time_set_and_not_before(platform: str) -> None:
    loop = asyncio.new_event_loop()
    woken: list[int] = []
    start_ns = time.monotonic_ns()
    due_ns = [start_ns + i * 7_000_000 for i in range(1, 6)]

    def on_time() -> None:
        woken.append(time.monotonic_ns())
        if len(woken) == len(due_ns):
            loop.stop()
        else:
            pacer.wake_at(due_ns[len(woken)])

    pacer = Pacer(loop, on_time)
    pacer.wake_at(due_ns[0])
    loop.run_forever()
    pacer.close()
    loop.close()
    resolution_ns = round(time.get_clock_info("monotonic").resolution * 1e9)
    assert len(woken) == len(due_ns)
    assert all(at >= due - resolution_ns for at, due in zip(woken, due_ns, strict=True))


def test_a_time_that_is_past_wakes_at_once(platform: str) -> None:
    loop = asyncio.new_event_loop()
    pacer = Pacer(loop, loop.stop)
    pacer.wake_at(0)
    loop.run_forever()
    pacer.close()
    loop.close()


def test_setting_a_time_forgets_the_one_before(platform: str) -> None:
    loop = asyncio.new_event_loop()
    woken: list[int] = []
    pacer = Pacer(loop, lambda: woken.append(1))
    pacer.wake_at(time.monotonic_ns() + 1_000_000)
    pacer.wake_at(time.monotonic_ns() + 3_600_000_000_000)
    loop.run_until_complete(asyncio.sleep(0.05))
    pacer.close()
    loop.close()
    assert woken == []
